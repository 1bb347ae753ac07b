# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/trl-hold.md: ERA with hold beside its rivals, in TRL and in verl."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from scipy import stats

from era.language import KEPT_WITHIN
from recipes.pages import table, wrapped
from rivals import equal, llm, trl
from rivals.comparisons import Curves, curves_by_key, curves_of, holm, joined, stopped_at, stopped_cell, stopped_table

Arm = tuple[str, str]  # method and setting
FIRST = "ERA with hold, k = 8"  # which is compared with its rivals
COUNT = 60  # comparisons in each host: five rivals and three measures on each of its four tasks and bounds


@dataclass(frozen=True)
class Host:
    """What is measured of the runs in a host.

    Attributes:
        name: as the page has it.
        curves: the folder of its curves in records/rivals.
        final: measures of the final weights, by their headings: the column and decimals.
        stopped: what is compared where a rival is stopped, and decimals, by what is equal there.
        tested: which of these count in Holm's correction, as pairs of what is equal and what is compared.
    """

    name: str
    curves: Literal["trl", "llm"]
    final: dict[str, tuple[str, int]]
    stopped: dict[str, dict[str, int]]
    tested: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Held:
    """A task and its bound. The first of the arms, by name, is hold with k = 8, and the next five are its rivals."""

    task: str
    bound: float
    arms: Mapping[str, Arm]
    seeds: Sequence[int]
    compared: str = ""  # a measure of the final weights that counts in Holm's correction
    decides: bool = False

    def curves(self, known: pd.DataFrame, arm: Arm, rival: Arm) -> Curves:
        return curves_of(known, (self.task, *arm), (self.task, *rival), self.seeds)


TRL = Host(
    "TRL",
    "trl",
    {"reward": ("reward", 2), "pass@8": ("pass_at_8", 2), "distinct right of 32": ("distinct_right", 1)},
    {
        equal.REWARD: {equal.ENTROPY: 2, "distinct_right": 1},
        equal.ENTROPY: {equal.REWARD: 2, "distinct_right": 1},
    },
    ((equal.REWARD, equal.ENTROPY), (equal.REWARD, "distinct_right"), (equal.ENTROPY, equal.REWARD)),
)
VERL = Host(
    "verl",
    "llm",
    {"accuracy": ("pass_at_1", 2), "accuracy at the best temperature": ("best_accuracy", 2), "d@.95": ("d@.95", 1)},
    {equal.REWARD: {equal.ENTROPY: 2}, equal.ENTROPY: {equal.REWARD: 2}},
    ((equal.REWARD, equal.ENTROPY), (equal.ENTROPY, equal.REWARD)),
)


def arms(grpo: Arm, slow: Arm, bonus: Mapping[str, Arm], two: Arm, at: str = "") -> dict[str, Arm]:
    """The arms by name. Given: those that differ between the hosts, and what stands behind a setting, its bound."""
    return {
        FIRST: ("era-hold", f"8{at}"),
        "GRPO": grpo,
        "ERA, k = 8": ("era-k", f"8{at}"),
        "ERA without negative advantages": ("era-negative", f"0{at}"),
        **bonus,
        "GRPO, learning rate x 0.25": slow,
        **{f"ERA with hold, k = {k}": ("era-hold", f"{k}{at}") for k in (4, 2, 1)},
        "ERA, k = 4": ("era-k", f"4{at}"),
        "ERA, k = 2": two,
    }


def held_in_trl(numbers: pd.DataFrame) -> list[Held]:
    held = []
    for (task, bound), target in trl.HELD.items():
        decides = bound == trl.BOUND[task]
        bonus = {f"adaptive bonus, {target} nats": ("adaptive", target)}
        two, at = ("era", f"{bound:g}"), "" if decides else f"@{bound:g}"
        of_task = arms(("grpo", "0"), ("grpo-rate", "0.25"), bonus, two, at)
        held.append(Held(task, bound, of_task, trl_seeds(numbers, task, bound), decides=decides))
    return held


def trl_seeds(numbers: pd.DataFrame, task: str, bound: float) -> Sequence[int]:
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


def held_in_verl() -> list[Held]:
    held = []
    for task, share in llm.HOLD_SHARE.items():
        bonus = {"adaptive bonus on H_resp": ("adaptive", share)}
        of_task = arms(("grpo", "1"), ("grpo", "0.25"), bonus, ("era-k", "2"))
        compared = {"chain-goal": "best_accuracy", "chain": "d@.95"}.get(task, "reward")
        held.append(Held(task, float(share) * llm.START[task], of_task, llm.HOLD_SEEDS, compared))
    return held


def results_table(numbers: pd.DataFrame, known: pd.DataFrame, host: Host, held: Held) -> str:
    """A line per arm, with a number for each seed and its end minus GRPO, stopped; and which arms were not run."""
    lines, not_run, grpo = [], [], held.arms["GRPO"]
    for name, arm in held.arms.items():
        keys = [key for key in ((held.task, *arm, seed) for seed in held.seeds) if key in numbers.index]
        if not keys:
            not_run.append(name)
            continue
        runs = numbers.loc[keys]
        lacking = pd.DataFrame([equal.shortfall(known.loc[[key]], held.bound) for key in keys], runs.index)
        kept = (runs.training_response_entropy >= held.bound - KEPT_WITHIN) & ~(lacking.worst > KEPT_WITHIN)
        cells = [joined(runs[column], f".{digits}f") for column, digits in host.final.values()]
        cells.append(joined(runs.training_response_entropy, ".2f"))
        cells += [joined(lacking[name], ".2f").replace("nan", "-") for name in ("mean", "worst")]
        curves = [] if arm == grpo else held.curves(known, arm, grpo)
        compared = ((equal.ENTROPY, equal.REWARD), (equal.REWARD, equal.ENTROPY))
        beside_grpo = [stopped_cell(curves, by, column, 2) if curves else "-" for by, column in compared]
        lines.append([name, *cells, f"{kept.sum()} of {len(keys)}", *beside_grpo])
    heading = ["arm", *host.final, "H_resp, last 10 steps", "shortfall", "worst of 20 updates", "kept"]
    heading += ["reward at GRPO's H_resp", "H_resp at GRPO's reward"]
    if not lines:
        return "No run has finished."
    return "\n\n".join([table(heading, lines), *([f"Not run: {'; '.join(not_run)}."] if not_run else [])])


