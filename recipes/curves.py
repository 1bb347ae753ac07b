# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The curves of a whole run, and the two numbers that stand for a curve: its end, and its mean.

The tables of README and docs/, `make report` and `python -m recipes.results` all take them from here.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from recipes.run_json import read_columns, text_of

# Final performance is the mean from this share of a curve's last step on: of PPO's 600 evaluations the last 61, of the
# 20 of SAC's runs on HalfCheetah the last three. One evaluation of PPO has three episodes, and is too noisy alone.
END = 0.9


def read(file: Path) -> dict[str, dict[int, float]]:
    """The columns of a train.csv, summary.csv, ...: by name and step, the numbers; a column may lack steps.

    Raises:
        ValueError: the file is not one of run_json.CURVES, or a cell is not a number.
    """
    columns = read_columns(text_of(file), file.name)
    return {name: {step: float(cell) for step, cell in cells.items()} for name, cells in columns.items()}


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
