# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""recipes.llm.evaluate with a real tiny model on the CPU: what is sampled, graded and summarized, and going on."""

import json
import math
import re
import shutil
import sys
from fractions import Fraction
from itertools import combinations
from statistics import fmean
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("math_verify")
import hypothesis  # noqa: E402
from evaluations import (  # noqa: E402
    CHARACTERS,
    TOKENS,
    command,
    evaluated,
    learned_model,
    lines,
    prompt,
    write_rows,
    write_sets,
)
from hypothesis import strategies as st  # noqa: E402

from demo.llm import models  # noqa: E402
from recipes.llm import data as recipe  # noqa: E402
from recipes.llm import engines, evaluate, grading  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return learned_model(tmp_path_factory.mktemp("evaluate") / "model")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("evaluate-data") / "eval")


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    return evaluated(model, data, tmp_path_factory.mktemp("finished") / "out")


@pytest.fixture
def run(model, data, tmp_path):
    """run(*more): the command in this process."""

    def run(*more, model=model, data=(data,), out=tmp_path / "out"):
        evaluate.run(evaluate.parse_arguments(command(model, data, out, *more)))
        return json.loads((out / "summary.json").read_text())

    return run


# What is sampled and counted


def test_the_strict_protocol():
    found = {name: (protocol["samples"], protocol["temperature"]) for name, protocol in evaluate.PROTOCOLS.items()}
    greedy = ("math500", "minerva", "olympiadbench", "arc_c", "gpqa_diamond", "mmlu_pro")
    assert found == dict.fromkeys(("aime24", "aime25", "amc23"), (16, 0.7)) | dict.fromkeys(greedy, (1, 0.0))
    assert evaluate.MAX_TOKENS == 8192


def test_a_run_counts_what_its_samples_say(finished):
    out, printed = finished
    summary = json.loads((out / "summary.json").read_text())["benchmarks"]
    samples = {name: lines(out, name) for name in ("aime24", "math500", "arc_c")}
    assert [len(samples[name]) for name in samples] == [5 * 16, 5, 3]
    wanted = {(10 * i, n) for i in range(1, 6) for n in range(16)}
    assert {(s["index"], s["sample"]) for s in samples["aime24"]} == wanted
    assert len({s["seed"] for group in samples.values() for s in group}) == 13, "one for each prompt"
    for sample in samples["aime24"] + samples["math500"]:
        boxed = re.fullmatch(r"\\boxed\{(\d)\}", sample["text"])
        truth = sample["index"] // 10 if sample["benchmark"] == "aime24" else sample["index"]
        if boxed:
            found = sample["correct"], sample["extracted"], sample["status"], sample["tokens"]
            assert found == (int(boxed[1]) == truth, boxed[1], "ok", 10)
    by_problem = [[s["correct"] for s in samples["aime24"] if s["index"] == 10 * i] for i in range(1, 6)]
    right = [sum(group) for group in by_problem]
    assert 0 < sum(right) < 80, "the tiny model is to be right sometimes"
    aime = summary["aime24"]
    assert aime["accuracy"] == pytest.approx(sum(right) / 80)
    for k in (1, 2, 4, 8, 16):
        shares = (fmean(any(group[i] for i in some) for some in combinations(range(16), k)) for group in by_problem)
        assert aime["pass_at"][str(k)] == pytest.approx(fmean(shares))
    assert [summary[name]["as_paper"] for name in summary] == [False, False, False]  # a part of the problems
    assert summary["math500"]["pass_at"] == {} and summary["math500"]["samples"] == 5
    unread = ("unparsable", "no answer", "truncated")
    assert all(s["status"] in unread and not s["correct"] for s in samples["arc_c"])  # digits are not an option
    assert sum(map(len, summary["arc_c"]["not_ok"].values())) == 3
    assert f"{100 * aime['accuracy']:.1f} avg@16" in printed and "aime24: pass@1 " in printed and "arc_c" in printed


def test_greedy_is_transformers_own(finished, model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, plain = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    for sample in lines(finished[0], "math500"):
        ids = tokenizer(prompt(sample["index"]), return_tensors="pt")["input_ids"]
        tokens = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        assert sample["text"] == tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)


