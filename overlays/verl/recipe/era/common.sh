# shellcheck shell=bash
# What the paper's LLM runs share; the run scripts source it. What differs comes from them: model,
# train_data, TOTAL_STEPS, settings and stage1_ckpt, as launch.sh says.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
entry=(-m recipe.era.main_era --config-path="${root}/recipe/era/config" --config-name=era_math)
preflight=recipe/era/preflight.py
model=${model:-Qwen2.5-Math-7B}
[[ -z "${DRY_RUN:-}" || "${DRY_RUN}" == 0 || -f "${root}/recipe/dapo/main_dapo.py" ]] ||
    echo "note: this checkout lacks recipe/dapo, it comes from the source package" >&2

source "${root}/recipe/era/launch.sh"
