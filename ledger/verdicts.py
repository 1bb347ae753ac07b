# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What counts as reproduced: the paper's numbers and claims against the results."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from ledger.paper import CANNOT, COMPLETE, NOT_REPRODUCED, NOT_RUN, PARTIAL, REPRODUCED, Claim, Entry, Paper
from ledger.results import Result
from ledger.statistics import (
    FEWEST,
    behind,
    bootstrap,
    detectable,
    half_width,
    half_width_of_shares,
    interquartile_difference,
    mean_curve,
    welch,
)
from recipes.curves import at_end, over_all

Measure = Callable[[Mapping[int, float]], float]  # of a curve; recipes/curves.py has them

FEW = 5  # with fewer seeds of a task a percentile bootstrap's interval is too narrow to decide


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim, in words and as a number. passed: None where seeds are missing, or too few to say.
    about: what distinguishes it from the claim's others, such as a task."""

    words: str
    value: float
    passed: bool | None
    about: str = ""


class Judged:
    """The verdicts on all entries and claims.

    used: by entry, the complete results that count. begun: the entries that have any results.
    numbers: a line for each entry and metric, NaN where a number is not known. paper, error: the paper's. ours, half:
        our mean over the seeds, and half its interval; over: what the interval is over. seeds: how many have the
        metric. difference, allowed: ours - paper, and how large it may be. within: whether ours agrees.
    states: by entry. claims: by claim, its state and comparisons."""

    def __init__(self, paper: Paper, results: Sequence[Result]):
        self.paper, self.results = paper, results
        self.means: dict[tuple, pd.DataFrame] = {}  # of curves, as figures.py draws them: an entry may be in several
        self._known: dict[tuple, float | None] = {}  # what `number` says, by its arguments
        by_name: dict[tuple, list[Result]] = {}
        for result in results:
            by_name.setdefault((result.is_evaluation, result.name), []).append(result)
        of_entry = {id: by_name.get((bool(entry.evaluation), entry.folder), []) for id, entry in paper.entries.items()}
        self.begun = {id for id, results in of_entry.items() if results}
        self.used = {
            id: [result for result in results if not result.why and _is_complete(result, paper.entries[id])]
            for id, results in of_entry.items()
        }
        self.numbers = self._numbers()
        self.states: dict[str, str] = {}
        for id, entry in paper.entries.items():
            self.states[id] = self._gain_state(entry) if entry.gain else self._state(entry)
        self.claims = {id: self._claim(claim) for id, claim in paper.claims.items()}

    def counted(self) -> set[Result]:
        return {result for results in self.used.values() for result in results}

    def left_out(self) -> Iterator[tuple[Result, str]]:
        """Results that no entry counts, and those that count without one of their metrics, with the reason."""
        counted = self.counted()
        for result in self.results:
            if result not in counted:
                yield result, result.why or f"unfinished, {result.steps} of {result.total or '?'} steps"
            for metric, why in result.without.items() if result in counted else ():
                yield result, f"counts without {metric}: {why}"

    def values(self, entry: Entry, metric: str, measure: Measure = at_end) -> list[float]:
        """The metric's number of each result that has it. measure: which number stands for a curve."""
        keys = [(result, metric, entry.at_step, measure) for result in self.used[entry.id]]
        self._known |= {key: number(*key) for key in keys if key not in self._known}
        return [self._known[key] for key in keys if self._known[key] is not None]

    def curves(self, entry: Entry, metric: str) -> list[pd.Series]:
        return [result.curves[metric] for result in self.used[entry.id] if metric in result.curves]

    def is_whole(self, entry: Entry) -> bool:
        return self.numbers.loc[entry.id].seeds.min() >= entry.seeds

    # --------------------------------------------------------------------------------------------------------- numbers

    def _numbers(self) -> pd.DataFrame:
        lines: dict[tuple[str, str], dict] = {}
        for entry in self.paper.entries.values():
            for metric in entry.metrics:
                compared = [lines[id, metric] for id in entry.gain]
                ours = _gain(entry, *compared) if entry.gain else self._ours(entry, metric)
                paper, error = entry.paper.get(metric, (math.nan, math.nan))
                lines[entry.id, metric] = {"paper": paper, "error": error, **ours}
        table = pd.DataFrame.from_dict(lines, orient="index").rename_axis(["entry", "metric"])
        table["difference"] = table.ours - table.paper
        table["within"] = table.difference.abs() <= table.allowed
        return table

    def _ours(self, entry: Entry, metric: str) -> dict:
        values = self.values(entry, metric)
        if not values:
            return {"ours": math.nan, "half": math.nan, "over": "", "seeds": 0, "allowed": math.nan}
        half, over = half_width(values), "seeds"
        if len(values) == 1:
            half = self.used[entry.id][0].intervals.get(metric, math.nan)
            over = "problems" if entry.evaluation else "images"
        allowed = self._allowed(entry, metric, half, len(values))
        over = "" if math.isnan(half) else over
        return {"ours": float(np.mean(values)), "half": half, "over": over, "seeds": len(values), "allowed": allowed}

    def _allowed(self, entry: Entry, metric: str, half: float, seeds: int) -> float:
        """How far ours may be from the paper's."""
        if not entry.tolerance:
            return math.nan
        answers = self.paper.tolerances[entry.tolerance].get("answers")
        if not answers:  # the paper prints intervals
            return math.hypot(half, entry.paper[metric][1])
        names = list(answers) if metric == "average" else [metric]
        halves = [half_width_of_shares(entry.paper[name][0], answers[name], seeds) for name in names]
        return math.hypot(*halves) / len(halves)

    # ---------------------------------------------------------------------------------------------------------- states

    def _state(self, entry: Entry) -> str:
        if entry.cannot:
            return CANNOT
        if entry.id not in self.begun:
            return NOT_RUN
        if not self.is_whole(entry):
            return PARTIAL
        return self._agreement(entry) if entry.tolerance else COMPLETE

    def _agreement(self, entry: Entry) -> str:
        judged = self.paper.tolerances[entry.tolerance]["judged"]
        return REPRODUCED if self.numbers.loc[entry.id].within[judged].all() else NOT_REPRODUCED

    def _gain_state(self, entry: Entry) -> str:
        """The state of a row that compares two others. It is reproduced if our gain differs from the paper's by no more
        than the two rows may be off together. But it is partial where our interval is wider than a gain that the
        paper's own errors do show: more seeds would tell. (Where the paper prints no errors, its numbers are shares of
        answers, and the tolerance says what they show.)"""
        states = {self.states[id] for id in entry.gain}
        if states == {NOT_RUN}:
            return NOT_RUN
        if states & {PARTIAL, NOT_RUN}:
            return PARTIAL
        for metric in self.paper.tolerances[entry.tolerance]["judged"]:
            gain = self.numbers.loc[(entry.id, metric)]
            errors = [self.numbers.error[id, metric] for id in entry.gain]
            if gain.half > abs(gain.paper) > math.hypot(*errors):  # False for NaN
                return PARTIAL
        return self._agreement(entry)

    # ---------------------------------------------------------------------------------------------------------- claims

    def _claim(self, claim: Claim) -> tuple[str, list[Comparison]]:
        """A claim's state and comparisons, of entries that have numbers; until all have them, the claim is partial."""
        entries = [entry for row in claim.rows for entry in self.paper.row(row)]
        comparisons = list(TESTS[claim.test](self, claim))
        passed = [comparison.passed for comparison in comparisons]
        if not comparisons:
            return NOT_RUN, comparisons
        if None in passed or not all(map(self.is_whole, entries)):
            return PARTIAL, comparisons
        return REPRODUCED if all(passed) else NOT_REPRODUCED, comparisons

    def subjects(self, claim: Claim) -> list[tuple[Entry, str]]:
        """The claim's subjects, each with the metric that is tested."""
        entries = [entry for row in claim.subject for entry in self.paper.row(row)]
        return [(entry, claim.metric or entry.metrics[0]) for entry in entries]

    def pairs(self, claim: Claim) -> list[tuple[Entry, Entry, str]]:
        """Entries of subject and baseline that have the same value of each variable that both sweep, and the metric."""
        return [
            (one, other, metric)
            for (one, metric), row in product(self.subjects(claim), claim.baseline)
            for other in self.paper.row(row)
            if all(one.values[name] == other.values[name] for name in one.values.keys() & other.values.keys())
        ]

    def pairs_of_values(
        self, claim: Claim, measure: Measure = at_end
    ) -> list[tuple[Entry, Entry, list[float], list[float]]]:
        """The pairs of which both entries have numbers, with these."""
        pairs = [
            (one, other, *(self.values(entry, metric, measure) for entry in (one, other)))
            for one, other, metric in self.pairs(claim)
        ]
        return [pair for pair in pairs if pair[2] and pair[3]]


