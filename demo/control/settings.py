# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The settings of the runs, and the flags of FastTD3's train.py they turn into."""

from dataclasses import dataclass

from era.gaussian_defaults import SAC_TARGET

TASK = "HalfCheetah-v5"
DIMENSIONS = 6  # of its action
LOG_INTERVAL = 100  # steps: train.py's
TARGET_ENTROPY = SAC_TARGET  # H0 per action dimension, nats
CURVES_FILE = "curves.csv"

# What differs from train.py's defaults, and three defaults that docs/demos.md mentions: std_min, std_max and H0.
FLAGS = {
    "env_name": f"Gym-{TASK}",
    "num_envs": 8,
    "num_eval_envs": 4,
    "num_updates": 1,  # per step of the environments
    "batch_size": 256,
    "actor_hidden_dim": 128,
    "critic_hidden_dim": 128,
    "actor_learning_rate": 1e-3,
    "actor_learning_rate_end": 1e-3,
    "critic_learning_rate": 1e-3,
    "critic_learning_rate_end": 1e-3,
    "gamma": 0.97,
    "v_min": -50.0,
    "v_max": 150.0,
    "std_min": 0.001,
    "std_max": 0.4,
    "era_target_entropy": TARGET_ENTROPY,  # only FastSAC-ERA reads it
    "render_interval": 0,
    "save_interval": 0,
}
SWITCHES = ("no_cuda", "no_compile", "no_use_wandb")

TD3, NO_DELAY, ERA, LEARNED = ARMS = "fasttd3", "fasttd3-no-delay", "era", "era-learned"
NAMES = {TD3: "FastTD3", NO_DELAY: "FastTD3 no delay", ERA: "ERA", LEARNED: "ERA+delta"}  # as they are printed
_AGENTS = {
    TD3: ["--agent=fasttd3"],
    NO_DELAY: ["--agent=fasttd3", "--policy_frequency=1"],  # as many updates of the policy as FastSAC-ERA
    ERA: ["--agent=fastsac_era"],
    LEARNED: ["--agent=fastsac_era", "--era_learn_delta"],
}


@dataclass(frozen=True)
class Settings:
    """What one run is trained with. steps: those of the environments, a multiple of LOG_INTERVAL."""

    arm: str
    seed: int
    steps: int

    @property
    def name(self) -> str:
        return NAMES[self.arm]

    @property
    def folder(self) -> str:
        return f"{self.arm}-steps{self.steps}-seed{self.seed}"

    @property
    def rows(self) -> int:
        """How many rows train.py writes into its CSV file."""
        return self.steps // LOG_INTERVAL

    def flags(self) -> list[str]:
        """The flags of train.py, all but --csv_path."""
        values = {
            **FLAGS,
            "seed": self.seed,
            "total_timesteps": self.steps + 1,  # the first is step 0, and the last is to be evaluated
            "buffer_size": self.steps + 1,  # per environment: nothing is forgotten
            "eval_interval": LOG_INTERVAL * max(1, self.rows // 12),
        }
        return [
            *_AGENTS[self.arm],
            *(f"--{name}={value}" for name, value in values.items()),
            *(f"--{name}" for name in SWITCHES),
        ]
