# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.trl [--task pairs] [--seed 1] [--steps 20]: GRPO, ERA and TRL's own bonus on a pretrained model."""

import argparse
import json
import sys
from pathlib import Path

from demo.runner.command import at_least, introduce, make_parser, run, seed_number
from demo.trl.settings import ARMS, BOUNDS, STEPS_FILE, TRAINED_LAYERS, VALIDATED, VALIDATION_FILE, Settings


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("demo.trl", __doc__, has_checkout=False)
    parser.set_defaults(out=Path("results/demo-trl"))
    parser.add_argument("--task", default="pairs", choices=BOUNDS, help="docs/demos.md describes them")
    parser.add_argument("--seed", default=Settings.seed, type=seed_number, help="of warm-up, prompts and sampling")
    parser.add_argument("--steps", default=Settings.steps, type=at_least(1), help="of each of the three runs")
    return parser.parse_args(arguments)


def prepare(settings: Settings, label: str, folder: Path, length: int, show, *words, resumes: bool = False):
    """The Training whose process is `python -m demo.trl.training WORDS`. resumes: it is an arm, not the warm-up."""
    from demo.runner.training import Training, begin, csv_rows, environment
    from recipes import PROJECT

    return Training(
        label=label,
        folder=folder,
        command=[sys.executable, "-m", "demo.trl.training", *map(str, words)],
        # Nothing is downloaded.
        environment=environment(PROJECT, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false"),
        rows=lambda: csv_rows(folder / STEPS_FILE),
        length=length,
        show=show,
        record=begin("trl", settings.task_name, label, settings.seed, length),
        resumes=resumes,
        incomplete_because=lambda: no_validation(folder / VALIDATION_FILE) if resumes else no_weights(folder),
    )


def no_validation(file: Path) -> str:
    """What an arm's file lacks of what the report shows; "" if nothing."""
    measured = json.loads(file.read_text())
    return "" if all(isinstance(measured[name], float) for name in VALIDATED) else f"has no numbers in {file.name}"


def no_weights(folder: Path) -> str:
    """Why the warm-up's folder does not have all of its weights; "" if it does. One cut short raises an error."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt"):
        return ""


def demo(arguments: argparse.Namespace) -> None:
    settings = Settings(arguments.task, arguments.seed, arguments.steps)
    from demo.runner.training import train
    from demo.trl import report

    updates = settings.task.warm_up_updates
    introduce(
        f'SmolLM2-135M learns the task "{settings.task_name}" with TRL on this CPU, seed {settings.seed}: '
        f"{updates} supervised updates as a warm-up, then {settings.steps} steps of GRPO, of GRPO with ERA, and of "
        f"GRPO with TRL's adaptive entropy bonus, each of the upper {TRAINED_LAYERS} of 30 layers.",
        arguments.out,
    )
    start, folder = arguments.out / f"warm-up-{settings.task_name}-seed{settings.seed}", arguments.out / settings.name
    words = settings.task_name, settings.seed

    def loss(rows):
        return f"loss {rows['loss'].iloc[-1]:.2f}"

    def measures(rows):
        newest = rows[["step", "reward", "response_entropy"]].iloc[-1]
        return "step {:.0f}: reward {:.2f}, H_resp {:.2f}".format(*newest)

    train([prepare(settings, "warm-up", start, updates, loss, "warm-up", 0, *words, 0)], arguments.fresh)
    runs = [
        prepare(
            *(settings, label, folder / arm, settings.steps, measures),
            *(arm, BOUNDS[settings.task_name][arm], *words, settings.steps, start.resolve()),
            resumes=True,
        )
        for arm, label in ARMS.items()
    ]
    train(runs, arguments.fresh)
    report.end(settings, folder)


if __name__ == "__main__":
    run(demo, parse())
