# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""revert: back to upstream byte for byte, and nothing of the user's is lost on the way."""

from __future__ import annotations

import shutil

import pytest
from kit import FIRST, commit, content, follow, git, hinted, unchanged, write_tree


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


def edits(at) -> None:
    write_tree(at, {"src/core.py": "mine\n", "notes.txt": "untracked\n"})
    (at / "README.md").unlink()
    (at / "run.sh").chmod(0o644)


def commits_and_edits(at) -> None:
    write_tree(at, {"README.md": "mine\n"})
    commit(at, "My work")
    write_tree(at, {"src/util.py": "more = 1\n"})


def a_merge(at) -> None:
    git(at, "checkout", "-q", "-b", "side")
    write_tree(at, {"README.md": "mine\n"})
    commit(at, "Side")
    git(at, "checkout", "-q", "era")
    git(at, "merge", "-q", "--no-ff", "-m", "Merge", "side")


@pytest.mark.parametrize("prepare", [edits, commits_and_edits, a_merge])
def test_edits_and_commits_are_refused_or_kept_on_a_branch(project, prepare):
    project.run("apply", "alpha")
    checkout = project.checkout()
    prepare(checkout)
    before, head = content(checkout), git(checkout, "rev-parse", "HEAD")
    with unchanged(checkout):
        error = project.run("revert", "alpha", code=5).err
    assert ("src/core.py" if prepare is edits else head[:12]) in error
    assert hinted(error)[0][:3] == ["revert", "alpha", "--keep-edits"]
    out = project.run("revert", "alpha", "--keep-edits").out
    (name,) = saved(project)
    assert git(checkout, "rev-parse", f"{name}^") == head and project.state() == "clean"
    assert (checkout / "notes.txt").exists() == (prepare is edits)  # what is untracked stays
    project.run("apply", "alpha")
    follow(out)  # the command that brings them back
    assert content(checkout) == before


def test_what_is_only_staged_is_kept_below_the_edits(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    write_tree(checkout, {"src/era.py": "staged\n"})
    git(checkout, "add", "src/era.py")
    write_tree(checkout, {"src/era.py": "ERA = 1\n"})
    project.run("revert", "alpha", "--keep-edits")
    (name,) = saved(project)
    assert git(checkout, "show", f"{name}^:src/era.py") == "staged"


def test_upstream_is_no_work_of_the_users_however_many_edits_were_saved(project):
    """Upstream's commit is newer than ours here, and git's rev-list goes by dates."""
    for number in range(8):
        project.run("apply", "alpha")
        write_tree(project.checkout(), {"README.md": f"{number}\n"})
        project.run("revert", "alpha", "--keep-edits")
    project.run("apply", "alpha", "--version", "v2")
    assert len(saved(project)) == 8


@pytest.mark.parametrize(("path", "code"), [("src/core.py", 5), ("src/era.py", 0)])  # it comes back; it goes
def test_a_file_that_became_a_folder(project, path, code):
    project.run("apply", "alpha")
    (project.checkout() / path).unlink()
    write_tree(project.checkout() / path, {"inside.txt": "mine\n"})
    project.run("revert", "alpha", "--keep-edits", code=code)
    assert (project.checkout() / path / "inside.txt").read_text() == "mine\n"


def test_a_folder_that_became_a_file(project):
    project.run("apply", "alpha")
    shutil.rmtree(project.checkout() / "src")
    (project.checkout() / "src").write_text("mine\n")
    with unchanged(project.checkout()):
        assert "in the way: src" in project.run("revert", "alpha", "--keep-edits", code=5).err


def test_commits_on_the_branch_era_while_head_is_elsewhere(project):
    project.run("apply", "alpha")
    commit(project.checkout(), "Mine")
    git(project.checkout(), "checkout", "-q", "--detach", "era~1")
    with unchanged(project.checkout()):
        assert "the branch era is elsewhere" in project.run("revert", "alpha", code=3).err
