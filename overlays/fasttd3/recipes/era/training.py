# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Trains one run. launch.py calls this in a Ray task or in a Slurm job."""

import os
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from zipfile import is_zipfile

import launching
import results
import runs

MODELS = "models"
SECONDS_TO_END = 20
ELSEWHERE = "another launch is training it (or, after a kill -9 of that, its train.py alone)"
# Without wandb nobody would see the videos that train.py renders.
WITHOUT_WANDB = ("--no_use_wandb", "--render_interval", "0")


@dataclass(frozen=True)
class How:
    """What all runs of a launch share."""

    checkout: Path
    python: str
    wandb: bool
    resume: bool


def humanoid_bench(checkout: Path) -> Path:
    """The folder into which apply.py puts it."""
    return checkout.parent / "humanoid-bench"


def variables(checkout: Path) -> dict[str, str]:
    """Environment variables to set."""
    bench = humanoid_bench(checkout)
    path = [str(bench) if bench.is_dir() else "", os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TQDM_MININTERVAL": "10",  # seconds; the bar goes into log.txt
    }


def newest_checkpoint(folder: Path) -> Path | None:
    numbered = {
        int(file.stem.rpartition("_")[2]): file
        for file in folder.glob(f"{MODELS}/*_[0-9]*.pt")
        if is_zipfile(file)
    }
    return numbered[max(numbered)] if numbered else None


def words(run: runs.Run, folder: Path, how: How) -> list[str]:
    script, *flags = run.command
    checkpoint = newest_checkpoint(folder) if how.resume else None
    resume = ["--checkpoint_path", str(checkpoint.relative_to(folder))] if checkpoint else []
    wandb = [] if how.wandb else WITHOUT_WANDB
    return [how.python, str(how.checkout / script), *wandb, *resume, *flags]


def leftovers(folder: Path) -> list[Path]:
    """What training writes, as far as it is there."""
    paths = [folder / name for name in (MODELS, runs.CURVES, results.LOG)]
    return [path for path in paths if path.exists()]


def set_aside(folder: Path) -> None:
    """Moves what an interrupted run has left into interrupted-<number>/."""
    left = leftovers(folder)
    if left:
        number = 1 + len(list(folder.glob("interrupted-*")))
        (folder / f"interrupted-{number}").mkdir()
        for path in left:
            path.rename(folder / f"interrupted-{number}" / path.name)


def train(run: runs.Run, folder: Path, how: How) -> str:
    """Trains the run to its end, unless it is finished.

    Returns:
        Why it did not finish, or an empty string.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with launching.only_one(folder) as lock:
        if lock is None:
            return ELSEWHERE
        if results.is_finished(folder):
            return ""
        command = words(run, folder, how)
        if "--checkpoint_path" not in command:
            set_aside(folder)
        (folder / launching.COMMAND).write_text(shlex.join(run.command) + "\n")
        environment = {**os.environ, **variables(how.checkout)}
        with (folder / results.LOG).open("a") as log:
            # train.py inherits the lock: if this process is killed alone, training goes on.
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock],
            )
            try:
                while process.poll() is None:
                    time.sleep(0.5)  # not wait(): ray.cancel does not interrupt a system call
            finally:
                if process.poll() is None:
                    launching.end(process, SECONDS_TO_END)
        if results.is_finished(folder):
            return ""
        steps = f"{results.steps_done(folder)} of {results.total_steps(folder) or '?'} steps"
        return f"ended with exit code {process.returncode} after {steps}"
