# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Entropy Regularizing Activation (ERA) for language-model policies.

ERA acts after sampling. A response whose forking tokens have too little entropy is updated as if
its positive-advantage tokens had been drawn from a sharpened policy; with too much, as if from a
flattened policy (paper, Eq. llm):

    z' = k z    if H_resp < low  and A_t > 0
    z' = z / k  if H_resp > high and A_t > 0
    z' = z      otherwise

All entropies are in nats. This file needs only torch, the standard library and language_config.py
beside it, which has the configuration and the ranges of its values. What moves these quantities
through verl is in era/verl/worker.py, and in verl/utils/era_fsdp.py of a patched checkout.
"""

import importlib
import math
from fractions import Fraction
from typing import Any, Optional, Union

import torch

# language_config.py, beside this file; era_config.py in a patched checkout, where this is era.py.
_EraConfig = importlib.import_module(f"{__name__}_config").EraConfig


def _check(**fields: float) -> None:
    """Raise ValueError for a value that EraConfig does not allow for the field of that name."""
    _EraConfig(**fields, prefix="")


def _check_shapes(
    mask: torch.Tensor, of_responses: Optional[dict[str, torch.Tensor]] = None, **of_tokens
) -> None:
    """Raise ValueError unless the mask is (bsz, T), of_tokens are too, and of_responses (bsz,).

    torch would broadcast some other shapes, along the wrong dimension.
    """
    shape = tuple(mask.shape)
    if len(shape) != 2:
        raise ValueError(f"the mask's shape is {shape}; expected (responses, tokens).")
    expected = {"token": (shape, of_tokens), "response": (shape[:1], of_responses or {})}
    for one, (shape, tensors) in expected.items():
        for name, tensor in tensors.items():
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"the shape of {name} is {tuple(tensor.shape)}; expected {shape}, one value "
                    f"per {one}."
                )


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
    """
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
) -> torch.Tensor:
    """The factor on each token's logits, Eq. llm.

    Where A_t > min_advantage it is k if H_resp < low and 1 / k if H_resp > high; elsewhere 1.

    Args:
        response_entropy: (bsz,) H_resp in nats; NaN scales nothing.
        advantages: (bsz, response_length).
        response_mask: (bsz, response_length), bool or 0/1.
        low, high: omega_low <= omega_high in nats; low is finite, high may be inf.
        k: the factor, >= 1 and finite.
        min_advantage: only tokens with a larger advantage are scaled; finite and >= 0.

    Returns:
        (bsz, response_length), fp32 (fp64 for fp64 advantages), of k, 1/k or 1.

    Raises:
        ValueError: low, high, k or min_advantage is out of range; another shape.
    """
    _check(low=low, high=high, k=k, min_advantage=min_advantage)
    _check_shapes(response_mask, {"response_entropy": response_entropy}, advantages=advantages)
    eligible = response_mask.bool() & (advantages > min_advantage)
    entropy = response_entropy.unsqueeze(-1)
    scale = torch.ones_like(advantages, dtype=torch.promote_types(advantages.dtype, torch.float32))
    scale.masked_fill_(eligible & (entropy < low), k)
    scale.masked_fill_(eligible & (entropy > high), 1 / k)
    return scale


def loss_advantages(
    advantages: torch.Tensor, scale: Union[torch.Tensor, float], era: Any
) -> torch.Tensor:
    """The advantages that the policy loss takes.

    With `scale_advantages` they are the paper's A' = A / scale (after Eq. llm); with
    `negative_weight` negative ones are multiplied by it, which is not in the paper.

    Args:
        advantages: of the trainer. Those that are divided have the shape of scale.
        scale: as `logit_scale` returns it, or one response of it; 1 where no logits are scaled.
        era: the EraConfig of the update.

    Returns:
        The advantages; the tensor that was given where ERA is off or neither field is set.

    Raises:
        ValueError: advantages to be divided have another shape than scale.
    """
    if not era.enable:
        return advantages
    if era.negative_weight != 1:
        advantages = torch.where(advantages < 0, era.negative_weight * advantages, advantages)
    if not era.scale_advantages:
        return advantages
    if isinstance(scale, torch.Tensor) and scale.shape != advantages.shape:
        raise ValueError(
            f"the shape of advantages is {tuple(advantages.shape)}; expected {tuple(scale.shape)}, "
            "that of scale."
        )
    return advantages / scale


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


