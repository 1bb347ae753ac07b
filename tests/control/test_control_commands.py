"""The commands of the grids, and what is refused before one of them starts."""

import os
import re
import shlex

import pytest

from demo.runner.errors import DemoError
from tools.smoke import control as smoke_control


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
    tasks = {
        f"h1hand-{task}-v0" for task in ("balance_simple", "hurdle", "pole", "push", "stair", "slide", "walk", "run")
    }
    grid = {(value(command, "--env_name"), value(command, "--agent"), value(command, "--seed")) for command in found}
    assert len(found) == 160 and grid == {
        (task, agent, str(seed)) for task in tasks for agent in ("fasttd3", "fastsac_era") for seed in range(1, 11)
    }
    for command in found:  # all else is as FastTD3 has it
        own = {"--no_use_wandb", "--render_interval", "--env_name", "--agent", "--seed", "--exp_name", "--csv_path"}
        assert {word for word in command if word.startswith("--")} == own and value(command, "--render_interval") == "0"


def test_ablations(commands):
    names = lambda *args, **variables: {value(command, "--exp_name") for command in commands(*args, **variables)}
    assert names("distribution") == {
        "fastsac_era",
        "fastsac_era-learned",
        "fastsac_era-tanh",
        "fastsac_era-tanh-learned",
    }
    for command in commands("distribution", SEED="3"):
        name = value(command, "--exp_name")
        assert ("--era_learn_delta" in command) == ("learned" in name) and ("--era_distribution" in command) == (
            "tanh" in name
        )
        assert value(command, "--seed") == "3"
    assert names("batch") == {"fasttd3", "fastsac_era", "fastsac_era-batch"} and names(
        "batch", AGENT="fastsac_era-batch"
    ) == {"fastsac_era-batch"}
    assert len(commands("distribution")) == 40 and len(commands("batch")) == 30
    assert [
        value(command, "--policy_frequency")
        for command in commands("time", TASKS="h1hand-run-v0", AGENT="fasttd3-no_delay")
    ] == ["1"]
    assert all(
        "--no_use_wandb" not in command and "--render_interval" not in command
        for command in commands("batch", WANDB="1")
    )


def test_run_of_two_experiments_is_one(commands):
    shared = {"SEED": "1", "TASKS": "h1hand-walk-v0", "AGENT": "fastsac_era"}
    assert (
        commands("humanoidbench", **shared)
        == commands("distribution", **shared)
        == commands("batch", **shared)
        != commands("time", **shared)
    )


def test_added_flags_come_last(commands):
    assert commands("time", "--total_timesteps", "50", SEED="2")[0][-2:] == ["--total_timesteps", "50"]


def test_seed_written_twice_is_one(commands):
    assert len(commands("batch", SEED="1 01", TASKS="h1hand-walk-v0", AGENT="fasttd3")) == 1


def test_python_is_found_from_the_folder_of_a_run(launch, tmp_path):
    """Which is not that where PYTHON was given."""
    given = {"PYTHON": "some/python", "TASKS": "h1hand-walk-v0", "SEED": "1", "AGENT": "fasttd3", "DRY_RUN": "1"}
    assert f" {os.path.abspath('some/python')} " in launch("batch", **given).stdout
    assert f"export PYTHON={os.path.abspath('some/python')}\n" in launch("batch", SLURM="1", **given).stdout
    assert " python3.11 " in launch("batch", **{**given, "PYTHON": "python3.11"}).stdout


def test_last_of_two_flags_says_whether_there_are_gpus(recipe):
    on_cpu = recipe.preflight.on_cpu
    assert (
        on_cpu(["--no-cuda"])
        and on_cpu(["--cuda", "--no_cuda"])
        and not on_cpu(["--no_cuda", "--cuda"])
        and not on_cpu([])
    )


