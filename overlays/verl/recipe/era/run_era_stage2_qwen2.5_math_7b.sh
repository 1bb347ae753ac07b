#!/usr/bin/env bash
# ERA, stage 2 (tab:main_results, fig:llm_entropy_combined): 500 further steps from stage 1's
# checkpoint, relaxed bounds.
#
# STAGE1_CKPT names the checkpoint, by default stage 1's last one. TOTAL_STEPS counts stage 1's
# steps too. No top-k filter: the paper names it for the first stage.
TOTAL_STEPS=${TOTAL_STEPS:-1100}
stage1=ckpts/ERA/era_stage1_qwen2.5_math_7b
stage1_ckpt=${STAGE1_CKPT:-"${RAY_DATA_HOME:-"${HOME}/verl"}/${stage1}/global_step_600"}
settings=(
    actor_rollout_ref.actor.era.low=0.2
    actor_rollout_ref.actor.era.high=inf
    actor_rollout_ref.actor.era.k=2.0
)

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
