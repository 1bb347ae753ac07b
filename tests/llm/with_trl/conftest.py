# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import tempfile

import pytest


@pytest.fixture(scope="session", autouse=True)
def temporary_folders(tmp_path_factory):
    """What these tests make with tempfile is removed after them: their models would fill /tmp run by run."""
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        tempfile.tempdir = folder
        yield
        tempfile.tempdir = None
