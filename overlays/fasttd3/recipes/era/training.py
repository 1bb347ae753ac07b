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
"""One run: its folder, its lock, and the process that trains it. launch.py calls this in a Ray task or in a Slurm job."""

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional
from zipfile import is_zipfile

import results
import runs

COMMAND, MODELS = "command.txt", "models"
SECONDS_TO_END = 20
ELSEWHERE = "another launch is training it (or its train.py alone, after a kill -9 of that)"
# With wandb off the rendered video goes nowhere; train.py renders it all the same.
WITHOUT_WANDB = ("--no_use_wandb", "--render_interval", "0")


@dataclass(frozen=True)
class How:
    """All runs of a launch are trained with these."""

    checkout: Path
    python: str
    wandb: bool
    resume: bool


def humanoid_bench(checkout: Path) -> Path:
    """Where apply.py puts it."""
    return checkout.parent / "humanoid-bench"


def variables(checkout: Path) -> Dict[str, str]:
    """Of the environment, beside those that are there."""
    bench = humanoid_bench(checkout)
    path = [str(bench) if bench.is_dir() else "", os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TQDM_MININTERVAL": "10",
    }  # the bar goes into log.txt


def newest_checkpoint(folder: Path) -> Optional[Path]:
    numbered = {
        int(file.stem.rpartition("_")[2]): file
        for file in folder.glob(f"{MODELS}/*_[0-9]*.pt")
        if is_zipfile(file)
    }
    return numbered[max(numbered)] if numbered else None


def words(run: runs.Run, folder: Path, how: How) -> List[str]:
    script, *flags = run.command
    checkpoint = newest_checkpoint(folder) if how.resume else None
    resume = ["--checkpoint_path", str(checkpoint.relative_to(folder))] if checkpoint else []
    return [
        how.python,
        str(how.checkout / script),
        *(() if how.wandb else WITHOUT_WANDB),
        *resume,
        *flags,
    ]


def set_aside(folder: Path) -> None:
    """What an interrupted run has left goes into interrupted-<number>/."""
    left = [
        folder / name for name in (MODELS, runs.CURVES, results.LOG) if (folder / name).exists()
    ]
    if left:
        number = 1 + len(list(folder.glob("interrupted-*")))
        (folder / f"interrupted-{number}").mkdir()
        for path in left:
            path.rename(folder / f"interrupted-{number}" / path.name)


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[Optional[int]]:
    """The lock's file descriptor; None where another launch has it."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock.fileno()


def end(process: subprocess.Popen) -> None:
    """train.py and its environments, which share its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)


def train(run: runs.Run, folder: Path, how: How) -> str:
    """Trains the run to its end, unless it is finished. Returns why it is not finished, or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder) as lock:
        if lock is None:
            return ELSEWHERE
        if results.is_finished(folder):
            return ""
        command = words(run, folder, how)
        if "--checkpoint_path" not in command:
            set_aside(folder)
        (folder / COMMAND).write_text(shlex.join(run.command) + "\n")
        environment = {**os.environ, **variables(how.checkout)}
        with (folder / results.LOG).open("a") as log:
            # train.py keeps the lock: if this process is killed alone, that one goes on.
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=[lock],
            )  # fmt: skip
            try:
                while process.poll() is None:
                    time.sleep(0.5)  # in short pieces: ray.cancel does not wake a system call
            finally:
                if process.poll() is None:
                    end(process)
        if results.is_finished(folder):
            return ""
        return f"ended with exit code {process.returncode} after {results.steps_done(folder)} of {results.total_steps(folder) or '?'} steps"
