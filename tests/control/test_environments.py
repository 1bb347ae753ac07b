"""The environments that the overlay adds to FastTD3, on real tasks. They work with Gymnasium 0.29 and 1.x."""

import importlib.util
import runpy
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def overlay(project_root):
    return project_root / "overlays/fasttd3"


@pytest.fixture
def gymnasium_env(overlay, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    monkeypatch.syspath_prepend(overlay / "fast_td3")  # where train.py's neighbours are
    spec = importlib.util.spec_from_file_location("gymnasium_env", overlay / "fast_td3/environments/gymnasium_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(task, seed=1, num_envs=3, render_interval=0):
    return types.SimpleNamespace(
        env_name=f"Gym-{task}", seed=seed, num_envs=num_envs, num_eval_envs=2, render_interval=render_interval
    )


CPU = torch.device("cpu")


def plain(task, seed, actions):
    """The same episode with Gymnasium alone, in float64 and with its own bounds.

    Returns the first observation, and per step the observation, reward, terminated and truncated.
    """
    env = gym.make(task)
    env.reset(seed=int(seed))
    first, _ = env.reset()
    low, high = env.action_space.low, env.action_space.high
    steps = []
    for action in actions:
        steps.append(env.step((low + (action + 1) / 2 * (high - low)).astype(env.action_space.dtype))[:4])
        if steps[-1][2] or steps[-1][3]:
            break
    return first, steps


@pytest.mark.parametrize(
    "task, terminates", [("Reacher-v4", False), ("InvertedPendulum-v4", True), ("Pendulum-v1", False)]
)
def test_episode_is_gymnasiums_with_its_last_observation(gymnasium_env, task, terminates):
    """Reacher and Pendulum end by their limit of steps, InvertedPendulum falls; the latter two have D = 1."""
    envs, _, _ = gymnasium_env.make_envs(arguments(task), CPU)
    generator = np.random.default_rng(0)
    actions = generator.uniform(-1, 1, (envs.max_episode_steps, 3, envs.num_actions)).astype(np.float32)
    expected = [
        plain(task, seed, actions[:, number])
        for number, seed in enumerate(gymnasium_env.seeds(1, 0, gymnasium_env.TRAINING, 3))
    ]
    observations = envs.reset()
    assert observations.dtype == torch.float and observations.shape == (3, envs.num_obs)
    torch.testing.assert_close(
        observations, torch.tensor(np.stack([first for first, _ in expected]), dtype=torch.float)
    )
    ended = set()
    for time, action in enumerate(actions):
        observations, rewards, dones, infos = envs.step(torch.tensor(action))
        for number, (_, steps) in enumerate(expected):
            if number in ended:
                continue
            last, reward, terminated, truncated = steps[time]
            torch.testing.assert_close(
                infos["observations"]["raw"]["obs"][number], torch.tensor(last, dtype=torch.float), rtol=1e-4, atol=1e-4
            )
            assert float(rewards[number]) == pytest.approx(float(reward), rel=1e-4, abs=1e-4)
            assert bool(dones[number]) == (terminated or truncated)
            assert bool(infos["time_outs"][number]) == (truncated and not terminated)
            if dones[number]:
                ended.add(number)
                assert terminated == terminates
                assert not torch.allclose(observations[number], infos["observations"]["raw"]["obs"][number])
            else:
                assert torch.equal(observations[number], infos["observations"]["raw"]["obs"][number])
        if len(ended) == 3:
            break
    assert len(ended) == 3


def test_terminated_at_the_limit_of_steps_is_no_time_out(gymnasium_env):
    """The value after it is 0, so it must not be bootstrapped."""

    class Ends(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(-1, 1, (2,))
        steps = 0

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.steps += 1
            return np.ones(1, np.float32), 0.0, self.steps == 2, False, {}

    gym.register("EndsAtItsLimit-v0", Ends, max_episode_steps=2)
    try:
        envs, _, _ = gymnasium_env.make_envs(arguments("EndsAtItsLimit-v0"), CPU)
    finally:
        del gym.registry["EndsAtItsLimit-v0"]
    envs.reset()
    envs.step(torch.zeros(3, 2))
    observations, _, dones, infos = envs.step(torch.zeros(3, 2))
    assert dones.all() and not infos["time_outs"].any()
    assert (observations == 0).all() and (infos["observations"]["raw"]["obs"] == 1).all()


def test_actions_are_clamped_to_the_bounds(gymnasium_env):
    after = []
    for size in (1.0, 1e6):
        envs, _, _ = gymnasium_env.make_envs(arguments("Pendulum-v1"), CPU)
        envs.reset()
        after.append(envs.step(torch.full((3, 1), size))[0])
    assert torch.equal(*after)


def test_seeds_differ_by_environment_rank_run_and_purpose(gymnasium_env):
    all_seeds = [
        int(value)
        for seed in range(1, 11)
        for rank in range(8)
        for purpose in range(3)
        for value in gymnasium_env.seeds(seed, rank, purpose, 128)
    ]
    assert len(all_seeds) - len(set(all_seeds)) <= 3  # 30,720 draws of 32 bits: 0.1 coincidences expected
    first, second, other_rank, other_seed = (
        gymnasium_env.make_envs(arguments("Reacher-v4", seed), CPU, rank)[0].reset()
        for seed, rank in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert torch.equal(first, second)
    rows = torch.cat([first, other_rank, other_seed])
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_an_evaluation_does_not_reset_the_training(gymnasium_env):
    """Otherwise no episode longer than the evaluations' interval would end, and FastTD3 would draw no new noise."""
    action, after = torch.full((3, 1), 0.5), []
    for evaluates in (False, True):
        training, evaluation, _ = gymnasium_env.make_envs(arguments("Pendulum-v1"), CPU)
        training.reset()
        training.step(action)
        if evaluates:
            evaluation.reset()
            evaluation.step(action[:2])
        after.append(training.step(action)[0])
    assert torch.equal(*after)


def test_processes_and_one_process_give_the_same(gymnasium_env, monkeypatch):
    monkeypatch.setattr(gymnasium_env, "ONE_PROCESS_UP_TO", 1)
    monkeypatch.setitem(sys.modules, "gymnasium_env", gymnasium_env)  # the processes get the maker by pickle
    seeds = gymnasium_env.seeds(1, 0, gymnasium_env.TRAINING, 2)
    envs = gymnasium_env.GymnasiumEnv("Pendulum-v1", seeds, CPU)
    try:
        assert type(envs.envs).__name__ == "SubprocVecEnv"
        many = envs.reset()
    finally:
        envs.envs.close()
    assert torch.equal(many[:1], gymnasium_env.GymnasiumEnv("Pendulum-v1", seeds[:1], CPU).reset())


def test_missing_libraries_are_named_with_their_packages(overlay, monkeypatch):
    def only(*there):
        def load(name):
            if name not in there:
                raise OSError(f"{name}: cannot open shared object file")

        monkeypatch.setattr("ctypes.CDLL", load)
        return runpy.run_path(str(overlay / "fast_td3/environments/egl.py"))["problem"]()

    assert only("libEGL.so.1", "libGL.so.1", "libEGL_mesa.so.0") == ""
    assert only("libEGL.so.1", "libOpenGL.so.0", "libEGL_nvidia.so.0") == ""
    missing = only("libEGL.so.1", "libOpenGL.so.0")
    assert "libEGL_nvidia.so.0 or libEGL_mesa.so.0" in missing and "libegl1" not in missing
