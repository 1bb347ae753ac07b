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
"""A grid of trainings: settings, commands, a Slurm array, Ray tasks or this machine's cores.

A launcher tells it about the script that trains with a Trainer, and gives it the runs. A run has a
name, a task, an agent and a command; its folder is the name in OUTPUT.
"""

import abc
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import launching
import run_json
from launching import Refused, checked, is_on, refuse_if_any, several

LOG = "log.txt"
LINES_OF_LOG = 12
SECONDS_TO_END = 20
SECONDS_BETWEEN_LINES = 180  # that say how much time is left
ELSEWHERE = "another launch is training it (or, after a kill -9 of that, its script alone)"
# Variables that the jobs of a Slurm array get as they are.
PASSED_ON = ("TASKS", "SEED", "AGENT", "RESUME", "WANDB")


class Run(Protocol):
    """name: of its folder. command: the script and its flags, the same wherever it runs."""

    name: str
    task: str
    agent: str
    command: tuple[str, ...]


Job = tuple[Run, Path]


def set_aside(folder: Path, left: list[Path]) -> None:
    """Moves what an interrupted run has left into interrupted-<number>/."""
    if left:
        number = 1 + len(list(folder.glob("interrupted-*")))
        (folder / f"interrupted-{number}").mkdir()
        for path in left:
            path.rename(folder / f"interrupted-{number}" / path.name)


def never() -> bool:
    return False


class Trainer(abc.ABC):
    """A script that trains one run in the run's folder, and what it leaves there."""

    @abc.abstractmethod
    def words(self, run: Run, folder: Path) -> list[str]:
        """The command to start in the folder, with Python."""

    @abc.abstractmethod
    def variables(self) -> dict[str, str]:
        """Environment variables to set."""

    def record(self, run: Run) -> dict[str, Any] | None:
        """The run.json of a run that starts now, for a script that does not write its own."""
        return None

    @abc.abstractmethod
    def leftovers(self, folder: Path) -> list[Path]:
        """What training writes, as far as it is there."""

    @abc.abstractmethod
    def resumes(self, folder: Path) -> bool:
        """Whether the command goes on from what is in the folder, instead of starting over."""

    @abc.abstractmethod
    def is_finished(self, folder: Path) -> bool: ...

    @abc.abstractmethod
    def steps(self, folder: Path) -> tuple[int, int | None]:
        """Done, and in all; None where the folder does not say."""

    @abc.abstractmethod
    def last_return(self, folder: Path) -> float | None: ...

    def planned_steps(self, run: Run) -> int | None:
        """In all, before the run has started; None if unknown: then no time left is said."""
        return None

    def about(self, run: Run) -> dict[str, Any]:
        """What the launch knows of a run, for run.json."""
        return {"agent": run.agent}

    def environment(self, run: Run) -> dict[str, str]:
        """Environment variables of the run's process, beside those of this one."""
        return {**self.variables(), **run_json.for_script(**self.about(run))}

    def train(self, run: Run, folder: Path, stopped: Callable[[], bool] = never) -> str:
        """Trains the run to its end, unless it is finished or `stopped` says so.

        Returns:
            Why it did not finish, or an empty string.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with launching.only_one(folder) as lock:
            if lock is None:
                return ELSEWHERE
            if self.is_finished(folder):
                return ""
            words = self.words(run, folder)
            if not self.resumes(folder):
                set_aside(folder, self.leftovers(folder))
            (folder / launching.COMMAND).write_text(shlex.join(run.command) + "\n")
            record = self.record(run)
            if record:
                run_json.start(folder, record)
            with (folder / LOG).open("a") as log:
                # The script inherits the lock: if this process is killed alone, training goes on.
                process = subprocess.Popen(
                    words,
                    cwd=folder,
                    env={**os.environ, **self.environment(run)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=[lock],
                )
                try:
                    # Not wait(): ray.cancel does not interrupt a system call.
                    while process.poll() is None and not stopped():
                        time.sleep(0.5)
                finally:
                    if process.poll() is None:
                        launching.end(process, SECONDS_TO_END)
            done, total = self.steps(folder)
            if self.is_finished(folder):
                if record:
                    run_json.finish(folder, {**record, "total_steps": total})
                return ""
            return f"ended with exit code {process.returncode} after {done} of {total or '?'} steps"


@dataclass(frozen=True)
class Grid:
    """One launch.

    added: the user's flags of the script.
    gpus: for each run; 0 to train on the CPU.
    at_once: the most runs that are trained at the same time; None leaves that to Ray or Slurm.
    engine: slurm; ray; or here, on this machine's cores.
    output: that OUTPUT names, or would.
    repeated: what repeating the command does, for the user.
    exports: variables that a Slurm job gets, beside those of PASSED_ON.
    """

    name: str
    added: list[str]
    jobs: list[Job]
    trainer: Trainer
    python: str
    gpus: float
    at_once: int | None
    engine: str
    output: Path
    repeated: str
    exports: dict[str, str] = field(default_factory=dict)


def read_settings(
    name: str, agents: Iterable[str], task: re.Pattern, tasks: str, others: dict | None = None
) -> dict[str, Any]:
    """The variables that choose a part of the grid and how it runs, as far as they are set.

    Args:
        task: matches a task; tasks: examples, for the user.
        others: further parsers, as launching.read_variables takes them.
    """
    agents = list(dict.fromkeys(agents))
    parsers = {
        "TASKS": (several(checked(str, task.fullmatch)), tasks),
        "SEED": launching.SEEDS,
        "AGENT": (
            several(checked(str, agents.__contains__)),
            f"one or several of {name}'s, {', '.join(agents)},",
        ),
        "RUN_INDEX": (checked(int, lambda index: index >= 0), "a number from 0"),
        **(others or {}),
    }
    values, problems = launching.read_variables(parsers)
    if is_on("SLURM") and "RUN_INDEX" in values:
        problems.append(
            "RUN_INDEX: SLURM=1 gives each job the index of its run. Leave it out; TASKS, SEED and "
            "AGENT choose a part of the grid."
        )
    if is_on("SLURM") and values.get("GPUS_PER_RUN", 1) not in (0, 1):
        problems.append("GPUS_PER_RUN: SLURM=1 gives each run a GPU of its own. Leave it out.")
    refuse_if_any(problems)
    return values


def only(jobs: list[Job], index: int | None) -> list[Job]:
    """The job of RUN_INDEX, or all."""
    if index is None:
        return jobs
    if index >= len(jobs):
        refuse_if_any([f"RUN_INDEX={index}: this grid has runs 0 to {len(jobs) - 1}."])
    return [jobs[index]]


def python_that_trains(default: str = "python3") -> str:
    """PYTHON, with a relative path made absolute, because each run starts in its own folder."""
    python = os.environ.get("PYTHON") or default
    return os.path.abspath(python) if os.sep in python else python


def output_problems(output: Path) -> list[str]:
    """It must be possible to make folders in `output`, or in what exists of its parents."""
    nearest = next(path for path in (output, *output.parents) if os.path.exists(path))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return []
    what = "not writable" if nearest.is_dir() else "not a folder"
    return [f"OUTPUT: the runs cannot be written to {output}: {nearest} is {what}. Choose another."]


def folder_problems(jobs: list[Job], trainer: Trainer) -> list[str]:
    """The runs' folders must be writable, and hold these very runs where they hold any."""
    problems = []
    for output in dict.fromkeys(folder.parent for _, folder in jobs):
        problems += output_problems(output)
    for run, folder in jobs:
        if trainer.leftovers(folder):
            problems += launching.command_problems(run.name, folder, run.command)
    return problems


