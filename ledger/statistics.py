"""Means, intervals and aggregates over seeds. All intervals are 95 %.

Over seeds: Student's t. Between two experiments: Welch's. Over tasks and seeds: the interquartile mean with percentile
bootstrap intervals, stratified by task, as Agarwal et al. (2021, "Deep RL at the edge of the statistical precipice")
propose; scipy.stats computes both (docs/reproduce.md compares it with their rliable).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ledger.results import Curve

LEVEL = 0.95
RESAMPLES = 2000
LAST = 0.1  # the end of a curve is this share of its steps


@dataclass(frozen=True)
class MeanCurve:
    """half: half-width of the interval at each point; None with one seed."""

    x: list[float]
    mean: list[float]
    half: list[float] | None
    seeds: int


@dataclass(frozen=True)
class IqmCurve:
    """x: share of the training, 0 to 1. low, high: None where a task has a single run, which cannot be resampled."""

    x: list[float]
    iqm: list[float]
    low: list[float] | None
    high: list[float] | None
    runs: int


def t_interval(values: Sequence[float]) -> float | None:
    """Half-width of the interval of the mean; None with one value."""
    if len(values) < 2:
        return None
    return float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * stats.sem(values))


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float | None]:
    """Difference of the means, and half-width of its interval; None where either has one value."""
    difference = float(np.mean(one) - np.mean(other))
    if min(len(one), len(other)) < 2:
        return difference, None
    if np.ptp(one) == np.ptp(other) == 0:  # scipy divides by the spread
        return difference, 0.0
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # where one side's numbers are all the same
        interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval(LEVEL)
    return difference, float(interval.high - interval.low) / 2


def end(curve: Curve, until: float = math.inf) -> float:
    """Mean over the last tenth of its steps, or of those up to `until`: of the log's rows, and not of the points, which
    stand for several."""
    count = max(1, int(np.searchsorted(curve.x, until, side="right")))
    start = int(np.searchsorted(curve.x, curve.x[count - 1] - LAST * (curve.x[count - 1] - curve.x[0])))
    return float(np.average(curve.y[start:count], weights=_rows_of(curve)[start:count]))


def _rows_of(curve: Curve) -> np.ndarray:
    """How many rows of the log each point stands for (readers.tables.curve)."""
    begins = np.linspace(0, curve.rows, len(curve.x), endpoint=False).astype(int)
    return np.diff(np.append(begins, curve.rows))


def extremes(curve: Curve, after: float, window: int) -> tuple[float, float]:
    """Smallest and largest value after the share `after` of the steps, of the running mean over `window` rows."""
    start = int(np.searchsorted(curve.x, curve.x[0] + after * (curve.x[-1] - curve.x[0])))
    if window == 1:
        return min(curve.low[start:]), max(curve.high[start:])
    points = min(max(1, round(window * len(curve.x) / curve.rows)), len(curve.x) - start)
    means = np.convolve(curve.y[start:], np.full(points, 1 / points), mode="valid")
    return float(means.min()), float(means.max())


def mean_curve(curves: Sequence[Curve], points: int = 100) -> MeanCurve:
    """Over the steps that all curves have; one curve stays as it is."""
    if len(curves) == 1:
        return MeanCurve(curves[0].x, curves[0].y, None, 1)
    x, rows = _on_one_grid(curves, points)
    half = stats.t.ppf((1 + LEVEL) / 2, len(rows) - 1) * stats.sem(rows, axis=0)
    return MeanCurve(x.tolist(), rows.mean(0).tolist(), half.tolist(), len(curves))


def _on_one_grid(curves: Sequence[Curve], points: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the curves' values there, one row each: their own steps where all have the same, else interpolated."""
    if all(curve.x == curves[0].x for curve in curves):
        return np.array(curves[0].x), np.array([curve.y for curve in curves])
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.linspace(first, max(first, last), points)
    return x, np.array([np.interp(x, curve.x, curve.y) for curve in curves])


def _iqm(*tasks: np.ndarray, axis: int) -> np.ndarray:
    return stats.trim_mean(np.concatenate(tasks, axis=axis), 0.25, axis=axis)


def _bootstrap(tasks: Sequence[np.ndarray], statistic) -> tuple[np.ndarray, np.ndarray] | None:
    """Interval of a statistic of the tasks' runs (last axis), each task resampled by itself; the same every time."""
    if min(task.shape[-1] for task in tasks) < 2:
        return None
    drawn = {"n_resamples": RESAMPLES, "batch": 200, "rng": np.random.default_rng(0)}
    result = stats.bootstrap(
        tasks, statistic, confidence_level=LEVEL, method="percentile", axis=-1, vectorized=True, **drawn
    )
    return result.confidence_interval.low, result.confidence_interval.high


def iqm_curve(tasks: Sequence[Sequence[Curve]], scales: Sequence[float], points: int = 50) -> IqmCurve:
    """tasks: the curves of each task's runs; scales: what each task's values are divided by."""
    x = np.linspace(0, 1, points)
    values = [
        np.array([_over_training(curve, x) for curve in curves]).T / scale
        for curves, scale in zip(tasks, scales, strict=True)
    ]
    interval = _bootstrap(values, _iqm)
    low, high = (bound.tolist() for bound in interval) if interval else (None, None)
    return IqmCurve(x.tolist(), _iqm(*values, axis=-1).tolist(), low, high, sum(map(len, tasks)))


def _over_training(curve: Curve, x: np.ndarray) -> np.ndarray:
    """From the first evaluation to the last; before the first there is none."""
    return np.interp(curve.x[0] + x * (curve.x[-1] - curve.x[0]), curve.x, curve.y)


def iqm_difference(
    ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]
) -> tuple[float, float | None, float | None]:
    """Difference of two interquartile means over tasks (each a list of its runs' values), and its interval's bounds."""
    values = [np.asarray(task, dtype=float) for task in (*ones, *others)]

    def difference(*tasks: np.ndarray, axis: int) -> np.ndarray:
        return _iqm(*tasks[: len(ones)], axis=axis) - _iqm(*tasks[len(ones) :], axis=axis)

    interval = _bootstrap(values, difference)
    low, high = map(float, interval) if interval else (None, None)
    return float(difference(*values, axis=-1)), low, high


def share_half_width(percent: float, answers: int, runs: int) -> float:
    """Half-width, in points, of the interval of the difference between one share of `answers` answers and the mean of
    `runs` such shares."""
    share = percent / 100
    return float(100 * stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt(share * (1 - share) / answers * (1 + 1 / runs)))