def test_samples_depend_on_their_problem_and_the_seed_alone(run, finished, data, tmp_path):
    whole, only = lines(finished[0], "aime24"), {"data": [data / "aime24.parquet"]}
    run("--limit", 2, **only)
    assert lines(tmp_path / "out", "aime24") == [sample for sample in whole if sample["index"] <= 20]
    run("--limit", 1, "--seed", 1, out=tmp_path / "seed", **only)
    assert not {s["seed"] for s in lines(tmp_path / "seed", "aime24")} & {s["seed"] for s in whole}


def test_the_models_own_sampling_defaults_are_not_used(run, finished, model, data, tmp_path):
    other = shutil.copytree(model, tmp_path / "model")
    ends = [1, CHARACTERS.index("}") + len(models.SPECIAL)]
    defaults = {"repetition_penalty": 5.0, "temperature": 0.1, "top_k": 1, "eos_token_id": ends}
    (other / "generation_config.json").write_text(json.dumps(defaults))
    run(model=other, data=[data / "aime24.parquet"])
    plain, changed = lines(finished[0], "aime24"), lines(tmp_path / "out", "aime24")
    boxed = [(p, c) for p, c in zip(plain, changed) if re.fullmatch(r"\\boxed\{\d\}", p["text"])]
    assert len(boxed) > 40 and all(c["text"] == p["text"] for p, c in boxed)
    assert all(c["tokens"] == p["tokens"] - 1 for p, c in boxed), "the second end-of-sequence token ends it"


