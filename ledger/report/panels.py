"""Which panels a figure has, and what is in each: from the ledger's entries and their results to figures.py."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ledger import statistics
from ledger.experiments import Claim, Entry, Experiment, Ledger, Place
from ledger.readers.tables import RANGES
from ledger.report import figures, text
from ledger.report.figures import Dots, Lines, Series
from ledger.results import Collected, Curve
from ledger.verdicts import Cell, Found, Outcome

MOST_POINTS = 100  # of a curve that is drawn
Panels = Iterator[tuple[Lines | Dots, list[str]]]  # each with the rows that it lacks
_STEPS = {"llm": "step", "vision": "epoch", "control": "step"}


@dataclass(frozen=True)
class Picture:
    """name: of its file. lacking: what of the panel could not be drawn."""

    name: str
    svg: str
    alt: str
    lacking: list[str]


def pictures(
    ledger: Ledger, collected: Collected, outcomes: Mapping[str, Outcome], place: Place, run: Sequence[Entry]
) -> list[Picture]:
    """run: the entries of the place for which there is anything."""
    made = of_figure(ledger, collected, outcomes, place, run)
    stem = re.sub(r"[^a-z0-9]+", "-", place.id.lower())
    return [
        Picture(f"{stem}-{number}", figures.svg(panel), describe(panel), lacking)
        for number, (panel, lacking) in enumerate(made, 1)
    ]


def of_figure(
    ledger: Ledger, collected: Collected, outcomes: Mapping[str, Outcome], place: Place, run: Sequence[Entry]
) -> Panels:
    claims = ledger.claims_at(place.id)
    overhead = next((claim for claim in claims if claim.test == "overhead"), None)
    if overhead:
        return _ratios(ledger, outcomes, overhead, run)
    if place.draws == "aggregate":
        return _aggregates(ledger, collected, run)
    if place.draws == "points":
        return _points(outcomes, run)
    if place.draws == "bars":
        return _bars(outcomes, run)
    return _curves(ledger, collected, run, claims)


def _grouped(entries: Sequence[Entry], key: Callable[[Entry, int], tuple]) -> dict[tuple, list[tuple[Entry, str]]]:
    """The entries' metrics by panel, in the order of the ledger; key: of a panel, from entry and place of the metric."""
    groups: dict[tuple, list[tuple[Entry, str]]] = {}
    for entry in entries:
        for place, metric in enumerate(entry.metrics):
            groups.setdefault(key(entry, place), []).append((entry, metric))
    return groups


def _style(ledger: Ledger, experiment: Experiment) -> int:
    """Its place among the rows of its panel, so that a row keeps its style from task to task."""
    return list(
        dict.fromkeys(other.row for other in ledger.at(experiment.place) if other.panel == experiment.panel)
    ).index(experiment.row)


def _title(*parts: object) -> str:
    return ", ".join(text.metric(str(part)) for part in parts if part not in (None, ""))


def _unit(metrics: Sequence[str], otherwise: str) -> str:
    names = dict.fromkeys(map(text.metric, metrics))
    return next(iter(names)) if len(names) == 1 else otherwise


def _curves(ledger: Ledger, collected: Collected, run: Sequence[Entry], claims: Sequence[Claim]) -> Panels:
    groups = _grouped(run, lambda entry, place: (entry.experiment.panel, entry.value, place))
    for (panel, value, _), members in groups.items():
        series, lacking = [], []
        for entry, metric in members:
            curves = Found(ledger, collected, entry).curves(metric)
            if curves:
                series.append(_mean(ledger, entry.experiment, metric, curves))
            else:
                lacking.append(entry.experiment.row)
        if series:
            first, metric = members[0]
            is_passes = metric.startswith("pass@k/")
            x = "k" if is_passes else _STEPS[first.experiment.domain]
            y = _unit([metric for _, metric in members], panel)
            yield Lines(_title(panel, value), x, y, series, _bounds(ledger, claims, members), log=is_passes), lacking


