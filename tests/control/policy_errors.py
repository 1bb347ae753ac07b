# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Errors of FastSAC-ERA's bounded policies against mpmath in 30 digits, above all in the tails.

The functions in many digits take and return numbers of mpmath; loc and ln sigma are those of the tensor, in its own
precision.
"""

import itertools
import math

import mpmath
import torch

from era import continuous as ERA

LOCS = (-1.0, -1 + 1e-7, 0.0, 0.9, 1 - 1e-7, 1.0)
LOG_STDS = (-8.0, -4.0, -1.0, 0.0, 2.0)
TANH_LOCS = (-12.0, -3.0, 0.0, 0.5, 8.0)
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
ROUNDING = {dtype: torch.finfo(dtype).eps / 2 for dtype in DTYPES.values()}


def phi(x):
    return mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)


def tail(x):
    """A standard Gaussian's probability above x."""
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def log_normal(x, loc, std):
    return -(((x - loc) / std) ** 2) / 2 - mpmath.log(std) - mpmath.log(2 * mpmath.pi) / 2


def truncated_log_prob(x, loc, std):
    return log_normal(x, loc, std) - mpmath.log(1 - tail((1 - loc) / std) - tail((1 + loc) / std))


def clipped_log_prob(x, loc, std):
    if abs(x) == 1:
        return mpmath.log(tail((1 - x * loc) / std))
    return log_normal(x, loc, std)


def tanh_log_prob(x, loc, std):
    return log_normal(mpmath.atanh(x), loc, std) - mpmath.log(1 - x * x)


def truncated_entropy(loc, std):
    a, b = (-1 - loc) / std, (1 - loc) / std
    z = 1 - tail(b) - tail(-a)
    return mpmath.log(std * z * mpmath.sqrt(2 * mpmath.pi * mpmath.e)) - (b * phi(b) - a * phi(a)) / (2 * z)


def clipped_entropy(loc, std):
    a, b = (-1 - loc) / std, (1 - loc) / std
    inside = (1 - tail(b) - tail(-a)) * mpmath.log(std * mpmath.sqrt(2 * mpmath.pi * mpmath.e))
    inside -= (b * phi(b) - a * phi(a)) / 2
    return inside - sum(p * mpmath.log(p) for p in (tail(b), tail(-a)) if p > 0)


LOG_PROBS = {"truncated": truncated_log_prob, "tanh": tanh_log_prob, "clipped": clipped_log_prob}
ENTROPIES = {"truncated": truncated_entropy, "clipped": clipped_entropy}


def make(name: str, loc: float, log_std: float, dtype: torch.dtype, count: int = 1):
    """A policy of one dimension for `count` states, whose loc and ln sigma require gradients."""
    loc = torch.full((count, 1), loc, dtype=dtype, requires_grad=True)
    log_std = torch.full((count, 1), log_std, dtype=dtype, requires_grad=True)
    return ERA.DISTRIBUTIONS[name](loc, log_std)


def in_digits(policy) -> tuple:
    """loc and sigma of mpmath."""
    return mpmath.mpf(float(policy.loc[0, 0])), mpmath.exp(mpmath.mpf(float(policy.log_std[0, 0])))


def actions_of(name: str, loc: float, log_std: float, dtype: torch.dtype) -> torch.Tensor:
    """Within some sigma of the location, at both bounds and on the other side of the action space."""
    steps = torch.tensor([-6.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 6.0], dtype=torch.float64)
    actions = loc + math.exp(log_std) * steps
    actions = actions.tanh() if name == "tanh" else actions
    ends = [-0.999, -0.5, 0.0, 0.7, 0.999] + ([] if name == "tanh" else [-1.0, 1.0])
    actions = torch.cat([actions, torch.tensor(ends, dtype=torch.float64)]).to(dtype)
    # tanh: the last three numbers before 1 represent all of (9, infinity).
    return actions.clamp(-1, 1) if name != "tanh" else actions[actions.abs() < 1 - 4 * ROUNDING[dtype]]


def settings_of(name: str):
    """Pairs of loc and ln sigma."""
    return itertools.product(TANH_LOCS if name == "tanh" else LOCS, LOG_STDS)


