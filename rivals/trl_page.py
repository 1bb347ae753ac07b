# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/trl.md: ERA and its rivals in TRL, whose runs are recorded and no longer trained here."""

import pandas as pd

from recipes.pages import table
from rivals import equal, records
from rivals.comparisons import curves_by_key, curves_of, joined, stopped_cell
from rivals.rule import KEY, rows_of_seeds

SEEDS = (1, 2, 3)
BOUND = {"pairs": 1.2, "pairs50": 1.6}  # ERA's, nats
GRPO, SLOW, ERA, K4, K8 = ("grpo", "0"), ("grpo-rate", "0.25"), ("era", "1.2"), ("era-k", "4"), ("era-k", "8")
HALF, ZERO, GRPO_HALF, GRPO_ZERO = (
    (method, weight) for method in ("era-negative", "grpo-negative") for weight in ("0.5", "0")
)
SCALED, DYNAMIC, ANSWERS = ("era-scaled", "4"), ("era-dynamic", "4"), ("era-answers", "4")
LOW, BONUS, BONUS_HIGH, BONUS_50 = ("era", "0.6"), ("adaptive", "0.22"), ("adaptive", "0.45"), ("adaptive", "0.23")
NAMES = {
    GRPO: "GRPO",
    SLOW: "GRPO, learning rate x 0.25",
    GRPO_HALF: "GRPO, negative advantages x 0.5",
    GRPO_ZERO: "GRPO, negative advantages x 0",
    BONUS: "adaptive bonus, 0.22 nats",
    BONUS_50: "adaptive bonus, 0.23 nats",
    BONUS_HIGH: "adaptive bonus, 0.45 nats",
    LOW: "ERA, k = 2, bound 0.6",
    ERA: "ERA, k = 2",
    K4: "ERA, k = 4",
    K8: "ERA, k = 8",
    HALF: "ERA, negative advantages x 0.5",
    ZERO: "ERA, negative advantages x 0",
    SCALED: "ERA, k = 4, advantages scaled (A')",
    DYNAMIC: "ERA, k = 4, dynamic sampling",
    ANSWERS: "ERA, k = 4, four times the answers",
}
ARMS = {"pairs": [arm for arm in NAMES if arm != BONUS_50], "pairs50": [GRPO, SLOW, BONUS_50, K8, ZERO]}
# What is drawn of a task.
PANELS = {"pairs": [GRPO, SLOW, GRPO_ZERO, BONUS_HIGH, ERA, K8, ZERO], "pairs50": ARMS["pairs50"]}
# Heading: the column of a run's numbers, and decimals; pass@8 was 1 everywhere.
MEASURES = {"reward": ("reward", 2), "distinct right of 32": ("distinct_right", 1)}
MEASURES |= {"H_resp, last 10 steps": ("training_response_entropy", 2)}


def recorded_runs() -> pd.DataFrame:
    """A row per recorded run, by KEY."""
    samples, runs = (records.read(f"trl/{name}").set_index(KEY) for name in ("samples", "runs"))
    return samples.join(runs.add_prefix("training_")).sort_index()


def results_table(numbers: pd.DataFrame, known: pd.DataFrame, task: str) -> str:
    """A line per arm, with a number for each seed, and what it has more than GRPO that is stopped earlier.

    known: curves by KEY.
    """
    lines = []
    for arm in ARMS[task]:
        runs, bound = rows_of_seeds(numbers, (task, *arm), SEEDS), 0.6 if arm in (LOW, BONUS) else BOUND[task]
        cells = [joined(runs[column], f".{digits}f") for column, digits in MEASURES.values()]
        is_kept = [
            equal.kept(known.loc[[(task, *arm, seed)]], entropy, bound)
            for seed, entropy in runs.training_response_entropy.items()
        ]
        cells.append("-" if arm == BONUS_50 else f"{sum(is_kept)} of {len(runs)}")  # its target is of a lower bound
        curves = curves_of(known, (task, *arm), (task, *GRPO), SEEDS)
        compared = ((equal.REWARD, equal.ENTROPY, 2), (equal.REWARD, "distinct_right", 1), (equal.ENTROPY, "reward", 2))
        has_steps = arm not in (GRPO, ANSWERS)  # the steps of the last are others
        cells += [stopped_cell(curves, *one) if has_steps else "-" for one in compared]
        lines.append([NAMES[arm], *cells])
    heading = ["arm", *MEASURES, "kept", "H_resp minus GRPO's at equal reward", "distinct right of 8 there"]
    return table([*heading, "reward minus GRPO's at equal H_resp"], lines)


def tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of trl.md, by the names of their places in it."""
    known = curves_by_key("trl")
    return {f"results {task}": results_table(numbers, known, task) for task in ARMS}
