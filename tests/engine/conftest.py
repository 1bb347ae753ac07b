# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Fixtures: a project and a clone per test, and a git that reads no configuration of the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit import Project, git, make_project, make_template


@pytest.fixture(autouse=True)
def quiet_git(tmp_path, monkeypatch):
    """No test depends on the configuration of whoever runs it."""
    for key in list(os.environ):
        if key.startswith("GIT_"):
            monkeypatch.delenv(key)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        ids = make_template(folder)
    return folder, ids


@pytest.fixture
def project(tmp_path, template) -> Project:
    return make_project(tmp_path, template)


@pytest.fixture
def clone(project, tmp_path) -> Path:
    """A user's own clone of alpha, on the branch `mine` at the pinned commit."""
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project.up / "alpha"), str(folder))
    git(folder, "checkout", "-q", "-b", "mine", project.ids["v1"])
    return folder


@pytest.fixture(scope="module")
def any_project(template, tmp_path_factory) -> Project:
    """One project for all examples of a property; they put it back to its commit `first`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        made = make_project(tmp_path_factory.mktemp("any"), template)
        made.run("fetch")
        made.commit()
        git(made.root, "tag", "first")
        yield made
