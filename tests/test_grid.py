# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""recipes/grid.py: runs that fail, are killed and go on, on cores, as Ray tasks and in a Slurm array."""

import os
import shutil
import signal
import sys
import time

import pytest
from counting import Counting
from grid_launch import MARK, ROOT, kill_all, launch, start, wait_for
from helpers import command_line, processes_with

from recipes import grid

COUNTING = str(ROOT / "tests/counting.py")


@pytest.fixture(autouse=True)
def nothing_left(tmp_path):
    yield
    kill_all(tmp_path)


def count(folder):
    file = folder / "count"
    return int(file.read_text()) if file.exists() else 0


def folders(tmp_path, *agents):
    return [tmp_path / f"x-{agent}-seed1" for agent in agents or ("one", "two")]


@pytest.mark.parametrize("given", [{}, pytest.param({"RAY_ADDRESS": "local"}, marks=pytest.mark.grid)], ids=["", "Ray"])
def test_the_same_command_goes_on_after_kill_9(tmp_path, given):
    command = (tmp_path, COUNTING, "counts")
    variables = {"OUTPUT": str(tmp_path), "JOBS": "2", **given}
    killed = start(*command, **variables)
    wait_for(lambda: all(count(folder) > 3 for folder in folders(tmp_path)), killed)
    by_ray = ["ray::train" in command_line(each) for each in processes_with(**{MARK: str(tmp_path)})]
    kill_all(tmp_path)
    done = [count(folder) for folder in folders(tmp_path)]
    assert max(done) < 40 and sum(by_ray) == (2 if given else 0)
    again = launch(*command, **variables)
    assert again.returncode == 0 and again.stdout.count("finished\n") == 2, again.stdout + again.stderr
    for folder, before in zip(folders(tmp_path), done):
        assert (folder / "log.txt").read_text().splitlines() == ["from 0", f"from {before}"]
        assert {path.name for path in folder.iterdir()} == {
            ".lock",
            "command.txt",
            "log.txt",
            "count",
            "run.json",
            "steps.csv",
        }
    third = launch(*command, **variables)
    assert third.returncode == 0 and "0 of 2 runs to train" in third.stdout


def test_run_whose_launcher_was_killed_alone_is_not_trained_twice(tmp_path):
    command, given = (tmp_path, COUNTING, "forgets"), {"OUTPUT": str(tmp_path), "AGENT": "one"}
    killed = start(*command, **given)
    (folder,) = folders(tmp_path, "one")
    wait_for(lambda: count(folder) > 3, killed)
    killed.kill()
    killed.wait()
    again = launch(*command, **given)
    assert again.returncode == 1 and "is being trained by another launch" in again.stderr
    kill_all(tmp_path)
    assert launch(*command, **given).returncode == 0
    assert (folder / "log.txt").read_text() == "from 0\n" and count(folder) == 40
    assert 3 < count(folder / "interrupted-1") < 40 and (folder / "interrupted-1/log.txt").read_text() == "from 0\n"


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    result = launch(tmp_path, COUNTING, "counts", OUTPUT=str(tmp_path), AGENT="fails one", JOBS="1")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "not finished: 1\nx-fails-seed1 ended with exit code 1." in result.stderr
    assert "    no such thing\n" in result.stderr and "2 of 2: x-one-seed1 finished" in result.stdout


def half_a_curve(folder):
    file = folder / "steps.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:20]))


def test_a_run_that_says_finished_and_is_not_whole_starts_over(tmp_path):
    command, given = (tmp_path, COUNTING, "counts"), {"OUTPUT": str(tmp_path), "AGENT": "one"}
    assert launch(*command, **given).returncode == 0
    (folder,) = folders(tmp_path, "one")
    half_a_curve(folder)
    said = "x-one-seed1 says that it is finished, but steps.csv has 19 of 40 steps. It starts over"
    assert said in launch(*command, **given, DRY_RUN="1").stdout
    again = launch(*command, **given)
    assert again.returncode == 0 and said in again.stdout and "1 of 1: x-one-seed1 finished" in again.stdout
    assert (folder / "log.txt").read_text() == "from 0\n" and (folder / "interrupted-1/run.json").exists()


def test_one_that_its_checkpoint_cannot_make_whole_says_what_to_do(tmp_path):
    (folder,) = folders(tmp_path, "one")
    folder.mkdir()
    for name, text in {"command.txt": "count one", "count": "39", "steps.csv": "step\n1\n"}.items():
        (folder / name).write_text(text)
    result = launch(tmp_path, COUNTING, "counts", OUTPUT=str(tmp_path), AGENT="one")
    assert "ended with exit code 0 and steps.csv has no row of step 2." in result.stderr
    assert f"To train it from its start, move {folder} away." in result.stderr


