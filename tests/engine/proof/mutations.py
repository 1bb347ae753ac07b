"""Ways to spoil an input: patches, upstreams.json and archives, each from a random.Random, so that a seed is a case."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import tarfile

NUMBERS = [
    b"0",
    b"1",
    b"2",
    b"-1",
    b"00",
    b"+1",
    b"4294967297",
    b"99999999999999999999",
    b"9" * 5000,
    "\u0663".encode(),
    b"",
    b"1e3",
]
PATHS = [
    b"../up", b"/etc/x", b".git/config", b".GIT/config", b"git~1/x", b"a/../b", b"./x", b"a//b", b"--output=x", b"-p", b"/dev/null",
    b"src/core.py", b"README.md", b"run.sh", b"gone", b"a b", b"tail ", b"x\t", b'"q"', b"b\\s", b"\xff", "\u00e9".encode(), b"x" * 300,
    b".gitattributes", b".gitmodules", b".git ", b".git.", b".git:x", ".g\u200cit".encode(), b"src", b"src/core.py/x", b"\x01", b"con",
]  # fmt: skip
LINES = [
    b"-- ", b"--", b"2.39.5", b"", b"+", b"-", b" ", b"\\ No newline at end of file", b"\\", b"--- a/src/core.py", b"+++ b/src/core.py",
    b"@@ -1 +1 @@", b"@@ -0,0 +1 @@", b"@@ -1,3 +1,3 @@", b"@@ -1 +1 @@@", b"old mode 100644", b"new mode 100755", b"new mode 120000",
    b"new mode 100644", b"deleted file mode 100644", b"new file mode 100644", b"similarity index 90%", b"rename from src/core.py",
    b"rename to src/new.py", b"copy from src/core.py", b"GIT binary patch", b"Binary files a/x and b/x differ", b"index 0000000..1111111",
    b"index " + b"0" * 40 + b".." + b"1" * 40, b"diff --git a/src/core.py b/src/core.py", b"diff --git a/new.py b/new.py", b"--- /dev/null",
    b"+++ /dev/null", b"Subject: twice", b"---", b"literal 3", b"\xff\xfe", b"x\0y",
]  # fmt: skip


def mutate_patch(raw: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 5])):
        raw = chance.choice(PATCH_STEPS)(raw, chance, others)
    return raw


def some_line(raw: bytes, chance: random.Random) -> tuple[list[bytes], int]:
    """The lines, and the place of one of them: as often one of the few that steer as one of the many others."""
    lines = raw.split(b"\n")
    steering = [
        at for at, line in enumerate(lines) if re.match(rb"diff |index |@@ |--- |\+\+\+ |old |new |deleted |\\", line)
    ]
    return lines, chance.choice(steering) if steering and chance.random() < 0.6 else chance.randrange(len(lines))


def change_line(raw, chance, others):
    lines, at = some_line(raw, chance)
    what = chance.choice(["drop", "double", "cut", "put", "instead", "swap", "tag", "crlf", "space", "empty"])
    if what == "drop":
        del lines[at]
    elif what == "double":
        lines.insert(at, lines[at])
    elif what == "cut":
        lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
    elif what == "put":
        lines.insert(at, chance.choice(LINES))
    elif what == "instead":
        lines[at] = chance.choice(LINES)
    elif what == "swap":
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif what == "tag":
        lines[at] = chance.choice([b" ", b"+", b"-", b"\\", b"@", b"", b"\t"]) + lines[at][1:]
    elif what == "crlf":
        lines[at] += b"\r"
    elif what == "space":
        lines[at] += chance.choice([b" ", b"\t", b"  "])
    else:
        lines[at] = b""
    return b"\n".join(lines)


def change_number(raw, chance, others):
    lines, at = some_line(raw, chance)
    found = list(re.finditer(rb"\d+", lines[at]))
    if found:
        one = chance.choice(found)
        near = str(max(0, int(one[0][:18]) + chance.choice([-2, -1, 1, 2]))).encode()
        lines[at] = lines[at][: one.start()] + chance.choice([*NUMBERS, near, near, near]) + lines[at][one.end() :]
    return b"\n".join(lines)


def change_path(raw, chance, others):
    """One file's name, at all of its places or at some."""
    found = re.findall(rb"^diff --git a/(.*) b/", raw, re.M)
    if not found:
        return raw
    old, new = chance.choice(found), chance.choice(PATHS)
    if chance.random() < 0.6:
        for mark in (b" a/", b" b/"):
            raw = raw.replace(mark + old, mark + new)
        return raw
    return raw.replace(old, new, chance.randint(1, 3))


