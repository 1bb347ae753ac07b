# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The flags that train.py and train_multigpu.py have beside upstream's.

policy_frequency is here because its default now depends on the agent.
"""

import dataclasses
import re
from typing import Any, Dict, Literal, Optional

# v_max (and -v_min) of the Gymnasium tasks whose values leave upstream's range, -250 to 250.
# docs/control/fasttd3.md of the ERA overlays says where these numbers come from.
LARGEST_VALUES = {
    **{"HalfCheetah": 2000.0, "Hopper": 500.0, "Walker2d": 1000.0, "Ant": 1000.0},
    **{"Humanoid": 1000.0, "InvertedDoublePendulum": 1000.0},
}


@dataclasses.dataclass
class RunArgs:
    policy_frequency: Optional[int] = None
    """the frequency of training policy (delayed; default: 2, FastSAC-ERA: 1)"""
    csv_path: Optional[str] = None
    """the file for the curves of the run (default: logs/<env_name>__<exp_name>__<seed>.csv)"""
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

    def __post_init__(self):
        if self.policy_frequency is None:  # the paper removes FastTD3's delay
            self.policy_frequency = 1 if self.agent == "fastsac_era" else 2

    def for_gymnasium(self) -> "RunArgs":
        """A copy with the Gym-... task's own defaults for the flags that have them."""
        value = LARGEST_VALUES.get(re.sub("^Gym-|-v[0-9]+$", "", self.env_name))
        support = {"v_min": -value, "v_max": value} if value else {}
        return dataclasses.replace(self, num_envs=16, num_eval_envs=16, **support)

    def era_settings(self) -> Dict[str, Any]:
        """The keyword arguments of fastsac_era.Actor."""
        flags = vars(self).items()
        return {name[len("era_") :]: value for name, value in flags if name.startswith("era_")}
