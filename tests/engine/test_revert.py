"""revert: back to upstream byte for byte, and nothing of the user's is lost on the way."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
from kit import FIRST, content, git, hinted


def test_revert_and_apply_are_inverse(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    applied, refs = content(checkout), git(checkout, "for-each-ref")
    project.run("revert", "alpha")
    assert content(checkout) == {path: (path.endswith(".sh"), text.encode()) for path, text in FIRST.items()}
    assert git(checkout, "rev-parse", "HEAD") == project.ids["v1"] and git(checkout, "status", "--porcelain") == ""
    assert "nothing to revert" in project.run("revert", "alpha").out
    project.run("apply", "alpha", "--offline")
    assert content(checkout) == applied and git(checkout, "for-each-ref") == refs


def test_edits_are_refused_or_saved_as_a_patch(project, tmp_path):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "src/core.py").write_text("mine\n")
    (checkout / "README.md").unlink()
    (checkout / "notes.txt").write_text("untracked\n")
    (checkout / "run.sh").chmod(0o644)
    before = content(checkout)
    error = project.run("revert", "alpha", code=5).err
    assert "src/core.py" in error and "othing was changed" in error
    assert hinted(error)[0][:3] == ["revert", "alpha", "--keep-edits"]
    saved = tmp_path / "my edits.patch"
    saved.write_text("precious\n")
    assert "not overwritten" in project.run("revert", "alpha", "--keep-edits", str(saved), code=5).err
    assert saved.read_text() == "precious\n" and content(checkout) == before
    saved.unlink()
    out = project.run("revert", "alpha", "--keep-edits", str(saved)).out
    assert (checkout / "notes.txt").read_text() == "untracked\n" and project.state() == "clean"
    project.run("apply", "alpha")
    (said,) = re.findall(r"`(git .*?)`", out)  # the command that brings them back
    assert shlex.split(said) == ["git", "-C", str(checkout), "apply", str(saved)]
    subprocess.run(shlex.split(said), cwd="/", check=True)
    assert content(checkout) == before


def test_commits_are_kept_on_a_branch_of_their_own(project, tmp_path):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    git(checkout, "commit", "-q", "-am", "My work")
    mine = git(checkout, "rev-parse", "HEAD")
    assert mine[:12] in project.run("revert", "alpha", code=5).err
    project.run("revert", "alpha", "--keep-edits", str(tmp_path / "edits.patch"))
    assert git(checkout, "rev-parse", f"era-backup-{mine[:12]}") == mine
    assert b"+mine" in (tmp_path / "edits.patch").read_bytes() and project.state() == "clean"


def test_staged_content_that_is_not_in_the_file(project, tmp_path):
    project.run("apply", "alpha")
    target = project.checkout() / "README.md"
    target.write_text("staged\n")
    git(project.checkout(), "add", "README.md")
    target.write_text("in the file\n")
    assert "staged content" in project.run("revert", "alpha", "--keep-edits", str(tmp_path / "p"), code=5).err
    assert git(project.checkout(), "show", ":README.md") == "staged" and target.read_text() == "in the file\n"


@pytest.mark.parametrize("path", ["src/core.py", "src/era.py"])  # one that comes back at a revert, one that goes
def test_a_file_that_became_a_folder(project, tmp_path, path):
    project.run("apply", "alpha")
    target = project.checkout() / path
    target.unlink()
    target.mkdir()
    (target / "inside.txt").write_text("mine\n")
    error = project.run("revert", "alpha", "--keep-edits", str(tmp_path / "p"), code=5).err
    assert path in error and "othing was changed" in error and not (tmp_path / "p").exists()
    assert (target / "inside.txt").read_text() == "mine\n" and project.state() == "modified"


def test_a_folder_that_became_a_file(project, tmp_path):
    project.run("apply", "alpha")
    shutil.rmtree(project.checkout() / "src")
    (project.checkout() / "src").write_text("mine\n")
    assert "othing was changed" in project.run("revert", "alpha", "--keep-edits", str(tmp_path / "p"), code=5).err
    assert not (tmp_path / "p").exists() and (project.checkout() / "src").read_text() == "mine\n"


def test_keep_edits_without_an_overlay(project, tmp_path):
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    kept = tmp_path / "kept.patch"
    project.run("revert", "alpha", "--keep-edits", str(kept))
    (project.checkout() / "README.md").write_text("mine\n")
    assert "would save nothing of README.md" in project.run("revert", "alpha", "--keep-edits", str(kept), code=5).err
    assert not kept.exists() and (project.checkout() / "README.md").read_text() == "mine\n"
