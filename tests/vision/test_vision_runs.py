"""A run through the real train.py on a CPU: stopped early, interrupted, killed, resumed, and skipped once it is finished."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from demo.runner.errors import DemoError
from tools.smoke import vision as smoke_vision

MARK = "ERA_VISION_TEST"
NAME = "cifar10-aug-era0.6-seed42"
EPOCHS = 3


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my images")
    smoke_vision.write_images(folder)
    return folder


@pytest.fixture
def start(timm_scripts, images, tmp_path):
    """start(...): the launcher at work on one run of EPOCHS epochs, in this test's folder."""

    def run(*added, **variables):
        environment = {
            **os.environ,
            "PYTHON": sys.executable,
            "GPUS": "1",
            "SEED": "42",
            "DATA_DIR": str(images),
            "OUTPUT": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            MARK: str(tmp_path),
            **variables,
        }
        command = [
            sys.executable,
            timm_scripts / "recipes/era/launch.py",
            "cifar10-aug-era",
            *smoke_vision.FLAGS,
            "--epochs",
            str(EPOCHS),
            *added,
        ]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    yield run
    for process in processes(tmp_path):
        process.kill()


def processes(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def epochs(folder):
    return [int(row["epoch"]) for row in csv.DictReader((folder / NAME / "summary.csv").open())]


def wait_for(stream, beginning):
    for line in stream:
        if line.startswith(beginning):
            return
    raise AssertionError(f"no line {beginning!r}")


def test_run_goes_on_from_where_it_ended(start, recipe, tmp_path):
    stopped = start(EPOCHS="1")
    printed, errors = stopped.communicate(timeout=900)
    assert stopped.returncode == 0, printed + errors
    assert epochs(tmp_path) == [0] and "Train: 1 [" in printed
    assert processes(tmp_path) == []

    terminated = start()
    wait_for(terminated.stdout, "Train: 1 [")
    terminated.send_signal(signal.SIGTERM)
    _, errors = terminated.communicate(timeout=900)
    assert (
        terminated.returncode == 128 + signal.SIGTERM
        and errors.strip() == "stopped by SIGTERM. The same command again goes on from the last checkpoint."
    )
    assert processes(tmp_path) == []

    finished = start()
    printed, errors = finished.communicate(timeout=900)
    assert finished.returncode == 0, printed + errors
    assert "Loaded checkpoint" in printed and "Train: 0 [" not in printed
    assert epochs(tmp_path) == [0, 1, 2] and (tmp_path / NAME / "summary.csv").read_text().count("epoch,") == 1

    skipped = start()
    printed, errors = skipped.communicate(timeout=900)
    assert skipped.returncode == 0 and "Train:" not in printed, printed + errors
    table = printed.splitlines()[-1].split()
    assert table[:2] == [NAME, "3"] and float(table[-1]) > recipe.preflight.math.log(
        10
    )  # H_min of a model that has hardly begun

    other = start("--lr", "0.1")
    _, errors = other.communicate(timeout=900)
    assert (
        other.returncode == 1
        and f"{NAME}: {tmp_path / NAME} holds a run with other flags (then: nothing; now: --lr 0.1)" in errors
    )

    speeds = recipe.results.speeds(tmp_path / NAME / "log.txt")
    assert sorted(speeds) == [0, 1, 2] and all(seconds > 0 and rate > 0 for seconds, rate in speeds.values())


# The launcher around a training that is none


@pytest.fixture
def stand_in(project_root, images, tmp_path):
    """stand_in(script): the launcher at work in a checkout whose distributed_train.sh is this; `under`: words before its command."""

    def run(script, under=()):
        checkout = tmp_path / "check out"
        shutil.copytree(project_root / "overlays/timm/recipes/era", checkout / "recipes/era", dirs_exist_ok=True)
        (checkout / "train.py").touch()
        (checkout / "distributed_train.sh").write_text(f"#!/bin/bash\n{script}\n")
        (checkout / "distributed_train.sh").chmod(0o755)
        environment = {
            **os.environ,
            "PYTHON": sys.executable,
            "GPUS": "1",
            "SEED": "42",
            "DATA_DIR": str(images),
            "OUTPUT": str(tmp_path),
            MARK: str(tmp_path),
        }
        command = [*under, sys.executable, checkout / "recipes/era/launch.py", "cifar10-aug-era", *smoke_vision.FLAGS]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    yield run
    for process in processes(tmp_path):
        process.kill()


def test_run_whose_launcher_was_killed_is_not_trained_twice(stand_in, tmp_path):
    killed = stand_in("echo begun; sleep 100; exit")
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
    assert (
        failed.returncode == 1
        and f"{NAME} ended with exit code {code} after 0 of 1 epochs" in errors
        and str(tmp_path / NAME / "log.txt") in errors
    )
    assert (
        ("out of memory" in printed) == ("out of memory" in (tmp_path / NAME / "log.txt").read_text()) == (code == "3")
    )


def test_trainings_own_processes_end_with_it(stand_in, tmp_path):
    process = stand_in("sleep 100 & echo standalone $PET_STANDALONE; wait")
    wait_for(process.stdout, "standalone 1")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 128 + signal.SIGINT and "stopped by SIGINT" in errors and processes(tmp_path) == []


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


def test_nohup_keeps_it_from_the_end_of_the_session(stand_in, tmp_path):
    process = stand_in("echo begun; until [ -e hung-up ]; do sleep 0.1; done; exit 5", under=["nohup"])
    wait_for(process.stdout, "begun")
    process.send_signal(signal.SIGHUP)
    (tmp_path / "check out/hung-up").touch()
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 1 and "ended with exit code 5" in errors


# A torchrun that SIGTERM does not end, and a worker in a session of its own, which is nobody's child any more.
STUCK = """trap '' TERM; (setsid bash -c 'echo begun; exec sleep 100' &); while true; do sleep 0.1; done"""


@pytest.fixture
def stuck(tmp_path):
    command = ["bash", "-c", STUCK]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: str(tmp_path)}, start_new_session=True
    )
    wait_for(process.stdout, "begun")
    yield process
    for left in processes(tmp_path):
        left.kill()
    process.wait()


