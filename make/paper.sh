#!/usr/bin/env bash
# The paper's runs, from data to evaluation, and those on verl 0.9: `paper.sh TARGET`, as `make TARGET` calls it, and
# `paper.sh runs llm|vision|control`, which prints the names that TARGET can have.
#
# A run trains with PYTHON, else with the active python3 if it has all that the upstream needs, else with an environment
# of this project, which is set up once nothing else is missing. The user's settings come as variables: PYTHON,
# CHECKOUTS, ARGS, ...; DRY_RUN=1 prints the command and stops.
set -eo pipefail

fail() { echo "error: $*" >&2; exit 1; }
is_on() { [[ -n "$1" && "$1" != 0 ]]; }
absolute() { if [[ "$1" == /* ]]; then printf '%s' "$1"; else printf '%s/%s' "$PWD" "$1"; fi; }

# ------------------------------------------------------------------------------------- which runs there are

# run_era_stage1_qwen2.5_math_7b.sh is llm-stage1, run_grpo_qwen2.5_math_1.5b.sh is llm-grpo-1.5b.
llm_name() {
    sed -E 's|.*/run_||; s/\.sh$//; s/_qwen2\.5_math(_7b)?//; s/^era_([a-z])/\1/; s/_tokens//; s/_/-/g' <<< "$1"
}

# experiments SUBJECT: the names that python -m recipes.SUBJECT takes.
experiments() {
    python3 -m "recipes.$1" --help | sed -n 's/^EXPERIMENT: //p' | tr -d ,
}

runs() {
    local script
    case $1 in
        llm) for script in overlays/verl/recipe/era/run_*.sh; do llm_name "$script"; done
            echo qwen3-8b-era qwen3-8b-era-megatron ;;
        vision | control) experiments "$1" ;;
    esac
}

unknown() {
    fail "there is no run $target. There are:" \
        "$(runs "$subject" | xargs -n1 printf "$subject-%s ")and what 'make help' lists beside them."
}

# ------------------------------------------------------------------------------------------- files and Pythons

# find_file PATH: sets `file` to PATH in the upstream's checkout.
find_file() {
    file=$CHECKOUTS/$upstream/$1
    [[ -f "$file" ]] || fail "$file is not there. Run 'make apply' first (python3 apply.py apply $upstream" \
        "--checkouts $CHECKOUTS, for this one alone)."
}

# split NAME: splits the variable NAME into the array `words`, with quotes as in the shell.
split() {
    set -f
    eval "words=(${!1})" 2> /dev/null || fail "$1=${!1} cannot be read as shell words: quote special characters" \
        "and close every quote."
    set +f
}

# Sets `python` to the one that trains. If that environment is yet to be set up, `lacks` says what the active python3
# lacks; otherwise it is empty.
find_python() {
    active=$(command -v python3 || true)
    environment=$ENVIRONMENTS/$upstream-gpu
    lacks=
    python=$(absolute "$environment")/bin/python
    if [[ -n "$PYTHON" ]]; then
        python=$PYTHON
    elif problem=$("$active" requirements/check_gpu_environment.py "$upstream"); then
        python=$active
    elif [[ ! -f "$environment/installed" ]]; then
        lacks=$problem
        ! is_on "$DRY_RUN" || echo "note: $environment is not set up yet; make does that before the first run" >&2
    fi
}

check_python() {
    command -v "$1" > /dev/null || fail "there is no Python at $1. Set PYTHON to an environment's python."
}

set_up() { "$MAKE" --no-print-directory "$environment/installed"; }

# ------------------------------------------------------------------------------------------------ what is run

# start WHAT COMMAND...: replaces this shell by the command, which with DRY_RUN prints what it would start.
start() {
    is_on "$DRY_RUN" || exec "${@:2}"
    "${@:2}"
    echo "note: DRY_RUN checked neither $1." >&2
}

# run WHAT COMMAND...: the same for a command that does not know DRY_RUN.
run() {
    is_on "$DRY_RUN" || check_python "$2"
    if is_on "$DRY_RUN"; then start "$1" printf '%s\n' "$(printf '%q ' "${@:2}")"; else exec "${@:2}"; fi
}

BEFORE_A_RUN="GPUs, data, packages nor earlier runs; CHECK_ONLY=1 does, and starts nothing"

# ready_python: sets up the environment of find_python, or looks whether a Python that was given is there.
ready_python() {
    if is_on "$DRY_RUN"; then return; fi
    if [[ -z "$lacks" ]]; then check_python "$python"; return; fi
    ! is_on "$CHECK_ONLY" || fail "there is no environment for this run yet. $lacks make sets one up in $environment" \
        "before the first run; PYTHON=... names another."
    echo "$lacks"
    set_up
}

# train COMMAND...: with an upstream's launcher, on GPUs.
train() {
    split ARGS
    ready_python
    start "$BEFORE_A_RUN" env PYTHON="$python" "$@" "${words[@]}"
}

llm() {
    local script
    for script in overlays/verl/recipe/era/run_*.sh; do
        [[ "$(llm_name "$script")" != "$name" ]] || break
    done
    [[ "$(llm_name "$script")" == "$name" ]] || unknown
    upstream=verl
    find_file "recipe/era/${script##*/}"
    find_python
    train bash "$file"
}

