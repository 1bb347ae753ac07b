# shellcheck shell=bash
# What the paper's LLM runs share; the run scripts source it. What differs comes from them: model,
# train_data, TOTAL_STEPS, settings and stage1_ckpt, as launch.sh says.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# VERL_CHECKOUT: where the checkout will be, for make's dry run and check before `make apply`.
root=${VERL_CHECKOUT:-"$(dirname "$(dirname "${here}")")"}
config=${here}/config
entry=(-m recipe.era.main_era --config-path="${root}/recipe/era/config" --config-name=era_math)
preflight=recipe.era.preflight
if [[ ! -f "${root}/recipe/era/preflight.py" ]]; then
    preflight=recipes.llm.preflight
    [[ -n "${VERL_CHECKOUT:-}" ]] || {
        echo "error: ${root} is not a patched checkout. Run \`make apply\`, and this script there." >&2
        exit 1
    }
fi
model=${model:-Qwen2.5-Math-7B}

source "${here}/launch.sh"
