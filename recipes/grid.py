# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A grid of trainings, on this machine's cores or GPUs, as Ray tasks (RAY_ADDRESS) or as a Slurm array (SLURM=1).

A run is a folder: .lock, which belongs to whoever trains it, command.txt, log.txt, run.json and what its script writes.
The same command again recovers from everything, a kill -9 included: it skips finished runs, resumes those that have a
checkpoint, and starts the others over, after moving their files into interrupted-<n>/ of the folder. So does a run that
run.json calls finished, and that is not whole. What is wrong with one run's folder is that run's line, and the others
are trained.

What trains is a Host, in recipes/vision and recipes/control.
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
from typing import Any, ClassVar, TextIO

from recipes import PROJECT, launch_options, run_json
from recipes.launch_options import LaunchOptions, Refused
from recipes.processes import process_group

LOCK, COMMAND, LOG = ".lock", "command.txt", "log.txt"
OWN = os.O_NOFOLLOW | os.O_NONBLOCK  # how they are opened
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_TO_END = 60  # torchrun takes up to 30 to end its workers


def flag_names(words: Sequence[str]) -> list[str]:
    """Names of `--flag`, `--flag=value` and hydra's `name=value`, with - for _, the same to FastTD3's parser."""
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


class Host(abc.ABC):
    """A script that trains one run in the run's folder. An instance is one launch of it.

    Args:
        name: of the experiment.
        added: the user's flags of the script, which come last and win.
    """

    launcher: ClassVar[str]  # whose options these are
    experiments: ClassVar[Mapping[str, Any]]
    root: Path  # where `script` is
    script: ClassVar[str]
    upstream: ClassVar[str] = ""  # of which `root` is the checkout
    packages: ClassVar[tuple[str, ...]] = ()  # that the script imports
    space: ClassVar[int] = 20 * 2**20  # of a run's folder, in bytes
    own_flags: Collection[str] = ()  # that the user cannot add: the experiment and the variables set them
    harmless: ClassVar[tuple[str, ...]] = ()  # flags that change nothing in what is trained
    one_at_a_time: ClassVar[tuple[str, ...]] = ()  # experiments whose runs' time is compared
    gpus: float = 0  # of a run; below 1, several share one
    cpus: int = 1  # that a run's processes keep busy

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
        """Environment variables of the process, beside those of this one."""

    def start_folder(self, run: Run) -> Path:
        return run.folder

    def checkpoint(self, run: Run) -> Path | None:
        """The file that `argv` goes on from; None: it starts over."""
        return None

    def is_finished(self, run: Run) -> bool:
        return says_finished(run) and not self.why_not_whole(run)

    def why_not_whole(self, run: Run) -> str:
        """What a run that has come to its end lacks."""
        return run_json.why_not_whole(run.folder)

    def record(self, run: Run) -> dict[str, Any] | None:
        """The run.json of a run that starts now, for a script that writes none."""
        return None

    def complete_record(self, run: Run) -> None:  # noqa: B027  most hosts need none
        """Completes the run.json of a finished run, for a script that writes none."""

    def last_result(self, run: Run) -> str:
        """Of a finished run, for its line."""
        return ""

    def comparable(self, words: list[str]) -> list[str]:
        """The words of a command that must be the same when it is resumed."""
        return words

    def problems(self) -> list[str]:
        """Of this host alone, before anything starts."""
        return []

    def prepare(self) -> None:  # noqa: B027
        """Does once, beforehand, what several runs would otherwise do at the same time."""


# -------------------------------------------------------------------------------------------------------------- one run


