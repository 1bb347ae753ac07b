# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Cells and tables that compare two arms seed by seed, at their ends and where one is stopped earlier."""

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import mean

import pandas as pd
from scipy import stats

from recipes.pages import table
from rivals import equal, records
from rivals.rule import KEY


def spread(values: pd.Series, digits: int) -> str:
    """A cell of a table: the mean, and in brackets the smallest and the largest value."""
    return f"{mean(values):.{digits}f} ({values.min():.{digits}f} to {values.max():.{digits}f})"


def difference(one: pd.Series, other: pd.Series, digits: int, test: Callable = stats.ttest_rel) -> str:
    """The mean of `one` minus that of `other`, with its 95 % interval if both have several seeds; bold if 0 is outside.

    Args:
        test: a test of scipy, paired by seed unless it is Welch's.
    """
    change = f"{one.mean() - other.mean():+,.{digits}f}"
    if min(len(one), len(other)) < 2 or one.equals(other):
        return change
    low, high = test(one, other).confidence_interval()
    cell = f"{change} ({low:+,.{digits}f} to {high:+,.{digits}f})"
    return f"**{cell}**" if low > 0 or high < 0 else cell  # both are NaN where a seed has no value


def joined(values: Iterable[float], form: str) -> str:
    """A number for each seed."""
    return ", ".join(format(value, form) for value in values)


STOPPED_NAMES = {"reward": "reward", "response_entropy": "H_resp", "distinct_right": "distinct right of 8"}
Curves = list[tuple[pd.DataFrame, pd.DataFrame]]  # of a run and of its rival, for each seed


def curves_by_key(host: str) -> pd.DataFrame:
    """curves.csv of llm or trl by KEY."""
    return records.read(f"{host}/curves").set_index(KEY).sort_index()


def curves_of(known: pd.DataFrame, run: tuple, rival: tuple, seeds: Iterable[int]) -> Curves:
    """The curves of the seeds that both arms have. known: by KEY; run, rival: task, method and setting."""
    keys = ([(*arm, seed) for arm in (run, rival)] for seed in seeds)
    return [tuple(known.loc[[key]] for key in pair) for pair in keys if all(key in known.index for key in pair)]


def stopped_at(curves: Curves, by: str, columns: Iterable[str]) -> pd.DataFrame:
    """For each seed the end of the run minus the rival where that is stopped, and `step`, at which it is."""
    shown = list(dict.fromkeys(["step", equal.REWARD, equal.ENTROPY, *columns]))
    return pd.DataFrame([equal.differences(run[shown], rival[shown], by) for run, rival in curves])


def stopped_table(
    first: str,
    name: str,
    lines: Iterable[tuple[str, Curves]],
    of: Mapping[str, Mapping[str, int]],
    last: tuple[str, Mapping[str, str]] = ("", {}),
    within: float = math.inf,
) -> str:
    """A line per pair of arms that has curves: the end of one beside the other, stopped at the same reward or H_resp.

    Args:
        first: the heading of the lines' names.
        name: what the headings call the other.
        of: what is equal; what is compared there, and decimals.
        last: the heading of a last column, and its cells by the lines' names; "" for none.
        within: as stopped_cell has it.
    """
    heading, rows = [first], []
    for by, columns in of.items():
        heading += [
            f"{name} has its {STOPPED_NAMES[by]} at step (mean)",
            *(f"{STOPPED_NAMES[column]} there" for column in columns),
        ]
    for label, curves in lines:
        if not curves:
            continue
        rows.append([label])
        for by, columns in of.items():
            found = stopped_at(curves, by, columns)
            rows[-1].append("never" if found.step.isna().all() else f"{found.step.mean():.0f}")
            rows[-1] += [stopped_cell(curves, by, column, digits, within) for column, digits in columns.items()]
    if last[0]:
        heading.append(last[0])
        rows = [[*row, last[1][row[0]]] for row in rows]
    return table(heading, rows) if rows else "No pair of arms has finished."


def stopped_cell(curves: Curves, by: str, column: str, digits: int, within: float = math.inf) -> str:
    """The end of an arm minus a rival where that is stopped; and how many seeds have that, if not all.

    within: leaves out seeds on which the two differ in `by` by more than that, where the rival's end has more H_resp.
    """
    differences = stopped_at(curves, by, [column])
    values = differences[differences[by].abs() <= within][column].dropna().reset_index(drop=True)
    if values.empty:
        return "-"
    few = f"; {len(values)} seed{'s' * (len(values) > 1)}" if len(values) < len(curves) else ""
    return difference(values, 0 * values, digits) + few


def holm(p_values: Mapping[str, float], count: int, level: float = 0.05) -> list[str]:
    """The names of the differences that remain after Holm's correction.

    count: the number of all comparisons, those without a p-value included.
    """
    left, known = [], {name: p_value for name, p_value in p_values.items() if not math.isnan(p_value)}
    for name, p_value in sorted(known.items(), key=lambda item: item[1]):
        if not p_value <= level / (count - len(left)):
            break
        left.append(name)
    return left
