# shellcheck shell=bash
# What the paper's LLM runs share; the run scripts source it. What differs comes from them: model,
# train_data, TOTAL_STEPS, settings and stage1_ckpt, as launch.sh says.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
config=${root}/recipe/era/config
entry=(-m recipe.era.main_era --config-path="${config}" --config-name=era_math)
preflight=recipe.era.preflight
model=${model:-Qwen2.5-Math-7B}

source "${root}/recipe/era/launch.sh"
