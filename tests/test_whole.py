# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Whether a run is whole: by the rows that its host writes, and not if it was cut, half written or half copied."""

import json
import re

import pytest
from grid_launch import ROOT

from recipes import curves, run_json
from recipes.whole import incomplete_because


def table(header, *rows):
    return "".join(",".join(map(str, row)) + "\n" for row in (header.split(","), *rows))


def verl_lines(*steps):
    return "".join(json.dumps({"step": step, "data": {"entropy": 0.5, "grad": None}}) + "\n" for step in steps)


def summary(**changes):
    one = {"problems": 18, "samples_per_problem": 16, "samples": 288, "accuracy": 0.5}
    one |= {"standard_error": 0.01, "pass_at": {"1": 0.5, "16": 1.0}, "protocol": {"problems": 18, "samples": 16}}
    return json.dumps({"benchmarks": {"aime24": one | changes}})


def record(host, total, *command, **fields):
    return {"host": host, "total_steps": total, "command": ["train.py", *command], "finished": host != "verl", **fields}


# Each writer's run.json, its file, and the steps of the rows that a whole run has.
RETURNS, TIMM = "global_step,eval_avg_return,clipped", "epoch,train_loss,eval_top1"
FREQUENCY = ("--evaluate_freq", "5000", "--evaluate_freq=500")  # of which the latter counts
CURVES = {
    "PPO": (record("ppo", 12_000), "train.csv", [5000, 10_000]),
    "PPO, more often": (record("ppo", 3000, *FREQUENCY), "train.csv", range(500, 3001, 500)),
    "PPO to the end of an episode": (record("ppo", 2600, *FREQUENCY), "train.csv", range(500, 3001, 500)),
    "PPO, a flag's beginning": (
        record("ppo", 3000, "--eva", "5e2", evaluate_freq=500),
        "train.csv",
        range(500, 3001, 500),
    ),
    "SAC": (record("sac", 12_000), "train.csv", [5000, 10_000, 12_000]),
    "SAC, more often": (record("sac", 7, "--eval_every=5"), "train.csv", [5, 7]),
    "FastTD3": (record("fasttd3", 1000), "train.csv", range(100, 1000, 100)),
    "FastTD3, later": (record("fasttd3", 1000, "--learning-starts", "250"), "train.csv", range(300, 1000, 100)),
    "TD-MPC2": (record("tdmpc2", 100_000, episode_length=500), "train.csv", [0, 50_000, 100_000]),
    "TD-MPC2, other episodes": (
        *(record("tdmpc2", 3000, "eval_freq=1000", episode_length=300), "train.csv"),
        [0, 1200, 2100, 3000],
    ),
    "TD-MPC2, episodes that end early": (record("tdmpc2", 100_000), "train.csv", [0, 50_400]),
    "timm": (record("timm", 5), "summary.csv", range(5)),
    "vision's demo": (record("timm", 5), "epochs.csv", range(1, 6)),
    "TRL's demo": (record("trl", 3), "steps.csv", [1, 2, 3]),
    "verl": (record("verl", 3), "metrics.jsonl", [1, 2, 3]),
    "verl, stage 2": (
        *(record("verl", 9, "trainer.resume_from_path='/1e3/global_step_6'"), "metrics.jsonl"),
        [7, 8, 9],
    ),
}


@pytest.mark.parametrize("known, file, steps", CURVES.values(), ids=CURVES)
def test_a_run_is_whole_with_all_of_its_rows_and_not_without_one(tmp_path, known, file, steps):
    head = "" if file == "metrics.jsonl" else f"{curves.STEP_COLUMNS[file]},eval_avg_return\n"
    row = verl_lines if file == "metrics.jsonl" else "{},1.5\n".format
    run_json.write(tmp_path, known)
    (tmp_path / file).write_text(head + "".join(map(row, steps)))
    assert incomplete_because(tmp_path) == ""
    for lost in (step for step in steps if step <= known["total_steps"]):
        (tmp_path / file).write_text(head + "".join(row(step) for step in steps if step != lost))
        assert re.match(
            f"{file} has (no row of step|[0-9]+ of {known['total_steps']} steps)", incomplete_because(tmp_path)
        )


