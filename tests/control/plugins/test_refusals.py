# ruff: noqa: E402
"""What would be silent with ERA in stable-baselines3, sbx and rsl_rl is refused, or said once."""

import warnings

import plugin_helpers

plugin_helpers.require()

import gymnasium
import pytest
import sbx
import stable_baselines3
import torch
from plugin_helpers import Reach
from rsl_rl.runners import OnPolicyRunner
from test_rsl_rl import configuration

from era.sbx import EraMetrics as SbxMetrics
from era.sbx import EraSAC, era_actor
from era.stable_baselines3 import EraActorCriticPolicy, EraMetrics, EraSACPolicy
from tools.bench.points import PointsEnv

pytestmark = pytest.mark.usefixtures("one_thread")


def make(library, env=None, settings=None, **algorithm):
    """A model of ERA in this library, with these settings of ERA and of the algorithm."""
    env, settings = env or Reach(), settings or {}
    if library == "rsl_rl":
        torch.manual_seed(0)
        points = PointsEnv(env.action_space.shape[0])
        return OnPolicyRunner(points, configuration(algorithm, **settings), log_dir=None, device="cpu")
    if library in ("sbx SAC", "EraSAC"):
        algorithm = {"learning_starts": 10, "policy_kwargs": era_actor(**settings), **algorithm}
        return (EraSAC if library == "EraSAC" else sbx.SAC)("MlpPolicy", env, **algorithm)
    policy = EraSACPolicy if library == "SAC" else EraActorCriticPolicy
    algorithm = {"policy_kwargs": dict(settings), "device": "cpu", **algorithm}
    return getattr(stable_baselines3, library)(policy, env, **algorithm)


class Box(Reach):
    def __init__(self, action_space):
        super().__init__()
        self.action_space = action_space


LIBRARIES = ("PPO", "A2C", "SAC", "sbx SAC", "EraSAC", "rsl_rl")
OF_ALL = (
    ({"settings": {"target_entropy": 1.5}}, "1.5 per action dimension, is not feasible.*-6.5811 and 1.4189"),
    ({"settings": {"log_std_min": 1.0}}, "log_std_min = 1.0"),
    ({"env": Reach(1)}, "at least two dimensions.*batch-level"),
)
SDE = ({"use_sde": True}, "use_sde=False")
ONE_LIBRARY = (
    ("PPO", {"env": Box(gymnasium.spaces.MultiDiscrete([3, 3]))}, "MultiDiscrete"),
    ("PPO", {"policy_kwargs": {"log_std_init": -2}}, "log_std_init = -2"),
    ("EraSAC", {"level": "states"}, "level = 'states'"),
    ("EraSAC", {"ent_coef": "auto"}, "ent_coef = 'auto'"),
    ("EraSAC", {"policy_kwargs": {"net_arch": [32]}}, "policy_kwargs=era_actor"),
)


@pytest.mark.parametrize(
    "library, given, said",
    [
        *((library, *refusal) for library in LIBRARIES for refusal in OF_ALL),
        *((library, *SDE) for library in ("PPO", "SAC", "sbx SAC", "EraSAC")),
        *ONE_LIBRARY,
    ],
)
def test_what_era_cannot_hold_is_refused_at_construction(library, given, said):
    with pytest.raises(ValueError, match=said):
        make(library, **given)


@pytest.mark.parametrize(
    "library, given, said",
    [
        ("PPO", {"ent_coef": 0.01, "n_steps": 64}, "ent_coef=0.01"),
        ("SAC", {"ent_coef": "auto"}, "ent_coef='auto'"),
        ("sbx SAC", {"ent_coef": "auto"}, "ent_coef='auto'"),
        ("rsl_rl", {"entropy_coef": 0.01}, "Set entropy_coef to 0"),
        ("PPO", {"ent_coef": 0.0, "n_steps": 64}, None),
        ("SAC", {"ent_coef": 0.0}, None),
        ("sbx SAC", {"ent_coef": 0.0}, None),
        ("rsl_rl", {"entropy_coef": 0.0}, None),
    ],
)
def test_an_entropy_bonus_is_said_once(library, given, said):
    model = make(library, **given)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if library == "rsl_rl":
            model.learn(2)
        else:
            model.learn(5, callback=SbxMetrics() if library == "sbx SAC" else EraMetrics())
    found = [str(warning.message) for warning in caught if "_coef" in str(warning.message)]
    assert len(found) == (said is not None) and (not said or said in found[0])


def test_metrics_of_another_policy_are_refused_before_the_training():
    plain, of_sbx = stable_baselines3.PPO("MlpPolicy", Reach(), device="cpu"), make("sbx SAC", ent_coef=0.0)
    for model, metrics in ((plain, EraMetrics()), (of_sbx, EraMetrics()), (plain, SbxMetrics())):
        with pytest.raises(ValueError, match="EraMetrics"):
            model.learn(300, callback=metrics)
        assert model.num_timesteps == 0
