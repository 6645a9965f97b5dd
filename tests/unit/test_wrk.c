/* wrk_: listeners of a worker that runs in this thread, on both engines. */

struct wrk_ut {
    struct wrk *w;
    struct net_addr at;
    int successor;                                                   /* what another process holds of the listening socket; -1: none */
};

/* A worker with one listener that accepts. False where the engine is not there. */
static bool wrk_ut_open(struct wrk_ut *u, const struct io_ops *ops, bool handed_over)
{
    struct sockaddr_in6 sa;
    socklen_t n = sizeof sa;
    struct wrk *w = u->w = mem_need(sizeof *w);
    struct net_addr any = {.family = AF_INET, .ip = {[10] = 0xff, 0xff, 127, 0, 0, 1}};

    proxy_set_thread(&w->thread);
    rj.fd_limit = INT_MAX;
    w->ops = ops;
    w->max_conns = 10;
    w->drain_ms = 10000;
    w->thread.log.cap = 1 << 16;
    n = str_to_sockaddr(&any, &sa);
    w->listen_fd[0] = sys_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    UT_CHECK(w->listen_fd[0] >= 0 && sys_bind(w->listen_fd[0], &sa, n) == 0 && sys_listen(w->listen_fd[0], 100) == 0);
    n = sizeof sa;
    UT_CHECK(sys_getsockname(w->listen_fd[0], &sa, &n) == 0);
    str_from_sockaddr(&sa, &u->at);
    u->successor = handed_over ? sys_fcntl(w->listen_fd[0], F_DUPFD_CLOEXEC, 3) : -1;
    w->handed_over[0] = handed_over;
    atomic_store(&rj.handed_left, handed_over);
    w->listeners = 1;
    UT_CHECK(wrk_box_init(&w->box) == 0);
    return wrk_open(w) == 0;
}

static void wrk_ut_close(struct wrk_ut *u)
{
    struct wrk *w = u->w;

    px_drain(w, true);
    wrk_box_close(&w->box);
    for (int i = 0; i < 1000 && (w->px.conns.used || w->loop.ready || w->box.wake.fd >= 0); i++) io_turn(&w->loop, 10);
    UT_INT(w->px.conns.used, 0);
    up_fini(&w->up);
    px_fini(w);
    io_loop_close(&w->loop);
    if (u->successor >= 0) sys_close(u->successor);
    if (w->thread.log.p) sys_unmap(w->thread.log.p, w->thread.log.cap);
    for (int i = 0; i < MTR_ROUTES_MAX; i++) mem_free(atomic_load(&w->thread.mtr.route[i]));
    proxy_set_thread(NULL);
    mem_free(w);
}

/* A client that has sent what gets an answer at once, and ends no more than its own exchange. */
static int wrk_ut_client(const struct wrk_ut *u)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: not a host\r\n\r\n";
    struct sockaddr_in6 sa;
    socklen_t n = str_to_sockaddr(&u->at, &sa);
    int fd = sys_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    UT_CHECK(fd >= 0 && sys_connect(fd, &sa, n) == 0);
    UT_CHECK(sys_send(fd, text, sizeof text - 1, MSG_NOSIGNAL) == sizeof text - 1);
    return fd;
}

/* The kernel has taken a client for a worker that pauses, and the listener is closed before the worker has seen either: that client is served,
 * or still waits in the queue for the process that has the socket, too. */
UT(wrk_a_listener_that_is_closed_while_it_pauses_loses_no_client)
{
    static const struct { int line; const struct io_ops *ops; bool handed_over, at_once; } rows[] = {
        UT_ROW(&ep_ops, false, false), UT_ROW(&ep_ops, true, false), UT_ROW(&ur_ops, false, false), UT_ROW(&ur_ops, true, false),
        UT_ROW(&ep_ops, false, true), UT_ROW(&ep_ops, true, true), UT_ROW(&ur_ops, false, true), UT_ROW(&ur_ops, true, true),
    };

    UT_CHECK(ps_open());                                             /* some table: the client asks for nothing of it */
    UT_EACH(r, rows) {
        struct wrk_ut u;
        int64_t fds = adm_count_fds();
        char answer[16] = "";
        int fd = -1;
        long n = -EAGAIN;

        if (wrk_ut_open(&u, r->ops, r->handed_over)) {
            for (int i = 0; i < 3; i++) io_turn(&u.w->loop, 1);
            if (!r->at_once) wrk_pause(u.w, true);
            fd = wrk_ut_client(&u);
            if (u.w->loop.ur) ur_enter(u.w->loop.ur, 0, NULL);       /* the completion is there; nobody has looked at it */
            if (r->at_once) wrk_pause(u.w, true);
            wrk_on_drain(&u.w->drain_msg);
            clk_disarm(&u.w->delay);
            wrk_on_delay(&u.w->delay);                               /* as if its time had passed within the turn */
            for (int i = 0; i < 1000 && u.w->listener[0].s.fd >= 0; i++) io_turn(&u.w->loop, 1);
            UT_INT(u.w->listener[0].s.fd, -1);
            UT_INT(u.w->listening, 0);
            UT_INT(atomic_load(&rj.handed_left), 0);
            for (int i = 0; i < 200 && n == -EAGAIN; i++) {
                io_turn(&u.w->loop, 1);
                n = sys_recv(fd, answer, 8, MSG_DONTWAIT);
            }
            if (n == -EAGAIN && r->handed_over) {
                int accepted = sys_accept(u.successor, NULL, NULL, SOCK_CLOEXEC);

                UT_CHECK(accepted >= 0);
                sys_close(accepted);
            } else {
                UT_CHECK(n == 8 && memcmp(answer, "HTTP/1.1", 8) == 0);
            }
            sys_close(fd);
        }
        wrk_ut_close(&u);
        UT_INT(adm_count_fds(), fds);
    }
    ps_close();
}
