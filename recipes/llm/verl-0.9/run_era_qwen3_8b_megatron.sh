#!/usr/bin/env bash
# GRPO + ERA on verl 0.9.1: Qwen3-8B, Megatron, vLLM. ERA's values are those of the FSDP run.
# actor_rollout_ref.actor.era.k=1 makes it GRPO, which logs the same metrics.
#
# Tensor and pipeline parallelism are those of verl's examples/grpo_trainer/run_qwen3_8b_megatron.sh.
TOTAL_STEPS=${TOTAL_STEPS:-600}
settings=(
    model_engine=megatron
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