def change_bytes(raw, chance, others):
    at = chance.randrange(len(raw) + 1)
    new = chance.choice([b"", b"\0", b"\n", b"\r\n", b"\xff", b'"', bytes([chance.randrange(256)])])
    return raw[:at] + new + raw[at + chance.randint(0, 4) :]


def cut(raw, chance, others):
    at = chance.randrange(len(raw) + 1)
    return raw[:at] if chance.random() < 0.7 else raw[at:]


def no_ids(raw, chance, others):
    """Without its index lines, a patch is held by nothing but its context."""
    return re.sub(rb"^index .*\n", b"", raw, flags=re.M)


def splice(raw, chance, others):
    other = chance.choice(others)
    parts = re.split(rb"(?m)^(?=diff --git )", other)
    return raw + b"".join(chance.sample(parts, chance.randint(1, len(parts))))


def quote(raw, chance, others):
    return re.sub(
        rb"^diff --git a/(.*) b/(.*)$", rb'diff --git "a/\1" "b/\2"', raw, count=chance.randint(1, 2), flags=re.M
    )


def crlf(raw, chance, others):
    return raw.replace(b"\n", b"\r\n")


def into_mail(raw, chance, others):
    """A diff, or a part of one, in the words above the diff."""
    other = b"\n".join(chance.sample(chance.choice(others).split(b"\n")[10:], 3)) + b"\n"
    extra = chance.choice(
        [other, b"@@ -1 +1 @@\n", b"--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-# alpha\n+x\n", b"\0\n", b"---\n"]
    )
    return raw.replace(b"\n\n", b"\n\n" + extra, 1)


def sign(raw, chance, others):
    return raw + b"-- \n2.39.5\n" + chance.choice([b"", b"\n", *others, b"@@ -1 +1 @@\n-a\n+b\n", b"junk\n"])


PATCH_STEPS = [
    *[change_line] * 8, *[change_number] * 5, *[change_path] * 3, *[change_bytes] * 3, cut, *[no_ids] * 5, *[splice] * 2, quote, crlf,
    into_mail, sign,
]  # fmt: skip

# --- upstreams.json --------------------------------------------------------------------------------------------------

ODD = [
    None, True, False, 0, 1, -1, 1.5, 1e400, float("nan"), 10**30, "", " ", "x", "-x", "--upload-pack=x", "ext::sh -c x", "http://x/y",
    "https://-x/y", "https://x/y\nz", "https://x/y\0", "https://x/\x1b[2J", "https://x/y#z", "https://x/y;z", 'https://x/"y', "https://x/\\y",
    "https://x/\ud800", "file:///x y", "ssh://-oProxyCommand=x/y", "git://x/y", "https://x/\u202ey", "https://\u00e9/x", "..", "a..b", "x.lock",
    "x.", ".x", "a/b", "a//b", "a/", "a/.b", "a.lock/b", "@{", "a@{b", "@", "HEAD", "con", ".", "x~1", "x^", "x:y", "x?", "*", "[", "x y", "x\\y",
    "\u0661", "v1\n", "e\u0301", "0" * 40, "0" * 64, "A" * 40, "v" * 300, "src/", "/src", "../x", ".git/", "a/.GIT/b", [], {}, [[]], {"x": 1},
    ["src/", "src/"], [1], ["../x"], ["\ud800"], ["x" * 300],
]  # fmt: skip


