# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python tests/llm/cpu_recipe.py MODULE [ITS ARGUMENTS]: MODULE.main(), with recipe.dapo's trainer on a CPU.

Ray is a new instance in TMPDIR. The process ends with its process group when stdin closes.
"""

import importlib
import sys
import tempfile

from demo.llm import cpu_trainer
from recipes.processes import end_with_parent


def main(module: str, arguments: list[str]) -> None:
    end_with_parent()

    import ray
    import torch
    from recipe.dapo import main_dapo

    torch.cuda.device_count = lambda: 1  # for the recipe's check, as Ray is told below

    trainer = sys.modules[main_dapo.run_ppo.__module__]  # verl.trainer.main_ppo in a checkout without DAPO's trainer

    class CPUTaskRunner(trainer.TaskRunner.__ray_metadata__.modified_class):
        def run(self, config):
            from demo.llm import cpu_worker

            cpu_worker.use()
            super().run(config)

    trainer.TaskRunner = ray.remote(num_cpus=1)(CPUTaskRunner)
    init = ray.init
    ray.init = lambda **given: init(**given | cpu_trainer.ray_settings(tempfile.gettempdir()))
    sys.argv = [module, *arguments]
    sys.exit(importlib.import_module(module).main())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
