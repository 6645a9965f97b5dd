/* A small io_uring layer for the programs of this folder: raw system calls, one ring per process, one io_uring_enter per loop turn.
 *
 * Completions are delivered only inside ring_wait (DEFER_TASKRUN). What is queued by ring_sqe leaves with the next ring_wait. */
#ifndef BENCH_RING_H
#define BENCH_RING_H
#include <errno.h>
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ring {
    int fd;
    unsigned *sq_head, *sq_tail, *cq_head, *cq_tail;
    unsigned sq_mask, sq_entries, cq_mask;
    unsigned tail;                  /* of what is queued here */
    unsigned submitted;             /* of what the kernel has taken */
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    uint64_t enters;
};

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void ring_init(struct ring *r, unsigned entries)
{
    struct io_uring_params p = {.flags = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CQSIZE,
                                .cq_entries = entries * 8};

    r->fd = (int)syscall(__NR_io_uring_setup, entries, &p);
    if (r->fd < 0) die("io_uring_setup");

    size_t size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq_size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    uint8_t *m = mmap(NULL, size > cq_size ? size : cq_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);

    r->sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
    if (m == MAP_FAILED || (void *)r->sqes == MAP_FAILED) die("mmap of the ring");
    r->sq_head = (unsigned *)(m + p.sq_off.head);
    r->sq_tail = (unsigned *)(m + p.sq_off.tail);
    r->cq_head = (unsigned *)(m + p.cq_off.head);
    r->cq_tail = (unsigned *)(m + p.cq_off.tail);
    r->cqes = (struct io_uring_cqe *)(m + p.cq_off.cqes);
    r->sq_entries = p.sq_entries;
    r->sq_mask = p.sq_entries - 1;
    r->cq_mask = p.cq_entries - 1;
    for (unsigned i = 0; i < p.sq_entries; i++) ((unsigned *)(m + p.sq_off.array))[i] = i;
}

/* Submits what is queued and waits for `want` completions, at most timeout_ns (none: forever). Returns 0 also when the time is over. */
static int ring_wait(struct ring *r, unsigned want, const int64_t *timeout_ns)
{
    struct __kernel_timespec ts;
    struct io_uring_getevents_arg arg = {0};
    unsigned flags = IORING_ENTER_GETEVENTS;
    long n;

    __atomic_store_n(r->sq_tail, r->tail, __ATOMIC_RELEASE);     /* the kernel reads it with acquire */
    if (timeout_ns) {
        int64_t ns = *timeout_ns > 0 ? *timeout_ns : 0;
        ts = (struct __kernel_timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
        arg.ts = (uint64_t)(uintptr_t)&ts;
        flags |= IORING_ENTER_EXT_ARG;
    }
    r->enters++;
    n = syscall(__NR_io_uring_enter, r->fd, r->tail - r->submitted, want, flags, timeout_ns ? (void *)&arg : NULL, timeout_ns ? sizeof arg : 0);
    r->submitted = __atomic_load_n(r->sq_head, __ATOMIC_ACQUIRE); /* entries before it may be written again */
    if (n < 0 && errno != ETIME && errno != EINTR && errno != EBUSY && errno != EAGAIN) die("io_uring_enter");
    return 0;
}

/* Returns a cleared entry; enters the kernel early only when the queue is full. */
static struct io_uring_sqe *ring_sqe(struct ring *r, uint8_t op, int fd, const void *p, unsigned n, uint64_t user_data)
{
    while (r->tail - r->submitted == r->sq_entries) ring_wait(r, 0, NULL);

    struct io_uring_sqe *e = &r->sqes[r->tail++ & r->sq_mask];

    *e = (struct io_uring_sqe){.opcode = op, .fd = fd, .addr = (uint64_t)(uintptr_t)p, .len = n, .user_data = user_data};
    return e;
}

/* The next completion, or NULL. It is the caller's copy's lender until ring_seen. */
static struct io_uring_cqe *ring_peek(struct ring *r)
{
    unsigned head = *r->cq_head;

    return head == __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) ? NULL : &r->cqes[head & r->cq_mask];
}

static void ring_seen(struct ring *r) { __atomic_store_n(r->cq_head, *r->cq_head + 1, __ATOMIC_RELEASE); }

#endif
