"""The verb drift: every patch tried on every release of its upstream, from the pinned one to the newest.

What is not pinned is only read: nothing of it is run, and it gets into no checkout.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import re
from collections.abc import Callable

from engine.checkout import Run
from engine.common import OK, SOURCE, USAGE, WRONG_BASE, Stop, absolute, say, write_file
from engine.git import NETWORK_CONFIG, Git, environment, settings, store_files
from engine.index import Index, Package, find_index
from engine.patches import under
from engine.port import BAD, RESULTS, port_overlay
from engine.project import Sdist, Upstream, Version, read_overlay
from engine.sources import (
    STALL,
    Cache,
    Source,
    archive_in_cache,
    fetch_ref,
    find_source,
    quarantine,
    take_commit,
    unpack,
    watched,
    wished_path,
)

NUMBER = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?:[.-]?post([0-9]{1,9}))?")
# In the table's cells.
WORDS = {"already upstream": "landed", "not in the package": "no file", "target gone": "gone"}
INTRODUCTION = """\
How the patches fare on every release of their upstreams since the pinned one. `drift.json` beside this page has the ids in
full and, for `offset`, where the hunks stand. Written on """
LEGEND = """\
`clean`: every hunk stands at its line. `offset`: git's three-way merge succeeds, hunks or their context moved. `landed`: the
change is upstream already. `conflict`: at least one hunk does not merge. `gone`: a file to patch is no longer there. `no file`:
the source package does not have the file, as the pinned one does not; upstream's repository may. A patch gets the worst of its
files' results. `files`: our new files; a conflict is one that upstream has under that name. Patches are tried in order, each on
what the ones before it left. Where one conflicts in a file it changes nothing there, so that a later one may conflict in that file
for this alone: it then expects a line of ours.
"""


@dataclasses.dataclass
class Release:
    label: str  # a tag, a branch, or the version of a source package
    source: str  # "git" or "pypi"
    id: str  # a commit, or a sha256
    date: str | None
    ref: str = ""
    package: Package | None = None


def number(label: str) -> tuple | None:
    """What orders releases; None for what is none, as 1.0rc1 or a branch. 1.0 and 1.0.0 are the same one."""
    found = NUMBER.fullmatch(label)
    if not found:
        return None
    parts = [int(part) for part in found[1].split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts), int(found[2]) if found[2] else -1


def verb_drift(run: Run) -> int:
    path = wished_path(run.source)
    if path and not path.is_dir():
        raise Stop(
            USAGE,
            f"--source {path}: drift looks for releases in a repository",
            "for one archive there is the verb port",
        )
    codes = {OK}
    index = functools.cache(find_index)
    result = {name: drift_of(run, run.upstreams[name], codes, index) for name in run.names}
    run.result = {"date": datetime.date.today().isoformat(), "upstreams": result}
    text = markdown(run.result)
    say(text.rstrip("\n"))
    if run.options.out:
        out = absolute(run.options.out)
        write_file(out / "drift.md", text.encode())
        write_file(out / "drift.json", (json.dumps(run.result, indent=1, sort_keys=True) + "\n").encode())
        say(f"\nwritten: {out / 'drift.md'} and drift.json")
    return WRONG_BASE if WRONG_BASE in codes else max(codes)


def drift_of(run: Run, up: Upstream, codes: set[int], index: Callable[[], Index]) -> dict:
    """What becomes of one upstream's patches. What cannot be had, or is refused, is told in its place."""
    version = up.version(up.default)
    overlay = read_overlay(up, up.default)
    found = {"version": up.default, "commit": version.commit, "patches": [patch.file for patch in overlay.patches]}
    found.update(files=len(overlay.files), problems=[], releases=[])

    def tell(stop: Stop) -> str:
        if stop.code not in (SOURCE, WRONG_BASE):
            raise stop
        codes.add(stop.code)
        return stop.lines[0]

    if not overlay.patches and not overlay.files:
        return found
    try:
        wish = None if run.source == "pypi" else run.source  # the base is the better one where it lacks nothing
        base = find_source(run.cache, up, version, wish, run.look(up.name).git, None)
    except Stop as stop:
        found["problems"].append(tell(stop))
        return found
    with run.cache.lock(up.name):
        git = run.cache.repository(up.name)
        lists = []
        place = wished_path(run.source)
        if run.source != "pypi":
            lists.append(lambda: git_releases(run.cache, git, up, version, str(place) if place else None))
        if version.sdist and run.source in (None, "pypi"):
            lists.append(lambda: package_releases(run.cache, version, index))
        releases: dict = {}
        for ask in lists:
            try:
                for key, release in ask().items():
                    releases.setdefault(key, release)  # git first, the package where git does not have it
            except Stop as stop:
                found["problems"].append(tell(stop))
        for _, release in sorted(releases.items()):
            row = {"release": release.label, "source": release.source, "date": release.date}
            row.update(commit=None, sha256=None, result=None, problem=None, patches=[])
            try:
                check_pinned(up, release)
                if release.source == "git":
                    target = read_commit(git, up, release, str(place or up.url))
                else:
                    target = read_package(run.cache, git, up, version.sdist, release, index)
                row["patches"] = port_overlay(up, overlay, base, target)
                row["result"] = max((item["result"] for item in row["patches"]), key=RESULTS.index, default="clean")
            except Stop as stop:
                row["problem"] = tell(stop)
            row["commit" if release.source == "git" else "sha256"] = release.id
            row["date"] = release.date
            found["releases"].append(row)
    return found


