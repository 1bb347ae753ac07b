# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Updates by the real training worker and FSDP engine of whichever verl 0.9 is importable.

    python worker_step.py SETTINGS.json RESULTS.pt

With torchrun and N processes: Ulysses sequence parallelism over N, or with "data_parallel" each rank with its share of
the batch. "megatron": True trains with verl's Megatron engine instead, and "tensor_parallel", "pipeline_parallel" or
"context_parallel" is N. "scales_responses": True makes the worker scale the FSDP engine's logits through a temperature
per response. "turbo": True trains with verl's FSDP-Turbo engine without the package fsdp_turbo. Settings, models,
batches and results are as in ../actor_step.py; all is fp64 but for "dtype": "float32". "plugin": False trains with
verl's own worker and configuration.
"""

import contextlib
import io
import os
import tempfile
from functools import partial

import cpu_megatron

from demo.llm.verl_0_9 import cpu

os.environ.update(cpu.ENVIRONMENT)

import step_process
import torch
import torch.distributed as dist
from tensordict import TensorDict
from token_model import PROMPT, TokenForCausalLM, build_model, make_batch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.torch_dtypes import PrecisionType
from verl.workers import config as verl_config
from verl.workers.config import (
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine import FSDPEngine
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from era.verl import config as era_config
from era.verl import worker as era_worker

FORWARD = TokenForCausalLM.forward


def nested(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def make_data(settings, step, dtype):
    """The batch of actor_step.py without its padding, as the V1 trainer hands it out."""
    padded = make_batch(settings["bsz"], settings["seed"] + step, dtype)
    if settings.get("mixed_advantages"):
        padded["advantages"][2, 0] *= -1
    padded = step_process.share(padded, settings)
    real = padded["attention_mask"].bool()
    response = real[:, PROMPT:]
    mask = padded["loss_mask" if settings.get("multi_turn") else "attention_mask"] * 1
    mask[:, :PROMPT] = 0

    def sequences(name):
        return nested(row[keep] for row, keep in zip(padded[name], real))

    def responses(values):
        return nested(row[keep] for row, keep in zip(values, response))

    data = {
        "input_ids": sequences("input_ids"),
        "position_ids": sequences("position_ids"),
        "prompts": nested(row[:PROMPT][keep[:PROMPT]] for row, keep in zip(padded["input_ids"], real)),
        "responses": responses(padded["responses"]),
        "loss_mask": nested(row[keep] for row, keep in zip(mask, real)),
        "response_mask": responses(mask[:, PROMPT:]),
        "advantages": responses(padded["advantages"]),
        "ref_log_prob": responses(padded["ref_log_prob"]),
    }
    return padded, TensorDict(data, batch_size=len(padded))


def fsdp_engine(settings):
    precision = "bf16" if settings.get("autocast") else "fp32"
    return FSDPEngineConfig(
        strategy="fsdp_turbo" if settings.get("turbo") else "fsdp",
        model_dtype="fp32",
        mixed_precision={"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False,
        ulysses_sequence_parallel_size=step_process.sequence_parallel_size(settings),
        pad_to_length=settings.get("pad_to_length", False),
        pad_to_length_bucket=16,
    )


def fsdp_optimizer(settings):
    if settings.get("adam"):
        return FSDPOptimizerConfig(lr=1e-2, total_training_steps=10, clip_grad=1.0)
    return FSDPOptimizerConfig(
        lr=settings.get("lr", 1.0),
        total_training_steps=10,
        weight_decay=0.0,
        optimizer="SGD",
        clip_grad=1e9,
    )


def without_fsdp_turbo():
    """verl's FSDP-Turbo engine, where it calls that package, takes FSDP's own sharding and optimizer step."""
    from verl.workers.engine import FSDPTurboEngineWithLMHead as TurboEngine

    def build(self, module):
        object.__setattr__(self.engine_config, "strategy", "fsdp")
        return FSDPEngine._build_fsdp_module(self, module)

    TurboEngine._init_parallel_state = cpu.nothing
    TurboEngine._build_fsdp_module = build
    TurboEngine.optimizer_step = FSDPEngine.optimizer_step


def make_worker(settings, folder):
    plugin, megatron = settings.get("plugin", True), settings.get("megatron", False)
    engine = cpu_megatron.engine_config(settings) if megatron else fsdp_engine(settings)
    configs = era_config if plugin else verl_config
    actor = (configs.McoreActorConfig if megatron else configs.FSDPActorConfig)(
        rollout_n=1,
        **({"strategy": engine.strategy} if settings.get("turbo") else {}),
        **{"megatron" if megatron else "fsdp_config": engine},
        **step_process.actor_settings(settings),
        policy_loss=PolicyLossConfig(**settings.get("policy_loss", {})),
        **({name: settings.get(name, {}) for name in ("era", "adaptive_entropy")} if plugin else {}),
    )
    for phase in ("", "infer_"):
        object.__setattr__(engine, f"{phase}micro_batch_size_per_gpu", settings["micro_batch"])
        object.__setattr__(engine, f"{phase}max_token_len_per_gpu", 30)
    engine.use_dynamic_bsz = settings.get("dynamic", False)
    lora = {"lora_rank": 4, "lora_alpha": 8, "target_modules": ["hidden"]} if settings.get("lora") else {}
    model_config = HFModelConfig(
        path=folder,
        load_tokenizer=False,
        enable_gradient_checkpointing=False,
        use_remove_padding=settings["remove_padding"],
        override_config={"attn_implementation": "eager"},
        use_fused_kernels=settings.get("fused", False),
        fused_kernel_options={"impl_backend": "torch"},
        **lora,
    )
    if megatron:
        cpu_megatron.prepare(model_config)
    worker = (era_worker.EraTrainingWorker if plugin and settings.get("era", {}).get("enable") else TrainingWorker)(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model_config,
            engine_config=actor.engine,
            optimizer_config=(cpu_megatron.optimizer_config if megatron else fsdp_optimizer)(settings),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


def parameters(worker):
    if not isinstance(worker.engine, FSDPEngine):
        return {name: p.detach().clone() for name, p in worker.engine.get_per_tensor_param()[0]}
    with FSDP.summon_full_params(worker.engine.module):
        return {
            name.replace("_fsdp_wrapped_module.", ""): p.detach().clone()
            for name, p in worker.engine.module.named_parameters()
        }


def take_steps(settings):
    if settings.get("megatron"):
        cpu_megatron.install_stand_ins()
    if settings.get("turbo"):
        without_fsdp_turbo()
    folders = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folders)  # those of the first process
    folder = folders[0]
    TokenForCausalLM.forward = FORWARD  # which verl replaces for fused kernels, for good
    era_config.SCALES_RESPONSES.discard("fsdp")
    if settings.get("scales_responses"):
        era_config.SCALES_RESPONSES.add("fsdp")
    dtype = getattr(torch, settings.get("dtype", "float64"))
    precisions = {"fp32": dtype, "bf16": torch.bfloat16, "bfloat16": dtype, dtype: dtype}
    PrecisionType.to_dtype = staticmethod(precisions.__getitem__)
    torch.manual_seed(settings["seed"])
    model = build_model({"model": settings["model"]}, dtype)
    if settings.get("megatron"):  # an untrained Qwen2 has the entropy ln 40 everywhere
        model.lm_head.weight.data *= 40
    if dist.get_rank() == 0:
        model.save_pretrained(folder)
    dist.barrier()
    worker = make_worker(settings, folder)
    start = parameters(worker)
    metrics, said = [], io.StringIO()
    for step in range(settings.get("steps", 1)):
        if step and settings.get("restart"):
            worker.save_checkpoint(f"{folder}/checkpoint", global_step=step)
            worker = make_worker(settings, folder)
            worker.load_checkpoint(f"{folder}/checkpoint")
        if dtype == torch.float64:  # FSDP takes the norm in fp32 and refuses fp64; without it nothing is clipped
            worker.engine.module.clip_grad_norm_ = lambda max_norm: torch.zeros(())
        coeff = settings.get("entropy_coeffs", {}) and settings["entropy_coeffs"][step]
        if coeff:
            object.__setattr__(worker.loss_fn.keywords["config"], "entropy_coeff", coeff)
        padded, data = make_data(settings, step, dtype)
        sampled = data.copy()
        common = {"temperature": settings["temperature"]}
        tu.assign_non_tensor(sampled, calculate_entropy=True, compute_loss=False, **common)
        sampled = all_ranks(worker, sampled)
        for name, key in (("old_log_probs", "log_probs"), ("entropy", "entropy")):
            data[name] = response_from_nested(sampled[key], data["response_mask"])
        mini_batch = settings.get("mini_batch", settings["bsz"])
        tu.assign_non_tensor(
            data,
            calculate_entropy=settings.get("entropy_coeff", 0) != 0 or bool(coeff),
            global_batch_size=mini_batch,
            mini_batch_size=mini_batch,
            epochs=settings.get("epochs", 1),
            dataloader_kwargs={"shuffle": False},
            **({era_config.UPDATES_BEFORE: settings["updates_before"]} if "updates_before" in settings else {}),
            **common,
        )
        with contextlib.redirect_stderr(said):
            output = worker.train_mini_batch(data)
        metrics.append(None if output is None else tu.get(output, "metrics"))
    return {
        "start": start,
        "parameters": parameters(worker),
        "metrics": metrics,
        "said": said.getvalue(),
        "batch": dict(padded),
        "engine": type(worker.engine).__name__,
    }


def all_ranks(worker, data):
    """What the trainer hands to all ranks; infer_batch answers on one of a model-parallel group only."""
    output = worker.infer_batch(data)
    answers = [None] * dist.get_world_size()
    mine = None if output is None else {key: list(output[key].unbind()) for key in ("log_probs", "entropy")}
    dist.all_gather_object(answers, mine)
    mine = mine or next(filter(None, answers))
    return {key: nested(rows) for key, rows in mine.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    cpu.install_stand_ins()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    os.environ["RAY_LOCAL_WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"]
    step_process.main(take_steps)
