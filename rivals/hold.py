# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/trl-hold.md: ERA with hold beside its rivals, in TRL and in verl."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from scipy import stats

from recipes.pages import table, wrapped
from rivals import equal, llm, trl
from rivals.comparisons import (
    STOPPED_NAMES,
    Curves,
    curves_by_key,
    curves_of,
    difference,
    holm,
    joined,
    stopped_at,
    stopped_cell,
    stopped_table,
)
from rivals.rule import rows_of_seeds

Arm = tuple[str, str]  # method and setting
HOLD_8 = "ERA with hold, k = 8"  # the arm that is compared with its rivals
STOPPED: Arm = ("grpo-stopped", "8")
RIVALS = 5
COMPARISONS = 60  # in each host: RIVALS and three measures on each of its four tasks and bounds


@dataclass(frozen=True)
class Host:
    """What is measured of the runs in a host.

    Attributes:
        name: as the page has it.
        curves: the folder of its curves in records/rivals.
        at_end: measures of the final weights, by their headings: the column and decimals.
        at_end_if_tested: those that only the tasks have that are compared in them.
        when_stopped: what is compared where a rival is stopped, and decimals, by what is equal there.
        stopped_runs: measures of final weights, by heading, in which hold is compared with GRPO's weights when stopped.
        tested: which of these count in Holm's correction, as pairs of what is equal and what is compared.
    """

    name: str
    curves: Literal["trl", "llm"]
    at_end: dict[str, tuple[str, int]]
    at_end_if_tested: dict[str, tuple[str, int]]
    when_stopped: dict[str, dict[str, int]]
    stopped_runs: dict[str, tuple[str, int]]
    tested: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Task:
    """A task with a bound, at which it is trained.

    Attributes:
        bound: in nats.
        arms: by name. The first is HOLD_8, and the next RIVALS are its rivals.
        tested_at_end: a measure of the final weights that counts in Holm's correction, as Host.tested do.
        decides: whether the comparisons with GRPO at equal H_resp decide the page's claim.
    """

    name: str
    bound: float
    arms: Mapping[str, Arm]
    seeds: Sequence[int]
    tested_at_end: str = ""
    decides: bool = False

    @property
    def label(self) -> str:
        return f"{round(self.bound, 2):g}"

    def run(self, arm: Arm, seed: int) -> tuple[str, str, str, int]:
        return (self.name, *arm, seed)

    def curves(self, recorded: pd.DataFrame, arm: Arm, rival: Arm) -> Curves:
        return curves_of(recorded, (self.name, *arm), (self.name, *rival), self.seeds)


TRL = Host(
    "TRL",
    "trl",
    {"reward": ("reward", 2), "pass@8": ("pass_at_8", 2), "distinct right of 32": ("distinct_right", 1)},
    {},
    {
        equal.REWARD: {equal.ENTROPY: 2, "distinct_right": 1},
        equal.ENTROPY: {equal.REWARD: 2, "distinct_right": 1},
    },
    {"reward": ("reward", 2), "pass@8": ("pass_at_8", 2), "distinct right of 32": ("distinct_right", 1)},
    ((equal.REWARD, equal.ENTROPY), (equal.REWARD, "distinct_right"), (equal.ENTROPY, equal.REWARD)),
)
VERL = Host(
    "verl",
    "llm",
    {"accuracy": ("pass_at_1", 2)},
    {"accuracy at the best temperature": ("best_accuracy", 2), "d@.95": ("d@.95", 1), "reward": ("reward", 2)},
    {equal.REWARD: {equal.ENTROPY: 2}, equal.ENTROPY: {equal.REWARD: 2}},
    {
        "accuracy": ("pass_at_1", 2),
        "pass@32": ("pass_at_32", 2),
        "distinct right of 32": ("distinct_32", 1),
        "d@.95": ("d@.95", 1),
    },
    ((equal.REWARD, equal.ENTROPY), (equal.ENTROPY, equal.REWARD)),
)


