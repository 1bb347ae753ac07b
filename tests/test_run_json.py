# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""run.json: what a start records, what stays when a run goes on, and the state of the code."""

import json
import os
import re
import subprocess

import pytest
from grid_launch import ROOT

from recipes import run_json


@pytest.fixture
def git(tmp_path):
    """git(words...) in a repository that has one commit of apply.py's on the branch era."""

    def run(*words):
        person = {"NAME": "ERA overlays", "EMAIL": "era-overlays@users.noreply.github.com"}
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in person.items()}
        subprocess.run(["git", "-C", tmp_path, *words], env={**who, **os.environ}, check=True, capture_output=True)

    run("init", "-b", "era")
    (tmp_path / "train.py").write_text("steps = 1\n")
    run("add", "train.py")
    run("commit", "-m", "overlay")
    return run


def test_a_run_from_its_start_to_its_end(tmp_path, monkeypatch):
    about = run_json.for_script(agent="ppo_era", added=["--lr", "1"], as_paper=False, commit="0123", modified=False)
    monkeypatch.setenv(*about.popitem())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    record = run_json.begin("ppo", "Ant-v4", 7, 300, ("torch", "no-such-package"), agent="by the script", setting="x")
    run_json.start(tmp_path, record)
    assert run_json.read(tmp_path) == record and record["finished"] is False and record["ended"] is None
    expected = {"host": "ppo", "task": "Ant-v4", "seed": 7, "total_steps": 300, "agent": "ppo_era", "setting": "x"}
    expected |= {"added": ["--lr", "1"], "as_paper": False, "commit": "0123", "modified": False}
    assert expected.items() <= record.items() and record["threads"]["OMP_NUM_THREADS"] == "3"
    assert record["versions"].keys() == {"python", "torch"}
    assert record["hardware"]["capability"] and record["hardware"]["cores"] >= 1 and record["hardware"]["cpu"]
    run_json.finish(tmp_path, record, 12.34)
    done = run_json.read(tmp_path)
    assert done["finished"] is True and done["ended"] >= done["started"] and done["cpu_seconds"] == 12.3


def test_what_a_run_once_was_stays(tmp_path):
    """A clean start that goes on from what a modified one has made does not make it clean."""
    first = run_json.begin("ppo", "Ant-v4", 7, 300, (), modified=True, as_paper=False, started="2026-01-01")
    run_json.start(tmp_path, first)
    again = run_json.begin("ppo", "Ant-v4", 7, 300, (), modified=False, as_paper=True)
    run_json.start(tmp_path, again)
    assert run_json.read(tmp_path) == again
    assert (again["started"], again["modified"], again["as_paper"]) == ("2026-01-01", True, False)
    run_json.finish(tmp_path, again)
    fresh = run_json.begin("ppo", "Ant-v4", 7, 300, (), modified=False, as_paper=True)
    run_json.start(tmp_path, fresh)
    assert fresh["modified"] is False and fresh["as_paper"] is True and fresh["started"] > "2026-01-01"


def test_a_record_that_cannot_be_read(tmp_path):
    for text in ('{"finished": tr', "[1]", ""):
        (tmp_path / "run.json").write_text(text)
        assert run_json.read(tmp_path) == {}
    assert run_json.read(tmp_path / "none") == {}


def test_words_that_change_what_is_trained():
    harmless = ("--workers", "-j", "trainer.save_freq")
    for added in ("", "-j 4", "--workers=4", "trainer.save_freq=5 +trainer.save_freq=5", "-j 4 -j=1"):
        assert run_json.is_as_paper(added.split(), harmless), added
    for added in ("--lr 1", "-j 4 --lr=1", "4", "data.seed=1", "-j --lr 1"):
        assert not run_json.is_as_paper(added.split(), harmless), added


def test_the_code_of_a_checkout(git, tmp_path):
    clean = run_json.code(tmp_path)
    assert len(clean["commit"]) == 40 and clean["modified"] is False
    (tmp_path / "output").mkdir()
    assert run_json.code(tmp_path) == clean and run_json.code(tmp_path, tmp_path / "none") == clean
    (tmp_path / "train.py").write_text("steps = 2\n")
    assert run_json.code(tmp_path) == {**clean, "modified": True}
    git("-c", "user.email=a@b.c", "commit", "-am", "on top", "--author", "A <a@b.c>")
    assert run_json.code(tmp_path)["modified"] is True  # committed, but not by apply.py
    assert run_json.code(tmp_path / "output") == {"commit": None, "modified": None}  # inside another repository


def test_a_checkout_of_apply_py_is_clean(patched_timm):
    assert run_json.code(patched_timm)["modified"] is False


# Whether a run is whole


def table(header, *rows):
    return "".join(",".join(map(str, row)) + "\n" for row in (header.split(","), *rows))


def verl_lines(*steps):
    return "".join(json.dumps({"step": step, "data": {"entropy": 0.5, "grad": None}}) + "\n" for step in steps)


