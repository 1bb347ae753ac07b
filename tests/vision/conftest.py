"""The activation, `import timm` from the patched checkout, the recipe's modules and launcher."""

import os
import subprocess
import sys

import pytest
from helpers import importable

from era import discrete

SETTINGS = ("GPUS", "DATA_DIR", "OUTPUT", "SEED", "H0", "AUG", "NUM_CLASSES", "EPOCHS", "DOWNLOAD", "PYTHON")
MODES = ("DRY_RUN", "CHECK_ONLY", "ENVIRONMENT_TO_COME")


@pytest.fixture(scope="session")
def era():
    return discrete


@pytest.fixture(scope="session")
def import_timm(patched_timm):
    """Makes `import timm` in this process the patched checkout."""
    sys.path.insert(0, str(patched_timm))
    yield
    sys.path.remove(str(patched_timm))


@pytest.fixture(scope="session")
def recipe(patched_timm):
    """The modules of recipes/era, which import each other by these names."""
    with importable(patched_timm / "recipes/era", "launching", "runs", "results", "preflight", "launch") as found:
        return found


@pytest.fixture
def launch(patched_timm):
    """launch(experiment, flags..., VARIABLE=...): the launcher of the checkout, or of `checkout`."""

    def run(*args, checkout=patched_timm, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS + MODES}
        command = [sys.executable, checkout / "recipes/era/launch.py", *args]
        return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=900)

    return run
