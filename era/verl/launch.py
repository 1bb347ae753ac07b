# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's launcher with ERA, imported only after era.verl.compatibility has accepted the installed verl."""

import dataclasses
import sys

import hydra
import ray
from hydra.core.config_store import ConfigStore
from verl.trainer import main_ppo as verl_main
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from era.language_config import EraConfig, announce
from era.verl.config import prepare

# A primary configuration like verl's own; the defaults of the group are those of EraConfig.
ConfigStore.instance().store(
    name="era_ppo_trainer",
    node={
        "defaults": ["ppo_trainer", "_self_"],
        "actor_rollout_ref": {"actor": {"era": dataclasses.asdict(EraConfig()), "adaptive_entropy": {}}},
    },
)


@ray.remote
class TaskRunner(verl_main.TaskRunnerV1.__ray_actor_class__):
    """verl's task runner, in a process that knows ERA's trainer."""

    def run(self, config):
        import era.verl.trainer  # noqa: F401 - registers itself

        super().run(config)


@hydra.main(config_path="pkg://verl.trainer.config", config_name="era_ppo_trainer", version_base=None)
def main(config):
    """Check the configuration, then run verl's training, with ERA where it is enabled."""
    try:
        era = prepare(config)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    announce(era)
    if warning := era.schedule_exceeds(config.trainer.get("total_training_steps") or -1):
        print(f"warning: {warning}", file=sys.stderr)
    if not era.enable:
        return verl_main.main.__wrapped__(config)

    # What verl's own main does, with ERA's task runner.
    auto_set_device(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    try:
        verl_main.run_ppo(config, task_runner_class=TaskRunner)
    except ray.exceptions.RayError as error:
        if "No module named 'era'" not in str(error):
            raise
        raise SystemExit(
            f"error: a Ray process could not import ERA's plug-in: {str(error).strip().splitlines()[-1]}\n"
            "Install it in the environment of every node, or put its folder into PYTHONPATH before `ray start`. "
            "Nothing was trained."
        ) from error
