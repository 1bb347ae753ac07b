# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The settings of the runs."""

from dataclasses import dataclass

from demo.trl.tasks import TASKS, Task

PROMPTS = 4  # of a step
ANSWERS = 8  # sampled for each prompt, in training and in validation; pass@8 is of them
TRAINED_LAYERS = 10  # of 30
SAVE_STEPS = 50  # a checkpoint, of all weights and the optimizer of those that are trained, has 0.8 GB
STEPS_FILE, VALIDATION_FILE = "steps.csv", "validation.json"

# ERA's bound and the bonus's target are this share of the entropy after the warm-up: high, because few steps must reach
# it. A bound for long runs is lower (the paper's is 0.3).
SHARE = 0.6
ARMS = {"grpo": "GRPO", "era": "ERA", "adaptive": "TRL's bonus"}


@dataclass(frozen=True)
class Settings:
    task_name: str = "pairs"
    seed: int = 1
    steps: int = 16

    @property
    def task(self) -> Task:
        return TASKS[self.task_name]

    @property
    def name(self) -> str:
        return f"{self.task_name}-seed{self.seed}-steps{self.steps}"


def has_bf16() -> bool:
    """Whether this CPU multiplies in bf16. Without, torch does it many times slower than in fp32."""
    import torch

    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def arm_settings(arm: str, share: float, start: dict[str, float]) -> dict:
    """What differs from GRPO, as fields of EraGRPOConfig. start: measures after the warm-up, see model.measure."""
    return {
        "grpo": {},
        "era": {"era_k": 2.0, "era_low": share * start["response_entropy"]},
        "adaptive": {"use_adaptive_entropy": True, "entropy_target": share * start["token_entropy"]},
    }[arm]


def grpo(settings: Settings) -> dict:
    """Of all arms: one update a batch, no KL loss. With era_k=1 ERA only logs H_resp, and TRL trains as without it."""
    return {
        "era_enable": True,
        "era_k": 1.0,
        "per_device_train_batch_size": PROMPTS * ANSWERS,
        "num_generations": ANSWERS,
        "max_completion_length": settings.task.length + 1,
        "max_steps": settings.steps,
        "learning_rate": 3e-5,
        "lr_scheduler_type": "constant",
        "temperature": 1.0,
        "gradient_checkpointing": False,
        "bf16": has_bf16(),  # autocast; the weights are fp32
        "use_cpu": True,
        "report_to": [],
        "logging_steps": 1,
        "disable_tqdm": True,
        "save_steps": SAVE_STEPS,
        "save_total_limit": 1,
        "seed": settings.seed,
    }
