# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python verl_run.py FOLDER OVERRIDES: tests/llm/current/trainer_run.py, but with verl's rollout servers of vLLM."""

import sys
from pathlib import Path

import trainer_run
from trainer_run import CPU_OVERRIDES, cpu

CPU_OVERRIDES |= {
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.dtype": "float32",
    "actor_rollout_ref.rollout.enforce_eager": True,
    "actor_rollout_ref.rollout.free_cache_engine": False,
    "+actor_rollout_ref.rollout.enable_sleep_mode": False,  # vLLM has none on a CPU
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.max_model_len": 32,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
}


def on_a_cpu(task_runner):
    """A subclass of the class `task_runner` whose workers train on a CPU."""

    def with_stand_ins(worker):
        class CpuWorker(worker):
            def __init__(self, *args, **kwargs):
                from verl.models.transformers import monkey_patch

                cpu.install_stand_ins()
                # It would import a class of TRL that has long been removed.
                monkey_patch.is_trl_available = lambda: False
                super().__init__(*args, **kwargs)

        return CpuWorker

    class CpuTaskRunner(task_runner):
        def run(self, config):
            from verl.trainer.ppo.v1 import trainer_base

            from era.verl import worker as era_worker

            trainer_base.ActorRolloutRefWorker = with_stand_ins(trainer_base.ActorRolloutRefWorker)
            era_worker.EraActorRolloutRefWorker = with_stand_ins(era_worker.EraActorRolloutRefWorker)
            super().run(config)

    return CpuTaskRunner


trainer_run.on_a_cpu = on_a_cpu
if __name__ == "__main__":
    trainer_run.main(Path(sys.argv[1]), sys.argv[2:])
