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
"""Entropy Regularizing Activation (ERA) for language-model policies: mathematics, configuration.

ERA acts after sampling. A response whose forking tokens have too little entropy is updated as if
its positive-advantage tokens had been drawn from a sharpened policy, one with too much as if from a
flattened policy (paper, Eq. llm):

    z' = k z    if H_resp < low  and A_t > 0
    z' = z / k  if H_resp > high and A_t > 0
    z' = z      otherwise

All entropies are in nats. This file needs only torch and the standard library. EraConfig and
validate_trainer_config read verl's configuration; what moves these quantities through verl's actor
is in verl/utils/era_fsdp.py of a patched checkout.
"""

import dataclasses
import math
from fractions import Fraction
from typing import Any, Callable, Mapping, Optional

import torch

CONFIG_KEY = "actor_rollout_ref.actor.era"

# verl's policy losses that select tokens by the covariance of log-probs and advantages.
COVARIANCE_LOSSES = ("clip_cov", "kl_cov")


@dataclasses.dataclass(frozen=True)
class EraConfig:
    """The hydra group `actor_rollout_ref.actor.era`, validated on construction.

    Attributes:
        enable: False leaves verl as it is upstream.
        low: omega_low in nats; a response below it is sharpened.
        high: omega_high in nats, `inf` for none; a response above it is flattened.
        k: the factor of Eq. llm, > 1. Exactly 1 changes nothing in the training and only logs the
            era/ metrics.
        top_fraction: share of a response's tokens, those of highest entropy, that H_resp averages;
            in (0, 1].
        top_k: in the update, take log-probs over this many largest logits (the paper's stage 1 uses
            20); None for all.
        scale_advantages: also divide the advantage of a scaled token by its scale (the paper's
            equation for A').
        min_advantage: tokens with a larger advantage are eligible, >= 0. Eq. llm has 0.
        entropy_coeff_delta: with k = 1, the step of an entropy bonus whose coefficient follows the
            entropy, see `adapt_entropy_coeff`; its target is low. 0 for none.
        triton: False leaves the logits to torch where Triton's kernels could read them (CUDA).

    Raises:
        ValueError: names the full hydra key, the value and what was expected, of all that is wrong.
    """

    enable: bool = False
    low: float = 0.45
    high: float = 3.0
    k: float = 2.0
    top_fraction: float = 0.2
    top_k: Optional[int] = None
    scale_advantages: bool = False
    min_advantage: float = 0.0
    entropy_coeff_delta: float = 0.0
    triton: bool = True

    def __post_init__(self):
        problems = []

        def require(condition, name, expected):
            if not condition:
                problems.append(
                    f"{CONFIG_KEY}.{name} is {getattr(self, name)!r}; expected {expected}."
                )

        for name in ("enable", "scale_advantages", "triton"):
            require(isinstance(getattr(self, name), bool), name, "True or False")
        floats = [field.name for field in dataclasses.fields(self) if field.type is float]
        numbers = {name: _is_number(getattr(self, name)) for name in floats}
        for name, is_number in numbers.items():
            require(
                is_number,
                name,
                "a number (infinity is written .inf in YAML, inf on the command line)",
            )
        require(
            not numbers["k"] or 1 <= self.k < math.inf,
            "k",
            "a finite number > 1, or 1 to log without changing the training",
        )
        require(
            not numbers["low"] or math.isfinite(self.low),
            "low",
            "a finite number (0 for no lower bound)",
        )
        require(
            not (numbers["low"] and numbers["high"]) or self.low <= self.high,
            "low",
            f"at most {CONFIG_KEY}.high, which is {self.high}",
        )
        require(
            not numbers["top_fraction"] or 0 < self.top_fraction <= 1,
            "top_fraction",
            "a fraction in (0, 1]",
        )
        require(
            not numbers["min_advantage"] or 0 <= self.min_advantage < math.inf,
            "min_advantage",
            "a finite number >= 0",
        )
        require(
            not numbers["entropy_coeff_delta"] or 0 <= self.entropy_coeff_delta < math.inf,
            "entropy_coeff_delta",
            "a finite number >= 0",
        )
        require(
            not self.entropy_coeff_delta or self.k == 1,
            "k",
            f"1 with {CONFIG_KEY}.entropy_coeff_delta: the bonus holds the entropy in ERA's place",
        )
        is_count = (
            isinstance(self.top_k, int) and not isinstance(self.top_k, bool) and self.top_k >= 1
        )
        require(self.top_k is None or is_count, "top_k", "null or a whole number >= 1")
        if problems:
            raise ValueError("\n".join(problems))

    @classmethod
    def from_mapping(cls, mapping: Optional[Mapping[str, Any]]) -> "EraConfig":
        """Read the hydra group. ERA is off without it (an older recipe, a reference policy)."""
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ValueError(f"{CONFIG_KEY} is {mapping!r}, not a group; set {CONFIG_KEY}.enable.")
        fields = dict(mapping or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise ValueError(
                    f"{CONFIG_KEY}.{name} is not a field of ERA; the fields are {', '.join(known)}."
                )
        return cls(**fields)

    @property
    def changes_training(self) -> bool:
        return self.enable and self.k != 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def validate_trainer_config(config: Mapping[str, Any]) -> EraConfig:
    """Check a whole verl trainer configuration before any worker starts.

    Args:
        config: verl's trainer configuration (a DictConfig or nested mappings).

    Returns:
        The validated ERA configuration.

    Raises:
        ValueError: a bad value in the group, or ERA together with a setting under which it would be
            unsound. All such settings are named at once.
    """
    actor = config["actor_rollout_ref"]["actor"]
    era = EraConfig.from_mapping(actor.get("era"))
    if not era.enable:
        return era
    if actor["strategy"] == "megatron":
        raise ValueError(
            f"{CONFIG_KEY}.enable=True needs the FSDP actor, but "
            "actor_rollout_ref.actor.strategy is megatron. Nothing was started."
        )
    if era.entropy_coeff_delta and actor["entropy_coeff"] != 0:
        raise ValueError(
            f"actor_rollout_ref.actor.entropy_coeff is {actor['entropy_coeff']}, but "
            f"{CONFIG_KEY}.entropy_coeff_delta={era.entropy_coeff_delta} sets it before each "
            "update; expected 0. Nothing was started."
        )
    if not era.changes_training:
        return era

    rollout, model = config["actor_rollout_ref"]["rollout"], config["actor_rollout_ref"]["model"]
    policy_loss = actor["policy_loss"]
    problems = []
    if policy_loss["loss_mode"] in COVARIANCE_LOSSES:
        problems.append(
            f"actor_rollout_ref.actor.policy_loss.loss_mode={policy_loss['loss_mode']}: its "
            "covariances would be those of the scaled policy, set it to vanilla or gspo"
        )
    if policy_loss.get("forking_fraction", 1) != 1:
        problems.append(
            "actor_rollout_ref.actor.policy_loss.forking_fraction="
            f"{policy_loss['forking_fraction']}: what ERA means where most advantages are set to 0 "
            "is not defined, set it to 1"
        )
    ulysses = actor.get("ulysses_sequence_parallel_size", 1)
    uses_kl = actor["use_kl_loss"] or config["algorithm"].get("use_kl_in_reward")
    has_reference = uses_kl and not model.get("lora_rank")  # with LoRA the actor makes them
    if model.get("use_fused_kernels") and ulysses > 1 and has_reference:
        problems.append(
            "actor_rollout_ref.model.use_fused_kernels=True with "
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={ulysses} and a KL loss or "
            "penalty: the reference policy's log-probs are upstream's, and v0.4.1's fused kernels "
            "roll the labels inside each rank's slice, so that those at its border are of wrong "
            "tokens; set one of the three to its default"
        )
    if (rollout.get("multi_turn") or {}).get("enable") and config["algorithm"].get("filter_groups"):
        problems.append(
            "actor_rollout_ref.rollout.multi_turn.enable=True with algorithm.filter_groups: "
            "v0.4.1's DAPO trainer never tells the actor of the loss mask, so ERA would act "
            "on tool tokens; use verl.trainer.main_ppo"
        )
    if problems:
        raise ValueError(
            f"{CONFIG_KEY}.enable=True does not go together with\n  - "
            + "\n  - ".join(problems)
            + "\nNothing was started."
        )
    return era


# Of transformers' configurations: what else multiplies or caps the logits of some models.
_OTHER_HEADS = ("logit_scale", "logits_scaling", "lm_head_multiplier", "logits_soft_cap")


class FusedHead:
    """The head of a model whose forward verl has replaced for fused kernels.

    With `replace` another forward takes the place of verl's, and passes the `arguments` to the
    fused functions of era.log_probs.

    Args:
        module: what verl trains; the model is in it.
        use_kl_loss: whether there is a reference policy, whose log-probs verl's own kernel makes.

    Raises:
        ValueError: verl has not replaced the model's forward; its logits are more than a linear
            layer and a soft-cap; or verl's kernel, for a reference policy, would ignore a part.
    """

    def __init__(self, module: torch.nn.Module, use_kl_loss: bool):
        fused = f"{CONFIG_KEY}.enable=True with actor_rollout_ref.model.use_fused_kernels=True"
        to_do = "Set use_fused_kernels to False. Nothing was trained."
        for model in module.modules():
            self._forward_globals = getattr(type(model).forward, "__globals__", {})
            if "forward_base_model" in self._forward_globals and hasattr(model, "lm_head"):
                break
        else:
            raise ValueError(
                f"{fused} needs a text model with an lm_head whose forward verl has replaced. This "
                "is another model, or fused_kernel_options.impl_backend is none of verl's kernels. "
                f"{to_do}"
            )
        self._model, config = model, model.config.get_text_config()
        head, self.softcap = model.lm_head, getattr(config, "final_logit_softcapping", None)
        others = {name: getattr(config, name, None) for name in _OTHER_HEADS}
        found = [f"config.{name} is {v}" for name, v in others.items() if v not in (None, 1)]
        if not isinstance(head, torch.nn.Linear):
            found.append(f"lm_head is a {type(head).__name__}")
        elif use_kl_loss:
            ignored = {"lm_head.bias": head.bias, "config.final_logit_softcapping": self.softcap}
            found += [
                f"{name}, which verl's kernel for the reference policy of the KL loss ignores"
                for name, value in ignored.items()
                if value is not None
            ]
        if found:
            raise ValueError(
                f"{fused} makes the logits of {type(model).__name__} from a linear lm_head and "
                f"config.final_logit_softcapping alone, but it has {', and '.join(found)}. {to_do}"
            )

    def replace(self, forward: Callable) -> None:
        self._model.forward = forward

    def restore(self) -> None:
        del self._model.forward

    def arguments(self, **inputs) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, Any]]:
        """Hidden states (bsz, seqlen, width) and weight, and bias and soft-cap, by name.

        To be called in the model's forward, where FSDP has gathered the weight.

        Args:
            inputs: those of the model, without those of verl's kernel.
        """
        hidden = self._forward_globals["forward_base_model"](self._model, **inputs)[0]
        head = self._model.lm_head
        return (hidden, head.weight), {"bias": head.bias, "softcap": self.softcap}


