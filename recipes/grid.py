# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Trains the runs of an experiment, on this machine's cores or GPUs, as Ray tasks or as a Slurm array.

What trains one run is a TrainingScript, in recipes/vision and recipes/control; LaunchOptions are what the user chose.
This file has the order of the runs, their folders and locks, the checks before, and the signals. It leaves out what is
trained, what a whole run is (whole.py), and how processes end (processes.py).

A run is a folder: .lock, which belongs to whoever trains it, command.txt, log.txt, run.json and what its script writes.
The same command again recovers from everything, a kill -9 included: it skips finished runs, resumes those that have a
checkpoint, and starts the others over, after moving their files into interrupted-<n>/ of the folder. A run that
run.json calls finished, and that is not whole, starts over too. What is wrong with one run's folder is that run's line,
and the others are trained.
"""

import abc
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from recipes import PROJECT, UserError, launch_options, run_json, whole
from recipes.launch_options import LaunchOptions
from recipes.processes import process_group

LOCK, COMMAND, LOG = ".lock", "command.txt", "log.txt"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_TO_END = 60  # torchrun takes up to 30 to end its workers


def flag_names(words: Sequence[str]) -> list[str]:
    """The names of `--flag`, `--flag=value` and hydra's `name=value`, with - for _, the same to FastTD3's parser."""
    names = [word.partition("=")[0].lstrip("+") for word in words if re.match(r"--\w|\+{0,2}[\w.]+=", word)]
    return [name.replace("_", "-") for name in names]


@dataclass(frozen=True)
class Run:
    """One training of the grid.

    Attributes:
        folder: the run's own, in which it is trained.
        command: the script and its flags, the same wherever it runs.
        steps: how many to train, where the launch decides that.
        entry: what the run counts for in `make report`, for run.json; "" where that does not count it.
    """

    folder: Path
    task: str
    agent: str
    seed: int
    command: tuple[str, ...]
    steps: int | None = None
    entry: str = ""

    @property
    def name(self) -> str:
        return self.folder.name


class TrainingScript(abc.ABC):
    """A script that trains one run in the run's folder. An instance is one launch of an experiment with it.

    Args:
        name: the experiment's.
        added: the user's flags of the script, which come last and win.
    """

    launcher: ClassVar[str]  # the one of launch_options.LAUNCHERS that starts it
    experiments: ClassVar[Mapping[str, Any]]
    root: Path  # the folder that `file` is in
    file: ClassVar[str]  # the script, below root
    upstream: ClassVar[str] = ""  # the name of the upstream whose checkout `root` is
    packages: ClassVar[tuple[str, ...]] = ()  # what the script imports
    space: ClassVar[int] = 20 * 2**20  # bytes that a run's folder may take
    own_flags: Collection[str] = ()  # what the user cannot add: the experiment and the variables set them
    harmless: ClassVar[tuple[str, ...]] = ()  # flags that change nothing in what is trained
    one_at_a_time: ClassVar[tuple[str, ...]] = ()  # experiments whose runs' time is compared
    gpus: float = 0  # GPUs of a run; below 1, several runs share one
    cpus: int = 1  # CPUs that a run's processes keep busy

    def __init__(self, name: str, added: Sequence[str] = ()):
        self.name, self.added = name, tuple(added)
        self.options = LaunchOptions.from_environment(self.launcher)
        self.python, self.checkouts = self.options.python, self.options.checkouts

    runs: Sequence[Run]

    @abc.abstractmethod
    def argv(self, run: Run) -> list[str]:
        """The command that trains the run, from its checkpoint if there is one."""

    @abc.abstractmethod
    def variables(self, run: Run) -> dict[str, str]:
        """The environment variables of the run's process, beside those of this one."""

    def start_folder(self, run: Run) -> Path:
        """The folder that the script is started in."""
        return run.folder

    def checkpoint(self, run: Run) -> Path | None:
        """The file that `argv` goes on from; None: it starts over."""
        return None

    def is_finished(self, run: Run) -> bool:
        """Whether run.json says that the run is finished, and all of it is there."""
        return says_finished(run) and not self.incomplete_because(run)

    def incomplete_because(self, run: Run) -> str:
        """Why the folder of a run that has come to its end does not hold all of it; "" if it does."""
        return whole.incomplete_because(run.folder)

    def record(self, run: Run) -> dict[str, Any] | None:
        """The run.json of a run that starts now, where the script writes none; None where it does."""
        return None

    def complete_record(self, run: Run) -> None:  # noqa: B027  most scripts need none
        """Complete the run.json of a finished run, where the script does not."""

    def last_result(self, run: Run) -> str:
        """The end of the line that is printed on a finished run: its last result, or ""."""
        return ""

    def comparable(self, words: list[str]) -> list[str]:
        """The words of a command that must be the same when it is resumed."""
        return words

    def problems(self) -> list[str]:
        """What this script lacks, beside what all scripts need: a sentence each; an empty list lets the runs start."""
        return []

    def prepare(self) -> None:  # noqa: B027
        """Do once, before the runs start, what several of them would otherwise do at the same time."""


