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
"""The flags that the overlay adds to train.py and train_multigpu.py.

policy_frequency is one of them because its default now depends on the agent.
"""

import importlib.util
import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Dict, List, Literal, Optional

if __package__:
    from . import era
    from .environments import egl
else:
    import era
    from environments import egl

AGENT = "fastsac_era"
AGENTS = ("fasttd3", "fasttd3_simbav2", AGENT)
# Flags that must be at least 1.
COUNTS = (
    *("num_envs", "num_eval_envs", "total_timesteps"),
    *("buffer_size", "num_updates", "policy_frequency"),
)


@dataclass
class EraArgs:
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
            self.policy_frequency = 1 if self.agent == AGENT else 2
        if self.env_name.startswith(("h1-", "h1hand-")):
            # Only warnings: these settings may be read where nothing trains.
            if importlib.util.find_spec("humanoid_bench") is None:
                warnings.warn(
                    f"--env_name {self.env_name} needs HumanoidBench, and {sys.prefix} has no "
                    "humanoid_bench. `python apply.py apply humanoid-bench` of the ERA overlays "
                    "makes checkouts/humanoid-bench: set PYTHONPATH to that "
                    "(docs/control/environments.md). Gym-... tasks work without it.",
                    stacklevel=1,
                )
            if egl.problem():
                reason = "HumanoidBench always makes an environment that renders."
                warnings.warn(f"{egl.problem()} {reason}", stacklevel=1)
        problems = "\n       ".join(self.problems())
        if problems:
            print(f"error: {problems}\nNothing was started.", file=sys.stderr)
            sys.exit(2)

    def problems(self) -> List[str]:
        found = [
            f"--{name} {getattr(self, name)}: a number of 1 or more expected."
            for name in COUNTS
            if getattr(self, name) < 1
        ]
        if not 0 <= self.seed < 2**32:
            found.append(f"--seed {self.seed}: a number from 0 to 2**32 - 1 expected.")
        if self.agent == f"{AGENT}_simbav2":
            found.append(
                f"--agent {self.agent}: FastSAC-ERA does not support SimbaV2. The paper adds ERA "
                "to FastTD3's plain network; what scale and initialisation a head for sigma would "
                f"need on SimbaV2's hypersphere is not known. Use --agent {AGENT} or "
                "fasttd3_simbav2."
            )
        elif self.agent not in AGENTS:
            found.append(f"--agent {self.agent}: one of {', '.join(AGENTS)} expected.")
        if self.agent != AGENT:
            return found
        if self.num_updates == 1 and self.policy_frequency > 0 and 100 % self.policy_frequency:
            found.append(
                f"--num_updates 1 --policy_frequency {self.policy_frequency}: the policy is not "
                "updated in every 100th step, whose losses train.py logs. Use a frequency that "
                "divides 100."
            )
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
