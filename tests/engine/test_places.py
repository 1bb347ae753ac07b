"""What the proof of the places (proof/test_proof_places.py) found, each as one short case."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kit import FIRST, content, git, git_state


def test_an_overlay_file_with_the_longest_name(project):
    name = "n" * 252 + ".py"
    (project.root / "overlays/alpha" / name).write_text("long = 1\n")
    project.run("apply", "alpha")
    applied = content(project.checkout())
    project.run("revert", "alpha")
    assert set(content(project.checkout())) == set(FIRST)
    project.run("apply", "alpha")
    assert content(project.checkout()) == applied and name in applied


@pytest.mark.parametrize(
    "head", ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "rebase-merge/onto", "rebase-apply/next"]
)
def test_in_the_middle_of_something(project, clone, head):
    """What the user does next would go onto our branch, as with `git switch`, which refuses too."""
    target = clone / ".git" / head
    target.parent.mkdir(exist_ok=True)
    target.write_text(project.ids["v2"] + "\n")
    before = sorted((clone / ".git").rglob("*"))
    error = project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert "is in the middle of a " in error and "Nothing was changed" in error
    assert sorted((clone / ".git").rglob("*")) == before
    target.unlink()
    if target.parent != clone / ".git":
        target.parent.rmdir()
    project.run("apply", "alpha", "--checkout", str(clone))


def test_a_lock_of_git_is_seen_before_anything_is_brought(project, clone):
    (clone / ".git/index.lock").write_bytes(b"")
    before = sorted((clone / ".git").rglob("*"))
    assert "index.lock exists" in project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert sorted((clone / ".git").rglob("*")) == before


def test_index_flags_of_patched_files_stay(project, clone):
    git(clone, "update-index", "--assume-unchanged", "src/core.py", "README.md")
    git(clone, "update-index", "--skip-worktree", "src/core.py", "src/util.py")
    before = git_state(clone)
    project.run("apply", "alpha", "--checkout", str(clone))
    flags = [
        line.split()[0] for line in git(clone, "ls-files", "-v", "README.md", "src/core.py", "src/util.py").splitlines()
    ]
    assert flags == ["h", "s", "S"]
    project.run("revert", "alpha", "--checkout", str(clone))
    assert git_state(clone) == before


@pytest.mark.parametrize("mode", [0o777, 0o666])
def test_a_project_where_no_exec_bits_are_kept(project, tmp_path, mode):
    """Windows drives in WSL show all files as executable; an archive unpacked without modes none."""
    project.run("apply", "alpha")
    for path in project.root.rglob("*"):
        if path.is_file() and not path.is_relative_to(project.checkouts):
            path.chmod(mode)
    assert project.state() == "applied"
    project.run("apply", "alpha", "--checkouts", str(tmp_path / "other"))
    assert git(tmp_path / "other/alpha", "rev-parse", "era") == git(project.checkout(), "rev-parse", "era")


def test_an_edit_where_no_exec_bits_are_kept(project, tmp_path):
    """Neither export nor --keep-edits may take the mode that such a file system shows for a change of the mode."""
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "config", "core.fileMode", "false")
    for path, text in {"README.md": "# mine\n", "new.txt": "new\n", "new.sh": "#!/bin/sh\n"}.items():
        (checkout / path).write_text(text)
        (checkout / path).chmod(0o755)
    assert "mode" not in project.run("diff", "alpha", "--local", "README.md").out
    project.run("export", "alpha")
    assert "mode" not in project.patch(3).read_text()
    modes = {name: (project.root / "overlays/alpha" / name).stat().st_mode & 0o111 for name in ("new.txt", "new.sh")}
    assert modes == {"new.txt": 0, "new.sh": 0o111}
    project.run("apply", "alpha")
    (checkout / "README.md").write_text("# mine again\n")
    project.run("revert", "alpha", "--keep-edits", str(tmp_path / "saved.patch"))
    assert "mode" not in (tmp_path / "saved.patch").read_text()


def test_a_user_without_a_home(project, monkeypatch, capsys):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    assert project.engine.cli.main(["status"]) == 2
    assert "--cache DIR" in capsys.readouterr().err


def test_a_relative_home(project, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "home")
    monkeypatch.chdir(tmp_path)
    project.with_cache = list
    project.run("apply", "alpha")
    cache = "Library/Caches" if sys.platform == "darwin" else ".cache"
    assert (tmp_path / "home" / cache / "era-overlays/git/alpha.git/HEAD").is_file()


def test_names_read_the_same_in_every_locale(project):
    (project.root / "overlays/alpha/\u00fcber.py").write_text("u = 1\n")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    project.spawn("apply", "alpha", env=ascii_only)
    assert project.state() == "applied" and (project.checkout() / "\u00fcber.py").is_file()
    project.spawn("status", "alpha", env=ascii_only)


def test_the_configuration_in_the_home_folder_is_not_read(project, tmp_path):
    """git before 2.32 does not know GIT_CONFIG_GLOBAL."""
    project.run("apply", "alpha")
    before = project.run("diff", "alpha").raw
    (tmp_path / ".gitconfig").write_text("[diff]\n\tcontext = 0\n")
    assert project.run("diff", "alpha").raw == before
