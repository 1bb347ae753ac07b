"""Training runs in processes of their own, side by side: started, followed and, whatever happens, ended."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demo.llm import run as runs
from demo.runner.environment import ROOT, cleaned
from demo.runner.errors import DemoError
from demo.vision import data
from demo.vision.settings import Run, command

LOG_FILE = "log.txt"
CHECKPOINT_FILE = "last.pth.tar"
SUMMARY_FILE = "summary.csv"
VERSIONS = ("torch", "torchvision", *data.VERSIONS)
CODE_NAME = "the demo's or timm's code"
_CODE = ("data.py", "loop.py", "settings.py")
_POLL_SECONDS = 0.2


def script(checkout: Path) -> Path:
    """What trains: timm's train.py, or where the checkout has none, as timm's source package, the demo's own loop."""
    train = checkout.resolve() / "train.py"
    return train if train.is_file() else Path(__file__).with_name("loop.py")


def key(checkout: Path) -> dict:
    """What a result depends on besides the settings of its run."""
    files = [Path(__file__).with_name(name) for name in _CODE]
    files += [script(checkout), *sorted((checkout / "timm").rglob("*.py"))]
    return runs.key_of(files, runs.versions(VERSIONS))


def train(wanted: list[Run], checkout: Path, out: Path, key: dict, on_epoch: Callable[[Run, dict], None]) -> None:
    """Trains the runs at the same time, on the images in out/data, and leaves each in its folder out/<run.folder>.

    `on_epoch` is called with each new row of a run's summary.csv. A run that ends early ends the others too; those that
    have finished stay.
    """
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_started(run, checkout, out, key, on_epoch)) for run in wanted]
        while running:
            time.sleep(_POLL_SECONDS)
            running = [step for step in running if next(step, None)]


@contextlib.contextmanager
def _started(
    run: Run, checkout: Path, out: Path, key: dict, on_epoch: Callable[[Run, dict], None]
) -> Iterator[Iterator[bool]]:
    """A training process, and its steps: each next() looks once and yields True; they end when the run is in its folder."""
    new = runs.fresh(runs.beside(out / run.folder))
    # With these train.py would wait for the other processes of a job that it is no part of.
    environment = {
        name: value for name, value in os.environ.items() if name != "WORLD_SIZE" and not name.startswith("SLURM_")
    }
    environment = cleaned(environment, checkout.resolve(), ROOT) | {
        "OMP_NUM_THREADS": "1",  # two runs on two cores
        "HF_HUB_OFFLINE": "1",  # nothing is to be fetched
    }
    arguments = command(run, script(checkout), (out / data.FOLDER).resolve(), new.resolve())
    line = [sys.executable, "-m", "demo.vision.child", *arguments]
    with (new / LOG_FILE).open("w") as log, runs.process_group(line, environment, log) as process:
        yield _steps(process, run, checkout, new, key, on_epoch)


def _steps(
    process, run: Run, checkout: Path, new: Path, key: dict, on_epoch: Callable[[Run, dict], None]
) -> Iterator[bool]:
    began, made = time.monotonic(), new / run.folder  # train.py makes a folder of its own, by the name --experiment
    done, running = 0, True
    for rows in _rows(made / SUMMARY_FILE):
        for row in rows:
            done += 1
            on_epoch(run, row)
        if not running:
            break
        running = process.poll() is None  # asked before the last look at the file
        yield True
    if process.returncode != 0 or done != run.epochs:
        raise DemoError(runs.failure(run.label, process.returncode, f"{done} of {run.epochs} epochs", new / LOG_FILE))
    for name in (CHECKPOINT_FILE, SUMMARY_FILE):
        (made / name).rename(new / name)
    shutil.rmtree(made)
    seconds = time.monotonic() - began
    runs.finish(
        new, key, flags=run.flags(), script=script(checkout).name, seconds=seconds, machine=runs.machine(VERSIONS)
    )
    runs.replace(new.with_name(run.folder), new)


def _rows(file: Path) -> Iterator[list[dict[str, float]]]:
    """Each item: the rows that train.py's summary.csv has gained since the item before."""
    for rows in runs.new_rows(file):
        yield [_numbers(row) for row in rows]


def epochs(folder: Path) -> list[dict[str, float]]:
    """The rows of a finished run's summary.csv, one per epoch, counted from 1."""
    return next(_rows(folder / SUMMARY_FILE))


def _numbers(row: dict[str, str]) -> dict[str, float]:
    return {**{name: float(value) for name, value in row.items()}, "epoch": int(row["epoch"]) + 1}
