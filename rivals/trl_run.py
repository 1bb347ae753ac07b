# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.trl_run --task pairs --method era --setting 0.3 --seed 1: one run of TRL's trainer on a CPU.

Writes into the folder that it is started in: steps.csv, a row per step; validation.json, of the answers that the final
weights give; run.json. It goes on from a checkpoint that it finds there. The model that a seed's runs start from is
made once, in ../start.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from demo.trl import model, training
from demo.trl.settings import Settings, arm_settings
from recipes import run_json
from rivals import trl

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "trl", "accelerate", "numpy")


def start_model(settings: Settings) -> Path:
    """Two runs at a time may make it: both make the same, and the second is dropped."""
    folder = Path(f"../start/{settings.task_name}-seed{settings.seed}")
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent))
        model.write_start(new, settings)
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
    return folder


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rivals.trl_run", description=__doc__)
    parser.add_argument("--task", required=True, choices=trl.TASKS)
    parser.add_argument("--method", required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--steps", type=int, default=trl.STEPS, help="those of the protocol")
    arguments = parser.parse_args()
    known = trl.TASKS[arguments.task]
    if arguments.setting not in known.get(arguments.method, ()):
        parser.error(f"{arguments.method} {arguments.setting}: the task {arguments.task} has {known}.")
    return arguments


def main() -> None:
    given = parse()
    settings = Settings(given.task, given.seed, given.steps)
    known = {"method": given.method, "setting": given.setting, **run_json.code(PROJECT)}
    record = run_json.begin("trl", given.task, given.seed, given.steps, PACKAGES, **known)
    run_json.start(Path(), record)
    start = start_model(settings)
    after_warm_up = json.loads((start / model.VALIDATION_FILE).read_text())
    changes = arm_settings(given.method, float(given.setting), after_warm_up) | {"learning_rate": trl.LEARNING_RATE}
    training.train(start, settings, changes, trl.ANSWERS)
    run_json.finish(Path(), record)


if __name__ == "__main__":
    main()
