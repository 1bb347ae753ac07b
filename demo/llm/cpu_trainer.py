# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.llm.cpu_trainer RAY_FOLDER [HYDRA OVERRIDES]: verl's PPO trainer on a CPU, in a new Ray instance.

Needs the verl checkout and this repository on PYTHONPATH. Ends with its process group when stdin closes.
"""

import sys
from pathlib import Path

from recipes.processes import end_with_parent

OBJECT_STORE_BYTES = 100 * 1024**2  # a batch is under 1 MB; Ray's minimum is 75 MB, its default 30 % of the memory


def ray_settings(ray_folder: str, cpus: int = 4) -> dict:
    """Arguments of ray.init. cpus: what verl's processes ask for, whatever the machine has."""
    return {
        "address": "local",
        "num_cpus": cpus,
        # verl asks Ray for one GPU per worker; Ray does not check that it exists.
        "num_gpus": 1,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": ray_folder,
        "_plasma_directory": ray_folder,  # not /dev/shm, which containers often keep too small
    }


def main(ray_folder: str, overrides: list[str]) -> None:
    end_with_parent()

    import hydra
    import ray
    from verl.trainer import main_ppo

    from demo.llm.cpu_worker import CPUTaskRunner

    with hydra.initialize_config_dir(str(Path(main_ppo.__file__).parent / "config"), version_base=None):
        config = hydra.compose("ppo_trainer", overrides)
    ray.init(**ray_settings(ray_folder))
    CPUTaskRunner().run(config)  # in this process: the one that run_ppo starts would first import all of this again


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
