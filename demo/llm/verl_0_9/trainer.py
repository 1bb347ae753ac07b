# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.llm.verl_0_9.trainer RAY_FOLDER [HYDRA OVERRIDES]: era.verl.main_ppo on a CPU, in a new Ray instance.

Needs verl 0.9.1 and this repository on PYTHONPATH. Ends with its process group when stdin closes.
"""

import json
import os
import sys

from demo.llm.cpu_trainer import ray_settings
from recipes.processes import end_with_parent


def main(ray_folder: str, overrides: list[str]) -> None:
    end_with_parent()

    from demo.llm.verl_0_9 import cpu

    os.environ.update(cpu.ENVIRONMENT)

    import ray

    from demo.llm.verl_0_9.sampling import on_a_cpu
    from era.verl import launch, main_ppo

    launch.TaskRunner = ray.remote(on_a_cpu(launch.TaskRunner.__ray_actor_class__))
    settings = ray_settings(ray_folder, cpus=6)
    ray_init = [f"++ray_kwargs.ray_init.{name}={json.dumps(value)}" for name, value in settings.items()]
    sys.argv[1:] = [*overrides, *ray_init]
    main_ppo.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
