import sys

import pytest

from tools.searches import overlay_file


@pytest.fixture(scope="session")
def era():
    """The overlay's era.py by its path: it needs only torch and the standard library, not verl."""
    return overlay_file.load("verl/verl/utils/era.py")


@pytest.fixture(scope="session")
def import_verl(patched_verl):
    """Makes `import verl` in this process the patched checkout."""
    sys.path.insert(0, str(patched_verl))
    yield
    sys.path.remove(str(patched_verl))
