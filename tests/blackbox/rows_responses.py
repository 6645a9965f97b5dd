"""Responses that upstreams send (see rows.py)."""
from rows_base import CUT, GONE, TE, Response, get, ok, post

CHUNKS = b"2\r\nok\r\n0\r\n\r\n"
NO_FRAMING = (b"Content-Length", b"Transfer-Encoding")
HEAD = get(method=b"HEAD", target=b"/1")
WS = get(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n", target=b"/1")
OLD = get(target=b"/1", version=b"HTTP/1.0")
SWITCH = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
HEAD_BYTES, FIELDS, INTERIM, EXT_BYTES = 16384, 200, 16, 4096


def text(v):
    return repr(v)[1:]


# ---------------------------------------------------------------------------------------------------------------------------
# Framing

FRAMING = [
    Response("F20", "a length", ok(), 200, b"ok", reuse=True),
    Response("F20", "chunks", ok(TE, CHUNKS), 200, b"ok", reuse=True),
    Response("F20", "chunks, letter case", ok(b"transfer-encoding: Chunked\r\n", CHUNKS), 200, b"ok", reuse=True),
    Response("F20", "chunks, white space around", ok(b"Transfer-Encoding: \t chunked \t\r\n", CHUNKS), 200, b"ok", reuse=True),
    Response("F20", "length with white space around", ok(b"Content-Length: \t2 \r\n"), 200, b"ok", reuse=True),
    Response("F20", "length 0", ok(b"Content-Length: 0\r\n", b""), 200, b"", reuse=True),
    Response("F20", "no chunks", ok(TE, b"0\r\n\r\n"), 200, b"", reuse=True),
    Response("F20", "both", ok(b"Content-Length: 2\r\n" + TE, CHUNKS), 502),
    Response("F20", "both, the other order", ok(TE + b"Content-Length: 2\r\n", CHUNKS), 502),
    Response("F20", "chunked and length 0", ok(TE + b"Content-Length: 0\r\n", CHUNKS), 502),
    Response("F20", "both, to a HEAD", ok(b"Content-Length: 5\r\n" + TE, b""), 502, request=HEAD),
    Response("F20", "both, in a 304", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n" + TE + b"\r\n", 502),
    Response("F20", "both, in a 204", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n" + TE + b"\r\n", 502),
    Response("F20", "both, in a 1xx", b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n" + TE + b"\r\n" + ok(), 502),
    Response("F20", "both, in an error", ok(b"Content-Length: 2\r\n" + TE, CHUNKS, status=b"500 Oops"), 502),
    Response("F20", "two lengths", ok(b"Content-Length: 2\r\nContent-Length: 3\r\n", b"ok!"), 502),
    Response("F20", "two lengths, 0 first", ok(b"Content-Length: 0\r\nContent-Length: 2\r\n"), 502),
    Response("F20", "a list of lengths", ok(b"Content-Length: 2, 3\r\n", b"ok!"), 502),
    Response("F20", "the same length twice", ok(b"Content-Length: 2\r\nContent-Length: 2\r\n"), 502, choice="RFC 9110 lets a recipient merge them; refused"),
    Response("F20", "the same length in a list", ok(b"Content-Length: 2, 2\r\n"), 502),
    Response("F20", "two lengths, to a HEAD", ok(b"Content-Length: 2\r\nContent-Length: 3\r\n", b""), 502, request=HEAD),
    Response("F20", "chunked twice", ok(TE + TE, CHUNKS), 502),
    Response("F20", "chunked, chunked", ok(b"Transfer-Encoding: chunked, chunked\r\n", CHUNKS), 502),
    Response("F20", "gzip, chunked", ok(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS), 502, choice="legal, but an upstream that is asked without TE must not send it"),
    Response("F20", "chunked, gzip", ok(b"Transfer-Encoding: chunked, gzip\r\n", b"ok"), 502, end="fin"),
    Response("F20", "gzip to the end", ok(b"Transfer-Encoding: gzip\r\n", b"ok"), 502, end="fin"),
    Response("F20", "identity and a length", ok(b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n"), 502),
    Response("F20", "identity alone", ok(b"Transfer-Encoding: identity\r\n"), 502, end="fin"),
    Response("F20", "gzip, in a 304", b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: gzip\r\n\r\n", 502),
    Response("F20", "gzip, in a 204", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: gzip\r\n\r\n", 502),
    Response("F20", "gzip, to a HEAD", ok(b"Transfer-Encoding: gzip\r\n", b""), 502, request=HEAD),
    Response("F20", "a bad length, to a HEAD", ok(b"Content-Length: x\r\n", b""), 502, request=HEAD),
    Response("F20", "a bad length, in a 304", b"HTTP/1.1 304 Not Modified\r\nContent-Length: -1\r\n\r\n", 502),
    Response("F20", "empty coding", ok(b"Transfer-Encoding:\r\nContent-Length: 2\r\n"), 502),
    Response("F20", "chunked in 1.0", ok(TE, CHUNKS, version=b"HTTP/1.0"), 502),
    Response("F20", "folded coding", ok(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS), 502),
    Response("F20", "space before the colon of a coding", ok(b"Transfer-Encoding : chunked\r\n", CHUNKS), 502),
    Response("F20", "Transfer_Encoding is none", ok(b"Transfer_Encoding: chunked\r\nContent-Length: 2\r\n"), 200, b"ok", reuse=True),
] + [
    Response("F20", "coding %s" % text(v), ok(b"Transfer-Encoding: " + v + b"\r\n", CHUNKS), 502)
    for v in (b"xchunked", b"chunked;a=b", b",chunked", b"chunked,", b"\x0bchunked", b"chunked\x00", b"\"chunked\"", b"chunked x", b"\xa0chunked", b"chunke", b"chunkedd", b"blegh")
] + [
    Response("F20", "length %s" % text(v), ok(b"Content-Length: " + v + b"\r\n"), 502)
    for v in (b"+2", b"-2", b"-0", b"0x2", b"2 2", b"2_0", b"", b"2a", b"2,", b",2", b"2.0", b"2e0", b"2\x0b", b"2\x00", b"\xa02", b"02", b"00", b"99999999999999999999", b"18446744073709551618", b"9223372036854775808")
] + [
    Response("F20", "chunk size %s" % text(v), ok(TE, v + b"\r\nok\r\n0\r\n\r\n"), GONE)
    for v in (b"0x2", b"+2", b"-2", b"2_", b" 2", b"2 ", b"\t2", b"", b"z", b"2\x00", b"2\xa0", b"2,", b"2.0", b"\"2\"", b"ok", b"00000000000000002", b"10000000000000002", b"8000000000000000", b"fffffffffffffffff")
] + [
    Response("F20", case, ok(TE, v), GONE, ref=ref)
    for case, v, ref in (
        ("chunk data too long", b"2\r\nokX\r\n0\r\n\r\n", ""), ("chunk data too short", b"3\r\nok\r\n0\r\n\r\n", ""), ("chunk data end XX", b"2\r\nokXX0\r\n\r\n", "CVE-2025-43859"), ("chunk data end LF", b"2\r\nok\n0\r\n\r\n", ""),
        ("chunk data end CR", b"2\r\nok\r0\r\n\r\n", ""), ("LF all over", b"2\nok\n0\n\n", ""), ("LF behind a size", b"2\nok\r\n0\r\n\r\n", ""), ("CR behind a size", b"2\rok\r\n0\r\n\r\n", ""), ("bad second size", b"2\r\nok\r\nx\r\nok\r\n0\r\n\r\n", ""),
        ("bad last size", b"2\r\nok\r\n0x\r\n\r\n", ""), ("minus nought", b"2\r\nok\r\n-0\r\n\r\n", ""), ("bare LF in an extension", b"2;\nok\r\n0\r\n\r\n", ""), ("bare CR in an extension", b"2;a\rb\r\nok\r\n0\r\n\r\n", ""), ("NUL in an extension", b"2;a\x00\r\nok\r\n0\r\n\r\n", ""),
        ("only a semicolon", b"2;\r\nok\r\n0\r\n\r\n", ""), ("a bracket in an extension", b"2;[\r\nok\r\n0\r\n\r\n", ""), ("an open quote in an extension", b"2;a=\"\r\nok\r\n0\r\n\r\n", ""), ("a long extension", b"2;" + b"a" * 5000 + b"\r\nok\r\n0\r\n\r\n", "CVE-2023-39326"),
        ("CR CR before an extension", b"2\r\r;a\r\nok\r\n0\r\n\r\n", ""), ("something behind the last chunk", b"2\r\nok\r\n0\r\nX\r\n\r\n", ""), ("LF at the very end", b"2\r\nok\r\n0\r\n\n", ""), ("CR X at the very end", b"2\r\nok\r\n0\r\n\rX", ""),
        ("a trailer without a colon", b"2\r\nok\r\n0\r\nnocolon\r\n\r\n", ""), ("a trailer with a space before the colon", b"2\r\nok\r\n0\r\nX : y\r\n\r\n", ""), ("a trailer with LF", b"2\r\nok\r\n0\r\nX: y\nZ: 1\r\n\r\n", ""), ("a trailer with NUL", b"2\r\nok\r\n0\r\nX: \x00\r\n\r\n", ""),
        ("a folded trailer", b"2\r\nok\r\n0\r\nX: y\r\n z\r\n\r\n", ""), ("an empty trailer name", b"2\r\nok\r\n0\r\n: y\r\n\r\n", ""), ("a long trailer", b"2\r\nok\r\n0\r\nX: " + b"y" * 70000 + b"\r\n\r\n", ""), ("many trailers", b"2\r\nok\r\n0\r\n" + b"X: y\r\n" * 5000 + b"\r\n", ""),
        ("a response for a trailer", b"2\r\nok\r\n0\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""))
] + [
    Response("F20", "extensions are dropped", ok(TE, b"2;a=b\r\nok\r\n0;c\r\n\r\n"), 200, b"ok", reuse=True),
    Response("F20", "an extension at the limit", ok(TE, b"2;" + b"a" * (EXT_BYTES - 1) + b"\r\nok\r\n0\r\n\r\n"), 200, b"ok", reuse=True),
    Response("F20", "leading zeros of a size", ok(TE, b"0002\r\nok\r\n0000\r\n\r\n"), 200, b"ok", reuse=True),
    Response("F18", "a trailer passes", ok(TE, b"2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n"), 200, b"ok", reuse=True, has={b"trailer X-Sum": b"1"}, lacks=(b"X-Sum",)),
] + [
    Response("F18", "%s is dropped" % n.decode(), ok(TE, b"2\r\nok\r\n0\r\n" + n + b": 100\r\n\r\n"), 200, b"ok", reuse=True, lacks=(b"trailer " + n,) + ((n,) if n != b"Transfer-Encoding" else ()))
    for n in (b"Content-Length", b"Transfer-Encoding", b"Set-Cookie", b"Location", b"Content-Type", b"Content-Encoding", b"Connection", b"Cache-Control", b"WWW-Authenticate", b"Trailer", b"Server", b"Age")
] + [
    Response("F21", "to the end", ok(b"", b"hello"), 200, b"hello", end="fin", choice="chunked to a client of 1.1, to the end to one of 1.0"),
    Response("F21", "to the end, nothing", ok(b"", b""), 200, b"", end="fin"),
    Response("F21", "to the end in 1.0", ok(b"", b"hello", version=b"HTTP/1.0"), 200, b"hello", end="fin"),
    Response("F21", "to the end with keep-alive", ok(b"Connection: keep-alive\r\n", b"hello"), 200, b"hello", end="fin"),
    Response("F21", "to the end, what looks like a response", ok(b"", ok()), 200, ok(), end="fin"),
    Response("F21", "to the end, to a client of 1.0", ok(b"", b"hello"), 200, b"hello", end="fin", request=OLD, lacks=(b"Transfer-Encoding",)),
    Response("F21", "chunks to a client of 1.0", ok(TE, CHUNKS), 200, b"ok", reuse=True, request=OLD, lacks=(b"Transfer-Encoding",)),
    Response("F21", "to the reset", ok(b"", b"hello"), CUT, end="rst"),
    Response("F21", "to the reset, to a client of 1.0", ok(b"", b"hello"), CUT, end="rst", request=OLD, choice="the client is reset too: for it the end of the connection is the end of the answer"),
    Response("F21", "to the reset in 1.0", ok(b"", b"hello", version=b"HTTP/1.0"), CUT, end="rst"),
    Response("F21", "to the reset, an error status", ok(b"", b"hello", status=b"500 Oops"), CUT, end="rst"),
    Response("F19", "counted and cut", ok(b"Content-Length: 10\r\n", b"hello"), CUT, end="fin"),
    Response("F19", "counted and cut by an octet", ok(b"Content-Length: 6\r\n", b"hello"), CUT, end="fin"),
    Response("F19", "counted and reset", ok(b"Content-Length: 10\r\n", b"hello"), CUT, end="rst"),
    Response("F19", "counted and cut before the body", ok(b"Content-Length: 10\r\n", b""), GONE, end="fin"),
    Response("F19", "counted and cut, to a client of 1.0", ok(b"Content-Length: 10\r\n", b"hello"), CUT, end="fin", request=OLD),
    Response("F19", "chunked and cut", ok(TE, b"5\r\nhello\r\n"), CUT, end="fin"),
    Response("F19", "chunked and cut, to a client of 1.0", ok(TE, b"5\r\nhello\r\n"), CUT, end="fin", request=OLD, choice="the client is reset"),
    Response("F19", "chunked and reset, to a client of 1.0", ok(TE, b"5\r\nhello\r\n"), CUT, end="rst", request=OLD),
    Response("F19", "chunked and bad behind a good chunk, to a client of 1.0", ok(TE, b"5\r\nhello\r\nx"), GONE, request=OLD),
    Response("F19", "a length of 2^63 - 1 and the end", ok(b"Content-Length: 9223372036854775807\r\n", b"hello"), CUT, end="fin"),
    Response("F19", "chunked and reset", ok(TE, b"5\r\nhello\r\n"), CUT, end="rst"),
    Response("F19", "chunked and cut before the last CRLF", ok(TE, b"5\r\nhello\r\n0\r\n"), CUT, end="fin"),
    Response("F19", "chunked and cut within the last CRLF", ok(TE, b"5\r\nhello\r\n0\r\n\r"), CUT, end="fin"),
    Response("F19", "chunked and cut within trailers", ok(TE, b"5\r\nhello\r\n0\r\nX: y\r\n"), CUT, end="fin"),
    Response("F19", "chunked and cut within a chunk", ok(TE, b"5\r\nhel"), CUT, end="fin"),
    Response("F19", "chunked and cut within a size", ok(TE, b"5\r\nhello\r\n1"), CUT, end="fin"),
    Response("F19", "chunked and cut before the first size", ok(TE, b""), GONE, end="fin"),
    Response("F19", "no answer", b"", 502, end="fin"),
    Response("F19", "no answer, reset", b"", 502, end="rst"),
    Response("F19", "half a status line", b"HTTP/1.1 20", 502, end="fin"),
    Response("F19", "half a head", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", 502, end="fin"),
    Response("F19", "half a head, reset", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", 502, end="rst"),
    Response("F19", "half an empty line", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r", 502, end="fin"),
    Response("F19", "a 100 and the end", b"HTTP/1.1 100 Continue\r\n\r\n", 502, end="fin", interim=(100,)),
    Response("F19", "a 100 and half a head", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", 502, end="fin", interim=(100,)),

    Response("F22", "another answer behind", ok() + ok(body=b"no"), 200, b"ok"),
    Response("F22", "one octet behind", ok() + b"x", 200, b"ok"),
    Response("F22", "NUL behind", ok() + b"\x00", 200, b"ok"),
    Response("F22", "CRLF behind", ok() + b"\r\n", 200, b"ok", choice="some servers send it; the answer stands, the connection is not used again"),
    Response("F22", "behind chunks", ok(TE, CHUNKS) + ok(), 200, b"ok"),
    Response("F22", "CRLF behind chunks", ok(TE, CHUNKS) + b"\r\n", 200, b"ok"),
    Response("F22", "behind a length of 0", ok(b"Content-Length: 0\r\n", b"") + ok(), 200, b""),
    Response("F22", "behind an error", ok(status=b"404 Not Found") + ok(), 404, b"ok"),
    Response("F22", "half a head behind", ok() + b"HTTP/1.1 200", 200, b"ok"),
    Response("F22", "a 100 behind", ok() + b"HTTP/1.1 100 Continue\r\n\r\n", 200, b"ok"),
    Response("F22", "behind a 304", b"HTTP/1.1 304 Not Modified\r\n\r\n" + ok(), 304, b""),
    Response("F22", "behind a HEAD", ok(b"Content-Length: 2\r\n", b"") + ok(), 200, b"", request=HEAD),

    Response("F23", "204", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", lacks=NO_FRAMING, reuse=True),
    Response("F23", "204 with length 0", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, b"", lacks=NO_FRAMING, reuse=True, ref="COMP-NO-CL-IN-204", choice="common and harmless; the length is dropped"),
    Response("F23", "204 with length 0 to HEAD", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, b"", lacks=NO_FRAMING, reuse=True, request=HEAD),
    Response("F23", "204 with a body", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", 204, b"", lacks=NO_FRAMING),
    Response("F23", "204 with a length, and no body", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, b"", lacks=NO_FRAMING, choice="the answer passes, the connection is not used again: a body may still come"),
    Response("F23", "204 with chunks", b"HTTP/1.1 204 No Content\r\n" + TE + b"\r\n0\r\n\r\n", 204, b"", lacks=NO_FRAMING),
    Response("F23", "204 chunked, and no chunks", b"HTTP/1.1 204 No Content\r\n" + TE + b"\r\n", 204, b"", lacks=NO_FRAMING),
    Response("F23", "204 and a body without framing", b"HTTP/1.1 204 No Content\r\n\r\nhello", 204, b"", lacks=NO_FRAMING),
    Response("F23", "204 to a client of 1.0", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", lacks=NO_FRAMING, reuse=True, request=OLD),
    Response("F23", "304", b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n", 304, b"", has={b"ETag": b"\"x\""}, lacks=(b"Transfer-Encoding",), reuse=True),
    Response("F23", "304 with a length", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", has={b"Content-Length": b"5"}, lacks=(b"Transfer-Encoding",), reuse=True),
    Response("F23", "304 with chunked", b"HTTP/1.1 304 Not Modified\r\n" + TE + b"\r\n", 304, b"", lacks=(b"Content-Length",), reuse=True),
    Response("F23", "304 with a body", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello", 304, b""),
    Response("F23", "304 with chunks", b"HTTP/1.1 304 Not Modified\r\n" + TE + b"\r\n" + CHUNKS, 304, b""),
    Response("F23", "205", b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", 205, b"", reuse=True),
    Response("F23", "205 with a body is framed as any", ok(status=b"205 Reset Content"), 205, b"ok", reuse=True),
    Response("F23", "HEAD", ok(b"Content-Length: 5\r\n", b""), 200, b"", has={b"Content-Length": b"5"}, request=HEAD, reuse=True),
    Response("F23", "HEAD with chunked", ok(TE, b""), 200, b"", request=HEAD, reuse=True),
    Response("F23", "HEAD without framing", ok(b"", b""), 200, b"", request=HEAD, reuse=True),
    Response("F23", "HEAD with a body", ok(b"Content-Length: 5\r\n", b"hello"), 200, b"", request=HEAD, ref="COMP-HEAD-NO-BODY"),
    Response("F23", "HEAD with chunks", ok(TE, b"0\r\n\r\n"), 200, b"", request=HEAD),
    Response("F23", "HEAD with a response for a body", ok(b"Content-Length: 38\r\n", ok()), 200, b"", request=HEAD),
    Response("F23", "HEAD and 404", ok(b"Content-Length: 5\r\n", b"", status=b"404 Not Found"), 404, b"", request=HEAD, reuse=True),
    Response("F23", "HEAD and 204", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", request=HEAD, reuse=True),

    Response("F23", "an unasked 100", b"HTTP/1.1 100 Continue\r\n\r\n" + ok(), 200, b"ok", reuse=True, interim=(100,)),
    Response("F23", "two of 100", b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + ok(), 200, b"ok", reuse=True, interim=(100,)),
    Response("F23", "100, to a client of 1.0", b"HTTP/1.1 100 Continue\r\n\r\n" + ok(), 200, b"ok", reuse=True, request=OLD, ref="COMP-NO-1XX-HTTP10"),
    Response("F23", "103", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok(), 200, b"ok", reuse=True, interim=(103,)),
    Response("F23", "102 and 103", b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + ok(), 200, b"ok", reuse=True, interim=(102, 103)),
    Response("F23", "199", b"HTTP/1.1 199 x\r\n\r\n" + ok(), 200, b"ok", reuse=True, interim=(199,)),
    Response("F23", "103 before a HEAD's answer", b"HTTP/1.1 103 Early Hints\r\n\r\n" + ok(b"Content-Length: 5\r\n", b""), 200, b"", reuse=True, request=HEAD, interim=(103,)),
    Response("F23", "%d of 103" % INTERIM, b"HTTP/1.1 103 Early Hints\r\n\r\n" * INTERIM + ok(), 200, b"ok", reuse=True, interim=(103,) * INTERIM),
    Response("F23", "a flood of 103", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 500 + ok(), 502, interim=(103,) * INTERIM, choice="%d are passed, the next one ends it" % INTERIM),
    Response("F23", "a flood of 100", b"HTTP/1.1 100 Continue\r\n\r\n" * 500 + ok(), 502, interim=(100,)),
    Response("F23", "a 1xx with length 0", b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n" + ok(), 200, b"ok", reuse=True, interim=(103,), choice="harmless; the length is dropped"),
    Response("F23", "a 1xx with a length", b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n" + ok(), 502, choice="a 1xx has no body; whoever announces one may send it"),
    Response("F23", "a 1xx with a body", b"HTTP/1.1 103 Early Hints\r\nContent-Length: 38\r\n\r\n" + ok() + ok(), 502),
    Response("F23", "a 1xx with chunked", b"HTTP/1.1 103 Early Hints\r\n" + TE + b"\r\n0\r\n\r\n" + ok(), 502),
    Response("F23", "a 1xx with an octet behind", b"HTTP/1.1 103 Early Hints\r\n\r\nx" + ok(), 502, interim=(103,)),
    Response("F23", "a 1xx with a bad field", b"HTTP/1.1 103 Early Hints\r\nX : y\r\n\r\n" + ok(), 502),
    Response("F23", "a 1xx of 1.0", b"HTTP/1.0 100 Continue\r\n\r\n" + ok(), 502, choice="HTTP/1.0 has no 1xx, so it is not known what follows"),
]

UPGRADES = [
    Response("7.4", "101 unasked", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello", 502),
    Response("7.4", "101 to websocket unasked", b"HTTP/1.1 101 Switching Protocols\r\n" + SWITCH + b"\r\nhello", 502),
    Response("7.4", "101 unasked, and an answer", b"HTTP/1.1 101 Switching Protocols\r\n" + SWITCH + b"\r\n" + ok(), 502),
    Response("7.4", "101 to a HEAD", b"HTTP/1.1 101 Switching Protocols\r\n" + SWITCH + b"\r\n", 502, request=HEAD),
    Response("7.4", "101 to another protocol", b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nhello", 502, request=WS),
    Response("7.4", "101 to two protocols", b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\nhello", 502, request=WS),
    Response("7.4", "101 to websocket twice", b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: websocket\r\n\r\nhello", 502, request=WS),
    Response("7.4", "101 without Upgrade", b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nhello", 502, request=WS),
    Response("7.4", "101 without Connection", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nhello", 502, request=WS),
    Response("7.4", "101 in 1.0", b"HTTP/1.0 101 Switching Protocols\r\n" + SWITCH + b"\r\nhello", 502, request=WS),
    Response("7.4", "101 with a length", b"HTTP/1.1 101 Switching Protocols\r\n" + SWITCH + b"Content-Length: 5\r\n\r\nhello", 502, request=WS),
    Response("7.4", "101 with chunks", b"HTTP/1.1 101 Switching Protocols\r\n" + SWITCH + TE + b"\r\n5\r\nhello\r\n0\r\n\r\n", 502, request=WS),
    Response("7.4", "half a 101", b"HTTP/1.1 101 Switching Protocols\r\n" + SWITCH, 502, request=WS, end="fin"),
    Response("7.4", "426 to an upgrade", ok(b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n", status=b"426 Upgrade Required"), 426, b"ok", reuse=True, request=WS),
    Response("7.4", "200 to an upgrade", ok(), 200, b"ok", reuse=True, request=WS),
    Response("7.4", "200 that claims to switch", ok(SWITCH + b"Content-Length: 2\r\n"), 200, b"ok", reuse=True, request=WS, lacks=(b"Upgrade", b"Connection")),
    Response("7.4", "100 before a refused upgrade", b"HTTP/1.1 100 Continue\r\n\r\n" + ok(status=b"403 Forbidden"), 403, b"ok", reuse=True, request=WS, interim=(100,)),
]

# ---------------------------------------------------------------------------------------------------------------------------
# Fields

FIELDS_ROWS = [
    Response("H1", "folded", ok(b"Content-Length: 2\r\nX: y\r\n z\r\n"), 502, choice="RFC 9112 lets a proxy put spaces in its place; refused"),
    Response("H1", "folded with a tab", ok(b"Content-Length: 2\r\nX: y\r\n\tz\r\n"), 502),
    Response("H1", "folded last field", ok(b"X: y\r\n Content-Length: 2\r\n"), 502),
    Response("H7", "space before the first field", ok(b" X: y\r\nContent-Length: 2\r\n"), 502),
    Response("H7", "a line of white space", ok(b" \r\nContent-Length: 2\r\n"), 502),
    Response("H2", "space before the colon", ok(b"Content-Length: 2\r\nX : y\r\n"), 502, choice="RFC 9112 demands that it is removed or refused; refused"),
    Response("H2", "space before the colon of a length", ok(b"Content-Length : 2\r\n"), 502),
    Response("H2", "tab before the colon", ok(b"Content-Length: 2\r\nX\t: y\r\n"), 502),
    Response("H3", "no colon", ok(b"Content-Length: 2\r\nNoColon\r\n"), 502),
    Response("H3", "empty name", ok(b"Content-Length: 2\r\n: y\r\n"), 502),
    Response("H3", "only a colon", ok(b":\r\nContent-Length: 2\r\n"), 502),
    Response("H3", "every token character is legal", ok(b"Content-Length: 2\r\n!#$%&'*+-.^_`|~09azAZ: v\r\n"), 200, b"ok", reuse=True, has={b"!#$%&'*+-.^_`|~09azAZ": b"v"}),
] + [
    Response("H3", "%s in a name" % text(v), ok(b"Content-Length: 2\r\nX" + v + b"Y: y\r\n"), 502) for v in (b"\x00", b"\x01", b"\x0b", b"\x7f", b"\x80", b"\x85", b"\xa0", b" ", b"(", b",", b"/", b";", b"[", b"{", b"\"", b"@", b"\\")
] + [
    Response("H4", "%s in a value" % text(v), ok(b"Content-Length: 2\r\nX: a" + v + b"b\r\n"), 502) for v in (b"\x00", b"\x01", b"\x08", b"\x0b", b"\x0c", b"\x1b", b"\x1f", b"\x7f", b"\r", b"\n", b"\r\r", b"\rSet-Cookie: a=b", b"\nSet-Cookie: a=b")
] + [
    Response("H4", "NUL in a cookie", ok(b"Content-Length: 2\r\nSet-Cookie: a=\x00\r\n"), 502),
    Response("H4", "CR in Location", ok(b"Content-Length: 2\r\nLocation: /a\rSet-Cookie: x\r\n", status=b"302 Found"), 502),
    Response("H4", "obs-text passes", ok(b"Content-Length: 2\r\nX: \xe4\xff\r\n"), 200, b"ok", reuse=True, has={b"X": b"\xe4\xff"}, choice="RFC 9110 lets it be refused; file names in Latin-1 and UTF-8 do occur"),
    Response("H4", "an empty value", ok(b"Content-Length: 2\r\nX:\r\n"), 200, b"ok", reuse=True, has={b"X": b""}),
    Response("H4", "white space around", ok(b"Content-Length: 2\r\nX: \t a b \t\r\n"), 200, b"ok", reuse=True, has={b"X": b"a b"}),
    Response("H5", "LF lines", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 502, choice="RFC 9112 lets a recipient take them; refused"),
    Response("H5", "LF behind the status line", b"HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nok", 502),
    Response("H5", "LF behind a field", b"HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\nok", 502),
    Response("H5", "LF at the end of the head", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\nok", 502),
    Response("H6", "CR lines", b"HTTP/1.1 200 OK\rContent-Length: 2\r\rok", 502),
    Response("H6", "CR CR LF", b"HTTP/1.1 200 OK\r\r\nContent-Length: 2\r\n\r\nok", 502),
    Response("H6", "CR X at the end of the head", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\rXok", 502),
    Response("H8", "an empty line before it", b"\r\n" + ok(), 502, choice="only requests may have one"),
    Response("H8", "LF before it", b"\n" + ok(), 502),
    Response("H8", "a space before it", b" " + ok(), 502),
    Response("H8", "NUL before it", b"\x00" + ok(), 502),
    Response("H8", "a TLS alert", b"\x15\x03\x01\x00\x02\x02\x46", 502, end="fin"),
    Response("H8", "an HTTP/2 preface of a server", b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64", 502),
    Response("H8", "a request", get(), 502),
    Response("H8", "garbage", b"hello world\r\n\r\n", 502),
    Response("H18", "Connection ends what it names", ok(b"Content-Length: 2\r\nConnection: keep-alive, X-A\r\nX-A: 1\r\nX-B: 2\r\n"), 200, b"ok", reuse=True, has={b"X-B": b"2"}, lacks=(b"X-A", b"Connection")),
    Response("H18", "it cannot take away a cookie", ok(b"Content-Length: 2\r\nConnection: Set-Cookie, Content-Type\r\nSet-Cookie: a=1\r\nContent-Type: x/y\r\n"), 200, b"ok", reuse=True, has={b"Set-Cookie": b"a=1", b"Content-Type": b"x/y"}),
    Response("H18", "it cannot take away framing", ok(b"Connection: Content-Length\r\nContent-Length: 2\r\n"), 200, b"ok", reuse=True, has={b"Content-Length": b"2"}),
    Response("H18", "close", ok(b"Content-Length: 2\r\nConnection: close\r\n"), 200, b"ok", lacks=(b"Connection",)),
    Response("H18", "close in a list, in other letters", ok(b"Content-Length: 2\r\nConnection: x, CLOSE\r\n"), 200, b"ok", lacks=(b"Connection",)),
    Response("H18", "close and keep-alive", ok(b"Content-Length: 2\r\nConnection: keep-alive\r\nConnection: close\r\n"), 200, b"ok"),
    Response("H18", "an option that is no token", ok(b"Content-Length: 2\r\nConnection: \"close\"\r\n"), 200, b"ok", choice="it names nothing; the connection is not trusted to live on"),
    Response("H18", "65 options", ok(b"Content-Length: 2\r\nConnection: " + b", ".join(b"x%d" % i for i in range(65)) + b"\r\n"), 502),
    Response("H23", "hop-by-hop fields end here", ok(b"Content-Length: 2\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nTE: x\r\nUpgrade: h2c\r\n"), 200, b"ok", reuse=True, lacks=(b"Keep-Alive", b"Proxy-Connection", b"TE", b"Upgrade")),
    Response("H23", "several cookies stay several", ok(b"Content-Length: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"), 200, b"ok", reuse=True, has={b"Set-Cookie": b"a=1, b=2"}),
    Response("H23", "Server is not passed", ok(b"Content-Length: 2\r\nServer: backend/1\r\n"), 200, b"ok", reuse=True, lacks=(b"Server",)),

    Response("H22", "head at the limit", ok(b"Content-Length: 2\r\nX: " + b"a" * (HEAD_BYTES - len(ok(b"Content-Length: 2\r\nX: \r\n", b""))) + b"\r\n"), 200, b"ok", reuse=True),
    Response("H22", "head above the limit", ok(b"Content-Length: 2\r\nX: " + b"a" * (HEAD_BYTES - len(ok(b"Content-Length: 2\r\nX: \r\n", b"")) + 1) + b"\r\n"), 502),
    Response("H22", "a head of 1 MB", ok(b"Content-Length: 2\r\n" + b"X: y\r\n" * 170000), 502),
    Response("H22", "a reason of 100 kB", ok(status=b"200 " + b"a" * 100000), 502),
    Response("H22", "a name of 100 kB", ok(b"Content-Length: 2\r\n" + b"a" * 100000 + b": x\r\n"), 502),
    Response("H22", "a value that never ends", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100000, 502),
    Response("H22", "many fields at the limit", ok(b"Content-Length: 2\r\n" + b"X: y\r\n" * (FIELDS - 1)), 200, b"ok", reuse=True),
    Response("H22", "many fields above the limit", ok(b"Content-Length: 2\r\n" + b"X: y\r\n" * FIELDS), 502),
    Response("H22", "a 1xx above the limit", b"HTTP/1.1 103 Early Hints\r\nX: " + b"a" * HEAD_BYTES + b"\r\n\r\n" + ok(), 502),

    Response("H25", "an empty reason", ok(status=b"200 "), 200, b"ok", reuse=True),
    Response("H25", "no reason and no space", ok(status=b"200"), 200, b"ok", reuse=True, choice="RFC 9112 wants the space; many servers leave it out, and nothing else can be meant"),
    Response("H25", "obs-text in the reason", ok(status=b"200 \xe4 ok"), 200, b"ok", reuse=True),
    Response("H25", "a tab in the reason", ok(status=b"200 a\tb"), 200, b"ok", reuse=True),
    Response("H25", "a reason that looks like a status", ok(status=b"404 HTTP/1.1 200 OK"), 404, b"ok", reuse=True),
    Response("H25", "a reason that is wrong", ok(status=b"200 Not Found"), 200, b"ok", reuse=True),
    Response("H25", "1.2 is read as 1.1", ok(version=b"HTTP/1.2"), 200, b"ok", reuse=True),
    Response("H25", "1.0, counted", ok(version=b"HTTP/1.0"), 200, b"ok"),
    Response("H25", "1.0, counted, keep-alive", ok(b"Content-Length: 2\r\nConnection: keep-alive\r\n", version=b"HTTP/1.0"), 200, b"ok", reuse=True),
] + [
    Response("H25", "status %d passes" % n, ok(status=b"%d x" % n), n, b"ok", reuse=True) for n in (201, 299, 300, 399, 400, 404, 418, 499, 500, 503, 599)
] + [
    Response("H25", text(v), v + b"\r\nContent-Length: 2\r\n\r\nok", 502, choice="RFC 9110 §15 lets it pass as a 5xx; refused" if v == b"HTTP/1.1 600 OK" else "")
    for v in (b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 1000 OK", b"HTTP/1.1 000 OK", b"HTTP/1.1 099 OK", b"HTTP/1.1 600 OK", b"HTTP/1.1 700 OK", b"HTTP/1.1 999 OK", b"HTTP/1.1 2x0 OK", b"HTTP/1.1 -20 OK", b"HTTP/1.1 +20 OK", b"HTTP/1.1 0200 OK", b"HTTP/1.1 0xc8 OK",
              b"HTTP/1.1 2 00 OK", b"HTTP/1.1 200.1 OK", b"HTTP/1.1 200OK", b"HTTP/1.1 200\tOK", b"HTTP/1.1  200 OK", b"HTTP/1.1\t200 OK", b"HTTP/1.1200 OK", b"HTTP/1.1", b"HTTP/1.1 ", b"HTTP/1.1 OK", b"200 OK", b"HTTP/1.1 200 O\x00K", b"HTTP/1.1 200 O\rK", b"HTTP/1.1 200 O\nK",
              b"HTTP/1.1 200 O\x0bK", b"HTTP/1.1 200 O\x7fK", b"HTTP/1.1 200\x00OK", b"HTTP/1.1 200 OK\r", b"HTTP/1.1 \xb200 OK", b"HTTP/2.0 200 OK", b"HTTP/2 200 OK", b"HTTP/0.9 200 OK", b"HTTP/3.0 200 OK", b"HTTP/1.10 200 OK", b"HTTP/1. 200 OK", b"HTTP/1 200 OK", b"HTTP/01.1 200 OK", b"HTTP/1.a 200 OK", b"HTTP/11 200 OK",
              b"HTTP/ 1.1 200 OK", b"http/1.1 200 OK", b"Http/1.1 200 OK", b"ICY 200 OK", b"RTSP/1.0 200 OK", b"HTTPS/1.1 200 OK", b"SSH-2.0-OpenSSH_9.2", b"220 smtp.test ESMTP", b" HTTP/1.1 200 OK", b"xHTTP/1.1 200 OK", b"\xef\xbb\xbfHTTP/1.1 200 OK")
]

POSTED = post(b"Content-Length: 5\r\n", b"hello", target=b"/1")
AFTER_BODY = [
    Response("F20", "both, to a POST", ok(b"Content-Length: 2\r\n" + TE, CHUNKS), 502, request=POSTED),
    Response("H25", "status 000 to a POST", ok(status=b"000 x"), 502, request=POSTED),
    Response("F22", "an octet behind, to a POST", ok() + b"x", 200, b"ok", request=POSTED),
    Response("F19", "no answer to a POST", b"", 502, request=POSTED, end="fin"),
    Response("F19", "cut, to a POST", ok(b"Content-Length: 10\r\n", b"hello"), CUT, request=POSTED, end="fin"),
    Response("F23", "417 to a body that does not wait", ok(status=b"417 No"), 417, b"ok", reuse=True, request=POSTED),
]

RESPONSES = FRAMING + UPGRADES + FIELDS_ROWS + AFTER_BODY
