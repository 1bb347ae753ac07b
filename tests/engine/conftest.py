"""Fixtures: a project and a clone per test, and a git that reads no configuration of the user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from kit import SDIST_ONLY, Project, git, make_template


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


def make_project(tmp_path: Path, template) -> Project:
    folder, ids = template
    shutil.copytree(folder / "project", tmp_path / "project")
    for part in ("up", "index"):
        shutil.copytree(folder / part, tmp_path / part)
    sdist = {
        "project": "alpha",
        "version": "1.0",
        "sha256": ids["sha256"],
        "lacks": ["extra/"],
        "adds": list(SDIST_ONLY),
    }
    made = Project(
        tmp_path / "project",
        {
            "alpha": {
                "git": f"file://{tmp_path}/up/alpha",
                "license": "Apache-2.0",
                "default": "v1",
                "versions": {
                    "v1": {"tag": "v1", "commit": ids["v1"], "sdist": sdist},
                    "v2": {"tag": "v2", "commit": ids["v2"]},
                },
            },
            "beta": {
                "git": f"file://{tmp_path}/up/beta",
                "license": "MIT",
                "default": "b1",
                "versions": {"b1": {"commit": ids["beta"]}},
            },
        },
    )
    made.ids = ids
    made.index = tmp_path / "index"
    made.up = tmp_path / "up"
    # pip looks into a folder instead of an index, and builds without fetching anything.
    made.env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(made.index), "PIP_CONFIG_FILE": os.devnull}
    return made


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
