"""The reference reading: what a stream of octets means, by RFC 9112 and the rules of a strict edge. Slow, and meant to be obviously right.

read(octets) tells the requests that an upstream may see, and how the stream ends. It shares nothing with the proxy. Where the RFC leaves a
choice, it says which one is taken and why. Two readings of one message are never merged: the message is refused.

Python 3.9 is enough.
"""
import ipaddress
import re

# The limits of the configuration under which the proxy runs (tests/property/run writes it).
LINE_OCTETS = 8192               # large-client-header-buffers = 4 8k: the request line fits one
HEAD_OCTETS = 4 * 8192           # and the whole head all of them
FIELDS = 100                     # max-request-headers
BODY_OCTETS = 1 << 20            # proxy-body-size
TRAILER_OCTETS = 8192            # the trailer section
TRAILERS = 64
EXTENSION_OCTETS = 4096          # of chunks in all, less the content they came with
OPTIONS = 64                     # that a Connection field may name
HOSTS = (b"a.test",)             # everything of these hosts goes to the upstream,
ANYWHERE = b"/any"               # and this path (and what is below) of every host

BAD, METHOD, TOO_LARGE, LINE, EXPECT, FIELDS_TOO_LARGE = 400, 405, 413, 414, 417, 431


class Refused(Exception):
    """The octets so far are no beginning of a message that may pass. statuses: what may be answered."""

    def __init__(self, why, *statuses):
        Exception.__init__(self, why)
        self.why, self.statuses = why, statuses or (BAD,)


class Cut(Exception):
    """The stream ends within a message."""


class Request(object):
    """One request: what the upstream is to see, and what it means for the connection. routed: an upstream gets it."""

    def __init__(self):
        self.method = self.target = self.host = self.body = b""
        self.minor, self.closes, self.may_close, self.routed, self.expects = 1, False, False, True, False
        self.length, self.chunked = None, False


class Reading(object):
    """requests in order; end: "end", "close" (the last one ended it), "refused" (.statuses, .why) or "cut". within_body: the refusal or
    the cut lies in the body of .last, the head of which is fine."""

    def __init__(self):
        self.requests, self.end, self.statuses, self.why, self.within_body, self.last = [], "end", (), "", False, None


# ---- octets --------------------------------------------------------------------------------------------------------------------

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")                          # RFC 9110 section 5.6.2
VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*\Z")                              # RFC 9110 section 5.5: no CTL but HTAB
VERSION = re.compile(rb"HTTP/1\.([0-9])\Z")                                    # RFC 9112 section 2.3; a higher minor is read as 1
LINE_END = re.compile(rb"[\r\n]")
DIGITS = re.compile(rb"[0-9]+\Z")
HEX = re.compile(rb"[0-9A-Fa-f]{1,16}\Z")
# RFC 3986 pchar and "/", and what the URL standard lets a browser send raw all the same: [ ] ^ ` { | }, in a query the backslash too.
PATH = re.compile(rb"(?:[!$&'()*+,\-./0-9:;=@A-Z_a-z~\[\]^`{|}]|%[0-9A-Fa-f]{2})*\Z")
QUERY = re.compile(rb"(?:[!$&'()*+,\-./0-9:;=@A-Z_a-z~\[\]^`{|}?\\]|%[0-9A-Fa-f]{2})*\Z")
NAME_HOST = re.compile(rb"(?P<host>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?)(?::(?P<port>[0-9]{0,5}))?\Z")
IP6_HOST = re.compile(rb"(?P<host>\[(?P<ip>[0-9A-Fa-f:.]+)\])(?::(?P<port>[0-9]{0,5}))?\Z")
ABSOLUTE = re.compile(rb"[hH][tT][tT][pP][sS]?://([^/?]*)([^?]*)(\?.*)?\Z", re.S)


