# shellcheck shell=bash
# What the runs on verl 0.9.1 share; the run scripts source it. What differs comes from them:
# TOTAL_STEPS and settings, as launch.sh says.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
entry=(-m era.verl.main_ppo --config-dir="${root}/recipes/llm/verl-0.9/config" --config-name=era_math)
preflight=recipes/llm/verl-0.9/preflight.py
runtime_env=ray_kwargs.ray_init.runtime_env.env_vars
model=Qwen3-8B

source "${root}/recipes/llm/launch.sh"
