"""The benchmark of the activation and of timm's steps: it runs, and its tables are complete."""

import csv
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def vision(project_root, patched_timm):
    def run(*args):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [
            sys.executable,
            project_root / "tools/bench/vision.py",
            "--checkout",
            patched_timm,
            "--rounds",
            "2",
            *args,
        ]
        return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=900)

    return run


def test_every_arm_is_measured_in_both_passes(vision, tmp_path):
    """Eager; compiling the arms takes a minute and more."""
    mode, models = "eager", ["test_resnet"]
    result = vision(
        "--sizes",
        "8x12",
        "--batch",
        "2",
        "--classes",
        "12",
        "--modes",
        mode,
        "--csv",
        tmp_path / "vision.csv",
        "--models",
        *models,
    )
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "vision.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    arms = ("plain", "listing", "approx", "exact", "logged")
    assert [(row["what"], row["pass"], row["arm"]) for row in rows] == [
        (what, pass_, arm) for what in ("activation", *models) for pass_ in ("training", "evaluation") for arm in arms
    ]
    for row in rows:
        assert row["mode"] == mode and row["torch"] and row["cpu"] and row["timm"] and row["classes"] == "12"
        assert float(row["seconds"]) > 0 and all(
            float(row[f"{name}_p20"]) <= float(row[name]) <= float(row[f"{name}_p80"])
            for name in ("seconds", "seconds_ratio", "listing_ratio")
        )
        assert row["arm"] != "plain" or float(row["seconds_ratio"]) == 1
        assert row["arm"] != "listing" or float(row["listing_ratio"]) == 1
        assert (float(row["kept_mib"] or 0) > 0) == (row["pass"] == "training") and (row["alone_share"] == "") == (
            row["what"] == "activation"
        )
    assert all(
        result.stdout.count(f"| {title} ") == len(rows) // len(arms)
        for title in ("cross-entropy", "the listing", "ERA, approx ", "ERA, exact", "ERA, approx, entropies logged")
    )


def test_all_bad_values_are_said_at_once(vision, tmp_path):
    result = vision(
        "--models",
        "test_resnet",
        "no_such_model",
        "--device",
        "cuda",
        "--rounds",
        "1",
        "--csv",
        tmp_path / "none/vision.csv",
    )
    assert result.returncode == 2 and "Traceback" not in result.stderr
    for said in ("no_such_model", "finds no GPU", "2 rounds", "none/vision.csv"):
        assert said in result.stderr.splitlines()[-1]
    result = vision("--sizes", "64x3")
    assert result.returncode == 2 and "64x3" in result.stderr and "BATCHxCLASSES" in result.stderr
