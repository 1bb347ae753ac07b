# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The patches of every pinned version, tried on every release from it to the next pinned one.

Releases are only read here: none of their code is run. __main__.py starts what this leaves of them.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import shutil
import tempfile
from pathlib import Path

from engine.cli import default_cache
from engine.git import Git
from engine.overlay import build, commit_files
from engine.port import try_patches
from engine.project import Upstream, read_overlay, read_upstreams
from engine.session import OK, SOURCE, WRONG_BASE, Stop, say
from engine.source import Cache, Source, bring, fetch

RESULTS = ("landed", "clean", "offset", "conflict", "gone")  # of a patch, the best first
RELEASE = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?:[.-]?post([0-9]{1,9}))?")  # a tag that is a version number


def order(label: str) -> tuple | None:
    """The key by which releases are sorted; None for anything else, such as 1.0rc1 or a branch. 1.0 equals 1.0.0."""
    found = RELEASE.fullmatch(label)
    if not found:
        return None
    numbers = re.sub(r"(\.0+)+$", "", found[1]).split(".")
    return tuple(int(number) for number in numbers), int(found[2] or -1)


def textual_drift(names, out: Path, root: Path | None = None) -> tuple[int, dict]:
    """An exit code and the result; out/NAME/VERSION/RELEASE gets each release as it is, and with what merges.

    The code is 0 whatever the results, 6 if a repository or release is unavailable, 3 if one was refused. `root` is
    the folder of the cache, by default that of apply.py.
    """
    codes, upstreams = {OK}, read_upstreams()
    with contextlib.ExitStack() as held:
        cache = Cache(root or default_cache(), False, held)
        found = {
            name: {label: drift_of(cache, upstreams[name], label, out, codes) for label in upstreams[name].versions}
            for name in names
        }
    result = {"date": datetime.date.today().isoformat(), "upstreams": found}
    return (WRONG_BASE if WRONG_BASE in codes else max(codes)), result


def drift_of(cache: Cache, up: Upstream, label: str, out: Path, codes: set[int]) -> dict:
    """One version's patches on its releases. A release that is unavailable or refused is reported as such."""
    patches, files = read_overlay(up.name, label)
    found = {"commit": up.version(label).commit, "patches": [patch.file for patch in patches]}
    found.update(files=len(files), problems=[], releases=[])
    if not patches and not files:
        return found
    say(f"{up.name} {label} ({found['commit'][:12]})")

    def note(stop: Stop) -> str:
        if stop.code not in (SOURCE, WRONG_BASE):
            raise stop
        codes.add(stop.code)
        say(f"  {stop.lines[0]}")
        return stop.lines[0]

    with tempfile.TemporaryDirectory(prefix="era-") as folder:
        git = Git.init(Path(folder), bare=False)
        try:
            pinned = cache.find(up, up.version(label), None)
            bring(git, cache.repository(up.name), pinned)
            build(git, up, label, pinned.base)  # leaves all contents there that a three-way merge needs
            releases = find_releases(cache.repository(up.name), up, label, pinned.base)
        except Stop as stop:
            found["problems"].append(note(stop))
            return found
        for release, ref, commit in releases:
            row = {"release": release, "commit": commit, "date": None, "result": None, "problem": None, "patches": []}
            try:
                read_release(cache.repository(up.name), git, up, release, ref, commit)
                row["date"] = git("show", "-s", "--format=%cs", commit)
                row["patches"] = try_patches(git, up, label, commit)
                row["result"] = max((item["result"] for item in row["patches"]), key=RESULTS.index, default="clean")
                results = "  ".join(f"{item['patch'].split('-')[0]} {item['result']}" for item in row["patches"])
                say(f"  {release:10} {row['date']}  {results}")
                leave_trees(git, up.name, files, commit, out / up.name / label / release)
            except Stop as stop:
                row["problem"] = note(stop)
            found["releases"].append(row)
    return found


def leave_trees(git: Git, name: str, files: dict[str, str], commit: str, out: Path) -> None:
    """The release as it is, and HEAD, which has the patches that merge, with our files."""
    there = {*git.paths("HEAD")}
    # verl's recipe/ is a submodule since v0.7.1: our files in it are left out.
    fit = {path for path in files if path not in there and not any(f"{up}" in there for up in Path(path).parents)}
    with git.scratch_index("HEAD") as index:
        patched, _ = commit_files(index, name, {path: files[path] for path in files if path in fit}, "HEAD")
    for tree, folder in ((patched, out / "patched"), (commit, out / "upstream")):
        shutil.rmtree(folder, ignore_errors=True)
        with git.scratch_index(tree) as index:
            index("checkout-index", "--all", f"--prefix={folder}/")


def find_releases(cache: Git, up: Upstream, label: str, base: str) -> list[tuple[str, str, str]]:
    """Tags of releases from a pinned version on and before the next pinned one, with ref and commit.

    If the pin is not a release: the pin (without a ref) and, for the last one in upstreams.json, the head of the
    default branch.
    """
    refs = list_refs(cache, up.git)
    keys = {version.label: order(version.tag or version.label) for version in up.versions.values()}
    first = keys.pop(label)
    later = [key for key in keys.values() if key and first and key > first]
    others = list(up.versions)[list(up.versions).index(label) + 1 :]
    found = {} if first else {((), 0): (label, "", base)}
    for ref, commit in sorted(refs.items()):
        kind, _, name = ref.removeprefix("refs/").partition("/")
        key = order(name) if kind == "tags" else None
        if key and first and key >= first and not any(key >= other for other in later):
            found.setdefault(key, (name, ref, commit))
        elif kind == "heads" and not first and not any(keys[other] is None for other in others):
            found[((), int(commit != base))] = (name, ref, commit)
    if not found:
        raise Stop(SOURCE, f"{up.git} has no release from the pinned one on")
    return [release for _, release in sorted(found.items())]


def list_refs(cache: Git, url: str) -> dict[str, str]:
    """The commits of a repository's tags and of its default branch, as the server reports them."""
    done = cache.run("ls-remote", "--symref", "--", url, "HEAD", "refs/tags/*", ok=None, network=True)
    if done.returncode:
        raise Stop(SOURCE, f"the repository {url} cannot be reached")
    text, refs = done.stdout.decode(errors="replace"), {}
    for commit, ref, peeled in re.findall(r"^([0-9a-f]{40})\t(HEAD|refs/tags/\S+?)(\^\{\})?$", text, re.M):
        if peeled or ref not in refs:
            refs[ref] = commit
    branch = re.search(r"^ref: (refs/heads/\S+)\tHEAD$", text, re.M)
    if branch and "HEAD" in refs:
        refs[branch[1]] = refs["HEAD"]
    return refs


def read_release(cache: Git, git: Git, up: Upstream, release: str, ref: str, commit: str) -> None:
    """Bring a release into a repository, through the cache. A pinned tag must be the pinned commit."""
    for version in up.versions.values():
        if version.tag == release and version.commit != commit:
            problem = f"{release} is {commit} there, expected the pinned {version.commit}"
            raise Stop(WRONG_BASE, problem)
    kept = ref.replace("refs/", "refs/drift/", 1)
    if ref and cache.commit(kept) != commit:
        say(f"{up.name} {release}: fetching {commit[:12]} ...")
        if fetch(cache, up.git, commit, kept):
            raise Stop(SOURCE, f"{up.git} does not provide {release}")
    if ref:
        bring(git, cache, Source("git", commit, kept))
