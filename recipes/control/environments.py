"""The paper's tasks, by name: HalfCheetah-v4 (Gymnasium), dog-run (DMC), h1-walk-v0 (HumanoidBench)."""

import importlib.util
import os
import re
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

NEEDS = {
    "Gymnasium": "pip install 'gymnasium[mujoco]' 'mujoco<4'",
    "DMC": "pip install dm_control shimmy 'mujoco<4'",
    "HumanoidBench": "Run: python3 apply.py apply humanoid-bench. It needs mujoco 3.1.6, dm_control 1.0.20 and "
    "gymnasium 0.29.1, so an environment of its own.",
}
ONE_DIMENSION = "ERA per state needs an action of at least two dimensions, the task has one."
EGL = Path(__file__).resolve().parent.parent.parent / "overlays/fasttd3/fast_td3/environments/egl.py"


def suite(task: str) -> str:
    if re.match(r"h1\w*-", task):
        return "HumanoidBench"
    return "Gymnasium" if re.search(r"-v\d+$", task) else "DMC"


def gymnasium_id(task: str) -> str:
    """Registers the task where it is another package's.

    Raises:
        ImportError: without that package.
    """
    if suite(task) == "DMC":
        import shimmy  # noqa: F401  Gymnasium finds dm_control's tasks by its entry point
        from dm_control import suite as _  # noqa: F401

        return f"dm_control/{task}-v0"
    if suite(task) == "HumanoidBench":
        os.environ["MUJOCO_GL"] = "egl"  # it always makes a renderer
        import humanoid_bench  # noqa: F401
    return task


def egl_problem() -> str:
    """A sentence on what rendering lacks; empty if nothing."""
    spec = importlib.util.spec_from_file_location("egl", EGL)
    egl = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(egl)
    return egl.problem()


def check(task: str) -> int:
    """
    Returns:
        The dimensions of an action.

    Raises:
        ImportError: a package is missing.
        ValueError: there is no such task, it has no continuous action vector, or it needs EGL and there is none.
    """
    if suite(task) == "HumanoidBench" and (problem := egl_problem()):
        raise ValueError(f"{problem} HumanoidBench always renders.")
    try:
        env = gymnasium.make(gymnasium_id(task))
    except (gymnasium.error.Error, AttributeError) as error:
        needs = f". {NEEDS[suite(task)]}" if isinstance(error, AttributeError) else ""
        raise ValueError(f"{suite(task)} cannot make it: {error}{needs}") from None
    space = env.action_space
    env.close()
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"a continuous action vector expected, the task has {space}.")
    return space.shape[0]


class ActionRepeat(gymnasium.Wrapper):
    """Each action several times; rewards are added."""

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
    """Episodes end at their limit of steps alone."""

    def step(self, action: np.ndarray):
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, False, truncated, info


def make(task: str, action_repeat: int = 1, terminates: bool = True) -> gymnasium.Env:
    """With observations as one vector and actions in [-1, 1]."""
    env = gymnasium.make(gymnasium_id(task))
    if not terminates:
        env = WithoutTermination(env)
    if action_repeat > 1:
        env = ActionRepeat(env, action_repeat)
    if isinstance(env.observation_space, spaces.Dict):
        env = gymnasium.wrappers.FlattenObservation(env)
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
