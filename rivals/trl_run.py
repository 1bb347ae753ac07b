# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.trl_run --task pairs --method era --setting 0.6 --seed 1: one run of a TRL trainer on a CPU.

Writes into the folder that it is started in: steps.csv, a row per step; validation.json, measures of the final
weights' answers; run.json. It goes on from a checkpoint that it finds there. The model that it starts from is in a
folder beside this one, which `--method warm-up --setting 0` with the same task and seed writes.
"""

import argparse
import dataclasses
from collections import deque
from pathlib import Path

import pandas as pd
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from demo.trl import training
from demo.trl.settings import STEPS_FILE, Settings
from era.trl import EraGRPOTrainer, EraMixin
from recipes import PROJECT, run_json
from rivals import equal, trl

PACKAGES = ("torch", "transformers", "trl", "accelerate", "numpy")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rivals.trl_run", description=__doc__)
    parser.add_argument("--task", required=True, choices=trl.STEPS)
    parser.add_argument("--method", required=True)
    parser.add_argument("--setting", required=True)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--steps", type=int, help="by default those of the protocol; a warm-up has its own")
    arguments = parser.parse_args()
    known = trl.WARM_UP | trl.methods_of(arguments.task)
    if arguments.setting not in known.get(arguments.method, ()):
        of_task = "; ".join(f"{method} {' or '.join(values)}" for method, values in known.items())
        parser.error(
            f"--method {arguments.method} --setting {arguments.setting}: the task {arguments.task} has {of_task}."
        )
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: a number from 1 on is expected.")
    start = start_of(arguments)
    if arguments.method not in trl.WARM_UP and not run_json.read(start).get("finished"):
        parser.error(
            f"{start.resolve()} has no finished model to start from. Write it first, in that folder, with --task "
            f"{arguments.task} --method warm-up --setting 0 --seed {arguments.seed}; or let make rivals-trl do all."
        )
    return arguments


def start_of(arguments: argparse.Namespace) -> Path:
    """The folder of the model that a run starts from."""
    return Path(f"../{arguments.task}-warm-up-0-seed{arguments.seed}")


def trainer_of(arm: trl.Arm, stop: float | None = None) -> type[EraGRPOTrainer]:
    """ERA's trainer, with what the arm changes beside its configuration. stop: the reward at which it stops."""

    class WeightedGRPOTrainer(GRPOTrainer):
        """Below ERA, which therefore decides by the weighted advantages; it acts where they are positive."""

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            advantages = output["advantages"]
            weighted = torch.where(advantages < 0, arm.negative_weight * advantages, advantages)
            return {**output, "advantages": weighted}

    class Weighted(EraMixin, WeightedGRPOTrainer):
        pass

    class Stopped(EraGRPOTrainer):
        def __init__(self, *args, callbacks=(), **fields):
            super().__init__(*args, callbacks=[*callbacks, Stop(stop)], **fields)

    if stop is not None:
        return Stopped
    return EraGRPOTrainer if arm.negative_weight == 1 else Weighted


class Stop(TrainerCallback):
    """Stops a training at the reward, with the weights of equal.middle_update."""

    def __init__(self, reward: float):
        self.reward = reward
        self.weights: deque[list[torch.Tensor]] = deque(maxlen=equal.WINDOW // 2 + 1)  # of the last updates

    def on_step_end(self, args, state, control, model, **_):
        self.weights.append([parameter.detach().clone() for parameter in trained(model)])

    def on_log(self, args, state, control, model, **_):
        rewards = [row["reward"] for row in state.log_history if "reward" in row]
        if not control.should_training_stop and equal.middle_update(rewards, self.reward):
            for parameter, earlier in zip(trained(model), self.weights[0]):
                parameter.data.copy_(earlier)
            control.should_training_stop = True


def trained(model) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def main() -> None:
    arguments = parse()
    is_warm_up = arguments.method in trl.WARM_UP
    arm = None if is_warm_up else trl.arm(arguments.task, arguments.method, arguments.setting)
    settings = Settings(arguments.task.partition("-")[0], arguments.seed, arguments.steps or (arm.steps if arm else 0))
    known = {"method": arguments.method, "setting": arguments.setting, **run_json.code(PROJECT)}
    known |= {"arm": dataclasses.asdict(arm)} if arm else {}
    host = "trl-warm-up" if is_warm_up else "trl"  # rivals.records gathers the others alone
    steps = settings.task.warm_up_updates if is_warm_up else settings.steps
    record = run_json.begin(host, arguments.task, arguments.seed, steps, PACKAGES, **known)
    run_json.start(Path(), record)
    if is_warm_up:
        training.warm_up(settings)
    else:
        changes = {"learning_rate": trl.LEARNING_RATE, **arm.changes}
        held = (arguments.task, "era-hold", arm.stopped_at, arguments.seed)
        stop = equal.reward_at_end("trl", held) if arm.stopped_at else None
        training.train(
            start_of(arguments), settings, arm.base, arm.bound, trl.ANSWERS, trainer_of(arm, stop), **changes
        )
        if stop is not None:
            rows = pd.read_csv(STEPS_FILE)
            rows = rows.head(equal.middle_update(rows.reward, stop) or len(rows))
            rows.to_csv(STEPS_FILE, index=False)
            record["total_steps"] = len(rows)
    run_json.finish(Path(), record)


if __name__ == "__main__":
    main()
