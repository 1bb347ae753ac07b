# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Entropy Regularizing Activation (ERA) for language-model policies.

ERA acts after sampling. A response whose forking tokens have too little entropy is updated as if
its positive-advantage tokens had been drawn from a sharpened policy; with too much, as if from a
flattened policy (paper, Eq. llm):

    z' = k z    if H_resp < low  and A_t > 0
    z' = z / k  if H_resp > high and A_t > 0
    z' = z      otherwise

With `hold`, which is not in the paper, negative advantages take no part in the policy loss below
low, and above high those that raise the entropy. `decide` has all of it.

All entropies are in nats. This file needs only torch, the standard library and language_config.py
beside it, which has the configuration and the ranges of its values. What moves these quantities
through verl is in era/verl/worker.py, and in verl/utils/era_fsdp.py of a patched checkout.
"""

import math
from collections import deque
from fractions import Fraction
from typing import Any, NamedTuple, Optional

import torch

from .language_config import EraConfig


def _check(**fields: Any) -> None:
    """Raise ValueError for a value that EraConfig does not allow for the field of that name."""
    EraConfig(**fields)


def _check_shapes(
    mask: torch.Tensor, of_responses: Optional[dict[str, torch.Tensor]] = None, **of_tokens
) -> None:
    """Raise ValueError unless the mask is (bsz, T), of_tokens are too, and of_responses (bsz,).

    torch would broadcast some other shapes, along the wrong dimension.
    """
    of_mask = tuple(mask.shape)
    if len(of_mask) != 2:
        raise ValueError(f"the mask's shape is {of_mask}; expected (responses, tokens).")
    expected = {"token": (of_mask, of_tokens), "response": (of_mask[:1], of_responses or {})}
    for one, (shape, tensors) in expected.items():
        for name, tensor in tensors.items():
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"the shape of {name} is {tuple(tensor.shape)}; expected {shape}, one value "
                    f"per {one}."
                )


# By argument, what its values must be. Entropies from bf16 logits are off by up to 0.34 nats
# (docs/why-not-copy.md), so up to half a nat on the wrong side of 0 is accepted.
_EXPECTED = {
    **dict.fromkeys(
        ("entropy", "token_entropy", "response_entropy"),
        (lambda x: x > -0.5, "an entropy in nats, at least 0 (a log-prob is at most 0)"),
    ),
    "log_probs": (lambda x: x < 0.5, "a log-prob, at most 0"),
    "advantages": (torch.isfinite, "a finite number"),
}


def _check_values(mask: torch.Tensor, **tensors: torch.Tensor) -> None:
    """Raise ValueError for NaN, and for what was meant for another argument, where the mask is 1.

    On a CPU alone: on an accelerator a look at a value would wait for all that is queued there.
    """
    if mask.device.type != "cpu":
        return
    checks = {"the mask": (mask, (mask == 0) | (mask == 1), "0 or 1")}
    for name, tensor in tensors.items():
        holds, expected = _EXPECTED[name]
        checks[name] = tensor, holds(tensor) | (mask == 0), expected
    for name, (tensor, right, expected) in checks.items():
        if not right.all():
            place = (~right).nonzero()[0].tolist()
            raise ValueError(f"{name}{place} is {tensor[tuple(place)]:.3g}; expected {expected}.")


def forking_count(length: torch.Tensor, top_fraction: float) -> torch.Tensor:
    """How many tokens H_resp averages: max(1, floor(top_fraction x length)), and 0 for length 0.

    The product is exact: in floating point 0.29 x 100 is 28.999..., whose floor is one too low.
    top_fraction stands for the nearest fraction with a denominator of up to 1e9: 0.29 is 29 / 100.

    Args:
        length: whole numbers, any shape and dtype that holds them.
        top_fraction: in (0, 1].

    Returns:
        int64, the shape of length.

    Raises:
        ValueError: top_fraction is out of range.
    """
    _check(top_fraction=top_fraction)
    length, exact = length.long(), Fraction(top_fraction).limit_denominator(10**9)
    count = length * exact.numerator // exact.denominator
    return count.clamp(min=1).minimum(length)


def split_entropy(
    entropy: torch.Tensor, response_mask: torch.Tensor, top_fraction: float = 0.2
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean entropy of each response's forking tokens and of its other tokens.

    Args:
        entropy: (bsz, response_length) token entropies in nats, any floating dtype; values outside
            the mask are ignored, NaN included.
        response_mask: (bsz, response_length), bool or 0/1.
        top_fraction: share of the tokens in (0, 1], those of highest entropy, that count as
            forking; at least one of them.

    Returns:
        Two tensors (bsz,), fp32 (fp64 for fp64), the mean over the max(1, floor(top_fraction x
        length)) largest entropies, and the mean over the rest; NaN where there is no such token.

    Raises:
        ValueError: top_fraction is out of range; another shape.
    """
    _check_shapes(response_mask, entropy=entropy)
    entropy = entropy.to(torch.promote_types(entropy.dtype, torch.float32))  # fp16 sums overflow
    mask = response_mask.bool()
    length = mask.sum(-1, keepdim=True)
    top_count = forking_count(length, top_fraction)
    ranked = entropy.masked_fill(~mask, -math.inf).sort(-1, descending=True).values
    rank = torch.arange(entropy.size(-1), device=entropy.device)
    is_top = rank < top_count
    is_rest = (rank < length) & ~is_top
    top = ranked.masked_fill(~is_top, 0).sum(-1) / top_count.squeeze(-1)
    rest = ranked.masked_fill(~is_rest, 0).sum(-1) / (length - top_count).squeeze(-1)
    return top, rest


