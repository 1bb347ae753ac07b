#!/usr/bin/env python3
"""Put the ERA overlays onto pinned upstream sources, and take them off again.

Needs Python 3.10 or newer and git 2.30 or newer, nothing else. See docs/engine.md for how it works.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: main() says so
    fcntl = None

ROOT = Path(__file__).resolve().parent
FORMAT = 1  # part of every digest: raise it when the same patches would make different commits

OK, DRIFT, USAGE, WRONG_BASE, CONFLICT, LOCAL, SOURCE, INTERRUPTED = range(8)

AUTHOR = ("ERA overlays", "era-overlays@users.noreply.github.com")
DATE_RAW = "1767225600 +0000"  # fixed, so that the same input makes the same commit ids everywhere
DATE_MAIL = "Thu, 1 Jan 2026 00:00:00 +0000"
FIELDS = ("What", "Why", "Paper", "Upstream-Status", "Drop-When")
PLACEHOLDER = "FILL-IN"  # the header test rejects it

BRANCH = "refs/heads/era"
JUNK_PATTERNS = ("__pycache__/", "*.py[cod]", "*.egg-info/", ".DS_Store", ".era-new-*")
JUNK = re.compile(r"(^|/)(__pycache__|[^/]*\.egg-info|\.DS_Store)(/|$)|\.py[cod]$|(^|/)\.era-new-[^/]*$")
LOCK_WAIT = 20.0  # seconds a second apply waits for the first one
STALL = 60.0  # seconds without any sign of life after which a download is given up
PIP_STALL = 180.0  # pip is silent while it builds a package's metadata
MAX_UNPACKED = 2 << 30  # bytes: an archive that unpacks to more is not a source package
MAX_EXPORT = 1 << 20  # bytes: a larger new file in a checkout is data, not an overlay


# ---------------------------------------------------------------------------------------------------------------------
# Errors and output
# ---------------------------------------------------------------------------------------------------------------------


class Stop(Exception):
    """An end that the user is told about: an exit code and lines, the first one saying what is wrong."""

    def __init__(self, code: int, *lines: str):
        super().__init__("\n".join(lines))
        self.code, self.lines = code, lines


class GitFailed(Stop):
    """A git command that should have worked did not."""

    def __init__(self, args: list[str], stderr: str):
        tail = stderr.strip().splitlines()[-6:] or ["(git printed nothing)"]
        super().__init__(LOCAL, f"git {args[0]} failed", *(f"git said: {line}" for line in tail))
        self.stderr = stderr


class Screen:
    """Where lines go: results to stdout, or out of the way of --json's one object."""

    verbose = False
    json = False

    def say(self, text: str) -> None:
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def trace(self, command: list[str]) -> None:
        if self.verbose:
            print("+ " + " ".join(command), file=sys.stderr, flush=True)


screen = Screen()
say = screen.say


def count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


def some(names: list[str], limit: int = 8) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


# ---------------------------------------------------------------------------------------------------------------------
# git, deaf to everything but its arguments
# ---------------------------------------------------------------------------------------------------------------------

# A given checkout's own configuration is read by git whatever we do, so each setting that could run a program or
# change bytes is overridden; the user's and the system's files are not read at all (see environment()).
QUIET_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.pager": "cat",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "log.showSignature": "false",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "submodule.recurse": "false",
    "diff.suppressBlankEmpty": "false",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "diff.srcPrefix": "a/",
    "diff.dstPrefix": "b/",
}
# What concerns reaching a server stays the user's: proxies, mirrors, certificates, keys.
NETWORK_CONFIG = {
    "core.hooksPath": os.devnull,
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.fsckObjects": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    "protocol.version": "2",
    "protocol.ext.allow": "never",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "30",
}
NETWORK_ENVIRONMENT = (
    "GIT_CONFIG", "GIT_SSH", "GIT_SSL", "GIT_PROXY", "GIT_HTTP", "GIT_ASKPASS", "GIT_ALLOW_PROTOCOL", "GIT_CURL",
    "GIT_EXEC_PATH",
)  # fmt: skip


def environment(network: bool) -> dict[str, str]:
    """The process's environment without the GIT_* variables that could point git elsewhere."""
    keep = NETWORK_ENVIRONMENT if network else ("GIT_EXEC_PATH",)
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(keep)}
    env.update(LC_ALL="C", LANGUAGE="C", GIT_TERMINAL_PROMPT="0", GIT_NO_REPLACE_OBJECTS="1", GIT_ATTR_NOSYSTEM="1")
    if not network:
        env.update(
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=os.devnull,
            GIT_CONFIG_SYSTEM=os.devnull,
            GIT_ALLOW_PROTOCOL="none",  # a partial clone must not fetch behind our back
            GIT_NO_LAZY_FETCH="1",
            GIT_OPTIONAL_LOCKS="0",
            GIT_LITERAL_PATHSPECS="1",
        )
    return env


def settings(values: dict[str, str]) -> list[str]:
    return [word for key, value in values.items() for word in ("-c", f"{key}={value}")]


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


Entry = tuple[str, str]  # mode and object id, as in `git ls-tree`
Tree = dict[str, Entry]
Content = tuple[str, bytes]  # mode and bytes


def tree_id(tree: Tree) -> str:
    """The id that git must give a tree with these entries, computed without git."""
    nested: dict = {}
    for path, entry in tree.items():
        *folders, name = path.split("/")
        node = nested
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = entry

    def identify(node: dict) -> str:
        rows = []
        for name, child in node.items():
            mode, oid = ("40000", identify(child)) if isinstance(child, dict) else child
            raw = os.fsencode(name)
            rows.append((raw + b"/" if mode == "40000" else raw, mode.encode() + b" " + raw + b"\0" + bytes.fromhex(oid)))
        body = b"".join(row for _, row in sorted(rows))
        return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()

    return identify(nested)


class Git:
    """One repository. `--git-dir` is always given, so git never goes looking for a repository around us."""

    def __init__(self, git_dir: Path, work_tree: Path | None = None, extra: dict[str, str] | None = None):
        self.git_dir, self.work_tree = git_dir, work_tree
        self.extra = extra or {}
        self.config = QUIET_CONFIG

    def run(self, *args: str, data: bytes = b"", ok: tuple[int, ...] = (0,)):
        command = ["git", *settings(self.config), f"--git-dir={self.git_dir}"]
        if self.work_tree:
            command.append(f"--work-tree={self.work_tree}")
        screen.trace(["git", f"--git-dir={self.git_dir}", *args])
        done = subprocess.run(
            [*command, *args],
            input=data,
            capture_output=True,
            env={**environment(network=False), **self.extra},
            cwd=self.work_tree or self.git_dir,
        )
        if done.returncode not in ok:
            raise GitFailed(list(args), os.fsdecode(done.stderr))
        return done

    def __call__(self, *args: str, data: bytes = b"", ok: tuple[int, ...] = (0,)) -> str:
        return os.fsdecode(self.run(*args, data=data, ok=ok).stdout)

    def with_env(self, **extra: str) -> Git:
        other = Git(self.git_dir, self.work_tree, {**self.extra, **extra})
        other.config = self.config
        return other

    def commit(self, name: str) -> str | None:
        """The commit a name stands for, or None."""
        return self("rev-parse", "--verify", "--quiet", name + "^{commit}", ok=(0, 1, 128)).strip() or None

    def tree(self, treeish: str) -> Tree:
        rows = self("ls-tree", "-r", "-z", "--full-tree", treeish).split("\0")[:-1]
        parsed = (row.split("\t", 1) for row in rows)
        return {path: (info.split()[0], info.split()[2]) for info, path in parsed}

    def index(self) -> Tree:
        """What is staged; a path in a merge conflict gets the mode "conflict"."""
        found = {}
        for row in self("ls-files", "--stage", "-z").split("\0")[:-1]:
            info, path = row.split("\t", 1)
            mode, oid, stage = info.split()
            found[path] = (mode, oid) if stage == "0" else ("conflict", oid)
        return found

    def blobs(self, oids: set[str]) -> dict[str, bytes]:
        """Contents by id, each checked against its id: git itself does not check what it reads."""
        wanted = sorted(oids)
        if not wanted:
            return {}
        out = self.run("cat-file", "--batch", data="".join(f"{oid}\n" for oid in wanted).encode()).stdout
        found, at = {}, 0
        for oid in wanted:
            end = out.index(b"\n", at)
            head = out[at:end].split()
            if len(head) != 3:
                raise Stop(WRONG_BASE, f"{self.git_dir}: the object {oid} is missing: the repository is damaged")
            size = int(head[2])
            found[oid] = out[end + 1 : end + 1 + size]
            at = end + size + 2
            if blob_id(found[oid]) != oid:
                raise Stop(WRONG_BASE, f"{self.git_dir}: the object {oid} has other bytes than its id says: the repository is damaged")
        return found

    def write_blobs(self, contents: list[bytes]) -> None:
        """Store file contents: one process for all, no filters."""
        stream = b"".join(b"blob\ndata %d\n%s\n" % (len(content), content) for content in contents)
        if stream:
            self("fast-import", "--quiet", "--done", data=stream + b"done\n")

    def commit_tree(self, tree: str, parents: list[str], message: str) -> str:
        who = {}
        for role in ("AUTHOR", "COMMITTER"):
            who.update({f"GIT_{role}_NAME": AUTHOR[0], f"GIT_{role}_EMAIL": AUTHOR[1], f"GIT_{role}_DATE": DATE_RAW})
        flags = [word for parent in parents for word in ("-p", parent)]
        return self.with_env(**who)("commit-tree", tree, *flags, "-F", "-", data=message.encode()).strip()

    def import_objects(self, source: Git, objects: str) -> None:
        """Copy objects (lines of `rev-list --objects`). The receiving git computes every id anew."""
        pack = source.run("pack-objects", "--stdout", "-q", data=os.fsencode(objects)).stdout
        few = objects.count("\n") <= 200
        self.run(*(("unpack-objects", "-q") if few else ("index-pack", "--stdin")), data=pack)


@contextlib.contextmanager
def scratch_index(git: Git):
    """The same repository with an index of its own, so that nobody's real index is touched."""
    with tempfile.TemporaryDirectory(prefix="era-index-") as folder:
        yield git.with_env(GIT_INDEX_FILE=str(Path(folder) / "index"))


def index_lines(changes: dict[str, Entry | None]) -> bytes:
    """Input for `git update-index -z --index-info`; removals first, so that a file can give way to a folder."""
    rows = sorted(changes.items(), key=lambda item: (item[1] is not None, item[0]))
    lines = (f"0 {'0' * 40}\t{path}\0" if entry is None else f"{entry[0]} {entry[1]}\t{path}\0" for path, entry in rows)
    return os.fsencode("".join(lines))


def check_git() -> None:
    try:
        text = subprocess.run(["git", "--version"], capture_output=True, text=True, env=environment(network=False)).stdout
    except OSError:
        raise Stop(
            USAGE, "git was not found on the PATH", "install git 2.30 or newer and run the command again; nothing was changed"
        ) from None
    found = re.search(r"(\d+)\.(\d+)", text)
    if found and (int(found[1]), int(found[2])) < (2, 30):
        raise Stop(USAGE, f"git {found[0]} is too old", "install git 2.30 or newer and run the command again; nothing was changed")


# ---------------------------------------------------------------------------------------------------------------------
# upstreams.json
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sdist:
    project: str
    version: str
    sha256: str
    lacks: tuple[str, ...]  # folders (ending in /) and files of the commit that the package does not have
    adds: tuple[str, ...]  # what the packaging put in; left out when unpacking


@dataclasses.dataclass(frozen=True)
class Version:
    label: str
    commit: str
    tag: str | None
    sdist: Sdist | None


@dataclasses.dataclass(frozen=True)
class Upstream:
    name: str
    url: str
    license: str
    default: str
    versions: dict[str, Version]

    def version(self, label: str) -> Version:
        if label not in self.versions:
            raise Stop(USAGE, f"{self.name} has no version {label!r}", f"known versions: {', '.join(self.versions)}")
        return self.versions[label]


def check_fields(where: str, value: object, required: dict[str, type], optional: dict[str, type] | None = None) -> dict:
    allowed = {**required, **(optional or {})}
    if not isinstance(value, dict):
        raise Stop(USAGE, f"{where}: expected an object, found {type(value).__name__}")
    unknown = [key for key in value if key not in allowed]
    missing = [key for key in required if key not in value]
    if unknown or missing:
        problem = f"unknown key {unknown[0]!r}" if unknown else f"the key {missing[0]!r} is missing"
        raise Stop(USAGE, f"{where}: {problem}", f"expected keys: {', '.join(allowed)}")
    for key, item in value.items():
        if not isinstance(item, allowed[key]) or item in ("", {}):
            raise Stop(USAGE, f"{where}.{key}: expected a non-empty {allowed[key].__name__}, found {json.dumps(item)[:60]}")
    return value


def check_pattern(where: str, value: str, pattern: str, meaning: str) -> str:
    if not re.fullmatch(pattern, value):
        raise Stop(USAGE, f"{where}: expected {meaning}, found {value!r}")
    return value


def reject_duplicates(pairs: list[tuple[str, object]]) -> dict:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Stop(USAGE, f"upstreams.json: the key {twice!r} stands twice in one object")
    return seen


