# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/trl.md and trl-bound.md: ERA and its rivals in TRL."""

from collections.abc import Callable, Iterable, Mapping

import pandas as pd
from scipy import stats

from era.language import KEPT_WITHIN
from recipes.pages import table
from rivals import records, trl
from rivals.comparisons import curves_by_key, curves_of, difference, holm, joined, stopped_table
from rivals.rule import KEY

TRL_MEASURES = {"reward": 2, "pass_at_8": 2, "distinct_right": 1}  # of the final weights; decimals
TRL_TRAINING = {
    "training_response_entropy": 2,
    "training_lowest_entropy": 2,
    "last_token_entropy": 2,
    "training_step_seconds": 0,
}
# The comparisons of trl.md: task, and the method and setting of each side.
TRL_COMPARED = (
    ("pairs", ("era", "0.6"), ("grpo", "0")),
    ("pairs", ("era", "0.6"), ("adaptive", "0.22")),
    ("pairs", ("era", "1.2"), ("grpo", "0")),
    ("pairs", ("era", "1.2"), ("adaptive", "0.45")),
    ("sums", ("era", "0.4"), ("grpo", "0")),
)
# Those of trl-bound.md, by task.
GRPO, ERA = ("grpo", "0"), ("era", "1.2")
BOUND_COMPARED = {
    "pairs": (
        (("era-k", "4"), ERA),
        (("era-k", "8"), ERA),
        (("era-k", "8"), ("grpo-rate", "0.25")),
        (("era-k", "8"), ("grpo-negative", "0")),
        (("era-k", "8"), ("adaptive", "0.22")),
        (("era-negative", "0.5"), ERA),
        (("era-negative", "0.5"), ("grpo-negative", "0.5")),
        (("era-negative", "0"), ERA),
        (("era-negative", "0"), ("grpo-negative", "0")),
        (("grpo-rate", "0.25"), GRPO),
        (("era-scaled", "4"), ("era-k", "4")),
        (("era-dynamic", "4"), ("era-k", "4")),
        (("era-answers", "4"), ("era-k", "4")),
    ),
    "pairs50": (
        *(
            (era, other)
            for era in (("era-k", "8"), ("era-negative", "0"))
            for other in (GRPO, ("grpo-rate", "0.25"), ("adaptive", "0.23"))
        ),
        (("grpo-rate", "0.25"), GRPO),
    ),
}
MEASURES_AS_TEXT = {
    "pass_at_8": "pass@8",
    "distinct_right": "distinct right",
    "training_response_entropy": "H_resp, last 10 steps",
}
# What is drawn of a task.
BOUND_PANELS = {
    "pairs": (
        *(GRPO, ("grpo-rate", "0.25"), ("grpo-negative", "0")),
        *(ERA, ("era-k", "8"), ("era-negative", "0")),
    ),
    "pairs50": (GRPO, ("grpo-rate", "0.25"), ("adaptive", "0.23"), ("era-k", "8"), ("era-negative", "0")),
}
BOUND_MEASURES = {"reward": 2, "distinct_right": 1, "training_response_entropy": 2}


