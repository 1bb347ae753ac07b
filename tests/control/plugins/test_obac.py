# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
# ruff: noqa: E402
"""OBAC's losses and updates on linear networks, against NumPy in float64 with finite differences."""

import plugin_helpers

plugin_helpers.require()

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sbx import SAC

from era.sbx import era_actor
from recipes.control.obac import OBAC, SWITCHES, update_offline

B, RATE, DISCOUNT = 32, 0.01, 0.97


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


class Spaces(gymnasium.Env):
    """Three observations and two actions; no step is taken."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))


def linear(**settings):
    kwargs = {"net_arch": [], "optimizer_class": optax.sgd}
    return OBAC("MlpPolicy", Spaces(), policy_kwargs=kwargs, learning_rate=RATE, batch_size=B, **settings)


def in_float64(tree):
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x, tree
    )


def with_other_targets(state):
    """The target networks differ from the networks, as they do from the first update on."""
    return state.replace(target_params=jax.tree.map(lambda x: x + 0.1, state.params))


def weights(params, critic=None):
    """The weights of the only layer: (inputs, 1) and (1,)."""
    layer = params["params"]
    while "kernel" not in layer:
        (layer,) = layer.values()
    found = np.array(layer["kernel"]), np.array(layer["bias"])
    return found if critic is None else tuple(value[critic] for value in found)


def applied(params, inputs, critic=None):
    kernel, bias = weights(params, critic)
    return (inputs @ kernel + bias)[:, 0]


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    observations, next_observations = 0.3 * rng.normal(size=(2, B, 3))
    actions, rewards = rng.uniform(-0.9, 0.9, (B, 2)), rng.normal(size=B)
    return observations, actions, next_observations, rewards, (rng.random(B) < 0.2) * 1.0, np.full(B, DISCOUNT)


def test_a_step_of_the_buffers_critics(float64, batch):
    observations, actions, next_observations, rewards, dones, discounts = batch
    before = in_float64(linear(expectile=0.8).policy.qf_state)
    before = before.replace(offline=with_other_targets(before.offline))
    after = update_offline(before, *map(jnp.asarray, batch))
    value = applied(before.offline_value.params, observations)
    target = rewards + (1 - dones) * discounts * applied(before.offline_value.params, next_observations)
    inputs = np.concatenate([observations, actions], 1)
    for critic in range(2):
        kernel, bias = weights(before.offline.params, critic)
        error = applied(before.offline.params, inputs, critic) - target
        new = weights(after.offline.params, critic)
        np.testing.assert_allclose(new[0][:, 0], kernel[:, 0] - RATE * inputs.T @ error / B, atol=1e-10)
        np.testing.assert_allclose(new[1], bias - RATE * error.mean(), atol=1e-10)
    error = np.minimum(*(applied(before.offline.target_params, inputs, critic) for critic in range(2))) - value
    slope = -2 * np.where(error < 0, 0.2, 0.8) * error
    kernel, bias = weights(before.offline_value.params)
    new = weights(after.offline_value.params)
    np.testing.assert_allclose(new[0][:, 0], kernel[:, 0] - RATE * observations.T @ slope / B, atol=1e-10)
    np.testing.assert_allclose(new[1], bias - RATE * slope.mean(), atol=1e-10)
    q_mu = np.minimum(*(applied(before.offline.params, inputs, critic) for critic in range(2)))
    np.testing.assert_allclose(after.values[1:], [q_mu.mean(), value.mean()], atol=1e-10)
    np.testing.assert_array_equal(after.actions, actions)  # which the policy may imitate


@pytest.mark.parametrize("imitates", [True, False])
def test_a_step_of_the_policy(float64, batch, imitates):
    observations, actions = batch[:2]
    actions[0] = 1.0, 0.1  # ln pi below its floor of -20 per dimension, with the sigmas below
    actions[1] = 0.1, -1.0  # above it, but infinite without the clamp
    model, alpha, weight = linear(), 0.37, 0.3
    actor = model.policy.actor_state
    actor = actor.replace(params=in_float64(actor.params))
    actor.params["params"]["Dense_1"]["bias"] = jnp.array([-1.0, 0.5])  # ln sigma
    log_alpha = jax.tree.map(lambda _: jnp.asarray(np.log(alpha)), model.ent_coef_state.params)
    critics = in_float64(model.policy.qf_state).replace(
        actions=jnp.asarray(actions),
        values=jnp.asarray([0.0, 1e6 if imitates else -1e6, 0.0]),
        weight=jnp.asarray(weight),
    )
    key = jax.random.PRNGKey(5)
    temperature = model.ent_coef_state.replace(params=log_alpha)
    new_actor, new_critics, loss_value, *_ = model.update_actor(
        actor, critics, temperature, jnp.asarray(observations), key
    )
    assert int(new_critics.imitations) == imitates

    layers = [np.array(actor.params["params"][layer][part]).ravel() for layer, part in PARTS]
    sampled = np.asarray(
        actor.apply_fn(actor.params, jnp.asarray(observations)).sample(seed=jax.random.split(key, 3)[2])
    )

    def policy(flat):
        mean = observations @ flat[:6].reshape(3, 2) + flat[6:8]
        return mean, np.clip(observations @ flat[8:14].reshape(3, 2) + flat[14:], -20, 2)

    mean, log_std = policy(np.concatenate(layers))
    noise = (np.arctanh(sampled) - mean) / np.exp(log_std)

    def log_prob(action, mean, log_std):
        deviation = (np.arctanh(action) - mean) / np.exp(log_std)
        gaussian = -0.5 * deviation**2 - log_std - 0.5 * np.log(2 * np.pi)
        return (gaussian - np.log(1 - action**2)).sum(1)

    def loss(flat):
        mean, log_std = policy(flat)
        action = np.tanh(mean + np.exp(log_std) * noise)
        inputs = np.concatenate([observations, action], 1)
        q = np.minimum(*(applied(critics.params, inputs, critic) for critic in range(2)))
        known = log_prob(np.clip(actions, -1 + 1e-6, 1 - 1e-6), mean, log_std)
        assert known[0] < -40 < known[1]
        imitation = np.maximum(known, -40).mean()
        return (alpha * log_prob(action, mean, log_std) - q).mean() - (weight * imitation if imitates else 0)

    flat = np.concatenate(layers)
    assert float(loss_value) == pytest.approx(loss(flat), abs=1e-6)
    gradient = np.array([(loss(flat + step) - loss(flat - step)) / 2e-6 for step in 1e-6 * np.eye(16)])
    new = np.concatenate([np.array(new_actor.params["params"][layer][part]).ravel() for layer, part in PARTS])
    np.testing.assert_allclose(new, flat - RATE * gradient, atol=1e-7)


PARTS = [("Dense_0", "kernel"), ("Dense_0", "bias"), ("Dense_1", "kernel"), ("Dense_1", "bias")]


def test_the_reward_switch_compares_a_value_without_entropy(float64, batch):
    """The switch's critics learn r + gamma Q(s', a') with a' of the policy, and they decide."""
    observations, actions, next_observations, rewards, dones, discounts = batch
    model = linear(switch="reward")
    actor = model.policy.actor_state.replace(params=in_float64(model.policy.actor_state.params))
    before = in_float64(model.policy.qf_state)
    before = before.replace(reward_critics=with_other_targets(before.reward_critics))
    key = jax.random.PRNGKey(5)
    after, _, _ = model.update_critic(actor, before, model.ent_coef_state, *map(jnp.asarray, batch), key)
    next_policy = actor.apply_fn(actor.params, jnp.asarray(next_observations))
    next_actions = np.asarray(next_policy.sample(seed=jax.random.fold_in(key, 0)))
    critics = before.reward_critics
    inputs, next_inputs = (
        np.concatenate([observations, actions], 1),
        np.concatenate([next_observations, next_actions], 1),
    )
    next_q = np.minimum(*(applied(critics.target_params, next_inputs, critic) for critic in range(2)))
    for critic in range(2):
        error = applied(critics.params, inputs, critic) - (rewards + (1 - dones) * discounts * next_q)
        kernel, _ = weights(critics.params, critic)
        new, _ = weights(after.reward_critics.params, critic)
        np.testing.assert_allclose(new[:, 0], kernel[:, 0] - RATE * inputs.T @ error / B, atol=1e-7)

    policy = actor.apply_fn(actor.params, jnp.asarray(observations))
    sampled = np.asarray(policy.sample(seed=jax.random.split(key, 3)[2]))
    inputs = np.concatenate([observations, sampled], 1)
    value = np.minimum(*(applied(after.reward_critics.params, inputs, critic) for critic in range(2))).mean()
    for difference in (-1e-3, 1e-3):
        judged = after.replace(values=jnp.asarray([0.0, value + difference, 0.0]))
        _, judged, *_ = model.update_actor(actor, judged, model.ent_coef_state, jnp.asarray(observations), key)
        assert int(judged.imitations) == (difference > 0)
        assert float(judged.values[0]) == pytest.approx(value, abs=1e-6)


def test_the_targets_of_all_critics_follow(float64):
    before = in_float64(linear(switch="reward").policy.qf_state)
    moved = {
        name: getattr(before, name).replace(params=jax.tree.map(lambda x: x + 1, getattr(before, name).params))
        for name in ("offline", "reward_critics")
    }
    after = OBAC.soft_update(0.1, before.replace(**moved))
    for name in moved:
        old, new = (jax.tree.leaves(getattr(state, name).target_params) for state in (before, after))
        for target, followed in zip(old, new):
            np.testing.assert_allclose(followed, target + 0.1, atol=1e-10)


def test_without_imitation_it_is_sac():
    settings = {"batch_size": 32, "learning_starts": 100, "seed": 3, "policy_kwargs": {"net_arch": [32, 32]}}
    env = gymnasium.make("Pendulum-v1")
    sac = SAC("MlpPolicy", env, **settings).learn(300)
    for switch in SWITCHES:
        obac = OBAC("MlpPolicy", env, imitation_weight=0.0, switch=switch, **settings).learn(300)
        for name in ("qf_state", "actor_state"):
            for ours, theirs in zip(*(jax.tree.leaves(getattr(model.policy, name).params) for model in (obac, sac))):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)  # XLA adds up in another order


def test_obac_era_is_loaded_as_it_was(tmp_path):
    env = gymnasium.make("Hopper-v4")
    kwargs = era_actor(-0.5) | {"net_arch": [16, 16]}
    model = OBAC("MlpPolicy", env, ent_coef=0.0, learning_starts=50, policy_kwargs=kwargs, seed=1).learn(120)
    model.save(tmp_path / "model")
    loaded = OBAC.load(tmp_path / "model")
    observations = np.random.default_rng(0).normal(size=(5, 11)).astype(np.float32)
    np.testing.assert_array_equal(*(each.predict(observations, deterministic=True)[0] for each in (model, loaded)))
    for ours, loadeds in zip(*map(jax.tree.leaves, (model.policy.qf_state, loaded.policy.qf_state))):
        np.testing.assert_array_equal(ours, loadeds)
    with pytest.raises(ValueError, match="switch = 'hard'"):
        OBAC("MlpPolicy", env, switch="hard")
