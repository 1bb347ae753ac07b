"""Runs through the real train.py and a real local Ray on a CPU: finished, failed, skipped, interrupted, resumed, and as a Slurm array."""

import csv
import os
import signal
import time

from tools.smoke import control as smoke_control

NAME = "Gym-Reacher-v4-fastsac_era-seed1"
FAILS = "Gym-InvertedPendulum-v4-fastsac_era-seed1"  # has one action dimension


def steps(folder):
    return [int(row["global_step"]) for row in csv.DictReader((folder / "train.csv").open())]


def test_failed_run_does_not_stop_the_grid(start, tmp_path):
    """And what is finished is not trained again."""
    given = {"AGENT": "fastsac_era", "TASKS": "Gym-InvertedPendulum-v4 Gym-Reacher-v4"}
    grid = start("humanoidbench", **given)
    printed, errors = grid.communicate(timeout=900)
    assert grid.returncode == 1 and "Traceback" not in errors, printed + errors
    assert f"{NAME} finished, return" in printed and f"{FAILS} ended with exit code 2 after 0 of 101 steps" in printed
    assert "Runs that are not finished: 1" in errors and "has one action dimension" in errors and NAME not in errors
    folder = tmp_path / "runs" / NAME
    assert steps(folder) == [100] and (folder / "models/Gym-Reacher-v4__fastsac_era__1_final.pt").is_file()
    assert {"command.txt", "log.txt"} <= set(os.listdir(folder)) and not list(folder.glob("logs"))
    before = (folder / "log.txt").stat().st_mtime
    again = start("humanoidbench", AGENT="fastsac_era")
    printed, errors = again.communicate(timeout=900)
    assert again.returncode == 0 and "to train" not in printed and (folder / "log.txt").stat().st_mtime == before, (
        errors
    )
    assert printed.splitlines()[-1].split()[:4] == ["Gym-Reacher-v4", "fastsac_era", "1", "101"]


def wait_for(condition, process):
    until = time.monotonic() + 900
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate(timeout=900)
        time.sleep(0.2)


def test_interrupted_run_begins_anew_or_goes_on(recipe, start, training_processes, tmp_path):
    folder = tmp_path / "runs" / NAME
    long = ("--total_timesteps", "100000")
    stopped = start("humanoidbench", *long, AGENT="fastsac_era")
    wait_for(lambda: list(folder.glob("models/*_100.pt")), stopped)
    other = start("distribution", *long, AGENT="fastsac_era", RUN_INDEX="0")
    assert f"{NAME}: another launch is training it" in other.communicate(timeout=900)[1] and other.returncode == 1
    os.killpg(stopped.pid, signal.SIGINT)  # as Ctrl-C does: Ray's processes get it too
    _, errors = stopped.communicate(timeout=900)
    assert (
        stopped.returncode == 128 + signal.SIGINT
        and "stopped by SIGINT; nothing is left running" in errors
        and training_processes() == []
    )

    resumed = start("humanoidbench", *long, AGENT="fastsac_era", RESUME="1", RUN_INDEX="0")
    done = steps(folder)[-1]
    wait_for(lambda: steps(folder)[-1] > done, resumed)
    assert not list(folder.glob("interrupted-*")) and steps(folder) == sorted(set(steps(folder)))
    assert (folder / "log.txt").read_text().count("Using FastSAC-ERA") == 2
    resumed.send_signal(signal.SIGTERM)
    assert resumed.wait(timeout=900) == 128 + signal.SIGTERM and training_processes() == []

    (run,) = recipe.runs.runs(
        recipe.runs.EXPERIMENTS["humanoidbench"],
        recipe.runs.Settings(("Gym-Reacher-v4",), (1,), ("fastsac_era",)),
        smoke_control.FLAGS,
    )
    (problem,) = recipe.preflight.folder_problems(run, folder)
    assert "holds a run with other flags (then: 100000; now: fewer)" in problem
    anew = start("humanoidbench", *long, AGENT="fastsac_era", RUN_INDEX="0")
    wait_for(lambda: (folder / "interrupted-1/train.csv").exists() and (folder / "log.txt").exists(), anew)
    assert not (folder / "train.csv").exists() and not (folder / "models").exists()
    anew.send_signal(signal.SIGTERM)
    assert anew.wait(timeout=900) == 128 + signal.SIGTERM and training_processes() == []


SBATCH = """#!/bin/bash
# Stands for Slurm: runs the last of the array's jobs here.
cp "$1" "$(dirname "$0")/submitted"
index=$(sed -nE 's/^#SBATCH --array=([0-9,]+).*/\\1/p' "$1" | tr , '\\n' | tail -1)
env -i PATH="$PATH" HOME="$HOME" OMP_NUM_THREADS=1 SLURM_ARRAY_TASK_ID=$index bash "$1" > "$(dirname "$0")/$index" 2>&1 || exit 1
echo Submitted batch job 7
"""


def test_slurm_array_trains_a_run_by_its_index(start, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(SBATCH)
    (tmp_path / "bin/sbatch").chmod(0o755)
    submitted = start(
        "time", SLURM="1", AGENT="fasttd3-no_delay fastsac_era", PATH=f"{tmp_path}/bin:{os.environ['PATH']}"
    )
    printed, errors = submitted.communicate(timeout=900)
    assert submitted.returncode == 0 and printed == "Submitted batch job 7\n", printed + errors
    assert sorted(path.name for path in (tmp_path / "runs/time").iterdir()) == [
        "Gym-Reacher-v4-fastsac_era-seed1",
        "time.sbatch",
    ]
    assert steps(tmp_path / "runs/time/Gym-Reacher-v4-fastsac_era-seed1") == [100]
    assert "#SBATCH --array=0,1%1\n" in (tmp_path / "bin/submitted").read_text()
