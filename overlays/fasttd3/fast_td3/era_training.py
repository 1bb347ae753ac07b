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
from era_args import AGENT

import fast_td3

ENTROPIES = (
    *("policy_entropy", "gaussian_entropy", "target_entropy", "delta"),
    *("min_std", "clipped_states"),
)


def unwrapped(actor: nn.Module) -> nn.Module:
    """The actor itself, without DistributedDataParallel."""
    return getattr(actor, "module", actor)


def refuse(message: str) -> None:
    print(f"error: {message}\nNothing was changed.", file=sys.stderr)
    sys.exit(2)


def networks(
    args: Any, env_type: str, actor_kwargs: Dict[str, Any], critic_kwargs: Dict[str, Any]
) -> Tuple[type, type]:
    """The classes of the actor and of FastTD3's critic.

    Adds ERA's settings to actor_kwargs, and SimNorm's to both where this FastTD3 has it.
    """
    settings = args.era_settings()
    if args.checkpoint_path:
        check_checkpoint(args.checkpoint_path, vars(args))
    if settings["level"] == "state" and actor_kwargs["n_act"] == 1:
        refuse(
            f"{args.env_name} has one action dimension, where sigma of ERA per state would be the "
            "same constant in every state. Use --era_level batch, or a task with two or more."
        )
    actor_kwargs.update(settings, **fastsac_era.simnorm(vars(args), "actor"))
    critic_kwargs.update(fastsac_era.simnorm(vars(args), "critic"))
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"Using FastSAC-ERA: {settings}, policy_frequency {args.policy_frequency}")
    if env_type == "mtbench":
        return fastsac_era.MultiTaskActor, fast_td3.MultiTaskCritic
    return fastsac_era.Actor, fast_td3.Critic


def check_checkpoint(path: str, flags: Dict[str, Any]) -> None:
    """Refuses a checkpoint of another agent or FastTD3, or of other settings of ERA or SimNorm."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)["args"]
    except OSError as error:
        refuse(f"--checkpoint_path {path} cannot be read: {error.strerror}.")
    except Exception as error:  # reading pickles raises nearly anything
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = (
            f"holds {code[1]}, which is no part of a checkpoint and could run code"
            if code
            else f"is not a checkpoint of train.py ({type(error).__name__})"
        )
        refuse(f"--checkpoint_path {path} {what}.")
    if saved.get("agent") != AGENT:
        refuse(
            f"--checkpoint_path {path} is of the agent {saved.get('agent')}, whose actor has no "
            f"sigma; one of {AGENT} expected."
        )
    if ("sim_type" in saved) != ("sim_type" in flags):
        refuse(
            f"--checkpoint_path {path} is of another version of FastTD3, whose networks have other "
            "layers. Resume it in a checkout of that version."
        )
    kept = [name for name in flags if re.match("era_|sim_|(actor|critic)_seq_len", name)]
    other = [f"--{name} {saved.get(name)}" for name in kept if saved.get(name) != flags[name]]
    if other:
        refuse(
            f"--checkpoint_path {path} was trained with {' '.join(other)}; give the same, or start "
            "without it."
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
