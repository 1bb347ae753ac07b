# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The verb export: an edited checkout becomes patches and overlay files again."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from engine.call import Call
from engine.checkout import Checkout, refuse_unfinished
from engine.git import AUTHOR, EMAIL, NO_ID, PATCH, PLAIN_MODES, Entry, Git
from engine.project import JUNK, ROOT, Upstream, present, read_files, read_series
from engine.session import DRIFT, LOCAL, OK, USAGE, WRONG_BASE, Stop, hint, say, some, uninterrupted

FIELDS = ("What", "Why", "Paper", "Upstream-Status", "Drop-When")  # of a patch's header
MAIL = f"From {NO_ID} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR} <{EMAIL}>\nDate: Thu, 1 Jan 2026 00:00:00 +0000\n"
LARGEST = 1 << 20  # bytes: a larger new file in a checkout is data
Content = tuple[bool, bytes]  # whether it is executable, and its bytes


@dataclasses.dataclass
class Layer:
    """A patch in the making: its message, and the upstream files that it touches, in their state after it."""

    message: str
    after: dict[str, Entry]


def verb_export(call: Call) -> int:
    plans = {name: plan_export(call, call.upstreams[name]) for name in call.names}
    with uninterrupted("some files may be written; `git status` in this project shows them"):
        for name, changes in plans.items():
            for path, content in changes.items():
                say(f"{name}: {'differs' if call.options.check else 'written' if content else 'removed'}: {path}")
                if not call.options.check:
                    write(ROOT / path, content)
            if not changes:
                say(f"{name}: patches and overlay files equal the checkout")
            call.result[name] = {"changes": [*changes]}
    return DRIFT if call.options.check and any(plans.values()) else OK


def plan_export(call: Call, up: Upstream) -> dict[str, Content | None]:
    """Return what is to be written: for each path in this project its new content, None for a file to be removed."""
    checkout = call.look(up.name)
    if checkout.git:
        refuse_unfinished(checkout)
    if not checkout.applied:
        why = checkout.note or "no overlay is applied there"
        raise Stop(WRONG_BASE, f"{checkout.path}: {why}, so there is nothing to export")
    data = [path for path in checkout.untracked if not is_small_text(checkout.path / path)]
    if data:
        say(f"{up.name}: left out, as they are not small text files: {some(data)}")
    index = checkout.git.scratch_objects().scratch_index(checkout.head)
    index.stage_files({*checkout.edited, *checkout.untracked} - {*data})
    wanted = project_files(index, up, checkout, index("write-tree"))
    there = present(f"patches/{up.name}/{checkout.label}/*.patch") | present(f"overlays/{up.name}/**/*")
    now = {path: read(ROOT / path) for path in sorted(there | {*wanted})}
    changes = {path: wanted.get(path) for path in now if now[path] != wanted.get(path)}
    if checkout.label not in up.versions:
        changes["upstreams.json"] = with_version(up, checkout)
    elif changes and checkout.state == "stale":
        advice = f"export would undo that: {hint('apply', up.name)} first"
        raise Stop(LOCAL, f"{checkout.path}: {checkout.note}, as in {some(changes)}", advice)
    refuse_uncommitted([path for path in changes if now.get(path)])
    return dict(sorted(changes.items(), key=lambda change: change[1] is not None))  # a file gives way to a folder


def is_small_text(path: Path) -> bool:
    plain = path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST
    return plain and b"\0" not in path.read_bytes()


def refuse_uncommitted(paths: list[str]) -> None:
    """Refuse to overwrite what git has not committed, since `git checkout` could not bring it back."""
    if not paths:
        return
    git = Git(ROOT, bare=False, env={})  # git finds the repository that this project is in
    done = git.run("status", "--porcelain", "--ignored", "--untracked-files=all", "--", *paths, ok=None)
    if done.returncode:
        advice = "export overwrites only what git has committed: `git init`, `git add -A` and `git commit` make it so"
        raise Stop(LOCAL, f"{ROOT}: git said: {os.fsdecode(done.stderr).strip()}", advice)
    if done.stdout:
        said = some(os.fsdecode(line[3:]) for line in done.stdout.splitlines())
        advice = "commit it, or bring it back with `git checkout`, and run the command again"
        raise Stop(LOCAL, f"export would overwrite what is not committed in this project: {said}", advice)


# --- files of this project ---


def read(path: Path) -> Content | None:
    return (bool(path.stat().st_mode & 0o100), path.read_bytes()) if path.is_file() else None


def write(path: Path, content: Content | None) -> None:
    if content is None:
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part~")
    part.write_bytes(content[1])
    part.chmod(0o755 if content[0] else 0o644)
    part.replace(path)


def text(lines: list[str]) -> Content:
    return False, "".join(f"{line}\n" for line in lines).encode()


def with_version(up: Upstream, checkout: Checkout) -> Content:
    """Return upstreams.json with a version that a port has made."""
    path = ROOT / "upstreams.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    is_tag = checkout.git.commit(f"refs/tags/{checkout.label}") == checkout.base
    fields = {**({"tag": checkout.label} if is_tag else {}), "commit": checkout.base}
    data[up.name]["versions"][checkout.label] = fields
    return False, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


