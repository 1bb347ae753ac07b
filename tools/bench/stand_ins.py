# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What verl's actor needs to run on a CPU and has no package for."""

import torch
import torch.nn.functional as F


def install_padding_functions():
    """flash-attn's four padding functions in plain torch: the package does not run without a GPU."""
    from verl.workers.actor import dp_actor

    def index_first_axis(x, indices):
        return x[indices]

    def unpad_input(x, mask):
        indices = mask.flatten().nonzero().flatten()
        lengths = mask.sum(-1, dtype=torch.int32)
        return x.flatten(0, 1)[indices], indices, F.pad(lengths.cumsum(0), (1, 0)), lengths.max().item()

    def pad_input(hidden_states, indices, batch, seqlen):
        out = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
        return out.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))

    def rearrange(x, pattern):
        assert pattern == "b s ... -> (b s) ..."
        return x.flatten(0, 1)

    for function in (index_first_axis, unpad_input, pad_input, rearrange):
        setattr(dp_actor, function.__name__, function)


def install_memory_counters():
    """verl's memory log asks torch.cpu for counters that only accelerators have."""
    for name, value in {"memory_allocated": 0, "memory_reserved": 0, "mem_get_info": (0, 0)}.items():
        setattr(torch.cpu, name, lambda value=value: value)
