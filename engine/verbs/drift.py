"""The verb drift: every patch tried on every release of its upstream, from the pinned one to the newest.

Releases are only read: none of their code is run, and no checkout is made of them.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re

from engine.errors import OK, SOURCE, USAGE, WRONG_BASE, Stop
from engine.files import absolute, write_file
from engine.git import Git
from engine.project import Upstream, Version, read_overlay
from engine.run import Run
from engine.source import requested_path
from engine.source.git import fetch_revision, network_git, quarantine
from engine.verbs.port import RELEASE, RESULTS, pinned, trial, try_patches

INTRODUCTION = """\
How the patches fare on every release of their upstreams since the pinned one, as git sees it: a patch that merges may
still not run. `drift.json` beside this page has the details, with the lines of each conflict. Written by `make drift`
on """
LEGEND = """\
`clean`: every hunk stands at its line. `offset`: git's three-way merge succeeds, hunks or their context moved.
`landed`: the change is upstream already. `conflict`: at least one hunk does not merge. `gone`: a file to patch does not
exist there. `files`: our new files; a conflict is one that upstream has under that name. Patches are tried in order,
each on what the ones before it left; one that conflicts leaves nothing, so a later one may conflict for this alone.
"""


@dataclasses.dataclass
class Release:
    label: str  # a tag or a branch
    commit: str
    ref: str
    date: str | None = None


def order(label: str) -> tuple | None:
    """The key by which releases are sorted; None for anything else, such as 1.0rc1 or a branch. 1.0 equals 1.0.0."""
    found = RELEASE.fullmatch(label)
    if not found:
        return None
    parts = [int(part) for part in found[1].split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts), int(found[2]) if found[2] else -1


def verb_drift(run: Run) -> int:
    path = requested_path(run.options.source)
    if run.options.source == "pypi" or (path and not path.is_dir()):
        raise Stop(USAGE, f"--source {run.options.source}: drift looks for releases in a git repository")
    codes = {OK}
    result = {name: drift_of(run, run.upstreams[name], codes) for name in run.names}
    run.result = {"date": datetime.date.today().isoformat(), "upstreams": result}
    text = markdown(run.result)
    run.context.say(text.rstrip("\n"))
    if run.options.out:
        out = absolute(run.options.out)
        write_file(out / "drift.md", text.encode())
        write_file(out / "drift.json", (json.dumps(run.result, indent=1, sort_keys=True) + "\n").encode())
        run.context.say(f"\nwritten: {out / 'drift.md'} and drift.json")
    return WRONG_BASE if WRONG_BASE in codes else max(codes)


def drift_of(run: Run, up: Upstream, codes: set[int]) -> dict:
    """One upstream's patches on its releases. A release that is unavailable or refused is reported as such."""
    version = up.version(up.default)
    overlay = read_overlay(up, up.default)
    found = {"version": up.default, "commit": version.commit, "patches": [patch.file for patch in overlay.patches]}
    found.update(files=len(overlay.files), problems=[], releases=[])
    if not overlay.patches and not overlay.files:
        return found

    def note(stop: Stop) -> str:
        if stop.code not in (SOURCE, WRONG_BASE):
            raise stop
        codes.add(stop.code)
        return stop.lines[0]

    path = requested_path(run.options.source)
    try:
        _, overlay, base = pinned(run, up)
        with run.cache.lock(up.name):
            git = run.cache.repository(up.name)
            releases = find_releases(run, git, up, version, str(path or up.url))
    except Stop as stop:
        found["problems"].append(note(stop))
        return found
    with trial(run, up, [base.git, git]) as scratch:
        for _, release in sorted(releases.items()):
            row = {"release": release.label, "commit": release.commit, "result": None, "problem": None, "patches": []}
            try:
                with run.cache.lock(up.name):
                    read_release(run, git, up, release, str(path or up.url))
                row["patches"] = try_patches(scratch, up, overlay, release.commit)
                row["result"] = max((item["result"] for item in row["patches"]), key=RESULTS.index, default="clean")
            except Stop as stop:
                row["problem"] = note(stop)
            found["releases"].append({**row, "commit": release.commit, "date": release.date})
    return found