def slurm_problems(engine: str) -> list[str]:
    if engine != "slurm" or shutil.which("sbatch"):
        return []
    return ["Slurm: SLURM=1, but this machine has no sbatch. Start it on a login node, or leave SLURM out."]


def ask_python(python: str, probe: Path, question: dict, variables: dict[str, str]) -> dict | None:
    """The answer of a probe, which reads JSON and prints JSON; None if there is no such Python."""
    try:
        answer = subprocess.run(
            [python, str(probe)],
            input=json.dumps(question),
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=600,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    try:
        return json.loads(answer.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        reason = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        return {
            "prefix": None,
            "has_ray": True,
            "problems": [f"environment: {python} fails to run the check: {reason}"],
        }


def environment_problems(
    python: str, probe: Path, question: dict, variables: dict[str, str], engine: str
) -> tuple[list[str], str | None]:
    """What the probe finds in the environment of `python`, and its sys.prefix."""
    answer = ask_python(python, probe, question, variables)
    if answer is None:
        return [
            f"environment: there is no Python that starts at {python}. Activate the environment "
            "that trains, or set PYTHON to its python."
        ], None
    problems = answer["problems"]
    if engine == "ray" and not answer["has_ray"]:
        problems.append(
            f"Ray: {python} does not have it, and the runs are Ray tasks. Install it there: "
            f"{python} -m pip install 'ray[default]'. SLURM=1 does not need it."
        )
    return problems, answer["prefix"]


def print_commands(grid: Grid) -> None:
    finished = sum(grid.trainer.is_finished(folder) for _, folder in grid.jobs)
    print(f"{len(grid.jobs)} runs, {finished} of them finished:", file=sys.stderr)
    for run, folder in grid.jobs:
        if grid.trainer.is_finished(folder):
            print(f"# {run.name} is finished")
            continue
        at, words = shlex.quote(str(folder)), shlex.join(grid.trainer.words(run, folder))
        variables = grid.trainer.environment(run).items()
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables)
        print(f"mkdir -p {at} && cd {at} && {given} {words}")


def slurm_script(grid: Grid) -> str:
    left = [str(index) for index, (_, folder) in enumerate(grid.jobs) if not grid.trainer.is_finished(folder)]
    output = grid.jobs[0][1].parent
    variables = {key: os.environ[key] for key in PASSED_ON if os.environ.get(key)}
    variables |= {"PYTHON": grid.python, "OUTPUT": str(grid.output), **grid.exports}
    launcher = [sys.executable, os.path.abspath(sys.argv[0]), grid.name, *grid.added]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=era-{grid.name}",
        f"#SBATCH --array={','.join(left)}" + (f"%{grid.at_once}" if grid.at_once else ""),
        *(["#SBATCH --gres=gpu:1"] if grid.gpus else []),
        f"#SBATCH --output={shlex.quote(str(output / 'slurm-%A_%a.txt'))}",
        *(f"export {key}={shlex.quote(value)}" for key, value in variables.items()),
        "export RUN_INDEX=$SLURM_ARRAY_TASK_ID SLURM= DRY_RUN= CHECK_ONLY=",
        f"exec {shlex.join(launcher)}",
    ]
    return "\n".join(lines) + "\n"


