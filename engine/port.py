"""The verb port: how each patch would fare on another upstream revision."""

from __future__ import annotations

import dataclasses
import re

from engine.checkout import Run
from engine.common import CONFLICT, OK, SOURCE, Stop, say, scratch_folder, some
from engine.git import QUIET_CONFIG, environment, read_contents, run_git, settings, store_files
from engine.patches import Conflict, FileDiff, Hunk, apply_diff, explain, locate, patched_paths, split_lines, standing
from engine.project import Overlay, Upstream, check_pattern, read_overlay, select_patches
from engine.sources import Source, fetch_ref, find_source, unpack, wished_path

RESULTS = ("already upstream", "clean", "offset", "conflict", "target gone")  # a patch gets the last of its files' results


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
        bad = bad or any(row["result"] in RESULTS[3:] for row in rows)
        run.result[name] = {"version": label, "onto": onto, "commit": target.base, "patches": rows}
    return CONFLICT if bad else OK


def find_target(run: Run, up: Upstream, onto: str) -> Source:
    """The revision to port onto. Unless it is a pinned version it is not verified, only read."""
    if onto in up.versions:
        return find_source(run.cache, up, up.version(onto), run.source, None, None)
    check_pattern("--onto", onto, r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a version, tag, branch or commit")
    path = wished_path(run.source)
    with run.cache.lock(up.name):
        git = run.cache.repository(up.name)
        if path and path.is_file():
            return Source("pypi", store_files(git, unpack(path), None, f"{onto}\n"), git, (), True)
        into = f"refs/onto/{onto}"
        if run.cache.offline:
            found = git.commit(into)
            if not found:
                raise Stop(SOURCE, f"{up.name} {onto} is not in the cache, and --offline forbids to fetch it")
            return Source("git", found, git, (), False)
        names = [onto] if re.fullmatch(r"[0-9a-f]{40}", onto) else [f"refs/tags/{onto}", f"refs/heads/{onto}"]
        for name in names:
            said = fetch_ref(git, str(path or up.url), name, into)
            if not said:
                return Source("git", git.commit(into), git, (), True)
        raise Stop(SOURCE, f"{path or up.url} has no version, tag, branch or commit {onto!r}", f"git said: {said}")


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
                "files": [{"path": path, "result": "conflict", "hunk": None, "detail": detail}],
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
                items.append({"path": diff.path, "result": "conflict", "hunk": conflict.hunk, "detail": detail})
                continue
            result, hunk, detail, moved = port_file(diff, before, after, current.get(diff.path), onto)
            items.append({"path": diff.path, "result": result, "hunk": hunk, "detail": detail})
            for state, value in ((known, after), (current, moved)):
                state.pop(diff.path, None)
                if value is not None:
                    state[diff.path] = value
        rows.append({"patch": patch.file, "result": max((item["result"] for item in items), key=RESULTS.index), "files": items})
    rows += [
        {
            "patch": file,
            "result": "target gone",
            "files": [
                {
                    "path": file,
                    "result": "target gone",
                    "hunk": None,
                    "detail": ["the source package at hand lacks its files: use --source git"],
                }
            ],
        }
        for file in skipped
    ]
    return rows


def port_file(diff: FileDiff, before, after, ours, onto: dict):
    """(result, hunk, report, content to go on with) for one file of one patch."""
    if ours is None:
        if after is None:
            return "already upstream", None, [], None
        same = [path for path in onto if path.rsplit("/", 1)[-1] == diff.path.rsplit("/", 1)[-1]]
        hint = f"; files of that name there: {some(same, 3)}" if same else ""
        return "target gone", None, [f"{diff.path}: no such file there{hint}"], None
    if ours == after:
        return "already upstream", None, [], ours
    try:
        return "clean", None, [], apply_diff(dataclasses.replace(diff, old_mode=None), ours)
    except Conflict as conflict:
        first = conflict
    if after is None:
        return "conflict", first.hunk, first.lines, ours
    merged = merge(ours[1], before[1], after[1])
    if merged == ours[1]:
        return "already upstream", None, [], ours
    lines = split_lines(ours[1])
    if merged is not None:
        moves = [f"{diff.path}: hunk {hunk.number} {place(lines, hunk)}" for hunk in diff.hunks]
        return "offset", None, moves, (after[0], merged)
    lost = [hunk for hunk in diff.hunks if not locate(lines, hunk)]
    report = [line for hunk in lost for line in explain(diff.path, lines, hunk, hunk.position).lines] or first.lines
    return "conflict", lost[0].number if lost else first.hunk, report, ours


def place(lines: list[bytes], hunk: Hunk) -> str:
    places = locate(lines, hunk)
    return standing(places, hunk.position) if places else "merges, though its context changed"


def merge(ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
    """git's three-way merge of one file, None on a conflict."""
    with scratch_folder("merge") as folder:
        names = []
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (folder / name).write_bytes(content)
            names.append(name)
        command = ["git", *settings(QUIET_CONFIG), "merge-file", "-p", *names]
        env = {**environment(network=False), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
        done = run_git(command, b"", env, folder)
    return done.stdout if done.returncode == 0 else None