def response_entropy(
    entropy: torch.Tensor, response_mask: torch.Tensor, top_fraction: float = 0.2
) -> torch.Tensor:
    """H_resp: mean of each response's max(1, floor(top_fraction x length)) largest token entropies.

    Args, dtypes and errors as `split_entropy`.

    Returns:
        (bsz,) in nats; NaN for an empty response, so average it with `nanmean`.

    Raises:
        ValueError: on a CPU also a value inside the mask that is no entropy, or NaN.
    """
    _check_shapes(response_mask, entropy=entropy)
    _check_values(response_mask, entropy=entropy)
    return split_entropy(entropy, response_mask, top_fraction)[0]


def logit_scale(
    response_entropy: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    low: float,
    high: float,
    k: float,
    min_advantage: float = 0.0,
    check: bool = True,
) -> torch.Tensor:
    """The factor on each token's logits, Eq. llm.

    Where A_t > min_advantage it is k if H_resp < low and 1 / k if H_resp > high; elsewhere 1.

    Args:
        response_entropy: (bsz,) H_resp in nats; NaN, for an empty response, scales nothing.
        advantages: (bsz, response_length).
        response_mask: (bsz, response_length), bool or 0/1.
        low, high: omega_low <= omega_high in nats; low is finite, high may be inf.
        k: the factor, >= 1 and finite.
        min_advantage: only tokens with a larger advantage are scaled; finite and >= 0.
        check: as for `decide`.

    Returns:
        (bsz, response_length), fp32 (fp64 for fp64 advantages), of k, 1/k or 1.

    Raises:
        ValueError: low, high, k or min_advantage is out of range; another shape; with `check`, on a
            CPU, a value inside the mask that is not what the argument says, or NaN.
    """
    _check(low=low, high=high, k=k, min_advantage=min_advantage)
    _check_shapes(response_mask, {"response_entropy": response_entropy}, advantages=advantages)
    if check:
        _check_values(response_mask, advantages=advantages)
        _check_values(response_mask.bool().any(-1), response_entropy=response_entropy)
    eligible = response_mask.bool() & (advantages > min_advantage)
    entropy = response_entropy.unsqueeze(-1)
    scale = torch.ones_like(advantages, dtype=torch.promote_types(advantages.dtype, torch.float32))
    scale.masked_fill_(eligible & (entropy < low), k)
    scale.masked_fill_(eligible & (entropy > high), 1 / k)
    return scale


class MetricSums(NamedTuple):
    """Sums and counts over one rank's responses, each () in fp64; entropies are in nats.

    Attributes:
        response_entropy: of H_resp, over the responses that have tokens.
        responses, low_responses, high_responses: how many those are, and how many have H_resp below
            low and above high.
        tokens, scaled_tokens, dropped_tokens: of all responses; those with another scale than 1;
            those that `Decision.dropped` has.
        top_entropy, top_tokens: of the forking tokens; how many they are.
        rest_entropy, rest_tokens: of the other tokens.
    """

    response_entropy: torch.Tensor
    responses: torch.Tensor
    low_responses: torch.Tensor
    high_responses: torch.Tensor
    tokens: torch.Tensor
    scaled_tokens: torch.Tensor
    dropped_tokens: torch.Tensor
    top_entropy: torch.Tensor
    top_tokens: torch.Tensor
    rest_entropy: torch.Tensor
    rest_tokens: torch.Tensor

    def stacked(self) -> torch.Tensor:
        """All of them in one tensor, to be added over ranks and given to `update_metrics`."""
        return torch.stack([value.double() for value in self])


