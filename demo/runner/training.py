"""Training runs in processes of their own, side by side: started, followed and, whatever happens, ended."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.runner.errors import DemoError
from demo.runner.processes import end_of, follow, process_group
from demo.runner.progress import Line
from demo.runner.results import empty, finish, machine, replace, reusable, unfinished

LOG_FILE = "log.txt"
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Training:
    """One training run.

    label: its name in messages.
    folder: where its results are in the end. The process runs, and writes, in `unfinished(folder)`.
    command, environment: of the process.
    rows: each item is the rows that the process wrote since the previous one.
    length, unit: how many rows a complete run writes, and what they are called.
    on_look: called with the process's id and the new rows, whether there are any or not, about twice a second.
    complete: called after the process has succeeded; tidies the folder, and returns what belongs in run.json.
    """

    label: str
    folder: Path
    command: list[str]
    environment: dict[str, str]
    rows: Iterator[list[dict]]
    length: int
    unit: str
    on_look: Callable[[int, list[dict]], None]
    complete: Callable[[], dict]


def train(trainings: list[Training], key: dict) -> None:
    """Runs the trainings at the same time. One that fails ends the others too; those that have finished stay."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(contextlib.closing(_steps(training, key))) for training in trainings]
        while running := [steps for steps in running if next(steps, None)]:
            time.sleep(POLL_SECONDS)


def _steps(training: Training, key: dict) -> Iterator[bool]:
    """One training: each next() looks at it once and gives True, until the results are in their folder."""
    folder = empty(unfinished(training.folder))
    began, done = time.monotonic(), 0
    with (
        (folder / LOG_FILE).open("w") as log,
        process_group(training.command, training.environment, log, folder) as process,
    ):
        for rows in follow(process, training.rows):
            done += len(rows)
            training.on_look(process.pid, rows)
            yield True
    if process.returncode != 0 or done != training.length:
        raise DemoError(_failure(training, process.returncode, done, folder / LOG_FILE))
    info = training.complete()
    finish(folder, key, **info, seconds=time.monotonic() - began, machine=machine(key))
    replace(training.folder)


def _failure(training: Training, code: int, done: int, log: Path) -> str:
    end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    rows = f"{done} of {training.length} {training.unit}"
    tail = end_of(log.read_text(errors="replace"))
    return f"the {training.label} run {end} after {rows}. The end of its log, {log}:\n{tail}"


def missing(wanted: list, out: Path, key: dict, upstream: str, line: Line) -> list:
    """Those of the runs that have to be trained; says on the line which are reused."""
    return [
        run for run in wanted if reusable(out / run.folder, key, upstream, line, f"{run.label}: ", run.length) is None
    ]


def train_by_seed(runs: list, prepare: Callable[[object], Training], key: dict, program: str, line: Line) -> None:
    """Trains the runs of one seed side by side, then those of the next."""
    if runs:
        line.show(f"starting {program} (some ten seconds)", last=not line.in_place)
    for seed in dict.fromkeys(run.seed for run in runs):
        train([prepare(run) for run in runs if run.seed == seed], key)
