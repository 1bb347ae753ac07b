# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
# ruff: noqa: E402
"""recipes/control/sac_train.py: short real runs, the paper's settings, and the tasks."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import plugin_helpers

plugin_helpers.require()

import jax
import numpy as np
import pytest

from recipes.control import environments, sac_train
from recipes.whole import incomplete_because

ROOT = Path(__file__).resolve().parents[3]

TINY = ["--eval_every", "60", "--eval_episodes", "1", "--learning_starts", "20", "--width", "16", "--batch_size", "16"]
TINY += ["--total_timesteps", "100", "--buffer_size", "200"]
pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")


def start(folder, *words, **variables):
    """The script in a folder of the run's own."""
    command = [sys.executable, ROOT / "recipes/control/sac_train.py", "--task", "Hopper-v4", "--seed", "3", *TINY]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([*command, *words], cwd=folder, env=given, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--era",),
        ("--era", "--learn_delta", "--level", "batch", "--distribution", "tanh"),
        ("--obac", "reward"),
    ],
)
def test_short_run(flags, tmp_path):
    folder = tmp_path / "Hopper-v4-some-seed3"
    folder.mkdir()
    result = start(folder, *flags, ERA_RUN=json.dumps({"agent": "some", "commit": "0123"}))
    assert result.returncode == 0, result.stderr
    found = list(csv.DictReader((folder / "train.csv").open()))
    assert [row["global_step"] for row in found] == ["60", "100"] and (folder / "model.zip").is_file()
    assert all(math.isfinite(float(value)) for row in found for value in row.values())
    assert {row["target_per_dim"] for row in found} == {"-0.5"}
    assert (float(found[-1]["alpha"]) > 0.9) == ("--era" not in flags)
    assert (float(found[-1]["delta"]) > 0) == ("--learn_delta" in flags)
    assert ("imitation_share" in found[0]) == ("--obac" in flags)
    record = json.loads((folder / "run.json").read_text())
    assert incomplete_because(folder) == "" and record["total_steps"] == 100 and record["agent"] == "some"
    assert record["commit"] == "0123" and record["as_paper"] is None  # nobody said
    assert record["host"] == "sac" and record["seed"] == 3 and record["versions"]["sbx-rl"]
    if not flags:
        again = start(folder)
        assert again.returncode == 1 and "holds a finished run (run.json, train.csv, model.zip)" in again.stderr
        assert json.loads((folder / "run.json").read_text()) == record


@pytest.mark.parametrize(
    "words, said",
    [
        (["--task", "Pendulum-v1", "--era"], "ERA per state needs an action of at least two dimensions"),
        (["--task", "CartPole-v1"], "CartPole-v1: a continuous action vector expected"),
        (["--task", "dog-fly"], "the task dog-fly cannot be made"),
        (["--era", "--target_entropy", "9"], "is not feasible"),
    ],
)
def test_a_task_that_does_not_fit_leaves_nothing(words, said, tmp_path):
    result = start(tmp_path, *words)
    assert result.returncode == 1 and said in result.stderr and "Traceback" not in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("given", ["another", "interrupted", "no record"])
def test_the_files_of_another_run_stay(given, tmp_path, monkeypatch):
    """An interrupted run starts over, by the same command."""
    words = ["--task", "Hopper-v4"]
    monkeypatch.setattr(sys, "argv", ["sac_train.py", *words])
    (tmp_path / "train.csv").write_text("")
    if given != "no record":
        then = [*words, "--era"] if given == "another" else words
        record = {"finished": False, "command": ["sac_train.py", *then]}
        (tmp_path / "run.json").write_text(json.dumps(record))
    problem = sac_train.problem(tmp_path)
    assert ("holds another run" in problem) == (given != "interrupted") == bool(problem)


def model(*flags):
    return sac_train.make_model(sac_train.parse_arguments(["--task", "Hopper-v4", "--buffer_size", "500", *flags]))


@pytest.mark.parametrize("flags", [(), ("--era",)])
def test_the_papers_settings(flags):
    """tab. combined_hyperparameters"""
    found = model(*flags)
    shapes = [leaf.shape for leaf in jax.tree.leaves(found.policy.actor_state.params)]
    assert shapes.count((512, 512)) == 1 and (11, 512) in shapes and shapes.count((512, 3)) == 2
    assert "LayerNorm" in str(jax.tree.structure(found.policy.qf_state.params))
    settings = (
        found.batch_size,
        found.gamma,
        found.tau,
        found.learning_starts,
        found.gradient_steps,
        found.learning_rate,
    )
    assert settings == (256, 0.99, 0.005, 5000, 2, 3e-4)
    assert sac_train.parse_arguments(["--task", "x"]).buffer_size == 10**6
    if not flags:
        assert found.target_entropy == -1.5 and found.ent_coef.ent_coef_init == 1.0
    # Without a gradient AdamW still decays the critics, and Adam leaves the actor alone.
    for state, decay in ((found.policy.qf_state, 3e-4 * 1e-4), (found.policy.actor_state, 0.0)):
        zeros = jax.tree.map(np.zeros_like, state.params)
        updates, _ = state.tx.update(zeros, state.opt_state, state.params)
        for change, value in zip(jax.tree.leaves(updates), jax.tree.leaves(state.params)):
            np.testing.assert_allclose(change, -decay * value, rtol=1e-4)


