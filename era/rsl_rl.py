# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for rsl_rl 5. Set in the actor's configuration

    "distribution_cfg": {"class_name": "era.rsl_rl:EraGaussianDistribution", "target_entropy": -0.3}

and entropy_coef to 0 in PPO's.
"""

import torch
from torch.distributions import Normal

from era.gaussian_defaults import LOG_STD_MAX, LOG_STD_MIN, PPO_TARGET
from era.gaussian_head import EraHead

try:
    from rsl_rl.modules.distribution import HeteroscedasticGaussianDistribution
except ModuleNotFoundError as error:
    if error.name != "rsl_rl":
        raise
    raise ImportError(
        "era.rsl_rl is for rsl_rl, which is not installed. pip install 'rsl-rl-lib>=5.0.1,<5.6'"
    ) from None


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
        target_entropy: float = PPO_TARGET,
        log_std_min: float = LOG_STD_MIN,
        log_std_max: float = LOG_STD_MAX,
    ):
        # "log" starts the head for pre_std with weights of 0 and equal biases: all std are alike.
        super().__init__(output_dim, std_type="log")
        self.era_head = EraHead(
            output_dim,
            target_entropy,
            log_std_min,
            log_std_max,
            coefficient="it has no gradient except where an ln sigma is clipped at log_std_min. "
            "Set entropy_coef to 0; rsl_rl's default is 0.01.",
        )

    def update(self, mlp_output: torch.Tensor) -> None:
        """Make the distribution of mean and pre_std, (..., 2, D)."""
        mean, pre_std = mlp_output.unbind(dim=-2)
        self._distribution = Normal(mean, self.era_head(pre_std).exp())

    @property
    def entropy(self) -> torch.Tensor:
        """The entropy, (...) in nats; its first backward pass tells whether the loss rewards it."""
        return self.era_head.watch(super().entropy)
