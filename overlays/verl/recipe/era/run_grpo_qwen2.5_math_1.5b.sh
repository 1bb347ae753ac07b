#!/usr/bin/env bash
# GRPO (table:moremodels): Qwen2.5-Math-1.5B on MATH, levels 3 to 5. k = 1 only logs.
#
# 600 steps, as ERA's: the paper gives no number.
model=Qwen2.5-Math-1.5B
train_data=math-3to5
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.k=1.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
