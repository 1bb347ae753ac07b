#!/usr/bin/env bash
# FastSAC-ERA in FastTD3, on HumanoidBench's h1hand-walk-v0, which needs its packages and a GPU.
#
#   python3 apply.py apply fasttd3                # in a clone of this project
#   bash examples/fasttd3.sh                      # says "Using FastSAC-ERA", with the settings
#   bash examples/fasttd3.sh --env_name Gym-HalfCheetah-v4 --no_cuda --render_interval 0    # on a CPU, without EGL
#
# The rows that it logs go to logs/ in the checkout: gaussian_entropy is the target or above, in nats over all dimensions.
# With a key for wandb leave --no_use_wandb out.
set -eo pipefail
cd "${CHECKOUTS:-checkouts}/fasttd3"
exec python3 fast_td3/train.py --agent fastsac_era --env_name h1hand-walk-v0 --era_target_entropy -0.5 \
    --total_timesteps 100000 --no_use_wandb "$@"
