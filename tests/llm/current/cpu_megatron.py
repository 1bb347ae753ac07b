# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What Megatron-core and mbridge need to train on a CPU, for verl's Megatron engine. Nothing of it concerns ERA.

The layers are Megatron's own without TransformerEngine, but for the attention, which needs a GPU where sequences are
packed: here a token attends to itself alone, so that packing, padding and slicing cannot change what is computed.
"""

import contextlib
import functools
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from demo.llm.verl_0_9 import cpu


class WithoutGpu(TorchFunctionMode):
    """Megatron asks for the device "cuda" by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "cuda" in str(kwargs.get("device")):
            kwargs = {**kwargs, "device": "cpu"}
        return function(*args, **kwargs)


class OwnTokenAttention(torch.nn.Module):
    """Softmax over one token is 1: the value, of as many heads as the query has."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, *args, **kwargs):
        return value.repeat_interleave(query.size(-2) // value.size(-2), dim=-2).flatten(-2)


def local_layers(self, vp_stage=None):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    spec = get_gpt_decoder_block_spec(self.config, use_transformer_engine=False, vp_stage=vp_stage)
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = OwnTokenAttention
    return spec


@functools.cache
def install_stand_ins():
    from mbridge.core import llm_bridge
    from mbridge.models.qwen2 import Qwen2Bridge
    from megatron.core import tensor_parallel
    from megatron.core.models.gpt.gpt_model import ModelType
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from verl.workers.engine.megatron import transformer_impl

    torch._dynamo.config.disable = True  # verl compiles the entropies of this engine
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = cpu.nothing
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    WithoutGpu().__enter__()
    tensor_parallel.model_parallel_cuda_manual_seed = cpu.nothing
    CudaRNGStatesTracker.fork = lambda *args: contextlib.nullcontext()
    for name in ("load_megatron_model_to_gpu", "load_megatron_optimizer"):
        setattr(transformer_impl, name, cpu.nothing)
    ModelType.encoder_and_decoder = None  # mbridge 0.15.1 still compares with it
    llm_bridge.LLMBridge._get_transformer_layer_spec = local_layers
    # TransformerEngine has these two norms inside the linear layers that follow, and mbridge maps those alone.
    layer = "model.layers.{layer_number}."
    Qwen2Bridge._OTHER_MAPPING = {"input_layernorm.weight": [layer + "input_layernorm.weight"]}
    Qwen2Bridge._MLP_MAPPING = Qwen2Bridge._MLP_MAPPING | {
        "pre_mlp_layernorm.weight": [layer + "post_attention_layernorm.weight"]
    }


def engine_config(settings):
    from verl.workers.config import McoreEngineConfig

    return McoreEngineConfig(
        tensor_model_parallel_size=settings.get("tensor_parallel", 1),
        pipeline_model_parallel_size=settings.get("pipeline_parallel", 1),
        context_parallel_size=settings.get("context_parallel", 1),
        sequence_parallel=False,  # Megatron's norms without TransformerEngine do not know it
        use_distributed_optimizer=False,
        vanilla_mbridge=True,
        pad_to_length=settings.get("pad_to_length", False),
        pad_to_length_bucket=16,
        override_transformer_config={"use_cpu_initialization": True, "sequence_parallel": False},
    )


def optimizer_config(settings):
    from verl.workers.config import McoreOptimizerConfig

    lr = settings.get("lr", 1.0)
    return McoreOptimizerConfig(
        lr=lr,
        min_lr=lr,
        lr_warmup_init=lr,
        total_training_steps=10,
        weight_decay=0.0,
        optimizer="sgd",
        clip_grad=0.0,
        override_optimizer_config={"sgd_momentum": 0.0},
    )


def prepare(model_config):
    """verl reads the id of the padding token here; the tests have no tokenizer."""
    from megatron.core import parallel_state

    model_config.tokenizer = SimpleNamespace(pad_token_id=0)
    parallel_state.destroy_model_parallel()
