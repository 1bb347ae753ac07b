# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/llm.md: ERA and its rivals in verl, whose runs are recorded and no longer trained here."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from era.language import KEPT_WITHIN
from recipes.pages import table
from rivals import equal, llm, records
from rivals.comparisons import curves_by_key, curves_of, difference, spread, stopped_cell, stopped_table
from rivals.rule import FRESH_SEEDS, KEY, TUNING_SEEDS, chosen_and_fresh

# The task on which settings are chosen, the one on which they are reported, and whether updates are off-policy.
PARTS = (
    ("chain", "chain", False),
    ("chain", "chain-biased", False),
    ("chain", "chain-single", False),
    ("chain", "chain", True),
    ("chain-goal", "chain-goal", False),
)
SHARES = "0.15 0.2 0.3 0.45 0.7"
# Each method's name, and the values of what was tuned, separated by blanks.
ON_POLICY = {
    "grpo": ("GRPO", "0.25 0.5 1 2 4"),
    "hotter": ("GRPO sampled hotter", "1.1 1.2 1.35 1.5 2.0"),
    "era": ("ERA", SHARES),
    "adaptive": ("adaptive bonus on H_resp", SHARES),
    "adaptive-mean": ("adaptive bonus on the mean entropy", SHARES),
    "bonus": ("entropy bonus", "0.01 0.02 0.03 0.05 0.08"),
    "kl": ("KL loss", "0.01 0.02 0.03 0.05 0.1"),
}
OFF_POLICY = {
    "off-grpo": ("GRPO", "0.25 0.5 1 1.5 2"),
    "off-era": ("ERA", SHARES),
    "clip-higher": ("clip-higher", "0.24 0.28 0.4 0.6 1.0"),
    "clip-cov": ("Clip-Cov", "0.002 0.01 0.02 0.05 0.1"),
    "kl-cov": ("KL-Cov", "0.002 0.02 0.1 0.2 0.5"),
}
NAMES = {method: name for method, (name, _) in (ON_POLICY | OFF_POLICY).items()}
# What ERA is compared in on a task, fixed in the protocol. Heading: the column of a run's numbers, and decimals; at
# temperature 1 unless the heading names another.
COMPARED = {
    "chain": {"d@.95": ("d@.95", 1)},
    "chain-goal": {"accuracy at the best temperature": ("best_accuracy", 2), "pass@32": ("pass_at_32", 2)},
    **dict.fromkeys(("chain-biased", "chain-single"), {"reward": ("reward", 2)}),
}


class TaskResults(NamedTuple):
    """Each method's chosen setting and fresh runs on a task, with one kind of updates. tuned: whether on this task."""

    task: str
    tuned: bool
    off_policy: bool
    chosen: dict[str, str]
    fresh: dict[str, pd.DataFrame]


def settings(off_policy: bool) -> dict[str, list[str]]:
    """The settings of each method with this kind of updates."""
    return {method: values.split() for method, (_, values) in (OFF_POLICY if off_policy else ON_POLICY).items()}


def recorded_runs() -> pd.DataFrame:
    """A row per recorded run, by KEY."""
    runs = records.read("llm/runs").set_index(KEY).add_prefix("training_")
    return llm.measures(records.read("llm/samples")).join(runs)


def results_of_parts(numbers: pd.DataFrame) -> dict[str, TaskResults]:
    """The results of each of PARTS, by its name."""
    results = {}
    for tuned_on, task, off_policy in PARTS:
        chosen, fresh = chosen_and_fresh(numbers.loc[task], numbers.score[tuned_on], settings(off_policy))
        name = f"{task}{', off-policy' if off_policy else ''}"
        results[name] = TaskResults(task, tuned_on == task, off_policy, chosen, fresh)
    return results


def results_table(results: TaskResults) -> str:
    """Mean (smallest to largest) over the fresh seeds, and ERA's differences to each other method, seed by seed: at the
    end, and where the other is stopped."""
    compared, known = COMPARED[results.task], curves_by_key("llm")
    name_of_era = "off-era" if results.off_policy else "era"
    era, lines = results.fresh[name_of_era], []
    for method, runs in results.fresh.items():
        cells = [spread(runs.response_entropy, 2)]
        for column, digits in compared.values():
            cells.append(spread(runs[column], digits))
            cells.append("-" if runs is era else difference(era[column], runs[column], digits))
        arms = ((results.task, name, results.chosen[name]) for name in (name_of_era, method))
        curves = curves_of(known, *arms, FRESH_SEEDS)
        for by, column in ((equal.REWARD, equal.ENTROPY), (equal.ENTROPY, equal.REWARD)):
            # Curves of adaptive-mean have the mean entropy of all tokens in the place of H_resp.
            has_both = method not in (name_of_era, "adaptive-mean")
            cells.append(stopped_cell(curves, by, column, 2, KEPT_WITHIN) if has_both else "-")
        lines.append([NAMES[method], results.chosen[method], *cells])
    headings = [cell for heading in compared for cell in (heading, "ERA minus it")]
    stopped = ["H_resp: ERA minus it, at ERA's reward", "reward: ERA minus it, at ERA's H_resp"]
    return table(["method", "setting", "H_resp", *headings, *stopped], lines)


def stopped_by_part(results: Mapping[str, TaskResults]) -> str:
    """ERA beside GRPO at the task's own learning rate, stopped earlier, where both were tuned.

    The curves have no distinct answers.
    """
    known, lines = curves_by_key("llm"), []
    for title, part in results.items():
        if part.tuned:
            era, grpo = (f"off-{name}" if part.off_policy else name for name in ("era", "grpo"))
            arms = (part.task, era, part.chosen[era]), (part.task, grpo, "1")
            lines.append((title, curves_of(known, *arms, TUNING_SEEDS)))
    of = {equal.REWARD: {equal.ENTROPY: 2}, equal.ENTROPY: {equal.REWARD: 2}}
    return stopped_table("task", "GRPO", lines, of, within=KEPT_WITHIN)


def tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of llm.md, by the names of their places in it."""
    results = results_of_parts(numbers)
    of_parts = {f"results {title.replace(', ', '-')}": results_table(part) for title, part in results.items()}
    return {"stopped": stopped_by_part(results), **of_parts}
