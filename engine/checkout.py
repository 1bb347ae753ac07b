# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A checkout: what apply.py recorded about it, and its state.

What apply.py knows about a work tree is in two kinds of refs, which git keeps per work tree:

    refs/worktree/era/LABEL/BASE/TIP -> TIP    the overlay of version LABEL on the commit BASE ends in the commit TIP
    refs/worktree/era-next -> COMMIT           only during a switch: where it leads

The name of a record says everything. It is written before a switch, and the records of older overlays are removed after
the switch. So HEAD alone tells which record is valid, whenever a run is cut short.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from engine.git import Git, refuse_foreign
from engine.overlay import build
from engine.project import JUNK, Upstream
from engine.session import INTERRUPTED, LOCAL, Stop, hint, shell_git

BRANCH = "refs/heads/era"
RECORDS = "refs/worktree/era/"
RECORD = re.compile(f"{RECORDS}([^/]+)/([0-9a-f]{{40}})/([0-9a-f]{{40}})")
NEXT = "refs/worktree/era-next"
HALF_WAY = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "rebase-merge", "rebase-apply", "index.lock")
DRIFTED = ("stale", "modified", "wrong-base", "interrupted")


@dataclasses.dataclass
class Checkout:
    """A checkout as it was found; docs/engine/usage.md says what the states mean."""

    name: str
    path: Path
    git: Git | None = None
    head: str = ""
    branch: str = ""  # the branch that HEAD is on; empty when detached
    era: str = ""  # where the branch era is
    label: str = ""  # with base and tip: the valid record
    base: str = ""
    tip: str = ""
    tips: tuple[str, ...] = ()  # the tips of all records: more than one after a kill
    applied: bool = False  # HEAD has the overlay below it, even where the user rewrote our commits
    unfinished: str = ""  # the target of a switch that was cut short
    sha256: str = ""  # of the source package that the base was made from
    state: str = "absent"
    version: str = ""
    edited: list[str] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)  # edited, or changed by the user's commits
    untracked: list[str] = dataclasses.field(default_factory=list)
    commits: list[str] = dataclasses.field(default_factory=list)  # the user's, on top of the overlay
    note: str = ""

    @property
    def kind(self) -> str:
        return "pypi" if self.sha256 else "git"


def record_ref(label: str, base: str, tip: str) -> str:
    return f"{RECORDS}{label}/{base}/{tip}"


def find(name: str, path: Path) -> Checkout:
    """The checkout with its record, as far as git tells without reading files, or with a note alone, if it is unfit."""
    try:
        refuse_foreign(path.parent, f"{path.name}/.git")
    except Stop as stop:
        return Checkout(name, path, note=stop.lines[0])
    git = Git.at(path) if (path / ".git").exists() else None
    if not git:
        return Checkout(name, path)
    checkout = Checkout(name, path, git, git.commit("HEAD"), era=git.commit(BRANCH), unfinished=git.commit(NEXT))
    checkout.branch = git("symbolic-ref", "--quiet", "HEAD", ok=None)
    on_era, records = checkout.branch == BRANCH, []
    for label, base, tip in (match.groups() for match in map(RECORD.fullmatch, git.refs(RECORDS)) if match):
        above = git.is_ancestor(tip, checkout.head) or (on_era and git.is_ancestor(base, checkout.head))
        records.append((tip != checkout.head, not above, base != checkout.head, label, base, tip))
    checkout.tips = tuple(record[-1] for record in records)
    if records:  # the best: HEAD is its tip, or else above it, or else the upstream below it
        _, elsewhere, _, checkout.label, checkout.base, checkout.tip = min(records)
        checkout.applied = not elsewhere and (on_era or checkout.tip != checkout.base)
        package = re.search("^sha256: (.*)$", git("cat-file", "commit", checkout.base), re.M)
        checkout.sha256 = package[1] if package else ""
    commits = {checkout.head, checkout.base, checkout.tip, checkout.unfinished} - {""}
    note = (where_git_waits(git, commits) or git.forged(*commits)) if commits else ""
    return Checkout(name, path, note=note) if note else checkout


def where_git_waits(git: Git, commits: Iterable[str]) -> str:
    """Say which file git would read for ever in the folders of these commits, or return ""."""
    trees = (git("ls-tree", "-r", "-d", "-z", "--name-only", "--full-tree", commit) for commit in commits)
    for folder in sorted({folder for rows in trees for folder in rows.split("\0")} | {""}):
        for place in (git.folder / folder / name for name in (".gitignore", ".gitattributes")):
            if place.exists() and not place.is_file() and not place.is_dir():
                return f"{place} is a FIFO, socket or device, for which git would wait"
    return ""


