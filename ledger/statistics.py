# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Means and their intervals, of numbers and of curves. All intervals are 95 %.

Over seeds: Student's t. Between two rows: Welch's. Over tasks and seeds: the interquartile mean with percentile
bootstrap intervals, stratified by task, as Agarwal et al. (2021, "Deep RL at the edge of the statistical precipice")
propose, each task with the same weight. A curve is a Series over steps, which ascend."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy import optimize, stats

FEWEST = 3  # values that an interval of their mean is given for: of two it is 12.7 standard errors to each side
RESAMPLES, AT_ONCE = 10_000, 200  # of a bootstrap


def half_width(values: Sequence[float]) -> float:
    """Half the width of the mean's interval; NaN with fewer than three values."""
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) >= FEWEST else math.nan


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The difference of the means, and half its interval, which is 0 where a side has one value or neither varies."""
    difference = float(np.mean(one) - np.mean(other))
    if min(len(one), len(other)) < 2 or np.ptp(one) == np.ptp(other) == 0:
        return difference, 0.0
    with np.errstate(all="ignore"):  # where one side's numbers are all the same
        interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    return difference, float(interval.high - interval.low) / 2


def detectable(one: Sequence[float], other: Sequence[float], power: float = 0.8) -> float:
    """The smallest difference of the means that Welch's test (5 %, both sides) sees with this probability.

    It takes the two sides to be normal with the spreads of these values, and the test's degrees of freedom to be those
    of these values: drawn anew with the spreads of records/, the test sees 0.77 to 0.80 of such differences. NaN where
    a side has one value, or neither varies."""
    if min(len(one), len(other)) < 2 or np.ptp(one) == np.ptp(other) == 0:
        return math.nan
    parts = np.var(one, ddof=1) / len(one), np.var(other, ddof=1) / len(other)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(other) - 1))
    least = stats.t.ppf(0.975, freedom)
    # The test's statistic has a noncentral t distribution; its other tail adds nothing where the power is large.
    shift = optimize.brentq(lambda shift: stats.nct.sf(least, freedom, shift) - power, 0, 100)
    return float(shift * math.sqrt(sum(parts)))


def half_width_of_shares(percent: float, answers: float, runs: int) -> float:
    """Half the interval, in points, of a share of `answers` answers minus the mean of `runs` such shares."""
    share = percent / 100
    return 100 * float(stats.norm.ppf(0.975)) * math.sqrt(share * (1 - share) / answers * (1 + 1 / runs))


def behind(curve: pd.Series, share: float) -> pd.Series:
    """The curve after this share of its steps."""
    first, last = curve.index[0], curve.index[-1]
    return curve.iloc[curve.index.searchsorted(first + share * (last - first)) :]


def mean_curve(curves: Sequence[pd.Series], points: int = 100) -> pd.DataFrame:
    """mean, low and high over the steps; interpolated where the curves' steps differ. low and high are NaN with fewer
    than three curves."""
    x = curves[0].index
    if all(x.equals(curve.index) for curve in curves):
        table = np.array([curve.to_numpy() for curve in curves])
    else:
        first, last = max(curve.index[0] for curve in curves), min(curve.index[-1] for curve in curves)
        x = np.linspace(first, max(first, last), points)
        table = np.array([np.interp(x, curve.index, curve) for curve in curves])
    mean = table.mean(axis=0)
    half = stats.t.ppf(0.975, len(curves) - 1) * stats.sem(table) if len(curves) >= FEWEST else math.nan
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half}, index=x)


def interquartile_mean(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean of the middle half of all runs (the last axis, whatever scipy's bootstrap calls it). A run weighs one
    over its task's number of runs, so that tasks count alike however many runs each has: pooled, one seed of a task
    beside five of another is trimmed away. With as many of each this is Agarwal's mean; a run at the edge of the middle
    half counts in part, where rliable's trim_mean rounds."""
    values = np.concatenate(tasks, axis=-1)
    weights = np.concatenate([np.full(task.shape[-1], 1 / task.shape[-1] / len(tasks)) for task in tasks])
    if np.ptp(weights) == 0:  # as many runs of each task: numpy sorts much faster than it argsorts
        values = np.sort(values, axis=-1)
    else:
        order = np.argsort(values, axis=-1)
        values, weights = np.take_along_axis(values, order, axis=-1), weights[order]
    up_to = np.clip(np.cumsum(weights, axis=-1), 0.25, 0.75)
    return 2 * (np.diff(up_to, prepend=0.25) * values).sum(axis=-1)


def interquartile_difference(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    """The interquartile mean of the first half of the tasks minus that of the second half."""
    half = len(tasks) // 2
    return interquartile_mean(*tasks[:half], axis=axis) - interquartile_mean(*tasks[half:], axis=axis)


def median_difference(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    """The median over the first half of the tasks, of the means of their runs, minus that over the second half."""
    means = np.stack([task.mean(axis=-1) for task in tasks])
    half = len(tasks) // 2
    return np.median(means[:half], axis=0) - np.median(means[half:], axis=0)


def probability_of_improvement(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    """How often a run of the first half of the tasks is above one of the same task in the second half, mean over the
    tasks; equal runs count half."""
    half = len(tasks) // 2
    shares = []
    for ones, others in zip(tasks[:half], tasks[half:]):
        differences = ones[..., :, None] - others[..., None, :]
        shares.append(((np.sign(differences) + 1) / 2).mean(axis=(-2, -1)))
    return np.mean(shares, axis=0)


def bootstrap(tasks: Sequence[np.ndarray], statistic: Callable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A statistic of the tasks' runs (last axis) and the ends of its interval. Each task is resampled by itself, with a
    fixed seed. The ends are NaN where a task has one run."""
    middle = statistic(*tasks)
    if min(task.shape[-1] for task in tasks) < 2:
        return middle, middle * math.nan, middle * math.nan
    drawn = {"n_resamples": RESAMPLES, "batch": AT_ONCE, "rng": np.random.default_rng(0)}
    resampled = stats.bootstrap(tasks, statistic, method="percentile", axis=-1, vectorized=True, **drawn)
    return middle, resampled.confidence_interval.low, resampled.confidence_interval.high


def interquartile_curve(
    tasks: Sequence[Sequence[pd.Series]], scales: Sequence[float], points: int = 50
) -> pd.DataFrame:
    """mean, low and high over the share of the training between the first evaluation and the last, 0 to 1.

    tasks: the curves of each task's runs; scales: what each task's values are divided by."""
    x = np.linspace(0, 1, points)
    values = []
    for curves, scale in zip(tasks, scales):
        steps = [curve.index[0] + x * (curve.index[-1] - curve.index[0]) for curve in curves]
        values.append(np.array([np.interp(at, curve.index, curve) for at, curve in zip(steps, curves)]).T / scale)
    return pd.DataFrame(dict(zip(("mean", "low", "high"), bootstrap(values, interquartile_mean))), index=x)
