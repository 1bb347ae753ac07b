# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Tables of a run, one row per step and one per validation, from the metrics and dumps that verl writes."""

from pathlib import Path

import pandas

from demo.llm import chain, config
from recipes.curves import VERL as METRICS_FILE
from recipes.curves import read

# column: verl's metric
METRICS = {
    "reward": "critic/score/mean",
    "response_entropy": "era/response_entropy",
    "low_fraction": "era/low_fraction",
    "high_fraction": "era/high_fraction",
    "scaled_token_fraction": "era/scaled_token_fraction",
    "top_entropy": "era/top_entropy",
    "rest_entropy": "era/rest_entropy",
    "token_entropy": "actor/entropy",
    "seconds": "timing_s/step",
}


def metrics(run: Path) -> pandas.DataFrame:
    """A row for each step that verl has logged so far; its null is NaN. The first validation has no row."""
    logged = read(run / METRICS_FILE) if (run / METRICS_FILE).exists() else {}
    steps = pandas.DataFrame({column: logged.get(name, {}) for column, name in METRICS.items()}, dtype=float)
    return steps.rename_axis("step").sort_index().reset_index().dropna(subset="reward", ignore_index=True)


def by_prompt(dump: Path, size: int, task: str) -> pandas.DataFrame:
    """A row for each prompt of one of verl's dumps: its share of right answers, and how many distinct ones there are.

    Each prompt has `size` answers, next to one another. What is right is judged here, because the score of a biased
    reward does not tell.
    """
    answers, goal = pandas.read_json(dump, lines=True, dtype=False), chain.TASKS[task].goal
    right = answers.apply(lambda row: chain.is_right(chain.start_of(row["input"]), row["output"], goal), axis=1)
    prompts = answers.index // size
    distinct = answers["output"].where(right).groupby(prompts).nunique()
    return pandas.DataFrame({"right": right.groupby(prompts).mean(), "distinct": distinct})


def steps(run: Path, task: str) -> pandas.DataFrame:
    rows = metrics(run)
    dumps = [by_prompt(run / "rollouts" / f"{step}.jsonl", config.ANSWERS, task) for step in rows["step"]]
    return rows.assign(distinct_right=[answers["distinct"].mean() for answers in dumps])


def validations(run: Path, task: str) -> pandas.DataFrame:
    rows = []
    for dump in sorted((run / "validation").glob("*.jsonl"), key=lambda file: int(file.stem)):
        answers = by_prompt(dump, config.VALIDATION_ANSWERS, task)
        rows.append(
            {
                "step": int(dump.stem),
                "pass_at_1": answers["right"].mean(),
                f"pass_at_{config.VALIDATION_ANSWERS}": (answers["distinct"] > 0).mean(),
                "distinct_right": answers["distinct"].mean(),
            }
        )
    return pandas.DataFrame(rows)


def incomplete_because(run: Path, steps: int) -> str:
    """What a finished run lacks of verl's dumps, whose lines are the answers; "" if nothing."""
    validations = list((run / "validation").glob("*.jsonl"))
    wanted = {run / "rollouts" / f"{step}.jsonl": config.PROMPTS * config.ANSWERS for step in range(1, steps + 1)}
    wanted |= dict.fromkeys(validations, len(chain.VALIDATION_STARTS) * config.VALIDATION_ANSWERS)
    if not validations:
        return "has no validation"
    for dump, answers in wanted.items():
        count = dump.read_text().count("\n") if dump.exists() else 0
        if count != answers:
            return f"has {count} of {answers} answers in {dump.relative_to(run)}"
    return ""
