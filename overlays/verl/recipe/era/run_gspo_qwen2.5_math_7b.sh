#!/usr/bin/env bash
# GSPO (table:moremodels): one ratio for each response, and all responses weigh the same. k = 1 only
# logs.
#
# On-policy like the ERA paper's other runs, so the clip ratios, which are the GSPO paper's, never
# act. The GSPO paper has four mini-batches: actor_rollout_ref.actor.ppo_mini_batch_size=64. 600
# steps, as GSPO + ERA: the ERA paper gives no number.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.policy_loss.loss_mode=gspo
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
    actor_rollout_ref.actor.clip_ratio_low=3e-4
    actor_rollout_ref.actor.clip_ratio_high=4e-4
    actor_rollout_ref.actor.era.k=1.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
