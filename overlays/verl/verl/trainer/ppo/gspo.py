# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Group Sequence Policy Optimization (GSPO): `actor_rollout_ref.actor.policy_loss.loss_mode=gspo`.

Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071. A response has one
importance ratio, the geometric mean of its tokens' ratios, and is clipped as a whole:

    s_i = (pi(y_i | x) / pi_old(y_i | x)) ^ (1 / |y_i|)
    J   = mean over responses i of  mean over tokens t of
              min(s_it A_it, clip(s_it, 1 - low, 1 + high) A_it)
    s_it = sg[s_i] pi(y_it) / sg[pi(y_it)]

This is GSPO-token, which allows advantages that differ between the tokens (forking tokens, ERA's
scaled advantages). Where they do not, its value and its gradient are those of GSPO.
"""

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
    0. Unlike `compute_policy_loss` there is no dual clip, so `clip_ratio_c` is not read.

    Args:
        old_log_prob, log_prob: (bsz, response_length) log-probs of the policy that sampled and of
            the current one.
        advantages: (bsz, response_length).
        response_mask: (bsz, response_length), bool or 0/1. Values outside it are ignored, NaN
            included. A response without a token counts as one with loss 0.
        loss_agg_mode: not read; `check_trainer_config` refuses another than seq-mean-token-mean.
        config: the actor's configuration; clip_ratio_low and clip_ratio_high are read, clip_ratio
            where one is None.

    Returns:
        Scalars: the loss; the share of tokens whose gradient the clipping took away; the mean of
        old_log_prob - log_prob over the tokens; 0, as there is no dual clip.
    """
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
