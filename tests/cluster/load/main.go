// Command load is the fast half of the cluster tests: an upstream, a steady load
// whose windows are named from stdin, a sweep over many hosts, and a poller that
// tells when an answer changed.
//
//	load upstream [--listen ADDRESS:PORT[,...]] [--size BYTES]
//	load steady   --addr A:P --host H [--path /] [--conns N] [--rate R] [--idle N] [--format h%d.x --count N]
//	load sweep    --addr A:P --format h%d.example.com --count N [--paths /a,/b] [--ready A:P [--ready-path /readyz]] [--repeat 60s]
//	load poll     --addr A:P
//
// upstream reads lines "add ADDRESS:PORT" and "remove ADDRESS:PORT" and says "ok" to each; what is removed takes its connections with it. sweep
// asks all once, or with --repeat again and again until all of them were right. poll reads lines "HOST PATH STATUS UPSTREAM" (UPSTREAM "-" is any), says
// "polling" after its first request, and prints one JSON object when the answer is
// as wanted. steady reads lines from stdin: "mark NAME" begins a window, "stop" (or the end
// of stdin) ends the run; it then prints one JSON object.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ---------------------------------------------------------------- upstream

// endpoint is one address of the upstream, with the connections that it has.
type endpoint struct {
	listener net.Listener
	mu       sync.Mutex
	conns    map[net.Conn]bool
	closed   bool
}

func (e *endpoint) run(body string) {
	for {
		c, err := e.listener.Accept()
		if err != nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			if !e.closed {
				fail(err)
			}
			return
		}
		e.mu.Lock()
		if e.closed {
			c.Close()
		} else {
			e.conns[c] = true
			go func() {
				serve(c, body)
				e.mu.Lock()
				delete(e.conns, c)
				e.mu.Unlock()
			}()
		}
		e.mu.Unlock()
	}
}

func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.listener.Close()
	for c := range e.conns {
		c.Close()
	}
}

func upstream(args []string) {
	fs := flag.NewFlagSet("upstream", flag.ExitOnError)
	listen := fs.String("listen", "", "addresses, comma separated")
	size := fs.Int("size", 128, "bytes of a body")
	fs.Parse(args)
	body := strings.Repeat("x", *size)
	endpoints := map[string]*endpoint{}
	add := func(a string) {
		l, err := net.Listen("tcp", a)
		if err != nil {
			fail(err)
		}
		endpoints[a] = &endpoint{listener: l, conns: map[net.Conn]bool{}}
		go endpoints[a].run(body)
	}
	for _, a := range strings.FieldsFunc(*listen, func(r rune) bool { return r == ',' }) {
		add(a)
	}
	fmt.Println("listening")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		word, a, _ := strings.Cut(in.Text(), " ")
		switch {
		case word == "add":
			add(a)
		case word == "remove" && endpoints[a] != nil:
			endpoints[a].close()
			delete(endpoints, a)
		default:
			fail(fmt.Errorf("upstream: what is %q?", in.Text()))
		}
		fmt.Println("ok")
	}
	select {}
}

// serve answers requests without bodies with the address they came to.
func serve(c net.Conn, body string) {
	defer c.Close()
	answer := []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Upstream: %s\r\n\r\n%s", len(body), c.LocalAddr(), body))
	r := bufio.NewReaderSize(c, 8192)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(line) <= 2 {
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	}
}

// ------------------------------------------------------------------ client

type client struct {
	addr string
	conn net.Conn
	r    *bufio.Reader
}

// do makes one exchange and returns status and upstream. A connection that the
// server announced to close is opened anew before the next request.
func (c *client) do(host, path string) (status int, from string, err error) {
	if c.conn == nil {
		if c.conn, err = net.DialTimeout("tcp", c.addr, 5*time.Second); err != nil {
			c.conn = nil
			return 0, "", err
		}
		c.r = bufio.NewReaderSize(c.conn, 16384)
	}
	status, from, closing, err := c.exchange(host, path)
	if err != nil || closing {
		c.close()
	}
	return status, from, err
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

func (c *client) exchange(host, path string) (status int, from string, closing bool, err error) {
	c.conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err = c.conn.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")); err != nil {
		return
	}
	length := -1
	for first := true; ; first = false {
		var line []byte
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return
		}
		text := strings.TrimRight(string(line), "\r\n")
		if first {
			if len(text) < 12 || !strings.HasPrefix(text, "HTTP/1.") {
				err = fmt.Errorf("bad status line %q", text)
				return
			}
			status, err = strconv.Atoi(text[9:12])
			if err != nil {
				return
			}
			continue
		}
		if text == "" {
			break
		}
		name, value, _ := strings.Cut(text, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			length, err = strconv.Atoi(value)
		case "connection":
			closing = strings.EqualFold(value, "close")
		case "x-upstream":
			from = value
		case "transfer-encoding":
			err = errors.New("a chunked answer was not expected")
		}
		if err != nil {
			return
		}
	}
	if length < 0 {
		err = errors.New("an answer without Content-Length")
		return
	}
	_, err = c.r.Discard(length)
	return
}

