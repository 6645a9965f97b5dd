/* Ramjet: a Kubernetes ingress controller and edge proxy in one file.
 *
 * The path of a request
 *   listener -> worker (wrk_) -> transport (tp_), which may begin with a PROXY header (pp_) -> HTTP head (h1_) -> who speaks (mw_)
 *   -> route lookup in the live snapshot (rt_) -> middleware (mw_) -> endpoint and pooled connection (up_)
 *   -> relay with bounded buffers (px_) -> one access-log record (log_)
 * The path of a change
 *   watch event (k8s_) or file (cfg_) -> object store (obj_) -> coalesce (ctl_) -> compile (rc_) -> digest equal? stop : publish (rt_)
 *   -> workers see it at their next request -> the old snapshot is retired by epochs (rcu_)
 * Threads
 *   N workers, each with its own engine, pools, timers and counters; all they share is snapshots and results of health checks (which they
 *   only read), how many clients each has, and the limits per client (lm_). One control thread for everything slow.
 * Lifetimes
 *   process > worker > snapshot > connection > request > turn. A pointer never outlives what it points to; a borrowed one names its lender.
 */
#ifndef RAMJET_H
#define RAMJET_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define RJ_VERSION "0.1.0"

/* ---- Asserts ----------------------------------------------------------------------------------------------------------------
 * RJ_BUG_ON: memory is in danger; aborts in every build.  RJ_CHECK: an invariant; debug and test builds.
 * RJ_NEVER: cannot happen but can be survived: aborts tests, and in release is true so that the caller takes its error path. */
#define RJ_STR2(x) #x
#define RJ_STR(x) RJ_STR2(x)
#define RJ_BUG_ON(c) ((c) ? rj_die(__FILE__ ":" RJ_STR(__LINE__) ": " #c) : (void)0)
#ifdef RJ_DEBUG
#define RJ_CHECK(c) ((c) ? (void)0 : rj_die(__FILE__ ":" RJ_STR(__LINE__) ": " #c))
#define RJ_NEVER(c) ((c) ? (rj_die(__FILE__ ":" RJ_STR(__LINE__) ": " #c), true) : false)
#else
#define RJ_CHECK(c) ((void)sizeof((c) ? 1 : 0))
#define RJ_NEVER(c) __builtin_expect(!!(c), 0)
#endif

#define RJ_LIKELY(x) __builtin_expect(!!(x), 1)
#define RJ_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define RJ_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define RJ_CONTAINER(p, type, field) ((type *)(void *)((char *)(p) - offsetof(type, field)))
#define RJ_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* What parsers return beside a count of bytes used. */
enum { RJ_MORE = 0, RJ_BAD = -100000 };

/* A byte slice: n bytes at p, borrowed, no terminator. p may be NULL when n is 0. */
struct str {
    const uint8_t *p;
    size_t n;
};
#define S(lit) ((struct str){(const uint8_t *)(lit), sizeof(lit) - 1})
#define STR_FMT "%.*s"
#define STR_ARG(s) (int)(s).n, (const char *)((s).p ? (s).p : (const uint8_t *)"")

/* An IP address and port. v4 is held v4-mapped (::ffff:a.b.c.d) in ip, so that one comparison serves both families. */
struct net_addr {
    uint8_t ip[16];
    uint16_t port;                                       /* host byte order */
    uint8_t family;                                      /* AF_INET, AF_INET6, AF_UNIX (no address), or 0 = none */
    uint8_t pad;
};
struct net_cidr {
    uint8_t ip[16];
    uint8_t bits;                                        /* of 128 */
};

/* ---- sys_ : kernel ABI ------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
struct __attribute__((packed)) sys_epoll_event {
    uint32_t events;
    uint64_t data;
};
static_assert(sizeof(struct sys_epoll_event) == 12, "epoll ABI");
#else
struct sys_epoll_event {
    uint32_t events;
    uint64_t data;
};
static_assert(sizeof(struct sys_epoll_event) == 16, "epoll ABI");
#endif

enum {
    SYS_SIOCOUTQ = 0x5411,                               /* linux/sockios.h */
    SYS_EPOLL_IN = 0x001, SYS_EPOLL_OUT = 0x004, SYS_EPOLL_ERR = 0x008, SYS_EPOLL_HUP = 0x010, SYS_EPOLL_RDHUP = 0x2000,
    SYS_EPOLL_ADD = 1, SYS_EPOLL_DEL = 2, SYS_EPOLL_MOD = 3,
    SYS_SPLICE_MOVE = 1, SYS_SPLICE_NONBLOCK = 2, SYS_SETPIPE_SZ = 1031,
    SYS_URING_SETUP = 425, SYS_URING_ENTER = 426, SYS_URING_REGISTER = 427,
};
#define SYS_EPOLL_ET (1u << 31)
#define SYS_EPOLL_EXCLUSIVE (1u << 28)

/* io_uring, Linux 6.1 and later (include/uapi/linux/io_uring.h). */
struct sys_uring_sqe {
    uint8_t opcode, flags;
    uint16_t ioprio;
    int32_t fd;
    uint64_t off;                                        /* also addr2 */
    uint64_t addr;
    uint32_t len;
    uint32_t op_flags;                                   /* msg_flags, poll32_events, accept_flags, cancel_flags, splice_flags */
    uint64_t user_data;
    uint16_t buf_group;                                  /* also buf_index */
    uint16_t personality;
    int32_t file_index;
    uint64_t addr3;
    uint64_t pad2;
};
static_assert(sizeof(struct sys_uring_sqe) == 64, "io_uring ABI");
struct sys_uring_cqe {
    uint64_t user_data;
    int32_t res;
    uint32_t flags;
};
static_assert(sizeof(struct sys_uring_cqe) == 16, "io_uring ABI");
struct sys_uring_params {
    uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, resv[3];
    struct { uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, resv1; uint64_t user_addr; } sq_off;
    struct { uint32_t head, tail, ring_mask, ring_entries, overflow, cqes, flags, resv1; uint64_t user_addr; } cq_off;
};
static_assert(sizeof(struct sys_uring_params) == 120, "io_uring ABI");
struct sys_uring_buf {
    uint64_t addr;
    uint32_t len;
    uint16_t bid;
    uint16_t tail;                                       /* of the ring, in entry 0 only */
};
static_assert(sizeof(struct sys_uring_buf) == 16, "io_uring ABI");
struct sys_uring_buf_reg {
    uint64_t ring_addr;
    uint32_t ring_entries;
    uint16_t bgid, flags;
    uint64_t resv[3];
};
static_assert(sizeof(struct sys_uring_buf_reg) == 40, "io_uring ABI");
struct sys_uring_getevents {
    uint64_t sigmask;
    uint32_t sigmask_sz, min_wait_usec;
    uint64_t ts;
};
static_assert(sizeof(struct sys_uring_getevents) == 24, "io_uring ABI");
struct sys_uring_probe {
    uint8_t last_op, ops_len;
    uint16_t resv;
    uint32_t resv2[3];
    struct { uint8_t op, resv; uint16_t flags; uint32_t resv2; } ops[64];
};
struct sys_timespec {
    int64_t sec, nsec;
};
enum {
    SYS_URING_POLL_ADD = 6, SYS_URING_SENDMSG = 9, SYS_URING_ACCEPT = 13, SYS_URING_ASYNC_CANCEL = 14, SYS_URING_CONNECT = 16,
    SYS_URING_CLOSE = 19, SYS_URING_SEND = 26, SYS_URING_RECV = 27,
    SYS_URING_SETUP_CQSIZE = 1 << 3, SYS_URING_SETUP_CLAMP = 1 << 4, SYS_URING_SETUP_SUBMIT_ALL = 1 << 7,
    SYS_URING_SETUP_COOP_TASKRUN = 1 << 8, SYS_URING_SETUP_SINGLE_ISSUER = 1 << 12, SYS_URING_SETUP_DEFER_TASKRUN = 1 << 13,
    SYS_URING_ENTER_GETEVENTS = 1, SYS_URING_ENTER_EXT_ARG = 8,
    SYS_URING_FEAT_SINGLE_MMAP = 1, SYS_URING_FEAT_NODROP = 2, SYS_URING_FEAT_SUBMIT_STABLE = 4, SYS_URING_FEAT_EXT_ARG = 256,
    SYS_URING_REGISTER_PROBE = 8, SYS_URING_REGISTER_PBUF_RING = 22,
    SYS_URING_SQE_BUFFER_SELECT = 1 << 5, SYS_URING_SQE_CQE_SKIP = 1 << 6,
    SYS_URING_RECV_POLL_FIRST = 1, SYS_URING_RECV_MULTISHOT = 2, SYS_URING_ACCEPT_MULTISHOT = 1,
    SYS_URING_CQE_BUFFER = 1, SYS_URING_CQE_MORE = 2, SYS_URING_CQE_BUFFER_SHIFT = 16,
    SYS_URING_CANCEL_ALL = 1, SYS_URING_CANCEL_FD = 2,
    SYS_URING_OFF_SQ_RING = 0, SYS_URING_OFF_CQ_RING = 0x8000000, SYS_URING_OFF_SQES = 0x10000000,
};

/* ---- mem_ : memory ------------------------------------------------------------------------------------------------------- */

/* An arena: bump allocation, freed all at once. Zero-initialised is empty. One thread. */
struct mem_chunk {
    struct mem_chunk *next;
    size_t size;
};
struct mem_arena {
    struct mem_chunk *chunks;                            /* newest first */
    uint8_t *at, *end;
    size_t total;                                        /* bytes of all chunks */
};

/* A pool of equal objects in aligned slabs mapped from the kernel; an empty slab goes back to it. One thread. */
struct mem_slab;
struct mem_pool {
    uint32_t size;                                       /* of one object, a multiple of 16 */
    uint32_t slab_bytes;                                 /* a power of two: an object finds its slab by masking */
    struct mem_slab *partial;                            /* slabs with a free object; the hot one first */
    struct mem_slab *empty;                              /* kept for the next burst; mem_pool_trim gives them back */
    uint32_t empty_n;
    size_t *mapped;                                      /* bytes mapped by all pools of this owner, for the ceiling */
    size_t limit;                                        /* ceiling of *mapped; 0 = none */
    uint32_t used;                                       /* objects handed out */
    size_t alone;                                        /* bytes of mem_buf_map, which are in *mapped too */
};

/* A buffer: one writer, counted readers. data follows the struct. */
enum mem_class { MEM_SMALL, MEM_BIG };
struct mem_buf {
    struct mem_pool *pool;                               /* NULL: from mem_alloc */
    uint32_t cap;                                        /* bytes at data */
    uint32_t len;                                        /* bytes filled by the writer */
    uint32_t refs;
    bool alone;                                          /* from mem_buf_map: pages of its own, counted by the pool's ceiling */
    uint8_t data[];
};
enum {
    MEM_TINY_BYTES = 1024, MEM_SMALL_BYTES = 4096, MEM_MEDIUM_BYTES = 16368, MEM_LARGE_BYTES = 32736,
    MEM_BIG_BYTES = 64512 + 64,                          /* of one buffer with its struct */
    MEM_RESERVE = 16,                                    /* content leaves one part in so many of the ceiling free */
    MEM_SLAB_BYTES = 65536, MEM_BIG_SLAB_BYTES = 262144,
    MEM_EMPTY_BYTES = 4 << 20,                           /* empty slabs that one pool keeps */
};
#define MEM_DEAD 0xdeadbeefcafef00du                     /* debug builds: in every object that was put */

/* ---- str_ : byte slices and builders ------------------------------------------------------------------------------------- */

/* Builds text or bytes. Never writes past cap: when grow is false, what does not fit sets failed and is dropped whole;
 * when grow is true, p is owned (mem_alloc) and str_free returns it. */
struct str_builder {
    uint8_t *p;
    size_t n, cap;
    bool grow, failed;
};

/* ---- map_ : hash map, intrusive list --------------------------------------------------------------------------------------- */

/* Maps byte slices to pointers. Keys are borrowed: the value (or its arena) must keep them alive. Iteration is in insertion order
 * (deleted entries leave holes that are compacted away on growth). Zero-initialised is empty. */
struct map_entry {
    struct str key;
    void *value;                                         /* NULL = hole */
    uint64_t hash;
};
struct map {
    struct map_entry *entries;
    uint32_t *index;                                     /* open addressing: entry number + 1, 0 = free, MAP_GONE = deleted */
    uint32_t count;                                      /* live entries */
    uint32_t used;                                       /* entries including holes */
    uint32_t cap;                                        /* of entries */
    uint32_t mask;                                       /* of index */
};

/* A circular doubly linked list; a head links to itself when empty. */
struct map_link {
    struct map_link *next, *prev;
};

/* ---- clk_ : time ----------------------------------------------------------------------------------------------------------- */

enum { CLK_TICK_MS = 16, CLK_SLOTS = 1024 };

/* One timer. fire is called from clk_run, at most once per arm, never from inside the arm call. */
struct clk_timer {
    struct map_link link;                                /* in a slot of the wheel; next == NULL: not queued */
    uint64_t deadline_ms;                                /* 0 = not armed; may be later than the slot it is queued in (lazy) */
    uint64_t look_ms;                                    /* when its slot is looked at */
    void (*fire)(struct clk_timer *t);
};

/* A wheel of CLK_SLOTS slots of CLK_TICK_MS; a timer beyond one turn stays in its slot and is looked at once a turn. */
struct clk_wheel {
    uint64_t now_ms;                                     /* monotonic, read once a loop turn */
    uint64_t now_ns;
    uint64_t tick;                                       /* last tick that was run */
    uint32_t queued;
    uint64_t busy[CLK_SLOTS / 64];                       /* a bit per slot that may hold timers (a cancelled one leaves its bit) */
    struct map_link slot[CLK_SLOTS];
};

/* ---- log_ : log -------------------------------------------------------------------------------------------------------------- */

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Bytes from one writer thread to the control thread. head and tail only grow. */
struct log_ring {
    uint8_t *p;                                          /* cap bytes, mapped on first use; NULL: not open */
    uint32_t cap;                                        /* a power of two */
    _Atomic uint64_t head;                               /* written up to; release by the writer, acquire by the control thread */
    _Atomic uint64_t tail;                               /* drained up to; release by the control thread, acquire by the writer */
    _Atomic uint64_t dropped;                            /* records that did not fit */
};
enum { LOG_RING_BYTES = 65536, LOG_ACCESS_RING_BYTES = 1048576, LOG_LINE_MAX = 2048 };

/* An error text built once where it happens and wrapped on the way up. */
struct log_err {
    char text[512];
};

/* ---- mtr_ : metrics ---------------------------------------------------------------------------------------------------------- */

/* Counters of one thread: an increment is one unshared add; the control thread sums them with relaxed loads.
 *  id                    metric name                              labels                    help                                   */
#define MTR_COUNTERS(X)                                                                                                              \
    X(ACCEPT_PAUSES,        "ramjet_accept_pauses_total",            "",                       "Times that accepting paused because descriptors were short") \
    X(ACCEPTED,             "ramjet_connections_accepted_total",     "",                       "Client connections accepted")         \
    X(BYTES_IN,             "ramjet_received_bytes_total",           "",                       "Bytes received from clients")         \
    X(BYTES_OUT,            "ramjet_sent_bytes_total",               "",                       "Bytes sent to clients")               \
    X(REFUSED_BAD,          "ramjet_refused_total",                  "reason=\"bad_request\"", "Requests refused by reason")          \
    X(REFUSED_BODY,         "ramjet_refused_total",                  "reason=\"body_limit\"",  "")                                    \
    X(REFUSED_CONNECTIONS,  "ramjet_refused_total",                  "reason=\"connection_limit\"", "")                               \
    X(REFUSED_DENIED,       "ramjet_refused_total",                  "reason=\"denied\"",      "")                                    \
    X(REFUSED_HEAD,         "ramjet_refused_total",                  "reason=\"head_limit\"",  "")                                    \
    X(REFUSED_MEMORY,       "ramjet_refused_total",                  "reason=\"memory\"",      "")                                    \
    X(REFUSED_NO_ROUTE,     "ramjet_refused_total",                  "reason=\"no_route\"",    "")                                    \
    X(REFUSED_PROXY,        "ramjet_refused_total",                  "reason=\"proxy_header\"", "")                                   \
    X(REFUSED_RATE,         "ramjet_refused_total",                  "reason=\"rate_limit\"",  "")                                    \
    X(REFUSED_TIMEOUT,      "ramjet_refused_total",                  "reason=\"timeout\"",     "")                                    \
    X(REFUSED_YIELD,        "ramjet_refused_total",                  "reason=\"gave_way\"",    "")                                    \
    X(RETRIES,              "ramjet_upstream_retries_total",         "",                       "Requests sent to another endpoint or again") \
    X(RETRIES_REFUSED,      "ramjet_upstream_retries_refused_total", "",                       "Failures that were answered because retry-budget was spent") \
    X(TUNNELS,              "ramjet_tunnels_total",                  "",                       "Connections switched by a 101")       \
    X(UP_CONNECT,           "ramjet_upstream_errors_total",          "kind=\"connect\"",       "Upstream failures by kind")           \
    X(UP_NONE,              "ramjet_upstream_errors_total",          "kind=\"no_endpoint\"",   "")                                    \
    X(UP_PROTOCOL,          "ramjet_upstream_errors_total",          "kind=\"protocol\"",      "")                                    \
    X(UP_RESET,             "ramjet_upstream_errors_total",          "kind=\"reset\"",         "")                                    \
    X(UP_TIMEOUT,           "ramjet_upstream_errors_total",          "kind=\"timeout\"",       "")                                    \
    X(UP_OPENED,            "ramjet_upstream_connections_total",     "",                       "Upstream connections opened")         \
    X(ENGINE_TURNS,         "ramjet_engine_turns_total",             "",                       "Turns of the event loops")            \
    X(ENGINE_STARVED,       "ramjet_engine_starved_total",           "",                       "Receives that found no buffer")       \
    X(HANDED_OVER,          "ramjet_connections_handed_over_total",  "",                       "Connections given to a less loaded worker")

enum mtr_counter {
#define X(id, name, labels, help) MTR_##id,
    MTR_COUNTERS(X)
#undef X
    MTR_COUNTER_COUNT
};

/* Levels of one thread (may go down). */
#define MTR_GAUGES(X)                                                                                                                \
    X(CLIENT_ACTIVE,   "ramjet_connections",        "side=\"client\",state=\"active\"",   "Open connections")                        \
    X(CLIENT_IDLE,     "ramjet_connections",        "side=\"client\",state=\"idle\"",     "")                                        \
    X(UP_ACTIVE,       "ramjet_connections",        "side=\"upstream\",state=\"active\"", "")                                        \
    X(UP_IDLE,         "ramjet_connections",        "side=\"upstream\",state=\"idle\"",   "")                                        \
    X(BUFFER_BYTES,    "ramjet_buffer_bytes",       "",                                   "Bytes mapped for connections, requests and buffers") \
    X(TUNNELS_OPEN,    "ramjet_tunnels",            "",                                   "Open tunnels, which are active connections too")

