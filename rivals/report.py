# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Writes the tables and pictures of docs/rivals/, of PPO and of SAC anew, from records/ alone."""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pandas as pd
from scipy import stats

from era.gaussian_defaults import PPO_TARGET, SAC_TARGET
from recipes import PROJECT
from rivals import equal, llm, pictures, records, trl, vision
from rivals.rule import FRESH_SEEDS, KEY, TUNING_SEEDS, choose, of
from tools.pages import filled, table

DOCS = PROJECT / "docs"
WELCH = partial(stats.ttest_ind, equal_var=False)


# --------------------------------------------------------------------------------------------------------------- cells


def spread(values: pd.Series, digits: int) -> str:
    """A cell of a table: the mean, and in brackets the smallest and the largest value."""
    return f"{mean(values):.{digits}f} ({values.min():.{digits}f} to {values.max():.{digits}f})"


def difference(one: pd.Series, other: pd.Series, digits: int, test: Callable = stats.ttest_rel) -> str:
    """The mean of `one` minus that of `other`, with its 95 % interval if both have several seeds; bold if 0 is outside.

    Args:
        test: a test of scipy, paired by seed unless it is WELCH.
    """
    change = f"{one.mean() - other.mean():+,.{digits}f}"
    if min(len(one), len(other)) < 2 or one.equals(other):
        return change
    low, high = test(one, other).confidence_interval()
    cell = f"{change} ({low:+,.{digits}f} to {high:+,.{digits}f})"
    return f"**{cell}**" if low > 0 or high < 0 else cell  # both are NaN where a seed has no value


def chosen_and_fresh(numbers: pd.DataFrame, scores: pd.Series, settings: Mapping[str, Sequence[str]]) -> tuple:
    """The setting of each method that the rule chooses, and the numbers of its fresh runs."""
    chosen = choose(scores, settings)
    return chosen, {method: of(numbers, (method, setting), FRESH_SEEDS) for method, setting in chosen.items()}


def joined(values: Iterable[float], form: str) -> str:
    return ", ".join(format(value, form) for value in values)


# -------------------------------------------------------------------------------------------------------- equal reward

# What is compared where a rival is stopped at equal reward, and at equal H_resp; decimals.
AT_REWARD, AT_ENTROPY = {"response_entropy": 2, "distinct_right": 1}, {"reward": 2, "distinct_right": 1}
STOPPED = {equal.REWARD: AT_REWARD, equal.ENTROPY: AT_ENTROPY}
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
    first: str, name: str, lines: Iterable[tuple[str, Curves]], of: Mapping[str, Mapping[str, int]] = STOPPED
) -> str:
    """A line per arm whose curves are there: its end beside a rival, stopped where that has the same reward or H_resp.

    Args:
        first: the heading of the lines' names.
        name: of the rival.
        of: what is equal; what is compared there, and decimals.
    """
    heading, rows = [first], []
    for by, columns in of.items():
        heading += [
            f"{name} has its {STOPPED_NAMES[by]} at step",
            *(f"{STOPPED_NAMES[column]} there" for column in columns),
        ]
    for label, curves in lines:
        if not curves:
            continue
        rows.append([label])
        for by, columns in of.items():
            found = stopped_at(curves, by, columns)
            rows[-1].append(joined(found.step, ".0f").replace("nan", "never"))
            for column, digits in columns.items():
                values = found[column].dropna().reset_index(drop=True)
                rows[-1].append(difference(values, 0 * values, digits) if len(values) else "-")
    return table(heading, rows) if rows else "No pair of arms has finished."


# ----------------------------------------------------------------------------------------------------------- LLM, verl

