# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The settings of the demo, and the hydra overrides they turn into."""

import re
from dataclasses import dataclass
from pathlib import Path

from demo.llm import chain
from demo.llm.verl_0_9 import CPU_OVERRIDES

PROMPTS = 16
ANSWERS = 8  # sampled per prompt in training
VALIDATION_ANSWERS = 32
OMEGA_HIGH = 3.0
# With k = 1 ERA logs its metrics and scales nothing: plain GRPO.
ARMS = {"grpo": 1.0, "era": 2.0}


# By version of verl: the default folder of the checkout, and the module that is the training process.
VERSIONS = {
    "0.4.1": ("checkouts/verl", "demo.llm.cpu_trainer"),
    "0.9.1": (".venv/verl-sources/verl-0.9.1", "demo.llm.verl_0_9.trainer"),
}


@dataclass(frozen=True)
class Settings:
    task: str = "chain"
    seed: int = 2
    steps: int = 150
    verl: str = "0.4.1"

    @property
    def name(self) -> str:
        return f"{self.task}-seed{self.seed}-steps{self.steps}"

    @property
    def omega_low(self) -> float:
        return chain.TASKS[self.task].omega_low


def overrides(settings: Settings, arm: str, data: Path, model: Path, run: Path) -> list[str]:
    """What differs from verl's ppo_trainer.yaml.

    One mini-batch and one epoch per batch: on-policy, as the paper's equations assume.
    """
    values = {
        "data.train_files": data / "train.parquet",
        "data.val_files": data / "validation.parquet",
        "data.max_prompt_length": chain.PROMPT_LENGTH,
        "data.max_response_length": chain.RESPONSE_LENGTH,
        "data.train_batch_size": PROMPTS,
        "++data.seed": settings.seed,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": PROMPTS * ANSWERS,
        "actor_rollout_ref.actor.optim.lr": chain.TASKS[settings.task].learning_rate,
        "actor_rollout_ref.actor.optim.weight_decay": 0.0,
        "actor_rollout_ref.actor.era.enable": True,
        "actor_rollout_ref.actor.era.low": settings.omega_low,
        "actor_rollout_ref.actor.era.high": OMEGA_HIGH,
        "actor_rollout_ref.actor.era.k": ARMS[arm],
        "actor_rollout_ref.rollout.n": ANSWERS,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": PROMPTS * ANSWERS,
        "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
        "actor_rollout_ref.rollout.val_kwargs.n": VALIDATION_ANSWERS,
        "actor_rollout_ref.rollout.val_kwargs.temperature": 1.0,
        "algorithm.adv_estimator": "grpo",
        "trainer.logger": "[console,file]",
        "trainer.total_training_steps": settings.steps,
        "trainer.total_epochs": settings.steps,
        "trainer.test_freq": (settings.steps + 1) // 2,
        "trainer.rollout_data_dir": run / "rollouts",
        "trainer.validation_data_dir": run / "validation",
        "trainer.default_local_dir": run,
        "trainer.resume_mode": "disable",
        **(_in_0_9(settings, run) if settings.verl == "0.9.1" else _in_0_4(settings)),
    }
    return [f"{key}={for_hydra(value)}" for key, value in values.items()]


def _in_0_4(settings: Settings) -> dict:
    return {
        "+data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        # verl's default is flash attention, which needs CUDA
        "+actor_rollout_ref.model.override_config._attn_implementation": "sdpa",
        "+actor_rollout_ref.seed": settings.seed,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp32",
        "actor_rollout_ref.rollout.name": "hf",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "custom_reward_function.path": Path(chain.__file__).resolve(),
        "trainer.n_gpus_per_node": 1,
        "trainer.balance_batch": False,  # it reorders the batch, and the dumps are read in groups
    }


def _in_0_9(settings: Settings, run: Path) -> dict:
    return {
        **CPU_OVERRIDES,
        # without flash attention, attention over the packed batch is 128 x 128 blocks, all but 128 of them masked
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.rollout.seed": settings.seed,
        "reward.custom_reward_function.path": Path(chain.__file__).resolve(),
        "hydra.run.dir": run,
        "hydra.output_subdir": "null",
    }


def for_hydra(value) -> str:
    """A path as hydra's grammar takes it with any characters, as launch.sh of verl's recipes writes it: backslashes are
    doubled before a quote, the closing one included, and a quote gets one more."""
    if not isinstance(value, Path):
        return str(value)
    text = re.sub(r"(\\+)(?='|$)", r"\1\1", str(value)).replace("'", "\\'")
    return f"'{text}'"
