# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The verb port: try the patches on another upstream revision or carry them there, always in a new repository."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from engine.call import Call
from engine.checkout import make_fresh, record_ref
from engine.git import NO_ID, Git, GitFailed, places
from engine.overlay import build, commit_files
from engine.project import LABEL, ROOT, Patch, Upstream, read_overlay
from engine.session import CONFLICT, LOCAL, OK, SOURCE, Stop, hint, locked, say, shell_git, some, uninterrupted
from engine.source import Source, bring, copy, fetch, requested
from engine.switch import fill

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
AM = ("am", "--3way", "--keep-cr", "--quiet")
BAD = ("conflict", "gone")


def verb_port(call: Call) -> int:
    return max(port(call, call.upstreams[name]) for name in call.names)


def port(call: Call, up: Upstream) -> int:
    """Try the patches of a version on another revision, and with --write carry them there."""
    label, onto = call.label(up) or up.default, call.onto(up)
    beside, write = call.clone or call.checkouts / up.name, call.options.write
    with contextlib.ExitStack() as temporary:
        if write:
            temporary.enter_context(locked(beside.parent))
            part = beside.with_name(f".{beside.name}.new")
            if call.clone and os.path.lexists(part):  # beside a clone it may be the user's
                raise Stop(LOCAL, f"{part} exists already, perhaps from an earlier port: remove it")
            git = make_fresh(up, beside, temporary)
        else:
            git = Git.init(Path(temporary.enter_context(tempfile.TemporaryDirectory(prefix="era-"))), bare=False)
        target = prepare(call, up, label, git)
        version = onto if onto and LABEL.fullmatch(onto) else target[:7]  # that a port makes
        place = beside.with_name(f"{beside.name}-{version if onto or not call.clone else 'era'}")
        if write and os.path.lexists(place):
            raise Stop(LOCAL, f"{place} exists already, perhaps from an earlier port: go on there, or remove it")
        rows = try_patches(git, up, label, target)
        bad = any(row["result"] in BAD for row in rows)
        plugin = [f"perhaps there is nothing to port: {up.plugin}"] if bad and up.plugin else []
        if write and rows and rows[0]["patch"] == f"overlays/{up.name}":
            advice = "if ERA was carried there before, take it out (`git revert`, `git reset`) and port onto the result"
            raise Stop(CONFLICT, f"{target[:12]}: {rows[0]['detail'][0]}", advice, *plugin)
        if write:
            carry(git, up, label, target, version, place, bad)
    where = f": in {place}, on the branch era" if write else ""
    say(f"{up.name}: {label} onto {onto or 'HEAD'} ({target[:12]}){where}")
    for row in rows:
        say("\n            ".join([f"  {row['result']:9} {row['patch']}", *row["detail"]]))
    for line in [*(uncommitted(call.clone) if call.clone else []), *plugin]:
        say(line)
    if write:
        print_next_steps(call, up.name, place, bad)
    else:
        chosen = {"--onto": call.options.onto, "--version": call.options.version}
        more = [word for option, value in chosen.items() if value for word in (option, value)]
        say(f"{hint('port', up.name, *more, '--write')} carries the patches there, up to the first conflict")
    call.result[up.name] = {"version": label, "onto": onto or "HEAD", "commit": target, "patches": rows}
    return CONFLICT if bad else OK


# --- the revision, in a repository of its own ---


def find_target(call: Call, up: Upstream, git: Git) -> str:
    """Bring the commit that --onto names, or the clone's HEAD. Only a pinned version is verified."""
    onto, cache = call.onto(up), call.cache
    if call.clone:
        return from_clone(call.clone, onto, up, git)
    if onto in up.versions:
        source = cache.find(up, up.version(onto), call.options.source)
        bring(git, cache.repository(up.name), source)
        return source.base
    kept, place = cache.repository(up.name), str(requested(call.options.source)[1] or up.git)
    for name in [onto] if re.fullmatch("[0-9a-f]{40}", onto) else [f"refs/tags/{onto}", f"refs/heads/{onto}"]:
        ref = f"refs/onto/{name.replace('/', '%')}"  # so that branches x and x/y do not clash
        if (not cache.offline and fetch(kept, place, name, ref)) or not kept.commit(ref):
            continue
        commit = kept.commit(ref)
        bring(git, kept, Source("git", commit, ref))
        if name.startswith("refs/tags/"):  # for export, which adds the version with its tag
            git("update-ref", name, commit)
        return commit
    where = "the cache (--offline)" if cache.offline else place
    raise Stop(SOURCE, f"{up.name}: there is no version, tag, branch or commit {onto} in {where}")


def from_clone(place: Path, onto: str | None, up: Upstream, git: Git) -> str:
    """Copy a commit of a clone of the user's, which is only read."""
    clone = Git.at(place) if place.is_dir() else None
    if clone and clone.bare:
        advice = f"clone it (`{shlex.join(['git', 'clone', str(place), f'{place}-files'])}`) and name that clone"
        raise Stop(SOURCE, f"{place} is a bare repository: it has no files that ERA could be pulled into", advice)
    commit = Git(place, False, places(place, False)).commit(onto or "HEAD") if clone else ""  # also of a reftable
    if len(commit) > len(NO_ID):
        advice = f"clone {up.git} again and bring your commits there (`git format-patch`, `git am`)"
        raise Stop(SOURCE, f"{place} is a SHA-256 repository, {up.name} is SHA-1, and git cannot mix them", advice)
    if not commit:
        fetch_it = f"{shell_git(place, 'fetch', up.git, onto)} may bring it"
        advice = fetch_it if onto else "expected the top folder of a git clone"
        raise Stop(SOURCE, f"{place} has no commit {onto or 'HEAD'}", advice)
    try:
        copy(clone, git, commit)
    except GitFailed as failed:
        problem = f"{place} does not give all files of {commit[:12]}"
        advice = f"{shell_git(place, 'diff', '--shortstat', EMPTY_TREE, commit)} brings what a partial clone lacks"
        raise Stop(SOURCE, problem, *failed.lines[1:], advice) from None
    return commit


