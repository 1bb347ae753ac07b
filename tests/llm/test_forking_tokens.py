# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl/utils/forking_tokens.py against numpy; inside the real actor, and over two processes: test_actor.py."""

import math

import pytest
import torch
from forking import FRACTION, THRESHOLD, actor_config, plain_keep

ENTROPY = "token_entropy"
ROWS, LENGTH = 12, 9


def make_data(entropy, mask, advantages, multi_turn=False):
    from tensordict import TensorDict
    from verl import DataProto

    prompt = torch.ones(len(mask), 2, dtype=torch.long)  # must not be taken for response tokens
    tensors = {
        "responses": mask.long(),
        "advantages": advantages,
        "attention_mask": torch.cat([prompt, mask.long()], -1),
    }
    if multi_turn:
        tensors["loss_mask"] = tensors.pop("attention_mask")
        tensors["attention_mask"] = torch.ones_like(tensors["loss_mask"])
    if entropy is not None:
        tensors[ENTROPY] = entropy
    return DataProto(batch=TensorDict(tensors, batch_size=[len(mask)]), meta_info={"multi_turn": multi_turn})


def example(seed, rows=ROWS, columns=LENGTH):
    """Masks with holes, an empty row, and unequal numbers of tokens in the two halves of the batch."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=g) < torch.linspace(0.2, 0.95, rows).unsqueeze(-1)
    mask[1] = False
    mask[-1] = True
    return 3 * torch.rand(rows, columns, generator=g) ** 4, mask, torch.randn(rows, columns, generator=g)


@pytest.fixture(scope="module")
def forking_tokens(import_verl):
    from verl.utils import forking_tokens

    return forking_tokens


def check(forking_tokens, entropy, mask, advantages, fraction, multi_turn=False):
    """keep_forking_tokens equals plain_keep on this batch; returns what is kept."""
    data = make_data(entropy, mask, advantages, multi_turn)
    metrics = forking_tokens.keep_forking_tokens(actor_config(fraction), data, "cpu")
    keep, threshold = plain_keep(entropy, mask, fraction)
    assert torch.equal(data.batch["advantages"], torch.where(keep, advantages, 0))
    assert metrics == {THRESHOLD: threshold, FRACTION: keep.sum().item() / mask.sum().item()}
    return keep


@pytest.mark.parametrize("multi_turn", [False, True])
@pytest.mark.parametrize("fraction", [1e-9, 0.01, 0.2, 0.29, 0.5, 0.999])
def test_equals_numpy(forking_tokens, fraction, multi_turn):
    for seed in range(8):
        entropy, mask, advantages = example(seed)
        keep = check(forking_tokens, entropy, mask, advantages, fraction, multi_turn)
        assert keep.sum() == max(1, math.floor(fraction * mask.sum().item())), "without ties the number is exact"


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
    entropy, mask, advantages = example(9)
    clean, poisoned = (
        make_data(torch.where(mask, entropy, p), mask, torch.where(mask, advantages, p)) for p in (0.0, poison)
    )
    metrics = [forking_tokens.keep_forking_tokens(actor_config(0.2), data, "cpu") for data in (clean, poisoned)]
    assert metrics[0] == metrics[1]
    assert torch.equal(clean.batch["advantages"], poisoned.batch["advantages"])
