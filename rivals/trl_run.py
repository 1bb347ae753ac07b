# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.trl_run --task pairs --method era --setting 0.6 --seed 1: one run of a TRL trainer on a CPU.

Writes into the folder that it is started in: steps.csv, a row per step; validation.json, measures of the final
weights' answers; run.json. It goes on from a checkpoint that it finds there. The model that it starts from is made by
the method warm-up, in a folder beside this one.
"""

import argparse
from pathlib import Path

from demo.trl import training
from demo.trl.settings import Settings
from recipes import run_json
from rivals import trl

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "trl", "accelerate", "numpy")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rivals.trl_run", description=__doc__)
    parser.add_argument("--task", required=True, choices=trl.TASKS)
    parser.add_argument("--method", required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--steps", type=int, default=trl.STEPS, help="those of the protocol")
    arguments = parser.parse_args()
    known = trl.WARM_UP | trl.TASKS[arguments.task]
    if arguments.setting not in known.get(arguments.method, ()):
        parser.error(f"{arguments.method} {arguments.setting}: the task {arguments.task} has {known}.")
    return arguments


def main() -> None:
    given = parse()
    settings = Settings(given.task, given.seed, given.steps)
    known = {"method": given.method, "setting": given.setting, **run_json.code(PROJECT)}
    is_warm_up = given.method in trl.WARM_UP
    host = "trl-warm-up" if is_warm_up else "trl"  # rivals.records gathers the others alone
    steps = settings.task.warm_up_updates if is_warm_up else given.steps
    record = run_json.begin(host, given.task, given.seed, steps, PACKAGES, **known)
    run_json.start(Path(), record)
    if is_warm_up:
        training.warm_up(settings)
    else:
        start = Path(f"../{given.task}-warm-up-0-seed{given.seed}")
        bound = float(given.setting)
        training.train(start, settings, given.method, bound, trl.ANSWERS, learning_rate=trl.LEARNING_RATE)
    run_json.finish(Path(), record)


if __name__ == "__main__":
    main()
