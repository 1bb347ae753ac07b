"""Ways to spoil a patch or a JSON file, each drawn from a random.Random, so that a seed is a case."""

from __future__ import annotations

import json
import random
import re

NUMBERS = [b"0", b"1", b"2", b"-1", b"00", b"+1", b"4294967297", b"9" * 5000, b"", b"1e3"]
PATHS = [
    b"../up", b"/etc/x", b".git/config", b".GIT/config", b"git~1/x", b"a/../b", b"./x", b"a//b", b"--output=x", b"-p",
    b"/dev/null", b"src/core.py", b"README.md", b"run.sh", b"gone", b"a b", b"tail ", b"x\t", b'"q"', b"b\\s", b"\xff",
    "\u00e9".encode(), b"x" * 300, b".gitattributes", b".git ", b".git:x", ".g\u200cit".encode(), b"src", b"\x01",
]  # fmt: skip
LINES = [
    b"-- ", b"", b"+", b"-", b" ", b"\\ No newline at end of file", b"\\", b"--- a/src/core.py", b"+++ b/src/core.py",
    b"@@ -1 +1 @@", b"@@ -0,0 +1 @@", b"old mode 100644", b"new mode 100755", b"new mode 120000", b"new mode 100644",
    b"deleted file mode 100644", b"new file mode 100644", b"similarity index 90%", b"rename from src/core.py",
    b"rename to src/new.py", b"copy from src/core.py", b"GIT binary patch", b"Binary files a/x and b/x differ",
    b"index 0000000..1111111", b"index " + b"0" * 40 + b".." + b"1" * 40, b"diff --git a/src/core.py b/src/core.py",
    b"diff --git a/new.py b/new.py", b"--- /dev/null", b"+++ /dev/null", b"---", b"literal 3", b"\xff\xfe", b"x\0y",
]  # fmt: skip
STEERING = re.compile(rb"diff |index |@@ |--- |\+\+\+ |old |new |deleted |\\")


def mutate_patch(raw: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 5])):
        raw = chance.choice(PATCH_STEPS)(raw, chance, others)
    return raw


def some_line(raw: bytes, chance: random.Random) -> tuple[list[bytes], int]:
    """The lines and the place of one: as often one of the few that steer as one of the many others."""
    lines = raw.split(b"\n")
    steering = [at for at, line in enumerate(lines) if STEERING.match(line)]
    return lines, chance.choice(steering) if steering and chance.random() < 0.6 else chance.randrange(len(lines))


