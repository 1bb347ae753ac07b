# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Both protocols of recipes.llm.evaluate with the real vLLM, and both graders on the texts."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("vllm", reason="this needs the environment of make rehearse-vllm")

from evaluations import release_of, untrained_model, write_rows  # noqa: E402

from recipes.llm.data import evaluation_row  # noqa: E402

pytestmark = pytest.mark.rehearsal


def test_both_protocols_and_both_graders(patched_release, project_root, tmp_path, say):
    release, model = release_of(patched_release), untrained_model(tmp_path / "model")
    common = ["--release-checkout", release.checkout, "--release-python", release.python]

    def run(module, *words):
        command = [sys.executable, "-m", f"recipes.llm.{module}", *map(str, words)]
        done = subprocess.run(command, cwd=project_root, env=os.environ, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    texts = {}
    for engine in ("vllm", "transformers"):
        out = tmp_path / engine
        words = ["--model", model, "--out", out, "--sets", "aime24", "math500", "--limit", 2, "--max-tokens", 16]
        run("evaluate", *words, "--engine", engine, *common)
        for name, count in (("aime24", 32), ("math500", 2)):
            samples = [json.loads(line) for line in (out / f"{name}.samples.jsonl").read_text().split("\n")[:-1]]
            assert len(samples) == count
            texts[engine, name] = [sample["text"] for sample in samples]
    assert texts["vllm", "math500"] == texts["transformers", "math500"], "greedy, after the same prompts"
    assert len({*texts["vllm", "aime24"]}) > 16, "each sample is drawn by itself"
    say(run("grade", tmp_path / "vllm", *common))

    file = write_rows(tmp_path / "aime24.parquet", [evaluation_row("aime24", i, f"what is {i}?", "4") for i in (1, 2)])
    words = ["--protocol", "strict", "--model", model, "--data", file, "--out", tmp_path / "strict"]
    run("evaluate", *words, "--engine", "vllm", "--max-tokens", 16)
    assert json.loads((tmp_path / "strict/summary.json").read_text())["benchmarks"]["aime24"]["samples"] == 32
