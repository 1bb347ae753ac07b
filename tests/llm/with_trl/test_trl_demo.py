# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make demo-trl`: its tasks and arms, and on TRL's real trainer two steps of a tiny model, stopped and resumed."""

import contextlib
import dataclasses
import io
import json
import random
import shutil
import signal

import pandas
import pytest
import tiny_grpo
import torch
from transformers import AutoModelForCausalLM

from demo.runner.training import run_json
from demo.trl import __main__ as cli
from demo.trl import training
from demo.trl.settings import ARMS, BOUNDS, STEPS_FILE, VALIDATION_FILE, Settings, grpo, warm_up
from demo.trl.tasks import TASKS, right_answers


@pytest.mark.parametrize(
    "task, question, right, wrong",
    [
        (
            "pairs",
            (42,),
            ["40 + 2", "0 + 42", "2 + 40"],
            ["40 + 3", "40 + 2.", " 40 + 2", "40+2", "40 + 2 + 0", "040 + 2"],
        ),
        ("pairs50", (42,), ["37 + 5", "5 + 37"], ["38 + 4", "5 + 36", "05 + 37", ""]),
        ("sums", (17, 25), ["42"], ["43", "42.", "042", "17 + 25 = 42", ""]),
    ],
)
def test_what_is_right(task, question, right, wrong):
    kind = TASKS[task]
    prompt = kind.prompt(question)
    assert kind.question_of(prompt) == question
    assert [kind.is_right(question, answer) for answer in right + wrong] == [True] * len(right) + [False] * len(wrong)
    assert right_answers(kind, [prompt] * 3, [right[0], wrong[0], right[-1]]) == {prompt: [right[0], None, right[-1]]}


@pytest.mark.parametrize("kind", TASKS.values(), ids=TASKS)
def test_demonstrations_are_right(kind):
    rng = random.Random(1)
    assert all(kind.is_right(question, kind.demonstration(question, rng)) for question in kind.questions)
    assert set(kind.validation) <= set(kind.questions) and len(set(kind.validation)) == 16


def test_arms_differ_in_what_their_names_say():
    fields = {arm: set(grpo(Settings(), arm, 0.5).items()) for arm in ARMS}
    common = set.intersection(*fields.values())
    assert {arm: dict(own - common) for arm, own in fields.items()} == {
        "grpo": {"era_k": 1.0},
        "era": {"era_k": 2.0, "era_low": 0.5},
        "adaptive": {"era_k": 1.0, "use_adaptive_entropy": True, "entropy_target": 0.5},
    }


def test_log_metrics_are_of_the_answers_to_a_prompt():
    task, logged = TASKS["pairs"], {}
    prompts = [task.prompt((5,))] * 8 + [task.prompt((6,))] * 8
    answers = ["1 + 4", "2 + 3", "1 + 4", *["9 + 9"] * 5] + [""] * 8
    found = training.rewards(task)(prompts, answers, log_metric=logged.__setitem__)
    assert found == [1.0] * 3 + [0.0] * 13 and logged == {"distinct_right": 1.0, "pass_at_8": 0.5}


def test_the_warm_up_learns_the_demonstrations(tmp_path, monkeypatch):
    tiny_grpo.write(tmp_path, torch.float32, sharpness=1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), tiny_grpo.tokenizer()
    monkeypatch.setattr(training, "pretrained", lambda: (model, tokenizer))
    fast = warm_up(Settings("sums")) | {"learning_rate": 1e-2, "max_steps": 25}
    monkeypatch.setattr(training.defaults, "warm_up", lambda settings: fast)
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()):
        training.warm_up(Settings("sums"))
    losses = pandas.read_csv(tmp_path / STEPS_FILE)["loss"]
    assert len(losses) == 25 and losses.iloc[-1] < 0.9 * losses.iloc[0]
    prompt = tokenizer(TASKS["sums"].prompt((3, 4)), return_tensors="pt")
    answer = AutoModelForCausalLM.from_pretrained(tmp_path).generate(**prompt, max_new_tokens=3, do_sample=False)
    assert tokenizer.decode(answer[0, prompt["input_ids"].size(1) :]).startswith("1")


@pytest.fixture
def start(tmp_path):
    """A tiny random model with a character tokenizer, as the warm-up would leave it."""
    folder = tmp_path / "start"
    tiny_grpo.write(folder, torch.float32, sharpness=1)
    tiny_grpo.tokenizer().save_pretrained(folder)
    return folder


def run(folder, start, arm, steps=2):
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        training.main(arm, "1.9", "pairs", "1", str(steps), str(start))
    return pandas.read_csv(folder / STEPS_FILE)


def stop_at_step_2(rows, args, state, control, **_):
    if state.global_step == 1:  # how many steps are done
        signal.raise_signal(signal.SIGINT)


def test_a_run_that_was_stopped_goes_on_to_the_same_end(start, tmp_path, monkeypatch):
    monkeypatch.setattr("demo.trl.settings.SAVE_STEPS", 1)
    with_a_2 = dataclasses.replace(TASKS["pairs"], is_right=lambda question, answer: "2" in answer)
    monkeypatch.setitem(TASKS, "pairs", with_a_2)  # a random model gets that right now and then
    whole = run(tmp_path / "whole", start, "era")
    assert whole["step"].tolist() == [1, 2] and (whole["response_entropy"] > 1).all()
    assert whole["reward"].between(0, 1, inclusive="neither").all() and (whole["scaled_token_fraction"] > 0).all()
    assert not list((tmp_path / "whole").glob("checkpoint-*"))

    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.Rows, "on_step_begin", stop_at_step_2)
        run(stopped, start, "era")
    assert (stopped / "checkpoint-1").exists() and not (stopped / VALIDATION_FILE).exists()
    shutil.copytree(stopped / "checkpoint-1", stopped / "checkpoint-2")
    (stopped / "checkpoint-2/trainer_state.json").unlink()  # one that was being written
    resumed = run(stopped, start, "era")
    same = whole.columns.drop("step_seconds")
    assert resumed[same].equals(whole[same])
    ends = [json.loads((tmp_path / name / VALIDATION_FILE).read_text()) for name in ("whole", "stopped")]
    assert ends[0] == ends[1] and {"reward", "pass_at_8", "distinct_right", "token_entropy"} == ends[0].keys()


def test_the_demo_from_the_warm_up_to_its_reuse(start, tmp_path, capsys):
    settings, out = Settings(steps=1), tmp_path / "out"
    shutil.copytree(start, folder := out / f"warm-up-{settings.task_name}-seed{settings.seed}")
    run_json.finish(folder, run_json.begin("trl", "pairs", 1, 1, ()))
    (folder / "steps.csv").write_text("step,loss\n1,2.5\n")
    cli.demo(arguments := cli.parse(["--out", str(out), "--steps", "1"]))
    printed = capsys.readouterr().out
    assert f"ERA's bound is {BOUNDS['pairs']['era']:.2f}" in printed
    assert (out / settings.name / "entropy.png").read_bytes().startswith(b"\x89PNG")
    cli.demo(arguments)
    again = capsys.readouterr().out
    assert again.count(": reused, trained on ") == 4 and again.split("\n\n")[1:] == printed.split("\n\n")[1:]
