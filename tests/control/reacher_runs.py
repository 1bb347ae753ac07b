# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's control runs in seconds on a CPU: flags of the recipe's launcher, tiny networks, Gymnasium's Reacher."""

TASK = "Gym-Reacher-v4"
FLAGS = [
    "--no_cuda", "--no_compile", "--total_timesteps", "101", "--eval_interval", "100", "--save_interval", "100",
    "--num_envs", "2", "--num_eval_envs", "2", "--num_updates", "1", "--batch_size", "32", "--buffer_size", "200",
    "--critic_hidden_dim", "32", "--actor_hidden_dim", "32", "--v_min", "-20", "--v_max", "5",
]  # fmt: skip
# More flags of each experiment: a measurement of time needs two rows of the log.
EXPERIMENTS = {"humanoidbench": [], "distribution": [], "batch": [], "time": ["--total_timesteps", "301"]}
