# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The overlay as commits: one for the new files, then one per patch, each checked against the patch's ids."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from engine.git import NO_ID, PATCH, PLAIN_MODES, Git
from engine.project import ROOT, Patch, Upstream, read_diff, read_overlay
from engine.session import CONFLICT, USAGE, WRONG_BASE, Stop, count, hint, some


@dataclasses.dataclass
class Built:
    tip: str  # the last commit
    patches: int
    files: int
    skipped: list[str]  # patches whose files a source package lacks

    def __str__(self) -> str:
        skipped = f", without {some(self.skipped)}" if self.skipped else ""
        return f"{count(self.patches, 'patch', 'patches')} and {count(self.files, 'new file')}{skipped}"


def build(git: Git, up: Upstream, label: str, base: str) -> Built:
    """Makes the overlay on a base. Only objects are made: no ref and no file of the repository changes.

    Author and date are fixed, so the same input gives the same commit ids on every machine.
    """
    patches, files = read_overlay(up.name, label)
    skipped = []
    if base != up.version(label).commit:  # a source package
        there = {*git.paths(base)}
        skipped = [patch for patch in patches if not there & patch.files.keys()]
    index = git.scratch_index(base)
    tip, tree = commit_files(index, up.name, files, base) if files else (base, index("write-tree"))
    for patch in (patch for patch in patches if patch not in skipped):
        tree = apply_patch(index, patch, tree, f"{up.name} {label}")
        tip = index.commit_tree(tree, patch.message, tip)
    return Built(tip, len(patches) - len(skipped), len(files), [patch.file for patch in skipped])


def commit_files(index: Git, name: str, files: dict[str, str], base: str) -> tuple[str, str]:
    """The commit of the overlay's files on a base, and its tree. No file may replace an upstream file."""
    sources = [str(ROOT / source) for source in files.values()]
    ids = index("hash-object", "-w", "--no-filters", "--stdin-paths", data="\n".join(sources)).split()
    modes = [PLAIN_MODES[bool(Path(source).stat().st_mode & 0o100)] for source in sources]
    index.stage(dict(zip(files, zip(modes, ids))))
    tree = index("write-tree")
    changed = index.changes(base, tree)
    replaced = [path for path, (old, _) in changed.items() if old[1] != NO_ID]
    if replaced or len(changed) != len(files):
        problem = f"would overwrite upstream's {replaced[0]}" if replaced else "has a path that git refuses"
        advice = "overlay files are new files; change an upstream file with a patch"
        raise Stop(WRONG_BASE, f"overlays/{name}.list {problem}", advice)
    return index.commit_tree(tree, f"New files of the ERA overlay for {name}\n", base), tree


def apply_patch(index: Git, patch: Patch, before: str, title: str) -> str:
    """The tree after a patch. The index holds the tree before it."""
    done = index.run("apply", "--cached", "-", data=patch.raw, ok=(0, 1, 128))
    if done.returncode:
        said, misfit = done.stderr.decode(errors="replace").strip(), done.returncode == 1
        problem = "does not apply" if misfit else "cannot be read by git: was it cut short, or edited?"
        where = hint("port", title.split()[0], "--onto", title.split()[1]) + " shows where it stops"
        more = [*said.splitlines()[:4], *([where] if misfit else [])]
        raise Stop(CONFLICT if misfit else USAGE, f"{title}: {patch.file} {problem}", *more)
    after = index("write-tree")
    # What git made must be, file by file, what the `index` lines say. That rules out fuzz, moved hunks, edits by hand,
    # and anything that git reads in a patch file and we do not.
    made = read_diff(os.fsdecode(index.run(*PATCH, before, after).stdout))
    for path in sorted(made.keys() | patch.files.keys()):
        changed, expected = (", ".join(files.get(path, ["no change"])) for files in (made, patch.files))
        if changed != expected:
            problem = f"git made of {path}: {changed}; the patch says: {expected}, and its index line must match"
            advice = "the patch was edited or cut short, or is for another version: edit a checkout and export"
            raise Stop(WRONG_BASE, f"{title}: {patch.file}: {problem}", advice)
    return after
