#!/usr/bin/env bash
# Clip-Cov (tab:main_results): eight mini-batches of 32 prompts per step. k = 1 only logs.
#
# The coefficients are those of the KL-Cov paper, as in recipe/entropy/7b_clip_cov.sh; the ERA paper
# gives none. 1,100 steps, as many as ERA's two stages together: neither paper gives a number.
TOTAL_STEPS=${TOTAL_STEPS:-1100}
settings=(
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.clip_ratio_low=1.0
    actor_rollout_ref.actor.clip_ratio_high=1.0
    actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov
    actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.0002
    actor_rollout_ref.actor.policy_loss.clip_cov_lb=1.0
    actor_rollout_ref.actor.policy_loss.clip_cov_ub=5.0
    actor_rollout_ref.actor.era.k=1.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
