#!/usr/bin/env bash
# ERA, stage 1 (paper, tab:main_results): Qwen2.5-Math-7B on DAPO-Math-17k, 600 steps, 4 nodes x 8 GPUs.
#
#   bash recipe/era/run_era_stage1_qwen2.5_math_7b.sh [hydra overrides]
#   DRY_RUN=1 prints the command and stops; CHECK_ONLY=1 stops after saying what is missing, before there is an environment.
#
# One node (NNODES=1) starts Ray by itself; several join the Ray cluster that RAY_ADDRESS names.
set -euo pipefail
caller=${PWD}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

NNODES=${NNODES:-4}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
RAY_DATA_HOME=${RAY_DATA_HOME:-"${HOME}/verl"}
MODEL_PATH=${MODEL_PATH:-"${RAY_DATA_HOME}/models/Qwen2.5-Math-7B"}
TRAIN_FILE=${TRAIN_FILE:-"${RAY_DATA_HOME}/data/dapo-math-17k.parquet"}
TEST_FILE=${TEST_FILE:-"${RAY_DATA_HOME}/data/aime-2024.parquet"}
CKPTS_DIR=${CKPTS_DIR:-"${RAY_DATA_HOME}/ckpts/ERA/era_stage1_qwen2.5_math_7b"}
LOGGER=${LOGGER:-"[console,tensorboard]"}
PYTHON=${PYTHON:-python3}
export TENSORBOARD_DIR=${TENSORBOARD_DIR:-"${CKPTS_DIR}/tensorboard"}

# A path as the caller meant it, and as hydra's grammar takes it whatever characters it holds.
absolute() { [[ "$1" == /* ]] && printf '%s' "$1" || printf '%s/%s' "${caller}" "$1"; }
quoted() { printf "'%s'" "${1//\'/\\\'}"; }
MODEL_PATH=$(absolute "${MODEL_PATH}") TRAIN_FILE=$(absolute "${TRAIN_FILE}") TEST_FILE=$(absolute "${TEST_FILE}") CKPTS_DIR=$(absolute "${CKPTS_DIR}")

command=(
    "${PYTHON}" -m recipe.dapo.main_dapo
    --config-path="${PWD}/recipe/era/config" --config-name=era_math
    data.train_files="$(quoted "${TRAIN_FILE}")"
    data.val_files="$(quoted "${TEST_FILE}")"
    actor_rollout_ref.model.path="$(quoted "${MODEL_PATH}")"
    actor_rollout_ref.actor.era.enable=True
    actor_rollout_ref.actor.era.low=0.45
    actor_rollout_ref.actor.era.high=3.0
    actor_rollout_ref.actor.era.k=2.0
    actor_rollout_ref.actor.era.top_k=20
    trainer.nnodes="${NNODES}"
    trainer.n_gpus_per_node="${GPUS_PER_NODE}"
    trainer.total_training_steps=600
    trainer.default_local_dir="$(quoted "${CKPTS_DIR}")"
    trainer.experiment_name=era_stage1_qwen2.5_math_7b
    trainer.logger="${LOGGER}"
    "$@"
)

if [[ -n "${DRY_RUN:-}" ]]; then
    printf 'cd %q &&' "${PWD}"
    printf ' %q' "${command[@]}"
    printf '\n'
    command -v "${PYTHON}" > /dev/null || echo "note: ${PYTHON} is not there yet; the first real run makes it" >&2
    [[ -f recipe/dapo/main_dapo.py ]] || echo "note: this checkout lacks recipe/dapo, it comes from the source package" >&2
    exit 0
fi
"${PYTHON}" recipe/era/preflight.py --nnodes "${NNODES}" --gpus-per-node "${GPUS_PER_NODE}" \
    --model "${MODEL_PATH}" --context-length 10240 --trajectories 2048 \
    ${CHECK_ONLY:+--environment-to-come} --file "${TRAIN_FILE}" "${TEST_FILE}"
[[ -n "${CHECK_ONLY:-}" ]] || exec "${command[@]}"
