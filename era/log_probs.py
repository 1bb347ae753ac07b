# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Log-probs of labels under scaled logits, and entropies, as plain formulas that torch compiles.

`policy_terms` gives an update its terms with their gradient, also where ranks share a vocabulary;
`branch_log_probs` gives the policy that sampled its log-probs under each scale that ERA can choose.
Left out: which scale a token gets, and the loss (language.py); logits that never exist as one
tensor (log_probs_fused.py); second derivatives. Needed: torch and the standard library alone.

For a row of logits z, a scale s and a temperature T:

    scaled log-prob     log softmax(s z / T)_y      of the policy that ERA transforms (Eq. llm)
    original log-prob   log softmax(z / T)_y        for a KL loss
    entropy             of softmax(z / T), nats     for H_resp and an entropy bonus

`_sums` and `_write_gradient` are these formulas, with d = z - max z. On a CPU torch.compile turns
each of them into one loop over a few rows at a time, which fit into the cache, without a tensor of
intermediate results. Where there is little to do, or no C++ compiler, the same functions run
uncompiled, at about the speed of torch's own log_softmax. On CUDA the kernels of
log_probs_triton.py take their place.

Exponentials are in fp32, their arguments and sums in fp64: a rounded factor s / T would shift
150,000 equal logits alike, and a sum in fp32 would drop small terms beside a large one. For T in
[0.3, 2] and s in [1/8, 8] the errors against fp64 stay below 5e-7 (1 + |log-prob|) for log-probs,
4e-6 nats for entropies and 1.5e-6 (1 + the row's largest) for gradients in fp32.
"""

import functools
import importlib.util
import logging
import math
import numbers
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

import torch

# Log-probability given to a label that the top-k filter removed. The value is the authors'; it
# never reaches a gradient.
OUTSIDE_TOP_K_LOG_PROB = -1.0e4

# How many logits are worked on at a time. On a CPU the intermediate results of torch's own
# operations, in fp64, must stay in the cache. A compiled loop has no intermediate results, but each
# call costs 0.1 ms. On a GPU this many logits are enough to fill it.
_CPU_CHUNK_ELEMENTS = 2**19
_COMPILED_CHUNK_ELEMENTS = 2**22
_GPU_CHUNK_ELEMENTS = 2**27
# Calls with at least this many logits are compiled. With fewer, compiling costs more than it saves.
_COMPILED_FROM_ELEMENTS = 2**22
# Device types on which torch.compile is used. It could compile for CUDA, but no GPU has run that.
_COMPILED_ON = {"cpu"}
# How many kernels of one formula a process may compile, for different dtypes, vocabularies and
# terms. torch's own limit is 8, beyond which it stops compiling.
_COMPILED_VARIANTS = 64
_TOP_K_BLOCK = 64
_FINITE_MIN = -1e30  # stands for -inf, so that 0 d is 0


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
    compile: bool = True,
    group: Optional["torch.distributed.ProcessGroup"] = None,
) -> PolicyTerms:
    """The terms of an update. The gradient of all of them takes one more read of the logits.

    Runs of rows outside the mask, and in the backward pass runs of rows without a gradient, are
    not read.

    Args:
        logits: (..., vocabulary), any floating dtype; computed in fp32 (fp64 for fp64).
        labels: (...) int64; outside the mask any value is allowed.
        scale: (...) positive, finite factors, constants for the gradient; None for 1.
        temperature: a positive, finite number, or (...) of them, constants for the gradient. Where
            `mask` is 0 neither matters.
        top_k: normalise the scaled log-probs over this many largest logits. None, or a number not
            below the size of the vocabulary, takes all of them.
        original, entropy: also return these.
        mask: (...) bool or 0/1; None for all.
        inplace_backward: the gradient overwrites the logits, so nothing else may need them after
            the forward pass. If something does, its backward pass raises torch's error about a
            modified tensor.
        compile: let kernels that torch or Triton compiles read the logits, where `backend` finds
            them. False computes the same with torch's own operations, more slowly.
        group: the ranks among which the vocabulary is split, as Megatron splits it: each calls this
            with its own part of the logits, in the order of the ranks and of one column or more,
            and with the same labels, scale, temperature and mask, and gets the terms of the whole
            rows. The backward pass writes the gradient of the own part and communicates nothing.

    Returns:
        PolicyTerms. A label outside the top_k has the scaled log-prob OUTSIDE_TOP_K_LOG_PROB,
        without a gradient.

    Raises:
        ValueError: a shape that does not fit the logits; logits of whole numbers or without a
            column; scale or temperature out of range, where it is a number or a tensor on the CPU
            (a GPU's values are not waited for); top_k < 1; inplace_backward with logits that are a
            leaf of the graph. With a group, all ranks raise where one does, the others with its
            number; and parts of different dtypes or numbers of rows; on the CPU, a label outside
            the whole vocabulary (on a GPU its terms are NaN).
        RuntimeError: in the backward pass, a second derivative is asked for (create_graph=True).
    """
    arguments = logits, labels, scale, temperature, mask, top_k, inplace_backward
    if group is None:
        (matrix, rows), shard = _checked(*arguments), None
    else:
        try:
            matrix, rows = _checked(*arguments)
        except Exception:
            _of_all_ranks(_FAILED, logits.device, group)  # they wait for this rank's part
            raise
        shard = _shard_of(matrix, rows, group)
    top_k = checked_top_k(top_k, shard.vocabulary if shard else logits.size(-1))
    params = TermParams(top_k, original, entropy, inplace_backward, compile, shard)
    terms = RowTerms.apply(matrix, rows, params)
    shaped: Any = (term if term is None else term.view(labels.shape) for term in terms)
    return PolicyTerms(*shaped)


def _checked(logits, labels, scale, temperature, mask, top_k, inplace_backward):
    """Return `as_rows`; ValueError is raised for what `policy_terms` does not take."""
    owner = logits if logits._base is None else logits._base
    if inplace_backward and owner.is_leaf and owner.requires_grad:
        raise ValueError(
            "inplace_backward would overwrite logits that are a leaf requiring a gradient, not the "
            "output of a model. Leave it off for these. Nothing was computed."
        )
    rows = as_rows(logits, labels, scale, temperature, mask)
    checked_top_k(top_k, logits.size(-1))
    return rows


@torch.no_grad()
def branch_log_probs(
    logits: torch.Tensor,
    labels: torch.Tensor,
    k: float,
    temperature: Union[float, torch.Tensor] = 1.0,
    *,
    top_k: Optional[int] = None,
    mask: Optional[torch.Tensor] = None,
    compile: bool = True,
) -> Branches:
    """Log-probs of the labels under every scale that Eq. llm can choose, and the entropy.

    Args:
        k: the factor of Eq. llm, >= 1 and finite; k = 2 takes one exponential instead of three.
        others: as for `policy_terms`.

    Raises:
        ValueError: as `policy_terms`; k is out of range.
    """
    if not 1 <= k < math.inf:
        raise ValueError(f"k is {k}; expected a finite number >= 1, the factor of Eq. llm.")
    matrix, rows = as_rows(logits, labels, None, temperature, mask)
    top_k = checked_top_k(top_k, logits.size(-1))

    scales = torch.tensor([1.0, k, 1 / k], dtype=torch.double, device=logits.device)
    factors = scales / rows.temperature
    if top_k:  # the sums over all logits serve the original policy alone
        sums = _row_sums(
            matrix, rows, factors[:, :1], with_mean=True, squares=False, compile=compile
        )
        scaled = _TopK(matrix, rows.labels, factors, top_k).log_probs()
    else:
        sums = _row_sums(matrix, rows, factors, with_mean=True, squares=k == 2, compile=compile)
        scaled = sums.label * factors - sums.log_z

    terms = scaled, *_original_and_entropy(sums, rows)
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


def backend(device: Union[str, torch.device], compile: bool = True) -> str:
    """What reads large logits on this device.

    Returns:
        "torch.compile" (on a CPU, until compiling has failed), "triton" (this project's kernels, on
        CUDA) or "torch".
    """
    device = torch.device(device).type
    if compile and device in _COMPILED_ON and _can_compile:
        return "torch.compile"
    has_kernels = device == "cuda" and torch.version.cuda and importlib.util.find_spec("triton")
    return "triton" if compile and has_kernels else "torch"


class Rows(NamedTuple):
    """What belongs to each row of the logits, (rows, 1) each."""

    labels: torch.Tensor  # columns of the logits; in RowTerms -1 where another shard has the label
    scale: torch.Tensor  # fp64, as the temperature
    temperature: torch.Tensor
    active: torch.Tensor  # bool

    def at(self, index: torch.Tensor) -> "Rows":
        return Rows(*(column[index] for column in self))


class TermParams(NamedTuple):
    """What `RowTerms` computes and how: the arguments of `policy_terms` that hold for all rows.

    Attributes:
        top_k: how many of the largest logits normalise the scaled log-probs; None for all.
        original: whether original log-probs are computed.
        entropy: whether entropies are computed.
        inplace_backward: whether the gradient overwrites the logits.
        compile: whether a compiler may read the logits.
        shard: this rank's columns, or None where the logits have the whole vocabulary.
    """

    top_k: Optional[int]
    original: bool
    entropy: bool
    inplace_backward: bool
    compile: bool
    shard: Optional["_Shard"] = None

    def computed(self) -> tuple[bool, bool, bool]:
        """Whether each of the PolicyTerms is computed."""
        return True, self.original, self.entropy

    def summed_factors(self) -> slice:
        """Which of the factors 1 / T and s / T need a sum over the whole vocabulary."""
        return slice(0 if self.original or self.entropy else 1, 1 if self.top_k else 2)


class _Sums(NamedTuple):
    """Sums over the vocabulary for each row, in fp64, with d = z - max z.

    Attributes:
        largest: (rows, 1), max z.
        label: (rows, 1), d of the label y, z_y - max z.
        log_z: (rows, factors), log sum exp(f d).
        mean: (rows, 1), of d under the first factor, or 0.
    """

    largest: torch.Tensor
    label: torch.Tensor
    log_z: torch.Tensor
    mean: torch.Tensor


class GradientRows(NamedTuple):
    """What `_write_gradient` makes the gradient of each row of, (rows, 1) except for the factors.

    Attributes:
        active: bool; the other rows have the gradient 0.
        labels: the columns of the labels; -1 where another shard has them.
        at_label: the gradient at the label.
        largest: max z.
        factors: (rows, 0 to 2), the factors f of z.
        coefficients: (rows, 0 to 2), of exp(f d) for each factor f.
        d_coefficient: of d exp(f d) for the first f; None where no entropy was computed.
        All but the first two are in fp32 (fp64 for fp64 logits).
    """

    active: torch.Tensor
    labels: torch.Tensor
    at_label: torch.Tensor
    largest: torch.Tensor
    factors: torch.Tensor
    coefficients: torch.Tensor
    d_coefficient: Optional[torch.Tensor]

    def at(self, chunk: slice) -> "GradientRows":
        """Some of the rows; where their two factors are equal, with one for both."""
        columns: Any = (column if column is None else column[chunk] for column in self)
        rows = GradientRows(*columns)
        if not _are_equal(rows.factors):
            return rows
        total = rows.coefficients.sum(-1, keepdim=True)
        return rows._replace(factors=rows.factors[:, :1], coefficients=total)


def _sums(z, factors, with_mean, squares):
    """Return max z, log sum exp(f d) for each factor f, and the mean of d under the first f.

    Args:
        z: (n, vocabulary), any floating dtype.
        factors: (n, any) fp64.
        squares: as in `_weights`.
    """
    largest = z.amax(-1, keepdim=True).double()
    d = z.double() - largest
    weights = _weights(d, factors, at_least_fp32(z.dtype), squares)
    totals = [w.sum(-1, keepdim=True, dtype=torch.double) for w in weights]
    mean = torch.zeros_like(largest)
    if with_mean:
        mean = (weights[0] * d.clamp(min=_FINITE_MIN)).sum(-1, keepdim=True) / totals[0]
    return largest, torch.cat(totals, -1).log(), mean


def _weights(d, factors, dtype, squares):
    """Return exp(f d) for each factor f.

    With `squares` one exponential makes all of them. The factors must then be f, 2 f and f / 2, or
    two of which each is the row's smaller one or twice it.
    """
    if not squares:
        return [(d * f).to(dtype).exp() for f in factors.split(1, -1)]
    smallest = factors.amin(-1, keepdim=True)
    w = (d * smallest).to(dtype).exp()
    if factors.size(-1) == 3:
        return [w * w, (w * w) * (w * w), w]
    return [torch.where(f > smallest, w * w, w) for f in factors.split(1, -1)]


def _write_gradient(
    z, active, labels, at_label, largest, factors, coefficients, d_coefficient, squares
):
    """Overwrites z by its gradient.

    It is the sum over the factors f of coefficient_f exp(f d), plus d_coefficient d exp(f d) for
    the first. At the label it is `at_label`, whose terms cancel and were summed in fp64; in rows
    that are not active it is 0. Rounded arguments of exp do no harm, since a exp(-a) is small.

    Args:
        z: (n, vocabulary), any floating dtype.
        squares: as in `_weights`.
        The others are those of GradientRows, apart so that `_run_compiled` sees each tensor.
    """
    d = z.to(largest.dtype) - largest
    weights = _weights(d, factors, d.dtype, squares)
    gradient = sum(w * column for w, column in zip(weights, coefficients.split(1, -1)))
    if d_coefficient is not None:
        gradient = gradient + weights[0] * d.clamp(min=_FINITE_MIN) * d_coefficient
    is_label = torch.arange(z.size(-1), device=z.device) == labels
    z.copy_(torch.where(active, torch.where(is_label, at_label, gradient), 0))


def _row_sums(logits, rows, factors, with_mean, squares, compile) -> _Sums:
    """The sums of the active rows; the values returned for other rows mean nothing."""
    logits, count = logits.detach(), factors.size(-1)
    largest, log_z, mean = (
        torch.zeros(len(logits), width, dtype=torch.double, device=logits.device)
        for width in (1, count, 1)
    )

    # With a top-k filter and nothing else to compute, no sum over the vocabulary is needed.
    kernels = _kernels(logits, compile)
    if kernels and count:
        largest, log_z, mean = kernels.sums(logits, rows.active, factors, with_mean, squares)
    elif count:
        make, elements = _runner(_sums, logits, compile)
        dtype, buffer = at_least_fp32(logits.dtype), None
        if logits.device.type == "cpu" and dtype != logits.dtype:
            # A loop over bf16 and fp64 is not well vectorised, so bf16 is copied to fp32 first. One
            # buffer serves all chunks, since the system would map the pages of each new one.
            buffer = torch.empty_like(logits[: _rows_at_a_time(logits, elements)], dtype=dtype)

        for chunk in _chunks(logits, rows.active, elements):
            z, f = logits[chunk], factors[chunk]
            z = z if buffer is None else buffer[: len(z)].copy_(z)

            # Where factors are equal, or one is twice the other, one exponential makes both.
            if _are_equal(f):
                f = f[:, :1]
            by_squares = squares or _are_doubled(f)
            largest[chunk], log_z[chunk], mean[chunk] = make(z, f, with_mean, by_squares)
    return _Sums(largest, logits.gather(-1, rows.labels) - largest, log_z, mean)


class _Shard(NamedTuple):
    """This rank's columns of a vocabulary that is split over a group: `width` from `begin` on."""

    group: "torch.distributed.ProcessGroup"
    begin: int
    width: int
    vocabulary: int

    def columns(self, labels: torch.Tensor) -> torch.Tensor:
        """Where in this shard the labels of the whole vocabulary are; -1 for those of others."""
        columns = labels - self.begin
        return torch.where((columns >= 0) & (columns < self.width), columns, -1)

    def lacks(self, labels: torch.Tensor) -> torch.Tensor:
        """Whether no rank has these labels."""
        return (labels < 0) | (labels >= self.vocabulary)


# What a rank that raises an error tells the others in `_of_all_ranks`, in the place of its part.
_FAILED = [-1] * 5


def _of_all_ranks(own: list[int], device: torch.device, group) -> list[list[int]]:
    """The ranks' numbers, a list for each of `own`: the first collective of `policy_terms`."""
    numbers = torch.zeros(
        torch.distributed.get_world_size(group), len(own), dtype=torch.long, device=device
    )
    numbers[torch.distributed.get_rank(group)] = torch.tensor(own, device=device)
    torch.distributed.all_reduce(numbers, group=group)
    return numbers.T.tolist()


def _shard_of(logits: torch.Tensor, rows: Rows, group) -> _Shard:
    """The columns that this rank has. ValueError is raised on all ranks alike."""
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    kind = dtypes.index(logits.dtype) if logits.dtype in dtypes else -1
    labels = [0, 0]  # the least and the largest; 0 where a row is not active
    if logits.device.type == "cpu" and len(logits):
        labels = [int(label) for label in rows.labels.aminmax()]

    # One collective says what each rank has, and whether it has raised an error.
    own = [*logits.shape, kind, *labels]
    counts, widths, kinds, least, largest = _of_all_ranks(own, logits.device, group)
    size, rank = len(counts), torch.distributed.get_rank(group)

    if failed := [str(i) for i, count in enumerate(counts) if count < 0]:
        raise ValueError(
            f"Rank {', '.join(failed)} of the group's {size} has raised an error, which its own "
            "traceback shows. Nothing was computed."
        )
    if len(set(counts)) > 1 or len(set(kinds)) > 1:
        names = [str(dtypes[kind]) for kind in kinds]
        raise ValueError(
            f"The {size} ranks of the group have {counts} rows of logits in {names}; expected the "
            "same rows and dtype on each, with a part of the vocabulary. Nothing was computed."
        )

    shard = _Shard(group, sum(widths[:rank]), widths[rank], sum(widths))
    for label in min(least), max(largest):
        if not 0 <= label < shard.vocabulary:
            raise ValueError(
                f"a label is {label}; expected 0 to {shard.vocabulary - 1}, one of the columns of "
                f"the group's {size} parts."
            )
    return shard


def _of_all_shards(sums: _Sums, factors: torch.Tensor, rows: Rows, shard: _Shard) -> _Sums:
    """The sums of whole rows, from those of this rank's shard."""
    largest = sums.largest.clone()
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=shard.group)
    # A shard of which all logits are -inf has no sums of its own, and adds nothing.
    nothing = sums.largest == -math.inf
    shift = sums.largest - largest
    weights = (sums.log_z + shift * factors).exp().masked_fill(nothing, 0)
    mean = (weights[:, :1] * (sums.mean + shift)).masked_fill(nothing, 0)
    label = (sums.label + shift).masked_fill(nothing, -math.inf)
    packed = torch.cat([weights, label.masked_fill(rows.labels < 0, 0), mean], -1)
    torch.distributed.all_reduce(packed, group=shard.group)
    total, label, mean = packed.split([factors.size(-1), 1, 1], -1)
    return _Sums(largest, label, total.log(), mean / total[:, :1])


def _are_equal(factors: torch.Tensor) -> bool:
    """Whether the two factors of each of these rows are equal: one exponential serves both."""
    return factors.size(-1) == 2 and torch.equal(factors[:, 0], factors[:, 1])


def _are_doubled(factors: torch.Tensor) -> bool:
    """Whether each of these rows has two factors, equal or one twice the other: as with k = 2."""
    smallest = factors.amin(-1, keepdim=True)
    doubled = (factors == smallest) | (factors == 2 * smallest)
    return factors.size(-1) == 2 and bool(doubled.all())


def _original_and_entropy(sums: _Sums, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    log_z = sums.log_z[:, :1]
    return sums.label / rows.temperature - log_z, log_z - sums.mean / rows.temperature


def _outputs(term: torch.Tensor, rows: Rows, logits: torch.Tensor) -> torch.Tensor:
    return torch.where(rows.active, term, 0).to(at_least_fp32(logits.dtype))


class RowTerms(torch.autograd.Function):
    """The PolicyTerms of a matrix of logits, its Rows and TermParams, (rows, 1) each, or None.

    It is not differentiable twice: `refuse_second_derivatives`.
    """

    @staticmethod
    def forward(ctx, logits, rows, params):
        # On a shard, another rank may have the label: -1, which is not an index.
        shard, labels, safe_rows = params.shard, rows.labels, rows
        if shard:
            rows = rows._replace(labels=shard.columns(labels))
            safe_rows = rows._replace(labels=rows.labels.clamp(min=0))

        factors = torch.cat([torch.ones_like(rows.scale), rows.scale], -1) / rows.temperature
        factors, scaled_factor = factors[:, params.summed_factors()], factors[:, 1:]
        sums = _row_sums(
            logits, safe_rows, factors, params.entropy, squares=False, compile=params.compile
        )
        if shard and factors.numel():
            sums = _of_all_shards(sums, factors, rows, shard)

        top = None
        if params.top_k:
            top = _TopK(logits, labels, scaled_factor, params.top_k, shard)
            scaled = top.log_probs()
        else:
            scaled = sums.label * scaled_factor - sums.log_z[:, -1:]

        ctx.save_for_backward(logits)
        ctx.rows, ctx.params, ctx.factors, ctx.sums, ctx.top = rows, params, factors, sums, top

        # A label that no rank has is an error on a CPU, and NaN on a GPU, which is not waited for.
        terms = scaled, *_original_and_entropy(sums, rows)
        if shard:
            terms = (term.masked_fill(shard.lacks(labels), math.nan) for term in terms)
        return tuple(
            _outputs(term, rows, logits) if is_computed else None
            for term, is_computed in zip(terms, params.computed())
        )

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second_derivatives()
        (logits,) = ctx.saved_tensors
        rows, params = ctx.rows, ctx.params

        # The chain rule of z / T and s z / T. Rows without a gradient are not read again.
        grad_scaled, grad_original, grad_entropy = (
            torch.zeros_like(rows.scale) if g is None else g / rows.temperature for g in gradients
        )
        grad_scaled = grad_scaled * rows.scale
        active = rows.active & ((grad_scaled != 0) | (grad_original != 0) | (grad_entropy != 0))

        gradient = _gradient_rows(
            ctx, active, grad_scaled, grad_original, grad_entropy, logits.dtype
        )
        result = logits.detach() if params.inplace_backward else torch.empty_like(logits)
        _write_rows(result, logits, gradient, params.compile)
        if ctx.top:
            ctx.top.add_gradient(result, grad_scaled, active)
        return result, None, None


def _gradient_rows(ctx, active, grad_scaled, grad_original, grad_entropy, dtype) -> GradientRows:
    """The GradientRows of `RowTerms`' gradients by its terms over T, (rows, 1) fp64 each."""
    sums, factors, params = ctx.sums, ctx.factors, ctx.params
    grad_entropy = grad_entropy / ctx.rows.temperature  # dH / dz = - p (d - mean d) / T^2
    coefficients = torch.cat([grad_entropy * sums.mean - grad_original, -grad_scaled], -1)
    coefficients = coefficients[:, params.summed_factors()] * (-sums.log_z).exp()
    d_coefficient = -grad_entropy * (-sums.log_z[:, :1]).exp() if params.entropy else None

    # At the label the terms cancel, so they are summed here, in fp64.
    weights = (factors * sums.label).exp()
    at_label = grad_original + (weights * coefficients).sum(-1, keepdim=True)
    if d_coefficient is not None:
        at_label += weights[:, :1] * sums.label.clamp(min=_FINITE_MIN) * d_coefficient
    if not params.top_k:
        at_label += grad_scaled

    dtype = at_least_fp32(dtype)
    return GradientRows(
        active=active,
        labels=ctx.rows.labels,
        at_label=at_label.to(dtype),
        largest=sums.largest.to(dtype),
        factors=factors.to(dtype),
        coefficients=coefficients.to(dtype),
        d_coefficient=None if d_coefficient is None else d_coefficient.to(dtype),
    )


def _write_rows(result, logits, gradient: GradientRows, compile) -> None:
    """Writes `_write_gradient` of the rows into `result`, which may be the logits."""
    has_factors = gradient.factors.size(-1) > 0
    kernels, logits = _kernels(logits, compile), logits.detach()
    inplace = result.data_ptr() == logits.data_ptr()
    if kernels and has_factors:
        kernels.write_gradient(result, logits, *gradient)
        if inplace:  # a kernel writes behind autograd's back
            torch.autograd.graph.increment_version(result)
        return

    # Rows before, between and after the chunks have no gradient.
    write, elements = _runner(_write_gradient, logits, compile)
    end = 0
    for chunk in _chunks(logits, gradient.active, elements) if has_factors else ():
        out = result[chunk]
        if not inplace:
            out.copy_(logits[chunk])
        rows = gradient.at(chunk)
        write(out, *rows, _are_doubled(rows.factors))
        result[end : chunk.start] = 0
        end = chunk.stop
    result[end:] = 0


def refuse_second_derivatives() -> None:
    """Raise RuntimeError in a backward pass with create_graph=True, which enables gradients.

    torch's `once_differentiable` is not enough: where the incoming gradients are constants, as
    after a sum, it silently leaves the term out of a second derivative.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "era.log_probs has no second derivatives, and backward was called with "
            "create_graph=True. Take the gradient without it, or make the log-probs with "
            "torch.log_softmax."
        )


class _TopK:
    """The softmax over the k largest logits of each row, under `factors` of z, (rows, n)."""

    def __init__(self, logits, labels, factors, k, shard=None):
        count, own_k = _rows_at_a_time(logits, _eager_elements(logits)), min(k, logits.size(-1))
        chunks = [_top_k(chunk, own_k) for chunk in logits.detach().split(count)]
        values, indices = (torch.cat(tensors) for tensors in zip(*chunks))
        if shard:
            values, indices = _top_k_of_all_shards(values, indices, k, shard)
        self.indices, self.shard = indices, shard
        values = values.double().unsqueeze(-2)
        values = values - values.amax(-1, keepdim=True)
        self.log_p = (values * factors.unsqueeze(-1)).log_softmax(-1)
        self.is_label = indices == labels

    def log_probs(self) -> torch.Tensor:
        at_label = self.log_p.masked_fill(~self.is_label.unsqueeze(-2), 0).sum(-1)
        return at_label.masked_fill(~self.is_label.any(-1, keepdim=True), OUTSIDE_TOP_K_LOG_PROB)

    def add_gradient(self, result, grad_scaled, active) -> None:
        """Add grad_scaled (1[i = y] - p_i) to `result` at the indices i; for one factor."""
        weight = grad_scaled * self.is_label.any(-1, keepdim=True)
        gradient = (self.is_label.double() - self.log_p[:, 0].exp()) * weight
        gradient = torch.where(active, gradient, 0)
        indices = self.shard.columns(self.indices) if self.shard else self.indices
        gradient = gradient + result.gather(-1, indices.clamp(min=0))
        row = torch.arange(len(result), device=result.device).unsqueeze(-1)
        if self.shard:
            own = indices >= 0
            row, indices, gradient = row.expand_as(own)[own], indices[own], gradient[own]
        result[row, indices] = gradient.to(result.dtype)  # scatter_ of bf16 copies all of it


def _top_k(z: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of the k largest logits of each row, (n, k) each; any of those that tie.

    They lie in the k blocks with the largest maxima, or in the tail that fills no block.
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


def _top_k_of_all_shards(values, indices, k, shard) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row, with indices of the whole vocabulary, from those of each shard."""
    own_k, shape = values.size(-1), (len(values), k)
    own = torch.full((2, *shape), -1.0, dtype=torch.double, device=values.device)
    own[0] = -math.inf
    own[0, :, :own_k], own[1, :, :own_k] = values, indices + shard.begin
    size = torch.distributed.get_world_size(shard.group)
    all_shards = [torch.empty_like(own) for _ in range(size)]
    torch.distributed.all_gather(all_shards, own, group=shard.group)
    values, indices = torch.cat(all_shards, -1)
    # Stable, so that all ranks choose the same of equal logits.
    values, order = values.sort(stable=True, dim=-1, descending=True)
    return values[:, :k], indices.gather(-1, order[:, :k]).long()


def as_rows(logits, labels, scale, temperature, mask) -> tuple[torch.Tensor, Rows]:
    """The logits as a matrix, and the other arguments of `policy_terms` as its Rows.

    Raises:
        ValueError: as `policy_terms`.
    """
    if not logits.is_floating_point():
        raise ValueError(f"logits are {logits.dtype}; expected a floating dtype.")
    if logits.dim() == 0 or logits.size(-1) == 0:
        raise ValueError(f"logits have shape {tuple(logits.shape)}; expected (..., vocabulary).")
    shape = logits.shape[:-1]
    if labels.shape != shape:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}; expected {tuple(shape)}, that of the "
            "logits without the vocabulary."
        )

    # One value for each label, or one for all, as (rows, 1).
    def column(name, values):
        if isinstance(values, torch.Tensor) and values.dim() and values.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)}; expected {tuple(shape)}, one value per "
                "label."
            )
        values = torch.as_tensor(values, dtype=torch.double, device=logits.device)
        return values.expand(shape).reshape(-1, 1)

    def positive(name, values):
        result = column(name, values)

        # Only values that need not be waited for, and that a compiler does not trace.
        number = not isinstance(values, torch.Tensor)
        if (number or result.device.type == "cpu") and not torch.compiler.is_compiling():
            known = torch.tensor(values, dtype=torch.double) if number else result[active]
            wrong = known[~((known > 0) & (known < math.inf))]
            if len(wrong):
                raise ValueError(f"{name} is {wrong[0].item()}; expected positive, finite numbers.")
        return result

    active = column("mask", 1 if mask is None else mask) != 0
    scale = positive("logit_scale", 1 if scale is None else scale)

    # Outside the mask labels may be padding, such as -100, which is not an index.
    labels = torch.where(active, labels.reshape(-1, 1), 0)
    rows = Rows(labels, scale, positive("temperature", temperature), active)
    return logits.reshape(-1, logits.size(-1)), rows


