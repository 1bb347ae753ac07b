# ruff: noqa: E402
"""tools/bench/plugins.py: its table is complete, and bad values are named."""

import csv
import subprocess
import sys

import plugin_helpers

plugin_helpers.require()


def run(project_root, *arguments):
    command = [sys.executable, "-m", "tools.bench.plugins", *map(str, arguments)]
    return subprocess.run(command, cwd=project_root, capture_output=True, text=True, timeout=600)


def test_every_arm_is_measured(project_root, tmp_path):
    done = run(project_root, "--hosts", "rsl-rl-ppo", "--rounds", 2, "--csv", tmp_path / "plugins.csv")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "plugins.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == ["baseline", "era", "activation"]
    for row in rows:
        assert row["cpu"] and row["torch"] and row["host"] == "rsl-rl-ppo"
        for name in ("cpu_ms", "ratio"):
            assert 0 < float(row[f"{name}_p20"]) <= float(row[name]) <= float(row[f"{name}_p80"])
        assert row["arm"] != "baseline" or float(row["ratio"]) == 1
    assert float(rows[2]["ratio"]) < 0.5 and rows[2]["ratio_to"] == "era"


def test_bad_values_are_named(project_root, tmp_path):
    for arguments, said in ((["--rounds", 1], "2 rounds"), (["--csv", tmp_path / "none/a.csv"], "none/a.csv")):
        done = run(project_root, *arguments)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
