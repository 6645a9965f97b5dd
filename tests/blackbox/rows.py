"""What a strict edge answers, as data: requests that clients send and responses that upstreams send.

The names begin with the rule: F = framing, H = start line, fields and host, P = paths, B = cases that broke other proxies.
Every row runs on both engines, alone (test_rows.py) and against the other engine (test_differential.py).
"""
from typing import NamedTuple, Optional

EVIL = b"GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\n"

NOTHING = "nothing"      # the upstream is sent no octet
PARTIAL = "partial"      # the upstream may see a request, but never a complete one


class Request(NamedTuple):
    """octets: what the client sends. status: answers allowed; None among them allows a close without an answer.
    sees: NOTHING, PARTIAL, or a dict of what the one request at the upstream is (target, method, body, has, lacks, trailers).
    fin: the client ends its side after the octets."""
    name: str
    octets: bytes
    status: tuple
    sees: object = NOTHING
    fin: bool = False


class Response(NamedTuple):
    """octets: what the upstream sends to request (fin/rst: and then ends). status: what the client gets, None among them allows a cut
    connection (no complete message). body, has, lacks: of the client's response when it is not a 502. reuse: whether the upstream
    connection may be used again (None: either)."""
    name: str
    octets: bytes
    status: tuple
    body: Optional[bytes] = None
    has: dict = {}
    lacks: tuple = ()
    reuse: Optional[bool] = None
    end: str = ""            # "", "fin" or "rst"
    method: str = "GET"
    reason: str = ""


def get(fields=b"", target=b"/", version=b"HTTP/1.1", host=b"Host: a.test\r\n", method=b"GET"):
    return method + b" " + target + b" " + version + b"\r\n" + host + fields + b"\r\n"


def post(fields, body=b"", target=b"/", version=b"HTTP/1.1"):
    return get(fields, target, version, method=b"POST") + body


TE = b"Transfer-Encoding: chunked\r\n"

# ---------------------------------------------------------------------------------------------------------------------------
# Requests

