# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Replaces verl 0.9's rollout servers (vLLM's and SGLang's) on a CPU: the actor samples by itself.

Rewards, the TransferQueue and all that follows are verl's.
"""

from types import SimpleNamespace

import numpy as np
import torch

from demo.llm.verl_0_9 import cpu


def with_sampling(worker):
    """A subclass of the class `worker` that samples from the actor's weights and has no rollout engine."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from verl.single_controller.base.decorator import Dispatch, register

    class SamplingWorker(worker):
        def __init__(self, config, role, **kwargs):
            cpu.install_stand_ins()
            super().__init__(config=config, role=role.replace("_rollout", ""), **kwargs)
            torch.manual_seed(config.rollout.seed)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def sample(self, prompts, mask, count, length, temperature):
            """(prompts x count, up to length) token ids; prompts and their mask are padded on the left."""
            model = self.actor.engine.module
            model.eval()
            with torch.no_grad(), FSDP.summon_full_params(model, writeback=False, recurse=False):
                sequences = model.generate(
                    input_ids=prompts.repeat_interleave(count, 0),
                    attention_mask=mask.repeat_interleave(count, 0),
                    do_sample=True,
                    temperature=temperature,
                    top_k=0,
                    max_new_tokens=length,
                )
            return sequences[:, prompts.shape[1] :]

    return SamplingWorker


class Sampler:
    """Stands for verl's agent loop: samples, has verl's reward workers score, and fills the TransferQueue."""

    def __init__(self, trainer):
        self.trainer = trainer

    def generate_sequences(self, batch):
        """Sample answers to the rows of a batch, each with a `uid`, score them and put them into the TransferQueue."""
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        rollout, step = self.trainer.config.actor_rollout_ref.rollout, batch["global_steps"]
        settings, partition = (rollout.val_kwargs, "val") if "validate" in batch else (rollout, "train")
        tensors = self._sample(list(batch["raw_prompt"]), settings.n, settings.temperature)
        rows = {name: np.repeat(_objects(batch[name]), settings.n) for name in ("uid", "data_source", "reward_model")}
        rewards = self._score(tensors, rows)
        keys, fields, tags = [], [], []
        for i, uid in enumerate(rows["uid"]):
            keys.append(f"{uid}_{i % settings.n}_0")
            fields.append(_fields(tensors, rewards, i) | {name: values[i] for name, values in rows.items()})
            tags.append(_tag(fields[-1], step))
        tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields), tags=tags)
        done = {"is_prompt": True, "status": "finished", "global_steps": step}
        tq.kv_batch_put(keys=list(batch["uid"]), partition_id=partition, tags=[done] * len(batch))

    def _sample(self, chats, count, temperature) -> dict[str, torch.Tensor]:
        """Prompts, padded on the left, and `count` responses to each, padded on the right, with their masks."""
        tokenizer = self.trainer.tokenizer
        texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
        prompts = tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
        ids, mask = prompts["input_ids"], prompts["attention_mask"]
        length = self.trainer.config.actor_rollout_ref.rollout.response_length
        (responses,) = self.trainer.actor_rollout_wg.sample(ids, mask, count, length, temperature)
        ends = (responses == tokenizer.eos_token_id).long()
        return {
            "prompts": ids.repeat_interleave(count, 0),
            "prompt_mask": mask.repeat_interleave(count, 0),
            "responses": responses,
            "response_mask": (ends.cumsum(1) - ends == 0).long(),  # up to the first end
        }

    def _score(self, tensors, rows):
        """verl's DataProto of rm_scores, and what else the reward function returned."""
        from tensordict import TensorDict
        from verl import DataProto

        attention = torch.cat([tensors["prompt_mask"], tensors["response_mask"]], 1)
        batch = TensorDict(
            {"prompts": tensors["prompts"], "responses": tensors["responses"], "attention_mask": attention},
            batch_size=len(attention),
        )
        return self.trainer.reward_loop_manager.compute_rm_score(DataProto(batch=batch, non_tensor_batch=rows))


def _objects(values) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def _fields(tensors, rewards, i) -> dict:
    """What verl's agent loop puts into the TransferQueue for one answer, without padding."""
    prompt = tensors["prompts"][i][tensors["prompt_mask"][i].bool()]
    kept = tensors["response_mask"][i].bool()
    response, mask = tensors["responses"][i][kept], tensors["response_mask"][i][kept]
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": torch.cat([prompt, response]),
        "position_ids": torch.arange(len(prompt) + len(response)),
        "response_mask": mask,
        "loss_mask": mask,
        "rm_scores": rewards.batch["rm_scores"][i][kept],
        "num_turns": 2,
        "extra_fields": {"reward_extra_info": {name: values[i] for name, values in rewards.non_tensor_batch.items()}},
    }


def _tag(fields, step) -> dict:
    return {
        "status": "success",
        "prompt_len": len(fields["prompts"]),
        "response_len": len(fields["responses"]),
        "seq_len": len(fields["input_ids"]),
        **dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), step),
    }


def on_a_cpu(task_runner):
    """A subclass of the class `task_runner` whose trainer starts no rollout servers and has workers that sample."""

    class CpuTaskRunner(task_runner):
        def run(self, config):
            from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync, trainer_base
            from verl.workers.rollout.llm_server import LLMServerManager

            from era.verl import worker as era_worker

            trainer_base.ActorRolloutRefWorker = with_sampling(trainer_base.ActorRolloutRefWorker)
            era_worker.EraActorRolloutRefWorker = with_sampling(era_worker.EraActorRolloutRefWorker)
            LLMServerManager.create = lambda **_: SimpleNamespace(get_replicas=list, get_client=cpu.nothing)
            for trainer in (PPOTrainerSync, PPOTrainerColocateAsync):
                trainer.on_init_end = trainer.on_step_end = cpu.nothing  # they send weights to the servers
            super().run(config)

        def init_agent_loop_manager(self):
            self.agent_loop_manager = Sampler(self.trainer)

    return CpuTaskRunner
