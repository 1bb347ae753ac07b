# ruff: noqa: E402
"""era.sbx.EraSAC: learned delta and batch level, against the formulas in NumPy's fp64."""

import plugin_helpers

plugin_helpers.require()

import jax
import numpy as np
import pytest
from plugin_helpers import OBSERVATIONS, Reach, tree_equal
from sbx import SAC
from stable_baselines3.common.vec_env import DummyVecEnv

from era.sbx import MOMENTUM, EraSAC, era_actor

OBSERVATIONS = 0.3 * OBSERVATIONS  # near which no ln sigma of a new network is clipped
TARGET, C = -0.5, 0.5 * np.log(2 * np.pi * np.e)


def make(algorithm=EraSAC, distribution="truncated", **changes):
    settings = {"learning_starts": 50, "batch_size": 64, "seed": 1, "gradient_steps": 2, **changes}
    kwargs = {**era_actor(TARGET, distribution=distribution), "net_arch": [32]}
    return algorithm("MlpPolicy", DummyVecEnv([Reach] * 2), policy_kwargs=kwargs, **settings)


def update(model, obs=OBSERVATIONS, seed=0):
    """Updates the policy alone; returns its variables before and after."""
    before = model.policy.actor_state
    after = model.update_actor(before, model.policy.qf_state, model.ent_coef_state, obs, jax.random.key(seed))[0]
    return before.params, after.params


def policy_of(model, variables, **more):
    return model.policy.actor_state.apply_fn(variables, OBSERVATIONS, **more)


def test_without_delta_and_per_state_it_is_sbxs_sac():
    """Up to the random numbers of one update: sbx's own adds 0 * log_prob."""
    ours, sbxs = make(), make(SAC, ent_coef=0.0)
    assert tree_equal(ours.policy.actor_state.params, sbxs.policy.actor_state.params)
    key = jax.random.key(0)
    noise = jax.random.split(key, 4)[1]
    assert set(update(ours)[1]) == {"params"}

    def loss(variables):
        state, qf = ours.policy.actor_state, ours.policy.qf_state
        actions = state.apply_fn(variables, OBSERVATIONS).sample(seed=noise)
        return -qf.apply_fn(qf.params, OBSERVATIONS, actions).min(0).mean()

    state = ours.policy.actor_state
    expected = state.apply_gradients(grads=jax.grad(loss)(state.params)).params
    for one, other in zip(jax.tree.leaves(update(ours)[1]), jax.tree.leaves(expected)):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("distribution", ["truncated", "tanh"])
def test_learned_delta_rises_while_the_entropy_is_below_its_target(distribution):
    model = make(distribution=distribution, learn_delta=True)
    before, after = update(model)
    entropy = np.mean(policy_of(model, before).entropy(jax.random.key(1))) / 3
    assert entropy < TARGET and before["params"]["delta"] == 0
    assert after["params"]["delta"] == pytest.approx(3e-4, rel=1e-3)  # Adam's first step is its learning rate

    model.policy.actor_state = model.policy.actor_state.replace(params=with_delta(before, 1.5))
    np.testing.assert_allclose(  # the Gaussian's entropy is H0 + delta
        np.mean(policy_of(model, model.policy.actor_state.params).log_std, axis=-1) + C, TARGET + 1.5, atol=1e-5
    )
    before, after = update(model)
    assert np.mean(policy_of(model, before).entropy(jax.random.key(1))) / 3 > TARGET
    assert after["params"]["delta"] == pytest.approx(1.5 - 3e-4, rel=1e-6)
    model.policy.actor_state = model.policy.actor_state.replace(params=with_delta(before, 1e-5))
    assert update(model)[1]["params"]["delta"] >= 0


def with_delta(variables, value):
    return {**variables, "params": {**variables["params"], "delta": np.float32(value)}}


def test_batch_level_holds_the_mean_entropy_and_keeps_a_running_average():
    model = make(level="batch")
    before, after = update(model)
    collections = {"mutable": ["batch_stats"]}
    policy, _ = policy_of(model, before, **collections)
    log_std = np.asarray(policy.log_std, np.float64)
    assert log_std.min() > -8 and (log_std.mean() + C) == pytest.approx(TARGET, abs=1e-5)
    assert (log_std.mean(-1) + C).std() > 1e-3  # states share it
    # exp(x) of a state from its ln sigma and the running average, which is 1 at first
    acting = np.asarray(policy_of(model, before).log_std, np.float64)
    exponentials = acting / (TARGET - C)
    average = (1 - MOMENTUM) + MOMENTUM * exponentials.mean()
    assert np.exp(after["batch_stats"]["log_mean_exp"]) == pytest.approx(average, rel=1e-5)


def test_training_saving_and_loading(tmp_path):
    model = make(level="batch", learn_delta=True).learn(200)
    variables = model.policy.actor_state.params
    assert variables["params"]["delta"] > 0 and variables["batch_stats"]["log_mean_exp"] != 0
    model.save(tmp_path / "model")
    loaded = EraSAC.load(tmp_path / "model", env=model.env)
    assert tree_equal(loaded.policy.actor_state.params, variables)
    loaded.learn(60)


def test_one_dimension_at_the_batch_level():
    policy_kwargs = {**era_actor(TARGET), "net_arch": [32]}
    model = EraSAC("MlpPolicy", Reach(1), level="batch", policy_kwargs=policy_kwargs, learning_starts=10)
    assert policy_of(model, model.learn(20).policy.actor_state.params).log_std.std() > 1e-3