def test_without_a_chat_template_the_text_is_taken_as_it_is(model, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [{"prompt": [{"role": "system", "content": "add"}, {"role": "user", "content": "1+1"}]}]
    assert evaluate.token_ids(model, rows) == [tokenizer.encode("add1+1")]  # the template of this model
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    assert evaluate.token_ids(tmp_path, rows) == [tokenizer.encode("add\n\n1+1")]


@pytest.mark.parametrize("dictionary", [False, True])  # what transformers 4 and 5 give by themselves
def test_a_chat_template_gives_ids(model, monkeypatch, dictionary):
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    original = PreTrainedTokenizerBase.apply_chat_template

    def apply_chat_template(self, *args, **kwargs):
        return original(self, *args, **{"return_dict": dictionary, **kwargs})

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", apply_chat_template)
    rows = [{"prompt": [{"role": "user", "content": content}]} for content in ("1+1", "2")]
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert evaluate.token_ids(model, rows) == [tokenizer.encode("1+1"), tokenizer.encode("2")]


def test_settings_of_the_paper():
    """More samples of the same kind are the paper's too: pass@k needs them."""
    paper = {"samples": 16, "temperature": 0.7, "top_p": 0.95, "max_tokens": 3000, "problems": 30}
    paper |= {"protocol": "release"}
    assert evaluate.is_as_paper("aime24", paper) and evaluate.is_as_paper("aime24", {**paper, "samples": 256})
    for other in ({"samples": 8}, {"temperature": 1.0}, {"top_p": 1.0}, {"protocol": "strict"}, {"problems": 5}):
        assert evaluate.is_as_paper("aime24", {**paper, **other}) is False
    assert evaluate.is_as_paper("my-set", paper) is None
    strict = {"samples": 1, "temperature": 0.0, "top_p": 1.0, "max_tokens": 8192, "problems": 12032}
    strict |= {"protocol": "strict"}
    assert evaluate.is_as_paper("mmlu_pro", strict), "the release's file of it is not fetched"


# vLLM, which tests/rehearsal/vllm runs


def test_a_missing_vllm_is_refused(model, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(SystemExit):
        evaluate.parse_arguments(command(model, [data], tmp_path / "out", "--engine", "vllm"))
    assert "lacks vllm. --engine transformers needs no vllm." in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.8.5.post1", "0.27.1", "0.31.0"])
def test_an_untried_vllm_is_noted_and_the_models_dtype_is_kept(model, data, tmp_path, monkeypatch, capsys, version):
    given = {}
    module = SimpleNamespace(LLM=lambda **settings: given.update(settings), SamplingParams=None, __version__=version)
    module.__spec__ = object()
    monkeypatch.setitem(sys.modules, "vllm", module)
    words = command(model, [data], tmp_path / "out", "--engine", "vllm")
    for more, dtype in (((), "float32"), (("--dtype", "bfloat16"), "bfloat16")):
        engines.vllm_engine(evaluate.parse_arguments([*words, *more]), 64)
        assert given["dtype"] == dtype
    note = "note: this was written for vllm 0.8.5 and tried with 0.27.1, not with 0.31.0.\n"
    assert capsys.readouterr().err == (2 * note if version == "0.31.0" else "")


def test_what_vllm_is_asked(model, data, tmp_path, monkeypatch):
    """By release each sample is a request without a seed; by strict a prompt is one, with its seed."""

    class LLM:
        def __init__(self, **settings):
            pass

        def generate(self, prompts, parameters):
            each = parameters if isinstance(parameters, list) else [parameters] * len(prompts)
            asked.extend((prompt["prompt_token_ids"], given) for prompt, given in zip(prompts, each))
            texts = [[f"{prompt['prompt_token_ids']}"] * given["n"] for prompt, given in zip(prompts, each)]
            drawn = dict(finish_reason="stop", token_ids=[1, 2])
            return [SimpleNamespace(outputs=[SimpleNamespace(text=text, **drawn) for text in some]) for some in texts]

    module = SimpleNamespace(LLM=LLM, SamplingParams=dict, __version__="0.27.1", __spec__=object())
    monkeypatch.setitem(sys.modules, "vllm", module)
    engine = engines.vllm_engine(evaluate.parse_arguments(command(model, [data], tmp_path, "--engine", "vllm")), 64)
    drawing = {"temperature": 0.7, "top_p": 1.0, "max_tokens": 5}
    for name, more, requests in (
        ("strict", {}, [([1], {"n": 2, "seed": 7}), ([2], {"n": 2, "seed": 8})]),
        ("release", {"stop": ["</s>"], "stop_token_ids": [3]}, [([1], {"n": 1})] * 2 + [([2], {"n": 1})] * 2),
    ):
        asked = []
        protocol = {"protocol": name, "samples": 2, **drawing, **more}
        found = list(engine([[1], [2]], [7, 8], protocol))
        assert asked == [(ids, {**drawing, **more, **given}) for ids, given in requests]
        assert found == [[engines.Completion(text, "stop", 2)] * 2 for text in ("[1]", "[2]")]


# pass@k and the summary


@hypothesis.settings(deadline=None)
@hypothesis.given(st.integers(1, 12) | st.integers(13, 3000), st.data())
def test_pass_at_k_is_exact_for_any_n(n, more):
    c, k = more.draw(st.integers(0, n)), more.draw(st.integers(1, n))
    wrong = Fraction(1)
    for i in range(k):  # k draws without replacement, all wrong
        wrong *= Fraction(max(n - c - i, 0), n - i)
    assert evaluate.pass_at_k(n, c, k) == float(1 - wrong)
    if n <= 12:
        subsets = list(combinations([True] * c + [False] * (n - c), k))
        assert evaluate.pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))


def sample_of(index, sample, correct, status="ok", text="x", finish_reason="stop", tokens=10):
    return locals()


def test_summary_by_hand():
    samples = [
        sample_of(0, 0, True),
        sample_of(0, 1, True),
        sample_of(1, 0, True, tokens=30),
        sample_of(1, 1, False, "no answer", " \n"),
        sample_of(2, 0, False, "truncated", finish_reason="length"),
        sample_of(2, 1, False, "grader time-out"),
    ]
    summary = evaluate.summarize(samples, [1, 2])
    assert summary["accuracy"] == pytest.approx(0.5)
    assert summary["pass_at"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}
    assert summary["standard_error"] == pytest.approx(0.5 / math.sqrt(3)) and summary["interval_95"] == [0.0, 1.0]
    assert (summary["samples"], summary["cut_at_max_tokens"], summary["empty"]) == (6, 1, 1)
    assert summary["mean_tokens"] == pytest.approx(80 / 6)
    assert summary["not_ok"] == {"grader time-out": [[2, 1]], "no answer": [[1, 1]], "truncated": [[2, 0]]}