def log_prob_errors(name: str, dtype: torch.dtype):
    """For each action: the error relative to 1 + |log_prob| in nats, what rounding explains of it, and where it was.

    The standardised distance z is off by a few roundings of itself (of sigma, the difference, the quotient), z^2 / 2 by
    twice that; for tanh also by the rounding of atanh. The other terms are ln sigma, constants and logarithms of
    numbers near or below 1, whose rounding is absolute.
    """
    for loc, log_std in settings_of(name):
        actions = actions_of(name, loc, log_std, dtype)
        policy = make(name, loc, log_std, dtype, len(actions))
        exact_loc, std = in_digits(policy)
        for action, got in zip(actions.tolist(), policy.log_prob(actions[:, None]).tolist()):
            x = mpmath.mpf(action)
            inner = mpmath.atanh(x) if name == "tanh" else x
            z = (inner - exact_loc) / std
            bend = 4 * z * z + (4 * abs(z * inner) / std if name == "tanh" else 0)
            want = LOG_PROBS[name](x, exact_loc, std)
            allowed = ROUNDING[dtype] * (bend + 2 * abs(float(log_std)) + 2 * abs(inner) + 10)
            yield abs(got - want) / (1 + abs(want)), allowed / (1 + abs(want)), (loc, log_std, action)


def difference_quotients(function, loc, std, step):
    """d / d loc, times sigma, and d / d ln sigma of function(loc, std)."""
    by_loc = function(loc + step * std, std) - function(loc - step * std, std)
    by_log_std = function(loc, std * mpmath.exp(step)) - function(loc, std * mpmath.exp(-step))
    return by_loc / (2 * step), by_log_std / (2 * step)


def log_prob_gradient_errors(name: str, dtype: torch.dtype):
    """Relative to 1 + |gradient|: d log_prob / d loc, times sigma, and / d ln sigma."""
    step = mpmath.mpf(10) ** -12
    for loc, log_std in settings_of(name):
        actions = actions_of(name, loc, log_std, dtype)
        policy = make(name, loc, log_std, dtype, len(actions))
        exact_loc, std = in_digits(policy)
        got = torch.autograd.grad(policy.log_prob(actions[:, None]).sum(), (policy.loc, policy.log_std))
        for action, by_loc, by_log_std in zip(actions.tolist(), got[0].flatten().tolist(), got[1].flatten().tolist()):
            x = mpmath.mpf(action)
            inner = mpmath.atanh(x) if name == "tanh" else x
            z = abs((inner - exact_loc) / std)
            bend = (1 + z) * abs(inner) / std if name == "tanh" else 0
            wanted = difference_quotients(lambda a, b: LOG_PROBS[name](x, a, b), exact_loc, std, step)
            for found, want in zip((by_loc * std, by_log_std), wanted):
                allowed = ROUNDING[dtype] * (16 + 16 * bend / (1 + abs(want))) + 1e-14
                yield abs(found - want) / (1 + abs(want)), allowed, (loc, log_std, action)


def entropy_errors(name: str, dtype: torch.dtype):
    for loc, log_std in itertools.product(LOCS, LOG_STDS):
        policy = make(name, loc, log_std, dtype)
        error = abs(float(policy.entropy()) - ENTROPIES[name](*in_digits(policy)))
        yield error, ROUNDING[dtype] * (16 + 2 * abs(log_std)), (loc, log_std)


def entropy_gradient_errors(name: str, dtype: torch.dtype):
    """d entropy / d loc, times sigma, and / d ln sigma."""
    step = mpmath.mpf(10) ** -10
    for loc, log_std in itertools.product(LOCS, LOG_STDS):
        policy = make(name, loc, log_std, dtype)
        exact_loc, std = in_digits(policy)
        gradients = torch.autograd.grad(policy.entropy().sum(), (policy.loc, policy.log_std))
        by_loc, by_log_std = map(float, gradients)
        wanted = difference_quotients(ENTROPIES[name], exact_loc, std, step)
        for found, want in zip((by_loc * std, by_log_std), wanted):
            yield abs(found - want), ROUNDING[dtype] * (32 + 4 * abs(log_std)) + 1e-14, (loc, log_std)


QUANTITIES = {
    "log_prob (relative)": log_prob_errors,
    "its gradient (relative)": log_prob_gradient_errors,
    "entropy": entropy_errors,
    "its gradient": entropy_gradient_errors,
}


def comparisons():
    """(quantity, distribution, dtype); tanh's entropy is an estimate, so it is not among them."""
    for quantity, name, dtype in itertools.product(QUANTITIES, ERA.DISTRIBUTIONS, DTYPES):
        if name != "tanh" or "relative" in quantity:
            yield quantity, name, dtype


def errors(quantity: str, name: str, dtype: str) -> list[tuple]:
    """(error, what rounding explains of it, where) for all settings of a comparison."""
    with mpmath.workdps(30):
        return list(QUANTITIES[quantity](name, DTYPES[dtype]))
