# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # `import era`, as its users do


@pytest.fixture(scope="session", autouse=True)
def temporary_folders(tmp_path_factory):
    """What these tests make with tempfile is removed after them: their models would fill /tmp run by run."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        tempfile.tempdir = folder
        yield
        tempfile.tempdir = None
