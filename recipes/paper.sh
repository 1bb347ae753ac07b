#!/usr/bin/env bash
# The paper's runs, from data to evaluation, and those on verl 0.9: `paper.sh TARGET`, as `make TARGET` calls it, and
# `paper.sh runs llm|vision|control`, which prints the names that TARGET can have.
#
# The user's settings come as variables: PYTHON, CHECKOUTS, ARGS, ...; DRY_RUN=1 prints the command and stops. Those that
# vision's and control's runs read are the fields of LaunchOptions, in recipes/launch_options.py.
set -eo pipefail

fail() { echo "error: $*" >&2; exit 1; }
is_on() { [[ -n "$1" && "$1" != 0 ]]; }
absolute() { if [[ "$1" == /* ]]; then printf '%s' "$1"; else printf '%s/%s' "$PWD" "$1"; fi; }

# run_era_stage1_qwen2.5_math_7b.sh is llm-stage1, run_grpo_qwen2.5_math_1.5b.sh is llm-grpo-1.5b.
llm_name() {
    sed -E 's|.*/run_||; s/\.sh$//; s/_qwen2\.5_math(_7b)?//; s/^era_([a-z])/\1/; s/_tokens//; s/_/-/g' <<< "$1"
}

runs() {
    local script
    case $1 in
        llm) for script in overlays/verl/recipe/era/run_*.sh; do llm_name "$script"; done
            echo qwen3-8b-era qwen3-8b-era-megatron ;;
        vision | control) python3 -m "recipes.$1" --help | sed -n 's/^EXPERIMENT: //p' | tr -d , ;;
    esac
}

# find_file PATH: sets `file` to PATH in verl's checkout, which a dry run needs not have.
find_file() {
    file=$CHECKOUTS/verl/$1
    [[ -f "$file" ]] || { is_on "$DRY_RUN" && [[ ! -e "$CHECKOUTS/verl" ]]; } || fail "$file is not there. Run 'make apply' first (python3 apply.py apply verl" \
        "--checkouts $CHECKOUTS, for this one alone)."
}

# split NAME: splits the variable NAME into the array `added`, with quotes as in the shell. Nothing in it is executed.
split() {
    added=()
    [[ -n "${!1}" ]] || return 0
    local shlex='import shlex, sys; [print(word, end="\0") for word in shlex.split(sys.argv[1])]'
    mapfile -d "" -t added < <(python3 -c "$shlex" "${!1}" 2> /dev/null)
    wait $! || fail "$1=${!1} cannot be read as shell words: close every quote."
}

# find_python ENVIRONMENT: sets `python` to PYTHON if given; else, for a -gpu ENVIRONMENT, to the active python3 if that
# has what the run needs; else to the python of this project's ENVIRONMENT, which is set up first, or again where its
# requirements have changed. With CHECK_ONLY and an LLM run it is python3 where nothing is set up: the check works with any
# Python, and names what that lacks.
find_python() {
    local environment=$ENVIRONMENTS/$1 lacks=
    python=${PYTHON:-$(absolute "$environment")/bin/python}
    if [[ -z "$PYTHON" && "$1" == *-gpu ]] && lacks=$(python3 recipes/llm/check_gpu_environment.py "${1%-gpu}"); then
        python=$(command -v python3)
    elif [[ -z "$PYTHON" ]] && ! is_on "$DRY_RUN" && ! is_on "$CHECK_ONLY"; then
        [[ -z "$lacks" || -f "$environment/installed" ]] || echo "$lacks"
        "$MAKE" -s "$environment/installed"
    elif [[ -z "$PYTHON" && ! -f "$environment/installed" ]]; then
        if is_on "$DRY_RUN"; then
            echo "note: $environment is not set up yet; make does that before the first run" >&2
            return
        fi
        [[ "$subject" == llm ]] || fail "there is no environment for this run yet.${lacks:+ $lacks} make sets one up in" \
            "$environment before the first run; PYTHON=... names another."
        python=python3
    fi
    is_on "$DRY_RUN" || command -v "$python" > /dev/null ||
        fail "there is no Python at $python. Set PYTHON to an environment's python."
}

# start WHAT COMMAND...: replaces this shell by the command. With DRY_RUN the command prints what it would start, and
# WHAT says what that did not check.
start() {
    is_on "$DRY_RUN" || exec "${@:2}"
    "${@:2}"
    echo "note: DRY_RUN checked neither $1." >&2
}

# run WHAT COMMAND...: the same for a command that does not know DRY_RUN.
run() {
    if is_on "$DRY_RUN"; then start "$1" printf '%s\n' "$(printf '%q ' "${@:2}")"; else exec "${@:2}"; fi
}

# train COMMAND...: starts a launcher of the recipes.
train() {
    start "GPUs, data, packages nor earlier runs; CHECK_ONLY=1 does, and starts nothing" \
        env PYTHON="$python" "$@" "${added[@]}"
}

