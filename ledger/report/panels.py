"""Which panels a figure has, and what is in each: from the ledger's entries and their results to figures.py."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ledger import statistics
from ledger.ledger import Claim, Entry, Experiment, Ledger, Place
from ledger.readers.tables import RANGES
from ledger.report import figures, text
from ledger.report.figures import Dots, Lines, Series
from ledger.results import Cell, Collected, Curve, Outcome
from ledger.verdicts import Found

MOST_POINTS = 100  # of a curve that is drawn
Panels = Iterator[tuple[Lines | Dots, list[str]]]  # each with the rows that are missing in it
Members = Sequence[tuple[Entry, str]]  # of a panel: entries, each with one of its metrics
_STEPS = {"llm": "step", "vision": "epoch", "control": "step"}


@dataclass(frozen=True)
class Picture:
    """name: of its file. missing: rows of the panel that could not be drawn."""

    name: str
    svg: str
    alt: str
    missing: list[str]


def pictures(
    ledger: Ledger, collected: Collected, outcomes: Mapping[str, Outcome], place: Place, present: Sequence[Entry]
) -> list[Picture]:
    """present: the entries of the place that have results."""
    stem = re.sub(r"[^a-z0-9]+", "-", place.id.lower())
    return [
        Picture(f"{stem}-{number}", figures.svg(panel), describe(panel), missing)
        for number, (panel, missing) in enumerate(of_figure(ledger, collected, outcomes, place, present), 1)
    ]


def of_figure(
    ledger: Ledger, collected: Collected, outcomes: Mapping[str, Outcome], place: Place, present: Sequence[Entry]
) -> Panels:
    claims = ledger.claims_at(place.id)
    overhead = next((claim for claim in claims if claim.test == "overhead"), None)
    if overhead:
        return _ratios(ledger, outcomes, overhead, present)
    if place.draws == "aggregate":
        return _aggregates(ledger, collected, present)
    if place.draws == "points":
        return _points(outcomes, present)
    if place.draws == "bars":
        return _bars(outcomes, present)
    return _curves(ledger, collected, present, claims)


def _by_panel(entries: Sequence[Entry]) -> dict[str, Members]:
    """Those of the first metrics, then those of the second ones, in the order of the ledger."""
    groups: dict[tuple, list[tuple[Entry, str]]] = {}
    for entry in entries:
        for place, metric in enumerate(entry.metrics):
            groups.setdefault((entry.experiment.panel, place), []).append((entry, metric))
    return groups


def _experiments(entries: Sequence[Entry]) -> list[Experiment]:
    return list({entry.experiment.id: entry.experiment for entry in entries}.values())


def _style(ledger: Ledger, experiment: Experiment) -> int:
    """Its place among the rows of its panel, so that a row keeps its style from task to task."""
    rows = [other.row for other in ledger.at(experiment.place) if other.panel == experiment.panel]
    return list(dict.fromkeys(rows)).index(experiment.row)


def _unit(metrics: Sequence[str], otherwise: str) -> str:
    names = set(map(text.metric, metrics))
    return names.pop() if len(names) == 1 else otherwise


# --------------------------------------------------------------------------------------------------------------- curves


def _curves(ledger: Ledger, collected: Collected, present: Sequence[Entry], claims: Sequence[Claim]) -> Panels:
    groups: dict[tuple, list[tuple[Entry, str]]] = {}
    for entry in present:
        for place, metric in enumerate(entry.metrics):
            groups.setdefault((entry.experiment.panel, entry.value, place), []).append((entry, metric))
    for (panel, value, _), members in groups.items():
        series, missing = [], []
        for entry, metric in members:
            curves = Found(ledger, collected, entry).curves(metric)
            if curves:
                series.append(_mean(ledger, entry.experiment, metric, curves))
            else:
                missing.append(entry.experiment.row)
        if series:
            first, metric = members[0]
            is_pass = metric.startswith("pass@k/")
            x = "k" if is_pass else _STEPS[first.experiment.domain]
            y = _unit([metric for _, metric in members], panel)
            title = ", ".join(text.metric(str(part)) for part in (panel, value) if part not in (None, ""))
            yield Lines(title, x, y, series, _bounds(claims, members), log=is_pass), missing


def coarser(curve: Curve) -> Curve:
    """Means of successive points, at most MOST_POINTS: more cannot be told apart in a panel."""
    size = -(-len(curve.x) // MOST_POINTS)
    if size == 1:
        return curve
    starts = range(0, len(curve.x), size)
    x = [curve.x[start : start + size][-1] for start in starts]
    y = [fmean(curve.y[start : start + size]) for start in starts]
    return Curve(x, y, y, y, curve.rows)


def _mean(ledger: Ledger, experiment: Experiment, metric: str, curves: Sequence[Curve]) -> Series:
    """The band ends where the metric does: an accuracy has 100 % at most."""
    style, mean = _style(ledger, experiment), statistics.mean_curve(list(map(coarser, curves)))
    what = "run" if ledger.seeds_of(experiment) == (None,) else "seed"
    label = f"{experiment.row} ({text.counted(mean.seeds, what)})"
    if mean.half is None:
        return Series(label, mean.x, mean.mean, style=style)
    least, most = RANGES.get(metric, (-math.inf, math.inf))
    low = [max(least, value - half) for value, half in zip(mean.mean, mean.half)]
    high = [min(most, value + half) for value, half in zip(mean.mean, mean.half)]
    return Series(label, mean.x, mean.mean, low, high, style)


def _bounds(claims: Sequence[Claim], members: Members) -> dict[str, list[float]]:
    bounds = {}
    for claim in claims:
        drawn = [entry for entry, metric in members if claim.metric in ("", metric)]
        row = next((entry.experiment.row for entry in drawn if entry.experiment.id == claim.of), None)
        if row and claim.test == "at_least":
            bounds[f"claimed for {row}: at least {claim.value:g}"] = [claim.value]
        elif row and claim.test == "within":
            bounds[f"claimed for {row}: {claim.low:g} to {claim.high:g}"] = [claim.low, claim.high]
    return bounds


def _aggregates(ledger: Ledger, collected: Collected, present: Sequence[Entry]) -> Panels:
    for (panel, _), members in _by_panel(present).items():
        series, missing, metrics = [], [], []
        for style, experiment in enumerate(_experiments([entry for entry, _ in members])):
            tasks, scales = [], []
            for entry, metric in members:
                curves = Found(ledger, collected, entry).curves(metric) if entry.experiment == experiment else []
                if curves:
                    tasks.append(curves)
                    scales.append(ledger.scales[entry.value])
                    metrics.append(metric)
            if tasks:
                curve = statistics.iqm_curve(tasks, scales)
                count = text.counted(len(experiment.entries), "task")
                label = f"{experiment.row} ({len(tasks)} of {count}, {text.counted(curve.runs, 'run')})"
                series.append(Series(label, curve.x, curve.iqm, curve.low, curve.high, style))
            else:
                missing.append(experiment.row)
        if series:
            y = f"normalised {_unit(metrics, 'return')}, interquartile mean"
            yield Lines(panel, "share of the training", y, series), missing


# ------------------------------------------------------------------------------------------------------- single numbers


def _cells(outcomes: Mapping[str, Outcome], members: Members) -> list[tuple[Entry, Cell]]:
    """Those with a number of ours."""
    return [
        (entry, cell)
        for entry, metric in members
        for cell in outcomes[entry.id].cells
        if cell.metric == metric and cell.ours is not None
    ]


def _series(label: str, x: Sequence, cells: Sequence[Cell], style: int = 0) -> Series:
    """A number without an interval gets one of no length, if another one has an interval."""
    ours = [cell.ours for cell in cells]
    if all(cell.interval is None for cell in cells):
        return Series(label, list(x), ours, style=style)
    low, high = ([cell.ours + sign * (cell.interval or 0.0) for cell in cells] for sign in (-1, 1))
    return Series(label, list(x), ours, low, high, style)


def _over(cells: Sequence[Cell]) -> str:
    kinds = dict.fromkeys(cell.interval_of for cell in cells if cell.interval_of)
    return f", 95 % over {' and '.join(kinds)}" if kinds else ""


def _points(outcomes: Mapping[str, Outcome], present: Sequence[Entry]) -> Panels:
    for (panel, _), members in _by_panel(present).items():
        found = _cells(outcomes, members)
        series = []
        levels = {entry.experiment.row: [cell.ours] for entry, cell in found if entry.value is None}
        found = [(entry, cell) for entry, cell in found if entry.value is not None]
        for style, experiment in enumerate(_experiments([entry for entry, _ in found])):
            values = [entry.value for entry, _ in found if entry.experiment == experiment]
            cells = [cell for entry, cell in found if entry.experiment == experiment]
            seeds = text.ranges([cell.seeds for cell in cells])
            label = f"{experiment.row} ({seeds} {'seed' if seeds == '1' else 'seeds'} each{_over(cells)})"
            series.append(_series(label, values, cells, style))
        if series:
            unit = _unit([cell.metric for _, cell in found], "")
            yield Lines(panel, found[0][0].experiment.over_name, unit, series, levels, joined=False), []


def _bars(outcomes: Mapping[str, Outcome], present: Sequence[Entry]) -> Panels:
    """A line for each row; where the experiments are over something, one for each of its values, with their dots."""
    for (panel, _), members in _by_panel(present).items():
        found = _cells(outcomes, members)
        if not found:
            continue
        cells = [cell for _, cell in found]
        unit = _unit([cell.metric for cell in cells], "accuracy (%)")
        if found[0][0].value is None:
            rows = [entry.experiment.row for entry, _ in found]
            yield Dots(panel, f"{unit}{_over(cells)}", rows, [_series("", range(len(cells)), cells)]), []
            continue
        names, series = list(dict.fromkeys(cell.metric for cell in cells)), []
        for style, experiment in enumerate(_experiments([entry for entry, _ in found])):
            own = [cell for entry, cell in found if entry.experiment == experiment]
            places = [names.index(cell.metric) for cell in own]
            series.append(_series(f"{experiment.row}{_over(own)}", places, own, style))
        yield Dots(panel, unit, list(map(text.metric, names)), series), []


def ratio(outcomes: Mapping[str, Outcome], entry: Entry, cell: Cell, baseline: Experiment) -> float | None:
    """To the baseline at the same value; None for the baseline itself, and where that is missing."""
    other = next((item for item in baseline.entries if item.value == entry.value), None)
    if other is None or entry.experiment == baseline or cell.ours is None:
        return None
    base = next((found.ours for found in outcomes[other.id].cells if found.ours), None)
    return cell.ours / base if base else None


def _ratios(ledger: Ledger, outcomes: Mapping[str, Outcome], claim: Claim, present: Sequence[Entry]) -> Panels:
    baseline = ledger.experiments[claim.than]
    names = list(dict.fromkeys("all" if entry.value is None else str(entry.value) for entry in present))
    series = []
    for experiment in _experiments(present):
        found = {}
        for entry in present if experiment != baseline else ():
            cells = outcomes[entry.id].cells[:1] if entry.experiment == experiment else []
            if cells and (value := ratio(outcomes, entry, cells[0], baseline)) is not None:
                found[names.index("all" if entry.value is None else str(entry.value))] = value
        if found:
            series.append(Series(experiment.row, list(found), list(found.values()), style=len(series)))
    if series:
        bounds = {f"1: {baseline.row}": [1.0]}
        if claim.value is not None:
            bounds[f"claimed for {ledger.experiments[claim.of].row}: {1 + claim.value:g}"] = [1 + claim.value]
        y = f"{text.metric(baseline.metric[0])}, ratio to {baseline.row}"
        yield Dots("", y, names if names != ["all"] else [series[0].label], series, bounds), []


# ------------------------------------------------------------------------------------------------------------- in words


def describe(panel: Lines | Dots) -> str:
    """For readers who do not see the picture."""
    head = f"{panel.title}: " if panel.title else ""
    bounds = "".join(f" Dotted: {words}." for words in panel.bounds)
    if isinstance(panel, Lines):
        kind = "runs from" if panel.joined else "has"
        parts = [f"{series.label} {kind} {_values(panel, series)}" for series in panel.series]
        return f"{head}{panel.y} over {panel.x}. {'; '.join(parts)}.{bounds}"
    parts = []
    for series in panel.series:
        dots = ", ".join(f"{panel.names[x]} {text.number(y)}" for x, y in zip(series.x, series.y))
        parts.append(f"{series.label}: {dots}" if series.label else dots)
    return f"{head}{panel.y}. {'; '.join(parts)}.{bounds}"


def _values(panel: Lines, series: Series) -> str:
    if panel.joined:
        return f"{text.number(series.y[0])} to {text.number(series.y[-1])}"
    return ", ".join(f"{text.number(y)} at {x:g}" for x, y in zip(series.x, series.y))