enum mtr_gauge {
#define X(id, name, labels, help) MTR_##id,
    MTR_GAUGES(X)
#undef X
    MTR_GAUGE_COUNT
};

/* Per route: responses by status class and durations. Names come from the control thread's bounded table; id 0 is "other". */
enum { MTR_ROUTES_MAX = 1024, MTR_BUCKETS = 12 };
struct mtr_route {
    uint64_t by_class[6];                                /* [0] none, 1xx .. 5xx */
    uint64_t bucket[MTR_BUCKETS];                        /* durations, upper bounds in mtr_bounds_us, the last +Inf */
    uint64_t sum_us;
};

struct mtr_thread {
    uint64_t counter[MTR_COUNTER_COUNT];
    uint64_t gauge[MTR_GAUGE_COUNT];
    struct mtr_route *_Atomic route[MTR_ROUTES_MAX];     /* allocated by the worker on first use; release, control acquires */
};

/* Route names of the metrics, control thread only. Ids are given once and never reused; names beyond the table share id 0, "other". */
struct mtr_names {
    struct map by_name;                                  /* name -> struct mtr_name */
    struct mtr_name *by_id[MTR_ROUTES_MAX];
    uint32_t count;
};
struct mtr_name {
    uint32_t id;
    struct str name;
};

/* ---- rcu_ : epochs ------------------------------------------------------------------------------------------------------------- */

/* What every thread that serves or controls has. rj_me points to the caller's. */
struct rj_thread {
    int index;                                           /* worker number, or -1 for the control thread */
    struct log_ring log;
    struct log_ring access;
    struct mtr_thread mtr;
    _Atomic uint64_t epoch;                              /* epoch seen at the start of this turn; 0 while it sleeps */
};

/* Something to be freed once no worker can see it. */
struct rcu_item {
    struct rcu_item *next;
    uint64_t epoch;                                      /* freed when every worker has passed it */
    void (*free_fn)(struct rcu_item *item);
};

/* ---- io_ : the I/O interface ------------------------------------------------------------------------------------------------- */

struct io_loop;
struct io_outq;
struct io_sock;

/* What happened. Every request gets exactly one completion, never from inside the call that made it.
 * Subscriptions (accept, receive) deliver events until they are stopped, fail or end; then exactly one IO_STOPPED or the
 * event with res <= 0 ends them. */
enum io_event {
    IO_ACCEPT,                                           /* res: the new descriptor, or -errno (the subscription goes on) */
    IO_CONNECT,                                          /* res: 0 or -errno */
    IO_RECV,                                             /* res: bytes in buf, 0 = end of stream, -errno; <= 0 ends the subscription */
    IO_SENT,                                             /* res: bytes taken by the kernel (may be less than asked), or -errno */
    IO_READY,                                            /* io_poll: res: IO_IN or IO_OUT */
    IO_STOPPED,                                          /* io_recv_stop has taken effect; no IO_RECV follows */
    IO_CLOSED,                                           /* the kernel holds nothing of it any more: its memory may go */
};
enum { IO_IN = 1, IO_OUT = 2, IO_AGAIN = 4 };              /* IO_AGAIN: do not wait, only come back after the others */

/* One socket, embedded in what owns it. handle is called with buf only for IO_RECV; buf is lent for the call
 * (mem_buf_get keeps it). */
struct io_sock {
    int fd;                                              /* -1: not open */
    uint32_t slot;                                       /* of the engine's table */
    uint16_t gen;                                        /* generation of the slot: recognises stale completions */
    uint16_t flags;                                      /* IO_S_*: what the engine owes and knows */
    int res;                                             /* result waiting for delivery */
    void (*handle)(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf);
    struct io_sock *ready_next;                          /* list of sockets that have something to deliver without the kernel */
    struct io_outq *q;                                   /* epoll: the send that waits for room */
    bool once_small;                                     /* the single receive takes no more than a small buffer */
    bool bounded;                                        /* io_uring: one buffer at a time, so that a stop loses no time: no multishot */
};

/* flags of a socket. WANT: asked for. HAS: epoll's edge-triggered knowledge. */
enum {
    IO_S_WANT_ACCEPT = 1 << 0, IO_S_WANT_CONNECT = 1 << 1, IO_S_WANT_RECV = 1 << 2, IO_S_WANT_BIG = 1 << 3, IO_S_WANT_SEND = 1 << 4,
    IO_S_WANT_IN = 1 << 5, IO_S_WANT_OUT = 1 << 6, IO_S_WANT_STOP = 1 << 7, IO_S_SENT = 1 << 8, IO_S_HAS_IN = 1 << 9,
    IO_S_HAS_OUT = 1 << 10, IO_S_HAS_HUP = 1 << 11, IO_S_QUEUED = 1 << 12, IO_S_CLOSING = 1 << 13, IO_S_ARMED = 1 << 14,
    IO_S_FAILED = 1 << 15,
};

/* The engine: a table of functions, so that a simulated one can stand in for the kernel. */
struct io_ops {
    bool nonblocking;                                    /* sockets of this engine carry O_NONBLOCK */
    const char *name;
    int (*open)(struct io_loop *lp);                     /* 0 or -errno */
    void (*close)(struct io_loop *lp);
    uint32_t (*turn)(struct io_loop *lp, uint32_t timeout_ms); /* waits, delivers completions; 0 when there was nothing */
    int (*add)(struct io_loop *lp, struct io_sock *s);   /* takes an open descriptor in; 0 or -errno */
    void (*accept_start)(struct io_loop *lp, struct io_sock *s);
    void (*accept_stop)(struct io_loop *lp, struct io_sock *s);
    void (*connect)(struct io_loop *lp, struct io_sock *s, const void *sa, socklen_t n); /* sa lives until the next turn */
    void (*recv_start)(struct io_loop *lp, struct io_sock *s);
    void (*recv_big)(struct io_loop *lp, struct io_sock *s); /* one receive into a big buffer: exactly one IO_RECV */
    void (*recv_stop)(struct io_loop *lp, struct io_sock *s);
    void (*send)(struct io_loop *lp, struct io_sock *s, struct io_outq *q);
    void (*poll)(struct io_loop *lp, struct io_sock *s, int what); /* one IO_READY */
    void (*close_sock)(struct io_loop *lp, struct io_sock *s);   /* one IO_CLOSED, nothing else from now on */
};

/* What waits to be sent on one socket, in order. iov and own run in parallel; a slot without owner points to static memory. */
enum { IO_OUTQ_MAX = 14, IO_OUTQ_SEND = 10 };
struct io_outq {
    struct iovec iov[IO_OUTQ_MAX];
    struct mem_buf *own[IO_OUTQ_MAX];
    struct msghdr msg;                                   /* in the kernel's hands while sending */
    uint32_t bytes;                                      /* in all slots */
    uint8_t n;
    uint8_t flight;                                      /* slots in the kernel's hands, at most IO_OUTQ_SEND */
    bool sending;
};

enum {
    IO_PIPE_BYTES = 131072, IO_PIPES_KEPT = 32, IO_CATCH_UP_MS = 1000,
    IO_PROBE_IDLE_S = 120, IO_PROBE_EVERY_S = 20, IO_PROBES = 4, /* of TCP: io_probe_peer */
};
struct ep_loop;
struct ur_loop;
/* The event loop of one thread. */
struct io_loop {
    const struct io_ops *ops;
    struct ep_loop *ep;                                  /* the engine's own state; NULL for the others */
    struct ur_loop *ur;
    void *sim;
    struct clk_wheel clk;
    struct mem_pool tiny, small, medium, large, big;     /* buffers */
    size_t mapped;                                       /* bytes of all pools of this thread */
    struct io_sock *starved;                             /* looked at again a tick later, as receives that found no buffer */
    uint64_t starved_until_ms;
    struct io_sock *ready, *ready_tail;                  /* sockets with IO_S_QUEUED, in order */
    struct net_addr peer;                                /* of the descriptor in IO_ACCEPT when family is not 0 */
    int pipes[IO_PIPES_KEPT][2];                         /* empty pipes, kept for the next pump */
    int pipes_n;
    int fd_max;                                          /* no connections of its own from this number on; 0: no such limit */
    bool nonblocking;                                    /* ops->nonblocking */
    bool stop;                                           /* the owner's loop ends after this turn */
};

/* Moves bytes from one socket to another through a pipe, without copying them. Both receive subscriptions are stopped. */
enum io_pump_state { IO_PUMP_DONE, IO_PUMP_AGAIN, IO_PUMP_WAIT_IN, IO_PUMP_WAIT_OUT, IO_PUMP_EOF, IO_PUMP_FAILED_IN, IO_PUMP_FAILED_OUT };
struct io_pump {
    int pipe[2];                                         /* -1: none */
    uint32_t in_pipe;                                    /* bytes read and not yet written */
    uint64_t left;                                       /* bytes still to be read */
    bool waits_out;                                      /* the destination has to take bytes next */
};

/* ---- dns_ : resolver ------------------------------------------------------------------------------------------------------------- */

enum {
    DNS_ADDRS_MAX = 128,                                 /* addresses of one name; the rest is dropped with a warning */
    DNS_SERVERS_MAX = 3, DNS_SEARCH_MAX = 16, DNS_NDOTS_MAX = 15,
    DNS_WIRE_MAX = 255,                                  /* a name on the wire (RFC 1035 section 2.3.4) */
    DNS_QUERY_MAX = 2 + 12 + DNS_WIRE_MAX + 4,           /* a query with the length that TCP puts before it */
    DNS_BUSY_MAX = 64,                                   /* names that are asked for at one time; the others wait */
    DNS_A = 1, DNS_CNAME = 5, DNS_SOA = 6, DNS_AAAA = 28,
};

/* What resolv.conf says. */
struct dns_conf {
    uint32_t servers, searches;
    uint32_t ndots, timeout_ms, attempts;
    struct net_addr server[DNS_SERVERS_MAX];
    struct str search[DNS_SEARCH_MAX];                   /* inside text */
    char text[2048];
};

/* A name on the wire: labels with lengths, ended by the empty one. n == 0: none. */
struct dns_wire {
    uint8_t n;
    uint8_t p[DNS_WIRE_MAX];
};

/* What one response says about its question. */
struct dns_reply {
    uint8_t rcode;
    bool truncated;
    uint32_t ttl_s;                                      /* smallest of the chain; of a negative answer what its SOA says, or 0 */
    uint32_t n;
    struct net_addr addr[DNS_ADDRS_MAX];
    struct dns_wire last;                                /* end of the CNAME chain; n == 0: no CNAME */
};

struct dns_name;
/* One interest in a name. on_change gets the addresses (port 0, sorted, no duplicates; lent for the call) or, when there are none,
 * n == 0 and why. It is called from the loop, never from inside the call that asked. */
struct dns_watch {
    struct map_link link;                                /* of the name's watches */
    struct dns_name *name;
    void (*on_change)(void *arg, const struct net_addr *addrs, uint32_t n, const char *why);
    void *arg;
    bool once;                                           /* dns_resolve: freed after its call */
    bool told;
};

/* A stub resolver on the loop of the control thread. */
struct dns {
    struct io_loop *loop;
    const char *hosts_path, *resolv_path;                /* /etc/hosts, /etc/resolv.conf */
    struct net_addr fixed[DNS_SERVERS_MAX];              /* of the option `resolver` */
    uint32_t nfixed;
    struct dns_conf conf;
    uint64_t resolv_read_ms;                             /* monotonic */
    bool has_ip6;
    bool closing;
    uint32_t busy;                                       /* names being asked for */
    uint32_t queries;                                    /* sockets that are not closed yet */
    struct map names;                                    /* lower-case name -> struct dns_name */
    struct map_link waiting;                             /* names that wait for a place among the busy ones */
};

/* ---- json_ : JSON, and the events that yml_ shares ------------------------------------------------------------------------------ */

enum json_type { JSON_OBJECT, JSON_ARRAY, JSON_OBJECT_END, JSON_ARRAY_END, JSON_KEY, JSON_STRING, JSON_NUMBER, JSON_BOOL, JSON_NULL, JSON_END };
enum { JSON_DEPTH = 64, JSON_NUMBER_MAX = 256, JSON_KEEP_BYTES = 65536 };

/* One step through a document. depth is the number of containers open around the thing: a container's begin and end carry the same. */
struct json_event {
    uint8_t type;                                        /* enum json_type */
    bool flag;                                           /* JSON_BOOL */
    uint8_t depth;
    uint32_t line, column;                               /* from 1, where it begins; column in bytes */
    struct str text;                                     /* key and string: decoded; number: as written. Lives until the next call */
};

/* A pull reader that is fed in pieces cut anywhere. What does not end in its piece is collected in buf. */
struct json_reader {
    const uint8_t *p, *end, *start;                      /* the piece, borrowed from json_feed's caller until json_next says RJ_MORE */
    uint64_t base;                                       /* bytes before the piece */
    uint64_t line_at;                                    /* offset of the first byte of the line */
    uint64_t token_at;                                   /* offset of the token that is being read */
    uint64_t objects;                                    /* bit n: the container at depth n is an object */
    uint32_t line;
    uint8_t depth;
    uint8_t want;                                        /* enum json_want */
    uint8_t token;                                       /* enum json_token: cut off by the end of the piece */
    uint8_t word;                                        /* index into the words, and how much of it was read */
    uint8_t word_n;
    uint8_t last_type, last_depth;                       /* of the event given last, for json_skip */
    uint8_t skip;                                        /* depth + 1 of what is being skipped, 0 = nothing */
    bool many;                                           /* values may follow one another */
    bool seen;                                           /* there was a value */
    bool final;                                          /* no piece will follow */
    uint8_t carry_n;
    uint8_t carry[12];                                   /* an escape or UTF-8 sequence that is cut off */
    size_t limit;                                        /* of one key or string */
    struct str_builder buf;
    const char *error;                                   /* static text, once json_next said RJ_BAD */
};

/* A small document as a tree in an arena. */
struct json_node {
    struct json_node *next;                              /* the next member, element or document */
    struct json_node *child;                             /* the first member or element */
    struct str key, text;
    uint32_t line, column;
    uint8_t type;                                        /* enum json_type: JSON_OBJECT, JSON_ARRAY or a scalar */
    bool flag;
};
struct json_tree {
    struct mem_arena *arena;
    struct json_node *root;                              /* the first document; more follow by next */
    struct json_node **at[JSON_DEPTH + 1];               /* where the next node of each depth is linked */
    struct str key;
};

/* ---- yml_ : YAML subset ------------------------------------------------------------------------------------------------------------ */

/* A whole text that is walked once; every value goes to on as the events of json_. */
struct yml_reader {
    struct str in;
    size_t at, line_at;                                  /* of the byte that is looked at; of the first byte of its line */
    uint32_t line;
    int col;                                             /* of the content that yml_next found, from 0 */
    bool more;                                           /* yml_next found content of this document */
    uint8_t depth;
    struct str_builder text;                             /* the scalar or key that was read last */
    bool quoted;                                         /* it stood in quotes */
    struct mem_arena arena;                              /* keys of the document, to find equal ones */
    int (*on)(void *arg, const struct json_event *ev);
    void *arg;
    struct log_err *err;
};

/* ---- http_ : version-free HTTP ------------------------------------------------------------------------------------------------- */

/* Methods: id, token, flags. IDEMPOTENT per RFC 9110 section 9.2.2. */
enum { HTTP_IDEMPOTENT = 1 };
#define HTTP_METHODS(X)            \
    X(CONNECT, 0)                  \
    X(DELETE,  HTTP_IDEMPOTENT)    \
    X(GET,     HTTP_IDEMPOTENT)    \
    X(HEAD,    HTTP_IDEMPOTENT)    \
    X(OPTIONS, HTTP_IDEMPOTENT)    \
    X(PATCH,   0)                  \
    X(POST,    0)                  \
    X(PRI,     0)                  \
    X(PUT,     HTTP_IDEMPOTENT)    \
    X(TRACE,   HTTP_IDEMPOTENT)
enum http_method {
#define X(id, flags) HTTP_##id,
    HTTP_METHODS(X)
#undef X
    HTTP_OTHER_METHOD                                    /* any other token: passed on, not idempotent */
};

/* Status codes and their reason phrases (RFC 9110 section 15 and the registry). */
#define HTTP_STATUSES(X)                         \
    X(100, "Continue")                           \
    X(101, "Switching Protocols")                \
    X(103, "Early Hints")                        \
    X(200, "OK")                                 \
    X(201, "Created")                            \
    X(202, "Accepted")                           \
    X(204, "No Content")                         \
    X(206, "Partial Content")                    \
    X(301, "Moved Permanently")                  \
    X(302, "Found")                              \
    X(303, "See Other")                          \
    X(304, "Not Modified")                       \
    X(307, "Temporary Redirect")                 \
    X(308, "Permanent Redirect")                 \
    X(400, "Bad Request")                        \
    X(401, "Unauthorized")                       \
    X(403, "Forbidden")                          \
    X(404, "Not Found")                          \
    X(405, "Method Not Allowed")                 \
    X(406, "Not Acceptable")                     \
    X(408, "Request Timeout")                    \
    X(409, "Conflict")                           \
    X(410, "Gone")                               \
    X(411, "Length Required")                    \
    X(413, "Content Too Large")                  \
    X(414, "URI Too Long")                       \
    X(415, "Unsupported Media Type")             \
    X(417, "Expectation Failed")                 \
    X(421, "Misdirected Request")                \
    X(429, "Too Many Requests")                  \
    X(431, "Request Header Fields Too Large")    \
    X(499, "Client Closed Request")              \
    X(500, "Internal Server Error")              \
    X(501, "Not Implemented")                    \
    X(502, "Bad Gateway")                        \
    X(503, "Service Unavailable")                \
    X(504, "Gateway Timeout")                    \
    X(505, "HTTP Version Not Supported")

/* Fields that the proxy knows: id, lower-case name of at most 24 octets, flags. None of them is ever taken from a trailer section.
 * HOP: hop-by-hop, never forwarded (RFC 9110 section 7.6.1).  FRAME: framing, regenerated.  OWN: written by the proxy itself.
 * KEEP: a Connection field cannot remove it. */
