"""A checkout as it is found: what stands there, what apply.py wrote about it, and the state that follows.

Here too: Run, the one call of apply.py that is handed to every verb.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import stat
from pathlib import Path

from engine.common import INTERRUPTED, LOCAL, OK, SOURCE, WRONG_BASE, Stop, command, locked, scratch_folder, write_file
from engine.git import (
    MODES,
    QUIET_CONFIG,
    Entry,
    Git,
    Tree,
    blob_id,
    changed_paths,
    is_ancestor,
    scratch_index,
    sha256,
    unmarked_mode,
)
from engine.patches import DOT_GIT
from engine.project import JUNK_PATTERNS, Upstream, project_files, read_overlay
from engine.sources import Cache

BRANCH = "refs/heads/era"
LOCK_WAIT = 20.0  # seconds a second apply waits for the first one


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


# What apply.py wrote into .git/era, by type. A given clone may come with anything there, so it is read like any input.
JOURNAL = {"verb": str, "plan": dict, "flags": dict, "refs": dict, "from": str, "head": str, "together": list}
RECORD = {
    "version": str,
    "source": str,
    "base": str,
    "digest": str,
    "inputs": dict,
    "skipped": list,
    "before": str,
    "made": list,
}


def read_own(path: Path, shape: dict[str, type]) -> dict | None:
    """The journal or the record of a checkout, None where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, IsADirectoryError):
        found = None
    if (
        not has_shape(found, shape)
        or path.parent.is_symlink()
        or not (is_journal if shape is JOURNAL else is_record)(found)
    ):
        raise Stop(
            LOCAL,
            f"{path} was altered and cannot be read",
            "move it away to have this checkout treated as a plain clone",
        )
    return found


def has_shape(found: object, shape: dict[str, type]) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in shape.items())


def is_record(found: dict) -> bool:
    ids = [found["base"], *([found["tip"]] if found.get("tip") is not None else [])]
    files = all(re.fullmatch(r"[0-9]{4}-[A-Za-z0-9._-]+\.patch", str(file)) for file in found["skipped"])
    return "tip" in found and files and all(re.fullmatch("[0-9a-f]{40}", str(oid)) for oid in ids)


def is_journal(found: dict) -> bool:
    parts = [part for place in found["plan"] for part in place.split("/")]
    inside = not any(part in ("", ".", "..") or DOT_GIT.fullmatch(part) for part in parts)
    record = found.get("record")
    return inside and (has_shape(record, RECORD) and is_record(record) if record or found["verb"] == "apply" else True)


def write_record(folder: Path, record: dict) -> None:
    write_file(folder / "record.json", json.dumps(record, indent=1).encode())


def look(name: str, path: Path, given: bool) -> Checkout:
    found = Checkout(name, path, given)
    git_dir = find_git_dir(path) if found.exists else None
    if git_dir is None:
        return found
    found.git = git = Git(git_dir, path)
    found.journal = read_own(found.own_folder / "journal.json", JOURNAL)
    found.record = read_own(found.own_folder / "record.json", RECORD)
    found.refs = git.refs("refs/heads", "refs/tags/upstream")
    found.ref = git("symbolic-ref", "--quiet", "HEAD", ok=(0, 1)).strip() or None
    found.head = found.refs.get(found.ref) if found.ref else git.commit("HEAD")
    rows = git(
        "config", "--null", "--get-regexp", r"^(core\.(filemode|sparsecheckout|symlinks)|filter\..*)$", ok=(0, 1)
    )
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
    return found[1] == wanted[1] and {found[0], wanted[0]} <= loose_modes(checkout)


def loose_modes(checkout: Checkout) -> set[str]:
    """Those that the file system does not tell apart."""
    loose = set()
    if checkout.config.get("core.filemode") == "false":
        loose |= set(MODES)
    if checkout.config.get("core.symlinks") == "false":
        loose |= {"120000", "100644"}
    return loose


