# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""run.json: what a run was trained with, and whether it is finished. whole.py says whether all of a run is there.

A script that trains calls begin, start and finish. A launcher of such a script gives it what the
script cannot know in the variable ERA_RUN (see `for_script`). A launcher of a script that writes no
run.json calls the three functions itself, in the Python that trains. The fields:

    host, task, agent, seed   what was trained; host is the upstream, or the demo
    entry                     what the run counts for in `make report`: the `folder` of entries of
                              experiments.toml; null: nothing, or the folder's name says it
    command                   the script and its flags, without the folders that it is in
    added                     those flags that the user added to the recipe's; null: unknown
    as_paper                  whether it trains as the recipe does: nothing was added that changes
                              it; null: unknown
    commit, modified          of the code, and whether it has changes that are not committed; null:
                              unknown
    total_steps, finished, started, ended, cpu_seconds   finished stays false for `make llm-RUN`,
                              whose metrics.jsonl says how far a run is
    evaluate_freq, episode_length   say with the command which rows train.csv has: PPO's, and TD-MPC2's,
                              null where episodes may end early
    versions, hardware, threads   of Python and packages; of the machine; variables that are set
                              and that choose kernels and numbers of threads

Needs the standard library alone.
"""

import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FILE = "run.json"
SET_ASIDE = "interrupted-"  # begins the names of the folders for what an interrupted start of a run has left
VARIABLE = "ERA_RUN"
TRAINS = ("era", "overlays", "patches", "recipes", "demo", "rivals", "upstreams.json")
THREADS = ("OMP_", "MKL_", "OPENBLAS_", "BLIS_", "KMP_", "GOMP_", "ATEN_", "XLA_FLAGS")


def begin(
    host: str,
    task: str,
    seed: int | None,
    total_steps: int | None,
    packages: Sequence[str],
    **known: Any,
) -> dict[str, Any]:
    """The record of a run that starts now, by the process that trains.

    Args:
        total_steps: of the whole run; None where only the script knows.
        packages: whose versions matter.
        known: further fields, or other values of those above: agent, entry, added, as_paper, **code(...).
    """
    return {
        "host": host,
        "task": task,
        "agent": None,
        "seed": seed,
        "entry": None,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "added": None,
        "as_paper": None,
        "total_steps": total_steps,
        "finished": False,
        "started": now(),
        "ended": None,
        "cpu_seconds": 0.0,
        "commit": None,
        "modified": None,
        **describe(packages),
        **known,
        **json.loads(os.environ.get(VARIABLE) or "{}"),
    }


def start(folder: Path, record: dict[str, Any]) -> None:
    """Writes the record of a run that starts or goes on.

    A run that goes on keeps the time of its first start, and stays modified or unlike the paper's
    if it once was: `record` gets these.
    """
    before = read(folder)
    if before and not before.get("finished"):
        record["started"] = before.get("started") or record["started"]
        if before.get("modified"):
            record["modified"] = True
        if before.get("as_paper") is False:
            record["as_paper"] = False
    write(folder, record)


def finish(folder: Path, record: dict[str, Any], cpu_seconds: float | None = None) -> None:
    """Writes the record of a run that has reached its last step. cpu_seconds: if they are known."""
    seconds = None if cpu_seconds is None else round(cpu_seconds, 1)
    write(folder, {**record, "finished": True, "ended": now(), "cpu_seconds": seconds})


def write(folder: Path, record: dict[str, Any]) -> None:
    """Replaces run.json as a whole: a kill or a full disk leaves the earlier one."""
    new = folder / f"{FILE}.new"
    new.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(new, folder / FILE)


def read(folder: Path) -> dict[str, Any]:
    """The record in the folder; {} without run.json, or with one that cannot be read."""
    try:
        record = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def setting(record: dict[str, Any], name: str, default: int) -> int:
    """A whole number that the run was trained with: the record's where the script writes it there, else the last of the
    flags of its command (`--name 5`, `name=5`, with - for _), else the script's default."""
    if record.get(name):
        return int(record[name])
    words = " ".join(map(str, record.get("command") or [])).replace("=", " ").split()
    values = [value for flag, value in zip(words, words[1:]) if flag.lstrip("-").replace("-", "_") == name]
    return int(float(values[-1])) if values else default


# What a launcher knows


def for_script(**known: Any) -> dict[str, str]:
    """The variable that gives a script's `begin` these fields."""
    return {VARIABLE: json.dumps(known)}


def is_as_paper(added: Sequence[str], harmless: Collection[str]) -> bool:
    """Whether words that were added to a recipe's command change nothing in what is trained.

    Args:
        harmless: flags that may be added, or the keys of hydra's overrides.
    """
    words = list(added)
    while words:
        flag, equals, _ = words.pop(0).partition("=")
        if flag.lstrip("+") not in harmless:
            return False
        if not equals and words and not words[0].startswith("-"):
            words.pop(0)  # the flag's value
    return True


def code(*folders: Path) -> dict[str, Any]:
    """commit and modified of the git repositories that these folders are the tops of.

    commit is the first repository's. modified is true if, in one of them, a tracked file that
    trains is not as committed, or a checkout of apply.py has a commit on top of apply.py's.
    """
    states = [_state(folder) for folder in folders if folder.exists()]
    modified = [state["modified"] for state in states] or [None]
    is_modified = True if True in modified else None if None in modified else False
    return {"commit": states[0]["commit"] if states else None, "modified": is_modified}


def _state(folder: Path) -> dict[str, Any]:
    git = ("git", "-C", str(folder))
    top = _ask(*git, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != folder.resolve():
        return {"commit": None, "modified": None}
    paths = [name for name in TRAINS if (folder / name).exists()] if (folder / "apply.py").exists() else []
    status = _ask(*git, "status", "--porcelain", "--branch", "--untracked-files=no", "--", *paths)
    commit, _, author = (_ask(*git, "log", "-1", "--format=%H %ae") or "").strip().partition(" ")
    if status is None:
        return {"commit": commit or None, "modified": None}
    branch, *changed = status.splitlines()
    on_top = branch.partition("...")[0] == "## era" and not author.startswith("era-overlays@")
    return {"commit": commit or None, "modified": bool(changed) or on_top}


def _ask(*command: str) -> str | None:
    """What a command prints; None if it does not exist or fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


# The environment and the machine


def describe(packages: Sequence[str]) -> dict[str, Any]:
    """versions, hardware and threads, of this Python on this machine. Packages that are not installed have none."""
    versions = {"python": platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    threads = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(THREADS)}
    return {"versions": versions, "hardware": hardware(), "threads": threads}


def hardware() -> dict[str, Any]:
    """What the bits of a result depend on: two CPUs of one name may have other instructions.

    cpu, family, model, stepping: as the kernel names them. capability: the instructions that torch
    chooses its kernels for, where torch is installed. cores: that this process may use.
    """
    named = {"cpu": "model name", "family": "cpu family", "model": "model", "stepping": "stepping"}
    values = _first_cpu()
    machine: dict[str, Any] = {key: values[name] for key, name in named.items() if name in values}
    machine.setdefault("cpu", platform.processor() or platform.machine())
    if importlib.util.find_spec("torch"):
        import torch

        machine["capability"] = torch.backends.cpu.get_cpu_capability()
    return {**machine, "cores": cores(), "gpus": gpus()}


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_cpu() -> dict[str, str]:
    """The lines of /proc/cpuinfo about the first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def gpus() -> list[str]:
    """The names of this machine's NVIDIA GPUs."""
    names = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or ""
    return [line.strip() for line in names.splitlines() if line.strip()]


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
