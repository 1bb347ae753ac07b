import importlib.util
import sys

import pytest


@pytest.fixture(scope="session")
def era(project_root):
    """The overlay's era.py by its path: it needs torch and the standard library alone, not verl."""
    spec = importlib.util.spec_from_file_location("era_alone", project_root / "overlays/verl/verl/utils/era.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["era_alone"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def import_verl(patched_verl):
    """Makes `import verl` in this process the patched checkout."""
    sys.path.insert(0, str(patched_verl))
    yield
    sys.path.remove(str(patched_verl))
