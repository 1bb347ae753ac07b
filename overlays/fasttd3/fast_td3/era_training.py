# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The functions that train.py and train_multigpu.py call for FastSAC-ERA.

For every other agent they change nothing.
"""

import functools
import re
import sys
from typing import Any, Callable, Dict, List, Tuple, Union

import fastsac_era
import torch
import torch.distributed as dist
import torch.nn as nn

import fast_td3

ENTROPIES = (
    *("policy_entropy", "gaussian_entropy", "target_entropy", "delta"),
    *("min_std", "clipped_states"),
)


def unwrapped(actor: nn.Module) -> nn.Module:
    """The actor itself, without DistributedDataParallel."""
    return getattr(actor, "module", actor)


def networks(
    args: Any, env_type: str, actor_kwargs: Dict[str, Any], critic_kwargs: Dict[str, Any]
) -> Tuple[type, type]:
    """The classes of the actor and of FastTD3's critic.

    Adds ERA's settings to actor_kwargs, and SimNorm's to both where this FastTD3 has it.
    """
    settings = args.era_settings()
    if args.checkpoint_path:
        check_checkpoint(args.checkpoint_path, vars(args))
    actor_kwargs.update(settings, **fastsac_era.simnorm(vars(args), "actor"))
    critic_kwargs.update(fastsac_era.simnorm(vars(args), "critic"))
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"Using FastSAC-ERA: {settings}, policy_frequency {args.policy_frequency}")
        fastsac_era.era.announce(args.era_target_entropy, actor_kwargs["n_act"])
    if env_type == "mtbench":
        return fastsac_era.MultiTaskActor, fast_td3.MultiTaskCritic
    return fastsac_era.Actor, fast_td3.Critic


def check_checkpoint(path: str, flags: Dict[str, Any]) -> None:
    """Exits where a checkpoint has another agent, or other settings of ERA or SimNorm.

    FastTD3 would load most of them, and train on with another entropy.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)["args"]
    names = [
        name
        for name in {**saved, **flags}
        if re.match("agent$|era_|sim_|(actor|critic)_seq_len", name)
    ]
    other = [f"--{name} {saved.get(name)}" for name in names if saved.get(name) != flags.get(name)]
    if other:
        sys.exit(
            f"error: --checkpoint_path {path} was trained with {' '.join(other)} (None: this flag "
            "was not there). Give the same flags, or start without it."
        )


def parameter_groups(actor: nn.Module) -> List[Any]:
    """For the actor's optimizer: no weight decay on a learned delta, which it would pull to 0."""
    delta = getattr(unwrapped(actor), "delta", None)
    if not isinstance(delta, nn.Parameter):
        return list(actor.parameters())
    others = [parameter for parameter in actor.parameters() if parameter is not delta]
    return [{"params": others}, {"params": [delta], "weight_decay": 0.0}]


def policy_actions(
    actor: nn.Module, data: Any, logs_dict: Any
) -> Tuple[torch.Tensor, Union[torch.Tensor, float]]:
    """Actions for the policy update on data["observations"], and the loss of a learned delta.

    ERA's entropies go into logs_dict.
    """
    observations = data["observations"]
    era_actor = unwrapped(actor)
    if not isinstance(era_actor, fastsac_era.Actor):
        return actor(observations), 0.0
    actions, entropies = actor(observations, with_entropies=True)
    for name, value in entropies.items():
        logs_dict[name] = value
    return actions, era_actor.residual_loss(entropies["policy_entropy"])


def entropies(logs_dict: Any) -> Dict[str, torch.Tensor]:
    """Of the last policy update, for the log."""
    names = logs_dict.keys()  # a TensorDict refuses `name in logs_dict`
    return {name: logs_dict[name] for name in ENTROPIES if name in names}


def deterministic(actor: nn.Module) -> Callable[[Callable], Callable]:
    """Decorator: during the function the actor does not sample."""

    def decorate(rollout: Callable) -> Callable:
        @functools.wraps(rollout)
        def in_evaluation_mode():
            actor.eval()
            try:
                return rollout()
            finally:
                actor.train()

        return in_evaluation_mode

    return decorate
