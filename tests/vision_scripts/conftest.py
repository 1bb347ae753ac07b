"""The recipe's modules."""

import importlib
import sys
from types import SimpleNamespace

import pytest

MODULES = ("runs", "results", "preflight", "launch")


@pytest.fixture(scope="session")
def recipe(project_root):
    """runs, results, preflight and launch of recipes/era, which import each other by these names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(project_root / "overlays/timm/recipes/era")
        modules = SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]
    return modules
