# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.trl [--task pairs] [--seed 1] [--steps 16]: GRPO, ERA and TRL's own bonus on a pretrained model."""

import argparse
import json
import sys
from pathlib import Path

from demo.runner.command import at_least, introduce, make_parser, run
from demo.trl.settings import ARMS, SHARE, STEPS_FILE, TRAINED_LAYERS, Settings
from demo.trl.tasks import TASKS


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("demo.trl", __doc__, has_checkout=False)
    parser.set_defaults(out=Path("results/demo-trl"))
    parser.add_argument("--task", default="pairs", choices=TASKS, help="docs/demos.md describes them")
    parser.add_argument("--seed", default=Settings.seed, type=at_least(0), help="of warm-up, prompts and sampling")
    parser.add_argument("--steps", default=Settings.steps, type=at_least(1), help="of each of the three runs")
    return parser.parse_args(arguments)


def warm_up(settings: Settings, out: Path, fresh: bool = False) -> Path:
    """The folder of the model that all runs start from."""
    from demo.runner.training import begin, empty, is_reused, run_json
    from demo.trl import model

    folder = out / f"warmup-{settings.task_name}-seed{settings.seed}"
    if is_reused(folder, "warm-up", fresh):
        return folder
    record = begin("transformers", settings.task_name, "warm-up", settings.seed, None)
    found = model.write_start(empty(folder), settings)
    run_json.finish(folder, record)
    print(f"warm-up: {found['updates']} updates, {found['reward']:.0%} of the answers are right", flush=True)
    return folder


def prepare(settings: Settings, arm: str, start: Path, folder: Path):
    """The arm's Training."""
    from demo.runner.child import ROOT, environment
    from demo.runner.training import Training, begin, csv_rows

    words = start.resolve(), arm, SHARE, settings.task_name, settings.seed, settings.steps
    return Training(
        label=ARMS[arm],
        folder=folder,
        command=[sys.executable, "-m", "demo.trl.training", *map(str, words)],
        environment=environment(ROOT, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false"),  # nothing is downloaded
        rows=lambda: csv_rows(folder / STEPS_FILE),
        length=settings.steps,
        show=lambda rows: "reward {:.2f}, H_resp {:.2f}".format(*rows[["reward", "response_entropy"]].iloc[-1]),
        record=begin("trl", settings.task_name, arm, settings.seed, settings.steps),
        resumes=True,
    )


def demo(arguments: argparse.Namespace) -> None:
    settings = Settings(arguments.task, arguments.seed, arguments.steps)
    from demo.runner.training import train
    from demo.trl import model, report

    introduce(
        f'SmolLM2-135M learns the task "{settings.task_name}" with TRL\'s GRPOTrainer on this CPU, seed '
        f"{settings.seed}: a supervised warm-up until {model.TARGET_REWARD:.0%} of its answers are right, then "
        f"{settings.steps} steps of its upper {TRAINED_LAYERS} of 30 layers as GRPO, with ERA, and with TRL's adaptive "
        "entropy bonus.",
        arguments.out,
    )
    start, folder = warm_up(settings, arguments.out, arguments.fresh), arguments.out / settings.name
    train([prepare(settings, arm, start, folder / arm) for arm in ARMS], arguments.fresh)
    report.end(settings, json.loads((start / model.VALIDATION_FILE).read_text()), folder)


if __name__ == "__main__":
    run(demo, parse())