def train(host: Host, run: Run, stop: threading.Event | None = None, devices: str | None = None) -> str:
    """Trains the run to its end, unless it is finished.

    Args:
        stop: ends the training.
        devices: CUDA_VISIBLE_DEVICES; None leaves that as it is.

    Returns:
        Why it did not finish, or an empty string.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    with own_file(run, LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "is being trained by another launch, or by what a killed one has left running"
        if not host.is_finished(run):
            if says_finished(run) or not (run.folder / COMMAND).exists() or not host.checkpoint(run):
                set_aside(run.folder)
            code = run_script(host, run, lock.fileno(), stop, devices)
            if not host.is_finished(run):
                lines = (run.folder / LOG).read_text(errors="replace").splitlines()[-12:]
                tail = "".join(f"\n    {line[-200:]}" for line in lines)
                lacks = f" and {host.why_not_whole(run)}" if code == 0 else ""
                if lacks and host.checkpoint(run):
                    lacks += f".\n  To train it from its start, move {run.folder} away"
                return f"ended with exit code {code}{lacks}.\n  The end of {run.folder / LOG}:{tail}"
        host.complete_record(run)
        return ""


def says_finished(run: Run) -> bool:
    return run_json.read(run.folder).get("finished") is True


def own_file(run: Run, name: str) -> TextIO:
    """A file of the launcher's, to append to: it is not opened through a link, and a FIFO is not waited for."""
    return open(run.folder / name, "a", opener=lambda file, flags: os.open(file, flags | OWN, 0o666))


