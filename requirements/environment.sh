#!/usr/bin/env bash
# Sets up what the Makefile needs in FOLDER, and then writes the requirements into FOLDER/installed:
#
#   environment.sh NAME FOLDER/installed [CHECK...]    a virtual environment from requirements/NAME.txt
#   environment.sh lint FOLDER/installed               ruff and mypy, with any Python from 3.10 on
#   environment.sh docs FOLDER/installed               what builds the site, with any Python from 3.11 on
#   environment.sh era-release FOLDER/installed        the grader of the authors' release, likewise
#   environment.sh NAME FOLDER/packages                without flash-attn, which only builds beside the CUDA toolkit
#   environment.sh NAME-sources FOLDER/installed PYTHON    unpacked source packages
#   environment.sh changed ENVIRONMENTS                prints the files `installed` and `packages` that hold other
#                                                      requirements than those here, or whose Python is gone
#
# An environment whose name ends in -gpu is made with the active python3, any other with PYTHON or else the first Python
# from 3.11 on with wheels for the pinned packages. If that Python fails on the arguments CHECK, nothing is installed.
# TORCH=cpu takes PyTorch without CUDA from PyTorch's own index, by uv; else it comes from where pip takes packages.
set -eo pipefail

fail() { echo "error: $*" >&2; exit 1; }

requirements() { cat requirements/"$name"*.txt 2> /dev/null; }

# is_current FILE: whether the folder was set up from these requirements. Dates say nothing: a clone's are always new.
is_current() { [[ -f "$1" && ( ! -e "${1%/*}/bin" || -x "${1%/*}/bin/python" ) ]] && requirements | cmp -s - "$1"; }

# claim: waits for another process that sets up the folder, and ends if that one did all that was wanted here.
claim() {
    { mkdir -p "$folder" && : >> "$folder.lock"; } 2> /dev/null || fail "$folder is not set up from requirements/$name.txt" \
        "as it is here, and nothing can be written there. Name a folder of your own: make ENVIRONMENTS=/path ..."
    exec 9>> "$folder.lock"
    if command -v flock > /dev/null && ! flock -n 9; then
        echo "Another process is setting up $folder. Waiting for it."
        flock 9 || true # file systems without locks
    fi
    ! is_current "$stamp" || exit 0
    rm -f "$stamp"
}

# fits PYTHON OLDEST NEWEST: whether it is a Python from 3.OLDEST to 3.NEWEST.
fits() { "$1" -c "import sys; sys.exit(not (3, $2) <= sys.version_info[:2] <= (3, $3))" 2> /dev/null; }

# make_venv PYTHON OLDEST NEWEST: makes the environment, unless it is there with a Python that fits and has pip.
make_venv() {
    claim
    if ! fits "$folder/bin/python" "$2" "$3" || ! "$folder/bin/python" -m pip --version > /dev/null 2>&1; then
        "$1" -m venv --clear "$folder"
    fi
}

pip_install() { "$folder/bin/python" -m pip install --disable-pip-version-check "$@"; }

