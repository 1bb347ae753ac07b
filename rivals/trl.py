# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""GRPO, ERA and TRL's adaptive entropy bonus on SmolLM2-135M. The protocols are docs/rivals/trl.md and trl-bound.md."""

from dataclasses import dataclass, field
from typing import Any

LEARNING_RATE, ANSWERS = 1e-5, 32
STEPS = {"pairs": 150, "sums": 150, "pairs50": 130}
SEEDS = (1, 2, 3)
# The methods and settings of trl.md; bounds and targets in nats.
TASKS = {
    "pairs": {"grpo": ("0",), "era": ("0.6", "1.2"), "adaptive": ("0.22", "0.45")},
    "sums": {"grpo": ("0",), "era": ("0.4",)},
}
# Those that trl-bound.md adds. On pairs50 ERA has the two settings that pairs chose.
ADDED = {
    "pairs": {
        "era-k": ("4", "8"),
        "era-negative": ("0.5", "0"),
        "grpo-negative": ("0.5", "0"),
        "grpo-rate": ("0.25",),
        "era-scaled": ("4",),
        "era-dynamic": ("4",),
        "era-answers": ("4",),
    },
    "pairs50": {
        "grpo": ("0",),
        "grpo-rate": ("0.25",),
        "adaptive": ("0.23",),
        "era-k": ("8",),
        "era-negative": ("0",),
    },
}
NAMES = {
    "grpo": "GRPO",
    "era": "ERA, {} nats",
    "adaptive": "adaptive bonus, {} nats",
    "era-k": "ERA, k = {}",
    "era-negative": "ERA, negative advantages x {}",
    "grpo-negative": "GRPO, negative advantages x {}",
    "grpo-rate": "GRPO, learning rate x {}",
    "era-scaled": "ERA, k = {}, advantages scaled (A')",
    "era-dynamic": "ERA, k = {}, dynamic sampling",
    "era-answers": "ERA, k = {}, four times the answers",
}
WARM_UP = {"warm-up": ("0",)}
BOUND = {"pairs": 1.2, "pairs50": 1.6}  # of ERA in trl-bound.md, nats


def name(method: str, setting: str) -> str:
    """The name of an arm, as the pages have it."""
    return NAMES[method].format(setting)


@dataclass(frozen=True)
class Arm:
    """What a method and its setting stand for.

    Attributes:
        base: the method of demo.trl.settings.
        bound: its era_low or entropy_target in nats.
        steps: updates.
        changes: fields of EraGRPOConfig that differ from the demo's.
        dynamic_sampling: whether groups without advantage are replaced.
    """

    base: str
    bound: float
    steps: int
    changes: dict[str, Any] = field(default_factory=dict)
    dynamic_sampling: bool = False


def arm(task: str, method: str, setting: str) -> Arm:
    value, base, steps = float(setting), method.partition("-")[0], STEPS[task]
    bound = BOUND.get(task, 0.0) if base == "era" else 0.0
    match method:
        case "grpo" | "era" | "adaptive":
            return Arm(base, value, steps)
        case "era-negative" | "grpo-negative":
            return Arm(base, bound, steps, {"era_negative_weight": value})
        case "grpo-rate":
            return Arm(base, bound, steps, {"learning_rate": value * LEARNING_RATE})
        case "era-k":
            return Arm(base, bound, steps, {"era_k": value})
        case "era-scaled":
            return Arm(base, bound, steps, {"era_k": value, "era_scale_advantages": True})
        case "era-dynamic":
            return Arm(base, bound, steps, {"era_k": value}, dynamic_sampling=True)
        case "era-answers":  # four lots of answers in an update, and a quarter of the updates
            lots = {"gradient_accumulation_steps": 4, "steps_per_generation": 1}
            return Arm(base, bound, steps // 4, {"era_k": value, **lots})
    raise ValueError(f"{method}: not a method of {sorted(NAMES)}")
