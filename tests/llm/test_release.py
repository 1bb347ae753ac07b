# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The authors' own evaluation: what we ask and grade with it is what their code, called by hand, says."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("math_verify")
from evaluations import release_of, untrained_model  # noqa: E402

from recipes.llm import evaluate, grade, grading  # noqa: E402
from recipes.llm import release as authors  # noqa: E402

SIX = evaluate.PAPER_AVERAGE
# The release's functions, as its math_eval.py and evaluate.py call them, without its loop.
BY_HAND = """
import ast, json, sys
import numpy
from types import SimpleNamespace
from data_loader import load_data
from grader import math_equal
from parser import STRIP_EXCEPTIONS, extract_answer, parse_ground_truth, parse_question, strip_string
from transformers import AutoTokenizer
from utils import construct_prompt

what, tokenizer, names, *texts = sys.argv[1:]
if what == "prompts":
    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    calls = [node for node in ast.walk(ast.parse(open("math_eval.py").read())) if isinstance(node, ast.Call)]
    (asked,) = [call for call in calls if getattr(call.func, "attr", "") == "apply_chat_template"]
    system = ast.literal_eval(asked.args[0].elts[0])
    args = SimpleNamespace(adapt_few_shot=False, prompt_type="shepherd", num_shots=0)
    found = {}
    for name in names.split(","):
        found[name] = []
        for example in load_data(name, "test", "./data"):
            example["question"] = parse_question(example, name)
            _, example["gt_ans"] = parse_ground_truth(example, name)
            user = {"role": "user", "content": construct_prompt(example, name, args).strip()}
            form = {"tokenize": False, "add_generation_prompt": True}
            found[name].append(tokenizer.apply_chat_template([system, user], **form))
else:
    found, texts = [], json.load(open(texts[0]))
    for example, of_problem in zip(load_data(names, "test", "./data"), texts):
        _, truth = parse_ground_truth(example, names)
        found.append([])
        for text in of_problem:
            skip = names in STRIP_EXCEPTIONS
            answer = strip_string(extract_answer(text.strip(), names), skip_unit=skip)
            if not {*truth} - {*"ABCDE"}:  # math_eval.py; of the six sets, where a ground truth is stripped to nothing
                answer = "".join(letter for letter in answer if letter in "ABCDE")
            found[-1].append(bool(math_equal(answer, truth if skip else strip_string(truth))))
    columns = numpy.array(found).mean(axis=0)
    found = [found, float(numpy.mean(numpy.round(columns * 100, decimals=1)))]
print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def release(patched_release) -> authors.Release:
    return release_of(patched_release)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return untrained_model(tmp_path_factory.mktemp("release") / "model")


@pytest.fixture(scope="module")
def by_hand(release, upstream_release):
    """by_hand(*words): what their functions say, from the files of the commit without our patch."""
    folder = upstream_release / "ERA-LLM/eval"

    def call(*words):
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'latex2sympy'}", "HF_HUB_OFFLINE": "1"}
        command = [os.path.abspath(release.python), "-c", BY_HAND, *map(str, words)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(re.search("^FOUND (.*)$", done.stdout, re.MULTILINE)[1])

    return call


def options(name, **other):
    return {**authors.sampling_of(name), "max_tokens": authors.MAX_TOKENS, "limit": None, **other}


# What is asked


@pytest.mark.slow
def test_the_prompts_of_all_six_sets_are_theirs_to_the_character(release, by_hand, model):
    theirs = by_hand("prompts", model, ",".join(authors.NAMES.get(name, name) for name in SIX))
    count = 0
    for name in SIX:
        request = release.answer(name, model, options(name)).request
        samples = authors.sampling_of(name)["samples"]
        prompts = theirs[authors.NAMES.get(name, name)]
        assert request["prompts"] == [prompt for prompt in prompts for _ in range(samples)], name
        count += len(prompts)
    assert count == 1547


def test_the_options_are_those_of_their_script(patched_release, tmp_path):
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    command = ["bash", "sh/eval.sh", "shepherd", "MODEL", "OUT"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=patched_release / "ERA-LLM/eval", env=environment, capture_output=True, text=True
    )
    found = {}
    for line in done.stdout.splitlines():
        given = dict(re.findall(r"--(\w+) ([^-]\S*|-1)", line))
        for name in given["data_name"].split(","):
            found[name] = [float(given[key]) for key in ("n_sampling", "temperature", "top_p", "max_tokens_per_call")]
        assert given["seed"] == "0" and "--apply_chat_template" in line and "--use_vllm" in line
    ours = {authors.NAMES.get(name, name): [*authors.sampling_of(name).values(), authors.MAX_TOKENS] for name in SIX}
    assert found == ours
    assert "shepherd" in (patched_release / "ERA-LLM/scripts/test.sh").read_text()


# What it is worth


def forms(truth: str, i: int) -> str:
    """An answer as models write it, in a form that depends on its place."""
    return [
        rf"so \boxed{{{truth}}}.",
        rf"$\boxed{{\displaystyle {truth}}}$",
        f"The final answer is ${truth}$. I hope it is correct.",
        rf"\fbox{{{truth}}}",
        rf"\boxed{{{truth}1}}",
        "I do not know, perhaps 7",
    ][i % 6]


@pytest.mark.parametrize("name, samples, problems", [("aime24", 16, 30), ("math500", 1, 98), ("minerva", 1, 30)])
def test_scores_are_those_of_their_functions_to_the_digit(release, by_hand, model, tmp_path, name, samples, problems):
    truths = [*release.ground_truths(name).values()][:problems]
    texts = [[forms(truth, i + 5 * j) for j in range(samples)] for i, truth in enumerate(truths)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    scores, accuracy = by_hand("scores", model, authors.NAMES.get(name, name), tmp_path / "texts.json")
    drawn = [
        {"index": i, "sample": j, "text": text, "finish_reason": "stop"}
        for i, of_problem in enumerate(texts)
        for j, text in enumerate(of_problem)
    ]
    protocol = {**options(name), "problems": len(truths)}
    graded, summary = evaluate.grade_as_released(release, name, drawn, protocol, model)
    assert [s["correct"] for s in graded] == [score for of_problem in scores for score in of_problem]
    assert summary["accuracy"] == accuracy / 100 and 0 < accuracy < 100


@pytest.mark.slow
def test_no_ground_truth_with_a_whole_number_raised_is_right_for_itself(release):
    """Of the 2,441 in the six sets all but eight are refused, where math-verify drops a base or a unit's power."""
    pairs = []
    for name in SIX:
        for truth in release.ground_truths(name).values():
            for number in re.finditer(r"(?<![\d.])\d+(?![\d.])", truth):
                pairs.append((truth[: number.start()] + str(int(number[0]) + 1) + truth[number.end() :], truth))
    grades = grading.grade_all([(rf"\boxed{{{raised}}}", truth, 0, False) for raised, truth in pairs])
    accepted = [pair for pair, found in zip(pairs, grades) if found.correct]
    assert len(pairs) > 2000
    assert all(re.search(r"_\{?\d+\}?$|\\mbox\{ \w+\}\^\d$", truth) for _, truth in accepted), accepted


