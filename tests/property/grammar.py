"""The mutator: a seed gives a stream of octets, cut into pieces. It knows the grammar of HTTP/1.1 and where servers disagreed about it.

stream(seed) begins with a few requests that are valid in ordinary and in unusual ways, then comes one that is spoiled by one to three mutations
(some of which leave it valid, as they should be found out to be), then requests that nobody may see when the one before was refused.
"""
import random

EVIL = b"GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\n"
METHODS = (b"GET", b"GET", b"GET", b"POST", b"POST", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS", b"get", b"M-SEARCH", b"GETX", b"!#$%&'*+-.^_`|~09azAZ")
TARGETS = (b"/", b"/", b"/a/b", b"/x?y=1", b"/x?", b"/%41%2f%5c%7e?%41=%2F&b", b"/a/./b/../c", b"/a/%2e/b", b"/a/b/%2E%2e/c?d", b"/a//b", b"//x", b"///", b"/a/..", b"/a/.",
           b"/-._~!$&'()*+,;=:@/?-._~!$&'()*+,;=:@/?", b"/a%20b", b"/%c3%A4", b"/[a]^`{|}", b"/?\\", b"/any", b"/any/x", b"/any/../x", b"/...", b"/.a/..b", b"/a;p=1/b",
           b"/%E0%80%AF", b"/a?b?c/../d", b"/%2561")
HOSTS = (b"a.test", b"a.test", b"a.test", b"a.test", b"A.TesT", b"a.test:8080", b"a.test.", b"A.test.:80", b"a.test:", b"b.test", b"[::1]:80", b"10.0.0.1", b"x_y.test")
FIELDS = (b"X-A: 1", b"Accept: */*", b"User-Agent: x", b"Cookie: a=b; c=d", b"Cookie: e=f", b"X-Empty:", b"X-Tab: a\tb", b"X-Obs: \xe4\xff\x80", b"X-Long: " + b"y" * 300,
          b"X-Forwarded-For: 6.6.6.6", b"X-Real-IP: 6.6.6.6", b"Forwarded: for=6.6.6.6", b"X_Forwarded_For: 6.6.6.6", b"Content_Length: 36", b"Transfer_Encoding: chunked",
          b"Transfer-Encodings: chunked", b"Content-Lengt: 36", b"XContent-Length: 36", b"TE: trailers", b"Trailer: X-Sum", b"Via: 1.1 x", b"Max-Forwards: 3",
          b"Keep-Alive: timeout=5", b"Proxy-Connection: keep-alive", b"Proxy: http://evil.test", b"Upgrade: h2c", b"HTTP2-Settings: AAAA", b"Upgrade: websocket",
          b"Content-Encoding: gzip", b"Range: bytes=0-5", b"If-Match: \"x\"", b"X-Sp: \t a b \t ", b"!#$%&'*+-.^`|~09azAZ: v", b"Content-Length-X: 5", b"X-Chunked: chunked")
CONNECTIONS = (b"keep-alive", b"X-A", b"keep-alive, X-A", b"Upgrade", b", X-A ,", b"Content-Length", b"Transfer-Encoding, Host", b"X-Real-IP", b"TE", b"Keep-Alive, Proxy-Connection")
LENGTHS = (b"+%d", b"-%d", b"0x%d", b"%d %d", b"%d_0", b"", b"%da", b"%d.0", b"%de0", b"\"%d\"", b"%d\x0b", b"\x0c%d", b"%d\x00", b"%d;", b"%d,", b"%d, %d", b"%d,%d", b"0%d", b"00000%d",
           b"99999999999999999999", b"18446744073709551621", b"18446744073709551616", b"9223372036854775808", b"4294967301", b"9223372036854775807", b"\xef\xbc\x95", b" %d ", b"\t%d")
CODINGS = (b"xchunked", b"chunked;a=b", b",chunked", b"chunked,", b"\x0bchunked", b"chunked\x00", b"\"chunked\"", b"chunked x", b"chunked, chunked", b"gzip, chunked", b"chunked, gzip", b"gzip",
           b"identity", b"", b"chunked\x0b", b"\xa0chunked", b"chunke", b"chunkedd", b"'chunked'", b"c\thunked", b"Chunked", b"CHUNKED", b"\tchunked ", b"chunked\t", b"chunked identity")
VERSIONS = (b"HTTP/1.10", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1.", b"HTTP/1", b"HTTP/11", b"HTTP/1.1x", b"HTTP/01.1", b"HTTP/ 1.1", b"HTTP\\1.1", b"ICAP/1.0", b"HTTP/1,1", b"1.1",
            b"HTTP/1.\xb2", b"HTTP/1.1\x00", b"", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/1.9")
BAD_TARGETS = (b"/a#b", b"/#", b"/a\x01b", b"/a\x00b", b"/a\x7fb", b"/\xc3\xa4", b"/%", b"/%z", b"/%zz", b"/%4", b"/%00", b"/a%00b", b"\\a", b"a", b"a/b", b"?x", b"", b"/?%00", b"/?a#b", b"/?\xff",
               b"a.test:80", b"*", b"*x", b"/a\tb", b"/..", b"/../x", b"/a/../../x", b"/%2e%2e/x", b"/.%2E/x", b"/a/..;x/b", b"/a/..%2fb", b"/a/b%5c..%5Cc", b"/a/.;/b", b"/<a>", b"/\"",
               b"/a\\b", b"http://b.test/", b"http://u@a.test/", b"http:///x", b"ftp://a.test/", b"http://a.test/#x", b"http://a.test:99999/", b"httpss://a.test/", b"http:/a.test/", b"/a b",
               b"http://a.test/../x", b"http://a.test?y", b"https://a.test", b"HTTP://A.test/x", b"/%2f..", b"/..%2f", b"/x%2F..%2f..", b"/x%2f..;y/z", b"/x%5c%2e%2e;")
BAD_HOSTS = (b"a.test, b.test", b"a.test/x", b"u@a.test", b"a b", b"a.test?x", b"http://a.test", b"a.test:8x", b"a.test:-1", b"a.test:80:80", b"[::1", b"::1", b"[::1]x", b"[zz]", b"a.test\x00",
             b"a\x01", b"a\xc3\xa4", b"a.test:99999", b"a.test:65536", b"a.test:999999", b"", b":80", b"a..test", b".a.test", b"a.test..", b".", b"[1::2::3]", b"[::1]:", b"a|b", b"~a", b"*.test", b"a%2etest",
             b"[::ffff:1.2.3.4]", b"a.test:00080", b"x" * 250 + b".test", b"x" * 255)
SIZES = (b"0x%x", b"+%x", b"-%x", b"%x_", b" %x", b"%x ", b"\t%x", b"", b"g", b"%xg", b"\x00%x", b"%x\x00", b"%x,", b"%x.0", b"\"%x\"", b"0000000000000000%x", b"1000000000000000%x",
         b"8000000000000000", b"ffffffffffffffff", b"fffffffffffffffff", b"7fffffffffffffff", b"7fffffff", b"fffffff", b"100001", b"00%x", b"000000000000000%x", b"hello", b"-0", b"0")
EXTENSIONS = (b";a=b", b";a", b";a=\"b;c\"", b";a;b;c=d", b"; a = b", b";a=\"\xe4\"", b";a=\"\\\"\"")
BAD_EXTENSIONS = (b";\n", b";a\nb", b";a\rb", b"\r\r;x", b";a\x00b", b";a\x01", b";a\x7f", b"\n;", b" ;a", b"\t;a", b";" + b"a" * 5000, b";a=\"\r\n\"", b";\r", b"\n", b"\r", b";", b";;", b";a ", b";a=", b";a=b=c", b";a b", b";a=\"b", b";a=\"b\"c", b";a=\"b\\\"", b";\xe4", b";[")
LINE_ENDS = (b"\n", b"\r", b"\r\r\n", b"\n\r", b"", b"\r\n\r\n", b" \r\n", b"\r\n ", b"\r\n\t", b"\x00\r\n", b"\x0b", b"\x85", b"\r\x00\n", b"\r\n\n", b"\n\n")
OCTETS = (b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"\x0b", b"\x0c", b"\x7f", b"\x80", b"\xff", b"0", b"1", b"9", b"a", b"A", b"/", b"\\", b"%", b"%00", b"%2e", b"#", b"?", b"\"", b"\r\n\r\n",
          b"0\r\n\r\n", b"chunked", b"\r\n ", b"HTTP/1.1", b"\x1b", b"@", b"_", b"+", b"-", b"x", b"\x85", b"\xa0")
EXPECTS = (b"x 100-continue", b"100-continue, x", b"100-continuex", b"200-ok", b"", b"100-Continue", b"100-continue")
NAMES = (b"X Y", b"", b"X\x00Y", b"X\x01", b"X\xe4", b"X(", b"X/Y", b"X@", b"X[", b"X\"", b"X\x7f", b"X\t", b"X ", b" X", b"\tX", b"X\x0b", b"X=", b"X;", b"X,Y")


class Message(object):
    """The parts of a request, each of which a mutation can get hold of. lines: (name, between, value, end)."""
    __slots__ = ("before", "method", "sp1", "target", "sp2", "version", "end", "lines", "head_end", "chunks", "last", "last_ext", "last_end", "trailers", "trailers_end", "body", "extra")


def content(r):
    n = r.random()
    if n < 0.25:
        return b"hello"
    if n < 0.45:
        return EVIL
    if n < 0.5:
        return b"0\r\n\r\n" + EVIL
    if n < 0.6:
        return b"\r\n" * r.randrange(1, 4)
    if n < 0.62:
        return b"x" * r.randrange(1000, 9000)
    return bytes(bytearray(r.getrandbits(8) for _ in range(r.randrange(1, 40))))


def spell(r, name):
    n = r.random()
    return name if n < 0.7 else name.lower() if n < 0.85 else name.upper() if n < 0.95 else bytes(bytearray(c ^ 32 if chr(c).isalpha() and r.random() < 0.5 else c for c in bytearray(name)))


def add(m, r, name, value):
    n = r.random()
    between = b": " if n < 0.8 else b":" if n < 0.9 else b": \t" if n < 0.95 else b":\t"
    m.lines.insert(r.randrange(len(m.lines) + 1), [name, between, value if r.random() < 0.9 else value + r.choice((b" ", b"\t", b" \t ")), b"\r\n"])


def chunk(r, size, data, ext=b""):
    """[size, extension, end of the line, data, end of the data]"""
    text = b"%x" % size if r.random() < 0.7 else b"%X" % size
    return [text if r.random() < 0.9 else b"0" * r.randrange(1, 4) + text, ext, b"\r\n", data, b"\r\n"]


def valid(r):
    """A valid request."""
    m = Message()
    m.before = b"" if r.random() < 0.96 else b"\r\n"
    m.method = r.choice(METHODS)
    m.target = r.choice(TARGETS)
    n = r.random()
    if n < 0.02:
        m.method, m.target = b"OPTIONS", b"*"
    elif n < 0.06:
        m.target = r.choice((b"http://", b"https://", b"HTTP://")) + r.choice(HOSTS) + r.choice((b"", b"/", b"?x", b"/x?y", b"/a/../b"))
    m.sp1 = m.sp2 = b" "
    m.version = b"HTTP/1.1" if r.random() < 0.95 else r.choice((b"HTTP/1.0", b"HTTP/1.2", b"HTTP/1.9"))
    m.end = m.head_end = m.last_end = m.trailers_end = b"\r\n"
    m.lines, m.chunks, m.trailers, m.body, m.extra, m.last, m.last_ext = [], None, [], b"", b"", b"0", b""
    if r.random() < 0.6:
        for _ in range(r.randrange(1, 4)):
            name, between, value = r.choice(FIELDS).partition(b":")
            m.lines.append([name, between + b" ", value.lstrip(b" "), b"\r\n"])
    add(m, r, spell(r, b"Host"), r.choice(HOSTS))
    n = r.random()
    if n < 0.06:
        add(m, r, spell(r, b"Connection"), r.choice(CONNECTIONS))
    elif n < 0.07 or m.version == b"HTTP/1.0":
        add(m, r, b"Connection", r.choice((b"close", b"Keep-Alive", b"x, close")))
    if n > 0.97:
        add(m, r, b"Expect", r.choice((b"100-continue", b"100-Continue")))
    n = r.random()
    if n < 0.4 and not (m.method in (b"POST", b"PUT") and n < 0.3):
        return m
    data = content(r)
    if n < 0.7 or m.version == b"HTTP/1.0":
        m.body = data if r.random() < 0.95 else b""
        add(m, r, spell(r, b"Content-Length"), b"%d" % len(m.body))
        return m
    add(m, r, spell(r, b"Transfer-Encoding"), b"chunked" if r.random() < 0.9 else b"Chunked")
    m.chunks = []
    while data:
        k = len(data) if r.random() < 0.5 else r.randrange(1, len(data) + 1)
        m.chunks.append(chunk(r, k, data[:k], r.choice(EXTENSIONS) if r.random() < 0.1 else b""))
        data = data[k:]
    if r.random() < 0.1:
        m.last = r.choice((b"00", b"000", b"0000000000000000"))
    if r.random() < 0.05:
        m.last_ext = r.choice(EXTENSIONS)
    if r.random() < 0.15:
        m.trailers.append([r.choice((b"X-Sum", b"Content-Length", b"Host", b"Transfer-Encoding", b"X-Real-IP", b"Content-MD5")), b": ", b"1", b"\r\n"])
    return m


def text(m):
    parts = [m.before, m.method, m.sp1, m.target, m.sp2, m.version, m.end]
    for one in m.lines:
        parts += one
    parts.append(m.head_end)
    if m.chunks is None:
        parts.append(m.body)
    else:
        for one in m.chunks:
            parts += one
        parts += (m.last, m.last_ext, m.last_end)
        for one in m.trailers:
            parts += one
        parts.append(m.trailers_end)
    parts.append(m.extra)
    return b"".join(parts)


# ---- mutations of parts --------------------------------------------------------------------------------------------------------

def numbered(form, n):
    k = form.count(b"%d") + form.count(b"%x")
    return form % ((n,) * k) if k else form


def find(m, name):
    for one in m.lines:
        if one[0].lower() == name:
            return one
    return None


def any_line(m, r):
    lines = m.lines + m.trailers if m.chunks is not None else m.lines
    return r.choice(lines) if lines else [b"", b"", b"", b""]


def chunked(m, r):
    """Makes the message chunked when it is not."""
    if m.chunks is None:
        m.lines = [one for one in m.lines if one[0].lower() != b"content-length"]
        data = m.body or content(r)
        m.chunks, m.body = [chunk(r, len(data), data)], b""
        add(m, r, b"Transfer-Encoding", b"chunked")
    return m.chunks[r.randrange(len(m.chunks))] if m.chunks else None


def counted(m, r):
    one = find(m, b"content-length")
    if one is None and m.chunks is None:
        m.body = content(r)
        add(m, r, b"Content-Length", b"%d" % len(m.body))
        one = find(m, b"content-length")
    return one


def both(m, r):
    add(m, r, spell(r, b"Content-Length"), r.choice((b"0", b"5", b"6", b"%d" % len(m.body)))) if m.chunks is not None else add(m, r, spell(r, b"Transfer-Encoding"), b"chunked")


def length(m, r):
    one = counted(m, r)
    if one:
        one[2] = numbered(r.choice(LENGTHS), len(m.body))


def length_off(m, r):
    one = counted(m, r)
    if one:
        one[2] = b"%d" % max(0, len(m.body) + r.choice((-1, 1, -2, 2, 36, 1000, 2000000)))


def length_twice(m, r):
    one = counted(m, r)
    if one:
        add(m, r, spell(r, b"Content-Length"), one[2] if r.random() < 0.5 else b"%d" % r.randrange(50))


def coding(m, r):
    chunked(m, r)
    one = find(m, b"transfer-encoding")
    if one:
        one[2] = r.choice(CODINGS)


def coding_twice(m, r):
    chunked(m, r)
    add(m, r, spell(r, b"Transfer-Encoding"), r.choice(CODINGS) if r.random() < 0.5 else b"chunked")


def no_body(m, r):
    if r.random() < 0.5:
        m.lines = [one for one in m.lines if one[0].lower() not in (b"content-length", b"transfer-encoding")]
    else:
        m.chunks, m.body = None, b""


def size(m, r):
    one = chunked(m, r)
    if one:
        one[0] = numbered(r.choice(SIZES), len(one[3]))


def size_off(m, r):
    one = chunked(m, r)
    if one:
        one[0] = b"%x" % max(0, len(one[3]) + r.choice((-1, 1, 2, -2, 36, 16)))


def last_size(m, r):
    chunked(m, r)
    m.last = numbered(r.choice(SIZES), 0)


def extension(m, r):
    one = chunked(m, r)
    value = r.choice(BAD_EXTENSIONS if r.random() < 0.7 else EXTENSIONS)
    if one and r.random() < 0.7:
        one[1] = value
    else:
        m.last_ext = value


def chunk_end(m, r):
    one = chunked(m, r)
    if one:
        one[r.choice((2, 4))] = r.choice(LINE_ENDS + (b"XX", b"\rX", b"X\r\n", b"XX\r\n"))


def last_end(m, r):
    chunked(m, r)
    value = r.choice(LINE_ENDS + (b"X\r\n", b"\r\nX"))
    if r.random() < 0.5:
        m.last_end = value
    else:
        m.trailers_end = value


def trailer(m, r):
    chunked(m, r)
    m.trailers.append([r.choice(NAMES + (b"X-Sum", b"Content-Length", b"Transfer-Encoding")), r.choice((b": ", b":", b" : ", b"", b"\t:")), r.choice((b"1", b"chunked", b"a\x00", b"y\nZ: 1", b"y\r\n z", b"y\rZ")), b"\r\n"])


def drop_chunk(m, r):
    if chunked(m, r):
        m.chunks.pop()
    elif r.random() < 0.5:
        m.last = b""


def version(m, r):
    m.version = r.choice(VERSIONS)


def bad_target(m, r):
    m.target = r.choice(BAD_TARGETS)


def method(m, r):
    m.method = r.choice((b"", b"GE(T", b"GE\x00T", b"G\xc3\x89T", b"GET:", b"CONNECT", b"TRACE", b"PRI", b" GET", b"GET ", b"\tGET", b"G\rET", b"trace", b"GET\x0b"))


def spaces(m, r):
    value = r.choice((b"  ", b"\t", b"", b" \t", b"\x0b", b"\xa0", b"\r", b"\r\n"))
    if r.random() < 0.5:
        m.sp1 = value
    else:
        m.sp2 = value


def host(m, r):
    one = find(m, b"host")
    if one:
        one[2] = r.choice(BAD_HOSTS)


def host_count(m, r):
    if r.random() < 0.5:
        m.lines = [one for one in m.lines if one[0].lower() != b"host"]
    else:
        add(m, r, spell(r, b"Host"), r.choice(HOSTS))


def line_end(m, r):
    value, at = r.choice(LINE_ENDS), r.random()
    if at < 0.25:
        m.end = value
    elif at < 0.5:
        m.head_end = value
    else:
        any_line(m, r)[3] = value


def name(m, r):
    any_line(m, r)[0] = r.choice(NAMES)


def colon(m, r):
    any_line(m, r)[1] = r.choice((b" :", b"\t:", b" : ", b"", b"::", b" ", b"\r\n:", b":\r\n ", b":\0", b":\x0b", b"=", b": :"))


def value(m, r):
    one = any_line(m, r)
    at = r.randrange(len(one[2]) + 1)
    one[2] = one[2][:at] + r.choice(OCTETS) + one[2][at:]


def empty_lines(m, r):
    m.before = r.choice((b"\r\n\r\n", b"\n", b"\r", b" ", b"\r\n" * 10, b"\t", b"\r\n ", b"\r\n\n", b"\0", b"\r\n"))


def expect(m, r):
    add(m, r, spell(r, b"Expect"), r.choice(EXPECTS))
    if r.random() < 0.2:
        add(m, r, b"Expect", r.choice(EXPECTS))


def connection(m, r):
    add(m, r, spell(r, b"Connection"), r.choice((b"close", b"close, X-Real-IP, X-Forwarded-For", b"clo se", b"\x80", b"keep-alive\x0b", b"\"close\"", b"close;q=1", b"upgrade, close", b"Content-Length, Host")))


def too_large(m, r):
    n = r.random()
    if n < 0.3:
        m.target = b"/" + b"a" * 9000
    elif n < 0.6:
        add(m, r, b"X-Big", b"y" * 40000)
    else:
        for _ in range(130):
            add(m, r, b"X-Many", b"1")


def behind(m, r):
    m.extra = r.choice((b"G", b"\r\n", EVIL[:20], b"\0", b"x" * 10, b"0\r\n\r\n", b"5\r\nhello\r\n"))


def fold(m, r):
    one = any_line(m, r)
    one[2] = one[2] + r.choice((b"\r\n ", b"\r\n\t", b"\r\n \r\n ")) + r.choice((b"x", b"chunked", b""))


def one_zero(m, r):
    m.version = b"HTTP/1.0"
    if r.random() < 0.5:
        add(m, r, b"Connection", b"keep-alive")


def swap(m, r):
    r.shuffle(m.lines)


PARTS = ((both, 4), (length, 5), (length_off, 2), (length_twice, 3), (coding, 5), (coding_twice, 3), (no_body, 1), (size, 6), (size_off, 4), (last_size, 3), (extension, 4), (chunk_end, 5), (last_end, 3),
         (trailer, 3), (drop_chunk, 1), (version, 3), (bad_target, 5), (method, 3), (spaces, 3), (host, 5), (host_count, 2), (line_end, 6), (name, 4), (colon, 4), (value, 4), (empty_lines, 2), (expect, 2),
         (connection, 2), (too_large, 0.15), (behind, 2), (fold, 3), (one_zero, 2), (swap, 1))
WHEEL = [f for f, weight in PARTS for _ in range(int(weight * 20))]


# ---- mutations of octets -------------------------------------------------------------------------------------------------------

def spot(octets, r):
    """An index, mostly at what gives structure."""
    for _ in range(8):
        i = r.randrange(len(octets))
        if octets[i:i + 1] in (b"\r", b"\n", b":", b" ", b";", b",", b"\t") or r.random() < 0.15:
            return i
    return i


def spoil(octets, r):
    i, n = spot(octets, r), r.random()
    if n < 0.3:
        return octets[:i] + r.choice(OCTETS) + octets[i:]
    if n < 0.5:
        return octets[:i] + r.choice(OCTETS) + octets[i + 1:]
    if n < 0.65:
        return octets[:i] + octets[i + 1:]
    if n < 0.8:
        return octets[:i] + bytes(bytearray((octets[i] ^ (1 << r.randrange(8)),))) + octets[i + 1:]
    k = r.randrange(1, 20)
    if n < 0.88:
        return octets[:i] + octets[i:i + k] + octets[i:]
    if n < 0.94:
        return octets[:i] + octets[i + k:]
    if n < 0.97:
        j = spot(octets, r)
        return octets[:i] + octets[j:j + k] + octets[i:]
    return octets[:i]


def mutated(r):
    m = valid(r)
    n = r.random()
    if n < 0.72:
        for _ in range(1 if r.random() < 0.8 else r.randrange(2, 4)):
            WHEEL[r.randrange(len(WHEEL))](m, r)
        octets = text(m)
        return spoil(octets, r) if r.random() < 0.06 else octets
    octets = text(m)
    for _ in range(1 if n < 0.95 else r.randrange(2, 6)):
        if octets:
            octets = spoil(octets, r)
    return octets


def pieces(octets, r):
    """How the octets are cut: mostly not at all or a few times, now and then octet by octet."""
    n, total = r.random(), len(octets)
    if n < 0.4 or total < 2:
        return [total]
    if n < 0.45 and total < 200:
        return [1] * total
    at = sorted(set(r.randrange(1, total) for _ in range(r.randrange(1, 6))) | {0, total})
    return [b - a for a, b in zip(at, at[1:])]


def stream(seed):
    """Octets, lengths of the pieces, whether the client ends its side with the last one."""
    r = random.Random(seed)
    parts = []
    while len(parts) < 6 and r.random() < 0.36:
        parts.append(text(valid(r)))
    parts.append(mutated(r))
    n = r.random()
    if n < 0.5:
        parts.append(EVIL)
    elif n < 0.7:
        parts.append(text(valid(r)))
    octets = b"".join(parts)
    return octets, pieces(octets, r), r.random() < 0.5
