# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's trainers with ERA's workers, as `trainer.v1.trainer_mode=era` and `era_colocate_async`."""

import ray
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync, register_trainer

from era.language_config import CONFIG_KEY, EraConfig, refuse_elsewhere
from era.verl.config import TRAINER_MODES, UPDATES_BEFORE, check


class _WithEra:
    """A base that precedes one of verl's trainers, checks the configuration and gives the trainer ERA's workers.

    Attributes:
        mode: that trainer's own `trainer.v1.trainer_mode`, by which verl picks what goes with it.
    """

    mode: str

    def __init__(self, config):
        refuse_elsewhere(config)
        era = EraConfig.from_mapping(config.actor_rollout_ref.actor.get("era"))
        if not era.enable:
            raise ValueError(
                f"trainer.v1.trainer_mode={TRAINER_MODES[self.mode]} is ERA's trainer, but {CONFIG_KEY}.enable is not "
                f"True. Set it (k=1 leaves the logits alone), or set trainer_mode to {self.mode} for verl's own "
                "trainer. Nothing was started."
            )
        check(config, era)
        config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)

    def _init_resource_pool_mgr(self):
        # Not at the top: a worker's process imports era.verl.worker, which imports verl, which imports this module.
        from era.verl.worker import EraActorRolloutRefWorker

        super()._init_resource_pool_mgr()
        for role in {Role.Actor, Role.ActorRollout, Role.ActorRolloutRef} & self.role_worker_mapping.keys():
            self.role_worker_mapping[role] = ray.remote(EraActorRolloutRefWorker)

    def _update_actor(self, batch, metrics):
        # verl's steps count from 1, and the actor has its first update in step critic_warmup.
        batch.extra_info[UPDATES_BEFORE] = self.global_steps - max(1, self.config.trainer.critic_warmup)
        batch = super()._update_actor(batch, metrics)
        ours = ("actor/era/", "actor/adaptive_entropy/")  # verl puts "actor/" before all names
        for name in [name for name in metrics if name.startswith(ours)]:
            metrics[name.removeprefix("actor/")] = metrics.pop(name)
        return batch


@register_trainer(TRAINER_MODES["sync"])
class EraTrainer(_WithEra, PPOTrainerSync):
    """verl's trainer PPOTrainerSync with ERA.

    Raises:
        ValueError: on construction, before a worker starts, ERA is not enabled, or a setting is not supported with
            it.
    """

    mode = "sync"


@register_trainer(TRAINER_MODES["colocate_async"])
class EraColocateAsyncTrainer(_WithEra, PPOTrainerColocateAsync):
    """verl's trainer PPOTrainerColocateAsync with ERA; it raises as EraTrainer does.

    H_resp is of the policy that is being updated, on tokens that this policy or an older one sampled.
    """

    mode = "colocate_async"
