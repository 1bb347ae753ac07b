# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""PPO with ERA in rsl_rl, on points that are to be moved to the origin.

pip install '.[rsl-rl]'
python3 -m examples.rsl_rl_ppo --iterations 100
"""

import argparse

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict


class PointsEnv(VecEnv):
    """In its place your VecEnv: Isaac Lab's, mjlab's, ... Actions move points; the reward is minus squared distance."""

    num_envs = 64
    max_episode_length = 100
    cfg = {}

    def __init__(self, num_actions=12, device="cpu"):
        self.num_actions, self.device = num_actions, device
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=device)
        self.points = torch.randn(self.num_envs, num_actions, device=device)

    def get_observations(self):
        return TensorDict({"policy": self.points}, batch_size=[self.num_envs])

    def step(self, actions):
        dones = self.episode_length_buf >= self.max_episode_length
        moved = self.points + 0.1 * actions
        self.points = torch.where(dones[:, None], torch.randn_like(moved), moved)
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf + 1)
        return self.get_observations(), -self.points.square().sum(-1), dones, {"time_outs": dones}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--target-entropy", type=float, default=-0.3, help="nats per action dimension")
    parser.add_argument("--log-dir", default="logs/rsl_rl_era")
    options = parser.parse_args()

    # rsl_rl ignores keys that it does not know, so look for EraHead in the actor that it prints.
    train_cfg = {
        "num_steps_per_env": 24,
        "save_interval": 50,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {
            "class_name": "MLPModel",
            "distribution_cfg": {
                "class_name": "era.rsl_rl:EraGaussianDistribution",
                "target_entropy": options.target_entropy,
            },
        },
        "critic": {"class_name": "MLPModel"},
        "algorithm": {"class_name": "PPO", "entropy_coef": 0.0},
    }
    env = PointsEnv()
    runner = OnPolicyRunner(env, train_cfg, log_dir=options.log_dir, device=env.device)
    runner.learn(options.iterations)

    actor = runner.alg.actor
    actor(env.get_observations(), stochastic_output=True)
    entropy = actor.output_entropy / env.num_actions
    print(f"entropy per dimension over {env.num_envs} states: from {entropy.min():.4f} to {entropy.max():.4f} nats")


if __name__ == "__main__":
    main()