def mutate_json(data: object, chance: random.Random) -> bytes:
    """A changed object as changed text."""
    data = json.loads(json.dumps(data))
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        node, key = chance.choice(places(data))
        what = chance.choice(["value", "value", "value", "drop", "rename", "add", "copy"])
        if what == "value":
            node[key] = chance.choice(ODD)
        elif what == "drop":
            del node[key]
        elif isinstance(node, dict):
            word = chance.choice(
                [item for item in ODD if isinstance(item, str)]
                + [key.upper() if isinstance(key, str) else "x", "on_request", "tag"]
            )
            node[word] = {"rename": node.pop, "copy": node.get}.get(what, lambda _: chance.choice(ODD))(key)
        if not places(data):
            break
    text = json.dumps(data, indent=chance.choice([None, 1, 2]), ensure_ascii=chance.random() < 0.5)
    raw = text.encode("utf-8", "surrogatepass")
    what = chance.choice(["as it is"] * 12 + ["bom", "utf-16", "cut", "byte", "twice", "deep", "digits", "comma"])
    if what == "bom":
        return b"\xef\xbb\xbf" + raw
    if what == "utf-16":
        return text.encode("utf-16", "surrogatepass")
    if what == "cut":
        return raw[: chance.randrange(len(raw) + 1)]
    if what == "byte":
        return change_bytes(raw, chance, [])
    if what == "twice":
        keys = re.findall(rb'"[a-z_]+":', raw)
        return raw.replace(b"{", b"{" + chance.choice(keys or [b'"x":']) + b" 1,", chance.randint(1, 3))
    if what == "deep":
        depth = chance.choice([10, 900, *range(960, 1000, 3), 100000])
        return raw.replace(b'"Apache-2.0"', b"[" * depth + b"]" * depth, 1)
    if what == "digits":
        return re.sub(rb"\b\d+\b", b"9" * chance.choice([20, 4300, 4301, 20000]), raw, count=1)
    return raw[:-1] + b",}" if what == "comma" else raw


def places(node: object) -> list[tuple]:
    found = []
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found += [(node, key), *places(item)]
    return found


# --- source packages -------------------------------------------------------------------------------------------------

NAMES = [
    "p/a", "p/b.py", "p/sub/c", "p/sub/d", "p/A", "p/sub", "p/Sub/c", "p/sub/", "p/a/", "p/", "p", "q/a", "a", "/p/a", "p/../a", "../p/a", "p/./a",
    "p//a", "./p/a", "p/.git/config", "p/.GIT/x", "p/.git.", "p/git~1", "p/.git:x", "p/.g\u200cit", "p/\u00e9", "p/e\u0301", "p/\u00df", "p/SS", "p/ss",
    "p/x\ny", "p/x\\y", 'p/"x"', "p/ x", "p/x ", "p/-x", "p/--x", "p/\udcff", "p/" + "n" * 90, "p/" + "n" * 150, "p/" + "d/" * 60 + "f",
    "p/\x7f", "p/\u017f", "p/s", "",
]  # fmt: skip
KINDS = [tarfile.REGTYPE] * 24 + [
    tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.DIRTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE,
    tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE,
    tarfile.XGLTYPE, b"V", b"M", b"N", b"D", b"\xff",
]  # fmt: skip
PAX = [
    ("path", "p/other"), ("path", "/p/x"), ("path", "p/../x"), ("path", "p/x\0y"), ("path", ""), ("size", "3"), ("size", "-1"), ("size", "9" * 30),
    ("size", "x"), ("size", "99999999999"), ("linkpath", "/nowhere/x"), ("mtime", "nan"), ("mtime", "1e999"), ("uid", "-5"), ("hdrcharset", "BINARY"),
    ("GNU.sparse.map", "0,1,2"), ("GNU.sparse.size", "x"), ("GNU.sparse.major", "1"), ("GNU.sparse.name", "p/y"), ("GNU.sparse.realsize", "9"),
    ("comment", "x" * 3000), ("comment", "\udcff"), ("SCHILY.xattr.user.x", "y"), ("gname", "\ud7ff"), ("atime", "1"),
]  # fmt: skip


