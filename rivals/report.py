# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Writes the tables and pictures of docs/rivals/, of PPO and of SAC, and README's lines on PPO, from records/ alone."""

import argparse
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from scipy import stats

from era.gaussian_defaults import SAC_TARGET
from era.language import KEPT_WITHIN
from ledger.paper import load
from ledger.statistics import (
    bootstrap,
    detectable,
    interquartile_difference,
    median_difference,
    probability_of_improvement,
)
from recipes import PROJECT
from recipes.curves import at_end, over_all
from recipes.pages import filled, table
from rivals import control, equal, hold, llm, pictures, records, trl, vision
from rivals.comparisons import curves_by_key, curves_of, difference, holm, joined, spread, stopped_table
from rivals.rule import FRESH_SEEDS, KEY, TUNING_SEEDS, choose, of

DOCS = PROJECT / "docs"
WELCH = partial(stats.ttest_ind, equal_var=False)


# --------------------------------------------------------------------------------------------------------------- cells


def chosen_and_fresh(numbers: pd.DataFrame, scores: pd.Series, settings: Mapping[str, Sequence[str]]) -> tuple:
    """The setting of each method that the rule chooses, and the numbers of its fresh runs."""
    chosen = choose(scores, settings)
    return chosen, {method: of(numbers, (method, setting), FRESH_SEEDS) for method, setting in chosen.items()}


# ----------------------------------------------------------------------------------------------------------- LLM, verl

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


def llm_numbers() -> pd.DataFrame:
    """A row per recorded run, by KEY."""
    runs = records.read("llm/runs").set_index(KEY).add_prefix("training_")
    return llm.measures(records.read("llm/samples")).join(runs)


def llm_results(numbers: pd.DataFrame) -> dict[str, TaskResults]:
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


def llm_results_table(results: TaskResults) -> str:
    """Mean (smallest to largest) over the fresh seeds, and ERA's differences to each other method, seed by seed."""
    shown, compared = SHOWN[results.task], COMPARED[results.task]
    era, lines = results.fresh["off-era" if results.off_policy else "era"], []
    for method, runs in results.fresh.items():
        cells = [spread(runs[column], digits) for column, digits in map(HEADINGS.get, shown)]
        for column, digits in map(HEADINGS.get, compared):
            cells.append("-" if runs is era else difference(era[column], runs[column], digits))
        lines.append([llm.METHODS[method].name, results.chosen[method], *cells])
    return table(["method", "setting", *shown, *(f"ERA minus it, {heading}" for heading in compared)], lines)


def llm_stopped(results: Mapping[str, TaskResults]) -> str:
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


def llm_tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of llm.md, by the names of their places in it."""
    tables = {"setpoints": setpoints_table(numbers), "stopped": llm_stopped(llm_results(numbers))}
    for title, results in llm_results(numbers).items():
        tables[f"results {title.replace(', ', '-')}"] = llm_results_table(results)
    return tables


# ------------------------------------------------------------------------------------------------------------ LLM, TRL

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


def trl_numbers() -> pd.DataFrame:
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


def trl_results_table(numbers: pd.DataFrame, task: str) -> str:
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


def trl_comparisons(
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


def trl_tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of trl.md, by the names of their places in it."""
    results = {f"results {task}": trl_results_table(numbers, task) for task in trl.TASKS}
    return {**results, "comparisons": trl_comparisons(numbers, TRL_COMPARED, TRL_MEASURES, 14)}


