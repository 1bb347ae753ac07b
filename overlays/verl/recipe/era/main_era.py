# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m recipe.era.main_era: recipe.dapo.main_dapo, with the loggers' environment on Ray.

On an existing Ray cluster, the process that logs has the environment in which Ray was started, not
that of the run script: without this, TENSORBOARD_DIR and the like would silently be ignored.
"""

import os

import hydra
import ray

from recipe.dapo.main_dapo import run_ppo

# What run_ppo gives its workers where it starts Ray itself.
WORKER_DEFAULTS = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "VLLM_LOGGING_LEVEL": "WARN",
}
LOGGER_VARIABLES = ("TENSORBOARD_DIR", "VERL_FILE_LOGGER_PATH", "WANDB_", "MLFLOW_", "SWANLAB_")


@hydra.main(config_path=None, version_base=None)
def main(config):
    for_loggers = {
        name: value for name, value in os.environ.items() if name.startswith(LOGGER_VARIABLES)
    }
    # `ray job submit --runtime-env-json` may set the same ones; this process has them already then.
    os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
    workers = {name: os.environ.get(name, value) for name, value in WORKER_DEFAULTS.items()}
    ray.init(
        runtime_env={"env_vars": {**workers, **for_loggers}}, num_cpus=config.ray_init.num_cpus
    )
    run_ppo(config)


if __name__ == "__main__":
    main()
