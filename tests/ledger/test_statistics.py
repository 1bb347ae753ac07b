# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Intervals and curves, against other formulas."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ledger import statistics


def test_intervals_are_students_and_welchs():
    """t quantiles from a table: 2.776 for 4 degrees of freedom."""
    one, other = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.0, 5.0, 7.0]
    assert statistics.half_width(one) == pytest.approx(2.776445 * np.std(one, ddof=1) / math.sqrt(5), rel=1e-6)
    assert math.isnan(statistics.half_width([1.0, 2.0]))
    difference, half = statistics.welch(one, other)
    a, b = np.var(one, ddof=1) / 5, np.var(other, ddof=1) / 4
    freedom = (a + b) ** 2 / (a**2 / 4 + b**2 / 3)
    assert difference == -1.0 and 4 < freedom < 6
    assert half == pytest.approx(2.5335 * math.sqrt(a + b), rel=0.02)
    assert statistics.welch([1.0], [0.0, 0.5]) == (0.75, 0.0) and statistics.welch([1.0, 1.0], [0.0, 0.0]) == (1.0, 0.0)


def test_a_difference_that_is_detectable_is_seen_four_times_of_five():
    """By 20,000 draws from normal distributions with the spreads of the two sides."""
    one, other = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.0, 5.0, 7.0, 7.5, 1.0, 4.0, 3.0]
    difference = statistics.detectable(one, other)
    draw = np.random.default_rng(5)
    ones = draw.normal(difference, np.std(one, ddof=1), (20_000, len(one)))
    others = draw.normal(0, np.std(other, ddof=1), (20_000, len(other)))
    seen = stats.ttest_ind(ones, others, equal_var=False, axis=1).pvalue < 0.05
    assert seen.mean() == pytest.approx(0.8, abs=0.02)
    assert math.isnan(statistics.detectable([1.0], other)) and math.isnan(statistics.detectable([1.0, 1.0], [2.0] * 3))


def test_mean_curves_of_the_same_and_of_other_steps():
    same = statistics.mean_curve([pd.Series([1.0, 2.0]), pd.Series([3.0, 6.0]), pd.Series([2.0, 4.0])])
    assert list(same["mean"]) == [2.0, 4.0] and same.high[0] == pytest.approx(2 + 4.302653 / 3**0.5, rel=1e-4)
    other = statistics.mean_curve([pd.Series([0.0, 10.0], index=[0, 10]), pd.Series([2.0, 8.0], index=[2, 8])])
    assert (other.index[0], other.index[-1]) == (2, 8) and np.allclose(other["mean"], other.index)
    assert statistics.mean_curve([pd.Series([1.0])] * 2).low.isna().all(), "of two, an interval says nothing"


def test_interquartile_means_and_their_bootstrap():
    """Of 8 sorted numbers the middle four; the interval covers the truth."""
    draw = np.random.default_rng(1)
    tasks = [draw.normal(task, 1.0, 40) for task in (0, 0, 0, 0, 1, 1, 1, 1)]
    middle, low, high = statistics.bootstrap(tasks, statistics.interquartile_difference)
    ones, others = (np.sort(np.concatenate(half))[40:120].mean() for half in (tasks[:4], tasks[4:]))
    assert middle == pytest.approx(ones - others) and low < -1.0 < high and high - low < 1.0
    assert statistics.bootstrap(tasks, statistics.interquartile_difference) == (middle, low, high), (
        "the same every time"
    )
    _, low, high = statistics.bootstrap([task[:1] for task in tasks], statistics.interquartile_difference)
    assert math.isnan(low) and math.isnan(high)


def test_median_over_tasks_and_probability_of_improvement():
    """By hand, as rliable defines them: the median of the tasks' means, and the mean of the tasks' shares of pairs."""
    ones = [np.array([1.0, 3.0]), np.array([10.0, 10.0]), np.array([4.0])]  # means 2, 10, 4
    others = [np.array([2.0, 2.0, 5.0]), np.array([0.0, 10.0]), np.array([9.0])]  # means 3, 5, 9
    assert statistics.median_difference(*ones, *others) == 4 - 5
    assert statistics.probability_of_improvement(*ones, *others) == pytest.approx((2 / 6 + 3 / 4 + 0) / 3)
    many = [np.tile(task, (7, 1)) for task in ones + others]
    for statistic in (statistics.median_difference, statistics.probability_of_improvement):
        assert np.allclose(statistic(*many), statistic(*ones, *others)) and statistic(*many).shape == (7,)


def test_tasks_count_alike_however_many_seeds_they_have():
    """Against the middle half of the runs, each repeated until all tasks have as many."""
    assert statistics.interquartile_mean(np.full(5, 0.2), np.array([1.0])) == pytest.approx(0.6)
    draw = np.random.default_rng(2)
    for counts in ((5, 1, 1, 1), (3, 4), (2, 5, 1), (3,) * 6):
        tasks = [draw.normal(task, 1.0, (7, count)) for task, count in enumerate(counts)]
        many = 4 * math.lcm(*counts)
        repeated = [np.repeat(task, many // count, axis=1) for task, count in zip(tasks, counts)]
        middle = np.sort(np.concatenate(repeated, axis=1))[:, many * len(counts) // 4 : many * len(counts) * 3 // 4]
        assert np.allclose(statistics.interquartile_mean(*tasks), middle.mean(axis=1))


def test_an_aggregated_curve_runs_over_the_share_of_the_training():
    curves = [[pd.Series([0.0, 10.0], index=[100, 200])] * 2, [pd.Series([0.0, 100.0], index=[1000, 5000])] * 2]
    table = statistics.interquartile_curve(curves, [10, 100])
    assert table.index[0] == 0 and table.index[-1] == 1 and np.allclose(table["mean"], table.index)
    assert np.allclose(table.low, table["mean"]) and np.allclose(table.high, table["mean"])
