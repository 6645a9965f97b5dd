"""Requests that clients send (see rows.py)."""
from rows_base import EVIL, NOTHING, OK, PARTIAL, TE, Request, chunks, get, post
from harness import EARLY

HELLO = b"5\r\nhello\r\n0\r\n\r\n"
LAST = b"0\r\n\r\n"
EVIL_LENGTH = b"Content-Length: %d\r\n" % len(EVIL)
HEAD_BYTES, LINE_BYTES, FIELDS, BODY_BYTES = 32768, 8192, 100, 1 << 20       # the defaults of the options
EXT_BYTES = 4096


def text(v):
    """An octet string as a part of a name."""
    return repr(v)[1:]


def disguises(name):
    """Names that one reader may take for this one, and another not."""
    half = len(name) // 2
    return [b" " + name, b"\t" + name, b"\x0b" + name, b"\x0c" + name, b"\x00" + name, b"\x1f" + name, b"\x7f" + name, b"\x80" + name, b"\x85" + name, b"\xa0" + name, b"\xef\xbb\xbf" + name, b"\"" + name, b":" + name, b"," + name,
            b"\r" + name, b"\n" + name, b"\n\r" + name, b"X: y\n" + name, b"X: y\r" + name, b"X: y\r\n " + name, b"X: y\r\n\t" + name, b"X: y\x00\r\n" + name, b"X\r\n" + name, b"X : y\r\n" + name, b": y\r\n" + name,
            name + b" ", name + b"\t", name + b"  ", name + b"\x0b", name + b"\x0c", name + b"\x00", name + b"\x1f", name + b"\x7f", name + b"\x80", name + b"\x85", name + b"\xa0", name + b"\r", name + b"\n", name + b"\r\n", name + b"\r\n ",
            name + b"\"", name + b"=", name + b";", name + b",", name + b":", name + b"/", name + b" x", name + b"(x)", name[:half] + b" " + name[half:], name[:half] + b"\t" + name[half:], name[:half] + b"\x00" + name[half:],
            name[:half] + b"\r\n" + name[half:], name[:half] + b"\n" + name[half:], name[:half] + b"\xe2\x80\x8b" + name[half:], b"\"" + name + b"\""]


# ---------------------------------------------------------------------------------------------------------------------------
# Framing

