# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Log-probs of labels under scaled logits, and entropies, in one read of the logits.

For a row of logits z, a scale s and a temperature T:

    scaled log-prob     log softmax(s z / T)_y      of the policy that ERA transforms (Eq. llm)
    original log-prob   log softmax(z / T)_y        for a KL loss
    entropy             of softmax(z / T), nats     for H_resp and an entropy bonus

A few rows at a time are shifted by their maximum in fp32, d = z - max z, and everything else is
made of these rows while the cache holds them. softmax is the fastest exponential that torch has on
a CPU. Its sum is off by up to 2e-5 over a vocabulary of 150,000, but not its ratios, so the log of
the sum of exp(f d) is taken as log(sum w) - log(max w) of w = softmax(f d). A softmax under twice a
factor is a square. The scalars of a row are combined in fp64, where they cancel.

The largest errors are those of rows with many equal logits, where the rounding of s / T moves all
of them alike. For T in [0.5, 1.5] and s in [1/8, 8], against fp64: log-probs 2e-6 (1 + |log-prob|),
entropies 2e-5 nats, fp32 gradients 2e-5 (1 + the row's largest); of Triton's kernels 1e-5, 4e-5,
4e-5.

This file needs only torch and the standard library.
"""

import functools
import importlib
import importlib.util
import itertools
import math
from typing import Iterator, NamedTuple, Optional, Union

import torch

# Log-probability given to a label that the top-k filter removed. The value is the authors'; it
# never reaches a gradient.
OUTSIDE_TOP_K_LOG_PROB = -1.0e4

# Elements of the logits that are worked on at a time: in fp32, with the buffers, they stay in the
# last-level cache of a CPU, or are enough to fill a GPU.
_CPU_CHUNK_ELEMENTS = 2**20
_GPU_CHUNK_ELEMENTS = 2**23
_TOP_K_BLOCK = 64
_SUM_BLOCK = 128

# Logits of a fused head that are made at a time, enough rows for a matrix product; and rows of its
# weight whose gradient is.
_CPU_HEAD_ELEMENTS = 2**24
_GPU_HEAD_ELEMENTS = 2**27
_WEIGHT_BLOCK = 2**13


class PolicyTerms(NamedTuple):
    """What a loss needs of each label; fp32 (fp64 for fp64 logits), 0 outside the mask.

    Attributes:
        scaled: (...) log-probs of the transformed policy.
        original: (...) log-probs of the original policy, or None.
        entropy: (...) of the original policy in nats, or None.
    """

    scaled: torch.Tensor
    original: Optional[torch.Tensor]
    entropy: Optional[torch.Tensor]


class Branches(NamedTuple):
    """What an update needs of the policy that sampled; fp32 (fp64 for fp64), 0 outside the mask.

    Attributes:
        scaled: (..., 3) log-probs under the scales 1, k and 1 / k, with the top-k filter if any.
        original: (...) log-probs under the scale 1 over all logits.
        entropy: (...) in nats, over all logits.
    """

    scaled: torch.Tensor
    original: torch.Tensor
    entropy: torch.Tensor


def policy_terms(
    logits: torch.Tensor,
    labels: torch.Tensor,
    scale: Optional[torch.Tensor] = None,
    temperature: Union[float, torch.Tensor] = 1.0,
    *,
    top_k: Optional[int] = None,
    original: bool = False,
    entropy: bool = False,
    mask: Optional[torch.Tensor] = None,
    inplace_backward: bool = False,
    triton: bool = True,
) -> PolicyTerms:
    """The terms of an update, with one gradient for all of them, made in one more read.

    Rows outside the mask, and in the backward pass rows without a gradient, are not read. Rows
    whose neighbours have the same scale are the fastest.

    Args:
        logits: (..., vocabulary), any floating dtype; computed in fp32 (fp64 for fp64).
        labels: (...) int64; any value outside the mask.
        scale: (...) positive factors, constants for the gradient; None for 1.
        temperature: a positive number, or (...) of them, constants for the gradient.
        top_k: normalise the scaled log-probs over this many largest logits; the size of the
            vocabulary or more is the same as None: over all.
        original, entropy: also return these.
        mask: (...) bool or 0/1; None for all.
        inplace_backward: the gradient takes the place of the logits: nothing else may need them
            after the forward pass. If something does, its backward pass raises torch's error about
            a modified tensor.
        triton: let Triton's kernels read CUDA's logits, where `backend` finds them.

    Returns:
        PolicyTerms. A label outside the top_k has the scaled log-prob OUTSIDE_TOP_K_LOG_PROB,
        without a gradient.

    Raises:
        ValueError: a shape that does not fit the logits; top_k < 1; inplace_backward with logits
            that are a leaf of the graph.
        RuntimeError: in the backward pass, a second derivative is asked for (create_graph=True).
    """
    if inplace_backward and logits.is_leaf and logits.requires_grad:
        raise ValueError(
            "inplace_backward would overwrite logits that are a leaf requiring a gradient, not the "
            "output of a model. Leave it off for these. Nothing was computed."
        )
    matrix, rows = _as_rows(logits, labels, scale, temperature, mask)
    top_k = _checked_top_k(top_k, logits)
    terms = _PolicyTerms.apply(matrix, rows, top_k, original, entropy, inplace_backward, triton)
    return PolicyTerms(*(term if term is None else term.view(labels.shape) for term in terms))


@torch.no_grad()
def branch_log_probs(
    logits: torch.Tensor,
    labels: torch.Tensor,
    k: float,
    temperature: Union[float, torch.Tensor] = 1.0,
    *,
    top_k: Optional[int] = None,
    mask: Optional[torch.Tensor] = None,
    triton: bool = True,
) -> Branches:
    """Log-probs of the labels under every scale that Eq. llm can choose, and the entropy.

    Args:
        k: the factor of Eq. llm, >= 1; with 2 there is one exponential instead of three.
        The others are those of `policy_terms`.

    Raises:
        ValueError: as `policy_terms`.
    """
    matrix, rows = _as_rows(logits, labels, None, temperature, mask)
    top_k = _checked_top_k(top_k, logits)
    scales = torch.tensor([1.0, k, 1 / k], dtype=torch.double, device=logits.device)
    factors = scales[:1] if top_k else scales
    sums = _sums(matrix, rows, factors.expand(len(matrix), -1), with_mean=True, triton=triton)
    if top_k:
        scaled = _TopK(matrix, rows.labels, scales / rows.temperature, top_k).log_probs()
    else:
        scaled = sums.label * scales - sums.log_z
    log_z = sums.log_z[:, :1]
    terms = scaled, sums.label - log_z, log_z - sums.mean
    scaled, original, entropy = (_outputs(term, rows, logits) for term in terms)
    shape = labels.shape
    return Branches(scaled.view(*shape, 3), original.view(shape), entropy.view(shape))


def logprobs(
    logits: torch.Tensor,
    labels: torch.Tensor,
    logit_scale: Optional[torch.Tensor] = None,
    top_k: Optional[int] = None,
    inplace_backward: bool = False,
) -> torch.Tensor:
    """Log-probabilities of `labels` under the transformed logits z' = logit_scale * z.

    `policy_terms` for those who need nothing else: same arguments, dtypes and errors.
    """
    terms = policy_terms(
        logits, labels, logit_scale, top_k=top_k, inplace_backward=inplace_backward
    )
    return terms.scaled


def backend(device: Union[str, torch.device], triton: bool = True) -> str:
    """What reads logits of bf16, fp16 or fp32 on this device: "triton" or "torch"."""
    wanted = triton and torch.device(device).type == "cuda" and torch.version.cuda is not None
    return "triton" if wanted and importlib.util.find_spec("triton") else "torch"


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
    triton: bool = True,
) -> PolicyTerms:
    """`policy_terms` of the logits that a head makes of hidden states, without a tensor of them.

    The logits of a few rows at a time are made, and made again in the backward pass, of the dtype
    that the head has there, under autocast too. Rows outside the mask, and in the backward pass
    rows without a gradient, are left out of the products.

    Args:
        hidden: (..., width), any floating dtype.
        weight: (vocabulary, width). Without requires_grad it gets no gradient, and none is made;
            its gradient is summed in fp32 (fp64 for fp64).
        bias: (vocabulary,) or None.
        softcap: c > 0 of a head whose logits are c tanh(z / c); None for z.
        The others are those of `policy_terms`, for the logits of such a head.

    Raises:
        ValueError: as `policy_terms`.
    """
    matrix, rows = _as_rows(hidden, labels, scale, temperature, mask)
    asked = _checked_top_k(top_k, weight.t()), original, entropy
    terms = _FusedPolicyTerms.apply(matrix, weight, bias, rows, softcap, asked, triton)
    return PolicyTerms(*(term if term is None else term.view(labels.shape) for term in terms))


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
    triton: bool = True,
) -> Branches:
    """`branch_log_probs` of the logits that a head makes of hidden states, a few rows at a time.

    Args:
        hidden, weight, bias, softcap: those of `fused_policy_terms`.
        The others are those of `branch_log_probs`.

    Raises:
        ValueError: as `policy_terms`.
    """
    matrix, rows = _as_rows(hidden, labels, None, temperature, mask)
    head = _Head.of(matrix, weight, bias, softcap)
    found = matrix.new_zeros(len(matrix), 5, dtype=_at_least_fp32(head.weight.dtype))
    for index in head.parts(rows.active):
        part, logits = rows.at(index), head.capped(head.product(matrix[index]))
        columns = branch_log_probs(
            logits,
            part.labels.squeeze(-1),
            k,
            part.temperature.squeeze(-1),
            top_k=top_k,
            triton=triton,
        )
        found[index] = torch.cat([columns[0], *(c.unsqueeze(-1) for c in columns[1:])], -1)
    found = found.view(*labels.shape, 5)
    return Branches(found[..., :3], found[..., 3], found[..., 4])


class _Rows(NamedTuple):
    """What belongs to each row of the logits, (rows, 1) each."""

    labels: torch.Tensor
    scale: torch.Tensor  # fp64, as the temperature
    temperature: torch.Tensor
    active: torch.Tensor  # bool

    def at(self, index: torch.Tensor) -> "_Rows":
        return _Rows(*(column[index] for column in self))


class _Sweep:
    """Goes through the logits a few rows at a time."""

    def __init__(self, logits: torch.Tensor, rows: _Rows):
        self.logits, self.rows = logits.detach(), rows
        self.dtype = _at_least_fp32(logits.dtype)
        self.rows_at_a_time = _rows_at_a_time(logits)
        # Made once: the pages of fresh buffers would be faulted in for every few rows.
        size = (4, min(self.rows_at_a_time, len(logits)), logits.size(-1))
        self.buffers = torch.empty(size, dtype=self.dtype, device=logits.device)

    def parts(
        self, active: torch.Tensor, factors: torch.Tensor
    ) -> Iterator[tuple[slice, bool, float, list[float]]]:
        """Slices of neighbouring rows that share all of these: active, temperature, factors."""
        begin = 0
        columns = torch.cat([active, self.rows.temperature, factors], -1).tolist()
        for (is_active, temperature, *row_factors), group in itertools.groupby(columns):
            end = begin + sum(1 for _ in group)
            for i in range(begin, end, self.rows_at_a_time):
                part = slice(i, min(i + self.rows_at_a_time, end))
                yield part, is_active != 0, temperature, row_factors
            begin = end

    def shifted(
        self, part: slice, multiplier: float, only_softmax: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """d = multiplier (z - max z), (n, vocabulary), and max z, (n, 1).

        softmax subtracts the maximum itself. So for `only_softmax` that is not done here where
        multiplier z is exact; d is then multiplier z, and not to be written to.
        """
        z, d = self.logits[part], self.buffers[0, : part.stop - part.start]
        if z.dtype != d.dtype:  # arithmetic of mixed dtypes is not vectorised
            z = d.copy_(z)
        largest = z.amax(-1, keepdim=True)
        if math.frexp(multiplier)[0] != 0.5:  # not a power of 2: multiplier z would be rounded
            return torch.sub(z, largest, out=d).mul_(multiplier), largest
        if only_softmax:
            return z if multiplier == 1 else torch.mul(z, multiplier, out=d), largest
        return torch.add(-multiplier * largest, z, alpha=multiplier, out=d), largest

    def weights(
        self, d: torch.Tensor, factors: list[float]
    ) -> Iterator[tuple[float, torch.Tensor, torch.Tensor]]:
        """Of f_1 < f_2 < ... and d under f_1: f, w proportional to exp(f (z - max z) / T), max w.

        w (n, vocabulary) is the same buffer each time; max w is (n, 1).
        """
        w, largest = self.buffers[1, : len(d)], None
        for i, factor in enumerate(factors):
            if i and factor == 2 * factors[i - 1]:
                w.mul_(w)
                largest = largest.square()
            else:
                argument = torch.mul(d, factor / factors[0], out=w) if i else d
                torch.softmax(argument, -1, out=w)
                largest = w.amax(-1, keepdim=True)
            yield factor, w, largest

    def times(self, w: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.mul(w, other, out=self.buffers[2, : len(w)])


class _Sums(NamedTuple):
    """Of each row, relative to its largest logit; fp64.

    Attributes:
        largest: (rows, 1), max z.
        label: (rows, 1), (z_y - max z) / T.
        log_z: (rows, factors), log sum exp(f (z - max z) / T).
        mean: (rows, 1), of (z - max z) / T under the factor 1, or 0.
    """

    largest: torch.Tensor
    label: torch.Tensor
    log_z: torch.Tensor
    mean: torch.Tensor


def _sums(logits, rows, factors, with_mean, triton) -> _Sums:
    """What the terms of the active rows are made of.

    Args:
        factors: (rows, any) fp64; the first is 1 if `with_mean`.
    """
    kernels = _kernels(logits, triton)
    make = kernels.sums if kernels and factors.size(-1) else _sums_by_torch
    largest, log_z, mean = make(logits, rows, factors, with_mean)
    label = (logits.detach().gather(-1, rows.labels) - largest) / rows.temperature
    return _Sums(largest, label, log_z, mean)


def _sums_by_torch(logits, rows, factors, with_mean) -> tuple[torch.Tensor, ...]:
    largest_z, mean = torch.zeros((2, len(logits), 1), dtype=torch.double, device=logits.device)
    sweep = _Sweep(logits, rows)
    totals, largest_w = torch.ones_like(factors), torch.ones_like(factors)
    for part, active, temperature, wanted in sweep.parts(rows.active, factors):
        if not (active and wanted):
            continue
        needed = sorted(set(wanted))
        alone = not with_mean and len(needed) == 1
        d, largest_z[part] = sweep.shifted(part, needed[0] / temperature, only_softmax=alone)
        for factor, w, largest in sweep.weights(d, needed):
            total = _row_sums(w)
            for i, f in enumerate(wanted):
                if f == factor:
                    totals[part, i, None], largest_w[part, i, None] = total, largest
            if factor == 1 and with_mean:
                moment = sweep.times(w, d).sum(-1, keepdim=True)
                if moment.isnan().any():
                    moment = sweep.times(w, _finite(d)).sum(-1, keepdim=True)
                mean[part] = moment / total / needed[0]
    return largest_z, totals.log() - largest_w.log(), mean


def _row_sums(w: torch.Tensor) -> torch.Tensor:
    """(n, 1) in fp64. A plain fp32 sum drops small terms beside a large one: 6e-7 here."""
    end = w.size(-1) // _SUM_BLOCK * _SUM_BLOCK
    blocks = w[:, :end].unflatten(-1, (-1, _SUM_BLOCK)).sum(-1) if end else w[:, :0]
    return (blocks.sum(-1, dtype=torch.double) + w[:, end:].sum(-1)).unsqueeze(-1)


def _finite(d: torch.Tensor) -> torch.Tensor:
    """d without -inf, in place, so that w d is 0 where w is."""
    return d.clamp_(min=torch.finfo(d.dtype).min)


def _outputs(term: torch.Tensor, rows: _Rows, logits: torch.Tensor) -> torch.Tensor:
    return torch.where(rows.active, term, 0).to(_at_least_fp32(logits.dtype))


class _TopK:
    """The softmax over the k largest logits of each row, under `factors` of z, (rows, n)."""

    def __init__(self, logits, labels, factors, k):
        parts = [_top_k(part, k) for part in logits.detach().split(_rows_at_a_time(logits))]
        values, self.indices = (torch.cat(tensors) for tensors in zip(*parts))
        values = values.to(_at_least_fp32(logits.dtype)).unsqueeze(-2)
        values = values - values.amax(-1, keepdim=True)
        self.log_p = (values * factors.to(values.dtype).unsqueeze(-1)).log_softmax(-1)
        self.is_label = self.indices == labels

    def log_probs(self) -> torch.Tensor:
        found = self.log_p.masked_fill(~self.is_label.unsqueeze(-2), 0).sum(-1)
        return found.masked_fill(~self.is_label.any(-1, keepdim=True), OUTSIDE_TOP_K_LOG_PROB)

    def gradient(self, weight: torch.Tensor) -> torch.Tensor:
        """weight (1[i = y] - p_i) at the indices; weight is (rows, 1), n is 1."""
        weight = weight.to(self.log_p.dtype) * self.is_label.any(-1, keepdim=True)
        return (self.is_label.to(weight.dtype) - self.log_p[:, 0].exp()) * weight


class _PolicyTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, rows, top_k, original, entropy, inplace, triton):
        wanted = slice(0 if original or entropy else 1, 1 if top_k else 2)
        factors = torch.cat([torch.ones_like(rows.scale), rows.scale], -1)[:, wanted]
        sums = _sums(logits, rows, factors, entropy, triton)
        if top_k:
            ctx.top = _TopK(logits, rows.labels, rows.scale / rows.temperature, top_k)
            scaled = ctx.top.log_probs()
        else:
            ctx.top = None
            scaled = sums.label * rows.scale - sums.log_z[:, -1:]
        ctx.save_for_backward(logits)
        ctx.rows, ctx.factors, ctx.wanted, ctx.sums = rows, factors, wanted, sums
        ctx.entropy, ctx.inplace, ctx.triton = entropy, inplace, triton
        log_z = sums.log_z[:, :1]
        return (
            _outputs(scaled, rows, logits),
            _outputs(sums.label - log_z, rows, logits) if original else None,
            _outputs(log_z - sums.mean, rows, logits) if entropy else None,
        )

    @staticmethod
    def backward(ctx, *gradients):
        _refuse_second_derivatives()
        (logits,) = ctx.saved_tensors
        rows, top = ctx.rows, ctx.top
        scaled, original, entropy = (
            torch.zeros_like(rows.scale) if g is None else g / rows.temperature for g in gradients
        )
        scaled = scaled * rows.scale
        active = rows.active & ((scaled != 0) | (original != 0) | (entropy != 0))
        # dH / dz = - p ((z - max z) / T - mean) / T
        columns = torch.cat([entropy * ctx.sums.mean - original, -scaled], -1)
        gradient = _Gradient(
            active=active,
            factors=ctx.factors,
            columns=columns[:, ctx.wanted],
            by_d=-entropy if ctx.entropy else None,
            at_label=original if top else original + scaled,
            indices=top.indices if top else None,
            sparse=torch.where(active, top.gradient(scaled), 0) if top else None,
        )
        result = logits.detach() if ctx.inplace else torch.empty_like(logits)
        kernels = _kernels(logits, ctx.triton)
        if kernels and ctx.factors.size(-1):
            kernels.write_gradient(result, logits, rows, gradient, ctx.sums)
            if ctx.inplace:  # a kernel writes behind autograd's back
                torch.autograd.graph.increment_version(logits)
            if top:
                result.scatter_add_(-1, top.indices, gradient.sparse.to(result.dtype))
        else:
            _write_gradient(result, logits, rows, gradient)
        return result, None, None, None, None, None, None


def _refuse_second_derivatives() -> None:
    """For a backward pass, in which gradients are on where create_graph=True.

    torch's `once_differentiable` is not enough: where the incoming gradients are constants, as
    those of a sum are, it leaves the term out of a second derivative without a word.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "era.log_probs has no second derivatives, and backward was called with "
            "create_graph=True. Take the gradient without it, or make the log-probs with "
            "torch.log_softmax."
        )


