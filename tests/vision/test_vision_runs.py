"""Runs through the real train.py on a CPU: stopped early, interrupted, resumed and skipped; and how a launch ends."""

import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from helpers import processes_with
from tiny_runs import EXPERIMENTS, FLAGS, write_images

MARK = "ERA_VISION_TEST"
NAME = "cifar10-aug-era0.6-seed42"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my images")
    write_images(folder)
    return folder


def processes(mark):
    return processes_with(**{MARK: str(mark)})


@pytest.fixture
def start(images, tmp_path):
    """start(checkout, flags..., before=words, VARIABLE=...): the launcher, for one run in this test's folder."""

    def run(checkout, *added, before=(), **variables):
        given = {"PYTHON": sys.executable, "GPUS": "1", "SEED": "42", "DATA_DIR": str(images), "OUTPUT": str(tmp_path)}
        environment = {**os.environ, **given, "OMP_NUM_THREADS": "1", MARK: str(tmp_path), **variables}
        launcher = [sys.executable, checkout / "recipes/era/launch.py", "cifar10-aug-era", *FLAGS, *added]
        return subprocess.Popen(
            [*before, *launcher], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    yield run
    for process in processes(tmp_path):
        process.kill()


def wait_for(stream, beginning):
    for line in stream:
        if line.startswith(beginning):
            return
    raise AssertionError(f"no line {beginning!r}")


@pytest.mark.slow
def test_run_goes_on_from_where_it_ended(start, timm_scripts, recipe, tmp_path):
    def run(*added, **variables):
        process = start(timm_scripts, "--epochs", "3", *added, **variables)
        return *process.communicate(timeout=900), process.returncode

    def epochs():
        return [int(row["epoch"]) for row in csv.DictReader((tmp_path / NAME / "summary.csv").open())]

    printed, errors, code = run(EPOCHS="1")
    assert code == 0, printed + errors
    assert epochs() == [0] and "Train: 1 [" in printed and processes(tmp_path) == []
    record = json.loads((tmp_path / NAME / "run.json").read_text())
    expected = {"host": "timm", "seed": 42, "total_steps": 3, "finished": False, "as_paper": False, "modified": False}
    assert expected.items() <= record.items() and record["versions"]["torch"] and len(record["commit"]) == 40
    assert "--epochs" in record["added"]

    terminated = start(timm_scripts, "--epochs", "3")
    wait_for(terminated.stdout, "Train: 1 [")
    terminated.send_signal(signal.SIGTERM)
    _, errors = terminated.communicate(timeout=900)
    assert errors.strip() == "stopped by SIGTERM. Repeat the command to resume from the last checkpoint."
    assert terminated.returncode == 128 + signal.SIGTERM and processes(tmp_path) == []

    printed, errors, code = run()
    assert code == 0, printed + errors
    assert "Loaded checkpoint" in printed and "Train: 0 [" not in printed
    finished = json.loads((tmp_path / NAME / "run.json").read_text())
    assert finished["finished"] is True and finished["started"] == record["started"] <= finished["ended"]
    assert epochs() == [0, 1, 2] and (tmp_path / NAME / "summary.csv").read_text().count("epoch,") == 1

    printed, errors, code = run()
    assert code == 0 and "Train:" not in printed, printed + errors
    table = printed.splitlines()[-1].split()
    assert table[:2] == [NAME, "3"] and float(table[-1]) > math.log(10)  # the model has hardly begun to learn

    _, errors, code = run("--lr", "0.1")
    assert code == 1
    assert f"{NAME}: {tmp_path / NAME} holds a run with other flags (then: nothing; now: --lr 0.1)" in errors

    speeds = recipe.results.speeds(tmp_path / NAME / "log.txt")
    assert sorted(speeds) == [0, 1, 2] and all(seconds > 0 and rate > 0 for seconds, rate in speeds.values())


# The launcher with a script that stands in for the training


@pytest.fixture
def stand_in(start, patched_timm, tmp_path):
    """stand_in(script, before=words): the launcher in a checkout with this distributed_train.sh."""

    def run(script, before=()):
        checkout = tmp_path / "check out"
        shutil.copytree(patched_timm / "recipes/era", checkout / "recipes/era", dirs_exist_ok=True)
        (checkout / "train.py").touch()
        (checkout / "distributed_train.sh").write_text(f"#!/bin/bash\n{script}\n")
        (checkout / "distributed_train.sh").chmod(0o755)
        return start(checkout, before=before)

    return run


@pytest.mark.slow
def test_run_whose_launcher_was_killed_is_not_trained_twice(stand_in, tmp_path):
    killed = stand_in("echo begun; sleep 900; exit")
    wait_for(killed.stdout, "begun")
    killed.kill()
    killed.wait()
    _, errors = stand_in("true").communicate(timeout=900)
    assert f"{tmp_path / NAME}: another launch is training this run" in errors
    for process in processes(tmp_path):
        process.kill()
    assert "ended with exit code" in stand_in("true").communicate(timeout=900)[1]


@pytest.mark.parametrize("script, code", [("echo out of memory; exit 3", "3"), ("kill -9 $$", "-9"), ("true", "0")])
def test_failed_run_says_how_far_it_came_and_where_its_log_is(stand_in, tmp_path, script, code):
    failed = stand_in(script)
    printed, errors = failed.communicate(timeout=900)
    log = tmp_path / NAME / "log.txt"
    assert f"{NAME} ended with exit code {code} after 0 of 1 epochs. Its output is in {log}" in errors
    assert ("out of memory" in printed) == ("out of memory" in log.read_text()) == (code == "3")
    assert failed.returncode == 1
    record = json.loads((tmp_path / NAME / "run.json").read_text())
    assert record["finished"] is False and record["modified"] is None  # of no git repository


def test_trainings_own_processes_end_with_it(stand_in, tmp_path):
    process = stand_in("sleep 900 & echo standalone $PET_STANDALONE; wait")
    wait_for(process.stdout, "standalone 1")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 128 + signal.SIGINT and "stopped by SIGINT" in errors and processes(tmp_path) == []


@pytest.mark.slow
def test_second_ctrl_c_does_not_cut_the_ending_short(stand_in, tmp_path):
    process = stand_in(
        "trap 'touch ending; sleep 1; touch ended; exit' TERM; echo begun; while true; do sleep 0.1; done"
    )
    wait_for(process.stdout, "begun")
    process.send_signal(signal.SIGINT)
    while not (tmp_path / "check out/ending").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 128 + signal.SIGINT and "stopped by SIGINT" in errors
    assert (tmp_path / "check out/ended").exists() and processes(tmp_path) == []


@pytest.mark.slow
def test_nohup_keeps_it_from_the_end_of_the_session(stand_in, tmp_path):
    process = stand_in("echo begun; until [ -e hung-up ]; do sleep 0.1; done; exit 5", before=["nohup"])
    wait_for(process.stdout, "begun")
    process.send_signal(signal.SIGHUP)
    (tmp_path / "check out/hung-up").touch()
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 1 and "ended with exit code 5" in errors


@pytest.fixture
def stuck(tmp_path):
    """A distributed_train.sh whose torchrun SIGTERM does not end, with a worker in a session of its own."""
    torchrun = "trap '' TERM; setsid bash -c 'echo begun; exec sleep 900' & while true; do sleep 0.1; done"
    (tmp_path / "torchrun.sh").write_text(torchrun)
    process = subprocess.Popen(
        ["bash", "-c", "bash torchrun.sh; true"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: str(tmp_path)},
        start_new_session=True,
    )
    wait_for(process.stdout, "begun")
    yield process
    for left in processes(tmp_path):
        left.kill()
    process.wait()


def test_stuck_torchrun_and_its_workers_are_killed(recipe, stuck, tmp_path):
    recipe.launching.end(stuck, 0.5)
    assert stuck.returncode == -signal.SIGTERM and processes(tmp_path) == []


def test_table_is_that_after_the_wanted_epochs(stand_in, tmp_path):
    """Of a run that has more: --epochs 1 is among the flags."""
    stand_in("exit 1").communicate(timeout=900)
    (tmp_path / NAME / "summary.csv").write_text("epoch,eval_top1,eval_top5\n0,10,50\n1,20,60\n2,30,70\n")
    printed, errors = stand_in("touch trained").communicate(timeout=900)
    assert printed.splitlines()[-1].split() == [NAME, "1", "10.00", "50.00", "10.00", "-"], errors
    assert not (tmp_path / "check out/trained").exists()


# make vision-smoke


def test_smoke_has_every_experiment(recipe):
    assert list(recipe.runs.EXPERIMENTS) == EXPERIMENTS


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory):
    """The folder of all experiments' runs: one that two of them share is trained once."""
    return tmp_path_factory.mktemp("runs")


