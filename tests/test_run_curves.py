# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The end of a run and the mean over it: the same for the report, the table of results and the pages."""

import csv
import statistics

import pandas as pd
import pytest

from ledger import results as ledger_results
from ledger.paper import load
from ledger.verdicts import Judged
from recipes import PROJECT, curves, results
from recipes.control.ppo import PPO
from recipes.grid import Run
from rivals import control

RECORDS = PROJECT / "records/control-ppo"


def rows_by_hand(folder) -> dict[int, float]:
    with (folder / "train.csv").open() as stream:
        return {int(row["global_step"]): float(row["eval_avg_return"]) for row in csv.DictReader(stream)}


def test_the_end_is_the_mean_from_nine_tenths_of_the_last_step_on():
    curve = {step: float(step) for step in range(1, 101)}
    assert curves.at_end(curve) == curves.at_end(pd.Series(curve)) == 95.0  # of 90 to 100
    assert curves.at_end({5: 1.0, 10: 3.0}) == 3.0 and curves.at_end({7: 2.0}) == 2.0
    assert curves.over_all(curve) == curves.over_all(pd.Series(curve)) == 50.5


@pytest.mark.parametrize("agent", ["ppo", "ppo_era"])
def test_a_recorded_run_has_one_end_wherever_it_is_asked_for(agent):
    """The pages, the report, the table of results, and what the launcher says when a run has finished."""
    folders = sorted(RECORDS.glob(f"HalfCheetah-v4-{agent}-seed*"))
    rows = [rows_by_hand(folder) for folder in folders]
    by_hand = [statistics.fmean(value for step, value in run.items() if step >= 2_700_000) for run in rows]
    assert control.returns("control-ppo", agent).sort_values().tolist() == pytest.approx(sorted(by_hand))

    paper = load()
    judged = Judged(paper, ledger_results.collect(paper, [RECORDS]))
    entry = paper.entries[f"{agent.replace('_', '-')}/HalfCheetah-v4"]
    assert sorted(judged.values(entry, "eval_avg_return")) == pytest.approx(sorted(by_hand))

    (line,) = [line for line in results.lines(RECORDS) if line.split()[0] == f"HalfCheetah-v4-{agent}"]
    assert f" {len(by_hand)} seeds  return {statistics.fmean(by_hand):.2f} ± " in line
    run = Run(folders[0], "HalfCheetah-v4", agent, 1, ())
    assert PPO("ppo").last_result(run) == f", return {by_hand[0]:.2f}"


def test_columns_with_a_comma_and_a_line_that_is_being_written(tmp_path):
    """A name of the vision demo's has a comma. The last line, unfinished, is left for later."""
    file = tmp_path / "epochs.csv"
    file.write_text('epoch,"top-1, %","top-5, %"\n1,50.0,\n2,nan,90.0\n3,60,9')
    columns = curves.read(file)
    assert columns["top-5, %"] == {2: 90.0} and columns["top-1, %"][1] == 50.0 and len(columns["top-1, %"]) == 2


def test_a_file_of_epochs_is_read_as_timm_leaves_it(tmp_path):
    """A resumed train.py repeats the header and an epoch, and a kill cuts a row: the later row counts."""
    file = tmp_path / "summary.csv"
    file.write_text("epoch,eval_top1\n0,10.0\n1,20.0\n2\nepoch,eval_top1\n1,21.0\n2,22.5\n")
    assert curves.read(file)["eval_top1"] == {0: 10.0, 1: 21.0, 2: 22.5}
    assert results.ends(tmp_path) == {"top-1": 22.5}
