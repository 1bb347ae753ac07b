# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Attacks on the entropy of ERA's Gaussian: states where it might lie below H0', or above it although no sigma is
clipped.

State level: the Gaussian entropy of a state minus H0'. Batch level: its mean over a batch minus H0'. ln sigma is the
activation's fp32 output, summed in fp64. `state_tolerance` and `batch_tolerance` are what rounding explains.
"""

import math
from typing import NamedTuple

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LOG_STD_MIN, LOG_STD_MAX = -8.0, 0.0
GAPS = (1e-4, 1e-2, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 20.0, 88.0, 104.0, 1e3, 1e4)  # fp32's exp ends at 104
C = 0.5 * math.log(2 * math.pi * math.e)


def entropy(log_std: torch.Tensor) -> torch.Tensor:
    return (log_std.double() + C).sum(-1)


def state_tolerance(dim: int, target: float) -> float:
    """How far rounding in fp32 can move the sum of ln sigma_i = m + k p_i, m = ln sigma_max.

    One rounding is u = eps / 2. p_i are the computed exponentials, however exact, times the reciprocal of their sum, in
    which D - 1 additions round: the p_i sum to 1 within (D + 1) u. k and the products k p_i are rounded once (2 u |k|),
    and so are m and m + k p_i (u (2 D |m| + |k|)). This is the worst case; independent roundings add up to about 1 / D
    of it.
    """
    k = abs(target - dim * (C + LOG_STD_MAX))
    return torch.finfo(torch.float32).eps / 2 * (k * (dim + 4) + 2 * dim * abs(LOG_STD_MAX))


def batch_tolerance(states: int, dim: int, target: float, log_mean: float) -> float:
    """Like state_tolerance, with one sum over the batch of n = states x D numbers.

    In exp(x - ln mean) the exponentials no longer cancel: each may be off by 4 u, and its argument by u of itself, at
    most u (ln n + 1) on weighted average. ln mean is rounded three times (the logarithm, the maximum that logsumexp
    takes out, ln n), to 3 u (|ln mean| + ln n).
    """
    n = states * dim
    k = abs(target - dim * (C + LOG_STD_MAX))
    relative = (n - 1) + 8 + (math.log(n) + 1) + 3 * (abs(log_mean) + math.log(n))
    return torch.finfo(torch.float32).eps / 2 * (k * (relative + 3) + 2 * dim * abs(LOG_STD_MAX))


def one_hot(dim: int) -> torch.Tensor:
    states = torch.zeros(len(GAPS), dim)
    states[:, 0] = torch.tensor(GAPS)
    return states


def ties(dim: int) -> torch.Tensor:
    """k dimensions ahead of the others by each gap; k = D is a state of equals."""
    counts = sorted({1, 2, dim // 3, dim // 2, dim - 1, dim} - {0})
    states = torch.zeros(len(counts), len(GAPS), dim)
    for rows, count in zip(states, counts):
        rows[:, :count] = torch.tensor(GAPS)[:, None]
    return states.flatten(0, 1)


def levels(dim: int) -> torch.Tensor:
    """One dimension ahead of k tied ones by a gap, the rest far behind."""
    states = []
    for count in sorted({1, dim // 2, dim - 1} & set(range(1, dim))):
        for gap in GAPS[:9]:
            state = torch.full((dim,), -200.0)
            state[0], state[1 : 1 + count] = gap, 0.0
            states.append(state)
    return torch.stack(states)


def random(dim: int, generator: torch.Generator, rows: int = 64) -> torch.Tensor:
    """Normal and heavy-tailed at scales from 0.01 to 1000."""
    scales = torch.logspace(-2, 3, rows)[:, None]
    normal = torch.randn(rows, dim, generator=generator)
    return torch.cat([scales * normal, (scales * normal**3).clamp(-1e4, 1e4)])


def descent(log_std, dim: int, generator: torch.Generator, rows: int = 8, steps: int = 40) -> torch.Tensor:
    """Adam on the entropy, from states with a clipped sigma: only there does it have a gradient."""
    states = torch.randn(rows, dim, generator=generator) * torch.linspace(1, 10, rows)[:, None]
    states[:, 0] += 10
    states.requires_grad_()
    optimizer = torch.optim.Adam([states], lr=0.3)
    for _ in range(steps):
        states.grad = torch.autograd.grad(log_std(states).sum(), states)[0]
        optimizer.step()
    return states.detach()


def climb(log_std, dim: int, generator: torch.Generator, sign: int, rows: int = 16, steps: int = 25) -> torch.Tensor:
    """Random changes of a state, kept where sign x its entropy falls: rounding has no gradient."""
    states = 0.5 * torch.randn(rows, dim, generator=generator)
    best = sign * entropy(log_std(states))
    for step in range(steps):
        changed = states + 0.3 * 0.9**step * torch.randn(rows, dim, generator=generator)
        margin = sign * entropy(log_std(changed))
        better = margin < best
        states[better], best = changed[better], torch.minimum(margin, best)
    return states


def attacks(log_std, dim: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """The states (rows, D) of each attack on an activation, by its name."""
    generator = torch.Generator().manual_seed(seed)
    states = {"one-hot": one_hot(dim), "ties": ties(dim), "levels": levels(dim), "random": random(dim, generator)}
    states["normal"] = 0.3 * torch.randn(64, dim, generator=generator)
    states["offset"] = states["normal"] + 100
    states["descent"] = descent(log_std, dim, generator)
    with torch.no_grad():
        states["climb down"] = climb(log_std, dim, generator, 1)
        states["climb up"] = climb(log_std, dim, generator, -1)
    return states


class Margin(NamedTuple):
    """A state or batch: its entropy minus H0', whether a sigma is clipped, what rounding explains, and the attack."""

    margin: float
    clipped: bool
    allowed: float
    dim: int
    attack: str

    def broken(self) -> bool:
        return not (self.margin >= -self.allowed and (self.clipped or self.margin <= self.allowed))  # also for nan


