"""python trainer_run.py FOLDER OVERRIDES: era.verl.main_ppo on a CPU, with what stands for GPUs and rollout servers.

Everything else is real: Ray, TransferQueue, verl's V1 trainer, its FSDP engine and file logger. FOLDER gets a tiny
model and a task: a response's reward is 1 if it has the token "7".
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import cpu_verl

os.environ.update(cpu_verl.ENVIRONMENT)

import ray
import torch

CHARACTERS = ["<pad>", "<eos>", "<unk>", *"0123456789+-*/=abcdefghijklmnopqrstuvwxyz .,:;?!"]
SEVEN = CHARACTERS.index("7")
OVERRIDES = """
data.train_batch_size=8 data.max_prompt_length=8 data.max_response_length=8 data.dataloader_num_workers=0
actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=False
+actor_rollout_ref.model.override_config.attn_implementation=eager
actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.use_dynamic_bsz=True
actor_rollout_ref.actor.ppo_max_token_len_per_gpu=400 actor_rollout_ref.actor.optim.lr=5e-3
actor_rollout_ref.actor.fsdp_config.model_dtype=fp32 actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32
+actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype=fp32
actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=400
actor_rollout_ref.rollout.name=cpu actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n=8
actor_rollout_ref.rollout.calculate_log_probs=False actor_rollout_ref.rollout.tensor_model_parallel_size=1
+actor_rollout_ref.rollout.agent.agent_loop_manager_class=trainer_run.Sampler
algorithm.adv_estimator=grpo reward.num_workers=1
trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.device=cpu trainer.total_training_steps=3 trainer.save_freq=-1
trainer.val_before_train=False trainer.test_freq=-1 trainer.logger=[console,file] trainer.resume_mode=auto
transfer_queue.backend.SimpleStorage.num_data_storage_units=1
transfer_queue.backend.SimpleStorage.total_storage_size=1000
+ray_kwargs.ray_init.address=local ray_kwargs.ray_init.num_cpus=12
+ray_kwargs.ray_init.num_gpus=1 +ray_kwargs.ray_init.include_dashboard=False
"""


def make_task(folder):
    import pandas
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(CHARACTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    rows = [
        {
            "data_source": "sevens",
            "prompt": [{"role": "user", "content": f"{i}="}],
            "ability": "sevens",
            "reward_model": {"style": "rule", "ground_truth": "7"},
            "extra_info": {"index": i},
        }
        for i in range(64)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "task.parquet")


def worker_with_sampling(worker):
    """Stands for the rollout server: the actor samples from its own weights."""
    from verl.single_controller.base.decorator import Dispatch, register

    class CpuWorker(worker):
        def __init__(self, config, role, **kwargs):
            cpu_verl.install_stand_ins()
            super().__init__(config=config, role=role.replace("_rollout", ""), **kwargs)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def sample(self, prompts, count, length, temperature):
            module, found = self.actor.engine.module, []
            module.eval()
            with torch.no_grad():
                for prompt in prompts:
                    ids = torch.tensor(prompt).repeat(count, 1)
                    for _ in range(length):
                        logits = module(input_ids=ids, use_cache=False).logits[:, -1] / temperature
                        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
                    found.append(ids[:, len(prompt) :].tolist())
            return found

    return CpuWorker


class Sampler:
    """Stands for the agent loop: hands trajectories to the TransferQueue."""

    @classmethod
    def create(cls, llm_client, **_):
        sampler = cls()
        sampler.trainer = llm_client
        return sampler

    def generate_sequences(self, batch):
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        trainer = self.trainer
        rollout, step = trainer.config.actor_rollout_ref.rollout, trainer.global_steps
        prompts = [trainer.tokenizer.encode(row[0]["content"], add_special_tokens=False) for row in batch["raw_prompt"]]
        (samples,) = trainer.actor_rollout_wg.sample(prompts, rollout.n, rollout.response_length, rollout.temperature)
        for uid, prompt, responses in zip(batch["uid"], prompts, samples):
            keys, fields, tags = [], [], []
            for i, response in enumerate(responses):
                ids, mask = torch.tensor(prompt + response), torch.ones(len(response), dtype=torch.int64)
                reward = torch.zeros(len(response))
                reward[-1] = SEVEN in response
                keys.append(f"{uid}_{i}_0")
                fields.append(
                    {
                        "prompts": ids[: len(prompt)],
                        "responses": ids[len(prompt) :],
                        "input_ids": ids,
                        "position_ids": torch.arange(len(ids)),
                        "response_mask": mask,
                        "loss_mask": mask,
                        "rm_scores": reward,
                        "uid": uid,
                        "num_turns": 2,
                        "extra_fields": {"reward_extra_info": {"reward": reward[-1].item()}},
                    }
                )
                lengths = {"prompt_len": len(prompt), "response_len": len(response), "seq_len": len(ids)}
                steps = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), step)
                tags.append({"status": "success", **lengths, **steps})
            tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
            done = {"is_prompt": True, "status": "finished", "global_steps": step}
            tq.kv_batch_put(keys=[uid], partition_id="train", tags=[done])


def on_a_cpu(task_runner):
    """The task runner, with a trainer that starts no rollout servers and whose workers sample."""

    @ray.remote
    class CpuTaskRunner(task_runner.__ray_actor_class__):
        def run(self, config):
            from verl.trainer.ppo.v1 import PPOTrainerSync
            from verl.trainer.ppo.v1.trainer_base import PPOTrainer
            from verl.workers.rollout.llm_server import LLMServerManager

            setup = PPOTrainer._setup
            LLMServerManager.create = lambda **_: SimpleNamespace(get_replicas=list)
            PPOTrainer.get_llm_client = lambda trainer: trainer
            PPOTrainerSync.on_init_end = PPOTrainerSync.on_step_end = lambda trainer: None

            def setup_with_sampling(trainer):
                make = trainer._init_resource_pool_mgr

                def make_pools():
                    make()
                    for role, worker in trainer.role_worker_mapping.items():
                        plain = worker.__ray_actor_class__
                        print(
                            "WORKER",
                            role,
                            plain.__name__,
                            "TRAINER",
                            type(trainer).__name__,
                            trainer.trainer_mode,
                            type(trainer.replay_buffer).__name__,
                        )
                        trainer.role_worker_mapping[role] = ray.remote(worker_with_sampling(plain))

                trainer._init_resource_pool_mgr = make_pools
                setup(trainer)

            PPOTrainer._setup = setup_with_sampling
            super().run(config)

    return CpuTaskRunner


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if not (folder / "task.parquet").exists():
        make_task(folder)
    files = [f"data.train_files={folder}/task.parquet", f"data.val_files={folder}/task.parquet"]
    model = [f"actor_rollout_ref.model.path={folder}", f"trainer.default_local_dir={folder}/checkpoints"]
    sys.argv[1:] = [*OVERRIDES.split(), *files, *model, f"hydra.run.dir={folder}/hydra", *sys.argv[2:]]
    import trainer_run
    from verl.trainer import main_ppo as verl_main

    from era.verl import launch, main_ppo

    launch.TaskRunner = trainer_run.on_a_cpu(launch.TaskRunner)
    verl_main.TaskRunnerV1 = trainer_run.on_a_cpu(verl_main.TaskRunnerV1)
    main_ppo.main()
