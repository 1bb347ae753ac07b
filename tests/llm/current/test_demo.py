# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make demo VERL=0.9.1`: its settings are verl's, a few steps of both arms, reuse, and Ctrl-C in the middle."""

from pathlib import Path

import environment
import pytest

environment.require()

import demo_runs  # noqa: E402

from demo.llm import config  # noqa: E402

VERL = "0.9.1"


def test_the_settings_are_verls(compose, tmp_path):
    from verl.utils.config import validate_config

    from era.verl.launch import prepare

    odd = Path("/a b,c='d'{e}[f]")
    for arm, k in config.ARMS.items():
        overrides = config.overrides(config.Settings(verl=VERL), arm, odd, tmp_path, tmp_path)
        settings = compose(*(item for item in overrides if not item.startswith("hydra.")))
        era = prepare(settings)
        validate_config(settings, use_reference_policy=False, use_critic=False)
        assert (era.enable, era.low, era.k, settings.data.train_files) == (True, 0.66, k, f"{odd}/train.parquet")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return demo_runs.warm_up(VERL, environment.tree_of(VERL), tmp_path_factory.mktemp("odd = characters"))


@pytest.mark.slow
def test_demo_of_both_arms_and_its_reuse(out):
    tree = environment.tree_of(VERL)
    printed = demo_runs.run_both_arms(VERL, tree, out)
    demo_runs.check_both_arms_and_their_reuse(printed, VERL, tree, out)
