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
"""Group Sequence Policy Optimization (GSPO): `actor_rollout_ref.actor.policy_loss.loss_mode=gspo`.

Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071. The importance ratio is
one of whole responses, the geometric mean of the token ratios, and so is the clipping:

    s_i = (pi(y_i | x) / pi_old(y_i | x)) ^ (1 / |y_i|)
    J   = mean over responses i of  mean over tokens t of
              min(s_it A_it, clip(s_it, 1 - low, 1 + high) A_it)
    s_it = sg[s_i] pi(y_it) / sg[pi(y_it)]

This is GSPO-token, which allows advantages that differ between the tokens (forking tokens, ERA's
scaled advantages). Where they do not, its value and its gradient are those of GSPO.
"""

from typing import Any, Mapping

import torch

import verl.utils.torch_functional as verl_F
from verl.trainer.ppo.core_algos import register_policy_loss

# The bound that verl puts on log-ratios for stability: beyond it the ratio is constant and has no
# gradient.
_MAX_LOG_RATIO = 20.0


@register_policy_loss("gspo")
def compute_policy_loss_gspo(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    loss_agg_mode="seq-mean-token-mean",
    config=None,
):
    """The clipped objective of GSPO and its metrics.

    Ratios are computed in at least fp32: the paper clips at about 3e-4, which bf16 cannot tell from
        0. Unlike
    `compute_policy_loss` there is no dual clip, so `clip_ratio_c` is not read.

    Args:
        old_log_prob, log_prob: (bsz, response_length) log-probs of the policy that sampled and of
            the current one.
        advantages: (bsz, response_length).
        response_mask: (bsz, response_length), bool or 0/1. Values outside it are ignored, NaN
            included. A response without a token counts as one with loss 0.
        loss_agg_mode: seq-mean-token-mean, the only one with which this is GSPO.
        config: the actor's configuration; clip_ratio_low and clip_ratio_high are read, clip_ratio
            where one is None.

    Returns:
        Scalars: the loss; the share of tokens whose gradient the clipping took away; the mean of
        old_log_prob - log_prob over the tokens; 0, as there is no dual clip.

    Raises:
        ValueError: another loss_agg_mode.
    """
    _require_seq_mean_token_mean(loss_agg_mode)
    clip_low = config.clip_ratio_low if config.clip_ratio_low is not None else config.clip_ratio
    clip_high = config.clip_ratio_high if config.clip_ratio_high is not None else config.clip_ratio

    mask = response_mask.bool()
    length = mask.sum(-1, keepdim=True).clamp(min=1)
    dtype = torch.promote_types(log_prob.dtype, torch.float32)
    # Filled before the arithmetic, not multiplied by the mask after it: NaN x 0 is NaN, in the
    # gradient as well.
    log_ratio = (log_prob.to(dtype) - old_log_prob.to(dtype)).masked_fill(~mask, 0)
    advantages = advantages.masked_fill(~mask, 0)

    sequence_log_ratio = log_ratio.detach().sum(-1, keepdim=True) / length
    ratio = (
        (sequence_log_ratio + (log_ratio - log_ratio.detach()))
        .clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        .exp()
    )
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    token_losses = torch.maximum(unclipped, clipped)

    pg_loss = (token_losses.sum(-1, keepdim=True) / length).mean()
    pg_clipfrac = verl_F.masked_mean((clipped > unclipped).float(), mask)
    ppo_kl = verl_F.masked_mean(-log_ratio, mask)
    return pg_loss, pg_clipfrac, ppo_kl, torch.tensor(0.0)


def validate_actor_config(actor_config: Mapping[str, Any]) -> None:
    """Refuse at start what would fail after the first rollouts.

    Raises:
        ValueError: loss_mode gspo with another loss_agg_mode, or with Megatron's actor, for which
            it is not registered.
    """
    policy_loss = actor_config.get("policy_loss") or {}
    if policy_loss.get("loss_mode") != "gspo":
        return
    if actor_config["strategy"] == "megatron":
        raise ValueError(
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo needs the FSDP actor, but "
            "actor_rollout_ref.actor.strategy is megatron. Nothing was started."
        )
    _require_seq_mean_token_mean(actor_config["loss_agg_mode"])


def _require_seq_mean_token_mean(loss_agg_mode: str) -> None:
    if loss_agg_mode != "seq-mean-token-mean":
        raise ValueError(
            f"actor_rollout_ref.actor.loss_agg_mode is {loss_agg_mode}; expected "
            "seq-mean-token-mean, as GSPO is a mean over responses of means over tokens. "
            "Set it, or another actor_rollout_ref.actor.policy_loss.loss_mode."
        )
