# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""An environment for rsl_rl that costs nothing: points that are moved to the origin."""

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict


class PointsEnv(VecEnv):
    """Actions (num_envs, num_actions) move a point in as many dimensions; the reward is minus its squared distance."""

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