def bound_tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of trl-bound.md, by the names of their places in it."""
    known = curves_by_key("trl")
    results = {f"results {task}": bound_table(numbers, task) for task in trl.ADDED}
    results |= {f"stopped {task}": bound_stopped(known, task) for task in trl.ADDED}
    for task, compared in BOUND_COMPARED.items():
        arms = [(task, *both) for both in compared]
        count = len(arms) * len(BOUND_MEASURES)
        results[f"comparisons {task}"] = trl_comparisons(numbers, arms, BOUND_MEASURES, count, bound_name)
    return results


def bound_stopped(known: pd.DataFrame, task: str) -> str:
    """Every arm of trl-bound.md beside GRPO, stopped earlier. known: curves by KEY."""
    added = ((method, setting) for method, values in trl.ADDED[task].items() for setting in values)
    arms = [arm for arm in dict.fromkeys((ERA, *added)) if arm != GRPO and arm[0] != "era-answers"]
    lines = [(bound_name(*arm), curves_of(known, (task, *arm), (task, *GRPO), trl.SEEDS)) for arm in arms]
    return stopped_table("arm", "GRPO", lines)


# -------------------------------------------------------------------------------------------------------------- vision

REFERENCE = "baseline, scaled"


def name_of(arm: str) -> str:
    return arm.replace("logit_norm", "LogitNorm").replace("_", " ").replace("era", "ERA")


def vision_runs(numbers: pd.DataFrame) -> tuple[dict[str, str], dict[str, pd.DataFrame]]:
    """The chosen setting of each arm, and its fresh runs."""
    return chosen_and_fresh(numbers, vision.scores(numbers), vision.settings())


def vision_tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of vision.md, by the names of their places in it."""
    scores, (chosen, fresh) = vision.scores(numbers), vision_runs(numbers)

    def minus(arm: str, other: str, images: str) -> str:
        return "-" if arm == other else difference(fresh[arm]["nll", images], fresh[other]["nll", images], 3)

    results = []
    for arm, setting in chosen.items():
        means = fresh[arm].mean()
        digits = {"temperature": 2, "top1": 2, "ece": 2, "nll": 3}
        cells = [f"{means[measure, vision.TEST]:.{decimals}f}" for measure, decimals in digits.items()]
        cells += [minus(arm, REFERENCE, vision.TEST), f"{means['nll', vision.SHIFTED]:.3f}"]
        results.append([name_of(arm), setting, *cells, minus(arm, REFERENCE, vision.SHIFTED)])
    best = {}  # arm of each method, by its NLL on the tuning seeds
    for method in vision.METHODS:
        arms = [arm for arm in chosen if vision.ARMS[arm] == method]
        best[method] = max(arms, key=lambda arm: of(scores, (arm, chosen[arm]), TUNING_SEEDS).mean())
    era = best.pop("era")
    beside = [[name_of(arm), minus(era, arm, vision.TEST), minus(era, arm, vision.SHIFTED)] for arm in best.values()]
    heads = ["temperature", "top-1, %", "ECE, %", "NLL", "minus the baseline's", "shifted: NLL", "minus the baseline's"]
    return {
        "results": table(["arm", "setting", *heads], results),
        "best": table([f"{name_of(era)} minus", "NLL", "shifted: NLL"], beside),
    }


# ------------------------------------------------------------------------------------------------------------- control

MEASURES = {"at the end": at_end, "over the whole training": over_all}  # of a run's returns, by recipes/curves.py
SEEN = "seen in 4 of 5 cases from"  # heading of the smallest difference that the test would have found
NOT_TOLD_APART = "not told apart from"


def minus(one: pd.Series, other: pd.Series) -> str:
    """The difference of two arms' means with Welch's interval; "-" of an arm from itself."""
    return "-" if one.equals(other) else difference(one, other, 0, WELCH)


def seen_from(one: pd.Series, other: pd.Series) -> str:
    smallest = detectable(list(one), list(other))
    return "-" if one.equals(other) or math.isnan(smallest) else f"{smallest:,.0f}"


def verdict(one: pd.Series, other: pd.Series) -> str:
    """`one` is above or below `other` if Welch's interval of the means excludes 0."""
    low, high = WELCH(one, other).confidence_interval()
    return "above" if low > 0 else "below" if high < 0 else NOT_TOLD_APART


def of_tasks(measure: Callable) -> dict[str, tuple[pd.Series, pd.Series]]:
    """The recorded seeds of PPO-ERA and of PPO, on each task of the figure that has runs of both."""
    pairs = {}
    for task in control.TASKS:
        era, ppo = (control.returns("control-ppo", agent, task, measure=measure) for agent in ("ppo_era", "ppo"))
        if len(era) and len(ppo):
            pairs[task] = era, ppo
    return pairs