# -------------------------------------------------------------------------------------------------------------- one run


def train(script: TrainingScript, run: Run, stop: threading.Event | None = None, devices: str | None = None) -> str:
    """Train the run to its end, unless it is finished.

    Args:
        stop: set to end the training.
        devices: CUDA_VISIBLE_DEVICES; None leaves that as it is.

    Returns:
        Why it did not finish, or an empty string.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    with open(run.folder / LOCK, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "is being trained by another launch, or by what a killed one has left running"
        if not script.is_finished(run):
            if starts_over(script, run):
                set_aside(run.folder)
            code = run_script(script, run, lock.fileno(), stop, devices)
            if not script.is_finished(run):
                lines = (run.folder / LOG).read_text(errors="replace").splitlines()[-12:]
                tail = "".join(f"\n    {line[-200:]}" for line in lines)
                lacks = f" and {script.incomplete_because(run)}" if code == 0 else ""
                if lacks and script.checkpoint(run):
                    lacks += f".\n  To train it from its start, move {run.folder} away"
                return f"ended with exit code {code}{lacks}.\n  The end of {run.folder / LOG}:{tail}"
        script.complete_record(run)
        return ""


def starts_over(script: TrainingScript, run: Run) -> bool:
    """Whether an unfinished run is trained from its start, and not resumed: run.json wrongly calls it finished, no
    launch has begun it, or it has no checkpoint."""
    return says_finished(run) or not (run.folder / COMMAND).exists() or not script.checkpoint(run)


def says_finished(run: Run) -> bool:
    """Whether run.json says that the run is finished."""
    return run_json.read(run.folder).get("finished") is True


def run_script(script: TrainingScript, run: Run, lock: int, stop: threading.Event | None, devices: str | None) -> int:
    """Write command.txt and run.json, run the script until it ends or is stopped, and return its exit code."""
    new = run.folder / f"{COMMAND}.new"
    new.write_text(shlex.join(run.command) + "\n")
    new.replace(run.folder / COMMAND)
    if record := script.record(run):
        run_json.start(run.folder, record)
    visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    # The script inherits the lock: if this process is killed alone, training goes on, and nobody else begins it.
    with (
        open(run.folder / LOG, "a") as log,
        process_group(
            script.argv(run),
            {**os.environ, **script.variables(run), **visible},
            log,
            script.start_folder(run),
            ends_with_parent=False,
            seconds_to_end=SECONDS_TO_END,
            inherited=[lock],
        ) as process,
    ):
        # Not wait(): ray.cancel does not interrupt a system call.
        while process.poll() is None and not (stop and stop.is_set()):
            time.sleep(0.5)
    return process.returncode


def set_aside(folder: Path) -> None:
    """Move what an interrupted run has left into interrupted-<n>/ of its folder."""
    left = [path for path in folder.iterdir() if path.name != LOCK and not path.name.startswith(run_json.SET_ASIDE)]
    if left:
        ends = [path.name.removeprefix(run_json.SET_ASIDE) for path in folder.glob(f"{run_json.SET_ASIDE}*")]
        aside = folder / f"{run_json.SET_ASIDE}{1 + max(map(int, filter(str.isdecimal, ends)), default=0)}"
        aside.mkdir()
        for path in left:
            path.rename(aside / path.name)


# ---------------------------------------------------------------------------------------------------------- all of them


def visible_gpus() -> list[str]:
    """This machine's GPUs, as CUDA_VISIBLE_DEVICES names them; none without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        visible = ",".join(map(str, range(len(run_json.gpus()))))
    return [device for device in visible.split(",") if device.strip() not in ("", "-1")]


