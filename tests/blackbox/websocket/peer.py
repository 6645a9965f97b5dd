"""A WebSocket echo server, and a client that checks what comes back, on Python's websockets. main.go is the same on gorilla/websocket.

    peer.py serve [-deflate]                                            echoes until standard input ends; prints its port
    peer.py load -port P [-messages N] [-tunnels T] [-seed S] [-deflate] sends N messages through T tunnels; prints a line of JSON
"""
import argparse
import asyncio
import json
import random
import sys
import time

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedOK

UNDER_WAY = 16
EDGES = (0, 1, 125, 126, 127, 128, 4095, 4096, 4097, 16383, 16384, 65535, 65536, 65537)
OPTIONS = {"max_size": None, "ping_interval": None, "close_timeout": 30}


def message(r, i):
    """The i-th message of the stream that r makes: bytes or str."""
    p = r.random()
    n = (1 << 20 if i == 1 else r.choice(EDGES) if p < 0.25 else r.randrange(1025) if p < 0.75 else r.randrange(16385) if p < 0.95
         else r.randrange(131073) if p < 0.99 else r.randrange((1 << 20) + 1))
    if r.random() < 0.5:
        return r.randbytes(n)
    unit = "".join(r.choices(("a", "ramjet ", "é", "€", "😀", "\0", "\n", str(r.random())), k=16))
    size = len(unit.encode())
    return unit * (n // size) + "." * (n % size)


def pieces(data, size):
    return [data[i:i + size] for i in range(0, len(data), size)] or [data]


async def echo(ws):
    i = 0
    async for data in ws:
        await ws.send(pieces(data, 5000) if i % 4 == 3 else data)
        i += 1


async def run_server(deflate):
    async with serve(echo, "127.0.0.1", 0, compression="deflate" if deflate else None, **OPTIONS) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def tunnel(port, n, seed, deflate, res):
    async with connect(f"ws://127.0.0.1:{port}/ws", compression="deflate" if deflate else None, proxy=None, open_timeout=30, **OPTIONS) as ws:
        if bool(ws.response.headers.get("Sec-WebSocket-Extensions")) != deflate:
            raise RuntimeError("permessage-deflate was not agreed on as asked")
        slots, pongs = asyncio.Semaphore(UNDER_WAY), []

        async def send():
            r = random.Random(seed)
            for i in range(n):
                await slots.acquire()
                data = message(r, i)
                if i % 7 == 0:
                    pongs.append(await ws.ping(b"ping %d" % i))
                await ws.send(pieces(data, 777) if i % 3 == 2 else data)
        sender = asyncio.create_task(send())
        try:
            r = random.Random(seed)
            for i in range(n):
                data = await asyncio.wait_for(ws.recv(), 60)
                if data != message(r, i):
                    res["wrong"] += 1
                res["lost"] -= 1
                res["bytes"] += len(data if isinstance(data, bytes) else data.encode())
                slots.release()
            await sender
            await asyncio.wait_for(asyncio.gather(*pongs), 60)
            res["pings"] += len(pongs)
        finally:
            sender.cancel()
        await ws.close()
        try:
            await ws.recv()
            res["wrong"] += 1
        except ConnectionClosedOK:
            pass


async def run_load(options):
    res = {"messages": options.messages, "lost": options.messages, "wrong": 0, "pings": 0, "bytes": 0}
    start = time.monotonic()
    each, more = divmod(options.messages, options.tunnels)
    ends = await asyncio.gather(*(tunnel(options.port, each + (t < more), options.seed + t, options.deflate, res) for t in range(options.tunnels)), return_exceptions=True)
    for why in ends:
        if why is not None:
            res["wrong"] += 1
            print(repr(why), file=sys.stderr)
    res["seconds"] = round(time.monotonic() - start, 3)
    print(json.dumps(res))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("serve", "load"))
    parser.add_argument("-deflate", action="store_true")
    parser.add_argument("-port", type=int)
    parser.add_argument("-messages", type=int, default=1000)
    parser.add_argument("-tunnels", type=int, default=20)
    parser.add_argument("-seed", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(run_server(options.deflate) if options.what == "serve" else run_load(options))


main()
