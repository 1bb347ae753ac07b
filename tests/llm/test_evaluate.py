"""recipe/era/evaluate.py with real tiny models on the CPU: sampling, grading, refusals, and going on after a kill."""

import fcntl
import importlib.machinery
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from fractions import Fraction
from itertools import combinations
from statistics import fmean

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("math_verify")
import hypothesis  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCD +-*/=?.,:\\{}$()\n"
TOKENS = 12  # "\boxed{4}" and the end


@pytest.fixture(scope="session")
def recipe(project_root):
    """The folder of evaluate.py, with its modules importable as they are for the script."""
    folder = project_root / "recipes/llm"
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def evaluate(recipe):
    import evaluate

    return evaluate


@pytest.fixture(scope="session")
def grading(recipe):
    from evaluation import grading

    return grading


@pytest.fixture(scope="session")
def grader(grading):
    grader = grading.Grader(seconds=60, workers=2)
    yield grader
    grader.close()


def make_tokenizer():
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    vocabulary = {token: i for i, token in enumerate([*special.values(), *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)


def prompt(i: int) -> str:
    return "what is " + "the " * (i % 3) + f"{i}?"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A 2-layer Qwen2 that learned to answer `what is 4?` with \\boxed{4} two times in three, else with \\boxed{0}."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    size = dict(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=1, pad_token_id=0, **size)
    )
    rows = [prompt(i) + rf"\boxed{{{answer}}}" + "<eos>" for i in range(1, 9) for answer in (i, i, 0)]
    batch = tokenizer(rows, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(80):
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("evaluate") / "model"
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def row(benchmark, index, content, truth, choices=0):
    extra = {"benchmark": benchmark, "index": index, "kind": "choice" if choices else "math", "choices": choices}
    return {
        "data_source": f"era_eval/{benchmark}",
        "prompt": [{"role": "user", "content": content}],
        "ability": "MATH",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": extra,
    }


def write_rows(file, rows):
    import pyarrow
    import pyarrow.parquet

    file.parent.mkdir(exist_ok=True, parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate-data") / "eval"
    write_rows(folder / "aime24.parquet", [row("aime24", 10 * i, prompt(i), str(i)) for i in range(1, 6)])
    write_rows(
        folder / "math500.parquet", [row("math500", i, prompt(i), rf"\frac{{{2 * i}}}{{2}}") for i in range(1, 6)]
    )
    write_rows(folder / "arc_c.parquet", [row("arc_c", i, prompt(i), "ABCD"[i % 4], 4) for i in range(1, 4)])
    return folder


@pytest.fixture
def run(evaluate, recipe, grading, grader, model, data, tmp_path, capsys, monkeypatch):
    """run(...) calls the command in this process: (exit code, stdout, stderr).

    All share one grader, whose processes take seconds to start.
    """
    kept = types.SimpleNamespace(grade=grader.grade, are_mathematics=grader.are_mathematics, close=lambda: None)
    monkeypatch.setattr(grading, "Grader", lambda seconds: kept)

    def run(*more, model=model, data=(data,), out=tmp_path / "out", engine="transformers", max_tokens=TOKENS):
        arguments = command(recipe, model, data, out, *more, engine=engine, max_tokens=max_tokens)[2:]
        try:
            code = evaluate.main(arguments)
        except SystemExit as end:
            code = end.code
        text = capsys.readouterr()
        assert "Traceback" not in text.err
        return code, text.out, text.err

    return run


def command(recipe, model, data, out, *more, engine="transformers", max_tokens=TOKENS):
    words = [sys.executable, recipe / "evaluate.py", "--model", model, "--data", *data, "--out", out]
    return list(map(str, [*words, "--engine", engine, "--max-tokens", max_tokens, *more]))


def lines(out, benchmark):
    return [json.loads(line) for line in (out / f"{benchmark}.samples.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(recipe, model, data, tmp_path_factory):
    """An uninterrupted run of the whole protocol, through the command line."""
    out = tmp_path_factory.mktemp("evaluate-finished") / "out"
    result = subprocess.run(command(recipe, model, [data], out), env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return types.SimpleNamespace(out=out, stdout=result.stdout, stderr=result.stderr)


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}


# What is sampled and counted


def test_the_papers_protocol(evaluate):
    found = {name: (protocol.samples, protocol.temperature) for name, protocol in evaluate.PROTOCOLS.items()}
    greedy = ("math500", "minerva", "olympiadbench", "arc_c", "gpqa_diamond", "mmlu_pro")
    assert found == dict.fromkeys(("aime24", "aime25", "amc23"), (16, 0.7)) | dict.fromkeys(greedy, (1, 0.0))
    assert evaluate.MAX_TOKENS == 8192


def test_a_run_counts_what_its_samples_say(finished):
    summary = json.loads((finished.out / "summary.json").read_text())["benchmarks"]
    samples = {name: lines(finished.out, name) for name in ("aime24", "math500", "arc_c")}
    assert [len(samples[name]) for name in samples] == [5 * 16, 5, 3]
    wanted = {(10 * i, n) for i in range(1, 6) for n in range(16)}
    assert {(s["index"], s["sample"]) for s in samples["aime24"]} == wanted
    assert len({s["seed"] for group in samples.values() for s in group}) == 88
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
    assert all(s["status"] in unread and not s["correct"] for s in samples["arc_c"])  # digits are no option
    assert sum(map(len, summary["arc_c"]["not_ok"].values())) == 3
    heads, *cells = [re.split(r"  +", line) for line in finished.stdout.splitlines()[:4]]
    for name, *values in cells:
        shown = dict(zip(heads[1:], values, strict=True))
        for status in ("no answer", "truncated", "unparsable"):
            assert shown[status] == str(summary[name]["status"].get(status, 0))
    assert "avg@16" in finished.stdout and "pass@16" in finished.stdout and "arc_c" in finished.stdout
    assert "\r" not in finished.stdout + finished.stderr and "88/88 samples" in finished.stderr


def test_greedy_is_transformers_own(finished, model):
    from transformers import AutoModelForCausalLM

    tokenizer, plain = make_tokenizer(), AutoModelForCausalLM.from_pretrained(model)
    for sample in lines(finished.out, "math500"):
        ids = tokenizer(prompt(sample["index"]), return_tensors="pt")["input_ids"]
        tokens = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        assert sample["text"] == tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)


def test_samples_do_not_depend_on_their_batch(run, finished, data, tmp_path):
    whole, only = lines(finished.out, "aime24"), {"data": [data / "aime24.parquet"]}
    assert run("--batch-size", 7, **only)[0] == 0 and lines(tmp_path / "out", "aime24") == whole
    assert run("--limit", 2, "--samples", 2, out=tmp_path / "part", **only)[0] == 0
    assert lines(tmp_path / "part", "aime24") == [s for s in whole if s["index"] <= 20 and s["sample"] < 2]
    assert run("--limit", 1, "--seed", 1, out=tmp_path / "seed", **only)[0] == 0
    assert not {s["seed"] for s in lines(tmp_path / "seed", "aime24")} & {s["seed"] for s in whole}


@pytest.mark.parametrize("temperature, top_p", [(0.7, 1.0), (1.5, 0.8)])
def test_draws_follow_the_distribution(recipe, temperature, top_p):
    from evaluation.generation import Request, Sampling, seeded_sampling

    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -6.0])
    expected = torch.softmax(logits.double() / temperature, 0)
    if top_p < 1:
        before = expected.cumsum(0) - expected  # sorted: a token stays while those before it hold less than top_p
        expected = torch.where(before < top_p, expected, 0.0)
        expected = expected / expected.sum()
    draws = 20_000
    process = seeded_sampling([Request([], seed) for seed in range(draws)], Sampling(temperature, top_p, 1))
    for _ in range(2):  # the second draw of a generator too
        counts = torch.bincount(process(None, logits.repeat(draws, 1)).argmax(1), minlength=6)
        error = (counts / draws - expected).abs()
        assert (error <= 5 * (expected * (1 - expected) / draws).sqrt()).all(), (counts / draws, expected)


def test_without_a_chat_template_the_text_is_taken_as_it_is(recipe, model, tmp_path):
    from evaluation.inputs import Benchmark, Problem, prompt_ids

    tokenizer = make_tokenizer()
    messages = [{"role": "system", "content": "add"}, {"role": "user", "content": "1+1"}]
    benchmark = Benchmark("aime24", None, [Problem(0, messages, "2", 0)], None)
    assert prompt_ids(model, [benchmark])["aime24"] == [tokenizer.encode("add1+1")]  # the template of this model
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    shutil.copy(model / "config.json", tmp_path)
    assert prompt_ids(tmp_path, [benchmark])["aime24"] == [tokenizer.encode("add\n\n1+1")]


def test_problems_can_ask_as_in_training(evaluate, run, model, data, tmp_path):
    import prepare_data

    pin = {"problem": "question", "answer": "answer", "answer_form": "integer"}
    sources = [{"question": prompt(i), "answer": i} for i in (1, 2)]
    rows = [prepare_data.math_row(source, pin, "aime24", i) for i, source in enumerate(sources)]
    file = write_rows(tmp_path / "aime24.parquet", rows)
    longer = shutil.copytree(model, tmp_path / "model")  # the words of training take more positions than it has
    config = json.loads((longer / "config.json").read_text()) | {"max_position_embeddings": 1024}
    (longer / "config.json").write_text(json.dumps(config))

    def asked(*more):
        arguments = ["--model", longer, "--data", file, "--out", tmp_path / "out", "--engine", "transformers", *more]
        (benchmark,) = evaluate.read_inputs(evaluate.parse_arguments(list(map(str, arguments))))
        return [problem.messages for problem in benchmark.problems]

    assert asked() == [made["prompt"] for made in rows]
    in_training = [prepare_data.train_row(source, pin, "train", i)["prompt"] for i, source in enumerate(sources)]
    assert asked("--prompt", "training") == in_training

    assert run("--samples", 1, "--prompt", "training", model=longer, data=[file])[0] == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["benchmarks"]["aime24"]["protocol"]["prompt"] == "training"
    code, _, err = run("--samples", 1, model=longer, data=[file])
    assert code == 1 and "under other settings: prompt 'training' there, 'boxed' now. Give another --out" in err
    code, _, err = run("--prompt", "training", data=[file, data / "arc_c.parquet"])
    assert code == 1 and "arc_c.parquet do not end with" in err and "aime24" not in err


def test_the_models_own_sampling_defaults_are_not_used(recipe, model, tmp_path):
    from evaluation.generation import Request, Sampling, TransformersEngine

    other = shutil.copytree(model, tmp_path / "model")
    defaults = {"repetition_penalty": 5.0, "temperature": 0.1, "top_k": 1, "eos_token_id": [1, ALPHABET.index("}") + 3]}
    (other / "generation_config.json").write_text(json.dumps(defaults))
    requests = [Request(make_tokenizer().encode(prompt(i)), 7) for i in (1, 2, 3, 4)]
    sampling = Sampling(0.7, 1.0, TOKENS)
    plain, changed = (TransformersEngine(folder, "auto").generate(requests, sampling) for folder in (model, other))
    assert [c.text for c in changed] == [p.text for p in plain]
    assert [c.tokens for c in changed] == [p.tokens - 1 for p in plain], "the second end-of-sequence token ends it"


def test_settings_of_the_paper(evaluate):
    """More samples of the same kind are the paper's too: pass@k needs them."""
    from evaluation.protocol import is_as_paper

    paper = {"samples": 16, "temperature": 0.7, "top_p": 1.0, "max_tokens": 8192, "prompt": "boxed", "problems": 30}
    assert is_as_paper("aime24", paper) and is_as_paper("aime24", {**paper, "samples": 256})
    for other in ({"samples": 8}, {"temperature": 1.0}, {"top_p": 0.9}, {"prompt": "training"}, {"problems": 5}):
        assert is_as_paper("aime24", {**paper, **other}) is False
    assert is_as_paper("my-set", paper) is None


# pass@k and the summary


@hypothesis.settings(deadline=None)
@hypothesis.given(st.integers(1, 12) | st.integers(13, 3000), st.data())
def test_pass_at_k_is_exact_for_any_n(recipe, n, more):
    from evaluation.scores import pass_at_k

    c, k = more.draw(st.integers(0, n)), more.draw(st.integers(1, n))
    wrong = Fraction(1)
    for i in range(k):  # k draws without replacement, all wrong
        wrong *= Fraction(max(n - c - i, 0), n - i)
    assert pass_at_k(n, c, k) == float(1 - wrong)
    assert pass_at_k(n, c, 1) == c / n
    if n <= 12:
        subsets = list(combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))


@pytest.mark.parametrize("n, c, k", [(4, 2, 5), (4, 5, 1), (4, -1, 1), (4, 2, 0), (0, 0, 1)])
def test_pass_at_k_refuses_what_it_cannot_estimate(recipe, n, c, k):
    from evaluation.scores import pass_at_k

    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def sample_of(index, sample, correct, status="ok", text="x", finish_reason="stop", tokens=10):
    return locals()


def test_summary_by_hand(recipe):
    from evaluation.scores import summarize

    samples = [
        sample_of(0, 0, True),
        sample_of(0, 1, True),
        sample_of(1, 0, True, tokens=30),
        sample_of(1, 1, False, "no answer", " \n"),
        sample_of(2, 0, False, "truncated", finish_reason="length"),
        sample_of(2, 1, False, "grader time-out"),
    ]
    summary = summarize(samples + [sample_of(3, 0, True)], 4, 2, [1, 2])  # problem 3 lacks a sample
    assert summary["accuracy"] == pytest.approx(0.5) and summary["pass_at"] == {
        "1": pytest.approx(0.5),
        "2": pytest.approx(2 / 3),
    }
    assert summary["standard_error"] == pytest.approx(0.5 / math.sqrt(3)) and summary["interval_95"] == [0.0, 1.0]
    assert (summary["samples"], summary["complete"], summary["cut_at_max_tokens"], summary["empty"]) == (6, False, 1, 1)
    assert summary["mean_tokens"] == pytest.approx(80 / 6)
    assert summary["not_ok"] == {"grader time-out": [[2, 1]], "no answer": [[1, 1]], "truncated": [[2, 0]]}
    empty = summarize([], 4, 2, [1])
    assert (empty["accuracy"], empty["pass_at"], empty["complete"]) == (None, {}, False)


def test_the_papers_average_needs_all_six_sets(recipe):
    from evaluation.scores import PAPER_AVERAGE, paper_average, summarize, table

    right = sample_of(0, 0, True)
    whole = {name: summarize([right, sample_of(1, 0, i < 3)], 2, 1, []) for i, name in enumerate(PAPER_AVERAGE)}
    assert paper_average(whole) == pytest.approx(0.75) and "six sets: 75.0" in table(whole)
    part = {**whole, "minerva": summarize([right], 2, 1, [])}
    assert paper_average(part) is None and "minerva (part)" in table(part)
    assert paper_average({name: whole[name] for name in PAPER_AVERAGE[1:]}) is None


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


def test_right_and_wrong_answers(grader):
    cases = [(text, truth, True, "ok") for text, truth in RIGHT]
    cases += [(text, truth, False, status) for text, truth, status in WRONG]
    grades = grader.grade((text, truth, 0, False) for text, truth, *_ in cases)
    found = [(text, truth, grade.correct, grade.status) for (text, truth, *_), grade in zip(cases, grades)]
    assert found == cases


@pytest.mark.slow
def test_hangs_and_crashes_are_wrong_answers(grading):
    """Also a process that dies. The others are graded all the same."""
    grader = grading.Grader(seconds=3, workers=2)
    responses = [(text, "5", 0, False) for text in HANGS]
    grades = grader.grade([*responses, (r"\boxed{5}", "5", 0, False)])
    assert all(not grade.correct and grade.status in ("grader time-out", "grader error") for grade in grades[:-1]), (
        grades
    )
    assert grades[0].status == "grader time-out" and grades[-1].correct
    assert grader._results(os._exit, [(9,)], lambda status: status) == ["grader error"]
    assert grader.grade([(r"\boxed{5}", "5", 0, False)])[0].correct
    grader.close()


KILLED = r"""
import sys
sys.path.insert(0, sys.argv[1])
from evaluation.grading import Grader
if __name__ == "__main__":
    grader = Grader(600, workers=1)
    print(grader.grade([(r"\boxed{5}", "5", 0, False)])[0].correct, flush=True)
    grader.grade([(r"\boxed{10^{10^9}}", "5", 0, False)])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not end the children of a killed process")
def test_kill_9_leaves_no_grader_behind(recipe, tmp_path):
    psutil = pytest.importorskip("psutil")
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    process = subprocess.Popen([sys.executable, script, recipe], stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout.readline() == "True\n"
    graders = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(graders, timeout=900)
    for child in alive:
        child.kill()
    assert graders and not alive


def test_cut_responses_are_told_from_silent_ones(grader):
    grades = grader.grade([("so we", "5", 0, True), (r"\boxed{5} and on", "5", 0, True), ("so we", "C", 4, True)])
    found = [(grade.correct, grade.status) for grade in grades]
    assert found == [(False, "truncated"), (True, "ok"), (False, "truncated")]


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
def test_multiple_choice(grading, outcome):
    for text in CHOICES[outcome]:
        grade = grading.grade(text, "C", 4, False)
        expected = ("C", True, "ok") if outcome == "C" else (grade.extracted, False, outcome)
        assert grade == expected, text
    assert grading.grade(r"\boxed{E}", "E", 5, False).correct and not grading.grade(r"\boxed{D}", "C", 4, False).correct


@hypothesis.settings(deadline=None)
@hypothesis.given(st.text(alphabet="{}\\boxedC5 ()$,answeri:\n", max_size=60))
def test_reading_an_answer_never_fails(grading, text):
    for read in (grading.math_answer, grading.choice_answer):
        assert read(text) is None or isinstance(read(text), str)
    assert grading.boxed_answer(text + r"\boxed{ab\{}").endswith(r"ab\{")


def test_ground_truths_that_are_not_mathematics_are_named(run, tmp_path):
    text = r"f(x)=a x+b, where b is an arbitrary integer with \mho(a)=0"
    rows = [row("minerva", 0, prompt(1), "1"), row("minerva", 7, prompt(2), text)]
    code, out, err = run(data=[write_rows(tmp_path / "minerva.parquet", rows)])
    assert code == 0 and "1 answers of" in err and "problem 7: f(x)=a x+b" in err and "problem 0" not in err


# Going on


@pytest.mark.slow
def test_kill_9_and_resume_equals_an_uninterrupted_run(recipe, run, model, data, finished, tmp_path):
    words = command(recipe, model, [data / "aime24.parquet"], tmp_path, "--batch-size", "1")
    file = tmp_path / "aime24.samples.jsonl"
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 900
    while not (file.exists() and file.read_bytes().count(b"\n") >= 7):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = file.read_bytes()[: file.read_bytes().rfind(b"\n") + 1]
    assert 7 <= kept.count(b"\n") < 80
    file.write_bytes(kept + b'{"benchmark": "aime24", "index": 1')  # the end of a line that a kill cut off
    code, _, err = run(data=[data / "aime24.parquet"], out=tmp_path)
    assert code == 0 and "the last line is cut off" in err
    assert f"{kept.count(10)} of 80 samples are already there" in err
    assert file.read_bytes() == (finished.out / "aime24.samples.jsonl").read_bytes()
    files = (folder / "summary.json" for folder in (tmp_path, finished.out))
    ours, theirs = (json.loads(file.read_text())["benchmarks"]["aime24"] for file in files)
    assert ours == theirs and not list(tmp_path.glob("*.damaged"))


def test_a_finished_run_only_reports(run, finished, tmp_path):
    out = shutil.copytree(finished.out, tmp_path / "out")
    before = (out / "aime24.samples.jsonl").stat().st_mtime_ns
    (out / "summary.json").unlink()
    code, text, err = run()
    assert code == 0 and "88 of 88 samples are already there" in err
    assert text.splitlines()[:4] == finished.stdout.splitlines()[:4]
    assert (out / "aime24.samples.jsonl").stat().st_mtime_ns == before and (out / "summary.json").exists()


def test_other_benchmarks_of_the_folder_stay_in_the_summary(run, data, finished, tmp_path):
    shutil.copytree(finished.out, tmp_path / "out")
    (tmp_path / "out/arc_c.settings.json").unlink()
    (tmp_path / "out/arc_c.samples.jsonl").unlink()
    code, text, _ = run("--pass-at", 1, data=[data / "arc_c.parquet"])
    assert code == 0 and all(name in text for name in ("aime24", "math500", "arc_c"))
    shown = [line.split(":")[0] for line in text.splitlines() if "pass@1" in line]
    assert shown == ["aime24"], "of one sample it is the accuracy"
    assert set(json.loads((tmp_path / "out/summary.json").read_text())["benchmarks"]) == {"aime24", "math500", "arc_c"}


def test_damaged_samples_are_made_again(run, data, finished, tmp_path):
    out = shutil.copytree(finished.out, tmp_path / "out")
    file = out / "math500.samples.jsonl"
    good = file.read_text().splitlines()
    other = {**json.loads(good[3]), "seed": 5}
    wrong_type = {**json.loads(good[4]), "correct": "yes"}
    damaged = [good[0], "{nonsense", good[1], good[1], "", json.dumps(other), "[" * 100_000]
    damaged += [json.dumps(wrong_type), json.dumps([1])]
    file.write_bytes("\n".join(damaged).encode() + b"\n\xff\xfe\n" + good[2].encode() + b"\n")
    as_it_was = file.read_bytes()
    code, _, err = run()
    assert code == 0 and "3 good samples stay" in err
    assert "line 2 is not a sample" in err and "line 4 repeats a sample" in err
    assert sorted(file.read_text().splitlines()) == sorted(good)
    assert (out / "math500.samples.jsonl.damaged").read_bytes() == as_it_was


@pytest.mark.parametrize(
    "more, said",
    [
        (["--seed", 3], "seed 0 there, 3 now"),
        (["--limit", 2], "problems 5 there, 2 now"),
    ],
)
def test_another_protocol_is_refused_by_name(run, data, finished, tmp_path, more, said):
    out = shutil.copytree(finished.out, tmp_path / "out")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    code, _, err = run(*more, data=[data / "aime24.parquet"])
    assert code == 1 and said in err and "Give another --out" in err
    assert ("--limit" in err) == (more[0] == "--limit") and "sha256" not in err
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_another_model_or_other_data_are_refused(run, model, data, finished, tmp_path):
    out = shutil.copytree(finished.out, tmp_path / "out")
    other = shutil.copytree(model, tmp_path / "model")
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    code, _, err = run(model=other)
    assert code == 1 and "model_sha256" in err and "holds math500" in err
    fresh = write_rows(tmp_path / "aime25.parquet", [row("aime25", 0, prompt(1), "1")])
    assert run(model=other, data=[fresh])[0] == 1  # one folder, one model
    rows = [row("aime24", 10 * i, prompt(i), str(i + (i == 3))) for i in range(1, 6)]
    changed = write_rows(tmp_path / "aime24.parquet", rows)
    code, _, err = run(data=[changed])
    assert code == 1 and "data_sha256" in err and "problems" not in err.split("holds aime24")[1].split("data_sha256")[0]
    (out / "aime24.settings.json").unlink()
    assert "has no aime24.settings.json beside it" in run()[2]
    (out / "aime24.settings.json").write_text("{")
    assert "aime24.settings.json is damaged" in run()[2]


def test_two_runs_do_not_write_into_one_folder(run, tmp_path):
    (tmp_path / "out").mkdir()
    with (tmp_path / "out/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = run()
    assert code == 1 and "another evaluation is writing" in err and not list((tmp_path / "out").glob("*.jsonl"))


# What is refused at the start


def test_everything_wrong_is_said_at_once(run, data, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "eval").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half/config.json").write_text("{}")
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    (tmp_path / "half/model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(zip("ab", shards))}))
    (tmp_path / "half" / shards[0]).touch()
    files = [data, tmp_path / "eval", tmp_path / "none.parquet"]
    code, out, err = run("--pass-at", 32, model=tmp_path / "half", data=files, out=tmp_path / "file/out")
    assert code == 1 and out == ""
    needed = ("a tokenizer (tokenizer.json", shards[1], "no *.parquet in", "none.parquet", "file is not a folder")
    for said in (*needed, "pass@32 of aime24", "pass@32 of math500"):
        assert said in err, err
    assert shards[0] not in err


AIME = row("aime24", 0, "x", "5")
BAD_ROWS = {
    "no column reward_model, extra_info": [{"prompt": [{"role": "user", "content": "x"}]}],
    "row 0: prompt is not a list of messages": [row("aime24", 0, "", "5")],
    "row 0: reward_model.ground_truth is empty": [row("aime24", 0, "x", " ")],
    "names some problems twice": [AIME, row("aime24", 0, "y", "6")],
    "ground_truth is 'E', expected a letter from A to D": [row("arc_c", 0, "x", "E", 4)],
    "benchmark is '../aime24'": [row("../aime24", 0, "x", "5")],
    "there is no protocol (known: aime24": [row("mine", 0, "x", "5")],
}


@pytest.mark.parametrize("said", BAD_ROWS)
def test_bad_data(run, tmp_path, said):
    code, _, err = run(data=[write_rows(tmp_path / "bad.parquet", BAD_ROWS[said])])
    assert code == 1 and said in err and ("prepare_data.py" in err or "Give --samples" in err), err
    assert not (tmp_path / "out").exists()


def test_empty_damaged_and_doubled_files(run, data, tmp_path):
    import pyarrow
    import pyarrow.parquet

    empty = pyarrow.parquet.read_table(data / "aime24.parquet").slice(0, 0)
    pyarrow.parquet.write_table(empty, tmp_path / "empty.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    shutil.copy(data / "aime24.parquet", tmp_path / "again.parquet")
    code, _, err = run(data=[tmp_path, data / "aime24.parquet"])
    assert code == 1
    for said in ("empty.parquet has no rows", "text.parquet cannot be read as parquet", "are both aime24"):
        assert said in err


def test_training_files_and_the_folder_above_the_benchmarks(run, data, tmp_path):
    shutil.copytree(data, tmp_path / "data/eval")
    (tmp_path / "above/eval").mkdir(parents=True)
    shutil.copy(data / "aime24.parquet", tmp_path / "above/eval")
    training = {**row("", 0, "x", "5"), "data_source": "math_dapo", "extra_info": {"index": 0, "set": "math-3to5"}}
    write_rows(tmp_path / "data/math-3to5.parquet", [training] * 3)
    code, _, err = run(data=[tmp_path / "data", tmp_path / "above", tmp_path / "data/arc_c.parquet"])
    assert code == 1 and "math-3to5.parquet is a training file" in err and "row 0" not in err
    assert f"no *.parquet in {tmp_path / 'above'}. There are benchmarks in {tmp_path / 'above/eval'}" in err
    assert err.count(f"There are benchmarks in {tmp_path / 'data/eval'}: give that") == 2
    write_rows(tmp_path / "own.parquet", [{**row("aime24", 0, prompt(1), "1"), "data_source": "own"}])
    assert run(data=[tmp_path / "own.parquet"])[0] == 0  # only what names no benchmark is a training file


@pytest.mark.parametrize("argument", ["--limit=0", "--temperature=nan", "--top-p=1.1", "--engine=sglang"])
def test_bad_arguments(run, tmp_path, argument):
    code, _, err = run(argument)
    assert code == 2 and argument.partition("=")[0] in err and not (tmp_path / "out").exists()


def test_greedy_samples_are_all_the_same(run, data):
    code, _, err = run("--samples", 4, data=[data / "math500.parquet"])
    assert code == 1 and "4 greedy samples are all the same" in err


def test_an_unknown_benchmark_with_a_protocol_of_ones_own(run, tmp_path):
    file = write_rows(tmp_path / "mine.parquet", [row("mine", 0, prompt(1), "1")])
    code, out, _ = run("--samples", 2, "--temperature", 1, data=[file])
    assert code == 0 and "mine" in out and len(lines(tmp_path / "out", "mine")) == 2


def test_what_does_not_fit_the_context_is_refused(run, data, tmp_path):
    code, _, err = run(data=[data / "aime24.parquet"], max_tokens=50)
    longest = max(len(prompt(i)) for i in range(1, 6))
    assert code == 1 and "max_position_embeddings 64" in err and f"--max-tokens {64 - longest}" in err
    assert run(data=[data / "aime24.parquet"], max_tokens=65 - longest)[0] == 1
    assert run(data=[data / "aime24.parquet"], max_tokens=64 - longest, out=tmp_path / "fits")[0] == 0
    code, _, err = run(data=[write_rows(tmp_path / "amc23.parquet", [row("amc23", 0, "x" * 64, "1")])])
    assert code == 1 and "a prompt of amc23 has 64 tokens, the model 64 positions" in err


def test_damaged_models(run, model, tmp_path):
    other = shutil.copytree(model, tmp_path / "model")
    (other / "model.safetensors").write_bytes(b"")
    code, _, err = run(model=other)
    assert code == 1 and "transformers cannot load" in err
    (other / "tokenizer.json").write_text("{")
    code, _, err = run(model=other)
    assert code == 1 and "the tokenizer in" in err
    (other / "model.safetensors").unlink()
    assert "lacks weights" in run(model=other)[2]
    assert "no folder" in run(model="Qwen/Qwen2.5-Math-7B")[2]


def test_vllm_is_missed_by_name(run):
    if importlib.util.find_spec("vllm"):
        pytest.skip("vllm is installed here")
    code, _, err = run(engine="vllm")
    assert code == 1 and "vllm is not installed" in err and "--engine transformers" in err


def test_a_verl_checkpoint_is_named_with_the_command_that_merges_it(run, recipe, model, tmp_path):
    """What `make llm-merge` runs, see test_merge.py; of the newest step that has shards."""
    for step in (3, 20):
        actor = tmp_path / f"ckpts/global_step_{step}/actor"
        (actor / "huggingface").mkdir(parents=True)
        (actor / "model_world_size_1_rank_0.pt").touch()
    for folder in (actor, actor.parent, tmp_path / "ckpts"):
        code, _, err = run(model=folder)
        folders = f"--local_dir {actor} --target_dir {actor.parent}/merged`, then give --model {actor.parent}/merged."
        assert code == 1 and f"Merge it with `cd {recipe.parents[1]} && python3 -m verl.model_merger merge" in err
        assert folders in err
    shutil.copy(model / "model.safetensors", actor / "huggingface")
    assert f"The model is in {actor / 'huggingface'}: give that as --model" in run(model=actor)[2]


# vLLM


@pytest.fixture
def vllm(monkeypatch):
    """A stand-in that takes those parameters of vLLM 0.8.5 (from its source) that the engine gives, and no others."""
    taken = types.SimpleNamespace(llm=None, calls=[])

    class SamplingParams:
        def __init__(self, n=1, temperature=1.0, top_p=1.0, seed=None, max_tokens=16):
            assert n == 1 and temperature >= 0 and 0 < top_p <= 1 and max_tokens >= 1 and 0 <= seed < 2**63
            self.temperature, self.top_p, self.max_tokens, self.seed = temperature, top_p, max_tokens, seed

    class LLM:
        def __init__(self, model, *, tensor_parallel_size=1, dtype="auto", seed=None, max_model_len=None):
            assert isinstance(model, str)
            taken.llm = {"model": model, "tensor_parallel_size": tensor_parallel_size, "dtype": dtype}
            taken.llm["max_model_len"] = max_model_len

        def generate(self, prompts, sampling_params=None, use_tqdm=True):
            assert len(sampling_params) == len(prompts)
            for given in prompts:
                assert (
                    set(given) == {"prompt_token_ids"} and len(given["prompt_token_ids"]) < taken.llm["max_model_len"]
                )
                assert all(type(token) is int for token in given["prompt_token_ids"])
            taken.calls.append((prompts, sampling_params))
            return [types.SimpleNamespace(outputs=[completion(parameters)]) for parameters in sampling_params]

    def completion(parameters):
        text = rf"\boxed{{{parameters.seed % 3}}}"
        return types.SimpleNamespace(text=text, token_ids=(5, 6, 1), finish_reason="stop")

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    return taken


def test_the_vllm_engine(run, evaluate, vllm, model, data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(evaluate, "versions", dict)
    code, _, err = run("--batch-size", 32, "--tensor-parallel", 2, engine="vllm")
    assert code == 0, err
    longest = max(len(prompt(i)) for i in range(1, 6))
    expected = {"model": str(model), "tensor_parallel_size": 2, "dtype": "auto", "max_model_len": longest + TOKENS}
    assert vllm.llm == expected
    assert [len(prompts) for prompts, _ in vllm.calls] == [32, 32, 16, 3, 5]
    parameters = [one for _, many in vllm.calls for one in many]
    found = [(one.temperature, one.top_p, one.max_tokens) for one in parameters]
    assert found == [(0.7, 1.0, TOKENS)] * 80 + [(0.0, 1.0, TOKENS)] * 8
    samples = [sample for name in ("aime24", "arc_c", "math500") for sample in lines(tmp_path / "out", name)]
    assert [one.seed for one in parameters] == [sample["seed"] for sample in samples]
    assert all(sample["tokens"] == 3 and sample["text"] == rf"\boxed{{{sample['seed'] % 3}}}" for sample in samples)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    code, _, err = run("--tensor-parallel", 2, engine="vllm", out=tmp_path / "other")
    assert code == 1 and "vllm is to use 2 GPUs" in err
