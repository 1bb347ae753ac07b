# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA's configuration for language models, and what is refused beside it.

In verl the configuration is the group `actor_rollout_ref.actor.era`. It is checked before any
worker starts, in v0.4.1 by `check_trainer_config` and in 0.9 by `check` in era/verl/config.py, but
for what only a worker can see: its model's head, an update of its own, images. Both need OmegaConf,
which verl brings. In TRL the fields are era_enable, era_low, ... (era/trl.py), and OmegaConf is not
needed.

What is refused is declared once, as a `Refusal`: verl v0.4.1's below, with those that it shares
with 0.9, the others in era/refusals.py. Every framework's check ends in `refuse`, and
tools/declared.py prints docs/llm's tables.
"""

import dataclasses
import difflib
import math
import re
import sys
from typing import Any, Callable, Container, Iterable, Iterator, Mapping, NamedTuple, Optional

ACTOR = "actor_rollout_ref.actor"
CONFIG_KEY = f"{ACTOR}.era"
LOSS_KEY = f"{ACTOR}.policy_loss.loss_mode"
FORKING_KEY = f"{ACTOR}.policy_loss.forking_fraction"
BONUS_KEY = f"{ACTOR}.adaptive_entropy"
# What a key for ERA is called, wherever a user puts it: era, ERA, use_era, useEra, omega_low, and
# misspelt; but not temperature, iteration or generation.
_LOOKS_LIKE_ERA = re.compile(
    r"(?<![a-z0-9])(era|eraa|erra|ear)(?![a-z0-9])|omega_?(low|high)|entropy_?regulari[sz]ing"
)
_WITHIN_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# Of k, and of bounds in nats: far above any that acts, and far below where fp32 overflows.
_LARGEST = 1e4
_RANGES = (
    ("enable", lambda c: isinstance(c.enable, bool), "true or false"),
    ("k", lambda c: 1 <= c.k <= _LARGEST, "> 1, up to 10000, or 1 to leave the logits alone"),
    (
        "low",
        lambda c: 0 <= c.low <= _LARGEST and c.low <= c.high,
        "nats, from 0 (no bound) up to high, at most 10000",
    ),
    (
        "high",
        lambda c: c.high <= _LARGEST or c.high == math.inf,
        "nats, up to 10000, or inf for no bound",
    ),
    (
        "low_end",
        lambda c: c.low_end is None or (0 <= c.low_end <= _LARGEST and c.low_end <= c._last_high),
        "null, or nats, from 0 up to the last high, at most 10000",
    ),
    (
        "high_end",
        lambda c: c.high_end is None
        or (c.high < math.inf and c._last_low <= c.high_end <= _LARGEST),
        "null, or beside a finite high from the last low up to 10000",
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
    ("min_advantage", lambda c: 0 <= c.min_advantage <= 1e30, ">= 0, up to 1e30"),
    ("hold", lambda c: isinstance(c.hold, bool), "true or false"),
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
        low: omega_low in nats; a response below it is updated as if drawn from a sharpened policy,
            which flattens the policy.
        high: omega_high in nats, `inf` for none; a response above it is updated as if drawn from a
            flattened policy, which sharpens the policy.
        low_end, high_end: what low and high become, linearly over the first `schedule_steps`
            updates, and then stay; None leaves them as they are. The paper has no schedule.
        schedule_steps: how many updates that takes, a whole number >= 1; None without a schedule.
            An update is in verl one of the trainer's steps, however many mini-batches and epochs it
            has, and in TRL one step of the optimizer.
        k: the factor of Eq. llm, > 1, up to 1e4. Exactly 1 leaves the logits alone: the log-probs
            are upstream's, without a top-k filter, and the era/ metrics are logged.
        top_fraction: share of a response's tokens, those of highest entropy, that H_resp averages;
            in (0, 1].
        top_k: in the update, take log-probs over this many largest logits (the paper's stage 1 uses
            20); None for all.
        scale_advantages: also divide the advantage of a scaled token by its scale (the paper's
            equation for A').
        min_advantage: tokens with a larger advantage are eligible, >= 0. Eq. llm has 0.
        hold: keep some negative advantages out of the policy loss: in a response with H_resp below
            low all of them, and with H_resp above high those of tokens likelier than exp(-H), H
            being the entropy where the token was sampled. They count as if they were 0, in means
            too. Between the bounds nothing changes. With k = 1 this acts alone. Not in the paper.
        compile: let kernels that torch (CPU) or Triton (CUDA) compiles read the logits; False
            leaves them to torch's own operations.

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
    hold: bool = False
    compile: bool = True
    prefix: dataclasses.InitVar[str] = ""

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
        """Read the group. ERA is off where there is none, as for a reference policy.

        Raises:
            ValueError: a key that ERA does not have, a value of another type or out of range.
        """
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if mapping is not None and not isinstance(mapping, Mapping):
            raise ValueError(f"{CONFIG_KEY} is {mapping!r}, not a group; set {CONFIG_KEY}.enable.")
        try:
            for name, value in (mapping or {}).items():  # OmegaConf takes 2 and -1 for True
                is_switch = isinstance(getattr(cls, name, None), bool)
                if is_switch and type(value) is int and value not in (0, 1):
                    raise ValueError(f"{CONFIG_KEY}.{name} is {value}; expected true or false.")
            merged = OmegaConf.merge(OmegaConf.structured(cls), mapping or {})
            fields = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
            return cls(**fields, prefix=f"{CONFIG_KEY}.")
        except OmegaConfBaseException as error:
            key = ".".join(filter(None, (CONFIG_KEY, error.full_key)))
            raise ValueError(
                f"{key}: {str(error).splitlines()[0]} (fields: {', '.join(_FIELDS)}). Nothing was "
                "started."
            ) from None

    def _fulfils(self, name: str, holds: Callable[["EraConfig"], bool]) -> bool:
        value, is_switch = getattr(self, name), isinstance(getattr(EraConfig, name), bool)
        try:
            return isinstance(value, bool) == is_switch and holds(self)  # True is 1 to a comparison
        except TypeError:  # a comparison with a string or None, which OmegaConf would have refused
            return False

    def problems_without_enable(self, prefix: str = f"{CONFIG_KEY}.") -> list[str]:
        """What is wrong with fields that are set without `enable`, at a training's start."""
        names = [f"{prefix}{n}" for n in _FIELDS if getattr(self, n) != getattr(EraConfig, n)]
        if self.enable or not names:
            return []
        enable = f"{prefix}enable=True"
        return [
            f"{', '.join(names)} without {enable}, so that this would train without ERA. Set "
            f"{enable}, or leave ERA's other fields out."
        ]

    @property
    def _last_low(self) -> float:
        return self.low if self.low_end is None else self.low_end

    @property
    def _last_high(self) -> float:
        return self.high if self.high_end is None else self.high_end

    def at(self, step: int) -> "EraConfig":
        """The configuration of one update, with the low and high that the schedule has then.

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
        """The bounds that a schedule moves, in nats, as metrics era/low and era/high."""
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
        """Whether an update differs from upstream's, in its log-probs or its advantages."""
        return self.enable and (self.k != 1 or self.hold)

    @property
    def changes_advantages(self) -> bool:
        """Whether the policy loss takes other advantages than the trainer's."""
        return self.enable and (self.hold or (self.scale_advantages and self.k != 1))

    @property
    def scales_logits(self) -> bool:
        """Whether an update has log-probs of a transformed policy; upstream's own where not."""
        return self.enable and self.k != 1


