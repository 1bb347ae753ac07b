# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Supplies on a CPU what verl v0.4.1 expects of CUDA.

Importing this module changes verl in the importing process; nothing in the checkout is edited. Ray imports it in
every process that unpickles one of its two classes. The line numbers are those of verl v0.4.1.
"""

import functools
import os
import resource

import torch

torch.cuda.is_available = lambda: False  # the same path on a machine with a GPU

import verl.utils.device as device  # noqa: E402

device.is_cuda_available = False  # already set if Ray unpickled one of verl's classes first

import verl.workers.fsdp_workers as fsdp_workers  # noqa: E402
import verl.workers.rollout.hf_rollout as hf_rollout  # noqa: E402
from verl.single_controller.base.decorator import Dispatch, register  # noqa: E402
from verl.trainer import main_ppo  # noqa: E402
from verl.trainer.ppo import metric_utils  # noqa: E402

# verl calls these on torch.cpu, which has none of them (performance.py 33-38, flops_counter.py 33,
# fsdp_workers.py 623-624, hf_rollout.py 170).
_MISSING_IN_TORCH_CPU = {
    "empty_cache": lambda: None,
    "get_device_name": lambda: "cpu",
    "mem_get_info": lambda: (0, 0),
    "memory_allocated": lambda: 0,
    "memory_reserved": lambda: 0,
    "max_memory_allocated": lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "max_memory_reserved": lambda: 0,
}
for _name, _function in _MISSING_IN_TORCH_CPU.items():
    setattr(torch.cpu, _name, _function)

# torch.autocast("cuda") switches itself off without CUDA: everything stays in fp32 (hf_rollout.py 113, dp_actor.py).
_AUTOCAST_OFF = "cuda"
hf_rollout.get_device_name = lambda: _AUTOCAST_OFF

_FSDP = fsdp_workers.FSDP
# sync_module_states broadcasts over a GPU (331); one process has nothing to broadcast. The reference policy's
# parameters would be offloaded to pinned memory, which only a GPU has (319).
_ON_A_CPU = {"sync_module_states": False, "cpu_offload": None}
fsdp_workers.FSDP = lambda module, **kwargs: _FSDP(module, **{**kwargs, **_ON_A_CPU})
fsdp_workers.reduce_timing = lambda timing: timing  # gloo has no ReduceOp.AVG (674)

# Most of a validation's time would go into resampling each prompt's answers 1,000 times (metric_utils.py 247), for
# numbers that nothing here reads: the curves come from the answers themselves.
metric_utils.bootstrap_metric = functools.partial(metric_utils.bootstrap_metric, n_bootstrap=1)


class CPUActorRolloutRefWorker(fsdp_workers.ActorRolloutRefWorker):
    def __init__(self, config, role):
        # get_nccl_backend raises without an accelerator (107-110). The reference policy is in the actor's process.
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
            )
        torch.set_num_threads(1)
        torch.manual_seed(config.seed)
        super().__init__(config, role)

    def _build_rollout(self, *args, **kwargs):
        rollout, sharding_manager = super()._build_rollout(*args, **kwargs)
        sharding_manager.timing = {}  # generate_sequences reads it (671), HFRollout's manager has none
        generate = self.actor_module.generate
        # hf_rollout.py 113 hands over position_ids, which transformers 4.52 never advances: every new token would be
        # given the position of the last prompt token. Without them, generate derives them from the attention mask.
        self.actor_module.generate = lambda *args, position_ids=None, **kwargs: generate(*args, **kwargs)
        return rollout, sharding_manager

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        if self._is_actor:
            super().init_model()
            self.actor.device_name = _AUTOCAST_OFF
            return
        with torch.random.fork_rng():  # a run with a KL loss samples as one without
            super().init_model()
        self.ref_policy.device_name = _AUTOCAST_OFF


def use() -> None:
    """Makes the trainers of this process start the worker above instead of verl's."""
    fsdp_workers.ActorRolloutRefWorker = CPUActorRolloutRefWorker


class CPUTaskRunner(main_ppo.TaskRunner.__ray_metadata__.modified_class):
    """The process that runs RayPPOTrainer.fit."""

    def run(self, config):
        use()
        super().run(config)
