"""A training run of FastTD3: its process, and the rows of its curves.csv."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from demo.control.settings import Run, command
from demo.runner.environment import ROOT, cleaned
from demo.runner.processes import new_rows
from demo.runner.results import key_of, unfinished
from demo.runner.training import Training

UPSTREAM = "FastTD3"
CURVES_FILE = "curves.csv"
_PACKAGES = ("torch", "tensordict", "gymnasium", "mujoco", "stable-baselines3", "numpy")

Row = dict[str, float | None]


def key(checkout: Path) -> dict:
    """What a result depends on besides the settings of its run."""
    settings = Path(__file__).with_name("settings.py")
    return key_of([settings, *sorted((checkout / "fast_td3").rglob("*.py"))], _PACKAGES)


def prepare(run: Run, checkout: Path, out: Path, on_row: Callable[[Run, Row], None]) -> Training:
    """`on_row` is called with each new row of the run's curves."""
    folder, scripts = out / run.folder, checkout.resolve() / "fast_td3"
    curves = unfinished(folder).resolve() / CURVES_FILE

    def on_look(pid: int, rows: list[Row]) -> None:
        for row in rows:
            on_row(run, row)

    return Training(
        label=run.label,
        folder=folder,
        command=[sys.executable, "-m", "demo.runner.child", *command(run, scripts / "train.py", CURVES_FILE)],
        environment=cleaned(dict(os.environ), scripts, ROOT)
        | {
            "OMP_NUM_THREADS": "1",  # several runs on two cores
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # otherwise torch starts a pool of processes for nothing
        },
        rows=_rows(curves),
        length=run.rows,
        unit=f"rows of {CURVES_FILE}",
        on_look=on_look,
        complete=lambda: {"flags": run.flags()},
    )


def _rows(file: Path) -> Iterator[list[Row]]:
    """Each item: the rows that train.py added to its file since the previous item."""
    for rows in new_rows(file):
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
