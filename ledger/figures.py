# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's figures from our results, a picture for each panel."""

import io
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from ledger.paper import Entry, Place
from ledger.statistics import interquartile_curve, mean_curve
from ledger.verdicts import Judged
from recipes import colors

# Of the lines behind a panel's first one with ERA and its first one without, which have the colours of all pictures.
# Dashes and markers tell curves apart where they overlap.
OTHER_COLORS = (colors.ORANGE, colors.GREEN, colors.PURPLE, colors.GREY, colors.OCHRE)
DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)), (0, (2, 3)))
MARKERS = "os^DvXP"
SETTINGS = {
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # the layout assumes the first, the widest
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass
class Panel:
    """One picture of a figure.

    lines: by label, a table of mean, low and high. Its index is x: numbers, or names where points are drawn.
    curves: what these are of, where they are of single entries: folder, metric, and the step at which they end."""

    title: str
    x: str
    unit: str
    lines: dict[str, pd.DataFrame]
    curves: frozenset = frozenset()


def panels(judged: Judged, place: Place) -> Iterator[Panel]:
    """The panels of a figure that have data. For curves there is one for each value of the sweep; for points, the
    sweep's last variable is drawn within a panel; an aggregate takes all tasks of the sweep into one panel."""
    if place.draws == "table":
        return
    entries, names = judged.paper.at(place), judged.paper.metrics
    swept = max(len(entry.values) for entry in entries)
    apart = {"curves": swept, "points": max(0, swept - 1), "aggregate": 0}[place.draws]
    groups: dict[tuple, list[tuple[Entry, str]]] = {}
    for entry in entries:
        for position, metric in enumerate(entry.metrics):
            key = (entry.panel, *list(entry.values.values())[:apart])
            groups.setdefault((key, position), []).append((entry, metric))
    for (key, _), members in groups.items():
        lines = LINES[place.draws](judged, members, swept)
        units = {names.get(metric, metric) for _, metric in members}
        unit = units.pop() if len(units) == 1 else members[0][0].panel or "accuracy (%)"
        unit = "normalised return" if place.draws == "aggregate" else unit
        x = "k" if unit.startswith("pass@k") else "share of the training" if place.draws == "aggregate" else "step"
        if lines:
            drawn = [(entry, metric) for entry, metric in members if judged.curves(entry, metric)]
            curves = {(entry.evaluation, entry.folder, metric, entry.at_step) for entry, metric in drawn}
            title = ", ".join(names.get(part, part) for part in key if part)
            yield Panel(title, x, unit, lines, frozenset(curves if place.draws == "curves" else ()))


def _curves(judged: Judged, members: Sequence[tuple[Entry, str]], swept: int) -> dict[str, pd.DataFrame]:
    lines = {}
    for entry, metric in members:
        curves, key = judged.curves(entry, metric), (entry.evaluation, entry.folder, metric, entry.at_step)
        if curves and key not in judged.means:
            judged.means[key] = mean_curve([_thinned(curve) for curve in curves])
        if curves:
            lines[f"{entry.label} ({len(curves)} of {max(len(curves), entry.seeds)} seeds)"] = judged.means[key]
    return lines


def _thinned(curve: pd.Series) -> pd.Series:
    """Means of successive points, about 100: more cannot be told apart."""
    size = -(-len(curve) // 100)
    blocks = curve.to_numpy()[: len(curve) // size * size].reshape(-1, size)
    return pd.Series(blocks.mean(axis=1), index=curve.index[size - 1 :: size])


def _aggregate(judged: Judged, members: Sequence[tuple[Entry, str]], swept: int) -> dict[str, pd.DataFrame]:
    lines = {}
    for label in dict.fromkeys(entry.label for entry, _ in members):
        curves_of_entries = [(entry, judged.curves(entry, metric)) for entry, metric in members if entry.label == label]
        tasks = [(curves, judged.paper.scales[entry.values["TASKS"]]) for entry, curves in curves_of_entries if curves]
        runs = sum(len(curves) for _, curves in curves_of_entries)
        whole = sum(max(len(curves), entry.seeds) for entry, curves in curves_of_entries)
        if tasks:
            name = f"{label} ({len(tasks)} of {len(curves_of_entries)} tasks, {runs} of {whole} runs)"
            lines[name] = interquartile_curve(*zip(*tasks))
    return lines


def _points(judged: Judged, members: Sequence[tuple[Entry, str]], swept: int) -> dict[str, pd.DataFrame]:
    """The points of a panel. A row that sweeps nothing, or less than the others, is one point, named after the row."""
    series: dict[str, dict] = {}
    for entry, metric in members:
        measured = judged.numbers.loc[(entry.id, metric)]
        name = list(entry.values.values())[-1] if swept and len(entry.values) == swept else entry.label
        if measured.seeds:
            point = {"mean": measured.ours, "low": measured.ours - measured.half, "high": measured.ours + measured.half}
            series.setdefault(entry.label if entry.values else "", {})[judged.paper.metrics.get(name, name)] = point
    return {label: pd.DataFrame.from_dict(points, orient="index") for label, points in series.items()}


LINES = {"curves": _curves, "aggregate": _aggregate, "points": _points}


def colors_of(labels: Iterable[str]) -> list[str]:
    """The colour of each line of a panel, by its label, such as "PPO-ERA (5 of 5 seeds)"."""
    left = {False: [colors.BASELINE], True: [colors.ERA]}  # by whether the label is ERA's
    others = itertools.cycle(OTHER_COLORS)
    return [left["ERA" in label].pop() if left["ERA" in label] else next(others) for label in labels]


def svg(panel: Panel) -> str:
    """The panel as SVG. The legend stands below the plot, one label under the other, so that it hides no curve."""
    with matplotlib.rc_context(SETTINGS):
        names = list(dict.fromkeys(name for table in panel.lines.values() for name in table.index))
        has_names = isinstance(names[0], str)
        labels = [label for label in panel.lines if label]
        height = 0.6 + 0.28 * len(names) if has_names else 2.2
        figure = Figure(figsize=(3.7, height + 0.3 + 0.16 * len(labels)), layout="constrained")
        figure.suptitle(textwrap.fill(panel.title, 44), fontsize=9)
        axis = figure.subplots()
        (_draw_points if has_names else _draw_curves)(axis, panel, names)
        if labels:
            figure.legend(loc="outside lower center", frameon=False, fontsize=7.5, handlelength=4, labelspacing=0.25)
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out)  # savefig draws, and lays out, twice
    text = out.getvalue()
    return text[text.index("<svg") :]


def _draw_points(axis, panel: Panel, names: list[str]) -> None:
    """Draw one name under the other, with the numbers to the right."""
    for count, ((label, table), color) in enumerate(zip(panel.lines.items(), colors_of(panel.lines))):
        y = [names.index(name) + 0.5 * (count - (len(panel.lines) - 1) / 2) / len(panel.lines) for name in table.index]
        bars = np.nan_to_num([table["mean"] - table.low, table.high - table["mean"]])
        style = {"color": color, "fmt": MARKERS[count], "markersize": 5, "capsize": 3}
        axis.errorbar(table["mean"], y, xerr=bars, label=label, **style)
    axis.set(xlabel=panel.unit, ylim=(len(names) - 0.5, -0.5))
    axis.set_yticks(range(len(names)), [textwrap.fill(name, 28) for name in names])
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.margins(x=0.12)


def _draw_curves(axis, panel: Panel, steps: list[float]) -> None:
    for count, ((label, table), color) in enumerate(zip(panel.lines.items(), colors_of(panel.lines))):
        every = max(len(panel.lines), len(table) // 6)
        style = {"color": color, "linestyle": DASHES[count], "marker": MARKERS[count], "markersize": 4}
        start = count * every // len(panel.lines)  # the markers of curves that overlap stand beside each other
        axis.plot(table.index, table["mean"], linewidth=1.4, label=label, markevery=(start, every), **style)
        if table.low.notna().any():
            axis.fill_between(table.index, table.low, table.high, color=color, alpha=0.15, linewidth=0)
    axis.set(xlabel=panel.x, ylabel=textwrap.fill(panel.unit, 34))
    if panel.x == "k":
        axis.set_xscale("log", base=2)
    if max(steps) >= 10_000:
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
