import sys

import llm_helpers
import pytest


@pytest.fixture(scope="session")
def era(project_root):
    """The overlay's era.py by its path: it needs only torch and the standard library, not verl."""
    return llm_helpers.load(project_root / "overlays/verl/verl/utils/era.py", "era_alone")


@pytest.fixture(scope="session")
def import_verl(patched_verl):
    """Makes `import verl` in this process the patched checkout."""
    sys.path.insert(0, str(patched_verl))
    yield
    sys.path.remove(str(patched_verl))