def arms_of_host(grpo: Arm, slow_grpo: Arm, bonus: Mapping[str, Arm], era_2: Arm, suffix: str = "") -> dict[str, Arm]:
    """The arms by name. Given: those that differ between the hosts, and what follows a setting, @ and its bound."""
    return {
        HOLD_8: ("era-hold", f"8{suffix}"),
        "GRPO": grpo,
        "ERA, k = 8": ("era-k", f"8{suffix}"),
        "ERA without negative advantages": ("era-negative", f"0{suffix}"),
        **bonus,
        "GRPO, learning rate x 0.25": slow_grpo,
        **{f"ERA with hold, k = {k}": ("era-hold", f"{k}{suffix}") for k in (4, 2, 1)},
        "ERA, k = 4": ("era-k", f"4{suffix}"),
        "ERA, k = 2": era_2,
    }


def trl_tasks(numbers: pd.DataFrame) -> list[Task]:
    tasks = []
    for (name, bound), target in trl.BONUS_TARGETS.items():
        decides = bound == trl.BOUND[name]
        bonus = {f"adaptive bonus, {target} nats": ("adaptive", target)}
        suffix = "" if decides else f"@{bound:g}"
        task_arms = arms_of_host(("grpo", "0"), ("grpo-rate", "0.25"), bonus, ("era", f"{bound:g}"), suffix)
        task_arms |= {"GRPO without negative advantages": ("grpo-negative", "0")} if decides else {}
        seeds = (*trl.HOLD_SEEDS, *(later_seeds(numbers, name) if decides else ()))
        tasks.append(Task(name, bound, task_arms, seeds, decides=decides))
    return tasks


def later_seeds(numbers: pd.DataFrame, name: str) -> Sequence[int]:
    """Those of a task at its own bound, which count only if all of their runs are there."""
    runs = [
        (name, method, setting, seed)
        for of_block, methods, seeds in trl.HOLD
        if of_block == name and seeds == trl.LATER_SEEDS
        for method, settings in methods.items()
        for setting in settings
        for seed in seeds
    ]
    return trl.LATER_SEEDS if runs and all(run in numbers.index for run in runs) else ()


def verl_tasks() -> list[Task]:
    tasks = []
    for name, share in llm.HOLD_SHARE.items():
        bonus = {"adaptive bonus on H_resp": ("adaptive", share)}
        task_arms = arms_of_host(("grpo", "1"), ("grpo", "0.25"), bonus, ("era-k", "2"))
        tested_at_end = {"chain-goal": "best_accuracy", "chain": "d@.95"}.get(name, "reward")
        tasks.append(Task(name, float(share) * llm.START[name], task_arms, llm.HOLD_SEEDS, tested_at_end))
    return tasks


def results_table(numbers: pd.DataFrame, recorded: pd.DataFrame, host: Host, task: Task) -> str:
    """A line per arm, with a number for each seed and its end minus GRPO, stopped; and which arms were not run."""
    lines, not_run, grpo = [], [], task.arms["GRPO"]
    tested = {name: of for name, of in host.at_end_if_tested.items() if of[0] == task.tested_at_end}
    at_end = host.at_end | tested
    for name, arm in task.arms.items():
        keys = [key for key in (task.run(arm, seed) for seed in task.seeds) if key in numbers.index]
        if not keys:
            not_run.append(name)
            continue
        runs = numbers.loc[keys]
        shortfalls = pd.DataFrame([equal.shortfall(recorded.loc[[key]], task.bound) for key in keys], runs.index)
        entropy = runs.training_response_entropy
        is_kept = [equal.kept(recorded.loc[[key]], entropy[key], task.bound) for key in keys]
        cells = [joined(runs[column], f".{digits}f") for column, digits in at_end.values()]
        cells.append(joined(entropy, ".2f"))
        for which in ("mean", "worst"):
            never = shortfalls[which].isna().all()
            cells.append("-" if never else joined(shortfalls[which], ".2f").replace("nan", "-"))
        curves = [] if arm == grpo else task.curves(recorded, arm, grpo)
        compared = ((equal.ENTROPY, equal.REWARD), (equal.REWARD, equal.ENTROPY))
        beside_grpo = [stopped_cell(curves, by, column, 2) if curves else "-" for by, column in compared]
        lines.append([name, *cells, f"{sum(is_kept)} of {len(keys)}", *beside_grpo])
    heading = ["arm", *at_end, "H_resp, last 10 steps", "shortfall", "worst of 20 updates", "kept"]
    heading += ["reward minus GRPO's at equal H_resp", "H_resp minus GRPO's at equal reward"]
    if not lines:
        return "No run has finished."
    return "\n\n".join([table(heading, lines), *not_run_line(not_run)])


