# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m tools.drift: what merges of the patches is started on this CPU; writes docs/engine/drift.md.

Beside the page is drift.json, with each hunk and each outcome. Exits 1 if a pinned version fails, or a plug-in on a
release that it is for; otherwise 6 if a repository or release is unavailable, 3 if one was refused.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from engine.session import Stop
from tools.drift import probes
from tools.drift.page import page
from tools.drift.textual import order, textual_drift

ROOT = Path(__file__).resolve().parents[2]
WORK, OUT = ROOT / "results/drift", ROOT / "docs/engine"
FAILS, NOT_TRIED = "fails", "not tried"
TESTS = [ROOT / "tests" / folder for folder in ("llm", "llm/current", "vision", "control")]  # whose files probes use


class Probe(NamedTuple):
    """A test of probes.py, with what its mark says."""

    test: str
    upstream: str
    what: str
    outcome: str
    files: tuple[str, ...]


MARKS = {name: test.pytestmark for name, test in vars(probes).items() if name.startswith("test_")}
ALL = [
    Probe(name, *mark.args[:3], mark.args[3:])
    for name, marks in MARKS.items()
    for mark in marks
    if mark.name == "probe"
]
PROBES = {
    name: [probe for probe in ALL if probe.upstream == name and probe.files] for name in ("verl", "timm", "fasttd3")
}


class Plugin(NamedTuple):
    """The oldest and newest release that it is for, its environment, unpacked source packages, and what makes these."""

    oldest: str
    newest: str
    environment: str
    sources: str
    target: str


PLUGINS = {
    "verl": Plugin("0.9.0", "0.9.1", "verl-0.9-cpu", "verl-sources", "test-verl-0.9"),
    "timm": Plugin("1.0.20", "1.0.31", "cpu", "timm-sources", "test-timm"),
}


def start(chosen: list[Probe], tree: Path, python: Path, folder: Path) -> dict[Probe, dict]:
    """The outcome of each probe, from pytest's JUnit file. What they print is there too."""
    folder.mkdir(parents=True, exist_ok=True)
    report, tests = folder / "probes.xml", [f"{ROOT}/tools/drift/probes.py::{probe.test}" for probe in chosen]
    flags = ["-q", "-m", "probe", "-p", "no:cacheprovider", "--tb=short", f"--rootdir={ROOT}", f"--junitxml={report}"]
    path = os.pathsep.join(map(str, (tree, ROOT, *TESTS)))
    environment = {**os.environ, "PYTHONPATH": path, "ERA_DRIFT_TREE": str(tree), "OMP_NUM_THREADS": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "-m", "pytest", *flags, *tests], env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    cases = {case.get("name"): case for case in ElementTree.parse(report).iter("testcase")}
    return {probe: outcome(probe, cases.get(probe.test), tree) for probe in chosen}


def outcome(probe: Probe, case: ElementTree.Element | None, tree: Path) -> dict:
    found = {kind: case.find(kind) for kind in ("skipped", "failure", "error")} if case is not None else {}
    reasons = {kind: element.get("message", "") for kind, element in found.items() if element is not None}
    if case is None:
        reasons = {"error": "pytest did not run it"}
    elif not reasons:
        return {"what": probe.what, "outcome": probe.outcome, "reason": ""}
    kind, reason = next(iter(reasons.items()))
    reason = reason.removeprefix("Failed: ").splitlines()[0][:300]
    missing = re.match(r"ModuleNotFoundError: No module named '((\w+)[\w.]*)'", reason)
    if missing and not any(tree.rglob(f"{missing[2]}.py")) and not any(tree.rglob(f"{missing[2]}/")):
        kind, reason = "skipped", f"the environment has no {missing[1]}"
    return {"what": probe.what, "outcome": NOT_TRIED if kind == "skipped" else FAILS, "reason": reason}


def obstacle(probe: Probe, row: dict, touched: dict[str, set[str]]) -> str:
    """Why a probe cannot be started on a release, or an empty string. touched: the files of each patch."""
    words = {"conflict": "conflicts", "gone": "patches a file that is gone"}
    for item in row["patches"]:
        if item["result"] in words and item["patch"] not in touched:
            return "upstream has files with the names of ours"
        if item["result"] in words and not touched[item["patch"]].isdisjoint(probe.files):
            return f"{item['patch'][:4]} {words[item['result']]}"
    return ""


