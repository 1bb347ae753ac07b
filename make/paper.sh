#!/usr/bin/env bash
# The paper's runs, from data to evaluation, and those on verl 0.9. The Makefile calls
#
#   paper.sh train UPSTREAM ENVIRONMENT SIZE SCRIPT [EXPERIMENT]
#   paper.sh host UPSTREAM ENVIRONMENT "" EXPERIMENT
#   paper.sh results|data|merge|evaluate UPSTREAM ENVIRONMENT SIZE
#
# ENVIRONMENT is the folder of a virtual environment that takes SIZE on disk and is set up once nothing else is missing;
# with an empty one the active python3 is taken as it is. SCRIPT is a path in the upstream's checkout, for verl-0.9 in this
# project. `host` trains with recipes/control, in ENVIRONMENT or PYTHON, and applies UPSTREAM, which may be empty, itself.
# The user's settings come as variables: PYTHON, CHECKOUTS, ARGS, ...; DRY_RUN=1 prints the command and stops.
set -eo pipefail

fail() { echo "error: $*" >&2; exit 1; }
is_on() { [[ -n "$1" && "$1" != 0 ]]; }
absolute() { if [[ "$1" == /* ]]; then printf '%s' "$1"; else printf '%s/%s' "$PWD" "$1"; fi; }

# find_file PATH: sets `file` to PATH in the checkout. verl 0.9 has none: nothing of it is patched.
find_file() {
    file=$CHECKOUTS/$upstream/$1
    [[ $upstream != verl-0.9 ]] || file=$1
    [[ -f "$file" ]] || fail "$file is not there. Run 'make apply' first (python3 apply.py apply $upstream" \
        "--checkouts $CHECKOUTS, for this one alone)."
}

# split NAME: splits the variable NAME into the array `words`, with quotes as in the shell.
split() {
    set -f
    eval "words=(${!1})" 2> /dev/null || fail "$1=${!1} cannot be read as shell words: quote special characters" \
        "and close every quote. Nothing was changed."
    set +f
}

# Sets `python` to PYTHON, else to the active python3 if it has all that the upstream needs, else to the environment's.
# If that environment is not set up yet, `lacks` says what the active python3 lacks; otherwise it is empty.
find_python() {
    active=$(command -v python3 || true)
    lacks=
    python=$(absolute "$environment")/bin/python
    if [[ -n "$PYTHON" ]]; then
        python=$PYTHON
    elif [[ -z "$environment" ]]; then
        python=$active
    elif problem=$("$active" requirements/check_gpu_environment.py "$upstream"); then
        python=$active
    elif [[ ! -f "$environment/installed" ]]; then
        lacks=$problem
        ! is_on "$DRY_RUN" || echo "note: $environment is not set up yet; make does that before the first run" >&2
    fi
}

check_python() {
    command -v "$1" > /dev/null ||
        fail "there is no Python at $1. Set PYTHON to an environment's python. Nothing was changed."
}

set_up() { "$MAKE" --no-print-directory "$environment/installed"; }

# run COMMAND...: replaces this shell by the command. With DRY_RUN it prints it instead, as the run scripts do.
run() {
    if is_on "$DRY_RUN"; then
        printf '%q' "$1"
        printf ' %q' "${@:2}"
        echo
    else
        check_python "$1"
        exec "$@"
    fi
}

train() {
    find_file "$1"
    split ARGS
    find_python
    local command=("$active" "$file" "${@:2}")
    [[ "$file" != *.sh ]] || command=(bash "$file")
    command+=("${words[@]}")
    if [[ -n "$lacks" ]] && ! is_on "$DRY_RUN"; then
        if ! env CHECK_ONLY=1 ENVIRONMENT_TO_COME=1 PYTHON="$active" "${command[@]}" || is_on "$CHECK_ONLY"; then
            echo "There is no environment for this run yet. $lacks Once everything else is there, make sets" \
                "one up in $environment (about $size); PYTHON=... names another." >&2
            exit 1
        fi
        echo "$lacks"
        set_up
        lacks=
    fi
    exec env PYTHON="$python" ENVIRONMENT_TO_COME="${lacks:+1}" "${command[@]}"
}

host() {
    split ARGS
    local command=(python3 recipes/control/launch.py "$@" "${words[@]}") to_come=
    [[ -n "$PYTHON" || -f "$environment/installed" ]] || to_come=1
    if ! is_on "$DRY_RUN"; then
        [[ -z "$upstream" ]] || is_on "$CHECK_ONLY" || python3 apply.py apply "$upstream" --checkouts "$CHECKOUTS"
        if [[ -n "$to_come" ]]; then
            env CHECK_ONLY=1 ENVIRONMENT_TO_COME=1 "${command[@]}"
            ! is_on "$CHECK_ONLY" || fail "there is no environment for this run yet; make sets one up in $environment" \
                "before the first run. All else is there."
            set_up
            to_come=
        fi
    fi
    exec env PYTHON="${PYTHON:-$(absolute "$environment")/bin/python}" ENVIRONMENT_TO_COME="$to_come" "${command[@]}"
}

results() {
    find_file recipes/era/results.py
    if [[ -n "$OUTPUT" ]]; then python3 "$file" "$OUTPUT"; else python3 "$file"; fi
}

data() {
    find_file recipe/era/prepare_data.py
    read -ra sets <<< "${SETS:-all}"
    python=$PYTHON
    if [[ -z "$python" ]]; then
        python=$(absolute "$environment")/bin/python
        unset PYTHONPATH PYTHONHOME
        if ! is_on "$DRY_RUN"; then
            python3 "$file" --list "${sets[@]}" > /dev/null
            set_up
        fi
    fi
    run "$python" "$file" "${sets[@]}" --out "$DATA"
}

# verl's merger writes into a folder beside MODEL_PATH, which is renamed to MODEL_PATH at the end.
merge() {
    [[ -n "$CKPT" && -n "$MODEL_PATH" ]] || fail "name the checkpoint and the model's new folder:" \
        "make llm-merge CKPT=.../global_step_600 MODEL_PATH=..."
    find_file verl/model_merger/__main__.py
    find_python
    local actor model merger ranks rank part
    actor=$(absolute "${CKPT%/}")/actor
    model=$(absolute "${MODEL_PATH%/}")
    [[ "$python" != */* ]] || python=$(absolute "$python")
    merger=("$python" -m verl.model_merger merge --backend fsdp --local_dir "$actor" --target_dir)
    if is_on "$DRY_RUN"; then
        printf 'cd %q && ' "$CHECKOUTS/verl"
        run "${merger[@]}" "$model"
        return
    fi
    if [[ -f "$model/config.json" ]]; then
        echo "$model is there already, so nothing is merged."
        return
    fi
    [[ ! -e "$model" ]] || fail "MODEL_PATH=$model exists but is not a model: it has no config.json." \
        "Remove it or name another. Nothing was changed."
    ranks=$(sed -nE 's/.*"world_size": *([0-9]+).*/\1/p' "$actor/fsdp_config.json" 2> /dev/null || true)
    [[ -n "$ranks" ]] || fail "CKPT=$CKPT is not a checkpoint of an FSDP run: $actor/fsdp_config.json is not there," \
        "or names no world_size. Nothing was changed."
    for ((rank = 0; rank < ranks; rank++)); do
        part=$actor/model_world_size_${ranks}_rank_$rank.pt
        [[ -f "$part" ]] || fail "CKPT=$CKPT is not whole: of $ranks ranks, $part is not there. Nothing was changed."
    done
    if [[ -n "$lacks" ]]; then echo "$lacks"; set_up; else check_python "$python"; fi
    beside=$model.merging-$$ # not local: the trap runs outside of this function
    mkdir -p "$(dirname "$model")"
    mkdir "$beside"
    trap 'rm -rf "$beside"' EXIT
    (cd "$CHECKOUTS/verl" && run "${merger[@]}" "$beside")
    [[ -e "$model" ]] || mv "$beside" "$model"
    echo "Merged $CKPT into $model."
}

evaluate() {
    [[ -n "$MODEL_PATH" ]] || fail "no model. Name its folder: make llm-eval MODEL_PATH=..."
    find_file recipe/era/evaluate.py
    split EVAL
    find_python
    if ! is_on "$DRY_RUN"; then
        [[ -f "$MODEL_PATH/config.json" ]] ||
            fail "MODEL_PATH=$MODEL_PATH is not the folder of a model: it has no config.json. Nothing was changed."
        [[ -z "$lacks" ]] || { echo "$lacks"; set_up; }
    fi
    local data=() name
    read -ra sets <<< "$SETS"
    for name in "${sets[@]}"; do data+=("$DATA/eval/$name.parquet"); done
    run "$python" "$file" --model "$MODEL_PATH" --data "${data[@]:-$DATA/eval}" \
        --out "${OUT:-$RAY_DATA_HOME/eval/$(basename "$MODEL_PATH")}" "${words[@]}"
}

upstream=$2 environment=$3 size=$4
"$1" "${@:5}"