class Decision(NamedTuple):
    """What ERA decides about a batch, before its update and for all of it.

    Attributes:
        response_entropy: H_resp in nats, (bsz,), NaN for an empty response.
        scale: the factor on each token's logits, (bsz, T), as `logit_scale` returns it.
        dropped: whether `hold` takes the token's advantage out of the policy loss, (bsz, T) bool.
        advantages: as the policy loss takes them, (bsz, T): see `loss_advantages`.
        sums: for the metrics.
    """

    response_entropy: torch.Tensor
    scale: torch.Tensor
    dropped: torch.Tensor
    advantages: torch.Tensor
    sums: MetricSums


def decide(
    token_entropy: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    era: EraConfig,
    check: bool = True,
) -> Decision:
    """What an update does with each token of a batch, by the policy that sampled the batch.

    Every framework asks this, before the first update with these responses; a response is decided
    about by itself, so a batch may come in parts. Where several updates follow, what is decided
    travels with the batch: a later policy would decide otherwise.

    Args:
        token_entropy: of the policy that sampled, (bsz, T) in nats, any floating dtype.
        log_probs: of the tokens that were sampled, under that policy, (bsz, T).
        advantages: the trainer's, (bsz, T).
        mask: the tokens that the policy loss takes, (bsz, T), bool or 0/1.
        era: the EraConfig of the update; with a schedule `era.at(step)`.
        check: False leaves out the check of values, so that a NaN, whose scale is 1, does not end
            the training of a framework.

    Returns:
        The decision. Without `hold` nothing is dropped; with k = 1 every scale is 1; without
        `enable` neither changes anything.

    Raises:
        ValueError: another shape; with `check`, on a CPU, a value inside the mask that is not what
            the argument says, or NaN.
    """
    _check_shapes(mask, token_entropy=token_entropy, log_probs=log_probs)
    if check:
        _check_values(mask, token_entropy=token_entropy, log_probs=log_probs)
    mask = mask.bool()  # a mask in bf16 would count 601 tokens as 600
    entropy, rest = split_entropy(token_entropy, mask, era.top_fraction)
    bounds = {"low": era.low, "high": era.high, "min_advantage": era.min_advantage}
    k = era.k if era.scales_logits else 1.0
    scale = logit_scale(entropy, advantages, mask, k=k, **bounds, check=check)
    dropped = torch.zeros_like(mask)
    if era.enable and era.hold:
        # To first order a negative advantage raises the entropy H where the token is likelier than
        # exp(-H). Why below low the others go too is in docs/llm/when-it-holds.md.
        raises = log_probs + token_entropy > 0
        below, above = (entropy < era.low).unsqueeze(-1), (entropy > era.high).unsqueeze(-1)
        dropped = below | (above & raises)
        dropped &= mask & (advantages < 0)

    length = mask.sum(-1)
    top_count = forking_count(length, era.top_fraction)
    rest_count = length - top_count
    sums = MetricSums(
        response_entropy=entropy.nansum(dtype=torch.double),
        responses=(~entropy.isnan()).sum(),
        low_responses=(entropy < era.low).sum(),
        high_responses=(entropy > era.high).sum(),
        tokens=length.sum(),
        scaled_tokens=(scale != 1).sum(),
        dropped_tokens=dropped.sum(),
        top_entropy=(entropy.double() * top_count).nansum(),
        top_tokens=(top_count * ~entropy.isnan()).sum(),
        rest_entropy=(rest.double() * rest_count).nansum(),
        rest_tokens=(rest_count * ~rest.isnan()).sum(),
    )
    return Decision(entropy, scale, dropped, loss_advantages(advantages, scale, dropped, era), sums)


def loss_advantages(
    advantages: torch.Tensor, scale: torch.Tensor, dropped: torch.Tensor, era: EraConfig
) -> torch.Tensor:
    """The advantages that the policy loss takes.

    With `hold`, which is not in the paper, they are 0 for the tokens that are dropped. With
    `scale_advantages` they are the paper's A' = A / scale (after Eq. llm).

    Args:
        advantages: of the trainer, (bsz, T).
        scale, dropped: as `decide` has them, (bsz, T).
        era: the EraConfig of the update.

    Returns:
        (bsz, T); the tensor that was given where `EraConfig.changes_advantages` is False.

    Raises:
        ValueError: another shape.
    """
    _check_shapes(scale, advantages=advantages, dropped=dropped)
    if not era.changes_advantages:
        return advantages
    if era.hold:
        advantages = advantages.masked_fill(dropped, 0)
    return advantages / scale if era.scale_advantages else advantages