def test_slurm_script(launch, tmp_path):
    odd = str(tmp_path / "a b")
    script = launch("humanoidbench", "--num_envs", "64", DRY_RUN="1", SLURM="1", SEED="1 2", OUTPUT=odd).stdout
    assert "#SBATCH --array=" + ",".join(map(str, range(32))) + "\n" in script and "#SBATCH --gres=gpu:1\n" in script
    assert "export SEED='1 2'\n" in script and f"export OUTPUT='{odd}'\n" in script
    assert script.splitlines()[-1].endswith("launch.py humanoidbench --num_envs 64") and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name, added, variables, said",
    [
        (
            "batch",
            [],
            {"TASKS": "walk", "SEED": "x", "AGENT": "sac", "GPUS_PER_RUN": "2"},
            ["TASKS=walk", "SEED=x", "AGENT=sac: one or several of batch's, fasttd3", "GPUS_PER_RUN=2"],
        ),
        ("batch", [], {"SEED": "-1", "GPUS_PER_RUN": "0"}, ["SEED=-1", "GPUS_PER_RUN=0"]),
        ("batch", [], {"GPUS_PER_RUN": "0.5", "SLURM": "1"}, ["GPUS_PER_RUN: SLURM=1 gives each run a GPU"]),
        ("batch", [], {"RUN_INDEX": "3", "SLURM": "1"}, ["RUN_INDEX: SLURM=1 gives each job the index"]),
        ("batch", [], {"RUN_INDEX": "30"}, ["RUN_INDEX=30: this grid has runs 0 to 29"]),
        (
            "batch",
            ["--seed=3", "--env-name", "x", "--no-use-wandb"],
            {},
            ["--seed cannot be set here: SEED does", "--env_name cannot", "WANDB=1"],
        ),
        (
            "distribution",
            ["--era_distribution", "clipped"],
            {},
            ["--era_distribution cannot be set here: distribution compares its values"],
        ),
        ("sac", [], {}, ["no experiment 'sac'", "humanoidbench"]),
    ],
)
def test_bad_values_are_named_at_start(launch, name, added, variables, said):
    result = launch(name, *added, DRY_RUN="1", **variables)
    assert result.returncode != 0 and result.stdout == "" and "Traceback" not in result.stderr
    for part in said:
        assert part in result.stderr


def test_all_that_is_missing_is_said_at_once(launch, tmp_path):
    """Here in the overlay's folder, which has no train.py, with nothing of what a run needs."""
    result = launch(
        "batch", CUDA_VISIBLE_DEVICES="", OUTPUT=str(tmp_path), SLURM="1", PATH="/nowhere", ENVIRONMENT_TO_COME="1"
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for said in ("no fast_td3/train.py", "apply.py apply humanoid-bench", "there is no sbatch"):
        assert said in result.stderr, result.stderr
    result = launch("batch", CUDA_VISIBLE_DEVICES="", ENVIRONMENT_TO_COME="1")
    assert "GPUs: this machine has none" in result.stderr and os.listdir(tmp_path) == []


def problems(recipe, checkout, tmp_path, python, name, *added, **settings):
    jobs = [
        (run, tmp_path / run.name)
        for run in recipe.runs.runs(recipe.runs.EXPERIMENTS[name], recipe.runs.Settings(**settings), list(added))
    ]
    return recipe.preflight.find_problems(jobs, checkout, python, "ray", True, False)[0]


def test_tasks_and_flags_are_checked_by_those_who_know_them(recipe, patched_fasttd3, clean_environment, tmp_path):
    found = problems(
        recipe,
        patched_fasttd3,
        tmp_path,
        clean_environment["PYTHON"],
        "batch",
        "--gama",
        "0.9",
        tasks=("Gym-Reacher-v99", "Gym-Reacher-v4"),
    )
    assert (
        any("TASKS: Gym-Reacher-v99" in problem for problem in found)
        and len([problem for problem in found if "--gama" in problem]) == 1
        and len(found) == 2
    )
    unfit, infeasible = problems(
        recipe,
        patched_fasttd3,
        tmp_path,
        clean_environment["PYTHON"],
        "batch",
        "--era_target_entropy",
        "2",
        tasks=("Gym-CartPole-v1",),
    )
    assert unfit.startswith("TASKS: Gym-CartPole-v1: a continuous action vector") and "is not feasible" in infeasible


def test_python_without_anything(recipe, patched_fasttd3, tmp_path):
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\nexec /usr/bin/env python3 -S -E -s "$@"\n')
    bare.chmod(0o755)
    found = "\n".join(problems(recipe, patched_fasttd3, tmp_path, str(bare), "batch"))
    assert "lacks torch" in found and "humanoid_bench" in found and "pip install 'ray" in found
    assert "no Python that starts at /nope" in problems(recipe, patched_fasttd3, tmp_path, "/nope", "batch")[0]


def test_output_that_takes_no_folder(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file/runs"):
        (problem,) = recipe.preflight.output_problems(output)
        assert problem.startswith(f"OUTPUT: the runs cannot be written to {output}: {tmp_path}/file is not a folder")
    assert recipe.preflight.output_problems(tmp_path / "not/yet") == []


def test_experiments_have_targets_and_rows(recipe, project_root):
    targets = dict(re.findall(r"^(control-[^:]+): RUN = (\S+)", (project_root / "Makefile").read_text(), re.MULTILINE))
    assert targets == {f"control-{name}": name for name in recipe.runs.EXPERIMENTS}
    table = (project_root / "docs/control/recipes.md").read_text().split("\n\n")[1]
    assert re.findall(r"^\| `(control-[a-z]+)`", table, re.MULTILINE) == list(targets)


def test_smoke_has_every_experiment(recipe, project_root):
    checkout = project_root / "overlays/fasttd3"
    assert smoke_control.choose(checkout, []) == list(recipe.runs.EXPERIMENTS)
    with pytest.raises(DemoError, match=r"no experiment sac(.|\n)*humanoidbench"):
        smoke_control.choose(checkout, ["sac"])
