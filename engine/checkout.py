"""A checkout as it is found: its files, what apply.py recorded about it, and the state that results."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import stat
from pathlib import Path

from engine.context import Context
from engine.errors import LOCAL, WRONG_BASE, Stop
from engine.files import JUNK_PATTERNS, locked, write_file
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
    unmarked_mode,
)
from engine.patches import NAME
from engine.project import Upstream, read_overlay

BRANCH = "refs/heads/era"
PORT_BRANCHES = "refs/heads/era-port/"  # of worktrees that `port --write` made
LOCK_WAIT = 20.0  # seconds a second apply waits for the first one


@dataclasses.dataclass
class Checkout:
    """A folder as it was found. `record` is what apply wrote about it, None where it never did."""

    context: Context
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
    def shell_git(self) -> str:
        """The beginning of a git command for the user to copy."""
        return f"git -C {shlex.quote(str(self.path))}"

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


def lock_checkout(context: Context, path: Path, given: bool):
    """One apply.py at a time. In the user's clone the lock leaves no trace: it is on the repository's folder."""
    if not given:
        return locked(context, path.parent / f".{path.name}.lock", LOCK_WAIT, str(path))
    git_dir = find_git_dir(path)
    return locked(context, git_dir, LOCK_WAIT, str(path)) if git_dir else contextlib.nullcontext()


# The types of what apply.py writes into .git/era. A given clone may hold anything there, so it is checked as input.
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
    known = has_shape(found, shape) and (is_journal if shape is JOURNAL else is_record)(found)
    if not known or path.parent.is_symlink():
        advice = "move it away to have this checkout treated as a plain clone"
        raise Stop(LOCAL, f"{path} was altered and cannot be read", advice)
    return found


def has_shape(found: object, shape: dict[str, type]) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in shape.items())


def is_record(found: dict) -> bool:
    ids = [found["base"], *([found["tip"]] if found.get("tip") is not None else [])]
    skipped = all(NAME.fullmatch(str(file)) for file in found["skipped"])
    return "tip" in found and skipped and all(re.fullmatch("[0-9a-f]{40}", str(oid)) for oid in ids)


def is_journal(found: dict) -> bool:
    parts = [part for place in found["plan"] for part in place.split("/")]
    inside = not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    record = found.get("record")
    return inside and (has_shape(record, RECORD) and is_record(record) if record else found["verb"] == "revert")


def write_record(folder: Path, record: dict) -> None:
    write_file(folder / "record.json", json.dumps(record, indent=1).encode())


def look(context: Context, name: str, path: Path, given: bool) -> Checkout:
    found = Checkout(context, name, path, given)
    git_dir = find_git_dir(path) if found.exists else None
    if git_dir is None:
        return found
    found.git = git = Git(context, git_dir, path)
    found.journal = read_own(found.own_folder / "journal.json", JOURNAL)
    found.record = read_own(found.own_folder / "record.json", RECORD)
    found.refs = git.refs("refs/heads", "refs/tags/upstream")
    found.ref = git("symbolic-ref", "--quiet", "HEAD", ok=(0, 1)).strip() or None
    found.head = found.refs.get(found.ref) if found.ref else git.commit("HEAD")
    rows = git(
        "config", "--null", "--get-regexp", r"^(core\.(filemode|sparsecheckout|symlinks)|filter\..*)$", ok=(0, 1)
    )
    found.config = dict(row.partition("\n")[::2] for row in rows.split("\0") if row)
    # A git that writes the index may read files again, through the filters of this repository.
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
    """What is at a path: an entry as in a tree, None for nothing, ("other", "") for anything but a file or link.

    A file that is reached through a symbolic link to a folder does not count as the file of that path.
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
    """The modes that the file system does not tell apart."""
    loose = set()
    if checkout.config.get("core.filemode") == "false":
        loose |= set(MODES)
    if checkout.config.get("core.symlinks") == "false":
        loose |= {"120000", "100644"}
    return loose


def mode_to_store(checkout: Checkout, found: str, known: Entry | None, content: bytes) -> str:
    """The mode of a file to save: the known one, where the file system does not keep modes."""
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
            f"run `{checkout.shell_git} sparse-checkout disable`, or let apply.py make its own checkout",
            "nothing was changed",
        )
    return sorted(changed)


def untracked(checkout: Checkout) -> list[str]:
    """New files that git would not ignore, without caches and what builds leave behind."""
    patterns = [f"--exclude={pattern}" for pattern in JUNK_PATTERNS]
    rows = checkout.git("ls-files", "--others", "--exclude-standard", "-z", *patterns).split("\0")
    return sorted(row for row in rows if row and not row.endswith("/"))  # a folder is a repository of its own


