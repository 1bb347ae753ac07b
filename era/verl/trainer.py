# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's synchronous trainer with ERA's workers, as `trainer.v1.trainer_mode=era`."""

import ray
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer

from era.language_config import CONFIG_KEY, EraConfig
from era.verl.config import TRAINER_MODE, UPDATES_BEFORE, check


@register_trainer(TRAINER_MODE)
class EraTrainer(PPOTrainerSync):
    """Raises ValueError on construction, before a worker starts, for what ERA does not go together with."""

    def __init__(self, config):
        era = EraConfig.from_mapping(config.actor_rollout_ref.actor.get("era"))
        if not era.enable:
            raise ValueError(
                f"trainer.v1.trainer_mode={TRAINER_MODE} is ERA's trainer, but {CONFIG_KEY}.enable is not True. Set it "
                "(with k=1 ERA only logs), or set trainer_mode to sync for verl's own trainer. Nothing was started."
            )
        check(config, era)
        config.trainer.v1.trainer_mode = "sync"  # verl takes another replay buffer under any other name
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