def recorded_runs() -> pd.DataFrame:
    """A row per recorded run, by KEY.

    last_token_entropy is over the last 10 steps; up_by_down, the sum of era/entropy_up by that of era/entropy_down, and
    rounds, the batches that were sampled for one, over all steps. up_by_down is NaN where nothing pushed downwards
    below the bound, or where ERA did not yet measure it, with a weight of 0.
    """
    samples, runs, curves = (records.read(f"trl/{name}").set_index(KEY) for name in ("samples", "runs", "curves"))
    last = curves.groupby(level=KEY).tail(records.LAST // records.WINDOW).token_entropy.groupby(level=KEY).mean()
    steps = curves.step - curves.groupby(level=KEY).step.shift(fill_value=0)  # the last row may be of fewer
    over_all = curves[["entropy_up", "entropy_down", "sampling_rounds"]].mul(steps, axis="index")
    up, down, rounds = (over_all[name].groupby(level=KEY).sum(min_count=1) for name in over_all)
    further = {
        "last_token_entropy": last,
        "up_by_down": up / down.where(down > 1e-4),
        "rounds": rounds / steps.groupby(level=KEY).sum(),
    }
    return samples.join(runs.add_prefix("training_")).join(pd.DataFrame(further)).sort_index()


def results_table(numbers: pd.DataFrame, task: str) -> str:
    """A line per method, with a number for each seed."""
    shown, lines = {**TRL_MEASURES, **TRL_TRAINING}, []
    for method, settings in trl.TASKS[task].items():
        for setting in settings:
            runs = numbers.loc[[(task, method, setting, seed) for seed in trl.SEEDS]]
            cells = [joined(runs[name], f".{digits}f") for name, digits in shown.items()]
            lines.append([trl.name(method, setting), *cells])
    heading = ["reward", "pass@8", "distinct right of 32", "H_resp, last 10 steps", "lowest H_resp"]
    return table(["method", *heading, "token entropy, last 10 steps", "seconds a step"], lines)


def bound_name(method: str, setting: str) -> str:
    """An arm's name in trl-bound.md, on which ERA's bound is the same everywhere."""
    return "ERA, k = 2" if (method, setting) == ERA else trl.name(method, setting)


def comparisons(
    numbers: pd.DataFrame,
    compared: Iterable[tuple],
    measures: Mapping[str, int],
    count: int,
    name_of: Callable[[str, str], str] = trl.name,
) -> str:
    """One arm minus another, on the seeds that both have; and what is left of the differences after Holm's correction.

    Args:
        compared: task, and the method and setting of each of the two arms.
        measures: columns of `numbers`, and decimals.
        count: intervals of the protocol, for Holm's correction, which waits for all of its runs.
        name_of: the name of an arm, from its method and setting.
    """
    lines, p_values, is_whole = [], {}, True
    for task, *arms in compared:
        seeds = [seed for seed in trl.SEEDS if all((task, *arm, seed) in numbers.index for arm in arms)]
        is_whole &= len(seeds) == len(trl.SEEDS)
        if not seeds:
            continue
        one, other = (numbers.loc[[(task, *arm, seed) for seed in seeds]].droplevel(KEY[:3]) for arm in arms)
        name = f"`{task}`: {' minus '.join(name_of(*arm) for arm in arms)}"
        cells = []
        for measure, digits in measures.items():
            if task == "sums" and measure == "distinct_right":  # every sum has one right answer
                cells.append("-")
                continue
            cells.append(difference(one[measure], other[measure], digits))
            if len(seeds) > 1 and not one[measure].equals(other[measure]):
                heading = MEASURES_AS_TEXT.get(measure, measure)
                p_values[f"{name}, {heading}"] = stats.ttest_rel(one[measure], other[measure]).pvalue
        lines.append([name, str(len(seeds)), *cells])
    if not lines:
        return "No pair of arms has finished."
    rows = table(["", "seeds", *(MEASURES_AS_TEXT.get(name, name) for name in measures)], lines)
    if not is_whole:
        return f"{rows}\n\nHolm's correction over the {count} waits for the runs that are missing."
    left = "; ".join(holm(p_values, count)) or "none"
    return f"{rows}\n\nOf the intervals that exclude 0, these survive Holm's correction over the {count}: {left}."


def bound_table(numbers: pd.DataFrame, task: str) -> str:
    """A line per arm of trl-bound.md that has runs, with a number for each recorded seed."""
    lines = []
    added = ((method, setting) for method, values in trl.ADDED[task].items() for setting in values)
    for arm in dict.fromkeys((GRPO, ERA, *added)):
        seeds = [seed for seed in trl.SEEDS if (task, *arm, seed) in numbers.index]
        if not seeds:
            continue
        runs = numbers.loc[[(task, *arm, seed) for seed in seeds]]
        shown = [joined(runs[name], f".{digits}f") for name, digits in BOUND_MEASURES.items()]
        kept = (runs.training_response_entropy >= trl.BOUND[task] - KEPT_WITHIN).sum()
        shown.append(f"{kept} of {len(seeds)}")
        further = {"up_by_down": ".2f", "training_updates_below_low": ".0f", "rounds": ".1f"}
        if trl.arm(task, *arm).base != "era":  # these two are about ERA's bound
            runs = runs.assign(up_by_down=float("nan"), training_updates_below_low=float("nan"))
        cells = [
            "-" if runs[name].isna().all() else joined(runs[name], form).replace("nan", "-")
            for name, form in further.items()
        ]
        lines.append([bound_name(*arm), *shown, *cells])
    if not lines:
        return "No run has finished."
    heading = ["reward", "distinct right of 32", "H_resp, last 10 steps", "kept", "up / down", "updates below"]
    return table(["arm", *heading, "batches sampled for one"], lines)


def tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of trl.md, by the names of their places in it."""
    results = {f"results {task}": results_table(numbers, task) for task in trl.TASKS}
    return {**results, "comparisons": comparisons(numbers, TRL_COMPARED, TRL_MEASURES, 14)}


def bound_tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of trl-bound.md, by the names of their places in it."""
    known = curves_by_key("trl")
    results = {f"results {task}": bound_table(numbers, task) for task in trl.ADDED}
    results |= {f"stopped {task}": bound_stopped(known, task) for task in trl.ADDED}
    for task, compared in BOUND_COMPARED.items():
        arms = [(task, *both) for both in compared]
        count = len(arms) * len(BOUND_MEASURES)
        results[f"comparisons {task}"] = comparisons(numbers, arms, BOUND_MEASURES, count, bound_name)
    return results


def bound_stopped(known: pd.DataFrame, task: str) -> str:
    """Every arm of trl-bound.md beside GRPO, stopped earlier. known: curves by KEY."""
    added = ((method, setting) for method, values in trl.ADDED[task].items() for setting in values)
    arms = [arm for arm in dict.fromkeys((ERA, *added)) if arm != GRPO and arm[0] != "era-answers"]
    lines = [(bound_name(*arm), curves_of(known, (task, *arm), (task, *GRPO), trl.SEEDS)) for arm in arms]
    return stopped_table("arm", "GRPO", lines)
