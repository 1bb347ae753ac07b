"""Training runs in processes of their own, side by side: started, followed and, whatever happens, ended."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demo.control.settings import Run, command
from demo.llm import run as runs
from demo.runner.environment import ROOT, cleaned
from demo.runner.errors import DemoError

LOG_FILE = "log.txt"
CURVES_FILE = "curves.csv"
VERSIONS = ("torch", "tensordict", "gymnasium", "mujoco", "stable-baselines3", "numpy")
CODE_NAME = "the demo's or FastTD3's code"
_CODE = ("settings.py", "child.py")
_POLL_SECONDS = 0.2

Row = dict[str, float | None]


def key(checkout: Path) -> dict:
    """What a result depends on besides the settings of its run."""
    files = [Path(__file__).with_name(name) for name in _CODE]
    return runs.key_of(files + sorted((checkout / "fast_td3").rglob("*.py")), runs.versions(VERSIONS))


def train(wanted: list[Run], checkout: Path, out: Path, key: dict, on_row: Callable[[Run, Row], None]) -> None:
    """Trains the runs at the same time and leaves each in its folder out/<run.folder>.

    `on_row` is called with each new row of a run's curves. A run that ends early ends the others too; those that have
    finished stay.
    """
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(contextlib.closing(_training(run, checkout, out, key, on_row))) for run in wanted
        ]
        while running:
            time.sleep(_POLL_SECONDS)
            running = [steps for steps in running if next(steps, None)]


def _training(run: Run, checkout: Path, out: Path, key: dict, on_row: Callable[[Run, Row], None]) -> Iterator[bool]:
    """One run: each next() looks once and yields True, until its content is in its folder."""
    new, scripts = runs.fresh(runs.beside(out / run.folder)), checkout.resolve() / "fast_td3"
    environment = cleaned(dict(os.environ), scripts, ROOT) | {
        "OMP_NUM_THREADS": "1",  # several runs on two cores
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # torch starts a pool of processes otherwise, though nothing is compiled
    }
    line = [sys.executable, "-m", "demo.control.child", *command(run, scripts / "train.py", new.resolve(), CURVES_FILE)]
    began, done, running = time.monotonic(), 0, True
    with (new / LOG_FILE).open("w") as log, runs.process_group(line, environment, log) as process:
        for rows in _rows(new / CURVES_FILE):
            for row in rows:
                done += 1
                on_row(run, row)
            if not running:
                break
            running = process.poll() is None  # asked before the last look at the file
            yield True
    if process.returncode != 0 or done != run.rows:
        raise DemoError(
            runs.failure(run.label, process.returncode, f"{done} of {run.rows} rows of {CURVES_FILE}", new / LOG_FILE)
        )
    runs.finish(new, key, flags=run.flags(), seconds=time.monotonic() - began, machine=runs.machine(VERSIONS))
    runs.replace(new.with_name(run.folder), new)


def _rows(file: Path) -> Iterator[list[Row]]:
    """Each item: the rows that train.py's file has gained since the item before."""
    for rows in runs.new_rows(file):
        yield [_numbers(row) for row in rows]


def curves(folder: Path) -> list[Row]:
    """The rows of a finished run."""
    return next(_rows(folder / CURVES_FILE))


def _numbers(row: dict[str, str]) -> Row:
    """None where a step has no such number: no evaluation, no entropy."""
    return {
        **{name: float(value) if value else None for name, value in row.items()},
        "global_step": int(row["global_step"]),
    }
