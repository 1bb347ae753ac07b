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
"""ERA for rsl_rl 5: in the configuration of the actor

    "distribution_cfg": {"class_name": "era.rsl_rl:EraGaussianDistribution", "target_entropy": -0.3}

and entropy_coef 0 in that of PPO.
"""

import torch
from rsl_rl.modules.distribution import HeteroscedasticGaussianDistribution
from torch.distributions import Normal

from era.continuous import state_level_log_std
from era.entropy_bonus import EntropyBonusWarning
from era.plugin_checks import check_settings


class EraGaussianDistribution(HeteroscedasticGaussianDistribution):
    """rsl_rl's Gaussian whose std depends on the state, with ERA. Actions are not bounded.

    Args:
        output_dim: action dimensions.
        target_entropy: H0 per action dimension, in nats, the least entropy of the Gaussian.
        log_std_min, log_std_max: range of ln sigma.

    Raises:
        ValueError: an action of one dimension, an infeasible target, a setting that is no number.
    """

    def __init__(
        self,
        output_dim: int,
        target_entropy: float = -0.3,
        log_std_min: float = -8.0,
        log_std_max: float = 0.0,
    ):
        check_settings(output_dim, target_entropy, log_std_min, log_std_max)
        # "log" starts the head for pre_std at weights of 0 and one bias: all std are alike.
        super().__init__(output_dim, std_type="log")
        self.era = (output_dim * target_entropy, log_std_min, log_std_max)
        self.entropy_bonus = EntropyBonusWarning(
            "The loss rewards entropy (entropy_coef is not 0), and ERA fixes it: the reward has no "
            "gradient except where an ln sigma is clipped at log_std_min. Set entropy_coef to 0."
        )

    def update(self, mlp_output: torch.Tensor) -> None:
        """From mean and pre_std, (..., 2, D)."""
        mean, pre_std = mlp_output.unbind(dim=-2)
        self._distribution = Normal(mean, state_level_log_std(pre_std, *self.era).exp())

    @property
    def entropy(self) -> torch.Tensor:
        return self.entropy_bonus.watch(super().entropy)
