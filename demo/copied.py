# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the twenty lines of the paper's listings do when they are copied, in numbers: python -m demo.copied

Each function is a line of the table of docs/why-not-copy.md. It returns what copied lines give, and what this project
gives, both in words. The listings are written here as formulas, and era/ is called for the other side.
"""

import argparse
import math

import torch

from era.continuous import ENTROPY_CONSTANT, TruncatedGaussian, era_log_std
from era.discrete import EntropyRegularizingActivation
from era.language import logit_scale, response_entropy

Row = tuple[str, str]


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Of softmax(logits) in nats, (..., n) -> (...), in fp64."""
    log_p = logits.double().log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def listed_classifier(logits: torch.Tensor, min_entropy: float, tau: float = 4.0) -> torch.Tensor:
    """z' as the listing of Eq. discrete_era has it: (..., n), the logits' dtype; no maximum, and one bound checked."""
    kappa, total, n = math.log(tau) / tau, math.exp(min_entropy - 1), logits.size(-1)
    assert total >= kappa
    slope = (kappa - total / n) / (1 - 1 / n)
    u = -1 - torch.log(slope * logits.softmax(-1) + (total - slope) / n)
    return (-1 - torch.sqrt(2 * u) - 0.75 * u).to(logits.dtype)


def listed_log_std(pre_std: torch.Tensor, h_0: float, low: float = -8.0, high: float = 0.0) -> torch.Tensor:
    """ln sigma as the listing of Eq. continuous_era has it, (..., D)."""
    scale = -pre_std.size(-1) * (high + h_0 + ENTROPY_CONSTANT)
    return (scale * pre_std.softmax(-1) + high).clamp(low, high)


def integer_advantages() -> Row:
    """The release casts advantages to integers before it compares them with 0."""
    scaled = []
    for right in range(1, 8):
        rewards = torch.tensor([1.0] * right + [0.0] * (8 - right))
        scaled.append(int(((rewards - rewards.mean()) / (rewards.std() + 1e-6)).max()) > 0)
    return f"ERA acts in {sum(scaled)} of 7", "7 of 7"


def scale_in_each_pass() -> Row:
    """Old and new log-probs decide by the entropy of their own pass, which an update has moved across the bound."""
    logits = torch.log(torch.tensor([0.90, 0.05, 0.05], dtype=torch.double))
    old, new = logits.log_softmax(-1), (2 * logits).log_softmax(-1)
    return f"{(new - old)[1].exp():.2f}", "1"


def entropies_in_bf16() -> Row:
    """Of 64 tokens with a vocabulary of 151,936, whose mean entropy is 1.5 to 1.7 nats; the largest error of each of
    three draws. Of a flatter distribution it is less: 0.08 to 0.12 nats with half as large logits."""
    errors = []
    for seed in range(3):
        logits = (8 * torch.randn(64, 151_936, generator=torch.Generator().manual_seed(seed))).bfloat16()
        p = logits.softmax(-1)
        in_bf16 = logits.logsumexp(-1) - (p * logits).sum(-1)
        errors.append((in_bf16 - entropy(logits)).abs().max().item())
    return f"off by up to {min(errors):.2f} to {max(errors):.2f} nats, by the draw", "exact to fp32"


def short_responses() -> Row:
    """A response of three tokens has one forking token; an empty one has none."""
    entropies, mask = torch.tensor([[0.0, 0.0]]), torch.zeros(1, 2)
    listed = entropies.masked_fill(mask == 0, -math.inf).topk(1).values.mean()
    here = logit_scale(response_entropy(entropies, mask), torch.ones(1, 2), mask, low=0.45, high=3.0, k=2.0)
    return f"H_resp is {listed:.0f}, below every bound", f"scale {here.max():.0f}"


def infeasible_floor() -> Row:
    """Above 1 + ln(n kappa) = 2.24 nats the slope is negative, and from 2.30 on z' is NaN."""
    logits = torch.tensor([4.0, *[0.0] * 9])
    listed = listed_classifier(logits, 2.27)
    rank = 1 + int((listed > listed[0]).sum())
    try:
        EntropyRegularizingActivation(10, 2.27)
    except ValueError:
        return f"the likeliest class has rank {rank} of 10", "refused, with the range"
    raise AssertionError("H0 = 2.27 was taken")


