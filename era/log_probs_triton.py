# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Triton's kernels for log_probs.py on CUDA: one read of the logits forward, one more backward.

`sums` and `write_gradient` do what log_probs.py's `_sums` and `_write_gradient` do, which are their
reference, for logits of bf16, fp16 or fp32 whose last dimension is contiguous. They compute in
fp32: most GPUs have little fp64. The scalars of a row are combined in fp64.
"""

import math

import torch
import triton
import triton.language as tl

# Elements of a row that a program works on at a time.
BLOCK = 2048
_WARPS = 8
# Stands for -inf, so that 0 x d is 0.
_FINITE_MIN = tl.constexpr(-1e30)


@triton.jit
def _difference(z, largest):
    """Return d = z - largest in fp32, and what its rounding lost."""
    d = z - largest
    other = z - d
    return d, (z - (d + other)) + (other - largest)


@triton.jit
def _power(high, low, d, lost):
    """Return 2^((high + low) (d + lost)), d <= 0, without the error of one rounded product.

    fp32 rounds z - max z and f d by up to 6e-8 of their size, alike for all equal logits. `high`
    and the first part of d have 12 bits, so their product is exact. Its integer part becomes the
    exponent of the result; its fraction is added to the other products.
    """
    first = (d.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    exact = high * first
    is_zero = exact < -126
    exact = tl.where(is_zero, 0.0, exact)
    whole = tl.floor(exact)
    rest = tl.exp2((exact - whole) + (high * (d - first + lost) + low * d))
    exponent = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(is_zero, 0.0, exponent * rest)


@triton.jit
def _sums(
    LOGITS,
    ACTIVE,
    HIGH,
    LOW,
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
    """Write a row's largest logit, N <= 3 sums of exp2(f d) and the mean of d under the first f.

    d is z - max z. SQUARES: the factors are f, 2 f and f / 2, so that one exponential makes all.
    """
    row = tl.program_id(0).to(tl.int64)  # rows x vocabulary passes 2^31 at 14,134 rows of 151,936
    if tl.load(ACTIVE + row) != 0:
        high0, low0 = tl.load(HIGH + row * N), tl.load(LOW + row * N)
        high1, low1 = tl.load(HIGH + row * N + 1 % N), tl.load(LOW + row * N + 1 % N)
        high2, low2 = tl.load(HIGH + row * N + 2 % N), tl.load(LOW + row * N + 2 % N)
        offsets = tl.arange(0, BLOCK)
        largest = tl.full((), float("-inf"), tl.float32)
        # In fp64, since the roundings of equal numbers add up; within a block the sum is pairwise.
        s0 = tl.full((), 0, tl.float64)
        s1 = tl.full((), 0, tl.float64)
        s2 = tl.full((), 0, tl.float64)
        moment = tl.full((), 0, tl.float64)
        for start in range(0, vocabulary, BLOCK):
            inside = start + offsets < vocabulary
            z = tl.load(LOGITS + row * stride + start + offsets, mask=inside, other=float("-inf"))
            z = z.to(tl.float32)
            block_largest = tl.max(z, 0)
            if block_largest > largest:  # of the n-th block with a probability of about 1 / n
                if largest > float("-inf"):
                    shift, lost = _difference(largest, block_largest)
                    moment = _power(high0, low0, shift, lost) * (moment + shift * s0)
                    s0 *= _power(high0, low0, shift, lost)
                    s1 *= _power(high1, low1, shift, lost)
                    s2 *= _power(high2, low2, shift, lost)
                largest = block_largest
            z = tl.where(z < _FINITE_MIN, _FINITE_MIN, z)  # tl.maximum would hide NaN
            d, lost = _difference(z, tl.where(largest > float("-inf"), largest, 0.0))
            if SQUARES:
                w2 = _power(high2, low2, d, lost)
                w0 = w2 * w2
                w1 = w0 * w0
            else:
                w0 = _power(high0, low0, d, lost)
                w1 = _power(high1, low1, d, lost) if N > 1 else w0
                w2 = _power(high2, low2, d, lost) if N > 2 else w0
            s0 += tl.sum(w0, 0)
            if N > 1:
                s1 += tl.sum(w1, 0)
            if N > 2:
                s2 += tl.sum(w2, 0)
            if WITH_MEAN:
                moment += tl.sum(w0 * d, 0)
        tl.store(LARGEST + row, largest)
        tl.store(TOTALS + row * N, s0)
        if N > 1:
            tl.store(TOTALS + row * N + 1, s1)
        if N > 2:
            tl.store(TOTALS + row * N + 2, s2)
        if WITH_MEAN:
            tl.store(MEAN + row, moment / s0)


@triton.jit
def _write_gradient(
    OUT,
    LOGITS,
    LABELS,
    ACTIVE,
    LARGEST,
    FACTORS,
    COEFFICIENTS,
    D_COEFFICIENT,
    AT_LABEL,
    out_stride,
    stride,
    vocabulary,
    N: tl.constexpr,
    WITH_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a block of a row's gradient, with d = z - max z.

    At the label it is AT_LABEL, elsewhere the sum of coefficient_f exp2(f d) over N <= 2 factors f,
    plus d_coefficient d exp2(f d) for the first f.
    """
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocabulary
    gradient = tl.zeros((BLOCK,), tl.float32)
    if tl.load(ACTIVE + row) != 0:
        z = tl.load(LOGITS + row * stride + offsets, mask=inside, other=float("-inf"))
        d = z.to(tl.float32) - tl.load(LARGEST + row)
        d = tl.where(d < _FINITE_MIN, _FINITE_MIN, d)
        w = tl.exp2(tl.load(FACTORS + row * N) * d)
        gradient = w * tl.load(COEFFICIENTS + row * N)
        if WITH_D:
            gradient += w * d * tl.load(D_COEFFICIENT + row)
        if N > 1:
            w = tl.exp2(tl.load(FACTORS + row * N + 1) * d)
            gradient += w * tl.load(COEFFICIENTS + row * N + 1)
        gradient = tl.where(offsets == tl.load(LABELS + row), tl.load(AT_LABEL + row), gradient)
    tl.store(OUT + row * out_stride + offsets, gradient.to(OUT.dtype.element_ty), mask=inside)