def number(result: Result, metric: str, at_step: int | None = None, measure: Measure = at_end) -> float | None:
    """The metric of the whole run, or until `at_step`: a single value, or the measure of a curve."""
    epochs = result.curves.get(f"eval_{metric}")  # timm's values are those of the last epoch
    if at_step is not None and epochs is not None:
        reached = epochs.loc[at_step:]
        return float(reached.iloc[0]) if len(reached) else None
    if metric in result.values:
        return result.values[metric]
    if metric not in result.curves:
        return None
    curve = result.curves[metric]
    curve = curve if at_step is None else curve.loc[:at_step]
    return measure(curve) if len(curve) else None


def _is_complete(result: Result, entry: Entry) -> bool:
    return result.finished or entry.at_step is not None and result.steps >= entry.at_step


def _gain(entry: Entry, subject: dict, baseline: dict) -> dict:
    """The gain of one row's numbers over another's, in points, or in percent of the latter if that is above 0."""
    by_subject, by_baseline = 1.0, 1.0  # how far the gain moves with each of the two numbers
    if entry.unit == "percent":  # 100 (subject / baseline - 1)
        by_subject = 100 / baseline["ours"] if baseline["ours"] > 0 else math.nan
        by_baseline = by_subject**2 * subject["ours"] / 100
    half, allowed = (
        math.hypot(by_subject * subject[name], by_baseline * baseline[name]) for name in ("half", "allowed")
    )
    return {
        "ours": by_subject * (subject["ours"] - baseline["ours"]),
        "half": half,
        "over": "" if math.isnan(half) else subject["over"],
        "seeds": min(subject["seeds"], baseline["seeds"]),
        "allowed": allowed,
    }


