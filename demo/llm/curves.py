"""Tables of a run, one row per step and one per validation, from the metrics and dumps that verl writes."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

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


def groups(dump: Path, size: int, task: str) -> Iterator[list[dict]]:
    """The answers in one of verl's dumps, prompt by prompt: each has `size` answers, next to one another.

    `right` is judged here: with a biased reward the score is another thing.
    """
    goal = chain.TASKS[task].goal
    answers = [json.loads(line) for line in dump.read_text().splitlines()]
    for answer in answers:
        answer["right"] = chain.is_right(chain.start_of(answer["input"]), answer["output"], goal)
    return (answers[i : i + size] for i in range(0, len(answers), size))


def distinct_right(group: list[dict]) -> int:
    return len({answer["output"] for answer in group if answer["right"]})


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def step_row(run: Path, line: dict, task: str) -> dict | None:
    """The row for one line of metrics.jsonl, where null stands for NaN.

    None for the validation before the training, which is not a step.
    """
    step, metrics = line["step"], line["data"]
    if _METRICS["response_entropy"] not in metrics:
        return None
    dump = run / "rollouts" / f"{step}.jsonl"
    return {
        "step": step,
        **{column: math.nan if metrics[name] is None else metrics[name] for column, name in _METRICS.items()},
        "distinct_right": mean(map(distinct_right, groups(dump, config.ANSWERS, task))),
    }


def validation_rows(run: Path, task: str) -> list[dict]:
    dumps = sorted((run / "validation").glob("*.jsonl"), key=lambda file: int(file.stem))
    return [validation_row(int(dump.stem), list(groups(dump, config.VALIDATION_ANSWERS, task))) for dump in dumps]


def validation_row(step: int, prompts: list[list[dict]]) -> dict:
    return {
        "step": step,
        "pass_at_1": mean(answer["right"] for group in prompts for answer in group),
        f"pass_at_{config.VALIDATION_ANSWERS}": mean(float(distinct_right(group) > 0) for group in prompts),
        "distinct_right": mean(map(distinct_right, prompts)),
    }


def read_csv(file: Path) -> list[dict]:
    with file.open(newline="") as handle:
        return [
            {name: int(value) if name == "step" else float(value) for name, value in row.items()}
            for row in csv.DictReader(handle)
        ]
