# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.trl.training START ARM SHARE TASK SEED STEPS: one run of TRL's trainer, from the model in START.

Writes steps.csv, with a row for every step, into the folder that it is started in, and at the end validation.json. Goes
on from the newest checkpoint there. Ends with its process group when stdin closes.
"""

import csv
import json
import random
import shutil
import sys
from pathlib import Path

import transformers
from datasets import Dataset

from demo.runner.child import end_with_parent
from demo.trl import model
from demo.trl.settings import ANSWERS, PROMPTS, STEPS_FILE, VALIDATION_FILE, Settings, arm_settings, grpo
from demo.trl.tasks import right_answers
from era.trl import EraGRPOConfig, EraGRPOTrainer

# column: TRL's metric
METRICS = {
    "reward": "reward",
    "response_entropy": "era/response_entropy",
    "token_entropy": "entropy",
    "scaled_token_fraction": "era/scaled_token_fraction",
    "distinct_right": "distinct_right",
    "truncated": "completions/clipped_ratio",
    "step_seconds": "step_time",
}


class Rows(transformers.TrainerCallback):
    """Writes steps.csv. Each checkpoint gets a copy as its last file, so that one without it is not complete."""

    def on_log(self, args, state, control, logs, **_):
        if "reward" not in logs:  # the summary at the end
            return
        is_new = not Path(STEPS_FILE).exists()
        with open(STEPS_FILE, "a", newline="") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(["step", *METRICS])
            writer.writerow([state.global_step, *(logs.get(name, "") for name in METRICS.values())])

    def on_save(self, args, state, control, **_):
        shutil.copy(STEPS_FILE, f"checkpoint-{state.global_step}")


def newest_checkpoint() -> str | None:
    """The complete one with most steps in this folder, whose rows are now those of steps.csv."""
    complete = sorted(Path().glob(f"checkpoint-*/{STEPS_FILE}"), key=lambda file: int(file.parent.name.split("-")[1]))
    Path(STEPS_FILE).unlink(missing_ok=True)
    if not complete:
        return None
    shutil.copy(complete[-1], STEPS_FILE)
    return str(complete[-1].parent)


def rewards(settings: Settings):
    """TRL's reward function, which also logs the distinct right answers of a group."""
    task = settings.task

    def reward(prompts, completions, log_metric, **_):
        questions = [task.question_of(prompt) for prompt in prompts]
        groups = right_answers(task, questions, completions, ANSWERS)
        log_metric("distinct_right", sum(map(len, groups)) / len(groups))
        return [float(task.is_right(*one)) for one in zip(questions, completions)]

    return reward


def train(start: Path, settings: Settings, changes: dict, answers: int) -> None:
    """In this folder. changes: what differs from GRPO. answers: to each validation question, see model.measure."""
    rng, task = random.Random(settings.seed), settings.task
    policy, tokenizer = model.load(start)
    model.train_upper_layers(policy)
    trainer = EraGRPOTrainer(
        model=policy,
        args=EraGRPOConfig(output_dir=".", **grpo(settings) | changes),
        reward_funcs=rewards(settings),
        train_dataset=Dataset.from_dict(
            {"prompt": [task.prompt(rng.choice(task.questions)) for _ in range(PROMPTS * settings.steps)]}
        ),
        processing_class=tokenizer,
        callbacks=[Rows()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=newest_checkpoint())
    Path(VALIDATION_FILE).write_text(json.dumps(model.measure(trainer.model, tokenizer, settings, answers)))
    for folder in Path().glob("checkpoint-*"):
        shutil.rmtree(folder)


def main(start: Path, arm: str, share: float, task: str, seed: int, steps: int, answers: int = ANSWERS) -> None:
    measured = json.loads((start / model.VALIDATION_FILE).read_text())
    train(start, Settings(task, seed, steps), arm_settings(arm, share, measured), answers)


if __name__ == "__main__":
    end_with_parent()
    start, arm, share, task, seed, steps = sys.argv[1:]
    main(Path(start), arm, float(share), task, int(seed), int(steps))
