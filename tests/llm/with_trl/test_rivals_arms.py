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

ARMS = {  # one of each method; a bound of its own stands behind an @
    ("grpo", "0"): trl.Arm("grpo", 0.0, 150),
    ("era", "0.8"): trl.Arm("era", 0.8, 150),
    ("adaptive", "0.28"): trl.Arm("adaptive", 0.28, 150),
    ("era-k", "8@1.6"): trl.Arm("era", 1.6, 150, {"era_k": 8.0}),
    ("era-hold", "2"): trl.Arm("era", 1.2, 150, {"era_k": 2.0, "era_hold": True}),
    ("era-negative", "0@0.8"): trl.Arm("era", 0.8, 150, negative_weight=0.0),
    ("grpo-negative", "0.5"): trl.Arm("grpo", 0.0, 150, negative_weight=0.5),
    ("grpo-rate", "0.25"): trl.Arm("grpo", 0.0, 150, {"learning_rate": 2.5e-6}),
    ("era-scaled", "4"): trl.Arm("era", 1.2, 150, {"era_k": 4.0, "era_scale_advantages": True}),
    ("era-dynamic", "4"): trl.Arm("era", 1.2, 150, {"era_k": 4.0}, dynamic_sampling=True),
    ("era-answers", "4"): trl.Arm(
        "era", 1.2, 37, {"era_k": 4.0, "gradient_accumulation_steps": 4, "steps_per_generation": 1}
    ),
}


def test_arm_is_what_its_name_says():
    assert {name: trl.arm("pairs", *name) for name in ARMS} == ARMS
    assert {method for method, _ in ARMS} == trl.methods_of("pairs").keys()


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
