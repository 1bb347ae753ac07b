# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The settings of the runs."""

from dataclasses import dataclass

from demo.trl.tasks import TASKS, Task

PROMPTS = 4  # of a step
ANSWERS = 8  # sampled for each prompt, in training and at the end of the demo; pass@8 is of them
TRAINED_LAYERS = 10  # of 30
SAVE_STEPS = 50  # a checkpoint has 0.8 GB: all weights, and the optimizer's state for the trained ones
STEPS_FILE, VALIDATION_FILE = "steps.csv", "validation.json"
VALIDATED = ("reward", "pass_at_8", "distinct_right")  # of the table
ARMS = {"grpo": "GRPO", "era": "ERA", "adaptive": "TRL's bonus"}
# The demo's values of ERA's omega_low and of the bonus's target, in nats: two thirds to three quarters of H_resp and of
# the tokens' mean entropy after the warm-up. They are high because few steps must reach them.
BOUNDS = {
    "pairs": {"grpo": 0.0, "era": 1.5, "adaptive": 0.5},
    "sums": {"grpo": 0.0, "era": 1.0, "adaptive": 0.5},
}


@dataclass(frozen=True)
class Settings:
    task_name: str = "pairs"
    seed: int = 1
    steps: int = 20

    @property
    def task(self) -> Task:
        return TASKS[self.task_name]

    @property
    def name(self) -> str:
        return f"{self.task_name}-seed{self.seed}-steps{self.steps}"


def has_bf16() -> bool:
    """Whether this CPU multiplies in bf16. If not, bf16 is many times slower in torch than fp32."""
    import torch

    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def of_every_trainer(seed: int) -> dict:
    return {
        "output_dir": ".",
        "seed": seed,
        "lr_scheduler_type": "constant_with_warmup",
        "gradient_checkpointing": False,
        "bf16": has_bf16(),  # autocast; the weights are fp32
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def warm_up(settings: Settings) -> dict:
    """Fields of SFTConfig. After so few updates some of a group's answers are right and some are wrong."""
    return of_every_trainer(settings.seed) | {
        "per_device_train_batch_size": PROMPTS * ANSWERS,
        "max_steps": settings.task.warm_up_updates,
        "learning_rate": 2e-4,
        "warmup_steps": 10,
        "save_strategy": "no",
    }


def grpo(settings: Settings, method: str, bound: float) -> dict:
    """Fields of EraGRPOConfig: one update a batch, no KL loss.

    With era_k=1, as in the arms without ERA, ERA only logs H_resp, and TRL trains as without it.
    """
    of_method = {
        "grpo": {"era_k": 1.0},
        "era": {"era_k": 2.0, "era_low": bound},
        "adaptive": {"era_k": 1.0, "use_adaptive_entropy": True, "entropy_target": bound},
    }
    common = {
        "era_enable": True,
        "per_device_train_batch_size": PROMPTS * ANSWERS,
        "num_generations": ANSWERS,
        "max_completion_length": settings.task.length + 1,
        "max_steps": settings.steps,
        "learning_rate": 5e-5,
        "temperature": 1.0,
        "save_steps": SAVE_STEPS,
        "save_total_limit": 1,
    }
    return of_every_trainer(settings.seed) | common | of_method[method]
