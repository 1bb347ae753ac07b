# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Log-probs and entropies by their definitions, what era/log_probs.py is compared with, and rows of logits for both."""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def plain_terms(z, labels, scale, temperature, top_k=None):
    """Scaled and original log-probs and the entropy of each row, by torch's own functions."""
    z = z / temperature
    scaled, log_p = z * scale[:, None], z.log_softmax(-1)
    if top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[:, -1:], -math.inf)
    entropy = -(log_p.exp() * log_p.clamp(min=torch.finfo(z.dtype).min)).sum(-1)
    return *(p.gather(-1, labels[:, None])[:, 0] for p in (scaled.log_softmax(-1), log_p)), entropy


def error(found, expected):
    """The largest error relative to 1 + |expected|."""
    return ((found.double() - expected).abs() / (1 + expected.abs())).max().item()


def rows(count, vocabulary, spread, seed=0):
    """Logits without ties at the border of the top five, labels among them, and scales in runs of neighbours."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(count, vocabulary, generator=generator)
    labels = logits.topk(5).indices[torch.arange(count), torch.randint(5, (count,), generator=generator)]
    scale = torch.tensor([1.0, 2.0, 0.5, 1.7])[torch.randint(4, (count // 4 + 1,), generator=generator)]
    return logits, labels, scale.repeat_interleave(4)[:count]


def is_plain(value):
    return isinstance(value, torch.Tensor) and not value.is_nested


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


class LargestOutput(TorchDispatchMode):
    """Counts the tensors of at least `limit` elements that operations allocate."""

    def __init__(self, limit):
        super().__init__()
        self.limit, self.allocations = limit, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = {storage(a) for a in (*args, *(kwargs or {}).values()) if is_plain(a)}
        out = func(*args, **(kwargs or {}))
        for tensor in filter(is_plain, out if isinstance(out, (tuple, list)) else [out]):
            if tensor.numel() >= self.limit and storage(tensor) not in inputs:
                self.allocations.append((str(func), tuple(tensor.shape)))
        return out
