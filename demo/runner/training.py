# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Training runs in child processes, side by side."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas
from tqdm import tqdm

from recipes import PROJECT, curves, run_json, whole
from recipes.processes import process_group

LOG_FILE = "log.txt"
POLL_SECONDS = 0.5
PACKAGES = ("torch", "numpy", "transformers", "tensordict", "ray", "TransferQueue", "torchvision", "pillow")
PACKAGES += ("scikit-learn", "gymnasium", "mujoco", "stable-baselines3", "trl", "accelerate")


@dataclass(frozen=True)
class Training:
    """One training run.

    label: its name in messages.
    folder: where the process runs and writes.
    command, environment: of the process.
    rows: the rows that the process has written so far; length: how many a complete run writes.
    show: what the progress says, from these rows.
    record: for its run.json, see `begin`.
    resumes: whether the process goes on from what an interrupted one left in the folder, which is then not emptied.
    incomplete_because: what a finished run lacks, beside rows.
    """

    label: str
    folder: Path
    command: list[str]
    environment: dict[str, str]
    rows: Callable[[], pandas.DataFrame]
    length: int
    show: Callable[[pandas.DataFrame], str]
    record: dict
    resumes: bool = False
    incomplete_because: Callable[[], str] = str


def begin(host: str, task: str, agent: str, seed: int, total_steps: int | None, *checkout: Path) -> dict:
    """The record of a run that starts now. host: the upstream, which is in the checkout if it is a clone."""
    code = run_json.code(PROJECT, *checkout)
    return run_json.begin(host, task, seed, total_steps, PACKAGES, agent=agent, command=sys.orig_argv[1:], **code)


def environment(*path: Path, **variables: str) -> dict[str, str]:
    """The user's environment with one thread and only `path` as PYTHONPATH, as the user's may hold a stray torch.py."""
    search = os.pathsep.join(str(folder.resolve()) for folder in path)
    return {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", **variables}


def is_reused(folder: Path, label: str, host: str, fresh: bool, incomplete_because: Callable[[], str]) -> bool:
    """Whether the folder has a finished run of the host that is whole, which is then reused; prints a line on it."""
    record = run_json.read(folder)
    if fresh or not record.get("finished") or record.get("host") != host:
        return False
    try:
        reason = incomplete_because()
    except Exception as error:  # of whatever is in the folder
        reason = f"cannot be read ({type(error).__name__}: {error})"
    if reason:
        print(f"{label}: trained again, because the finished run in {folder} {reason}", flush=True)
        return False
    commit, day = str(record.get("commit") or "unknown")[:7], str(record.get("ended"))[:10]
    changes = " with changes" if record.get("modified") else ""
    print(f"{label}: reused, trained on {day} at commit {commit}{changes}", flush=True)
    return True


def empty(folder: Path) -> Path:
    """The folder, without what was in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def train(trainings: list[Training], fresh: bool = False) -> None:
    """Runs the unfinished trainings side by side. One that fails ends the others; finished ones are kept."""

    def reused(run: Training) -> bool:
        def reason() -> str:
            return whole.incomplete_because(run.folder) or run.incomplete_because()

        return is_reused(run.folder, run.label, run.record["host"], fresh, reason)

    waiting = [run for run in trainings if not reused(run)]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(contextlib.closing(_follow(training, position, fresh)))
            for position, training in enumerate(waiting)
        ]
        while running := [training for training in running if next(training, False)]:
            time.sleep(POLL_SECONDS)


def _follow(training: Training, position: int, fresh: bool) -> Iterator[bool]:
    """Runs one training: each next() checks on it once and gives True until it has ended. position: of its bar."""
    folder, began, has_ended, tenths = training.folder, time.monotonic(), False, 0
    if not training.resumes or fresh or run_json.read(folder).get("finished"):
        empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tqdm(desc=training.label, total=training.length, position=position, leave=False, disable=None) as bar,
        (folder / LOG_FILE).open("a") as log,
        process_group(training.command, training.environment, log, folder) as process,
    ):
        while not has_ended:
            has_ended = process.poll() is not None  # before its rows are read, so that none is missed
            rows = training.rows()
            if len(rows) > bar.n:
                bar.set_postfix_str(training.show(rows), refresh=False)
                bar.update(len(rows) - bar.n)
            if bar.disable and tenths < len(rows) * 10 // training.length < 10:  # where no terminal shows the bar
                tenths = len(rows) * 10 // training.length
                print(f"{training.label}: {len(rows)} of {training.length}, {training.show(rows)}", flush=True)
            yield True
    if process.returncode != 0 or len(rows) != training.length:
        tail = (folder / LOG_FILE).read_text(errors="replace").splitlines()[-15:]
        sys.exit(
            f"demo: {training.label} ended with exit code {process.returncode} after {len(rows)} of {training.length} "
            f"rows. The end of its log, {folder / LOG_FILE}:\n" + "\n".join(f"    {line[:300]}" for line in tail)
        )
    seconds = time.monotonic() - began
    run_json.finish(folder, {**training.record, "seconds": round(seconds, 1)})
    tqdm.write(f"{training.label}: {seconds:.0f} s, {training.show(rows)}")


def csv_rows(file: Path) -> pandas.DataFrame:
    """The rows of a file of curves that another process may still be writing; empty before it is there."""
    return pandas.DataFrame(curves.read(file) if file.exists() else {}, dtype=float).reset_index(drop=True)
