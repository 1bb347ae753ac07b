# shellcheck shell=bash
# What the paper's LLM runs share; the run scripts source it. What differs comes from them:
#
#   model, train_data   name of the default model's folder and of the default training file, without .parquet
#   TOTAL_STEPS         optimizer steps; the environment overrides it
#   settings            hydra overrides; those on the script's command line come after them and win
#   stage1_ckpt         stage 2 alone: the checkpoint to go on from
#
# From the environment: NNODES, GPUS_PER_NODE, RAY_DATA_HOME, MODEL_PATH, TRAIN_FILE, TEST_FILE, CKPTS_DIR, TOTAL_STEPS,
# LOGGER, PYTHON, TENSORBOARD_DIR, VERL_FILE_LOGGER_PATH, RAY_ADDRESS (of a Ray cluster; without it one node starts Ray by itself).
# DRY_RUN=1 prints the command and stops. CHECK_ONLY=1 stops after saying what is missing; the Python that trains may be yet to come.
set -euo pipefail
caller=${PWD}
experiment=$(basename "${BASH_SOURCE[1]}" .sh)
experiment=${experiment#run_}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# A path as the caller meant it, and as hydra's grammar takes it whatever characters it holds.
absolute() { [[ "$1" == /* ]] && printf '%s' "$1" || printf '%s/%s' "${caller}" "$1"; }
quoted() { printf "'%s'" "${1//\'/\\\'}"; }

RAY_DATA_HOME=$(absolute "${RAY_DATA_HOME:-"${HOME}/verl"}")
MODEL_PATH=$(absolute "${MODEL_PATH:-"${RAY_DATA_HOME}/models/${model:-Qwen2.5-Math-7B}"}")
TRAIN_FILE=$(absolute "${TRAIN_FILE:-"${RAY_DATA_HOME}/data/${train_data:-dapo-math-17k}.parquet"}")
TEST_FILE=$(absolute "${TEST_FILE:-"${RAY_DATA_HOME}/data/aime-2024.parquet"}")
CKPTS_DIR=$(absolute "${CKPTS_DIR:-"${RAY_DATA_HOME}/ckpts/ERA/${experiment}"}")
PYTHON=${PYTHON:-python3}
TENSORBOARD_DIR=$(absolute "${TENSORBOARD_DIR:-"${CKPTS_DIR}/tensorboard"}")
VERL_FILE_LOGGER_PATH=$(absolute "${VERL_FILE_LOGGER_PATH:-"${CKPTS_DIR}/metrics.jsonl"}")
export TENSORBOARD_DIR VERL_FILE_LOGGER_PATH

# Once stage 2 has a checkpoint of its own, it resumes from that one, as every other run does.
if [[ -n "${stage1_ckpt:-}" ]]; then
    stage1_ckpt=$(absolute "${stage1_ckpt%/}")
    settings+=(trainer.resume_from_path="$(quoted "${stage1_ckpt}")")
    [[ -e "${CKPTS_DIR}/latest_checkpointed_iteration.txt" ]] || settings+=(trainer.resume_mode=resume_path)
fi

overrides=(
    data.train_files="$(quoted "${TRAIN_FILE}")"
    data.val_files="$(quoted "${TEST_FILE}")"
    actor_rollout_ref.model.path="$(quoted "${MODEL_PATH}")"
    trainer.nnodes="${NNODES:-4}"
    trainer.n_gpus_per_node="${GPUS_PER_NODE:-8}"
    trainer.total_training_steps="${TOTAL_STEPS}"
    trainer.default_local_dir="$(quoted "${CKPTS_DIR}")"
    trainer.experiment_name="${experiment}"
    trainer.logger="${LOGGER:-"[console,file,tensorboard]"}"
    "${settings[@]}"
    "$@"
)
command=("${PYTHON}" -m recipe.era.main_era --config-path="${PWD}/recipe/era/config" --config-name=era_math "${overrides[@]}")

if [[ -n "${DRY_RUN:-}" ]]; then
    printf 'cd %q && TENSORBOARD_DIR=%q VERL_FILE_LOGGER_PATH=%q' "${PWD}" "${TENSORBOARD_DIR}" "${VERL_FILE_LOGGER_PATH}"
    printf ' %q' "${command[@]}"
    printf '\n'
    command -v "${PYTHON}" > /dev/null || echo "note: ${PYTHON} is not there yet; the first real run makes it" >&2
    [[ -f recipe/dapo/main_dapo.py ]] || echo "note: this checkout lacks recipe/dapo, it comes from the source package" >&2
    exit 0
fi
"${PYTHON}" recipe/era/preflight.py ${CHECK_ONLY:+--environment-to-come} -- "${overrides[@]}"
[[ -n "${CHECK_ONLY:-}" ]] || exec "${command[@]}"
