# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era.verl.main_ppo with verl's real V1 trainer, Ray and TransferQueue, on a CPU: GRPO beside ERA."""

import json
import re
from pathlib import Path

import environment
import pytest

environment.require()

ERA = "actor_rollout_ref.actor.era."
ON = [f"{ERA}enable=True", f"{ERA}low=3.0", f"{ERA}high=9.0"]  # the tiny model's entropies are near ln 50 = 3.9
DAPO = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"]
OFF_POLICY = ["actor_rollout_ref.actor.ppo_mini_batch_size=4"]


SCRIPT = Path(environment.__file__).with_name("trainer_run.py")


def start(folder, *overrides, version="0.9.1"):
    variables = {"VERL_FILE_LOGGER_PATH": str(folder / "log.jsonl")}
    verl = environment.tree_of(version)
    return environment.run([SCRIPT], folder, *overrides, verl=verl, environment=variables, folder=folder)


def train(folder, *overrides, version="0.9.1"):
    """The metrics of each step, and what was printed."""
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    result = start(folder, *overrides, version=version)
    assert result.returncode == 0, result.stdout[-10000:] + result.stderr[-10000:]
    return [json.loads(line)["data"] for line in log.read_text().splitlines()], result.stdout


def workers(printed):
    """(worker class, trainer class, trainer mode, replay buffer) of the run."""
    return re.search(r"WORKER \S+ (\w+) TRAINER (\w+) (\w+) (\w+)", printed).groups()


@pytest.mark.slow
@pytest.mark.parametrize("version", environment.VERSIONS)
def test_era_off_policy_with_the_group_filter_saves_and_resumes(tmp_path, version):
    save = ["trainer.save_freq=3", "trainer.total_training_steps=3"]
    steps, printed = train(tmp_path, *ON, *DAPO, *OFF_POLICY, *save, version=version)
    assert workers(printed) == ("EraActorRolloutRefWorker", "EraTrainer", "sync", "ReplayBuffer")
    assert len(steps) == 3
    for step in steps:
        assert 3 < step["era/response_entropy"] < 4 and step["era/low_fraction"] == step["era/high_fraction"] == 0
        assert not any(name.startswith("actor/era") for name in step)
    resumed, _ = train(tmp_path, *ON, *DAPO, *OFF_POLICY, "trainer.total_training_steps=4", version=version)
    assert [step["training/global_step"] for step in resumed] == [4]


@pytest.mark.slow
def test_grpo_is_verls_own_trainer_and_worker(tmp_path):
    steps, printed = train(tmp_path)
    assert workers(printed) == ("ActorRolloutRefWorker", "PPOTrainerSync", "sync", "ReplayBuffer")
    assert len(steps) == 3 and not any("era/" in name for name in steps[0])


@pytest.mark.slow
def test_a_process_that_cannot_import_the_plugin(tmp_path):
    """Ray's processes have another PYTHONPATH than the driver."""
    (tmp_path / "demo").symlink_to(environment.ROOT / "demo")  # which verl imports for its platform
    others = ":".join(map(str, [environment.tree_of("0.9.1"), SCRIPT.parent, SCRIPT.parents[1], tmp_path]))
    result = start(tmp_path, *ON, f"+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH={others}")
    assert result.returncode == 1
    assert "could not import ERA's plug-in: ModuleNotFoundError: No module named 'era'\n" in result.stderr
    assert result.stderr.strip().endswith("before `ray start`. Nothing was trained.")


@pytest.mark.slow
def test_scaled_updates(tmp_path):
    """All responses are below omega_low: every token of positive advantage is scaled, and the ratio is still 1."""
    steps, _ = train(tmp_path, *ON, f"{ERA}low=8.0")
    for step in steps:
        assert step["era/low_fraction"] == 1 and 0 < step["era/scaled_token_fraction"] < 1
        assert step["actor/ppo_kl"] == step["actor/pg_clipfrac"] == 0
