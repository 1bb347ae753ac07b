#!/usr/bin/env bash
# ERA without omega_high (fig. effect of upper): stage 1 with no upper bound. In the
# paper the entropy soon explodes.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=inf
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
