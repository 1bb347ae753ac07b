# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Bringing a work tree from one commit to another: what is in the way, the steps, and what follows after a kill.

plan       decides whether an edit is in the way; changes nothing
carry_out  writes record and mark (`era-next`), index, files, branch and HEAD; then removes old records and the mark
recover    after a kill: saves what is neither old nor new on a branch, goes back to what HEAD says, and removes the
           record and the branch era that the killed run had no time to remove
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path

from engine.checkout import BRANCH, NEXT, RECORDS, Checkout, record_ref
from engine.git import NO_ID, Git, GitFailed
from engine.session import LOCAL, Stop, hint, say, shell_git, some

OWN_REFS = (RECORDS, NEXT, "refs/tags/upstream", "refs/heads/era-saved")


@dataclasses.dataclass
class Switch:
    """The way of a work tree from HEAD to the commit `new`."""

    checkout: Checkout
    new: str
    paths: list[str]  # the files that it changes
    seen: str  # HEAD's tree, with these files as they are on disk


def plan(checkout: Checkout, new: str, also: Iterable[str] = (), saved: bool = False) -> Switch:
    """Refuse what is in the way of a switch, before anything changes.

    `also` are more files to be brought to `new`. `saved`: edits are kept on a branch, so they are not in the way.
    """
    git, old = checkout.git, checkout.head
    changes = git.changes(old, new)
    paths = sorted({*changes, *also})
    created = [path for path, (_, entry) in changes.items() if entry[1] != NO_ID]
    blocking = {place for path in created for place in blocked(git.folder, path, {*paths})}
    seen = "" if blocking else git.snapshot(old, paths)
    if not blocking and not saved:
        blocking = edits_in_the_way(git, paths, old, new, seen)
    if blocking:
        advice = f"see {hint('diff', checkout.name, '--local')}; export them, commit them elsewhere or move them away"
        more = (
            f"{shell_git(checkout.path, 'status', '--ignored')} shows what is only staged (`git reset FILE`) or ignored"
        )
        raise Stop(LOCAL, f"{checkout.path}: local edits are in the way: {some(sorted(blocking))}", advice, more)
    switch = Switch(checkout, new, paths, seen)
    try:
        change_files(git.copied_index(), switch, "--dry-run")
    except GitFailed as failed:
        raise Stop(LOCAL, f"{checkout.path}: git would not switch", *failed.lines[1:]) from None
    return switch


def edits_in_the_way(git: Git, paths: list[str], old: str, new: str, seen: str) -> set[str]:
    """Return the files whose content a switch would lose: on disk neither old nor new, or staged and nowhere else."""
    on_disk = git.changes(old, seen).keys() & git.changes(new, seen).keys()
    staged = git.staged(old).keys() & git.staged(new).keys() & git.staged(seen).keys()
    return {*on_disk, *staged} & {*paths}


def blocked(folder: Path, path: str, known: set[str]) -> list[str]:
    """Untracked or ignored files in place of a folder that a new file needs, or in a folder in the new file's place."""
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts))]
    blocking = [place for place in above if (folder / place).is_file() or (folder / place).is_symlink()]
    if (folder / path).is_dir() and not (folder / path).is_symlink():
        inside = [place for place in (folder / path).rglob("*") if place.is_symlink() or not place.is_dir()]
        blocking += [place.relative_to(folder).as_posix() for place in inside]
    return [place for place in blocking if place not in known]


# --- the steps ---


def change_files(git: Git, switch: Switch, *more: str) -> None:
    """Switch by git's own two-way merge, which carries edits of other files, and refuses if a file was edited just now.

    The index first learns what is on disk, so that this also works where a kill left some files changed already.
    """
    git.stage_files(switch.paths)
    git("read-tree", "-m", "-u", *more, switch.seen, switch.new)


def fill(git: Git, refs: list[str], tip: str) -> None:
    """Write the files and refs of a new repository, which nobody sees before it is renamed."""
    git.update_refs(*refs)
    git("checkout", "--quiet", "--force", "-B", "era", tip)