def line(octets, at, limit, status):
    """The line at `at` without its CRLF, and where the next one begins. CRLF ends a line; a CR or an LF alone is refused."""
    m = LINE_END.search(octets, at)
    end = m.start() if m else len(octets)
    if end - at > limit:
        raise Refused("a line is too long", status, BAD)         # whichever comes first: the limit or what is wrong with it
    if not m:
        raise Cut()
    if m.group() == b"\n":
        raise Refused("bare LF")
    if end + 1 == len(octets):
        raise Cut()
    if octets[end + 1:end + 2] != b"\n":
        raise Refused("bare CR")
    return octets[at:end], end + 2


# ---- the request line ----------------------------------------------------------------------------------------------------------

def authority(octets):
    """The host of an authority without userinfo: a name, an IPv4 address or an IPv6 address in brackets, and maybe a port."""
    m = NAME_HOST.match(octets) or IP6_HOST.match(octets)
    if not m:
        raise Refused("bad host")
    if m.re is IP6_HOST:
        try:
            ipaddress.IPv6Address(m.group("ip").decode())
        except ValueError:
            raise Refused("bad IPv6 address")
    if m.group("port") and int(m.group("port")) > 65535:
        raise Refused("bad port")
    if len(m.group("host")) > 255:
        raise Refused("host too long")
    return m.group("host")


def normal_path(path):
    """RFC 3986 section 6.2.2: unreserved octets decoded, digits in capitals, dot segments removed. %2F and %5C stay and separate nothing.
    Refused: what leads above the root, and dot segments that some servers see and others do not: `..;x`, `..%2Fx`, `x%2F..;y`."""
    def decode(m):
        c = bytes((int(m.group(1), 16),))
        return c if re.match(rb"[A-Za-z0-9._~-]", c) else m.group(0).upper()
    path = re.sub(rb"%([0-9A-Fa-f]{2})", decode, path)
    segments, kept, last = path.split(b"/")[1:], [], b""
    for last in segments:
        parts = re.split(rb"%2F|%5C", last)
        if len(parts) > 1 and any(re.match(rb"\.\.(;|$)", part) for part in parts):
            raise Refused("a veiled dot segment")
        if re.match(rb"\.\.?;", last):
            raise Refused("a dot segment with parameters")
        if last == b"..":
            if not kept:
                raise Refused("above the root")
            kept.pop()
        elif last != b".":
            kept.append(last)
    if last in (b".", b".."):
        kept.append(b"")
    return b"/" + b"/".join(kept)


def target(request, octets):
    """Origin form, absolute form, or * for OPTIONS. Sets .path, .target and, for the absolute form, .host."""
    query = b""
    request.authority = request.later = None
    if octets == b"*":
        if request.method != b"OPTIONS":
            raise Refused("asterisk")
        request.path = request.target = b"*"
        return
    if octets[:1] == b"/":
        path, mark, query = octets.partition(b"?")
        query = mark + query
    else:
        m = ABSOLUTE.match(octets)
        if not m:
            raise Refused("bad target")
        authority(m.group(1))
        request.authority = m.group(1)
        path, query = m.group(2) or b"/", m.group(3) or b""
    if not PATH.match(path) or not QUERY.match(query[1:]):
        raise Refused("bad octet in the target")
    if b"%00" in octets:
        raise Refused("%00")
    try:
        request.path = normal_path(path)
    except Refused as e:                                 # what a path means is decided when the head is whole: a field may refuse it before
        request.path, request.later = b"/", e
    request.target = request.path + query
    if request.authority is not None and request.method == b"OPTIONS" and m.group(2) == query == b"":
        request.target = b"*"                            # RFC 9112 section 3.2.4


def request_line(request, octets):
    words = octets.split(b" ")
    if len(words) != 3:
        raise Refused("not three words")
    request.method = words[0]
    if not TOKEN.match(words[0]):
        raise Refused("bad method")
    m = VERSION.match(words[2])
    if not m:
        raise Refused("bad version")
    request.minor = 0 if m.group(1) == b"0" else 1
    if request.method == b"CONNECT":
        raise Refused("CONNECT", METHOD, BAD)
    if request.method == b"TRACE":
        raise Refused("TRACE", METHOD, BAD)
    if request.method == b"PRI":                         # reserved for the preface of HTTP/2; servers of both take it for that
        raise Refused("PRI")
    target(request, words[1])


