# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m tools.drift [NAME ...]: ERA on every later release of its upstreams, and docs/engine/drift.md.

`apply.py port` tries the patches of each pinned version on the releases up to the next pinned one. What merges is
started on this CPU, and so is the plug-in on the release as it is; results/drift has what each prints. Names only
print their part of the page. Exits 1 if something that was started fails, 6 if a release could not be had.
"""

import datetime
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from tools import junit
from tools.drift import probes
from tools.pages import filled, table

ROOT = Path(__file__).resolve().parents[2]
PAGE, WORK = ROOT / "docs/engine/drift.md", ROOT / "results/drift"
TESTS = [ROOT / "tests" / folder for folder in ("llm", "llm/current", "vision", "control")]  # whose files probes use
FAILS, NOT_TRIED = "fails", "not tried"
MERGE = ("clean", "offset", "landed")
NAMES = ("verl", "timm", "fasttd3")


class Plugin(NamedTuple):
    """The oldest release that it is for, its environment, and the folder of unpacked source packages."""

    oldest: str
    environment: str
    sources: str


PLUGINS = {
    "verl": Plugin("0.9.0", "verl-0.9-cpu", "verl-sources"),
    "timm": Plugin("1.0.20", "cpu", "timm-sources"),
}


# Releases, and their trees


def run(*command: object, folder: Path = ROOT) -> str:
    return subprocess.run([*map(str, command)], cwd=folder, check=True, capture_output=True, text=True).stdout


def number(tag: str) -> Version | None:
    """Of a release; None for other tags."""
    try:
        version = Version(tag)
    except InvalidVersion:
        return None
    return None if version.is_prerelease or version.local else version


def releases(pinned: dict, label: str, tags: list[str]) -> list[str]:
    """Tags from a pinned version on and before the next one. Without a tag: the pin, and main if it is the last one."""
    if "tag" not in pinned[label]:
        return [label, "main"] if label == list(pinned)[-1] else [label]
    first = number(label)
    end = min((number(other) for other in pinned if number(other) > first), default=None)
    found = {tag: version for tag in tags if (version := number(tag))}
    return sorted((tag for tag, v in found.items() if first <= v and (end is None or v < end)), key=found.get)


def merged(checkout: Path, label: str, release: str, commit: str, patches: list[Path]) -> None:
    """Turns a checkout of the pinned version into the release with these patches and the overlay's new files."""
    git = ["git", "-c", "user.name=drift", "-c", "user.email=drift@localhost"]
    if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{tree}}"], cwd=checkout, capture_output=True).returncode:
        run(*git, "fetch", "--quiet", "--depth=1", "origin", release, folder=checkout)
    clean(checkout, commit)
    for patch in patches:
        run(*git, "am", "--3way", "--keep-cr", "--quiet", patch, folder=checkout)
    added = run(*git, "diff", "--name-only", "--diff-filter=A", f"upstream/{label}", "era", folder=checkout)
    # verl's recipe/ is a submodule since v0.7.1: our files in it are left out.
    there = {*run(*git, "ls-tree", "-r", "--name-only", commit, folder=checkout).splitlines()}
    fit = [path for path in added.splitlines() if not any(str(parent) in there for parent in Path(path).parents)]
    run(*git, "checkout", "era", "--", *fit, folder=checkout)


def clean(checkout: Path, commit: str) -> None:
    run("git", "checkout", "--quiet", "--force", "--detach", commit, folder=checkout)
    run("git", "clean", "-ffdxq", folder=checkout)


# What is started


def probes_of(name: str, plugin: bool) -> dict[str, tuple[str, str]]:
    """Of the plug-in, or else of the patches: what each test of probes.py starts, and the word for success."""
    marks = {test: mark for test, found in vars(probes).items() for mark in getattr(found, "pytestmark", [])}
    return {
        test: mark.args[1:3]
        for test, mark in marks.items()
        if mark.name == "probe" and mark.args[0] == name and plugin == (len(mark.args) == 3)
    }


def start(chosen: dict[str, tuple[str, str]], tree: Path, python: Path, folder: Path) -> list[dict]:
    """What each probe does in a tree: `what`, `outcome` and `reason`."""
    folder.mkdir(parents=True)
    path = ":".join(map(str, (tree, ROOT, *TESTS)))
    tests = [f"{ROOT}/tools/drift/probes.py::{test}" for test in chosen]
    variables = {"PYTHONPATH": path, "ERA_DRIFT_TREE": str(tree), "OMP_NUM_THREADS": "1"}
    found = junit.outcomes(python, ["-m", "probe", f"--rootdir={ROOT}", *tests], folder, **variables)
    by_name, started = {name.split("::")[-1]: outcome for name, outcome in found.items()}, []
    for test, (what, success) in chosen.items():
        kind, reason = by_name.get(test, ("error", "pytest did not run it"))
        word = {"passed": success, "skipped": NOT_TRIED}.get(kind, FAILS)
        started.append({"what": what, "outcome": word, "reason": reason.removeprefix("Failed: ").split("\n")[0][:300]})
    return started


def start_plugin(name: str, version: Version | None, tree: Path, logs: Path) -> list[dict]:
    """The plug-in on a release as it is; nothing if it is not for that."""
    if name not in PLUGINS or not version or version < number(PLUGINS[name].oldest):
        return []
    chosen, python = probes_of(name, plugin=True), ROOT / ".venv" / PLUGINS[name].environment / "bin/python"
    if not python.exists():
        reason = f"there is no {python.relative_to(ROOT)}"
        return [{"what": what, "outcome": NOT_TRIED, "reason": reason} for what, _ in chosen.values()]
    return start(chosen, tree, python, logs)


