"""The timm overlay's activation by path, and `import timm` from the patched checkout; the recipe's modules."""

import importlib
import importlib.util
import sys
from types import SimpleNamespace

import pytest

MODULES = ("runs", "results", "preflight", "launch")


@pytest.fixture(scope="session")
def era(project_root):
    """The overlay's timm/layers/era.py by its path: it needs torch and the standard library alone, not timm."""
    spec = importlib.util.spec_from_file_location("timm_era_alone", project_root / "overlays/timm/timm/layers/era.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["timm_era_alone"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def import_timm(patched_timm):
    """Makes `import timm` in this process the patched checkout."""
    sys.path.insert(0, str(patched_timm))
    yield
    sys.path.remove(str(patched_timm))


@pytest.fixture(scope="session")
def recipe(project_root):
    """runs, results, preflight and launch of recipes/era, which import each other by these names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(project_root / "overlays/timm/recipes/era")
        modules = SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]
    return modules