# --- from commits and edits to files ---


def project_files(git: Git, up: Upstream, checkout: Checkout, final: str) -> dict[str, Content]:
    """Return the overlay files with their list, and the patches with their series, from the user's tree `final`."""
    upstream = {*git.paths(checkout.base)}
    sources = read_files(up.name)
    added = {path: new for path, (_, new) in git.changes(checkout.base, final).items() if path not in upstream}
    places = {path: sources.get(path, f"overlays/{up.name}/{path}") for path in sorted(added)}
    files: dict[str, Content] = {}
    for path, (mode, oid) in added.items():
        if mode not in PLAIN_MODES or JUNK.search(path) or not path.isprintable():
            raise Stop(LOCAL, f"{checkout.path / path} is not a plain file, so it cannot become an overlay file")
        if any(above.as_posix() in upstream for above in Path(path).parents):
            raise Stop(WRONG_BASE, f"{path} would overwrite an upstream file: overlay files are new files")
        files[places[path]] = (mode == PLAIN_MODES[1], git.run("cat-file", "blob", oid).stdout)
    files[f"overlays/{up.name}.list"] = overlay_list(up.name, places)
    layers, edited = read_layers(git, checkout, upstream), git.changes(checkout.head, final)
    fold(layers, {path: new for path, (_, new) in edited.items() if path in upstream})
    return {**files, **patch_files(git, up, checkout, layers, upstream)}


def overlay_list(name: str, paths: Iterable[str]) -> Content:
    """Return the overlay list in its present order, without files that are gone, and with new files at the end."""
    lines = (ROOT / f"overlays/{name}.list").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.split("#")[0].partition("<-")[0].strip() in ("", *paths)]
    return text([*kept, *(path for path in paths if path not in read_files(name))])


def read_layers(git: Git, checkout: Checkout, upstream: set[str]) -> list[Layer]:
    """Return the commits on top of the base, each reduced to its changes of upstream files."""
    layers, before, mine = [], checkout.base, f"{checkout.base}..{checkout.head}"
    for merge in git("rev-list", "--merges", mine).split():
        raise Stop(LOCAL, f"the commit {merge} is a merge", "make the history straight (git rebase)")
    for commit in git("rev-list", "--reverse", mine).split():
        message = git("cat-file", "commit", commit).split("\n\n", 1)[1].strip("\n")
        after = {path: new for path, (_, new) in git.changes(before, commit).items() if path in upstream}
        layers += [Layer(message, after)] if after else []
        before = commit
    return layers


def fold(layers: list[Layer], edited: dict[str, Entry]) -> None:
    """Put each uncommitted edit into the last patch that touches its file, or into a new one."""
    fresh = Layer("Describe this change", {})
    for path, entry in edited.items():
        owner = next((layer for layer in reversed(layers) if path in layer.after), fresh)
        owner.after[path] = entry
        subject = owner.message.partition("\n")[0]
        where = "a new patch; fill in its header" if owner is fresh else f"the patch {subject!r}"
        say(f"the edit of {path} goes into {where}")
    layers += [fresh] if fresh.after else []


def patch_files(git: Git, up: Upstream, checkout: Checkout, layers: list[Layer], upstream: set) -> dict[str, Content]:
    """Return the patches with their series, each named after its place and subject, as by `git format-patch`."""
    folder, contents = f"patches/{up.name}/{checkout.label}", []
    series = ROOT / folder / "series"
    old = read_series(up.name, checkout.label) if series.exists() else []
    git("read-tree", checkout.base)
    after = git("write-tree")
    for layer in layers:
        git.stage(layer.after)
        before, after = after, git("write-tree")
        if before != after:
            contents.append(format_patch(git, layer, before, after))
    if checkout.kind == "pypi":  # patches for files that the package lacks stay as they are, in their places
        for place, patch in enumerate(old):
            if not upstream & patch.files.keys():
                contents.insert(place, (patch.subject, patch.raw))
    names = [f"{place:04d}-{slug(subject)}.patch" for place, (subject, _) in enumerate(contents, 1)]
    files = {f"{folder}/{name}": (False, content) for name, (_, content) in zip(names, contents)}
    same = series.exists() and names == [patch.file for patch in old]
    return {**files, f"{folder}/series": read(series) if same else text(names)}


def slug(subject: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", re.sub(r"\.{2,}", ".", subject)).strip("-.")
    return plain[:52].strip("-.") or "change"


def format_patch(git: Git, layer: Layer, before: str, after: str) -> tuple[str, bytes]:
    """Return the subject and the text of a patch."""
    diff = git.run(*PATCH, before, after).stdout
    subject, _, body = layer.message.partition("\n")
    if b"\0" in diff:
        raise Stop(USAGE, f"the patch {subject!r} would change a binary file ({some(layer.after)})", "take it back")
    missing = [f"{field}: FILL-IN" for field in FIELDS if not re.search(rf"^{field}:", body, re.M)]
    header = "\n".join([*filter(None, [body.strip("\n")]), *missing])
    return subject, f"{MAIL}Subject: [PATCH] {subject}\n\n{header}\n\n".encode() + diff