def change_line(raw, chance, others):
    lines, at = some_line(raw, chance)
    line, tag = lines[at], chance.choice([b" ", b"+", b"-", b"\\", b"@", b"", b"\t"])
    lines[at : at + 1] = chance.choice(
        [[], [line, line], [line[: len(line) // 2]], [chance.choice(LINES), line], [chance.choice(LINES)],
         [tag + line[1:]], [line + b"\r"], [line + b" "], [b""]]
    )  # fmt: skip
    return b"\n".join(lines)


def change_number(raw, chance, others):
    lines, at = some_line(raw, chance)
    found = list(re.finditer(rb"\d+", lines[at]))
    if found:
        one = chance.choice(found)
        close = b"%d" % max(0, int(one[0][:18]) + chance.choice([-2, -1, 1, 2]))
        lines[at] = lines[at][: one.start()] + chance.choice([*NUMBERS, close, close, close]) + lines[at][one.end() :]
    return b"\n".join(lines)


def change_path(raw, chance, others):
    """One file's name, everywhere or in some places."""
    found = re.findall(rb"^diff --git a/(.*) b/", raw, re.M)
    if not found:
        return raw
    old, new = chance.choice(found), chance.choice(PATHS)
    if chance.random() < 0.4:
        return raw.replace(old, new, chance.randint(1, 3))
    return raw.replace(b" a/" + old, b" a/" + new).replace(b" b/" + old, b" b/" + new)


def change_bytes(raw, chance, others):
    at = chance.randrange(len(raw) + 1)
    new = chance.choice([b"", b"\0", b"\n", b"\r\n", b"\xff", b'"', bytes([chance.randrange(256)])])
    return raw[:at] + new + raw[at + chance.randint(0, 4) :]


def cut(raw, chance, others):
    at = chance.randrange(len(raw) + 1)
    return raw[:at] if chance.random() < 0.7 else raw[at:]


def drop_ids(raw, chance, others):
    return re.sub(rb"^index .*\n", b"", raw, flags=re.M)


def splice(raw, chance, others):
    """Some of another patch's files at the end, or in the mail's text above the diff."""
    parts = re.split(rb"(?m)^(?=diff --git )", chance.choice(others))
    extra = b"".join(chance.sample(parts, chance.randint(1, len(parts))))
    return raw + extra if chance.random() < 0.7 else raw.replace(b"\n\n", b"\n\n" + extra + b"\n", 1)


def sign(raw, chance, others):
    return raw + b"-- \n2.39.5\n" + chance.choice([b"", b"\n", *others, b"@@ -1 +1 @@\n-a\n+b\n", b"junk\n"])


PATCH_STEPS = [
    *[change_line] * 8, *[change_number] * 4, *[change_path] * 3, *[change_bytes] * 3, cut, drop_ids, *[splice] * 2,
    sign,
]  # fmt: skip

ODD = [
    None, True, 0, 1, -1, 1.5, 1e400, 10**30, "", " ", "x", "-x", "--upload-pack=x", "ext::sh -c x", "http://x/y",
    "https://-x/y", "https://x/y\nz", "https://x/y\0", "https://x/\x1b[2J", 'https://x/"y', "https://x/\\y",
    "https://x/\ud800", "file:///x y", "ssh://-oProxyCommand=x/y", "git://x/y", "https://x/\u202ey", "..", "a..b",
    "x.lock", ".x", "a/b", "a//b", "a/.b", "@{", "@", "HEAD", ".", "x~1", "x:y", "*", "x y", "x\\y", "\u0661", "v1\n",
    "e\u0301", "0" * 40, "0" * 64, "A" * 40, "v" * 300, "src/", "/src", "../x", ".git/", "a/.GIT/b", [], {}, [[]],
    {"x": 1}, ["src/", "src/"], [1], ["../x"], ["\ud800"], "../../mine.txt", "/etc/passwd", "refs/heads/mine",
]  # fmt: skip


def mutate_json(data: object, chance: random.Random) -> bytes:
    """A changed object as text that is mostly JSON."""
    data = json.loads(json.dumps(data))
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        node, key = chance.choice(places(data))
        what = chance.choice(["value", "value", "value", "drop", "rename", "add", "copy"])
        if what == "value":
            node[key] = chance.choice(ODD)
        elif what == "drop":
            del node[key]
        elif isinstance(node, dict):
            words = [item for item in ODD if isinstance(item, str)] + [str(key).upper(), "on_request", "tag", "patches"]
            value = {"rename": node.pop, "copy": node.get}.get(what, lambda _: chance.choice(ODD))(key)
            node[chance.choice(words)] = value
        if not places(data):
            break
    raw = json.dumps(data, indent=2, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    what = chance.choice(["as it is"] * 12 + ["bom", "cut", "byte", "twice", "deep", "digits"])
    if what == "bom":
        return b"\xef\xbb\xbf" + raw
    if what == "cut":
        return raw[: chance.randrange(len(raw) + 1)]
    if what == "byte":
        return change_bytes(raw, chance, [])
    if what == "twice":
        keys = re.findall(rb'"[a-z_]+":', raw)
        return raw.replace(b"{", b"{" + chance.choice(keys or [b'"x":']) + b" 1,", chance.randint(1, 3))
    if what == "deep":
        depth = chance.choice([10, 900, 100000])
        return re.sub(rb'"[^"]*"([,\n])', lambda found: b"[" * depth + b"]" * depth + found[1], raw, count=1)
    if what == "digits":
        return re.sub(rb"\b\d+\b", b"9" * chance.choice([20, 4301, 20000]), raw, count=1)
    return raw


def places(node: object) -> list[tuple]:
    found = []
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found += [(node, key), *places(item)]
    return found
