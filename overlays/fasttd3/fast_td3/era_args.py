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
"""The settings of FastSAC-ERA: flags of train.py and train_multigpu.py."""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Literal

if __package__:
    from . import era
else:
    import era

AGENT = "fastsac_era"


@dataclass
class EraArgs:
    era_distribution: Literal["truncated", "tanh", "clipped"] = "truncated"
    """(FastSAC-ERA only) how the Gaussian is bounded to [-1, 1]"""
    era_target_entropy: float = -0.5
    """(FastSAC-ERA only) the minimum entropy H0 per action dimension, in nats"""
    era_learn_delta: bool = False
    """(FastSAC-ERA only) learn the residual delta (Eq. residual_loss); 0 otherwise"""
    era_level: Literal["state", "batch"] = "state"
    """(FastSAC-ERA only) hold the entropy in every state, or on average over a batch"""
    era_log_std_min: float = -8.0
    """(FastSAC-ERA only) the smallest ln sigma"""
    era_log_std_max: float = 0.0
    """(FastSAC-ERA only) the largest ln sigma"""

    def era_problems(self) -> List[str]:
        """Sentences on settings with which FastSAC-ERA cannot train."""
        found = []
        try:
            era.check_target(self.era_target_entropy, 1, self.era_log_std_min, self.era_log_std_max)
        except ValueError as error:
            flags = "--era_target_entropy, --era_log_std_min, --era_log_std_max"
            found.append(f"{flags}, per action dimension: {error}")
        delta_needs_a_density = self.era_learn_delta and self.era_distribution != "clipped"
        if delta_needs_a_density and self.era_target_entropy >= math.log(2):
            found.append(
                f"--era_target_entropy {self.era_target_entropy}: no distribution on [-1, 1] has "
                f"more than ln 2 = {math.log(2):.4f} nats per dimension, so with --era_learn_delta "
                "delta would grow without end."
            )
        return found

    def era_settings(self) -> Dict[str, Any]:
        """The keyword arguments of fastsac_era.Actor."""
        prefix = "era_"
        flags = {name: value for name, value in vars(self).items() if name.startswith(prefix)}
        return {name[len(prefix) :]: value for name, value in flags.items()}
