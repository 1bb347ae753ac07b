"""The fuzzer on each of our parsers, for a fixed number of inputs from a fixed seed. It needs atheris (requirements/fuzz.txt)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PART = "inputs"
LONG = os.environ.get("ERA_PROOF") == "long"
HERE = Path(__file__).resolve().parent
RUNS = {
    "patches": 4000,
    "upstreams": 5000,
    "numbers": 20_000,
    "archives": 4000,
    "words": 20_000,
    "explanations": 20_000,
}


@pytest.mark.skipif(not LONG, reason="the long form alone fuzzes: make test-engine")
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is missing: no wheel for this Python or system, or not installed",
)
@pytest.mark.parametrize("target", sorted(RUNS))
def test_fuzz(tally, tmp_path, target):
    command = [sys.executable, str(HERE / "fuzz_parsers.py"), target, str(tmp_path), f"-runs={RUNS[target]}", "-seed=7"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", cwd=tmp_path)
    completed, refused = map(int, (tmp_path / "counts").read_text().split())
    tally.count(PART, f"fuzzer: {target}", "completed", completed)
    tally.count(PART, f"fuzzer: {target}", "refused", refused)
    if done.returncode:
        tally.count(PART, f"fuzzer: {target}", "lost")
    assert done.returncode == 0, done.stderr[-4000:]
    assert completed + refused >= RUNS[target] // 2