HELD = 0.1  # nats from the setpoint
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
            below, reached = (entropies < target - HELD).any(), ((entropies - target).abs() <= HELD).all()
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
# By title: the task, and the arms.
BOUND_PANELS = {
    "pairs: k": ("pairs", (GRPO, ERA, ("era-k", "4"), ("era-k", "8"), ("grpo-rate", "0.25"))),
    "pairs: weight of negative advantages": (
        "pairs",
        (
            *(("era-negative", "0.5"), ("era-negative", "0")),
            *(("grpo-negative", "0.5"), ("grpo-negative", "0")),
        ),
    ),
    "pairs: k = 4 and": (
        "pairs",
        (("era-k", "4"), ("era-scaled", "4"), ("era-dynamic", "4"), ("era-answers", "4")),
    ),
    "pairs50": (
        "pairs50",
        (GRPO, ("grpo-rate", "0.25"), ("era-k", "8"), ("era-negative", "0"), ("adaptive", "0.23")),
    ),
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
        kept = (runs.training_response_entropy >= trl.BOUND[task] - HELD).sum()
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


def hold_seeds(numbers: pd.DataFrame, task: str, bound: float) -> Sequence[int]:
    """The seeds that count: the later ones only if all of their runs are there."""
    later = [
        block for block in trl.HOLD if block[2] == trl.LATER_SEEDS and (block[0], trl.BOUND[task]) == (task, bound)
    ]
    keys = [
        (task, method, setting, seed)
        for _, methods, seeds in later
        for method, values in methods.items()
        for setting in values
        for seed in seeds
    ]
    is_whole = bool(keys) and all(key in numbers.index for key in keys)
    return (*trl.HOLD_SEEDS, *(trl.LATER_SEEDS if is_whole else ()))


def hold_name(method: str, setting: str) -> str:
    """An arm's name in trl-hold.md, where the bound is above the table."""
    names = {"era": "ERA, k = 2", "era-negative": "ERA without negative advantages"}
    return names.get(method) or trl.name(method, setting)


def hold_table(numbers: pd.DataFrame, known: pd.DataFrame, task: str, bound: float, seeds: Sequence[int]) -> str:
    """A line per arm of trl-hold.md, with a number for each seed; and which arms were not run."""
    lines, not_run = [], []
    for arm in sum(trl.hold_arms(task, bound), []):
        keys = [key for key in ((task, *arm, seed) for seed in seeds) if key in numbers.index]
        if not keys:
            not_run.append(hold_name(*arm))
            continue
        runs = numbers.loc[keys]
        lacking = pd.DataFrame([equal.shortfall(known.loc[[key]], bound) for key in keys], runs.index)
        kept = (runs.training_response_entropy >= bound - HELD) & ~(lacking.worst > HELD)
        shown = {**TRL_MEASURES, "training_response_entropy": 2}
        cells = [joined(runs[name], f".{digits}f") for name, digits in shown.items()]
        cells += [joined(lacking[name], ".2f").replace("nan", "-") for name in ("mean", "worst")]
        lines.append([hold_name(*arm), *cells, f"{kept.sum()} of {len(keys)}"])
    heading = ["reward", "pass@8", "distinct right of 32", "H_resp, last 10 steps", "shortfall", "worst of 20 updates"]
    rows = [table(["arm", *heading, "kept"], lines)] if lines else []
    return "\n\n".join([*rows, *([f"Not run: {'; '.join(not_run)}."] if not_run else [])])


def hold_tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of trl-hold.md, by the names of their places in it."""
    known, tables, p_values, deciding, is_whole = curves_by_key("trl"), {}, {}, {}, True
    for task, bound in trl.HELD:
        seeds = hold_seeds(numbers, task, bound)
        (first, *rivals), others = trl.hold_arms(task, bound)
        against = {arm: curves_of(known, (task, *first), (task, *arm), seeds) for arm in rivals}
        beside = {
            arm: curves_of(known, (task, *arm), (task, *GRPO), seeds)
            for arm in (first, *rivals, *others)
            if arm != GRPO
        }
        title = f"{task} {bound:g}"
        tables |= {
            f"results {title}": hold_table(numbers, known, task, bound, seeds),
            f"rivals {title}": stopped_table(
                "hold with k = 8, beside", "it", ((hold_name(*arm), curves) for arm, curves in against.items())
            ),
            f"stopped {title}": stopped_table(
                "arm", "GRPO", ((hold_name(*arm), curves) for arm, curves in beside.items())
            ),
        }
        for arm, curves in against.items():
            has_all = len(curves_of(known, (task, *first), (task, *arm), trl.HOLD_SEEDS)) == len(trl.HOLD_SEEDS)
            is_whole &= has_all
            tested = [(equal.REWARD, column) for column in AT_REWARD] + [(equal.ENTROPY, "reward")]
            for by, column in tested if has_all else ():
                values = stopped_at(curves, by, [column])[column].dropna()
                where = "reward" if by == equal.REWARD else "H_resp"
                name = f"`{task}` at {bound:g} nats, {hold_name(*arm)}: {STOPPED_NAMES[column]} at equal {where}"
                p_values[name] = stats.ttest_1samp(values, 0).pvalue if len(values) > 1 and values.any() else math.nan
                if arm == GRPO and by == equal.ENTROPY and bound == trl.BOUND[task]:
                    deciding[name] = p_values[name]
    waits = "it waits for the runs that are missing"
    of_two = "; ".join(holm(deciding, 2)) or "none" if len(deciding) == 2 else waits
    of_all = "; ".join(holm(p_values, 60)) or "none" if is_whole else waits
    tables["holm"] = f"After Holm's correction, of the two that decide: {of_two}. Of all 60: {of_all}."
    return tables


def holm(p_values: Mapping[str, float], count: int, level: float = 0.05) -> list[str]:
    """The names of the differences that remain after Holm's correction.

    count: the number of all comparisons, those without a p-value included.
    """
    left = []
    for name, p_value in sorted(p_values.items(), key=lambda item: item[1]):
        if not p_value <= level / (count - len(left)):
            break
        left.append(name)
    return left


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

WINDOW = 10  # evaluations at the end of PPO's trainings
ARMS = {
    "ppo": "upstream's parameter, from 1, with the entropy bonus (PPO)",
    "ppo_era": f"ERA, H0 = {PPO_TARGET} (PPO-ERA)",
    "ppo_era_0.3": f"ERA, H0 = {-PPO_TARGET:+}",
    "ppo_constant": f"the constant that has {PPO_TARGET}",
    "ppo_parameter": "upstream's parameter, from that constant, without bonus",
    "ppo_head": "ERA's layer without ERA, from that constant",
}
TARGETS = {
    "ppo_era_-2.0": "-2.0 (0.03)",
    "ppo_era": f"{PPO_TARGET} (0.18), the paper's",
    "ppo_era_0.3": f"{-PPO_TARGET:+} (0.33)",
    "ppo_era_1.0": "+1.0 (0.66)",
    "ppo": "none: PPO, from 1.4 (1) on",
}
EAPO = {
    "ppo": "PPO, with its entropy bonus",
    "ppo_no_bonus": "PPO without the bonus",
    "eapo_3m": "EAPO",
    "ppo_era": "PPO-ERA",
}
EAPO_SEEDS = (1, 2, 3)
ALPHA = {"sac": "SAC, alpha from 1", "sac-alpha_0.01": "SAC, alpha from 0.01", "sac_era": "SAC-ERA, delta = 0"}
OBAC = {
    "sac": "SAC",
    "obac": "OBAC",
    "obac-reward": "OBAC, reward switch",
    "sac_era": "SAC-ERA",
    "obac_era": "OBAC-ERA",
}


def curves(
    group: str, agent: str, seeds: Iterable[int] = range(1, 6), task: str = "HalfCheetah-v4"
) -> list[pd.DataFrame]:
    """train.csv of each of these seeds that is recorded."""
    folder = PROJECT / "records" / group
    files = (folder / f"{task}-{agent}-seed{seed}/train.csv" for seed in seeds)
    return [pd.read_csv(file) for file in files if file.exists()]


def return_cells(returns: Mapping[str, pd.Series], base: str, subject: str) -> dict[str, list[str]]:
    """By agent: the returns of its seeds, their mean, the agent minus `base`, and `subject` minus the agent."""

    def minus(one: str, other: str) -> str:
        return "-" if one == other else difference(returns[one], returns[other], 0, WELCH)

    return {
        agent: [joined(values, ",.0f"), f"{values.mean():,.0f}", minus(agent, base), minus(subject, agent)]
        for agent, values in returns.items()
    }


def percent(shares: Iterable[float]) -> str:
    """Shares in percent, whose sign the heading has."""
    return joined((100 * share for share in shares), ".0f")


def ppo_table(first: str, arms: dict[str, str], subject: str = "ppo_era", seeds: Iterable[int] = range(1, 6)) -> str:
    """A line per arm, means over the last WINDOW evaluations of each seed.

    Args:
        first: what distinguishes the arms.
        subject: the arm that the others are compared with, beside PPO.
    """
    columns = ["eval_avg_return", "entropy_per_dim", "clipped"]
    ends = {
        agent: pd.DataFrame([rows.tail(WINDOW)[columns].mean() for rows in curves("control-ppo", agent, seeds)])
        for agent in arms
    }
    cells = return_cells({agent: rows.eval_avg_return for agent, rows in ends.items()}, "ppo", subject)
    lines = [
        [label, *cells[agent], joined(ends[agent].entropy_per_dim, ".2f"), percent(ends[agent].clipped)]
        for agent, label in arms.items()
    ]
    name = {"ppo_era": "PPO-ERA", "eapo_3m": "EAPO"}[subject]
    heading = ["return, each seed", "mean", "it minus PPO", f"{name} minus it", "entropy per dimension"]
    return table([first, *heading, "actions at a bound, %"], lines)


def tasks_table() -> str:
    """PPO and PPO-ERA on each task of the figure, over the last WINDOW evaluations of the seeds that are recorded."""
    lines = []
    for task in ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4"):
        ppo, era = (
            pd.Series([rows.eval_avg_return.tail(WINDOW).mean() for rows in curves("control-ppo", agent, task=task)])
            for agent in ("ppo", "ppo_era")
        )
        minus = difference(era, ppo, 0, WELCH) if len(ppo) and len(era) else "-"
        if len(ppo) or len(era):
            lines.append([task, joined(ppo, ",.0f") or "-", joined(era, ",.0f") or "-", minus])
    return table(["task", "PPO, each seed", "PPO-ERA, each seed", "PPO-ERA minus PPO"], lines)


def return_curves(
    group: str,
    agent: str,
    seeds: Iterable[int] = range(1, 6),
    window: int = WINDOW,
    column: str = "eval_avg_return",
) -> list[pd.Series]:
    """The return, or another column, over the steps of each seed: means over `window` evaluations."""
    columns = (rows.set_index("global_step")[column] for rows in curves(group, agent, seeds))
    return [curve.rolling(window).mean().iloc[window - 1 :: window] for curve in columns]


def alpha_table() -> str:
    """A line per agent, over the last third of the steps."""
    lines = []
    for agent, label in ALPHA.items():
        runs = curves("alpha", agent)
        thirds = [rows[rows.global_step > rows.global_step.iloc[-1] * 2 / 3] for rows in runs]
        entropies = ["buffer_entropy_per_dim", "entropy_per_dim"]
        farthest = [max((rows[name] - SAC_TARGET).abs().max() for rows in thirds) for name in entropies]
        cells = [joined((rows[name].mean() for rows in thirds), ".2f") for name in entropies]
        cells.append("; ".join(f"{value:.2f}" for value in farthest))
        cells.append(joined((rows.min_entropy_per_dim.min() for rows in thirds), ".1f"))
        lines.append([label, *cells, joined((rows.eval_avg_return.tail(3).mean() for rows in runs), ",.0f")])
    heading = ["mean over the buffer's states", "over the newest states", "farthest from the target (buffer; newest)"]
    return table(["", *heading, "smallest of any state", "return, last 3 evaluations"], lines)


def obac_table() -> str:
    """A line per agent; returns are means over the last 3 evaluations.

    Imitations are those of all updates, none of which comes before the first evaluation.
    """
    runs = {agent: curves("obac", agent) for agent in OBAC}
    returns = {
        agent: pd.Series([rows.eval_avg_return.tail(3).mean() for rows in runs_of_agent])
        for agent, runs_of_agent in runs.items()
    }
    cells, lines = return_cells(returns, "sac", "obac_era"), []
    for agent, label in OBAC.items():
        shares = (rows.imitation_share[1:].mean() for rows in runs[agent])
        lines.append([label, *cells[agent], "-" if agent.startswith("sac") else percent(shares)])
    heading = ["return, each seed", "mean", "it minus SAC", "OBAC-ERA minus it", "updates that imitated, %"]
    return table(["", *heading], lines)


# --------------------------------------------------------------------------------------------------------------- pages


def pages() -> dict[Path, str]:
    """The pages with their tables, as the records have them."""
    of_trl = trl_numbers()
    tables = {
        "rivals/llm": llm_tables(llm_numbers()),
        "rivals/trl": trl_tables(of_trl),
        "rivals/trl-bound": bound_tables(of_trl),
        "rivals/trl-hold": hold_tables(of_trl),
        "rivals/vision": vision_tables(vision.measures(records.read("vision/measures"))),
        "rivals/control": {"targets": ppo_table("H0 (sigma)", TARGETS)},
        "control/ppo": {
            "tasks": tasks_table(),
            "arms": ppo_table("sigma", ARMS),
            "eapo": ppo_table("", EAPO, "eapo_3m", EAPO_SEEDS),
        },
        "control/sac": {"alpha": alpha_table(), "obac": obac_table()},
    }
    files = {DOCS / f"{name}.md": text for name, text in tables.items()}
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
    panels = {title: (task, {bound_name(*arm): arm for arm in arms}) for title, (task, arms) in BOUND_PANELS.items()}
    pictures.bound_curves(of_trl, panels, trl.BOUND, folder / "rivals-trl-bound.png")
    returns = {agent: return_curves("control-ppo", agent) for agent in ARMS}
    of_eapo = {agent: return_curves("control-ppo", agent, EAPO_SEEDS) for agent in EAPO}
    pictures.returns(
        {"PPO-ERA and other sigmas, five seeds": (returns, ARMS), "EAPO, three seeds": (of_eapo, EAPO)},
        folder / "control-ppo.png",
    )
    labels = {"ppo": "PPO", "ppo_era": "PPO-ERA", "ppo_constant": "PPO, a constant sigma with ERA's entropy"}
    entropies = {agent: return_curves("control-ppo", agent, column="entropy_per_dim") for agent in labels}
    pictures.return_and_entropy(returns, entropies, labels, folder / "halfcheetah.png")
    of_obac = {agent: return_curves("obac", agent, window=1) for agent in OBAC}
    pictures.returns({"OBAC and SAC on HalfCheetah, three seeds": (of_obac, OBAC)}, folder / "control-obac.png")
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