def uncommitted(place: Path) -> list[str]:
    """A line about edits of tracked files in a clone, if there are any. Its index is not written."""
    clone, head = Git.at(place), Git(place, False, places(place, False)).commit("HEAD")
    if clone.commit("HEAD") != head or not Path(clone("rev-parse", "--git-path", "index")).exists():
        return []  # a reftable, or a clone with --no-checkout
    more = ("--untracked-files=no", "--no-renames", "--ignore-submodules=all")
    rows = clone.copied_index()("status", "--porcelain", "-z", *more, ok=None).split("\0")[:-1]
    edited = [row[3:] for row in rows]
    return [f"these edits are in no commit of {place}, so the port is without them: {some(edited)}"] if edited else []


def taken(files: Iterable[str], there: set[str]) -> list[str]:
    """What a revision has in the place of overlay files: files or folders, or files where folders are needed."""
    names = there | {above.as_posix() for path in there for above in Path(path).parents}
    needed = {above.as_posix() for file in files for above in Path(file).parents}
    return sorted((names & {*files}) | (there & needed))


def prepare(call: Call, up: Upstream, label: str, git: Git) -> str:
    """Bring the revision, and the contents of the pinned version, which a three-way merge of the patches needs."""
    pinned = call.cache.find(up, up.version(label), None)
    bring(git, call.cache.repository(up.name), pinned)
    build(git, up, label, pinned.base)
    return find_target(call, up, git)


def try_patches(git: Git, up: Upstream, label: str, target: str) -> list[dict]:
    """Try each patch, in order, in the work tree, on the result of the ones before. One that conflicts is left out."""
    (patches, files), there = read_overlay(up.name, label), {*git.paths(target)}
    if patches and not any(patch.files.keys() & there for patch in patches):
        advice = f"expected a revision of {up.name}, {up.git}"
        raise Stop(SOURCE, f"{target[:12]} has none of the files that the patches change", advice)
    git("checkout", "--quiet", "--force", "--detach", target)
    rows, clashes = [], taken(files, there)
    if clashes:
        detail = [f"upstream has something in the place of overlay files: {some(clashes)}"]
        rows.append({"patch": f"overlays/{up.name}", "result": "conflict", "detail": detail})
    for patch in patches:
        before = git.commit("HEAD")
        plain = git.run("apply", "--cached", "--check", "--verbose", "-", data=patch.raw, ok=None)
        done = git.run(*AM, data=patch.raw, ok=None)
        moved = plain.returncode or b"(offset " in plain.stderr
        result, detail = "offset" if moved else "clean", []
        if done.returncode:
            detail = conflicts(git, patch, there, done.stderr)
            result = "conflict" if patch.files.keys() <= there else "gone"
            git.run("am", "--abort", ok=None)
            git("reset", "--quiet", "--hard", before)
        elif git.commit("HEAD") == before:
            result = "landed"
        rows.append({"patch": patch.file, "result": result, "detail": detail})
    return rows


def conflicts(git: Git, patch: Patch, there: set[str], said: bytes) -> list[str]:
    """The files in which `git am` stopped, with the lines of the conflict markers."""
    gone = patch.files.keys() - there
    lines = [f"{path}: does not exist there" for path in sorted(gone)]
    for path in sorted({*git("diff", "--name-only", "--diff-filter=U", "-z").split("\0")[:-1]} - gone):
        text = (git.folder / path).read_bytes().split(b"\n") if (git.folder / path).is_file() else []
        at = [str(number) for number, line in enumerate(text, 1) if line.startswith(b"<<<<<<< ")]
        lines.append(f"{path}: conflict" + (f" at line {', '.join(at)}" if at else ""))
    if not lines:  # not a conflict: a full disk, or contents that a source package lacks
        raise GitFailed("am", said)
    return lines


# --- with --write ---


def carry(git: Git, up: Upstream, label: str, target: str, version: str, place: Path, conflict: bool) -> None:
    """Make a checkout of the revision with our files as a commit, and let `git am` put the patches onto it.

    `git am` stops at the first conflict, where plain git goes on. The other checkout, or the clone, is only read.
    """
    (patches, files), tip = read_overlay(up.name, label), target
    if files:
        tip, _ = commit_files(git.scratch_index(target), up.name, files, target)
    fill(git, [f"update {record_ref(version, target, tip)} {tip}"], tip)
    with uninterrupted(f"remove {place} and run the same command again"):
        git.folder.rename(place)
        folder = ROOT / "patches" / up.name / label
        am = Git.at(place).run(*AM, *(str(folder / patch.file) for patch in patches), ok=None) if patches else None
        if am and am.returncode and not conflict:
            raise GitFailed("am", am.stderr)


def print_next_steps(call: Call, name: str, place: Path, stopped: bool) -> None:
    if stopped:
        say(f"next: resolve the conflict in {place}, `git add -A` and `git am --continue`, until all are in")
    if call.clone:
        say(f"then: {shell_git(call.clone, 'pull', str(place), 'era')} brings ERA into your branch")
    export = hint("export", name).split(" --checkout")[0].strip("`")
    say(f"{'or' if call.clone else 'then'}: `{export} --checkout {place}` makes patches here")
