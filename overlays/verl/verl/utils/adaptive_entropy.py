# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""An entropy bonus whose coefficient follows the entropy: the key `adaptive_entropy` of the actor.

The controller of Skywork-OR1 (He et al. 2025, arXiv 2505.22312), a baseline:

    +actor_rollout_ref.actor.adaptive_entropy.target=0.5    in nats
    +actor_rollout_ref.actor.adaptive_entropy.delta=0.005   the step of the coefficient, > 0

The entropy is `era/top_entropy`, so ERA must log (k = 1); with era.top_fraction=1 it is the mean
over all tokens, as in Skywork. What is not supported beside it is refused by
verl/utils/era/language_config.py.
"""

from typing import Any, Mapping

from verl.utils.era.language import COEFFICIENT, next_coefficient


def set_coefficient(actor: Any, metrics: Mapping[str, float]) -> dict[str, float]:
    """Set the coefficient of this update's entropy bonus in the actor's configuration.

    c_k is a value of the optimizer's group, as the learning rate is, so that checkpoints have it.

    Args:
        actor: verl's DataParallelPPOActor.
        metrics: those of ERA for this update.

    Returns:
        The coefficient as a metric; nothing without `adaptive_entropy`.
    """
    settings = actor.config.get("adaptive_entropy")
    if not settings:
        return {}
    group = actor.actor_optimizer.param_groups[0]
    actor.config.entropy_coeff, group[COEFFICIENT] = next_coefficient(
        group.get(COEFFICIENT, 0.0), metrics["era/top_entropy"], settings.target, settings.delta
    )
    return {"adaptive_entropy/coeff": actor.config.entropy_coeff}
