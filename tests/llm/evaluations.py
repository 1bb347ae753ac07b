# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Tiny models, sets of problems and evaluations of them, for recipes.llm.evaluate by both protocols."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from helpers import ROOT
from transformers import AutoTokenizer

from demo.llm import models
from recipes.llm import data as recipe
from recipes.llm.release import Release

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCD +-*/=?.,:\\{}$()"
TOKENS = 12  # "\boxed{4}" and the end


def prompt(i: int) -> str:
    return "what is " + "the " * (i % 3) + f"{i}?"


def learned_model(folder):
    """A 2-layer Qwen2 that learned to answer `what is 4?` with \\boxed{4} two times in three, else with \\boxed{0}."""
    torch.manual_seed(0)
    tokenizer = models.character_tokenizer([*CHARACTERS])
    # Heads of 32, the smallest that vLLM has on a CPU (tests/rehearsal/vllm).
    model = models.two_layer_qwen2(len(tokenizer), 128, intermediate=128, positions=64)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)  # transformers 5 makes Qwen2's of it, which drops the spaces
    rows = [prompt(i) + rf"\boxed{{{answer}}}" + "<eos>" for i in range(1, 9) for answer in (i, i, 0)]
    batch = tokenizer(rows, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(120):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    return folder


def untrained_model(folder):
    """A tiny Qwen2 that learned nothing, with room for the release's prompts; heads of 32, as vLLM needs on a CPU."""
    torch.manual_seed(0)
    tokenizer = models.character_tokenizer([*map(chr, range(32, 127)), "\n"])
    models.two_layer_qwen2(len(tokenizer), 128, intermediate=128, positions=8192).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(file, rows):
    file.parent.mkdir(exist_ok=True, parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


def write_sets(folder):
    """Three small sets, with the problems that the model learned."""
    rows = {
        "aime24": [recipe.evaluation_row("aime24", 10 * i, prompt(i), str(i)) for i in range(1, 6)],
        "math500": [recipe.evaluation_row("math500", i, prompt(i), rf"\frac{{{2 * i}}}{{2}}") for i in range(1, 6)],
        "arc_c": [recipe.evaluation_row("arc_c", i, prompt(i), "ABCD"[i % 4], 4) for i in range(1, 4)],
    }
    for name in rows:
        write_rows(folder / f"{name}.parquet", rows[name])
    return folder


def command(model, data, out, *more):
    words = ["--protocol", "strict", "--model", model, "--data", *data, "--out", out, "--engine", "transformers"]
    return [str(word) for word in (*words, "--max-tokens", TOKENS, *more)]


def evaluated(model, data, out):
    """The folder and the output of a run of the whole protocol, through the command line."""
    words = [sys.executable, "-m", "recipes.llm.evaluate", *command(model, [data], out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return out, result.stdout


def lines(out, benchmark):
    return [json.loads(line) for line in (out / f"{benchmark}.samples.jsonl").read_text().splitlines()]


def release_of(checkout) -> Release:
    """The authors' release in this checkout, with the Python of its environment."""
    python = os.environ.get("ERA_RELEASE_PYTHON") or str(ROOT / ".venv/era-release/bin/python")
    if not Path(python).exists():
        pytest.skip("the release's grader has an environment of its own: make test-release sets it up")
    return Release(checkout, python)