# current_verl SCRIPT: on verl 0.9, of which nothing is patched.
current_verl() {
    upstream=verl-0.9
    [[ "$name" != *megatron || -n "$PYTHON" ]] || PYTHON=$(command -v python3)
    find_python
    train bash "$1"
}

# recipe UPSTREAM [ENVIRONMENT]: with python -m recipes.SUBJECT, in ENVIRONMENT or in what the upstream needs on GPUs.
# What is not there yet is made first: UPSTREAM (which may be empty) in CHECKOUTS, and the environment.
recipe() {
    upstream=$1
    split ARGS
    if [[ -n "$2" ]]; then
        environment=$ENVIRONMENTS/$2 python=${PYTHON:-$(absolute "$ENVIRONMENTS/$2")/bin/python}
        [[ -n "$PYTHON" || -f "$environment/installed" ]] || lacks="$environment is not set up yet."
    else
        find_python
    fi
    if ! is_on "$DRY_RUN"; then
        [[ -z "$upstream" || -d "$CHECKOUTS/$upstream" ]] ||
            python3 apply.py apply "$upstream" --checkouts "$CHECKOUTS"
        [[ -z "$lacks" ]] || ! is_on "$CHECK_ONLY" ||
            fail "there is no environment for this run yet. $lacks make sets one up in $environment before the first" \
                "run; PYTHON=... names another."
        [[ -z "$lacks" ]] || { echo "$lacks"; set_up; }
    fi
    start "$BEFORE_A_RUN" env PYTHON="$python" python3 -m "recipes.$subject" "$name" "${words[@]}"
}

data() {
    environment=$ENVIRONMENTS/cpu python=$PYTHON
    read -ra sets <<< "$SETS"
    if [[ -z "$python" ]]; then
        python=$(absolute "$environment")/bin/python
        unset PYTHONPATH PYTHONHOME
        is_on "$DRY_RUN" || set_up
    fi
    run "SETS, the sources nor the space in DATA" "$python" -m recipes.llm.data "${sets[@]}" --out "$DATA"
}

# verl's merger writes beside MODEL_PATH, and the folder is renamed at the end: a model that was cut short looks like a
# whole one.
merge() {
    [[ -n "$CKPT" && -n "$MODEL_PATH" ]] || fail "name the checkpoint and the model's new folder:" \
        "make llm-merge CKPT=.../global_step_600 MODEL_PATH=..."
    upstream=verl
    find_file verl/model_merger/__main__.py
    find_python
    ready_python
    [[ "$python" != */* ]] || python=$(absolute "$python")
    local model merger
    model=$(absolute "${MODEL_PATH%/}")
    merger=("$python" -m verl.model_merger merge --backend fsdp --local_dir "$(absolute "${CKPT%/}")/actor" --target_dir)
    if is_on "$DRY_RUN"; then
        printf 'cd %q && ' "$CHECKOUTS/verl"
        run "the checkpoint nor packages" "${merger[@]}" "$model"
    elif [[ -e "$model" ]]; then
        echo "$model is there already, so nothing is merged."
    else
        rm -rf "$model.part"
        (cd "$CHECKOUTS/verl" && "${merger[@]}" "$model.part")
        mv "$model.part" "$model"
        echo "Merged $CKPT into $model."
    fi
}

evaluate() {
    [[ -n "$MODEL_PATH" ]] || fail "no model. Name its folder: make llm-eval MODEL_PATH=..."
    upstream=verl
    split EVAL
    find_python
    ready_python
    local data=() name
    read -ra sets <<< "$SETS"
    for name in "${sets[@]}"; do data+=("$DATA/eval/$name.parquet"); done
    run "the model, the data nor packages" \
        "$python" -m recipes.llm.evaluate --model "$MODEL_PATH" --data "${data[@]:-$DATA/eval}" \
        --out "${OUT:-$RAY_DATA_HOME/eval/$(basename "$MODEL_PATH")}" "${words[@]}"
}

target=$1 subject=${1%%-*} name=${1#*-}
case $target in
    runs) runs "$2" ;;
    llm-data) data ;;
    llm-merge) merge ;;
    llm-eval) evaluate ;;
    llm-qwen3-8b-era) current_verl recipes/llm/verl-0.9/run_era_qwen3_8b.sh ;;
    llm-qwen3-8b-era-megatron) current_verl recipes/llm/verl-0.9/run_era_qwen3_8b_megatron.sh ;;
    llm-*) llm ;;
    vision-results | control-results | control-agents-results) exec python3 -m recipes.results ${OUTPUT:+"$OUTPUT"} ;;
    vision-* | control-*)
        [[ " $(runs "$subject" | tr '\n' ' ') " == *" $name "* ]] || unknown
        case $target in
            vision-*) recipe timm ;;
            control-ppo* | control-llm-techniques) recipe drl-code-pytorch cpu ;;
            control-sac-* | control-alpha) recipe "" control-cpu ;;
            control-tdmpc2) recipe tdmpc2 control-cpu ;;
            control-*) recipe fasttd3 ;;
        esac ;;
esac
