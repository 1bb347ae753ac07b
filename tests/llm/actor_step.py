# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Old_log_prob passes and updates by the real DataParallelPPOActor of whichever verl is importable, patched or not.

    python actor_step.py SETTINGS.json RESULTS.pt

With torchrun and N processes: Ulysses sequence parallelism over N, or with "data_parallel" FSDP, each rank with its
share of the batch. SETTINGS.json is a list: each entry trains a fresh policy, and RESULTS.pt holds one result for each.
All is fp64 on CPU, except with "dtype": "float32".
"""

import contextlib
import copy
import io

import step_process
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from token_model import build_model, make_batch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from verl import DataProto
from verl.utils.ulysses import set_ulysses_sequence_parallel_group
from verl.workers.actor import dp_actor
from verl.workers.fsdp_workers import ActorRolloutRefWorker
from verl.workers.sharding_manager.base import BaseShardingManager

from tools.bench.stand_ins import install_memory_counters, install_padding_functions


def make_data(settings, step, dtype):
    batch = step_process.share(make_batch(settings["bsz"], settings["seed"] + step, dtype), settings)
    meta = {
        "temperature": settings["temperature"],
        "micro_batch_size": settings["micro_batch"],
        "use_dynamic_bsz": settings.get("dynamic", False),
        "max_token_len": 30,
        "multi_turn": settings.get("multi_turn", False),
    }
    return DataProto(batch=batch, meta_info=meta)


def old_log_prob_pass(actor, data):
    """The batch gets what verl's worker would return, and the entropies."""
    log_probs, entropys = actor.compute_log_prob(data, calculate_entropy=True)
    tensors = {"old_log_probs": log_probs, "entropys": entropys}
    if hasattr(actor, "era_hooks"):  # unpatched verl has no such hooks
        tensors |= actor.era_hooks.old_log_prob_tensors(log_probs, entropys)
    for key, value in tensors.items():
        data.batch[key] = value


def lora_reference_pass(actor, settings):
    """Log-probs of the model without its adapters, by verl's worker around this actor."""
    worker = object.__new__(ActorRolloutRefWorker)
    worker._is_lora = worker._is_actor = True
    worker._is_offload_param, worker._world_size = False, 1
    worker.actor, worker.ulysses_sharding_manager = actor, BaseShardingManager()
    rollout = {"temperature": settings["temperature"], "log_prob_use_dynamic_bsz": False}
    rollout |= {"log_prob_micro_batch_size_per_gpu": settings["micro_batch"], "log_prob_max_token_len_per_gpu": 30}
    worker.config = OmegaConf.create({"rollout": rollout, "actor": actor.config})
    data = make_data(settings, 0, getattr(torch, settings["dtype"]))
    return worker.compute_ref_log_prob(data).batch["ref_log_prob"]


def actor_config(settings):
    ranks = dist.get_world_size() if settings.get("data_parallel") else 1
    config = {
        **step_process.actor_settings(settings),
        "use_remove_padding": settings["remove_padding"],
        "ulysses_sequence_parallel_size": step_process.sequence_parallel_size(settings),
        "entropy_from_logits_with_chunking": False,
        "entropy_checkpointing": False,
        "use_torch_compile": False,
        "ppo_mini_batch_size": settings.get("mini_batch", settings["bsz"]) // ranks,
        "ppo_max_token_len_per_gpu": 30,
        "use_dynamic_bsz": settings.get("dynamic", False),
        "ppo_epochs": settings.get("epochs", 1),
        "grad_clip": 1e9,
        "clip_ratio_c": 3.0,
        "kl_loss_type": "low_var_kl",
        "use_fused_kernels": settings.get("fused", False),
        "policy_loss": settings.get("policy_loss", {"loss_mode": "vanilla"}),
    }
    ours = {name: settings[name] for name in ("era", "adaptive_entropy") if name in settings}
    return OmegaConf.create({**config, **ours})


def take_steps(settings):
    is_sequence_parallel = step_process.sequence_parallel_size(settings) > 1
    set_ulysses_sequence_parallel_group(dist.group.WORLD if is_sequence_parallel else None)
    dtype = getattr(torch, settings.get("dtype", "float64"))
    torch.manual_seed(settings["seed"])
    model = module = build_model(settings, dtype)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    if dist.get_world_size() > 1:
        module = FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))
        # FSDP takes the norm in fp32 and refuses fp64; 1e9 clips nothing
        module.clip_grad_norm_ = lambda max_norm: torch.zeros(())
    lr = settings.get("lr", 1.0)
    optimizer = (
        torch.optim.AdamW(module.parameters(), lr=1e-2)
        if settings.get("adam")
        else torch.optim.SGD(module.parameters(), lr=lr)
    )
    actor = dp_actor.DataParallelPPOActor(actor_config(settings), module, optimizer)
    # autocast("cuda") switches itself off where there is none: no bf16
    actor.device_name = "cpu" if settings.get("autocast") else "cuda"
    if "updates_before" in settings:  # as fsdp_workers.py does, whose checkpoints resume the count
        saved = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0).state_dict()
        actor.era_hooks.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        actor.era_hooks.lr_scheduler.load_state_dict({**saved, "last_epoch": settings["updates_before"]})

    if settings.get("reference"):
        return {"start": start, "ref_log_prob": lora_reference_pass(actor, settings)}

    metrics, said = [], io.StringIO()
    for step in range(settings.get("steps", 1)):
        if step and settings.get("restart"):  # as from a checkpoint
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = type(optimizer)(module.parameters())
            optimizer.load_state_dict(state)
            actor = dp_actor.DataParallelPPOActor(actor_config(settings), module, optimizer)
            actor.device_name = "cuda"
        if "entropy_coeffs" in settings:
            actor.config.entropy_coeff = settings["entropy_coeffs"][step]
        data = make_data(settings, step, dtype)
        old_log_prob_pass(actor, data)
        if settings.get("nan_on_rank") == dist.get_rank():
            data.batch["token_entropy"][0, 0] = torch.nan
        batch, advantages = data.batch, data.batch["advantages"]  # which forking tokens replace
        with contextlib.redirect_stderr(said):
            metrics.append(actor.update_policy(data))
    with FSDP.summon_full_params(module):
        parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {
        "start": start,
        "parameters": parameters,
        "metrics": metrics,
        "said": said.getvalue(),
        "batch": {**batch, "advantages": advantages},
    }


if __name__ == "__main__":
    install_padding_functions()
    install_memory_counters()
    step_process.main(take_steps)
