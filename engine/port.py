"""The verb port: how each patch would fare on another upstream revision."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import subprocess

from engine.checkout import Run
from engine.common import CONFLICT, OK, SOURCE, Stop, say, scratch_folder, some
from engine.git import QUIET_CONFIG, GitFailed, environment, read_contents, run_git, settings, store_files
from engine.patches import (
    Conflict,
    FileDiff,
    Hunk,
    apply_diff,
    apply_hunks,
    explain,
    locate,
    nearest,
    patched_paths,
    show,
    split_lines,
    standing,
    under,
)
from engine.project import Overlay, Upstream, check_ref, read_overlay, select_patches
from engine.sources import Source, fetch_ref, find_source, quarantine, take_commit, unpack, wished_path

# A patch gets the last of its files' results.
RESULTS = ("already upstream", "clean", "offset", "not in the package", "conflict", "target gone")
BAD = RESULTS[3:]


def verb_port(run: Run) -> int:
    bad = False
    for name in run.names:
        up = run.upstreams[name]
        label = run.version or up.default
        onto = run.options.onto
        source = find_source(run.cache, up, up.version(label), None, run.look(name).git, None)
        overlay = read_overlay(up, label)
        target = find_target(run, up, onto)
        rows = port_overlay(up, overlay, source, target)
        say(f"{name}: {label} ({source.base[:12]}) onto {onto} ({target.base[:12]})")
        if not rows:
            say("  no patches")
        for row in rows:
            say(f"  {row['patch']}: {row['result']}")
            for item in row["files"]:
                if item["detail"]:
                    say("".join(f"      {line}\n" for line in item["detail"]).rstrip("\n"))
        bad = bad or any(row["result"] in BAD for row in rows)
        run.result[name] = {"version": label, "onto": onto, "commit": target.base, "patches": rows}
    return CONFLICT if bad else OK


def find_target(run: Run, up: Upstream, onto: str) -> Source:
    """The revision to port onto. Unless it is a pinned version it is not verified, only read."""
    if onto in up.versions:
        return find_source(run.cache, up, up.version(onto), run.source, None, None)
    check_ref("--onto", onto, r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a version, tag, branch or commit")
    path = wished_path(run.source)
    sdist = up.version(run.version or up.default).sdist
    with run.cache.lock(up.name):
        git = run.cache.repository(up.name)
        if path and path.is_file():
            return Source(
                "pypi", store_files(git, unpack(path), None, f"{onto}\n"), git, sdist.lacks if sdist else (), True
            )
        into = f"refs/onto/{onto.replace('/', '%')}"  # so that a branch x and a branch x/y do not exclude each other
        if run.cache.offline:
            found = git.commit(into)
            if not found:
                raise Stop(SOURCE, f"{up.name} {onto} is not in the cache, and --offline forbids to fetch it")
            return Source("git", found, git, (), False)
        names = [onto] if re.fullmatch(r"[0-9a-f]{40}", onto) else [f"refs/tags/{onto}", f"refs/heads/{onto}"]
        for name in names:
            with quarantine() as outside:
                said = fetch_ref(outside, str(path or up.url), name, "refs/onto")
                found = None if said else outside.commit("refs/onto")
                if found:
                    take_commit(git, outside, found)
                    git("update-ref", into, found)
                    return Source("git", found, git, (), True)
        detail = f"git said: {said}" if said else "what it has under that name is no commit"
        raise Stop(SOURCE, f"{path or up.url} has no version, tag, branch or commit {onto!r}", detail)


def port_overlay(up: Upstream, overlay: Overlay, source: Source, target: Source) -> list[dict]:
    patches, skipped = select_patches(overlay, source.lacks)
    paths = patched_paths(patches)
    base, onto = source.git.tree(source.base), target.git.tree(target.base)
    rows = []
    for path in sorted(overlay.files.keys() & onto.keys()):
        detail = [f"{path}: upstream has a file of this name there"]
        rows.append(
            {
                "patch": f"overlays/{up.name}",
                "result": "conflict",
                "files": [{"path": path, "result": "conflict", "hunks": [], "detail": detail}],
            }
        )
    known = read_contents(source.git, base, paths)
    current = read_contents(target.git, onto, paths)
    for patch in patches:
        items = []
        for diff in patch.diffs:
            before = known.get(diff.path)
            try:
                after = apply_diff(diff, before)
            except Conflict as conflict:
                detail = [f"{diff.path}: does not even fit the version it was made for", *conflict.lines]
                items.append({"path": diff.path, "result": "conflict", "hunks": numbers(conflict), "detail": detail})
                continue
            result, hunks, detail, moved = port_file(diff, before, after, current.get(diff.path), target, onto)
            items.append({"path": diff.path, "result": result, "hunks": hunks, "detail": detail})
            for state, value in ((known, after), (current, moved)):
                state.pop(diff.path, None)
                if value is not None:
                    state[diff.path] = value
        rows.append(
            {"patch": patch.file, "result": max((item["result"] for item in items), key=RESULTS.index), "files": items}
        )
    for patch in overlay.patches:
        if patch.file in skipped:
            detail = ["the source package of the pinned version lacks its files: use --source git"]
            items = [
                {"path": diff.path, "result": "not in the package", "hunks": [], "detail": detail}
                for diff in patch.diffs
            ]
            rows.append({"patch": patch.file, "result": "not in the package", "files": items})
    return rows


def port_file(diff: FileDiff, before, after, ours, target: Source, onto: dict):
    """(result, hunks in conflict, report, content to go on with) for one file of one patch."""
    if ours is None:
        if under(diff.path, target.lacks) and diff.path not in onto:  # upstream's repository may well have it
            return "not in the package", [], [f"{diff.path}: the source package does not have it"], None
        if after is None:
            return "already upstream", [], [], None
        same = [path for path in onto if path.rsplit("/", 1)[-1] == diff.path.rsplit("/", 1)[-1]]
        hint = f"; files of that name there: {some(same, 3)}" if same else ""
        return "target gone", [], [f"{diff.path}: no such file there{hint}"], None
    if ours == after:
        return "already upstream", [], [], ours
    try:
        return "clean", [], [], apply_diff(dataclasses.replace(diff, old_mode=None), ours)
    except Conflict as conflict:
        first = conflict
    if after is None:
        return "conflict", numbers(first), first.lines, ours
    merged = merge(ours[1], before[1], after[1])
    if merged == ours[1]:
        return "already upstream", [], [], ours
    lines = split_lines(ours[1])
    if merged is not None:
        moves = [f"{diff.path}: hunk {hunk.number} {place(lines, hunk)}" for hunk in diff.hunks]
        return "offset", [], moves, (after[0], merged)
    # A hunk whose text is not there may still merge: one is in conflict where it does not even by itself.
    lost = [hunk for hunk in diff.hunks if merge(ours[1], before[1], apply_hunks(diff.path, before[1], [hunk])) is None]
    report = [line for hunk in lost for line in explain_clash(diff, hunk, ours[1], before[1])]
    return "conflict", [hunk.number for hunk in lost] or numbers(first), report or first.lines, ours


def numbers(conflict: Conflict) -> list[int]:
    return [] if conflict.hunk is None else [conflict.hunk]


def place(lines: list[bytes], hunk: Hunk) -> str:
    places = locate(lines, hunk)
    return standing(places, hunk.position) if places else "merges, though its context changed"


def explain_clash(diff: FileDiff, hunk: Hunk, ours: bytes, before: bytes) -> list[str]:
    """Where upstream changed the lines that a hunk changes: what was there, and what upstream has now."""
    path, lines, known = diff.path, split_lines(ours), split_lines(before)
    start, have, want = clash(ours, before, apply_hunks(path, before, [hunk])) or (0, [], [])
    changes = [
        change for change in difflib.SequenceMatcher(None, want, have, False).get_opcodes() if change[0] != "equal"
    ]
    if not changes:
        return explain(path, lines, hunk, hunk.position).lines
    # A clash can be long: what counts is where it meets the lines that the hunk changes, or the ones beside them.
    first = hunk.position + hunk.lead
    last = hunk.position + len(hunk.old) - hunk.tail
    base = next(
        (at for at in range(first, -1, -1) if known[at : at + len(want)] == want and at + len(want) >= last), first
    )
    near = [change for change in changes if change[1] <= last - base and change[2] >= first - base - 1]
    _, i, i_end, j, j_end = (near or changes)[0]
    own = max(i, min(first - base, i_end - 1))
    skip = next((at for at in range(own, i_end) if want[at].strip()), i) - i
    i, j = i + skip, min(j + skip, j_end)
    number = start + j + 1
    expected = show(want[i]) if i < i_end else "no line here"
    there = show(have[j]) if j < j_end else "no line: upstream took it away"
    report = [f"{path}: hunk {hunk.number} conflicts at line {number}", f"expected at line {number}: {expected}"]
    report.append(f"found there:{' ' * len(str(number))}        {there}")
    return report + ([nearest(lines, hunk, number - 1, want[i])] if i < i_end else [])


def merge(ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
    """git's three-way merge of one file, None on a conflict."""
    done = merge_file(ours, base, theirs)
    return done.stdout if done and done.returncode == 0 else None


