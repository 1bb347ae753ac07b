# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's figures from our results, panel by panel, as SVG: the same results give the same bytes."""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from ledger.paper import Entry, Place
from ledger.results import RANGES
from ledger.verdicts import Cell, Judged, iqm_curve, mean_curve
from ledger.words import metric

POINTS = 100  # of a curve that is drawn
STEPS = {"llm": "step", "vision": "epoch", "control": "step"}
# Dark to light, so that they differ in grey too; dashes and markers, which start at different points, tell curves apart
# where they overlap.
STYLES = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#0072b2", "linestyle": (0, (5, 2)), "marker": "s"},
    {"color": "#d55e00", "linestyle": (0, (1, 1.2)), "marker": "^"},
    {"color": "#009e73", "linestyle": (0, (6, 2, 1, 2)), "marker": "D"},
    {"color": "#b0508f", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#7a7a7a", "linestyle": (0, (9, 3)), "marker": "X"},
    {"color": "#8c6d00", "linestyle": (0, (2, 3)), "marker": "P"},
)
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ledger",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # laid out in the widest of them
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SEEDS = "Means over the seeds; a band or bar is the 95 % interval of the mean (Student's t)"
AGGREGATE = "Interquartile means over tasks and seeds; a band is the 95 % bootstrap interval of the mean"


@dataclass
class Panel:
    """lines: by label, tables with mean, low and high over x. points: they are not joined; x are numbers, or names that
    stand one under the other. bounds: what a claim names, by its words. missing: labels without data."""

    title: str
    x: str
    y: str
    lines: dict[str, pd.DataFrame] = field(default_factory=dict)
    points: bool = False
    bounds: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    band: str = SEEDS

    @property
    def words(self) -> str:
        """For those who do not see the picture."""
        return f"{self.title + ': ' if self.title else ''}{self.y} over {self.x}: {'; '.join(filter(None, self.lines))}"


def of_place(judged: Judged, place: Place) -> list[Panel]:
    """Those that have data."""
    panels = PANELS[place.draws](judged, [entry for entry in judged.paper.entries.values() if entry.place == place])
    return [panel for panel in panels if panel.lines]


def caption(panels: Sequence[Panel]) -> str:
    """What the bands are, and what could not be drawn."""
    missing = list(dict.fromkeys(label for panel in panels for label in panel.missing))
    return f"{panels[0].band}." + (f" Not run yet: {', '.join(missing)}." if missing else "")


# --------------------------------------------------------------------------------------------------- what is in a panel


def _grouped(entries: Sequence[Entry], key) -> dict[tuple, list[tuple[Entry, str]]]:
    """Entries with one of their metrics each, by panel, place of the metric, and what `key` says of the entry."""
    groups: dict[tuple, list[tuple[Entry, str]]] = {}
    for entry in entries:
        for place, name in enumerate(entry.metrics):
            groups.setdefault((entry.panel, key(entry), place), []).append((entry, name))
    return groups


def _title(*parts: object) -> str:
    return ", ".join(metric(str(part)) for part in parts if part != "")


def _curves(judged: Judged, entries: Sequence[Entry]) -> Iterator[Panel]:
    for (name, values, _), members in _grouped(entries, lambda entry: entry.values).items():
        first, drawn = members[0]
        x = "k" if drawn.startswith("pass@k/") else STEPS[first.place.domain]
        units = {metric(drawn) for _, drawn in members}
        y = units.pop() if len(units) == 1 else name
        panel = Panel(_title(name, *values), x, y, bounds=_bounds(judged, members))
        for entry, drawn in members:
            curves = judged.curves(entry, drawn)
            if not curves:
                panel.missing.append(entry.label)
                continue
            low, high = RANGES.get(drawn, (0, 100) if drawn.startswith("pass@k/") else (-math.inf, math.inf))
            table = mean_curve([_coarser(curve) for curve in curves])
            table["low"], table["high"] = (
                (table["mean"] - table.half).clip(low),
                (table["mean"] + table.half).clip(upper=high),
            )
            panel.lines[f"{entry.label} ({_seeds(len(curves), entry)})"] = table
        yield panel


def _seeds(count: int, entry: Entry) -> str:
    return f"{count} of {entry.seeds} seeds" if count < entry.seeds else f"{count} seed{'s' if count > 1 else ''}"