def not_run_line(names: Sequence[str]) -> list[str]:
    values: dict[str, list[str]] = {}  # of k, by what precedes it
    for name in names:
        arm, _, k = name.partition(", k = ")
        values.setdefault(arm, []).append(k)
    arms = (f"{arm}, k = {', '.join(of_arm)}" if of_arm[0] else arm for arm, of_arm in values.items())
    return [f"Not run: {'; '.join(arms)}."] if names else []


def p_value(differences: pd.Series) -> float:
    """Of Student's t against 0; NaN where there is no spread to tell the mean from 0."""
    differences = differences.dropna()
    return stats.ttest_1samp(differences, 0).pvalue if len(differences) > 1 and differences.any() else math.nan


def ends(numbers: pd.DataFrame, task: Task, arm: Arm) -> list[pd.Series]:
    """`task.tested_at_end` of HOLD_8 and of an arm, of the seeds that both have."""
    arms = (task.arms[HOLD_8], arm)
    seeds = [seed for seed in task.seeds if all(task.run(one, seed) in numbers.index for one in arms)]
    return [rows_of_seeds(numbers[task.tested_at_end], (task.name, *one), seeds) for one in arms]


def p_values(numbers: pd.DataFrame, host: Host, task: Task, name: str, rival: Arm, curves: Curves) -> dict[str, float]:
    """Of HOLD_8 minus a rival, by what is compared, as the page says it. name: the rival's."""
    title = f"`{task.name}` at {task.label} nats, {name}"
    by_title = {}
    for by, column in host.tested:
        differences = stopped_at(curves, by, [column])[column]
        by_title[f"{title}: {STOPPED_NAMES[column]} at equal {STOPPED_NAMES[by]}"] = p_value(differences)
    if task.tested_at_end:
        held, other = ends(numbers, task, rival)
        by_title[f"{title}: {task.tested_at_end} at the end"] = p_value(held - other)
    return by_title


def last_column(numbers: pd.DataFrame, host: Host, task: Task) -> tuple[str, dict[str, str]]:
    """What `task.tested_at_end` is called, and HOLD_8 minus each arm in it, over the seeds that both have."""
    if not task.tested_at_end:
        return "", {}
    names = {column: (name, digits) for name, (column, digits) in host.at_end_if_tested.items()}
    name, digits = names.get(task.tested_at_end, (task.tested_at_end, 2))
    of_arms = {label: ends(numbers, task, arm) for label, arm in task.arms.items()}
    cells = {label: "-" if held.empty else difference(held, other, digits) for label, (held, other) in of_arms.items()}
    return f"{name} at the end", cells


def host_tables(numbers: pd.DataFrame, host: Host, tasks: Sequence[Task], holm_place: str) -> dict[str, str]:
    """The tables of one host, by the names of their places in the page; holm_place: of the sentence on Holm's."""
    recorded, tables = curves_by_key(host.curves), {}
    tested, tested_with_grpo = {}, {}
    for task in tasks:
        (_, hold_8), *rivals = [*task.arms.items()][: RIVALS + 1]
        curves = {name: task.curves(recorded, hold_8, arm) for name, arm in rivals}
        title = f"{task.name} {task.label}"
        tables |= {
            f"results {title}": results_table(numbers, recorded, host, task),
            f"rivals {title}": stopped_table(
                "hold with k = 8, beside", "it", curves.items(), host.when_stopped, last_column(numbers, host, task)
            ),
        }
        for name, arm in rivals:
            needed = trl.HOLD_SEEDS if host is TRL else task.seeds  # some rivals alone have TRL's later seeds
            if len(curves_of(recorded, (task.name, *hold_8), (task.name, *arm), needed)) < len(needed):
                continue
            of_rival = p_values(numbers, host, task, name, arm, curves[name])
            tested |= of_rival
            if name == "GRPO" and task.decides:
                tested_with_grpo |= {of: value for of, value in of_rival.items() if of.endswith("at equal H_resp")}

    # A comparison that lacks a run counts in the correction, as one that shows nothing.
    of_all = "; ".join(holm(tested, COMPARISONS)) or "none"
    of_two = "; ".join(holm(tested_with_grpo, 2)) or "none"
    text = f"of the two that decide: {of_two}. Of all {COMPARISONS}" if host is TRL else f"of all {COMPARISONS}"
    known = f"{len(tested)} have all their runs" if len(tested) < COMPARISONS else ""
    return {**tables, holm_place: f"After Holm's correction, {text}{known and f', of which {known}'}: {of_all}."}


