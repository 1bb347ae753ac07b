# ruff: noqa: E402
"""era.sbx in real trainings on a small task."""

import plugin_helpers

plugin_helpers.require()

import jax
import numpy as np
import pytest
from plugin_helpers import OBSERVATIONS, Reach, Seen, gaussian_entropies, tree_equal
from sbx import SAC, TQC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from era.sbx import EraMetrics, era_actor

TARGET = -0.5
CASES = {"SAC, truncated": (SAC, "truncated"), "SAC, tanh": (SAC, "tanh"), "TQC, truncated": (TQC, "truncated")}


def make(case="SAC, truncated", env=None, policy_kwargs=None, **changes):
    algorithm, distribution = CASES[case]
    kwargs = era_actor(target_entropy=TARGET, distribution=distribution) if policy_kwargs is None else policy_kwargs
    settings = {"learning_starts": 50, "batch_size": 64, "ent_coef": 0.0, "seed": 1, "gradient_steps": 2, **changes}
    env = env or DummyVecEnv([Reach] * 2)
    return algorithm("MlpPolicy", env, policy_kwargs={**kwargs, "net_arch": [32]}, **settings)


def policy_of(model, obs=OBSERVATIONS):
    return model.policy.actor_state.apply_fn(model.policy.actor_state.params, obs)


@pytest.mark.parametrize("case", CASES)
def test_the_entropy_is_the_target_after_training_and_loading(case, tmp_path):
    model = make(case)
    np.testing.assert_allclose(gaussian_entropies(policy_of(model).log_std), TARGET, atol=1e-6)
    model.learn(300)
    found = policy_of(model)
    np.testing.assert_allclose(gaussian_entropies(found.log_std), TARGET, atol=1e-6)
    assert found.log_std.std(0).max() > 1e-4 and found.log_std.min() > -8
    action = found.sample(jax.random.key(0))
    assert (abs(action) <= 1).all() and np.isfinite(found.log_prob(action)).all()

    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=model.env)
    assert tree_equal(loaded.policy.actor_state.params, model.policy.actor_state.params)
    assert tree_equal(policy_of(loaded), found)
    scaled = [m.policy.scale_action(m.predict(OBSERVATIONS, deterministic=True)[0]) for m in (model, loaded)]
    mean = found.loc if case.endswith("truncated") else np.tanh(found.loc)
    np.testing.assert_allclose(scaled[0], mean, atol=1e-6)
    np.testing.assert_array_equal(scaled[0], scaled[1])
    assert np.isfinite(evaluate_policy(loaded, model.env, n_eval_episodes=2)[0])
    loaded.learn(60)  # and it goes on


def test_layer_norm_in_the_actor_and_in_the_critics():
    for actor, critics in ((False, False), (True, False), (True, True)):
        model = make(policy_kwargs={**era_actor(layer_norm=actor), "layer_norm": critics})
        states = (model.policy.actor_state, model.policy.qf_state)
        assert ["LayerNorm" in str(jax.tree.structure(state.params)) for state in states] == [actor, critics]


def test_metrics_are_the_policys_and_change_no_training():
    metrics = EraMetrics(freq=100)
    model = make(env=VecNormalize(DummyVecEnv([Reach] * 2))).learn(300, callback=metrics, log_interval=1000)
    without = make(env=VecNormalize(DummyVecEnv([Reach] * 2))).learn(300)
    assert tree_equal(model.policy.actor_state.params, without.policy.actor_state.params)
    logged = model.logger.name_to_value
    assert logged["era/gaussian_entropy_per_dim"] == pytest.approx(TARGET, abs=1e-5)
    assert logged["era/min_entropy_per_dim"] <= logged["era/entropy_per_dim"] < TARGET
    obs = metrics.states()
    np.testing.assert_allclose(metrics.entropies(obs)[0], policy_of(model, obs.numpy()).entropy(), atol=1e-5)


def test_a_short_run_shows_the_metrics_and_no_infinite_loss(capsys):
    """sbx logs the logarithm of ent_coef as its loss, -inf or inf where it is 0."""
    make(verbose=1).learn(120, callback=EraMetrics(), log_interval=4)
    printed = capsys.readouterr().out
    assert printed.count("ERA after") == 1 and f" for a target of {TARGET}; entropy_per_dim " in printed
    assert "|    gaussian_entropy_per_dim | " in printed and "|    critic_loss " in printed
    assert "ent_coef_loss" not in printed and "inf" not in printed


def test_observations_in_a_dictionary():
    model = SAC(
        "MultiInputPolicy", Seen("dictionary"), learning_starts=20, ent_coef=0.0, policy_kwargs=era_actor(TARGET)
    )
    model.learn(60, callback=EraMetrics(freq=10), log_interval=1000)
    assert model.logger.name_to_value["era/gaussian_entropy_per_dim"] == pytest.approx(TARGET, abs=1e-5)