@torch.no_grad()
def state_margins(era, states: torch.Tensor, target: float, attack: str) -> list[Margin]:
    """The smallest and largest margins of the states (rows, D), with and without a clipped sigma."""
    log_std = era.era_log_std(states, target, LOG_STD_MIN, LOG_STD_MAX)
    margins, clipped = entropy(log_std) - target, (log_std <= LOG_STD_MIN).any(-1)
    allowed = state_tolerance(states.shape[-1], target)
    extremes = []
    for mask, is_clipped in ((clipped, True), (~clipped, False)):
        if mask.any():
            extremes += [
                Margin(float(extreme), is_clipped, allowed, states.shape[-1], attack)
                for extreme in margins[mask].aminmax()
            ]
    return extremes + [Margin(math.nan, False, allowed, states.shape[-1], attack)] * int(margins.isnan().any())


@torch.no_grad()
def batch_margin(era, states: torch.Tensor, target: float, attack: str) -> Margin:
    """The margin of the mean entropy of a batch of states (rows, D)."""
    log_mean = era.log_mean_exp(states)
    log_std = era.batch_level_log_std(states, log_mean, target, LOG_STD_MIN, LOG_STD_MAX)
    allowed = batch_tolerance(*states.shape, target, float(log_mean))
    return Margin(
        float(entropy(log_std).mean()) - target, bool((log_std <= LOG_STD_MIN).any()), allowed, states.shape[-1], attack
    )


def search(era, dim: int, target_per_dim: float, seed: int = 0) -> dict[tuple[str, str], list[Margin]]:
    """The margins of all attacks, by level and by the dtype of the states."""
    target = dim * target_per_dim
    margins = {(level, name): [] for level in ("state", "batch") for name in DTYPES}
    for attack, states in attacks(lambda s: era.era_log_std(s, target, LOG_STD_MIN, LOG_STD_MAX), dim, seed).items():
        for name, dtype in DTYPES.items():
            margins["state", name] += state_margins(era, states.to(dtype), target, attack)
            margins["batch", name].append(batch_margin(era, states.to(dtype), target, attack))
    return margins
