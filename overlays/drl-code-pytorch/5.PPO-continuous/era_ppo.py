# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
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

import eapo
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
        "--era_target_entropy",
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


def check(args: argparse.Namespace) -> None:
    """Exits where a flag would have no effect, or ERA cannot hold its target.

    args.action_dim is the environment's.
    """
    refused = {
        f"--std and --fast need --policy_dist Gaussian, not {args.policy_dist}": (
            args.policy_dist != "Gaussian" and (args.std != "parameter" or args.fast)
        ),
        f"--era_target_entropy {args.era_target_entropy} needs --std era": (
            args.std != "era" and args.era_target_entropy is not None
        ),
        "--log_std_init does nothing with --std era, which starts at its target": (
            args.std == "era" and args.log_std_init is not None
        ),
        f"--selective needs --std head: with --std {args.std} all states have one entropy": (
            args.std != "head" and args.selective is not None
        ),
        "--eapo_gamma and --eapo_lambda need --eapo_tau": eapo.lacks_tau(args),
        "--fast records passes of one size: --mini_batch_size must divide --batch_size": (
            args.fast and args.batch_size % args.mini_batch_size
        ),
    }
    problems = [message for message, is_present in refused.items() if is_present]

    if args.std == "era":
        try:
            era.check_state_level(args.action_dim)
            era.check_target(target(args), args.action_dim, *log_std_range(args))
        except ValueError as error:
            problems.append(f"--std era: {error}")
    if problems:
        sys.exit("error: " + "\n       ".join(problems))

    if args.std == "era":
        era.announce(target(args) / args.action_dim, args.action_dim)


def target(args: argparse.Namespace) -> float:
    """H0 in nats, the total over the action dimensions."""
    return args.action_dim * (
        DEFAULT_TARGET if args.era_target_entropy is None else args.era_target_entropy
    )


def log_std_range(args: argparse.Namespace) -> tuple:
    return args.era_log_std_min, args.era_log_std_max


def set_std(actor: nn.Module, args: argparse.Namespace) -> None:
    """Replaces the actor's ln sigma, a parameter started at 0, where args ask for it."""
    actor.std_layer, actor.era_arguments = None, None
    start = args.log_std_init or 0.0
    if args.std in LAYERS:
        del actor.log_std
        actor.std_layer = nn.Linear(args.hidden_width, args.action_dim)
        nn.init.orthogonal_(
            actor.std_layer.weight, gain=0.01
        )  # as upstream starts the mean's layer
        nn.init.constant_(actor.std_layer.bias, start)
        if args.std == "era":
            actor.era_arguments = (target(args), *log_std_range(args))
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
    if actor.era_arguments:
        log_std = era.state_level_log_std(log_std, *actor.era_arguments)
    return Normal(mean, log_std.exp())


def mean_of_selected(
    loss: torch.Tensor, entropy: torch.Tensor, share: Optional[float]
) -> torch.Tensor:
    """The mean loss over this share of the states, the highest-entropy ones; None is all states.

    Args:
        loss, entropy: (N, 1), float32; the entropy in nats.
    """
    if share is not None:
        loss = loss[entropy.flatten().topk(math.ceil(share * len(loss))).indices]
    return loss.mean()