# Shows what pip does: on a terminal one line that changes, with the seconds so far; elsewhere a line for each download of
# 10 MB or more, and one every half minute. Errors go to stderr and stay.
progress() {
    local line status last="pip starts" began=$SECONDS every=30
    [[ ! -t 1 ]] || every=1
    while true; do
        status=0
        read -r -t $every line || status=$? # above 128: there is no line yet
        if ((status == 0)); then
            # pip's next lines are of versions that it replaces, and then nothing comes until all is copied.
            [[ "$line" == *ninstall* || "$line" == Found\ existing* ]] && continue
            last=$line
            [[ "$line" != Installing\ collected* ]] || last="installing $(tr -dc , <<< "$line," | wc -c) packages"
        elif ((status <= 128)); then
            break
        fi
        if [[ -t 1 ]]; then
            printf '\r\033[K%.79s' "$((SECONDS - began)) s: $last"
        elif ((status)) || [[ "$last" =~ ^(Downloading|Using\ cached)\ .*\([0-9]{2,}(\.[0-9]+)?\ MB ]]; then
            printf '  %.110s\n' "$((SECONDS - began)) s: $last"
        fi
    done
    [[ ! -t 1 ]] || printf '\r\033[K'
}

cpu() {
    unset PYTHONPATH PYTHONHOME # what the user's shell adds to Python's path is not part of this environment
    local oldest=11 newest=12 pythons="3.11 or 3.12" python=$PYTHON candidate
    [[ $name != cpu ]] || { newest=13; pythons="3.11, 3.12 or 3.13"; }
    [[ $name != axolotl-cpu ]] || { oldest=12; pythons=3.12; } # Axolotl 0.20 and later need it
    if [[ -z "$python" ]]; then
        for candidate in python3 python3.13 python3.12 python3.11; do
            if fits "$candidate" $oldest $newest; then python=$(command -v "$candidate"); break; fi
        done
        [[ -n "$python" ]] || fail "no Python $pythons found. Install one, or name it:" \
            "make PYTHON=/path/to/python3.12 ..."
    fi
    fits "$python" $oldest $newest || fail "PYTHON=$python is not a Python $pythons."
    [[ -z "$TORCH" || "$TORCH" == cpu ]] || fail "TORCH=$TORCH: expected TORCH=cpu, or no TORCH for what pip installs."
    [[ $# == 0 ]] || "$python" "$@" || fail "nothing was installed, for the reason above."
    local torch="0.1 GB"
    [[ "$(uname)" != Linux ]] ||
        torch="up to 3.1 GB, because it brings CUDA; make TORCH=cpu ... takes 0.2 GB without it, from PyTorch's own index"
    [[ "$TORCH" != cpu ]] || torch="0.2 GB, without CUDA"
    echo "Setting up $folder with $("$python" --version), in two minutes or more." \
        "Downloads: packages, up to 0.5 GB; PyTorch, $torch."
    make_venv "$python" $oldest $newest
    # The lock has hashes and lists all but torch, so it comes first, with --no-deps; torch then needs nothing else but
    # CUDA. It has no hashes, because each index has other files of the same version.
    pip_install --require-hashes --no-deps -r "requirements/$name.txt" | progress
    if [[ "$TORCH" == cpu ]]; then
        pip_install --require-hashes --no-deps -r requirements/uv.txt | progress
        "$folder/bin/python" -m uv pip install --python "$folder/bin/python" --torch-backend=cpu --no-deps \
            -r "requirements/$name-torch.txt" || fail "uv could not install PyTorch, for the reason above. Without" \
            "TORCH=cpu it comes from where pip takes packages. All others are in $folder and stay."
    else
        pip_install -r "requirements/$name-torch.txt" | progress
    fi
}

# tools OLDEST WHAT: an environment without torch.
tools() {
    unset PYTHONPATH PYTHONHOME
    local python=${PYTHON:-python3}
    fits "$python" "$1" 99 || fail "make $name needs Python 3.$1 or newer. Name one: make PYTHON=/path/to/python3 $name"
    echo "Setting up $folder: $2"
    make_venv "$python" "$1" 99
    pip_install --require-hashes --no-deps -r "requirements/$name.txt" | progress
}

gpu() {
    local newest=12
    [[ $name != timm-gpu ]] || newest=13
    fits python3 10 $newest || fail "requirements/$name.in needs Python 3.10 to 3.$newest, the active one is" \
        "$(python3 --version). Activate an environment with one of these."
    echo "Setting up $folder from requirements/$name.txt: 5 to 12 GB."
    make_venv python3 10 $newest
    pip_install --require-hashes --no-deps -r "requirements/$name.txt" | progress
    [[ "$stamp" == */packages || ! -e requirements/$name-flash-attn.txt ]] ||
        pip_install --no-build-isolation -r "requirements/$name-flash-attn.txt" || fail \
        "flash-attn could not be installed; pip's reason is above. Building it takes a C++ compiler and nvcc of the CUDA" \
        "that torch is built with (CUDA_HOME names its folder): a login node often has neither, so try on a node with" \
        "GPUs. Where CUDA is another one, docs/llm/recipes.md says how to get nvcc. All other packages are in $folder and" \
        "stay; the same command goes on from there."
}

# sources PYTHON: one after the other, because one call of pip accepts only one version of a package.
sources() {
    local source archive
    claim
    while read -r source; do
        "$1" -m pip download -q --require-hashes --no-deps --no-binary :all: -d "$folder" -r <(echo "$source")
    done < "requirements/$name.txt"
    for archive in "$folder"/*.tar.gz; do tar -xzf "$archive" -C "$folder"; done
}

if [[ "$1" == changed ]]; then
    for stamp in "$2"/*/{installed,packages}; do
        name=${stamp%/*} name=${name##*/}
        [[ ! -f "$stamp" ]] || is_current "$stamp" || echo "$stamp"
    done
    exit
fi
name=$1 stamp=$2 folder=${2%/*}
for only in DRY_RUN CHECK_ONLY; do
    [[ -z "${!only}" || "${!only}" == 0 ]] || fail "$folder is not set up, or not as requirements/$name.txt has it now," \
        "and $only installs nothing. Set it up first: make $stamp"
done
# Ray starts its processes in a shell with Python's path unquoted, and then waits minutes for them.
path=$PWD/$folder
odd=${path//[[:alnum:]_.\/+,:@%=-]/}
[[ -z "$odd" ]] || fail "nothing can be installed under $PWD, because of the characters '$odd' in that path: Ray cannot" \
    "start its processes there. Move this project to a folder without them, then run the command again."
case $name in
    *-sources) sources "${@:3}" ;;
    lint) tools 10 "ruff and mypy, 30 MB." ;;
    docs) tools 11 "Zensical and mkdocstrings, 160 MB." ;;
    era-release) tools 11 "the grader of the authors' release, 0.7 GB." ;;
    *-gpu) gpu ;;
    *) cpu "${@:3}" ;;
esac
requirements > "$stamp"
