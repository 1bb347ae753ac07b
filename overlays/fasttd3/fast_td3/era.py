# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Entropy Regularizing Activation (ERA) for bounded Gaussian policies: standard deviations with a minimum entropy.

Paper, Eq. continuous_era, for an action of D dimensions, c = ln sqrt(2 pi e) and p = softmax(pre_std):

    ln sigma_i = max(ln sigma_max + (H0' - D c - D ln sigma_max) p_i, ln sigma_min)

The Gaussian's entropy, the sum of ln sigma_i + c, is then H0', and more where ln sigma_min acts: p sums to 1. The policy
is that Gaussian bounded to [-1, 1], whose entropy is lower. H0' = H0 + delta, where the residual delta >= 0 is what the
bounding takes away: a constant (0 in the paper's main results), or learned by Eq. residual_loss.

All entropies are in nats, with respect to the action in [-1, 1]^D. This file needs torch and the standard library alone.
"""

import math
from typing import Tuple, Union

import torch

Target = Union[float, torch.Tensor]

ENTROPY_CONSTANT = 0.5 * math.log(2 * math.pi * math.e)  # entropy of a Gaussian with sigma = 1: c above
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
SQRT_2 = math.sqrt(2)
SQRT_PI = math.sqrt(math.pi)


def gaussian_entropy(log_std: torch.Tensor) -> torch.Tensor:
    """Entropy of a diagonal Gaussian in nats (Eq. gaussian_entropy): ln sigma, (..., D) -> (...)."""
    return (log_std + ENTROPY_CONSTANT).sum(-1)


def feasible_targets(dim: int, log_std_min: float, log_std_max: float) -> Tuple[float, float]:
    """The range of H0' in nats: above the entropy with all sigma at their minimum, below that with all at their maximum."""
    return dim * (log_std_min + ENTROPY_CONSTANT), dim * (log_std_max + ENTROPY_CONSTANT)


def check_target(target_entropy: float, dim: int, log_std_min: float, log_std_max: float) -> None:
    """Raises ValueError, with the feasible range, unless H0' lies inside it."""
    if not (math.isfinite(log_std_min) and math.isfinite(log_std_max) and log_std_min < log_std_max):
        raise ValueError(f"log_std_min = {log_std_min} and log_std_max = {log_std_max}: two finite numbers expected, the first below the second.")
    low, high = feasible_targets(dim, log_std_min, log_std_max)
    if not low < target_entropy < high:
        raise ValueError(
            f"target_entropy = {target_entropy:g} nats is not feasible for {dim} action dimensions with ln sigma in "
            f"[{log_std_min:g}, {log_std_max:g}]: a number between {low:.4f} and {high:.4f} expected (between {low / dim:.4f} and "
            f"{high / dim:.4f} per dimension)."
        )


def check_state_level(dim: int) -> None:
    """Raises ValueError for an action of one dimension."""
    if dim == 1:
        raise ValueError(
            "ERA per state needs an action of at least two dimensions. With one, the softmax over the dimensions is 1 and sigma the "
            "same constant in every state. The batch-level form (Eq. batch_era) shares the entropy among states instead."
        )


def in_float32(x: Target) -> Target:
    """Half precision is too coarse for a sum of logarithms: bf16 rounds a ln sigma of 8 to 1 / 32. Numbers stay as they are."""
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in (torch.bfloat16, torch.float16) else x


def era_log_std(pre_std: torch.Tensor, target_entropy: Target, log_std_min: float, log_std_max: float) -> torch.Tensor:
    """The state-level activation, Eq. continuous_era.

    Args:
        pre_std: the network's output, (..., D) with D of at least 2. Half precision is computed and returned in fp32.
        target_entropy: H0' in nats, the total over the D dimensions; a number, or a tensor that holds one.
        log_std_min, log_std_max: range of ln sigma.

    Returns:
        ln sigma, (..., D), each in [log_std_min, log_std_max]. gaussian_entropy of it is at least H0', and equal to it where
        no ln sigma is clipped at log_std_min, up to rounding.

    Raises:
        ValueError: D = 1, or H0' outside of feasible_targets.
    """
    dim = pre_std.shape[-1]
    check_state_level(dim)
    check_target(float(target_entropy), dim, log_std_min, log_std_max)
    return state_level_log_std(pre_std, target_entropy, log_std_min, log_std_max)


def state_level_log_std(pre_std: torch.Tensor, target_entropy: Target, log_std_min: float, log_std_max: float) -> torch.Tensor:
    """era_log_std without its checks, which would wait for the GPU where H0' is a tensor there."""
    pre_std = in_float32(pre_std)
    k = in_float32(target_entropy) - pre_std.shape[-1] * (ENTROPY_CONSTANT + log_std_max)
    return (log_std_max + k * pre_std.softmax(-1)).clamp(min=log_std_min)


def log_mean_exp(pre_std: torch.Tensor) -> torch.Tensor:
    """ln of the mean of exp(pre_std) over the batch and the dimensions: ln of the mean of Eq. batch_era. (..., D) -> ()."""
    return in_float32(pre_std).flatten().logsumexp(0) - math.log(pre_std.numel())


def batch_level_log_std(
    pre_std: torch.Tensor, log_mean: torch.Tensor, target_entropy: Target, log_std_min: float, log_std_max: float
) -> torch.Tensor:
    """The batch-level activation, Eq. batch_era: the mean of the Gaussian's entropy over the batch is at least H0'.

    Args:
        pre_std: the network's output, (..., D). Half precision is computed and returned in fp32.
        log_mean: log_mean_exp of the batch in training, a running average of it otherwise.
        target_entropy: H0' in nats, the total over the D dimensions, inside of feasible_targets (not checked here).

    Returns:
        ln sigma, (..., D), each in [log_std_min, log_std_max].
    """
    pre_std = in_float32(pre_std)
    k = in_float32(target_entropy) / pre_std.shape[-1] - (ENTROPY_CONSTANT + log_std_max)
    return (log_std_max + k * (pre_std - log_mean).exp()).clamp(min=log_std_min)


def residual_loss(delta: torch.Tensor, policy_entropy: torch.Tensor, target_entropy: Target) -> torch.Tensor:
    """Eq. residual_loss: its gradient raises delta where the bounded policy's mean entropy is below H0. Scalars, in nats."""
    return delta * (policy_entropy - target_entropy).detach()


def weighted_density(x: torch.Tensor) -> torch.Tensor:
    """x times the density of a Gaussian with a standard deviation of 1 / sqrt(2), whose distribution function is made of erf(x)."""
    return x * (-x.square()).exp() / SQRT_PI


class BoundedGaussian:
    """A policy on [-1, 1]^D made of a diagonal Gaussian, whose subclasses have

    - rsample() -> (..., D): a reparameterised action;
    - log_prob(action) -> (...): for an action of (..., D);
    - entropy() -> (...): in nats.

    Args:
        loc: location of the Gaussian, (..., D); in [-1, 1] but for TanhGaussian.
        log_std: its ln sigma, (..., D).
    """

    def __init__(self, loc: torch.Tensor, log_std: torch.Tensor):
        self.loc, self.log_std, self.std = loc, log_std, log_std.exp()

    @classmethod
    def from_mean(cls, mean: torch.Tensor, log_std: torch.Tensor) -> "BoundedGaussian":
        """From the network's mean, (..., D), any real number. tanh(mean) is the action without noise."""
        return cls(mean.tanh(), log_std)

    def bounds(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """The paper's alpha <= 0 <= beta over sqrt(2): the distances of the bounds from loc as erf takes them."""
        scale = SQRT_2 * self.std
        return (-1 - self.loc) / scale, (1 - self.loc) / scale

    def gaussian_log_density(self, value: torch.Tensor) -> torch.Tensor:
        return -0.5 * ((value - self.loc) / self.std).square() - self.log_std - LOG_SQRT_2PI


class TruncatedGaussian(BoundedGaussian):
    """The Gaussian conditioned on [-1, 1]. With loc there alpha and beta have opposite signs, so nothing below cancels."""

    def __init__(self, loc: torch.Tensor, log_std: torch.Tensor):
        super().__init__(loc, log_std)
        low, high = self.bounds()
        # Beyond 9 erf is 1 and e^(-81) nothing, in fp64 too; from 9.3 on the latter is denormal in fp32, which slows a CPU tenfold.
        self.low, self.high = low.clamp(min=-9), high.clamp(max=9)
        self.erf_low, self.erf_high = self.low.erf(), self.high.erf()

    def mass(self) -> torch.Tensor:
        """Z of the paper: what the Gaussian has in [-1, 1], per dimension."""
        return 0.5 * (self.erf_high - self.erf_low)

    def rsample(self) -> torch.Tensor:
        quantile = self.erf_low.lerp(self.erf_high, torch.rand_like(self.loc))
        limit = 1 - torch.finfo(quantile.dtype).eps / 2  # the largest number below 1: erfinv(1) is infinite
        action = self.loc + SQRT_2 * self.std * torch.erfinv(quantile.clamp(-limit, limit))
        return action + (action.clamp(-1, 1) - action).detach()  # rounding may lead past the bound

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """-inf outside of [-1, 1]."""
        density = self.gaussian_log_density(action) - self.mass().log()
        return torch.where(action.abs() > 1, -math.inf, density).sum(-1)

    def entropy(self) -> torch.Tensor:
        """Eq. truncated_gaussian_entropy."""
        mass = self.mass()
        lost = (weighted_density(self.high) - weighted_density(self.low)) / (2 * mass)
        return gaussian_entropy(self.log_std) + (mass.log() - lost).sum(-1)


class TanhGaussian(BoundedGaussian):
    """tanh of a Gaussian. loc is the Gaussian's, any real number."""

    @classmethod
    def from_mean(cls, mean: torch.Tensor, log_std: torch.Tensor) -> "TanhGaussian":
        return cls(mean, log_std)

    def rsample(self) -> torch.Tensor:
        return self.unbounded_sample().tanh()

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """-inf outside of [-1, 1]. An action of 1 counts as the number before it, all that rounding leaves of values above 9 (fp32)."""
        limit = 1 - torch.finfo(action.dtype).eps / 2
        value = action.clamp(-limit, limit).atanh()
        density = self.gaussian_log_density(value) - log_tanh_slope(value)
        return torch.where(action.abs() > 1, -math.inf, density).sum(-1)

    def entropy(self) -> torch.Tensor:
        """An unbiased estimate from one sample per state: there is no closed form."""
        return gaussian_entropy(self.log_std) + log_tanh_slope(self.unbounded_sample()).sum(-1)

    def unbounded_sample(self) -> torch.Tensor:
        return self.loc + self.std * torch.randn_like(self.loc)


def log_tanh_slope(value: torch.Tensor) -> torch.Tensor:
    """ln(1 - tanh(value)^2), exact where 1 - tanh^2 would round to 0. Even: softplus is a mere line above 20, so below 0 is used."""
    value = value.abs()
    return 2 * (math.log(2) - value - torch.nn.functional.softplus(-2 * value))


class ClippedGaussian(BoundedGaussian):
    """The Gaussian clipped to [-1, 1]: a density inside and a probability at each bound.

    log_prob is the logarithm of the density inside and of the probability at the bounds, and entropy the mean of -log_prob.
    This entropy can be above the Gaussian's: a narrow tail becomes a probability, which has no negative entropy.
    """

    def rsample(self) -> torch.Tensor:
        return (self.loc + self.std * torch.randn_like(self.loc)).clamp(-1, 1)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """-inf outside of [-1, 1]."""
        below, above = self.log_tails()
        inside = torch.where(action.abs() > 1, -math.inf, self.gaussian_log_density(action))
        return torch.where(action == -1, below, torch.where(action == 1, above, inside)).sum(-1)

    def entropy(self) -> torch.Tensor:
        low, high = self.bounds()
        below, above = self.log_tails()
        mass = 0.5 * (high.erf() - low.erf())
        lost = (weighted_density(high) - weighted_density(low)) / 2
        inside = mass * (self.log_std + ENTROPY_CONSTANT) - lost
        return (inside - below.exp() * below - above.exp() * above).sum(-1)

    def log_tails(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """Logarithms of the probabilities of -1 and of 1, per dimension."""
        low, high = self.bounds()
        return log_tail(-low), log_tail(high)


def log_tail(x: torch.Tensor) -> torch.Tensor:
    """ln of what a standard Gaussian has above sqrt(2) x >= 0. The derivative of torch.special.log_ndtr cancels there (fp32: by 80 % at -6000)."""
    return torch.special.erfcx(x).log() - math.log(2) - x.square()


DISTRIBUTIONS = {"truncated": TruncatedGaussian, "tanh": TanhGaussian, "clipped": ClippedGaussian}
