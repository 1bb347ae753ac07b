"""The environments that the overlay adds to FastTD3, on real tasks. They work with Gymnasium 0.29 and 1.x."""

import importlib.util
import re
import runpy
import subprocess
import sys
import types
from contextlib import contextmanager

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
def test_an_episode_is_that_of_gymnasium_with_its_last_observation(gymnasium_env, task, terminates):
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

    with registered("EndsAtItsLimit-v0", Ends, max_episode_steps=2):
        envs, _, _ = gymnasium_env.make_envs(arguments("EndsAtItsLimit-v0"), CPU)
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


def test_seeds_differ_between_environments_ranks_runs_and_purposes_and_repeat(gymnasium_env):
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


class Spaces(gym.Env):
    """With any spaces."""

    def __init__(self, observation_space, action_space, render_mode=None):
        self.observation_space, self.action_space = observation_space, action_space


VECTOR = gym.spaces.Box(-1, 1, (3,))


HALF_BOUNDED = gym.spaces.Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32))


@contextmanager
def registered(name, env, **settings):
    gym.register(name, env, **settings)
    try:
        yield
    finally:
        del gym.registry[name]


@pytest.mark.parametrize(
    "observations, actions, said",
    [
        (gym.spaces.Dict(state=VECTOR), VECTOR, "an observation vector expected, the task has Dict("),
        (gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), VECTOR, "an observation vector expected"),
        (VECTOR, HALF_BOUNDED, "with finite bounds expected"),
        (VECTOR, gym.spaces.Discrete(4), "a continuous action vector with finite bounds expected, the task has Disc"),
        (VECTOR, gym.spaces.Box(-1, 1, (2, 2)), "a continuous action vector"),
    ],
)
def test_unsuitable_spaces_are_refused(gymnasium_env, observations, actions, said):
    spaces = {"observation_space": observations, "action_space": actions}
    with registered("Unfit-v0", Spaces, max_episode_steps=5, kwargs=spaces):
        with pytest.raises(SystemExit, match=f"--env_name Gym-Unfit-v0: .*{re.escape(said)}.*Nothing was started.$"):
            gymnasium_env.make_envs(arguments("Unfit-v0"), CPU)


@pytest.mark.parametrize(
    "task, said", [("NoSuchTask-v0", "NoSuchTask"), ("", ""), ("Reacher-v99", "v99"), ("CartPole-v1", "Discrete")]
)
def test_names_of_other_tasks_are_refused(gymnasium_env, task, said):
    with pytest.raises(SystemExit, match="Nothing was started") as refused:
        gymnasium_env.make_envs(arguments(task), CPU)
    assert said in str(refused.value)


def test_a_task_without_a_limit_of_steps_is_refused(gymnasium_env):
    spaces = {"observation_space": VECTOR, "action_space": VECTOR}
    with registered("Endless-v0", Spaces, kwargs=spaces):
        with pytest.raises(SystemExit, match="no limit of steps per episode"):
            gymnasium_env.make_envs(arguments("Endless-v0"), CPU)


def without_egl(name, *args, **kwargs):
    raise OSError(f"{name}: cannot open shared object file")


def test_rendering_without_egl_says_what_is_missing(gymnasium_env, monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", without_egl)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(SystemExit, match="libEGL.so.1 .package libegl1.*--render_interval 0"):
        gymnasium_env.make_envs(arguments("Reacher-v4", render_interval=100), CPU)


@pytest.mark.parametrize(
    "there, missing",
    [
        (("libEGL.so.1", "libGL.so.1", "libEGL_mesa.so.0"), []),
        (("libEGL.so.1", "libOpenGL.so.0", "libEGL_nvidia.so.0"), []),
        (("libEGL.so.1", "libOpenGL.so.0"), ["libEGL_nvidia.so.0 or libEGL_mesa.so.0"]),
        ((), ["libEGL.so.1 (package libegl1)", "libOpenGL.so.0 or libGL.so.1 (package libgl1)", "libegl-mesa0"]),
    ],
)
def test_missing_libraries_are_named_with_their_packages(overlay, monkeypatch, there, missing):
    monkeypatch.setattr("ctypes.CDLL", lambda name: name if name in there else without_egl(name))
    monkeypatch.setattr(sys, "platform", "linux")
    found = runpy.run_path(str(overlay / "fast_td3/environments/egl.py"))["missing_libraries"]()
    assert len(found) == len(missing) and all(expected in line for expected, line in zip(missing, found))


def test_playground_that_is_not_there_is_named(overlay):
    if importlib.util.find_spec("mujoco_playground"):
        pytest.skip("mujoco_playground is installed here")
    if runpy.run_path(str(overlay / "fast_td3/environments/egl.py"))["missing_libraries"]():
        pytest.skip("the EGL libraries are missing here, which is said before")
    result = subprocess.run(
        [sys.executable, "-c", "import environments.playground_from_index"],
        cwd=overlay / "fast_td3",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and result.stderr.startswith(
        "error: mujoco_playground, for tasks of any other name, cannot be imported"
    )
    assert "No module named 'mujoco_playground'" in result.stderr and "Traceback" not in result.stderr


PLAYGROUND = """
import torch
from environments.playground_from_index import prepare, registry, wrapper_torch

for name, said in (("PointMas", "perhaps PointMass"), ("nothing", "no such task of mujoco_playground")):
    try:
        prepare(name, 0)
    except SystemExit as refused:
        assert said in str(refused), refused
    else:
        raise AssertionError(name)
prepare("PointMass", 0)
envs = wrapper_torch.RSLRLBraxWrapper(registry.load("PointMass"), 2, 1, 3, 1)
first = envs.reset().clone()
for step in range(1, 8):
    observations, _, dones, infos = envs.step(torch.full((2, envs.num_actions), 0.9))
    raw = infos["observations"]["raw"]["obs"]
    assert raw.shape == observations.shape == (2, envs.num_obs)
    ends = step % 3 == 0
    assert (dones == ends).all() and (infos["time_outs"] == ends).all()
    assert torch.equal(observations, first) == ends
    assert torch.equal(raw, observations) == (not ends), (step, raw, observations)
print("agrees")
"""


def test_playground_tells_the_observation_before_a_reset(overlay):
    pytest.importorskip(
        "mujoco_playground",
        reason="mujoco_playground is not installed here; requirements/fasttd3-playground.txt has it",
    )
    result = subprocess.run(
        [sys.executable, "-c", PLAYGROUND], cwd=overlay / "fast_td3", capture_output=True, text=True
    )
    assert result.returncode == 0 and result.stdout.endswith("agrees\n"), result.stderr