# verl's policy losses that select tokens by the covariance of log-probs and advantages.
COVARIANCE_LOSSES = ("clip_cov", "kl_cov")


class Refusal(NamedTuple):
    """What is not supported with ERA; era/refusals.py has those of the other frameworks.

    Attributes:
        setting: what is refused, as a row of a table in docs/llm has it, in Markdown.
        why: the reason, a clause that goes on after a colon.
        instead: what to do, in the imperative, without the full stop.
        key: of verl's configuration; a message shows it with its value in the place of `setting`.
        subject: what it is not supported with, where that is not ERA.
    """

    setting: str
    why: str
    instead: str
    key: str = ""
    subject: str = ""


_MEGATRON = Refusal(
    "Megatron",
    "this is in verl's FSDP actor alone",
    "Set it to fsdp",
    f"{ACTOR}.strategy",
)
_OWN_UPDATE = Refusal(
    "an update of the recipe's own (`recipe/spin`, `recipe/sppo`)",
    "this is in verl's own update, which the recipe replaces",
    "Take a recipe with verl's own update",
)
COVARIANCES = Refusal(
    "`policy_loss.loss_mode=clip_cov`, `kl_cov`",
    "its covariances would be those of the scaled policy, or of advantages that hold sets to 0",
    "Set it to vanilla or gspo",
    LOSS_KEY,
)
BONUS_REFUSALS = {
    "bonus without k=1": Refusal(
        "`era.enable=False`, `era.k` other than 1, or `era.hold=True`",
        "the bonus takes ERA's place and reads its metrics",
        "Set era.enable=True, era.k=1 and era.hold=False",
        subject=f"`{BONUS_KEY}`",
    ),
    "bonus with a coefficient": Refusal(
        "`entropy_coeff` other than 0",
        "the bonus sets it before each update",
        "Set it to 0",
        f"{ACTOR}.entropy_coeff",
        subject=f"`{BONUS_KEY}`",
    ),
    "bonus without the optimizer": Refusal(
        "`checkpoint.save_contents` or `load_contents` without `optimizer`",
        "the bonus's coefficient is saved with the optimizer, and would start again at 0 when the "
        "training is resumed",
        "Add optimizer to both",
        subject=f"`{BONUS_KEY}`",
    ),
}
_NO_FUSED_KERNELS = "Set use_fused_kernels to False"
FUSED_REFUSALS = {  # checked by era/fused_head.py
    "another model": Refusal(
        "fused kernels with a model whose forward verl has not replaced, as a multi-modal one's, "
        "also with `k=1`",
        "ERA takes the place of verl's forward, and needs a text model with an lm_head and one of "
        "verl's kernels for fused_kernel_options.impl_backend",
        _NO_FUSED_KERNELS,
    ),
    "another head": Refusal(
        "fused kernels with a head that is more than a linear layer and a soft-cap (Cohere, "
        "Granite, RecurrentGemma, an adapter), also with `k=1`",
        "the logits are made from a linear lm_head and config.final_logit_softcapping alone",
        _NO_FUSED_KERNELS,
    ),
    "head of the reference policy": Refusal(
        "fused kernels and a KL loss with a head that has a bias or a soft-cap, also with `k=1`",
        "verl's kernel for the reference policy ignores it",
        _NO_FUSED_KERNELS,
    ),
}
_FORKING, _GSPO = f"`{FORKING_KEY}` below 1", f"`{LOSS_KEY}=gspo`"
VERL_0_4_1 = {
    "megatron": _MEGATRON._replace(
        setting="Megatron, also with `k=1`", instead="Set it to fsdp, or take era.verl in verl 0.9"
    ),
    "covariances": COVARIANCES,
    "forking": Refusal(
        "`policy_loss.forking_fraction` below 1",
        "what ERA means where most advantages are set to 0 is not defined",
        "Set it to 1",
        FORKING_KEY,
    ),
    "reference policy with Ulysses": Refusal(
        "fused kernels and Ulysses with a reference policy (KL loss, `use_kl_in_reward`), but for "
        "LoRA's",
        "v0.4.1's own log-probs of that policy are wrong at the border of each slice, with ERA or "
        "without",
        "Set use_fused_kernels, ulysses_sequence_parallel_size, or the KL loss or penalty, back",
        "actor_rollout_ref.model.use_fused_kernels",
    ),
    **FUSED_REFUSALS,
    "multi-turn": Refusal(
        "multi-turn with `algorithm.filter_groups` (`recipe/dapo`)",
        "v0.4.1's DAPO trainer never tells the actor of the loss mask, so ERA would act on tool "
        "tokens",
        "Use verl.trainer.main_ppo",
        "actor_rollout_ref.rollout.multi_turn.enable",
    ),
    "images in dynamic batches": Refusal(
        "multi-modal inputs with `use_dynamic_bsz`",
        "v0.4.1 then weighs a micro-batch by its number of keys, which ERA raises",
        "Set use_dynamic_bsz to False",
    ),
    "own update": _OWN_UPDATE._replace(setting=f"{_OWN_UPDATE.setting}, also with `k=1`"),
    "schedule without extra": Refusal(
        "`checkpoint.save_contents` or `load_contents` without `extra`",
        "ERA counts updates by the learning rate's scheduler, which v0.4.1 saves there, so the "
        "schedule would start again when the training is resumed",
        "Add extra to both",
        subject=f"`{CONFIG_KEY}.schedule_steps`",
    ),
    "forking in an own update": _OWN_UPDATE._replace(subject=_FORKING),
    "forking on megatron": _MEGATRON._replace(subject=_FORKING),
    "forking with covariances": COVARIANCES._replace(
        why="its covariances would be those of advantages that are set to 0",
        instead="Set one of them back",
        subject=_FORKING,
    ),
    "gspo on megatron": _MEGATRON._replace(subject=_GSPO),
    "gspo with another mean": Refusal(
        "`loss_agg_mode` other than seq-mean-token-mean",
        "GSPO is a mean over responses of means over tokens",
        "Set it to seq-mean-token-mean",
        f"{ACTOR}.loss_agg_mode",
        subject=_GSPO,
    ),
    **BONUS_REFUSALS,
}


