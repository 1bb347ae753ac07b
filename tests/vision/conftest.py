# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The activation, and `import timm` from the patched checkout."""

import sys

import pytest

from era import discrete


@pytest.fixture(scope="session")
def era():
    return discrete


@pytest.fixture(scope="session")
def import_timm(patched_timm):
    """Makes `import timm` in this process the patched checkout."""
    sys.path.insert(0, str(patched_timm))
    yield
    sys.path.remove(str(patched_timm))