def carry_out(switch: Switch, refs: list[str], to_branch: bool) -> None:
    """Change the work tree. `refs` are orders for git that come first: the new record, a tag, branches that keep the
    user's commits.

    With `to_branch` HEAD is the branch era afterwards, otherwise it is detached and the branch era is removed.
    """
    checkout, git, new = switch.checkout, switch.checkout.git, switch.new
    git.update_refs(f"update {NEXT} {new}", *refs)  # in this order, so that a kill leaves no ref without the mark
    change_files(git, switch)
    outdated = []
    if to_branch:
        git("update-ref", "-m", "era: apply", BRANCH, new, checkout.era or NO_ID)
        git("symbolic-ref", "-m", "era: apply", "HEAD", BRANCH)
        outdated = [f"delete {ref}" for ref, tip in git.refs(RECORDS).items() if tip != new]
    else:
        git("update-ref", "--no-deref", "-m", "era: revert", "HEAD", new)
        outdated = [f"delete {BRANCH} {checkout.era}"] if checkout.era else []
    git.update_refs(*outdated)
    git("update-ref", "-d", NEXT)


def recover(checkout: Checkout) -> bool:
    """Bring a killed switch back to what HEAD says, as if it had not begun. Returns whether there was anything to do.

    A file that is neither old nor new is half-written or somebody's work, so it is first committed on a branch. If HEAD
    had moved already, only refs are left to be removed.
    """
    git, there, head = checkout.git, checkout.unfinished, checkout.head
    clear_locks(git, (*OWN_REFS, "shallow"))  # `copy` writes it
    if not there:
        remove_left_refs(checkout)  # of a run of an earlier apply.py
        return len(checkout.tips) > 1
    clear_locks(git, ("index", "HEAD", "packed-refs", BRANCH))
    switch = plan(checkout, head, git.changes(head, there), saved=True)
    if edits_in_the_way(git, switch.paths, head, there, switch.seen):
        save(checkout, switch.seen, "what a switch that was cut short had left")
    change_files(git, switch)
    remove_left_refs(checkout)
    git("update-ref", "-d", NEXT)
    say(f"{checkout.name}: a switch had been cut short; {checkout.path} is back at {head[:12]}")
    return True


def remove_left_refs(checkout: Checkout) -> None:
    """Remove the records that HEAD does not need, and a branch era that a killed run moved or did not remove.

    The last record always stays: it says what HEAD is made from, also after a revert.
    """
    git, there, era, known = checkout.git, checkout.unfinished, checkout.era, {*checkout.tips}
    left = era == there or checkout.head == there if there else era in known - {checkout.tip}
    if era and left and checkout.branch != BRANCH and not git.held_nowhere({era}, {*known, checkout.head}):
        git.update_refs(f"delete {BRANCH} {era}")
    if len(checkout.tips) > 1:
        valid = record_ref(checkout.label, checkout.base, checkout.tip)
        git.update_refs(*(f"delete {ref} {tip}" for ref, tip in git.refs(RECORDS).items() if ref != valid))


def clear_locks(git: Git, names: tuple[str, ...]) -> None:
    """Remove the lock files of a git that was killed: we hold the lock that it held. `find` saw no link there."""
    for path in (Path(git.env["GIT_DIR"], name) for name in names):
        for lock in [path.with_name(f"{path.name}.lock"), *path.glob("**/*.lock")]:
            lock.unlink(missing_ok=True)


def save(checkout: Checkout, tree: str, what: str) -> None:
    """Keep a tree on a branch of its own, with what is staged and the user's commits below it."""
    git, parent = checkout.git, checkout.head
    staged = git("write-tree")
    if git.changes(parent, staged) and git.changes(tree, staged):
        parent = git.commit_tree(staged, f"{what}, as staged\n", parent)
    commit = git.commit_tree(tree, f"{what}\n", parent)
    name = f"era-saved/{time.strftime('%Y%m%d-%H%M%S')}-{commit[:7]}"
    git("update-ref", f"refs/heads/{name}", commit)
    diff = shell_git(checkout.path, "diff", "--binary", checkout.tip or checkout.head, name).rstrip("`")
    back = f"{diff} | {shell_git(checkout.path, 'apply', '--3way').lstrip('`')}"
    say(f"{checkout.name}: {what}: on the branch {name}; {back} brings it back")
