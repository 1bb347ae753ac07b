# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import sys

import pytest

from era import language


@pytest.fixture(scope="session")
def era():
    return language


@pytest.fixture(scope="session")
def import_verl(patched_verl):
    """Makes `import verl` in this process the patched checkout."""
    sys.path.insert(0, str(patched_verl))
    yield
    sys.path.remove(str(patched_verl))


@pytest.fixture
def config_of(patched_verl, monkeypatch):
    """config_of(*overrides): the configuration of the patched checkout."""
    from hydra import compose, initialize_config_dir

    monkeypatch.chdir(patched_verl)  # verl's recipes find its configuration relative to the checkout

    def read(*overrides):
        with initialize_config_dir(str(patched_verl / "verl/trainer/config"), version_base=None):
            return compose("ppo_trainer", overrides=list(overrides))

    return read
