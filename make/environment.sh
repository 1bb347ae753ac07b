#!/usr/bin/env bash
# Sets up a virtual environment in FOLDER. The Makefile calls
#
#   environment.sh cpu FOLDER REQUIREMENTS NEWEST [CHECK...]
#   environment.sh verl|verl-0.9|timm|fasttd3 FOLDER SIZE
#
# The first form is for the CPU; it uses PYTHON, or else the first Python from 3.11 to 3.NEWEST that it finds. If that
# Python fails with the arguments CHECK, nothing is installed. The others are for GPUs and use the active python3; SIZE,
# for the message, is what they take on disk.
set -eo pipefail

fail() { echo "error: $*" >&2; exit 1; }

# fits PYTHON OLDEST NEWEST: whether it is a Python from 3.OLDEST to 3.NEWEST.
fits() { "$1" -c "import sys; sys.exit(not (3, $2) <= sys.version_info[:2] <= (3, $3))" 2> /dev/null; }

# make_venv PYTHON OLDEST NEWEST: makes the environment, unless it is there with a Python that fits and has pip.
make_venv() {
    if ! fits "$folder/bin/python" "$2" "$3" || ! "$folder/bin/python" -m pip --version > /dev/null 2>&1; then
        "$1" -m venv --clear "$folder"
    fi
}

pip_install() { "$folder/bin/python" -m pip install --disable-pip-version-check "$@"; }

# Shows progress on a single line if stdout is a terminal, and nothing otherwise. Errors go to stderr and stay.
one_line() {
    if [[ ! -t 1 ]]; then cat > /dev/null; return; fi
    while IFS= read -r line; do printf '\r\033[K%.79s' "$line"; done
    printf '\r\033[K'
}

cpu() {
    unset PYTHONPATH PYTHONHOME # what the user's shell adds to Python's path is not part of this environment
    # The pinned packages have wheels for these.
    local requirements=$1 oldest=11 newest=$2 python=$PYTHON name pythons="3.11 or 3.12"
    shift 2
    [[ $newest == 12 ]] || pythons="3.11, 3.12 or 3.13"
    if [[ -z "$python" ]]; then
        for name in python3 python3.13 python3.12 python3.11; do
            if fits "$name" $oldest "$newest"; then python=$(command -v "$name"); break; fi
        done
        [[ -n "$python" ]] || fail "no Python $pythons found. Install one, or name it:" \
            "make PYTHON=/path/to/python3.12 ..."
    fi
    fits "$python" $oldest "$newest" || fail "PYTHON=$python is not a Python $pythons. Nothing was changed."
    [[ $# == 0 ]] || "$python" "$@" || fail "nothing was installed, for the reason above."
    echo "Setting up $folder with $("$python" --version): a download of up to 3 GB, two minutes or more," \
        "the first time only."
    make_venv "$python" $oldest "$newest"
    pip_install -r "$requirements" | one_line
}

gpu() {
    local newest=12 needs built
    case $upstream in
        verl) needs="vllm 0.8.5 needs" ;;
        verl-0.9) needs="verl 0.9 needs" ;;
        timm) needs="torch 2.6.0 and this project need" newest=13 ;;
        fasttd3) needs="FastTD3's packages need" ;;
    esac
    fits python3 10 $newest || fail "$needs Python 3.10 to 3.$newest, the active one is $(python3 --version)." \
        "Activate an environment with one of these. Nothing was changed."
    echo "Setting up $folder from requirements/$upstream-gpu.txt: about $size."
    make_venv python3 10 $newest
    pip_install -r "requirements/$upstream-gpu.txt"
    case $upstream in
        verl) built="the CUDA toolkit 12.4 with nvcc, which torch 2.6.0 is built with" ;;
        verl-0.9) built="the CUDA toolkit 13.0 with nvcc, which torch 2.11.0 is built with" ;;
        *) return ;;
    esac
    pip_install --no-build-isolation -r "requirements/$upstream-gpu-flash-attn.txt" || fail \
        "flash-attn could not be installed; pip's reason is above. Building it takes $built (CUDA_HOME names its" \
        "folder), and a C++ compiler: a login node often has neither, so try on a node with GPUs. All other packages" \
        "are in $folder and stay; the same command goes on from there."
}

upstream=$1 folder=$2 size=$3
if [[ $upstream == cpu ]]; then cpu "${@:3}"; else gpu; fi