def test_the_papers_average_needs_all_six_sets(tmp_path):
    summary = {"benchmarks": {}}
    for i, name in enumerate(reversed(evaluate.PAPER_AVERAGE)):
        samples = [sample_of(0, 0, True), sample_of(1, 0, i < 3)]
        evaluate.write_summary(tmp_path, summary, name, evaluate.summarize(samples, []))
        assert summary["paper_average"] == (pytest.approx(0.75) if i == 5 else None)
    assert list(summary["benchmarks"]) == [*evaluate.PAPER_AVERAGE] and "six sets: 75.0" in evaluate.table(summary)


# Grading

RIGHT = [
    (r"so \boxed{5}.", "5"),
    (r"\boxed{\frac12}", "0.5"),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    (r"\boxed{\dfrac{\sqrt{3}}{3}}", r"\frac{1}{\sqrt 3}"),
    (r"first \boxed{3}, no: $\boxed{\left(\frac{1}{2}, {\{3\}}\right)}$", r"(0.5, \{3\})"),
    (r"\boxed{(1,2]}", r"( 1 , 2 ]"),
    (r"\boxed{\{2, 5\}}", "5, 2"),
    (r"$\boxed{2}$ and $\boxed{5}$", "2,5"),
    (r"\boxed{5} \boxed{5}", "5"),
    (r"\boxed{7}. Next: \boxed{1", "7"),
    (r"\boxed{π/2}", r"\frac{\pi}{2}"),
    (r"\boxed{−3}", "-3"),
    (r"\boxed{4.5\times 10^{33}}", "4.5e33"),
    (r"\boxed{-1.5}", "-3./2"),
    (r"\boxed{3,\!000}", "3000"),
    (r"\boxed{x = 5}", "5"),
    (r"\boxed{10^{10^{9}}}", r"10^{10^{9}}"),
    ("Answer: 34.", "34"),
    ("**Answer:** $\\frac{1}{2}$ of it", "0.5"),
    ("Is the answer clear? The final answer is $5$. I hope it is correct.", "5"),
    # numbers: relative to the ground truth, or to six digits
    (r"\boxed{7.5 \times 10^{-27}}", "7.5e-27"),
    (r"\boxed{2^{-59}}", r"\frac{1}{2^{59}}"),
    (r"\boxed{0.166667}", r"\frac16"),
    (r"\boxed{1.414214}", r"\sqrt 2"),
    (r"\boxed{(1.414214, 2)}", r"(\sqrt 2, 2)"),
    (r"\boxed{0}", r"\sin \pi"),
    # several values in a sentence
    ("Hence the answer is $7$ and $8$.", "7,8"),
    (r"Answer: \(7\) or \(8\)", "7,8"),
    ("Answer: 7 and 8", "7,8"),
    ("the answer is either 7 or $8$", "7,8"),
    ("the answer is $7$ or 8.", "7,8"),
    (r"The final answer is $\$32,\!348$.", r"\$32,\!348"),
    # other boxes
    (r"so the value is \fbox{42}.", "42"),
    (r"$\framebox{$\frac{1}{2}$}$", r"\frac12"),
    # numbers in commands of LaTeX
    (r"\boxed{\text{1.6}}", "1.6"),
    (r"\boxed{\mathbf{\text{20.39}}}", "20.39"),
    (r"\boxed{\mathrm{20.39\,K}}", "20.39"),
    (r"\boxed{1\,000}", "1000"),
    (r"\boxed{15\ 625.5}", "15625.5"),
    (r"\boxed{ \frac12 . }", "0.5"),
    (r"\boxed{18.8°}", r"18.8^{\circ}"),
    # percentages
    (r"\boxed{62.5}", "62.5%"),
    (r"\boxed{0.625}", "62.5%"),
    (r"\boxed{62.5\text{ percent}}", "62.5%"),
    (r"\boxed{8}", r"8 \%"),
    # a last line "Answer: ..." after the box
    ("The radius is \\boxed{3}, so the area is 9 pi.\nAnswer: $9\\pi$", r"9\pi"),
]
WRONG = [
    ("", "5", "no answer"),
    (" \n\t", "5", "no answer"),
    ("it is 5", "5", "no answer"),
    (r"\boxed{}", "5", "no answer"),
    (r"\boxed{5", "5", "no answer"),
    ("Answer:", "5", "no answer"),
    (r"\boxed{6}", "5", "ok"),
    (r"\boxed{15}", "5", "ok"),
    (r"\boxed{5} \boxed{6}", "5", "ok"),
    (r"\boxed{2}", "2,5", "ok"),
    (r"\boxed{(3,2)}", "(2,3)", "ok"),
    (r"\boxed{[1,2]}", "(1,2]", "ok"),
    ("Answer: x+1", "1", "ok"),
    (r"Answer: 2\sqrt{3}", "2", "ok"),
    (r"\boxed{1/0}", "5", "ok"),
    (r"\boxed{2^{-60}}", "2^{-59}", "ok"),
    (r"\boxed{1-\frac{1}{2^{2014}}}", r"1-\frac{1}{2^{2015}}", "ok"),
    (r"\boxed{e^{-100}}", "e^{-101}", "ok"),
    (r"\boxed{-6.1e-20}", "2e-19", "ok"),
    (r"\boxed{0.0}", "3.5e-10", "ok"),
    (r"\boxed{\{2^{-60}, 1\}}", r"\{2^{-59}, 1\}", "ok"),
    (r"\boxed{41586.0}", "41585", "ok"),
    ("Hence the answer is $7$ and $8$.", "7", "ok"),
    ("Answer: $x=7$ or $x=8$", "7", "ok"),
    ("the answer is either 7 or $8$", "8", "ok"),
    (r"\fbox{41}", "42", "ok"),
    (r"\boxed{\text{1.7}}", "1.6", "ok"),
    (r"\boxed{1\,000}", "1", "ok"),
    (r"\boxed{9}", r"8 \%", "ok"),
    ("First \\boxed{3}. Then it doubles.\n\nAnswer: 6", "3", "ok"),
    ("Answer: $6$\nCheck: half of it is \\boxed{3}.", "6", "ok"),
    (r"\boxed{\int_0^1 e^{x^x}dx}", "5", "ok"),
    (r"\boxed{\sum_{n=1}^{\infty}\frac{\sin(n^n)}{n!}}", r"\sqrt{2}", "ok"),
    (r"\boxed{½}", r"\frac12", "unparsable"),
    (r"\boxed{(((((}", "5", "unparsable"),
    ("\\boxed{\x00\ud800}", "5", "unparsable"),
]
# A big-integer power and factorials in C, which no alarm interrupts; an endless simplification; an endless parse.
HANGS = [
    r"\boxed{10^{10^9}}",
    r"\boxed{9!!!!}",
    r"\boxed{8^{8^{8^8}}}",
    r"\boxed{(\sin^2 x+\cos^2 x)^{1000}+y^{2000}(x+y+z)^{600}}",
    r"\boxed{" + "(" * 3000 + "5" + ")" * 3000 + "}",
]


