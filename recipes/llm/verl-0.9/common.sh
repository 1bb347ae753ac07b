# shellcheck shell=bash
# What the runs on verl 0.9.1 share; the run scripts source it. What differs comes from them:
# TOTAL_STEPS and settings, as launch.sh says.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
config=${root}/recipes/llm/verl-0.9/config
entry=(-m era.verl.main_ppo --config-dir="${config}" --config-name=era_math)
preflight=recipes.llm.preflight
runtime_env=ray_kwargs.ray_init.runtime_env.env_vars
model=Qwen3-8B

source "${root}/overlays/verl/recipe/era/launch.sh"
