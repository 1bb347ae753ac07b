# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Fixtures: a project and a clone per test, and a git that reads no configuration of the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit import Project, git, make_template


@pytest.fixture(autouse=True)
def quiet_git(tmp_path, monkeypatch):
    """No test depends on the configuration of whoever runs it. pip looks into a folder instead of an index."""
    for key in list(os.environ):
        if key.startswith(("GIT_", "PIP_")):
            monkeypatch.delenv(key)
    values = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": 1, "HOME": tmp_path}
    values |= {"PIP_NO_INDEX": 1, "PIP_FIND_LINKS": tmp_path / "index", "PIP_CONFIG_FILE": os.devnull}
    for key, value in {**values, "XDG_CACHE_HOME": tmp_path / "xdg"}.items():
        monkeypatch.setenv(key, str(value))


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        return folder, make_template(folder)


@pytest.fixture
def project(tmp_path, template) -> Project:
    return Project(tmp_path, *template)


@pytest.fixture
def clone(project, tmp_path) -> Path:
    """A user's own clone of alpha, on the branch `mine` at the pinned commit."""
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project.up / "alpha"), str(folder))
    git(folder, "checkout", "-q", "-b", "mine", project.ids["v1"])
    return folder
