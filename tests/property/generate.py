"""Writes batches of streams with their readings to stdout: python3 generate.py FIRST STEP [BATCH]. Ends when nobody reads them any more.

A batch: streams u32, messages u32, valid u32, refused u32, octets u32; then that many octets of records for the driver."""
import os
import struct
import sys

import grammar
import judge
from judge import reference


def main(first, step, size):
    seed, out = first, os.fdopen(1, "wb", 0)
    while True:
        parts, messages, valid, refused = [], 0, 0, 0
        for _ in range(size):
            octets, pieces, fin = grammar.stream(seed)
            r = reference.read(octets)
            parts.append(judge.record(seed, octets, pieces, fin, r))
            messages += judge.count(r)
            valid += len(r.requests)
            refused += r.end == "refused"
            seed += step
        body = b"".join(parts)
        data = struct.pack("<5I", size, messages, valid, refused, len(body)) + body
        try:
            while data:
                data = data[out.write(data):]
        except BrokenPipeError:
            return


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 500)
    except KeyboardInterrupt:
        pass
