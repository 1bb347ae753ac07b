# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Grids of real trainings on this CPU: a short one of PPO, and every experiment of FastTD3.

Runs that are killed and go on: ../test_grid.py, and on a Slurm ../rehearsal/slurm.
"""

import csv
import json

import pytest
from grid_launch import kill_all, launch
from reacher_runs import EXPERIMENTS, FLAGS, TASK

from recipes import results
from recipes.control.fasttd3 import FastTD3

TINY = ["--evaluate_freq", "300", "--batch_size", "128", "--K_epochs", "1", "--save_freq", "1000", "--max_train_steps"]


@pytest.fixture(autouse=True)
def nothing_left(tmp_path):
    yield
    kill_all(tmp_path)


def steps(folder):
    file = folder / "train.csv"
    return [row["global_step"] for row in csv.DictReader(file.open())] if file.exists() else []


def record(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.grid
def test_a_short_grid_of_ppo_comes_to_its_end(patched_ppo, tmp_path):
    given = {"CHECKOUTS": str(patched_ppo.parent), "SEED": "1", "TASKS": "Hopper-v4", "OUTPUT": str(tmp_path)}
    result = launch(tmp_path, "-m", "recipes.control", "ppo", *TINY, "600", AGENT="ppo ppo_era", **given)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(" finished, return ") == 2 and len(results.lines(tmp_path)) == 2
    finished = record(tmp_path / "Hopper-v4-ppo-seed1")
    assert finished["finished"] is True and finished["entry"] == "Hopper-v4-ppo"


# make control-smoke


def test_smoke_has_every_experiment():
    assert list(FastTD3.experiments) == list(EXPERIMENTS)


@pytest.mark.parametrize("experiment", [pytest.param(name, marks=pytest.mark.smoke(name)) for name in EXPERIMENTS])
def test_every_run_of_an_experiment_trains(experiment, patched_fasttd3, smoke_runs, tmp_path, say):
    given = {"TASKS": TASK, "SEED": "1", "OUTPUT": str(smoke_runs), "CHECKOUTS": str(patched_fasttd3.parent)}
    result = launch(tmp_path, "-m", "recipes.control", experiment, *FLAGS, *EXPERIMENTS[experiment], **given)
    assert result.returncode == 0, result.stdout + result.stderr
    say(f"== {experiment}\n{result.stdout.strip()}")
    for folder in (smoke_runs / "time" if experiment == "time" else smoke_runs).glob(f"{TASK}-*"):
        known, expected = record(folder), 301 if experiment == "time" else 101
        assert known["finished"] is True and known["total_steps"] == expected and known["versions"]["torch"]
        assert known["host"] == "fasttd3" and known["as_paper"] is False and steps(folder)[0] == "100"