def forking_count(length: torch.Tensor, top_fraction: float) -> torch.Tensor:
    """How many tokens H_resp averages: max(1, floor(top_fraction x length)), 0 of 0.

    Exact: in floating point 0.29 x 100 is 28.999..., whose floor is one too low. The fraction is
    the one of at most nine digits that is nearest, so that 0.29 is 29 / 100.
    """
    exact = Fraction(top_fraction).limit_denominator(10**9)
    count = length.long() * exact.numerator // exact.denominator
    return count.clamp(min=1).minimum(length)


def split_entropy(
    entropy: torch.Tensor, response_mask: torch.Tensor, top_fraction: float = 0.2
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean entropy of each response's forking tokens and of its other tokens.

    Args:
        entropy: (bsz, response_length) token entropies in nats; values outside the mask are
            ignored, NaN included.
        response_mask: (bsz, response_length), bool or 0/1.
        top_fraction: share of the tokens, those of highest entropy, that count as forking; at least
            one of them.

    Returns:
        Two tensors (bsz,) of entropy's dtype: the mean over the max(1, floor(top_fraction x
        length)) largest entropies, and the mean over the rest; NaN where there is no such token.
    """
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

    Args and dtypes as `split_entropy`.

    Returns:
        (bsz,) in nats; NaN for an empty response.
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
        low, high: omega_low <= omega_high in nats.
        k: the factor, >= 1.
        min_advantage: only tokens with a larger advantage are scaled.

    Returns:
        (bsz, response_length), fp32 (fp64 for fp64 advantages): k, 1/k or 1.
    """
    eligible = response_mask.bool() & (advantages > min_advantage)
    entropy = response_entropy.unsqueeze(-1)
    scale = torch.ones_like(advantages, dtype=torch.promote_types(advantages.dtype, torch.float32))
    scale.masked_fill_(eligible & (entropy < low), k)
    scale.masked_fill_(eligible & (entropy > high), 1 / k)
    return scale


