"""The commands of the grids, and what is refused before one of them starts."""

import os
import shlex
import shutil

import pytest
from reacher_runs import EXPERIMENTS


@pytest.fixture
def commands(launch):
    """Of an experiment, as its dry run prints them: the words after train.py."""

    def run(*args, **variables):
        result = launch(*args, DRY_RUN="1", **variables)
        assert result.returncode == 0, result.stderr
        return [shlex.split(line.split("/fast_td3/train.py ")[1]) for line in result.stdout.splitlines()]

    return run


def value(command, flag):
    return command[command.index(flag) + 1]


def test_main_results(commands):
    """tab. continuous_envs2, 10 seeds, both agents."""
    found = commands("humanoidbench")
    names = ("balance_simple", "hurdle", "pole", "push", "stair", "slide", "walk", "run")
    tasks = [f"h1hand-{name}-v0" for name in names]
    agents, seeds = ("fasttd3", "fastsac_era"), map(str, range(1, 11))
    expected = {(task, agent, seed) for seed in seeds for task in tasks for agent in agents}
    flags = ("--env_name", "--agent", "--seed")
    assert len(found) == 160 and {tuple(value(command, flag) for flag in flags) for command in found} == expected
    for command in found:  # all else is as FastTD3 has it
        own = {"--no_use_wandb", "--render_interval", *flags, "--exp_name", "--csv_path"}
        assert {word for word in command if word.startswith("--")} == own and value(command, "--render_interval") == "0"


def test_ablations(commands):
    def names(*args, **variables):
        return {value(command, "--exp_name") for command in commands(*args, **variables)}

    distributions = commands("distribution")
    assert len(distributions) == 40 and len(commands("batch")) == 30
    found = {value(command, "--exp_name"): command for command in distributions}
    assert set(found) == {f"fastsac_era{suffix}" for suffix in ("", "-learned", "-tanh", "-tanh-learned")}
    for name, command in found.items():
        assert ("--era_learn_delta" in command) == ("learned" in name)
        assert ("--era_distribution" in command) == ("tanh" in name)
    assert names("batch") == {"fasttd3", "fastsac_era", "fastsac_era-batch"}
    (undelayed,) = commands("time", TASKS="h1hand-run-v0", AGENT="fasttd3-no_delay")
    assert value(undelayed, "--policy_frequency") == "1"


def test_environment_chooses(commands):
    given = {"SEED": "2 02", "TASKS": "h1hand-walk-v0", "AGENT": "fastsac_era-batch", "WANDB": "1"}
    (command,) = commands("batch", "--total_timesteps", "50", **given)  # a seed written twice is one
    assert command[-2:] == ["--total_timesteps", "50"] and value(command, "--seed") == "2"
    assert "--no_use_wandb" not in command and "--render_interval" not in command


def test_run_of_several_experiments_is_one(commands):
    shared = {"SEED": "1", "TASKS": "h1hand-walk-v0", "AGENT": "fastsac_era"}
    humanoidbench, distribution, batch, time = (
        commands(name, **shared) for name in ("humanoidbench", "distribution", "batch", "time")
    )
    assert humanoidbench == distribution == batch != time


def test_python_is_found_from_the_folder_of_a_run(launch):
    """Which is not that where PYTHON was given."""
    given = {"PYTHON": "some/python", "TASKS": "h1hand-walk-v0", "SEED": "1", "AGENT": "fasttd3", "DRY_RUN": "1"}
    assert f" {os.path.abspath('some/python')} " in launch("batch", **given).stdout
    assert f"export PYTHON={os.path.abspath('some/python')}\n" in launch("batch", SLURM="1", **given).stdout
    assert " python3.11 " in launch("batch", **{**given, "PYTHON": "python3.11"}).stdout


def test_last_of_two_flags_says_whether_there_are_gpus(recipe):
    on_cpu = recipe.preflight.on_cpu
    assert on_cpu(["--no-cuda"]) and on_cpu(["--cuda", "--no_cuda"])
    assert not on_cpu(["--no_cuda", "--cuda"]) and not on_cpu([])


