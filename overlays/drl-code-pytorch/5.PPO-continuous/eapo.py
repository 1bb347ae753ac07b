# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Entropy Advantage Policy Optimisation (Choe and Kim, arXiv 2407.18143) on this PPO.

EAPO rewards the policy with tau times -ln pi(a|s) and learns this part of the return apart, with a
discount and a GAE parameter of its own: the critic has a second output V_H, and the advantage is

    A + tau A_H,   A_H = sum over l of (gamma_H lambda_H)^l delta_H(t + l),
    delta_H = -ln pi(a|s) + gamma_H V_H(s') - V_H(s).

The critic's loss is (R - V)^2 + (R_H - V_H)^2. EAPO has no entropy bonus, so it is trained with
--entropy_coef 0.

V_H is learned as tau V_H, in units of the scaled reward. In nats, with an entropy of h per action
dimension, it would be about D h / (1 - gamma_H), in the hundreds, and would swamp V in the layers
and in the gradient norm that the two share.
"""

import argparse
from typing import Optional

import numpy as np
import torch
from torch import nn

# The authors' for MuJoCo.
DISCOUNT, GAE_PARAMETER = 0.99, 0.001


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--eapo_tau",
        type=float,
        help="EAPO with this reward, in the environment's units, per nat of entropy",
    )
    parser.add_argument(
        "--eapo_gamma", type=float, help=f"(--eapo_tau) discount of the entropy ({DISCOUNT})"
    )
    parser.add_argument(
        "--eapo_lambda", type=float, help=f"(--eapo_tau) its GAE parameter ({GAE_PARAMETER})"
    )


def lacks_tau(args: argparse.Namespace) -> bool:
    """Whether a flag would have no effect."""
    given = args.eapo_gamma is not None or args.eapo_lambda is not None
    return given and args.eapo_tau is None


class EntropyAdvantage:
    """
    Attributes:
        scaling: upstream's RewardScaling or Normalization of the rewards, which divides them by a
            running standard deviation; None without either.
    """

    def __init__(self, args: argparse.Namespace):
        self.tau = args.eapo_tau
        self.discount = DISCOUNT if args.eapo_gamma is None else args.eapo_gamma
        self.gae_parameter = GAE_PARAMETER if args.eapo_lambda is None else args.eapo_lambda
        self.scaling = None

    def scaled_tau(self) -> float:
        """tau in the units of the rewards that the critic sees."""
        if self.scaling is None:
            return self.tau
        return self.tau / float(self.scaling.running_ms.std[0])

    def add(
        self,
        advantage: torch.Tensor,
        target: torch.Tensor,
        log_prob: torch.Tensor,
        values: torch.Tensor,
        next_values: torch.Tensor,
        terminated: torch.Tensor,
        ended: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the entropy's part of the advantage, and the target of the second output.

        Args:
            advantage, target: (N, 1), of the rewards, in the order of time.
            log_prob: (N, D), ln pi(a|s) in nats, per action dimension.
            values, next_values: (N, 2), of the critic in s and s'.
            terminated: (N, 1), 1 where s' has no value.
            ended: (N, 1), 1 at the end of an episode, by termination or by the time limit.

        Returns:
            The advantage A + tau A_H, (N, 1), and the targets of V and tau V_H, (N, 2).
        """
        entropy_reward = -self.scaled_tau() * log_prob.sum(1)
        values, next_values = values[:, 1], next_values[:, 1]
        deltas = entropy_reward + self.discount * (1 - terminated[:, 0]) * next_values - values
        decays = self.discount * self.gae_parameter * (1 - ended[:, 0])
        advantages, later = np.empty(len(deltas), np.float64), 0.0
        for i, (delta, decay) in reversed(list(enumerate(zip(deltas.tolist(), decays.tolist())))):
            advantages[i] = later = delta + decay * later
        entropy_advantage = torch.tensor(advantages, dtype=deltas.dtype).unsqueeze(1)
        entropy_target = entropy_advantage + values.unsqueeze(1)
        return advantage + entropy_advantage, torch.cat([target, entropy_target], 1)


def entropy_advantage(args: argparse.Namespace) -> Optional[EntropyAdvantage]:
    return None if args.eapo_tau is None else EntropyAdvantage(args)


def value_outputs(args: argparse.Namespace) -> int:
    return 1 if args.eapo_tau is None else 2


def value_loss(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The mean over the states of the squared error, summed over the critic's outputs.

    Args:
        target, value: (n, 1), where it is upstream's loss, or (n, 2) with EAPO.
    """
    loss = nn.functional.mse_loss(target, value)
    return loss if value.shape[1] == 1 else value.shape[1] * loss