def tasks_table(measure: Callable) -> str:
    """PPO and PPO-ERA on each task of the figure, with as many seeds as are recorded."""
    lines = []
    for task, (era, ppo) in of_tasks(measure).items():
        seeds = f"{len(ppo)}" if len(ppo) == len(era) else f"{len(ppo)} and {len(era)}"
        means = [f"{values.mean():,.0f} ({values.median():,.0f})" for values in (ppo, era)]
        lines.append([task, seeds, *means, minus(era, ppo), seen_from(era, ppo)])
    heading = ["task", "seeds", "PPO: mean (median)", "PPO-ERA: mean (median)", "PPO-ERA minus PPO", SEEN]
    return table(heading, lines)


def seeds_table() -> str:
    """The end of each recorded run of the figure."""
    lines = [[task, joined(ppo, ",.0f"), joined(era, ",.0f")] for task, (era, ppo) in of_tasks(at_end).items()]
    return table(["task", "PPO, each seed", "PPO-ERA, each seed"], lines)


def aggregate_table() -> str:
    """PPO-ERA against PPO over the tasks of the figure, by the aggregates of Agarwal et al. (2021)."""
    aggregates = {
        "interquartile means, difference": (interquartile_difference, "+.2f"),
        "medians of the tasks, difference": (median_difference, "+.2f"),
        "pairs of runs in which PPO-ERA is above": (probability_of_improvement, ".2f"),
    }
    scales, lines = load().scales, []
    for name, (statistic, form) in aggregates.items():
        cells = []
        for measure in MEASURES.values():
            pairs = of_tasks(measure)
            normalized = [pair[side].to_numpy() / scales[task] for side in (0, 1) for task, pair in pairs.items()]
            middle, low, high = (format(float(value), form) for value in bootstrap(normalized, statistic))
            cells.append(f"{middle} ({low} to {high})")
        lines.append([name, *cells])
    return table(["", *MEASURES], lines)


def figure_text() -> str:
    """On which tasks PPO-ERA is above PPO, in words."""
    sentences = []
    for words, measure in MEASURES.items():
        by_verdict: dict[str, list[str]] = {}
        for task, pair in of_tasks(measure).items():
            by_verdict.setdefault(verdict(*pair), []).append(task.removesuffix("-v4"))
        told = [f"{how} PPO on {in_words(tasks)}" for how, tasks in by_verdict.items() if how != NOT_TOLD_APART]
        if tasks := by_verdict.get(NOT_TOLD_APART):
            told.append(f"{NOT_TOLD_APART} {'it' if told else 'PPO'} on {in_words(tasks)}")
        *before, last = told
        said = f"{', '.join(before)}, and {last}" if before else last
        sentences.append(f"{words[0].upper()}{words[1:]} PPO-ERA is {said}.")
    return " ".join(sentences)


