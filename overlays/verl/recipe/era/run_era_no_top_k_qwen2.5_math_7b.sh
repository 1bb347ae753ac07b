#!/usr/bin/env bash
# ERA without the top-k filter (fig:llm_entropy_analysis); otherwise as stage 1.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
