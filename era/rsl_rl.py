# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for rsl_rl 5. Set in the actor's configuration

    "distribution_cfg": {"class_name": "era.rsl_rl:EraGaussianDistribution", "target_entropy": -0.3}

and entropy_coef to 0 in PPO's.
"""

import warnings

import torch
from rsl_rl.modules.distribution import HeteroscedasticGaussianDistribution
from torch.distributions import Normal

from era.continuous import check_state_level, check_target, state_level_log_std


class EraGaussianDistribution(HeteroscedasticGaussianDistribution):
    """rsl_rl's Gaussian whose std depends on the state, with ERA. Actions are not bounded.

    Args:
        output_dim: action dimensions.
        target_entropy: H0 per action dimension, in nats, the least entropy of the Gaussian.
        log_std_min, log_std_max: range of ln sigma.

    Raises:
        ValueError: an action of one dimension, an infeasible target.
    """

    def __init__(
        self,
        output_dim: int,
        target_entropy: float = -0.3,
        log_std_min: float = -8.0,
        log_std_max: float = 0.0,
    ):
        check_state_level(output_dim)
        check_target(output_dim * target_entropy, output_dim, log_std_min, log_std_max)
        # "log" starts the head for pre_std with weights of 0 and equal biases: all std are alike.
        super().__init__(output_dim, std_type="log")
        self.era = (output_dim * target_entropy, log_std_min, log_std_max)
        self.checked_for_bonus = False

    def update(self, mlp_output: torch.Tensor) -> None:
        """From mean and pre_std, (..., 2, D)."""
        mean, pre_std = mlp_output.unbind(dim=-2)
        self._distribution = Normal(mean, state_level_log_std(pre_std, *self.era).exp())

    @property
    def entropy(self) -> torch.Tensor:
        """(...), in nats. The first backward pass through it tells whether the loss rewards it."""
        entropy = super().entropy
        if entropy.requires_grad and not self.checked_for_bonus:
            entropy.register_hook(self.warn_of_bonus)
        return entropy

    def warn_of_bonus(self, gradient: torch.Tensor) -> None:
        if not self.checked_for_bonus and bool(gradient.any()):
            warnings.warn(
                "The loss has an entropy bonus (entropy_coef is not 0), and ERA fixes the entropy: "
                "the bonus has no gradient except where an ln sigma is clipped at log_std_min. Set "
                "entropy_coef to 0.",
                stacklevel=2,
            )
        self.checked_for_bonus = True
