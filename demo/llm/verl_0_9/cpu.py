# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What verl 0.9 needs in the place of GPUs. Nothing of it concerns ERA.

With ENVIRONMENT set before verl is imported, verl itself imports this module and finds its platform "cpu" in it.
"""

import contextlib
import os
import types

import torch
import torch.distributed as dist

torch.cuda.is_available = lambda: False  # the same path on a machine with a GPU

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": __name__,
    "VERL_ENGINE_DEVICE": "cuda",  # the engines are registered for cuda and npu, and run anywhere
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


def nothing(*args, **kwargs):
    pass


def zero(*args, **kwargs):
    return 0


DEVICE = types.ModuleType("cpu_device")
vars(DEVICE).update(
    is_available=lambda: True,
    current_device=lambda: "cpu",
    device_count=lambda: 1,
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    get_device_name=lambda *args: "cpu",
    mem_get_info=lambda *args: (0, 0),
    **dict.fromkeys(("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"), nothing),
    **dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), zero),
)


def register_platform():
    from verl.plugin.platform import PlatformRegistry
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    @PlatformRegistry.register(platform="cpu")
    class CpuPlatform(PlatformCUDA):
        """A CPU as verl's platform: Ray is asked for a GPU, as with CUDA, and does not check that the GPU exists."""

        device_name = vendor_name = "cpu"
        device_module = DEVICE
        set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = nothing

        def is_available(self):
            return True

        def is_platform_available(self, use_smi_check=False):
            return True

        def current_device(self):
            return torch.device("cpu")

        def device_count(self):
            return 1

        def communication_backend_name(self):
            return "gloo"

        def nvtx_range(self, message):
            return contextlib.nullcontext()

        def is_ipc_supported(self):
            return False


def install_stand_ins():
    """Replace what needs a GPU: FSDP sends module states through it, gloo has no mean, verl says "cpu:cpu"."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from verl.workers import engine_workers
    from verl.workers.engine.fsdp import transformer_impl

    make, all_reduce = FSDP.__init__, dist.all_reduce

    def fsdp(self, *args, **kwargs):
        make(self, *args, **{**kwargs, "sync_module_states": False})

    def reduce(tensor, op=dist.ReduceOp.SUM, group=None, **kwargs):
        if op != dist.ReduceOp.AVG:
            return all_reduce(tensor, op=op, group=group, **kwargs)
        all_reduce(tensor, group=group)
        tensor /= dist.get_world_size(group)

    FSDP.__init__, dist.all_reduce = fsdp, reduce
    transformer_impl.load_fsdp_model_to_gpu = nothing
    engine_workers.initialize_global_process_group_ray = initialize_gloo  # verl would ask for "cpu:gloo,cpu:gloo"
    # Each rank loads the weights itself, as nothing sends it the first rank's.
    transformer_impl.get_init_weight_context_manager = lambda **kwargs: contextlib.nullcontext


def initialize_gloo(timeout_second=None):
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))


register_platform()
