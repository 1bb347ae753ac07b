"""What must be true of a checkout, worked out from dictionaries, hashlib and plain git, never by the engine.

A `Want` says how a verb must end: the exit codes of a refusal (none: it must complete), and the tree to come.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
import subprocess
from pathlib import Path

from kit import FIRST, SECOND

ERA = "refs/heads/era"
USER = re.compile(rb"user-\d+")  # stands in everything that the user writes
JUNK = re.compile(r"(^|/)__pycache__/|\.pyc$")
PACKED = {path: text for path, text in FIRST.items() if not path.startswith("extra/")}
UPSTREAM = {
    ("alpha", "v1", "git"): FIRST,
    ("alpha", "v1", "pypi"): PACKED,
    ("alpha", "v2", "git"): SECOND,
    ("beta", "b1", "git"): {"main.py": "print(1)\nprint(2)\nprint(3)\n"},
}
DEFAULT = {"alpha": "v1", "beta": "b1"}


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entries(files: dict[str, str]) -> dict[str, tuple[str, bytes]]:
    return {path: ("100755" if path.endswith(".sh") else "100644", text.encode()) for path, text in files.items()}


def ids(files: dict[str, tuple[str, bytes]]) -> dict[str, tuple[str, str]]:
    return {path: (mode, blob(content)) for path, (mode, content) in files.items()}


def above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def differing(old: dict, new: dict) -> set[str]:
    return {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


def read_folder(top: Path) -> dict[str, tuple[str, bytes, int]]:
    """Every file and link below a folder with mode, bytes and time; folders that hold nothing do not count."""
    found = {}
    for folder, folders, names in os.walk(top):
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            if "/.git/objects/" in path:  # named after what they hold
                found[os.path.relpath(path, top)] = ("100444", b"", 0)
                continue
            if stat.S_ISLNK(info.st_mode):
                item = ("120000", os.fsencode(os.readlink(path)), info.st_mtime_ns)
            else:
                with open(path, "rb") as data:
                    item = ("100755" if info.st_mode & stat.S_IXUSR else "100644", data.read(), info.st_mtime_ns)
            found[os.path.relpath(path, top)] = item
    return found


def read_files(top: Path) -> dict[str, tuple[str, bytes]]:
    return {path: item[:2] for path, item in read_folder(top).items()}


def clash(overlay, base) -> bool:
    """Whether a new file would take the place of an upstream file or folder."""
    folders = {folder for path in base for folder in above(path)}
    return any(
        path in base or path in folders or any(folder in base or folder in overlay for folder in above(path))
        for path in overlay
    )


@dataclasses.dataclass
class Record:
    """What the last completed verb left in a checkout."""

    label: str
    source: str
    base: str
    tip: str | None  # None after a revert
    inputs: dict  # patches and overlay files that it was made from
    before: str
    made: set[str]
    exported: object = None
    known: dict[str, set[bytes]] = dataclasses.field(
        default_factory=dict
    )  # what those held, and what exports wrote since

    def __post_init__(self) -> None:
        self.learn(self.inputs)

    def learn(self, inputs: dict) -> None:
        for path, item in inputs.items():
            self.known.setdefault(path, set()).add(item[1])


@dataclasses.dataclass
class Seen:
    """A checkout as the file system and plain git show it. `everything` is for comparing before with after."""

    everything: dict[str, tuple[str, bytes, int]]
    path: Path

    def __post_init__(self) -> None:
        own = {path[5:]: item[1] for path, item in self.everything.items() if path.startswith(".git/")}
        self.files = {path: item[:2] for path, item in self.everything.items() if not path.startswith(".git/")}
        self.config = {name: own.get(name) for name in ("config", "info/exclude", "info/attributes")}
        self.stash = own.get("logs/refs/stash", b"")
        self.records = [name for name in own if name.startswith("era/")]
        self.refs = dict(
            line.split(" ")[::-1] for line in own.get("packed-refs", b"").decode().splitlines() if line[0] not in "#^"
        )
        self.refs.update({name: item.decode().strip() for name, item in own.items() if name.startswith("refs/")})
        self.refs.pop("refs/remotes/origin/HEAD", None)
        head = own["HEAD"].decode().strip()
        self.ref = head[5:] if head.startswith("ref: ") else None
        self.head = self.refs.get(self.ref) if self.ref else head
        self.index, self.flags = {}, {}
        for row in plain(self.path, "ls-files", "-v", "--stage", "-z").split("\0")[:-1]:
            info, path = row.split("\t", 1)
            flag, mode, oid, stage = info.split()
            self.index[path] = (mode, oid) if stage == "0" else ("conflict", oid)
            self.flags[path] = flag

    def stands(self, path: str):
        """An entry as in a tree, None for nothing, "other" for a folder or whatever is behind a link."""
        if path in self.files:
            return (self.files[path][0], blob(self.files[path][1]))
        for folder in above(path):
            if folder in self.files:
                return "other" if self.files[folder][0] == "120000" else None
        return "other" if (self.path / path).is_dir() else None

    def edits(self, tree: dict) -> list[str]:
        changed = differing(self.index, tree)
        return sorted(changed | {path for path in tree if self.stands(path) != tree[path]})

    @property
    def untracked(self) -> list[str]:
        return sorted(path for path in self.files if path not in self.index and not JUNK.search(path))

    def in_the_way(self, old: dict, new: dict, paths: set[str], lose=()) -> bool:
        """Whether bringing these paths from old to new would touch what is neither."""
        for path in paths:
            fine = (old.get(path), new.get(path))
            if path in new and any(folder in self.files and (self.path / folder).is_file() for folder in above(path)):
                return True
            if path in lose and self.stands(path) != "other":
                fine += (self.stands(path), self.index.get(path))
            if self.stands(path) not in fine or self.index.get(path) not in fine:
                return True
        return False


def plain(folder: Path, *args: str, data: bytes | None = None, env: dict | None = None) -> str:
    done = subprocess.run(
        ["git", *args], cwd=folder, input=data, capture_output=True, env={**os.environ, **env} if env else None
    )
    assert done.returncode == 0, (args, done.stderr)
    return os.fsdecode(done.stdout)


@dataclasses.dataclass
class Want:
    """`codes`: how it must end, empty when it must complete; `may`: how it may be refused instead."""

    codes: set[int] = dataclasses.field(default_factory=set)
    may: set[int] = dataclasses.field(default_factory=set)
    action: str = "none"  # "fresh", "switch", "revert" or "none"
    old: dict = dataclasses.field(default_factory=dict)
    new: dict = dataclasses.field(default_factory=dict)
    paths: set[str] = dataclasses.field(default_factory=set)
    record: Record | None = None
    saves: bool = False  # --keep-edits has something to save


class Place:
    """One checkout, ours or the user's own clone, with what the model knows of it."""

    def __init__(self, world, name: str, path: Path, given: bool):
        self.world, self.name, self.path, self.given = world, name, path, given
        self.words = (name, "--checkout", str(path)) if given else (name,)
        self.record: Record | None = None

    def see(self) -> Seen | None:
        return Seen(read_folder(self.path), self.path) if (self.path / ".git").is_dir() else None

    def tree(self, commit: str) -> dict[str, tuple[str, str]]:
        known = self.world.trees
        if commit not in known:
            rows = plain(self.path, "ls-tree", "-r", "-z", commit).split("\0")[:-1]
            known[commit] = {row.split("\t", 1)[1]: tuple(row.split("\t")[0].split()[::2]) for row in rows}
        return known[commit]

    def holds(self, older: str, newer: str) -> bool:
        return (
            subprocess.run(
                ["git", "merge-base", "--is-ancestor", older, newer], cwd=self.path, capture_output=True
            ).returncode
            == 0
        )

    def applied(self, seen: Seen | None) -> Record | None:
        """The record, if the overlay is what HEAD stands on."""
        record = self.record
        if seen is None or not record or not record.tip or seen.head == record.base != record.tip:
            return None
        return record if self.holds(record.base if seen.ref == ERA else record.tip, seen.head) else None

    def state(self, seen: Seen | None, wish: str | None) -> tuple[str, str]:
        """The state and version that status must show."""
        record = self.record
        label = wish or (record.label if record else DEFAULT[self.name])
        if seen is None:
            return "absent", label
        if self.applied(seen):
            tree = self.tree(seen.head)
            if label != record.label or self.world.inputs(self.name, label) != record.inputs:
                return "stale", record.label
            return "modified" if seen.head != record.tip or seen.edits(tree) else "applied", record.label
        bases = {self.world.bases[key]: key[1] for key in self.world.bases if key[0] == self.name and key[2] == "git"}
        if record:
            bases.setdefault(record.base, record.label)
        if seen.head in bases and (wish in (None, bases[seen.head]) or not self.given):
            return "modified" if seen.edits(self.tree(seen.head)) else "clean", bases[seen.head]
        return "wrong-base", label

    def want_apply(self, seen: Seen | None, wish: str | None, source: str | None) -> Want:
        world, record = self.world, self.applied(seen)
        state, version = self.state(seen, wish)
        if state == "wrong-base":
            return Want({3})
        if record and state != "stale" and source in (None, record.source):
            return Want()
        label = wish or version
        want = Want(action="fresh" if seen is None else "switch")
        if seen and not record and state == "modified":
            want.codes.add(5)
        recorded = "git" if self.given else self.record.source if self.record and version == label else "git"
        kind = source or recorded
        if (self.name, label, kind) not in world.bases:
            if source == "pypi":
                return Want({6})
            kind = "git"
        base = world.bases[self.name, label, kind]
        want.new, codes = world.expected(self.name, label, kind)
        want.codes |= codes
        inputs = world.inputs(self.name, label)
        tip = world.tips.get((base, repr(sorted(inputs.items()))))
        made = set(self.record.made) if self.record else set()
        tag = f"refs/tags/upstream/{label}"
        if seen is None:
            want.record = Record(label, kind, base, tip, inputs, base, {tag})
            want.paths = set(want.new)
            return want
        before = record.before if record else seen.ref or seen.head
        want.record = Record(label, kind, base, tip, inputs, before, made | ({tag} if tag not in seen.refs else set()))
        if self.given and base != (record.base if record else seen.head):
            want.codes.add(3)
        want.old = self.tree(seen.head)
        want.paths = differing(want.old, want.new)
        if record and seen.head != record.tip:
            if want.paths:
                want.codes.add(5)
        elif seen.refs.get(ERA) not in ([tip, base, self.record.tip, None] if self.record else [None]):
            want.codes.add(5)
        if seen.in_the_way(want.old, want.new, want.paths):
            want.codes.add(5)
        return want

    def want_revert(self, seen: Seen | None, keep: Path | None) -> Want:
        record = self.applied(seen)
        if self.state(seen, None)[0] == "wrong-base":
            return Want({3})
        if not record:  # whoever asks for a patch of their edits must not believe that there is one
            return Want({5} if keep and seen and seen.edits(self.tree(seen.head)) else set())
        head = self.tree(seen.head)
        edited, mine = seen.edits(head), seen.head != record.tip
        want = Want(action="revert", old=head, new=self.tree(record.base), saves=bool(edited or mine))
        want.paths = differing(want.old, want.new) | set(edited)
        if seen.refs.get(ERA) not in (record.tip, seen.head, None):
            want.codes.add(5)
        if want.saves and not keep:
            want.codes.add(5)
        if want.saves and keep and (os.path.lexists(keep) or any(self.unsavable(seen, head, path) for path in edited)):
            want.codes.add(5)
        if seen.in_the_way(want.old, want.new, want.paths, lose=edited):
            want.codes.add(5)
        return want

    def unsavable(self, seen: Seen, head: dict, path: str) -> bool:
        """Staged bytes that are in no file, or a file that is behind a link."""
        return self.behind_link(seen, path) or seen.index.get(path) not in (head.get(path), seen.stands(path))

    def behind_link(self, seen: Seen, path: str) -> bool:
        return any(seen.files.get(folder, ("",))[0] == "120000" for folder in above(path))

    def behind_something(self, seen: Seen) -> bool:
        """Whether an edited path is behind a link now, so that there is no telling what its file is."""
        return any(self.behind_link(seen, path) for path in seen.edits(self.tree(seen.head)))

    def final(self, seen: Seen) -> dict[str, tuple[str, str]]:
        """The tree that export must hand on: HEAD with all edits and all new small text files."""
        found = dict(self.tree(seen.head))
        base = self.tree(self.record.base)
        for path in seen.edits(self.tree(seen.head)):
            found.pop(path, None)
            if seen.stands(path) not in (None, "other"):
                found[path] = seen.stands(path)
        for path in seen.untracked:
            mode, content = seen.files[path]
            if path in base or (mode != "120000" and b"\0" not in content):
                found[path] = seen.stands(path)
        return found

    def want_export(self, seen: Seen | None) -> tuple[Want, set[int]]:
        """How export ends, and how export --check may end where it is not refused."""
        record = self.applied(seen)
        if not record:
            return Want({3}), {0, 1}
        want, base = Want(new=self.final(seen)), self.tree(record.base)
        links = [path for path, entry in want.new.items() if entry[0] == "120000"]
        if self.behind_something(seen) or any(path not in base for path in links):
            want.codes.add(5)
        if any(path in base for path in links) or self.odd_commits(seen, base):
            want.codes.add(2)
        overlay = {path: entry for path, entry in want.new.items() if path not in base}
        if clash(overlay, base):
            want.codes.add(3)
        now = self.world.inputs(self.name, record.label)
        saved = self.world.committed
        foreign = {
            path for path in now if now[path][1] not in record.known.get(path, ()) or now[path] != saved.get(path)
        }
        for path in foreign:
            if path.startswith(f"overlays/{self.name}/"):
                inner = path.split("/", 2)[2]
                if overlay.get(inner) != (now[path][0], blob(now[path][1])):
                    want.codes.add(5)
        if foreign:  # patches, series and list may come out as they are
            want.may.add(5)
        expected, _ = self.world.expected(self.name, record.label, record.source)
        mark = (seen.head, want.new, now)
        if expected != want.new:
            check = {1}
        elif record.exported == mark or (record.exported is None and now == record.inputs and seen.head == record.tip):
            check = {0}
        else:
            check = {0, 1}
        return want, check

    def odd_commits(self, seen: Seen, base: dict) -> bool:
        """Whether a commit turns an upstream file into a link or brings back a deleted one: no patch can say that."""
        if seen.head == self.record.tip:
            return False
        for row in plain(
            self.path, "log", "--raw", "--no-renames", "--format=", f"{self.record.base}..{seen.head}"
        ).splitlines():
            info, path = row.split("\t")
            if path in base and (info.split()[1] == "120000" or info.split()[4] == "A"):
                return True
        return False

    def user_bytes(self, seen: Seen) -> set[bytes]:
        """The marks of all that the user wrote here: in files, the index, and commits of refs, HEAD and the stash."""
        starts = [*seen.refs.values(), seen.head, *re.findall(r"^\w+ (\w+)", seen.stash.decode(), re.M)]
        objects = self.world.reachable(self.path, frozenset(starts))
        objects = objects | {oid for _, oid in seen.index.values()}
        return self.world.marks(self.path, objects).union(*(USER.findall(item[1]) for item in seen.files.values()))