enum { HTTP_HOP = 1, HTTP_FRAME = 2, HTTP_OWN = 4, HTTP_KEEP = 8 };
#define HTTP_FIELDS(X)                                                  \
    X(AGE,                      "age",                      0)          \
    X(AUTHORIZATION,            "authorization",            HTTP_KEEP)  \
    X(CACHE_CONTROL,            "cache-control",            0)          \
    X(CONNECTION,               "connection",               HTTP_HOP)   \
    X(CONTENT_ENCODING,         "content-encoding",         HTTP_KEEP)  \
    X(CONTENT_LENGTH,           "content-length",           HTTP_FRAME) \
    X(CONTENT_RANGE,            "content-range",            HTTP_KEEP)  \
    X(CONTENT_TYPE,             "content-type",             HTTP_KEEP)  \
    X(COOKIE,                   "cookie",                   HTTP_KEEP)  \
    X(DATE,                     "date",                     0)          \
    X(EXPECT,                   "expect",                   HTTP_KEEP)  \
    X(EXPIRES,                  "expires",                  0)          \
    X(FORWARDED,                "forwarded",                HTTP_OWN)   \
    X(HOST,                     "host",                     HTTP_KEEP)  \
    X(HTTP2_SETTINGS,           "http2-settings",           HTTP_HOP)   \
    X(KEEP_ALIVE,               "keep-alive",               HTTP_HOP)   \
    X(LOCATION,                 "location",                 0)          \
    X(MAX_FORWARDS,             "max-forwards",             HTTP_KEEP)  \
    X(PROXY,                    "proxy",                    HTTP_HOP)   \
    X(PROXY_AUTHENTICATE,       "proxy-authenticate",       0)          \
    X(PROXY_AUTHORIZATION,      "proxy-authorization",      0)          \
    X(PROXY_CONNECTION,         "proxy-connection",         HTTP_HOP)   \
    X(RANGE,                    "range",                    0)          \
    X(SEC_WEBSOCKET_KEY,        "sec-websocket-key",        HTTP_KEEP)  \
    X(SERVER,                   "server",                   0)          \
    X(SET_COOKIE,               "set-cookie",               HTTP_KEEP)  \
    X(TE,                       "te",                       HTTP_HOP)   \
    X(TRAILER,                  "trailer",                  HTTP_KEEP)  \
    X(TRANSFER_ENCODING,        "transfer-encoding",        HTTP_FRAME) \
    X(UPGRADE,                  "upgrade",                  HTTP_HOP)   \
    X(USER_AGENT,               "user-agent",               0)          \
    X(VARY,                     "vary",                     0)          \
    X(VIA,                      "via",                      0)          \
    X(WWW_AUTHENTICATE,         "www-authenticate",         HTTP_KEEP)  \
    X(X_FORWARDED_FOR,          "x-forwarded-for",          HTTP_OWN)   \
    X(X_FORWARDED_HOST,         "x-forwarded-host",         HTTP_OWN)   \
    X(X_FORWARDED_PORT,         "x-forwarded-port",         HTTP_OWN)   \
    X(X_FORWARDED_PREFIX,       "x-forwarded-prefix",       HTTP_OWN)   \
    X(X_FORWARDED_PROTO,        "x-forwarded-proto",        HTTP_OWN)   \
    X(X_FORWARDED_SCHEME,       "x-forwarded-scheme",       HTTP_OWN)   \
    X(X_REAL_IP,                "x-real-ip",                HTTP_OWN)   \
    X(X_REQUEST_ID,             "x-request-id",             HTTP_KEEP)
enum http_field_id {
    HTTP_F_NONE,                                         /* an unknown field */
#define X(id, name, flags) HTTP_F_##id,
    HTTP_FIELDS(X)
#undef X
    HTTP_F_FW_AGREES,                                    /* any other name of HTTP_FORWARDING, by what becomes of it */
    HTTP_F_FW_KEPT,
    HTTP_F_FW_REMOVED,
    HTTP_F_COUNT
};

/* What becomes of a forwarding field: id, when a stranger sent it, when a trusted peer did. */
#define HTTP_FATES(X)                                                                          \
    X(AGREES,   "removed",      "kept when it names the client that was found, else removed")  \
    X(BELIEVED, "written anew", "one well-formed value is passed on, else written anew")       \
    X(KEPT,     "removed",      "kept")                                                        \
    X(READ,     "removed",      "names the client when X-Forwarded-For is missing; removed")   \
    X(REMOVED,  "removed",      "removed")                                                     \
    X(WRITTEN,  "written anew", "written anew: the client that was found")
enum http_fate {
#define X(id, stranger, trusted) HTTP_FATE_##id,
    HTTP_FATES(X)
#undef X
};

/* sorted by name. What says, before this hop, who speaks, from where and about what; `*`: all names that begin so, the longest row counts.
 * A peer is trusted with use-forwarded-headers and an address in proxy-real-ip-cidr. No such field is taken from a trailer section, and a
 * spelling with other signs in place of the hyphens is dropped whoever sent it: some servers read it as the same name. */
#define HTTP_FORWARDING(X)                     \
    X("cf-connecting-ip",         AGREES)      \
    X("cf-connecting-ipv6",       AGREES)      \
    X("cf-pseudo-ipv4",           AGREES)      \
    X("client-cert*",             KEPT)        \
    X("client-ip",                AGREES)      \
    X("fastly-client-ip",         AGREES)      \
    X("fly-client-ip",            AGREES)      \
    X("forwarded",                READ)        \
    X("forwarded-*",              REMOVED)     \
    X("front-end-https",          KEPT)        \
    X("ssl-client-*",             KEPT)        \
    X("true-client-ip",           AGREES)      \
    X("x-appengine-user-ip",      AGREES)      \
    X("x-azure-clientip",         AGREES)      \
    X("x-client-cert*",           KEPT)        \
    X("x-client-ip",              AGREES)      \
    X("x-cluster-client-ip",      AGREES)      \
    X("x-envoy-external-address", AGREES)      \
    X("x-forwarded",              REMOVED)     \
    X("x-forwarded-*",            KEPT)        \
    X("x-forwarded-for",          WRITTEN)     \
    X("x-forwarded-host",         BELIEVED)    \
    X("x-forwarded-port",         BELIEVED)    \
    X("x-forwarded-prefix",       KEPT)        \
    X("x-forwarded-proto",        BELIEVED)    \
    X("x-forwarded-scheme",       BELIEVED)    \
    X("x-original-*",             KEPT)        \
    X("x-original-forwarded-for", REMOVED)     \
    X("x-original-method",        REMOVED)     \
    X("x-original-uri",           REMOVED)     \
    X("x-original-url",           REMOVED)     \
    X("x-originating-ip",         AGREES)      \
    X("x-proxyuser-ip",           AGREES)      \
    X("x-real-ip",                WRITTEN)     \
    X("x-remote-addr",            AGREES)      \
    X("x-remote-ip",              AGREES)      \
    X("x-rewrite-url",            REMOVED)     \
    X("x-scheme",                 REMOVED)     \
    X("x-ssl-*",                  KEPT)        \
    X("x-url-scheme",             KEPT)

/* One field line. Offsets count from the start of the head, so that the head may move to another buffer. Host and the fields of FRAME and OWN
 * are not marked drop: the writer of the next head makes them anew. */
struct http_field {
    uint32_t name_at, value_at;
    uint32_t value_n;                                    /* without OWS at both ends */
    uint16_t name_n;
    uint8_t id;                                          /* enum http_field_id */
    uint8_t drop;                                        /* not forwarded: hop-by-hop, nominated by Connection, underscore name */
};
enum { HTTP_FIELDS_MAX = 200 };                          /* storage; max-request-headers is checked against it */

enum http_framing {
    HTTP_BODY_NONE,
    HTTP_BODY_LENGTH,
    HTTP_BODY_CHUNKED,
    HTTP_BODY_EOF,                                       /* responses only: until the connection ends */
};

/* What the fields said so far. */
enum {
    HTTP_SEEN_HOST = 1,
    HTTP_SEEN_AUTHORITY = 2,                             /* an absolute target: its authority wins over Host */
    HTTP_SEEN_EXPECT = 4,
    HTTP_SEEN_UPGRADE = 8,
    HTTP_SEEN_WEBSOCKET = 16,                            /* the one Upgrade field says websocket and nothing else */
    HTTP_SEEN_CLOSE = 32,                                /* Connection options */
    HTTP_SEEN_KEEP_ALIVE = 64,
    HTTP_SEEN_SWITCH = 128,                              /* Connection: upgrade */
};
enum { HTTP_NOMINATED_MAX = 64 };

/* One message head in terms that no version owns. Offsets as in http_field; -at and -n pairs. */
struct http_msg {
    uint8_t method;                                      /* requests: enum http_method */
    uint8_t minor;                                       /* HTTP/1.minor, 0 or 1 (a higher minor reads as 1) */
    uint16_t status;                                     /* responses */
    uint8_t framing;                                     /* enum http_framing */
    bool keep_alive;                                     /* the sender lets the connection live on */
    bool expect;                                         /* Expect: 100-continue (requests of 1.1 with a body) */
    bool upgrade;                                        /* a well-formed websocket upgrade request, or a 101 with Upgrade: websocket */
    bool te_trailers;
    bool has_length;                                     /* a Content-Length was sent, also where framing is NONE (HEAD, 304) */
    uint8_t seen;                                        /* HTTP_SEEN_*, while the head is read */
    uint16_t nominated;                                  /* Connection options that name fields */
    uint64_t length;                                     /* Content-Length, when has_length */
    uint32_t method_at, method_n;
    uint32_t target_at, target_n;                        /* as sent */
    uint32_t path_at, path_n;                            /* origin form path inside the target ('/' missing in absolute form: n == 0) */
    uint32_t query_at, query_n;                          /* behind '?', without it; has_query tells an empty query from none */
    bool has_query;
    bool path_plain;                                     /* path is its own normal form: not empty, no %, no dot segment */
    uint32_t host_at, host_n;                            /* authority that routes, valid: of an absolute target, else of Host; n == 0: none (1.0) */
    uint32_t reason_at, reason_n;
    uint32_t end_at;                                     /* of the empty line */
    uint16_t nfields;
    struct http_field field[HTTP_FIELDS_MAX];
};

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ---- h1_ : HTTP/1.x ------------------------------------------------------------------------------------------------------------- */

struct h1_limits {
    uint32_t line_bytes;                                 /* request line without its CRLF: above it 414 */
    uint32_t head_bytes;                                 /* the whole head with the empty line: above it 431 (a response: 502) */
    uint32_t fields;                                     /* field lines: above it 431 */
    bool underscores;                                    /* enable-underscores-in-headers */
};

enum h1_state {
    H1_START,                                            /* nothing but a leading empty line was read */
    H1_LINE,                                             /* the start line is incomplete */
    H1_FIELDS,
    H1_TRAILERS,                                         /* a trailer section */
};

/* A head parser, resumable at every byte. Made ready by h1_head_init. Results are in msg once feed returns > 0.
 * h1_request_feed / h1_response_feed(h, p, n): p is always the first byte of the head, n all bytes so far (the caller keeps them
 * contiguous; they may move between calls). Returns bytes of the head (with the empty line) once complete, RJ_MORE (0), or
 * -status: -400 -405 -414 -417 -431 for requests, -502 for responses; h->why then says what was wrong. The answer depends on the octets
 * only, never on how they were cut; after a refusal nothing more is fed. */
struct h1_head {
    uint32_t at;                                         /* everything before it is parsed */
    uint32_t skip;                                       /* leading empty line */
    uint8_t state;                                       /* enum h1_state */
    bool request;
    uint8_t request_method;                              /* of the request that a response answers */
    const char *why;
    struct http_msg msg;
};

enum h1_body_state {
    H1_SIZE,                                             /* hexadecimal digits */
    H1_EXT,                                              /* a chunk extension */
    H1_SIZE_LF,                                          /* LF of the size line */
    H1_DATA,
    H1_DATA_CR,
    H1_DATA_LF,
};
enum h1_ext_state {
    H1_EXT_NAME,                                         /* white space before a name, or the name */
    H1_EXT_IN_NAME,
    H1_EXT_BEHIND_NAME,                                  /* white space behind it */
    H1_EXT_VALUE,                                        /* white space before a value, or the value */
    H1_EXT_IN_VALUE,
    H1_EXT_QUOTED,
    H1_EXT_ESCAPE,                                       /* behind a backslash in quotes */
    H1_EXT_UNQUOTED,                                     /* behind the closing quote */
    H1_EXT_BEHIND_VALUE,                                 /* white space behind a value */
    H1_EXT_BAD,
};
enum { H1_EXT_MAX = 4096 };                              /* extension octets beyond those of content: AWS signs every chunk, so no total */

/* A body decoder. feed returns bytes used (>= 0) or -1 with why; *data is the slice of content among the used bytes (may be empty). */
struct h1_body {
    uint8_t framing;                                     /* enum http_framing */
    uint8_t state;                                       /* enum h1_body_state */
    uint8_t digits;                                      /* of the chunk size so far */
    uint8_t ext_state;                                   /* enum h1_ext_state */
    bool done;                                           /* the content is complete; with chunked: trailers follow when in_trailer */
    bool in_trailer;                                     /* the last chunk was read: feed the rest to h1_trailer_feed */
    uint32_t ext;                                        /* bytes of chunk extensions so far, less the content they came with */
    uint64_t left;                                       /* of the length, or of this chunk */
    uint64_t room;                                       /* chunked: content that may still be announced; no limit at first */
    bool too_large;                                      /* why the body was refused */
    const char *why;
};

/* ---- pp_ : the PROXY protocol ----------------------------------------------------------------------------------------------------- */

enum {
    PP_V1_MAX = 107,                                     /* octets of a version 1 line with its CRLF */
    PP_V2_HEAD = 16,                                     /* of version 2: signature, command, family, length */
    PP_V2_LENGTH_MAX = 8192,                             /* the length that is taken: addresses and TLVs */
};

/* What a PROXY header says (versions 1 and 2 of proxy-protocol.txt). pp_feed(h, p, n): p is always the first octet, n all octets so far.
 * Returns octets of the header once it is complete, RJ_MORE, or RJ_BAD with why; fewer than PP_V2_HEAD + PP_V2_LENGTH_MAX octets ask for more.
 * h holds the addresses once feed returned > 0. */
struct pp_header {
    struct net_addr from, to;                            /* the client, and where it connected to; family 0 when local */
    bool local;                                          /* no address is conveyed (LOCAL, UNKNOWN, UNSPEC, AF_UNIX): the peer speaks for itself */
    const char *why;
};

/* ---- cry_ : keys, certificates, random ------------------------------------------------------------------------------------------- */

struct cry_anchors;                                      /* trusted certificates, counted */
struct cry_identity;                                     /* a certificate chain with its private key, counted */

enum {
    CRY_PEM_BYTES_MAX = 4 << 20,                         /* of one PEM text: a bundle of public CAs has about 250 KiB */
    CRY_CERT_BYTES_MAX = 65536,                          /* of one object inside it */
    CRY_CHAIN_MAX = 16,                                  /* certificates of one identity */
};

/* ---- tls_ : records in, plaintext out, and back ------------------------------------------------------------------------------------ */

/* What a TLS connection waits for. */
enum tls_state {
    TLS_WAIT_HANDSHAKE,                                  /* no application data yet */
    TLS_OPEN,
    TLS_CLOSED,                                          /* close_notify both ways, or from the peer with nothing left to read */
    TLS_FAILED,                                          /* why says it; an alert may still wait to be taken */
};

struct tls_conn;
/* An engine behind the byte pump. No function touches a socket or blocks. Slices that are lent live until the next call.
 * The owner pumps until nothing moves: take what waits, feed what came, read what is there. */
struct tls_engine {
    const char *name;
    size_t (*feed)(struct tls_conn *c, struct str in);   /* ciphertext from the peer: bytes used; 0 until what waits is read or taken */
    struct str (*take)(struct tls_conn *c);              /* ciphertext for the peer, lent; empty: none */
    void (*took)(struct tls_conn *c, size_t n);
    struct str (*read)(struct tls_conn *c);              /* plaintext from the peer, lent; empty: none */
    void (*did_read)(struct tls_conn *c, size_t n);
    size_t (*write)(struct tls_conn *c, struct str in);  /* plaintext for the peer: bytes used; 0 until what waits is taken */
    void (*flush)(struct tls_conn *c);                   /* makes a record of what was written */
    void (*close)(struct tls_conn *c);                   /* close_notify */
    void (*free)(struct tls_conn *c);
};

/* One connection: the head of what its engine allocates. */
struct tls_conn {
    const struct tls_engine *engine;
    const char *why;                                     /* static text, in TLS_FAILED */
    uint8_t state;                                       /* enum tls_state */
};

/* A client. The server's certificate is good when the chain leads to an anchor and it names any of name, alt_name and ip. */
struct tls_client_config {
    struct cry_anchors *anchors;                         /* each connection holds its own reference */
    struct cry_identity *identity;                       /* NULL: no client certificate */
    struct str name;                                     /* also sent as SNI; empty: none */
    struct str alt_name;
    struct net_addr ip;                                  /* family 0: none */
    bool insecure;                                       /* any certificate will do */
    uint64_t now_s;                                      /* seconds since 1970; 0: the system's clock */
};

/* Alerts of RFC 5246 section 7.2 as a peer sends them: number, text. */
#define TLS_ALERTS(X)                     \
    X(0, "close notify")                  \
    X(10, "unexpected message")           \
    X(20, "bad record MAC")               \
    X(22, "record overflow")              \
    X(40, "handshake failure")            \
    X(42, "bad certificate")              \
    X(43, "unsupported certificate")      \
    X(44, "certificate revoked")          \
    X(45, "certificate expired")          \
    X(46, "certificate unknown")          \
    X(47, "illegal parameter")            \
    X(48, "unknown CA")                   \
    X(49, "access denied")                \
    X(50, "decode error")                 \
    X(51, "decrypt error")                \
    X(70, "protocol version")             \
    X(71, "insufficient security")        \
    X(80, "internal error")               \
    X(86, "inappropriate fallback")       \
    X(90, "user cancelled")               \
    X(100, "no renegotiation")            \
    X(109, "missing extension")           \
    X(110, "unsupported extension")       \
    X(112, "unrecognized name")           \
    X(116, "certificate required")        \
    X(120, "no application protocol")
/* ---- cfg_ : settings -------------------------------------------------------------------------------------------------------------- */

