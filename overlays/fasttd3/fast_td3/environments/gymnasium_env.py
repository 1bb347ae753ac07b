# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Gymnasium tasks (`--env_name Gym-Reacher-v4`) behind the interface of HumanoidBenchEnv.

They let one try FastTD3 and FastSAC-ERA without HumanoidBench. Works with Gymnasium 0.29, which
HumanoidBench needs, and 1.x.
"""

import os
from typing import Any, Callable, Dict, Tuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import RescaleAction
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

PREFIX = "Gym-"
TRAINING, EVALUATION, RENDERING = range(3)
# A process per environment pays off only where a step is slow; on a few cores it costs more.
ONE_PROCESS_UP_TO = 16


def maker(task: str, seed: int, render_mode: str = None) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        # Not every task takes the keyword.
        mode = {"render_mode": render_mode} if render_mode else {}
        env = RescaleAction(gym.make(task, **mode), np.float32(-1.0), np.float32(1.0))
        env.reset(seed=seed)
        return env

    return make


def seeds(seed: int, rank: int, purpose: int, num_envs: int) -> np.ndarray:
    """A seed for each environment, the same in every run.

    With consecutive numbers, runs of neighbouring seeds would share environments.
    """
    return np.random.SeedSequence([seed, rank, purpose]).generate_state(num_envs)


class GymnasiumEnv:
    """Copies of a Gymnasium task with a bounded continuous action, which is rescaled to [-1, 1].

    Tensors are (num_envs, ...) on `device`. infos["observations"]["raw"]["obs"] has the last
    observations of episodes that end, as FastTD3's replay buffer needs them, and infos["time_outs"]
    says which of these ended only by their limit of steps.
    """

    asymmetric_obs = False

    def __init__(
        self, task: str, env_seeds: np.ndarray, device: torch.device, render_mode: str = None
    ):
        self.max_episode_steps = gym.spec(task).max_episode_steps
        self.num_envs, self.sim_device = len(env_seeds), device
        makers = [maker(task, int(seed), render_mode) for seed in env_seeds]
        self.envs = (SubprocVecEnv if self.num_envs > ONE_PROCESS_UP_TO else DummyVecEnv)(makers)
        self.num_obs = self.envs.observation_space.shape[0]
        self.num_actions = self.envs.action_space.shape[0]

    def tensor(self, array: np.ndarray, dtype: torch.dtype = torch.float) -> torch.Tensor:
        return torch.as_tensor(array, device=self.sim_device).to(dtype)

    def reset(self) -> torch.Tensor:
        return self.tensor(self.envs.reset())

    def render(self) -> np.ndarray:
        return self.envs.render()

    def step(
        self, actions: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Dict[str, Any]]:
        observations, rewards, dones, infos = self.envs.step(actions.clamp(-1.0, 1.0).cpu().numpy())
        last = observations.copy()
        truncated = np.zeros_like(dones)
        for number in np.flatnonzero(dones):
            last[number] = infos[number]["terminal_observation"]
            truncated[number] = infos[number]["TimeLimit.truncated"]
        raw = {
            "observations": {"raw": {"obs": self.tensor(last)}},
            "time_outs": self.tensor(truncated, torch.bool),
        }
        return self.tensor(observations), self.tensor(rewards), self.tensor(dones, torch.bool), raw


def make_envs(
    args: Any, device: torch.device, rank: int = 0
) -> Tuple[GymnasiumEnv, GymnasiumEnv, GymnasiumEnv]:
    """For training, evaluation and rendering.

    Evaluation has environments of its own, so that it does not affect training.
    """
    task, rendering = args.env_name[len(PREFIX) :], args.render_interval > 0
    if not rendering:  # train.py sets EGL, without whose libraries mujoco cannot be imported
        os.environ["MUJOCO_GL"] = "disable"

    def envs(purpose: int, num_envs: int, render_mode: str = None) -> GymnasiumEnv:
        return GymnasiumEnv(task, seeds(args.seed, rank, purpose, num_envs), device, render_mode)

    render_env = envs(RENDERING, 1, "rgb_array" if rendering else None)
    if rendering:
        render_env.reset()
        render_env.render()  # fails now if rendering lacks something
    return envs(TRAINING, args.num_envs), envs(EVALUATION, args.num_eval_envs), render_env
