#!/usr/bin/env bash
# ERA with the gate of the authors' release, advantages > 1, where listing code:llm has > 0;
# otherwise as stage 1.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
    actor_rollout_ref.actor.era.min_advantage=1.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
