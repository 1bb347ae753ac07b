"""The runs as a table on the screen, and what the three pictures share."""

import textwrap
from pathlib import Path

import matplotlib
import pandas

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

PAGE = "docs/demos.md"


def rows_and_means(runs: pandas.DataFrame, decimals: dict[str, int]) -> str:
    """A line for each run and, where there are several seeds, for their mean.

    runs: columns "name" and "seed", and the measures that decimals has; NaN is shown as "-".
    """
    if runs["seed"].nunique() > 1:
        means = runs.groupby("name", sort=False, as_index=False).mean(numeric_only=True).assign(seed="mean")
        order = {name: number for number, name in enumerate(means["name"])}
        runs = pandas.concat([runs, means]).sort_values("name", key=lambda names: names.map(order), kind="stable")
    shown = runs.set_index("name").rename_axis(None)[["seed", *decimals]]
    formatters = {name: f"{{:z.{digits}f}}".format for name, digits in decimals.items()}  # z: no -0
    return shown.to_string(formatters=formatters, na_rep="-", col_space=6)


def panels(*titles: str, height: float = 3.4):
    """A figure with an axis for each title."""
    figure, axes = pyplot.subplots(1, len(titles), figsize=(10, height), constrained_layout=True)
    for axis, title in zip(axes, titles):
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw(axis, curves: pandas.DataFrame, x: str, y: str, styles: dict[str, dict]) -> None:
    """Each seed thin, their mean thick. curves: a row for each name, seed and x; styles: by name."""
    for name, style in styles.items():
        seeds = curves[curves["name"] == name].pivot(index=x, columns="seed", values=y).dropna()
        axis.plot(seeds, color=style["color"], linewidth=0.7, alpha=0.45)
        axis.plot(seeds.mean(axis=1), label=name, **style)


def save(figure, file: Path, note: str) -> None:
    figure.suptitle(note, fontsize=8, x=0.995, ha="right")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def print_end(table: str, held: str, picture: Path, numbers: Path) -> None:
    """The table, one line of what held, and where there is more."""
    print(f"\n{table}\n\n{textwrap.fill(held, 79)}\n\npicture  {picture}\nnumbers  {numbers}\nmeaning  {PAGE}")
