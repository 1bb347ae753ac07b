# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era.continuous in JAX: the same functions under the same names, for arrays of one precision.

Shapes, units and errors are those of era.continuous, whose checks are used here. Half precision is
computed and returned in fp32. Policies are pytrees and pass through jax.jit.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.scipy.special import erf, erfinv

from era.continuous import (
    ENTROPY_CONSTANT,
    LOG_SQRT_2PI,
    SQRT_2,
    SQRT_PI,
    check_state_level,
    check_target,
)


def in_float32(x: jax.Array) -> jax.Array:
    """Arrays of half precision in fp32, all others unchanged."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def gaussian_entropy(log_std: jax.Array) -> jax.Array:
    """Entropy of a diagonal Gaussian in nats. ln sigma, (..., D) -> (...)."""
    return (in_float32(log_std) + ENTROPY_CONSTANT).sum(-1)


def era_log_std(
    pre_std: jax.Array, target_entropy: float, log_std_min: float, log_std_max: float
) -> jax.Array:
    """The state-level activation, Eq. continuous_era. (..., D) -> (..., D).

    target_entropy: H0' in nats, the total over the D dimensions. Raises what era.continuous does.
    """
    dim = pre_std.shape[-1]
    check_state_level(dim)
    is_number = isinstance(target_entropy, jax.Array) and target_entropy.size == 1
    total = float(target_entropy) if is_number else target_entropy
    check_target(total, dim, log_std_min, log_std_max)
    return state_level_log_std(pre_std, target_entropy, log_std_min, log_std_max)


def state_level_log_std(
    pre_std: jax.Array, target_entropy: jax.typing.ArrayLike, log_std_min: float, log_std_max: float
) -> jax.Array:
    """era_log_std without its checks, for an H0' that is traced."""
    k = target_entropy - pre_std.shape[-1] * (ENTROPY_CONSTANT + log_std_max)
    return jnp.maximum(log_std_max + k * jax.nn.softmax(in_float32(pre_std), -1), log_std_min)


def log_mean_exp(pre_std: jax.Array) -> jax.Array:
    """The ln of the mean of exp(pre_std) over all its numbers, (..., D) -> (); Eq. batch_era."""
    return jax.nn.logsumexp(in_float32(pre_std)) - math.log(pre_std.size)


def batch_level_log_std(
    pre_std: jax.Array,
    log_mean: jax.Array,
    target_entropy: jax.typing.ArrayLike,
    log_std_min: float,
    log_std_max: float,
) -> jax.Array:
    """The batch-level activation, Eq. batch_era. (..., D) -> (..., D). Without checks, too."""
    k = target_entropy / pre_std.shape[-1] - (ENTROPY_CONSTANT + log_std_max)
    return jnp.maximum(log_std_max + k * jnp.exp(in_float32(pre_std) - log_mean), log_std_min)


def residual_loss(
    delta: jax.Array, policy_entropy: jax.Array, target_entropy: jax.typing.ArrayLike
) -> jax.Array:
    """Eq. residual_loss, delta (H - H0), the policy's entropy H held constant. Scalars, in nats."""
    return delta * jax.lax.stop_gradient(policy_entropy - target_entropy)


def weighted_density(x: jax.Array) -> jax.Array:
    """The product of x and the density at x of a Gaussian with sigma = 1 / sqrt(2)."""
    return x * jnp.exp(-jnp.square(x)) / SQRT_PI


def below_one(dtype: jnp.dtype) -> float:
    """The largest number below 1: erfinv(1) and arctanh(1) are infinite."""
    return 1 - float(jnp.finfo(dtype).eps) / 2