def in_words(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def ppo_table(first: str, arms: dict[str, str], subject: str = "ppo_era", seeds: Sequence[int] | None = None) -> str:
    """A line per arm, at the end of each run.

    Args:
        first: what distinguishes the arms.
        subject: the arm that the others are compared with, beside PPO.
        seeds: the only ones that are shown; None: all that are recorded.
    """
    name = {"ppo_era": "PPO-ERA", "eapo_3m": "EAPO"}[subject]
    returns = {agent: control.returns("control-ppo", agent, seeds=seeds) for agent in arms}
    lines = []
    for agent, label in arms.items():
        runs = control.runs("control-ppo", agent, seeds=seeds).values()
        entropies, clipped = (
            pd.Series([at_end(rows[column]) for rows in runs]) for column in ("entropy_per_dim", "clipped")
        )
        over = control.returns("control-ppo", agent, seeds=seeds, measure=over_all)
        mine = returns[agent]
        cells = [joined(mine, ",.0f"), f"{mine.mean():,.0f}", f"{over.mean():,.0f}", minus(mine, returns["ppo"])]
        cells += [minus(returns[subject], mine), seen_from(returns[subject], mine)]
        lines.append([label, *cells, spread(entropies, 2), spread(100 * clipped, 0)])
    heading = ["return, each seed", "mean", "mean over the training", "it minus PPO", f"{name} minus it", SEEN]
    return table([first, *heading, "entropy per dimension", "actions at a bound, %"], lines)


def arms_table() -> str:
    """The arms of HalfCheetah-v4, and what is left of PPO-ERA's differences to them after Holm's correction."""
    era = control.returns("control-ppo", "ppo_era")
    others = [agent for agent in control.ARMS if agent != "ppo_era"]
    p_values = {control.ARMS[agent]: WELCH(era, control.returns("control-ppo", agent)).pvalue for agent in others}
    left = "; ".join(holm(p_values, len(others))) or "none"
    survivors = f"Of PPO-ERA's differences these survive Holm's correction over the {len(others)}: {left}."
    return f"{ppo_table('sigma', control.ARMS)}\n\n{wrapped(survivors)}"


def readme_text() -> str:
    """README's sentences on PPO."""
    ppo, era, constant, learned = (
        control.returns("control-ppo", agent) for agent in ("ppo", "ppo_era", "ppo_constant", "ppo_parameter")
    )
    seeds = f"{len(ppo)} seeds" if len(ppo) == len(era) else f"{len(ppo)} and {len(era)} seeds"
    first, second = verdict(era, constant), verdict(era, learned)
    told = f"{first} {'either' if first == NOT_TOLD_APART else 'both'}"
    if first != second:
        told = f"{first} the first and {second} the second"
    verdicts = {verdict(*pair) for measure in MEASURES.values() for pair in of_tasks(measure).values()}
    reproduced = "reproduced" if verdicts == {"above"} else "not reproduced as a whole"
    return wrapped(
        f"- **PPO on HalfCheetah-v4** (above, with 95 % bands), {seeds}: return {ppo.mean():,.0f} without ERA, "
        f"{era.mean():,.0f} with it. Starting with a small sigma does most of it: a constant one of the same entropy "
        f"has {constant.mean():,.0f} ({len(constant)} seeds), a learned one from there {learned.mean():,.0f} "
        f"({len(learned)}), and PPO-ERA is {told}. {figure_text()} So [the paper's "
        f"figure](docs/control/ppo.md#the-figure) is {reproduced}.",
        "  ",
    )


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def evaluations(
    group: str, agent: str, seeds: Sequence[int] | None = None, column: str = control.RETURN
) -> list[pd.Series]:
    """The return, or another column, of each evaluation of each seed, over the steps."""
    return [rows[column] for rows in control.runs(group, agent, seeds=seeds).values()]


def alpha_table() -> str:
    """A line per agent, over the last third of the steps; the return at the end."""
    lines = []
    for agent, label in control.ALPHA.items():
        runs = control.runs("alpha", agent).values()
        thirds = [rows[rows.index > rows.index[-1] * 2 / 3] for rows in runs]
        entropies = ["buffer_entropy_per_dim", "entropy_per_dim"]
        farthest = [max((rows[name] - SAC_TARGET).abs().max() for rows in thirds) for name in entropies]
        cells = [joined((rows[name].mean() for rows in thirds), ".2f") for name in entropies]
        cells.append("; ".join(f"{value:.2f}" for value in farthest))
        cells.append(joined((rows.min_entropy_per_dim.min() for rows in thirds), ".1f"))
        lines.append([label, *cells, joined(control.returns("alpha", agent), ",.0f")])
    heading = ["mean over the buffer's states", "over the newest states", "farthest from the target (buffer; newest)"]
    return table(["", *heading, "smallest of any state", "return at the end"], lines)


def obac_table() -> str:
    """A line per agent, at the end of each run.

    Imitations are those of all updates, none of which comes before the first evaluation.
    """
    returns = {agent: control.returns("obac", agent) for agent in control.OBAC}
    lines = []
    for agent, label in control.OBAC.items():
        mine = returns[agent]
        cells = [joined(mine, ",.0f"), f"{mine.mean():,.0f}", minus(mine, returns["sac"])]
        cells += [minus(returns["obac_era"], mine), seen_from(returns["obac_era"], mine)]
        runs = control.runs("obac", agent).values()
        shares = [100 * rows.imitation_share.iloc[1:].mean() for rows in runs if "imitation_share" in rows]
        lines.append([label, *cells, joined(shares, ".0f") or "-"])
    heading = ["return, each seed", "mean", "it minus SAC", "OBAC-ERA minus it", SEEN, "updates that imitated, %"]
    return table(["", *heading], lines)


# --------------------------------------------------------------------------------------------------------------- pages


def pages() -> dict[Path, str]:
    """The pages with their tables, as the records have them."""
    of_trl, of_llm = trl_numbers(), llm_numbers()
    tables = {
        "rivals/llm": llm_tables(of_llm),
        "rivals/trl": trl_tables(of_trl),
        "rivals/trl-bound": bound_tables(of_trl),
        "rivals/trl-hold": hold.tables(of_trl, of_llm),
        "rivals/vision": vision_tables(vision.measures(records.read("vision/measures"))),
        "rivals/control": {"targets": ppo_table("H0 (sigma)", control.TARGETS)},
        "control/ppo": {
            "figure": wrapped(figure_text()),
            "tasks": tasks_table(at_end),
            "efficiency": tasks_table(over_all),
            "aggregate": aggregate_table(),
            "seeds": seeds_table(),
            "arms": arms_table(),
            "eapo": ppo_table("", control.EAPO, "eapo_3m", control.EAPO_SEEDS),
        },
        "control/sac": {"alpha": alpha_table(), "obac": obac_table()},
    }
    files = {DOCS / f"{name}.md": text for name, text in tables.items()}
    files[PROJECT / "README.md"] = {"ppo": readme_text()}
    return {file: filled(file.read_text(), text) for file, text in files.items()}


def draw(folder: Path) -> None:
    numbers = llm_numbers()
    parts = {title: (results.task, results.chosen) for title, results in llm_results(numbers).items() if results.tuned}
    pictures.frontiers(records.read("llm/samples"), parts, folder / "rivals-frontiers.png")
    pictures.settings(numbers, folder / "rivals-settings.png")
    pictures.examples(records.read("llm/curves"), folder / "rivals-examples.png")
    of_trl = records.read("trl/curves")
    of_trl = of_trl[of_trl.seed.isin(trl.SEEDS)]
    pictures.trl_curves(of_trl, folder / "rivals-trl.png")
    panels = {task: {bound_name(*arm): arm for arm in arms} for task, arms in BOUND_PANELS.items()}
    pictures.bound_curves(of_trl, panels, trl.BOUND, folder / "rivals-trl-bound.png")
    returns = {agent: evaluations("control-ppo", agent) for agent in control.ARMS}
    of_eapo = {agent: evaluations("control-ppo", agent, control.EAPO_SEEDS) for agent in control.EAPO}
    pictures.returns(
        {"PPO-ERA and other sigmas": (returns, control.ARMS), "EAPO, three seeds": (of_eapo, control.EAPO)},
        10,
        folder / "control-ppo.png",
    )
    labels = {"ppo": "PPO", "ppo_era": "PPO-ERA", "ppo_constant": "PPO, a constant sigma with ERA's entropy"}
    entropies = {agent: evaluations("control-ppo", agent, column="entropy_per_dim") for agent in labels}
    pictures.return_and_entropy(returns, entropies, labels, folder / "halfcheetah.png")
    of_obac = {agent: evaluations("obac", agent) for agent in control.OBAC}
    pictures.returns({"OBAC and SAC on HalfCheetah-v4": (of_obac, control.OBAC)}, 1, folder / "control-obac.png")
    chosen, fresh = vision_runs(vision.measures(records.read("vision/measures")))
    labels = [f"{name_of(arm)} ({setting})" for arm, setting in chosen.items()]
    pictures.arms(fresh, labels, REFERENCE, folder / "rivals-vision.png")


def main() -> None:
    argparse.ArgumentParser("python -m rivals.report", description=__doc__).parse_args()
    for file, text in pages().items():
        file.write_text(text)
    draw(DOCS / "img")
    print(f"Tables in {DOCS}/rivals and {DOCS}/control, pictures in {DOCS}/img")


if __name__ == "__main__":
    main()