def test_right_and_wrong_answers():
    cases = [(text, truth, True, "ok") for text, truth in RIGHT]
    cases += [(text, truth, False, status) for text, truth, status in WRONG]
    grades = grading.grade_all([(text, truth, 0, False) for text, truth, *_ in cases])
    found = [(text, truth, grade.correct, grade.status) for (text, truth, *_), grade in zip(cases, grades)]
    assert found == cases


@pytest.mark.slow
def test_hangs_and_crashes_are_wrong_answers(monkeypatch):
    """The others are graded all the same."""
    monkeypatch.setattr(grading, "SECONDS", 3)
    responses = [(text, "5", 0, False) for text in HANGS]
    grades = grading.grade_all([*responses, (r"\boxed{5}", "5", 0, False)])
    assert all(not grade.correct and grade.status in ("grader time-out", "grader error") for grade in grades[:-1])
    assert grades[0].status == "grader time-out" and grades[-1].correct


def test_cut_responses_are_told_from_silent_ones():
    cases = [("so we", "5", 0, True), (r"\boxed{5} and on", "5", 0, True), ("so we", "C", 4, True)]
    grades = [grading.grade(*case) for case in cases]
    assert [(grade.correct, grade.status) for grade in grades] == [
        (False, "truncated"),
        (True, "ok"),
        (False, "truncated"),
    ]


