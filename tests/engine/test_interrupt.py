"""Ctrl-C and kill -9 at random moments of the whole process, and Ctrl-C at moments that only Python has.

Both at every system call that changes something are in proof/test_proof_faults.py.
"""

from __future__ import annotations

import difflib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def test_real_signals_at_random_moments(project):
    """From the first line of apply.py to its last: no traceback, and no death by the signal."""
    project.run("apply", "alpha")
    for at in range(30):
        revert = project.state() == "applied"
        before = project.state()
        process = project.start("revert" if revert else "apply", "alpha", "--offline")
        time.sleep(0.04 + at * 0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        if process.returncode in (-2, 1) and b"apply.py" not in err:
            continue  # Python itself was still starting
        assert b"Traceback" not in err, err
        assert process.returncode in (0, 130), err
        assert (project.state() == before) == (process.returncode == 130), (out, err)


def test_real_kills_at_random_moments(project):
    project.run()
    chance = random.Random(6)
    for turn in range(8):
        for name in ("alpha", "beta"):
            (project.root / "overlays" / name).mkdir(exist_ok=True)
            (project.root / "overlays" / name / "new.py").write_text(f"x = {turn}\n" * 1000)
        (project.checkout() / "README.md").write_text(f"mine, {turn}\n")
        process = project.start("apply", "--offline")
        time.sleep(chance.uniform(0.05, 0.45))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert project.state() in ("stale", "interrupted", "applied", "modified")
        project.run("apply", "--offline")  # waits for a git that outlived its parent
        assert project.state("beta") == "applied" and project.state() == "modified"
        assert (project.checkout() / "README.md").read_text() == f"mine, {turn}\n"
        assert (project.checkout() / "new.py").read_text() == f"x = {turn}\n" * 1000


def test_a_signal_while_the_rooms_are_loaded_or_left(project, tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    (folder / "difflib.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n" + Path(difflib.__file__).read_text()
    )
    early = project.spawn("apply", "alpha", env={"PYTHONPATH": str(folder)}, code=130)
    assert "stopped; nothing was changed" in early.err and not project.checkout().exists()
    (folder / "difflib.py").unlink()
    (folder / "sitecustomize.py").write_text(
        "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )
    late = project.spawn("apply", "alpha", env={"PYTHONPATH": str(folder)})
    assert late.err == "" and project.state() == "applied"


def test_a_signal_in_a_destructor_is_not_lost(project, tmp_path):
    """Python can only print what is raised there; subprocess.Popen has one, so Ctrl-C may land in it at any git command."""
    folder = tmp_path / "destructor"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, signal, subprocess\n"
        "real, left = subprocess.Popen.__del__, [2]\n"
        "def end(self, *args):\n"
        "    real(self, *args)\n"
        "    left[0] -= 1\n"
        "    left[0] or os.kill(os.getpid(), signal.SIGINT)\n"
        "subprocess.Popen.__del__ = end\n"
    )
    stopped = project.spawn("apply", "alpha", env={"PYTHONPATH": str(folder)}, code=130)
    assert "Exception ignored" not in stopped.err and "stopped; nothing was changed" in stopped.err
    assert not project.checkout().exists()


def test_an_earlier_switch_that_was_completed_counts_as_a_change(project, monkeypatch):
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    switch, apply = project.engine.switch, project.engine.apply
    real = switch.move_refs
    monkeypatch.setattr(switch, "move_refs", lambda *args: (_ for _ in ()).throw(OSError(5, "broken")))
    project.run("apply", "alpha", code=7)
    monkeypatch.setattr(switch, "move_refs", real)
    monkeypatch.setattr(apply, "plan_apply", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "only an earlier apply is complete" in project.run("apply", "alpha", code=7).err


def test_saved_edits_are_named_when_stopped_before_the_switch(project, monkeypatch, tmp_path):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    monkeypatch.setattr(
        project.engine.verbs, "switch_all", lambda *args, **more: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    saved = tmp_path / "mine.patch"
    assert (
        f"except that your edits are saved in {saved}"
        in project.run("revert", "alpha", "--keep-edits", str(saved), code=130).err
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(project, closed):
    command = f"{sys.executable} {project.root}/apply.py status alpha --cache {project.cache} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