def smoke(experiment):
    """One of them is a part of `make test-all` too."""
    return [pytest.mark.smoke(experiment), *([pytest.mark.slow] if experiment == "imagenet-era" else [])]


@pytest.mark.parametrize("experiment", [pytest.param(name, marks=smoke(name)) for name in EXPERIMENTS])
def test_experiment_trains_an_epoch(experiment, timm_scripts, launch, images, smoke_runs, recipe, say):
    """Every run of an experiment through the recipe's own check, distributed_train.sh and train.py."""
    given = {"GPUS": "1", "SEED": "42", "DATA_DIR": str(images), "OUTPUT": str(smoke_runs), "PYTHON": sys.executable}
    if experiment.startswith("imagenet"):
        given["NUM_CLASSES"] = "10"  # the recipe's check wants 1,000 classes without it
    began = time.monotonic()
    result = launch(experiment, *FLAGS, OMP_NUM_THREADS="1", **given)
    say(f"{experiment:<26}{result.stdout.count('== '):>3} trained{time.monotonic() - began:>6.0f} s")
    assert result.returncode == 0, result.stdout + result.stderr
    table = result.stdout.split("\n\n")[-1]
    assert table.strip(), result.stdout
    for summary in smoke_runs.glob("*/summary.csv"):
        (row,) = csv.DictReader(summary.open())
        assert math.isfinite(float(row["train_loss"])) and math.isfinite(float(row["eval_loss"]))
    if experiment == "imagenet-era":
        name = "imagenet-10classes-era1.2-seed42"
        assert re.search(rf"^{name} +1 ", result.stdout, re.MULTILINE), result.stdout
        assert "±" not in result.stdout  # the images are not ImageNet's