def test_set_aside_takes_a_free_number(tmp_path):
    for name in ("interrupted-2", "interrupted-10", "interrupted-of-mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "run.json").write_text("{}")
    grid.set_aside(tmp_path)
    assert [path.parent.name for path in tmp_path.rglob("run.json")] == ["interrupted-11"]


def no_folder(folder):
    shutil.rmtree(folder)
    folder.write_text("a file")


def link_elsewhere(folder):
    mine = folder.rename(folder.parent / "mine of the user")
    folder.symlink_to(mine)


ODD = {
    "an open quote": (lambda folder: (folder / "command.txt").write_text("count 'one"), "No closing quotation"),
    "a folder for a file": (no_folder, "NotADirectoryError"),
    "a link to a folder of the user's": (link_elsewhere, "is a link, and what is in the folder behind it"),
}


@pytest.mark.parametrize("damage, reason", ODD.values(), ids=ODD)
def test_bad_folder_is_a_line_and_the_others_are_trained(tmp_path, damage, reason):
    command, given = (tmp_path, COUNTING, "counts"), {"OUTPUT": str(tmp_path), "AGENT": "one two"}
    folder, _ = folders(tmp_path)
    folder.mkdir()
    (folder / "count").write_text("3")
    damage(folder)
    for variable in ("DRY_RUN", "CHECK_ONLY"):
        said = launch(*command, **given, **{variable: "1"})
        assert f"{folder.name} is left alone: " in said.stdout and reason in said.stdout
    result = launch(*command, **given)
    assert (
        result.returncode == 1 and "1 of 1: x-two-seed1 finished" in result.stdout and "Traceback" not in result.stderr
    )
    assert "not finished: 1\nx-one-seed1 is left alone: " in result.stderr and "Traceback" not in result.stderr
    assert not folder.is_symlink() or os.listdir(folder) == ["count"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes(tmp_path, number):
    stopped = start(tmp_path, COUNTING, "counts", OUTPUT=str(tmp_path), AGENT="one")
    wait_for(lambda: all(count(folder) > 0 for folder in folders(tmp_path, "one")), stopped)
    stopped.send_signal(number)
    time.sleep(0.1)
    stopped.send_signal(number)  # as `timeout make` does
    _, errors = stopped.communicate(timeout=900)
    assert stopped.returncode == 130 and "stopped; nothing is left running" in errors
    assert processes_with(**{MARK: str(tmp_path)}) == []


def test_only_this_very_run_goes_on_in_its_folder(tmp_path):
    given = {"OUTPUT": str(tmp_path), "AGENT": "one"}
    for folder in folders(tmp_path, "one"):  # of a run that ended at once, as with a flag that nobody knows
        folder.mkdir(parents=True)
        (folder / "command.txt").write_text("count one --lrr 1")
    assert launch(tmp_path, COUNTING, "counts", **given).returncode == 0
    assert processes_with(**{MARK: str(tmp_path)}) == []  # also what a finished run has left running
    other = launch(tmp_path, COUNTING, "counts", "--lr", "1", **given)
    assert (
        other.returncode == 1
        and "holds a run with other flags. Then: count one; now: count one --lr 1." in other.stderr
    )
    assert "--agent cannot be set here" in launch(tmp_path, COUNTING, "counts", "--agent=two", **given).stderr
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert launch(tmp_path, COUNTING, "counts", PYTHON=str(python), **given).returncode == 0


def test_a_disk_that_is_too_full_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT", str(tmp_path / "not/yet"))
    monkeypatch.setattr(Counting, "space", 2**60)
    script = Counting("counts")
    (problem,) = grid.problems(script, script.runs)
    assert f"{tmp_path}/not/yet has" in problem and "2 runs may take" in problem


# Stands in for Slurm: runs the last of the array's jobs here, with this environment as --export=ALL says.
SBATCH = """#!/bin/bash
[[ $1 == --export=ALL && -z $SBATCH_ARRAY_INX ]] || exit 1
index=$(sed -nE 's/^#SBATCH --array=([0-9,]+).*/\\1/p' "$2" | tr , '\\n' | tail -1)
SLURM_ARRAY_TASK_ID=$index bash "$2" > "$2.txt" 2>&1
"""


def test_a_slurm_job_trains_the_run_of_its_index(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(SBATCH)
    (tmp_path / "bin/sbatch").chmod(0o755)
    given = {"OUTPUT": tmp_path / "a b", "AGENT": "one two", "SLURM": "1", "PYTHONPATH": ROOT}
    given["SBATCH_ARRAY_INX"] = "1-6%1"
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    # The job starts the launcher, which does not know this grid.
    script = grid.slurm_script(Counting("counts")).replace("-m recipes.control", COUNTING)
    assert "#SBATCH --array=0,1\n" in script and "gres" not in script
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    grid.submit(script, tmp_path / "a b/counts.sbatch")
    said = (tmp_path / "a b/counts.sbatch.txt").read_text()
    assert [count(folder) for folder in folders(tmp_path / "a b")] == [0, 40] and "1 of 1: x-two-seed1 finished" in said


@pytest.mark.parametrize(
    "gpus, jobs, expected",
    [
        (0, "3", [None] * 3),
        (1, "", ["0", "1", "GPU-c"]),
        (1, "2", ["0", "1"]),
        (0.5, "", ["0", "1", "GPU-c"] * 2),
        (2, "", ["0,1"]),
        (4, "", []),
    ],
)
def test_each_run_has_gpus_of_its_own(monkeypatch, gpus, jobs, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,GPU-c")
    monkeypatch.setenv("JOBS", jobs)
    script = Counting("counts")
    script.gpus = gpus
    assert grid.slots(script) == expected
