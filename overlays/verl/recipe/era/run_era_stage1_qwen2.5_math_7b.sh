#!/usr/bin/env bash
# ERA, stage 1 (tab:main_results, fig:llm_entropy): Qwen2.5-Math-7B, 600 steps, top-k filter.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
