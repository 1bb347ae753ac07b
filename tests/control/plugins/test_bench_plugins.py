# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
# ruff: noqa: E402
"""tools/bench/plugins.py: its table is complete."""

import subprocess
import sys

import plugin_helpers

plugin_helpers.require()

import pandas as pd


def test_every_arm_is_measured(project_root, tmp_path):
    words = ["--hosts", "rsl-rl-ppo", "--turns", "2", "--csv", tmp_path / "plugins.csv"]
    command = [sys.executable, "-m", "tools.bench.plugins", *map(str, words)]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(tmp_path / "plugins.csv", index_col="arm")
    assert list(rows.index) == ["baseline", "era", "activation"] and rows.ratio["baseline"] == 1
    assert rows.ratio["activation"] < 0.5 and rows.baseline["activation"] == "era"
    for name in ("seconds", "ratio"):
        assert (rows[f"{name}_p20"] > 0).all() and (rows[f"{name}_p20"] <= rows[f"{name}_p80"]).all()