// ------------------------------------------------------------------ steady

type window struct {
	Name     string         `json:"name"`
	Seconds  float64        `json:"seconds"`
	Requests int            `json:"requests"`
	Failed   int            `json:"failed"`
	Status   map[string]int `json:"status"`
	Errors   []string       `json:"errors,omitempty"`
	P50      float64        `json:"p50_us"`
	P90      float64        `json:"p90_us"`
	P99      float64        `json:"p99_us"`
	P999     float64        `json:"p999_us"`
	Max      float64        `json:"max_us"`
	began    time.Time
	mu       sync.Mutex
	took     []int32
}

func (w *window) add(status int, took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Requests++
	if err != nil {
		w.Status["error"]++
		if len(w.Errors) < 10 {
			w.Errors = append(w.Errors, err.Error())
		}
	} else {
		w.Status[strconv.Itoa(status)]++
	}
	if err != nil || status != 200 {
		w.Failed++
	}
	w.took = append(w.took, int32(took.Microseconds()))
}

func (w *window) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Seconds = time.Since(w.began).Seconds()
	sort.Slice(w.took, func(i, j int) bool { return w.took[i] < w.took[j] })
	at := func(q float64) float64 {
		if len(w.took) == 0 {
			return 0
		}
		return float64(w.took[int(q*float64(len(w.took)-1))])
	}
	w.P50, w.P90, w.P99, w.P999, w.Max = at(.5), at(.9), at(.99), at(.999), at(1)
}

func newWindow(name string) *window {
	return &window{Name: name, Status: map[string]int{}, began: time.Now()}
}

func steady(args []string) {
	fs := flag.NewFlagSet("steady", flag.ExitOnError)
	addr := fs.String("addr", "", "address of the proxy")
	host := fs.String("host", "", "Host field")
	path := fs.String("path", "/", "path")
	conns := fs.Int("conns", 8, "connections")
	rate := fs.Float64("rate", 0, "requests per second of all connections; 0 is as fast as answers come")
	idle := fs.Int("idle", 0, "connections that are used once at the start and once at the end")
	format := fs.String("format", "h%d.example.com", "host of number N, with --count")
	count := fs.Int("count", 0, "hosts to ask for in turn, instead of --host")
	fs.Parse(args)

	hosts := []string{*host}
	if *count > 0 {
		hosts = hosts[:0]
		for i := 0; i < *count; i++ {
			// A stride that has no common divisor with the usual counts: neighbours are far apart.
			hosts = append(hosts, fmt.Sprintf(*format, i*7919%*count))
		}
	}
	sleepers := make([]*client, *idle)
	for i := range sleepers {
		sleepers[i] = &client{addr: *addr}
		if status, _, err := sleepers[i].do(hosts[0], *path); err != nil || status != 200 {
			fail(fmt.Errorf("an idle connection could not be opened: %d %v", status, err))
		}
	}
	var current atomic.Pointer[window]
	current.Store(newWindow("start"))
	windows := []*window{current.Load()}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := 0; i < *conns; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			c := &client{addr: *addr}
			defer c.close()
			interval := time.Duration(0)
			if *rate > 0 {
				interval = time.Duration(float64(*conns) / *rate * 1e9)
			}
			due := time.Now().Add(interval * time.Duration(i) / time.Duration(*conns))
			for n := i * len(hosts) / *conns; !stop.Load(); n++ {
				if interval > 0 {
					time.Sleep(time.Until(due))
					due = due.Add(interval)
					if late := time.Since(due); late > 0 {
						due = due.Add(late)
					}
				}
				w := current.Load()
				t := time.Now()
				status, _, err := c.do(hosts[n%len(hosts)], *path)
				w.add(status, time.Since(t), err)
				if err != nil {
					time.Sleep(time.Millisecond)
				}
			}
		}(i)
	}
	fmt.Fprintln(os.Stderr, "started")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		word, name, _ := strings.Cut(in.Text(), " ")
		if word == "stop" {
			break
		}
		next := newWindow(name)
		current.Swap(next).finish()
		windows = append(windows, next)
	}
	stop.Store(true)
	wg.Wait()
	current.Load().finish()
	lost := 0
	for _, c := range sleepers {
		if c.conn == nil {
			lost++
		} else if status, _, _, err := c.exchange(hosts[0], *path); err != nil || status != 200 {
			lost++
		}
	}
	print(map[string]any{"windows": windows, "idle": *idle, "idle_lost": lost})
}

