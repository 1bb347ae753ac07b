# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/control.md, docs/control/ppo.md and sac.md, and README's lines on PPO.

The runs are those of recipes/control, with as many seeds as records/ has.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import pandas as pd
from scipy import stats

from era.gaussian_defaults import PPO_TARGET, SAC_TARGET
from ledger.paper import load
from ledger.statistics import (
    bootstrap,
    detectable,
    interquartile_difference,
    median_difference,
    probability_of_improvement,
)
from recipes import PROJECT, curves
from recipes.curves import at_end, over_all
from recipes.pages import table, wrapped
from rivals.comparisons import difference, holm, joined, spread

RECORDS = PROJECT / "records"
CHEETAH = "HalfCheetah-v4"
TASKS = (CHEETAH, "Ant-v4", "Walker2d-v4", "Hopper-v4")
RETURN = "eval_avg_return"
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
WELCH = partial(stats.ttest_ind, equal_var=False)
MEASURES = {"at the end": at_end, "over the whole training": over_all}  # of a run's returns, by recipes/curves.py
SEEN = "seen in 4 of 5 cases from"  # heading of the smallest difference that the test would have found
NOT_TOLD_APART = "not told apart from"


def runs(group: str, agent: str, task: str = CHEETAH, seeds: Collection[int] | None = None) -> dict[int, pd.DataFrame]:
    """By seed, train.csv of each recorded run, indexed by the steps. seeds: the only ones that are taken."""
    folders = {}
    for folder in (RECORDS / group).glob(f"{task}-{agent}-seed*"):
        seed = int(re.search("[0-9]+$", folder.name)[0])
        if seeds is None or seed in seeds:
            folders[seed] = folder
    return {seed: pd.DataFrame(curves.read(folders[seed] / "train.csv")).sort_index() for seed in sorted(folders)}


def returns(
    group: str,
    agent: str,
    task: str = CHEETAH,
    seeds: Collection[int] | None = None,
    measure: Callable[[Mapping[int, float]], float] = at_end,
) -> pd.Series:
    """By seed, a measure of recipes/curves.py of the evaluations' returns."""
    measured = {seed: measure(rows[RETURN]) for seed, rows in runs(group, agent, task, seeds).items()}
    return pd.Series(measured, dtype=float)


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


def seeds_by_task(measure: Callable) -> dict[str, tuple[pd.Series, pd.Series]]:
    """The recorded seeds of PPO-ERA and of PPO, on each task of the figure that has runs of both."""
    pairs = {}
    for task in TASKS:
        era, ppo = (returns("control-ppo", agent, task, measure=measure) for agent in ("ppo_era", "ppo"))
        if len(era) and len(ppo):
            pairs[task] = era, ppo
    return pairs


def tasks_table(measure: Callable) -> str:
    """PPO and PPO-ERA on each task of the figure, with as many seeds as are recorded."""
    lines = []
    for task, (era, ppo) in seeds_by_task(measure).items():
        seeds = f"{len(ppo)}" if len(ppo) == len(era) else f"{len(ppo)} and {len(era)}"
        means = [f"{values.mean():,.0f} ({values.median():,.0f})" for values in (ppo, era)]
        lines.append([task, seeds, *means, minus(era, ppo), seen_from(era, ppo)])
    heading = ["task", "seeds", "PPO: mean (median)", "PPO-ERA: mean (median)", "PPO-ERA minus PPO", SEEN]
    return table(heading, lines)


def seeds_table() -> str:
    """The end of each recorded run of the figure."""
    lines = [[task, joined(ppo, ",.0f"), joined(era, ",.0f")] for task, (era, ppo) in seeds_by_task(at_end).items()]
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
            pairs = seeds_by_task(measure)
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
        for task, pair in seeds_by_task(measure).items():
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
    ends = {agent: returns("control-ppo", agent, seeds=seeds) for agent in arms}
    lines = []
    for agent, label in arms.items():
        trained = runs("control-ppo", agent, seeds=seeds).values()
        entropies, clipped = (
            pd.Series([at_end(rows[column]) for rows in trained]) for column in ("entropy_per_dim", "clipped")
        )
        over = returns("control-ppo", agent, seeds=seeds, measure=over_all)
        mine = ends[agent]
        cells = [joined(mine, ",.0f"), f"{mine.mean():,.0f}", f"{over.mean():,.0f}", minus(mine, ends["ppo"])]
        cells += [minus(ends[subject], mine), seen_from(ends[subject], mine)]
        lines.append([label, *cells, spread(entropies, 2), spread(100 * clipped, 0)])
    heading = ["return, each seed", "mean", "mean over the training", "it minus PPO", f"{name} minus it", SEEN]
    heading += ["entropy per dimension (least to most)", "actions at a bound, % (least to most)"]
    return table([first, *heading], lines)