# From the model to the table


@pytest.fixture(scope="module")
def evaluated(release, model, tmp_path_factory):
    """The folder of an evaluation of two sets, and the function that makes such a call."""

    out = tmp_path_factory.mktemp("evaluated") / "out"

    def run(*more):
        words = ["--model", model, "--out", out, "--engine", "transformers", "--limit", 2, "--max-tokens", 8]
        words += ["--release-checkout", release.checkout, "--release-python", release.python, *more]
        evaluate.run(evaluate.parse_arguments([str(word) for word in words]))
        return out

    return run("--sets", "aime24", "math500"), run


def test_texts_are_drawn_once_and_graded_by_both(evaluated, release, capsys):
    out, run = evaluated
    file = out / "aime24.samples.jsonl"
    summary = json.loads((out / "summary.json").read_text())
    protocol = summary["benchmarks"]["aime24"]["protocol"]
    assert protocol["stop_token_ids"] == [151645, 151643], "the model's kind is in its tokenizer's path"
    assert (protocol["top_p"], protocol["samples"], protocol["problems"]) == (0.95, 16, 2)
    samples = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    assert len(samples) == 32 and samples[0]["ground_truth"] == "204"
    # As if the model had known some.
    for sample in samples:
        sample["text"] = rf"\boxed{{\displaystyle {sample['ground_truth']}}}" if sample["sample"] % 2 else r"\boxed{7}"
    file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    capsys.readouterr()
    grade.main([str(out), "--release-checkout", str(release.checkout), "--release-python", release.python])
    found = {each: json.loads((out / f"by-{each}/summary.json").read_text())["benchmarks"] for each in grade.GRADERS}
    assert found["strict"]["aime24"]["accuracy"] == 0.5
    printed = capsys.readouterr().out
    right = found["release"]["aime24"]["accuracy"]
    assert re.search(rf"aime24 +{100 * right:.1f} +50.0 +{round(32 * abs(0.5 - right))} of 32", printed)
    assert found["strict"]["aime24"]["as_paper"] is False and found["strict"].keys() == {"aime24", "math500"}
    before = file.stat().st_mtime_ns
    run("--sets", "aime24")
    assert file.stat().st_mtime_ns == before, "the same command again draws nothing"


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda out: (out / "summary.json").unlink(), "is not a whole evaluation: there is no .*summary.json"),
        (lambda out: replace(out / "summary.json", r'"model": "[^"]*"', '"model": ""'), "it names no model"),
        (lambda out: replace(out / "aime24.samples.jsonl", r"\A(?:.*\n){5}", ""), "has 27 samples of 2 problems"),
        (lambda out: replace(out / "summary.json", r'"samples": 16', '"samples": 8'), "32 of 16 samples of aime24"),
        (lambda out: replace(out / "aime24.samples.jsonl", '"text": "[^"]*"', '"text": 7'), "line 1 .*is not a sample"),
    ],
)
def test_texts_that_are_no_whole_evaluation(evaluated, tmp_path, damage, said):
    out = shutil.copytree(evaluated[0], tmp_path / "out")
    damage(out)
    with pytest.raises(SystemExit, match=said):
        grade.main([str(out), "--grader", "strict"])