def slots(script: TrainingScript) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each of the runs that this machine trains at the same time."""
    if not script.gpus:
        return [None] * (script.options.jobs or run_json.cores())
    devices, size = visible_gpus(), int(script.gpus) or 1
    groups = [",".join(devices[at : at + size]) for at in range(0, len(devices) - size + 1, size)]
    runs_of_a_gpu = int(1 / script.gpus) if script.gpus < 1 else 1
    return (groups * runs_of_a_gpu)[: script.options.jobs]


def train_all(script: TrainingScript, runs: Sequence[Run], by_ray: bool) -> list[str]:
    """Train the runs, as many at a time as there is room for, and print a line on each that ends.

    Returns:
        A sentence on each run that did not finish.
    """
    stop, failed = threading.Event(), []
    train_one, at_once = (ray_trainer(script, stop), len(runs)) if by_ray else local_trainer(script, stop)
    with ThreadPoolExecutor(1 if script.name in script.one_at_a_time else at_once) as threads:
        training = {threads.submit(train_one, run): run for run in runs}
        try:
            for count, ended in enumerate(as_completed(training), 1):
                run = training[ended]
                reason = outcome(ended.result)
                said = reason.partition("\n")[0] or "finished"
                with suppress(Exception):
                    said += "" if reason else script.last_result(run)
                print(f"{time.strftime('%H:%M:%S')} {count} of {len(runs)}: {run.name} {said}", flush=True)
                failed += [f"{run.name} {reason}"] if reason else []
        except KeyboardInterrupt:
            # `timeout make ...` signals make and this process, and make signals this process again. A second interrupt
            # would let Python go on without the threads that end the trainings.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise
    return failed


def local_trainer(script: TrainingScript, stop: threading.Event) -> tuple[Callable[[Run], str], int]:
    """The function that trains a run on this machine, and how many runs it may train at a time."""
    free = slots(script)
    at_once = len(free)

    def train_one(run: Run) -> str:
        devices = free.pop()
        try:
            return train(script, run, stop, devices)
        finally:
            free.append(devices)

    return train_one, at_once


def ray_trainer(script: TrainingScript, stop: threading.Event) -> Callable[[Run], str]:
    """The function that trains a run as a Ray task; it may be given all runs at a time."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    address = script.options.ray_address
    ray.init(address, runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False, logging_level="ERROR")
    interrupt_on_signals()  # ray.init installs a handler of its own
    if ray.cluster_resources().get("GPU", 0) < script.gpus:
        raise UserError(f"Ray at {address} has no {script.gpus:g} GPUs. No run was started.")
    task = ray.remote(num_gpus=script.gpus, num_cpus=0 if script.gpus else 1, max_retries=0)(train)

    def train_one(run: Run) -> str:
        reference = task.remote(script, run)
        while not stop.wait(0.5) and not ray.wait([reference], timeout=0)[0]:
            pass
        if stop.is_set():
            ray.cancel(reference)
        return ray.get(reference)

    return train_one


def slurm_script(script: TrainingScript) -> str:
    """The text of a batch script whose array has a job for each run that is not finished."""
    usable, _ = sort_out(script, script.runs)
    left = [str(index) for index, run in enumerate(script.runs) if run in usable and not script.is_finished(run)]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=era-{script.name}",
        f"#SBATCH --array={','.join(left)}" + ("%1" if script.name in script.one_at_a_time else ""),
        f"#SBATCH --cpus-per-task={script.options.cpus_per_run or script.cpus}",
        *([f"#SBATCH --gres=gpu:{max(1, int(script.gpus))}"] if script.gpus else []),
        f"#SBATCH --output={shlex.quote(str(script.runs[0].folder.parent / 'slurm-%A_%a.txt'))}",
        "#SBATCH --open-mode=append",
        "export RUN_INDEX=$SLURM_ARRAY_TASK_ID SLURM= DRY_RUN= CHECK_ONLY= RAY_ADDRESS= PYTHON=",
        f"cd {shlex.quote(os.getcwd())}",
        f"exec {shlex.join([script.python, '-m', script.launcher, script.name, *script.added])}",
    ]
    return "\n".join(lines) + "\n"


