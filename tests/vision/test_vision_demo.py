# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`python -m demo.vision`: its measures and data, and short runs on the real patched timm."""

import math
import os
import subprocess
import sys

import numpy
import pandas
import pytest
import scipy.stats
import torch
from demo_helpers import ROOT, run
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.vision import data, measures, report
from demo.vision import settings as demo_settings
from demo.vision.settings import EPOCHS_FILE, Settings

EPOCHS = 1


def softmax(row):
    shifted = [math.exp(z - max(row)) for z in row]
    return [one / sum(shifted) for one in shifted]


def plain_ece(logits, targets, bins=15):
    """From the definition, without arrays: the sum over bins of |sum of (right - confidence)|, over all images."""
    total = 0.0
    for k in range(bins):
        right = confidence = 0.0
        for row, target in zip(logits, targets):
            probabilities = softmax(row)
            top = max(probabilities)
            if k / bins < top <= (k + 1) / bins:
                right += probabilities.index(top) == target
                confidence += top
        total += abs(right - confidence)
    return total / len(targets)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 12), st.floats(0.1, 30))
def test_measures_agree_with_independent_computations(seed, images, classes, scale):
    generator = numpy.random.default_rng(seed)
    logits = (scale * generator.standard_normal((images, classes))).astype(numpy.float32)
    targets = generator.integers(0, classes, images)
    found = measures.measures(logits, logits, targets)
    probabilities = numpy.array([softmax(row) for row in logits.tolist()])
    entropies = scipy.stats.entropy(probabilities, axis=1)
    cross_entropy = torch.nn.functional.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(targets))
    assert found["ECE, %"] == pytest.approx(100 * plain_ece(logits.tolist(), targets), abs=1e-9)
    assert found["NLL, nats"] == pytest.approx(cross_entropy.item(), abs=1e-9)
    right = [row.index(max(row)) == target for row, target in zip(probabilities.tolist(), targets.tolist())]
    assert found["top-1, %"] == pytest.approx(100 * sum(right) / images)
    assert found["smallest entropy, nats"] == pytest.approx(entropies.min(), abs=1e-9)
    assert found["mean entropy, nats"] == pytest.approx(entropies.mean(), abs=1e-9)
    assert found["mean confidence, %"] == pytest.approx(100 * probabilities.max(axis=1).mean())


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    """In one bin with the other image, a right and a wrong one cancel."""
    right = numpy.array([True, False])
    assert measures.calibration_error(numpy.array([7 / 15, 8 / 15]), right) == pytest.approx(8 / 15)
    assert measures.calibration_error(numpy.array([numpy.nextafter(7 / 15, 1), 8 / 15]), right) < 1e-9


def test_the_predicted_class_is_that_of_the_logits_before_era():
    """Those have no ties where ERA's have."""
    found = measures.measures(numpy.array([[-1, -1, -9]], numpy.float32), numpy.array([[1.0, 2, 0]]), numpy.array([1]))
    assert found["top-1, %"] == 100


def test_a_floor_that_held_and_one_that_did_not():
    epochs = pandas.DataFrame({"name": ["baseline", "ERA", "ERA"], "seed": [1, 1, 2]})
    epochs["smallest entropy, nats"] = [0.5, 1.2, 0.9825 - 5e-7]  # rounding
    epochs["train smallest entropy, nats"] = [0.25, 0.97, 1.1]
    line = report.held(epochs, 0.9825)
    assert "held in 1 of 2 runs" in line and "0.9700" in line and line.endswith("baseline 0.2500")
    epochs.loc[0, "train smallest entropy, nats"] = 1.1
    epochs.loc[0, "smallest entropy, nats"] = 1.2
    assert report.held(epochs, 0.9825).endswith("so these epochs do not show what ERA does")
    epochs.loc[2, "smallest entropy, nats"] = math.nan
    assert "held in 0 of 2 runs: smallest H nan" in report.held(epochs, 0.9825)