# --- which releases there are ----------------------------------------------------------------------------------------


def first_number(version: Version) -> tuple | None:
    return number(version.tag or version.label) or (number(version.sdist.version) if version.sdist else None)


def git_releases(cache: Cache, git: Git, up: Upstream, version: Version, place: str | None) -> dict[tuple, Release]:
    """Release tags from the pinned one on. Where the pin is no release, the head of the default branch."""
    if cache.offline and not place:
        refs = {name.replace("refs/drift/", "refs/", 1): git.commit(name) for name in git.refs("refs/drift")}
    else:
        refs = list_refs(place or up.url)
    first = first_number(version)
    found = {}
    for ref, commit in sorted(refs.items()):
        kind, _, label = ref.removeprefix("refs/").partition("/")
        key = number(label) if kind == "tags" else None
        if key and first and key >= first:
            found.setdefault(key, Release(label, "git", commit, None, ref))
        elif kind == "heads" and not first:
            found[((), 0)] = Release(label, "git", commit, None, ref)
    if not found:
        raise Stop(SOURCE, f"{'the cache' if cache.offline else place or up.url} has no release from the pinned one on")
    return found


def list_refs(url: str) -> dict[str, str]:
    """The commits of a repository's tags and of its default branch, as the server tells them."""
    with quarantine() as outside:  # the cache's own configuration could name a program
        command = ["git", *settings(NETWORK_CONFIG), f"--git-dir={outside.git_dir}", "ls-remote", "--symref", "--"]
        status, text = watched(
            [*command, url, "HEAD", "refs/tags/*"], environment(network=True), STALL, outside.git_dir
        )
    if status:
        raise Stop(SOURCE, f"the repository {url} cannot be reached")
    rows = re.findall(r"^([0-9a-f]{40})\t(HEAD|refs/tags/\S+?)(\^\{\})?$", text, re.M)
    refs = {}
    for commit, ref, peeled in rows:
        if peeled or ref not in refs:
            refs[ref] = commit
    branch = re.search(r"^ref: (refs/heads/[A-Za-z0-9][A-Za-z0-9._+/-]*)\tHEAD$", text, re.M)
    if branch and "HEAD" in refs:
        refs[branch[1]] = refs["HEAD"]
    return refs