def submit(batch_script: str, file: Path) -> None:
    """Write the batch script to the file and give it to sbatch.

    The jobs get this environment, and with it the variables that choose runs, also where SBATCH_EXPORT says NONE.
    SBATCH_ARRAY_INX, which cuts LLM runs into pieces, would replace the array of the runs.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(batch_script)
    kept = {name: value for name, value in os.environ.items() if name != "SBATCH_ARRAY_INX"}
    if subprocess.run(["sbatch", "--export=ALL", str(file)], env=kept).returncode != 0:
        raise UserError(f"sbatch refused {file}")


# --------------------------------------------------------------------------------------------------------- the launcher


def outcome(function: Callable[..., str | None], *arguments: Any) -> str:
    """Call the function and return what it returns, or, as anything may be in a run's folder, its error as a text."""
    try:
        return function(*arguments) or ""
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def sort_out(script: TrainingScript, runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs whose folders can be used, and a line on each of the others."""
    reasons = {run: outcome(read_folder, script, run) for run in runs}
    lines = [
        f"{run.name} is left alone: {reason}. Repair {run.folder}, or move it away: then the run starts anew."
        for run, reason in reasons.items()
        if reason
    ]
    return [run for run in runs if not reasons[run]], lines


def read_folder(script: TrainingScript, run: Run) -> None:
    """Read what the launch will need of the run's folder. What cannot be read raises an error, which is the reason."""
    if run.folder.is_symlink():
        raise UserError(f"{run.folder} is a link, and what is in the folder behind it may not be a run's")
    if run.folder.exists():
        list(run.folder.iterdir())
        folder_problems(script, run)


def problems(script: TrainingScript, runs: Sequence[Run]) -> list[str]:
    """What would go wrong silently, or would stop all runs, or some of them only after hours; a sentence each."""
    sentences = []
    if not (script.root / script.file).is_file():
        apply = f"python3 apply.py apply {script.upstream} --source git --checkouts {script.checkouts}"
        sentences.append(f"checkout: {script.root} has no {script.file}. Run: {apply}")
    packages = (*script.packages, "ray") if script.options.ray_address else script.packages
    lacks = [name for name in packages if find_spec(name) is None]
    if lacks:
        sentences.append(f"environment: {sys.executable} lacks {', '.join(lacks)}. Set PYTHON to one that has them.")
    if not (script.options.slurm or script.options.ray_address or slots(script)):
        has = f"GPUs: a run wants {script.gpus:g}, and this machine has {len(visible_gpus())}."
        sentences.append(f"{has} GPUS or GPUS_PER_RUN choose; RAY_ADDRESS or SLURM=1 train elsewhere.")
    for run in runs:
        sentences += folder_problems(script, run)
    left = sum(not script.is_finished(run) for run in runs)
    parent = script.runs[0].folder.parent
    free = shutil.disk_usage(next(path for path in (parent, *parent.parents) if path.is_dir())).free
    if free < left * script.space:
        needed = f"{left} runs may take {left * script.space / 2**30:.1f}"
        sentences.append(f"OUTPUT: {parent} has {free / 2**30:.1f} GiB of free disk space; {needed}.")
    return sentences or script.problems()


def folder_problems(script: TrainingScript, run: Run) -> list[str]:
    """A sentence if the folder holds another run than this, finished or with a checkpoint; else an empty list.

    Without either, the folder's files are set aside, so that they may be of any run.
    """
    file = run.folder / COMMAND
    if not (script.is_finished(run) or script.checkpoint(run)):
        return []
    try:
        words = shlex.split(file.read_text()) if file.is_file() else run.command
        before, now = (shlex.join(script.comparable(list(command))) for command in (words, run.command))
    except ValueError as error:
        raise ValueError(f"{file} is not a command of this experiment ({error})") from None
    if before == now:
        return []
    return [
        f"{run.name}: {run.folder} holds a run with other flags. Then: {before}; now: {now}. "
        "Give the same flags to continue it, choose another OUTPUT, or move it away."
    ]


def print_commands(script: TrainingScript, runs: Sequence[Run]) -> None:
    """Print the shell command of each run that is not finished, and what is to be said of the others as comments."""
    usable, lines = sort_out(script, runs)
    finished = sum(map(script.is_finished, usable))
    print(f"{len(runs)} runs, {finished} of them finished:", file=sys.stderr)
    for line in (*lines, *finished_but_incomplete(script, usable)):
        print(f"# {line}")
    for run in usable:
        if script.is_finished(run):
            print(f"# {run.name} is finished")
            continue
        at = shlex.quote(str(script.start_folder(run)))
        begin = f"cd {at}" if script.start_folder(run) != run.folder else f"mkdir -p {at} && cd {at}"
        variables = " ".join(f"{name}={for_shell(value)}" for name, value in script.variables(run).items())
        print(f"{begin} && {variables} {shlex.join(script.argv(run))}")


def finished_but_incomplete(script: TrainingScript, runs: Sequence[Run]) -> list[str]:
    """A line on each run that run.json calls finished, and that is not whole."""
    return [
        f"{run.name} says that it is finished, but {script.incomplete_because(run)}. It starts over; its files move "
        "into interrupted-<n>/ of its folder."
        for run in runs
        if says_finished(run) and not script.is_finished(run)
    ]


def for_shell(value: str) -> str:
    """The value as a word of a shell command, in which this process's PATH, at its end, is a variable."""
    path = os.environ["PATH"]
    return f'{shlex.quote(value.removesuffix(path))}"$PATH"' if value.endswith(f":{path}") else shlex.quote(value)


def launch(script: TrainingScript) -> None:
    """Print, check, submit or train the script's runs, as its options say. Raises UserError where that cannot be."""
    runs = chosen_runs(script)
    if script.options.dry_run:
        print(slurm_script(script), end="") if script.options.slurm else print_commands(script, runs)
        return
    in_python_that_trains(script.python)
    if finish(script, runs):
        folder = shlex.quote(str(runs[0].folder.parent))
        print(f"All are finished. A table of them: python -m recipes.results {folder}")


def chosen_runs(script: TrainingScript) -> Sequence[Run]:
    """The runs of the grid, or the one of RUN_INDEX, with flags that the user may add."""
    options = script.options
    # argparse takes the beginning of a flag for the flag.
    own_flags = flag_names(script.own_flags)
    if taken := [name for name in flag_names(script.added) if any(flag.startswith(name) for flag in own_flags)]:
        raise UserError(f"ARGS: {', '.join(taken)} cannot be set here: the experiment and the variables do.")

    if not script.runs:
        raise UserError(f"AGENT={' '.join(options.agents or ())}: {script.name} has no such run.")
    index = options.run_index
    if index is not None and (index >= len(script.runs) or options.slurm):
        raise UserError(f"RUN_INDEX={index}: one of runs 0 to {len(script.runs) - 1} expected, and no SLURM=1.")
    return script.runs if index is None else [script.runs[index]]


def finish(script: TrainingScript, runs: Sequence[Run]) -> bool:
    """Check the runs, and train or submit those that are not finished.

    Returns:
        Whether all are finished; False also where the options ask for the check alone.

    Raises:
        UserError: something is missing, so that nothing was started, or runs were not finished.
    """
    options = script.options
    usable, failed = sort_out(script, runs)
    if lacks := list(dict.fromkeys(problems(script, usable))):
        raise UserError("This cannot start; nothing was changed:\n" + "\n".join(f"  - {problem}" for problem in lacks))
    left = [run for run in usable if not script.is_finished(run)]
    for line in (*failed, *finished_but_incomplete(script, left)):
        print(line, flush=True)

    if options.check_only:
        print(f"Nothing is missing; {len(left)} of {len(runs)} runs would start.")
        if failed:
            raise UserError(f"Runs whose folders cannot be used: {len(failed)}, which are named above.")
        return False

    for run in usable:
        if run not in left and (reason := outcome(script.complete_record, run)):
            failed.append(f"{run.name} is finished, but its {run_json.FILE} cannot be completed: {reason}")
    if left:
        script.prepare()
    if left and options.slurm:
        submit(slurm_script(script), runs[0].folder.parent / f"{script.name}.sbatch")
    else:
        print(f"{len(left)} of {len(runs)} runs to train, in {runs[0].folder.parent}; each writes {LOG}", flush=True)
        by_ray = bool(options.ray_address) and options.run_index is None
        failed += train_all(script, left, by_ray) if left else []

    if failed:
        again = "The same command again skips finished runs, and resumes or starts over these."
        raise UserError(f"\nRuns that are not finished: {len(failed)}\n" + "\n".join(failed) + f"\n{again}")
    return not (left and options.slurm)


def in_python_that_trains(python: str) -> None:
    """Go on in that Python: checks see what it lacks, versions are its own, and Ray's tasks have its packages."""
    program = shutil.which(python)
    if program is None:
        raise UserError(f"environment: there is no Python at {python}. Set PYTHON to the one that trains.")
    if os.path.abspath(program) != os.path.abspath(sys.executable):
        # Without PYTHON, which may be a script that starts a Python elsewhere, as pyenv's are.
        os.execve(program, [program, *sys.orig_argv[1:]], {**os.environ, "PYTHON": ""})


def interrupt_on_signals() -> None:
    """From now on, SIGTERM and SIGHUP end the launch as Ctrl-C does: nothing is left running."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, signal.default_int_handler)


def main(launcher: str, doc: str, experiments: Collection[str], start: Callable[[str, list[str]], None]) -> int:
    """The command line of one of launch_options.LAUNCHERS: EXPERIMENT [flags of the script that trains].

    Args:
        start: launches the experiment with these flags.

    Returns:
        The exit code.
    """
    name, *added = sys.argv[1:] or [""]
    if {"-h", "--help"} & {name, *added}:
        print(f"{doc}\n{launch_options.help_of(launcher)}\n\nEXPERIMENT: {', '.join(experiments)}")
        return 0
    if name not in experiments:
        print(f"error: no experiment {name!r}. There are: {', '.join(experiments)}.", file=sys.stderr)
        return 2
    interrupt_on_signals()
    try:
        start(name, added)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running. The same command goes on.", file=sys.stderr)
        return 130
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
