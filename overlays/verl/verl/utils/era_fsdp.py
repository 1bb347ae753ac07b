# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What verl's FSDP actor calls for ERA: it carries the quantities of verl/utils/era.py through a training step.

    start               read_config              refuses actors that would not call the rest
    old_log_prob pass   entropy_summary          H_resp of each response travels beside old_log_probs
    start of update     decide_scales            H_resp and the advantages give the scale of each token, once
    forward             divide_by_temperature_   the division that verl does anyway applies the scale
                        top_k                    the filter of the log-probs
    loss                policy_loss_inputs       on-policy: the old log-probs are the new ones, detached

With ERA disabled each of them gives back what upstream uses, so that the training is upstream's to the bit.
"""

import itertools
from typing import Any, Mapping, Optional, Union

import torch
import torch.distributed as dist
import torch.nn.functional as F

from verl import DataProto
from verl.utils.era import CONFIG_KEY, EraConfig, divide_rows_, forking_count, logit_scale, split_entropy
from verl.utils.ulysses import get_ulysses_sequence_parallel_rank, get_ulysses_sequence_parallel_world_size

RESPONSE_ENTROPY = "era_response_entropy"
REST_ENTROPY = "era_rest_entropy"
LOGIT_SCALE = "era_logit_scale"


def _response_mask(batch: Mapping[str, torch.Tensor], multi_turn: bool) -> torch.Tensor:
    """(bsz, response_length), the mask that the policy loss uses."""
    response_length = batch["responses"].size(1)
    return batch["loss_mask" if multi_turn else "attention_mask"][:, -response_length:]


def read_config(actor: Any) -> EraConfig:
    """The configuration of a DataParallelPPOActor.

    Raises:
        ValueError: a bad value, or ERA on an actor with an update of its own (recipe/spin, recipe/sppo), which would
            never call it.
    """
    era = EraConfig.from_mapping(actor.config.get("era"))
    subclasses = itertools.takewhile(lambda cls: cls.__name__ != "DataParallelPPOActor", type(actor).__mro__)
    own_updates = [f"{cls.__name__}.{name}" for cls in subclasses for name in vars(cls) if name.startswith("update_policy")]
    if era.enable and own_updates:
        raise ValueError(f"{CONFIG_KEY}.enable=True needs DataParallelPPOActor's own update, but this recipe has {own_updates[0]}, which would silently ignore ERA. Set it to False.")
    return era


def entropy_summary(config: Mapping[str, Any], data: DataProto, entropys: torch.Tensor) -> dict[str, torch.Tensor]:
    """Per-response entropies to return beside old_log_probs.

    Args:
        config: the worker's configuration, `actor_rollout_ref`.
        data: the batch of the old_log_prob pass.
        entropys: (bsz, response_length) token entropies in nats of the sampling policy.

    Returns:
        H_resp and the mean entropy of the other tokens, (bsz,) each; nothing with ERA disabled.
    """
    era = EraConfig.from_mapping(config["actor"].get("era"))
    if not era.enable:
        return {}
    multi_turn = config["rollout"].get("multi_turn") or {}
    mask = _response_mask(data.batch, multi_turn.get("enable", False))
    top, rest = split_entropy(entropys.float(), mask.to(entropys.device), era.top_fraction)
    return {RESPONSE_ENTROPY: top, REST_ENTROPY: rest}


def decide_scales(era: EraConfig, data: DataProto, select_keys: list[str], ppo_mini_batch_size: int, ppo_epochs: int, device: Union[str, int]) -> dict[str, float]:
    """Decide the logit scale of every token, add it to the batch and to `select_keys`, and measure the era/ metrics.

    Args:
        era: the configuration.
        data: this rank's whole batch of the update; it gains the key `era_logit_scale`, (bsz, response_length).
        select_keys: the keys that the update passes on to its micro-batches.
        ppo_mini_batch_size, ppo_epochs: of this rank.
        device: where collectives run.

    Returns:
        Metrics over all ranks; empty with ERA disabled.

    Raises:
        ValueError: the update would be off-policy, or the old_log_prob pass did not bring the entropies.
    """
    if not era.enable:
        return {}
    batch = data.batch
    if RESPONSE_ENTROPY not in batch.keys():
        raise ValueError(f"ERA needs the response entropies of the old_log_prob pass, but the batch has no '{RESPONSE_ENTROPY}'. The trainer must call the actor's compute_log_prob and unite its output with the batch before update_actor.")
    if era.changes_training and (len(batch) > ppo_mini_batch_size or ppo_epochs != 1):
        raise ValueError(f"ERA is on-policy: {len(batch)} responses, ppo_mini_batch_size {ppo_mini_batch_size} (both per rank) and ppo_epochs {ppo_epochs} would take several optimizer steps on one batch. Use one mini-batch and one epoch.")
    mask = _response_mask(batch, data.meta_info.get("multi_turn", False)).bool()
    entropy = batch[RESPONSE_ENTROPY]
    scale = logit_scale(entropy, batch["advantages"], mask, low=era.low, high=era.high, k=era.k, min_advantage=era.min_advantage)
    if era.changes_training:
        batch[LOGIT_SCALE] = scale
        select_keys.append(LOGIT_SCALE)
    return _metrics(era, entropy, batch[REST_ENTROPY], mask, scale, device)


def _metrics(era: EraConfig, entropy: torch.Tensor, rest: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor, device) -> dict[str, float]:
    """Means over the responses (H_resp, fractions) and over the tokens (the others) of all ranks."""
    length = mask.sum(-1)
    top_count = forking_count(length, era.top_fraction)
    rest_count = length - top_count
    known = ~entropy.isnan()
    sums = torch.stack(
        [
            entropy.nansum(dtype=torch.double),
            (entropy < era.low).sum().double(),
            (entropy > era.high).sum().double(),
            known.sum().double(),
            (scale != 1).sum().double(),
            length.sum().double(),
            (entropy.double() * top_count).nansum(),
            (top_count * known).sum().double(),
            (rest.double() * rest_count).nansum(),
            (rest_count * ~rest.isnan()).sum().double(),
        ]
    ).to(device)
    if dist.is_initialized():
        dist.all_reduce(sums)  # sequence-parallel ranks hold the same responses: counted equally often, the means are right
    total, low, high, responses, scaled, tokens, top_total, top_tokens, rest_total, rest_tokens = sums.tolist()
    return {
        "era/response_entropy": _ratio(total, responses),
        "era/low_fraction": _ratio(low, responses),
        "era/high_fraction": _ratio(high, responses),
        "era/scaled_token_fraction": _ratio(scaled, tokens),
        "era/top_entropy": _ratio(top_total, top_tokens),
        "era/rest_entropy": _ratio(rest_total, rest_tokens),
    }


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")


def divide_by_temperature_(
    logits: torch.Tensor,
    temperature: float,
    micro_batch: Mapping[str, torch.Tensor],
    indices: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """In-place division of the logits by the temperature, or by temperature / scale of the token that a position predicts.

    Args:
        logits: padded (bsz, seqlen, vocabulary), or packed (tokens of this sequence-parallel rank, vocabulary).
        temperature: of the sampling.
        micro_batch: holds `era_logit_scale` (bsz, response_length) in an update with ERA, `input_ids` (bsz, seqlen).
        indices: (tokens,) of the packed tokens in the flattened (bsz x seqlen); None for padded logits.
    """
    if LOGIT_SCALE not in micro_batch.keys():
        return logits.div_(temperature)
    return divide_rows_(logits, _divisor(logits, temperature, micro_batch, indices).unsqueeze(-1))


def _divisor(logits, temperature, micro_batch, indices) -> torch.Tensor:
    """temperature / scale, (bsz, seqlen) or (tokens of this rank,)."""
    scale = micro_batch[LOGIT_SCALE].to(torch.promote_types(logits.dtype, torch.float32))
    # The token at position t is predicted at t - 1; prompt positions and the last one keep the plain temperature.
    prompt_length = micro_batch["input_ids"].size(1) - scale.size(1)
    divisor = F.pad(temperature / scale, (prompt_length - 1, 1), value=temperature)
    if indices is None:
        return divisor
    divisor = divisor.flatten()[indices]
    ranks = get_ulysses_sequence_parallel_world_size()
    padding = logits.size(0) * ranks - divisor.size(0)
    return F.pad(divisor, (0, padding), value=temperature).chunk(ranks)[get_ulysses_sequence_parallel_rank()]


def top_k(era: EraConfig, micro_batch: Mapping[str, torch.Tensor]) -> Optional[int]:
    """The filter of the log-probs, in the update alone: old log-probs and entropies are those of the sampling policy."""
    return era.top_k if LOGIT_SCALE in micro_batch.keys() else None


def policy_loss_inputs(era: EraConfig, micro_batch: Mapping[str, torch.Tensor], log_prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The old log-probs and the advantages of the policy loss, (bsz, response_length) each.

    With one mini-batch and one epoch the policy of the update is the one that sampled, so the old log-probs of the
    transformed policy are `log_prob` itself: the ratio is exactly 1, without a second pass. `scale_advantages` gives
    A' = A / scale (the paper's equation after Eq. llm).
    """
    old_log_prob, advantages = micro_batch["old_log_probs"], micro_batch["advantages"]
    if LOGIT_SCALE not in micro_batch.keys():
        return old_log_prob, advantages
    if era.scale_advantages:
        advantages = advantages / micro_batch[LOGIT_SCALE]
    return log_prob.detach(), advantages
