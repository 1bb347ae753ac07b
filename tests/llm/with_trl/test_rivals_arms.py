# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The arms of docs/rivals/trl-bound.md and trl-hold.md: what each changes."""

import pytest
import tiny_grpo  # which skips these tests where TRL is not installed
import torch

from era.trl import EraGRPOTrainer
from rivals import trl
from rivals.trl_dynamic_sampling import DynamicSamplingMixin
from rivals.trl_run import trainer_of


def test_every_arm_of_the_protocols_is_what_its_name_says():
    arms = {
        (method, setting): trl.arm("pairs", method, setting)
        for method, settings in trl.methods_of("pairs").items()
        for setting in settings
    }
    assert {arm.base for (method, _), arm in arms.items() if method.startswith("era")} == {"era"}
    differences = {
        ("grpo", "0"): ("grpo", 0.0, {}),
        ("era", "0.6"): ("era", 0.6, {}),
        ("era", "1.2"): ("era", 1.2, {}),
        ("era", "0.8"): ("era", 0.8, {}),
        ("era", "1.6"): ("era", 1.6, {}),
        **{("adaptive", target): ("adaptive", float(target), {}) for target in ["0.2", "0.22", "0.28", "0.4", "0.45"]},
        ("era-k", "4"): ("era", 1.2, {"era_k": 4.0}),
        ("era-k", "8"): ("era", 1.2, {"era_k": 8.0}),
        ("era-hold", "8"): ("era", 1.2, {"era_k": 8.0, "era_hold": True}),
        ("era-negative", "0.5"): ("era", 1.2, {}),
        ("era-negative", "0"): ("era", 1.2, {}),
        ("grpo-negative", "0.5"): ("grpo", 0.0, {}),
        ("grpo-negative", "0"): ("grpo", 0.0, {}),
        ("grpo-rate", "0.25"): ("grpo", 0.0, {"learning_rate": 2.5e-6}),
        ("era-scaled", "4"): ("era", 1.2, {"era_k": 4.0, "era_scale_advantages": True}),
        ("era-dynamic", "4"): ("era", 1.2, {"era_k": 4.0}),
        ("era-answers", "4"): (
            "era",
            1.2,
            {"era_k": 4.0, "gradient_accumulation_steps": 4, "steps_per_generation": 1},
        ),
    }
    for k in "124":
        differences["era-hold", k] = ("era", 1.2, {"era_k": float(k), "era_hold": True})
    for bound in ("0.8", "1.6"):
        for k in "1248":
            differences["era-hold", f"{k}@{bound}"] = ("era", float(bound), {"era_k": float(k), "era_hold": True})
        for k in "48":
            differences["era-k", f"{k}@{bound}"] = ("era", float(bound), {"era_k": float(k)})
        differences["era-negative", f"0@{bound}"] = ("era", float(bound), {})
    assert {name: (arm.base, arm.bound, arm.changes) for name, arm in arms.items()} == differences
    weights = {name: arm.negative_weight for name, arm in arms.items() if arm.negative_weight != 1}
    halved = {("era-negative", "0.5"): 0.5, ("grpo-negative", "0.5"): 0.5}
    without = [("grpo-negative", "0"), *(("era-negative", setting) for setting in ("0", "0@0.8", "0@1.6"))]
    assert weights == halved | dict.fromkeys(without, 0.0)
    assert [name for name, arm in arms.items() if arm.dynamic_sampling] == [("era-dynamic", "4")]
    assert {name: arm.steps for name, arm in arms.items() if arm.steps != 150} == {("era-answers", "4"): 37}


@pytest.mark.parametrize("task, steps", [("pairs50", 130), ("pairs50-400", 400)])
def test_arms_of_the_second_task(task, steps):
    arms = [trl.arm(task, method, setting) for method, values in trl.methods_of(task).items() for setting in values]
    assert {arm.steps for arm in arms} == {steps} and {arm.bound for arm in arms if arm.base == "era"} == {1.6}


def test_one_arm_replaces_groups():
    assert trainer_of(trl.arm("pairs", "era-k", "8")) is EraGRPOTrainer
    assert issubclass(trainer_of(trl.arm("pairs", "era-dynamic", "4")), DynamicSamplingMixin)


@pytest.mark.parametrize("policy", [{}, tiny_grpo.OFF_POLICY], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize("method", ["era-negative", "grpo-negative"])
def test_negative_advantages_are_weighted_and_all_else_is_the_trainers(method, policy):
    """An update is, to the bit, the trainer's own with rewards whose advantages are weighted by hand."""
    arm = trl.arm("pairs", method, "0.5")
    settings = {**tiny_grpo.ERA, "era_k": 2.0 if arm.base == "era" else 1.0, **policy}

    class ByHand(EraGRPOTrainer):
        def _compute_loss(self, model, inputs):
            advantages = inputs["advantages"]
            halved = torch.where(advantages < 0, advantages / 2, advantages)
            return super()._compute_loss(model, {**inputs, "advantages": halved})

    trainers = (trainer_of(arm), ByHand, EraGRPOTrainer)
    found, expected, plain = (
        tiny_grpo.weights(tiny_grpo.train(one, tiny_grpo.model(), **settings)[0]) for one in trainers
    )
    assert tiny_grpo.same(found, expected) and not tiny_grpo.same(found, plain)