@pytest.mark.parametrize(
    "flags, switch, alpha",
    [
        (["--obac", "soft"], "soft", 1),
        (["--obac", "reward"], "reward", 1),
        (["--obac", "soft", "--era"], "soft", 0),
    ],
)
def test_obacs_settings(flags, switch, alpha, tmp_path):
    """The weight is the paper's (app. impl_continuous), the expectile its release's."""
    arguments = sac_train.parse_arguments(["--task", "Hopper-v4", "--buffer_size", "500", "--width", "16", *flags])
    found = sac_train.make_model(arguments)
    critics = found.policy.qf_state
    assert found.switch == switch and (critics.reward_critics is not None) == (switch == "reward")
    assert (float(critics.weight), float(critics.expectile)) == (pytest.approx(1e-3), pytest.approx(0.9))
    assert float(found.ent_coef_state.apply_fn({"params": found.ent_coef_state.params})) == pytest.approx(alpha)

    recorder = sac_train.Recorder(arguments, found, tmp_path)
    for updates, imitations, share in ((10, 4, 0.4), (30, 9, 0.25), (30, 9, 0)):  # since the last row
        found._n_updates = updates
        found.policy.qf_state = critics.replace(imitations=imitations)
        assert recorder.offline_numbers()[-1] == share


def test_entropies_are_those_of_the_bounded_policy():
    """tanh of a Gaussian, against the mean of -log p over many samples of each state."""
    found = model("--width", "16")
    obs = np.random.default_rng(0).normal(size=(2000, 11)).astype(np.float32)
    entropies = sac_train.policy_entropies(found, obs)
    policy = found.policy.actor_state.apply_fn(found.policy.actor_state.params, obs)
    actions, log_prob = policy.experimental_sample_and_log_prob(seed=jax.random.key(5))
    assert entropies["mean"] == pytest.approx(-float(log_prob.mean()) / 3, abs=0.05)
    era = model("--era", "--width", "16")
    policy = era.policy.actor_state.apply_fn(era.policy.actor_state.params, obs)
    log_prob = policy.log_prob(policy.sample(jax.random.key(5)))
    entropies = sac_train.policy_entropies(era, obs)
    assert entropies["mean"] == pytest.approx(-float(log_prob.mean()) / 3, abs=0.05) and entropies["min"] < -0.5


def test_tasks_of_dmc():
    """tab. continuous_envs1: dog has 223 observations and 38 actions; humanoid 67 and, against the table's 24, 21."""
    for task, observations, actions in (("dog-run", 223, 38), ("humanoid-walk", 67, 21)):
        env = environments.make(task)
        assert env.observation_space.shape == (observations,) and env.action_space.shape == (actions,)
        assert (env.action_space.low == -1).all() and (env.action_space.high == 1).all()
        steps, truncated = 0, False
        env.reset(seed=1)
        while not truncated:
            _, _, terminated, truncated, _ = env.step(np.zeros(actions, np.float32))
            steps += 1
            assert not terminated
        assert steps == 1000


def test_modified_environment():
    """Action repeat 2 adds rewards and halves the episodes; they do not end before the limit."""
    plain, modified = environments.make("Hopper-v4"), environments.make("Hopper-v4", 2, terminates=False)
    for env in (plain, modified):
        env.reset(seed=1)
    action = np.full(3, 0.5, np.float32)
    first, second = (plain.step(action) for _ in range(2))
    once = modified.step(action)
    np.testing.assert_array_equal(once[0], second[0])
    assert once[1] == pytest.approx(first[1] + second[1])
    steps, ended = 1, False
    while not ended:
        _, _, terminated, ended, _ = modified.step(action)
        steps += 1
        assert not terminated
    assert steps == 500


@pytest.mark.parametrize(
    "words, said",
    [
        (["--learn_delta"], "--learn_delta needs --era"),
        (["--obac", "soft", "--era", "--level", "batch"], "--obac takes ERA per state"),
        (["--era", "--alpha_init", "0.1"], "--alpha_init is SAC's"),
        (["--target_entropy", "0.7"], "--target_entropy 0.7: a policy on [-1, 1] has at most ln 2"),
    ],
)
def test_bad_flags(words, said, capsys):
    with pytest.raises(SystemExit):
        sac_train.parse_arguments(["--task", "Hopper-v4", *words])
    assert said in capsys.readouterr().err
