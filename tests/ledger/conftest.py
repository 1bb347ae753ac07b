# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's entries, and reproduce.py's places moved into a temporary folder."""

import pytest

import reproduce
from ledger import results, run
from ledger.paper import Paper, load


@pytest.fixture(scope="session")
def paper() -> Paper:
    return load()


@pytest.fixture
def places(tmp_path, monkeypatch):
    for module in (reproduce, results, run):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(reproduce, "COLLECTED", tmp_path / "results/collected.csv")
    monkeypatch.setattr(reproduce, "REPORT", tmp_path / "results/report")
    for name in ("RAY_DATA_HOME", "CHECKOUTS", "OUTPUT", "ARGS", "EVAL", "MODEL_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path