_FIELDS = [field.name for field in dataclasses.fields(EraConfig)]
# Fields whose names are words that others use too.
_PLAIN_WORDS = ("enable", "low", "high", "k", "top_k", "compile")
_PLACES = {
    **{name: f"{CONFIG_KEY}.{name}" for name in _FIELDS},
    **{key.rpartition(".")[2]: key for key in (FORKING_KEY, BONUS_KEY)},
}
_OWN_NAMES = [name for name in _PLACES if name not in _PLAIN_WORDS]
# Groups of verl's in which nothing of verl's or a user's has one of the plain words.
_VERLS_GROUPS = (
    "",
    "algorithm.",
    "trainer.",
    "actor_rollout_ref.",
    f"{ACTOR}.",
    f"{ACTOR}.policy_loss.",
)


def _snake_case(name: str) -> str:
    return _WITHIN_CAMEL_CASE.sub("_", name).replace("-", "_").lower()


def _closest(name: str, names: Iterable[str]) -> list[str]:
    """The one of these names that is meant by a key, which may be misspelt after its first letter.

    lr_schedule_steps and drop_fraction are somebody else's.
    """
    name = _snake_case(name)
    return difflib.get_close_matches(name, [of for of in names if of[0] == name[:1]], 1, 0.85)


def looks_like_era(name: str) -> bool:
    """Whether a user who writes this key of a configuration means ERA, misspelt or not."""
    return bool(_LOOKS_LIKE_ERA.search(_snake_case(name)) or _closest(name, _OWN_NAMES))


