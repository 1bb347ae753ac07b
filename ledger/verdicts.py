# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What counts as reproduced: the paper's numbers and claims against the results.

All intervals are 95 %. Over seeds: Student's t. Between two rows: Welch's. Over tasks and seeds: the interquartile mean
with percentile bootstrap intervals, stratified by task, as Agarwal et al. (2021, "Deep RL at the edge of the
statistical precipice") propose.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pandas as pd
from scipy import stats

from ledger.paper import Claim, Entry, Paper
from ledger.results import EVALUATION, TRAINING, Result

REPRODUCED, NOT_REPRODUCED, PARTIAL, COMPLETE, NOT_RUN, CANNOT = STATES = (
    "reproduced",
    "not reproduced",
    "partial",  # some seeds, or some of what it is compared with, are missing
    "run",  # complete, and the paper gives nothing to compare it with
    "not run",
    "cannot run",
)
RESAMPLES = 2000
LAST = 0.1  # the end of a curve is this share of its steps
FEW = 5  # with fewer seeds of a task a percentile bootstrap's interval is too narrow to decide
NAN = float("nan")


@dataclass(frozen=True)
class Cell:
    """One number of a row: the paper's, ours (mean over the seeds) with its interval, and whether they agree.

    What is not known is NaN. half: of the interval, over `over`. allowed: of the difference; within: None untested."""

    paper: float
    error: float
    ours: float = NAN
    half: float = NAN
    over: str = ""
    seeds: int = 0
    allowed: float = NAN

    @property
    def has_paper(self) -> bool:
        return not math.isnan(self.paper)

    @property
    def difference(self) -> float:
        return self.ours - self.paper

    @property
    def within(self) -> bool | None:
        return None if math.isnan(self.difference + self.allowed) else abs(self.difference) <= self.allowed


@dataclass(frozen=True)
class Part:
    """One comparison of a claim, in words and as a number. entries: that it is about; passed: None, it is missing."""

    entries: tuple[str, ...]
    words: str = ""
    value: float = NAN
    passed: bool | None = None


@dataclass(frozen=True)
class Verdict:
    """On an entry. notes: in words, why it is partial."""

    state: str
    seeds: int = 0
    cells: Mapping[str, Cell] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Judged:
    """used: the complete results that count, by entry; others: those that do not. verdicts by entry; claims: state and
    parts by claim."""

    def __init__(self, paper: Paper, results: Sequence[Result]):
        self.paper, self.results = paper, results
        found: dict[tuple, list[Result]] = {}
        for result in results:
            found.setdefault((result.kind, result.name), []).append(result)
        self.used: dict[str, list[Result]] = {}
        self.others: dict[str, list[Result]] = {}
        for id, entry in paper.entries.items():
            here = found.get((EVALUATION if entry.evaluation else TRAINING, entry.folder), []) if entry.folder else []
            self.used[id] = [result for result in here if not result.why and _is_complete(result, entry)]
            self.others[id] = [result for result in here if result not in self.used[id]]
        entries = sorted(paper.entries.values(), key=lambda entry: bool(entry.gain))  # gains need their rows
        self.verdicts: dict[str, Verdict] = {}
        for entry in entries:
            self.verdicts[entry.id] = self._gain(entry) if entry.gain else self._row(entry)
        self.claims = {name: self._claim(claim) for name, claim in paper.claims.items()}
        for entry in entries:
            if self.verdicts[entry.id].state == COMPLETE:
                self.verdicts[entry.id] = self._by_claims(entry)
        self.verdicts = {id: self.verdicts[id] for id in paper.entries}

    def has_begun(self, entry: Entry) -> bool:
        return bool(self.used[entry.id] or self.others[entry.id])

    def left_out(self) -> list[tuple[Result, str]]:
        """Results that no entry counts, with the reason."""
        counted = {result for results in self.used.values() for result in results}
        return [(result, why_not(result)) for result in self.results if result not in counted]

    def values(self, entry: Entry, metric: str) -> list[float]:
        """The metric's number of each result that has it."""
        numbers = [number(result, metric, entry.at_step) for result in self.used[entry.id]]
        return [found for found in numbers if found is not None]

    def curves(self, entry: Entry, metric: str) -> list[pd.Series]:
        return [result.curves[metric] for result in self.used[entry.id] if metric in result.curves]

    # ---------------------------------------------------------------------------------------------------------- rows

    def _row(self, entry: Entry) -> Verdict:
        if entry.cannot:
            return Verdict(CANNOT, cells={metric: _paper_cell(entry, metric) for metric in entry.paper})
        cells = {metric: self._cell(entry, metric) for metric in entry.metrics}
        notes, seeds = tuple(self._notes(entry, cells)), len(self.used[entry.id])
        if not self.has_begun(entry):
            state = NOT_RUN
        elif not self._is_whole(entry):
            state = PARTIAL
        else:
            state = self._agreement(cells, entry.tolerance) if entry.tolerance else COMPLETE
        return Verdict(state, seeds, cells, notes)

    def _notes(self, entry: Entry, cells: Mapping[str, Cell]) -> Iterator[str]:
        used = self.used[entry.id]
        for result in self.others[entry.id]:
            yield f"{result.label}: {why_not(result)}"
        if came := sum(result.from_repository for result in used):
            yield f"{came} of {len(used)} runs came with the repository"
        for metric, cell in cells.items():
            if cell.seeds < len(used):
                yield f"{metric} is missing in {len(used) - cell.seeds} of {len(used)} runs"

    def _is_whole(self, entry: Entry) -> bool:
        counts = [len(self.used[entry.id]), *(len(self.values(entry, metric)) for metric in entry.metrics)]
        return min(counts) >= entry.seeds

    def _cell(self, entry: Entry, metric: str) -> Cell:
        cell, values = _paper_cell(entry, metric), self.values(entry, metric)
        if not values:
            return cell
        half, over = half_width(values), "seeds"
        if len(values) == 1:
            only = self.used[entry.id][0]
            half, over = only.intervals.get(metric, NAN), only.interval_of
        allowed = self._allowed(entry, metric, half, len(values))
        over = "" if math.isnan(half) else over
        return replace(cell, ours=float(np.mean(values)), half=half, over=over, seeds=len(values), allowed=allowed)

    def _allowed(self, entry: Entry, metric: str, half: float, seeds: int) -> float:
        """How far ours may be from the paper's; NaN for a metric that the tolerance does not cover."""
        if not entry.tolerance or metric not in entry.paper:
            return NAN
        answers = self.paper.tolerances[entry.tolerance].get("answers")
        if not answers:  # the paper prints intervals
            return math.hypot(half, _number(entry.paper[metric][1]))
        names = list(answers) if metric == "average" else [metric]
        widths = [_share_half_width(entry.paper[name][0], answers.get(name, NAN), seeds) for name in names]
        return math.hypot(*widths) / len(widths)

    def _agreement(self, cells: Mapping[str, Cell], tolerance: str) -> str:
        judged = self.paper.tolerances[tolerance]["judged"]
        return REPRODUCED if all(cells[metric].within for metric in judged) else NOT_REPRODUCED

    def _gain(self, entry: Entry) -> Verdict:
        """A row that compares two others. It is reproduced if it is the paper's within what the two may be off; but not
        where ours is too noisy to show a gain that the paper's own errors do show."""
        of, over = (self.verdicts[id] for id in entry.gain)
        cells = {metric: self._gain_cell(entry, metric, of.cells[metric], over.cells[metric]) for metric in entry.paper}
        seeds = min(of.seeds, over.seeds)
        if of.state == over.state == NOT_RUN:
            return Verdict(NOT_RUN, 0, cells)
        notes = [
            f"{id}: {self.verdicts[id].state}" for id in entry.gain if self.verdicts[id].state in (PARTIAL, NOT_RUN)
        ]
        for metric in self.paper.tolerances[entry.tolerance]["judged"] if not notes else ():
            if _is_underpowered(cells[metric], of.cells[metric], over.cells[metric]):
                notes.append(f"{metric}: our interval is wider than the paper's gain; more seeds would tell")
        return Verdict(PARTIAL if notes else self._agreement(cells, entry.tolerance), seeds, cells, tuple(notes))

    def _gain_cell(self, entry: Entry, metric: str, of: Cell, over: Cell) -> Cell:
        """In percent of the second row's, or in points."""
        cell = _paper_cell(entry, metric)
        if math.isnan(of.ours + over.ours) or entry.unit == "percent" and over.ours <= 0:
            return cell
        # How far the gain moves with each of the two numbers: in percent it is 100 (of / over - 1).
        by_of, by_over = (100 / over.ours, 100 * of.ours / over.ours**2) if entry.unit == "percent" else (1.0, 1.0)
        half = math.hypot(by_of * of.half, by_over * over.half)
        allowed = math.hypot(by_of * of.allowed, by_over * over.allowed)
        ours, kind = by_of * (of.ours - over.ours), "" if math.isnan(half) else of.over
        return replace(cell, ours=ours, half=half, over=kind, seeds=min(of.seeds, over.seeds), allowed=allowed)

    # -------------------------------------------------------------------------------------------------------- claims

    def _by_claims(self, entry: Entry) -> Verdict:
        """The paper has no number for a curve: it takes the state of the whole claims that it takes part in."""
        about = {
            state for state, parts in self.claims.values() for part in parts if entry.id in part.entries
        }  # those of other tasks are part of a claim too
        state = next((state for state in (PARTIAL, NOT_REPRODUCED) if state in about), REPRODUCED)
        return replace(self.verdicts[entry.id], state=state) if about else self.verdicts[entry.id]

    def _claim(self, claim: Claim) -> tuple[str, list[Part]]:
        subjects, baselines = (
            [entry for row in rows for entry in self.paper.row(row)] for rows in (claim.subject, claim.baseline)
        )
        parts = list(TESTS[claim.test](self, claim, subjects, baselines))
        if not any(map(self.has_begun, subjects + baselines)):
            return NOT_RUN, parts
        passed = [part.passed for part in parts]
        if None in passed or not all(map(self._is_whole, subjects + baselines)):
            return PARTIAL, parts
        return REPRODUCED if all(passed) else NOT_REPRODUCED, parts

    def _pairs(self, claim: Claim) -> Iterator[tuple[Entry, Entry]]:
        """Entries of subject and baseline that have the same value of each variable that both sweep."""
        for subject, baseline in product(claim.subject, claim.baseline):
            for one, other in product(self.paper.row(subject), self.paper.row(baseline)):
                values, others = (dict(zip(entry.sweep, entry.values)) for entry in (one, other))
                if all(values[name] == others[name] for name in values.keys() & others.keys()):
                    yield one, other

    def _numbers(self, claim: Claim) -> list[tuple[Entry, Entry, list[float], list[float]]]:
        return [
            (one, other, *(self.values(entry, claim.metric or entry.metrics[0]) for entry in (one, other)))
            for one, other in self._pairs(claim)
        ]

    def _order(self, claim: Claim, subjects: list[Entry], baselines: list[Entry]) -> Iterator[Part]:
        if claim.aggregate:
            yield self._aggregate(claim)
        elif claim.value is not None:
            yield self._gain_of_average(claim)
        else:
            for one, other, ones, others in self._numbers(claim):
                if not ones or not others:
                    yield Part((one.id, other.id))
                    continue
                difference, half = welch(ones, others)
                words = f"{one.name} {np.mean(ones):.4g}, {other.name} {np.mean(others):.4g}, "
                words += f"difference {difference:+.4g}" + (f" ± {half:.4g}" if half else ", one seed: the sign alone")
                is_higher = difference > half
                passed = not is_higher if claim.test == "not_higher" else is_higher
                yield Part((one.id, other.id), words, difference, bool(passed))

    def _gain_of_average(self, claim: Claim) -> Part:
        numbers = self._numbers(claim)
        ids = tuple(entry.id for one, other, *_ in numbers for entry in (one, other))
        if not all(ones and others for *_, ones, others in numbers):
            return Part(ids)
        one, other = (float(np.mean([np.mean(pair[side]) for pair in numbers])) for side in (2, 3))
        gain = 100 * (one / other - 1) if other > 0 else math.inf * (one - other)
        words = f"average of {len(numbers)}: {one:.4g} against {other:.4g}, {gain:+.1f} %; the paper {claim.value:+g} %"
        return Part(ids, words, gain, gain >= claim.value - claim.tolerance)

    def _aggregate(self, claim: Claim) -> Part:
        numbers = [pair for pair in self._numbers(claim) if pair[2] and pair[3]]
        ids = tuple(entry.id for pair in self._pairs(claim) for entry in pair)
        if not numbers:
            return Part(ids)
        scales = [self.paper.scales[one.values[0]] for one, *_ in numbers]
        tasks = [np.array(pair[side]) / scale for side in (2, 3) for pair, scale in zip(numbers, scales)]
        middle, low, high = iqm_difference(tasks)
        shown = f"({low:+.3f} to {high:+.3f})" if low < high else "(one seed of a task: the sign alone)"
        words = f"interquartile mean over {len(numbers)} of {len(ids) // 2} tasks, difference {middle:+.3f} {shown}"
        if low < high and min(len(values) for pair in numbers for values in pair[2:]) < FEW:
            return Part(ids, f"{words}, few seeds: too narrow", middle)
        return Part(ids, words, middle, low > 0)

    def _above(self, claim: Claim, subjects: list[Entry], baselines: list[Entry]) -> Iterator[Part]:
        """The means of the seeds, at the points that both curves have."""
        for one, other in self._pairs(claim):
            both = [self.curves(entry, claim.metric or entry.metrics[0]) for entry in (one, other)]
            if not all(both):
                yield Part((one.id, other.id))
                continue
            found = (mean_curve(both[0])["mean"] - mean_curve(both[1])["mean"]).dropna()
            words = f"{one.name}: above at {(found > 0).sum()}, below at {(found < 0).sum()} of {len(found)} points"
            yield Part((one.id, other.id), words, float(found.mean()), bool((found >= 0).all() and found.mean() > 0))

    def _overhead(self, claim: Claim, subjects: list[Entry], baselines: list[Entry]) -> Iterator[Part]:
        ratios = [np.mean(ones) / np.mean(others) for _, _, ones, others in self._numbers(claim) if ones and others]
        ids = tuple(entry.id for entry in subjects + baselines)
        if not ratios:
            yield Part(ids)
            return
        mean, half = float(np.mean(ratios)) - 1, half_width(ratios)
        words = f"{100 * mean:+.1f} %" + ("" if math.isnan(half) else f" ± {100 * half:.1f} over {len(ratios)} tasks")
        yield Part(ids, words, mean, mean <= (claim.value or 0) + claim.tolerance)

    def _bounds(self, claim: Claim, subjects: list[Entry], baselines: list[Entry]) -> Iterator[Part]:
        """at_least and within: each curve is tested by itself, and the worst one counts."""
        least = claim.low if claim.test == "within" else claim.value - claim.tolerance
        most = claim.high if claim.test == "within" else math.inf
        for entry in subjects:
            curves = self.curves(entry, claim.metric or entry.metrics[0])
            if not curves:
                yield Part((entry.id,))
                continue
            lows, highs = zip(*(extremes(curve, claim.after, claim.window) for curve in curves))
            low, high = min(lows), max(highs)
            words = f"{entry.name}: {low:.4g} to {high:.4g}, expected "
            words += f"at least {least:.4g}" if most == math.inf else f"{least:.4g} to {most:.4g}"
            yield Part((entry.id,), words, low if most == math.inf else high, low >= least and high <= most)

    def _spread(self, claim: Claim, subjects: list[Entry], baselines: list[Entry]) -> Iterator[Part]:
        ids = tuple(entry.id for entry in subjects)
        for metric in subjects[0].metrics:
            means = [float(np.mean(values)) for entry in subjects if (values := self.values(entry, metric))]
            if len(means) < 2:
                yield Part(ids)
                continue
            size = max(means) - min(means)
            words = (
                f"{metric}: {size:.2f} between largest and smallest of {len(means)}, expected at most {claim.value:g}"
            )
            yield Part(ids, words, size, size <= claim.value)


TESTS = {
    "higher": Judged._order,
    "not_higher": Judged._order,
    "above": Judged._above,
    "overhead": Judged._overhead,
    "at_least": Judged._bounds,
    "within": Judged._bounds,
    "spread": Judged._spread,
}


def _is_complete(result: Result, entry: Entry) -> bool:
    return result.finished or entry.at_step is not None and result.steps >= entry.at_step


def why_not(result: Result) -> str:
    return result.why or f"unfinished, {result.steps} of {result.total or '?'} steps"


def _paper_cell(entry: Entry, metric: str) -> Cell:
    number, error = entry.paper.get(metric, (None, None))
    return Cell(_number(number), _number(error))


def _number(value: float | None) -> float:
    return NAN if value is None else value


def _is_underpowered(gain: Cell, of: Cell, over: Cell) -> bool:
    """Where the paper prints no errors its numbers are shares of answers, and the tolerance says what they can show."""
    return gain.half > abs(gain.paper) > math.hypot(of.error, over.error)  # False for NaN


def _share_half_width(percent: float, answers: float, runs: int) -> float:
    """In points, of the difference between a share of `answers` answers and the mean of `runs` such shares."""
    share = percent / 100
    return 100 * float(stats.norm.ppf(0.975)) * math.sqrt(share * (1 - share) / answers * (1 + 1 / runs))


# ----------------------------------------------------------------------------------------------------------- statistics


def half_width(values: Sequence[float]) -> float:
    """Of the mean's interval; NaN with one value."""
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) > 1 else NAN


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Difference of the means, and half its interval; 0 where either has one value."""
    difference = float(np.mean(one) - np.mean(other))
    if min(len(one), len(other)) < 2 or np.ptp(one) == np.ptp(other) == 0:
        return difference, 0.0
    with np.errstate(all="ignore"):  # where one side's numbers are all the same
        interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    return difference, float(interval.high - interval.low) / 2


def number(result: Result, metric: str, at_step: int | None = None) -> float | None:
    """At the end of the run, or at this step of a longer one: a single value, or a curve's mean over its last tenth."""
    epochs = result.curves.get(f"eval_{metric}")  # timm's values are those of the last epoch
    if at_step is not None and epochs is not None:
        reached = epochs.loc[at_step:]
        return float(reached.iloc[0]) if len(reached) else None
    if metric in result.values:
        return result.values[metric]
    if metric not in result.curves:
        return None
    curve = result.curves[metric].loc[:at_step]
    first, last = curve.index[0], curve.index[-1]
    return float(curve.loc[last - LAST * (last - first) :].mean())


