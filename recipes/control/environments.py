# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's tasks, by name: HalfCheetah-v4 (Gymnasium), dog-run (DMC), h1-walk-v0 (HumanoidBench)."""

import os
import re

import gymnasium
import numpy as np
from gymnasium import spaces


def gymnasium_id(task: str) -> str:
    """The task's id in Gymnasium. Registers the task if another package defines it."""
    if re.match(r"h1\w*-", task):
        os.environ["MUJOCO_GL"] = "egl"  # it always makes a renderer
        import humanoid_bench  # noqa: F401
    elif not re.search(r"-v\d+$", task):
        import shimmy  # noqa: F401  Gymnasium finds dm_control's tasks by its entry point
        from dm_control import suite  # noqa: F401

        return f"dm_control/{task}-v0"
    return task


class ActionRepeat(gymnasium.Wrapper):
    """An environment that takes each action several times and adds the rewards."""

    def __init__(self, env: gymnasium.Env, times: int):
        super().__init__(env)
        self.times = times

    def step(self, action: np.ndarray):
        total = 0.0
        for _ in range(self.times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class WithoutTermination(gymnasium.Wrapper):
    """An environment whose episodes end at their limit of steps alone."""

    def step(self, action: np.ndarray):
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, False, truncated, info


def make(task: str, action_repeat: int = 1, terminates: bool = True) -> gymnasium.Env:
    """Make the task's environment, with observations as one vector and actions in [-1, 1].

    Raises:
        ImportError: a package is missing.
        ValueError: there is no such task, or it has no continuous action vector.
    """
    try:
        env = gymnasium.make(gymnasium_id(task))
    except (gymnasium.error.Error, AttributeError) as error:  # the latter is dm_control's
        raise ValueError(f"the task {task} cannot be made: {error}") from None
    if not isinstance(env.action_space, spaces.Box) or len(env.action_space.shape) != 1:
        raise ValueError(f"{task}: a continuous action vector expected, the task has {env.action_space}.")
    if not terminates:
        env = WithoutTermination(env)
    if action_repeat > 1:
        env = ActionRepeat(env, action_repeat)
    if isinstance(env.observation_space, spaces.Dict):
        env = gymnasium.wrappers.FlattenObservation(env)
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