def misplaced(
    config: Any, places: Container[str], groups: Container[str] = ("",), path: str = ""
) -> Iterator[str]:
    """The full keys that look like ERA's, outside of their places.

    Args:
        config: a configuration, of plain mappings and lists. What is in a group named ...kwargs is
            for somebody's own function, and is passed over.
        places: the full keys that are where they belong.
        groups: where a field of ERA's with a plain word for its name counts too: full keys with a
            dot behind them, "" for the top.
        path: of this part of the configuration, such a key.
    """
    for part in config if isinstance(config, list) else [config]:
        for name, value in part.items() if isinstance(part, Mapping) else ():
            key = f"{path}{name}"
            if key in places:
                continue
            if looks_like_era(str(name)) or (name in _FIELDS and path in groups):
                yield key
            elif not str(name).endswith("kwargs"):
                yield from misplaced(value, places, groups, f"{key}.")


def refuse_elsewhere(config: Mapping[str, Any]) -> None:
    """Refuse keys that look like ERA's outside of their places, and those that have no value.

    verl ignores a key that it does not know, so the training would go on without ERA.

    Args:
        config: verl's whole trainer configuration.

    Raises:
        ValueError: naming each such key and its place.
    """
    from omegaconf import OmegaConf

    config, problems = OmegaConf.create(config), []

    # Keys in another place than theirs, with the place that the name suggests.
    places = (CONFIG_KEY, FORKING_KEY, BONUS_KEY)
    for key in misplaced(OmegaConf.to_container(config), places, _VERLS_GROUPS):
        name = re.sub("^(era|omega)_", "", _snake_case(key.rpartition(".")[2]))
        place = next((_PLACES[of] for of in _closest(name, _PLACES)), CONFIG_KEY)
        problems.append(f"{key} would be ignored: its place is {place}.")

    # Keys in their place without a value.
    for key in (CONFIG_KEY, *_PLACES.values()):
        group, _, name = key.rpartition(".")
        group = OmegaConf.select(config, group)
        missing = OmegaConf.is_dict(group) and OmegaConf.is_missing(group, name)
        if missing or (key == CONFIG_KEY and OmegaConf.select(config, key, default={}) is None):
            problems.append(f"{key} has no value: set it, or leave it out.")
    if problems:
        raise ValueError("\n".join([*problems, "Nothing was started."]))


