# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import os
import sys

import pytest


@pytest.fixture(scope="session")
def verl():
    """Makes `import verl` in this process verl 0.9.1 on a CPU."""
    import environment

    sys.path.insert(0, str(environment.tree_of("0.9.1")))
    from demo.llm.verl_0_9 import cpu

    os.environ.update(cpu.ENVIRONMENT)


@pytest.fixture(scope="session")
def compose(verl):
    """compose(*overrides): verl's whole configuration, with ERA's group unless name="ppo_trainer"."""
    import hydra

    import era.verl.launch  # noqa: F401 - registers it

    def make(*overrides, name="era_ppo_trainer"):
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            return hydra.compose(name, list(overrides))

    return make
