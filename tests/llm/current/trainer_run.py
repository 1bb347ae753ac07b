# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python trainer_run.py FOLDER OVERRIDES: era.verl.main_ppo on a CPU, with what stands for GPUs and rollout servers.

Everything else is real: Ray, TransferQueue, verl's V1 trainer, its FSDP engine, reward workers and file logger. FOLDER
gets a tiny model and a task: a response's reward is 1 if it has the token "7".
"""

import os
import sys
from pathlib import Path

from demo.llm import models
from demo.llm.verl_0_9 import CPU_OVERRIDES, cpu

os.environ.update(cpu.ENVIRONMENT)

import ray
import torch

from demo.llm.verl_0_9.sampling import on_a_cpu

CHARACTERS = "0123456789+-*/=abcdefghijklmnopqrstuvwxyz .,:;?!"
OVERRIDES = """
data.train_batch_size=8 data.max_prompt_length=8 data.max_response_length=8
actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.rollout.n=8
actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.use_dynamic_bsz=True
actor_rollout_ref.actor.ppo_max_token_len_per_gpu=400 actor_rollout_ref.actor.optim.lr=5e-3
actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=400
algorithm.adv_estimator=grpo trainer.total_training_steps=3 trainer.save_freq=-1
trainer.val_before_train=False trainer.test_freq=-1 trainer.logger=[console,file] trainer.resume_mode=auto
+ray_kwargs.ray_init.address=local ray_kwargs.ray_init.num_cpus=12
+ray_kwargs.ray_init.num_gpus=1 +ray_kwargs.ray_init.include_dashboard=False
"""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    reward = float(ground_truth in solution_str)
    return {"score": reward, "reward": reward}  # the group filter of 0.9.0 reads the second


def make_task(folder):
    torch.manual_seed(0)
    # verl's own rollouts (tests/rehearsal/vllm) want the last two; the first of them is a newline.
    tokenizer = models.character_tokenizer([*CHARACTERS, "Ċ", "<|im_end|>"])
    tokenizer.save_pretrained(folder)
    # Heads of 32, the smallest that vLLM has on a CPU (tests/rehearsal/vllm).
    models.two_layer_qwen2(len(tokenizer), 128, intermediate=64, positions=64).save_pretrained(folder)
    models.write_prompts(folder / "task.parquet", "sevens", [(f"{i}=", "7") for i in range(64)])


def runner(plain):
    """The task runner on a CPU; it prints which classes verl's trainer was made of."""

    class PrintingTaskRunner(on_a_cpu(plain.__ray_actor_class__)):
        def init_agent_loop_manager(self):
            super().init_agent_loop_manager()
            trainer = self.trainer
            ((role, worker),) = trainer.role_worker_mapping.items()
            made = worker.__ray_actor_class__.__base__, type(trainer), type(trainer.replay_buffer)
            worker, name, replay_buffer = (each.__name__ for each in made)
            print("WORKER", role, worker, "TRAINER", name, trainer.trainer_mode, replay_buffer)

    return ray.remote(PrintingTaskRunner)


def main(folder, overrides):
    if not (folder / "task.parquet").exists():
        make_task(folder)
    files = [f"data.train_files={folder}/task.parquet", f"data.val_files={folder}/task.parquet"]
    files += [f"reward.custom_reward_function.path={Path(__file__).resolve()}"]
    model = [f"actor_rollout_ref.model.path={folder}", f"trainer.default_local_dir={folder}/checkpoints"]
    cpu_overrides = [f"{name}={value}" for name, value in CPU_OVERRIDES.items()]
    sys.argv[1:] = [*cpu_overrides, *OVERRIDES.split(), *files, *model, f"hydra.run.dir={folder}/hydra", *overrides]
    from verl.trainer import main_ppo as verl_main

    from era.verl import launch, main_ppo

    launch.TaskRunner = runner(launch.TaskRunner)
    verl_main.TaskRunnerV1 = runner(verl_main.TaskRunnerV1)
    main_ppo.main()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