def update_metrics(sums: torch.Tensor) -> dict[str, float]:
    """The metrics of an update, from `MetricSums.stacked` added over all ranks."""
    of = MetricSums(*sums.tolist())
    return {
        "era/response_entropy": _ratio(of.response_entropy, of.responses),
        "era/low_fraction": _ratio(of.low_responses, of.responses),
        "era/high_fraction": _ratio(of.high_responses, of.responses),
        "era/scaled_token_fraction": _ratio(of.scaled_tokens, of.tokens),
        "era/dropped_token_fraction": _ratio(of.dropped_tokens, of.tokens),
        "era/top_entropy": _ratio(of.top_entropy, of.top_tokens),
        "era/rest_entropy": _ratio(of.rest_entropy, of.rest_tokens),
    }


# A value of the optimizer's first group, as the learning rate is, so that checkpoints have it.
COEFFICIENT = "adaptive_entropy_coeff"


def next_coefficient(
    coeff: float, entropy: float, target: float, delta: float
) -> tuple[float, float]:
    """One step of Skywork-OR1's entropy bonus (He et al. 2025, arXiv 2505.22312), a baseline.

    Args:
        coeff: c_k >= 0, 0 at the first update.
        entropy: e_k of the policy that sampled, in nats; NaN leaves c as it is.
        target: in nats.
        delta: the step of c, > 0.

    Returns:
        The coefficient of this update's bonus, c_k where e_k <= target and else 0; and c_(k+1),
        which is delta above c_k where e_k < target, and delta below it, at least 0, where e_k >
        target.
    """
    used = coeff if entropy <= target else 0.0
    step = delta * ((entropy < target) - (entropy > target))
    return used, max(0.0, coeff + step)


# A bound counts as kept while the mean H_resp of an update is at most this far below it, in nats:
# ERA acts only below the bound, so where it holds one, H_resp stays a little below.
KEPT_WITHIN = 0.1
# What is advised with hold: of 2, 4 and 8 the one that most runs had (docs/rivals/trl-hold.md).
HOLD_K = 8


class BelowLow:
    """Says when ERA has lost its bound: where most of the last 50 updates did not keep it.

    An update keeps the bound whose mean H_resp is at most KEPT_WITHIN below low. A bound of that
    size is never lost.

    Args:
        prefix: of the settings' names, as the user writes them.
    """

    def __init__(self, prefix: str = ""):
        self._lost: deque[bool] = deque(maxlen=50)  # of each update; empty when a run is resumed
        self._was_kept, self._said, self._prefix = False, False, prefix

    @property
    def fraction(self) -> float:
        """The share of the last 50 updates that lost the bound; NaN before the first one."""
        return _ratio(sum(self._lost), len(self._lost))

    def advice(self, entropy: float, era: EraConfig) -> str:
        """Count one update. Returns a line for the log, once, when the bound is lost, else "".

        Args:
            entropy: mean H_resp of the update in nats; NaN is not counted.
            era: the EraConfig of the update. Where it changes no training, ERA holds no bound, and
                there is no advice.
        """
        if math.isnan(entropy):
            return ""
        self._lost.append(entropy < era.low - KEPT_WITHIN)
        self._was_kept |= not self._lost[-1]
        too_early = len(self._lost) < 20
        if self._said or too_early or self.fraction <= 0.5 or not era.changes_training:
            return ""
        self._said = True

        def shown(name, value):
            return f"{self._prefix}{name}={value}"

        said = (
            f"ERA: in {sum(self._lost)} of the last {len(self._lost)} updates H_resp was more than "
            f"{KEPT_WITHIN} nats below {shown('low', f'{era.low:.3g}')}, and it is {entropy:.3g}"
        )
        if not self._was_kept:
            return (
                f"{said}. It was there since this training was started or resumed. If it was at "
                f"the first update too, set {self._prefix}low to 0.3 of the H_resp there "
                "(docs/when-to-use.md); else see docs/llm/when-it-holds.md."
            )
        settings: dict[str, Any] = {} if era.hold else {"hold": True}
        settings |= {"k": HOLD_K} if era.k < HOLD_K else {}
        tries = f"try {' and '.join(shown(*setting) for setting in settings.items())}"
        if not settings:
            further = "" if era.scale_advantages else f", or try {shown('scale_advantages', True)}"
            tries = f"lower the learning rate{further}"
        return f"{said}: {tries} (docs/llm/when-it-holds.md)."


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan
