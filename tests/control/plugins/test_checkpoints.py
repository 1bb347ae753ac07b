# ruff: noqa: E402
"""Checkpoints say ERA: who loads them with other settings, or without ERA, hears of it."""

import warnings

import plugin_helpers

plugin_helpers.require()

import flax
import numpy as np
import pytest
import sbx
import torch
from plugin_helpers import OBSERVATIONS, Reach, rsl_rl_configuration
from rsl_rl.runners import OnPolicyRunner
from stable_baselines3 import A2C, PPO, SAC
from tensordict import TensorDict

from era.sbx import era_actor
from era.stable_baselines3 import EraActorCriticPolicy, EraSACPolicy
from examples.rsl_rl_ppo import PointsEnv

pytestmark = pytest.mark.usefixtures("one_thread")
POLICIES = {"PPO": (PPO, EraActorCriticPolicy), "A2C": (A2C, EraActorCriticPolicy), "SAC": (SAC, EraSACPolicy)}
HOSTS = (*POLICIES, "rsl_rl")


def make(host, era=True, **settings):
    """A model of the host, with ERA's settings or the host's own policy."""
    torch.manual_seed(len(settings))
    if host == "rsl_rl":
        made = rsl_rl_configuration(**settings)
        if not era:
            made["actor"]["distribution_cfg"] = {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"}
        runner = OnPolicyRunner(PointsEnv(3), made, log_dir=None, device="cpu")
        runner.logger.init_logging_writer()  # as learn() does: before 5.5 save() reads the writer that this sets
        return runner
    algorithm, policy = POLICIES[host]
    kwargs = {"policy_kwargs": {**settings, "net_arch": [16]}, "device": "cpu", "seed": len(settings)}
    return algorithm(policy if era else "MlpPolicy", Reach(), **kwargs)


def load(model, path, strict=True):
    if isinstance(model, OnPolicyRunner):
        return model.load(path, strict=strict)
    return model.set_parameters(path, exact_match=strict)


def outputs(model):
    """Mean and ln sigma."""
    obs = torch.tensor(OBSERVATIONS)
    with torch.no_grad():
        if isinstance(model, OnPolicyRunner):
            model.alg.actor(TensorDict({"policy": obs[:, :3]}, batch_size=[len(obs)]), stochastic_output=True)
            return model.alg.actor.output_mean, model.alg.actor.output_std.log()
        if isinstance(model, SAC):
            return model.actor.get_action_dist_params(obs)[:2]
        gaussian = model.policy.get_distribution(obs).distribution
        return gaussian.mean, gaussian.stddev.log()


@pytest.fixture
def saved(tmp_path):
    def save(model):
        path = str(tmp_path / ("model.pt" if isinstance(model, OnPolicyRunner) else "model.zip"))
        model.save(path)
        return path

    return save


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("era", [True, False])
def test_a_checkpoint_of_the_other_policy_is_refused(host, era, saved):
    path = saved(make(host, era))
    with pytest.raises(RuntimeError, match=r"era_head\.settings|size mismatch for action_net"):
        load(make(host, not era), path)


@pytest.mark.parametrize("host", HOSTS)
def test_another_target_acts_and_is_said(host, saved):
    trained = make(host, target_entropy=-0.4, log_std_min=-5.0)
    path = saved(trained)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "ERA: target_entropy = .* in the units of the actions")  # Reach's are -2 to 1
        same = make(host, target_entropy=-0.4, log_std_min=-5.0)
        load(same, path)
    for found, expected in zip(outputs(same), outputs(trained)):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    other = make(host, target_entropy=0.2)
    with pytest.warns(UserWarning, match="trained with ERA's.*-0.4.*-5.0.*made with.*0.2.*-8.0.*, which acts"):
        load(other, path)
    torch.testing.assert_close(outputs(other)[0], outputs(trained)[0], rtol=0, atol=0)
    np.testing.assert_allclose(plugin_helpers.gaussian_entropies(outputs(other)[1]), 0.2, atol=1e-6)


def test_another_bounded_distribution_is_said(saved):
    path = saved(make("SAC", distribution="tanh"))
    with pytest.warns(UserWarning, match="'tanh'.*'truncated'}, which acts"):
        load(make("SAC"), path)


@pytest.mark.parametrize("host", HOSTS)
def test_weights_that_do_not_say_era_need_a_word(host, saved, monkeypatch):
    """SAC's and rsl_rl's would be taken for ERA's."""
    trained = make(host)
    with monkeypatch.context() as before:
        before.setattr("era.gaussian_head.EraHead._save_to_state_dict", lambda *_: None)
        path = saved(trained)
    loaded = make(host, log_std_max=1e-9)  # another seed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "ERA: target_entropy = .* in the units of the actions")  # Reach's are -2 to 1
        with pytest.raises(
            RuntimeError, match="does not say that it was trained with ERA.*exact_match=False.*strict=False"
        ):
            load(loaded, path)
        load(loaded, path, strict=False)
    for found, expected in zip(outputs(loaded), outputs(trained)):
        torch.testing.assert_close(found, expected)


# sbx


def test_parameters_of_sbx_are_not_taken_for_those_of_the_other_actor():
    era = sbx.SAC("MlpPolicy", Reach(), seed=1, ent_coef=0.0, learning_starts=5, policy_kwargs=era_actor())
    own = sbx.SAC("MlpPolicy", Reach(), seed=2, ent_coef=0.0, learning_starts=5)
    states = {model: model.policy.actor_state for model in (era, own)}
    for model, other in ((era, own), (own, era)):
        model.policy.actor_state = states[model].replace(params=states[other].params)
        with pytest.raises(ValueError, match="trained_with_era"):
            model.learn(10)
    with pytest.raises(ValueError, match="trained_with_era"):  # the other way round flax drops what it does not know
        flax.serialization.from_state_dict(states[era].params, flax.serialization.to_state_dict(states[own].params))
