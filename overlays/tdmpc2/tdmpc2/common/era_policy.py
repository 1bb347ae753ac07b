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
"""ERA in the policy prior of TD-MPC2's world model.

The prior is tanh of a Gaussian. With the key era_target, in nats per action dimension, ln sigma of
that Gaussian is ERA's (Eq. continuous_era, delta = 0) instead of upstream's tanh.
"""

import sys
from typing import Any, Dict, List

import torch
from common import math
from common.era import check_target, gaussian_entropy, state_level_log_std


def log_std(cfg: Any, pre_std: torch.Tensor, low: torch.Tensor, dif: torch.Tensor) -> torch.Tensor:
    """ln sigma of the prior from the network's output, both (..., D).

    With ERA the Gaussian's entropy is at least D * era_target in every state. low and dif are
    upstream's, for its own form: the smallest ln sigma, and the width of the range.
    """
    if cfg.era_target is None:
        return math.log_std(pre_std, low, dif)
    target = cfg.era_target * pre_std.shape[-1]
    return state_level_log_std(pre_std, target, cfg.log_std_min, cfg.log_std_max)


def metrics(cfg: Any, log_std: torch.Tensor) -> Dict[str, torch.Tensor]:
    """For the log of an update: entropies of the prior's Gaussian, in nats per action dimension.

    log_std: (..., D). Empty for several tasks, where some dimensions are masked.
    """
    if cfg.multitask:
        return {}
    log_std = log_std.detach()
    entropy = gaussian_entropy(log_std) / log_std.shape[-1]
    return {
        "pi_gaussian_entropy": entropy.mean(),
        "pi_min_gaussian_entropy": entropy.min(),
        "pi_log_std": log_std.mean(),
    }


def check(cfg: Any) -> None:
    """Ends the program, with all reasons, if the configuration does not go together with ERA."""
    problems = [] if cfg.era_target is None else find_problems(cfg)
    if problems:
        print("error: " + "\n       ".join([*problems, "Nothing was started."]), file=sys.stderr)
        sys.exit(2)


def find_problems(cfg: Any) -> List[str]:
    found = []
    if cfg.entropy_coef != 0:
        found.append(
            f"entropy_coef={cfg.entropy_coef}: with era_target the loss has no entropy term. Add "
            "entropy_coef=0."
        )
    if cfg.multitask:
        found.append(
            f"task={cfg.task}: ERA is for single tasks. The task sets hold tasks with one action "
            "dimension, where sigma of ERA would be the same constant in every state. Leave out "
            "era_target, or choose one task."
        )
    elif cfg.action_dim < 2:
        found.append(
            f"task={cfg.task}: it has one action dimension, where sigma of ERA would be the same "
            "constant in every state. Leave out era_target, or choose another task."
        )
    if isinstance(cfg.era_target, bool) or not isinstance(cfg.era_target, (int, float)):
        return [*found, f"era_target={cfg.era_target}: a number expected, such as -1, or null."]
    try:
        check_target(cfg.era_target, 1, cfg.log_std_min, cfg.log_std_max)
    except ValueError as error:
        keys = "era_target, log_std_min, log_std_max"
        found.append(f"{keys}, per action dimension: {error}")
    return found
