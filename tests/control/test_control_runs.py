"""`make test-grids`: the real train.py and Ray on a CPU: finished, failed, interrupted, resumed, in a Slurm array."""

import csv
import json
import os
import signal
import time

import pytest
from reacher_runs import EXPERIMENTS, FLAGS, TASK

grid = pytest.mark.grid
NAME = "Gym-Reacher-v4-fastsac_era-seed1"
FAILS = "Gym-InvertedPendulum-v4-fastsac_era-seed1"  # has one action dimension


def steps(folder):
    return [int(row["global_step"]) for row in csv.DictReader((folder / "train.csv").open())]


@grid
def test_failed_run_does_not_stop_the_grid(start, tmp_path):
    """And what is finished is not trained again."""
    grid = start("humanoidbench", AGENT="fastsac_era", TASKS="Gym-InvertedPendulum-v4 Gym-Reacher-v4")
    printed, errors = grid.communicate(timeout=900)
    assert grid.returncode == 1 and "Traceback" not in errors, printed + errors
    assert f"{NAME} finished, return" in printed and f"{FAILS} ended with exit code 2 after 0 of 101 steps" in printed
    assert "Runs that are not finished: 1" in errors and "has one action dimension" in errors and NAME not in errors
    folder = tmp_path / "runs" / NAME
    assert steps(folder) == [100] and (folder / "models/Gym-Reacher-v4__fastsac_era__1_final.pt").is_file()
    assert {"command.txt", "log.txt"} <= set(os.listdir(folder)) and not list(folder.glob("logs"))
    record = json.loads((folder / "run.json").read_text())
    expected = {"host": "fasttd3", "agent": "fastsac_era", "seed": 1, "total_steps": 101, "finished": True}
    assert expected.items() <= record.items() and record["as_paper"] is False and record["versions"]["torch"]
    assert json.loads((tmp_path / "runs" / FAILS / "run.json").read_text())["finished"] is False

    before = (folder / "log.txt").stat().st_mtime
    again = start("humanoidbench", AGENT="fastsac_era")
    printed, errors = again.communicate(timeout=900)
    assert again.returncode == 0 and "to train" not in printed, printed + errors
    assert (folder / "log.txt").stat().st_mtime == before
    assert printed.splitlines()[-1].split()[:4] == ["Gym-Reacher-v4", "fastsac_era", "1", "101"]


def wait_for(condition, process):
    until = time.monotonic() + 900
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate(timeout=900)
        time.sleep(0.2)


@grid
def test_interrupted_run_begins_anew_or_goes_on(start, training_processes, tmp_path):
    folder = tmp_path / "runs" / NAME
    long = ("--total_timesteps", "100000")

    def begin(experiment="humanoidbench", **variables):
        return start(experiment, *long, AGENT="fastsac_era", **variables)

    def terminate(process):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=900) == 128 + signal.SIGTERM and training_processes() == []

    stopped = begin()
    wait_for(lambda: list(folder.glob("models/*_100.pt")), stopped)
    other = begin("distribution", RUN_INDEX="0")
    assert f"{NAME}: another launch is training it" in other.communicate(timeout=900)[1] and other.returncode == 1
    os.killpg(stopped.pid, signal.SIGINT)  # as Ctrl-C does: Ray's processes get it too
    _, errors = stopped.communicate(timeout=900)
    assert stopped.returncode == 128 + signal.SIGINT and training_processes() == []
    assert "stopped by SIGINT; nothing is left running" in errors

    resumed = begin(RESUME="1", RUN_INDEX="0")
    done = steps(folder)[-1]
    wait_for(lambda: steps(folder)[-1] > done, resumed)
    assert not list(folder.glob("interrupted-*")) and steps(folder) == sorted(set(steps(folder)))
    assert (folder / "log.txt").read_text().count("Using FastSAC-ERA") == 2
    terminate(resumed)

    anew = begin(RUN_INDEX="0")
    wait_for(lambda: (folder / "interrupted-1/train.csv").exists() and (folder / "log.txt").exists(), anew)
    assert not (folder / "train.csv").exists() and not (folder / "models").exists()
    terminate(anew)


# Stands in for Slurm: runs the last of the array's jobs here.
SBATCH = """#!/bin/bash
here=$(dirname "$0")
cp "$1" "$here/submitted"
index=$(sed -nE 's/^#SBATCH --array=([0-9,]+).*/\\1/p' "$1" | tr , '\\n' | tail -1)
env -i PATH="$PATH" HOME="$HOME" OMP_NUM_THREADS=1 SLURM_ARRAY_TASK_ID=$index bash "$1" > "$here/$index" 2>&1 || exit 1
echo Submitted batch job 7
"""


@grid
def test_slurm_array_trains_a_run_by_its_index(start, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(SBATCH)
    (tmp_path / "bin/sbatch").chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    submitted = start("time", SLURM="1", AGENT="fasttd3-no_delay fastsac_era", PATH=path)
    printed, errors = submitted.communicate(timeout=900)
    assert submitted.returncode == 0 and printed == "Submitted batch job 7\n", printed + errors
    name = "Gym-Reacher-v4-fastsac_era-seed1"
    assert sorted(os.listdir(tmp_path / "runs/time")) == [name, "time.sbatch"]
    assert steps(tmp_path / "runs/time" / name) == [100]
    assert "#SBATCH --array=0,1%1\n" in (tmp_path / "bin/submitted").read_text()


# make control-smoke


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory):
    """The folder of all experiments' runs: one that two of them share is trained once."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("experiment", [pytest.param(name, marks=pytest.mark.smoke(name)) for name in EXPERIMENTS])
def test_every_run_of_an_experiment_trains(experiment, launch, smoke_runs, say):
    """Through the recipe's own check, Ray and train.py."""
    given = {"TASKS": TASK, "SEED": "1", "OUTPUT": str(smoke_runs)}
    result = launch(experiment, *FLAGS, *EXPERIMENTS[experiment], **given)
    assert result.returncode == 0, result.stdout + result.stderr
    *_, table = result.stdout.split("\n\n")
    say(f"== {experiment}\n{table.strip()}")
    assert table.count(TASK) >= 2
