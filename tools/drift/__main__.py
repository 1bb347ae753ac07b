"""python -m tools.drift: what merges of the patches is started on this CPU; writes docs/engine/drift.md.

Beside the page is drift.json, with each hunk and each outcome. Exits 1 if a pinned version fails, or a plug-in on a
release that it is for; otherwise 6 if a repository or release is unavailable, 3 if one was refused.
"""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from demo.runner.command import exit_code, only_one
from demo.runner.environment import ROOT, cleaned
from demo.runner.errors import DemoError
from demo.runner.processes import process_group
from engine.cli import read_arguments
from engine.context import Context
from engine.errors import Stop
from engine.files import write_file
from tools.drift.page import page
from tools.drift.textual import order, textual_drift

SECONDS = 600  # for a probe, which takes some seconds
TRAINS, STARTS, FAILS, NOT_TRIED = "trains", "starts", "fails", "not tried"


@dataclass(frozen=True)
class Check:
    """What is started, by a function of probes.py, and the files whose patches it needs.

    outcome: if the probe ends well; or, without a probe, why there is none.
    """

    what: str
    outcome: str
    probe: str
    files: tuple[str, ...]


LOG_PROBS, FACTORY = "verl/utils/torch_functional.py", "timm/models/_factory.py"
FASTTD3 = ("fast_td3/hyperparams.py", "fast_td3/train.py")
VERL_ACTOR = (LOG_PROBS, "verl/trainer/config/ppo_trainer.yaml", "verl/workers/actor/dp_actor.py")
CHECKS = {
    "verl": (
        Check("log-probs", STARTS, "verl_log_probs", (LOG_PROBS,)),
        Check("the actor's update", TRAINS, "verl_update", VERL_ACTOR),
        Check("file logger", STARTS, "verl_file_logger", ("verl/utils/tracking.py",)),
    ),
    "timm": (
        Check("create_model", STARTS, "timm_model", (FACTORY,)),
        Check("train.py", TRAINS, "timm_train", (FACTORY, "train.py")),
        Check("validate.py", STARTS, "timm_validate", (FACTORY, "validate.py")),
        Check("test-time pooling", STARTS, "timm_pool", (FACTORY, "timm/layers/test_time_pool.py")),
    ),
    "fasttd3": (
        Check("train.py", TRAINS, "fasttd3_train", FASTTD3),
        Check("load_policy", STARTS, "fasttd3_deploy", (*FASTTD3, "fast_td3/fast_td3_deploy.py")),
        Check("train_multigpu.py", "it needs GPUs", "", ("fast_td3/train_multigpu.py",)),
        Check(
            "MuJoCo Playground", "it is not in the environment", "", ("fast_td3/environments/mujoco_playground_env.py",)
        ),
    ),
}


@dataclass(frozen=True)
class Plugin:
    """A plug-in's check, the oldest and newest release that it is for, its environment, and what makes that.

    sources: unpacked source packages, for a release that the repository has no tag of.
    """

    check: Check
    oldest: str
    newest: str
    environment: str
    sources: str
    target: str


PLUGINS = {
    "verl": Plugin(
        Check("era.verl", TRAINS, "era_verl", ()), "0.9.0", "0.9.1", "verl-0.9-cpu", "verl-sources", "test-verl-0.9"
    ),
    "timm": Plugin(Check("era.timm", TRAINS, "era_timm", ()), "1.0.20", "1.0.31", "cpu", "timm-sources", "test-timm"),
}


def start(probe: str, tree: Path, python: Path, folder: Path) -> str:
    """An empty string, or the last line of the error. What it prints is in folder/<probe>.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    tests = [ROOT / "tests" / folder for folder in ("llm", "llm/current", "vision", "control")]
    variables = cleaned(dict(os.environ), tree, ROOT, *tests) | {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [python, "-m", "demo.runner.child", ROOT / "tools/drift/probes.py", probe, tree]
    log = folder / f"{probe}.txt"
    with log.open("w") as stream, process_group(list(map(str, command)), variables, stream, folder) as process:
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return f"no end after {SECONDS} s"
    return last_line(log.read_text(errors="replace")) or f"exit code {status}" if status else ""


def last_line(log: str) -> str:
    """The last line that names an exception, or else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (named or lines or [""])[-1][:300]


def missing_package(error: str, tree: Path) -> str:
    """The module that the environment lacks, if that is the error and it is none of the release's own."""
    found = re.match(r"ModuleNotFoundError: No module named '((\w+)[\w.]*)'", error)
    own = found and (any(tree.rglob(f"{found[2]}.py")) or any(tree.rglob(f"{found[2]}/")))
    return found[1] if found and not own else ""


