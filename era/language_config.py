# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA's configuration for language models, and the settings of verl that it refuses.

In verl the configuration is the group `actor_rollout_ref.actor.era`. A run is checked before any
worker starts, in v0.4.1 by `check_trainer_config` and in 0.9 by `check` in era/verl/config.py. Both
need OmegaConf, which verl brings. In TRL the fields are era_enable, era_low, ... (era/trl.py), and
OmegaConf is not needed.
"""

import dataclasses
import logging
import math
import re
import sys
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

ACTOR = "actor_rollout_ref.actor"
CONFIG_KEY = f"{ACTOR}.era"
FORKING_KEY = f"{ACTOR}.policy_loss.forking_fraction"
BONUS_KEY = f"{ACTOR}.adaptive_entropy"
# What a key for ERA is called, wherever a user puts it: era, ERA, use_era, useEra, omega_low; but
# not temperature, iteration or generation.
_LOOKS_LIKE_ERA = re.compile(r"(?<![a-z0-9])era(?![a-z0-9])|omega_?(low|high)", re.IGNORECASE)
_WITHIN_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# verl's policy losses that select tokens by the covariance of log-probs and advantages.
COVARIANCE_LOSSES = ("clip_cov", "kl_cov")
SCALED_COVARIANCES = (
    f"with {CONFIG_KEY}.enable=True its covariances would be those of the scaled policy; set it to "
    "vanilla or gspo"
)

_RANGES = (
    ("enable", lambda c: isinstance(c.enable, bool), "true or false"),
    ("k", lambda c: 1 <= c.k < math.inf, "finite and > 1, or 1 to log without changing anything"),
    ("low", lambda c: math.isfinite(c.low) and c.low <= c.high, "finite (0 for no bound), <= high"),
    ("high", lambda c: not math.isnan(c.high), "a number, inf for no bound"),
    (
        "low_end",
        lambda c: c.low_end is None or (math.isfinite(c.low_end) and c.low_end <= c._last_high),
        "null, or finite and <= the last high",
    ),
    (
        "high_end",
        lambda c: c.high_end is None
        or (math.isfinite(c.high_end + c.high) and c.high_end >= c._last_low),
        "null, or finite beside a finite high and >= the last low",
    ),
    (
        "schedule_steps",
        lambda c: (c.schedule_steps is None) == (c.low_end is None and c.high_end is None)
        and (c.schedule_steps is None or (type(c.schedule_steps) is int and c.schedule_steps >= 1)),
        "a whole number >= 1 with low_end or high_end, and null without both",
    ),
    ("top_fraction", lambda c: 0 < c.top_fraction <= 1, "a fraction in (0, 1]"),
    (
        "top_k",
        lambda c: c.top_k is None or (isinstance(c.top_k, int) and c.top_k >= 1),
        "null or a whole number >= 1",
    ),
    ("min_advantage", lambda c: 0 <= c.min_advantage < math.inf, "finite and >= 0"),
    ("scale_advantages", lambda c: isinstance(c.scale_advantages, bool), "true or false"),
    ("compile", lambda c: isinstance(c.compile, bool), "true or false"),
)


@dataclasses.dataclass(frozen=True)
class EraConfig:
    """What ERA does in the update of a language model.

    Args:
        prefix: what precedes a field's name where a user sets it; error messages include it.

    Attributes:
        enable: False leaves the trainer as it is upstream.
        low: omega_low in nats; a response below it is sharpened.
        high: omega_high in nats, `inf` for none; a response above it is flattened.
        low_end, high_end: what low and high become, linearly over the first `schedule_steps`
            updates, and then stay; None leaves them as they are. The paper has no schedule.
        schedule_steps: whole number >= 1; None without a schedule.
        k: the factor of Eq. llm, > 1. Exactly 1 changes nothing in the training and only logs the
            era/ metrics.
        top_fraction: share of a response's tokens, those of highest entropy, that H_resp averages;
            in (0, 1].
        top_k: in the update, take log-probs over this many largest logits (the paper's stage 1 uses
            20); None for all.
        scale_advantages: also divide the advantage of a scaled token by its scale (the paper's
            equation for A').
        min_advantage: tokens with a larger advantage are eligible, >= 0. Eq. llm has 0.
        compile: let kernels that torch (CPU) or Triton (CUDA) compiles read the logits; False
            leaves them to torch's own operations. `triton` is an older name of this field.

    Raises:
        ValueError: values out of range, all of them, with their full keys.
    """

    enable: bool = False
    low: float = 0.45
    high: float = 3.0
    low_end: Optional[float] = None
    high_end: Optional[float] = None
    schedule_steps: Optional[int] = None
    k: float = 2.0
    top_fraction: float = 0.2
    top_k: Optional[int] = None
    scale_advantages: bool = False
    min_advantage: float = 0.0
    compile: bool = True
    prefix: dataclasses.InitVar[str] = f"{CONFIG_KEY}."

    def __post_init__(self, prefix):
        wrong = [
            f"{prefix}{name} is {getattr(self, name)!r}; expected {expected}."
            for name, holds, expected in _RANGES
            if not self._fulfils(name, holds)
        ]
        if wrong:
            raise ValueError("\n".join(wrong))

    @classmethod
    def from_mapping(cls, mapping: Optional[Mapping[str, Any]]) -> "EraConfig":
        """Read the group. ERA is off where there is none (an older recipe, a reference policy).

        Raises:
            ValueError: a key that ERA does not have, a value of another type or out of range.
        """
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if mapping is not None and not isinstance(mapping, Mapping):
            raise ValueError(f"{CONFIG_KEY} is {mapping!r}, not a group; set {CONFIG_KEY}.enable.")
        if mapping and "triton" in mapping:
            logging.getLogger(__name__).warning(
                "%s.triton is now called %s.compile.", CONFIG_KEY, CONFIG_KEY
            )
            mapping = {"compile" if key == "triton" else key: mapping[key] for key in mapping}
        try:
            return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), mapping or {}))
        except OmegaConfBaseException as error:
            key = ".".join(filter(None, (CONFIG_KEY, error.full_key)))
            fields = ", ".join(field.name for field in dataclasses.fields(cls))
            raise ValueError(
                f"{key}: {str(error).splitlines()[0]} (fields: {fields}). Nothing was started."
            ) from None

    def _fulfils(self, name: str, holds: Callable[["EraConfig"], bool]) -> bool:
        value, is_switch = getattr(self, name), isinstance(getattr(EraConfig, name), bool)
        try:
            return isinstance(value, bool) == is_switch and holds(self)  # True is 1 to a comparison
        except TypeError:  # a comparison with a string or None, which OmegaConf would have refused
            return False

    @property
    def _last_low(self) -> float:
        return self.low if self.low_end is None else self.low_end

    @property
    def _last_high(self) -> float:
        return self.high if self.high_end is None else self.high_end

    def at(self, step: int) -> "EraConfig":
        """The configuration of one update, its low and high where the schedule has them then.

        Args:
            step: how many updates the training has made before, >= 0, those before it was resumed
                included. Without a schedule it does not matter.
        """
        if self.schedule_steps is None:
            return self
        share = min(step / self.schedule_steps, 1.0)

        def between(start: float, end: Optional[float]) -> float:
            # Exactly `end` at the end; a start of inf has no end.
            return start if end is None else (1 - share) * start + share * end

        low, high = between(self.low, self.low_end), between(self.high, self.high_end)
        return dataclasses.replace(self, low=low, high=high)

    @property
    def scheduled(self) -> dict[str, float]:
        """For the log: era/low and era/high, those of them that a schedule moves."""
        ends = {"low": self.low_end, "high": self.high_end}
        return {f"era/{name}": getattr(self, name) for name, end in ends.items() if end is not None}

    def schedule_exceeds(self, steps: int) -> str:
        """A warning where a training ends before its schedule does, else "".

        Args:
            steps: updates of the whole training; below 0 where the trainer does not know them.
        """
        if not self.enable or self.schedule_steps is None or not 0 <= steps < self.schedule_steps:
            return ""
        return (
            f"ERA: schedule_steps is {self.schedule_steps}, but this training has {steps} updates, "
            f"so low and high will not reach low_end={self.low_end} and high_end={self.high_end}."
        )

    @property
    def changes_training(self) -> bool:
        return self.enable and self.k != 1


def looks_like_era(name: str) -> bool:
    """Whether a user who writes this key of a configuration means ERA."""
    return bool(_LOOKS_LIKE_ERA.search(_WITHIN_CAMEL_CASE.sub("_", name)))


def refuse_elsewhere(config: Mapping[str, Any]) -> None:
    """Refuse keys that look like ERA's, and its fields, outside of their place.

    verl ignores a key that it does not know, so the training would go on without ERA.

    Args:
        config: verl's whole trainer configuration, of plain dicts.

    Raises:
        ValueError: naming each such key and its place.
    """
    places = {key.rpartition(".")[2]: key for key in (CONFIG_KEY, FORKING_KEY, BONUS_KEY)}
    fields = [field.name for field in dataclasses.fields(EraConfig)]

    def search(group: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, value in group.items():
            key, place = f"{path}{name}", places.get(str(name), CONFIG_KEY)
            beside = path in (f"{ACTOR}.", "actor_rollout_ref.") and name in fields
            if key == place:
                continue
            if name in places or beside or looks_like_era(str(name)):
                yield f"{key} would be ignored: its place is {place}."
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Mapping):
                    yield from search(one, f"{key}.")

    if found := list(search(config, "")):
        raise ValueError("\n".join([*found, "Nothing was started."]))


def refuse(config: Mapping[str, Any], rules: Iterable[tuple[Any, str, str]]) -> None:
    """Raise ValueError where rules hold, with the key, the value and the reason of each.

    Args:
        config: verl's trainer configuration.
        rules: (whether it holds, dotted key, reason and what to set).
    """
    from omegaconf import OmegaConf

    found = [
        f"{key}={OmegaConf.select(config, key)}: {reason}" for holds, key, reason in rules if holds
    ]
    if found:
        raise ValueError(
            "Settings that would be ignored, or would compute something else:\n  - "
            + "\n  - ".join(found)
            + "\nNothing was started."
        )


def check_trainer_config(config: Mapping[str, Any]) -> EraConfig:
    """Check what the overlay adds to verl v0.4.1, before any worker starts.

    Args:
        config: verl's trainer configuration (a DictConfig or nested mappings).

    Returns:
        ERA's configuration.

    Raises:
        ValueError: keys of ERA's elsewhere; bad values in ERA's group; or settings that are
            silently wrong, all of them.
    """
    from omegaconf import OmegaConf

    config = OmegaConf.create(config)
    refuse_elsewhere(OmegaConf.to_container(config))

    def value(key, default=None):
        return OmegaConf.select(config, key, default=default)

    era = EraConfig.from_mapping(value(CONFIG_KEY))
    loss_key = f"{ACTOR}.policy_loss.loss_mode"
    loss_mode, fraction = value(loss_key), value(FORKING_KEY, 1)
    forking, covariance = fraction != 1, loss_mode in COVARIANCE_LOSSES
    megatron = value(f"{ACTOR}.strategy") == "megatron"
    has_reference = value(f"{ACTOR}.use_kl_loss") or value("algorithm.use_kl_in_reward")
    has_reference = has_reference and not value("actor_rollout_ref.model.lora_rank")
    fused_reference = value("actor_rollout_ref.model.use_fused_kernels") and has_reference
    ulysses = value(f"{ACTOR}.ulysses_sequence_parallel_size", 1) > 1
    multi_turn = value("actor_rollout_ref.rollout.multi_turn.enable")
    fsdp = "needs the FSDP actor, but actor_rollout_ref.actor.strategy is megatron"
    rules = (
        (megatron and era.enable, f"{CONFIG_KEY}.enable", fsdp),
        (megatron and forking, FORKING_KEY, fsdp),
        (megatron and loss_mode == "gspo", loss_key, fsdp),
        (
            type(fraction) not in (int, float) or not 0 < fraction <= 1,
            FORKING_KEY,
            "expected a number in (0, 1], 1 for all tokens; a text is none",
        ),
        (
            forking and covariance,
            loss_key,
            f"its covariances would be those of advantages that {FORKING_KEY} sets to 0; set one "
            "of them back",
        ),
        (
            loss_mode == "gspo" and value(f"{ACTOR}.loss_agg_mode") != "seq-mean-token-mean",
            f"{ACTOR}.loss_agg_mode",
            "GSPO is a mean over responses of means over tokens; set it to seq-mean-token-mean",
        ),
        (era.changes_training and covariance, loss_key, SCALED_COVARIANCES),
        (
            era.changes_training and forking,
            FORKING_KEY,
            "what ERA means where most advantages are set to 0 is not defined; set it to 1",
        ),
        (
            era.changes_training and fused_reference and ulysses,
            "actor_rollout_ref.model.use_fused_kernels",
            "the reference policy's log-probs are upstream's, and v0.4.1's fused kernels roll the "
            f"labels inside each slice of {ACTOR}.ulysses_sequence_parallel_size, so that those at "
            "its border are of wrong tokens; set one of the two, or the KL loss or penalty, back",
        ),
        (
            era.changes_training and multi_turn and value("algorithm.filter_groups"),
            "actor_rollout_ref.rollout.multi_turn.enable",
            "with algorithm.filter_groups v0.4.1's DAPO trainer never tells the actor of the loss "
            "mask, so ERA would act on tool tokens; use verl.trainer.main_ppo",
        ),
        *bonus_rules(config, era),
    )
    refuse(config, rules)
    announce(era, always=False)
    return era


def bonus_rules(config: Mapping[str, Any], era: EraConfig) -> list[tuple[Any, str, str]]:
    """What the adaptive entropy bonus does not go together with, for `refuse`; none without it.

    Args:
        config: verl's trainer configuration, a DictConfig.

    Raises:
        ValueError: it is not a group of two numbers, `target` and `delta`.
    """
    from omegaconf import OmegaConf

    bonus = OmegaConf.select(config, BONUS_KEY)
    if not bonus:
        return []
    is_group = OmegaConf.is_dict(bonus) and set(bonus) == {"target", "delta"}
    is_group = is_group and all(type(one) in (int, float) for one in bonus.values())
    expected = "expected a group with two numbers, target and delta, and nothing else"
    refuse(config, [(not is_group, BONUS_KEY, expected)])
    return [
        (
            not era.enable or era.changes_training,
            BONUS_KEY,
            f"it takes ERA's place and reads its metrics; set {CONFIG_KEY}.enable=True and k=1",
        ),
        (
            not (0 < bonus.delta < math.inf and math.isfinite(bonus.target)),
            BONUS_KEY,
            "expected a finite target and a finite delta above 0",
        ),
        (
            OmegaConf.select(config, f"{ACTOR}.entropy_coeff") != 0,
            f"{ACTOR}.entropy_coeff",
            f"{BONUS_KEY} sets it before each update; set it to 0",
        ),
    ]


def announce(era: EraConfig, always: bool = True) -> None:
    """Says on stderr whether ERA is on, and its fields.

    Args:
        era: the configuration.
        always: False for upstream's own command, which says nothing of fields at their defaults.
    """
    if always or era != EraConfig():
        print(f"ERA is {'on' if era.enable else 'off'}: {era}", file=sys.stderr)