def arms_table() -> str:
    """The arms of HalfCheetah-v4, and what is left of PPO-ERA's differences to them after Holm's correction."""
    others = [agent for agent in ARMS if agent != "ppo_era"]
    said = []
    for words, measure in MEASURES.items():
        era, *of_others = (returns("control-ppo", agent, measure=measure) for agent in ("ppo_era", *others))
        p_values = {ARMS[agent]: WELCH(era, ends).pvalue for agent, ends in zip(others, of_others)}
        said.append(f"{words.capitalize()}: {'; '.join(holm(p_values, len(others))) or 'none'}.")
    survivors = f"Of PPO-ERA's differences these survive Holm's correction over the {len(others)}. {' '.join(said)}"
    return f"{ppo_table('sigma', ARMS)}\n\n{wrapped(survivors)}"


def readme_text() -> str:
    """README's sentences on PPO."""
    ppo, era = (returns("control-ppo", agent) for agent in ("ppo", "ppo_era"))
    seeds = f"{len(ppo)} seeds" if len(ppo) == len(era) else f"{len(ppo)} and {len(era)} seeds"
    without = []
    for agent, words in (
        ("ppo_constant", "A small constant standard deviation has"),
        ("ppo_parameter", "learned ones that start small"),
        ("ppo_head", "and"),
    ):
        ends = returns("control-ppo", agent)
        how = {NOT_TOLD_APART: "not told apart"}.get(verdict(ends, era), f"{verdict(ends, era)} ERA")
        fewer = "" if len(ends) == len(era) else f", {len(ends)} seeds"
        without.append(f"{words} {ends.mean():,.0f} ({how}{fewer})")
    verdicts = {verdict(*pair) for measure in MEASURES.values() for pair in seeds_by_task(measure).values()}
    reproduced = "reproduced" if verdicts == {"above"} else "not reproduced as a whole"
    return wrapped(
        f"- **PPO on HalfCheetah-v4** has a return of {ppo.mean():,.0f} without ERA ({ppo.min():,.0f} to "
        f"{ppo.max():,.0f}) and of {era.mean():,.0f} with it ({seeds}). {', '.join(without[:2])} {without[2]}. "
        f"[The paper's figure](docs/control/ppo.md#the-figure) is {reproduced}.",
        "  ",
    )


def evaluations(group: str, agent: str, seeds: Sequence[int] | None = None) -> list[pd.Series]:
    """The return of each evaluation of each seed, over the steps."""
    return [rows[RETURN] for rows in runs(group, agent, seeds=seeds).values()]


def alpha_table() -> str:
    """A line per agent, over the last third of the steps; the return at the end."""
    lines = []
    for agent, label in ALPHA.items():
        trained = runs("alpha", agent).values()
        thirds = [rows[rows.index > rows.index[-1] * 2 / 3] for rows in trained]
        entropies = ["buffer_entropy_per_dim", "entropy_per_dim"]
        farthest = [max((rows[name] - SAC_TARGET).abs().max() for rows in thirds) for name in entropies]
        cells = [joined((rows[name].mean() for rows in thirds), ".2f") for name in entropies]
        cells.append("; ".join(f"{value:.2f}" for value in farthest))
        cells.append(joined((rows.min_entropy_per_dim.min() for rows in thirds), ".1f"))
        lines.append([label, *cells, joined(returns("alpha", agent), ",.0f")])
    heading = ["mean over the buffer's states", "over the newest states", "farthest from the target (buffer; newest)"]
    return table(["", *heading, "smallest of any state", "return at the end"], lines)


def obac_table() -> str:
    """A line per agent, at the end of each run.

    Imitations are those of all updates, none of which comes before the first evaluation.
    """
    ends = {agent: returns("obac", agent) for agent in OBAC}
    lines = []
    for agent, label in OBAC.items():
        mine = ends[agent]
        cells = [joined(mine, ",.0f"), f"{mine.mean():,.0f}", minus(mine, ends["sac"])]
        cells += [minus(ends["obac_era"], mine), seen_from(ends["obac_era"], mine)]
        trained = runs("obac", agent).values()
        shares = [100 * rows.imitation_share.iloc[1:].mean() for rows in trained if "imitation_share" in rows]
        lines.append([label, *cells, joined(shares, ".0f") or "-"])
    heading = ["return, each seed", "mean", "it minus SAC", "OBAC-ERA minus it", SEEN, "updates that imitated, %"]
    return table(["", *heading], lines)
