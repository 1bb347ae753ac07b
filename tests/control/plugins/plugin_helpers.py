"""The environment of these tests, a small task, and entropies by independent arithmetic."""

import copy
import importlib.util
import math

import gymnasium
import numpy as np
import pytest


def require():
    """Skip the calling module where the frameworks are missing."""
    missing = [name for name in ("stable_baselines3", "sbx", "rsl_rl") if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"no {', '.join(missing)} in this environment: make test-control", allow_module_level=True)


C = math.log(math.sqrt(2 * math.pi * math.e))
OBSERVATIONS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)


class Reach(gymnasium.Env):
    """Move a point to the origin in episodes of 20 steps. The action's bounds are not those of SAC's policies."""

    def __init__(self, dim=3):
        self.observation_space = gymnasium.spaces.Box(-10.0, 10.0, (4,))
        self.action_space = gymnasium.spaces.Box(-2.0, 1.0, (dim,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.normal(size=4).astype(np.float32), 0
        return self.state, {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float32))
        self.steps += 1
        self.state = np.clip(self.state + 0.1 * np.resize(action, 4), -10, 10).astype(np.float32)
        return self.state, -float(np.square(self.state).sum()), False, self.steps == 20, {}


class Seen(Reach):
    """Reach whose observation is a dictionary or an image."""

    def __init__(self, kind):
        super().__init__()
        self.kind, box = kind, self.observation_space
        image = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
        self.observation_space = {"dictionary": gymnasium.spaces.Dict({"a": box, "b": box}), "image": image}[kind]

    def seen(self):
        if self.kind == "dictionary":
            return {"a": self.state, "b": -self.state}
        return np.full((36, 36, 3), np.clip(128 + 20 * self.state[0], 0, 255), np.uint8)

    def reset(self, **kwargs):
        _, info = super().reset(**kwargs)
        return self.seen(), info

    def step(self, action):
        _, *rest = super().step(action)
        return self.seen(), *rest


def gaussian_entropies(log_std):
    """Per state and dimension, from ln sigma (B, D), in fp64."""
    return (np.asarray(log_std, np.float64) + C).mean(-1)


def tree_equal(a, b):
    import jax

    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


RSL_RL_TARGET = -0.3
MLP = {"class_name": "MLPModel", "hidden_dims": [32], "activation": "elu"}
RSL_RL = {
    "num_steps_per_env": 8,
    "save_interval": 100,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": {
        **MLP,
        "obs_normalization": True,
        "distribution_cfg": {"class_name": "era.rsl_rl:EraGaussianDistribution", "target_entropy": RSL_RL_TARGET},
    },
    "critic": MLP,
    "algorithm": {"class_name": "PPO", "entropy_coef": 0.0},
}


def rsl_rl_configuration(algorithm=None, **settings):
    """The configuration of rsl_rl's runner, with changes of PPO's settings and of ERA's distribution."""
    made = copy.deepcopy(RSL_RL)
    made["algorithm"].update(algorithm or {})
    made["actor"]["distribution_cfg"].update(settings)
    return made