def replace(file: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, file.read_text(), count=1)
    assert count
    file.write_text(text)


def test_an_edited_release_and_a_missing_grader_are_refused(release, model, tmp_path):
    (tmp_path / "bare").write_text('#!/bin/sh\nexec python3 -S -E "$@"\n')
    (tmp_path / "bare").chmod(0o755)
    for python, said in {"none": "No such file", "bare": "No module named"}.items():
        with pytest.raises(SystemExit, match=f"without scores of aime24: .*{said}.*era-release/installed"):
            release._replace(python=str(tmp_path / python)).answer("aime24", model, options("aime24"))
    copy = shutil.copytree(release.checkout, tmp_path / "era-release", symlinks=True)
    file = copy / "ERA-LLM/eval/data/aime24/test.jsonl"
    file.write_text(file.read_text().replace("204", "205"))
    with pytest.raises(SystemExit, match="is modified, so its scores would not be the release's"):
        release._replace(checkout=copy).refuse_another_checkout()


@pytest.mark.slow
def test_a_hanging_formula_and_a_long_answer_end(release, model):
    """They are wrong answers, and the others are graded all the same, by both graders."""
    texts = [r"\boxed{9!!!!!}", r"\boxed{" + "1+" * 5_000_000 + "1}", r"\boxed{input()}", "", r"\boxed{0.006}"]
    drawn = [
        {"index": i, "sample": 0, "text": text, "finish_reason": "stop", "ground_truth": truth, "choices": 0}
        for (i, truth), text in zip(release.ground_truths("minerva").items(), texts)
    ]
    graded, scores = evaluate.grade_as_released(release, "minerva", drawn, {**options("minerva"), "problems": 5}, model)
    assert [sample["correct"] for sample in graded] == [False, False, False, False, True]
    assert scores["accuracy"] == 0.2 and scores["grader_timeouts"] >= 1
    graded = evaluate.grade_strictly(drawn)
    assert [sample["correct"] for sample in graded] == [False, False, False, False, True]


def test_a_set_that_the_release_lacks_is_named(model, tmp_path, capsys):
    words = ["--model", model, "--out", tmp_path / "out", "--engine", "transformers", "--sets", "mmlu_pro"]
    with pytest.raises(SystemExit):
        evaluate.parse_arguments([str(word) for word in words])
    assert "has no mmlu_pro: of the release, the files of aime24, " in capsys.readouterr().err
