# ruff: noqa: E402
"""tools/bench/plugins.py: its table is complete."""

import csv
import subprocess
import sys

import plugin_helpers

plugin_helpers.require()


def run(project_root, *arguments):
    command = [sys.executable, "-m", "tools.bench.plugins", *map(str, arguments)]
    return subprocess.run(command, cwd=project_root, capture_output=True, text=True, timeout=600)


def test_every_arm_is_measured(project_root, tmp_path):
    done = run(project_root, "--hosts", "rsl-rl-ppo", "--turns", 2, "--csv", tmp_path / "plugins.csv")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "plugins.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == ["baseline", "era", "activation"]
    for row in rows:
        assert row["cpu"] and row["torch"] and row["host"] == "rsl-rl-ppo"
        for name in ("seconds", "ratio"):
            assert 0 < float(row[f"{name}_p20"]) <= float(row[name]) <= float(row[f"{name}_p80"])
    assert float(rows[0]["ratio"]) == 1 and float(rows[2]["ratio"]) < 0.5 and rows[2]["ratio_to"] == "era"