class _Gradient(NamedTuple):
    """sum_f p_f (columns_f + [f = 1] by_d (z - max z) / T), and at the label and at `indices` more.

    p_f is the softmax under f; (rows, 1) where nothing else is said.
    """

    active: torch.Tensor
    factors: torch.Tensor  # (rows, factors)
    columns: torch.Tensor  # (rows, factors)
    by_d: Optional[torch.Tensor]
    at_label: torch.Tensor
    indices: Optional[torch.Tensor]  # (rows, k)
    sparse: Optional[torch.Tensor]  # (rows, k)


def _write_gradient(result, logits, rows, gradient) -> None:
    """Writes it into `result`, which may be the logits."""
    sweep = _Sweep(logits, rows)
    columns, at_label = (t.to(sweep.dtype) for t in (gradient.columns, gradient.at_label))
    by_d = None if gradient.by_d is None else gradient.by_d.to(sweep.dtype)
    for part, active, temperature, factors in sweep.parts(gradient.active, gradient.factors):
        out = result[part]
        if not active:
            out.zero_()
            continue
        direct = out.dtype == sweep.dtype
        total = out if direct else sweep.buffers[3, : len(out)]
        _dense_gradient(total, sweep, part, factors, temperature, columns, by_d)
        total.scatter_add_(-1, rows.labels[part], at_label[part])
        if gradient.sparse is not None:
            total.scatter_add_(-1, gradient.indices[part], gradient.sparse[part])
        if not direct:
            out.copy_(total)


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

    def parts(self, active: torch.Tensor) -> list[torch.Tensor]:
        """Indices of the active rows, as many at a time as make the wanted number of logits."""
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