def find_releases(run: Run, git: Git, up: Upstream, version: Version, url: str) -> dict[tuple, Release]:
    """Release tags from the pinned one on. If the pin is not a release, the head of the default branch."""
    if run.cache.offline and not requested_path(run.options.source):
        refs = {name.replace("refs/drift/", "refs/", 1): git.commit(name) for name in git.refs("refs/drift")}
    else:
        refs = list_refs(git, url)
    first = order(version.tag or version.label)
    found = {}
    for ref, commit in sorted(refs.items()):
        kind, _, label = ref.removeprefix("refs/").partition("/")
        key = order(label) if kind == "tags" else None
        if key and first and key >= first:
            found.setdefault(key, Release(label, commit, ref))
        elif kind == "heads" and not first:
            found[((), 0)] = Release(label, commit, ref)
    if not found:
        raise Stop(SOURCE, f"{'the cache' if run.cache.offline else url} has no release from the pinned one on")
    return found


def list_refs(git: Git, url: str) -> dict[str, str]:
    """The commits of a repository's tags and of its default branch, as the server reports them."""
    with quarantine(git.context) as outside:  # the cache's own configuration could name a program
        status, text = network_git(outside, "ls-remote", "--symref", "--", url, "HEAD", "refs/tags/*")
    if status:
        raise Stop(SOURCE, f"the repository {url} cannot be reached")
    refs: dict[str, str] = {}
    for commit, ref, peeled in re.findall(r"^([0-9a-f]{40})\t(HEAD|refs/tags/\S+?)(\^\{\})?$", text, re.M):
        if peeled or ref not in refs:
            refs[ref] = commit
    branch = re.search(r"^ref: (refs/heads/[A-Za-z0-9][A-Za-z0-9._+/-]*)\tHEAD$", text, re.M)
    if branch and "HEAD" in refs:
        refs[branch[1]] = refs["HEAD"]
    return refs


def read_release(run: Run, git: Git, up: Upstream, release: Release, url: str) -> None:
    """Bring a release into the cache, and learn its date. A pinned tag must be the pinned commit."""
    for version in up.versions.values():
        if version.tag == release.label and version.commit != release.commit:
            problem = f"{release.label} is {release.commit} there, expected the pinned {version.commit}"
            raise Stop(WRONG_BASE, problem)
    kept = release.ref.replace("refs/", "refs/drift/", 1)
    if git.commit(kept) != release.commit:
        run.context.say(f"{up.name} {release.label}: fetching {release.commit[:12]} ...")
        found = fetch_revision(git, url, [release.ref], kept)
        if not found:
            raise Stop(SOURCE, f"{url} does not provide {release.label}")
        release.commit = found  # a branch may have moved meanwhile
    release.date = git("show", "-s", "--format=%cs", release.commit).strip()


# --- the page ---


def markdown(result: dict) -> str:
    """The same text for the terminal and for drift.md."""
    parts = ["# Drift", f"{INTRODUCTION}{result['date']}.", LEGEND.rstrip("\n")]
    for name, found in result["upstreams"].items():
        parts.append(f"## {name}")
        if not found["patches"] and not found["files"]:
            parts.append("It has neither patches nor files of ours.")
            continue
        parts.append(f"Made for {found['version']} (`{found['commit'][:12]}`).")
        parts += [f"Not tried: {problem}." for problem in found["problems"]]
        if found["releases"]:
            parts.append(table(found))
            parts.append("\n".join(f"- {file[:4]}: `{file}`" for file in found["patches"]))
        parts += [f"{row['release']} was not read: {row['problem']}." for row in found["releases"] if row["problem"]]
    return "\n\n".join(parts) + "\n"


def table(found: dict) -> str:
    columns = [file[:4] for file in found["patches"]] + (["files"] if found["files"] else [])
    rows = [["release", "commit", "date", *columns]]
    for row in found["releases"]:
        results = {item["patch"]: item["result"] for item in row["patches"]}
        cells = [results.get(file, "") for file in found["patches"]]
        if found["files"]:
            cells.append("conflict" if any(file.startswith("overlays/") for file in results) else "clean")
        cells = ["?"] * len(cells) if row["problem"] else cells
        rows.append([row["release"], (row["commit"] or "")[:12], row["date"] or "", *cells])
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows)