def read_sdist(where: str, value: dict) -> Sdist:
    check_fields(where, value, {"project": str, "version": str, "sha256": str, "lacks": list}, {"adds": list})
    check_pattern(f"{where}.project", value["project"], r"[A-Za-z0-9][A-Za-z0-9._-]*", "a project name")
    check_pattern(f"{where}.version", value["version"], r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", "a version")
    check_pattern(f"{where}.sha256", value["sha256"], r"[0-9a-f]{64}", "64 hex digits in lower case")
    for key in ("lacks", "adds"):
        for item in value.get(key, []):
            if not isinstance(item, str):
                raise Stop(USAGE, f"{where}.{key}: expected paths, found {json.dumps(item)[:60]}")
            check_path(item.rstrip("/"), f"{where}.{key}")
    return Sdist(value["project"], value["version"], value["sha256"], tuple(value["lacks"]), tuple(value.get("adds", ())))


def read_version(where: str, label: str, value: dict) -> Version:
    check_pattern(where, label, r"[A-Za-z0-9][A-Za-z0-9._+-]*", "a version label")
    check_fields(where, value, {"commit": str}, {"tag": str, "sdist": dict})
    check_pattern(f"{where}.commit", value["commit"], r"[0-9a-f]{40}", "40 hex digits in lower case")
    if "tag" in value:
        check_pattern(f"{where}.tag", value["tag"], r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a tag name")
    sdist = read_sdist(f"{where}.sdist", value["sdist"]) if "sdist" in value else None
    return Version(label, value["commit"], value.get("tag"), sdist)


def read_upstreams() -> dict[str, Upstream]:
    path = ROOT / "upstreams.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=reject_duplicates)
    except OSError as error:
        raise Stop(USAGE, f"cannot read {path}: {error.strerror}", "apply.py must stand beside upstreams.json") from None
    except (ValueError, RecursionError) as error:
        raise Stop(USAGE, f"{path} is not valid JSON: {error}") from None
    if not isinstance(data, dict) or not data:
        raise Stop(USAGE, f"{path}: expected an object with one key per upstream")
    found = {}
    for name, value in data.items():
        where = f"upstreams.json: {name}"
        check_pattern(where, name, r"[A-Za-z0-9][A-Za-z0-9_-]*", "a name of letters, digits, _ and -")
        check_fields(where, value, {"git": str, "license": str, "default": str, "versions": dict})
        check_pattern(f"{where}.git", value["git"], r"(https|ssh|file)://[^\s-]\S*", "an https, ssh or file URL")
        versions = {label: read_version(f"{where}.versions.{label}", label, item) for label, item in value["versions"].items()}
        if value["default"] not in versions:
            raise Stop(USAGE, f"{where}.default: {value['default']!r} is not among versions: {', '.join(versions)}")
        found[name] = Upstream(name, value["git"], value["license"], value["default"], versions)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Paths, patches, overlay files
# ---------------------------------------------------------------------------------------------------------------------


def check_path(path: str, where: str, code: int = USAGE) -> str:
    """A path inside a tree: relative, plain, and nothing that git or a filesystem would read in its own way."""
    parts = path.split("/")
    bad = None
    if not path or any(part in ("", ".", "..") for part in parts):
        bad = "absolute, empty or pointing upwards"
    elif any(part.lower().rstrip(". ") in (".git", "git~1") for part in parts):
        bad = "inside a .git folder"
    elif "\\" in path or '"' in path or any(ord(char) < 32 or ord(char) == 127 for char in path):
        bad = "with a control character, a quote or a backslash"
    elif any(0xDC80 <= ord(char) <= 0xDCFF for char in path):
        bad = "not UTF-8"
    if bad:
        raise Stop(code, f"{where}: the path {path!r} is {bad}", "nothing was changed")
    return path


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


HUNK_HEAD = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?")
MODES = ("100644", "100755")


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
            "the patch is truncated or was altered; bring it back with git, or make it anew with `python apply.py export`",
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
                break  # a mail signature
            else:
                raise self.fail(f"expected `diff --git`, found {line[:60]!r}")
        if not diffs:
            raise self.fail("the patch changes no file")
        paths = [diff.path for diff in diffs]
        if len(set(paths)) != len(paths):
            raise self.fail("one file stands in the patch twice")
        return Patch(self.name, self.raw, subject, body, diffs)

    def read_mail(self) -> tuple[str, str]:
        headers: list[str] = []
        body: list[str] = []
        section = headers
        while self.at < len(self.lines) and not self.peek().startswith(b"diff --git "):
            try:
                line = self.peek().decode("utf-8")
            except UnicodeDecodeError:
                raise self.fail("the header is not UTF-8") from None
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
            raise self.fail(f"expected `diff --git a/PATH b/PATH` with one unquoted path, found {names[:80]!r}; renames are not supported")
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
        while self.at < len(self.lines):
            line = self.peek()
            word = line.decode("ascii", "replace")
            mode = word.rsplit(" ", 1)[-1]
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
                diff.old_mode = diff.old_mode or (found[3] or "").strip() or None
            elif word.startswith(("--- ", "diff --git ")) or word.rstrip() == "--":
                break
            else:
                raise self.fail(f"not supported here: {word[:60]!r} (renames, copies and binary patches are not)")
            self.at += 1
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
            if tag == b"\\" and tags[-1:] in (b" ", b"-", b"+") and text.startswith(b" "):
                for side, touched in ((old, b" -"), (new, b" +")):
                    if tags[-1:] in touched and not side[-1].endswith(b"\n"):
                        raise self.fail("two marks for a missing newline")
                    if tags[-1:] in touched:
                        side[-1] = side[-1][:-1]
            elif tag in (b" ", b"-", b"+") and tag and text.endswith(b"\n"):
                tags += tag
                if tag != b"+":
                    old.append(text)
                if tag != b"-":
                    new.append(text)
            else:
                raise self.fail(f"hunk {number} ends early: it should have {want_old} old and {want_new} new lines")
            self.at += 1
        if (len(old), len(new)) != (want_old, want_new) or not tags.strip(b" "):
            raise self.fail(f"hunk {number} does not have the {want_old} old and {want_new} new lines that it announces")
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
        report.append(f"found there:{' ' * len(str(number))}        {show(lines[number - 1] if number <= len(lines) else None)}")
    places = locate(lines, hunk)
    if places:
        at = min(places, key=lambda place: abs(place - position))
        report.append(f"nearest match: the whole hunk stands at line {at + 1} ({at - position:+d})")
    elif wrong is not None:
        report.append(nearest(lines, hunk, position, hunk.old[wrong]))
    return Conflict(path, hunk.number, report)


def first_difference(lines: list[bytes], hunk: Hunk, position: int) -> int | None:
    here = lines[position : position + len(hunk.old)]
    here += [b""] * (len(hunk.old) - len(here))
    return next((i for i, (want, have) in enumerate(zip(hunk.old, here)) if want != have), None)


def nearest(lines: list[bytes], hunk: Hunk, position: int, wanted: bytes) -> str:
    """Where most of a hunk's lines stand, else the line most like the one that was expected."""
    shared = [sum(map(bytes.__eq__, hunk.old, lines[at : at + len(hunk.old)])) for at in range(len(lines))]
    best = max(range(len(lines)), key=lambda at: (shared[at], -abs(at - position)), default=0)
    if lines and shared[best] * 2 >= len(hunk.old):
        at = best + (first_difference(lines, hunk, best) or 0)
        return f"nearest match: line {at + 1}: {show(lines[at] if at < len(lines) else None)}"
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
        raise Conflict(diff.path, None, [f"{diff.path}: the patch deletes this file, but it has more lines than the patch knows"])
    return None if diff.kind == "delete" else (diff.new_mode or mode, after)


def check_ids(patch: Patch, diff: FileDiff, before: Content | None, after: Content | None) -> None:
    """The `index` line names both contents: it catches a patch that was cut at a hunk or edited by hand."""
    for given, state, which in ((diff.old_id, before, "before"), (diff.new_id, after, "after")):
        found = blob_id(state[1]) if state else "0" * 40
        if given is not None and given != found:
            raise Stop(
                WRONG_BASE,
                f"{patch.file}: {diff.path} has the id {found} {which} the patch, its index line says {given}",
                "the patch was truncated or edited by hand, or it belongs to another version; bring it back with git,",
                "or edit the checkout instead and run `python apply.py export`; nothing was changed",
            )


@dataclasses.dataclass
class Overlay:
    """What this project adds to one version of one upstream."""

    patches: list[Patch]
    files: dict[str, Content]
    inputs: dict[str, str]  # sha256 of each file read, by its path in the project

    def digest(self, base: str) -> str:
        modes = {path: mode for path, (mode, _) in self.files.items()}
        text = json.dumps([FORMAT, base, sorted(self.inputs.items()), sorted(modes.items())])
        return hashlib.sha256(text.encode()).hexdigest()


def patch_folder(name: str, label: str) -> Path:
    return ROOT / "patches" / name / label


def overlay_folder(name: str) -> Path:
    return ROOT / "overlays" / name


def patch_names(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if name.endswith(".patch") and not JUNK.search(name)]


def read_overlay(name: str, label: str) -> Overlay:
    folder = patch_folder(name, label)
    inputs: dict[str, str] = {}
    patches = []
    for number, file in enumerate(patch_names(folder), 1):
        if not re.fullmatch(r"\d{4}-[A-Za-z0-9._-]+\.patch", file) or int(file[:4]) != number:
            raise Stop(
                USAGE,
                f"{folder / file}: expected a patch named {number:04d}-what.patch",
                "patches are numbered from 0001 without a gap; is one missing? `git status` in this project tells;",
                "nothing was changed",
            )
        raw = (folder / file).read_bytes()
        inputs[f"patches/{name}/{label}/{file}"] = hashlib.sha256(raw).hexdigest()
        patches.append(PatchReader(file, raw).read())
    files = read_overlay_files(name)
    for path, (_, content) in files.items():
        inputs[f"overlays/{name}/{path}"] = hashlib.sha256(content).hexdigest()
    if not patches and not files:
        raise Stop(
            USAGE,
            f"there is nothing to apply for {name} {label}: no patch in {folder} and no file in {overlay_folder(name)}",
            "is the project complete? `git status` in it tells; nothing was changed",
        )
    return Overlay(patches, files, inputs)


def read_overlay_files(name: str) -> dict[str, Content]:
    top = overlay_folder(name)
    files: dict[str, Content] = {}
    for path in sorted(top.rglob("*")) if top.is_dir() else []:
        relative = path.relative_to(top).as_posix()
        if JUNK.search(relative):
            continue
        info = path.lstat()
        if stat.S_ISDIR(info.st_mode):
            continue
        if not stat.S_ISREG(info.st_mode):
            raise Stop(USAGE, f"{path} is not a plain file", "overlays hold plain files only; nothing was changed")
        check_path(relative, f"overlays/{name}")
        files[relative] = (MODES[bool(info.st_mode & stat.S_IXUSR)], path.read_bytes())
    return files


def check_no_overwrite(name: str, files: dict, base: dict) -> None:
    """New files must be new, also where a filesystem does not tell A from a."""
    folders = {folder for path in base for folder in parents(path)}
    folded = {path.casefold(): path for path in base}
    seen: dict[str, str] = {}
    for path in files:
        clash = folded.get(path.casefold()) or (path if path in folders else None) or seen.get(path.casefold())
        clash = clash or next((folder for folder in parents(path) if folder in base or folder in files), None)
        if clash:
            raise Stop(
                WRONG_BASE,
                f"overlays/{name}/{path} would overwrite {clash}",
                "an overlay holds new files only; change an upstream file with a patch. Nothing was changed",
            )
        seen[path.casefold()] = path


def parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def under(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def select_patches(overlay: Overlay, lacks: tuple[str, ...]) -> tuple[list[Patch], list[str]]:
    """The patches for a source, and the names of those that only concern what the source lacks."""
    chosen, skipped = [], []
    for patch in overlay.patches:
        lacking = [diff.path for diff in patch.diffs if under(diff.path, lacks)]
        if not lacking:
            chosen.append(patch)
        elif len(lacking) == len(patch.diffs):
            skipped.append(patch.file)
        else:
            raise Stop(
                SOURCE,
                f"{patch.file} changes {lacking[0]}, which the source package lacks, together with files that it has",
                "use the git repository (--source git), or split the patch; nothing was changed",
            )
    return chosen, skipped


# ---------------------------------------------------------------------------------------------------------------------
# Locks and files
# ---------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path, wait: float, what: str):
    """Hold a lock file; the kernel drops the lock when its process ends, however it ends."""
    folder = path.is_dir()  # a folder can be locked too, and needs no file of ours in it
    if not folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline, told = time.monotonic() + wait, False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    owner = "" if folder else os.pread(handle, 32, 0).decode("ascii", "replace").strip()
                    raise Stop(
                        INTERRUPTED,
                        f"another apply.py (process {owner or 'unknown'}) is at work on {what}",
                        f"waited {wait:.0f} s; run the command again when it is done. Nothing was changed",
                    ) from None
                if not told:
                    say(f"waiting for another apply.py at work on {what} ...")
                    told = True
                time.sleep(0.1)
        if not folder:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """All of a file or nothing, on disk before it bears its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".era-new-{path.name}")
    with open(part, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    if mode is not None:
        part.chmod(mode)
    part.replace(path)


def read_json(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise Stop(LOCAL, f"{path} was altered and cannot be read", "move it away to have this checkout treated as a plain clone") from None


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as data:
        for chunk in iter(lambda: data.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# Sources: git, the source package, a local path; all end as a verified commit in the cache
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Source:
    """A verified upstream tree: the commit `base` in the cache repository `git`."""

    kind: str  # "git" or "pypi"
    base: str
    git: Git
    lacks: tuple[str, ...]
    fresh: bool  # brought in by this run


@dataclasses.dataclass
class Cache:
    root: Path
    offline: bool

    def lock(self, name: str):
        # Another process may hold it for a whole download.
        return locked(self.root / "locks" / name, 900, f"the cache of {name}")

    def repository(self, name: str) -> Git:
        """The bare repository of one upstream; it appears under its name only when it is whole."""
        path = self.root / "git" / f"{name}.git"
        if not (path / "HEAD").is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=path.parent) as folder:
                init_repository(Path(folder) / "new", bare=True)
                shutil.rmtree(path, ignore_errors=True)
                os.rename(Path(folder) / "new", path)
        return Git(path)


def init_repository(path: Path, bare: bool) -> None:
    command = ["git", *settings(QUIET_CONFIG), "init", "--quiet", "--template=", "--object-format=sha1"]
    command += ["--bare"] if bare else []
    screen.trace(["git", "init", str(path)])
    done = subprocess.run([*command, str(path)], capture_output=True, env=environment(network=False))
    if done.returncode:
        raise GitFailed(["init"], os.fsdecode(done.stderr))


def pin_ref(version: Version, kind: str) -> str:
    """The name under which the cache holds a source; it is written only after the source was verified."""
    return f"refs/pins/{version.commit}" if kind == "git" else f"refs/pins/sdist-{version.sdist.sha256}"


def watched(command: list[str], env: dict[str, str], silence: float) -> tuple[int, str]:
    """Run a downloader; end it when it has shown no sign of life for `silence` seconds."""
    screen.trace(command)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            size, heard = 0, time.monotonic()
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                    break
                grown = os.fstat(log.fileno()).st_size
                if grown != size:
                    size, heard = grown, time.monotonic()
                elif time.monotonic() - heard > silence:
                    raise Stop(SOURCE, f"the download stalled: nothing came for {silence:.0f} s")
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its helpers too: git-remote-https, index-pack
                process.wait()
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    if screen.verbose:
        print(text.rstrip(), file=sys.stderr)
    return process.returncode, text


REFUSES_IDS = re.compile(r"not our ref|unadvertised object|does not allow request|couldn't find remote ref", re.I)


def fetch_ref(git: Git, url: str, wanted: str, into: str, depth: bool = True) -> str | None:
    """Fetch one revision. None when done, else what git said; an unreachable server is a Stop."""
    command = ["git", *settings(NETWORK_CONFIG), f"--git-dir={git.git_dir}", "fetch", "--progress", "--no-tags", "--force"]
    command += ["--no-write-fetch-head", *(["--depth=1"] if depth else []), "--", url, f"{wanted}:{into}"]
    status, text = watched(command, environment(network=True), STALL)
    if status == 0:
        return None
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.startswith(("fatal:", "error:", "ssh:"))]
    said = "; ".join(lines[:3]) or text.strip()[-200:]
    if REFUSES_IDS.search(text):
        return said
    raise Stop(SOURCE, f"the repository {url} cannot be reached", f"git said: {said}")


def fetch_pin(git: Git, url: str, version: Version) -> None:
    """Bring the pinned commit into the cache: by its id, or by its tag where a server refuses ids."""
    into = f"refs/incoming/{version.commit}"
    said = fetch_ref(git, url, version.commit, into)
    if said and version.tag:
        said = fetch_ref(git, url, f"refs/tags/{version.tag}", into)
    elif said:  # neither ids nor a tag: all branches, which must hold the commit
        said = fetch_ref(git, url, "refs/heads/*", f"refs/incoming/{version.label}/*", depth=False)
        if not said and git.commit(version.commit):
            git("update-ref", into, version.commit)
    found = git.commit(into)
    if said or not found:
        raise Stop(SOURCE, f"{url} does not hold the pinned commit {version.commit}", f"git said: {said or 'nothing'}")
    if found != version.commit:
        raise Stop(
            WRONG_BASE,
            f"{url}: the tag {version.tag} is the commit {found}",
            f"expected the pinned commit {version.commit}: the tag was moved. Nothing was changed",
        )
    git("update-ref", pin_ref(version, "git"), version.commit)
    git("update-ref", "-d", into)


def adopt_commit(git: Git, owner: Git, version: Version) -> None:
    """Take the pinned commit from a checkout that has it, instead of from the network."""
    commit = version.commit
    git.import_objects(owner, owner("rev-list", "--objects", "--no-walk", commit))
    add_shallow(git, commit)
    git("update-ref", pin_ref(version, "git"), commit)


def add_shallow(git: Git, commit: str) -> None:
    """Tell a repository that a commit's parents are left out on purpose."""
    if not re.search(r"^parent ", git("cat-file", "commit", commit).split("\n\n")[0], re.M):
        return
    path = git.git_dir / "shallow"
    known = path.read_text().split() if path.exists() else []
    write_file(path, "".join(f"{oid}\n" for oid in sorted({*known, commit})).encode())


def archive_in_cache(cache: Cache, sdist: Sdist) -> Path | None:
    folder = cache.root / "archives" / sdist.sha256
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if sha256_file(path) == sdist.sha256:
            return path
        say(f"{path} was altered or cut short: it is thrown away")
        path.unlink()
    return None


def download_sdist(cache: Cache, sdist: Sdist) -> Path:
    """The source package, fetched by pip, which checks the hash before it runs anything of the package."""
    say(f"fetching the source package {sdist.project} {sdist.version} with pip ...")
    with tempfile.TemporaryDirectory(prefix="pip-", dir=cache.root) as scratch:
        wish = Path(scratch) / "wish.txt"
        wish.write_text(f"{sdist.project}=={sdist.version} --hash=sha256:{sdist.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
        command += ["--disable-pip-version-check", "--no-input", "--timeout", "15", "--retries", "2"]
        command += ["--dest", f"{scratch}/out", "-r", str(wish)]
        status, text = watched(command, {**os.environ, "PIP_NO_COLOR": "1"}, PIP_STALL)
        if status:
            raise pip_failed(sdist, text)
        return keep_archive(cache, sdist, sorted(Path(scratch, "out").glob("*.tar.gz")))


def pip_failed(sdist: Sdist, text: str) -> Stop:
    what = f"the source package {sdist.project} {sdist.version}"
    if "No module named pip" in text:
        return Stop(
            SOURCE,
            f"{what} cannot be fetched: {sys.executable} has no pip",
            "run apply.py with a Python that has pip, or `python -m ensurepip`",
        )
    if "DO NOT MATCH THE HASHES" in text:
        return Stop(
            WRONG_BASE,
            f"{what}: the index offers other bytes than the pinned sha256 {sdist.sha256}",
            "nothing of them was used; nothing was changed",
        )
    errors = [line for line in text.splitlines() if "ERROR" in line or "error:" in line] or text.splitlines()[-3:]
    return Stop(SOURCE, f"{what} cannot be fetched", *(f"pip said: {line.strip()}" for line in errors[-3:]))


def keep_archive(cache: Cache, sdist: Sdist, files: list[Path]) -> Path:
    if len(files) != 1:
        raise Stop(SOURCE, f"pip did not bring one .tar.gz for {sdist.project} {sdist.version}")
    check_archive(files[0], sdist)
    target = cache.root / "archives" / sdist.sha256 / files[0].name
    target.parent.mkdir(parents=True, exist_ok=True)
    files[0].replace(target)
    return target


def check_archive(path: Path, sdist: Sdist) -> None:
    found = sha256_file(path)
    if found != sdist.sha256:
        raise Stop(
            WRONG_BASE,
            f"{path}: the sha256 is {found}",
            f"expected {sdist.sha256}: the file is truncated, altered or another one. Nothing of it was used",
        )


def unpack(path: Path) -> dict[str, Content]:
    """The files of a source package without its top folder, read member by member; nothing is written to disk."""
    files: dict[str, Content] = {}
    folded: set[str] = set()
    tops: set[str] = set()
    total = 0

    def refuse(member: str, problem: str) -> Stop:
        return Stop(
            WRONG_BASE,
            f"{path}: the member {member!r} {problem}",
            "a source package has plain files and folders only; nothing of it was used",
        )

    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                top, _, inner = member.name.rstrip("/").partition("/")
                check_path(member.name.rstrip("/"), str(path), WRONG_BASE)
                tops.add(top)
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise refuse(member.name, "is a link, a device or another special file")
                if not inner:
                    raise refuse(member.name, "lies outside of the package's folder")
                if inner.casefold() in folded:
                    raise refuse(member.name, "stands there twice, or differs from another only by case")
                total += member.size
                if total > MAX_UNPACKED:
                    raise refuse(member.name, f"brings the unpacked size over {MAX_UNPACKED} bytes")
                folded.add(inner.casefold())
                content = archive.extractfile(member).read()
                if len(content) != member.size:
                    raise refuse(member.name, "is cut short")
                files[inner] = (MODES[bool(member.mode & 0o100)], content)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise Stop(WRONG_BASE, f"{path} cannot be unpacked: {error}", "it is truncated or no .tar.gz; nothing of it was used") from None
    if len(tops) != 1 or not files:
        raise Stop(WRONG_BASE, f"{path}: expected one folder with files in it, found {some(sorted(tops)) or 'nothing'}")
    clash = next((folder for name in files for folder in parents(name) if folder.casefold() in folded), None)
    if clash:
        raise refuse(clash, "is a file and a folder at once")
    return files


def store_files(git: Git, files: dict[str, Content], parent: str | None, message: str) -> str:
    """A commit whose tree is the parent's with these files added."""
    entries = {path: (mode, blob_id(content)) for path, (mode, content) in files.items()}
    git.write_blobs([content for _, content in files.values()])
    with scratch_index(git) as scratch:
        if parent:
            scratch("read-tree", parent)
        scratch("update-index", "-z", "--index-info", data=index_lines(entries))
        tree = scratch("write-tree").strip()
    expected = tree_id({**(git.tree(parent) if parent else {}), **entries})
    if tree != expected:
        raise Stop(WRONG_BASE, f"git wrote the tree {tree}, expected {expected}", "nothing was changed; please report this")
    return git.commit_tree(tree, [parent] if parent else [], message)


def store_sdist(git: Git, path: Path, version: Version) -> None:
    """Turn a verified source package into a commit; the same package gives the same id everywhere."""
    sdist = version.sdist
    files = {name: item for name, item in unpack(path).items() if not under(name, sdist.adds)}
    message = f"{sdist.project} {sdist.version}, source package\n\nsha256: {sdist.sha256}\n"
    commit = store_files(git, files, None, message)
    git("update-ref", pin_ref(version, "pypi"), commit)


def find_source(cache: Cache, up: Upstream, version: Version, wish: str | None, near: Git | None, recorded: str | None) -> Source:
    """The verified source of a version: from the cache, from a checkout at hand (`near`), or from outside."""
    if wish not in (None, "git", "pypi"):
        return local_source(cache, up, version, Path(wish))
    with cache.lock(up.name):
        git = cache.repository(up.name)
        kinds = [wish] if wish else [recorded] if recorded else ["git", "pypi"]
        if "pypi" in kinds and not version.sdist:
            if wish == "pypi":
                raise Stop(SOURCE, f"{up.name} {version.label} has no source package in upstreams.json", "use --source git")
            kinds = ["git"]
        if kinds[0] == "git" and not git.commit(pin_ref(version, "git")) and near and near.commit(version.commit):
            with contextlib.suppress(GitFailed):  # a partial clone may lack parts
                adopt_commit(git, near, version)
        commit = git.commit(pin_ref(version, kinds[0]))
        if commit:
            return make_source(git, version, kinds[0], commit, fresh=False)
        return fetch_source(cache, git, up, version, kinds)


def make_source(git: Git, version: Version, kind: str, commit: str, fresh: bool) -> Source:
    return Source(kind, commit, git, version.sdist.lacks if kind == "pypi" else (), fresh)


def fetch_source(cache: Cache, git: Git, up: Upstream, version: Version, kinds: list[str]) -> Source:
    """git first; the source package where the repository cannot be reached, after saying what it lacks."""
    title = f"{up.name} {version.label}"
    if "git" in kinds and not cache.offline:
        say(f"{title}: fetching {version.commit[:12]} from {up.url} ...")
        try:
            fetch_pin(git, up.url, version)
            return make_source(git, version, "git", version.commit, fresh=True)
        except Stop as stop:
            if stop.code != SOURCE or "pypi" not in kinds:
                raise Stop(stop.code, f"{title}: {stop.lines[0]}", *stop.lines[1:], "nothing was changed") from None
            say(f"{title}: {'; '.join(stop.lines)}")
    known = git.commit(pin_ref(version, "pypi")) if "pypi" in kinds else None
    if cache.offline and not known and not ("pypi" in kinds and archive_in_cache(cache, version.sdist)):
        raise Stop(
            SOURCE,
            f"{title} is not in the cache {cache.root}, and --offline forbids to fetch it",
            "run once without --offline; nothing was changed",
        )
    if "git" in kinds and version.sdist.lacks:
        say(f"{title}: taking the source package instead; it lacks {some(list(version.sdist.lacks), 4)} (upstreams.json lists all)")
    if not known:
        store_sdist(git, archive_in_cache(cache, version.sdist) or download_sdist(cache, version.sdist), version)
    return make_source(git, version, "pypi", git.commit(pin_ref(version, "pypi")), fresh=not known)


def local_source(cache: Cache, up: Upstream, version: Version, path: Path) -> Source:
    """--source PATH: a git repository, or the source package as a file; verified like the ones from outside."""
    path = path.expanduser().resolve()
    if not path.exists():
        raise Stop(SOURCE, f"--source {path}: there is no such file or folder", "expected git, pypi, a git repository or a .tar.gz")
    with cache.lock(up.name):
        git = cache.repository(up.name)
        if path.is_dir():
            fetch_pin(git, str(path), version)
            return make_source(git, version, "git", version.commit, fresh=True)
        if not version.sdist:
            raise Stop(SOURCE, f"{up.name} {version.label} has no source package in upstreams.json, so {path} cannot be verified")
        check_archive(path, version.sdist)
        store_sdist(git, path, version)
        return make_source(git, version, "pypi", git.commit(pin_ref(version, "pypi")), fresh=True)


# ---------------------------------------------------------------------------------------------------------------------
# Building: base + overlay files + patches = commits, made by git and computed a second time by Python
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Built:
    tip: str
    commits: list[str]
    tree: Tree
    patches: list[Patch]
    skipped: list[str]
    new_files: int

    @property
    def changed_lines(self) -> int:
        return sum(patch.changed for patch in self.patches)


def compute(patches: list[Patch], tree: Tree, contents: dict[str, Content]):
    """After each patch: the whole tree, as strict Python sees it. `contents` holds the patched files to begin with."""
    tree = dict(tree)
    for patch in patches:
        for diff in patch.diffs:
            before = contents.get(diff.path)
            after = apply_diff(diff, before)
            check_ids(patch, diff, before, after)
            if after is None:
                del contents[diff.path], tree[diff.path]
            else:
                contents[diff.path] = after
                tree[diff.path] = (after[0], blob_id(after[1]))
        yield patch, dict(tree)


def read_contents(git: Git, tree: Tree, paths: set[str]) -> dict[str, Content]:
    """Mode and content of those paths that are plain files in the tree."""
    entries = {path: tree[path] for path in paths if path in tree and tree[path][0] in MODES}
    blobs = git.blobs({oid for _, oid in entries.values()})
    return {path: (mode, blobs[oid]) for path, (mode, oid) in entries.items()}


def patched_paths(patches: list[Patch]) -> set[str]:
    return {diff.path for patch in patches for diff in patch.diffs}


def build(up: Upstream, label: str, overlay: Overlay, source: Source) -> Built:
    """The overlay as commits on the base, in the cache repository."""
    git = source.git
    base = git.tree(source.base)
    patches, skipped = select_patches(overlay, source.lacks)
    check_no_overwrite(up.name, overlay.files, base)
    commits, tip, tree = [], source.base, base
    if overlay.files:
        tip = store_files(git, overlay.files, tip, f"New files of the ERA overlay for {up.name}\n")
        tree = {**base, **{path: (mode, blob_id(content)) for path, (mode, content) in overlay.files.items()}}
        commits.append(tip)
    contents = {**read_contents(git, base, patched_paths(patches)), **overlay.files}
    with scratch_index(git) as scratch:
        scratch("read-tree", tip)
        steps = compute(patches, tree, contents)
        for patch in patches:
            try:
                _, tree = next(steps)
            except Conflict as conflict:
                raise conflict_stop(up, label, patch, conflict) from None
            scratch("apply", "--cached", "-", data=patch.raw)
            written = scratch("write-tree").strip()
            if written != tree_id(tree):
                raise Stop(
                    WRONG_BASE,
                    f"{patch.file}: git apply made another tree than the patch defines",
                    "nothing was changed; please report this",
                )
            tip = git.commit_tree(written, [tip], f"{patch.message}\nEra-Patch: {patch.file}\n")
            commits.append(tip)
    return Built(tip, commits, tree, patches, skipped, len(overlay.files))


def conflict_stop(up: Upstream, label: str, patch: Patch, conflict: Conflict) -> Stop:
    return Stop(
        CONFLICT,
        f"{up.name} {label}: {patch.file} does not apply",
        *conflict.lines,
        f"to see where it would go: python apply.py port {up.name} --onto {label}",
        "nothing was changed",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Checkouts: what is there
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Checkout:
    """A folder as it was found. `record` is what apply wrote about it, None where it never did."""

    name: str
    path: Path
    given: bool  # the user's own clone (--checkout)
    git: Git | None = None
    ref: str | None = None  # the branch HEAD is on, None when detached
    head: str | None = None
    refs: dict[str, str] = dataclasses.field(default_factory=dict)
    config: dict[str, str] = dataclasses.field(default_factory=dict)
    record: dict | None = None
    journal: dict | None = None

    @property
    def exists(self) -> bool:
        return self.path.is_dir() and any(self.path.iterdir())

    @property
    def own_folder(self) -> Path:
        return self.git.git_dir / "era"


def find_git_dir(path: Path) -> Path | None:
    """The repository whose top folder is `path` itself, never one around it."""
    dot = path / ".git"
    if dot.is_file():  # a linked worktree or a submodule
        text = dot.read_bytes()[:4096]
        if not text.startswith(b"gitdir:"):
            return None
        dot = path / os.fsdecode(text[7:].strip())
    return dot.resolve() if (dot / "HEAD").is_file() else None


def lock_checkout(path: Path, given: bool):
    """One apply.py at a time. In the user's clone the lock leaves no trace: it is on the repository's folder."""
    if not given:
        return locked(path.parent / f".{path.name}.lock", LOCK_WAIT, str(path))
    git_dir = find_git_dir(path)
    return locked(git_dir, LOCK_WAIT, str(path)) if git_dir else contextlib.nullcontext()


def look(name: str, path: Path, given: bool) -> Checkout:
    found = Checkout(name, path, given)
    git_dir = find_git_dir(path) if found.exists else None
    if git_dir is None:
        return found
    found.git = git = Git(git_dir, path)
    found.journal = read_json(found.own_folder / "journal.json")
    found.record = read_json(found.own_folder / "record.json")
    refs = git("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags/upstream")
    found.refs = dict(line.split(" ") for line in refs.splitlines())
    found.ref = git("symbolic-ref", "--quiet", "HEAD", ok=(0, 1)).strip() or None
    found.head = found.refs.get(found.ref) if found.ref else git.commit("HEAD")
    rows = git("config", "--null", "--get-regexp", r"^(core\.(filemode|sparsecheckout|symlinks)|filter\..*)$", ok=(0, 1))
    found.config = dict(row.partition("\n")[::2] for row in rows.split("\0") if row)
    # Whatever writes the index may look at files again, through the filters of this repository.
    filters = {key: "false" if key.endswith(".required") else "" for key in found.config if key.startswith("filter.")}
    if any("=" in key for key in filters):  # `git -c` cannot name these
        raise Stop(
            LOCAL,
            f"{path}: its git configuration has a filter with = in its name, which cannot be switched off",
            "rename the filter and run the command again; nothing was changed",
        )
    git.config = {**QUIET_CONFIG, **filters}
    return found


def on_disk(root: Path, path: str) -> Entry | None:
    """What stands at a path: like an entry of a tree, None for nothing, ("other", "") for what is no file.

    A file behind a symbolic link that stands for a folder is not the file of that path.
    """
    current = root
    for part in path.split("/")[:-1]:
        current = current / part
        if current.is_symlink():
            return ("other", "")
    target = root / path
    try:
        info = target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(info.st_mode):
        return ("120000", blob_id(os.fsencode(os.readlink(target))))
    if not stat.S_ISREG(info.st_mode):
        return ("other", "")
    return (MODES[bool(info.st_mode & stat.S_IXUSR)], blob_id(target.read_bytes()))


def same_entry(checkout: Checkout, found: Entry | None, wanted: Entry | None) -> bool:
    """Equality that allows for filesystems without exec bits or links, as git's own settings say."""
    if found == wanted or found is None or wanted is None:
        return found == wanted
    loose = set()
    if checkout.config.get("core.filemode") == "false":
        loose |= set(MODES)
    if checkout.config.get("core.symlinks") == "false":
        loose |= {"120000", "100644"}
    return found[1] == wanted[1] and {found[0], wanted[0]} <= loose


def edits(checkout: Checkout, tree: Tree) -> list[str]:
    """Paths of `tree` or of the index whose file or staged content is not the tree's. Hashes, never timestamps."""
    index = checkout.git.index()
    changed = {path for path in index.keys() | tree.keys() if index.get(path) != tree.get(path)}
    for path, entry in tree.items():
        if entry[0] != "160000" and path not in changed and not same_entry(checkout, on_disk(checkout.path, path), entry):
            changed.add(path)
    if checkout.config.get("core.sparsecheckout") == "true" and any(not os.path.lexists(checkout.path / p) for p in tree):
        raise Stop(
            WRONG_BASE,
            f"{checkout.path} is a sparse checkout: not all of its files are there to be verified",
            f"run `git -C {checkout.path} sparse-checkout disable`, or let apply.py make its own checkout; nothing was changed",
        )
    return sorted(changed)


def untracked(checkout: Checkout) -> list[str]:
    """New files that git would not ignore, without caches and build leavings."""
    patterns = [f"--exclude={pattern}" for pattern in JUNK_PATTERNS]
    rows = checkout.git("ls-files", "--others", "--exclude-standard", "-z", *patterns).split("\0")
    return sorted(row for row in rows if row and not row.endswith("/"))  # a folder is a repository of its own


@dataclasses.dataclass
class Status:
    state: str
    version: str
    source: str | None = None
    commit: str | None = None
    files: list[str] = dataclasses.field(default_factory=list)
    untracked: list[str] = dataclasses.field(default_factory=list)
    commits: list[str] = dataclasses.field(default_factory=list)
    note: str = ""


DRIFTED = ("stale", "modified", "wrong-base", "interrupted")


def evaluate(up: Upstream, checkout: Checkout, wish: str | None) -> Status:
    """The state of a checkout, read from hashes only."""
    record = checkout.record
    label = wish or (record["version"] if record and record["version"] in up.versions else up.default)
    if not checkout.exists:
        return Status("absent", label)
    if checkout.git is None:
        return Status("wrong-base", label, note=f"{checkout.path} is not a git tree")
    if checkout.journal:
        return Status(
            "interrupted",
            label,
            commit=checkout.head,
            note=f"{checkout.journal['verb']} was cut short; `python apply.py apply {up.name}` completes it",
        )
    if checkout.head is None:
        return Status("wrong-base", label, note="it has no commit")
    if in_force(checkout):
        return evaluate_applied(up, checkout, label)
    bases = {version.commit: found for found, version in up.versions.items()}
    bases[up.version(label).commit] = label  # where two versions pin one commit
    if record:
        bases.setdefault(record["base"], record["version"])
    if checkout.head in bases and (wish in (None, bases[checkout.head]) or not checkout.given):
        files = edits(checkout, checkout.git.tree(checkout.head))
        source = record["source"] if record and record["base"] == checkout.head else "git"
        return Status("modified" if files else "clean", bases[checkout.head], source, checkout.head, files, untracked(checkout))
    wanted = up.version(label).commit
    return Status("wrong-base", label, commit=checkout.head, note=f"HEAD is {checkout.head}, expected {wanted} ({label})")


def in_force(checkout: Checkout) -> dict | None:
    """The record, if its overlay is what the checkout stands on, also where the user rewrote commits on era."""
    record, head = checkout.record, checkout.head
    if not record or not record["tip"] or not head or head == record["base"]:
        return None
    start = record["base"] if checkout.ref == BRANCH else record["tip"]
    return record if is_ancestor(checkout.git, start, head) else None


def is_ancestor(git: Git, older: str, newer: str) -> bool:
    return older == newer or git.run("merge-base", "--is-ancestor", older, newer, ok=(0, 1, 128)).returncode == 0


def evaluate_applied(up: Upstream, checkout: Checkout, label: str) -> Status:
    record, git = checkout.record, checkout.git
    found = Status("applied", record["version"], record["source"], checkout.head)
    if checkout.head != record["tip"]:
        found.commits = git("rev-list", "--reverse", f"{record['tip']}..{checkout.head}").split()
    tip_tree = git.tree(record["tip"])
    head_tree = tip_tree if checkout.head == record["tip"] else git.tree(checkout.head)
    found.files = edits(checkout, head_tree)
    if head_tree is not tip_tree:
        moved = {path for path in head_tree.keys() | tip_tree.keys() if head_tree.get(path) != tip_tree.get(path)}
        found.files = sorted({*found.files, *moved})
    found.untracked = untracked(checkout)
    version = up.versions.get(label)
    if version is None or label != record["version"]:
        found.state, found.note = "stale", f"{record['version']} is applied"
    elif record["source"] == "git" and record["base"] != version.commit:
        found.state, found.note = "stale", "upstreams.json pins another commit now"
    elif read_overlay(up.name, label).digest(record["base"]) != record["digest"]:
        found.state, found.note = "stale", "patches or overlay files changed since"
    elif found.files or found.commits:
        found.state = "modified"
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Switching a checkout: a journal first, then files, index, refs; every step can be done again
# ---------------------------------------------------------------------------------------------------------------------


def temp_name(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.era-new-{name}" if folder else f".era-new-{name}"


def plan_switch(checkout: Checkout, old: Tree, new: Tree, lose: list[str] | None = None) -> dict[str, tuple[list, Entry | None]]:
    """Path -> (contents that may be replaced, content to come), refusing where anything else stands.

    `lose` names files whose edits were saved elsewhere and may be replaced.
    """
    changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    changed |= set(lose or ())
    plan, in_the_way = {}, []
    index = checkout.git.index()
    for path in sorted(changed):
        found, staged = on_disk(checkout.path, path), index.get(path)
        fine = [old.get(path), new.get(path)]
        if lose and path in lose:  # save_edits has refused what it could not save
            fine += [found, staged]
        if not any(same_entry(checkout, found, entry) for entry in fine) or staged not in fine:
            in_the_way.append(path)
        plan[path] = ([entry for entry in (*fine, found) if entry], new.get(path))
    if in_the_way:
        raise Stop(
            LOCAL,
            f"{checkout.path}: local edits are in the way: {some(in_the_way)}",
            *crlf_hint(checkout, in_the_way, old),
            f"see them with `python apply.py diff {checkout.name} --local`; save them with `python apply.py export {checkout.name}`,",
            "commit them elsewhere or move them away, then run the command again. Nothing was changed",
        )
    return plan


def crlf_hint(checkout: Checkout, paths: list[str], tree: dict) -> list[str]:
    """Files that only differ by CRLF were not edited: git converted them when it checked them out."""
    for path in paths:
        target = checkout.path / path
        if path in tree and target.is_file():
            content = target.read_bytes()
            if b"\r\n" in content and blob_id(content.replace(b"\r\n", b"\n")) == tree[path][1]:
                return [
                    f"{path} differs by CRLF line ends only: git's core.autocrlf converted it. If that is all, run",
                    f"`git -C {checkout.path} config core.autocrlf false` and `git -C {checkout.path} checkout-index -f -a`",
                ]
    return []


def begin_switch(checkout: Checkout, verb: str, plan: dict, refs: dict, head: str, record: dict | None, together: list[str]) -> dict:
    """Write the journal. From here on, only going forward is right."""
    if (checkout.git.git_dir / "index.lock").exists():
        raise Stop(
            LOCAL,
            f"{checkout.git.git_dir / 'index.lock'} exists: another git process is at work there, or died",
            "wait for it, or remove the file if no git runs; then run the command again. Nothing was changed",
        )
    journal = {"verb": verb, "name": checkout.name, "plan": plan, "refs": refs, "head": head, "record": record, "together": together}
    write_file(checkout.own_folder / "journal.json", json.dumps(journal).encode())
    return journal


def stage_files(checkout: Checkout, plan: dict) -> None:
    """Write the new contents beside their places: a full disk shows before anything is replaced."""
    blobs = checkout.git.blobs({entry[1] for _, entry in plan.values() if entry})
    for path, (_, entry) in plan.items():
        if entry is None or same_entry(checkout, on_disk(checkout.path, path), tuple(entry)):
            continue
        target = checkout.path / temp_name(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        if entry[0] == "120000":
            target.symlink_to(os.fsdecode(blobs[entry[1]]))
            continue
        with open(target, "xb") as out:
            out.write(blobs[entry[1]])
            out.flush()
            os.fsync(out.fileno())
        if entry[0] == "100755":
            target.chmod(target.stat().st_mode | 0o111 & ~current_umask())


def current_umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def unstage_files(checkout: Checkout, plan: dict) -> None:
    for path in plan:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (checkout.path / temp_name(path)).unlink()
        remove_empty_folders(checkout, path)


def remove_empty_folders(checkout: Checkout, path: str) -> None:
    for folder in reversed(parents(path)):
        try:
            (checkout.path / folder).rmdir()
        except OSError:  # not empty, or not there
            break


def finish_switch(checkout: Checkout, journal: dict) -> None:
    """Carry out a journal, from the start or from wherever an earlier run was cut short."""
    plan = {path: ([tuple(item) for item in fine], entry and tuple(entry)) for path, (fine, entry) in journal["plan"].items()}
    foreign = [path for path, (fine, entry) in plan.items() if not may_replace(checkout, path, fine, entry)]
    if foreign:
        raise Stop(
            INTERRUPTED,
            f"{checkout.path}: {journal['verb']} was cut short, and since then these files were changed: {some(foreign)}",
            "they are left as they are. Move your versions away, run `python apply.py apply` to complete it, and bring them back",
        )
    stage_files(checkout, plan)
    for path, (fine, entry) in sorted(plan.items(), key=lambda item: item[1][1] is not None):
        target = checkout.path / path
        found = on_disk(checkout.path, path)
        if same_entry(checkout, found, entry):
            continue
        if not may_replace(checkout, path, fine, entry):
            raise Stop(
                INTERRUPTED,
                f"{target} was changed while apply.py was at work; it is left as it is",
                "move your version away and run `python apply.py apply` to complete the switch",
            )
        if entry is None:
            target.unlink()
            remove_empty_folders(checkout, path)
        else:
            os.replace(checkout.path / temp_name(path), target)
    unstage_files(checkout, plan)
    git = checkout.git
    for _ in range(50):  # a git started by a killed apply.py may still be at its work
        if not (git.git_dir / "index.lock").exists():
            break
        time.sleep(0.1)
    git("update-index", "-z", "--index-info", data=index_lines({path: entry for path, (_, entry) in plan.items()}))
    move_refs(checkout, journal)
    git("update-index", "-q", "--refresh", ok=(0, 1))
    if journal["record"]:
        write_file(checkout.own_folder / "record.json", json.dumps(journal["record"], indent=1).encode())
        (checkout.own_folder / "journal.json").unlink()
    else:
        (checkout.own_folder / "record.json").unlink(missing_ok=True)
        (checkout.own_folder / "journal.json").unlink()


def may_replace(checkout: Checkout, path: str, fine: list, entry: tuple | None) -> bool:
    found = on_disk(checkout.path, path)
    return found is None or any(same_entry(checkout, found, item) for item in [*fine, entry] if item)


def move_refs(checkout: Checkout, journal: dict) -> None:
    """Branches and tags to where the journal wants them; one that someone else moved meanwhile stays."""
    git, orders = checkout.git, []
    current = dict(line.split(" ") for line in git("for-each-ref", "--format=%(refname) %(objectname)").splitlines())
    for ref, (old, new) in journal["refs"].items():
        found = current.get(ref)
        if found == new:
            continue
        if found not in (old, None):
            raise Stop(
                INTERRUPTED,
                f"{checkout.path}: {ref} is {found}, expected {old or 'nothing'} or {new}: someone moved it",
                "move it back and run `python apply.py apply` to complete the switch",
            )
        if new:
            orders.append(f"update {ref} {new} {found or '0' * 40}\n")
    if orders:
        git("update-ref", "--stdin", data="".join(orders).encode())
    if journal["head"].startswith("refs/"):
        git("symbolic-ref", "-m", f"era: {journal['verb']}", "HEAD", journal["head"])
    else:
        git("update-ref", "--no-deref", "-m", f"era: {journal['verb']}", "HEAD", journal["head"])
    gone = [f"delete {ref} {current[ref]}\n" for ref, (_, new) in journal["refs"].items() if not new and ref in current]
    if gone:  # last: HEAD may have been on it
        git("update-ref", "--stdin", data="".join(gone).encode())


def resume(checkout: Checkout, held: set[Path]) -> None:
    """Complete what an earlier run began, in this checkout and in those that were to change with it."""
    for other in checkout.journal["together"]:
        path = Path(other)
        if path != checkout.path and find_git_dir(path):
            with contextlib.nullcontext() if path in held else lock_checkout(path, given=False):
                mate = look(path.name, path, given=False)
                if mate.journal:
                    finish_switch(mate, mate.journal)
                    say(f"{mate.journal['name']}: completed the {mate.journal['verb']} that was cut short")
    unfinished.advice = "run `python apply.py apply` again to complete the switch; nothing is lost"
    finish_switch(checkout, checkout.journal)
    unfinished.advice = ""
    say(f"{checkout.name}: completed the {checkout.journal['verb']} that was cut short")


def verify_checkout(checkout: Checkout, tree: Tree, carried: list[str]) -> int:
    """Read every file of the result again. The count is what `verified` reports."""
    wrong = [path for path in edits(checkout, tree) if path not in carried]
    if wrong:
        raise Stop(
            WRONG_BASE,
            f"{checkout.path}: after the switch these files are not what they should be: {some(wrong)}",
            "was something else writing there? `python apply.py status` shows the state",
        )
    return len(tree) - len(carried)


@dataclasses.dataclass
class Job:
    """What apply is about to do to one checkout."""

    up: Upstream
    label: str
    checkout: Checkout
    kind: str  # "none", "fresh" or "switch"
    message: str = ""
    source: Source | None = None
    overlay: Overlay | None = None
    built: Built | None = None
    plan: dict = dataclasses.field(default_factory=dict)
    refs: dict = dataclasses.field(default_factory=dict)
    record: dict = dataclasses.field(default_factory=dict)
    carried: list[str] = dataclasses.field(default_factory=list)
    verified: int = 0

    @property
    def title(self) -> str:
        return f"{self.up.name} {self.label}"

    @property
    def tag(self) -> str:
        return f"refs/tags/upstream/{self.label}"


def wished_kind(wish: str | None) -> str | None:
    if wish in (None, "git", "pypi"):
        return wish
    return "git" if Path(wish).expanduser().is_dir() else "pypi"


def plan_apply(run: Run, up: Upstream, checkout: Checkout) -> Job:
    """Decide, build and check; nothing outside of the cache is written here."""
    if checkout.given and not checkout.exists:
        raise Stop(
            WRONG_BASE,
            f"--checkout {checkout.path}: there is no such folder, or it is empty",
            "expected a git clone of the upstream; nothing was changed",
        )
    status = evaluate(up, checkout, run.version)
    label = run.version or (status.version if status.version in up.versions else up.default)
    job = Job(up, label, checkout, "fresh" if status.state == "absent" else "switch")
    if status.state == "wrong-base":
        raise Stop(
            WRONG_BASE,
            f"{checkout.path}: {status.note}",
            *([] if checkout.git else ["expected a clone of the upstream repository, with its .git, as the folder itself"]),
            f"to get there: git -C {checkout.path} checkout {up.version(label).commit}"
            if checkout.git
            else f"move the folder away and run `python apply.py apply {up.name}` to get a fresh one",
            "nothing was changed",
        )
    record = in_force(checkout)
    wish = wished_kind(run.source)
    if record and status.state != "stale" and wish in (None, record["source"]):
        kept = [*status.files, *(f"commit {commit[:12]}" for commit in status.commits)]
        job.kind = "none"
        job.message = f"already applied ({record['source']}, {record['base'][:12]}), nothing to do" + (
            f"; your edits are kept: {some(kept)}" if kept else ""
        )
        if label != up.default and not run.version:
            job.message += f"; {up.default} is the default now, --version {up.default} switches to it"
        return job
    if not record and status.files:
        raise Stop(
            LOCAL,
            f"{checkout.path} has local edits on {status.version}: {some(status.files)}",
            *crlf_hint(checkout, status.files, checkout.git.tree(checkout.head)),
            f"commit them to a branch of yours or stash them (`git -C {checkout.path} stash`), then run the command again. Nothing was changed",
        )
    recorded = "git" if checkout.given else (checkout.record or {}).get("source") if status.version == label else None
    job.overlay = read_overlay(up.name, label)
    job.source = find_source(run.cache, up, up.version(label), run.source, checkout.git, recorded)
    job.built = build(up, label, job.overlay, job.source)
    job.record = make_record(job, record)
    if job.kind == "switch":
        plan_refs(job, record, status)
        job.plan = plan_switch(checkout, checkout.git.tree(checkout.head), job.built.tree)
        job.carried = [path for path in status.files if path not in job.plan and not status.commits]
    return job


def make_record(job: Job, record: dict | None) -> dict:
    checkout = job.checkout
    return {
        "format": FORMAT,
        "version": job.label,
        "source": job.source.kind,
        "base": job.source.base,
        "tip": job.built.tip,
        "digest": job.overlay.digest(job.source.base),
        "inputs": {path: [digest] for path, digest in job.overlay.inputs.items()},
        "skipped": job.built.skipped,
        "before": record["before"] if record else checkout.ref or checkout.head,
        "made": record["made"] if record else [],
    }


def plan_refs(job: Job, record: dict | None, status: Status) -> None:
    """Branch and tag of the new state; commits that only `era` holds are never dropped."""
    checkout, tip, base = job.checkout, job.built.tip, job.source.base
    if checkout.given and base != (record["base"] if record else checkout.head):
        raise Stop(
            WRONG_BASE,
            f"{checkout.path} stands on {record['base'] if record else checkout.head}, expected {base}",
            f"to get there: python apply.py revert {job.up.name} --checkout {checkout.path}, then git -C {checkout.path} checkout {base}",
            "nothing was changed",
        )
    era = checkout.refs.get(BRANCH)
    ours = [tip, base, checkout.record["tip"], None] if checkout.record else [None]
    moved = record is not None and checkout.head != record["tip"]  # the user committed on era
    if moved and checkout.git("rev-parse", f"{checkout.head}^{{tree}}").strip() == tree_id(job.built.tree):
        job.refs[f"refs/heads/era-backup-{checkout.head[:12]}"] = (None, checkout.head)
        ours.append(checkout.head)
    elif moved or era not in ours:
        raise Stop(
            LOCAL,
            f"{checkout.path}: the branch era holds commits that are not ours: {some(status.commits or [era])}",
            f"turn them into patches with `python apply.py export {job.up.name}`, or keep them under another name with",
            f"`git -C {checkout.path} branch -m era my-work` and check out {base[:12]}. Nothing was changed",
        )
    job.refs[BRANCH] = (era, tip)
    found = checkout.refs.get(job.tag)
    if found is None or job.tag in job.record["made"]:
        job.refs[job.tag] = (found, base)
        job.record["made"] = sorted({*job.record["made"], job.tag})


def make_fresh(job: Job) -> Path:
    """The whole checkout beside its place; the rename that brings it there is the last step."""
    path = job.checkout.path
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.new-*"):  # ours: we hold the lock, so whoever made it is dead
        shutil.rmtree(old)
    part = path.parent / f".{path.name}.new-{os.getpid()}"
    try:
        fill_fresh(job, part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return part


def fill_fresh(job: Job, part: Path) -> None:
    built, cache = job.built, job.source.git
    init_repository(part, bare=False)
    git_dir = part / ".git"
    git = Git(git_dir, part)
    # Bytes are bytes here, whatever the user's configuration says about line ends and filters.
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text("* -text -ident -filter -working-tree-encoding !eol\n")
    (git_dir / "info" / "exclude").write_text("".join(f"{pattern}\n" for pattern in JUNK_PATTERNS))
    with open(git_dir / "config", "a", encoding="utf-8") as config:
        config.write("[core]\n\tautocrlf = false\n\tsafecrlf = false\n")
        config.write(f'[remote "origin"]\n\turl = {job.up.url}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n')
    git.import_objects(cache, cache("rev-list", "--objects", "--no-walk", job.source.base, *built.commits))
    add_shallow(git, job.source.base)
    git("update-ref", "--stdin", data=f"create {BRANCH} {built.tip}\ncreate {job.tag} {job.source.base}\n".encode())
    git("symbolic-ref", "HEAD", BRANCH)
    git("read-tree", "--reset", "-u", built.tip)
    job.record.update(before=job.source.base, made=[job.tag])
    write_file(git_dir / "era" / "record.json", json.dumps(job.record, indent=1).encode())
    job.verified = verify_checkout(look(job.up.name, part, given=False), built.tree, [])


def bring_objects(job: Job) -> None:
    """The new commits, and the base where it is new there too."""
    git, cache, base = job.checkout.git, job.source.git, job.source.base
    if git.commit(base):
        git.import_objects(cache, cache("rev-list", "--objects", job.built.tip, f"^{base}"))
    else:
        git.import_objects(cache, cache("rev-list", "--objects", "--no-walk", base, *job.built.commits))
        add_shallow(git, base)


def switch_all(jobs: list[tuple[Checkout, dict]]) -> None:
    """Write all journals and all new contents, then carry them out. Up to the first replaced file, all is undone."""
    begun = []
    try:
        for checkout, order in jobs:
            begun.append((checkout, order["plan"]))
            order["journal"] = begin_switch(checkout, together=[str(mate.path) for mate, _ in jobs], **order)
        for checkout, order in jobs:
            stage_files(checkout, order["plan"])
    except BaseException:
        for checkout, plan in begun:
            with contextlib.suppress(OSError):
                unstage_files(checkout, plan)
                (checkout.own_folder / "journal.json").unlink(missing_ok=True)
        raise
    unfinished.advice = "run `python apply.py apply` to complete the switch; nothing is lost"
    for checkout, order in jobs:
        finish_switch(checkout, order["journal"])
    unfinished.advice = ""


class Unfinished:
    """What to do after an end right now; empty while an end leaves everything as it was."""

    advice = ""


unfinished = Unfinished()


# ---------------------------------------------------------------------------------------------------------------------
# Verbs
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """One call of apply.py."""

    verb: str
    upstreams: dict[str, Upstream]
    names: list[str]
    paths: list[str]
    cache: Cache
    checkouts: Path
    checkout: Path | None
    version: str | None
    source: str | None
    dry_run: bool
    options: argparse.Namespace
    result: dict = dataclasses.field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.checkout or self.checkouts / name

    def look(self, name: str) -> Checkout:
        return look(name, self.path(name), given=self.checkout is not None)

    def each(self):
        for name in self.names:
            yield self.upstreams[name], self.look(name)

    @contextlib.contextmanager
    def held(self):
        """The locks of all checkouts of this run, taken in one order so that two runs cannot block each other."""
        with contextlib.ExitStack() as stack:
            paths = sorted({self.path(name) for name in self.names})
            for path in [] if self.dry_run else paths:
                stack.enter_context(lock_checkout(path, given=self.checkout is not None))
            yield set(paths)


def refuse_interrupted(checkout: Checkout) -> None:
    if checkout.journal:
        raise Stop(
            INTERRUPTED,
            f"{checkout.path}: an earlier {checkout.journal['verb']} was cut short",
            f"run `python apply.py apply {checkout.name}` first: it completes what was begun. Nothing was changed",
        )


def verb_fetch(run: Run) -> int:
    for name in run.names:
        up = run.upstreams[name]
        label = run.version or up.default
        version = up.version(label)
        run.result[name] = {"version": label, "commit": version.commit, "fetched": False}
        if run.dry_run:
            say(f"{name} {label}: would fetch {version.commit[:12]} from {up.url}, unless the cache {run.cache.root} has it")
            continue
        repair_cache(run.cache, up)
        source = find_source(run.cache, up, version, run.source, None, None)
        origin = "fetched" if source.fresh else "in the cache"
        say(f"{name} {label}: {origin} and verified ({source.kind}, {source.base[:12]})")
        run.result[name].update(source=source.kind, commit=source.base, fetched=source.fresh)
    return OK


def repair_cache(cache: Cache, up: Upstream) -> None:
    """Throw a damaged cache repository away: it holds nothing that cannot be fetched again."""
    with cache.lock(up.name):
        git = cache.repository(up.name)
        if git.run("fsck", "--no-dangling", "--no-progress", ok=tuple(range(256))).returncode:
            say(f"{up.name}: the cache {git.git_dir} is damaged: it is thrown away")
            shutil.rmtree(git.git_dir)


def verb_apply(run: Run) -> int:
    with run.held() as held:
        for _, checkout in run.each():
            if checkout.journal and run.dry_run:
                refuse_interrupted(checkout)
            if checkout.journal:
                resume(checkout, held)
        jobs = [plan_apply(run, up, checkout) for up, checkout in run.each()]
        if run.dry_run:
            for job in jobs:
                say(f"{job.title}: " + (job.message or f"would be applied: {describe(job)}; nothing was changed"))
                run.result[job.up.name] = {"version": job.label, "action": job.kind}
            return OK
        carry_out(jobs)
        for job in jobs:
            if job.kind == "switch":
                fresh_look = run.look(job.up.name)
                job.verified = verify_checkout(fresh_look, job.built.tree, job.carried)
            report(run, job)
    return OK


def carry_out(jobs: list[Job]) -> None:
    made = []
    try:
        for job in jobs:
            if job.kind == "fresh":
                made.append((make_fresh(job), job.checkout.path))
            elif job.kind == "switch":
                bring_objects(job)
        switch_all([(job.checkout, apply_order(job)) for job in jobs if job.kind == "switch"])
        unfinished.advice = "run `python apply.py apply` to complete it; nothing is lost"
        for part, path in made:
            part.rename(path)
        unfinished.advice = ""
    finally:
        for part, _ in made:
            shutil.rmtree(part, ignore_errors=True)


def apply_order(job: Job) -> dict:
    return {"verb": "apply", "plan": job.plan, "refs": job.refs, "head": BRANCH, "record": job.record}


def describe(job: Job) -> str:
    built = job.built
    text = f"{count(len(built.patches), 'patch', 'es')} ({count(built.changed_lines, 'line')}), {count(built.new_files, 'new file')}"
    if built.skipped:
        text += f"; skipped, as the source package lacks their files: {some(built.skipped)}"
    return text


def report(run: Run, job: Job) -> None:
    run.result[job.up.name] = {"version": job.label, "action": job.kind, "path": str(job.checkout.path)}
    if job.kind == "none":
        say(f"{job.title}: {job.message}")
        return
    origin = "fetched" if job.source.fresh else "from the cache"
    kept = f"; your edits are kept: {some(job.carried)}" if job.carried else ""
    say(
        f"{job.title}: {origin} ({job.source.kind}, {job.source.base[:12]}); applied {describe(job)}; verified {count(job.verified, 'file')} in {job.checkout.path}{kept}"
    )


def verb_status(run: Run) -> int:
    drift = False
    for up, checkout in run.each():
        if checkout.journal:  # perhaps only because another apply.py is at work right now
            with lock_checkout(checkout.path, checkout.given):
                checkout = run.look(up.name)
        status = evaluate(up, checkout, run.version)
        drift = drift or status.state in DRIFTED
        run.result[up.name] = {**dataclasses.asdict(status), "path": str(checkout.path)}
        if not run.options.json:
            say(status_line(up, checkout, status))
    return DRIFT if drift else OK


def status_line(up: Upstream, checkout: Checkout, status: Status) -> str:
    text = f"{up.name} {status.version}: {status.state}"
    if status.state not in ("absent", "wrong-base", "interrupted"):
        text += f" ({status.source}, {(status.commit or '')[:12]})"
    parts = [status.note] if status.note else []
    if status.files:
        parts.append(f"edited: {some(status.files)}")
    if status.commits:
        parts.append(f"{count(len(status.commits), 'commit')} of yours on top")
    if status.untracked:
        parts.append(f"{count(len(status.untracked), 'untracked file')}")
    return text + f" in {checkout.path}" + "".join(f"; {part}" for part in parts)


def applied_record(run: Run, up: Upstream, checkout: Checkout) -> dict | None:
    """The record of an applied overlay, None where there is none (absent or clean)."""
    refuse_interrupted(checkout)
    status = evaluate(up, checkout, run.version if checkout.git is None else None)
    if status.state == "wrong-base":
        raise Stop(WRONG_BASE, f"{checkout.path}: {status.note}", "nothing was changed")
    return in_force(checkout)


@contextlib.contextmanager
def snapshot(checkout: Checkout, files: list[str]):
    """The work tree's content of some paths on top of HEAD, as a tree; objects go to a folder that is thrown away."""
    objects = Path(checkout.git("rev-parse", "--git-path", "objects").strip())
    objects = objects if objects.is_absolute() else checkout.path / objects
    with tempfile.TemporaryDirectory(prefix="era-objects-") as folder:
        quoted = '"' + str(objects).replace("\\", "\\\\").replace('"', '\\"') + '"'
        git = checkout.git.with_env(GIT_OBJECT_DIRECTORY=folder, GIT_ALTERNATE_OBJECT_DIRECTORIES=quoted)
        changes: dict[str, Entry | None] = {}
        contents = []
        head = checkout.git.tree(checkout.head)
        for path in files:
            entry = on_disk(checkout.path, path)
            if (checkout.path / path).is_dir() and not (checkout.path / path).is_symlink():
                entry = None  # the file gave way to a folder
            elif entry is not None and entry[0] == "other":
                raise Stop(LOCAL, f"{checkout.path / path} is no plain file, so it cannot be saved", "move it away; nothing was changed")
            if entry is not None:
                target = checkout.path / path
                contents.append(os.fsencode(os.readlink(target)) if entry[0] == "120000" else target.read_bytes())
                entry = head[path] if path in head and same_entry(checkout, entry, head[path]) else (entry[0], blob_id(contents[-1]))
            changes[path] = entry
        git.write_blobs(contents)
        with scratch_index(git) as scratch:
            scratch("read-tree", checkout.head)
            scratch("update-index", "-z", "--index-info", data=index_lines(changes))
            yield scratch, scratch("write-tree").strip()


def git_diff(git: Git, old: str, new: str, *more: str) -> bytes:
    return git.run("diff", "--no-ext-diff", "--no-textconv", *more[: more.index("--")], old, new, *more[more.index("--") :]).stdout


def verb_diff(run: Run) -> int:
    shape = ["--stat"] if run.options.stat else ["--binary"]
    color = not run.options.json and sys.stdout.isatty()
    for up, checkout in run.each():
        record = applied_record(run, up, checkout)
        if checkout.git is None:
            raise Stop(WRONG_BASE, f"{checkout.path}: there is no checkout yet", f"run `python apply.py apply {up.name}` first")
        tip = record["tip"] if record else checkout.head
        flags = [*shape, f"--color={'always' if color else 'never'}", "--", *run.paths]
        if run.options.local:
            with snapshot(checkout, [*edits(checkout, checkout.git.tree(checkout.head)), *untracked(checkout)]) as (git, tree):
                out = git_diff(git, tip, tree, *flags)
        else:
            out = git_diff(checkout.git, record["base"] if record else tip, tip, *flags)
        run.result[up.name] = {"diff": out.decode("utf-8", "backslashreplace")}
        if not run.options.json:
            sys.stdout.flush()
            sys.stdout.buffer.write(out)
            sys.stdout.buffer.flush()
    return OK


def verb_revert(run: Run) -> int:
    with run.held():
        jobs = []
        for up, checkout in run.each():
            record = applied_record(run, up, checkout)
            if record is None:
                say(f"{up.name}: nothing to revert, no overlay is applied in {checkout.path}")
                run.result[up.name] = {"action": "none"}
                continue
            jobs.append((checkout, record, plan_revert(run, up, checkout, record)))
        if run.dry_run:
            for checkout, _, order in jobs:
                say(f"{checkout.name}: would change {count(len(order['plan']), 'file')} back; nothing was changed")
                run.result[checkout.name] = {"action": "none", "would_change": sorted(order["plan"])}
            return OK
        switch_all([(checkout, order) for checkout, _, order in jobs])
        for checkout, record, order in jobs:
            if checkout.given:
                shutil.rmtree(checkout.own_folder)
            after = run.look(checkout.name)
            verified = verify_checkout(after, after.git.tree(record["base"]), [])
            where = order["head"].removeprefix("refs/heads/")
            say(
                f"{checkout.name} {record['version']}: back on upstream {record['base'][:12]} ({where}); verified {count(verified, 'file')} in {checkout.path}"
            )
            run.result[checkout.name] = {"action": "reverted", "version": record["version"], "commit": record["base"]}
    return OK


def plan_revert(run: Run, up: Upstream, checkout: Checkout, record: dict) -> dict:
    git, base = checkout.git, record["base"]
    head_tree = git.tree(checkout.head)
    edited = edits(checkout, head_tree)
    mine = git("rev-list", f"{record['tip']}..{checkout.head}").split()
    keep = run.options.keep_edits
    if (edited or mine) and not keep:
        raise Stop(
            LOCAL,
            f"{checkout.path} has local edits: {some([*edited, *(f'commit {oid[:12]}' for oid in mine)])}",
            f"save them as a patch first: python apply.py revert {up.name} --keep-edits my-edits.patch. Nothing was changed",
        )
    refs: dict[str, tuple] = {BRANCH: (checkout.refs.get(BRANCH), None)}
    if checkout.refs.get(BRANCH) not in (record["tip"], checkout.head, None):
        raise Stop(
            LOCAL,
            f"{checkout.path}: the branch era was moved to {checkout.refs[BRANCH]}",
            f"check it out (git -C {checkout.path} checkout era) and run the command again. Nothing was changed",
        )
    if edited or mine:
        save_edits(run, checkout, record, edited, Path(keep))
    if mine:
        refs[f"refs/heads/era-backup-{checkout.head[:12]}"] = (None, checkout.head)
    head = record["before"] if checkout.refs.get(record["before"]) == base else base
    after = {**record, "tip": None}
    if checkout.given:
        refs.update({tag: (checkout.refs.get(tag), None) for tag in record["made"]})
        after = None
    plan = plan_switch(checkout, head_tree, git.tree(base), lose=edited)
    return {"verb": "revert", "plan": plan, "refs": refs, "head": head, "record": after}


def save_edits(run: Run, checkout: Checkout, record: dict, edited: list[str], target: Path) -> None:
    """The user's edits and commits as one patch on the overlay, proven to give them back."""
    staged, head = checkout.git.index(), checkout.git.tree(checkout.head)
    for path in edited:
        if staged.get(path) not in (head.get(path), on_disk(checkout.path, path)):
            raise Stop(
                LOCAL,
                f"{checkout.path}: {path} has staged content that is not in the file",
                f"run `git -C {checkout.path} add {path}` or unstage it, then run the command again. Nothing was changed",
            )
    if os.path.lexists(target):
        raise Stop(LOCAL, f"--keep-edits {target}: the file exists and is not overwritten", "give another name. Nothing was changed")
    with snapshot(checkout, edited) as (git, tree):
        saved = git_diff(git, record["tip"], tree, "--binary", "--full-index", "--no-renames", "--")
        git("read-tree", record["tip"])
        if saved:
            git("apply", "--cached", "-", data=saved)
        if git("write-tree").strip() != tree:
            raise Stop(LOCAL, f"{checkout.path}: the edits cannot be saved as a patch", "save them yourself. Nothing was changed")
    if run.dry_run:
        return
    write_file(target, saved)
    say(f"{checkout.name}: your edits are saved in {target}; `git apply {target}` on the applied overlay brings them back")


# ---------------------------------------------------------------------------------------------------------------------
# export: from an edited checkout back to patches/ and overlays/
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Layer:
    """One patch to be: what it is called and how it leaves the upstream files that it touches."""

    file: str | None
    message: str
    after: dict[str, Entry | None]


def verb_export(run: Run) -> int:
    differs = False
    for up, checkout in run.each():
        with contextlib.nullcontext() if run.options.check or run.dry_run else lock_checkout(checkout.path, checkout.given):
            record = applied_record(run, up, checkout)
            if record is None:
                raise Stop(
                    WRONG_BASE,
                    f"{checkout.path}: no overlay is applied there, so there is nothing to export",
                    f"run `python apply.py apply {up.name}` first; nothing was changed",
                )
            wanted, notes = export_files(up, checkout, record)
            present = project_files(up.name, record["version"])
            changes = {path: item for path, item in wanted.items() if present.get(path) != item}
            changes.update({path: None for path in present if path not in wanted})
            refuse_foreign(checkout, record, present, changes)
            if not run.options.check and not run.dry_run:
                write_export(checkout, record, changes, wanted)
        differs = differs or bool(changes)
        run.result[up.name] = {"version": record["version"], "changes": sorted(changes), "notes": notes}
        for note in notes:
            say(f"{up.name}: {note}")
        verb = "differs" if run.options.check else "would change" if run.dry_run else "written"
        for path in sorted(changes):
            say(f"{up.name}: {'removed' if changes[path] is None and verb == 'written' else verb}: {path}")
        if not changes:
            say(f"{up.name} {record['version']}: patches/ and overlays/ equal the checkout {checkout.path}")
    return DRIFT if differs and run.options.check else OK


def project_files(name: str, label: str) -> dict[str, Content]:
    """Patches and overlay files as they are now, with their modes."""
    found = {}
    folder = patch_folder(name, label)
    for file in patch_names(folder):
        found[f"patches/{name}/{label}/{file}"] = (MODES[0], (folder / file).read_bytes())
    for path, item in read_overlay_files(name).items():
        found[f"overlays/{name}/{path}"] = item
    return found


def refuse_foreign(checkout: Checkout, record: dict, present: dict, changes: dict) -> None:
    """Never write over a patch or overlay file that changed since the checkout was made from it."""
    known = record["inputs"]
    foreign = [path for path in changes if path in present and hashlib.sha256(present[path][1]).hexdigest() not in known.get(path, ())]
    if foreign:
        raise Stop(
            LOCAL,
            f"changed in this project since {checkout.path} was made from it: {some(sorted(foreign))}",
            f"export would overwrite that. Run `python apply.py apply {checkout.name}` first, or move your change away; nothing was changed",
        )


def export_files(up: Upstream, checkout: Checkout, record: dict) -> tuple[dict[str, Content], list[str]]:
    git, label = checkout.git, record["version"]
    base = git.tree(record["base"])
    new = [path for path in untracked(checkout) if path not in base]
    notes = [f"left out, as it is no small text file: {path}" for path in new if not looks_like_source(checkout.path / path)]
    new = [path for path in new if looks_like_source(checkout.path / path)]
    edited = edits(checkout, git.tree(checkout.head))
    with snapshot(checkout, sorted({*edited, *new})) as (scratch, tree):
        final = scratch.tree(tree)
        layers = read_layers(git, record, checkout.head, base)
        fold_edits(layers, base, final, notes)
        files = write_layers(scratch, up, label, record, layers)
        added = {path: entry for path, entry in final.items() if path not in base}
        for path, (mode, _) in added.items():
            check_path(path, str(checkout.path), LOCAL)
            if mode not in MODES:
                raise Stop(LOCAL, f"{checkout.path / path} is no plain file, so it cannot become an overlay file", "nothing was changed")
        blobs = scratch.blobs({oid for _, oid in added.values()})
    files.update({f"overlays/{up.name}/{path}": (mode, blobs[oid]) for path, (mode, oid) in added.items()})
    return files, notes


def looks_like_source(path: Path) -> bool:
    info = path.lstat()
    return stat.S_ISREG(info.st_mode) and info.st_size <= MAX_EXPORT and b"\0" not in path.read_bytes()


def read_layers(git: Git, record: dict, head: str, base: dict) -> list[Layer]:
    """The commits on the base, each as what it does to upstream files."""
    layers, before = [], record["base"]
    for row in git("rev-list", "--reverse", "--parents", f"{record['base']}..{head}").splitlines():
        commit, *above = row.split()
        if above != [before]:
            raise Stop(
                LOCAL,
                f"the commit {commit} on era is a merge or does not follow {before}",
                "make the history straight (git rebase) and run the command again; nothing was changed",
            )
        names = git("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, commit).split("\0")[:-1]
        tree = git.tree(commit)
        message = git("cat-file", "commit", commit).split("\n\n", 1)[1]
        message, mark, file = message.rpartition("\nEra-Patch: ")
        layer = Layer(
            file.strip() if mark else None,
            message.strip("\n") if mark else file.strip("\n"),
            {name: tree.get(name) for name in names if name in base},
        )
        if layer.after:
            layers.append(layer)
        before = commit
    return layers


def fold_edits(layers: list[Layer], base: dict, final: dict, notes: list[str]) -> None:
    """Uncommitted edits of upstream files go into the last patch that touches the file, or into a new one."""
    fresh = Layer(None, "Describe this change", {})
    for path, entry in base.items():
        owner = next((layer for layer in reversed(layers) if path in layer.after), None)
        if owner and owner.after[path] != final.get(path):
            owner.after[path] = final.get(path)
            notes.append(f"the edit of {path} goes into {owner.file or 'the new patch of your commit'}")
        elif owner is None and entry != final.get(path):
            fresh.after[path] = final.get(path)
            notes.append(f"the edit of {path} goes into a new patch; fill in its header")
    if fresh.after:
        layers.append(fresh)


def write_layers(git: Git, up: Upstream, label: str, record: dict, layers: list[Layer]) -> dict[str, Content]:
    """The patch files. Numbers are given anew, without gaps; patches that this source had to skip stay as they are."""
    bodies: list[Content] = []
    folder = patch_folder(up.name, label)
    for file in record["skipped"]:
        bodies.append((file, (folder / file).read_bytes()))
    git("read-tree", record["base"])
    before = git("write-tree").strip()
    fresh = []
    for layer in layers:
        git("update-index", "-z", "--index-info", data=index_lines(layer.after))
        tree = git("write-tree").strip()
        text = format_patch(git, layer, before, tree)
        before = tree
        if text:
            (bodies if layer.file else fresh).append((layer.file or slug(layer.message), text))
    bodies.sort()
    bodies += [(f"0000-{name}.patch", text) for name, text in fresh]
    return {f"patches/{up.name}/{label}/{number:04d}{file[4:]}": (MODES[0], text) for number, (file, text) in enumerate(bodies, 1)}


def slug(message: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", message.split("\n")[0].lower()).strip("-")[:50] or "change"


def format_patch(git: Git, layer: Layer, before: str, after: str) -> bytes:
    flags = ["--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--diff-algorithm=myers", "--unified=3"]
    flags += ["--inter-hunk-context=0", "--indent-heuristic", "--src-prefix=a/", "--dst-prefix=b/"]
    diff = git.run("diff-tree", "-r", "-p", *flags, before, after).stdout
    if not diff:
        return b""
    subject, _, body = layer.message.partition("\n")
    missing = [field for field in FIELDS if not re.search(rf"^{field}:", body, re.M)]
    body = "\n".join([*([body.strip("\n")] if body.strip() else []), *(f"{field}: {PLACEHOLDER}" for field in missing)])
    head = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR[0]} <{AUTHOR[1]}>\nDate: {DATE_MAIL}\nSubject: [PATCH] {subject}\n\n{body}\n\n"
    patch = head.encode() + diff
    PatchReader(f"the patch {subject!r}", patch).read()  # what we write, we can read; binary edits end here
    return patch


def write_export(checkout: Checkout, record: dict, changes: dict, wanted: dict) -> None:
    """The record first learns what is coming, so that an export cut short can simply be run again."""
    hashes = {path: hashlib.sha256(content).hexdigest() for path, (_, content) in wanted.items()}
    record_path = checkout.own_folder / "record.json"
    known = {
        path: sorted({*record["inputs"].get(path, ()), *([hashes[path]] if path in hashes else [])})
        for path in {*record["inputs"], *hashes}
    }
    if not changes:
        return
    write_file(record_path, json.dumps({**record, "inputs": known}, indent=1).encode())
    unfinished.advice = "the export is half-way: run it again"
    for path, item in changes.items():
        if item is not None:
            write_file(ROOT / path, item[1], 0o755 if item[0] == "100755" else 0o644)
    for path, item in changes.items():
        if item is None:
            (ROOT / path).unlink()
            with contextlib.suppress(OSError):
                (ROOT / path).parent.rmdir()
    write_file(record_path, json.dumps({**record, "inputs": {path: [digest] for path, digest in hashes.items()}}, indent=1).encode())
    unfinished.advice = ""


# ---------------------------------------------------------------------------------------------------------------------
# port: how each patch would fare on another upstream revision
# ---------------------------------------------------------------------------------------------------------------------

RESULTS = ("already upstream", "clean", "offset", "conflict", "target gone")  # a patch gets the last of its files' results


def verb_port(run: Run) -> int:
    bad = False
    for name in run.names:
        up = run.upstreams[name]
        label = run.version or up.default
        onto = run.options.onto
        source = find_source(run.cache, up, up.version(label), None, run.look(name).git, None)
        overlay = read_overlay(name, label)
        target = find_target(run, up, onto)
        rows = port_overlay(up, overlay, source, target)
        say(f"{name}: {label} ({source.base[:12]}) onto {onto} ({target.base[:12]})")
        for row in rows:
            say(f"  {row['patch']}: {row['result']}")
            for item in row["files"]:
                if item["detail"]:
                    say("".join(f"      {line}\n" for line in item["detail"]).rstrip("\n"))
        bad = bad or any(row["result"] in RESULTS[3:] for row in rows)
        run.result[name] = {"version": label, "onto": onto, "commit": target.base, "patches": rows}
    return CONFLICT if bad else OK


def find_target(run: Run, up: Upstream, onto: str) -> Source:
    """The revision to port onto. Unless it is a pinned version it is not verified, only read."""
    if onto in up.versions:
        return find_source(run.cache, up, up.version(onto), run.source, None, None)
    check_pattern("--onto", onto, r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a version, tag, branch or commit")
    path = Path(run.source).expanduser().resolve() if run.source not in (None, "git", "pypi") else None
    with run.cache.lock(up.name):
        git = run.cache.repository(up.name)
        if path and path.is_file():
            return Source("pypi", store_files(git, unpack(path), None, f"{onto}\n"), git, (), True)
        into = f"refs/onto/{onto}"
        if run.cache.offline:
            found = git.commit(into)
            if not found:
                raise Stop(SOURCE, f"{up.name} {onto} is not in the cache, and --offline forbids to fetch it")
            return Source("git", found, git, (), False)
        names = [onto] if re.fullmatch(r"[0-9a-f]{40}", onto) else [f"refs/tags/{onto}", f"refs/heads/{onto}"]
        for name in names:
            said = fetch_ref(git, str(path or up.url), name, into)
            if not said:
                return Source("git", git.commit(into), git, (), True)
        raise Stop(SOURCE, f"{path or up.url} has no version, tag, branch or commit {onto!r}", f"git said: {said}")


def port_overlay(up: Upstream, overlay: Overlay, source: Source, target: Source) -> list[dict]:
    patches, skipped = select_patches(overlay, source.lacks)
    paths = patched_paths(patches)
    base, onto = source.git.tree(source.base), target.git.tree(target.base)
    rows = []
    for path in sorted(overlay.files.keys() & onto.keys()):
        detail = [f"{path}: upstream has a file of this name there"]
        rows.append(
            {
                "patch": f"overlays/{up.name}",
                "result": "conflict",
                "files": [{"path": path, "result": "conflict", "hunk": None, "detail": detail}],
            }
        )
    known = read_contents(source.git, base, paths)
    current = read_contents(target.git, onto, paths)
    for patch in patches:
        items = []
        for diff in patch.diffs:
            before = known.get(diff.path)
            after = apply_diff(diff, before)
            result, hunk, detail, moved = port_file(diff, before, after, current.get(diff.path), onto)
            items.append({"path": diff.path, "result": result, "hunk": hunk, "detail": detail})
            for state, value in ((known, after), (current, moved)):
                state.pop(diff.path, None)
                if value is not None:
                    state[diff.path] = value
        rows.append({"patch": patch.file, "result": max((item["result"] for item in items), key=RESULTS.index), "files": items})
    rows += [
        {
            "patch": file,
            "result": "target gone",
            "files": [
                {
                    "path": file,
                    "result": "target gone",
                    "hunk": None,
                    "detail": ["the source package at hand lacks its files: use --source git"],
                }
            ],
        }
        for file in skipped
    ]
    return rows


def port_file(diff: FileDiff, before, after, ours, onto: dict):
    """(result, hunk, report, content to go on with) for one file of one patch."""
    if ours is None:
        if after is None:
            return "already upstream", None, [], None
        same = [path for path in onto if path.rsplit("/", 1)[-1] == diff.path.rsplit("/", 1)[-1]]
        hint = f"; files of that name there: {some(same, 3)}" if same else ""
        return "target gone", None, [f"{diff.path}: no such file there{hint}"], None
    if ours == after:
        return "already upstream", None, [], ours
    try:
        return "clean", None, [], apply_diff(dataclasses.replace(diff, old_mode=None), ours)
    except Conflict as conflict:
        first = conflict
    if after is None:
        return "conflict", first.hunk, first.lines, ours
    merged = merge(ours[1], before[1], after[1])
    if merged == ours[1]:
        return "already upstream", None, [], ours
    lines = split_lines(ours[1])
    if merged is not None:
        moves = [f"{diff.path}: hunk {hunk.number} {place(lines, hunk)}" for hunk in diff.hunks]
        return "offset", None, moves, (after[0], merged)
    lost = [hunk for hunk in diff.hunks if not locate(lines, hunk)]
    report = [line for hunk in lost for line in explain(diff.path, lines, hunk, hunk.position).lines] or first.lines
    return "conflict", lost[0].number if lost else first.hunk, report, ours


def place(lines: list[bytes], hunk: Hunk) -> str:
    places = locate(lines, hunk)
    if not places:
        return "merges, though its context changed"
    at = min(places, key=lambda place: abs(place - hunk.position))
    return f"stands at line {at + 1} ({at - hunk.position:+d})"


def merge(ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
    """git's three-way merge of one file, None on a conflict."""
    with tempfile.TemporaryDirectory(prefix="era-merge-") as folder:
        names = []
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            Path(folder, name).write_bytes(content)
            names.append(name)
        command = ["git", *settings(QUIET_CONFIG), "merge-file", "-p", *names]
        env = {**environment(network=False), "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)}
        done = subprocess.run(command, capture_output=True, cwd=folder, env=env)
    return done.stdout if done.returncode == 0 else None


# ---------------------------------------------------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------------------------------------------------

VERBS = {
    "fetch": verb_fetch,
    "apply": verb_apply,
    "status": verb_status,
    "diff": verb_diff,
    "revert": verb_revert,
    "export": verb_export,
    "port": verb_port,
}
# Options that only some verbs know; the others are for all.
ONLY = {
    "stat": ("diff",),
    "local": ("diff",),
    "keep_edits": ("revert",),
    "check": ("export",),
    "onto": ("port",),
    "source": ("fetch", "apply", "port"),
    "version": ("fetch", "apply", "status", "port"),
    "dry_run": ("fetch", "apply", "revert", "export"),
}

HELP = """\
verbs (apply when none is given; NAME: all upstreams when none is given):
  fetch    bring the pinned source into the cache and verify it
  apply    build the patched tree, verify it, switch the checkout to it
  status   absent, clean, applied, stale, modified, wrong-base or interrupted
  diff     the overlay as git diff shows it: diff NAME [PATH ...] [--stat] [--local]
  revert   back to the pinned upstream, byte for byte
  export   make patches/ and overlays/ anew from an edited checkout
  port     try every patch on another upstream revision: port NAME --onto REF

exit codes:
  0 done, or nothing to do      4 conflict
  1 drift found                 5 local edits (or the file system) in the way
  2 usage                       6 source unavailable
  3 wrong base or hash          7 interrupted; apply completes it
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="apply.py",
        usage="python apply.py [VERB] [NAME ...] [options]",
        description="Put the ERA overlays onto pinned upstream sources, and take them off again.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="VERB NAME", help=argparse.SUPPRESS)
    add("--version", metavar="V", help="a version from upstreams.json instead of the default")
    add(
        "--source",
        metavar="git|pypi|PATH",
        help="where upstream comes from: its repository, its source package, or a local clone or .tar.gz",
    )
    add("--offline", action="store_true", help="never touch the network")
    add("--checkouts", metavar="DIR", default=None, help="where the checkouts are (default: checkouts/ beside apply.py)")
    add("--checkout", metavar="PATH", help="your own clone of the one upstream named")
    add("--cache", metavar="DIR", help="default: era-overlays in the user's cache folder")
    add("--dry-run", action="store_true", help="say what would be done, and do not do it")
    add("--json", action="store_true", help="one JSON object on stdout; lines for people go to stderr")
    add("-v", "--verbose", action="store_true", help="show the git commands")
    add("--stat", action="store_true", help="diff: the summary only")
    add("--local", action="store_true", help="diff: your own edits on top of the overlay")
    add("--keep-edits", metavar="FILE", help="revert: save local edits as a patch first")
    add("--check", action="store_true", help="export: change nothing, exit 1 when patches/ or overlays/ differ")
    add("--onto", metavar="REF", help="port: a version, tag, branch or commit")
    return parser


def default_cache() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "era-overlays"
    home = Path.home()
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "era-overlays"


def split_words(words: list[str], upstreams: dict[str, Upstream]) -> tuple[str, list[str], list[str]]:
    """Verb, names and (for diff) paths."""
    verb, rest = (words[0], words[1:]) if words and words[0] in VERBS else ("apply", words)
    names = []
    while rest and rest[0] in upstreams:
        names.append(rest.pop(0))
    if rest and (verb != "diff" or not names):
        known = [*upstreams, *(VERBS if not names and words[0] == rest[0] else ())]
        close = difflib.get_close_matches(rest[0], known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise Stop(USAGE, f"there is no upstream {rest[0]!r}", f"{hint}known upstreams: {', '.join(upstreams)}; verbs: {', '.join(VERBS)}")
    return verb, list(dict.fromkeys(names)) or list(upstreams), rest


def read_arguments(argv: list[str]) -> Run:
    parser = make_parser()
    after = argv[argv.index("--") + 1 :] if "--" in argv else []
    options = parser.parse_intermixed_args(argv[: argv.index("--")] if "--" in argv else argv)
    screen.verbose, screen.json = options.verbose, options.json
    upstreams = read_upstreams()
    verb, names, paths = split_words(options.words, upstreams)
    if after and verb != "diff":
        raise Stop(USAGE, f"{verb} takes no paths after --")
    for option, verbs in ONLY.items():
        if getattr(options, option) and verb not in verbs:
            raise Stop(USAGE, f"--{option.replace('_', '-')} does not go with {verb}", f"it is for {', '.join(verbs)}")
    if options.checkout and len(names) != 1:
        raise Stop(
            USAGE, "--checkout needs exactly one upstream", f"for example: python apply.py {verb} {names[0]} --checkout {options.checkout}"
        )
    if options.checkout and wished_kind(options.source) == "pypi":
        raise Stop(USAGE, "--source with a source package does not go with --checkout", "a clone stands on the commit of its repository")
    if verb == "port" and not options.onto:
        raise Stop(USAGE, "port needs --onto REF", f"for example: python apply.py port {names[0]} --onto main")
    if options.keep_edits and len(names) != 1:
        raise Stop(USAGE, "--keep-edits needs exactly one upstream", f"for example: python apply.py revert {names[0]} --keep-edits FILE")
    for name in names:
        if options.version:
            upstreams[name].version(options.version)
    cache = Cache(absolute(options.cache) if options.cache else default_cache(), options.offline)
    checkouts = absolute(options.checkouts) if options.checkouts else ROOT / "checkouts"
    checkout = absolute(options.checkout) if options.checkout else None
    return Run(
        verb, upstreams, names, [*paths, *after], cache, checkouts, checkout, options.version, options.source, options.dry_run, options
    )


def absolute(path: str) -> Path:
    return Path(path).expanduser().resolve()


def show_stop(code: int, lines: tuple[str, ...]) -> int:
    print("error: " + "\n       ".join(lines), file=sys.stderr, flush=True)
    return code


def main(argv: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        if fcntl is None:
            raise Stop(USAGE, "apply.py needs a POSIX system: Linux, macOS, or WSL on Windows")
        run = read_arguments(argv)
        check_git()
        code = VERBS[run.verb](run)
        if run.options.json:
            print(json.dumps(run.result, indent=2, sort_keys=True), flush=True)
        return code
    except GitFailed as stop:
        return show_stop(INTERRUPTED if unfinished.advice else stop.code, (*stop.lines, unfinished.advice or "nothing was changed"))
    except Stop as stop:
        return show_stop(stop.code, stop.lines)
    except KeyboardInterrupt:
        if unfinished.advice:
            return show_stop(INTERRUPTED, ("stopped half-way", unfinished.advice))
        return show_stop(130, ("stopped; nothing was changed",))
    except BrokenPipeError:  # the reader of our output went away, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        after = unfinished.advice or "nothing was changed"
        return show_stop(INTERRUPTED if unfinished.advice else LOCAL, (what, f"the file system did not let apply.py go on; {after}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
