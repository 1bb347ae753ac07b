"""Intervals and aggregates against plain arithmetic."""

import math
import random

import numpy as np
import pytest

from ledger import statistics
from ledger.readers import tables
from ledger.results import Curve


def curve(y, x=None, rows=None):
    x = list(map(float, x if x is not None else range(1, len(y) + 1)))
    return Curve(x, list(map(float, y)), list(map(float, y)), list(map(float, y)), rows or len(x))


def test_t_interval():
    # 4.302652729911275 is t's 97.5 % quantile with 2 degrees of freedom, from a table.
    assert statistics.t_interval([1, 2, 3]) == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert statistics.t_interval([5.0]) is None
    assert statistics.t_interval([5.0, 5.0]) == 0


def test_t_interval_covers_the_mean_in_95_of_100_cases():
    draws = np.random.default_rng(0).normal(3, 2, (600, 4))  # a normal's quantile in place of t's covers 86 %
    assert 0.93 < np.mean([abs(row.mean() - 3) < statistics.t_interval(row) for row in draws]) < 0.97


def test_welch():
    one, other = [10.0, 12.0, 14.0], [1.0, 1.5]
    difference, half = statistics.welch(one, other)
    a, b = 4 / 3, 0.125 / 2  # variances of the means
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 1)
    assert difference == 10.75 and 2 < freedom < 3
    assert (
        3.182 * math.sqrt(a + b) < half < 4.303 * math.sqrt(a + b)
    )  # between the quantiles for 3 and 2 degrees of freedom
    assert statistics.welch([1.0], [2.0, 3.0]) == (-1.5, None)
    assert statistics.welch([1.0, 1.0], [3.0, 3.0]) == (-2.0, 0.0)


def test_the_end_is_the_last_tenth_of_the_steps_and_not_of_the_rows():
    assert statistics.end(curve(range(101), range(101))) == pytest.approx(95)
    assert statistics.end(curve([1, 2, 7], [2, 128, 256])) == 7  # pass@k: the largest k
    assert statistics.end(curve([0, 0, 0, 0, 10, 20], [0, 1, 2, 3, 95, 100])) == 15
    assert statistics.end(curve([4.0])) == 4
    assert statistics.end(curve(range(101), range(101)), until=50) == pytest.approx(47.5)
    assert statistics.end(curve(range(101), range(101)), until=1000) == pytest.approx(95)


def test_the_end_is_the_mean_of_the_rows_and_not_of_the_points():
    rows = np.random.default_rng(3).random(1100)  # 400 points of 2 or 3 rows
    points = tables.curve(np.arange(1, 1101), rows)
    start = 1 + np.flatnonzero(np.array(points.x) < 1100 - 0.1 * (1100 - points.x[0]))[-1]
    assert statistics.end(points) == pytest.approx(rows[int(points.x[start - 1]) :].mean(), rel=1e-12)
    assert statistics.end(points) != pytest.approx(np.mean(points.y[start:]), rel=1e-4)


def test_welch_says_nothing_where_one_side_is_always_the_same(recwarn):
    difference, half = statistics.welch([1000.0] * 10, [900.0, 901.0, 905.0])
    assert (difference, len(recwarn)) == (98.0, 0) and half == pytest.approx(
        4.302653 * np.std([900, 901, 905], ddof=1) / math.sqrt(3)
    )


def test_extremes_see_what_a_point_of_a_curve_hides():
    points = Curve([10.0, 20.0, 30.0], [1.0, 1.0, 1.0], [1.0, 0.2, 0.9], [1.0, 1.8, 1.1], 30)
    assert statistics.extremes(points, 0, 1) == (0.2, 1.8)
    assert statistics.extremes(points, 0.9, 1) == (0.9, 1.1)
    assert statistics.extremes(points, 0, 20) == (1.0, 1.0)


