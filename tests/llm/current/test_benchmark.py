# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""tools.bench.actor measures every arm that 0.9 has, in both passes; tools.bench.megatron measures all of its arms."""

import environment
import pandas as pd
import pytest

environment.require()

TINY = ["--vocabulary", "300", "--width", "32", "--layers", "1", "--turns", "2", "--tokens", "128"]


@pytest.mark.slow
def test_every_arm_is_measured_in_both_passes(tmp_path):
    file = tmp_path / "worker.csv"
    result = environment.run(["-m", "tools.bench.actor"], *TINY, "--csv", file, verl=environment.tree_of("0.9.1"))
    assert result.returncode == 0, result.stderr[-3000:]
    rows = pd.read_csv(file)
    arms = {*rows.arm}
    settings = ("top-k 20", "2 mini-batches", "KL loss", "entropy bonus")
    assert len(rows) == 2 * len(arms) and arms > {"GRPO", "ERA", *(f"ERA, {name}" for name in settings)}
    assert (rows.seconds > 0).all() and (rows.ratio[rows.arm == rows.baseline] == 1).all()


@pytest.mark.slow
def test_every_arm_of_megatrons_is_measured_on_one_process_and_on_two(tmp_path):
    file, sizes = tmp_path / "megatron.csv", ("--vocabulary", "300", "--tokens", "128", "--turns", "2")
    command = ["-m", "tools.bench.megatron", "--csv", file]
    result = environment.run(command, *sizes, verl=environment.tree_of("0.9.1"))
    assert result.returncode == 0, result.stderr[-3000:]  # the arms' terms are compared there
    rows = pd.read_csv(file)
    assert list(rows.groupby("tensor_parallel").size()) == [9, 9] and {*rows.arm} > {"ERA", "ERA by their functions"}
    assert (rows.seconds > 0).all() and (rows.ratio[rows.arm == "verl"] == 1).all()
