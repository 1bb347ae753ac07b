"""What ends a run half-way: Ctrl-C, kills, a full disk, other programs. Nothing of the user's is lost, ever."""

from __future__ import annotations

import difflib
import fcntl
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kit import before_git, content, fail, follow, git, git_state, interrupt, unreachable, write_tree


def press_ctrl_c() -> None:
    """To this thread only: pytest may have others."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.fixture
def stale(project):
    """An applied checkout whose overlay has changed since."""
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    return project


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_before_the_switch_changes_nothing(project, monkeypatch):
    with monkeypatch.context() as patch:
        before_git(patch, project.cache / "git/alpha.git", "commit-tree", press_ctrl_c)
        assert project.run("apply", "alpha", code=130).err == "error: stopped; nothing was changed\n"
    assert not project.checkout().exists() and list((project.cache / "tmp").iterdir()) == []
    project.run("apply", "alpha")


@pytest.mark.parametrize("word", ["cat-file", "update-ref", "symbolic-ref"])
def test_ctrl_c_during_the_switch_waits_for_its_end(stale, monkeypatch, word):
    unreachable(stale, "beta")
    journal = stale.checkout() / ".git/era/journal.json"
    with monkeypatch.context() as patch:
        before_git(patch, stale.checkout() / ".git", word, lambda: journal.exists() and press_ctrl_c())
        stale.run("apply", code=6)  # the code of this run: beta was left out
    assert stale.state() == "applied"


def test_ctrl_c_after_an_earlier_switch_was_completed(stale, monkeypatch):
    interrupt(stale, monkeypatch, "apply", "alpha")
    with monkeypatch.context() as patch:
        before_git(patch, stale.cache / "git/alpha.git", "rev-parse", press_ctrl_c)
        (stale.root / "overlays/alpha/src/era.py").write_text("ERA = 3\n")
        assert "only an earlier apply is complete" in stale.run("apply", "alpha", code=7).err
    assert stale.state() == "stale"


def test_ctrl_c_during_an_export_of_two(project, monkeypatch):
    """All or nothing is not promised for two, but the words must be true."""
    project.run()
    for name in ("alpha", "beta"):
        write_tree(project.checkout(name), {"new.py": "NEW = 1\n"})
    with monkeypatch.context() as patch:
        before_git(patch, project.checkout("beta") / ".git", "ls-files", press_ctrl_c)
        found = project.run("export", code=None)
    written = [name for name in ("alpha", "beta") if (project.root / "overlays" / name / "new.py").exists()]
    assert (found.code, written) == (0, ["alpha", "beta"]) or (found.code, written) == (130, [])


def test_ctrl_c_while_waiting_or_downloading(project, tmp_path):
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    real = shutil.which("git")
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *" fetch "*) touch {tmp_path}/here; sleep 60;; *) exec {real} "$@";; esac\n'
    )
    fake.chmod(0o755)
    process = project.start("apply", "alpha", env={"PATH": f"{fake.parent}:{os.environ['PATH']}"})
    while not (tmp_path / "here").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=900)
    assert (process.returncode, err) == (130, b"error: stopped; nothing was changed\n")
    project.run("apply", "alpha")
    with open(project.checkouts / ".alpha.lock", "r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = project.start("apply", "alpha")
        assert b"waiting for another apply.py" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=900)
    assert (process.returncode, err) == (130, b"error: stopped; nothing was changed\n")


def test_ctrl_c_while_python_starts_and_ends(project, tmp_path):
    """In an import of the engine, and in what Python does after main()."""
    early = f"import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n{Path(difflib.__file__).read_text()}"
    write_tree(tmp_path, {"early/difflib.py": early})
    stopped = project.spawn("apply", "alpha", env={"PYTHONPATH": str(tmp_path / "early")}, code=130)
    assert stopped.err == "error: stopped; nothing was changed\n" and not project.checkout().exists()
    late = "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    write_tree(tmp_path, {"late/sitecustomize.py": late})
    late = project.spawn("apply", "alpha", env={"PYTHONPATH": str(tmp_path / "late")})
    assert late.err == "" and project.state() == "applied"


# --- a switch that was cut short -------------------------------------------------------------------------------------


def test_the_next_apply_completes_it(stale, monkeypatch):
    interrupt(stale, monkeypatch, "apply", "alpha")
    assert stale.state() == "interrupted"
    for verb in ("diff", "export"):
        assert "apply.py apply alpha" in stale.run(verb, "alpha", code=7).err
    assert "completed the apply that was cut short" in stale.run("apply", "alpha").out
    assert stale.state() == "applied"
    interrupt(stale, monkeypatch, "revert", "alpha")
    assert "completed the revert that was cut short" in stale.run("revert", "alpha").out
    assert stale.state() == "clean"


def test_commits_made_in_the_meantime(project, monkeypatch):
    """On the branch that was left, and on era: both are kept, by the commands that are shown."""
    project.run("apply", "alpha")
    checkout = project.checkout()
    for step, verb in enumerate(("revert", "apply")):
        if verb == "revert":
            project.run("revert", "alpha")
        (project.root / "overlays/alpha/src/era.py").write_text(f"ERA = {step + 5}\n")
        interrupt(project, monkeypatch, "apply", "alpha")
        (checkout / "README.md").write_text(f"mine, {step}\n")
        git(checkout, "commit", "-qm", "one", "README.md")
        mine = git(checkout, "rev-parse", "HEAD")
        error = project.run("apply", "alpha", code=7).err
        assert mine in error and git(checkout, "rev-parse", "HEAD") == mine
        follow(error)
        project.run("apply", "alpha")
        assert git(checkout, "rev-parse", "my-work") == mine
        assert (checkout / "README.md").read_text() == f"mine, {step}\n" and project.state() == "modified"
        git(checkout, "branch", "-q", "-D", "my-work")
        git(checkout, "checkout", "-q", "README.md")


@pytest.mark.parametrize("moment", ["cat-file", "for-each-ref"])
def test_a_file_that_is_saved_during_the_switch(stale, monkeypatch, moment):
    target, journal = stale.checkout() / "src/era.py", stale.checkout() / ".git/era/journal.json"
    with monkeypatch.context() as patch:
        act = lambda: journal.exists() and target.write_text("typed just now\n")  # noqa: E731
        before_git(patch, stale.checkout() / ".git", moment, act)
        error = stale.run("apply", "alpha", code=7).err
    assert "src/era.py" in error and target.read_text() == "typed just now\n" and stale.state() == "interrupted"
    for verb in ("apply", "revert"):
        stale.run(verb, "alpha", code=7)
    assert target.read_text() == "typed just now\n"
    target.rename(target.with_name("mine.py"))
    assert "completed the apply" in stale.run("apply", "alpha").out
    assert target.read_text() == "ERA = 2\n" and stale.state() == "applied"


def test_a_disk_that_is_full_before_the_switch(stale):
    """New contents are written beside their places first: nothing is replaced when one does not fit."""
    (stale.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n" * 50_000)
    before, state = content(stale.checkout()), git_state(stale.checkout())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # git's objects are compressed
    try:
        assert "too large" in stale.run("apply", "alpha", code=5).err
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(stale.checkout()) == before and git_state(stale.checkout()) == state and stale.state() == "stale"


def test_edits_that_were_saved_before_a_failure_are_named(project, monkeypatch, tmp_path):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    saved = tmp_path / "mine.patch"
    with monkeypatch.context() as patch:
        before_git(patch, project.checkout() / ".git", "-v", lambda: saved.exists() and fail())
        error = project.run("revert", "alpha", "--keep-edits", str(saved), code=5).err
    assert f"nothing was changed, except that your edits are saved in {saved}" in error
    assert project.state() == "modified"


@pytest.mark.slow
def test_signals_at_random_moments(project):
    """kill -9 leaves a state that the next apply completes; Ctrl-C all or nothing. proof/ does it call by call."""
    project.run()
    chance = random.Random(6)
    for turn in range(16):
        number = signal.SIGKILL if turn % 2 else signal.SIGINT
        for name in ("alpha", "beta"):
            write_tree(project.root / "overlays" / name, {"new.py": f"x = {turn}\n" * 1000})
        (project.checkout() / "README.md").write_text(f"mine, {turn}\n")
        process = project.start("apply", "--offline")
        time.sleep(chance.uniform(0.05, 0.6))
        process.send_signal(number)
        out, err = process.communicate(timeout=900)
        loading = process.returncode == -signal.SIGINT and b"import " in err  # its modules, before it handles Ctrl-C
        if number == signal.SIGINT and b"apply.py" in err and not loading:
            assert process.returncode in (0, 130) and b"Traceback" not in err, err
            expected = "applied" if process.returncode == 0 else "stale"
            assert project.state("beta") == expected, (out, err)
        project.run("apply", "--offline")  # waits for a git that outlived its parent
        assert project.state("beta") == "applied" and project.state() == "modified"
        assert (project.checkout() / "README.md").read_text() == f"mine, {turn}\n"
        assert (project.checkout() / "new.py").read_text() == f"x = {turn}\n" * 1000


# --- other programs --------------------------------------------------------------------------------------------------


def test_two_applies_at_once(project):
    both = [project.start("apply", "alpha") for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0 and b"Traceback" not in err
    assert project.state() == "applied"


def test_a_lock_that_is_held_for_long(project, monkeypatch):
    project.run("apply", "alpha")
    monkeypatch.setattr(project.engine.checkout, "LOCK_WAIT", 0.3)
    with open(project.checkouts / ".alpha.lock", "r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert "another apply.py" in project.run("apply", "alpha", code=7).err
    assert "nothing to do" in project.run("apply", "alpha").out  # the file alone, left by a dead process, is no lock


def test_export_waits_and_looks_afterwards(project):
    """A revert was running there: its tree does not mean that the overlay shall be emptied."""
    project.run("apply", "alpha")
    project.commit()
    before = content(project.root / "patches"), content(project.root / "overlays")
    lock = project.checkouts / ".alpha.lock"
    with open(lock, "r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = project.start("export", "alpha")
        assert b"waiting for another apply.py" in process.stdout.readline()
        lock.rename(lock.with_name("held"))  # this revert takes another lock
        project.run("revert", "alpha")
        lock.with_name("held").rename(lock)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 3 and b"no overlay is applied" in err
    assert (content(project.root / "patches"), content(project.root / "overlays")) == before


def test_a_git_that_is_running_in_a_checkout(stale):
    lock = stale.checkout() / ".git/index.lock"
    lock.write_text("")
    before = content(stale.checkout())
    assert "index.lock" in stale.run("apply", "alpha", code=5).err and content(stale.checkout()) == before
    lock.unlink()
    stale.run("apply", "alpha")


def test_temporary_folders_are_in_the_cache_and_swept(project):
    """Those of killed processes go; those of living ones, also in another container, and foreign ones stay."""
    place = project.cache / "tmp"
    dead = subprocess.Popen(["true"])
    dead.wait()
    left, live = place / f"era-index-{dead.pid}-abc", place / f"era-index-{os.getpid()}-abc"
    elsewhere, other = place / f"era-index-{dead.pid}-held", place / "notes"
    for folder in (left, live, elsewhere, other):
        write_tree(folder, {"index": "x"})
    handle = os.open(elsewhere, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    project.run("apply", "alpha")
    os.close(handle)
    assert {*place.iterdir()} == {live, elsewhere, other}
    project.run("status", "alpha")
    assert not elsewhere.exists()


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root ignores modes, no setpriv here")
def test_read_only_folders(project, tmp_path):
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    command = [sys.executable, str(project.root / "apply.py"), "apply", "alpha", "--cache", str(project.cache)]
    if os.geteuid() == 0:  # without CAP_DAC_OVERRIDE modes bind root too
        without = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}", *command]
    before, readonly = content(project.checkout()), tmp_path / "readonly"
    readonly.mkdir()
    folders = [readonly, project.checkout(), *(path for path in project.checkout().rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        for more in ([], ["--checkouts", str(readonly / "x")]):
            done = subprocess.run([*command, *more], capture_output=True, text=True)
            assert done.returncode == 5 and "Permission denied" in done.stderr and "Traceback" not in done.stderr
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert content(project.checkout()) == before and project.state() == "clean"