def entropy_weight(
    log_prob: torch.Tensor,
    token_entropy: torch.Tensor,
    advantages: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    """What `entropy_up` multiplies p'(a) - p(a) by; 0 where ERA does not sharpen.

    All are (bsz, T): log_prob of the chosen token under the original policy, token_entropy in nats,
    advantages as the loss takes them, scale as `logit_scale` returns it. ValueError: another shape.
    """
    _check_shapes(scale, log_prob=log_prob, token_entropy=token_entropy, advantages=advantages)
    return torch.where(scale > 1, scale * advantages * (log_prob + token_entropy), 0)


def entropy_up(
    weight: torch.Tensor, log_prob: torch.Tensor, scaled_log_prob: torch.Tensor
) -> torch.Tensor:
    """By how much ERA raises the entropies, summed over tokens; () in fp64.

    The gradient of a scaled token with respect to its logits is s A (e_a - p') = s A (e_a - p) +
    s A (p - p'), and that of H is -p (log p + H). A step of size 1 along the second part, which is
    ERA's, changes H to first order by the mean, over a drawn from p, of
    s A (p'(a) - p(a)) (log p(a) + H).

    Args:
        weight: as `entropy_weight` returns it, (bsz, T).
        log_prob, scaled_log_prob: (bsz, T), of the chosen tokens, original policy and policy of the
            update. A token that the top-k filter removed has no gradient, and counts 0.

    Raises:
        ValueError: another shape.
    """
    _check_shapes(weight, log_prob=log_prob, scaled_log_prob=scaled_log_prob)
    kept = (weight != 0) & (scaled_log_prob > -1e3)  # a removed one has -1e4: era/log_probs.py
    rise = weight.double() * (scaled_log_prob.double().exp() - log_prob.double().exp())
    return torch.where(kept, rise, 0).sum()


def metric_sums(
    entropy: torch.Tensor,
    rest: torch.Tensor,
    mask: torch.Tensor,
    scale: torch.Tensor,
    *,
    log_prob: torch.Tensor,
    token_entropy: torch.Tensor,
    advantages: torch.Tensor,
    of_trainer: torch.Tensor,
    low: float,
    high: float,
    top_fraction: float,
    up: Union[torch.Tensor, float] = 0.0,
) -> torch.Tensor:
    """This rank's sums for the metrics; all-reduce them before `update_metrics`.

    Args:
        entropy, rest: as `split_entropy` returns them, (bsz,) in nats.
        mask: response tokens, (bsz, T), bool or 0/1.
        scale: as `logit_scale` returns it, (bsz, T).
        log_prob, token_entropy, advantages: as for `entropy_weight`.
        of_trainer: the trainer's advantages, (bsz, T). Which tokens have one is decided by these,
            because a negative_weight of 0 leaves none to those whose loss it takes away.
        low, high, top_fraction: those of `logit_scale` and `split_entropy`.
        up: as `entropy_up` returns it, where it is known by now.

    Returns:
        Sums and counts, (15,) in fp64.

    Raises:
        ValueError: low, high or top_fraction is out of range; another shape.
    """
    _check(low=low, high=high)
    of_tokens = {"log_prob": log_prob, "token_entropy": token_entropy, "advantages": advantages}
    of_responses = {"entropy": entropy, "rest": rest}
    _check_shapes(mask, of_responses, scale=scale, of_trainer=of_trainer, **of_tokens)
    length = mask.bool().sum(-1)  # a mask in bf16 would count 601 tokens as 600
    top_count = forking_count(length, top_fraction)
    rest_count = length - top_count
    known = ~entropy.isnan()
    weight = scale * advantages
    taught = mask.bool() & (entropy < low).unsqueeze(-1) & (of_trainer != 0)
    log_p, h, weight = (one[taught].double() for one in (log_prob, token_entropy, weight))
    pull = log_p.exp() * (log_p + h)
    sums = [
        entropy.nansum(dtype=torch.double),
        (entropy < low).sum(),
        (entropy > high).sum(),
        known.sum(),
        (scale != 1).sum(),
        length.sum(),
        (entropy.double() * top_count).nansum(),
        (top_count * known).sum(),
        (rest.double() * rest_count).nansum(),
        (rest_count * ~rest.isnan()).sum(),
        taught.sum(),
        weight.sum(),
        pull.sum(),
        (weight * pull).sum(),
        up,
    ]
    return torch.stack([torch.as_tensor(one, device=mask.device).double() for one in sums])


def update_metrics(sums: torch.Tensor) -> dict[str, float]:
    """The metrics of `metric_sums`: three are means over responses, the others over tokens.

    era/entropy_down is by how much the rest of the policy gradient, s A (e_a - p), lowers the
    entropy of responses below low, in the units of `entropy_up`: the covariance of s A and p(a)
    (log p(a) + H), as in Cui et al. 2025 (arXiv 2505.22617), over their tokens with an advantage.
    """
    total, low, high, responses, scaled, tokens, top, top_tokens, rest, rest_tokens, *push = (
        sums.tolist()
    )
    taught, weight, pull, product, up = push
    return {
        "era/response_entropy": _ratio(total, responses),
        "era/low_fraction": _ratio(low, responses),
        "era/high_fraction": _ratio(high, responses),
        "era/scaled_token_fraction": _ratio(scaled, tokens),
        "era/top_entropy": _ratio(top, top_tokens),
        "era/rest_entropy": _ratio(rest, rest_tokens),
        "era/entropy_up": _ratio(up, tokens),
        "era/entropy_down": _ratio(product - weight * pull / max(taught, 1), tokens),
    }


class BelowLow:
    """A count of updates below omega_low, by which ERA says that it has lost the bound.

    While ERA holds the bound, H_resp may stay a little below low, where its force is. The bound
    counts as lost after 20 updates in a row below it, when H_resp is below 0.8 low.

    Attributes:
        updates: how many in a row, up to the last one, had a mean H_resp below low. It starts at 0
            when a training is resumed.

    Args:
        prefix: of the settings' names, as the user writes them.
    """

    def __init__(self, prefix: str = ""):
        self.updates, self._said, self._was_above, self._prefix = 0, False, False, prefix

    def advice(self, entropy: float, era: Any) -> str:
        """Count one update. Returns a line for the log when the bound has been lost, else "".

        Args:
            entropy: mean H_resp of the update in nats; NaN leaves the count as it is.
            era: the EraConfig of the update; a k of 1 holds no bound, and gets no advice.
        """
        low = era.low
        if entropy >= low:
            self.updates, self._said, self._was_above = 0, False, True
        self.updates += entropy < low
        if self._said or self.updates < 20 or not entropy < 0.8 * low or era.k == 1:
            return ""
        self._said = True
        names = ("low", "k", "negative_weight")
        low_is, k_is, weight_is = (f"{self._prefix}{name}" for name in names)
        said = (
            f"ERA: H_resp has been below {low_is}={low:.3g} for {self.updates} updates and is "
            f"{entropy:.3g}"
        )
        if not self._was_above:
            return (
                f"{said}, and was not above since this training was started or resumed. If it was "
                f"not at the first update either, set {low_is} to 0.3 of the H_resp there "
                "(docs/when-to-use.md); else see docs/llm/when-it-holds.md."
            )
        further = f", or try {weight_is}=0, which may cost reward" if era.negative_weight else ""
        return (
            f"{said}, so {k_is}={era.k:.3g} does not hold the bound here: raise {k_is}{further} "
            "(docs/llm/when-it-holds.md)."
        )


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan
