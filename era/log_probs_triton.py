# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Triton's kernels for log_probs.py on CUDA: one read of the logits forward, one more backward.

`sums` and `write_gradient` take what their counterparts there take, which are their reference, for
logits of bf16, fp16 or fp32 whose last dimension is contiguous. They compute in fp32; the scalars
of a row are combined in fp64.
"""

import math

import torch
import triton
import triton.language as tl

# Elements of a row that a program works on at a time.
BLOCK = 2048
_WARPS = 8
# Stands for -inf, so that 0 x d is 0.
_LOWEST = tl.constexpr(-1e30)


@triton.jit
def _sums(
    LOGITS,
    ACTIVE,
    FACTORS,
    LARGEST,
    TOTALS,
    MEAN,
    stride,
    vocabulary,
    N: tl.constexpr,
    WITH_MEAN: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of a row: its largest logit, the N <= 3 sums of exp2(f d), d = z - max z, and the mean of d
    under the first f.

    SQUARES: the factors are f, 2 f and f / 2, so that one exponential makes all.
    """
    row = tl.program_id(0).to(tl.int64)  # rows x vocabulary passes 2^31 at 14,134 rows of 151,936
    if tl.load(ACTIVE + row) != 0:
        f0 = tl.load(FACTORS + row * N)
        f1 = tl.load(FACTORS + row * N + 1 % N)
        f2 = tl.load(FACTORS + row * N + 2 % N)
        offsets = tl.arange(0, BLOCK)
        largest = tl.full((), float("-inf"), tl.float32)
        s0 = tl.zeros((BLOCK,), tl.float32)
        s1 = tl.zeros((BLOCK,), tl.float32)
        s2 = tl.zeros((BLOCK,), tl.float32)
        moment = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocabulary, BLOCK):
            inside = start + offsets < vocabulary
            z = tl.load(LOGITS + row * stride + start + offsets, mask=inside, other=float("-inf"))
            z = z.to(tl.float32)
            found = tl.max(z, 0)
            if found > largest:  # of the n-th block with a probability of about 1 / n
                if largest > float("-inf"):
                    shift = largest - found
                    moment = tl.exp2(f0 * shift) * (moment + shift * s0)
                    s0 *= tl.exp2(f0 * shift)
                    s1 *= tl.exp2(f1 * shift)
                    s2 *= tl.exp2(f2 * shift)
                largest = found
            d = z - tl.where(largest > float("-inf"), largest, 0.0)
            d = tl.where(d < _LOWEST, _LOWEST, d)  # tl.maximum would hide NaN
            if SQUARES:
                w2 = tl.exp2(f2 * d)
                w0 = w2 * w2
                w1 = w0 * w0
            else:
                w0 = tl.exp2(f0 * d)
                w1 = tl.exp2(f1 * d) if N > 1 else w0
                w2 = tl.exp2(f2 * d) if N > 2 else w0
            s0 += w0
            if N > 1:
                s1 += w1
            if N > 2:
                s2 += w2
            if WITH_MEAN:
                moment += w0 * d
        total = tl.sum(s0, 0)
        tl.store(LARGEST + row, largest)
        tl.store(TOTALS + row * N, total)
        if N > 1:
            tl.store(TOTALS + row * N + 1, tl.sum(s1, 0))
        if N > 2:
            tl.store(TOTALS + row * N + 2, tl.sum(s2, 0))
        if WITH_MEAN:
            tl.store(MEAN + row, tl.sum(moment, 0) / total)


@triton.jit
def _write_gradient(
    OUT,
    LOGITS,
    LABELS,
    ACTIVE,
    LARGEST,
    FACTORS,
    COLUMNS,
    BY_D,
    AT_LABEL,
    out_stride,
    stride,
    vocabulary,
    N: tl.constexpr,
    WITH_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of a row: sum over N <= 2 of exp2(f d) c, by_d d exp2(f d) of the first f, and the
    label's; d = z - max z.
    """
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocabulary
    gradient = tl.zeros((BLOCK,), tl.float32)
    if tl.load(ACTIVE + row) != 0:
        z = tl.load(LOGITS + row * stride + offsets, mask=inside, other=float("-inf"))
        d = z.to(tl.float32) - tl.load(LARGEST + row)
        d = tl.where(d < _LOWEST, _LOWEST, d)
        w = tl.exp2(tl.load(FACTORS + row * N) * d)
        gradient = w * tl.load(COLUMNS + row * N)
        if WITH_D:
            gradient += w * d * tl.load(BY_D + row)
        if N > 1:
            w = tl.exp2(tl.load(FACTORS + row * N + 1) * d)
            gradient += w * tl.load(COLUMNS + row * N + 1)
        gradient += tl.where(offsets == tl.load(LABELS + row), tl.load(AT_LABEL + row), 0.0)
    tl.store(OUT + row * out_stride + offsets, gradient.to(OUT.dtype.element_ty), mask=inside)


def sums(logits, rows, factors, with_mean) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """largest, log_z and mean of log_probs._Sums.

    Args:
        factors: (rows, 1 to 3) fp64; three of them are the same for all rows.
    """
    n, count = factors.shape
    largest, mean = torch.zeros((2, n, 1), device=logits.device)
    totals = torch.ones((n, count), device=logits.device)
    _sums[(n,)](
        logits,
        rows.active.int(),
        _in_base_2(factors, rows),
        largest,
        totals,
        mean,
        logits.stride(0),
        logits.size(1),
        N=count,
        WITH_MEAN=with_mean,
        SQUARES=count == 3 and factors[0].tolist() == [1, 2, 0.5],
        BLOCK=BLOCK,
        num_warps=_WARPS,
    )
    return largest.double(), totals.double().log(), mean.double() / rows.temperature


def write_gradient(result, logits, rows, gradient, sums) -> None:
    """Writes a log_probs._Gradient of 1 or 2 factors, without its sparse part, into `result`.

    Args:
        result: the logits, or a tensor like them.
        sums: of the forward pass.
    """
    one_over_z = (-sums.log_z).exp()
    by_d = gradient.by_d
    if by_d is not None:
        by_d = (by_d / rows.temperature * one_over_z[:, :1]).float()
    n, vocabulary = logits.shape
    _write_gradient[(n, triton.cdiv(vocabulary, BLOCK))](
        result,
        logits,
        rows.labels,
        gradient.active.int(),
        sums.largest.float(),
        _in_base_2(gradient.factors, rows),
        (gradient.columns * one_over_z).float().contiguous(),
        by_d,
        gradient.at_label.float(),
        result.stride(0),
        logits.stride(0),
        vocabulary,
        N=gradient.factors.size(-1),
        WITH_D=by_d is not None,
        BLOCK=BLOCK,
        num_warps=_WARPS,
    )


def _in_base_2(factors: torch.Tensor, rows) -> torch.Tensor:
    """exp(f d / T) is exp2 of this times d."""
    return (factors / rows.temperature * math.log2(math.e)).float().contiguous()
