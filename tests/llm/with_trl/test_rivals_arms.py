# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The arms of docs/rivals/trl-hold.md in TRL: what each changes."""

import pytest
import tiny_grpo  # which skips these tests where TRL is not installed

from era.trl import EraGRPOTrainer
from rivals import equal, trl
from rivals.trl_run import trainer_of

ARMS = {  # one of each method; a bound of its own stands behind an @
    ("grpo", "0"): trl.Arm("grpo", 0.0, 150),
    ("era", "0.8"): trl.Arm("era", 0.8, 150),
    ("adaptive", "0.28"): trl.Arm("adaptive", 0.28, 150),
    ("era-k", "8@1.6"): trl.Arm("era", 1.6, 150, {"era_k": 8.0}),
    ("era-hold", "2"): trl.Arm("era", 1.2, 150, {"era_k": 2.0, "era_hold": True}),
    ("era-negative", "0@0.8"): trl.Arm("era", 0.8, 150, negative_weight=0.0),
    ("grpo-negative", "0"): trl.Arm("grpo", 0.0, 150, negative_weight=0.0),
    ("grpo-rate", "0.25"): trl.Arm("grpo", 0.0, 150, {"learning_rate": 2.5e-6}),
    ("grpo-stopped", "8"): trl.Arm("grpo", 0.0, 150, {"save_strategy": "no"}, stopped_at="8"),
}


def test_arm_is_what_its_name_says():
    assert {name: trl.arm("pairs", *name) for name in ARMS} == ARMS
    assert {method for method, _ in ARMS} == trl.methods_of("pairs").keys()


def test_arms_of_the_longer_task():
    known = trl.methods_of("pairs50-400")
    arms = [trl.arm("pairs50-400", method, setting) for method, values in known.items() for setting in values]
    assert {arm.steps for arm in arms} == {400} and {arm.bound for arm in arms if arm.base == "era"} == {1.6}


@pytest.mark.parametrize("policy", [{}, tiny_grpo.OFF_POLICY], ids=["on-policy", "off-policy"])
def test_negative_advantages_are_left_out_and_all_else_is_the_trainers(policy):
    """An update is, to the bit, the trainer's own with rewards whose negative advantages are 0 by hand."""
    arm = trl.arm("pairs", "era-negative", "0")
    settings = {**tiny_grpo.ERA, "era_k": 2.0, **policy}

    class ByHand(EraGRPOTrainer):
        def _compute_loss(self, model, inputs):
            advantages = inputs["advantages"]
            return super()._compute_loss(model, {**inputs, "advantages": advantages.clamp(min=0)})

    assert trainer_of(trl.arm("pairs", "era-k", "8")) is EraGRPOTrainer
    trainers = (trainer_of(arm), ByHand, EraGRPOTrainer)
    found, expected, plain = (
        tiny_grpo.weights(tiny_grpo.train(one, tiny_grpo.model(), **settings)[0]) for one in trainers
    )
    assert tiny_grpo.same(found, expected) and not tiny_grpo.same(found, plain)


def test_a_stopped_run_has_the_weights_of_the_middle_update():
    """To the bit, those of a training that lasts as many updates."""
    grpo = {**tiny_grpo.ERA, "era_k": 1.0, "train_dataset": tiny_grpo.prompts(2 * 20)}

    def train(trainer, updates=20):
        return tiny_grpo.train(trainer, tiny_grpo.model(), max_steps=updates, **grpo)[0]

    arm, whole = trl.arm("pairs", "grpo-stopped", "8"), train(EraGRPOTrainer)
    rewards = [row["reward"] for row in whole.state.log_history if "reward" in row]
    stop = sum(rewards[2:17]) / equal.WINDOW - 1e-9  # the first such mean is at most at update 17
    middle, stopped = equal.middle_update(rewards, stop), train(trainer_of(arm, stop))
    assert stopped.state.global_step == middle + 7 < 20
    assert tiny_grpo.same(tiny_grpo.weights(stopped), tiny_grpo.weights(train(EraGRPOTrainer, middle)))
    assert tiny_grpo.same(tiny_grpo.weights(train(trainer_of(arm, 99.0))), tiny_grpo.weights(whole))
