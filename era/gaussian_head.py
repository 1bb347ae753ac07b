# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the plug-ins for policies of torch share: ERA's sigma as a module of the policy."""

import warnings
from typing import Any, Dict, List, Optional

import torch

from era.continuous import (
    DISTRIBUTIONS,
    announce,
    check_distribution,
    check_state_level,
    check_target,
    state_level_log_std,
    total_target,
)

BATCH_LEVEL = "EraSAC(level='batch') in era.sbx; in PPO take a constant sigma instead"
SETTINGS = ("target_entropy", "log_std_min", "log_std_max", "distribution")


class EraHead(torch.nn.Module):
    """The state-level activation, and a buffer ``settings`` that marks checkpoints as ERA's.

    It says on stderr that ERA is on.

    The policies of the frameworks have no such key, so they refuse a checkpoint of ERA, and ERA
    refuses theirs. Settings that differ from the checkpoint's act, with a warning.

    Args:
        dim: action dimensions.
        target_entropy: H0 (of a policy that is bounded, H0') per action dimension, in nats.
        log_std_min, log_std_max: range of ln sigma.
        coefficient: what to say of the setting that would add an entropy bonus to the loss.
        distribution: how the Gaussian is bounded, a key of era.continuous.DISTRIBUTIONS, or None.

    Raises:
        ValueError: an action of fewer than two dimensions, an infeasible target, another
            distribution.
    """

    settings: torch.Tensor

    def __init__(
        self,
        dim: int,
        target_entropy: float,
        log_std_min: float,
        log_std_max: float,
        coefficient: str,
        distribution: Optional[str] = None,
    ):
        super().__init__()
        check_state_level(dim, BATCH_LEVEL)
        target = total_target(target_entropy, dim)
        check_target(target, dim, log_std_min, log_std_max)
        if distribution is not None:
            check_distribution(distribution)
        self.arguments = (target, log_std_min, log_std_max)
        self.coefficient, self.checked_for_bonus = coefficient, False
        kind = -1 if distribution is None else list(DISTRIBUTIONS).index(distribution)
        settings = [target_entropy, log_std_min, log_std_max, kind]
        self.register_buffer("settings", torch.tensor(settings, dtype=torch.float32))
        announce(target_entropy, dim)

    def forward(self, pre_std: torch.Tensor) -> torch.Tensor:
        """Return ln sigma for the network's output, both (..., D)."""
        return state_level_log_std(pre_std, *self.arguments)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in named(self.settings).items())

    def _load_from_state_dict(
        self,
        state_dict: Dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        """Check the settings of a checkpoint; those that the policy was made with stay."""
        key = prefix + "settings"
        if key in state_dict:
            saved, own = named(state_dict[key]), named(self.settings)
            if saved != own:
                warnings.warn(
                    f"The checkpoint was trained with ERA's {saved}. This policy was made with "
                    f"{own}, which acts.",
                    stacklevel=2,
                )
        else:
            # Not in error_msgs: missing keys alone are let pass with strict=False.
            missing_keys.append(
                f"{key}: the checkpoint does not say that it was trained with ERA, and the weights "
                "of another policy would be read as ERA's. If you want that, load it without "
                "strict. In stable-baselines3, model.set_parameters(path, exact_match=False); in "
                "rsl_rl, runner.load(path, strict=False)."
            )

    def watch(self, rewarded: torch.Tensor) -> torch.Tensor:
        """Warns once if the first backward pass through this entropy or log-prob has a gradient."""
        if rewarded.requires_grad and not self.checked_for_bonus:
            rewarded.register_hook(self.warn_of_bonus)
        return rewarded

    def warn_of_bonus(self, gradient: torch.Tensor) -> None:
        if not self.checked_for_bonus and bool(gradient.any()):
            warnings.warn(
                "The loss has an entropy bonus beside ERA, which holds the entropy without one: "
                + self.coefficient,
                stacklevel=2,
            )
        self.checked_for_bonus = True


def named(settings: torch.Tensor) -> Dict[str, Any]:
    """The settings of a checkpoint by name, rounded to what fp32 keeps."""
    *numbers, kind = settings.tolist()
    values = [float(f"{number:.6g}") for number in numbers]
    distributions = [*DISTRIBUTIONS, "unbounded"]  # -1 is the last
    return dict(zip(SETTINGS, [*values, distributions[int(kind)]]))