def test_slurm_script(launch, tmp_path):
    odd = str(tmp_path / "a b")
    script = launch("humanoidbench", "--num_envs", "64", DRY_RUN="1", SLURM="1", SEED="1 2", OUTPUT=odd).stdout
    assert "#SBATCH --array=" + ",".join(map(str, range(32))) + "\n" in script and "#SBATCH --gres=gpu:1\n" in script
    assert "export SEED='1 2'\n" in script and f"export OUTPUT='{odd}'\n" in script
    assert script.splitlines()[-1].endswith("launch.py humanoidbench --num_envs 64") and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "command, variables, said",
    [
        ("batch", {"TASKS": "walk", "SEED": "x", "GPUS_PER_RUN": "2"}, ["TASKS=walk", "SEED=x", "GPUS_PER_RUN=2"]),
        ("batch", {"AGENT": "sac"}, ["AGENT=sac: one or several of batch's, fasttd3"]),
        ("batch", {"GPUS_PER_RUN": "0.5", "SLURM": "1"}, ["GPUS_PER_RUN: SLURM=1 gives each run a GPU"]),
        ("batch", {"RUN_INDEX": "3", "SLURM": "1"}, ["RUN_INDEX: SLURM=1 gives each job the index"]),
        ("batch", {"RUN_INDEX": "30"}, ["RUN_INDEX=30: this grid has runs 0 to 29"]),
        ("batch --seed=3 --env-name x", {}, ["--seed cannot be set here: SEED does", "--env_name cannot"]),
        ("batch --no-use-wandb", {}, ["WANDB=1"]),
        ("distribution --era_distribution clipped", {}, ["cannot be set here: distribution compares its values"]),
    ],
)
def test_bad_values_are_named_at_start(launch, command, variables, said):
    result = launch(*command.split(), DRY_RUN="1", **variables)
    assert result.returncode != 0 and result.stdout == "" and "Traceback" not in result.stderr
    for part in said:
        assert part in result.stderr


def test_all_that_is_missing_is_said_at_once(launch, patched_fasttd3, tmp_path):
    """In a folder that has the recipe and nothing else that a run needs."""
    copy = tmp_path / "fasttd3"
    shutil.copytree(patched_fasttd3 / "recipes/era", copy / "recipes/era", ignore=shutil.ignore_patterns("*.pyc"))
    given = {"CUDA_VISIBLE_DEVICES": "", "OUTPUT": str(tmp_path / "runs"), "ENVIRONMENT_TO_COME": "1"}
    result = launch("batch", checkout=copy, SLURM="1", PATH="/nowhere", **given)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for said in ("no fast_td3/train.py", "apply.py apply humanoid-bench", "this machine has no sbatch"):
        assert said in result.stderr, result.stderr
    assert "GPUs: this machine has none" in launch("batch", checkout=copy, **given).stderr
    assert os.listdir(tmp_path) == ["fasttd3"]


def problems(recipe, checkout, tmp_path, python, *added, **settings):
    found = recipe.runs.runs(recipe.runs.EXPERIMENTS["batch"], recipe.runs.Settings(**settings), list(added))
    jobs = [(run, tmp_path / run.name) for run in found]
    return recipe.preflight.find_problems(jobs, checkout, python, "ray", cpu=True)[0]


def test_tasks_and_flags_are_checked_by_those_who_know_them(recipe, patched_fasttd3, clean_environment, tmp_path):
    """Gymnasium and train.py."""
    given = (recipe, patched_fasttd3, tmp_path, clean_environment["PYTHON"])
    unknown, misspelt = problems(*given, "--gama", "0.9", tasks=("Gym-Reacher-v99", "Gym-Reacher-v4"))
    assert unknown.startswith("TASKS: Gym-Reacher-v99") and "--gama" in misspelt
    unfit, infeasible = problems(*given, "--era_target_entropy", "2", tasks=("Gym-CartPole-v1",))
    assert unfit.startswith("TASKS: Gym-CartPole-v1: a continuous action vector") and "is not feasible" in infeasible


def test_python_without_anything(recipe, patched_fasttd3, tmp_path):
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\nexec /usr/bin/env python3 -S -E -s "$@"\n')
    bare.chmod(0o755)
    found = "\n".join(problems(recipe, patched_fasttd3, tmp_path, str(bare)))
    assert "lacks torch" in found and "humanoid_bench" in found and "pip install 'ray" in found
    assert "no Python that starts at /nope" in problems(recipe, patched_fasttd3, tmp_path, "/nope")[0]


def test_smoke_has_every_experiment(recipe):
    assert list(recipe.runs.EXPERIMENTS) == list(EXPERIMENTS)


def test_output_that_takes_no_folder(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file/runs"):
        (problem,) = recipe.grid.output_problems(output)
        assert problem.startswith(f"OUTPUT: the runs cannot be written to {output}: {tmp_path}/file is not a folder")
    assert recipe.grid.output_problems(tmp_path / "not/yet") == []