def sums(logits, active, factors, with_mean, squares) -> tuple[torch.Tensor, ...]:
    """The largest logit, the sums and the mean that log_probs._sums returns, of the active rows.

    Args:
        logits: (rows, vocabulary) bf16, fp16 or fp32, contiguous along the vocabulary.
        active: (rows, 1) bool; what is returned for other rows means nothing.
        factors: (rows, 1 to 3) fp64.
        with_mean, squares: as in log_probs._sums; squares is for three factors alone.
    """
    n, count = factors.shape
    largest = torch.zeros((n, 1), device=logits.device)
    totals = torch.ones((n, count), dtype=torch.double, device=logits.device)
    mean = torch.zeros_like(largest, dtype=torch.double)
    in_base_2 = factors * math.log2(math.e)
    high = (in_base_2.float().view(torch.int32) & -4096).view(torch.float32)  # 12 bits
    _sums[(n,)](
        logits,
        active.int(),
        high,
        (in_base_2 - high).float(),
        largest,
        totals,
        mean,
        logits.stride(0),
        logits.size(1),
        N=count,
        WITH_MEAN=with_mean,
        SQUARES=squares,
        BLOCK=BLOCK,
        num_warps=_WARPS,
    )
    return largest.double(), totals.log(), mean


def write_gradient(
    result, logits, active, labels, at_label, largest, factors, coefficients, d_coefficient
) -> None:
    """Write into `result` what log_probs._write_gradient puts in the place of the logits.

    Args:
        result: the logits, or a tensor like them.
        The others are those of log_probs.GradientRows, with 1 or 2 factors.
    """
    n, vocabulary = logits.shape
    _write_gradient[(n, triton.cdiv(vocabulary, BLOCK))](
        result,
        logits,
        labels,
        active.int(),
        largest,
        (factors.double() * math.log2(math.e)).float().contiguous(),
        coefficients.contiguous(),
        d_coefficient,
        at_label,
        result.stride(0),
        logits.stride(0),
        vocabulary,
        N=factors.size(-1),
        WITH_D=d_coefficient is not None,
        BLOCK=BLOCK,
        num_warps=_WARPS,
    )