def package_releases(cache: Cache, version: Version, index: Callable[[], Index]) -> dict[tuple, Release]:
    """The source packages from the pinned one on. What the index said is kept for --offline."""
    project, first = version.sdist.project, number(version.sdist.version)
    memory = cache.root / "index" / f"{project}.json"
    if cache.offline:
        try:
            packages = [Package(**row) for row in json.loads(memory.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            raise Stop(SOURCE, f"what the package index has of {project} is not in the cache") from None
    else:
        packages = index().packages(project)
        write_file(memory, json.dumps([dataclasses.asdict(package) for package in packages]).encode())
    found = {}
    for package in packages:
        key = number(package.version)
        if key and first and key >= first:
            found.setdefault(key, Release(package.version, "pypi", package.sha256, package.date, package=package))
    if not found:
        raise Stop(SOURCE, f"the package index has no source package of {project} from {version.sdist.version} on")
    return found


# --- one release -----------------------------------------------------------------------------------------------------


def check_pinned(up: Upstream, release: Release) -> None:
    """A pinned release that is another one there."""
    for version in up.versions.values():
        pins = {("git", version.tag): version.commit}
        if version.sdist:
            pins["pypi", version.sdist.version] = version.sdist.sha256
        pinned = pins.get((release.source, release.label), release.id)
        if pinned != release.id:
            raise Stop(
                WRONG_BASE,
                f"{release.label} is {release.id or 'of unknown sha256'} there, expected the pinned {pinned}",
            )


def read_commit(git: Git, up: Upstream, release: Release, url: str) -> Source:
    kept = release.ref.replace("refs/", "refs/drift/", 1)
    if git.commit(kept) != release.id:
        say(f"{up.name} {release.label}: fetching {release.id[:12]} ...")
        with quarantine() as outside:
            said = fetch_ref(outside, url, release.ref, "refs/drift")
            release.id = outside.commit("refs/drift")  # a branch may have moved meanwhile
            if said or not release.id:
                raise Stop(SOURCE, f"{url} does not give {release.label}")
            take_commit(git, outside, release.id)
        git("update-ref", kept, release.id)
    release.date = git("show", "-s", "--format=%cs", release.id).strip()
    return Source("git", release.id, git, (), False)


def read_package(
    cache: Cache, git: Git, up: Upstream, pinned: Sdist, release: Release, index: Callable[[], Index]
) -> Source:
    """A source package as the index has it, unpacked in memory: unlike with pip, none of its code is run."""
    what = f"{pinned.project}-{release.label}.tar.gz"
    if not release.id:
        raise Stop(WRONG_BASE, f"{what}: the package index names no sha256 for it, so it was not fetched")
    path = archive_in_cache(cache, dataclasses.replace(pinned, version=release.label, sha256=release.id))
    if not path:
        if cache.offline:
            raise Stop(SOURCE, f"{what} is not in the cache, and --offline forbids to fetch it")
        say(f"{up.name} {release.label}: fetching {what} ...")
        path = cache.root / "archives" / release.id / what
        write_file(path, index().archive(release.package, what))
    try:
        files = {name: item for name, item in unpack(path).items() if not under(name, pinned.adds)}
    except Stop as stop:
        raise Stop(stop.code, *(line.replace(str(path), what) for line in stop.lines)) from None
    return Source("pypi", store_files(git, files, None, f"{what}\n\nsha256: {release.id}\n"), git, pinned.lacks, True)


# --- the page --------------------------------------------------------------------------------------------------------


def markdown(result: dict) -> str:
    """The same text for the terminal and for a web page."""
    parts = ["# Drift", f"{INTRODUCTION}{result['date']}, by `make drift`.", LEGEND.rstrip("\n")]
    for name, found in result["upstreams"].items():
        parts.append(f"## {name}")
        if not found["patches"] and not found["files"]:
            parts.append("It has neither patches nor files of ours.")
            continue
        parts.append(f"Made for {found['version']} (`{found['commit'][:12]}`).")
        parts += [f"Not looked at: {problem}." for problem in found["problems"]]
        if found["releases"]:
            parts.append(table(found))
            parts.append("\n".join(f"- {file[:4]}: `{file}`" for file in found["patches"]))
        notes = misfits(found)
        parts += (
            ["What does not fit, with the explanation for the newest release named:", "\n".join(notes)] if notes else []
        )
    return "\n\n".join(parts) + "\n"


def table(found: dict) -> str:
    rows = [["release", "from", "commit, sha256", "date", *(file[:4] for file in found["patches"])]]
    if found["files"]:
        rows[0].append("files")
    for row in found["releases"]:
        results = {item["patch"]: WORDS.get(item["result"], item["result"]) for item in row["patches"]}
        cells = [results.get(file, "") for file in found["patches"]]
        if found["files"]:
            cells.append("conflict" if any(file.startswith("overlays/") for file in results) else "clean")
        if row["problem"]:
            cells = ["?"] * len(cells)
        rows.append(
            [row["release"], row["source"], (row["commit"] or row["sha256"] or "")[:12], row["date"] or "", *cells]
        )
    rows.insert(1, ["-" * len(cell) for cell in rows[0]])
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows[1] = ["-" * width for width in widths]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows)


def misfits(found: dict) -> list[str]:
    """Per hunk that is in conflict (or file that is gone) the releases, and the explanation for the newest of them."""
    releases = [row["release"] for row in found["releases"]]
    lines = [f"- {row['release']} was not read: {row['problem']}" for row in found["releases"] if row["problem"]]
    seen: dict[tuple, dict[int, list[str]]] = {}
    for at, row in enumerate(found["releases"]):
        for patch in row["patches"]:
            for item in patch["files"]:
                for hunk, detail in explained(item):
                    seen.setdefault((patch["patch"], item["path"], item["result"], hunk), {})[at] = detail
    for (patch, path, result, hunk), where in sorted(seen.items(), key=lambda entry: (entry[0][:2], entry[0][3] or 0)):
        what = f"hunk {hunk}" if hunk else WORDS.get(result, result)
        number = patch[:4] if patch in found["patches"] else "files"
        lines.append(f"- {number} `{path}`, {what}: {spans(releases, sorted(where))}")
        lines += [f"  - {code(line)}" for line in where[max(where)]]
    return lines


def explained(item: dict) -> list[tuple[int | None, list[str]]]:
    """(hunk, lines that tell) for what makes a file's result a bad one."""
    if item["result"] not in BAD:
        return []
    if not item["hunks"]:
        return [(None, [line.removeprefix(f"{item['path']}: ") for line in item["detail"]])]
    blocks: list[list[str]] = []
    for line in item["detail"]:
        if line.startswith(f"{item['path']}: "):
            blocks.append([])
        blocks[-1].append(line)
    return list(zip(item["hunks"], (told(block) for block in blocks)))


def told(block: list[str]) -> list[str]:
    """What was expected and what stands there; the nearest match only where there is nothing."""
    there = any(line.startswith("found there:") and "no line" not in line for line in block)
    return [line for line in block[1:] if not (there and line.startswith("nearest"))] or block


def spans(names: list[str], places: list[int]) -> str:
    """v1, v3 to v5: neighbours in the list of names are put together."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(names[run[0]] if len(run) == 1 else f"{names[run[0]]} to {names[run[-1]]}" for run in runs)


def code(text: str) -> str:
    text = text if len(text) <= 200 else text[:199] + "\u2026"
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"
