# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""DynamicSamplingMixin in TRL's trainer: what it trains, against what the reward function saw."""

import pytest
import tiny_grpo
import torch
import trl
from sampled_again import DynamicEra, DynamicPlain, Judge, OfManyLengths, problems, prompts
from tiny_grpo import ERA, OFF_POLICY, Era, Plain, model, on_two_processes, same, train, weights

from era.trl import EraGRPOTrainer
from rivals.trl_dynamic_sampling import DynamicSamplingMixin, groups_with_advantage

pytestmark = pytest.mark.usefixtures("one_thread")

# Two updates for each batch, whose micro-batches are used once.
BATCH = {"num_iterations": 1, "steps_per_generation": 2, "gradient_accumulation_steps": 1}
KL = {"beta": 0.2, "use_bias_correction_kl": True}
CASES = {
    "GRPO": (DynamicPlain, {}),
    "ERA": (DynamicEra, ERA),
    "ERA, off-policy": (DynamicEra, {**ERA, **OFF_POLICY, **BATCH}),
    "ERA, off-policy, KL loss": (DynamicEra, {**ERA, **OFF_POLICY, **BATCH, **KL}),
    "ERA, truncated answers masked": (DynamicEra, {**ERA, "mask_truncated_completions": True}),
    "three rounds at most": (type("Few", (DynamicEra,), {"max_rounds": 3}), ERA),
}


@pytest.mark.parametrize("trainer_class, settings", CASES.values(), ids=CASES)
def test_groups_without_advantage_are_replaced(trainer_class, settings):
    judge = Judge()
    trainer, start = train(trainer_class, model(), reward=judge, train_dataset=prompts(), **settings)
    assert problems(trainer, start, [trainer.seen], [judge.asked]) == []


PADDED = {**ERA, **OFF_POLICY, **BATCH}
OF_THE_SAMPLER = {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}


@pytest.mark.parametrize(
    "settings",
    [
        {"era_scale_advantages": True},
        {"era_hold": True},
        {"era_scale_advantages": True, "loss_type": "grpo", "importance_sampling_level": "sequence"},
        {**OF_THE_SAMPLER, "era_scale_advantages": True},
        {**OF_THE_SAMPLER, "loss_type": "vespo"},
    ],
)
def test_padding_changes_nothing(settings, monkeypatch):
    """Of answers that were joined with longer ones: what a loss divides by, or takes the logarithm of, is 1 there."""
    monkeypatch.setattr(trl.trainer.grpo_trainer, "VLLMGeneration", tiny_grpo.Sampler)
    judge, answers = Judge(), OfManyLengths()
    settings = {**PADDED, **settings, "rollout_func": answers, "reward": judge, "train_dataset": prompts()}
    trainer, start = train(DynamicEra, model(), **settings)
    assert any(batch["completion_mask"].sum(-1).max() < batch["completion_ids"].size(1) for batch in trainer.seen)
    assert problems(trainer, start, [trainer.seen], [judge.asked]) == []


def test_equal_advantages_are_none_even_where_a_rounded_mean_leaves_them():
    advantages = torch.tensor([6e-9, 6e-9, 6e-9, 0.0, 0.0, 1.2])
    assert groups_with_advantage(advantages, 3).tolist() == [False, True]
    assert groups_with_advantage(advantages.unsqueeze(-1).expand(6, 4), 3).tolist() == [False, True]


def test_on_two_processes_that_share_a_group(tmp_path):
    assert on_two_processes("sampled_again.py", tiny_grpo.write(tmp_path, torch.double)) == {"problems": []}


@pytest.mark.parametrize("ours, trls, settings", [(DynamicPlain, Plain, {}), (DynamicEra, Era, {**ERA, **OFF_POLICY})])
def test_where_all_groups_train_nothing_changes(ours, trls, settings):
    def differs(completions, **_):
        return [float(number % 4) for number, _ in enumerate(completions)]

    with_mixin, alone = (train(one, model(), reward=differs, **settings)[0] for one in (ours, trls))
    assert same(weights(with_mixin), weights(alone))
    logged = [row for row in with_mixin.state.log_history if "dynamic_sampling/rounds" in row]
    assert logged and all(row["dynamic_sampling/rounds"] == row["dynamic_sampling/filled"] == 1 for row in logged)


def test_the_log_says_what_could_not_be_filled():
    few = type("Few", (DynamicEra,), {"max_rounds": 3})
    trainer, _ = train(few, model(), reward=lambda completions, **_: [0.3] * len(completions), **ERA)
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert [(row["dynamic_sampling/rounds"], row["dynamic_sampling/filled"]) for row in logged] == [(3, 0)] * 3


@pytest.mark.parametrize("rounds", [0, 2.5, True, None])
def test_a_number_of_rounds_that_never_ends_is_refused(rounds):
    with pytest.raises(ValueError, match=f"max_rounds={rounds}, but it is how many batches"):
        train(type("Endless", (DynamicEra,), {"max_rounds": rounds}), model(), **ERA)


def test_a_resumed_run_draws_the_same_prompts(tmp_path):
    settings = {**ERA, "max_steps": 4, "reward": Judge()}
    whole, _ = train(DynamicEra, model(), **settings)
    train(DynamicEra, model(), **settings, save_strategy="steps", save_steps=2, output_dir=str(tmp_path))
    resumed, _ = train(DynamicEra, model(), **settings, resume=str(tmp_path / "checkpoint-2"))
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize("bases", [(EraGRPOTrainer, DynamicSamplingMixin), (trl.GRPOTrainer, DynamicSamplingMixin)])
def test_a_misplaced_mixin_is_refused(bases):
    with pytest.raises(TypeError, match="precedes DynamicSamplingMixin"):
        type("Misplaced", bases, {})


def test_a_streamed_dataset_is_refused():
    streamed = tiny_grpo.prompts().to_iterable_dataset()
    with pytest.raises(TypeError, match="streamed one cannot be indexed"):
        tiny_grpo.build(DynamicEra, model(), train_dataset=streamed, **ERA)


def test_a_batch_with_more_than_text_is_refused():
    class WithTypes(Era):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            return {**output, "token_type_ids": output["prompt_ids"]}

    with pytest.raises(ValueError, match="token_type_ids"):
        train(type("Dynamic", (DynamicSamplingMixin, WithTypes), {}), model(), **ERA)
