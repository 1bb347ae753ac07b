"""The verb export: from an edited checkout back to patches/ and overlays/."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from engine.checkout import Checkout, Run, applied_record, edits, lock_checkout, snapshot, untracked, write_record
from engine.common import (
    DRIFT,
    INTERRUPTED,
    LOCAL,
    OK,
    USAGE,
    WRONG_BASE,
    Stop,
    command,
    new_name,
    put_in_place,
    say,
    some,
    take_away,
    unfinished,
    uninterrupted,
    write_beside,
)
from engine.git import AUTHOR, MODES, NULL_ID, Content, Entry, Git, sha256
from engine.patches import PatchReader, check_path, parents
from engine.project import (
    FIELDS,
    PLACEHOLDER,
    ROOT,
    Upstream,
    check_no_overwrite,
    patch_folder,
    project_files,
    with_numbers,
)

DATE_MAIL = "Thu, 1 Jan 2026 00:00:00 +0000"
MAX_EXPORT = 1 << 20  # bytes: a larger new file in a checkout is data, not an overlay


@dataclasses.dataclass
class Layer:
    """One patch to be: what it is called and how it leaves the upstream files that it touches."""

    file: str | None
    message: str
    after: dict[str, Entry | None]


def verb_export(run: Run) -> int:
    differs = False
    for up in map(run.upstreams.get, run.names):
        reads = run.options.check or run.dry_run
        with contextlib.nullcontext() if reads else lock_checkout(run.path(up.name), given=run.checkout is not None):
            checkout = run.look(up.name)  # not before: whoever held the lock may have changed it
            record = applied_record(run, up, checkout)
            if record is None:
                raise Stop(
                    WRONG_BASE,
                    f"{checkout.path}: no overlay is applied there, so there is nothing to export",
                    f"run `{command('apply', up.name)}` first; nothing was changed",
                )
            wanted, notes = export_files(up, checkout, record)
            present = project_files(up.name, record["version"])
            changes = {path: item for path, item in wanted.items() if present.get(path) != item}
            changes.update({path: None for path in present if path not in wanted})
            refuse_foreign(checkout, record, present, changes)
            refuse_blocked(changes)
            old = (MODES[0], (ROOT / "upstreams.json").read_bytes())
            new = with_counts(up, record["version"], wanted, old)
            changes.update({"upstreams.json": new} if new != old else {})
            if not run.options.check and not run.dry_run:
                write_export(checkout, record, changes, present, wanted, old)
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


def with_counts(up: Upstream, label: str, wanted: dict[str, Content], old: Content) -> Content:
    """upstreams.json with the numbers of the files to come."""
    patches = sum(path.startswith("patches/") for path in wanted)
    return old[0], with_numbers(old[1].decode("utf-8"), up, label, patches, len(wanted) - patches).encode()


def refuse_foreign(checkout: Checkout, record: dict, present: dict, changes: dict) -> None:
    """Never write over a patch or overlay file that changed since the checkout was made from it."""
    known = record["inputs"]
    foreign = [path for path in changes if path in present and sha256(present[path][1]) not in known.get(path, ())]
    if foreign:
        raise Stop(
            LOCAL,
            f"changed in this project since {checkout.path} was made from it: {some(sorted(foreign))}",
            f"export would overwrite that. Run `{command('apply', checkout.name)}` first, or move your change away; nothing was changed",
        )


def refuse_blocked(changes: dict) -> None:
    """A file cannot come where a folder stays, for example one with leavings that are no overlay files."""
    for path, item in changes.items():
        left = (
            [os.path.join(folder, file) for folder, _, files in os.walk(ROOT / path) for file in files] if item else []
        )
        kept = [file for file in left if changes.get(os.path.relpath(file, ROOT), file) is not None]
        if kept:
            raise Stop(
                LOCAL, f"{path} is a folder with other files: {some(kept)}", "move them away; nothing was changed"
            )


def export_files(up: Upstream, checkout: Checkout, record: dict) -> tuple[dict[str, Content], list[str]]:
    git, label = checkout.git, record["version"]
    base = git.tree(record["base"])
    new = untracked(checkout)
    data = [path for path in new if path not in base and not looks_like_source(checkout.path / path)]
    notes = [f"left out, as it is no small text file: {path}" for path in data]
    edited = edits(checkout, git.tree(checkout.head))
    with snapshot(checkout, sorted({*edited, *new} - {*data})) as (scratch, tree):
        final = scratch.tree(tree)
        layers = read_layers(git, record, checkout.head, base)
        fold_edits(layers, base, final, notes)
        files = write_layers(scratch, up, label, record, layers)
        added = {path: entry for path, entry in final.items() if path not in base}
        for path, (mode, _) in added.items():
            check_path(path, str(checkout.path), LOCAL)
            if mode not in MODES:
                raise Stop(
                    LOCAL,
                    f"{checkout.path / path} is no plain file, so it cannot become an overlay file",
                    "nothing was changed",
                )
        check_no_overwrite(up.name, added, base)
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
    before = git.write_tree()
    fresh = []
    for layer in layers:
        git.stage(layer.after)
        tree = git.write_tree()
        text = format_patch(git, layer, before, tree)
        before = tree
        if text:
            (bodies if layer.file else fresh).append((layer.file or slug(layer.message), text))
    bodies.sort()
    bodies += [(f"0000-{name}.patch", text) for name, text in fresh]
    return {
        f"patches/{up.name}/{label}/{number:04d}{file[4:]}": (MODES[0], text)
        for number, (file, text) in enumerate(bodies, 1)
    }


def slug(message: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", message.split("\n")[0].lower()).strip("-")[:50] or "change"


def format_patch(git: Git, layer: Layer, before: str, after: str) -> bytes:
    flags = [
        "--full-index",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--diff-algorithm=myers",
        "--unified=3",
    ]
    flags += ["--text"]  # what is binary is not for the attributes in the checkout to say
    flags += ["--inter-hunk-context=0", "--indent-heuristic", "--src-prefix=a/", "--dst-prefix=b/"]
    diff = git.run("diff-tree", "-r", "-p", *flags, before, after).stdout
    if not diff:
        return b""
    subject, _, body = layer.message.partition("\n")
    if b"\0" in diff:
        raise Stop(
            USAGE,
            f"the patch {subject!r} would change a binary file ({some(sorted(layer.after))}), which is not supported",
            "take that change back (`git checkout` in the checkout), then run the command again; nothing was changed",
        )
    missing = [field for field in FIELDS if not re.search(rf"^{field}:", body, re.M)]
    body = "\n".join([*([body.strip("\n")] if body.strip() else []), *(f"{field}: {PLACEHOLDER}" for field in missing)])
    head = f"From {NULL_ID} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR[0]} <{AUTHOR[1]}>\nDate: {DATE_MAIL}\nSubject: [PATCH] {subject}\n\n{body}\n\n"
    patch = head.encode() + diff
    PatchReader(f"the patch {subject!r}", patch).read()  # what we write, we can read
    return patch


def write_export(
    checkout: Checkout, record: dict, changes: dict, present: dict, wanted: dict, numbers: Content
) -> None:
    """The record first learns what is coming, so that an export cut short is seen, and can simply be run again."""
    if not changes and "exporting" not in record:
        return
    before, hashes = ({path: sha256(content) for path, (_, content) in files.items()} for files in (present, wanted))
    listed = {sha256(item[1]) for item in (numbers, changes.get("upstreams.json", numbers))}
    coming = {"upstreams.json": listed, **{path: {digest} for path, digest in hashes.items()}}
    known = {
        path: sorted({*record["inputs"].get(path, ()), *coming.get(path, ())}) for path in {*record["inputs"], *coming}
    }
    with uninterrupted(f"the export is complete; `{command('export', checkout.name, '--check')}` shows it"):
        write_record(checkout.own_folder, {**record, "inputs": known, "exporting": [before, hashes]})
        advice = f"the export is half-way: run `{command('export', checkout.name)}` again"
        remove_parts(known)
        write_changes(changes, {**present, "upstreams.json": numbers}, advice)
        # What was there before stays known: who takes the export back with git can export again.
        record = {key: value for key, value in record.items() if key != "exporting"}
        write_record(checkout.own_folder, {**record, "inputs": known})


def remove_parts(known: dict[str, list[str]]) -> None:
    """What an export that was cut short left beside the files that it had written already."""
    for path, digests in known.items():
        part = (ROOT / path).with_name(new_name(os.path.basename(path)))
        if part.is_file() and sha256(part.read_bytes()) in digests:
            part.unlink()


def write_changes(changes: dict, present: dict, advice: str) -> None:
    """New files first, as a patch that a source skips stands nowhere else; but a file that stands in the way goes before.

    `present` is what was read; what somebody saved since is not written over. From the first change on, `advice` holds.
    """
    coming = {path: item for path, item in changes.items() if item is not None}
    gone = [path for path in changes if path not in coming]
    first = [old for old in gone if any(old in parents(path) or path in parents(old) for path in coming)]
    for path in first:
        unfinished.advice = advice
        remove_file(path, present)
    for path, (mode, content) in coming.items():
        for folder, _, _ in os.walk(ROOT / path, topdown=False):  # what is left of a folder that gave way to a file
            os.rmdir(folder)
        part = write_beside(ROOT / path, content, 0o755 if mode == "100755" else 0o644)
        if not put_in_place(part, ROOT / path, is_known(path, present)):
            part.unlink()
            raise changed_meanwhile(path)
        unfinished.advice = advice
    for path in gone:
        if path not in first:
            unfinished.advice = advice
            remove_file(path, present)


def remove_file(path: str, present: dict) -> None:
    target = ROOT / path
    if not take_away(target, target.with_name(new_name(target.name)), is_known(path, present)):
        raise changed_meanwhile(path)
    with contextlib.suppress(OSError):
        target.parent.rmdir()


def is_known(path: str, present: dict) -> Callable[[Path], bool]:
    return lambda place: path in present and place.read_bytes() == present[path][1]


def changed_meanwhile(path: str) -> Stop:
    end = unfinished.advice or "nothing was changed; run the command again"
    return Stop(INTERRUPTED, f"{ROOT / path} was changed while apply.py was at work; it is left as it is", end)
