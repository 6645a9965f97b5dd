"""What the driver must see of a stream, from its reading; and who is at fault when it sees something else."""
import struct

import reading as reference


def line(request):
    return b">%s %s %s %d:%s\n" % (request.method, request.target, request.host, len(request.body), request.body)


def ways(reading):
    """Every transcript that is right for the reading, as (answers to wait for, partial allowed, transcript)."""
    done = []

    def go(i, seen, answers, n, count):
        if i == len(reading.requests):
            finish(seen, answers, n)
            return
        q = reading.requests[i]
        if q.routed:
            seen += line(q)
            one = b"200#%d" % count
            count += 1
        else:
            one = b"404"
        closes = q.closes
        # An answer that comes before the body may end the connection; so may what Connection says in no known words.
        may = q.may_close or (not q.routed and (q.chunked or q.expects or (q.length or 0) > 65536))
        if closes or may:
            done.append((n + 1, False, seen + b"|" + answers + one + b"! ."))
        if not closes:
            go(i + 1, seen, answers + one + b" ", n + 1, count)

    def finish(seen, answers, n):
        if reading.end == "refused":
            last = reading.last
            if reading.within_body and not last.routed:          # its answer went out before
                done.append((n + 1, False, seen + b"|" + answers + b"404! ."))
                if not last.closes:
                    done.append((n + 1, False, seen + b"|" + answers + b"404 ."))
            for status in reading.statuses:
                done.append((n + 1, reading.within_body, seen + b"|" + answers + b"%d! ." % status))
            return
        if reading.end == "cut":
            last = reading.last
            if reading.within_body and not last.routed:
                done.append((n + 1, False, seen + b"|" + answers + b"404! ."))
                done.append((n + 1, False, seen + b"|" + answers + b"404 ."))
                done.append((n + 1, False, seen + b"|" + answers + b"404 400! ."))
                return
            for rest in (b"", b"400! "):                         # it may be known before the end that nothing can become of it
                done.append((n, reading.within_body, seen + b"|" + answers + rest + b"."))
            return
        done.append((n, False, seen + b"|" + answers + b"."))

    go(0, b"", b"", 0, 0)
    return done[:16]


def record(seed, octets, pieces, fin, reading):
    """What the driver reads on its stdin."""
    alts = ways(reading)
    return b"".join([struct.pack("<QBBH", seed, 1 if fin else 0, len(pieces), len(alts)), struct.pack("<%dI" % len(pieces), *pieces)]
                    + [struct.pack("<IHH", len(t), n, 1 if partial else 0) for n, partial, t in alts] + [octets] + [t for _, _, t in alts])


def count(reading):
    """Messages that were read: those that are valid, and the one that ends the stream."""
    return len(reading.requests) + (reading.end in ("refused", "cut"))


def verdict(reading, transcript):
    """In a word, what is wrong with the transcript."""
    seen, _, answers = transcript.rpartition(b"|")
    right = b"".join(line(q) for q in reading.requests if q.routed)
    if b"X" == seen[:1] or b"\nX" in seen:
        return "the upstream was sent what is no request"
    if seen != right:
        if right.startswith(seen):
            return "too strict: a valid request was not forwarded"
        return "ambiguous forwarded" if seen.startswith(right) else "other requests were forwarded"
    if answers.endswith(b"T") or answers.endswith(b"T~"):
        return "late: nothing happens any more"
    if b"~" in answers and not reading.within_body:
        return "a request was begun that is none"
    return "other answers"


__all__ = ["count", "record", "reference", "verdict", "ways"]
