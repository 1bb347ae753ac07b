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
