# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The curves of a run: the one reader of the files that trainings write, and the two numbers that stand for a curve.

The report, the tables of README and docs/, `python -m recipes.results` and the demos take them from here, and whole.py
the steps that are there.
"""

import csv
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

# The column of steps, the first one, of each table that has a row for every so many steps.
STEP_COLUMNS = {
    "train.csv": "global_step",  # recipes/control, FastTD3, rivals
    "summary.csv": "epoch",  # timm; counts from 0
    **{"curves.csv": "global_step", "epochs.csv": "epoch", "steps.csv": "step"},  # demo
}
VERL = "metrics.jsonl"  # a line is {"step": 3, "data": {"actor/entropy": 0.31}}
# Final performance is the mean from this share of a curve's last step on: of PPO's 600 evaluations the last 61, of the
# 20 of SAC's runs on HalfCheetah the last three. One evaluation of PPO has three episodes, and is too noisy alone.
END = 0.9

Columns = dict[str, dict[int, float]]  # by name and step


def read(file: Path) -> Columns:
    """All columns of one of STEP_COLUMNS, or all metrics of VERL; {} while the file has no whole line.

    A column may lack steps: empty cells are left out. NaN and infinities, of a training that diverged, are numbers;
    verl writes null for both. What is not a row is passed over: a last line that is still being written, one that a
    kill has cut, and the header where a resumed timm repeats it. Where a resumed training wrote a step again, the
    later value counts.

    Raises:
        ValueError: a table does not begin with the column of steps, or a cell is not a number.
    """
    return _parsed(file.read_text(), file.name)


@functools.lru_cache(maxsize=1)  # whether a run is whole is asked just before its curves are drawn
def _parsed(text: str, name: str) -> Columns:
    lines = text[: text.rfind("\n") + 1].splitlines()
    return _of_verl(lines) if name == VERL else _of_table(lines, name)


def _of_table(lines: list[str], file: str) -> Columns:
    rows = csv.reader(lines)
    if not (names := next(rows, [])):
        return {}
    if names[0] != STEP_COLUMNS[file]:
        raise ValueError(f"{file} does not begin with the column {STEP_COLUMNS[file]}")
    columns: Columns = {name: {} for name in names}
    for cells in rows:
        if len(cells) != len(names) or not cells[0].isdecimal():
            continue
        step = int(cells[0])
        for name, cell in zip(names, cells):
            try:
                if cell:
                    columns[name][step] = float(cell)
            except ValueError:
                raise ValueError(f"{file} has {cell!r} for {name} in step {step}, and not a number") from None
    return columns


def _of_verl(lines: list[str]) -> Columns:
    columns: Columns = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        for metric, value in row["data"].items():
            columns.setdefault(metric, {})[row["step"]] = value if type(value) in (int, float) else math.nan
    return columns


def at_end(curve: Mapping[int, float]) -> float:
    """The final performance: the mean of the values from 90 % of the last step on.

    Args:
        curve: values by step, a dict or a pandas Series.
    """
    begin = END * max(curve.keys())
    return fmean(value for step, value in curve.items() if step >= begin)


def over_all(curve: Mapping[int, float]) -> float:
    """The mean of all values, which a run that learns earlier has larger: its sample efficiency."""
    return fmean(value for _, value in curve.items())