/* Kinds of values, the C type of each, and what `choices` in the table below means for it. */
enum cfg_type {
    CFG_AUTO,                                            /* a number, auto = 0; choices: LOW..HIGH */
    CFG_BOOL,
    CFG_BUFFERS,                                         /* COUNT SIZE */
    CFG_CIDRS,                                           /* comma separated */
    CFG_ENUM,                                            /* one word of choices: its position; a word with ! is known but not built yet */
    CFG_FIELD,                                           /* NAME: VALUE of a response, one a time */
    CFG_FLAGS,                                           /* words of choices: a bit each, by position */
    CFG_HOST,                                            /* a host name with or without a port */
    CFG_KEY,                                             /* what a hash looks at: variables and text */
    CFG_LABELS,                                          /* comma separated names as RFC 1123 has them */
    CFG_LISTEN,                                          /* ADDRESS:PORT, :PORT, PORT, unix:/PATH, off */
    CFG_LOCATION,                                        /* an absolute URL or path */
    CFG_MS,                                              /* a duration; choices 0: zero is allowed */
    CFG_NAMES,                                           /* comma separated names of fields */
    CFG_PATH,                                            /* kept in normal form */
    CFG_SERVERS,                                         /* comma separated DNS servers, kept as text */
    CFG_SIZE,                                            /* bytes; choices: LOW..HIGH */
    CFG_TEXT,
    CFG_UINT,                                            /* choices: LOW..HIGH */
};
struct cfg_buffers {
    uint32_t count, bytes;
};
struct cfg_cidrs {
    uint32_t n;
    struct net_cidr *v;
};
struct cfg_list {
    uint32_t n;
    struct str *v;
};
struct cfg_listener {
    struct net_addr addr;                                /* family AF_UNIX: path */
    struct str path;                                     /* NUL-terminated */
    struct str text;                                     /* as it was written */
};
struct cfg_listen {
    uint32_t n;                                          /* 0: off */
    struct cfg_listener *v;
};
#define CFG_C_AUTO uint32_t
#define CFG_C_BOOL bool
#define CFG_C_BUFFERS struct cfg_buffers
#define CFG_C_CIDRS struct cfg_cidrs
#define CFG_C_ENUM uint8_t
#define CFG_C_FIELD struct cfg_list
#define CFG_C_FLAGS uint16_t
#define CFG_C_HOST struct str
#define CFG_C_KEY struct str
#define CFG_C_LABELS struct cfg_list
#define CFG_C_LISTEN struct cfg_listen
#define CFG_C_LOCATION struct str
#define CFG_C_MS uint32_t
#define CFG_C_NAMES struct cfg_list
#define CFG_C_PATH struct str
#define CFG_C_SERVERS struct str
#define CFG_C_SIZE uint64_t
#define CFG_C_TEXT struct str                            /* NUL-terminated; p is NULL when empty and never set */
#define CFG_C_UINT uint32_t

/* Where an option may stand, and when a change of it is served. */
enum {
    CFG_R = 1,                                           /* also in [route NAME], and as an annotation */
    CFG_B = 2,                                           /* also in [backend NAME], and as an annotation */
    CFG_FLAG = 4,                                        /* not in the file */
    CFG_LIVE = 8,                                        /* a reload applies it; R and B always; the others at the next start */
    CFG_REPEAT = 32,                                     /* may be given more than once */
};

/* sorted by name
 *  name                             field                        type     choices  default  where  help                                 */
#define CFG_OPTIONS(X)                                                                                                                  \
    X("access-log-format",             access_log_format,           ENUM,    "json combined", "json", 0,                               \
      "Form of an access log line")                                                                                                    \
    X("access-log-path",               access_log_path,             TEXT,    "", "/dev/stdout", 0,                                     \
      "File of the access log, opened again on SIGUSR1; empty writes none")                                                               \
    X("admin",                         admin,                       LISTEN,  "", "127.0.0.1:10254", CFG_REPEAT,                        \
      "Admin listener; 0.0.0.0:10254 in a cluster; off")                                                                               \
    X("admin-token-file",              admin_token_file,            TEXT,    "", "", CFG_LIVE,                                         \
      "File with the bearer token for POST and DELETE; without it these are refused")                                                  \
    X("allow-backend-server-header",   allow_backend_server_header, BOOL,    "", "false", CFG_LIVE,                                    \
      "Pass the upstream's Server field")                                                                                              \
    X("check-fall",                    check_fall,                  UINT,    "1..100", "3", CFG_B,                                      \
      "Failed checks in a row that take an endpoint out")                                                                               \
    X("check-host",                    check_host,                  HOST,    "", "", CFG_B,                                             \
      "Host field of a check; the endpoint's address when empty")                                                                       \
    X("check-interval",                check_ms,                    MS,      "", "5s", CFG_B,                                           \
      "Time between two checks of an endpoint")                                                                                         \
    X("check-path",                    check_path,                  PATH,    "", "", CFG_B,                                             \
      "Path of active checks, file mode: 2xx and 3xx are good; empty checks nothing")                                                   \
    X("check-rise",                    check_rise,                  UINT,    "1..100", "2", CFG_B,                                      \
      "Good checks in a row that bring an endpoint back")                                                                               \
    X("check-timeout",                 check_timeout_ms,            MS,      "", "2s", CFG_B,                                           \
      "A check without a status line after it has failed")                                                                              \
    X("client-body-min-rate",          client_body_rate,            SIZE,    "", "0", CFG_LIVE,                                         \
      "Bytes a second that a request body must bring on average, 408 below; 0 is no such rate")                                         \
    X("client-body-timeout",           client_body_ms,              MS,      "", "60s", CFG_LIVE,                                      \
      "Between two reads of a request body")                                                                                           \
    X("client-header-timeout",         client_header_ms,            MS,      "", "60s", CFG_LIVE,                                      \
      "The whole request head must be there within it")                                                                                \
    X("compute-full-forwarded-for",    compute_full_forwarded_for,  BOOL,    "", "false", CFG_LIVE,                                    \
      "Append the peer to X-Forwarded-For of a trusted peer instead of replacing it")                                                  \
    X("config",                        config,                      TEXT,    "", "", CFG_FLAG,                                         \
      "INI file")                                                                                                                      \
    X("controller-class",              controller_class,            TEXT,    "", "ramjet.io/ingress-controller", CFG_LIVE,             \
      "spec.controller of the IngressClasses that are ours; k8s.io/ingress-nginx takes over that one's classes")                       \
    X("custom-headers",                custom_headers,              FIELD,   "", "", CFG_R | CFG_REPEAT,                               \
      "NAME: VALUE to set in every answer, also Ramjet's own; may be repeated")                                                        \
    X("default-backend-service",       default_backend_service,     TEXT,    "", "", CFG_LIVE,                                         \
      "NAMESPACE/NAME[:PORT], or a [backend] in file mode, for what no rule matches; without it 404")                                  \
    X("denylist-source-range",         denylist_source_range,       CIDRS,   "", "", CFG_R | CFG_REPEAT,                               \
      "Clients that get 403, comma separated; wins over whitelist-source-range; may be repeated")                                      \
    X("disable-access-log",            disable_access_log,          BOOL,    "", "false", CFG_R,                                       \
      "No access log")                                                                                                                 \
    X("enable-underscores-in-headers", underscores_in_headers,      BOOL,    "", "false", CFG_LIVE,                                    \
      "Pass request fields with _ in their name; otherwise they are dropped")                                                          \
    X("engine",                        engine,                      ENUM,    "auto epoll uring", "auto", 0,                            \
      "I/O engine; uring fails to start where io_uring is refused")                                                                    \
    X("fail-timeout",                  fail_ms,                     MS,      "", "10s", CFG_B,                                         \
      "max-fails failures within it take an endpoint out for as long")                                                                 \
    X("generate-request-id",           generate_request_id,         BOOL,    "", "true", CFG_LIVE,                                     \
      "X-Request-ID when the client sent none")                                                                                        \
    X("hide-headers",                  hide_headers,                NAMES,   "", "", CFG_R | CFG_REPEAT,                               \
      "Fields of the upstream's answers that do not pass, comma separated; may be repeated")                                           \
    X("history-size",                  history_size,                UINT,    "1..1000", "10", CFG_LIVE,                                \
      "Generations kept for a rollback")                                                                                               \
    X("http",                          http,                        LISTEN,  "", "0.0.0.0:8080", CFG_REPEAT,                           \
      "Listener: ADDRESS:PORT, :PORT, PORT, unix:/PATH, or off; may be repeated")                                                      \
    X("ingress-class",                 ingress_class,               TEXT,    "", "ramjet", CFG_LIVE,                                   \
      "Class name answered to, also in the old annotation")                                                                            \
    X("keep-alive",                    keep_alive_ms,               MS,      "0", "75s", CFG_LIVE,                                     \
      "An idle client connection is closed after it")                                                                                  \
    X("keep-alive-requests",           keep_alive_requests,         UINT,    "0..4294967295", "1000", CFG_LIVE,                         \
      "Requests of one client connection; 0 is no limit")                                                                              \
    X("kube-context",                  kube_context,                TEXT,    "", "", 0,                                                \
      "Context of the kubeconfig; its current-context when empty")                                                                     \
    X("kubeconfig",                    kubeconfig,                  TEXT,    "", "", 0,                                                \
      "File that names the API server; in a pod the service account is used without it")                                               \
    X("large-client-header-buffers",   head_buffers,                BUFFERS, "", "4 8k", CFG_LIVE,                                     \
      "COUNT SIZE: the request line fits one buffer (414), the fields all of them (431)")                                              \
    X("limit-allowlist",               limit_allowlist,             CIDRS,   "", "", CFG_R | CFG_REPEAT,                               \
      "Clients without limits, comma separated; may be repeated (alias limit-whitelist)")                                              \
    X("limit-burst-multiplier",        limit_burst_multiplier,      UINT,    "1..1000", "5", CFG_R,                                     \
      "Requests that a client may be ahead of limit-rps and limit-rpm: so many times the limit")                                       \
    X("limit-connections",             limit_connections,           UINT,    "0..1000000", "0", CFG_R,                                  \
      "Requests (and tunnels) of one client under way at a time, 429 above; 0 is no limit")                                            \
    X("limit-rpm",                     limit_rpm,                   UINT,    "0..1000000", "0", CFG_R,                                  \
      "Requests of one client a minute, 429 above; 0 is no limit")                                                                     \
    X("limit-rps",                     limit_rps,                   UINT,    "0..100000", "0", CFG_R,                                   \
      "Requests of one client a second, 429 above; 0 is no limit")                                                                     \
    X("load-balance",                  load_balance,                ENUM,                                                              \
      "round_robin least_conn random ip_hash ewma", "round_robin", CFG_R | CFG_B,                                                      \
      "How an endpoint is chosen; random is the better of two")                                                                        \
    X("log-level",                     log_level,                   ENUM,    "error warn info debug", "info", 0,                       \
      "Least important log lines that are written")                                                                                    \
    X("max-fails",                     max_fails,                   UINT,    "0..65535", "3", CFG_B,                                   \
      "Failures that take an endpoint out, never the last one; 0 is never")                                                            \
    X("max-request-headers",           max_request_headers,         UINT,    "1..1000", "100", CFG_LIVE,                               \
      "Field lines of one request; 431 above")                                                                                         \
    X("max-worker-connections",        max_worker_connections,      UINT,    "1..1000000", "16384", 0,                                 \
      "Client connections of one worker; above it no more are accepted")                                                               \
    X("memory-limit",                  memory_limit,                SIZE,    "", "0", 0,                                               \
      "Ceiling for connections, requests and buffers of all workers; near it the slowest give way, 503 above; 0: half the cgroup limit") \
    X("path-replace-prefix",           path_replace_prefix,         PATH,    "", "", CFG_R,                                            \
      "Path sent upstream in place of the path of the rule; wins over path-strip-prefix")                                              \
    X("path-strip-prefix",             path_strip_prefix,           BOOL,    "", "false", CFG_R,                                       \
      "The path of the rule is not sent upstream")                                                                                     \
    X("permanent-redirect",            permanent_redirect,          LOCATION, "", "", CFG_R,                                           \
      "URL or path to send clients to; the route needs no backend")                                                                    \
    X("permanent-redirect-code",       permanent_redirect_code,     ENUM,    "301 302 303 307 308", "301", CFG_R,                       \
      "Status of permanent-redirect")                                                                                                  \
    X("proxy-body-size",               body_bytes,                  SIZE,    "", "1m", CFG_R,                                          \
      "Largest request body, 413 above; 0 is no limit")                                                                                \
    X("proxy-buffer-size",             proxy_head_bytes,            SIZE,    "256..1m", "16k", CFG_R,                                  \
      "Largest response head, 502 above")                                                                                              \
    X("proxy-connect-timeout",         proxy_connect_ms,            MS,      "", "5s", CFG_R,                                          \
      "Connect of one try")                                                                                                            \
    X("proxy-next-upstream",           proxy_next,                  FLAGS,                                                             \
      "error timeout off invalid_header http_500 http_502 http_503 http_504 http_403 http_404 http_429 non_idempotent",                        \
      "error timeout", CFG_R,                                                                                                          \
      "When another endpoint is tried")                                                                                                \
    X("proxy-next-upstream-timeout",   proxy_next_ms,               MS,      "0", "0", CFG_R,                                          \
      "Time for all tries of a request; 0 is no limit")                                                                                \
    X("proxy-next-upstream-tries",     proxy_tries,                 UINT,    "0..100", "3", CFG_R,                                     \
      "Tries of one request in all; 0 is no limit")                                                                                    \
    X("proxy-protocol-header-timeout", proxy_protocol_ms,           MS,      "", "5s", CFG_LIVE,                                       \
      "The PROXY header must be there within it")                                                                                      \
    X("proxy-read-timeout",            proxy_read_ms,               MS,      "", "60s", CFG_R,                                         \
      "Until the response head, and between two reads after it")                                                                       \
    X("proxy-real-ip-cidr",            proxy_real_ip,               CIDRS,   "", "", CFG_LIVE | CFG_REPEAT,                            \
      "Trusted peers, comma separated; empty trusts nobody")                                                                           \
    X("proxy-request-buffering",       request_buffering,           BOOL,    "", "off", CFG_R,                                         \
      "Hold the whole request body before connecting")                                                                                 \
    X("proxy-send-timeout",            proxy_send_ms,               MS,      "", "60s", CFG_R,                                         \
      "Between two successful writes upstream")                                                                                        \
    X("proxy-tunnel-timeout",          proxy_tunnel_ms,             MS,      "0", "0", CFG_R,                                          \
      "An idle tunnel (WebSocket) is closed after it; 0 is the largest of 1h, proxy-read-timeout and proxy-send-timeout")              \
    X("publish-interval",              publish_interval_ms,         MS,      "0", "20ms", CFG_LIVE,                                    \
      "Bursts of changes compile at most once in it; a lone change at once")                                                           \
    X("resolver",                      resolver,                    SERVERS, "", "", 0,                                                \
      "ADDRESS[:PORT] of DNS servers, comma separated; from resolv.conf when empty")                                                   \
    X("retry-budget",                  retry_budget,                UINT,    "0..1000", "20", CFG_R | CFG_B,                            \
      "Further tries of requests that an endpoint may have got, in percent of the backend's requests")                                  \
    X("retry-non-idempotent",          retry_non_idempotent,        BOOL,    "", "false", CFG_R,                                       \
      "Also POST and the like may be sent to another endpoint")                                                                        \
    X("send-min-rate",                 send_rate,                   SIZE,    "", "0", CFG_LIVE,                                         \
      "Bytes a second that a client must take on average, else it is cut; 0 is no such rate")                                           \
    X("send-timeout",                  send_ms,                     MS,      "", "60s", CFG_LIVE,                                      \
      "Between two successful writes to the client")                                                                                   \
    X("server-tokens",                 server_tokens,               BOOL,    "", "false", CFG_LIVE,                                    \
      "Server: ramjet on our own answers")                                                                                             \
    X("serviceaccount-dir",            serviceaccount_dir,          TEXT,    "", "/var/run/secrets/kubernetes.io/serviceaccount", 0,   \
      "Folder of token, ca.crt and namespace, read again when they change")                                                            \
    X("shutdown-delay",                shutdown_delay_ms,           MS,      "0", "0s", CFG_LIVE,                                       \
      "Time between SIGTERM and the drain: not ready any more, but still accepting")                                                   \
    X("slow-start",                    slow_ms,                     MS,      "0", "0", CFG_B,                                           \
      "An endpoint that comes back gets a share that grows over this time")                                                             \
    X("temporal-redirect",             temporal_redirect,           LOCATION, "", "", CFG_R,                                           \
      "As permanent-redirect, and wins over it")                                                                                       \
    X("temporal-redirect-code",        temporal_redirect_code,      ENUM,    "301 302 303 307 308", "302", CFG_R,                       \
      "Status of temporal-redirect")                                                                                                   \
    X("upstream-hash-by",              hash_by,                     KEY,     "", "", CFG_R | CFG_B,                                     \
      "Requests with equal values go to one endpoint: $http_NAME, $cookie_NAME, $arg_NAME, $request_uri, ...")                          \
    X("upstream-keepalive-connections", upstream_keepalive,         UINT,    "0..65535", "320", CFG_B,                                 \
      "Idle connections kept to one endpoint, per worker")                                                                             \
    X("upstream-keepalive-requests",   upstream_keepalive_requests, UINT,    "0..4294967295", "10000", CFG_B,                          \
      "Requests of one upstream connection; 0 is no limit")                                                                            \
    X("upstream-keepalive-time",       upstream_life_ms,            MS,      "", "1h", CFG_B,                                          \
      "Longest life of an upstream connection")                                                                                        \
    X("upstream-keepalive-timeout",    upstream_idle_ms,            MS,      "", "60s", CFG_B,                                         \
      "An idle upstream connection is closed after it")                                                                                \
    X("use-forwarded-headers",         use_forwarded_headers,       BOOL,    "", "false", CFG_LIVE,                                    \
      "Trust X-Forwarded-* and Forwarded of peers in proxy-real-ip-cidr")                                                              \
    X("use-proxy-protocol",            use_proxy_protocol,          BOOL,    "", "false", CFG_LIVE,                                    \
      "PROXY v1 or v2 required from peers in proxy-real-ip-cidr, refused from others")                                                 \
    X("watch-ingress-without-class",   watch_without_class,         BOOL,    "", "false", CFG_LIVE,                                    \
      "Also take Ingresses that name no class")                                                                                        \
    X("watch-namespace",               watch_namespace,             LABELS,  "", "", 0,                                                \
      "Namespaces to watch, comma separated; all when empty")                                                                          \
    X("whitelist-source-range",        whitelist_source_range,      CIDRS,   "", "", CFG_R | CFG_REPEAT,                               \
      "All other clients get 403, comma separated; may be repeated (alias allowlist-source-range)")                                    \
    X("worker-processes",              worker_processes,            AUTO,    "1..256", "auto", 0,                                      \
      "Workers (threads); auto is what the affinity mask and the cgroup quota leave")                                                  \
    X("worker-shutdown-timeout",       shutdown_ms,                 MS,      "0", "240s", CFG_LIVE,                                    \
      "Longest drain after SIGTERM")                                                                                                   \
    X("x-forwarded-prefix",            x_forwarded_prefix,          PATH,    "", "", CFG_R,                                            \
      "X-Forwarded-Prefix sent upstream when the path is stripped or replaced")

/* Other names that ingress-nginx has for the same options. */
#define CFG_ALIASES(X)                                    \
    X("allowlist-source-range", whitelist_source_range)   \
    X("limit-whitelist",        limit_allowlist)

enum { CFG_KEY_MAX = 63 };                               /* bytes of upstream-hash-by */

enum cfg_option {
#define X(name, field, type, choices, fallback, where, help) CFG_O_##field,
    CFG_OPTIONS(X)
#undef X
    CFG_OPTION_COUNT
};
static_assert(CFG_OPTION_COUNT <= 256, "struct cfg_value holds an option in 8 bits");

