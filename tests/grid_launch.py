# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Launches of the recipes' grids, whose processes have a mark in their environment."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from helpers import processes_with

from recipes import grid

ROOT = Path(__file__).resolve().parent.parent
MARK = "ERA_GRID_TEST"
SETTINGS = (
    "PYTHONPATH",
    *("TASKS", "SEED", "AGENT", "OUTPUT", "JOBS", "GPUS", "GPUS_PER_RUN", "DATA_DIR", "H0", "AUG", "NUM_CLASSES"),
    *("EPOCHS", "CPUS_PER_RUN", "RAY_ADDRESS", "SLURM", "RUN_INDEX", "DRY_RUN", "CHECK_ONLY", "CHECKOUTS"),
)


def start(mark: Path, *words: str, **variables: str) -> subprocess.Popen:
    """Start Python with these words and variables, and with none of the user's settings."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    settings = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), MARK: str(mark), **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, env={**kept, **settings}, start_new_session=True, **pipes)


def launch(mark: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """As `start`, and wait for its end."""
    process = start(mark, *words, **variables)
    printed, errors = process.communicate(timeout=900)
    return subprocess.CompletedProcess(words, process.returncode, printed, errors)


def kill_all(mark: Path) -> None:
    """Send kill -9 to the launch, to Ray and to what is being trained, until all of it is gone.

    A process that is ending has no environment any more, but keeps its files, and so its run's lock, to the end.
    """
    while left := processes_with(**{MARK: str(mark)}):
        for process in left:
            process.kill()
        time.sleep(0.1)
    for lock in filter(Path.is_file, mark.rglob(grid.LOCK)):
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def wait_for(condition, process: subprocess.Popen) -> None:
    """Wait until the condition holds, ten minutes at most, while the process runs."""
    until = time.monotonic() + 600
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate(timeout=900)
        time.sleep(0.1)