def stopped_runs_table(numbers: pd.DataFrame, recorded: pd.DataFrame, host: Host, tasks: Sequence[Task]) -> list[str]:
    """HOLD_8 beside GRPO that was stopped at its reward: a line per measure of the final weights. [] without any."""
    lines = []
    for task in tasks:
        held, stopped = task.arms[HOLD_8], STOPPED
        seeds = [seed for seed in task.seeds if {task.run(arm, seed) for arm in (held, stopped)} <= {*numbers.index}]
        if held != ("era-hold", "8") or not seeds:
            continue
        of_held, of_stopped = (numbers.loc[[task.run(arm, seed) for seed in seeds]] for arm in (held, stopped))
        steps = joined((recorded.loc[[run]].step.max() for run in of_stopped.index), "d")
        lines.append([f"`{task.name}`", "updates", "", steps, ""])
        for name, (column, digits) in host.stopped_runs.items():
            values = [of[column].reset_index(drop=True) for of in (of_held, of_stopped)]
            cells = [*(joined(of_arm, f".{digits}f") for of_arm in values), difference(*values, digits)]
            lines.append([f"`{task.name}`", name, *cells])
    heading = ["task", "of the final weights", "ERA with hold, k = 8", "GRPO, stopped", "difference"]
    return [table(heading, lines)] if lines else []


def panels(host: Host, tasks: Sequence[Task]) -> dict[str, tuple[Arm, float, pd.DataFrame]]:
    """For the picture, by title: each arm that has several seeds, its bound, and the curves of those that count."""
    recorded, drawn, by_title = curves_by_key(host.curves), set(), {}
    for task in tasks:
        for name, arm in task.arms.items():
            curves = recorded[recorded.index.isin([task.run(arm, seed) for seed in task.seeds])]
            several = curves.index.get_level_values("seed").nunique() > 1
            if several and (task.name, *arm) not in drawn:  # GRPO's runs are the same for every bound
                drawn.add((task.name, *arm))
                by_title[f"{task.name}, {task.label} nats\n{name}"] = (arm, task.bound, curves)
    return by_title


def sections(numbers: pd.DataFrame, host: Host, tasks: Sequence[Task], holm_place: str) -> str:
    """What the page says of one host: a section for each task and bound at which HOLD_8 was run."""
    text, parts, not_run = host_tables(numbers, host, tasks, holm_place), [], []
    for task in tasks:
        if not any(task.run(task.arms[HOLD_8], seed) in numbers.index for seed in task.seeds):
            not_run.append(f"`{task.name}` at {task.label} nats")
            continue
        tables = (text[f"{which} {task.name} {task.label}"] for which in ("results", "rivals"))
        parts += [f"### {host.name}, `{task.name}`, {task.label} nats", *tables]
    parts += [wrapped(text[holm_place]), *not_run_line(not_run)]
    stopped = stopped_runs_table(numbers, curves_by_key(host.curves), host, tasks)
    if stopped:
        parts += [f"### {host.name}, GRPO stopped at the reward of hold with k = 8", *stopped]
    return "\n\n".join(parts)


def tables(of_trl: pd.DataFrame, of_llm: pd.DataFrame) -> dict[str, str]:
    """The tables of trl-hold.md, by the names of their places in it. Given: a row per recorded run, by KEY."""
    return {
        "trl": sections(of_trl, TRL, trl_tasks(of_trl), "holm"),
        "verl": sections(of_llm, VERL, verl_tasks(), "holm verl"),
    }