def mode_to_store(checkout: Checkout, found: str, known: Entry | None, content: bytes) -> str:
    """The mode of a file to save. Where the file system does not keep it, an edit of the content is no change of the mode."""
    if known and {found, known[0]} <= loose_modes(checkout):
        return known[0]
    return unmarked_mode(content) if found in MODES and checkout.config.get("core.filemode") == "false" else found


def edits(checkout: Checkout, tree: Tree) -> list[str]:
    """Paths of `tree` or of the index whose file or staged content is not the tree's. Hashes, never timestamps."""
    index = checkout.git.index()
    changed = changed_paths(index, tree)
    for path, entry in tree.items():
        if (
            entry[0] != "160000"
            and path not in changed
            and not same_entry(checkout, on_disk(checkout.path, path), entry)
        ):
            changed.add(path)
    if checkout.config.get("core.sparsecheckout") == "true" and any(
        not os.path.lexists(checkout.path / p) for p in tree
    ):
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


@contextlib.contextmanager
def snapshot(checkout: Checkout, files: list[str]):
    """The work tree's content of some paths on top of HEAD, as a tree; objects go to a folder that is thrown away."""
    objects = Path(checkout.git("rev-parse", "--git-path", "objects").strip())
    objects = objects if objects.is_absolute() else checkout.path / objects
    with scratch_folder("objects") as folder:
        quoted = '"' + str(objects).replace("\\", "\\\\").replace('"', '\\"') + '"'
        git = checkout.git.with_env(GIT_OBJECT_DIRECTORY=str(folder), GIT_ALTERNATE_OBJECT_DIRECTORIES=quoted)
        changes: dict[str, Entry | None] = {}
        contents = []
        head = checkout.git.tree(checkout.head)
        for path in files:
            entry = on_disk(checkout.path, path)
            if (checkout.path / path).is_dir() and not (checkout.path / path).is_symlink():
                entry = None  # the file gave way to a folder
            elif entry is not None and entry[0] == "other":
                raise Stop(
                    LOCAL,
                    f"{checkout.path / path} is no plain file, so it cannot be saved",
                    "move it away; nothing was changed",
                )
            if entry is not None:
                target = checkout.path / path
                contents.append(os.fsencode(os.readlink(target)) if entry[0] == "120000" else target.read_bytes())
                entry = (mode_to_store(checkout, entry[0], head.get(path), contents[-1]), blob_id(contents[-1]))
            changes[path] = entry
        git.write_blobs(contents)
        with scratch_index(git) as scratch:
            scratch("read-tree", checkout.head)
            scratch.stage(changes)
            yield scratch, scratch.write_tree()


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
    if not checkout.exists and os.path.lexists(checkout.path) and not checkout.path.is_dir():
        return Status("wrong-base", label, note="there is a file, or a link that leads nowhere, in its place")
    if not checkout.exists:
        return Status("absent", label)
    if checkout.git is None:
        return Status("wrong-base", label, note="it is not a git tree")
    if checkout.journal:
        return Status(
            "interrupted",
            label,
            commit=checkout.head,
            note=f"{checkout.journal['verb']} was cut short; `{command('apply', up.name)}` completes it",
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
        return Status(
            "modified" if files else "clean", bases[checkout.head], source, checkout.head, files, untracked(checkout)
        )
    wanted = up.version(label).commit
    return Status(
        "wrong-base", label, commit=checkout.head, note=f"HEAD is {checkout.head}, expected {wanted} ({label})"
    )


def in_force(checkout: Checkout) -> dict | None:
    """The record, if its overlay is what the checkout stands on, also where the user rewrote commits on era."""
    record, head = checkout.record, checkout.head
    if not record or not record["tip"] or not head or head == record["base"] != record["tip"]:
        return None
    start = record["base"] if checkout.ref == BRANCH else record["tip"]
    return record if is_ancestor(checkout.git, start, head) else None


def evaluate_applied(up: Upstream, checkout: Checkout, label: str) -> Status:
    record, git = checkout.record, checkout.git
    found = Status("applied", record["version"], record["source"], checkout.head)
    if not git.commit(record["tip"]):
        found.state = "wrong-base"
        found.note = (
            f"git has thrown away the overlay's own commit {record['tip'][:12]}, which your rewritten history no longer leads to. To go on: "
            f"`git -C {checkout.path} branch -m era my-work`, `git -C {checkout.path} checkout {record['base'][:12]}`, "
            f"`{command('apply', up.name)}`, and cherry-pick your commits from my-work"
        )
        return found
    if checkout.head != record["tip"]:
        found.commits = git("rev-list", "--reverse", f"{record['tip']}..{checkout.head}").split()
    tip_tree = git.tree(record["tip"])
    head_tree = tip_tree if checkout.head == record["tip"] else git.tree(checkout.head)
    found.files = edits(checkout, head_tree)
    if head_tree is not tip_tree:
        found.files = sorted({*found.files, *changed_paths(head_tree, tip_tree)})
    found.untracked = untracked(checkout)
    version = up.versions.get(label)
    if export_cut_short(up, record):
        found.state = "interrupted"
        found.note = f"export was cut short; `{command('export', up.name)}` completes it"
    elif version is None or label != record["version"]:
        found.state, found.note = "stale", f"{record['version']} is applied"
    elif record["source"] == "git" and record["base"] != version.commit:
        found.state, found.note = "stale", "upstreams.json pins another commit now"
    elif read_overlay(up, label, complete=False).digest(record["base"]) != record["digest"]:
        found.state, found.note = "stale", "patches or overlay files changed since"
    elif found.files or found.commits:
        found.state = "modified"
    return found


def export_cut_short(up: Upstream, record: dict) -> bool:
    """An export was begun, and some of the files that it changes are as before it, others as it makes them."""
    if "exporting" not in record or record["version"] not in up.versions:
        return False
    found = {path: sha256(content) for path, (_, content) in project_files(up.name, record["version"]).items()}
    patches = sum(path.startswith("patches/") for path in found)
    numbers = (up.version(record["version"]).patches, up.overlay_files)
    before, after = record["exporting"]
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    half = all(any(found.get(path) == side.get(path) for path in changed) for side in (before, after))
    return half or numbers != (patches, len(found) - patches)  # what somebody changed since is neither


@dataclasses.dataclass
class Run:
    """One call of apply.py."""

    verb: str
    upstreams: dict[str, Upstream]
    names: list[str]
    named: bool  # by the user; else the names are all upstreams that concern a verb without names
    paths: list[str]
    cache: Cache
    checkouts: Path
    checkout: Path | None
    version: str | None
    source: str | None
    dry_run: bool
    options: argparse.Namespace
    result: dict = dataclasses.field(default_factory=dict)
    left_out: dict[str, Stop] = dataclasses.field(default_factory=dict)

    @property
    def code(self) -> int:
        return SOURCE if self.left_out else OK

    @contextlib.contextmanager
    def or_left_out(self, name: str):
        """An upstream that nobody named is left out where its source cannot be had; main() tells that at the end."""
        try:
            yield
        except Stop as stop:
            if self.named or stop.code != SOURCE:
                raise
            self.left_out[name] = stop
            self.result[name]["error"] = "\n".join(stop.lines)

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
            f"run `{command('apply', checkout.name)}` first: it completes what was begun. Nothing was changed",
        )


def refuse_half_exported(up: Upstream, status: Status) -> None:
    """Where a switch has been completed, "interrupted" is an export."""
    if status.state == "interrupted":
        raise Stop(
            INTERRUPTED,
            f"{up.name}: {status.note}",
            f"or bring patches/{up.name}, overlays/{up.name} and upstreams.json back with git, as they were before it. Nothing was changed",
        )


def applied_record(run: Run, up: Upstream, checkout: Checkout) -> dict | None:
    """The record of an applied overlay, None where there is none (absent or clean)."""
    refuse_interrupted(checkout)
    status = evaluate(up, checkout, run.version if checkout.git is None else None)
    if status.state == "wrong-base":
        raise Stop(WRONG_BASE, f"{checkout.path}: {status.note}", "nothing was changed")
    if run.verb == "revert":
        refuse_half_exported(up, status)
    return in_force(checkout)