def test_extremes_of_a_running_mean():
    noise = [random.Random(1).random() for _ in range(200)]
    means = [sum(noise[i : i + 20]) / 20 for i in range(99, 181)]
    low, high = statistics.extremes(curve(noise), 0.4975, 20)
    assert (low, high) == (pytest.approx(min(means)), pytest.approx(max(means)))
    assert statistics.extremes(curve([1, 3]), 0, 20) == (2, 2)  # fewer rows than the window


def test_mean_curve_stays_on_the_steps_that_all_have():
    mean = statistics.mean_curve([curve([0, 10, 20], [0, 10, 20]), curve([5, 15], [5, 15])], points=3)
    assert (mean.x, mean.mean, mean.seeds) == ([5, 10, 15], pytest.approx([5, 10, 15]), 2)
    assert mean.half == pytest.approx([0, 0, 0])
    same = statistics.mean_curve([curve([1, 2], [3, 7]), curve([3, 6], [3, 7])])
    assert (same.x, same.mean) == ([3, 7], [2, 4]) and same.half == pytest.approx([12.7062047364, 2 * 12.7062047364])
    assert statistics.mean_curve([curve([1, 2], [3, 7])]).half is None
    apart = statistics.mean_curve([curve([1, 2], [0, 1]), curve([3, 4], [5, 6])], points=2)
    assert apart.x == [5, 5], "no step in common: one point and no invented curve"


def test_interquartile_mean_is_the_mean_of_the_middle_half():
    tasks = [[curve([v, v]) for v in (1, 2, 3, 100)], [curve([v, v]) for v in (20, 30, 40, -500)]]
    result = statistics.iqm_curve(tasks, [1, 10], points=2)
    assert sorted([1, 2, 3, 100, 2, 3, 4, -50])[2:6] == [2, 2, 3, 3]
    assert result.iqm == pytest.approx([2.5, 2.5]) and result.runs == 8


def test_bootstrap_interval_is_that_of_resampling_each_task_by_itself():
    draw = np.random.default_rng(3)
    scores = draw.normal(0, 0.2, (8, 10)) + draw.random((8, 1))
    result = statistics.iqm_curve([[curve([v, v]) for v in task] for task in scores], [1.0] * 8, points=2)
    found = []
    for _ in range(3000):
        drawn = np.sort(np.concatenate([draw.choice(task, 10) for task in scores]))
        found.append(drawn[20:60].mean())
    assert (result.low[0], result.high[0]) == (
        pytest.approx(np.quantile(found, 0.025), abs=0.006),
        pytest.approx(np.quantile(found, 0.975), abs=0.006),
    )
    assert result == statistics.iqm_curve([[curve([v, v]) for v in task] for task in scores], [1.0] * 8, points=2), (
        "the same every time"
    )


def test_one_run_of_a_task_cannot_be_resampled():
    result = statistics.iqm_curve([[curve([1, 2])], [curve([3, 4]), curve([3, 5])]], [1, 1], points=2)
    assert result.low is None and result.high is None
    difference, low, high = statistics.iqm_difference([[1.0]], [[3.0]])
    assert (difference, low, high) == (-2, None, None)


def test_interval_of_a_difference_of_interquartile_means():
    draw = np.random.default_rng(4)
    ones, others = draw.normal(1, 0.1, (5, 8)), draw.normal(0.8, 0.1, (5, 8))
    difference, low, high = statistics.iqm_difference(ones, others)
    assert low < difference < high and low > 0.1 and high < 0.3
    assert statistics.iqm_difference(ones, ones)[0] == 0


def test_half_width_of_shares_covers_the_difference_of_equal_models():
    draw = np.random.default_rng(5)
    one, mean_of_3 = draw.binomial(480, 0.3, 4000) / 4.8, draw.binomial(3 * 480, 0.3, 4000) / 14.4
    assert np.mean(abs(one - mean_of_3) <= statistics.share_half_width(30, 480, 3)) == pytest.approx(0.95, abs=0.015)