@dataclasses.dataclass(frozen=True)
class BoundedGaussian:
    """A policy on [-1, 1]^D derived from a diagonal Gaussian.

    sample, log_prob and mode have the signatures of TensorFlow Probability, which sbx calls.

    Attributes:
        loc: location of the Gaussian, (..., D); in [-1, 1] except for TanhGaussian, as from_mean
            gives it (not checked).
        log_std: its ln sigma, (..., D).
    """

    loc: jax.Array
    log_std: jax.Array

    @classmethod
    def from_mean(cls, mean: jax.Array, log_std: jax.Array) -> "BoundedGaussian":
        """The policy of the network's mean, (..., D), any real."""
        return cls(jnp.tanh(mean), log_std)

    def mode(self) -> jax.Array:
        """The action without noise, tanh(mean), (..., D)."""
        return self.loc

    def entropy(self, seed: jax.Array) -> jax.Array:
        """The policy's entropy or an unbiased estimate of it, (...), in nats."""
        raise NotImplementedError

    def gaussian_log_density(self, value: jax.Array) -> jax.Array:
        standardised = (value - self.loc) / jnp.exp(self.log_std)
        return -0.5 * jnp.square(standardised) - self.log_std - LOG_SQRT_2PI


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TruncatedGaussian(BoundedGaussian):
    """The Gaussian conditioned on [-1, 1], where loc lies too."""

    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """The standardised bounds over sqrt(2), cut off at 9 as in era.continuous."""
        scale = SQRT_2 * jnp.exp(self.log_std)
        return jnp.maximum((-1 - self.loc) / scale, -9), jnp.minimum((1 - self.loc) / scale, 9)

    def mass(self) -> jax.Array:
        """The paper's Z: the Gaussian's probability of [-1, 1], per dimension."""
        low, high = self.bounds()
        return 0.5 * (erf(high) - erf(low))

    def sample(self, seed: jax.Array) -> jax.Array:
        """A reparameterised action, (..., D)."""
        low, high = map(erf, self.bounds())
        uniform = jax.random.uniform(seed, self.loc.shape, self.loc.dtype)
        limit = below_one(self.loc.dtype)
        quantile = jnp.clip(low + uniform * (high - low), -limit, limit)
        action = self.loc + SQRT_2 * jnp.exp(self.log_std) * erfinv(quantile)
        # Rounding may exceed a bound.
        return action + jax.lax.stop_gradient(jnp.clip(action, -1, 1) - action)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The log-density of an action, (..., D) -> (...), in nats; -inf outside of [-1, 1]."""
        density = self.gaussian_log_density(action) - jnp.log(self.mass())
        return jnp.where(jnp.abs(action) > 1, -jnp.inf, density).sum(-1)

    def entropy(self, seed: jax.Array | None = None) -> jax.Array:
        """Eq. truncated_gaussian_entropy, (...), in nats. It needs no seed."""
        low, high = self.bounds()
        mass = self.mass()
        lost = (weighted_density(high) - weighted_density(low)) / (2 * mass)
        return gaussian_entropy(self.log_std) + (jnp.log(mass) - lost).sum(-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TanhGaussian(BoundedGaussian):
    """tanh of a Gaussian. loc is the Gaussian's, any real number."""

    @classmethod
    def from_mean(cls, mean: jax.Array, log_std: jax.Array) -> "TanhGaussian":
        return cls(mean, log_std)

    def mode(self) -> jax.Array:
        return jnp.tanh(self.loc)

    def sample(self, seed: jax.Array) -> jax.Array:
        """A reparameterised action, (..., D)."""
        return jnp.tanh(self.unbounded_sample(seed))

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The log-density of an action, (..., D) -> (...), in nats; -inf outside of [-1, 1].

        An action of 1 or -1 counts as the nearest number within the bounds, as in era.continuous.
        """
        limit = below_one(action.dtype)
        value = jnp.arctanh(jnp.clip(action, -limit, limit))
        density = self.gaussian_log_density(value) - log_tanh_slope(value)
        return jnp.where(jnp.abs(action) > 1, -jnp.inf, density).sum(-1)

    def entropy(self, seed: jax.Array) -> jax.Array:
        """An unbiased estimate of the entropy from one sample per state, (...), in nats."""
        slope = log_tanh_slope(self.unbounded_sample(seed))
        return gaussian_entropy(self.log_std) + slope.sum(-1)

    def unbounded_sample(self, seed: jax.Array) -> jax.Array:
        noise = jax.random.normal(seed, self.loc.shape, self.loc.dtype)
        return self.loc + jnp.exp(self.log_std) * noise


def log_tanh_slope(value: jax.Array) -> jax.Array:
    """ln(1 - tanh(value)^2), exact where 1 - tanh^2 would round to 0."""
    value = jnp.abs(value)
    return 2 * (math.log(2) - value - jax.nn.softplus(-2 * value))


DISTRIBUTIONS = {"truncated": TruncatedGaussian, "tanh": TanhGaussian}
