# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era.verl.main_ppo with verl's real V1 trainer, Ray and TransferQueue, on a CPU: GRPO beside ERA."""

import environment
import pytest
from environment import train, workers

environment.require()

ERA = "actor_rollout_ref.actor.era."
ON = [f"{ERA}enable=True", f"{ERA}low=3.0", f"{ERA}high=9.0"]  # the tiny model's entropies are near ln 50 = 3.9
DAPO = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"]
OFF_POLICY = ["actor_rollout_ref.actor.ppo_mini_batch_size=4"]


@pytest.mark.slow
@pytest.mark.parametrize("version", environment.VERSIONS)
def test_era_with_the_group_filter_saves_and_resumes(tmp_path, version):
    save = ["trainer.save_freq=3", "trainer.total_training_steps=3"]
    steps, printed = train(tmp_path, *ON, *DAPO, *OFF_POLICY, *save, version=version)
    assert workers(printed) == ("EraActorRolloutRefWorker", "EraTrainer", "sync", "ReplayBuffer")
    assert len(steps) == 3
    for step in steps:
        assert 3 < step["era/response_entropy"] < 4 and step["era/low_fraction"] == step["era/high_fraction"] == 0
        assert not any(name.startswith("actor/era") for name in step)
    # On-policy from there, with all responses below omega_low.
    on_policy = ["trainer.total_training_steps=4", f"{ERA}low=8.0"]
    (resumed,), _ = train(tmp_path, *ON, *DAPO, *on_policy, version=version)
    assert resumed["training/global_step"] == 4
    assert resumed["era/low_fraction"] == 1 and 0 < resumed["era/scaled_token_fraction"] < 1
    assert resumed["actor/ppo_kl"] == resumed["actor/pg_clipfrac"] == 0, "the ratio is exactly 1"


@pytest.mark.slow
def test_colocate_async_trains_saves_and_resumes(tmp_path):
    mode = ["trainer.v1.trainer_mode=colocate_async", f"{ERA}low=8.0", "trainer.save_freq=2"]
    steps, printed = train(tmp_path, *ON, *mode, "trainer.total_training_steps=2")
    expected = ("EraActorRolloutRefWorker", "EraColocateAsyncTrainer", "colocate_async", "ReplayBufferAsync")
    assert workers(printed) == expected
    (resumed,), _ = train(tmp_path, *ON, *mode, "trainer.total_training_steps=3")
    assert [step["training/global_step"] for step in (*steps, resumed)] == [1, 2, 3]
    for step in (*steps, resumed):
        assert step["era/low_fraction"] == 1 and 0 < step["era/scaled_token_fraction"] < 1
        assert step["actor/ppo_kl"] == step["actor/pg_clipfrac"] == 0, "one step on old log-probs of the same weights"


@pytest.mark.slow
def test_grpo_is_verls_own_trainer_and_worker(tmp_path):
    steps, printed = train(tmp_path)
    assert workers(printed) == ("ActorRolloutRefWorker", "PPOTrainerSync", "sync", "ReplayBuffer")
    assert len(steps) == 3 and not any("era/" in name for name in steps[0])
