# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The actor's configurations with the group `era`, and what ERA does not go together with."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf, open_dict
from verl.workers import config as verl_config

from era.language_config import (
    ACTOR,
    BONUS_KEY,
    CONFIG_KEY,
    COVARIANCE_LOSSES,
    SCALED_COVARIANCES,
    EraConfig,
    bonus_rules,
    refuse,
    refuse_elsewhere,
)

# By verl's trainer mode, the one of the same trainer with ERA's workers.
TRAINER_MODES = {"sync": "era", "colocate_async": "era_colocate_async"}
# What ERA's trainer tells its workers with an update: how many updates of the actor were before it.
UPDATES_BEFORE = "era_updates_before"

# In a configuration with ERA, the engine's name ends in this text. verl does not know such an engine, and only ERA's
# worker removes the text, so a run that asked for ERA and has a plain worker ends when the worker is built, showing it.
NEEDS_ERA_WORKER = (
    f" with {CONFIG_KEY}.enable=True, in a worker that is not ERA's. Start with python -m era.verl.main_ppo; for a "
    "launcher of your own see docs/llm/verl-0.9.md. Nothing was trained."
)


FSDP_TURBO = "fsdp_turbo"  # since verl 0.9.1
# By strategy, verl's engines beside FSDPEngineWithLMHead.
OTHER_ENGINES = {
    "megatron": "MegatronEngineWithLMHead",
    "veomni": "VeOmniEngineWithLMHead",
    FSDP_TURBO: "FSDPTurboEngineWithLMHead",
}
# Those whose logits ERA reaches through the temperature: they take one for each response, so the tokens of a response
# must have one scale. The others have an engine of ERA's, with a scale for each token.
SCALES_RESPONSES = {"veomni"}

FUSED_KERNELS = "actor_rollout_ref.model.use_fused_kernels"
ONE_TEMPERATURE = "those kernels take one temperature for all responses"
WITHOUT_FUSED_KERNELS = (
    f"{ONE_TEMPERATURE}. Without them a micro-batch's logits take memory, tokens x vocabulary / tensor parallelism x 4 "
    "bytes; ERA reads them once, without a copy, and verl copies them where it takes entropies"
)

# Those of verl's advantage estimators that sum the rewards of a response and give all of its tokens one advantage.
RESPONSE_ADVANTAGES = (
    *("grpo", "grpo_vectorized", "grpo_passk", "gdpo", "rloo", "rloo_vectorized", "opo", "gpg"),
    "reinforce_plus_plus_baseline",
)


@dataclasses.dataclass
class _WithEra:
    """The group `era` for one of verl's classes for `actor_rollout_ref.actor`, which refuse that key.

    Attributes:
        era: the keys of `era.language_config.EraConfig`.
        adaptive_entropy: empty, or `target` in nats and `delta` of the adaptive entropy bonus, a baseline.
    """

    era: dict[str, Any] = dataclasses.field(default_factory=dict)
    adaptive_entropy: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        if EraConfig.from_mapping(self.era).enable:
            object.__setattr__(self.engine, "strategy", self.strategy + NEEDS_ERA_WORKER)


@dataclasses.dataclass
class FSDPActorConfig(_WithEra, verl_config.FSDPActorConfig):
    """Raises ValueError on construction, for a bad key or value in the group, with the full key."""


@dataclasses.dataclass
class McoreActorConfig(_WithEra, verl_config.McoreActorConfig):
    """As FSDPActorConfig, for Megatron."""


@dataclasses.dataclass
class VeOmniActorConfig(_WithEra, verl_config.VeOmniActorConfig):
    """As FSDPActorConfig, for VeOmni."""


# By class of configuration, the engines that it is for.
STRATEGIES = {
    "FSDPActorConfig": ("fsdp", "fsdp2", FSDP_TURBO),
    "McoreActorConfig": ("megatron",),
    "VeOmniActorConfig": ("veomni",),
}
ACTOR_CONFIGS = {f"verl.workers.config.{name}": f"era.verl.config.{name}" for name in STRATEGIES}


def prepare(config: Any) -> EraConfig:
    """Check a whole trainer configuration and, with ERA enabled, name ERA's classes in it.

    Args:
        config: verl's trainer configuration, a DictConfig. With ERA enabled its actor's `_target_` and its trainer mode
            change; without, the group `era` is taken out where verl's own class would refuse it.

    Returns:
        The validated ERA configuration.

    Raises:
        ValueError: bad values in the group; keys of ERA's elsewhere; or settings that ERA does not go together with,
            all of them.
    """
    refuse_elsewhere(OmegaConf.to_container(config))
    actor = config.actor_rollout_ref.actor
    era = EraConfig.from_mapping(actor.get("era"))
    if era.enable:
        _replace_fused_kernels(config, era)
        check(config, era)
        actor._target_ = ACTOR_CONFIGS.get(actor._target_, actor._target_)
        mode = config.trainer.v1.trainer_mode
        config.trainer.v1.trainer_mode = TRAINER_MODES.get(mode, mode)
        return era
    refuse(config, bonus_rules(config, era))
    if actor._target_ not in ACTOR_CONFIGS.values():
        with open_dict(actor):
            actor.pop("era", None)
            actor.pop("adaptive_entropy", None)
    return era


