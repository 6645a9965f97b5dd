/* Every fuzz target in one program. The target is named by FUZZ_TARGET (or, with FUZZ_ONCE, by the arguments).
 *
 * Built with libFuzzer it is a fuzzer; built with -DFUZZ_ONCE it runs each file of a corpus once:
 *   fuzz-once [TARGET...]     every target of the table, or those; files from tests/fuzz/corpus/TARGET */
#include "../unit/proxy.h"

#include <arpa/inet.h>

#include "../unit/unit.h"

#include "../unit/sim.h"

#include "fuzz.h"

#include "fuzz_targets.h"

#include <dirent.h>
#include <sys/stat.h>

static struct fz_target *fz_target;

#ifndef FUZZ_ONCE

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = getenv("FUZZ_TARGET");

    (void)argc;
    (void)argv;
    fz_target = name ? fz_find(name) : NULL;
    if (!fz_target) {
        fprintf(stderr, "FUZZ_TARGET names one of:\n");
        for (struct fz_target *t = fz_targets; t; t = t->next) fprintf(stderr, "%s %zu\n", t->name, t->max);
        exit(2);
    }
    if (fz_target->open) fz_target->open();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    if (n > fz_target->max) return -1;
    fz_target->run(p, n);
    return 0;
}

#else

static char fz_file[PATH_MAX];
static long fz_passed, fz_failed;

/* The file that was running stands in the last words. */
static void fz_on_signal(int number)
{
    char text[PATH_MAX + 128];
    int n = snprintf(text, sizeof text, "FAIL %s: ended by signal %d\n%ld passed, %ld failed, 0 skipped\n", fz_file, number, fz_passed, fz_failed + 1);

    if (write(1, text, (size_t)n) < 0) _exit(3);
    _exit(1);
}

static void fz_run_file(const char *name)
{
    static uint8_t bytes[1 << 20];
    FILE *f = fopen(name, "rb");
    size_t n;

    if (!f) {
        printf("FAIL %s: %s\n", name, strerror(errno));
        fz_failed++;
        return;
    }
    n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    if (n > fz_target->max) {
        printf("FAIL %s: more than %zu bytes\n", name, fz_target->max);
        fz_failed++;
        return;
    }
    alarm(60);
    fz_target->run(bytes, n);
    alarm(0);
    fz_passed++;
}

static int fz_by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void fz_run_target(struct fz_target *t)
{
    struct dirent **entries;
    char dir[256];
    int n, ran = 0;

    fz_target = t;
    if (t->open) t->open();
    snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", t->name);
    n = scandir(dir, &entries, NULL, fz_by_name);
    for (int i = 0; i < n; i++) {
        snprintf(fz_file, sizeof fz_file, "%s/%s", dir, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') fz_run_file(fz_file), ran++;
        free(entries[i]);
    }
    if (n > 0) free(entries);
    printf("%-10s %d inputs\n", t->name, ran);
    if (!ran) printf("FAIL %s holds nothing\n", dir), fz_failed++;
}

int main(int argc, char **argv)
{
    signal(SIGABRT, fz_on_signal);
    signal(SIGALRM, fz_on_signal);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (struct fz_target *t = fz_targets; t; t = t->next) {
        bool wanted = argc <= 1;

        for (int i = 1; i < argc; i++) wanted = wanted || strcmp(argv[i], t->name) == 0;
        if (wanted) fz_run_target(t);
    }
    printf("%ld passed, %ld failed, 0 skipped\n", fz_passed, fz_failed);
    return fz_failed || !fz_passed;
}

#endif