# --------------------------------------------------------------------------------- the tests of claims, by their names


def _order(judged: Judged, claim: Claim) -> Iterator[Comparison]:
    """The tests higher and not_higher."""
    measures = {"end": at_end, "whole training": over_all} if claim.efficiency else {"": at_end}
    compared = [(of, pair) for of, measure in measures.items() for pair in judged.pairs_of_values(claim, measure)]
    for of, (one, other, ones, others) in compared:
        difference, half = welch(ones, others)
        digits = max(0, 3 - math.floor(math.log10(max(map(abs, ones + others)) or 1)))
        means = f"{one.name} {np.mean(ones):,.{digits}f}, {other.name} {np.mean(others):,.{digits}f}"
        words = f"{of}: {means}" if of else means
        words += f", difference {difference:+,.{digits}f}"
        words += f" ± {half:,.{digits}f}" if half and min(len(ones), len(others)) >= FEWEST else ""
        words += "" if half else ", one seed: the sign alone"
        if abs(difference) <= half:
            words += f"; {detectable(ones, others):,.{digits}f} would be seen in 4 of 5 cases"
        whole = len(ones) >= one.seeds and len(others) >= other.seeds
        passed = bool(difference > half) == (claim.test == "higher")
        about = ", ".join([*one.values.values(), *([of] if of else [])])
        yield Comparison(words, difference, passed if whole else None, about)