def check(config: Mapping[str, Any], era: EraConfig) -> None:
    """Refuse, in one error, all settings with which ERA would be unsound or silently absent.

    Args:
        config: verl's trainer configuration.
        era: with `enable` True.

    Raises:
        ValueError: each setting with its key, its value, the reason and what to set.
    """
    actor, trainer = config["actor_rollout_ref"]["actor"], config["trainer"]
    target, strategy, loss_mode = actor["_target_"], actor["strategy"], actor["policy_loss"]["loss_mode"]
    mode = trainer["v1"]["trainer_mode"]
    known_target = target in {*ACTOR_CONFIGS, *ACTOR_CONFIGS.values()}
    engines = STRATEGIES.get(target.rpartition(".")[2], ()) if known_target else ()
    rules = [
        (
            not trainer["use_v1"],
            "trainer.use_v1",
            "the legacy trainer drops the token entropies before the update; set it to True",
        ),
        (
            mode == "separate_async",
            "trainer.v1.trainer_mode",
            "its updates are single steps, but its old log-probs are of weights from before the first of several, so "
            "ERA would set a ratio to 1 that is not; set it to sync or colocate_async",
        ),
        (
            mode not in ("separate_async", *TRAINER_MODES, *TRAINER_MODES.values()),
            "trainer.v1.trainer_mode",
            "never tried with ERA; set it to sync or colocate_async",
        ),
        (
            config["algorithm"]["rollout_correction"]["bypass_mode"],
            "algorithm.rollout_correction.bypass_mode",
            "it skips the pass that makes the token entropies; set it to False",
        ),
        (
            config["distillation"]["enabled"],
            "distillation.enabled",
            "its loss is not the one that ERA changes; set it to False",
        ),
        (
            not known_target,
            f"{ACTOR}._target_",
            "only verl's FSDP, Megatron and VeOmni engines apply ERA; set model_engine to dp, megatron or veomni",
        ),
        (
            known_target and strategy not in engines,
            f"{ACTOR}.strategy",
            f"not an engine of {target}; set model_engine to dp, megatron or veomni, and not the strategy",
        ),
        (
            strategy == FSDP_TURBO and config["actor_rollout_ref"]["model"]["use_fused_kernels"],
            FUSED_KERNELS,
            f"ERA replaces the model's forward for them, and {FSDP_TURBO} rewrites it; set it to False",
        ),
        *bonus_rules(config, era),
        (
            actor.get("adaptive_entropy") and strategy not in STRATEGIES["FSDPActorConfig"],
            BONUS_KEY,
            "its coefficient would not be in the checkpoints of this engine; set model_engine to dp",
        ),
        (era.changes_training and loss_mode in COVARIANCE_LOSSES, f"{ACTOR}.policy_loss.loss_mode", SCALED_COVARIANCES),
        (
            era.changes_training and loss_mode == "bypass_mode",
            f"{ACTOR}.policy_loss.loss_mode",
            "its old log-probs are the sampler's, not those of the scaled policy; set it to vanilla or gspo",
        ),
    ]
    if era.changes_training and strategy in engines and strategy in ("megatron", "veomni"):
        rules += _beyond_fsdp(config, era)
    refuse(config, rules)


def _replace_fused_kernels(config: Any, era: EraConfig) -> None:
    """On Megatron, set them to False and say so."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if era.changes_training and actor.strategy == "megatron" and model.use_fused_kernels:
        model.use_fused_kernels = False
        print(f"ERA: {FUSED_KERNELS} is now False, not True: {WITHOUT_FUSED_KERNELS}.", file=sys.stderr)


def _beyond_fsdp(config: Mapping[str, Any], era: EraConfig) -> list[tuple[Any, str, str]]:
    """Rules about what ERA cannot do on Megatron, or by a temperature for each response."""
    actor, estimator = config["actor_rollout_ref"]["actor"], config["algorithm"]["adv_estimator"]
    strategy = actor["strategy"]
    engine = actor[strategy]
    rules = [
        (
            config["actor_rollout_ref"]["model"]["use_fused_kernels"],
            FUSED_KERNELS,
            f"{WITHOUT_FUSED_KERNELS if strategy == 'megatron' else ONE_TEMPERATURE}; set it to False",
        ),
        (
            engine["router_replay"]["mode"] == "R2",
            f"{ACTOR}.{strategy}.router_replay.mode",
            "the pass for the old log-probs of the scaled policy would record routes; set it to R3 or disabled",
        ),
        (
            engine.get("dynamic_context_parallel"),
            f"{ACTOR}.{strategy}.dynamic_context_parallel",
            "one rank of a group alone gets the old log-probs of the scaled policy; set it to False",
        ),
    ]
    if strategy in SCALES_RESPONSES:
        rules += _beyond_temperature(actor, estimator, era)
    return [(holds, key, f"on {strategy} {reason}, or model_engine to dp") for holds, key, reason in rules]


def _beyond_temperature(actor: Mapping[str, Any], estimator: str, era: EraConfig) -> list[tuple[Any, str, str]]:
    """Rules about what a temperature for each response cannot express."""
    return [
        (
            estimator not in RESPONSE_ADVANTAGES,
            "algorithm.adv_estimator",
            f"its advantages can differ within a response; set it to one of {', '.join(RESPONSE_ADVANTAGES)}",
        ),
        (era.top_k is not None, f"{CONFIG_KEY}.top_k", "verl has no such filter; set it to null"),
        (actor["use_kl_loss"], f"{ACTOR}.use_kl_loss", "its KL would be the scaled policy's; set it to False"),
        (actor["entropy_coeff"], f"{ACTOR}.entropy_coeff", "the entropy would be the scaled policy's; set it to 0"),
        (
            actor["calculate_entropy"],
            f"{ACTOR}.calculate_entropy",
            "the entropy would be the scaled policy's; set it to False",
        ),
    ]
