"""Tables of a run, one row per step and one per validation, from the metrics and dumps that verl writes."""

import json
import math
from pathlib import Path

import pandas

from demo.llm import chain, config

STEPS_FILE = "steps.csv"
VALIDATION_FILE = "validation.csv"

# column: verl's metric
_METRICS = {
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


def by_prompt(dump: Path, size: int, task: str) -> pandas.DataFrame:
    """A row for each prompt of one of verl's dumps: its share of right answers, and how many distinct ones there are.

    A prompt has `size` answers, next to one another. What is right is judged here: with a biased reward the score is
    another thing.
    """
    answers = pandas.DataFrame(map(json.loads, dump.read_text().splitlines()))
    goal = chain.TASKS[task].goal
    right = pandas.Series(
        [
            chain.is_right(chain.start_of(prompt), text, goal)
            for prompt, text in zip(answers["input"], answers["output"])
        ]
    )
    prompts = answers.index // size
    distinct = answers["output"].where(right).groupby(prompts).nunique()
    return pandas.DataFrame({"right": right.groupby(prompts).mean(), "distinct": distinct})


def step_row(run: Path, line: dict, task: str) -> dict | None:
    """The row for one line of metrics.jsonl, where null stands for NaN.

    None for the validation before the training, which is not a step.
    """
    step, metrics = line["step"], line["data"]
    if _METRICS["response_entropy"] not in metrics:
        return None
    answers = by_prompt(run / "rollouts" / f"{step}.jsonl", config.ANSWERS, task)
    return {
        "step": step,
        **{column: math.nan if metrics[name] is None else metrics[name] for column, name in _METRICS.items()},
        "distinct_right": answers["distinct"].mean(),
    }


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


def write(file: Path, table: pandas.DataFrame) -> None:
    table.to_csv(file, index=False, na_rep="nan")


def read(file: Path) -> pandas.DataFrame:
    return pandas.read_csv(file, float_precision="round_trip")
