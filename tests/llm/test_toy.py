# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The table of logits of docs/llm/when-it-holds.md."""

import math

import pytest
import torch

from demo import toy


def drift(likely, right, k, weight, scale_advantages):
    """What the likely right token's logit gains on another right one's in an expected update, by autograd."""
    wrong = 1e-9  # its mass
    p = torch.full((right + 1,), (1 - wrong) * (1 - likely) / (right - 1), dtype=torch.double)
    p[0], p[-1] = (1 - wrong) * likely, wrong
    positive, negative = math.sqrt(wrong / (1 - wrong)), -weight * math.sqrt((1 - wrong) / wrong)
    logits = p.log().requires_grad_()
    of_right = (p[:-1] * (k * logits).log_softmax(-1)[:-1]).sum() * positive / (k if scale_advantages else 1)
    of_wrong = p[-1] * negative * logits.log_softmax(-1)[-1]
    (gradient,) = torch.autograd.grad(of_right + of_wrong, logits)
    return ((gradient[0] - gradient[1]) / positive).item()


@pytest.mark.parametrize("right", (2, 3, 16, 64))
@pytest.mark.parametrize("k", (1.8, 2.0, 4.0, 8.0))
@pytest.mark.parametrize("weight, scaled", ((1.0, False), (0.5, False), (0.3, True)))
def test_the_forces_cancel_at_the_lowest_bound(right, k, weight, scaled):
    likely, entropy = toy.lowest_bound(k, right, weight, scaled)
    assert drift(likely, right, k, weight, scaled) == pytest.approx(0, abs=1e-6)
    assert drift(likely - 0.02, right, k, weight, scaled) < 0 < drift(likely + 0.02, right, k, weight, scaled)
    p = torch.tensor([likely, *[(1 - likely) / (right - 1)] * (right - 1)])
    assert entropy == pytest.approx(torch.distributions.Categorical(p).entropy().item(), abs=1e-5)


def test_where_nothing_is_held_and_where_all_is():
    assert math.isnan(toy.lowest_bound(1.5)[1])
    assert math.isnan(toy.lowest_bound(1.9, scale_advantages=True)[1])
    assert toy.lowest_bound(2.0, weight=0.0) == (1.0, 0.0)


def test_a_bound_far_above_the_lowest_is_held_and_one_far_below_is_lost():
    held, _ = toy.train(toy.Setting(low=2.0, updates=400), factors=(1.0, 8.0), seeds=2)
    grpo, era = held[-20:].mean((0, 2)).tolist()
    assert era == pytest.approx(2.0, abs=0.15) and grpo < 1.3
    lost, _ = toy.train(toy.Setting(low=1.2, updates=800, dynamic_sampling=True), factors=(2.0,), seeds=2)
    assert lost[-20:].mean() < 0.9


def test_it_prints_a_row_for_each_setting_and_draws(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        toy, "SETTINGS", {"one": toy.Setting(updates=25), "another": toy.Setting(updates=25, right_later=0.9)}
    )
    monkeypatch.setattr("sys.argv", ["toy", "--picture", str(tmp_path / "folder/toy.png")])
    toy.main()
    assert (tmp_path / "folder/toy.png").stat().st_size > 1000
    rows = capsys.readouterr().out.splitlines()
    assert len([row for row in rows if row.startswith(("one", "another")) and row.count("±") == 5]) == 2