PPO = [(step, -3.5, 0.25) for step in range(500, 3001, 500)]
EPOCHS = [(epoch, 2.5, 10.0) for epoch in range(5)]
VALIDATION = '{"step": 0, "data": {"val-core/aime24/acc/mean@1": 0.25}}\n'
OTHERS = {
    "FastTD3, resumed": (
        *(
            "fasttd3",
            400,
            "train.csv",
            table(RETURNS, (100, 7.5, ""), (200, "", ""), (300,), (200, "", ""), (300, 1, 0)),
        ),
        table(RETURNS, (100, 7.5, ""), (200, "", ""), (300,)),
    ),
    "timm, resumed": (
        *("timm", 5, "summary.csv", table(TIMM, *EPOCHS[:3]) + table(TIMM, *EPOCHS[2:])),
        table(TIMM, *EPOCHS[:2]) + table(TIMM, *EPOCHS[3:]),
    ),
    "timm, diverged": ("timm", 1, "summary.csv", table(TIMM, (0, "nan", 1.0)), table(TIMM, (0, "x", 1.0))),
    "verl, resumed": (
        *("verl", 4, "metrics.jsonl", VALIDATION + verl_lines(1, 2, 3)[:-9] + "\n" + verl_lines(2, 3, 4)),
        VALIDATION + verl_lines(1, 2, 4),
    ),
    "an evaluation": (None, None, "summary.json", summary(), summary(samples=96)),
    "fewer samples than its protocol": (
        None,
        None,
        "summary.json",
        summary(),
        summary(samples_per_problem=5, samples=90),
    ),
    "an impossible accuracy": (None, None, "summary.json", summary(), summary(accuracy=7.0)),
}


@pytest.mark.parametrize(
    "known, file, steps",
    [
        (record("verl", 9, "trainer.resume_from_path=/global_step_6"), "metrics.jsonl", range(1, 10)),  # from its start
        (record("ppo", 3000, *FREQUENCY), "train.csv", range(250, 3001, 250)),
    ],
)
def test_rows_that_the_settings_do_not_make_are_another_runs(tmp_path, known, file, steps):
    run_json.write(tmp_path, known)
    (tmp_path / file).write_text(verl_lines(*steps) if file == "metrics.jsonl" else table("global_step", *zip(steps)))
    said = f"{file} has a row of step {steps[0]}, at which a run with these settings has none"
    assert incomplete_because(tmp_path) == said


@pytest.mark.parametrize("host, total, file, whole, part", OTHERS.values(), ids=OTHERS)
def test_what_is_whole_beside_a_curve_written_once(tmp_path, host, total, file, whole, part):
    if host:
        run_json.write(tmp_path, record(host, total))
    (tmp_path / file).write_text(whole)
    assert incomplete_because(tmp_path) == ""
    (tmp_path / file).write_text(part)
    assert f"{file} has " in incomplete_because(tmp_path)


WHOLE, PPO_RECORD = table(RETURNS, *PPO), record("ppo", 3000, *FREQUENCY)
DAMAGES = {
    "a block of NULs, as after a power cut": ("train.csv", WHOLE[:-40] + "\0" * 40, "ends in the middle of a line"),
    "NULs in a row": ("train.csv", WHOLE.replace("500,-3.5", "\0" * 8, 1), "has no row of step 500"),
    "cut in a line": ("train.csv", WHOLE[:-3], "ends in the middle of a line"),
    "cut behind its last row": ("train.csv", WHOLE + "3500,1", "ends in the middle of a line"),
    "empty": ("train.csv", "", "train.csv is empty"),
    "another file's": ("train.csv", table(TIMM, *EPOCHS), "does not begin with the column global_step"),
    "bytes that are no text": ("train.csv", b"\xff" + WHOLE.encode(), "cannot be read (UnicodeDecodeError"),
    "text": ("train.csv", WHOLE.replace("-3.5", "much", 1), "has 'much' for eval_avg_return in step 500"),
    "a longer run's": ("train.csv", WHOLE + "9000,1,0\n", "has step 9000, and 3000 were asked for"),
    "no run.json": ("run.json", None, "has no run.json that can be read"),
    "half of run.json": ("run.json", json.dumps(PPO_RECORD)[:40], "has no run.json that can be read"),
    "steps as text": ("run.json", '{"total_steps": "all", "finished": true}', "does not say how many steps"),
    "unfinished": ("run.json", json.dumps(PPO_RECORD | {"finished": False}), "does not say that it is finished"),
}


@pytest.mark.parametrize("file, content, reason", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_one_reason(tmp_path, file, content, reason):
    run_json.write(tmp_path, PPO_RECORD)
    (tmp_path / "train.csv").write_text(WHOLE)
    assert not incomplete_because(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert reason in incomplete_because(tmp_path)


@pytest.mark.parametrize("size", range(0, len(WHOLE), 7))
def test_a_table_that_is_cut_anywhere_is_not_whole(tmp_path, size):
    run_json.write(tmp_path, PPO_RECORD)
    (tmp_path / "train.csv").write_text(WHOLE[:size])
    assert incomplete_because(tmp_path)


def test_the_records_that_came_with_the_repository_are_whole():
    folders = [file.parent for file in (ROOT / "records").glob("*/*/run.json")]
    assert len(folders) > 60 and not [folder for folder in folders if incomplete_because(folder)]