class World:
    """The project side: what stands in patches/ and overlays/, and what it must make of upstream."""

    def __init__(self, root: Path, bases: dict, effects: dict):
        self.root, self.bases = root, bases
        self.effects = effects  # (name, label) -> upstream path -> entry with bytes, None for a deletion
        self.trees: dict = {}
        self.tips: dict = {}
        self.known_marks: dict[str, set[bytes]] = {}
        self.known_reach: dict = {}
        self.commit()

    def commit(self) -> None:
        """What the project's own git has committed: export overwrites nothing else."""
        tops = ("patches", "overlays")
        self.committed = {f"{top}/{p}": item for top in tops for p, item in read_files(self.root / top).items()}

    def overlay(self, name: str) -> dict[str, tuple[str, bytes]]:
        return {path: item for path, item in read_files(self.root / "overlays" / name).items() if not JUNK.search(path)}

    def inputs(self, name: str, label: str) -> dict[str, tuple[str, bytes]]:
        found = {f"overlays/{name}/{path}": item for path, item in self.overlay(name).items()}
        patches = read_files(self.root / "patches" / name / label)
        found.update({f"patches/{name}/{label}/{path}": ("100644", item[1]) for path, item in patches.items()})
        found[f"overlays/{name}.list"] = ("100644", (self.root / f"overlays/{name}.list").read_bytes())
        return found

    def expected(self, name: str, label: str, kind: str) -> tuple[dict[str, tuple[str, str]], set[int]]:
        """The tree of upstream with everything of this project on it, or why there is none."""
        base = entries(UPSTREAM[name, label, kind])
        overlay, codes = self.overlay(name), set()
        if clash(overlay, base):
            codes.add(3)
        for path, (_, content) in self.inputs(name, label).items():
            if path.endswith(".patch"):
                lacking = {file.startswith(b"extra/") for file in re.findall(rb"^diff --git a/(.*) b/", content, re.M)}
                if kind == "pypi" and len(lacking) > 1:
                    codes.add(6)
        found = dict(base)
        for path, entry in self.effects[name, label].items():
            if kind == "pypi" and path.startswith("extra/"):
                continue
            found.pop(path, None)
            if entry:
                found[path] = entry
        return ids({**found, **overlay}), codes

    def reachable(self, path: Path, starts: frozenset) -> frozenset:
        if starts not in self.known_reach:
            args = ["rev-list", "--objects", "--no-object-names", "--stdin"]
            self.known_reach[starts] = frozenset(plain(path, *args, data="\n".join(starts).encode()).split())
        return self.known_reach[starts]

    def marks(self, path: Path, objects: frozenset) -> set[bytes]:
        fresh = sorted(objects - self.known_marks.keys())
        if fresh:
            names = "\n".join(fresh).encode()
            done = subprocess.run(
                ["git", "cat-file", "--batch"], cwd=path, input=names, capture_output=True, check=True
            )
            at = 0
            for oid in fresh:
                end = done.stdout.index(b"\n", at)
                size = int(done.stdout[at:end].split()[2])
                self.known_marks[oid] = set(USER.findall(done.stdout[end + 1 : end + 1 + size]))
                at = end + size + 2
        return set().union(*(self.known_marks[oid] for oid in objects))


def beside(folder: Path, scratch: Path) -> dict[str, str]:
    """An index and a place for objects of our own, so that looking changes nothing."""
    (scratch / "objects").mkdir(parents=True, exist_ok=True)
    (scratch / "index").unlink(missing_ok=True)
    objects = {
        "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(folder / ".git/objects"),
    }
    return {"GIT_INDEX_FILE": str(scratch / "index"), **objects}


def apply_with_git(folder: Path, scratch: Path, start: str, patch: bytes) -> str:
    """The tree that plain git makes of a commit and a patch."""
    env = beside(folder, scratch)
    plain(folder, "read-tree", start, env=env)
    if patch:
        plain(folder, "apply", "--cached", "-", data=patch, env=env)
    return plain(folder, "write-tree", env=env).strip()


def tree_with_git(folder: Path, scratch: Path, tree: dict[str, tuple[str, str]]) -> str:
    """The id that plain git gives a tree with these entries."""
    env = beside(folder, scratch)
    rows = "".join(f"{mode} {oid}\t{path}\0" for path, (mode, oid) in tree.items())
    plain(folder, "update-index", "-z", "--index-info", data=os.fsencode(rows), env=env)
    return plain(folder, "write-tree", "--missing-ok", env=env).strip()
