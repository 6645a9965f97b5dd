/* A program of its own that carries Ramjet: serves the text of the first file, and after a line on stdin that of the second. */
#include "ramjet.h"

static const char *read_file(const char *name, char *text, size_t size)
{
    FILE *file = fopen(name, "r");
    size_t n = file ? fread(text, 1, size - 1, file) : 0;
    text[n] = 0;
    if (file) fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    static char text[4096], err[1024];
    struct ramjet *edge = NULL;
    if (argc < 3) return 2;
    if (ramjet_start(&edge, read_file(argv[1], text, sizeof text), err, sizeof err) < 0) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    puts("started");
    fflush(stdout);
    while (getchar() == '\n') {
        int result = ramjet_reload(edge, read_file(argv[2], text, sizeof text), err, sizeof err);
        puts(result < 0 ? err : "reloaded");
        fflush(stdout);
    }
    ramjet_stop(edge);
    return 0;
}