/* A row of the table, at run time. */
struct cfg_info {
    const char *name, *choices, *fallback, *help;
    uint16_t offset;                                     /* in struct cfg */
    uint8_t type;                                        /* enum cfg_type */
    uint8_t where;                                       /* CFG_R ... */
};

/* Positions in the choices of the enums. load-balance follows enum rt_balance,
 * log-level enum log_level, proxy-next-upstream RT_NEXT_*. */
enum { CFG_ENGINE_AUTO, CFG_ENGINE_EPOLL, CFG_ENGINE_URING };
enum { CFG_LOG_JSON, CFG_LOG_COMBINED };
enum { CFG_FIELDS_MAX = 4096 };                          /* bytes of the fields that one route sets and hides */

/* A value that a section gave to an option, checked when it was read. */
struct cfg_value {
    uint8_t option;
    uint32_t line;
    struct str text;
};
struct cfg_endpoint {
    struct str host;                                     /* a name, when addr.family is 0 */
    struct net_addr addr;                                /* with its port, also for a name */
    uint32_t weight;
};
struct cfg_backend {
    struct str name;
    uint32_t line, nendpoints, nvalues;
    struct cfg_endpoint *endpoints;
    struct cfg_value *values;
};
struct cfg_route {
    struct str name, host, path;                         /* host lower-case; empty: any. path: as written */
    struct str backend;
    uint32_t line, backend_line, nvalues;                /* lines of the section and of its key backend */
    bool exact;
    struct cfg_value *values;
};

/* All settings, resolved: flag over environment over file over default. Immutable once loaded; counted by the control thread. */
struct cfg {
#define X(name, field, type, choices, fallback, where, help) CFG_C_##type field;
    CFG_OPTIONS(X)
#undef X
    bool given[CFG_OPTION_COUNT];                        /* set by anybody */
    uint64_t digest;                                     /* of the settings that a reload applies */
    uint64_t value_digest[CFG_OPTION_COUNT];             /* of the text that each option got */
    bool cluster;                                        /* routes come from a Kubernetes API server */
    uint32_t refs;
    uint32_t nroutes, nbackends;
    struct cfg_route *routes;                            /* in the order of the file */
    struct cfg_backend *backends;
    struct map by_name;                                  /* backend name -> struct cfg_backend */
    struct mem_arena arena;
};

/* What settings are made from. argv holds what follows the command's name. */
struct cfg_input {
    int argc;
    char *const *argv;
    char *const *envp;                                   /* NULL: no environment */
    const char *file_name;                               /* of text; NULL: the file that the option config names is read */
    struct str text;                                     /* the file's content, when file_name is set */
    const char **operands;                               /* room for argc entries; NULL: arguments that are no flags are refused */
    int noperands;                                       /* out */
};

/* Every problem, one line each: `FILE:LINE: text`, `--flag: text`, `RAMJET_X: text`. */
struct cfg_report {
    struct str_builder text;                             /* growing */
    uint32_t errors;
};


/* ---- obj_ : Kubernetes objects, projected ---------------------------------------------------------------------------------------- */

enum obj_kind { OBJ_INGRESS, OBJ_INGRESS_CLASS, OBJ_SERVICE, OBJ_ENDPOINT_SLICE, OBJ_KIND_COUNT };

/* Every object is one mem_alloc block: the struct, its arrays and its text behind it. All slices point into the block. Immutable but mark. */
struct obj {
    uint8_t kind;                                        /* enum obj_kind */
    uint32_t mark;                                       /* of the list that saw it last: see obj_store_sweep */
    uint32_t size;                                       /* bytes of the block */
    uint32_t created;                                    /* metadata.creationTimestamp, seconds; 0 = absent */
    struct str ns;                                       /* empty for cluster-scoped kinds */
    struct str key;                                      /* "ns/name", or "name": the name is what stands behind ns and its slash */
    struct str bad;                                      /* not empty: why this object cannot be used ("spec.rules[1].http: found string, expected object") */
};
struct obj_pair {
    struct str name, value;
};
struct obj_backend {
    struct str service;
    struct str port_name;                                /* exactly one of port_name and port is set */
    uint16_t port;
    bool present;                                        /* the field was there */
    bool resource;                                       /* backend.resource: not supported */
};
enum obj_path_type { OBJ_PATH_PREFIX, OBJ_PATH_EXACT, OBJ_PATH_IMPLEMENTATION };
struct obj_path {
    struct str path;
    uint8_t type;                                        /* enum obj_path_type */
    struct obj_backend backend;
};
struct obj_rule {
    struct str host;
    uint32_t npaths;
    struct obj_path *paths;
};
struct obj_ingress {
    struct obj o;
    struct str class_name;                               /* spec.ingressClassName */
    struct str class_annotation;                         /* kubernetes.io/ingress.class */
    struct obj_backend fallback;                         /* spec.defaultBackend */
    uint32_t nrules;
    uint32_t nannotations : 31, has_class_name : 1;
    struct obj_rule *rules;
    struct obj_pair *annotations;                        /* those of ramjet.io/ and nginx.ingress.kubernetes.io/, prefix kept */
};
struct obj_class {
    struct obj o;
    struct str controller;
    bool is_default;
};
struct obj_port {
    struct str name;
    uint16_t port;                                       /* 0: any (slices) */
};
struct obj_service {
    struct obj o;
    struct str external_name;                            /* type ExternalName */
    uint32_t nports;                                     /* TCP ports only */
    struct obj_port *ports;
};
struct obj_endpoint {
    struct net_addr addr;                                /* port 0 */
    bool ready, serving, terminating;                    /* nil conditions resolved */
};
struct obj_slice {
    struct obj o;
    struct str service;                                  /* label kubernetes.io/service-name */
    uint8_t family;                                      /* AF_INET, AF_INET6; 0: FQDN (ignored with a warning), no endpoints */
    uint32_t nports, nendpoints;                         /* TCP ports only; no ports at all: any port */
    struct obj_port *ports;
    struct obj_endpoint *endpoints;
};

/* The last version of every object. changed is told of every difference, with the old and the new one (either may be NULL;
 * the old one is freed after the call). */
struct obj_store {
    struct map kind[OBJ_KIND_COUNT];                     /* key -> struct obj */
    size_t bytes;                                        /* of all blocks */
    void (*changed)(void *arg, const struct obj *old, const struct obj *now);
    void *arg;
};

enum { OBJ_LEVELS = 12, OBJ_BYTES_MAX = 4 << 20 };

/* A growing array while an object is read, in the reader's scratch arena. */
struct obj_list {
    void *p;
    uint32_t n, cap;
};

/* A container that the reader is in. */
struct obj_level {
    uint8_t at;                                          /* enum obj_at: what its members mean */
    bool array;
    uint32_t index;                                      /* array: the present element */
    const char *key;                                     /* how it is named in paths; NULL: an element */
};

/* Reads the events of one object. */
struct obj_reader {
    struct json_reader *json;                            /* told to skip what is not wanted; NULL: the events are passed over here */
    struct mem_arena scratch;                            /* of the present object */
    uint8_t hint;                                        /* enum obj_kind when the kind is not in the object; OBJ_KIND_COUNT: none */
    uint8_t kind;                                        /* once it is done: what it is; OBJ_KIND_COUNT: not one that is used */
    bool begun, done;
    uint8_t base;                                        /* depth of the object in its document */
    uint8_t skip;                                        /* depth + 1 of what is passed over */
    uint8_t depth;                                       /* levels in use */
    struct obj_level level[OBJ_LEVELS];
    const void *field;                                   /* the row of the table that the next value belongs to */
    struct str key;                                      /* the present key in a map of texts */
    uint32_t line;                                       /* where the object begins */
    struct str kind_name, api_version;                   /* as found */
    struct str version;                                  /* metadata.resourceVersion; also of an object that is not used */
    struct str ns, name, created;
    uint32_t created_s;
    struct log_err err;                                  /* why obj_reader_event said -1, or why the object is not used */

    struct str bad;
    struct obj_ingress ingress;                          /* drafts: slices point into scratch */
    struct obj_class klass;
    struct obj_service service;
    struct obj_slice slice;
    struct str service_type, address_type, bad_address;
    struct obj_backend *backend;                         /* the one that is being read */
    int8_t condition[3];                                 /* ready, serving, terminating of the endpoint; -1: nil */
    bool foreign_port;                                   /* the port is of another protocol than TCP */
    bool dropped_ports;                                  /* there was one */
    struct obj_list rules, paths, annotations, ports, endpoints;
};

/* What obj_read found: one object of a manifest. */
struct obj_found {
    struct obj *o;                                       /* owned by the callback; NULL: not used, for the reason in why */
    struct str kind, name;                               /* as found, may be empty */
    const char *why;
    bool error;                                          /* why is an error (no name, not an object), not only a kind that is not used */
    uint32_t line;
};

/* Reads the documents of a manifest: objects, and lists of them. */
struct obj_doc {
    struct obj_reader whole, item;
    bool items_next, in_items, item_open;
    bool is_list;
    int (*on)(void *arg, const struct obj_found *found);
    void *arg;
};

/* ---- kc_ : how to reach an API server --------------------------------------------------------------------------------------------- */

enum { KC_TOKEN_BYTES_MAX = 16384, KC_FILE_BYTES_MAX = 4 << 20 };

/* A file that may be replaced while the process runs. */
struct kc_file {
    const char *path;                                    /* NULL: none */
    uint64_t stamp;                                      /* of device, inode, size and time of what was read last */
};

/* How to reach one API server. */
struct kc_config {
    struct mem_arena arena;
    struct str source;                                   /* file or folder, for messages */
    struct str server, host, prefix;                     /* as written; without port and brackets; path without its last slash */
    uint16_t port;
    bool tls, insecure;
    struct net_addr ip;                                  /* family 0: host is a name */
    struct str tls_name, alt_name;                       /* what the certificate may be for: any of these */
    struct net_addr tls_ip;
    struct str ns;                                       /* of the context or the service account; may be empty */
    struct kc_file token_file, ca_file, cert_file, key_file;
    struct str ca_pem, cert_pem, key_pem;                /* given inline */
    struct str_builder token;                            /* empty: none */
    uint32_t changes;                                    /* of token, CA or identity since the start */
    struct cry_anchors *anchors;
    struct cry_identity *identity;
};

/* ---- k8s_ : list and watch -------------------------------------------------------------------------------------------------------- */

/* The kinds that are watched: id, name, group path, plural, whether it lives in a namespace. */
#define K8S_KINDS(X)                                                                                     \
    X(INGRESS,        "Ingress",       "/apis/networking.k8s.io/v1", "ingresses",      true)             \
    X(INGRESS_CLASS,  "IngressClass",  "/apis/networking.k8s.io/v1", "ingressclasses", false)            \
    X(SERVICE,        "Service",       "/api/v1",                    "services",       true)             \
    X(ENDPOINT_SLICE, "EndpointSlice", "/apis/discovery.k8s.io/v1",  "endpointslices", true)

enum {
    K8S_PAGE = 500,                                      /* objects of one list response */
    K8S_WATCH_S_MIN = 22, K8S_WATCH_S_MAX = 28,          /* timeoutSeconds of a watch */
    K8S_SILENT_MS = 8000,                                /* how much longer a watch may last before it counts as silent */
    K8S_LINK_MS = 5000,                                  /* name, TCP and TLS */
    K8S_HEAD_MS = 15000, K8S_BODY_MS = 15000,            /* until a response head; between two reads of a list */
    K8S_PAGE_MS = 120000,                                /* one page in all */
    K8S_FILE_POLL_MS = 250,                              /* of token, CA and client certificate, while something is refused */
    K8S_RETRY_MS = 100, K8S_RETRY_LINK_MAX_MS = 800, K8S_RETRY_MAX_MS = 10000,
    K8S_LOG_MS = 10000,                                  /* between two lines about one spell of trouble */
    K8S_HEALTHY_MS = 5000,                               /* a watch that lasted so long starts its back-off anew, and its trouble is over */
    K8S_RETRY_AFTER_MAX_S = 60,
    K8S_HEAD_BYTES_MAX = 32768,
    K8S_ERROR_BYTES_MAX = 16384,
    K8S_OBJECT_BYTES_MAX = 8 << 20,
    K8S_OBJECTS_MAX = 1000000,                           /* of one kind */
    K8S_TEXT_MAX = 4096,                                 /* resourceVersion, continue */
};

/* What a watch waits for. */
enum k8s_state {
    K8S_WAIT_RETRY,                                      /* the end of a back-off */
    K8S_WAIT_LINK,                                       /* name, TCP, TLS */
    K8S_WAIT_LIST_HEAD,
    K8S_WAIT_LIST_BODY,
    K8S_WAIT_WATCH_HEAD,
    K8S_WAIT_WATCH_BODY,
    K8S_WAIT_ERROR_BODY,                                 /* the Status behind a response that is not 200 */
};
/* Why a watch backs off. */
enum k8s_trouble { K8S_NO_TROUBLE, K8S_NO_LINK, K8S_LOST, K8S_REFUSED, K8S_GARBAGE, K8S_GONE };
enum k8s_link { K8S_LINK_NONE, K8S_LINK_RESOLVING, K8S_LINK_CONNECTING, K8S_LINK_HANDSHAKE, K8S_LINK_OPEN, K8S_LINK_CLOSING };

struct k8s;
/* One kind in one namespace: the machine (no I/O), and the connection under it. */
struct k8s_watch {
    struct k8s *k8s;
    uint8_t kind;                                        /* enum obj_kind */
    uint8_t state;                                       /* enum k8s_state */
    uint8_t trouble;                                     /* enum k8s_trouble, of the last failure */
    uint8_t told;                                        /* a bit for each trouble of the present spell that has been dealt with in the log; 0: no spell */
    uint8_t at;                                          /* enum k8s_at: where in the JSON text */
    uint8_t meta_up;                                     /* where to go on behind metadata */
    uint8_t event;                                       /* enum k8s_event */
    bool in_continue;                                    /* the metadata text that follows is the continue token */
    bool listed;                                         /* the first list is in the store */
    bool up;                                             /* the watch was accepted and nothing has failed since */
    bool is_quiet;                                       /* a line about another watch speaks for this one */
    bool reuse;                                          /* the connection outlives this response */
    struct str ns;                                       /* empty: all namespaces */
    struct str_builder version;                          /* resourceVersion to watch from; empty: list first */
    struct str_builder cont;                             /* of the list that is being read: where its next page begins */
    struct str_builder next_version, next_cont;          /* of the response that is being read */
    uint32_t pages, objects;                             /* of it */
    uint32_t list_mark;                                  /* objects seen by it carry this mark */
    uint32_t tries, link_tries, gone_tries;              /* failures in a row */
    uint32_t quick;                                      /* grows with watches in a row that ended at once */
    uint64_t logged_ms, retry_at_ms;
    uint64_t up_ms;                                      /* since when it is up */
    uint32_t cfg_changes;                                /* of the configuration that was refused */
    uint32_t answers;                                    /* on this connection */
    uint32_t retry_after_s;
    uint16_t status;
    int code;                                            /* of an ERROR event */
    uint64_t asked_ms;                                   /* when the request that is being answered was made */
    uint64_t deadline_ms;                                /* of a watch */
    uint64_t object_from;                                /* offset of the object that is being read */
    struct str_builder head;                             /* of the response; then its trailers */
    struct str_builder text;                             /* the Status of an error; the message of an ERROR event */
    struct h1_head h1;
    struct h1_body body;
    struct json_reader json;
    struct obj_reader reader;
    char why[200];                                       /* the last failure */

    struct str_builder request;                          /* out: to be sent */
    bool drop;                                           /* out: the connection must go */
    uint32_t wait_ms;                                    /* out: arm the timer; 0: leave it */

    uint8_t link;                                        /* enum k8s_link */
    bool wake;                                           /* out: the back-off is over at once */
    struct net_addr peer;                                /* where it goes; family 0: not known yet */
    struct io_sock sock;
    struct io_outq outq;
    struct str_builder wire;                             /* ciphertext (or plaintext) that waits for the queue */
    struct tls_conn *tls;
    struct dns_watch *dns;
    uint32_t addr_at;                                    /* which of the name's addresses is tried next */
    struct clk_timer timer;
};

struct k8s_kind_stats {
    uint64_t events, relists, lists, failures;
    uint64_t last_event_ns;                              /* monotonic */
    char last_error[200];                                /* "" while all is well */
};

/* The client of one API server, on the control thread's loop. */
struct k8s {
    struct io_loop *loop;
    struct dns *dns;
    struct kc_config *cfg;
    struct obj_store *store;
    void (*synced)(void *arg);                           /* once, when every first list is in the store */
    void *arg;
    uint64_t now_ms;                                     /* of the turn; the tests set it */
    uint64_t event_ns;                                   /* monotonic time of the read that brought the change being told */
    uint32_t nwatches;
    uint32_t missing;                                    /* watches whose first list is not in */
    uint32_t mark;                                       /* last one given to a list */
    bool stopping;
    bool is_synced;
    struct clk_timer calm;                               /* when a spell of trouble may be over */
    struct k8s_watch *watches;
    struct k8s_kind_stats kind[OBJ_KIND_COUNT];
};
/* ---- rt_ : route table ------------------------------------------------------------------------------------------------------------- */

enum rt_balance { RT_ROUND_ROBIN, RT_LEAST_CONN, RT_RANDOM, RT_IP_HASH, RT_EWMA, RT_HASH }; /* HASH: upstream-hash-by is set */
enum { RT_NEXT_ERROR = 1, RT_NEXT_TIMEOUT = 2, RT_NEXT_OFF = 4, RT_NEXT_INVALID_HEADER = 8, RT_NEXT_500 = 16,
       RT_NEXT_502 = 32, RT_NEXT_503 = 64, RT_NEXT_504 = 128, RT_NEXT_403 = 256, RT_NEXT_404 = 512, RT_NEXT_429 = 1024 };

/* What a rule asks of the middleware: bits of rt_rules.uses. */
enum { RT_DENIES = 1, RT_ALLOWS = 2, RT_LIMITS_RATE = 4, RT_LIMITS_CONNECTIONS = 8, RT_REDIRECTS = 16, RT_REWRITES = 32, RT_SETS_FIELDS = 64 };

/* A run of addresses, both ends in it; IPv4 is mapped, as in struct net_addr. As two numbers, the more significant one first. */
struct rt_range {
    uint64_t low[2], high[2];
};
/* n things at an offset in the block that they belong to. */
struct rt_span {
    uint32_t at, n;
};
/* A token bucket in the form of GCRA: a request moves the time at which the bucket is full by `each`; it may be `slack` ahead of now.
 * In ticks of struct lm_bucket; each == 0: no limit. */
struct rt_rate {
    uint64_t each, slack;
};
enum { RT_RATE_SECOND, RT_RATE_MINUTE, RT_RATES };

/* The request rules of a route, one block with everything that they point to, so that equal ones are found by their bytes; made once per
 * compile. A route without rules has none. */