# ---- fields --------------------------------------------------------------------------------------------------------------------

def field(octets):
    """Name and value of a field line. RFC 9112 section 5: no folding, no white space before the colon."""
    name, colon, value = octets.partition(b":")
    if not colon or not TOKEN.match(name):
        raise Refused("bad field name")
    if not VALUE.match(value):
        raise Refused("bad octet in a field value")
    return name.lower(), value.strip(b" \t")


def take(request, seen, name, value):
    """What one field says about the message. A field that may stand once stands once; `5, 5` is two."""
    if name in (b"host", b"content-length", b"transfer-encoding", b"expect"):
        if name in seen:
            raise Refused("twice: %r" % name, EXPECT if name == b"expect" else BAD)
        seen.add(name)
    if name == b"host":
        authority(value)
        request.host = value
    elif name == b"content-length":
        if request.chunked:
            raise Refused("both framings")
        if not DIGITS.match(value) or (len(value) > 1 and value[:1] == b"0") or int(value) >= 1 << 63:
            raise Refused("bad Content-Length")
        request.length = int(value)
    elif name == b"transfer-encoding":
        if request.length is not None or request.minor == 0 or value.lower() != b"chunked":
            raise Refused("bad Transfer-Encoding")
        request.chunked = True
    elif name == b"expect":
        if value.lower() != b"100-continue":
            raise Refused("bad Expect", EXPECT)
        request.expects = True
    elif name == b"upgrade":
        request.upgrade = value.lower()
    elif name == b"connection":
        for item in value.split(b","):
            item = item.strip(b" \t").lower()
            if item == b"close":
                request.closes = True
            elif item == b"keep-alive":
                request.keeps = True
            elif item == b"upgrade":
                request.switches = True
            elif item and not TOKEN.match(item):
                request.may_close = True                 # such a peer need not be trusted with more
            elif item:
                request.options += 1
                if request.options > OPTIONS:
                    raise Refused("too many Connection options")


def wants_upgrade(request):
    """What stands behind a request for a tunnel may be meant for the tunnel, so without one the connection may end."""
    return request.upgrade == b"websocket" and request.switches and request.method == b"GET" and request.minor > 0


def head(octets, at):
    """The request whose head begins at `at`, and where its body begins. RFC 9112 section 2.2: one empty line before it is passed over."""
    request, seen, count, start = Request(), set(), 0, at
    request.keeps, request.switches, request.upgrade, request.options = False, False, None, 0
    if octets[at:at + 2] == b"\r\n":
        at += 2
    text, at = line(octets, at, LINE_OCTETS, LINE)
    request_line(request, text)
    while True:
        text, at = line(octets, at, HEAD_OCTETS - (at - start), FIELDS_TOO_LARGE)
        if at - start > HEAD_OCTETS:
            raise Refused("the head is too large", FIELDS_TOO_LARGE, BAD)
        if not text:
            break
        count += 1
        if count > FIELDS:
            raise Refused("too many fields", FIELDS_TOO_LARGE)
        name, value = field(text)
        take(request, seen, name, value)
    if b"host" not in seen and request.minor > 0:
        raise Refused("no Host")
    if request.later:
        raise request.later
    if request.authority is not None:
        request.host = request.authority                 # RFC 9112 section 3.2.2
    if request.minor == 0 and not request.keeps:
        request.closes = True
    if wants_upgrade(request):
        request.may_close = True
    return request, at


def route(request):
    """Whether an upstream gets it."""
    host = authority(request.host).lower() if request.host else b""
    host = host[:-1] if host[-1:] == b"." else host
    below = request.path == ANYWHERE or request.path[:len(ANYWHERE) + 1] == ANYWHERE + b"/"
    return host in HOSTS or below


# ---- bodies --------------------------------------------------------------------------------------------------------------------

