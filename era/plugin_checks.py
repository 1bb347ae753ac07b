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
"""Checks of the settings that the plug-ins of RL frameworks share."""

from collections.abc import Iterable
from numbers import Real
from typing import Any

from era.continuous import check_state_level, check_target, feasible_targets


def check_settings(
    dim: int, target_entropy: float, log_std_min: float, log_std_max: float, level: str = "state"
) -> None:
    """Raises ValueError for settings that ERA cannot hold with actions of dim dimensions.

    target_entropy is in nats per action dimension, where check_target takes the total.
    """
    given = {
        "target_entropy": target_entropy,
        "log_std_min": log_std_min,
        "log_std_max": log_std_max,
    }
    for name, value in given.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ValueError(f"{name} = {value!r}: a number expected.")
    if level == "state":
        try:
            check_state_level(dim)
        except ValueError as error:
            where = "Of the plug-ins only era.sbx has it: EraSAC(level='batch')."
            raise ValueError(f"{error} {where}") from None
    low, high = feasible_targets(1, log_std_min, log_std_max)
    if low < high and not low < target_entropy < high:
        raise ValueError(
            f"target_entropy = {target_entropy:g} nats per action dimension is not feasible with "
            f"ln sigma in [{log_std_min:g}, {log_std_max:g}]: a number between {low:.4f} and "
            f"{high:.4f} per dimension expected."
        )
    check_target(dim * target_entropy, dim, log_std_min, log_std_max)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raises ValueError unless value is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: one of {', '.join(choices)} expected.")