def coarser(curve: Curve) -> Curve:
    """Means of consecutive points, at most MOST_POINTS: more cannot be told apart in a panel."""
    size = -(-len(curve.x) // MOST_POINTS)
    if size == 1:
        return curve
    starts = range(0, len(curve.x), size)
    x, y = (
        [curve.x[start : start + size][-1] for start in starts],
        [fmean(curve.y[start : start + size]) for start in starts],
    )
    return Curve(x, y, y, y, curve.rows)


def _mean(ledger: Ledger, experiment: Experiment, metric: str, curves: Sequence[Curve]) -> Series:
    """The band ends where the metric does: an accuracy has 100 % at most."""
    style = _style(ledger, experiment)
    mean = statistics.mean_curve([coarser(curve) for curve in curves])
    label = (
        f"{experiment.row} ({text.counted(mean.seeds, 'run' if ledger.seeds_of(experiment) == (None,) else 'seed')})"
    )
    if mean.half is None:
        return Series(label, mean.x, mean.mean, style=style)
    least, most = RANGES.get(metric, (-math.inf, math.inf))
    low = [max(least, value - half) for value, half in zip(mean.mean, mean.half)]
    high = [min(most, value + half) for value, half in zip(mean.mean, mean.half)]
    return Series(label, mean.x, mean.mean, low, high, style)


def _bounds(ledger: Ledger, claims: Sequence[Claim], members: Sequence[tuple[Entry, str]]) -> dict[str, list[float]]:
    bounds = {}
    for claim in claims:
        about = [
            (entry, metric)
            for entry, metric in members
            if entry.experiment.id == claim.of and claim.metric in ("", metric)
        ]
        if not about:
            continue
        row = about[0][0].experiment.row
        if claim.test == "at_least":
            bounds[f"claimed for {row}: at least {claim.value:g}"] = [claim.value]
        elif claim.test == "within":
            bounds[f"claimed for {row}: {claim.low:g} to {claim.high:g}"] = [claim.low, claim.high]
    return bounds


def _aggregates(ledger: Ledger, collected: Collected, run: Sequence[Entry]) -> Panels:
    groups = _grouped(run, lambda entry, place: (entry.experiment.panel, place))
    for (panel, _), members in groups.items():
        series, lacking, metrics = [], [], []
        for style, experiment in enumerate({entry.experiment.id: entry.experiment for entry, _ in members}.values()):
            tasks, scales = [], []
            for entry, metric in members:
                curves = Found(ledger, collected, entry).curves(metric)
                if entry.experiment == experiment and curves:
                    tasks.append(curves)
                    scales.append(ledger.solved_at[entry.value])
                    metrics.append(metric)
            if tasks:
                curve = statistics.iqm_curve(tasks, scales)
                label = f"{experiment.row} ({len(tasks)} of {text.counted(len(experiment.entries), 'task')}, {text.counted(curve.runs, 'run')})"
                series.append(Series(label, curve.x, curve.iqm, curve.low, curve.high, style))
            else:
                lacking.append(experiment.row)
        if series:
            yield (
                Lines(
                    panel, "share of the training", f"{_unit(metrics, 'return')} / solved, interquartile mean", series
                ),
                lacking,
            )


def _interval(cells: Sequence[Cell]) -> tuple[list[float], list[float]] | tuple[None, None]:
    """No interval is one of no length."""
    if all(cell.interval is None for cell in cells):
        return None, None
    halves = [cell.interval or 0.0 for cell in cells]
    return [cell.ours - half for cell, half in zip(cells, halves)], [
        cell.ours + half for cell, half in zip(cells, halves)
    ]


def _cells(outcomes: Mapping[str, Outcome], members: Sequence[tuple[Entry, str]]) -> list[tuple[Entry, Cell]]:
    return [
        (entry, cell)
        for entry, metric in members
        for cell in outcomes[entry.id].cells
        if cell.metric == metric and cell.ours is not None
    ]


def _points(outcomes: Mapping[str, Outcome], run: Sequence[Entry]) -> Panels:
    groups = _grouped(run, lambda entry, place: (entry.experiment.panel, place))
    for (panel, _), members in groups.items():
        found = _cells(outcomes, members)
        series = []
        for style, experiment in enumerate({entry.experiment.id: entry.experiment for entry, _ in found}.values()):
            cells = [(entry.value, cell) for entry, cell in found if entry.experiment == experiment]
            seeds = text.ranges([cell.seeds for _, cell in cells])
            low, high = _interval([cell for _, cell in cells])
            label = f"{experiment.row} ({seeds} {'seed' if seeds == '1' else 'seeds'} each{_over([cell for _, cell in cells])})"
            series.append(
                Series(label, [value for value, _ in cells], [cell.ours for _, cell in cells], low, high, style)
            )
        if series:
            first = found[0][0].experiment
            yield Lines(panel, first.over_name, _unit([cell.metric for _, cell in found], ""), series, joined=False), []


def _over(cells: Sequence[Cell]) -> str:
    kinds = dict.fromkeys(cell.interval_of for cell in cells if cell.interval_of)
    return f", 95 % over {' and '.join(kinds)}" if kinds else ""


def _bars(outcomes: Mapping[str, Outcome], run: Sequence[Entry]) -> Panels:
    """Rows down the page; where the experiments are over something, that, with a dot for each experiment."""
    groups = _grouped(run, lambda entry, place: (entry.experiment.panel, place))
    for (panel, _), members in groups.items():
        found = _cells(outcomes, members)
        if not found:
            continue
        unit = _unit([cell.metric for _, cell in found], "accuracy (%)")
        if found[0][0].value is None:
            cells = [cell for _, cell in found]
            low, high = _interval(cells)
            series = [Series("", list(range(len(cells))), [cell.ours for cell in cells], low, high)]
            yield Dots(panel, f"{unit}{_over(cells)}", [entry.experiment.row for entry, _ in found], series), []
            continue
        names = list(dict.fromkeys(cell.metric for _, cell in found))
        series = []
        for style, experiment in enumerate({entry.experiment.id: entry.experiment for entry, _ in found}.values()):
            cells = [cell for entry, cell in found if entry.experiment == experiment]
            low, high = _interval(cells)
            places = [names.index(cell.metric) for cell in cells]
            series.append(
                Series(f"{experiment.row}{_over(cells)}", places, [cell.ours for cell in cells], low, high, style)
            )
        yield Dots(panel, unit, list(map(text.metric, names)), series), []


def ratio(outcomes: Mapping[str, Outcome], entry: Entry, cell: Cell, baseline: Experiment) -> float | None:
    """To the baseline at the same value; None for the baseline itself, and where it is lacking."""
    other = next((item for item in baseline.entries if item.value == entry.value), None)
    if other is None or entry.experiment == baseline or cell.ours is None:
        return None
    base = next((found.ours for found in outcomes[other.id].cells if found.ours), None)
    return cell.ours / base if base else None


def _ratios(ledger: Ledger, outcomes: Mapping[str, Outcome], claim: Claim, run: Sequence[Entry]) -> Panels:
    baseline = ledger.experiments[claim.than]
    names = list(dict.fromkeys(str(entry.value) if entry.value is not None else "all" for entry in run))
    series = []
    for experiment in {entry.experiment.id: entry.experiment for entry in run if entry.experiment != baseline}.values():
        found = [
            (names.index(str(entry.value) if entry.value is not None else "all"), value)
            for entry in run
            if entry.experiment == experiment
            for cell in outcomes[entry.id].cells[:1]
            if (value := ratio(outcomes, entry, cell, baseline)) is not None
        ]
        if found:
            series.append(
                Series(experiment.row, [place for place, _ in found], [value for _, value in found], style=len(series))
            )
    if series:
        bounds = {f"1: {baseline.row}": [1.0]}
        if claim.value is not None:
            bounds[f"claimed for {ledger.experiments[claim.of].row}: {1 + claim.value:g}"] = [1 + claim.value]
        y = f"{text.metric(baseline.metric[0])}, ratio to {baseline.row}"
        yield Dots("", y, names if names != ["all"] else [series[0].label], series, bounds), []


def describe(panel: Lines | Dots) -> str:
    """What a reader learns who does not see it."""
    head = f"{panel.title}: " if panel.title else ""
    bounds = "".join(f" Dotted: {words}." for words in panel.bounds)
    if isinstance(panel, Lines):
        kind = "runs from" if panel.joined else "has"
        ends = "; ".join(f"{series.label} {kind} {_told(panel, series)}" for series in panel.series)
        return f"{head}{panel.y} over {panel.x}. {ends}.{bounds}"
    told = []
    for series in panel.series:
        dots = ", ".join(f"{panel.names[x]} {text.number(y)}" for x, y in zip(series.x, series.y))
        told.append(f"{series.label}: {dots}" if series.label else dots)
    return f"{head}{panel.y}. {'; '.join(told)}.{bounds}"


def _told(panel: Lines, series: Series) -> str:
    if panel.joined:
        return f"{text.number(series.y[0])} to {text.number(series.y[-1])}"
    return ", ".join(f"{text.number(y)} at {x:g}" for x, y in zip(series.x, series.y))