def ties_in_bf16() -> Row:
    logits = torch.randn(512, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()

    def tied(output: torch.Tensor) -> float:
        top = output.topk(2).values
        return (top[:, 0] == top[:, 1]).float().mean().item()

    made = EntropyRegularizingActivation(1000, 1.2)
    in_bf16, here = tied(listed_classifier(logits, 1.2)), tied(made(logits))
    assert here == tied(logits)
    return f"{in_bf16:.0%} of images", f"{here:.0%}, as the logits themselves"


def true_floor() -> Row:
    made = EntropyRegularizingActivation(10, 0.6)
    return "H >= 0.60 nats is known", f"H >= {made.floor:.2f} nats, logged"


def sign_of_the_target() -> Row:
    """The text gives h_0 = -D / 2, which is the equation's H0' and not the listing's h_0."""
    pre_std = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    listed, here = listed_log_std(pre_std, -3.0).exp(), era_log_std(pre_std, -3.0, -8.0, 0.0).exp()
    return f"sigma from {listed.min():.2g} to {listed.max():.2g}", f"from {here.min():.2g} to {here.max():.2g}"


def one_dimension() -> Row:
    pre_std = torch.linspace(-3, 3, 7, requires_grad=True).unsqueeze(-1)
    log_std = listed_log_std(pre_std, 0.5)
    (gradient,) = torch.autograd.grad(log_std.sum(), pre_std)
    return (
        f"sigma {log_std[0].exp().item():.2f} whatever the network says, gradient {gradient.abs().max():.0f}",
        "refused",
    )


def capped_head() -> Row:
    """Logits capped at 30, k = 2: the factor belongs to the capped logits, where fused heads divide before the cap."""
    raw = torch.tensor([60.0, 40.0, 0.0], dtype=torch.double)
    before, after = 30 * torch.tanh(2 * raw / 30), 2 * 30 * torch.tanh(raw / 30)
    return f"p' of the likeliest {before.softmax(-1)[0]:.2f}", f"{after.softmax(-1)[0]:.2f}"


def bounded_action() -> Row:
    """Of the truncated Gaussian, the paper's, for H0 = -0.5 per dimension; the largest mean is the bound."""
    means = torch.tensor([[0.0], [0.9], [1.0]])
    policy = TruncatedGaussian(means, torch.full_like(means, -0.5 - ENTROPY_CONSTANT))
    entropies = ", ".join(f"{nats:.2f}" for nats in policy.entropy().flatten().tolist())
    return "taken for -0.50 nats", f"{entropies}; a learned delta makes up for the batch's mean"


ROWS = {
    "advantages cut to integers (the release): groups of 8 answers with 1 to 7 right ones": integer_advantages,
    "old and new pass decide apart: the ratio of a token of probability .05, with the same weights": scale_in_each_pass,
    "entropies from bf16 logits, of tokens with 1.5 nats": entropies_in_bf16,
    "a response without tokens": short_responses,
    "a head that caps its logits, k applied before the cap": capped_head,
    "classifier with 10 classes, H0 = 2.27, though ln 10 is 2.30": infeasible_floor,
    "classifier with 1,000 classes under bf16: ties for the first place": ties_in_bf16,
    "classifier with 10 classes: what H0 = 0.6 guarantees": true_floor,
    "controller with 6 dimensions, h_0 = -dim / 2 as the text says": sign_of_the_target,
    "controller with one dimension": one_dimension,
    "controller: the entropy of the bounded action for H0 = -0.5, at a mean of 0, 0.9 and 1": bounded_action,
}


def lines() -> list[list[str]]:
    """A line for each of ROWS: its name, what copied lines give, and what this project gives."""
    return [[name, *compute()] for name, compute in ROWS.items()]


def main() -> None:
    argparse.ArgumentParser("python -m demo.copied", description=__doc__).parse_args()
    for name, copied, here in lines():
        print(f"{name}\n    copied: {copied}\n    here:   {here}")


if __name__ == "__main__":
    main()
