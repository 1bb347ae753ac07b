"""The user's commands, as far as they go without a GPU."""

import os
import re
import shlex
import subprocess
import sys

import pytest


@pytest.fixture
def make(project_root, patched_verl, tmp_path):
    def run(*args, **env):
        # The test's own environment stands for the user's active one.
        env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "HOME": str(tmp_path), **env}
        return subprocess.run(["make", "--no-print-directory", *args], cwd=project_root, env=env, capture_output=True, text=True)

    return lambda *args, **env: run(f"CHECKOUTS={patched_verl.parent}", *args, **env)


@pytest.fixture(scope="module")
def runs(project_root):
    """Target and script of each of the paper's runs."""
    return dict(re.findall(r"^(llm-[^:]+): RUN = (\S+)", (project_root / "Makefile").read_text(), re.MULTILINE))


def test_help_lists_every_public_target(make, project_root, runs):
    public = re.search(r"^\.PHONY: (.*)$", (project_root / "Makefile").read_text(), re.MULTILINE).group(1)
    lines = make("help").stdout.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted(public.replace("$(LLM_RUNS)", " ".join(runs)).split())
    assert max(map(len, lines)) <= 120


def test_every_run_script_has_a_target(project_root, runs):
    scripts = [script.name for script in (project_root / "overlays/verl/recipe/era").glob("run_*.sh")]
    assert sorted(runs.values()) == sorted(scripts)


def test_the_documentation_has_every_run(project_root, runs):
    table = (project_root / "docs/recipes.md").read_text().split("\n\n")[1]
    assert sorted(re.findall(r"`(llm-[a-z0-9.-]+)`", table)) == sorted(runs)


def test_every_target_prints_its_command(make, runs, patched_verl):
    for target, script in runs.items():
        result = make(target, "DRY_RUN=1")
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(f"cd {patched_verl} && ") and "-m recipe.era.main_era" in result.stdout
        assert f"trainer.experiment_name={script.removeprefix('run_').removesuffix('.sh')} " in result.stdout


def test_data_and_evaluation_print_their_commands(make, tmp_path):
    recipe = tmp_path / "check outs/verl/recipe/era"
    recipe.mkdir(parents=True)
    checkouts = f"CHECKOUTS={tmp_path}/check outs"
    for script in ("prepare_data.py", "evaluate.py"):
        (recipe / script).touch()
    result = make("llm-data", "DRY_RUN=1", checkouts, "SETS=math aime-2024", "DATA=/my data")
    assert result.returncode == 0, result.stderr
    assert shlex.split(result.stdout)[1:] == [str(recipe / "prepare_data.py"), "math", "aime-2024", "--out", "/my data"]
    result = make("llm-eval", "DRY_RUN=1", checkouts, "MODEL_PATH=/my models/my model", "EVAL=--limit 2", RAY_DATA_HOME="/home of data")
    assert result.returncode == 0, result.stderr
    assert shlex.split(result.stdout)[1:] == [str(recipe / "evaluate.py"), "--model", "/my models/my model", "--data", "/home of data/data/eval", "--out", "/home of data/eval/my model", "--limit", "2"]
    result = make("llm-eval", checkouts)
    assert result.returncode != 0 and "make llm-eval MODEL_PATH=" in result.stderr


@pytest.mark.parametrize("target", ["llm-stage1", "llm-gspo-era", "llm-data"])
def test_before_apply_the_command_is_named(make, target, tmp_path):
    result = make(target, f"CHECKOUTS={tmp_path}/none")
    assert result.returncode != 0 and "Run 'make apply' first" in result.stderr


def test_all_that_is_missing_is_named_before_an_environment_is_made(make, project_root):
    before = (project_root / ".venv/verl-gpu").exists()
    result = make("llm-stage2", CUDA_VISIBLE_DEVICES="")
    assert result.returncode != 0 and "Traceback" not in result.stderr
    for missing in ("GPUs:", "model:", "dapo-math-17k.parquet", "aime-2024.parquet", "global_step_600"):
        assert missing in result.stderr, result.stderr
    assert (project_root / ".venv/verl-gpu").exists() == before


@pytest.mark.parametrize("python, said", [("", "no Python 3.11, 3.12 or 3.13 found"), ("/nonexistent", "PYTHON=/nonexistent is not a Python 3.11"), ("too old", "is not a Python 3.11")])
def test_a_python_that_cannot_be_used_is_named(make, python, said, tmp_path):
    if python == "too old":
        python = str(tmp_path / "python3.9")
        (tmp_path / "python3.9").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "python3.9").chmod(0o755)
    result = make("test", f"PYTHON={python}", f"VENV={tmp_path}/venv")
    assert result.returncode != 0 and said in result.stderr
    assert "Setting up" not in result.stdout and not (tmp_path / "venv").exists()


def test_checkouts_in_a_folder_with_spaces(make, patched_verl, tmp_path):
    (tmp_path / "my checkouts").symlink_to(patched_verl.parent)
    result = make("llm-stage1", "DRY_RUN=1", f"CHECKOUTS={tmp_path}/my checkouts")
    assert result.returncode == 0 and "-m recipe.era.main_era" in result.stdout, result.stderr
    assert "applied" in make("status", f"CHECKOUTS={tmp_path}/my checkouts").stdout