struct rt_rules {
    uint32_t refs;                                       /* by policies; the bytes that are compared begin behind it */
    uint32_t size;                                       /* of the block */
    uint16_t uses;                                       /* RT_* */
    uint16_t redirect_status;
    uint32_t connections;                                /* limit-connections */
    uint64_t route;                                      /* which buckets are its; 0: no limits */
    struct rt_rate rate[RT_RATES];
    uint64_t taken;                                      /* bit per enum http_field_id: fields that are set or hidden ... */
    uint64_t own;                                        /* ... of those the ones that are set */
    struct rt_span denied, allowed, exempt;              /* struct rt_range, sorted, disjoint */
    struct rt_span names;                                /* struct rt_span: other fields that are set or hidden, in lower case */
    struct rt_span fields;                               /* bytes: custom-headers as they are sent */
    struct rt_span location;                             /* bytes: the field Location */
    struct rt_span prefix;                               /* bytes: goes in place of the path of the rule */
    struct rt_span forwarded_prefix;                     /* bytes: the field X-Forwarded-Prefix */
};

/* Per-route settings (the R options), resolved. Shared by equal routes of one host. */
struct rt_policy {
    const struct rt_rules *rules;                        /* NULL: none */
    uint64_t body_bytes;                                 /* proxy-body-size, 0 = no limit */
    uint32_t connect_ms, send_ms, read_ms, tunnel_ms;    /* proxy-*-timeout */
    uint32_t head_bytes;                                 /* proxy-buffer-size */
    uint32_t next_ms;                                    /* proxy-next-upstream-timeout, 0 = no limit */
    uint16_t next;                                       /* RT_NEXT_* */
    uint16_t tries;                                      /* 0 = no limit */
    bool access_log, request_buffering, retry_non_idempotent;
};

struct rt_endpoint {
    struct net_addr addr;
    uint32_t weight;
    uint64_t hash;                                       /* of addr: finds the worker's pool */
};

/* Equal policies are one object, counted by the rules that point to it. Control thread. */
struct rt_shared_policy {
    struct rt_policy policy;
    uint32_t refs;
};

/* A block that snapshots share. The fields are the control thread's alone. */
struct rt_block {
    struct rt_block *next;                               /* of the blocks that wait to be freed */
    uint64_t born, gone;                                 /* publications that can show it: born <= seq < gone */
    uint64_t digest;
    uint32_t refs;                                       /* hosts: 1 in the newest table + 1 per history record + 1 in the pinned table */
    bool is_host;
};

/* The endpoints of one backend: immutable; replaced whole. */
struct rt_backend {
    struct rt_block block;
    struct str name;                                     /* file: NAME; cluster: namespace/service:port */
    uint64_t hash;                                       /* of its identity: finds the worker's cursor */
    uint8_t balance;                                     /* enum rt_balance */
    uint32_t keepalive;                                  /* upstream-keepalive-connections */
    uint32_t keepalive_ms, keepalive_life_ms, keepalive_requests;
    uint32_t max_fails, fail_ms;
    uint32_t slow_ms;                                    /* slow-start */
    uint32_t retry_percent;                              /* retry-budget */
    uint32_t check_ms, check_timeout_ms, check_rise, check_fall; /* check-*; check_ms 0: no active checks */
    struct str check_path, check_host;
    struct str hash_by;                                  /* upstream-hash-by */
    uint32_t n;                                          /* 0: answers 503 */
    struct rt_endpoint ep[];
};

enum rt_type { RT_EXACT, RT_PREFIX };
/* One path of one host. */
struct rt_rule {
    struct str path;                                     /* prefix: without trailing slash, "" = everything */
    uint8_t type;
    uint32_t backend;                                    /* slot in the snapshot; RT_NO_BACKEND: answers 503 */
    const struct rt_policy *policy;
    struct str name;                                     /* file: route NAME; cluster: namespace/ingress */
    uint32_t metric;                                     /* id of name among the route metrics */
};
enum { RT_NO_BACKEND = 0xffffffffu, RT_SMALL_HOST = 4 };

/* An entry of a host's hash table of paths. */
struct rt_index {
    uint32_t tag;                                        /* high half of the hash */
    uint32_t rule;                                       /* number + 1; 0 = free */
};
/* One host's rules, one block, immutable. Rules stand longest path first, exact before prefix.
 * A host with more than RT_SMALL_HOST rules has two bitmaps of the lengths that occur (prefix, then exact; words each) and a
 * hash table of its paths. What a lookup reads stands first. */
struct rt_host {
    struct str name;                                     /* "" = any host, "*.suffix", RT_FALLBACK = what no rule matches */
    uint32_t n;
    uint32_t mask, words;
    const uint64_t *lengths;
    const struct rt_index *index;                        /* NULL: few rules */
    struct rt_rule *rule;
    struct rt_block block;
};
#define RT_FALLBACK S("*")

/* The hosts of a snapshot: open addressing, shared by the snapshots between two changes of it. */
struct rt_place {
    uint64_t hash;
    struct rt_host *host;                                /* NULL: free */
};
struct rt_hosts {
    uint32_t refs, n, mask, routes;
    uint64_t digest;                                     /* sum over the hosts */
    struct rt_place at[];
};
/* The backends of a snapshot by slot; NULL where no rule of it points to. */
struct rt_backends {
    uint32_t refs, n, used;
    uint64_t digest;                                     /* sum over the backends */
    const struct rt_backend *at[];
};

/* Requests of one worker that hold the snapshot; a cache line each. */
struct rt_lease {
    _Atomic uint32_t n;
    uint8_t pad[60];
};

/* What a worker loads. It may be searched only in the turn in which it was loaded: later, even when leased, its tables may be gone;
 * a lease keeps what was found (rule, policy, backend) and cfg. */
struct rt_snapshot {
    uint64_t generation;                                 /* of the rules, as shown; a rollback shows an older one */
    uint64_t digest;
    const struct rt_hosts *hosts;
    const struct rt_host *any;                           /* rules without a host; or NULL */
    const struct rt_rule *fallback;                      /* for what no rule matches; or NULL: 404, or 503 when partial */
    bool partial;                                        /* there will be more rules than it has */
    const struct rt_backends *backends;
    const struct cfg *cfg;
    struct rt_lease *lease;                              /* one per worker */
    int workers;
    uint64_t seq;                                        /* publications are numbered, for reclaiming */
    uint64_t t_event_ns, t_publish_ns;                   /* monotonic */
    _Atomic uint64_t first_request_ns;                   /* 0: none yet */
    struct rcu_item rcu;
    struct rt_snapshot *older, *newer;                   /* all that are not freed yet, control */
    bool passed;                                         /* its epoch passed: only leases keep it */
};

/* What a lookup found; all pointers live as long as the snapshot is leased. */
struct rt_match {
    const struct rt_rule *rule;
    const struct rt_backend *backend;                    /* NULL: none, answers 503 */
};

/* ---- control side ---- */

/* A change that the compiler found: a host (NULL: it goes) or a backend. The blocks belong to the list until rt_publish takes them. */
struct rt_change {
    struct str name;                                     /* of the host; borrowed until rt_publish returns */
    struct rt_host *host;
    uint32_t slot;                                       /* of the backend; RT_NO_BACKEND: this is about a host */
    struct rt_backend *backend;
};
struct rt_changes {
    struct rt_change *v;
    uint32_t n, cap;
};

/* One generation of the history: the hosts as they were before it. */
struct rt_undo {
    struct rt_host *old;                                 /* counted; NULL: there was none */
    struct str name;                                     /* in old, or in the record's text when old is NULL */
};
struct rt_record {
    struct rt_record *older, *newer;
    uint64_t generation, digest, wall_ms;
    uint64_t t_event_ns, t_publish_ns, first_request_ns; /* publish 0: never served (pinned meanwhile) */
    uint64_t compile_ns;
    uint32_t routes, hosts, backends;
    uint32_t nundo;
    struct rt_undo *undo;
    const struct rt_snapshot *snapshot;                  /* while it exists */
    struct str diff;                                     /* in words */
};

/* The place of one backend in the tables of all snapshots. */
struct rt_slot {
    struct rt_backend *latest;
    uint64_t ident;                                      /* of the backend, for digests: they do not depend on slot numbers */
    void *owner;                                         /* rc_'s */
    uint32_t refs;                                       /* by rules of all host blocks */
    uint32_t uses, pinned_uses;                          /* by rules of the newest and of the pinned table */
    uint32_t next;                                       /* in the list of free or dying slots, + 1 */
    bool dying;                                          /* refs fell to 0: rc_ is to look at it */
    bool free;
};

/* Endpoints that have left the tables in service: hashes of their addresses. */
struct rt_gone {
    uint64_t *hash;
    uint32_t n, cap;
};
struct rt_state {
    int workers;                                         /* that hold leases; set before the first publication */
    struct rt_hosts *hosts;                              /* newest */
    struct rt_hosts *pinned_hosts;                       /* while pinned */
    uint64_t pinned;                                     /* generation, 0: not pinned */
    uint64_t generation, seq;
    bool partial;                                        /* more rules are coming: see rt_snapshot */
    uint32_t history_size;
    struct map policies;                                 /* bytes of the policy -> struct rt_shared_policy */
    struct map rules;                                    /* bytes of the rules -> struct rt_rules */
    struct rt_slot *slots;
    uint32_t nslots, slots_cap;
    uint32_t free_slots, dying_slots;                    /* heads, slot + 1 */
    uint32_t nfree;
    struct rt_record *oldest, *newest;
    uint32_t nrecords;
    struct rt_snapshot *first, *last;                    /* oldest and newest snapshot that exist */
    struct rt_block *waiting;                            /* blocks out of use that a snapshot may still show */
    bool sweep;                                          /* a block or a snapshot has gone since the last look at them */
    struct rt_gone gone;                                 /* since the last rt_take_gone; they may be back by then */
    uint64_t publish_wall_ms;
};

/* ---- lm_ : limits per client ------------------------------------------------------------------------------------------------------ */

enum {
    LM_ENTRIES = 65536,                                  /* clients times routes that each table remembers */
    LM_WAYS = 8,                                         /* places among which an entry may stand */
    LM_TICKS_PER_S = 16000000,
    LM_CHECK_BITS = 12, LM_COUNT_BITS = 20,
};
/* What one client has used of one rate. The workers share it: key and state change by compare and swap alone. */
struct lm_bucket {
    _Atomic uint64_t key;                                /* 0: free */
    _Atomic uint64_t state;                              /* tick at which the bucket is full again << LM_CHECK_BITS | low bits of the key it is for */
};
/* Both tables are NULL until a rule needs them. */
struct lm {
    uint64_t seed[2];
    struct lm_bucket *buckets;
    _Atomic uint64_t *places;                            /* key >> LM_COUNT_BITS << LM_COUNT_BITS | requests under way */
};

/* ---- rc_ : route compiler ------------------------------------------------------------------------------------------------------------ */

/* A few pointers; one needs no memory of its own. */
struct rc_list {
    union {
        void *one;
        void **many;                                     /* when cap > 1 */
    };
    uint32_t n, cap;
};

/* A set of structs that begin with their key (struct str): open addressing, 8 bytes a place. */
struct rc_table {
    void **v;
    uint32_t count, mask;
};

/* What gives a host its rules. */
struct rc_host {
    struct str name;                                     /* as in struct rt_host; text behind the struct */
    struct rc_list ingresses;                            /* const struct obj_ingress, ours or not, any order */
    struct rc_list routes;                               /* const struct cfg_route, in the order of the file */
    struct rc_host *next;                                /* of the dirty ones, then of those to be freed */
    uint32_t *warned;                                    /* how many, then hashes: the warnings of the last compile */
    bool dirty, gone;
};

/* The B options of a backend, resolved. */
struct rc_settings {
    uint32_t balance, keepalive, keepalive_ms, life_ms, requests, max_fails, fail_ms, slow_ms, retry_percent;
    char hash_by[CFG_KEY_MAX + 1];                       /* NUL-terminated: the whole struct is a part of keys */
};

/* A Service by namespace/name: what depends on it. */
struct rc_service {
    struct str key;                                      /* text behind the struct */
    struct rc_list slices;                               /* const struct obj_slice */
    struct rc_backend *backends;
};

/* One backend: a Service's port or a [backend] of the file, with the settings that a rule asks for. It lives as long as a rule of any
 * kept generation points to its slot. */
struct rc_backend {
    struct str key;                                      /* name, 0, kind, settings when they are not the usual ones; text behind the struct */
    struct rc_service *service;                          /* NULL: of the file */
    struct rc_backend *next_of_service, *next_dirty;
    struct rc_host *user;                                /* a host with a rule for it: compiled again when the Service changes, for the warnings */
    struct rc_list names;                                /* struct rc_name that its endpoints come from */
    uint32_t slot;
    uint32_t warned;                                     /* hash of the last warning */
    uint16_t name_n;                                     /* its name is the beginning of key */
    uint16_t port_name_n;                                /* a port's name is the end of the name */
    uint16_t port;                                       /* 0 and no name: the first port */
    bool own_settings;                                   /* they are the end of key */
    bool dirty;
};

/* A host name that endpoints come from. */
struct rc_name {
    struct str name;                                     /* text behind the struct */
    uint32_t refs, n;
    struct net_addr *addrs;                              /* port 0 */
    struct rc *rc;
    void *watch;                                         /* the resolver's, kept by who set name_new */
    bool told;                                           /* the resolver has answered, whatever it said */
};

struct rc_rule;
/* The compiler: indexes over the objects and the file, and what is to be compiled again. */
struct rc {
    const struct cfg *cfg;
    const struct obj_store *store;                       /* NULL: none */
    struct rc_table hosts, services, backends, names;
    struct rc_host *dirty_hosts, *gone_hosts;
    struct rc_backend *dirty_backends;
    bool has_default_class, classes_changed;
    uint32_t default_metric;
    void (*warn)(void *arg, const char *text);           /* each warning once, until what it is about is mended */
    void (*name_new)(void *arg, struct rc_name *name);   /* resolve it: rc_set_addrs; NULL: names stay unresolved */
    void (*name_gone)(void *arg, struct rc_name *name);
    void *arg;
    /* while one host or backend is compiled */
    struct mem_arena scratch;
    struct rc_rule *rules;
    uint32_t nrules, rules_cap;
    struct rt_endpoint *endpoints;
    uint32_t nendpoints, endpoints_cap;
    uint32_t *hashes;                                    /* of the warnings of this host */
    uint32_t nhashes, hashes_cap;
};


/* ---- up_ : upstreams ------------------------------------------------------------------------------------------------------------- */

struct px_req;
struct up;

/* One connection to an endpoint. Idle: in its pool's list, receive armed, no request. */
struct up_conn {
    struct io_sock s;
    struct clk_timer timer;                              /* idle: upstream-keepalive-timeout */
    struct map_link link;                                /* in up_pool.idle while idle */
    struct up *up;
    struct up_pool *pool;
    struct px_req *req;                                  /* whose exchange it carries; NULL when idle or dying */
    uint64_t born_ms;
    uint32_t served;                                     /* exchanges finished */
    bool idle;
};

/* What one worker knows of one endpoint, by address: it survives every publish that keeps the endpoint. */
struct up_pool {
    struct up_pool *next;                                /* of the hash chain */
    struct net_addr addr;
    uint64_t hash;
    struct sockaddr_in6 sa;
    socklen_t sa_n;
    uint32_t idle_n, active_n;
    struct map_link idle;                                /* newest first: hot sockets are reused, the tail ages out */
    uint64_t used_ms;                                    /* last pick */
    uint64_t fail_from_ms, down_until_ms;                /* passive health: first failure of the window; out until */
    uint64_t back_ms;                                    /* end of the last time that it was out: slow-start runs from it */
    uint32_t fails;
    uint32_t ewma_us;                                    /* time to the response head, smoothed */
    bool large;                                          /* the last answer was large: see px_expects_large */
    bool gone;                                           /* in no backend any more: nothing is kept */
    uint32_t keepalive, keepalive_ms, keepalive_requests, life_ms;
    uint64_t requests, failures;
};

/* The balancing state of one backend on one worker, by identity. */
struct up_group {
    struct up_group *next;
    uint64_t hash;
    const struct rt_backend *seen;                       /* what weights and pools were computed for ... */
    uint64_t seen_generation;                            /* ... and in which snapshot; compared, never followed */
    uint64_t used_ms;
    uint32_t cursor;
    uint32_t total, step;                                /* sum of weights; stride that is coprime to it */
    bool equal;                                          /* all weights are the same */
    uint32_t n, cap;
    struct up_pool **pools;                              /* by position in the backend, filled on first use */
    const struct up_health **health;                     /* the same with active checks, else NULL */
    uint64_t health_version;                             /* of the table that health points into */
    uint32_t budget;                                     /* hundredths of a further try that may be made */
    uint64_t budget_s;                                   /* second of the last look at it */
};

/* What active checks know of one endpoint of one backend; rj.health. Control writes, workers read. */
struct up_health {
    _Atomic uint64_t key;                                /* 0: never used, UP_HEALTH_FREE: free */
    _Atomic uint64_t back_ms;                            /* when it came back from being out; 0: it never was */
    _Atomic uint32_t down;
};
enum { UP_HEALTH_PLACES = 8192, UP_HEALTH_MAX = 4096, UP_HEALTH_FREE = 1 };

enum {
    UP_FULL_PERCENT = 125, UP_FULL_MIN = 16,             /* hashing: an endpoint with more than that of its share, and so many, is full */
    UP_BUDGET_IDLE = 10, UP_BUDGET_MAX = 100,            /* tries: one a second up to the first, with requests up to the second */
};

/* What upstream-hash-by may look at. Lent. */
struct up_request {
    const struct http_msg *msg;
    const uint8_t *head;
    const struct net_addr *client;
    struct str path, host;                               /* in normal form; host is filled in by up_hash */
};

enum { UP_TABLE = 1024, UP_SWEEP_MS = 30000, UP_FORGET_MS = 120000 };
struct up {
    struct io_loop *lp;
    struct mem_pool conns;
    struct up_pool *pools[UP_TABLE];
    struct up_group *groups[UP_TABLE];
    struct clk_timer sweep;
    uint64_t random;                                     /* state of a small generator (random, ewma) */
};

/* ---- chk_ : active health checks --------------------------------------------------------------------------------------------------- */

enum { CHK_LINE = 12, CHK_REQUEST_MAX = 128 };           /* octets of a status line up to the status; of a request without path and host */

struct chk;
/* One endpoint of one backend that is checked. */
struct chk_target {
    struct io_sock s;
    struct io_outq q;
    struct clk_timer timer;                              /* the next check, or the end of this one */
    struct map_link link;                                /* in chk.targets */
    struct chk *chk;
    struct up_health *health;                            /* its place; NULL: gone, freed when the socket has closed */
    struct net_addr addr;
    struct str backend, path, host;                      /* text behind the struct */
    uint8_t *request;                                    /* the same */
    uint32_t request_n;
    uint32_t every_ms, timeout_ms, rise, fall;
    uint32_t good, bad;                                  /* results in a row */
    uint32_t round;                                      /* of the last chk_update that wanted it */
    uint32_t line_n;
    uint8_t line[CHK_LINE];
    bool open;                                           /* the socket, also while it closes */
    char address[64];
    char why[64];
};