def run_script(host: Host, run: Run, lock: int, stop: threading.Event | None, devices: str | None) -> int:
    new = run.folder / f"{COMMAND}.new"
    new.unlink(missing_ok=True)  # nothing is written through a link
    new.write_text(shlex.join(run.command) + "\n")
    new.replace(run.folder / COMMAND)
    if record := host.record(run):
        run_json.start(run.folder, record)
    given = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    # The script inherits the lock: if this process is killed alone, training goes on, and nobody else begins it.
    with (
        own_file(run, LOG) as log,
        process_group(
            host.argv(run),
            {**os.environ, **host.variables(run), **given},
            log,
            host.start_folder(run),
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
    """Moves what an interrupted run has left into interrupted-<n>/."""
    left = [path for path in folder.iterdir() if path.name != LOCK and not path.name.startswith("interrupted-")]
    if left:
        numbers = [int(path.name[12:]) for path in folder.glob("interrupted-*") if path.name[12:].isdecimal()]
        aside = folder / f"interrupted-{1 + max(numbers, default=0)}"
        aside.mkdir()
        for path in left:
            path.rename(aside / path.name)


# ---------------------------------------------------------------------------------------------------------- all of them


def visible_gpus() -> list[str]:
    """Of this machine, as CUDA_VISIBLE_DEVICES names them; none without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        visible = ",".join(map(str, range(len(run_json.gpus()))))
    return [device for device in visible.split(",") if device.strip() not in ("", "-1")]


def slots(host: Host) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each of the runs that this machine trains at the same time."""
    if not host.gpus:
        return [None] * (host.options.jobs or run_json.cores())
    devices, each = visible_gpus(), int(host.gpus) or 1
    groups = [",".join(devices[at : at + each]) for at in range(0, len(devices) - each + 1, each)]
    found = groups * (int(1 / host.gpus) if host.gpus < 1 else 1)
    return found[: host.options.jobs]


def train_all(host: Host, runs: Sequence[Run], by_ray: bool) -> list[str]:
    """A thread for each run that is being trained.

    Returns:
        A sentence on each run that did not finish.
    """
    stop, failed = threading.Event(), []
    train_one, at_once = ray_trainer(host, stop, len(runs)) if by_ray else local_trainer(host, stop)
    with ThreadPoolExecutor(1 if host.name in host.one_at_a_time else at_once) as threads:
        training = {threads.submit(train_one, run): run for run in runs}
        try:
            for count, ended in enumerate(as_completed(training), 1):
                run = training[ended]
                reason = outcome(ended.result)
                said = reason.partition("\n")[0] or "finished"
                with suppress(Exception):
                    said += "" if reason else host.last_result(run)
                print(f"{time.strftime('%H:%M:%S')} {count} of {len(runs)}: {run.name} {said}", flush=True)
                failed += [f"{run.name} {reason}"] if reason else []
        except KeyboardInterrupt:
            # `timeout make ...` signals make and this process, and make signals this process again. A second interrupt
            # would let Python go on without the threads that end the trainings.
            for each in SIGNALS:
                signal.signal(each, signal.SIG_IGN)
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise
    return failed


def local_trainer(host: Host, stop: threading.Event) -> tuple[Callable[[Run], str], int]:
    """What trains a run on this machine, and how many at a time."""
    free = slots(host)
    at_once = len(free)

    def train_one(run: Run) -> str:
        devices = free.pop()
        try:
            return train(host, run, stop, devices)
        finally:
            free.append(devices)

    return train_one, at_once


def ray_trainer(host: Host, stop: threading.Event, runs: int) -> tuple[Callable[[Run], str], int]:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    address = host.options.ray_address
    ray.init(address, runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False, logging_level="ERROR")
    interrupt_on_signals()  # ray.init installs a handler of its own
    if ray.cluster_resources().get("GPU", 0) < host.gpus:
        raise Refused(f"Ray at {address} has no {host.gpus:g} GPUs. No run was started.")
    task = ray.remote(num_gpus=host.gpus, num_cpus=0 if host.gpus else 1, max_retries=0)(train)

    def train_one(run: Run) -> str:
        reference = task.remote(host, run)
        while not stop.wait(0.5) and not ray.wait([reference], timeout=0)[0]:
            pass
        if stop.is_set():
            ray.cancel(reference)
        return ray.get(reference)

    return train_one, runs


def slurm_script(host: Host) -> str:
    usable, _ = sort_out(host, host.runs)
    left = [str(index) for index, run in enumerate(host.runs) if run in usable and not host.is_finished(run)]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=era-{host.name}",
        f"#SBATCH --array={','.join(left)}" + ("%1" if host.name in host.one_at_a_time else ""),
        f"#SBATCH --cpus-per-task={host.options.cpus_per_run or host.cpus}",
        *([f"#SBATCH --gres=gpu:{max(1, int(host.gpus))}"] if host.gpus else []),
        f"#SBATCH --output={shlex.quote(str(host.runs[0].folder.parent / 'slurm-%A_%a.txt'))}",
        "#SBATCH --open-mode=append",
        "export RUN_INDEX=$SLURM_ARRAY_TASK_ID SLURM= DRY_RUN= CHECK_ONLY= RAY_ADDRESS= PYTHON=",
        f"cd {shlex.quote(os.getcwd())}",
        f"exec {shlex.join([host.python, '-m', host.launcher, host.name, *host.added])}",
    ]
    return "\n".join(lines) + "\n"


def submit(script: str, file: Path) -> None:
    """Its jobs get this environment, and with it the variables that choose runs, also where SBATCH_EXPORT says NONE.
    SBATCH_ARRAY_INX, which cuts LLM runs into pieces, would replace the array of the runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    kept = {name: value for name, value in os.environ.items() if name != "SBATCH_ARRAY_INX"}
    if subprocess.run(["sbatch", "--export=ALL", str(file)], env=kept).returncode != 0:
        raise Refused(f"sbatch refused {file}")


# --------------------------------------------------------------------------------------------------------- the launcher


def outcome(function: Callable[..., str | None], *arguments: Any) -> str:
    """What the function returns; for an error, as whatever is in a run's folder may cause it, its name and text."""
    try:
        return function(*arguments) or ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def sort_out(host: Host, runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs whose folders can be used, and a line on each of the others."""
    reasons = {run: outcome(unusable, host, run) for run in runs}
    lines = [
        f"{run.name} is left alone: {reason}. Repair {run.folder}, or move it away: then the run starts anew."
        for run, reason in reasons.items()
        if reason
    ]
    # Names of files may have line breaks, which DRY_RUN's output would give to a shell.
    lines = ["".join(one if one.isprintable() else " " for one in line) for line in lines]
    return [run for run in runs if not reasons[run]], lines


def unusable(host: Host, run: Run) -> str:
    """Why neither this launcher nor a script should read the run's folder; an empty string if they can."""
    if run.folder.is_symlink():
        return f"{run.folder} is a link, and what is in the folder behind it may not be a run's"
    if not os.path.lexists(run.folder):
        return ""
    for path in run.folder.iterdir():
        if path.is_symlink() and path.name in (LOCK, COMMAND, LOG):
            return f"{path} is a link, and the launcher writes there"
        if path.exists() and not path.is_file() and not path.is_dir():
            return f"{path} is neither a file nor a folder"
    host.checkpoint(run), folder_problems(host, run)  # what they raise is the reason
    return ""


def problems(host: Host, runs: Sequence[Run]) -> list[str]:
    """What would go wrong silently, or would stop all runs, or some of them only after hours."""
    found = []
    if not (host.root / host.script).is_file():
        apply = f"python3 apply.py apply {host.upstream} --source git --checkouts {host.checkouts}"
        found.append(f"checkout: {host.root} has no {host.script}. Run: {apply}")
    wanted = (*host.packages, "ray") if host.options.ray_address else host.packages
    lacks = [name for name in wanted if find_spec(name) is None]
    if lacks:
        found.append(f"environment: {sys.executable} lacks {', '.join(lacks)}. Set PYTHON to one that has them.")
    if not (host.options.slurm or host.options.ray_address or slots(host)):
        has = f"GPUs: a run wants {host.gpus:g}, and this machine has {len(visible_gpus())}."
        found.append(f"{has} GPUS or GPUS_PER_RUN choose; RAY_ADDRESS or SLURM=1 train elsewhere.")
    for run in runs:
        found += folder_problems(host, run)
    left = sum(not host.is_finished(run) for run in runs)
    parent = host.runs[0].folder.parent
    free = shutil.disk_usage(next(path for path in (parent, *parent.parents) if path.is_dir())).free
    if free < left * host.space:
        needed = f"{left} runs may take {left * host.space / 2**30:.1f}"
        found.append(f"OUTPUT: {parent} has {free / 2**30:.1f} GiB of free disk space; {needed}.")
    return found or host.problems()


def folder_problems(host: Host, run: Run) -> list[str]:
    """A folder with a finished run or a checkpoint must hold this very run. Without either, its files are set aside."""
    file = run.folder / COMMAND
    if not (host.is_finished(run) or host.checkpoint(run)):
        return []
    try:
        words = shlex.split(file.read_text()) if file.is_file() else run.command
        before, now = (shlex.join(host.comparable(list(each))) for each in (words, run.command))
    except ValueError as error:
        raise ValueError(f"{file} is not a command of this experiment ({error})") from None
    if before == now:
        return []
    return [
        f"{run.name}: {run.folder} holds a run with other flags. Then: {before}; now: {now}. "
        "Give the same flags to continue it, choose another OUTPUT, or move it away."
    ]


def print_commands(host: Host, runs: Sequence[Run]) -> None:
    usable, lines = sort_out(host, runs)
    finished = sum(map(host.is_finished, usable))
    print(f"{len(runs)} runs, {finished} of them finished:", file=sys.stderr)
    for line in (*lines, *broken_promises(host, usable)):
        print(f"# {line}")
    for run in usable:
        if host.is_finished(run):
            print(f"# {run.name} is finished")
            continue
        at = shlex.quote(str(host.start_folder(run)))
        begin = f"cd {at}" if host.start_folder(run) != run.folder else f"mkdir -p {at} && cd {at}"
        given = " ".join(f"{name}={quoted(value)}" for name, value in host.variables(run).items())
        print(f"{begin} && {given} {shlex.join(host.argv(run))}")


def broken_promises(host: Host, runs: Sequence[Run]) -> list[str]:
    """A line on each run that run.json calls finished, and that is not whole."""
    return [
        f"{run.name} says that it is finished, but {host.why_not_whole(run)}. It starts over; its files move into "
        "interrupted-<n>/ of its folder."
        for run in runs
        if says_finished(run) and not host.is_finished(run)
    ]


def quoted(value: str) -> str:
    """For the shell; this process's PATH as a variable."""
    path = os.environ["PATH"]
    return f'{shlex.quote(value.removesuffix(path))}"$PATH"' if value.endswith(f":{path}") else shlex.quote(value)


def launch(host: Host) -> None:
    """Prints, checks, submits or trains the grid, as the options say."""
    options = host.options
    # argparse takes the beginning of a flag for the flag.
    own_flags = flag_names(host.own_flags)
    if own := [name for name in flag_names(host.added) if any(flag.startswith(name) for flag in own_flags)]:
        raise Refused(f"ARGS: {', '.join(own)} cannot be set here: the experiment and the variables do.")
    if not host.runs:
        raise Refused(f"AGENT={' '.join(options.agents or ())}: {host.name} has no such run.")
    index = options.run_index
    if index is not None and (index >= len(host.runs) or options.slurm):
        raise Refused(f"RUN_INDEX={index}: one of runs 0 to {len(host.runs) - 1} expected, and no SLURM=1.")
    runs = host.runs if index is None else [host.runs[index]]
    if options.dry_run:
        print(slurm_script(host), end="") if options.slurm else print_commands(host, runs)
        return
    in_python_that_trains(host.python)
    usable, failed = sort_out(host, runs)
    if found := list(dict.fromkeys(problems(host, usable))):
        raise Refused("This cannot start; nothing was changed:\n" + "\n".join(f"  - {problem}" for problem in found))
    left = [run for run in usable if not host.is_finished(run)]
    for line in (*failed, *broken_promises(host, left)):
        print(line, flush=True)
    if options.check_only:
        print(f"Nothing is missing; {len(left)} of {len(runs)} runs would start.")
        if failed:
            raise Refused(f"Runs whose folders cannot be used: {len(failed)}, which are named above.")
        return
    for run in usable:
        if run not in left and (reason := outcome(host.complete_record, run)):
            failed.append(f"{run.name} is finished, but its {run_json.FILE} cannot be completed: {reason}")
    if left:
        host.prepare()
    if left and options.slurm:
        submit(slurm_script(host), runs[0].folder.parent / f"{host.name}.sbatch")
    else:
        print(f"{len(left)} of {len(runs)} runs to train, in {runs[0].folder.parent}; each writes {LOG}", flush=True)
        by_ray = bool(options.ray_address) and index is None
        failed += train_all(host, left, by_ray) if left else []
    if failed:
        again = "The same command again skips finished runs, and resumes or starts over these."
        raise Refused(f"\nRuns that are not finished: {len(failed)}\n" + "\n".join(failed) + f"\n{again}")
    if left and options.slurm:
        return
    print("All are finished. A table of them: python -m recipes.results " + shlex.quote(str(runs[0].folder.parent)))


def in_python_that_trains(python: str) -> None:
    """Goes on in that Python: checks see what it lacks, versions are its own, and Ray's tasks have its packages."""
    found = shutil.which(python)
    if found is None:
        raise Refused(f"environment: there is no Python at {python}. Set PYTHON to the one that trains.")
    if os.path.abspath(found) != os.path.abspath(sys.executable):
        # Without PYTHON, which may be a script that starts a Python elsewhere, as pyenv's are.
        os.execve(found, [found, *sys.orig_argv[1:]], {**os.environ, "PYTHON": ""})


def interrupt_on_signals() -> None:
    """SIGTERM and SIGHUP end the launch as Ctrl-C does: nothing is left running."""
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(each, signal.default_int_handler)


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
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
