// What Go's net/http reads, told to the recorder: one request in canonical form for each. Usage: server RECORDER_PORT; prints its own port.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

type recorder struct {
	conn net.Conn
	r    *bufio.Reader
}

type key struct{}

// tell sends the request to the recorder and returns the number that it gave it.
func (rec *recorder) tell(addr string, r *http.Request, body []byte) (string, error) {
	if rec.conn == nil {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return "", err
		}
		rec.conn, rec.r = c, bufio.NewReader(c)
	}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nX-Real-IP: %s\r\nX-Record: 1\r\nContent-Length: %d\r\n\r\n", r.Method, r.RequestURI, r.Host, r.Header.Get("X-Real-Ip"), len(body))
	if _, err := rec.conn.Write(append([]byte(head), body...)); err != nil {
		return "", err
	}
	seq := ""
	for {
		line, err := rec.r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line == "\r\n" {
			return seq, nil
		}
		if strings.HasPrefix(line, "X-Seq: ") {
			seq = strings.TrimSpace(line[7:])
		}
	}
}

func main() {
	addr := "127.0.0.1:" + os.Args[1]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	s := &http.Server{
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, key{}, &recorder{}) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			seq, err := r.Context().Value(key{}).(*recorder).tell(addr, r, body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("X-Seq", seq)
			w.Header().Set("Content-Length", "2")
			io.WriteString(w, "ok")
		}),
		DisableGeneralOptionsHandler: true,
	}
	s.Serve(l)
}