FRAMING = [
    Request("F1", "length and chunked", post(b"Content-Length: 6\r\n" + TE, b"0\r\n\r\nG"), 400, ref="SMUG-CL-TE-BOTH",
            choice="RFC 9112 lets a server read the chunks and close; refused"),
    Request("F1", "chunked and length", post(TE + b"Content-Length: 6\r\n", b"0\r\n\r\nG"), 400, ref="SMUG-TECL-PIPELINE"),
    Request("F1", "chunked and length 0", post(TE + b"Content-Length: 0\r\n", LAST + EVIL), 400, ref="SMUG-TECL-DESYNC"),
    Request("F1", "length 0 and chunked", post(b"Content-Length: 0\r\n" + TE, LAST + EVIL), 400),
    Request("F1", "in a GET", get(b"Content-Length: 5\r\n" + TE) + LAST, 400),
    Request("F1", "in a HEAD", get(b"Content-Length: 5\r\n" + TE, method=b"HEAD") + LAST, 400),
    Request("F1", "CL.TE, a request within", post(b"Content-Length: 41\r\n" + TE, LAST + EVIL), 400, ref="SMUG-CLTE-SMUGGLED-GET"),
    Request("F1", "CL.TE, a HEAD within", post(b"Content-Length: 42\r\n" + TE, LAST + EVIL.replace(b"GET", b"HEAD")), 400, ref="SMUG-CLTE-SMUGGLED-HEAD"),
    Request("F1", "CL.TE, one octet too many", post(b"Content-Length: 6\r\n" + TE, LAST + b"X"), 400, ref="SMUG-CLTE-DESYNC"),
    Request("F1", "TE.CL with close", post(TE + b"Content-Length: 6\r\nConnection: close\r\n", LAST + b"G"), 400, ref="SMUG-TECL-CONN-CLOSE"),
    Request("F1", "the length is no number", post(b"Content-Length: 6x\r\n" + TE, LAST + EVIL), 400, ref="SMUG-CLTE-SMUGGLED-GET-CL-NON-NUMERIC"),
    Request("F1", "the coding is folded", post(b"Content-Length: 6\r\nTransfer-Encoding:\r\n chunked\r\n", LAST + EVIL), 400, ref="SMUG-CLTE-SMUGGLED-GET-TE-OBS-FOLD"),
    Request("F1", "white space behind the coding", post(b"Content-Length: 6\r\nTransfer-Encoding: chunked \r\n", LAST + EVIL), 400, ref="SMUG-CLTE-SMUGGLED-GET-TE-TRAILING-SPACE"),
    Request("F1", "two codings and a length", post(TE + TE + b"Content-Length: 6\r\n", LAST + EVIL), 400, ref="SMUG-TE-DUPLICATE-HEADERS-SMUGGLED-GET"),
    Request("F1", "behind a request that is fine", get() + post(b"Content-Length: 6\r\n" + TE, LAST + EVIL), (200, 400), [{}]),
    Request("F1", "TE.CL, a request within", post(b"Content-Length: 4\r\n" + TE, b"24\r\n" + EVIL + b"\r\n0\r\n\r\n"), 400, ref="SMUG-TECL-SMUGGLED-GET"),
    Request("F1", "with close", post(b"Connection: close\r\nContent-Length: 6\r\n" + TE, LAST + b"G"), 400, ref="SMUG-CLTE-CONN-CLOSE, SMUG-CLTE-PIPELINE, TROPHY-T23"),
    Request("F1", "the length is bad too", post(b"Content-Length: +6\r\n" + TE, LAST + EVIL), 400, ref="SMUG-CLTE-SMUGGLED-GET-CL-PLUS"),
    Request("F1", "the coding is bad too", post(b"Content-Length: 6\r\nTransfer-Encoding: ,chunked\r\n", LAST + EVIL), 400,
            ref="SMUG-CLTE-SMUGGLED-GET-TE-LEADING-COMMA, TROPHY-T15, TROPHY-T18"),
    Request("F1", "letter case of the coding", post(b"Content-Length: 6\r\nTransfer-Encoding: cHuNkEd\r\n", LAST + EVIL), 400,
            ref="SMUG-CLTE-SMUGGLED-GET-TE-CASE-MISMATCH"),
    Request("F1", "far apart", post(b"Content-Length: 6\r\n" + b"X: y\r\n" * 90 + TE, LAST + EVIL), 400),

    Request("F2", "two lines", post(TE + TE, LAST + EVIL), 400, ref="SMUG-TE-DUPLICATE-HEADERS, TROPHY-11, TROPHY-T25"),
    Request("F2", "three lines", post(TE * 3, LAST + EVIL), 400),
    Request("F2", "a list", post(b"Transfer-Encoding: chunked, chunked\r\n", LAST + EVIL), 400, ref="SMUG-TE-DOUBLE-CHUNKED"),
    Request("F2", "a list without space", post(b"Transfer-Encoding: chunked,chunked\r\n", LAST + EVIL), 400),
    Request("F2", "the second identity", post(TE + b"Transfer-Encoding: identity\r\n", LAST + EVIL), 400),
    Request("F2", "the first identity", post(b"Transfer-Encoding: identity\r\n" + TE, LAST + EVIL), 400),
    Request("F2", "the first x", post(b"Transfer-Encoding: x\r\n" + TE, LAST + EVIL), 400),
    Request("F2", "the second x", post(TE + b"Transfer-Encoding: x\r\n", LAST + EVIL), 400),
    Request("F2", "the second empty", post(TE + b"Transfer-Encoding:\r\n", LAST + EVIL), 400),
    Request("F2", "the first empty", post(b"Transfer-Encoding:\r\n" + TE, LAST + EVIL), 400),
    Request("F2", "the second in other letters", post(TE + b"tRANSFER-eNCODING: chunked\r\n", LAST + EVIL), 400),
    Request("F2", "a length between", post(TE + b"Content-Length: 5\r\n" + TE, LAST + EVIL), 400),
] + [
    Request("F3", "TE obfuscated: %s" % text(v), post(b"Transfer-Encoding: " + v + b"\r\n", LAST + EVIL), 400, ref=ref,
            choice="501 would be allowed too; one refusal is easier to trust" if v == b"xchunked" else "")
    for v, ref in ((b"xchunked", "SMUG-TE-XCHUNKED"), (b"chunked;a=b", "SMUG-CHUNKED-WITH-PARAMS"), (b"chunked;", ""), (b"chunked; q=1", ""),
                   (b",chunked", "SMUG-TE-LEADING-COMMA, TROPHY-21, TROPHY-T9"), (b", chunked", ""), (b"chunked,", "SMUG-TE-TRAILING-COMMA"), (b"chunked ,", ""),
                   (b",", ""), (b",,chunked", ""), (b"\x0bchunked", "SMUG-TE-VTAB"), (b"\x0cchunked", "SMUG-TE-FORMFEED"),
                   (b"chunked\x00", "SMUG-TE-NULL"), (b"\x00chunked", ""), (b"chu\x00nked", ""), (b"\"chunked\"", ""), (b"'chunked'", ""), (b"\"chunked", ""),
                   (b"chunked x", ""), (b"chunked\tx", ""), (b"x chunked", ""), (b"chunked\x0b", ""), (b"chunked\x0c", ""), (b"chunked\x1f", ""), (b"chunked\x7f", ""),
                   (b"\xa0chunked\xa0", "TROPHY-12"), (b"\x85chunked", ""), (b"chunked\xa0", ""), (b"\xffchunked\xff", "TROPHY-46"), (b"chunked\x80", ""),
                   (b"chunke", ""), (b"chunkedd", ""), (b"chunk", ""), (b"chunked-", ""), (b"c\thunked", ""), (b"ch unked", ""), (b"chunked\rX", ""),
                   (b"chunked\r", ""), (b"chunked=1", ""), (b"chunked:", ""), (b"chun\xc5\xb7ed", ""), (b"\xe2\x84\xaachunked", ""), (b"chunKed\xe2\x84\xaa", ""),
                   (b"chunked%00", ""), (b"%63hunked", ""), (b"(chunked)", ""), (b"[chunked]", ""), (b"chunked/1", ""), (b"blegh", "TROPHY-44"), (b"0", ""),
                   (b"Chunked, identity", ""), (b"identity, chunked", ""), (b"cow, chunked", ""), (b"chunked\\", ""))
] + [
    Request("F3", "letter case is legal", post(b"transfer-ENCODING: Chunked\r\n", HELLO), 200, {"body": b"hello"}, ref="SMUG-TE-CASE-MISMATCH"),
    Request("F3", "all capitals are legal", post(b"TRANSFER-ENCODING: CHUNKED\r\n", HELLO), 200, {"body": b"hello"}, ref="NORM-CASE-TE"),
    Request("F3", "white space around is legal", post(b"Transfer-Encoding: \t chunked \t\r\n", HELLO), 200, {"body": b"hello"}, ref="SMUG-TE-TRAILING-SPACE"),
    Request("F3", "a tab before is legal", post(b"Transfer-Encoding:\tchunked\r\n", HELLO), 200, {"body": b"hello"}, ref="SMUG-TE-TAB-BEFORE-VALUE"),
    Request("F3", "no space is legal", post(b"Transfer-Encoding:chunked\r\n", HELLO), 200, {"body": b"hello"}),
] + [
    Request("F3", "name obfuscated: %s" % text(n), post(n + b": chunked\r\nContent-Length: 5\r\n", LAST + EVIL), 400, ref="visible or hidden") for n in disguises(b"Transfer-Encoding")
] + [
    Request("F3", "space before the colon", post(b"Transfer-Encoding : chunked\r\n", LAST + EVIL), 400, ref="SMUG-TE-SP-BEFORE-COLON"),
    Request("F3", "tab before the colon", post(b"Transfer-Encoding\t: chunked\r\n", LAST + EVIL), 400),
    Request("F3", "vertical tab before the colon", post(b"Transfer-Encoding\x0b: chunked\r\n", LAST + EVIL), 400),
    Request("F3", "NUL in the name", post(b"Transfer\x00-Encoding: chunked\r\n", LAST + EVIL), 400),
    Request("F3", "space before the name", post(b"X: y\r\n Transfer-Encoding: chunked\r\n", LAST + EVIL), 400),
    Request("F3", "folded", post(b"Transfer-Encoding:\r\n chunked\r\n", LAST + EVIL), 400, ref="SMUG-TE-OBS-FOLD"),
    Request("F3", "folded in the middle", post(b"Transfer-Encoding: chunked,\r\n\tidentity\r\n", LAST + EVIL), 400),
    Request("F3", "folded behind", post(b"Transfer-Encoding: chunked\r\n \r\n", LAST + EVIL), 400),
    Request("F3", "folded, beside a length", post(b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n", LAST + EVIL), 400, ref="SMUG-OPTIONS-TE-OBS-FOLD"),
    Request("F3", "the name on two lines", post(b"Transfer-\r\nEncoding: chunked\r\nContent-Length: 5\r\n", LAST), 400, ref="TROPHY-37"),
    Request("F3", "behind a bare LF", post(b"X: y\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", LAST), 400),
    Request("F3", "behind a bare CR", post(b"X: y\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", LAST), 400),
    Request("F3", "behind LF CR", post(b"X: y\n\rTransfer-Encoding: chunked\r\n", LAST), 400),
    Request("F3", "a name that only begins so", post(b"Transfer-Encodings: chunked\r\nContent-Length: 5\r\n", b"hello"), 200, {"body": b"hello"}),
    Request("F3", "Content-Encoding is none", post(b"Content-Encoding: chunked\r\nContent-Length: 5\r\n", LAST), 200, {"body": LAST}),
    Request("F3", "TE is none", post(b"TE: chunked\r\nContent-Length: 5\r\n", LAST), 200, {"body": LAST, "lacks": (b"TE",)}),

    Request("F4", "gzip", post(b"Transfer-Encoding: gzip\r\n", b"hello"), 400, ref="COMP-UNKNOWN-TE-501"),
    Request("F4", "chunked, gzip", post(b"Transfer-Encoding: chunked, gzip\r\n", LAST + EVIL), 400, ref="SMUG-TE-NOT-FINAL-CHUNKED"),
    Request("F4", "gzip, chunked", post(b"Transfer-Encoding: gzip, chunked\r\n", LAST + EVIL), 400, choice="legal, but no client sends it and upstreams differ about it"),
    Request("F4", "gzip and chunked in two lines", post(b"Transfer-Encoding: gzip\r\n" + TE, LAST + EVIL), 400),
    Request("F4", "chunked and gzip in two lines", post(TE + b"Transfer-Encoding: gzip\r\n", LAST + EVIL), 400),
    Request("F4", "deflate", post(b"Transfer-Encoding: deflate\r\n", b"hello"), 400),
    Request("F4", "compress, chunked", post(b"Transfer-Encoding: compress, chunked\r\n", LAST), 400),
    Request("F4", "x-gzip, chunked", post(b"Transfer-Encoding: x-gzip, chunked\r\n", LAST), 400),
    Request("F4", "chunked, gzip, chunked", post(b"Transfer-Encoding: chunked, gzip, chunked\r\n", LAST), 400),
    Request("F4", "trailers", post(b"Transfer-Encoding: trailers\r\n", LAST), 400),
    Request("F4", "gzip and a length", post(b"Transfer-Encoding: gzip\r\nContent-Length: 5\r\n", b"hello"), 400),

    Request("F5", "chunked in 1.0", post(TE, HELLO, version=b"HTTP/1.0"), 400, ref="SMUG-TE-HTTP10"),
    Request("F5", "chunked and keep-alive in 1.0", post(TE + b"Connection: keep-alive\r\n", LAST + EVIL, version=b"HTTP/1.0"), 400),
    Request("F5", "chunked and length in 1.0", post(TE + b"Content-Length: 5\r\n", LAST, version=b"HTTP/1.0"), 400),
    Request("F5", "length and chunked in 1.0", post(b"Content-Length: 5\r\n" + TE, LAST, version=b"HTTP/1.0"), 400),
    Request("F5", "gzip in 1.0", post(b"Transfer-Encoding: gzip\r\n", LAST, version=b"HTTP/1.0"), 400),
    Request("F5", "identity in 1.0", post(b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", b"hello", version=b"HTTP/1.0"), 400),
    Request("F5", "a GET in 1.0", get(TE, version=b"HTTP/1.0") + LAST, 400),
    Request("F5", "a length in 1.0 is legal", post(b"Content-Length: 5\r\n", b"hello", version=b"HTTP/1.0"), 200, {"body": b"hello"}, ends=True),

    Request("F6", "empty", post(b"Transfer-Encoding:\r\n", LAST + EVIL), 400, ref="SMUG-TE-EMPTY-VALUE"),
    Request("F6", "only space", post(b"Transfer-Encoding:  \r\n", LAST + EVIL), 400),
    Request("F6", "only a tab", post(b"Transfer-Encoding:\t\r\n", LAST + EVIL), 400),
    Request("F6", "empty and a length", post(b"Transfer-Encoding:\r\nContent-Length: 5\r\n", b"hello"), 400),
    Request("F6", "identity", post(b"Transfer-Encoding: identity\r\n", EVIL), 400),
    Request("F6", "identity and a length", post(b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", b"hello"), 400, ref="SMUG-TE-IDENTITY"),
    Request("F6", "none", post(b"Transfer-Encoding: none\r\nContent-Length: 5\r\n", b"hello"), 400),

    Request("F7", "two lines", post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello!"), 400, ref="SMUG-DUPLICATE-CL"),
    Request("F7", "1 and 0", post(b"Content-Length: 1\r\nContent-Length: 0\r\n", b"G" + EVIL), 400, ref="TROPHY-23"),
    Request("F7", "0 and 1", post(b"Content-Length: 0\r\nContent-Length: 1\r\n", b"Z"), 400, ref="TROPHY-33"),
    Request("F7", "0 and a whole request", post(b"Content-Length: 0\r\n" + EVIL_LENGTH, EVIL), 400, ref="TROPHY-T22, SMUG-DUPLICATE-CL-SMUGGLED-GET"),
    Request("F7", "a list", post(b"Content-Length: 5, 6\r\n", b"hello!"), 400, ref="SMUG-CL-COMMA-DIFFERENT"),
    Request("F7", "a list, 0 first", post(b"Content-Length: 0, 5\r\n", b"hello"), 400),
    Request("F7", "far apart", post(b"Content-Length: 5\r\nX: y\r\ncontent-length: 6\r\n", b"hello!"), 400),
    Request("F7", "the first empty", post(b"Content-Length:\r\n" + EVIL_LENGTH, EVIL), 400, ref="TROPHY-42, TROPHY-T11"),
    Request("F7", "the second empty", post(b"Content-Length: 5\r\nContent-Length:\r\n", b"hello"), 400),
    Request("F7", "in a GET", get(b"Content-Length: 5\r\nContent-Length: 0\r\n") + b"hello", 400),
    Request("F7", "in 1.0", post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello!", version=b"HTTP/1.0"), 400),

    Request("F8", "the same in a list", post(b"Content-Length: 5, 5\r\n", b"hello"), 400, choice="RFC 9110 lets a recipient merge them; refused", ref="SMUG-CL-COMMA-SAME"),
    Request("F8", "the same three times", post(b"Content-Length: 5, 5, 5\r\n", b"hello"), 400, ref="SMUG-CL-COMMA-TRIPLE"),
    Request("F8", "the same in two lines", post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"), 400),
    Request("F8", "the same by value", post(b"Content-Length: 5\r\nContent-Length: 05\r\n", b"hello"), 400),
    Request("F8", "a comma behind", post(b"Content-Length: 5,\r\n", b"hello"), 400),
    Request("F8", "a comma before", post(b"Content-Length: ,5\r\n", b"hello"), 400),
    Request("F8", "nought twice", post(b"Content-Length: 0\r\nContent-Length: 0\r\n", EVIL), 400),
] + [
    Request("F9", text(v), post(b"Content-Length: " + v + b"\r\n", b"hello" + EVIL), 400, ref=ref,
            choice="413 would be allowed too" if v == b"99999999999999999999" else "")
    for v, ref in ((b"+5", "RFC9112-6.1-CL-PLUS-SIGN, TROPHY-10"), (b"-5", "TROPHY-26, SMUG-CL-NEGATIVE"), (b"-0", "SMUG-CL-NEGATIVE-ZERO"), (b"-48", ""), (b"0x5", "TROPHY-T1, SMUG-CL-HEX-PREFIX"), (b"0X5", ""),
                   (b"0b101", ""), (b"0o5", "SMUG-CL-OCTAL"), (b"5 5", "SMUG-CL-INTERNAL-SPACE"), (b"5\t5", ""), (b"5_0", "SMUG-CL-UNDERSCORE"), (b"", "TROPHY-16, TROPHY-38, TROPHY-T5, MAL-CL-EMPTY"), (b"  ", ""), (b"5a", "TROPHY-29"),
                   (b"1Z", ""), (b"a5", ""), (b"5.0", ""), (b".5", ""), (b"5e0", ""), (b"5E1", ""), (b"\"5\"", ""), (b"'5'", ""), (b"5\x0b", ""), (b"\x0c5", ""), (b"\x0b5", ""),
                   (b"5\x00", ""), (b"\x005", ""), (b"5\x7f", ""), (b"\xa05", ""), (b"5\xa0", ""), (b"5\x85", ""), (b"\xef\xbc\x95", ""), (b"\xd9\xa5", ""), (b"\xc2\xb2", ""),
                   (b"5;", ""), (b"5;q=1", ""), (b"5:", ""), (b"5/1", ""), (b"5-5", ""), (b"(5)", ""), (b"%35", ""), (b"5\r", ""), (b"5\r5", ""), (b"five", "RFC9112-6.1-CL-NON-NUMERIC"),
                   (b"NaN", ""), (b"Infinity", ""), (b"99999999999999999999", "MAL-CL-OVERFLOW"), (b"18446744073709551621", ""), (b"18446744073709551616", ""),
                   (b"9223372036854775808", ""), (b"4294967301x", ""), (b"9" * 44, ""), (b"1" + b"0" * 300, ""))
] + [
    Request("F9", "name obfuscated: %s" % text(n), post(n + b": 36\r\n", EVIL), 400, ref="visible or hidden") for n in disguises(b"Content-Length")
] + [
    Request("F9", "another name: %s" % text(n), post(n + b": 36\r\n") + get(target=b"/2"), (200, 200), [{"body": b""}, {"target": b"/2"}])
    for n in (b"X-Content-Length", b"Content-Lengths", b"Content-Length0", b"ContentLength", b"Content--Length", b"Content.Length", b"Content-Length-", b"-Content-Length", b"Content-Lengt", b"ontent-Length", b"Content-Length!", b"C0ntent-Length", b"Length")
] + [
    Request("F9", "white space around is legal", post(b"Content-Length: \t 5 \t\r\n", b"hello"), 200, {"body": b"hello"}, ref="SMUG-CL-TRAILING-SPACE, SMUG-CL-EXTRA-LEADING-SP"),
    Request("F9", "no space is legal", post(b"Content-Length:5\r\n", b"hello"), 200, {"body": b"hello"}),
    Request("F9", "letter case of the name is legal", post(b"cOnTeNt-LeNgTh: 5\r\n", b"hello"), 200, {"body": b"hello"}),
    Request("F9", "a tab before is legal", post(b"Content-Length:\t5\r\n", b"hello"), 200, {"body": b"hello"}, ref="MAL-CL-TAB-BEFORE-VALUE"),
    Request("F9", "folded", post(b"Content-Length:\r\n 5\r\n", b"hello"), 400),
    Request("F9", "folded in the middle", post(b"Content-Length: 5\r\n 0\r\n", b"hello"), 400),
    Request("F9", "no colon", post(b"Content-Length 5\r\n", b"hello"), 400, ref="TROPHY-28"),
    Request("F9", "2^63 - 1 is a number, and too large", post(b"Content-Length: 9223372036854775807\r\n", b"hello"), 413),
    Request("F9", "2^32 + 5 is not 5", post(b"Content-Length: 4294967301\r\n", b"hello" + EVIL), 413),

    Request("F10", "0005", post(b"Content-Length: 0005\r\n", b"hello"), 400, choice="legal decimal; some upstreams read octal, so it is refused", ref="SMUG-CL-LEADING-ZEROS"),
    Request("F10", "010", post(b"Content-Length: 010\r\n", b"helloworld"), 400, ref="SMUG-CL-LEADING-ZEROS-OCTAL, TROPHY-32"),
    Request("F10", "0200", post(b"Content-Length: 0200\r\n", b"x" * 200), 400),
    Request("F10", "00", post(b"Content-Length: 00\r\n", EVIL), 400, ref="SMUG-CL-DOUBLE-ZERO"),
    Request("F10", "09", post(b"Content-Length: 09\r\n", b"123456789"), 400),
    Request("F10", "many zeros", post(b"Content-Length: 000000000000000000000000005\r\n", b"hello"), 400),

    Request("F11", "GET with a length", get(EVIL_LENGTH) + EVIL, 200, {"method": b"GET", "target": b"/", "body": EVIL, "has": {b"Content-Length": b"36"}}, ref="COMP-GET-WITH-CL-BODY, TROPHY-T21"),
    Request("F11", "GET with chunks", get(TE) + b"24\r\n" + EVIL + b"\r\n0\r\n\r\n", 200, {"method": b"GET", "target": b"/", "body": EVIL}),
    Request("F11", "GET with a length, and a request behind", get(b"Content-Length: 5\r\n") + b"hello" + get(target=b"/2"), (200, 200),
            [{"body": b"hello"}, {"target": b"/2", "body": b""}], ref="SMUG-GET-CL-BODY-DESYNC"),
    Request("F11", "GET with half a request as its body", get(b"Content-Length: 31\r\n") + b"GET /evil HTTP/1.1\r\nX-Ignore: X" + get(target=b"/2"), (200, 200),
            [{"body": b"GET /evil HTTP/1.1\r\nX-Ignore: X"}, {"target": b"/2"}], ref="SMUG-GET-CL-PREFIX-DESYNC"),
    Request("F11", "HEAD with a body", get(b"Content-Length: 5\r\n", method=b"HEAD") + b"hello", 200, {"method": b"HEAD", "body": b"hello"}, ref="SMUG-HEAD-CL-BODY"),
    Request("F11", "HEAD with chunks", get(TE, method=b"HEAD") + HELLO, 200, {"method": b"HEAD", "body": b"hello"}),
    Request("F11", "OPTIONS with a body, and a request behind", get(b"Content-Length: 5\r\n", method=b"OPTIONS") + b"hello" + get(target=b"/2"), (200, 200),
            [{"method": b"OPTIONS", "body": b"hello"}, {"target": b"/2"}], ref="SMUG-OPTIONS-CL-BODY, SMUG-OPTIONS-CL-BODY-DESYNC"),
    Request("F11", "DELETE with a body", get(b"Content-Length: 5\r\n", method=b"DELETE") + b"hello", 200, {"method": b"DELETE", "body": b"hello"}),
    Request("F11", "an unknown method with a body", get(b"Content-Length: 5\r\n", method=b"QUERY") + b"hello", 200, {"method": b"QUERY", "body": b"hello"}),
    Request("F11", "POST without framing", post(b""), 200, {"method": b"POST", "body": b""}, ref="COMP-POST-NO-CL-NO-TE"),
    Request("F11", "POST of nothing", post(b"Content-Length: 0\r\n"), 200, {"method": b"POST", "body": b"", "has": {b"Content-Length": b"0"}}, ref="COMP-POST-CL-ZERO"),
    Request("F11", "length 0, and a request behind", post(b"Content-Length: 0\r\n") + get(target=b"/2"), (200, 200), [{"body": b""}, {"target": b"/2"}], ref="SMUG-CL0-BODY-POISON, TROPHY-48"),
    Request("F11", "length 0, and an octet behind", post(b"Content-Length: 0\r\n") + b"\x00", (200, 400), [{"body": b""}], ref="TROPHY-B3"),
    Request("F11", "no framing, and a body behind", post(b"", b"x=1&y=2 HTTP\r\n\r\n"), (200, 400), [{"method": b"POST", "body": b""}]),
    Request("F11", "chunks, and a request behind", chunks(HELLO) + get(target=b"/2"), (200, 200), [{"body": b"hello"}, {"target": b"/2"}]),
    Request("F11", "chunks, and an octet behind", chunks(HELLO) + b"\x00", (200, 400), [{"body": b"hello"}], ref="TROPHY-B3"),
    Request("F11", "the upstream answers before the body came", post(b"Content-Length: 10\r\n", b"hello"), 200, PARTIAL, ends=True, script=[EARLY, OK],
            choice="the answer goes out with close; the upstream connection is not used again", ref="CL.0"),
    Request("F11", "the upstream answers before the last chunk", chunks(b"5\r\nhello\r\n"), 200, PARTIAL, ends=True, script=[EARLY, OK]),

    Request("F12", "x 100-continue", post(b"Expect: x 100-continue\r\nContent-Length: 5\r\n", b"hello"), 417, ref="0.CL"),
    Request("F12", "100-continue, x", post(b"Expect: 100-continue, x\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "100-continuex", post(b"Expect: 100-continuex\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "100-continue;x=1", post(b"Expect: 100-continue;x=1\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "quoted", post(b"Expect: \"100-continue\"\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "100-continue twice in a list", post(b"Expect: 100-continue, 100-continue\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "100-continue twice", post(b"Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "two lines, the second x", post(b"Expect: 100-continue\r\nExpect: x\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "two lines, the first x", post(b"Expect: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "100 continue", post(b"Expect: 100 continue\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "100-", post(b"Expect: 100-\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("F12", "folded", post(b"Expect:\r\n 100-continue\r\nContent-Length: 5\r\n", b"hello"), 417, choice="its first line is an empty expectation"),
    Request("F12", "letter case", post(b"Expect: 100-Continue\r\nContent-Length: 5\r\n", b"hello"), 200, {"body": b"hello"}, ref="SMUG-EXPECT-100-CL"),
    Request("F12", "Connection cannot take it away", post(b"Connection: Expect\r\nExpect: 100-continue\r\nContent-Length: 5\r\n", b"hello"), 200, {"body": b"hello", "has": {b"Expect": b"100-continue"}}),
    Request("F12", "with chunks", chunks(HELLO, b"Expect: 100-continue\r\n"), 200, {"body": b"hello"}),
    Request("F12", "without a body it means nothing", get(b"Expect: 100-continue\r\n"), 200, {"body": b"", "lacks": (b"Expect",)}),
    Request("F12", "with length 0 it means nothing", post(b"Expect: 100-continue\r\nContent-Length: 0\r\n"), 200, {"body": b"", "lacks": (b"Expect",)}),
    Request("F12", "in 1.0 it means nothing", post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"hello", version=b"HTTP/1.0"), 200, {"body": b"hello", "lacks": (b"Expect",)}, ends=True),
    Request("F12", "the body is there at once, and a request behind", post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"hello") + get(target=b"/2"), (200, 200),
            [{"body": b"hello"}, {"target": b"/2"}], ref="SMUG-EXPECT-100-CL-DESYNC"),
    Request("F12", "an early final answer, and the body never comes", post(b"Expect: 100-continue\r\nContent-Length: 5\r\n"), 403, PARTIAL, ends=True,
            script=[EARLY, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"], choice="closed instead of waiting for the body"),
    Request("F12", "an early final answer, and half the body", post(b"Expect: 100-continue\r\nContent-Length: 40\r\n", EVIL), 403, PARTIAL, ends=True,
            script=[EARLY, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"]),
    Request("F12", "both framings beside it", post(b"Expect: 100-continue\r\nContent-Length: 5\r\n" + TE, b"hello"), 400),
] + [
    Request("F13", "size %s" % text(v), chunks(v + b"\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref=ref,
            choice="413 would be allowed too" if v == b"10000000000000005" else "")
    for v, ref in ((b"0x5", "SMUG-CHUNK-HEX-PREFIX"), (b"0X5", ""), (b"x5", ""), (b"+5", "TROPHY-25"), (b"-5", "SMUG-CHUNK-NEGATIVE"), (b"-0x5", ""), (b"5_", "SMUG-CHUNK-UNDERSCORE"), (b"0_2e", "TROPHY-1"),
                   (b"5_0", ""), (b" 5", "SMUG-CHUNK-LEADING-SP"), (b"\t5", ""), (b"           5", "TROPHY-T24"), (b"5 ", ""), (b"5\t", ""), (b"5  \t", ""), (b"5 5", ""), (b"", "TROPHY-17"), (b" ", ""),
                   (b"g", ""), (b"5g", "TROPHY-22"), (b"Z", "TROPHY-T2"), (b"1these-bytes-never-get-validated", "TROPHY-T7"), (b"\x005", ""), (b"5\x00", ""), (b"5\x01", ""), (b"5\x7f", ""), (b"5\x80", ""),
                   (b"\xa05", ""), (b"5\xa0", ""), (b"\x0b5", ""), (b"5,", ""), (b"5, 5", ""), (b"5.0", ""), (b"5h", ""), (b"5L", ""), (b"\"5\"", ""), (b"'5'", ""), (b"5\x0b", ""), (b"5\x0c", ""),
                   (b"%35", ""), (b"(5)", ""), (b"5:", ""), (b"5=", ""), (b"$5", ""), (b"#5", ""), (b"\xef\xbc\x95", ""), (b"5\r", ""), (b"\r5", ""), (b"\n5", ""),
                   (b"00000000000000005", ""), (b"10000000000000005", "MAL-CHUNK-SIZE-OVERFLOW"), (b"8000000000000000", ""), (b"ffffffffffffffff", ""), (b"fffffffffffffffff", ""), (b"FFFFFFFFFFFFFFFF0", ""),
                   (b"7ffffffffffffffff", ""), (b"100000000000000000000005", ""), (b"hello", "TROPHY-47"), (b"\r\n5", "TROPHY-T17"), (b";a=b", ""), (b"+0", "SMUG-CHUNK-INVALID-SIZE-DESYNC"))
] + [
    Request("F13", "5e is 94, not 5", chunks(b"5e\r\nhello\r\n0\r\n\r\n" + EVIL + b"x" * 60), 400, PARTIAL),
    Request("F13", "capitals are legal", chunks(b"A\r\n0123456789\r\n0\r\n\r\n"), 200, {"body": b"0123456789"}, ref="COMP-CHUNKED-HEX-UPPERCASE"),
    Request("F13", "small letters are legal", chunks(b"a\r\n0123456789\r\n0\r\n\r\n"), 200, {"body": b"0123456789"}),
    Request("F13", "leading zeros are legal", chunks(b"0005\r\nhello\r\n000\r\n\r\n"), 200, {"body": b"hello"}, choice="unlike Content-Length: nothing but hexadecimal can be meant, and the size is written anew"),
    Request("F13", "16 digits are legal", chunks(b"0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n"), 200, {"body": b"hello"}),
    Request("F13", "many chunks are legal", chunks(b"1\r\nx\r\n" * 300 + LAST), 200, {"body": b"x" * 300}, ref="COMP-CHUNKED-MULTI"),
    Request("F13", "an empty body is legal", chunks(LAST), 200, {"body": b""}, ref="COMP-CHUNKED-EMPTY"),
    Request("F13", "content may look like framing", chunks(b"7\r\n0\r\n\r\nGE\r\n0\r\n\r\n"), 200, {"body": b"0\r\n\r\nGE"}),
    Request("F13", "bad second size", chunks(b"5\r\nhello\r\n5x\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F13", "empty second size", chunks(b"5\r\nhello\r\n\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F13", "bad last size", chunks(b"5\r\nhello\r\n0x\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F13", "space behind the last size", chunks(b"5\r\nhello\r\n0 \r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F13", "minus nought", chunks(b"5\r\nhello\r\n-0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F13", "minus nought in hexadecimal", chunks(b"-0x0\r\n\r\n" + EVIL), 400, PARTIAL, ref="TROPHY-T19"),
    Request("F13", "17 noughts", chunks(b"5\r\nhello\r\n00000000000000000\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F13", "2^32 + 5 is not 5", chunks(b"100000005\r\nhello\r\n0\r\n\r\n" + EVIL + b"x" * BODY_BYTES), 413, PARTIAL),

    Request("F14", "a legal one is dropped", chunks(b"5;a=b\r\nhello\r\n0;c\r\n\r\n"), 200, {"body": b"hello"}, ref="COMP-CHUNKED-EXTENSION"),
    Request("F14", "several are dropped", chunks(b"5;a;b=c;d=\"e\"\r\nhello\r\n0\r\n\r\n"), 200, {"body": b"hello"}),
    Request("F14", "a signature is dropped", chunks(b"5;chunk-signature=" + b"0a" * 32 + b"\r\nhello\r\n0;chunk-signature=" + b"0b" * 32 + b"\r\n\r\n"), 200, {"body": b"hello"}),
    Request("F14", "quoted", chunks(b"5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n"), 200, {"body": b"hello"}),
    Request("F14", "quoted, with escapes", chunks(b"5;a=\"b\\\"c\\\\\"\r\nhello\r\n0\r\n\r\n"), 200, {"body": b"hello"}),
    Request("F14", "white space around the semicolon and the sign", chunks(b"5; a = b ; c\r\nhello\r\n0\r\n\r\n"), 200, {"body": b"hello"}, choice="bad white space that a recipient must take; only directly behind the size it is refused"),
    Request("F14", "TERM.EXT: an LF behind the semicolon", chunks(b"2;\nxx\r\n4c\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="Funky chunks"),
    Request("F14", "EXT.TERM: an LF before the semicolon", chunks(b"2\n;\r\nxx\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="Funky chunks"),
    Request("F14", "bare LF", chunks(b"5;\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-EXT-LF"),
    Request("F14", "bare LF in the value", chunks(b"5;a\nb\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "bare LF in quotes", chunks(b"5;a=\"\n\"\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "CRLF in quotes ends the line", chunks(b"5;a=\"\r\nhello\"\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "bare CR", chunks(b"5;a\rb\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-EXT-CR"),
    Request("F14", "bare CR in quotes", chunks(b"5;a=\"\r\"\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "CR CR before the semicolon", chunks(b"5\r\r;ABCD\r\n34\r\nE\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="TROPHY-31, TROPHY-T3"),
    Request("F14", "CR CR behind it", chunks(b"41;a=b\r\r" + b"X" * 65 + b"\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="TROPHY-36"),
    Request("F14", "CR CR LF", chunks(b"5;a\r\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "behind the last size", chunks(b"5\r\nhello\r\n0;\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "bare CR behind the last size", chunks(b"5\r\nhello\r\n0;a\rb\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "only a semicolon", chunks(b"5;\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-BARE-SEMICOLON"),
    Request("F14", "only a semicolon, last chunk", chunks(b"5\r\nhello\r\n0;\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "two semicolons", chunks(b"5;;a\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "a semicolon behind", chunks(b"5;a;\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "no name", chunks(b"5;=b\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "no value", chunks(b"5;a=\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "two values", chunks(b"5;a=b=c\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "two words", chunks(b"5;a b\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "two words as a value", chunks(b"5;a=b c\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "a comma", chunks(b"5;a,b\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "an open quote", chunks(b"5;a=\"b\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "an escape that ends the line", chunks(b"5;a=\"b\\\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "octets behind the quote", chunks(b"5;a=\"b\"c\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "a quoted name", chunks(b"5;\"a\"\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "a size within", chunks(b"5;0\r\nhello\r\n0\r\n\r\n"), 200, {"body": b"hello"}),
    Request("F14", "a bracket", chunks(b"5;[\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-EXT-INVALID-TOKEN"),
    Request("F14", "not introduced by a semicolon", chunks(b"5 a=b\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F14", "white space before the semicolon", chunks(b"5 ;a=b\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, choice="bad white space that RFC 9112 lets stand here; nobody sends it, and it hides sizes"),

    Request("F15", "64 kB", chunks(b"5;" + b"a" * 65536 + b"\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="MAL-CHUNK-EXT-64K", choice="431 would be allowed too"),
    Request("F15", "at the limit", chunks(b"5;" + b"a" * (EXT_BYTES - 1) + b"\r\nhello\r\n0\r\n\r\n"), 200, {"body": b"hello"}),
    Request("F15", "above the limit", chunks(b"5;" + b"a" * EXT_BYTES + b"\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F15", "above the limit in many chunks", chunks((b"1;" + b"a" * 100 + b"\r\nx\r\n") * 50 + LAST + EVIL), 400, PARTIAL, ref="CVE-2023-39326"),
    Request("F15", "above the limit in the last chunk", chunks(b"5\r\nhello\r\n0;" + b"a" * 5000 + b"\r\n\r\n" + EVIL), 400, PARTIAL),
] + [
    Request("F15", "%s in an extension" % text(v), chunks(b"5;a" + v + b"b\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-EXT-CTRL" if v == b"\x00" else "")
    for v in (b"\x00", b"\x01", b"\x08", b"\x0b", b"\x0c", b"\x1b", b"\x1f", b"\x7f", b"\x80", b"\xff")
] + [
    Request("F15", "%s in a quoted value" % text(v), chunks(b"5;a=\"" + v + b"\"\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL)
    for v in (b"\x00", b"\x01", b"\x0b", b"\x1f", b"\x7f", b"\\\x00", b"\\\x01")
] + [
    Request("F15", "obs-text in a quoted value is legal", chunks(b"5;a=\"\x80\xff\t\"\r\nhello\r\n0\r\n\r\n"), 200, {"body": b"hello"}),

    Request("F16", "XX for CRLF", chunks(b"5\r\nhelloXX0\r\n\r\n" + EVIL), 400, PARTIAL, ref="CVE-2025-43859, SMUG-CHUNK-MISSING-TRAILING-CRLF"),
    Request("F16", "LF", chunks(b"5\r\nhello\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-LF-TERM, TROPHY-T13"),
    Request("F16", "CR", chunks(b"5\r\nhello\r0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "LF CR", chunks(b"5\r\nhello\n\r0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "CR CR", chunks(b"5\r\nhello\r\r0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "LF LF", chunks(b"5\r\nhello\n\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "ZERO.TWO: nothing for CRLF", chunks(b"5\r\nhello0\r\n\r\n" + EVIL), 400, PARTIAL, ref="Funky chunks"),
    Request("F16", "TERM.SPILL: LF and two octets", chunks(b"5\r\nhello\nXX\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="Funky chunks"),
    Request("F16", "SPILL.TERM: two octets and LF", chunks(b"5\r\nhelloXX\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="Funky chunks"),
    Request("F16", "SPILL: one octet more", chunks(b"5\r\nhelloX\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-SPILL, Funky chunks"),
    Request("F16", "SPILL: two octets more", chunks(b"5\r\nhelloXX\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "SPILL: two octets for CRLF, and a whole chunk", chunks(b"5\r\nhelloXX32\r\n" + EVIL + b"\r\n0\r\n\r\n"), 400, PARTIAL),
    Request("F16", "ONE.TWO: one octet for CRLF", chunks(b"5\r\nhelloX0\r\n\r\n" + EVIL), 400, PARTIAL, ref="Funky chunks"),
    Request("F16", "one octet less", chunks(b"6\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "CR X", chunks(b"5\r\nhello\rX0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "X LF", chunks(b"5\r\nhelloX\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "space CRLF", chunks(b"5\r\nhello \r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "CRLF twice", chunks(b"5\r\nhello\r\n\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "NUL NUL", chunks(b"5\r\nhello\x00\x000\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "behind the last chunk", chunks(b"5\r\nhello\r\n0\r\nX\r\n\r\n" + EVIL), 400, PARTIAL, ref="CVE-2023-40175"),
    Request("F16", "LF at the very end", chunks(b"5\r\nhello\r\n0\r\n\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-LF-TRAILER"),
    Request("F16", "CR X at the very end", chunks(b"5\r\nhello\r\n0\r\n\rX" + EVIL), 400, PARTIAL),
    Request("F16", "CR CR LF at the very end", chunks(b"5\r\nhello\r\n0\r\n\r\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "XX at the very end", chunks(b"5\r\nhello\r\n0\r\nXX" + EVIL), 400, PARTIAL, ref="TROPHY-39"),
    Request("F16", "a chunk behind the last", chunks(b"5\r\nhello\r\n0\r\n5\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F16", "a request behind without an empty line", chunks(b"5\r\nhello\r\n0\r\n" + EVIL), 400, PARTIAL),

    Request("F17", "LF all over", chunks(b"5\nhello\n0\n\n" + EVIL), 400, PARTIAL),
    Request("F17", "LF behind the size", chunks(b"5\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F17", "CR and an octet behind the size, and LF", chunks(b"1\r0\nZ\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="TROPHY-T4"),
    Request("F17", "CR behind the size", chunks(b"5\rhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, ref="SMUG-CHUNK-BARE-CR-TERM"),
    Request("F17", "LF behind the second size", chunks(b"5\r\nhello\r\n5\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F17", "LF behind the last size", chunks(b"5\r\nhello\r\n0\n\r\n" + EVIL), 400, PARTIAL),
    Request("F17", "LF LF behind the last size", chunks(b"5\r\nhello\r\n0\n\n" + EVIL), 400, PARTIAL),
    Request("F17", "CR behind the last size", chunks(b"5\r\nhello\r\n0\r\r\n" + EVIL), 400, PARTIAL),
    Request("F17", "LF CR behind the size", chunks(b"5\n\rhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),
    Request("F17", "LF before the first size", chunks(b"\n5\r\nhello\r\n0\r\n\r\n" + EVIL), 400, PARTIAL),

    Request("F18", "a harmless one", chunks(b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"), 200, {"body": b"hello", "lacks": (b"X-Sum",), "trailers": {b"X-Sum": b"1"}}, ref="COMP-CHUNKED-TRAILER-VALID"),
    Request("F18", "several", chunks(b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Time:  2 \r\nX-Sum: 3\r\n\r\n"), 200, {"body": b"hello", "lacks": (b"X-Sum",), "trailers": {b"X-Sum": b"1, 3", b"X-Time": b"2"}}),
    Request("F18", "one and a request behind", chunks(b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n") + get(target=b"/2"), (200, 200), [{"body": b"hello", "trailers": {b"X-Sum": b"1"}}, {"target": b"/2", "lacks": (b"X-Sum",)}]),
] + [
    Request("F18", "%s is dropped" % n.decode(), chunks(b"5\r\nhello\r\n0\r\n" + n + b": 100\r\n\r\n"), 200, {"body": b"hello", "trailers": {}, "clean": n}, ref=ref,
            choice="known fields never pass as trailers, whatever they mean" if n == b"Content-Length" else "")
    for n, ref in ((b"Content-Length", "SMUG-TRAILER-CL"), (b"Transfer-Encoding", "SMUG-TRAILER-TE"), (b"Host", "SMUG-TRAILER-HOST"), (b"Authorization", "SMUG-TRAILER-AUTH"), (b"X-Forwarded-For", ""),
                   (b"X-Forwarded-Proto", ""), (b"X-Forwarded-Host", ""), (b"X-Real-IP", ""), (b"Forwarded", ""), (b"Connection", ""), (b"Cookie", ""), (b"Content-Type", "SMUG-TRAILER-CONTENT-TYPE"),
                   (b"Content-Encoding", ""), (b"Content-Range", ""), (b"Range", ""), (b"Expect", ""), (b"Max-Forwards", ""), (b"TE", ""), (b"Trailer", ""), (b"Upgrade", ""), (b"Keep-Alive", ""),
                   (b"Cache-Control", ""), (b"Proxy-Authorization", ""), (b"Proxy", ""), (b"content-length", ""))
] + [
    Request("F18", "two lengths", chunks(b"5\r\nhello\r\n0\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 200, {"body": b"hello", "trailers": {}}),
    Request("F18", "an underscore", chunks(b"5\r\nhello\r\n0\r\nContent_Length: 1\r\nX_Forwarded_For: 6.6.6.6\r\n\r\n"), 200, {"body": b"hello", "trailers": {}}),
] + [
    Request("F18", case, chunks(b"5\r\nhello\r\n0\r\n" + v + b"\r\n\r\n" + EVIL), 400, PARTIAL, ref=ref)
    for case, v, ref in (("space before the colon", b"X-Bad : v", ""), ("tab before the colon", b"X-Bad\t: v", ""), ("no colon", b"nocolon", ""), ("LF", b"X: y\nZ: 1", ""), ("LF, no colon", b"X: y\nZ", ""),
                         ("CR", b"X: y\rZ: 1", ""), ("NUL", b"X: y\x00", ""), ("control", b"X: y\x01", ""), ("DEL", b"X: \x7f", ""), ("folded", b"X: y\r\n z", ""), ("folded with a tab", b"X: y\r\n\tz", ""),
                         ("space first", b" X: y", ""), ("empty name", b": y", ""), ("only a colon", b":", ""), ("NUL in a name", b"X\x00: y", ""), ("space in a name", b"X Y: z", ""),
                         ("obs-text in a name", b"X\x85: y", ""), ("brackets in a name", b"[X]: y", ""), ("a request line", b"GET /evil HTTP/1.1\r\nHost: a.test", ""),
                         ("a request line that has a colon", b"X:POST / HTTP/1.1\r\nGET /evil HTTP/1.1", "TROPHY-39"))
] + [
    Request("F18", "long", chunks(b"5\r\nhello\r\n0\r\nX: " + b"y" * 70000 + b"\r\n\r\n" + EVIL), 431, PARTIAL),
    Request("F18", "many", chunks(b"5\r\nhello\r\n0\r\n" + b"X: y\r\n" * 5000 + b"\r\n" + EVIL), 431, PARTIAL),

    Request("F19", "behind a chunk", chunks(b"5\r\nhello\r\n"), None, PARTIAL, fin=True, ref="COMP-CHUNKED-NO-FINAL",
            choice="closed without an answer: 400 would be allowed too, but whoever cut his request off waits for none"),
    Request("F19", "within a chunk", chunks(b"5\r\nhel"), None, PARTIAL, fin=True),
    Request("F19", "within the end of a chunk", chunks(b"5\r\nhello\r"), None, PARTIAL, fin=True),
    Request("F19", "within a size", chunks(b"5"), None, PARTIAL, fin=True),
    Request("F19", "within an extension", chunks(b"5;a"), None, PARTIAL, fin=True),
    Request("F19", "before the first size", chunks(b""), None, PARTIAL, fin=True),
    Request("F19", "behind the last size", chunks(b"5\r\nhello\r\n0"), None, PARTIAL, fin=True),
    Request("F19", "before the last CRLF", chunks(b"5\r\nhello\r\n0\r\n"), None, PARTIAL, fin=True),
    Request("F19", "within the last CRLF", chunks(b"5\r\nhello\r\n0\r\n\r"), None, PARTIAL, fin=True),
    Request("F19", "within trailers", chunks(b"5\r\nhello\r\n0\r\nX: y\r\n"), None, PARTIAL, fin=True),
    Request("F19", "within a counted body", post(b"Content-Length: 10\r\n", b"hello"), None, PARTIAL, fin=True, ref="COMP-POST-CL-UNDERSEND"),
    Request("F19", "one octet short", post(b"Content-Length: 6\r\n", b"hello"), None, PARTIAL, fin=True),
    Request("F19", "before a counted body", post(b"Content-Length: 10\r\n"), None, PARTIAL, fin=True),
    Request("F19", "within the head", b"GET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n", None, fin=True, ref="MAL-INCOMPLETE-REQUEST"),
    Request("F19", "within the last CRLF of the head", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r", None, fin=True),
    Request("F19", "within the request line", b"GET / HT", None, fin=True),
    Request("F19", "behind an empty line", b"\r\n", None, fin=True),
    Request("F19", "within the second request", get() + b"GET /2 HTTP/1.1\r\nHost:", (200, None), [{}], fin=True),
    Request("F19", "nothing at all", b"", None, fin=True, ref="MAL-EMPTY-REQUEST"),
    Request("F19", "a whole request is answered", get(), 200, {"target": b"/"}, fin=True, ends=True),
    Request("F19", "a whole body is answered", chunks(HELLO), 200, {"body": b"hello"}, fin=True, ends=True),
]

# ---------------------------------------------------------------------------------------------------------------------------
# Start line, fields, host

HEADS = [
    Request("H1", "folded", get(b"X: y\r\n z\r\n"), 400, ref="RFC9112-5.1-OBS-FOLD"),
    Request("H1", "folded with a tab", get(b"X: y\r\n\tz\r\n"), 400),
    Request("H1", "folded into nothing", get(b"X: y\r\n \r\n"), 400),
    Request("H1", "folded behind an empty value", get(b"X:\r\n y\r\n"), 400),
    Request("H1", "folded last field", get(b"X: y\r\n Z: 1\r\n"), 400),
    Request("H1", "folded host", b"GET / HTTP/1.1\r\nHost:\r\n a.test\r\n\r\n", 400),
    Request("H1", "a field that hides in a fold", get(b"X: y\r\n Content-Length: 36\r\n") + EVIL, 400),
    Request("H1", "folded request line", b"GET /\r\n HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H7", "space before the first field", b"GET / HTTP/1.1\r\n Host: a.test\r\n\r\n", 400, ref="COMP-WHITESPACE-BEFORE-HEADERS"),
    Request("H7", "tab before the first field", b"GET / HTTP/1.1\r\n\tX: y\r\nHost: a.test\r\n\r\n", 400),
    Request("H7", "a tab before a length", b"POST / HTTP/1.1\r\n\tContent-Length: 1\r\nHost: a.test\r\n\r\nX", 400, ref="TROPHY-4"),
    Request("H7", "a line of white space", b"GET / HTTP/1.1\r\n \t\r\nHost: a.test\r\n\r\n", 400, ref="MAL-WHITESPACE-ONLY-LINE"),
    Request("H7", "a line of one space", b"GET / HTTP/1.1\r\n \r\nHost: a.test\r\n\r\n", 400),
    Request("H7", "a vertical tab", b"GET / HTTP/1.1\r\n\x0bHost: a.test\r\n\r\n", 400),

    Request("H2", "space before the colon of Host", b"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", 400),
    Request("H2", "space before a colon", get(b"X : y\r\n"), 400, ref="RFC9110-5.6.2-SP-BEFORE-COLON"),
    Request("H2", "tab before a colon", get(b"X\t: y\r\n"), 400, ref="NORM-TAB-IN-NAME"),
    Request("H2", "many spaces", get(b"X     : y\r\n"), 400),
    Request("H2", "a length", post(b"Content-Length : 5\r\n", b"hello"), 400, ref="TROPHY-3, NORM-SP-BEFORE-COLON-CL"),
    Request("H2", "Connection", get(b"Connection : close\r\n"), 400),
    Request("H3", "no colon", get(b"NoColon\r\n"), 400, ref="RFC9112-5-HEADER-NO-COLON"),
    Request("H3", "no colon, on two lines", get(b"Te\r\nst: test\r\n"), 400, ref="TROPHY-T14"),
    Request("H3", "empty name", get(b": v\r\n"), 400, ref="RFC9112-5-EMPTY-HEADER-NAME, TROPHY-18"),
    Request("H3", "empty name first", b"GET / HTTP/1.1\r\n: ignored\r\nHost: a.test\r\n\r\n", 400),
    Request("H3", "empty name and a length", post(b": v\r\n" + EVIL_LENGTH, EVIL), 400),
    Request("H3", "only a colon", get(b":\r\nI: am chopped off\r\n"), 400, ref="TROPHY-27"),
    Request("H3", "two colons first", get(b":: v\r\n"), 400),
    Request("H3", "space in the name", get(b"X Y: v\r\n"), 400),
    Request("H3", "a field that is a request line", get(b"GET /evil HTTP/1.1\r\n"), 400),
] + [
    Request("H3", "%s in the name" % text(v), get(b"X" + v + b"Y: v\r\n"), 400, ref=ref)
    for v, ref in [(b"\x85", "TROPHY-20, TROPHY-T6"), (b"\xa0", ""), (b"\xef", "TROPHY-8, MAL-NON-ASCII-HEADER-NAME"), (b"[", "RFC9112-5-INVALID-HEADER-NAME"), (b"@", "TROPHY-14"), (b"\x80", ""), (b"\xff", ""), (b"\xc3\xa4", "")] +
                  [(bytes([c]), "") for c in b"\x00\x01\x08\x0b\x0c\x0e\x1b\x1f\x7f\"(),/;<=>?\\]{}"]
] + [
    Request("H3", "%s first in the name" % text(v), get(v + b"X: v\r\n"), 400) for v in (b"\x00", b"\x0b", b"\x7f", b"\x80", b"\xef\xbb\xbf", b"(", b"\r")
] + [
    Request("H3", "every token character is legal", get(b"!#$%&'*+-.^`|~09azAZ: v\r\n"), 200, {"has": {b"!#$%&'*+-.^`|~09azAZ": b"v"}}),
    Request("H3", "a name of 300 octets hides nothing", post(b"X" * 300 + b": a\r\n" + EVIL_LENGTH, EVIL), 200, {"body": EVIL}),
    Request("H3", "a colon in the value is legal", get(b"X: a:b:\r\n"), 200, {"has": {b"X": b"a:b:"}}),
] + [
    Request("H4", "%s in a value" % text(v), get(b"X: a" + v + b"b\r\n"), 400, ref=ref)
    for v, ref in [(b"\x00", "TROPHY-2, TROPHY-35, MAL-NUL-IN-HEADER-VALUE"), (b"\r", "TROPHY-34, TROPHY-T10"), (b"\rEvil: 1", "TROPHY-13, SMUG-BARE-CR-HEADER-VALUE"), (b"\r\r", ""), (b"\x00\r", ""), (b"\n", ""), (b"\nEvil: 1", "")] +
                  [(bytes([c]), "MAL-CONTROL-CHARS-HEADER" if c == 1 else "") for c in b"\x01\x02\x07\x08\x0b\x0c\x0e\x1b\x1f\x7f"]
] + [
    Request("H4", "NUL ends a value", get(b"X: a\x00\r\n"), 400, ref="TROPHY-43"),
    Request("H4", "NUL begins a value", get(b"X:\x00a\r\n"), 400),
    Request("H4", "only NUL", get(b"X:\x00\r\n"), 400),
    Request("H4", "a line of NUL behind a field", get(b"X: y\r\nc\x00\r\n"), 400, ref="TROPHY-T20"),
    Request("H4", "NUL in a cookie", get(b"Cookie: a=\x00\r\n"), 400, ref="COOK-NUL"),
    Request("H4", "odd cookies pass", get(b"Cookie: ;;=;a;=b; \"\r\nCookie: \r\n"), 200, {"has": {b"Cookie": b";;=;a;=b; \", "}}, ref="COOK-MALFORMED, COOK-EMPTY, COOK-MULTI-HEADER"),
    Request("H4", "controls in a cookie", get(b"Cookie: a=\x01\x02\x03\r\n"), 400, ref="COOK-CONTROL-CHARS"),
    Request("H4", "NUL in Connection", get(b"Connection: keep-alive\x00\r\n"), 400),
    Request("H4", "obs-text passes", get(b"X: \xe4\xff\x80\r\n"), 200, {"has": {b"X": b"\xe4\xff\x80"}}, choice="RFC 9110 lets it be refused; names and titles in Latin-1 and UTF-8 do occur"),
    Request("H4", "obs-text is no white space", get(b"X: \x85admin\xa0\r\n"), 200, {"has": {b"X": b"\x85admin\xa0"}}, ref="TROPHY-41"),
    Request("H4", "a tab passes", get(b"X: a\tb\r\n"), 200, {"has": {b"X": b"a\tb"}}),
    Request("H4", "an empty value", get(b"X:\r\n"), 200, {"has": {b"X": b""}}),
    Request("H4", "a value of white space", get(b"X: \t \r\n"), 200, {"has": {b"X": b""}}),
    Request("H4", "white space around", get(b"X: \t a b \t \r\n"), 200, {"has": {b"X": b"a b"}}),

    Request("H5", "LF behind the request line", b"GET / HTTP/1.1\nHost: a.test\r\n\r\n", 400, ref="RFC9112-2.2-BARE-LF-REQUEST-LINE", choice="RFC 9112 lets a server take it; refused"),
    Request("H5", "LF behind a field", b"GET / HTTP/1.1\r\nHost: a.test\n\r\n", 400, ref="RFC9112-2.2-BARE-LF-HEADER"),
    Request("H5", "LF between fields", b"GET / HTTP/1.1\r\nHost: a.test\nX: y\r\n\r\n", 400),
    Request("H5", "LF at the end of the head", b"GET / HTTP/1.1\r\nHost: a.test\r\n\n", 400),
    Request("H5", "LF only", b"GET / HTTP/1.1\nHost: a.test\n\n", 400, ref="TROPHY-T16"),
    Request("H5", "LF LF behind a name", get(b"Useless:\n\nGET /evil HTTP/1.1\r\n"), 400, ref="TROPHY-19"),
    Request("H5", "LF in the request line", b"GET /\nHTTP/1.1\r\nHost: a.test\r\n\r\n", 400, ref="TROPHY-9"),
    Request("H5", "LF behind a method", b"GET\n/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H5", "LF CR", b"GET / HTTP/1.1\n\rHost: a.test\r\n\r\n", 400),
    Request("H5", "LF in Host", b"GET / HTTP/1.1\r\nHost: a.test\nX-Forwarded-For: 6.6.6.6\r\n\r\n", 400),
    Request("H6", "CR behind the request line", b"GET / HTTP/1.1\rHost: a.test\r\n\r\n", 400),
    Request("H6", "CR between fields", b"GET / HTTP/1.1\r\nHost: a.test\rX: y\r\n\r\n", 400),
    Request("H6", "CR only", b"GET / HTTP/1.1\rHost: a.test\r\r", 400, ref="RFC9112-3-CR-ONLY-LINE-ENDING"),
    Request("H6", "CR at the end of the head", b"GET / HTTP/1.1\r\nHost: a.test\r\n\rX", 400),
    Request("H6", "CR and a request at the end of the head", b"GET / HTTP/1.1\r\nHost: a.test\r\n\rZGET /evil: HTTP/1.1\r\nHost: a.test\r\n\r\n", 400, ref="TROPHY-30, CVE-2023-30589"),
    Request("H6", "CR CR LF", b"GET / HTTP/1.1\r\nHost: a.test\r\r\n\r\n", 400),
    Request("H6", "CR CR LF at the end of the head", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\r\n", 400),
    Request("H6", "CR in the request line", b"GET /\rHTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H6", "CR in a name", get(b"X\rY: z\r\n"), 400),
    Request("H6", "CR behind a colon", get(b"X:\ry\r\n"), 400),

    Request("H8", "one empty line", b"\r\n" + get(), 200, {"target": b"/"}, ref="COMP-LEADING-CRLF", choice="one is skipped, as RFC 9112 asks"),
    Request("H8", "one empty line between requests", get() + b"\r\n" + get(target=b"/2"), (200, 200), [{"target": b"/"}, {"target": b"/2"}]),
    Request("H8", "two empty lines", b"\r\n" * 2 + get(), 400, choice="a second one is refused"),
    Request("H8", "ten empty lines", b"\r\n" * 10 + get(), 400),
    Request("H8", "bare LF", b"\n" + get(), 400),
    Request("H8", "CR", b"\r" + get(), 400),
    Request("H8", "CR CR LF", b"\r\r\n" + get(), 400),
    Request("H8", "space", b" " + get(), 400),
    Request("H8", "space CRLF", b" \r\n" + get(), 400),
    Request("H8", "NUL", b"\x00" + get(), 400),
    Request("H8", "a byte order mark", b"\xef\xbb\xbf" + get(), 400),
    Request("H8", "a colon", b":" + get(), 400),
    Request("H8", "a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40, 400, ref="MAL-BINARY-GARBAGE"),
    Request("H8", "an SSH banner", b"SSH-2.0-OpenSSH_9.2\r\n", 400),
    Request("H8", "a response", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 400),
    Request("H8", "a PROXY line that is not expected", b"PROXY TCP4 6.6.6.6 1.1.1.1 1 2\r\n" + get(), 400),
    Request("H8", "a binary PROXY header that is not expected", b"\r\n\r\n\x00\r\nQUIT\n!\x11\x00\x0c" + b"\x06" * 12 + get(), 400),

    Request("H9", "two spaces behind the method", b"GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400, ref="RFC9112-3-MULTI-SP-REQUEST-LINE"),
    Request("H9", "two spaces before the version", b"GET /  HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "tab behind the method", b"GET\t/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400, ref="COMP-REQUEST-LINE-TAB"),
    Request("H9", "tab before the version", b"GET /\tHTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "space and tab", b"GET \t/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "no target", b"GET HTTP/1.1\r\nHost: a.test\r\n\r\n", 400, ref="RFC9112-3-MISSING-TARGET"),
    Request("H9", "empty target", b"GET  HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "trailing space", b"GET / HTTP/1.1 \r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "trailing tab", b"GET / HTTP/1.1\t\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "space in the target", b"GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400, ref="COMP-SPACE-IN-TARGET"),
    Request("H9", "a version in the target", b"GET / HTTP/1.1 HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "no spaces", b"GET/HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "only a method", b"GET\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "a method and a space", b"GET \r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "four words", b"GET / x HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "vertical tab", b"GET /\x0bHTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "form feed", b"GET\x0c/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "no-break space", b"GET\xa0/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "NUL for a space", b"GET\x00/\x00HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "colon behind the method", b"GET: / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H9", "no request line", b"Host: a.test\r\n\r\n", 400),
] + [
    Request("H10", text(v), b"GET / " + v + b"\r\nHost: a.test\r\n\r\n", 400, ref=ref, choice="505 would be allowed too" if v == b"HTTP/2.0" else "")
    for v, ref in ((b"HTTP/1.10", ""), (b"HTTP/1.32", "TROPHY-5"), (b"HTTP/2.0", "RFC9112-2.3-INVALID-VERSION"), (b"HTTP/2", ""), (b"HTTP/0.9", ""), (b"HTTP/0.0", ""), (b"HTTP/3.0", ""), (b"HTTP/9.9", ""),
                   (b"HTTP/10.1", ""), (b"http/1.1", "COMP-VERSION-CASE"), (b"Http/1.1", ""), (b"HTTP/1.", ""), (b"HTTP/1", "COMP-VERSION-MISSING-MINOR"), (b"HTTP/", ""), (b"HTTP", ""), (b"HTTP/.1", ""),
                   (b"HTTP/11", ""), (b"HTTP/1.1x", ""), (b"HTTP/1.1.1", ""), (b"HTTP/01.1", "COMP-VERSION-LEADING-ZEROS"), (b"HTTP/1.01", ""), (b"HTTP/-1.1", ""), (b"HTTP/+1.1", ""), (b"HTTP/1.-1", ""),
                   (b"HTTP/ 1.1", "COMP-VERSION-WHITESPACE"), (b"HTTP /1.1", ""), (b"HTTP/1 .1", ""), (b"HTTP/1. 1", ""), (b"HTTP\\1.1", ""), (b"HTTP//1.1", ""), (b"HTTPS/1.1", ""), (b"XHTTP/1.1", ""), (b"HTTP-1.1", ""),
                   (b"ICAP/1.0", ""), (b"RTSP/1.0", ""), (b"HTTP/1,1", ""), (b"HTTP/1.a", ""), (b"HTTP/1.\xb2", ""), (b"HTTP/\r\r1.1", "TROPHY-15"), (b"HTTP/1.1\x00", ""), (b"HTTP/1.1\x0b", ""), (b"1.1", ""), (b"HTTP/%31.1", ""),
                   (b"HTTP/4294967295.255", "TROPHY-24"), (b"HTTP/1.4294967297", ""), (b"HTTP/............0596.7407.", "TROPHY-40"))
] + [
    Request("H10", "1.2 is read as 1.1", get(version=b"HTTP/1.2"), 200, {"target": b"/"}, ref="COMP-HTTP12-VERSION", choice="a higher minor version is compatible by RFC 9110 §2.5"),
    Request("H10", "1.9 is read as 1.1", get(version=b"HTTP/1.9"), 200, {"target": b"/"}),
    Request("H10", "chunks in 1.2", post(TE, HELLO, version=b"HTTP/1.2"), 200, {"body": b"hello"}),
    Request("H10", "1.0 ends", get(version=b"HTTP/1.0"), 200, {"target": b"/"}, ends=True, ref="COMP-HTTP10-DEFAULT-CLOSE"),
    Request("H10", "1.0 lives on request", get(b"Connection: keep-alive\r\n", version=b"HTTP/1.0"), 200, {"target": b"/"}, ends=False),
    Request("H10", "HTTP/0.9 simple request", b"GET /\r\n", 400, ref="RFC9112-2.3-HTTP09-REQUEST"),
    Request("H10", "HTTP/0.9 with LF", b"GET /\n", 400),

    Request("H11", "small letters", get(method=b"get"), 200, {"method": b"get"}, ref="COMP-METHOD-CASE", choice="a token, so another method than GET; passed as it is"),
    Request("H11", "an unknown token", get(method=b"M-SEARCH"), 200, {"method": b"M-SEARCH"}, ref="COMP-UNKNOWN-METHOD"),
    Request("H11", "every token character", get(method=b"!#$%&'*+-.^_`|~09azAZ"), 200, {"method": b"!#$%&'*+-.^_`|~09azAZ"}),
    Request("H11", "starts as a known one", get(method=b"GETX"), 200, {"method": b"GETX"}),
    Request("H11", "one letter", get(method=b"G"), 200, {"method": b"G"}),
] + [
    Request("H11", "%s in it" % text(v), get(method=b"GE" + v + b"T"), 400, ref="TROPHY-6" if v == b"(" else "") for v in (b"(", b")", b"\x00", b"\x01", b"\x7f", b"\x80", b"\xc3\x89", b":", b"\"", b",", b";", b"/", b"@", b"[", b"{", b"=", b"?", b"\\", b"<")
] + [
    Request("H11", "empty", b" / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    Request("H11", "CONNECT", b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n", 405, ends=True, ref="COMP-METHOD-CONNECT", choice="closed: what follows may be meant for the tunnel"),
    Request("H11", "CONNECT, and octets for the tunnel", b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n" + EVIL, 405, ends=True),
    Request("H11", "CONNECT with a body", b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\nContent-Length: 5\r\n\r\nhello", 405, ends=True),
    Request("H11", "CONNECT with a path", b"CONNECT / HTTP/1.1\r\nHost: a.test\r\n\r\n", 405, ends=True),
    Request("H11", "TRACE", get(method=b"TRACE"), 405, ends=True, ref="COMP-METHOD-TRACE, COMP-TRACE-SENSITIVE, COMP-405-ALLOW", choice="a trace tells a script what it may not see"),
    Request("H11", "TRACE with a body", get(b"Content-Length: 5\r\n", method=b"TRACE") + b"hello", 405, ends=True, ref="COMP-TRACE-WITH-BODY"),
    Request("H11", "TRACE with Max-Forwards", get(b"Max-Forwards: 0\r\n", method=b"TRACE"), 405, ends=True),
    Request("H11", "TRACK passes", get(method=b"TRACK"), 200, {"method": b"TRACK"}),

    Request("H12", "missing", get(host=b""), 400, ref="RFC9112-7.1-MISSING-HOST"),
    Request("H12", "missing, with another field", get(b"X: y\r\n", host=b""), 400),
    Request("H12", "twice, equal", get(host=b"Host: a.test\r\nHost: a.test\r\n"), 400, ref="COMP-DUPLICATE-HOST-SAME"),
    Request("H12", "twice, different", get(host=b"Host: a.test\r\nHost: b.test\r\n"), 400, ref="RFC9110-5.4-DUPLICATE-HOST"),
    Request("H12", "twice, far apart", get(b"X: y\r\nHost: b.test\r\n"), 400),
    Request("H12", "twice, letter case of the name", get(host=b"Host: a.test\r\nhOST: b.test\r\n"), 400),
    Request("H12", "twice, the second empty", get(host=b"Host: a.test\r\nHost:\r\n"), 400),
    Request("H12", "twice, the first empty", get(host=b"Host:\r\nHost: a.test\r\n"), 400),
    Request("H12", "twice in 1.0", get(host=b"Host: a.test\r\nHost: b.test\r\n", version=b"HTTP/1.0"), 400),
] + [
    Request("H12", text(v), get(host=b"Host: " + v + b"\r\n"), 400, ref=ref)
    for v, ref in ((b"a.test, b.test", "SMUG-MULTIPLE-HOST-COMMA"), (b"a.test,b.test", ""), (b"a.test,", ""), (b"a.test/x", "COMP-HOST-WITH-PATH"), (b"a.test/", ""), (b"u@a.test", "COMP-HOST-WITH-USERINFO"),
                   (b"u:p@a.test", ""), (b"a.test@b.test", ""), (b"@a.test", ""), (b"a b", ""), (b"a.test b.test", ""), (b"a.test\tx", ""), (b"a.test?x", ""), (b"a.test#x", ""), (b"http://a.test", ""), (b"//a.test", ""),
                   (b"a.test:8x", ""), (b"a.test:-1", ""), (b"a.test:+80", ""), (b"a.test:80:80", ""), (b"a.test: 80", ""), (b"a.test :80", ""), (b"a.test:65536", ""), (b"a.test:99999999999", ""), (b"a.test:0x50", ""), (b"a.test:80.", ""),
                   (b"[::1", ""), (b"::1", ""), (b"[::1]x", ""), (b"[::1]:x", ""), (b"[zz]", ""), (b"[]", ""), (b"[a.test]", ""), (b"[127.0.0.1]", ""), (b"[::1%25eth0]", ""), (b"[::1]]", ""), (b"a.test]", ""), (b"a[.test", ""),
                   (b"a.test\x00", ""), (b"a.test\x00.b.test", "TROPHY-T12"), (b"a\x01.test", ""), (b"a.test\x7f", ""), (b"a\xc3\xa4.test", ""), (b"\xffa\xff", "TROPHY-46"), (b"a.test\\x", ""), (b"a\"b", ""), (b"<a>", ""), (b"'a.test'", ""),
                   (b"a|b", ""), (b"a^b", ""), (b"a`b", ""), (b"{a}", ""), (b"a;b", ""), (b"a=b", ""), (b"a&b", ""), (b"a*b", ""), (b"*.test", ""), (b"a!b", ""), (b"a%2etest", ""), (b"a%00.test", ""), (b"a(b)", ""), (b"a$b", ""), (b"a+b", ""), (b"a~b", ""),
                   (b".", ""), (b".a.test", ""), (b"a..test", ""), (b"a.test..", ""), (b":80", ""), (b"a" * 256, ""))
] + [
    Request("H12", "empty", get(host=b"Host:\r\n"), 400, ref="COMP-HOST-EMPTY-VALUE"),
    Request("H12", "only space", get(host=b"Host:  \r\n"), 400),
    Request("H12", "1.0 without", get(host=b"", version=b"HTTP/1.0"), 404, ends=True, ref="COMP-HTTP10-NO-HOST", choice="legal in 1.0; routed as no host, which only a rule for any host matches"),
    Request("H12", "1.0 and empty", get(host=b"Host:\r\n", version=b"HTTP/1.0"), 400),
    Request("H12", "an underscore is legal", get(host=b"Host: a_b.test\r\n"), 404, choice="no name by RFC 1123, but common inside clusters"),
    Request("H12", "white space around is legal", get(host=b"Host: \t a.test \t\r\n"), 200, {"has": {b"Host": b"a.test"}}),
    Request("H12", "not first is legal", get(host=b"X: y\r\nHost: a.test\r\n"), 200, {"has": {b"Host": b"a.test"}}),

    Request("H13", "the same", get(target=b"http://a.test/x?y"), 200, {"target": b"/x?y", "has": {b"Host": b"a.test"}}, ref="COMP-ABSOLUTE-FORM"),
    Request("H13", "a mismatch", get(target=b"http://a.test/x", host=b"Host: b.test\r\n"), 200, {"target": b"/x", "has": {b"Host": b"a.test", b"X-Forwarded-Host": b"a.test"}}, ref="SMUG-ABSOLUTE-URI-HOST-MISMATCH",
            choice="the target's authority wins and Host is written anew, as RFC 9112 demands"),
    Request("H13", "a mismatch the other way", get(target=b"http://b.test/x"), 404),
    Request("H13", "a mismatch of the port", get(target=b"http://a.test:8080/x"), 200, {"target": b"/x", "has": {b"Host": b"a.test:8080"}}),
    Request("H13", "https", get(target=b"https://a.test/x"), 200, {"target": b"/x", "has": {b"Host": b"a.test", b"X-Forwarded-Proto": b"http"}}),
    Request("H13", "no path", get(target=b"http://a.test"), 200, {"target": b"/", "has": {b"Host": b"a.test"}}),
    Request("H13", "no path but a query", get(target=b"http://a.test?y"), 200, {"target": b"/?y", "has": {b"Host": b"a.test"}}),
    Request("H13", "letter case of the scheme", get(target=b"HTTP://a.test/x"), 200, {"target": b"/x"}),
    Request("H13", "letter case of the authority", get(target=b"http://A.Test/x"), 200, {"target": b"/x", "has": {b"Host": b"A.Test"}}),
    Request("H13", "in 1.0 without Host", get(target=b"http://a.test/x", host=b"", version=b"HTTP/1.0"), 200, {"target": b"/x", "has": {b"Host": b"a.test"}}, ends=True),
    Request("H13", "OPTIONS of a server", get(target=b"http://a.test", method=b"OPTIONS"), 200, {"target": b"*"}, rule="9112 §3.2.4"),
    Request("H13", "OPTIONS of a path", get(target=b"http://a.test/", method=b"OPTIONS"), 200, {"target": b"/"}),
    Request("H13", "OPTIONS of a query", get(target=b"http://a.test?x", method=b"OPTIONS"), 200, {"target": b"/?x"}),
] + [
    Request("H13", case, get(target=t, host=h), 400)
    for case, t, h in (("userinfo", b"http://u@a.test/", b"Host: a.test\r\n"), ("userinfo that looks like the host", b"http://a.test@b.test/", b"Host: a.test\r\n"), ("no authority", b"http:///x", b"Host: a.test\r\n"),
                       ("only a scheme", b"http://", b"Host: a.test\r\n"), ("one slash", b"http:/a.test/", b"Host: a.test\r\n"), ("no slashes", b"http:a.test", b"Host: a.test\r\n"), ("backslashes", b"http:\\\\a.test/", b"Host: a.test\r\n"),
                       ("empty Host", b"http://a.test/", b"Host:\r\n"), ("no Host", b"http://a.test/", b""), ("bad Host", b"http://a.test/", b"Host: a b\r\n"), ("two Hosts", b"http://a.test/", b"Host: a.test\r\nHost: a.test\r\n"),
                       ("another scheme", b"ftp://a.test/", b"Host: a.test\r\n"), ("file", b"file:///etc/passwd", b"Host: a.test\r\n"), ("javascript", b"javascript:alert(1)", b"Host: a.test\r\n"), ("ws", b"ws://a.test/", b"Host: a.test\r\n"),
                       ("httpx", b"httpx://a.test/", b"Host: a.test\r\n"), ("httpss", b"httpss://a.test/", b"Host: a.test\r\n"), ("fragment", b"http://a.test/#x", b"Host: a.test\r\n"), ("bad port", b"http://a.test:x/", b"Host: a.test\r\n"),
                       ("port too large", b"http://a.test:65536/", b"Host: a.test\r\n"), ("two ports", b"http://a.test:80:80/", b"Host: a.test\r\n"), ("escaped authority", b"http://a%2etest/", b"Host: a.test\r\n"), ("a comma", b"http://a.test,b.test/", b"Host: a.test\r\n"),
                       ("bad IPv6", b"http://[::g]/", b"Host: a.test\r\n"), ("NUL", b"http://a.test\x00/", b"Host: a.test\r\n"), ("backslash behind the authority", b"http://a.test\\@b.test/", b"Host: a.test\r\n"))
] + [
    Request("H13", "unknown authority", get(target=b"http://b.test/", host=b"Host: b.test\r\n"), 404),
    Request("H13", "in the path it is a path", get(target=b"/http://b.test/"), 200, {"target": b"/http://b.test/"}),

    Request("H14", "port", get(host=b"Host: a.test:8080\r\n"), 200, {"has": {b"Host": b"a.test:8080"}}),
    Request("H14", "port 0", get(host=b"Host: a.test:0\r\n"), 200, {"has": {b"Host": b"a.test:0"}}),
    Request("H14", "port 65535", get(host=b"Host: a.test:65535\r\n"), 200, {"has": {b"Host": b"a.test:65535"}}),
    Request("H14", "port with zeros", get(host=b"Host: a.test:00080\r\n"), 200, {"has": {b"Host": b"a.test:00080"}}),
    Request("H14", "letter case", get(host=b"Host: A.TesT\r\n"), 200, {"has": {b"Host": b"A.TesT"}}),
    Request("H14", "trailing dot", get(host=b"Host: a.test.\r\n"), 200, {"has": {b"Host": b"a.test."}}),
    Request("H14", "all three", get(host=b"Host: A.test.:80\r\n"), 200, {"has": {b"Host": b"A.test.:80"}}),
    Request("H14", "empty port", get(host=b"Host: a.test:\r\n"), 200, {"has": {b"Host": b"a.test:"}}, choice="legal by RFC 3986; forwarded unchanged"),
] + [
    Request("H14", case, get(host=b"Host: " + v + b"\r\n"), 404)
    for case, v in (("IPv6", b"[::1]:8080"), ("IPv6 in capitals", b"[2001:DB8::1]"), ("IPv6 with IPv4", b"[::ffff:10.0.0.1]"), ("IPv4", b"10.0.0.1"), ("unknown", b"zzz.test"), ("prefix of a known one", b"a.tes"),
                    ("known one and more", b"a.testx"), ("a label before", b"x.a.test"), ("a label behind", b"a.test.x"), ("255 octets", b"a" * 255), ("punycode", b"xn--a-0fa.test"))
] + [
    Request("H15", text(v), get(target=v), 400, ref=ref)
    for v, ref in ((b"/a#.png", "CVE-2023-45539, RFC9112-3.2-FRAGMENT-IN-TARGET"), (b"/#", ""), (b"#", ""), (b"/?a#b", ""), (b"/a\x01b", ""), (b"/a\x00b", "MAL-NUL-IN-URL"), (b"/a\x7fb", ""), (b"/a\x1fb", ""), (b"/a\x0bb", ""), (b"/a\tb", ""), (b"/a\rb", ""), (b"/a\nb", ""),
                   (b"/\xc3\xa4", "MAL-NON-ASCII-URL"), (b"/\x80", ""), (b"/\xff", ""), (b"/\xc0\xaf", "MAL-URL-OVERLONG-UTF8"), (b"/\xef\xbc\x8e\xef\xbc\x8e/", ""), (b"/\xa0", ""), (b"/\x85", ""), (b"/%", ""), (b"/%z", ""), (b"/%zz", ""), (b"/%4", ""), (b"/%4g", ""), (b"/%g4", ""),
                   (b"/a%", ""), (b"/a%2", ""), (b"/%%41", ""), (b"/%u002e", ""), (b"/%-1", ""), (b"/% 41", ""), (b"/%00", "MAL-URL-PERCENT-NULL"), (b"/a%00b", ""), (b"/a%00.png", ""), (b"\\a", ""), (b"\\\\a", ""), (b"/a\\b", "MAL-URL-BACKSLASH"), (b"/\\..\\", ""),
                   (b"a", ""), (b"a/b", ""), (b"!", "TROPHY-7"), (b"?x", ""), (b".", ""), (b"..", ""), (b"./a", ""), (b"../a", ""), (b"//\x00", ""), (b"/?%00", ""), (b"/?\x00", ""), (b"/?\x01", ""), (b"/?\xff", ""), (b"/?\x7f", ""), (b"/?a=%zz", ""), (b"/?a=%", ""), (b"a.test:80", ""),
                   (b"*x", ""), (b"@a.test/", ""), (b":80/", ""), (b"/<", ""), (b"/>", ""), (b"/\"", ""), (b"/?\"", ""), (b"/?<script>", ""))
] + [
    Request("H15", "escapes of others pass, those of letters are decoded", get(target=b"/%41%2f%5c%7e?%41=%2F&b"), 200, {"target": b"/A%2F%5C~?%41=%2F&b"}, choice="the path is forwarded in its normal form, which is the one that was routed; the query as it is"),
    Request("H15", "the rest of RFC 3986", get(target=b"/-._~!$&'()*+,;=:@/?-._~!$&'()*+,;=:@/?"), 200, {"target": b"/-._~!$&'()*+,;=:@/?-._~!$&'()*+,;=:@/?"}),
    Request("H15", "what browsers leave raw", get(target=b"/a|b^c`d{e}[f]?a|b^c`d{e}[f]\\"), 200, {"target": b"/a|b^c`d{e}[f]?a|b^c`d{e}[f]\\"}, choice="not in RFC 3986, but browsers send them raw, a backslash in the query only"),
    Request("H15", "an escaped CRLF stays escaped", get(target=b"/%0d%0aX:%20y"), 200, {"target": b"/%0D%0AX:%20y"}, ref="MAL-URL-PERCENT-CRLF"),
    Request("H15", "an empty query", get(target=b"/?"), 200, {"target": b"/?"}),
    Request("H15", "a query with a question mark", get(target=b"/?a?b"), 200, {"target": b"/?a?b"}),

    Request("H16", "GET *", get(target=b"*"), 400, ref="COMP-ASTERISK-WITH-GET"),
    Request("H16", "POST *", get(target=b"*", method=b"POST"), 400),
    Request("H16", "HEAD *", get(target=b"*", method=b"HEAD"), 400),
    Request("H16", "an unknown method and *", get(target=b"*", method=b"PRI"), 400),
    Request("H16", "OPTIONS **", get(target=b"**", method=b"OPTIONS"), 400),
    Request("H16", "OPTIONS */", get(target=b"*/", method=b"OPTIONS"), 400),
    Request("H16", "OPTIONS *?x", get(target=b"*?x", method=b"OPTIONS"), 400),
    Request("H16", "OPTIONS *", get(target=b"*", method=b"OPTIONS"), 200, {"method": b"OPTIONS", "target": b"*"}, ref="COMP-OPTIONS-STAR"),

    Request("H17", "Content_Length", post(b"Content_Length: 37\r\n", b""), 200, {"body": b"", "lacks": (b"Content_Length",)}, ref="NORM-UNDERSCORE-CL", choice="dropped, as nginx does; enable-underscores-in-headers lets them pass"),
    Request("H17", "Transfer_Encoding", post(b"Transfer_Encoding: chunked\r\nContent-Length: 5\r\n", b"hello"), 200, {"body": b"hello", "lacks": (b"Transfer_Encoding",)}, ref="SMUG-TRANSFER_ENCODING, NORM-UNDERSCORE-TE"),
    Request("H17", "Transfer_Encoding alone", post(b"Transfer_Encoding: chunked\r\n") + get(target=b"/2"), (200, 200), [{"body": b"", "lacks": (b"Transfer_Encoding",)}, {"target": b"/2"}]),
    Request("H17", "X_Forwarded_For", get(b"X_Forwarded_For: 6.6.6.6\r\nX-Forwarded_For: 6.6.6.6\r\n"), 200, {"lacks": (b"X_Forwarded_For", b"X-Forwarded_For")}),
    Request("H17", "first and last", get(b"_X: 1\r\nX_: 1\r\n_: 1\r\n"), 200, {"lacks": (b"_X", b"X_", b"_")}),
    Request("H17", "Host with one", get(b"Host_: b.test\r\nH_ost: b.test\r\n"), 200, {"lacks": (b"Host_", b"H_ost")}),

    Request("H18", "own fields cannot be taken away",
            get(b"Connection: close, X-Forwarded-For, X-Real-IP, X-Forwarded-Proto, X-Forwarded-Host, X-Request-ID, Host, Content-Length, Cookie, X-Foo\r\nX-Forwarded-For: 6.6.6.6\r\nX-Foo: 1\r\nCookie: a=b\r\n"), 200,
            {"has": {b"Host": b"a.test", b"X-Forwarded-For": b"127.0.0.1", b"X-Real-IP": b"127.0.0.1", b"X-Forwarded-Proto": b"http", b"Cookie": b"a=b"}, "lacks": (b"X-Foo",)}, ends=True),
    Request("H18", "Authorization cannot be taken away", get(b"Connection: Authorization, Cookie\r\nAuthorization: Basic eDp5\r\nCookie: a=b\r\n"), 200, {"has": {b"Authorization": b"Basic eDp5", b"Cookie": b"a=b"}},
            choice="fields that guard something stay, whatever Connection says"),
    Request("H18", "a length cannot be taken away", post(b"Connection: Content-Length\r\nContent-Length: 5\r\n", b"hello"), 200, {"body": b"hello", "has": {b"Content-Length": b"5"}}),
    Request("H18", "a coding cannot be taken away", chunks(HELLO, b"Connection: Transfer-Encoding\r\n"), 200, {"body": b"hello"}),
    Request("H18", "Host cannot be taken away", get(b"Connection: host\r\n"), 200, {"has": {b"Host": b"a.test"}}),
    Request("H18", "a named field in other letters", get(b"Connection: x-aBc\r\nX-AbC: 1\r\nx-abc: 2\r\n"), 200, {"lacks": (b"X-ABC",)}),
    Request("H18", "named before and behind", get(b"X-A: 1\r\nConnection: X-A\r\nX-A: 2\r\n"), 200, {"lacks": (b"X-A",)}),
    Request("H18", "two Connection lines", get(b"Connection: X-A\r\nConnection: X-B\r\nX-A: 1\r\nX-B: 2\r\nX-C: 3\r\n"), 200, {"lacks": (b"X-A", b"X-B"), "has": {b"X-C": b"3"}}),
    Request("H18", "empty elements", get(b"Connection: ,, X-A ,\r\nX-A: 1\r\n"), 200, {"lacks": (b"X-A",)}),
    Request("H18", "an empty one", get(b"Connection:\r\n"), 200, {"lacks": (b"Connection",)}),
    Request("H18", "an option that is no token", get(b"Connection: \"close\"\r\nX-A: 1\r\n"), 200, {"has": {b"X-A": b"1"}}, ends=True, choice="it names nothing; the connection is not trusted to live on"),
    Request("H18", "close and keep-alive", get(b"Connection: keep-alive, close\r\n"), 200, {"lacks": (b"Connection",)}, ends=True, ref="COMP-CONNECTION-CLOSE"),
    Request("H18", "close in other letters", get(b"Connection: CLOSE\r\n"), 200, {"lacks": (b"Connection",)}, ends=True),
    Request("H18", "close, and a request behind", get(b"Connection: close\r\n") + EVIL, 200, {"target": b"/"}, ends=True, choice="what stands behind is dropped"),
    Request("H18", "close, and garbage behind", get(b"Connection: close\r\n") + b"Invalid\r\n\r\n", 200, {"target": b"/"}, ends=True, ref="TROPHY-45"),
    Request("H18", "64 options", get(b"Connection: " + b", ".join(b"x%d" % i for i in range(64)) + b"\r\nX63: 1\r\n"), 200, {"lacks": (b"X63",)}),
    Request("H18", "65 options", get(b"Connection: " + b", ".join(b"x%d" % i for i in range(65)) + b"\r\n"), 400, choice="each one costs a look at all fields"),
] + [
    Request("H19", "%s is overwritten" % n.decode(), get(n + b": " + v + b"\r\n"), 200, {"has": {n: own}} if own else {"lacks": (n,)})
    for n, v, own in ((b"X-Forwarded-For", b"6.6.6.6", b"127.0.0.1"), (b"x-forwarded-for", b"6.6.6.6", b"127.0.0.1"), (b"X-Real-IP", b"6.6.6.6", b"127.0.0.1"), (b"X-Forwarded-Host", b"evil.test", b"a.test"), (b"X-Forwarded-Proto", b"https", b"http"),
                      (b"X-Forwarded-Scheme", b"https", b"http"), (b"X-Scheme", b"https", None), (b"Forwarded", b"for=6.6.6.6;proto=https", None), (b"X-Original-URI", b"/evil", None), (b"X-Original-Forwarded-For", b"6.6.6.6", None))
] + [
    Request("H19", "X-Forwarded-For three times", get(b"X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 7.7.7.7\r\nX-FORWARDED-FOR: 8.8.8.8\r\n"), 200, {"has": {b"X-Forwarded-For": b"127.0.0.1"}}),

    Request("H20", "Proxy", get(b"Proxy: http://evil.test/\r\n"), 200, {"lacks": (b"Proxy",)}, ref="CVE-2016-5385"),
    Request("H20", "in other letters, twice", get(b"pROXY: http://evil.test/\r\nPROXY: x\r\n"), 200, {"lacks": (b"Proxy",)}),

    Request("H21", "200-ok", get(b"Expect: 200-ok\r\n"), 417, ref="COMP-EXPECT-UNKNOWN"),
    Request("H21", "empty", get(b"Expect:\r\n"), 417),
    Request("H21", "with parameters", post(b"Expect: a=b;c\r\nContent-Length: 5\r\n", b"hello"), 417),
    Request("H21", "in 1.0", get(b"Expect: x\r\n", version=b"HTTP/1.0"), 417),

    Request("H22", "request line at the limit", get(target=b"/" + b"a" * (LINE_BYTES - len(b"GET / HTTP/1.1"))), 200, {"target": b"/" + b"a" * (LINE_BYTES - len(b"GET / HTTP/1.1"))}),
    Request("H22", "request line above the limit", get(target=b"/" + b"a" * (LINE_BYTES - len(b"GET / HTTP/1.1") + 1)), 414),
    Request("H22", "query above the limit", get(target=b"/?" + b"a" * LINE_BYTES), 414),
    Request("H22", "a request line of 100 kB", get(target=b"/" + b"a" * 100000), 414, ref="MAL-LONG-URL"),
    Request("H22", "a request line that never ends", b"GET /" + b"a" * 50000, 414),
    Request("H22", "a method of 100 kB", get(method=b"A" * 100000), 414, ref="MAL-LONG-METHOD"),
    Request("H22", "a name of 100 kB", get(b"A" * 100000 + b": x\r\n"), 431, ref="MAL-LONG-HEADER-NAME"),
    Request("H22", "a value of 100 kB", get(b"X: " + b"a" * 100000 + b"\r\n"), 431, ref="MAL-LONG-HEADER-VALUE"),
    Request("H22", "a value that never ends", b"GET / HTTP/1.1\r\nHost: a.test\r\nX: " + b"a" * 100000, 431),
    Request("H22", "head at the limit", get(b"X: " + b"a" * (HEAD_BYTES - len(get(b"X: \r\n"))) + b"\r\n"), 200, {"target": b"/"}),
    Request("H22", "head above the limit", get(b"X: " + b"a" * (HEAD_BYTES - len(get(b"X: \r\n")) + 1) + b"\r\n"), 431),
    Request("H22", "white space above the limit", get(b"X: " + b" " * HEAD_BYTES + b"y\r\n"), 431),
    Request("H22", "many fields at the limit", get(b"".join(b"x%d: y\r\n" % i for i in range(FIELDS - 1))), 200, {"has": {b"x98": b"y"}}),
    Request("H22", "many fields above the limit", get(b"".join(b"x%d: y\r\n" % i for i in range(FIELDS))), 431),
    Request("H22", "10,000 fields", get(b"x: y\r\n" * 10000), 431, ref="MAL-MANY-HEADERS"),
    Request("H22", "cookies above the limit", get(b"Cookie: " + b"a=b; " * 8000 + b"\r\n"), 431, ref="COOK-OVERSIZED"),
    Request("H22", "a thousand cookies", get(b"Cookie: " + b"a=b; " * 1000 + b"c\r\n"), 200, {"has": {b"Cookie": b"a=b; " * 1000 + b"c"}}, ref="COOK-MANY-PAIRS"),
    Request("H22", "a length above the limit", post(b"Content-Length: %d\r\n" % (BODY_BYTES + 1)), 413),
    Request("H22", "a length at the limit", post(b"Content-Length: %d\r\n" % BODY_BYTES, b"x" * BODY_BYTES), 200, {"body": b"x" * BODY_BYTES}),
    Request("H22", "a huge length and no body", post(b"Content-Length: 999999999999\r\n"), 413, ref="MAL-POST-CL-HUGE-NO-BODY"),
    Request("H22", "chunks above the limit", chunks(b"%x\r\n" % (BODY_BYTES + 1) + b"x" * (BODY_BYTES + 1) + b"\r\n0\r\n\r\n" + EVIL), 413, PARTIAL),
    Request("H22", "many chunks above the limit", chunks((b"8000\r\n" + b"x" * 32768 + b"\r\n") * 33 + LAST + EVIL), 413, PARTIAL),

    Request("H23", "every hop-by-hop field",
            get(b"Connection: keep-alive, X-A\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"), 200,
            {"lacks": (b"Connection", b"X-A", b"Keep-Alive", b"Proxy-Connection", b"TE", b"Upgrade", b"HTTP2-Settings")}),
    Request("H23", "in other letters", get(b"cONNECTION: x-a\r\nkEEP-aLIVE: 1\r\npROXY-cONNECTION: x\r\ntE: x\r\nuPGRADE: x\r\n"), 200, {"lacks": (b"Connection", b"Keep-Alive", b"Proxy-Connection", b"TE", b"Upgrade")}),
    Request("H23", "without Connection", get(b"Keep-Alive: 1\r\nProxy-Connection: close\r\nTE: trailers\r\nUpgrade: x\r\n"), 200, {"lacks": (b"Keep-Alive", b"Proxy-Connection", b"TE", b"Upgrade")}, choice="dropped though Connection does not name them"),
    Request("H23", "Proxy-Connection: close says nothing", get(b"Proxy-Connection: close\r\n"), 200, {"lacks": (b"Proxy-Connection",)}, ends=False),
    Request("H23", "Proxy-Authorization passes", get(b"Proxy-Authorization: Basic eDp5\r\n"), 200, {"has": {b"Proxy-Authorization": b"Basic eDp5"}}, choice="RFC 9110 §11.7.2 lets a proxy relay it; an upstream may be a proxy"),
    Request("H23", "Trailer passes", chunks(HELLO, b"Trailer: X-Sum\r\n"), 200, {"body": b"hello", "has": {b"Trailer": b"X-Sum"}}),

    Request("H24", "Max-Forwards passes", get(b"Max-Forwards: 3\r\n"), 200, {"has": {b"Max-Forwards": b"3"}}),
    Request("H24", "Max-Forwards of OPTIONS passes", get(b"Max-Forwards: 0\r\n", method=b"OPTIONS"), 200, {"has": {b"Max-Forwards": b"0"}}, choice="an edge is the origin's face: it does not answer in its place, nor count down"),
    Request("H24", "Via passes", get(b"Via: 1.1 x\r\nVia: 1.0 y\r\n"), 200, {"has": {b"Via": b"1.1 x, 1.0 y"}}, choice="none is added, as nginx and ingress-nginx do"),
]

# ---------------------------------------------------------------------------------------------------------------------------
# Paths. /secret goes to another upstream, so that a path that is matched in one form and forwarded in another shows.

PATHS = [
    Request("7.3", case, get(target=t), 400)
    for case, t in (("above the root", b"/../admin"), ("above the root, alone", b"/.."), ("above the root, twice", b"/../../"), ("above the root, later", b"/a/../../admin"), ("above the root, escaped", b"/%2e%2e/admin"), ("above the root, escaped in capitals", b"/%2E%2E/admin"),
                    ("above the root, half escaped", b"/.%2E/admin"), ("above the root, half escaped the other way", b"/%2e./admin"), ("above the root, behind a dot", b"/./../admin"),
                    ("two dots and a parameter", b"/a/..;/secret"), ("two dots and a named parameter", b"/a/..;x=1/secret"), ("two dots, escaped, and a parameter", b"/a/%2e%2e;/secret"), ("a dot and a parameter", b"/.;/secret"),
                    ("two dots at an escaped slash", b"/a/..%2fsecret"), ("two dots at an escaped slash in capitals", b"/a/..%2Fsecret"), ("two dots between escaped slashes", b"/a%2f..%2fsecret"), ("two dots behind an escaped slash", b"/a%2f../secret"),
                    ("two dots at an escaped backslash", b"/a/..%5csecret"), ("escaped dots at an escaped slash", b"/a/%2e%2e%2fsecret"), ("NUL", b"/secret%00.png"), ("a raw backslash", b"/a\\..\\secret"), ("a bad escape", b"/%2"), ("a wide escape", b"/%u2215secret"))
] + [
    Request("7.3", case, get(target=t), 200, {"target": to, "at": "V"} if to.startswith(b"/secret") else {"target": to}, choice=choice)
    for case, t, to, choice in (
        ("plain", b"/secret", b"/secret", ""), ("below it", b"/secret/x", b"/secret/x", ""), ("a longer element", b"/secretx", b"/secretx", ""), ("an escaped letter", b"/%73ecret", b"/secret", "matched and forwarded in the same normal form"),
        ("an escaped letter below", b"/secret/%61", b"/secret/a", ""), ("an escaped hyphen, dot, tilde, underscore", b"/%2d%2ea%7e%5f", b"/-.a~_", ""), ("a dot", b"/./secret", b"/secret", ""), ("an escaped dot", b"/%2e/secret", b"/secret", ""),
        ("two dots", b"/a/../secret", b"/secret", ""), ("escaped dots", b"/a/%2e%2e/secret", b"/secret", ""), ("half escaped dots", b"/a/.%2e/secret", b"/secret", ""), ("out of it", b"/secret/../a", b"/a", ""), ("out of it, escaped", b"/secret/%2e%2e/a", b"/a", ""),
        ("two dots at the end", b"/secret/..", b"/", ""), ("a dot at the end", b"/secret/.", b"/secret/", ""), ("two dots in an element", b"/a..b/..c/d..", b"/a..b/..c/d..", ""), ("three dots", b"/.../secret", b"/.../secret", ""), ("an escaped dot behind a name", b"/api%2e", b"/api.", ""),
        ("a double escape stays", b"/%252e%252e/secret", b"/%252e%252e/secret", "decoded once and never again"), ("a double escape of a slash stays", b"/a%252fsecret", b"/a%252fsecret", ""),
        ("an escaped slash separates nothing", b"/secret%2fx", b"/secret%2Fx", "stays one element, /secret%2Fx, which is not below /secret"), ("an escaped slash first", b"/%2fsecret", b"/%2Fsecret", ""), ("an escaped backslash separates nothing", b"/a%5csecret", b"/a%5Csecret", ""),
        ("digits of escapes become capitals", b"/%c3%a4%3a", b"/%C3%A4%3A", ""), ("a letter in capitals is another path", b"/SECRET", b"/SECRET", ""), ("a parameter is a part of its element", b"/secret;x=1", b"/secret;x=1", ""),
        ("double slash first", b"//x", b"//x", "slashes are not merged"), ("double slash that looks like an authority", b"//evil.test/", b"//evil.test/", ""), ("double slash before it", b"//secret", b"//secret", ""), ("double slash within", b"/a//b", b"/a//b", ""), ("only slashes", b"///", b"///", ""),
        ("two dots behind a double slash", b"/a//../secret", b"/a/secret", ""), ("slash at the end", b"/secret/", b"/secret/", ""), ("an escaped question mark", b"/secret%3fx", b"/secret%3Fx", ""), ("an escaped hash", b"/a%23b", b"/a%23b", ""), ("an escaped percent", b"/a%25", b"/a%25", ""), ("an escaped space", b"/a%20b", b"/a%20b", ""),
        ("dots in the query stay", b"/a?/../secret", b"/a?/../secret", ""), ("a plus is no space", b"/a+b", b"/a+b", ""))
]
PATHS = [r._replace(sees={"target": r.sees["target"]}) if isinstance(r.sees, dict) and r.sees["target"] in (b"/secretx", b"/secret%2Fx", b"/secret;x=1", b"/secret%3Fx") else r for r in PATHS]

# ---------------------------------------------------------------------------------------------------------------------------
# Upgrades: only what a WebSocket needs reaches the upstream as an upgrade, and only 101 makes a tunnel (here the upstream answers 200)

WS = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
PLAIN = {"lacks": (b"Upgrade", b"Connection", b"HTTP2-Settings")}

UPGRADES = [
    Request("7.4", "WebSocket, refused by the upstream", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + WS), 200, {"has": {b"Upgrade": b"websocket", b"Connection": b"upgrade"}}, ends=False,
            choice="a final answer other than 101 leaves the connection what it was"),
    Request("7.4", "an unknown version is the upstream's business", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 99\r\n"), 200,
            {"has": {b"Upgrade": b"websocket", b"Sec-WebSocket-Version": b"99"}}, ref="WS-UPGRADE-INVALID-VER"),
    Request("7.4", "letter case", get(b"Connection: keep-alive, uPGRADE\r\nUpgrade: WebSocket\r\n" + WS), 200, {"has": {b"Upgrade": b"websocket", b"Connection": b"upgrade"}}),
    Request("7.4", "a request behind it that did not wait for 101", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + WS) + get(target=b"/2"), 200, {"has": {b"Upgrade": b"websocket"}}, ends=True, one_piece=True,
            choice="dropped: octets that were meant for a tunnel are never read as requests"),
    Request("7.4", "a frame behind it that did not wait for 101", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + WS) + b"\x81\x85\x00\x00\x00\x00hello", 200, {"has": {b"Upgrade": b"websocket"}}, ends=True, one_piece=True),
    Request("7.4", "h2c", get(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"), 200, PLAIN, choice="h2c smuggling: the field is dropped, and the request is one of HTTP/1.1"),
    Request("7.4", "h2c in a POST", post(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nContent-Length: 5\r\n", b"hello"), 200, {**PLAIN, "body": b"hello"}),
    Request("7.4", "h2c whose settings are not named", get(b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"), 200, PLAIN),
    Request("7.4", "h2c in other letters", get(b"Connection: upgrade\r\nUpgrade: H2C\r\n"), 200, PLAIN),
    Request("7.4", "h2", get(b"Connection: Upgrade\r\nUpgrade: h2\r\n"), 200, PLAIN),
    Request("7.4", "TLS", get(b"Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n"), 200, PLAIN),
    Request("7.4", "an unknown protocol", get(b"Connection: Upgrade\r\nUpgrade: invalid/1\r\n"), 200, PLAIN, ref="WS-UPGRADE-UNKNOWN"),
    Request("7.4", "websocket, h2c", get(b"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n" + WS), 200, PLAIN),
    Request("7.4", "h2c, websocket", get(b"Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n" + WS), 200, PLAIN),
    Request("7.4", "websocket and h2c in two lines", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n" + WS), 200, PLAIN),
    Request("7.4", "h2c and websocket in two lines", get(b"Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n" + WS), 200, PLAIN),
    Request("7.4", "websocket twice", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: websocket\r\n" + WS), 200, PLAIN),
    Request("7.4", "websocket/13", get(b"Connection: Upgrade\r\nUpgrade: websocket/13\r\n" + WS), 200, PLAIN),
    Request("7.4", "an empty one", get(b"Connection: Upgrade\r\nUpgrade:\r\n" + WS), 200, PLAIN),
    Request("7.4", "without Connection", get(b"Upgrade: websocket\r\n" + WS), 200, PLAIN, ref="WS-UPGRADE-MISSING-CONN"),
    Request("7.4", "Connection without Upgrade", get(b"Connection: Upgrade\r\n" + WS), 200, PLAIN),
    Request("7.4", "with POST", post(b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n" + WS), 200, PLAIN, ref="WS-UPGRADE-POST"),
    Request("7.4", "with HEAD", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + WS, method=b"HEAD"), 200, {**PLAIN, "method": b"HEAD"}),
    Request("7.4", "with a body", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n" + WS) + b"hello", 200, {**PLAIN, "body": b"hello"}),
    Request("7.4", "with chunks", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + TE + WS) + HELLO, 200, {**PLAIN, "body": b"hello"}),
    Request("7.4", "with an empty chunked body", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + TE + WS) + LAST, 200, {**PLAIN, "body": b""}),
    Request("7.4", "in 1.0", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + WS, version=b"HTTP/1.0"), 200, PLAIN, ends=True, ref="WS-UPGRADE-HTTP10"),
    Request("7.4", "HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, ref="MAL-H2-PREFACE", choice="HTTP/2 is not offered on this listener; 505 would be allowed too"),
    Request("7.4", "HTTP/2 preface and frames", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", 400),
    Request("7.4", "HTTP/2 preface behind a request", get() + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (200, 400), [{"target": b"/"}]),
    Request("7.4", "HTTP/2 preface as a request of 1.1", get(target=b"*", method=b"PRI"), 400),
    Request("7.4", "PRI as a method of 1.1", get(method=b"PRI"), 400, choice="it is reserved for the preface, and servers of both versions sniff for it"),
    Request("7.4", "a method that starts as PRI", get(method=b"PRIX"), 200, [{"method": b"PRIX"}]),
]

# ---------------------------------------------------------------------------------------------------------------------------
# Resources: pipelines, and what passes through

MANY = 50
RESOURCES = [
    Request("7.6", "a pipeline of %d" % MANY, b"".join(get(target=b"/%d" % i) for i in range(MANY)), (200,) * MANY, [{"target": b"/%d" % i} for i in range(MANY)], choice="one at a time, in order"),
    Request("7.6", "a pipeline of bodies", b"".join(post(b"Content-Length: 1000\r\n", b"x" * 1000, target=b"/%d" % i) for i in range(20)), (200,) * 20, [{"method": b"POST", "target": b"/%d" % i, "body": b"x" * 1000} for i in range(20)]),
    Request("7.6", "two, the second malformed", get() + b"GET /2 HTTP/1.1\r\nHost : a.test\r\n\r\n" + EVIL, (200, 400), [{"target": b"/"}], ref="SMUG-PIPELINE-SAFE"),
    Request("7.6", "three, the second ambiguous", get() + post(b"Content-Length: 5\r\n" + TE, LAST) + EVIL, (200, 400), [{"target": b"/"}]),
    Request("7.6", "two, the second cut", get() + b"GET /2 HT", (200, None), [{"target": b"/"}], fin=True),
    Request("7.6", "three, the second unknown", get() + get(host=b"Host: zzz.test\r\n") + get(target=b"/3"), (200, 404, 200), [{"target": b"/"}, {"target": b"/3"}]),
    Request("7.6", "a refused body is skipped", post(b"Content-Length: 36\r\n", EVIL).replace(b"a.test", b"b.test", 1) + get(target=b"/2"), (404, 200), [{"method": b"GET", "target": b"/2"}]),
    Request("7.6", "refused chunks are not skipped", chunks(HELLO).replace(b"a.test", b"b.test", 1) + EVIL, 404, ends=True, choice="the end of a body that is not read is not known, so the connection ends"),
    Request("7.6", "HEAD in a pipeline", get(method=b"HEAD") + get(target=b"/2"), (200, 200), [{"method": b"HEAD"}, {"target": b"/2"}]),
    Request("7.6", "a thousand ranges pass", get(b"Range: bytes=" + b",".join(b"%d-" % i for i in range(1000)) + b"\r\n"), 200, {"target": b"/"}, ref="MAL-RANGE-OVERLAPPING, CVE-2011-3192", choice="ranges are the upstream's business"),
    Request("7.6", "control bytes for the log", get(b"User-Agent: \x1b[2J\r\n"), 400),
    Request("7.6", "quotes and backslashes for the log", get(b"User-Agent: \"\\\",\"status\":\"200\r\nReferer: \\u0000\"\r\n", target=b"/?\\"), 200, {"target": b"/?\\", "has": {b"User-Agent": b"\"\\\",\"status\":\"200"}}, choice="passed as they are; the access log escapes them"),
    Request("7.6", "one hundred Connection lines", get(b"Connection: a\r\n" * 99), 400, choice="more options than 64"),
    Request("7.6", "one-octet chunks without end", chunks(b"1\r\nx\r\n" * 2000), None, PARTIAL, fin=True),
]

# ---------------------------------------------------------------------------------------------------------------------------
# What broke peers (7.7)

CVES = [
    Request("CVE-2021-40346", "a name of 270 octets that overflows into Content-Length", post(b"Content-Length0" + b"a" * 255 + b":\r\n" + EVIL_LENGTH, EVIL), 200, {"body": EVIL}, rule="HAProxy: 9110 §5.1"),
    Request("CVE-2021-40346", "a name of 256 octets that ends as Content-Length", post(b"Content-Length" + b"0" * 242 + b": 0\r\n" + EVIL_LENGTH, EVIL), 200, {"body": EVIL}, rule="HAProxy: 9110 §5.1"),
    Request("CVE-2021-40346", "two lengths, one by overflow", post(b"Content-Length: 0\r\nContent-Length0" + b"a" * 255 + b": 36\r\n") + get(target=b"/2"), (200, 200), [{"body": b""}, {"target": b"/2"}], rule="HAProxy: 9110 §5.1"),
    Request("CVE-2023-25725", "an empty name must not cut the list", post(b": \r\nContent-Length: 36\r\n", EVIL), 400, rule="HAProxy: 9110 §5.1"),
    Request("CVE-2023-25725", "a nameless line before Host", b"GET / HTTP/1.1\r\n:\r\nHost: a.test\r\n\r\n", 400, rule="HAProxy: 9110 §5.1"),
    Request("CVE-2023-40225", "an empty length must not pass", post(b"Content-Length:\r\n"), 400, rule="HAProxy: 9110 §8.6"),
    Request("CVE-2023-40225", "an empty length before a real one", post(b"Content-Length: \r\nContent-Length: 36\r\n", EVIL), 400, rule="HAProxy: 9110 §8.6"),
    Request("CVE-2023-40225", "an empty length in a GET", get(b"Content-Length:\r\n"), 400, rule="HAProxy: 9110 §8.6"),
    Request("CVE-2023-45539", "a hash in the path", get(target=b"/index.html#.png"), 400, rule="HAProxy: 9112 §3.2"),
    Request("CVE-2023-45539", "a hash in the absolute form", get(target=b"http://a.test/x#.png"), 400, rule="HAProxy: 9112 §3.2"),
    Request("CVE-2025-4366", "the body of a GET must not become a request", get(EVIL_LENGTH) + EVIL + get(target=b"/2"), (200, 200), [{"body": EVIL}, {"target": b"/2"}], rule="Pingora: 9112 §6"),
    Request("CVE-2025-4366", "nor that of a request that is answered here", get(EVIL_LENGTH, host=b"Host: zzz.test\r\n") + EVIL + get(target=b"/2"), (404, 200), [{"target": b"/2"}], rule="Pingora: 9112 §6"),
    Request("CVE-2026-2833", "octets behind an upgrade before 101 reach nobody", get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + WS) + EVIL, 200, {"has": {b"Upgrade": b"websocket"}}, ends=True, one_piece=True, rule="Pingora: 9110 §7.8"),
    Request("CVE-2026-2833", "an upgrade that is not forwarded passes nothing", get(b"Connection: Upgrade\r\nUpgrade: anything\r\n") + b"GET /evil HTTP/1.1\r\n\r\n", (200, 400), [PLAIN], rule="Pingora: 9110 §7.8"),
    Request("CVE-2026-2835", "chunks in 1.0", post(TE, LAST + EVIL, version=b"HTTP/1.0"), 400, rule="Pingora: 9112 §6.1"),
    Request("CVE-2026-2835", "no framing in 1.0 is no body", post(b"", EVIL, version=b"HTTP/1.0"), 200, {"method": b"POST", "body": b""}, ends=True, rule="Pingora: 9112 §6.3"),
    Request("CVE-2026-2835", "chunked in a list of two lines", post(b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", LAST + EVIL), 400, rule="Pingora: 9112 §6.1"),
    Request("CVE-2026-2836", "the host is a part of what is asked for", get(target=b"/x", host=b"Host: b.test\r\n"), 404, rule="Pingora: 9110 §7.1", choice="nothing is cached; hosts never share a rule"),
    Request("CVE-2025-43859", "two octets for the CRLF of a chunk", chunks(b"5\r\nhelloXX0\r\n\r\n" + EVIL), 400, PARTIAL, rule="h11: 9112 §7.1"),
    Request("CVE-2025-43859", "a longer chunk hides", chunks(b"5\r\nAAAAAXX2\r\n45\r\n0\r\n\r\n" + EVIL), 400, PARTIAL, rule="h11: 9112 §7.1"),
    Request("CVE-2023-47627", "a size with an underscore", chunks(b"0_2e\r\n\r\n" + EVIL + b"0\r\n\r\n"), 400, PARTIAL, rule="aiohttp: 9112 §7.1"),
    Request("CVE-2023-47627", "a length with a plus and an underscore", post(b"Content-Length: +1_0\r\n", b"0123456789"), 400, rule="aiohttp: 9110 §8.6"),
    Request("CVE-2023-40175", "a chunked body that ends in CRLF XX", chunks(b"0\r\nX:POST /evil HTTP/1.1\r\n\r\n"), 200, {"body": b"", "trailers": {b"X": b"POST /evil HTTP/1.1"}}, rule="Puma: 9112 §7.1", choice="a legal trailer; it is forwarded as such"),
    Request("CVE-2023-40175", "an empty length", post(b"Content-Length: \r\n") + EVIL, 400, rule="Puma: 9110 §8.6"),
    Request("CVE-2024-1135", "a coding that is not known", post(b"Transfer-Encoding: xchunked\r\n", LAST + EVIL), 400, rule="Gunicorn: 9112 §6.1"),
    Request("CVE-2024-1135", "chunked,gzip,chunked", post(b"Transfer-Encoding: chunked,gzip,chunked\r\n", LAST + EVIL), 400, rule="Gunicorn: 9112 §6.1"),
    Request("CVE-2022-32213", "chunked that is not last", post(b"Transfer-Encoding: chunked, identity\r\n", LAST + EVIL), 400, rule="llhttp: 9112 §6.3"),
    Request("CVE-2022-32213", "chunkedchunked", post(b"Transfer-Encoding: chunkedchunked\r\n", LAST + EVIL), 400, rule="llhttp: 9112 §6.1"),
    Request("CVE-2022-32214", "LF for CRLF between fields", get(b"Dummy: x\nContent-Length: 36\r\n") + EVIL, 400, rule="llhttp: 9112 §2.2"),
    Request("CVE-2022-32215", "a coding on two lines", post(b"Transfer-Encoding: chunked\r\n , identity\r\n", LAST + EVIL), 400, rule="llhttp: 9112 §5.2"),
    Request("CVE-2023-30589", "CR ends a field", get(b"Dummy: x\rContent-Length: 36\r\n") + EVIL, 400, rule="llhttp: 9112 §2.2"),
    Request("CVE-2023-30589", "CR behind an empty line", b"GET / HTTP/1.1\r\nHost: a.test\r\n\rContent-Length: 36\r\n\r\n" + EVIL, 400, rule="llhttp: 9112 §2.2"),
    Request("CVE-2024-45410", "Connection takes away what the proxy adds", get(b"Connection: X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, X-Real-IP\r\n"), 200,
            {"has": {b"X-Forwarded-For": b"127.0.0.1", b"X-Forwarded-Host": b"a.test", b"X-Forwarded-Proto": b"http", b"X-Real-IP": b"127.0.0.1"}}, rule="Traefik: 9110 §7.6.1"),
    Request("CVE-2025-32431", "an escaped path into another rule", get(target=b"/a/..%2fsecret"), 400, rule="Traefik: 3986 §6.2.2"),
    Request("CVE-2025-32431", "dots into another rule", get(target=b"/a/../secret"), 200, {"target": b"/secret", "at": "V"}, rule="Traefik: 3986 §6.2.2"),
    Request("GHSA-gm3x-23wp-hc2c", "an escaped slash passes by a rule", get(target=b"/secret%2fadmin"), 200, {"target": b"/secret%2Fadmin"}, rule="Traefik: 3986 §2.2"),
    Request("CVE-2022-4886", "a path escapes its rule", get(target=b"/a/%2e%2e/secret/"), 200, {"target": b"/secret/", "at": "V"}, rule="ingress-nginx: 3986 §6.2.2"),
    Request("CVE-2021-25742", "a path is never configuration", get(target=b"/;}%20location%20/x%20{"), 200, {"target": b"/;}%20location%20/x%20{"}, rule="ingress-nginx: nothing is rendered into text"),
    Request("CVE-2025-1974", "a host is never configuration", get(host=b"Host: a.test;}\r\n"), 400, rule="ingress-nginx: 9112 §3.2"),
    Request("CVE-2023-44487", "the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, rule="all: HTTP/2 is not offered here"),
    Request("CVE-2023-39326", "extensions without content", chunks(b"1;" + b"a" * 5000 + b"\r\nx\r\n0\r\n\r\n"), 400, PARTIAL, rule="Go: 9112 §7.1.1"),
    Request("CVE-2025-32094", "Expect in OPTIONS with a body", get(b"Expect: 100-continue\r\nContent-Length: 36\r\n", method=b"OPTIONS") + EVIL + get(target=b"/2"), (200, 200), [{"method": b"OPTIONS", "body": EVIL}, {"target": b"/2"}], rule="Akamai: 9110 §10.1.1"),
    Request("CVE-2025-32094", "Expect folded", get(b"Expect:\r\n 100-continue\r\nContent-Length: 36\r\n", method=b"OPTIONS") + EVIL, 417, rule="Akamai: 9112 §5.2"),
]

REQUESTS = FRAMING + HEADS + PATHS + UPGRADES + RESOURCES + CVES