def adapt_entropy_coeff(
    coeff: float, entropy: float, target: float, delta: float
) -> tuple[float, float]:
    """The controller of Skywork-OR1 (He et al. 2025, arXiv 2505.22312) for an entropy bonus.

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


def metric_sums(
    era: EraConfig,
    entropy: torch.Tensor,
    rest: torch.Tensor,
    mask: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    """What the metrics of an update need of one rank; sum it over the ranks for `update_metrics`.

    Args:
        era: low, high and top_fraction.
        entropy, rest: as `split_entropy` returns them, (bsz,) in nats.
        mask: response tokens, (bsz, T).
        scale: as `logit_scale` returns it, (bsz, T).

    Returns:
        Sums and counts, (10,) in fp64.
    """
    length = mask.sum(-1)
    top_count = forking_count(length, era.top_fraction)
    rest_count = length - top_count
    known = ~entropy.isnan()
    sums = [
        entropy.nansum(dtype=torch.double),
        (entropy < era.low).sum(),
        (entropy > era.high).sum(),
        known.sum(),
        (scale != 1).sum(),
        length.sum(),
        (entropy.double() * top_count).nansum(),
        (top_count * known).sum(),
        (rest.double() * rest_count).nansum(),
        (rest_count * ~rest.isnan()).sum(),
    ]
    return torch.stack([one.double() for one in sums])


def update_metrics(sums: torch.Tensor) -> dict[str, float]:
    """From `metric_sums`: means over responses (H_resp, fractions) and over tokens (the others)."""
    total, low, high, responses, scaled, tokens, top, top_tokens, rest, rest_tokens = sums.tolist()
    return {
        "era/response_entropy": _ratio(total, responses),
        "era/low_fraction": _ratio(low, responses),
        "era/high_fraction": _ratio(high, responses),
        "era/scaled_token_fraction": _ratio(scaled, tokens),
        "era/top_entropy": _ratio(top, top_tokens),
        "era/rest_entropy": _ratio(rest, rest_tokens),
    }


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan
