// A WebSocket echo server, and a client that checks what comes back, on gorilla/websocket. peer.py is the same on Python's websockets.
//
//	peer serve [-deflate]                                            echoes until standard input ends; prints its port
//	peer load -port P [-messages N] [-tunnels T] [-seed S] [-deflate] sends N messages through T tunnels; prints a line of JSON
//
// Messages are text and binary of 0 to 1 MiB, every third one fragmented, 16 of a tunnel under way at a time; pings go between them.
// An echo must equal its message, in order and in kind. lost: echoes that did not come; wrong: those that differ, pongs and ends included.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const underWay = 16

var edges = []int{0, 1, 125, 126, 127, 128, 4095, 4096, 4097, 16383, 16384, 65535, 65536, 65537}

// message is the i-th one of the stream that r makes.
func message(r *rand.Rand, i int) (kind int, data []byte) {
	n := 0
	switch p := r.Float64(); {
	case i == 1:
		n = 1 << 20
	case p < 0.25:
		n = edges[r.Intn(len(edges))]
	case p < 0.75:
		n = r.Intn(1025)
	case p < 0.95:
		n = r.Intn(16385)
	case p < 0.99:
		n = r.Intn(131073)
	default:
		n = r.Intn(1<<20 + 1)
	}
	if r.Intn(2) == 0 {
		data = make([]byte, n)
		r.Read(data)
		return websocket.BinaryMessage, data
	}
	words := []string{"a", "ramjet ", "é", "€", "😀", "\x00", "\n", fmt.Sprint(r.Int63())}
	var text bytes.Buffer
	for text.Len() < n {
		word := words[r.Intn(len(words))]
		if text.Len()+len(word) > n {
			word = "."
		}
		text.WriteString(word)
	}
	return websocket.TextMessage, text.Bytes()
}

// send writes a message whole, or as fragments: a writer ends a frame whenever its buffer is full.
func send(c *websocket.Conn, kind int, data []byte, fragments bool) error {
	if !fragments {
		return c.WriteMessage(kind, data)
	}
	w, err := c.NextWriter(kind)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n := min(len(data), 777)
		if _, err := w.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return w.Close()
}

func serve(deflate bool) error {
	upgrader := websocket.Upgrader{EnableCompression: deflate, ReadBufferSize: 4096, WriteBufferSize: 1024, CheckOrigin: func(*http.Request) bool { return true }}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		c.SetPingHandler(func(text string) error { // the library's own gives a pong one second and then drops it, or the connection
			return c.WriteControl(websocket.PongMessage, []byte(text), time.Now().Add(60*time.Second))
		})
		for i := 0; ; i++ {
			kind, data, err := c.ReadMessage()
			if err != nil || send(c, kind, data, i%4 == 3) != nil {
				return
			}
		}
	}))
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

type result struct {
	Messages int     `json:"messages"`
	Lost     int     `json:"lost"`
	Wrong    int     `json:"wrong"`
	Pings    int     `json:"pings"`
	Bytes    int     `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}

// tunnel sends n messages through one connection and checks the echoes.
func tunnel(url string, n int, seed int64, deflate bool) (res result, err error) {
	dialer := websocket.Dialer{EnableCompression: deflate, WriteBufferSize: 1024, HandshakeTimeout: 30 * time.Second}
	c, answer, err := dialer.Dial(url, nil)
	res.Messages, res.Lost = n, n
	if err != nil {
		return res, err
	}
	defer c.Close()
	if deflate != (answer.Header.Get("Sec-WebSocket-Extensions") != "") {
		return res, errors.New("permessage-deflate was not agreed on as asked")
	}
	pings, pongs := 0, 0
	c.SetPongHandler(func(text string) error {
		if text != fmt.Sprint("ping ", pongs) {
			res.Wrong++
		}
		pongs++
		return nil
	})
	slots, sent := make(chan bool, underWay), make(chan error, 1)
	go func() {
		r := rand.New(rand.NewSource(seed))
		for i := 0; i < n; i++ {
			slots <- true
			kind, data := message(r, i)
			if i%7 == 0 {
				if err := c.WriteControl(websocket.PingMessage, []byte(fmt.Sprint("ping ", pings)), time.Now().Add(60*time.Second)); err != nil {
					sent <- err
					return
				}
				pings++
			}
			if err := send(c, kind, data, i%3 == 2); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	r := rand.New(rand.NewSource(seed))
	for i := 0; i < n; i++ {
		c.SetReadDeadline(time.Now().Add(60 * time.Second))
		kind, data, err := c.ReadMessage()
		if err != nil {
			return res, err
		}
		wantKind, want := message(r, i)
		if kind != wantKind || !bytes.Equal(data, want) {
			res.Wrong++
		}
		res.Lost--
		res.Bytes += len(data)
		<-slots
	}
	if err := <-sent; err != nil {
		return res, err
	}
	if err := c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(60*time.Second)); err != nil {
		return res, err
	}
	if _, _, err := c.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) || pings != pongs {
		return res, fmt.Errorf("%d pings, %d pongs, and the end is %v", pings, pongs, err)
	}
	res.Pings = pings
	return res, nil
}

func load(port, messages, tunnels int, seed int64, deflate bool) error {
	var sum result
	var lock sync.Mutex
	var all sync.WaitGroup
	var first error
	start := time.Now()
	for t := 0; t < tunnels; t++ {
		n := messages / tunnels
		if t < messages%tunnels {
			n++
		}
		all.Add(1)
		go func(t int) {
			defer all.Done()
			res, err := tunnel(fmt.Sprintf("ws://127.0.0.1:%d/ws", port), n, seed+int64(t), deflate)
			lock.Lock()
			defer lock.Unlock()
			sum.Messages, sum.Lost, sum.Wrong, sum.Pings, sum.Bytes = sum.Messages+res.Messages, sum.Lost+res.Lost, sum.Wrong+res.Wrong, sum.Pings+res.Pings, sum.Bytes+res.Bytes
			if err != nil {
				sum.Wrong++
				first = err
			}
		}(t)
	}
	all.Wait()
	sum.Seconds = float64(time.Since(start).Milliseconds()) / 1000
	if first != nil {
		fmt.Fprintln(os.Stderr, first)
	}
	return json.NewEncoder(os.Stdout).Encode(sum)
}

func main() {
	flags := flag.NewFlagSet("peer", flag.ExitOnError)
	deflate := flags.Bool("deflate", false, "permessage-deflate")
	port := flags.Int("port", 0, "of the server")
	messages := flags.Int("messages", 1000, "in all")
	tunnels := flags.Int("tunnels", 20, "at once")
	seed := flags.Int64("seed", 1, "of the messages")
	if len(os.Args) < 2 || flags.Parse(os.Args[2:]) != nil {
		os.Exit(2)
	}
	err := error(nil)
	switch os.Args[1] {
	case "serve":
		err = serve(*deflate)
	case "load":
		err = load(*port, *messages, *tunnels, *seed, *deflate)
	default:
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
