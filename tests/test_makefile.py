"""The user's commands, as far as they go without a GPU."""

import os
import re
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


def test_help_lists_every_public_target(make, project_root):
    targets = re.search(r"^\.PHONY: (.*)$", (project_root / "Makefile").read_text(), re.MULTILINE).group(1).split()
    listed = [line.split()[0] for line in make("help").stdout.splitlines()]
    assert sorted(listed) == sorted(targets)


def test_stage1_before_apply_names_the_command(make, tmp_path):
    result = make("llm-stage1", f"CHECKOUTS={tmp_path}/none")
    assert result.returncode != 0 and "Run 'make apply' first" in result.stderr


def test_stage1_dry_run_prints_the_command(make, patched_verl):
    result = make("llm-stage1", "DRY_RUN=1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"cd {patched_verl} && ") and "-m recipe.dapo.main_dapo" in result.stdout


def test_stage1_names_all_that_is_missing_before_it_makes_an_environment(make, project_root):
    before = (project_root / ".venv/verl-gpu").exists()
    result = make("llm-stage1", CUDA_VISIBLE_DEVICES="")
    assert result.returncode != 0 and "Traceback" not in result.stderr
    for missing in ("GPUs:", "model:", "dapo-math-17k.parquet", "aime-2024.parquet"):
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
    assert result.returncode == 0 and "-m recipe.dapo.main_dapo" in result.stdout, result.stderr
    assert "applied" in make("status", f"CHECKOUTS={tmp_path}/my checkouts").stdout