def make_tar(chance: random.Random) -> bytes:
    """The plain bytes of an archive, in which most members are sound."""
    out = io.BytesIO()
    form = chance.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    shared = dict([chance.choice(PAX)]) if chance.random() < 0.05 else {}
    risky = chance.random() < 0.6
    with tarfile.open(fileobj=out, mode="w:", format=form, pax_headers=shared, errors="surrogateescape") as archive:
        for number in range(chance.choice([0, 1, 2, 3, 4, 8])):
            name = (
                chance.choice(NAMES) if risky and chance.random() < 0.4 else f"p/{chance.choice(['', 'sub/'])}f{number}"
            )
            member = tarfile.TarInfo(name)
            member.type = chance.choice(KINDS) if risky and chance.random() < 0.5 else tarfile.REGTYPE
            member.mode = chance.choice([0o644, 0o755, 0o4755, 0o600, 0o100, 0])
            member.linkname = chance.choice(["", "p/a", "/nowhere/x", "../x"])
            data = bytes(chance.randrange(256) for _ in range(chance.choice([0, 1, 10, 511, 512, 513, 1500])))
            member.size = len(data)
            if form == tarfile.PAX_FORMAT and chance.random() < 0.15:
                member.pax_headers = dict([chance.choice(PAX)])
            try:
                archive.addfile(member, io.BytesIO(data))
            except (ValueError, tarfile.TarError):  # a name or number that this format cannot hold
                continue
    return out.getvalue()


FIELDS = {  # of a header: where, how long, and odd values
    "name": (0, 100, [b"../x", b"/x", b"p/f0", b"p/\xff", b"p/x\ny", b""]),
    "mode": (100, 8, [b"0000755\0", b"\xff" * 8, b"xxxxxxx\0", b"        "]),
    "size": (
        124,
        12,
        [
            b"77777777777\0",
            b"\xff" * 12,
            b"\x80" + b"\0" * 10 + b"\x05",
            b"\x80" + b"\x7f" * 11,
            b"-0000000001\0",
            b"xxxxxxxxxxx\0",
        ],
    ),
    "type": (156, 1, [bytes([code]) for code in b"01234567gxLKSVMND\0A"]),
    "link": (157, 100, [b"/nowhere/x", b"../x"]),
    "magic": (257, 8, [b"ustar\x0000", b"ustar  \0", b"\0" * 8, b"xxxxxxxx"]),
    "prefix": (345, 155, [b"..", b"/x", b"p", b"\xff", b""]),
}


def mutate_tar(raw: bytes, chance: random.Random) -> bytes:
    """Headers changed with their checksums made right again, or blocks, or any bytes."""
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        blocks = len(raw) // 512
        at = 512 * chance.randrange(max(blocks, 1))
        what = chance.choice(["field", "field", "field", "drop", "double", "zero", "byte", "cut", "append", "checksum"])
        if what == "field" and raw[at + 257 : at + 262] == b"ustar":
            start, size, values = FIELDS[chance.choice(list(FIELDS))]
            head = bytearray(raw[at : at + 512])
            head[start : start + size] = chance.choice(values).ljust(size, b"\0")[:size]
            head[148:156] = b" " * 8
            head[148:156] = b"%06o\0 " % sum(head)
            raw = raw[:at] + bytes(head) + raw[at + 512 :]
        elif what == "drop":
            raw = raw[:at] + raw[at + 512 :]
        elif what == "double":
            raw = raw[:at] + raw[at : at + 512] * 2 + raw[at + 512 :]
        elif what == "zero":
            raw = raw[:at] + bytes(512) + raw[at + 512 :]
        elif what == "byte" and raw:
            at = chance.randrange(len(raw))
            raw = raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
        elif what == "cut":
            raw = raw[: chance.randrange(len(raw) + 1)]
        elif what == "append":
            raw += chance.choice([b"x", bytes(700), raw, b"x" * 600])
        elif what == "checksum" and raw:
            raw = raw[: at + 148] + b"0000000\0" + raw[at + 156 :]
    return raw


def pack(raw: bytes, chance: random.Random) -> bytes:
    """gzip, mostly as it should be."""
    packed = gzip.compress(raw, 1, mtime=0)
    what = chance.choice(["whole"] * 10 + ["cut", "byte", "garbage", "zeros", "members", "plain", "crc"])
    if what == "cut":
        return packed[: chance.randrange(len(packed) + 1)]
    if what == "byte":
        at = chance.randrange(len(packed))
        return packed[:at] + bytes([chance.randrange(256)]) + packed[at + 1 :]
    if what == "garbage":
        return packed + b"garbage"
    if what == "zeros":
        return packed + bytes(300)
    if what == "members":
        at = chance.randrange(len(raw) + 1)
        return gzip.compress(raw[:at], 1, mtime=0) + gzip.compress(raw[at:], 1, mtime=0)
    if what == "crc":
        return packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:]
    return raw if what == "plain" else packed