CHOICES = {
    "C": [
        *(r"\boxed{C}", r"\boxed{c}", r"\boxed{\text{C}}", r"\boxed{(C)}", r"\boxed{\textbf{(C) } 42}"),
        *(r"\boxed{C. a cat}", r"\boxed{(C): a cat}", r"\boxed{(c).}", r"$\boxed{\mathrm{C}}$", "\\boxed{Ｃ}"),
        *(r"\boxed{A} no, \boxed{C}", r"\boxed{C}. Then \boxed{D", "The answer is C", "The answer is (C)."),
        *("the correct answer is option C.", "Answer: C", "**Answer: C**", "**Answer**: C", "Answer: $C$"),
        *(r"Answer: \(C\)", "the answer is unclear. Answer: C\nThat is it", "The answer is C, not B"),
        *("The answer is C because A is wrong", "Answer: A\nNo. Answer: C"),
    ],
    "unparsable": [
        *(r"\boxed{Cat}", r"\boxed{a.m.}", r"\boxed{c: 4}", r"\boxed{B, C}", r"\boxed{B or C}"),
        *(r"\boxed{42} The answer is C", r"\boxed{E}", "\\boxed{С}", r"\boxed{AC}"),
    ],
    "no answer": [
        *("", "A", "The answer is a cat", "the answer is A good one", "Certainly. A or B?", r"\boxed{}"),
        *("Answer: Carbon", "An answer: Blue", "answer is Correct"),
    ],
}


@pytest.mark.parametrize("outcome", CHOICES)
def test_multiple_choice(outcome):
    for text in CHOICES[outcome]:
        grade = grading.grade(text, "C", 4, False)
        expected = ("C", True, "ok") if outcome == "C" else (grade.extracted, False, outcome)
        assert grade == expected, text
    assert grading.grade(r"\boxed{E}", "E", 5, False).correct and not grading.grade(r"\boxed{D}", "C", 4, False).correct


@hypothesis.settings(deadline=None)
@hypothesis.given(st.text(alphabet="{}\\boxedC5 ()$,answeri:\n", max_size=60))
def test_reading_an_answer_never_fails(text):
    for read in (grading.math_answer, grading.choice_answer):
        assert read(text) is None or isinstance(read(text), str)
    assert grading.boxed_answer(text + r"\boxed{ab\{}").endswith(r"ab\{")


# Going on


def test_finished_benchmarks_are_not_sampled_again(run, finished, data, tmp_path):
    """One without an entry in the summary was not finished; pass@k of the others can still be asked for."""
    out = shutil.copytree(finished[0], tmp_path / "out")
    whole = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps({**whole, "benchmarks": {"aime24": whole["benchmarks"]["aime24"]}}))
    (out / "math500.samples.jsonl").write_text("{a line that was cut")
    before = (out / "aime24.samples.jsonl").stat().st_mtime_ns
    summary = run("--pass-at", 1, data=[data / "aime24.parquet", data / "math500.parquet"])
    assert list(summary["benchmarks"]) == ["aime24", "math500"]
    assert summary["benchmarks"]["aime24"]["pass_at"].keys() == {"1"}
    assert lines(out, "math500") == lines(finished[0], "math500")
    assert (out / "aime24.samples.jsonl").stat().st_mtime_ns == before


