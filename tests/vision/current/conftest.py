"""era.timm with an installed timm: `make test-timm`, or PYTHONPATH=the folder of an unpacked source package."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # `import era`, as its users do


@pytest.fixture(scope="session")
def import_timm():
    """Nothing to do: `import timm` finds the installed one."""
