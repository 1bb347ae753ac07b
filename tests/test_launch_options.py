# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The launchers' variables: read as the user wrote them, and the same in help and pages; what no run can have."""

import re
import subprocess
import sys

import pytest

from recipes import grid, launch_options
from recipes.control import SCRIPTS
from recipes.launch_options import CONTROL, RIVALS, VISION, LaunchOptions, UserError
from recipes.vision.timm import Timm


@pytest.mark.parametrize(
    "launcher, own, others",
    [
        (CONTROL, "TASKS SEED AGENT GPUS_PER_RUN RUN_INDEX PYTHON CHECKOUTS OUTPUT JOBS", "GPUS H0 EPOCHS"),
        (VISION, "GPUS DATA_DIR SEED H0 AUG NUM_CLASSES EPOCHS SLURM RAY_ADDRESS DRY_RUN CHECK_ONLY", "TASKS AGENT"),
        (RIVALS, "TASKS SEED ARMS OUTPUT JOBS CHECKOUTS DRY_RUN CHECK_ONLY", "AGENT SLURM PYTHON RUN_INDEX"),
    ],
)
def test_help_names_a_launchers_variables_and_no_others(launcher, own, others, project_root):
    command = [sys.executable, "-m", launcher, "--help"]
    printed = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=True).stdout
    named = re.findall("^  ([A-Z_0-9]+) ", printed, re.MULTILINE)
    assert set(own.split()) <= set(named) and not set(others.split()) & set(named) and "EXPERIMENT: " in printed
    assert max(map(len, printed.split("\nEXPERIMENT")[0].splitlines())) <= 120


def test_values_are_read_as_the_user_wrote_them(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for each in launch_options.rows(CONTROL) + launch_options.rows(VISION):
        monkeypatch.delenv(each[0].strip("`"), raising=False)
    unset = LaunchOptions.from_environment(VISION)
    assert unset == LaunchOptions() and unset.gpus == 4 and unset.python == sys.executable
    given = {"SEED": "7 07 2", "OUTPUT": "runs", "JOBS": "2", "RUN_INDEX": "0", "PYTHON": "bin/python", "SLURM": "0"}
    for name, text in (given | {"DRY_RUN": "1", "H0": "0.30", "GPUS": " ", "TASKS": "Ant-v4"}).items():
        monkeypatch.setenv(name, text)
    options = LaunchOptions.from_environment(VISION)
    assert (options.seeds, options.jobs, options.run_index, options.min_entropies) == ((7, 2), 2, 0, (0.3,))
    assert options.output == tmp_path / "runs" and options.python == str(tmp_path / "bin/python")
    assert options.dry_run and not options.slurm and options.gpus == 4
    assert options.tasks is None and LaunchOptions.from_environment(CONTROL).tasks == ("Ant-v4",)
    monkeypatch.setenv("PYTHON", "python3")  # which is found on PATH
    assert LaunchOptions.from_environment(VISION).python == "python3"


@pytest.mark.parametrize(
    "launcher, variable, text, expected",
    [
        (CONTROL, "SEED", "1 x", "one or several numbers expected"),
        (CONTROL, "JOBS", "0", "one finite number of at least 1 expected"),
        (CONTROL, "JOBS", "1 2", "one finite number of at least 1 expected"),
        (CONTROL, "GPUS_PER_RUN", "inf", "one finite number of at least 0 expected"),
        (CONTROL, "GPUS_PER_RUN", "nan", "one finite number of at least 0 expected"),
        (CONTROL, "GPUS_PER_RUN", "-1", "one finite number of at least 0 expected"),
        (VISION, "GPUS", "0", "one finite number of at least 1 expected"),
        (VISION, "AUG", "yes", "one or several numbers expected"),
        (RIVALS, "JOBS", "1.5", "one or several numbers expected"),
    ],
)
def test_a_value_that_a_variable_cannot_have_is_named(monkeypatch, launcher, variable, text, expected):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UserError, match=re.escape(f"{variable}={text}: {expected}.")):
        LaunchOptions.from_environment(launcher)


@pytest.mark.parametrize(
    "launcher, mistaken, meant",
    [(CONTROL, "TASK", "TASKS"), (CONTROL, "ARMS", "AGENT"), (VISION, "SEEDS", "SEED"), (RIVALS, "AGENT", "ARMS")],
)
def test_a_misspelt_choice_of_runs_does_not_choose_all(monkeypatch, launcher, mistaken, meant):
    monkeypatch.setenv(mistaken, "1")
    with pytest.raises(UserError, match=f"{mistaken} chooses no runs here. Set {meant}, or unset {mistaken}."):
        LaunchOptions.from_environment(launcher)


@pytest.mark.parametrize(
    "command, variables, said",
    [
        ("ppo", {"TASKS": "../Ant-v4"}, "TASKS: ../Ant-v4 is not the name of a task"),
        ("ppo", {"AGENT": "ppo sac"}, "AGENT: ppo has no sac. There are: ppo, ppo_era, "),
        ("batch", {"RUN_INDEX": "30"}, "RUN_INDEX=30: one of runs 0 to 29"),
        ("batch --seed=3 --env-name x --see 4", {}, "--seed, --env-name, --see cannot be set here"),
        ("distribution --era_distribution clipped", {}, "--era-distribution cannot be set here"),
        ("tdmpc2 task=dog-run ++seed=5", {}, "task, seed cannot be set here"),
        ("cifar10", {"EPOCHS": "500"}, "the schedule has 200"),
        ("cifar10", {"H0": "0.3"}, "without ERA"),
        ("cifar10-aug", {"AUG": "0"}, "augmentation"),
        ("cifar10 --seed=3 --output x", {}, "--seed, --output cannot be set here"),
        ("cifar10 --epochs x", {}, "--epochs: invalid int value"),
    ],
)
def test_what_an_experiment_cannot_have_is_named(monkeypatch, command, variables, said):
    for name, text in (variables | {"DRY_RUN": "1"}).items():
        monkeypatch.setenv(name, text)
    experiment, *added = command.split()
    with pytest.raises(UserError, match=said):
        grid.launch(SCRIPTS.get(experiment, Timm)(experiment, added))
