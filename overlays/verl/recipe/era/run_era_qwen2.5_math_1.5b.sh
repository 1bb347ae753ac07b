#!/usr/bin/env bash
# ERA (table:moremodels): Qwen2.5-Math-1.5B on MATH, levels 3 to 5.
#
# One stage, with the settings of the 7B's first, its steps and top-k filter included: the paper has
# a second stage for the 7B only.
model=Qwen2.5-Math-1.5B
train_data=math-3to5
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