def p_value(values: pd.Series) -> float:
    """Of Student's t against 0; NaN where there is no spread to tell it from."""
    values = values.dropna()
    return stats.ttest_1samp(values, 0).pvalue if len(values) > 1 and values.any() else math.nan


def p_values(numbers: pd.DataFrame, host: Host, held: Held, name: str, arm: Arm, curves: Curves) -> dict[str, float]:
    """Of hold with k = 8 minus a rival, by what is compared."""
    where = {equal.REWARD: "reward", equal.ENTROPY: "H_resp"}
    columns = {equal.REWARD: "reward", equal.ENTROPY: "H_resp", "distinct_right": "distinct right of 8"}
    title, found = f"`{held.task}` at {round(held.bound, 2):g} nats, {name}", {}
    for by, column in host.tested:
        values = stopped_at(curves, by, [column])[column]
        found[f"{title}: {columns[column]} at equal {where[by]}"] = p_value(values)
    if held.compared:
        one, other = (
            numbers[held.compared].loc[(held.task, *either)].reindex(held.seeds) for either in (held.arms[FIRST], arm)
        )
        found[f"{title}: {held.compared} at the end"] = p_value(one - other)
    return found


def host_tables(numbers: pd.DataFrame, host: Host, tasks: Sequence[Held], place: str) -> dict[str, str]:
    """The tables of one host, by the names of their places in the page; place: of the sentence on Holm's correction."""
    known, tables, found, deciding, is_whole = curves_by_key(host.curves), {}, {}, {}, True
    for held in tasks:
        (_, first), *rivals = [*held.arms.items()][:6]
        baseline = held.arms["GRPO"]
        against = {name: held.curves(known, first, arm) for name, arm in rivals}
        title = f"{held.task} {round(held.bound, 2):g}"
        tables |= {
            f"results {title}": results_table(numbers, known, host, held),
            f"rivals {title}": stopped_table("hold with k = 8, beside", "it", against.items(), host.stopped),
        }
        for name, arm in rivals:
            needed = trl.HOLD_SEEDS if host is TRL else held.seeds
            has_all = len(curves_of(known, (held.task, *first), (held.task, *arm), needed)) == len(needed)
            is_whole &= has_all
            of_rival = p_values(numbers, host, held, name, arm, against[name]) if has_all else {}
            found |= of_rival
            if arm == baseline and held.decides:
                deciding |= {which: value for which, value in of_rival.items() if which.endswith("at equal H_resp")}
    waits = "it waits for the runs that are missing"
    of_all = "; ".join(holm(found, COUNT)) or "none" if is_whole else waits
    of_two = "; ".join(holm(deciding, 2)) or "none" if len(deciding) == 2 else waits
    text = f"of the two that decide: {of_two}. Of all {COUNT}" if host is TRL else f"of all {COUNT}"
    return {**tables, place: f"After Holm's correction, {text}: {of_all}."}


def panels(host: Host, tasks: Sequence[Held]) -> dict[str, tuple[Arm, float, pd.DataFrame]]:
    """For the picture, by title: each arm that was run, its bound, and the curves of the seeds that count."""
    known, drawn, found = curves_by_key(host.curves), set(), {}
    for held in tasks:
        for name, arm in held.arms.items():
            curves = known[known.index.isin([(held.task, *arm, seed) for seed in held.seeds])]
            if len(curves) and (held.task, *arm) not in drawn:  # GRPO's runs are the same for every bound
                drawn.add((held.task, *arm))
                found[f"{held.task}, {round(held.bound, 2):g} nats\n{name}"] = (arm, held.bound, curves)
    return found


def sections(numbers: pd.DataFrame, host: Host, tasks: Sequence[Held], place: str) -> str:
    """What the page says of one host: a section for each task and bound at which hold with k = 8 was run."""
    found, parts, not_run = host_tables(numbers, host, tasks, place), [], []
    for held in tasks:
        title, bound = f"`{held.task}`", f"{round(held.bound, 2):g}"
        if not any((held.task, *held.arms[FIRST], seed) in numbers.index for seed in held.seeds):
            not_run.append(f"{title} at {bound} nats")
            continue
        names = (f"{which} {held.task} {bound}" for which in ("results", "rivals"))
        parts += [f"### {host.name}, {title}, {bound} nats", *(found[name] for name in names)]
    parts.append(wrapped(found[place]))
    return "\n\n".join([*parts, *([f"Not run: {'; '.join(not_run)}."] if not_run else [])])


def tables(of_trl: pd.DataFrame, of_llm: pd.DataFrame) -> dict[str, str]:
    """The tables of trl-hold.md, by the names of their places in it. Given: a row per recorded run, by KEY."""
    return {
        "trl": sections(of_trl, TRL, held_in_trl(of_trl), "holm"),
        "verl": sections(of_llm, VERL, held_in_verl(), "holm verl"),
    }
