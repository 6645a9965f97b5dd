// What Node reads, told to the recorder: one request in canonical form for each. Usage: node server.js RECORDER_PORT; prints its own port.
'use strict';
const http = require('http');
const net = require('net');
const port = Number(process.argv[2]);

// Sends the request to the recorder and calls back with the number that it gave it.
function tell(socket, req, body, done) {
    if (!socket.recorder) {
        const c = socket.recorder = net.connect(port, '127.0.0.1');
        let text = '';
        c.setNoDelay(true);
        c.waiting = [];
        c.on('data', d => {
            text += d.toString('latin1');
            for (let end; (end = text.indexOf('\r\n\r\n')) >= 0; text = text.slice(end + 4)) {
                c.waiting.shift()(/\r\nX-Seq: (\d+)/.exec(text.slice(0, end + 2))[1]);
            }
        });
        c.on('error', () => socket.destroy());
        socket.on('close', () => c.destroy());
    }
    socket.recorder.waiting.push(done);
    const head = `${req.method} ${req.url} HTTP/1.1\r\nHost: ${req.headers.host}\r\nX-Real-IP: ${req.headers['x-real-ip']}\r\nX-Record: 1\r\nContent-Length: ${body.length}\r\n\r\n`;
    socket.recorder.write(Buffer.concat([Buffer.from(head, 'latin1'), body]));
}

const server = http.createServer({ keepAliveTimeout: 600000, requestTimeout: 0, maxHeaderSize: 65536 }, (req, res) => {
    const parts = [];
    req.on('data', d => parts.push(d));
    req.on('end', () => tell(req.socket, req, Buffer.concat(parts), seq => {
        res.setHeader('X-Seq', seq);
        res.setHeader('Content-Length', 2);
        res.end('ok');
    }));
});
server.listen(0, '127.0.0.1', 4096, () => console.log(server.address().port));
