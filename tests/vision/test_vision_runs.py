# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Runs through the real train.py on a CPU: stopped early, killed, resumed and finished; and every experiment, tiny."""

import csv
import json
import math
import re
import sys
import time

import pytest
from grid_launch import kill_all, launch, start, wait_for
from timm_runs import make_images

from recipes import results
from recipes.vision.timm import Timm

NAME = "cifar10-aug-era0.6-seed42"
# bf16, because a convolution in fp16 takes a CPU 500 times as long, and train.py uses one process on a CPU.
FLAGS = [
    "--dataset=", "--model", "test_resnet", "--img-size", "32", "--device", "cpu", "-b", "8", "--workers", "1",
    "--epochs", "1", "--log-interval", "1", "--checkpoint-hist", "1", "--amp-dtype", "bfloat16",
]  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my images")
    make_images(folder)
    return folder


@pytest.mark.slow
def test_a_run_stops_early_is_killed_and_goes_on(images, timm_scripts, tmp_path):
    given = {"GPUS": "1", "SEED": "42", "DATA_DIR": str(images), "OUTPUT": str(tmp_path)}
    given["CHECKOUTS"] = str(timm_scripts.parent)
    command = (tmp_path, "-m", "recipes.vision", "cifar10-aug-era", *FLAGS, "--epochs", "3")
    folder = tmp_path / NAME

    def trained():
        return re.findall(r"Train: (\d+) \[   0", (folder / "log.txt").read_text())

    first = launch(*command, EPOCHS="1", **given)
    assert first.returncode == 0 and f"1 of 1: {NAME} finished, top-1" in first.stdout, first.stdout + first.stderr
    assert (folder / "last.pth.tar").exists() and [row["epoch"] for row in rows(folder)] == trained() == ["0"]
    record = json.loads((folder / "run.json").read_text())
    expected = {"host": "timm", "seed": 42, "total_steps": 3, "finished": False, "as_paper": False, "modified": False}
    assert expected.items() <= record.items() and record["versions"]["torch"] and len(record["commit"]) == 40
    assert "--epochs" in record["added"] and record["agent"] == "aug-era0.6"

    killed = start(*command, **given)
    wait_for(lambda: "2" in trained(), killed)
    kill_all(tmp_path)
    last = launch(*command, **given)
    assert last.returncode == 0, last.stdout + last.stderr
    assert trained().count("0") == 1 and (folder / "log.txt").read_text().count("Loaded checkpoint") == 2
    finished = json.loads((folder / "run.json").read_text())
    assert finished["finished"] is True and finished["started"] == record["started"] <= finished["ended"]
    assert [int(row["epoch"]) for row in rows(folder) if row["epoch"].isdecimal()][-1] == 2
    (line,) = results.lines(tmp_path)
    assert line.startswith(NAME.removesuffix("-seed42")) and " 1 seeds  top-1 " in line
    assert float(line.rpartition("min H ")[2]) >= math.log(10)  # the model has hardly begun to learn


def rows(folder):
    with (folder / "summary.csv").open() as stream:
        return list(csv.DictReader(stream))


def smoke(experiment):
    """One of them is a part of `make test-all` too."""
    return [pytest.mark.smoke(experiment), *([pytest.mark.slow] if experiment == "imagenet-era" else [])]


@pytest.mark.parametrize("experiment", [pytest.param(name, marks=smoke(name)) for name in Timm.experiments])
def test_experiment_trains_an_epoch(experiment, timm_scripts, images, smoke_runs, tmp_path, say):
    """Every run of an experiment through the recipe's own check, distributed_train.sh and train.py."""
    given = {"GPUS": "1", "SEED": "42", "DATA_DIR": str(images), "OUTPUT": str(smoke_runs), "PYTHON": sys.executable}
    given["CHECKOUTS"] = str(timm_scripts.parent)
    if experiment.startswith("imagenet"):
        given["NUM_CLASSES"] = "10"  # the recipe's check wants 1,000 classes without it
    began = time.monotonic()
    result = launch(tmp_path, "-m", "recipes.vision", experiment, *FLAGS, **given)
    say(f"{experiment:<26}{result.stdout.count('finished, top-1'):>3} trained{time.monotonic() - began:>6.0f} s")
    assert result.returncode == 0 and "All are finished." in result.stdout, result.stdout + result.stderr
    for folder in {*smoke_runs.glob("cifar10-*"), *smoke_runs.glob("imagenet-*")}:
        (row,) = rows(folder)
        assert math.isfinite(float(row["train_loss"])) and math.isfinite(float(row["eval_loss"]))