def test_stuck_torchrun_and_its_workers_are_killed(recipe, stuck, monkeypatch, tmp_path):
    monkeypatch.setattr(recipe.launch, "SECONDS_TO_END", 0.5)
    recipe.launch.end(stuck)
    assert stuck.returncode == -signal.SIGKILL and processes(tmp_path) == []


def test_what_cannot_be_killed_is_named(recipe, stuck, monkeypatch, capsys):
    monkeypatch.setattr(recipe.launch, "SECONDS_TO_END", 0.1)
    monkeypatch.setattr(recipe.launch, "SECONDS_TO_KILL", 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda number, signal: None)  # as for a process that waits for its driver
        recipe.launch.end(stuck)
    warning = capsys.readouterr().err
    assert "warning: kill -9 does not end" in warning and str(stuck.pid) in warning and stuck.poll() is None


def test_table_is_that_after_the_wanted_epochs(stand_in, tmp_path):
    """Of a folder that has more, here by the --epochs 1 of the flags."""
    stand_in("exit 1").communicate(timeout=900)
    (tmp_path / NAME / "summary.csv").write_text("epoch,eval_top1,eval_top5\n0,10,50\n1,20,60\n2,30,70\n")
    printed, errors = stand_in("touch trained").communicate(timeout=900)
    assert printed.splitlines()[-1].split() == [NAME, "1", "10.00", "50.00", "10.00", "-"], errors
    assert not (tmp_path / "check out/trained").exists()


def test_checkpoint_that_is_cut_off_is_named(stand_in, tmp_path):
    stand_in("exit 1").communicate(timeout=900)
    (tmp_path / NAME / "last.pth.tar").write_bytes(b"PK\x03\x04 and no end")
    process = stand_in("touch trained")
    _, errors = process.communicate(timeout=900)
    assert (
        process.returncode == 1
        and f"{tmp_path / NAME / 'last.pth.tar'} is cut off" in errors
        and not (tmp_path / "check out/trained").exists()
    )


def test_run_of_another_origin_is_left_alone(stand_in, tmp_path):
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "last.pth.tar").touch()
    process = stand_in("touch trained")
    _, errors = process.communicate(timeout=900)
    assert (
        process.returncode == 1
        and "was not started from here" in errors
        and os.listdir(tmp_path / NAME) == ["last.pth.tar"]
    )


# make vision-smoke


def test_smoke_has_every_experiment(recipe, project_root):
    checkout = project_root / "overlays/timm"
    assert smoke_vision.choose(checkout, []) == list(recipe.runs.EXPERIMENTS)
    assert smoke_vision.choose(checkout, ["imagenet", "cifar10"]) == ["cifar10", "imagenet"]
    with pytest.raises(DemoError, match=r"no experiment mnist(.|\n)*cifar10-aug-era"):
        smoke_vision.choose(checkout, ["mnist"])


def test_smoke_needs_train_py(project_root, tmp_path):
    with pytest.raises(DemoError, match="source package"):
        smoke_vision.check(project_root / "overlays/timm")
    with pytest.raises(DemoError, match="apply.py apply timm"):
        smoke_vision.check(tmp_path)


def test_smoke_prints_the_table(timm_scripts, tmp_path):
    command = [
        sys.executable,
        "-m",
        "tools.smoke.vision",
        "--checkout",
        str(timm_scripts),
        "--out",
        str(tmp_path),
        "imagenet-era",
    ]
    result = subprocess.run(
        command,
        cwd=smoke_vision.run.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "H0": "7", "EPOCHS": "x"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^imagenet-era +1 trained", result.stdout, re.MULTILINE) and re.search(
        r"^imagenet-10classes-era1.2-seed42 +1 ", result.stdout, re.MULTILINE
    )
    assert "±" not in result.stdout  # the images are not ImageNet's
    assert Path(tmp_path / "runs/imagenet-10classes-era1.2-seed42/summary.csv").is_file()
