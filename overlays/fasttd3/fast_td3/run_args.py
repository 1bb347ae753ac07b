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
"""What train.py and train_multigpu.py take and check for every agent, beside upstream's flags.

policy_frequency is here because its default now depends on the agent.
"""

import dataclasses
import importlib.util
import re
import sys
import warnings
from typing import List, Optional

if __package__:
    from . import fast_td3
    from .environments import egl
    from .era_args import AGENT, EraArgs
else:
    from environments import egl
    from era_args import AGENT, EraArgs

    import fast_td3

AGENTS = ("fasttd3", "fasttd3_simbav2", AGENT)
# Flags that must be at least 1, as far as this version of FastTD3 has them.
COUNTS = (
    *("num_envs", "num_eval_envs", "total_timesteps"),
    *("buffer_size", "num_updates", "policy_frequency"),
    *("sim_dimension", "actor_seq_len", "critic_seq_len"),
)
# v_max, and -v_min, where the values of a Gymnasium task leave upstream's -250 to 250. Where they
# come from: docs/control/fasttd3.md of the ERA overlays.
LARGEST_VALUES = {
    **{"HalfCheetah": 2000.0, "Hopper": 500.0, "Walker2d": 1000.0, "Ant": 1000.0},
    **{"Humanoid": 1000.0, "InvertedDoublePendulum": 1000.0},
}


@dataclasses.dataclass
class RunArgs(EraArgs):
    policy_frequency: Optional[int] = None
    """the frequency of training policy (delayed; default: 2, FastSAC-ERA: 1)"""
    csv_path: Optional[str] = None
    """the file for the curves of the run (default: logs/<env_name>__<exp_name>__<seed>.csv)"""

    def __post_init__(self):
        if self.policy_frequency is None:  # the paper removes FastTD3's delay
            self.policy_frequency = 1 if self.agent == AGENT else 2
        if self.env_name.startswith(("h1-", "h1hand-")):
            warn_of_what_humanoidbench_lacks(self.env_name)
        problems = "\n       ".join(self.problems())
        if problems:
            print(f"error: {problems}\nNothing was started.", file=sys.stderr)
            sys.exit(2)

    def problems(self) -> List[str]:
        found = [
            f"--{name} {getattr(self, name)}: a number of 1 or more expected."
            for name in COUNTS
            if getattr(self, name, 1) < 1
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
        sim_types = getattr(fast_td3, "VALID_SIM_TYPES", {""})  # since FastTD3 229ed59
        if getattr(self, "sim_type", "") not in sim_types:
            known = ", ".join(sorted(sim_types - {""}))
            found.append(f"--sim_type {self.sim_type}: one of {known} expected.")
        if self.agent != AGENT:
            return found
        if self.num_updates == 1 and self.policy_frequency > 0 and 100 % self.policy_frequency:
            found.append(
                f"--num_updates 1 --policy_frequency {self.policy_frequency}: the policy is not "
                "updated in every 100th step, whose losses train.py logs. Use a frequency that "
                "divides 100."
            )
        return found + self.era_problems()

    def for_gymnasium(self) -> "RunArgs":
        """With the defaults of its Gym-... task in place of the flags that have some."""
        value = LARGEST_VALUES.get(re.sub("^Gym-|-v[0-9]+$", "", self.env_name))
        support = {"v_min": -value, "v_max": value} if value else {}
        return dataclasses.replace(self, num_envs=16, num_eval_envs=16, **support)


def warn_of_what_humanoidbench_lacks(env_name: str) -> None:
    """Only warnings: settings may be read where nothing trains."""
    if importlib.util.find_spec("humanoid_bench") is None:
        warnings.warn(
            f"--env_name {env_name} needs HumanoidBench, and {sys.prefix} has no humanoid_bench. "
            "`python apply.py apply humanoid-bench` of the ERA overlays makes "
            "checkouts/humanoid-bench: set PYTHONPATH to that (docs/control/environments.md). "
            "Gym-... tasks work without it.",
            stacklevel=1,
        )
    if egl.problem():
        reason = "HumanoidBench always makes an environment that renders."
        warnings.warn(f"{egl.problem()} {reason}", stacklevel=1)
