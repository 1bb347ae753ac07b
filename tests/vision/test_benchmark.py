"""The benchmark of the activation and of timm's steps: it runs, and its tables are complete."""

import csv
import os
import subprocess
import sys

import pytest

from tools.bench import vision


@pytest.mark.slow
def test_every_arm_is_measured_in_both_passes(project_root, patched_timm, tmp_path):
    """Eager; compiling the arms takes a minute and more."""
    flags = "--rounds 2 --sizes 8x12 --batch 2 --classes 12 --modes eager --models test_resnet"
    command = [sys.executable, "-m", "tools.bench.vision", "--checkout", patched_timm, *flags.split()]
    command += ["--csv", tmp_path / "vision.csv"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, cwd=project_root, env=env, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "vision.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    arms, passes = ("plain", "listing", "approx", "exact", "logged"), ("training", "evaluation")
    expected = [(what, pass_, arm) for what in ("activation", "test_resnet") for pass_ in passes for arm in arms]
    assert [(row["what"], row["pass"], row["arm"]) for row in rows] == expected
    for row in rows:
        assert row["mode"] == "eager" and row["classes"] == "12" and row["torch"] and row["cpu"] and row["timm"]
        assert float(row["seconds"]) > 0
        for name in ("seconds", "seconds_ratio", "listing_ratio"):
            assert float(row[f"{name}_p20"]) <= float(row[name]) <= float(row[f"{name}_p80"])
        assert row["arm"] != "plain" or float(row["seconds_ratio"]) == 1
        assert row["arm"] != "listing" or float(row["listing_ratio"]) == 1
        assert (float(row["kept_mib"] or 0) > 0) == (row["pass"] == "training")
        assert (row["alone_share"] == "") == (row["what"] == "activation")
    for title in ("cross-entropy", "the listing", "ERA, approx ", "ERA, exact", "ERA, approx, entropies logged"):
        assert result.stdout.count(f"| {title} ") == len(rows) // len(arms)


def test_all_bad_values_are_said_at_once(import_timm, patched_timm, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def refused(flags):
        monkeypatch.setattr(sys, "argv", ["vision.py", "--checkout", str(patched_timm), *flags.split()])
        with pytest.raises(SystemExit) as end:
            vision.read_arguments()
        assert end.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    line = refused("--models test_resnet no_such_model --device cuda --rounds 1 --csv /none/vision.csv")
    assert all(said in line for said in ("no_such_model", "finds no GPU", "2 rounds", "none/vision.csv"))
    line = refused("--sizes 64x3")
    assert "64x3" in line and "BATCHxCLASSES" in line