def say(name: str, release: str, started: list[dict]) -> None:
    for item in started:
        title = f"{name} {release}: {item['what']}"
        print(f"{title:<40} {': '.join(filter(None, (item['outcome'], item['reason'])))}", flush=True)


def try_release(name: str, label: str, release: str, checkout: Path, logs: Path) -> dict:
    command = [sys.executable, "apply.py", "port", name, "--version", label, "--onto", release, "--json"]
    port = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    row = {"release": release, "date": "?", "results": {}, "started": [], "plugin": [], "problem": ""}
    if port.returncode not in (0, 4):
        return {**row, "problem": port.stderr.strip().rpartition("error: ")[2].partition("\n")[0]}
    found = json.loads(port.stdout)[name]
    row["results"] = {item["patch"]: item["result"] for item in found["patches"]}
    patches = [ROOT / "patches" / name / label / patch for patch, word in row["results"].items() if word in MERGE]
    merged(checkout, label, release, found["commit"], patches)
    row["date"] = run("git", "show", "-s", "--format=%cs", found["commit"], folder=checkout).strip()
    row["started"] = start(probes_of(name, plugin=False), checkout, Path(sys.executable), logs / "patched")
    clean(checkout, found["commit"])
    row["plugin"] = start_plugin(name, number(release), checkout, logs / "plug-in")
    say(name, release, row["started"] + row["plugin"])
    return row


def try_upstream(name: str, upstream: dict) -> dict[str, list[dict]]:
    """The rows of each pinned version; the last one's end with releases that there are source packages of alone."""
    refs = run("git", "ls-remote", "--tags", "--refs", upstream["git"]).splitlines()
    tags, pinned = [ref.rpartition("/")[2] for ref in refs], upstream["versions"]
    rows = {}
    for label in pinned:
        checkouts = WORK / "checkouts" / label
        run(sys.executable, "apply.py", "apply", name, "--version", label, "--checkouts", checkouts)
        rows[label] = [
            try_release(name, label, release, checkouts / name, WORK / "logs" / name / label / release)
            for release in releases(pinned, label, tags)
        ]
    known = {number(row["release"]) for found in rows.values() for row in found}
    for tree in sorted((ROOT / ".venv" / PLUGINS[name].sources).glob(f"{name}-*/")) if name in PLUGINS else ():
        version = number(tree.name.rpartition("-")[2])
        if version not in known and (started := start_plugin(name, version, tree, WORK / "logs" / tree.name)):
            row = {"release": f"v{version}", "date": "", "results": {}, "started": [], "plugin": started}
            rows[label].append({**row, "problem": ""})
            say(name, row["release"], started)
    return rows


# The page


def parts(name: str, rows: dict[str, list[dict]]) -> dict[str, str]:
    """Of each pinned version the table and its reasons, by the name of their place in the page."""
    found = {}
    for label, rows_of in rows.items():
        patches = sorted(file.name for file in (ROOT / "patches" / name / label).glob("*.patch"))
        lines = []
        for row in rows_of:
            started = in_words(row["started"]) if row["date"] else ""
            plugin = ", ".join(item["outcome"] for item in row["plugin"])
            lines.append([row["release"], row["date"], *(row["results"].get(p, "") for p in patches), started, plugin])
        heading = ["release", "date", *(patch[:4] for patch in patches), "started", "plug-in"]
        below = [f"- {row['release']} was not read: {row['problem']}." for row in rows_of if row["problem"]]
        below += reasons(rows_of)
        found[f"{name} {label}"] = "\n".join([table(heading, lines), *([""] if below else []), *below])
    return found


def in_words(started: list[dict]) -> str:
    """Such as `trains: train.py; starts: validate.py`."""
    seen = {word: [item["what"] for item in started if item["outcome"] == word] for word in (FAILS, "trains", "starts")}
    return "; ".join(f"{word}: {', '.join(what)}" for word, what in seen.items() if what) or NOT_TRIED


def reasons(rows: list[dict]) -> list[str]:
    """What failed, and why the rest was not tried, each reason once with the releases that it holds for."""
    found = {}
    for row in rows:
        for item in row["started"] + row["plugin"]:
            if item["reason"]:
                verb = f"fails: `{item['reason']}`" if item["outcome"] == FAILS else f"was not tried: {item['reason']}"
                found.setdefault(f"{item['what']} {verb}", []).append(row["release"])
    return [f"- {', '.join(releases)}: {what}" for what, releases in found.items()]


def main() -> int:
    names, upstreams = sys.argv[1:] or NAMES, json.loads((ROOT / "upstreams.json").read_text())
    if not {*names} <= {*NAMES}:
        sys.exit(f"error: {' '.join(names)}: expected of {', '.join(NAMES)}\n\n{__doc__}")
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        rows = {name: try_upstream(name, upstreams[name]) for name in names}
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(map(str, error.cmd))}\n{error.stderr}\n{PAGE} is as it was.")
    environment = f"Python {platform.python_version()}, torch {importlib.metadata.version('torch')}"
    tables = {"run": f"Written by `make drift` on {datetime.date.today()}, on a CPU ({environment})."}
    for name in names:
        tables |= parts(name, rows[name])
    print(*tables.values(), sep="\n\n")
    if not sys.argv[1:]:
        PAGE.write_text(filled(PAGE.read_text(), tables))
    found = [row for versions in rows.values() for version in versions.values() for row in version]
    if any(item["outcome"] == FAILS for row in found for item in row["started"] + row["plugin"]):
        return 1
    return 6 if any(row["problem"] for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