def checked_top_k(top_k: Optional[int], vocabulary: int) -> Optional[int]:
    """Return top_k, None where it means all logits. ValueError: not None, no whole number >= 1."""
    whole = isinstance(top_k, numbers.Integral) and not isinstance(top_k, bool)
    if top_k is not None and not (whole and top_k >= 1):
        raise ValueError(f"top_k is {top_k}; expected None or a whole number >= 1.")
    return None if top_k is None or top_k >= vocabulary else top_k


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """The dtype of results for inputs of this one: fp64 for fp64, else fp32."""
    return torch.promote_types(dtype, torch.float32)


# What runs the formulas: a few rows at a time, compiled where that pays, or Triton's kernels.


def _runner(function: Callable, logits: torch.Tensor, compile: bool) -> tuple[Callable, int]:
    """What runs `function`, compiled where that pays, and how many elements it takes at a time."""
    is_large = logits.numel() >= _COMPILED_FROM_ELEMENTS
    can_compile = backend(logits.device, compile) == "torch.compile"
    # If the caller is itself being compiled, the formulas are compiled as a part of it.
    if is_large and can_compile and not torch.compiler.is_compiling():
        return functools.partial(_run_compiled, function), _COMPILED_CHUNK_ELEMENTS
    return function, _eager_elements(logits)