def refuse(
    refusals: Mapping[str, Refusal],
    present: Mapping[str, Any],
    era: str,
    problems: Iterable[str] = (),
    end: str = "Nothing was trained.",
) -> None:
    """Raise one error with everything that is refused.

    Args:
        refusals: by name.
        present: by these names, whether a training has what is refused. A text says as what, and
            stands in the message in the place of the refusal's `setting`.
        era: how ERA is switched on here.
        problems: what else is wrong, sentences that precede the refusals.
        end: what the error leaves undone, a sentence.

    Raises:
        ValueError: a refusal is present, or there is another problem.
    """
    refused: dict[str, list[str]] = {}
    for name, shown in present.items():
        if shown:
            setting, why, instead, _, subject = refusals[name]
            text = f"\n  - {shown if isinstance(shown, str) else setting}: {why}. {instead}."
            refused.setdefault(subject or era, []).append(text)
    blocks = [f"{subject} is not supported with{''.join(refused[subject])}" for subject in refused]
    blocks = [*problems, *(block.replace("`", "") for block in blocks)]
    if blocks:
        raise ValueError("\n".join([*blocks, end]))


def refuse_settings(
    config: Mapping[str, Any],
    refusals: Mapping[str, Refusal],
    present: Mapping[str, Any],
    problems: Iterable[str] = (),
) -> None:
    """`refuse` for verl's configuration: of a refusal with a key, show the key and its value."""
    from omegaconf import OmegaConf

    def shown(key: str) -> Any:
        return f"{key}={OmegaConf.select(config, key)}" if key else True

    present = {name: shown(refusals[name].key) for name in present if present[name]}
    refuse(refusals, present, f"{CONFIG_KEY}.enable=True", problems)