def extremes(curve: pd.Series, after: float, window: int) -> tuple[float, float]:
    """Smallest and largest after this share of the steps, of the running mean over `window` rows."""
    first, last = curve.index[0], curve.index[-1]
    late = curve.loc[first + after * (last - first) :]
    means = late.rolling(min(window, len(late))).mean().dropna()
    return float(means.min()), float(means.max())


def mean_curve(curves: Sequence[pd.Series], points: int = 100) -> pd.DataFrame:
    """mean, and half of its interval (NaN with one curve), over the steps that all have; else interpolated."""
    table = pd.concat(curves, axis=1, join="inner", ignore_index=True)
    if len(table) < max(map(len, curves)):
        first, last = max(curve.index[0] for curve in curves), min(curve.index[-1] for curve in curves)
        x = np.linspace(first, max(first, last), points)
        table = pd.DataFrame([np.interp(x, curve.index, curve) for curve in curves], columns=x).T
    half = stats.t.ppf(0.975, len(curves) - 1) * table.sem(axis=1) if len(curves) > 1 else NAN
    return pd.DataFrame({"mean": table.mean(axis=1), "half": half})


def _iqm(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    return stats.trim_mean(np.concatenate(tasks, axis=axis), 0.25, axis=axis)


def _bootstrap(tasks: Sequence[np.ndarray], statistic) -> tuple[np.ndarray, np.ndarray] | None:
    """Of a statistic of the tasks' runs (last axis), each task resampled by itself; the same every time. None where a
    task has one run."""
    if min(task.shape[-1] for task in tasks) < 2:
        return None
    drawn = {"n_resamples": RESAMPLES, "batch": 200, "rng": np.random.default_rng(0)}
    found = stats.bootstrap(tasks, statistic, method="percentile", axis=-1, vectorized=True, **drawn)
    return found.confidence_interval.low, found.confidence_interval.high


def iqm_difference(tasks: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Of the first half of the tasks and the second, with the ends of its interval: itself where a task has one run."""
    half = len(tasks) // 2

    def difference(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
        return _iqm(*tasks[:half], axis=axis) - _iqm(*tasks[half:], axis=axis)

    middle = float(difference(*tasks))
    low, high = _bootstrap(tasks, difference) or (middle, middle)
    return middle, float(low), float(high)


def iqm_curve(tasks: Sequence[Sequence[pd.Series]], scales: Sequence[float], points: int = 50) -> pd.DataFrame:
    """mean, low and high (NaN where a task has one run) over the share of the training, 0 to 1.

    tasks: the curves of each task's runs; scales: what each task's values are divided by."""
    x = np.linspace(0, 1, points)
    values = [
        np.array([_over_training(curve, x) for curve in curves]).T / scale for curves, scale in zip(tasks, scales)
    ]
    low, high = _bootstrap(values, _iqm) or (NAN, NAN)
    return pd.DataFrame({"mean": _iqm(*values), "low": low, "high": high}, index=x)


def _over_training(curve: pd.Series, x: np.ndarray) -> np.ndarray:
    """From the first evaluation to the last; before the first there is none."""
    first, last = curve.index[0], curve.index[-1]
    return np.interp(first + x * (last - first), curve.index, curve)
