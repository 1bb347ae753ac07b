# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Which setting of a method is reported: the one that does best on the tuning seeds, trained again with fresh ones."""

from collections.abc import Mapping, Sequence

import pandas as pd

KEY = ["task", "method", "setting", "seed"]  # of a run
TUNING_SEEDS, FRESH_SEEDS = (1, 2), (11, 12, 13, 14, 15)


def rows_of_seeds(
    table: pd.DataFrame | pd.Series, names: Sequence[str], seeds: Sequence[int]
) -> pd.DataFrame | pd.Series:
    """The rows of these seeds, by seed. names: the other levels of the index. Raises ValueError if a run is missing."""
    wanted = [(*names, seed) for seed in seeds]
    missing = [run for run in wanted if run not in table.index]
    if missing:
        raise ValueError(f"There is no run {missing[0]}.")
    return table.loc[wanted].droplevel(list(range(len(names))))


def choose(scores: pd.Series, settings: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The setting of each method with the largest mean score over the tuning seeds; of equal ones the first.

    Args:
        scores: by method, setting and seed.
        settings: of each method.
    """

    def mean(method: str, setting: str) -> float:
        return rows_of_seeds(scores, (method, setting), TUNING_SEEDS).mean()

    return {method: max(values, key=lambda value: mean(method, value)) for method, values in settings.items()}


def chosen_and_fresh(
    numbers: pd.DataFrame, scores: pd.Series, settings: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], dict[str, pd.DataFrame]]:
    """The setting of each method that the rule chooses, and the numbers of its fresh runs."""
    chosen = choose(scores, settings)
    fresh = {method: rows_of_seeds(numbers, (method, setting), FRESH_SEEDS) for method, setting in chosen.items()}
    return chosen, fresh