// ------------------------------------------------------------------- sweep

func sweep(args []string) {
	fs := flag.NewFlagSet("sweep", flag.ExitOnError)
	addr := fs.String("addr", "", "address of the proxy")
	format := fs.String("format", "h%d.example.com", "host of number N")
	count := fs.Int("count", 1, "how many hosts")
	paths := fs.String("paths", "/", "paths, comma separated")
	conns := fs.Int("conns", 8, "connections")
	ready := fs.String("ready", "", "admin listener that must say 200 first")
	readyPath := fs.String("ready-path", "/readyz", "what it is asked for")
	repeat := fs.Duration("repeat", 0, "how long to ask again until all answers are right")
	fs.Parse(args)

	began := time.Now()
	for *ready != "" {
		c := &client{addr: *ready}
		status, _, err := c.do("admin", *readyPath)
		c.close()
		if err == nil && status == 200 {
			break
		}
		time.Sleep(200 * time.Microsecond)
	}
	readyAfter := time.Since(began)
	served := readyAfter // the last wrong answer
	w := newWindow("sweep")
	each := strings.Split(*paths, ",")
	once := func() (wrong bool) {
		var next, last atomic.Int64
		var wg sync.WaitGroup
		for i := 0; i < *conns; i++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				c := &client{addr: *addr}
				defer c.close()
				for {
					n := int(next.Add(1)) - 1
					if n >= *count*len(each) {
						return
					}
					t := time.Now()
					status, _, err := c.do(fmt.Sprintf(*format, n%*count), each[n / *count])
					w.add(status, time.Since(t), err)
					if err != nil || status != 200 {
						last.Store(int64(time.Since(began)))
						if *repeat > 0 {
							time.Sleep(5 * time.Millisecond) // what is not there yet is not asked for at full speed
						}
					}
				}
			}()
		}
		wg.Wait()
		served = max(served, time.Duration(last.Load()))
		return last.Load() != 0
	}
	for once() && time.Since(began) < readyAfter+*repeat {
	}
	w.finish()
	at := func(d time.Duration) float64 { return float64(began.Add(d).UnixNano()) / 1e9 }
	print(map[string]any{"ready_unix": at(readyAfter), "served_unix": at(served), "window": w})
}

// -------------------------------------------------------------------- poll

func poll(args []string) {
	fs := flag.NewFlagSet("poll", flag.ExitOnError)
	addr := fs.String("addr", "", "address of the proxy")
	pause := fs.Duration("pause", 50*time.Microsecond, "between two requests")
	limit := fs.Duration("limit", 30*time.Second, "longest wait for one answer")
	fs.Parse(args)
	c := &client{addr: *addr}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var host, path, wanted string
		var code int
		if _, err := fmt.Sscan(in.Text(), &host, &path, &code, &wanted); err != nil {
			fail(err)
		}
		began, other := time.Now(), map[string]int{}
		for n := 1; ; n++ {
			status, from, err := c.do(host, path)
			now := time.Now()
			if err == nil && status == code && (wanted == "-" || wanted == from) || time.Since(began) > *limit {
				if n == 1 {
					fmt.Println("polling")
				}
				print(map[string]any{"unix_ns": now.UnixNano(), "polls": n, "other": other, "late": time.Since(began) > *limit})
				break
			}
			if n == 1 {
				fmt.Println("polling")
			}
			if err != nil {
				other["error"]++
			} else {
				other[strconv.Itoa(status)]++
			}
			time.Sleep(*pause)
		}
	}
}

func print(v any) {
	json.NewEncoder(os.Stdout).Encode(v)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "load:", err)
	os.Exit(1)
}

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("usage: load upstream|steady|sweep|poll [flags]"))
	}
	switch os.Args[1] {
	case "upstream":
		upstream(os.Args[2:])
	case "steady":
		steady(os.Args[2:])
	case "sweep":
		sweep(os.Args[2:])
	case "poll":
		poll(os.Args[2:])
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}
