# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era.verl in verl 0.9.1 with its rollout servers of vLLM, which get the weights through shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="this needs the environment of make rehearse-vllm")
pytestmark = pytest.mark.rehearsal
# All entropies are below these bounds.
ERA = [f"actor_rollout_ref.actor.era.{setting}" for setting in ("enable=True", "low=8.0", "high=9.0")]


def test_era_with_vllm_rollouts(tmp_path, say):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VERL_FILE_LOGGER_PATH": str(tmp_path / "log.jsonl")}
    command = [sys.executable, "-W", "ignore", Path(__file__).with_name("verl_run.py"), tmp_path, *ERA]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=3600)
    assert result.returncode == 0, result.stdout[-10000:] + result.stderr[-10000:]
    steps = [json.loads(line)["data"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    found = [step["training/rollout_probs_diff_max"] for step in steps]
    scaled = [step["era/scaled_token_fraction"] for step in steps]
    say(f"verl: probabilities of vLLM's servers differ from the actor's by at most {found}; scaled {scaled}")
    # A probability is about 1 in 50, and each update changes it by some percent.
    assert len(steps) == 3 and max(found) < 1e-6
    assert all(step["era/low_fraction"] == 1 for step in steps) and min(scaled) > 0
