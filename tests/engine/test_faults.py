# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What goes wrong half-way: Ctrl-C, a full disk, a read-only folder, a lock. Kills are in test_kills.py."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from kit import before_git, content, git, git_state, interrupt

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small or read-only file system")


def stale(project) -> None:
    """An applied checkout with an edit and an untracked file, and a newer overlay."""
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    (project.checkout() / "notes.txt").write_text("mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n" * 5000)


def kept(project) -> bool:
    return all((project.checkout() / name).read_text() == "mine\n" for name in ("README.md", "notes.txt"))


# --- after a switch that was cut short ---


def test_status_says_interrupted_and_the_same_command_completes_it(project, monkeypatch):
    stale(project)
    interrupt(project, monkeypatch, "apply", "alpha")
    assert project.state() == "interrupted"
    for verb in ("export", "diff"):
        assert "apply.py apply alpha" in project.run(verb, "alpha", code=7).err
    assert "is back at" in project.run("apply", "alpha").out
    assert project.state() == "modified" and kept(project)
    assert (project.checkout() / "src/era.py").read_text().startswith("ERA = 2\n")


def test_what_somebody_wrote_since_is_saved_on_a_branch(project, monkeypatch):
    stale(project)
    interrupt(project, monkeypatch, "apply", "alpha")
    (project.checkout() / "src/era.py").write_text("ERA = mine\n")
    assert "on the branch era-saved/" in project.run("revert", "alpha", "--keep-edits").out
    checkout = project.checkout()
    saved = git(checkout, "for-each-ref", "--format=%(refname)", "refs/heads/era-saved").split()
    assert "ERA = mine" in [git(checkout, "show", f"{name}:src/era.py") for name in saved]
    assert project.state() == "clean" and (checkout / "notes.txt").exists()


def test_locks_of_a_git_that_was_killed(project, monkeypatch):
    stale(project)
    interrupt(project, monkeypatch, "apply", "alpha")
    for name in ("index.lock", "HEAD.lock", "refs/heads/era.lock", "refs/worktree/era-next.lock", "packed-refs.lock"):
        (project.checkout() / ".git" / name).write_text("")
    for name in ("refs/pins/x.lock", "shallow.lock"):
        (project.cache / "git/alpha.git" / name).write_text("")
    project.run("apply", "alpha")
    assert project.state() == "modified" and kept(project)
    (project.checkout() / ".git/shallow.lock").write_text("")  # of a fetch from the cache, before any switch
    project.run("apply", "alpha", "--version", "v2")


def test_a_lock_of_the_users_git_is_respected(project):
    stale(project)
    (project.checkout() / ".git/index.lock").write_text("")
    before = content(project.checkout())
    assert "index.lock" in project.run("apply", "alpha", code=5).err
    assert content(project.checkout()) == before and project.state() == "stale"


def test_the_middle_of_a_merge(project):
    stale(project)
    git_dir = project.checkout() / ".git"
    (git_dir / "MERGE_HEAD").write_text(project.ids["v1"] + "\n")
    before = git_state(project.checkout())
    for verb in ("apply", "revert", "export"):
        assert "MERGE_HEAD" in project.run(verb, "alpha", code=5).err
    assert git_state(project.checkout()) == before


# --- somebody else ---


def test_an_edit_that_is_saved_at_the_last_moment_is_kept(project, monkeypatch):
    stale(project)

    def save() -> None:
        (project.checkout() / "src/era.py").write_text("ERA = mine\n")

    with monkeypatch.context() as patch:
        real = project.engine.switch.carry_out
        patch.setattr(project.engine.switch, "carry_out", lambda *args, **more: (save(), real(*args, **more)))
        project.run("apply", "alpha", code=7)
    assert (project.checkout() / "src/era.py").read_text() == "ERA = mine\n"
    assert "on the branch era-saved/" in project.run("apply", "alpha").out
    assert project.state() == "modified" and kept(project)


def test_a_second_apply_waits(project):
    stale(project)
    with project.engine.session.locked(project.checkouts):
        process = project.start("apply", "alpha")
        assert b"waiting for another apply.py" in process.stdout.readline()
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0 and b"applied" in out


# --- Ctrl-C ---


def test_ctrl_c_before_the_switch_changes_nothing(project, monkeypatch):
    stale(project)
    before, state = content(project.checkout()), git_state(project.checkout())
    with monkeypatch.context() as patch:
        before_git(patch, "commit-tree", lambda: signal.raise_signal(signal.SIGINT))
        assert "stopped" in project.run("apply", "alpha", code=130).err
    assert content(project.checkout()) == before and git_state(project.checkout()) == state


def test_ctrl_c_during_the_switch_has_no_effect(project, monkeypatch):
    stale(project)
    with monkeypatch.context() as patch:
        real = project.engine.switch.carry_out
        patch.setattr(
            project.engine.switch,
            "carry_out",
            lambda *args, **more: (signal.raise_signal(signal.SIGINT), real(*args, **more)),
        )
        project.run("apply", "alpha")
    assert project.state() == "modified" and kept(project)


# --- file systems ---


@pytest.fixture
def mounted(tmp_path):
    """A small file system of its own, and how it is remounted."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", place])


@ROOT_ONLY
def test_a_full_disk(project, mounted):
    where, fill = ("--checkouts", str(mounted)), mounted / "fill"
    project.run("apply", "alpha", *where)
    checkout = mounted / "alpha"
    (checkout / "README.md").write_text("mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n" * 20000)
    with open(fill, "wb", buffering=0) as out, pytest.raises(OSError, match="space"):
        while True:
            out.write(b"\0" * 4096)
    assert "pace" in project.run("apply", "alpha", *where, code=5).err
    assert project.state("alpha", *where) == "stale" and (checkout / "README.md").read_text() == "mine\n"
    os.truncate(fill, fill.stat().st_size - 100_000)  # enough for the objects, too little for the file
    assert "completes it" in project.run("apply", "alpha", *where, code=7).err
    assert project.state("alpha", *where) == "interrupted"
    fill.unlink()
    project.run("apply", "alpha", *where)
    assert project.state("alpha", *where) == "modified" and (checkout / "README.md").read_text() == "mine\n"


@ROOT_ONLY
def test_a_read_only_folder(project, mounted):
    where = ("--checkouts", str(mounted))
    project.run("apply", "alpha", *where)
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    assert project.state("alpha", *where) == "applied"
    assert "already applied" in project.run("apply", "alpha", *where).out
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert project.state("alpha", *where) == "stale"
    before = content(mounted / "alpha")
    assert "ead-only" in project.run("apply", "alpha", *where, code=5).err
    assert "ead-only" in project.run("revert", "alpha", *where, code=None).err
    assert content(mounted / "alpha") == before
