# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""recipes.llm.evaluate --engine vllm with the real engine, beside --engine transformers on the same tiny model."""

import json
import math
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("vllm", reason="this needs the environment of make rehearse-vllm")

import torch  # noqa: E402
from evaluations import command, evaluated, learned_model, lines, prompt, write_sets  # noqa: E402

pytestmark = [pytest.mark.rehearsal, pytest.mark.usefixtures("one_thread")]
MANY = 500


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return learned_model(tmp_path_factory.mktemp("evaluate") / "model")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("evaluate-data") / "eval")


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    return evaluated(model, data, tmp_path_factory.mktemp("finished") / "out")


@pytest.fixture(scope="module")
def sample(project_root, tmp_path_factory):
    """sample(model, data, *more): the folder of an evaluation with vLLM."""

    def run(model, data, *more):
        out = tmp_path_factory.mktemp("vllm") / "out"
        words = [sys.executable, "-m", "recipes.llm.evaluate", *command(model, [data], out, "--engine", "vllm", *more)]
        result = subprocess.run(words, cwd=project_root, env=os.environ, capture_output=True, text=True, timeout=900)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "note: this was written for" not in result.stderr
        return out

    return run


@pytest.fixture(scope="module")
def with_vllm(sample, model, data):
    return sample(model, data)


def answer(i):
    return rf"\boxed{{{i}}}"


def chance(model, i, temperature):
    """The probability that the model answers prompt(i) right, by transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, plain = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    ids = tokenizer(prompt(i) + answer(i), return_tensors="pt")["input_ids"]
    first = len(tokenizer(prompt(i))["input_ids"])
    with torch.no_grad():
        log_probs = (plain(ids).logits[0, first - 1 : -1].double() / temperature).log_softmax(-1)
    return log_probs.gather(-1, ids[0, first:, None]).sum().exp().item()


def test_greedy_texts_and_scores(with_vllm, finished, say):
    scores = json.loads((with_vllm / "summary.json").read_text())["benchmarks"]
    equal = total = 0
    for name in ("math500", "arc_c"):
        ours, theirs = ([s["text"] for s in lines(out, name)] for out in (with_vllm, finished[0]))
        equal, total = equal + sum(a == b for a, b in zip(ours, theirs)), total + len(ours)
    say(f"vLLM's greedy texts equal transformers' in {equal} of {total}")
    assert equal == total == 8
    right = sum(s["text"] == answer(s["index"]) for s in lines(with_vllm, "math500"))
    assert scores["math500"]["accuracy"] == right / 5 and right > 0 == scores["arc_c"]["accuracy"]


def test_the_papers_protocol_is_sampled(with_vllm, finished, model, say):
    """Each engine's number of right samples is a sum of independent draws, whose mean and variance are known."""
    chances = [chance(model, i, temperature=0.7) for i in range(1, 6)]
    mean, deviation = 16 * sum(chances), math.sqrt(16 * sum(p * (1 - p) for p in chances))
    samples = lines(with_vllm, "aime24")
    counts = [sum(s["correct"] for s in lines(out, "aime24")) for out in (with_vllm, finished[0])]
    say(f"right of 80 samples: vLLM {counts[0]}, transformers {counts[1]}; expected {mean:.1f} +- {deviation:.1f}")
    assert len(samples) == 80 and all(abs(count - mean) < 5 * deviation for count in counts)
    right = sum(s["text"] == answer(s["index"] // 10) for s in samples)
    assert right == counts[0], "the score is the count"
    assert len({s["seed"] for s in samples}) == 5


def test_the_models_own_sampling_defaults_are_not_used(sample, model, data, tmp_path, say):
    """With them no answer would be as likely as this, or as varied: top_k is 1. Their second end of sequence counts."""
    other = shutil.copytree(model, tmp_path / "model")
    brace = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]["}"]
    defaults = {"repetition_penalty": 5.0, "temperature": 0.1, "top_k": 1, "eos_token_id": [1, brace]}
    (other / "generation_config.json").write_text(json.dumps(defaults))
    samples = lines(sample(other, data / "aime24.parquet", "--samples", MANY), "aime24")
    chances = [chance(model, i, temperature=0.7) for i in range(1, 6)]
    mean = MANY * sum(chances)
    deviation = math.sqrt(MANY * sum(p * (1 - p) for p in chances))
    right = [s for s in samples if s["text"] + "}" == answer(s["index"] // 10)]  # vLLM leaves out what ended it
    say(f"right of {5 * MANY} samples: vLLM {len(right)}; expected {mean:.0f} +- {deviation:.0f}")
    assert abs(len(right) - mean) < 5 * deviation
    assert all(len({s["text"] for s in samples if s["index"] == 10 * i}) > 1 for i in range(1, 6))
    assert all(s["tokens"] == len(answer(1)) and s["finish_reason"] == "stop" for s in right)