def test_half_of_a_benchmark_counts_as_none(run, finished, data, tmp_path, capsys):
    """As an interrupted copy leaves it, with the summary or without."""
    out = shutil.copytree(finished[0], tmp_path / "out")
    file, whole = out / "aime24.samples.jsonl", json.loads((out / "summary.json").read_text())
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:40]))
    whole["benchmarks"]["arc_c"]["samples"] = 1
    (out / "summary.json").write_text(json.dumps(whole))
    summary = run(data=[data / "aime24.parquet"])
    assert lines(out, "aime24") == lines(finished[0], "aime24") and list(summary["benchmarks"]) == ["aime24", "math500"]
    said = capsys.readouterr().err
    assert f"{file} does not hold all samples" in said and "summary.json has 1 of 3 samples of arc_c" in said


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "{}"])
def test_a_summary_that_is_none_is_named(run, data, tmp_path, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/summary.json").write_text(text)
    with pytest.raises(SystemExit, match=r"summary\.json is no summary .*Give another --out"):
        run(data=[data / "aime24.parquet"])


@pytest.mark.parametrize("more", [("--seed", 3), ("--limit", 2), ("--temperature", 1)])
def test_other_settings_need_another_folder(run, data, finished, tmp_path, more):
    out = shutil.copytree(finished[0], tmp_path / "out")
    before = {file.name: file.read_bytes() for file in out.glob("*.json*")}
    with pytest.raises(SystemExit, match="Give another --out"):
        run(*more, data=[data / "aime24.parquet"])
    assert {file.name: file.read_bytes() for file in out.glob("*.json*")} == before


def test_another_model_needs_another_folder(run, model, data, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "out")
    with pytest.raises(SystemExit, match="is of the model .*Give another --out"):
        run(model=shutil.copytree(model, tmp_path / "model"), data=[data / "arc_c.parquet"])
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    summary["weights"][0][1] += 1
    (tmp_path / "out/summary.json").write_text(json.dumps(summary))
    with pytest.raises(SystemExit, match="is of the weights .*Give another --out"):
        run(data=[data / "arc_c.parquet"])


def test_all_benchmarks_of_a_folder_have_the_same_settings(run, data, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "out")
    with pytest.raises(SystemExit, match="has aime24 with .*Give another --out"):
        run("--seed", 3, data=[data / "arc_c.parquet"])
    with pytest.raises(SystemExit, match="is math500, as another file"):
        run(data=[data / "math500.parquet", shutil.copy(data / "math500.parquet", tmp_path)])


# A user's mistakes


@pytest.mark.parametrize(
    "given, said",
    [
        ({"more": ("--pass-at", 32)}, "pass@32 of aime24"),
        ({"more": ("--samples", 4), "data": "math500.parquet"}, "math500 is greedy"),
        ({"more": ("--max-tokens", 60)}, "has 64 (the line"),
        ({"data": "training.parquet"}, "is not a benchmark"),
        ({"data": "none.parquet"}, "there is no "),
        ({"data": "empty"}, "no *.parquet in"),
        ({"model": "Qwen/Qwen2.5-Math-7B"}, "not a model's folder"),
    ],
)
def test_a_users_mistake_ends_it_at_once(model, data, tmp_path, capsys, given, said):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "empty").mkdir()
    write_rows(folder / "training.parquet", [recipe.verl_row("math_dapo", "x", "MATH", "5", {"index": 0})])
    file = folder / given.get("data", "aime24.parquet")
    words = command(given.get("model", model), [file], tmp_path / "out", *given.get("more", ()))
    with pytest.raises(SystemExit) as end:
        evaluate.run(evaluate.parse_arguments(words))
    assert said in f"{end.value}{capsys.readouterr().err}" and not (tmp_path / "out").exists()


def test_a_benchmark_of_ones_own(run, tmp_path):
    file = write_rows(tmp_path / "mine.parquet", [recipe.evaluation_row("mine", 0, prompt(1), "1")])
    summary = run("--samples", 2, "--temperature", 1, data=[file])
    assert summary["benchmarks"]["mine"]["as_paper"] is None and len(lines(tmp_path / "out", "mine")) == 2
