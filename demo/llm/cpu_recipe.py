"""python -m demo.llm.cpu_recipe MODULE [its arguments]: MODULE.main() on a CPU, where it would start recipe.dapo's trainer on GPUs.

Ray is an instance of its own in TMPDIR. As demo.cpu_trainer, the process ends with all of its group when stdin closes.
"""

import importlib
import sys
import tempfile

from demo.llm import cpu_trainer


def main(module: str, arguments: list[str]) -> None:
    cpu_trainer.end_with_parent()

    import ray
    from recipe.dapo import main_dapo

    trainer = sys.modules[main_dapo.run_ppo.__module__]  # verl.trainer.main_ppo in a tree of smoke.tree()

    class CPUTaskRunner(trainer.TaskRunner.__ray_metadata__.modified_class):
        def run(self, config):
            from demo.llm import cpu_worker

            cpu_worker.use()
            super().run(config)

    trainer.TaskRunner = ray.remote(num_cpus=1)(CPUTaskRunner)
    init = ray.init
    ray.init = lambda **given: init(**given | cpu_trainer.ray_settings(tempfile.gettempdir()))
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
