"""A training run of timm: its process, and the rows of its summary.csv."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from demo.runner.environment import ROOT, cleaned
from demo.runner.processes import new_rows
from demo.runner.results import key_of, unfinished
from demo.runner.training import Training
from demo.vision import data
from demo.vision.settings import Run, command

UPSTREAM = "timm"
CHECKPOINT_FILE = "last.pth.tar"
SUMMARY_FILE = "summary.csv"
_PACKAGES = ("torch", "torchvision", *data.PACKAGES)
_CODE = ("data.py", "loop.py", "settings.py")


def script(checkout: Path) -> Path:
    """What trains: timm's train.py, or the demo's own loop if the checkout, timm's source package, lacks it."""
    train = checkout.resolve() / "train.py"
    return train if train.is_file() else Path(__file__).with_name("loop.py")


def key(checkout: Path) -> dict:
    """What a result depends on besides the settings of its run."""
    files = [Path(__file__).with_name(name) for name in _CODE]
    files += [script(checkout), *sorted((checkout / "timm").rglob("*.py"))]
    return key_of(files, _PACKAGES)


def prepare(run: Run, checkout: Path, out: Path, on_epoch: Callable[[Run, dict], None]) -> Training:
    """Trains on the images in out/data. `on_epoch` is called with each new row of the run's summary.csv."""
    folder = out / run.folder
    new = unfinished(folder).resolve()
    made = new / run.folder  # train.py makes a folder named after --experiment
    images = (out / data.FOLDER).resolve()
    # With these variables train.py would wait for the other processes of a distributed job.
    environment = {
        name: value for name, value in os.environ.items() if name != "WORLD_SIZE" and not name.startswith("SLURM_")
    }

    def on_look(pid: int, rows: list[dict]) -> None:
        for row in rows:
            on_epoch(run, row)

    def complete() -> dict:
        for name in (CHECKPOINT_FILE, SUMMARY_FILE):
            (made / name).rename(new / name)
        shutil.rmtree(made)
        return {"flags": run.flags(), "script": script(checkout).name}

    return Training(
        label=run.label,
        folder=folder,
        command=[sys.executable, "-m", "demo.runner.child", *command(run, script(checkout), images, new)],
        environment=cleaned(environment, checkout.resolve(), ROOT)
        | {
            "OMP_NUM_THREADS": "1",  # two runs on two cores
            "HF_HUB_OFFLINE": "1",  # nothing is to be downloaded
        },
        rows=_rows(made / SUMMARY_FILE),
        length=run.epochs,
        unit="epochs",
        on_look=on_look,
        complete=complete,
    )


def _rows(file: Path) -> Iterator[list[dict[str, float]]]:
    """Each item: the rows that train.py added to summary.csv since the previous item."""
    for rows in new_rows(file):
        yield [_numbers(row) for row in rows]


def epochs(folder: Path) -> list[dict[str, float]]:
    """The rows of a finished run's summary.csv, one per epoch, counted from 1."""
    return next(_rows(folder / SUMMARY_FILE))


def _numbers(row: dict[str, str]) -> dict[str, float]:
    return {**{name: float(value) for name, value in row.items()}, "epoch": int(row["epoch"]) + 1}
