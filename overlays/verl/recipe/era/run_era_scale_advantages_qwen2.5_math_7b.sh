#!/usr/bin/env bash
# ERA with the advantage scaling of the paper's equation for A', which listing code:llm leaves out;
# otherwise as stage 1.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
    actor_rollout_ref.actor.era.scale_advantages=True
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