def _coarser(curve: pd.Series) -> pd.Series:
    """Means of successive points, at most POINTS: more cannot be told apart in a panel."""
    size = -(-len(curve) // POINTS)
    groups = np.arange(len(curve)) // size
    return pd.Series(curve.groupby(groups).mean().to_numpy(), index=curve.index.to_series().groupby(groups).last())


def _bounds(judged: Judged, members: Sequence[tuple[Entry, str]]) -> dict[str, float]:
    """Of the claims about what is drawn."""
    found = {}
    for claim in judged.paper.claims.values():
        labels = [entry.label for entry, name in members if entry.row in claim.subject and claim.metric in ("", name)]
        if labels and claim.test == "at_least":
            found[f"claimed for {labels[0]}: at least {claim.value:g}"] = claim.value
        elif labels and claim.test == "within":
            found[f"claimed for {labels[0]}: at most {claim.high:g}"] = claim.high
    return found


def _table(cells: dict[object, Cell]) -> pd.DataFrame:
    rows = [(cell.ours, cell.ours - cell.half, cell.ours + cell.half) for cell in cells.values()]
    return pd.DataFrame(rows, index=list(cells), columns=["mean", "low", "high"])


def _points(judged: Judged, entries: Sequence[Entry]) -> Iterator[Panel]:
    """Over the last variable of the sweep; a row that does not sweep it is a level."""
    deepest = max(len(entry.sweep) for entry in entries)
    for (name, values, _), members in _grouped(entries, lambda entry: entry.values[: deepest - 1]).items():
        panel = Panel(_title(name, *values), members[0][0].sweep[-1], metric(members[0][1]), points=True)
        for label in dict.fromkeys(entry.label for entry, _ in members):
            cells = {
                entry.values[-1] if len(entry.values) == deepest else None: judged.verdicts[entry.id].cells[drawn]
                for entry, drawn in members
                if entry.label == label and judged.used[entry.id]
            }
            if None in cells:
                panel.bounds[label] = cells[None].ours
            elif cells:
                panel.lines[label] = _table(cells)
            else:
                panel.missing.append(label)
        yield panel


def _bars(judged: Judged, entries: Sequence[Entry]) -> Iterator[Panel]:
    """A name for each row, or for each value of the sweep, with a dot for each row."""
    sweeps = bool(entries[0].sweep)
    for (name, _, _), members in _grouped(entries, lambda entry: ()).items():
        several = len({drawn for _, drawn in members}) > 1
        unit = "accuracy (%)" if several else metric(members[0][1])
        panel = Panel(_title(name), "runs", unit, points=True)
        for label in dict.fromkeys(entry.label for entry, _ in members) if sweeps else [""]:
            cells = {
                metric(str(entry.values[0])) if sweeps else entry.label: judged.verdicts[entry.id].cells[drawn]
                for entry, drawn in members
                if label in ("", entry.label) and judged.used[entry.id]
            }
            if cells:
                panel.lines[label] = _table(cells)
            else:
                panel.missing.append(label or "all")
        yield panel


def _aggregates(judged: Judged, entries: Sequence[Entry]) -> Iterator[Panel]:
    for (name, _, _), members in _grouped(entries, lambda entry: ()).items():
        panel = Panel(name, "share of the training", "normalised return", band=AGGREGATE)
        for label in dict.fromkeys(entry.label for entry, _ in members):
            mine = [(entry, judged.curves(entry, drawn)) for entry, drawn in members if entry.label == label]
            tasks = [(curves, judged.paper.scales[entry.values[0]]) for entry, curves in mine if curves]
            if tasks:
                table = iqm_curve(*zip(*tasks))
                panel.lines[f"{label} ({len(tasks)} of {len(mine)} tasks)"] = table
            else:
                panel.missing.append(label)
        yield panel


PANELS = {"curves": _curves, "points": _points, "bars": _bars, "aggregate": _aggregates}


# -------------------------------------------------------------------------------------------------------------- drawing


def svg(panel: Panel) -> str:
    with matplotlib.rc_context(SETTINGS):
        figure = draw(panel)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def draw(panel: Panel) -> Figure:
    """The legend stands below the plot, one label under the other, so that it hides no curve."""
    first = next(iter(panel.lines.values()))
    names = list(dict.fromkeys(name for table in panel.lines.values() for name in table.index))
    named = isinstance(first.index[0], str)
    labels = [label for label in [*panel.lines, *panel.bounds] if label]
    height = 0.6 + 0.28 * len(names) if named else 2.2
    figure = Figure(figsize=(3.7, height + 0.3 + 0.16 * len(labels)), layout="constrained")
    figure.suptitle(textwrap.fill(panel.title, 44), fontsize=9)
    axis = figure.subplots()
    for count, (label, table) in enumerate(panel.lines.items()):
        _line(axis, panel, table, label, count, [names.index(x) for x in table.index] if named else table.index)
    for count, (label, value) in enumerate(panel.bounds.items()):
        (axis.axvline if named else axis.axhline)(
            value, color="#555555", linestyle=":", linewidth=1 + count, label=label
        )
    if named:
        axis.set_yticks(range(len(names)), [textwrap.fill(name, 28) for name in names])
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlabel(panel.y)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.margins(x=0.12)
    else:
        axis.set_xlabel(panel.x)
        axis.set_ylabel(textwrap.fill(panel.y, 34))
        axis.yaxis.set_major_locator(MaxNLocator(6))
        if panel.x == "k":
            axis.set_xscale("log", base=2)
        elif panel.points:
            axis.set_xticks(names)
            axis.margins(x=0.1)
        if max(map(abs, axis.get_xlim())) >= 10_000:
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    if labels:
        figure.legend(loc="outside lower center", frameon=False, fontsize=7.5, handlelength=4, labelspacing=0.25)
    return figure


def _line(axis, panel: Panel, table: pd.DataFrame, label: str, count: int, x: Sequence[float]) -> None:
    style = STYLES[count % len(STYLES)]
    if panel.points:
        bars = np.nan_to_num(np.array([table["mean"] - table.low, table.high - table["mean"]]))
        look = {"fmt": style["marker"], "color": style["color"], "markersize": 5, "capsize": 3, "label": label}
        if isinstance(table.index[0], str):
            offset = (count - (len(panel.lines) - 1) / 2) * 0.5 / len(panel.lines)
            axis.errorbar(table["mean"], np.array(x) + offset, xerr=bars, **look)
        else:
            apart = 0.02 * (count - (len(panel.lines) - 1) / 2) * (max(x) - min(x))
            axis.errorbar(np.array(x) + apart, table["mean"], yerr=bars, **look)
        return
    every = max(len(panel.lines), len(table) // 6)
    marks = {"markersize": 4, "markevery": (count * every // len(panel.lines), every)}
    axis.plot(x, table["mean"], linewidth=1.4, label=label, **style, **marks)
    if table.low.notna().any():
        axis.fill_between(x, table.low, table.high, color=style["color"], alpha=0.15, linewidth=0)