REQUESTS = [
    # F1, B16: both framings
    Request("F1 content-length and chunked", post(b"Content-Length: 6\r\n" + TE, b"0\r\n\r\nG"), (400,)),
    Request("F1 chunked and content-length", post(TE + b"Content-Length: 6\r\n", b"0\r\n\r\nG"), (400,)),
    Request("F1 chunked and content-length 0", post(TE + b"Content-Length: 0\r\n", b"0\r\n\r\n" + EVIL), (400,)),
    Request("F1 both, in a GET", get(b"Content-Length: 5\r\n" + TE) + b"0\r\n\r\n", (400,)),

    # F2: chunked twice
    Request("F2 two lines", post(TE + TE, b"0\r\n\r\n" + EVIL), (400,)),
    Request("F2 list", post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n" + EVIL), (400,)),
    Request("F2 two lines, the second identity", post(TE + b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n" + EVIL), (400, 501)),
    Request("F2 two lines, the first x", post(b"Transfer-Encoding: x\r\n" + TE, b"0\r\n\r\n" + EVIL), (400, 501)),
] + [
    # F3: chunked in disguise
    Request("F3 %r" % v, post(b"Transfer-Encoding: " + v + b"\r\n", b"0\r\n\r\n" + EVIL), (400, 501))
    for v in (b"xchunked", b"chunked;a=b", b",chunked", b"chunked,", b"\x0bchunked", b"chunked\x00", b"\"chunked\"", b"chunked x",
              b"chunked\x0b", b"\xa0chunked", b"chunked\x80", b"chunke", b"chunkedd", b"'chunked'", b"chunked\tx", b"c\thunked", b", chunked")
] + [
    Request("F3 letter case", post(b"transfer-ENCODING: Chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"), (200,), {"body": b"hello"}),
    Request("F3 white space around", post(b"Transfer-Encoding: \t chunked \t\r\n", b"5\r\nhello\r\n0\r\n\r\n"), (200,), {"body": b"hello"}),
    Request("F3 no space", post(b"Transfer-Encoding:chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"), (200,), {"body": b"hello"}),
    Request("F3 space before colon", post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n" + EVIL), (400,)),
    Request("F3 folded", post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n" + EVIL), (400,)),
    Request("F3 folded in the middle", post(b"Transfer-Encoding: chunked,\r\n\tidentity\r\n", b"0\r\n\r\n" + EVIL), (400,)),

    # F4: other codings
    Request("F4 gzip", post(b"Transfer-Encoding: gzip\r\n", b"hello"), (400, 501)),
    Request("F4 chunked, gzip", post(b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n" + EVIL), (400, 501)),
    Request("F4 gzip, chunked", post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n" + EVIL), (400, 501)),

    # F5: HTTP/1.0 has no codings
    Request("F5 chunked in 1.0", post(TE, b"5\r\nhello\r\n0\r\n\r\n", version=b"HTTP/1.0"), (400,)),
    Request("F5 chunked and keep-alive in 1.0", post(TE + b"Connection: keep-alive\r\n", b"0\r\n\r\n" + EVIL, version=b"HTTP/1.0"), (400,)),

    # F6
    Request("F6 empty", post(b"Transfer-Encoding:\r\n", b"0\r\n\r\n" + EVIL), (400, 501)),
    Request("F6 only space", post(b"Transfer-Encoding:  \r\n", b"0\r\n\r\n" + EVIL), (400, 501)),
    Request("F6 identity", post(b"Transfer-Encoding: identity\r\n", EVIL), (400, 501)),
    Request("F6 identity and content-length", post(b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", b"hello"), (400, 501)),

    # F7, F8, B17: several lengths
    Request("F7 two lines", post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello!"), (400,)),
    Request("F7 1 and 0", post(b"Content-Length: 1\r\nContent-Length: 0\r\n", b"G" + EVIL), (400,)),
    Request("F7 list", post(b"Content-Length: 5, 6\r\n", b"hello!"), (400,)),
    Request("F7 apart", post(b"Content-Length: 5\r\nX: y\r\ncontent-length: 6\r\n", b"hello!"), (400,)),
    Request("F8 the same in a list", post(b"Content-Length: 5, 5\r\n", b"hello"), (400,)),
    Request("F8 the same in two lines", post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"), (400,)),
    Request("F8 comma", post(b"Content-Length: 5,\r\n", b"hello"), (400,)),
] + [
    # F9: not a decimal number
    Request("F9 %r" % v, post(b"Content-Length: " + v + b"\r\n", b"hello" + EVIL), (400, 413) if len(v) > 15 else (400,))
    for v in (b"+5", b"-5", b"-0", b"0x5", b"5 5", b"5_0", b"", b"5a", b"5.0", b"5e0", b"\"5\"", b"5\x0b", b"\x0c5", b"5\x00", b"\xef\xbc\x95", b"5;",
              b"99999999999999999999", b"18446744073709551621", b"18446744073709551616", b"9223372036854775808",
              b"99999999999999999999999999999999999999999999")
] + [
    Request("F9 white space around", post(b"Content-Length: \t 5 \t\r\n", b"hello"), (200,), {"body": b"hello"}),
    Request("F9 folded", post(b"Content-Length:\r\n 5\r\n", b"hello"), (400,)),
    Request("F9 too large", post(b"Content-Length: 9223372036854775807\r\n", b"hello"), (413,)),

    # F10: leading zeros are refused or made normal
    Request("F10 0005", post(b"Content-Length: 0005\r\n", b"hello"), (200, 400), {"body": b"hello", "has": {b"Content-Length": b"5"}}),
    Request("F10 010 is ten", post(b"Content-Length: 010\r\n", b"helloworld"), (200, 400), {"body": b"helloworld", "has": {b"Content-Length": b"10"}}),
    Request("F10 many zeros", post(b"Content-Length: 000000000000000000000000005\r\n", b"hello"), (200, 400),
            {"body": b"hello", "has": {b"Content-Length": b"5"}}),

    # F11: a body is a body, whatever the method
    Request("F11 GET with content-length", get(b"Content-Length: 36\r\n") + EVIL, (200,), {"method": b"GET", "target": b"/", "body": EVIL}),
    Request("F11 GET with chunks", get(TE) + b"24\r\n" + EVIL + b"\r\n0\r\n\r\n", (200,), {"method": b"GET", "target": b"/", "body": EVIL}),
    Request("F11 HEAD with a body", get(b"Content-Length: 5\r\n", method=b"HEAD") + b"hello", (200,), {"method": b"HEAD", "body": b"hello"}),
    Request("F11 DELETE with a body", get(b"Content-Length: 5\r\n", method=b"DELETE") + b"hello", (200,), {"method": b"DELETE", "body": b"hello"}),
    Request("F11 POST without framing", post(b""), (200,), {"method": b"POST", "body": b""}),
    Request("F11 POST of nothing", post(b"Content-Length: 0\r\n"), (200,), {"method": b"POST", "body": b"", "has": {b"Content-Length": b"0"}}),

    # F12, H21: Expect
    Request("F12 x 100-continue", post(b"Expect: x 100-continue\r\nContent-Length: 5\r\n", b"hello"), (417,)),
    Request("F12 100-continue, x", post(b"Expect: 100-continue, x\r\nContent-Length: 5\r\n", b"hello"), (417,)),
    Request("F12 100-continuex", post(b"Expect: 100-continuex\r\nContent-Length: 5\r\n", b"hello"), (417,)),
    Request("F12 letter case", post(b"Expect: 100-Continue\r\nContent-Length: 5\r\n", b"hello"), (200,), {"body": b"hello"}),
    Request("F12 two lines", post(b"Expect: 100-continue\r\nExpect: x\r\nContent-Length: 5\r\n", b"hello"), (417,)),
    Request("F12 without a body", get(b"Expect: 100-continue\r\n"), (200,), {"body": b""}),
    Request("H21 other", get(b"Expect: 200-ok\r\n"), (417,)),
] + [
    # F13, B18: chunk size
    Request("F13 size %r" % v, post(TE, v + b"\r\nhello\r\n0\r\n\r\n" + EVIL), (400, 413) if len(v) > 15 else (400,), PARTIAL)
    for v in (b"0x5", b"+5", b"-5", b"5_", b"0_2e", b" 5", b"\t5", b"5 ", b"5\t", b"", b"g", b"5g", b"\x005", b"5\x00", b"5,", b"5.0", b"\"5\"", b"5\x0b",
              b"00000000000000005", b"10000000000000005", b"8000000000000000", b"ffffffffffffffff", b"fffffffffffffffff",
              b"7ffffffffffffffff", b"hello")
] + [
    Request("F13 upper case", post(TE, b"A\r\n0123456789\r\n0\r\n\r\n"), (200,), {"body": b"0123456789"}),
    Request("F13 lower case", post(TE, b"a\r\n0123456789\r\n0\r\n\r\n"), (200,), {"body": b"0123456789"}),
    Request("F13 leading zeros", post(TE, b"0005\r\nhello\r\n000\r\n\r\n"), (200,), {"body": b"hello"}),
    Request("F13 bad second size", post(TE, b"5\r\nhello\r\n5x\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F13 bad last size", post(TE, b"5\r\nhello\r\n0x\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F13 minus nought", post(TE, b"5\r\nhello\r\n-0\r\n\r\n" + EVIL), (400,), PARTIAL),

    # F14, F15: chunk extensions
    Request("F14 a legal one is dropped", post(TE, b"5;a=b\r\nhello\r\n0;c\r\n\r\n"), (200,), {"body": b"hello"}),
    Request("F14 quoted", post(TE, b"5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n"), (200, 400), {"body": b"hello"}),
    Request("F14 bare LF", post(TE, b"5;\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F14 bare LF in the value", post(TE, b"5;a\nb\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F14 bare CR", post(TE, b"5;a\rb\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F14 CR CR", post(TE, b"5\r\r;x\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F14 TERM.EXT", post(TE, b"2;\nxx\r\n4c\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F14 EXT.TERM", post(TE, b"2\n;\r\nxx\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F14 after the last size", post(TE, b"5\r\nhello\r\n0;\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F15 64 kB", post(TE, b"5;" + b"a" * 65536 + b"\r\nhello\r\n0\r\n\r\n" + EVIL), (400, 413, 431), PARTIAL),
    Request("F15 NUL", post(TE, b"5;a\x00b\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F15 control", post(TE, b"5;a\x01b\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F15 DEL", post(TE, b"5;a\x7fb\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),

    # F16, F17: the end of the data
    Request("F16 XX for CRLF", post(TE, b"5\r\nhelloXX0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F16 LF", post(TE, b"5\r\nhello\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F16 CR", post(TE, b"5\r\nhello\r0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F16 one octet more", post(TE, b"5\r\nhelloX\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F16 one octet less", post(TE, b"6\r\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F16 CR X", post(TE, b"5\r\nhello\rX0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F16 after the last chunk", post(TE, b"5\r\nhello\r\n0\r\nX" + b"\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F16 LF at the very end", post(TE, b"5\r\nhello\r\n0\r\n\n" + EVIL), (400,), PARTIAL),
    Request("F16 CR X at the very end", post(TE, b"5\r\nhello\r\n0\r\n\rX" + EVIL), (400,), PARTIAL),
    Request("F17 LF all over", post(TE, b"5\nhello\n0\n\n" + EVIL), (400,), PARTIAL),
    Request("F17 LF after the size", post(TE, b"5\nhello\r\n0\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F17 LF after the last size", post(TE, b"5\r\nhello\r\n0\n\r\n" + EVIL), (400,), PARTIAL),

    # F18, B13: trailers are as strict as fields and never become fields
    Request("F18 a harmless one", post(TE, b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"), (200,), {"body": b"hello", "lacks": (b"X-Sum",)}),
] + [
    Request("F18 forbidden %s" % n.decode(), post(TE, b"5\r\nhello\r\n0\r\n" + n + b": 100\r\n\r\n"), (200, 400),
            {"body": b"hello", "no_trailers": (n,)})
    for n in (b"Content-Length", b"Transfer-Encoding", b"Host", b"Authorization", b"X-Forwarded-For", b"Connection", b"Cookie", b"Content-Type")
] + [
    Request("F18 space before the colon", post(TE, b"5\r\nhello\r\n0\r\nX-Bad : v\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 no colon", post(TE, b"5\r\nhello\r\n0\r\nnocolon\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 LF", post(TE, b"5\r\nhello\r\n0\r\nX: y\nZ: 1\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 LF, no colon", post(TE, b"5\r\nhello\r\n0\r\nX: y\nZ\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 CR", post(TE, b"5\r\nhello\r\n0\r\nX: y\rZ: 1\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 NUL", post(TE, b"5\r\nhello\r\n0\r\nX: y\x00\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 folded", post(TE, b"5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 empty name", post(TE, b"5\r\nhello\r\n0\r\n: y\r\n\r\n" + EVIL), (400,), PARTIAL),
    Request("F18 long", post(TE, b"5\r\nhello\r\n0\r\nX: " + b"y" * 70000 + b"\r\n\r\n" + EVIL), (400, 431), PARTIAL),
    Request("F18 many", post(TE, b"5\r\nhello\r\n0\r\n" + b"X: y\r\n" * 5000 + b"\r\n" + EVIL), (400, 431), PARTIAL),

    # F19: the end of the stream is not the end of a body
    Request("F19 after a chunk", post(TE, b"5\r\nhello\r\n"), (400, None), PARTIAL, fin=True),
    Request("F19 within a chunk", post(TE, b"5\r\nhel"), (400, None), PARTIAL, fin=True),
    Request("F19 within a size", post(TE, b"5"), (400, None), PARTIAL, fin=True),
    Request("F19 before the last CRLF", post(TE, b"5\r\nhello\r\n0\r\n"), (400, None), PARTIAL, fin=True),
    Request("F19 within trailers", post(TE, b"5\r\nhello\r\n0\r\nX: y\r\n"), (400, None), PARTIAL, fin=True),
    Request("F19 within a counted body", post(b"Content-Length: 10\r\n", b"hello"), (400, None), PARTIAL, fin=True),
    Request("F19 within the head", b"GET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n", (400, None), fin=True),
    Request("F19 within the request line", b"GET / HT", (400, None), fin=True),
    Request("F19 nothing at all", b"", (None,), fin=True),

    # H1, H7, B28: white space that begins a line
    Request("H1 folded", get(b"X: y\r\n z\r\n"), (400,)),
    Request("H1 folded with a tab", get(b"X: y\r\n\tz\r\n"), (400,)),
    Request("H1 folded into nothing", get(b"X: y\r\n \r\n"), (400,)),
    Request("H1 folded host", b"GET / HTTP/1.1\r\nHost:\r\n a.test\r\n\r\n", (400,)),
    Request("H7 space before the first field", b"GET / HTTP/1.1\r\n Host: a.test\r\n\r\n", (400,)),
    Request("H7 tab before the first field", b"GET / HTTP/1.1\r\n\tX: y\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H7 line of white space", b"GET / HTTP/1.1\r\n \t\r\nHost: a.test\r\n\r\n", (400,)),

    # H2, H3
    Request("H2 space before the colon of Host", b"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", (400,)),
    Request("H2 space before a colon", get(b"X : y\r\n"), (400,)),
    Request("H2 tab before a colon", get(b"X\t: y\r\n"), (400,)),
    Request("H2 content-length", post(b"Content-Length : 5\r\n", b"hello"), (400,)),
    Request("H3 no colon", get(b"NoColon\r\n"), (400,)),
    Request("H3 empty name", get(b": v\r\n"), (400,)),
    Request("H3 empty name and content-length", post(b": v\r\nContent-Length: 36\r\n", EVIL), (400,)),
    Request("H3 only a colon", get(b":\r\n"), (400,)),
    Request("H3 space in the name", get(b"X Y: v\r\n"), (400,)),
] + [
    Request("H3 %r in the name" % v, get(b"X" + v + b"Y: v\r\n"), (400,))
    for v in (b"\x00", b"\x01", b"\x0b", b"\x7f", b"\x80", b"\x85", b"\xc3\xa4", b"(", b")", b"<", b"@", b",", b";", b"\\", b"\"", b"/", b"[", b"?", b"=", b"{")
] + [
    Request("H3 every token character", get(b"!#$%&'*+-.^`|~09azAZ: v\r\n"), (200,), {"has": {b"!#$%&'*+-.^`|~09azAZ": b"v"}}),
    Request("H3 a name of 300 octets hides nothing", post(b"X" * 300 + b": a\r\nContent-Length: 36\r\n", EVIL), (200,), {"body": EVIL}),
    Request("H3 a name of 256 octets that ends as content-length", post(b"Content-Length" + b"0" * 242 + b": 0\r\nContent-Length: 36\r\n", EVIL), (200,),
            {"body": EVIL}),
] + [
    # H4: octets that no value holds
    Request("H4 %r in a value" % v, get(b"X: a" + v + b"b\r\n"), (400,))
    for v in (b"\x00", b"\x01", b"\x07", b"\x08", b"\x0b", b"\x0c", b"\x1b", b"\x1f", b"\x7f", b"\r", b"\rEvil: 1", b"\r\r")
] + [
    Request("H4 NUL ends a value", get(b"X: a\x00\r\n"), (400,)),
    Request("H4 obs-text passes", get(b"X: \xe4\xff\x80\r\n"), (200,), {"has": {b"X": b"\xe4\xff\x80"}}),
    Request("H4 tab passes", get(b"X: a\tb\r\n"), (200,), {"has": {b"X": b"a\tb"}}),
    Request("H4 empty value", get(b"X:\r\n"), (200,), {"has": {b"X": b""}}),
    Request("H4 white space around", get(b"X: \t a b \t \r\n"), (200,), {"has": {b"X": b"a b"}}),

    # H5, H6: line ends
    Request("H5 LF after the request line", b"GET / HTTP/1.1\nHost: a.test\r\n\r\n", (400,)),
    Request("H5 LF after a field", b"GET / HTTP/1.1\r\nHost: a.test\n\r\n", (400,)),
    Request("H5 LF between fields", b"GET / HTTP/1.1\r\nHost: a.test\nX: y\r\n\r\n", (400,)),
    Request("H5 LF at the end of the head", b"GET / HTTP/1.1\r\nHost: a.test\r\n\n", (400,)),
    Request("H5 LF only", b"GET / HTTP/1.1\nHost: a.test\n\n", (400,)),
    Request("H6 CR after the request line", b"GET / HTTP/1.1\rHost: a.test\r\n\r\n", (400,)),
    Request("H6 CR between fields", b"GET / HTTP/1.1\r\nHost: a.test\rX: y\r\n\r\n", (400,)),
    Request("H6 CR only", b"GET / HTTP/1.1\rHost: a.test\r\r", (400,)),
    Request("H6 CR at the end of the head", b"GET / HTTP/1.1\r\nHost: a.test\r\n\rX", (400,)),
    Request("H6 CR CR LF", b"GET / HTTP/1.1\r\nHost: a.test\r\r\n\r\n", (400,)),

    # H8: empty lines first
    Request("H8 one empty line", b"\r\n" + get(), (200,), {"target": b"/"}),
    Request("H8 ten empty lines", b"\r\n" * 10 + get(), (400,)),
    Request("H8 bare LF", b"\n" + get(), (400,)),
    Request("H8 CR", b"\r" + get(), (400,)),
    Request("H8 space", b" " + get(), (400,)),

    # H9, B29: the request line
    Request("H9 two spaces after the method", b"GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 two spaces before the version", b"GET /  HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 tab after the method", b"GET\t/ HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 tab before the version", b"GET /\tHTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 no target", b"GET HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 empty target", b"GET  HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 trailing space", b"GET / HTTP/1.1 \r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 space in the target", b"GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 no spaces", b"GET/HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 only a method", b"GET\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 four words", b"GET / x HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H9 vertical tab", b"GET /\x0bHTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
] + [
    # H10: versions
    Request("H10 %r" % v, b"GET / " + v + b"\r\nHost: a.test\r\n\r\n", (400, 505))
    for v in (b"HTTP/1.10", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/3.0", b"http/1.1", b"Http/1.1", b"HTTP/1.", b"HTTP/1", b"HTTP/.1", b"HTTP/11", b"HTTP/1.1x", b"HTTP/01.1",
              b"HTTP/1.01", b"HTTP/-1.1", b"HTTP/ 1.1", b"HTTP /1.1", b"HTTP\\1.1", b"HTTPS/1.1", b"ICAP/1.0", b"HTTP/1,1", b"HTTP/1.\xb2", b"HTTP/1.1\x00", b"1.1")
] + [
    Request("H10 HTTP/0.9 simple request", b"GET /\r\n", (400, 505)),
    Request("H10 the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),

    # H11: methods
    Request("H11 lower case", get(method=b"get"), (200,), {"method": b"get"}),
    Request("H11 unknown token", get(method=b"M-SEARCH"), (200,), {"method": b"M-SEARCH"}),
    Request("H11 every token character", get(method=b"!#$%&'*+-.^_`|~09azAZ"), (200,), {"method": b"!#$%&'*+-.^_`|~09azAZ"}),
    Request("H11 starts as a known one", get(method=b"GETX"), (200,), {"method": b"GETX"}),
    Request("H11 parenthesis", get(method=b"GE(T"), (400,)),
    Request("H11 NUL", get(method=b"GE\x00T"), (400,)),
    Request("H11 non-ASCII", get(method=b"G\xc3\x89T"), (400,)),
    Request("H11 colon", get(method=b"GET:"), (400,)),
    Request("H11 empty", b" / HTTP/1.1\r\nHost: a.test\r\n\r\n", (400,)),
    Request("H11 CONNECT", b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n", (405,)),
    Request("H11 CONNECT with a path", b"CONNECT / HTTP/1.1\r\nHost: a.test\r\n\r\n", (400, 405)),
    Request("H11 TRACE", get(method=b"TRACE"), (405,)),

    # H12, B27: Host
    Request("H12 missing", get(host=b""), (400,)),
    Request("H12 twice, equal", get(host=b"Host: a.test\r\nHost: a.test\r\n"), (400,)),
    Request("H12 twice, different", get(host=b"Host: a.test\r\nHost: b.test\r\n"), (400,)),
    Request("H12 twice, letter case of the name", get(host=b"Host: a.test\r\nhOST: b.test\r\n"), (400,)),
] + [
    Request("H12 %r" % v, get(host=b"Host: " + v + b"\r\n"), (400,))
    for v in (b"a.test, b.test", b"a.test,b.test", b"a.test/x", b"u@a.test", b"u:p@a.test", b"a b", b"a.test?x", b"a.test#x", b"http://a.test", b"a.test:8x", b"a.test:-1",
              b"a.test:80:80", b"[::1", b"::1", b"[::1]x", b"[zz]", b"a.test\x00", b"a\x01.test", b"a\xc3\xa4.test", b"a.test\\x", b"a\"b", b"<a>", b"a.test:99999999999",
              b"a|b", b"a^b", b"a`b", b"{a}")
] + [
    Request("H12 empty", get(host=b"Host:\r\n"), (400, 404)),
    Request("H12 only a port", get(host=b"Host: :80\r\n"), (400,)),
    Request("H12 1.0 without", get(host=b"", version=b"HTTP/1.0"), (400, 404)),

    # H13: absolute form
    Request("H13 the same", get(target=b"http://a.test/x?y"), (200,), {"target": b"/x?y", "has": {b"Host": b"a.test"}}),
    Request("H13 mismatch", get(target=b"http://a.test/x", host=b"Host: b.test\r\n"), (200, 400), {"target": b"/x", "has": {b"Host": b"a.test"}}),
    Request("H13 no path", get(target=b"http://a.test"), (200,), {"target": b"/", "has": {b"Host": b"a.test"}}),
    Request("H13 no path but a query", get(target=b"http://a.test?y"), (200, 400), {"target": b"/?y", "has": {b"Host": b"a.test"}}),
    Request("H13 letter case of the scheme", get(target=b"HTTP://a.test/x"), (200, 400), {"target": b"/x"}),
    Request("H13 userinfo", get(target=b"http://u@a.test/"), (400,)),
    Request("H13 no authority", get(target=b"http:///x"), (400,)),
    Request("H13 empty Host", get(target=b"http://a.test/", host=b"Host:\r\n"), (400,)),
    Request("H13 no Host", get(target=b"http://a.test/", host=b""), (400,)),
    Request("H13 other scheme", get(target=b"ftp://a.test/"), (400,)),
    Request("H13 unknown authority", get(target=b"http://b.test/", host=b"Host: b.test\r\n"), (404,)),
    Request("H13 fragment", get(target=b"http://a.test/#x"), (400,)),

    # H14: Host is matched in its normal form and forwarded unchanged
    Request("H14 port", get(host=b"Host: a.test:8080\r\n"), (200,), {"has": {b"Host": b"a.test:8080"}}),
    Request("H14 letter case", get(host=b"Host: A.TesT\r\n"), (200,), {"has": {b"Host": b"A.TesT"}}),
    Request("H14 trailing dot", get(host=b"Host: a.test.\r\n"), (200,), {"has": {b"Host": b"a.test."}}),
    Request("H14 all three", get(host=b"Host: A.test.:80\r\n"), (200,), {"has": {b"Host": b"A.test.:80"}}),
    Request("H14 two dots", get(host=b"Host: a.test..\r\n"), (400, 404)),
    Request("H14 empty port", get(host=b"Host: a.test:\r\n"), (200, 400), {"has": {b"Host": b"a.test:"}}),
    Request("H14 IPv6", get(host=b"Host: [::1]:8080\r\n"), (404,)),
    Request("H14 IPv4", get(host=b"Host: 10.0.0.1\r\n"), (404,)),
    Request("H14 unknown", get(host=b"Host: zzz.test\r\n"), (404,)),
    Request("H14 prefix of a known one", get(host=b"Host: a.tes\r\n"), (404,)),
    Request("H14 known one and more", get(host=b"Host: a.testx\r\n"), (404,)),
    Request("H14 label before", get(host=b"Host: x.a.test\r\n"), (404,)),
] + [
    # H15, B29: the target
    Request("H15 %r" % v, get(target=v), (400,))
    for v in (b"/a#.png", b"/#", b"/a\x01b", b"/a\x00b", b"/a\x7fb", b"/\xc3\xa4", b"/\x80", b"/\xff", b"/%", b"/%z", b"/%zz", b"/%4", b"/%4g", b"/a%", b"/%00", b"/a%00b",
              b"\\a", b"\\\\a", b"a", b"a/b", b"?x", b"#", b"//\x00", b"/?%00", b"/?\x00", b"/?a#b", b"/?\xff", b"a.test:80", b"*x", b"/a\tb")
] + [
    Request("H15 escapes pass unchanged", get(target=b"/%41%2f%5c%7e?%41=%2F&b"), (200,), {}),
    Request("H15 the rest of RFC 3986", get(target=b"/-._~!$&'()*+,;=:@/?-._~!$&'()*+,;=:@/?"), (200,), {"target": b"/-._~!$&'()*+,;=:@/?-._~!$&'()*+,;=:@/?"}),

    # H16
    Request("H16 GET *", get(target=b"*"), (400,)),
    Request("H16 POST *", get(target=b"*", method=b"POST"), (400,)),

    # H17: an underscore hides no name
    Request("H17 Content_Length", post(b"Content_Length: 37\r\n", b""), (200,), {"body": b"", "lacks": (b"Content_Length",)}),
    Request("H17 Transfer_Encoding", post(b"Transfer_Encoding: chunked\r\nContent-Length: 5\r\n", b"hello"), (200,), {"body": b"hello", "lacks": (b"Transfer_Encoding",)}),
    Request("H17 X_Forwarded_For", get(b"X_Forwarded_For: 6.6.6.6\r\nX-Forwarded_For: 6.6.6.6\r\n"), (200,), {"lacks": (b"X_Forwarded_For", b"X-Forwarded_For")}),

    # H18, H20, H23, B57: hop by hop
    Request("H18 own fields cannot be taken away",
            get(b"Connection: close, X-Forwarded-For, X-Real-IP, X-Forwarded-Proto, X-Forwarded-Host, X-Request-ID, Host, Content-Length, Cookie, X-Foo\r\n"
                b"X-Forwarded-For: 6.6.6.6\r\nX-Foo: 1\r\nCookie: a=b\r\n"), (200,),
            {"has": {b"Host": b"a.test", b"X-Forwarded-For": b"127.0.0.1", b"X-Real-IP": b"127.0.0.1", b"X-Forwarded-Proto": b"http"}, "lacks": (b"X-Foo",)}),
    Request("H18 length cannot be taken away", post(b"Connection: Content-Length\r\nContent-Length: 5\r\n", b"hello"), (200, 400), {"body": b"hello"}),
    Request("H18 coding cannot be taken away", post(b"Connection: Transfer-Encoding\r\n" + TE, b"5\r\nhello\r\n0\r\n\r\n"), (200, 400), {"body": b"hello"}),
    Request("H20 Proxy", get(b"Proxy: http://evil.test/\r\n"), (200,), {"lacks": (b"Proxy",)}),
    Request("H23 every hop-by-hop field",
            get(b"Connection: keep-alive, X-A\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"
                b"Proxy-Authorization: Basic eDp5\r\nTrailer: X-Sum\r\n"), (200,),
            {"lacks": (b"X-A", b"Keep-Alive", b"Proxy-Connection", b"TE", b"Upgrade", b"HTTP2-Settings")}),
    Request("H23 Upgrade without Connection", get(b"Upgrade: websocket\r\n"), (200,), {"lacks": (b"Upgrade",)}),
    Request("H23 a Connection list with oddities", get(b"Connection: ,, X-A ,\r\nConnection: x-b\r\nX-A: 1\r\nX-B: 2\r\n"), (200, 400), {"lacks": (b"X-A", b"X-B")}),

    # H24
    Request("H24 Via and Max-Forwards pass", get(b"Max-Forwards: 3\r\n"), (200,), {"has": {b"Max-Forwards": b"3"}}),

    # P, B39, B41: paths
    Request("P above the root", get(target=b"/../admin"), (400,)),
    Request("P above the root, later", get(target=b"/a/../../admin"), (400,)),
    Request("P above the root, escaped", get(target=b"/%2e%2e/admin"), (400,)),
    Request("P above the root, half escaped", get(target=b"/.%2E/admin"), (400,)),
    Request("P double slash first", get(target=b"//x"), (200,), {"target": b"//x"}),
    Request("P double slash that looks like an authority", get(target=b"//evil.test/"), (200,), {"target": b"//evil.test/"}),
    Request("P double slash within", get(target=b"/a//b"), (200,), {"target": b"/a//b"}),
    Request("P only slashes", get(target=b"///"), (200,), {"target": b"///"}),
]

# ---------------------------------------------------------------------------------------------------------------------------
# Responses


def ok(fields=b"Content-Length: 2\r\n", body=b"ok", status=b"200 OK", version=b"HTTP/1.1"):
    return version + b" " + status + b"\r\n" + fields + b"\r\n" + body


GONE = (502, None)       # a 502, or a cut when the head was already on its way

RESPONSES = [
    Response("plain", ok(), (200,), b"ok", reuse=True),
    Response("chunked", ok(TE, b"2\r\nok\r\n0\r\n\r\n"), (200,), b"ok", reuse=True),
    Response("chunked, letter case", ok(b"transfer-encoding: Chunked\r\n", b"2\r\nok\r\n0\r\n\r\n"), (200,), b"ok", reuse=True),
    Response("chunk extensions are dropped", ok(TE, b"2;a=b\r\nok\r\n0;c\r\n\r\n"), (200,), b"ok", reuse=True),
    Response("Content-Length with white space", ok(b"Content-Length: \t2 \r\n"), (200,), b"ok", reuse=True),
    Response("no body", ok(b"Content-Length: 0\r\n", b""), (200,), b"", reuse=True),
    Response("empty chunked", ok(TE, b"0\r\n\r\n"), (200,), b"", reuse=True),
    Response("empty reason", ok(status=b"200 "), (200,), b"ok"),
    Response("reason with obs-text", ok(status=b"200 \xe4 ok"), (200,), b"ok"),
    Response("status 299", ok(status=b"299 Strange"), (299,), b"ok"),
    Response("status 404", ok(status=b"404 Not Found"), (404,), b"ok", reuse=True),
    Response("status 500", ok(status=b"500 Oops"), (500,), b"ok", reuse=True),
    Response("status 503", ok(status=b"503 Busy"), (503,), b"ok", reuse=True),
    Response("HTTP/1.0 counted", ok(version=b"HTTP/1.0"), (200,), b"ok", reuse=False),
    Response("HTTP/1.0 keep-alive", ok(b"Content-Length: 2\r\nConnection: keep-alive\r\n", version=b"HTTP/1.0"), (200,), b"ok"),
    Response("Connection: close", ok(b"Content-Length: 2\r\nConnection: close\r\n"), (200,), b"ok", reuse=False, lacks=(b"Keep-Alive",)),
    Response("Connection: Close in a list", ok(b"Content-Length: 2\r\nConnection: x, CLOSE\r\n"), (200,), b"ok", reuse=False),

    # F20, B15: ambiguous framing
    Response("F20 both", ok(b"Content-Length: 2\r\n" + TE, b"2\r\nok\r\n0\r\n\r\n"), (502,), reuse=False),
    Response("F20 both, the other order", ok(TE + b"Content-Length: 2\r\n", b"2\r\nok\r\n0\r\n\r\n"), (502,), reuse=False),
    Response("F20 two lengths", ok(b"Content-Length: 2\r\nContent-Length: 3\r\n", b"ok!"), (502,), reuse=False),
    Response("F20 list of lengths", ok(b"Content-Length: 2, 3\r\n", b"ok!"), (502,), reuse=False),
    Response("F20 the same length twice", ok(b"Content-Length: 2\r\nContent-Length: 2\r\n"), (200, 502), b"ok"),
    Response("B15 chunked twice", ok(TE + TE, b"2\r\nok\r\n0\r\n\r\n"), (200, 502), b"ok"),
    Response("B15 chunked, chunked", ok(b"Transfer-Encoding: chunked, chunked\r\n", b"2\r\nok\r\n0\r\n\r\n"), (200, 502), b"ok"),
    Response("F20 gzip, chunked", ok(b"Transfer-Encoding: gzip, chunked\r\n", b"2\r\nok\r\n0\r\n\r\n"), (502,), reuse=False),
    Response("F20 chunked, gzip", ok(b"Transfer-Encoding: chunked, gzip\r\n", b"ok"), (502,), reuse=False, end="fin"),
    Response("F20 gzip", ok(b"Transfer-Encoding: gzip\r\n", b"ok"), (502,), reuse=False, end="fin"),
    Response("F20 xchunked", ok(b"Transfer-Encoding: xchunked\r\n", b"2\r\nok\r\n0\r\n\r\n"), (502,), reuse=False),
    Response("F20 identity", ok(b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n"), (502,), reuse=False),
    Response("F20 chunked in 1.0", ok(TE, b"2\r\nok\r\n0\r\n\r\n", version=b"HTTP/1.0"), (502,), reuse=False),
] + [
    Response("F20 length %r" % v, ok(b"Content-Length: " + v + b"\r\n"), (502,), reuse=False)
    for v in (b"+2", b"-2", b"0x2", b"2 2", b"", b"2a", b"2,", b"2.0", b"2\x0b", b"99999999999999999999", b"18446744073709551618")
] + [
    Response("F20 chunk size %r" % v, ok(TE, v + b"\r\nok\r\n0\r\n\r\n"), GONE, reuse=False)
    for v in (b"0x2", b"+2", b"-2", b"2_", b" 2", b"2 ", b"", b"z", b"00000000000000002", b"10000000000000002", b"fffffffffffffffff")
] + [
    Response("F20 chunk data too long", ok(TE, b"2\r\nokX\r\n0\r\n\r\n"), GONE, reuse=False),
    Response("F20 chunk data end XX", ok(TE, b"2\r\nokXX0\r\n\r\n"), GONE, reuse=False),
    Response("F20 chunk LF", ok(TE, b"2\nok\n0\n\n"), GONE, reuse=False),
    Response("F20 bare LF in an extension", ok(TE, b"2;\nok\r\n0\r\n\r\n"), GONE, reuse=False),
    Response("F20 last chunk with something behind", ok(TE, b"2\r\nok\r\n0\r\nX\r\n\r\n"), GONE, reuse=False),
    Response("F20 a trailer without a colon", ok(TE, b"2\r\nok\r\n0\r\nnocolon\r\n\r\n"), GONE, reuse=False),
    Response("F20 a trailer with a space before the colon", ok(TE, b"2\r\nok\r\n0\r\nX : y\r\n\r\n"), GONE, reuse=False),

    # F21: a body to the end of the connection; a cut is no end
    Response("F21 to the close", ok(b"", b"hello"), (200,), b"hello", reuse=False, end="fin"),
    Response("F21 to the close, nothing", ok(b"", b""), (200,), b"", reuse=False, end="fin"),
    Response("F21 to the close in 1.0", ok(b"", b"hello", version=b"HTTP/1.0"), (200,), b"hello", reuse=False, end="fin"),
    Response("F21 to the reset", ok(b"", b"hello"), (None,), reuse=False, end="rst"),
    Response("F19 counted and cut", ok(b"Content-Length: 10\r\n", b"hello"), (None,), reuse=False, end="fin"),
    Response("F19 counted and reset", ok(b"Content-Length: 10\r\n", b"hello"), (None,), reuse=False, end="rst"),
    Response("F19 chunked and cut", ok(TE, b"5\r\nhello\r\n"), (None,), reuse=False, end="fin"),
    Response("F19 chunked and cut within the last chunk", ok(TE, b"5\r\nhello\r\n0\r\n"), (None,), reuse=False, end="fin"),
    Response("F19 chunked and cut within a chunk", ok(TE, b"5\r\nhel"), (None,), reuse=False, end="fin"),
    Response("F19 counted and cut before the body", ok(b"Content-Length: 10\r\n", b""), GONE, reuse=False, end="fin"),

    # F22: more octets than the answer has
    Response("F22 another answer behind", ok() + ok(body=b"no"), (200,), b"ok", reuse=False),
    Response("F22 one octet behind", ok() + b"x", (200,), b"ok", reuse=False),
    Response("F22 behind chunks", ok(TE, b"2\r\nok\r\n0\r\n\r\n") + ok(), (200,), b"ok", reuse=False),
    Response("F22 CRLF behind", ok() + b"\r\n", (200,), b"ok"),

    # F23, B01, B03, B05: answers without a body
    Response("B03 204", b"HTTP/1.1 204 No Content\r\n\r\n", (204,), b"", lacks=(b"Content-Length", b"Transfer-Encoding"), reuse=True),
    Response("B03 204 with length 0", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", (204,), b"", lacks=(b"Content-Length", b"Transfer-Encoding")),
    Response("B03 204 with a body", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", (204, 502), b"", lacks=(), reuse=False),
    Response("F23 204 with chunks", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (204, 502), b"", reuse=False),
    Response("B05 304", b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n", (304,), b"", has={b"ETag": b"\"x\""}, lacks=(b"Transfer-Encoding",), reuse=True),
    Response("F23 304 with a length", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", (304,), b"", lacks=(b"Transfer-Encoding",), reuse=True),
    Response("F23 304 with a body", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello", (304,), b"", reuse=False),
    Response("F23 205", b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", (205,), b""),
    Response("HEAD", ok(b"Content-Length: 5\r\n", b""), (200,), b"", has={b"Content-Length": b"5"}, method="HEAD", reuse=True),
    Response("B01 HEAD with chunked", ok(TE, b""), (200,), b"", method="HEAD", reuse=True),
    Response("F23 HEAD without framing", ok(b"", b""), (200,), b"", method="HEAD"),
    Response("F23 HEAD with a body", ok(b"Content-Length: 5\r\n", b"hello"), (200,), b"", method="HEAD", reuse=False),
    Response("F23 HEAD with chunks", ok(TE, b"0\r\n\r\n"), (200,), b"", method="HEAD", reuse=False),
    Response("F23 HEAD with both framings", ok(b"Content-Length: 5\r\n" + TE, b""), (200, 502), b"", method="HEAD"),

    # B07: interim answers
    Response("B07 unasked 100", b"HTTP/1.1 100 Continue\r\n\r\n" + ok(), (200,), b"ok", reuse=True),
    Response("B07 two", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok(), (200,), b"ok", reuse=True),
    Response("B07 103", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok(), (200,), b"ok", reuse=True),
    Response("B07 100 with a length", b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n" + ok(), (200, 502), b"ok"),
    Response("F23 101 unasked", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello", (502,), reuse=False),
    Response("B07 100 and the end", b"HTTP/1.1 100 Continue\r\n\r\n", GONE, reuse=False, end="fin"),

    # H: fields of a response
    Response("H1 folded", ok(b"Content-Length: 2\r\nX: y\r\n z\r\n"), (200, 502), b"ok"),
    Response("H1 folded first field", ok(b" X: y\r\nContent-Length: 2\r\n"), (502,), reuse=False),
    Response("H2 space before the colon", ok(b"Content-Length : 2\r\n"), (200, 502), b"ok"),
    Response("H3 no colon", ok(b"Content-Length: 2\r\nNoColon\r\n"), (502,), reuse=False),
    Response("H3 empty name", ok(b"Content-Length: 2\r\n: y\r\n"), (502,), reuse=False),
    Response("H3 NUL in a name", ok(b"Content-Length: 2\r\nX\x00Y: y\r\n"), (502,), reuse=False),
    Response("H4 NUL in a value", ok(b"Content-Length: 2\r\nX: a\x00b\r\n"), (502,), reuse=False),
    Response("H4 CR in a value", ok(b"Content-Length: 2\r\nX: a\rb\r\n"), (502,), reuse=False),
    Response("H5 LF lines", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", (200, 502), b"ok"),
    Response("H4 obs-text passes", ok(b"Content-Length: 2\r\nX: \xe4\xff\r\n"), (200,), b"ok", has={b"X": b"\xe4\xff"}),
    Response("hop-by-hop fields end here", ok(b"Content-Length: 2\r\nConnection: keep-alive, X-A\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nX-B: 2\r\n"),
             (200,), b"ok", has={b"X-B": b"2"}, lacks=(b"X-A", b"Proxy-Connection")),
    Response("several cookies stay several", ok(b"Content-Length: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"), (200,), b"ok", has={b"Set-Cookie": b"a=1, b=2"}),
    Response("Server is not passed", ok(b"Content-Length: 2\r\nServer: backend/1\r\n"), (200,), b"ok", lacks=(b"Server",)),
] + [
    # the status line
    Response("status line %r" % v, v + b"\r\nContent-Length: 2\r\n\r\nok", (502,), reuse=False)
    for v in (b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/2.0 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 2x0 OK", b"HTTP/1.1 099 OK", b"HTTP/1.1 000 OK", b"HTTP/1.1200 OK",
              b"http/1.1 200 OK", b"ICY 200 OK", b"HTTP/1.1 200 O\x00K", b"HTTP/1.10 200 OK", b"SSH-2.0-OpenSSH_9.2", b"HTTP/1.1 -20 OK", b"HTTP/1.1 +20 OK", b" HTTP/1.1 200 OK")
] + [
    Response("status line without a reason and its space", b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", (200, 502), b"ok"),
    Response("no answer", b"", (502,), reuse=False, end="fin"),
    Response("no answer, reset", b"", (502,), reuse=False, end="rst"),
    Response("half a status line", b"HTTP/1.1 20", (502,), reuse=False, end="fin"),
    Response("half a head", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", (502,), reuse=False, end="fin"),
    Response("half a head, reset", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", (502,), reuse=False, end="rst"),
    Response("garbage", b"\x16\x03\x01\x00\x05hello\r\n\r\n", (502,), reuse=False),
]