def start_release(name: str, row: dict, touched: dict[str, set[str]], tree: Path, folder: Path) -> list[dict]:
    """Every probe of a release. Those of a file that no patch of this version touches are left out."""
    known = [probe for probe in PROBES[name] if any(probe.files[-1] in files for files in touched.values())]
    obstacles = {probe: obstacle(probe, row, touched) for probe in known}
    free = [probe for probe in known if not obstacles[probe]]
    started = start(free, tree, Path(sys.executable), folder) if free else {}
    untried = {"outcome": NOT_TRIED}
    return [started.get(probe) or {"what": probe.what, **untried, "reason": obstacles[probe]} for probe in known]


def start_plugin(name: str, tree: Path, folder: Path) -> dict:
    plugin, (probe,) = PLUGINS[name], [probe for probe in ALL if probe.upstream == name and not probe.files]
    python = ROOT / ".venv" / plugin.environment / "bin/python"
    for path in (python, tree):
        if not path.exists():
            reason = f"no {path.relative_to(ROOT)}, which `make {plugin.target}` makes"
            return {"what": probe.what, "outcome": NOT_TRIED, "reason": reason}
    return start([probe], tree, python, folder)[probe]


def plugin_trees(name: str, versions: dict, trees: Path) -> dict[str, Path]:
    """The unpatched releases that the host's plug-in is for: the repository's, and always oldest and newest."""
    if name not in PLUGINS:
        return {}
    plugin = PLUGINS[name]
    oldest, newest = order(plugin.oldest), order(plugin.newest)
    found = {
        row["release"]: trees / name / label / row["release"] / "upstream"
        for label, version in versions.items()
        for row in version["releases"]
        if not row["problem"] and oldest <= (order(row["release"]) or ()) <= newest
    }
    for release in (plugin.oldest, plugin.newest):
        if order(release) not in map(order, found):
            found[f"v{release}"] = ROOT / ".venv" / plugin.sources / f"{name}-{release}"
    return found


def start_all(result: dict, trees: Path, logs: Path) -> bool:
    """Adds the outcomes to the textual result. Whether nothing failed that this project says it supports."""
    supported = []
    for name, versions in result["upstreams"].items():
        for label, version in versions.items():
            patches = {patch: (ROOT / "patches" / name / label / patch).read_text() for patch in version["patches"]}
            touched = {patch: set(re.findall(r"^diff --git a/(\S+) b/", text, re.M)) for patch, text in patches.items()}
            for row in version["releases"]:
                place = Path(name, label, row["release"])
                tree = trees / place / "patched"
                row["started"] = [] if row["problem"] else start_release(name, row, touched, tree, logs / place)
                say(name, row["release"], row["started"])
                supported += row["started"] if row["commit"] == version["commit"] else []
        plugins = {
            release: start_plugin(name, tree, logs / name / "plug-in" / release)
            for release, tree in plugin_trees(name, versions, trees).items()
        }
        for release, item in plugins.items():
            say(name, release, [item])
        supported += plugins.values()
        result["upstreams"][name] = {"versions": versions, "plugins": plugins}
    return all(item["outcome"] != FAILS for item in supported)


def say(name: str, release: str, outcomes: list[dict]) -> None:
    for item in outcomes:
        title = f"{name} {release}: {item['what']}"
        print(f"{title:<40} {': '.join(filter(None, (item['outcome'], item['reason'])))}", flush=True)


def main() -> int:
    trees, logs = WORK / "trees", WORK / "logs"
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        status, result = textual_drift(PROBES, trees)
    except Stop as stop:
        sys.exit(f"error: {stop}\ndocs/engine/drift.md is as it was")
    print(f"\nStarted on this CPU; what each prints is in {logs}.", flush=True)
    good = start_all(result, trees, logs)
    result["environment"] = f"Python {platform.python_version()}, torch {metadata.version('torch')}"
    (OUT / "drift.json").write_text(json.dumps(result, indent=1) + "\n")
    (OUT / "drift.md").write_text(page(result))
    shutil.rmtree(trees)
    print(f"\n{page(result)}\nwritten: docs/engine/drift.md and drift.json")
    return status if good else 1


if __name__ == "__main__":
    sys.exit(main())
