# ruff: noqa: E402
"""What would be silent with ERA in stable-baselines3, sbx and rsl_rl is refused, or said once."""

import math
import subprocess
import sys
import warnings

import plugin_helpers

plugin_helpers.require()

import gymnasium
import pytest
import sbx
import stable_baselines3
import torch
from plugin_helpers import Reach, rsl_rl_configuration
from rsl_rl.runners import OnPolicyRunner

from era.sbx import EraMetrics as SbxMetrics
from era.sbx import EraSAC, era_actor
from era.stable_baselines3 import EraActorCriticPolicy, EraMetrics, EraSACPolicy
from examples.rsl_rl_ppo import PointsEnv

pytestmark = pytest.mark.usefixtures("one_thread")


def make(library, env=None, settings=None, **algorithm):
    """A model of ERA in this library, with these settings of ERA and of the algorithm."""
    env, settings = env or Reach(), settings or {}
    if library == "rsl_rl":
        torch.manual_seed(0)
        points = PointsEnv(env.action_space.shape[0])
        return OnPolicyRunner(points, rsl_rl_configuration(algorithm, **settings), log_dir=None, device="cpu")
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
OF_ALL = (  # ../test_continuous_era.py has what is no number and no range
    ({"settings": {"target_entropy": 1.5}}, "1.5 per action dimension, is not feasible.*-6.5811 and 1.4189"),
    ({"settings": {"log_std_min": 1.0}}, "log_std_min = 1.0"),
    ({"settings": {"target_entropy": "auto"}}, "a number of nats per action"),
    ({"env": Reach(1)}, "at least two dimensions.*batch-level.*works there: EraSAC"),
)
SDE = ({"use_sde": True}, "use_sde=False")
ONE_LIBRARY = (
    ("PPO", {"env": Box(gymnasium.spaces.MultiDiscrete([3, 3]))}, "MultiDiscrete"),
    ("PPO", {"policy_kwargs": {"log_std_init": -2}}, "log_std_init = -2"),
    *(
        (name, {"settings": {"distribution": "round"}}, "'round': one of truncated, tanh")
        for name in ("SAC", "sbx SAC")
    ),
    ("EraSAC", {"target_entropy": -1.5}, "target_entropy = -1.5 outside of policy_kwargs"),
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
        ("PPO", {"ent_coef": 0.01, "n_steps": 64}, "Set ent_coef=0.0"),
        ("A2C", {"ent_coef": 0.01}, "Set ent_coef=0.0"),
        ("SAC", {"learning_starts": 2}, "SAC's default is 'auto'"),
        ("sbx SAC", {"ent_coef": "auto"}, "ent_coef='auto'"),
        ("rsl_rl", {"entropy_coef": 0.01}, "Set entropy_coef to 0"),
        ("PPO", {"ent_coef": 0.0, "n_steps": 64}, None),
        ("SAC", {"learning_starts": 2, "ent_coef": 0.0}, None),
        ("sbx SAC", {"ent_coef": 0.0}, None),
        ("rsl_rl", {"entropy_coef": 0.0}, None),
    ],
)
def test_an_entropy_bonus_is_said_once(library, given, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make(library, **given)
        if library == "rsl_rl":
            model.learn(2)
        else:
            model.learn(5, callback=SbxMetrics() if library == "sbx SAC" else None)
    found = [str(warning.message) for warning in caught if "_coef" in str(warning.message)]
    assert len(found) == (said is not None) and (not said or said in found[0])


def test_a_policy_of_another_algorithm_is_refused():
    for name, policy in (("PPO", EraSACPolicy), ("A2C", EraSACPolicy), ("SAC", EraActorCriticPolicy)):
        with pytest.raises(ValueError, match=f"{name} was given ERA's policy of another algorithm"):
            getattr(stable_baselines3, name)(policy, Reach(), device="cpu")


def test_metrics_of_another_policy_are_refused_before_the_training():
    plain, of_sbx = stable_baselines3.PPO("MlpPolicy", Reach(), device="cpu"), make("sbx SAC", ent_coef=0.0)
    for model, metrics in ((plain, EraMetrics()), (of_sbx, EraMetrics()), (plain, SbxMetrics())):
        with pytest.raises(ValueError, match="EraMetrics"):
            model.learn(300, callback=metrics)
        assert model.num_timesteps == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_era_says_that_it_is_on_and_what_sigma_its_target_is(library, capsys):
    make(library, settings={"target_entropy": -0.4}, **({} if library == "rsl_rl" else {"ent_coef": 0.0}))
    sigma = math.exp(-0.4) / math.sqrt(2 * math.pi * math.e)
    said = "ERA is on: target_entropy = -0.4 nats per action dimension"
    assert capsys.readouterr().err == f"{said}, sigma = {sigma:.2g} where all 3 dimensions are alike\n"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_total_is_taken_for_a_target_per_dimension_with_a_warning(library):
    given = {} if library == "rsl_rl" else {"ent_coef": 0.0}
    for per_dim in (-0.3, -0.5, -1.0):
        said = rf"sigma = 0\.0.*If you mean the total over the 3 dimensions, set target_entropy={per_dim:g}\."
        with pytest.warns(UserWarning, match=said):
            make(library, settings={"target_entropy": 3 * per_dim}, **given)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*If you mean the total")
        make(library, settings={"target_entropy": -1.0}, **given)


@pytest.mark.parametrize("library", ["SAC", "sbx SAC"])
def test_a_target_given_to_sac_itself_is_refused_before_the_training(library):
    metrics = SbxMetrics() if library == "sbx SAC" else EraMetrics()
    with pytest.warns(UserWarning, match="target_entropy = -1.5 was given to SAC itself"):
        model = make(library, ent_coef=0.0, target_entropy=-1.5)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ERA")
        make(library, ent_coef=0.0)
    with pytest.raises(ValueError, match="target_entropy = -1.5 was given to SAC itself.*policy_kwargs.*would be -0.5"):
        model.learn(300, callback=metrics)
    assert model.num_timesteps == 0


def moved(change):
    """rsl_rl's configuration with ERA's part changed."""
    made = rsl_rl_configuration()
    change(made, made["actor"]["distribution_cfg"])
    return lambda: OnPolicyRunner(PointsEnv(3), made, log_dir=None, device="cpu")


MISPLACED = {
    "policy_kwargs of SB3's own policy": (
        lambda: stable_baselines3.PPO("MlpPolicy", Reach(), policy_kwargs={"target_entropy": -0.3}),
        TypeError,
    ),
    "PPO's arguments": (lambda: make("PPO", target_entropy=-0.3), TypeError),
    "policy_kwargs of sbx's own policy": (
        lambda: sbx.SAC("MlpPolicy", Reach(), policy_kwargs={"target_entropy": -0.3}),
        TypeError,
    ),
    "beside distribution_cfg": (moved(lambda made, era: made["actor"].update(target_entropy=-0.3)), TypeError),
    "algorithm": (moved(lambda made, era: made["algorithm"].update(target_entropy=-0.3)), TypeError),
    "critic": (moved(lambda made, era: made["critic"].update(distribution_cfg=era)), ValueError),
    "misspelt": (moved(lambda made, era: era.update(target_entropi=-0.3)), TypeError),
    "misspelt class": (
        moved(lambda made, era: era.update(class_name="era.rsl_rl:EraGausianDistribution")),
        AttributeError,
    ),
    "class without its module": (
        moved(lambda made, era: era.update(class_name="EraGaussianDistribution")),
        ValueError,
    ),
}


@pytest.mark.parametrize("where", MISPLACED)
def test_what_is_misplaced_or_misspelt_makes_no_model(where):
    make_it, error = MISPLACED[where]
    with pytest.raises(error, match="target_entrop|EraGau|at least two dimensions"):
        make_it()


def test_rsl_rl_prints_by_what_era_acts(capsys):
    """Also where target_entropy is left to its default."""
    moved(lambda made, era: era.pop("target_entropy"))()
    assert "EraHead(target_entropy=-0.3, log_std_min=-8.0, log_std_max=0.0" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["stable_baselines3", "sbx", "rsl_rl", "brax"])
def test_without_its_framework(module, project_root):
    code = f"""
import sys

class Absent:
    def find_spec(name, path, target=None):
        if name.split(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent)
import era.{module}"""
    result = subprocess.run([sys.executable, "-c", code], cwd=project_root, capture_output=True, text=True)
    assert f"ImportError: era.{module} is for " in result.stderr
    assert "which is not installed. pip install '" in result.stderr and "During handling" not in result.stderr
