# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The end of a demo: a table, one line of what held, a picture, and where there is more."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib
import pandas

from demo.runner.training import csv_rows
from recipes import colors

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

PAGE = "docs/demos.md"


def read(runs: Iterable, out: Path, file: str) -> pandas.DataFrame:
    """The rows of that file of all runs, each with its run's name and seed."""
    tables = (csv_rows(out / run.folder / file).assign(name=run.name, seed=run.seed) for run in runs)
    return pandas.concat(tables, ignore_index=True)


def rows_and_means(runs: pandas.DataFrame, decimals: dict[str, int]) -> str:
    """A line for each run and, where there are several seeds, for their means.

    runs: columns "name" and "seed", and the measures that decimals has; NaN is shown as "-".
    """
    if runs["seed"].nunique() > 1:
        means = runs.groupby("name", sort=False, as_index=False).mean(numeric_only=True)
        runs = pandas.concat([runs, means.assign(seed="mean")])
    shown = runs.set_index("name").rename_axis(None)[["seed", *decimals]]
    formatters = {name: f"{{:z.{digits}f}}".format for name, digits in decimals.items()}  # z: no -0
    return shown.to_string(formatters=formatters, na_rep="-", col_space=6)


def picture(curves: pandas.DataFrame, x: str, titles: dict[str, str], styles: dict[str, dict], window: int = 1):
    """A figure and its axes: a panel for each column in titles, over x. Each seed is thin, their mean thick.

    curves: a row for each name, seed and x. styles: of the names. window: rows over which the mean is smoothed.
    """
    figure, axes = pyplot.subplots(1, len(titles), figsize=(10, 3.4), layout="constrained")
    for axis, (column, title) in zip(axes, titles.items()):
        for name, style in styles.items():
            seeds = curves[curves["name"] == name].pivot(index=x, columns="seed", values=column).dropna()
            mean = seeds.mean(axis=1).rolling(window, center=True, min_periods=1).mean()
            axis.plot(seeds, color=style["color"], linewidth=0.6, alpha=0.4)
            axis.plot(mean, label=name, **style)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x.replace("_", " "))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def entropy_picture(curves, styles: dict[str, dict], answers: int, low: float, window: int, note: str, file: Path):
    """Saves the picture of a language model's runs over their steps: H_resp with its bound, reward, distinct answers.

    curves, styles, window: as `picture` takes them. answers: to a prompt, in training. low: omega_low in nats.
    """
    titles = {
        "response_entropy": "response entropy (nats)",
        "reward": "mean reward",
        "distinct_right": f"distinct right answers of {answers}",
    }
    figure, axes = picture(curves, "step", titles, styles, window)
    axes[0].axhline(low, color=colors.BOUND, linewidth=1, label=rf"$\omega_\mathrm{{low}}$ = {low:.2f}")
    for axis in axes:
        axis.set_ylim(bottom=0)
    save(figure, file, f"{note} (thin: each step; thick: mean of {window})")


def save(figure, file: Path, note: str) -> None:
    """Saves the figure, with one legend for all panels below them, so that it hides no curve."""
    labels = [axis.get_legend_handles_labels() for axis in figure.axes]
    handles = {label: handle for pairs in labels for handle, label in zip(*pairs)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(note, fontsize=8, x=0.995, ha="right")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def print_end(table: str, held: str, picture: Path, numbers: Path) -> None:
    print(f"\n{table}\n\n{held}\n\npicture  {picture}\nnumbers  {numbers}\nmeaning  {PAGE}")
