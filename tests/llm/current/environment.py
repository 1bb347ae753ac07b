# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The environment of these tests, apart from verl v0.4.1's, for which these packages are too new."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Unpacked source packages of verl: verl-0.9.0, verl-0.9.1.
SOURCES = Path(os.environ.get("VERL_SOURCES", ROOT / ".venv" / "verl-sources")).resolve()
VERSIONS = ("0.9.0", "0.9.1")


def require():
    """Skip the calling module where the environment or the sources are missing."""
    missing = [name for name in ("torch", "tensordict", "transfer_queue", "ray") if not importlib.util.find_spec(name)]
    missing += [str(tree) for tree in map(tree_of, VERSIONS) if not tree.is_dir()]
    if missing:
        pytest.skip(
            f"needs the environment of verl 0.9, which lacks {', '.join(missing)} here: make test-verl-0.9",
            allow_module_level=True,
        )


def tree_of(version):
    return SOURCES / f"verl-{version}"


def run(script, *arguments, verl=None, environment=None, folder=None):
    """Python, in this working folder, where `import verl` is this tree's."""
    paths = [*([verl] if verl else []), Path(__file__).parent, Path(__file__).parents[1], ROOT]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"} | (environment or {})
    command = [sys.executable, "-W", "ignore", *map(str, script), *map(str, arguments)]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=3600)


def take_steps(version, settings, processes=1):
    """One result for each of the settings, by worker_step.py. As its start takes half a minute, give it many."""
    import llm_helpers

    script = Path(__file__).with_name("worker_step.py")
    return llm_helpers.take_steps(tree_of(version), settings, processes, script)


def train(folder, *overrides, version="0.9.1"):
    """The metrics of each step, and what was printed."""
    script, log = Path(__file__).with_name("trainer_run.py"), folder / "log.jsonl"
    log.unlink(missing_ok=True)
    variables, verl = {"VERL_FILE_LOGGER_PATH": str(log)}, tree_of(version)
    result = run([script], folder, *overrides, verl=verl, environment=variables, folder=folder)
    assert result.returncode == 0, result.stdout[-10000:] + result.stderr[-10000:]
    return [json.loads(line)["data"] for line in log.read_text().splitlines()], result.stdout


def workers(printed):
    """(worker class, trainer class, trainer mode, replay buffer) of the run."""
    return re.search(r"WORKER \S+ (\w+) TRAINER (\w+) (\w+) (\w+)", printed).groups()