def summary(**changes):
    one = {"problems": 18, "samples_per_problem": 16, "samples": 288, "complete": True, "accuracy": 0.5}
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
    head = "" if file == "metrics.jsonl" else f"{run_json.CURVES[file]},eval_avg_return\n"
    row = verl_lines if file == "metrics.jsonl" else "{},1.5\n".format
    run_json.write(tmp_path, known)
    (tmp_path / file).write_text(head + "".join(map(row, steps)))
    assert run_json.why_not_whole(tmp_path) == ""
    for lost in (step for step in steps if step <= known["total_steps"]):
        (tmp_path / file).write_text(head + "".join(row(step) for step in steps if step != lost))
        assert re.match(
            f"{file} has (no row of step|[0-9]+ of {known['total_steps']} steps)", run_json.why_not_whole(tmp_path)
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
    "timm, diverged": ("timm", 1, "summary.csv", table(TIMM, (0, "nan", 1.0)), table(TIMM, (0, "nan", 101.0))),
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
    "an evaluation that was cut": (None, None, "summary.json", summary(), summary(complete=False)),
    "an impossible accuracy": (None, None, "summary.json", summary(), summary(accuracy=7.0)),
    "an accuracy as text": (None, None, "summary.json", summary(standard_error=None), summary(accuracy="0.5")),
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
    assert run_json.why_not_whole(tmp_path) == said


@pytest.mark.parametrize("host, total, file, whole, part", OTHERS.values(), ids=OTHERS)
def test_what_is_whole_beside_a_curve_written_once(tmp_path, host, total, file, whole, part):
    if host:
        run_json.write(tmp_path, record(host, total))
    (tmp_path / file).write_text(whole)
    assert run_json.why_not_whole(tmp_path) == ""
    (tmp_path / file).write_text(part)
    assert run_json.why_not_whole(tmp_path).startswith(f"{file} has ")


WHOLE, PPO_RECORD = table(RETURNS, *PPO), record("ppo", 3000, *FREQUENCY)
DAMAGES = {
    "a block of NULs": ("train.csv", WHOLE[:40] + "\0" * 200 + "\n", "has NUL bytes"),
    "cut in a line": ("train.csv", WHOLE[:-3], "ends in the middle of a line"),
    "empty": ("train.csv", "", "does not begin with the column global_step"),
    "a byte order mark": ("train.csv", "\ufeff" + WHOLE, "has \\ufeff, a character that no run writes"),
    "bytes that are no text": ("train.csv", b"\xff" + WHOLE.encode(), "is not text"),
    "text": ("train.csv", WHOLE.replace("-3.5", "much", 1), "has much for eval_avg_return in step 500"),
    "a step of 20 digits": ("train.csv", WHOLE + "9" * 20 + ",1,0\n", f"has step {'9' * 20}, and 3000"),
    "1e308": ("train.csv", WHOLE.replace("-3.5", "1e308"), "has 1e+308"),
    "a share above 1": ("train.csv", WHOLE.replace("0.25", "7"), "has 7 for clipped, which is from 0 to 1"),
    "no run.json": ("run.json", None, "has no run.json"),
    "deep JSON": ("run.json", "[" * 100_000, "is not JSON (RecursionError"),
    "a list": ("run.json", "[]", "is not a JSON object"),
    "steps as text": ("run.json", '{"total_steps": "all", "finished": true}', "does not say how many steps"),
    "no host": ("run.json", json.dumps(PPO_RECORD | {"host": None}), "does not say what was trained: host is None"),
    "no command": (
        "run.json",
        json.dumps(PPO_RECORD | {"command": 5}),
        "with which settings it was trained: command is 5",
    ),
    "a frequency below 0": ("run.json", json.dumps(PPO_RECORD | {"evaluate_freq": -500}), "has -500 for evaluate_freq"),
    "a frequency of 0": (
        "run.json",
        json.dumps(record("ppo", 3000, "--evaluate_freq=0")),
        "run.json has 0 for evaluate_freq",
    ),
    "unfinished": ("run.json", json.dumps(PPO_RECORD | {"finished": False}), "does not say that it is finished"),
    "a number of 5,000 digits": ("run.json", '{"total_steps": ' + "9" * 5000 + "}", "cannot be read (ValueError"),
}


@pytest.mark.parametrize("file, content, reason", DAMAGES.values(), ids=DAMAGES)
def test_whatever_is_in_a_folder_is_one_reason(tmp_path, file, content, reason):
    run_json.write(tmp_path, PPO_RECORD)
    (tmp_path / "train.csv").write_text(WHOLE)
    assert not run_json.why_not_whole(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert reason in run_json.why_not_whole(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda file: os.symlink("/dev/zero", file)])
def test_what_is_not_a_file_is_not_opened(tmp_path, make):
    for name in ("train.csv", "run.json"):
        make(tmp_path / name)
    assert run_json.why_not_whole(tmp_path) == "run.json is not a file" and run_json.read(tmp_path) == {}
    assert run_json.why_not_whole(tmp_path / "train.csv").startswith("has no metrics")


def test_the_records_that_came_with_the_repository_are_whole():
    folders = [file.parent for file in (ROOT / "records").glob("*/*/run.json")]
    assert len(folders) > 60 and not [folder for folder in folders if run_json.why_not_whole(folder)]
