/* The proxy's source without main, with checks and test seams, and what unit tests and fuzzers build of it: settings, a compiler, one thread. */
#ifndef PROXY_H
#define PROXY_H

#ifndef RAMJET_NO_MAIN
#define RAMJET_NO_MAIN 1
#endif
#ifndef RJ_DEBUG
#define RJ_DEBUG 1
#endif
#ifndef RJ_FAULTS
#define RJ_FAULTS 1
#endif
#include "../../ramjet.c"

#include <stdio.h>

/* Settings of the text of a file and of flags; NULL, with what is wrong printed. */
static struct cfg *proxy_cfg(struct str ini, const char *const *flags, int nflags)
{
    struct cfg_input in = {.argc = nflags, .argv = (char *const *)(uintptr_t)flags, .file_name = "edge.ini", .text = ini};
    struct cfg_report report = {.text = str_growing()};
    struct cfg *c = cfg_load(&in, &report);

    if (!c) printf("%.*s", STR_ARG(str_built(&report.text)));
    str_free(&report.text);
    return c;
}

/* A compiler of a store, as the control thread has it; warn(arg, text) hears its warnings. */
static void proxy_rc_open(struct rc *rc, struct obj_store *store, const struct cfg *cfg, void (*warn)(void *arg, const char *text), void *arg)
{
    rj.rt.workers = 1;
    rc_init(rc, store, cfg);
    rc->warn = warn;
    rc->arg = arg;
    store->changed = rc_on_changed;
    store->arg = rc;
}

static void proxy_rc_close(struct rc *rc, struct obj_store *store, struct rt_changes *changes)
{
    rc_fini(rc);
    store->changed = NULL;
    obj_store_fini(store);
    rt_fini();
    mem_free(changes->v);
}

/* The calling thread is t, the only one there is; NULL takes that back. */
static void proxy_set_thread(struct rj_thread *t)
{
    rj_me = t;
    mem_free(rj.threads);
    rj.threads = t ? mem_need(sizeof *rj.threads) : NULL;
    if (t) rj.threads[0] = t;
    rj.thread_count = t ? 1 : 0;
}

#endif