@contextlib.contextmanager
def snapshot(checkout: Checkout, files: list[str]):
    """The work tree's content of some paths on top of HEAD, as a tree; objects go to a folder that is thrown away."""
    objects = Path(checkout.git("rev-parse", "--git-path", "objects").strip())
    objects = objects if objects.is_absolute() else checkout.path / objects
    with checkout.context.scratch_folder("objects") as folder:
        quoted = '"' + str(objects).replace("\\", "\\\\").replace('"', '\\"') + '"'
        git = checkout.git.with_env(GIT_OBJECT_DIRECTORY=str(folder), GIT_ALTERNATE_OBJECT_DIRECTORIES=quoted)
        changes: dict[str, Entry | None] = {}
        contents = []
        head = checkout.git.tree(checkout.head)
        for path in files:
            entry = on_disk(checkout.path, path)
            if (checkout.path / path).is_dir() and not (checkout.path / path).is_symlink():
                entry = None  # a folder took the place of the file
            elif entry is not None and entry[0] == "other":
                raise Stop(
                    LOCAL,
                    f"{checkout.path / path} is not a plain file, so it cannot be saved",
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


def evaluate(up: Upstream, checkout: Checkout, requested: str | None) -> Status:
    """The state of a checkout, read from hashes only. `requested` is what --version says."""
    record = checkout.record
    label = requested or (record["version"] if record and record["version"] in up.versions else up.default)
    if not checkout.exists and os.path.lexists(checkout.path) and not checkout.path.is_dir():
        return Status("wrong-base", label, note="there is a file, or a link that leads nowhere, in its place")
    if not checkout.exists:
        return Status("absent", label)
    if checkout.git is None:
        return Status("wrong-base", label, note="it is not a git tree")
    if checkout.journal:
        completes = checkout.context.command("apply", up.name)
        note = f"{checkout.journal['verb']} was cut short; `{completes}` completes it"
        return Status("interrupted", label, commit=checkout.head, note=note)
    if checkout.head is None:
        return Status("wrong-base", label, note="it has no commit")
    if in_force(checkout):
        return evaluate_applied(up, checkout, label)
    bases = {version.commit: found for found, version in up.versions.items()}
    bases[up.version(label).commit] = label  # where two versions pin one commit
    if record:
        bases.setdefault(record["base"], record["version"])
    if checkout.head in bases and (requested in (None, bases[checkout.head]) or not checkout.given):
        files = edits(checkout, checkout.git.tree(checkout.head))
        source = record["source"] if record and record["base"] == checkout.head else "git"
        state = "modified" if files else "clean"
        return Status(state, bases[checkout.head], source, checkout.head, files, untracked(checkout))
    note = f"HEAD is {checkout.head}, expected {up.version(label).commit} ({label})"
    return Status("wrong-base", label, commit=checkout.head, note=note)


def in_force(checkout: Checkout) -> dict | None:
    """The record, if the checkout is based on its overlay, even if the user rewrote commits on era."""
    record, head = checkout.record, checkout.head
    if not record or not record["tip"] or not head or head == record["base"] != record["tip"]:
        return None
    ours = checkout.ref and (checkout.ref == BRANCH or checkout.ref.startswith(PORT_BRANCHES))
    start = record["base"] if ours else record["tip"]
    return record if is_ancestor(checkout.git, start, head) else None


def evaluate_applied(up: Upstream, checkout: Checkout, label: str) -> Status:
    record, git = checkout.record, checkout.git
    found = Status("applied", record["version"], record["source"], checkout.head)
    if not git.commit(record["tip"]):
        found.state = "wrong-base"
        found.note = (
            f"git has thrown away the overlay's own commit {record['tip'][:12]}, which your rewritten history lacks. "
            f"To go on: `{checkout.shell_git} branch -m era my-work`, "
            f"`{checkout.shell_git} checkout {record['base'][:12]}`, "
            f"`{checkout.context.command('apply', up.name)}`, and cherry-pick your commits from my-work"
        )
        return found
    if checkout.head != record["tip"]:
        found.commits = git("rev-list", "--reverse", f"{record['tip']}..{checkout.head}").split()
    tip_tree = git.tree(record["tip"])
    head_tree = tip_tree if checkout.head == record["tip"] else git.tree(checkout.head)
    found.files = sorted({*edits(checkout, head_tree), *changed_paths(head_tree, tip_tree)})
    found.untracked = untracked(checkout)
    found.note = why_stale(up, record, label)
    if found.note:
        found.state = "stale"
    elif found.files or found.commits:
        found.state = "modified"
    return found


def why_stale(up: Upstream, record: dict, label: str) -> str:
    """Why the overlay of a checkout is no longer that of this project; empty if it still is."""
    version = up.versions.get(label)
    if version is None or label != record["version"]:
        return f"{record['version']} is applied"
    if record["source"] == "git" and record["base"] != version.commit:
        return "upstreams.json pins another commit now"
    try:
        digest = read_overlay(up, label).digest(record["base"])
    except Stop as stop:  # revert and diff need no patches
        return stop.lines[0]
    return "" if digest == record["digest"] else "patches or overlay files changed since"