def _average(judged: Judged, claim: Claim) -> Iterator[Comparison]:
    pairs = judged.pairs_of_values(claim)
    if len(pairs) < len(judged.pairs(claim)):
        return
    one, other = (float(np.mean([np.mean(pair[side]) for pair in pairs])) for side in (2, 3))
    gain = 100 * (one / other - 1) if other else math.inf
    words = f"average of {len(pairs)}: {one:.4g} against {other:.4g}, {gain:+.1f} %; the paper {claim.value:+g} %"
    yield Comparison(words, gain, gain >= claim.value - claim.tolerance)


def _aggregate(judged: Judged, claim: Claim) -> Iterator[Comparison]:
    pairs = judged.pairs_of_values(claim)
    if not pairs:
        return
    scales = [judged.paper.scales[one.values["TASKS"]] for one, *_ in pairs]
    tasks = [np.array(pair[side]) / scale for side in (2, 3) for pair, scale in zip(pairs, scales)]
    middle, low, high = map(float, bootstrap(tasks, interquartile_difference))
    words = f"interquartile mean over {len(pairs)} of {len(judged.pairs(claim))} tasks, difference {middle:+.3f} "
    if math.isnan(low):
        yield Comparison(f"{words}(one seed of a task: the sign alone)", middle, middle > 0)
    elif min(map(len, tasks)) < FEW:
        yield Comparison(f"{words}({low:+.3f} to {high:+.3f})", middle, None)
    else:
        yield Comparison(f"{words}({low:+.3f} to {high:+.3f})", middle, low > 0)


def _above(judged: Judged, claim: Claim) -> Iterator[Comparison]:
    """Compares the means over the seeds, at the points that both curves have."""
    for one, other, metric in judged.pairs(claim):
        both = [judged.curves(entry, metric) for entry in (one, other)]
        if not all(both):
            continue
        difference = (mean_curve(both[0])["mean"] - mean_curve(both[1])["mean"]).dropna()
        above, below = (difference > 0).sum(), (difference < 0).sum()
        words = f"{one.name}: above at {above}, below at {below} of {len(difference)} points"
        yield Comparison(words, float(difference.mean()), bool((difference >= 0).all() and difference.mean() > 0))


def _overhead(judged: Judged, claim: Claim) -> Iterator[Comparison]:
    ratios = [np.mean(ones) / np.mean(others) for *_, ones, others in judged.pairs_of_values(claim)]
    if not ratios:
        return
    mean, half = float(np.mean(ratios)) - 1, half_width(ratios)
    words = f"{100 * mean:+.1f} %" + ("" if math.isnan(half) else f" ± {100 * half:.1f} over {len(ratios)} tasks")
    yield Comparison(words, mean, mean <= claim.value + claim.tolerance)


def _bounds(judged: Judged, claim: Claim) -> Iterator[Comparison]:
    """The tests at_least and within: each curve is tested by itself, and the worst one counts."""
    least = claim.low if claim.test == "within" else claim.value - claim.tolerance
    for entry, metric in judged.subjects(claim):
        late = [behind(curve, claim.after) for curve in judged.curves(entry, metric)]
        means = [curve.rolling(min(claim.window, len(curve))).mean() for curve in late]
        if not means:
            continue
        low, high = float(min(curve.min() for curve in means)), float(max(curve.max() for curve in means))
        words = f"{entry.name}: {low:.4g} to {high:.4g}"
        yield Comparison(words, low if claim.test == "at_least" else high, low >= least and high <= claim.high)


def _spread(judged: Judged, claim: Claim) -> Iterator[Comparison]:
    entries = [entry for entry, _ in judged.subjects(claim)]
    for metric in entries[0].metrics:
        means = judged.numbers.ours.loc[[(entry.id, metric) for entry in entries]].dropna()
        if len(means) > 1:
            size = float(np.ptp(means))
            words = f"{metric}: {size:.2f} between largest and smallest of {len(means)}"
            yield Comparison(words, size, size <= claim.value)


TESTS = {
    "higher": _order,
    "not_higher": _order,
    "higher_average": _average,
    "higher_aggregate": _aggregate,
    "above": _above,
    "overhead": _overhead,
    "at_least": _bounds,
    "within": _bounds,
    "spread": _spread,
}
