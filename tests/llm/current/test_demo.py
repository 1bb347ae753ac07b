# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make demo VERL=0.9.1`: its settings are verl's, a few steps of both arms, reuse, and Ctrl-C in the middle."""

import json
import signal
from pathlib import Path

import environment
import pytest

environment.require()

import demo_runs  # noqa: E402

from demo.llm import config  # noqa: E402

VERL = "0.9.1"
COMPOSE = """
import json, sys
from hydra import compose, initialize_config_module
from verl.utils.config import validate_config
from era.verl.launch import prepare
for overrides in json.loads(sys.argv[1]):
    overrides = [each for each in overrides if not each.startswith("hydra.")]
    with initialize_config_module("verl.trainer.config", version_base=None):
        settings = compose("era_ppo_trainer", overrides)
    era = prepare(settings)
    validate_config(settings, use_reference_policy=False, use_critic=False)
    print("ANSWER", json.dumps([era.enable, era.low, era.k, settings.data.train_files]))
"""


def test_the_settings_are_verls(tmp_path):
    odd = Path("/a b,c='d'{e}[f]")
    arms = [config.overrides(config.Settings(verl=VERL), arm, odd, tmp_path, tmp_path) for arm in config.ARMS]
    result = environment.run(["-c", COMPOSE], json.dumps(arms), verl=environment.tree_of(VERL))
    assert result.returncode == 0, result.stderr[-3000:]
    answers = [line.removeprefix("ANSWER ") for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    assert [json.loads(answer) for answer in answers] == [[True, 0.66, k, f"{odd}/train.parquet"] for k in (1.0, 2.0)]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return demo_runs.warm_up(VERL, environment.tree_of(VERL), tmp_path_factory.mktemp("odd = characters"))


@pytest.mark.slow
def test_demo_of_both_arms_and_its_reuse(out):
    tree = environment.tree_of(VERL)
    printed = demo_runs.run_both_arms(VERL, tree, out)
    demo_runs.check_both_arms_and_their_reuse(printed, VERL, tree, out)


@pytest.mark.slow
def test_stopping_the_demo_leaves_no_process(out, tmp_path):
    demo_runs.stopped(signal.SIGINT, "ray::WorkerDict", VERL, environment.tree_of(VERL), out, str(tmp_path))