llm() {
    local script
    for script in overlays/verl/recipe/era/run_*.sh; do
        [[ "$(llm_name "$script")" != "$name" ]] || break
    done
    file=$CHECKOUTS/verl/recipe/era/${script##*/}
    if [[ ! -e "$CHECKOUTS/verl" ]] && { is_on "$DRY_RUN" || is_on "$CHECK_ONLY"; }; then
        file=$script
        export VERL_CHECKOUT=$(absolute "$CHECKOUTS/verl")
    fi
    [[ -f "$file" ]] || find_file "recipe/era/${script##*/}"
    find_python verl-gpu
    train bash "$file"
}

# recipe UPSTREAM ENVIRONMENT: starts python -m recipes.SUBJECT. If UPSTREAM is not empty and not there, it is applied.
recipe() {
    is_on "$DRY_RUN" || is_on "$CHECK_ONLY" || [[ -z "$1" || -d "$CHECKOUTS/$1" ]] || python3 apply.py apply "$1" --checkouts "$CHECKOUTS"
    find_python "$2"
    train python3 -m "recipes.$subject" "$name"
}

# verl's merger writes beside MODEL_PATH, and the folder is renamed at the end, because a model that was cut short would
# look like a whole one.
merge() {
    [[ -n "$CKPT" && -n "$MODEL_PATH" ]] || fail "name the checkpoint and the model's new folder:" \
        "make llm-merge CKPT=.../global_step_600 MODEL_PATH=..."
    find_file verl/model_merger/__main__.py
    find_python verl-gpu
    [[ "$python" != */* ]] || python=$(absolute "$python")
    local model merger
    model=$(absolute "${MODEL_PATH%/}")
    merger=("$python" -m verl.model_merger merge --backend fsdp --local_dir "$(absolute "${CKPT%/}")/actor" --target_dir)
    if is_on "$DRY_RUN"; then
        printf 'cd %q && ' "$CHECKOUTS/verl"
        run "the checkpoint nor packages" "${merger[@]}" "$model"
    elif [[ -e "$model" ]]; then
        echo "$model is there already, so nothing is merged."
    elif [[ ! -d "$CKPT/actor" ]]; then
        fail "CKPT=$CKPT has no folder actor. Name the folder of a step, such as .../global_step_600."
    else
        rm -rf "$model.part"
        (cd "$CHECKOUTS/verl" && "${merger[@]}" "$model.part")
        mv "$model.part" "$model"
        echo "Merged $CKPT into $model."
    fi
}

# release_ready: the authors' release and the environment of its grader, made where they are not there.
release_ready() {
    ! is_on "$DRY_RUN" || return 0
    [[ -d "$CHECKOUTS/era-release" ]] || python3 apply.py apply era-release --checkouts "$CHECKOUTS"
    [[ -f "$ENVIRONMENTS/era-release/installed" ]] || "$MAKE" -s "$ENVIRONMENTS/era-release/installed"
}

evaluate() {
    [[ -n "$MODEL_PATH" ]] || fail "no model. Name its folder: make llm-eval MODEL_PATH=..."
    local files=() set sets given=()
    read -ra sets <<< "$SETS"
    case ${PROTOCOL:=release} in
        release) release_ready; given=(${sets[@]:+--sets "${sets[@]}"}) ;;
        strict) for set in "${sets[@]}"; do files+=("$DATA/eval/$set.parquet"); done
            given=(--data "${files[@]:-$DATA/eval}") ;;
        *) fail "PROTOCOL=$PROTOCOL: there are release, the authors' evaluation, and strict, ours." ;;
    esac
    find_python verl-gpu
    run "the model, the data nor packages" \
        "$python" -m recipes.llm.evaluate --protocol "$PROTOCOL" --model "$MODEL_PATH" "${given[@]}" \
        --out "${OUT:-$RAY_DATA_HOME/eval/$(basename "$MODEL_PATH")}" "${added[@]}"
}

grade() {
    [[ -n "$OUT" ]] || fail "no texts. Name the folder of an evaluation: make llm-grade OUT=..."
    local graders
    read -ra graders <<< "$GRADER"
    [[ "${graders[*]:-release}" != *release* ]] || release_ready
    find_python cpu
    run "the texts nor packages" "$python" -m recipes.llm.grade "$OUT" ${graders[@]:+--grader "${graders[@]}"}
}

target=$1 subject=${1%%-*} name=${1#*-}
if [[ "$target" == llm-eval ]]; then split EVAL; else split ARGS; fi
! is_on "$CHECK_ONLY" || [[ "$target" != llm-@(model|data|merge|eval|grade) ]] ||
    fail "$target has no CHECK_ONLY. DRY_RUN=1 prints its command."
case $target in
    runs) runs "$2" && exit ;;
    llm-data)
        read -ra sets <<< "$SETS"
        find_python cpu
        run "SETS, the sources nor the space in DATA" "$python" -m recipes.llm.data "${sets[@]}" --out "$DATA" ;;
    llm-model)
        read -ra models <<< "$MODEL"
        python3 -m recipes.llm.model "${models[@]}" --check # before an environment is set up
        find_python cpu
        run "the model, the hub nor the space on the disk" \
            "$python" -m recipes.llm.model "${models[@]}" --out "$RAY_DATA_HOME/models" ;;
    llm-merge) merge ;;
    llm-eval) evaluate ;;
    llm-grade) grade ;;
    *-results) exec python3 -m recipes.results ${OUTPUT:+"$OUTPUT"} ;;
    *) [[ " $(runs "$subject" | tr '\n' ' ') " == *" $name "* ]] ||
        fail "there is no run $target. There are:" \
            "$(runs "$subject" | xargs -n1 printf "$subject-%s ")and what 'make help' lists beside them." ;;&
    llm-qwen3-8b-era) find_python verl-0.9-gpu && train bash recipes/llm/verl-0.9/run_era_qwen3_8b.sh ;;
    llm-qwen3-8b-era-megatron) # no environment of this project has Megatron
        python=${PYTHON:-python3} && train bash recipes/llm/verl-0.9/run_era_qwen3_8b_megatron.sh ;;
    llm-*) llm ;;
    vision-*) recipe timm timm-gpu ;;
    control-ppo* | control-eapo* | control-llm-techniques) recipe drl-code-pytorch cpu ;;
    control-sac-* | control-obac* | control-alpha) recipe "" control-cpu ;;
    control-tdmpc2) recipe tdmpc2 control-cpu ;;
    control-*) recipe fasttd3 fasttd3-gpu ;;
esac