struct chk {
    struct io_loop *loop;
    struct map_link targets;
    struct chk_target **at;                              /* by place in rj.health; NULL: nothing was ever checked */
    uint32_t n, round;
    uint64_t results[2];                                 /* good, bad */
    bool full;                                           /* the log said so for this table */
};

/* ---- mw_ : middleware -------------------------------------------------------------------------------------------------------------- */

enum mw_verdict { MW_CONTINUE, MW_ANSWER, MW_WAIT };

/* What a step sees and may set. Lent by the request for the time of the run. */
struct mw_ctx {
    const struct cfg *cfg;
    const struct http_msg *msg;
    const uint8_t *head;                                 /* what msg's offsets count from */
    const struct rt_rule *rule;                          /* never NULL: without a rule no middleware runs */
    const struct rt_backend *backend;                    /* may be NULL or empty */
    const struct net_addr *peer;
    uint64_t now_ns;                                     /* monotonic */
    struct str path;                                     /* in: normal form, as it was routed; out: what follows `prefix` upstream */
    struct str prefix;                                   /* out: begins the path that goes upstream */
    struct net_addr client;                              /* out: who is speaking, for rules, hashing and logs */
    bool trusted;                                        /* out: the peer's forwarding fields are believed */
    bool rewritten;                                      /* out: the path upstream is not the client's */
    bool named;                                          /* out: one of the peer's forwarding fields names the client */
    /* out, what a trusted peer says of the client's request; empty or 0: nothing that is well-formed */
    struct str scheme, host;
    uint16_t port;
    uint32_t hop_field, hop_at;                          /* out: behind the client's address in X-Forwarded-For; a field that is none: not there */
    uint8_t error;                                       /* out with MW_ANSWER: enum px_error */
    uint32_t retry_after_s;                              /* out with PX_LIMIT_RATE */
    const char *why;                                     /* out with MW_ANSWER: detail for the log, or NULL */
    _Atomic uint64_t *place;                             /* out: to be given back with lm_leave when the request ends; NULL: none */
};

/* The steps in the order they run, which is the precedence of the rules: name, function, what of RT_* a rule must use for it (0: always).
 * Who is not let in learns nothing else and costs others nothing; a redirect counts as a request; nothing is rewritten that is not sent.
 * (nginx answers `return`, that is a redirect, before limits, and limits before access lists.)  One line adds one. */
#define MW_STEPS(X)                                            \
    X("access",      mw_access,      RT_DENIES | RT_ALLOWS)    \
    X("rate",        mw_rate,        RT_LIMITS_RATE)           \
    X("connections", mw_connections, RT_LIMITS_CONNECTIONS)    \
    X("redirect",    mw_redirect,    RT_REDIRECTS)             \
    X("body",        mw_body,        0)                        \
    X("backend",     mw_backend,     0)                        \
    X("rewrite",     mw_rewrite,     RT_REWRITES)

/* ---- fw_ : heads as they leave ------------------------------------------------------------------------------------------------------- */

/* What the request head towards the upstream is made from. All slices are lent for the call. */
struct fw_request {
    const struct cfg *cfg;
    struct http_msg *msg;
    const uint8_t *head;
    struct str path, host;                               /* path: normal form; host: as the client sent it */
    struct str prefix;                                   /* begins the path */
    struct str forwarded_prefix;                         /* a whole field, or empty */
    const struct net_addr *client, *peer;
    struct str scheme, said_host;                        /* that the client used, as far as this proxy knows or a trusted peer says */
    uint16_t port;                                       /* the same; 0: a Unix socket */
    bool trusted, named;                                 /* see struct mw_ctx, as the next two */
    uint32_t hop_field, hop_at;
    uint64_t id[2];                                      /* random: the request id when the client sent none */
    /* out: where in the builder these stand, and slices of head (the id may lie in the builder) */
    uint32_t target_at, target_n, host_at, host_n;
    struct str agent, request_id;
};

/* What the response head towards the client is made from. */
struct fw_response {
    struct http_msg *msg;
    const uint8_t *head;
    uint8_t framing;                                     /* how the content leaves: enum http_framing */
    uint64_t length;
    uint8_t minor;                                       /* of the client */
    bool keep;                                           /* the client connection lives on */
    bool no_length;                                      /* 1xx, 204: no Content-Length whatever came */
    bool pass_length;                                    /* HEAD, 304: Content-Length as the upstream sent it */
    bool upgrade;                                        /* 101: Connection and Upgrade go through */
    bool server_field;                                   /* pass the upstream's Server */
    const struct rt_rules *rules;                        /* fields that are set and hidden; NULL: none */
};

/* One of our own answers. */
struct fw_answer {
    uint16_t status;
    bool head_only;                                      /* to HEAD: nothing behind the head */
    bool keep;
    bool server_tokens;
    uint8_t minor;                                       /* of the client */
    uint32_t retry_after_s;                              /* 0: not said */
    bool redirect;                                       /* with the Location of rules */
    const struct rt_rules *rules;                        /* NULL: none */
};

/* ---- px_ : the proxy ----------------------------------------------------------------------------------------------------------------- */

/* sorted by id. Everything that Ramjet answers or logs on its own: id, status, access-log text, help. Status 0: no answer is possible. */
#define PX_ERRORS(X)                                                                                                                     \
    X(BAD_REQUEST,       400, "bad request",            "The request is malformed or ambiguous; it never reaches an upstream as a whole")           \
    X(BODY_LIMIT,        413, "body too large",         "The request body is larger than proxy-body-size")                               \
    X(BODY_TIMEOUT,      408, "body timeout",           "No byte of the request body came for client-body-timeout")                      \
    X(CLIENT_CLOSED,     499, "client closed",          "The client went away before the answer was complete")                           \
    X(CLIENT_TIMEOUT,    499, "client timeout",         "The client took no byte of the answer for send-timeout")                        \
    X(CONNECT,           502, "connect failed",         "No endpoint could be connected")                                                \
    X(CONNECT_TIMEOUT,   504, "connect timeout",        "No endpoint could be connected within proxy-connect-timeout")                   \
    X(DENIED,            403, "denied",                 "The client's address is in denylist-source-range, or not in whitelist-source-range") \
    X(EXPECT,            417, "unknown expectation",    "An Expect field other than 100-continue")                                       \
    X(HEAD_LIMIT,        431, "head too large",         "The request head is larger than large-client-header-buffers or max-request-headers") \
    X(HEADER_TIMEOUT,    408, "header timeout",         "The request head was not complete within client-header-timeout")                \
    X(LIMIT_CONNECTIONS, 429, "too many connections",   "The client has limit-connections requests of the route under way")              \
    X(LIMIT_RATE,        429, "too many requests",      "The client is over limit-rps or limit-rpm; Retry-After says until when")        \
    X(LINE_LIMIT,        414, "request line too long",  "The request line is larger than one of large-client-header-buffers")            \
    X(MEMORY,            503, "memory limit",           "memory-limit is reached, or descriptors are short")                                            \
    X(METHOD,            405, "method not allowed",     "CONNECT and TRACE are not served")                                              \
    X(NO_ENDPOINT,       503, "no endpoint",            "The backend has no endpoint, or does not exist")                                \
    X(NO_ROUTE,          404, "no route",               "No rule matches host and path, and there is no default backend")                \
    X(NOT_READY,         503, "not ready",              "No rule matches yet: the first lists of the API server are not in")             \
    X(READ_TIMEOUT,      504, "read timeout",           "The upstream sent nothing for proxy-read-timeout")                              \
    X(REDIRECT,          301, "redirect",               "permanent-redirect or temporal-redirect; the status is that of the route")      \
    X(SEND_TIMEOUT,      504, "send timeout",           "The upstream took no byte of the request for proxy-send-timeout")               \
    X(SHUTDOWN,          503, "shutdown",               "The process ended: worker-shutdown-timeout after SIGTERM")                      \
    X(TUNNEL_TIMEOUT,    504, "tunnel timeout",         "Neither side of a tunnel sent a byte for proxy-tunnel-timeout")                 \
    X(UPSTREAM_CLOSED,   502, "upstream closed",        "The upstream closed or reset the connection before its answer was complete")    \
    X(UPSTREAM_PROTOCOL, 502, "bad upstream answer",    "The upstream's answer is malformed, too large or was not asked for")            \
    X(VERSION,           505, "version not supported",  "An HTTP version other than 1.0 and 1.1")                                        \
    X(YIELD,             503, "gave way",               "memory-limit was near, and the client was among the slowest that held memory")

enum px_error {
    PX_OK,
#define X(id, status, text, help) PX_##id,
    PX_ERRORS(X)
#undef X
    PX_ERROR_COUNT
};

struct wrk;
struct px_conn;

/* Under the codec: turns bytes of the socket into bytes of the codec and back (plain now). */
struct px_transport {
    const char *name;
    const char *scheme;                                  /* for X-Forwarded-Proto */
    bool raw;                                            /* socket bytes are codec bytes: splice may be used */
    void (*feed)(struct px_conn *c, struct mem_buf *b, uint32_t at, uint32_t n);
    void (*send)(struct px_conn *c, struct io_outq *q);
};

/* Above the transport: turns bytes into requests and responses into bytes (HTTP/1.x now). */
struct px_codec {
    const char *name;
    void (*data)(struct px_conn *c, struct mem_buf *b, uint32_t at, uint32_t n);
    bool (*finish)(struct px_conn *c, bool keep, bool aborted); /* a response is out; true when the connection serves on */
};

/* A client connection. Idle: no request, no buffer, about 200 bytes.
 *
 *   PROXY -> IDLE  [tp_proxy_feed: the header is whole]
 *   IDLE -> ACTIVE [px_h1_data: octets of a request]
 *   ACTIVE -> IDLE [px_finish: the exchange is over]
 *   IDLE -> LINGER [px_linger: none follows; our side is shut, and what still comes is read and dropped]
 *   any -> CLOSING [whoever calls io_close; px_on_client frees it at IO_CLOSED]
 *
 * Always: req != NULL in ACTIVE. */
enum px_conn_state {
    PX_CONN_PROXY,                                       /* waits for the PROXY header */
    PX_CONN_IDLE,
    PX_CONN_ACTIVE,
    PX_CONN_LINGER,
    PX_CONN_CLOSING,
};
struct px_conn {
    struct io_sock s;
    struct clk_timer timer;                              /* proxy-protocol-header-timeout, keep-alive, client-header-timeout or linger */
    struct map_link link;                                /* in px.conns */
    struct wrk *w;
    struct px_req *req;                                  /* the one exchange of an HTTP/1.x connection */
    const struct px_transport *transport;
    const struct px_codec *codec;
    struct mem_buf *proxy_in;                            /* a PROXY header that comes in pieces */
    struct net_addr peer;                                /* the other end, or the client that its PROXY header names */
    uint32_t served;
    uint16_t port;                                       /* of the listener, or the one that the PROXY header names */
    uint8_t state;                                       /* enum px_conn_state */
    bool ended;                                          /* the client has closed its sending side */
    bool reads;                                          /* it took PX_READER_BYTES of one answer */
    uint8_t next_src;                                    /* enum px_source that the next request starts with */
};

/* How bytes of one direction are fetched.
 *   STREAM -> STOPPING [too much queued, or a better way is due] -> IDLE [IO_STOPPED] -> STREAM | BIG | PUMP [queue drained] */
enum px_source { PX_SRC_IDLE, PX_SRC_STREAM, PX_SRC_STOPPING, PX_SRC_BIG, PX_SRC_PUMP };

/* One direction of an exchange: content from one socket to the other. */
struct px_flow {
    struct io_outq q;                                    /* towards the destination */
    struct mem_buf *tail;                                /* where small pieces are gathered; one reference held here */
    struct io_pump pump;
    struct h1_head *trailer;                             /* while trailers are read */
    struct mem_buf *trailer_in;
    struct h1_body body;                                 /* decoder of what comes */
    uint64_t bytes;                                      /* content so far */
    uint64_t in_ms, out_ms;                              /* last progress at the source, at the destination */
    uint64_t client_wait_ms;                             /* how long the client was waited for so far */
    uint8_t src;                                         /* enum px_source */
    bool chunked;                                        /* content leaves in the chunked coding */
    bool big;                                            /* large content: big buffers */
    bool done;                                           /* everything has come (and is queued) */
    bool broken;                                         /* the destination takes no more; what comes is dropped */
    bool shut;                                           /* tunnels: the destination was told the end */
    bool reset;                                          /* tunnels: the source ended by a reset, which is passed on behind its bytes */
};

/* The exchange:
 *
 *   WAIT_HEAD -> WAIT_UPSTREAM                    [px_on_head]
 *   any -> REFUSED                                [px_refuse: an answer of our own, while none has begun]
 *   WAIT_UPSTREAM, WAIT_RESPONSE -> WAIT_UPSTREAM [px_upstream_failed: another endpoint or connection, at once or in px_on_closing]
 *   WAIT_UPSTREAM -> WAIT_RESPONSE                [px_sent_start: connected, or a pooled connection]
 *   WAIT_RESPONSE -> RELAY                        [px_on_response_head]
 *   WAIT_RESPONSE -> TUNNEL                       [px_start_tunnel: a valid 101]
 *   RELAY, TUNNEL, REFUSED -> FINISHED            [px_finish: everything is sent]
 *   any -> FINISHED                               [px_abort, then px_finish: nothing more will be]
 *
 * Always: up != NULL in WAIT_RESPONSE; a lease is held from px_on_head until the request cannot be sent again. */
enum px_state { PX_WAIT_HEAD, PX_WAIT_UPSTREAM, PX_WAIT_RESPONSE, PX_RELAY, PX_TUNNEL, PX_REFUSED, PX_FINISHED };

struct px_req {
    struct wrk *w;
    struct px_conn *c;                                   /* NULL once the connection is gone */
    struct up_conn *up;
    struct clk_timer timer;
    uint8_t state;                                       /* enum px_state */
    uint8_t error;                                       /* enum px_error, for the log */
    bool keep;                                           /* the client connection may live on */
    bool reused;                                         /* up came from the pool */
    bool replayed;                                       /* the one replay after a failure of a reused connection is spent */
    bool replayable;                                     /* everything that was sent is in `sent` and `held` */
    bool up_closing;                                     /* the kernel may still read our buffers for a dying upstream connection */
    bool up_spoiled;                                     /* the upstream connection cannot be used again */
    bool retry_later, retry_fresh;                       /* the next try waits for the IO_CLOSED of the last one */
    uint8_t error_before;                                /* enum px_error of the try that failed */
    bool continued;                                      /* a 100 was sent to the client */
    bool upgrade;                                        /* the client asked for one */
    bool expect;                                         /* the client waits for a 100 */
    bool head_sent;                                      /* response bytes are on their way: no other answer is possible */
    bool connecting;
    bool holding;                                        /* proxy-request-buffering: the content is awaited first */
    bool aborted;                                        /* both connections go; nothing more is said */
    bool client_lost;                                    /* noted by a pump; px_settle acts */
    bool up_ended;                                       /* the upstream has closed its sending side */
    bool up_reset;                                       /* a send told that the upstream has reset */
    bool up_wrote;                                       /* a send on up has completed */
    bool by_status;                                      /* the try failed by its status: see px_next_status */
    bool response_begun;                                 /* the parser stands in a response head */
    bool server_field;                                   /* allow-backend-server-header */
    uint8_t method;
    uint8_t minor;
    uint8_t interim;                                     /* 1xx answers passed so far */
    uint16_t status;
    uint16_t tries;
    /* where it goes */
    const struct rt_snapshot *snap;                      /* leased; NULL: released */
    const struct rt_backend *backend;                    /* lent by snap */
    const struct cfg *cfg;                               /* lent by snap; NULL after the release */
    struct rt_policy policy;                             /* copies, valid without the lease, which its rules need */
    _Atomic uint64_t *place;                             /* that limit-connections counts this request in; NULL: none */
    uint32_t retry_after_s;
    uint32_t keep_alive_ms, client_body_ms, client_send_ms;
    uint64_t body_rate, send_rate;                       /* client-body-min-rate, send-min-rate */
    uint32_t metric;
    uint64_t connect_ms;                                 /* when the connect began */
    uint32_t endpoint;                                   /* position of the current one */
    uint64_t tried;                                      /* positions of endpoints that failed */
    uint64_t hash;                                       /* for backends that choose by one */
    struct net_addr client;
    /* heads */
    struct mem_buf *in;                                  /* client bytes of a head that came in pieces */
    struct mem_buf *pend;                                /* client bytes behind this request */
    uint32_t pend_at, pend_n;
    struct mem_buf *up_in;                               /* upstream bytes of a head that came in pieces */
    struct mem_buf *sent;                                /* the request as it goes upstream: head, and content while it is small */
    struct mem_buf *held;                                /* proxy-request-buffering: the whole content, framed */
    struct h1_head head;                                 /* the request's, then the response's */
    struct px_flow up_flow;                              /* request content */
    struct px_flow down_flow;                            /* response content */
    /* the log record; the slices point into sent (or text) */
    struct str log_method, log_target, log_host, log_agent, log_id;
    struct str route, backend_name;                      /* copied into names */
    uint64_t t_start_ns, t_connect_ns, t_sent_ns, t_header_ns;
    uint64_t in_bytes;
    struct net_addr upstream;
    const char *why;                                     /* detail of a refusal; static text */
    uint32_t text_n;                                     /* of text */
    uint8_t names[160];                                  /* bytes of route and backend_name */
    uint8_t text[256];                                   /* what is logged of a refused request, and of fields */
};

/* What a worker's proxy owns. */
struct px {
    struct mem_pool conns, reqs;
    struct mem_pool trailers;                            /* struct h1_head of the few requests that have a trailer section */
    struct map_link all;                                 /* every struct px_conn */
    uint64_t id_state[2];                                /* generator of request ids */
    bool leaving;                                        /* each answer is the last one of its connection */
    bool draining;                                       /* and no connection waits for another request */
    bool access_log, combined;                           /* somebody reads the access ring; its form */
    bool server_tokens;
    uint64_t proxy_log_ms;                               /* refused PROXY headers: one log line in PX_PROXY_LOG_MS */
    uint32_t proxy_unlogged;
    uint64_t yield_log_ms;                               /* clients that gave way: one log line in PX_YIELD_LOG_MS */
    uint32_t yielded;
    bool yielding;                                       /* what some of them held comes back with a completion that is still out */
    /* going up: set by px_init, so that what stands below can name what stands above */
    void (*on_upstream)(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b);
    void (*on_closing)(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b);
    void (*on_deadline)(struct px_req *r);
    void (*on_gone)(struct wrk *w);                      /* a client connection was freed */
    bool (*relieve)(struct wrk *w, const struct px_conn *spared); /* memory is short: true when there may be more now */
};

