# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The benchmarks run, and their tables are complete."""

import os
import subprocess
import sys

import pandas as pd
import pytest
import torch

from tools.bench import measure

# Its upstream, and the smallest sizes.
BENCHES = {
    "logprobs": ("verl", "v0.4.1", "--vocabulary=300 --tokens=16 --dtypes=float32"),
    "actor": ("verl", "v0.4.1", "--vocabulary=300 --tokens=128 --width=32 --layers=1"),
}


@pytest.fixture
def python(project_root):
    """python(*arguments): a Python in the project's root, where the tools are modules."""

    def run(*arguments):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=project_root, env=env, capture_output=True, text=True, timeout=900)

    return run


def test_ratios_are_paired_by_turn():
    """The machine is three times as slow in the second turn, and the arm takes twice its baseline's time in both."""
    seconds = {"plain": [1.0, 3.0], "era": [2.0, 6.0]}
    table = measure.ratios(seconds, ratio="plain", other={"era": "era", "plain": "era"})
    assert list(table.seconds) == [2, 4] and list(table.ratio) == [1, 2] and list(table.other) == [0.5, 1]
    assert list(table.ratio_p20) == list(table.ratio_p80) == [1, 2]


def test_arms_take_turns_in_both_orders():
    order = []
    found = measure.take_turns({arm: lambda arm=arm: order.append(arm) or arm for arm in "ab"}, 2)
    assert order == ["b", "a", "a", "b"] and found == {"a": ["a", "a"], "b": ["b", "b"]}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone counts a process's memory at its peak")
def test_the_memory_of_a_run_is_what_it_holds_beyond_what_was_held():
    held, size = torch.ones(2**24), 2**25
    assert measure.cost(lambda: torch.ones(size))["mib"] == pytest.approx(128, abs=8) and held.all()


def test_arms_that_cannot_run_are_left_out():
    def missing():
        raise ImportError("no such package")

    arms = {"a": lambda: {"x": {"seconds": 1.0, "mib": 4.0}}, "b": lambda: {"x": {"seconds": 2.0, "mib": 1.0}}}
    (table,) = measure.compare({**arms, "c": missing}, 2, ratio={"a": "a", "b": "a"}).values()
    assert list(table.index) == ["a", "b"] and list(table.ratio) == [1, 2] and list(table.mib_ratio) == [1, 0.25]


@pytest.mark.grid
@pytest.mark.parametrize("name", BENCHES)
def test_every_arm_is_measured(name, python, trees_of, tmp_path):
    upstream, version, sizes = BENCHES[name]
    checkout, file = trees_of(upstream, version)[0], tmp_path / "bench.csv"
    words = [*f"tools.bench.{name}".split(), "--checkout", checkout, "--turns=2", "--csv", file, *sizes.split()]
    result = python("-m", *words)
    assert result.returncode == 0, result.stderr
    rows = pd.read_csv(file)
    groups = [name for name in ("group", "pass", "what") if name in rows]
    for _, table in rows.groupby(groups) if groups else [((), rows)]:
        assert table.arm.is_unique and (table.ratio == 1).any() and len(table) > 2
        assert (table.seconds_p20 > 0).all() and (table.seconds_p20 <= table.seconds).all()
        assert (table.ratio_p20 <= table.ratio).all() and (table.ratio <= table.ratio_p80).all()
    assert rows[["cpu", "torch", "turns"]].notna().all(axis=None)
