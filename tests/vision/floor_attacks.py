# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Attacks on the entropy floor of ERA's classifiers: logits that might fall below the activation's `floor`, or get a
probability above its `max_probability`.

Entropy and probability are those of the activation's fp32 output, summed in fp64.
"""

import math

import torch

GAPS = (1e-3, 0.1, 1.0, 3.0, 6.0, 10.0, 20.0, 50.0, 1e2, 1e3, 3e4, math.inf)  # fp16 ends at 65504


def entropy_and_top(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropy (nats) and largest probability of softmax(outputs), per row, in fp64."""
    log_probs = outputs.double().log_softmax(dim=-1)
    probs = log_probs.exp()
    return -(probs * log_probs.clamp(min=-1e300)).sum(dim=-1), probs.amax(dim=-1)


def tolerance(outputs: torch.Tensor) -> float:
    """How far rounding can move the entropy (nats) and the probability of outputs z'.

    A rounding of z' is eps |z'|. Where d = -1 - z' is small (tau near e), z' behaves like sqrt(2 u), u a logarithm
    near 0 with an absolute error of eps, hence eps / d. Either moves the entropy by at most that times the largest
    -ln p, about 1 + ln(n). The sum of n terms in fp64 comes on top.
    """
    classes = outputs.shape[-1]
    off_by = float(outputs.abs().amax()) + 1 / float((-1 - outputs).amin())
    summed = classes * torch.finfo(torch.float64).eps
    return (torch.finfo(outputs.dtype).eps * off_by + summed) * (1 + math.log(classes))


def one_hot(classes: int) -> torch.Tensor:
    logits = torch.zeros(len(GAPS), classes, dtype=torch.float64)
    logits[:, 1:] = -torch.tensor(GAPS, dtype=torch.float64)[:, None]
    return logits


def ties(classes: int) -> torch.Tensor:
    """k classes ahead of the others by each gap, for k from 2 to n."""
    counts = sorted({round(classes ** (step / 10)) for step in range(1, 11)} - {1})
    logits = torch.zeros(len(counts), len(GAPS), classes, dtype=torch.float64)
    for row, count in zip(logits, counts):
        row[:, count:] = -torch.tensor(GAPS, dtype=torch.float64)[:, None]
    return logits.flatten(0, 1)


def random(classes: int, generator: torch.Generator, rows: int = 24) -> torch.Tensor:
    """Normal and heavy-tailed logits at scales from 0.01 to 1000."""
    scales = torch.logspace(-2, 3, rows, dtype=torch.float64)[:, None]
    normal = torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    return torch.cat([scales * normal, scales * normal**3]).clamp(-6e4, 6e4)


def descent(
    activation: torch.nn.Module, classes: int, generator: torch.Generator, rows: int = 4, steps: int = 60
) -> torch.Tensor:
    """Adam on the entropy of the fp64 activation. The gaps to the first class are exp(theta), so they can grow fast."""
    scales = torch.linspace(0.3, 3, rows, dtype=torch.float64)[:, None]
    theta = scales * torch.randn(rows, classes - 1, dtype=torch.float64, generator=generator)
    theta.requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=0.3)
    for _ in range(steps):
        loss = entropy_and_top(activation(torch.nn.functional.pad(-theta.exp(), (1, 0))))[0].sum()
        theta.grad = torch.autograd.grad(loss, theta)[0]
        optimizer.step()
        theta.data.clamp_(max=10.0)
    return torch.nn.functional.pad(-theta.detach().exp(), (1, 0))


def attacks(activation: torch.nn.Module, classes: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Name to logits (rows, classes) in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "one-hot": one_hot(classes),
        "ties": ties(classes),
        "random": random(classes, generator),
        "descent": descent(activation, classes, generator),
    }


def margins(activation: torch.nn.Module, logits: torch.Tensor) -> tuple[float, float, float]:
    """Smallest entropy - floor (nats), largest probability - max_probability, and their tolerance."""
    with torch.no_grad():
        outputs = activation(logits)
    entropy, top = entropy_and_top(outputs)
    return float(entropy.amin()) - activation.floor, float(top.amax()) - activation.max_probability, tolerance(outputs)
