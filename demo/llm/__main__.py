# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.llm [--verl 0.4.1] [--task chain] [--seed 2] [--steps 150]: GRPO and ERA in verl's own trainer."""

import argparse
from pathlib import Path

from demo.llm import chain
from demo.llm.config import ARMS, VERSIONS, Settings
from demo.runner.command import at_least, introduce, make_parser, need_files, run, seed_number


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("demo.llm", __doc__)
    parser.add_argument("--verl", default="0.4.1", choices=VERSIONS, help="patched v0.4.1, or 0.9.1 with era.verl")
    parser.add_argument("--task", default="chain", choices=chain.TASKS, help="docs/demos.md describes them")
    parser.add_argument("--seed", default=Settings.seed, type=seed_number, help="of warm-up, data and sampling")
    parser.add_argument("--steps", default=Settings.steps, type=at_least(1), help="of each of the two runs")
    options = parser.parse_args(arguments)
    options.checkout = options.checkout or Path(VERSIONS[options.verl][0])
    options.out = options.out or Path(f"results/demo-verl-{options.verl}")
    return options


def warm_up(settings: Settings, checkout: Path, out: Path, fresh: bool = False) -> Path:
    """The folder of the model that both runs start from."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from demo.llm import warmup
    from demo.runner.training import begin, empty, is_reused, run_json

    folder = out / f"warmup-{settings.task}-seed{settings.seed}"
    host = "transformers"

    def incomplete_because() -> str:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        return "" if model.config.vocab_size == len(tokenizer) else "has another tokenizer's model"

    if is_reused(folder, "warm-up", host, fresh, incomplete_because):
        return folder
    record = begin(host, settings.task, "warm-up", settings.seed, warmup.MAX_UPDATES, checkout)
    accuracy = warmup.write_model(empty(folder), chain.TASKS[settings.task], settings.seed)
    run_json.finish(folder, {**record, "accuracy": accuracy})
    print(f"warm-up: {accuracy:.0%} of the answers are right", flush=True)
    return folder


def demo(arguments: argparse.Namespace) -> None:
    settings = Settings(arguments.task, arguments.seed, arguments.steps, arguments.verl)
    checkout, out = arguments.checkout, arguments.out
    need_files(checkout, "verl/trainer/main_ppo.py", advice=f"make demo VERL={settings.verl}")
    from demo.llm import report, training, warmup

    introduce(
        f'A two-layer language model learns the task "{settings.task}" with the trainer of verl {settings.verl} on '
        f"this CPU, seed {settings.seed}: a warm-up until {warmup.TARGET_ACCURACY:.0%} of its answers are right, then "
        f"{settings.steps} steps as GRPO and as many with ERA (omega_low {settings.omega_low}, k {ARMS['era']:g}).",
        out,
    )
    start, folder = warm_up(settings, checkout, out, arguments.fresh), out / settings.name
    folder.mkdir(exist_ok=True)
    warmup.write_data(folder, settings.task, settings.seed)
    for arm in ARMS:
        training.train_arm(settings, arm, checkout, start, folder / arm, fresh=arguments.fresh)
    report.end(settings, folder)


if __name__ == "__main__":
    run(demo, parse())
