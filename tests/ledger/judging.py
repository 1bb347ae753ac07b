# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Results that are made up, and what is judged of them."""

from pathlib import Path

import pandas as pd

from ledger.results import Result
from ledger.verdicts import Judged


def flat(value, points=20):
    return pd.Series(float(value), index=range(1, points + 1))


def result(entry, seed, values=None, curves=None, **other):
    made = {"values": values or {}, "curves": curves or {}, "finished": True, "steps": 100, "total": 100, **other}
    folder = Path(f"runs/{entry.folder}-seed{seed}")
    return Result(bool(entry.evaluation), entry.folder, seed, folder, **made)


def of_paper(entry, shift=0.0):
    """Results with the paper's numbers, plus shift, for all seeds; they differ, or the interval would be 0."""
    values = {metric: number + shift for metric, (number, _) in entry.paper.items()}
    intervals = {metric: error for metric, (_, error) in entry.paper.items() if error == error}
    spread = [0.01 * (i - (entry.seeds - 1) / 2) for i in range(entry.seeds)]
    rows = [{metric: value + s for metric, value in values.items()} for s in spread]
    return [result(entry, seed, row, intervals=intervals) for seed, row in enumerate(rows)]


def judge(paper, results):
    unique = {
        (item.is_evaluation, item.name, item.seed): item for item in results
    }  # two rows of the paper may be one run
    return Judged(paper, list(unique.values()))


def curves_of(paper, row, metric, end, seeds=10):
    return [
        result(entry, seed, curves={metric: flat(end + seed)})
        for entry in paper.row(row)
        for seed in range(1, seeds + 1)
    ]


def with_numbers(paper):
    return [entry for entry in paper.entries.values() if entry.tolerance and entry.paper and not entry.gain]