def clash(ours: bytes, base: bytes, theirs: bytes) -> tuple[int, list[bytes], list[bytes]] | None:
    """The first conflict of a merge: its line (from 0) in `ours`, and the lines there of `ours` and of `base`."""
    done = merge_file(ours, base, theirs, "--diff3", "-L", "era-ours", "-L", "era-base", "-L", "era-theirs")
    lines = split_lines(done.stdout) if done else []
    marks = [b"<<<<<<< era-ours\n", b"||||||| era-base\n", b"=======\n"]
    if not all(mark in lines for mark in marks):
        return None
    start = lines.index(marks[0])
    middle = lines.index(marks[1], start)
    return start, lines[start + 1 : middle], lines[middle + 1 : lines.index(marks[2], middle)]


def merge_file(ours: bytes, base: bytes, theirs: bytes, *options: str) -> subprocess.CompletedProcess | None:
    """git merge-file, None where git would not try: it merges nothing that it takes for binary."""
    if any(b"\0" in content for content in (ours, base, theirs)):
        return None
    with scratch_folder("merge") as folder:
        names = []
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (folder / name).write_bytes(content)
            names.append(name)
        command = ["git", *settings(QUIET_CONFIG), "merge-file", "-p", *options, *names]
        env = {**environment(network=False), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
        done = run_git(command, b"", env, folder)
    if not 0 <= done.returncode < 128:  # up to 127 it is the number of conflicts
        raise GitFailed(["merge-file"], os.fsdecode(done.stderr))
    return done
