# How an LLM run is started. The run scripts' common.sh sets, and then sources this:
#
#   root                the folder to start in; a dry run and a check work before it is there
#   entry, config       the words after python; the folder of the configuration era_math
#   preflight           the module that names what is missing
#   model, train_data   names of the default model's folder and training file, without .parquet
#   TOTAL_STEPS         optimizer steps; the environment overrides it
#   settings            hydra overrides; those on the script's command line come after them and win
#   stage1_ckpt         only stage 2: the checkpoint to continue from
#   runtime_env         the key of the environment that verl gives Ray's processes, where it has one
#
# From the environment: NNODES, GPUS_PER_NODE, RAY_DATA_HOME, MODEL_PATH, TRAIN_FILE, TEST_FILE,
# CKPTS_DIR, TOTAL_STEPS, LOGGER, PYTHON, TENSORBOARD_DIR, VERL_FILE_LOGGER_PATH, RAY_ADDRESS (of a
# Ray cluster; without it one node starts Ray by itself). DRY_RUN=1 prints the command and stops.
# CHECK_ONLY=1 stops after naming what is missing. A run that has reached TOTAL_STEPS ends at once.

# shellcheck shell=bash
set -euo pipefail

script=${BASH_SOURCE[-1]}
if [[ " $* " == *" --help "* ]]; then
    echo "bash ${script} [hydra overrides, such as trainer.save_freq=5]"
    sed -n '/^#/!q; s/^# //p' "${script}"
    sed -n '/^#/!q; /^# From the environment/,$ s/^# //p' "${BASH_SOURCE[0]}"
    exit
fi
is_on() { [[ -n "${1:-}" && "$1" != 0 ]]; }
caller=${PWD}
experiment=$(basename "${script}" .sh)
experiment=${experiment#run_}
[[ ! -d "${root}" ]] || cd "${root}"

# A path as the caller meant it, and as hydra's grammar takes it with any characters: a quote needs
# a backslash before it, and backslashes before a quote, the closing one included, are doubled.
# verl takes no slash at the end.
absolute() { [[ "$1" == /* ]] && printf '%s' "${1%/}" || printf '%s/%s' "${caller}" "${1%/}"; }
for_hydra() { printf "'%s'" "$(printf '%s' "$1" | sed -E "s/(\\\\+)('|\$)/\1\1\2/g; s/'/\\\\'/g")"; }

RAY_DATA_HOME=$(absolute "${RAY_DATA_HOME:-"${HOME}/verl"}")
MODEL_PATH=$(absolute "${MODEL_PATH:-"${RAY_DATA_HOME}/models/${model}"}")
TRAIN_FILE=$(absolute "${TRAIN_FILE:-"${RAY_DATA_HOME}/data/${train_data:-dapo-math-17k}.parquet"}")
TEST_FILE=$(absolute "${TEST_FILE:-"${RAY_DATA_HOME}/data/aime-2024.parquet"}")
CKPTS_DIR=$(absolute "${CKPTS_DIR:-"${RAY_DATA_HOME}/ckpts/ERA/${experiment}"}")
PYTHON=${PYTHON:-python3}
[[ "${PYTHON}" != */* ]] || PYTHON=$(absolute "${PYTHON}")
TENSORBOARD_DIR=$(absolute "${TENSORBOARD_DIR:-"${CKPTS_DIR}/tensorboard"}")
VERL_FILE_LOGGER_PATH=$(absolute "${VERL_FILE_LOGGER_PATH:-"${CKPTS_DIR}/metrics.jsonl"}")
export TENSORBOARD_DIR VERL_FILE_LOGGER_PATH

# On an existing Ray cluster the process that logs has the environment in which Ray was started.
if [[ -n "${runtime_env:-}" ]]; then
    settings+=(
        "++${runtime_env}.TENSORBOARD_DIR=$(for_hydra "${TENSORBOARD_DIR}")"
        "++${runtime_env}.VERL_FILE_LOGGER_PATH=$(for_hydra "${VERL_FILE_LOGGER_PATH}")"
    )
fi

# Once stage 2 has a checkpoint of its own, it resumes from that one, as every other run does.
if [[ -n "${stage1_ckpt:-}" ]]; then
    settings+=(trainer.resume_from_path="$(for_hydra "$(absolute "${stage1_ckpt}")")")
    [[ -e "${CKPTS_DIR}/latest_checkpointed_iteration.txt" ]] ||
        settings+=(trainer.resume_mode=resume_path)
fi

overrides=(
    data.train_files="$(for_hydra "${TRAIN_FILE}")"
    data.val_files="$(for_hydra "${TEST_FILE}")"
    actor_rollout_ref.model.path="$(for_hydra "${MODEL_PATH}")"
    trainer.nnodes="${NNODES:-4}"
    trainer.n_gpus_per_node="${GPUS_PER_NODE:-8}"
    trainer.total_training_steps="${TOTAL_STEPS}"
    trainer.default_local_dir="$(for_hydra "${CKPTS_DIR}")"
    trainer.experiment_name="${experiment}"
    trainer.logger="${LOGGER:-"[console,file,tensorboard]"}"
    "${settings[@]}"
    "$@"
)
command=("${PYTHON}" "${entry[@]}" "${overrides[@]}")

if is_on "${DRY_RUN:-}"; then
    printf 'cd %q && TENSORBOARD_DIR=%q' "${root}" "${TENSORBOARD_DIR}"
    printf ' VERL_FILE_LOGGER_PATH=%q' "${VERL_FILE_LOGGER_PATH}"
    printf ' %q' "${command[@]}"
    printf '\n'
    exit
fi
command -v "${PYTHON}" > /dev/null || {
    echo "error: there is no Python at ${PYTHON}. Set PYTHON to that of the environment that trains." >&2
    exit 1
}
# The check also writes run.json into CKPTS_DIR. Its exit code is 3 if the run has reached its last
# step: then nothing is left to do, which is not an error.
check=(
    env "MODEL_PATH=${MODEL_PATH}" "TRAIN_FILE=${TRAIN_FILE}" "TEST_FILE=${TEST_FILE}"
    "NNODES=${NNODES:-4}" "GPUS_PER_NODE=${GPUS_PER_NODE:-8}" "${PYTHON}" -m "${preflight}"
)
is_on "${CHECK_ONLY:-}" || check+=(--record "${experiment}" --added "$#")
[[ -d "${root}" ]] || check+=(--without-checkout "${root}")
PYTHONWARNINGS=ignore "${check[@]}" "${config}" -- "${overrides[@]}" || { code=$?; ((code == 3)) || exit "${code}"; exit 0; }
is_on "${CHECK_ONLY:-}" || exec "${command[@]}"
echo "Nothing is missing; ${experiment} would start."