def chunk_size(octets, at, extensions):
    """The size in the line at `at`, where the data begins, and the octets of extensions so far. RFC 9112 section 7.1; extensions mean nothing,
    are dropped, and must be what section 7.1.1 says. Every octet that cannot be right refuses where it stands."""
    i = at
    while i < len(octets) and octets[i:i + 1] in b"0123456789abcdefABCDEF":
        i += 1
        if i - at > 16:
            raise Refused("chunk size too long", BAD, TOO_LARGE)
    if i == len(octets):
        raise Cut()
    if i == at or octets[i:i + 1] not in (b"\r", b";"):
        raise Refused("bad chunk size")
    size = int(octets[at:i], 16)
    if size >= 1 << 63:
        raise Refused("chunk size too large", BAD, TOO_LARGE)
    start = i
    while i < len(octets) and octets[i:i + 1] != b"\r":
        i = extension(octets, i, start + EXTENSION_OCTETS - extensions)
    return size, crlf(octets, i), max(0, extensions + i - start - size)


def extension(octets, at, limit):
    """Where the extension at `at` ends: `;` name, perhaps `=` and a token or a quoted string; white space may stand around each of them, but
    not before the CRLF."""
    def here():
        if at >= len(octets):
            raise Cut()
        if at > limit:
            raise Refused("chunk extension too long", BAD, TOO_LARGE, FIELDS_TOO_LARGE)
        return octets[at:at + 1]

    def space():
        nonlocal at
        start = at
        while here() in (b" ", b"\t"):
            at += 1
        return at > start

    def token():
        nonlocal at
        if not TOKEN.match(here()):
            raise Refused("bad octet in a chunk extension")
        while TOKEN.match(here()):
            at += 1

    def quoted():
        nonlocal at
        at += 1
        while here() != b'"':
            if here() == b"\\":
                at += 1
            if not VALUE.match(here()):
                raise Refused("bad octet in a quoted string")
            at += 1
        at += 1

    if here() != b";":
        raise Refused("bad octet behind a chunk extension")
    at += 1
    space()
    token()
    spaced = space()
    if here() == b"=":
        at += 1
        space()
        quoted() if here() == b'"' else token()
        spaced = space()
    if here() != b";" and (spaced or here() != b"\r"):
        raise Refused("bad octet in a chunk extension")
    return at


def crlf(octets, at):
    """Where the octets behind the CRLF at `at` begin."""
    for want in (b"\r", b"\n"):
        if at >= len(octets):
            raise Cut()
        if octets[at:at + 1] != want:
            raise Refused("no CRLF")
        at += 1
    return at


def chunked(octets, at):
    body, extensions = b"", 0
    while True:
        size, at, extensions = chunk_size(octets, at, extensions)
        if size == 0:
            break
        if len(body) + size > BODY_OCTETS:
            raise Refused("body too large", TOO_LARGE)
        body += octets[at:at + size]
        if len(octets) - at < size:
            raise Cut()
        at = crlf(octets, at + size)
    start, count = at, 0
    while True:                                          # trailers: as strict as fields, and they never become fields
        text, at = line(octets, at, TRAILER_OCTETS - (at - start), FIELDS_TOO_LARGE)
        if at - start > TRAILER_OCTETS:
            raise Refused("the trailers are too large", FIELDS_TOO_LARGE, BAD)
        if not text:
            return body, at
        count += 1
        if count > TRAILERS:
            raise Refused("too many trailers", FIELDS_TOO_LARGE)
        field(text)


def body(request, octets, at):
    """RFC 9112 section 6.3."""
    if request.chunked:
        return chunked(octets, at)
    if request.length is None:
        return b"", at
    if request.length > BODY_OCTETS and request.routed:
        raise Refused("body too large", TOO_LARGE)
    if len(octets) - at < request.length:
        raise Cut()
    return octets[at:at + request.length], at + request.length


def read(octets):
    reading, at, request = Reading(), 0, None
    while at < len(octets):
        begun = False
        try:
            request, at = head(octets, at)
            request.routed = route(request)
            begun = True
            request.body, at = body(request, octets, at)
        except Refused as e:
            reading.end, reading.statuses, reading.why = "refused", e.statuses, e.why
        except Cut:
            reading.end = "cut"
        if reading.end != "end":
            reading.within_body, reading.last = begun, request if begun else None
            return reading
        reading.requests.append(request)
        if request.closes:
            reading.end = "close"
            return reading
    return reading
