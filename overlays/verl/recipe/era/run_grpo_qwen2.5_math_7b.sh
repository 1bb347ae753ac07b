#!/usr/bin/env bash
# GRPO (tab:main_results, fig:llm_entropy): the baseline. k = 1 only logs.
#
# 1,100 steps, as many as ERA's two stages together: the paper gives no number.
TOTAL_STEPS=${TOTAL_STEPS:-1100}
settings=(
    actor_rollout_ref.actor.era.k=1.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