class _FusedPolicyTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, rows, softcap, asked, triton):
        head = _Head.of(hidden, weight, bias, softcap)
        dtype = _at_least_fp32(head.weight.dtype)
        terms = [
            hidden.new_zeros(len(hidden), 1, dtype=dtype) if wanted else None
            for wanted in (True, *asked[1:])
        ]
        for index in head.parts(rows.active):
            logits = head.capped(head.product(hidden[index]))
            parts = _PolicyTerms.apply(logits, rows.at(index), *asked, True, triton)
            for term, found in zip(terms, parts):
                if term is not None:
                    term[index] = found
        ctx.save_for_backward(hidden, weight, bias)
        ctx.rows, ctx.softcap, ctx.asked, ctx.triton = rows, softcap, asked, triton
        ctx.dtype = head.weight.dtype
        return tuple(terms)

    @staticmethod
    def backward(ctx, *gradients):
        _refuse_second_derivatives()
        hidden, weight, bias = ctx.saved_tensors
        head = _Head.of(hidden, weight, bias, ctx.softcap, ctx.dtype)
        of_hidden, of_weight, of_bias = (
            torch.zeros_like(tensor, dtype=dtype) if needed else None
            for tensor, dtype, needed in (
                (hidden, hidden.dtype, ctx.needs_input_grad[0]),
                (weight, _at_least_fp32(weight.dtype), ctx.needs_input_grad[1]),
                (bias, _at_least_fp32(weight.dtype), ctx.needs_input_grad[2]),
            )
        )
        given = [i for i, gradient in enumerate(gradients) if gradient is not None]
        used = torch.cat([gradients[i] for i in given], -1).any(-1, keepdim=True)
        for index in head.parts(ctx.rows.active & used):
            inputs = hidden[index].to(ctx.dtype)
            product = head.product(inputs).requires_grad_()
            with torch.enable_grad():
                terms = _PolicyTerms.apply(
                    head.capped(product), ctx.rows.at(index), *ctx.asked, True, ctx.triton
                )
            (gradient,) = torch.autograd.grad(
                [terms[i] for i in given], product, [gradients[i][index] for i in given]
            )
            if of_hidden is not None:
                of_hidden[index] = (gradient @ head.weight).to(hidden.dtype)
            if of_weight is not None:  # without a second tensor of its size
                blocks = gradient.split(_WEIGHT_BLOCK, -1)
                for total, columns in zip(of_weight.split(_WEIGHT_BLOCK), blocks):
                    total += columns.t() @ inputs
            if of_bias is not None:
                of_bias += gradient.sum(0, dtype=of_bias.dtype)
        sums = (
            total if total is None else total.to(tensor.dtype)
            for total, tensor in ((of_weight, weight), (of_bias, bias))
        )
        return of_hidden, *sums, None, None, None, None


