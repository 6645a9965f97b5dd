/* Ramjet: ingress controller and edge proxy. ramjet.h has the map; this file has the verbs. */
#include "ramjet.h"

/* Contents, bottom to top: a function calls only what stands above it.
 *
 *   sys_   Raw system calls
 *   mem_   Arenas, pools, buffers
 *   str_   Byte slices, builders, numbers
 *   map_   Hash map, intrusive list
 *   clk_   Cached now, timer wheel
 *   log_   Log ring per thread, errors with context
 *   mtr_   Counters, gauges, histograms per thread
 *   rcu_   Epochs, retire list
 *   io_    The I/O interface
 *   ep_    epoll backend
 *   ur_    io_uring backend
 *   dns_   Stub resolver
 *   json_  JSON pull reader
 *   yml_   YAML subset for manifests and kubeconfig
 *   http_  Version-free HTTP
 *   h1_    HTTP/1.x
 *   pp_    PROXY protocol
 *   cry_   Random, PEM, keys and certificates
 *   tls_   TLS engines
 *   cfg_   Settings
 *   obj_   Kubernetes objects, projected
 *   kc_    How to reach an API server
 *   k8s_   Kubernetes list and watch
 *   rt_    Route table
 *   lm_    Limits per client
 *   rc_    Route compiler
 *   up_    Endpoint state, pickers, pools
 *   chk_   Active health checks
 *   mw_    Middleware
 *   fw_    Heads as they leave
 *   fl_    Flows: one direction of an exchange
 *   al_    Access log and metrics of a request
 *   tp_    Transports
 *   px_    Client connection, request, tunnel
 *   sh_    Who gives way when memory is short
 *   wrk_   Worker threads, listeners, drain
 *   ctl_   Control loop
 *   adm_   Admin listener
 *   cli_   Commands, main, the public interface
 */

static struct rj rj;                                     /* the root: see struct rj */
static _Thread_local struct rj_thread *rj_me;            /* the calling thread: a worker or the control thread */

/* ============================================================================
 * sys_ : Raw system calls
 *
 * Owns:    nothing; the kernel ABI structs it uses are in ramjet.h.
 * Calls:   none
 * Threads: any.
 * Rules:   1. Returns >= 0 or -errno, never touches errno.
 *          2. No state and no libc wrapper; EINTR is the caller's business.
 * ========================================================================== */

#if defined(__clang_analyzer__)
/* The analyzer reads no assembler: through a call of libc it sees that the kernel may write where a pointer leads. */
static inline long sys_call6(long nr, long a, long b, long c, long d, long e, long f) { return syscall(nr, a, b, c, d, e, f); }
#elif defined(__x86_64__)
static inline long sys_call6(long nr, long a, long b, long c, long d, long e, long f)
{
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;

    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return ret;
}
#elif defined(__aarch64__)
static inline long sys_call6(long nr, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
    return x0;
}
#else
#error "Ramjet runs on x86_64 and aarch64"
#endif

/* Test seam: when set, asked before each system call of this thread; what it returns but 0 is the result, and the kernel hears nothing. */
#ifdef RJ_FAULTS
static _Thread_local long (*sys_refuse)(long nr); /* allow global: the tests refuse calls per thread */
#define SYS_REFUSED(nr) (sys_refuse ? sys_refuse(nr) : 0)
#else
#define SYS_REFUSED(nr) 0
#endif

static inline long sys_call(long nr, long a, long b, long c, long d, long e, long f)
{
    long refused = SYS_REFUSED(nr);

    return refused ? refused : sys_call6(nr, a, b, c, d, e, f);
}

#define SYS_CALL(nr, ...) SYS_CALL_PICK(__VA_ARGS__, SYS_CALL6, SYS_CALL5, SYS_CALL4, SYS_CALL3, SYS_CALL2, SYS_CALL1)(nr, __VA_ARGS__)
#define SYS_CALL_PICK(a, b, c, d, e, f, name, ...) name
#define SYS_CALL1(nr, a) sys_call(nr, (long)(a), 0, 0, 0, 0, 0)
#define SYS_CALL2(nr, a, b) sys_call(nr, (long)(a), (long)(b), 0, 0, 0, 0)
#define SYS_CALL3(nr, a, b, c) sys_call(nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define SYS_CALL4(nr, a, b, c, d) sys_call(nr, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define SYS_CALL5(nr, a, b, c, d, e) sys_call(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define SYS_CALL6(nr, a, b, c, d, e, f) sys_call(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static inline long sys_read(int fd, void *p, size_t n) { return SYS_CALL(SYS_read, fd, p, n); }
static inline long sys_write(int fd, const void *p, size_t n) { return SYS_CALL(SYS_write, fd, p, n); }
static inline int sys_close(int fd) { return (int)SYS_CALL(SYS_close, fd); }
static inline int sys_open(const char *path, int flags, int mode) { return (int)SYS_CALL(SYS_openat, AT_FDCWD, path, flags, mode); }
static inline long sys_recv(int fd, void *p, size_t n, int flags) { return SYS_CALL(SYS_recvfrom, fd, p, n, flags, 0, 0); }
static inline long sys_send(int fd, const void *p, size_t n, int flags) { return SYS_CALL(SYS_sendto, fd, p, n, flags, 0, 0); }
static inline long sys_sendmsg(int fd, const struct msghdr *m, int flags) { return SYS_CALL(SYS_sendmsg, fd, m, flags); }
static inline int sys_socket(int family, int type, int proto) { return (int)SYS_CALL(SYS_socket, family, type, proto); }
static inline int sys_connect(int fd, const void *sa, socklen_t n) { return (int)SYS_CALL(SYS_connect, fd, sa, n); }
static inline int sys_bind(int fd, const void *sa, socklen_t n) { return (int)SYS_CALL(SYS_bind, fd, sa, n); }
static inline int sys_listen(int fd, int backlog) { return (int)SYS_CALL(SYS_listen, fd, backlog); }
static inline int sys_accept(int fd, void *sa, socklen_t *n, int flags) { return (int)SYS_CALL(SYS_accept4, fd, sa, n, flags); }
static inline int sys_unsent(int fd, int *n) { return (int)SYS_CALL(SYS_ioctl, fd, SYS_SIOCOUTQ, n); }
static inline int sys_shutdown(int fd, int how) { return (int)SYS_CALL(SYS_shutdown, fd, how); }
static inline int sys_getsockname(int fd, void *sa, socklen_t *n) { return (int)SYS_CALL(SYS_getsockname, fd, sa, n); }
static inline int sys_getpeername(int fd, void *sa, socklen_t *n) { return (int)SYS_CALL(SYS_getpeername, fd, sa, n); }
static inline int sys_socketpair(int family, int type, int proto, int fd[2]) { return (int)SYS_CALL(SYS_socketpair, family, type, proto, fd); }
static inline int sys_pipe(int fd[2], int flags) { return (int)SYS_CALL(SYS_pipe2, fd, flags); }
static inline int sys_fcntl(int fd, int cmd, long arg) { return (int)SYS_CALL(SYS_fcntl, fd, cmd, arg); }
static inline int sys_epoll_create(void) { return (int)SYS_CALL(SYS_epoll_create1, O_CLOEXEC); }
static inline int sys_inotify_init(void) { return (int)SYS_CALL(SYS_inotify_init1, O_NONBLOCK | O_CLOEXEC); }
static inline int sys_inotify_add(int fd, const char *path, uint32_t mask) { return (int)SYS_CALL(SYS_inotify_add_watch, fd, path, mask); }
static inline long sys_getrandom(void *p, size_t n) { return SYS_CALL(SYS_getrandom, p, n, 0); }
static inline int sys_unlink(const char *path) { return (int)SYS_CALL(SYS_unlinkat, AT_FDCWD, path, 0); }

static inline int sys_setsockopt(int fd, int level, int name, int value)
{
    return (int)SYS_CALL(SYS_setsockopt, fd, level, name, &value, sizeof value);
}

static inline int sys_getsockopt(int fd, int level, int name)
{
    int value = 0;
    socklen_t n = sizeof value;
    int rc = (int)SYS_CALL(SYS_getsockopt, fd, level, name, &value, &n);

    return rc < 0 ? rc : value;
}

static inline int sys_epoll_ctl(int ep, int op, int fd, struct sys_epoll_event *ev) { return (int)SYS_CALL(SYS_epoll_ctl, ep, op, fd, ev); }

static inline int sys_epoll_wait(int ep, struct sys_epoll_event *ev, int max, int timeout_ms)
{
    return (int)SYS_CALL(SYS_epoll_pwait, ep, ev, max, timeout_ms, 0, 8);
}

/* Moves up to n bytes between a socket and a pipe without copying. Blocks on a socket without O_NONBLOCK. */
static inline long sys_splice(int in, int out, size_t n)
{
    return SYS_CALL(SYS_splice, in, 0, out, 0, n, SYS_SPLICE_MOVE | SYS_SPLICE_NONBLOCK);
}

static inline int sys_uring_setup(uint32_t entries, struct sys_uring_params *p) { return (int)SYS_CALL(SYS_URING_SETUP, entries, p); }

static inline int sys_uring_enter(int fd, uint32_t submit, uint32_t wait, uint32_t flags, const void *arg, size_t n)
{
#ifdef RJ_VALGRIND /* which lets no other thread run during this call: so it does not wait, and poll does */
    if (wait) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};

        (void)SYS_CALL(SYS_URING_ENTER, fd, submit, 0, flags, arg, n);
        (void)SYS_CALL(SYS_ppoll, &ready, 1, (const void *)(uintptr_t)((const struct sys_uring_getevents *)arg)->ts, 0, 8);
        submit = wait = 0;
    }
#endif
    return (int)SYS_CALL(SYS_URING_ENTER, fd, submit, wait, flags, arg, n);
}

static inline int sys_uring_register(int fd, uint32_t op, const void *arg, uint32_t n)
{
    return (int)SYS_CALL(SYS_URING_REGISTER, fd, op, arg, n);
}

/* Maps n zeroed bytes; NULL when the kernel refuses. By libc's calls, which sanitizers see: to them a range that one thread unmaps and another maps
 * is new memory. */
static inline void *sys_map(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static inline void sys_unmap(void *p, size_t n) { munmap(p, n); }

/* Wall clock and monotonic time in nanoseconds (the vDSO, so no system call). */
static uint64_t sys_clock_ns(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A broken invariant: one line that says what and where, then the process ends. */
__attribute__((noreturn, cold)) static void rj_die(const char *what)
{
    char line[512];
    int n = snprintf(line, sizeof line, "ramjet %s: internal error: %s\n", RJ_VERSION, what);

    sys_write(2, line, (size_t)(n < (int)sizeof line ? n : (int)sizeof line - 1));
    abort();
}

#ifdef RJ_FORTIFY_SHIM
/* Debian builds libbearssl and libinih for glibc with fortify; musl has none of these. Each aborts when it would overflow. */
void *__memcpy_chk(void *d, const void *s, size_t n, size_t cap);
void *__memcpy_chk(void *d, const void *s, size_t n, size_t cap) { RJ_BUG_ON(n > cap); return memcpy(d, s, n); }
void *__memmove_chk(void *d, const void *s, size_t n, size_t cap);
void *__memmove_chk(void *d, const void *s, size_t n, size_t cap) { RJ_BUG_ON(n > cap); return memmove(d, s, n); }
void *__memset_chk(void *d, int c, size_t n, size_t cap);
void *__memset_chk(void *d, int c, size_t n, size_t cap) { RJ_BUG_ON(n > cap); return memset(d, c, n); }
#undef fopen64 /* a macro in older headers */
FILE *fopen64(const char *path, const char *mode);
FILE *fopen64(const char *path, const char *mode) { return (fopen)(path, mode); }
#endif

/* ============================================================================
 * mem_ : Arenas, pools, buffers
 *
 * Owns:    struct mem_arena, struct mem_pool, struct mem_buf.
 * Calls:   sys_
 * Threads: an arena, a pool and its buffers belong to one thread; mem_alloc any.
 * Rules:   1. An arena frees all at once; nothing in it is freed alone.
 *          2. A pool gives empty slabs back to the kernel when it is trimmed, or when it has too many.
 *          3. A buffer has one writer and counted readers; the last put returns it.
 * ========================================================================== */

struct mem_slab {
    struct mem_slab *next, *prev;                        /* in pool->partial, when on_list */
    void *free;                                          /* singly linked through the first word */
    uint32_t used, total, fresh;                         /* objects handed out; that exist; never handed out yet */
    bool on_list;
};

/* Test seam: when not 0, the mem_fail_at-th allocation from now fails, and mem_fail_more behind it. */
#ifdef RJ_FAULTS
static _Thread_local long mem_fail_at, mem_fail_more; /* allow global: the tests count allocations down per thread */
#define MEM_FAULT() (mem_fail_at > 1 ? (mem_fail_at--, false) : mem_fail_at == 1 && (mem_fail_more > 0 ? mem_fail_more-- : (mem_fail_at = 0), true))
#else
#define MEM_FAULT() false
#endif

/* n bytes, not zeroed, or NULL. */
static void *mem_alloc(size_t n) { return MEM_FAULT() ? NULL : malloc(n); }
static void *mem_realloc(void *p, size_t n) { return MEM_FAULT() ? NULL : realloc(p, n); }
static void mem_free(void *p) { free(p); }

/* Much was freed: what the C library keeps for later goes back to the kernel. musl's does so by itself. */
static void mem_give_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* n zeroed bytes for the control path, where there is nothing left to do without memory. */
static void *mem_need(size_t n)
{
    void *p = calloc(1, n ? n : 1);

    RJ_BUG_ON(!p);
    return p;
}

/* n bytes aligned to 16 from the arena, not zeroed; ends the process when memory is gone (control path only). */
static void *mem_arena_alloc(struct mem_arena *a, size_t n)
{
    uint8_t *p;

    RJ_BUG_ON(n > SIZE_MAX / 2);
    n = (n + 15) & ~(size_t)15;
    if (n > (size_t)(a->end - a->at)) {
        size_t size = a->total < 4096 ? 1024 : a->total < 262144 ? a->total / 2 : 131072;
        struct mem_chunk *c;

        if (size < n) size = n;
        c = malloc(sizeof *c + size);
        RJ_BUG_ON(!c);
        c->next = a->chunks;
        c->size = size;
        a->chunks = c;
        a->at = (uint8_t *)(c + 1);
        a->end = a->at + size;
        a->total += size;
    }
    p = a->at;
    a->at += n;
    return p;
}

static void *mem_arena_zero(struct mem_arena *a, size_t n) { return memset(mem_arena_alloc(a, n), 0, n); }

static void mem_arena_free(struct mem_arena *a)
{
    struct mem_chunk *c = a->chunks;

    while (c) {
        struct mem_chunk *next = c->next;

        free(c);
        c = next;
    }
    *a = (struct mem_arena){0};
}

/* Prepares a pool of objects of size bytes; *mapped counts the bytes of all pools that share the ceiling. */
static void mem_pool_init(struct mem_pool *pool, uint32_t size, uint32_t slab_bytes, size_t *mapped, size_t limit)
{
    *pool = (struct mem_pool){.size = (size + 15) & ~15u, .slab_bytes = slab_bytes, .mapped = mapped, .limit = limit};
    RJ_BUG_ON(slab_bytes & (slab_bytes - 1) || pool->size + sizeof(struct mem_slab) + 16 > slab_bytes);
}

static void mem_slab_link(struct mem_pool *pool, struct mem_slab *s)
{
    s->prev = NULL;
    s->next = pool->partial;
    if (s->next) s->next->prev = s;
    pool->partial = s;
    s->on_list = true;
}

static void mem_slab_unlink(struct mem_pool *pool, struct mem_slab *s)
{
    if (s->prev) s->prev->next = s->next;
    else pool->partial = s->next;
    if (s->next) s->next->prev = s->prev;
    s->on_list = false;
}

/* Maps a slab aligned to its own size: maps twice as much and trims. */
static struct mem_slab *mem_slab_new(struct mem_pool *pool)
{
    size_t n = pool->slab_bytes;
    uintptr_t raw, p;
    struct mem_slab *s;

    if (pool->limit && *pool->mapped + n > pool->limit) return NULL;
    raw = (uintptr_t)sys_map(2 * n);
    if (!raw) return NULL;
    p = (raw + n - 1) & ~(uintptr_t)(n - 1);
    if (p > raw) sys_unmap((void *)raw, p - raw);
    if (raw + 2 * n > p + n) sys_unmap((void *)(p + n), raw + 2 * n - (p + n));
    s = (struct mem_slab *)p;
    s->total = (uint32_t)((n - ((sizeof *s + 15) & ~15u)) / pool->size);
    *pool->mapped += n;
    mem_slab_link(pool, s);
    return s;
}

static void mem_slab_free(struct mem_pool *pool, struct mem_slab *s)
{
    *pool->mapped -= pool->slab_bytes;
    sys_unmap(s, pool->slab_bytes);
}

/* A slab with a free object: an empty one that was kept, or a new one. */
static struct mem_slab *mem_slab_next(struct mem_pool *pool)
{
    struct mem_slab *s = pool->empty;

    if (!s) return mem_slab_new(pool);
    pool->empty = s->next;
    pool->empty_n--;
    mem_slab_link(pool, s);
    return s;
}

/* One object, not zeroed, or NULL at the ceiling. */
static void *mem_pool_get(struct mem_pool *pool)
{
    struct mem_slab *s = pool->partial;
    void *p;

    if (MEM_FAULT()) return NULL; /* any of them may be the one that needs a slab */
    if (RJ_UNLIKELY(!s) && !(s = mem_slab_next(pool))) return NULL;
    if (s->free) {
        p = s->free;
        s->free = *(void **)p;
    } else {
        p = (uint8_t *)s + ((sizeof *s + 15) & ~15u) + (size_t)s->fresh++ * pool->size;
    }
    if (++s->used == s->total) mem_slab_unlink(pool, s);
    pool->used++;
#ifdef RJ_DEBUG
    ((uint64_t *)p)[1] = 0;
#endif
    return p;
}

static void mem_pool_put(struct mem_pool *pool, void *p)
{
    struct mem_slab *s = (struct mem_slab *)((uintptr_t)p & ~(uintptr_t)(pool->slab_bytes - 1));

    RJ_CHECK(s->used > 0);
#ifdef RJ_DEBUG
    RJ_CHECK(((uint64_t *)p)[1] != MEM_DEAD); /* put twice */
    ((uint64_t *)p)[1] = MEM_DEAD;
#endif
    *(void **)p = s->free;
    s->free = p;
    pool->used--;
    if (!s->on_list) mem_slab_link(pool, s);
    if (--s->used) return;
    mem_slab_unlink(pool, s);
    if ((pool->empty_n + 1) * (size_t)pool->slab_bytes > MEM_EMPTY_BYTES || (pool->limit && *pool->mapped > pool->limit / 2)) { /* the ceiling is shared */
        mem_slab_free(pool, s);
        return;
    }
    s->next = pool->empty;
    pool->empty = s;
    pool->empty_n++;
}

/* Gives half of the empty slabs back to the kernel: called now and then, so that a burst does not map and unmap in every turn. */
static void mem_pool_trim(struct mem_pool *pool)
{
    for (uint32_t n = (pool->empty_n + 1) / 2; n--;) {
        struct mem_slab *s = pool->empty;

        pool->empty = s->next;
        pool->empty_n--;
        mem_slab_free(pool, s);
    }
}

/* Frees the slabs; every object must have been put. */
static void mem_pool_fini(struct mem_pool *pool)
{
    while (pool->empty_n) mem_pool_trim(pool);
    while (pool->partial) {
        struct mem_slab *s = pool->partial;

        mem_slab_unlink(pool, s);
        mem_slab_free(pool, s);
    }
}

/* A buffer with one reference, from a pool made for buffers, or NULL. */
static struct mem_buf *mem_buf_new(struct mem_pool *pool)
{
    struct mem_buf *b = mem_pool_get(pool);

    if (!b) return NULL;
    b->pool = pool;
    b->alone = false;
    b->cap = pool->size - (uint32_t)sizeof *b;
    b->len = 0;
    b->refs = 1;
    return b;
}

/* A buffer of any size that no ceiling counts: for our own answers, which must go out above it too. */
static struct mem_buf *mem_buf_alloc(uint32_t cap)
{
    struct mem_buf *b = mem_alloc(sizeof *b + cap);

    if (!b) return NULL;
    *b = (struct mem_buf){.cap = cap, .refs = 1};
    return b;
}

/* A buffer of at least cap bytes in pages of its own, counted by the ceiling of pool; NULL when it is reached. */
static struct mem_buf *mem_buf_map(struct mem_pool *pool, uint32_t cap)
{
    size_t n = (sizeof(struct mem_buf) + cap + 4095) & ~(size_t)4095;
    struct mem_buf *b;

    if (MEM_FAULT() || n > UINT32_MAX || (pool->limit && *pool->mapped + n > pool->limit) || !(b = sys_map(n))) return NULL;
    *b = (struct mem_buf){.pool = pool, .alone = true, .cap = (uint32_t)(n - sizeof *b), .refs = 1};
    *pool->mapped += n;
    pool->alone += n;
    return b;
}

static inline struct mem_buf *mem_buf_get(struct mem_buf *b)
{
    b->refs++;
    return b;
}

static inline void mem_buf_put(struct mem_buf *b)
{
    RJ_CHECK(b->refs > 0);
    if (--b->refs) return;
    if (b->pool && !b->alone) {
        mem_pool_put(b->pool, b);
    } else if (b->pool) {
        *b->pool->mapped -= b->cap + sizeof *b;
        b->pool->alone -= b->cap + sizeof *b;
        sys_unmap(b, b->cap + sizeof *b);
    } else {
        mem_free(b);
    }
}

/* ============================================================================
 * str_ : Byte slices, builders, numbers
 *
 * Owns:    struct str, struct str_builder, struct net_addr, struct net_cidr.
 * Calls:   mem_
 * Threads: any; pure.
 * Rules:   1. Never needs a terminator and never writes past the limit.
 *          2. Numbers are checked before they are computed; nothing wraps.
 * ========================================================================== */

static inline struct str str_of(const void *p, size_t n) { return (struct str){p, n}; }
static inline struct str str_z(const char *z) { return (struct str){(const uint8_t *)z, z ? strlen(z) : 0}; }
static inline bool str_eq(struct str a, struct str b) { return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0); }
static inline uint8_t str_lower(uint8_t c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; }
static inline bool str_is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* Equal but for ASCII letter case. */
static bool str_ieq(struct str a, struct str b)
{
    if (a.n != b.n) return false;
    for (size_t i = 0; i < a.n; i++)
        if (str_lower(a.p[i]) != str_lower(b.p[i])) return false;
    return true;
}

/* memcmp order, the shorter first. */
static int str_cmp(struct str a, struct str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;

    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

static inline bool str_starts(struct str s, struct str prefix) { return s.n >= prefix.n && memcmp(s.p, prefix.p, prefix.n) == 0; }
static inline bool str_ends(struct str s, struct str end) { return s.n >= end.n && memcmp(s.p + s.n - end.n, end.p, end.n) == 0; }
static inline struct str str_from(struct str s, size_t at) { return str_of(s.p + at, s.n - at); }

/* Index of c, or s.n. */
static inline size_t str_find(struct str s, uint8_t c)
{
    const uint8_t *at = s.n ? memchr(s.p, c, s.n) : NULL;

    return at ? (size_t)(at - s.p) : s.n;
}

/* Without spaces and tabs at both ends. */
static struct str str_trim(struct str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) s = str_from(s, 1);
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) s.n--;
    return s;
}

/* Cuts the next piece up to sep off *rest (which then stands behind sep). False when nothing is left. */
static bool str_cut(struct str *rest, uint8_t sep, struct str *piece)
{
    size_t at;

    if (!rest->p) return false;
    at = str_find(*rest, sep);
    *piece = str_of(rest->p, at);
    *rest = at < rest->n ? str_from(*rest, at + 1) : (struct str){0};
    return true;
}

/* A copy in the arena, NUL-terminated behind its end for the few system calls that need it. */
static struct str str_dup(struct mem_arena *a, struct str s)
{
    uint8_t *p = mem_arena_alloc(a, s.n + 1);

    if (s.n) memcpy(p, s.p, s.n);
    p[s.n] = 0;
    return str_of(p, s.n);
}

/* A 64-bit mix of the bytes: multiply-fold over 8-byte words. Not for secrets. */
static uint64_t str_hash(struct str s)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ s.n, w;
    const uint8_t *p = s.p;
    size_t n = s.n;

    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    if (n) {
        w = 0;
        memcpy(&w, p, n);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 29;
}

static inline uint64_t str_hash_mix(uint64_t h, uint64_t w)
{
    h = (h ^ w) * 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

/* Decimal digits only, no sign, no space; false on anything else and on overflow. */
static bool str_to_u64(struct str s, uint64_t *out)
{
    uint64_t v = 0;

    if (!s.n || s.n > 20) return false;
    for (size_t i = 0; i < s.n; i++) {
        uint8_t d = s.p[i] - '0';

        if (d > 9 || v > (UINT64_MAX - d) / 10) return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

/* `8k`, `1m`, `2g`, `512`: bytes (k, m, g in powers of 1024, either case). */
static bool str_to_size(struct str s, uint64_t *out)
{
    unsigned shift = 0;

    if (s.n) {
        uint8_t c = str_lower(s.p[s.n - 1]);

        shift = c == 'k' ? 10 : c == 'm' ? 20 : c == 'g' ? 30 : 0;
        if (shift) s.n--;
    }
    if (!str_to_u64(s, out) || *out > UINT64_MAX >> shift >> 1) return false;
    *out <<= shift;
    return true;
}

/* `5s`, `250ms`, `2m`, `1h`, a bare number is seconds: milliseconds. */
static bool str_to_ms(struct str s, uint64_t *out)
{
    static const struct { const char *unit; uint8_t n; uint32_t ms; } units[] = {{"ms", 2, 1}, {"s", 1, 1000}, {"m", 1, 60000}, {"h", 1, 3600000}};
    uint32_t ms = 1000;

    for (size_t i = 0; i < RJ_COUNT(units); i++) {
        if (!str_ends(s, str_of(units[i].unit, units[i].n))) continue;
        ms = units[i].ms;
        s.n -= units[i].n;
        break;
    }
    if (!str_to_u64(s, out) || *out > 365ull * 86400000 / ms) return false;
    *out *= ms;
    return true;
}

static bool str_to_bool(struct str s, bool *out)
{
    static const char *const words[] = {"true", "yes", "on", "1", "false", "no", "off", "0"};

    for (size_t i = 0; i < RJ_COUNT(words); i++) {
        if (!str_ieq(s, str_z(words[i]))) continue;
        *out = i < 4;
        return true;
    }
    return false;
}

/* ---- builders ---- */

static inline struct str_builder str_fixed(void *p, size_t cap) { return (struct str_builder){.p = p, .cap = cap}; }
static inline struct str_builder str_growing(void) { return (struct str_builder){.grow = true}; }
static inline struct str str_built(const struct str_builder *b) { return str_of(b->p, b->n); }

static void str_free(struct str_builder *b)
{
    if (b->grow) mem_free(b->p);
    *b = (struct str_builder){.grow = b->grow};
}

/* memcpy for what is mostly short and of no known length, n > 0: a string instruction takes longer to start than this takes. */
static inline void str_copy(uint8_t *to, const uint8_t *from, size_t n)
{
    if (n > 64) {
        memcpy(to, from, n);
    } else if (n >= 16) { /* from both ends; what lies in the middle is copied twice */
        if (n > 32) {
            memcpy(to + 16, from + 16, 16);
            memcpy(to + n - 32, from + n - 32, 16);
        }
        memcpy(to, from, 16);
        memcpy(to + n - 16, from + n - 16, 16);
    } else if (n >= 8) {
        memcpy(to, from, 8);
        memcpy(to + n - 8, from + n - 8, 8);
    } else if (n >= 4) {
        memcpy(to, from, 4);
        memcpy(to + n - 4, from + n - 4, 4);
    } else {
        to[0] = from[0];
        to[n / 2] = from[n / 2];
        to[n - 1] = from[n - 1];
    }
}

__attribute__((noinline)) static uint8_t *str_grow(struct str_builder *b, size_t n)
{
    if (b->grow && n < SIZE_MAX / 4) {
        size_t cap = b->cap ? b->cap * 2 : 256;
        uint8_t *p;

        while (cap - b->n < n) cap *= 2;
        if ((p = mem_realloc(b->p, cap))) {
            b->p = p;
            b->cap = cap;
            return b->p + b->n;
        }
    }
    b->failed = true;
    return NULL;
}

/* Room for n more bytes, or NULL and failed. The caller fills it and adds to b->n. */
static inline uint8_t *str_room(struct str_builder *b, size_t n)
{
    return RJ_LIKELY(n <= b->cap - b->n) ? b->p + b->n : str_grow(b, n);
}

__attribute__((noinline)) static void str_put_slice(struct str_builder *b, struct str s)
{
    uint8_t *p;

    if (!s.n || !(p = str_room(b, s.n))) return;
    str_copy(p, s.p, s.n);
    b->n += s.n;
}

static inline void str_put(struct str_builder *b, struct str s)
{
    uint8_t *p;

    if (!__builtin_constant_p(s.n) || s.n > 64) {
        str_put_slice(b, s);
        return;
    }
    if (!s.n || !(p = str_room(b, s.n))) return;
    str_copy(p, s.p, s.n);
    b->n += s.n;
}

static inline void str_put_c(struct str_builder *b, char c) { str_put(b, str_of(&c, 1)); }
static inline void str_put_z(struct str_builder *b, const char *z) { str_put(b, str_z(z)); }

static void str_put_u64(struct str_builder *b, uint64_t v)
{
    uint8_t digits[20], *at = digits + sizeof digits;

    do *--at = (uint8_t)('0' + v % 10);
    while (v /= 10);
    str_put(b, str_of(at, (size_t)(digits + sizeof digits - at)));
}

/* Lower-case hexadecimal without leading zeros, at least min digits (at most 16). */
static void str_put_hex(struct str_builder *b, uint64_t v, unsigned min)
{
    unsigned n = v ? (67 - (unsigned)__builtin_clzll(v)) / 4 : 1;
    uint8_t *p;

    if (n < min) n = min;
    if (!(p = str_room(b, n))) return;
    b->n += n;
    for (p += n; n--; v >>= 4) *--p = (uint8_t)"0123456789abcdef"[v & 15];
}

/* The sixteen digits of v, at to: the four bits of a digit are spread over the octets of a word and become letters all at once. */
static void str_hex64(uint8_t *to, uint64_t v)
{
    const uint64_t ones = 0x0101010101010101u;

    for (int half = 1; half >= 0; half--, to += 8) {
        uint64_t w = __builtin_bswap32((uint32_t)(v >> 32 * half));

        w = (w | w << 16) & 0x0000ffff0000ffffu;
        w = (w | w << 8) & 0x00ff00ff00ff00ffu;
        w = (w >> 4 & 0x000f000f000f000fu) | (w & 0x000f000f000f000fu) << 8;
        w += '0' * ones + ((w + 6 * ones) >> 4 & ones) * ('a' - '9' - 1);
        w = htole64(w);
        memcpy(to, &w, 8);
    }
}

static void str_vputf(struct str_builder *b, const char *fmt, va_list ap)
{
    char tmp[1024];
    int n = vsnprintf(tmp, sizeof tmp, fmt, ap);

    if (n > 0) str_put(b, str_of(tmp, (size_t)n < sizeof tmp ? (size_t)n : sizeof tmp - 1));
}

/* printf into the builder; one call writes at most 1,023 bytes. */
RJ_PRINTF(2, 3) static void str_putf(struct str_builder *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    str_vputf(b, fmt, ap);
    va_end(ap);
}

/* Length of the UTF-8 sequence at p (1 to 4), or 0 when it is malformed. */
static size_t str_utf8_len(const uint8_t *p, size_t n)
{
    uint32_t c = p[0], min;
    size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

    if (len < 2) return len;
    if (len > n) return 0;
    c &= 0x7fu >> len;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    min = len == 2 ? 0x80 : len == 3 ? 0x800 : 0x10000;
    return c < min || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : len;
}

/* The text inside a JSON string (RFC 8259 section 7): control bytes, quotes and backslashes escaped, malformed UTF-8 as \u00XX. */
static void str_put_json(struct str_builder *b, struct str s)
{
    size_t from = 0, i = 0;

    while (i < s.n) {
        uint8_t c = s.p[i];
        size_t len;

        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            i++;
            continue;
        }
        len = c < 0x80 ? 0 : str_utf8_len(s.p + i, s.n - i);
        if (len) {
            i += len;
            continue;
        }
        str_put(b, str_of(s.p + from, i - from));
        if (c == '"' || c == '\\') {
            str_put_c(b, '\\');
            str_put_c(b, (char)c);
        } else {
            str_put(b, S("\\u00"));
            str_put_hex(b, c, 2);
        }
        from = ++i;
    }
    str_put(b, str_of(s.p + from, s.n - from));
}

/* "text" with quotes. */
static void str_put_quoted(struct str_builder *b, struct str s)
{
    str_put_c(b, '"');
    str_put_json(b, s);
    str_put_c(b, '"');
}

/* RFC 3339 in UTC with milliseconds: 2026-11-30T17:00:00.123Z (civil-from-days by Howard Hinnant's arithmetic). */
static void str_put_time(struct str_builder *b, uint64_t wall_ms)
{
    uint64_t s = wall_ms / 1000, days = s / 86400 + 719468, era = days / 146097, doe = days % 146097;
    uint64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365, doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    uint64_t mp = (5 * doy + 2) / 153, day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
    uint64_t year = yoe + era * 400 + (month <= 2), f[7] = {year, month, day, s / 3600 % 24, s / 60 % 60, s % 60, wall_ms % 1000};
    uint8_t *p = str_room(b, 24);
    static const uint8_t at[7][2] = {{0, 4}, {5, 2}, {8, 2}, {11, 2}, {14, 2}, {17, 2}, {20, 3}};

    if (!p) return;
    memcpy(p, "0000-00-00T00:00:00.000Z", 24);
    for (size_t i = 0; i < 7; i++)
        for (size_t k = at[i][1]; k--; f[i] /= 10) p[at[i][0] + k] = (uint8_t)('0' + f[i] % 10);
    b->n += 24;
}

/* ---- base64 (RFC 4648 section 4) ---- */

/* Decodes into out (at least s.n / 4 * 3 + 3 bytes); white space is skipped. Returns bytes, or -1. */
static long str_from_base64(struct str s, uint8_t *out)
{
    uint32_t acc = 0, bits = 0, pad = 0;
    long n = 0;

    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i];
        int v = c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : str_is_digit(c) ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;

        if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
        if (c == '=') {
            if (++pad > 2) return -1;
            continue;
        }
        if (v < 0 || pad) return -1;
        acc = acc << 6 | (uint32_t)v;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[n++] = (uint8_t)(acc >> bits);
        }
    }
    return bits >= 6 || (acc & ((1u << bits) - 1)) ? -1 : n;
}

/* ---- addresses ---- */

/* Dotted quad, strict: four decimal parts, no leading zero. */
static bool str_to_ip4(struct str s, uint8_t out[4])
{
    struct str part;
    int k = 0;

    while (str_cut(&s, '.', &part)) {
        uint64_t v;

        if (k == 4 || part.n > 3 || !str_to_u64(part, &v) || v > 255 || (part.n > 1 && part.p[0] == '0')) return false;
        out[k++] = (uint8_t)v;
    }
    return k == 4;
}

static bool str_to_hex16(struct str s, uint16_t *out)
{
    uint32_t v = 0;

    if (!s.n || s.n > 4) return false;
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = str_lower(s.p[i]);

        if (!str_is_digit(c) && !(c >= 'a' && c <= 'f')) return false;
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *out = (uint16_t)v;
    return true;
}

/* RFC 4291 section 2.2 text without brackets and without a zone. */
static bool str_to_ip6(struct str s, uint8_t out[16])
{
    uint16_t w[8] = {0};
    int k = 0, gap = -1;
    size_t i = 0;

    if (s.n >= 2 && s.p[0] == ':' && s.p[1] == ':') {
        gap = 0;
        i = 2;
    }
    while (i < s.n) {
        size_t end = i + str_find(str_from(s, i), ':');
        struct str part = str_of(s.p + i, end - i);
        uint8_t v4[4];

        if (end == s.n && k <= 6 && str_to_ip4(part, v4)) {
            w[k++] = (uint16_t)(v4[0] << 8 | v4[1]);
            w[k++] = (uint16_t)(v4[2] << 8 | v4[3]);
            break;
        }
        if (k == 8 || !str_to_hex16(part, &w[k++])) return false;
        if (end == s.n) break;
        i = end + 1;
        if (i < s.n && s.p[i] == ':') {
            if (gap >= 0) return false;
            gap = k;
            i++;
        } else if (i == s.n) {
            return false;
        }
    }
    if (gap < 0 ? k != 8 : k > 7) return false;
    memset(out, 0, 16);
    for (int j = 0; j < k; j++) {
        uint8_t *to = out + 2 * (size_t)(gap >= 0 && j >= gap ? 8 - k + j : j);

        to[0] = (uint8_t)(w[j] >> 8);
        to[1] = (uint8_t)w[j];
    }
    return true;
}

/* An address without port: v4 or v6 (brackets allowed). */
static bool str_to_ip(struct str s, struct net_addr *out)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    *out = (struct net_addr){0};
    if (s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']') {
        s = str_of(s.p + 1, s.n - 2);
        if (!str_to_ip6(s, out->ip)) return false;
        out->family = AF_INET6;
        return true;
    }
    if (str_to_ip4(s, out->ip + 12)) {
        memcpy(out->ip, mapped, 12);
        out->family = AF_INET;
        return true;
    }
    out->family = AF_INET6;
    return str_to_ip6(s, out->ip);
}

/* Splits `host:port`, `[v6]:port`; the host keeps its brackets. False without a port of 1 to 65535. */
static bool str_to_host_port(struct str s, struct str *host, uint16_t *port)
{
    size_t at = s.n;
    uint64_t v;

    while (at && s.p[at - 1] != ':') at--;
    if (at < 2 || !str_to_u64(str_from(s, at), &v) || v < 1 || v > 65535) return false;
    *host = str_of(s.p, at - 1);
    if (host->p[0] != '[' && str_find(*host, ':') < host->n) return false;
    *port = (uint16_t)v;
    return true;
}

/* `10.0.0.0/8`, `fd00::/8`, or a single address. */
static bool str_to_cidr(struct str s, struct net_cidr *out)
{
    size_t at = str_find(s, '/');
    struct net_addr a;
    uint64_t bits;

    if (!str_to_ip(str_of(s.p, at), &a)) return false;
    bits = a.family == AF_INET ? 32 : 128;
    if (at < s.n && (!str_to_u64(str_from(s, at + 1), &bits) || bits > (a.family == AF_INET ? 32 : 128))) return false;
    memcpy(out->ip, a.ip, 16);
    out->bits = (uint8_t)(a.family == AF_INET ? bits + 96 : bits);
    return true;
}

static bool str_cidr_has(const struct net_cidr *c, const uint8_t ip[16])
{
    unsigned whole = c->bits / 8, rest = c->bits % 8;

    return memcmp(c->ip, ip, whole) == 0 && (!rest || ((c->ip[whole] ^ ip[whole]) & (0xff00u >> rest) & 0xff) == 0);
}

static bool str_addr_eq(const struct net_addr *a, const struct net_addr *b) { return a->port == b->port && memcmp(a->ip, b->ip, 16) == 0; }

/* The address without port; v6 in RFC 5952 form (longest run of zeros compressed), without brackets. */
static void str_put_ip(struct str_builder *b, const struct net_addr *a)
{
    int best = -1, len = 1;

    if (a->family == AF_UNIX) {
        str_put(b, S("unix"));
        return;
    }
    if (a->family == AF_INET) {
        uint8_t text[16];
        unsigned n = 0;

        for (int i = 12; i < 16; i++) {
            unsigned v = a->ip[i];

            if (v >= 100) text[n++] = (uint8_t)('0' + v / 100);
            if (v >= 10) text[n++] = (uint8_t)('0' + v / 10 % 10);
            text[n++] = (uint8_t)('0' + v % 10);
            text[n++] = '.';
        }
        str_put(b, str_of(text, n - 1));
        return;
    }
    for (int i = 0; i < 8; i++) {
        int n = 0;

        while (i + n < 8 && !a->ip[2 * (size_t)(i + n)] && !a->ip[2 * (size_t)(i + n) + 1]) n++;
        if (n > len) best = i, len = n;
        if (n) i += n - 1;
    }
    for (int i = 0; i < 8; i++) {
        if (i == best) {
            str_put(b, S("::"));
            i += len - 1;
            continue;
        }
        if (i && (best < 0 || i != best + len)) str_put_c(b, ':');
        str_put_hex(b, (uint64_t)a->ip[2 * (size_t)i] << 8 | a->ip[2 * (size_t)i + 1], 1);
    }
}

/* `1.2.3.4:80`, `[::1]:80`. */
static void str_put_addr(struct str_builder *b, const struct net_addr *a)
{
    if (a->family == AF_INET6) str_put_c(b, '[');
    str_put_ip(b, a);
    if (a->family == AF_INET6) str_put_c(b, ']');
    if (a->family != AF_UNIX) {
        str_put_c(b, ':');
        str_put_u64(b, a->port);
    }
}

/* An IPv4 address in IPv6 clothes (::ffff:1.2.3.4) is that IPv4 address. */
static void str_unmap(struct net_addr *a)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (a->family == AF_INET6 && memcmp(a->ip, mapped, 12) == 0) a->family = AF_INET;
}

/* To and from the kernel's form. out must hold a sockaddr_in6; returns its length. */
static socklen_t str_to_sockaddr(const struct net_addr *a, void *out)
{
    if (a->family == AF_INET) {
        struct sockaddr_in *in = out;

        memset(in, 0, sizeof *in);
        in->sin_family = AF_INET;
        in->sin_port = htons(a->port);
        memcpy(&in->sin_addr, a->ip + 12, 4);
        return sizeof *in;
    }
    struct sockaddr_in6 *in6 = out;

    memset(in6, 0, sizeof *in6);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(a->port);
    memcpy(&in6->sin6_addr, a->ip, 16);
    return sizeof *in6;
}

static void str_from_sockaddr(const void *sa, struct net_addr *out)
{
    const struct sockaddr *any = sa;

    *out = (struct net_addr){.family = (uint8_t)any->sa_family};
    if (any->sa_family == AF_INET) {
        const struct sockaddr_in *in = sa;

        out->ip[10] = out->ip[11] = 0xff;
        memcpy(out->ip + 12, &in->sin_addr, 4);
        out->port = ntohs(in->sin_port);
    } else if (any->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = sa;

        memcpy(out->ip, &in6->sin6_addr, 16);
        out->port = ntohs(in6->sin6_port);
        str_unmap(out);
    } else {
        out->family = AF_UNIX;
    }
}

/* ============================================================================
 * map_ : Hash map, intrusive list
 *
 * Owns:    struct map, struct map_link.
 * Calls:   mem_ str_
 * Threads: one at a time.
 * Rules:   1. Keys are borrowed slices that the value (or its arena) keeps alive.
 *          2. Iteration is in insertion order, so output repeats.
 * ========================================================================== */

enum { MAP_GONE = 0xffffffffu };

static void map_free(struct map *m)
{
    mem_free(m->entries);
    mem_free(m->index);
    *m = (struct map){0};
}

static void map_rebuild(struct map *m, uint32_t cap)
{
    struct map_entry *old = m->entries;
    uint32_t n = 0, slots = 8;

    while (slots < cap * 2) slots *= 2;
    m->entries = mem_need((size_t)cap * sizeof *m->entries);
    mem_free(m->index);
    m->index = mem_need((size_t)slots * sizeof *m->index);
    m->mask = slots - 1;
    m->cap = cap;
    for (uint32_t i = 0; i < m->used; i++) {
        uint32_t at;

        if (!old[i].value) continue;
        m->entries[n] = old[i];
        for (at = (uint32_t)old[i].hash & m->mask; m->index[at]; at = (at + 1) & m->mask) {}
        m->index[at] = ++n;
    }
    m->used = n;
    mem_free(old);
}

static uint32_t *map_slot(const struct map *m, struct str key, uint64_t hash)
{
    if (!m->index) return NULL;
    for (uint32_t at = (uint32_t)hash & m->mask; m->index[at]; at = (at + 1) & m->mask) {
        struct map_entry *e;

        if (m->index[at] == MAP_GONE) continue;
        e = &m->entries[m->index[at] - 1];
        if (e->hash == hash && str_eq(e->key, key)) return &m->index[at];
    }
    return NULL;
}

/* The value of key, or NULL. */
static void *map_find(const struct map *m, struct str key)
{
    uint32_t *slot = map_slot(m, key, str_hash(key));

    RJ_CHECK(!slot || m->entries);
    return slot ? m->entries[*slot - 1].value : NULL;
}

/* Puts value under key and returns the value that stood there, or NULL. The key slice of the new value is kept. */
static void *map_put(struct map *m, struct str key, void *value)
{
    uint64_t hash = str_hash(key);
    uint32_t *slot = map_slot(m, key, hash), at;

    RJ_BUG_ON(!value);
    if (slot) {
        struct map_entry *e = &m->entries[*slot - 1];
        void *old = e->value;

        e->key = key;
        e->value = value;
        return old;
    }
    if (m->used == m->cap) map_rebuild(m, m->count + m->count / 2 + 8);
    m->entries[m->used++] = (struct map_entry){key, value, hash};
    m->count++;
    for (at = (uint32_t)hash & m->mask; m->index[at] && m->index[at] != MAP_GONE; at = (at + 1) & m->mask) {}
    m->index[at] = m->used;
    return NULL;
}

/* Takes key out and returns its value, or NULL. */
static void *map_remove(struct map *m, struct str key)
{
    uint32_t *slot = map_slot(m, key, str_hash(key));
    struct map_entry *e;
    void *old;

    if (!slot) return NULL;
    e = &m->entries[*slot - 1];
    old = e->value;
    e->value = NULL;
    e->key = (struct str){0};
    *slot = MAP_GONE;
    m->count--;
    return old;
}

/* Gives back room that a map had when it was much larger. Not during an iteration. True when there was any. */
static bool map_trim(struct map *m)
{
    if (m->cap < 64 || m->count > m->cap / 4) return false;
    map_rebuild(m, m->count + m->count / 2 + 8);
    return true;
}

/* Next live value from *at on (start with 0), or NULL at the end. The map must not grow meanwhile; removing is fine. */
static void *map_next(const struct map *m, uint32_t *at)
{
    while (*at < m->used) {
        struct map_entry *e = &m->entries[(*at)++];

        if (e->value) return e->value;
    }
    return NULL;
}

static inline void map_list_init(struct map_link *head) { head->next = head->prev = head; }
static inline bool map_list_empty(const struct map_link *head) { return head->next == head; }

static inline void map_list_add(struct map_link *head, struct map_link *l)
{
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}

static inline void map_list_remove(struct map_link *l)
{
    /* A linked node has neighbours, which the analyzer cannot know. NOLINTNEXTLINE(clang-analyzer-unix.Malloc,clang-analyzer-core.NullDereference) */
    l->prev->next = l->next;
    l->next->prev = l->prev;
    l->next = l->prev = NULL;
}

/* ============================================================================
 * clk_ : Cached now, timer wheel
 *
 * Owns:    struct clk_wheel, struct clk_timer.
 * Calls:   sys_ map_
 * Threads: a wheel belongs to one thread.
 * Rules:   1. Time is read once a turn.
 *          2. A timer fires at most once per arm, never inside the arm call, never early, at most two ticks late.
 *          3. Moving a deadline later costs a store: the timer is looked at in its old slot and moved on then.
 * ========================================================================== */

static void clk_read(struct clk_wheel *w)
{
    w->now_ns = sys_clock_ns(CLOCK_MONOTONIC);
    w->now_ms = w->now_ns / 1000000;
}

static void clk_init(struct clk_wheel *w)
{
    for (size_t i = 0; i < CLK_SLOTS; i++) map_list_init(&w->slot[i]);
    memset(w->busy, 0, sizeof w->busy);
    w->queued = 0;
    clk_read(w);
    w->tick = w->now_ms / CLK_TICK_MS;
}

static uint64_t clk_wall_ms(void) { return sys_clock_ns(CLOCK_REALTIME) / 1000000; }

static void clk_queue(struct clk_wheel *w, struct clk_timer *t)
{
    uint64_t tick = (t->deadline_ms + CLK_TICK_MS - 1) / CLK_TICK_MS;

    if (tick <= w->tick) tick = w->tick + 1;
    t->look_ms = tick * CLK_TICK_MS;
    w->busy[tick % CLK_SLOTS / 64] |= 1ull << tick % 64;
    map_list_add(&w->slot[tick % CLK_SLOTS], &t->link);
    w->queued++;
}

static void clk_unqueue(struct clk_wheel *w, struct clk_timer *t)
{
    if (!t->link.next) return;
    map_list_remove(&t->link);
    w->queued--;
}

/* Fires after delay_ms (a timer that is armed again keeps its slot when that is looked at early enough). t->fire is set by the owner;
 * t must be zeroed before its first arm. */
static void clk_arm(struct clk_wheel *w, struct clk_timer *t, uint64_t delay_ms)
{
    uint64_t deadline = w->now_ms + (delay_ms ? delay_ms : 1);

    if (t->link.next && deadline >= t->look_ms) {
        t->deadline_ms = deadline;
        return;
    }
    clk_unqueue(w, t);
    t->deadline_ms = deadline;
    clk_queue(w, t);
}

/* It will not fire. Stays queued lazily; clk_drop before its memory goes. */
static inline void clk_disarm(struct clk_timer *t) { t->deadline_ms = 0; }

static void clk_drop(struct clk_wheel *w, struct clk_timer *t)
{
    clk_unqueue(w, t);
    t->deadline_ms = 0;
}

static void clk_run_slot(struct clk_wheel *w, struct map_link *slot, uint64_t as_of_ms)
{
    struct map_link todo;

    w->busy[(slot - w->slot) / 64] &= ~(1ull << (slot - w->slot) % 64);
    if (map_list_empty(slot)) return;
    todo = *slot;
    todo.next->prev = &todo;
    todo.prev->next = &todo;
    map_list_init(slot);
    while (!map_list_empty(&todo)) {
        struct clk_timer *t = RJ_CONTAINER(todo.next, struct clk_timer, link);

        clk_unqueue(w, t);
        if (!t->deadline_ms) continue;
        if (t->deadline_ms > as_of_ms) {
            clk_queue(w, t);
            continue;
        }
        t->deadline_ms = 0;
        t->fire(t);
    }
}

/* Fires what was due as_of_ms, which is now or a little earlier. Call once a turn after clk_read. */
static void clk_run(struct clk_wheel *w, uint64_t as_of_ms)
{
    uint64_t to = as_of_ms / CLK_TICK_MS;

    if (to - w->tick > CLK_SLOTS) w->tick = to - CLK_SLOTS;
    while (w->tick < to) {
        w->tick++;
        clk_run_slot(w, &w->slot[w->tick % CLK_SLOTS], as_of_ms);
    }
}

/* How long the loop may sleep: milliseconds to the first slot that may hold a timer, at most max. */
static uint32_t clk_sleep_ms(const struct clk_wheel *w, uint32_t max)
{
    uint64_t limit = max / CLK_TICK_MS + 1;

    if (!w->queued) return max;
    for (uint64_t i = 1; i <= limit && i <= CLK_SLOTS;) {
        uint64_t slot = (w->tick + i) % CLK_SLOTS, word = w->busy[slot / 64] >> slot % 64, at;

        if (!word) {
            i += 64 - slot % 64;
            continue;
        }
        i += (uint64_t)__builtin_ctzll(word);
        at = (w->tick + i) * CLK_TICK_MS;
        return at <= w->now_ms ? 0 : at - w->now_ms < max ? (uint32_t)(at - w->now_ms) : max;
    }
    return max;
}

/* True when clk_run would look at a slot that may hold a timer. */
static inline bool clk_is_due(const struct clk_wheel *w)
{
    return w->now_ms / CLK_TICK_MS > w->tick && clk_sleep_ms(w, (uint32_t)(w->now_ms - w->tick * CLK_TICK_MS)) == 0;
}

/* ============================================================================
 * log_ : Log ring per thread, errors with context
 *
 * Owns:    struct log_ring, struct log_err, rj.log_level.
 * Calls:   sys_ str_ clk_
 * Threads: each thread writes its own ring; the control thread drains all of them.
 * Rules:   1. Never blocks a worker; what does not fit is dropped and counted.
 *          2. A record is written whole or not at all.
 *          3. A thread without a ring (start-up, the control thread) writes to stderr at once.
 * ========================================================================== */

/* Appends the record, or counts it as dropped. The ring is mapped on first use. */
static void log_ring_put(struct log_ring *r, struct str s)
{
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire); /* log_ring_drain's release: its bytes are read */
    size_t at, first;

    if (RJ_UNLIKELY(!r->p) && !(r->p = sys_map(r->cap))) return;
    if (r->cap - (head - tail) < s.n) {
        atomic_store_explicit(&r->dropped, atomic_load_explicit(&r->dropped, memory_order_relaxed) + 1, memory_order_relaxed);
        return;
    }
    at = head & (r->cap - 1);
    first = s.n < r->cap - at ? s.n : r->cap - at;
    memcpy(r->p + at, s.p, first);
    memcpy(r->p, s.p + first, s.n - first);
    atomic_store_explicit(&r->head, head + s.n, memory_order_release); /* log_ring_drain's acquire */
}

/* Writes what the ring holds to fd. Returns bytes written, 0 when empty, or -errno (then nothing is lost). */
static long log_ring_drain(struct log_ring *r, int fd)
{
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire); /* log_ring_put's release */
    size_t at = tail & (r->cap - 1), n = head - tail;
    long rc;

    if (!n) return 0;
    if (n > r->cap - at) n = r->cap - at;
    rc = sys_write(fd, r->p + at, n);
    if (rc > 0) atomic_store_explicit(&r->tail, tail + (uint64_t)rc, memory_order_release); /* log_ring_put's acquire */
    return rc;
}

/* One line: time, level, section, message. */
RJ_PRINTF(3, 4) static void log_write(enum log_level level, const char *section, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    uint8_t line[LOG_LINE_MAX];
    struct str_builder b = str_fixed(line, sizeof line - 1);
    va_list ap;

    if (level > rj.log_level) return;
    str_put_time(&b, clk_wall_ms());
    str_putf(&b, " %s %s: ", names[level], section);
    va_start(ap, fmt);
    str_vputf(&b, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < b.n; i++)
        if (b.p[i] < 0x20 || b.p[i] == 0x7f) b.p[i] = '?';
    line[b.n++] = '\n';
    if (rj_me && rj_me->index >= 0) log_ring_put(&rj_me->log, str_of(line, b.n));
    else sys_write(2, line, b.n);
}

#define log_error(section, ...) log_write(LOG_ERROR, section, __VA_ARGS__)
#define log_warn(section, ...) log_write(LOG_WARN, section, __VA_ARGS__)
#define log_info(section, ...) log_write(LOG_INFO, section, __VA_ARGS__)
#define log_debug(section, ...) (rj.log_level >= LOG_DEBUG ? log_write(LOG_DEBUG, section, __VA_ARGS__) : (void)0)

/* Sets the error where it happens. Returns -1 so that `return log_fail(e, ...)` reads well. */
RJ_PRINTF(2, 3) static int log_fail(struct log_err *e, const char *fmt, ...)
{
    va_list ap;

    if (!e) return -1;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return -1;
}

/* Puts "prefix: " before the text on the way up. */
RJ_PRINTF(2, 3) static int log_wrap(struct log_err *e, const char *fmt, ...)
{
    char old[sizeof e->text];
    va_list ap;
    int n;

    if (!e) return -1;
    memcpy(old, e->text, sizeof old);
    va_start(ap, fmt);
    n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text) snprintf(e->text + n, sizeof e->text - (size_t)n, ": %.*s", (int)(sizeof old - 3), old);
    return -1;
}

/* ============================================================================
 * mtr_ : Counters, gauges, histograms per thread
 *
 * Owns:    struct mtr_thread, struct mtr_route; rj.route_names.
 * Calls:   mem_ str_ map_
 * Threads: each thread writes its own; the control thread reads all with relaxed loads.
 * Rules:   1. An increment is one unshared add.
 *          2. Names come only from the tables; routes beyond the table count as "other".
 * ========================================================================== */

static const uint32_t mtr_bounds_us[MTR_BUCKETS - 1] = {500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 500000, 1000000, 5000000};

/* Adds to a number that only this thread writes and others read (relaxed on both sides: no order is needed, only no tearing). */
static inline void mtr_bump(uint64_t *n, uint64_t by) { __atomic_store_n(n, *n + by, __ATOMIC_RELAXED); }
static inline uint64_t mtr_read(const uint64_t *n) { return __atomic_load_n(n, __ATOMIC_RELAXED); }

static inline void mtr_add(enum mtr_counter id, uint64_t n)
{
    if (rj_me) mtr_bump(&rj_me->mtr.counter[id], n);
}

static inline void mtr_move(enum mtr_gauge id, int64_t n)
{
    if (rj_me) mtr_bump(&rj_me->mtr.gauge[id], (uint64_t)n);
}

/* The id of a route name, given on first sight. Control thread. */
static uint32_t mtr_route_id(struct str name)
{
    struct mtr_names *t = &rj.route_names;
    struct mtr_name *m = map_find(&t->by_name, name);
    uint8_t *text;

    if (m) return m->id;
    if (t->count + 1 >= MTR_ROUTES_MAX) return 0;
    m = mem_need(sizeof *m + name.n);
    text = (uint8_t *)(m + 1);
    memcpy(text, name.p, name.n);
    m->id = ++t->count;
    m->name = str_of(text, name.n);
    t->by_id[m->id] = m;
    map_put(&t->by_name, m->name, m);
    return m->id;
}

/* Counts one finished request of route id. */
static void mtr_request(uint32_t id, unsigned status, uint64_t us)
{
    struct mtr_route *r;
    unsigned b = 0;

    if (!rj_me || id >= MTR_ROUTES_MAX) return;
    r = atomic_load_explicit(&rj_me->mtr.route[id], memory_order_relaxed);
    if (!r) {
        if (!(r = mem_alloc(sizeof *r))) return;
        memset(r, 0, sizeof *r);
        atomic_store_explicit(&rj_me->mtr.route[id], r, memory_order_release); /* the control thread's acquire in adm_ */
    }
    while (b < MTR_BUCKETS - 1 && us > mtr_bounds_us[b]) b++;
    mtr_bump(&r->by_class[status / 100 < 6 ? status / 100 : 0], 1);
    mtr_bump(&r->bucket[b], 1);
    mtr_bump(&r->sum_us, us);
}

/* ============================================================================
 * rcu_ : Epochs, retire list
 *
 * Owns:    rj.epoch, rj.rcu_head, rj.rcu_tail; the epoch of every thread.
 * Calls:   none
 * Threads: workers call enter and leave; only the control thread retires and frees.
 * Rules:   1. What is retired is freed only after every worker passed a later turn.
 *          2. Readers never wait and write only their own epoch.
 * ========================================================================== */

/* A worker's turn begins: what it loads from now on stays valid until rcu_leave or its next rcu_enter. */
static inline void rcu_enter(struct rj_thread *t)
{
    uint64_t e = atomic_load_explicit(&rj.epoch, memory_order_acquire); /* rcu_retire's increment */

    atomic_store_explicit(&t->epoch, e, memory_order_release); /* the last turn's reads are done; rcu_passed acquires */
    atomic_thread_fence(memory_order_seq_cst); /* the epoch is visible before any snapshot is loaded; pairs with rcu_retire's fence */
}

/* The worker sleeps and holds nothing. */
static inline void rcu_leave(struct rj_thread *t)
{
    atomic_store_explicit(&t->epoch, 0, memory_order_release); /* its reads are done; rcu_passed acquires */
}

/* True when every worker sleeps or runs a turn that began after epoch. */
static bool rcu_passed(uint64_t epoch)
{
    for (int i = 0; i < rj.thread_count; i++) {
        uint64_t e = atomic_load_explicit(&rj.threads[i]->epoch, memory_order_acquire); /* rcu_leave, rcu_enter */

        if (e && e <= epoch) return false;
    }
    return true;
}

/* Hands over what was just unlinked from everything a worker can load. Control thread. */
static void rcu_retire(struct rcu_item *item, void (*free_fn)(struct rcu_item *item))
{
    atomic_thread_fence(memory_order_seq_cst); /* the unlinking store comes first; pairs with rcu_enter's fence */
    item->epoch = atomic_fetch_add_explicit(&rj.epoch, 1, memory_order_acq_rel);
    item->free_fn = free_fn;
    item->next = NULL;
    if (rj.rcu_tail) rj.rcu_tail->next = item;
    else rj.rcu_head = item;
    rj.rcu_tail = item;
}

/* Frees what every worker has passed. Control thread, once a turn. */
static void rcu_collect(void)
{
    while (rj.rcu_head && rcu_passed(rj.rcu_head->epoch)) {
        struct rcu_item *item = rj.rcu_head;

        rj.rcu_head = item->next;
        if (!rj.rcu_head) rj.rcu_tail = NULL;
        item->free_fn(item);
    }
}

/* ============================================================================
 * io_ : The I/O interface
 *
 * Owns:    struct io_loop, struct io_sock, struct io_outq, struct io_pump; struct io_ops is filled by ep_ and ur_.
 * Calls:   sys_ mem_ str_ clk_ mtr_ rcu_
 * Threads: a loop and everything in it belong to one thread.
 * Rules:   1. Every request gets exactly one completion, never from inside the call that made it.
 *          2. An idle socket holds no buffer.
 *          3. After io_close nothing but IO_CLOSED is delivered.
 * ========================================================================== */

/* ---- the ready list: completions that do not come from the kernel ---- */

static void io_queue(struct io_loop *lp, struct io_sock *s)
{
    if (s->flags & IO_S_QUEUED) return;
    s->flags |= IO_S_QUEUED;
    s->ready_next = NULL;
    if (lp->ready) lp->ready_tail->ready_next = s;
    else lp->ready = s;
    lp->ready_tail = s;
}

/* s is looked at again a tick later: what it waits for tells nothing when it comes, and the loop must not spin. */
static void io_queue_later(struct io_loop *lp, struct io_sock *s)
{
    if (s->flags & IO_S_QUEUED) return;
    s->flags |= IO_S_QUEUED;
    s->ready_next = lp->starved;
    if (!lp->starved) lp->starved_until_ms = lp->clk.now_ms + CLK_TICK_MS;
    lp->starved = s;
}

/* No buffer was left for s. */
static void io_starve(struct io_loop *lp, struct io_sock *s)
{
    mtr_add(MTR_ENGINE_STARVED, 1);
    io_queue_later(lp, s);
}

static void io_feed_starved(struct io_loop *lp)
{
    struct io_sock *s = lp->starved;

    if (!s || lp->clk.now_ms < lp->starved_until_ms) return;
    lp->starved = NULL;
    while (s) {
        struct io_sock *next = s->ready_next;

        s->flags &= (uint16_t)~IO_S_QUEUED;
        io_queue(lp, s);
        s = next;
    }
}

static struct io_sock *io_unqueue(struct io_loop *lp)
{
    struct io_sock *s = lp->ready;

    if (!s) return NULL;
    lp->ready = s->ready_next;
    s->flags &= (uint16_t)~IO_S_QUEUED;
    return s;
}

/* The loop is about to wait in the kernel: this thread holds nothing of a snapshot. */
static inline void io_sleeps(void)
{
    if (rj_me) rcu_leave(rj_me);
}

static inline void io_woke(struct io_loop *lp)
{
    clk_read(&lp->clk);
    if (rj_me) rcu_enter(rj_me);
    mtr_add(MTR_ENGINE_TURNS, 1);
}

/* ---- loops ---- */

static void io_pools_init(struct io_loop *lp, size_t limit)
{
    mem_pool_init(&lp->tiny, MEM_TINY_BYTES, MEM_SLAB_BYTES, &lp->mapped, limit);
    mem_pool_init(&lp->small, MEM_SMALL_BYTES, MEM_SLAB_BYTES, &lp->mapped, limit);
    limit -= limit / MEM_RESERVE; /* the rest is for requests and heads, however much content waits */
    mem_pool_init(&lp->medium, MEM_MEDIUM_BYTES, MEM_SLAB_BYTES, &lp->mapped, limit);
    mem_pool_init(&lp->large, MEM_LARGE_BYTES, MEM_SLAB_BYTES, &lp->mapped, limit);
    mem_pool_init(&lp->big, MEM_BIG_BYTES, MEM_BIG_SLAB_BYTES, &lp->mapped, limit);
}

static void io_pools_fini(struct io_loop *lp)
{
    mem_pool_fini(&lp->tiny);
    mem_pool_fini(&lp->small);
    mem_pool_fini(&lp->medium);
    mem_pool_fini(&lp->large);
    mem_pool_fini(&lp->big);
}

/* Opens a loop with the engine; buffers stay under limit bytes (0 = none). Returns 0 or -errno. */
static int io_loop_open(struct io_loop *lp, const struct io_ops *ops, size_t limit)
{
    lp->ops = ops;
    lp->nonblocking = ops->nonblocking;
    clk_init(&lp->clk);
    io_pools_init(lp, limit);
    return ops->open(lp);
}

/* A buffer of at least cap bytes. NULL at the ceiling. */
static struct mem_buf *io_buf(struct io_loop *lp, uint32_t cap)
{
    struct mem_pool *pools[] = {&lp->tiny, &lp->small, &lp->medium, &lp->large};

    for (size_t i = 0; i < RJ_COUNT(pools); i++)
        if (cap <= pools[i]->size - sizeof(struct mem_buf)) return mem_buf_new(pools[i]);
    return mem_buf_map(&lp->big, cap);
}

/* A buffer to receive in: big, or small where content may take no more. NULL at the ceiling. */
static struct mem_buf *io_buf_in(struct io_loop *lp)
{
    struct mem_buf *b = mem_buf_new(&lp->big);

    return b ? b : mem_buf_new(&lp->small);
}

static void io_loop_close(struct io_loop *lp)
{
    lp->ops->close(lp);
    while (lp->pipes_n) {
        sys_close(lp->pipes[--lp->pipes_n][0]);
        sys_close(lp->pipes[lp->pipes_n][1]);
    }
    io_pools_fini(lp);
}

/* A timer blames somebody for what has not come, so all that has come is taken before one fires: a thread that got no CPU finds more than one
 * turn delivers, and a wait that a signal ends (as SIGCONT does) delivers nothing. Looks until nothing is left, at most as long again as the
 * loop was late. Returns the time of the last look: what is due since then waits for the next. */
static uint64_t io_catch_up(struct io_loop *lp, uint64_t late_ms)
{
    uint64_t until_ms = lp->clk.now_ms + (late_ms < IO_CATCH_UP_MS ? late_ms : IO_CATCH_UP_MS), as_of_ms;

    do {
        as_of_ms = lp->clk.now_ms;
        io_feed_starved(lp);
    } while (lp->ops->turn(lp, 0) && lp->clk.now_ms < until_ms);
    return as_of_ms;
}

/* One turn: waits at most max_ms, delivers completions, fires timers. */
static void io_turn(struct io_loop *lp, uint32_t max_ms)
{
    uint64_t planned_ms, as_of_ms;

    io_feed_starved(lp);
    if (lp->starved && max_ms > CLK_TICK_MS) max_ms = CLK_TICK_MS;
    if (lp->ready) max_ms = 0;
    else max_ms = clk_sleep_ms(&lp->clk, max_ms);
    planned_ms = lp->clk.now_ms + max_ms;
    lp->ops->turn(lp, max_ms);
    as_of_ms = lp->clk.now_ms;
    if (RJ_UNLIKELY(clk_is_due(&lp->clk))) as_of_ms = io_catch_up(lp, as_of_ms > planned_ms ? as_of_ms - planned_ms : 0);
    clk_run(&lp->clk, as_of_ms);
}

/* ---- sockets ---- */

static void io_sock_init(struct io_sock *s, void (*handle)(struct io_sock *, enum io_event, int, struct mem_buf *))
{
    *s = (struct io_sock){.fd = -1, .handle = handle};
}

static inline bool io_is_open(const struct io_sock *s) { return s->fd >= 0 && !(s->flags & IO_S_CLOSING); }

/* Takes an open descriptor in (an accepted one, or any that can be polled). Returns 0 or -errno; then the descriptor is closed. */
static int io_adopt(struct io_loop *lp, struct io_sock *s, int fd)
{
    int rc;

    s->fd = fd;
    s->flags = 0;
    s->q = NULL;
    rc = lp->ops->add(lp, s);
    if (rc < 0) {
        sys_close(fd);
        s->fd = -1;
    }
    return rc;
}

static inline void io_accept_start(struct io_loop *lp, struct io_sock *s) { lp->ops->accept_start(lp, s); }
static inline void io_accept_stop(struct io_loop *lp, struct io_sock *s) { lp->ops->accept_stop(lp, s); }
static inline void io_recv_start(struct io_loop *lp, struct io_sock *s) { lp->ops->recv_start(lp, s); }
static inline void io_recv_big(struct io_loop *lp, struct io_sock *s) { lp->ops->recv_big(lp, s); }
/* A single receive of at most a small buffer: a head, when what follows it is better fetched in another way. */
static inline void io_recv_head(struct io_loop *lp, struct io_sock *s)
{
    s->once_small = true;
    lp->ops->recv_big(lp, s);
}
static inline void io_recv_stop(struct io_loop *lp, struct io_sock *s) { lp->ops->recv_stop(lp, s); }
static inline void io_poll(struct io_loop *lp, struct io_sock *s, int what) { lp->ops->poll(lp, s, what); }
static inline void io_close(struct io_loop *lp, struct io_sock *s) { lp->ops->close_sock(lp, s); }
static inline int io_shutdown(struct io_sock *s) { return sys_shutdown(s->fd, SHUT_WR); }

/* Bytes that the kernel has taken and the peer has not acknowledged. */
static uint32_t io_unsent(const struct io_sock *s)
{
    int n = 0;

    return sys_unsent(s->fd, &n) < 0 || n < 0 ? 0 : (uint32_t)n;
}

/* Octets, an end or an error stand there that nobody fetched: behind a pump, which takes octets past the engine, epoll may have told of them or
 * not yet, and what it told may be spent. */
static bool io_has_more(struct io_sock *s)
{
    uint8_t one;

    if (sys_recv(s->fd, &one, 1, MSG_PEEK | MSG_DONTWAIT) != -EAGAIN) return true;
    s->flags &= (uint16_t)~IO_S_HAS_IN;
    return false;
}

/* A close from now on resets: what was not sent is dropped, and the peer cannot take what it got for the whole. */
static void io_reset_on_close(struct io_sock *s)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};

    (void)SYS_CALL(SYS_setsockopt, s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

/* From now on the kernel asks a peer that is silent whether it is still there: one that is not ends the connection after 200 s. */
static void io_probe_peer(struct io_sock *s)
{
    sys_setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    sys_setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPIDLE, IO_PROBE_IDLE_S);
    sys_setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPINTVL, IO_PROBE_EVERY_S);
    sys_setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPCNT, IO_PROBES);
}

/* What is not on the wire yet may be as much as the kernel finds good, see WRK_UNSENT_MAX. */
static void io_lift_unsent(struct io_sock *s) { sys_setsockopt(s->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0); }

static int io_socket(const struct io_loop *lp, int family, int type)
{
    return sys_socket(family, type | SOCK_CLOEXEC | (lp->nonblocking ? SOCK_NONBLOCK : 0), 0);
}

/* The kernel gives the lowest free number, so this one is of the last that are kept for other threads. */
static bool io_is_spare(const struct io_loop *lp, int fd) { return lp->fd_max && fd >= lp->fd_max; }

/* Opens a TCP socket and starts to connect; IO_CONNECT follows. Returns 0, or -errno when the socket cannot be made (no completion).
 * sa is the caller's sockaddr storage that lives until the next turn. */
static int io_connect_sa(struct io_loop *lp, struct io_sock *s, const void *sa, socklen_t n)
{
    int fd = io_socket(lp, ((const struct sockaddr *)sa)->sa_family, SOCK_STREAM), rc;

    if (fd < 0) return fd;
    if (io_is_spare(lp, fd)) {
        sys_close(fd);
        return -EMFILE;
    }
    sys_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if ((rc = io_adopt(lp, s, fd)) < 0) return rc;
    lp->ops->connect(lp, s, sa, n);
    return 0;
}

/* The same with an address; the kernel takes the sockaddr at once with epoll only, so this is for loops on that engine (control). */
static int io_tcp_connect(struct io_loop *lp, struct io_sock *s, const struct net_addr *a)
{
    struct sockaddr_in6 sa;
    socklen_t n = str_to_sockaddr(a, &sa);

    return io_connect_sa(lp, s, &sa, n);
}

/* A connected datagram socket; each IO_RECV is one datagram. Returns 0 or -errno. */
static int io_udp_connect(struct io_loop *lp, struct io_sock *s, const struct net_addr *a)
{
    struct sockaddr_in6 sa;
    socklen_t n = str_to_sockaddr(a, &sa);
    int fd = io_socket(lp, ((struct sockaddr *)&sa)->sa_family, SOCK_DGRAM), rc;

    if (fd < 0) return fd;
    if ((rc = sys_connect(fd, &sa, n)) < 0) {
        sys_close(fd);
        return rc;
    }
    return io_adopt(lp, s, fd);
}

/* Opens a listening TCP socket and takes it in. Returns 0 or -errno. TCP_NODELAY is inherited by what it accepts. */
static int io_listen(struct io_loop *lp, struct io_sock *s, const struct net_addr *a, bool reuseport)
{
    struct sockaddr_in6 sa;
    socklen_t n = str_to_sockaddr(a, &sa);
    int fd = sys_socket(((struct sockaddr *)&sa)->sa_family, SOCK_STREAM | SOCK_CLOEXEC | (lp->nonblocking ? SOCK_NONBLOCK : 0), 0), rc;

    if (fd < 0) return fd;
    sys_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (reuseport) sys_setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (a->family == AF_INET6) sys_setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sys_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if ((rc = sys_bind(fd, &sa, n)) < 0 || (rc = sys_listen(fd, 4096)) < 0) {
        sys_close(fd);
        return rc;
    }
    return io_adopt(lp, s, fd);
}

/* ---- output queues ---- */

/* Appends n bytes at p. A reference of owner moves into the queue (NULL: static memory). The caller has checked for room. */
static void io_outq_add(struct io_outq *q, const void *p, uint32_t n, struct mem_buf *owner)
{
    RJ_BUG_ON(q->n == IO_OUTQ_MAX);
    q->iov[q->n] = (struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = n};
    q->own[q->n++] = owner;
    q->bytes += n;
}

/* Takes n sent bytes off the front and puts their buffers back. */
static void io_outq_drop(struct io_outq *q, uint32_t n)
{
    uint8_t gone = 0;

    q->bytes -= n;
    while (gone < q->n && q->iov[gone].iov_len <= n) {
        n -= (uint32_t)q->iov[gone].iov_len;
        if (q->own[gone]) mem_buf_put(q->own[gone]);
        gone++;
    }
    if (gone < q->n && n) {
        q->iov[gone].iov_base = (uint8_t *)q->iov[gone].iov_base + n;
        q->iov[gone].iov_len -= n;
    }
    if (!gone) return;
    q->n -= gone;
    if (!q->n) return;
    memmove(q->iov, q->iov + gone, q->n * sizeof q->iov[0]);
    memmove(q->own, q->own + gone, q->n * sizeof q->own[0]);
}

/* The IO_SENT of this queue came with res: takes what was sent off. */
static void io_outq_sent(struct io_outq *q, int res)
{
    q->sending = false;
    q->flight = 0;
    if (res > 0) io_outq_drop(q, (uint32_t)res);
}

static void io_outq_clear(struct io_outq *q)
{
    for (uint8_t i = 0; i < q->n; i++)
        if (q->own[i]) mem_buf_put(q->own[i]);
    q->n = 0;
    q->bytes = 0;
    q->flight = 0;
    q->sending = false;
}

/* Copies everything behind what is in flight into one buffer, so that there are free slots again. False without memory. */
static bool io_outq_squeeze(struct io_outq *q, struct io_loop *lp)
{
    struct mem_buf *b;
    uint32_t n = 0;

    for (uint8_t i = q->flight; i < q->n; i++) n += (uint32_t)q->iov[i].iov_len;
    if (!(b = io_buf(lp, n))) return false;
    for (uint8_t i = q->flight; i < q->n; i++) {
        memcpy(b->data + b->len, q->iov[i].iov_base, q->iov[i].iov_len);
        b->len += (uint32_t)q->iov[i].iov_len;
        if (q->own[i]) mem_buf_put(q->own[i]);
    }
    q->n = q->flight;
    q->bytes -= n;
    io_outq_add(q, b->data, n, b);
    return true;
}

/* Sends what the queue holds; IO_SENT follows with the bytes taken, which may be fewer. One send at a time on a socket. */
static inline void io_send(struct io_loop *lp, struct io_sock *s, struct io_outq *q)
{
    RJ_CHECK(!q->sending && q->n);
    q->sending = true;
    q->flight = q->n < IO_OUTQ_SEND ? q->n : IO_OUTQ_SEND;
    lp->ops->send(lp, s, q);
}

/* ---- pumps: splice(2) between two sockets ---- */

/* A pipe for p, when it has none. Returns 0 or -errno. */
static int io_pump_wake(struct io_loop *lp, struct io_pump *p)
{
    int rc;

    if (p->pipe[0] >= 0) return 0;
    if (lp->pipes_n) {
        memcpy(p->pipe, lp->pipes[--lp->pipes_n], sizeof p->pipe);
        return 0;
    }
    rc = sys_pipe(p->pipe, O_CLOEXEC | O_NONBLOCK);
    if (rc == 0 && rj.fd_limit && p->pipe[1] >= rj.fd_limit / 3) { /* the lowest free number: clients need the others more, and bytes can be copied */
        sys_close(p->pipe[0]);
        sys_close(p->pipe[1]);
        rc = -EMFILE;
    }
    if (rc < 0) p->pipe[0] = p->pipe[1] = -1;
    else sys_fcntl(p->pipe[0], SYS_SETPIPE_SZ, IO_PIPE_BYTES); /* refused beyond the user's share: then it stays smaller */
    return rc;
}

/* Takes a pipe for left bytes, a kept one when there is one. Returns 0 or -errno. The sockets must not block in splice: see io_set_blocking. */
static int io_pump_open(struct io_loop *lp, struct io_pump *p, uint64_t left)
{
    *p = (struct io_pump){.pipe = {-1, -1}, .left = left};
    return io_pump_wake(lp, p);
}

/* Keeps the pipe for the next pump when it is empty. */
static void io_pump_close(struct io_loop *lp, struct io_pump *p)
{
    if (p->pipe[0] < 0) return;
    if (!p->in_pipe && lp->pipes_n < IO_PIPES_KEPT) {
        memcpy(lp->pipes[lp->pipes_n++], p->pipe, sizeof p->pipe);
    } else {
        sys_close(p->pipe[0]);
        sys_close(p->pipe[1]);
    }
    p->pipe[0] = p->pipe[1] = -1;
    p->in_pipe = 0;
}

/* p waits for bytes: others may use its empty pipe meanwhile, or a thousand slow uploads would hold two thousand descriptors. */
static void io_pump_rest(struct io_loop *lp, struct io_pump *p)
{
    if (!p->in_pipe && lp->pipes_n < IO_PIPES_KEPT) io_pump_close(lp, p);
}

/* io_uring wants blocking descriptors (it returns EAGAIN on others instead of waiting), splice(2) wants non-blocking ones. */
static void io_set_blocking(const struct io_loop *lp, const struct io_sock *s, bool on)
{
    if (!lp->nonblocking && io_is_open(s)) sys_fcntl(s->fd, F_SETFL, O_RDWR | (on ? 0 : O_NONBLOCK));
}

/* Moves what can be moved now, at most a share of the turn. *moved: bytes that reached the destination; *res: the error when failed. */
static enum io_pump_state io_pump_run(struct io_pump *p, int from, int to, uint64_t *moved, int *res)
{
    *moved = 0;
    for (int share = 0; share < 16; share++) {
        bool dry = false;
        long n;

        if (p->left && p->in_pipe < IO_PIPE_BYTES) {
            uint64_t want = IO_PIPE_BYTES - p->in_pipe;

            n = sys_splice(from, p->pipe[1], want < p->left ? want : p->left);
            if (n == 0) return IO_PUMP_EOF;
            if (n < 0 && n != -EAGAIN && n != -EINTR) return *res = (int)n, IO_PUMP_FAILED_IN;
            if (n > 0) {
                p->in_pipe += (uint32_t)n;
                p->left -= (uint64_t)n;
            }
            dry = n == -EAGAIN && !p->in_pipe; /* with bytes in the pipe it may be the pipe that is full */
        }
        if (dry) return IO_PUMP_WAIT_IN;
        if (p->in_pipe) {
            n = sys_splice(p->pipe[0], to, p->in_pipe);
            if (n == -EAGAIN) return IO_PUMP_WAIT_OUT;
            if (n < 0 && n != -EINTR) return *res = (int)n, IO_PUMP_FAILED_OUT;
            if (n > 0) {
                p->in_pipe -= (uint32_t)n;
                *moved += (uint64_t)n;
            }
        }
        if (!p->left && !p->in_pipe) return IO_PUMP_DONE;
    }
    return IO_PUMP_AGAIN;
}

/* ============================================================================
 * ep_ : epoll backend
 *
 * Owns:    struct ep_loop.
 * Calls:   sys_ mem_ str_ io_
 * Threads: as the loop.
 * Rules:   1. A socket is registered once, edge-triggered, for both directions.
 *          2. A read shorter than the buffer means drained: no read ends in EAGAIN.
 *          3. Sends are tried at once; their completion is delivered from the ready list.
 * ========================================================================== */

enum { EP_EVENTS = 256, EP_ROUNDS = 4, EP_READS = 8 };

struct ep_loop {
    int fd;
    struct mem_buf *hot;                                 /* a big buffer that the next receive fills; it stays in the cache */
    struct sys_epoll_event events[EP_EVENTS];
};

static int ep_open(struct io_loop *lp)
{
    struct ep_loop *ep = mem_alloc(sizeof *ep);

    if (!ep) return -ENOMEM;
    ep->hot = NULL;
    ep->fd = sys_epoll_create();
    if (ep->fd < 0) {
        int rc = ep->fd;

        mem_free(ep);
        return rc;
    }
    lp->ep = ep;
    return 0;
}

static void ep_close(struct io_loop *lp)
{
    if (lp->ep->hot) mem_buf_put(lp->ep->hot);
    sys_close(lp->ep->fd);
    mem_free(lp->ep);
    lp->ep = NULL;
}

static int ep_add(struct io_loop *lp, struct io_sock *s)
{
    struct sys_epoll_event ev = {.events = SYS_EPOLL_IN | SYS_EPOLL_OUT | SYS_EPOLL_RDHUP | SYS_EPOLL_ET, .data = (uint64_t)(uintptr_t)s};

    return sys_epoll_ctl(lp->ep->fd, SYS_EPOLL_ADD, s->fd, &ev);
}

/* Asks for what flag stands for; the socket is looked at in this turn. */
static void ep_want(struct io_loop *lp, struct io_sock *s, uint16_t flag)
{
    s->flags |= flag;
    io_queue(lp, s);
}

static void ep_accept_start(struct io_loop *lp, struct io_sock *s) { ep_want(lp, s, IO_S_WANT_ACCEPT | IO_S_HAS_IN); }

static void ep_accept_stop(struct io_loop *lp, struct io_sock *s)
{
    s->flags &= (uint16_t)~IO_S_WANT_ACCEPT;
    ep_want(lp, s, IO_S_WANT_STOP);
}

static void ep_connect(struct io_loop *lp, struct io_sock *s, const void *sa, socklen_t n)
{
    int rc = sys_connect(s->fd, sa, n);

    if (rc == -EINPROGRESS) {
        s->flags |= IO_S_WANT_CONNECT;
        return;
    }
    s->res = rc;
    ep_want(lp, s, IO_S_WANT_CONNECT | IO_S_FAILED);
}

static void ep_recv_start(struct io_loop *lp, struct io_sock *s)
{
    s->flags |= IO_S_WANT_RECV;
    if (s->flags & (IO_S_HAS_IN | IO_S_HAS_HUP)) io_queue(lp, s);
}

static void ep_recv_big(struct io_loop *lp, struct io_sock *s)
{
    s->flags |= IO_S_WANT_BIG;
    if (s->flags & (IO_S_HAS_IN | IO_S_HAS_HUP)) io_queue(lp, s);
}

static void ep_recv_stop(struct io_loop *lp, struct io_sock *s)
{
    s->flags &= (uint16_t)~(IO_S_WANT_RECV | IO_S_WANT_BIG);
    ep_want(lp, s, IO_S_WANT_STOP);
}

static int ep_try_send(struct io_sock *s, struct io_outq *q)
{
    struct msghdr m = {.msg_iov = q->iov, .msg_iovlen = q->flight};

    if (q->flight == 1) return (int)sys_send(s->fd, q->iov[0].iov_base, q->iov[0].iov_len, MSG_NOSIGNAL);
    return (int)sys_sendmsg(s->fd, &m, MSG_NOSIGNAL);
}

static void ep_send(struct io_loop *lp, struct io_sock *s, struct io_outq *q)
{
    int rc = ep_try_send(s, q);

    if (rc == -EAGAIN || rc == -EINTR) {
        s->q = q;
        s->flags = (uint16_t)((s->flags | IO_S_WANT_SEND) & ~IO_S_HAS_OUT);
        return;
    }
    s->res = rc;
    ep_want(lp, s, IO_S_SENT);
}

static void ep_poll(struct io_loop *lp, struct io_sock *s, int what)
{
    if (what & IO_AGAIN) {
        ep_want(lp, s, IO_S_WANT_OUT | IO_S_HAS_OUT);
        return;
    }
    /* the caller saw EAGAIN: the next edge is still to come */
    if (what & IO_IN) s->flags = (uint16_t)((s->flags | IO_S_WANT_IN) & ~IO_S_HAS_IN);
    if (what & IO_OUT) s->flags = (uint16_t)((s->flags | IO_S_WANT_OUT) & ~IO_S_HAS_OUT);
    if (what & IO_IN && s->flags & IO_S_HAS_HUP) io_queue(lp, s);
}

/* epoll watches what is behind the descriptor: while a process that is being started has a copy of it, its close here ends nothing,
 * and events would come for a socket that is freed. */
static void ep_close_sock(struct io_loop *lp, struct io_sock *s)
{
    (void)sys_epoll_ctl(lp->ep->fd, SYS_EPOLL_DEL, s->fd, NULL);
    sys_close(s->fd);
    s->flags = (uint16_t)((s->flags & IO_S_QUEUED) | IO_S_CLOSING);
    io_queue(lp, s);
}

/* Clears flag when it is set; true when it was. */
static inline bool ep_take(struct io_sock *s, uint16_t flag)
{
    if (!(s->flags & flag)) return false;
    s->flags &= (uint16_t)~flag;
    return true;
}

static void ep_do_accept(struct io_loop *lp, struct io_sock *s)
{
    for (int i = 0; i < EP_READS && (s->flags & IO_S_WANT_ACCEPT); i++) {
        struct sockaddr_in6 sa;
        socklen_t n = sizeof sa;
        int fd = sys_accept(s->fd, &sa, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd == -EAGAIN) {
            s->flags &= (uint16_t)~IO_S_HAS_IN;
            return;
        }
        lp->peer = (struct net_addr){0};
        if (fd >= 0 && n >= sizeof(sa_family_t)) str_from_sockaddr(&sa, &lp->peer);
        s->handle(s, IO_ACCEPT, fd, NULL);
        if (fd != -EMFILE && fd != -ENFILE && fd != -ENOBUFS && fd != -ENOMEM) continue;
        if (s->flags & IO_S_WANT_ACCEPT) io_queue_later(lp, s); /* the owner has not paused, and no edge tells of who waits already */
        return;
    }
    if (s->flags & IO_S_WANT_ACCEPT) io_queue(lp, s);
}

/* One receive into the hot buffer. Returns false when there is nothing to read, or no buffer. */
static bool ep_do_recv(struct io_loop *lp, struct io_sock *s)
{
    bool once = s->flags & IO_S_WANT_BIG;
    struct mem_buf *b = lp->ep->hot;
    uint32_t max;
    int n;

    if (!b && !(b = lp->ep->hot = io_buf_in(lp))) {
        io_starve(lp, s);
        return false;
    }
    max = once && s->once_small && b->cap > MEM_SMALL_BYTES ? MEM_SMALL_BYTES : b->cap;
    do n = (int)sys_recv(s->fd, b->data, max, 0);
    while (n == -EINTR);
    if (n == -ENOTSOCK) n = (int)sys_read(s->fd, b->data, max);
    if (n < (int)max) s->flags &= (uint16_t)~IO_S_HAS_IN;
    if (n == -EAGAIN) {
        s->flags &= (uint16_t)~IO_S_HAS_HUP;
        return false;
    }
    b->len = n > 0 ? (uint32_t)n : 0;
    if (once || n <= 0) s->flags &= (uint16_t)~(IO_S_WANT_BIG | (n <= 0 ? IO_S_WANT_RECV : 0));
    if (once) s->once_small = false;
    s->handle(s, IO_RECV, n, b);
    if (b->refs > 1) { /* the handler keeps it */
        lp->ep->hot = NULL;
        mem_buf_put(b);
    }
    return true;
}

static void ep_do_in(struct io_loop *lp, struct io_sock *s)
{
    for (int i = 0; i < EP_READS; i++) {
        if (!(s->flags & (IO_S_WANT_RECV | IO_S_WANT_BIG)) || !(s->flags & (IO_S_HAS_IN | IO_S_HAS_HUP))) return;
        if (!ep_do_recv(lp, s)) return;
        if (s->flags & IO_S_CLOSING) return;
    }
    io_queue(lp, s);
}

/* Delivers everything that can be delivered for one socket. */
static void ep_service(struct io_loop *lp, struct io_sock *s)
{
    if (!(s->flags & IO_S_CLOSING) && ep_take(s, IO_S_SENT)) s->handle(s, IO_SENT, s->res, NULL);
    if ((s->flags & (IO_S_WANT_CONNECT | IO_S_CLOSING)) == IO_S_WANT_CONNECT && (s->flags & (IO_S_HAS_OUT | IO_S_HAS_HUP | IO_S_FAILED))) {
        int rc = ep_take(s, IO_S_FAILED) ? s->res : -sys_getsockopt(s->fd, SOL_SOCKET, SO_ERROR);

        s->flags &= (uint16_t)~IO_S_WANT_CONNECT;
        s->handle(s, IO_CONNECT, rc, NULL);
    }
    if ((s->flags & (IO_S_WANT_SEND | IO_S_CLOSING)) == IO_S_WANT_SEND && s->flags & IO_S_HAS_OUT) {
        int rc = ep_try_send(s, s->q);

        if (rc == -EAGAIN || rc == -EINTR) {
            s->flags &= (uint16_t)~IO_S_HAS_OUT;
        } else {
            s->flags &= (uint16_t)~IO_S_WANT_SEND;
            s->handle(s, IO_SENT, rc, NULL);
        }
    }
    if (!(s->flags & IO_S_CLOSING) && ep_take(s, IO_S_WANT_STOP)) s->handle(s, IO_STOPPED, 0, NULL);
    if ((s->flags & (IO_S_WANT_IN | IO_S_CLOSING)) == IO_S_WANT_IN && (s->flags & (IO_S_HAS_IN | IO_S_HAS_HUP))) {
        s->flags &= (uint16_t)~IO_S_WANT_IN;
        s->handle(s, IO_READY, IO_IN, NULL);
    }
    if ((s->flags & (IO_S_WANT_OUT | IO_S_CLOSING)) == IO_S_WANT_OUT && s->flags & IO_S_HAS_OUT) {
        s->flags &= (uint16_t)~IO_S_WANT_OUT;
        s->handle(s, IO_READY, IO_OUT, NULL);
    }
    if ((s->flags & (IO_S_WANT_ACCEPT | IO_S_CLOSING | IO_S_HAS_IN)) == (IO_S_WANT_ACCEPT | IO_S_HAS_IN)) ep_do_accept(lp, s);
    if (!(s->flags & IO_S_CLOSING)) ep_do_in(lp, s);
    if (s->flags & IO_S_CLOSING && !(s->flags & IO_S_QUEUED)) {
        s->fd = -1;
        s->handle(s, IO_CLOSED, 0, NULL);
    }
}

static uint32_t ep_turn(struct io_loop *lp, uint32_t timeout_ms)
{
    struct ep_loop *ep = lp->ep;
    uint32_t looked = 0;
    int n;

    io_sleeps();
    n = sys_epoll_wait(ep->fd, ep->events, EP_EVENTS, (int)timeout_ms);
    io_woke(lp);
    for (int i = 0; i < n; i++) { /* flags first: no call-back runs while this array may name a socket that it would free */
        struct io_sock *s = (struct io_sock *)(uintptr_t)ep->events[i].data;
        uint32_t e = ep->events[i].events;

        if (e & SYS_EPOLL_IN) s->flags |= IO_S_HAS_IN;
        if (e & (SYS_EPOLL_OUT | SYS_EPOLL_HUP | SYS_EPOLL_ERR)) s->flags |= IO_S_HAS_OUT; /* RDHUP says nothing about sending */
        if (e & (SYS_EPOLL_RDHUP | SYS_EPOLL_HUP | SYS_EPOLL_ERR)) s->flags |= IO_S_HAS_HUP;
        io_queue(lp, s);
    }
    for (int round = 0; round < EP_ROUNDS && lp->ready; round++) {
        struct io_sock *last = lp->ready_tail, *s;

        do {
            s = io_unqueue(lp);
            bool is_last = s == last; /* s may be gone after the call */

            ep_service(lp, s);
            looked++;
            if (is_last) break;
        } while (lp->ready);
    }
    return looked;
}

static const struct io_ops ep_ops = {
    .name = "epoll", .nonblocking = true, .open = ep_open, .close = ep_close, .turn = ep_turn, .add = ep_add, .accept_start = ep_accept_start,
    .accept_stop = ep_accept_stop, .connect = ep_connect, .recv_start = ep_recv_start, .recv_big = ep_recv_big, .recv_stop = ep_recv_stop,
    .send = ep_send, .poll = ep_poll, .close_sock = ep_close_sock,
};

/* ============================================================================
 * ur_ : io_uring backend
 *
 * Owns:    struct ur_loop.
 * Calls:   sys_ mem_ io_
 * Threads: as the loop (SINGLE_ISSUER).
 * Rules:   1. One enter per turn submits everything and waits; handlers only queue entries.
 *          2. user_data is operation, generation and slot; a completion of an older generation is dropped.
 *          3. A slot is freed when the kernel holds no operation of it; only then IO_CLOSED is delivered.
 *          4. A receive buffer that a handler keeps leaves the ring and is replaced; idle sockets hold none.
 *          5. Descriptors are blocking: io_uring waits on them by poll; io_set_blocking changes that for a pump.
 * ========================================================================== */

enum { UR_SQ = 512, UR_CQ = 8192, UR_BUFS = 64, UR_GROUP = 1, UR_LIMIT_SMALL = 8 << 20 }; /* below that ceiling the ring has small buffers */
enum ur_op { UR_ACCEPT, UR_CONNECT, UR_RECV, UR_BIG, UR_SEND, UR_POLL_IN, UR_POLL_OUT, UR_CANCEL, UR_CLOSE };

struct ur_slot {
    struct io_sock *s;                                   /* NULL: free; next_free then counts */
    struct mem_buf *big;                                 /* what a single receive fills */
    uint32_t next_free;
    uint16_t gen;
    uint16_t pending;                                    /* operations the kernel holds */
};

struct ur_loop {
    int fd;
    uint8_t *sq_map, *sqe_map;
    size_t sq_bytes, sqe_bytes;
    _Atomic uint32_t *sq_head, *sq_tail, *cq_head, *cq_tail; /* shared with the kernel */
    struct sys_uring_sqe *sqes;
    struct sys_uring_cqe *cqes;
    uint32_t sq_mask, cq_mask, sq_entries;
    uint32_t tail, submitted;                            /* of the submission queue, our side */
    struct mem_pool *pool;                               /* where buffers of the ring come from */
    struct sys_uring_buf *ring;                          /* UR_BUFS entries shared with the kernel */
    uint16_t ring_tail, ring_missing;
    struct mem_buf *bufs[UR_BUFS];                       /* by buffer id; NULL: not in the ring */
    struct ur_slot *slots;
    uint32_t slot_count, slot_cap, slot_free;            /* slot_free: head of the free list + 1 */
};

/* ---- submission ---- */

static int ur_enter(struct ur_loop *ur, uint32_t wait, const struct sys_timespec *ts)
{
    struct sys_uring_getevents arg = {.ts = (uint64_t)(uintptr_t)ts};
    uint32_t n = ur->tail - ur->submitted;
    int rc;

    atomic_store_explicit(ur->sq_tail, ur->tail, memory_order_release); /* the kernel acquires: entries are written */
    rc = sys_uring_enter(ur->fd, n, wait, SYS_URING_ENTER_GETEVENTS | SYS_URING_ENTER_EXT_ARG, &arg, sizeof arg);
    ur->submitted = atomic_load_explicit(ur->sq_head, memory_order_acquire); /* what the kernel has taken */
    return rc;
}

/* A cleared entry; enters when the queue is full. */
static struct sys_uring_sqe *ur_entry(struct ur_loop *ur)
{
    struct sys_uring_sqe *e;

    while (ur->tail - ur->submitted == ur->sq_entries) ur_enter(ur, 0, NULL);
    e = &ur->sqes[ur->tail++ & ur->sq_mask];
    memset(e, 0, sizeof *e);
    return e;
}

static inline uint64_t ur_tag(const struct io_sock *s, enum ur_op op) { return (uint64_t)s->slot << 32 | (uint64_t)s->gen << 8 | op; }

static struct sys_uring_sqe *ur_queue_op(struct ur_loop *ur, struct io_sock *s, enum ur_op op, uint8_t opcode)
{
    struct sys_uring_sqe *e = ur_entry(ur);

    e->opcode = opcode;
    e->fd = s->fd;
    e->user_data = ur_tag(s, op);
    ur->slots[s->slot].pending++;
    return e;
}

/* ---- the buffer ring ---- */

/* Puts b into the ring as id; visible to the kernel with the next ur_ring_publish. */
static void ur_ring_add(struct ur_loop *ur, struct mem_buf *b, uint16_t id)
{
    struct sys_uring_buf *e = &ur->ring[ur->ring_tail & (UR_BUFS - 1)];

    e->addr = (uint64_t)(uintptr_t)b->data;
    e->len = b->cap;
    e->bid = id;
    ur->bufs[id] = b;
    ur->ring_tail++;
}

static void ur_ring_publish(struct ur_loop *ur) { __atomic_store_n(&ur->ring[0].tail, ur->ring_tail, __ATOMIC_RELEASE); /* the kernel acquires */ }

/* A buffer for the ring: one of its pool, or small where content may take no more. */
static struct mem_buf *ur_ring_buf(struct io_loop *lp)
{
    struct mem_buf *b = mem_buf_new(lp->ur->pool);

    return b ? b : mem_buf_new(&lp->small);
}

/* Fills ids that hold no buffer. */
static void ur_ring_fill(struct io_loop *lp)
{
    struct ur_loop *ur = lp->ur;

    for (uint16_t id = 0; id < UR_BUFS && ur->ring_missing; id++) {
        struct mem_buf *b;

        if (ur->bufs[id]) continue;
        if (!(b = ur_ring_buf(lp))) break;
        ur_ring_add(ur, b, id);
        ur->ring_missing--;
    }
    ur_ring_publish(ur);
}

/* ---- open and probe ---- */

static int ur_map_rings(struct ur_loop *ur, const struct sys_uring_params *p)
{
    size_t cq = p->cq_off.cqes + (size_t)p->cq_entries * sizeof(struct sys_uring_cqe);
    long m;

    ur->sq_bytes = p->sq_off.array + (size_t)p->sq_entries * 4;
    if (cq > ur->sq_bytes) ur->sq_bytes = cq;
    ur->sqe_bytes = (size_t)p->sq_entries * sizeof(struct sys_uring_sqe);
    m = SYS_CALL(SYS_mmap, 0, ur->sq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ur->fd, SYS_URING_OFF_SQ_RING);
    if (m < 0 && m > -4096) return (int)m;
    ur->sq_map = (uint8_t *)m;
    m = SYS_CALL(SYS_mmap, 0, ur->sqe_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ur->fd, SYS_URING_OFF_SQES);
    if (m < 0 && m > -4096) return (int)m;
    ur->sqe_map = (uint8_t *)m;
    ur->sqes = (struct sys_uring_sqe *)ur->sqe_map;
    ur->sq_head = (_Atomic uint32_t *)(ur->sq_map + p->sq_off.head);
    ur->sq_tail = (_Atomic uint32_t *)(ur->sq_map + p->sq_off.tail);
    ur->cq_head = (_Atomic uint32_t *)(ur->sq_map + p->cq_off.head);
    ur->cq_tail = (_Atomic uint32_t *)(ur->sq_map + p->cq_off.tail);
    ur->cqes = (struct sys_uring_cqe *)(ur->sq_map + p->cq_off.cqes);
    ur->sq_mask = p->sq_entries - 1;
    ur->cq_mask = p->cq_entries - 1;
    ur->sq_entries = p->sq_entries;
    for (uint32_t i = 0; i < p->sq_entries; i++) ((uint32_t *)(ur->sq_map + p->sq_off.array))[i] = i;
    return 0;
}

static void ur_close(struct io_loop *lp)
{
    struct ur_loop *ur = lp->ur;

    if (!ur) return;
    if (ur->sqes) ur_enter(ur, 0, NULL); /* what is queued are the last closes */
    if (ur->fd >= 0) sys_close(ur->fd);
    if (ur->sq_map) sys_unmap(ur->sq_map, ur->sq_bytes);
    if (ur->sqe_map) sys_unmap(ur->sqe_map, ur->sqe_bytes);
    for (uint32_t i = 0; i < UR_BUFS; i++)
        if (ur->bufs[i]) mem_buf_put(ur->bufs[i]);
    if (ur->ring) sys_unmap(ur->ring, UR_BUFS * sizeof(struct sys_uring_buf));
    mem_free(ur->slots);
    mem_free(ur);
    lp->ur = NULL;
}

static int ur_open_rings(struct io_loop *lp, struct ur_loop *ur)
{
    struct sys_uring_params p = {.cq_entries = UR_CQ};
    struct sys_uring_buf_reg reg = {.ring_entries = UR_BUFS, .bgid = UR_GROUP};
    const uint32_t need = SYS_URING_FEAT_SINGLE_MMAP | SYS_URING_FEAT_NODROP | SYS_URING_FEAT_SUBMIT_STABLE | SYS_URING_FEAT_EXT_ARG;
    int rc;

    p.flags = SYS_URING_SETUP_CQSIZE | SYS_URING_SETUP_CLAMP | SYS_URING_SETUP_SUBMIT_ALL | SYS_URING_SETUP_SINGLE_ISSUER | SYS_URING_SETUP_DEFER_TASKRUN;
    if ((ur->fd = sys_uring_setup(UR_SQ, &p)) < 0) return ur->fd;
    sys_fcntl(ur->fd, F_SETFD, FD_CLOEXEC);
    if ((p.features & need) != need) return -EOPNOTSUPP;
    if ((rc = ur_map_rings(ur, &p)) < 0) return rc;
    if (!(ur->ring = sys_map(UR_BUFS * sizeof(struct sys_uring_buf)))) return -ENOMEM;
    reg.ring_addr = (uint64_t)(uintptr_t)ur->ring;
    if ((rc = sys_uring_register(ur->fd, SYS_URING_REGISTER_PBUF_RING, &reg, 1)) < 0) return rc;
    ur->ring_missing = UR_BUFS;
    ur_ring_fill(lp);
    return 0;
}

static int ur_open(struct io_loop *lp)
{
    struct ur_loop *ur = mem_alloc(sizeof *ur);
    int rc;

    if (!ur) return -ENOMEM;
    memset(ur, 0, sizeof *ur);
    ur->fd = -1;
    ur->pool = lp->medium.limit && lp->medium.limit < UR_LIMIT_SMALL ? &lp->small : &lp->medium;
    lp->ur = ur;
    rc = ur_open_rings(lp, ur);
    if (rc < 0) ur_close(lp);
    return rc;
}

/* ---- slots ---- */

static int ur_add(struct io_loop *lp, struct io_sock *s)
{
    struct ur_loop *ur = lp->ur;
    struct ur_slot *slot;

    if (ur->slot_free) {
        s->slot = ur->slot_free - 1;
        ur->slot_free = ur->slots[s->slot].next_free;
    } else {
        if (ur->slot_count == ur->slot_cap) {
            uint32_t cap = ur->slot_cap ? ur->slot_cap + ur->slot_cap / 2 : 64;
            struct ur_slot *slots = mem_realloc(ur->slots, cap * sizeof *slots);

            if (!slots) return -ENOMEM;
            ur->slots = slots;
            ur->slot_cap = cap;
        }
        s->slot = ur->slot_count++;
        ur->slots[s->slot].gen = 0;
    }
    slot = &ur->slots[s->slot];
    slot->s = s;
    slot->big = NULL;
    slot->pending = 0;
    s->gen = slot->gen;
    return 0;
}

static void ur_slot_free(struct ur_loop *ur, struct io_sock *s)
{
    struct ur_slot *slot = &ur->slots[s->slot];

    slot->s = NULL;
    slot->gen++;
    slot->next_free = ur->slot_free;
    ur->slot_free = s->slot + 1;
}

/* ---- operations ---- */

static void ur_arm_accept(struct io_loop *lp, struct io_sock *s)
{
    struct sys_uring_sqe *e = ur_queue_op(lp->ur, s, UR_ACCEPT, SYS_URING_ACCEPT);

    if (!s->bounded) e->ioprio = SYS_URING_ACCEPT_MULTISHOT;
    e->op_flags = SOCK_CLOEXEC;
    s->flags |= IO_S_ARMED;
}

static void ur_accept_start(struct io_loop *lp, struct io_sock *s)
{
    s->flags |= IO_S_WANT_ACCEPT;
    if (!(s->flags & IO_S_ARMED)) ur_arm_accept(lp, s);
}

static void ur_arm_recv(struct io_loop *lp, struct io_sock *s)
{
    struct sys_uring_sqe *e = ur_queue_op(lp->ur, s, UR_RECV, SYS_URING_RECV);

    if (!s->bounded) e->ioprio = SYS_URING_RECV_MULTISHOT;
    e->flags = SYS_URING_SQE_BUFFER_SELECT;
    e->buf_group = UR_GROUP;
    s->flags |= IO_S_ARMED;
}

static void ur_recv_start(struct io_loop *lp, struct io_sock *s)
{
    s->flags |= IO_S_WANT_RECV;
    if (s->flags & IO_S_FAILED) io_queue(lp, s);
    else if (!(s->flags & (IO_S_ARMED | IO_S_WANT_STOP))) ur_arm_recv(lp, s);
}

/* Cancels the operation op of s; its own completion tells the end. */
static void ur_cancel(struct ur_loop *ur, struct io_sock *s, enum ur_op op)
{
    struct sys_uring_sqe *e = ur_entry(ur);

    e->opcode = SYS_URING_ASYNC_CANCEL;
    e->fd = -1;
    e->addr = ur_tag(s, op);
    e->user_data = (uint64_t)UR_CANCEL;
}

static void ur_stop(struct io_loop *lp, struct io_sock *s, uint16_t want, enum ur_op op)
{
    s->flags = (uint16_t)((s->flags & ~want) | IO_S_WANT_STOP);
    if (s->flags & IO_S_ARMED) ur_cancel(lp->ur, s, op);
    else io_queue(lp, s);
}

static void ur_accept_stop(struct io_loop *lp, struct io_sock *s) { ur_stop(lp, s, IO_S_WANT_ACCEPT, UR_ACCEPT); }

static void ur_recv_stop(struct io_loop *lp, struct io_sock *s)
{
    ur_stop(lp, s, IO_S_WANT_RECV | IO_S_WANT_BIG, s->flags & IO_S_WANT_BIG ? UR_BIG : UR_RECV);
}

static void ur_recv_big(struct io_loop *lp, struct io_sock *s)
{
    struct ur_slot *slot = &lp->ur->slots[s->slot];
    struct sys_uring_sqe *e;

    RJ_CHECK(!(s->flags & IO_S_ARMED));
    s->flags |= IO_S_WANT_BIG;
    if (s->flags & IO_S_FAILED) {
        io_queue(lp, s);
        return;
    }
    slot->big = s->once_small ? mem_buf_new(&lp->small) : io_buf_in(lp);
    if (!slot->big) {
        io_starve(lp, s);
        return;
    }
    e = ur_queue_op(lp->ur, s, UR_BIG, SYS_URING_RECV);
    e->ioprio = SYS_URING_RECV_POLL_FIRST;
    e->addr = (uint64_t)(uintptr_t)slot->big->data;
    e->len = slot->big->cap;
    s->flags |= IO_S_ARMED;
}

static void ur_connect(struct io_loop *lp, struct io_sock *s, const void *sa, socklen_t n)
{
    struct sys_uring_sqe *e = ur_queue_op(lp->ur, s, UR_CONNECT, SYS_URING_CONNECT);

    e->addr = (uint64_t)(uintptr_t)sa;
    e->off = n;
}

static void ur_send(struct io_loop *lp, struct io_sock *s, struct io_outq *q)
{
    struct sys_uring_sqe *e;

    if (q->flight == 1) {
        e = ur_queue_op(lp->ur, s, UR_SEND, SYS_URING_SEND);
        e->addr = (uint64_t)(uintptr_t)q->iov[0].iov_base;
        e->len = (uint32_t)q->iov[0].iov_len;
    } else {
        q->msg = (struct msghdr){.msg_iov = q->iov, .msg_iovlen = q->flight};
        e = ur_queue_op(lp->ur, s, UR_SEND, SYS_URING_SENDMSG);
        e->addr = (uint64_t)(uintptr_t)&q->msg;
        e->len = 1;
    }
    e->op_flags = MSG_NOSIGNAL;
}

static void ur_poll(struct io_loop *lp, struct io_sock *s, int what)
{
    struct sys_uring_sqe *e = ur_queue_op(lp->ur, s, what & IO_IN ? UR_POLL_IN : UR_POLL_OUT, SYS_URING_POLL_ADD);

    e->op_flags = what & IO_IN ? 0x2001 : 0x0004; /* POLLIN | POLLRDHUP, POLLOUT */
}

static void ur_close_sock(struct io_loop *lp, struct io_sock *s)
{
    struct ur_loop *ur = lp->ur;
    uint16_t receives = s->flags & (IO_S_ARMED | IO_S_WANT_RECV | IO_S_WANT_BIG);
    struct sys_uring_sqe *e;

    if (s->flags & IO_S_CLOSING) return;
    s->flags = (uint16_t)((s->flags & IO_S_QUEUED) | IO_S_CLOSING);
    if (!ur->slots[s->slot].pending) {
        io_queue(lp, s);
        return;
    }
    if (ur->slots[s->slot].pending == 1 && receives == (IO_S_ARMED | IO_S_WANT_RECV)) { /* by descriptor the kernel looks at all operations */
        ur_cancel(ur, s, UR_RECV);
        return;
    }
    e = ur_entry(ur);
    e->opcode = SYS_URING_ASYNC_CANCEL;
    e->fd = s->fd;
    e->op_flags = SYS_URING_CANCEL_FD | SYS_URING_CANCEL_ALL;
    e->user_data = (uint64_t)UR_CANCEL;
}

/* ---- completions ---- */

/* The subscription of s ended with res: starts it again, tells the owner that it stopped, or hands the end on. */
static void ur_recv_ended(struct io_loop *lp, struct io_sock *s, int res)
{
    if (s->flags & IO_S_ARMED) return; /* the handler has started it again */
    if (s->flags & IO_S_WANT_STOP) {
        if (res < 0 && res != -ECANCELED && res != -ENOBUFS && res != -EAGAIN && res != -EINTR) {
            s->flags |= IO_S_FAILED; /* an error is reported once by the kernel: kept for the next receive */
            s->res = res;
        }
        s->flags &= (uint16_t)~IO_S_WANT_STOP;
        s->handle(s, IO_STOPPED, 0, NULL);
        if (s->flags & IO_S_FAILED && !(s->flags & IO_S_CLOSING)) io_queue(lp, s);
        else if (s->flags & IO_S_WANT_RECV && !(s->flags & (IO_S_ARMED | IO_S_CLOSING))) ur_arm_recv(lp, s);
        return;
    }
    if (res == -ENOBUFS || res == -EAGAIN) { /* no buffer, or a pump has the descriptor non-blocking for a while */
        if (res == -EAGAIN || lp->ur->ring_missing) io_starve(lp, s);
        else io_queue(lp, s); /* armed again from the ready list: this turn gives buffers back */
        return;
    }
    if (res <= 0 && res != -EINTR && res != -ECANCELED) {
        s->flags &= (uint16_t)~IO_S_WANT_RECV;
        s->handle(s, IO_RECV, res, NULL);
        return;
    }
    if (s->flags & IO_S_WANT_RECV) ur_arm_recv(lp, s);
}

/* Buffer id came with n bytes for s (NULL: nobody wants it). */
static void ur_recv_data(struct io_loop *lp, struct io_sock *s, uint16_t id, int n)
{
    struct ur_loop *ur = lp->ur;
    struct mem_buf *b = ur->bufs[id];

    b->len = (uint32_t)n;
    if (s && s->flags & IO_S_WANT_RECV) s->handle(s, IO_RECV, n, b);
    else if (s && s->flags & IO_S_WANT_STOP) s->handle(s, IO_RECV, n, b); /* it came before the stop took effect */
    if (b->refs == 1) {
        ur_ring_add(ur, b, id);
        return;
    }
    mem_buf_put(b);
    ur->bufs[id] = NULL;
    if ((b = ur_ring_buf(lp))) ur_ring_add(ur, b, id);
    else ur->ring_missing++;
}

static void ur_on_recv(struct io_loop *lp, struct io_sock *s, const struct sys_uring_cqe *c)
{
    bool closing = s->flags & IO_S_CLOSING, more = c->flags & SYS_URING_CQE_MORE;
    int res = c->res;

    if (!more) s->flags &= (uint16_t)~IO_S_ARMED;
    if (c->flags & SYS_URING_CQE_BUFFER) ur_recv_data(lp, closing ? NULL : s, (uint16_t)(c->flags >> SYS_URING_CQE_BUFFER_SHIFT), res > 0 ? res : 0);
    if (!more && !(s->flags & IO_S_CLOSING)) ur_recv_ended(lp, s, res);
}

static void ur_on_big(struct io_loop *lp, struct io_sock *s, struct mem_buf *b, int res)
{
    s->flags &= (uint16_t)~IO_S_ARMED;
    if (s->flags & IO_S_CLOSING) {
        mem_buf_put(b);
        return;
    }
    if (res == -ECANCELED && s->flags & IO_S_WANT_STOP) {
        mem_buf_put(b);
        ur_recv_ended(lp, s, res);
        return;
    }
    if (res == -EAGAIN) {
        mem_buf_put(b);
        io_starve(lp, s);
        return;
    }
    b->len = res > 0 ? (uint32_t)res : 0;
    s->once_small = false;
    s->flags &= (uint16_t)~IO_S_WANT_BIG;
    s->handle(s, IO_RECV, res, b);
    mem_buf_put(b);
    if (s->flags & (IO_S_CLOSING | IO_S_ARMED)) return;
    if (s->flags & IO_S_WANT_STOP) ur_recv_ended(lp, s, 0);
    else if (s->flags & IO_S_WANT_RECV) ur_arm_recv(lp, s);
}

static void ur_on_accept(struct io_loop *lp, struct io_sock *s, const struct sys_uring_cqe *c)
{
    if (s->flags & IO_S_CLOSING) {
        if (c->res >= 0) sys_close(c->res);
        return;
    }
    lp->peer.family = 0;
    if (c->res != -ECANCELED) s->handle(s, IO_ACCEPT, c->res, NULL);
    if (c->flags & SYS_URING_CQE_MORE || s->flags & IO_S_CLOSING) return;
    s->flags &= (uint16_t)~IO_S_ARMED;
    if (s->flags & IO_S_WANT_STOP) {
        s->flags &= (uint16_t)~IO_S_WANT_STOP;
        s->handle(s, IO_STOPPED, 0, NULL);
    }
    if (s->flags & IO_S_WANT_ACCEPT && !(s->flags & (IO_S_ARMED | IO_S_CLOSING))) ur_arm_accept(lp, s);
}

/* The kernel also reports the peer's half-close, which says nothing about sending: then the wait goes on a tick later. */
static void ur_on_poll_out(struct io_loop *lp, struct io_sock *s, int res)
{
    if (s->flags & IO_S_CLOSING) return;
    if (res < 0 || res & (SYS_EPOLL_OUT | SYS_EPOLL_ERR | SYS_EPOLL_HUP)) {
        s->handle(s, IO_READY, IO_OUT, NULL);
        return;
    }
    s->flags |= IO_S_WANT_OUT;
    io_queue_later(lp, s);
}

static void ur_complete(struct io_loop *lp, const struct sys_uring_cqe *c)
{
    struct ur_loop *ur = lp->ur;
    enum ur_op op = c->user_data & 0xff;
    uint32_t index = (uint32_t)(c->user_data >> 32);
    struct ur_slot *slot;
    struct io_sock *s;
    struct mem_buf *big;

    if (op == UR_CANCEL || op == UR_CLOSE) return;
    if (RJ_NEVER(index >= ur->slot_count)) return;
    slot = &ur->slots[index];
    s = slot->s;
    if (RJ_NEVER(!s || slot->gen != (uint16_t)(c->user_data >> 8))) return;
    if (!(c->flags & SYS_URING_CQE_MORE)) slot->pending--;
    switch (op) {
    case UR_ACCEPT: ur_on_accept(lp, s, c); break;
    case UR_RECV: ur_on_recv(lp, s, c); break;
    case UR_BIG:
        big = slot->big; /* the slot table may move in the call-back */
        slot->big = NULL;
        ur_on_big(lp, s, big, c->res);
        break;
    case UR_SEND: if (!(s->flags & IO_S_CLOSING)) s->handle(s, IO_SENT, c->res, NULL); break;
    case UR_CONNECT: if (!(s->flags & IO_S_CLOSING)) s->handle(s, IO_CONNECT, c->res, NULL); break;
    case UR_POLL_IN: if (!(s->flags & IO_S_CLOSING)) s->handle(s, IO_READY, IO_IN, NULL); break;
    case UR_POLL_OUT: ur_on_poll_out(lp, s, c->res); break;
    case UR_CANCEL: case UR_CLOSE: break;
    }
    slot = &ur->slots[index];
    if (s->flags & IO_S_CLOSING && !slot->pending) io_queue(lp, s);
}

/* What does not come from the kernel: closes, stops of what was not armed, receives that found no buffer. */
static void ur_service(struct io_loop *lp, struct io_sock *s)
{
    if (s->flags & IO_S_CLOSING) {
        struct sys_uring_sqe *e;

        if (lp->ur->slots[s->slot].pending) return; /* its last completion queues it again */
        e = ur_entry(lp->ur);
        e->opcode = SYS_URING_CLOSE;
        e->fd = s->fd;
        e->flags = SYS_URING_SQE_CQE_SKIP;
        e->user_data = (uint64_t)UR_CLOSE;
        ur_slot_free(lp->ur, s);
        s->fd = -1;
        s->handle(s, IO_CLOSED, 0, NULL);
        return;
    }
    if (s->flags & IO_S_WANT_OUT) {
        s->flags &= (uint16_t)~IO_S_WANT_OUT;
        ur_poll(lp, s, IO_OUT);
    }
    if (s->flags & IO_S_WANT_STOP && !(s->flags & IO_S_ARMED)) {
        ur_recv_ended(lp, s, 0);
        return;
    }
    if (s->flags & IO_S_ARMED) return;
    if (s->flags & IO_S_FAILED && s->flags & (IO_S_WANT_RECV | IO_S_WANT_BIG)) {
        s->flags &= (uint16_t)~(IO_S_FAILED | IO_S_WANT_RECV | IO_S_WANT_BIG);
        s->handle(s, IO_RECV, s->res, NULL);
        return;
    }
    if (s->flags & IO_S_WANT_RECV) ur_arm_recv(lp, s);
    else if (s->flags & IO_S_WANT_BIG) ur_recv_big(lp, s);
}

static uint32_t ur_turn(struct io_loop *lp, uint32_t timeout_ms)
{
    struct ur_loop *ur = lp->ur;
    struct sys_timespec ts = {timeout_ms / 1000, (int64_t)(timeout_ms % 1000) * 1000000};
    uint32_t head = atomic_load_explicit(ur->cq_head, memory_order_relaxed), first = head, looked = 0, tail;
    struct io_sock *last, *s;

    io_sleeps();
    tail = atomic_load_explicit(ur->cq_tail, memory_order_acquire); /* the kernel's release: entries are written */
    ur_enter(ur, timeout_ms && head == tail, &ts);
    io_woke(lp);
    for (;;) {
        tail = atomic_load_explicit(ur->cq_tail, memory_order_acquire); /* as above */
        if (head == tail) break;
        while (head != tail) {
            struct sys_uring_cqe c = ur->cqes[head++ & ur->cq_mask];

            atomic_store_explicit(ur->cq_head, head, memory_order_release); /* the entry was copied: the kernel may reuse it */
            ur_complete(lp, &c);
        }
    }
    last = lp->ready_tail;
    while ((s = io_unqueue(lp))) {
        bool is_last = s == last; /* s may be gone after the call */

        ur_service(lp, s);
        looked++;
        if (is_last) break;
    }
    if (ur->ring_missing) ur_ring_fill(lp);
    else ur_ring_publish(ur);
    return looked + (head - first);
}

static const struct io_ops ur_ops = {
    .name = "uring", .open = ur_open, .close = ur_close, .turn = ur_turn, .add = ur_add, .accept_start = ur_accept_start,
    .accept_stop = ur_accept_stop, .connect = ur_connect, .recv_start = ur_recv_start, .recv_big = ur_recv_big, .recv_stop = ur_recv_stop,
    .send = ur_send, .poll = ur_poll, .close_sock = ur_close_sock,
};

/* ---- probe ---- */

struct ur_probe_sock {
    struct io_sock s;
    int bytes, stopped;
};

static void ur_probe_event(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct ur_probe_sock *p = RJ_CONTAINER(s, struct ur_probe_sock, s);

    (void)buf;
    if (ev == IO_RECV) p->bytes = res > 0 ? p->bytes + res : res;
    if (ev == IO_STOPPED) p->stopped = 1;
}

/* Uses what the engine needs once, on a socket pair: ring, buffer ring, multishot receive, cancel. Returns 0, or -errno with *what. */
static int ur_probe(const char **what)
{
    struct io_loop lp = {0};
    struct ur_probe_sock p = {.bytes = 0};
    int fd[2], rc;

    *what = "io_uring_setup or buffer ring";
    if ((rc = io_loop_open(&lp, &ur_ops, 0)) < 0) return rc;
    *what = "multishot receive";
    io_sock_init(&p.s, ur_probe_event);
    rc = sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd);
    if (rc == 0 && (rc = io_adopt(&lp, &p.s, fd[0])) == 0) {
        io_recv_start(&lp, &p.s);
        sys_send(fd[1], "ab", 2, MSG_NOSIGNAL);
        for (int i = 0; i < 20 && p.bytes == 0; i++) io_turn(&lp, 50);
        if (p.bytes > 0) io_recv_stop(&lp, &p.s);
        for (int i = 0; i < 20 && p.bytes > 0 && !p.stopped; i++) io_turn(&lp, 50);
        if (p.bytes != 2 || !p.stopped) rc = p.bytes < 0 ? p.bytes : -EOPNOTSUPP;
        sys_close(fd[0]);
        sys_close(fd[1]);
    }
    io_loop_close(&lp);
    return rc;
}

/* ============================================================================
 * dns_ : Stub resolver
 *
 * Owns:    struct dns, struct dns_name, struct dns_watch, struct dns_query; the packet form of RFC 1035.
 * Calls:   sys_ mem_ str_ map_ clk_ log_ io_
 * Threads: control; the parsers are pure.
 * Rules:   1. Never blocks; a call-back never comes from inside the call that asked.
 *          2. An answer counts only with the id and the question that were sent; no name is followed past the packet or in a loop.
 *          3. A server that is down takes no known address away; an answer that there is no such name does.
 * ========================================================================== */

enum {
    DNS_TTL_MIN_S = 1, DNS_TTL_MAX_S = 3600, DNS_ABSENT_MAX_S = 30, DNS_ABSENT_S = 5, DNS_RETRY_MAX_S = 30,
    DNS_CHAIN_MAX = 16, DNS_CHASE_MAX = 8, DNS_FILE_MAX = 1 << 20, DNS_RESOLV_AGE_MS = 5000, DNS_PORT = 53,
    DNS_RCODE_OK = 0, DNS_RCODE_NO_NAME = 3, DNS_CLASS_IN = 1,
};

/* ---- the packet ---- */

static inline uint16_t dns_u16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t dns_u32(const uint8_t *p) { return (uint32_t)dns_u16(p) << 16 | dns_u16(p + 2); }

static bool dns_wire_eq(const struct dns_wire *a, const struct dns_wire *b) { return a->n == b->n && memcmp(a->p, b->p, a->n) == 0; }

/* Appends the labels of text (letters, digits, - and _; a dot at the end is allowed) in lower case, without the empty label. */
static bool dns_put_labels(struct dns_wire *w, struct str text)
{
    struct str label;

    if (text.n && text.p[text.n - 1] == '.') text.n--;
    if (!text.n) return false;
    while (str_cut(&text, '.', &label)) {
        if (!label.n || label.n > 63 || w->n + 1 + label.n + 1 > DNS_WIRE_MAX) return false;
        w->p[w->n++] = (uint8_t)label.n;
        for (size_t i = 0; i < label.n; i++) {
            uint8_t c = str_lower(label.p[i]);

            if (!(c >= 'a' && c <= 'z') && !str_is_digit(c) && c != '-' && c != '_') return false;
            w->p[w->n++] = c;
        }
    }
    return true;
}

/* The name text, with search behind it unless that is empty, on the wire. False when it is no name. */
static bool dns_put_name(struct dns_wire *w, struct str text, struct str search)
{
    w->n = 0;
    if (!dns_put_labels(w, text) || (search.n && !dns_put_labels(w, search))) return false;
    w->p[w->n++] = 0;
    return true;
}

/* A query with recursion desired at out, which holds DNS_QUERY_MAX - 2 bytes. Returns its length. */
static uint32_t dns_put_query(uint8_t *out, uint16_t id, const struct dns_wire *name, uint16_t type)
{
    const uint8_t head[12] = {(uint8_t)(id >> 8), (uint8_t)id, 1, 0, 0, 1};
    uint8_t *p = out + 12;

    memcpy(out, head, sizeof head);
    memcpy(p, name->p, name->n);
    p += name->n;
    *p++ = (uint8_t)(type >> 8);
    *p++ = (uint8_t)type;
    *p++ = 0;
    *p++ = DNS_CLASS_IN;
    return (uint32_t)(p - out);
}

/* Reads the name at offset at, in lower case; w may be NULL. Returns the offset behind it, or RJ_BAD. A compression pointer
 * (RFC 1035 section 4.1.4) has to point before the labels that led to it, so that no chain of them can loop. */
static long dns_read_name(struct str packet, size_t at, struct dns_wire *w)
{
    size_t first = at, total = 0;
    long end = -1;

    if (w) w->n = 0;
    for (;;) {
        uint8_t len;

        if (at >= packet.n) return RJ_BAD;
        len = packet.p[at];
        if ((len & 0xc0) == 0xc0) {
            size_t to;

            if (at + 1 >= packet.n) return RJ_BAD;
            to = dns_u16(packet.p + at) & 0x3fff;
            if (to >= first) return RJ_BAD;
            if (end < 0) end = (long)at + 2;
            at = first = to;
            continue;
        }
        if (len & 0xc0 || len >= packet.n - at || (total += 1u + len) > DNS_WIRE_MAX) return RJ_BAD;
        for (size_t i = 0; w && i <= len; i++) w->p[w->n++] = i ? str_lower(packet.p[at + i]) : len;
        at += 1u + len;
        if (!len) return end < 0 ? (long)at : end;
    }
}

/* One resource record: its fields and where its data stands. */
struct dns_record {
    struct dns_wire owner;
    uint16_t type, class;
    uint32_t ttl_s;
    size_t data_at, data_n;
};

/* Returns the offset behind the record at offset at, or RJ_BAD. */
static long dns_read_record(struct str packet, size_t at, struct dns_record *r)
{
    long end = dns_read_name(packet, at, &r->owner);
    const uint8_t *p;

    if (end < 0 || packet.n - (size_t)end < 10) return RJ_BAD;
    p = packet.p + end;
    r->type = dns_u16(p);
    r->class = dns_u16(p + 2);
    r->ttl_s = dns_u32(p + 4);
    if (r->ttl_s >> 31) r->ttl_s = 0;                    /* RFC 2181 section 8 */
    r->data_at = (size_t)end + 10;
    r->data_n = dns_u16(p + 8);
    if (r->data_n > packet.n - r->data_at) return RJ_BAD;
    return (long)(r->data_at + r->data_n);
}

/* Takes the address of the record, unless it is there or there is no room. */
static void dns_add_addr(struct dns_reply *out, const uint8_t *data, uint16_t type)
{
    struct net_addr a = {.family = type == DNS_A ? AF_INET : AF_INET6};

    if (out->n == DNS_ADDRS_MAX) return;
    if (type == DNS_A) {
        a.ip[10] = a.ip[11] = 0xff;
        memcpy(a.ip + 12, data, 4);
    } else {
        memcpy(a.ip, data, 16);
    }
    for (uint32_t i = 0; i < out->n; i++)
        if (str_addr_eq(&out->addr[i], &a)) return;
    out->addr[out->n++] = a;
}

/* Walks the count records at offset at once for owner: takes its addresses, and the target of its CNAME into next.
 * Returns the offset behind them, or RJ_BAD. */
static long dns_read_answers(struct str packet, long at, uint32_t count, const struct dns_wire *owner, uint16_t type, struct dns_reply *out,
                             struct dns_wire *next)
{
    struct dns_record r;

    next->n = 0;
    while (count--) {
        if ((at = dns_read_record(packet, (size_t)at, &r)) < 0) return RJ_BAD;
        if (r.class != DNS_CLASS_IN || !dns_wire_eq(&r.owner, owner)) continue;
        if (r.type == type) {
            if (r.data_n != (type == DNS_A ? 4 : 16)) return RJ_BAD;
            dns_add_addr(out, packet.p + r.data_at, type);
        } else if (r.type == DNS_CNAME) {
            if (dns_read_name(packet, r.data_at, next) != at) return RJ_BAD;
        } else {
            continue;
        }
        if (r.ttl_s < out->ttl_s) out->ttl_s = r.ttl_s;
    }
    return at;
}

/* How long the absence may be kept: RFC 2308 section 5, from the SOA among the count records at offset at; 0 without one. */
static uint32_t dns_read_absence(struct str packet, long at, uint32_t count)
{
    struct dns_record r;

    while (count--) {
        uint32_t minimum;

        if ((at = dns_read_record(packet, (size_t)at, &r)) < 0) return 0;
        if (r.type != DNS_SOA || r.class != DNS_CLASS_IN || r.data_n < 22) continue;
        minimum = dns_u32(packet.p + at - 4);
        return r.ttl_s < minimum ? r.ttl_s : minimum;
    }
    return 0;
}

/* Reads the response to the query (id, name, type). Returns 0, or RJ_BAD when it is malformed or answers something else. */
static int dns_read_reply(struct str packet, uint16_t id, const struct dns_wire *name, uint16_t type, struct dns_reply *out)
{
    struct dns_wire question, owner = *name, next;
    uint32_t answers;
    long at, end;

    out->n = 0;
    out->last.n = 0;
    out->ttl_s = UINT32_MAX;
    if (packet.n < 12 || dns_u16(packet.p) != id || (packet.p[2] & 0xf8) != 0x80 || dns_u16(packet.p + 4) != 1) return RJ_BAD;
    at = dns_read_name(packet, 12, &question);
    if (at < 0 || packet.n - (size_t)at < 4 || !dns_wire_eq(&question, name)) return RJ_BAD;
    if (dns_u16(packet.p + at) != type || dns_u16(packet.p + at + 2) != DNS_CLASS_IN) return RJ_BAD;
    at += 4;
    out->rcode = packet.p[3] & 15;
    out->truncated = packet.p[2] & 2;
    if (out->truncated || (out->rcode != DNS_RCODE_OK && out->rcode != DNS_RCODE_NO_NAME)) return 0;
    answers = dns_u16(packet.p + 6);
    for (int hops = 0; ; hops++) {
        if ((end = dns_read_answers(packet, at, answers, &owner, type, out, &next)) < 0) return RJ_BAD;
        if (out->n || !next.n) break;
        if (hops == DNS_CHAIN_MAX) return RJ_BAD;
        owner = out->last = next;
    }
    if (!out->n) {
        uint32_t absence = dns_read_absence(packet, end, dns_u16(packet.p + 8));

        if (!out->last.n || out->rcode == DNS_RCODE_NO_NAME || absence) out->ttl_s = absence;
    }
    return 0;
}

/* ---- the files ---- */

/* Cuts the next word, separated by blanks, off *line. */
static bool dns_word(struct str *line, struct str *word)
{
    size_t n = 0;

    *line = str_trim(*line);
    while (n < line->n && line->p[n] != ' ' && line->p[n] != '\t') n++;
    *word = str_of(line->p, n);
    *line = str_from(*line, n);
    return n > 0;
}

/* Cuts the next line off *rest, without its end and its comment. */
static bool dns_line(struct str *rest, struct str *line)
{
    if (!str_cut(rest, '\n', line)) return false;
    for (size_t i = 0; i < line->n; i++)
        if (line->p[i] == '#' || line->p[i] == ';' || line->p[i] == '\r') line->n = i;
    return true;
}

/* `options` of resolv.conf: ndots, timeout, attempts; the others are about calls that Ramjet does not have. */
static void dns_parse_option(struct str word, struct dns_conf *c)
{
    size_t colon = str_find(word, ':');
    struct str name = str_of(word.p, colon);
    uint64_t v;

    if (colon == word.n || !str_to_u64(str_from(word, colon + 1), &v)) return;
    if (str_eq(name, S("ndots"))) c->ndots = v < DNS_NDOTS_MAX ? (uint32_t)v : DNS_NDOTS_MAX;
    else if (str_eq(name, S("timeout"))) c->timeout_ms = v < 1 ? 1000 : v > 30 ? 30000 : (uint32_t)v * 1000;
    else if (str_eq(name, S("attempts"))) c->attempts = v < 1 ? 1 : v > 5 ? 5 : (uint32_t)v;
}

/* Reads the text of a resolv.conf (resolv.conf(5)); what it does not know it skips. Without a server the own machine is asked. */
static void dns_parse_resolv(struct str text, struct dns_conf *c)
{
    struct str line, word;

    *c = (struct dns_conf){.ndots = 1, .timeout_ms = 2000, .attempts = 3};
    if (text.n > sizeof c->text) text.n = sizeof c->text;
    if (text.n) memcpy(c->text, text.p, text.n);
    text = str_of(c->text, text.n);
    while (dns_line(&text, &line)) {
        if (!dns_word(&line, &word)) continue;
        if (str_eq(word, S("nameserver"))) {
            if (!dns_word(&line, &word) || c->servers == DNS_SERVERS_MAX || !str_to_ip(word, &c->server[c->servers])) continue;
            c->server[c->servers++].port = DNS_PORT;
        } else if (str_eq(word, S("search")) || str_eq(word, S("domain"))) {
            c->searches = 0;
            while (dns_word(&line, &word))
                if (c->searches < DNS_SEARCH_MAX && !str_eq(word, S("."))) c->search[c->searches++] = word;
        } else if (str_eq(word, S("options"))) {
            while (dns_word(&line, &word)) dns_parse_option(word, c);
        }
    }
    if (c->servers) return;
    str_to_ip(S("127.0.0.1"), &c->server[0]);
    c->server[0].port = DNS_PORT;
    c->servers = 1;
}

/* The addresses that the text of a hosts file has for name (without a dot at the end). Returns how many, at most max. */
static uint32_t dns_parse_hosts(struct str text, struct str name, struct net_addr *out, uint32_t max)
{
    struct str line, word;
    struct net_addr a;
    uint32_t n = 0;

    while (n < max && dns_line(&text, &line)) {
        if (!dns_word(&line, &word) || !str_to_ip(word, &a)) continue;
        while (dns_word(&line, &word)) {
            uint32_t i = 0;

            if (!str_ieq(word, name)) continue;
            while (i < n && !str_addr_eq(&out[i], &a)) i++;
            if (i == n) out[n++] = a;
            break;
        }
    }
    return n;
}

/* `ADDRESS`, `ADDRESS:PORT` or several of them, separated by blanks or commas. Returns how many, or -EINVAL. */
static int dns_parse_servers(struct str text, struct net_addr out[DNS_SERVERS_MAX])
{
    struct str item, word;
    int n = 0;

    while (str_cut(&text, ',', &item)) {
        while (dns_word(&item, &word)) {
            struct str host;
            uint16_t port;

            if (n == DNS_SERVERS_MAX) return -EINVAL;
            if (str_to_ip(word, &out[n])) out[n].port = DNS_PORT;
            else if (str_to_host_port(word, &host, &port) && str_to_ip(host, &out[n])) out[n].port = port;
            else return -EINVAL;
            n++;
        }
    }
    return n;
}

/* The file's bytes, at most DNS_FILE_MAX, into the builder; nothing when it cannot be read. */
static void dns_read_file(const char *path, struct str_builder *b)
{
    int fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);

    if (fd < 0) return;
    while (b->n < DNS_FILE_MAX) {
        uint8_t *p = str_room(b, 4096);
        long n = p ? sys_read(fd, p, 4096) : 0;

        if (n <= 0) break;
        b->n += (size_t)n;
    }
    sys_close(fd);
}

/* ---- asking ----
 *
 *   IDLE -> WAIT_PLACE           [dns_name_due]   too many names are being asked for
 *   WAIT_PLACE -> IDLE           [dns_name_rest]  another name is done: the timer asks at once
 *   IDLE -> WAIT_ANSWERS         [dns_name_due]   queries are out, for both families side by side
 *   WAIT_ANSWERS -> WAIT_ANSWERS [dns_name_try]   absent under this search domain: the next one
 *   WAIT_ANSWERS -> IDLE         [dns_name_rest]  an answer, or none to be had; the timer asks again
 *
 * IDLE: the timer is armed, or the answer is for ever (a literal).  Without a watch the name goes when its timer fires. */
enum dns_state { DNS_IDLE, DNS_WAIT_PLACE, DNS_WAIT_ANSWERS };
enum dns_outcome { DNS_PENDING, DNS_FOUND, DNS_ABSENT, DNS_FAILED };

struct dns_query;
/* One family of one name. */
struct dns_ask {
    struct dns_name *name;
    struct dns_query *query;                             /* the one that is out */
    enum dns_outcome outcome;
    uint16_t type;
    uint16_t tries;                                      /* of this wire name; picks the server */
    uint8_t chased;
    uint32_t ttl_s;
    uint32_t n;
    struct net_addr *addrs;                              /* n of them, owned */
    struct dns_wire wire;                                /* asked for now */
};

struct dns_name {
    struct dns *dns;
    struct map_link watches;
    struct map_link place;                               /* of dns->waiting */
    struct clk_timer due;                                /* ask (again) */
    struct clk_timer tell;                               /* tell those who came later */
    enum dns_state state;
    bool known;                                          /* addrs, n and why hold an answer */
    bool literal;
    uint32_t candidate;                                  /* which search domain */
    uint32_t failures;                                   /* in a row, without any answer */
    uint32_t n;
    struct net_addr *addrs;                              /* n of them, owned */
    const char *why;
    struct dns_ask ask[2];
    struct str text;                                     /* lower case, behind the struct */
};

/* One question on one socket. Its memory goes with IO_CLOSED. */
struct dns_query {
    struct io_sock sock;
    struct io_outq outq;
    struct clk_timer timer;
    struct dns *dns;
    struct dns_ask *ask;                                 /* NULL: nobody waits for it any more */
    uint16_t id;
    bool tcp;
    uint32_t packet_n;
    struct str_builder in;                               /* TCP: what came so far */
    uint8_t packet[DNS_QUERY_MAX];                       /* with TCP's length in front */
};

static void dns_query_drop(struct dns_query *q)
{
    if (q->ask) q->ask->query = NULL;
    q->ask = NULL;
    clk_drop(&q->dns->loop->clk, &q->timer);
    io_close(q->dns->loop, &q->sock);
}

static const struct net_addr *dns_servers(const struct dns *d, uint32_t *n)
{
    *n = d->nfixed ? d->nfixed : d->conf.servers;
    return d->nfixed ? d->fixed : d->conf.server;
}

/* Mutually recursive with dns_query_fail: a failed query sends the next, and sending notes how it may fail. */
static void dns_ask_send(struct dns_ask *a, bool tcp);

/* The query brought nothing: the next try. */
static void dns_query_fail(struct dns_query *q)
{
    struct dns_ask *a = q->ask;

    dns_query_drop(q);
    a->tries++;
    dns_ask_send(a, false);
}

static void dns_query_late(struct clk_timer *t) { dns_query_fail(RJ_CONTAINER(t, struct dns_query, timer)); }

static int dns_addr_cmp(const void *a, const void *b)
{
    const struct net_addr *x = a, *y = b;

    return x->family != y->family ? (x->family == AF_INET ? -1 : 1) : memcmp(x->ip, y->ip, 16);
}

/* The copy of n addresses, sorted so that a server that rotates them changes nothing. */
static struct net_addr *dns_copy_addrs(const struct net_addr *addrs, uint32_t n)
{
    struct net_addr *out = n ? mem_need(n * sizeof *out) : NULL;

    if (!n) return NULL;
    memcpy(out, addrs, n * sizeof *out);
    qsort(out, n, sizeof *out, dns_addr_cmp);
    return out;
}

/* Tells every watch that has not been told. A call-back may add and drop watches. */
static void dns_name_tell(struct dns_name *name)
{
    struct map_link *l = name->watches.next;

    while (l != &name->watches) {
        struct dns_watch *w = RJ_CONTAINER(l, struct dns_watch, link);

        l = l->next;
        if (w->told) continue;
        w->told = true;
        if (w->once) {
            void (*on_change)(void *, const struct net_addr *, uint32_t, const char *) = w->on_change;
            void *arg = w->arg;

            map_list_remove(&w->link);
            RJ_CHECK(name->watches.next != &w->link);
            mem_free(w);
            on_change(arg, name->addrs, name->n, name->why);
        } else {
            w->on_change(w->arg, name->addrs, name->n, name->why);
        }
        l = name->watches.next;                          /* the call-back may have freed what l was */
    }
}

static void dns_on_tell(struct clk_timer *t)
{
    struct dns_name *name = RJ_CONTAINER(t, struct dns_name, tell);

    if (name->known) dns_name_tell(name);
}

/* Takes the answer in (addrs is owned from now on) and tells everybody when it differs from the last one. */
static void dns_name_publish(struct dns_name *name, struct net_addr *addrs, uint32_t n, const char *why)
{
    bool same = name->known && n == name->n && (n == 0 || memcmp(addrs, name->addrs, n * sizeof *addrs) == 0);

    mem_free(name->addrs);
    name->addrs = addrs;
    name->n = n;
    name->why = n ? NULL : why;
    name->known = true;
    if (!same) {
        log_debug("dns", STR_FMT ": %u addresses%s%s", STR_ARG(name->text), n, n ? "" : ": ", n ? "" : why);
        for (struct map_link *l = name->watches.next; l != &name->watches; l = l->next) RJ_CONTAINER(l, struct dns_watch, link)->told = false;
    }
    dns_name_tell(name);
}

/* The name is idle again and asks anew after ttl_s. The place among the busy ones goes to the next. */
static void dns_name_rest(struct dns_name *name, uint32_t ttl_s)
{
    struct dns *d = name->dns;

    if (name->state == DNS_WAIT_ANSWERS) d->busy--;
    name->state = DNS_IDLE;
    for (int f = 0; f < 2; f++) {
        mem_free(name->ask[f].addrs);
        name->ask[f].addrs = NULL;
        name->ask[f].n = 0;
    }
    clk_arm(&d->loop->clk, &name->due, (uint64_t)ttl_s * 1000);
    if (d->busy < DNS_BUSY_MAX && !map_list_empty(&d->waiting)) {
        struct dns_name *next = RJ_CONTAINER(d->waiting.next, struct dns_name, place);

        map_list_remove(&next->place);
        next->state = DNS_IDLE;
        clk_arm(&d->loop->clk, &next->due, 0);
    }
}

/* No server answered: what is known stays, and the next try comes soon. */
static void dns_name_failed(struct dns_name *name)
{
    uint32_t wait_s = name->failures < 5 ? 1u << name->failures : DNS_RETRY_MAX_S;

    if (!name->failures++) log_warn("dns", STR_FMT ": no answer from the name servers%s", STR_ARG(name->text), name->n ? ", keeping the last addresses" : "");
    dns_name_rest(name, wait_s);
    if (name->known) dns_name_tell(name);
    else dns_name_publish(name, NULL, 0, "no answer from the name servers");
}

/* Both families are done: the sum of them. The addresses of a family that failed stay when the other one was found. */
static void dns_name_settle(struct dns_name *name)
{
    struct net_addr all[3 * DNS_ADDRS_MAX];
    uint32_t n = 0, ttl_s = DNS_TTL_MAX_S;

    for (int f = 0; f < 2; f++) {
        const struct dns_ask *a = &name->ask[f];
        int family = a->type == DNS_A ? AF_INET : AF_INET6;

        if (a->outcome == DNS_FOUND) {
            memcpy(all + n, a->addrs, a->n * sizeof *all);
            n += a->n;
            if (a->ttl_s < ttl_s) ttl_s = a->ttl_s;
        } else if (a->outcome == DNS_FAILED) {
            for (uint32_t i = 0; i < name->n; i++)
                if (name->addrs[i].family == family) all[n++] = name->addrs[i];
            ttl_s = ttl_s < DNS_ABSENT_S ? ttl_s : DNS_ABSENT_S;
        }
    }
    if (n > DNS_ADDRS_MAX) {
        log_warn("dns", STR_FMT ": more than %d addresses, the rest is not used", STR_ARG(name->text), DNS_ADDRS_MAX);
        n = DNS_ADDRS_MAX;
    }
    if (name->failures) log_info("dns", STR_FMT ": the name servers answer again", STR_ARG(name->text));
    name->failures = 0;
    dns_name_rest(name, ttl_s < DNS_TTL_MIN_S ? DNS_TTL_MIN_S : ttl_s);
    dns_name_publish(name, dns_copy_addrs(all, n), n, NULL);
}

/* The name under search domain number name->candidate (resolv.conf(5), ndots). False when there is no such candidate. */
static bool dns_name_candidate(const struct dns_name *name, struct dns_wire *wire, bool *more)
{
    const struct dns_conf *c = &name->dns->conf;
    uint32_t dots = 0, searches = c->searches, at = name->candidate, plain_at;

    for (size_t i = 0; i < name->text.n; i++) dots += name->text.p[i] == '.';
    if (name->text.n && name->text.p[name->text.n - 1] == '.') searches = 0;
    plain_at = dots >= c->ndots ? 0 : searches;
    *more = at < searches;
    if (at > searches) return false;
    if (at == plain_at) return dns_put_name(wire, name->text, (struct str){0});
    return dns_put_name(wire, name->text, c->search[at > plain_at ? at - 1 : at]);
}

/* Starts both families under the next candidate that is a name; settles when there is none left. */
static void dns_name_try(struct dns_name *name, uint32_t absent_ttl_s)
{
    struct dns_wire wire;
    bool more = true;

    while (more) {
        bool good = dns_name_candidate(name, &wire, &more);

        name->candidate++;
        if (!good) continue;
        for (int f = 0; f < 2; f++) {
            struct dns_ask *a = &name->ask[f];

            mem_free(a->addrs);
            *a = (struct dns_ask){.name = name, .type = f ? DNS_AAAA : DNS_A, .wire = wire};
            if (f && !name->dns->has_ip6) a->outcome = DNS_ABSENT;
        }
        dns_ask_send(&name->ask[0], false);
        if (name->ask[1].outcome == DNS_PENDING && !name->ask[1].query && name->state == DNS_WAIT_ANSWERS) dns_ask_send(&name->ask[1], false);
        return;
    }
    name->failures = 0;
    dns_name_rest(name, absent_ttl_s ? absent_ttl_s < DNS_ABSENT_MAX_S ? absent_ttl_s : DNS_ABSENT_MAX_S : DNS_ABSENT_S);
    dns_name_publish(name, NULL, 0, "no such name");
}

/* One family is done; when both are, the name goes on. */
static void dns_ask_done(struct dns_ask *a, enum dns_outcome outcome)
{
    struct dns_name *name = a->name;
    const struct dns_ask *x = &name->ask[0], *y = &name->ask[1];

    a->outcome = outcome;
    if (x->outcome == DNS_PENDING || y->outcome == DNS_PENDING) return;
    if (x->outcome == DNS_FOUND || y->outcome == DNS_FOUND) dns_name_settle(name);
    else if (x->outcome == DNS_FAILED || y->outcome == DNS_FAILED) dns_name_failed(name);
    else dns_name_try(name, x->ttl_s ? x->ttl_s : y->ttl_s);
}

/* A response that belongs to the query. */
static void dns_query_answer(struct dns_query *q, const struct dns_reply *r)
{
    struct dns_ask *a = q->ask;
    bool tcp = q->tcp;

    if (r->truncated ? tcp : r->rcode != DNS_RCODE_OK && r->rcode != DNS_RCODE_NO_NAME) {
        dns_query_fail(q);
        return;
    }
    dns_query_drop(q);
    if (r->truncated) {
        dns_ask_send(a, true);
        return;
    }
    if (a->chased == 0 || r->ttl_s < a->ttl_s) a->ttl_s = r->ttl_s;
    if (r->n) {
        a->addrs = dns_copy_addrs(r->addr, r->n);
        a->n = r->n;
        dns_ask_done(a, DNS_FOUND);
    } else if (r->rcode == DNS_RCODE_OK && r->last.n && a->chased < DNS_CHASE_MAX) {
        a->wire = r->last;                               /* a server that leaves the rest of the chain to us */
        a->chased++;
        a->tries = 0;
        dns_ask_send(a, false);
    } else {
        dns_ask_done(a, DNS_ABSENT);
    }
}

/* TCP: collects the message behind its length (RFC 1035 section 4.2.2). Returns it once it is whole, else an empty slice. */
static struct str dns_query_collect(struct dns_query *q, struct str part)
{
    str_put(&q->in, part);
    if (q->in.failed || q->in.n < 2 || q->in.n < 2u + dns_u16(q->in.p)) return (struct str){0};
    return str_of(q->in.p + 2, dns_u16(q->in.p));
}

static void dns_query_received(struct dns_query *q, struct str part)
{
    struct dns_reply reply;
    struct str packet = q->tcp ? dns_query_collect(q, part) : part;

    if (q->tcp && !packet.p) {
        if (q->in.failed) dns_query_fail(q);
        return;
    }
    if (dns_read_reply(packet, q->id, &q->ask->wire, q->ask->type, &reply) == 0) dns_query_answer(q, &reply);
    else if (q->tcp) dns_query_fail(q);                  /* a stray datagram is only ignored: the right one may follow */
}

static void dns_query_start(struct dns_query *q)
{
    uint32_t skip = q->tcp ? 0 : 2;

    io_recv_start(q->dns->loop, &q->sock);
    io_outq_add(&q->outq, q->packet + skip, q->packet_n + 2 - skip, NULL);
    io_send(q->dns->loop, &q->sock, &q->outq);
}

static void dns_query_on_event(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct dns_query *q = RJ_CONTAINER(s, struct dns_query, sock);

    if (ev == IO_CLOSED) {
        q->dns->queries--;
        str_free(&q->in);
        mem_free(q);
        return;
    }
    if (!q->ask || ev == IO_STOPPED) return;
    if (ev == IO_CONNECT && q->tcp && res == 0) {
        dns_query_start(q);
    } else if (ev == IO_SENT && res > 0) {
        io_outq_sent(&q->outq, res);
        if (q->outq.bytes) io_send(q->dns->loop, s, &q->outq);
    } else if (ev == IO_RECV && res > 0) {
        dns_query_received(q, str_of(buf->data, (size_t)res));
    } else if (ev != IO_CONNECT || res < 0) {
        dns_query_fail(q);
    }
}

/* A query for the ask on a socket of its own, whose port the kernel picks at random. NULL when there is no way to the server. */
static struct dns_query *dns_query_new(struct dns_ask *a, const struct net_addr *server, bool tcp)
{
    struct dns *d = a->name->dns;
    struct dns_query *q = mem_need(sizeof *q);
    int rc;

    if (sys_getrandom(&q->id, sizeof q->id) != sizeof q->id) {
        mem_free(q);
        return NULL;
    }
    q->dns = d;
    q->ask = a;
    q->tcp = tcp;
    q->in = str_growing();
    q->timer.fire = dns_query_late;
    q->packet_n = dns_put_query(q->packet + 2, q->id, &a->wire, a->type);
    q->packet[0] = (uint8_t)(q->packet_n >> 8);
    q->packet[1] = (uint8_t)q->packet_n;
    io_sock_init(&q->sock, dns_query_on_event);
    rc = tcp ? io_tcp_connect(d->loop, &q->sock, server) : io_udp_connect(d->loop, &q->sock, server);
    if (rc < 0) {
        mem_free(q);
        return NULL;
    }
    d->queries++;
    clk_arm(&d->loop->clk, &q->timer, d->conf.timeout_ms);
    if (!tcp) dns_query_start(q);
    return q;
}

/* Sends the question to the next server that can be reached; the ask has failed when all tries are used up. */
static void dns_ask_send(struct dns_ask *a, bool tcp)
{
    struct dns *d = a->name->dns;
    uint32_t n;
    const struct net_addr *server = dns_servers(d, &n);

    for (; a->tries < n * d->conf.attempts; a->tries++)
        if ((a->query = dns_query_new(a, &server[a->tries % n], tcp))) return;
    dns_ask_done(a, DNS_FAILED);
}

/* Answers from the hosts file, and for localhost without one too (RFC 6761 section 6.3). False when it does not have the name. */
static bool dns_name_from_hosts(struct dns_name *name)
{
    struct net_addr addrs[DNS_ADDRS_MAX];
    struct str_builder b = str_growing();
    struct str text = name->text;
    uint32_t n;

    if (text.n && text.p[text.n - 1] == '.') text.n--;
    dns_read_file(name->dns->hosts_path, &b);
    n = dns_parse_hosts(str_built(&b), text, addrs, DNS_ADDRS_MAX);
    str_free(&b);
    if (!n && (str_eq(text, S("localhost")) || str_ends(text, S(".localhost")))) n = str_to_ip(S("127.0.0.1"), addrs);
    if (!n) return false;
    name->failures = 0;
    dns_name_rest(name, DNS_ABSENT_S);
    dns_name_publish(name, dns_copy_addrs(addrs, n), n, NULL);
    return true;
}

static void dns_load_resolv(struct dns *d)
{
    struct str_builder b = str_growing();

    if (d->resolv_read_ms && d->loop->clk.now_ms - d->resolv_read_ms < DNS_RESOLV_AGE_MS) return;
    d->resolv_read_ms = d->loop->clk.now_ms;
    dns_read_file(d->resolv_path, &b);
    dns_parse_resolv(str_built(&b), &d->conf);
    str_free(&b);
}

static void dns_name_free(struct dns_name *name)
{
    struct dns *d = name->dns;

    for (int f = 0; f < 2; f++) {
        if (name->ask[f].query) dns_query_drop(name->ask[f].query);
        mem_free(name->ask[f].addrs);
    }
    if (name->state == DNS_WAIT_PLACE) map_list_remove(&name->place);
    if (name->state == DNS_WAIT_ANSWERS) d->busy--;
    clk_drop(&d->loop->clk, &name->due);
    clk_drop(&d->loop->clk, &name->tell);
    map_remove(&d->names, name->text);
    mem_free(name->addrs);
    mem_free(name);
}

/* Asks (again), or lets go of a name that nobody watches. */
static void dns_name_due(struct clk_timer *t)
{
    struct dns_name *name = RJ_CONTAINER(t, struct dns_name, due);
    struct dns *d = name->dns;
    struct net_addr a;

    if (map_list_empty(&name->watches)) {
        dns_name_free(name);
        return;
    }
    if (name->literal) {
        str_to_ip(name->text, &a);
        dns_name_publish(name, dns_copy_addrs(&a, 1), 1, NULL);
        clk_arm(&d->loop->clk, &name->due, (uint64_t)DNS_TTL_MAX_S * 1000);
        return;
    }
    if (dns_name_from_hosts(name)) return;
    if (d->busy >= DNS_BUSY_MAX) {
        name->state = DNS_WAIT_PLACE;
        map_list_add(&d->waiting, &name->place);
        return;
    }
    d->busy++;
    name->state = DNS_WAIT_ANSWERS;
    name->candidate = 0;
    dns_load_resolv(d);
    dns_name_try(name, 0);
}

/* ---- the interface ---- */

/* Whether this machine has IPv6 at all: without it no AAAA is asked for. */
static bool dns_probe_ip6(void)
{
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(65535), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = sys_socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

    if (fd < 0) return false;
    rc = sys_connect(fd, &sa, sizeof sa);
    sys_close(fd);
    return rc == 0;
}

/* Prepares the resolver; resolver is the option of that name, empty for the servers of resolv.conf. 0, or -EINVAL when it is no
 * address. hosts_path and resolv_path may be set afterwards. */
static int dns_open(struct dns *d, struct io_loop *loop, struct str resolver)
{
    int n;

    *d = (struct dns){.loop = loop, .hosts_path = "/etc/hosts", .resolv_path = "/etc/resolv.conf"};
    map_list_init(&d->waiting);
    d->has_ip6 = dns_probe_ip6();
    n = dns_parse_servers(resolver, d->fixed);
    if (n < 0) return n;
    d->nfixed = (uint32_t)n;
    return 0;
}

static struct dns_name *dns_name_get(struct dns *d, struct str text)
{
    struct dns_name *name;
    struct net_addr literal;
    uint8_t lower[256];
    size_t n = text.n < sizeof lower ? text.n : sizeof lower;

    for (size_t i = 0; i < n; i++) lower[i] = str_lower(text.p[i]);
    if ((name = map_find(&d->names, str_of(lower, n)))) return name;
    name = mem_need(sizeof *name + n);
    memcpy(name + 1, lower, n);
    name->dns = d;
    name->text = str_of(name + 1, n);
    name->literal = str_to_ip(name->text, &literal);
    name->due.fire = dns_name_due;
    name->tell.fire = dns_on_tell;
    map_list_init(&name->watches);
    map_put(&d->names, name->text, name);
    clk_arm(&d->loop->clk, &name->due, 0);
    return name;
}

static struct dns_watch *dns_watch_new(struct dns *d, struct str text, void (*on_change)(void *, const struct net_addr *, uint32_t, const char *),
                                       void *arg)
{
    struct dns_watch *w = mem_need(sizeof *w);

    w->name = dns_name_get(d, text);
    w->on_change = on_change;
    w->arg = arg;
    map_list_add(&w->name->watches, &w->link);
    if (w->name->known) clk_arm(&d->loop->clk, &w->name->tell, 0);
    return w;
}

/* Calls on_change with the addresses of name at the first answer and whenever they change, until dns_unwatch. */
static struct dns_watch *dns_watch(struct dns *d, struct str name, void (*on_change)(void *, const struct net_addr *, uint32_t, const char *), void *arg)
{
    return dns_watch_new(d, name, on_change, arg);
}

/* Calls on_done once. The watch is gone with that call; until then dns_unwatch takes the question back. */
static struct dns_watch *dns_resolve(struct dns *d, struct str name, void (*on_done)(void *, const struct net_addr *, uint32_t, const char *), void *arg)
{
    struct dns_watch *w = dns_watch_new(d, name, on_done, arg);

    w->once = true;
    return w;
}

/* The answer stays cached until it expires. */
static void dns_unwatch(struct dns *d, struct dns_watch *w)
{
    RJ_CHECK(w->name->dns == d);
    (void)d;
    map_list_remove(&w->link);
    RJ_CHECK(w->name->watches.next != &w->link);
    mem_free(w);
}

/* Drops every watch and question without a call. The memory of d may go once d->queries is 0. Not from a call-back. */
static void dns_close(struct dns *d)
{
    struct dns_name *name;
    uint32_t at = 0;

    while ((name = map_next(&d->names, &at))) {
        /* Each was taken off the list. NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        while (!map_list_empty(&name->watches)) dns_unwatch(d, RJ_CONTAINER(name->watches.next, struct dns_watch, link));
        dns_name_free(name);
    }
    map_free(&d->names);
}

/* ============================================================================
 * json_ : JSON pull reader
 *
 * Owns:    struct json_reader, struct json_event, struct json_node.
 * Calls:   mem_ str_ log_
 * Threads: a reader belongs to one thread.
 * Rules:   1. RFC 8259 and nothing else; also refused: lone surrogates, malformed UTF-8, more than JSON_DEPTH levels.
 *          2. A piece may be cut at any byte; memory is bounded by the largest key or string, and that by the limit.
 *          3. The text of an event lives until the next call.
 * ========================================================================== */

enum json_want { JSON_WANT_VALUE, JSON_WANT_VALUE_OR_END, JSON_WANT_KEY, JSON_WANT_KEY_OR_END, JSON_WANT_COLON, JSON_WANT_COMMA, JSON_WANT_NOTHING };
enum json_token { JSON_NO_TOKEN, JSON_IN_STRING, JSON_IN_KEY, JSON_IN_NUMBER, JSON_IN_WORD };

/* Prepares a reader. limit bounds one key or string; many: values may follow one another, as in a watch. */
static void json_init(struct json_reader *r, size_t limit, bool many)
{
    *r = (struct json_reader){.limit = limit, .many = many, .line = 1, .buf = str_growing(), .last_type = JSON_END};
}

static void json_fini(struct json_reader *r) { str_free(&r->buf); }

/* The next piece; the one before must be used up (json_next said RJ_MORE). Borrowed until it is used up too. */
static void json_feed(struct json_reader *r, struct str piece)
{
    RJ_CHECK(r->p == r->end && !r->final);
    r->base += (uint64_t)(r->end - r->start);
    r->p = r->start = piece.p;
    r->end = piece.n ? piece.p + piece.n : piece.p;
}

/* No piece will follow: json_next then gives JSON_END behind the last value. */
static void json_finish(struct json_reader *r) { r->final = true; }

/* The word for a type in messages. */
static const char *json_type_name(unsigned type)
{
    static const char *const names[] = {"object", "array", "end of object", "end of array", "key", "string", "number", "bool", "null", "end"};

    return type < RJ_COUNT(names) ? names[type] : "nothing";
}

static int json_bad(struct json_reader *r, const uint8_t *at, const char *why)
{
    r->token_at = r->base + (uint64_t)(at - r->start);
    r->error = why;
    return RJ_BAD;
}

/* Puts `line 3, column 7: why` into the error after json_next said RJ_BAD. Returns -1. */
static int json_fail(const struct json_reader *r, struct log_err *err)
{
    return log_fail(err, "line %u, column %llu: %s", r->line, (unsigned long long)r->token_at - r->line_at + 1, r->error ? r->error : "no error");
}

/* The first byte from p on that is not plain text inside a string: a quote, a backslash, a control byte, or not ASCII.
 * Eight bytes a step: only bytes above the first hit can be flagged wrongly, and the lowest flag is taken (little endian). */
static inline const uint8_t *json_plain(const uint8_t *p, const uint8_t *end)
{
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;

    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lowest flag is the first byte");
    for (; end - p >= 8; p += 8) {
        uint64_t w, hit;

        memcpy(&w, p, 8);
        hit = ((w - ones * 0x20) | ((w ^ ones * '"') - ones) | ((w ^ ones * '\\') - ones) | w) & tops;
        if (hit) return p + __builtin_ctzll(hit) / 8;
    }
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\') p++;
    return p;
}

/* Four hexadecimal digits. Returns 4, RJ_MORE or RJ_BAD. */
static int json_hex4(const uint8_t *p, size_t n, uint32_t *out)
{
    uint32_t v = 0;

    for (size_t i = 0; i < 4; i++) {
        uint8_t c;

        if (i == n) return RJ_MORE;
        c = str_lower(p[i]);
        if (str_is_digit(c)) v = v << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f') v = v << 4 | (uint32_t)(c - 'a' + 10);
        else return RJ_BAD;
    }
    *out = v;
    return 4;
}

/* Writes the code point as UTF-8 (at most 4 bytes) and returns its length. */
static size_t json_put_utf8(uint8_t *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* The escape at p[0] == '\\' (RFC 8259 section 7). Returns the bytes it takes and decodes it into out, or RJ_MORE, or RJ_BAD. */
static int json_escape(const uint8_t *p, size_t n, uint8_t out[4], size_t *out_n)
{
    static const char plain[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    uint32_t c, low;
    int rc;

    if (n < 2) return RJ_MORE;
    if (p[1] != 'u') {
        for (size_t i = 0; plain[i]; i += 2) {
            if ((uint8_t)plain[i] != p[1]) continue;
            out[0] = (uint8_t)plain[i + 1];
            *out_n = 1;
            return 2;
        }
        return RJ_BAD;
    }
    if ((rc = json_hex4(p + 2, n - 2, &c)) <= 0) return rc;
    if (c < 0xd800 || c > 0xdfff) {
        *out_n = json_put_utf8(out, c);
        return 6;
    }
    if (c > 0xdbff || (n > 6 && p[6] != '\\') || (n > 7 && p[7] != 'u')) return RJ_BAD; /* a lone surrogate */
    if (n < 9) return RJ_MORE;
    if ((rc = json_hex4(p + 8, n - 8, &low)) <= 0) return rc;
    if (low < 0xdc00 || low > 0xdfff) return RJ_BAD;
    *out_n = json_put_utf8(out, 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00)));
    return 12;
}

/* The escape or UTF-8 sequence at p. Returns the bytes it takes and what it stands for, or RJ_MORE, or RJ_BAD. */
static int json_unit(const uint8_t *p, size_t n, uint8_t out[4], size_t *out_n)
{
    size_t len;

    if (p[0] == '\\') return json_escape(p, n, out, out_n);
    len = str_utf8_len(p, n);
    if (len) {
        memcpy(out, p, len);
        *out_n = len;
        return (int)len;
    }
    len = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (n >= len) return RJ_BAD;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return RJ_BAD;
    return RJ_MORE;
}

/* Collects bytes of a string or key that is cut off or has escapes; what is skipped is not kept. False: over the limit, or out of memory. */
static bool json_collect(struct json_reader *r, const uint8_t *p, size_t n)
{
    if (!n || r->skip) return true;
    if (n > r->limit - r->buf.n) {
        r->error = "a string over the limit";
        return false;
    }
    str_put(&r->buf, str_of(p, n));
    if (r->buf.failed) r->error = "out of memory";
    return !r->buf.failed;
}

/* Goes on with an escape or UTF-8 sequence that the end of the piece before had cut off. 1: it is complete. */
static int json_carry_on(struct json_reader *r)
{
    while (r->p < r->end) {
        uint8_t out[4];
        size_t out_n = 0;
        int rc;

        r->carry[r->carry_n++] = *r->p++;
        rc = json_unit(r->carry, r->carry_n, out, &out_n);
        if (rc == RJ_MORE) continue;
        if (rc < 0) return json_bad(r, r->p - 1, r->carry[0] == '\\' ? "a bad escape" : "malformed UTF-8");
        r->carry_n = 0;
        return json_collect(r, out, out_n) ? 1 : json_bad(r, r->p, r->error);
    }
    return RJ_MORE;
}

/* Goes on with the string whose opening quote was read. 1: *out is it (in the piece, or in buf). */
static int json_string(struct json_reader *r, struct str *out)
{
    const uint8_t *from, *p, *end = r->end;
    int rc;

    if (r->carry_n && (rc = json_carry_on(r)) != 1) return rc;
    for (from = p = r->p; (p = json_plain(p, end)) < end;) {
        uint8_t unit[4];
        size_t unit_n = 0;

        if (*p == '"') {
            r->p = p + 1;
            if (!r->buf.n && (size_t)(p - from) <= r->limit) {
                *out = str_of(from, (size_t)(p - from));
                return 1;
            }
            if (!json_collect(r, from, (size_t)(p - from))) return json_bad(r, p, r->error);
            *out = str_built(&r->buf);
            return 1;
        }
        if (*p < 0x20) return json_bad(r, p, "a control byte in a string");
        rc = json_unit(p, (size_t)(end - p), unit, &unit_n);
        if (rc > 0 && *p >= 0x80) {
            p += rc;
            continue;
        }
        if (rc == RJ_BAD) return json_bad(r, p, *p == '\\' ? "a bad escape" : "malformed UTF-8");
        if (!json_collect(r, from, (size_t)(p - from)) || !json_collect(r, unit, unit_n)) return json_bad(r, p, r->error);
        if (rc == RJ_MORE) {
            r->carry_n = (uint8_t)(end - p);
            memcpy(r->carry, p, r->carry_n);
            r->p = end;
            return RJ_MORE;
        }
        from = p += rc;
    }
    if (!json_collect(r, from, (size_t)(end - from))) return json_bad(r, end, r->error);
    r->p = end;
    return RJ_MORE;
}

/* RFC 8259 section 6. */
static bool json_is_number(struct str s)
{
    size_t i = s.n && s.p[0] == '-', from = i;

    while (i < s.n && str_is_digit(s.p[i])) i++;
    if (i == from || (s.p[from] == '0' && i > from + 1)) return false;
    if (i < s.n && s.p[i] == '.') {
        for (from = ++i; i < s.n && str_is_digit(s.p[i]);) i++;
        if (i == from) return false;
    }
    if (i < s.n && (s.p[i] == 'e' || s.p[i] == 'E')) {
        i++;
        if (i < s.n && (s.p[i] == '+' || s.p[i] == '-')) i++;
        for (from = i; i < s.n && str_is_digit(s.p[i]);) i++;
        if (i == from) return false;
    }
    return i == s.n;
}

/* Goes on with a number. 1: *out is it, as written. */
static int json_number(struct json_reader *r, struct str *out)
{
    const uint8_t *from = r->p, *p = from;

    while (p < r->end && (str_is_digit(*p) || *p == '-' || *p == '+' || *p == '.' || *p == 'e' || *p == 'E')) p++;
    if (r->buf.n + (size_t)(p - from) > JSON_NUMBER_MAX) return json_bad(r, from, "a number that is too long");
    if (r->buf.n || (p == r->end && !r->final)) str_put(&r->buf, str_of(from, (size_t)(p - from)));
    if (r->buf.failed) return json_bad(r, from, "out of memory");
    r->p = p;
    if (p == r->end && !r->final) return RJ_MORE;
    *out = r->buf.n ? str_built(&r->buf) : str_of(from, (size_t)(p - from));
    return json_is_number(*out) ? 1 : json_bad(r, from, "a malformed number");
}

/* Goes on with true, false or null. 1: complete. */
static int json_word(struct json_reader *r, struct json_event *ev)
{
    static const char *const words[] = {"true", "false", "null"};
    const char *word = words[r->word];

    while (word[r->word_n]) {
        if (r->p == r->end) return RJ_MORE;
        if (*r->p != (uint8_t)word[r->word_n]) return json_bad(r, r->p, "neither true, false nor null");
        r->p++;
        r->word_n++;
    }
    ev->type = r->word == 2 ? JSON_NULL : JSON_BOOL;
    ev->flag = r->word == 0;
    return 1;
}

/* Goes on with the token that r->token names, and gives its event. */
static int json_token_on(struct json_reader *r, struct json_event *ev)
{
    int rc = RJ_BAD;

    ev->text = (struct str){0};
    ev->flag = false;
    switch ((enum json_token)r->token) {
    case JSON_NO_TOKEN: break;
    case JSON_IN_STRING:
    case JSON_IN_KEY:
        rc = json_string(r, &ev->text);
        ev->type = r->token == JSON_IN_KEY ? JSON_KEY : JSON_STRING;
        break;
    case JSON_IN_NUMBER:
        rc = json_number(r, &ev->text);
        ev->type = JSON_NUMBER;
        break;
    case JSON_IN_WORD: rc = json_word(r, ev); break;
    }
    if (rc != 1) return rc == RJ_MORE && r->final ? json_bad(r, r->end, "the text ends inside a value") : rc;
    ev->depth = r->depth;
    ev->line = r->line;
    ev->column = (uint32_t)(r->token_at - r->line_at + 1);
    r->want = r->token == JSON_IN_KEY ? JSON_WANT_COLON : r->depth ? JSON_WANT_COMMA : JSON_WANT_NOTHING;
    r->token = JSON_NO_TOKEN;
    return 1;
}

/* A container opens or closes at c. */
static int json_bracket(struct json_reader *r, uint8_t c, struct json_event *ev)
{
    bool object = c == '{' || c == '}';

    if (c == '{' || c == '[') {
        if (r->depth == JSON_DEPTH) return json_bad(r, r->p - 1, "more than 64 levels");
        static_assert(JSON_DEPTH == 64, "the message and the bits of objects");
        ev->type = object ? JSON_OBJECT : JSON_ARRAY;
        ev->depth = r->depth;
        r->objects = (r->objects & ~((uint64_t)1 << r->depth)) | (uint64_t)object << r->depth;
        r->depth++;
        r->want = object ? JSON_WANT_KEY_OR_END : JSON_WANT_VALUE_OR_END;
    } else {
        if (!r->depth || (r->objects >> (r->depth - 1) & 1) != object) return json_bad(r, r->p - 1, "a bracket that closes nothing");
        r->depth--;
        ev->type = object ? JSON_OBJECT_END : JSON_ARRAY_END;
        ev->depth = r->depth;
        r->want = r->depth ? JSON_WANT_COMMA : JSON_WANT_NOTHING;
    }
    ev->text = (struct str){0};
    ev->flag = false;
    ev->line = r->line;
    ev->column = (uint32_t)(r->token_at - r->line_at + 1);
    return 1;
}

/* Whether a value may begin here; in a stream of values also behind a whole one. */
static inline bool json_wants_value(struct json_reader *r)
{
    if (r->want > JSON_WANT_VALUE_OR_END && !(r->want == JSON_WANT_NOTHING && r->many)) return false;
    r->seen = true;
    return true;
}

/* Reads up to the next event, skipped or not. One flat switch over the first byte of a token. */
static int json_step(struct json_reader *r, struct json_event *ev)
{
    if (r->token) return json_token_on(r, ev);
    for (;;) {
        uint8_t c;

        if (r->p == r->end) {
            if (!r->final) return RJ_MORE;
            if (r->depth || (!r->many && !r->seen)) return json_bad(r, r->end, "the text ends too early");
            *ev = (struct json_event){.type = JSON_END, .line = r->line};
            return 1;
        }
        c = *r->p++;
        switch (c) {
        case '\n':
            r->line++;
            r->line_at = r->base + (uint64_t)(r->p - r->start);
            continue;
        case ' ': case '\t': case '\r': continue;
        case ',':
            if (r->want != JSON_WANT_COMMA) return json_bad(r, r->p - 1, "a comma where none may be");
            r->want = r->objects >> (r->depth - 1) & 1 ? JSON_WANT_KEY : JSON_WANT_VALUE;
            continue;
        case ':':
            if (r->want != JSON_WANT_COLON) return json_bad(r, r->p - 1, "a colon where none may be");
            r->want = JSON_WANT_VALUE;
            continue;
        case '}': case ']':
            if (r->want != JSON_WANT_COMMA && r->want != (c == '}' ? JSON_WANT_KEY_OR_END : JSON_WANT_VALUE_OR_END))
                return json_bad(r, r->p - 1, "a closing bracket where none may be");
            break;
        case '"':
            if (r->want == JSON_WANT_KEY || r->want == JSON_WANT_KEY_OR_END) r->token = JSON_IN_KEY;
            else if (json_wants_value(r)) r->token = JSON_IN_STRING;
            else return json_bad(r, r->p - 1, "a string where none may be");
            break;
        case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        case 't': case 'f': case 'n': case '{': case '[':
            if (!json_wants_value(r)) return json_bad(r, r->p - 1, "a value where none may be");
            if (c == '{' || c == '[') break;
            r->token = c == 't' || c == 'f' || c == 'n' ? JSON_IN_WORD : JSON_IN_NUMBER;
            r->word = c == 't' ? 0 : c == 'f' ? 1 : 2;
            r->word_n = 0;
            r->p--;
            break;
        default: return json_bad(r, r->p - 1, "a byte that begins nothing");
        }
        r->token_at = r->base + (uint64_t)(r->p - r->start) - (r->token < JSON_IN_NUMBER);
        if (!r->token) return json_bracket(r, c, ev);
        if (r->buf.cap > JSON_KEEP_BYTES) str_free(&r->buf);
        r->buf.n = 0;
        return json_token_on(r, ev);
    }
}

/* The next event: 1 and *ev, RJ_MORE when the piece is used up, or RJ_BAD (then json_fail tells why; the reader is finished). */
static int json_next(struct json_reader *r, struct json_event *ev)
{
    if (RJ_UNLIKELY(r->error != NULL)) return RJ_BAD;
    for (;;) {
        int rc = json_step(r, ev);

        if (rc != 1) return rc;
        if (RJ_LIKELY(!r->skip)) break;
        if (ev->depth + 1 == r->skip && ev->type > JSON_ARRAY) r->skip = 0;
    }
    r->last_type = ev->type;
    r->last_depth = ev->depth;
    return 1;
}

/* Skips: behind a key its value, behind the begin of a container the rest of it with its end; behind anything else nothing.
 * What is skipped is still checked. */
static void json_skip(struct json_reader *r)
{
    if (r->last_type == JSON_KEY || r->last_type <= JSON_ARRAY) r->skip = (uint8_t)(r->last_depth + 1);
}

/* Reads a whole text and calls on for every event (without JSON_END) until it returns not 0. many: values may follow one another.
 * 0, -1 with err set, or what on returned. */
static int json_read(struct str text, bool many, int (*on)(void *arg, const struct json_event *ev), void *arg, struct log_err *err)
{
    struct json_reader r;
    struct json_event ev;
    int rc;

    json_init(&r, text.n, many);
    json_feed(&r, text);
    json_finish(&r);
    while ((rc = json_next(&r, &ev)) == 1 && ev.type != JSON_END) {
        rc = on(arg, &ev);
        if (rc) break;
    }
    if (rc == 1 && ev.type == JSON_END) rc = 0;
    if (r.error) rc = json_fail(&r, err);
    json_fini(&r);
    return rc;
}

/* ---- small documents as a tree ---- */

static void json_tree_init(struct json_tree *t, struct mem_arena *arena)
{
    t->arena = arena;
    t->root = NULL;
    t->at[0] = &t->root;
    t->key = (struct str){0};
}

/* Takes one event (of json_ or of yml_) into the tree; fits json_read and yml_read. Returns 0. */
static int json_tree_on(void *arg, const struct json_event *ev)
{
    struct json_tree *t = arg;
    struct json_node *n;

    if (ev->type == JSON_KEY) t->key = str_dup(t->arena, ev->text);
    if (ev->type == JSON_KEY || ev->type == JSON_OBJECT_END || ev->type == JSON_ARRAY_END) return 0;
    n = mem_arena_zero(t->arena, sizeof *n);
    *n = (struct json_node){.key = t->key, .line = ev->line, .column = ev->column, .type = ev->type, .flag = ev->flag};
    if (ev->text.p) n->text = str_dup(t->arena, ev->text);
    t->key = (struct str){0};
    *t->at[ev->depth] = n;
    t->at[ev->depth] = &n->next;
    if (ev->type <= JSON_ARRAY) t->at[ev->depth + 1] = &n->child;
    return 0;
}

/* One JSON value as a tree in the arena, or NULL with err set. */
static struct json_node *json_parse(struct mem_arena *arena, struct str text, struct log_err *err)
{
    struct json_tree t;

    json_tree_init(&t, arena);
    return json_read(text, false, json_tree_on, &t, err) ? NULL : t.root;
}

/* The member of an object, or NULL; also when n is NULL or no object, so that calls can be chained. The last of equal keys. */
static struct json_node *json_find(const struct json_node *n, struct str key)
{
    struct json_node *found = NULL;

    if (!n || n->type != JSON_OBJECT) return NULL;
    for (struct json_node *c = n->child; c; c = c->next)
        if (str_eq(c->key, key)) found = c;
    return found;
}

/* The text of a string member, or an empty slice. */
static struct str json_find_text(const struct json_node *n, struct str key)
{
    const struct json_node *c = json_find(n, key);

    return c && c->type == JSON_STRING ? c->text : (struct str){0};
}

/* ============================================================================
 * yml_ : YAML subset for manifests and kubeconfig
 *
 * Owns:    struct yml_reader.
 * Calls:   mem_ str_ map_ log_ json_
 * Threads: a reader belongs to one thread.
 * Rules:   1. YAML 1.2, core schema, without what manifests do not need: anchors, aliases, tags, directives, complex keys, merge keys,
 *             equal keys, single pairs in flow sequences and tabs in the indentation are refused by name, with line and column.
 *          2. Gives the events of json_; an empty document gives none.
 *          3. Memory: the text's keys and its largest scalar; recursion ends at JSON_DEPTH levels.
 * ========================================================================== */

enum yml_place { YML_LINE, YML_BEHIND };                 /* a value that begins a line, or that stands behind its key or marker */

/* Sets the error with the line and column of offset at, which is on the present line. Returns -1. */
RJ_PRINTF(3, 4) static int yml_fail(struct yml_reader *y, size_t at, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return log_fail(y->err, "line %u, column %zu: %s", y->line, at - y->line_at + 1, text);
}

/* The byte k behind the present one, or 0 at the end (the text holds no NUL). */
static inline uint8_t yml_peek(const struct yml_reader *y, size_t k) { return k < y->in.n - y->at ? y->in.p[y->at + k] : 0; }
static inline bool yml_is_blank(uint8_t c) { return c == ' ' || c == '\t'; }
static inline bool yml_is_gap(uint8_t c) { return c == ' ' || c == '\t' || c == '\n' || c == 0; }
static inline bool yml_is_flow(uint8_t c) { return c == ',' || c == '[' || c == ']' || c == '{' || c == '}'; }
static inline bool yml_is_dash(const struct yml_reader *y) { return yml_peek(y, 0) == '-' && yml_is_gap(yml_peek(y, 1)); }

/* Steps over a line break. */
static inline void yml_break(struct yml_reader *y)
{
    y->line_at = ++y->at;
    y->line++;
}

/* Whether a line begins here with a document marker. */
static bool yml_is_marker(const struct yml_reader *y)
{
    uint8_t c = yml_peek(y, 0);

    return y->at == y->line_at && (c == '-' || c == '.') && yml_peek(y, 1) == c && yml_peek(y, 2) == c && yml_is_gap(yml_peek(y, 3));
}

static int yml_emit(struct yml_reader *y, unsigned type, struct str text, bool flag, uint32_t line, size_t column)
{
    struct json_event ev = {.type = (uint8_t)type, .flag = flag, .depth = y->depth, .line = line, .column = (uint32_t)column, .text = text};

    if (y->text.failed) return yml_fail(y, y->at, "out of memory");
    return y->on(y->arg, &ev);
}

static inline int yml_emit_here(struct yml_reader *y, unsigned type)
{
    return yml_emit(y, type, (struct str){0}, false, y->line, y->at - y->line_at + 1);
}

/* Opens a container. */
static int yml_open(struct yml_reader *y, unsigned type)
{
    int rc;

    if (y->depth == JSON_DEPTH) return yml_fail(y, y->at, "more than %d levels", JSON_DEPTH);
    rc = yml_emit_here(y, type);
    y->depth++;
    return rc;
}

static int yml_shut(struct yml_reader *y, unsigned type)
{
    y->depth--;
    return yml_emit_here(y, type);
}

/* Steps over blanks and a comment; true at the end of the line. */
static bool yml_rest_is_blank(struct yml_reader *y)
{
    while (yml_is_blank(yml_peek(y, 0))) y->at++;
    if (yml_peek(y, 0) == '#' && (y->at == y->line_at || yml_is_blank(y->in.p[y->at - 1]))) y->at += str_find(str_from(y->in, y->at), '\n');
    return y->at == y->in.n || y->in.p[y->at] == '\n';
}

/* Goes to the next content of the document over blank lines and comments: sets more and col. */
static int yml_next(struct yml_reader *y)
{
    for (;;) {
        size_t indent;
        bool fresh = y->at == y->line_at;

        y->more = false;
        if (yml_is_marker(y)) return 0;
        while (yml_peek(y, 0) == ' ') y->at++;
        indent = y->at;
        if (!yml_rest_is_blank(y)) {
            if (fresh && y->at > indent) return yml_fail(y, indent, "a tab in the indentation: use spaces");
            y->col = (int)(y->at - y->line_at);
            y->more = true;
            return 0;
        }
        if (y->at == y->in.n) return 0;
        yml_break(y);
    }
}

/* Behind a value: nothing but a comment may follow on the line. Then as yml_next. */
static int yml_value_end(struct yml_reader *y)
{
    if (yml_rest_is_blank(y)) return yml_next(y);
    if (yml_peek(y, 0) == ':')
        return yml_fail(y, y->at, "a key where none may be: a mapping begins on a line of its own, and a key is one plain or quoted text on one line");
    return yml_fail(y, y->at, "something behind the value");
}

/* Names what is left out of the language. 0 when c may begin a value. */
static int yml_refuse(struct yml_reader *y)
{
    switch (yml_peek(y, 0)) {
    case '&': return yml_fail(y, y->at, "an anchor (&): anchors are not supported; put a text that begins with & into quotes");
    case '*': return yml_fail(y, y->at, "an alias (*): aliases are not supported; put a text that begins with * into quotes");
    case '!': return yml_fail(y, y->at, "a tag (!): tags are not supported; put a text that begins with ! into quotes");
    case '%': return yml_fail(y, y->at, "a directive (%%): directives are not supported; put a text that begins with %% into quotes");
    case '@': case '`': return yml_fail(y, y->at, "a reserved character (%c): put the text into quotes", yml_peek(y, 0));
    case '?':
        if (yml_is_gap(yml_peek(y, 1))) return yml_fail(y, y->at, "a complex key (?): complex keys are not supported");
        break;
    default: break;
    }
    return 0;
}

/* Whether a plain scalar may begin here (YAML 1.2 rule 126). */
static bool yml_is_plain_start(const struct yml_reader *y, bool flow)
{
    uint8_t c = yml_peek(y, 0), next = yml_peek(y, 1);

    if (c == '-' || c == '?' || c == ':') return !yml_is_gap(next) && !(flow && yml_is_flow(next));
    return !yml_is_gap(c) && !strchr(",[]{}#&*!|>'\"%@`", c);
}

/* ---- scalars ---- */

/* At a line break inside a scalar: folds it and the blank lines behind it, and stops at the first content (YAML 1.2 section 6.5). */
static int yml_fold(struct yml_reader *y)
{
    size_t breaks = 0;

    while (yml_peek(y, 0) == '\n') {
        yml_break(y);
        breaks++;
        if (yml_is_marker(y)) return yml_fail(y, y->at, "a document marker inside a quoted text");
        while (yml_is_blank(yml_peek(y, 0))) y->at++;
    }
    if (breaks == 1) str_put_c(&y->text, ' ');
    for (; breaks > 1; breaks--) str_put_c(&y->text, '\n');
    return 0;
}

/* Without the blanks at its end that stand behind keep. */
static void yml_trim(struct yml_reader *y, size_t keep)
{
    while (y->text.n > keep && yml_is_blank(y->text.p[y->text.n - 1])) y->text.n--;
}

/* n hexadecimal digits at offset k, or -1. */
static long yml_hex(const struct yml_reader *y, size_t k, size_t n)
{
    long v = 0;

    for (size_t i = 0; i < n; i++) {
        uint8_t c = str_lower(yml_peek(y, k + i));

        if (!str_is_digit(c) && !(c >= 'a' && c <= 'f')) return -1;
        v = v << 4 | (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return v;
}

/* The escape of a double-quoted text at the backslash (YAML 1.2 section 5.7; pairs of surrogates as in JSON). */
static int yml_escape(struct yml_reader *y)
{
    static const struct { char c; uint8_t n; uint16_t code; } plain[] = {
        {'0', 0, 0}, {'a', 0, 7}, {'b', 0, 8}, {'t', 0, 9}, {'\t', 0, 9}, {'n', 0, 10}, {'v', 0, 11}, {'f', 0, 12}, {'r', 0, 13},
        {'e', 0, 27}, {' ', 0, ' '}, {'"', 0, '"'}, {'/', 0, '/'}, {'\\', 0, '\\'}, {'N', 0, 0x85}, {'_', 0, 0xa0}, {'L', 0, 0x2028},
        {'P', 0, 0x2029}, {'x', 2, 0}, {'u', 4, 0}, {'U', 8, 0},
    };
    uint8_t out[4];

    for (size_t i = 0; i < RJ_COUNT(plain); i++) {
        long code = plain[i].code, low;
        size_t n = plain[i].n;

        if ((uint8_t)plain[i].c != yml_peek(y, 1)) continue;
        if (n) code = yml_hex(y, 2, n);
        low = n == 4 && code >= 0xd800 && code < 0xdc00 && yml_peek(y, 6) == '\\' && yml_peek(y, 7) == 'u' ? yml_hex(y, 8, 4) : 0;
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + (code - 0xd800) * 1024 + (low - 0xdc00);
            n = 10;
        }
        if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) break;
        str_put(&y->text, str_of(out, json_put_utf8(out, (uint32_t)code)));
        y->at += 2 + n;
        return 0;
    }
    return yml_fail(y, y->at, "a bad escape");
}

/* A quoted text at its opening quote; it may go over lines. */
static int yml_quoted(struct yml_reader *y)
{
    uint8_t quote = yml_peek(y, 0);
    uint32_t line = y->line;
    size_t keep = 0;
    int rc;

    y->text.n = 0;
    y->quoted = true;
    for (y->at++;;) {
        uint8_t c = yml_peek(y, 0);
        size_t from = y->at;

        if (c == 0) return yml_fail(y, y->at, "the quote of line %u is not closed", line);
        if (c == quote) {
            y->at++;
            if (quote == '"' || yml_peek(y, 0) != '\'') return 0;
            y->at++;
            str_put_c(&y->text, '\'');
        } else if (c == '\n') {
            yml_trim(y, keep);
            if ((rc = yml_fold(y))) return rc;
        } else if (c == '\\' && quote == '"' && yml_peek(y, 1) == '\n') {
            for (y->at++; yml_peek(y, 0) == '\n';) {
                if (y->line_at > from) str_put_c(&y->text, '\n'); /* a blank line behind the joined one is a break */
                yml_break(y);
                if (yml_is_marker(y)) return yml_fail(y, y->at, "a document marker inside a quoted text");
                while (yml_is_blank(yml_peek(y, 0))) y->at++;
            }
            keep = y->text.n;
        } else if (c == '\\' && quote == '"') {
            if ((rc = yml_escape(y))) return rc;
            keep = y->text.n;
        } else {
            while ((c = yml_peek(y, 0)) && c != quote && c != '\n' && !(c == '\\' && quote == '"')) y->at++;
            str_put(&y->text, str_of(y->in.p + from, y->at - from));
        }
    }
}

/* Steps over the part of a plain scalar on this line and adds it. */
static void yml_plain_line(struct yml_reader *y, bool flow)
{
    size_t from = y->at, end = from;
    uint8_t c, next;

    for (; (c = yml_peek(y, 0)) && c != '\n'; y->at++) {
        next = yml_peek(y, 1);
        if (c == ':' && (yml_is_gap(next) || (flow && yml_is_flow(next)))) break;
        if (flow && yml_is_flow(c)) break;
        if (c == '#' && y->at > from && yml_is_blank(y->in.p[y->at - 1])) break;
        if (!yml_is_blank(c)) end = y->at + 1;
    }
    y->at = end;
    str_put(&y->text, str_of(y->in.p + from, end - from));
}

/* A plain scalar; in block style it goes on over lines that are indented by more than parent. */
static int yml_plain(struct yml_reader *y, int parent, bool flow)
{
    if (!yml_is_plain_start(y, flow)) return yml_fail(y, y->at, "a value may not begin with '%c'", yml_peek(y, 0));
    y->text.n = 0;
    y->quoted = false;
    yml_plain_line(y, flow);
    for (;;) {
        size_t at = y->at, line_at = y->line_at, breaks = 0, indent;
        uint32_t line = y->line;

        while (yml_is_blank(yml_peek(y, 0))) y->at++;
        while (yml_peek(y, 0) == '\n') {
            yml_break(y);
            breaks++;
            if (yml_is_marker(y)) break;
            while (yml_peek(y, 0) == ' ') y->at++;
            indent = y->at - y->line_at;
            while (yml_is_blank(yml_peek(y, 0))) y->at++;
            if (!flow && y->at - y->line_at > indent && yml_peek(y, 0) != '\n' && yml_peek(y, 0) != '#' && yml_peek(y, 0))
                return yml_fail(y, y->line_at + indent, "a tab in the indentation: use spaces");
        }
        if (!breaks || yml_is_marker(y) || !yml_peek(y, 0) || yml_peek(y, 0) == '#' || (!flow && (int)(y->at - y->line_at) <= parent) ||
            (flow && yml_is_flow(yml_peek(y, 0)))) {
            y->at = at;
            y->line_at = line_at;
            y->line = line;
            return 0;
        }
        if (flow && yml_peek(y, 0) == ':' && !yml_is_plain_start(y, true)) return yml_fail(y, y->at, "a key over more than one line");
        if (breaks == 1) str_put_c(&y->text, ' ');
        for (; breaks > 1; breaks--) str_put_c(&y->text, '\n');
        yml_plain_line(y, flow);
    }
}

/* A number of the core schema (YAML 1.2 section 10.3.2). Whole numbers are rewritten as JSON has them. */
static bool yml_number(struct str_builder *b)
{
    struct str s = str_built(b), digits;
    bool minus = s.n && s.p[0] == '-', octal;
    size_t i = s.n && (minus || s.p[0] == '+'), from = i, whole, part = 0;
    uint64_t v = 0;

    if (s.n > 2 && s.p[0] == '0' && (s.p[1] == 'x' || s.p[1] == 'o')) {
        octal = s.p[1] == 'o';
        for (i = 2; i < s.n; i++) {
            uint8_t c = str_lower(s.p[i]);

            if (!(octal ? c >= '0' && c <= '7' : str_is_digit(c) || (c >= 'a' && c <= 'f')) || v >> (octal ? 61 : 60)) return false;
            v = v << (octal ? 3 : 4) | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        b->n = 0;
        str_put_u64(b, v);
        return true;
    }
    digits = str_from(s, from);
    if (str_eq(digits, S(".inf")) || str_eq(digits, S(".Inf")) || str_eq(digits, S(".INF"))) return true;
    if (str_eq(s, S(".nan")) || str_eq(s, S(".NaN")) || str_eq(s, S(".NAN"))) return true;
    while (i < s.n && str_is_digit(s.p[i])) i++;
    whole = i - from;
    if (i == s.n && whole) {
        while (whole > 1 && s.p[from] == '0') from++, whole--;
        memmove(b->p + minus, s.p + from, whole);
        b->n = whole + minus;
        return true;
    }
    if (i < s.n && s.p[i] == '.')
        for (i++; i < s.n && str_is_digit(s.p[i]); i++) part++;
    if (!whole && !part) return false;
    if (i < s.n && (s.p[i] == 'e' || s.p[i] == 'E')) {
        i++;
        if (i < s.n && (s.p[i] == '+' || s.p[i] == '-')) i++;
        for (from = i; i < s.n && str_is_digit(s.p[i]); i++) {}
        if (i == from) return false;
    }
    return i == s.n;
}

/* Gives the scalar in text as what the core schema makes of it. */
static int yml_emit_scalar(struct yml_reader *y, uint32_t line, size_t column)
{
    static const struct { const char *word; uint8_t type; bool flag; } words[] = {
        {"", JSON_NULL, false}, {"~", JSON_NULL, false}, {"null", JSON_NULL, false}, {"Null", JSON_NULL, false}, {"NULL", JSON_NULL, false},
        {"true", JSON_BOOL, true}, {"True", JSON_BOOL, true}, {"TRUE", JSON_BOOL, true},
        {"false", JSON_BOOL, false}, {"False", JSON_BOOL, false}, {"FALSE", JSON_BOOL, false},
    };
    unsigned type;

    if (y->quoted) return yml_emit(y, JSON_STRING, str_built(&y->text), false, line, column);
    if (y->text.n < 6)
        for (size_t i = 0; i < RJ_COUNT(words); i++)
            if (str_eq(str_built(&y->text), str_z(words[i].word))) return yml_emit(y, words[i].type, (struct str){0}, words[i].flag, line, column);
    type = yml_number(&y->text) ? JSON_NUMBER : JSON_STRING;
    return yml_emit(y, type, str_built(&y->text), false, line, column);
}

/* The header of a block scalar behind | or >: chomping ('-', '+' or 0) and indentation indicator (0 = none). */
static int yml_block_header(struct yml_reader *y, uint8_t *chomp, int *indent)
{
    *chomp = 0;
    *indent = 0;
    for (y->at++;; y->at++) {
        uint8_t c = yml_peek(y, 0);

        if ((c == '-' || c == '+') && !*chomp) *chomp = c;
        else if (c >= '1' && c <= '9' && !*indent) *indent = c - '0';
        else break;
    }
    if (!yml_rest_is_blank(y)) return yml_fail(y, y->at, "something behind the header of a block text");
    if (y->at < y->in.n) yml_break(y);
    return 0;
}

/* The indentation of a block scalar's first line with content, looked up from its first line on. */
static int yml_block_indent(struct yml_reader *y, int parent, int *indent)
{
    size_t i = y->at, widest = 0;

    for (;;) {
        size_t from = i;

        while (i < y->in.n && y->in.p[i] == ' ') i++;
        if (i < y->in.n && y->in.p[i] != '\n') {
            *indent = (int)(i - from) > parent ? (int)(i - from) : parent + 1;
            if ((int)(i - from) > parent && widest > i - from) return yml_fail(y, y->at, "a blank line that is indented deeper than the block text behind it");
            return 0;
        }
        if (i - from > widest) widest = i - from;
        if (i == y->in.n) break;
        i++;
    }
    *indent = (int)widest > parent ? (int)widest : parent + 1;
    return 0;
}

/* A block scalar at its | or > (YAML 1.2 section 8.1). */
static int yml_block_scalar(struct yml_reader *y, int parent)
{
    bool folded = yml_peek(y, 0) == '>', any = false, deep_before = false;
    uint32_t line = y->line;
    size_t column = y->at - y->line_at + 1, pending = 0;
    uint8_t chomp;
    int indent, rc;

    if ((rc = yml_block_header(y, &chomp, &indent))) return rc;
    if (indent) indent += parent > 0 ? parent : 0;
    else if ((rc = yml_block_indent(y, parent, &indent))) return rc;
    y->text.n = 0;
    y->quoted = true;
    while (y->at < y->in.n && !yml_is_marker(y)) {
        size_t from = y->at, end = from + str_find(str_from(y->in, from), '\n');
        bool deep;

        while (y->at < end && y->at - from < (size_t)indent && y->in.p[y->at] == ' ') y->at++;
        if (y->at == end) {                             /* blank */
            if (end == y->in.n) break;
            pending++;
            yml_break(y);
            continue;
        }
        if (y->at - from < (size_t)indent) {
            size_t tab = y->at;

            if (y->in.p[tab] == '\t' && !yml_rest_is_blank(y)) return yml_fail(y, tab, "a tab in the indentation: use spaces");
            y->at = from;
            break;
        }
        deep = yml_is_blank(y->in.p[y->at]);
        if (!folded || !any || deep || deep_before || pending > 1) {
            if (folded && any && !deep && !deep_before) pending--;
            for (; pending; pending--) str_put_c(&y->text, '\n');
        } else {
            str_put_c(&y->text, ' ');
        }
        str_put(&y->text, str_of(y->in.p + y->at, end - y->at));
        any = true;
        deep_before = deep;
        pending = end < y->in.n;
        y->at = end;
        if (pending) yml_break(y);
    }
    if (chomp != '+') pending = chomp == '-' || !any ? 0 : pending > 0;
    for (; pending; pending--) str_put_c(&y->text, '\n');
    if ((rc = yml_emit_scalar(y, line, column))) return rc;
    return yml_next(y);
}

/* ---- keys ---- */

/* Whether the line goes on with a key: a quoted or plain text and a colon with a gap behind it. */
static bool yml_has_key(struct yml_reader *y)
{
    uint8_t c = yml_peek(y, 0), quote = c;
    size_t i = 0;

    if (c == '"' || c == '\'') {
        for (i = 1; (c = yml_peek(y, i)) && c != '\n'; i++) {
            if (c == '\\' && quote == '"') i++;
            else if (c == quote && quote == '\'' && yml_peek(y, i + 1) == quote) i++;
            else if (c == quote) break;
        }
        if (c != quote) return false;
        for (i++; yml_is_blank(yml_peek(y, i)); i++) {}
        return yml_peek(y, i) == ':' && yml_is_gap(yml_peek(y, i + 1));
    }
    if (!yml_is_plain_start(y, false)) return false;
    for (; (c = yml_peek(y, i)) && c != '\n'; i++) {
        if (c == ':' && yml_is_gap(yml_peek(y, i + 1))) return true;
        if (c == '#' && i && yml_is_blank(yml_peek(y, i - 1))) return false;
    }
    return false;
}

/* Reads a key, refuses one that the mapping has already, gives its event. */
static int yml_key(struct yml_reader *y, struct map *seen, bool flow)
{
    uint32_t line = y->line;
    size_t at = y->at, column = at - y->line_at + 1;
    struct str key;
    int rc = 0;

    if (yml_peek(y, 0) == '"' || yml_peek(y, 0) == '\'') {
        rc = yml_quoted(y);
    } else {
        if (!yml_is_plain_start(y, flow)) return yml_fail(y, y->at, "a key may not begin with '%c'", yml_peek(y, 0));
        y->text.n = 0;
        y->quoted = false;
        yml_plain_line(y, flow);
    }
    if (rc) return rc;
    if (y->line != line) return yml_fail(y, y->at, "a key over more than one line");
    key = str_dup(&y->arena, str_built(&y->text));
    if (!y->quoted && str_eq(key, S("<<"))) return yml_fail(y, at, "a merge key (<<): merge keys are not supported");
    if (map_put(seen, key, y)) return yml_fail(y, at, "the key \"%.100s\" appears twice", (const char *)key.p);
    return yml_emit(y, JSON_KEY, key, false, line, column);
}

/* ---- flow style ---- */

/* Steps over blanks, line breaks and comments inside a flow collection. */
static int yml_flow_space(struct yml_reader *y)
{
    while (yml_rest_is_blank(y)) {
        if (y->at == y->in.n) return yml_fail(y, y->at, "a bracket is not closed");
        yml_break(y);
        if (yml_is_marker(y)) return yml_fail(y, y->at, "a document marker inside brackets");
    }
    return 0;
}

/* Mutual recursion: a flow collection holds flow values, which may be collections. */
static int yml_flow_value(struct yml_reader *y);

/* One member of a flow mapping at its key. */
static int yml_flow_member(struct yml_reader *y, struct map *seen)
{
    int rc;

    if (yml_peek(y, 0) == '[' || yml_peek(y, 0) == '{') return yml_fail(y, y->at, "a complex key: a key is one plain or quoted text");
    if ((rc = yml_refuse(y)) || (rc = yml_key(y, seen, true)) || (rc = yml_flow_space(y))) return rc;
    if (yml_peek(y, 0) == ',' || yml_peek(y, 0) == '}') return yml_emit_here(y, JSON_NULL);
    if (yml_peek(y, 0) != ':') return yml_fail(y, y->at, "expected ':' behind the key");
    y->at++;
    if ((rc = yml_flow_space(y))) return rc;
    if (yml_peek(y, 0) == ',' || yml_peek(y, 0) == '}') return yml_emit_here(y, JSON_NULL);
    return yml_flow_value(y);
}

/* A flow collection at its opening bracket. */
static int yml_flow(struct yml_reader *y)
{
    bool object = yml_peek(y, 0) == '{';
    uint8_t shut = object ? '}' : ']';
    struct map seen = {0};
    int rc;

    if ((rc = yml_open(y, object ? JSON_OBJECT : JSON_ARRAY))) goto out;
    y->at++;
    for (;;) {
        if ((rc = yml_flow_space(y))) goto out;
        if (yml_peek(y, 0) == shut) break;
        if ((rc = object ? yml_flow_member(y, &seen) : yml_flow_value(y)) || (rc = yml_flow_space(y))) goto out;
        if (yml_peek(y, 0) == shut) break;
        if (yml_peek(y, 0) != ',') {
            if (!object && yml_peek(y, 0) == ':') rc = yml_fail(y, y->at, "a single pair in a sequence: put it into {}");
            else rc = yml_fail(y, y->at, "expected ',' or '%c'", shut);
            goto out;
        }
        y->at++;
    }
    rc = yml_shut(y, object ? JSON_OBJECT_END : JSON_ARRAY_END);
    y->at++;
out:
    map_free(&seen);
    return rc;
}

static int yml_flow_value(struct yml_reader *y)
{
    uint32_t line = y->line;
    size_t column = y->at - y->line_at + 1;
    uint8_t c = yml_peek(y, 0);
    int rc;

    if ((rc = yml_refuse(y))) return rc;
    if (c == '[' || c == '{') return yml_flow(y);
    if ((rc = (c == '"' || c == '\'' ? yml_quoted(y) : yml_plain(y, -1, true)))) return rc;
    return yml_emit_scalar(y, line, column);
}

/* ---- block style ---- */

/* Mutual recursion: block collections hold block values. Reads the value at the present byte, whose parent is indented by parent, and
 * goes to the next content. */
static int yml_block(struct yml_reader *y, int parent, enum yml_place place);

/* What stands behind the colon of a block mapping's key. */
static int yml_block_member(struct yml_reader *y, int indent)
{
    int rc;

    while (yml_is_blank(yml_peek(y, 0))) y->at++;
    if (yml_peek(y, 0) != ':') return yml_fail(y, y->at, "expected ':' behind the key");
    y->at++;
    if (!yml_rest_is_blank(y)) return yml_block(y, indent, YML_BEHIND);
    if ((rc = yml_next(y))) return rc;
    if (!y->more || y->col < indent || (y->col == indent && !yml_is_dash(y))) return yml_emit_here(y, JSON_NULL);
    return yml_block(y, indent, YML_LINE);
}

static int yml_block_map(struct yml_reader *y, int indent)
{
    struct map seen = {0};
    int rc = yml_open(y, JSON_OBJECT);

    while (!rc) {
        if ((rc = yml_key(y, &seen, false)) || (rc = yml_block_member(y, indent))) break;
        if (!y->more || y->col < indent) {
            rc = yml_shut(y, JSON_OBJECT_END);
            break;
        }
        if (y->col > indent) rc = yml_fail(y, y->at, "indented by %d, but the keys of this mapping by %d", y->col, indent);
        else if (yml_is_dash(y)) rc = yml_fail(y, y->at, "a sequence entry among the keys of a mapping");
        else if (!(rc = yml_refuse(y)) && !yml_has_key(y)) rc = yml_fail(y, y->at, "expected a key and ':'");
    }
    map_free(&seen);
    return rc;
}

static int yml_block_seq(struct yml_reader *y, int indent)
{
    int rc = yml_open(y, JSON_ARRAY);

    while (!rc) {
        size_t from = ++y->at;

        if (yml_rest_is_blank(y)) {
            if ((rc = yml_next(y))) break;
            rc = !y->more || y->col <= indent ? yml_emit_here(y, JSON_NULL) : yml_block(y, indent, YML_LINE);
        } else if (memchr(y->in.p + from, '\t', y->at - from)) {
            rc = yml_fail(y, from, "a tab in the indentation: use spaces");
        } else {
            rc = yml_block(y, indent, YML_LINE);
        }
        if (rc) break;
        if (!y->more || y->col < indent || (y->col == indent && !yml_is_dash(y))) return yml_shut(y, JSON_ARRAY_END);
        if (y->col > indent) rc = yml_fail(y, y->at, "indented by %d, but the entries of this sequence by %d", y->col, indent);
    }
    return rc;
}

static int yml_block(struct yml_reader *y, int parent, enum yml_place place)
{
    int col = (int)(y->at - y->line_at), rc;
    uint32_t line = y->line;
    uint8_t c = yml_peek(y, 0);

    if (yml_is_dash(y)) return place == YML_LINE ? yml_block_seq(y, col) : yml_fail(y, y->at, "a sequence begins on a line of its own");
    if (c == '|' || c == '>') return yml_block_scalar(y, parent);
    if ((rc = yml_refuse(y))) return rc;
    if (place == YML_LINE && yml_has_key(y)) return yml_block_map(y, col);
    if (c == '[' || c == '{') {
        rc = yml_flow(y);
    } else {
        rc = c == '"' || c == '\'' ? yml_quoted(y) : yml_plain(y, parent, false);
        if (!rc) rc = yml_emit_scalar(y, line, (size_t)col + 1);
    }
    return rc ? rc : yml_value_end(y);
}

/* ---- documents ---- */

/* One document, at its first content or its marker. */
static int yml_document(struct yml_reader *y)
{
    int rc;

    if (!y->more && yml_peek(y, 0) == '.') {
        y->at += 3;
        return yml_rest_is_blank(y) ? 0 : yml_fail(y, y->at, "something behind the document marker");
    }
    if (!y->more) {
        y->at += 3;
        if (!yml_rest_is_blank(y)) {
            rc = yml_block(y, -1, YML_BEHIND);
            goto out;
        }
        if ((rc = yml_next(y)) || !y->more) return rc;
    }
    rc = yml_block(y, -1, YML_LINE);
out:
    mem_arena_free(&y->arena);
    if (!rc && y->more) return yml_fail(y, y->at, "something behind the document's value, indented by %d", y->col);
    return rc;
}

/* Refuses bytes that no YAML text may hold, so that the rest can take 0 as the end. */
static int yml_check_bytes(struct yml_reader *y)
{
    while (y->at < y->in.n) {
        uint8_t c = y->in.p[y->at];
        size_t len = c < 0x80 ? 1 : str_utf8_len(y->in.p + y->at, y->in.n - y->at);

        if (!len) return yml_fail(y, y->at, "malformed UTF-8");
        if (c < 0x20 && c != '\n' && c != '\t' && !(c == '\r' && yml_peek(y, 1) == '\n')) return yml_fail(y, y->at, "a control byte (0x%02x)", c);
        if (c == '\n') yml_break(y);
        else y->at += len;
    }
    y->at = y->line_at = 0;
    y->line = 1;
    return 0;
}

/* Reads a text of one or more documents and calls on with the events of each value until it returns not 0.
 * Returns 0, -1 with err set (line and column), or what on returned. */
static int yml_read(struct str text, int (*on)(void *arg, const struct json_event *ev), void *arg, struct log_err *err)
{
    struct yml_reader y = {.in = text, .line = 1, .text = str_growing(), .on = on, .arg = arg, .err = err};
    uint8_t *copy = NULL;
    int rc;

    if (text.n >= 3 && memcmp(text.p, "\xef\xbb\xbf", 3) == 0) y.in = str_from(text, 3);
    if ((rc = yml_check_bytes(&y))) goto out;
    if (str_find(y.in, '\r') < y.in.n) {
        size_t n = 0;

        copy = mem_need(y.in.n);
        for (size_t i = 0; i < y.in.n; i++)
            if (y.in.p[i] != '\r') copy[n++] = y.in.p[i];
        y.in = str_of(copy, n);
    }
    while (!(rc = yml_next(&y)) && (y.more || y.at < y.in.n))
        if ((rc = yml_document(&y))) break;
out:
    mem_arena_free(&y.arena);
    str_free(&y.text);
    mem_free(copy);
    return rc;
}

/* The first document of a text as a tree in the arena (more follow by next), or NULL with err set. */
static struct json_node *yml_parse(struct mem_arena *arena, struct str text, struct log_err *err)
{
    struct json_tree t;

    json_tree_init(&t, arena);
    if (yml_read(text, json_tree_on, &t, err)) return NULL;
    if (!t.root) log_fail(err, "the text is empty");
    return t.root;
}

/* ============================================================================
 * http_ : Version-free HTTP
 *
 * Owns:    struct http_msg, struct http_field; methods, status, field names, framing decision, hop-by-hop marks, path and host normal form.
 * Calls:   str_
 * Threads: any; pure.
 * Rules:   1. The only place that decides how a body is framed, which fields end at this hop, and what a path or host means.
 *          2. When two readings are possible, the message is refused.
 *          3. Nothing is allocated; nothing is read outside the slices given.
 * ========================================================================== */

/* What an octet may be. PATH lacks '.', '%' and '?', QUERY lacks '%': those are legal but need a closer look. */
enum {
    HTTP_C_TOKEN = 1,                                    /* RFC 9110 section 5.6.2 */
    HTTP_C_NAME = 2,                                     /* what field names are made of in practice: letters, digits, '-' */
    HTTP_C_PATH = 4,
    HTTP_C_QUERY = 8,
    HTTP_C_VALUE = 16,                                   /* field values and reason phrases: HTAB, SP, VCHAR, obs-text */
    HTTP_C_HOST = 32,                                    /* registered names: letters, digits, '-', '.', '_' */
    HTTP_C_HEX = 64,
    HTTP_C_UNRESERVED = 128,                             /* RFC 3986 section 2.3 */
};
#define HTTP_C_T (HTTP_C_TOKEN | HTTP_C_PATH | HTTP_C_QUERY | HTTP_C_VALUE)
#define HTTP_C_D (HTTP_C_PATH | HTTP_C_QUERY | HTTP_C_VALUE)
#define HTTP_C_A (HTTP_C_T | HTTP_C_NAME | HTTP_C_HOST | HTTP_C_UNRESERVED)
#define HTTP_C_X (HTTP_C_A | HTTP_C_HEX)
static const uint8_t http_class[256] = {
    ['\t'] = HTTP_C_VALUE, [' '] = HTTP_C_VALUE,
    ['!'] = HTTP_C_T, ['"'] = HTTP_C_VALUE, ['#'] = HTTP_C_TOKEN | HTTP_C_VALUE, ['$'] = HTTP_C_T, ['%'] = HTTP_C_TOKEN | HTTP_C_VALUE,
    ['&'] = HTTP_C_T, ['\''] = HTTP_C_T, ['('] = HTTP_C_D, [')'] = HTTP_C_D, ['*'] = HTTP_C_T, ['+'] = HTTP_C_T, [','] = HTTP_C_D, ['-'] = HTTP_C_A,
    ['.'] = HTTP_C_TOKEN | HTTP_C_QUERY | HTTP_C_VALUE | HTTP_C_HOST | HTTP_C_UNRESERVED, ['/'] = HTTP_C_D,
    ['0' ... '9'] = HTTP_C_X, [':'] = HTTP_C_D, [';'] = HTTP_C_D, ['<'] = HTTP_C_VALUE, ['='] = HTTP_C_D, ['>'] = HTTP_C_VALUE,
    ['?'] = HTTP_C_QUERY | HTTP_C_VALUE, ['@'] = HTTP_C_D,
    ['A' ... 'F'] = HTTP_C_X, ['G' ... 'Z'] = HTTP_C_A, ['['] = HTTP_C_D, ['\\'] = HTTP_C_QUERY | HTTP_C_VALUE, [']'] = HTTP_C_D, ['^'] = HTTP_C_T,
    ['_'] = HTTP_C_T | HTTP_C_HOST | HTTP_C_UNRESERVED, ['`'] = HTTP_C_T,
    ['a' ... 'f'] = HTTP_C_X, ['g' ... 'z'] = HTTP_C_A, ['{'] = HTTP_C_D, ['|'] = HTTP_C_T, ['}'] = HTTP_C_D, ['~'] = HTTP_C_T | HTTP_C_UNRESERVED,
    [0x80 ... 0xff] = HTTP_C_VALUE,
};

static inline bool http_is(uint8_t c, unsigned class) { return (http_class[c] & class) != 0; }
static inline bool http_is_ows(uint8_t c) { return c == ' ' || c == '\t'; }

/* Not empty and only of octets of the class. */
static bool http_is_all(struct str s, unsigned class)
{
    for (size_t i = 0; i < s.n; i++)
        if (!http_is(s.p[i], class)) return false;
    return s.n > 0;
}

/* ---- methods and status ---- */

/* The method of a token; letter case matters. */
static enum http_method http_method_find(struct str s)
{
#define X(id, flags) if (s.n == sizeof(#id) - 1 && memcmp(s.p, #id, sizeof(#id) - 1) == 0) return HTTP_##id;
    HTTP_METHODS(X)
#undef X
    return HTTP_OTHER_METHOD;
}

static uint32_t http_method_flags(enum http_method m)
{
#define X(id, flags) flags,
    static const uint8_t table[HTTP_OTHER_METHOD + 1] = {HTTP_METHODS(X)};
#undef X
    return m < HTTP_OTHER_METHOD ? table[m] : 0;
}

/* The reason phrase, or empty. */
static struct str http_reason(unsigned status)
{
    switch (status) {
#define X(code, text) case code: return S(text);
    HTTP_STATUSES(X)
#undef X
    default: return (struct str){0};
    }
}

/* ---- field names ---- */

enum { HTTP_NAME_MAX = 24 };                             /* longest known field name: three words of 8 octets */
static const struct http_name {
    char text[HTTP_NAME_MAX];
    uint8_t n, flags;
} http_names[HTTP_F_COUNT] = {
#define X(id, name, flags) [HTTP_F_##id] = {name, sizeof(name) - 1, flags},
    HTTP_FIELDS(X)
#undef X
    [HTTP_F_FW_AGREES] = {"", 0, HTTP_OWN},
    [HTTP_F_FW_KEPT] = {"", 0, HTTP_OWN},
    [HTTP_F_FW_REMOVED] = {"", 0, HTTP_OWN},
};
/* A longer name breaks the build here. */
enum {
#define X(id, name, flags) HTTP_FITS_##id = 1 / (sizeof(name) - 1 <= HTTP_NAME_MAX),
    HTTP_FIELDS(X)
#undef X
};
static_assert(HTTP_F_COUNT <= 64, "a set of fields is one word");

static inline uint64_t http_load64(const uint8_t *p)
{
    uint64_t w;

    memcpy(&w, p, 8);
    return w;
}

/* Eight octets, ASCII capitals made small. */
static inline uint64_t http_lower64(uint64_t w)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t low = w & ~high, is_upper = ((low + (0x80 - 'A') * ones) ^ (low + (0x7f - 'Z') * ones)) & high & ~w;

    return w | is_upper >> 2;
}

/* The known fields whose names have n octets and begin with c (0 = any), as a set. Every call has constants, so that this folds into one. */
static inline __attribute__((always_inline)) uint64_t http_names_of(size_t n, char c)
{
    uint64_t set = 0;

#define X(id, name, flags) if ((n == 0 || n == sizeof(name) - 1) && (c == 0 || c == (name)[0])) set |= 1ull << HTTP_F_##id;
    HTTP_FIELDS(X)
#undef X
    return set;
}

static inline uint64_t http_names_of_length(size_t n)
{
#define C(k) case k: return http_names_of(k, 0); case (k) + 1: return http_names_of((k) + 1, 0); case (k) + 2: return http_names_of((k) + 2, 0);
    switch (n) {
    C(1) C(4) C(7) C(10) C(13) C(16) C(19) C(22)
    default: return 0;
    }
#undef C
}

static inline uint64_t http_names_from(uint8_t first)
{
#define C(k) case k: return http_names_of(0, k); case (k) + 1: return http_names_of(0, (k) + 1);
    switch (first | 0x20) {
    C('a') C('c') C('e') C('g') C('i') C('k') C('m') C('o') C('q') C('s') C('u') C('w') C('y')
    default: return 0;
    }
#undef C
}

/* A name of 1 to 24 octets as three words that together hold every octet at a place that depends on n only. */
static inline void http_name_words(const uint8_t *p, size_t n, uint64_t w[3])
{
    uint32_t a, b;

    if (n >= 8) {
        w[0] = http_load64(p);
        w[1] = http_load64(p + n - 8);
        w[2] = n > 16 ? http_load64(p + 8) : 0;
        return;
    }
    w[1] = w[2] = 0;
    if (n >= 4) {
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        w[0] = (uint64_t)a << 32 | b;
        return;
    }
    w[0] = (uint64_t)p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16;
}

/* The rows of HTTP_FORWARDING, each with the id that a name gets which is no known field. */
static const struct http_forwarding {
    const char *text;
    uint8_t n, family, id, fate;                         /* family: names that begin so */
} http_forwardings[] = {
#define HTTP_FATE_ID(fate) HTTP_FATE_##fate == HTTP_FATE_AGREES ? HTTP_F_FW_AGREES : HTTP_FATE_##fate == HTTP_FATE_KEPT ? HTTP_F_FW_KEPT : HTTP_F_FW_REMOVED
#define X(name, fate) {name, sizeof(name) - 1 - ((name)[sizeof(name) - 2] == '*'), (name)[sizeof(name) - 2] == '*', HTTP_FATE_ID(fate), HTTP_FATE_##fate},
    HTTP_FORWARDING(X)
#undef X
};
static_assert(RJ_COUNT(http_forwardings) <= 64, "a set of them is one word");

/* The rows whose names begin with a letter, as a set. Every call has a constant, so that this folds into one. */
static inline __attribute__((always_inline)) uint64_t http_forwardings_of(char c)
{
    uint64_t set = 0, bit = 1;

#define X(name, fate) set |= (name)[0] == c ? bit : 0, bit <<= 1;
    HTTP_FORWARDING(X)
#undef X
    return set;
}

static inline uint64_t http_forwardings_from(uint8_t first)
{
    switch (first | 0x20) {
#define C(c) case c: return http_forwardings_of(c);
    C('c') C('f') C('s') C('t') C('x')
#undef C
    default: return 0;
    }
}

/* Whether a row begins with that letter: of a browser's names few do. */
static inline bool http_may_forward(uint8_t first)
{
#define X(name, fate) | 1u << ((name)[0] & 31)
    const uint32_t letters = 0 HTTP_FORWARDING(X);
#undef X

    return letters >> (first & 31) & 1;
}

/* The id of a name that is no known field: that of the longest row that fits. */
static __attribute__((noinline)) enum http_field_id http_forwarding_find(struct str name)
{
    enum http_field_id id = HTTP_F_NONE;
    size_t longest = 0;

    for (uint64_t set = http_forwardings_from(name.p[0]); set; set &= set - 1) {
        const struct http_forwarding *f = &http_forwardings[__builtin_ctzll(set)];

        if ((f->family ? name.n < f->n : name.n != f->n) || f->n < longest || !str_ieq(str_of(name.p, f->n), str_of((const uint8_t *)f->text, f->n))) continue;
        longest = f->n;
        id = (enum http_field_id)f->id;
    }
    return id;
}

/* The known field of that name, in any letter case. Length and first letter leave at most two to compare and mostly none: a browser's names
 * take 2 ns each, and 8 ns by length alone. */
static enum http_field_id http_field_find(struct str name)
{
    uint64_t set = http_names_of_length(name.n), w[3], t[3];

    if (set && (set &= http_names_from(name.p[0]))) {
        http_name_words(name.p, name.n, w);
        for (; set; set &= set - 1) {
            unsigned id = (unsigned)__builtin_ctzll(set);

            http_name_words((const uint8_t *)http_names[id].text, name.n, t);
            if (t[0] == http_lower64(w[0]) && t[1] == http_lower64(w[1]) && t[2] == http_lower64(w[2])) return (enum http_field_id)id;
        }
    }
    return name.n && http_may_forward(name.p[0]) ? http_forwarding_find(name) : HTTP_F_NONE;
}

static inline uint8_t http_field_flags(enum http_field_id id) { return http_names[id].flags; }

/* A name that some servers read as that of a field which this proxy decides about: they take other signs for hyphens. */
__attribute__((cold, noinline)) static bool http_name_is_veiled(struct str name)
{
    uint8_t plain[2 * HTTP_NAME_MAX];                    /* of a longer name only the beginning can be one of a table */
    size_t n = name.n < sizeof plain ? name.n : sizeof plain;
    enum http_field_id id;

    for (size_t i = 0; i < n; i++) plain[i] = http_is(name.p[i], HTTP_C_NAME) ? name.p[i] : '-';
    id = http_field_find(str_of(plain, n));
    return id == HTTP_F_HOST || http_names[id].flags & (HTTP_HOP | HTTP_FRAME | HTTP_OWN);
}

/* The forwarding fields as a Markdown table. */
static void http_render_forwarding(struct str_builder *b)
{
    static const char *const fates[][2] = {
#define X(id, stranger, trusted) {stranger, trusted},
        HTTP_FATES(X)
#undef X
    };

    str_put(b, S("| field | from a stranger | from a trusted peer |\n| --- | --- | --- |\n"));
    for (size_t i = 0; i < RJ_COUNT(http_forwardings); i++) {
        const struct http_forwarding *f = &http_forwardings[i];

        str_putf(b, "| %s | %s | %s |\n", f->text, fates[f->fate][0], fates[f->fate][1]);
    }
}

/* The next element of a comma-separated list (RFC 9110 section 5.6.1): trimmed, empty ones skipped. False at the end. */
static bool http_list_next(struct str *rest, struct str *item)
{
    while (str_cut(rest, ',', item)) {
        *item = str_trim(*item);
        if (item->n) return true;
    }
    return false;
}

/* ---- hosts ---- */

enum { HTTP_HOST_MAX = 255 };

/* Checks an authority without userinfo (RFC 3986 section 3.2.2: name, IPv4 address or [IPv6 address], optional port) and returns the octets
 * of the host part, or 0. Of registered names only letters, digits, '-', '.' and '_' are taken, without empty labels but the last. */
static size_t http_host_split(struct str s)
{
    size_t i = 0, label = 0;
    uint8_t ip[16];
    uint64_t port;

    if (s.n && s.p[0] == '[') {
        i = str_find(s, ']');
        if (i == s.n || !str_to_ip6(str_of(s.p + 1, i - 1), ip)) return 0;
        i++;
    } else {
        for (; i < s.n && http_is(s.p[i], HTTP_C_HOST); i++) {
            if (s.p[i] != '.') continue;
            if (i == label) return 0;
            label = i + 1;
        }
    }
    if (i == 0 || i > HTTP_HOST_MAX) return 0;
    if (i == s.n) return i;
    if (s.p[i] != ':' || s.n - i > 6) return 0;
    if (s.n - i > 1 && (!str_to_u64(str_from(s, i + 1), &port) || port > 65535)) return 0;
    return i;
}

/* The form that routes of an authority that http_host_split took, or of none: lower case, without port and without one trailing dot; an IPv6
 * address keeps its brackets. out holds HTTP_HOST_MAX octets. Returns octets. */
static size_t http_host_form(struct str host, uint8_t *out)
{
    size_t n = 0, from = host.n && host.p[0] == '[' ? str_find(host, ']') : 0;

    for (; n < host.n && (n < from || host.p[n] != ':'); n++) out[n] = str_lower(host.p[n]);
    return n && out[n - 1] == '.' ? n - 1 : n;
}

/* The same of any text. 0: it is no authority. */
static size_t http_host_normalize(struct str host, uint8_t *out) { return http_host_split(host) ? http_host_form(host, out) : 0; }

/* ---- paths ---- */

/* The value of a hexadecimal digit. */
static inline uint8_t http_hex(uint8_t c) { return (uint8_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10); }

/* Dots of the dot segment that starts a segment s: 1 or 2, or 0 when it starts with none. `..;x` counts: some servers cut it at the `;`. */
static unsigned http_path_dots(struct str s)
{
    size_t k = 0;

    while (k < s.n && k < 3 && s.p[k] == '.') k++;
    return k == 0 || k == 3 || (k < s.n && s.p[k] != '/' && s.p[k] != ';') ? 0 : (unsigned)k;
}

/* Octets of a variable's name. */
static bool http_is_variable(uint8_t c) { return str_is_digit(c) || c == '_' || (str_lower(c) >= 'a' && str_lower(c) <= 'z'); }

/* The path is its own normal form. */
static bool http_path_is_plain(struct str s)
{
    if (!s.n) return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '%') return false;
        if (s.p[i] == '/' && i + 1 < s.n && s.p[i + 1] == '.' && http_path_dots(str_from(s, i + 1))) return false;
    }
    return true;
}

/* Some servers take an encoded slash or backslash for a separator: `..` or `..;x` between such is readable in two ways. seg is a decoded segment. */
static bool http_path_is_veiled(struct str seg)
{
    size_t from = 0;
    bool cut = false;

    for (size_t i = 0; i <= seg.n; i++) {
        struct str escape = str_of(seg.p + i, i + 3 <= seg.n ? 3 : 0);
        bool sep = str_eq(escape, S("%2F")) || str_eq(escape, S("%5C"));

        if (!sep && i < seg.n) continue;
        cut = cut || sep;
        if (cut && http_path_dots(str_of(seg.p + from, i - from)) == 2) return true;
        from = i + 3;
        i += 2;
    }
    return false;
}

/* Ends the segment that starts at seg in out[0..o): removes dot segments (RFC 3986 section 5.2.4). Returns the new o, which is o itself for
 * a segment that stays and else stands behind a slash, or -400. */
static long http_path_end_segment(const uint8_t *out, size_t seg, size_t o)
{
    struct str s = str_of(out + seg, o - seg);
    unsigned dots = http_path_dots(s);

    if (http_path_is_veiled(s)) return -400;
    if (!dots) return (long)o;
    if (s.n > dots) return -400;                         /* `..;x`: two readings */
    if (dots == 1) return (long)seg;
    if (seg == 1) return -400;
    for (o = seg - 1; out[o - 1] != '/';) o--;
    return (long)o;
}

/* The normal form of a path (RFC 3986 section 6.2.2): unreserved octets decoded, hexadecimal digits in capitals, dot segments removed;
 * %2F and %5C stay encoded, `//` is kept. An empty path is "/", `*` is itself. out holds raw.n octets, at least one.
 * Returns octets, or -400: above the root, %00, bad escapes, octets that no path holds, dot segments that some servers read otherwise. */
static long http_path_normalize(struct str raw, uint8_t *out)
{
    size_t o = 0, seg = 1;

    if (raw.n == 0 || (raw.n == 1 && raw.p[0] == '*')) {
        out[0] = raw.n ? '*' : '/';
        return 1;
    }
    if (raw.p[0] != '/') return -400;
    out[o++] = '/';
    for (size_t i = 1; i <= raw.n; i++) {
        uint8_t c = i < raw.n ? raw.p[i] : '/', v;

        if (c == '/') {
            long end = http_path_end_segment(out, seg, o);
            bool kept = end == (long)o;

            if (end < 0 || i == raw.n) return end;
            o = (size_t)end;
            if (kept) out[o++] = '/';
            seg = o;
            continue;
        }
        if (c != '%') {
            if (c != '.' && !http_is(c, HTTP_C_PATH)) return -400;
            out[o++] = c;
            continue;
        }
        if (raw.n - i < 3 || !http_is(raw.p[i + 1], HTTP_C_HEX) || !http_is(raw.p[i + 2], HTTP_C_HEX)) return -400;
        v = (uint8_t)(http_hex(raw.p[i + 1]) << 4 | http_hex(raw.p[i + 2]));
        if (v == 0) return -400;
        if (http_is(v, HTTP_C_UNRESERVED)) {
            out[o++] = v;
        } else {
            out[o++] = '%';
            out[o++] = (uint8_t)"0123456789ABCDEF"[v >> 4];
            out[o++] = (uint8_t)"0123456789ABCDEF"[v & 15];
        }
        i += 2;
    }
    return -400;
}

/* ---- fields: what they say about the message ---- */

/* A part of a value that may still grow: false when no octets behind it can make it right. v is without OWS in front. */
static bool http_value_may_be(enum http_field_id id, struct str v)
{
    static const uint8_t chunked[] = "chunked";

    v = str_trim(v);
    switch (id) {
    case HTTP_F_CONTENT_LENGTH:
        for (size_t i = 0; i < v.n; i++)
            if (!str_is_digit(v.p[i])) return false;
        return true;
    case HTTP_F_HOST:
        for (size_t i = 0; i < v.n; i++)
            if (!http_is(v.p[i], HTTP_C_HOST) && v.p[i] != ':' && v.p[i] != '[' && v.p[i] != ']') return false;
        return true;
    case HTTP_F_TRANSFER_ENCODING: return v.n < sizeof chunked && str_ieq(v, str_of(chunked, v.n));
    default: return true;
    }
}

/* Content-Length (RFC 9110 section 8.6): once, digits, no leading zero, below 2^63. */
static int http_take_length(struct http_msg *msg, struct str v, const char **why)
{
    uint64_t n;

    if (msg->has_length) return *why = "more than one Content-Length", 400;
    if (msg->framing == HTTP_BODY_CHUNKED) return *why = "Content-Length beside Transfer-Encoding", 400;
    if (!str_to_u64(v, &n) || n > INT64_MAX || (v.n > 1 && v.p[0] == '0')) return *why = "bad Content-Length", 400;
    msg->has_length = true;
    msg->length = n;
    msg->framing = HTTP_BODY_LENGTH;
    return 0;
}

/* Transfer-Encoding (RFC 9112 section 6.1): once, `chunked` and nothing else, not in HTTP/1.0. */
static int http_take_coding(struct http_msg *msg, struct str v, const char **why)
{
    if (msg->minor == 0) return *why = "Transfer-Encoding in HTTP/1.0", 400;
    if (msg->has_length) return *why = "Transfer-Encoding beside Content-Length", 400;
    if (msg->framing == HTTP_BODY_CHUNKED) return *why = "more than one Transfer-Encoding", 400;
    if (!str_ieq(v, S("chunked"))) return *why = "Transfer-Encoding is not chunked", 400;
    msg->framing = HTTP_BODY_CHUNKED;
    return 0;
}

/* Connection (RFC 9110 section 7.6.1). What is no token names nothing, but the connection is not trusted to live on. */
static int http_take_connection(struct http_msg *msg, struct str v, const char **why)
{
    struct str item;

    while (http_list_next(&v, &item)) {
        if (str_ieq(item, S("close"))) msg->seen |= HTTP_SEEN_CLOSE;
        else if (str_ieq(item, S("keep-alive"))) msg->seen |= HTTP_SEEN_KEEP_ALIVE;
        else if (str_ieq(item, S("upgrade"))) msg->seen |= HTTP_SEEN_SWITCH;
        else if (!http_is_all(item, HTTP_C_TOKEN)) msg->seen |= HTTP_SEEN_CLOSE;
        else if (++msg->nominated > HTTP_NOMINATED_MAX) return *why = "too many Connection options", 400;
    }
    return 0;
}

static int http_take_host(struct http_msg *msg, const struct http_field *f, struct str v, const char **why)
{
    if (msg->seen & HTTP_SEEN_HOST) return *why = "more than one Host", 400;
    if (!http_host_split(v)) return *why = "bad Host", 400;
    msg->seen |= HTTP_SEEN_HOST;
    if (msg->seen & HTTP_SEEN_AUTHORITY) return 0;
    msg->host_at = f->value_at;
    msg->host_n = f->value_n;
    return 0;
}

static int http_take_expect(struct http_msg *msg, struct str v, const char **why)
{
    if (msg->seen & HTTP_SEEN_EXPECT || !str_ieq(v, S("100-continue"))) return *why = "Expect is not 100-continue", 417;
    msg->seen |= HTTP_SEEN_EXPECT;
    return 0;
}

/* Takes one known field line (f->id is not NONE) into account, in the order of the message: framing, Host, Connection, Expect, Upgrade; marks
 * what ends at this hop. Returns 0 or the status that refuses the message, with *why. */
static int http_take_field(struct http_msg *msg, const uint8_t *head, struct http_field *f, bool request, const char **why)
{
    struct str v = str_of(head + f->value_at, f->value_n), item;

    f->drop = (http_names[f->id].flags & HTTP_HOP) != 0;
    switch (f->id) {
    case HTTP_F_CONNECTION: return http_take_connection(msg, v, why);
    case HTTP_F_CONTENT_LENGTH: return http_take_length(msg, v, why);
    case HTTP_F_TRANSFER_ENCODING: return http_take_coding(msg, v, why);
    case HTTP_F_EXPECT: return request ? http_take_expect(msg, v, why) : 0;
    case HTTP_F_HOST: return request ? http_take_host(msg, f, v, why) : 0;
    case HTTP_F_TE:
        while (http_list_next(&v, &item))
            if (str_ieq(item, S("trailers"))) msg->te_trailers = true;
        return 0;
    case HTTP_F_UPGRADE:
        msg->seen &= (uint8_t)~HTTP_SEEN_WEBSOCKET;
        if (!(msg->seen & HTTP_SEEN_UPGRADE) && str_ieq(v, S("websocket"))) msg->seen |= HTTP_SEEN_WEBSOCKET;
        msg->seen |= HTTP_SEEN_UPGRADE;
        return 0;
    default: return 0;
    }
}

/* Marks the fields of one name, which stands in a Connection field. Fields that the proxy needs or writes are not the sender's to remove. */
static void http_drop_name(struct http_msg *msg, const uint8_t *head, struct str name)
{
    enum http_field_id id = http_field_find(name);

    if (id && http_names[id].flags & (HTTP_FRAME | HTTP_OWN | HTTP_KEEP)) return;
    for (size_t i = 0; i < msg->nfields; i++) {
        struct http_field *f = &msg->field[i];

        if (f->id == id && (id || (f->name_n == name.n && str_ieq(str_of(head + f->name_at, f->name_n), name)))) f->drop = true;
    }
}

static void http_drop_nominated(struct http_msg *msg, const uint8_t *head)
{
    if (!msg->nominated) return;
    for (size_t i = 0; i < msg->nfields; i++) {
        struct str rest = str_of(head + msg->field[i].value_at, msg->field[i].value_n), item;

        if (msg->field[i].id != HTTP_F_CONNECTION) continue;
        while (http_list_next(&rest, &item)) http_drop_name(msg, head, item);
    }
}

/* RFC 9112 section 9.3. */
static inline bool http_keeps_alive(const struct http_msg *msg)
{
    return !(msg->seen & HTTP_SEEN_CLOSE) && (msg->minor > 0 || msg->seen & HTTP_SEEN_KEEP_ALIVE);
}

/* Decides about a complete request head: framing, keep_alive, expect, upgrade; marks what Connection nominates.
 * Returns 0 or the status that refuses it, with *why. */
static int http_frame_request(struct http_msg *msg, const uint8_t *head, const char **why)
{
    bool body = msg->framing == HTTP_BODY_CHUNKED || msg->length > 0;

    if (msg->minor > 0 && !(msg->seen & HTTP_SEEN_HOST)) return *why = "no Host", 400;
    msg->keep_alive = http_keeps_alive(msg);
    msg->expect = msg->seen & HTTP_SEEN_EXPECT && msg->minor > 0 && body;
    msg->upgrade = msg->seen & HTTP_SEEN_WEBSOCKET && msg->seen & HTTP_SEEN_SWITCH && msg->method == HTTP_GET && msg->minor > 0 && !body;
    http_drop_nominated(msg, head);
    if (msg->seen & HTTP_SEEN_EXPECT && !msg->expect)
        for (size_t i = 0; i < msg->nfields; i++) msg->field[i].drop |= msg->field[i].id == HTTP_F_EXPECT;
    return 0;
}

/* Decides about a complete response head to a request of that method (RFC 9112 section 6.3): framing, keep_alive, upgrade.
 * Returns 0 or 502, with *why: a 1xx that announces content, or of HTTP/1.0, which has none, leaves open what follows it. */
static int http_frame_response(struct http_msg *msg, const uint8_t *head, enum http_method request_method, const char **why)
{
    bool none = msg->status < 200 || msg->status == 204, content = msg->framing == HTTP_BODY_CHUNKED || msg->length > 0, has_length = msg->has_length;

    if (msg->status < 200 && content) return *why = "1xx with content", 502;
    if (msg->status < 200 && msg->minor == 0) return *why = "1xx in HTTP/1.0", 502;
    msg->keep_alive = http_keeps_alive(msg) && !(none && content); /* what a 204 announces may still come */
    if (none) msg->has_length = false;                   /* RFC 9110 section 8.6: never sent on with these */
    if (none || msg->status == 304 || request_method == HTTP_HEAD) {
        msg->framing = HTTP_BODY_NONE;
    } else if (msg->framing == HTTP_BODY_NONE) {
        msg->framing = HTTP_BODY_EOF;
        msg->keep_alive = false;
    }
    msg->upgrade = msg->status == 101 && msg->seen & HTTP_SEEN_WEBSOCKET && msg->seen & HTTP_SEEN_SWITCH && !has_length;
    http_drop_nominated(msg, head);
    return 0;
}

/* ============================================================================
 * h1_ : HTTP/1.x
 *
 * Owns:    struct h1_head, struct h1_body, struct h1_limits.
 * Calls:   str_ http_
 * Threads: any; pure.
 * Rules:   1. Resumable at every octet, and the answer never depends on how the octets were cut.
 *          2. Strict (RFC 9112): CRLF ends lines and nothing else does; an octet that can never be right refuses at once.
 *          3. Nothing is allocated; nothing is read outside the octets given.
 *          4. Writers never emit what the parser would refuse: they fail their builder instead.
 * ========================================================================== */

/* ---- scanners: index of the first octet in p[i..end) that needs a look, or end ---- */

/* Eight octets at a time for the ordinary case; any other machine than x86_64 lives on these, and the others use them for the rest. */
static size_t h1_scan_value_portable(const uint8_t *p, size_t i, size_t end)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;

    for (;;) {
        size_t stop;

        while (end - i >= 8) {
            uint64_t w = http_load64(p + i), del = w ^ 0x7f * ones;

            if ((((w - 0x20 * ones) & ~w) | ((del - ones) & ~del)) & high) break;
            i += 8;
        }
        stop = end - i > 8 ? i + 8 : end;
        while (i < stop && http_is(p[i], HTTP_C_VALUE)) i++;
        if (i < stop || i == end) return i;
    }
}

static inline size_t h1_scan_class(const uint8_t *p, size_t i, size_t end, unsigned class)
{
    while (i < end && http_is(p[i], class)) i++;
    return i;
}

#if defined(__SSE2__) && !defined(RJ_NO_SIMD)
/* Sixteen octets at a time. Each keeps to whole blocks inside the octets given. */
static inline size_t h1_scan_value(const uint8_t *p, size_t i, size_t end)
{
    const __m128i ctl = _mm_set1_epi8(0x1f), del = _mm_set1_epi8(0x7f), tab = _mm_set1_epi8('\t');

    while (end - i >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        __m128i bad = _mm_andnot_si128(_mm_cmpeq_epi8(v, tab), _mm_or_si128(_mm_cmpeq_epi8(_mm_min_epu8(v, ctl), v), _mm_cmpeq_epi8(v, del)));
        unsigned m = (unsigned)_mm_movemask_epi8(bad);

        if (m) return i + (unsigned)__builtin_ctz(m);
        i += 16;
    }
    return h1_scan_value_portable(p, i, end);
}

static inline size_t h1_scan_name(const uint8_t *p, size_t i, size_t end)
{
    while (end - i >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        __m128i letter = _mm_add_epi8(_mm_or_si128(v, _mm_set1_epi8(0x20)), _mm_set1_epi8((char)(0x80 - 'a')));
        __m128i digit = _mm_add_epi8(v, _mm_set1_epi8((char)(0x80 - '0')));
        __m128i ok = _mm_or_si128(_mm_or_si128(_mm_cmplt_epi8(letter, _mm_set1_epi8(-128 + 26)), _mm_cmplt_epi8(digit, _mm_set1_epi8(-128 + 10))),
                                  _mm_cmpeq_epi8(v, _mm_set1_epi8('-')));
        unsigned m = (unsigned)_mm_movemask_epi8(ok) ^ 0xffff;

        if (m) return i + (unsigned)__builtin_ctz(m);
        i += 16;
    }
    return h1_scan_class(p, i, end, HTTP_C_NAME);
}

/* path: also stops at '.', '?' and '\'. */
static inline size_t h1_scan_target(const uint8_t *p, size_t i, size_t end, bool path)
{
    while (end - i >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        __m128i bad = _mm_or_si128(_mm_cmplt_epi8(v, _mm_set1_epi8(0x21)), _mm_cmpeq_epi8(v, _mm_set1_epi8(0x7f)));
        unsigned m;

        bad = _mm_or_si128(bad, _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')), _mm_cmpeq_epi8(v, _mm_set1_epi8('#'))));
        bad = _mm_or_si128(bad, _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('%')), _mm_cmpeq_epi8(v, _mm_set1_epi8('<'))));
        bad = _mm_or_si128(bad, _mm_cmpeq_epi8(v, _mm_set1_epi8('>')));
        if (path)
            bad = _mm_or_si128(bad, _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('.')),
                                                 _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('?')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')))));
        m = (unsigned)_mm_movemask_epi8(bad);
        if (m) return i + (unsigned)__builtin_ctz(m);
        i += 16;
    }
    return h1_scan_class(p, i, end, path ? HTTP_C_PATH : HTTP_C_QUERY);
}
#else
static inline size_t h1_scan_value(const uint8_t *p, size_t i, size_t end) { return h1_scan_value_portable(p, i, end); }
static inline size_t h1_scan_name(const uint8_t *p, size_t i, size_t end) { return h1_scan_class(p, i, end, HTTP_C_NAME); }
static inline size_t h1_scan_target(const uint8_t *p, size_t i, size_t end, bool path)
{
    return h1_scan_class(p, i, end, path ? HTTP_C_PATH : HTTP_C_QUERY);
}
#endif

/* ---- heads ---- */

/* Makes a parser ready for one head. request_method: of the request that a response answers. The field table is left as it is. */
static void h1_head_init(struct h1_head *h, bool request, uint8_t request_method)
{
    memset(h, 0, offsetof(struct h1_head, msg.field));
    h->request = request;
    h->request_method = request_method;
}

/* Whatever an upstream does wrong is a 502. */
__attribute__((cold, noinline)) static int h1_refuse(struct h1_head *h, int status, const char *why)
{
    h->why = why;
    return h->request ? -status : -502;
}

/* Checks `%` and two digits at i. 3 = good, 0 = cut off at end, -1 = bad. */
static int h1_escape(const uint8_t *p, size_t i, size_t end)
{
    if (i + 1 == end) return 0;
    if (!http_is(p[i + 1], HTTP_C_HEX)) return -1;
    if (i + 2 == end) return 0;
    return !http_is(p[i + 2], HTTP_C_HEX) || (p[i + 1] == '0' && p[i + 2] == '0') ? -1 : 3;
}

/* Path and query from i up to the space behind them. Returns the index of the space, RJ_MORE or -status. */
static int h1_path(struct h1_head *h, const uint8_t *p, size_t i, size_t end)
{
    struct http_msg *msg = &h->msg;
    bool plain = true, dots = false, path = true;

    msg->path_at = (uint32_t)i;
    for (;;) {
        int step = 1;

        i = h1_scan_target(p, i, end, path);
        if (i == end) return RJ_MORE;
        if (p[i] == ' ') break;
        if (p[i] == '%') {
            step = h1_escape(p, i, end);
            if (step < 0) return h1_refuse(h, 400, "bad percent-encoding in the target");
            if (step == 0) return RJ_MORE;
            plain = plain && !path;
        } else if (path && p[i] == '.') {
            dots = dots || (i > msg->path_at && p[i - 1] == '/');
        } else if (path && p[i] == '?') {
            path = false;
            msg->has_query = true;
            msg->path_n = (uint32_t)i - msg->path_at;
            msg->query_at = (uint32_t)i + 1;
        } else {
            return h1_refuse(h, 400, "bad octet in the target");
        }
        i += (size_t)step;
    }
    if (msg->has_query) msg->query_n = (uint32_t)i - msg->query_at;
    else msg->path_n = (uint32_t)i - msg->path_at;
    msg->path_plain = plain && msg->path_n && (!dots || http_path_is_plain(str_of(p + msg->path_at, msg->path_n)));
    return (int)i;
}

/* The absolute form (RFC 9112 section 3.2.2): http or https, authority, path. Its authority wins over Host. */
static int h1_absolute(struct h1_head *h, const uint8_t *p, size_t i, size_t end)
{
    static const uint8_t scheme[] = "http://";
    struct http_msg *msg = &h->msg;
    size_t from;

    for (size_t k = 0; k < sizeof scheme - 1; i++) {
        if (i == end) return RJ_MORE;
        if (str_lower(p[i]) == scheme[k]) k++;
        else if (k != 4 || str_lower(p[i]) != 's' || str_lower(p[i - 1]) == 's') return h1_refuse(h, 400, "bad target");
    }
    from = i;
    while (i < end && (http_is(p[i], HTTP_C_HOST) || p[i] == ':' || p[i] == '[' || p[i] == ']')) i++;
    if (i == end) return RJ_MORE;
    if ((p[i] != '/' && p[i] != '?' && p[i] != ' ') || !http_host_split(str_of(p + from, i - from))) return h1_refuse(h, 400, "bad authority in the target");
    msg->host_at = (uint32_t)from;
    msg->host_n = (uint32_t)(i - from);
    msg->seen |= HTTP_SEEN_AUTHORITY;
    return h1_path(h, p, i, end);
}

/* The request target at i. Returns the index of the space behind it, RJ_MORE or -status. */
static int h1_target(struct h1_head *h, const uint8_t *p, size_t i, size_t end)
{
    struct http_msg *msg = &h->msg;

    if (i == end) return RJ_MORE;
    if (p[i] == '/') return h1_path(h, p, i, end);
    if (msg->method == HTTP_CONNECT) {
        i = h1_scan_target(p, i, end, false);
        if (i == end) return RJ_MORE;
        return p[i] == ' ' && i > msg->target_at ? (int)i : h1_refuse(h, 400, "bad octet in the target");
    }
    if (p[i] == '*') {
        if (msg->method != HTTP_OPTIONS) return h1_refuse(h, 400, "asterisk target with a method other than OPTIONS");
        if (i + 1 == end) return RJ_MORE;
        msg->path_at = (uint32_t)i;
        msg->path_n = 1;
        msg->path_plain = true;
        return p[i + 1] == ' ' ? (int)i + 1 : h1_refuse(h, 400, "bad target");
    }
    if (str_lower(p[i]) == 'h') return h1_absolute(h, p, i, end);
    return h1_refuse(h, 400, "bad target");
}

/* `HTTP/1.` and a digit at i. Returns the index behind it, RJ_MORE or -status. A higher minor is read as 1. */
static int h1_version(struct h1_head *h, const uint8_t *p, size_t i, size_t end)
{
    static const uint8_t name[] = "HTTP/1.";
    size_t n = sizeof name - 1;

    if (RJ_UNLIKELY(end - i <= n || memcmp(p + i, name, n) != 0)) {
        for (size_t k = 0; k < n && i + k < end; k++)
            if (p[i + k] != name[k]) return h1_refuse(h, 400, "bad HTTP version");
        return RJ_MORE;
    }
    if (!str_is_digit(p[i + n])) return h1_refuse(h, 400, "bad HTTP version");
    h->msg.minor = p[i + n] != '0';
    return (int)(i + n + 1);
}

/* CRLF at i. Returns the index behind it, RJ_MORE or -status. */
static inline int h1_crlf(struct h1_head *h, const uint8_t *p, size_t i, size_t end)
{
    if (i == end) return RJ_MORE;
    if (p[i] != '\r') return h1_refuse(h, 400, "a line does not end with CRLF");
    if (i + 1 == end) return RJ_MORE;
    return p[i + 1] == '\n' ? (int)i + 2 : h1_refuse(h, 400, "a line does not end with CRLF");
}

/* Method, target and version at h->at, in p[..end). Returns the index of the line's end, RJ_MORE or -status. */
static int h1_request_words(struct h1_head *h, const uint8_t *p, size_t end)
{
    struct http_msg *msg = &h->msg;
    size_t at = h->at, i = h1_scan_class(p, at, end, HTTP_C_TOKEN);
    int rc;

    if (i == end) return RJ_MORE;
    if (p[i] != ' ' || i == at) return h1_refuse(h, 400, "bad method");
    msg->method_at = (uint32_t)at;
    msg->method_n = (uint32_t)(i - at);
    msg->method = (uint8_t)http_method_find(str_of(p + at, i - at));
    msg->target_at = (uint32_t)i + 1;
    msg->has_query = false;
    rc = h1_target(h, p, i + 1, end);
    if (rc <= 0) return rc;
    msg->target_n = (uint32_t)rc - msg->target_at;
    return h1_version(h, p, (size_t)rc + 1, end);
}

/* The request line at h->at. Returns the index behind its CRLF, RJ_MORE or -status. */
static int h1_request_line(struct h1_head *h, const uint8_t *p, size_t end, const struct h1_limits *limits)
{
    size_t line_end = end - h->at > limits->line_bytes ? h->at + limits->line_bytes : end;
    int rc = h1_request_words(h, p, line_end);

    if (rc < 0) return rc;
    if (line_end < end && (rc == RJ_MORE || ((size_t)rc == line_end && p[rc] != '\r'))) return h1_refuse(h, 414, "request line too long");
    if (rc == RJ_MORE) return RJ_MORE;
    rc = h1_crlf(h, p, (size_t)rc, end);
    if (rc <= 0) return rc;
    if (h->msg.method == HTTP_CONNECT || h->msg.method == HTTP_TRACE) return h1_refuse(h, 405, "method not allowed");
    if (h->msg.method == HTTP_PRI) return h1_refuse(h, 400, "PRI is no method but the preface of HTTP/2"); /* RFC 9113 section 11.6 */
    return rc;
}

/* The status line (RFC 9112 section 4). The space behind the code may be missing with the reason. */
static int h1_status_line(struct h1_head *h, const uint8_t *p, size_t end)
{
    struct http_msg *msg = &h->msg;
    int rc = h1_version(h, p, h->at, end);
    size_t i = (size_t)rc;

    if (rc <= 0) return rc;
    if (i == end) return RJ_MORE;
    if (p[i++] != ' ') return h1_refuse(h, 502, "bad status line");
    msg->status = 0;
    for (size_t k = 0; k < 3; k++, i++) {
        if (i == end) return RJ_MORE;
        if (!str_is_digit(p[i]) || (k == 0 && (p[i] < '1' || p[i] > '5'))) return h1_refuse(h, 502, "bad status code");
        msg->status = (uint16_t)(msg->status * 10 + p[i] - '0');
    }
    if (i < end && p[i] == ' ') {
        msg->reason_at = (uint32_t)++i;
        i = h1_scan_value(p, i, end);
        msg->reason_n = (uint32_t)i - msg->reason_at;
    }
    return h1_crlf(h, p, i, end);
}

enum { H1_NAME_MAX = 65535 };                            /* name_n has 16 bits */

/* Why a line that does not begin with a name and a colon is refused; c stands where the colon should. */
__attribute__((cold, noinline)) static int h1_bad_name(struct h1_head *h, uint8_t c, bool empty)
{
    if (empty) return h1_refuse(h, 400, http_is_ows(c) ? "folded field line" : c == ':' ? "empty field name" : "bad octet in a field name");
    if (c == '\r' || c == '\n') return h1_refuse(h, 400, "field line without a colon");
    return h1_refuse(h, 400, http_is_ows(c) ? "white space before the colon of a field" : "bad octet in a field name");
}

/* One field line at at. Returns the index behind it, RJ_MORE or -status. */
static inline int h1_field(struct h1_head *h, const uint8_t *p, size_t at, size_t end, const struct h1_limits *limits)
{
    struct http_msg *msg = &h->msg;
    struct http_field *f = &msg->field[msg->nfields];
    size_t name_end = end - at > H1_NAME_MAX ? at + H1_NAME_MAX : end, i = h1_scan_name(p, at, name_end), v, ve;
    bool odd = i < name_end && p[i] != ':';
    int status;

    if (RJ_UNLIKELY(odd)) i = h1_scan_class(p, i, name_end, HTTP_C_TOKEN);
    if (RJ_UNLIKELY(i == name_end && !(i < end && p[i] == ':'))) return name_end < end ? h1_refuse(h, 431, "field name too long") : RJ_MORE;
    if (RJ_UNLIKELY(p[i] != ':' || i == at)) return h1_bad_name(h, p[i], i == at);
    f->name_at = (uint32_t)at;
    f->name_n = (uint16_t)(i - at);
    f->id = (uint8_t)http_field_find(str_of(p + at, i - at));
    f->drop = false;
    for (v = i + 1; v < end && http_is_ows(p[v]);) v++;
    i = h1_scan_value(p, v, end);
    if (RJ_UNLIKELY(i < end && p[i] != '\r')) return h1_refuse(h, 400, p[i] == '\n' ? "a line does not end with CRLF" : "bad octet in a field value");
    if (RJ_UNLIKELY(end - i < 2)) {
        bool hopeless = h->state != H1_TRAILERS && (h->request || f->id != HTTP_F_HOST) && !http_value_may_be(f->id, str_of(p + v, i - v));

        return hopeless ? h1_refuse(h, 400, "bad value of a field") : RJ_MORE;
    }
    if (RJ_UNLIKELY(p[i + 1] != '\n')) return h1_refuse(h, 400, "a line does not end with CRLF");
    for (ve = i; ve > v && http_is_ows(p[ve - 1]);) ve--;
    f->value_at = (uint32_t)v;
    f->value_n = (uint32_t)(ve - v);
    if (h->state == H1_TRAILERS) f->drop = f->id != HTTP_F_NONE;
    else if (f->id && (status = http_take_field(msg, p, f, h->request, &h->why))) return h1_refuse(h, status, h->why);
    if (RJ_UNLIKELY(odd) && h->request && ((!limits->underscores && memchr(p + at, '_', f->name_n)) || http_name_is_veiled(str_of(p + at, f->name_n))))
        f->drop = true;
    msg->nfields++;
    return (int)i + 2;
}

/* Field lines from h->at up to the empty line. Returns the index behind it, RJ_MORE or -status. */
static int h1_fields(struct h1_head *h, const uint8_t *p, size_t end, const struct h1_limits *limits)
{
    uint32_t max = limits->fields < HTTP_FIELDS_MAX ? limits->fields : HTTP_FIELDS_MAX;

    for (size_t at = h->at; at < end;) {
        int rc;

        if (p[at] == '\r') {
            h->msg.end_at = (uint32_t)at;
            return h1_crlf(h, p, at, end);
        }
        if (h->msg.nfields >= max) return h1_refuse(h, 431, "too many fields");
        rc = h1_field(h, p, at, end, limits);
        if (rc <= 0) return rc;
        h->at = (uint32_t)(at = (size_t)rc);
    }
    return RJ_MORE;
}

/* RJ_MORE, unless the limit of the head is reached. */
static inline int h1_more(struct h1_head *h, size_t n, const struct h1_limits *limits)
{
    return n > limits->head_bytes ? h1_refuse(h, 431, "head too large") : RJ_MORE;
}

/* See struct h1_head. */
static int h1_request_feed(struct h1_head *h, const uint8_t *p, size_t n, const struct h1_limits *limits)
{
    size_t end = n < limits->head_bytes ? n : limits->head_bytes;
    int rc, status;

    RJ_CHECK(h->request);
    if (h->state == H1_START) {
        if (end && p[0] == '\r') {
            rc = h1_crlf(h, p, 0, end);
            if (rc <= 0) return rc < 0 ? rc : h1_more(h, n, limits);
            h->at = h->skip = 2;
        }
        if (!end) return h1_more(h, n, limits);
        h->state = H1_LINE;
    }
    if (h->state == H1_LINE) {
        rc = h1_request_line(h, p, end, limits);
        if (rc <= 0) return rc < 0 ? rc : h1_more(h, n, limits);
        h->at = (uint32_t)rc;
        h->state = H1_FIELDS;
    }
    rc = h1_fields(h, p, end, limits);
    if (rc <= 0) return rc < 0 ? rc : h1_more(h, n, limits);
    status = http_frame_request(&h->msg, p, &h->why);
    return status ? h1_refuse(h, status, h->why) : rc;
}

/* See struct h1_head. */
static int h1_response_feed(struct h1_head *h, const uint8_t *p, size_t n, const struct h1_limits *limits)
{
    size_t end = n < limits->head_bytes ? n : limits->head_bytes;
    int rc, status;

    RJ_CHECK(!h->request);
    if (h->state != H1_FIELDS) {
        rc = h1_status_line(h, p, end);
        if (rc <= 0) return rc < 0 ? rc : h1_more(h, n, limits);
        h->at = (uint32_t)rc;
        h->state = H1_FIELDS;
    }
    rc = h1_fields(h, p, end, limits);
    if (rc <= 0) return rc < 0 ? rc : h1_more(h, n, limits);
    status = http_frame_response(&h->msg, p, (enum http_method)h->request_method, &h->why);
    return status ? h1_refuse(h, status, h->why) : rc;
}

/* A trailer section (RFC 9112 section 7.1.2) behind the last chunk, up to and with the empty line. h is a parser of its own, made ready
 * like that of the head; every known field is marked drop: a trailer never frames, routes, authenticates or forwards. */
static int h1_trailer_feed(struct h1_head *h, const uint8_t *p, size_t n, const struct h1_limits *limits)
{
    int rc;

    h->state = H1_TRAILERS;
    rc = h1_fields(h, p, n < limits->head_bytes ? n : limits->head_bytes, limits);
    return rc ? rc : h1_more(h, n, limits);
}

/* ---- bodies ---- */

/* Makes a decoder ready for a body of that framing; length counts for HTTP_BODY_LENGTH only. */
static void h1_body_init(struct h1_body *b, enum http_framing framing, uint64_t length)
{
    *b = (struct h1_body){.framing = (uint8_t)framing, .left = framing == HTTP_BODY_LENGTH ? length : 0, .room = UINT64_MAX};
    b->done = framing == HTTP_BODY_NONE || (framing == HTTP_BODY_LENGTH && length == 0);
}

__attribute__((cold, noinline)) static long h1_body_refuse(struct h1_body *b, const char *why)
{
    b->why = why;
    return -1;
}

/* Where one octet of a chunk extension (RFC 9112 section 7.1.1) leads: `;` name, perhaps `=` and a token or a quoted string, white space
 * around each. H1_EXT_BAD: nowhere. */
static enum h1_ext_state h1_ext_next(enum h1_ext_state at, uint8_t c)
{
    bool token = http_is(c, HTTP_C_TOKEN), space = http_is_ows(c);

    switch (at) {
    case H1_EXT_NAME: return token ? H1_EXT_IN_NAME : space ? H1_EXT_NAME : H1_EXT_BAD;
    case H1_EXT_IN_NAME:
        if (token) return H1_EXT_IN_NAME;
        return c == '=' ? H1_EXT_VALUE : c == ';' ? H1_EXT_NAME : space ? H1_EXT_BEHIND_NAME : H1_EXT_BAD;
    case H1_EXT_BEHIND_NAME: return c == '=' ? H1_EXT_VALUE : c == ';' ? H1_EXT_NAME : space ? H1_EXT_BEHIND_NAME : H1_EXT_BAD;
    case H1_EXT_VALUE: return token ? H1_EXT_IN_VALUE : c == '"' ? H1_EXT_QUOTED : space ? H1_EXT_VALUE : H1_EXT_BAD;
    case H1_EXT_IN_VALUE:
        if (token) return H1_EXT_IN_VALUE;
        return c == ';' ? H1_EXT_NAME : space ? H1_EXT_BEHIND_VALUE : H1_EXT_BAD;
    case H1_EXT_QUOTED: return !http_is(c, HTTP_C_VALUE) ? H1_EXT_BAD : c == '"' ? H1_EXT_UNQUOTED : c == '\\' ? H1_EXT_ESCAPE : H1_EXT_QUOTED;
    case H1_EXT_ESCAPE: return http_is(c, HTTP_C_VALUE) ? H1_EXT_QUOTED : H1_EXT_BAD;
    case H1_EXT_UNQUOTED:
    case H1_EXT_BEHIND_VALUE: return c == ';' ? H1_EXT_NAME : space ? H1_EXT_BEHIND_VALUE : H1_EXT_BAD;
    case H1_EXT_BAD: break;
    }
    return H1_EXT_BAD;
}

/* The size line up to its CR: at most 16 digits and below 2^63; extensions are dropped, and limited by the content they come with. */
static const char *h1_size_octet(struct h1_body *b, uint8_t c)
{
    if (b->state == H1_EXT) {
        bool whole = b->ext_state == H1_EXT_IN_NAME || b->ext_state == H1_EXT_IN_VALUE || b->ext_state == H1_EXT_UNQUOTED;

        if (c != '\r') b->ext_state = (uint8_t)h1_ext_next((enum h1_ext_state)b->ext_state, c);
        if (c == '\r' ? !whole : b->ext_state == H1_EXT_BAD) return "bad chunk extension";
        if (++b->ext > H1_EXT_MAX) return "chunk extension too long";
    } else if (http_is(c, HTTP_C_HEX)) {
        if (b->digits == 16 || b->left >> 59) return "chunk size too large";
        b->digits++;
        b->left = b->left << 4 | http_hex(c);
        return NULL;
    } else if (b->digits == 0 || (c != '\r' && c != ';')) {
        return "bad chunk size";
    }
    if (c == ';' && b->state == H1_SIZE) b->ext_state = H1_EXT_NAME;
    b->state = c == '\r' ? H1_SIZE_LF : H1_EXT;
    return NULL;
}

/* The framing octets of the chunked coding from p[i] on, up to content, the last chunk or the end. Returns the index behind them, or -1. */
static long h1_chunk_frame(struct h1_body *b, const uint8_t *p, size_t i, size_t n)
{
    for (; i < n && !b->done && b->state != H1_DATA; i++) {
        const char *why = NULL;

        switch ((enum h1_body_state)b->state) {
        case H1_SIZE:
        case H1_EXT: why = h1_size_octet(b, p[i]); break;
        case H1_SIZE_LF:
            if (p[i] != '\n') return h1_body_refuse(b, "chunk size line does not end with CRLF");
            b->too_large = b->left > b->room;
            if (b->too_large) return h1_body_refuse(b, "body too large");
            b->room -= b->left;
            b->ext = b->ext > b->left ? b->ext - (uint32_t)b->left : 0;
            b->digits = 0;
            b->done = b->in_trailer = b->left == 0;
            b->state = H1_DATA;
            break;
        case H1_DATA: break;
        case H1_DATA_CR:
            if (p[i] != '\r') why = "chunk does not end with CRLF";
            b->state = H1_DATA_LF;
            break;
        case H1_DATA_LF:
            if (p[i] != '\n') why = "chunk does not end with CRLF";
            b->state = H1_SIZE;
            break;
        }
        if (why) return h1_body_refuse(b, why);
    }
    return (long)i;
}

/* See struct h1_body. One call gives at most one slice of content, and takes the framing octets around it. */
static long h1_body_feed(struct h1_body *b, const uint8_t *p, size_t n, struct str *data)
{
    size_t take;
    long i = 0;

    *data = (struct str){0};
    if (b->done) return 0;
    if (b->framing == HTTP_BODY_EOF) {
        *data = str_of(p, n);
        return (long)n;
    }
    if (b->framing == HTTP_BODY_CHUNKED) {
        i = h1_chunk_frame(b, p, 0, n);
        if (i < 0 || b->state != H1_DATA || b->done) return i;
    }
    take = n - (size_t)i < b->left ? n - (size_t)i : (size_t)b->left;
    *data = str_of(p + i, take);
    b->left -= take;
    i += (long)take;
    if (b->left) return i;
    if (b->framing == HTTP_BODY_LENGTH) {
        b->done = true;
        return i;
    }
    b->state = H1_DATA_CR;
    return h1_chunk_frame(b, p, (size_t)i, n);
}

/* ---- writers ---- */

/* Fails the builder: what was asked for would be refused by the parser. */
static bool h1_fail(struct str_builder *sb)
{
    sb->failed = true;
    return false;
}

static inline uint8_t *h1_copy(uint8_t *to, struct str s)
{
    if (s.n) memcpy(to, s.p, s.n);
    return to + s.n;
}

/* Every octet of a path or a query is one that the parser takes. */
static bool h1_target_is_good(struct str s, bool path)
{
    for (size_t i = 0; (i = h1_scan_target(s.p, i, s.n, path)) < s.n;) {
        if (s.p[i] == '%' && h1_escape(s.p, i, s.n) == 3) i += 3;
        else if (path && s.p[i] == '.') i++;
        else return false;
    }
    return true;
}

/* `METHOD path[?query] HTTP/1.1`; prefix is the beginning of the path or empty. False (and sb fails) when the parser would refuse it. */
static bool h1_put_request_line(struct str_builder *sb, struct str method, struct str prefix, struct str path, struct str query, bool has_query)
{
    size_t n = method.n + prefix.n + path.n + (has_query ? query.n + 1 : 0) + 12;
    bool asterisk = path.n == 1 && path.p[0] == '*' && !prefix.n && !has_query && str_eq(method, S("OPTIONS"));
    struct str first = prefix.n ? prefix : path;
    uint8_t *to;

    if (!http_is_all(method, HTTP_C_TOKEN) || !first.n || (first.p[0] != '/' && !asterisk)) return h1_fail(sb);
    if (!h1_target_is_good(prefix, true) || !h1_target_is_good(path, true) || (has_query && !h1_target_is_good(query, false))) return h1_fail(sb);
    if (!(to = str_room(sb, n))) return false;
    to = h1_copy(to, method);
    *to++ = ' ';
    to = h1_copy(to, prefix);
    to = h1_copy(to, path);
    if (has_query) {
        *to++ = '?';
        to = h1_copy(to, query);
    }
    h1_copy(to, S(" HTTP/1.1\r\n"));
    sb->n += n;
    return true;
}

/* `HTTP/1.1 status reason`. False (and sb fails) when the parser would refuse it. */
static bool h1_put_status_line(struct str_builder *sb, unsigned status, struct str reason)
{
    size_t n = 13 + reason.n + 2;
    uint8_t *to;

    if (status < 100 || status > 599 || h1_scan_value(reason.p, 0, reason.n) < reason.n) return h1_fail(sb);
    if (!(to = str_room(sb, n))) return false;
    to = h1_copy(to, S("HTTP/1.1 "));
    *to++ = (uint8_t)('0' + status / 100);
    *to++ = (uint8_t)('0' + status / 10 % 10);
    *to++ = (uint8_t)('0' + status % 10);
    *to++ = ' ';
    to = h1_copy(to, reason);
    h1_copy(to, S("\r\n"));
    sb->n += n;
    return true;
}

/* Every field line of a parsed head (or trailer section) at head that is not marked drop, octet by octet as it came, neighbours in one copy. */
static bool h1_put_kept(struct str_builder *sb, const struct http_msg *msg, const uint8_t *head)
{
    for (size_t i = 0; i < msg->nfields;) {
        uint32_t from = msg->field[i].name_at, to;

        if (msg->field[i++].drop) continue;
        while (i < msg->nfields && !msg->field[i].drop) i++;
        to = i < msg->nfields ? msg->field[i].name_at : msg->end_at;
        str_put(sb, str_of(head + from, to - from));
    }
    return !sb->failed;
}

/* The size line of a chunk of n octets; 0 begins the last chunk. */
static bool h1_put_chunk_size(struct str_builder *sb, uint64_t n)
{
    str_put_hex(sb, n, 1);
    str_put(sb, S("\r\n"));
    return !sb->failed;
}

/* ============================================================================
 * pp_ : PROXY protocol
 *
 * Owns:    struct pp_header.
 * Calls:   str_
 * Threads: any; pure.
 * Rules:   1. Resumable at every octet, and the answer never depends on how the octets were cut.
 *          2. One spelling of each header: anything else is refused, as soon as no octet behind it can make it right.
 *          3. Nothing is allocated; nothing is read outside the octets given.
 * ========================================================================== */

__attribute__((cold, noinline)) static int pp_refuse(struct pp_header *h, const char *why)
{
    h->why = why;
    return RJ_BAD;
}

/* The first octets of one of the words given, or with whole all of it. */
static bool pp_is_of(struct str w, struct str word, bool whole)
{
    return (whole ? w.n == word.n : w.n <= word.n) && (!w.n || memcmp(w.p, word.p, w.n) == 0);
}

/* Decimal, 0 to 65535, no sign and no leading zero. A part of one may be empty. */
static bool pp_to_port(struct str w, bool whole, uint16_t *port)
{
    uint64_t v = 0;

    if ((w.n || whole) && !str_to_u64(w, &v)) return false;
    *port = (uint16_t)v;
    return w.n <= 5 && v <= 65535 && !(w.n > 1 && w.p[0] == '0');
}

/* An address of that family, or what may become one. */
static bool pp_to_ip(struct str w, bool whole, uint8_t family, struct net_addr *out)
{
    if (whole) return str_to_ip(w, out) && out->family == family && w.p[0] != '[';
    for (size_t i = 0; i < w.n; i++) {
        uint8_t c = str_lower(w.p[i]);

        if (!str_is_digit(c) && c != '.' && (family == AF_INET || (c != ':' && !(c >= 'a' && c <= 'f')))) return false;
    }
    return true;
}

/* Takes the k-th word of a v1 line. whole: it has ended. NULL, or what is wrong with it. */
static const char *pp_take_word(struct pp_header *h, int k, struct str w, bool whole)
{
    switch (k) {
    case 0: return pp_is_of(w, S("PROXY"), whole) ? NULL : "no PROXY header";
    case 1:
        h->local = pp_is_of(w, S("UNKNOWN"), whole);
        h->from.family = pp_is_of(w, S("TCP6"), whole) ? AF_INET6 : AF_INET;
        return h->local || h->from.family == AF_INET6 || pp_is_of(w, S("TCP4"), whole) ? NULL : "bad family in a PROXY header";
    case 2:
        h->to.family = h->from.family;                   /* of both: an address that was read may be of another */
        return pp_to_ip(w, whole, h->to.family, &h->from) ? NULL : "bad source address in a PROXY header";
    case 3: return pp_to_ip(w, whole, h->to.family, &h->to) ? NULL : "bad destination address in a PROXY header";
    case 4: return pp_to_port(w, whole, &h->from.port) ? NULL : "bad source port in a PROXY header";
    default: return pp_to_port(w, whole, &h->to.port) ? NULL : "bad destination port in a PROXY header";
    }
}

/* Version 1: words with one space between them, and CRLF. What stands behind UNKNOWN means nothing. */
static int pp_feed_v1(struct pp_header *h, const uint8_t *p, size_t n)
{
    size_t end = n < PP_V1_MAX ? n : PP_V1_MAX, i = 0;
    const char *why;

    for (int k = 0; k < 6; k++) {
        size_t from = i;

        while (i < end && p[i] > ' ' && p[i] < 0x7f) i++;
        if ((why = pp_take_word(h, k, str_of(p + from, i - from), i < end))) return pp_refuse(h, why);
        if (k == 1 && h->local)
            while (i < end && p[i] >= ' ' && p[i] < 0x7f) i++;
        if (i == end) break;
        if (k == 5 || (k == 1 && h->local)) {
            if (p[i++] != '\r' || (i < end && p[i] != '\n')) return pp_refuse(h, "a PROXY header does not end with CRLF");
            if (i < end) return (int)i + 1;
            break;
        }
        if (p[i++] != ' ') return pp_refuse(h, "bad octet in a PROXY header");
    }
    return end == PP_V1_MAX ? pp_refuse(h, "PROXY header too long") : RJ_MORE;
}

/* Type, length and value, again and again, up to the end exactly. */
static bool pp_tlvs_fit(const uint8_t *p, size_t n)
{
    while (n) {
        size_t one;

        if (n < 3) return false;
        one = 3 + ((size_t)p[1] << 8 | p[2]);
        if (one > n) return false;
        p += one;
        n -= one;
    }
    return true;
}

static void pp_take_addr(struct net_addr *a, uint8_t family, const uint8_t *ip, const uint8_t *port)
{
    *a = (struct net_addr){.family = family, .port = (uint16_t)(port[0] << 8 | port[1])};
    if (family == AF_INET) a->ip[10] = a->ip[11] = 0xff;
    memcpy(family == AF_INET ? a->ip + 12 : a->ip, ip, family == AF_INET ? 4 : 16);
}

/* Version 2: signature, command, family, length; then addresses and TLVs. Of LOCAL and of an unspecified family nobody can tell where
 * addresses end and TLVs begin: all of it is skipped. */
static int pp_feed_v2(struct pp_header *h, const uint8_t *p, size_t n)
{
    static const uint8_t signature[] = "\r\n\r\n\0\r\nQUIT\n";
    static const uint8_t addrs[4] = {0, 12, 36, 216};    /* octets of both addresses and ports by family */
    uint8_t family;
    size_t all, k = sizeof signature - 1;

    if (memcmp(p, signature, n < k ? n : k) != 0) return pp_refuse(h, "no PROXY header");
    if (n <= k) return RJ_MORE;
    if (p[k] != 0x20 && p[k] != 0x21) return pp_refuse(h, "bad version or command in a PROXY header");
    if (n <= k + 1) return RJ_MORE;
    family = p[k + 1] >> 4;
    h->local = p[k] == 0x20 || family == 0 || family == 3;
    if (p[k] == 0x21 && p[k + 1] != 0 && (family < 1 || family > 3 || (p[k + 1] & 15) < 1 || (p[k + 1] & 15) > 2))
        return pp_refuse(h, "bad family in a PROXY header");
    if (n < PP_V2_HEAD) return n > k + 2 && p[k + 2] > PP_V2_LENGTH_MAX >> 8 ? pp_refuse(h, "PROXY header too long") : RJ_MORE;
    all = PP_V2_HEAD + ((size_t)p[k + 2] << 8 | p[k + 3]);
    if (all > PP_V2_HEAD + PP_V2_LENGTH_MAX) return pp_refuse(h, "PROXY header too long");
    if (p[k] == 0x20 || family == 0) return n < all ? RJ_MORE : (int)all;
    if (all < PP_V2_HEAD + (size_t)addrs[family]) return pp_refuse(h, "PROXY header too short for its addresses");
    if (n < all) return RJ_MORE;
    p += PP_V2_HEAD;
    if (!pp_tlvs_fit(p + addrs[family], all - PP_V2_HEAD - addrs[family])) return pp_refuse(h, "a TLV does not fit its PROXY header");
    if (family < 3) {
        size_t ip = family == 1 ? 4 : 16;

        pp_take_addr(&h->from, family == 1 ? AF_INET : AF_INET6, p, p + 2 * ip);
        pp_take_addr(&h->to, family == 1 ? AF_INET : AF_INET6, p + ip, p + 2 * ip + 2);
    }
    return (int)all;
}

/* See struct pp_header. */
static int pp_feed(struct pp_header *h, const uint8_t *p, size_t n)
{
    int rc;

    *h = (struct pp_header){0};
    if (!n) return RJ_MORE;
    rc = p[0] == '\r' ? pp_feed_v2(h, p, n) : pp_feed_v1(h, p, n);
    if (rc <= 0) return rc;
    if (h->local) h->from = h->to = (struct net_addr){0};
    str_unmap(&h->from);
    str_unmap(&h->to);
    return rc;
}

/* ============================================================================
 * cry_ : Random, PEM, keys and certificates
 *
 * Owns:    struct cry_anchors, struct cry_identity.
 * Calls:   sys_ mem_ str_ log_
 * Threads: any; a counted object belongs to one thread.
 * Rules:   1. With tls_ the only section that names BearSSL.
 *          2. Secrets are compared in constant time and wiped before their memory goes.
 *          3. What cannot be used is refused when it is read, with the reason; never at the handshake.
 * ========================================================================== */

#include <bearssl.h>

/* Fills p with n random bytes. There is nothing to do without them. */
static void cry_random(void *p, size_t n)
{
    uint8_t *at = p;

    while (n) {
        long rc = sys_getrandom(at, n < 256 ? n : 256);

        if (rc == -EINTR) continue;
        RJ_BUG_ON(rc <= 0);
        at += rc;
        n -= (size_t)rc;
    }
}

/* A random number in [lo, hi]. */
static uint32_t cry_random_range(uint32_t lo, uint32_t hi)
{
    uint64_t r;

    cry_random(&r, sizeof r);
    return lo + (uint32_t)(r % ((uint64_t)hi - lo + 1));
}

/* Zeroes p so that no compiler takes the stores away. */
static void cry_wipe(void *p, size_t n)
{
    if (!n) return;
    memset(p, 0, n);
    __asm__ volatile("" : : "r"(p) : "memory");
}

/* Equal, in a time that depends on the lengths only. */
static bool cry_equal(struct str a, struct str b)
{
    uint8_t diff = a.n != b.n;

    for (size_t i = 0; i < a.n; i++) diff |= (uint8_t)(a.p[i] ^ (b.n ? b.p[i % b.n] : 0));
    return diff == 0;
}

/* ---- DER: just enough to look into a certificate that BearSSL has decoded ---- */

/* Takes one element off *in: its tag byte and its content. False at the end, on lengths that do not fit, and on what DER forbids. */
static bool cry_der_next(struct str *in, uint8_t *tag, struct str *content)
{
    size_t n, at = 2;

    if (in->n < 2 || (in->p[0] & 0x1f) == 0x1f) return false;
    n = in->p[1];
    if (n >= 0x80) {
        size_t k = n & 0x7f;

        if (k < 1 || k > 3 || in->n < 2 + k) return false;
        for (n = 0; at < 2 + k; at++) n = n << 8 | in->p[at];
        if (n < 0x80 || (k > 1 && n >> (8 * (k - 1)) == 0)) return false;
    }
    if (n > in->n - at) return false;
    *tag = in->p[0];
    *content = str_of(in->p + at, n);
    *in = str_from(*in, at + n);
    return true;
}

/* The same when it must have that tag. */
static bool cry_der_take(struct str *in, uint8_t want, struct str *content)
{
    uint8_t tag;

    return in->n && in->p[0] == want && cry_der_next(in, &tag, content);
}

/* The content of the extension with that identifier (2.5.29.last) of a certificate, RFC 5280 section 4.1; false when it has none. */
static bool cry_cert_extension(struct str cert, uint8_t last, struct str *out)
{
    struct str body, tbs, part, list, ext, oid;
    uint8_t tag;

    if (!cry_der_take(&cert, 0x30, &body) || !cry_der_take(&body, 0x30, &tbs)) return false;
    do {
        if (!cry_der_next(&tbs, &tag, &part)) return false;
    } while (tag != 0xa3);
    if (!cry_der_take(&part, 0x30, &list)) return false;
    while (cry_der_take(&list, 0x30, &ext)) {
        if (!cry_der_take(&ext, 0x06, &oid)) return false;
        if (oid.n != 3 || oid.p[0] != 0x55 || oid.p[1] != 0x1d || oid.p[2] != last) continue;
        if (ext.n && ext.p[0] == 0x01 && !cry_der_next(&ext, &tag, &part)) return false;
        return cry_der_take(&ext, 0x04, out);
    }
    return false;
}

/* RFC 6125 section 6.4: letter case does not matter, `*` stands for the whole leftmost label only and never for the only one. */
static bool cry_name_matches(struct str pattern, struct str name)
{
    size_t dot;

    if (name.n && name.p[name.n - 1] == '.') name.n--;
    if (!name.n || !pattern.n) return false;
    if (!str_starts(pattern, S("*."))) return str_ieq(pattern, name);
    dot = str_find(name, '.');
    if (dot == 0 || dot == name.n || str_find(str_from(pattern, 2), '.') == pattern.n - 2) return false;
    return str_ieq(str_from(pattern, 1), str_from(name, dot));
}

/* Whether the certificate is for that DNS name, by its subjectAltName only (the common name is not looked at). */
static bool cry_cert_has_name(struct str cert, struct str name)
{
    struct str ext, list, value;
    uint8_t tag;

    if (!cry_cert_extension(cert, 17, &ext) || !cry_der_take(&ext, 0x30, &list)) return false;
    while (cry_der_next(&list, &tag, &value))
        if (tag == 0x82 && cry_name_matches(value, name)) return true;
    return false;
}

/* Whether the certificate is for that address: an iPAddress of exactly its 4 or 16 bytes in subjectAltName. */
static bool cry_cert_has_ip(struct str cert, const struct net_addr *ip)
{
    struct str want = ip->family == AF_INET ? str_of(ip->ip + 12, 4) : str_of(ip->ip, 16), ext, list, value;
    uint8_t tag;

    if (!cry_cert_extension(cert, 17, &ext) || !cry_der_take(&ext, 0x30, &list)) return false;
    while (cry_der_next(&list, &tag, &value))
        if (tag == 0x87 && str_eq(value, want)) return true;
    return false;
}

/* Whether extendedKeyUsage, when there is one, allows a TLS server (1.3.6.1.5.5.7.3.1) or anything (2.5.29.37.0). */
static bool cry_cert_is_server(struct str cert)
{
    struct str ext, list, oid;

    if (!cry_cert_extension(cert, 37, &ext)) return true;
    if (!cry_der_take(&ext, 0x30, &list)) return false;
    while (cry_der_take(&list, 0x06, &oid))
        if (str_eq(oid, S("\x2b\x06\x01\x05\x05\x07\x03\x01")) || str_eq(oid, S("\x55\x1d\x25\x00"))) return true;
    return false;
}

/* ---- PEM ---- */

/* What the reader calls for each object; name and der are lent for the call. Not 0 ends the reading. */
struct cry_pem_sink {
    int (*object)(void *arg, struct str name, struct str der, struct log_err *err);
    void *arg;
};

struct cry_pem_buf {
    uint8_t *p;
    size_t n;
    bool too_long;
};

static void cry_pem_append(void *arg, const void *p, size_t n)
{
    struct cry_pem_buf *b = arg;

    if (n > CRY_CERT_BYTES_MAX - b->n) b->too_long = true;
    else memcpy(b->p + b->n, p, n), b->n += n;
}

/* One decoder event. Returns 1 when an object was handed over, 0 otherwise, -1 with err. */
static int cry_pem_event(br_pem_decoder_context *pc, struct cry_pem_buf *buf, const struct cry_pem_sink *sink, struct log_err *err)
{
    struct str name;

    switch (br_pem_decoder_event(pc)) {
    case BR_PEM_BEGIN_OBJ:
        buf->n = 0;
        buf->too_long = false;
        br_pem_decoder_setdest(pc, cry_pem_append, buf);
        return 0;
    case BR_PEM_END_OBJ:
        name = str_z(br_pem_decoder_name(pc));
        while (name.n && (name.p[name.n - 1] == '-' || name.p[name.n - 1] == '\r' || name.p[name.n - 1] == ' ')) name.n--; /* CRLF files */
        if (buf->too_long) return log_fail(err, "PEM object " STR_FMT " has more than %d bytes", STR_ARG(name), CRY_CERT_BYTES_MAX);
        return sink->object(sink->arg, name, str_of(buf->p, buf->n), err) < 0 ? -1 : 1;
    case BR_PEM_ERROR: return log_fail(err, "damaged PEM: expected base64 between BEGIN and END lines");
    }
    return 0;
}

/* Hands every PEM object of the text to the sink. Returns how many there were, or -1 with err. */
static int cry_pem_read(struct str text, const struct cry_pem_sink *sink, struct log_err *err)
{
    br_pem_decoder_context pc;
    struct cry_pem_buf buf = {.p = NULL};
    struct str parts[2] = {text, S("\n")};               /* the decoder sees an END line only with its end of line */
    int n = 0;

    if (text.n > CRY_PEM_BYTES_MAX) return log_fail(err, "PEM text of %zu bytes, at most %d", text.n, CRY_PEM_BYTES_MAX);
    if (!(buf.p = mem_alloc(CRY_CERT_BYTES_MAX))) return log_fail(err, "out of memory");
    br_pem_decoder_init(&pc);
    for (size_t k = 0; k < 2; k++) {
        while (parts[k].n && n >= 0) {
            int rc;

            parts[k] = str_from(parts[k], br_pem_decoder_push(&pc, parts[k].p, parts[k].n));
            rc = cry_pem_event(&pc, &buf, sink, err);
            n = rc < 0 ? -1 : n + rc;
        }
    }
    cry_wipe(buf.p, CRY_CERT_BYTES_MAX);
    cry_wipe(&pc, sizeof pc);
    mem_free(buf.p);
    return n;
}

static bool cry_pem_is_cert(struct str name) { return str_eq(name, S("CERTIFICATE")) || str_eq(name, S("X509 CERTIFICATE")); }

/* Why BearSSL could not decode a key or a certificate. */
static const char *cry_x509_reason(int err)
{
    switch (err) {
    case BR_ERR_X509_UNSUPPORTED: return "unsupported key type or curve (supported: RSA up to 4096 bits, EC P-256, P-384, P-521)";
    case BR_ERR_X509_OVERFLOW:
    case BR_ERR_X509_LIMIT_EXCEEDED: return "too large (RSA keys: at most 4096 bits)";
    case BR_ERR_X509_TRUNCATED:
    case BR_ERR_X509_INNER_TRUNC: return "truncated DER";
    case BR_ERR_X509_BAD_TAG_VALUE:
    case BR_ERR_X509_BAD_TAG_CLASS:
    case BR_ERR_X509_EXTRA_ELEMENT:
    case BR_ERR_X509_UNEXPECTED: return "unsupported key type (Ed25519, RSA-PSS, RSA over 4096 bits) or malformed DER";
    default: return "malformed DER";
    }
}

/* ---- trust anchors ---- */

struct cry_anchors {
    struct mem_arena arena;
    br_x509_trust_anchor *ta;
    size_t n, cap;
    uint32_t refs;
    uint32_t skipped;                                    /* certificates of a kind that cannot be used */
    const char *why;                                     /* the last of them */
};

static struct cry_anchors *cry_anchors_get(struct cry_anchors *a)
{
    if (a) a->refs++;
    return a;
}

static void cry_anchors_put(struct cry_anchors *a)
{
    if (!a || --a->refs) return;
    mem_free(a->ta);
    mem_arena_free(&a->arena);
    mem_free(a);
}

static void *cry_copy(struct mem_arena *arena, const void *p, size_t n)
{
    uint8_t *q = mem_arena_alloc(arena, n ? n : 1);

    if (n) memcpy(q, p, n);
    return q;
}

static void cry_copy_pkey(struct mem_arena *arena, const br_x509_pkey *from, br_x509_pkey *to)
{
    *to = *from;
    if (from->key_type == BR_KEYTYPE_RSA) {
        to->key.rsa.n = cry_copy(arena, from->key.rsa.n, from->key.rsa.nlen);
        to->key.rsa.e = cry_copy(arena, from->key.rsa.e, from->key.rsa.elen);
    } else {
        to->key.ec.q = cry_copy(arena, from->key.ec.q, from->key.ec.qlen);
    }
}

static void cry_append_dn(void *arg, const void *p, size_t n) { str_put(arg, str_of(p, n)); }

static int cry_anchor_add(void *arg, struct str name, struct str der, struct log_err *err)
{
    struct cry_anchors *a = arg;
    struct str_builder dn = str_growing();
    br_x509_decoder_context dc;
    br_x509_trust_anchor *ta;

    (void)err;
    if (!cry_pem_is_cert(name)) return 0;
    br_x509_decoder_init(&dc, cry_append_dn, &dn);
    br_x509_decoder_push(&dc, der.p, der.n);
    if (!br_x509_decoder_get_pkey(&dc)) {
        a->skipped++;
        a->why = cry_x509_reason(br_x509_decoder_last_error(&dc));
    } else {
        if (a->n == a->cap) {
            a->cap = a->cap ? a->cap * 2 : 4;
            a->ta = mem_realloc(a->ta, a->cap * sizeof *a->ta);
            RJ_BUG_ON(!a->ta);
        }
        ta = &a->ta[a->n++];
        *ta = (br_x509_trust_anchor){.dn = {cry_copy(&a->arena, dn.p, dn.n), dn.n}, .flags = br_x509_decoder_isCA(&dc) ? BR_X509_TA_CA : 0};
        cry_copy_pkey(&a->arena, br_x509_decoder_get_pkey(&dc), &ta->pkey);
    }
    str_free(&dn);
    return 0;
}

/* The certificates of a PEM text as trust anchors (a certificate that is no CA is trusted for itself only). One reference, or NULL
 * with err when none can be used; a few that cannot beside others that can are left out and counted. */
static struct cry_anchors *cry_anchors_new(struct str pem, struct log_err *err)
{
    struct cry_anchors *a = mem_need(sizeof *a);
    struct cry_pem_sink sink = {cry_anchor_add, a};
    int n;

    a->refs = 1;
    n = cry_pem_read(pem, &sink, err);
    if (n >= 0 && a->n) return a;
    if (n >= 0 && a->skipped) log_fail(err, "no usable CA certificate: %s", a->why);
    else if (n >= 0) log_fail(err, "no certificate found: expected PEM with BEGIN CERTIFICATE");
    cry_anchors_put(a);
    return NULL;
}

static uint32_t cry_anchors_skipped(const struct cry_anchors *a) { return a->skipped; }

/* ---- identities ---- */

struct cry_identity {
    struct mem_arena arena;
    br_x509_certificate chain[CRY_CHAIN_MAX];
    size_t n;
    br_x509_pkey pkey;                                   /* of the leaf */
    unsigned issuer_key_type;
    uint32_t refs;
    int key_type;                                        /* BR_KEYTYPE_*; 0: no key yet */
    union {
        br_rsa_private_key rsa;
        br_ec_private_key ec;
    } key;
    uint8_t key_data[3 * BR_X509_BUFSIZE_SIG];           /* what key points into: wiped */
};

static struct cry_identity *cry_identity_get(struct cry_identity *id)
{
    if (id) id->refs++;
    return id;
}

static void cry_identity_put(struct cry_identity *id)
{
    if (!id || --id->refs) return;
    mem_arena_free(&id->arena);
    cry_wipe(id, sizeof *id);
    mem_free(id);
}

static int cry_chain_add(void *arg, struct str name, struct str der, struct log_err *err)
{
    struct cry_identity *id = arg;
    br_x509_decoder_context dc;
    const br_x509_pkey *pkey;

    if (!cry_pem_is_cert(name)) return 0;
    if (id->n == CRY_CHAIN_MAX) return log_fail(err, "more than %d certificates in the chain", CRY_CHAIN_MAX);
    if (!id->n) {
        br_x509_decoder_init(&dc, NULL, NULL);
        br_x509_decoder_push(&dc, der.p, der.n);
        pkey = br_x509_decoder_get_pkey(&dc);
        if (!pkey) return log_fail(err, "certificate: %s", cry_x509_reason(br_x509_decoder_last_error(&dc)));
        cry_copy_pkey(&id->arena, pkey, &id->pkey);
        id->issuer_key_type = (unsigned)br_x509_decoder_get_signer_key_type(&dc);
    }
    id->chain[id->n++] = (br_x509_certificate){cry_copy(&id->arena, der.p, der.n), der.n};
    return 0;
}

/* The numbers of an RSA or EC key, moved into id->key_data. */
static void cry_key_keep(struct cry_identity *id, const br_skey_decoder_context *sc)
{
    uint8_t *at = id->key_data;

    id->key_type = br_skey_decoder_key_type(sc);
    if (id->key_type == BR_KEYTYPE_RSA) {
        br_rsa_private_key *k = &id->key.rsa;
        struct { unsigned char **p; size_t n; } part[] = {{&k->p, 0}, {&k->q, 0}, {&k->dp, 0}, {&k->dq, 0}, {&k->iq, 0}};

        *k = *br_skey_decoder_get_rsa(sc);
        part[0].n = k->plen, part[1].n = k->qlen, part[2].n = k->dplen, part[3].n = k->dqlen, part[4].n = k->iqlen;
        for (size_t i = 0; i < RJ_COUNT(part); i++) {
            RJ_BUG_ON(part[i].n > (size_t)(id->key_data + sizeof id->key_data - at));
            memcpy(at, *part[i].p, part[i].n);
            *part[i].p = at;
            at += part[i].n;
        }
    } else {
        id->key.ec = *br_skey_decoder_get_ec(sc);
        RJ_BUG_ON(id->key.ec.xlen > sizeof id->key_data);
        memcpy(at, id->key.ec.x, id->key.ec.xlen);
        id->key.ec.x = at;
    }
}

static int cry_key_add(void *arg, struct str name, struct str der, struct log_err *err)
{
    struct cry_identity *id = arg;
    br_skey_decoder_context sc;
    int rc = 0;

    if (str_eq(name, S("ENCRYPTED PRIVATE KEY"))) return log_fail(err, "the private key is encrypted: only keys without a passphrase are supported");
    if (str_eq(name, S("OPENSSH PRIVATE KEY"))) return log_fail(err, "an OpenSSH private key: expected PKCS#1, PKCS#8 or SEC1");
    if (!str_ends(name, S("PRIVATE KEY"))) return 0;     /* EC PARAMETERS, a certificate in the same file */
    if (id->key_type) return log_fail(err, "more than one private key");
    br_skey_decoder_init(&sc);
    br_skey_decoder_push(&sc, der.p, der.n);
    if (br_skey_decoder_last_error(&sc)) rc = log_fail(err, "private key: %s", cry_x509_reason(br_skey_decoder_last_error(&sc)));
    else cry_key_keep(id, &sc);
    cry_wipe(&sc, sizeof sc);
    return rc;
}

/* Whether the private key belongs to the first certificate. */
static bool cry_identity_matches(const struct cry_identity *id)
{
    uint8_t pub[BR_X509_BUFSIZE_KEY];

    if (id->pkey.key_type != id->key_type) return false;
    if (id->key_type == BR_KEYTYPE_RSA) {
        const br_rsa_public_key *rsa = &id->pkey.key.rsa;
        br_rsa_compute_modulus modulus = br_rsa_compute_modulus_get_default();
        size_t n = modulus(NULL, &id->key.rsa);
        struct str have = str_of(rsa->n, rsa->nlen);

        while (have.n && have.p[0] == 0) have = str_from(have, 1);
        return n && n <= sizeof pub && modulus(pub, &id->key.rsa) == n && str_eq(str_of(pub, n), have);
    } else {
        br_ec_public_key ec;
        size_t n = id->key.ec.curve == id->pkey.key.ec.curve ? br_ec_compute_pub(br_ec_get_default(), &ec, pub, &id->key.ec) : 0;

        return n && str_eq(str_of(pub, n), str_of(id->pkey.key.ec.q, id->pkey.key.ec.qlen));
    }
}

/* A certificate chain (leaf first) and its private key: RSA up to 4096 bits, EC P-256, P-384, P-521; PKCS#1, PKCS#8, SEC1.
 * One reference, or NULL with err. */
static struct cry_identity *cry_identity_new(struct str cert_pem, struct str key_pem, struct log_err *err)
{
    struct cry_identity *id = mem_need(sizeof *id);
    struct cry_pem_sink chain = {cry_chain_add, id}, key = {cry_key_add, id};
    int rc;

    id->refs = 1;
    rc = cry_pem_read(cert_pem, &chain, err);
    if (rc >= 0 && !id->n) rc = log_fail(err, "no certificate found: expected PEM with BEGIN CERTIFICATE");
    if (rc >= 0 && key_pem.n > 22 && memmem(key_pem.p, key_pem.n, "Proc-Type: 4,ENCRYPTED", 22))
        rc = log_fail(err, "the private key is encrypted: only keys without a passphrase are supported");
    if (rc >= 0) rc = cry_pem_read(key_pem, &key, err);
    if (rc >= 0 && !id->key_type) rc = log_fail(err, "no private key found: expected PEM with BEGIN PRIVATE KEY");
    if (rc >= 0 && !cry_identity_matches(id)) rc = log_fail(err, "the private key does not belong to the certificate");
    if (rc >= 0) return id;
    cry_identity_put(id);
    return NULL;
}

/* ============================================================================
 * tls_ : TLS engines
 *
 * Owns:    struct tls_conn and what stands behind it.
 * Calls:   sys_ mem_ str_ log_ cry_
 * Threads: a connection belongs to one thread.
 * Rules:   1. A byte pump: records in, plaintext out, and back; never touches a socket.
 *          2. A certificate is checked for chain, time, name or address, and extended key usage; nothing of it is taken on trust.
 *          3. TLS 1.2 with forward secrecy and AEAD only, no renegotiation; what is newer or older is the business of other engines.
 * ========================================================================== */

/* ---- the pump, whatever the engine ---- */

static inline size_t tls_feed(struct tls_conn *c, struct str in) { return c->engine->feed(c, in); }
static inline struct str tls_take(struct tls_conn *c) { return c->engine->take(c); }
static inline void tls_took(struct tls_conn *c, size_t n) { c->engine->took(c, n); }
static inline struct str tls_read(struct tls_conn *c) { return c->engine->read(c); }
static inline void tls_did_read(struct tls_conn *c, size_t n) { c->engine->did_read(c, n); }
static inline size_t tls_write(struct tls_conn *c, struct str in) { return c->engine->write(c, in); }
static inline void tls_flush(struct tls_conn *c) { c->engine->flush(c); }
static inline void tls_free(struct tls_conn *c) { c->engine->free(c); }

/* ---- texts ---- */

static const char *tls_alert_reason(unsigned alert)
{
    switch (alert) {
#define X(number, text) \
    case number: return "the peer refused: " text;
    TLS_ALERTS(X)
#undef X
    }
    return "the peer refused with an unknown alert";
}

/* Static text for a BearSSL error number. */
static const char *tls_reason(int err)
{
    if (err >= BR_ERR_SEND_FATAL_ALERT) err -= BR_ERR_SEND_FATAL_ALERT;
    if (err >= BR_ERR_RECV_FATAL_ALERT) return tls_alert_reason((unsigned)err - BR_ERR_RECV_FATAL_ALERT);
    switch (err) {
    case BR_ERR_BAD_VERSION:
    case BR_ERR_UNSUPPORTED_VERSION: return "not a TLS 1.2 peer (plain HTTP on this port, or TLS 1.3 only?)";
    case BR_ERR_BAD_MAC: return "a record that does not decrypt";
    case BR_ERR_BAD_LENGTH:
    case BR_ERR_TOO_LARGE: return "a record of a wrong length";
    case BR_ERR_UNKNOWN_TYPE: return "a record of an unknown type (plain HTTP on this port?)";
    case BR_ERR_BAD_CIPHER_SUITE: return "no common cipher suite";
    case BR_ERR_BAD_SIGNATURE: return "a handshake signature that does not verify";
    case BR_ERR_INVALID_ALGORITHM: return "no common signature algorithm or curve";
    case BR_ERR_WRONG_KEY_USAGE: return "a certificate whose key does not fit the cipher suite";
    case BR_ERR_X509_BAD_SERVER_NAME: return "a certificate for another name or address";
    case BR_ERR_X509_BAD_SIGNATURE: return "a certificate with a bad signature";
    case BR_ERR_X509_CRITICAL_EXTENSION: return "a certificate with an unknown critical extension";
    case BR_ERR_X509_DN_MISMATCH: return "a certificate chain in a wrong order";
    case BR_ERR_X509_EXPIRED: return "a certificate that is expired or not yet valid";
    case BR_ERR_X509_FORBIDDEN_KEY_USAGE: return "a certificate that is not for TLS servers";
    case BR_ERR_X509_NOT_CA: return "a certificate signed by one that is no CA";
    case BR_ERR_X509_NOT_TRUSTED: return "a certificate signed by an unknown authority";
    case BR_ERR_X509_UNSUPPORTED: return "a certificate with an unsupported key or signature algorithm";
    case BR_ERR_X509_WEAK_PUBLIC_KEY: return "a certificate with a weak key";
    case BR_ERR_X509_WRONG_KEY_TYPE: return "a certificate with the wrong type of key";
    }
    return err >= BR_ERR_X509_INVALID_VALUE && err <= BR_ERR_X509_NOT_TRUSTED ? "a malformed certificate" : "a malformed handshake";
}

/* ---- checking a server's certificate ---- */

/* A br_x509_class around BearSSL's: that one matches DNS names only, falls back to the common name, and ignores extended key usage.
 * It checks chain, signatures and time; names, addresses and usage are looked up here in the leaf, which is kept until the end. */
struct tls_check {
    const br_x509_class *vtable;
    br_x509_minimal_context minimal;
    br_x509_decoder_context decoder;                     /* insecure: only the leaf's key is wanted */
    const struct tls_client_config *cfg;
    uint32_t certs;                                      /* begun */
    bool too_long;
    size_t leaf_n;
    uint8_t leaf[CRY_CERT_BYTES_MAX / 4];
};

static struct tls_check *tls_check_of(const br_x509_class **ctx) { return RJ_CONTAINER(ctx, struct tls_check, vtable); }

static void tls_check_start_chain(const br_x509_class **ctx, const char *name)
{
    struct tls_check *k = tls_check_of(ctx);

    (void)name;                                          /* matched at the end */
    k->certs = 0;
    k->leaf_n = 0;
    k->too_long = false;
    if (!k->cfg->insecure) k->minimal.vtable->start_chain(&k->minimal.vtable, NULL);
}

static void tls_check_start_cert(const br_x509_class **ctx, uint32_t n)
{
    struct tls_check *k = tls_check_of(ctx);

    k->certs++;
    if (!k->cfg->insecure) k->minimal.vtable->start_cert(&k->minimal.vtable, n);
}

static void tls_check_append(const br_x509_class **ctx, const unsigned char *p, size_t n)
{
    struct tls_check *k = tls_check_of(ctx);

    if (k->certs == 1) {
        if (n > sizeof k->leaf - k->leaf_n) k->too_long = true;
        else memcpy(k->leaf + k->leaf_n, p, n), k->leaf_n += n;
    }
    if (!k->cfg->insecure) k->minimal.vtable->append(&k->minimal.vtable, p, n);
}

static void tls_check_end_cert(const br_x509_class **ctx)
{
    struct tls_check *k = tls_check_of(ctx);

    if (!k->cfg->insecure) k->minimal.vtable->end_cert(&k->minimal.vtable);
}

static unsigned tls_check_end_chain(const br_x509_class **ctx)
{
    struct tls_check *k = tls_check_of(ctx);
    const struct tls_client_config *cfg = k->cfg;
    struct str leaf = str_of(k->leaf, k->leaf_n);
    unsigned err;

    if (k->too_long) return BR_ERR_X509_LIMIT_EXCEEDED;
    if (cfg->insecure) {
        if (!k->certs) return BR_ERR_X509_EMPTY_CHAIN;
        br_x509_decoder_init(&k->decoder, NULL, NULL);
        br_x509_decoder_push(&k->decoder, leaf.p, leaf.n);
        return (unsigned)br_x509_decoder_last_error(&k->decoder);
    }
    err = k->minimal.vtable->end_chain(&k->minimal.vtable);
    if (err) return err;
    if (!cry_cert_is_server(leaf)) return BR_ERR_X509_FORBIDDEN_KEY_USAGE;
    if (cfg->name.n && cry_cert_has_name(leaf, cfg->name)) return 0;
    if (cfg->alt_name.n && cry_cert_has_name(leaf, cfg->alt_name)) return 0;
    if (cfg->ip.family && cry_cert_has_ip(leaf, &cfg->ip)) return 0;
    return BR_ERR_X509_BAD_SERVER_NAME;
}

static const br_x509_pkey *tls_check_get_pkey(const br_x509_class *const *ctx, unsigned *usages)
{
    struct tls_check *k = RJ_CONTAINER(ctx, struct tls_check, vtable);

    if (!k->cfg->insecure) return k->minimal.vtable->get_pkey(&k->minimal.vtable, usages);
    if (usages) *usages = BR_KEYTYPE_KEYX | BR_KEYTYPE_SIGN;
    return br_x509_decoder_get_pkey(&k->decoder);
}

static const br_x509_class tls_check_vtable = {
    sizeof(struct tls_check), tls_check_start_chain, tls_check_start_cert, tls_check_append, tls_check_end_cert, tls_check_end_chain, tls_check_get_pkey,
};

static void tls_check_init(struct tls_check *k, const struct tls_client_config *cfg)
{
    uint64_t now = cfg->now_s ? cfg->now_s : sys_clock_ns(CLOCK_REALTIME) / 1000000000u;
    br_x509_minimal_context *m = &k->minimal;

    k->vtable = &tls_check_vtable;
    k->cfg = cfg;
    br_x509_minimal_init(m, &br_sha256_vtable, cfg->anchors ? cfg->anchors->ta : NULL, cfg->anchors ? cfg->anchors->n : 0);
    br_x509_minimal_set_rsa(m, br_rsa_pkcs1_vrfy_get_default());
    br_x509_minimal_set_ecdsa(m, br_ec_get_default(), br_ecdsa_vrfy_asn1_get_default());
    br_x509_minimal_set_hash(m, br_sha256_ID, &br_sha256_vtable);
    br_x509_minimal_set_hash(m, br_sha384_ID, &br_sha384_vtable);
    br_x509_minimal_set_hash(m, br_sha512_ID, &br_sha512_vtable);
    br_x509_minimal_set_minrsa(m, 2048 / 8);
    br_x509_minimal_set_time(m, (uint32_t)(now / 86400) + 719528, (uint32_t)(now % 86400));
}

/* ---- BearSSL's client ---- */

enum { TLS_IN_BYTES = BR_SSL_BUFSIZE_INPUT, TLS_OUT_BYTES = 4096 + 85 };

struct tls_client {
    struct tls_conn conn;
    br_ssl_client_context cc;
    struct tls_client_config cfg;                        /* its slices point into names */
    struct tls_check *check;                             /* NULL after the handshake */
    char names[2][256];
    uint8_t in[TLS_IN_BYTES], out[TLS_OUT_BYTES];
};

static struct tls_client *tls_client_of(struct tls_conn *c) { return RJ_CONTAINER(c, struct tls_client, conn); }

/* Reads the engine's state into conn.state. */
static void tls_client_update(struct tls_client *t)
{
    unsigned st = br_ssl_engine_current_state(&t->cc.eng);

    if (t->conn.state == TLS_FAILED || t->conn.state == TLS_CLOSED) return;
    if (st & BR_SSL_CLOSED) {
        int err = br_ssl_engine_last_error(&t->cc.eng);

        t->conn.state = err ? TLS_FAILED : TLS_CLOSED;
        if (err) t->conn.why = tls_reason(err);
    } else if (t->conn.state == TLS_WAIT_HANDSHAKE && st & (BR_SSL_SENDAPP | BR_SSL_RECVAPP)) {
        t->conn.state = TLS_OPEN;
        mem_free(t->check);                              /* the engine asks for it again only when it renegotiates, which is off */
        t->check = NULL;
        br_ssl_engine_set_x509(&t->cc.eng, NULL);
    }
}

static size_t tls_client_feed(struct tls_conn *c, struct str in)
{
    struct tls_client *t = tls_client_of(c);
    size_t used = 0, room;
    uint8_t *p;

    while (used < in.n && (p = br_ssl_engine_recvrec_buf(&t->cc.eng, &room))) {
        if (room > in.n - used) room = in.n - used;
        memcpy(p, in.p + used, room);
        used += room;
        br_ssl_engine_recvrec_ack(&t->cc.eng, room);
        tls_client_update(t);
    }
    return used;
}

static struct str tls_client_take(struct tls_conn *c)
{
    size_t n;
    uint8_t *p = br_ssl_engine_sendrec_buf(&tls_client_of(c)->cc.eng, &n);

    return p ? str_of(p, n) : (struct str){0};
}

static void tls_client_took(struct tls_conn *c, size_t n)
{
    br_ssl_engine_sendrec_ack(&tls_client_of(c)->cc.eng, n);
    tls_client_update(tls_client_of(c));
}

static struct str tls_client_read(struct tls_conn *c)
{
    size_t n;
    uint8_t *p = br_ssl_engine_recvapp_buf(&tls_client_of(c)->cc.eng, &n);

    return p ? str_of(p, n) : (struct str){0};
}

static void tls_client_did_read(struct tls_conn *c, size_t n)
{
    br_ssl_engine_recvapp_ack(&tls_client_of(c)->cc.eng, n);
    tls_client_update(tls_client_of(c));
}

static size_t tls_client_write(struct tls_conn *c, struct str in)
{
    struct tls_client *t = tls_client_of(c);
    size_t used = 0, room;
    uint8_t *p;

    while (c->state == TLS_OPEN && used < in.n && (p = br_ssl_engine_sendapp_buf(&t->cc.eng, &room))) {
        if (room > in.n - used) room = in.n - used;
        memcpy(p, in.p + used, room);
        used += room;
        br_ssl_engine_sendapp_ack(&t->cc.eng, room);
    }
    return used;
}

static void tls_client_flush(struct tls_conn *c) { br_ssl_engine_flush(&tls_client_of(c)->cc.eng, 0); }

static void tls_client_close(struct tls_conn *c)
{
    br_ssl_engine_close(&tls_client_of(c)->cc.eng);
    tls_client_update(tls_client_of(c));
}

static void tls_client_free(struct tls_conn *c)
{
    struct tls_client *t = tls_client_of(c);

    mem_free(t->check);
    cry_anchors_put(t->cfg.anchors);
    cry_identity_put(t->cfg.identity);
    cry_wipe(t, sizeof *t);
    mem_free(t);
}

static const struct tls_engine tls_client_engine = {
    "bearssl client", tls_client_feed, tls_client_take, tls_client_took, tls_client_read, tls_client_did_read,
    tls_client_write, tls_client_flush, tls_client_close, tls_client_free,
};

static void tls_client_init_engine(br_ssl_client_context *cc)
{
    static const uint16_t suites[] = {
        BR_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, BR_TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        BR_TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, BR_TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        BR_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, BR_TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    };
    static const char *const protocols[] = {"http/1.1"};
    br_ssl_engine_context *eng = &cc->eng;
    uint8_t seed[32];

    br_ssl_client_zero(cc);
    br_ssl_engine_set_versions(eng, BR_TLS12, BR_TLS12);
    br_ssl_engine_set_suites(eng, suites, RJ_COUNT(suites));
    br_ssl_engine_add_flags(eng, BR_OPT_NO_RENEGOTIATION | BR_OPT_FAIL_ON_ALPN_MISMATCH);
    br_ssl_engine_set_protocol_names(eng, (const char **)(uintptr_t)protocols, RJ_COUNT(protocols));
    br_ssl_engine_set_hash(eng, br_sha256_ID, &br_sha256_vtable);
    br_ssl_engine_set_hash(eng, br_sha384_ID, &br_sha384_vtable);
    br_ssl_engine_set_hash(eng, br_sha512_ID, &br_sha512_vtable);
    br_ssl_engine_set_prf_sha256(eng, br_tls12_sha256_prf);
    br_ssl_engine_set_prf_sha384(eng, br_tls12_sha384_prf);
    br_ssl_engine_set_default_rsavrfy(eng);
    br_ssl_engine_set_default_ecdsa(eng);
    br_ssl_engine_set_default_ec(eng);
    br_ssl_client_set_default_rsapub(cc);
    br_ssl_engine_set_default_aes_gcm(eng);              /* asks the CPU for its features, which costs microseconds in a guest: fine for a few clients */
    br_ssl_engine_set_default_chapol(eng);
    cry_random(seed, sizeof seed);
    br_ssl_engine_inject_entropy(eng, seed, sizeof seed);
    eng->rng_os_rand_done = 1;                           /* ours is enough: BearSSL's own seeder trusts RDRAND alone */
    cry_wipe(seed, sizeof seed);
}

static void tls_client_set_identity(br_ssl_client_context *cc, const struct cry_identity *id)
{
    if (id->key_type == BR_KEYTYPE_RSA) br_ssl_client_set_single_rsa(cc, id->chain, id->n, &id->key.rsa, br_rsa_pkcs1_sign_get_default());
    else
        br_ssl_client_set_single_ec(cc, id->chain, id->n, &id->key.ec, BR_KEYTYPE_SIGN, id->issuer_key_type, br_ec_get_default(),
                                    br_ecdsa_sign_asn1_get_default());
}

/* A client that has its hello ready to be taken. cfg is copied. NULL with err when it cannot be made. */
static struct tls_conn *tls_client_new(const struct tls_client_config *cfg, struct log_err *err)
{
    struct tls_client *t;

    if (cfg->name.n >= sizeof t->names[0] || cfg->alt_name.n >= sizeof t->names[1]) {
        log_fail(err, "a server name of more than 255 bytes");
        return NULL;
    }
    if (!cfg->insecure && !cfg->anchors) {
        log_fail(err, "no certificate authority to verify the server with");
        return NULL;
    }
    t = mem_need(sizeof *t);
    t->check = mem_need(sizeof *t->check);
    t->conn.engine = &tls_client_engine;
    t->cfg = *cfg;
    t->cfg.anchors = cry_anchors_get(cfg->anchors);
    t->cfg.identity = cry_identity_get(cfg->identity);
    if (cfg->name.n) memcpy(t->names[0], cfg->name.p, cfg->name.n);
    if (cfg->alt_name.n) memcpy(t->names[1], cfg->alt_name.p, cfg->alt_name.n);
    t->cfg.name = str_of(t->names[0], cfg->name.n);
    t->cfg.alt_name = str_of(t->names[1], cfg->alt_name.n);
    tls_check_init(t->check, &t->cfg);
    tls_client_init_engine(&t->cc);
    br_ssl_engine_set_x509(&t->cc.eng, &t->check->vtable);
    if (cfg->identity) tls_client_set_identity(&t->cc, cfg->identity);
    br_ssl_engine_set_buffers_bidi(&t->cc.eng, t->in, sizeof t->in, t->out, sizeof t->out);
    if (!br_ssl_client_reset(&t->cc, cfg->name.n ? t->names[0] : NULL, 0)) {
        log_fail(err, "TLS client: %s", tls_reason(br_ssl_engine_last_error(&t->cc.eng)));
        tls_client_free(&t->conn);
        return NULL;
    }
    return &t->conn;
}

/* ============================================================================
 * cfg_ : Settings
 *
 * Owns:    struct cfg, struct cfg_report, the options table CFG_OPTIONS.
 * Calls:   sys_ mem_ str_ map_ log_ dns_ http_
 * Threads: loaded and counted by the control thread (before that, by main); fields are read by everybody.
 * Rules:   1. One table in, one immutable struct out: flag over environment over file over default.
 *          2. Every problem is reported, with where it stood, what was found and what is accepted.
 *          3. Nothing that is not understood is passed over.
 * ========================================================================== */

#include <ini.h>

enum { CFG_FILE_MAX = 64 << 20, CFG_INIH_MAX = 197, CFG_LINE_MAX = 4096, CFG_NAME_MAX = 150, CFG_PATH_MAX = 4096, CFG_PIPE_MS = 2000 };

static const struct cfg_info cfg_info[CFG_OPTION_COUNT] = {
#define X(name_, field_, type_, choices_, fallback_, where_, help_)                                                                  \
    {name_, choices_, fallback_, help_, (uint16_t)offsetof(struct cfg, field_), CFG_##type_, where_},
    CFG_OPTIONS(X)
#undef X
};

/* Number of the option called name, or -1. */
static int cfg_option_find(struct str name)
{
    int low = 0, high = CFG_OPTION_COUNT - 1;

    while (low <= high) {
        int mid = (low + high) / 2, c = str_cmp(name, str_z(cfg_info[mid].name));

        if (!c) return mid;
        if (c < 0) high = mid - 1;
        else low = mid + 1;
    }
#define X(alias, field) if (str_eq(name, S(alias))) return CFG_O_##field;
    CFG_ALIASES(X)
#undef X
    return -1;
}

/* ---- values ---- */

/* Position of word among the choices (a leading ! is not part of it), or -1. */
static int cfg_word(const char *choices, struct str word, bool *later)
{
    struct str rest = str_z(choices), piece;

    for (int i = 0; str_cut(&rest, ' ', &piece); i++) {
        *later = piece.p[0] == '!';
        if (str_eq(*later ? str_from(piece, 1) : piece, word)) return i;
    }
    return -1;
}

/* The range LOW..HIGH of the choices (sizes allowed); the whole range of numbers when there is none. */
static void cfg_range(const char *choices, uint64_t *low, uint64_t *high)
{
    struct str s = str_z(choices);
    size_t at = str_find(s, '.');

    *low = 0;
    *high = INT64_MAX;
    if (at < s.n && str_to_size(str_of(s.p, at), low)) (void)str_to_size(str_from(s, at + 2), high);
}

/* What the option takes, for error texts. */
static const char *cfg_accepts(const struct cfg_info *o, char *out, size_t n)
{
    static const char *const texts[] = {
        [CFG_AUTO] = "auto or a number", [CFG_BOOL] = "true or false", [CFG_BUFFERS] = "a number and a size such as 4 8k",
        [CFG_CIDRS] = "addresses or networks such as 10.0.0.0/8, fd00::/8", [CFG_ENUM] = "one of", [CFG_FLAGS] = "one or more of",
        [CFG_HOST] = "a host name, with or without a port",
        [CFG_KEY] = "$remote_addr, $request_uri, $uri, $host, $http_NAME, $cookie_NAME, $arg_NAME and text, at most 63 bytes",
        [CFG_FIELD] = "NAME: VALUE of a field that is not about framing, the connection, the date or a redirect",
        [CFG_LABELS] = "names of a-z, 0-9 and - separated by commas", [CFG_LISTEN] = "ADDRESS:PORT, :PORT, PORT (1..65535), unix:/PATH or off",
        [CFG_LOCATION] = "a URL such as https://example.com/a or a path that begins with one /, of visible ASCII and without $",
        [CFG_MS] = "a duration such as 250ms, 5s, 2m, 1h or seconds", [CFG_NAMES] = "names of fields that are not about framing or the connection",
        [CFG_PATH] = "a path that begins with /, without //, dot segments, ?, #, %2f, bad escapes, blanks and bytes outside ASCII",
        [CFG_SERVERS] = "ADDRESS or ADDRESS:PORT, separated by commas",
        [CFG_SIZE] = "a size such as 512, 8k, 1m", [CFG_TEXT] = "a text", [CFG_UINT] = "a number",
    };
    char words[160];
    size_t k = 0;

    for (const char *p = o->choices; *p && k + 1 < sizeof words; p++)
        if (*p != '!') words[k++] = *p;
    words[k] = 0;
    if (o->type == CFG_MS) snprintf(out, n, "%s%s", texts[o->type], k ? "" : ", more than 0");
    else if (k) snprintf(out, n, "%s %s%s", texts[o->type], o->type == CFG_ENUM || o->type == CFG_FLAGS ? "" : "in ", words);
    else snprintf(out, n, "%s", texts[o->type]);
    return out;
}

/* ADDRESS:PORT, [V6]:PORT, :PORT, PORT (all IPv4 addresses), unix:/PATH. */
static bool cfg_to_listener(struct mem_arena *a, struct str s, struct cfg_listener *out)
{
    struct str host = S("0.0.0.0");
    uint64_t port;

    *out = (struct cfg_listener){0};
    if (str_starts(s, S("unix:"))) {
        struct str path = str_from(s, 5);

        if (!path.n || path.p[0] != '/' || path.n >= sizeof ((struct sockaddr_un *)0)->sun_path) return false;
        out->addr.family = AF_UNIX;
        out->text = str_dup(a, s);
        out->path = str_from(out->text, 5);
        return true;
    }
    if (s.n && s.p[0] == ':') {
        if (!str_to_u64(str_from(s, 1), &port)) return false;
    } else if (!str_to_u64(s, &port)) {
        uint16_t p16;

        if (!str_to_host_port(s, &host, &p16)) return false;
        port = p16;
    }
    if (port < 1 || port > 65535 || !str_to_ip(host, &out->addr)) return false;
    out->addr.port = (uint16_t)port;
    out->text = str_dup(a, s);
    return true;
}

/* Adds one element of size bytes to an array {n, v} in the arena. It has room up to the next power of two: only who made it may add. */
static void *cfg_append(struct mem_arena *a, uint32_t *n, void *v, size_t size)
{
    void *bigger = v;

    if (!(*n & (*n - 1))) {
        bigger = mem_arena_zero(a, (*n ? 2 * *n : 1) * size);
        if (*n) memcpy(bigger, v, *n * size);
    }
    ++*n;
    return bigger;
}

static bool cfg_same_listener(const struct cfg_listener *a, const struct cfg_listener *b)
{
    const struct net_addr *x = &a->addr, *y = &b->addr;

    return x->family == y->family && x->port == y->port && memcmp(x->ip, y->ip, sizeof x->ip) == 0 && str_eq(a->path, b->path);
}

/* twice: the list has this one already. */
static bool cfg_set_listen(struct mem_arena *a, struct cfg_listen *l, struct str s, bool *twice)
{
    struct cfg_listener one;

    if (str_eq(s, S("off"))) {
        l->n = 0;
        return true;
    }
    if (!cfg_to_listener(a, s, &one)) return false;
    for (uint32_t i = 0; i < l->n; i++) *twice |= cfg_same_listener(&l->v[i], &one);
    if (*twice) return false;
    l->v = cfg_append(a, &l->n, l->v, sizeof one);
    l->v[l->n - 1] = one;
    return true;
}

static bool cfg_set_cidrs(struct mem_arena *a, struct cfg_cidrs *c, struct str s)
{
    struct str piece;

    while (str_cut(&s, ',', &piece)) {
        struct net_cidr one;

        piece = str_trim(piece);
        if (!piece.n && !s.p && !c->n) break;
        if (!str_to_cidr(piece, &one)) return false;
        c->v = cfg_append(a, &c->n, c->v, sizeof one);
        c->v[c->n - 1] = one;
    }
    return true;
}

/* Labels as RFC 1123 has them, which names of namespaces are. */
static bool cfg_set_labels(struct mem_arena *a, struct cfg_list *l, struct str s)
{
    struct str piece;

    while (str_cut(&s, ',', &piece)) {
        piece = str_trim(piece);
        if (!piece.n) return !s.p && !l->n;
        if (piece.n > 63 || piece.p[0] == '-' || piece.p[piece.n - 1] == '-') return false;
        for (size_t i = 0; i < piece.n; i++)
            if (!(piece.p[i] >= 'a' && piece.p[i] <= 'z') && !str_is_digit(piece.p[i]) && piece.p[i] != '-') return false;
        l->v = cfg_append(a, &l->n, l->v, sizeof piece);
        l->v[l->n - 1] = str_dup(a, piece);
    }
    return true;
}

/* NULL, or what a path of a rule may not have. The API server refuses the same. */
static const char *cfg_path_bad(struct str path)
{
    uint8_t plain[CFG_PATH_MAX];

    if (!path.n || path.p[0] != '/') return "a path that begins with /";
    if (path.n > CFG_PATH_MAX) return "at most 4096 bytes";
    for (size_t i = 0; i < path.n; i++) {
        struct str s = str_from(path, i);

        if (path.p[i] <= 0x20 || path.p[i] >= 0x7f || path.p[i] == '?' || path.p[i] == '#') return "a path without blanks, ?, # and bytes outside ASCII";
        if (str_starts(s, S("//"))) return "a path without //";
        if (str_starts(s, S("/./")) || str_starts(s, S("/../")) || str_eq(s, S("/.")) || str_eq(s, S("/.."))) return "a path without . and .. segments";
        if (str_starts(s, S("%2f")) || str_starts(s, S("%2F"))) return "a path without %2f";
    }
    return http_path_normalize(path, plain) < 0 ? "a path that a request may have: whole escapes, and no \", <, >, \\ or %00" : NULL;
}

/* A path in its normal form; nothing takes back what was set. */
static bool cfg_set_path(struct mem_arena *a, struct str *out, struct str s)
{
    long n = 0;
    uint8_t *p = NULL;

    if (s.n) {
        if (cfg_path_bad(s)) return false;
        for (size_t i = 0; i < s.n; i++)
            if (str_starts(str_from(s, i), S("%2e")) || str_starts(str_from(s, i), S("%2E"))) return false; /* a dot segment in disguise, or for nothing */
        p = mem_arena_alloc(a, s.n);
        if ((n = http_path_normalize(s, p)) < 0) return false;
    }
    *out = str_of(p, (size_t)n);
    return true;
}

/* What may stand in Location: SCHEME://AUTHORITY..., or a path of this host. //HOST would be another one, and a $ is a variable of nginx
 * that would reach clients as it stands. */
static bool cfg_set_location(struct mem_arena *a, struct str *out, struct str s)
{
    size_t scheme = 0;

    if (s.n > CFG_FIELDS_MAX) return false;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= 0x20 || s.p[i] >= 0x7f || s.p[i] == '$' || s.p[i] == '"' || s.p[i] == '<' || s.p[i] == '>' || s.p[i] == '\\') return false;
    if (s.n && s.p[0] == '/') {
        if (s.n > 1 && s.p[1] == '/') return false;
    } else if (s.n) {
        if (str_lower(s.p[0]) < 'a' || str_lower(s.p[0]) > 'z') return false;
        while (scheme < s.n && (http_is(s.p[scheme], HTTP_C_NAME) || s.p[scheme] == '+' || s.p[scheme] == '.')) scheme++;
        if (!str_starts(str_from(s, scheme), S("://")) || s.n == scheme + 3 || s.p[scheme + 3] == '/') return false;
    }
    *out = str_dup(a, s);
    return true;
}

/* A name of a field of a response that a rule may set or hide: not one that frames the message or is the connection's. */
static bool cfg_field_ok(struct str name)
{
    return http_is_all(name, HTTP_C_TOKEN) && !(http_field_flags(http_field_find(name)) & (HTTP_HOP | HTTP_FRAME)) && !str_ieq(name, S("trailer"));
}

static bool cfg_set_host(struct mem_arena *a, struct str *out, struct str s)
{
    uint8_t plain[HTTP_HOST_MAX];

    if (s.n && !http_host_normalize(s, plain)) return false;
    *out = str_dup(a, s);
    return true;
}

/* What upstream-hash-by may name; up_hash_by reads it. */
static bool cfg_set_key(struct mem_arena *a, struct str *out, struct str s)
{
    static const char *const whole[] = {"$binary_remote_addr", "$host", "$remote_addr", "$request_uri", "$uri"};
    static const char *const parts[] = {"$arg_", "$cookie_", "$http_"};

    if (s.n > CFG_KEY_MAX) return false;
    for (size_t at = 0, n; at < s.n; at += n) {
        struct str name;
        bool known = s.p[at] != '$';

        if (s.p[at] <= 0x20 || s.p[at] >= 0x7f) return false;
        for (n = 1; at + n < s.n && s.p[at + n] != '$' && (known || http_is_variable(s.p[at + n])); n++)
            if (s.p[at + n] <= 0x20 || s.p[at + n] >= 0x7f) return false;
        name = str_of(s.p + at, n);
        for (size_t i = 0; i < RJ_COUNT(whole) && !known; i++) known = str_eq(name, str_z(whole[i]));
        for (size_t i = 0; i < RJ_COUNT(parts) && !known; i++) known = str_starts(name, str_z(parts[i])) && name.n > strlen(parts[i]);
        if (!known) return false;
    }
    *out = str_dup(a, s);
    return true;
}

/* NAME: VALUE; nothing takes back what was set. */
static bool cfg_set_field(struct mem_arena *a, struct cfg_list *l, struct str s)
{
    size_t at = str_find(s, ':');
    struct str name = str_trim(str_of(s.p, at)), value = at < s.n ? str_trim(str_from(s, at + 1)) : (struct str){0};
    struct str_builder b;

    if (!s.n) return true;
    if (at == s.n || !value.n || s.n > CFG_FIELDS_MAX || !cfg_field_ok(name) || !http_is_all(value, HTTP_C_VALUE)) return false;
    if (str_ieq(name, S("location")) || str_ieq(name, S("date")) || str_ieq(name, S("allow")) || str_ieq(name, S("retry-after"))) return false;
    b = str_fixed(mem_arena_alloc(a, name.n + value.n + 2), name.n + value.n + 2);
    str_put(&b, name);
    str_put(&b, S(": "));
    str_put(&b, value);
    l->v = cfg_append(a, &l->n, l->v, sizeof *l->v);
    l->v[l->n - 1] = str_built(&b);
    return true;
}

/* Names of fields, separated by commas, in lower case. */
static bool cfg_set_names(struct mem_arena *a, struct cfg_list *l, struct str s)
{
    struct str piece;

    if (s.n > CFG_FIELDS_MAX) return false;
    while (s.n && str_cut(&s, ',', &piece)) {
        piece = str_dup(a, str_trim(piece));
        if (!cfg_field_ok(piece)) return false;
        for (size_t i = 0; i < piece.n; i++) ((uint8_t *)(uintptr_t)piece.p)[i] = str_lower(piece.p[i]);
        l->v = cfg_append(a, &l->n, l->v, sizeof piece);
        l->v[l->n - 1] = piece;
    }
    return true;
}

static bool cfg_set_flags(const char *choices, uint16_t *out, struct str s)
{
    struct str piece;
    int off = -1;
    bool later;

    *out = 0;
    while (str_cut(&s, ' ', &piece)) {
        int at = cfg_word(choices, piece, &later);

        if (!piece.n) continue;
        if (at < 0 || later) return false;
        if (str_eq(piece, S("off"))) off = at;
        *out |= (uint16_t)(1u << at);
    }
    return *out && (off < 0 || *out == 1u << off);
}

static bool cfg_set_buffers(struct cfg_buffers *out, struct str s)
{
    struct str count, rest = s;
    uint64_t n, bytes;

    if (!str_cut(&rest, ' ', &count) || !str_to_u64(count, &n) || !str_to_size(str_trim(rest), &bytes)) return false;
    if (n < 1 || n > 64 || bytes < 256 || bytes > 1 << 20) return false;
    *out = (struct cfg_buffers){(uint32_t)n, (uint32_t)bytes};
    return true;
}

static bool cfg_set_number(const struct cfg_info *o, void *field, struct str s)
{
    uint64_t v, low, high;

    cfg_range(o->choices, &low, &high);
    switch ((enum cfg_type)o->type) {
    case CFG_AUTO:
        if (str_eq(s, S("auto"))) {
            *(uint32_t *)field = 0;
            return true;
        }
        /* fall through */
    case CFG_UINT:
        if (!str_to_u64(s, &v) || v < low || v > high) return false;
        *(uint32_t *)field = (uint32_t)v;
        return true;
    case CFG_MS:
        if (!str_to_ms(s, &v) || v > UINT32_MAX || (!v && !o->choices[0])) return false;
        *(uint32_t *)field = (uint32_t)v;
        return true;
    case CFG_SIZE:
        if (!str_to_size(s, &v) || v < low || v > high) return false;
        *(uint64_t *)field = v;
        return true;
    default: break;
    }
    return false;
}

/* Gives the option a value: lists grow, everything else is replaced. Texts and lists go to a. Returns 0, or -1 with what was found and
 * what is accepted. c may be a copy of settings made to hold those of one route, once cfg_reset has parted its lists from theirs. */
static int cfg_set(struct cfg *c, struct mem_arena *a, int option, struct str s, struct log_err *err)
{
    const struct cfg_info *o = &cfg_info[option];
    void *field = (char *)c + o->offset;
    struct net_addr servers[DNS_SERVERS_MAX];
    bool ok = false, later = false, twice = false;
    char accepts[256];
    int at;

    s = str_trim(s);
    switch ((enum cfg_type)o->type) {
    case CFG_AUTO: case CFG_MS: case CFG_SIZE: case CFG_UINT: ok = cfg_set_number(o, field, s); break;
    case CFG_BOOL: ok = str_to_bool(s, field); break;
    case CFG_BUFFERS: ok = cfg_set_buffers(field, s); break;
    case CFG_CIDRS: ok = cfg_set_cidrs(a, field, s); break;
    case CFG_ENUM:
        at = cfg_word(o->choices, s, &later);
        ok = at >= 0 && !later;
        if (ok) *(uint8_t *)field = (uint8_t)at;
        break;
    case CFG_FIELD: ok = cfg_set_field(a, field, s); break;
    case CFG_FLAGS: ok = cfg_set_flags(o->choices, field, s); break;
    case CFG_HOST: ok = cfg_set_host(a, field, s); break;
    case CFG_KEY: ok = cfg_set_key(a, field, s); break;
    case CFG_LABELS: ok = cfg_set_labels(a, field, s); break;
    case CFG_LISTEN: ok = cfg_set_listen(a, field, s, &twice); break;
    case CFG_LOCATION: ok = cfg_set_location(a, field, s); break;
    case CFG_NAMES: ok = cfg_set_names(a, field, s); break;
    case CFG_PATH: ok = cfg_set_path(a, field, s); break;
    case CFG_SERVERS: case CFG_TEXT:
        ok = o->type == CFG_TEXT || dns_parse_servers(s, servers) >= 0;
        if (ok) *(struct str *)field = str_dup(a, s);
        break;
    }
    if (ok) return 0;
    if (twice) return log_fail(err, "\"" STR_FMT "\" is there already", STR_ARG(s));
    if (later) return log_fail(err, "\"" STR_FMT "\" is not available in this version", STR_ARG(s));
    return log_fail(err, "found \"%.*s\", expected %s", (int)(s.n < 200 ? s.n : 200), (const char *)s.p, cfg_accepts(o, accepts, sizeof accepts));
}

/* Empties a list before its first value of a stronger source. */
static void cfg_reset(struct cfg *c, int option)
{
    void *field = (char *)c + cfg_info[option].offset;

    switch ((enum cfg_type)cfg_info[option].type) {
    case CFG_CIDRS: *(struct cfg_cidrs *)field = (struct cfg_cidrs){0}; break;
    case CFG_FIELD: case CFG_LABELS: case CFG_NAMES: *(struct cfg_list *)field = (struct cfg_list){0}; break;
    case CFG_LISTEN: *(struct cfg_listen *)field = (struct cfg_listen){0}; break;
    default: break;
    }
}

/* ---- the file ---- */

RJ_PRINTF(2, 3) static void cfg_report_add(struct cfg_report *r, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    str_vputf(&r->text, fmt, ap);
    va_end(ap);
    str_put_c(&r->text, '\n');
    r->errors++;
}

enum cfg_section_kind { CFG_IN_NOTHING, CFG_IN_RAMJET, CFG_IN_BACKEND, CFG_IN_ROUTE };

/* One file while it is read. inih splits the lines into names and values; sections are read here, because inih cuts their names
 * and does not tell where one begins. Every line is checked before inih sees it, and of a long one, which it would cut, it gets the
 * beginning, for the name: the value is taken from the line itself (cfg_line_value). */
struct cfg_reader {
    struct cfg *c;
    struct cfg_report *report;
    const char *file;
    struct str rest;                                     /* the text behind the current line */
    struct str text;                                     /* the current line, as written */
    uint32_t line;
    bool expects;                                        /* the current line must bring a name and a value */
    enum cfg_section_kind kind;
    bool in_section;                                     /* a section has begun, good or bad */
    uint32_t ramjet_line;                                /* of the first [ramjet], 0 = none */
    uint32_t routes_cap, backends_cap;
    uint32_t key_line[CFG_OPTION_COUNT];                 /* of this section; 0 = not there yet */
    size_t fields;                                       /* bytes of fields and names of this section */
    uint32_t host_line, path_line, type_line, backend_line;
    struct map routes;                                   /* name -> struct cfg_route's name slot */
    struct cfg_value *values;                            /* of [ramjet] */
    uint32_t nvalues;
};

#define CFG_BAD(r, ...) cfg_report_line(r, (r)->line, __VA_ARGS__)

RJ_PRINTF(3, 4) static void cfg_report_line(struct cfg_reader *r, uint32_t line, const char *fmt, ...)
{
    va_list ap;

    str_putf(&r->report->text, "%s:%u: ", r->file, line);
    va_start(ap, fmt);
    str_vputf(&r->report->text, fmt, ap);
    va_end(ap);
    str_put_c(&r->report->text, '\n');
    r->report->errors++;
}

/* The array with room for one more element of size bytes; the old one stays in the arena. */
static void *cfg_grow(struct mem_arena *a, void *v, uint32_t n, uint32_t *cap, size_t size)
{
    void *bigger;

    if (n < *cap) return v;
    *cap = *cap ? *cap * 2 : 16;
    bigger = mem_arena_zero(a, *cap * size);
    if (n) memcpy(bigger, v, n * size);
    return bigger;
}

static void cfg_open_backend(struct cfg_reader *r, struct str name)
{
    struct cfg *c = r->c;

    for (uint32_t i = 0; map_find(&c->by_name, name) && i < c->nbackends; i++) {
        if (!str_eq(c->backends[i].name, name)) continue;
        CFG_BAD(r, "backend \"" STR_FMT "\" is there already, in line %u", STR_ARG(name), c->backends[i].line);
        r->kind = CFG_IN_NOTHING;
        return;
    }
    c->backends = cfg_grow(&c->arena, c->backends, c->nbackends, &r->backends_cap, sizeof *c->backends);
    c->backends[c->nbackends] = (struct cfg_backend){.name = str_dup(&c->arena, name), .line = r->line};
    map_put(&c->by_name, c->backends[c->nbackends].name, c); /* the right value is put once the array has its final place */
    c->nbackends++;
}

static void cfg_open_route(struct cfg_reader *r, struct str name)
{
    struct cfg *c = r->c;

    for (uint32_t i = 0; map_find(&r->routes, name) && i < c->nroutes; i++) {
        if (!str_eq(c->routes[i].name, name)) continue;
        CFG_BAD(r, "route \"" STR_FMT "\" is there already, in line %u", STR_ARG(name), c->routes[i].line);
        r->kind = CFG_IN_NOTHING;
        return;
    }
    c->routes = cfg_grow(&c->arena, c->routes, c->nroutes, &r->routes_cap, sizeof *c->routes);
    c->routes[c->nroutes] = (struct cfg_route){.name = str_dup(&c->arena, name), .line = r->line, .path = S("/")};
    map_put(&r->routes, c->routes[c->nroutes].name, r);
    c->nroutes++;
}

/* A line that begins with [: a new section. Whatever is wrong with it, the keys below it are not taken for those of the one above. */
static void cfg_open_section(struct cfg_reader *r, struct str line)
{
    size_t end = str_find(line, ']');
    struct str inside = str_trim(str_of(line.p + 1, (end < line.n ? end : line.n) - 1)), rest, kind, name;

    r->kind = CFG_IN_NOTHING;
    r->in_section = true;
    memset(r->key_line, 0, sizeof r->key_line);
    r->fields = 0;
    r->host_line = r->path_line = r->type_line = r->backend_line = 0;
    if (end == line.n) {
        CFG_BAD(r, "found \"" STR_FMT "\", expected ] at the end of a section", STR_ARG(line));
        return;
    }
    rest = str_trim(str_from(line, end + 1));
    if (rest.n && rest.p[0] != ';' && rest.p[0] != '#') CFG_BAD(r, "found \"" STR_FMT "\" behind a section, expected nothing", STR_ARG(rest));
    rest = inside;
    if (!str_cut(&rest, ' ', &kind)) kind = inside;
    name = str_trim(rest);
    if (str_eq(kind, S("ramjet")) && !name.n) {
        r->kind = CFG_IN_RAMJET;
        if (r->ramjet_line) CFG_BAD(r, "[ramjet] is there already, in line %u", r->ramjet_line);
        r->ramjet_line = r->line;
        return;
    }
    if (!str_eq(kind, S("route")) && !str_eq(kind, S("backend"))) {
        CFG_BAD(r, "unknown section [" STR_FMT "], expected [ramjet], [route NAME] or [backend NAME]", STR_ARG(inside));
        return;
    }
    if (!name.n || str_find(name, ' ') < name.n || str_find(name, '\t') < name.n || name.n > CFG_NAME_MAX) {
        CFG_BAD(r, "found [" STR_FMT "], expected a name without blanks of at most %d bytes", STR_ARG(inside), CFG_NAME_MAX);
        return;
    }
    r->kind = kind.p[0] == 'r' ? CFG_IN_ROUTE : CFG_IN_BACKEND;
    if (r->kind == CFG_IN_ROUTE) cfg_open_route(r, name);
    else cfg_open_backend(r, name);
}

static void cfg_check_brought(struct cfg_reader *r)
{
    if (r->expects) CFG_BAD(r, "found \"" STR_FMT "\", expected NAME = VALUE, a section or a comment", STR_ARG(r->text));
    r->expects = false;
}

/* Where the comment behind a value begins: a ; behind a blank, as inih has it. The end of the line when there is none. */
static size_t cfg_find_comment(struct str line)
{
    for (size_t i = 1; i < line.n; i++)
        if (line.p[i] == ';' && (line.p[i - 1] == ' ' || line.p[i - 1] == '\t')) return i;
    return line.n;
}

/* What stands behind the first = or : of a line that inih has found a name in, up to a comment. */
static struct str cfg_line_value(struct str line)
{
    size_t at = 0;

    line.n = cfg_find_comment(line);
    while (at < line.n && line.p[at] != '=' && line.p[at] != ':') at++;
    return at < line.n ? str_trim(str_from(line, at + 1)) : (struct str){0};
}

/* inih's fgets: one line of the text, without the blanks before it (inih would take an indented line for more of the value above).
 * A line that opens a section, or that is refused, reaches it as an empty one. */
static char *cfg_read_line(char *out, int size, void *arg)
{
    struct cfg_reader *r = arg;
    struct str line;

    cfg_check_brought(r);
    if (!str_cut(&r->rest, '\n', &line)) return NULL;
    r->line++;
    if (line.n && line.p[line.n - 1] == '\r') line.n--;
    if (r->line == 1 && str_starts(line, S("\xef\xbb\xbf"))) line = str_from(line, 3);
    r->text = line = str_trim(line);
    out[0] = '\n';
    out[1] = 0;
    if (!line.n || line.p[0] == ';' || line.p[0] == '#') return out;
    if (line.n > CFG_LINE_MAX) {
        CFG_BAD(r, "the line has %zu bytes, at most %d are read", line.n, CFG_LINE_MAX);
        return out;
    }
    for (size_t i = 0; i < line.n; i++) {
        if ((line.p[i] >= 0x20 && line.p[i] != 0x7f) || line.p[i] == '\t') continue;
        CFG_BAD(r, "control byte 0x%02x in the line", line.p[i]);
        return out;
    }
    if (line.p[0] == '[') {
        cfg_open_section(r, line);
        return out;
    }
    r->expects = true;
    if (line.n > CFG_INIH_MAX) line.n = CFG_INIH_MAX;
    if (line.n + 2 > (size_t)size) line.n = (size_t)size - 2;
    memcpy(out, line.p, line.n);
    out[line.n] = '\n';
    out[line.n + 1] = 0;
    return out;
}

/* False, with a report, when the key stood in this section already. */
static bool cfg_first(struct cfg_reader *r, const char *name, uint32_t *line)
{
    if (*line) CFG_BAD(r, "%s is there already, in line %u", name, *line);
    if (*line) return false;
    *line = r->line;
    return true;
}

/* A value of a table option: checked here by setting it in a copy, kept as text. */
static void cfg_on_option(struct cfg_reader *r, struct str name, struct str value, unsigned where, struct cfg_value **v, uint32_t *n)
{
    int option = cfg_option_find(name);
    struct cfg scratch;
    struct log_err err;

    if (option < 0 || cfg_info[option].where & CFG_FLAG || (where && !(cfg_info[option].where & where))) {
        static const char *const texts[] = {"", "a setting of [ramjet]", "endpoint or a setting of a backend",
                                            "host, path, type, backend or a setting of a route"};

        CFG_BAD(r, "%s key \"" STR_FMT "\", expected %s; `ramjet reference options` lists them", option < 0 ? "unknown" : "misplaced", STR_ARG(name),
                texts[r->kind]);
        return;
    }
    if ((cfg_info[option].type == CFG_FIELD || cfg_info[option].type == CFG_KEY) && cfg_find_comment(r->text) < r->text.n) {
        CFG_BAD(r, "%s: found a blank and ; which begin a comment, expected no blank before a ; of the value and no comment", cfg_info[option].name);
        return;
    }
    if (!(cfg_info[option].where & CFG_REPEAT) && !cfg_first(r, cfg_info[option].name, &r->key_line[option])) return;
    scratch = *r->c;
    cfg_reset(&scratch, option);
    if (cfg_set(&scratch, &r->c->arena, option, value, &err) < 0) {
        CFG_BAD(r, "%s: %s", cfg_info[option].name, err.text);
        return;
    }
    if (cfg_info[option].type == CFG_FIELD || cfg_info[option].type == CFG_NAMES) r->fields += value.n + 4;
    if (r->fields > CFG_FIELDS_MAX) {
        CFG_BAD(r, "%s: found %zu bytes of fields in this section, expected at most %d", cfg_info[option].name, r->fields, CFG_FIELDS_MAX);
        return;
    }
    *v = cfg_append(&r->c->arena, n, *v, sizeof **v);
    (*v)[*n - 1] = (struct cfg_value){(uint8_t)option, r->line, str_dup(&r->c->arena, value)};
}

/* A host as rules have it: lower case, no dot at the end; letters, digits, - _ . and one *. in front, or an address. */
static bool cfg_host_ok(struct str host)
{
    struct str s = str_starts(host, S("*.")) ? str_from(host, 2) : host, label;
    struct net_addr ip;

    if (!s.n || host.n > 253) return false;
    if (s.p[0] == '[') return s.n == host.n && str_to_ip(s, &ip);
    while (str_cut(&s, '.', &label)) {
        if (!label.n || label.n > 63) return false;
        for (size_t i = 0; i < label.n; i++) {
            uint8_t c = label.p[i];

            if (!(c >= 'a' && c <= 'z') && !str_is_digit(c) && c != '-' && c != '_') return false;
        }
    }
    return true;
}

static void cfg_on_route(struct cfg_reader *r, struct str name, struct str value)
{
    struct cfg_route *t = &r->c->routes[r->c->nroutes - 1];
    const char *expected;

    if (str_eq(name, S("host"))) {
        struct str host = str_dup(&r->c->arena, value);

        for (size_t i = 0; i < host.n; i++) ((uint8_t *)(uintptr_t)host.p)[i] = str_lower(host.p[i]);
        if (host.n && host.p[host.n - 1] == '.') host.n--;
        if (!cfg_first(r, "host", &r->host_line)) return;
        if (!cfg_host_ok(host)) CFG_BAD(r, "host: found \"" STR_FMT "\", expected a name, *.NAME, or no host for any", STR_ARG(value));
        t->host = host;
    } else if (str_eq(name, S("path"))) {
        if (!cfg_first(r, "path", &r->path_line)) return;
        expected = cfg_path_bad(value);
        if (expected) CFG_BAD(r, "path: found \"" STR_FMT "\", expected %s", STR_ARG(value), expected);
        t->path = str_dup(&r->c->arena, value);
    } else if (str_eq(name, S("type"))) {
        if (!cfg_first(r, "type", &r->type_line)) return;
        t->exact = str_eq(value, S("exact"));
        if (!t->exact && !str_eq(value, S("prefix"))) CFG_BAD(r, "type: found \"" STR_FMT "\", expected prefix or exact", STR_ARG(value));
    } else if (str_eq(name, S("backend"))) {
        if (!cfg_first(r, "backend", &r->backend_line)) return;
        if (!value.n) CFG_BAD(r, "backend: found nothing, expected the NAME of a [backend NAME]");
        t->backend = str_dup(&r->c->arena, value);
        t->backend_line = r->line;
    } else {
        cfg_on_option(r, name, value, CFG_R, &t->values, &t->nvalues);
    }
}

/* ADDRESS:PORT [weight=N]; the address may be a name. */
static void cfg_on_endpoint(struct cfg_reader *r, struct cfg_backend *b, struct str value)
{
    struct str rest = value, word, host;
    struct cfg_endpoint e = {.weight = 1};
    uint16_t port;
    bool ok = str_cut(&rest, ' ', &word) && str_to_host_port(word, &host, &port);

    if (ok && !str_to_ip(host, &e.addr)) {
        e.addr = (struct net_addr){0};
        e.host = str_dup(&r->c->arena, host);
        for (size_t i = 0; i < host.n; i++) ((uint8_t *)(uintptr_t)e.host.p)[i] = str_lower(host.p[i]);
        ok = cfg_host_ok(e.host) && e.host.p[0] != '*' && e.host.p[0] != '[' && !str_is_digit(host.p[host.n - 1]);
    }
    if (!ok) {
        CFG_BAD(r, "endpoint: found \"" STR_FMT "\", expected ADDRESS:PORT or ADDRESS:PORT weight=N", STR_ARG(value));
        return;
    }
    e.addr.port = port;
    rest = str_trim(rest);
    if (rest.n) {
        uint64_t w;

        if (!str_starts(rest, S("weight=")) || !str_to_u64(str_from(rest, 7), &w) || w < 1 || w > 1000) {
            CFG_BAD(r, "endpoint: found \"" STR_FMT "\", expected weight=N with N in 1..1000", STR_ARG(rest));
            return;
        }
        e.weight = (uint32_t)w;
    }
    for (uint32_t i = 0; i < b->nendpoints; i++)
        if (b->endpoints[i].addr.port == port && str_eq(b->endpoints[i].host, e.host) && memcmp(b->endpoints[i].addr.ip, e.addr.ip, 16) == 0)
            CFG_BAD(r, "endpoint: \"" STR_FMT "\" is there already", STR_ARG(word));
    b->endpoints = cfg_append(&r->c->arena, &b->nendpoints, b->endpoints, sizeof e);
    b->endpoints[b->nendpoints - 1] = e;
}

/* inih's handler. */
static int cfg_on_pair(void *arg, const char *section, const char *name_z, const char *value_z)
{
    struct cfg_reader *r = arg;
    struct str name = str_z(name_z), value = cfg_line_value(r->text);

    (void)section;
    (void)value_z;                                       /* of a long line it is a part */
    r->expects = false;
    switch (r->kind) {
    case CFG_IN_NOTHING:
        if (!r->in_section) break;
        return 1;                                        /* the section was refused already */
    case CFG_IN_RAMJET: cfg_on_option(r, name, value, 0, &r->values, &r->nvalues); return 1;
    case CFG_IN_BACKEND:
        if (str_eq(name, S("endpoint"))) cfg_on_endpoint(r, &r->c->backends[r->c->nbackends - 1], value);
        else cfg_on_option(r, name, value, CFG_B, &r->c->backends[r->c->nbackends - 1].values, &r->c->backends[r->c->nbackends - 1].nvalues);
        return 1;
    case CFG_IN_ROUTE: cfg_on_route(r, name, value); return 1;
    }
    CFG_BAD(r, "\"" STR_FMT "\" stands before the first section, expected [ramjet], [route NAME] or [backend NAME]", STR_ARG(name));
    return 1;
}

/* True when the section itself names where its requests are redirected to. */
static bool cfg_redirects(const struct cfg_route *t)
{
    for (uint32_t i = 0; i < t->nvalues; i++)
        if ((t->values[i].option == CFG_O_permanent_redirect || t->values[i].option == CFG_O_temporal_redirect) && t->values[i].text.n) return true;
    return false;
}

/* What can only be checked once the whole file is read. */
static void cfg_check_file(struct cfg_reader *r)
{
    struct cfg *c = r->c;
    struct map seen = {0};

    for (uint32_t i = 0; i < c->nbackends; i++) {
        map_put(&c->by_name, c->backends[i].name, &c->backends[i]);
        if (!c->backends[i].nendpoints)
            cfg_report_line(r, c->backends[i].line, "backend " STR_FMT " has no endpoint, expected endpoint = ADDRESS:PORT", STR_ARG(c->backends[i].name));
    }
    for (uint32_t i = 0; i < c->nroutes; i++) {
        struct cfg_route *t = &c->routes[i], *other;
        struct str path = t->path, key;
        uint8_t *p = mem_arena_alloc(&c->arena, t->host.n + path.n * 2 + 2), *plain = p + t->host.n + path.n + 2;
        long plain_n = path.n ? http_path_normalize(path, plain) : 0;

        if (!t->backend.n && !cfg_redirects(t))
            cfg_report_line(r, t->line, "route " STR_FMT " has no backend, expected backend = NAME or a redirect", STR_ARG(t->name));
        else if (t->backend.n && !map_find(&c->by_name, t->backend))
            cfg_report_line(r, t->backend_line, "route " STR_FMT ": there is no [backend " STR_FMT "]", STR_ARG(t->name), STR_ARG(t->backend));
        if (plain_n > 0) path = str_of(plain, (size_t)plain_n);
        if (!t->exact && path.n && path.p[path.n - 1] == '/') path.n--;
        p[0] = t->exact;
        if (t->host.n) memcpy(p + 1, t->host.p, t->host.n);
        if (path.n) memcpy(p + 1 + t->host.n, path.p, path.n);
        key = str_of(p, 1 + t->host.n + path.n);
        if ((other = map_find(&seen, key)))
            cfg_report_line(r, t->line, "route " STR_FMT " has the host, path and type of route " STR_FMT " in line %u", STR_ARG(t->name), STR_ARG(other->name),
                            other->line);
        else map_put(&seen, key, t);
    }
    map_free(&seen);
}

/* Reads the text of a file into c; the values of [ramjet] are returned through r. */
static void cfg_parse(struct cfg_reader *r, struct str text)
{
    r->rest = text;
    if (memchr(text.p ? text.p : (const uint8_t *)"", 0, text.n)) {
        CFG_BAD(r, "the file holds a NUL byte: it is no text");
        return;
    }
    ini_parse_stream(cfg_read_line, r, cfg_on_pair, r);
    cfg_check_file(r);
    map_free(&r->routes);
}

/* The whole file, or -errno: -EAGAIN from a pipe that nobody writes to. */
static int cfg_read_file(const char *path, struct str_builder *out)
{
    int fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    long n;

    if (fd < 0) return fd;
    for (;;) {
        uint8_t *p = str_room(out, 65536);
        struct pollfd wait = {.fd = fd, .events = POLLIN};

        n = p ? sys_read(fd, p, 65536) : -ENOMEM;
        if (n == -EINTR || (n == -EAGAIN && poll(&wait, 1, CFG_PIPE_MS) == 1)) continue;
        if (n <= 0) break;
        out->n += (size_t)n;
        if (out->n <= CFG_FILE_MAX) continue;
        n = -EFBIG;
        break;
    }
    if (!n && !out->n && lseek(fd, 0, SEEK_CUR) < 0) n = -EAGAIN;
    sys_close(fd);
    return (int)n;
}

/* ---- all sources ---- */

/* One value that a source gave, with how to name it in an error. */
struct cfg_given {
    int option;
    uint32_t line;
    const char *where;                                   /* "--name", "RAMJET_X" or the file */
    struct str value;
};
struct cfg_givens {
    struct cfg_given *v;
    uint32_t n, cap;
};

static void cfg_give(struct mem_arena *a, struct cfg_givens *g, struct cfg_given one)
{
    g->v = cfg_grow(a, g->v, g->n, &g->cap, sizeof one);
    g->v[g->n++] = one;
}

static void cfg_read_flags(struct cfg_input *in, struct mem_arena *a, struct cfg_givens *g, struct cfg_report *report)
{
    bool flags = true;

    for (int i = 0; i < in->argc; i++) {
        struct str arg = str_z(in->argv[i]), name, value;
        size_t at;
        int option;
        bool b;

        if (flags && str_eq(arg, S("--"))) {
            flags = false;
            continue;
        }
        if (!flags || arg.n < 2 || arg.p[0] != '-') {
            if (in->operands) in->operands[in->noperands++] = in->argv[i];
            else cfg_report_add(report, "unexpected argument \"%s\"; options are given as --name VALUE", in->argv[i]);
            continue;
        }
        name = str_from(arg, str_starts(arg, S("--")) ? 2 : 1);
        at = str_find(name, '=');
        value = at < name.n ? str_from(name, at + 1) : (struct str){0};
        name.n = at;
        option = str_starts(arg, S("--")) ? cfg_option_find(name) : -1;
        if (option < 0) {
            cfg_report_add(report, "unknown option \"%s\"; --help lists them", in->argv[i]);
            continue;
        }
        if (!value.p && cfg_info[option].type == CFG_BOOL && (i + 1 >= in->argc || !str_to_bool(str_z(in->argv[i + 1]), &b))) value = S("true");
        else if (!value.p && i + 1 < in->argc) value = str_z(in->argv[++i]);
        else if (!value.p) {
            cfg_report_add(report, "--%s: a value is missing", cfg_info[option].name);
            continue;
        }
        cfg_give(a, g, (struct cfg_given){option, 0, "--", value});
    }
}

static void cfg_read_environment(const struct cfg_input *in, struct mem_arena *a, struct cfg_givens *g)
{
    for (char *const *e = in->envp; e && *e; e++) {
        struct str s = str_z(*e);
        size_t at = str_find(s, '=');
        uint8_t name[64];
        int option;

        if (!str_starts(s, S("RAMJET_")) || at == s.n || at - 7 > sizeof name) continue;
        for (size_t i = 7; i < at; i++) name[i - 7] = s.p[i] == '_' ? '-' : str_lower(s.p[i]);
        option = cfg_option_find(str_of(name, at - 7));
        if (option >= 0) cfg_give(a, g, (struct cfg_given){option, 0, "RAMJET_", str_from(s, at + 1)});
    }
}

/* How a value is named in an error: --name, RAMJET_NAME, FILE:LINE: name, or the name alone for a default. */
static void cfg_put_origin(struct str_builder *b, const struct cfg_given *g)
{
    const char *name = cfg_info[g->option].name;

    if (g->line || !g->where) {
        if (g->line) str_putf(b, "%s:%u: ", g->where, g->line);
        str_put_z(b, name);
        return;
    }
    str_put_z(b, g->where);
    for (; *name; name++) str_put_c(b, (char)(g->where[0] == '-' ? *name : *name == '-' ? '_' : *name >= 'a' && *name <= 'z' ? *name - 32 : *name));
}

RJ_PRINTF(3, 4) static void cfg_report_given(struct cfg_report *r, const struct cfg_given *g, const char *fmt, ...)
{
    va_list ap;

    cfg_put_origin(&r->text, g);
    str_put(&r->text, S(": "));
    va_start(ap, fmt);
    str_vputf(&r->text, fmt, ap);
    va_end(ap);
    str_put_c(&r->text, '\n');
    r->errors++;
}

/* Applies the values of one source over those of the weaker ones; last has who gave the value in force, an element an option. */
static void cfg_apply(struct cfg *c, const struct cfg_givens *g, struct cfg_given *last, struct cfg_report *report)
{
    bool reset[CFG_OPTION_COUNT] = {false};

    for (uint32_t i = 0; i < g->n; i++) {
        const struct cfg_given *one = &g->v[i];
        struct log_err err;

        if (!reset[one->option]) {
            cfg_reset(c, one->option);
            c->value_digest[one->option] = 0;
        }
        reset[one->option] = c->given[one->option] = true;
        last[one->option] = *one;
        c->value_digest[one->option] = str_hash_mix(c->value_digest[one->option], str_hash(str_trim(one->value)));
        if (cfg_set(c, &c->arena, one->option, one->value, &err) < 0) cfg_report_given(report, one, "%s", err.text);
    }
}

static void cfg_set_defaults(struct cfg *c)
{
    for (int i = 0; i < CFG_OPTION_COUNT; i++) {
        struct log_err err;

        if (cfg_info[i].fallback[0] && cfg_set(c, &c->arena, i, str_z(cfg_info[i].fallback), &err) < 0) RJ_BUG_ON(true);
        c->value_digest[i] = str_hash_mix(0, str_hash(str_z(cfg_info[i].fallback)));
    }
}

/* The value of default-backend-service: a [backend NAME], or a Service of the cluster. */
static void cfg_check_default_backend(const struct cfg *c, const struct cfg_given *given, struct cfg_report *report)
{
    struct str d = c->default_backend_service;
    size_t slash = str_find(d, '/'), colon = str_find(d, ':');
    uint64_t port;

    if (!d.n || map_find(&c->by_name, d)) return;
    if (!c->cluster)
        cfg_report_given(report, given, "there is no [backend " STR_FMT "]", STR_ARG(d));
    else if (slash == 0 || slash + 1 >= colon || (colon < d.n && str_to_u64(str_from(d, colon + 1), &port) && (port < 1 || port > 65535)) || colon + 1 == d.n)
        cfg_report_given(report, given, "found \"" STR_FMT "\", expected NAMESPACE/NAME or NAMESPACE/NAME:PORT", STR_ARG(d));
}

/* Checks that need more than one option. last: who gave each option its value. */
static void cfg_check(const struct cfg *c, const struct cfg_given *last, struct cfg_report *report)
{
    static const int trusting[] = {CFG_O_use_forwarded_headers, CFG_O_use_proxy_protocol};
    size_t fields = 0;

    for (size_t i = 0; i < RJ_COUNT(trusting) && !c->proxy_real_ip.n; i++)
        if (*(const bool *)((const char *)c + cfg_info[trusting[i]].offset))
            cfg_report_given(report, &last[trusting[i]], "found true without proxy-real-ip-cidr, expected the trusted peers there, for example 10.0.0.0/8");
    for (uint32_t i = 0; i < c->admin.n; i++)
        for (uint32_t k = 0; k < c->http.n; k++)
            if (cfg_same_listener(&c->admin.v[i], &c->http.v[k]))
                cfg_report_given(report, &last[CFG_O_admin], "\"" STR_FMT "\" is a listener of http too", STR_ARG(c->admin.v[i].text));
    for (uint32_t i = 0; i < c->custom_headers.n; i++) fields += c->custom_headers.v[i].n + 2;
    for (uint32_t i = 0; i < c->hide_headers.n; i++) fields += c->hide_headers.v[i].n + 2;
    if (fields > CFG_FIELDS_MAX) cfg_report_add(report, "custom-headers, hide-headers: found %zu bytes of fields, expected at most %d", fields, CFG_FIELDS_MAX);
    cfg_check_default_backend(c, &last[CFG_O_default_backend_service], report);
}

static void cfg_free(struct cfg *c)
{
    struct mem_arena arena = c->arena;

    map_free(&c->by_name);
    mem_free(c);
    mem_arena_free(&arena);
}

static inline struct cfg *cfg_get(const struct cfg *c)
{
    struct cfg *mine = (struct cfg *)(uintptr_t)c; /* the count is the control thread's; everything else is constant */

    mine->refs++;
    return mine;
}

static void cfg_put(const struct cfg *c)
{
    struct cfg *mine = (struct cfg *)(uintptr_t)c;

    RJ_CHECK(mine->refs > 0);
    if (--mine->refs == 0) cfg_free(mine);
}

/* The settings of the file, or nothing when there is none. */
static void cfg_load_file(struct cfg *c, const struct cfg_input *in, struct cfg_givens *file, struct cfg_report *report)
{
    const char *name = in->file_name ? in->file_name : (const char *)c->config.p;
    struct cfg_reader *r = mem_need(sizeof *r);
    struct str_builder text = str_growing();
    int rc;

    *r = (struct cfg_reader){.c = c, .report = report, .file = name};
    if (in->file_name) cfg_parse(r, in->text);
    else if ((rc = cfg_read_file(name, &text)) < 0) cfg_report_add(report, "%s: cannot be read: %s", name, strerror(-rc));
    else cfg_parse(r, str_built(&text));
    for (uint32_t i = 0; i < r->nvalues; i++)
        cfg_give(&c->arena, file, (struct cfg_given){r->values[i].option, r->values[i].line, name, r->values[i].text});
    str_free(&text);
    mem_free(r);
}

/* Makes settings from flags, environment and file. Returns them with one reference, or NULL when the report has errors. The report's
 * text is freed by the caller (str_free). */
static struct cfg *cfg_load(struct cfg_input *in, struct cfg_report *report)
{
    struct cfg *c = mem_need(sizeof *c);
    struct cfg_givens flags = {0}, environment = {0}, file = {0};
    struct cfg_given last[CFG_OPTION_COUNT] = {0};
    struct log_err err;

    for (int i = 0; i < CFG_OPTION_COUNT; i++) last[i].option = i;
    c->refs = 1;
    cfg_set_defaults(c);
    cfg_read_flags(in, &c->arena, &flags, report);
    cfg_read_environment(in, &c->arena, &environment);
    for (uint32_t i = 0; i < environment.n + flags.n; i++) {
        const struct cfg_given *g = i < environment.n ? &environment.v[i] : &flags.v[i - environment.n];

        if (cfg_info[g->option].offset == offsetof(struct cfg, config)) (void)cfg_set(c, &c->arena, g->option, g->value, &err);
    }
    if (in->file_name || c->config.n) cfg_load_file(c, in, &file, report);
    if (!report->errors) cfg_apply(c, &file, last, report);
    cfg_apply(c, &environment, last, report);
    cfg_apply(c, &flags, last, report);
    c->cluster = c->kubeconfig.n > 0;
    for (char *const *e = in->envp; e && *e; e++) c->cluster |= str_starts(str_z(*e), S("KUBERNETES_SERVICE_HOST=")) && (*e)[24];
    if (c->cluster && !c->given[CFG_O_admin]) {
        cfg_reset(c, CFG_O_admin);
        if (cfg_set(c, &c->arena, CFG_O_admin, S("0.0.0.0:10254"), &err) < 0) RJ_BUG_ON(true);
    }
    if (!report->errors) cfg_check(c, last, report);
    for (int i = 0; i < CFG_OPTION_COUNT; i++)
        if (cfg_info[i].where & CFG_LIVE) c->digest = str_hash_mix(c->digest, c->value_digest[i]);
    if (!report->errors) return c;
    cfg_free(c);
    return NULL;
}

/* Logs the options whose change needs a restart. */
static void cfg_log_restart(const struct cfg *old, const struct cfg *now)
{
    for (int i = 0; i < CFG_OPTION_COUNT; i++)
        if (!(cfg_info[i].where & (CFG_LIVE | CFG_R | CFG_B)) && old->value_digest[i] != now->value_digest[i])
            log_warn("cfg", "%s has changed: it takes effect at the next start", cfg_info[i].name);
}

/* ---- the table as text ---- */

/* What an option takes, where its table row limits that: words or a range. */
static void cfg_put_accepts(struct str_builder *b, const struct cfg_info *o)
{
    char accepts[256];

    if (o->type == CFG_ENUM || o->type == CFG_FLAGS || strstr(o->choices, "..")) str_putf(b, " (%s)", cfg_accepts(o, accepts, sizeof accepts));
}

/* The options as a Markdown table. */
static void cfg_render_reference(struct str_builder *b)
{
    str_put(b, S("| name | default | where | meaning |\n| --- | --- | --- | --- |\n"));
    for (int i = 0; i < CFG_OPTION_COUNT; i++) {
        const struct cfg_info *o = &cfg_info[i];
        static const char *const places[] = {[CFG_R] = "R", [CFG_B] = "B", [CFG_R | CFG_B] = "R B", [CFG_FLAG] = "flag", [0] = ""};
        const char *where = places[o->where & (CFG_R | CFG_B | CFG_FLAG)];

        str_putf(b, "| %s | %s | %s | %s", o->name, o->fallback[0] ? o->fallback : "-", where, o->help);
        cfg_put_accepts(b, o);
        str_put(b, S(" |\n"));
    }
}

/* The options as --help shows them. */
static void cfg_render_help(struct str_builder *b)
{
    for (int i = 0; i < CFG_OPTION_COUNT; i++) {
        const struct cfg_info *o = &cfg_info[i];

        str_putf(b, "  --%-32s %s", o->name, o->help);
        cfg_put_accepts(b, o);
        if (o->fallback[0]) str_putf(b, " [%s]", o->fallback);
        str_put_c(b, '\n');
    }
}

/* ============================================================================
 * obj_ : Kubernetes objects, projected
 *
 * Owns:    struct obj and its kinds, struct obj_reader, struct obj_store, struct obj_doc.
 * Calls:   mem_ str_ map_ log_ json_ yml_
 * Threads: control only.
 * Rules:   1. Only fields in the table are read; the rest is passed over.
 *          2. An object is one block; a wrong field makes it bad, not absent, so that its old rules go and it can be named.
 *          3. The store tells every difference once, before the old object is freed; equal content is no difference.
 * ========================================================================== */

/* What the members of a container mean. One table serves all kinds, because their fields do not collide: kind may stand last. */
enum obj_at {
    OBJ_AT_NOTHING, OBJ_AT_ROOT, OBJ_AT_META, OBJ_AT_ANNOTATIONS, OBJ_AT_LABELS, OBJ_AT_SPEC, OBJ_AT_BACKEND, OBJ_AT_BACKEND_SERVICE, OBJ_AT_BACKEND_PORT,
    OBJ_AT_RULES, OBJ_AT_RULE, OBJ_AT_HTTP, OBJ_AT_PATHS, OBJ_AT_PATH, OBJ_AT_PORTS, OBJ_AT_PORT, OBJ_AT_ENDPOINTS, OBJ_AT_ENDPOINT, OBJ_AT_ADDRESSES,
    OBJ_AT_CONDITIONS, OBJ_AT_COUNT,
};

/*  inside             member               type         its members             slot */
#define OBJ_FIELDS(X)                                                                                 \
    X(ROOT,            "apiVersion",        STRING,      NOTHING,                API_VERSION)         \
    X(ROOT,            "kind",              STRING,      NOTHING,                KIND)                \
    X(ROOT,            "metadata",          OBJECT,      META,                   NONE)                \
    X(ROOT,            "spec",              OBJECT,      SPEC,                   NONE)                \
    X(ROOT,            "addressType",       STRING,      NOTHING,                ADDRESS_TYPE)        \
    X(ROOT,            "endpoints",         ARRAY,       ENDPOINTS,              ENDPOINTS)           \
    X(ROOT,            "ports",             ARRAY,       PORTS,                  PORTS)               \
    X(META,            "name",              STRING,      NOTHING,                NAME)                \
    X(META,            "namespace",         STRING,      NOTHING,                NAMESPACE)           \
    X(META,            "resourceVersion",   STRING,      NOTHING,                VERSION)             \
    X(META,            "creationTimestamp", STRING,      NOTHING,                CREATED)             \
    X(META,            "annotations",       OBJECT,      ANNOTATIONS,            ANNOTATIONS)         \
    X(META,            "labels",            OBJECT,      LABELS,                 NONE)                \
    X(ANNOTATIONS,     "",                  STRING,      NOTHING,                ANNOTATION)          \
    X(LABELS,          "",                  STRING,      NOTHING,                LABEL)               \
    X(SPEC,            "ingressClassName",  STRING,      NOTHING,                CLASS_NAME)          \
    X(SPEC,            "defaultBackend",    OBJECT,      BACKEND,                FALLBACK)            \
    X(SPEC,            "rules",             ARRAY,       RULES,                  RULES)               \
    X(SPEC,            "controller",        STRING,      NOTHING,                CONTROLLER)          \
    X(SPEC,            "ports",             ARRAY,       PORTS,                  PORTS)               \
    X(SPEC,            "type",              STRING,      NOTHING,                SERVICE_TYPE)        \
    X(SPEC,            "externalName",      STRING,      NOTHING,                EXTERNAL_NAME)       \
    X(BACKEND,         "service",           OBJECT,      BACKEND_SERVICE,        NONE)                \
    X(BACKEND,         "resource",          OBJECT,      NOTHING,                BACKEND_RESOURCE)    \
    X(BACKEND_SERVICE, "name",              STRING,      NOTHING,                BACKEND_NAME)        \
    X(BACKEND_SERVICE, "port",              OBJECT,      BACKEND_PORT,           NONE)                \
    X(BACKEND_PORT,    "name",              STRING,      NOTHING,                BACKEND_PORT_NAME)   \
    X(BACKEND_PORT,    "number",            NUMBER,      NOTHING,                BACKEND_PORT_NUMBER) \
    X(RULES,           "",                  OBJECT,      RULE,                   RULE)                \
    X(RULE,            "host",              STRING,      NOTHING,                HOST)                \
    X(RULE,            "http",              OBJECT,      HTTP,                   NONE)                \
    X(HTTP,            "paths",             ARRAY,       PATHS,                  PATHS)               \
    X(PATHS,           "",                  OBJECT,      PATH,                   PATH)                \
    X(PATH,            "path",              STRING,      NOTHING,                PATH_TEXT)           \
    X(PATH,            "pathType",          STRING,      NOTHING,                PATH_TYPE)           \
    X(PATH,            "backend",           OBJECT,      BACKEND,                PATH_BACKEND)        \
    X(PORTS,           "",                  OBJECT,      PORT,                   PORT)                \
    X(PORT,            "name",              STRING,      NOTHING,                PORT_NAME)           \
    X(PORT,            "port",              NUMBER,      NOTHING,                PORT_NUMBER)         \
    X(PORT,            "protocol",          STRING,      NOTHING,                PORT_PROTOCOL)       \
    X(ENDPOINTS,       "",                  OBJECT,      ENDPOINT,               ENDPOINT)            \
    X(ENDPOINT,        "addresses",         ARRAY,       ADDRESSES,              NONE)                \
    X(ENDPOINT,        "conditions",        OBJECT,      CONDITIONS,             NONE)                \
    X(ADDRESSES,       "",                  STRING,      NOTHING,                ADDRESS)             \
    X(CONDITIONS,      "ready",             BOOL,        NOTHING,                READY)               \
    X(CONDITIONS,      "serving",           BOOL,        NOTHING,                SERVING)             \
    X(CONDITIONS,      "terminating",       BOOL,        NOTHING,                TERMINATING)

enum obj_slot {
    OBJ_NONE, OBJ_API_VERSION, OBJ_KIND, OBJ_ADDRESS_TYPE, OBJ_ENDPOINTS, OBJ_PORTS, OBJ_NAME, OBJ_NAMESPACE, OBJ_VERSION, OBJ_CREATED, OBJ_ANNOTATIONS,
    OBJ_ANNOTATION, OBJ_LABEL, OBJ_CLASS_NAME, OBJ_FALLBACK, OBJ_RULES, OBJ_CONTROLLER, OBJ_SERVICE_TYPE, OBJ_EXTERNAL_NAME, OBJ_BACKEND_RESOURCE,
    OBJ_BACKEND_NAME, OBJ_BACKEND_PORT_NAME, OBJ_BACKEND_PORT_NUMBER, OBJ_RULE, OBJ_HOST, OBJ_PATHS, OBJ_PATH, OBJ_PATH_TEXT, OBJ_PATH_TYPE,
    OBJ_PATH_BACKEND, OBJ_PORT, OBJ_PORT_NAME, OBJ_PORT_NUMBER, OBJ_PORT_PROTOCOL, OBJ_ENDPOINT, OBJ_ADDRESS, OBJ_READY, OBJ_SERVING, OBJ_TERMINATING,
};

struct obj_field {
    uint8_t at;                                          /* enum obj_at */
    uint8_t type;                                        /* enum json_type */
    uint8_t into;                                        /* enum obj_at */
    uint8_t slot;                                        /* enum obj_slot */
    uint8_t key_n;
    const char *key;                                     /* "": any member, or an element */
};
static const struct obj_field obj_fields[] = {
#define X(at, key, type, into, slot) {OBJ_AT_##at, JSON_##type, OBJ_AT_##into, OBJ_##slot, sizeof(key) - 1, key},
    OBJ_FIELDS(X)
#undef X
};

static const struct { const char *name, *api; bool namespaced; } obj_kinds[OBJ_KIND_COUNT] = {
    [OBJ_INGRESS] = {"Ingress", "networking.k8s.io/v1", true},
    [OBJ_INGRESS_CLASS] = {"IngressClass", "networking.k8s.io/v1", false},
    [OBJ_SERVICE] = {"Service", "v1", true},
    [OBJ_ENDPOINT_SLICE] = {"EndpointSlice", "discovery.k8s.io/v1", true},
};

/* The kind of a name, or OBJ_KIND_COUNT. */
static uint8_t obj_kind_find(struct str name)
{
    uint8_t kind = 0;

    while (kind < OBJ_KIND_COUNT && !str_eq(name, str_z(obj_kinds[kind].name))) kind++;
    return kind;
}

/* ---- reading ---- */

/* Prepares a reader of objects, one after another. hint is the kind of objects that do not tell it (items of a typed list), else
 * OBJ_KIND_COUNT. json, when not NULL, is the reader that the events come from, and skips what is not wanted. */
static void obj_reader_init(struct obj_reader *r, uint8_t hint, struct json_reader *json)
{
    *r = (struct obj_reader){.json = json, .hint = hint, .kind = OBJ_KIND_COUNT};
}

/* Forgets the present object; the next event begins another. */
static void obj_reader_reset(struct obj_reader *r)
{
    mem_arena_free(&r->scratch);
    obj_reader_init(r, r->hint, r->json);
}

static void obj_reader_fini(struct obj_reader *r) { obj_reader_reset(r); }

/* A zeroed element at the end of the list. The elements may move. */
static void *obj_list_add(struct obj_reader *r, struct obj_list *list, size_t size)
{
    if (list->n == list->cap) {
        uint32_t cap = list->cap ? list->cap * 2 : 4;
        void *p = mem_arena_alloc(&r->scratch, cap * size);

        if (list->n) memcpy(p, list->p, list->n * size);
        list->p = p;
        list->cap = cap;
    }
    return memset((uint8_t *)list->p + list->n++ * size, 0, size);
}

/* The newest element; the list is not empty. */
static void *obj_list_last(struct obj_list *list, size_t size) { return (uint8_t *)list->p + (list->n - 1) * size; }

/* Where the reader is: `spec.rules[1].http.paths[0]`, and the member or element that is being read. */
static void obj_put_path(struct str_builder *b, const struct obj_reader *r, bool member)
{
    const struct obj_field *f = r->field;
    const struct obj_level *top = &r->level[r->depth - 1];

    for (unsigned i = 1; i < r->depth; i++) {
        if (!r->level[i].key) str_putf(b, "[%u]", r->level[i - 1].index);
        else str_putf(b, "%s%s", i > 1 ? "." : "", r->level[i].key);
    }
    if (!member || !f) return;
    if (f->key_n) str_putf(b, "%s%s", r->depth > 1 ? "." : "", f->key);
    else if (top->array) str_putf(b, "[%u]", top->index);
    else str_putf(b, "[" STR_FMT "]", STR_ARG(r->key));
}

/* Makes the object bad: path, what was found, what was expected. The first reason stays. */
RJ_PRINTF(3, 4) static void obj_set_bad(struct obj_reader *r, bool member, const char *fmt, ...)
{
    uint8_t text[480];
    struct str_builder b = str_fixed(text, sizeof text);
    va_list ap;

    if (r->bad.n) return;
    obj_put_path(&b, r, member);
    if (b.n) str_put(&b, S(": "));
    va_start(ap, fmt);
    str_vputf(&b, fmt, ap);
    va_end(ap);
    r->bad = str_dup(&r->scratch, str_built(&b));
}

/* A copy of a field's text that ends the message when it is long. */
static struct str obj_shown(struct str s) { return s.n > 100 ? str_of(s.p, 100) : s; }

/* Passes over the value behind a key, or the rest of a container. */
static void obj_pass(struct obj_reader *r, uint8_t depth)
{
    if (r->json) json_skip(r->json);
    else r->skip = (uint8_t)(depth + 1);
}

/* Days since 1970-01-01 (Howard Hinnant's arithmetic). */
static int64_t obj_days(int64_t year, unsigned month, unsigned day)
{
    int64_t y = year - (month <= 2), era = y / 400, yoe = y - era * 400;
    int64_t doy = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;

    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

/* RFC 3339 to seconds since 1970; false when it is none, or not within 32 bits. */
static bool obj_time(struct str s, uint32_t *out)
{
    static const uint8_t at[6][2] = {{0, 4}, {5, 2}, {8, 2}, {11, 2}, {14, 2}, {17, 2}};
    uint64_t f[6], hours, minutes;
    int64_t t, zone = 0;
    size_t i = 19;

    if (s.n < 20 || s.p[4] != '-' || s.p[7] != '-' || (s.p[10] != 'T' && s.p[10] != 't') || s.p[13] != ':' || s.p[16] != ':') return false;
    for (size_t k = 0; k < 6; k++)
        if (!str_to_u64(str_of(s.p + at[k][0], at[k][1]), &f[k])) return false;
    if (f[1] < 1 || f[1] > 12 || f[2] < 1 || f[2] > 31 || f[3] > 23 || f[4] > 59 || f[5] > 60) return false;
    if (s.p[i] == '.')
        for (i++; i < s.n && str_is_digit(s.p[i]); i++) {}
    if (i + 6 == s.n && (s.p[i] == '+' || s.p[i] == '-') && s.p[i + 3] == ':') {
        if (!str_to_u64(str_of(s.p + i + 1, 2), &hours) || !str_to_u64(str_of(s.p + i + 4, 2), &minutes)) return false;
        zone = (int64_t)(hours * 3600 + minutes * 60) * (s.p[i] == '-' ? -1 : 1);
    } else if (i + 1 != s.n || (s.p[i] != 'Z' && s.p[i] != 'z')) {
        return false;
    }
    t = obj_days((int64_t)f[0], (unsigned)f[1], (unsigned)f[2]) * 86400 + (int64_t)(f[3] * 3600 + f[4] * 60 + f[5]) - zone;
    if (t < 0 || t > UINT32_MAX) return false;
    *out = (uint32_t)t;
    return true;
}

static bool obj_is_our_annotation(struct str key)
{
    return str_starts(key, S("nginx.ingress.kubernetes.io/")) || str_starts(key, S("ramjet.io/")) || str_eq(key, S("kubernetes.io/ingress.class")) ||
           str_eq(key, S("ingressclass.kubernetes.io/is-default-class"));
}

static void obj_store_annotation(struct obj_reader *r, struct str value)
{
    struct obj_pair *pair;

    if (str_eq(r->key, S("kubernetes.io/ingress.class"))) {
        r->ingress.class_annotation = str_dup(&r->scratch, value);
    } else if (str_eq(r->key, S("ingressclass.kubernetes.io/is-default-class"))) {
        r->klass.is_default = str_eq(value, S("true"));
    } else {
        pair = obj_list_add(r, &r->annotations, sizeof *pair);
        *pair = (struct obj_pair){r->key, str_dup(&r->scratch, value)};
    }
}

/* A port number of 1 to 65535. */
static uint16_t obj_port_number(struct obj_reader *r, struct str s)
{
    uint64_t v;

    if (str_to_u64(s, &v) && v >= 1 && v <= 65535) return (uint16_t)v;
    obj_set_bad(r, true, "found " STR_FMT ", expected a port of 1 to 65535", STR_ARG(obj_shown(s)));
    return 0;
}

static void obj_store_path_type(struct obj_reader *r, struct str s)
{
    static const char *const names[] = {[OBJ_PATH_PREFIX] = "Prefix", [OBJ_PATH_EXACT] = "Exact", [OBJ_PATH_IMPLEMENTATION] = "ImplementationSpecific"};
    struct obj_path *path = obj_list_last(&r->paths, sizeof *path);

    for (size_t i = 0; i < RJ_COUNT(names); i++) {
        if (!str_eq(s, str_z(names[i]))) continue;
        path->type = (uint8_t)i;
        return;
    }
    obj_set_bad(r, true, "found \"" STR_FMT "\", expected Exact, Prefix or ImplementationSpecific", STR_ARG(obj_shown(s)));
}

/* Only the first address of an endpoint counts. Whether it must be one is known when addressType is. */
static void obj_store_address(struct obj_reader *r, struct str s)
{
    struct obj_endpoint *e = obj_list_last(&r->endpoints, sizeof *e);

    if (r->level[r->depth - 1].index) return;
    if (str_to_ip(s, &e->addr)) return;
    e->addr = (struct net_addr){0};
    if (!r->bad_address.n) r->bad_address = str_dup(&r->scratch, s.n ? s : S("an empty text"));
}

/* Takes a scalar. One flat switch over the slots. */
static void obj_store_value(struct obj_reader *r, const struct json_event *ev)
{
    const struct obj_field *f = r->field;
    struct str s = ev->text;

    switch ((enum obj_slot)f->slot) {
    case OBJ_API_VERSION: r->api_version = str_dup(&r->scratch, s); break;
    case OBJ_KIND: r->kind_name = str_dup(&r->scratch, s); break;
    case OBJ_ADDRESS_TYPE: r->address_type = str_dup(&r->scratch, s); break;
    case OBJ_NAME: r->name = str_dup(&r->scratch, s); break;
    case OBJ_NAMESPACE: r->ns = str_dup(&r->scratch, s); break;
    case OBJ_VERSION: r->version = str_dup(&r->scratch, s); break;
    case OBJ_CREATED: r->created = str_dup(&r->scratch, s); break;
    case OBJ_ANNOTATION: obj_store_annotation(r, s); break;
    case OBJ_LABEL: r->slice.service = str_dup(&r->scratch, s); break;
    case OBJ_CLASS_NAME:
        r->ingress.class_name = str_dup(&r->scratch, s);
        r->ingress.has_class_name = true;
        break;
    case OBJ_CONTROLLER: r->klass.controller = str_dup(&r->scratch, s); break;
    case OBJ_SERVICE_TYPE: r->service_type = str_dup(&r->scratch, s); break;
    case OBJ_EXTERNAL_NAME: r->service.external_name = str_dup(&r->scratch, s); break;
    case OBJ_BACKEND_NAME: r->backend->service = str_dup(&r->scratch, s); break;
    case OBJ_BACKEND_PORT_NAME: r->backend->port_name = str_dup(&r->scratch, s); break;
    case OBJ_BACKEND_PORT_NUMBER: r->backend->port = obj_port_number(r, s); break;
    case OBJ_HOST: ((struct obj_rule *)obj_list_last(&r->rules, sizeof(struct obj_rule)))->host = str_dup(&r->scratch, s); break;
    case OBJ_PATH_TEXT: ((struct obj_path *)obj_list_last(&r->paths, sizeof(struct obj_path)))->path = str_dup(&r->scratch, s); break;
    case OBJ_PATH_TYPE: obj_store_path_type(r, s); break;
    case OBJ_PORT_NAME: ((struct obj_port *)obj_list_last(&r->ports, sizeof(struct obj_port)))->name = str_dup(&r->scratch, s); break;
    case OBJ_PORT_NUMBER: ((struct obj_port *)obj_list_last(&r->ports, sizeof(struct obj_port)))->port = obj_port_number(r, s); break;
    case OBJ_PORT_PROTOCOL: r->foreign_port = !str_eq(s, S("TCP")); break;
    case OBJ_ADDRESS: obj_store_address(r, s); break;
    case OBJ_READY: r->condition[0] = ev->flag ? 1 : 0; break;
    case OBJ_SERVING: r->condition[1] = ev->flag ? 1 : 0; break;
    case OBJ_TERMINATING: r->condition[2] = ev->flag ? 1 : 0; break;
    case OBJ_NONE: case OBJ_ENDPOINTS: case OBJ_PORTS: case OBJ_ANNOTATIONS: case OBJ_FALLBACK: case OBJ_RULES: case OBJ_BACKEND_RESOURCE: case OBJ_RULE:
    case OBJ_PATHS: case OBJ_PATH: case OBJ_PATH_BACKEND: case OBJ_PORT: case OBJ_ENDPOINT:
        break;
    }
}

/* A container begins: makes room for what it holds. */
static void obj_begin_container(struct obj_reader *r, const struct obj_field *f)
{
    struct obj_rule *rule;
    struct obj_path *path;

    switch (f->slot) {
    case OBJ_ENDPOINTS: r->endpoints.n = 0; break;
    case OBJ_PORTS: r->ports.n = 0; break;
    case OBJ_ANNOTATIONS: r->annotations.n = 0; break;
    case OBJ_RULES: r->rules.n = r->paths.n = 0; break;
    case OBJ_RULE: obj_list_add(r, &r->rules, sizeof(struct obj_rule)); break;
    case OBJ_PATHS:
        rule = obj_list_last(&r->rules, sizeof *rule);
        r->paths.n -= rule->npaths;                      /* given twice: the last one counts, as in the API server */
        rule->npaths = 0;
        break;
    case OBJ_PATH:
        rule = obj_list_last(&r->rules, sizeof *rule);
        rule->npaths++;
        path = obj_list_add(r, &r->paths, sizeof *path);
        path->type = UINT8_MAX;
        break;
    case OBJ_FALLBACK:
        r->backend = &r->ingress.fallback;
        *r->backend = (struct obj_backend){.present = true};
        break;
    case OBJ_PATH_BACKEND:
        path = obj_list_last(&r->paths, sizeof *path);
        r->backend = &path->backend;
        *r->backend = (struct obj_backend){.present = true};
        break;
    case OBJ_BACKEND_RESOURCE: r->backend->resource = true; break;
    case OBJ_PORT:
        obj_list_add(r, &r->ports, sizeof(struct obj_port));
        r->foreign_port = false;
        break;
    case OBJ_ENDPOINT:
        obj_list_add(r, &r->endpoints, sizeof(struct obj_endpoint));
        memset(r->condition, -1, sizeof r->condition);
        break;
    default: break;
    }
}

/* A container ends: looks at what it held. */
static void obj_end_container(struct obj_reader *r)
{
    const struct obj_backend *b;
    struct obj_path *path;
    struct obj_endpoint *e;

    r->field = NULL;
    switch (r->level[r->depth - 1].at) {
    case OBJ_AT_BACKEND:
        b = r->backend;
        if (b->resource == (b->service.n > 0)) obj_set_bad(r, false, "expected either a service with a name, or a resource");
        else if (!b->resource && !b->port == !b->port_name.n) obj_set_bad(r, false, "expected either a name or a number as port of the service");
        break;
    case OBJ_AT_PATH:
        path = obj_list_last(&r->paths, sizeof *path);
        if (path->type == UINT8_MAX) obj_set_bad(r, false, "pathType is absent, expected Exact, Prefix or ImplementationSpecific");
        else if (!path->backend.present) obj_set_bad(r, false, "backend is absent");
        break;
    case OBJ_AT_PORT:
        if (!r->foreign_port) break;
        r->ports.n--;
        r->dropped_ports = true;
        break;
    case OBJ_AT_ENDPOINT:
        e = obj_list_last(&r->endpoints, sizeof *e);
        e->ready = r->condition[0] != 0;
        e->serving = r->condition[1] != 0;
        e->terminating = r->condition[2] > 0;
        if (!e->addr.family) r->endpoints.n--;
        break;
    default: break;
    }
}

static bool obj_is_list(const struct obj_reader *r) { return str_ends(r->kind_name, S("List")); }

/* Finds the row for a member of the present container, or NULL when it is not wanted. */
static const struct obj_field *obj_find_field(const struct obj_reader *r, struct str key)
{
    uint8_t at = r->level[r->depth - 1].at;

    if (at == OBJ_AT_ANNOTATIONS && !obj_is_our_annotation(key)) return NULL;
    if (at == OBJ_AT_LABELS && !str_eq(key, S("kubernetes.io/service-name"))) return NULL;
    if (at == OBJ_AT_ROOT && r->kind_name.n && obj_kind_find(r->kind_name) == OBJ_KIND_COUNT && !str_eq(key, S("metadata"))) return NULL;
    for (size_t i = 0; i < RJ_COUNT(obj_fields); i++) {
        const struct obj_field *f = &obj_fields[i];

        if (f->at > at) break;                           /* the rows stand in the order of enum obj_at */
        if (f->at == at && (!f->key_n || (f->key_n == key.n && memcmp(f->key, key.p, key.n) == 0))) return f;
    }
    return NULL;
}

static void obj_push(struct obj_reader *r, uint8_t at, bool array, const char *key)
{
    RJ_BUG_ON(r->depth == OBJ_LEVELS);
    r->level[r->depth++] = (struct obj_level){.at = at, .array = array, .index = UINT32_MAX, .key = key};
}

/* A value: the member named last, or the next element. */
static void obj_take_value(struct obj_reader *r, const struct json_event *ev)
{
    struct obj_level *top = &r->level[r->depth - 1];
    const struct obj_field *f;
    bool container = ev->type <= JSON_ARRAY;

    if (top->array) {
        top->index++;
        r->field = obj_find_field(r, (struct str){0});
    }
    f = r->field;
    if (!f || (ev->type == JSON_NULL && !top->array)) return;
    if (r->scratch.total > OBJ_BYTES_MAX) {
        obj_set_bad(r, false, "more than %d MiB of text that matters", OBJ_BYTES_MAX >> 20);
    } else if (ev->type != f->type) {
        obj_set_bad(r, true, "found %s, expected %s", json_type_name(ev->type), json_type_name(f->type));
    } else if (!container) {
        obj_store_value(r, ev);
        return;
    } else {
        obj_begin_container(r, f);
        if (f->into) {
            obj_push(r, f->into, f->type == JSON_ARRAY, f->key_n ? f->key : NULL);
            return;
        }
    }
    if (container) obj_pass(r, ev->depth);
}

/* The whole object was read: what is it, and can it be used? 1, or -1 with err. */
static int obj_finish(struct obj_reader *r)
{
    uint8_t kind = obj_kind_find(r->kind_name);

    r->done = true;
    r->depth = 1;
    if (!r->kind_name.n) kind = r->hint;
    if (!r->kind_name.n && kind == OBJ_KIND_COUNT) return log_fail(&r->err, "kind is absent");
    if (kind == OBJ_KIND_COUNT || (r->api_version.n && !str_eq(r->api_version, str_z(obj_kinds[kind].api)))) {
        if (kind == OBJ_KIND_COUNT) log_fail(&r->err, "kind " STR_FMT " is not used", STR_ARG(obj_shown(r->kind_name)));
        else log_fail(&r->err, "apiVersion " STR_FMT " is not used, expected %s", STR_ARG(obj_shown(r->api_version)), obj_kinds[kind].api);
        return 1;
    }
    if (!r->name.n) return log_fail(&r->err, "metadata.name is absent");
    r->kind = kind;
    if (!obj_kinds[kind].namespaced) r->ns = (struct str){0};
    else if (!r->ns.n) r->ns = S("default");
    if (r->created.n && !obj_time(r->created, &r->created_s))
        obj_set_bad(r, false, "metadata.creationTimestamp: found \"" STR_FMT "\", expected a time as of RFC 3339", STR_ARG(obj_shown(r->created)));
    if (!str_eq(r->service_type, S("ExternalName"))) r->service.external_name = (struct str){0};
    if (kind != OBJ_ENDPOINT_SLICE) return 1;
    r->slice.family = str_eq(r->address_type, S("IPv4")) ? AF_INET : str_eq(r->address_type, S("IPv6")) ? AF_INET6 : 0;
    if (!r->slice.family && !str_eq(r->address_type, S("FQDN")))
        obj_set_bad(r, false, "addressType: found \"" STR_FMT "\", expected IPv4, IPv6 or FQDN", STR_ARG(obj_shown(r->address_type)));
    if (!r->slice.family || (r->dropped_ports && !r->ports.n)) r->endpoints.n = 0;
    else if (r->bad_address.n) obj_set_bad(r, false, "endpoints: found " STR_FMT ", expected an IP address", STR_ARG(obj_shown(r->bad_address)));
    for (uint32_t i = 0; i < r->endpoints.n; i++)
        if (((struct obj_endpoint *)r->endpoints.p)[i].addr.family != r->slice.family)
            obj_set_bad(r, false, "endpoints[%u]: found an address of the other family, expected " STR_FMT, i, STR_ARG(r->address_type));
    return 1;
}

/* Takes the next event of an object; the first one begins it (and forgets the object before). 0: more to come. 1: done, take it.
 * -1: done, and err tells why it is no object. */
static int obj_reader_event(struct obj_reader *r, const struct json_event *ev)
{
    if (r->done) obj_reader_reset(r);
    if (!r->begun) {
        r->begun = true;
        r->base = ev->depth;
        r->line = ev->line;
        if (ev->type == JSON_OBJECT) {
            obj_push(r, OBJ_AT_ROOT, false, NULL);
            return 0;
        }
        log_fail(&r->err, "found %s, expected an object", json_type_name(ev->type));
        if (ev->type == JSON_ARRAY) r->skip = (uint8_t)(ev->depth + 1);
        else r->done = true;
        return r->done ? -1 : 0;
    }
    if (r->skip) {
        if (ev->depth + 1 == r->skip && ev->type > JSON_ARRAY) {
            r->skip = 0;
            r->done = !r->depth;                         /* an array where an object should be */
        }
        return r->done ? -1 : 0;
    }
    switch (ev->type) {
    case JSON_KEY:
        r->field = r->scratch.total > OBJ_BYTES_MAX ? NULL : obj_find_field(r, ev->text);
        if (r->scratch.total > OBJ_BYTES_MAX) obj_set_bad(r, false, "more than %d MiB of text that matters", OBJ_BYTES_MAX >> 20);
        if (!r->field) obj_pass(r, ev->depth);
        else if (!((const struct obj_field *)r->field)->key_n) r->key = str_dup(&r->scratch, ev->text);
        break;
    case JSON_OBJECT_END:
    case JSON_ARRAY_END:
        if (r->depth == 1) return obj_finish(r);
        obj_end_container(r);
        r->depth--;
        break;
    default: obj_take_value(r, ev); break;
    }
    return 0;
}

/* ---- the compact block ---- */

/* Calls fn for every text of an object, in the order in which they stand in the block. */
static void obj_each_text(struct obj *o, void (*fn)(void *arg, struct str *s), void *arg)
{
    struct obj_ingress *ing = (struct obj_ingress *)o;
    struct obj_service *svc = (struct obj_service *)o;
    struct obj_slice *slice = (struct obj_slice *)o;

    fn(arg, &o->key);
    fn(arg, &o->ns);
    fn(arg, &o->bad);
    switch ((enum obj_kind)o->kind) {
    case OBJ_INGRESS:
        fn(arg, &ing->class_name);
        fn(arg, &ing->class_annotation);
        fn(arg, &ing->fallback.service);
        fn(arg, &ing->fallback.port_name);
        for (uint32_t i = 0; i < ing->nrules; i++) {
            fn(arg, &ing->rules[i].host);
            for (uint32_t k = 0; k < ing->rules[i].npaths; k++) {
                fn(arg, &ing->rules[i].paths[k].path);
                fn(arg, &ing->rules[i].paths[k].backend.service);
                fn(arg, &ing->rules[i].paths[k].backend.port_name);
            }
        }
        for (uint32_t i = 0; i < ing->nannotations; i++) {
            fn(arg, &ing->annotations[i].name);
            fn(arg, &ing->annotations[i].value);
        }
        break;
    case OBJ_INGRESS_CLASS: fn(arg, &((struct obj_class *)o)->controller); break;
    case OBJ_SERVICE:
        fn(arg, &svc->external_name);
        for (uint32_t i = 0; i < svc->nports; i++) fn(arg, &svc->ports[i].name);
        break;
    case OBJ_ENDPOINT_SLICE:
        fn(arg, &slice->service);
        for (uint32_t i = 0; i < slice->nports; i++) fn(arg, &slice->ports[i].name);
        break;
    case OBJ_KIND_COUNT: break;
    }
}

/* Text of a block while it is laid out: first counted, then gathered in scratch, then moved. */
struct obj_text {
    uint8_t *p;
    size_t n;
    const uint8_t *from;
};
enum { OBJ_SAME_BYTES = 512 };                           /* how far back an equal text is looked for */

static void obj_count_text(void *arg, struct str *s) { ((struct obj_text *)arg)->n += s->n; }

/* Gathers a text; one that stands in the block already (a service named as its Ingress) is not stored again. */
static void obj_gather_text(void *arg, struct str *s)
{
    struct obj_text *t = arg;
    size_t back = t->n < OBJ_SAME_BYTES ? t->n : OBJ_SAME_BYTES;
    const uint8_t *same = s->n ? memmem(t->p + t->n - back, back, s->p, s->n) : NULL;

    if (!s->n) {
        *s = (struct str){0};
        return;
    }
    if (!same) {
        same = memcpy(t->p + t->n, s->p, s->n);
        t->n += s->n;
    }
    s->p = same;
}

static void obj_move_text(void *arg, struct str *s)
{
    struct obj_text *t = arg;

    if (s->n) s->p = t->p + (s->p - t->from);
}

/* Moves n elements to *at and returns where they are now. */
static void *obj_move_list(uint8_t **at, const void *p, size_t n, size_t size)
{
    void *to = *at;

    if (!n) return NULL;
    memcpy(to, p, n * size);
    *at += (n * size + 7) & ~(size_t)7;
    return to;
}

/* The draft of the reader's kind, with its lists; returns its size and that of its lists. */
static struct obj *obj_draft(struct obj_reader *r, size_t *size, size_t *lists)
{
    struct obj_path *paths = r->paths.p;

    switch ((enum obj_kind)r->kind) {
    case OBJ_INGRESS:
        r->ingress.nrules = r->rules.n;
        r->ingress.rules = r->rules.p;
        r->ingress.nannotations = r->annotations.n;
        r->ingress.annotations = r->annotations.p;
        for (uint32_t i = 0; i < r->rules.n; paths += r->ingress.rules[i++].npaths) r->ingress.rules[i].paths = paths;
        *size = sizeof r->ingress;
        *lists = r->rules.n * sizeof(struct obj_rule) + r->paths.n * sizeof(struct obj_path) + r->annotations.n * sizeof(struct obj_pair);
        return &r->ingress.o;
    case OBJ_INGRESS_CLASS:
        *size = sizeof r->klass;
        *lists = 0;
        return &r->klass.o;
    case OBJ_SERVICE:
        r->service.nports = r->ports.n;
        r->service.ports = r->ports.p;
        *size = sizeof r->service;
        *lists = r->ports.n * sizeof(struct obj_port);
        return &r->service.o;
    case OBJ_ENDPOINT_SLICE:
        r->slice.nports = r->ports.n;
        r->slice.ports = r->ports.p;
        r->slice.nendpoints = r->endpoints.n;
        r->slice.endpoints = r->endpoints.p;
        *size = sizeof r->slice;
        *lists = r->ports.n * sizeof(struct obj_port) + ((r->endpoints.n * sizeof(struct obj_endpoint) + 7) & ~(size_t)7);
        return &r->slice.o;
    case OBJ_KIND_COUNT: break;
    }
    return NULL;
}

/* The lists of the block that was copied from the draft, moved behind its struct. */
static void obj_move_lists(struct obj *o, uint8_t *at)
{
    struct obj_ingress *ing = (struct obj_ingress *)o;
    struct obj_service *svc = (struct obj_service *)o;
    struct obj_slice *slice = (struct obj_slice *)o;

    if (o->kind == OBJ_INGRESS) {
        ing->rules = obj_move_list(&at, ing->rules, ing->nrules, sizeof *ing->rules);
        for (uint32_t i = 0; i < ing->nrules; i++) ing->rules[i].paths = obj_move_list(&at, ing->rules[i].paths, ing->rules[i].npaths, sizeof(struct obj_path));
        ing->annotations = obj_move_list(&at, ing->annotations, ing->nannotations, sizeof *ing->annotations);
    } else if (o->kind == OBJ_SERVICE) {
        svc->ports = obj_move_list(&at, svc->ports, svc->nports, sizeof *svc->ports);
    } else if (o->kind == OBJ_ENDPOINT_SLICE) {
        slice->ports = obj_move_list(&at, slice->ports, slice->nports, sizeof *slice->ports);
        slice->endpoints = obj_move_list(&at, slice->endpoints, slice->nendpoints, sizeof *slice->endpoints);
    }
}

/* The object that was read, owned by the caller (obj_free), or NULL when it is not one that is used (err tells why). Once per object. */
static struct obj *obj_reader_take(struct obj_reader *r)
{
    size_t size = 0, lists = 0;
    struct obj *draft, *o;
    struct obj_text text = {0};
    struct str_builder key;

    if (!r->done || r->kind == OBJ_KIND_COUNT) return NULL;
    draft = obj_draft(r, &size, &lists);
    key = str_fixed(mem_arena_alloc(&r->scratch, r->ns.n + r->name.n + 1), r->ns.n + r->name.n + 1);
    if (r->ns.n) {
        str_put(&key, r->ns);
        str_put_c(&key, '/');
    }
    str_put(&key, r->name);
    *draft = (struct obj){.kind = r->kind, .created = r->created_s, .ns = r->ns, .key = str_built(&key), .bad = r->bad};
    obj_each_text(draft, obj_count_text, &text);
    text = (struct obj_text){.p = mem_arena_alloc(&r->scratch, text.n)};
    obj_each_text(draft, obj_gather_text, &text);
    o = mem_need(size + lists + text.n);
    memcpy(o, draft, size);
    o->size = (uint32_t)(size + lists + text.n);
    obj_move_lists(o, (uint8_t *)o + size);
    memcpy((uint8_t *)o + size + lists, text.p, text.n);
    text.from = text.p;
    text.p = (uint8_t *)o + size + lists;
    obj_each_text(o, obj_move_text, &text);
    r->kind = OBJ_KIND_COUNT;
    return o;
}

static void obj_free(struct obj *o) { mem_free(o); }

/* ---- the store ---- */

static bool obj_same_backend(const struct obj_backend *a, const struct obj_backend *b)
{
    return str_eq(a->service, b->service) && str_eq(a->port_name, b->port_name) && a->port == b->port && a->present == b->present && a->resource == b->resource;
}

static bool obj_same_ingress(const struct obj_ingress *a, const struct obj_ingress *b)
{
    if (!str_eq(a->class_name, b->class_name) || !str_eq(a->class_annotation, b->class_annotation) || a->has_class_name != b->has_class_name) return false;
    if (!obj_same_backend(&a->fallback, &b->fallback) || a->nrules != b->nrules || a->nannotations != b->nannotations) return false;
    for (uint32_t i = 0; i < a->nrules; i++) {
        const struct obj_rule *x = &a->rules[i], *y = &b->rules[i];

        if (!str_eq(x->host, y->host) || x->npaths != y->npaths) return false;
        for (uint32_t k = 0; k < x->npaths; k++) {
            const struct obj_path *p = &x->paths[k], *q = &y->paths[k];

            if (!str_eq(p->path, q->path) || p->type != q->type || !obj_same_backend(&p->backend, &q->backend)) return false;
        }
    }
    for (uint32_t i = 0; i < a->nannotations; i++)
        if (!str_eq(a->annotations[i].name, b->annotations[i].name) || !str_eq(a->annotations[i].value, b->annotations[i].value)) return false;
    return true;
}

static bool obj_same_ports(const struct obj_port *a, uint32_t an, const struct obj_port *b, uint32_t bn)
{
    if (an != bn) return false;
    for (uint32_t i = 0; i < an; i++)
        if (a[i].port != b[i].port || !str_eq(a[i].name, b[i].name)) return false;
    return true;
}

static bool obj_same_slice(const struct obj_slice *a, const struct obj_slice *b)
{
    if (!str_eq(a->service, b->service) || a->family != b->family || a->nendpoints != b->nendpoints) return false;
    for (uint32_t i = 0; i < a->nendpoints; i++) {
        const struct obj_endpoint *x = &a->endpoints[i], *y = &b->endpoints[i];

        if (!str_addr_eq(&x->addr, &y->addr) || x->ready != y->ready || x->serving != y->serving || x->terminating != y->terminating) return false;
    }
    return obj_same_ports(a->ports, a->nports, b->ports, b->nports);
}

/* Whether two objects of one key say the same, whatever their resourceVersions. */
static bool obj_same(const struct obj *a, const struct obj *b)
{
    const struct obj_service *sa = (const struct obj_service *)a, *sb = (const struct obj_service *)b;
    const struct obj_class *ca = (const struct obj_class *)a, *cb = (const struct obj_class *)b;

    if (a->kind != b->kind || a->size != b->size || a->created != b->created || !str_eq(a->key, b->key) || !str_eq(a->bad, b->bad)) return false;
    switch ((enum obj_kind)a->kind) {
    case OBJ_INGRESS: return obj_same_ingress((const struct obj_ingress *)a, (const struct obj_ingress *)b);
    case OBJ_INGRESS_CLASS: return str_eq(ca->controller, cb->controller) && ca->is_default == cb->is_default;
    case OBJ_SERVICE: return str_eq(sa->external_name, sb->external_name) && obj_same_ports(sa->ports, sa->nports, sb->ports, sb->nports);
    case OBJ_ENDPOINT_SLICE: return obj_same_slice((const struct obj_slice *)a, (const struct obj_slice *)b);
    case OBJ_KIND_COUNT: break;
    }
    return false;
}

/* Puts the object, which the store then owns, in the place of the one with its key. True: it differs, and changed was called.
 * False: it says the same; the old one stays and takes the new one's mark. */
static bool obj_store_put(struct obj_store *s, struct obj *o)
{
    struct obj *old = map_find(&s->kind[o->kind], o->key);

    if (old && obj_same(old, o)) {
        old->mark = o->mark;
        obj_free(o);
        return false;
    }
    map_put(&s->kind[o->kind], o->key, o);
    s->bytes = s->bytes + o->size - (old ? old->size : 0);
    if (s->changed) s->changed(s->arg, old, o);
    obj_free(old);
    return true;
}

/* Takes the object of the key out. The key may be the object's own. False: there was none. */
static bool obj_store_remove(struct obj_store *s, enum obj_kind kind, struct str key)
{
    struct obj *old = map_remove(&s->kind[kind], key);

    if (!old) return false;
    s->bytes -= old->size;
    if (s->changed) s->changed(s->arg, old, NULL);
    obj_free(old);
    return true;
}

/* After a list: removes the objects of the kind (and of the namespace, when ns is not empty) whose mark is not that of the list.
 * The caller gives every list a new mark and every object that it puts the mark of its list. Returns how many went. */
static uint32_t obj_store_sweep(struct obj_store *s, enum obj_kind kind, struct str ns, uint32_t mark)
{
    uint32_t at = 0, n = 0;
    struct obj *o;

    while ((o = map_next(&s->kind[kind], &at))) {
        if (o->mark == mark || (ns.n && !str_eq(o->ns, ns))) continue;
        obj_store_remove(s, kind, o->key);
        n++;
    }
    return n;
}

/* Frees everything, without a word. */
static void obj_store_fini(struct obj_store *s)
{
    for (int kind = 0; kind < OBJ_KIND_COUNT; kind++) {
        uint32_t at = 0;
        struct obj *o;

        while ((o = map_next(&s->kind[kind], &at))) obj_free(o);
        map_free(&s->kind[kind]);
    }
    s->bytes = 0;
}

/* ---- manifests ---- */

/* Hands what a reader has read to the callback. */
static int obj_doc_give(struct obj_doc *d, struct obj_reader *r, int rc)
{
    struct obj_found f = {.kind = r->kind_name, .name = r->name, .why = r->err.text, .error = rc < 0, .line = r->line};

    f.o = rc < 0 ? NULL : obj_reader_take(r);
    return d->on(d->arg, &f);
}

/* One event of a manifest (fits json_read and yml_read). Not 0: what the callback returned. */
static int obj_doc_on(void *arg, const struct json_event *ev)
{
    struct obj_doc *d = arg;
    int rc;

    if (d->items_next) {
        d->items_next = false;
        d->in_items = d->is_list = ev->type == JSON_ARRAY;
        if (d->in_items) {
            struct str kind = d->whole.kind_name;

            if (obj_is_list(&d->whole)) kind.n -= 4;
            obj_reader_init(&d->item, obj_kind_find(kind), NULL);
            return 0;
        }
    }
    if (d->in_items && !d->item_open && ev->type == JSON_ARRAY_END) d->in_items = false;
    if (d->in_items) {
        rc = obj_reader_event(&d->item, ev);
        d->item_open = rc == 0;
        return rc ? obj_doc_give(d, &d->item, rc) : 0;
    }
    if (ev->type == JSON_KEY && ev->depth == 1 && str_eq(ev->text, S("items"))) d->items_next = true;
    rc = obj_reader_event(&d->whole, ev);
    if (!rc) return 0;
    if (d->is_list) {
        d->is_list = false;
        return 0;
    }
    return obj_doc_give(d, &d->whole, rc);
}

static int obj_ignore(void *arg, const struct json_event *ev)
{
    (void)arg;
    (void)ev;
    return 0;
}

/* Reads a whole manifest, YAML or JSON, of one or more documents, and calls on for every object and every item of a list, in order,
 * until it returns not 0. Returns 0, -1 with err set when the text is neither, or what on returned. */
static int obj_read(struct str text, int (*on)(void *arg, const struct obj_found *found), void *arg, struct log_err *err)
{
    struct obj_doc d = {.on = on, .arg = arg};
    struct log_err json_err;
    bool looks_like_json, is_json;
    size_t i = 0;
    int rc;

    RJ_CHECK(text.p || !text.n);
    while (i < text.n && (text.p[i] == ' ' || text.p[i] == '\t' || text.p[i] == '\n' || text.p[i] == '\r')) i++;
    looks_like_json = i < text.n && (text.p[i] == '{' || text.p[i] == '[');
    is_json = looks_like_json && json_read(text, true, obj_ignore, NULL, &json_err) == 0;
    obj_reader_init(&d.whole, OBJ_KIND_COUNT, NULL);
    obj_reader_init(&d.item, OBJ_KIND_COUNT, NULL);
    if (is_json) {
        rc = json_read(text, true, obj_doc_on, &d, err);
    } else {
        rc = yml_read(text, obj_doc_on, &d, err);
        if (rc == -1 && looks_like_json) *err = json_err; /* flow style that is not JSON is rare; a slip in JSON is not */
    }
    obj_reader_fini(&d.whole);
    obj_reader_fini(&d.item);
    return rc;
}

/* ============================================================================
 * kc_ : How to reach an API server
 *
 * Owns:    struct kc_config, struct kc_file.
 * Calls:   sys_ mem_ str_ log_ json_ yml_ cry_
 * Threads: control.
 * Rules:   1. Token, CA and client certificate are read again when their files change; what cannot be read keeps its last value.
 *          2. What of a kubeconfig is not supported is refused by name, never passed over.
 * ========================================================================== */

/* ---- files that rotate ---- */

/* A number that changes when the file at path does; 0 when there is none. */
static uint64_t kc_file_stamp(const char *path)
{
    struct stat st;
    uint64_t w[5];

    if (stat(path, &st)) return 0;
    w[0] = (uint64_t)st.st_dev, w[1] = (uint64_t)st.st_ino, w[2] = (uint64_t)st.st_size;
    w[3] = (uint64_t)st.st_mtim.tv_sec, w[4] = (uint64_t)st.st_mtim.tv_nsec;
    return str_hash(str_of(w, sizeof w)) | 1;
}

/* Appends the file to out. 0, or -1 with err. */
static int kc_file_read(const char *path, struct str_builder *out, size_t max, struct log_err *err)
{
    int fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY, 0);
    size_t before = out->n;
    long n;

    if (fd < 0) return log_fail(err, "%s: %s", path, strerror(-fd));
    do {
        uint8_t *p = str_room(out, 4096);

        if (!p) n = -ENOMEM;
        else n = sys_read(fd, p, 4096);
        if (n > 0) out->n += (size_t)n;
    } while ((n > 0 && out->n - before <= max) || n == -EINTR);
    sys_close(fd);
    if (n < 0) return log_fail(err, "%s: %s", path, strerror((int)-n));
    return n ? log_fail(err, "%s: more than %zu bytes", path, max) : 0;
}

/* Whether the file must be read (again); the new stamp is noted. */
static bool kc_file_changed(struct kc_file *f, bool force)
{
    uint64_t stamp = f->path ? kc_file_stamp(f->path) : 0;

    if (!f->path || (stamp == f->stamp && !force)) return false;
    f->stamp = stamp;
    return true;
}

/* ---- configuration ---- */

static void kc_builder_wipe(struct str_builder *b)
{
    cry_wipe(b->p, b->cap);
    b->n = 0;
}

static void kc_fini(struct kc_config *c)
{
    kc_builder_wipe(&c->token);
    str_free(&c->token);
    cry_wipe((void *)(uintptr_t)c->key_pem.p, c->key_pem.n);
    cry_anchors_put(c->anchors);
    cry_identity_put(c->identity);
    mem_arena_free(&c->arena);
    *c = (struct kc_config){0};
}

/* A token as it may stand in a header field. */
static int kc_set_token(struct kc_config *c, struct str s, struct log_err *err)
{
    while (s.n && s.p[s.n - 1] <= ' ') s.n--;
    while (s.n && s.p[0] <= ' ') s = str_from(s, 1);
    if (!s.n) return log_fail(err, "the token is empty");
    if (s.n > KC_TOKEN_BYTES_MAX) return log_fail(err, "a token of more than %d bytes", KC_TOKEN_BYTES_MAX);
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] >= 0x7f) return log_fail(err, "the token holds a space or a byte that is no ASCII");
    kc_builder_wipe(&c->token);
    str_put(&c->token, s);
    c->changes++;
    return 0;
}

static int kc_load_token(struct kc_config *c, struct log_err *err)
{
    struct str_builder b = str_growing();
    int rc = kc_file_read(c->token_file.path, &b, KC_TOKEN_BYTES_MAX + 2, err);

    if (rc >= 0 && (rc = kc_set_token(c, str_built(&b), err)) < 0) log_wrap(err, "%s", c->token_file.path);
    kc_builder_wipe(&b);
    str_free(&b);
    return rc;
}

static int kc_load_ca(struct kc_config *c, struct log_err *err)
{
    struct str_builder b = str_growing();
    struct cry_anchors *a = NULL;
    const char *where = c->ca_file.path ? c->ca_file.path : "certificate-authority-data";

    if (!c->ca_file.path) str_put(&b, c->ca_pem);
    if (!c->ca_file.path || kc_file_read(c->ca_file.path, &b, KC_FILE_BYTES_MAX, err) == 0) {
        a = cry_anchors_new(str_built(&b), err);
        if (!a) log_wrap(err, "%s", where);
    }
    str_free(&b);
    if (!a) return -1;
    if (cry_anchors_skipped(a)) log_warn("k8s", "%s: %u certificates of an unsupported kind are left out", where, cry_anchors_skipped(a));
    cry_anchors_put(c->anchors);
    c->anchors = a;
    c->changes++;
    return 0;
}

static int kc_load_identity(struct kc_config *c, struct log_err *err)
{
    struct str_builder cert = str_growing(), key = str_growing();
    struct cry_identity *id = NULL;
    int rc = 0;

    if (c->cert_file.path) rc = kc_file_read(c->cert_file.path, &cert, KC_FILE_BYTES_MAX, err);
    else str_put(&cert, c->cert_pem);
    if (rc == 0 && c->key_file.path) rc = kc_file_read(c->key_file.path, &key, KC_FILE_BYTES_MAX, err);
    else if (rc == 0) str_put(&key, c->key_pem);
    if (rc == 0 && !(id = cry_identity_new(str_built(&cert), str_built(&key), err)))
        rc = log_wrap(err, "client certificate %s", c->cert_file.path ? c->cert_file.path : "client-certificate-data");
    str_free(&cert);
    kc_builder_wipe(&key);
    str_free(&key);
    if (rc < 0) return -1;
    cry_identity_put(c->identity);
    c->identity = id;
    c->changes++;
    return 0;
}

/* Reads again what has changed on disk (force: everything). What cannot be read keeps its last value: then -1 with err, which is told
 * once per change of the file; 0 otherwise. Token, CA and client certificates rotate while the process runs. */
static int kc_refresh(struct kc_config *c, bool force, struct log_err *err)
{
    bool cert = kc_file_changed(&c->cert_file, force), key = kc_file_changed(&c->key_file, force);
    int rc = 0;

    if (kc_file_changed(&c->token_file, force) && kc_load_token(c, err) < 0) rc = -1;
    if (kc_file_changed(&c->ca_file, force) && kc_load_ca(c, rc < 0 ? NULL : err) < 0) rc = -1;
    if ((cert || key) && kc_load_identity(c, rc < 0 ? NULL : err) < 0) rc = -1;
    return rc;
}

/* The first reading: everything that is named must be there. */
static int kc_load(struct kc_config *c, struct log_err *err)
{
    if (kc_refresh(c, true, err) < 0) return -1;
    if (c->ca_pem.n && !c->ca_file.path && kc_load_ca(c, err) < 0) return -1;
    if (c->cert_pem.n && !c->identity && kc_load_identity(c, err) < 0) return -1;
    if (c->tls && !c->insecure && !c->anchors)
        return log_fail(err, "no certificate authority: expected certificate-authority, certificate-authority-data or insecure-skip-tls-verify");
    return 0;
}

static const char *kc_join_path(struct mem_arena *a, struct str dir, struct str name)
{
    struct str_builder b = str_growing();
    struct str s;

    if (dir.n && !str_starts(name, S("/"))) {
        str_put(&b, dir);
        if (dir.p[dir.n - 1] != '/') str_put_c(&b, '/');
    }
    str_put(&b, name);
    s = str_dup(a, str_built(&b));
    str_free(&b);
    return (const char *)s.p;
}

/* The host of a URL: an address, or a name of letters, digits, '-', '.' and '_'. */
static bool kc_host_ok(struct str host)
{
    if (!host.n || host.n > 253) return false;
    for (size_t i = 0; i < host.n; i++) {
        uint8_t c = str_lower(host.p[i]);

        if (!str_is_digit(c) && !(c >= 'a' && c <= 'z') && c != '-' && c != '.' && c != '_') return false;
    }
    return true;
}

/* Takes an API server's URL apart: http or https, host, port, path prefix. */
static int kc_set_server(struct kc_config *c, struct str url, struct log_err *err)
{
    struct str rest, host;
    size_t at;

    c->server = str_dup(&c->arena, url);
    rest = c->server;
    if (str_starts(rest, S("https://"))) c->tls = true, rest = str_from(rest, 8);
    else if (str_starts(rest, S("http://"))) rest = str_from(rest, 7);
    else return log_fail(err, "server `" STR_FMT "`: expected http:// or https://", STR_ARG(url));
    at = str_find(rest, '/');
    c->prefix = str_from(rest, at);
    while (c->prefix.n && c->prefix.p[c->prefix.n - 1] == '/') c->prefix.n--;
    for (size_t i = 0; i < c->prefix.n; i++)
        if (c->prefix.p[i] <= ' ' || c->prefix.p[i] >= 0x7f || c->prefix.p[i] == '?' || c->prefix.p[i] == '#')
            return log_fail(err, "server `" STR_FMT "`: a path with a query, a fragment or bytes that must be escaped", STR_ARG(url));
    rest.n = at;
    c->port = c->tls ? 443 : 80;
    host = rest;
    if (rest.n && rest.p[rest.n - 1] != ']' && str_find(rest, ':') < rest.n && !str_to_host_port(rest, &host, &c->port))
        return log_fail(err, "server `" STR_FMT "`: expected HOST:PORT with a port of 1 to 65535 (an IPv6 address in brackets)", STR_ARG(url));
    if (!str_to_ip(host, &c->ip)) {
        c->ip = (struct net_addr){0};
        if (!kc_host_ok(host)) return log_fail(err, "server `" STR_FMT "`: a bad host name", STR_ARG(url));
        c->tls_name = host;
    }
    if (host.n && host.p[0] == '[') host = str_of(host.p + 1, host.n - 2);
    c->host = host;
    c->tls_ip = c->ip;
    c->ip.port = c->port;
    return 0;
}

/* The service account of the pod: KUBERNETES_SERVICE_HOST and _PORT as the caller found them, and the folder with token, ca.crt and
 * namespace. The certificate must be for kubernetes.default.svc, or for the host. Returns 0, or -1 with err; then c is empty. */
static int kc_from_cluster(struct kc_config *c, const char *host, const char *port, const char *dir, struct log_err *err)
{
    struct str_builder b = str_growing();
    struct log_err ignored;
    int rc;

    *c = (struct kc_config){.token = str_growing()};
    c->source = str_dup(&c->arena, str_z(dir));
    if (!host || !*host || !port || !*port) {
        rc = log_fail(err, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set");
        goto out;
    }
    str_putf(&b, strchr(host, ':') && *host != '[' ? "https://[%s]:%s" : "https://%s:%s", host, port);
    if ((rc = kc_set_server(c, str_built(&b), err)) < 0) goto out;
    c->alt_name = c->tls_name;
    c->tls_name = S("kubernetes.default.svc");
    c->token_file.path = kc_join_path(&c->arena, c->source, S("token"));
    c->ca_file.path = kc_join_path(&c->arena, c->source, S("ca.crt"));
    b.n = 0;
    if (kc_file_read(kc_join_path(&c->arena, c->source, S("namespace")), &b, 256, &ignored) == 0)
        c->ns = str_dup(&c->arena, str_trim(str_of(b.p, str_find(str_built(&b), '\n'))));
    if ((rc = kc_load(c, err)) < 0) log_wrap(err, "service account");
out:
    str_free(&b);
    if (rc < 0) kc_fini(c);
    return rc;
}

/* ---- kubeconfig ---- */

/* The element of a list of {name, VALUE} whose name fits, or NULL. */
static const struct json_node *kc_named(const struct json_node *root, struct str list, struct str name, struct str value)
{
    const struct json_node *n = json_find(root, list);

    if (!n || n->type != JSON_ARRAY) return NULL;
    for (n = n->child; n; n = n->next)
        if (str_eq(json_find_text(n, S("name")), name)) return json_find(n, value);
    return NULL;
}

/* A text member; false with err when it is there and of another type. */
static bool kc_text(const struct json_node *n, struct str key, struct str *out, struct log_err *err)
{
    const struct json_node *c = json_find(n, key);

    *out = c && c->type == JSON_STRING ? c->text : (struct str){0};
    if (!c || c->type == JSON_STRING || c->type == JSON_NULL) return true;
    log_fail(err, "line %u: " STR_FMT ": found %s, expected a string", c->line, STR_ARG(key), json_type_name(c->type));
    return false;
}

/* FIELD (a path, relative to the file's folder) or FIELD-data (base64); data wins, as in kubectl. */
static bool kc_file_or_data(struct kc_config *c, const struct json_node *n, const char *field, struct str dir, struct kc_file *file,
                             struct str *data, struct log_err *err)
{
    char data_field[64];
    struct str s;
    uint8_t *p;
    long len;

    snprintf(data_field, sizeof data_field, "%s-data", field);
    if (!kc_text(n, str_z(data_field), &s, err)) return false;
    if (s.n) {
        p = mem_arena_alloc(&c->arena, s.n / 4 * 3 + 3);
        len = str_from_base64(s, p);
        if (len < 0) log_fail(err, "%s: not base64", data_field);
        *data = str_of(p, len > 0 ? (size_t)len : 0);
        return len >= 0;
    }
    if (!kc_text(n, str_z(field), &s, err)) return false;
    if (s.n) file->path = kc_join_path(&c->arena, dir, s);
    return true;
}

static int kc_cluster(struct kc_config *c, const struct json_node *n, struct str dir, struct log_err *err)
{
    const struct json_node *skip = json_find(n, S("insecure-skip-tls-verify"));
    struct str s;

    if (!kc_text(n, S("server"), &s, err)) return -1;
    if (!s.n) return log_fail(err, "server is missing");
    if (kc_set_server(c, s, err) < 0) return -1;
    if (json_find(n, S("proxy-url"))) return log_fail(err, "proxy-url is not supported");
    if (skip && skip->type != JSON_BOOL) return log_fail(err, "insecure-skip-tls-verify: found %s, expected true or false", json_type_name(skip->type));
    c->insecure = skip && skip->flag;
    if (!kc_file_or_data(c, n, "certificate-authority", dir, &c->ca_file, &c->ca_pem, err)) return -1;
    if (c->insecure && (c->ca_file.path || c->ca_pem.n)) return log_fail(err, "insecure-skip-tls-verify beside a certificate authority: expected one of them");
    if (!kc_text(n, S("tls-server-name"), &s, err)) return -1;
    if (s.n) {
        bool is_ip = str_to_ip(s, &c->tls_ip);

        if (!is_ip && !kc_host_ok(s)) return log_fail(err, "tls-server-name `" STR_FMT "`: a bad host name", STR_ARG(s));
        if (!is_ip) c->tls_ip = (struct net_addr){0};
        c->tls_name = (struct str){0};
        if (!is_ip) c->tls_name = str_dup(&c->arena, s);
    }
    return 0;
}

static int kc_user(struct kc_config *c, const struct json_node *n, struct str dir, struct log_err *err)
{
    static const struct { const char *field, *what; } unsupported[] = {
        {"as", "impersonation"}, {"auth-provider", "an auth provider"}, {"exec", "an exec plugin"}, {"password", "a password"}, {"username", "a user name"},
    };
    struct str token, file;

    for (size_t i = 0; i < RJ_COUNT(unsupported); i++)
        if (json_find(n, str_z(unsupported[i].field)))
            return log_fail(err, "%s (%s) is not supported; expected token, tokenFile or a client certificate", unsupported[i].field, unsupported[i].what);
    if (!kc_text(n, S("token"), &token, err) || !kc_text(n, S("tokenFile"), &file, err)) return -1;
    if (file.n) c->token_file.path = kc_join_path(&c->arena, dir, file);
    else if (token.n && kc_set_token(c, token, err) < 0) return -1;
    if (!kc_file_or_data(c, n, "client-certificate", dir, &c->cert_file, &c->cert_pem, err)) return -1;
    if (!kc_file_or_data(c, n, "client-key", dir, &c->key_file, &c->key_pem, err)) return -1;
    if ((c->cert_file.path || c->cert_pem.n) != (c->key_file.path || c->key_pem.n))
        return log_fail(err, "client-certificate and client-key: expected both or none");
    return 0;
}

static int kc_context(struct kc_config *c, const struct json_node *root, struct str context, struct str dir, struct log_err *err)
{
    const struct json_node *ctx, *cluster, *user;
    struct str cluster_name, user_name;

    if (!context.n && !kc_text(root, S("current-context"), &context, err)) return -1;
    if (!context.n) return log_fail(err, "no current-context, and no kube-context is set");
    ctx = kc_named(root, S("contexts"), context, S("context"));
    if (!ctx) return log_fail(err, "no context `" STR_FMT "`", STR_ARG(context));
    cluster_name = json_find_text(ctx, S("cluster"));
    user_name = json_find_text(ctx, S("user"));
    c->ns = str_dup(&c->arena, json_find_text(ctx, S("namespace")));
    cluster = kc_named(root, S("clusters"), cluster_name, S("cluster"));
    if (!cluster) return log_fail(err, "context `" STR_FMT "`: no cluster `" STR_FMT "`", STR_ARG(context), STR_ARG(cluster_name));
    if (kc_cluster(c, cluster, dir, err) < 0) return log_wrap(err, "cluster `" STR_FMT "`", STR_ARG(cluster_name));
    user = user_name.n ? kc_named(root, S("users"), user_name, S("user")) : NULL;
    if (user_name.n && !user) return log_fail(err, "context `" STR_FMT "`: no user `" STR_FMT "`", STR_ARG(context), STR_ARG(user_name));
    if (user && kc_user(c, user, dir, err) < 0) return log_wrap(err, "user `" STR_FMT "`", STR_ARG(user_name));
    return kc_load(c, err);
}

/* A kubeconfig text, YAML or JSON. path names it in errors and is what relative paths in it start from. context: empty is
 * current-context. Returns 0, or -1 with err; then c is empty. */
static int kc_from_text(struct kc_config *c, struct str text, const char *path, struct str context, struct log_err *err)
{
    struct mem_arena tree = {0};
    struct str first = text, dir = str_z(path);
    const struct json_node *root;
    int rc;

    *c = (struct kc_config){.token = str_growing()};
    c->source = str_dup(&c->arena, str_z(path));
    while (dir.n && dir.p[dir.n - 1] != '/') dir.n--;
    while (first.n && first.p[0] <= ' ') first = str_from(first, 1);
    root = first.n && first.p[0] == '{' ? json_parse(&tree, text, err) : yml_parse(&tree, text, err);
    if (!root) rc = -1;
    else if (root->type != JSON_OBJECT) rc = log_fail(err, "found %s, expected a kubeconfig", json_type_name(root->type));
    else rc = kc_context(c, root, context, dir, err);
    mem_arena_free(&tree);
    if (rc < 0) {
        log_wrap(err, "%s", path);
        kc_fini(c);
    }
    return rc;
}

static int kc_from_file(struct kc_config *c, const char *path, struct str context, struct log_err *err)
{
    struct str_builder b = str_growing();
    int rc = kc_file_read(path, &b, KC_FILE_BYTES_MAX, err);

    if (rc < 0) *c = (struct kc_config){0};
    else rc = kc_from_text(c, str_built(&b), path, context, err);
    kc_builder_wipe(&b);
    str_free(&b);
    return rc;
}

/* ============================================================================
 * k8s_ : Kubernetes list and watch
 *
 * Owns:    struct k8s, struct k8s_watch.
 * Calls:   sys_ mem_ str_ clk_ log_ io_ dns_ json_ http_ h1_ cry_ tls_ obj_ kc_
 * Threads: control.
 * Rules:   1. The store equals the API server within one watch delay; what is in it stays when the server is gone.
 *          2. Everything from the server is bounded and checked; garbage is logged and backed off from, never guessed at.
 *          3. The machine of a watch does no I/O: bytes and events in, a request, a delay or the end of the connection out.
 *          4. One log line per change of state, not per retry.
 * ========================================================================== */

static const struct { const char *name, *group, *plural; bool namespaced; } k8s_kinds[OBJ_KIND_COUNT] = {
#define X(id, name, group, plural, namespaced) [OBJ_##id] = {name, group, plural, namespaced},
    K8S_KINDS(X)
#undef X
};

/* ---- the machine of one watch ----
 *
 *   WAIT_RETRY      -> WAIT_LINK        [k8s_watch_due]     the back-off is over (or another watch reached the server)
 *   WAIT_LINK       -> WAIT_LIST_HEAD   [k8s_ask]           the connection is open, no version is known
 *   WAIT_LINK       -> WAIT_WATCH_HEAD  [k8s_ask]           the connection is open, a version is known
 *   WAIT_LIST_HEAD  -> WAIT_LIST_BODY   [k8s_on_head]       200
 *   WAIT_WATCH_HEAD -> WAIT_WATCH_BODY  [k8s_on_head]       200
 *   WAIT_*_HEAD     -> WAIT_ERROR_BODY  [k8s_on_head]       any other status
 *   WAIT_LIST_BODY  -> WAIT_LIST_HEAD   [k8s_list_end]      the next page
 *   WAIT_LIST_BODY  -> WAIT_WATCH_HEAD  [k8s_list_end]      the last page: what the list did not show is taken out of the store
 *   WAIT_WATCH_BODY -> WAIT_WATCH_HEAD  [k8s_watch_end]     the server ended the watch: go on from the last version, at once
 *   WAIT_*_HEAD     -> WAIT_LINK        [k8s_watch_ended]   a kept connection turned out to be dead: the same request on a new one
 *   WAIT_*_BODY     -> WAIT_LINK        [k8s_again]         the same, when the response does not let its connection live on
 *   any             -> WAIT_RETRY       [k8s_fail]          anything wrong; 410 forgets the version, so that a list follows
 *
 * A watch is made to last K8S_WATCH_S_MIN to _MAX seconds (timeoutSeconds) and is silent, hence dead, K8S_SILENT_MS later: at most 36 s
 * after it began, whatever the peer or the network does to it. That costs the server one cheap request per kind and half a minute, and
 * needs no probe, no second connection and no trust in TCP keepalive. The server's bookmark at the end of each watch also keeps the version young.
 *
 * Always: version is what everything in the store of this kind and namespace is at least as new as.  In *_HEAD and *_BODY: exactly one
 * request is unanswered.  drop is set in every step to WAIT_RETRY and WAIT_LINK that leaves a connection behind. */

enum k8s_at { K8S_AT_TOP, K8S_AT_ROOT, K8S_AT_ITEMS_VALUE, K8S_AT_ITEMS, K8S_AT_META_VALUE, K8S_AT_META, K8S_AT_META_TEXT,
              K8S_AT_OBJECT, K8S_AT_EVENT, K8S_AT_TYPE, K8S_AT_OBJECT_VALUE, K8S_AT_PLAIN, K8S_AT_CODE, K8S_AT_MESSAGE, K8S_AT_END };
enum k8s_event { K8S_NO_EVENT, K8S_ADDED, K8S_MODIFIED, K8S_DELETED, K8S_BOOKMARK, K8S_ERROR, K8S_UNKNOWN };

static void k8s_to(struct k8s_watch *w, enum k8s_state to)
{
    RJ_CHECK(to != K8S_WAIT_WATCH_HEAD || w->version.n);
    RJ_CHECK(to != K8S_WAIT_LIST_BODY || w->state == K8S_WAIT_LIST_HEAD);
    RJ_CHECK(to != K8S_WAIT_WATCH_BODY || w->state == K8S_WAIT_WATCH_HEAD);
    w->state = (uint8_t)to;
}

/* The name of a watch in log lines: "Ingress", or "Ingress in shop". */
static const char *k8s_watch_name(const struct k8s_watch *w, char out[128])
{
    if (w->ns.n) snprintf(out, 128, "%s in " STR_FMT, k8s_kinds[w->kind].name, STR_ARG(w->ns));
    else snprintf(out, 128, "%s", k8s_kinds[w->kind].name);
    return out;
}

static void k8s_set_text(struct str_builder *b, struct str s)
{
    b->n = 0;
    str_put(b, s);
}

static uint32_t k8s_retry_ms(struct k8s_watch *w, enum k8s_trouble trouble)
{
    uint32_t max = trouble == K8S_NO_LINK ? K8S_RETRY_LINK_MAX_MS : K8S_RETRY_MAX_MS, ms = K8S_RETRY_MS;
    uint32_t n = trouble == K8S_NO_LINK ? ++w->link_tries : trouble == K8S_GONE ? ++w->gone_tries : ++w->tries;

    if (trouble == K8S_NO_LINK) w->tries = 0;            /* what a server says while it starts is not the old trouble */
    if (trouble == K8S_GONE && n == 1) return 1;
    while (--n && ms < max) ms *= 2;
    if (ms > max) ms = max;
    ms = cry_random_range(ms / 2, ms);
    if (w->retry_after_s) ms = cry_random_range(w->retry_after_s * 1000, w->retry_after_s * 1000 + 250);
    w->retry_after_s = 0;
    return ms;
}

/* Whether what was refused may come right by a new token, CA or client certificate. */
static bool k8s_may_rotate(const struct k8s_watch *w)
{
    const struct kc_config *c = w->k8s->cfg;

    return w->trouble == K8S_REFUSED && (c->token_file.path || c->ca_file.path || c->cert_file.path);
}

/* Whether a line about another watch that is down tells the same. */
static bool k8s_is_told(const struct k8s_watch *w)
{
    const struct k8s *k = w->k8s;

    for (uint32_t i = 0; i < k->nwatches; i++) {
        const struct k8s_watch *o = &k->watches[i];

        if (o != w && o->told && !o->is_quiet && !o->up && o->trouble == w->trouble && !strcmp(o->why, w->why)) return true;
    }
    return false;
}

/* Logs why w is down: every sort of trouble once in a spell, however often it is met, and what all watches suffer alike only for one. */
static void k8s_tell_down(struct k8s_watch *w)
{
    unsigned bit = 1U << w->trouble;
    bool news = !w->told || (!(w->told & bit) && (w->trouble == K8S_REFUSED || w->k8s->now_ms - w->logged_ms >= K8S_LOG_MS));
    char name[128];

    if (!news) return;
    if (!k8s_is_told(w)) {
        log_warn("k8s", "%s: %s; retrying, the last state is kept", k8s_watch_name(w, name), w->why);
        w->is_quiet = false;
    } else if (!w->told) {
        w->is_quiet = true;
    }
    w->logged_ms = w->k8s->now_ms;
    w->told |= (uint8_t)bit;
}

/* The spells of the watches that are well again end, with one line for all of them; one whose trouble was told by another gets its own
 * line now if it still lasts. A spell ends only when the watch has been up for a while: one that flaps stays in it. Returns in how many
 * milliseconds to ask again; 0: when another watch comes up. */
static uint32_t k8s_calm(struct k8s *k)
{
    char text[512], name[128];
    struct str_builder b = str_fixed(text, sizeof text - 1);
    uint32_t next_ms = 0;

    for (uint32_t i = 0; i < k->nwatches; i++) {
        const struct k8s_watch *w = &k->watches[i];
        uint64_t up_ms = k->now_ms - w->up_ms;

        if (w->told && w->up && up_ms < K8S_HEALTHY_MS && K8S_HEALTHY_MS - up_ms > next_ms) next_ms = (uint32_t)(K8S_HEALTHY_MS - up_ms);
    }
    if (next_ms) return next_ms;
    for (uint32_t i = 0; i < k->nwatches; i++) {
        struct k8s_watch *w = &k->watches[i];

        if (!w->told || !w->up) continue;
        if (b.n + sizeof name < sizeof text) str_putf(&b, "%s%s", b.n ? ", " : "", k8s_watch_name(w, name));
        w->told = 0;
        w->is_quiet = false;
    }
    if (b.n) log_info("k8s", STR_FMT ": recovered, watching", STR_ARG(str_built(&b)));
    for (uint32_t i = 0; i < k->nwatches; i++) {
        struct k8s_watch *w = &k->watches[i];

        if (!b.n || w->up || !w->is_quiet || k8s_is_told(w)) continue;
        log_warn("k8s", "%s: %s; retrying, the last state is kept", k8s_watch_name(w, name), w->why);
        w->is_quiet = false;
    }
    return 0;
}

/* Something went wrong: notes and logs it (once per spell), gives the connection up and backs off. */
RJ_PRINTF(3, 4) static void k8s_fail(struct k8s_watch *w, enum k8s_trouble trouble, const char *fmt, ...)
{
    struct k8s_kind_stats *stats = &w->k8s->kind[w->kind];
    char name[128];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(w->why, sizeof w->why, fmt, ap);
    va_end(ap);
    if (w->state == K8S_WAIT_WATCH_BODY && w->k8s->now_ms - w->asked_ms >= K8S_HEALTHY_MS) w->tries = w->gone_tries = 0;
    if (trouble == K8S_GONE) {
        w->version.n = 0;
        w->cont.n = 0;
        w->pages = 0;
        stats->relists++;
        if (!w->gone_tries) log_info("k8s", "%s: %s: listing again", k8s_watch_name(w, name), w->why);
    } else {
        stats->failures++;
        memcpy(stats->last_error, w->why, sizeof stats->last_error);
        w->trouble = (uint8_t)trouble;
        w->up = false;
        k8s_tell_down(w);
    }
    w->trouble = (uint8_t)trouble;
    w->wait_ms = k8s_retry_ms(w, trouble);
    w->retry_at_ms = w->k8s->now_ms + w->wait_ms;
    w->cfg_changes = w->k8s->cfg->changes;
    if (k8s_may_rotate(w) && w->wait_ms > K8S_FILE_POLL_MS) w->wait_ms = K8S_FILE_POLL_MS;
    w->drop = true;
    k8s_to(w, K8S_WAIT_RETRY);
}

/* Percent-encodes what is not unreserved (RFC 3986 section 2.3). */
static void k8s_put_escaped(struct str_builder *b, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i], l = str_lower(c);

        if (str_is_digit(c) || (l >= 'a' && l <= 'z') || c == '-' || c == '.' || c == '_' || c == '~') {
            str_put_c(b, (char)c);
        } else {
            str_put_c(b, '%');
            str_put_hex(b, c, 2);
        }
    }
}

static void k8s_put_request(struct k8s_watch *w, bool watch, uint32_t timeout_s)
{
    const struct kc_config *c = w->k8s->cfg;
    struct str_builder *b = &w->request;
    bool colon = str_find(c->host, ':') < c->host.n;

    str_put(b, S("GET "));
    str_put(b, c->prefix);
    str_put_z(b, k8s_kinds[w->kind].group);
    if (w->ns.n) {
        str_put(b, S("/namespaces/"));
        k8s_put_escaped(b, w->ns);
    }
    str_put_c(b, '/');
    str_put_z(b, k8s_kinds[w->kind].plural);
    if (watch) {
        str_put(b, S("?watch=true&allowWatchBookmarks=true&resourceVersion="));
        k8s_put_escaped(b, str_built(&w->version));
        str_putf(b, "&timeoutSeconds=%u", timeout_s);
    } else {
        str_putf(b, "?limit=%d", K8S_PAGE);
        if (w->cont.n) str_put(b, S("&continue="));
        k8s_put_escaped(b, str_built(&w->cont));
    }
    str_put(b, S(" HTTP/1.1\r\nHost: "));
    str_putf(b, colon ? "[" STR_FMT "]" : STR_FMT, STR_ARG(c->host));
    if (c->port != (c->tls ? 443 : 80)) str_putf(b, ":%u", c->port);
    str_put(b, S("\r\nUser-Agent: ramjet/" RJ_VERSION "\r\nAccept: application/json\r\n"));
    if (c->token.n) {
        str_put(b, S("Authorization: Bearer "));
        str_put(b, str_built(&c->token));
        str_put(b, S("\r\n"));
    }
    str_put(b, S("\r\n"));
}

/* Asks for the next thing on an open connection: a page of the list while no version is known, else the watch. */
static void k8s_ask(struct k8s_watch *w)
{
    bool watch = w->version.n > 0;
    uint32_t timeout_s = cry_random_range(K8S_WATCH_S_MIN, K8S_WATCH_S_MAX);
    struct log_err err;

    if (kc_refresh(w->k8s->cfg, false, &err) < 0) log_warn("k8s", "%s; the last one is kept", err.text);
    if (!watch && !w->pages) {
        w->list_mark = ++w->k8s->mark;
        w->objects = 0;
    }
    w->head.n = 0;
    w->text.n = 0;
    w->status = 0;
    h1_head_init(&w->h1, false, HTTP_GET);
    k8s_put_request(w, watch, timeout_s);
    w->asked_ms = w->k8s->now_ms;
    w->deadline_ms = w->asked_ms + (watch ? timeout_s * 1000 + K8S_SILENT_MS : K8S_PAGE_MS);
    w->wait_ms = K8S_HEAD_MS;
    k8s_to(w, watch ? K8S_WAIT_WATCH_HEAD : K8S_WAIT_LIST_HEAD);
}

/* The response is over: the next request, on this connection if it lives on. */
static void k8s_again(struct k8s_watch *w)
{
    if (w->reuse) {
        k8s_ask(w);
        return;
    }
    w->drop = true;
    w->wait_ms = K8S_LINK_MS;
    k8s_to(w, K8S_WAIT_LINK);
}

/* ---- what the JSON text means ---- */

static const char *const k8s_event_names[] = {"", "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", ""};

static int k8s_bad_json(struct k8s_watch *w, const char *what)
{
    k8s_fail(w, K8S_GARBAGE, "%s: %s", w->state == K8S_WAIT_LIST_BODY ? "list" : "watch", what);
    return -1;
}

/* Bytes of the JSON text that are read. */
static uint64_t k8s_json_at(const struct k8s_watch *w) { return w->json.base + (uint64_t)(w->json.p - w->json.start); }

/* An element that cannot be kept, because it has no name or is no object. The others are not to suffer: it is told and left out. */
static int k8s_pass_over(struct k8s_watch *w, const char *why)
{
    bool list = w->state == K8S_WAIT_LIST_BODY;
    char name[128];

    log_warn("k8s", "%s: %s: %s; it is left out", k8s_watch_name(w, name), list ? "list" : "watch", why);
    if (!list && w->reader.version.n && w->reader.version.n <= K8S_TEXT_MAX) k8s_set_text(&w->version, w->reader.version);
    w->at = list ? K8S_AT_ITEMS : K8S_AT_EVENT;
    return 0;
}

static int k8s_object_begin(struct k8s_watch *w, const struct json_event *ev)
{
    w->object_from = k8s_json_at(w);
    w->at = K8S_AT_OBJECT;
    obj_reader_reset(&w->reader);
    return obj_reader_event(&w->reader, ev) < 0 ? k8s_pass_over(w, w->reader.err.text) : 0;
}

/* Why an object must not be used, or NULL. */
static const char *k8s_object_fault(const struct k8s_watch *w, const struct obj *o, struct str version)
{
    if (!o) return w->reader.err.text;
    if (o->kind != w->kind) return "an object of another kind";
    if (w->ns.n && !str_eq(o->ns, w->ns)) return "an object of another namespace";
    if (!version.n || version.n > K8S_TEXT_MAX) return "an object without metadata.resourceVersion";
    return w->state == K8S_WAIT_LIST_BODY && w->objects == K8S_OBJECTS_MAX ? "too many objects" : NULL;
}

/* A whole object: into the store, or out of it. */
static int k8s_object_end(struct k8s_watch *w)
{
    struct k8s *k = w->k8s;
    struct obj *o = obj_reader_take(&w->reader);
    const char *fault = k8s_object_fault(w, o, w->reader.version);

    if (fault) {
        obj_free(o);
        return k8s_bad_json(w, fault);
    }
    k->kind[w->kind].last_event_ns = k->event_ns;
    if (w->state == K8S_WAIT_LIST_BODY) {
        o->mark = w->list_mark;
        w->objects++;
        w->at = K8S_AT_ITEMS;
        obj_store_put(k->store, o);
        return 0;
    }
    w->tries = w->gone_tries = 0;
    w->at = K8S_AT_EVENT;
    k->kind[w->kind].events++;
    k8s_set_text(&w->version, w->reader.version);
    if (w->event == K8S_DELETED) {
        obj_store_remove(k->store, (enum obj_kind)w->kind, o->key);
        obj_free(o);
    } else {
        obj_store_put(k->store, o);
    }
    return 0;
}

/* The object of a BOOKMARK or an ERROR has been read. */
static int k8s_plain_end(struct k8s_watch *w)
{
    w->at = K8S_AT_EVENT;
    if (w->event == K8S_BOOKMARK) {
        if (!w->next_version.n) return k8s_bad_json(w, "a bookmark without metadata.resourceVersion");
        w->tries = w->gone_tries = 0;
        k8s_set_text(&w->version, str_built(&w->next_version));
    }
    if (w->event == K8S_ERROR) {
        if (w->code == 410) k8s_fail(w, K8S_GONE, "410 in the watch");
        else k8s_fail(w, K8S_REFUSED, "watch: error %d " STR_FMT, w->code, (int)(w->text.n < 120 ? w->text.n : 120), (const char *)w->text.p);
        return -1;
    }
    return 0;
}

/* A key of the list, of an event, of metadata, or of a Status: what its value is for. */
static void k8s_on_key(struct k8s_watch *w, struct str key)
{
    switch ((enum k8s_at)w->at) {
    case K8S_AT_ROOT:
        if (str_eq(key, S("items"))) w->at = K8S_AT_ITEMS_VALUE;
        else if (str_eq(key, S("metadata"))) w->at = K8S_AT_META_VALUE, w->meta_up = K8S_AT_ROOT;
        else json_skip(&w->json);
        return;
    case K8S_AT_META:
        w->in_continue = str_eq(key, S("continue"));
        if (w->in_continue || str_eq(key, S("resourceVersion"))) w->at = K8S_AT_META_TEXT;
        else json_skip(&w->json);
        return;
    case K8S_AT_EVENT:
        if (str_eq(key, S("type"))) w->at = K8S_AT_TYPE;
        else if (str_eq(key, S("object"))) w->at = K8S_AT_OBJECT_VALUE;
        else json_skip(&w->json);
        return;
    case K8S_AT_PLAIN:
        if (str_eq(key, S("metadata"))) w->at = K8S_AT_META_VALUE, w->meta_up = K8S_AT_PLAIN;
        else if (str_eq(key, S("code"))) w->at = K8S_AT_CODE;
        else if (str_eq(key, S("message"))) w->at = K8S_AT_MESSAGE;
        else json_skip(&w->json);
        return;
    default: json_skip(&w->json);
    }
}

static int k8s_on_type(struct k8s_watch *w, struct str type)
{
    if (w->event != K8S_NO_EVENT) return k8s_bad_json(w, "an event with two types");
    for (w->event = K8S_ADDED; w->event < K8S_UNKNOWN; w->event++)
        if (str_eq(type, str_z(k8s_event_names[w->event]))) break;
    w->at = K8S_AT_EVENT;
    return 0;
}

/* Values at each place. One flat switch. 0, or -1 when the response is given up. */
static int k8s_on_json(struct k8s_watch *w, const struct json_event *ev)
{
    bool scalar = ev->type == JSON_STRING || ev->type == JSON_NUMBER || ev->type == JSON_BOOL || ev->type == JSON_NULL;
    bool list = w->state == K8S_WAIT_LIST_BODY;
    uint64_t code;
    int rc;

    if (w->at == K8S_AT_OBJECT) {
        rc = obj_reader_event(&w->reader, ev);
        if (k8s_json_at(w) - w->object_from >= K8S_OBJECT_BYTES_MAX) return k8s_bad_json(w, "an object over the limit");
        return rc < 0 ? k8s_pass_over(w, w->reader.err.text) : rc ? k8s_object_end(w) : 0;
    }
    if (ev->type == JSON_KEY) {
        k8s_on_key(w, ev->text);
        return 0;
    }
    switch ((enum k8s_at)w->at) {
    case K8S_AT_TOP:
        if (ev->type == JSON_END && !list) return 0;
        if (ev->type != JSON_OBJECT) return k8s_bad_json(w, "found something else than an object");
        w->at = list ? K8S_AT_ROOT : K8S_AT_EVENT;
        w->event = K8S_NO_EVENT;
        return 0;
    case K8S_AT_ROOT: w->at = K8S_AT_END; return 0;      /* only the end of the object is left */
    case K8S_AT_END: return 0;
    case K8S_AT_ITEMS_VALUE:
        if (ev->type != JSON_ARRAY && ev->type != JSON_NULL) return k8s_bad_json(w, "items: expected an array");
        w->at = ev->type == JSON_ARRAY ? K8S_AT_ITEMS : K8S_AT_ROOT;
        return 0;
    case K8S_AT_ITEMS:
        if (ev->type != JSON_ARRAY_END) return k8s_object_begin(w, ev);
        w->at = K8S_AT_ROOT;
        return 0;
    case K8S_AT_META_VALUE:
        if (ev->type != JSON_OBJECT) return k8s_bad_json(w, "metadata: expected an object");
        w->at = K8S_AT_META;
        w->next_version.n = 0;
        w->next_cont.n = 0;
        return 0;
    case K8S_AT_META: w->at = w->meta_up; return 0;      /* its end */
    case K8S_AT_META_TEXT:
        if (ev->type != JSON_STRING || ev->text.n > K8S_TEXT_MAX) return k8s_bad_json(w, "metadata: expected a short string");
        if (!w->in_continue) k8s_set_text(&w->next_version, ev->text);
        else k8s_set_text(&w->next_cont, ev->text);
        w->at = K8S_AT_META;
        return 0;
    case K8S_AT_EVENT: w->at = K8S_AT_TOP; return 0;     /* its end */
    case K8S_AT_TYPE: return ev->type == JSON_STRING ? k8s_on_type(w, ev->text) : k8s_bad_json(w, "type: expected a string");
    case K8S_AT_OBJECT_VALUE:
        if (ev->type != JSON_OBJECT || w->event == K8S_NO_EVENT) return k8s_bad_json(w, "object: expected an object behind type");
        if (w->event <= K8S_DELETED) return k8s_object_begin(w, ev);
        w->at = K8S_AT_PLAIN;
        w->code = 0;
        w->text.n = 0;
        w->next_version.n = 0;
        return 0;
    case K8S_AT_PLAIN: return k8s_plain_end(w);
    case K8S_AT_CODE:
        if (!scalar) return k8s_bad_json(w, "code: expected a number");
        w->code = ev->type == JSON_NUMBER && str_to_u64(ev->text, &code) && code < 1000 ? (int)code : 0;
        w->at = K8S_AT_PLAIN;
        return 0;
    case K8S_AT_MESSAGE:
        if (!scalar) return k8s_bad_json(w, "message: expected a string");
        k8s_set_text(&w->text, str_of(ev->text.p, ev->text.n < K8S_TEXT_MAX ? ev->text.n : K8S_TEXT_MAX));
        w->at = K8S_AT_PLAIN;
        return 0;
    case K8S_AT_OBJECT: break;                           /* handled above */
    }
    return RJ_NEVER(true) ? k8s_bad_json(w, "lost in the text") : 0;
}

/* Content of a list or a watch; at_end: nothing follows. 0, or -1 when the response was given up. */
static int k8s_on_content(struct k8s_watch *w, struct str data, bool at_end)
{
    struct json_event ev;
    struct log_err err;
    int rc;

    if (data.n) json_feed(&w->json, data);
    if (at_end) json_finish(&w->json);
    while ((rc = json_next(&w->json, &ev)) == 1) {
        if (k8s_on_json(w, &ev) < 0) return -1;
        if (ev.type == JSON_END) return 0;
    }
    if (rc == RJ_BAD) {
        json_fail(&w->json, &err);
        return k8s_bad_json(w, err.text);
    }
    if (w->at == K8S_AT_OBJECT && k8s_json_at(w) - w->object_from >= K8S_OBJECT_BYTES_MAX) return k8s_bad_json(w, "an object over the limit");
    return 0;
}

/* ---- the ends of responses ---- */

static void k8s_list_end(struct k8s_watch *w)
{
    struct k8s *k = w->k8s;
    char name[128];

    w->pages++;
    if (!w->next_version.n) {
        k8s_bad_json(w, "no metadata.resourceVersion");
        return;
    }
    k8s_set_text(&w->cont, str_built(&w->next_cont));
    if (w->cont.n) {
        k8s_again(w);
        return;
    }
    obj_store_sweep(k->store, (enum obj_kind)w->kind, w->ns, w->list_mark); /* what it did not show has vanished */
    k8s_set_text(&w->version, str_built(&w->next_version));
    w->pages = 0;
    w->tries = 0;
    k->kind[w->kind].lists++;
    log_debug("k8s", "%s: %u objects at version " STR_FMT, k8s_watch_name(w, name), w->objects, STR_ARG(str_built(&w->version)));
    k8s_again(w);
    if (w->listed) return;
    w->listed = true;
    if (--k->missing) return;
    k->is_synced = true;
    if (k->synced) k->synced(k->arg);
}

/* The server ended the watch. Several in a row that end at once mean that something is wrong with it, the more so without an event: then
 * not in a hot loop. */
static void k8s_watch_end(struct k8s_watch *w)
{
    w->quick = w->k8s->now_ms - w->asked_ms >= 1000 ? 0 : w->quick + (w->event == K8S_NO_EVENT ? 8 : 1);
    if (!w->quick) w->tries = w->gone_tries = 0;
    if (w->quick >= 32) k8s_fail(w, K8S_LOST, "the server ends watches at once");
    else k8s_again(w);
}

/* A Status behind a status other than 200 is complete. */
static void k8s_refused(struct k8s_watch *w)
{
    struct mem_arena arena = {0};
    struct log_err err;
    struct json_node *n = json_parse(&arena, str_built(&w->text), &err);
    struct str message = json_find_text(n, S("message"));
    bool list = !w->version.n;

    if (!message.n && !n) message = str_of(w->text.p, str_find(str_built(&w->text), '\n')); /* what is no API server says */
    if (message.n > 120) message.n = 120;
    if (w->status == 401 && kc_refresh(w->k8s->cfg, false, &err) < 0) log_warn("k8s", "%s", err.text);
    if (w->status == 410 || (w->status == 400 && !list)) k8s_fail(w, K8S_GONE, "%u for the %s", w->status, list ? "list" : "watch");
    else k8s_fail(w, K8S_REFUSED, "%s: %u%s" STR_FMT, list ? "list" : "watch", w->status, message.n ? " " : "", STR_ARG(message));
    mem_arena_free(&arena);
}

static void k8s_response_end(struct k8s_watch *w)
{
    switch ((enum k8s_state)w->state) {
    case K8S_WAIT_LIST_BODY:
        if (k8s_on_content(w, (struct str){0}, true) == 0) k8s_list_end(w);
        return;
    case K8S_WAIT_WATCH_BODY:
        if (k8s_on_content(w, (struct str){0}, true) == 0) k8s_watch_end(w);
        return;
    case K8S_WAIT_ERROR_BODY: k8s_refused(w); return;
    case K8S_WAIT_RETRY: case K8S_WAIT_LINK: case K8S_WAIT_LIST_HEAD: case K8S_WAIT_WATCH_HEAD: return;
    }
}

/* ---- HTTP ---- */

static void k8s_read_retry_after(struct k8s_watch *w)
{
    const struct http_msg *m = &w->h1.msg;
    uint64_t s;

    for (uint32_t i = 0; i < m->nfields; i++) {
        const struct http_field *f = &m->field[i];

        if (!str_ieq(str_of(w->head.p + f->name_at, f->name_n), S("retry-after"))) continue;
        if (str_to_u64(str_of(w->head.p + f->value_at, f->value_n), &s)) w->retry_after_s = s < K8S_RETRY_AFTER_MAX_S ? (uint32_t)s : K8S_RETRY_AFTER_MAX_S;
    }
}

/* Another watch is answered: whoever waits for the server to come back need not wait on. */
static void k8s_wake_others(struct k8s_watch *w)
{
    struct k8s *k = w->k8s;

    for (uint32_t i = 0; i < k->nwatches; i++) {
        struct k8s_watch *o = &k->watches[i];

        if (o != w && o->state == K8S_WAIT_RETRY && o->trouble == K8S_NO_LINK && o->link_tries) o->wake = true;
    }
}

/* A spell may end in so many milliseconds. */
static void k8s_calm_arm(struct k8s *k, uint32_t ms)
{
    if (k->loop && ms && !k->calm.deadline_ms) clk_arm(&k->loop->clk, &k->calm, ms);
}

static void k8s_on_calm(struct clk_timer *t)
{
    struct k8s *k = RJ_CONTAINER(t, struct k8s, calm);

    k->now_ms = k->loop->clk.now_ms;
    k8s_calm_arm(k, k8s_calm(k));
}

static void k8s_on_head(struct k8s_watch *w)
{
    const struct http_msg *m = &w->h1.msg;
    bool list = w->state == K8S_WAIT_LIST_HEAD;

    w->status = m->status;
    w->reuse = m->keep_alive && m->framing != HTTP_BODY_EOF;
    w->answers++;
    if (w->link_tries) k8s_wake_others(w);
    w->link_tries = 0;
    h1_body_init(&w->body, (enum http_framing)m->framing, m->length);
    if (m->status != 200) {
        w->retry_after_s = 0;
        k8s_read_retry_after(w);
        w->wait_ms = K8S_HEAD_MS;
        k8s_to(w, K8S_WAIT_ERROR_BODY);
        return;
    }
    json_fini(&w->json);
    json_init(&w->json, K8S_OBJECT_BYTES_MAX, !list);
    w->at = K8S_AT_TOP;
    w->next_version.n = 0;
    w->next_cont.n = 0;
    w->wait_ms = list ? K8S_BODY_MS : (uint32_t)(w->deadline_ms > w->k8s->now_ms ? w->deadline_ms - w->k8s->now_ms : 1);
    k8s_to(w, list ? K8S_WAIT_LIST_BODY : K8S_WAIT_WATCH_BODY);
    if (list) return;
    w->event = K8S_NO_EVENT;
    if (!w->up) w->up_ms = w->k8s->now_ms;
    w->up = true;
    if (w->told) k8s_calm_arm(w->k8s, K8S_HEALTHY_MS);
    w->k8s->kind[w->kind].last_error[0] = 0;
}

/* Takes what belongs to the head off *in. */
static void k8s_feed_head(struct k8s_watch *w, struct str *in)
{
    static const struct h1_limits limits = {.line_bytes = 8192, .head_bytes = K8S_HEAD_BYTES_MAX, .fields = HTTP_FIELDS_MAX};
    size_t before = w->head.n, n = in->n < K8S_HEAD_BYTES_MAX + 1 - before ? in->n : K8S_HEAD_BYTES_MAX + 1 - before;
    int rc;

    str_put(&w->head, str_of(in->p, n));
    rc = w->body.in_trailer ? h1_trailer_feed(&w->h1, w->head.p, w->head.n, &limits) : h1_response_feed(&w->h1, w->head.p, w->head.n, &limits);
    if (rc < 0) {
        k8s_fail(w, K8S_GARBAGE, "not an HTTP response: %s", w->h1.why ? w->h1.why : "malformed");
        return;
    }
    if (rc == RJ_MORE) {
        *in = str_from(*in, n);
        return;
    }
    *in = str_from(*in, (size_t)rc - before);
    w->head.n = (size_t)rc;
    if (w->body.in_trailer) {
        w->body.in_trailer = false;
        k8s_response_end(w);
    } else if (w->h1.msg.status >= 200) {
        k8s_on_head(w);
        if (w->body.done) k8s_response_end(w);
    } else if (w->h1.msg.status == 101) {
        k8s_fail(w, K8S_GARBAGE, "101 to a plain GET");
    } else {
        w->head.n = 0;
        h1_head_init(&w->h1, false, HTTP_GET);
    }
}

/* Takes the next piece of the body off *in. */
static void k8s_feed_body(struct k8s_watch *w, struct str *in)
{
    struct str data;
    long n = h1_body_feed(&w->body, in->p, in->n, &data);

    if (n < 0 || (n == 0 && !w->body.done)) {
        k8s_fail(w, K8S_GARBAGE, "a malformed body: %s", w->body.why ? w->body.why : "no progress");
        return;
    }
    *in = str_from(*in, (size_t)n);
    if (w->state == K8S_WAIT_ERROR_BODY) {
        if (data.n <= K8S_ERROR_BYTES_MAX - w->text.n) str_put(&w->text, data);
    } else if (data.n) {
        if (w->state == K8S_WAIT_LIST_BODY) w->wait_ms = K8S_BODY_MS;
        if (k8s_on_content(w, data, false) < 0) return;
        if (w->state == K8S_WAIT_LIST_BODY && w->k8s->now_ms >= w->deadline_ms) {
            k8s_fail(w, K8S_LOST, "list: a page that takes more than %d s", K8S_PAGE_MS / 1000);
            return;
        }
    }
    if (!w->body.done) return;
    if (w->body.in_trailer) {
        w->head.n = 0;
        h1_head_init(&w->h1, false, HTTP_GET);
    } else {
        k8s_response_end(w);
    }
}

/* Bytes from the server, plaintext. Afterwards request, drop, wait_ms and state say what is to be done. */
static void k8s_watch_feed(struct k8s_watch *w, struct str in)
{
    while (in.n && !w->drop) {
        if (w->state == K8S_WAIT_LIST_HEAD || w->state == K8S_WAIT_WATCH_HEAD) k8s_feed_head(w, &in);
        else if (w->state < K8S_WAIT_LIST_HEAD) k8s_fail(w, K8S_GARBAGE, "bytes that nobody asked for");
        else if (w->body.in_trailer) k8s_feed_head(w, &in);
        else k8s_feed_body(w, &in);
    }
}

/* The connection is open. */
static void k8s_watch_opened(struct k8s_watch *w)
{
    w->answers = 0;
    k8s_ask(w);
}

/* The connection could not be opened; refused: there is a server, and it or we say no. */
static void k8s_watch_unreachable(struct k8s_watch *w, bool refused, const char *why) { k8s_fail(w, refused ? K8S_REFUSED : K8S_NO_LINK, "%s", why); }

/* The connection has ended. */
static void k8s_watch_ended(struct k8s_watch *w, const char *why)
{
    bool head = w->state == K8S_WAIT_LIST_HEAD || w->state == K8S_WAIT_WATCH_HEAD;

    if (w->state == K8S_WAIT_RETRY) {
        w->drop = true;
        return;
    }
    if (w->state == K8S_WAIT_LINK) {
        k8s_fail(w, K8S_NO_LINK, "connect: %s", why);
        return;
    }
    if (w->state == K8S_WAIT_ERROR_BODY) {
        k8s_refused(w);
        return;
    }
    if (!head && w->body.framing == HTTP_BODY_EOF && !w->body.done) {
        w->body.done = true;
        k8s_response_end(w);
        return;
    }
    if (head && !w->head.n && w->answers) {
        w->reuse = false;
        k8s_again(w);
        return;
    }
    k8s_fail(w, head && !w->head.n && !w->answers ? K8S_NO_LINK : K8S_LOST, "%s: %s", w->version.n ? "watch" : "list", why);
}

/* While something is refused that a new token, CA or client certificate may set right, their files are looked at several times a second,
 * and the back-off ends when one has been replaced. */
static bool k8s_waits_for_file(struct k8s_watch *w)
{
    struct kc_config *c = w->k8s->cfg;
    struct log_err err;

    if (!k8s_may_rotate(w) || w->k8s->now_ms >= w->retry_at_ms) return false;
    if (kc_refresh(c, false, &err) < 0) log_warn("k8s", "%s; the last one is kept", err.text);
    if (c->changes != w->cfg_changes) return false;
    w->wait_ms = w->retry_at_ms - w->k8s->now_ms < K8S_FILE_POLL_MS ? (uint32_t)(w->retry_at_ms - w->k8s->now_ms) : K8S_FILE_POLL_MS;
    return true;
}

/* The timer fired. */
static void k8s_watch_due(struct k8s_watch *w)
{
    switch ((enum k8s_state)w->state) {
    case K8S_WAIT_RETRY:
        if (k8s_waits_for_file(w)) return;
        w->wait_ms = K8S_LINK_MS;
        k8s_to(w, K8S_WAIT_LINK);
        return;
    case K8S_WAIT_LINK: k8s_fail(w, K8S_NO_LINK, "no connection within %d s", K8S_LINK_MS / 1000); return;
    case K8S_WAIT_LIST_HEAD:
    case K8S_WAIT_WATCH_HEAD: k8s_fail(w, K8S_LOST, "no response within %d s", K8S_HEAD_MS / 1000); return;
    case K8S_WAIT_LIST_BODY: k8s_fail(w, K8S_LOST, "list: nothing for %d s", K8S_BODY_MS / 1000); return;
    case K8S_WAIT_WATCH_BODY: k8s_fail(w, K8S_LOST, "watch: silent beyond its end"); return;
    case K8S_WAIT_ERROR_BODY: k8s_refused(w); return;
    }
}

/* ---- the connection under a watch ---- */

static void k8s_link_fail(struct k8s_watch *w, bool refused, const char *what, const char *why)
{
    char text[sizeof w->why], at[64];
    struct str_builder b = str_fixed(at, sizeof at - 1);

    if (w->peer.family) str_put_addr(&b, &w->peer);
    else str_put(&b, S("no address"));
    if (w->k8s->cfg->ip.family) snprintf(text, sizeof text, "%s " STR_FMT ": %s", what, STR_ARG(str_built(&b)), why);
    else snprintf(text, sizeof text, "%s " STR_FMT " (" STR_FMT "): %s", what, STR_ARG(w->k8s->cfg->host), STR_ARG(str_built(&b)), why);
    k8s_watch_unreachable(w, refused, text);
}

static void k8s_link_close(struct k8s_watch *w)
{
    if (w->dns) dns_unwatch(w->k8s->dns, w->dns);
    w->dns = NULL;
    if (w->tls) tls_free(w->tls);
    w->tls = NULL;
    w->wire.n = 0;
    if (w->link == K8S_LINK_NONE || w->link == K8S_LINK_CLOSING) return;
    if (w->link == K8S_LINK_RESOLVING) {
        w->link = K8S_LINK_NONE;
        return;
    }
    w->link = K8S_LINK_CLOSING;
    io_close(w->k8s->loop, &w->sock);
}

/* Hands what waits to the kernel. Requests are small and come one at a time, so this never holds more than a few KiB. */
static void k8s_link_flush(struct k8s_watch *w)
{
    struct mem_buf *b;

    if (w->outq.sending || !w->wire.n) return;
    b = mem_buf_alloc((uint32_t)w->wire.n);
    RJ_BUG_ON(!b);
    memcpy(b->data, w->wire.p, w->wire.n);
    b->len = (uint32_t)w->wire.n;
    w->wire.n = 0;
    io_outq_add(&w->outq, b->data, b->len, b);
    io_send(w->k8s->loop, &w->sock, &w->outq);
}

/* Moves ciphertext out, plaintext in, and the request of the machine into TLS, until nothing moves. */
static void k8s_link_pump(struct k8s_watch *w)
{
    bool moved = true;

    while (moved && !w->drop) {
        struct str s;
        size_t n;

        moved = false;
        while ((s = tls_take(w->tls)).n) {
            str_put(&w->wire, s);
            tls_took(w->tls, s.n);
            moved = true;
        }
        if (w->link == K8S_LINK_HANDSHAKE && w->tls->state == TLS_OPEN) {
            w->link = K8S_LINK_OPEN;
            k8s_watch_opened(w);
            moved = true;
        }
        if (w->request.n && (n = tls_write(w->tls, str_built(&w->request)))) {
            memmove(w->request.p, w->request.p + n, w->request.n - n);
            w->request.n -= n;
            if (!w->request.n) cry_wipe(w->request.p, w->request.cap); /* it held the token */
            tls_flush(w->tls);
            moved = true;
        }
        if ((s = tls_read(w->tls)).n) {
            k8s_watch_feed(w, s);
            tls_did_read(w->tls, s.n);
            moved = true;
        }
    }
}

/* Bytes from the network. */
static void k8s_link_received(struct k8s_watch *w, struct str in)
{
    if (!w->tls) {
        k8s_watch_feed(w, in);
        return;
    }
    while (in.n && !w->drop) {
        size_t n = tls_feed(w->tls, in);

        in = str_from(in, n);
        k8s_link_pump(w);
        if (w->drop) return;
        if (w->tls->state == TLS_FAILED) {
            if (w->link == K8S_LINK_HANDSHAKE) k8s_link_fail(w, true, "TLS to", w->tls->why);
            else k8s_watch_ended(w, w->tls->why);
            return;
        }
        if (w->tls->state == TLS_CLOSED) {
            k8s_watch_ended(w, "the server closed the connection");
            return;
        }
        if (!n && !tls_read(w->tls).n) {
            k8s_watch_ended(w, "TLS takes no more");
            return;
        }
    }
}

/* TCP is connected. */
static void k8s_link_connected(struct k8s_watch *w)
{
    const struct kc_config *c = w->k8s->cfg;
    struct tls_client_config t = {.anchors = c->anchors, .identity = c->identity, .name = c->tls_name, .alt_name = c->alt_name, .ip = c->tls_ip,
                                  .insecure = c->insecure};
    struct log_err err;

    io_recv_start(w->k8s->loop, &w->sock);
    if (!c->tls) {
        w->link = K8S_LINK_OPEN;
        k8s_watch_opened(w);
        return;
    }
    w->link = K8S_LINK_HANDSHAKE;
    w->tls = tls_client_new(&t, &err);
    if (!w->tls) k8s_link_fail(w, true, "TLS to", err.text);
    else k8s_link_pump(w);
}

/* Mutual recursion: what comes from a socket makes the machine ask for a new one, whose events come here. */
static void k8s_apply(struct k8s_watch *w);
static void k8s_on_sock(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct k8s_watch *w = RJ_CONTAINER(s, struct k8s_watch, sock);

    w->k8s->now_ms = w->k8s->loop->clk.now_ms;
    if (ev == IO_CLOSED) {
        io_outq_clear(&w->outq);
        w->link = K8S_LINK_NONE;
    } else if (w->link == K8S_LINK_CLOSING || w->drop) {
        return;
    } else if (ev == IO_CONNECT) {
        if (res < 0) k8s_link_fail(w, false, "connect to", strerror(-res));
        else k8s_link_connected(w);
    } else if (ev == IO_SENT) {
        io_outq_sent(&w->outq, res);
        if (res < 0) k8s_watch_ended(w, strerror(-res));
        else if (w->outq.bytes) io_send(w->k8s->loop, s, &w->outq);
    } else if (ev == IO_RECV && res > 0) {
        w->k8s->event_ns = sys_clock_ns(CLOCK_MONOTONIC);
        k8s_link_received(w, str_of(buf->data, (size_t)res));
    } else if (ev == IO_RECV && w->link == K8S_LINK_HANDSHAKE) {
        k8s_link_fail(w, false, "TLS to", res ? strerror(-res) : "the server closed the connection");
    } else if (ev == IO_RECV) {
        k8s_watch_ended(w, res ? strerror(-res) : "the server closed the connection");
    }
    k8s_apply(w);
}

static void k8s_link_connect(struct k8s_watch *w, const struct net_addr *to)
{
    int rc;

    w->peer = *to;
    w->peer.port = w->k8s->cfg->port;
    io_sock_init(&w->sock, k8s_on_sock);
    rc = io_tcp_connect(w->k8s->loop, &w->sock, &w->peer);
    if (rc < 0) {
        w->link = K8S_LINK_NONE;
        k8s_link_fail(w, false, "connect to", strerror(-rc));
        return;
    }
    w->link = K8S_LINK_CONNECTING;
    sys_setsockopt(w->sock.fd, SOL_SOCKET, SO_KEEPALIVE, 1); /* for the tables of what stands between; deadlines find dead peers */
    sys_setsockopt(w->sock.fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
    sys_setsockopt(w->sock.fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
}

static void k8s_on_resolved(void *arg, const struct net_addr *addrs, uint32_t n, const char *why)
{
    struct k8s_watch *w = arg;

    w->dns = NULL;
    w->k8s->now_ms = w->k8s->loop->clk.now_ms;
    if (n) k8s_link_connect(w, &addrs[w->addr_at++ % n]);
    else {
        w->link = K8S_LINK_NONE;
        k8s_link_fail(w, false, "resolve", why ? why : "no address");
    }
    k8s_apply(w);
}

static void k8s_link_open(struct k8s_watch *w)
{
    const struct kc_config *c = w->k8s->cfg;
    struct log_err err;

    if (kc_refresh(w->k8s->cfg, false, &err) < 0) log_warn("k8s", "%s; the last one is kept", err.text);
    w->peer = (struct net_addr){0};
    if (c->ip.family) {
        k8s_link_connect(w, &c->ip);
        return;
    }
    w->link = K8S_LINK_RESOLVING;
    w->dns = dns_resolve(w->k8s->dns, c->host, k8s_on_resolved, w);
}

/* Does what the machine's last step asks for. */
static void k8s_apply_one(struct k8s_watch *w)
{
    struct k8s *k = w->k8s;

    do {
        if (w->drop) k8s_link_close(w);
        if (w->drop) kc_builder_wipe(&w->request);
        w->drop = false;
        if (k->stopping) return;
        if (w->wake) clk_arm(&k->loop->clk, &w->timer, 1);
        else if (w->wait_ms) clk_arm(&k->loop->clk, &w->timer, w->wait_ms);
        w->wake = false;
        w->wait_ms = 0;
        if (w->state == K8S_WAIT_LINK && w->link == K8S_LINK_NONE) k8s_link_open(w);
        if (w->link == K8S_LINK_OPEN && w->request.n) {
            if (w->tls) {
                k8s_link_pump(w);
            } else {
                str_put(&w->wire, str_built(&w->request));
                kc_builder_wipe(&w->request);
            }
        }
        if (w->link != K8S_LINK_CLOSING && w->link != K8S_LINK_NONE && !w->drop) k8s_link_flush(w);
    } while (w->drop);
}

/* The same for it and for those that it woke. */
static void k8s_apply(struct k8s_watch *w)
{
    struct k8s *k = w->k8s;

    k8s_apply_one(w);
    for (uint32_t i = 0; i < k->nwatches; i++)
        if (k->watches[i].wake) k8s_apply_one(&k->watches[i]);
}

static void k8s_on_timer(struct clk_timer *t)
{
    struct k8s_watch *w = RJ_CONTAINER(t, struct k8s_watch, timer);

    w->k8s->now_ms = w->k8s->loop->clk.now_ms;
    if (w->link == K8S_LINK_CLOSING && w->state == K8S_WAIT_RETRY) {
        clk_arm(&w->k8s->loop->clk, &w->timer, 1);
        return;
    }
    k8s_watch_due(w);
    k8s_apply(w);
}

/* ---- the client ---- */

static void k8s_watch_init(struct k8s_watch *w, struct k8s *k, unsigned kind, struct str ns)
{
    *w = (struct k8s_watch){.k8s = k, .kind = (uint8_t)kind, .ns = ns, .state = K8S_WAIT_RETRY};
    w->version = w->next_version = w->cont = w->next_cont = w->head = w->text = w->request = w->wire = str_growing();
    w->timer.fire = k8s_on_timer;
    json_init(&w->json, K8S_OBJECT_BYTES_MAX, false);
    obj_reader_init(&w->reader, (uint8_t)kind, &w->json);
}

static void k8s_watch_fini(struct k8s_watch *w)
{
    struct str_builder *const all[] = {&w->version, &w->next_version, &w->cont, &w->next_cont, &w->head, &w->text, &w->request, &w->wire};

    kc_builder_wipe(&w->request);
    for (size_t i = 0; i < RJ_COUNT(all); i++) str_free(all[i]);
    json_fini(&w->json);
    obj_reader_fini(&w->reader);
}

/* Prepares the watches: every kind in each of the namespaces (none given: all), cluster-scoped kinds once. cfg, store and the names
 * are lent until k8s_stop has ended. No I/O yet. */
static void k8s_init(struct k8s *k, struct kc_config *cfg, struct obj_store *store, const struct str *ns, uint32_t nns)
{
    *k = (struct k8s){.cfg = cfg, .store = store, .calm.fire = k8s_on_calm};
    k->watches = mem_need((size_t)OBJ_KIND_COUNT * (nns ? nns : 1) * sizeof *k->watches);
    for (unsigned kind = 0; kind < OBJ_KIND_COUNT; kind++) {
        uint32_t n = k8s_kinds[kind].namespaced && nns ? nns : 1;

        for (uint32_t i = 0; i < n; i++)
            k8s_watch_init(&k->watches[k->nwatches++], k, kind, k8s_kinds[kind].namespaced && nns ? ns[i] : (struct str){0});
    }
    k->missing = k->nwatches;
}

/* Starts to list and watch on the loop. dns is needed when the server is named; synced is called once. */
static void k8s_start(struct k8s *k, struct io_loop *loop, struct dns *dns, void (*synced)(void *arg), void *arg)
{
    k->loop = loop;
    k->dns = dns;
    k->synced = synced;
    k->arg = arg;
    k->now_ms = loop->clk.now_ms;
    if (k->cfg->insecure) log_warn("k8s", STR_FMT ": the server's certificate is not verified (insecure-skip-tls-verify)", STR_ARG(k->cfg->server));
    log_info("k8s", "API server " STR_FMT " (" STR_FMT ")", STR_ARG(k->cfg->server), STR_ARG(k->cfg->source));
    for (uint32_t i = 0; i < k->nwatches; i++) {
        k8s_watch_due(&k->watches[i]);
        k8s_apply_one(&k->watches[i]);
    }
}

/* Closes the connections. Turn the loop until k8s_is_stopped, then k8s_fini. */
static void k8s_stop(struct k8s *k)
{
    k->stopping = true;
    if (k->loop) clk_drop(&k->loop->clk, &k->calm);
    for (uint32_t i = 0; i < k->nwatches; i++) {
        struct k8s_watch *w = &k->watches[i];

        w->drop = true;
        if (k->loop) {
            clk_drop(&k->loop->clk, &w->timer);
            k8s_apply_one(w);
        }
    }
}

static bool k8s_is_stopped(const struct k8s *k)
{
    for (uint32_t i = 0; i < k->nwatches; i++)
        if (k->watches[i].link != K8S_LINK_NONE) return false;
    return k->stopping;
}

static void k8s_fini(struct k8s *k)
{
    for (uint32_t i = 0; i < k->nwatches; i++) k8s_watch_fini(&k->watches[i]);
    mem_free(k->watches);
    *k = (struct k8s){0};
}


/* All watches of the kind are running. */
static bool k8s_is_up(const struct k8s *k, unsigned kind)
{
    for (uint32_t i = 0; i < k->nwatches; i++)
        if (k->watches[i].kind == kind && !k->watches[i].up) return false;
    return true;
}

/* One line for each watch that is not running: "Ingress: not listed yet: connect to ...: Connection refused". Nothing when all is well. */
static void k8s_render_state(const struct k8s *k, struct str_builder *b)
{
    char name[128];

    for (uint32_t i = 0; i < k->nwatches; i++) {
        const struct k8s_watch *w = &k->watches[i];

        if (w->up && w->listed) continue;
        str_putf(b, "%s: %s", k8s_watch_name(w, name), w->listed ? "not watching" : "not listed yet");
        if (!w->up && w->why[0]) str_putf(b, ": %s", w->why);
        str_put_c(b, '\n');
    }
}

/* The metrics of the client in the Prometheus text format. */
static void k8s_render_metrics(const struct k8s *k, struct str_builder *b)
{
    str_put(b, S("# HELP ramjet_kube_watch_up Whether all watches of the kind are running\n# TYPE ramjet_kube_watch_up gauge\n"));
    for (unsigned i = 0; i < OBJ_KIND_COUNT; i++) str_putf(b, "ramjet_kube_watch_up{kind=\"%s\"} %d\n", k8s_kinds[i].name, k8s_is_up(k, i));
    str_put(b, S("# HELP ramjet_kube_events_total Watch events of objects\n# TYPE ramjet_kube_events_total counter\n"));
    for (unsigned i = 0; i < OBJ_KIND_COUNT; i++)
        str_putf(b, "ramjet_kube_events_total{kind=\"%s\"} %llu\n", k8s_kinds[i].name, (unsigned long long)k->kind[i].events);
    str_put(b, S("# HELP ramjet_kube_relists_total Lists made again because a version had expired\n# TYPE ramjet_kube_relists_total counter\n"));
    for (unsigned i = 0; i < OBJ_KIND_COUNT; i++)
        str_putf(b, "ramjet_kube_relists_total{kind=\"%s\"} %llu\n", k8s_kinds[i].name, (unsigned long long)k->kind[i].relists);
}

/* ============================================================================
 * rt_ : Route table
 *
 * Owns:    struct rt_snapshot, struct rt_host, struct rt_backend; the published pointer rj.rt_live; rj.rt: history, slots.
 * Calls:   sys_ mem_ str_ map_ clk_ log_ rcu_ cfg_
 * Threads: built by control; read by every worker inside an epoch; never written after publication, but for leases and the
 *          time of the first request.
 * Rules:   1. A lookup allocates nothing, takes no lock and reads one snapshot.
 *          2. Hosts and backends are immutable blocks that snapshots share; a change replaces the blocks it touches.
 *          3. A snapshot's tables go once every worker has passed a later epoch, the snapshot once its leases are back too,
 *             and a block once no snapshot that could show it exists.
 * ========================================================================== */

/* ---- worker side ---- */

static inline uint64_t rt_load64(const uint8_t *p)
{
    uint64_t w;

    memcpy(&w, p, 8);
    return w;
}

static inline uint64_t rt_load32(const uint8_t *p)
{
    uint32_t w;

    memcpy(&w, p, 4);
    return w;
}

static inline uint64_t rt_fold(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The bytes' hash: a multiplication folded per 16 bytes, the last ones overlapping, so that no length needs a loop over bytes.
 * Not for secrets. */
static inline uint64_t rt_hash(const uint8_t *p, size_t n)
{
    const uint64_t k1 = 0xa0761d6478bd642fu, k2 = 0xe7037ed1a0b428dbu;
    uint64_t a = 0, b = 0, seed = k2;

    if (n > 16) {
        size_t left = n;

        for (; left > 16; left -= 16, p += 16) seed = rt_fold(rt_load64(p) ^ k1, rt_load64(p + 8) ^ seed);
        a = rt_load64(p + left - 16);
        b = rt_load64(p + left - 8);
    } else if (n >= 4) {
        size_t half = n >> 3 << 2;

        a = rt_load32(p) << 32 | rt_load32(p + half);
        b = rt_load32(p + n - 4) << 32 | rt_load32(p + n - 4 - half);
    } else if (n) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
    }
    return rt_fold(k1 ^ n, rt_fold(a ^ k1, b ^ seed));
}

/* Equal bytes? Words, the last one overlapping: musl's memcmp goes byte by byte, which made a lookup cost 57 ns instead of 32. */
static inline bool rt_same(const uint8_t *a, const uint8_t *b, size_t n)
{
    if (n >= 8) {
        for (size_t i = 0; i < n - 8; i += 8)
            if (rt_load64(a + i) != rt_load64(b + i)) return false;
        return rt_load64(a + n - 8) == rt_load64(b + n - 8);
    }
    if (n >= 4) return rt_load32(a) == rt_load32(b) && rt_load32(a + n - 4) == rt_load32(b + n - 4);
    return !n || (a[0] == b[0] && a[n / 2] == b[n / 2] && a[n - 1] == b[n - 1]);
}

/* What the tables know a host by: a wildcard by its suffix from the dot on, so that a lookup builds no name. */
enum { RT_WILD_SALT = 0x5bd1e995 };
static inline uint64_t rt_host_hash(struct str name)
{
    if (name.n > 1 && name.p[0] == '*') return rt_hash(name.p + 1, name.n - 1) ^ RT_WILD_SALT;
    return rt_hash(name.p, name.n);
}

/* The snapshot in service. Valid for this turn, and longer under a lease. */
static inline const struct rt_snapshot *rt_live(void)
{
    return atomic_load_explicit(&rj.rt_live, memory_order_acquire); /* rt_go_live's release */
}

/* A request of this worker holds the snapshot beyond this turn. */
static inline void rt_lease(const struct rt_snapshot *s, int worker)
{
    struct rt_lease *l = &s->lease[worker];

    RJ_CHECK(worker < s->workers);
    atomic_store_explicit(&l->n, atomic_load_explicit(&l->n, memory_order_relaxed) + 1, memory_order_relaxed); /* its only writer */
    atomic_thread_fence(memory_order_release); /* before this thread's next epoch; rcu_passed acquires that, then rt_is_leased reads n */
}

static inline void rt_release(const struct rt_snapshot *s, int worker)
{
    struct rt_lease *l = &s->lease[worker];
    uint32_t n = atomic_load_explicit(&l->n, memory_order_relaxed);

    RJ_CHECK(n > 0);
    atomic_store_explicit(&l->n, n - 1, memory_order_release); /* the reads are done; rt_is_leased acquires */
}

/* Notes when the snapshot served its first request. */
static inline void rt_served(const struct rt_snapshot *s)
{
    _Atomic uint64_t *first = (_Atomic uint64_t *)(uintptr_t)&s->first_request_ns; /* with leases all that workers write in it */

    if (RJ_LIKELY(atomic_load_explicit(first, memory_order_relaxed))) return;
    atomic_store_explicit(first, sys_clock_ns(CLOCK_MONOTONIC), memory_order_relaxed); /* a number for a report: no order needed */
}

static inline const struct rt_host *rt_hosts_find(const struct rt_hosts *t, uint64_t hash, struct str name)
{
    for (uint32_t at = (uint32_t)hash & t->mask; t->at[at].host; at = (at + 1) & t->mask) {
        const struct rt_host *h = t->at[at].host;

        if (t->at[at].hash != hash) continue;
        if (h->name.n == name.n && rt_same(h->name.p, name.p, name.n)) return h;
    }
    return NULL;
}

/* The wildcard *.SUFFIX for a suffix that begins with its dot. */
static inline const struct rt_host *rt_hosts_find_wild(const struct rt_hosts *t, struct str suffix)
{
    uint64_t hash = rt_hash(suffix.p, suffix.n) ^ RT_WILD_SALT;

    for (uint32_t at = (uint32_t)hash & t->mask; t->at[at].host; at = (at + 1) & t->mask) {
        const struct rt_host *h = t->at[at].host;

        if (t->at[at].hash != hash) continue;
        if (h->name.n == suffix.n + 1 && h->name.p[0] == '*' && rt_same(h->name.p + 1, suffix.p, suffix.n)) return h;
    }
    return NULL;
}

/* Exact name, else the wildcard of its suffix, else the rules for any host. */
static inline const struct rt_host *rt_find_host(const struct rt_snapshot *s, struct str host)
{
    const struct rt_host *h;
    size_t dot;

    if (!host.n || (host.n == 1 && host.p[0] == '*')) return s->any;
    h = rt_hosts_find(s->hosts, rt_hash(host.p, host.n), host);
    if (h) return h;
    dot = str_find(host, '.');
    if (dot && dot < host.n) h = rt_hosts_find_wild(s->hosts, str_from(host, dot));
    return h ? h : s->any;
}

/* True when the prefix p (without trailing slash) holds path by elements. */
static inline bool rt_prefix_fits(struct str p, struct str path)
{
    return p.n <= path.n && (p.n == path.n || p.n == 0 || path.p[p.n] == '/') && rt_same(p.p, path.p, p.n);
}

enum { RT_EXACT_SALT = 0x2545f491 };
static inline const struct rt_rule *rt_probe(const struct rt_host *h, struct str path, unsigned type)
{
    uint64_t hash = rt_hash(path.p, path.n) ^ (type == RT_EXACT ? RT_EXACT_SALT : 0);

    for (uint32_t at = (uint32_t)hash & h->mask; h->index[at].rule; at = (at + 1) & h->mask) {
        const struct rt_rule *r = &h->rule[h->index[at].rule - 1];

        if (h->index[at].tag == hash >> 32 && r->type == type && r->path.n == path.n && rt_same(r->path.p, path.p, path.n)) return r;
    }
    return NULL;
}

/* A host with many rules: the lengths that occur, from the longest down, and where the path has an element's end there, one probe. */
static const struct rt_rule *rt_find_indexed(const struct rt_host *h, struct str path)
{
    const uint64_t *exact = h->lengths + h->words;
    const struct rt_rule *r;
    size_t w = path.n / 64;
    uint64_t bits;

    if (w < h->words && exact[w] >> (path.n % 64) & 1 && (r = rt_probe(h, path, RT_EXACT))) return r;
    if (w < h->words) bits = h->lengths[w] & ((2ull << (path.n % 64)) - 1);
    else bits = h->lengths[w = h->words - 1];
    for (;;) {
        while (bits) {
            unsigned top = 63 - (unsigned)__builtin_clzll(bits);
            size_t n = w * 64 + top;

            bits ^= 1ull << top;
            if ((n == path.n || n == 0 || path.p[n] == '/') && (r = rt_probe(h, str_of(path.p, n), RT_PREFIX))) return r;
        }
        if (!w) return NULL;
        bits = h->lengths[--w];
    }
}

static inline const struct rt_rule *rt_find_rule(const struct rt_host *h, struct str path)
{
    if (h->index) return rt_find_indexed(h, path);
    for (uint32_t i = 0; i < h->n; i++) {
        const struct rt_rule *r = &h->rule[i];

        if (r->type == RT_EXACT ? r->path.n == path.n && rt_same(r->path.p, path.p, path.n) : rt_prefix_fits(r->path, path)) return r;
    }
    return NULL;
}

/* Finds the rule for a host (lower case, without port and the dot at the end; may be empty) and a path in normal form.
 * A host that has rules is not searched for elsewhere when none of them fits: the fallback answers, or nothing (404). */
static bool rt_find(const struct rt_snapshot *s, struct str host, struct str path, struct rt_match *out)
{
    const struct rt_host *h = rt_find_host(s, host);
    const struct rt_rule *r = h ? rt_find_rule(h, path) : NULL;

    if (!r && !(r = s->fallback)) return false;
    out->rule = r;
    out->backend = r->backend < s->backends->n ? s->backends->at[r->backend] : NULL;
    return true;
}

/* ---- slots: where backends stand, in every snapshot the same as long as a rule points there ---- */

static uint64_t rt_addr_hash(const struct net_addr *a) { return str_hash_mix(rt_hash(a->ip, 16), a->port); }

/* A place for the backend of that identity; owner is the compiler's. */
static uint32_t rt_slot_new(uint64_t ident, void *owner)
{
    struct rt_state *t = &rj.rt;
    uint32_t slot;

    if (t->free_slots) {
        slot = t->free_slots - 1;
        t->free_slots = t->slots[slot].next;
        t->nfree--;
    } else {
        if (t->nslots == t->slots_cap) {
            t->slots_cap = t->slots_cap + t->slots_cap / 2 + 16;
            t->slots = mem_realloc(t->slots, t->slots_cap * sizeof *t->slots);
            RJ_BUG_ON(!t->slots);
        }
        slot = t->nslots++;
    }
    t->slots[slot] = (struct rt_slot){.ident = ident, .owner = owner};
    return slot;
}

/* The next slot that no rule points to any more, or RT_NO_BACKEND. The caller frees it (rt_slot_free). */
static uint32_t rt_slot_dying(void)
{
    struct rt_state *t = &rj.rt;

    while (t->dying_slots) {
        uint32_t slot = t->dying_slots - 1;

        t->dying_slots = t->slots[slot].next;
        t->slots[slot].dying = false;
        if (!t->slots[slot].refs) return slot;
    }
    return RT_NO_BACKEND;
}

/* Has rt_slot_dying tell the slot if no rule points to it. */
static void rt_slot_check(uint32_t slot)
{
    struct rt_slot *s = &rj.rt.slots[slot];

    if (slot == RT_NO_BACKEND || s->refs || s->dying) return;
    s->dying = true;
    s->next = rj.rt.dying_slots;
    rj.rt.dying_slots = slot + 1;
}

/* Nothing but a snapshot that exists can show the block from now on. */
static void rt_block_retire(struct rt_block *b)
{
    b->gone = rj.rt.seq + 1;
    b->next = rj.rt.waiting;
    rj.rt.waiting = b;
    rj.rt.sweep = true;
}

static void rt_slot_free(uint32_t slot)
{
    struct rt_slot *s = &rj.rt.slots[slot];

    RJ_CHECK(!s->refs && !s->uses && !s->dying);
    if (s->latest) rt_block_retire(&s->latest->block);
    *s = (struct rt_slot){.next = rj.rt.free_slots, .free = true};
    rj.rt.free_slots = slot + 1;
    rj.rt.nfree++;
}

/* Gives back the free slots behind the last one in use, when they are most of all. True when there were any. */
static bool rt_trim_slots(void)
{
    struct rt_state *t = &rj.rt;
    uint32_t n = t->nslots;

    if (n < 64 || t->nfree < n - n / 4) return false;
    while (n && t->slots[n - 1].free) n--;
    if (n > t->slots_cap / 4) return false;
    t->free_slots = t->nfree = 0;
    for (uint32_t i = n; i--;) {
        if (!t->slots[i].free) continue;
        t->slots[i].next = t->free_slots;
        t->free_slots = i + 1;
        t->nfree++;
    }
    t->nslots = n;
    t->slots_cap = n + n / 2 + 16;
    t->slots = mem_realloc(t->slots, t->slots_cap * sizeof *t->slots);
    RJ_BUG_ON(!t->slots);
    return true;
}

/* ---- rules ---- */

static inline const void *rt_rules_at(const struct rt_rules *r, struct rt_span s) { return (const uint8_t *)r + s.at; }
static inline struct str rt_rules_text(const struct rt_rules *r, struct rt_span s) { return str_of((const uint8_t *)r + s.at, s.n); }

static inline int rt_number_cmp(const uint64_t a[2], const uint64_t b[2])
{
    if (a[0] != b[0]) return a[0] < b[0] ? -1 : 1;
    return a[1] < b[1] ? -1 : a[1] > b[1];
}

/* Is the address in one of the ranges? One without an address (a Unix socket) is in none. */
static bool rt_rules_hold(const struct rt_rules *r, struct rt_span ranges, const struct net_addr *a)
{
    const struct rt_range *v = rt_rules_at(r, ranges);
    uint64_t ip[2] = {__builtin_bswap64(rt_load64(a->ip)), __builtin_bswap64(rt_load64(a->ip + 8))};
    uint32_t low = 0, high = ranges.n;

    if (a->family != AF_INET && a->family != AF_INET6) return false;
    while (low < high) { /* the first range that begins behind it */
        uint32_t mid = low + (high - low) / 2;

        if (rt_number_cmp(v[mid].low, ip) <= 0) low = mid + 1;
        else high = mid;
    }
    return low && rt_number_cmp(ip, v[low - 1].high) <= 0;
}

/* What is compared of a block of rules. */
static struct str rt_rules_bytes(const struct rt_rules *r)
{
    return str_of((const uint8_t *)r + offsetof(struct rt_rules, size), r->size - offsetof(struct rt_rules, size));
}

/* The shared rules that equal r (NULL: none); counted. */
static const struct rt_rules *rt_rules_get(const struct rt_rules *r)
{
    struct rt_rules *s;

    if (!r) return NULL;
    s = map_find(&rj.rt.rules, rt_rules_bytes(r));
    if (!s) {
        s = mem_need(r->size);
        memcpy(s, r, r->size);
        s->refs = 0;
        map_put(&rj.rt.rules, rt_rules_bytes(s), s);
    }
    s->refs++;
    return s;
}

static void rt_rules_put(const struct rt_rules *r)
{
    struct rt_rules *mine = (struct rt_rules *)(uintptr_t)r; /* the count is control's */

    if (!r || --mine->refs) return;
    map_remove(&rj.rt.rules, rt_rules_bytes(r));
    mem_free(mine);
}

/* ---- blocks ---- */

static int rt_rule_cmp(const void *a, const void *b)
{
    const struct rt_rule *x = a, *y = b;

    if (x->path.n != y->path.n) return x->path.n > y->path.n ? -1 : 1;
    if (x->type != y->type) return x->type == RT_EXACT ? -1 : 1;
    return str_cmp(x->path, y->path);
}

static uint64_t rt_policy_digest(const struct rt_policy *p)
{
    uint64_t h = str_hash_mix(p->body_bytes, (uint64_t)p->connect_ms << 32 | p->send_ms);

    h = str_hash_mix(str_hash_mix(h, p->tunnel_ms), (uint64_t)p->read_ms << 32 | p->head_bytes);
    h = str_hash_mix(h, (uint64_t)p->next_ms << 32 | (uint64_t)p->next << 16 | p->tries);
    h = str_hash_mix(h, (uint64_t)p->access_log << 2 | (uint64_t)p->request_buffering << 1 | p->retry_non_idempotent);
    return p->rules ? str_hash_mix(h, str_hash(rt_rules_bytes(p->rules))) : h;
}

static uint64_t rt_host_digest(const struct rt_host *h)
{
    uint64_t d = str_hash(h->name);

    for (uint32_t i = 0; i < h->n; i++) {
        const struct rt_rule *r = &h->rule[i];

        d = str_hash_mix(d, str_hash(r->path));
        d = str_hash_mix(d, r->type);
        d = str_hash_mix(d, r->backend == RT_NO_BACKEND ? 1 : rj.rt.slots[r->backend].ident);
        d = str_hash_mix(d, str_hash(r->name));
        d = str_hash_mix(d, rt_policy_digest(r->policy));
    }
    return d;
}

/* The shared policy that equals p; counted. p was zeroed before it was filled in; its rules are copied. */
static struct rt_policy *rt_policy_get(const struct rt_policy *p)
{
    struct rt_shared_policy *s;
    struct rt_policy key;

    memcpy(&key, p, sizeof key);
    key.rules = rt_rules_get(p->rules);
    s = map_find(&rj.rt.policies, str_of(&key, sizeof key));
    if (s) {
        rt_rules_put(key.rules);                         /* s counts them already */
    } else {
        s = mem_need(sizeof *s);
        memcpy(&s->policy, &key, sizeof key);
        map_put(&rj.rt.policies, str_of(&s->policy, sizeof key), s);
    }
    s->refs++;
    return &s->policy;
}

static void rt_policy_put(const struct rt_policy *p)
{
    struct rt_shared_policy *s = RJ_CONTAINER((uintptr_t)p, struct rt_shared_policy, policy);

    if (--s->refs) return;
    map_remove(&rj.rt.policies, str_of(p, sizeof *p));
    rt_rules_put(p->rules);
    mem_free(s);
}

/* Where the pieces behind a host's head are. */
struct rt_layout {
    size_t lengths, index, rules, text, total;
    uint32_t words, slots;
};

static struct rt_layout rt_host_layout(struct str name, const struct rt_rule *rules, uint32_t n)
{
    struct rt_layout l = {0};
    size_t text = 0;

    for (uint32_t i = 0; i < n; i++) {
        text += rules[i].path.n;
        if (!i || !str_eq(rules[i].name, rules[i - 1].name)) text += rules[i].name.n;
    }
    if (n > RT_SMALL_HOST) {
        l.words = (uint32_t)(rules[0].path.n / 64 + 1);
        for (l.slots = 16; l.slots < 2 * n;) l.slots *= 2;
    }
    l.lengths = (sizeof(struct rt_host) + name.n + 7) & ~(size_t)7;
    l.index = l.lengths + (size_t)2 * l.words * sizeof(uint64_t);
    l.rules = l.index + l.slots * sizeof(struct rt_index);
    l.text = l.rules + n * sizeof(struct rt_rule);
    l.total = l.text + text;
    return l;
}

static struct str rt_put_text(uint8_t **at, struct str s)
{
    uint8_t *p = *at;

    if (s.n) memcpy(p, s.p, s.n);
    *at += s.n;
    return str_of(p, s.n);
}

/* Fills the bitmaps and the hash table of a host with many rules. */
static void rt_host_index(struct rt_host *h, uint64_t *lengths, struct rt_index *index)
{
    for (uint32_t i = 0; i < h->n; i++) {
        const struct rt_rule *r = &h->rule[i];
        uint64_t hash = rt_hash(r->path.p, r->path.n) ^ (r->type == RT_EXACT ? RT_EXACT_SALT : 0);
        uint32_t at = (uint32_t)hash & h->mask;

        lengths[(r->type == RT_EXACT ? h->words : 0) + r->path.n / 64] |= 1ull << (r->path.n % 64);
        while (index[at].rule) at = (at + 1) & h->mask;
        index[at] = (struct rt_index){(uint32_t)(hash >> 32), i + 1};
    }
    h->lengths = lengths;
    h->index = index;
}

/* A host block with copies of n rules (sorted in place, no two with equal path and type) and of what they point to. It counts the slots
 * of its rules. Freed by rt_host_free until rt_publish has taken it. */
static struct rt_host *rt_host_new(struct str name, struct rt_rule *rules, uint32_t n)
{
    struct rt_layout l;
    struct rt_host *h;
    uint8_t *text, *base;

    qsort(rules, n, sizeof *rules, rt_rule_cmp);
    l = rt_host_layout(name, rules, n);
    h = mem_need(l.total);
    base = (uint8_t *)h;
    text = base + sizeof *h;
    *h = (struct rt_host){.block = {.is_host = true, .born = rj.rt.seq + 1}, .name = rt_put_text(&text, name), .n = n, .words = l.words};
    h->rule = (struct rt_rule *)(void *)(base + l.rules);
    h->mask = l.slots ? l.slots - 1 : 0;
    text = base + l.text;
    for (uint32_t i = 0; i < n; i++) {
        struct rt_rule *r = &h->rule[i];

        *r = rules[i];
        r->path = rt_put_text(&text, rules[i].path);
        r->name = i && str_eq(rules[i].name, rules[i - 1].name) ? h->rule[i - 1].name : rt_put_text(&text, rules[i].name);
        r->policy = rt_policy_get(rules[i].policy);
        if (r->backend != RT_NO_BACKEND) rj.rt.slots[r->backend].refs++;
    }
    if (l.slots) rt_host_index(h, (uint64_t *)(void *)(base + l.lengths), (struct rt_index *)(void *)(base + l.index));
    h->block.digest = rt_host_digest(h);
    return h;
}

static void rt_host_free(struct rt_host *h)
{
    for (uint32_t i = 0; i < h->n; i++) {
        rt_policy_put(h->rule[i].policy);
        if (h->rule[i].backend == RT_NO_BACKEND) continue;
        rj.rt.slots[h->rule[i].backend].refs--;
        rt_slot_check(h->rule[i].backend);
    }
    mem_free(h);
}

static void rt_host_put(struct rt_host *h)
{
    RJ_CHECK(h->block.refs > 0);
    if (--h->block.refs == 0) rt_block_retire(&h->block);
}

/* A backend block from a filled-in head and its endpoints; name is copied. */
static struct rt_backend *rt_backend_new(const struct rt_backend *head, const struct rt_endpoint *ep, uint32_t n)
{
    struct rt_backend *b = mem_need(sizeof *b + n * sizeof *ep + head->name.n + head->check_path.n + head->check_host.n + head->hash_by.n);
    uint8_t *text = (uint8_t *)b + sizeof *b + n * sizeof *ep;
    uint64_t d = str_hash_mix(head->hash, (uint64_t)head->balance << 32 | head->keepalive);

    *b = *head;
    b->block = (struct rt_block){.born = rj.rt.seq + 1};
    b->n = n;
    if (n) memcpy(b->ep, ep, n * sizeof *ep);
    b->name = rt_put_text(&text, head->name);
    b->check_path = rt_put_text(&text, head->check_path);
    b->check_host = rt_put_text(&text, head->check_host);
    b->hash_by = rt_put_text(&text, head->hash_by);
    d = str_hash_mix(d, str_hash(b->check_path));
    d = str_hash_mix(d, str_hash(b->check_host));
    d = str_hash_mix(d, str_hash(b->hash_by));
    d = str_hash_mix(d, (uint64_t)b->check_ms << 32 | b->check_timeout_ms);
    d = str_hash_mix(d, (uint64_t)b->check_rise << 32 | b->check_fall);
    d = str_hash_mix(d, (uint64_t)b->slow_ms << 32 | b->retry_percent);
    d = str_hash_mix(d, (uint64_t)b->keepalive_ms << 32 | b->keepalive_life_ms);
    d = str_hash_mix(d, (uint64_t)b->keepalive_requests << 32 | b->max_fails);
    d = str_hash_mix(d, (uint64_t)b->fail_ms << 32 | n);
    for (uint32_t i = 0; i < n; i++) {
        b->ep[i].hash = rt_addr_hash(&b->ep[i].addr);
        d = str_hash_mix(str_hash_mix(d, b->ep[i].hash), b->ep[i].weight);
    }
    b->block.digest = d;
    return b;
}

static void rt_block_free(struct rt_block *b)
{
    if (b->is_host) rt_host_free(RJ_CONTAINER(b, struct rt_host, block));
    else mem_free(b);
}

/* ---- tables of hosts ---- */

/* A table with room for n hosts that holds those of old (which may be NULL). */
static struct rt_hosts *rt_hosts_copy(const struct rt_hosts *old, uint32_t n)
{
    uint32_t slots = 16;
    struct rt_hosts *t;

    while (slots - slots / 4 < n + 1) slots *= 2;
    t = mem_need(sizeof *t + slots * sizeof t->at[0]);
    t->refs = 1;
    t->mask = slots - 1;
    if (!old) return t;
    t->n = old->n;
    t->routes = old->routes;
    t->digest = old->digest;
    if (old->mask == t->mask) {
        memcpy(t->at, old->at, slots * sizeof t->at[0]);
        return t;
    }
    for (uint32_t i = 0; i <= old->mask; i++) {
        uint32_t at = (uint32_t)old->at[i].hash & t->mask;

        if (!old->at[i].host) continue;
        while (t->at[at].host) at = (at + 1) & t->mask;
        t->at[at] = old->at[i];
    }
    return t;
}

/* Closes the gap at a place (linear probing: what would not be found across it moves up). */
static void rt_hosts_close(struct rt_hosts *t, uint32_t at)
{
    for (uint32_t next = (at + 1) & t->mask; t->at[next].host; next = (next + 1) & t->mask) {
        uint32_t home = (uint32_t)t->at[next].hash & t->mask;

        if (((next - home) & t->mask) < ((next - at) & t->mask)) continue;
        t->at[at] = t->at[next];
        at = next;
    }
    t->at[at] = (struct rt_place){0};
}

/* Puts host under name, or takes the name out when host is NULL. Counts nothing. */
static void rt_hosts_set(struct rt_hosts *t, struct str name, struct rt_host *host)
{
    uint64_t hash = rt_host_hash(name);
    uint32_t at = (uint32_t)hash & t->mask;

    while (t->at[at].host && !(t->at[at].hash == hash && str_eq(t->at[at].host->name, name))) at = (at + 1) & t->mask;
    if (t->at[at].host) {
        t->digest -= t->at[at].host->block.digest;
        t->routes -= t->at[at].host->n;
        t->n--;
    }
    if (!host) {
        if (t->at[at].host) rt_hosts_close(t, at);
        return;
    }
    RJ_BUG_ON(t->n + 1 > t->mask);
    t->at[at] = (struct rt_place){hash, host};
    t->digest += host->block.digest;
    t->routes += host->n;
    t->n++;
}

static void rt_hosts_put(struct rt_hosts *t)
{
    if (t && --t->refs == 0) mem_free(t);
}

static struct rt_host *rt_hosts_get(const struct rt_hosts *t, struct str name)
{
    return t ? (struct rt_host *)(uintptr_t)rt_hosts_find(t, rt_host_hash(name), name) : NULL; /* control owns the blocks */
}

/* Adds by (which may be -1) to the uses of every slot that the host points to. */
static void rt_count_uses(const struct rt_host *h, uint32_t by, bool pinned)
{
    for (uint32_t i = 0; h && i < h->n; i++) {
        struct rt_slot *s = &rj.rt.slots[h->rule[i].backend];

        if (h->rule[i].backend == RT_NO_BACKEND) continue;
        if (pinned) s->pinned_uses += by;
        else s->uses += by;
    }
}

/* ---- the diff in words ---- */

enum { RT_DIFF_MAX = 1024 };
struct rt_diff {
    struct str_builder text;
    uint32_t more;                                       /* changes that did not fit */
    uint8_t space[RT_DIFF_MAX + 512];
};

static struct str rt_slot_name(uint32_t slot)
{
    return slot == RT_NO_BACKEND || !rj.rt.slots[slot].latest ? S("503") : rj.rt.slots[slot].latest->name;
}

static struct str rt_show_host(struct str name) { return name.n ? name : S("*"); }
static struct str rt_show_path(struct str path) { return path.n ? path : S("/"); }

/* Room for one more piece? Counts it otherwise. */
static bool rt_diff_room(struct rt_diff *d)
{
    if (d->text.n < RT_DIFF_MAX) return true;
    d->more++;
    return false;
}

/* At most 120 bytes of a name or a path. */
static struct str rt_short(struct str s) { return s.n > 120 ? str_of(s.p, 120) : s; }

/* Where the rule sends clients to instead of a backend; empty: nowhere. */
static struct str rt_redirect_of(const struct rt_rule *r)
{
    const struct rt_rules *rules = r->policy->rules;
    struct str field = rules ? rt_rules_text(rules, rules->location) : S("");

    return field.n ? str_of(field.p + 10, field.n - 12) : field; /* without its name and CRLF */
}

static void rt_diff_rule(struct rt_diff *d, char sign, const struct rt_rule *r, const char **sep)
{
    struct str to = rt_redirect_of(r);

    if (!rt_diff_room(d)) return;
    str_putf(&d->text, "%s %c" STR_FMT " %s", *sep, sign, STR_ARG(rt_short(rt_show_path(r->path))), r->type == RT_EXACT ? "exact" : "prefix");
    if (sign != '-' && to.n) str_putf(&d->text, " -> %u " STR_FMT, r->policy->rules->redirect_status, STR_ARG(rt_short(to)));
    else if (sign != '-') str_putf(&d->text, " -> " STR_FMT, STR_ARG(rt_short(rt_slot_name(r->backend))));
    *sep = ",";
}

/* Both lists of rules are sorted: what stands in one of them only went or came. */
static void rt_diff_host(struct rt_diff *d, struct str name, const struct rt_host *old, const struct rt_host *now)
{
    const char *sep = ":";
    uint32_t i = 0, k = 0, n = old ? old->n : 0, m = now ? now->n : 0;

    if (!rt_diff_room(d)) return;
    if (d->text.n) str_put(&d->text, S("; "));
    str_putf(&d->text, "%shost " STR_FMT, !old ? "+" : !now ? "-" : "", STR_ARG(rt_show_host(name)));
    if (!now) return;
    while (i < n || k < m) {
        int c = i >= n ? 1 : k >= m ? -1 : rt_rule_cmp(&old->rule[i], &now->rule[k]);

        if (c < 0) {
            rt_diff_rule(d, '-', &old->rule[i++], &sep);
        } else if (c > 0) {
            rt_diff_rule(d, '+', &now->rule[k++], &sep);
        } else {
            const struct rt_rule *x = &old->rule[i++], *y = &now->rule[k++];

            if (x->backend != y->backend || !str_eq(x->name, y->name) || x->policy != y->policy) rt_diff_rule(d, '~', y, &sep);
        }
    }
}

static void rt_diff_backend(struct rt_diff *d, const struct rt_backend *old, const struct rt_backend *now)
{
    if (!rt_diff_room(d)) return;
    if (d->text.n) str_put(&d->text, S("; "));
    str_putf(&d->text, "backend " STR_FMT ": %u -> %u endpoints", STR_ARG(now->name), old->n, now->n);
}

/* ---- snapshots ---- */

static bool rt_is_leased(const struct rt_snapshot *s)
{
    for (int i = 0; i < s->workers; i++)
        if (atomic_load_explicit(&s->lease[i].n, memory_order_acquire)) return true; /* rt_release */
    return false;
}

static void rt_backends_put(struct rt_backends *t)
{
    if (t && --t->refs == 0) mem_free(t);
}

static void rt_snapshot_drop_tables(struct rt_snapshot *s)
{
    rt_hosts_put((struct rt_hosts *)(uintptr_t)s->hosts); /* counted by control */
    rt_backends_put((struct rt_backends *)(uintptr_t)s->backends);
    s->hosts = NULL;
    s->backends = NULL;
    s->any = NULL;
    s->fallback = NULL;
}

/* rcu_: no worker searches it any more; leases may keep what was found. */
static void rt_on_passed(struct rcu_item *item)
{
    struct rt_snapshot *s = RJ_CONTAINER(item, struct rt_snapshot, rcu);

    rt_snapshot_drop_tables(s);
    s->passed = true;
    rj.rt.sweep = true;
}

static void rt_snapshot_free(struct rt_snapshot *s)
{
    struct rt_state *t = &rj.rt;

    for (struct rt_record *r = t->newest; r; r = r->older) {
        if (r->snapshot != s) continue;
        r->first_request_ns = atomic_load_explicit(&s->first_request_ns, memory_order_relaxed);
        r->snapshot = NULL;
    }
    if (s->older) s->older->newer = s->newer;
    else t->first = s->newer;
    if (s->newer) s->newer->older = s->older;
    else t->last = s->older;
    cfg_put(s->cfg);
    mem_free(s);
    t->sweep = true;
}

/* True when a snapshot of the n sorted numbers can show the block. */
static bool rt_is_shown(const struct rt_block *b, const uint64_t *seq, uint32_t n)
{
    uint32_t low = 0, high = n;

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (seq[mid] < b->born) low = mid + 1;
        else high = mid;
    }
    return low < n && seq[low] < b->gone;
}

/* Frees the snapshots that nobody holds and the blocks that no snapshot shows. Control thread, after rcu_collect. */
static void rt_collect(void)
{
    struct rt_state *t = &rj.rt;
    struct rt_block **at = &t->waiting;
    uint64_t *seq;
    uint32_t n = 0, i = 0;

    for (struct rt_snapshot *s = t->first, *next; s; s = next) {
        next = s->newer;
        if (s->passed && !rt_is_leased(s)) rt_snapshot_free(s);
        else n++;
    }
    if (!t->sweep || !t->waiting) return;
    t->sweep = false;
    seq = mem_need(n * sizeof *seq);
    for (struct rt_snapshot *s = t->first; s; s = s->newer) seq[i++] = s->seq;
    while (*at) {
        struct rt_block *b = *at;

        if (rt_is_shown(b, seq, n)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        rt_block_free(b);
    }
    mem_free(seq);
}

/* The backends that the shown table points to. */
static struct rt_backends *rt_backends_build(bool pinned)
{
    const struct rt_state *t = &rj.rt;
    struct rt_backends *b = mem_need(sizeof *b + t->nslots * sizeof b->at[0]);

    b->refs = 1;
    b->n = t->nslots;
    for (uint32_t i = 0; i < t->nslots; i++) {
        const struct rt_slot *s = &t->slots[i];

        if (!(pinned ? s->pinned_uses : s->uses) || !s->latest) continue;
        b->at[i] = s->latest;
        b->digest += s->latest->block.digest;
        b->used++;
    }
    return b;
}

/* ---- endpoints that leave ---- */

/* Endpoints of old (may be NULL) that now (the same) may not have: what stands between an equal begin and an equal end. */
static void rt_note_gone(struct rt_gone *g, const struct rt_backend *old, const struct rt_backend *now)
{
    uint32_t from = 0, to = old ? old->n : 0, n = now ? now->n : 0;

    while (from < to && from < n && old->ep[from].hash == now->ep[from].hash) from++;
    while (to > from && n > from && old->ep[to - 1].hash == now->ep[n - 1].hash) to--, n--;
    if (from == to) return;
    if (g->cap - g->n < to - from) {
        uint64_t *more;

        g->cap = (g->n + to - from) * 2;
        more = mem_need(g->cap * sizeof *more);
        if (g->n) memcpy(more, g->hash, g->n * sizeof *more);
        mem_free(g->hash);
        g->hash = more;
    }
    while (from < to) g->hash[g->n++] = old->ep[from++].hash;
}

static void rt_note_all_gone(const struct rt_backends *old, const struct rt_backends *now)
{
    for (uint32_t i = 0; i < old->n; i++)
        if (i >= now->n || old->at[i] != now->at[i]) rt_note_gone(&rj.rt.gone, old->at[i], i < now->n ? now->at[i] : NULL);
}

static int rt_hash_cmp(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The addresses (their hashes) that have left the table in service since the last call, all their backends thought of. Freed by the caller. */
static struct rt_gone rt_take_gone(void)
{
    struct rt_gone g = rj.rt.gone;
    const struct rt_backends *all = g.n ? rj.rt.last->backends : NULL;
    bool *stays = mem_need(g.n);
    uint32_t n = 0;

    rj.rt.gone = (struct rt_gone){0};
    if (g.n) qsort(g.hash, g.n, sizeof *g.hash, rt_hash_cmp);
    for (uint32_t i = 0; all && i < all->n; i++)
        for (uint32_t k = 0; all->at[i] && k < all->at[i]->n; k++) {
            uint64_t *found = bsearch(&all->at[i]->ep[k].hash, g.hash, g.n, sizeof *g.hash, rt_hash_cmp);

            if (found) stays[found - g.hash] = true;
        }
    for (uint32_t i = 0; i < g.n; i++)
        if (!stays[i]) g.hash[n++] = g.hash[i];
    g.n = n;
    mem_free(stays);
    return g;
}

/* Makes the snapshot of the newest or the pinned table and puts it in service. */
static struct rt_snapshot *rt_go_live(const struct cfg *cfg, uint64_t generation, uint64_t t_event_ns)
{
    struct rt_state *t = &rj.rt;
    int workers = t->workers > 0 ? t->workers : 1;
    struct rt_snapshot *s = mem_need(sizeof *s + ((size_t)workers + 1) * sizeof(struct rt_lease)), *old = t->last;
    struct rt_hosts *hosts = t->pinned ? t->pinned_hosts : t->hosts;
    const struct rt_host *fallback = rt_hosts_get(hosts, RT_FALLBACK);

    s->lease = (struct rt_lease *)(((uintptr_t)(s + 1) + 63) & ~(uintptr_t)63);
    s->workers = workers;
    s->generation = generation;
    s->hosts = hosts;
    hosts->refs++;
    s->partial = t->partial;
    s->any = rt_hosts_get(hosts, S(""));
    s->fallback = fallback && fallback->n ? &fallback->rule[0] : NULL;
    s->backends = rt_backends_build(t->pinned != 0);
    if (old) rt_note_all_gone(old->backends, s->backends);
    s->digest = hosts->digest + s->backends->digest;
    s->cfg = cfg_get(cfg);
    s->seq = ++t->seq;
    s->t_event_ns = t_event_ns;
    s->older = old;
    if (old) old->newer = s;
    else t->first = s;
    t->last = s;
    s->t_publish_ns = sys_clock_ns(CLOCK_MONOTONIC);
    atomic_store_explicit(&rj.rt_live, s, memory_order_release); /* rt_live's acquire */
    if (old) rcu_retire(&old->rcu, rt_on_passed);
    t->publish_wall_ms = clk_wall_ms();
    return s;
}

/* The same rules again, for what a snapshot has of rj.rt beside them. */
static void rt_refresh(void)
{
    struct rt_state *t = &rj.rt;
    const struct rt_snapshot *s = rt_go_live(t->last->cfg, t->last->generation, t->last->t_event_ns);

    if (!t->pinned && t->newest) t->newest->snapshot = s;
}

/* ---- history ---- */

/* What stood before the oldest generation is never asked for. */
static void rt_record_forget(struct rt_record *r)
{
    for (uint32_t i = 0; i < r->nundo; i++)
        if (r->undo[i].old) rt_host_put(r->undo[i].old);
    mem_free(r->undo);
    r->undo = NULL;
    r->nundo = 0;
}

static void rt_record_free(struct rt_record *r)
{
    rt_record_forget(r);
    mem_free(r);
}

static void rt_trim_history(void)
{
    struct rt_state *t = &rj.rt;

    while (t->nrecords > (t->history_size ? t->history_size : 1)) {
        struct rt_record *r = t->oldest;

        t->oldest = r->newer;
        t->oldest->older = NULL;
        t->nrecords--;
        rt_record_free(r);
    }
    rt_record_forget(t->oldest);
}

/* Takes undo over. */
static struct rt_record *rt_record_new(const struct rt_diff *d, struct rt_undo *undo, uint32_t nundo)
{
    struct rt_state *t = &rj.rt;
    struct rt_record *r = mem_need(sizeof *r + d->text.n);

    r->undo = undo;
    r->nundo = nundo;
    memcpy(r + 1, d->text.p, d->text.n);
    r->diff = str_of(r + 1, d->text.n);
    r->generation = ++t->generation;
    r->wall_ms = clk_wall_ms();
    r->older = t->newest;
    if (t->newest) t->newest->newer = r;
    else t->oldest = r;
    t->newest = r;
    t->nrecords++;
    return r;
}

/* Exchanges the changed backends. The change keeps the old block in place of the new one. Returns how many in use differ. */
static uint32_t rt_take_backends(struct rt_changes *c)
{
    uint32_t seen = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        struct rt_slot *s;
        struct rt_backend *now = c->v[i].backend;

        if (c->v[i].slot == RT_NO_BACKEND) continue;
        s = &rj.rt.slots[c->v[i].slot];
        c->v[i].backend = NULL;
        if (s->latest && s->latest->block.digest == now->block.digest) {
            mem_free(now);
            continue;
        }
        c->v[i].backend = s->latest;
        if (s->latest) rt_block_retire(&s->latest->block);
        s->latest = now;
        seen += s->uses + s->pinned_uses > 0;
    }
    return seen;
}

/* Drops the hosts that did not change from the list. Returns how many did. */
static uint32_t rt_take_hosts(struct rt_changes *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        struct rt_change *v = &c->v[i];
        struct rt_host *old;

        if (v->slot != RT_NO_BACKEND) continue;
        old = rt_hosts_get(rj.rt.hosts, v->name);
        if (v->host ? old && old->block.digest == v->host->block.digest : !old) {
            if (v->host) rt_host_free(v->host);
            v->host = NULL;
            v->name.p = NULL;
            continue;
        }
        n++;
    }
    return n;
}

/* Puts n changed hosts into a new table; what they replace goes to the record. */
static void rt_change_hosts(const struct rt_changes *c, uint32_t n, struct rt_diff *d, struct rt_undo *undo)
{
    struct rt_state *t = &rj.rt;
    struct rt_hosts *table = rt_hosts_copy(t->hosts, (t->hosts ? t->hosts->n : 0) + n);

    for (uint32_t i = 0; i < c->n; i++) {
        const struct rt_change *v = &c->v[i];
        struct rt_host *old;

        if (v->slot != RT_NO_BACKEND || !v->name.p) continue;
        old = rt_hosts_get(table, v->name);
        rt_diff_host(d, v->name, old, v->host);
        rt_count_uses(v->host, 1, false);
        rt_count_uses(old, (uint32_t)-1, false);
        rt_hosts_set(table, v->name, v->host);
        if (v->host) v->host->block.refs++;
        *undo++ = (struct rt_undo){old, v->host ? v->host->name : old->name};
    }
    rt_hosts_put(t->hosts);
    t->hosts = table;
}

/* Takes the changes: exchanges what differs, records a generation with its diff, and puts a snapshot in service unless a pinned one
 * shows nothing of it. Returns true when there was something new. The list is empty then and may be used again. */
static bool rt_publish(struct rt_changes *c, const struct cfg *cfg, uint64_t t_event_ns, uint64_t compile_ns)
{
    struct rt_state *t = &rj.rt;
    uint32_t backends = rt_take_backends(c), hosts = rt_take_hosts(c);
    bool settings = !t->last || t->last->cfg->digest != cfg->digest;
    struct rt_diff *d;
    struct rt_record *r;
    struct rt_undo *undo;

    t->history_size = cfg->history_size;
    if (!backends && !hosts && !settings) {
        c->n = 0;
        return false;
    }
    d = mem_need(sizeof *d);
    undo = mem_need(hosts * sizeof *undo);
    d->text = str_fixed(d->space, sizeof d->space);
    if (settings && t->last) str_put(&d->text, S("settings changed"));
    if (hosts || !t->hosts) rt_change_hosts(c, hosts, d, undo);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct rt_slot *s = c->v[i].slot == RT_NO_BACKEND ? NULL : &t->slots[c->v[i].slot];

        if (s && c->v[i].backend && s->uses + s->pinned_uses) rt_diff_backend(d, c->v[i].backend, s->latest);
    }
    if (d->more) str_putf(&d->text, "; and %u more", d->more);
    c->n = 0;
    r = rt_record_new(d, undo, hosts);
    r->t_event_ns = t_event_ns;
    r->compile_ns = compile_ns;
    r->routes = t->hosts->routes;
    r->hosts = t->hosts->n;
    r->digest = t->hosts->digest;
    if (!t->pinned || backends || settings) {
        const struct rt_snapshot *s = rt_go_live(cfg, t->pinned ? t->pinned : r->generation, t_event_ns);

        r->digest = s->digest;
        r->backends = s->backends->used;
        if (!t->pinned) r->t_publish_ns = s->t_publish_ns;
        if (!t->pinned) r->snapshot = s;
    }
    rt_trim_history();
    mem_free(d);
    return true;
}

static void rt_unpin_table(void)
{
    struct rt_state *t = &rj.rt;

    if (!t->pinned_hosts) return;
    for (uint32_t i = 0; i <= t->pinned_hosts->mask; i++) {
        if (!t->pinned_hosts->at[i].host) continue;
        rt_count_uses(t->pinned_hosts->at[i].host, (uint32_t)-1, true);
        rt_host_put(t->pinned_hosts->at[i].host);
    }
    rt_hosts_put(t->pinned_hosts);
    t->pinned_hosts = NULL;
    t->pinned = 0;
}

/* Puts the rules of a kept generation in service and keeps them there; backends go on following the cluster. 0, or -ENOENT
 * with why. */
static int rt_rollback(uint64_t generation, struct log_err *err)
{
    struct rt_state *t = &rj.rt;
    struct rt_record *r = t->newest;
    struct rt_hosts *table;

    while (r && r->generation != generation) r = r->older;
    if (!r) {
        log_fail(err, "generation %llu is not kept; those from %llu to %llu are", (unsigned long long)generation,
                 (unsigned long long)(t->oldest ? t->oldest->generation : 0), (unsigned long long)t->generation);
        return -ENOENT;
    }
    table = rt_hosts_copy(t->hosts, t->hosts->n);
    for (r = t->newest; r->generation != generation; r = r->older) {
        struct rt_hosts *bigger = rt_hosts_copy(table, table->n + r->nundo);

        rt_hosts_put(table);
        table = bigger;
        for (uint32_t i = 0; i < r->nundo; i++) rt_hosts_set(table, r->undo[i].name, r->undo[i].old);
    }
    for (uint32_t i = 0; i <= table->mask; i++) {
        if (!table->at[i].host) continue;
        table->at[i].host->block.refs++;
        rt_count_uses(table->at[i].host, 1, true);
    }
    rt_unpin_table();
    t->pinned_hosts = table;
    t->pinned = generation;
    rt_go_live(t->last->cfg, generation, sys_clock_ns(CLOCK_MONOTONIC));
    return 0;
}

/* The newest rules are served again. */
static void rt_unpin(void)
{
    struct rt_state *t = &rj.rt;
    struct rt_record *r = t->newest;
    const struct rt_snapshot *s;

    if (!t->pinned) return;
    rt_unpin_table();
    s = rt_go_live(t->last->cfg, t->generation, sys_clock_ns(CLOCK_MONOTONIC));
    if (r->t_publish_ns) return;
    r->t_event_ns = s->t_event_ns;
    r->t_publish_ns = s->t_publish_ns;
    r->digest = s->digest;
    r->backends = s->backends->used;
    r->snapshot = s;
}

/* Frees everything. No worker runs any more. */
static void rt_fini(void)
{
    struct rt_state *t = &rj.rt;

    rt_unpin_table();
    while (t->oldest) {
        struct rt_record *r = t->oldest;

        t->oldest = r->newer;
        rt_record_free(r);
    }
    t->newest = NULL;
    atomic_store_explicit(&rj.rt_live, NULL, memory_order_relaxed); /* no other thread is left */
    rcu_collect();
    for (struct rt_snapshot *s = t->first, *next; s; s = next) {
        next = s->newer;
        rt_snapshot_drop_tables(s);
        cfg_put(s->cfg);
        mem_free(s);
    }
    for (uint32_t i = 0; t->hosts && i <= t->hosts->mask; i++)
        if (t->hosts->at[i].host) rt_host_put(t->hosts->at[i].host);
    rt_hosts_put(t->hosts);
    for (uint32_t i = 0; i < t->nslots; i++)
        if (t->slots[i].latest) rt_block_retire(&t->slots[i].latest->block);
    while (t->waiting) {
        struct rt_block *b = t->waiting;

        t->waiting = b->next;
        rt_block_free(b);
    }
    mem_free(t->gone.hash);
    mem_free(t->slots);
    map_free(&t->policies);
    map_free(&t->rules);
    *t = (struct rt_state){0};
}

static void rt_changes_add(struct rt_changes *c, struct rt_change one)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 16;
        c->v = mem_realloc(c->v, c->cap * sizeof *c->v);
        RJ_BUG_ON(!c->v);
    }
    c->v[c->n++] = one;
}

/* ---- as text ---- */

static int rt_host_cmp(const void *a, const void *b)
{
    const struct rt_host *const *x = a, *const *y = b;

    return str_cmp((*x)->name, (*y)->name);
}

/* The hosts of a table sorted by name; freed by the caller. */
static const struct rt_host **rt_hosts_sorted(const struct rt_hosts *t)
{
    const struct rt_host **v = mem_need(((size_t)t->n + 1) * sizeof *v);
    uint32_t n = 0;

    for (uint32_t i = 0; i <= t->mask; i++)
        if (t->at[i].host) v[n++] = t->at[i].host;
    qsort(v, n, sizeof *v, rt_host_cmp);
    return v;
}

struct rt_shown {
    struct str host, path, backend, source, redirect;
    const char *type;
    uint32_t endpoints;
};

/* Calls put for every rule of the snapshot: by host, and in a host as they are matched. */
static void rt_each(const struct rt_snapshot *s, void (*put)(void *arg, const struct rt_shown *r), void *arg)
{
    const struct rt_host **hosts = rt_hosts_sorted(s->hosts);

    for (uint32_t i = 0; i < s->hosts->n; i++) {
        bool fallback = str_eq(hosts[i]->name, RT_FALLBACK);

        for (uint32_t k = 0; k < hosts[i]->n; k++) {
            const struct rt_rule *r = &hosts[i]->rule[k];
            const struct rt_backend *b = r->backend < s->backends->n ? s->backends->at[r->backend] : NULL;
            struct rt_shown one = {rt_show_host(hosts[i]->name), rt_show_path(r->path), b ? b->name : S(""), r->name, rt_redirect_of(r),
                                   fallback ? "default" : r->type == RT_EXACT ? "exact" : "prefix", b ? b->n : 0};

            put(arg, &one);
        }
    }
    mem_free(hosts);
}

static void rt_put_json_route(void *arg, const struct rt_shown *r)
{
    struct str_builder *b = arg;

    if (b->p[b->n - 1] != '[') str_put_c(b, ',');
    str_put(b, S("{\"host\":"));
    str_put_quoted(b, r->host);
    str_put(b, S(",\"path\":"));
    str_put_quoted(b, r->path);
    str_putf(b, ",\"type\":\"%s\",\"backend\":", r->type);
    str_put_quoted(b, r->backend);
    str_put(b, S(",\"source\":"));
    str_put_quoted(b, r->source);
    if (r->redirect.n) {
        str_put(b, S(",\"redirect\":"));
        str_put_quoted(b, r->redirect);
    }
    str_putf(b, ",\"endpoints\":%u}", r->endpoints);
}

/* {"generation":N,"routes":[...]} of the table in service. */
static void rt_render_routes(struct str_builder *b)
{
    const struct rt_snapshot *s = rj.rt.last;

    str_putf(b, "{\"generation\":%llu,\"routes\":[", (unsigned long long)(s ? s->generation : 0));
    if (s) rt_each(s, rt_put_json_route, b);
    str_put(b, S("]}\n"));
}

struct rt_columns {
    struct str_builder *out;                             /* NULL: measure */
    size_t host, path, backend;
};

static void rt_put_text_route(void *arg, const struct rt_shown *r)
{
    struct str target = r->redirect.n ? r->redirect : r->backend.n ? r->backend : S("-");
    struct rt_columns *c = arg;

    if (!c->out) {
        if (r->host.n > c->host) c->host = r->host.n;
        if (r->path.n > c->path) c->path = r->path.n;
        if (target.n > c->backend) c->backend = target.n;
        return;
    }
    const struct { struct str text; size_t width; } column[] = {
        {r->host, c->host}, {r->path, c->path}, {str_z(r->type), 7}, {target, c->backend}, {r->source, 0}};

    for (size_t i = 0; i < RJ_COUNT(column); i++) {
        if (i) str_put(c->out, S("  "));
        str_put(c->out, column[i].text);
        for (size_t n = column[i].text.n; n < column[i].width; n++) str_put_c(c->out, ' ');
    }
    str_put_c(c->out, '\n');
}

/* The table in service as aligned columns: host, path, type, backend, source. */
static void rt_render_text(struct str_builder *b)
{
    const struct rt_snapshot *s = rj.rt.last;
    struct rt_columns c = {.host = 4, .path = 4, .backend = 7};
    struct rt_shown head = {.host = S("HOST"), .path = S("PATH"), .backend = S("BACKEND"), .source = S("SOURCE"), .type = "TYPE"};

    if (!s) return;
    rt_each(s, rt_put_text_route, &c);
    c.out = b;
    rt_put_text_route(&c, &head);
    rt_each(s, rt_put_text_route, &c);
}

static void rt_put_us(struct str_builder *b, const char *key, uint64_t from, uint64_t to)
{
    str_putf(b, ",\"%s\":", key);
    if (to >= from && to) str_put_u64(b, (to - from) / 1000);
    else str_put(b, S("null"));
}

/* {"pinned":N or null,"serving":N,"generations":[...]}, newest first. */
static void rt_render_generations(struct str_builder *b)
{
    const struct rt_state *t = &rj.rt;

    str_put(b, S("{\"pinned\":"));
    if (t->pinned) str_put_u64(b, t->pinned);
    else str_put(b, S("null"));
    str_putf(b, ",\"serving\":%llu,\"generations\":[", (unsigned long long)(t->last ? t->last->generation : 0));
    for (const struct rt_record *r = t->newest; r; r = r->older) {
        uint64_t first = r->snapshot ? atomic_load_explicit(&r->snapshot->first_request_ns, memory_order_relaxed) : r->first_request_ns;

        str_putf(b, "%s{\"generation\":%llu,\"published_at\":\"", r == t->newest ? "" : ",", (unsigned long long)r->generation);
        str_put_time(b, r->wall_ms);
        str_putf(b, "\",\"digest\":\"%016llx\",\"routes\":%u,\"hosts\":%u,\"backends\":%u", (unsigned long long)r->digest, r->routes, r->hosts, r->backends);
        rt_put_us(b, "event_to_publish_us", r->t_event_ns, r->t_publish_ns);
        rt_put_us(b, "event_to_request_us", r->t_event_ns, first);
        rt_put_us(b, "compile_us", 0, r->compile_ns);
        str_put(b, S(",\"diff\":"));
        str_put_quoted(b, r->diff);
        str_put_c(b, '}');
    }
    str_put(b, S("]}\n"));
}

/* ============================================================================
 * lm_ : Limits per client
 *
 * Owns:    struct lm, rj.lm.
 * Calls:   sys_ mem_ rt_
 * Threads: opened and closed by control, before a rule that needs a table is published and after the last worker; else by workers.
 * Rules:   1. The tables are all that workers share beside snapshots: no lock, every change is one compare and swap.
 *          2. Their size is fixed. A bucket that is needed and not there takes the place of the fullest one, which is the one
 *             that was used longest ago or least; requests that find no place among those under way are not counted.
 *          3. They outlive every publication: what a client has used stays used, while the name of the route is the same.
 * ========================================================================== */

/* Makes what rules need of the tables. */
static void lm_open(uint16_t uses)
{
    struct lm *lm = &rj.lm;

    if (!lm->buckets && !lm->places) sys_getrandom(lm->seed, sizeof lm->seed);
    if (uses & RT_LIMITS_RATE && !lm->buckets) lm->buckets = mem_need(LM_ENTRIES * sizeof *lm->buckets);
    if (uses & RT_LIMITS_CONNECTIONS && !lm->places) lm->places = mem_need(LM_ENTRIES * sizeof *lm->places);
}

static void lm_close(void)
{
    mem_free(rj.lm.buckets);
    mem_free((void *)(uintptr_t)rj.lm.places);
    rj.lm = (struct lm){0};
}

static inline uint64_t lm_ticks(uint64_t ns) { return ns / 125 * 2; }

/* Of a client and a route: never 0, and nobody can tell whose are near each other. IPv6 clients count by their /64, the smallest network
 * that one has to itself. */
static uint64_t lm_key(const struct net_addr *client, uint64_t route)
{
    uint64_t high = rt_load64(client->ip), low = high ? 0 : rt_load64(client->ip + 8); /* IPv4 is all in low */

    return rt_fold(rt_fold(high ^ rj.lm.seed[0], low ^ rj.lm.seed[1]) ^ route, rj.lm.seed[0] | 1) | 1;
}

/* The bucket of the key; of all in its set that are not, the one whose client loses least is given up for it. Two threads that bring the
 * same key at once may each take one: the client is a few requests ahead then, until the second is not found any more. */
static struct lm_bucket *lm_bucket_at(uint64_t key)
{
    struct lm_bucket *set = &rj.lm.buckets[(key >> 32) % (LM_ENTRIES / LM_WAYS) * LM_WAYS];

    for (;;) {
        struct lm_bucket *fullest = set;
        uint64_t least = UINT64_MAX, was = 0;

        for (int i = 0; i < LM_WAYS; i++) {
            uint64_t k = atomic_load_explicit(&set[i].key, memory_order_relaxed); /* all of it relaxed: no other data hangs on it */
            uint64_t full = k ? atomic_load_explicit(&set[i].state, memory_order_relaxed) >> LM_CHECK_BITS : 0;

            if (k == key) return &set[i];
            if (full >= least) continue;
            least = full;
            fullest = &set[i];
            was = k;
        }
        if (atomic_compare_exchange_strong_explicit(&fullest->key, &was, key, memory_order_relaxed, memory_order_relaxed)) return fullest;
    }
}

/* The tick at which a bucket in that state is full again; a state that belongs to another key is that of a full one. */
static inline uint64_t lm_full_at(uint64_t state, uint64_t key)
{
    return ((state ^ key) & ((1u << LM_CHECK_BITS) - 1)) ? 0 : state >> LM_CHECK_BITS;
}

static inline uint64_t lm_state(uint64_t full, uint64_t key) { return full << LM_CHECK_BITS | (key & ((1u << LM_CHECK_BITS) - 1)); }

/* Takes one request. 0: it may pass; else the ticks until one may. A bucket that is emptier than this rate can make it was used under another
 * one, and counts as empty; a second more may be a worker whose clock is ahead. */
static uint64_t lm_take(uint64_t key, const struct rt_rate *rate, uint64_t now)
{
    struct lm_bucket *b = lm_bucket_at(key);
    uint64_t old = atomic_load_explicit(&b->state, memory_order_relaxed), empty = now + rate->slack + rate->each;

    for (;;) {
        uint64_t full = lm_full_at(old, key), wait, state;

        if (full < now) full = now;
        if (full > empty + LM_TICKS_PER_S) full = empty;
        wait = full - now > rate->slack ? full - now - rate->slack : 0;
        state = lm_state(wait ? full : full + rate->each, key);
        if (state == old || atomic_compare_exchange_weak_explicit(&b->state, &old, state, memory_order_relaxed, memory_order_relaxed)) return wait;
    }
}

/* Gives one request back that was taken and not used. */
static void lm_give(uint64_t key, const struct rt_rate *rate)
{
    struct lm_bucket *b = lm_bucket_at(key);
    uint64_t old = atomic_load_explicit(&b->state, memory_order_relaxed), full;

    do {
        full = lm_full_at(old, key);
        if (full < rate->each) return;
    } while (!atomic_compare_exchange_weak_explicit(&b->state, &old, lm_state(full - rate->each, key), memory_order_relaxed, memory_order_relaxed));
}

/* Counts a request that begins: *place is where, or NULL when its set is taken by others. False when limit are under way. A place with
 * requests in it is never given to another key. */
static bool lm_enter(uint64_t key, uint32_t limit, _Atomic uint64_t **place)
{
    _Atomic uint64_t *set = &rj.lm.places[(key >> 1) % (LM_ENTRIES / LM_WAYS) * LM_WAYS]; /* the lowest bit of a key is always set */
    const uint64_t mask = (1u << LM_COUNT_BITS) - 1;

    for (;;) {
        _Atomic uint64_t *at = NULL;
        uint64_t old = 0, now;

        for (int i = 0; i < LM_WAYS; i++) {
            uint64_t w = atomic_load_explicit(&set[i], memory_order_relaxed); /* a number, no other data hangs on it */

            if ((w ^ key) >> LM_COUNT_BITS && (at || w & mask)) continue;
            at = &set[i];
            old = w;
            if (!((w ^ key) >> LM_COUNT_BITS)) break;
        }
        *place = at;
        if (!at) return true;
        now = (old ^ key) >> LM_COUNT_BITS ? key & ~mask : old;
        if ((now & mask) >= limit) {
            *place = NULL;
            return false;
        }
        if (atomic_compare_exchange_strong_explicit(at, &old, now + 1, memory_order_relaxed, memory_order_relaxed)) return true;
    }
}

/* A request has ended. */
static inline void lm_leave(_Atomic uint64_t *place) { atomic_fetch_sub_explicit(place, 1, memory_order_relaxed); }

/* ============================================================================
 * rc_ : Route compiler
 *
 * Owns:    struct rc and the indexes in it.
 * Calls:   mem_ str_ map_ mtr_ http_ cfg_ rt_ lm_
 * Threads: control.
 * Rules:   1. Pure: the same store and settings give the same table, in whatever order they came.
 *          2. One changed object costs the hosts and backends that depend on it.
 *          3. A bad object loses its own rules and nothing else, with a warning that names it.
 * ========================================================================== */

enum { RC_KEY_MAX = 1024 };

/* ---- lists ---- */

static inline void **rc_list_items(struct rc_list *l) { return l->cap > 1 ? l->many : &l->one; }

static void rc_list_add(struct rc_list *l, const void *item)
{
    if (l->n && l->n >= l->cap) {
        void **many = mem_need((size_t)l->n * 2 * sizeof *many);

        memcpy(many, rc_list_items(l), l->n * sizeof *many);
        if (l->cap > 1) mem_free(l->many);
        l->many = many;
        l->cap = l->n * 2;
    } else if (!l->cap) {
        l->cap = 1;
    }
    rc_list_items(l)[l->n++] = (void *)(uintptr_t)item;
}

static void rc_list_free(struct rc_list *l)
{
    if (l->cap > 1) mem_free(l->many);
    *l = (struct rc_list){0};
}

static void rc_list_remove(struct rc_list *l, const void *item)
{
    void **v = rc_list_items(l);

    for (uint32_t i = 0; i < l->n; i++) {
        if (v[i] != item) continue;
        v[i] = v[--l->n];
        break;
    }
    if (!l->n) rc_list_free(l);
}

/* ---- tables ---- */

static inline struct str rc_key(const void *item) { return *(const struct str *)item; }

static uint32_t rc_table_place(const struct rc_table *t, struct str key)
{
    uint32_t at = (uint32_t)rt_hash(key.p, key.n) & t->mask;

    while (t->v[at] && !str_eq(rc_key(t->v[at]), key)) at = (at + 1) & t->mask;
    return at;
}

static void *rc_table_find(const struct rc_table *t, struct str key) { return t->v ? t->v[rc_table_place(t, key)] : NULL; }

static void rc_table_resize(struct rc_table *t, uint32_t mask)
{
    struct rc_table other = {.mask = mask, .count = t->count};

    other.v = mem_need(((size_t)mask + 1) * sizeof *other.v);
    for (uint32_t i = 0; t->v && i <= t->mask; i++)
        if (t->v[i]) other.v[rc_table_place(&other, rc_key(t->v[i]))] = t->v[i];
    mem_free(t->v);
    *t = other;
}

/* Adds an item whose key is not there. */
static void rc_table_add(struct rc_table *t, void *item)
{
    if (!t->v || t->count >= t->mask - t->mask / 4) rc_table_resize(t, t->v ? t->mask * 2 + 1 : 15);
    t->v[rc_table_place(t, rc_key(item))] = item;
    t->count++;
}

static void rc_table_remove(struct rc_table *t, struct str key)
{
    uint32_t at = rc_table_place(t, key);

    if (!t->v[at]) return;
    for (uint32_t next = (at + 1) & t->mask; t->v[next]; next = (next + 1) & t->mask) {
        struct str k = rc_key(t->v[next]);
        uint32_t home = (uint32_t)rt_hash(k.p, k.n) & t->mask;

        if (((next - home) & t->mask) < ((next - at) & t->mask)) continue;
        t->v[at] = t->v[next];
        at = next;
    }
    t->v[at] = NULL;
    t->count--;
}

/* Gives back room that the table had when it was much larger. True when there was any. */
static bool rc_table_trim(struct rc_table *t)
{
    uint32_t mask = t->mask;

    while (mask > 63 && t->count < mask / 8) mask /= 2;
    if (mask == t->mask) return false;
    rc_table_resize(t, mask);
    return true;
}

/* The next item from *at on (start with 0), or NULL. The table must not change meanwhile. */
static void *rc_table_next(const struct rc_table *t, uint32_t *at)
{
    while (t->v && *at <= t->mask)
        if (t->v[(*at)++]) return t->v[*at - 1];
    return NULL;
}

static void rc_table_free(struct rc_table *t)
{
    mem_free(t->v);
    *t = (struct rc_table){0};
}

/* ---- warnings ---- */

/* A warning about the host that is compiled: told unless its last compile had it too. */
RJ_PRINTF(3, 4) static void rc_warn_host(struct rc *rc, const struct rc_host *h, const char *fmt, ...)
{
    char text[1024];
    uint32_t hash;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    hash = (uint32_t)str_hash(str_z(text));
    if (rc->nhashes == rc->hashes_cap) {
        rc->hashes_cap = rc->hashes_cap * 2 + 16;
        rc->hashes = mem_realloc(rc->hashes, rc->hashes_cap * sizeof *rc->hashes);
        RJ_BUG_ON(!rc->hashes);
    }
    rc->hashes[rc->nhashes++] = hash;
    for (uint32_t i = 1; h->warned && i <= h->warned[0]; i++)
        if (h->warned[i] == hash) return;
    for (uint32_t i = 0; i + 1 < rc->nhashes; i++)
        if (rc->hashes[i] == hash) return;
    if (rc->warn) rc->warn(rc->arg, text);
}

static void rc_keep_warnings(struct rc *rc, struct rc_host *h)
{
    mem_free(h->warned);
    h->warned = rc->nhashes ? mem_need((rc->nhashes + 1) * sizeof *h->warned) : NULL;
    if (!rc->nhashes) return;
    h->warned[0] = rc->nhashes;
    memcpy(h->warned + 1, rc->hashes, rc->nhashes * sizeof *h->warned);
    rc->nhashes = 0;
}

RJ_PRINTF(3, 4) static void rc_warn_backend(struct rc *rc, struct rc_backend *b, const char *fmt, ...)
{
    char text[1024];
    uint32_t hash;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    hash = (uint32_t)str_hash(str_z(text));
    if (hash != b->warned && rc->warn) rc->warn(rc->arg, text);
    b->warned = hash;
}

RJ_PRINTF(2, 3) static void rc_warn(struct rc *rc, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (rc->warn) rc->warn(rc->arg, text);
}

/* ---- index: hosts ---- */

static void rc_mark_host(struct rc *rc, struct rc_host *h)
{
    if (h->dirty || h->gone) return;
    h->dirty = true;
    h->next = rc->dirty_hosts;
    rc->dirty_hosts = h;
}

static void rc_mark_backend(struct rc *rc, struct rc_backend *b)
{
    if (b->dirty) return;
    b->dirty = true;
    b->next_dirty = rc->dirty_backends;
    rc->dirty_backends = b;
}

/* The entry of the host called name (any letter case), made when there is none. */
static struct rc_host *rc_host_at(struct rc *rc, struct str name)
{
    uint8_t low[256];
    struct rc_host *h;

    if (name.n > sizeof low) name.n = sizeof low;        /* too long for a host name: rc_add_ingress refuses it */
    for (size_t i = 0; i < name.n; i++) low[i] = str_lower(name.p[i]);
    if (name.n && low[name.n - 1] == '.') name.n--;
    name = str_of(low, name.n);
    h = rc_table_find(&rc->hosts, name);
    if (h) return h;
    h = mem_need(sizeof *h + name.n);
    if (name.n) memcpy(h + 1, low, name.n);
    h->name = str_of(h + 1, name.n);
    rc_table_add(&rc->hosts, h);
    return h;
}

/* Puts the Ingress into the lists of its hosts, or takes it out. */
static void rc_index_ingress(struct rc *rc, const struct obj_ingress *ing, bool add)
{
    for (uint32_t i = 0; i < ing->nrules + 1; i++) {
        struct rc_host *h;

        if (i == ing->nrules && !ing->fallback.present) break;
        h = rc_host_at(rc, i == ing->nrules ? RT_FALLBACK : str_eq(ing->rules[i].host, RT_FALLBACK) ? S("*.*") : ing->rules[i].host);
        if (!add) rc_list_remove(&h->ingresses, ing);
        else if (!h->ingresses.n || rc_list_items(&h->ingresses)[h->ingresses.n - 1] != ing) rc_list_add(&h->ingresses, ing);
        rc_mark_host(rc, h);
    }
}

/* ---- index: services ---- */

static struct rc_service *rc_service_at(struct rc *rc, struct str ns, struct str name)
{
    uint8_t text[RC_KEY_MAX];
    struct str_builder key = str_fixed(text, sizeof text);
    struct rc_service *s;

    str_put(&key, ns);
    str_put_c(&key, '/');
    str_put(&key, name);
    s = rc_table_find(&rc->services, str_built(&key));
    if (s) return s;
    s = mem_need(sizeof *s + key.n);
    memcpy(s + 1, key.p, key.n);
    s->key = str_of(s + 1, key.n);
    rc_table_add(&rc->services, s);
    return s;
}

static void rc_service_trim(struct rc *rc, struct rc_service *s)
{
    if (s->slices.n || s->backends) return;
    rc_table_remove(&rc->services, s->key);
    mem_free(s);
}

static void rc_mark_service(struct rc *rc, const struct rc_service *s, bool users)
{
    for (struct rc_backend *b = s->backends; b; b = b->next_of_service) {
        rc_mark_backend(rc, b);
        if (users && b->user) rc_mark_host(rc, b->user);
    }
}

static void rc_index_slice(struct rc *rc, const struct obj_slice *slice, bool add)
{
    struct rc_service *s;

    if (!slice->service.n || slice->o.ns.n + slice->service.n + 2 > RC_KEY_MAX) return;
    s = rc_service_at(rc, slice->o.ns, slice->service);
    rc_mark_service(rc, s, false);
    if (add) {
        rc_list_add(&s->slices, slice);
        return;
    }
    rc_list_remove(&s->slices, slice);
    rc_service_trim(rc, s);
}

/* obj_store.changed: keeps the indexes true and notes what is to be compiled. Either object may be NULL. */
static void rc_on_changed(void *arg, const struct obj *old, const struct obj *now)
{
    static const char *const kinds[] = {"ingress", "ingressclass", "service", "endpointslice"};
    struct rc *rc = arg;
    const struct obj *any = now ? now : old;

    if (now && now->bad.n)
        rc_warn(rc, "%s " STR_FMT ": " STR_FMT "; the object is not used", kinds[now->kind], STR_ARG(now->key), STR_ARG(now->bad));
    switch ((enum obj_kind)any->kind) {
    case OBJ_INGRESS:
        if (old) rc_index_ingress(rc, (const struct obj_ingress *)old, false);
        if (now && !now->bad.n) rc_index_ingress(rc, (const struct obj_ingress *)now, true);
        break;
    case OBJ_INGRESS_CLASS:
        rc->classes_changed = true;
        break;
    case OBJ_SERVICE: {
        const struct rc_service *s = rc_table_find(&rc->services, any->key);

        if (s) rc_mark_service(rc, s, true);
        break;
    }
    case OBJ_ENDPOINT_SLICE:
        if (old) rc_index_slice(rc, (const struct obj_slice *)old, false);
        if (now && !now->bad.n) rc_index_slice(rc, (const struct obj_slice *)now, true);
        break;
    case OBJ_KIND_COUNT: break;
    }
}

/* ---- names that are resolved ---- */

static struct rc_name *rc_name_get(struct rc *rc, struct str name)
{
    struct rc_name *n = rc_table_find(&rc->names, name);

    if (!n) {
        n = mem_need(sizeof *n + name.n);
        memcpy(n + 1, name.p, name.n);
        n->name = str_of(n + 1, name.n);
        n->rc = rc;
        rc_table_add(&rc->names, n);
        if (rc->name_new) rc->name_new(rc->arg, n);
    }
    n->refs++;
    return n;
}

static void rc_names_put(struct rc *rc, struct rc_list *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct rc_name *n = rc_list_items(l)[i];

        if (--n->refs) continue;
        if (rc->name_gone) rc->name_gone(rc->arg, n);
        rc_table_remove(&rc->names, n->name);
        mem_free(n->addrs);
        mem_free(n);
    }
    rc_list_free(l);
}

/* The resolver's answer (n == 0: the name has none). Returns true when backends are to be compiled again. */
static bool rc_set_addrs(struct rc_name *name, const struct net_addr *addrs, uint32_t n)
{
    struct rc_backend *b;
    uint32_t at = 0;

    if (n == name->n && (!n || memcmp(addrs, name->addrs, n * sizeof *addrs) == 0)) return false;
    mem_free(name->addrs);
    name->addrs = n ? mem_need(n * sizeof *addrs) : NULL;
    name->n = n;
    if (n) memcpy(name->addrs, addrs, n * sizeof *addrs);
    while ((b = rc_table_next(&name->rc->backends, &at)))
        for (uint32_t i = 0; i < b->names.n; i++)
            if (rc_list_items(&b->names)[i] == name) rc_mark_backend(name->rc, b);
    return true;
}

/* ---- backends ---- */

static struct rc_settings rc_settings_of(const struct cfg *c)
{
    struct rc_settings set = {c->hash_by.n ? RT_HASH : c->load_balance, c->upstream_keepalive, c->upstream_idle_ms, c->upstream_life_ms,
                              c->upstream_keepalive_requests, c->max_fails, c->fail_ms, c->slow_ms, c->retry_budget, {0}};

    if (c->hash_by.n) memcpy(set.hash_by, c->hash_by.p, c->hash_by.n);
    return set;
}

/* Puts the values of a section over the settings in c (a copy); a list replaces the one of [ramjet]. They were checked when they were read;
 * what they need of memory lasts until the end of the compile. */
static void rc_apply_values(struct rc *rc, struct cfg *c, const struct cfg_value *v, uint32_t n)
{
    bool reset[CFG_OPTION_COUNT] = {false};
    struct log_err err;

    for (uint32_t i = 0; i < n; i++) {
        if (!reset[v[i].option]) cfg_reset(c, v[i].option);
        reset[v[i].option] = true;
        if (cfg_set(c, &rc->scratch, v[i].option, v[i].text, &err) < 0) RJ_CHECK(false);
    }
}

/* The entry of the backend called name with the settings, made when there is none. usual: they are those it has without a rule's own. */
static struct rc_backend *rc_backend_at(struct rc *rc, struct str name, bool cluster, const struct rc_settings *set, bool usual)
{
    uint8_t text[RC_KEY_MAX];
    struct str_builder key = str_fixed(text, sizeof text);
    struct rc_backend *b;

    str_put(&key, name);
    str_put(&key, cluster ? S("\0k") : S("\0f"));
    if (!usual) str_put(&key, str_of(set, sizeof *set));
    if (key.failed) return NULL;
    b = rc_table_find(&rc->backends, str_built(&key));
    if (b) return b;
    b = mem_need(sizeof *b + key.n);
    memcpy(b + 1, key.p, key.n);
    b->key = str_of(b + 1, key.n);
    b->name_n = (uint16_t)name.n;
    b->own_settings = !usual;
    b->slot = rt_slot_new(str_hash(b->key), b);
    rc_table_add(&rc->backends, b);
    rc_mark_backend(rc, b);
    return b;
}

static inline struct str rc_backend_name(const struct rc_backend *b) { return str_of(b->key.p, b->name_n); }
static inline struct str rc_backend_port_name(const struct rc_backend *b) { return str_of(b->key.p + b->name_n - b->port_name_n, b->port_name_n); }

/* Its settings: those of a rule, or the usual ones. */
static struct rc_settings rc_backend_settings(struct rc *rc, const struct rc_backend *b)
{
    const struct cfg_backend *file = b->service ? NULL : map_find(&rc->cfg->by_name, rc_backend_name(b));
    struct rc_settings set;
    struct cfg eff;

    if (b->own_settings) {
        memcpy(&set, b->key.p + b->key.n - sizeof set, sizeof set);
        return set;
    }
    if (!file) return rc_settings_of(rc->cfg);
    eff = *rc->cfg;
    rc_apply_values(rc, &eff, file->values, file->nvalues);
    return rc_settings_of(&eff);
}

/* Active checks: of backends in the file; the cluster checks its own. */
static void rc_set_checks(struct rc *rc, const struct rc_backend *b, struct rt_backend *head)
{
    const struct cfg_backend *file = b->service ? NULL : map_find(&rc->cfg->by_name, rc_backend_name(b));
    struct cfg eff = *rc->cfg;

    if (!file) return;
    rc_apply_values(rc, &eff, file->values, file->nvalues);
    if (!eff.check_path.n) return;
    head->check_path = eff.check_path;
    head->check_host = eff.check_host;
    head->check_ms = eff.check_ms;
    head->check_timeout_ms = eff.check_timeout_ms;
    head->check_rise = eff.check_rise;
    head->check_fall = eff.check_fall;
}

/* The backend for a Service's port. */
static struct rc_backend *rc_backend_of_service(struct rc *rc, struct str ns, const struct obj_backend *o, const struct rc_settings *set)
{
    struct rc_settings usual = rc_settings_of(rc->cfg);
    uint8_t text[RC_KEY_MAX];
    struct str_builder name = str_fixed(text, sizeof text - 64);
    struct rc_backend *b;

    str_put(&name, ns);
    str_put_c(&name, '/');
    str_put(&name, o->service);
    if (o->port_name.n || o->port) str_put_c(&name, ':');
    if (o->port_name.n) str_put(&name, o->port_name);
    else if (o->port) str_put_u64(&name, o->port);
    if (name.failed) return NULL;
    b = rc_backend_at(rc, str_built(&name), true, set, memcmp(set, &usual, sizeof usual) == 0);
    if (!b || b->service) return b;
    b->service = rc_service_at(rc, ns, o->service);
    b->next_of_service = b->service->backends;
    b->service->backends = b;
    b->port = o->port;
    b->port_name_n = (uint16_t)o->port_name.n;
    return b;
}

/* The [backend] called name, for a route with these values of its own. */
static struct rc_backend *rc_backend_of_file(struct rc *rc, struct str name, const struct cfg_route *route)
{
    const struct cfg_backend *file = map_find(&rc->cfg->by_name, name);
    struct cfg eff = *rc->cfg;
    struct rc_settings usual, set;

    if (file) rc_apply_values(rc, &eff, file->values, file->nvalues);
    usual = rc_settings_of(&eff);
    if (route) rc_apply_values(rc, &eff, route->values, route->nvalues);
    set = rc_settings_of(&eff);
    return rc_backend_at(rc, name, false, &set, memcmp(&set, &usual, sizeof set) == 0);
}

static void rc_add_endpoint(struct rc *rc, const struct net_addr *addr, uint16_t port, uint32_t weight)
{
    struct rt_endpoint *e;

    if (rc->nendpoints == rc->endpoints_cap) {
        rc->endpoints_cap = rc->endpoints_cap * 2 + 16;
        rc->endpoints = mem_realloc(rc->endpoints, rc->endpoints_cap * sizeof *e);
        RJ_BUG_ON(!rc->endpoints);
    }
    e = &rc->endpoints[rc->nendpoints++];
    *e = (struct rt_endpoint){.addr = *addr, .weight = weight};
    e->addr.port = port;
}

/* The addresses that the name has now, of one family: IPv4 when there is any. */
static void rc_add_name(struct rc *rc, struct rc_list *names, struct str host, uint16_t port, uint32_t weight)
{
    struct rc_name *n = rc_name_get(rc, host);
    uint8_t family = AF_INET6;

    rc_list_add(names, n);
    for (uint32_t i = 0; i < n->n; i++)
        if (n->addrs[i].family == AF_INET) family = AF_INET;
    for (uint32_t i = 0; i < n->n; i++)
        if (n->addrs[i].family == family) rc_add_endpoint(rc, &n->addrs[i], port, weight);
}

static int rc_endpoint_cmp(const void *a, const void *b)
{
    const struct rt_endpoint *x = a, *y = b;
    int c = memcmp(x->addr.ip, y->addr.ip, 16);

    return c ? c : (int)x->addr.port - (int)y->addr.port;
}

/* Sorted, each address once: the order of slices and of their names does not matter. */
static void rc_sort_endpoints(struct rc *rc)
{
    uint32_t n = 0;

    if (rc->nendpoints > 1) qsort(rc->endpoints, rc->nendpoints, sizeof *rc->endpoints, rc_endpoint_cmp);
    for (uint32_t i = 0; i < rc->nendpoints; i++) {
        if (n && rc_endpoint_cmp(&rc->endpoints[n - 1], &rc->endpoints[i]) == 0) continue;
        rc->endpoints[n++] = rc->endpoints[i];
    }
    rc->nendpoints = n;
}

/* The Service's port that the backend names, or NULL. */
static const struct obj_port *rc_service_port(const struct obj_service *s, struct str name, uint16_t port)
{
    for (uint32_t i = 0; i < s->nports; i++) {
        if (name.n ? str_eq(s->ports[i].name, name) : !port || s->ports[i].port == port) return &s->ports[i];
    }
    return NULL;
}

/* Adds the endpoints of the slice that stand for the Service's port: ready ones, or those that still serve while they terminate. */
static void rc_add_slice(struct rc *rc, const struct obj_slice *slice, const struct obj_port *port, bool ready)
{
    for (uint32_t k = 0; k < slice->nports; k++) {
        if (!str_eq(slice->ports[k].name, port->name)) continue;
        for (uint32_t i = 0; i < slice->nendpoints; i++) {
            const struct obj_endpoint *e = &slice->endpoints[i];

            if (ready ? !e->ready : e->ready || !e->serving || !e->terminating) continue;
            rc_add_endpoint(rc, &e->addr, slice->ports[k].port ? slice->ports[k].port : port->port, 1);
        }
    }
}

/* All ready endpoints; if none is, those that serve and terminate. Of a dual-stack Service one family: IPv4 unless only IPv6 has any. */
static void rc_service_endpoints(struct rc *rc, struct rc_backend *b, const struct obj_port *port)
{
    static const struct { bool ready; uint8_t family; } steps[] = {{true, AF_INET}, {true, AF_INET6}, {false, AF_INET}, {false, AF_INET6}};
    void **slices = rc_list_items(&b->service->slices);

    for (uint32_t i = 0; i < b->service->slices.n; i++) {
        const struct obj_slice *s = slices[i];

        if (!s->family) rc_warn_backend(rc, b, "endpointslice " STR_FMT ": addressType FQDN is not supported", STR_ARG(s->o.key));
        else if (!s->nports && s->nendpoints)
            rc_warn_backend(rc, b, "endpointslice " STR_FMT ": no TCP port, so its endpoints cannot be reached", STR_ARG(s->o.key));
    }
    for (size_t step = 0; step < RJ_COUNT(steps) && !rc->nendpoints; step++)
        for (uint32_t i = 0; i < b->service->slices.n; i++) {
            const struct obj_slice *s = slices[i];

            if (s->family == steps[step].family) rc_add_slice(rc, s, port, steps[step].ready);
        }
    rc_sort_endpoints(rc);
}

static void rc_gather_service(struct rc *rc, struct rc_backend *b, struct rc_list *names)
{
    const struct obj_service *s = rc->store ? map_find(&rc->store->kind[OBJ_SERVICE], b->service->key) : NULL;
    const struct obj_port *port;
    struct net_addr addr;

    if (!s || s->o.bad.n) return;
    port = rc_service_port(s, rc_backend_port_name(b), b->port);
    if (!s->external_name.n) {
        if (port) rc_service_endpoints(rc, b, port);
        return;
    }
    if (!port && !b->port) return;
    if (str_to_ip(s->external_name, &addr)) rc_add_endpoint(rc, &addr, port ? port->port : b->port, 1);
    else rc_add_name(rc, names, s->external_name, port ? port->port : b->port, 1);
}

static void rc_gather_file(struct rc *rc, const struct rc_backend *b, struct rc_list *names)
{
    const struct cfg_backend *f = map_find(&rc->cfg->by_name, rc_backend_name(b));

    for (uint32_t i = 0; f && i < f->nendpoints; i++) {
        const struct cfg_endpoint *e = &f->endpoints[i];

        if (e->addr.family) rc_add_endpoint(rc, &e->addr, e->addr.port, e->weight);
        else rc_add_name(rc, names, e->host, e->addr.port, e->weight);
    }
}

static void rc_compile_backend(struct rc *rc, struct rc_backend *b, struct rt_changes *out)
{
    struct rc_list names = {0}, before = b->names;
    struct rc_settings set = rc_backend_settings(rc, b);
    struct rt_backend head = {.name = rc_backend_name(b), .hash = str_hash(b->key), .balance = (uint8_t)set.balance, .keepalive = set.keepalive,
                              .keepalive_ms = set.keepalive_ms, .keepalive_life_ms = set.life_ms, .keepalive_requests = set.requests,
                              .max_fails = set.max_fails, .fail_ms = set.fail_ms, .slow_ms = set.slow_ms, .retry_percent = set.retry_percent,
                              .hash_by = str_z(set.hash_by)};

    b->dirty = false;
    rc_set_checks(rc, b, &head);
    rc->nendpoints = 0;
    if (b->service) rc_gather_service(rc, b, &names);
    else rc_gather_file(rc, b, &names);
    b->names = names;
    rc_names_put(rc, &before);
    rt_changes_add(out, (struct rt_change){.slot = b->slot, .backend = rt_backend_new(&head, rc->endpoints, rc->nendpoints)});
}

/* Forgets the backends that no rule of a kept generation points to any more. */
static void rc_sweep(struct rc *rc)
{
    uint32_t slot;

    while ((slot = rt_slot_dying()) != RT_NO_BACKEND) {
        struct rc_backend *b = rj.rt.slots[slot].owner;

        if (b->dirty) {
            struct rc_backend **link = &rc->dirty_backends;

            while (*link != b) link = &(*link)->next_dirty;
            *link = b->next_dirty;
        }
        rc_table_remove(&rc->backends, b->key);
        if (b->service) {
            struct rc_backend **link = &b->service->backends;

            while (*link != b) link = &(*link)->next_of_service;
            *link = b->next_of_service;
            rc_service_trim(rc, b->service);
        }
        rc_names_put(rc, &b->names);
        rt_slot_free(slot);
        mem_free(b);
    }
}

/* ---- which Ingresses are ours ---- */

static bool rc_class_is_ours(const struct rc *rc, const struct obj_class *c) { return !c->o.bad.n && str_eq(c->controller, rc->cfg->controller_class); }

static void rc_find_default_class(struct rc *rc)
{
    const struct obj_class *c;
    uint32_t at = 0;

    rc->has_default_class = false;
    while (rc->store && (c = map_next(&rc->store->kind[OBJ_INGRESS_CLASS], &at)))
        if (c->is_default && rc_class_is_ours(rc, c)) rc->has_default_class = true;
}

/* The old annotation counts before spec.ingressClassName. A class that exists is ours by its controller, one that does not by its name. */
static bool rc_is_ours(const struct rc *rc, const struct obj_ingress *ing)
{
    struct str name = ing->class_annotation.n ? ing->class_annotation : ing->class_name;
    const struct obj_class *c;

    if (!ing->class_annotation.n && !ing->has_class_name) return rc->cfg->watch_without_class || rc->has_default_class;
    c = map_find(&rc->store->kind[OBJ_INGRESS_CLASS], name);
    if (c && rc_class_is_ours(rc, c)) return true;
    return str_eq(name, rc->cfg->ingress_class) && (!c || ing->class_annotation.n);
}

/* ---- hosts ---- */

/* Puts n bytes, aligned for every type, at the end of a block. */
static uint32_t rc_put_bytes(struct str_builder *b, const void *p, size_t n)
{
    uint32_t at = (uint32_t)(b->n + 7) & ~7u;

    while (b->n < at) str_put_c(b, 0);
    str_put(b, str_of(p, n));
    return at;
}

static struct rt_span rc_put_text(struct str_builder *b, struct str s) { return (struct rt_span){rc_put_bytes(b, s.p, s.n), (uint32_t)s.n}; }

static int rc_range_cmp(const void *a, const void *b)
{
    const struct rt_range *x = a, *y = b;

    return rt_number_cmp(x->low, y->low);
}

/* The addresses from low to high, bits of which are the network's. */
static struct rt_range rc_range_of(const struct net_cidr *c)
{
    const uint64_t ip[2] = {__builtin_bswap64(rt_load64(c->ip)), __builtin_bswap64(rt_load64(c->ip + 8))};
    const uint64_t host[2] = {c->bits >= 64 ? 0 : UINT64_MAX >> c->bits, c->bits <= 64 ? UINT64_MAX : c->bits >= 128 ? 0 : UINT64_MAX >> (c->bits - 64)};

    return (struct rt_range){{ip[0] & ~host[0], ip[1] & ~host[1]}, {ip[0] | host[0], ip[1] | host[1]}};
}

/* The networks as sorted ranges that do not touch. A network of IPv6 that holds the mapped addresses does not mean IPv4 with it. */
static struct rt_span rc_put_ranges(struct rc *rc, struct str_builder *b, const struct cfg_cidrs *c)
{
    struct rt_range *v = mem_arena_alloc(&rc->scratch, (2 * (size_t)c->n + 1) * sizeof *v);
    static const uint64_t first[2] = {0, 0xffff00000000u}, last[2] = {0, 0xffffffffffffu}; /* of the mapped ones */
    uint32_t n = 0, kept = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        struct rt_range r = rc_range_of(&c->v[i]);

        if (c->v[i].bits < 96 && rt_number_cmp(r.low, first) <= 0 && rt_number_cmp(r.high, last) >= 0) {
            v[n++] = (struct rt_range){{r.low[0], r.low[1]}, {0, first[1] - 1}};
            r.low[1] = last[1] + 1;
        }
        v[n++] = r;
    }
    if (n > 1) qsort(v, n, sizeof *v, rc_range_cmp);
    for (uint32_t i = 0; i < n; i++) {
        struct rt_range *before = kept ? &v[kept - 1] : NULL;

        if (!before || rt_number_cmp(v[i].low, before->high) > 0) v[kept++] = v[i];
        else if (rt_number_cmp(v[i].high, before->high) > 0) memcpy(before->high, v[i].high, sizeof before->high);
    }
    return (struct rt_span){rc_put_bytes(b, v, kept * sizeof *v), kept};
}

/* A field is set or hidden: known ones become a bit, others a name. */
static void rc_take_name(struct rc *rc, struct str_builder *b, struct rt_rules *r, struct rt_span *names, struct str name, bool set)
{
    enum http_field_id id = http_field_find(name);
    struct str lower = str_dup(&rc->scratch, name);

    if (id >= HTTP_F_FW_AGREES) id = HTTP_F_NONE;        /* many names have this one */
    if (id) r->taken |= 1ull << id;
    if (id && set) r->own |= 1ull << id;
    if (id) return;
    for (size_t i = 0; i < lower.n; i++) ((uint8_t *)(uintptr_t)lower.p)[i] = str_lower(lower.p[i]);
    names[r->names.n++] = rc_put_text(b, lower);
}

static void rc_put_fields(struct rc *rc, struct str_builder *b, struct rt_rules *r, const struct cfg *c)
{
    struct rt_span *names = mem_arena_alloc(&rc->scratch, ((size_t)c->custom_headers.n + c->hide_headers.n + 1) * sizeof *names);
    struct str_builder fields = str_growing();

    for (uint32_t i = 0; i < c->custom_headers.n; i++) {
        struct str one = c->custom_headers.v[i];

        rc_take_name(rc, b, r, names, str_of(one.p, str_find(one, ':')), true);
        str_put(&fields, one);
        str_put(&fields, S("\r\n"));
    }
    for (uint32_t i = 0; i < c->hide_headers.n; i++) rc_take_name(rc, b, r, names, c->hide_headers.v[i], false);
    RJ_BUG_ON(fields.failed);
    r->fields = rc_put_text(b, str_built(&fields));
    r->names.at = rc_put_bytes(b, names, r->names.n * sizeof *names);
    if (c->custom_headers.n || c->hide_headers.n) r->uses |= RT_SETS_FIELDS;
    str_free(&fields);
}

static struct rt_span rc_put_field(struct str_builder *b, struct str name, struct str value)
{
    struct rt_span at = {.n = (uint32_t)(name.n + value.n + 4)};

    at.at = rc_put_bytes(b, name.p, name.n);
    str_put(b, S(": "));
    str_put(b, value);
    str_put(b, S("\r\n"));
    return at;
}

/* limit-rps and limit-rpm as buckets. Up to the multiplier times the limit a client may be ahead. */
static void rc_put_limits(struct rt_rules *r, const struct cfg *c, struct str owner)
{
    const struct { uint32_t limit, s; } rates[RT_RATES] = {[RT_RATE_SECOND] = {c->limit_rps, 1}, [RT_RATE_MINUTE] = {c->limit_rpm, 60}};

    for (int i = 0; i < RT_RATES; i++) {
        if (!rates[i].limit) continue;
        r->rate[i].each = (uint64_t)LM_TICKS_PER_S * rates[i].s / rates[i].limit;
        r->rate[i].slack = r->rate[i].each * rates[i].limit * c->limit_burst_multiplier;
        r->uses |= RT_LIMITS_RATE;
    }
    r->connections = c->limit_connections;
    if (r->connections) r->uses |= RT_LIMITS_CONNECTIONS;
    if (r->uses & (RT_LIMITS_RATE | RT_LIMITS_CONNECTIONS)) r->route = str_hash(owner);
}

/* The request rules that the settings ask for, in the scratch arena; NULL when they ask for none. owner: whose limits they are. */
static struct rt_rules *rc_rules_of(struct rc *rc, const struct cfg *c, struct str owner)
{
    static const uint16_t statuses[] = {301, 302, 303, 307, 308}; /* as the options have them */
    struct str to = c->temporal_redirect.n ? c->temporal_redirect : c->permanent_redirect, prefix = c->path_replace_prefix;
    struct str_builder b = str_growing();
    struct rt_rules r = {0}, *out = NULL;

    if (!(c->denylist_source_range.n || c->whitelist_source_range.n || c->limit_rps || c->limit_rpm || c->limit_connections || to.n || prefix.n ||
          c->path_strip_prefix || c->custom_headers.n || c->hide_headers.n))
        return NULL;
    str_put(&b, str_of(&r, sizeof r));
    r.denied = rc_put_ranges(rc, &b, &c->denylist_source_range);
    r.allowed = rc_put_ranges(rc, &b, &c->whitelist_source_range);
    if (r.denied.n) r.uses |= RT_DENIES;
    if (r.allowed.n) r.uses |= RT_ALLOWS;
    rc_put_limits(&r, c, owner);
    if (r.route) r.exempt = rc_put_ranges(rc, &b, &c->limit_allowlist);
    if (to.n) {
        r.uses |= RT_REDIRECTS;
        r.redirect_status = statuses[c->temporal_redirect.n ? c->temporal_redirect_code : c->permanent_redirect_code];
        r.location = rc_put_field(&b, S("Location"), to);
    }
    if (prefix.n || c->path_strip_prefix) {
        r.uses |= RT_REWRITES;
        if (prefix.n && prefix.p[prefix.n - 1] == '/') prefix.n--;
        r.prefix = rc_put_text(&b, prefix);
        if (c->x_forwarded_prefix.n) r.forwarded_prefix = rc_put_field(&b, S("X-Forwarded-Prefix"), c->x_forwarded_prefix);
    }
    rc_put_fields(rc, &b, &r, c);
    RJ_BUG_ON(b.failed);                                 /* half a block would be read past its end */
    out = mem_arena_alloc(&rc->scratch, b.n);
    r.size = (uint32_t)b.n;
    memcpy(out, b.p, b.n);
    memcpy(out, &r, sizeof r);
    lm_open(r.uses);
    str_free(&b);
    return out;
}

/* A rule on its way into a host block; the first in order wins. */
struct rc_rule {
    struct rt_rule rule;
    uint32_t order;
};

/* proxy-tunnel-timeout. Where it is not set, whoever has made the other timeouts long for the sake of tunnels gets what was meant. */
static uint32_t rc_tunnel_ms(const struct cfg *c)
{
    uint32_t ms = c->proxy_read_ms > c->proxy_send_ms ? c->proxy_read_ms : c->proxy_send_ms;

    if (c->proxy_tunnel_ms) return c->proxy_tunnel_ms;
    return ms > PX_TUNNEL_MS ? ms : PX_TUNNEL_MS;
}

/* The policy of a rule that belongs to `owner` and has its path. */
static struct rt_policy *rc_policy_of(struct rc *rc, const struct cfg *c, struct str owner)
{
    struct rt_policy *p = mem_arena_zero(&rc->scratch, sizeof *p); /* padding too: equal policies are found by their bytes */

    p->rules = rc_rules_of(rc, c, owner);
    p->body_bytes = c->body_bytes;
    p->connect_ms = c->proxy_connect_ms;
    p->send_ms = c->proxy_send_ms;
    p->read_ms = c->proxy_read_ms;
    p->tunnel_ms = rc_tunnel_ms(c);
    p->head_bytes = (uint32_t)c->proxy_head_bytes;
    p->next_ms = c->proxy_next_ms;
    p->next = c->proxy_next & (2 * RT_NEXT_429 - 1);
    p->tries = (uint16_t)c->proxy_tries;
    p->access_log = !c->disable_access_log;
    p->request_buffering = c->request_buffering;
    p->retry_non_idempotent = c->retry_non_idempotent || c->proxy_next >= 2 * RT_NEXT_429;
    return p;
}

static void rc_add_rule(struct rc *rc, struct rt_rule rule)
{
    if (rc->nrules == rc->rules_cap) {
        rc->rules_cap = rc->rules_cap * 2 + 16;
        rc->rules = mem_realloc(rc->rules, rc->rules_cap * sizeof *rc->rules);
        RJ_BUG_ON(!rc->rules);
    }
    if (str_find(rule.path, '%') < rule.path.n) {
        uint8_t *plain = mem_arena_alloc(&rc->scratch, rule.path.n);
        long n = http_path_normalize(rule.path, plain);

        if (n > 0) rule.path = str_of(plain, (size_t)n); /* requests are matched in this form */
    }
    if (rule.type == RT_PREFIX && rule.path.n && rule.path.p[rule.path.n - 1] == '/') rule.path.n--;
    rule.metric = mtr_route_id(rule.name);
    rc->rules[rc->nrules] = (struct rc_rule){rule, rc->nrules};
    rc->nrules++;
}

static void rc_add_routes(struct rc *rc, struct rc_host *h)
{
    for (uint32_t i = 0; i < h->routes.n; i++) {
        const struct cfg_route *t = rc_list_items(&h->routes)[i];
        struct rc_backend *b = t->backend.n ? rc_backend_of_file(rc, t->backend, t) : NULL;
        struct cfg eff = *rc->cfg;

        rc_apply_values(rc, &eff, t->values, t->nvalues);
        if (b) b->user = h;
        rc_add_rule(rc, (struct rt_rule){.path = t->path, .type = t->exact ? RT_EXACT : RT_PREFIX, .backend = b ? b->slot : RT_NO_BACKEND,
                                         .policy = rc_policy_of(rc, &eff, t->name), .name = t->name});
    }
}

/* Applies one annotation to eff, or leaves it as it was. 0, or -1 with why. */
static int rc_apply_annotation(struct rc *rc, struct cfg *eff, int option, struct str value, struct log_err *err)
{
    struct cfg now = *eff;

    cfg_reset(&now, option);
    if (cfg_set(&now, &rc->scratch, option, value, err) < 0) return -1;
    *eff = now;
    return 0;
}

/* Applies the Ingress's annotations to eff. With tell, says which ones do nothing. A bad access list lets nobody in. */
static void rc_apply_annotations(struct rc *rc, struct rc_host *h, const struct obj_ingress *ing, struct cfg *eff, bool tell)
{
    static const struct { const char *text; uint8_t n; } prefixes[] = {{"nginx.ingress.kubernetes.io/", 28}, {"ramjet.io/", 10}};
    bool closed = false;
    struct log_err err;

    for (size_t k = 0; k < RJ_COUNT(prefixes); k++)
        for (uint32_t i = 0; i < ing->nannotations; i++) {
            const struct obj_pair *a = &ing->annotations[i];
            bool list;
            int option;

            if (!str_starts(a->name, str_of(prefixes[k].text, prefixes[k].n))) continue;
            option = cfg_option_find(str_from(a->name, prefixes[k].n));
            if (option < 0 || !(cfg_info[option].where & (CFG_R | CFG_B))) {
                if (tell) rc_warn_host(rc, h, "ingress " STR_FMT ": annotation " STR_FMT " is not supported", STR_ARG(ing->o.key), STR_ARG(a->name));
                continue;
            }
            if (!str_trim(a->value).n || rc_apply_annotation(rc, eff, option, a->value, &err) == 0) continue;
            list = option == CFG_O_denylist_source_range || option == CFG_O_whitelist_source_range;
            closed |= list;
            if (tell)
                rc_warn_host(rc, h, "ingress " STR_FMT ": annotation " STR_FMT ": %s; %s", STR_ARG(ing->o.key), STR_ARG(a->name), err.text,
                             list ? "all clients get 403" : "it is not used");
        }
    if (closed && rc_apply_annotation(rc, eff, CFG_O_whitelist_source_range, S("255.255.255.255"), &err) < 0) RJ_CHECK(false); /* nobody's address */
}

/* Says what keeps the backend from being reached, when something does. */
static void rc_check_backend(struct rc *rc, struct rc_host *h, const struct obj_ingress *ing, const struct obj_backend *o, const char *field)
{
    uint8_t text[RC_KEY_MAX];
    struct str_builder key = str_fixed(text, sizeof text);
    const struct obj_service *s;

    str_put(&key, ing->o.ns);
    str_put_c(&key, '/');
    str_put(&key, o->service);
    s = map_find(&rc->store->kind[OBJ_SERVICE], str_built(&key));
    if (!s) {
        rc_warn_host(rc, h, "ingress " STR_FMT ": %s: there is no service " STR_FMT "; answers 503", STR_ARG(ing->o.key), field, STR_ARG(str_built(&key)));
        return;
    }
    if (rc_service_port(s, o->port_name, o->port) || (s->external_name.n && o->port)) return;
    if (o->port_name.n)
        rc_warn_host(rc, h, "ingress " STR_FMT ": %s: service " STR_FMT " has no port named \"" STR_FMT "\"; answers 503", STR_ARG(ing->o.key), field,
                     STR_ARG(s->o.key), STR_ARG(o->port_name));
    else
        rc_warn_host(rc, h, "ingress " STR_FMT ": %s: service " STR_FMT " has no port %u; answers 503", STR_ARG(ing->o.key), field, STR_ARG(s->o.key), o->port);
}

/* The slot for a backend of an Ingress, or RT_NO_BACKEND with a warning. */
static uint32_t rc_slot_of(struct rc *rc, struct rc_host *h, const struct obj_ingress *ing, const struct obj_backend *o, const struct rc_settings *set,
                           const char *field)
{
    struct rc_backend *b = NULL;

    if (o->resource) {
        rc_warn_host(rc, h, "ingress " STR_FMT ": %s.resource is not supported, expected a service; answers 503", STR_ARG(ing->o.key), field);
    } else if (!o->present || !o->service.n || (!o->port && !o->port_name.n)) {
        rc_warn_host(rc, h, "ingress " STR_FMT ": %s has no service with a port; answers 503", STR_ARG(ing->o.key), field);
    } else {
        b = rc_backend_of_service(rc, ing->o.ns, o, set);
        rc_check_backend(rc, h, ing, o, field);
    }
    if (!b) return RT_NO_BACKEND;
    b->user = h;
    return b->slot;
}

/* True when the rule is one for the host; the name was cut and lowered as rc_host_at does. */
static bool rc_rule_is_for(const struct obj_rule *r, const struct rc_host *h)
{
    struct str host = r->host;

    if (host.n && host.p[host.n - 1] == '.') host.n--;
    return str_ieq(host, h->name);
}

/* The rules that one Ingress has for the host. */
static void rc_add_ingress(struct rc *rc, struct rc_host *h, const struct obj_ingress *ing)
{
    bool first = rc_rule_is_for(&ing->rules[0], h);      /* the host whose compile tells what is wrong with the whole object */
    struct rt_policy *policy;
    struct rc_settings set;
    struct cfg eff = *rc->cfg;

    rc_apply_annotations(rc, h, ing, &eff, first);
    policy = rc_policy_of(rc, &eff, ing->o.key);
    set = rc_settings_of(&eff);
    for (uint32_t i = 0; i < ing->nrules; i++) {
        const struct obj_rule *r = &ing->rules[i];

        if (!rc_rule_is_for(r, h)) continue;
        for (uint32_t k = 0; k < r->npaths; k++) {
            const struct obj_path *p = &r->paths[k];
            struct str path = !p->path.n && p->type == OBJ_PATH_IMPLEMENTATION ? S("/") : p->path;
            const char *expected = cfg_path_bad(path);
            char field[64];

            snprintf(field, sizeof field, "spec.rules[%u].http.paths[%u].backend", i, k);
            if (expected) {
                rc_warn_host(rc, h, "ingress " STR_FMT ": spec.rules[%u].http.paths[%u].path: found \"" STR_FMT "\", expected %s; the rule is not used",
                             STR_ARG(ing->o.key), i, k, STR_ARG(path), expected);
                continue;
            }
            rc_add_rule(rc, (struct rt_rule){.path = path, .type = p->type == OBJ_PATH_EXACT ? RT_EXACT : RT_PREFIX,
                                             .backend = rc_slot_of(rc, h, ing, &p->backend, &set, field), .policy = policy, .name = ing->o.key});
        }
    }
}

static int rc_age_cmp(const void *a, const void *b)
{
    const struct obj_ingress *const *x = a, *const *y = b;

    if ((*x)->o.created != (*y)->o.created) return (*x)->o.created < (*y)->o.created ? -1 : 1;
    return str_cmp((*x)->o.key, (*y)->o.key);
}

static int rc_rule_cmp(const void *a, const void *b)
{
    const struct rc_rule *x = a, *y = b;
    int c = rt_rule_cmp(&x->rule, &y->rule);

    return c ? c : x->order < y->order ? -1 : x->order > y->order;
}

/* Of rules with equal path and type the oldest stays. */
static void rc_settle_conflicts(struct rc *rc, struct rc_host *h)
{
    uint32_t n = 0;

    if (rc->nrules) qsort(rc->rules, rc->nrules, sizeof *rc->rules, rc_rule_cmp);
    for (uint32_t i = 0; i < rc->nrules; i++) {
        const struct rt_rule *r = &rc->rules[i].rule;

        if (n && rt_rule_cmp(&rc->rules[n - 1].rule, r) == 0) {
            rc_warn_host(rc, h, "ingress " STR_FMT ": %s path " STR_FMT " of host " STR_FMT " belongs to " STR_FMT ", which is older; this rule is not used",
                         STR_ARG(r->name), r->type == RT_EXACT ? "exact" : "prefix", STR_ARG(rt_show_path(r->path)), STR_ARG(rt_show_host(h->name)),
                         STR_ARG(rc->rules[n - 1].rule.name));
            rt_slot_check(r->backend);
            continue;
        }
        rc->rules[n++] = rc->rules[i];
    }
    rc->nrules = n;
}

/* What takes the requests that no rule matches: the oldest Ingress with a default backend, else the option. */
static void rc_add_fallback(struct rc *rc, struct rc_host *h, const struct obj_ingress *ing)
{
    struct str option = rc->cfg->default_backend_service;
    struct rc_settings usual = rc_settings_of(rc->cfg);
    struct rc_backend *b = NULL;
    struct rt_rule rule = {.type = RT_PREFIX, .backend = RT_NO_BACKEND, .name = S("default-backend-service")};

    if (ing) {
        struct rc_settings set;
        struct cfg eff = *rc->cfg;

        rc_apply_annotations(rc, h, ing, &eff, !ing->nrules);
        set = rc_settings_of(&eff);
        rule.name = ing->o.key;
        rule.policy = rc_policy_of(rc, &eff, rule.name);
        rule.backend = rc_slot_of(rc, h, ing, &ing->fallback, &set, "spec.defaultBackend");
        rc_add_rule(rc, rule);
        return;
    }
    if (!option.n) return;
    if (map_find(&rc->cfg->by_name, option)) {
        b = rc_backend_of_file(rc, option, NULL);
    } else {
        size_t slash = str_find(option, '/'), colon = str_find(option, ':');
        struct obj_backend o = {.present = true};
        uint64_t port;

        if (slash >= option.n) return;
        o.service = str_of(option.p + slash + 1, colon - slash - 1);
        if (colon < option.n && str_to_u64(str_from(option, colon + 1), &port)) o.port = (uint16_t)port;
        else if (colon < option.n) o.port_name = str_from(option, colon + 1);
        b = rc_backend_of_service(rc, str_of(option.p, slash), &o, &usual);
    }
    if (b) b->user = h;
    if (b) rule.backend = b->slot;
    rule.policy = rc_policy_of(rc, rc->cfg, rule.name);
    rc_add_rule(rc, rule);
}

/* Our Ingresses of the host, the oldest first; in the scratch arena. */
static const struct obj_ingress **rc_our_ingresses(struct rc *rc, struct rc_host *h, uint32_t *n)
{
    const struct obj_ingress **v = mem_arena_alloc(&rc->scratch, (h->ingresses.n + 1) * sizeof *v);

    *n = 0;
    for (uint32_t i = 0; i < h->ingresses.n; i++) {
        const struct obj_ingress *ing = rc_list_items(&h->ingresses)[i];

        if (rc_is_ours(rc, ing)) v[(*n)++] = ing;
    }
    if (*n > 1) qsort(v, *n, sizeof *v, rc_age_cmp);
    return v;
}

static void rc_compile_host(struct rc *rc, struct rc_host *h, struct rt_changes *out)
{
    bool fallback = str_eq(h->name, RT_FALLBACK);
    const struct obj_ingress **ours;
    struct rt_host *block = NULL;
    uint32_t n;

    h->dirty = false;
    rc->nrules = 0;
    ours = rc_our_ingresses(rc, h, &n);
    if (fallback) rc_add_fallback(rc, h, n ? ours[0] : NULL);
    else rc_add_routes(rc, h);
    if (!fallback && h->name.n && n && !cfg_host_ok(h->name)) {
        for (uint32_t i = 0; i < n; i++)
            rc_warn_host(rc, h, "ingress " STR_FMT ": host \"" STR_FMT "\" is no DNS name; its rules are not used", STR_ARG(ours[i]->o.key), STR_ARG(h->name));
        n = 0;
    }
    for (uint32_t i = 0; !fallback && i < n; i++) rc_add_ingress(rc, h, ours[i]);
    rc_settle_conflicts(rc, h);
    rc_keep_warnings(rc, h);
    if (rc->nrules) {
        struct rt_rule *rules = mem_arena_alloc(&rc->scratch, rc->nrules * sizeof *rules);

        for (uint32_t i = 0; i < rc->nrules; i++) rules[i] = rc->rules[i].rule;
        block = rt_host_new(h->name, rules, rc->nrules);
    }
    rt_changes_add(out, (struct rt_change){.name = h->name, .host = block, .slot = RT_NO_BACKEND});
    if (h->ingresses.n || h->routes.n || fallback || h->gone) return;
    rc_table_remove(&rc->hosts, h->name);
    h->gone = true;
    h->next = rc->gone_hosts;                            /* its name is in the list of changes: freed by the next compile */
    rc->gone_hosts = h;
}

static void rc_host_free(struct rc_host *h)
{
    rc_list_free(&h->ingresses);
    rc_list_free(&h->routes);
    mem_free(h->warned);
    mem_free(h);
}

static void rc_free_gone(struct rc *rc)
{
    while (rc->gone_hosts) {
        struct rc_host *h = rc->gone_hosts;
        struct rc_backend *b;
        uint32_t at = 0;

        rc->gone_hosts = h->next;
        while ((b = rc_table_next(&rc->backends, &at)))
            if (b->user == h) b->user = NULL;
        rc_host_free(h);
    }
}

static inline bool rc_is_dirty(const struct rc *rc) { return rc->dirty_hosts || rc->dirty_backends || rc->classes_changed; }

static void rc_mark_all_hosts(struct rc *rc)
{
    struct rc_host *h;
    uint32_t at = 0;

    while ((h = rc_table_next(&rc->hosts, &at))) rc_mark_host(rc, h);
}

/* Compiles what has changed since the last time into a list for rt_publish, which must follow before the next compile. */
static void rc_compile(struct rc *rc, struct rt_changes *out)
{
    rc_free_gone(rc);
    rc_sweep(rc);
    if (rc->classes_changed) {
        rc->classes_changed = false;
        rc_find_default_class(rc);
        rc_mark_all_hosts(rc);
    }
    while (rc->dirty_hosts) {
        struct rc_host *h = rc->dirty_hosts;

        rc->dirty_hosts = h->next;
        rc_compile_host(rc, h, out);
        if (rc->scratch.total > 65536) mem_arena_free(&rc->scratch);
    }
    while (rc->dirty_backends) {
        struct rc_backend *b = rc->dirty_backends;

        rc->dirty_backends = b->next_dirty;
        rc_compile_backend(rc, b, out);
    }
    mem_arena_free(&rc->scratch);
}

/* After a compile: gives back room that the tables had when they were much larger. True when there was any. */
static bool rc_trim(struct rc *rc)
{
    struct rc_table *tables[] = {&rc->hosts, &rc->services, &rc->backends, &rc->names};
    bool less = false;

    for (size_t i = 0; i < RJ_COUNT(tables); i++) less |= rc_table_trim(tables[i]);
    return less;
}

/* Takes other settings and routes of the file; everything is compiled again. Holds a reference. */
static void rc_set_config(struct rc *rc, const struct cfg *cfg)
{
    const struct cfg *old = rc->cfg;
    struct rc_backend *b;
    struct rc_host *h;
    uint32_t at = 0;

    rc->cfg = cfg_get(cfg);
    while ((h = rc_table_next(&rc->hosts, &at))) {
        rc_list_free(&h->routes);
        rc_mark_host(rc, h);
    }
    for (uint32_t i = 0; i < cfg->nroutes; i++) {
        h = rc_host_at(rc, cfg->routes[i].host);
        rc_list_add(&h->routes, &cfg->routes[i]);
        rc_mark_host(rc, h);
    }
    for (at = 0; (b = rc_table_next(&rc->backends, &at));) rc_mark_backend(rc, b);
    rc->classes_changed = true;
    if (old) cfg_put(old);
}

/* Prepares a compiler over the store (NULL: none); the caller sets store->changed to rc_on_changed and fills in the call-backs. */
static void rc_init(struct rc *rc, const struct obj_store *store, const struct cfg *cfg)
{
    *rc = (struct rc){.store = store};
    rc_mark_host(rc, rc_host_at(rc, RT_FALLBACK));
    rc_set_config(rc, cfg);
}

/* Frees everything; before rt_fini. */
static void rc_fini(struct rc *rc)
{
    struct rc_host *h;
    struct rc_service *s;
    struct rc_backend *b;
    uint32_t at = 0;

    rc_free_gone(rc);
    while ((h = rc_table_next(&rc->hosts, &at))) rc_host_free(h);
    for (at = 0; (b = rc_table_next(&rc->backends, &at));) {
        rc_names_put(rc, &b->names);
        mem_free(b);
    }
    for (at = 0; (s = rc_table_next(&rc->services, &at));) {
        rc_list_free(&s->slices);
        mem_free(s);
    }
    rc_table_free(&rc->hosts);
    rc_table_free(&rc->services);
    rc_table_free(&rc->backends);
    rc_table_free(&rc->names);
    mem_arena_free(&rc->scratch);
    mem_free(rc->rules);
    mem_free(rc->endpoints);
    mem_free(rc->hashes);
    lm_close();
    if (rc->cfg) cfg_put(rc->cfg);
    *rc = (struct rc){0};
}

/* ============================================================================
 * up_ : Endpoint state, pickers, pools
 *
 * Owns:    struct up, struct up_pool, struct up_group, struct up_conn, struct up_health, rj.health.
 * Calls:   sys_ mem_ str_ map_ clk_ mtr_ io_ http_ rt_
 * Threads: one struct up per worker, shared with nobody; rj.health is written by the control thread and read by all.
 * Rules:   1. A picker reads and returns; it changes only its cursor.
 *          2. State is found by identity (address, backend name), so it survives a publish.
 *          3. An idle connection has its receive armed: data or an end there closes it, it is never reused after either.
 * ========================================================================== */

/* Every bit of z changes half of the result (the finalizer of SplitMix64). */
static uint64_t up_scramble(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t up_random(struct up *up) { return up_scramble(up->random += 0x9e3779b97f4a7c15u); }

/* ---- connections ---- */

static void up_conn_gone(struct up_conn *c)
{
    clk_drop(&c->up->lp->clk, &c->timer);
    mem_pool_put(&c->up->conns, c);
}

/* A connection that nobody waits for any more. */
static void up_on_dead(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    (void)res;
    (void)buf;
    if (ev == IO_CLOSED) up_conn_gone(RJ_CONTAINER(s, struct up_conn, s));
}

/* Leaves the pool and closes. The owner may have set another handler that waits for IO_CLOSED. */
static void up_discard(struct up_conn *c)
{
    if (c->idle) {
        map_list_remove(&c->link);
        c->idle = false;
        c->pool->idle_n--;
        mtr_move(MTR_UP_IDLE, -1);
    } else {
        c->pool->active_n--;
        mtr_move(MTR_UP_ACTIVE, -1);
    }
    clk_disarm(&c->timer);
    io_close(c->up->lp, &c->s);
}

static void up_close_idle(struct up_conn *c)
{
    c->s.handle = up_on_dead;
    up_discard(c);
}

static void up_on_idle(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    (void)res;
    (void)buf;
    if (ev == IO_RECV) up_close_idle(RJ_CONTAINER(s, struct up_conn, s)); /* closed by the peer, or bytes that nobody asked for */
}

static void up_on_idle_timeout(struct clk_timer *t)
{
    struct up_conn *c = RJ_CONTAINER(t, struct up_conn, timer);

    if (c->idle) up_close_idle(c);
}

/* The exchange on c is over and both sides may go on: keeps it for the next one, or closes it when it is old or one too many, or when its
 * descriptor is one of the reserve: those that wait there for a request would keep others from being answered.
 * armed: the receive subscription is still active. */
static void up_release(struct up_conn *c, bool armed)
{
    struct up_pool *p = c->pool;
    struct io_loop *lp = c->up->lp;

    c->req = NULL;
    c->served++;
    if (p->gone || (p->keepalive_requests && c->served >= p->keepalive_requests) || p->idle_n >= p->keepalive || lp->clk.now_ms - c->born_ms >= p->life_ms ||
        (rj.fd_limit && c->s.fd >= rj.fd_limit)) {
        up_close_idle(c);
        return;
    }
    p->active_n--;
    p->idle_n++;
    mtr_move(MTR_UP_ACTIVE, -1);
    mtr_move(MTR_UP_IDLE, 1);
    c->idle = true;
    c->s.handle = up_on_idle;
    c->link.next = p->idle.next; /* at the front: the newest is taken first */
    c->link.prev = &p->idle;
    p->idle.next->prev = &c->link;
    p->idle.next = &c->link;
    clk_arm(&lp->clk, &c->timer, p->keepalive_ms);
    if (!armed) io_recv_start(lp, &c->s);
}

/* The newest idle connection of the pool, now active, or NULL. */
static struct up_conn *up_take(struct up *up, struct up_pool *p)
{
    struct up_conn *c;

    for (;;) {
        if (!p->idle_n) return NULL;
        c = RJ_CONTAINER(p->idle.next, struct up_conn, link);
        if (!(c->s.flags & (IO_S_HAS_IN | IO_S_HAS_HUP))) break;
        up_close_idle(c); /* epoll: bytes or an end stand there already */
    }
    map_list_remove(&c->link);
    c->idle = false;
    p->idle_n--;
    p->active_n++;
    mtr_move(MTR_UP_IDLE, -1);
    mtr_move(MTR_UP_ACTIVE, 1);
    clk_disarm(&c->timer);
    (void)up;
    return c;
}

/* Starts a new connection; IO_CONNECT follows on handle. NULL with *err when it cannot even be tried. */
static struct up_conn *up_connect(struct up *up, struct up_pool *p, void (*handle)(struct io_sock *, enum io_event, int, struct mem_buf *), int *err)
{
    struct up_conn *c = mem_pool_get(&up->conns);

    *err = -ENOMEM;
    if (!c) return NULL;
    memset(c, 0, sizeof *c);
    io_sock_init(&c->s, handle);
    c->up = up;
    c->pool = p;
    c->timer.fire = up_on_idle_timeout;
    c->born_ms = up->lp->clk.now_ms;
    *err = io_connect_sa(up->lp, &c->s, &p->sa, p->sa_n);
    if (*err < 0) {
        mem_pool_put(&up->conns, c);
        return NULL;
    }
    p->active_n++;
    mtr_move(MTR_UP_ACTIVE, 1);
    mtr_add(MTR_UP_OPENED, 1);
    return c;
}

/* ---- results of active checks ----
 * A table of fixed size that is never moved or freed, so that workers read it without a lock: open addressing, a place is given once to a
 * key and kept for it until the control thread gives it to another. */

static uint64_t up_health_key(uint64_t backend_hash, uint64_t addr_hash)
{
    uint64_t key = up_scramble(backend_hash ^ up_scramble(addr_hash));

    return key > UP_HEALTH_FREE ? key : key + 2;
}

/* The place of key, or NULL. Any thread. */
static struct up_health *up_health_find(uint64_t key)
{
    for (uint32_t i = 0; i < UP_HEALTH_PLACES; i++) {
        struct up_health *h = &rj.health[(key + i) % UP_HEALTH_PLACES];
        uint64_t k = atomic_load_explicit(&h->key, memory_order_acquire); /* up_health_add releases */

        if (k == key) return h;
        if (!k) return NULL;
    }
    return NULL;
}

/* A place for key, which is healthy; NULL when UP_HEALTH_MAX are in use. Control thread. */
static struct up_health *up_health_add(uint64_t key)
{
    struct up_health *h = up_health_find(key);

    if (h) return h;
    if (rj.health_n == UP_HEALTH_MAX) return NULL;
    for (uint32_t i = 0;; i++) {
        uint64_t k;

        h = &rj.health[(key + i) % UP_HEALTH_PLACES];
        k = atomic_load_explicit(&h->key, memory_order_relaxed); /* written here only */
        if (!k || k == UP_HEALTH_FREE) break;
    }
    rj.health_n++;
    atomic_store_explicit(&h->down, 0, memory_order_relaxed); /* the release below */
    atomic_store_explicit(&h->back_ms, 0, memory_order_relaxed); /* the same */
    atomic_store_explicit(&h->key, key, memory_order_release); /* up_health_find acquires */
    atomic_fetch_add_explicit(&rj.health_version, 1, memory_order_release); /* up_group_for acquires */
    return h;
}

/* Nothing checks this place any more. A worker that still looks at it sees a healthy endpoint. Places behind which no key stands are as if
 * they were never used, so that a search does not grow longer with every endpoint that ever was. Control thread. */
static void up_health_drop(struct up_health *h)
{
    uint32_t at = (uint32_t)(h - rj.health);

    rj.health_n--;
    atomic_store_explicit(&h->down, 0, memory_order_relaxed); /* a hint for pickers; orders nothing */
    atomic_store_explicit(&h->key, UP_HEALTH_FREE, memory_order_relaxed); /* the same */
    if (!atomic_load_explicit(&rj.health[(at + 1) % UP_HEALTH_PLACES].key, memory_order_relaxed)) /* written here and in up_health_add only */
        for (; atomic_load_explicit(&rj.health[at].key, memory_order_relaxed) == UP_HEALTH_FREE; at = (at + UP_HEALTH_PLACES - 1) % UP_HEALTH_PLACES)
            atomic_store_explicit(&rj.health[at].key, 0, memory_order_relaxed); /* as above: no key stands behind it */
    atomic_fetch_add_explicit(&rj.health_version, 1, memory_order_release); /* up_group_for acquires */
}

/* ---- pools and groups ---- */

static struct up_pool *up_pool_for(struct up *up, const struct rt_backend *b, const struct rt_endpoint *e)
{
    struct up_pool **slot = &up->pools[e->hash % UP_TABLE], *p;

    for (p = *slot; p; p = p->next)
        if (p->hash == e->hash && str_addr_eq(&p->addr, &e->addr)) break;
    if (!p) {
        if (!(p = mem_alloc(sizeof *p))) return NULL;
        memset(p, 0, sizeof *p);
        p->addr = e->addr;
        p->hash = e->hash;
        p->sa_n = str_to_sockaddr(&e->addr, &p->sa);
        map_list_init(&p->idle);
        p->next = *slot;
        *slot = p;
    }
    p->keepalive = b->keepalive;
    p->keepalive_ms = b->keepalive_ms;
    p->keepalive_requests = b->keepalive_requests;
    p->life_ms = b->keepalive_life_ms;
    p->used_ms = up->lp->clk.now_ms;
    return p;
}

static uint32_t up_gcd(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t r = a % b;

        a = b;
        b = r;
    }
    return a;
}

/* Computes what depends on the backend's endpoints. False without memory. */
static bool up_group_refresh(struct up_group *g, const struct rt_backend *b, uint64_t generation)
{
    if (b->n > g->cap) {
        struct up_pool **pools = mem_realloc(g->pools, b->n * sizeof *pools);

        if (!pools) return false;
        g->pools = pools;
        mem_free(g->health);
        g->health = NULL;
        g->cap = b->n;
    }
    if (b->check_ms && b->n && !g->health && !(g->health = mem_alloc(g->cap * sizeof *g->health))) return false;
    g->health_version = atomic_load_explicit(&rj.health_version, memory_order_acquire); /* up_health_add releases */
    for (uint32_t i = 0; g->health && i < b->n; i++) g->health[i] = up_health_find(up_health_key(b->hash, b->ep[i].hash));
    g->n = b->n;
    g->total = 0;
    g->equal = true;
    for (uint32_t i = 0; i < b->n; i++) {
        g->pools[i] = NULL;
        g->total += b->ep[i].weight;
        if (b->ep[i].weight != b->ep[0].weight) g->equal = false;
    }
    g->step = (uint32_t)(g->total * 0.618) | 1; /* near the golden ratio: heavy endpoints are spread over the turn */
    while (g->total && up_gcd(g->step, g->total) != 1) g->step++;
    g->seen = b;
    g->seen_generation = generation;
    return true;
}

/* The balancing state of backend b as it stands in snapshot generation, or NULL without memory. */
static struct up_group *up_group_for(struct up *up, const struct rt_backend *b, uint64_t generation)
{
    struct up_group **slot = &up->groups[b->hash % UP_TABLE], *g;

    for (g = *slot; g && g->hash != b->hash; g = g->next) {}
    if (!g) {
        if (!(g = mem_alloc(sizeof *g))) return NULL;
        memset(g, 0, sizeof *g);
        g->hash = b->hash;
        g->cursor = (uint32_t)up_random(up); /* workers and replicas start at different places */
        g->next = *slot;
        *slot = g;
    }
    g->used_ms = up->lp->clk.now_ms;
    if (RJ_UNLIKELY(b->check_ms && g->health_version != atomic_load_explicit(&rj.health_version, memory_order_relaxed))) g->seen = NULL;
    if (RJ_UNLIKELY(g->seen != b || g->seen_generation != generation) && !up_group_refresh(g, b, generation)) return NULL;
    return g;
}

static struct up_pool *up_pool_at(struct up *up, struct up_group *g, const struct rt_backend *b, uint32_t i)
{
    if (!g->pools[i]) g->pools[i] = up_pool_for(up, b, &b->ep[i]);
    if (g->pools[i]) {
        g->pools[i]->used_ms = up->lp->clk.now_ms;
        g->pools[i]->gone = false;
    }
    return g->pools[i];
}

/* The endpoints with these addresses are in no backend any more: their idle connections end, and those in use behind their exchange. */
static void up_leave(struct up *up, const struct rt_gone *gone)
{
    for (uint32_t i = 0; i < gone->n; i++)
        for (struct up_pool *p = up->pools[gone->hash[i] % UP_TABLE]; p; p = p->next) {
            if (p->hash != gone->hash[i]) continue;
            p->gone = true;
            while (p->idle_n) up_close_idle(RJ_CONTAINER(p->idle.next, struct up_conn, link));
        }
}

/* ---- pickers ---- */

/* What a pick knows: which endpoints were tried (the first 64 are remembered) and whose request it is. */
struct up_choice {
    uint64_t tried;
    uint64_t hash;                                       /* of what upstream-hash-by or ip_hash looks at */
    bool eager;                                          /* also endpoints that are slow to start or full */
    bool any;                                            /* also endpoints that are out */
};

/* An endpoint that came back takes a part of its requests that grows with time: at least a tenth, all of them after slow-start. */
static bool up_is_starting(struct up *up, uint64_t back_ms, uint32_t slow_ms)
{
    uint64_t age = up->lp->clk.now_ms - back_ms;

    if (!back_ms || up->lp->clk.now_ms < back_ms || age >= slow_ms) return false;
    return up_random(up) % slow_ms >= (age > slow_ms / 10 ? age : slow_ms / 10);
}

static bool up_may(struct up *up, struct up_group *g, const struct rt_backend *b, uint32_t i, const struct up_choice *c)
{
    const struct up_health *h = b->check_ms && g->health ? g->health[i] : NULL;
    const struct up_pool *p;

    if (i < 64 && c->tried >> i & 1) return false;
    if (!b->ep[i].weight) return false;
    if (c->any) return true;
    if (h && atomic_load_explicit(&h->down, memory_order_relaxed)) return false; /* a hint; chk_ writes it */
    p = g->pools[i];
    if (p && p->down_until_ms > up->lp->clk.now_ms) return false;
    if (c->eager || !b->slow_ms) return true;
    if (h && up_is_starting(up, atomic_load_explicit(&h->back_ms, memory_order_relaxed), b->slow_ms)) return false; /* the same */
    return !p || !up_is_starting(up, p->back_ms, b->slow_ms);
}

static uint32_t up_by_weight(const struct rt_backend *b, uint32_t at)
{
    uint32_t i = 0;

    while (i + 1 < b->n && at >= b->ep[i].weight) at -= b->ep[i++].weight;
    return i;
}

/* Where a picker starts to look; the first usable endpoint from there on is taken. */
static uint32_t up_first(struct up_group *g, const struct rt_backend *b)
{
    if (g->equal || !g->total) return g->cursor++ % g->n;
    return up_by_weight(b, (uint32_t)((uint64_t)g->cursor++ * g->step % g->total));
}

/* Cost of endpoint i for least_conn, random and ewma: lower is better. Idle endpoints cost the same, so that the weighted start decides. */
static uint64_t up_cost(struct up_group *g, const struct rt_backend *b, uint32_t i)
{
    const struct up_pool *p = g->pools[i];
    uint64_t active = p ? p->active_n : 0, cost = b->balance == RT_EWMA ? (active + 1) * ((p ? p->ewma_us : 0) + 1ull) : active;

    return cost * 1000 / (b->ep[i].weight ? b->ep[i].weight : 1);
}

/* log2(1 + i / 64) in units of 1 / 65536 */
static const uint32_t up_log2[65] = {
    0, 1466, 2909, 4331, 5732, 7112, 8473, 9814, 11136, 12440, 13727, 14996, 16248, 17484, 18704, 19909, 21098, 22272, 23433, 24579, 25711,
    26830, 27936, 29029, 30109, 31178, 32234, 33279, 34312, 35334, 36346, 37346, 38336, 39316, 40286, 41246, 42196, 43137, 44068, 44990,
    45904, 46809, 47705, 48593, 49472, 50344, 51207, 52063, 52911, 53751, 54584, 55410, 56229, 57040, 57845, 58643, 59434, 60219, 60997,
    61769, 62534, 63294, 64047, 64794, 65536,
};

/* -log2((h + 1) / 2^64) in units of 1 / 65536, at least 1: exponentially distributed when h is random. */
static uint64_t up_neg_log2(uint64_t h)
{
    unsigned zeros = h ? (unsigned)__builtin_clzll(h) : 63;
    uint64_t m = h << zeros << 1;                        /* what follows the first set bit */
    uint32_t at = (uint32_t)(m >> 58), low = up_log2[at], rest = (uint32_t)(m >> 42 & 0xffff);
    uint64_t log = low + ((uint64_t)(up_log2[at + 1] - low) * rest >> 16), whole = (uint64_t)(zeros + 1) << 16;

    return whole > log ? whole - log : 1;
}

/* Holds i more than UP_FULL_PERCENT of its share of this worker's requests, and more than a few? *active: all of them, UINT64_MAX until they
 * are asked for, which few picks do (among 5,000 endpoints the sum was 4 of the 15.5 us of a pick). */
static bool up_is_full(struct up_group *g, const struct rt_backend *b, uint32_t i, uint64_t *active)
{
    uint64_t own = g->pools[i] ? g->pools[i]->active_n : 0;

    if (own < UP_FULL_MIN) return false;
    if (*active == UINT64_MAX) {
        *active = 0;
        for (uint32_t k = 0; k < b->n; k++) *active += g->pools[k] ? g->pools[k]->active_n : 0;
    }
    return own * 100 * g->total > (*active + 1) * UP_FULL_PERCENT * b->ep[i].weight;
}

/* Rendezvous hashing: every endpoint draws a number from the key, the lowest one for its weight wins. When endpoints come or go, only
 * the keys of those move. An endpoint that is out or full is passed over for the key's next one. O(n), no table to keep. */
static int up_pick_hash(struct up *up, struct up_group *g, const struct rt_backend *b, const struct up_choice *c)
{
    uint64_t lowest = UINT64_MAX, active = UINT64_MAX;
    int best = -1;

    for (uint32_t i = 0; i < b->n; i++) {
        uint64_t draw = up_scramble(c->hash ^ up_scramble(b->ep[i].hash));

        if (!g->equal) draw = (up_neg_log2(draw) << 24) / (b->ep[i].weight ? b->ep[i].weight : 1);
        if (draw >= lowest || !up_may(up, g, b, i, c) || (!c->eager && up_is_full(g, b, i, &active))) continue;
        lowest = draw;
        best = (int)i;
    }
    return best;
}

static int up_pick_once(struct up *up, struct up_group *g, const struct rt_backend *b, const struct up_choice *c, uint32_t first)
{
    int best = -1;

    if (b->balance == RT_IP_HASH || b->balance == RT_HASH) return up_pick_hash(up, g, b, c);
    if (b->balance == RT_RANDOM || b->balance == RT_EWMA) {
        for (int k = 0; k < 2; k++) { /* the power of two choices */
            uint32_t i = up_by_weight(b, (uint32_t)(up_random(up) % (g->total ? g->total : 1)));

            if (up_may(up, g, b, i, c) && (best < 0 || up_cost(g, b, i) < up_cost(g, b, (uint32_t)best))) best = (int)i;
        }
        if (best >= 0) return best;
    }
    for (uint32_t k = 0; k < b->n; k++) {
        uint32_t i = first + k < b->n ? first + k : first + k - b->n;

        if (!up_may(up, g, b, i, c)) continue;
        if (b->balance != RT_LEAST_CONN) return (int)i;
        if (best < 0 || up_cost(g, b, i) < up_cost(g, b, (uint32_t)best)) best = (int)i;
    }
    return best;
}

/* Position of the endpoint to use, or -1 when all were tried (of which the first 64 are remembered).
 * Endpoints that are out are used when nothing else is left. */
static int up_pick(struct up *up, struct up_group *g, const struct rt_backend *b, struct up_choice c)
{
    uint32_t first;
    int i;

    if (!b->n) return -1;
    first = up_first(g, b);
    if ((i = up_pick_once(up, g, b, &c, first)) >= 0) return i;
    c.eager = true;
    if ((i = up_pick_once(up, g, b, &c, first)) >= 0) return i;
    c.any = true;
    return up_pick_once(up, g, b, &c, first);
}

/* ---- what a hash looks at ---- */

/* The value of cookie name in the Cookie fields; empty when there is none. */
static struct str up_cookie(const struct http_msg *m, const uint8_t *head, struct str name)
{
    for (uint32_t i = 0; i < m->nfields; i++) {
        struct str rest = str_of(head + m->field[i].value_at, m->field[i].value_n), item, key;

        if (m->field[i].id != HTTP_F_COOKIE) continue;
        while (str_cut(&rest, ';', &item)) {
            item = str_trim(item);
            if (str_cut(&item, '=', &key) && str_eq(key, name)) return item;
        }
    }
    return (struct str){0};
}

/* The first field called name, in which `_` stands for `-`; empty when there is none. */
static struct str up_field(const struct http_msg *m, const uint8_t *head, struct str name)
{
    for (uint32_t i = 0; i < m->nfields; i++) {
        const uint8_t *p = head + m->field[i].name_at;
        uint32_t k = 0;

        if (m->field[i].name_n != name.n) continue;
        while (k < name.n && (name.p[k] == '_' ? '-' : str_lower(name.p[k])) == str_lower(p[k])) k++;
        if (k == name.n) return str_of(head + m->field[i].value_at, m->field[i].value_n);
    }
    return (struct str){0};
}

/* The value of argument name in the query; empty when there is none. */
static struct str up_argument(struct str query, struct str name)
{
    struct str item, key;

    while (str_cut(&query, '&', &item))
        if (str_cut(&item, '=', &key) && str_eq(key, name)) return item;
    return (struct str){0};
}

/* The hash of upstream-hash-by: text and variables ($request_uri, $http_NAME, ...), each piece by itself. by was checked by cfg_. */
static uint64_t up_hash_by(struct str by, const struct up_request *q)
{
    const struct http_msg *m = q->msg;
    uint64_t hash = 0;

    while (by.n) {
        struct str name, value = {0};
        size_t n = 1;

        while (n < by.n && by.p[n] != '$' && (by.p[0] != '$' || http_is_variable(by.p[n]))) n++;
        name = str_of(by.p, n);
        by = str_from(by, n);
        if (name.p[0] != '$') value = name;
        else if (str_starts(name, S("$http_"))) value = up_field(m, q->head, str_from(name, 6));
        else if (str_starts(name, S("$cookie_"))) value = up_cookie(m, q->head, str_from(name, 8));
        else if (str_starts(name, S("$arg_"))) value = up_argument(str_of(q->head + m->query_at, m->query_n), str_from(name, 5));
        else if (str_ends(name, S("remote_addr"))) value = str_of(q->client->ip, 16);
        else if (str_eq(name, S("$request_uri"))) value = str_of(q->head + m->target_at, m->target_n);
        else if (str_eq(name, S("$uri"))) value = q->path;
        else if (str_eq(name, S("$host"))) value = q->host;
        hash = str_hash_mix(hash, str_hash(value));
    }
    return hash;
}

/* What the choice of an endpoint of b (may be NULL) depends on; 0 for those that do not choose by a hash. */
static uint64_t up_hash(const struct rt_backend *b, struct up_request *q)
{
    uint8_t host[HTTP_HOST_MAX];

    if (!b) return 0;
    if (b->balance == RT_IP_HASH) return str_hash(str_of(q->client->ip, 16));
    if (b->balance != RT_HASH) return 0;
    q->host = str_of(host, http_host_form(str_of(q->head + q->msg->host_at, q->msg->host_n), host));
    return up_hash_by(b->hash_by, q);
}

/* ---- passive health ---- */

static void up_failed(struct up *up, struct up_pool *p, const struct rt_backend *b)
{
    uint64_t now = up->lp->clk.now_ms;

    mtr_bump(&p->failures, 1);
    if (!b || !b->max_fails) return;
    if (now - p->fail_from_ms > b->fail_ms) {
        p->fail_from_ms = now;
        p->fails = 0;
    }
    if (++p->fails < b->max_fails) return;
    p->down_until_ms = p->back_ms = now + b->fail_ms;
}

/* ---- the retry budget ----
 * Every request earns a part of a try, every second one, up to a number that covers a burst: whatever fails, a backend gets no more than
 * that many requests on top of its clients' own. Counted in hundredths of a try. */

static void up_earn(struct up *up, struct up_group *g, const struct rt_backend *b)
{
    uint64_t second = up->lp->clk.now_ms / 1000, idle = g->budget_s ? second - g->budget_s : UP_BUDGET_IDLE;

    if (idle && g->budget < UP_BUDGET_IDLE * 100) {
        g->budget += (uint32_t)(idle < UP_BUDGET_IDLE ? idle : UP_BUDGET_IDLE) * 100;
        if (g->budget > UP_BUDGET_IDLE * 100) g->budget = UP_BUDGET_IDLE * 100;
    }
    g->budget_s = second;
    if (g->budget < UP_BUDGET_MAX * 100) g->budget += b->retry_percent;
}

/* One more try of a request that an endpoint may have got: false when the budget is spent. */
static bool up_spend(struct up_group *g)
{
    if (g->budget < 100) return false;
    g->budget -= 100;
    return true;
}

/* A response head came after us. */
static void up_succeeded(struct up_pool *p, uint64_t us)
{
    p->fails = 0;
    if (RJ_UNLIKELY(p->down_until_ms > p->used_ms)) p->back_ms = p->used_ms; /* all were out, and it was tried */
    p->down_until_ms = 0;
    p->ewma_us = p->ewma_us ? (uint32_t)((p->ewma_us * 7ull + us) / 8) : (uint32_t)us;
}

/* ---- life ---- */

/* Frees the state of endpoints and backends that nothing has used for a while. */
static void up_on_sweep(struct clk_timer *t)
{
    struct up *up = RJ_CONTAINER(t, struct up, sweep);
    uint64_t now = up->lp->clk.now_ms;
    bool freed = false;

    for (size_t i = 0; i < UP_TABLE; i++) {
        for (struct up_pool **at = &up->pools[i], *p; (p = *at);) {
            if (p->idle_n || p->active_n || now - p->used_ms < UP_FORGET_MS) {
                at = &p->next;
                continue;
            }
            *at = p->next;
            mem_free(p);
            freed = true;
        }
    }
    for (size_t i = 0; i < UP_TABLE; i++) {
        for (struct up_group **at = &up->groups[i], *g; (g = *at);) {
            if (freed) g->seen = NULL; /* its pools are looked up again */
            if (now - g->used_ms < UP_FORGET_MS) {
                at = &g->next;
                continue;
            }
            *at = g->next;
            mem_free(g->pools);
            mem_free(g->health);
            mem_free(g);
        }
    }
    clk_arm(&up->lp->clk, &up->sweep, UP_SWEEP_MS);
}

static void up_init(struct up *up, struct io_loop *lp)
{
    up->lp = lp;
    mem_pool_init(&up->conns, sizeof(struct up_conn), MEM_SLAB_BYTES, &lp->mapped, 0);
    up->sweep.fire = up_on_sweep;
    sys_getrandom(&up->random, sizeof up->random);
    clk_arm(&lp->clk, &up->sweep, UP_SWEEP_MS);
}

/* Closes all idle connections (drain). */
static void up_close_all_idle(struct up *up)
{
    for (size_t i = 0; i < UP_TABLE; i++)
        for (struct up_pool *p = up->pools[i]; p; p = p->next)
            while (p->idle_n) up_close_idle(RJ_CONTAINER(p->idle.next, struct up_conn, link));
}

/* After the loop has closed every socket. */
static void up_fini(struct up *up)
{
    clk_drop(&up->lp->clk, &up->sweep);
    for (size_t i = 0; i < UP_TABLE; i++) {
        for (struct up_pool *p = up->pools[i], *next; p; p = next) {
            next = p->next;
            mem_free(p);
        }
        for (struct up_group *g = up->groups[i], *next; g; g = next) {
            next = g->next;
            mem_free(g->pools);
            mem_free(g->health);
            mem_free(g);
        }
    }
    mem_pool_fini(&up->conns);
}

/* ============================================================================
 * chk_ : Active health checks
 *
 * Owns:    struct chk, struct chk_target.
 * Calls:   mem_ str_ map_ clk_ log_ io_ rt_ up_
 * Threads: control.
 * Rules:   1. A target has one check at a time, on a connection of its own; of the answer the status line is read.
 *          2. A target is healthy until check-fall checks in a row have failed, and again after check-rise good ones.
 *          3. What is checked follows every publication: a target that is gone ends, and its place in rj.health with it.
 * ========================================================================== */

static void chk_free(struct chk_target *t)
{
    clk_drop(&t->chk->loop->clk, &t->timer);
    mem_free(t);
}

/* Counts a result, tells the workers when it changes something, and waits for the next turn. why: NULL for a good one. */
static void chk_count(struct chk_target *t, const char *why)
{
    bool down = atomic_load_explicit(&t->health->down, memory_order_relaxed); /* written below only */

    t->chk->results[why != NULL]++;
    t->bad = why ? t->bad + 1 : 0;
    t->good = why ? 0 : t->good + 1;
    clk_arm(&t->chk->loop->clk, &t->timer, t->every_ms);
    if (down ? t->good < t->rise : t->bad < t->fall) return;
    if (down) atomic_store_explicit(&t->health->back_ms, t->chk->loop->clk.now_ms, memory_order_relaxed); /* hints for pickers; */
    atomic_store_explicit(&t->health->down, !down, memory_order_relaxed);                                 /* they order nothing */
    if (down) log_info("chk", "backend " STR_FMT ": endpoint %s is back after %u good checks", STR_ARG(t->backend), t->address, t->good);
    else log_warn("chk", "backend " STR_FMT ": endpoint %s is out after %u failed checks: GET " STR_FMT ": %s", STR_ARG(t->backend), t->address, t->bad,
                  STR_ARG(t->path), why);
}

static void chk_end(struct chk_target *t, const char *why)
{
    if (!t->health || !io_is_open(&t->s)) return;
    io_close(t->chk->loop, &t->s);
    io_outq_clear(&t->q);
    chk_count(t, why);
}

/* The status line so far. A status of 2xx or 3xx is good. */
static void chk_on_line(struct chk_target *t)
{
    const uint8_t *p = t->line;
    bool begins = memcmp(p, "HTTP/1.", t->line_n < 7 ? t->line_n : 7) == 0;

    if (begins && t->line_n < CHK_LINE) return;
    if (!begins || !str_is_digit(p[7]) || p[8] != ' ' || !str_is_digit(p[9]) || !str_is_digit(p[10]) || !str_is_digit(p[11])) {
        chk_end(t, "no HTTP/1.x status line");
        return;
    }
    snprintf(t->why, sizeof t->why, "status %.3s", p + 9);
    chk_end(t, p[9] == '2' || p[9] == '3' ? NULL : t->why);
}

static void chk_on_event(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct chk_target *t = RJ_CONTAINER(s, struct chk_target, s);

    switch (ev) {
    case IO_CONNECT:
        if (res < 0) {
            chk_end(t, strerror(-res));
            break;
        }
        io_recv_start(t->chk->loop, s);
        io_outq_add(&t->q, t->request, t->request_n, NULL);
        io_send(t->chk->loop, s, &t->q);
        break;
    case IO_SENT:
        io_outq_sent(&t->q, res);
        if (res >= 0 && t->q.n) io_send(t->chk->loop, s, &t->q);
        break;
    case IO_RECV:
        if (res <= 0) {
            chk_end(t, "the connection ended before the status line");
            break;
        }
        if ((uint32_t)res > CHK_LINE - t->line_n) res = (int)(CHK_LINE - t->line_n);
        memcpy(t->line + t->line_n, buf->data, (size_t)res);
        t->line_n += (uint32_t)res;
        chk_on_line(t);
        break;
    case IO_CLOSED:
        t->open = false;
        if (!t->health) chk_free(t);
        break;
    case IO_ACCEPT:
    case IO_READY:
    case IO_STOPPED: break;
    }
}

/* A check is due, or the running one is too late. */
static void chk_on_timer(struct clk_timer *timer)
{
    struct chk_target *t = RJ_CONTAINER(timer, struct chk_target, timer);
    int rc;

    if (io_is_open(&t->s)) {
        snprintf(t->why, sizeof t->why, "no answer within %u ms", t->timeout_ms);
        chk_end(t, t->why);
        return;
    }
    if (t->open) { /* the last one is still closing */
        clk_arm(&t->chk->loop->clk, timer, 1);
        return;
    }
    t->line_n = 0;
    io_sock_init(&t->s, chk_on_event);
    rc = io_tcp_connect(t->chk->loop, &t->s, &t->addr);
    if (rc < 0) {
        chk_count(t, strerror(-rc));
        return;
    }
    t->open = true;
    clk_arm(&t->chk->loop->clk, timer, t->timeout_ms);
}

/* Nobody uses the target any more. */
static void chk_drop(struct chk_target *t)
{
    map_list_remove(&t->link);
    t->chk->at[t->health - rj.health] = NULL;
    up_health_drop(t->health);
    t->health = NULL;
    t->chk->n--;
    clk_disarm(&t->timer);
    if (io_is_open(&t->s)) io_close(t->chk->loop, &t->s);
    if (!t->open) chk_free(t);
}

/* A new target; NULL when there is no room for another. */
static struct chk_target *chk_add(struct chk *c, const struct rt_backend *b, const struct rt_endpoint *e)
{
    struct up_health *h = up_health_add(up_health_key(b->hash, e->hash));
    struct str host = b->check_host;
    struct str_builder sb;
    struct chk_target *t;
    uint8_t address[64];

    if (!h) {
        if (!c->full) log_error("chk", "backend " STR_FMT ": check-path: %d endpoints are checked already, no more are", STR_ARG(b->name), UP_HEALTH_MAX);
        c->full = true;
        return NULL;
    }
    sb = str_fixed(address, sizeof address);
    str_put_addr(&sb, &e->addr);
    if (!host.n) host = str_built(&sb);
    t = mem_need(sizeof *t + b->name.n + CHK_REQUEST_MAX + b->check_path.n + host.n);
    snprintf(t->address, sizeof t->address, STR_FMT, STR_ARG(str_built(&sb)));
    t->chk = c;
    t->health = h;
    t->addr = e->addr;
    t->s.fd = -1;
    t->timer.fire = chk_on_timer;
    t->backend = str_of(t + 1, b->name.n);
    memcpy(t + 1, b->name.p, b->name.n);
    t->request = (uint8_t *)(t + 1) + b->name.n;
    sb = str_fixed(t->request, CHK_REQUEST_MAX + b->check_path.n + host.n);
    str_putf(&sb, "GET " STR_FMT " HTTP/1.1\r\nHost: " STR_FMT "\r\nUser-Agent: ramjet-check\r\nConnection: close\r\n\r\n",
             STR_ARG(b->check_path), STR_ARG(host));
    t->request_n = (uint32_t)sb.n;
    t->path = str_of(t->request + 4, b->check_path.n);
    t->host = str_of(t->path.p + t->path.n + sizeof " HTTP/1.1\r\nHost: " - 1, host.n);
    map_list_add(&c->targets, &t->link);
    c->at[h - rj.health] = t;
    c->n++;
    clk_arm(&c->loop->clk, &t->timer, 1 + b->check_ms * (c->n % 16) / 16); /* not all at once */
    return t;
}

/* Endpoint e of b is to be checked from here on as b says. */
static void chk_want(struct chk *c, const struct rt_backend *b, const struct rt_endpoint *e)
{
    struct up_health *h = up_health_find(up_health_key(b->hash, e->hash));
    struct chk_target *t = h ? c->at[h - rj.health] : NULL;

    if (t && (!str_eq(t->path, b->check_path) || !str_eq(t->host, b->check_host.n ? b->check_host : str_z(t->address)))) {
        chk_drop(t);
        t = NULL;
    }
    if (!t && !(t = chk_add(c, b, e))) return;
    t->every_ms = b->check_ms;
    t->timeout_ms = b->check_timeout_ms;
    t->rise = b->check_rise;
    t->fall = b->check_fall;
    t->round = c->round;
}

/* Follows what was published last. */
static void chk_update(struct chk *c)
{
    struct map_link *l, *next;

    c->round++;
    c->full = false;
    for (uint32_t i = 0; i < rj.rt.nslots; i++) {
        const struct rt_backend *b = rj.rt.slots[i].latest;

        if (!b || !b->check_ms) continue;
        if (!c->at) c->at = mem_need(UP_HEALTH_PLACES * sizeof *c->at);
        for (uint32_t k = 0; k < b->n; k++) chk_want(c, b, &b->ep[k]);
    }
    for (l = c->targets.next; l != &c->targets; l = next) {
        struct chk_target *t = RJ_CONTAINER(l, struct chk_target, link);

        next = l->next;
        if (t->round != c->round) chk_drop(t);
    }
}

static void chk_init(struct chk *c, struct io_loop *loop)
{
    c->loop = loop;
    map_list_init(&c->targets);
}

/* Ends every check; memory that a closing socket still has goes with the turns of the loop that follow. */
static void chk_fini(struct chk *c)
{
    while (c->targets.next && !map_list_empty(&c->targets)) chk_drop(RJ_CONTAINER(c->targets.next, struct chk_target, link));
    mem_free(c->at);
    c->at = NULL;
}

/* ============================================================================
 * mw_ : Middleware
 *
 * Owns:    struct mw_ctx, struct mw_hops; the table MW_STEPS.
 * Calls:   str_ http_ rt_ lm_
 * Threads: workers; pure but for what mw_ctx marks as out and what lm_ counts.
 * Rules:   1. A step is one table row and answers CONTINUE, ANSWER or WAIT.
 *          2. No step touches a socket.
 * ========================================================================== */

/* A network of IPv6 holds no IPv4 address, not even all of it; a peer on a Unix socket has none that could be named. */
static bool mw_is_trusted(const struct cfg *cfg, const struct net_addr *a)
{
    for (uint32_t i = 0; i < cfg->proxy_real_ip.n; i++) {
        const struct net_cidr *c = &cfg->proxy_real_ip.v[i];

        if ((a->family == AF_INET ? c->bits >= 96 : a->family == AF_INET6) && str_cidr_has(c, a->ip)) return true;
    }
    return false;
}

/* ---- who is speaking ---- */

/* The hops that fields name, the nearest last. The client is the last one that is not trusted, or the first of the trusted ones behind what
 * is no address; family 0: there is none. */
struct mw_hops {
    struct net_addr client;
    struct str scheme, host;                             /* that the client used, by Forwarded */
};

/* `1.2.3.4`, `1.2.3.4:567`, `[::1]`, `[::1]:80`, and with bare `::1`. The port tells nothing and is only checked. */
static bool mw_to_hop(struct str s, bool bare, struct net_addr *out)
{
    size_t at;
    uint64_t port;

    if (!s.n) return false;
    at = s.p[0] == '[' ? str_find(s, ']') + 1 : str_find(s, ':');
    if (at > s.n) return false;
    if (s.p[0] != '[' && at < s.n && str_find(str_from(s, at + 1), ':') < s.n - at - 1) at = s.n; /* colons of an address */
    if (at < s.n && (s.p[at] != ':' || s.n - at > 6 || !str_to_u64(str_from(s, at + 1), &port) || port > 65535)) return false;
    if (!str_to_ip(str_of(s.p, at), out) || (out->family == AF_INET6 && !bare && s.p[0] != '[')) return false;
    str_unmap(out);
    return true;
}

/* True when the client is this hop as far as is known now. */
static bool mw_take_hop(const struct cfg *cfg, struct mw_hops *h, struct str text, bool bare)
{
    struct net_addr a;

    if (!mw_to_hop(text, bare, &a)) {
        h->client.family = 0;
        return false;
    }
    if (h->client.family && mw_is_trusted(cfg, &a)) return false;
    h->client = a;
    return true;
}

/* X-Forwarded-For, all lines of it as one list. False when there is none. */
static bool mw_read_for(struct mw_ctx *m, struct mw_hops *h)
{
    bool any = false;

    for (uint32_t i = 0; i < m->msg->nfields; i++) {
        const struct http_field *f = &m->msg->field[i];
        struct str rest = str_of(m->head + f->value_at, f->value_n), item;

        if (f->id != HTTP_F_X_FORWARDED_FOR) continue;
        any = true;
        while (str_cut(&rest, ',', &item)) {
            if (!mw_take_hop(m->cfg, h, str_trim(item), true)) continue;
            m->hop_field = i;
            m->hop_at = (uint32_t)(item.p + item.n - m->head);
        }
    }
    return any;
}

/* A token or a quoted string at the front of rest. False for an empty token, an open quote and for escapes, which nothing here needs. */
static bool mw_take_value(struct str *rest, struct str *value)
{
    bool quoted = rest->n && rest->p[0] == '"';
    size_t i = quoted;

    while (i < rest->n && (quoted ? rest->p[i] != '"' && rest->p[i] != '\\' : http_is(rest->p[i], HTTP_C_TOKEN))) i++;
    if (quoted ? i == rest->n || rest->p[i] != '"' : i == 0) return false;
    *value = str_of(rest->p + quoted, i - quoted);
    *rest = str_from(*rest, i + quoted);
    return true;
}

/* One forwarded-element at the front of rest (RFC 7239 section 4): what `for`, `host` and `proto` say. False when it is malformed. */
static bool mw_take_element(struct str *rest, struct str said[3])
{
    static const char *const names[3] = {"for", "host", "proto"};
    struct str name, value;

    memset(said, 0, 3 * sizeof *said);
    while (rest->n && rest->p[0] != ',' && !http_is_ows(rest->p[0])) {
        if (rest->p[0] != ';') {
            if (rest->p[0] == '"' || !mw_take_value(rest, &name) || !rest->n || rest->p[0] != '=') return false;
            *rest = str_from(*rest, 1);
            if (!mw_take_value(rest, &value)) return false;
            for (int i = 0; i < 3; i++) {
                if (!str_ieq(name, str_z(names[i]))) continue;
                if (said[i].p) return false;
                said[i] = value;
            }
        }
        if (rest->n && rest->p[0] == ';') *rest = str_from(*rest, 1);
        else break;
    }
    return true;
}

/* The scheme that v names, or empty. */
static struct str mw_to_scheme(struct str v)
{
    static const char *const names[] = {"http", "https", "ws", "wss"};

    for (size_t i = 0; i < RJ_COUNT(names); i++)
        if (str_ieq(v, str_z(names[i]))) return str_z(names[i]);
    return (struct str){0};
}

/* Forwarded, all lines of it as one list; of one that is malformed nothing is believed. */
static void mw_read_forwarded(struct mw_ctx *m, struct mw_hops *h)
{
    for (uint32_t i = 0; i < m->msg->nfields; i++) {
        const struct http_field *f = &m->msg->field[i];
        struct str rest = str_of(m->head + f->value_at, f->value_n), said[3];

        if (f->id != HTTP_F_FORWARDED) continue;
        for (;; rest = str_from(rest, 1)) {
            rest = str_trim(rest);
            if (!mw_take_element(&rest, said) || ((rest = str_trim(rest)).n && rest.p[0] != ',')) {
                *h = (struct mw_hops){0};
                return;
            }
            if (mw_take_hop(m->cfg, h, said[0], false)) {
                h->host = said[1];
                h->scheme = mw_to_scheme(said[2]);
            }
            if (!rest.n) break;
        }
    }
}

/* The value of a field that was sent once; otherwise empty. */
static struct str mw_only(const struct mw_ctx *m, enum http_field_id id)
{
    struct str v = {0};

    for (uint32_t i = 0; i < m->msg->nfields; i++) {
        const struct http_field *f = &m->msg->field[i];

        if (f->id != id) continue;
        if (v.p) return (struct str){0};
        v = str_of(m->head + f->value_at, f->value_n);
    }
    return v;
}

/* Decides who is speaking, for everything that asks: the peer, or whom a trusted peer names. Runs before any rule is known. */
static void mw_client(struct mw_ctx *m)
{
    struct mw_hops h = {0};
    struct str v;
    uint64_t port;

    m->client = *m->peer;
    m->hop_field = m->msg->nfields;
    m->trusted = m->cfg->use_forwarded_headers && mw_is_trusted(m->cfg, m->peer);
    if (!m->trusted) return;
    if (!mw_read_for(m, &h)) mw_read_forwarded(m, &h);
    m->named = h.client.family != 0;
    if (m->named) m->client = h.client;
    else h = (struct mw_hops){0};
    m->scheme = mw_to_scheme(mw_only(m, HTTP_F_X_FORWARDED_PROTO));
    if (!m->scheme.n) m->scheme = mw_to_scheme(mw_only(m, HTTP_F_X_FORWARDED_SCHEME));
    if (!m->scheme.n) m->scheme = h.scheme;
    v = mw_only(m, HTTP_F_X_FORWARDED_HOST);
    if (!v.n) v = h.host;
    if (http_host_split(v)) m->host = v;
    v = mw_only(m, HTTP_F_X_FORWARDED_PORT);
    if (v.n <= 5 && str_to_u64(v, &port) && port <= 65535 && v.p[0] != '0') m->port = (uint16_t)port;
}

/* ---- the steps ---- */

static enum mw_verdict mw_refuse(struct mw_ctx *m, enum px_error error, const char *why)
{
    m->error = (uint8_t)error;
    m->why = why;
    return MW_ANSWER;
}

static enum mw_verdict mw_access(struct mw_ctx *m)
{
    const struct rt_rules *r = m->rule->policy->rules;

    if (r->denied.n && rt_rules_hold(r, r->denied, &m->client)) return mw_refuse(m, PX_DENIED, "denylist-source-range");
    if (r->allowed.n && !rt_rules_hold(r, r->allowed, &m->client)) return mw_refuse(m, PX_DENIED, "whitelist-source-range");
    return MW_CONTINUE;
}

/* A request that one of two rates refuses uses nothing of the other. */
static enum mw_verdict mw_rate(struct mw_ctx *m)
{
    const struct rt_rules *r = m->rule->policy->rules;
    uint64_t key = lm_key(&m->client, r->route), now = lm_ticks(m->now_ns), wait;

    if (r->exempt.n && rt_rules_hold(r, r->exempt, &m->client)) return MW_CONTINUE;
    for (int i = 0; i < RT_RATES; i++) {
        if (!r->rate[i].each || !(wait = lm_take(key + 2 * (uint64_t)i, &r->rate[i], now))) continue;
        if (i && r->rate[0].each) lm_give(key, &r->rate[0]);
        m->retry_after_s = (uint32_t)((wait + LM_TICKS_PER_S - 1) / LM_TICKS_PER_S);
        return mw_refuse(m, PX_LIMIT_RATE, i == RT_RATE_SECOND ? "limit-rps" : "limit-rpm");
    }
    return MW_CONTINUE;
}

static enum mw_verdict mw_connections(struct mw_ctx *m)
{
    const struct rt_rules *r = m->rule->policy->rules;

    if (r->exempt.n && rt_rules_hold(r, r->exempt, &m->client)) return MW_CONTINUE;
    return lm_enter(lm_key(&m->client, r->route), r->connections, &m->place) ? MW_CONTINUE : mw_refuse(m, PX_LIMIT_CONNECTIONS, "limit-connections");
}

static enum mw_verdict mw_redirect(struct mw_ctx *m) { return mw_refuse(m, PX_REDIRECT, NULL); }

static enum mw_verdict mw_body(struct mw_ctx *m)
{
    uint64_t limit = m->rule->policy->body_bytes;

    if (!limit || m->msg->framing != HTTP_BODY_LENGTH || m->msg->length <= limit) return MW_CONTINUE;
    m->error = PX_BODY_LIMIT;
    return MW_ANSWER;
}

static enum mw_verdict mw_backend(struct mw_ctx *m)
{
    if (m->backend && m->backend->n) return MW_CONTINUE;
    m->error = PX_NO_ENDPOINT;
    return MW_ANSWER;
}

/* The path that was routed, which the rule's path begins, element by element: what stands behind that stays. Were that to begin with //,
 * it could be read as an authority, and as a path that other rules are for: refused. */
static enum mw_verdict mw_rewrite(struct mw_ctx *m)
{
    const struct rt_rules *r = m->rule->policy->rules;
    struct str path = m->path.n ? m->path : S("/"), rest = str_from(path, m->rule->path.n);

    m->prefix = rt_rules_text(r, r->prefix);
    if (!m->prefix.n && str_starts(rest, S("//"))) return mw_refuse(m, PX_BAD_REQUEST, "path begins with // once its prefix is stripped");
    m->path = m->prefix.n || rest.n ? rest : S("/");
    m->rewritten = true;
    return MW_CONTINUE;
}

static const struct {
    const char *name;
    enum mw_verdict (*step)(struct mw_ctx *m);
    uint16_t uses;
} mw_steps[] = {
#define X(name, step, uses) {name, step, uses},
    MW_STEPS(X)
#undef X
};

/* Runs the steps from *at on that the rule has a use for. MW_WAIT leaves *at at the step that waits. */
static enum mw_verdict mw_run(struct mw_ctx *m, uint32_t *at)
{
    uint16_t uses = m->rule->policy->rules ? m->rule->policy->rules->uses : 0;

    for (; *at < RJ_COUNT(mw_steps); (*at)++) {
        enum mw_verdict v;

        if (mw_steps[*at].uses && !(mw_steps[*at].uses & uses)) continue;
        v = mw_steps[*at].step(m);
        if (v != MW_CONTINUE) return v;
    }
    return MW_CONTINUE;
}

/* ============================================================================
 * fw_ : Heads as they leave
 *
 * Owns:    struct fw_request, struct fw_response, struct fw_answer.
 * Calls:   str_ clk_ http_ h1_ rt_
 * Threads: workers; pure.
 * Rules:   1. Framing fields are regenerated, never copied; hop-by-hop fields do not pass.
 *          2. Forwarding fields of a peer that is not trusted are replaced, in all their spellings.
 *          3. What the proxy adds stands behind what it passes, so that no Connection field can remove it.
 * ========================================================================== */

static void fw_put_length(struct str_builder *sb, uint64_t n)
{
    str_put(sb, S("Content-Length: "));
    str_put_u64(sb, n);
    str_put(sb, S("\r\n"));
}

/* X-Forwarded-For: the client; with compute-full-forwarded-for also the trusted hops between it and this proxy. What stands before the client
 * is anybody's word and ends here. */
static void fw_put_for(struct str_builder *sb, const struct fw_request *r, struct str client)
{
    str_put(sb, S("X-Forwarded-For: "));
    str_put(sb, client);
    if (r->cfg->compute_full_forwarded_for && r->named) {
        for (uint32_t i = r->hop_field; i < r->msg->nfields; i++) {
            const struct http_field *f = &r->msg->field[i];
            uint32_t end = f->value_at + f->value_n;

            if (f->id != HTTP_F_X_FORWARDED_FOR) continue;
            if (i == r->hop_field) {
                str_put(sb, str_of(r->head + r->hop_at, end - r->hop_at));
                continue;
            }
            str_put(sb, S(", "));
            str_put(sb, str_of(r->head + f->value_at, f->value_n));
        }
        str_put(sb, S(", "));
        str_put_ip(sb, r->peer);
    }
    str_put(sb, S("\r\n"));
}

static inline void fw_put_field(struct str_builder *sb, struct str name, struct str value)
{
    str_put(sb, name);
    str_put(sb, value);
    str_put(sb, S("\r\n"));
}

/* The forwarding fields that are written anew: see HTTP_FORWARDING. */
static void fw_put_forwarded(struct str_builder *sb, const struct fw_request *r)
{
    uint8_t text[48];
    struct str_builder ip = str_fixed(text, sizeof text);

    str_put_ip(&ip, r->client);
    fw_put_field(sb, S("X-Real-IP: "), str_built(&ip));
    fw_put_for(sb, r, str_built(&ip));
    if (r->said_host.n) fw_put_field(sb, S("X-Forwarded-Host: "), r->said_host);
    if (r->port) {
        str_put(sb, S("X-Forwarded-Port: "));
        str_put_u64(sb, r->port);
        str_put(sb, S("\r\n"));
    }
    fw_put_field(sb, S("X-Forwarded-Proto: "), r->scheme);
    fw_put_field(sb, S("X-Forwarded-Scheme: "), r->scheme);
}

/* A trusted peer's forwarding field that goes on as it came. */
static bool fw_keeps(const struct fw_request *r, const struct http_field *f)
{
    struct net_addr a;

    if (!r->trusted) return false;
    if (f->id == HTTP_F_FW_KEPT || (f->id == HTTP_F_X_FORWARDED_PREFIX && !r->forwarded_prefix.n)) return true;
    if (f->id != HTTP_F_FW_AGREES) return false;
    if (!str_to_ip(str_of(r->head + f->value_at, f->value_n), &a)) return false;
    return memcmp(a.ip, r->client->ip, sizeof a.ip) == 0;
}

static void fw_put_request_line(struct str_builder *sb, struct fw_request *r)
{
    const struct http_msg *m = r->msg;
    /* `*`, or an absolute form without path and query, which the last proxy sends as `*` (RFC 9112 section 3.2.4). */
    bool asterisk = m->method == HTTP_OPTIONS && (m->path_n ? r->head[m->path_at] == '*' : !m->has_query);

    h1_put_request_line(sb, str_of(r->head + m->method_at, m->method_n), asterisk ? S("") : r->prefix,
                        asterisk ? S("*") : r->path.n || r->prefix.n ? r->path : S("/"), str_of(r->head + m->query_at, m->query_n), m->has_query);
    r->target_at = m->method_n + 1;
    r->target_n = (uint32_t)sb->n - r->target_at - 11; /* without ` HTTP/1.1` and CRLF */
    str_put(sb, S("Host: "));
    r->host_at = (uint32_t)sb->n;
    r->host_n = (uint32_t)r->host.n;
    str_put(sb, r->host);
    str_put(sb, S("\r\n"));
}

/* The whole request head (RFC 9112 section 3). Marks fields of msg as dropped that do not pass. sb->failed when it did not fit. */
static void fw_put_request(struct str_builder *sb, struct fw_request *r)
{
    struct http_msg *m = r->msg;

    fw_put_request_line(sb, r);
    for (uint32_t i = 0; i < m->nfields; i++) {
        struct http_field *f = &m->field[i];

        if (!f->id) continue;
        if (f->id == HTTP_F_HOST || (http_field_flags(f->id) & (HTTP_FRAME | HTTP_OWN) && !fw_keeps(r, f))) f->drop = true;
        if (f->id == HTTP_F_X_REQUEST_ID && !f->value_n && r->cfg->generate_request_id) f->drop = true; /* an empty one is none */
        if (f->drop) continue;
        if (f->id == HTTP_F_USER_AGENT) r->agent = str_of(r->head + f->value_at, f->value_n);
        if (f->id == HTTP_F_X_REQUEST_ID) r->request_id = str_of(r->head + f->value_at, f->value_n);
    }
    h1_put_kept(sb, m, r->head);
    if (m->framing == HTTP_BODY_LENGTH) fw_put_length(sb, m->length);
    else if (m->framing == HTTP_BODY_CHUNKED) str_put(sb, S("Transfer-Encoding: chunked\r\n"));
    if (m->upgrade) str_put(sb, S("Connection: upgrade\r\nUpgrade: websocket\r\n"));
    fw_put_forwarded(sb, r);
    str_put(sb, r->forwarded_prefix);
    if (!r->request_id.n && r->cfg->generate_request_id) {
        uint8_t id[32];

        for (int i = 0; i < 2; i++) str_hex64(id + (size_t)i * 16, r->id[i]);
        str_put(sb, S("X-Request-ID: "));
        r->request_id = str_of(sb->p + sb->n, sizeof id);
        str_put(sb, str_of(id, sizeof id));
        str_put(sb, S("\r\n"));
    }
    str_put(sb, S("\r\n"));
}

/* Marks the fields as dropped that the route sets or hides. */
static void fw_take_fields(const struct fw_response *r)
{
    const struct rt_span *names = rt_rules_at(r->rules, r->rules->names);

    for (uint32_t i = 0; i < r->msg->nfields; i++) {
        struct http_field *f = &r->msg->field[i];

        if (r->rules->taken >> f->id & 1) f->drop = true;
        for (uint32_t k = 0; (!f->id || f->id >= HTTP_F_FW_AGREES) && k < r->rules->names.n; k++)
            if (str_ieq(str_of(r->head + f->name_at, f->name_n), rt_rules_text(r->rules, names[k]))) f->drop = true;
    }
}

/* A response head, final or interim. Marks fields of msg as dropped that do not pass. */
static void fw_put_response(struct str_builder *sb, const struct fw_response *r)
{
    struct http_msg *m = r->msg;

    h1_put_status_line(sb, m->status, str_of(r->head + m->reason_at, m->reason_n));
    for (uint32_t i = 0; i < m->nfields; i++) {
        struct http_field *f = &m->field[i];

        if (!f->id) continue;
        if (f->id == HTTP_F_CONTENT_LENGTH && r->pass_length && !r->no_length) continue;
        if (http_field_flags(f->id) & HTTP_FRAME || (f->id == HTTP_F_SERVER && !r->server_field)) f->drop = true;
    }
    if (r->rules) fw_take_fields(r);
    h1_put_kept(sb, m, r->head);
    if (r->rules && (m->status >= 200 || r->upgrade)) str_put(sb, rt_rules_text(r->rules, r->rules->fields));
    if (r->upgrade) {
        str_put(sb, S("Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"));
        return;
    }
    if (m->status >= 200) {
        if (m->status == 426 && r->minor && m->seen & HTTP_SEEN_WEBSOCKET) str_put(sb, S("Connection: upgrade\r\nUpgrade: websocket\r\n"));
        if (r->framing == HTTP_BODY_LENGTH && !r->no_length) fw_put_length(sb, r->length);
        else if (r->framing == HTTP_BODY_CHUNKED) str_put(sb, S("Transfer-Encoding: chunked\r\n"));
        if (!r->keep) str_put(sb, S("Connection: close\r\n"));
        else if (r->minor == 0) str_put(sb, S("Connection: keep-alive\r\n"));
    }
    str_put(sb, S("\r\n"));
}

/* Date in IMF-fixdate (RFC 9110 section 5.6.7). */
static void fw_put_date(struct str_builder *sb, uint64_t wall_ms)
{
    static const char days[] = "ThuFriSatSunMonTueWed", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    uint8_t iso[24];
    struct str_builder b = str_fixed(iso, sizeof iso);

    str_put_time(&b, wall_ms);
    str_putf(sb, "Date: %.3s, %.2s %.3s %.4s %.8s GMT\r\n", days + wall_ms / 86400000 % 7 * 3, iso + 8,
             months + (size_t)((iso[5] - '0') * 10 + iso[6] - '0' - 1) * 3, iso, iso + 11);
}

/* Bytes that an answer of our own needs beyond FL_ANSWER_MAX. */
static size_t fw_answer_more(const struct rt_rules *r) { return r ? (size_t)r->location.n + r->fields.n : 0; }

/* One of our own answers, head and text; nothing behind the head for HEAD requests. */
static void fw_put_answer(struct str_builder *sb, const struct fw_answer *a)
{
    struct str reason = http_reason(a->status);
    uint64_t own = a->rules ? a->rules->own : 0;
    size_t n = 3 + 1 + reason.n + 1;

    str_putf(sb, "HTTP/1.1 %u " STR_FMT "\r\n", a->status, STR_ARG(reason));
    fw_put_date(sb, clk_wall_ms());
    if (a->server_tokens && !(own >> HTTP_F_SERVER & 1)) str_put(sb, S("Server: ramjet\r\n"));
    if (!(own >> HTTP_F_CONTENT_TYPE & 1)) str_put(sb, S("Content-Type: text/plain; charset=utf-8\r\n"));
    if (a->status == 405) str_put(sb, S("Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"));
    if (a->retry_after_s) str_putf(sb, "Retry-After: %u\r\n", a->retry_after_s);
    if (a->redirect) str_put(sb, rt_rules_text(a->rules, a->rules->location));
    if (a->rules) str_put(sb, rt_rules_text(a->rules, a->rules->fields));
    fw_put_length(sb, n);
    if (!a->keep) str_put(sb, S("Connection: close\r\n"));
    else if (a->minor == 0) str_put(sb, S("Connection: keep-alive\r\n"));
    str_put(sb, S("\r\n"));
    if (!a->head_only) str_putf(sb, "%u " STR_FMT "\n", a->status, STR_ARG(reason));
}

/* ============================================================================
 * fl_ : Flows: one direction of an exchange
 *
 * Owns:    struct px_flow.
 * Calls:   mem_ str_ mtr_ io_ h1_
 * Threads: workers, as the request that a flow belongs to.
 * Rules:   1. Content is decoded, then framed anew; small pieces are gathered, large ones passed by reference.
 *          2. Above PX_HIGH queued bytes the source is stopped: a slow reader holds no more.
 *          3. Large content of known length is spliced, large content of unknown length uses big buffers.
 * ========================================================================== */

static inline uint64_t fl_now_ms(const struct px_req *r) { return r->w->loop.clk.now_ms; }
static inline uint64_t fl_now_ns(const struct px_req *r) { return r->w->loop.clk.now_ns; }
static inline bool fl_is_down(const struct px_req *r, const struct px_flow *f) { return f == &r->down_flow; }

/* The socket that content of f comes from, and the one it goes to; NULL when it is gone. */
static struct io_sock *fl_from(const struct px_req *r, const struct px_flow *f)
{
    if (fl_is_down(r, f)) return r->up ? &r->up->s : NULL;
    return r->c ? &r->c->s : NULL;
}

static struct io_sock *fl_to(const struct px_req *r, const struct px_flow *f)
{
    if (fl_is_down(r, f)) return r->c ? &r->c->s : NULL;
    return r->up && !r->connecting ? &r->up->s : NULL;
}

/* The destination still has to take bytes of f. */
static inline bool fl_is_waiting(const struct px_flow *f) { return f->q.bytes || f->pump.in_pipe || f->pump.waits_out; }
static inline uint64_t fl_last_ms(const struct px_flow *f) { return f->in_ms > f->out_ms ? f->in_ms : f->out_ms; }

/* The client's side of f made progress: what was waited for it counts against the minimum rate, what the upstream took its time for does not. */
static inline void fl_client_moved(const struct px_req *r, struct px_flow *f)
{
    uint64_t now = fl_now_ms(r), last = fl_last_ms(f);

    if (now > last) f->client_wait_ms += now - last;
}

/* Bytes of an answer went to the client. One that has taken many reads: only for those that do not, the kernel holds little. */
static inline void fl_client_took(struct px_req *r, const struct px_flow *f)
{
    if (RJ_LIKELY(f->bytes < PX_READER_BYTES + f->q.bytes) || r->c->reads) return;
    r->c->reads = true;
    io_lift_unsent(&r->c->s);
}

/* When a client that moves no further byte of f falls below rate (bytes a second, not 0). What still lies in the kernel's send
 * buffer has not been taken by it. */
static uint64_t fl_rate_deadline(const struct px_req *r, const struct px_flow *f, uint64_t rate)
{
    uint64_t allowed = PX_RATE_GRACE_MS, bytes = f->bytes, unsent;

    unsent = fl_is_down(r, f) && r->c ? f->q.bytes + io_unsent(&r->c->s) : 0;
    bytes -= unsent < bytes ? unsent : bytes;
    allowed += bytes / rate * 1000 + bytes % rate * 1000 / rate;
    return fl_last_ms(f) + (allowed > f->client_wait_ms ? allowed - f->client_wait_ms : 0);
}

static void fl_put(struct mem_buf **b)
{
    if (*b) mem_buf_put(*b);
    *b = NULL;
}

static void fl_fini(struct px_req *r, struct px_flow *f)
{
    io_outq_clear(&f->q);
    fl_put(&f->tail);
    fl_put(&f->trailer_in);
    if (f->trailer) mem_pool_put(&r->w->px.trailers, f->trailer);
    f->trailer = NULL;
    io_pump_close(&r->w->loop, &f->pump);
}

/* A buffer of at least cap bytes; when memory is short, others give way. NULL when that is not enough. */
static struct mem_buf *fl_buf(struct px_req *r, uint32_t cap)
{
    struct mem_buf *b = io_buf(&r->w->loop, cap);

    return b || !r->w->px.relieve(r->w, r->c) ? b : io_buf(&r->w->loop, cap);
}

/* Free slots in the queue of f; when memory is short, others give way. */
static bool fl_squeeze(struct px_req *r, struct px_flow *f)
{
    return io_outq_squeeze(&f->q, &r->w->loop) || (r->w->px.relieve(r->w, r->c) && io_outq_squeeze(&f->q, &r->w->loop));
}

/* What a buffer grows to that has to hold n bytes. */
static inline uint32_t fl_grown(const struct mem_buf *b, uint32_t n) { return n <= MEM_LARGE_BYTES || n > 2 * b->cap ? n : 2 * b->cap; }

/* ---- queues ---- */

enum { FL_ANSWER_MAX = 512, FL_HELD_MAX = 1 << 30 };

static inline bool fl_is_held(const struct px_req *r, const struct px_flow *f) { return r->holding && !fl_is_down(r, f); }

/* Room for n bytes behind the content that is held back until it is complete (proxy-request-buffering). NULL at the ceiling. */
static uint8_t *fl_held_room(struct px_req *r, uint32_t n)
{
    uint32_t had = r->held ? r->held->len : 0;
    struct mem_buf *b;

    if (r->held && r->held->cap - had >= n) return r->held->data + had;
    if (n > FL_HELD_MAX - had || !(b = fl_buf(r, r->held ? fl_grown(r->held, had + n) : n))) return NULL;
    if (had) memcpy(b->data, r->held->data, had);
    b->len = had;
    fl_put(&r->held);
    r->held = b;
    return b->data + had;
}

/* Room for n bytes behind what was gathered last; starts a new buffer when the old one is full. NULL without memory. */
static uint8_t *fl_gather_room(struct px_req *r, struct px_flow *f, uint32_t n)
{
    if (fl_is_held(r, f)) return fl_held_room(r, n);
    if (f->tail && f->tail->cap - f->tail->len >= n) return f->tail->data + f->tail->len;
    fl_put(&f->tail);
    if (n <= MEM_SMALL_BYTES - sizeof(struct mem_buf)) f->tail = mem_buf_new(&r->w->loop.small);
    if (RJ_UNLIKELY(!f->tail)) f->tail = fl_buf(r, n);
    if (RJ_UNLIKELY(!f->tail) && n <= FL_ANSWER_MAX) f->tail = mem_buf_alloc(n); /* our own answers must go out when the ceiling is reached */
    return f->tail ? f->tail->data : NULL;
}

/* n bytes were written at the end of the gathering buffer: queues them. The caller has checked for a slot. */
static void fl_gathered(struct px_req *r, struct px_flow *f, uint32_t n)
{
    struct io_outq *q = &f->q;
    uint8_t *at;

    if (fl_is_held(r, f)) {
        r->held->len += n;
        return;
    }
    at = f->tail->data + f->tail->len;
    f->tail->len += n;
    if (q->n > q->flight && q->own[q->n - 1] == f->tail && (uint8_t *)q->iov[q->n - 1].iov_base + q->iov[q->n - 1].iov_len == at) {
        q->iov[q->n - 1].iov_len += n;
        q->bytes += n;
    } else {
        io_outq_add(q, at, n, mem_buf_get(f->tail));
    }
}

static bool fl_gather(struct px_req *r, struct px_flow *f, struct str s)
{
    uint8_t *at = fl_gather_room(r, f, (uint32_t)s.n);

    if (!at) return false;
    if (!s.n) return true;
    memcpy(at, s.p, s.n);
    fl_gathered(r, f, (uint32_t)s.n);
    return true;
}

/* Queues n bytes of content at b->data + at, framed. False without memory. */
static bool fl_emit(struct px_req *r, struct px_flow *f, struct mem_buf *b, uint32_t at, uint32_t n)
{
    uint8_t size[20];
    struct str_builder sb = str_fixed(size, sizeof size);

    f->bytes += n;
    if (!n) return true;
    if (f->broken) { /* a request whose content was dropped cannot be sent again */
        if (!fl_is_down(r, f)) r->replayable = false;
        return true;
    }
    if (f->q.n > IO_OUTQ_MAX - 4 && !fl_squeeze(r, f)) return false;
    if (f->chunked) {
        h1_put_chunk_size(&sb, n);
        if (!fl_gather(r, f, str_built(&sb))) return false;
    }
    if (fl_is_held(r, f)) return fl_gather(r, f, str_of(b->data + at, n)) && (!f->chunked || fl_gather(r, f, S("\r\n")));
    if (n <= PX_COPY_MAX && fl_gather_room(r, f, n + 2)) {
        if (!fl_gather(r, f, str_of(b->data + at, n))) return false;
    } else {
        io_outq_add(&f->q, b->data + at, n, mem_buf_get(b));
    }
    if (!fl_is_down(r, f) && f->tail != r->sent) r->replayable = false;
    if (!fl_is_down(r, f) && f->q.own[f->q.n - 1] != r->sent) r->replayable = false;
    return !f->chunked || fl_gather(r, f, S("\r\n"));
}

/* Queues the last chunk and what is kept of the trailers. False without memory. */
static bool fl_emit_last(struct px_req *r, struct px_flow *f)
{
    uint8_t *at;
    struct str_builder sb;
    uint32_t room = 8 + (f->trailer && f->trailer_in ? f->trailer_in->len : 0);

    if (f->q.n > IO_OUTQ_MAX - 4 && !fl_squeeze(r, f)) return false;
    if (!(at = fl_gather_room(r, f, room))) return false;
    sb = str_fixed(at, room);
    str_put(&sb, S("0\r\n"));
    if (f->trailer && f->trailer_in) h1_put_kept(&sb, &f->trailer->msg, f->trailer_in->data);
    str_put(&sb, S("\r\n"));
    fl_gathered(r, f, (uint32_t)sb.n);
    if (!fl_is_down(r, f) && !r->holding && f->tail != r->sent) r->replayable = false;
    return true;
}

/* The content is complete. False without memory: then it is not done, as nothing behind it may be read. */
static bool fl_emit_end(struct px_req *r, struct px_flow *f)
{
    if (f->broken && !fl_is_down(r, f)) r->replayable = false;
    if (!f->broken && f->chunked && !fl_emit_last(r, f)) return false;
    f->done = true;
    return true;
}

/* ---- sources ---- */

static bool fl_wants_pump(const struct px_req *r, const struct px_flow *f)
{
    return !fl_is_held(r, f) && f->body.framing == HTTP_BODY_LENGTH && f->body.left >= PX_PUMP_MIN && !f->chunked && !f->broken && !f->pump.left && r->c &&
           r->c->transport->raw && f->pump.pipe[0] != -2;
}

static void fl_pump_end(struct px_req *r, struct px_flow *f)
{
    struct io_sock *from = fl_from(r, f), *to = fl_to(r, f);
    const struct px_flow *other = fl_is_down(r, f) ? &r->up_flow : &r->down_flow;

    f->body.left = f->pump.left;
    io_pump_close(&r->w->loop, &f->pump);
    f->pump.left = 0;
    f->pump.waits_out = false;
    f->src = PX_SRC_IDLE;
    if (other->src == PX_SRC_PUMP) return; /* it splices the same two sockets */
    if (from) io_set_blocking(&r->w->loop, from, true);
    if (to) io_set_blocking(&r->w->loop, to, true);
}

/* Moves what can be moved. Ends with f->done, or notes which side is gone. */
static void fl_pump_step(struct px_req *r, struct px_flow *f)
{
    struct io_loop *lp = &r->w->loop;
    struct io_sock *from = fl_from(r, f), *to = fl_to(r, f);
    enum io_pump_state st;
    uint64_t moved, left = f->pump.left;
    int res = 0;

    if (!from || !to || !io_is_open(from) || !io_is_open(to)) return;
    if (io_pump_wake(lp, &f->pump) < 0) { /* no descriptors left: the rest is copied */
        fl_pump_end(r, f);
        f->pump.pipe[0] = -2;
        f->big = true;
        return;
    }
    st = io_pump_run(&f->pump, from->fd, to->fd, &moved, &res);
    if (fl_is_down(r, f) ? moved : f->pump.left != left) fl_client_moved(r, f);
    if (f->pump.left != left) f->in_ms = lp->clk.now_ms;
    if (f->pump.left != left && !fl_is_down(r, f)) r->replayable = false; /* spliced content is not kept */
    if (moved) f->out_ms = lp->clk.now_ms;
    f->bytes += moved;
    mtr_add(fl_is_down(r, f) ? MTR_BYTES_OUT : MTR_BYTES_IN, moved);
    if (fl_is_down(r, f)) fl_client_took(r, f);
    if (!fl_is_down(r, f)) r->in_bytes += moved;
    f->pump.waits_out = st == IO_PUMP_AGAIN || st == IO_PUMP_WAIT_OUT;
    switch (st) {
    case IO_PUMP_AGAIN: io_poll(lp, to, IO_OUT | IO_AGAIN); return;
    case IO_PUMP_WAIT_IN:
        io_pump_rest(lp, &f->pump);
        io_poll(lp, from, IO_IN);
        return;
    case IO_PUMP_WAIT_OUT: io_poll(lp, to, IO_OUT); return;
    case IO_PUMP_DONE:
        fl_pump_end(r, f);
        f->body.done = f->done = true;
        return;
    case IO_PUMP_EOF:
    case IO_PUMP_FAILED_IN:
        fl_pump_end(r, f);
        if (fl_is_down(r, f)) r->up_ended = true;
        else r->c->ended = r->client_lost = true;
        return;
    case IO_PUMP_FAILED_OUT:
        fl_pump_end(r, f);
        f->broken = true;
        if (fl_is_down(r, f)) r->client_lost = true;
        else r->up_spoiled = true;
        if (!fl_is_down(r, f) && res == -ECONNRESET) r->up_reset = true;
        return;
    }
}

static void fl_pump_start(struct px_req *r, struct px_flow *f)
{
    struct io_sock *from = fl_from(r, f), *to = fl_to(r, f);

    if (!from || !to) return;
    if (io_pump_open(&r->w->loop, &f->pump, f->body.left) < 0) {
        f->pump.pipe[0] = -2; /* no descriptors left: copy */
        f->pump.left = 0;
        f->big = true;
        return;
    }
    io_set_blocking(&r->w->loop, from, false);
    io_set_blocking(&r->w->loop, to, false);
    f->src = PX_SRC_PUMP;
    fl_pump_step(r, f);
}

/* Decides how the next content of f is fetched, see enum px_source. */
static void fl_pull(struct px_req *r, struct px_flow *f)
{
    struct io_sock *s = fl_from(r, f);
    struct io_loop *lp = &r->w->loop;

    if (!s || !io_is_open(s) || (!fl_is_down(r, f) && r->c->ended)) return;
    if (f->done) { /* the client's side goes on listening: the next request, or its going away */
        if (!fl_is_down(r, f) && f->src == PX_SRC_IDLE && !r->pend) {
            f->src = PX_SRC_STREAM;
            io_recv_start(lp, s);
        }
        return;
    }
    switch ((enum px_source)f->src) {
    case PX_SRC_STREAM:
        if (!f->big && !fl_wants_pump(r, f) && f->q.bytes < PX_HIGH) return;
        f->src = PX_SRC_STOPPING;
        io_recv_stop(lp, s);
        return;
    case PX_SRC_IDLE:
        if (fl_wants_pump(r, f)) {
            if (!f->q.n && !f->q.sending && fl_to(r, f)) fl_pump_start(r, f);
            if (f->src != PX_SRC_IDLE || fl_wants_pump(r, f) || (f->done && fl_is_down(r, f))) return;
        }
        if (f->q.bytes >= PX_LOW) return;
        f->src = f->big ? PX_SRC_BIG : PX_SRC_STREAM;
        if (f->big && fl_is_down(r, f) && r->state == PX_WAIT_RESPONSE) io_recv_head(lp, s);
        else if (f->big) io_recv_big(lp, s);
        else io_recv_start(lp, s);
        return;
    case PX_SRC_STOPPING:
    case PX_SRC_BIG:
    case PX_SRC_PUMP: return;
    }
}

/* ---- content ---- */

/* Feeds bytes of a trailer section. Returns bytes used, -status with r->why, or -1. Completes the flow at the empty line. */
static long fl_trailer(struct px_req *r, struct px_flow *f, const uint8_t *p, uint32_t n)
{
    static const struct h1_limits limits = {.head_bytes = PX_TRAILER_MAX, .fields = 64, .underscores = false};
    uint32_t had, take;
    int rc;

    if (!f->trailer) {
        if (!(f->trailer = mem_pool_get(&r->w->px.trailers)) || !(f->trailer_in = fl_buf(r, PX_TRAILER_MAX + 1))) return -1;
        h1_head_init(f->trailer, true, 0);
    }
    had = f->trailer_in->len;
    take = n < f->trailer_in->cap - had ? n : f->trailer_in->cap - had;
    memcpy(f->trailer_in->data + had, p, take);
    f->trailer_in->len += take;
    rc = h1_trailer_feed(f->trailer, f->trailer_in->data, f->trailer_in->len, &limits);
    if (rc < 0) {
        r->why = f->trailer->why;
        return rc;
    }
    if (rc == RJ_MORE) return take;
    f->trailer_in->len = (uint32_t)rc;
    if (!fl_emit_end(r, f)) return -1;
    if (f->trailer) mem_pool_put(&r->w->px.trailers, f->trailer);
    f->trailer = NULL;
    fl_put(&f->trailer_in);
    return rc - (long)had;
}

/* Decodes n bytes at b->data + at and queues their content. Returns bytes used (fewer when the content ended), or a negative
 * number: with r->why it is malformed (-431: its trailers are too large), without there is no memory. */
static long fl_decode(struct px_req *r, struct px_flow *f, struct mem_buf *b, uint32_t at, uint32_t n)
{
    uint8_t *p = b->data + at, *out = NULL;
    uint32_t used = 0, kept = 0;

    if (!fl_is_down(r, f)) fl_client_moved(r, f);
    f->in_ms = fl_now_ms(r);
    while (used < n && !f->body.done) {
        struct str d;
        long k = h1_body_feed(&f->body, p + used, n - used, &d);

        if (k < 0) {
            r->why = f->body.why;
            return -1;
        }
        if (d.n && !out) {
            out = (uint8_t *)(uintptr_t)d.p;
            kept = (uint32_t)d.n;
        } else if (d.n) { /* chunks that came together leave as one */
            memmove(out + kept, d.p, d.n);
            kept += (uint32_t)d.n;
        }
        used += (uint32_t)k;
    }
    if (kept && !fl_emit(r, f, b, (uint32_t)(out - b->data), kept)) return -1;
    if (f->body.in_trailer && !f->done && used < n) {
        long k = fl_trailer(r, f, p + used, n - used);

        if (k < 0) return k;
        used += (uint32_t)k;
    } else if (f->body.done && !f->body.in_trailer && !f->done && !fl_emit_end(r, f)) {
        return -1;
    }
    if (!f->done && f->bytes >= PX_BIG_MIN && f->body.framing != HTTP_BODY_LENGTH && r->state != PX_TUNNEL) f->big = true;
    return used;
}

/* ---- tunnels ---- */

/* Tunnels: bytes of f are lost, or its source has said so by a reset. Nobody may take its end for a clean one. */
static inline bool fl_is_cut(const struct px_flow *f) { return f->reset || f->q.n || f->broken; }

/* Tunnels: they may be silent for hours, so one that has nothing to send holds no buffer (400 idle ones: 13.9 KB each before, 9.9 KB with it). */
static inline void fl_rest(struct px_flow *f)
{
    if (!f->q.n) fl_put(&f->tail);
}

/* Tunnels: the source of f sends no more. px_tunnel_ends passes that on. */
static void fl_tunnel_end(struct px_req *r, struct px_flow *f, bool reset)
{
    f->in_ms = fl_now_ms(r);
    f->done = true;
    if (reset) f->reset = true;
}

/* Tunnels: the destination of f takes no more. Its own bytes may still be in the kernel, so its receive side tells the end; or has. */
static void fl_tunnel_broken(struct px_req *r, struct px_flow *f)
{
    struct px_flow *other = fl_is_down(r, f) ? &r->up_flow : &r->down_flow;

    f->broken = true;
    io_outq_clear(&f->q);
    if (other->done) other->reset = true;
}

/* ---- deadlines ---- */

/* When an idle tunnel ends: anything that moves in either direction puts it off. */
static uint64_t fl_tunnel_deadline(const struct px_flow *u, const struct px_flow *d, uint32_t limit_ms)
{
    uint64_t up = u->in_ms > u->out_ms ? u->in_ms : u->out_ms, down = d->in_ms > d->out_ms ? d->in_ms : d->out_ms;

    if ((u->done || d->done) && limit_ms > PX_TUNNEL_GRACE_MS) limit_ms = PX_TUNNEL_GRACE_MS;
    return (up > down ? up : down) + limit_ms;
}

/* The next moment at which something is too late, and what that means. 0: nothing is waited for. */
static uint64_t fl_deadline(const struct px_req *r, enum px_error *error)
{
    const struct px_flow *u = &r->up_flow, *d = &r->down_flow;
    uint64_t at = UINT64_MAX, t;

#define FL_EARLIER(when, what) ((t = (when)) < at ? (at = t, *error = (what)) : *error)
    if (r->aborted || r->state == PX_WAIT_HEAD || r->state == PX_FINISHED) return 0;
    if (r->state == PX_TUNNEL) FL_EARLIER(fl_tunnel_deadline(u, d, r->policy.tunnel_ms), PX_TUNNEL_TIMEOUT);
    if (r->connecting) FL_EARLIER(r->connect_ms + r->policy.connect_ms, PX_CONNECT_TIMEOUT);
    if (!u->done && r->state != PX_TUNNEL && (r->state != PX_REFUSED || r->keep) && u->src != PX_SRC_IDLE && u->src != PX_SRC_STOPPING &&
        (r->holding || !fl_is_waiting(u))) {
        FL_EARLIER(u->in_ms + r->client_body_ms, PX_BODY_TIMEOUT);
        if (r->body_rate) FL_EARLIER(fl_rate_deadline(r, u, r->body_rate), PX_BODY_TIMEOUT);
    }
    if (fl_is_waiting(u) && r->up && !r->connecting) FL_EARLIER(u->out_ms + r->policy.send_ms, PX_SEND_TIMEOUT);
    if (u->done && !u->q.bytes && r->state == PX_WAIT_RESPONSE) FL_EARLIER((u->out_ms > d->in_ms ? u->out_ms : d->in_ms) + r->policy.read_ms, PX_READ_TIMEOUT);
    if (r->state == PX_RELAY && !d->done && !fl_is_waiting(d))
        FL_EARLIER((d->in_ms > d->out_ms ? d->in_ms : d->out_ms) + r->policy.read_ms, PX_READ_TIMEOUT);
    if (fl_is_waiting(d)) {
        FL_EARLIER(d->out_ms + r->client_send_ms, PX_CLIENT_TIMEOUT);
        if (r->send_rate && r->state != PX_TUNNEL) FL_EARLIER(fl_rate_deadline(r, d, r->send_rate), PX_CLIENT_TIMEOUT);
    }
    if (r->expect && r->minor && !r->continued && !r->head_sent && (r->holding || r->state == PX_WAIT_RESPONSE)) /* holding: at once */
        FL_EARLIER((r->t_sent_ns / 1000000) + PX_CONTINUE_MS, PX_OK);
#undef FL_EARLIER
    return at == UINT64_MAX ? 0 : at;
}


/* ============================================================================
 * al_ : Access log and metrics of a request
 *
 * Owns:    the text of PX_ERRORS.
 * Calls:   str_ clk_ log_ mtr_ fl_
 * Threads: workers.
 * Rules:   1. One record per request, counted and logged at its end.
 *          2. What a client sent is escaped; a record is one line.
 * ========================================================================== */

static const struct {
    uint16_t status;
    const char *text;
} al_errors[PX_ERROR_COUNT] = {
    [PX_OK] = {0, ""},
#define X(id, status, text, help) [PX_##id] = {status, text},
    PX_ERRORS(X)
#undef X
};

/* ---- what is kept of a request for them ---- */

/* Copies up to max bytes for the log record. */
static struct str al_keep(struct px_req *r, struct str s, uint32_t max)
{
    struct str kept;

    if (s.n > max) s.n = max;
    if (s.n > sizeof r->text - r->text_n) s.n = sizeof r->text - r->text_n;
    kept = str_of(r->text + r->text_n, s.n);
    if (s.n) memcpy(r->text + r->text_n, s.p, s.n);
    r->text_n += (uint32_t)s.n;
    return kept;
}

/* What is logged of a request that is refused: as much of method, host and target as was parsed. */
static void al_keep_head(struct px_req *r, const uint8_t *p, uint32_t n)
{
    const struct http_msg *m = &r->head.msg;

    if (m->method_at + m->method_n <= n) r->log_method = al_keep(r, str_of(p + m->method_at, m->method_n), 16);
    if (m->host_at + m->host_n <= n) r->log_host = al_keep(r, str_of(p + m->host_at, m->host_n), 80);
    if (m->target_at + m->target_n <= n) r->log_target = al_keep(r, str_of(p + m->target_at, m->target_n), 150);
}

static void al_count_error(enum px_error error)
{
    switch (error) {
    case PX_BAD_REQUEST: case PX_EXPECT: case PX_METHOD: case PX_VERSION: mtr_add(MTR_REFUSED_BAD, 1); break;
    case PX_BODY_LIMIT: mtr_add(MTR_REFUSED_BODY, 1); break;
    case PX_DENIED: mtr_add(MTR_REFUSED_DENIED, 1); break;
    case PX_HEAD_LIMIT: case PX_LINE_LIMIT: mtr_add(MTR_REFUSED_HEAD, 1); break;
    case PX_LIMIT_CONNECTIONS: mtr_add(MTR_REFUSED_CONNECTIONS, 1); break;
    case PX_LIMIT_RATE: mtr_add(MTR_REFUSED_RATE, 1); break;
    case PX_MEMORY: mtr_add(MTR_REFUSED_MEMORY, 1); break;
    case PX_YIELD: mtr_add(MTR_REFUSED_YIELD, 1); break;
    case PX_NO_ROUTE: case PX_NOT_READY: mtr_add(MTR_REFUSED_NO_ROUTE, 1); break;
    case PX_BODY_TIMEOUT: case PX_HEADER_TIMEOUT: case PX_CLIENT_TIMEOUT: mtr_add(MTR_REFUSED_TIMEOUT, 1); break;
    case PX_NO_ENDPOINT: mtr_add(MTR_UP_NONE, 1); break;
    case PX_CONNECT: mtr_add(MTR_UP_CONNECT, 1); break;
    case PX_CONNECT_TIMEOUT: case PX_READ_TIMEOUT: case PX_SEND_TIMEOUT: mtr_add(MTR_UP_TIMEOUT, 1); break;
    case PX_UPSTREAM_CLOSED: mtr_add(MTR_UP_RESET, 1); break;
    case PX_UPSTREAM_PROTOCOL: mtr_add(MTR_UP_PROTOCOL, 1); break;
    case PX_OK: case PX_CLIENT_CLOSED: case PX_REDIRECT: case PX_SHUTDOWN: case PX_TUNNEL_TIMEOUT: case PX_ERROR_COUNT: break;
    }
}

/* ---- the log record ---- */

static void al_put_ms(struct str_builder *sb, const char *key, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t us = from_ns && to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;

    str_put_z(sb, key);
    str_put_u64(sb, us / 1000);
    str_put_c(sb, '.');
    str_put_c(sb, (char)('0' + us / 100 % 10));
    str_put_c(sb, (char)('0' + us / 10 % 10));
    str_put_c(sb, (char)('0' + us % 10));
}

static void al_put_json(struct str_builder *sb, const struct px_req *r, struct str path)
{
    str_put(sb, S("{\"time\":\""));
    str_put_time(sb, clk_wall_ms());
    str_put(sb, S("\",\"client\":\""));
    str_put_ip(sb, &r->client);
    str_put(sb, S("\",\"method\":"));
    str_put_quoted(sb, r->log_method);
    str_put(sb, S(",\"host\":"));
    str_put_quoted(sb, r->log_host);
    str_put(sb, S(",\"path\":"));
    str_put_quoted(sb, path);
    str_put(sb, r->minor ? S(",\"protocol\":\"HTTP/1.1\",\"status\":") : S(",\"protocol\":\"HTTP/1.0\",\"status\":"));
    str_put_u64(sb, r->status);
    str_put(sb, S(",\"bytes_in\":"));
    str_put_u64(sb, r->up_flow.bytes);
    str_put(sb, S(",\"bytes_out\":"));
    str_put_u64(sb, r->down_flow.bytes);
    al_put_ms(sb, ",\"duration_ms\":", r->t_start_ns, fl_now_ns(r));
    al_put_ms(sb, ",\"connect_ms\":", r->t_connect_ns, r->t_sent_ns);
    al_put_ms(sb, ",\"header_ms\":", r->t_connect_ns, r->t_header_ns);
    str_put(sb, S(",\"route\":"));
    str_put_quoted(sb, r->route);
    str_put(sb, S(",\"backend\":"));
    str_put_quoted(sb, r->backend_name);
    str_put(sb, S(",\"upstream\":\""));
    if (r->upstream.family) str_put_addr(sb, &r->upstream);
    str_put(sb, S("\",\"tries\":"));
    str_put_u64(sb, r->tries);
    str_put(sb, S(",\"request_id\":"));
    str_put_quoted(sb, r->log_id);
    str_put(sb, S(",\"error\":\""));
    str_put_z(sb, al_errors[r->error].text);
    if (r->why) {
        str_put(sb, S(": "));
        str_put_json(sb, str_z(r->why));
    }
    str_put(sb, S("\"}\n"));
}

/* The NCSA combined form, with the same escapes inside its quotes. */
static void al_put_combined(struct str_builder *sb, const struct px_req *r, struct str path)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    uint8_t iso[24];
    struct str_builder time = str_fixed(iso, sizeof iso);

    str_put_time(&time, clk_wall_ms());
    str_put_ip(sb, &r->client);
    str_putf(sb, " - - [%.2s/%.3s/%.4s:%.8s +0000] \"", iso + 8, months + (size_t)((iso[5] - '0') * 10 + iso[6] - '0' - 1) * 3, iso, iso + 11);
    str_put_json(sb, r->log_method);
    str_put_c(sb, ' ');
    str_put_json(sb, path);
    str_putf(sb, " HTTP/1.%u\" %u %llu \"-\" \"", r->minor, r->status, (unsigned long long)r->down_flow.bytes);
    str_put_json(sb, r->log_agent);
    str_put(sb, S("\"\n"));
}

/* Counts and logs the request, once. */
static void al_record(struct px_req *r)
{
    uint8_t line[16384];
    struct str path = r->log_target;

    mtr_request(r->metric, r->status, ((r->status == 101 ? r->t_header_ns : fl_now_ns(r)) - r->t_start_ns) / 1000); /* no tunnel's life */
    if (!r->w->px.access_log || !r->policy.access_log) return;
    for (;;) { /* a target whose escapes do not fit is cut */
        struct str_builder sb = str_fixed(line, sizeof line);

        if (r->w->px.combined) al_put_combined(&sb, r, path);
        else al_put_json(&sb, r, path);
        if (sb.failed && path.n > 64) {
            path.n /= 2;
            continue;
        }
        if (!sb.failed) log_ring_put(&r->w->thread.access, str_built(&sb));
        return;
    }
}


/* ============================================================================
 * tp_ : Transports
 *
 * Owns:    the instances of struct px_transport; struct px_conn's proxy_in.
 * Calls:   mem_ str_ clk_ log_ mtr_ io_ pp_ rt_ fl_
 * Threads: workers.
 * Rules:   1. Between the socket and the codec: octets in, octets out, and who the peer is.
 *          2. What stands behind the last octet of a transport's own is the codec's.
 * ========================================================================== */

/* ---- plain ---- */

static void tp_plain_feed(struct px_conn *c, struct mem_buf *b, uint32_t at, uint32_t n) { c->codec->data(c, b, at, n); }
static void tp_plain_send(struct px_conn *c, struct io_outq *q) { io_send(&c->w->loop, &c->s, q); }

static const struct px_transport tp_plain = {.name = "plain", .scheme = "http", .raw = true, .feed = tp_plain_feed, .send = tp_plain_send};
/* The client spoke to port 443 of a proxy that ended TLS. */
static const struct px_transport tp_offloaded = {.name = "offloaded", .scheme = "https", .raw = true, .feed = tp_plain_feed, .send = tp_plain_send};

/* ---- behind a PROXY header ---- */

/* Ends a connection without an answer: what speaks there is no proxy that we know how to talk to. */
static void tp_proxy_refuse(struct px_conn *c, const char *why)
{
    struct px *px = &c->w->px;
    uint64_t now_ms = c->w->loop.clk.now_ms;

    mtr_add(MTR_REFUSED_PROXY, 1);
    if (px->proxy_log_ms && now_ms - px->proxy_log_ms < PX_PROXY_LOG_MS) {
        px->proxy_unlogged++;
    } else {
        uint8_t text[64];
        struct str_builder sb = str_fixed(text, sizeof text);

        str_put_addr(&sb, &c->peer);
        log_info("px", STR_FMT ": closed: %s (%u more like it since the last such line)", STR_ARG(str_built(&sb)), why, px->proxy_unlogged);
        px->proxy_log_ms = now_ms;
        px->proxy_unlogged = 0;
    }
    fl_put(&c->proxy_in);
    c->state = PX_CONN_CLOSING;
    io_close(&c->w->loop, &c->s);
}

/* Adds to a header that comes in pieces; pp_feed refuses it before it grows large. False without memory. */
static bool tp_proxy_keep(struct px_conn *c, const uint8_t *p, uint32_t n)
{
    uint32_t had = c->proxy_in ? c->proxy_in->len : 0;
    struct mem_buf *b = c->proxy_in;

    if (!b || b->cap - had < n) {
        if (!(b = io_buf(&c->w->loop, 2 * (had + n) + 64))) return false;
        if (had) memcpy(b->data, c->proxy_in->data, had);
        fl_put(&c->proxy_in);
        c->proxy_in = b;
    }
    memcpy(b->data + had, p, n);
    b->len = had + n;
    return true;
}

/* How long a connection waits for its first request. */
static uint32_t tp_first_ms(const struct wrk *w) { return w->px.draining ? PX_FIRST_MS : rt_live()->cfg->client_header_ms; }

/* Octets of a connection that begins with a PROXY header. The address that it names is the peer from there on. */
static void tp_proxy_feed(struct px_conn *c, struct mem_buf *b, uint32_t at, uint32_t n)
{
    uint32_t had = c->proxy_in ? c->proxy_in->len : 0;
    struct pp_header h;
    int rc;

    if (had && !tp_proxy_keep(c, b->data + at, n)) {
        tp_proxy_refuse(c, "no memory for its PROXY header");
        return;
    }
    rc = had ? pp_feed(&h, c->proxy_in->data, c->proxy_in->len) : pp_feed(&h, b->data + at, n);
    if (rc < 0 || (rc == RJ_MORE && !had && !tp_proxy_keep(c, b->data + at, n))) {
        tp_proxy_refuse(c, rc < 0 ? h.why : "no memory for its PROXY header");
        return;
    }
    if (rc == RJ_MORE) return;
    fl_put(&c->proxy_in);
    c->transport = h.to.port == 443 ? &tp_offloaded : &tp_plain;
    if (!h.local) {
        c->peer = h.from;
        c->port = h.to.port;
    }
    c->state = PX_CONN_IDLE;
    clk_arm(&c->w->loop.clk, &c->timer, tp_first_ms(c->w));
    at += (uint32_t)rc - had;
    n -= (uint32_t)rc - had;
    if (n) c->transport->feed(c, b, at, n);
}

static const struct px_transport tp_proxied = {.name = "proxied", .scheme = "http", .feed = tp_proxy_feed, .send = tp_plain_send};

/* ============================================================================
 * px_ : Client connection, request, tunnel
 *
 * Owns:    struct px, struct px_conn, struct px_req.
 * Calls:   sys_ mem_ str_ map_ clk_ log_ mtr_ io_ http_ h1_ rt_ lm_ up_ mw_ fw_ fl_ al_ tp_
 * Threads: workers; a connection and its requests never leave their worker.
 * Rules:   1. One state, one response and one log line per request.
 *          2. Buffered bytes of a direction are bounded: above PX_HIGH its source is stopped.
 *          3. A request is sent again only while no byte of a response came and all its bytes are still here;
 *             a non-idempotent one only when it cannot have been executed.
 *          4. Buffers that the kernel may still read live until the socket's IO_CLOSED.
 *          5. Functions above px_settle only note what happened; px_settle, last in every event, acts on it.
 * ========================================================================== */

/* The upstream connection can go back to the pool no more. */
static inline void px_spoil(struct px_req *r) { r->up_spoiled = true; }

/* ---- requests ---- */

static void px_on_timer(struct clk_timer *t)
{
    struct px_req *r = RJ_CONTAINER(t, struct px_req, timer);

    r->w->px.on_deadline(r);
}

static struct px_req *px_req_new(struct px_conn *c)
{
    struct px *px = &c->w->px;
    struct px_req *r = mem_pool_get(&px->reqs);
    size_t head = offsetof(struct px_req, head), behind = offsetof(struct px_req, head) + sizeof r->head;

    if (RJ_UNLIKELY(!r) && (!px->relieve(c->w, c) || !(r = mem_pool_get(&px->reqs)))) return NULL;
    memset(r, 0, head); /* the parser's field table is large and needs no clearing */
    memset((uint8_t *)r + behind, 0, offsetof(struct px_req, names) - behind);
    r->w = c->w;
    r->c = c;
    r->timer.fire = px_on_timer;
    r->keep = true;
    r->up_flow.pump.pipe[0] = r->down_flow.pump.pipe[0] = -1;
    r->up_flow.src = c->next_src;
    r->t_start_ns = fl_now_ns(r);
    h1_head_init(&r->head, true, 0);
    c->req = r;
    return r;
}

/* From here on nothing of the snapshot is used any more. */
static void px_release_lease(struct px_req *r)
{
    if (!r->snap) return;
    rt_release(r->snap, r->w->thread.index);
    r->snap = NULL;
    r->backend = NULL;
    r->cfg = NULL;
    r->policy.rules = NULL;
}

/* The request is under way no more. */
static void px_leave(struct px_req *r)
{
    if (r->place) lm_leave(r->place);
    r->place = NULL;
}

static void px_req_free(struct px_req *r)
{
    px_leave(r);
    px_release_lease(r);
    fl_fini(r, &r->up_flow);
    fl_fini(r, &r->down_flow);
    fl_put(&r->in);
    fl_put(&r->pend);
    fl_put(&r->up_in);
    fl_put(&r->sent);
    fl_put(&r->held);
    clk_drop(&r->w->loop.clk, &r->timer);
    mem_pool_put(&r->w->px.reqs, r);
}

/* ---- answers of our own ---- */

/* The upstream connection is not needed any more and cannot be kept. */
static void px_drop_upstream(struct px_req *r)
{
    struct up_conn *u = r->up;

    if (!u) return;
    if (r->state == PX_TUNNEL ? fl_is_cut(&r->up_flow) : !r->connecting && (!r->up_flow.done || r->up_flow.q.n || r->up_flow.pump.in_pipe))
        io_reset_on_close(&u->s);
    if (r->down_flow.src == PX_SRC_PUMP) fl_pump_end(r, &r->down_flow);
    if (r->up_flow.src == PX_SRC_PUMP) fl_pump_end(r, &r->up_flow);
    r->up = NULL;
    r->connecting = false;
    if (r->up_flow.q.sending) {
        r->up_closing = true; /* the kernel may still read our buffers: px_on_closing frees them */
        u->s.handle = r->w->px.on_closing;
    } else {
        u->req = NULL;
        u->s.handle = up_on_dead;
    }
    up_discard(u);
}

/* Nothing more can be said to this client: both connections go. */
static void px_abort(struct px_req *r, enum px_error error)
{
    if (r->state == PX_FINISHED) return;
    if (!r->error) {
        r->error = (uint8_t)error;
        al_count_error(error);
    }
    if (!r->status) r->status = al_errors[error].status;
    if (error == PX_MEMORY || error == PX_YIELD) r->up_flow.reset = r->down_flow.reset = true; /* tunnels: bytes are missing */
    r->keep = false;
    r->aborted = true;
    px_drop_upstream(r);
}

/* After these answers nothing that the client sent is trusted any more: the connection ends. */
static bool px_is_distrust(enum px_error error)
{
    switch (al_errors[error].status) {
    case 400: case 408: case 413: case 414: case 417: case 431: case 505: return true;
    default: return false;
    }
}

/* The rest of the request is so short that it is read, so that the connection can live on. */
static bool px_is_short(const struct px_req *r)
{
    return r->up_flow.body.framing == HTTP_BODY_LENGTH && r->up_flow.body.left <= PX_SKIP_MAX && !r->expect && !r->holding;
}

/* Queues our own answer. Small as it is, it does not count against memory-limit: that must be told. False without memory. */
static bool px_put_answer(struct px_req *r)
{
    const struct rt_rules *rules = r->policy.rules;
    struct fw_answer answer = {.status = r->status, .head_only = r->method == HTTP_HEAD, .keep = r->keep, .server_tokens = r->w->px.server_tokens,
                               .minor = r->minor, .retry_after_s = r->error == PX_LIMIT_RATE ? r->retry_after_s : 0,
                               .redirect = r->error == PX_REDIRECT, .rules = rules};
    uint32_t room = FL_ANSWER_MAX + (uint32_t)fw_answer_more(rules);
    struct px_flow *f = &r->down_flow;
    uint8_t *at = fl_gather_room(r, f, room);
    struct str_builder sb;

    if (!at && !(f->tail = mem_buf_alloc(room))) return false;
    sb = str_fixed(at ? at : f->tail->data, room);
    fw_put_answer(&sb, &answer);
    fl_gathered(r, f, (uint32_t)sb.n);
    return true;
}

/* Answers the request ourselves. When response bytes are already out, the connection is cut instead: half an answer must not look whole. */
static void px_refuse(struct px_req *r, enum px_error error)
{
    const struct rt_rules *rules = r->policy.rules;
    struct px_flow *f = &r->down_flow;

    if (r->head_sent || r->aborted || r->state == PX_REFUSED) {
        px_abort(r, error);
        return;
    }
    if (!r->client_send_ms) r->client_send_ms = rt_live()->cfg->send_ms; /* refused before its settings were taken */
    px_drop_upstream(r);
    if (r->state == PX_WAIT_HEAD) r->method = r->head.msg.method; /* as far as it was read: nothing may follow the head for HEAD */
    r->error = (uint8_t)error;
    r->status = error == PX_REDIRECT ? rules->redirect_status : al_errors[error].status;
    al_count_error(error);
    if (r->state == PX_WAIT_HEAD || px_is_distrust(error) || (!r->up_flow.done && !px_is_short(r))) r->keep = false;
    if (r->w->px.leaving || r->upgrade) r->keep = false; /* what follows an upgrade may be no HTTP */
    if (!r->up_flow.q.sending) io_outq_clear(&r->up_flow.q);
    r->up_flow.broken = true;
    r->state = PX_REFUSED;
    r->head_sent = true;
    f->chunked = false;
    if (!px_put_answer(r)) {
        px_abort(r, PX_MEMORY);
        return;
    }
    f->bytes = r->method == HTTP_HEAD ? 0 : 5 + http_reason(r->status).n;
    f->done = true;
    f->out_ms = fl_now_ms(r);
    if (error == PX_NO_ENDPOINT || al_errors[error].status == 502 || al_errors[error].status == 504)
        log_warn("px", "%s: %u %s%s%s (" STR_FMT STR_FMT ", backend " STR_FMT ", tries %u)", r->why ? "upstream" : "request", r->status, al_errors[error].text,
                 r->why ? ": " : "", r->why ? r->why : "", STR_ARG(r->log_host), STR_ARG(r->log_target), STR_ARG(r->backend_name), r->tries);
}

/* ---- upstream ---- */

static void px_sent_start(struct px_req *r)
{
    r->up_flow.out_ms = r->down_flow.in_ms = fl_now_ms(r);
    r->t_sent_ns = fl_now_ns(r);
    r->state = PX_WAIT_RESPONSE;
}

/* The last answer of this endpoint was large, so the next one is fetched by single receives from its head on: a subscription
 * would copy most of it into small buffers before its head was parsed (io_uring, 100 KiB: 59 us of CPU against 41). */
static void px_expects_large(struct px_req *r, bool armed)
{
    struct px_flow *f = &r->down_flow;

    f->big = true;
    f->src = armed ? PX_SRC_STOPPING : PX_SRC_BIG;
    if (armed) io_recv_stop(&r->w->loop, &r->up->s);
    else io_recv_head(&r->w->loop, &r->up->s);
}

/* Takes a connection to endpoint p. 1: in use, 0: connecting, negative: failed at once. */
static int px_open_upstream(struct px_req *r, struct up_pool *p, bool fresh)
{
    struct up *up = &r->w->up;
    int err;

    r->upstream = p->addr;
    r->t_connect_ns = fl_now_ns(r);
    r->up_spoiled = false;
    r->up_ended = r->up_reset = r->up_wrote = false;
    r->down_flow.src = PX_SRC_STREAM;
    r->down_flow.big = false;
    mtr_bump(&p->requests, 1);
    if (!fresh && (r->up = up_take(up, p))) {
        r->reused = true;
        r->up->req = r;
        r->up->s.handle = r->w->px.on_upstream;
        if (p->large) px_expects_large(r, true);
        px_sent_start(r);
        return 1;
    }
    r->reused = false;
    r->up = up_connect(up, p, r->w->px.on_upstream, &err);
    if (!r->up) return err;
    r->up->req = r;
    r->connecting = true;
    r->connect_ms = fl_now_ms(r);
    return 0;
}

/* proxy-next-upstream-tries; no limit means as many as there are endpoints. */
static uint32_t px_max_tries(const struct px_req *r)
{
    uint32_t n = r->backend && r->backend->n < UINT16_MAX ? r->backend->n : UINT16_MAX;

    return r->policy.tries ? r->policy.tries : n;
}

/* Sends the request to the next endpoint that was not tried, or answers why not. fresh: not on a pooled connection. */
static void px_try(struct px_req *r, enum px_error last, bool fresh)
{
    struct up_choice choice = {.tried = r->tried, .hash = r->hash};
    struct up_group *g = r->backend ? up_group_for(&r->w->up, r->backend, r->snap->seq) : NULL;
    int rc;

    if (g && !r->tries) up_earn(&r->w->up, g, r->backend);
    while (g && (fresh || r->tries < px_max_tries(r))) {
        int i = up_pick(&r->w->up, g, r->backend, choice);
        struct up_pool *p = i < 0 ? NULL : up_pool_at(&r->w->up, g, r->backend, (uint32_t)i);

        if (!p) break;
        r->endpoint = (uint32_t)i;
        r->tries++;
        r->state = PX_WAIT_UPSTREAM;
        if ((rc = px_open_upstream(r, p, fresh)) >= 0) return;
        if (rc == -EMFILE || rc == -ENFILE || rc == -ENOBUFS || rc == -ENOMEM) { /* not the endpoint's fault, and not better elsewhere */
            px_refuse(r, PX_MEMORY);
            return;
        }
        up_failed(&r->w->up, p, r->backend);
        if (i < 64) r->tried = choice.tried |= 1ull << i;
        last = PX_CONNECT;
        fresh = false;
    }
    px_refuse(r, last);
}

/* Everything that was queued for the upstream stands at the front again. */
static void px_rewind(struct px_req *r)
{
    struct io_outq *q = &r->up_flow.q;

    r->up_flow.broken = false;
    io_outq_clear(q);
    io_outq_add(q, r->sent->data, r->sent->len, mem_buf_get(r->sent));
    if (r->held) io_outq_add(q, r->held->data, r->held->len, mem_buf_get(r->held));
}

static uint16_t px_next_flag(enum px_error error)
{
    return error == PX_CONNECT_TIMEOUT || error == PX_READ_TIMEOUT || error == PX_SEND_TIMEOUT ? RT_NEXT_TIMEOUT
         : error == PX_UPSTREAM_PROTOCOL ? RT_NEXT_INVALID_HEADER : RT_NEXT_ERROR;
}

/* May this request be sent once more after error? unsent: the upstream cannot have got a byte of it. */
static bool px_may_retry(const struct px_req *r, enum px_error error, bool unsent)
{
    bool idempotent = http_method_flags((enum http_method)r->method) & HTTP_IDEMPOTENT;

    if (r->head_sent || r->interim || !r->backend || r->aborted) return false;
    if (r->policy.next_ms && (fl_now_ns(r) - r->t_start_ns) / 1000000 >= r->policy.next_ms) return false;
    if (!unsent && (!r->replayable || (!idempotent && !r->policy.retry_non_idempotent))) return false;
    if (!unsent && r->reused && error == PX_UPSTREAM_CLOSED && !r->replayed) return true; /* an idle connection that was closed meanwhile */
    return !(r->policy.next & RT_NEXT_OFF) && r->policy.next & px_next_flag(error);
}

/* The next try is within the backend's retry-budget, or there is none to make. */
static bool px_spend(struct px_req *r)
{
    struct up_group *g = up_group_for(&r->w->up, r->backend, r->snap->seq);

    if (r->tries >= px_max_tries(r) || (g && up_spend(g))) return true;
    mtr_add(MTR_RETRIES_REFUSED, 1);
    return false;
}

/* The upstream failed before its answer began: another try, or our answer. */
static void px_upstream_failed(struct px_req *r, enum px_error error, const char *why)
{
    bool unsent = r->connecting, began = !r->by_status && (r->up_in || r->response_begun);
    bool stale = !unsent && !began && !r->by_status && r->reused && error == PX_UPSTREAM_CLOSED;
    struct up_pool *p = r->up ? r->up->pool : NULL;
    bool free;

    if (p && !stale) up_failed(&r->w->up, p, r->backend);
    px_drop_upstream(r);
    r->why = why;
    fl_put(&r->up_in);
    r->response_begun = false;
    free = unsent || r->by_status || (stale && !r->replayed); /* nothing was asked of the upstream, or px_next_status has decided */
    if (began || (!r->by_status && !px_may_retry(r, error, unsent)) || (!free && !px_spend(r))) {
        px_refuse(r, error);
        return;
    }
    mtr_add(MTR_RETRIES, 1);
    if (!stale && r->endpoint < 64) r->tried |= 1ull << r->endpoint;
    if (stale) r->replayed = true;
    r->retry_fresh = stale;
    r->error_before = (uint8_t)error;
    if (r->up_closing) { /* our bytes are still in the kernel's hands: px_on_closing goes on */
        r->retry_later = true;
        r->state = PX_WAIT_UPSTREAM;
        return;
    }
    if (!unsent) px_rewind(r);
    px_try(r, error, stale);
    if (r->state != PX_REFUSED) r->why = NULL;
}

/* ---- the request head ---- */

/* Answers a request whose head is not whole, or no head, for its n bytes at p: all that is known of it. */
static void px_refuse_head(struct px_req *r, enum px_error error, const uint8_t *p, uint32_t n)
{
    r->minor = 1;
    r->client = r->c->peer;
    r->policy.access_log = true;
    if (n) al_keep_head(r, p, n);
    px_refuse(r, error);
}

/* A malformed head: status is what the parser returned, negative. */
static void px_bad_head(struct px_req *r, int status, const uint8_t *p, uint32_t n)
{
    enum px_error e = status == -414 ? PX_LINE_LIMIT : status == -431 ? PX_HEAD_LIMIT : status == -405 ? PX_METHOD : status == -417 ? PX_EXPECT
                    : status == -505 ? PX_VERSION : PX_BAD_REQUEST;

    r->why = r->head.why;
    px_refuse_head(r, e, p, n);
}

/* Copies what the request needs of its rule, so that the lease can go early. */
static void px_take_rule(struct px_req *r, const struct rt_match *m)
{
    struct str_builder sb = str_fixed(r->names, sizeof r->names);
    struct str route = m->rule->name, backend = m->backend ? m->backend->name : (struct str){0};

    if (route.n > sizeof r->names / 2) route.n = sizeof r->names / 2;
    if (backend.n > sizeof r->names / 2) backend.n = sizeof r->names / 2;
    str_put(&sb, route);
    r->route = str_of(r->names, route.n);
    r->backend_name = str_of(r->names + sb.n, backend.n);
    str_put(&sb, backend);
    r->policy = *m->rule->policy;
    r->metric = m->rule->metric;
    r->backend = m->backend;
}

static void px_take_settings(struct px_req *r, const struct rt_snapshot *snap)
{
    const struct cfg *cfg = snap->cfg;

    rt_lease(snap, r->w->thread.index);
    r->snap = snap;
    r->cfg = cfg;
    r->keep_alive_ms = cfg->keep_alive_ms;
    r->client_body_ms = cfg->client_body_ms;
    r->client_send_ms = cfg->send_ms;
    r->body_rate = cfg->client_body_rate;
    r->send_rate = cfg->send_rate;
    r->server_field = cfg->allow_backend_server_header;
    r->w->px.server_tokens = cfg->server_tokens;
    r->c->served++;
    if (cfg->keep_alive_requests && r->c->served >= cfg->keep_alive_requests) r->keep = false;
    if (!cfg->keep_alive_ms || r->w->px.leaving) r->keep = false;
}

static uint64_t px_id_word(struct px *px, int i)
{
    uint64_t z = px->id_state[i] += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Writes the head that goes upstream into r->sent and notes what the log needs of it. False without memory. */
static bool px_write_request(struct px_req *r, const uint8_t *head, uint32_t head_n, struct mw_ctx *m)
{
    const struct rt_rules *rules = m->rewritten ? r->policy.rules : NULL;
    struct http_msg *msg = &r->head.msg;
    uint32_t room = head_n + 640 + (rules ? rules->prefix.n + rules->forwarded_prefix.n : 0);
    struct str host = str_of(head + msg->host_at, msg->host_n);
    struct fw_request fw = {.cfg = r->cfg, .msg = msg, .head = head, .path = m->path, .prefix = m->prefix, .host = host,
                            .client = &m->client, .peer = &r->c->peer, .scheme = m->scheme.n ? m->scheme : str_z(r->c->transport->scheme),
                            .said_host = m->host.n ? m->host : host, .port = m->port ? m->port : r->c->port,
                            .trusted = m->trusted, .named = m->named, .hop_field = m->hop_field, .hop_at = m->hop_at};
    struct str_builder sb;
    const uint8_t *d;

    for (int i = 0; i < 2; i++) fw.id[i] = px_id_word(&r->w->px, i);
    if (rules) fw.forwarded_prefix = rt_rules_text(rules, rules->forwarded_prefix);
    if (room <= MEM_SMALL_BYTES - sizeof(struct mem_buf)) r->sent = mem_buf_new(&r->w->loop.small);
    if (RJ_UNLIKELY(!r->sent) && !(r->sent = fl_buf(r, room + PX_COPY_MAX))) return false;
    sb = str_fixed(r->sent->data, r->sent->cap);
    fw_put_request(&sb, &fw);
    if (RJ_NEVER(sb.failed)) return false;
    d = r->sent->data;
    r->log_method = str_of(d, msg->method_n);
    r->log_target = str_of(d + fw.target_at, fw.target_n);
    r->log_host = str_of(d + fw.host_at, fw.host_n);
    r->log_id = al_keep(r, fw.request_id, 128);
    if (rules) r->log_target = al_keep(r, str_of(head + msg->target_at, msg->target_n), 150); /* what the client asked for */
    if (r->w->px.combined) r->log_agent = al_keep(r, fw.agent, 100);
    r->up_flow.tail = mem_buf_get(r->sent);
    r->sent->len = 0;
    fl_gathered(r, &r->up_flow, (uint32_t)sb.n);
    r->replayable = true;
    return true;
}

/* Host and path in normal form and the rule they lead to. *room: what holds the path, when it needed any. PX_OK, or why not. */
static enum px_error px_route(struct px_req *r, const uint8_t *head, struct str *path, struct mem_buf **room, struct rt_match *match)
{
    const struct http_msg *m = &r->head.msg;
    uint8_t host[HTTP_HOST_MAX];
    size_t n = http_host_form(str_of(head + m->host_at, m->host_n), host);
    long k;

    *path = str_of(head + m->path_at, m->path_n);
    if (!m->path_plain && m->path_n) {
        if (!(*room = fl_buf(r, m->path_n))) return PX_MEMORY;
        if ((k = http_path_normalize(*path, (*room)->data)) < 0) {
            r->why = "bad path";
            return PX_BAD_REQUEST;
        }
        *path = str_of((*room)->data, (size_t)k);
    }
    return rt_find(r->snap, str_of(host, n), path->n ? *path : S("/"), match) ? PX_OK : r->snap->partial ? PX_NOT_READY : PX_NO_ROUTE;
}

/* Routes, runs the middleware, writes the head that goes upstream. PX_OK, or what is to be answered. */
static enum px_error px_prepare(struct px_req *r, const uint8_t *head, uint32_t n, struct mem_buf **room)
{
    struct mw_ctx m = {.cfg = r->cfg, .msg = &r->head.msg, .head = head, .peer = &r->c->peer, .now_ns = fl_now_ns(r)};
    enum mw_verdict verdict;
    struct rt_match match;
    uint32_t at = 0;
    enum px_error error;

    mw_client(&m);
    r->client = m.client;
    if ((error = px_route(r, head, &m.path, room, &match))) return error;
    px_take_rule(r, &match);
    m.rule = match.rule;
    m.backend = match.backend;
    verdict = mw_run(&m, &at);
    r->place = m.place;
    if (verdict == MW_CONTINUE) {
        r->hash = up_hash(match.backend, &(struct up_request){.msg = m.msg, .head = head, .client = &m.client, .path = m.path});
        return px_write_request(r, head, n, &m) ? PX_OK : PX_MEMORY;
    }
    r->why = m.why;
    r->retry_after_s = m.retry_after_s;
    return (enum px_error)m.error;
}

/* The head of n bytes at head is complete: chooses an endpoint, or waits for the content first. */
static void px_on_head(struct px_req *r, const uint8_t *head, uint32_t n)
{
    const struct http_msg *msg = &r->head.msg;
    struct mem_buf *room = NULL;
    enum px_error error;

    clk_disarm(&r->c->timer);
    r->method = msg->method;
    r->minor = msg->minor;
    r->client = r->c->peer;
    r->keep = msg->keep_alive;
    r->upgrade = msg->upgrade;
    r->expect = msg->expect;
    r->policy.access_log = true;
    h1_body_init(&r->up_flow.body, (enum http_framing)msg->framing, msg->length);
    r->up_flow.done = r->up_flow.body.done;
    r->up_flow.chunked = msg->framing == HTTP_BODY_CHUNKED;
    r->up_flow.in_ms = fl_now_ms(r);
    r->state = PX_WAIT_UPSTREAM;
    px_take_settings(r, rt_live());
    error = px_prepare(r, head, n, &room);
    fl_put(&room);
    if (error) {
        al_keep_head(r, head, n);
        px_refuse(r, error);
        return;
    }
    rt_served(r->snap);
    if (r->policy.body_bytes) r->up_flow.body.room = r->policy.body_bytes;
    if (!r->policy.request_buffering || r->up_flow.done) px_try(r, PX_NO_ENDPOINT, false);
    else r->holding = true;
}

/* ---- bytes from the client ---- */

/* Request content at b->data + at. Returns bytes used. */
static uint32_t px_content_in(struct px_req *r, struct mem_buf *b, uint32_t at, uint32_t n)
{
    struct px_flow *f = &r->up_flow;
    long used;

    r->expect = false;
    if (r->aborted || (r->state == PX_REFUSED && !r->keep)) return n; /* dropped: the connection closes behind our answer */
    used = fl_decode(r, f, b, at, n);
    if (used < 0) {
        r->keep = false; /* what stands behind it is dropped with it, and may be the begin of a request */
        px_refuse(r, f->body.too_large ? PX_BODY_LIMIT : used == -431 ? PX_HEAD_LIMIT : r->why ? PX_BAD_REQUEST : PX_MEMORY);
        px_spoil(r);
        return n;
    }
    r->in_bytes += (uint64_t)used;
    if (r->holding && f->done && r->state == PX_WAIT_UPSTREAM) {
        r->holding = false;
        if (r->held) io_outq_add(&f->q, r->held->data, r->held->len, mem_buf_get(r->held));
        px_try(r, PX_NO_ENDPOINT, false);
    }
    return (uint32_t)used;
}

/* Bytes behind the running request: kept for the next one. */
static void px_keep_pending(struct px_req *r, struct mem_buf *b, uint32_t at, uint32_t n)
{
    struct mem_buf *both;

    if (r->pend && r->up_flow.src == PX_SRC_STREAM) {
        r->up_flow.src = PX_SRC_STOPPING;
        io_recv_stop(&r->w->loop, &r->c->s);
    }
    if (r->pend_n + n > PX_PEND_MAX || !(both = fl_buf(r, r->pend_n + n))) {
        px_abort(r, PX_MEMORY);
        return;
    }
    if (r->pend) memcpy(both->data, r->pend->data + r->pend_at, r->pend_n);
    memcpy(both->data + r->pend_n, b->data + at, n);
    both->len = r->pend_n + n;
    fl_put(&r->pend);
    r->pend = both;
    r->pend_at = 0;
    r->pend_n = both->len;
}

/* Adds to a head that comes in pieces. Returns the head so far, or NULL without memory. Takes at most what a head may have. */
static struct mem_buf *px_add_piece(struct px_req *r, struct mem_buf **in, const uint8_t *p, uint32_t n, uint32_t limit, uint32_t *taken)
{
    uint32_t had = *in ? (*in)->len : 0;

    *taken = n < limit + 1 - had ? n : limit + 1 - had;
    if (!*in || (*in)->cap - had < *taken) {
        struct mem_buf *b = fl_buf(r, *in ? fl_grown(*in, had + *taken) : *taken);

        if (!b) return NULL;
        if (had) memcpy(b->data, (*in)->data, had);
        fl_put(in);
        *in = b;
    }
    memcpy((*in)->data + had, p, *taken);
    (*in)->len = had + *taken;
    return *in;
}

/* Bytes of a request head. Returns bytes used; the request leaves WAIT_HEAD when it is complete or refused. */
static uint32_t px_head_in(struct px_req *r, struct mem_buf *b, uint32_t at, uint32_t n)
{
    const struct cfg *cfg = rt_live()->cfg;
    struct h1_limits limits = {.line_bytes = cfg->head_buffers.bytes, .head_bytes = cfg->head_buffers.bytes * cfg->head_buffers.count,
                               .fields = cfg->max_request_headers, .underscores = cfg->underscores_in_headers};
    const uint8_t *p = b->data + at;
    uint32_t had = r->in ? r->in->len : 0, taken = n, all = n;
    int rc;

    if (had) {
        if (!px_add_piece(r, &r->in, p, n, limits.head_bytes, &taken)) {
            px_refuse_head(r, PX_MEMORY, r->in->data, had);
            return n;
        }
        p = r->in->data;
        all = r->in->len;
    }
    rc = h1_request_feed(&r->head, p, all, &limits);
    if (rc < 0) {
        px_bad_head(r, rc, p, all);
        return n;
    }
    if (rc > 0) {
        r->in_bytes += (uint64_t)rc;
        px_on_head(r, p, (uint32_t)rc);
        fl_put(&r->in);
        return (uint32_t)rc - had;
    }
    if (!had) {
        clk_arm(&r->w->loop.clk, &r->c->timer, cfg->client_header_ms);
        if (!px_add_piece(r, &r->in, p, n, limits.head_bytes, &taken)) px_refuse_head(r, PX_MEMORY, p, n);
    }
    return taken;
}

/* A 101 may still come: what the client sends is for the tunnel then, also where no other request would be served. */
static inline bool px_may_switch(const struct px_req *r) { return r->upgrade && (r->state == PX_WAIT_UPSTREAM || r->state == PX_WAIT_RESPONSE); }

/* The codec of HTTP/1.x: bytes that the client sent. */
static void px_h1_data(struct px_conn *c, struct mem_buf *b, uint32_t at, uint32_t n)
{
    while (n) {
        struct px_req *r = c->req;
        uint32_t used;

        if (!r && !(r = px_req_new(c))) {
            static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

            mtr_add(MTR_REFUSED_MEMORY, 1);
            sys_send(c->s.fd, busy, sizeof busy - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            c->state = PX_CONN_CLOSING;
            io_close(&c->w->loop, &c->s);
            return;
        }
        if (c->state == PX_CONN_IDLE) {
            c->state = PX_CONN_ACTIVE;
            mtr_move(MTR_CLIENT_IDLE, -1);
            mtr_move(MTR_CLIENT_ACTIVE, 1);
            clk_disarm(&c->timer);
        }
        if (r->aborted) return;
        if (r->state == PX_WAIT_HEAD) {
            used = px_head_in(r, b, at, n);
        } else if (!r->up_flow.done) {
            used = px_content_in(r, b, at, n);
        } else if (r->state == PX_TUNNEL || (!r->keep && !px_may_switch(r))) {
            return;
        } else {
            px_keep_pending(r, b, at, n);
            return;
        }
        at += used;
        n -= used;
    }
}

/* ---- the response ---- */

/* A tunnel begins: everything behind the two heads is passed as it is. */
static void px_start_tunnel(struct px_req *r)
{
    r->state = PX_TUNNEL;
    r->keep = false;
    px_spoil(r);
    mtr_add(MTR_TUNNELS, 1);
    mtr_move(MTR_TUNNELS_OPEN, 1);
    r->up_flow.chunked = r->down_flow.chunked = false;
    r->up_flow.done = false;
    h1_body_init(&r->up_flow.body, HTTP_BODY_EOF, 0);
    h1_body_init(&r->down_flow.body, HTTP_BODY_EOF, 0);
    px_release_lease(r);
    io_probe_peer(&r->c->s); /* it may be silent for hours: a peer that is gone would not be missed */
    io_probe_peer(&r->up->s);
    if (r->pend && fl_decode(r, &r->up_flow, r->pend, r->pend_at, r->pend_n) < 0) px_abort(r, PX_MEMORY); /* it was sent without waiting for the 101 */
    fl_put(&r->pend);
    if (r->c->ended) r->up_flow.done = true;
}

/* Queues the response head (final, or 1xx) that stands at head. False without memory. */
static bool px_write_response(struct px_req *r, const uint8_t *head, uint32_t n, bool final)
{
    struct http_msg *m = &r->head.msg;
    struct px_flow *f = &r->down_flow;
    bool bodyless = r->method == HTTP_HEAD || m->status == 304;
    struct fw_response fw = {.msg = m, .head = head, .framing = m->framing, .length = m->length, .minor = r->minor, .server_field = r->server_field,
                             .keep = r->keep, .no_length = m->status < 200 || m->status == 204, .pass_length = final && bodyless, .upgrade = m->status == 101,
                             .rules = r->policy.rules};
    uint32_t room = n + 256 + (fw.rules ? fw.rules->fields.n : 0);
    struct str_builder sb;
    uint8_t *at;

    if (final && (m->framing == HTTP_BODY_EOF || m->framing == HTTP_BODY_CHUNKED)) {
        fw.framing = r->minor ? HTTP_BODY_CHUNKED : HTTP_BODY_EOF;
        f->chunked = r->minor != 0;
        if (!r->minor) r->keep = fw.keep = false;
    }
    if (f->q.n > IO_OUTQ_MAX - 4 && !fl_squeeze(r, f)) return false;
    if (!(at = fl_gather_room(r, f, room))) return false;
    sb = str_fixed(at, room);
    fw_put_response(&sb, &fw);
    if (RJ_NEVER(sb.failed)) return false;
    fl_gathered(r, f, (uint32_t)sb.n);
    f->out_ms = fl_now_ms(r);
    return true;
}

/* An interim answer: passed to clients of 1.1, never twice the 100 that we sent ourselves. */
static void px_interim(struct px_req *r, const uint8_t *head, uint32_t n)
{
    if (++r->interim > PX_INTERIM_MAX) {
        px_upstream_failed(r, PX_UPSTREAM_PROTOCOL, "too many 1xx answers");
        return;
    }
    if (r->head.msg.status == 100) {
        if (r->continued) return;
        r->continued = true;
    }
    if (r->minor && !px_write_response(r, head, n, false)) px_abort(r, PX_MEMORY);
}

static bool px_next_status(const struct px_req *r, unsigned status)
{
    uint16_t flag = status == 500 ? RT_NEXT_500 : status == 502 ? RT_NEXT_502 : status == 503 ? RT_NEXT_503 : status == 504 ? RT_NEXT_504
                  : status == 403 ? RT_NEXT_403 : status == 404 ? RT_NEXT_404 : status == 429 ? RT_NEXT_429 : 0;
    bool idempotent = http_method_flags((enum http_method)r->method) & HTTP_IDEMPOTENT;

    if (!flag || !(r->policy.next & flag) || r->policy.next & RT_NEXT_OFF || !r->backend || r->backend->n < 2) return false;
    if ((uint32_t)__builtin_popcountll(r->tried) + 1 >= r->backend->n) return false; /* nobody is left: this answer goes out */
    return (idempotent || r->policy.retry_non_idempotent) && r->replayable && !r->interim && r->up_flow.done && r->tries < px_max_tries(r) &&
           (!r->policy.next_ms || (fl_now_ns(r) - r->t_start_ns) / 1000000 < r->policy.next_ms);
}

/* The final head of n bytes at head is complete. */
static void px_on_response_head(struct px_req *r, const uint8_t *head, uint32_t n)
{
    const struct http_msg *m = &r->head.msg;
    struct px_flow *f = &r->down_flow;

    r->t_header_ns = fl_now_ns(r);
    if (m->status == 101 && (!r->upgrade || !m->upgrade)) {
        px_upstream_failed(r, PX_UPSTREAM_PROTOCOL, "101 that was not asked for");
        return;
    }
    if (px_next_status(r, m->status) && px_spend(r)) {
        r->by_status = true;
        px_upstream_failed(r, PX_UPSTREAM_CLOSED, "status in proxy-next-upstream");
        r->by_status = false;
        return;
    }
    up_succeeded(r->up->pool, (r->t_header_ns - r->t_sent_ns) / 1000);
    f->big = f->big && m->framing != HTTP_BODY_LENGTH;
    if (!m->keep_alive) px_spoil(r);
    if (!r->up_flow.done || r->w->px.leaving) r->keep = false; /* an early answer: the rest of the request may never come */
    if (r->upgrade && r->pend) r->keep = false; /* sent for a tunnel that did not come to be: never read as requests */
    h1_body_init(&f->body, (enum http_framing)m->framing, m->length);
    r->status = m->status;
    if (!px_write_response(r, head, n, true)) {
        px_abort(r, PX_MEMORY);
        return;
    }
    r->head_sent = true;
    if (m->status == 101) {
        px_start_tunnel(r);
        return;
    }
    r->state = PX_RELAY;
    px_release_lease(r);
    if (f->body.done) f->done = true;
}

/* Bytes of a response head. Returns bytes used. */
static uint32_t px_response_head_in(struct px_req *r, struct mem_buf *b, uint32_t at, uint32_t n)
{
    struct h1_limits limits = {.line_bytes = r->policy.head_bytes, .head_bytes = r->policy.head_bytes, .fields = HTTP_FIELDS_MAX, .underscores = true};
    const uint8_t *p = b->data + at;
    uint32_t had = r->up_in ? r->up_in->len : 0, taken = n, all = n;
    int rc;

    if (!had && !r->response_begun) {
        h1_head_init(&r->head, false, r->method);
        r->response_begun = true;
    }
    if (had) {
        if (!px_add_piece(r, &r->up_in, p, n, limits.head_bytes, &taken)) {
            px_abort(r, PX_MEMORY);
            return n;
        }
        p = r->up_in->data;
        all = r->up_in->len;
    }
    rc = h1_response_feed(&r->head, p, all, &limits);
    if (rc < 0) {
        px_upstream_failed(r, PX_UPSTREAM_PROTOCOL, r->head.why);
        return n;
    }
    if (rc == RJ_MORE) {
        if (!had && !px_add_piece(r, &r->up_in, p, n, limits.head_bytes, &taken)) px_abort(r, PX_MEMORY);
        return taken;
    }
    r->response_begun = false;
    if (r->head.msg.status < 200 && r->head.msg.status != 101) px_interim(r, p, (uint32_t)rc);
    else px_on_response_head(r, p, (uint32_t)rc);
    fl_put(&r->up_in);
    return (uint32_t)rc - had;
}

/* Bytes from the upstream. */
static void px_response_in(struct px_req *r, struct mem_buf *b, uint32_t at, uint32_t n)
{
    struct up_conn *u = r->up;

    while (n && r->up == u && !r->aborted) {
        long used;

        if (r->state == PX_WAIT_RESPONSE) {
            used = px_response_head_in(r, b, at, n);
        } else if (r->state == PX_RELAY || r->state == PX_TUNNEL) {
            if (r->down_flow.done) {
                px_spoil(r); /* bytes behind the response: nobody asked for them */
                return;
            }
            used = fl_decode(r, &r->down_flow, b, at, n);
            if (used < 0) {
                px_spoil(r);
                px_abort(r, r->why ? PX_UPSTREAM_PROTOCOL : PX_MEMORY);
                return;
            }
        } else {
            px_spoil(r); /* an answer before the request was sent */
            return;
        }
        at += (uint32_t)used;
        n -= (uint32_t)used;
    }
}

/* The upstream sends no more. */
static void px_response_end(struct px_req *r, int res)
{
    struct px_flow *f = &r->down_flow;

    r->up_ended = true;
    px_spoil(r);
    if (r->state == PX_WAIT_RESPONSE) {
        px_upstream_failed(r, PX_UPSTREAM_CLOSED, r->up_in ? "in the middle of its head" : "without an answer");
        return;
    }
    if (r->state == PX_TUNNEL) {
        fl_tunnel_end(r, f, res < 0 || r->up_reset || r->up_flow.broken);
        return;
    }
    if (r->state != PX_RELAY || f->done) return;
    if (res == 0 && !r->up_reset && f->body.framing == HTTP_BODY_EOF) {
        if (!fl_emit_end(r, f)) px_abort(r, PX_MEMORY);
        return;
    }
    px_abort(r, PX_UPSTREAM_CLOSED);
}

/* ---- the end of a request ---- */

/* The connection ends: says so, then reads what still comes so that no reset eats our answer. */
static void px_linger(struct px_conn *c)
{
    if (c->state == PX_CONN_CLOSING) return;
    if (c->ended || c->state == PX_CONN_LINGER) {
        c->state = PX_CONN_CLOSING;
        io_close(&c->w->loop, &c->s);
        return;
    }
    c->state = PX_CONN_LINGER;
    c->served = 0; /* counts lingering bytes from here on, in KiB */
    io_shutdown(&c->s);
    clk_arm(&c->w->loop.clk, &c->timer, PX_LINGER_MS);
    io_recv_start(&c->w->loop, &c->s);
}

/* Gives the upstream connection back when both sides ended well. */
static void px_finish_upstream(struct px_req *r)
{
    struct up_conn *u = r->up;
    bool armed = r->down_flow.src == PX_SRC_STREAM;

    if (!u) return;
    if (r->up_spoiled || !r->up_flow.done || r->up_flow.q.n || r->up_flow.q.sending || r->connecting || !r->down_flow.done || r->w->px.draining ||
        (!armed && io_has_more(&u->s))) {
        px_drop_upstream(r);
        return;
    }
    r->up = NULL;
    u->pool->large = r->down_flow.bytes >= PX_PUMP_MIN;
    up_release(u, armed);
}

/* HTTP/1.x: what becomes of the connection behind a response. True: it serves on. */
static bool px_h1_finish(struct px_conn *c, bool keep, bool aborted)
{
    if (aborted) {
        c->state = PX_CONN_CLOSING;
        io_close(&c->w->loop, &c->s);
        return false;
    }
    if (!keep) px_linger(c);
    return keep;
}

/* What stands behind a request when the next one begins: bytes that are here already, and how more are fetched. */
struct px_next {
    struct mem_buf *pend;                                /* a reference; NULL: none */
    uint32_t at, n;
    uint8_t src;                                         /* enum px_source */
};

/* To 1.0 the end is the content's end; of a client that does not read, the kernel would keep what is unsent for many minutes. */
static bool px_resets_client(const struct px_req *r, bool tunnel)
{
    if (tunnel) return fl_is_cut(&r->down_flow);
    return r->head_sent && (!r->down_flow.done || r->down_flow.q.n) && (!r->minor || r->error == PX_CLIENT_TIMEOUT || r->error == PX_YIELD);
}

/* Everything is sent, or nothing more will be. Records the request and frees it; *next tells how the connection goes on. */
static void px_finish(struct px_req *r, struct px_next *next)
{
    struct px_conn *c = r->c;
    bool waits = !r->w->px.draining || r->pend;          /* a drain lets a request be that came behind an answer which promised more */
    bool keep = r->keep && !r->aborted && r->up_flow.done && waits, aborted = r->aborted, tunnel = r->state == PX_TUNNEL;
    uint32_t idle_ms = r->keep_alive_ms;

    *next = (struct px_next){.src = r->up_flow.src};
    r->state = PX_FINISHED;
    px_leave(r);
    px_finish_upstream(r);
    al_record(r);
    if (tunnel) mtr_move(MTR_TUNNELS_OPEN, -1);
    clk_disarm(&r->timer);
    if (c) {
        if (!aborted || !r->down_flow.q.sending) c->req = NULL; /* else px_on_client frees it at IO_CLOSED */
        if (keep && r->pend) {
            next->pend = r->pend;
            next->at = r->pend_at;
            next->n = r->pend_n;
            r->pend = NULL;
        }
        mtr_move(MTR_CLIENT_ACTIVE, -1);
        mtr_move(MTR_CLIENT_IDLE, 1);
        c->state = PX_CONN_IDLE;
        if (aborted && px_resets_client(r, tunnel)) io_reset_on_close(&c->s);
        keep = c->codec->finish(c, keep && !(c->ended && !next->pend), aborted);
        if (keep) {
            clk_arm(&c->w->loop.clk, &c->timer, idle_ms);
            if (next->src != PX_SRC_STREAM && !c->ended && !next->pend) io_recv_start(&c->w->loop, &c->s);
        }
        if (!keep) fl_put(&next->pend);
    }
    if (c && c->req == r) return;
    r->c = NULL;
    if (!r->up_closing) px_req_free(r);
}

/* ---- deadlines ---- */

static void px_rearm(struct px_req *r)
{
    enum px_error error = PX_OK;
    uint64_t at = fl_deadline(r, &error), now = fl_now_ms(r);

    if (!at) clk_disarm(&r->timer);
    else clk_arm(&r->w->loop.clk, &r->timer, at > now ? at - now : 1);
}

/* ---- acting on what happened ---- */

static void px_flush(struct px_req *r, struct px_flow *f)
{
    struct io_sock *s = fl_to(r, f);

    if (!f->q.n || f->q.sending || !s || !io_is_open(s)) return;
    f->out_ms = fl_now_ms(r); /* a silence before is not the destination's fault */
    if (fl_is_down(r, f)) {
        r->c->transport->send(r->c, &f->q);
        return;
    }
    if (f->broken) {
        io_outq_clear(&f->q);
        return;
    }
    io_send(&r->w->loop, s, &f->q);
}

/* Tunnels: passes the end of one direction on once its bytes are out. True when both ended. */
static bool px_tunnel_ends(struct px_req *r)
{
    struct px_flow *flows[2] = {&r->up_flow, &r->down_flow};

    for (int i = 0; i < 2; i++) {
        struct px_flow *f = flows[i];
        struct io_sock *to = fl_to(r, f);

        if (!f->done || f->q.n || f->q.sending || !to) continue;
        if (f->reset) {
            px_abort(r, fl_is_down(r, f) ? PX_UPSTREAM_CLOSED : PX_CLIENT_CLOSED);
            return true;
        }
        if (f->shut) continue;
        io_shutdown(to);
        f->shut = true;
    }
    return r->up_flow.shut && r->down_flow.shut;
}

static bool px_is_over(struct px_req *r)
{
    if (r->aborted) return true;
    if (r->client_lost) {
        px_abort(r, PX_CLIENT_CLOSED);
        return true;
    }
    if (r->state == PX_TUNNEL) return px_tunnel_ends(r);
    if (r->state == PX_RELAY && r->up_ended && !r->down_flow.done && r->down_flow.src == PX_SRC_IDLE) { /* a pump saw the end too early */
        px_abort(r, PX_UPSTREAM_CLOSED);
        return true;
    }
    if (r->state != PX_RELAY && r->state != PX_REFUSED) return false;
    if (r->state == PX_REFUSED && r->keep && !r->up_flow.done) return false; /* the rest of the request is skipped first */
    return r->down_flow.done && !r->down_flow.q.n && !r->down_flow.q.sending;
}

/* The client sends no more, and its request is not whole. */
static void px_cut_short(struct px_req *r)
{
    if (r->state == PX_REFUSED) {
        r->keep = false;
        return;
    }
    if (r->state == PX_WAIT_HEAD) r->status = 400, r->client = r->c->peer, r->minor = 1;
    px_abort(r, PX_CLIENT_CLOSED);
}

/* Acts on what an event left behind: sends, fetches, finishes, begins the next request that is already here. */
static void px_settle(struct px_conn *c)
{
    struct px_req *r;

    while ((r = c->req) && r->state != PX_FINISHED) {
        struct px_next next;

        if (c->state == PX_CONN_CLOSING) return;
        if (r->state == PX_RELAY && r->down_flow.done && r->up_flow.done && !r->up_flow.q.n) px_finish_upstream(r);
        px_flush(r, &r->up_flow);
        px_flush(r, &r->down_flow);
        if (!px_is_over(r)) {
            if (r->state != PX_WAIT_HEAD || r->up_flow.src == PX_SRC_IDLE) fl_pull(r, &r->up_flow);
            if (r->state >= PX_WAIT_RESPONSE && r->state <= PX_TUNNEL) fl_pull(r, &r->down_flow);
            if (px_is_over(r)) continue;
            if (r->state == PX_TUNNEL) fl_rest(&r->up_flow), fl_rest(&r->down_flow);
            px_rearm(r);
            return;
        }
        px_finish(r, &next);
        if (!next.pend) return;
        c->next_src = next.src;
        c->codec->data(c, next.pend, next.at, next.n);
        c->next_src = PX_SRC_STREAM;
        mem_buf_put(next.pend);
        if (c->ended && (r = c->req) && (r->state == PX_WAIT_HEAD || !r->up_flow.done)) px_cut_short(r);
    }
}

/* ---- events ---- */

static void px_on_deadline(struct px_req *r)
{
    enum px_error error = PX_OK;
    uint64_t at = fl_deadline(r, &error);
    struct px_conn *c = r->c;

    if (!at || !c) return;
    if (at > fl_now_ms(r)) {
        px_rearm(r);
        return;
    }
    switch (error) {
    case PX_OK: /* the client waits for a 100 that the upstream does not send */
        r->continued = true;
        r->down_flow.out_ms = fl_now_ms(r);
        if (!fl_gather(r, &r->down_flow, S("HTTP/1.1 100 Continue\r\n\r\n"))) px_abort(r, PX_MEMORY);
        break;
    case PX_CONNECT_TIMEOUT: px_upstream_failed(r, error, NULL); break;
    case PX_SEND_TIMEOUT:
        if (r->state == PX_TUNNEL) px_abort(r, error);
        else px_upstream_failed(r, error, NULL);
        break;
    case PX_READ_TIMEOUT:
        if (r->state == PX_WAIT_RESPONSE) px_upstream_failed(r, error, NULL);
        else px_abort(r, error);
        break;
    case PX_BODY_TIMEOUT: px_refuse(r, error); break;
    default: px_abort(r, error); break;
    }
    px_settle(c);
}

/* A dying upstream connection whose send was in flight: now the buffers are ours again. */
static void px_on_closing(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b)
{
    struct up_conn *u = RJ_CONTAINER(s, struct up_conn, s);
    struct px_req *r = u->req;
    struct px_conn *c;

    (void)res;
    (void)b;
    if (ev != IO_CLOSED) return;
    up_conn_gone(u);
    r->up_closing = false;
    r->up_flow.q.sending = false;
    io_outq_clear(&r->up_flow.q);
    c = r->c;
    if (!c) {
        px_req_free(r);
        return;
    }
    if (r->retry_later && r->state == PX_WAIT_UPSTREAM && !r->aborted) {
        r->retry_later = false;
        if (r->replayable) {
            px_rewind(r);
            px_try(r, (enum px_error)r->error_before, r->retry_fresh);
        } else { /* content that came meanwhile is not all in r->sent */
            px_refuse(r, (enum px_error)r->error_before);
        }
        if (r->state != PX_REFUSED) r->why = NULL;
    }
    px_settle(c);
}

static void px_on_upstream(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b)
{
    struct px_req *r = RJ_CONTAINER(s, struct up_conn, s)->req;
    struct px_flow *f = &r->up_flow;
    struct px_conn *c = r->c;

    switch (ev) {
    case IO_CONNECT:
        if (res < 0) {
            px_upstream_failed(r, PX_CONNECT, res == -ECONNREFUSED ? "connection refused" : res == -ETIMEDOUT ? "timed out" : "unreachable");
            break;
        }
        r->connecting = false;
        if (r->up->pool->large) px_expects_large(r, false);
        else io_recv_start(&r->w->loop, s);
        px_sent_start(r);
        break;
    case IO_RECV:
        if (r->down_flow.src == PX_SRC_BIG) r->down_flow.src = PX_SRC_IDLE;
        if (res > 0 && r->state == PX_WAIT_RESPONSE && r->reused && !r->up_wrote) res = 0; /* it was there before the request: an end */
        if (res <= 0) {
            if (r->down_flow.src == PX_SRC_STREAM) r->down_flow.src = PX_SRC_IDLE;
            px_response_end(r, res);
            break;
        }
        if (r->state == PX_TUNNEL) r->down_flow.big = res >= (int)b->cap || (r->down_flow.big && res > MEM_SMALL_BYTES / 2);
        r->down_flow.in_ms = fl_now_ms(r);
        px_response_in(r, b, 0, (uint32_t)res);
        break;
    case IO_SENT:
        io_outq_sent(&f->q, res);
        f->out_ms = fl_now_ms(r);
        r->up_wrote = true;
        if (res == -ECONNRESET) r->up_reset = true; /* the kernel tells it once: what ends now did not end well */
        if (res < 0 && r->state == PX_TUNNEL) {
            fl_tunnel_broken(r, f);
        } else if (res < 0) { /* its answer may still come: the receive side tells */
            f->broken = true;
            px_spoil(r);
            io_outq_clear(&f->q);
        }
        break;
    case IO_STOPPED:
        if (r->down_flow.src == PX_SRC_STOPPING) r->down_flow.src = PX_SRC_IDLE;
        break;
    case IO_READY:
        if (res == IO_IN && r->down_flow.src == PX_SRC_PUMP) fl_pump_step(r, &r->down_flow);
        else if (res == IO_OUT && f->src == PX_SRC_PUMP) fl_pump_step(r, f);
        break;
    case IO_ACCEPT:
    case IO_CLOSED: break;
    }
    px_settle(c);
}

static void px_conn_free(struct px_conn *c)
{
    struct wrk *w = c->w;

    if (c->req) {
        struct px_req *r = c->req;

        r->c = NULL;
        r->down_flow.q.sending = false;
        if (!r->up_closing) px_req_free(r);
    }
    fl_put(&c->proxy_in);
    clk_drop(&w->loop.clk, &c->timer);
    map_list_remove(&c->link);
    mem_pool_put(&w->px.conns, c);
    mtr_move(MTR_CLIENT_IDLE, -1);
    w->px.on_gone(w);
}

/* The client sends no more, or is gone (res < 0). */
static void px_client_end(struct px_conn *c, int res)
{
    struct px_req *r = c->req;

    c->ended = true;
    if (!r || c->state == PX_CONN_LINGER) {
        if (c->state != PX_CONN_CLOSING) {
            c->state = PX_CONN_CLOSING;
            io_close(&c->w->loop, &c->s);
        }
        return;
    }
    if (r->up_flow.src == PX_SRC_STREAM || r->up_flow.src == PX_SRC_BIG) r->up_flow.src = PX_SRC_IDLE;
    if (r->state == PX_TUNNEL) {
        fl_tunnel_end(r, &r->up_flow, res < 0 || r->down_flow.broken);
        return;
    }
    if (res == 0 && r->state != PX_WAIT_HEAD && r->up_flow.done) return; /* a half-close: the answer is still wanted */
    if (res == 0) px_cut_short(r);
    else px_abort(r, PX_CLIENT_CLOSED);
}

static void px_lingering(struct px_conn *c, int res)
{
    if (res <= 0 || (c->served += (uint32_t)res / 1024 + 1) > PX_LINGER_BYTES / 1024) px_client_end(c, 0);
}

static void px_on_client(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b)
{
    struct px_conn *c = RJ_CONTAINER(s, struct px_conn, s);
    struct px_req *r = c->req;

    switch (ev) {
    case IO_RECV:
        if (res > 0) mtr_add(MTR_BYTES_IN, (uint64_t)res);
        if (c->state == PX_CONN_LINGER) {
            px_lingering(c, res);
            return;
        }
        if (r && r->up_flow.src == PX_SRC_BIG) r->up_flow.src = PX_SRC_IDLE;
        if (res <= 0 && c->state == PX_CONN_PROXY && c->proxy_in) {
            tp_proxy_refuse(c, "it ended within its PROXY header");
            return;
        }
        if (res <= 0) {
            px_client_end(c, res);
            break;
        }
        if (r && r->state == PX_TUNNEL) r->up_flow.big = res >= (int)b->cap || (r->up_flow.big && res > MEM_SMALL_BYTES / 2);
        c->transport->feed(c, b, 0, (uint32_t)res);
        break;
    case IO_SENT:
        if (!r) return;
        io_outq_sent(&r->down_flow.q, res);
        fl_client_moved(r, &r->down_flow);
        r->down_flow.out_ms = fl_now_ms(r);
        if (res > 0) {
            mtr_add(MTR_BYTES_OUT, (uint64_t)res);
            fl_client_took(r, &r->down_flow);
        }
        if (res < 0 && r->state == PX_TUNNEL) fl_tunnel_broken(r, &r->down_flow);
        else if (res < 0) px_abort(r, PX_CLIENT_CLOSED);
        break;
    case IO_STOPPED:
        if (r && r->up_flow.src == PX_SRC_STOPPING) r->up_flow.src = PX_SRC_IDLE;
        break;
    case IO_READY:
        if (r && res == IO_IN && r->up_flow.src == PX_SRC_PUMP) fl_pump_step(r, &r->up_flow);
        else if (r && res == IO_OUT && r->down_flow.src == PX_SRC_PUMP) fl_pump_step(r, &r->down_flow);
        break;
    case IO_CLOSED: px_conn_free(c); return;
    case IO_ACCEPT:
    case IO_CONNECT: break;
    }
    px_settle(c);
}

/* keep-alive, the head's total time, the end of lingering. */
static void px_on_conn_timer(struct clk_timer *t)
{
    struct px_conn *c = RJ_CONTAINER(t, struct px_conn, timer);
    struct px_req *r = c->req;

    if (c->state == PX_CONN_CLOSING) return;
    if (c->state == PX_CONN_ACTIVE && r && r->state == PX_WAIT_HEAD) {
        px_refuse_head(r, PX_HEADER_TIMEOUT, r->in ? r->in->data : NULL, r->in ? r->in->len : 0);
        px_settle(c);
        return;
    }
    if (r) return;
    if (c->state == PX_CONN_PROXY) {
        tp_proxy_refuse(c, "no PROXY header in time");
        return;
    }
    if (c->state == PX_CONN_IDLE) {
        px_linger(c);
        return;
    }
    c->state = PX_CONN_CLOSING;
    io_close(&c->w->loop, &c->s);
}

static const struct px_codec px_h1 = {.name = "http/1.1", .data = px_h1_data, .finish = px_h1_finish};

/* ---- life ---- */

/* Serves an accepted descriptor. Returns 0 or -errno (then it is closed). */
static int px_serve(struct wrk *w, int fd, const struct net_addr *peer, uint16_t port)
{
    struct px_conn *c = mem_pool_get(&w->px.conns);
    const struct cfg *cfg = rt_live()->cfg;
    int rc;

    if (!c) {
        sys_close(fd);
        return -ENOMEM;
    }
    memset(c, 0, sizeof *c);
    io_sock_init(&c->s, px_on_client);
    c->s.bounded = true; /* a client sends as much as it likes: multishot would take half a megabyte before it is stopped */
    c->timer.fire = px_on_conn_timer;
    c->w = w;
    c->state = PX_CONN_IDLE;
    c->transport = &tp_plain;
    c->codec = &px_h1;
    c->next_src = PX_SRC_STREAM;
    c->peer = *peer;
    c->port = port;
    if ((rc = io_adopt(&w->loop, &c->s, fd)) < 0) {
        mem_pool_put(&w->px.conns, c);
        return rc;
    }
    map_list_add(&w->px.all, &c->link);
    mtr_add(MTR_ACCEPTED, 1);
    mtr_move(MTR_CLIENT_IDLE, 1);
    if (RJ_UNLIKELY(cfg->use_proxy_protocol) && mw_is_trusted(cfg, &c->peer)) {
        c->state = PX_CONN_PROXY;
        c->transport = &tp_proxied;
    }
    clk_arm(&w->loop.clk, &c->timer, c->state == PX_CONN_PROXY ? cfg->proxy_protocol_ms : tp_first_ms(w));
    io_recv_start(&w->loop, &c->s);
    return 0;
}

static void px_init(struct wrk *w, void (*on_gone)(struct wrk *w), bool (*relieve)(struct wrk *w, const struct px_conn *spared))
{
    struct px *px = &w->px;

    mem_pool_init(&px->conns, sizeof(struct px_conn), MEM_SLAB_BYTES, &w->loop.mapped, 0);
    mem_pool_init(&px->reqs, sizeof(struct px_req), MEM_SLAB_BYTES, &w->loop.mapped, w->loop.small.limit);
    mem_pool_init(&px->trailers, sizeof(struct h1_head), MEM_SLAB_BYTES, &w->loop.mapped, w->loop.small.limit);
    map_list_init(&px->all);
    sys_getrandom(px->id_state, sizeof px->id_state);
    px->on_upstream = px_on_upstream;
    px->on_closing = px_on_closing;
    px->on_deadline = px_on_deadline;
    px->on_gone = on_gone;
    px->relieve = relieve;
}

/* Whether a request is due on an idle connection that is about to be closed: the first one, which gets a moment, or one that is there. */
static bool px_is_due(struct px_conn *c)
{
    uint8_t one;

    if (c->served && sys_recv(c->s.fd, &one, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) return false;
    clk_arm(&c->w->loop.clk, &c->timer, PX_FIRST_MS);
    return true;
}

/* No connection serves another request: idle ones end, active ones behind their response; tunnels at the deadline (cut = true). */
static void px_drain(struct wrk *w, bool cut)
{
    struct map_link *l = w->px.all.next, *next;

    w->px.leaving = w->px.draining = true;
    for (; l != &w->px.all; l = next) {
        struct px_conn *c = RJ_CONTAINER(l, struct px_conn, link);

        next = l->next;
        if (cut && c->req && c->state == PX_CONN_ACTIVE) {
            px_abort(c->req, PX_SHUTDOWN);
            px_settle(c);
        } else if (cut || (c->state <= PX_CONN_IDLE && !px_is_due(c))) {
            if (c->state == PX_CONN_CLOSING) continue;
            if (cut) c->ended = true;
            px_linger(c);
        }
    }
    up_close_all_idle(&w->up);
}

static void px_fini(struct wrk *w)
{
    mem_pool_fini(&w->px.conns);
    mem_pool_fini(&w->px.reqs);
    mem_pool_fini(&w->px.trailers);
}

/* ============================================================================
 * sh_ : Who gives way when memory is short
 *
 * Owns:    nothing; struct px has its state.
 * Calls:   sys_ mem_ log_ fl_ al_ px_
 * Threads: workers.
 * Rules:   1. Who holds memory and has kept us waiting longest goes first; who waits for us never goes.
 *          2. Costs nothing while memory is not short: no list is kept, all connections are looked at when it is.
 *          3. Called from within an allocation, so it allocates nothing and leaves the connection alone that is served.
 * ========================================================================== */

enum { SH_POOLS = 9, SH_AGES = 24 };

static void sh_pools(struct wrk *w, struct mem_pool *pools[SH_POOLS])
{
    struct mem_pool *all[SH_POOLS] = {&w->loop.tiny, &w->loop.small, &w->loop.medium, &w->loop.large, &w->loop.big,
                                      &w->px.conns, &w->px.reqs, &w->px.trailers, &w->up.conns};

    memcpy(pools, all, sizeof all);
}

/* Bytes that are in use; slabs have free ones besides. */
static size_t sh_used(struct wrk *w)
{
    struct mem_pool *pools[SH_POOLS];
    size_t n = 0;

    sh_pools(w, pools);
    for (size_t i = 0; i < SH_POOLS; i++) n += (size_t)pools[i]->used * pools[i]->size + pools[i]->alone;
    return n;
}

static size_t sh_held(const struct px_req *r)
{
    return sizeof *r + (r->in ? r->in->cap : 0) + (r->held ? r->held->cap : 0) + (r->pend ? r->pend->cap : 0) + (r->sent ? r->sent->cap : 0) +
           r->up_flow.q.bytes + r->down_flow.q.bytes;
}

/* How long the client has kept us waiting: a head counts from its first byte, content and answers from the last progress.
 * 0: we do not wait for it, or hardly. */
static uint64_t sh_late_ms(const struct px_req *r)
{
    uint64_t now = fl_now_ms(r), start = r->t_start_ns / 1000000, since = now;

    switch ((enum px_state)r->state) {
    case PX_WAIT_HEAD: since = start; break;
    case PX_WAIT_UPSTREAM:
    case PX_WAIT_RESPONSE:
        if (!r->up_flow.done && (r->holding || !r->up_flow.q.bytes) && (!r->expect || r->continued))
            since = r->up_flow.in_ms > start ? r->up_flow.in_ms : start;
        break;
    case PX_RELAY:
    case PX_TUNNEL:
    case PX_REFUSED:
        if (r->down_flow.q.bytes) since = r->down_flow.out_ms;
        break;
    case PX_FINISHED: break;
    }
    return now > since ? now - since : 0;
}

/* Position of the highest bit: ages that differ by less than a factor of two are the same. */
static unsigned sh_age(uint64_t late_ms)
{
    unsigned age = late_ms ? 64 - (unsigned)__builtin_clzll(late_ms) : 0;

    return age < SH_AGES ? age : SH_AGES - 1;
}

static struct px_req *sh_candidate(struct map_link *l, const struct px_conn *spared)
{
    struct px_conn *c = RJ_CONTAINER(l, struct px_conn, link);

    return c == spared || !c->req || c->state != PX_CONN_ACTIVE || c->req->aborted ? NULL : c->req;
}

/* Ends the request of r, and its connection. Nothing is queued, as that would need memory: the client is told in one send, or sees the end. */
static void sh_evict(struct px_req *r)
{
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    struct px_conn *c = r->c;

    if (!r->head_sent && !r->down_flow.q.n && c->transport->raw) sys_send(c->s.fd, busy, sizeof busy - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (r->state == PX_WAIT_HEAD) {
        r->minor = 1;
        r->client = c->peer;
        r->policy.access_log = true;
        if (r->in) al_keep_head(r, r->in->data, r->in->len);
    }
    px_abort(r, PX_YIELD);
    px_settle(c);
}

static void sh_tell(struct wrk *w, uint32_t n)
{
    struct px *px = &w->px;
    uint64_t now_ms = w->loop.clk.now_ms;

    px->yielded += n;
    if (!px->yielded || (px->yield_log_ms && now_ms - px->yield_log_ms < PX_YIELD_LOG_MS)) return;
    log_warn("sh", "memory-limit is near: closed %u slow clients that held memory", px->yielded);
    px->yield_log_ms = now_ms;
    px->yielded = 0;
}

/* Lets the slowest clients go until they have given goal bytes. Returns whether there is more memory now. spared: the connection that is being
 * served, NULL: none. */
static bool sh_free(struct wrk *w, const struct px_conn *spared, size_t goal)
{
    size_t before = w->loop.mapped, found = 0, freed = 0, by_age[SH_AGES] = {0};
    struct map_link *all = &w->px.all, *l;
    struct mem_pool *pools[SH_POOLS];
    struct px_req *r;
    unsigned age = SH_AGES;
    uint32_t n = 0;

    sh_pools(w, pools);
    for (size_t i = 0; i < SH_POOLS; i++)
        while (pools[i]->empty_n) mem_pool_trim(pools[i]);
    if (w->px.yielding) return w->loop.mapped < before; /* what was let go is freed with its last completion */
    for (l = all->next; l != all; l = l->next)
        if ((r = sh_candidate(l, spared))) by_age[sh_age(sh_late_ms(r))] += sh_held(r);
    while (age > 1 && found < goal) found += by_age[--age];
    for (l = all->next; l != all && freed < goal; l = l->next) {
        struct px_conn *c = RJ_CONTAINER(l, struct px_conn, link);

        if (!(r = sh_candidate(l, spared)) || sh_age(sh_late_ms(r)) < age) continue;
        freed += sh_held(r);
        n++;
        sh_evict(r);
        if (c->req) w->px.yielding = true;
    }
    sh_tell(w, n);
    return freed || w->loop.mapped < before;
}

/* An allocation failed: frees memory until a quarter of the ceiling is free, or as much as may make a difference. */
static bool sh_relieve(struct wrk *w, const struct px_conn *spared)
{
    size_t limit = w->loop.small.limit, low = limit - limit / 4, used = sh_used(w);

    return limit && sh_free(w, spared, used > low ? used - low : limit / MEM_RESERVE);
}

/* After each turn in which the mapped bytes changed: keeps an eighth of the ceiling free. A turn closes a few clients, not hundreds, so that
 * those who behave do not wait for it. */
static void sh_check(struct wrk *w)
{
    size_t limit = w->loop.small.limit, high = limit - limit / 8, used;
    bool yielding = w->px.yielding;

    w->px.yielding = false;
    if (RJ_LIKELY(!limit || w->loop.mapped <= high) || yielding || (used = sh_used(w)) <= high) return;
    sh_free(w, NULL, limit / 128 > used - high ? limit / 128 : used - high);
}

/* ============================================================================
 * wrk_ : Worker threads, listeners, drain
 *
 * Owns:    struct wrk, struct wrk_box, struct wrk_offer; rj.threads, rj.control_box, rj.inherited, rj.offer, rj.handed_left.
 * Calls:   sys_ mem_ str_ clk_ log_ mtr_ rcu_ io_ up_ px_ sh_
 * Threads: wrk_main and what it calls run on workers; start, ask, drain and stop on the control thread.
 * Rules:   1. Every worker is the same code; they share snapshots, how many clients each has and the tables of lm_, and send messages.
 *          2. A connection goes to the worker with the fewest, so that none is more than one above its share.
 *          3. At a limit a worker stops accepting; it never spins.
 * ========================================================================== */

/* ---- mailboxes ---- */

/* Hands m over; the box's thread runs it soon. Any thread. */
static void wrk_post(struct wrk_box *box, struct wrk_msg *m)
{
    struct wrk_msg *head = atomic_load_explicit(&box->inbox, memory_order_relaxed);

    do m->next = head;
    while (!atomic_compare_exchange_weak_explicit(&box->inbox, &head, m, memory_order_release, memory_order_relaxed)); /* wrk_box_take acquires */
    if (!head) sys_send(box->wake_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* the first one wakes; the others find it awake */
}

static void wrk_box_take(struct wrk_box *box)
{
    struct wrk_msg *m = atomic_exchange_explicit(&box->inbox, NULL, memory_order_acquire), *in_order = NULL; /* wrk_post releases */

    while (m) {
        struct wrk_msg *next = m->next;

        m->next = in_order;
        in_order = m;
        m = next;
    }
    while (in_order) {
        m = in_order;
        in_order = m->next;
        m->run(m);
    }
}

static void wrk_on_wake(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b)
{
    (void)b;
    if (ev == IO_RECV && res > 0) wrk_box_take(RJ_CONTAINER(s, struct wrk_box, wake));
}

/* Makes the pair of descriptors: from here on anybody may post. Returns 0 or -errno. */
static int wrk_box_init(struct wrk_box *box)
{
    int fd[2], rc = sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd);

    if (rc < 0) return rc;
    io_sock_init(&box->wake, wrk_on_wake);
    box->own_fd = fd[0];
    box->wake_fd = fd[1];
    return 0;
}

/* Opens the mailbox on the owner's loop; what was posted before is taken in its first turn. Returns 0 or -errno. */
static int wrk_box_open(struct wrk_box *box, struct io_loop *lp)
{
    int rc;

    box->loop = lp;
    if (lp->nonblocking) sys_fcntl(box->own_fd, F_SETFL, O_RDWR | O_NONBLOCK);
    if ((rc = io_adopt(lp, &box->wake, box->own_fd)) < 0) {
        sys_close(box->wake_fd);
        return rc;
    }
    io_recv_start(lp, &box->wake);
    return 0;
}

static void wrk_box_close(struct wrk_box *box)
{
    if (box->wake.fd >= 0) io_close(box->loop, &box->wake);
    sys_close(box->wake_fd);
}

static inline struct wrk *wrk_at(int i) { return (struct wrk *)(void *)rj.threads[i]; }

/* ---- accepting ---- */

static void wrk_pause(struct wrk *w, bool on)
{
    for (uint32_t i = 0; i < w->listeners; i++) {
        struct wrk_listener *l = &w->listener[i];

        if (l->paused == on || l->late || l->inherited || !io_is_open(&l->s)) continue;
        l->paused = on;
        if (on) io_accept_stop(&w->loop, &l->s);
        else io_accept_start(&w->loop, &l->s);
    }
}

/* The lowest free descriptor is one of the reserve, or there is none. */
static bool wrk_is_short(const struct wrk *w)
{
    int fd = sys_fcntl(w->box.wake_fd, F_DUPFD_CLOEXEC, 0);

    if (fd >= 0) sys_close(fd);
    return fd < 0 || fd >= rj.fd_limit;
}

static void wrk_on_retry(struct clk_timer *t)
{
    struct wrk *w = RJ_CONTAINER(t, struct wrk, retry);

    if (w->draining || atomic_load_explicit(&w->conns, memory_order_relaxed) >= w->max_conns) return;
    if (wrk_is_short(w)) clk_arm(&w->loop.clk, t, WRK_PAUSE_MS);
    else wrk_pause(w, false);
}

/* A connection is gone: there may be room again. Called by px_. */
static void wrk_on_gone(struct wrk *w)
{
    uint32_t left = atomic_fetch_sub_explicit(&w->conns, 1, memory_order_relaxed) - 1; /* a count; orders nothing */

    if (!w->draining && left + 1 == w->max_conns) wrk_pause(w, false);
}

/* Also while it drains: what was accepted by then gets its answer. */
static void wrk_serve(struct wrk *w, int fd, const struct net_addr *peer, uint16_t port)
{
    if (px_serve(w, fd, peer, port) < 0) wrk_on_gone(w);
}

static void wrk_on_given(struct wrk_msg *m)
{
    struct wrk_given *g = RJ_CONTAINER(m, struct wrk_given, msg);

    if (g->to->loop.nonblocking) sys_fcntl(g->fd, F_SETFL, O_RDWR | O_NONBLOCK);
    wrk_serve(g->to, g->fd, &g->peer, g->port);
    mem_free(g);
}

/* The worker with the fewest connections; w itself when none has fewer than it would need to. */
static struct wrk *wrk_least(struct wrk *w)
{
    uint32_t least = atomic_load_explicit(&w->conns, memory_order_relaxed);
    struct wrk *to = w;

    for (int i = 0; i < rj.thread_count; i++) {
        uint32_t n = atomic_load_explicit(&wrk_at(i)->conns, memory_order_relaxed);

        if (n < least) least = n, to = wrk_at(i);
    }
    return to;
}

static void wrk_accepted(struct wrk *w, int fd, uint16_t port)
{
    struct wrk *to = rj.thread_count > 1 ? wrk_least(w) : w;
    struct net_addr peer = w->loop.peer;
    struct wrk_given *g;

    if (!peer.family) {
        struct sockaddr_in6 sa = {0};
        socklen_t n = sizeof sa;

        if (sys_getpeername(fd, &sa, &n) < 0) { /* gone already */
            sys_close(fd);
            return;
        }
        str_from_sockaddr(&sa, &peer);
    }
    atomic_fetch_add_explicit(&to->conns, 1, memory_order_relaxed);
    if (to != w && (g = mem_alloc(sizeof *g))) {
        *g = (struct wrk_given){.msg.run = wrk_on_given, .to = to, .fd = fd, .port = port, .peer = peer};
        mtr_add(MTR_HANDED_OVER, 1);
        wrk_post(&to->box, &g->msg);
        return;
    }
    if (to != w) {
        atomic_fetch_sub_explicit(&to->conns, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&w->conns, 1, memory_order_relaxed);
    }
    wrk_serve(w, fd, &peer, port);
}

/* No more connections from l; those that the kernel has accepted already are served, as its close would reset them, unless the process
 * that comes next, or the one before, has the socket too. */
static void wrk_close_listener(struct wrk *w, struct wrk_listener *l)
{
    int fd, flags = SOCK_CLOEXEC | (w->loop.nonblocking ? SOCK_NONBLOCK : 0);
    bool last = !l->inherited && !l->late;

    if (last) sys_fcntl(l->s.fd, F_SETFL, O_RDWR | O_NONBLOCK);
    while (last && atomic_load_explicit(&w->conns, memory_order_relaxed) < w->max_conns && (fd = sys_accept(l->s.fd, NULL, NULL, flags)) >= 0) {
        w->loop.peer.family = 0; /* wrk_accepted asks for it */
        wrk_accepted(w, fd, l->port);
    }
    if (l->inherited) atomic_fetch_sub_explicit(&rj.handed_left, 1, memory_order_release); /* wrk_has_left */
    io_close(&w->loop, &l->s);
    if (--w->listening == 0) atomic_store_explicit(&w->state, WRK_DRAINING, memory_order_release); /* wrk_all_done */
}

/* Accepts nothing for a while; the log says so once a second. */
static void wrk_wait_for_files(struct wrk *w, const char *why)
{
    if (w->loop.clk.now_ms - w->short_ms >= 1000) {
        w->short_ms = w->loop.clk.now_ms;
        log_warn("wrk", "accept: %s; pausing for %d ms", why, WRK_PAUSE_MS);
    }
    mtr_add(MTR_ACCEPT_PAUSES, 1);
    wrk_pause(w, true);
    clk_arm(&w->loop.clk, &w->retry, WRK_PAUSE_MS);
}

static void wrk_on_listener(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b)
{
    struct wrk_listener *l = RJ_CONTAINER(s, struct wrk_listener, s);
    struct wrk *w = l->w;

    (void)b;
    if (ev == IO_STOPPED && (w->draining || l->inherited)) wrk_close_listener(w, l);
    if (ev != IO_ACCEPT) return;
    if (res >= 0) {
        bool low = res >= rj.fd_limit;                   /* the kernel gives the lowest free number: this one is of the reserve */

        wrk_accepted(w, res, l->port);
        if (atomic_load_explicit(&w->conns, memory_order_relaxed) >= w->max_conns) wrk_pause(w, true);
        if (low) wrk_wait_for_files(w, "descriptors are low");
        return;
    }
    if (res != -EMFILE && res != -ENFILE && res != -ENOBUFS && res != -ENOMEM) return; /* that connection is gone; the next one is fine */
    wrk_wait_for_files(w, strerror(-res));
}

/* ---- the thread ---- */

static void wrk_on_deadline(struct clk_timer *t) { px_drain(RJ_CONTAINER(t, struct wrk, deadline), true); }

/* Ends with wrk_close_listener at IO_STOPPED: what has been taken comes before it, also of a listener whose pause has only begun. */
static void wrk_stop_listener(struct wrk *w, struct wrk_listener *l)
{
    if (io_is_open(&l->s)) io_accept_stop(&w->loop, &l->s);
}

static void wrk_on_delay(struct clk_timer *t)
{
    struct wrk *w = RJ_CONTAINER(t, struct wrk, delay);

    w->draining = true;
    px_drain(w, false);
    clk_arm(&w->loop.clk, &w->deadline, w->drain_ms);
    for (uint32_t i = 0; i < w->listeners; i++)
        if (!w->listener[i].inherited) wrk_stop_listener(w, &w->listener[i]);
}

static void wrk_on_drain(struct wrk_msg *m)
{
    struct wrk *w = RJ_CONTAINER(m, struct wrk, drain_msg);

    w->px.leaving = true;
    for (uint32_t i = 0; i < w->listeners; i++) w->listening += io_is_open(&w->listener[i].s);
    if (!w->listening) atomic_store_explicit(&w->state, WRK_DRAINING, memory_order_release); /* wrk_all_done */
    for (uint32_t i = 0; i < w->listeners; i++) {
        if (!w->handed_over[i]) continue;
        w->listener[i].inherited = true;
        wrk_stop_listener(w, &w->listener[i]);
    }
    clk_arm(&w->loop.clk, &w->delay, w->delay_ms ? w->delay_ms : 1); /* never at once: requests that io_uring has received may stand behind m */
}

static void wrk_on_stop(struct wrk_msg *m) { RJ_CONTAINER(m, struct wrk, stop_msg)->loop.stop = true; }

static int wrk_open(struct wrk *w)
{
    int rc = io_loop_open(&w->loop, w->ops, w->memory_limit);

    if (rc < 0) return rc;
    w->loop.fd_max = rj.fd_max;
    if ((rc = wrk_box_open(&w->box, &w->loop)) < 0) return rc;
    up_init(&w->up, &w->loop);
    px_init(w, wrk_on_gone, sh_relieve);
    w->retry.fire = wrk_on_retry;
    w->deadline.fire = wrk_on_deadline;
    w->delay.fire = wrk_on_delay;
    for (uint32_t i = 0; i < w->listeners; i++) {
        struct wrk_listener *l = &w->listener[i];

        io_sock_init(&l->s, wrk_on_listener);
        l->s.bounded = rj.fd_limit / 3 < WRK_BACKLOG * rj.thread_count; /* the kernel would take a burst beyond the reserve before we see it */
        l->w = w;
        if (w->loop.nonblocking && !l->shared) sys_fcntl(w->listen_fd[i], F_SETFL, O_RDWR | O_NONBLOCK);
        sys_setsockopt(w->listen_fd[i], IPPROTO_TCP, TCP_NOTSENT_LOWAT, WRK_UNSENT_MAX); /* inherited by what it accepts; no answer on a Unix socket */
        if ((rc = io_adopt(&w->loop, &l->s, w->listen_fd[i])) < 0) return rc;
        if (!l->late) io_accept_start(&w->loop, &l->s);
    }
    return 0;
}

/* Once a second: gives memory that is not used back, and tells what is mapped. */
static void wrk_tidy(struct wrk *w)
{
    struct mem_pool *pools[SH_POOLS];

    if (w->loop.clk.now_ms - w->tidied_ms >= 1000) {
        w->tidied_ms = w->loop.clk.now_ms;
        sh_pools(w, pools);
        for (size_t i = 0; i < SH_POOLS; i++) mem_pool_trim(pools[i]);
    }
    sh_check(w);
    if (RJ_LIKELY(w->seen_mapped == w->loop.mapped)) return;
    mtr_move(MTR_BUFFER_BYTES, (int64_t)w->loop.mapped - (int64_t)w->seen_mapped);
    w->seen_mapped = w->loop.mapped;
}

static void *wrk_main(void *arg)
{
    struct wrk *w = arg;

    rj_me = &w->thread;
    w->start_error = wrk_open(w);
    atomic_store_explicit(&w->state, w->start_error < 0 ? WRK_ENDED : WRK_RUNNING, memory_order_release); /* wrk_start */
    if (w->start_error < 0) return NULL;
    while (!w->loop.stop) {
        io_turn(&w->loop, 1000);
        wrk_tidy(w);
    }
    px_drain(w, true);
    wrk_box_close(&w->box);
    for (int i = 0; i < 100 && (w->px.conns.used || w->px.reqs.used || w->up.conns.used || w->loop.ready || w->box.wake.fd >= 0); i++) io_turn(&w->loop, 10);
    up_fini(&w->up);
    px_fini(w);
    io_loop_close(&w->loop);
    rcu_leave(&w->thread);
    atomic_store_explicit(&w->state, WRK_ENDED, memory_order_release); /* wrk_stop */
    return NULL;
}

/* ---- the control side ---- */

/* Makes the socket of l for one worker, which does not listen yet; of a Unix socket there is only one (-ENOENT for the others). Returns the
 * descriptor or -errno. */
static int wrk_bind(const struct cfg_listener *l, bool first)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in6 sa;
    int fd, rc;

    if (l->addr.family == AF_UNIX) {
        if (!first) return -ENOENT;
        if (l->path.n >= sizeof un.sun_path) return -ENAMETOOLONG;
        memcpy(un.sun_path, l->path.p, l->path.n);
        sys_unlink(un.sun_path);
        if ((fd = sys_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) return fd;
        rc = sys_bind(fd, &un, sizeof un);
    } else {
        socklen_t n = str_to_sockaddr(&l->addr, &sa);

        if ((fd = sys_socket(l->addr.family, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) return fd;
        sys_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        sys_setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, 1);
        if (l->addr.family == AF_INET6) sys_setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
        sys_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* inherited by what it accepts */
        rc = sys_bind(fd, &sa, n);
    }
    if (rc == 0) return fd;
    sys_close(fd);
    return rc;
}

/* Is anybody else bound to l? SO_REUSEPORT would share the port with another process of the same user without a word. */
static int wrk_port_is_free(const struct cfg_listener *l)
{
    struct sockaddr_in6 sa;
    socklen_t n;
    int fd, rc;

    if (l->addr.family == AF_UNIX) return 0;
    n = str_to_sockaddr(&l->addr, &sa);
    if ((fd = sys_socket(l->addr.family, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) return fd;
    sys_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (l->addr.family == AF_INET6) sys_setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    rc = sys_bind(fd, &sa, n);
    sys_close(fd);
    return rc;
}

/* ---- listening sockets that pass from one process to the next ---- */

/* From here on fd is offered to the process that follows this one. */
static void wrk_offer(int fd)
{
    if (rj.offer.n < WRK_OFFER_MAX) rj.offer.fd[rj.offer.n++] = fd;
}

static bool wrk_is_bound(int fd, const struct cfg_listener *l)
{
    union {
        struct sockaddr_un un;
        struct sockaddr_in6 in6;
    } sa = {0};
    socklen_t n = sizeof sa - 1;
    struct net_addr addr;

    if (sys_getsockname(fd, &sa, &n) < 0 || sa.un.sun_family != l->addr.family) return false;
    if (l->addr.family == AF_UNIX) return str_eq(str_z(sa.un.sun_path), l->path);
    str_from_sockaddr(&sa.in6, &addr);
    return str_addr_eq(&addr, &l->addr);
}

/* The process before this one listens on l. */
static bool wrk_was_open(const struct cfg_listener *l)
{
    for (int i = 0; i < rj.inherited.n; i++)
        if (wrk_is_bound(rj.inherited.fd[i], l)) return true;
    return false;
}

/* The next socket on l that the process before left and nobody took, or -ENOENT. */
static int wrk_inherit(const struct cfg_listener *l)
{
    for (int i = 0; i < rj.inherited.n; i++) {
        int fd = rj.inherited.fd[i];

        if (rj.inherited.taken[i] || !wrk_is_bound(fd, l)) continue;
        rj.inherited.taken[i] = true;
        return fd;
    }
    return -ENOENT;
}

/* A process that takes over accepts nothing before it is ready: until then the one before serves what comes. */
static void wrk_add_listener(struct wrk *w, const struct cfg_listener *l, int fd, bool inherited)
{
    w->listener[w->listeners].late = rj.tell_fd != 0;
    w->listener[w->listeners].shared = inherited;
    w->listener[w->listeners].port = l->addr.family == AF_UNIX ? 0 : l->addr.port;
    w->listen_fd[w->listeners++] = fd;
    wrk_offer(fd);
}

static int wrk_open_listeners(struct wrk *w, const struct cfg *cfg, bool first, struct log_err *e)
{
    for (uint32_t i = 0; i < cfg->http.n; i++) {
        const struct cfg_listener *l = &cfg->http.v[i];
        int fd = wrk_inherit(l), rc;
        bool inherited = fd >= 0;

        if (!inherited) fd = first && !wrk_was_open(l) ? wrk_port_is_free(l) : 0;
        if (fd == 0) fd = wrk_bind(l, first);
        if (fd > 0 && !inherited && !rj.tell_fd && (rc = sys_listen(fd, WRK_BACKLOG)) < 0) { /* else wrk_start_late does: nobody may wait there before */
            sys_close(fd);
            fd = rc;
        }
        if (fd == -ENOENT && !first) continue;
        if (fd < 0) return log_fail(e, "http: cannot listen on " STR_FMT ": %s", STR_ARG(l->text), strerror(-fd));
        wrk_add_listener(w, l, fd, inherited);
    }
    return 0;
}

/* The process before had more workers: what it held beyond one socket for each of ours is spread, or clients that wait there would be lost. */
static void wrk_inherit_rest(const struct cfg *cfg, int n)
{
    int at = 0, fd;

    for (uint32_t i = 0; i < cfg->http.n; i++) {
        while (wrk_at(at % n)->listeners < WRK_LISTENERS && (fd = wrk_inherit(&cfg->http.v[i])) >= 0)
            wrk_add_listener(wrk_at(at++ % n), &cfg->http.v[i], fd, true);
    }
}

static struct wrk *wrk_new(int index, const struct io_ops *ops, const struct cfg *cfg, size_t memory_limit)
{
    struct wrk *w = mem_need(sizeof *w);

    w->thread.index = index;
    w->thread.log.cap = LOG_RING_BYTES;
    w->thread.access.cap = LOG_ACCESS_RING_BYTES;
    w->ops = ops;
    w->memory_limit = memory_limit;
    w->max_conns = cfg->max_worker_connections;
    w->px.access_log = cfg->access_log_path.n != 0;
    w->px.combined = cfg->access_log_format == CFG_LOG_COMBINED;
    return w;
}

/* Makes n workers and opens their listeners; from here on snapshots can be leased. memory_limit: bytes for each worker's buffers, 0 = none.
 * Returns 0, or -1 with *e. Control thread, before the first publication. */
static int wrk_prepare(int n, const struct io_ops *ops, const struct cfg *cfg, size_t memory_limit, struct log_err *e)
{
    if (cfg->http.n > WRK_LISTENERS) return log_fail(e, "http: %u listeners, at most %d are supported", cfg->http.n, WRK_LISTENERS);
    rj.threads = mem_need((size_t)n * sizeof *rj.threads);
    for (int i = 0; i < n; i++) {
        struct wrk *w = wrk_new(i, ops, cfg, memory_limit);
        int rc = wrk_box_init(&w->box);

        if (rc < 0) {
            mem_free(w);
            return log_fail(e, "worker %d: socketpair: %s", i, strerror(-rc));
        }
        rj.threads[i] = &w->thread;
        if (wrk_open_listeners(w, cfg, i == 0, e) < 0) return -1;
    }
    rj.thread_count = n;
    wrk_inherit_rest(cfg, n);
    return 0;
}

/* Starts the workers; the first snapshot must be published. Returns 0, or -1 with *e (some threads may run then: the process ends). */
static int wrk_start(struct log_err *e)
{
    int n = rj.thread_count;
    pthread_attr_t attr;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 262144);
    for (int i = 0; i < n; i++) {
        int rc = pthread_create(&wrk_at(i)->id, &attr, wrk_main, wrk_at(i));

        if (rc) return log_fail(e, "cannot start worker %d: %s", i, strerror(rc));
    }
    pthread_attr_destroy(&attr);
    for (int i = 0; i < n; i++) {
        struct timespec tick = {0, 200000};

        while (atomic_load_explicit(&wrk_at(i)->state, memory_order_acquire) == WRK_STARTING) nanosleep(&tick, NULL); /* wrk_main releases */
        if (wrk_at(i)->start_error < 0) return log_fail(e, "worker %d: engine %s: %s", i, wrk_at(i)->ops->name, strerror(-wrk_at(i)->start_error));
    }
    return 0;
}

static void wrk_on_answered(struct wrk_msg *m)
{
    struct wrk_question *q = RJ_CONTAINER(m, struct wrk_question, done);

    if (q->on_done) q->on_done(q->arg);
    mem_free(q);
}

static void wrk_on_asked(struct wrk_msg *m)
{
    struct wrk_asked *a = RJ_CONTAINER(m, struct wrk_asked, msg);

    a->q->on_worker(a->w, a->q->arg);
    if (atomic_fetch_sub_explicit(&a->q->left, 1, memory_order_acq_rel) == 1) wrk_post(&rj.control_box, &a->q->done); /* every answer is seen by the last */
}

/* Runs on_worker on every worker, then on_done (may be NULL) on the control thread. Control thread. */
static void wrk_ask(void (*on_worker)(struct wrk *w, void *arg), void (*on_done)(void *arg), void *arg)
{
    struct wrk_question *q = mem_need(sizeof *q + (size_t)rj.thread_count * sizeof q->asked[0]);

    q->done.run = wrk_on_answered;
    q->on_worker = on_worker;
    q->on_done = on_done;
    q->arg = arg;
    atomic_store_explicit(&q->left, rj.thread_count, memory_order_relaxed); /* wrk_post releases it */
    if (!rj.thread_count) wrk_post(&rj.control_box, &q->done);
    for (int i = 0; i < rj.thread_count; i++) {
        q->asked[i].msg.run = wrk_on_asked;
        q->asked[i].w = wrk_at(i);
        q->asked[i].q = q;
        wrk_post(&wrk_at(i)->box, &q->asked[i].msg);
    }
}

/* For delay_ms new connections are still taken, and every answer says that it is the last of its connection. Then: stops accepting, ends
 * idle connections, active ones behind their response, the rest after deadline_ms. Control thread, once. */
static void wrk_drain(uint32_t delay_ms, uint32_t deadline_ms)
{
    for (int i = 0; i < rj.thread_count; i++) {
        struct wrk *w = wrk_at(i);

        w->delay_ms = delay_ms;
        w->drain_ms = deadline_ms;
        w->drain_msg.run = wrk_on_drain;
        wrk_post(&w->box, &w->drain_msg);
    }
}

/* The next process has the listening socket fd too. Control thread, before wrk_drain. */
static void wrk_set_handed_over(int fd)
{
    for (int i = 0; i < rj.thread_count; i++)
        for (uint32_t k = 0; k < wrk_at(i)->listeners; k++)
            if (wrk_at(i)->listen_fd[k] == fd) {
                wrk_at(i)->handed_over[k] = true;
                atomic_fetch_add_explicit(&rj.handed_left, 1, memory_order_relaxed);
            }
}

/* No worker accepts any more from what the next process has too. */
static bool wrk_has_left(void) { return !atomic_load_explicit(&rj.handed_left, memory_order_acquire); } /* wrk_close_listener releases */

/* Accepts from here on: this process is ready, or (left) the one before accepts no more. O_NONBLOCK belongs to the socket, which both have: after
 * a change of engine what they share waits for the second of these. On each worker, through wrk_ask. */
static void wrk_start_late(struct wrk *w, bool left)
{
    int rc;

    for (uint32_t i = 0; i < w->listeners; i++) {
        struct wrk_listener *l = &w->listener[i];

        if (!l->late || !io_is_open(&l->s)) continue;
        if (l->shared && !left && !(sys_fcntl(l->s.fd, F_GETFL, 0) & O_NONBLOCK) == w->loop.nonblocking) continue;
        l->late = false;
        if (!l->shared && (rc = sys_listen(l->s.fd, WRK_BACKLOG)) < 0) log_error("wrk", "port %u: cannot listen: %s", l->port, strerror(-rc));
        sys_fcntl(l->s.fd, F_SETFL, O_RDWR | (w->loop.nonblocking ? O_NONBLOCK : 0));
        io_accept_start(&w->loop, &l->s);
    }
}
static void wrk_on_ready(struct wrk *w, void *arg) { (void)arg, wrk_start_late(w, false); }
static void wrk_on_left(struct wrk *w, void *arg) { (void)arg, wrk_start_late(w, true); }

/* True when no worker has a connection left after wrk_drain, or can be given one: the counts are looked at when no listener is open. */
static bool wrk_all_done(void)
{
    for (int i = 0; i < rj.thread_count; i++)
        if (atomic_load_explicit(&wrk_at(i)->state, memory_order_acquire) < WRK_DRAINING) return false; /* wrk_close_listener, wrk_on_delay release */
    for (int i = 0; i < rj.thread_count; i++)
        if (atomic_load_explicit(&wrk_at(i)->conns, memory_order_relaxed)) return false; /* counted before the state above */
    return true;
}

/* Ends the threads; what is still open is cut. Their counters and rings stay readable until wrk_free. */
static void wrk_stop(void)
{
    for (int i = 0; i < rj.thread_count; i++) {
        wrk_at(i)->stop_msg.run = wrk_on_stop;
        wrk_post(&wrk_at(i)->box, &wrk_at(i)->stop_msg);
    }
    for (int i = 0; i < rj.thread_count; i++) pthread_join(wrk_at(i)->id, NULL);
}

static void wrk_free(void)
{
    for (int i = 0; i < rj.thread_count; i++) {
        struct rj_thread *t = rj.threads[i];

        if (t->log.p) sys_unmap(t->log.p, t->log.cap);
        if (t->access.p) sys_unmap(t->access.p, t->access.cap);
        for (int k = 0; k < MTR_ROUTES_MAX; k++) mem_free(atomic_load_explicit(&t->mtr.route[k], memory_order_relaxed));
        mem_free(t);
    }
    mem_free(rj.threads);
    rj.threads = NULL;
    rj.thread_count = 0;
    rj.offer.n = 0;
}

/* ============================================================================
 * ctl_ : Control loop
 *
 * Owns:    struct ctl, rj.ctl.
 * Calls:   sys_ mem_ str_ map_ clk_ log_ rcu_ io_ ep_ dns_ cfg_ obj_ kc_ k8s_ rt_ rc_ up_ chk_ wrk_
 * Threads: control, but for ctl_ask_reload and ctl_ask_stop (any) and ctl_on_gone (workers, by wrk_ask).
 * Rules:   1. A lone change is compiled in the turn that brought it; a burst at most once per publish-interval.
 *          2. What is broken leaves the last table in service.
 *          3. Ready means served: only once everything known at the start is compiled and published.
 * ========================================================================== */

#include <signal.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/wait.h>

/* ---- logs of all threads ---- */

/* Opens the access log. /dev/stdout is opened again where that works, so that not to block is a matter of this process alone. */
static void ctl_open_access_log(struct ctl *c)
{
    struct str path = c->cfg->access_log_path;
    int fd = !path.n ? -ENOENT : sys_open((const char *)path.p, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);

    if (c->access_own) sys_close(c->access_fd);
    c->access_own = fd >= 0;
    c->access_fd = fd >= 0 ? fd : str_eq(path, S("/dev/stdout")) ? 1 : str_eq(path, S("/dev/stderr")) ? 2 : -1;
    if (c->access_fd < 0 && path.n) log_error("ctl", "access-log-path: " STR_FMT ": %s", STR_ARG(path), strerror(-fd));
}

/* Writes what a ring holds. Returns bytes. */
static uint64_t ctl_drain_ring(struct ctl *c, struct log_ring *r, int fd)
{
    uint64_t total = 0;
    long n;

    if (!r->cap) return 0;
    while ((n = log_ring_drain(r, fd)) > 0 || n == -EINTR)
        if (n > 0) total += (uint64_t)n;
    if (n >= 0 || n == -EAGAIN) return total;
    if (c->loop.clk.now_ms >= c->access_failed_ms + 60000 || !c->access_failed_ms) log_error("ctl", "writing the log: %s", strerror((int)-n));
    c->access_failed_ms = c->loop.clk.now_ms;
    return total;
}

/* Drains the rings of all workers, and chooses when to look again. */
static void ctl_drain_logs(struct ctl *c)
{
    uint64_t total = 0;

    for (int i = 0; i < rj.thread_count; i++) {
        total += ctl_drain_ring(c, &rj.threads[i]->log, 2);
        if (c->access_fd >= 0) total += ctl_drain_ring(c, &rj.threads[i]->access, c->access_fd);
    }
    if (total) c->log_wait_ms = CTL_LOG_MIN_MS;
    else if (c->log_wait_ms < CTL_LOG_MAX_MS) c->log_wait_ms *= 2;
}

/* ---- compile and publish ---- */

static void ctl_on_warning(void *arg, const char *text)
{
    (void)arg;
    log_warn("rc", "%s", text);
}

/* obj_store.changed: a change of the cluster. */
static void ctl_on_object(void *arg, const struct obj *old, const struct obj *now)
{
    struct ctl *c = arg;

    if (!c->t_event_ns) c->t_event_ns = c->k8s.event_ns;
    rc_on_changed(&c->rc, old, now);
}

static void ctl_on_addrs(void *arg, const struct net_addr *addrs, uint32_t n, const char *why)
{
    struct rc_name *name = arg;
    struct ctl *c = rj.ctl;

    if (!n && (name->n || !name->told)) log_warn("ctl", "name " STR_FMT " has no address: %s", STR_ARG(name->name), why ? why : "");
    name->told = true;
    if (rc_set_addrs(name, addrs, n) && !c->t_event_ns) c->t_event_ns = c->loop.clk.now_ns;
}

static void ctl_on_name_new(void *arg, struct rc_name *name)
{
    struct ctl *c = arg;

    name->watch = dns_watch(&c->dns, name->name, ctl_on_addrs, name);
}

static void ctl_on_name_gone(void *arg, struct rc_name *name)
{
    struct ctl *c = arg;

    dns_unwatch(&c->dns, name->watch);
}

/* After a compile: what many objects took that are gone goes back. */
static void ctl_trim(struct ctl *c)
{
    bool less = rc_trim(&c->rc);

    for (int i = 0; i < OBJ_KIND_COUNT; i++) less |= map_trim(&c->store.kind[i]);
    less |= rt_trim_slots();
    if (less) mem_give_back();
}

/* Compiles what has changed and publishes the result if it is another one. */
static void ctl_compile(struct ctl *c)
{
    uint64_t start = sys_clock_ns(CLOCK_MONOTONIC), event = c->t_event_ns ? c->t_event_ns : start, took;
    bool first = !rj.rt.last, published;

    c->compiles++;
    rc_compile(&c->rc, &c->changes);
    took = sys_clock_ns(CLOCK_MONOTONIC) - start;
    c->t_event_ns = 0;
    published = rt_publish(&c->changes, c->cfg, event, took);
    if (published || took > CTL_DEAR_NS) c->compiled_ms = c->loop.clk.now_ms;
    if (c->changes.cap > 1024) {                         /* the first table's list is never needed again */
        mem_free(c->changes.v);
        c->changes = (struct rt_changes){0};
    }
    ctl_trim(c);
    if (!published) return;
    if (first) log_info("ctl", "serving %u routes of %u hosts", rj.rt.hosts->routes, rj.rt.hosts->n);
    else log_info("ctl", "generation %llu%s: " STR_FMT, (unsigned long long)rj.rt.generation, rj.rt.pinned ? " (recorded, another one is pinned)" : "",
                  STR_ARG(rj.rt.newest->diff));
}

/* Are there names of endpoints that the resolver has said nothing about yet? */
static bool ctl_waits_for_names(const struct ctl *c)
{
    const struct rc_name *n;
    uint32_t at = 0;

    if (c->loop.clk.now_ms - c->started_ms > CTL_NAMES_MS) return false;
    while ((n = rc_table_next(&c->rc.names, &at)))
        if (!n->told) return true;
    return false;
}

/* How long until a compile is due; UINT32_MAX: nothing to compile. */
static uint32_t ctl_compile_in_ms(const struct ctl *c)
{
    uint64_t due = c->compiled_ms + c->cfg->publish_interval_ms;

    if (!c->synced || !rc_is_dirty(&c->rc)) return UINT32_MAX;
    return due <= c->loop.clk.now_ms ? 0 : (uint32_t)(due - c->loop.clk.now_ms);
}

/* ---- the file ---- */

static void ctl_log_report(const struct cfg_report *r)
{
    struct str rest = str_built(&r->text), line;

    while (str_cut(&rest, '\n', &line))
        if (line.n) log_error("cfg", STR_FMT, STR_ARG(line));
}

/* Takes other settings and routes: the options of the file (or text, when file_name is set). 0, or -1 with the report filled in. */
static int ctl_take(struct ctl *c, const char *file_name, struct str text, struct cfg_report *report)
{
    struct cfg_input in = *c->input;
    struct cfg *now;

    if (file_name) {
        in.file_name = file_name;
        in.text = text;
    }
    in.operands = NULL;
    now = cfg_load(&in, report);
    c->file_errors = report->errors;
    if (!now) return -1;
    cfg_log_restart(c->cfg, now);
    cfg_put(c->cfg);
    c->cfg = now;
    if (!c->t_event_ns) c->t_event_ns = c->loop.clk.now_ns;
    rc_set_config(&c->rc, now);
    return 0;
}

/* What cannot be read: 0 while that may be the moment between two renames (the timer looks again), -1 when it is to be told, 1 when it has been. */
static int ctl_judge_unreadable(struct ctl *c, bool force)
{
    uint64_t now = c->loop.clk.now_ms;
    bool told = c->unreadable_told;

    if (!c->unreadable_ms) c->unreadable_ms = now;
    clk_arm(&c->loop.clk, &c->rewatch, CTL_REWATCH_MS);
    if (!force && now - c->unreadable_ms < CTL_REWATCH_MS) return 0;
    c->unreadable_told = true;
    return told && !force ? 1 : -1;
}

/* Reads the file; when it differs from the last reading (or force), it is put in service, or refused whole. A file that is replaced all
 * the time is read at most once in a publish-interval, and for at most a third of the time. */
static void ctl_reload(struct ctl *c, bool force)
{
    const char *path = (const char *)c->cfg->config.p;
    struct cfg_report report = {.text = str_growing()};
    struct str_builder text = str_growing();
    uint64_t began_ns = sys_clock_ns(CLOCK_MONOTONIC), now_ms = c->loop.clk.now_ms;
    int rc;

    if (!c->input || !c->cfg->config.n || c->stopping) return;
    if (!force && now_ms < c->read_again_ms) {
        clk_arm(&c->loop.clk, &c->rewatch, c->read_again_ms - now_ms);
        return;
    }
    rc = cfg_read_file(path, &text);
    if (rc < 0 ? ctl_judge_unreadable(c, force) >= 0 : !force && !c->unreadable_told && str_hash(str_built(&text)) == c->file_hash) {
        if (rc >= 0) c->unreadable_ms = 0;
        str_free(&text);
        return;
    }
    if (rc >= 0) c->unreadable_ms = 0, c->unreadable_told = false;
    c->file_hash = str_hash(str_built(&text));
    if (rc < 0) {
        c->file_errors = 1;
        log_error("cfg", "%s: cannot be read: %s; generation %llu stays in service", path, strerror(-rc), (unsigned long long)rj.rt.generation);
    } else if (ctl_take(c, path, str_built(&text), &report) < 0) {
        ctl_log_report(&report);
        log_error("ctl", "%s: %u errors, generation %llu stays in service", path, c->file_errors, (unsigned long long)rj.rt.generation);
    } else {
        log_info("ctl", "%s was read again", (const char *)c->cfg->config.p); /* path went with the old settings */
    }
    c->read_again_ms = now_ms + c->cfg->publish_interval_ms + 3 * (sys_clock_ns(CLOCK_MONOTONIC) - began_ns) / 1000000;
    str_free(&report.text);
    str_free(&text);
}

/* Watches the folder of the file, and the one that a link leads to. Folders that are not there are looked for again later. */
static void ctl_watch_file(struct ctl *c)
{
    const uint32_t mask = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
    char path[CTL_PATH_MAX], real[CTL_PATH_MAX];
    const char *files[2] = {path, real};

    if (c->cfg->config.n >= sizeof path) return;
    memcpy(path, c->cfg->config.p, c->cfg->config.n + 1);
    if (!realpath(path, real)) real[0] = 0;
    for (size_t i = 0; i < RJ_COUNT(files); i++) {
        struct ctl_watch *w = &c->watch[i];
        char dir[CTL_PATH_MAX];
        const char *slash = strrchr(files[i], '/');
        int n = slash ? snprintf(dir, sizeof dir, "%.*s", (int)(slash - files[i] + 1), files[i]) : snprintf(dir, sizeof dir, "./");

        if (n <= 0 || !files[i][0] || (w->wd >= 0 && strcmp(w->dir, dir) == 0)) continue;
        w->wd = sys_inotify_add(c->inotify.fd, dir, mask);
        memcpy(w->dir, dir, (size_t)n + 1);
        if (w->wd < 0) clk_arm(&c->loop.clk, &c->rewatch, CTL_REWATCH_MS);
    }
}

static void ctl_on_rewatch(struct clk_timer *t)
{
    struct ctl *c = RJ_CONTAINER(t, struct ctl, rewatch);

    ctl_watch_file(c);
    ctl_reload(c, false);
}

static void ctl_on_inotify(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct ctl *c = RJ_CONTAINER(s, struct ctl, inotify);
    _Alignas(struct inotify_event) uint8_t text[4096];
    long n;

    (void)res;
    (void)buf;
    if (ev != IO_READY) return;
    while ((n = sys_read(s->fd, text, sizeof text)) > 0)
        for (long at = 0; at + (long)sizeof(struct inotify_event) <= n;) {
            const struct inotify_event *e = (const struct inotify_event *)(const void *)(text + at);

            for (size_t i = 0; i < RJ_COUNT(c->watch); i++)
                if (e->mask & (IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF) && c->watch[i].wd == e->wd) c->watch[i].wd = -1;
            at += (long)sizeof *e + e->len;
        }
    ctl_watch_file(c);
    ctl_reload(c, false);
    io_poll(&c->loop, s, IO_IN);
}

static int ctl_open_inotify(struct ctl *c, struct log_err *err)
{
    int fd = sys_inotify_init();

    c->watch[0].wd = c->watch[1].wd = -1;
    c->rewatch.fire = ctl_on_rewatch;
    if (fd < 0) return log_fail(err, "inotify: %s", strerror(-fd));
    io_sock_init(&c->inotify, ctl_on_inotify);
    if ((fd = io_adopt(&c->loop, &c->inotify, fd)) < 0) return log_fail(err, "inotify: %s", strerror(-fd));
    io_poll(&c->loop, &c->inotify, IO_IN);
    ctl_watch_file(c);
    return 0;
}

/* ---- signals, stopping ---- */

/* Ends the new process, which is not ready, and returns its status. */
static int ctl_end_successor(struct ctl *c)
{
    int status = 0;

    kill(c->successor, SIGKILL);
    waitpid(c->successor, &status, 0);
    c->successor = 0;
    clk_disarm(&c->successor_timer);
    io_close(&c->loop, &c->successor_word);
    return status;
}

/* Begins to drain; a second call cuts what is left. A hand-over that is not done ends here: nobody is to serve any more. */
static void ctl_stop(struct ctl *c)
{
    uint32_t delay_ms = c->handed_over ? CTL_HANDED_IDLE_MS : c->cfg->shutdown_delay_ms;

    if (c->stopping) {
        c->drain_until_ms = c->loop.clk.now_ms;
        return;
    }
    if (c->successor && !c->handed_over) {
        log_info("ctl", "hand-over: given up, as this process ends");
        ctl_end_successor(c);
    }
    c->stopping = true;
    c->drain_until_ms = c->loop.clk.now_ms + delay_ms + c->cfg->shutdown_ms + 1000;
    log_info("ctl", "draining after %u ms, then at most %u ms", delay_ms, c->cfg->shutdown_ms);
    wrk_drain(delay_ms, c->cfg->shutdown_ms);
}

/* ---- handing over to a new process (SIGUSR2) ----
 *
 *   old: SIGUSR2 -> starts the program again with its listening sockets and one end of a socket pair -> waits
 *   new: takes the sockets that its configuration wants -> ready -> accepts -> writes the numbers of those it took
 *   old: stops accepting -> closes the pair -> drains -> ends.   An end without those numbers, or CTL_SUCCESSOR_MS: the old one goes on. */

/* The program to start: as this one was called, or its file when it came from PATH. */
static const char *ctl_program(char *room, size_t n)
{
    static const char gone[] = " (deleted)";
    ssize_t len;

    if (strchr(rj.argv[0], '/')) return rj.argv[0];
    len = readlink("/proc/self/exe", room, n - 1);
    if (len < 0) return rj.argv[0];
    room[len] = 0;
    if (str_ends(str_z(room), str_z(gone))) room[(size_t)len - (sizeof gone - 1)] = 0;
    return room;
}

/* This environment and the variable that names the descriptors; the array and *text are the caller's to free. */
static char **ctl_successor_environ(const char *variable)
{
    size_t n = 0, kept = 0;
    char **env;

    while (environ[n]) n++;
    env = mem_need((n + 2) * sizeof *env);
    for (size_t i = 0; i < n; i++)
        if (!str_starts(str_z(environ[i]), S(CTL_SUCCESSOR_ENV "="))) env[kept++] = environ[i];
    env[kept] = (char *)(uintptr_t)variable;
    return env;
}

/* Starts the program with the offered sockets open; tell_fd is its end of the pair. Returns 0 or an error number. */
static int ctl_spawn(struct ctl *c, int tell_fd)
{
    struct str_builder variable = str_growing();
    posix_spawn_file_actions_t actions;
    char room[CTL_PATH_MAX], **env;
    int rc;

    posix_spawn_file_actions_init(&actions);
    str_putf(&variable, CTL_SUCCESSOR_ENV "=%d", tell_fd);
    posix_spawn_file_actions_adddup2(&actions, tell_fd, tell_fd); /* onto itself: it stays open behind the exec */
    for (int i = 0; i < rj.offer.n; i++) {
        str_putf(&variable, " %d", rj.offer.fd[i]);
        posix_spawn_file_actions_adddup2(&actions, rj.offer.fd[i], rj.offer.fd[i]);
    }
    str_put_c(&variable, 0);
    env = ctl_successor_environ((const char *)variable.p);
    rc = posix_spawn(&c->successor, ctl_program(room, sizeof room), &actions, NULL, rj.argv, env);
    posix_spawn_file_actions_destroy(&actions);
    mem_free(env);
    str_free(&variable);
    return rc;
}

/* No new process takes over: this one goes on. */
static void ctl_successor_failed(struct ctl *c, const char *why)
{
    int status = ctl_end_successor(c);

    if (WIFEXITED(status)) log_error("ctl", "hand-over: the new process ended with status %d before it was ready; this one goes on", WEXITSTATUS(status));
    else log_error("ctl", "hand-over: the new process %s; this one goes on", why);
}

static void ctl_on_successor_late(struct clk_timer *t)
{
    struct ctl *c = RJ_CONTAINER(t, struct ctl, successor_timer);

    ctl_successor_failed(c, "was not ready in time");
}

/* The new process says which sockets it has taken. */
static void ctl_on_successor(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct ctl *c = RJ_CONTAINER(s, struct ctl, successor_word);
    int fd;

    if (ev != IO_RECV || c->handed_over) return;
    if (res <= 0) {
        ctl_successor_failed(c, "went away");
        return;
    }
    for (int at = 0; at + (int)sizeof fd <= res; at += (int)sizeof fd) {
        memcpy(&fd, buf->data + at, sizeof fd);
        wrk_set_handed_over(fd);
    }
    log_info("ctl", "handed over to process %d", (int)c->successor);
    clk_disarm(&c->successor_timer);
    c->handed_over = true;
    if (c->on_handed_over) c->on_handed_over(c->hand_over_arg);
    ctl_stop(c);
}

static void ctl_hand_over(struct ctl *c)
{
    int pair[2], rc;

    if (c->stopping || c->successor || c->successor_word.fd >= 0 || !rj.argv) {
        log_warn("ctl", "hand-over: not now: %s", c->stopping ? "this process is draining" : c->successor ? "a new process is starting already"
                 : c->successor_word.fd >= 0 ? "the last new process has ended just now" : "only `ramjet run` can be started again");
        return;
    }
    if ((rc = sys_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) < 0) {
        log_error("ctl", "hand-over: socketpair: %s; this process goes on", strerror(-rc));
        return;
    }
    if (getpid() == 1) setpgid(0, 0); /* signals are passed on to the group of a container's first process: see cli_attend */
    io_sock_init(&c->successor_word, ctl_on_successor);
    rc = -io_adopt(&c->loop, &c->successor_word, pair[0]);
    if (!rc && (rc = ctl_spawn(c, pair[1]))) io_close(&c->loop, &c->successor_word);
    sys_close(pair[1]);
    if (rc) {
        log_error("ctl", "hand-over: cannot start %s: %s; this process goes on", rj.argv[0], strerror(rc));
        c->successor = 0;
        return;
    }
    log_info("ctl", "hand-over: process %d is starting", (int)c->successor);
    io_recv_start(&c->loop, &c->successor_word);
    c->successor_timer.fire = ctl_on_successor_late;
    clk_arm(&c->loop.clk, &c->successor_timer, CTL_SUCCESSOR_MS);
}

/* The process before accepts no more. */
static void ctl_on_predecessor(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct ctl *c = RJ_CONTAINER(s, struct ctl, predecessor);

    (void)buf;
    if (ev != IO_RECV || res > 0) return;
    io_close(&c->loop, s);
    wrk_ask(wrk_on_left, NULL, NULL);
}

/* This process serves: the one before may stop. What it had and this one did not take is closed here. */
static void ctl_tell_predecessor(struct ctl *c)
{
    int taken[WRK_OFFER_MAX], n = 0;

    for (int i = 0; i < rj.inherited.n; i++) {
        if (rj.inherited.taken[i]) taken[n++] = rj.inherited.fd[i];
        else sys_close(rj.inherited.fd[i]);
    }
    wrk_ask(wrk_on_ready, NULL, NULL);
    if (c->on_taking_over) c->on_taking_over(c->hand_over_arg);
    sys_send(rj.tell_fd, taken, n ? (size_t)n * sizeof *taken : 1, MSG_NOSIGNAL);
    io_sock_init(&c->predecessor, ctl_on_predecessor);
    if (io_adopt(&c->loop, &c->predecessor, rj.tell_fd) == 0) io_recv_start(&c->loop, &c->predecessor);
    rj.tell_fd = rj.inherited.n = 0;
}

static void ctl_on_signal(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct ctl *c = RJ_CONTAINER(s, struct ctl, signals);
    struct { uint32_t signo; int32_t error, code; uint32_t pid; uint8_t rest[112]; } info; /* struct signalfd_siginfo */

    (void)res;
    (void)buf;
    if (ev != IO_READY) return;
    while (sys_read(s->fd, &info, sizeof info) == sizeof info) {
        if (c->handed_over && getpid() == 1) {           /* a container's signals come here: they are meant for the process that serves */
            if (info.pid == 1) continue;                 /* our own kill below */
            kill(0, (int)info.signo);
        }
        if (info.signo == SIGHUP) ctl_reload(c, true);
        else if (info.signo == SIGUSR1) ctl_open_access_log(c);
        else if (info.signo == SIGUSR2) ctl_hand_over(c);
        else ctl_stop(c);
    }
    io_poll(&c->loop, s, IO_IN);
}

static int ctl_open_signals(struct ctl *c, struct log_err *err)
{
    uint64_t mask = 1ull << (SIGHUP - 1) | 1ull << (SIGINT - 1) | 1ull << (SIGTERM - 1) | 1ull << (SIGUSR1 - 1) |
                    1ull << (SIGUSR2 - 1);               /* the kernel's sigset_t */
    int fd = (int)SYS_CALL(SYS_signalfd4, -1, &mask, sizeof mask, O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) return log_fail(err, "signalfd: %s", strerror(-fd));
    io_sock_init(&c->signals, ctl_on_signal);
    if ((fd = io_adopt(&c->loop, &c->signals, fd)) < 0) return log_fail(err, "signalfd: %s", strerror(-fd));
    io_poll(&c->loop, &c->signals, IO_IN);
    return 0;
}

/* ---- the cluster ---- */

/* k8s_: every first list is in the store. */
static void ctl_on_synced(void *arg)
{
    struct ctl *c = arg;

    c->synced = true;
    rj.rt.partial = false;
    log_info("ctl", "all first lists are in: %u ingresses, %u services, %u endpointslices", c->store.kind[OBJ_INGRESS].count,
             c->store.kind[OBJ_SERVICE].count, c->store.kind[OBJ_ENDPOINT_SLICE].count);
}

/* Reads how to reach the API server, before anything is opened: what is wrong with it is a mistake of the configuration. c need not be
 * open yet (but zeroed); ctl_open, or ctl_drop_cluster, must follow. Returns 0, or -EINVAL with err. */
static int ctl_read_cluster(struct ctl *c, const struct cfg *f, struct log_err *err)
{
    struct kc_config *k = &c->k8s_cfg;
    int rc;

    if (f->kubeconfig.n) rc = kc_from_file(k, (const char *)f->kubeconfig.p, f->kube_context, err) < 0 ? log_wrap(err, "kubeconfig") : 0;
    else rc = kc_from_cluster(k, getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT"), (const char *)f->serviceaccount_dir.p, err);
    return rc < 0 ? -EINVAL : 0;
}

static void ctl_drop_cluster(struct ctl *c) { kc_fini(&c->k8s_cfg); }

static void ctl_open_cluster(struct ctl *c)
{
    const struct cfg *f = c->cfg;

    c->store.changed = ctl_on_object;
    c->store.arg = c;
    c->cluster = true;
    k8s_init(&c->k8s, &c->k8s_cfg, &c->store, f->watch_namespace.v, f->watch_namespace.n);
    k8s_start(&c->k8s, &c->loop, &c->dns, ctl_on_synced, c);
}

/* ---- the loop ---- */

/* Prepares the loop and publishes the first table; workers start after it, ctl_run after them. c is zeroed, but for what
 * ctl_read_cluster left in it. In a cluster that first table is empty (or has the routes of the file) and ctl_is_ready says no until the
 * lists are in. Returns 0, or negative with err: -EINVAL when the configuration is wrong. */
static int ctl_open(struct ctl *c, const struct ctl_options *o, struct log_err *err)
{
    int rc;

    c->thread.index = c->access_fd = -1;
    c->log_wait_ms = CTL_LOG_MIN_MS;
    c->input = o->input;
    c->first = cfg_get(o->cfg);
    c->cfg = cfg_get(o->cfg);
    rj.ctl = c;
    rj_me = &c->thread;
    rj.rt.workers = o->workers;
    if (!atomic_load_explicit(&rj.epoch, memory_order_relaxed)) atomic_store_explicit(&rj.epoch, 1, memory_order_relaxed); /* no worker yet */
    c->inotify.fd = c->signals.fd = c->successor_word.fd = c->predecessor.fd = -1;
    if ((rc = io_loop_open(&c->loop, &ep_ops, 0)) < 0) return log_fail(err, "epoll: %s", strerror(-rc));
    c->started_ms = c->loop.clk.now_ms;
    if ((rc = wrk_box_init(&rj.control_box)) < 0 || (rc = wrk_box_open(&rj.control_box, &c->loop)) < 0) {
        io_loop_close(&c->loop);
        return log_fail(err, "socketpair: %s", strerror(-rc));
    }
    c->opened = true;
    chk_init(&c->chk, &c->loop);
    if (RJ_NEVER(dns_open(&c->dns, &c->loop, c->cfg->resolver) < 0)) return log_fail(err, "resolver: " STR_FMT, STR_ARG(c->cfg->resolver));
    if (o->signals && ctl_open_signals(c, err) < 0) return -1;
    if (!o->quiet) ctl_open_access_log(c);
    rc_init(&c->rc, &c->store, c->cfg);
    c->rc.warn = ctl_on_warning;
    c->rc.name_new = ctl_on_name_new;
    c->rc.name_gone = ctl_on_name_gone;
    c->rc.arg = c;
    if (c->input && c->cfg->config.n && !c->input->file_name) {
        struct str_builder text = str_growing();

        if (cfg_read_file((const char *)c->cfg->config.p, &text) >= 0) c->file_hash = str_hash(str_built(&text));
        str_free(&text);
        if (ctl_open_inotify(c, err) < 0) return -1;
    }
    c->synced = !c->cfg->cluster;
    rj.rt.partial = !c->synced;
    ctl_compile(c);
    if (c->cfg->cluster) ctl_open_cluster(c);
    return 0;
}

static void ctl_on_gone(struct wrk *w, void *arg) { up_leave(&w->up, arg); }

static void ctl_on_gone_done(void *arg)
{
    mem_free(((struct rt_gone *)arg)->hash);
    mem_free(arg);
}

/* Tells the workers which endpoints are in no backend any more. */
static void ctl_tell_gone(void)
{
    struct rt_gone *gone = mem_need(sizeof *gone);

    *gone = rt_take_gone();
    if (gone->n) wrk_ask(ctl_on_gone, ctl_on_gone_done, gone);
    else ctl_on_gone_done(gone);
}

/* One turn: events, then what they changed. */
static void ctl_turn(struct ctl *c)
{
    uint32_t wait = c->log_wait_ms, due = ctl_compile_in_ms(c);

    if (due < wait) wait = due;
    if (rj.rcu_head && wait > 5) wait = 5;
    if (c->stopping && wait > 5) wait = 5;
    io_turn(&c->loop, wait);
    if (ctl_compile_in_ms(c) == 0) ctl_compile(c);
    if (rj.rt.last->partial && c->synced && !rc_is_dirty(&c->rc)) rt_refresh(); /* an empty cluster */
    if (!c->ready && c->synced && !ctl_waits_for_names(c) && !rc_is_dirty(&c->rc)) {
        c->ready = true;
        log_info("ctl", "ready, generation %llu", (unsigned long long)rj.rt.generation);
        if (rj.tell_fd) ctl_tell_predecessor(c);
    }
    if (c->checked != rj.rt.seq) {
        c->checked = rj.rt.seq;
        chk_update(&c->chk);
        if (rj.rt.gone.n) ctl_tell_gone();
    }
    ctl_drain_logs(c);
    rcu_collect();
    rt_collect();
    if (c->handed_over && io_is_open(&c->successor_word) && wrk_has_left()) io_close(&c->loop, &c->successor_word);
    if (c->stopping && (wrk_all_done() || c->loop.clk.now_ms >= c->drain_until_ms)) c->drained = true;
}

/* Runs until a signal or ctl_ask_stop has ended it and the workers are drained and stopped. Their last log lines are written. */
static void ctl_run(struct ctl *c)
{
    while (!c->drained) ctl_turn(c);
    wrk_stop();
    ctl_drain_logs(c);
    log_info("ctl", "stopped");
}

/* Gives everything back, after ctl_run and whatever else used the loop. Also after a ctl_open that failed. */
static void ctl_fini(struct ctl *c)
{
    if (c->cluster) {
        k8s_stop(&c->k8s);
        while (!k8s_is_stopped(&c->k8s)) io_turn(&c->loop, 1);
        k8s_fini(&c->k8s);
    }
    ctl_drop_cluster(c);
    rc_fini(&c->rc);
    c->store.changed = NULL;
    obj_store_fini(&c->store);
    dns_close(&c->dns);
    chk_fini(&c->chk);
    rt_fini();
    if (c->inotify.fd >= 0) io_close(&c->loop, &c->inotify);
    if (c->signals.fd >= 0) io_close(&c->loop, &c->signals);
    if (io_is_open(&c->successor_word)) io_close(&c->loop, &c->successor_word);
    if (io_is_open(&c->predecessor)) io_close(&c->loop, &c->predecessor);
    if (c->opened) {
        wrk_box_close(&rj.control_box);
        for (int i = 0; i < 3 || c->dns.queries; i++) io_turn(&c->loop, 1);
        io_loop_close(&c->loop);
    }
    if (c->access_own) sys_close(c->access_fd);
    mem_free(c->changes.v);
    cfg_put(c->cfg);
    cfg_put(c->first);
    rj_me = NULL;
    rj.ctl = NULL;
}

/* ---- from other threads ---- */

/* A question to the control thread; the asker waits for the answer. */
struct ctl_ask {
    struct wrk_msg msg;
    struct ctl *ctl;
    struct str text;
    struct cfg_report *report;
    int result;
    pthread_mutex_t lock;
    pthread_cond_t answered;
    bool done;
};

static void ctl_on_ask_reload(struct wrk_msg *m)
{
    struct ctl_ask *a = RJ_CONTAINER(m, struct ctl_ask, msg);
    struct ctl *c = a->ctl;

    a->result = ctl_take(c, "ini_text", a->text, a->report);
    if (a->result == 0) ctl_compile(c);
    pthread_mutex_lock(&a->lock);
    a->done = true;
    pthread_cond_signal(&a->answered);
    pthread_mutex_unlock(&a->lock);
}

/* Puts the text of a file in service: 0 once it is published, or -1 with the report filled in. Any thread but control. */
static int ctl_ask_reload(struct ctl *c, struct str text, struct cfg_report *report)
{
    struct ctl_ask a = {.msg = {.run = ctl_on_ask_reload}, .ctl = c, .text = text, .report = report};

    pthread_mutex_init(&a.lock, NULL);
    pthread_cond_init(&a.answered, NULL);
    pthread_mutex_lock(&a.lock);
    wrk_post(&rj.control_box, &a.msg);
    while (!a.done) pthread_cond_wait(&a.answered, &a.lock);
    pthread_mutex_unlock(&a.lock);
    pthread_cond_destroy(&a.answered);
    pthread_mutex_destroy(&a.lock);
    return a.result;
}

static void ctl_on_ask_stop(struct wrk_msg *m)
{
    (void)m;
    ctl_stop(rj.ctl);
}

/* Begins to drain; ctl_run returns when that is done. msg stays with the caller until then. Any thread. */
static void ctl_ask_stop(struct wrk_msg *msg)
{
    msg->run = ctl_on_ask_stop;
    wrk_post(&rj.control_box, msg);
}

/* ---- what adm_ shows ---- */

/* Whether everything known is served; the reasons, one line each, go to b. */
static bool ctl_is_ready(struct str_builder *b)
{
    const struct ctl *c = rj.ctl;
    bool ready = c && c->ready && !c->stopping;

    if (!c) {
        str_put(b, S("starting\n"));
        return false;
    }
    if (c->stopping) str_put(b, S("draining\n"));
    else if (!c->synced) str_put(b, S("waiting for the first lists of the API server\n"));
    else if (!c->ready) str_put(b, S("waiting for the resolver\n"));
    if (ready) str_put(b, S("ok\n"));
    if (!c->synced && !c->stopping) k8s_render_state(&c->k8s, b);
    if (c->file_errors)
        str_putf(b, "config: " STR_FMT ": %u errors, serving generation %llu\n", STR_ARG(c->cfg->config), c->file_errors,
                 (unsigned long long)(rj.rt.last ? rj.rt.last->generation : 0));
    return ready;
}

static void ctl_put_family(struct str_builder *b, const char *name, const char *type, const char *help)
{
    str_putf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* The metrics of the control side. */
static void ctl_render_metrics(struct str_builder *b)
{
    const struct ctl *c = rj.ctl;
    uint64_t dropped = 0;

    for (int i = 0; i < rj.thread_count; i++)
        dropped += atomic_load_explicit(&rj.threads[i]->log.dropped, memory_order_relaxed) +
                   atomic_load_explicit(&rj.threads[i]->access.dropped, memory_order_relaxed); /* numbers for a report */
    ctl_put_family(b, "ramjet_generation", "gauge", "Generation of the routes in service");
    str_putf(b, "ramjet_generation %llu\n", (unsigned long long)(rj.rt.last ? rj.rt.last->generation : 0));
    ctl_put_family(b, "ramjet_publish_timestamp_seconds", "gauge", "Time of the last publication");
    str_putf(b, "ramjet_publish_timestamp_seconds %llu.%03llu\n", (unsigned long long)(rj.rt.publish_wall_ms / 1000),
             (unsigned long long)(rj.rt.publish_wall_ms % 1000));
    ctl_put_family(b, "ramjet_compiles_total", "counter", "Compiles of changed objects, also those that gave the same routes");
    str_putf(b, "ramjet_compiles_total %llu\n", (unsigned long long)(c ? c->compiles : 0));
    ctl_put_family(b, "ramjet_config_ok", "gauge", "1 when the last reading of the file was without errors");
    str_putf(b, "ramjet_config_ok %d\n", !(c && c->file_errors));
    if (c) {
        ctl_put_family(b, "ramjet_upstream_checks_total", "counter", "Active health checks by result");
        str_putf(b, "ramjet_upstream_checks_total{result=\"good\"} %llu\nramjet_upstream_checks_total{result=\"bad\"} %llu\n",
                 (unsigned long long)c->chk.results[0], (unsigned long long)c->chk.results[1]);
    }
    ctl_put_family(b, "ramjet_log_dropped_total", "counter", "Log records that found no room");
    str_putf(b, "ramjet_log_dropped_total %llu\n", (unsigned long long)dropped);
    if (c && c->cluster) k8s_render_metrics(&c->k8s, b);
}

static void ctl_render_routes(struct str_builder *b) { rt_render_routes(b); }
static void ctl_render_generations(struct str_builder *b) { rt_render_generations(b); }

/* Pins a kept generation. 0, or negative with why. */
static int ctl_rollback(uint64_t generation, struct log_err *err)
{
    int rc = rt_rollback(generation, err);

    if (rc < 0) log_warn("ctl", "rollback: %s", err->text);
    else log_warn("ctl", "generation %llu is pinned; newer ones are recorded and not served", (unsigned long long)generation);
    return rc;
}

static void ctl_unpin(void)
{
    if (!rj.rt.pinned) return;
    rt_unpin();
    log_info("ctl", "unpinned, serving generation %llu", (unsigned long long)rj.rt.generation);
}

/* ============================================================================
 * adm_ : Admin listener
 *
 * Owns:    struct adm, struct adm_conn; the texts of /metrics and of the status page.
 * Calls:   sys_ mem_ str_ map_ clk_ log_ mtr_ io_ http_ h1_ cry_ cfg_ rt_ up_ wrk_ ctl_
 * Threads: control. What the workers count is read with relaxed loads.
 * Rules:   1. Answers while the data path is saturated: its loop serves no client traffic, its connections are few and bounded in time.
 *          2. An answer is built whole, sent in pieces as the client takes them, and freed.
 *          3. Writes need the bearer token; without a token file they are refused.
 * ========================================================================== */

/* ---- metrics ---- */

/* HELP and TYPE of a family. */
static void adm_put_family(struct str_builder *b, const char *name, const char *help, const char *type)
{
    str_putf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label value: backslash, quote and line feed escaped. */
static void adm_put_label(struct str_builder *b, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\n') {
            str_put(b, S("\\n"));
            continue;
        }
        if (s.p[i] == '\\' || s.p[i] == '"') str_put_c(b, '\\');
        str_put_c(b, (char)s.p[i]);
    }
}

static void adm_put_sample(struct str_builder *b, const char *name, const char *labels, int64_t v)
{
    str_put_z(b, name);
    if (labels[0]) str_putf(b, "{%s}", labels);
    str_putf(b, " %lld\n", (long long)v);
}

static void adm_put_gauge(struct str_builder *b, const char *name, const char *help, int64_t v)
{
    adm_put_family(b, name, help, "gauge");
    adm_put_sample(b, name, "", v);
}

/* Counters and levels of all workers. Rows of one family stand together in the tables. */
static void adm_put_counters(struct str_builder *b)
{
    static const struct { const char *name, *labels, *help; } counters[] = {
#define X(id, name, labels, help) {name, labels, help},
        MTR_COUNTERS(X)
    }, gauges[] = {
        MTR_GAUGES(X)
#undef X
    };

    for (size_t i = 0; i < RJ_COUNT(counters); i++) {
        uint64_t sum = 0;

        for (int t = 0; t < rj.thread_count; t++) sum += mtr_read(&rj.threads[t]->mtr.counter[i]);
        if (!i || strcmp(counters[i].name, counters[i - 1].name) != 0) adm_put_family(b, counters[i].name, counters[i].help, "counter");
        adm_put_sample(b, counters[i].name, counters[i].labels, (int64_t)sum);
    }
    for (size_t i = 0; i < RJ_COUNT(gauges); i++) {
        uint64_t sum = 0;

        for (int t = 0; t < rj.thread_count; t++) sum += mtr_read(&rj.threads[t]->mtr.gauge[i]);
        if (!i || strcmp(gauges[i].name, gauges[i - 1].name) != 0) adm_put_family(b, gauges[i].name, gauges[i].help, "gauge");
        adm_put_sample(b, gauges[i].name, gauges[i].labels, (int64_t)sum);
    }
}

/* The numbers of route id over all workers. False when nothing was counted. */
static bool adm_sum_route(uint32_t id, struct mtr_route *sum)
{
    bool any = false;

    *sum = (struct mtr_route){0};
    for (int t = 0; t < rj.thread_count; t++) {
        struct mtr_route *r = atomic_load_explicit(&rj.threads[t]->mtr.route[id], memory_order_acquire); /* mtr_request's release */

        if (!r) continue;
        any = true;
        for (int i = 0; i < 6; i++) sum->by_class[i] += mtr_read(&r->by_class[i]);
        for (int i = 0; i < MTR_BUCKETS; i++) sum->bucket[i] += mtr_read(&r->bucket[i]);
        sum->sum_us += mtr_read(&r->sum_us);
    }
    return any;
}

static void adm_put_us(struct str_builder *b, uint64_t us)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%llu.%06u", (unsigned long long)(us / 1000000), (unsigned)(us % 1000000));

    while (text[n - 1] == '0') n--;
    if (text[n - 1] == '.') n--;
    str_put(b, str_of(text, (size_t)n));
}

static void adm_put_histogram(struct str_builder *b, struct str label, const struct mtr_route *r)
{
    uint64_t count = 0;

    for (int i = 0; i < MTR_BUCKETS; i++) {
        count += r->bucket[i];
        str_putf(b, "ramjet_request_duration_seconds_bucket{route=\"" STR_FMT "\",le=\"", STR_ARG(label));
        if (i < MTR_BUCKETS - 1) adm_put_us(b, mtr_bounds_us[i]);
        else str_put(b, S("+Inf"));
        str_putf(b, "\"} %llu\n", (unsigned long long)count);
    }
    str_putf(b, "ramjet_request_duration_seconds_sum{route=\"" STR_FMT "\"} ", STR_ARG(label));
    adm_put_us(b, r->sum_us);
    str_putf(b, "\nramjet_request_duration_seconds_count{route=\"" STR_FMT "\"} %llu\n", STR_ARG(label), (unsigned long long)count);
}

/* Requests and durations by route; the table of names is bounded, what does not fit counts as "other". */
static void adm_put_routes(struct str_builder *b)
{
    struct str_builder durations = str_growing(), label = str_growing();

    adm_put_family(b, "ramjet_requests_total", "Requests answered, by route and status class", "counter");
    for (uint32_t id = 0; id <= rj.route_names.count && id < MTR_ROUTES_MAX; id++) {
        struct mtr_route sum;

        if (!adm_sum_route(id, &sum)) continue;
        label.n = 0;
        adm_put_label(&label, id ? rj.route_names.by_id[id]->name : S("other"));
        for (int c = 0; c < 6; c++) {
            if (!sum.by_class[c]) continue;
            str_putf(b, "ramjet_requests_total{route=\"" STR_FMT "\",code=\"%dxx\"} %llu\n", STR_ARG(str_built(&label)), c,
                     (unsigned long long)sum.by_class[c]);
        }
        adm_put_histogram(&durations, str_built(&label), &sum);
    }
    adm_put_family(b, "ramjet_request_duration_seconds", "Time from the first byte of a request to the last of its answer", "histogram");
    str_put(b, str_built(&durations));
    str_free(&durations);
    str_free(&label);
}

/* Open connections of each worker. */
static void adm_put_workers(struct str_builder *b)
{
    adm_put_family(b, "ramjet_worker_connections", "Open client connections by worker", "gauge");
    for (int t = 0; t < rj.thread_count; t++) {
        const struct mtr_thread *m = &rj.threads[t]->mtr;

        str_putf(b, "ramjet_worker_connections{worker=\"%d\"} %lld\n", t,
                 (long long)mtr_read(&m->gauge[MTR_CLIENT_ACTIVE]) + (long long)mtr_read(&m->gauge[MTR_CLIENT_IDLE]));
    }
}

/* Descriptors that the process has open: the size of the folder since Linux 6.2, counted before. -1: no /proc. */
static int64_t adm_count_fds(void)
{
    struct stat st;
    uint8_t entries[4096];
    int64_t n = -2;                                      /* . and .. */
    long got;
    int fd;

    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0) return st.st_size;
    fd = sys_open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    while ((got = SYS_CALL(SYS_getdents64, fd, entries, sizeof entries)) > 0) {
        uint16_t step;

        for (long at = 0; at < got; at += step) {
            memcpy(&step, entries + at + 16, sizeof step); /* linux_dirent64.d_reclen */
            n++;
        }
    }
    sys_close(fd);
    return n - 1;                                        /* the folder itself */
}

/* What every exporter says of its process; families whose source is missing (no /proc) are left out. */
static void adm_put_process(struct str_builder *b, const struct adm *adm)
{
    char statm[128] = "";
    int fd = sys_open("/proc/self/statm", O_RDONLY | O_CLOEXEC, 0);
    long n = fd < 0 ? 0 : sys_read(fd, statm, sizeof statm - 1);
    const char *resident = strchr(statm, ' ');             /* the second number, in pages */
    int64_t fds = adm_count_fds();
    uint64_t cpu_us = sys_clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1000;

    if (fd >= 0) sys_close(fd);
    if (n > 0 && resident)
        adm_put_gauge(b, "process_resident_memory_bytes", "Resident memory", strtoll(resident, NULL, 10) * (int64_t)sysconf(_SC_PAGESIZE));
    if (fds >= 0) adm_put_gauge(b, "process_open_fds", "Open descriptors", fds);
    adm_put_family(b, "process_cpu_seconds_total", "User and system time of all threads", "counter");
    str_put(b, S("process_cpu_seconds_total "));
    adm_put_us(b, cpu_us);
    str_put_c(b, '\n');
    adm_put_family(b, "process_start_time_seconds", "Start, in seconds since the epoch", "gauge");
    str_put(b, S("process_start_time_seconds "));
    adm_put_us(b, adm->start_wall_ms * 1000);
    str_put_c(b, '\n');
}

/* ---- one connection ----
 *
 *   WAIT_HEAD -> WAIT_BODY    [adm_on_bytes]        the head is complete
 *   WAIT_BODY -> WAIT_WORKERS [adm_answer_upstreams] the workers are asked for their share
 *   WAIT_BODY, WAIT_WORKERS -> WAIT_SENT [adm_reply] the answer is queued
 *   WAIT_HEAD, WAIT_BODY -> WAIT_SENT    [adm_refuse] the request is not one
 *   WAIT_SENT -> WAIT_HEAD    [adm_on_sent]         the client keeps the connection
 *   WAIT_SENT -> WAIT_END     [adm_on_sent]         our side is shut; what still comes is dropped, so that no reset eats the answer
 *   any -> WAIT_CLOSED        [adm_conn_close]      IO_CLOSED frees it
 *
 * The timer is armed in every state but WAIT_CLOSED: a deadline for the request, for each piece of the answer, for being idle. */
enum adm_state { ADM_WAIT_HEAD, ADM_WAIT_BODY, ADM_WAIT_WORKERS, ADM_WAIT_SENT, ADM_WAIT_END, ADM_WAIT_CLOSED };

/* One endpoint of a backend, and the sums over the workers: each adds with relaxed order, wrk_ask's completion publishes them. */
struct adm_endpoint {
    struct net_addr addr;
    uint64_t hash;
    uint32_t weight;
    const struct up_health *health;                      /* NULL: not checked */
    _Atomic uint64_t active, idle, requests, failures;
};
struct adm_backend {
    struct str name;
    uint32_t from, n;                                    /* endpoints of the job */
};
/* A question to the workers. It outlives its connection. */
struct adm_job {
    struct adm_conn *conn;                               /* NULL: the client has gone */
    struct mem_arena arena;
    struct adm_backend *backends;
    struct adm_endpoint *endpoints;
    uint32_t nbackends, nendpoints;
};

struct adm_conn {
    struct io_sock sock;
    struct io_outq outq;
    struct clk_timer timer;
    struct map_link link;
    struct adm *adm;
    struct adm_job *job;
    enum adm_state state;
    bool head_only;                                      /* HEAD */
    bool keep_alive;
    bool receiving;
    struct str_builder out;                              /* head and body of the answer */
    struct str content;                                  /* of the request, inside in */
    struct h1_head head;
    uint32_t in_n;
    uint8_t in[ADM_HEAD_MAX + ADM_BODY_MAX];
};

static void adm_conn_close(struct adm_conn *c)
{
    if (c->state == ADM_WAIT_CLOSED) return;
    c->state = ADM_WAIT_CLOSED;
    if (c->job) c->job->conn = NULL;
    clk_drop(&c->adm->loop->clk, &c->timer);
    map_list_remove(&c->link);
    c->adm->nconns--;
    io_close(c->adm->loop, &c->sock);
}

static void adm_on_late(struct clk_timer *t) { adm_conn_close(RJ_CONTAINER(t, struct adm_conn, timer)); }

static void adm_deadline(struct adm_conn *c, uint32_t ms) { clk_arm(&c->adm->loop->clk, &c->timer, ms); }

/* What an answer says beside its body. */
struct adm_answer {
    unsigned status;
    const char *type;                                    /* NULL: text/plain */
    const char *field;                                   /* one more field line with CRLF, or NULL */
};

/* Queues the answer; the body is the rest of b, which is freed. */
static void adm_reply(struct adm_conn *c, struct adm_answer a, struct str_builder *body)
{
    struct str_builder *out = &c->out;
    size_t head_n;

    if (body->failed) {
        str_free(body);
        a = (struct adm_answer){.status = 503};
        str_put(body, S("503 Service Unavailable\n"));
    }
    str_putf(out, "HTTP/1.1 %u " STR_FMT "\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
             "X-Content-Type-Options: nosniff\r\n%s%s\r\n",
             a.status, STR_ARG(http_reason(a.status)), a.type ? a.type : "text/plain; charset=utf-8", body->n, a.field ? a.field : "",
             c->keep_alive ? "" : "Connection: close\r\n");
    head_n = out->n;
    if (!c->head_only) str_put(out, str_built(body));
    str_free(body);
    if (out->failed || head_n == 0 || out->n > UINT32_MAX) {
        adm_conn_close(c);
        return;
    }
    c->state = ADM_WAIT_SENT;
    io_outq_add(&c->outq, out->p, (uint32_t)out->n, NULL);
    io_send(c->adm->loop, &c->sock, &c->outq);
    adm_deadline(c, ADM_TIMEOUT_MS);
}

/* `status reason: text` as a plain answer. */
static void adm_reply_text(struct adm_conn *c, unsigned status, const char *field, const char *text)
{
    struct str_builder b = str_growing();

    str_putf(&b, "%u " STR_FMT "%s%s\n", status, STR_ARG(http_reason(status)), text[0] ? ": " : "", text);
    adm_reply(c, (struct adm_answer){.status = status, .field = field}, &b);
}

/* The message is not a request that can be answered in its place: the connection ends after the answer. */
static void adm_refuse(struct adm_conn *c, unsigned status, const char *text)
{
    c->keep_alive = false;
    adm_reply_text(c, status, NULL, text);
}

/* ---- the answers ---- */

static void adm_answer_healthz(struct adm_conn *c)
{
    struct str_builder b = str_growing();

    str_put(&b, S("ok\n"));
    adm_reply(c, (struct adm_answer){.status = 200}, &b);
}

static void adm_answer_readyz(struct adm_conn *c)
{
    struct str_builder b = str_growing();
    bool ready = ctl_is_ready(&b);

    adm_reply(c, (struct adm_answer){.status = ready ? 200 : 503}, &b);
}

static void adm_render_metrics(struct str_builder *b, const struct adm *adm)
{
    adm_put_counters(b);
    adm_put_routes(b);
    adm_put_workers(b);
    adm_put_process(b, adm);
    adm_put_family(b, "ramjet_build_info", "1, with the version and the engine as labels", "gauge");
    str_putf(b, "ramjet_build_info{version=\"" RJ_VERSION "\",engine=\"%s\"} 1\n", rj.engine ? rj.engine : "");
    ctl_render_metrics(b);
}

static void adm_answer_metrics(struct adm_conn *c)
{
    struct str_builder b = str_growing();

    adm_render_metrics(&b, c->adm);
    adm_reply(c, (struct adm_answer){.status = 200, .type = "text/plain; version=0.0.4; charset=utf-8"}, &b);
}

static void adm_answer_routes(struct adm_conn *c)
{
    struct str_builder b = str_growing();

    ctl_render_routes(&b);
    adm_reply(c, (struct adm_answer){.status = 200, .type = "application/json"}, &b);
}

static void adm_answer_generations(struct adm_conn *c)
{
    struct str_builder b = str_growing();

    ctl_render_generations(&b);
    adm_reply(c, (struct adm_answer){.status = 200, .type = "application/json"}, &b);
}

/* Long because the page stands in it: every script and style, so that a browser may be told to load nothing from elsewhere. */
static void adm_answer_page(struct adm_conn *c)
{
    struct str_builder b = str_growing();

    str_put(&b, S(
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>Ramjet</title>\n"
    "<style>\n"
    ":root{color-scheme:light dark}\n"
    "body{font:14px/1.5 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem}\n"
    "h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:1.5rem 0 .3rem}\n"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #8884;vertical-align:top}\n"
    "td.n,th.n{text-align:right}td{overflow-wrap:anywhere}pre{margin:0;white-space:pre-wrap}.bad{color:#c22}#facts{color:#888}\n"
    "input{font:inherit;width:16rem}\n"
    "</style>\n"
    "<h1>Ramjet</h1><p id=\"facts\">loading</p><p id=\"ready\"></p>\n"
    "<h2>Requests</h2><table id=\"requests\"></table>\n"
    "<h2>Routes <input id=\"filter\" placeholder=\"filter\" aria-label=\"filter routes\"></h2><table id=\"routes\"></table><p id=\"more\"></p>\n"
    "<h2>Upstreams</h2><table id=\"upstreams\"></table>\n"
    "<h2>Generations</h2><table id=\"generations\"></table>\n"
    "<script>\n"
    "'use strict';\n"
    "const $=id=>document.getElementById(id),MAX=500;\n"
    "let routes=[];\n"
    "function table(id,heads,rows){\n"
    " const t=$(id),make=(tag,v)=>{const e=document.createElement(tag);e.textContent=v===null||v===undefined?'':v;if(typeof v==='number')e.className='"
    "n';return e};\n"
    " const h=document.createElement('tr');heads.forEach(x=>h.append(make('th',x)));\n"
    " t.replaceChildren(h,...rows.map(r=>{const e=document.createElement('tr');r.forEach(v=>e.append(make('td',v)));return e}));\n"
    "}\n"
    "function show(){\n"
    " const f=$('filter').value,hit=routes.filter(r=>!f||[r.host,r.path,r.backend,r.source].join(' ').includes(f));\n"
    " table('routes',['host','path','type','backend','source','endpoints'],hit.slice(0,MAX).map(r=>[r.host||'any',r.path||'/',r.type,r.backend,r.sourc"
    "e,r.endpoints]));\n"
    " $('more').textContent=hit.length>MAX?hit.length-MAX+' more':'';\n"
    "}\n"
    "function requests(text){\n"
    " const by={},re=/^ramjet_requests_total\\{route=\"((?:[^\"\\\\]|\\\\.)*)\",code=\"(\\dxx)\"\\} (\\d+)/gm;\n"
    " for(let m;(m=re.exec(text));){(by[m[1]]?\?={})[m[2]]=+m[3]}\n"
    " const c=['1xx','2xx','3xx','4xx','5xx'];\n"
    " table('requests',['route',...c],Object.entries(by).sort().slice(0,MAX).map(([k,v])=>[k,...c.map(x=>v[x]||0)]));\n"
    "}\n"
    "const get=async(p,json)=>{const r=await fetch(p);return json?r.json():r.text()};\n"
    "async function load(){\n"
    " try{\n"
    "  const [r,u,g,m,y]=await Promise.all([get('/admin/routes',1),get('/admin/upstreams',1),get('/admin/generations',1),get('/metrics'),get('/readyz')]);\n"
    "  routes=r.routes;show();requests(m);\n"
    "  table('upstreams',['backend','address','weight','active','idle','requests','failures'],\n"
    "   u.backends.flatMap(b=>b.endpoints.length?b.endpoints.map(e=>[b.name,e.address,e.weight,e.active,e.idle,e.requests,e.failures]):[[b.name,'no en"
    "dpoint']]));\n"
    "  table('generations',['generation','published','routes','hosts','backends','compile us','change'],\n"
    "   g.generations.map(x=>[x.generation,x.published_at,x.routes,x.hosts,x.backends,x.compile_us,x.diff]));\n"
    "  const b=/^ramjet_build_info\\{version=\"([^\"]*)\",engine=\"([^\"]*)\"/m.exec(m)||[];\n"
    "  $('facts').textContent='version '+b[1]+', engine '+b[2]+', serving generation '+g.serving+(g.pinned===null?'':' (pinned)')+', '+routes.length+'"
    " routes';\n"
    "  $('ready').textContent=y.trim();$('ready').className=/^(ready|ok)$/.test(y.trim())?'':'bad';\n"
    " }catch(e){$('facts').textContent='no answer: '+e.message}\n"
    " setTimeout(load,2000);\n"
    "}\n"
    "$('filter').oninput=show;load();\n"
    "</script></html>\n"
    ));
    adm_reply(c, (struct adm_answer){.status = 200, .type = "text/html; charset=utf-8",
        .field = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
                 "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"}, &b);
}

/* ---- rollback ---- */

/* The status of a write: 200 when it may go on, 401, or 403. The token file is read each time, so that it can be rotated. */
static unsigned adm_check_token(const struct adm *adm, struct str authorization)
{
    uint8_t want[1024];
    struct str token = {0};
    long n;
    int fd;
    bool good;

    if (!adm->token_file.n) return 403;
    fd = sys_open((const char *)adm->token_file.p, O_RDONLY | O_CLOEXEC, 0);
    n = fd < 0 ? fd : sys_read(fd, want, sizeof want);
    if (fd >= 0) sys_close(fd);
    while (n > 0 && (want[n - 1] == '\n' || want[n - 1] == '\r' || want[n - 1] == ' ')) n--;
    if (n <= 0 || n == sizeof want) {
        log_error("adm", STR_FMT ": no token of 1 to %zu bytes could be read, writes are refused", STR_ARG(adm->token_file), sizeof want - 1);
        return 403;
    }
    if (authorization.n > 7 && str_ieq(str_of(authorization.p, 7), S("Bearer "))) token = str_trim(str_from(authorization, 7));
    good = cry_equal(token, str_of(want, (size_t)n));
    cry_wipe(want, sizeof want);
    return good ? 200 : 401;
}

/* The one Authorization field; empty when there is none or more than one. */
static struct str adm_find_authorization(const struct http_msg *m, const uint8_t *head)
{
    struct str found = {0};
    int n = 0;

    for (uint32_t i = 0; i < m->nfields; i++) {
        if (m->field[i].id != HTTP_F_AUTHORIZATION) continue;
        found = str_of(head + m->field[i].value_at, m->field[i].value_n);
        n++;
    }
    return n == 1 ? found : (struct str){0};
}

static void adm_skip_space(struct str *s)
{
    while (s->n && (s->p[0] == ' ' || s->p[0] == '\t' || s->p[0] == '\r' || s->p[0] == '\n')) *s = str_from(*s, 1);
}

static bool adm_take(struct str *s, struct str word)
{
    adm_skip_space(s);
    if (!str_starts(*s, word)) return false;
    *s = str_from(*s, word.n);
    return true;
}

/* Reads exactly {"generation": N}. */
static bool adm_read_generation(struct str s, uint64_t *out)
{
    size_t n = 0;

    if (!adm_take(&s, S("{")) || !adm_take(&s, S("\"generation\"")) || !adm_take(&s, S(":"))) return false;
    adm_skip_space(&s);
    while (n < s.n && str_is_digit(s.p[n])) n++;
    if (!str_to_u64(str_of(s.p, n), out) || (n > 1 && s.p[0] == '0')) return false;
    s = str_from(s, n);
    if (!adm_take(&s, S("}"))) return false;
    adm_skip_space(&s);
    return s.n == 0;
}

/* POST {"generation": N} pins that generation, DELETE unpins. */
static void adm_answer_rollback(struct adm_conn *c)
{
    const struct http_msg *m = &c->head.msg;
    struct str_builder b = str_growing();
    unsigned status = adm_check_token(c->adm, adm_find_authorization(m, c->in));
    struct log_err err = {""};
    uint64_t generation;
    int rc;

    if (status == 401) {
        adm_reply_text(c, 401, "WWW-Authenticate: Bearer\r\n", "");
        return;
    }
    if (status == 403) {
        adm_reply_text(c, 403, NULL, "admin-token-file is not set");
        return;
    }
    if (m->method == HTTP_DELETE) {
        ctl_unpin();
        str_put(&b, S("{\"pinned\":null}\n"));
        adm_reply(c, (struct adm_answer){.status = 200, .type = "application/json"}, &b);
        return;
    }
    if (!adm_read_generation(c->content, &generation)) {
        adm_reply_text(c, 400, NULL, "expected {\"generation\": N}");
        return;
    }
    rc = ctl_rollback(generation, &err);
    if (rc < 0) {
        adm_reply_text(c, rc == -ENOENT ? 404 : 409, NULL, err.text);
        return;
    }
    str_putf(&b, "{\"pinned\":%llu}\n", (unsigned long long)generation);
    adm_reply(c, (struct adm_answer){.status = 200, .type = "application/json"}, &b);
}

/* ---- upstreams: every worker says what it knows ---- */

/* On a worker's thread: adds what its pools know. */
static void adm_on_upstreams(struct wrk *w, void *arg)
{
    struct adm_job *job = arg;

    for (uint32_t i = 0; i < job->nendpoints; i++) {
        struct adm_endpoint *e = &job->endpoints[i];
        const struct up_pool *p = w->up.pools[e->hash % UP_TABLE];

        while (p && (p->hash != e->hash || !str_addr_eq(&p->addr, &e->addr))) p = p->next;
        if (!p) continue;
        atomic_fetch_add_explicit(&e->active, p->active_n, memory_order_relaxed); /* read in adm_on_upstreams_done */
        atomic_fetch_add_explicit(&e->idle, p->idle_n, memory_order_relaxed); /* the same */
        atomic_fetch_add_explicit(&e->requests, p->requests, memory_order_relaxed); /* the same */
        atomic_fetch_add_explicit(&e->failures, p->failures, memory_order_relaxed); /* the same */
    }
}

static void adm_render_endpoint(struct str_builder *b, struct adm_endpoint *e)
{
    str_put(b, S("{\"address\":\""));
    str_put_addr(b, &e->addr);
    if (e->health) str_put_z(b, atomic_load_explicit(&e->health->down, memory_order_relaxed) ? "\",\"check\":\"down" : "\",\"check\":\"up"); /* a report */
    str_putf(b, "\",\"weight\":%u,\"active\":%llu,\"idle\":%llu,\"requests\":%llu,\"failures\":%llu}", e->weight,
             (unsigned long long)atomic_load_explicit(&e->active, memory_order_relaxed), /* adm_on_upstreams */
             (unsigned long long)atomic_load_explicit(&e->idle, memory_order_relaxed), /* the same */
             (unsigned long long)atomic_load_explicit(&e->requests, memory_order_relaxed), /* the same */
             (unsigned long long)atomic_load_explicit(&e->failures, memory_order_relaxed)); /* the same */
}

static void adm_render_upstreams(struct str_builder *b, const struct adm_job *job)
{
    str_put(b, S("{\"backends\":["));
    for (uint32_t i = 0; i < job->nbackends; i++) {
        const struct adm_backend *k = &job->backends[i];

        str_put_z(b, i ? ",\n{\"name\":" : "\n{\"name\":");
        str_put_quoted(b, k->name);
        str_put(b, S(",\"endpoints\":["));
        for (uint32_t j = 0; j < k->n; j++) {
            if (j) str_put_c(b, ',');
            adm_render_endpoint(b, &job->endpoints[k->from + j]);
        }
        str_put(b, S("]}"));
    }
    str_put(b, S("\n]}\n"));
}

static void adm_on_upstreams_done(void *arg)
{
    struct adm_job *job = arg;
    struct adm_conn *c = job->conn;
    struct str_builder b = str_growing();

    if (c) {
        c->job = NULL;
        adm_render_upstreams(&b, job);
        adm_reply(c, (struct adm_answer){.status = 200, .type = "application/json"}, &b);
    }
    mem_arena_free(&job->arena);
    mem_free(job);
}

static int adm_backend_cmp(const void *a, const void *b)
{
    const struct adm_backend *x = a, *y = b;

    return str_cmp(x->name, y->name);
}

/* Copies names and addresses out of the live snapshot, which may be replaced before the workers have answered. */
static void adm_collect(struct adm_job *job)
{
    const struct rt_snapshot *s = rt_live();
    const struct rt_backends *all = s ? s->backends : NULL;

    for (uint32_t i = 0; all && i < all->n; i++) {
        job->nbackends += all->at[i] != NULL;
        job->nendpoints += all->at[i] ? all->at[i]->n : 0;
    }
    job->backends = mem_arena_zero(&job->arena, job->nbackends * sizeof *job->backends);
    job->endpoints = mem_arena_zero(&job->arena, job->nendpoints * sizeof *job->endpoints);
    job->nbackends = job->nendpoints = 0;
    for (uint32_t i = 0; all && i < all->n; i++) {
        const struct rt_backend *from = all->at[i];

        if (!from) continue;
        job->backends[job->nbackends++] = (struct adm_backend){str_dup(&job->arena, from->name), job->nendpoints, from->n};
        for (uint32_t j = 0; j < from->n; j++) {
            struct adm_endpoint *e = &job->endpoints[job->nendpoints++];

            e->addr = from->ep[j].addr;
            e->hash = from->ep[j].hash;
            e->weight = from->ep[j].weight;
            e->health = from->check_ms ? up_health_find(up_health_key(from->hash, e->hash)) : NULL;
        }
    }
    if (job->nbackends) qsort(job->backends, job->nbackends, sizeof *job->backends, adm_backend_cmp);
}

static void adm_answer_upstreams(struct adm_conn *c)
{
    struct adm_job *job = mem_need(sizeof *job);

    adm_collect(job);
    job->conn = c;
    c->job = job;
    c->state = ADM_WAIT_WORKERS;
    adm_deadline(c, ADM_TIMEOUT_MS);
    wrk_ask(adm_on_upstreams, adm_on_upstreams_done, job);
}

/* sorted by path */
static const struct adm_path {
    const char *path;
    const char *allow;                                   /* the Allow field of a 405 */
    bool writes;                                         /* POST and DELETE instead of GET and HEAD */
    void (*answer)(struct adm_conn *c);
} adm_paths[] = {
    {"/", "Allow: GET, HEAD\r\n", false, adm_answer_page},
    {"/admin/generations", "Allow: GET, HEAD\r\n", false, adm_answer_generations},
    {"/admin/rollback", "Allow: DELETE, POST\r\n", true, adm_answer_rollback},
    {"/admin/routes", "Allow: GET, HEAD\r\n", false, adm_answer_routes},
    {"/admin/upstreams", "Allow: GET, HEAD\r\n", false, adm_answer_upstreams},
    {"/healthz", "Allow: GET, HEAD\r\n", false, adm_answer_healthz},
    {"/metrics", "Allow: GET, HEAD\r\n", false, adm_answer_metrics},
    {"/readyz", "Allow: GET, HEAD\r\n", false, adm_answer_readyz},
};

/* The row for the path, or NULL. */
static const struct adm_path *adm_find_path(struct str path)
{
    for (size_t i = 0; i < RJ_COUNT(adm_paths); i++)
        if (str_eq(path, str_z(adm_paths[i].path))) return &adm_paths[i];
    return NULL;
}

/* The request is complete. */
static void adm_answer(struct adm_conn *c)
{
    const struct http_msg *m = &c->head.msg;
    struct str path = str_of(c->in + m->path_at, m->path_n);
    const struct adm_path *row = adm_find_path(m->path_n ? path : S("/"));
    bool reads = m->method == HTTP_GET || m->method == HTTP_HEAD, writes = m->method == HTTP_POST || m->method == HTTP_DELETE;

    c->head_only = m->method == HTTP_HEAD;
    c->keep_alive = m->keep_alive && !c->adm->closing;
    if (c->adm->answer) c->adm->answer(c);
    else if (!row) adm_reply_text(c, 404, NULL, "");
    else if (row->writes ? !writes : !reads) adm_reply_text(c, 405, row->allow, "");
    else row->answer(c);
}

/* ---- bytes in, bytes out ---- */

/* Reads the next request from what has come so far. */
static void adm_on_bytes(struct adm_conn *c)
{
    static const struct h1_limits limits = {.line_bytes = 4096, .head_bytes = ADM_HEAD_MAX, .fields = 100, .underscores = true};
    const struct http_msg *m = &c->head.msg;
    long n;

    if (c->state != ADM_WAIT_HEAD && c->state != ADM_WAIT_BODY) return;
    if (c->state == ADM_WAIT_HEAD) {
        if (!c->in_n) return;
        n = h1_request_feed(&c->head, c->in, c->in_n, &limits);
        if (n == RJ_MORE) return;
        if (n < 0) {
            adm_refuse(c, (unsigned)-n, c->head.why ? c->head.why : "");
            return;
        }
        c->content = str_of(c->in + n, 0);
        c->state = ADM_WAIT_BODY;
        if (m->framing == HTTP_BODY_CHUNKED) {
            adm_refuse(c, 411, "");
            return;
        }
        if (m->framing == HTTP_BODY_LENGTH && m->length > ADM_BODY_MAX) {
            adm_refuse(c, 413, "");
            return;
        }
        if (m->framing == HTTP_BODY_LENGTH && m->expect && m->length) {
            adm_refuse(c, 417, "");
            return;
        }
        c->content.n = m->framing == HTTP_BODY_LENGTH ? (size_t)m->length : 0;
    }
    if ((size_t)(c->in + c->in_n - c->content.p) < c->content.n) return;
    adm_answer(c);
}

/* The answer is out: the next request, whose bytes may be here already. */
static void adm_on_sent(struct adm_conn *c)
{
    uint32_t used = (uint32_t)(c->content.p + c->content.n - c->in);

    str_free(&c->out);
    if (!c->keep_alive && c->receiving) {
        c->state = ADM_WAIT_END;
        io_shutdown(&c->sock);
        adm_deadline(c, ADM_LINGER_MS);
        return;
    }
    if (!c->keep_alive) {
        adm_conn_close(c);
        return;
    }
    c->in_n -= used;
    memmove(c->in, c->in + used, c->in_n);
    h1_head_init(&c->head, true, 0);
    c->state = ADM_WAIT_HEAD;
    adm_deadline(c, ADM_IDLE_MS);
    adm_on_bytes(c);
    if (!c->receiving && c->state <= ADM_WAIT_BODY) adm_conn_close(c); /* no more is asked */
}

static void adm_on_received(struct adm_conn *c, struct str part)
{
    bool over = false;

    if (!c->keep_alive && c->state >= ADM_WAIT_WORKERS) return; /* nothing more is answered here */
    if (part.n > sizeof c->in - c->in_n) {
        over = true;
        part.n = sizeof c->in - c->in_n;                 /* enough for the parser to refuse a head that is too large */
    }
    if (c->state == ADM_WAIT_HEAD && !c->in_n) adm_deadline(c, ADM_TIMEOUT_MS);
    memcpy(c->in + c->in_n, part.p, part.n);
    c->in_n += (uint32_t)part.n;
    adm_on_bytes(c);
    if (over && c->keep_alive) adm_conn_close(c);        /* no client of ours sends so much ahead */
}

static void adm_on_event(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct adm_conn *c = RJ_CONTAINER(s, struct adm_conn, sock);

    if (ev == IO_CLOSED) {
        str_free(&c->out);
        mem_free(c);
        return;
    }
    if (c->state == ADM_WAIT_CLOSED) return;
    if (ev == IO_SENT && res < 0) {
        adm_conn_close(c);
    } else if (ev == IO_SENT) {
        io_outq_sent(&c->outq, res);
        adm_deadline(c, ADM_TIMEOUT_MS);
        if (c->outq.bytes) io_send(c->adm->loop, s, &c->outq);
        else adm_on_sent(c);
    } else if (ev == IO_RECV && res > 0) {
        adm_on_received(c, str_of(buf->data, (size_t)res));
    } else if (ev == IO_RECV) {                          /* half a close: what was asked for is still answered */
        c->receiving = false;
        if (res < 0 || (c->state != ADM_WAIT_WORKERS && c->state != ADM_WAIT_SENT)) adm_conn_close(c);
    }
}

/* Makes room for one more: the connection that has been idle longest goes. */
static bool adm_make_room(struct adm *adm)
{
    for (struct map_link *l = adm->conns.next; l != &adm->conns; l = l->next) {
        struct adm_conn *c = RJ_CONTAINER(l, struct adm_conn, link);

        if (c->state != ADM_WAIT_HEAD || c->in_n) continue;
        adm_conn_close(c);
        return true;
    }
    return false;
}

static void adm_on_accept(struct io_sock *s, enum io_event ev, int res, struct mem_buf *buf)
{
    struct adm_listener *l = RJ_CONTAINER(s, struct adm_listener, sock);
    struct adm *adm = l->adm;
    struct adm_conn *c;

    (void)buf;
    if (ev != IO_ACCEPT || res < 0) return;
    if (adm->closing || (adm->nconns >= adm->conns_max && !adm_make_room(adm))) {
        sys_close(res);
        return;
    }
    c = mem_need(sizeof *c);
    c->adm = adm;
    c->out = str_growing();
    c->timer.fire = adm_on_late;
    h1_head_init(&c->head, true, 0);
    io_sock_init(&c->sock, adm_on_event);
    if (io_adopt(adm->loop, &c->sock, res) < 0) {
        mem_free(c);
        return;
    }
    map_list_add(&adm->conns, &c->link);
    adm->nconns++;
    c->receiving = true;
    io_recv_start(adm->loop, &c->sock);
    adm_deadline(c, ADM_TIMEOUT_MS);
}

/* ---- the interface ---- */

/* Prepares the admin listener; it has none yet. token_file is the option admin-token-file, NUL-terminated, lent. */
static void adm_init(struct adm *adm, struct io_loop *loop, struct str token_file)
{
    *adm = (struct adm){.loop = loop, .name = "admin", .conns_max = ADM_CONNS_MAX, .token_file = token_file, .start_wall_ms = clk_wall_ms()};
    map_list_init(&adm->conns);
}

static int adm_listen_fd(struct adm *adm, const struct cfg_listener *from, struct adm_listener *l)
{
    int fd = wrk_inherit(from), rc;

    if (fd >= 0) return io_adopt(adm->loop, &l->sock, fd);
    if (from->addr.family != AF_UNIX) return io_listen(adm->loop, &l->sock, &from->addr, false);
    fd = wrk_bind(from, true);
    if (fd < 0) return fd;
    if ((rc = sys_listen(fd, WRK_BACKLOG)) < 0) {
        sys_close(fd);
        return rc;
    }
    sys_fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
    return io_adopt(adm->loop, &l->sock, fd);
}

/* Listens there too. Returns 0 or -errno. */
static int adm_listen(struct adm *adm, const struct cfg_listener *from)
{
    struct adm_listener *l = &adm->listener[adm->nlisteners];
    int rc;

    if (adm->nlisteners == ADM_LISTENERS_MAX) return -ENOSPC;
    l->adm = adm;
    io_sock_init(&l->sock, adm_on_accept);
    rc = adm_listen_fd(adm, from, l);
    if (rc < 0) return rc;
    adm->nlisteners++;
    wrk_offer(l->sock.fd);
    if (!wrk_was_open(from)) io_accept_start(adm->loop, &l->sock); /* else the process before answers: it is ready */
    return 0;
}

/* This process takes over from the one before. */
static void adm_start_listening(struct adm *adm)
{
    for (uint32_t i = 0; i < adm->nlisteners; i++) io_accept_start(adm->loop, &adm->listener[i].sock);
}

/* Another process answers new connections from here on. */
static void adm_stop_listening(struct adm *adm)
{
    for (uint32_t i = 0; i < adm->nlisteners; i++) io_close(adm->loop, &adm->listener[i].sock);
    adm->nlisteners = 0;
}

/* Closes listeners and connections; their memory goes with the turns of the loop that follow. */
static void adm_close(struct adm *adm)
{
    adm->closing = true;
    adm_stop_listening(adm);
    while (!map_list_empty(&adm->conns)) adm_conn_close(RJ_CONTAINER(adm->conns.next, struct adm_conn, link));
}

/* ============================================================================
 * cli_ : Commands, main, the public interface
 *
 * Owns:    struct rj, struct ramjet; the process: signals, limits, exit status.
 * Calls:   sys_ mem_ str_ log_ mtr_ io_ ep_ ur_ http_ cfg_ obj_ rt_ rc_ px_ wrk_ ctl_ adm_
 * Threads: the main thread, which becomes the control thread of run and demo.
 * Rules:   1. Exit status: 0 done, 1 failed while running, 2 usage or configuration.
 *          2. Results go to stdout, everything else to stderr.
 *          3. The public interface changes nothing of the process it lives in: no handler, no limit, no exit.
 * ========================================================================== */

/* ---- text ---- */

/* Writes all of it to the descriptor; a reader that has gone away is no reason to complain. */
static void cli_write(int fd, struct str s)
{
    while (s.n) {
        long n = sys_write(fd, s.p, s.n);

        if (n == -EINTR) continue;
        if (n == -EAGAIN) {
            struct pollfd wait = {.fd = fd, .events = POLLOUT};

            (void)poll(&wait, 1, -1);
            continue;
        }
        if (n <= 0) return;
        s = str_from(s, (size_t)n);
    }
}

static void cli_print(struct str_builder *b)
{
    cli_write(1, str_built(b));
    str_free(b);
}

/* One line on stderr. */
RJ_PRINTF(1, 2) static void cli_complain(const char *fmt, ...)
{
    struct str_builder b = str_growing();
    va_list ap;

    str_put(&b, S("ramjet: "));
    va_start(ap, fmt);
    str_vputf(&b, fmt, ap);
    va_end(ap);
    str_put_c(&b, '\n');
    cli_write(2, str_built(&b));
    str_free(&b);
}

/* How many letters have to be changed, added or left out to make b of a; at most CLI_WORD_MAX of each are looked at. */
enum { CLI_WORD_MAX = 40 };
static unsigned cli_distance(struct str a, struct str b)
{
    unsigned row[CLI_WORD_MAX + 1], before, above;

    if (a.n > CLI_WORD_MAX) a.n = CLI_WORD_MAX;
    if (b.n > CLI_WORD_MAX) b.n = CLI_WORD_MAX;
    for (unsigned j = 0; j <= b.n; j++) row[j] = j;
    for (unsigned i = 1; i <= a.n; i++) {
        before = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= b.n; j++) {
            unsigned change = before + (a.p[i - 1] != b.p[j - 1]), least;

            above = row[j];
            least = above < row[j - 1] ? above : row[j - 1];
            before = above;
            row[j] = least + 1 < change ? least + 1 : change;
        }
    }
    return row[b.n];
}

/* The most similar of the n names, or NULL when none is near. */
static const char *cli_suggest(struct str word, const char *const *names, size_t n)
{
    unsigned best = (unsigned)word.n / 3 + 2;
    const char *found = NULL;

    for (size_t i = 0; i < n; i++) {
        unsigned d = cli_distance(word, str_z(names[i]));

        if (d >= best) continue;
        best = d;
        found = names[i];
    }
    return found;
}

static const struct cli_command_row {
    const char *name, *arguments, *help;
} cli_commands[CLI_COMMAND_COUNT] = {
#define X(id, name, arguments, help) {name, arguments, help},
    CLI_COMMANDS(X)
#undef X
};

/* The command of that name, or -1. */
static int cli_find_command(struct str name)
{
    for (int i = 0; i < CLI_COMMAND_COUNT; i++)
        if (str_eq(name, str_z(cli_commands[i].name))) return i;
    return -1;
}

static int cli_unknown_command(struct str name)
{
    const char *names[CLI_COMMAND_COUNT], *near;

    for (int i = 0; i < CLI_COMMAND_COUNT; i++) names[i] = cli_commands[i].name;
    near = cli_suggest(name, names, RJ_COUNT(names));
    cli_complain("unknown command \"" STR_FMT "\"%s%s%s; `ramjet --help` lists the commands", STR_ARG(name), near ? ", did you mean \"" : "",
                 near ? near : "", near ? "\"?" : "");
    return CLI_USAGE;
}

/* Says for every unknown flag which one may have been meant. */
static void cli_suggest_flags(int argc, char *const *argv)
{
    static const char *const names[] = {
#define X(name, field, type, choices, fallback, where, help) name,
        CFG_OPTIONS(X)
#undef X
    };

    for (int i = 0; i < argc; i++) {
        struct str flag = str_z(argv[i]);
        const char *near;

        if (str_eq(flag, S("--"))) return;
        if (!str_starts(flag, S("--"))) continue;
        flag = str_from(flag, 2);
        flag.n = str_find(flag, '=');
        if (cfg_option_find(flag) >= 0) continue;
        near = cli_suggest(flag, names, RJ_COUNT(names));
        if (near) cli_complain("did you mean --%s instead of --" STR_FMT "?", near, STR_ARG(flag));
    }
}

/* ---- help, version, reference ---- */

static void cli_render_help(struct str_builder *b, int command)
{
    if (command < 0) {
        str_put(b, S("Ramjet " RJ_VERSION ": ingress controller and edge proxy\n\nUsage: ramjet [COMMAND] [ARGUMENTS]\n\nCommands:\n"));
        for (int i = 0; i < CLI_COMMAND_COUNT; i++) {
            int n = (int)strlen(cli_commands[i].name) + 1;

            str_putf(b, "  %s %-*s %s\n", cli_commands[i].name, 26 - n, cli_commands[i].arguments, cli_commands[i].help);
        }
        str_put(b, S("\n`ramjet COMMAND --help` says more. Without a command: run.\n"
                     "Exit status: 0 done, 1 failed while running, 2 usage or configuration.\n"));
        return;
    }
    str_putf(b, "Usage: ramjet %s %s\n\n%s.\n", cli_commands[command].name, cli_commands[command].arguments, cli_commands[command].help);
    switch ((enum cli_command)command) {
    case CLI_CHECK:
        str_put(b, S("\nFiles ending in .ini, and others with a [section], are read as INI; the rest as manifests, which are compiled together.\n"
                     "A FILE - is stdin. Without one, --config or RAMJET_CONFIG names it. Options are accepted as in `run`.\n"
                     "Prints the route table to stdout, errors and warnings to stderr; exit status 2 when anything is refused.\n"));
        break;
    case CLI_DEMO:
        str_put(b, S("\nEverything listens on 127.0.0.1. Ctrl-C ends it. Options are accepted as in `run`.\n"));
        break;
    case CLI_REFERENCE:
        str_put(b, S("\nTables:\n"));
#define X(name, render, help) str_putf(b, "  %-10s %s\n", name, help);
        CLI_TABLES(X)
#undef X
        break;
    case CLI_RUN:
        str_put(b, S("\nAn option is given as --NAME VALUE, as RAMJET_NAME=VALUE in the environment (letters large, - as _), or as\n"
                     "NAME = VALUE under [ramjet] in the file; a flag beats the environment, the environment beats the file.\n"
                     "--NAME alone is true for what is true or false.\n\nOptions, with what they take (when that is limited) and [the default]:\n"));
        cfg_render_help(b);
        str_put(b, S("\nSIGHUP or a changed file reloads; SIGTERM and SIGINT drain and end; SIGUSR1 opens the access log again;\n"
                     "SIGUSR2 starts the program anew, which takes the listeners over, and drains this one.\n"));
        break;
    case CLI_VERSION:
    case CLI_COMMAND_COUNT:
        break;
    }
}

static int cli_help(int command)
{
    struct str_builder b = str_growing();

    cli_render_help(&b, command);
    cli_print(&b);
    return CLI_DONE;
}

static int cli_version(int argc, char *const *argv)
{
    struct str_builder b = str_growing();
    bool licenses = argc > 0 && strcmp(argv[0], "--licenses") == 0;

    if (argc > (licenses ? 1 : 0)) {
        cli_complain("version: unknown argument \"%s\"; --licenses is known", argv[licenses]);
        return CLI_USAGE;
    }
    str_put(&b, S("ramjet " RJ_VERSION "\n"));
    if (licenses) str_put(&b, S("\n" RJ_LICENSE_TEXT));
    cli_print(&b);
    return CLI_DONE;
}

static void cli_render_errors(struct str_builder *b)
{
    str_put(b, S("| status | error in the access log | meaning |\n| --- | --- | --- |\n"));
#define X(id, status, text, help) str_put(b, S("| " #status " | " text " | " help " |\n"));
    PX_ERRORS(X)
#undef X
}

/* Families that are not in a table of mtr_: name, kind, labels, help.  sorted by name */
#define CLI_METRICS(X)                                                                                                          \
    X("process_cpu_seconds_total",       "counter",   "",               "User and system time of all threads")                  \
    X("process_open_fds",                "gauge",     "",               "Open descriptors")                                     \
    X("process_resident_memory_bytes",   "gauge",     "",               "Resident memory")                                      \
    X("process_start_time_seconds",      "gauge",     "",               "Start, in seconds since the epoch")                    \
    X("ramjet_build_info",               "gauge",     "version, engine", "1, with the version and the engine as labels")        \
    X("ramjet_compiles_total",           "counter",   "",               "Compiles of changed objects, also those that gave the same routes") \
    X("ramjet_config_ok",                "gauge",     "",               "1: the last configuration that was read is served")    \
    X("ramjet_generation",               "gauge",     "",               "Generation of the route table that is served")         \
    X("ramjet_kube_events_total",        "counter",   "kind",           "Watch events by kind of object")                       \
    X("ramjet_kube_relists_total",       "counter",   "kind",           "Lists after the first, by kind of object")             \
    X("ramjet_kube_watch_up",            "gauge",     "kind",           "1: the watch of that kind is running")                 \
    X("ramjet_log_dropped_total",        "counter",   "",               "Log records dropped because nobody took them in time") \
    X("ramjet_publish_timestamp_seconds", "gauge",    "",               "When the route table was published last")              \
    X("ramjet_request_duration_seconds", "histogram", "route",          "Time from the first byte of a request to the last of its answer") \
    X("ramjet_requests_total",           "counter",   "route, code",    "Requests answered, by route and status class")         \
    X("ramjet_upstream_checks_total",    "counter",   "result",         "Active health checks by result")                       \
    X("ramjet_worker_connections",       "gauge",     "worker",         "Open client connections by worker")

/* The names of the labels of `a="x",b="y"`. */
static void cli_put_label_names(struct str_builder *b, const char *labels)
{
    struct str rest = str_z(labels), item;
    bool first = true;

    while (labels[0] && str_cut(&rest, ',', &item)) {
        if (!first) str_put(b, S(", "));
        str_put(b, str_of(item.p, str_find(item, '=')));
        first = false;
    }
}

struct cli_metric {
    const char *name, *kind, *labels, *help;
};

static int cli_metric_cmp(const void *a, const void *b) { return strcmp(((const struct cli_metric *)a)->name, ((const struct cli_metric *)b)->name); }

static void cli_render_metrics(struct str_builder *b)
{
    struct cli_metric rows[] = {
#define X(name, kind, labels, help) {name, kind, labels, help},
        CLI_METRICS(X)
#undef X
#define X(id, name, labels, help) {name, "counter", labels, help},
        MTR_COUNTERS(X)
#undef X
#define X(id, name, labels, help) {name, "gauge", labels, help},
        MTR_GAUGES(X)
#undef X
    };

    qsort(rows, RJ_COUNT(rows), sizeof *rows, cli_metric_cmp);
    str_put(b, S("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"));
    for (size_t i = 0; i < RJ_COUNT(rows); i++) {
        if (!rows[i].help[0]) continue;                  /* another row of the same family has it */
        str_putf(b, "| %s | %s | ", rows[i].name, rows[i].kind);
        if (strchr(rows[i].labels, '=')) cli_put_label_names(b, rows[i].labels);
        else str_put_z(b, rows[i].labels);
        str_putf(b, " | %s |\n", rows[i].help);
    }
}

static const struct cli_table {
    const char *name;
    void (*render)(struct str_builder *b);
} cli_tables[] = {
#define X(name, render, help) {name, render},
    CLI_TABLES(X)
#undef X
};

static int cli_reference(int argc, char *const *argv)
{
    const char *names[RJ_COUNT(cli_tables)], *near;

    for (size_t i = 0; i < RJ_COUNT(cli_tables); i++) names[i] = cli_tables[i].name;
#define X(name, render, help) " " name
    if (argc != 1) {
        cli_complain("reference: name one table, one of" CLI_TABLES(X));
        return CLI_USAGE;
    }
    for (size_t i = 0; i < RJ_COUNT(cli_tables); i++) {
        struct str_builder b = str_growing();

        if (strcmp(argv[0], cli_tables[i].name) != 0) continue;
        cli_tables[i].render(&b);
        cli_print(&b);
        return CLI_DONE;
    }
    near = cli_suggest(str_z(argv[0]), names, RJ_COUNT(names));
    cli_complain("reference: unknown table \"%s\"%s%s%s; expected one of" CLI_TABLES(X), argv[0], near ? ", did you mean \"" : "", near ? near : "",
                 near ? "\"?" : "");
#undef X
    return CLI_USAGE;
}

/* ---- the process ---- */

/* Reads at most n - 1 bytes of a small file; empty when it cannot be read. */
static struct str cli_read_small(const char *path, char *out, size_t n)
{
    int fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);
    long got = fd < 0 ? 0 : sys_read(fd, out, n - 1);

    if (fd >= 0) sys_close(fd);
    return str_of(out, got > 0 ? (size_t)got : 0);
}

/* The path of this process's group from the text of /proc/self/cgroup: version 2 (controller empty) or the named controller of 1. */
static struct str cli_cgroup_path(struct str text, struct str controller)
{
    struct str line, id, names, name;

    while (str_cut(&text, '\n', &line)) {
        if (!str_cut(&line, ':', &id) || !str_cut(&line, ':', &names)) continue;
        if (!names.n && !controller.n) return line;
        while (controller.n && str_cut(&names, ',', &name))
            if (str_eq(name, controller)) return line;
    }
    return (struct str){0};
}

/* `QUOTA PERIOD` or `max PERIOD` (version 2) in thousandths of a CPU; 0: no quota. */
static uint64_t cli_quota(struct str text)
{
    struct str quota, period;
    uint64_t q, p;

    if (!str_cut(&text, ' ', &quota) || !str_cut(&text, '\n', &period)) return 0;
    if (!str_to_u64(quota, &q) || !str_to_u64(period, &p) || !p || q > UINT64_MAX / 1000) return 0;
    return q * 1000 / p;
}

/* The smallest value of read(path) over the group and its parents, whose limits hold too; 0 when none has one. */
static uint64_t cli_cgroup_least(const char *root, struct str path, uint64_t (*read)(const char *folder))
{
    char folder[512];
    uint64_t least = 0;

    for (;;) {
        uint64_t v;

        while (path.n && path.p[path.n - 1] == '/') path.n--;
        snprintf(folder, sizeof folder, "%s" STR_FMT, root, STR_ARG(path));
        v = read(folder);
        if (v && (!least || v < least)) least = v;
        if (!path.n) return least;
        while (path.n && path.p[path.n - 1] != '/') path.n--;
    }
}

static uint64_t cli_read_quota(const char *folder)
{
    char path[600], text[128], text2[64];
    struct str quota, period;

    snprintf(path, sizeof path, "%s/cpu.max", folder);
    quota = cli_read_small(path, text, sizeof text);
    if (quota.n) return cli_quota(quota);
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    quota = cli_read_small(path, text, 64);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    period = cli_read_small(path, text2, sizeof text2);
    if (!quota.n || !period.n) return 0;
    text[str_find(quota, '\n')] = ' ';
    memcpy(text + str_find(quota, ' ') + 1, text2, period.n);
    return cli_quota(str_of(text, str_find(quota, ' ') + 1 + period.n));
}

static uint64_t cli_read_memory(const char *folder)
{
    static const char *const names[] = {"memory.max", "memory.limit_in_bytes"};
    char path[600], text[64];

    for (size_t i = 0; i < RJ_COUNT(names); i++) {
        struct str s;
        uint64_t v;

        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        s = cli_read_small(path, text, sizeof text);
        s.n = str_find(s, '\n');
        if (str_to_u64(s, &v) && v < UINT64_MAX >> 2) return v; /* version 1 says "none" by a number near 2^63 */
    }
    return 0;
}

/* What the control group allows: read is cli_read_quota or cli_read_memory. 0: no limit. */
static uint64_t cli_cgroup(struct str controller, uint64_t (*read)(const char *folder))
{
    char text[4096], root[64];
    struct str all = cli_read_small("/proc/self/cgroup", text, sizeof text), path = cli_cgroup_path(all, (struct str){0});
    uint64_t v = path.p ? cli_cgroup_least("/sys/fs/cgroup", path, read) : 0;

    if (v) return v;
    path = cli_cgroup_path(all, controller);
    snprintf(root, sizeof root, "/sys/fs/cgroup/" STR_FMT, STR_ARG(controller));
    return path.p ? cli_cgroup_least(root, path, read) : 0;
}

/* CPUs that the affinity mask and the quota leave: a part of one counts as one. */
static uint32_t cli_count_cpus(void)
{
    uint64_t mask[128] = {0}, quota = cli_cgroup(S("cpu"), cli_read_quota);
    long n = SYS_CALL(SYS_sched_getaffinity, 0, sizeof mask, mask);
    uint32_t cpus = 0;

    for (long i = 0; i < n / 8; i++) cpus += (uint32_t)__builtin_popcountll(mask[i]);
    if (quota && (quota + 999) / 1000 < cpus) cpus = (uint32_t)((quota + 999) / 1000);
    return cpus ? cpus : 1;
}

/* As many descriptors as the administrator allows: every client costs two. */
static void cli_raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* Clients are taken up to three quarters of the descriptors: the rest is for their upstreams and pipes, but for some that keep the admin
 * listener, the configuration and the API server within reach. */
static void cli_share_files(void)
{
    struct rlimit limit;
    int n;

    rj.fd_limit = rj.fd_max = INT_MAX;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > INT_MAX) return;
    n = (int)limit.rlim_cur;
    rj.fd_limit = n - n / 4;
    rj.fd_max = n - (n / 16 < 64 ? n / 16 : 64);
}

/* A crash: one line that says what, where and which version; then the signal takes its course. */
static void cli_on_crash(int number, siginfo_t *info, void *context)
{
    const ucontext_t *uc = context;
    uint8_t line[256];
    struct str_builder b = str_fixed(line, sizeof line);
    const char *name = number == SIGSEGV ? "SIGSEGV" : number == SIGBUS ? "SIGBUS" : number == SIGFPE ? "SIGFPE" : "SIGILL";
#if defined(__x86_64__)
    uintptr_t pc = (uintptr_t)uc->uc_mcontext.gregs[REG_RIP];
#else
    uintptr_t pc = (uintptr_t)uc->uc_mcontext.pc;
#endif

    str_put(&b, S("ramjet " RJ_VERSION ": crashed: "));
    str_put_z(&b, name);
    str_put(&b, S(" at address 0x"));
    str_put_hex(&b, (uintptr_t)info->si_addr, 1);
    str_put(&b, S(", instruction 0x"));
    str_put_hex(&b, pc, 1);
    str_put(&b, rj_me && rj_me->index >= 0 ? S(", worker ") : S(", control thread"));
    if (rj_me && rj_me->index >= 0) str_put_u64(&b, (uint64_t)rj_me->index);
    str_put_c(&b, '\n');
    sys_write(2, b.p, b.n);
    (void)SYS_CALL(SYS_tgkill, getpid(), (int)SYS_CALL(SYS_gettid, 0), number); /* also when somebody sent it: it is pending until we return */
}

/* The signals that ctl_ reads. */
static const int cli_signals[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/* What only a process of our own may do, before any thread starts: SIGPIPE becomes an error code, the signals that ctl_ reads are
 * blocked for all threads, a crash says what happened. */
static void cli_set_process(void)
{
    static const int crashes[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV};
    struct sigaction sa = {.sa_sigaction = cli_on_crash, .sa_flags = (int)(SA_SIGINFO | SA_RESETHAND)};
    sigset_t set;

    for (size_t i = 0; i < RJ_COUNT(crashes); i++) sigaction(crashes[i], &sa, NULL);
    sigemptyset(&set);
    for (size_t i = 0; i < RJ_COUNT(cli_signals); i++) sigaddset(&set, cli_signals[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    cli_raise_files();
}

/* ---- check ---- */

enum { CLI_FILE_MAX = 512 << 20 };

/* The whole file, `-` is stdin. Returns 0 or -errno. */
static int cli_read_all(const char *path, struct str_builder *out)
{
    int fd = strcmp(path, "-") == 0 ? 0 : sys_open(path, O_RDONLY | O_CLOEXEC, 0);
    long n;

    if (fd < 0) return fd;
    for (;;) {
        uint8_t *p = str_room(out, 65536);

        n = p ? sys_read(fd, p, 65536) : -ENOMEM;
        if (n == -EINTR) continue;
        if (n <= 0) break;
        out->n += (size_t)n;
        if (out->n > CLI_FILE_MAX) n = -EFBIG;
        if (n < 0) break;
    }
    if (fd) sys_close(fd);
    return (int)n;
}

/* Whether the file is INI: by its name, else by a first line in brackets. */
static bool cli_is_ini(const char *path, struct str text)
{
    struct str name = str_z(path), line;

    if (str_ends(name, S(".ini"))) return true;
    if (str_ends(name, S(".yaml")) || str_ends(name, S(".yml")) || str_ends(name, S(".json"))) return false;
    while (str_cut(&text, '\n', &line)) {
        if (line.n && line.p[line.n - 1] == '\r') line.n--;
        line = str_trim(line);
        if (!line.n || line.p[0] == '#' || line.p[0] == ';') continue;
        return line.n > 2 && line.p[0] == '[' && str_lower(line.p[1]) >= 'a' && str_lower(line.p[1]) <= 'z' && line.p[line.n - 1] == ']';
    }
    return false;
}

/* One table that is being checked. */
struct cli_check {
    const char *file;                                    /* that is being read */
    struct obj_store store;
    struct rc rc;
    uint32_t refused;
};

/* A warning of the compiler; what something loses by it is refused. */
static void cli_check_warn(void *arg, const char *text)
{
    struct cli_check *c = arg;
    bool refused = str_ends(str_z(text), S("not used"));

    c->refused += refused;
    cli_complain("%s: %s", refused ? "error" : "warning", text);
}

static int cli_check_object(void *arg, const struct obj_found *found)
{
    struct cli_check *c = arg;

    if (found->o) {
        obj_store_put(&c->store, found->o);
    } else if (found->error) {
        cli_complain("error: %s:%u: " STR_FMT "%s" STR_FMT "%s%s", c->file, found->line, STR_ARG(found->kind), found->kind.n && found->name.n ? " " : "",
                     STR_ARG(found->name), found->kind.n || found->name.n ? ": " : "", found->why);
        c->refused++;
    }
    return 0;
}

static void cli_check_open(struct cli_check *c, const struct cfg *cfg)
{
    *c = (struct cli_check){0};
    rc_init(&c->rc, &c->store, cfg);
    c->rc.warn = cli_check_warn;
    c->rc.arg = c;
    c->store.changed = rc_on_changed;
    c->store.arg = &c->rc;
}

/* Compiles and prints what has been collected. */
static uint32_t cli_check_close(struct cli_check *c, const struct cfg *cfg)
{
    struct rt_changes changes = {0};
    struct str_builder b = str_growing();

    rc_compile(&c->rc, &changes);
    rt_publish(&changes, cfg, 0, 0);
    rt_render_text(&b);
    cli_print(&b);
    obj_store_fini(&c->store);
    rc_fini(&c->rc);
    rt_fini();
    mem_free(changes.v);
    return c->refused;
}

/* Settings of flags, environment and the text of one file (NULL: that of --config); the errors are printed. */
static struct cfg *cli_load(int argc, char *const *argv, char *const *envp, const char *file, struct str text, const char **operands, int *noperands)
{
    struct cfg_report report = {.text = str_growing()};
    struct cfg_input in = {.argc = argc, .argv = argv, .envp = envp, .file_name = file, .text = text, .operands = operands};
    struct cfg *cfg = cfg_load(&in, &report);

    if (noperands) *noperands = in.noperands;
    if (!cfg) {
        cli_write(2, str_built(&report.text));
        if (!file) cli_suggest_flags(argc, argv);
    }
    str_free(&report.text);
    return cfg;
}

/* Checks one INI file. Returns whether anything is refused. */
static bool cli_check_ini(int argc, char *const *argv, const char **operands, const char *file, struct str text)
{
    struct cfg *cfg = cli_load(argc, argv, environ, file, text, operands, NULL);
    struct cli_check *c;
    uint32_t refused;

    if (!cfg) return true;
    c = mem_need(sizeof *c);
    cli_check_open(c, cfg);
    refused = cli_check_close(c, cfg);
    mem_free(c);
    cfg_put(cfg);
    return refused > 0;
}

/* Reads the operands: INI files are checked one by one, manifests go into c together. Returns whether anything is refused. */
static bool cli_check_files(int argc, char *const *argv, const char **operands, int n, struct cli_check *c, bool *manifests)
{
    const char **spare = mem_need((size_t)(argc + 1) * sizeof *spare);
    bool refused = false;

    for (int i = 0; i < n; i++) {
        struct str_builder text = str_growing();
        struct log_err err;
        int rc = cli_read_all(operands[i], &text);

        c->file = operands[i];
        if (rc < 0) {
            cli_complain("error: %s: cannot be read: %s", operands[i], strerror(-rc));
            refused = true;
        } else if (cli_is_ini(operands[i], str_built(&text))) {
            refused |= cli_check_ini(argc, argv, spare, operands[i], str_built(&text));
        } else {
            *manifests = true;
            if (obj_read(str_built(&text), cli_check_object, c, &err) < 0) {
                cli_complain("error: %s: %s", operands[i], err.text);
                refused = true;
            }
        }
        str_free(&text);
    }
    mem_free(spare);
    return refused;
}

/* The environment as in a cluster, so that settings are checked by its rules. */
static char *const *cli_cluster_environ(void)
{
    char **env;
    int n = 0;

    while (environ[n]) n++;
    env = mem_need((size_t)(n + 2) * sizeof *env);
    memcpy(env, environ, (size_t)n * sizeof *env);
    env[n] = (char *)(uintptr_t)"KUBERNETES_SERVICE_HOST=check";
    return env;
}

static int cli_check(int argc, char *const *argv)
{
    const char **operands = mem_need((size_t)(argc + 1) * sizeof *operands);
    char *const *env = cli_cluster_environ();
    struct cli_check *c = mem_need(sizeof *c);
    int n = 0, status = CLI_USAGE;
    bool refused, manifests = false;
    struct cfg *cfg = cli_load(argc, argv, environ, NULL, (struct str){0}, operands, &n), *cluster = NULL;

    if (!cfg) goto out;
    if (!n && !cfg->config.n) {
        cli_complain("check: name a file: an INI file, or Kubernetes manifests in YAML or JSON");
        goto out;
    }
    if (!n) {
        cli_check_open(c, cfg);
        status = cli_check_close(c, cfg) ? CLI_USAGE : CLI_DONE;
        goto out;
    }
    if (!(cluster = cli_load(argc, argv, env, NULL, (struct str){0}, operands, &n))) goto out;
    cli_check_open(c, cluster);
    refused = cli_check_files(argc, argv, operands, n, c, &manifests);
    if (manifests) {
        refused |= cli_check_close(c, cluster) > 0;
    } else {
        rc_fini(&c->rc);
        rt_fini();
    }
    status = refused ? CLI_USAGE : CLI_DONE;
out:
    if (cluster) cfg_put(cluster);
    if (cfg) cfg_put(cfg);
    mem_free(c);
    mem_free((void *)(uintptr_t)env);
    mem_free(operands);
    return status;
}

/* ---- the example's upstreams ----
 * Two small HTTP servers on a thread of their own, so that the example shows the real path: client, worker, upstream. */
struct cli_demo {
    pthread_t thread;
    _Atomic bool stop;
    struct io_loop loop;
    struct adm api, web;
    uint16_t port[2];                                    /* of api and web */
};

/* Tells which upstream answers and what it was sent. */
static void cli_demo_answer(struct adm_conn *c)
{
    const struct http_msg *m = &c->head.msg;
    struct str_builder b = str_growing();

    str_putf(&b, "This is upstream %s.\n\n" STR_FMT " " STR_FMT "\n", c->adm->name, STR_ARG(str_of(c->in + m->method_at, m->method_n)),
             STR_ARG(str_of(c->in + m->target_at, m->target_n)));
    for (uint32_t i = 0; i < m->nfields; i++) {
        const struct http_field *f = &m->field[i];

        str_put(&b, str_of(c->in + f->name_at, f->name_n));
        str_put(&b, S(": "));
        str_put(&b, str_of(c->in + f->value_at, f->value_n));
        str_put_c(&b, '\n');
    }
    adm_reply(c, (struct adm_answer){.status = 200}, &b);
}

static void *cli_demo_main(void *arg)
{
    struct cli_demo *d = arg;

    while (!atomic_load_explicit(&d->stop, memory_order_acquire)) io_turn(&d->loop, 50); /* cli_demo_close's release */
    adm_close(&d->api);
    adm_close(&d->web);
    for (int i = 0; i < 3; i++) io_turn(&d->loop, 0);
    io_loop_close(&d->loop);
    return NULL;
}

static int cli_demo_listen(struct cli_demo *d, struct adm *adm, const char *name, uint16_t *port)
{
    struct cfg_listener any = {.text = S("127.0.0.1:0")};
    struct sockaddr_in6 sa;
    socklen_t n = sizeof sa;
    int rc;

    str_to_ip(S("127.0.0.1"), &any.addr);
    adm_init(adm, &d->loop, (struct str){0});
    adm->answer = cli_demo_answer;
    adm->name = name;
    adm->conns_max = 4096;
    if ((rc = adm_listen(adm, &any)) < 0 || (rc = sys_getsockname(adm->listener[0].sock.fd, &sa, &n)) < 0) return rc;
    str_from_sockaddr(&sa, &any.addr);
    *port = any.addr.port;
    return 0;
}

/* Starts both upstreams. Returns 0 or -errno. */
static int cli_demo_open(struct cli_demo *d)
{
    int rc = io_loop_open(&d->loop, &ep_ops, 0);

    if (rc < 0 || (rc = cli_demo_listen(d, &d->api, "api", &d->port[0])) < 0 || (rc = cli_demo_listen(d, &d->web, "web", &d->port[1])) < 0) return rc;
    return -pthread_create(&d->thread, NULL, cli_demo_main, d);
}

static void cli_demo_close(struct cli_demo *d)
{
    atomic_store_explicit(&d->stop, true, memory_order_release); /* cli_demo_main's acquire */
    pthread_join(d->thread, NULL);
}

/* The first port from `from` on that is free on loopback, so that the example starts beside whatever runs already. */
static uint16_t cli_free_port(uint16_t from)
{
    for (uint16_t port = from; port < from + 100; port++) {
        struct net_addr addr;
        struct sockaddr_in6 sa;
        socklen_t n;
        int fd = sys_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

        str_to_ip(S("127.0.0.1"), &addr);
        addr.port = port;
        n = str_to_sockaddr(&addr, &sa);
        sys_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        rc = sys_bind(fd, &sa, n);
        if (rc == 0) rc = sys_listen(fd, 1);
        sys_close(fd);
        if (rc == 0) return port;
    }
    return from;
}

static void cli_demo_render_ini(struct str_builder *b, const struct cli_demo *d)
{
    str_putf(b,
             "[ramjet]\n"
             "http = 127.0.0.1:%u\n"
             "admin = 127.0.0.1:%u\n"
             "log-level = warn\n"
             "\n"
             "[backend api]\n"
             "endpoint = 127.0.0.1:%u\n"
             "\n"
             "[backend web]\n"
             "endpoint = 127.0.0.1:%u\n"
             "\n"
             "[route shop]\n"
             "host = shop.example.com\n"
             "backend = web\n"
             "\n"
             "[route shop-api]\n"
             "host = shop.example.com\n"
             "path = /api\n"
             "backend = api\n"
             "\n"
             "[route blogs]\n"
             "host = *.example.net\n"
             "backend = web\n"
             "\n"
             "[route status]\n"
             "path = /status\n"
             "type = exact\n"
             "backend = api\n",
             cli_free_port(8080), cli_free_port(10254), d->port[0], d->port[1]);
}

/* The lines to try; each works as printed. */
static void cli_demo_render_lines(struct str_builder *b, const struct cfg *cfg)
{
    const char *http = cfg->http.n ? (const char *)cfg->http.v[0].text.p : "", *admin = cfg->admin.n ? (const char *)cfg->admin.v[0].text.p : "";
    int http_n = cfg->http.n ? (int)cfg->http.v[0].text.n : 0, admin_n = cfg->admin.n ? (int)cfg->admin.v[0].text.n : 0;

    str_put(b, S("Ramjet " RJ_VERSION " serves an example. Try, in another terminal:\n\n"));
    if (http_n) {
        str_putf(b, "  curl -H 'Host: shop.example.com' http://%.*s/            # exact host: web\n", http_n, http);
        str_putf(b, "  curl -H 'Host: shop.example.com' http://%.*s/api/carts   # prefix path: api\n", http_n, http);
        str_putf(b, "  curl -H 'Host: cats.example.net' http://%.*s/            # wildcard host: web\n", http_n, http);
        str_putf(b, "  curl http://%.*s/status                                  # exact path, any host: api\n", http_n, http);
        str_putf(b, "  curl -i http://%.*s/nothing                              # no route: 404\n", http_n, http);
    }
    if (admin_n) {
        str_putf(b, "  curl http://%.*s/admin/routes\n", admin_n, admin);
        str_putf(b, "  curl http://%.*s/metrics\n\nThe status page is http://%.*s/ in a browser. ", admin_n, admin, admin_n, admin);
    } else {
        str_put_c(b, '\n');
    }
    str_put(b, S("Ctrl-C ends it.\n\n"));
}

/* ---- serving ---- */

/* The engine that the option names, or that the probe finds; says which and why. NULL with err when io_uring is asked for and refused. */
static const struct io_ops *cli_pick_engine(const struct cfg *cfg, struct log_err *err)
{
    const char *what = "";
    int rc;

    if (cfg->engine == CFG_ENGINE_EPOLL) {
        log_info("cli", "engine epoll, as the option says");
        return &ep_ops;
    }
    rc = ur_probe(&what);
    if (rc >= 0) {
        log_info("cli", "engine uring, %s", cfg->engine == CFG_ENGINE_URING ? "as the option says" : "the probe found everything it needs");
        return &ur_ops;
    }
    if (cfg->engine == CFG_ENGINE_URING) {
        log_fail(err, "engine uring: %s: %s; `engine = auto` takes epoll then", what, strerror(-rc));
        return NULL;
    }
    log_info("cli", "engine epoll, because io_uring cannot be used here: %s: %s", what, strerror(-rc));
    return &ep_ops;
}

/* Everything that serves: one per process. */
struct cli_server {
    struct ctl ctl;
    struct adm adm;
    int workers;
    bool opened;                                         /* ctl may be closed */
    bool started;                                        /* workers may run */
};

static int cli_open_admin(struct cli_server *s, const struct cfg *cfg, struct log_err *err)
{
    adm_init(&s->adm, &s->ctl.loop, cfg->admin_token_file);
    for (uint32_t i = 0; i < cfg->admin.n; i++) {
        const struct cfg_listener *l = &cfg->admin.v[i];
        int rc = adm_listen(&s->adm, l);

        if (rc < 0) return log_fail(err, "admin: cannot listen on " STR_FMT ": %s", STR_ARG(l->text), strerror(-rc));
    }
    return 0;
}

static void cli_on_taking_over(void *arg) { adm_start_listening(arg); }
static void cli_on_handed_over(void *arg) { adm_stop_listening(arg); }

/* Bytes for the buffers of one worker: memory-limit, or half of what the control group allows; 0: no ceiling. */
static size_t cli_memory_share(const struct cfg *cfg, int workers)
{
    uint64_t limit = cfg->memory_limit ? cfg->memory_limit : cli_cgroup(S("memory"), cli_read_memory) / 2;

    return (size_t)(limit / (uint64_t)workers);
}

/* Opens everything on the calling thread, which becomes the control thread, and starts the workers. Returns 0, or negative with err:
 * -EINVAL when the configuration is wrong. */
static int cli_open(struct cli_server *s, const struct cfg *cfg, const struct cfg_input *in, bool signals, struct log_err *err)
{
    int workers = (int)(cfg->worker_processes ? cfg->worker_processes : cli_count_cpus());
    struct ctl_options o = {.cfg = cfg, .input = in, .workers = workers, .signals = signals};
    const struct io_ops *ops;
    int rc;

    s->workers = workers;
    cli_share_files();
    rj.log_level = cfg->log_level;
    atomic_store_explicit(&rj.epoch, 1, memory_order_relaxed); /* no worker runs yet */
    if (!(ops = cli_pick_engine(cfg, err))) return -1;
    rj.engine = ops->name;
    if (cfg->cluster && (rc = ctl_read_cluster(&s->ctl, cfg, err)) < 0) return rc;
    if (wrk_prepare(workers, ops, cfg, cli_memory_share(cfg, workers), err) < 0) {
        ctl_drop_cluster(&s->ctl);
        return -1;
    }
    s->opened = true;
    if ((rc = ctl_open(&s->ctl, &o, err)) < 0) return rc;
    if (cli_open_admin(s, cfg, err) < 0) return -1;
    s->ctl.on_taking_over = cli_on_taking_over;
    s->ctl.on_handed_over = cli_on_handed_over;
    s->ctl.hand_over_arg = &s->adm;
    s->started = true;
    if (wrk_start(err) < 0) return -1;
    log_info("cli", "version " RJ_VERSION ", %d workers", workers);
    return 0;
}

/* After a cli_open that failed: closes what no thread uses yet, so that another try finds its ports free. */
static void cli_close_failed(struct cli_server *s)
{
    if (s->started) return;                              /* threads may run: nothing is safe to free */
    for (rj.thread_count = 0; rj.threads && rj.thread_count < s->workers && rj.threads[rj.thread_count]; rj.thread_count++) {
        struct wrk *w = wrk_at(rj.thread_count);

        for (uint32_t i = 0; i < w->listeners; i++) sys_close(w->listen_fd[i]);
        sys_close(w->box.own_fd);
        sys_close(w->box.wake_fd);
    }
    if (s->opened) {
        if (s->adm.loop) adm_close(&s->adm);
        ctl_fini(&s->ctl);
    }
    wrk_free();
    mem_free(s);
}

/* After ctl_run: gives everything back. */
static void cli_close(struct cli_server *s)
{
    adm_close(&s->adm);
    ctl_fini(&s->ctl);
    wrk_free();
    mem_free(s);
}

/* What the process before this one left: the descriptor that waits for our word, then its listening sockets. */
static void cli_inherit(void)
{
    const char *value = getenv(CTL_SUCCESSOR_ENV);
    struct str rest = str_z(value ? value : ""), item;
    uint64_t fd;

    while (str_cut(&rest, ' ', &item)) {
        if (!str_to_u64(item, &fd) || fd < 3 || fd > INT_MAX || sys_fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0) continue;
        if (!rj.tell_fd) rj.tell_fd = (int)fd;
        else if (rj.inherited.n < WRK_OFFER_MAX) rj.inherited.fd[rj.inherited.n++] = (int)fd;
    }
    if (value) unsetenv(CTL_SUCCESSOR_ENV);
}

/* The first process of a container has handed over: it must stay, or the container ends. It passes signals on, collects what ends,
 * and ends with the last one's status. */
static int cli_attend(void)
{
    int last = 0, status;
    siginfo_t info;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < RJ_COUNT(cli_signals); i++) sigaddset(&set, cli_signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (;;) {
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) last = status;
        if (pid < 0) return WIFEXITED(last) ? WEXITSTATUS(last) : CLI_FAILED;
        if (sigwaitinfo(&set, &info) > 0 && info.si_signo != SIGCHLD && info.si_pid != getpid()) kill(0, info.si_signo);
    }
}

/* Serves until a signal ends it. The settings are let go of. */
static int cli_serve(struct cfg *cfg, const struct cfg_input *in, void (*on_open)(const struct cfg *cfg))
{
    struct cli_server *s = mem_need(sizeof *s);
    struct log_err err = {""};
    int rc = cli_open(s, cfg, in, true, &err);
    bool attend;

    if (rc < 0) {
        log_error("cli", "%s", err.text);
        cli_close_failed(s);
        cfg_put(cfg);
        return rc == -EINVAL ? CLI_USAGE : CLI_FAILED;
    }
    if (on_open) on_open(cfg);
    cfg_put(cfg);
    ctl_run(&s->ctl);
    attend = s->ctl.handed_over && getpid() == 1;
    cli_close(s);
    return attend ? cli_attend() : CLI_DONE;
}

static int cli_run(int argc, char *const *argv)
{
    struct cfg_input in = {.argc = argc, .argv = argv, .envp = environ};
    struct cfg *cfg = cli_load(argc, argv, environ, NULL, (struct str){0}, NULL, NULL);

    if (!cfg) return CLI_USAGE;
    if (!cfg->config.n && !cfg->cluster) {
        cli_complain("run: there is nothing to serve: name a file with --config FILE, or a cluster with --kubeconfig FILE; `ramjet demo` shows an example");
        cfg_put(cfg);
        return CLI_USAGE;
    }
    cli_set_process();
    cli_inherit();
    return cli_serve(cfg, &in, NULL);
}

static void cli_demo_on_open(const struct cfg *cfg)
{
    struct str_builder b = str_growing();

    cli_demo_render_lines(&b, cfg);
    cli_print(&b);
}

static int cli_demo(int argc, char *const *argv)
{
    struct cli_demo *d = mem_need(sizeof *d);
    struct str_builder ini = str_growing();
    struct cfg_input in = {.argc = argc, .argv = argv, .file_name = "demo"};
    struct cfg *cfg;
    int rc;

    cli_set_process();
    if ((rc = cli_demo_open(d)) < 0) {
        cli_complain("demo: cannot listen on 127.0.0.1: %s", strerror(-rc));
        return CLI_FAILED;
    }
    cli_demo_render_ini(&ini, d);
    in.text = str_built(&ini);
    cfg = cli_load(argc, argv, NULL, in.file_name, in.text, NULL, NULL);
    rc = cfg ? cli_serve(cfg, &in, cli_demo_on_open) : CLI_USAGE;
    if (!cfg) cli_suggest_flags(argc, argv);
    cli_demo_close(d);
    mem_free(d);
    str_free(&ini);
    return rc;
}

/* ---- the public interface: see the end of ramjet.h ---- */

struct ramjet {
    struct cli_server *server;
    struct cfg *cfg;
    struct cfg_input input;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { CLI_STARTING, CLI_RUNNING, CLI_NOT_STARTED } state; /* under the lock */
    struct log_err err;
    struct wrk_msg stop;
};

static void cli_tell(struct ramjet *r, int state)
{
    pthread_mutex_lock(&r->lock);
    r->state = state;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void *cli_instance_main(void *arg)
{
    struct ramjet *r = arg;
    bool good = cli_open(r->server, r->cfg, &r->input, false, &r->err) == 0;

    cli_tell(r, good ? CLI_RUNNING : CLI_NOT_STARTED);
    if (!good) {
        cli_close_failed(r->server);
        return NULL;
    }
    ctl_run(&r->server->ctl);
    cli_close(r->server);
    return NULL;
}

static int cli_copy_error(char *err, size_t err_size, struct str text)
{
    while (text.n && text.p[text.n - 1] == '\n') text.n--;
    if (err_size) snprintf(err, err_size, STR_FMT, STR_ARG(text));
    return -1;
}

static void cli_instance_free(struct ramjet *r)
{
    cfg_put(r->cfg);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
    atomic_store_explicit(&rj.instances, 0, memory_order_release); /* the exchange of the next ramjet_start */
}

/* Starts the control thread with every signal blocked, so that all signals stay the program's, and waits for what it says. */
static int cli_instance_start(struct ramjet *r)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&r->thread, NULL, cli_instance_main, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        mem_free(r->server);
        return log_fail(&r->err, "cannot start a thread: %s", strerror(rc));
    }
    pthread_mutex_lock(&r->lock);
    while (r->state == CLI_STARTING) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    if (r->state == CLI_RUNNING) return 0;
    pthread_join(r->thread, NULL);
    return -1;
}

int ramjet_start(struct ramjet **out, const char *ini_text, char *err, size_t err_size)
{
    struct cfg_report report = {.text = str_growing()};
    struct ramjet *r;

    *out = NULL;
    if (atomic_exchange_explicit(&rj.instances, 1, memory_order_acq_rel)) /* cli_instance_free's release */
        return cli_copy_error(err, err_size, S("there is an instance already: one per process"));
    r = mem_need(sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->input = (struct cfg_input){.file_name = "ini_text", .text = str_z(ini_text)};
    r->cfg = cfg_load(&r->input, &report);
    if (!r->cfg) {
        cli_copy_error(err, err_size, str_built(&report.text));
        str_free(&report.text);
        mem_free(r);
        atomic_store_explicit(&rj.instances, 0, memory_order_release); /* the exchange above */
        return -1;
    }
    str_free(&report.text);
    r->server = mem_need(sizeof *r->server);
    if (cli_instance_start(r) < 0) {
        cli_copy_error(err, err_size, str_z(r->err.text));
        cli_instance_free(r);
        return -1;
    }
    *out = r;
    return 0;
}

int ramjet_reload(struct ramjet *instance, const char *ini_text, char *err, size_t err_size)
{
    struct cfg_report report = {.text = str_growing()};
    int rc = ctl_ask_reload(&instance->server->ctl, str_z(ini_text), &report);

    if (rc < 0) cli_copy_error(err, err_size, str_built(&report.text));
    str_free(&report.text);
    return rc;
}

void ramjet_stop(struct ramjet *instance)
{
    ctl_ask_stop(&instance->stop);
    pthread_join(instance->thread, NULL);
    cli_instance_free(instance);
}

/* ---- main ---- */

/* Unused where another program brings main. */
__attribute__((unused)) static int cli_main(int argc, char **argv)
{
    bool named = argc > 1 && argv[1][0] != '-';
    int command = named ? cli_find_command(str_z(argv[1])) : CLI_RUN, skip = named ? 2 : 1;

    for (int i = skip; command >= 0 && i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return cli_help(named ? command : -1);
    if (command == CLI_RUN) rj.argv = argv;
    argv += skip;
    argc -= skip;
    if (!named && argc == 1 && strcmp(argv[0], "--version") == 0) return cli_version(0, NULL);
    switch (command) {
    case CLI_CHECK:     return cli_check(argc, argv);
    case CLI_DEMO:      return cli_demo(argc, argv);
    case CLI_REFERENCE: return cli_reference(argc, argv);
    case CLI_RUN:       return cli_run(argc, argv);
    case CLI_VERSION:   return cli_version(argc, argv);
    }
    if (str_eq(str_z(argv[-1]), S("help"))) return cli_help(argc ? cli_find_command(str_z(argv[0])) : -1);
    return cli_unknown_command(str_z(argv[-1]));
}

#ifndef RAMJET_NO_MAIN
int main(int argc, char **argv) { return cli_main(argc, argv); }
#endif