enum {
    PX_HIGH = 49152, PX_LOW = 8192,                      /* bytes queued for a slow destination: stop, go on */
    PX_COPY_MAX = 3500,                                  /* content up to this is copied behind the head, more is passed by reference */
    PX_PUMP_MIN = 65536,                                 /* content from this on is spliced: copies cost more from about here */
    PX_BIG_MIN = 16384,                                  /* content of unknown length: big buffers from here on */
    PX_PEND_MAX = 524288,                                /* pipelined bytes kept while a request runs */
    PX_FIRST_MS = 1000,                                  /* a drain waits so long for the first request of a connection */
    PX_LINGER_MS = 5000, PX_LINGER_BYTES = 16 << 20,
    PX_RATE_GRACE_MS = 5000,                             /* minimum rates: a client may be waited for so long beyond what its bytes take */
    PX_CONTINUE_MS = 1000,                               /* a client that waits for 100 gets ours after it */
    PX_INTERIM_MAX = 16,
    PX_SKIP_MAX = 65536,                                 /* a refused request's content up to this is read and dropped */
    PX_TRAILER_MAX = 8192,
    PX_READER_BYTES = 1 << 20,
    PX_PROXY_LOG_MS = 1000, PX_YIELD_LOG_MS = 1000,
    PX_TUNNEL_MS = 3600000,                              /* proxy-tunnel-timeout when nothing longer is set */
    PX_TUNNEL_GRACE_MS = 60000,                          /* and at most this once one side has ended */
};

/* ---- wrk_ : workers -------------------------------------------------------------------------------------------------------------------- */

enum {
    WRK_LISTENERS = 64, WRK_MAX = 256, WRK_PAUSE_MS = 100, WRK_BACKLOG = 4096, WRK_OFFER_MAX = 1024,
    WRK_UNSENT_MAX = 131072,                             /* bytes beyond the wire that the kernel takes for a client before it has shown that it reads */
};
enum wrk_state { WRK_STARTING, WRK_RUNNING, WRK_DRAINING, WRK_ENDED };

/* A message: run is called on the thread that owns the box. */
struct wrk_msg {
    struct wrk_msg *next;
    void (*run)(struct wrk_msg *m);
};
/* A mailbox of one thread: anybody pushes, the owner's loop takes all. */
struct wrk_box {
    struct wrk_msg *_Atomic inbox;                       /* newest first; release by senders, acquired by the owner */
    struct io_loop *loop;
    struct io_sock wake;
    int own_fd;                                          /* read by the owner once the box is open */
    int wake_fd;                                         /* written by senders */
};
/* An accepted connection on its way to a less loaded worker. */
struct wrk_given {
    struct wrk_msg msg;
    struct wrk *to;
    int fd;
    uint16_t port;
    struct net_addr peer;
};
/* A question to all workers, see wrk_ask. */
struct wrk_question {
    struct wrk_msg done;                                 /* to the control thread */
    void (*on_worker)(struct wrk *w, void *arg);
    void (*on_done)(void *arg);
    void *arg;
    _Atomic int left;                                    /* workers that have not answered */
    struct wrk_asked {
        struct wrk_msg msg;
        struct wrk *w;
        struct wrk_question *q;
    } asked[];
};

/* Listening sockets that a process leaves to the one that follows it (SIGUSR2). Control thread. */
struct wrk_offer {
    int n;
    int fd[WRK_OFFER_MAX];
    bool taken[WRK_OFFER_MAX];
};

struct wrk_listener {
    struct io_sock s;
    struct wrk *w;
    uint16_t port;                                       /* 0 for a Unix socket */
    bool paused;
    bool late;                                           /* accepts nothing yet: see wrk_start_late */
    bool shared;                                         /* the process before has the socket too */
    bool inherited;                                      /* while draining: the next process has the socket too */
};

struct wrk {
    struct rj_thread thread;                             /* first: rj.threads points here */
    struct io_loop loop;
    struct up up;
    struct px px;
    pthread_t id;
    struct wrk_listener listener[WRK_LISTENERS];
    uint32_t listeners;
    struct clk_timer retry;                              /* opens paused listeners again */
    struct clk_timer delay;                              /* before a drain: connections are still taken */
    struct clk_timer deadline;                           /* of a drain: what is left is cut */
    struct wrk_box box;
    struct wrk_msg drain_msg, stop_msg;
    uint32_t delay_ms, drain_ms;                         /* written before drain_msg is posted, as handed_over */
    bool handed_over[WRK_LISTENERS];                     /* the next process has taken that listening socket */
    uint32_t listening;                                  /* of a drain: listeners that are still open */
    bool draining;
    _Atomic uint32_t conns;                              /* client connections, also those on their way to it */
    _Atomic uint32_t state;                              /* enum wrk_state; release by the worker, acquired by control */
    const struct io_ops *ops;
    size_t memory_limit;
    uint32_t max_conns;
    int listen_fd[WRK_LISTENERS];                        /* opened by control, taken in by the worker */
    int start_error;
    uint64_t short_ms;                                   /* when the log last said that descriptors are short */
    uint64_t tidied_ms;                                  /* when pools were trimmed last */
    size_t seen_mapped;                                  /* last value told to the gauge */
};
/* ---- ctl_ : control loop ------------------------------------------------------------------------------------------------------------- */

enum {
    CTL_LOG_MIN_MS = 4, CTL_LOG_MAX_MS = 200,            /* between two looks at the log rings: busy, idle */
    CTL_REWATCH_MS = 1000,                               /* a watched folder that went away is looked for again */
    CTL_NAMES_MS = 5000,                                 /* names of endpoints hold readiness back no longer than this */
    CTL_PATH_MAX = 4096,
    CTL_SUCCESSOR_MS = 60000,                            /* a new process has to be ready within it */
    CTL_HANDED_IDLE_MS = 2000,                           /* behind a hand-over idle connections live on for this: who uses them is told to close */
    CTL_DEAR_NS = 1000000,
};

/* Descriptors for a process that takes over, as numbers: where to say that it is ready, then the listening sockets. */
#define CTL_SUCCESSOR_ENV "RJ_LISTENING"

/* What the control loop starts from. */
struct ctl_options {
    const struct cfg *cfg;                               /* ctl_open takes a reference */
    const struct cfg_input *input;                       /* what cfg was loaded from, for reloads; stays with the caller; NULL: no reloads */
    int workers;                                         /* that will run */
    bool signals;                                        /* take SIGHUP, SIGINT, SIGTERM, SIGUSR1, which the caller has blocked */
    bool quiet;                                          /* stdout is not for the access log, whatever the option says */
};

/* A folder that holds (a link to) the file. */
struct ctl_watch {
    int wd;                                              /* -1: not watched */
    char dir[CTL_PATH_MAX];
};

struct ctl {
    struct rj_thread thread;                             /* rj_me of this thread */
    struct io_loop loop;
    const struct cfg *first;                             /* of the start: what takes effect there is read from it */
    const struct cfg *cfg;                               /* newest that was good */
    const struct cfg_input *input;
    struct obj_store store;
    struct rc rc;
    struct rt_changes changes;
    struct chk chk;
    uint64_t checked;                                    /* rt.seq that chk has followed */
    struct dns dns;
    struct k8s k8s;
    struct kc_config k8s_cfg;
    bool opened;                                         /* loop and mailbox */
    bool cluster;                                        /* k8s is running */
    bool synced;                                         /* every first list is in; file mode: true */
    bool ready;                                          /* latched: the first table is served */
    bool stopping, drained;
    uint64_t t_event_ns;                                 /* of the first change that is not published yet; 0: none */
    uint64_t compiles;
    uint64_t compiled_ms;                                /* when the last compile was that published something or was dear: the interval runs from
                                                            it, so that a service made just before its Ingress does not hold that back */
    uint64_t started_ms, warned_ms;
    /* the file */
    uint64_t file_hash;
    uint32_t file_errors;                                /* of the last version; 0: good */
    struct io_sock inotify;
    struct ctl_watch watch[2];                           /* of the file's folder, and of the folder that a link leads to */
    uint64_t read_again_ms;                              /* not before */
    uint64_t unreadable_ms;                              /* since when it cannot be read; 0: it can */
    bool unreadable_told;
    struct clk_timer rewatch;
    /* signals and logs */
    struct io_sock signals;
    int access_fd;                                       /* -1: none */
    bool access_own;                                     /* opened here */
    uint32_t log_wait_ms;
    uint64_t access_failed_ms;
    uint64_t drain_until_ms;
    /* a hand-over */
    pid_t successor;                                     /* the new process; 0: none */
    struct io_sock successor_word;                       /* what it says */
    struct clk_timer successor_timer;
    struct io_sock predecessor;                          /* ends when the process before accepts no more */
    void (*on_taking_over)(void *arg), (*on_handed_over)(void *arg); /* set by cli_ */
    void *hand_over_arg;
    bool handed_over;
};


/* ---- adm_ : admin listener -------------------------------------------------------------------------------------------------------- */

enum { ADM_CONNS_MAX = 64, ADM_LISTENERS_MAX = 4, ADM_HEAD_MAX = 8192, ADM_BODY_MAX = 4096, ADM_TIMEOUT_MS = 15000, ADM_IDLE_MS = 60000,
       ADM_LINGER_MS = 2000 };

struct adm_conn;
struct adm_listener {
    struct io_sock sock;
    struct adm *adm;
};
/* The admin listener on the control thread's loop; with an answer of its own, a small HTTP server for something else. */
struct adm {
    struct io_loop *loop;
    void (*answer)(struct adm_conn *c);                  /* NULL: the admin paths */
    const char *name;
    uint32_t conns_max;
    struct adm_listener listener[ADM_LISTENERS_MAX];
    uint32_t nlisteners;
    struct map_link conns;                               /* struct adm_conn */
    uint32_t nconns;
    struct str token_file;                               /* admin-token-file; empty: writes are refused */
    uint64_t start_wall_ms;
    bool closing;
};

/* ---- cli_ : commands ---------------------------------------------------------------------------------------------------------------- */

/* sorted by name
 *  id         name         arguments         one-line help                                                                     */
#define CLI_COMMANDS(X)                                                                                                            \
    X(CHECK,     "check",     "[FILE...]",      "Validate an INI file or Kubernetes manifests (YAML, JSON): route table, warnings")  \
    X(DEMO,      "demo",      "[--OPTION ...]", "Serve an example: two built-in upstreams, a route table, curl lines to try")        \
    X(REFERENCE, "reference", "TABLE",          "Print a table as Markdown: options, metrics and others")                            \
    X(RUN,       "run",       "[--OPTION ...]", "Serve from --config FILE, or as the ingress controller of a cluster (the default)") \
    X(VERSION,   "version",   "[--licenses]",   "Print the version; with --licenses the licence texts")

/* sorted by name
 *  name         function              one-line help: what `ramjet reference NAME` prints                                          */
#define CLI_TABLES(X)                                                                                                              \
    X("errors",     cli_render_errors,      "answers that Ramjet gives on its own, and the reasons in the access log")             \
    X("forwarding", http_render_forwarding, "fields about the client, and what becomes of them")                                   \
    X("metrics",    cli_render_metrics,     "what /metrics exports")                                                               \
    X("options",    cfg_render_reference,   "every setting")

enum cli_command {
#define X(id, name, arguments, help) CLI_##id,
    CLI_COMMANDS(X)
#undef X
    CLI_COMMAND_COUNT
};
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };    /* exit status */

/* ---- the root ---------------------------------------------------------------------------------------------------------------- */

/* The one mutable file-scope variable. Filled by cli_, then read-only but where a field says otherwise. */
struct rj {
    _Atomic uint32_t instances;                          /* of the public interface: 0 or 1 */
    enum log_level log_level;
    const char *engine;                                  /* name of the engine that was chosen; NULL: none yet */
    struct rj_thread **threads;                          /* the workers, then nothing else; set before the first one starts */
    int thread_count;
    struct wrk_box control_box;                          /* messages to the control thread */
    char *const *argv;                                   /* of the process, for the one that follows it; NULL: none can follow */
    struct wrk_offer inherited;                          /* control, at the start: what the process before left */
    struct wrk_offer offer;                              /* control: what this one leaves */
    _Atomic uint32_t handed_left;                        /* listening sockets of the next process that workers still use */
    int fd_limit;                                        /* descriptors from here on are a reserve: no more clients are taken */
    int fd_max;                                          /* and these are not for workers at all, but for the admin listener, files, the API server */
    int tell_fd;                                         /* control: to the process before, which waits for our word; 0: there is none */
    _Atomic uint64_t epoch;                              /* starts at 1; control increments, workers read */
    struct mtr_names route_names;                        /* control */
    struct rcu_item *rcu_head, *rcu_tail;                /* control */
    struct rt_snapshot *_Atomic rt_live;                 /* released by rt_publish, acquired by rt_live */
    struct rt_state rt;                                  /* control */
    struct lm lm;                                        /* tables: control, before it publishes a rule that needs them; entries: workers */
    struct ctl *ctl;                                     /* control; NULL: no control loop */
    struct up_health health[UP_HEALTH_PLACES];           /* control writes, workers read */
    _Atomic uint64_t health_version;                     /* the places have changed hands; released by control, acquired by workers */
    uint32_t health_n;                                   /* control: places in use */
};
/* The text of LICENSE, which a static binary has to carry; a test compares the two. */
#define RJ_LICENSE_TEXT \
    "MIT License\n" \
    "\n" \
    "Copyright (c) 2026 Ramjet authors\n" \
    "\n" \
    "Permission is hereby granted, free of charge, to any person obtaining a copy\n" \
    "of this software and associated documentation files (the \"Software\"), to deal\n" \
    "in the Software without restriction, including without limitation the rights\n" \
    "to use, copy, modify, merge, publish, distribute, sublicense, and/or sell\n" \
    "copies of the Software, and to permit persons to whom the Software is\n" \
    "furnished to do so, subject to the following conditions:\n" \
    "\n" \
    "The above copyright notice and this permission notice shall be included in all\n" \
    "copies or substantial portions of the Software.\n" \
    "\n" \
    "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR\n" \
    "IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,\n" \
    "FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE\n" \
    "AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER\n" \
    "LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,\n" \
    "OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE\n" \
    "SOFTWARE.\n" \
    "\n" \
    "------------------------------------------------------------------------------\n" \
    "The static binary of Ramjet contains code of the following projects, whose\n" \
    "notices it carries.\n" \
    "\n" \
    "------------------------------------------------------------------------------\n" \
    "BearSSL (https://bearssl.org)\n" \
    "\n" \
    "Copyright (c) 2016-2018 Thomas Pornin <pornin@bolet.org>\n" \
    "\n" \
    "Permission is hereby granted, free of charge, to any person obtaining\n" \
    "a copy of this software and associated documentation files (the\n" \
    "\"Software\"), to deal in the Software without restriction, including\n" \
    "without limitation the rights to use, copy, modify, merge, publish,\n" \
    "distribute, sublicense, and/or sell copies of the Software, and to\n" \
    "permit persons to whom the Software is furnished to do so, subject to\n" \
    "the following conditions:\n" \
    "\n" \
    "The above copyright notice and this permission notice shall be\n" \
    "included in all copies or substantial portions of the Software.\n" \
    "\n" \
    "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND,\n" \
    "EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF\n" \
    "MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND\n" \
    "NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS\n" \
    "BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN\n" \
    "ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN\n" \
    "CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE\n" \
    "SOFTWARE.\n" \
    "\n" \
    "------------------------------------------------------------------------------\n" \
    "inih (https://github.com/benhoyt/inih)\n" \
    "\n" \
    "Copyright (c) 2009-2022 Ben Hoyt <bhoyt@jetsetter.com>\n" \
    "All rights reserved.\n" \
    "\n" \
    "Redistribution and use in source and binary forms, with or without\n" \
    "modification, are permitted provided that the following conditions\n" \
    "are met:\n" \
    "1. Redistributions of source code must retain the above copyright\n" \
    "   notice, this list of conditions and the following disclaimer.\n" \
    "2. Redistributions in binary form must reproduce the above copyright\n" \
    "   notice, this list of conditions and the following disclaimer in the\n" \
    "   documentation and/or other materials provided with the distribution.\n" \
    "3. Neither the name of the University nor the names of its contributors\n" \
    "   may be used to endorse or promote products derived from this software\n" \
    "   without specific prior written permission.\n" \
    "\n" \
    "THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS\n" \
    "``AS IS'' AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT\n" \
    "LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR\n" \
    "A PARTICULAR PURPOSE ARE DISCLAIMED.  IN NO EVENT SHALL THE HOLDERS OR\n" \
    "CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL,\n" \
    "EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO,\n" \
    "PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR\n" \
    "PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF\n" \
    "LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING\n" \
    "NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS\n" \
    "SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.\n" \
    "\n" \
    "------------------------------------------------------------------------------\n" \
    "musl (https://musl.libc.org)\n" \
    "\n" \
    "Copyright (c) 2005-2020 Rich Felker, et al.\n" \
    "Portions copyright (c) 2011-2012 Nicholas J. Kain\n" \
    "Portions copyright (c) 2011 Valentin Ochs\n" \
    "Portions copyright (c) 2012-2018 Arm Limited\n" \
    "\n" \
    "Permission is hereby granted, free of charge, to any person obtaining a\n" \
    "copy of this software and associated documentation files (the \"Software\"),\n" \
    "to deal in the Software without restriction, including without limitation\n" \
    "the rights to use, copy, modify, merge, publish, distribute, sublicense,\n" \
    "and/or sell copies of the Software, and to permit persons to whom the\n" \
    "Software is furnished to do so, subject to the following conditions:\n" \
    "\n" \
    "The above copyright notice and this permission notice shall be included\n" \
    "in all copies or substantial portions of the Software.\n" \
    "\n" \
    "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS\n" \
    "OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF\n" \
    "MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT.\n" \
    "IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY\n" \
    "CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT,\n" \
    "TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE\n" \
    "SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.\n"

/* ---- The public interface: Ramjet inside another program ----------------------------------------------------------------------------
 * Copy ramjet.c and ramjet.h next to the program, compile ramjet.c with -DRAMJET_NO_MAIN and link BearSSL and inih. One instance per
 * process; its threads block all signals and never touch the program's handlers.
 *
 * ini_text is what `ramjet --config FILE` reads. Each returns 0, or -1 with every error in err (NUL-terminated, cut to err_size).
 * ramjet_start returns once the listeners answer. ramjet_reload takes the routes and backends of the new text and keeps the old ones
 * when there is an error in it; settings that need a restart keep their values. ramjet_stop drains, ends the threads and frees all. */
struct ramjet;
int ramjet_start(struct ramjet **out, const char *ini_text, char *err, size_t err_size);
int ramjet_reload(struct ramjet *instance, const char *ini_text, char *err, size_t err_size);
void ramjet_stop(struct ramjet *instance);
#endif
