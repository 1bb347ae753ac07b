# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl/trainer/ppo/gspo.py by hand and at its edges. Whole updates with it, against fp64: test_actor.py."""

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


def loss_and_gradient(gspo, old, log_prob, advantages, mask, **kwargs):
    log_prob = log_prob.detach().requires_grad_()
    loss, *metrics = gspo(old, log_prob, advantages, mask, **kwargs)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return loss.detach(), gradient, metrics


def test_each_token_has_its_own_advantage_and_the_metrics_are_over_tokens(gspo):
    """Of two responses one is clipped, with 3 tokens of 7. In the other a token's gradient is s A / (2 x 4)."""
    log_prob = torch.tensor([[0.2, 0.2, 0.2, 9.0], [0.01, 0.02, 0.0, 0.01]], dtype=torch.double)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    advantages = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, -4.0]], dtype=torch.double)
    _, gradient, metrics = loss_and_gradient(gspo, torch.zeros_like(log_prob), log_prob, advantages, mask)
    expected = torch.stack([torch.zeros(4), -math.exp(0.01) * advantages[1] / 8])
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)
    assert [metric.item() for metric in metrics] == pytest.approx([3 / 7, -0.64 / 7, 0], rel=1e-6)


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