def _eager_elements(logits: torch.Tensor) -> int:
    return _CPU_CHUNK_ELEMENTS if logits.device.type == "cpu" else _GPU_CHUNK_ELEMENTS


def _rows_at_a_time(logits: torch.Tensor, elements: int) -> int:
    # Each thread of a CPU takes whole rows.
    threads = torch.get_num_threads() if logits.device.type == "cpu" else 1
    return max(1, elements // logits.size(-1) // threads) * threads


def _chunks(logits: torch.Tensor, active: torch.Tensor, elements: int) -> Iterator[slice]:
    """Slices of about equally many rows, without the rows at their ends that are not active."""
    count = math.ceil(len(logits) / _rows_at_a_time(logits, elements))
    active, end = active.flatten().cpu(), 0
    for i in range(count):
        begin, end = end, len(logits) * (i + 1) // count
        inside = active[begin:end].nonzero()
        if len(inside):
            yield slice(begin + int(inside[0]), begin + int(inside[-1]) + 1)


def _run_compiled(function, *arguments):
    global _can_compile
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    if len(tensors[0]) == 1 or not _can_compile:  # torch would compile a single row once more
        return function(*arguments)
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    try:
        # A second vocabulary gets a kernel of its own: one for any size takes 1.5 times as long.
        with torch._dynamo.config.patch(
            cache_size_limit=_COMPILED_VARIANTS, automatic_dynamic_shapes=False
        ):
            return _compiler(function, torch.get_num_threads())(*arguments)
    except (torch._dynamo.exc.TorchDynamoException, OSError) as error:  # no kernel has run
        _can_compile = False
        logging.getLogger(__name__).warning(_not_compiled(error))
        return function(*arguments)


# Whether this process still compiles: it stops at the first error.
_can_compile = True


@functools.cache
def _compiler(function: Callable, threads: int) -> Callable:
    # Without the option torch 2.6 finds kernels for another number of threads in its cache on disk.
    return torch.compile(function, fullgraph=True, options={"cpp.threads": threads})


def _not_compiled(error: Exception) -> str:
    inner = getattr(error, "inner_exception", None) or error.__cause__ or error
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line]
    reason = ": ".join(lines[:1] + errors[:1]) or type(inner).__name__
    return (
        f"ERA: torch.compile failed, so log-probs take two to four times as long: {reason}\n"
        "It needs a C++ compiler (install g++ or clang) and a folder to write to "
        "(TORCHINDUCTOR_CACHE_DIR, by default /tmp/torchinductor_USER; delete that folder if a "
        "compilation was interrupted). era.compile=False goes on like this and says nothing."
    )


def _kernels(logits: torch.Tensor, compile: bool):
    """The module of Triton's kernels, beside this one, if they can read these logits; else None."""
    fits = logits.dtype != torch.double and logits.stride(-1) == 1 and len(logits)
    if not fits or backend(logits.device, compile) != "triton":
        return None
    from . import log_probs_triton  # needs triton

    return log_probs_triton
