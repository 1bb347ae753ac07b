"""python -m demo.llm.cpu_trainer RAY_DIR [hydra overrides]: verl's PPO trainer on a CPU, in a Ray instance of its own.

Needs the verl checkout and this repository on PYTHONPATH. Ends, with all of its process group, when stdin closes:
so a parent that dies in whatever way leaves nothing behind.
"""

import os
import signal
import sys
import threading
from pathlib import Path

OBJECT_STORE_BYTES = 100 * 1024**2  # a batch is under 1 MB; Ray's minimum is 75 MB, its default 30 % of the memory


def end_with_parent() -> None:
    def wait() -> None:
        os.read(0, 1)  # not sys.stdin: its lock, held by this thread, would abort the interpreter's exit
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def ray_settings(ray_dir: str) -> dict:
    """Arguments of ray.init."""
    return {
        "address": "local",
        "num_cpus": 4,
        # verl asks Ray for one GPU per worker; Ray does not check that a GPU promised to it exists.
        "num_gpus": 1,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": ray_dir,
        "_plasma_directory": ray_dir,  # not /dev/shm, which containers often keep too small
    }


def main(ray_dir: str, overrides: list[str]) -> None:
    end_with_parent()

    import hydra
    import ray
    from verl.trainer import main_ppo

    from demo.llm.cpu_worker import CPUTaskRunner

    with hydra.initialize_config_dir(str(Path(main_ppo.__file__).parent / "config"), version_base=None):
        config = hydra.compose("ppo_trainer", overrides)
    ray.init(**ray_settings(ray_dir))
    main_ppo.TaskRunner = ray.remote(num_cpus=1)(CPUTaskRunner)
    main_ppo.run_ppo(config)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
