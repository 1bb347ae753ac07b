"""The patches of every pinned version, tried on every release from it to the next pinned one.

Releases are only read here: none of their code is run. __main__.py starts what this leaves of them.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import shutil
from pathlib import Path

from engine.errors import OK, SOURCE, WRONG_BASE, Stop
from engine.files import parents
from engine.git import Git, store_files
from engine.project import Upstream, read_overlay
from engine.run import Run
from engine.source.git import fetch_revision, network_git, quarantine
from engine.verbs.port import RELEASE, RESULTS, pinned, trial, try_patches


@dataclasses.dataclass
class Release:
    label: str  # a tag or a branch
    commit: str
    ref: str  # empty for a pin that is not a release
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


def textual_drift(run: Run, out: Path) -> int:
    """Fills run.result, and leaves each release in out/NAME/VERSION/RELEASE: as it is, and with what merges.

    Returns an exit code: 0 whatever the results, 6 if a repository or release is unavailable, 3 if one was refused.
    """
    codes = {OK}
    found = {name: {label: {} for label in run.upstreams[name].versions} for name in run.names}
    run.result = {"date": datetime.date.today().isoformat(), "upstreams": found}
    for name, versions in found.items():
        for label in versions:
            versions[label] = drift_of(run, run.upstreams[name], label, out, codes)
    return WRONG_BASE if WRONG_BASE in codes else max(codes)


def drift_of(run: Run, up: Upstream, label: str, out: Path, codes: set[int]) -> dict:
    """One version's patches on its releases. A release that is unavailable or refused is reported as such."""
    overlay = read_overlay(up, label)
    found = {"commit": up.version(label).commit, "patches": [patch.file for patch in overlay.patches]}
    found.update(files=len(overlay.files), problems=[], releases=[])
    if not overlay.patches and not overlay.files:
        return found
    run.context.say(f"{up.name} {label} ({found['commit'][:12]})")

    def note(stop: Stop) -> str:
        if stop.code not in (SOURCE, WRONG_BASE):
            raise stop
        codes.add(stop.code)
        run.context.say(f"  {stop.lines[0]}")
        return stop.lines[0]

    try:
        overlay, base = pinned(run, up, label)
        with run.cache.lock(up.name):
            git = run.cache.repository(up.name)
            releases = find_releases(run, git, up, label, base.base, up.url)
    except Stop as stop:
        found["problems"].append(note(stop))
        return found
    with trial(run, up, [base.git, git]) as scratch:
        for _, release in sorted(releases.items()):
            row = {"release": release.label, "commit": release.commit, "result": None, "problem": None, "patches": []}
            try:
                with run.cache.lock(up.name):
                    read_release(run, git, up, release, up.url)
                row["patches"] = try_patches(scratch, up, overlay, release.commit)
                row["result"] = max((item["result"] for item in row["patches"]), key=RESULTS.index, default="clean")
                run.context.say(f"  {release.label:10} {release.date}  {summary(row)}")
                folder = out / up.name / label / release.label
                # verl's recipe/ is a submodule since v0.7.1: our files in it are left out.
                there = scratch.tree("HEAD")
                files = {path: one for path, one in overlay.files.items() if there.keys().isdisjoint(parents(path))}
                patched = store_files(scratch, files, "HEAD", "New files of the overlay\n")
                leave_tree(scratch, patched, folder / "patched")
                leave_tree(scratch, release.commit, folder / "upstream")
            except Stop as stop:
                row["problem"] = note(stop)
            found["releases"].append({**row, "commit": release.commit, "date": release.date})
    return found


def summary(row: dict) -> str:
    return "  ".join(f"{item['patch'].split('-')[0]} {item['result']}" for item in row["patches"])


def leave_tree(scratch: Git, commit: str, folder: Path) -> None:
    """A commit's files in a folder in which nothing of an earlier run is left."""
    shutil.rmtree(folder, ignore_errors=True)
    scratch("read-tree", commit)
    scratch("checkout-index", "--all", f"--prefix={folder}/")


def find_releases(run: Run, git: Git, up: Upstream, label: str, base: str, url: str) -> dict[tuple, Release]:
    """Release tags from a pinned version on and before the next pinned one.

    If the pin is not a release: the pin and, for the last one in upstreams.json, the head of the default branch.
    """
    refs = list_refs(git, url)
    keys = {version.label: order(version.tag or version.label) for version in up.versions.values()}
    first = keys.pop(label)
    later = [key for key in keys.values() if key and first and key > first]
    others = list(up.versions)[list(up.versions).index(label) + 1 :]
    found = {} if first else {((), 0): Release(label, base, "")}
    for ref, commit in sorted(refs.items()):
        kind, _, name = ref.removeprefix("refs/").partition("/")
        key = order(name) if kind == "tags" else None
        if key and first and key >= first and not any(key >= other for other in later):
            found.setdefault(key, Release(name, commit, ref))
        elif kind == "heads" and not first and not any(keys[other] is None for other in others):
            found[((), int(commit != base))] = Release(name, commit, ref)
    if not found:
        raise Stop(SOURCE, f"{url} has no release from the pinned one on")
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
    if release.ref and git.commit(kept) != release.commit:
        run.context.say(f"{up.name} {release.label}: fetching {release.commit[:12]} ...")
        found = fetch_revision(git, url, [release.ref], kept)
        if not found:
            raise Stop(SOURCE, f"{url} does not provide {release.label}")
        release.commit = found  # a branch may have moved meanwhile
    release.date = git("show", "-s", "--format=%cs", release.commit).strip()
