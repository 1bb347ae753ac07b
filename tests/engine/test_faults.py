# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What goes wrong half-way: Ctrl-C, a full disk, a lock. Kills are in test_kills.py."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess

import pytest
from kit import git, unchanged, write_tree


def stale(project) -> None:
    """An applied checkout with an edit and an untracked file, and a newer overlay."""
    project.run("apply", "alpha")
    write_tree(project.checkout(), {"README.md": "mine\n", "notes.txt": "mine\n"})
    project.set_era("ERA = 2\n" * 5000)


def kept(project) -> bool:
    return all((project.checkout() / name).read_text() == "mine\n" for name in ("README.md", "notes.txt"))


def before(patch, module, name: str, act) -> None:
    """While `patch` lasts, `act()` is called before a function of the engine."""
    real = getattr(module, name)
    patch.setattr(module, name, lambda *args, **more: (act(), real(*args, **more))[1])


def interrupt(project, monkeypatch, *args: str) -> None:
    """A run that fails in the middle of its switch: the files are changed, HEAD is not."""
    with monkeypatch.context() as patch:
        real = project.engine.switch.change_files

        def change_and_fail(git, switch, *more) -> None:
            real(git, switch, *more)
            if not more:  # not the dry run
                raise OSError(28, "No space left on device")

        patch.setattr(project.engine.switch, "change_files", change_and_fail)
        assert "completes it" in project.run(*args, code=7).err


# --- after a switch that was cut short ---


def test_status_says_interrupted_and_the_same_command_completes_it(project, monkeypatch):
    """The locks of a git that was killed do not get in the way."""
    stale(project)
    interrupt(project, monkeypatch, "apply", "alpha")
    assert project.state() == "interrupted"
    for verb in ("export", "diff"):
        assert "apply.py apply alpha" in project.run(verb, "alpha", code=7).err
    for name in ("index.lock", "HEAD.lock", "refs/heads/era.lock", "refs/worktree/era-next.lock", "packed-refs.lock"):
        (project.checkout() / ".git" / name).write_text("")
    for name in ("refs/pins/x.lock", "shallow.lock"):
        (project.cache / "git/alpha.git" / name).write_text("")
    assert "is back at" in project.run("apply", "alpha").out
    assert project.state() == "modified" and kept(project)
    assert (project.checkout() / "src/era.py").read_text().startswith("ERA = 2\n")
    (project.checkout() / ".git/shallow.lock").write_text("")  # of a fetch from the cache, before any switch
    project.run("apply", "alpha", "--version", "v2")


def test_a_switch_without_any_file_is_completed_too(project, monkeypatch):
    shutil.rmtree(project.root / "patches/beta")
    write_tree(project.root, {"patches/beta/b1/series": ""})
    project.run("apply", "beta")
    project.run("revert", "beta")
    interrupt(project, monkeypatch, "apply", "beta")
    assert project.state("beta") == "interrupted"
    assert "had been cut short" in project.run("apply", "beta").out
    assert project.state("beta") == "applied"


def test_what_somebody_wrote_since_is_saved_on_a_branch(project, monkeypatch):
    stale(project)
    interrupt(project, monkeypatch, "apply", "alpha")
    write_tree(project.checkout(), {"src/era.py": "ERA = mine\n"})
    assert "on the branch era-saved/" in project.run("revert", "alpha", "--keep-edits").out
    checkout = project.checkout()
    saved = git(checkout, "for-each-ref", "--format=%(refname)", "refs/heads/era-saved").split()
    assert "ERA = mine" in [git(checkout, "show", f"{name}:src/era.py") for name in saved]
    assert project.state() == "clean" and (checkout / "notes.txt").exists()


@pytest.mark.parametrize("second", ["apply", "revert"])
@pytest.mark.parametrize("first", ["apply", "revert"])
def test_next_run_removes_refs_of_one_that_was_cut_short(project, monkeypatch, first, second):
    """Whatever the next run is, and before whichever of its refs the first one ended."""
    project.run("apply", "alpha")
    if first == "apply":
        project.run("revert", "alpha")
    project.set_era("ERA = 2\n")
    shutil.copytree(project.checkouts, project.root / "kept")
    engine, checkout = project.engine, project.checkout()
    for number in range(5):
        orders = itertools.count()

        def run(git, *words, real=engine.git.Git.run, orders=orders, last=number, **more):
            order = engine.session.SESSION.begun and words[0] in ("update-ref", "symbolic-ref")
            if order and next(orders) == last:
                raise OSError(28, "No space left on device")
            return real(git, *words, **more)

        with monkeypatch.context() as patch:
            patch.setattr(engine.git.Git, "run", run)
            project.run(first, "alpha", code=None)
        project.run(second, "alpha")
        assert len(git(checkout, "for-each-ref", "refs/worktree").splitlines()) == 1
        branches = git(checkout, "for-each-ref", "--format=%(refname)", "refs/heads").splitlines()
        assert branches == (["refs/heads/era"] if second == "apply" else [])
        assert project.state() == ("applied" if second == "apply" else "clean")
        shutil.rmtree(project.checkouts)
        shutil.copytree(project.root / "kept", project.checkouts)


# --- somebody else ---


@pytest.mark.parametrize(("file", "advice"), [("index.lock", "wait for the git"), ("MERGE_HEAD", "how to finish it")])
def test_a_git_of_the_users_at_work(project, file, advice):
    stale(project)
    (project.checkout() / ".git" / file).write_text(project.ids["v1"] + "\n")
    with unchanged(project.checkout()):
        for verb in ("apply", "revert", "export"):
            error = project.run(verb, "alpha", code=5).err
            assert f"there is a {file}" in error and advice in error


def test_an_edit_that_is_saved_at_the_last_moment_is_kept(project, monkeypatch):
    stale(project)
    era = project.checkout() / "src/era.py"
    with monkeypatch.context() as patch:
        before(patch, project.engine.switch, "carry_out", lambda: era.write_text("ERA = mine\n"))
        project.run("apply", "alpha", code=7)
    assert era.read_text() == "ERA = mine\n"
    assert "on the branch era-saved/" in project.run("apply", "alpha").out
    assert project.state() == "modified" and kept(project)


def test_a_second_apply_waits(project):
    stale(project)
    with project.engine.session.locked(project.checkouts):
        process = project.start("apply", "alpha")
        assert b"waiting for another apply.py" in process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0 and b"applied" in out


# --- Ctrl-C, and a full disk ---


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_before_the_switch_and_during_it(project, monkeypatch):
    stale(project)
    with monkeypatch.context() as patch, unchanged(project.checkout()):
        before(patch, project.engine.verbs, "build", ctrl_c)
        assert "stopped" in project.run("apply", "alpha", code=130).err
    with monkeypatch.context() as patch:
        before(patch, project.engine.switch, "carry_out", ctrl_c)
        project.run("apply", "alpha")
    assert project.state() == "modified" and kept(project)


def test_a_disk_that_is_full_before_the_switch(project, monkeypatch, tmp_path):
    """As git says it, also where its failure would be an answer. One that is full during the switch: `interrupt`."""
    stale(project)
    write_tree(tmp_path, {"bin/git": "#!/bin/sh\necho 'fatal: write error: No space left on device' >&2\nexit 128\n"})
    (tmp_path / "bin/git").chmod(0o755)
    with unchanged(project.checkout()), monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        error = project.run("apply", "alpha", code=5).err
    assert "No space left on device" in error and "check permissions and space there" in error
