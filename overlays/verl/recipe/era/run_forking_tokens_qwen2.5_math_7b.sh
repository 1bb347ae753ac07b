#!/usr/bin/env bash
# GRPO with 20 % forking tokens (tab:main_results): only the tokens of highest entropy are updated.
# k = 1 only logs.
#
# 1,100 steps, as many as ERA's two stages together: the paper gives no number.
TOTAL_STEPS=${TOTAL_STEPS:-1100}
settings=(
    actor_rollout_ref.actor.policy_loss.forking_fraction=0.2
    actor_rollout_ref.actor.era.k=1.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
