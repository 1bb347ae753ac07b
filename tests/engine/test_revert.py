# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""revert: back to upstream byte for byte, and nothing of the user's is lost on the way."""

from __future__ import annotations

import re
import shutil

import pytest
from kit import FIRST, content, follow, git, hinted


def saved(project) -> list[str]:
    return git(project.checkout(), "for-each-ref", "--format=%(refname:short)", "refs/heads/era-saved").split()


def test_revert_and_apply_are_inverse(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    applied, refs = content(checkout), git(checkout, "for-each-ref")
    assert f"back on upstream {project.ids['v1'][:12]} (git)" in project.run("revert", "alpha").out
    assert content(checkout) == {path: (path.endswith(".sh"), text.encode()) for path, text in FIRST.items()}
    assert git(checkout, "rev-parse", "HEAD") == project.ids["v1"] and git(checkout, "status", "--porcelain") == ""
    assert "nothing to revert" in project.run("revert", "alpha").out
    project.run("apply", "alpha", "--offline")
    assert content(checkout) == applied and git(checkout, "for-each-ref") == refs


def test_edits_are_refused_or_kept_on_a_branch(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "src/core.py").write_text("mine\n")
    (checkout / "README.md").unlink()
    (checkout / "notes.txt").write_text("untracked\n")
    (checkout / "run.sh").chmod(0o644)
    before = content(checkout)
    error = project.run("revert", "alpha", code=5).err
    assert "src/core.py" in error and hinted(error)[0][:3] == ["revert", "alpha", "--keep-edits"]
    assert content(checkout) == before
    out = project.run("revert", "alpha", "--keep-edits").out
    assert (checkout / "notes.txt").read_text() == "untracked\n" and project.state() == "clean"
    project.run("apply", "alpha")
    follow(out)  # the command that brings them back
    assert content(checkout) == before


def test_commits_are_kept_on_that_branch_too(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    git(checkout, "commit", "-q", "-am", "My work")
    mine = git(checkout, "rev-parse", "HEAD")
    (checkout / "src/util.py").write_text("more = 1\n")
    before = content(checkout)
    assert mine[:12] in project.run("revert", "alpha", code=5).err
    out = project.run("revert", "alpha", "--keep-edits").out
    (name,) = saved(project)
    assert git(checkout, "rev-parse", f"{name}^") == mine and project.state() == "clean"
    project.run("apply", "alpha")
    follow(out)
    assert content(checkout) == before


@pytest.mark.parametrize("path", ["src/core.py", "src/era.py"])  # one that comes back at a revert, one that goes
def test_a_file_that_became_a_folder(project, path):
    project.run("apply", "alpha")
    target = project.checkout() / path
    target.unlink()
    target.mkdir()
    (target / "inside.txt").write_text("mine\n")
    project.run("revert", "alpha", "--keep-edits", code=5 if path == "src/core.py" else 0)
    assert (target / "inside.txt").read_text() == "mine\n"


def test_a_folder_that_became_a_file(project):
    project.run("apply", "alpha")
    shutil.rmtree(project.checkout() / "src")
    (project.checkout() / "src").write_text("mine\n")
    assert "in the way: src" in project.run("revert", "alpha", "--keep-edits", code=5).err
    assert (project.checkout() / "src").read_text() == "mine\n" and saved(project) == []


def test_a_checkout_on_another_branch_is_left_alone(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "checkout", "-q", "-b", "mine")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "Mine")
    git(checkout, "checkout", "-q", "--orphan", "other")
    git(checkout, "commit", "-q", "-m", "Other")
    before = content(checkout)
    error = project.run("revert", "alpha", code=3).err
    assert re.search(r"HEAD is [0-9a-f]{40}", error) and content(checkout) == before


def test_a_link_where_a_new_folder_comes(project, tmp_path):
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    (project.checkout() / "tools").symlink_to(tmp_path)
    assert "edits are in the way: tools\n" in project.run("apply", "alpha", code=5).err


def test_a_link_to_an_empty_folder_in_the_place_of_a_checkout(project, tmp_path):
    (tmp_path / "empty").mkdir()
    project.checkouts.mkdir()
    project.checkout().symlink_to(tmp_path / "empty")
    assert "move it away" in project.run("apply", "alpha", code=3).err


def test_saved_commits_with_a_merge_come_back_as_printed(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "checkout", "-q", "-b", "side")
    (checkout / "README.md").write_text("mine\n")
    git(checkout, "commit", "-q", "-a", "-m", "Side")
    side = git(checkout, "rev-parse", "HEAD")
    git(checkout, "checkout", "-q", "era")
    git(checkout, "merge", "-q", "--no-ff", "-m", "Merge", "side")
    merge = git(checkout, "rev-parse", "HEAD")
    error = project.run("export", "alpha", code=5).err
    assert merge in error and side not in error
    out = project.run("revert", "alpha", "--keep-edits").out
    follow(out)
    assert (checkout / "README.md").read_text() == "mine\n"


def test_commits_on_a_branch_of_mine(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "checkout", "-q", "-b", "mine")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "Mine")
    error = project.run("apply", "alpha", "--version", "v2", code=5).err
    assert "the branch mine holds commits" in error
    follow(error)
    project.run("apply", "alpha", "--version", "v2")
    assert git(checkout, "log", "-1", "--format=%s", "mine") == "Mine"