def _dense_gradient(out, sweep, part, factors, temperature, columns, by_d):
    """out = sum_f p_f (columns_f + [f = 1] by_d (z - max z) / T), p_f the softmax under f.

    Args:
        out: (n, vocabulary); may be the memory of the logits.
        factors: the factor of each column.
        columns: (rows, at least the factors).
        by_d: (rows, 1) or None for 0.
    """
    if not factors:
        out.zero_()
        return
    needed = sorted(set(factors))
    alone = by_d is None and len(needed) == 1
    d, _ = sweep.shifted(part, needed[0] / temperature, only_softmax=alone)
    if by_d is not None:
        _finite(d)
    for factor, w, _ in sweep.weights(d, needed):
        total = w.sum(-1, keepdim=True)
        column = sum(columns[part, i, None] for i, f in enumerate(factors) if f == factor)
        if factor == needed[0]:
            torch.mul(w, column / total, out=out)
        else:
            out.add_(sweep.times(w, column / total))
        if factor == 1 and by_d is not None:
            out.add_(sweep.times(w, d).mul_(by_d[part] / (needed[0] * total)))


def _top_k(z: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of the k largest of each row, (n, vocabulary); of ties any.

    They are among the k blocks with the largest maxima.
    """
    blocks = z.size(-1) // _TOP_K_BLOCK
    if blocks <= 2 * k:
        return z.topk(k, dim=-1)
    # A block is a column of this view, so that maxima are taken of whole vectors.
    view = z[:, : blocks * _TOP_K_BLOCK].unflatten(-1, (_TOP_K_BLOCK, blocks))
    chosen = view.amax(-2).topk(k, dim=-1, sorted=False).indices
    steps = blocks * torch.arange(_TOP_K_BLOCK, device=z.device)
    tail = torch.arange(blocks * _TOP_K_BLOCK, z.size(-1), device=z.device).expand(len(z), -1)
    candidates = torch.cat([(chosen.unsqueeze(-1) + steps).flatten(1), tail], -1)
    values, position = z.gather(-1, candidates).topk(k, dim=-1)
    return values, candidates.gather(-1, position)


def _as_rows(logits, labels, scale, temperature, mask) -> tuple[torch.Tensor, _Rows]:
    shape = logits.shape[:-1]
    if labels.shape != shape:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}; expected {tuple(shape)}, that of the "
            "logits without the vocabulary."
        )

    def column(name, values):
        if isinstance(values, torch.Tensor) and values.dim() and values.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)}; expected {tuple(shape)}, one value per "
                "label."
            )
        values = torch.as_tensor(values, dtype=torch.double, device=logits.device)
        return values.expand(shape).reshape(-1, 1)

    active = column("mask", 1 if mask is None else mask) != 0
    scale = column("logit_scale", 1 if scale is None else scale)
    # Outside the mask labels may be padding, such as -100, which is no index.
    labels = torch.where(active, labels.reshape(-1, 1), 0)
    rows = _Rows(labels, scale, column("temperature", temperature), active)
    return logits.reshape(-1, logits.size(-1)), rows


def _kernels(logits: torch.Tensor, triton: bool):
    """The module of Triton's kernels, which stands beside this one, where they can read these."""
    fits = logits.dtype != torch.double and logits.stride(-1) == 1 and len(logits)
    return _triton_module() if fits and backend(logits.device, triton) == "triton" else None


@functools.cache
def _triton_module():
    return importlib.import_module(f"{__name__}_triton")


def _rows_at_a_time(logits: torch.Tensor) -> int:
    on_cpu = logits.device.type == "cpu"
    elements = _CPU_CHUNK_ELEMENTS if on_cpu else _GPU_CHUNK_ELEMENTS
    threads = torch.get_num_threads() if on_cpu else 1  # softmax gives each of them whole rows
    return max(1, elements // logits.size(-1) // threads) * threads


def _checked_top_k(top_k: Optional[int], logits: torch.Tensor) -> Optional[int]:
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; expected None or a whole number >= 1.")
    return None if top_k is None or top_k >= logits.size(-1) else top_k


def _at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
