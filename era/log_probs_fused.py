# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era/log_probs.py for a linear head: hidden states and its weight in the place of logits.

The logits are made for a few rows at a time, and again in the backward pass, so that they never
exist as one tensor.
"""

from typing import Any, NamedTuple, Optional, Union

import torch

from . import log_probs
from .log_probs import Branches, PolicyTerms

# Logits made at a time, enough rows for a matrix product; and rows of the weight that the backward
# pass takes at a time.
_CPU_HEAD_ELEMENTS = 2**24
_GPU_HEAD_ELEMENTS = 2**27
_WEIGHT_BLOCK = 2**13


def fused_policy_terms(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    scale: Optional[torch.Tensor] = None,
    temperature: Union[float, torch.Tensor] = 1.0,
    *,
    bias: Optional[torch.Tensor] = None,
    softcap: Optional[float] = None,
    top_k: Optional[int] = None,
    original: bool = False,
    entropy: bool = False,
    mask: Optional[torch.Tensor] = None,
    compile: bool = True,
) -> PolicyTerms:
    """`policy_terms` of the logits that a head makes of hidden states, without a tensor of them.

    The logits have the dtype that the head gives them in the forward pass, under autocast too.
    Rows outside the mask, and in the backward pass rows without a gradient, are left out of the
    products.

    Args:
        hidden: (..., width), any floating dtype.
        weight: (vocabulary, width). Its gradient is summed in fp32 (fp64 for fp64), and not
            computed at all without requires_grad.
        bias: (vocabulary,) or None.
        softcap: c > 0 of a head whose logits are c tanh(z / c); None for z.
        others: those of `policy_terms`, for the logits of such a head.

    Raises:
        ValueError: as `policy_terms`.
    """
    matrix, rows = log_probs.as_rows(hidden, labels, scale, temperature, mask)
    top_k = log_probs.checked_top_k(top_k, len(weight))
    # The logits of a few rows are made for their gradient alone, which may overwrite them.
    params = log_probs.TermParams(top_k, original, entropy, True, compile)
    terms = _HeadTerms.apply(matrix, weight, bias, softcap, rows, params)
    shaped: Any = (term if term is None else term.view(labels.shape) for term in terms)
    return PolicyTerms(*shaped)


@torch.no_grad()
def fused_branch_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    k: float,
    temperature: Union[float, torch.Tensor] = 1.0,
    *,
    bias: Optional[torch.Tensor] = None,
    softcap: Optional[float] = None,
    top_k: Optional[int] = None,
    mask: Optional[torch.Tensor] = None,
    compile: bool = True,
) -> Branches:
    """`branch_log_probs` of the logits that a head makes of hidden states, a few rows at a time.

    Args:
        hidden, weight, bias, softcap: those of `fused_policy_terms`.
        others: those of `branch_log_probs`.

    Raises:
        ValueError: as `policy_terms`.
    """
    matrix, rows = log_probs.as_rows(hidden, labels, None, temperature, mask)
    head = _Head.of(matrix, weight, bias, softcap)
    dtype = log_probs.at_least_fp32(head.weight.dtype)
    scaled = matrix.new_zeros(len(matrix), 3, dtype=dtype)
    original, entropy = scaled.new_zeros(2, len(matrix))
    for index in head.chunks(rows.active):
        chunk = rows.at(index)
        scaled[index], original[index], entropy[index] = log_probs.branch_log_probs(
            head.capped(head.product(matrix[index])),
            chunk.labels.squeeze(-1),
            k,
            chunk.temperature.squeeze(-1),
            top_k=top_k,
            compile=compile,
        )
    shape = labels.shape
    return Branches(scaled.view(*shape, 3), original.view(shape), entropy.view(shape))


class _Head(NamedTuple):
    """What makes logits of hidden states; the tensors have the dtype of the logits."""

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    softcap: Optional[float]

    @classmethod
    def of(cls, hidden, weight, bias, softcap, dtype=None) -> "_Head":
        if dtype is None:  # that of a product here, which autocast may have chosen
            dtype = torch.nn.functional.linear(hidden[:1], weight[:1]).dtype
        return cls(weight.to(dtype), None if bias is None else bias.to(dtype), softcap)

    def chunks(self, active: torch.Tensor) -> list[torch.Tensor]:
        """Indices of active rows, as many at a time as make _CPU_ or _GPU_HEAD_ELEMENTS logits."""
        on_cpu = active.device.type == "cpu"
        elements = _CPU_HEAD_ELEMENTS if on_cpu else _GPU_HEAD_ELEMENTS
        count = max(1, elements // len(self.weight))
        index = active.squeeze(-1).nonzero().squeeze(-1)
        return [index[i : i + count] for i in range(0, len(index), count)]

    def product(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def capped(self, product: torch.Tensor) -> torch.Tensor:
        if self.softcap is None:
            return product
        return torch.tanh(product / self.softcap) * self.softcap


class _HeadTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, softcap, rows, params):
        head = _Head.of(hidden, weight, bias, softcap)
        dtype = log_probs.at_least_fp32(head.weight.dtype)
        terms = [
            hidden.new_zeros(len(hidden), 1, dtype=dtype) if is_computed else None
            for is_computed in params.computed()
        ]
        for index in head.chunks(rows.active):
            logits = head.capped(head.product(hidden[index]))
            chunk_terms = log_probs.RowTerms.apply(logits, rows.at(index), params)
            for term, chunk_term in zip(terms, chunk_terms):
                if term is not None:
                    term[index] = chunk_term
        ctx.save_for_backward(hidden, weight, bias)
        ctx.softcap, ctx.rows, ctx.params, ctx.dtype = softcap, rows, params, head.weight.dtype
        return tuple(terms)

    @staticmethod
    def backward(ctx, *gradients):
        log_probs.refuse_second_derivatives()
        hidden, weight, bias = ctx.saved_tensors
        head = _Head.of(hidden, weight, bias, ctx.softcap, ctx.dtype)
        sum_dtype = log_probs.at_least_fp32(weight.dtype)
        grad_hidden, grad_weight, grad_bias = (
            torch.zeros_like(tensor, dtype=dtype) if needed else None
            for tensor, dtype, needed in (
                (hidden, hidden.dtype, ctx.needs_input_grad[0]),
                (weight, sum_dtype, ctx.needs_input_grad[1]),
                (bias, sum_dtype, ctx.needs_input_grad[2]),
            )
        )

        # The loss may have used only some of the terms, and only some rows.
        with_gradient = [i for i, gradient in enumerate(gradients) if gradient is not None]
        gradients = [gradients[i] for i in with_gradient]
        has_gradient = torch.cat(gradients, -1).any(-1, keepdim=True)

        # The logits of a few rows are made once more, for the gradient of their terms.
        for index in head.chunks(ctx.rows.active & has_gradient):
            inputs = hidden[index].to(ctx.dtype)
            product = head.product(inputs).requires_grad_()
            with torch.enable_grad():
                terms = log_probs.RowTerms.apply(
                    head.capped(product), ctx.rows.at(index), ctx.params
                )
            (grad_product,) = torch.autograd.grad(
                [terms[i] for i in with_gradient], product, [g[index] for g in gradients]
            )

            if grad_hidden is not None:
                grad_hidden[index] = _hidden_gradient(grad_product, head.weight).to(hidden.dtype)
            if grad_weight is not None:  # without a second tensor of its size
                blocks = grad_product.split(_WEIGHT_BLOCK, -1)
                for total, columns in zip(grad_weight.split(_WEIGHT_BLOCK), blocks):
                    total += columns.t() @ inputs
            if grad_bias is not None:
                grad_bias += grad_product.sum(0, dtype=grad_bias.dtype)

        sums = (
            total if total is None else total.to(tensor.dtype)
            for total, tensor in ((grad_weight, weight), (grad_bias, bias))
        )
        return grad_hidden, *sums, None, None, None


def _hidden_gradient(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product of (rows, vocabulary) and (vocabulary, width), on a CPU in fp32 at least."""
    dtype = log_probs.at_least_fp32(gradient.dtype)
    if gradient.device.type != "cpu" or gradient.dtype == dtype:
        return gradient @ weight
    # On a CPU that cannot multiply in bf16, torch has only a loop for two matrices in this order,
    # which takes a hundred times as long as the product in fp32.
    total = gradient.new_zeros(len(gradient), weight.size(-1), dtype=dtype)
    for columns, rows in zip(gradient.split(_WEIGHT_BLOCK, -1), weight.split(_WEIGHT_BLOCK)):
        total.addmm_(columns.to(dtype), rows.to(dtype))
    return total
