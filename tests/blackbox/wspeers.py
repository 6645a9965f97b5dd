"""Real WebSocket libraries at both ends of the proxy: websocket/main.go (gorilla/websocket) and websocket/peer.py (Python's websockets)."""
import json
import os
import subprocess

from harness import ONE, ROOT, SLACK, Ramjet, until

HERE = os.path.dirname(os.path.abspath(__file__))
MADE = os.path.join(ROOT, "build", "websocket")
PEERS = {
    "gorilla": [os.path.join(MADE, "peer-go")],
    "websockets": [os.path.join(MADE, "venv", "bin", "python"), "-B", os.path.join(HERE, "websocket", "peer.py")],
}


def build():
    """Builds and fetches what is missing. Returns why not, or an empty text."""
    made = subprocess.run([os.path.join(HERE, "websocket", "build")], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return made.stderr[-1000:] if made.returncode else ""


class Server:
    """An echo server in a process of its own."""

    def __init__(self, peer, deflate):
        self.process = subprocess.Popen([*PEERS[peer], "serve", *(["-deflate"] if deflate else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def exchange(engine, client, server, deflate, messages, tunnels, workers=2):
    """Sends messages through a ramjet of its own, from one library to the other and back. Returns what the client counted, with `ok`, the
    tunnels that ramjet counted, and its peak of resident memory."""
    s = Server(server, deflate)
    r = Ramjet(engine, ONE.replace("$U", f"127.0.0.1:{s.port}").replace("host = a.test\n", ""), workers=workers).start()
    try:
        run = subprocess.run([*PEERS[client], "load", "-port", str(r.port), "-messages", str(messages), "-tunnels", str(tunnels), *(["-deflate"] if deflate else [])],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600 * SLACK)
        assert run.returncode == 0, run.stderr[-2000:]
        result = json.loads(run.stdout)
        until(lambda: r.metric("ramjet_tunnels") == 0, 5, "the tunnels to end")
        lines = [line for line in r.log() if line["path"] == "/ws"]
        result["tunnels"], result["rss_peak_kb"], result["said"] = int(r.metric("ramjet_tunnels_total")), r.status_kb("VmHWM"), run.stderr[-500:]
        result["ended_badly"] = sum((line["status"], line["error"]) != (101, "") for line in lines)
        result["ok"] = (result["messages"] == messages and not result["lost"] and not result["wrong"] and result["tunnels"] == tunnels and len(lines) == tunnels
                        and not result["ended_badly"])
        return result
    finally:
        r.stop()
        s.stop()
