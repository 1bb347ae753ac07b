# ruff: noqa: E402
"""era/continuous_jax.py is era/continuous.py: values and gradients in fp64, and samples."""

import itertools

import plugin_helpers

plugin_helpers.require()

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from era import continuous, continuous_jax

LOW, HIGH = -8.0, 0.0
LOCS, LOG_STDS = (-4.0, -1.0, 0.0, 0.3, 3.0), (-8.0, -3.0, -1.0, 0.0, 2.0)


@pytest.fixture(autouse=True)
def fp64():
    with jax.enable_x64(True):
        yield


def states(dim):
    """Ordinary, large, tied, near one-hot and shifted, (5, D)."""
    pre_std = np.random.default_rng(dim).normal(size=(5, dim))
    pre_std[1] *= 30
    pre_std[2] = 0.0
    pre_std[3, 0] = 50.0
    pre_std[4] += 1e3
    return pre_std


def assert_same(function, jax_function, *arrays, rtol=1e-12):
    """The same values, and the same gradients of a weighted sum of the values by all arrays."""
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = function(*tensors)
    weights = np.random.default_rng(1).normal(size=expected.shape)
    gradients = torch.autograd.grad((expected * torch.tensor(weights)).sum(), tensors)
    found = jax_function(*map(jnp.asarray, arrays))
    np.testing.assert_allclose(found, expected.detach(), rtol=rtol, atol=1e-12)
    by_jax = jax.grad(lambda *x: (jax_function(*x) * weights).sum(), argnums=tuple(range(len(arrays))))
    for gradient, other in zip(gradients, by_jax(*map(jnp.asarray, arrays))):
        np.testing.assert_allclose(other, gradient, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("dim, fraction", itertools.product((2, 6, 38), (0.3, 0.77, 0.99)))
def test_activations(dim, fraction):
    low, high = continuous.feasible_targets(dim, LOW, HIGH)
    target = np.asarray(low + fraction * (high - low))
    pre_std = states(dim)

    def state_level(module):
        return lambda x, h: module.state_level_log_std(x, h, LOW, HIGH)

    def batch_level(module):
        return lambda x, h: module.batch_level_log_std(x, module.log_mean_exp(x), h, LOW, HIGH)

    for activation, x in ((state_level, pre_std), (batch_level, pre_std[:3])):
        assert_same(activation(continuous), activation(continuous_jax), x, target)
    found = continuous_jax.era_log_std(jnp.asarray(pre_std), float(target), LOW, HIGH)
    np.testing.assert_allclose(found, continuous.era_log_std(torch.tensor(pre_std), float(target), LOW, HIGH))
    assert_same(continuous.gaussian_entropy, continuous_jax.gaussian_entropy, pre_std)


def test_residual_loss():
    delta, entropy = np.asarray(0.3), np.asarray(-0.7)
    assert_same(
        lambda d, h: continuous.residual_loss(d, h, -0.5) + 0 * h,
        lambda d, h: continuous_jax.residual_loss(d, h, -0.5) + 0 * h,
        *(delta, entropy),
    )


def test_bad_values_are_refused():
    for pre_std, target, said in ((np.zeros(3), 9.0, "not feasible"), (np.zeros(1), 0.0, "at least two dimensions")):
        with pytest.raises(ValueError, match=said):
            continuous_jax.era_log_std(jnp.asarray(pre_std), target, LOW, HIGH)


def grid():
    """Means and ln sigma, (25, 2): each value in one dimension, and beside it a central one."""
    means, log_stds = np.array(list(itertools.product(LOCS, LOG_STDS))).T
    return np.stack([means, np.full(25, 0.1)], -1), np.stack([log_stds, np.full(25, -0.5)], -1)


@pytest.mark.parametrize("name", continuous_jax.DISTRIBUTIONS)
def test_log_prob_and_entropy(name):
    means, log_stds = grid()
    for x in (-1.0, -0.97, -0.2, 0.0, 0.9, 1.0):
        action = np.full_like(means, x)
        assert_same(
            lambda mean, log_std: continuous.DISTRIBUTIONS[name]
            .from_mean(mean, log_std)
            .log_prob(torch.tensor(action)),
            lambda mean, log_std: continuous_jax.DISTRIBUTIONS[name].from_mean(mean, log_std).log_prob(action),
            *(means, log_stds),
            rtol=1e-9,
        )
    policy = continuous_jax.DISTRIBUTIONS[name].from_mean(jnp.asarray(means), jnp.asarray(log_stds))
    np.testing.assert_allclose(policy.mode(), np.tanh(means))
    assert (policy.log_prob(jnp.full_like(policy.loc, 1.01)) == -jnp.inf).all()
    if name == "truncated":
        assert_same(
            lambda mean, log_std: continuous.TruncatedGaussian.from_mean(mean, log_std).entropy(),
            lambda mean, log_std: continuous_jax.TruncatedGaussian.from_mean(mean, log_std).entropy(),
            *(means, log_stds),
            rtol=1e-9,
        )


@pytest.mark.parametrize("name", continuous_jax.DISTRIBUTIONS)
def test_samples_from_the_same_noise(name, monkeypatch):
    """Their gradients too. And the estimated entropy of tanh."""
    means, log_stds = grid()
    seed = jax.random.key(0)
    uniform, normal = (np.array(draw(seed, means.shape)) for draw in (jax.random.uniform, jax.random.normal))
    monkeypatch.setattr(torch, "rand_like", lambda like: torch.tensor(uniform))
    monkeypatch.setattr(torch, "randn_like", lambda like: torch.tensor(normal))
    policies = [module.DISTRIBUTIONS[name].from_mean for module in (continuous, continuous_jax)]
    assert_same(
        lambda *x: policies[0](*x).rsample(), lambda *x: policies[1](*x).sample(seed), means, log_stds, rtol=1e-7
    )
    assert_same(
        lambda *x: policies[0](*x).entropy(), lambda *x: policies[1](*x).entropy(seed), means, log_stds, rtol=1e-7
    )


def test_fp32_at_the_bounds():
    with jax.enable_x64(False):
        for name, cls in continuous_jax.DISTRIBUTIONS.items():
            mean, log_std = (jnp.asarray(x, jnp.float32).repeat(400, 0) for x in grid())

            def mean_log_prob(mean, log_std, cls=cls):
                policy = cls.from_mean(mean, log_std)
                action = policy.sample(jax.random.key(0))
                return policy.log_prob(action).mean(), action

            gradients, action = jax.grad(mean_log_prob, argnums=(0, 1), has_aux=True)(mean, log_std)
            assert action.dtype == jnp.float32 and (abs(action) <= 1).all(), name
            assert all(jnp.isfinite(gradient).all() for gradient in gradients), name
        half = continuous_jax.state_level_log_std(jnp.zeros((2, 3), jnp.bfloat16), -1.5, LOW, HIGH)
        assert half.dtype == jnp.float32