def test_images_are_the_digits_split_by_class(tmp_path):
    from PIL import Image
    from sklearn.datasets import load_digits

    images, digits, seen = data.write(tmp_path / "images"), load_digits(), set()
    for part, count in data.COUNTS.items():
        files = list((images / part).glob("*/*.png"))
        numbers = {int(file.stem) for file in files}
        assert len(files) == len(numbers) == count and not seen & numbers
        seen |= numbers
        assert all(digits.target[int(file.stem)] == int(file.parent.name) for file in files)
    with Image.open(files[0]) as image:
        assert image.size == (32, 32) and image.mode == "RGB"
        small = numpy.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX)) / 255 * 16
    assert numpy.abs(small - digits.images[int(files[0].stem)]).mean() < 1


def demo(checkout, out, *arguments):
    return run("demo.vision", "--checkout", checkout, "--out", out, "--seeds", 1, "--epochs", EPOCHS, *arguments)


@pytest.fixture(scope="module")
def trained(patched_timm, tmp_path_factory):
    """The folder of a demo, and what it printed. Its checkout is what timm's source package has: timm alone."""
    checkout = tmp_path_factory.mktemp("timm")
    (checkout / "timm").symlink_to(patched_timm / "timm")
    out = tmp_path_factory.mktemp("a folder, with odd = characters")
    result = demo(checkout, out)
    assert result.returncode == 0, result.stdout + result.stderr
    return out, result.stdout


def epochs(out, h0):
    return pandas.read_csv(out / Settings(h0, 1, EPOCHS).folder / EPOCHS_FILE)


@pytest.mark.slow
def test_demo_prints_writes_and_holds_the_floor(trained):
    out, printed = trained
    assert "floor of 0.9825 held in 1 of 1 runs" in printed
    runs = pandas.read_csv(out / "runs.csv").set_index("name")
    assert list(runs.index) == ["baseline", "ERA", "ERA off at evaluation"]
    for h0, name in ((None, "baseline"), (0.6, "ERA")):
        last = epochs(out, h0).iloc[-1]
        assert all(runs.loc[name, label] == pytest.approx(last[label], rel=1e-12) for label in report.SHOWN)
    assert runs.loc["ERA", "top-1, %"] == runs.loc["ERA off at evaluation", "top-1, %"]
    assert runs.loc["ERA", "mean entropy, nats"] > runs.loc["ERA off at evaluation", "mean entropy, nats"]
    assert (out / "entropy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("h0", [None, 0.6])
@pytest.mark.slow
def test_loop_trains_as_timms_train_py(h0, trained, timm_scripts, tmp_path):
    out, _ = trained
    s = demo_settings
    flags = {
        "model": s.MODEL, "num-classes": s.CLASSES, "img-size": s.IMAGE_SIZE, "crop-pct": 1.0, "workers": 1,
        "batch-size": s.BATCH_SIZE, "validation-batch-size": s.VALIDATION_BATCH_SIZE, "opt": "adamw", "sched": "cosine",
        "lr": s.LEARNING_RATE, "warmup-epochs": s.WARMUP_EPOCHS, "epochs": EPOCHS, "seed": 1, "device": "cpu",
        "data-dir": out / "images", "output": tmp_path, "experiment": "run",
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in flags.items()] + ["--no-aug", "--log-entropy"]
    words += [f"--era-min-entropy={h0}"] if h0 else []
    environment = {**os.environ, "PYTHONPATH": f"{timm_scripts}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, timm_scripts / "train.py", *words], env=environment, check=True, timeout=900)
    theirs, ours = pandas.read_csv(tmp_path / "run/summary.csv"), epochs(out, h0)
    same = {
        "train_loss": "train loss", "train_entropy_min": "train smallest entropy, nats",
        "eval_top1": "top-1, %", "eval_loss": "NLL, nats", "eval_entropy_min": "smallest entropy, nats",
        "eval_entropy_mean": "mean entropy, nats",
    }  # fmt: skip
    for name, label in same.items():
        assert ours[label].tolist() == pytest.approx(theirs[name].tolist(), rel=1e-3)
