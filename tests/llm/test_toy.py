# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The formulas and the tables of docs/llm/when-it-holds.md, with its table of logits."""

import dataclasses
import itertools
import math
import re

import pytest
import torch

from demo import toy
from era.language import decide
from era.language_config import EraConfig

pytestmark = pytest.mark.usefixtures("one_thread")

P = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05], dtype=torch.double)
IS_RIGHT = torch.tensor([False, True, True, False, True])


def expected_update(p, is_right, answers, **era):
    """The gradient of GRPO's loss with ERA, its sign turned, in the mean over all groups of so many answers."""
    logits = p.log().requires_grad_()
    entropy = torch.distributions.Categorical(logits=logits).entropy().detach()
    groups = torch.tensor([*itertools.product(range(len(p)), repeat=answers)])
    reward = is_right[groups].double()
    advantages = (reward - reward.mean(-1, keepdim=True)) / (reward.std(-1, keepdim=True) + 1e-300)
    each = advantages.view(-1, 1)
    config = EraConfig(enable=True, top_fraction=1.0, **era)
    log_p = p.log()[groups].view(-1, 1)
    decision = decide(entropy.expand_as(each), log_p, each, torch.ones_like(each), config)
    log_probs = (logits * decision.scale).log_softmax(-1).gather(-1, groups.view(-1, 1))
    probability = p[groups].prod(-1)
    objective = (probability * (decision.advantages * log_probs).view_as(groups).mean(-1)).sum()
    c = (probability * advantages.abs().mean(-1)).sum() / 2
    return torch.autograd.grad(objective, logits)[0], c


@pytest.mark.parametrize("k", (1.0, 2.0, 8.0))
@pytest.mark.parametrize("answers", (2, 4))
@pytest.mark.parametrize("side", ("below", "above"))
def test_the_expected_update(k, answers, side):
    """Exactly, for groups of any size, with c half the mean of |A|; by fp64 over all groups."""
    bounds, factor = ({"low": 2.0}, k) if side == "below" else ({"low": 0.0, "high": 0.1}, 1 / k)
    right, wrong = P * IS_RIGHT, P * ~IS_RIGHT
    positive = factor * (right / right.sum() - (factor * P.log()).softmax(-1))
    negative = P - wrong / wrong.sum()

    update, c = expected_update(P, IS_RIGHT, answers, k=k, **bounds)
    torch.testing.assert_close(update, c * (positive + negative), rtol=0, atol=1e-14)
    held, _ = expected_update(P, IS_RIGHT, answers, k=k, hold=True, **bounds)
    # Above, of the wrong tokens the first alone is likelier than exp(-H).
    dropped = wrong * (P > 0.4) if side == "above" else wrong
    kept = negative + (dropped - dropped.sum() * P) / wrong.sum()
    torch.testing.assert_close(held, c * (positive + kept), rtol=0, atol=1e-14)


def push(p, k, negatives):
    """The expected update where all likely tokens are right, divided by c."""
    return k * (p - (k * p.log()).softmax(-1)) + negatives * p


@pytest.mark.parametrize("right, leaders", ((2, 1), (16, 1), (16, 2), (16, 4), (64, 3)))
@pytest.mark.parametrize("k", (1.8, 2.0, 4.0, 8.0))
def test_the_leaders_push_cancels_at_the_lowest_bound(k, right, leaders):
    def gain_and_entropy(share):
        p = torch.tensor([share / leaders] * leaders + [(1 - share) / (right - leaders)] * (right - leaders)).double()
        of_logits = push(p, k, negatives=1)
        return (of_logits[0] - of_logits[-1]).item(), torch.special.entr(p).sum().item()

    lowest = toy.lowest_bound(k, right, leaders)
    shares = torch.linspace(leaders / right + 1e-3, 1 - 1e-6, 3000).double().tolist()
    for gain, entropy in map(gain_and_entropy, shares):
        if abs(entropy - lowest) > 0.01:
            assert (gain > 0) == (entropy < lowest)


def test_equal_tokens_part_below_the_golden_ratio():
    assert math.isnan(toy.lowest_bound(1.61)) and toy.lowest_bound(1.63) > 0
    p = torch.full((16,), 1 / 16).double()
    p[0] += 1e-6
    for k, parts in ((1.61, True), (1.63, False)):
        of_logits = push(p / p.sum(), k, negatives=1)
        assert (of_logits[0] > of_logits[1]) == parts


def test_the_starts_have_the_shares_that_they_say():
    p = {
        name: toy.start_logits(name, 2, torch.Generator().manual_seed(1)).exp()
        for name in ("easy", "few", "trap", "leaders", "peaked")
    }
    for name, of_right in (("easy", 0.3), ("few", 0.05), ("trap", 0.05), ("leaders", 0.3)):
        torch.testing.assert_close(p[name].sum(-1), torch.ones(2, toy.PROMPTS))
        torch.testing.assert_close(p[name][..., : toy.RIGHT].sum(-1), torch.full((2, toy.PROMPTS), of_right))
    torch.testing.assert_close(p["trap"][..., toy.RIGHT], torch.full((2, toy.PROMPTS), 0.95 * 0.8))
    torch.testing.assert_close(p["leaders"][..., :3].sum(-1), torch.full((2, toy.PROMPTS), 0.3 * 0.9))
    torch.testing.assert_close(p["peaked"].amax(-1), torch.full((2, toy.PROMPTS), 0.7))


def test_without_negative_advantages_the_entropy_may_fall_first():
    """What the page says of "trap" after 100 updates: with Adam, and not with SGD."""
    setting = dataclasses.replace(toy.SETTINGS["trap"], updates=100)
    entropies, _ = toy.train(setting, {name: toy.ARMS[name] for name in ("GRPO", "no neg. 2")})
    torch.testing.assert_close(entropies[-1].mean(-1), torch.tensor([[3.4, 2.2], [3.3, 3.6]]), rtol=0, atol=0.1)


def test_it_writes_the_tables_of_the_page_and_draws(project_root, monkeypatch, tmp_path):
    """All but their numbers, which are those of fewer updates here."""
    shown = (project_root / "docs/llm/when-it-holds.md").read_text()
    page, picture = tmp_path / "page.md", tmp_path / "folder/toy.png"
    page.write_text(shown)
    for settings in (toy.SETTINGS, toy.SETTINGS_ABOVE):
        for name, setting in settings.items():
            monkeypatch.setitem(settings, name, dataclasses.replace(setting, updates=150))
    monkeypatch.setattr("sys.argv", ["toy", "--page", str(page), "--picture", str(picture)])
    toy.main()
    written = page.read_text()
    assert picture.stat().st_size > 1000 and written != shown
    assert re.sub(r"\d\.\d+", "x", written) == re.sub(r"\d\.\d+", "x", shown)