def check_trainer_config(config: Mapping[str, Any]) -> EraConfig:
    """Check what the overlay adds to verl v0.4.1, before any worker starts.

    Args:
        config: verl's trainer configuration (a DictConfig or nested mappings).

    Returns:
        ERA's configuration.

    Raises:
        ValueError: keys of ERA's elsewhere; bad values in ERA's group; or other bad values and
            settings that would be silently wrong, all of them.
    """
    from omegaconf import OmegaConf

    refuse_elsewhere(config)
    config = OmegaConf.create(config)

    def value(key, default=None):
        return OmegaConf.select(config, key, default=default)

    # Values that are wrong by themselves.
    era = EraConfig.from_mapping(value(CONFIG_KEY))
    loss_mode, fraction = value(LOSS_KEY), value(FORKING_KEY, 1)
    problems = bonus_problems(config) + era.problems_without_enable()
    if type(fraction) not in (int, float) or not 0 < fraction <= 1:
        expected = "a number in (0, 1], 1 for all tokens, and not a text"
        problems.append(f"{FORKING_KEY} is {fraction!r}; expected {expected}.")

    # What the refusals ask of the other settings.
    forking, covariance = fraction != 1, loss_mode in COVARIANCE_LOSSES
    megatron, gspo = value(f"{ACTOR}.strategy") == "megatron", loss_mode == "gspo"
    has_reference = value(f"{ACTOR}.use_kl_loss") or value("algorithm.use_kl_in_reward")
    has_reference = has_reference and not value("actor_rollout_ref.model.lora_rank")
    fused_reference = value("actor_rollout_ref.model.use_fused_kernels") and has_reference
    ulysses = value(f"{ACTOR}.ulysses_sequence_parallel_size", 1) > 1
    multi_turn = value("actor_rollout_ref.rollout.multi_turn.enable")
    aggregation = value(f"{ACTOR}.loss_agg_mode")

    present = {
        "megatron": megatron and era.enable,
        "forking on megatron": megatron and forking,
        "gspo on megatron": megatron and gspo,
        "forking with covariances": forking and covariance,
        "gspo with another mean": gspo and aggregation != "seq-mean-token-mean",
        "schedule without extra": era.enable
        and era.schedule_steps is not None
        and _not_in_checkpoints(config, "extra"),
        **bonus_present(config, era),
    }
    if era.changes_training:
        present |= {
            "covariances": covariance,
            "forking": forking,
            "multi-turn": multi_turn and value("algorithm.filter_groups"),
        }
    if era.scales_logits:
        present["reference policy with Ulysses"] = fused_reference and ulysses
    refuse_settings(config, VERL_0_4_1, present, problems)
    announce(era, always=False)
    return era


def bonus_problems(config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values of the adaptive entropy bonus in verl's configuration."""
    from omegaconf import OmegaConf

    bonus = OmegaConf.select(config, BONUS_KEY)
    if not bonus:
        return []
    if OmegaConf.is_dict(bonus) and set(bonus) == {"target", "delta"}:
        numbers = all(type(number) in (int, float) for number in bonus.values())
        if numbers and 0 < bonus.delta < math.inf and math.isfinite(bonus.target):
            return []
    expected = "a group with a finite target and a finite delta above 0, and nothing else"
    return [f"{BONUS_KEY} is {bonus}; expected {expected}."]


def bonus_present(config: Mapping[str, Any], era: EraConfig) -> dict[str, bool]:
    """Whether verl's configuration has what each of BONUS_REFUSALS names, by that name."""
    from omegaconf import OmegaConf

    bonus = bool(OmegaConf.select(config, BONUS_KEY))
    return {
        "bonus without k=1": bonus and (not era.enable or era.changes_training),
        "bonus with a coefficient": bonus
        and OmegaConf.select(config, f"{ACTOR}.entropy_coeff") != 0,
        "bonus without the optimizer": bonus and _not_in_checkpoints(config, "optimizer"),
    }


def _not_in_checkpoints(config: Mapping[str, Any], part: str) -> bool:
    """Whether the actor's checkpoints are saved or loaded without this part."""
    from omegaconf import OmegaConf

    keys = (f"{ACTOR}.checkpoint.{does}_contents" for does in ("save", "load"))
    contents = (OmegaConf.select(config, key) for key in keys)
    return any(parts is not None and part not in parts for parts in contents)


def announce(era: EraConfig, always: bool = True) -> None:
    """Say on stderr whether ERA is on, and its fields.

    Args:
        era: the configuration.
        always: False for upstream's own command, which says nothing where ERA is off.
    """
    is_meter = era.enable and not era.changes_training
    note = "; k=1 without hold only logs metrics" if is_meter else ""
    if always or era.enable:
        print(f"ERA is {'on' if era.enable else 'off'}: {era}{note}", file=sys.stderr)
