# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/llm.md: ERA and its rivals in verl."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from era.language import KEPT_WITHIN
from recipes.pages import table
from rivals import equal, llm, records
from rivals.comparisons import curves_by_key, curves_of, difference, joined, spread, stopped_table
from rivals.rule import FRESH_SEEDS, KEY, TUNING_SEEDS, chosen_and_fresh

# Heading: the column of a run's numbers, and decimals; at temperature 1 unless the heading names another.
HEADINGS = {
    "H_resp": ("response_entropy", 2),
    "accuracy": ("pass_at_1", 2),
    "accuracy at the best temperature": ("best_accuracy", 2),
    "reward": ("reward", 2),
    "pass@32": ("pass_at_32", 2),
    "distinct of 256": ("distinct_all", 0),
    "d@.95": ("d@.95", 1),
}
# What is shown of a task; and what ERA is compared in, fixed in the protocol.
SHOWN = {
    "chain": ["H_resp", "accuracy", "d@.95"],
    "chain-goal": ["H_resp", "accuracy", "distinct of 256", "accuracy at the best temperature", "pass@32"],
    "chain-biased": ["H_resp", "accuracy", "reward"],
    "chain-single": ["H_resp", "reward"],  # every right answer is rewarded: the accuracy is the same
}
COMPARED = {
    "chain": ["d@.95"],
    "chain-goal": ["accuracy at the best temperature", "pass@32"],
    **dict.fromkeys(("chain-biased", "chain-single"), ["reward"]),
}


class TaskResults(NamedTuple):
    """Each method's chosen setting and fresh runs on a task, with one kind of updates. tuned: whether on this task."""

    task: str
    tuned: bool
    off_policy: bool
    chosen: dict[str, str]
    fresh: dict[str, pd.DataFrame]


def recorded_runs() -> pd.DataFrame:
    """A row per recorded run, by KEY."""
    runs = records.read("llm/runs").set_index(KEY).add_prefix("training_")
    return llm.measures(records.read("llm/samples")).join(runs)


def results_of_parts(numbers: pd.DataFrame) -> dict[str, TaskResults]:
    """The results of each of llm.PARTS, by its name."""
    results = {}
    for tuned_on, task, off_policy in llm.PARTS:
        chosen, fresh = chosen_and_fresh(numbers.loc[task], numbers.score[tuned_on], llm.settings(off_policy))
        name = f"{task}{', off-policy' if off_policy else ''}"
        results[name] = TaskResults(task, tuned_on == task, off_policy, chosen, fresh)
    return results


def setpoints_table(numbers: pd.DataFrame) -> str:
    """H_resp at the end on `chain`, for each tuning and fresh seed of ERA and of the adaptive bonus on H_resp.

    Both methods only push upwards, so a setpoint is also kept where the entropy ends above it.
    """
    ends = numbers.training_response_entropy.sort_index()
    lines = []
    for share in llm.METHODS["era"].settings:
        target = float(share) * llm.START["chain"][0]
        lines.append([f"{target:.2f}"])
        for method in ("era", "adaptive"):
            entropies = ends["chain", method, share]
            entropies = entropies[entropies.index.isin((*TUNING_SEEDS, *FRESH_SEEDS))]
            below, reached = (entropies < target - KEPT_WITHIN).any(), ((entropies - target).abs() <= KEPT_WITHIN).all()
            lines[-1].append(f"{joined(entropies, '.2f')}: {'reached' if reached else 'not kept' if below else 'kept'}")
    return table(["setpoint, nats", "ERA", "adaptive bonus on H_resp"], lines)


def results_table(results: TaskResults) -> str:
    """Mean (smallest to largest) over the fresh seeds, and ERA's differences to each other method, seed by seed."""
    shown, compared = SHOWN[results.task], COMPARED[results.task]
    era, lines = results.fresh["off-era" if results.off_policy else "era"], []
    for method, runs in results.fresh.items():
        cells = [spread(runs[column], digits) for column, digits in map(HEADINGS.get, shown)]
        for column, digits in map(HEADINGS.get, compared):
            cells.append("-" if runs is era else difference(era[column], runs[column], digits))
        lines.append([llm.METHODS[method].name, results.chosen[method], *cells])
    return table(["method", "setting", *shown, *(f"ERA minus it, {heading}" for heading in compared)], lines)


def stopped_by_part(results: Mapping[str, TaskResults]) -> str:
    """ERA beside GRPO, stopped earlier: with the chosen learning rates, and where both were tuned with the task's.

    The curves have no distinct answers.
    """
    known, lines = curves_by_key("llm"), []
    for title, part in results.items():
        era, grpo = (f"off-{name}" if part.off_policy else name for name in ("era", "grpo"))
        compared = [(part.chosen[grpo], FRESH_SEEDS), *([("1", TUNING_SEEDS)] if part.tuned else [])]
        for rate, seeds in compared:
            curves = curves_of(known, (part.task, era, part.chosen[era]), (part.task, grpo, rate), seeds)
            lines.append((f"{title}; GRPO at {rate}, {len(seeds)} seeds", curves))
    return stopped_table("task", "GRPO", lines, {equal.REWARD: {equal.ENTROPY: 2}, equal.ENTROPY: {equal.REWARD: 2}})


def tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of llm.md, by the names of their places in it."""
    found = {"setpoints": setpoints_table(numbers), "stopped": stopped_by_part(results_of_parts(numbers))}
    for title, results in results_of_parts(numbers).items():
        found[f"results {title.replace(', ', '-')}"] = results_table(results)
    return found
