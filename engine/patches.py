"""Patches as strict Python sees them: reading them, applying them, and explaining why one does not fit.

Nothing here touches a file or starts a process.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import unicodedata

from engine.common import USAGE, WRONG_BASE, Stop
from engine.git import MODES, NULL_ID, Content, blob_id

LONGEST_NAME = 255  # bytes: where most file systems end
# What some file system takes for .git, as git itself knows them: a short name of Windows, a stream or trailing dots
# there, and on macOS characters that do not count. `git update-index` would leave such a path out and say nothing.
UNSEEN = "[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]*"
DOT_GIT = re.compile(rf"({UNSEEN.join(['', '[.]', 'g', 'i', 't', ''])}|git~1)[. ]*(:.*)?", re.I | re.A | re.S)


def check_path(path: str, where: str, code: int = USAGE) -> str:
    """A path inside a tree: relative, plain, and nothing that git or a filesystem would read in its own way."""
    parts = path.split("/")
    bad = None
    if not path or any(part in ("", ".", "..") for part in parts):
        bad = "absolute, empty or pointing upwards"
    elif any(DOT_GIT.fullmatch(part) for part in parts):
        bad = "inside a .git folder"
    elif "\\" in path or '"' in path or any(ord(char) < 32 or ord(char) == 127 for char in path):
        bad = "with a control character, a quote or a backslash"
    elif any(0xD800 <= ord(char) <= 0xDFFF for char in path):
        bad = "not UTF-8"
    elif any(len(part.encode()) > LONGEST_NAME for part in parts):
        bad = f"longer than {LONGEST_NAME} bytes in one of its names"
    if bad:
        raise Stop(code, f"{where}: the path {path!r} is {bad}", "nothing was changed")
    return path


def parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def fold(path: str) -> str:
    """One spelling for all that a file system without case, or with one form of accents, takes for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def meet(seen: dict[str, tuple[str, bool]], path: str, is_file: bool = True) -> str | None:
    """What `seen` holds already where this path, or a folder above it, would stand on some file system."""
    for place in (*parents(path), path):
        entry = (place, is_file and place == path)
        known = seen.setdefault(fold(place), entry)
        if known is not entry and (known != entry or known[1]):
            return known[0]
    return None


