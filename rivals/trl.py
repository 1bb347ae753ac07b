# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The runs of docs/rivals/trl-hold.md: GRPO, ERA and TRL's adaptive entropy bonus on SmolLM2-135M."""

from dataclasses import dataclass, field
from typing import Any

LEARNING_RATE, ANSWERS = 1e-5, 32
STEPS = {"pairs": 150, "pairs50-400": 400}  # a dash parts the demo's task from the rest
# Task, methods with their settings, and seeds, in the order in which they are trained: what is most worth knowing comes
# first. Behind an @ a setting has a bound of its own, in nats.
HOLD_SEEDS, LATER_SEEDS = (4, 5, 6), (8, 9)  # 7 was a pilot's
HOLD = (
    ("pairs", {"era-hold": ("8",), "grpo": ("0",), "era-k": ("8",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("2", "4"), "era-negative": ("0",), "adaptive": ("0.28",)}, HOLD_SEEDS),
    ("pairs50-400", {"era-hold": ("8",), "grpo": ("0",), "era-k": ("8",), "era-negative": ("0",)}, HOLD_SEEDS),
    ("pairs50-400", {"era": ("1.6",), "grpo-negative": ("0",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("8@0.8", "8@1.6"), "grpo-negative": ("0",)}, HOLD_SEEDS),
    ("pairs", {"grpo-stopped": ("8",)}, HOLD_SEEDS),
    ("pairs50-400", {"grpo-stopped": ("8",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("1",), "grpo-rate": ("0.25",), "era": ("1.2",), "era-k": ("4",)}, HOLD_SEEDS),
    ("pairs50-400", {"era-hold": ("4", "2"), "adaptive": ("0.46",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("8",), "grpo": ("0",), "era-k": ("8",), "era-negative": ("0",)}, LATER_SEEDS),
    ("pairs", {"era-hold": ("2@0.8", "4@0.8"), "era-k": ("8@0.8",), "adaptive": ("0.2",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("2@1.6", "4@1.6"), "era-k": ("8@1.6",), "adaptive": ("0.4",)}, HOLD_SEEDS),
    ("pairs50-400", {"era-hold": ("1",), "grpo-rate": ("0.25",), "era-k": ("4",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("1@0.8",), "era-negative": ("0@0.8",), "era": ("0.8",), "era-k": ("4@0.8",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("1@1.6",), "era-negative": ("0@1.6",), "era": ("1.6",), "era-k": ("4@1.6",)}, HOLD_SEEDS),
)
WARM_UP = {"warm-up": ("0",)}
# ERA's where its setting is not the bound, in nats
BOUND = {"pairs": 1.2, "pairs50-400": 1.6}
# Of each task and bound in nats: the bonus's target of the same entropy.
BONUS_TARGETS = {("pairs", 1.2): "0.28", ("pairs50-400", 1.6): "0.46", ("pairs", 0.8): "0.2", ("pairs", 1.6): "0.4"}


def methods_of(task: str) -> dict[str, list[str]]:
    """The methods that the protocol has on a task, and their settings."""
    known: dict[str, list[str]] = {}
    for of_block, methods, _ in HOLD:
        for method, settings in methods.items() if of_block == task else ():
            known.setdefault(method, []).extend(one for one in settings if one not in known.get(method, ()))
    return known


@dataclass(frozen=True)
class Arm:
    """What a method and its setting stand for.

    Attributes:
        base: the method of demo.trl.settings.
        bound: its era_low or entropy_target in nats.
        steps: updates.
        changes: fields of EraGRPOConfig that differ from the demo's.
        negative_weight: what negative advantages are multiplied by.
        stopped_at: the k of the recorded run with hold, of the same seed, at whose reward it is stopped; "" for none.
    """

    base: str
    bound: float
    steps: int
    changes: dict[str, Any] = field(default_factory=dict)
    negative_weight: float = 1.0
    stopped_at: str = ""


def arm(task: str, method: str, setting: str) -> Arm:
    of_method, _, own_bound = setting.partition("@")
    value, base, steps = float(of_method), method.partition("-")[0], STEPS[task]
    bound = float(own_bound or BOUND.get(task, 0.0)) if base == "era" else 0.0
    match method:
        case "grpo" | "era" | "adaptive":
            return Arm(base, value, steps)
        case "grpo-stopped":
            return Arm(base, bound, steps, {"save_strategy": "no"}, stopped_at=setting)  # 8 updates' weights, in memory
        case "era-negative" | "grpo-negative":
            return Arm(base, bound, steps, negative_weight=value)
        case "grpo-rate":
            return Arm(base, bound, steps, {"learning_rate": value * LEARNING_RATE})
        case "era-k":
            return Arm(base, bound, steps, {"era_k": value})
        case "era-hold":
            return Arm(base, bound, steps, {"era_k": value, "era_hold": True})
    raise ValueError(f"{method}: the protocol has no such method")