def make_fresh(up: Upstream, place: Path, temporary: contextlib.ExitStack) -> Git:
    """A new repository beside the place of a checkout. One that exists was left by a killed run: we hold the lock."""
    part = place.with_name(f".{place.name}.new")
    refuse_foreign(part.parent, part.name, deep=False)  # a tree of upstream may have links
    if part.exists():
        shutil.rmtree(part)
    temporary.callback(shutil.rmtree, part, ignore_errors=True)
    origin = {"remote.origin.url": up.git, "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*"}
    return Git.init(part, bare=False, **origin)


# --- the state ---


def edits(git: Git, commit: str) -> tuple[list[str], list[str]]:
    """Files that differ from a commit, on disk or staged; and untracked files. Contents decide, never timestamps."""
    index = git.scratch_index(commit)
    more = ("--untracked-files=all", "--no-renames", "--ignore-submodules=all")
    rows = index("status", "--porcelain", "-z", *more).split("\0")[:-1]
    edited = {row[3:] for row in rows if not row.startswith("??")} | git.staged(commit).keys()
    new = {row[3:] for row in rows if row.startswith("??")} - edited
    return sorted(edited), sorted(path for path in new if not JUNK.search(path) and not path.endswith("/"))


def is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def examine(up: Upstream, checkout: Checkout, requested: str | None = None) -> Checkout:
    """Fill in the state. `requested` is what --version says."""
    checkout.version = requested or (checkout.label if checkout.label in up.versions else up.default)
    git, head = checkout.git, checkout.head
    if not os.path.lexists(checkout.path) or is_empty_folder(checkout.path):
        return checkout
    pins = {version.commit: label for label, version in up.versions.items()}
    pins.setdefault(checkout.base, checkout.label)
    if not head:
        checkout.state, checkout.note = "wrong-base", checkout.note or "it is not a git work tree with a SHA-1 commit"
    elif checkout.unfinished:
        checkout.state = "interrupted"
        checkout.note = "a switch was cut short; apply or revert takes it back first: repeat your command"
    elif checkout.applied:
        checkout.note = why_stale(up, checkout, checkout.version)
        checkout.version = checkout.label
        checkout.edited, checkout.untracked = edits(git, head)
        checkout.commits = git("rev-list", "--reverse", f"{checkout.tip}..{head}", f"^{checkout.base}").split()
        checkout.files = sorted({*checkout.edited, *git.changes(checkout.tip, head)})
        checkout.state = "stale" if checkout.note else "modified" if checkout.files or checkout.commits else "applied"
    elif head in pins:
        checkout.version = pins[head]
        checkout.edited, checkout.untracked = edits(git, head)
        checkout.files = checkout.edited
        checkout.state = "modified" if checkout.files else "clean"
    else:
        checkout.state = "wrong-base"
        checkout.note = f"HEAD is {head}, expected {up.version(checkout.version).commit} ({checkout.version})"
    return checkout


def why_stale(up: Upstream, checkout: Checkout, label: str) -> str:
    """Why a checkout's overlay is out of date, or "" if building it again gives the same commit."""
    if label != checkout.label:
        return f"{checkout.label} is applied"
    version = up.version(label)
    if (checkout.sha256 or checkout.base) not in (version.commit, version.sdist and version.sdist.sha256):
        return "upstreams.json pins another source now"
    try:
        tip = build(checkout.git.scratch_objects(), up, label, checkout.base).tip
    except Stop as stop:
        return stop.lines[0]
    return "" if tip == checkout.tip else "patches or overlay files changed since"


def refuse_unfinished(checkout: Checkout) -> None:
    """Refuse where a switch was killed, and where the user is in the middle of a merge or rebase."""
    if checkout.unfinished:
        again = f"run {hint('apply', checkout.name)} first; nothing is lost"
        raise Stop(INTERRUPTED, f"{checkout.path}: a switch was cut short", again)
    for name in HALF_WAY:
        place = Path(checkout.git("rev-parse", "--git-path", name))
        if place.exists():
            advice = f"{shell_git(checkout.path, 'status')} says how to finish it or give it up"
            if name == "index.lock":
                advice = f"wait for the git that is running there; if none is, remove {place}"
            raise Stop(LOCAL, f"{checkout.path} is in the middle of something: there is a {name}", advice)
