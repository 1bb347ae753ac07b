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
"""PPO-ERA: its flags, the standard deviation of the policy, and the paper's LLM techniques.

Upstream's ln sigma is one learned parameter per action dimension, started at 0. Here it can also
come from a layer on the policy's last hidden layer, with ERA (Eq. continuous_era) or without, or be
a constant. Entropies are in nats, of the unbounded Gaussian as upstream has it: actions are clamped
to the environment's range, and their log-prob is the Gaussian's.
"""

import argparse
import math
import sys
from typing import Optional

import era
import torch
from torch import nn
from torch.distributions import Normal

LAYERS = ("era", "head")  # ln sigma depends on the state
DEFAULT_TARGET = -0.3  # the paper's, per action dimension


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--std",
        default="parameter",
        choices=("parameter", "constant", *LAYERS),
        help="ln sigma: upstream's parameter, a constant, a layer with ERA, a layer without",
    )
    parser.add_argument(
        "--era_target",
        type=float,
        help=f"(--std era) H0 per action dimension, in nats ({DEFAULT_TARGET})",
    )
    parser.add_argument(
        "--era_log_std_min", type=float, default=-8.0, help="(--std era) smallest ln sigma"
    )
    parser.add_argument(
        "--era_log_std_max", type=float, default=0.0, help="(--std era) largest ln sigma"
    )
    parser.add_argument(
        "--log_std_init", type=float, help="(all other --std) ln sigma at the start (0)"
    )
    parser.add_argument(
        "--epsilon_high", type=float, help="clip-higher: the upper clip ratio (default: epsilon)"
    )
    parser.add_argument(
        "--selective",
        type=float,
        help="(--std head) train the policy on this share of each mini-batch, the states of "
        "highest entropy",
    )


def problems(args: argparse.Namespace) -> list:
    """What is wrong with the flags; args.action_dim is the environment's."""
    found = []
    if args.policy_dist != "Gaussian" and (args.std != "parameter" or args.fast):
        found.append(f"--std and --fast need --policy_dist Gaussian, not {args.policy_dist}.")
    if args.era_target is not None and args.std != "era":
        found.append(f"--era_target {args.era_target} needs --std era.")
    if args.log_std_init is not None and (
        args.std == "era" or not math.isfinite(args.log_std_init)
    ):
        found.append(
            f"--log_std_init {args.log_std_init}: a finite number expected, and none with --std "
            "era, which starts at its target."
        )
    if args.epsilon_high is not None and not args.epsilon_high >= args.epsilon:
        found.append(
            f"--epsilon_high {args.epsilon_high}: at least --epsilon, {args.epsilon}, expected."
        )
    if args.selective is not None:
        if not 0 < args.selective <= 1:
            found.append(f"--selective {args.selective}: a number above 0, up to 1, expected.")
        if args.std != "head":
            found.append(
                f"--selective needs --std head: with --std {args.std} all states have the same "
                "entropy, so there is nothing to select."
            )
    if args.fast and args.batch_size % args.mini_batch_size:
        found.append(
            f"--fast: --mini_batch_size {args.mini_batch_size} must divide --batch_size "
            f"{args.batch_size}: a pass is recorded for one size."
        )
    if args.std == "era":
        try:
            era.check_state_level(args.action_dim)
            era.check_target(target(args), args.action_dim, *log_std_range(args))
        except ValueError as error:
            found.append(f"--std era: {error}")
    return found


def check(args: argparse.Namespace) -> None:
    """Ends the process with what is wrong with the flags, if anything is."""
    found = problems(args)
    if found:
        lines = "\n       ".join(found)
        print(f"error: {lines}\nNothing was started.", file=sys.stderr)
        sys.exit(2)


def target(args: argparse.Namespace) -> float:
    """H0 in nats, the total over the action dimensions."""
    return args.action_dim * (DEFAULT_TARGET if args.era_target is None else args.era_target)


def log_std_range(args: argparse.Namespace) -> tuple:
    return args.era_log_std_min, args.era_log_std_max


def set_std(actor: nn.Module, args: argparse.Namespace) -> None:
    """Replaces the actor's ln sigma, a parameter started at 0, where args ask for it."""
    actor.std_layer, actor.era = None, None
    start = args.log_std_init or 0.0
    if args.std in LAYERS:
        del actor.log_std
        actor.std_layer = nn.Linear(args.hidden_width, args.action_dim)
        nn.init.orthogonal_(
            actor.std_layer.weight, gain=0.01
        )  # as upstream starts the mean's layer
        nn.init.constant_(actor.std_layer.bias, start)
        if args.std == "era":
            actor.era = (target(args), *log_std_range(args))
    else:
        nn.init.constant_(actor.log_std, start)
        actor.log_std.requires_grad_(args.std == "parameter")


def get_dist(actor: nn.Module, state: torch.Tensor) -> Normal:
    """The policy whose ln sigma depends on the state.

    Args:
        state: (N, state_dim), float32.

    Returns:
        A Normal of (N, action_dim).
    """
    hidden = actor.activate_func(actor.fc2(actor.activate_func(actor.fc1(state))))
    mean = actor.max_action * torch.tanh(actor.mean_layer(hidden))
    log_std = actor.std_layer(hidden)
    if actor.era:
        log_std = era.state_level_log_std(log_std, *actor.era)
    return Normal(mean, log_std.exp())


def mean_of_selected(
    loss: torch.Tensor, entropy: torch.Tensor, share: Optional[float]
) -> torch.Tensor:
    """The mean loss over the share of states with the highest entropy; over all where it is None.

    Args:
        loss, entropy: (N, 1), float32; the entropy in nats.
    """
    if share is not None:
        loss = loss[entropy.flatten().topk(math.ceil(share * len(loss))).indices]
    return loss.mean()
