# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The actor's configurations with the group `era`, and the check of a whole configuration for verl 0.9.

`prepare`, which main_ppo calls, puts ERA's classes into a configuration that asks for ERA; `check`, which ERA's trainer
calls too, refuses what is not supported with it. Why, and what to do instead, is declared in era/refusals.py; the
ranges of the group's values are in era/language_config.py.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf, open_dict
from verl.workers import config as verl_config

from era.language_config import (
    CONFIG_KEY,
    COVARIANCE_LOSSES,
    EraConfig,
    bonus_present,
    bonus_problems,
    refuse_elsewhere,
    refuse_settings,
)
from era.refusals import FUSED_KERNELS, RESPONSE_ADVANTAGES, VERL_0_9

# By verl's trainer mode, the mode of the same trainer with ERA's workers.
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
# By strategy, the engines of verl that are not FSDPEngineWithLMHead.
OTHER_ENGINES = {
    "megatron": "MegatronEngineWithLMHead",
    "veomni": "VeOmniEngineWithLMHead",
    FSDP_TURBO: "FSDPTurboEngineWithLMHead",
}
# The strategies whose logits ERA reaches through the temperature: their engines take one for each response, so the
# tokens of a response must have one scale. Every other strategy has an engine of ERA's, with a scale for each token.
SCALES_RESPONSES = {"veomni"}


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

    def validate(self, n_gpus, train_batch_size, model_config=None):
        """As verl's. verl's driver calls it before Ray starts, with a part of the whole configuration."""
        super().validate(n_gpus, train_batch_size, model_config)
        if not EraConfig.from_mapping(self.era).enable or not OmegaConf.is_config(model_config):
            return
        mode = OmegaConf.select(model_config, "...trainer.v1.trainer_mode")
        if mode not in TRAINER_MODES.values():
            raise ValueError(
                f"trainer.v1.trainer_mode={mode} is not ERA's trainer, but {CONFIG_KEY}.enable is True. Set it to "
                f"{' or '.join(TRAINER_MODES.values())}. Nothing was started."
            )


@dataclasses.dataclass
class FSDPActorConfig(_WithEra, verl_config.FSDPActorConfig):
    """verl's configuration of an actor on FSDP, with the group `era`.

    Raises:
        ValueError: on construction, a bad key or value in the group, with the full key.
    """


@dataclasses.dataclass
class McoreActorConfig(_WithEra, verl_config.McoreActorConfig):
    """verl's configuration of an actor on Megatron, with the group `era`; it raises as FSDPActorConfig does."""


@dataclasses.dataclass
class VeOmniActorConfig(_WithEra, verl_config.VeOmniActorConfig):
    """verl's configuration of an actor on VeOmni, with the group `era`; it raises as FSDPActorConfig does."""


# By class of configuration, the strategies that it is for.
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
        ValueError: bad values in the group; keys of ERA's elsewhere; keys of the group without `enable`; or settings
            that are not supported with it, all of them.
    """
    refuse_elsewhere(config)
    actor = config.actor_rollout_ref.actor
    era = EraConfig.from_mapping(actor.get("era"))
    if era.enable:
        _replace_fused_kernels(config, era)
        check(config, era)
        actor._target_ = ACTOR_CONFIGS.get(actor._target_, actor._target_)
        mode = config.trainer.v1.trainer_mode
        config.trainer.v1.trainer_mode = TRAINER_MODES.get(mode, mode)
        return era
    problems = bonus_problems(config) + era.problems_without_enable()
    refuse_settings(config, VERL_0_9, bonus_present(config, era), problems)
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
    actor, trainer, algorithm = config["actor_rollout_ref"]["actor"], config["trainer"], config["algorithm"]
    target, strategy, loss_mode = actor["_target_"], actor["strategy"], actor["policy_loss"]["loss_mode"]
    mode, fused = trainer["v1"]["trainer_mode"], config["actor_rollout_ref"]["model"]["use_fused_kernels"]
    known_target = target in {*ACTOR_CONFIGS, *ACTOR_CONFIGS.values()}
    engines = STRATEGIES.get(target.rpartition(".")[2], ()) if known_target else ()

    # On every engine, and also with k = 1, where ERA only measures.
    present = {
        "legacy trainer": not trainer["use_v1"],
        "separate trainer": mode == "separate_async",
        "unknown trainer": mode not in ("separate_async", *TRAINER_MODES, *TRAINER_MODES.values()),
        "bypass": algorithm["rollout_correction"]["bypass_mode"],
        "distillation": config["distillation"]["enabled"],
        "unknown configuration": not known_target,
        "unknown engine": known_target and strategy not in engines,
        "kernels on FSDP-Turbo": strategy == FSDP_TURBO and fused,
        **bonus_present(config, era),
        "bonus on another engine": actor.get("adaptive_entropy") and strategy not in STRATEGIES["FSDPActorConfig"],
    }
    if era.changes_training:
        present["covariances"] = loss_mode in COVARIANCE_LOSSES
    if era.changes_advantages:
        present["geometric mean"] = loss_mode == "geo_mean"

    # Where log-probs are of the scaled policy: the engine's own limits.
    if era.scales_logits:
        present["bypass loss"] = loss_mode == "bypass_mode"
        if strategy in engines and strategy == "megatron":
            present |= {
                "kernels on Megatron": fused,
                "router replay on Megatron": actor["megatron"]["router_replay"]["mode"] == "R2",
                "context parallelism on Megatron": actor["megatron"].get("dynamic_context_parallel"),
            }
        if strategy in engines and strategy == "veomni":
            present |= {
                "kernels on VeOmni": fused,
                "router replay on VeOmni": actor["veomni"]["router_replay"]["mode"] == "R2",
                "estimator on VeOmni": algorithm["adv_estimator"] not in RESPONSE_ADVANTAGES,
                "top-k on VeOmni": era.top_k is not None,
                "KL loss on VeOmni": actor["use_kl_loss"],
                "entropy bonus on VeOmni": actor["entropy_coeff"],
                "entropy on VeOmni": actor["calculate_entropy"],
            }

    refuse_settings(config, VERL_0_9, present, bonus_problems(config))


def _replace_fused_kernels(config: Any, era: EraConfig) -> None:
    """On Megatron, set the key for fused kernels to False where ERA scales logits, and say so."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if era.scales_logits and actor.strategy == "megatron" and model.use_fused_kernels:
        model.use_fused_kernels = False
        why = VERL_0_9["kernels on Megatron"].why
        print(f"ERA: {FUSED_KERNELS} is now False, not True: {why}.", file=sys.stderr)
