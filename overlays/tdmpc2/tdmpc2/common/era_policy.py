# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA in the policy prior of TD-MPC2's world model.

The prior is tanh of a Gaussian. With the key era_target_entropy, in nats per action dimension, ln
sigma of that Gaussian is ERA's (Eq. continuous_era, delta = 0) instead of upstream's tanh.
"""

import sys
from typing import Any, Dict

import torch
from common import math
from common.era import (
    announce,
    check_state_level,
    check_target,
    gaussian_entropy,
    state_level_log_std,
)


def log_std(cfg: Any, pre_std: torch.Tensor, low: torch.Tensor, dif: torch.Tensor) -> torch.Tensor:
    """ln sigma of the prior from the network's output, both (..., D).

    With ERA the Gaussian's entropy is at least D * era_target_entropy in every state. low and dif
    are upstream's, for its own form: the smallest ln sigma, and the width of the range.
    """
    if cfg.era_target_entropy is None:
        return math.log_std(pre_std, low, dif)
    target = cfg.era_target_entropy * pre_std.shape[-1]
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
    """Exits where the configuration is not supported with ERA; says that ERA is on."""
    if cfg.era_target_entropy is None:
        return
    if cfg.entropy_coef != 0:
        sys.exit(
            f"error: entropy_coef={cfg.entropy_coef}: with era_target_entropy add entropy_coef=0, "
            "as the loss has no bonus beside ERA."
        )
    if cfg.multitask:
        sys.exit(
            f"error: task={cfg.task}: ERA is for single tasks; in the task sets some have one "
            "action dimension, and the others are masked."
        )
    try:
        check_state_level(cfg.action_dim)
        target = cfg.action_dim * cfg.era_target_entropy
        check_target(target, cfg.action_dim, cfg.log_std_min, cfg.log_std_max)
    except ValueError as error:
        sys.exit(f"error: era_target_entropy={cfg.era_target_entropy}, task={cfg.task}: {error}")
    announce(cfg.era_target_entropy, cfg.action_dim)
