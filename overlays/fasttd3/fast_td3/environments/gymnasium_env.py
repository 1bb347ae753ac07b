# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Gymnasium tasks (`--env_name Gym-Reacher-v4`) behind the interface of HumanoidBenchEnv: a way to try FastTD3 and
FastSAC-ERA without HumanoidBench."""

import os
from typing import Any, Callable, Dict, Tuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import RescaleAction
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

PREFIX = "Gym-"


def maker(task: str, seed: int, render_mode: str = None) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        env = RescaleAction(gym.make(task, render_mode=render_mode), np.float32(-1.0), np.float32(1.0))
        env.reset(seed=seed)
        return env

    return make


class GymnasiumEnv:
    """`num_envs` copies of a Gymnasium task with a bounded continuous action, which is rescaled to [-1, 1].

    Tensors of (num_envs, ...) on `device`. Observations at an episode's end are kept in infos["observations"]["raw"]["obs"],
    as FastTD3's replay buffer wants them.
    """

    asymmetric_obs = False

    def __init__(self, env_name: str, num_envs: int, seed: int, device: torch.device, render_mode: str = None):
        task = env_name[len(PREFIX) :]
        try:
            spec = gym.spec(task)
        except gym.error.Error as error:
            raise SystemExit(f"error: --env_name {env_name}: {error} Nothing was started.") from None
        if spec.max_episode_steps is None:
            raise SystemExit(f"error: --env_name {env_name}: {task} has no limit of steps per episode, which the evaluation needs.")
        self.max_episode_steps = spec.max_episode_steps
        self.num_envs, self.sim_device = num_envs, device
        makers = [maker(task, seed + number, render_mode) for number in range(num_envs)]
        # One process for each environment pays only where a step is slow; with a few cores it costs more than it gives.
        self.envs = (SubprocVecEnv if num_envs > 16 else DummyVecEnv)(makers)
        action_space = self.envs.action_space
        if not isinstance(action_space, gym.spaces.Box) or len(action_space.shape) != 1:
            raise SystemExit(f"error: --env_name {env_name}: a continuous action vector expected, {task} has {action_space}.")
        self.num_obs, self.num_actions = self.envs.observation_space.shape[-1], action_space.shape[-1]

    def tensor(self, array: np.ndarray, dtype: torch.dtype = torch.float) -> torch.Tensor:
        return torch.as_tensor(array, device=self.sim_device).to(dtype)

    def reset(self) -> torch.Tensor:
        return self.tensor(self.envs.reset())

    def render(self) -> np.ndarray:
        return self.envs.render()

    def step(self, actions: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Dict[str, Any]]:
        observations, rewards, dones, infos = self.envs.step(actions.clamp(-1.0, 1.0).cpu().numpy())
        last = observations.copy()
        truncated = np.zeros_like(dones)
        for number in np.flatnonzero(dones):
            last[number] = infos[number]["terminal_observation"]
            truncated[number] = infos[number]["TimeLimit.truncated"]
        raw = {"observations": {"raw": {"obs": self.tensor(last)}}, "time_outs": self.tensor(truncated, torch.bool)}
        return self.tensor(observations), self.tensor(rewards), self.tensor(dones, torch.bool), raw


def make_envs(args: Any, device: torch.device, rank: int = 0) -> Tuple[GymnasiumEnv, GymnasiumEnv, GymnasiumEnv]:
    """For training, evaluation and rendering. Evaluation has environments of its own, so that training does not notice it."""
    if not args.render_interval:
        os.environ["MUJOCO_GL"] = "disable"  # train.py sets EGL, without whose libraries mujoco cannot be imported
    seed = args.seed + 1000 * rank
    train = GymnasiumEnv(args.env_name, args.num_envs, seed, device)
    evaluation = GymnasiumEnv(args.env_name, args.num_eval_envs, seed + 100_000, device)
    return train, evaluation, GymnasiumEnv(args.env_name, 1, seed, device, render_mode="rgb_array")