def submit(script: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    answer = subprocess.run(["sbatch", str(file)], capture_output=True, text=True)
    if answer.returncode != 0:
        raise Refused(f"sbatch refused {file}: {(answer.stderr or answer.stdout).strip()}")
    print(answer.stdout.strip())


class Here:
    """Trains on this machine: threads, each of which waits for a process."""

    def __init__(self, at_once: int):
        self.at_once, self.stop = at_once, threading.Event()

    def open(self) -> None:
        self.threads = concurrent.futures.ThreadPoolExecutor(self.at_once)

    def start(self, trainer: Trainer, job: Job) -> concurrent.futures.Future:
        return self.threads.submit(trainer.train, *job, self.stop.is_set)

    def wait(self, running: list, seconds: float | None) -> Iterable:
        """Those that have ended, after at most these seconds."""
        first = concurrent.futures.FIRST_COMPLETED
        return concurrent.futures.wait(running, seconds, first).done

    def reason(self, training: concurrent.futures.Future) -> str:
        """Why this run did not finish, or an empty string."""
        try:
            return training.result()
        except OSError as error:
            return f"not trained: {error}"

    def close(self, running: list) -> None:
        self.stop.set()
        self.threads.shutdown(cancel_futures=True)


class Ray:
    """Trains as Ray tasks. gpus: for each run; 0 to train on the CPU."""

    def __init__(self, gpus: float):
        self.gpus = gpus

    def open(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        address = os.environ.get("RAY_ADDRESS")
        # "local": a Ray of our own, not one that happens to run on this machine.
        ray.init(address=address) if address else ray.init(
            address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        launching.stop_on_signals()  # ray.init has installed its own handler
        if ray.cluster_resources().get("GPU", 0) < self.gpus:
            raise Refused(f"Ray at {address or 'this machine'} has no GPU. No run was started.")
        self.ray = ray

        # Pickled by value: only the trainer's own module puts this one on a worker's path.
        @ray.remote(num_gpus=self.gpus, num_cpus=0 if self.gpus else 1, max_retries=0)
        def train(trainer, job):
            return trainer.train(*job)

        self.task = train

    def start(self, trainer: Trainer, job: Job) -> Any:
        return self.task.remote(trainer, job)

    def wait(self, running: list, seconds: float | None) -> Iterable:
        return self.ray.wait(running, timeout=seconds)[0]

    def reason(self, reference: Any) -> str:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:  # an OSError of Trainer.train
            return f"not trained: {str(error).strip().splitlines()[-1]}"
        except self.ray.exceptions.RayError as error:
            return f"lost by Ray: {str(error).strip().splitlines()[-1]}"

    def close(self, running: list) -> None:
        import ray

        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait(running, num_returns=len(running), timeout=3 * SECONDS_TO_END)
        ray.shutdown()


class TimeLeft:
    """From the steps of all runs since the launch. None in `planned`: unknown."""

    def __init__(self, jobs: Sequence[Job], trainer: Trainer):
        self.trainer, self.folders = trainer, [folder for _, folder in jobs]
        planned = [trainer.planned_steps(run) for run, _ in jobs]
        self.total = None if None in planned else sum(planned)
        self.before = {folder: trainer.steps(folder)[0] if trainer.resumes(folder) else 0 for folder in self.folders}
        self.began = time.monotonic()

    def __call__(self, waiting: Iterable[Job] = ()) -> str:
        """For example ", about 1 h 20 min left", or an empty string."""
        if self.total is None:
            return ""
        not_begun = {folder for _, folder in waiting}
        before = sum(self.before.values())
        done = sum(
            self.before[folder] if folder in not_begun else self.trainer.steps(folder)[0] for folder in self.folders
        )
        if done <= before or done >= self.total:
            return ""
        minutes = (time.monotonic() - self.began) / (done - before) * (self.total - done) / 60
        hours = f"{minutes // 60:.0f} h " if minutes >= 60 else ""
        return f", about {hours}{minutes % 60:.0f} min left"


def train_grid(jobs: list[Job], trainer: Trainer, pool: Here | Ray, at_once: int) -> list[tuple[Job, str]]:
    """Trains the runs, at most `at_once` at the same time.

    Returns:
        The runs that did not finish, each with the reason.
    """
    waiting, running, failed = list(jobs), {}, []
    left = TimeLeft(jobs, trainer)
    seconds = None if left.total is None else SECONDS_BETWEEN_LINES
    try:
        pool.open()
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[pool.start(trainer, job)] = job
            ended = pool.wait(list(running), seconds)
            for training in ended:
                job = running.pop(training)
                reason = pool.reason(training)
                if reason:
                    failed.append((job, reason))
                count = f"{len(jobs) - len(waiting) - len(running)} of {len(jobs)}"
                report_end(job, trainer, reason, count + left(waiting))
            if not ended:
                say(f"{len(jobs) - len(waiting) - len(running)} of {len(jobs)}{left(waiting)}")
    finally:
        pool.close(list(running))
    return failed


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def report_end(job: Job, trainer: Trainer, reason: str, count: str) -> None:
    run, folder = job
    value = trainer.last_return(folder)
    finished = "finished" if value is None else f"finished, return {value:.2f}"
    say(f"{count}: {run.name} {reason or finished}")


def report(failed: list[tuple[Job, str]], repeated: str) -> str:
    parts = []
    for (run, folder), reason in failed:
        if reason == ELSEWHERE:
            parts.append(f"  - {run.name}: {reason}.")
            continue
        log = folder / LOG
        text = log.read_text(errors="replace") if log.is_file() else ""
        lines = re.split(r"[\r\n]+", text.strip())[-LINES_OF_LOG:]
        tail = [f"      {line[-200:]}" for line in lines if line.strip()]
        parts.append("\n".join([f"  - {run.name}: {reason}. The end of {log}:", *tail]))
    return f"Runs that are not finished: {len(failed)}\n" + "\n".join(parts) + f"\n{repeated}"


def launch(
    grid: Grid,
    find_problems: Callable[[str | None], tuple[list[str], str | None]],
    table: Callable[[list[Path]], list[str]],
    curves: str,
) -> None:
    """Prints, checks, submits or trains the grid, as the environment's variables say.

    Args:
        find_problems: gets the Python that trains, or None if that is still to be made; returns
            problems and sys.prefix of that Python, if known.
        table: of the runs' folders, in lines, for the end.
        curves: the file with a run's curves, for the user.
    """
    script = slurm_script(grid) if grid.engine == "slurm" else ""
    if is_on("DRY_RUN"):
        return print(script, end="") if script else print_commands(grid)
    problems, prefix = find_problems(None if is_on("ENVIRONMENT_TO_COME") else grid.python)
    problems += slurm_problems(grid.engine) + folder_problems(grid.jobs, grid.trainer)
    refuse_if_any(problems)
    output, failed = grid.jobs[0][1].parent, []
    left = [job for job in grid.jobs if not grid.trainer.is_finished(job[1])]
    if is_on("CHECK_ONLY"):
        if not is_on("ENVIRONMENT_TO_COME"):
            print(f"Nothing is missing; {len(left)} of {len(grid.jobs)} runs would start.")
        return
    if left and script:
        return submit(script, output / f"{grid.name}.sbatch")
    if left:
        if grid.engine == "ray" and prefix != sys.prefix:  # Ray's tasks run in the driver's Python
            os.execvp(grid.python, [grid.python, *map(os.path.abspath, sys.argv[:1]), *sys.argv[1:]])
        print(
            f"{len(left)} of {len(grid.jobs)} runs to train, in {output}; each writes {LOG} and {curves}",
            flush=True,
        )
        at_once = grid.at_once or len(left)
        pool = Ray(grid.gpus) if grid.engine == "ray" else Here(at_once)
        failed = train_grid(left, grid.trainer, pool, at_once)
    lines = table([folder for _, folder in grid.jobs])
    print(f"\nRuns of {grid.name} in {output}:\n" + "\n".join(lines))
    if failed:
        raise Refused("\n" + report(failed, grid.repeated))
