/* System calls that the kernel refuses, and allocations that fail: one at a time, each site in turn.
 *
 *   for (long k = 1; ft_arm(FT_CALLS, k); k++) {        // false once the last sweep met fewer than k calls
 *       ... the same work each time; it may fail, but must lose nothing ...
 *       ft_disarm();
 *   }
 *
 * Only this thread is concerned. What cannot fail in a way that a program could answer (close, munmap, setsockopt of what is optional,
 * getrandom) is let through. Errors are those that a machine short of descriptors, memory, ports or peers gives. */
#ifndef FAULTS_H
#define FAULTS_H

enum ft_kind { FT_CALLS, FT_MEMORY };

static struct {
    enum ft_kind kind;
    long left;                                           /* calls until the one that is refused */
    long hit;                                            /* its number; -1: not met yet */
    bool on;
} ft = {.hit = -1};

static int ft_error(long nr)
{
    switch (nr) {
    case SYS_openat: case SYS_socket: case SYS_socketpair: case SYS_pipe2: case SYS_accept4: case SYS_epoll_create1: case SYS_inotify_init1:
    case SYS_signalfd4: return -EMFILE;
    case SYS_mmap: case SYS_epoll_ctl: case SYS_inotify_add_watch: case SYS_URING_SETUP: case SYS_URING_REGISTER: return -ENOMEM;
    case SYS_bind: case SYS_listen: return -EADDRINUSE;
    case SYS_connect: return -ENETUNREACH;
    case SYS_getsockname: case SYS_getpeername: return -ENOBUFS;
    case SYS_read: case SYS_write: return -EIO;
    case SYS_recvfrom: return -ECONNRESET;
    case SYS_sendto: case SYS_sendmsg: case SYS_splice: return -EPIPE;
    default: return 0;
    }
}

static long ft_refuse(long nr)
{
    int error = ft_error(nr);

    if (!error || ft.left <= 0 || --ft.left) return 0;
    ft.hit = nr;
    return error;
}

static void ft_disarm(void)
{
    if (ft.kind == FT_MEMORY && ft.on && mem_fail_at == 0) ft.hit = 1;
    sys_refuse = NULL;
    mem_fail_at = 0;
    ft.on = false;
}

/* From now on the k-th call (or allocation) fails, once. False, and nothing is armed, when k > 1 and the sweep before did not come that far. */
static bool ft_arm(enum ft_kind kind, long k)
{
    if (k > 1 && ft.hit < 0) return false;
    UT_CHECK(k < 2000);
    ft.kind = kind;
    ft.left = k;
    ft.hit = -1;
    ft.on = true;
    if (kind == FT_CALLS) sys_refuse = ft_refuse;
    else mem_fail_at = k;
    return true;
}

#endif