def attempt(title: str, check: Check, obstacle: str, tree: Path, python: Path, folder: Path) -> dict:
    """One outcome, also printed."""
    began = time.monotonic()
    error = "" if obstacle else start(check.probe, tree, python, folder)
    missing = missing_package(error, tree)
    obstacle = f"the environment has no {missing}" if missing else obstacle
    outcome = NOT_TRIED if obstacle else FAILS if error else check.outcome
    reason = obstacle or error
    said = f"{outcome}: {reason}" if reason else outcome
    print(f"{f'{title}: {check.what}':<40} {said}  ({time.monotonic() - began:.0f} s)", flush=True)
    return {"what": check.what, "outcome": outcome, "reason": reason}


def touched(name: str, label: str, patch: str) -> set[str]:
    text = (ROOT / "patches" / name / label / patch).read_text()
    return set(re.findall(r"^diff --git a/(\S+) b/", text, re.M))


def obstacle(check: Check, row: dict, paths: dict[str, set[str]], failed: list[Check]) -> str:
    """Why a check cannot be made on a release, or an empty string. paths: what each patch touches."""
    words = {"conflict": "conflicts", "gone": "patches a file that is gone"}
    for item in row["patches"]:
        if item["result"] in words and item["patch"] not in paths:
            return "upstream has files with the names of ours"
        if item["result"] in words and not paths[item["patch"]].isdisjoint(check.files):
            return f"{item['patch'][:4]} {words[item['result']]}"
    broken = [other.what for other in failed if set(other.files) < set(check.files)]
    return f"{broken[0]} fails" if broken else "" if check.probe else check.outcome


def start_release(name: str, row: dict, paths: dict[str, set[str]], tree: Path, folder: Path) -> list[dict]:
    """Every check of a release. Those of a file that no patch of this version touches are left out."""
    outcomes, failed = [], []
    for check in CHECKS[name]:
        if any(check.files[-1] in patched for patched in paths.values()):
            reason, title = obstacle(check, row, paths, failed), f"{name} {row['release']}"
            outcomes.append(attempt(title, check, reason, tree, Path(sys.executable), folder))
            failed += [check] if outcomes[-1]["outcome"] == FAILS else []
    return outcomes


def start_plugin(title: str, plugin: Plugin, tree: Path, folder: Path) -> dict:
    python = ROOT / ".venv" / plugin.environment / "bin/python"
    lacking = [path for path in (python, tree) if not path.exists()]
    reason = f"no {lacking[0].relative_to(ROOT)}, which `make {plugin.target}` makes" if lacking else ""
    return attempt(title, plugin.check, reason, tree, python, folder)


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
    """Adds the outcomes to drift's result. Whether nothing failed that this project says it supports."""
    supported = []
    for name, versions in result["upstreams"].items():
        for label, version in versions.items():
            paths = {patch: touched(name, label, patch) for patch in version["patches"]}
            for row in version["releases"]:
                place = Path(name, label, row["release"])
                tree = trees / place / "patched"
                row["started"] = [] if row["problem"] else start_release(name, row, paths, tree, logs / place)
                supported += row["started"] if row["commit"] == version["commit"] else []
        plugins = {
            release: start_plugin(f"{name} {release}", PLUGINS[name], tree, logs / name / "plug-in" / release)
            for release, tree in plugin_trees(name, versions, trees).items()
        }
        supported += plugins.values()
        result["upstreams"][name] = {"versions": versions, "plugins": plugins}
    return all(item["outcome"] != FAILS for item in supported)


def drift(arguments: argparse.Namespace) -> int:
    work, out = ROOT / "results/drift", ROOT / "docs/engine"
    trees, logs = work / "trees", work / "logs"
    work.mkdir(parents=True, exist_ok=True)
    with only_one(work):
        for folder in (trees, logs):
            shutil.rmtree(folder, ignore_errors=True)
        run = read_arguments(Context(), ["fetch", *CHECKS])
        try:
            status = textual_drift(run, trees)
        except Stop as stop:
            raise DemoError(f"{stop}\ndocs/engine/drift.md is as it was") from None
        print(f"\nStarted on this CPU; what each prints is in {logs}.", flush=True)
        result = run.result
        good = start_all(result, trees, logs)
        result["environment"] = f"Python {platform.python_version()}, torch {metadata.version('torch')}"
        write_file(out / "drift.json", (json.dumps(result, indent=1) + "\n").encode())
        write_file(out / "drift.md", page(result).encode())
        shutil.rmtree(trees)
    print(f"\n{page(result)}\nwritten: docs/engine/drift.md and drift.json")
    return status if good else 1


if __name__ == "__main__":
    sys.exit(exit_code(drift, argparse.Namespace(out=ROOT / "results/drift"), "drift", "the page is as it was"))
