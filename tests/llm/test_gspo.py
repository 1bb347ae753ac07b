# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl/trainer/ppo/gspo.py against its paper's equations in plain Python and fp64."""

import math
from types import SimpleNamespace

import pytest
import torch

LOW, HIGH = 0.03, 0.04
CONFIG = SimpleNamespace(clip_ratio=0.2, clip_ratio_low=LOW, clip_ratio_high=HIGH)


@pytest.fixture(scope="module")
def gspo(import_verl):
    from verl.trainer.ppo.gspo import compute_policy_loss_gspo

    return lambda *args, config=CONFIG: compute_policy_loss_gspo(*args, config=config)


def example(seed, rows=7, columns=9, spread=0.1, token_advantages=False):
    """Responses of 1 to `columns` tokens, masks with holes, ratios on both sides of both bounds."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=g) < 0.7
    mask[:, seed % columns] = True
    old = -3 * torch.rand(rows, columns, generator=g, dtype=torch.double)
    # A shift per response, so that whole responses and not only tokens are out of bounds.
    shifts = (torch.randn(rows, n, generator=g, dtype=torch.double) for n in (columns, 1))
    log_prob = old + spread * sum(shifts)
    advantages = torch.randn(rows, columns if token_advantages else 1, generator=g, dtype=torch.double)
    advantages = advantages.expand(rows, columns)
    return old, log_prob, advantages, mask


def plain(old, log_prob, advantages, mask):
    """J of GSPO-token, dJ/dlog_prob and the clipped share of the tokens.

    A token's gradient is s_i A_it / (G |y_i|), or 0 where the minimum is the clipped, constant one.
    """
    rows, columns = mask.shape
    objective, gradient, clipped = 0.0, [[0.0] * columns for _ in range(rows)], 0
    for i in range(rows):
        tokens = [t for t in range(columns) if mask[i, t]]
        likelihoods = (math.prod(math.exp(values[i, t]) for t in tokens) for values in (log_prob, old))
        s = (next(likelihoods) / next(likelihoods)) ** (1 / len(tokens))
        for t in tokens:
            a, weight = advantages[i, t].item(), 1 / (rows * len(tokens))
            objective += weight * min(s * a, min(max(s, 1 - LOW), 1 + HIGH) * a)
            if a > 0 and s > 1 + HIGH or a < 0 and s < 1 - LOW:
                clipped += 1
            else:
                gradient[i][t] = weight * s * a
    return objective, torch.tensor(gradient, dtype=torch.double), clipped / mask.sum().item()


def loss_and_gradient(gspo, old, log_prob, advantages, mask, **kwargs):
    log_prob = log_prob.detach().requires_grad_()
    loss, *metrics = gspo(old, log_prob, advantages, mask, **kwargs)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return loss.detach(), gradient, metrics


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("token_advantages", [False, True])
def test_value_gradient_and_metrics_equal_the_papers(gspo, seed, token_advantages):
    old, log_prob, advantages, mask = example(seed, token_advantages=token_advantages)
    loss, gradient, (clip_fraction, kl, lower) = loss_and_gradient(gspo, old, log_prob, advantages, mask)
    objective, expected, clipped = plain(old, log_prob, advantages, mask)
    assert loss.item() == pytest.approx(-objective, rel=1e-12)
    torch.testing.assert_close(gradient, -expected, rtol=1e-12, atol=1e-15)
    assert clip_fraction.item() == pytest.approx(clipped, abs=1e-6)
    assert kl.item() == pytest.approx((old - log_prob)[mask].mean().item(), rel=1e-6)
    assert lower.item() == 0


def test_examples_reach_every_branch():
    seen = set()
    for seed in range(8):
        old, log_prob, advantages, mask = example(seed)
        s = torch.exp(((log_prob - old) * mask).sum(-1) / mask.sum(-1))
        kinds = ["low" if r < 1 - LOW else "high" if r > 1 + HIGH else "in" for r in s.tolist()]
        seen |= set(zip((advantages[:, 0] > 0).tolist(), kinds))
    assert len(seen) == 6


def test_clip_ratio_is_the_fallback(gspo):
    values = example(2)

    def loss(clip_ratio, bound):
        bounds = {"clip_ratio_low": bound, "clip_ratio_high": bound}
        return gspo(*values, config=SimpleNamespace(clip_ratio=clip_ratio, **bounds))[0]

    assert loss(0.01, None) == loss(9.0, 0.01) != gspo(*values)[0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
def test_values_outside_the_mask_never_matter(gspo, poison, mask_dtype):
    *values, mask = example(4, token_advantages=True)
    loss, gradient, metrics = loss_and_gradient(gspo, *values, mask)
    again, poisoned, others = loss_and_gradient(
        gspo, *(tensor.masked_fill(~mask, poison) for tensor in values), mask.to(mask_dtype)
    )
    assert torch.equal(again, loss) and torch.equal(poisoned, gradient) and others == metrics


def test_empty_response_has_loss_0_and_nan_is_not_hidden(gspo):
    old, log_prob, advantages, mask = example(5)
    without = loss_and_gradient(gspo, old[1:], log_prob[1:], advantages[1:], mask[1:])
    mask[0] = False
    loss, gradient, _ = loss_and_gradient(gspo, old, log_prob, advantages, mask)
    torch.testing.assert_close(loss, without[0] * 6 / 7)
    torch.testing.assert_close(gradient, torch.cat([torch.zeros(1, 9, dtype=torch.double), without[1] * 6 / 7]))
    loss, gradient, metrics = loss_and_gradient(gspo, old, log_prob, advantages, torch.zeros_like(mask))
    assert loss == 0 and (gradient == 0).all() and all(metric == 0 for metric in metrics)
    log_prob[mask] = math.nan
    assert gspo(old, log_prob, advantages, mask)[0].isnan()


@pytest.mark.parametrize("log_ratio", [1e4, -700.0, 1e30])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_log_ratios_stay_finite(gspo, log_ratio, advantage):
    ratios, advantages = torch.full((2, 4), log_ratio / 4), torch.full((2, 4), advantage)
    loss, gradient, metrics = loss_and_gradient(gspo, torch.zeros(2, 4), ratios, advantages, torch.ones(2, 4))
    assert loss.isfinite() and gradient.isfinite().all() and all(metric.isfinite() for metric in metrics)
    assert (gradient == 0).all(), "clipped, or beyond the bound of verl's log-ratios"


def test_the_papers_bounds_work_in_bf16(gspo):
    """At bf16's precision a ratio of 1.0005 would be 1; the log-probs themselves are exact here."""
    old = torch.full((1, 8), -(2.0**-9), dtype=torch.bfloat16)
    log_prob, ones = old + torch.tensor(2.0**-11, dtype=torch.bfloat16), torch.ones(1, 8)
    config = SimpleNamespace(clip_ratio_low=3e-4, clip_ratio_high=4e-4)
    _, gradient, (clip_fraction, *_) = loss_and_gradient(gspo, old, log_prob, ones, ones, config=config)
    assert clip_fraction.item() == pytest.approx(1) and (gradient == 0).all()
