# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Starts the demos as a user does, and finds the processes they leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

from helpers import command_line, processes_with

ROOT = Path(__file__).resolve().parent.parent
MARK = "ERA_DEMO_TEST"  # environment variable that marks the processes of one test, whoever their parent is


def start(module: str, *arguments, **variables: str) -> subprocess.Popen:
    """Start a demo. RAY_ADDRESS names a cluster that does not exist, which it must ignore."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "127.0.0.1:1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(module: str, *arguments, **variables: str) -> subprocess.CompletedProcess:
    """Run a demo to its end."""
    process = start(module, *arguments, **variables)
    output, errors = process.communicate(timeout=900)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def wait_until_ended(mark: str) -> None:
    """Wait until no process with this MARK is left; one that was killed may still be ending."""
    deadline = time.monotonic() + 900
    while left := processes_with(**{MARK: mark}):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def wait_for_process(words: str, mark: str, process: subprocess.Popen) -> None:
    """Wait until a process with this MARK has these words in its command line."""
    deadline = time.monotonic() + 900
    while not any(words in command_line(started) for started in processes_with(**{MARK: mark})):
        assert process.poll() is None and time.monotonic() < deadline, f"{words} did not start"
        time.sleep(0.1)
