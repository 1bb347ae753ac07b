# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl/utils/forking_tokens.py against numpy; inside the real actor, and over two processes: test_actor.py."""

import math

import pytest
import torch
from forking import FRACTION, THRESHOLD, actor_config, plain_keep


def make_data(entropy, mask, advantages):
    from tensordict import TensorDict
    from verl import DataProto

    prompt = torch.ones(len(mask), 2, dtype=torch.long)  # must not be taken for response tokens
    tensors = {
        "responses": mask.long(),
        "advantages": advantages,
        "attention_mask": torch.cat([prompt, mask.long()], -1),
        "token_entropy": entropy,
    }
    return DataProto(batch=TensorDict(tensors, batch_size=[len(mask)]), meta_info={"multi_turn": False})


@pytest.fixture(scope="module")
def forking_tokens(import_verl):
    from verl.utils import forking_tokens

    return forking_tokens


def check(forking_tokens, entropy, mask, advantages, fraction):
    """keep_forking_tokens equals plain_keep on this batch; returns what is kept."""
    data = make_data(entropy, mask, advantages)
    metrics = forking_tokens.keep_forking_tokens(actor_config(fraction), data, "cpu")
    keep, threshold = plain_keep(entropy, mask, fraction)
    assert torch.equal(data.batch["advantages"], torch.where(keep, advantages, 0))
    assert metrics == {THRESHOLD: threshold, FRACTION: keep.sum().item() / mask.sum().item()}
    return keep


def test_every_rank_of_every_kind_of_number(forking_tokens):
    """The bisection on bits: negative (rounding errors), zeros of both signs, subnormal, huge, infinite."""
    numbers = [0.0, -0.0, 1e-45, -1e-45, 1e-8, -1e-8, 0.5, 0.5000001, 11.93, 2.0, 1.9999999]
    numbers += [3e38, -3e38, math.inf, -math.inf]
    values = torch.tensor(numbers)
    ordered = sorted(values.tolist(), reverse=True)
    assert [forking_tokens._largest(values, rank) for rank in range(1, len(values) + 1)] == ordered


def test_ties_one_token_and_none(forking_tokens):
    """Ties at the threshold are all kept."""
    entropy = torch.tensor([[0.1, 2.0, 2.0, 2.0, 0.3], [0.2, 2.0, 3.0, 0.1, 0.0]])
    keep = check(forking_tokens, entropy, torch.ones(2, 5), torch.ones(2, 5), 0.2)
    assert keep.tolist() == [[False, True, True, True, False], [False, True, True, False, False]]
    mask = torch.zeros(3, 4, dtype=torch.bool)
    data = make_data(torch.full((3, 4), math.nan), mask, torch.ones(3, 4))
    metrics = forking_tokens.keep_forking_tokens(actor_config(0.2), data, "cpu")
    assert math.isnan(metrics[THRESHOLD]) and math.isnan(metrics[FRACTION])
    mask[2, 1] = True
    assert check(forking_tokens, torch.rand(3, 4), mask, torch.randn(3, 4), 0.2).sum() == 1


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_values_outside_the_mask_never_matter(forking_tokens, poison):
    g = torch.Generator().manual_seed(9)
    mask, entropy, advantages = torch.rand(12, 9, generator=g) < 0.7, *torch.rand(2, 12, 9, generator=g)
    clean, poisoned = (
        make_data(torch.where(mask, entropy, p), mask, torch.where(mask, advantages, p)) for p in (0.0, poison)
    )
    metrics = [forking_tokens.keep_forking_tokens(actor_config(0.2), data, "cpu") for data in (clean, poisoned)]
    assert metrics[0] == metrics[1]
    assert torch.equal(clean.batch["advantages"], poisoned.batch["advantages"])
