# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Policy gradient on forking tokens: `actor_rollout_ref.actor.policy_loss.forking_fraction` < 1.

Wang et al. 2025, "Beyond the 80/20 Rule", arXiv 2506.01939: only the tokens whose entropy is in the
top `fraction` of the batch get a policy gradient, while the loss is still divided by the number of
all tokens.

    old_log_prob pass   era_fsdp.py              the entropies travel beside old_log_probs
    start of update     keep_forking_tokens      the advantages of all other tokens become 0

A token with advantage 0 has policy loss 0 and gradient 0, and stays in the denominator. Entropy
bonus and KL loss, which do not read the advantages, are over all tokens. With fraction 1, the
default, training is upstream's to the bit.
"""

import math
from typing import Any, Mapping, Union

import torch
import torch.distributed as dist

from verl import DataProto
from verl.utils.era.language import forking_count
from verl.utils.era.language_config import FORKING_KEY
from verl.utils.ulysses import get_ulysses_sequence_parallel_world_size

# In the batch, (bsz, response_length): token entropies in nats of the policy that sampled, for ERA
# and for forking tokens.
TOKEN_ENTROPY = "token_entropy"


def read_fraction(actor_config: Mapping[str, Any]) -> float:
    """The share of tokens that get a policy gradient, in (0, 1]; 1 where it is not set."""
    return (actor_config.get("policy_loss") or {}).get("forking_fraction", 1.0)


def response_mask(batch: Mapping[str, torch.Tensor], multi_turn: bool) -> torch.Tensor:
    """The mask of the tokens that the policy loss takes, (bsz, response_length)."""
    response_length = batch["responses"].size(1)
    return batch["loss_mask" if multi_turn else "attention_mask"][:, -response_length:]


def keep_forking_tokens(
    actor_config: Mapping[str, Any], data: DataProto, device: Union[str, int]
) -> dict[str, float]:
    """Set all advantages to 0 but those of the forking tokens of the whole batch, over all ranks.

    Of n response tokens, the max(1, floor(fraction x n)) of highest entropy are kept. All tokens
    that tie with the lowest of these entropies are kept too, as in the paper's H >= threshold. So
    the choice does not depend on the order of the tokens or on how they are spread over the ranks.

    Args:
        actor_config: `actor_rollout_ref.actor`.
        data: this rank's whole batch of the update, with TOKEN_ENTROPY; it gets new "advantages",
            (bsz, response_length).
        device: where collectives run.

    Returns:
        Metrics over all ranks: `forking/entropy_threshold`, the lowest entropy kept, in nats, and
        `forking/token_fraction`, the share of tokens kept. NaN without a single token; empty with
        fraction 1.

    Raises:
        ValueError: some of the entropies are NaN (on all ranks, so that none waits for the others).
    """
    fraction = read_fraction(actor_config)
    if fraction == 1:
        return {}

    batch = data.batch
    mask = response_mask(batch, data.meta_info.get("multi_turn", False)).bool()
    entropy = batch[TOKEN_ENTROPY]
    values = entropy[mask].to(device)
    if not_numbers := _count(values.isnan()):
        raise ValueError(
            f"{FORKING_KEY}={fraction} needs the token entropies, but those of {not_numbers} "
            "response tokens are NaN: the model's logits held NaN or -inf. This step's "
            "update was not begun; checkpoints are as they were."
        )

    # The threshold of the batch of all ranks.
    tokens = _count(torch.ones_like(values, dtype=torch.bool))
    if tokens == 0:
        return {"forking/entropy_threshold": math.nan, "forking/token_fraction": math.nan}
    kept = forking_count(torch.tensor(tokens), fraction).item()
    threshold = _largest(values, kept)

    batch["advantages"] = batch["advantages"].masked_fill(~(mask & (entropy >= threshold)), 0)
    return {
        "forking/entropy_threshold": threshold,
        "forking/token_fraction": _count(values >= threshold) / tokens,
    }


def _count(selected: torch.Tensor) -> int:
    """How many are True over all ranks; the copies on sequence-parallel ranks count once."""
    count = selected.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    return count.item() // get_ulysses_sequence_parallel_world_size()


def _largest(values: torch.Tensor, rank: int) -> float:
    """The rank-th largest (from 1) of the fp32 values of all ranks, exactly.

    Bisection on the bits of the numbers: 32 all-reduces of one integer, where gathering a batch of
    2048 x 8192 tokens would put 64 MiB on every GPU.
    """
    keys = _order(values)
    low, high = -(2**31), 2**31 - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _count(keys >= middle) >= rank:
            low = middle
        else:
            high = middle - 1
    return _order(torch.tensor(low, dtype=torch.int32)).view(torch.float32).item()


def _order(numbers: torch.Tensor) -> torch.Tensor:
    """Maps fp32 numbers to int32 keys in the same order; on the bits it is its own inverse."""
    bits = numbers.view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
