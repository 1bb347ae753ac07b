# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""GRPO, ERA and TRL's adaptive entropy bonus on SmolLM2-135M.

The protocols are docs/rivals/trl.md, trl-bound.md and trl-hold.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEARNING_RATE, ANSWERS = 1e-5, 32
STEPS = {"pairs": 150, "sums": 150, "pairs50": 130, "pairs50-400": 400}  # a dash parts the demo's task from the rest
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
# Those of trl-hold.md, in the order in which they are trained: what is most worth knowing comes first. Behind an @ a
# setting has a bound of its own, in nats.
HOLD_SEEDS, LATER_SEEDS = (4, 5, 6), (8, 9)  # 7 was a pilot's
HOLD = (
    ("pairs", {"era-hold": ("8",), "grpo": ("0",), "era-k": ("8",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("2", "4"), "era-negative": ("0",), "adaptive": ("0.28",)}, HOLD_SEEDS),
    ("pairs50-400", {"era-hold": ("8",), "grpo": ("0",), "era-k": ("8",), "era-negative": ("0",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("8@0.8", "8@1.6")}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("1",), "grpo-rate": ("0.25",), "era": ("1.2",), "era-k": ("4",)}, HOLD_SEEDS),
    ("pairs50-400", {"era-hold": ("4", "2"), "adaptive": ("0.46",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("8",), "grpo": ("0",), "era-k": ("8",), "era-negative": ("0",)}, LATER_SEEDS),
    ("pairs", {"era-hold": ("2@0.8", "4@0.8"), "era-k": ("8@0.8",), "adaptive": ("0.2",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("2@1.6", "4@1.6"), "era-k": ("8@1.6",), "adaptive": ("0.4",)}, HOLD_SEEDS),
    ("pairs50-400", {"era-hold": ("1",), "grpo-rate": ("0.25",), "era": ("1.6",), "era-k": ("4",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("1@0.8",), "era-negative": ("0@0.8",), "era": ("0.8",), "era-k": ("4@0.8",)}, HOLD_SEEDS),
    ("pairs", {"era-hold": ("1@1.6",), "era-negative": ("0@1.6",), "era": ("1.6",), "era-k": ("4@1.6",)}, HOLD_SEEDS),
)
NAMES = {
    "grpo": "GRPO",
    "era": "ERA, {} nats",
    "era-hold": "ERA with hold, k = {}",
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
# Of ERA where its setting is none, nats
BOUND = {"pairs": 1.2, "pairs50": 1.6, "pairs50-400": 1.6}
# The tasks and bounds of trl-hold.md, and the bonus's target of the same entropy.
HELD = {("pairs", 1.2): "0.28", ("pairs50-400", 1.6): "0.46", ("pairs", 0.8): "0.2", ("pairs", 1.6): "0.4"}


def name(method: str, setting: str) -> str:
    """The name of an arm, as the pages have it."""
    return NAMES[method].format(setting.partition("@")[0])


def blocks() -> Iterator[tuple[str, Mapping[str, Sequence[str]], Sequence[int]]]:
    """The task, the methods with their settings, and the seeds of all protocols, in the order of the runs."""
    for methods in (TASKS, ADDED):
        yield from ((task, of_task, SEEDS) for task, of_task in methods.items())
    yield from HOLD


def methods_of(task: str) -> dict[str, list[str]]:
    """The methods that a task's protocols have, and their settings."""
    known = {}
    for of_block, methods, _ in blocks():
        for method, settings in methods.items() if of_block == task else ():
            known.setdefault(method, []).extend(one for one in settings if one not in known.get(method, ()))
    return known


def hold_arms(task: str, bound: float) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The method and setting of the arms of trl-hold.md with this bound: the first, its rivals, and all others."""
    at = "" if bound == BOUND[task] else f"@{bound:g}"
    first, *held = (("era-hold", f"{k}{at}") for k in (8, 4, 2, 1))
    rivals = [("grpo", "0"), ("era-k", f"8{at}"), ("era-negative", f"0{at}"), ("adaptive", HELD[task, bound])]
    return [first, *rivals, ("grpo-rate", "0.25")], [*held, ("era-k", f"4{at}"), ("era", f"{bound:g}")]


@dataclass(frozen=True)
class Arm:
    """What a method and its setting stand for.

    Attributes:
        base: the method of demo.trl.settings.
        bound: its era_low or entropy_target in nats.
        steps: updates.
        changes: fields of EraGRPOConfig that differ from the demo's.
        negative_weight: what negative advantages are multiplied by.
        dynamic_sampling: whether groups without advantage are replaced.
    """

    base: str
    bound: float
    steps: int
    changes: dict[str, Any] = field(default_factory=dict)
    negative_weight: float = 1.0
    dynamic_sampling: bool = False


def arm(task: str, method: str, setting: str) -> Arm:
    of_method, _, own_bound = setting.partition("@")
    value, base, steps = float(of_method), method.partition("-")[0], STEPS[task]
    bound = float(own_bound or BOUND.get(task, 0.0)) if base == "era" else 0.0
    match method:
        case "grpo" | "era" | "adaptive":
            return Arm(base, value, steps)
        case "era-negative" | "grpo-negative":
            return Arm(base, bound, steps, negative_weight=value)
        case "grpo-rate":
            return Arm(base, bound, steps, {"learning_rate": value * LEARNING_RATE})
        case "era-k":
            return Arm(base, bound, steps, {"era_k": value})
        case "era-hold":
            return Arm(base, bound, steps, {"era_k": value, "era_hold": True})
        case "era-scaled":
            return Arm(base, bound, steps, {"era_k": value, "era_scale_advantages": True})
        case "era-dynamic":
            return Arm(base, bound, steps, {"era_k": value}, dynamic_sampling=True)
        case "era-answers":  # four lots of answers in an update, and a quarter of the updates
            lots = {"gradient_accumulation_steps": 4, "steps_per_generation": 1}
            return Arm(base, bound, steps // 4, {"era_k": value, **lots})
    raise ValueError(f"{method}: not a method of {sorted(NAMES)}")
