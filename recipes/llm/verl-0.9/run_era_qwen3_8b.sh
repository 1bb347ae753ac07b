#!/usr/bin/env bash
# GRPO + ERA on verl 0.9.1: Qwen3-8B, FSDP, vLLM. ERA's values are those of the paper's stage 1,
# which were chosen for Qwen2.5-Math-7B. actor_rollout_ref.actor.era.k=1 makes it GRPO, which logs
# the same metrics.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
