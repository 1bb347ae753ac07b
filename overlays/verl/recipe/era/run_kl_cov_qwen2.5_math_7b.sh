#!/usr/bin/env bash
# KL-Cov (tab:main_results): eight mini-batches of 32 prompts per step. k = 1 only logs.
#
# The coefficients are those of the KL-Cov paper for 7B, as in recipe/entropy/7b_kl_cov.sh; the ERA
# paper gives none. 1,100 steps, as many as ERA's two stages together: neither paper gives a number.
TOTAL_STEPS=${TOTAL_STEPS:-1100}
settings=(
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov
    actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.002
    actor_rollout_ref.actor.policy_loss.ppo_kl_coef=1.0
    actor_rollout_ref.actor.era.k=1.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
