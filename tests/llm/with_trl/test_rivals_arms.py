# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The arms of docs/rivals/trl-bound.md: what each changes."""

import tiny_grpo  # noqa: F401 - skips these tests where TRL is not installed

from era.trl import EraGRPOTrainer
from era.trl_dynamic_sampling import DynamicSamplingMixin
from rivals import trl
from rivals.trl_run import trainer_of


def test_every_arm_of_the_protocols_is_what_its_name_says():
    arms = {
        (method, setting): trl.arm("pairs", method, setting)
        for methods in (trl.TASKS["pairs"], trl.ADDED["pairs"])
        for method, settings in methods.items()
        for setting in settings
    }
    differences = {
        ("grpo", "0"): ("grpo", 0.0, {}),
        ("era", "0.6"): ("era", 0.6, {}),
        ("era", "1.2"): ("era", 1.2, {}),
        ("adaptive", "0.22"): ("adaptive", 0.22, {}),
        ("adaptive", "0.45"): ("adaptive", 0.45, {}),
        ("era-k", "4"): ("era", 1.2, {"era_k": 4.0}),
        ("era-k", "8"): ("era", 1.2, {"era_k": 8.0}),
        ("era-negative", "0.5"): ("era", 1.2, {"era_negative_weight": 0.5}),
        ("era-negative", "0"): ("era", 1.2, {"era_negative_weight": 0.0}),
        ("grpo-negative", "0.5"): ("grpo", 0.0, {"era_negative_weight": 0.5}),
        ("grpo-negative", "0"): ("grpo", 0.0, {"era_negative_weight": 0.0}),
        ("grpo-rate", "0.25"): ("grpo", 0.0, {"learning_rate": 2.5e-6}),
        ("era-scaled", "4"): ("era", 1.2, {"era_k": 4.0, "era_scale_advantages": True}),
        ("era-dynamic", "4"): ("era", 1.2, {"era_k": 4.0}),
        ("era-answers", "4"): (
            "era",
            1.2,
            {"era_k": 4.0, "gradient_accumulation_steps": 4, "steps_per_generation": 1},
        ),
    }
    assert {name: (arm.base, arm.bound, arm.changes) for name, arm in arms.items()} == differences
    assert [name for name, arm in arms.items() if arm.dynamic_sampling] == [("era-dynamic", "4")]
    assert {name: arm.steps for name, arm in arms.items() if arm.steps != 150} == {("era-answers", "4"): 37}
    second = {method: trl.arm("pairs50", method, *setting) for method, setting in trl.ADDED["pairs50"].items()}
    assert {method: (arm.base, arm.bound, arm.changes) for method, arm in second.items()} == {
        "grpo": ("grpo", 0.0, {}),
        "grpo-rate": ("grpo", 0.0, {"learning_rate": 2.5e-6}),
        "adaptive": ("adaptive", 0.23, {}),
        "era-k": ("era", 1.6, {"era_k": 8.0}),
        "era-negative": ("era", 1.6, {"era_negative_weight": 0.0}),
    }
    assert {arm.steps for arm in second.values()} == {130}


def test_one_arm_replaces_groups():
    assert trainer_of(trl.arm("pairs", "era-k", "8")) is EraGRPOTrainer
    assert issubclass(trainer_of(trl.arm("pairs", "era-dynamic", "4")), DynamicSamplingMixin)
