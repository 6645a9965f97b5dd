"""What Python's http.server reads, told to the recorder: one request in canonical form for each. Usage: server.py RECORDER_PORT; prints its own
port. http.server leaves bodies to its handlers: this one reads Content-Length octets or chunks, as a careful one would."""
import http.server
import re
import socket
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.recorder = None

    def finish(self):
        super().finish()
        if self.recorder:
            self.recorder.close()

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.record
        raise AttributeError(name)

    def read_chunks(self):
        body = b""
        while True:
            size = int(self.rfile.readline().strip().decode("ascii"), 16)
            if not size:
                break
            body += self.rfile.read(size)
            if self.rfile.read(2) != b"\r\n":
                raise ValueError("chunk")
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        return body

    def record(self):
        h = self.headers
        if h.get("Transfer-Encoding", "").lower() == "chunked":
            body = self.read_chunks()
        else:
            body = self.rfile.read(int(h.get("Content-Length", 0)))
        if not self.recorder:
            self.recorder = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
            self.recorder.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        words = self.requestline.split(" ")
        head = "%s %s HTTP/1.1\r\nHost: %s\r\nX-Real-IP: %s\r\nX-Record: 1\r\nContent-Length: %d\r\n\r\n" % (self.command, words[1], h["Host"], h["X-Real-IP"], len(body))
        self.recorder.sendall(head.encode("latin-1") + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            some = self.recorder.recv(4096)
            if not some:
                raise ConnectionError("the recorder has closed")
            answer += some
        self.send_response_only(200)
        self.send_header("X-Seq", re.search(rb"X-Seq: (\d+)", answer)[1].decode())
        self.send_header("Content-Length", "2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"ok")
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 4096
    daemon_threads = True

    def handle_error(self, *_):
        pass


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