def under(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


@dataclasses.dataclass
class Hunk:
    number: int
    start: int  # line in the old file, from 1; with no old lines, the line after which the new ones go
    old: list[bytes]
    new: list[bytes]
    lead: int  # context lines before the first change
    tail: int  # context lines after the last change
    changed: int  # lines removed and added

    @property
    def position(self) -> int:
        return self.start - 1 if self.old else self.start


@dataclasses.dataclass
class FileDiff:
    path: str
    kind: str = "modify"  # or "delete"
    old_mode: str | None = None
    new_mode: str | None = None
    old_id: str | None = None
    new_id: str | None = None
    hunks: list[Hunk] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Patch:
    file: str
    raw: bytes
    subject: str
    body: str
    diffs: list[FileDiff]

    @property
    def changed(self) -> int:
        return sum(hunk.changed for diff in self.diffs for hunk in diff.hunks)

    @property
    def message(self) -> str:
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"


class Conflict(Exception):
    """A hunk that does not stand where its patch says."""

    def __init__(self, path: str, hunk: int | None, lines: list[str]):
        super().__init__(path)
        self.path, self.hunk, self.lines = path, hunk, lines


def split_lines(content: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


NO_NEWLINE = b"\\ No newline at end of file"
HUNK_HEAD = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?")
GIT_READS = (b"diff --git ", b"@@ -")  # where `git apply`, which gets the whole file, would begin to read


class PatchReader:
    """Reads one patch in mail format. Strict: what is not understood is refused, never skipped."""

    def __init__(self, name: str, raw: bytes):
        self.name, self.raw = name, raw
        self.lines = split_lines(raw)
        self.at = 0

    def fail(self, problem: str) -> Stop:
        return Stop(
            USAGE,
            f"{self.name}, line {self.at + 1}: {problem}",
            "the patch is truncated or was altered; bring it back with `git checkout -- patches`",
            "nothing was changed",
        )

    def peek(self) -> bytes:
        return self.lines[self.at].rstrip(b"\n") if self.at < len(self.lines) else b""

    def read(self) -> Patch:
        if self.lines and self.lines[0].endswith(b"\r\n"):
            raise Stop(
                USAGE,
                f"{self.name} has CRLF line ends, so git changed it when it was checked out (core.autocrlf)",
                "expected: the committed bytes. Run `git config core.autocrlf false`, delete the file and bring it back",
                "with `git checkout -- patches overlays`; nothing was changed",
            )
        subject, body = self.read_mail()
        diffs = []
        while self.at < len(self.lines):
            line = self.peek()
            if line.startswith(b"diff --git "):
                diffs.append(self.read_file())
            elif line.rstrip() == b"--" and diffs:
                self.read_signature()
            else:
                raise self.fail(f"expected `diff --git`, found {line[:60]!r}")
        if not diffs:
            raise self.fail("the patch changes no file")
        paths = [diff.path for diff in diffs]
        if len(set(paths)) != len(paths):
            raise self.fail("one file stands in the patch twice")
        return Patch(self.name, self.raw, subject, body, diffs)

    def read_signature(self) -> None:
        """What ends a mail: nothing in it counts, so nothing in it may be one more diff."""
        while self.at < len(self.lines):
            if self.peek().startswith(GIT_READS):
                raise self.fail("a diff after the end of the mail (`-- `)")
            self.at += 1

    def read_mail(self) -> tuple[str, str]:
        headers: list[str] = []
        body: list[str] = []
        section = headers
        while self.at < len(self.lines) and not self.peek().startswith(b"diff --git "):
            try:
                line = self.peek().decode("utf-8")
            except UnicodeDecodeError:
                raise self.fail("the header is not UTF-8") from None
            if "\0" in line or self.peek().startswith(GIT_READS):
                raise self.fail("a NUL character or a hunk above the first `diff --git`")
            self.at += 1
            if section is headers and not line:
                section = body
            elif section is body and line == "---":
                section = []  # a diffstat for human readers
            elif section is headers and line.startswith((" ", "\t")) and headers:
                headers[-1] += " " + line.strip()
            else:
                section.append(line)
        subjects = [line[8:].strip() for line in headers if line.startswith("Subject:")]
        if not headers or not headers[0].startswith("From ") or len(subjects) != 1:
            raise self.fail("expected mail format: a line `From <id> <date>`, then From:, Date: and one Subject:")
        return re.sub(r"^\[PATCH[^]]*\]\s*", "", subjects[0]), "\n".join(body).strip("\n")

    def read_file(self) -> FileDiff:
        names = self.peek()[len(b"diff --git ") :]
        half = len(names) // 2
        left, right = names[:half], names[half + 1 :]
        if names[half : half + 1] != b" " or left[:2] != b"a/" or right[:2] != b"b/" or left[2:] != right[2:]:
            raise self.fail(
                f"expected `diff --git a/PATH b/PATH` with one unquoted path, found {names[:80]!r}; renames are not supported"
            )
        diff = FileDiff(check_path(os.fsdecode(left[2:]), f"{self.name}, line {self.at + 1}"))
        self.at += 1
        self.read_extended(diff)
        if self.peek().startswith(b"--- "):
            self.read_marker(b"--- ", left)
            self.read_marker(b"+++ ", b"/dev/null" if diff.kind == "delete" else right)
            while self.peek().startswith(b"@@ "):
                diff.hunks.append(self.read_hunk(len(diff.hunks) + 1))
            if not diff.hunks:
                raise self.fail("expected a hunk (`@@ -...`)")
        elif diff.kind == "modify" and not diff.new_mode:
            raise self.fail(f"nothing is said about how {diff.path} changes")
        return diff

    def read_extended(self, diff: FileDiff) -> None:
        said: list[str] = []
        while self.at < len(self.lines):
            line = self.peek()
            word = line.decode("ascii", "replace")
            what, _, mode = word.partition(" ") if word.startswith("index ") else word.rpartition(" ")
            if word.startswith(("old mode ", "deleted file mode ")):
                diff.old_mode = mode
                diff.kind = "delete" if word[0] == "d" else diff.kind
            elif word.startswith("new mode "):
                diff.new_mode = mode
            elif word.startswith("new file mode "):
                raise self.fail(f"the patch creates {diff.path}; new files belong in overlays/")
            elif word.startswith("index "):
                found = re.fullmatch(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})( \d{6})?", word)
                if not found:
                    raise self.fail(f"expected `index` with two full ids of 40 digits, found {word!r}")
                diff.old_id, diff.new_id = found[1], found[2]
                if diff.old_mode is None and found[3]:
                    diff.old_mode = found[3].strip()
            elif word.startswith(("--- ", "diff --git ")) or word.rstrip() == "--":
                break
            else:
                raise self.fail(f"not supported here: {word[:60]!r} (renames, copies and binary patches are not)")
            if what in said:
                raise self.fail(f"`{what}` stands twice for {diff.path}")
            said.append(what)
            self.at += 1
        if ("old mode" in said) != ("new mode" in said) or {"old mode", "deleted file mode"} <= {*said}:
            raise self.fail(
                f"expected `old mode` and `new mode` for {diff.path}, or `deleted file mode`, or none of them"
            )
        for given in (diff.old_mode, diff.new_mode):
            if given is not None and given not in MODES:
                raise self.fail(f"{diff.path} has mode {given}; only plain files ({', '.join(MODES)}) can be patched")

    def read_marker(self, marker: bytes, expected: bytes) -> None:
        line = self.peek()
        if not line.startswith(marker) or line[4:].removesuffix(b"\t") != expected:
            raise self.fail(f"expected {marker + expected!r}, found {line[:80]!r}")
        self.at += 1

    def read_hunk(self, number: int) -> Hunk:
        head = HUNK_HEAD.fullmatch(self.peek())
        if not head:
            raise self.fail(f"expected `@@ -line,count +line,count @@`, found {self.peek()[:60]!r}")
        want_old = int(head[2] if head[2] is not None else 1)
        want_new = int(head[4] if head[4] is not None else 1)
        self.at += 1
        old: list[bytes] = []
        new: list[bytes] = []
        tags = b""
        while len(old) < want_old or len(new) < want_new or self.peek().startswith(b"\\"):
            line = self.lines[self.at] if self.at < len(self.lines) else b""
            tag, text = line[:1], line[1:]
            if tags and line.rstrip(b"\n") == NO_NEWLINE:
                for side, touched in ((old, b" -"), (new, b" +")):
                    if tags[-1:] in touched and not side[-1].endswith(b"\n"):
                        raise self.fail("two marks for a missing newline")
                    if tags[-1:] in touched:
                        side[-1] = side[-1][:-1]
            elif tag in (b" ", b"-", b"+") and text.endswith(b"\n"):
                tags += tag
                if tag != b"+":
                    old.append(text)
                if tag != b"-":
                    new.append(text)
            else:
                raise self.fail(f"hunk {number} ends early: it should have {want_old} old and {want_new} new lines")
            self.at += 1
        if (len(old), len(new)) != (want_old, want_new) or not tags.strip(b" "):
            raise self.fail(
                f"hunk {number} does not have the {want_old} old and {want_new} new lines that it announces"
            )
        if any(not line.endswith(b"\n") for side in (old, new) for line in side[:-1]):
            raise self.fail(f"hunk {number} has a line without its newline before the end")
        lead, tail = len(tags) - len(tags.lstrip(b" ")), len(tags) - len(tags.rstrip(b" "))
        return Hunk(number, int(head[1]), old, new, lead, tail, len(tags) - tags.count(b" "))


def show(line: bytes | None) -> str:
    return "the end of the file" if line is None else repr(os.fsdecode(line.rstrip(b"\n")))


def locate(lines: list[bytes], hunk: Hunk) -> list[int]:
    """Every place (from 0) where all old lines of a hunk stand."""
    size = len(hunk.old)
    return [at for at in range(len(lines) - size + 1) if lines[at : at + size] == hunk.old] if size else []


def explain(path: str, lines: list[bytes], hunk: Hunk, position: int) -> Conflict:
    """Which line a hunk expected, what stands there, and where something like it is."""
    wrong = first_difference(lines, hunk, position)
    report = [f"{path}: hunk {hunk.number} does not match at line {position + 1}"]
    if wrong is None:
        report.append("expected: the end of the file after the hunk's last line; the file goes on")
    else:
        number = position + wrong + 1
        report.append(f"expected at line {number}: {show(hunk.old[wrong])}")
        report.append(
            f"found there:{' ' * len(str(number))}        {show(lines[number - 1] if number <= len(lines) else None)}"
        )
    places = locate(lines, hunk)
    if places:
        report.append(f"nearest match: the whole hunk {standing(places, position)}")
    elif wrong is not None:
        report.append(nearest(lines, hunk, position, hunk.old[wrong]))
    return Conflict(path, hunk.number, report)


def standing(places: list[int], position: int) -> str:
    """Where a hunk stands instead of at its position; of several places, at the nearest one."""
    at = min(places, key=lambda place: abs(place - position))
    return f"stands at line {at + 1} ({at - position:+d})"


def first_difference(lines: list[bytes], hunk: Hunk, position: int) -> int | None:
    here = lines[position : position + len(hunk.old)]
    here += [b""] * (len(hunk.old) - len(here))
    return next((i for i, (want, have) in enumerate(zip(hunk.old, here)) if want != have), None)


def nearest(lines: list[bytes], hunk: Hunk, position: int, wanted: bytes) -> str:
    """Where most of a hunk's lines stand, else the line most like the one that was expected."""
    size = len(hunk.old)
    shared = [sum(map(bytes.__eq__, hunk.old, lines[at : at + len(hunk.old)])) for at in range(len(lines))]
    best = max(range(len(lines)), key=lambda at: (shared[at], -abs(at - position)), default=0)
    if lines and shared[best] * 2 >= len(hunk.old):
        at = best + (first_difference(lines, hunk, best) or 0)
        if at < len(lines) and not lines[at].strip():  # a blank line tells nothing
            return f"nearest match: {shared[best]} of the hunk's {size} lines stand from line {best + 1} on"
        return f"nearest match: line {at + 1}: {show(lines[at] if at < len(lines) else None)}"
    if not wanted.strip():
        return "nearest match: none, no part of the file has half of the hunk's lines"
    text = [os.fsdecode(line).strip() for line in lines]
    close = difflib.get_close_matches(os.fsdecode(wanted).strip(), set(text) - {""}, n=1)
    if not close:
        return "nearest match: none, no line of the file is like it"
    at = min((i for i, line in enumerate(text) if line == close[0]), key=lambda i: abs(i - position))
    return f"nearest match: line {at + 1}: {show(lines[at])}"


def apply_hunks(path: str, content: bytes, hunks: list[Hunk]) -> bytes:
    """The patched content; every hunk must stand at its exact line with its exact context."""
    lines = split_lines(content)
    out: list[bytes] = []
    done = 0
    for hunk in hunks:
        position, end = hunk.position, hunk.position + len(hunk.old)
        if lines[position:end] != hunk.old or position < done or position > len(lines):
            raise explain(path, lines, hunk, position)
        if hunk.tail == 0 and end != len(lines):  # without context after it, a hunk belongs at the end
            raise explain(path, lines, hunk, position)
        out += lines[done:position] + hunk.new
        done = end
    out += lines[done:]
    if any(not line.endswith(b"\n") for line in out[:-1]):
        raise Conflict(path, len(hunks), [f"{path}: a line without a newline would land in the middle of the file"])
    return b"".join(out)


def apply_diff(diff: FileDiff, before: Content | None) -> Content | None:
    """A file (mode and content, None when absent) after one patch."""
    if before is None:
        raise Conflict(diff.path, None, [f"{diff.path}: the patch changes this file, but there is no such file"])
    mode, content = before
    if diff.old_mode and diff.old_mode != mode:
        raise Conflict(diff.path, None, [f"{diff.path}: expected mode {diff.old_mode}, found {mode}"])
    after = apply_hunks(diff.path, content, diff.hunks)
    if diff.kind == "delete" and after:
        raise Conflict(
            diff.path, None, [f"{diff.path}: the patch deletes this file, but it has more lines than the patch knows"]
        )
    return None if diff.kind == "delete" else (diff.new_mode or mode, after)


def check_ids(patch: Patch, diff: FileDiff, before: Content | None, after: Content | None) -> None:
    """The `index` line names both contents: it catches a patch that was cut at a hunk or edited by hand."""
    for given, state, which in ((diff.old_id, before, "before"), (diff.new_id, after, "after")):
        found = blob_id(state[1]) if state else NULL_ID
        if given is not None and given != found:
            raise Stop(
                WRONG_BASE,
                f"{patch.file}: {diff.path} has the id {found} {which} the patch, its index line says {given}",
                "the patch was truncated or edited by hand, or it belongs to another version; bring it back with git,",
                "or make the change in an applied checkout and export it (docs/engine/usage.md); nothing was changed",
            )


def patched_paths(patches: list[Patch]) -> set[str]:
    return {diff.path for patch in patches for diff in patch.diffs}
