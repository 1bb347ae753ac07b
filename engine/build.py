"""The overlay as commits in the cache: one for the new files, then one per patch."""

from __future__ import annotations

import dataclasses

from engine.errors import CONFLICT, Stop
from engine.git import Tree, scratch_index, store_files, tree_id
from engine.patches import Patch, apply_patch
from engine.project import Overlay, Upstream, check_no_overwrite, select_patches
from engine.source import Source


@dataclasses.dataclass
class Built:
    tip: str
    commits: list[str]
    tree: Tree
    patches: list[Patch]
    skipped: list[str]
    new_files: int

    @property
    def tree_id(self) -> str:
        return tree_id(self.tree)


def build(up: Upstream, label: str, overlay: Overlay, source: Source) -> Built:
    """Authors and dates are fixed, so the same input makes the same commit ids on every machine."""
    git = source.git
    patches, skipped = select_patches(overlay, source.lacks)
    check_no_overwrite(up.name, overlay.files, git.tree(source.base))
    commits, tip = [], source.base
    if overlay.files:
        tip = store_files(git, overlay.files, tip, f"New files of the ERA overlay for {up.name}\n")
        commits.append(tip)
    with scratch_index(git) as scratch:
        scratch("read-tree", tip)
        tree = scratch.write_tree()
        for patch in patches:
            try:
                tree = apply_patch(scratch, patch, tree)
            except Stop as stop:
                hint = f"to see where it would go: {git.context.command('port', up.name, '--onto', label)}"
                more = [hint, "nothing was changed"] if stop.code == CONFLICT else []
                raise Stop(stop.code, f"{up.name} {label}: {stop.lines[0]}", *stop.lines[1:], *more) from None
            tip = git.commit_tree(tree, [tip], patch.message)
            commits.append(tip)
    return Built(tip, commits, git.tree(tip), patches, skipped, len(overlay.files))
