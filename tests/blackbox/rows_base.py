"""The form of a row of strictness, and what the rows are built from."""
from typing import NamedTuple, Optional

EVIL = b"GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\n"
TE = b"Transfer-Encoding: chunked\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

NOTHING = "nothing"      # the upstream is sent no octet
PARTIAL = "partial"      # the upstream may see a request, but never a complete one

# Id of a rule: the kind, and where it stands. CVE ids are rules of their own (section 7.7).
RULES = {
    "F1": ("Content-Length beside Transfer-Encoding", "9112 §6.1, §6.3"),
    "F2": ("chunked twice", "9112 §6.1, §7.1"),
    "F3": ("chunked in disguise", "9112 §6.1"),
    "F4": ("other transfer codings", "9112 §6.3"),
    "F5": ("transfer codings in HTTP/1.0", "9112 §6.1"),
    "F6": ("empty and identity codings", "9112 §6.1"),
    "F7": ("lengths that differ", "9110 §8.6"),
    "F8": ("the same length twice", "9110 §8.6"),
    "F9": ("syntax of Content-Length", "9110 §8.6"),
    "F10": ("leading zeros in Content-Length", "9110 §8.6"),
    "F11": ("bodies of every method", "9112 §6, §9.3"),
    "F12": ("Expect, and early answers", "9110 §10.1.1"),
    "F13": ("chunk sizes", "9112 §7.1"),
    "F14": ("chunk extensions", "9112 §7.1.1, §2.2"),
    "F15": ("length and octets of chunk extensions", "9112 §7.1.1"),
    "F16": ("the end of chunk data", "9112 §7.1"),
    "F17": ("bare LF in chunked framing", "9112 §2.2, §7.1"),
    "F18": ("trailers", "9110 §6.5.1, 9112 §7.1.2"),
    "F19": ("the connection ends too early", "9112 §8"),
    "F20": ("framing of responses", "9112 §6.3"),
    "F21": ("responses without a length", "9112 §6.3, §8"),
    "F22": ("octets behind a response", "9112 §9.3"),
    "F23": ("responses without a body", "9112 §6.3, 9110 §8.6"),
    "H1": ("folded lines", "9112 §5.2"),
    "H2": ("white space before the colon", "9112 §5.1"),
    "H3": ("field names", "9112 §5, 9110 §5.1"),
    "H4": ("octets of field values", "9110 §5.5"),
    "H5": ("bare LF", "9112 §2.2"),
    "H6": ("bare CR", "9112 §2.2"),
    "H7": ("white space before the first field", "9112 §2.2"),
    "H8": ("what stands before the request line", "9112 §2.2"),
    "H9": ("the words of the request line", "9112 §3"),
    "H10": ("versions", "9112 §2.3"),
    "H11": ("methods", "9110 §9.1, §9.3.6, §9.3.8"),
    "H12": ("Host", "9112 §3.2"),
    "H13": ("absolute form", "9112 §3.2.2"),
    "H14": ("normal form of Host", "9110 §4.2.3, §7.2"),
    "H15": ("octets of the target", "9112 §3.2, 3986 §2"),
    "H16": ("asterisk form", "9112 §3.2.4"),
    "H17": ("underscores in field names", "9110 §5.1"),
    "H18": ("Connection options", "9110 §7.6.1"),
    "H19": ("forwarding fields of an untrusted peer", "7239 §8.1"),
    "H20": ("Proxy", "9110 §5.1"),
    "H21": ("other expectations", "9110 §10.1.1"),
    "H22": ("sizes", "9110 §15.5, 6585 §5"),
    "H23": ("hop-by-hop fields", "9110 §7.6.1"),
    "H24": ("Max-Forwards and Via", "9110 §7.6.2, §7.6.3"),
    "H25": ("status lines", "9112 §4, 9110 §15"),
    "7.3": ("paths", "3986 §6.2.2"),
    "7.4": ("upgrades", "9110 §7.8, 6455 §4"),
    "7.6": ("resources", "9112 §9.3.2, 9110 §17.5"),
}


class Request(NamedTuple):
    """What one client sends, and what comes of it.

    status: the answer; None is an end of the connection without one; a tuple has one of them for each request of a pipeline.
    sees: NOTHING, PARTIAL, or what the request at the upstream is: method, target, body, has, lacks (of its fields), trailers (all of
    them), at (V: the upstream of /secret); a list of such for a pipeline.
    ends: whether the connection ends behind the last answer; without it, it does behind a refusal.
    choice: why this answer, where the rule leaves one. ref: what others call it. script: what the upstream answers.
    fin: the client ends its side behind the octets. one_piece: what comes later would be another case."""
    id: str
    case: str
    octets: bytes
    status: object
    sees: object = NOTHING
    ends: Optional[bool] = None
    fin: bool = False
    choice: str = ""
    ref: str = ""
    rule: str = ""
    script: object = OK
    one_piece: bool = False

    @property
    def name(self):
        return f"{self.id} {self.case}"

    @property
    def answers(self):
        return self.status if isinstance(self.status, tuple) else (self.status,)

    @property
    def expected(self):
        """The requests that reach the upstream whole."""
        return self.sees if isinstance(self.sees, list) else [self.sees] if isinstance(self.sees, dict) else []

    @property
    def methods(self):
        """The method of each answer's request."""
        first = self.octets.lstrip(b"\r\n").split(b" ")[0].decode("latin-1")
        return [first] + [q.get("method", b"GET").decode() for q in self.expected[1:]] + ["GET"] * len(self.answers)

    @property
    def is_over(self):
        """The connection ends behind the last answer."""
        return self.ends if self.ends is not None else self.fin or self.answers[-1] in (None, 400, 413, 414, 417, 431)


class Response(NamedTuple):
    """What an upstream sends in answer to request, and what the client gets.

    status: of the client's final answer; CUT is an end of the connection within it, so that it cannot be taken for whole.
    GONE is 502 when nothing was forwarded yet, and CUT otherwise.
    body, has, lacks: of the client's answer when it is not a 502. interim: the statuses of the 1xx before it.
    reuse: whether the upstream connection is used again. end: the upstream's end behind the octets: "", "fin" or "rst"."""
    id: str
    case: str
    octets: bytes
    status: object
    body: Optional[bytes] = None
    reuse: bool = False
    has: dict = {}
    lacks: tuple = ()
    interim: tuple = ()
    end: str = ""
    request: bytes = b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n"
    choice: str = ""
    ref: str = ""
    rule: str = ""

    @property
    def name(self):
        return f"{self.id} {self.case}"

    @property
    def method(self):
        return self.request.split(b" ")[0].decode()


CUT = "cut"
GONE = "gone"


def get(fields=b"", target=b"/", version=b"HTTP/1.1", host=b"Host: a.test\r\n", method=b"GET"):
    return method + b" " + target + b" " + version + b"\r\n" + host + fields + b"\r\n"


def post(fields, body=b"", target=b"/", version=b"HTTP/1.1"):
    return get(fields, target, version, method=b"POST") + body


def chunks(body, fields=b""):
    """A POST with that chunked body, octet by octet."""
    return post(TE + fields, body)


def ok(fields=b"Content-Length: 2\r\n", body=b"ok", status=b"200 OK", version=b"HTTP/1.1"):
    return version + b" " + status + b"\r\n" + fields + b"\r\n" + body
