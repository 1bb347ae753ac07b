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
"""Gymnasium tasks (`--env_name Gym-Reacher-v4`) behind the interface of HumanoidBenchEnv.

They let one try FastTD3 and FastSAC-ERA without HumanoidBench. Works with Gymnasium 0.29, which
HumanoidBench needs, and 1.x.
"""

import os
from typing import Any, Callable, Dict, Tuple

import gymnasium as gym
import numpy as np
import torch
from environments import egl
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


def check_task(task: str, rendering: bool) -> None:
    """Raises SystemExit, with the reason, if FastTD3 cannot train on the task."""

    def refuse(reason: str) -> None:
        raise SystemExit(f"error: --env_name {PREFIX}{task}: {reason} Nothing was started.")

    try:
        spec = gym.spec(task)
    except gym.error.Error as error:
        refuse(f"{error}")
    if rendering and "mujoco" in str(spec.entry_point):
        no_egl = egl.problem()
        if no_egl:
            refuse(f"{no_egl} --render_interval 0 trains without rendering.")
    if spec.max_episode_steps is None:
        refuse("the task has no limit of steps per episode, which the evaluation needs.")
    try:
        env = gym.make(task)
    except (gym.error.Error, ImportError) as error:
        refuse(f"it cannot be made here: {error}")
    actions, observations = env.action_space, env.observation_space
    env.close()
    if not is_vector(actions) or not actions.is_bounded():
        refuse(f"a continuous action vector with finite bounds expected, the task has {actions}.")
    if not is_vector(observations):
        refuse(f"an observation vector expected, the task has {observations}.")


def is_vector(space: gym.Space) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1


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
    check_task(task, rendering)

    def envs(purpose: int, num_envs: int, render_mode: str = None) -> GymnasiumEnv:
        return GymnasiumEnv(task, seeds(args.seed, rank, purpose, num_envs), device, render_mode)

    render_env = envs(RENDERING, 1, "rgb_array" if rendering else None)
    if rendering:
        render_env.reset()
        render_env.render()  # fails now if rendering lacks something
    return envs(TRAINING, args.num_envs), envs(EVALUATION, args.num_eval_envs), render_env
