"""Ctrl-C at any moment: what apply.py says of its end is true.

As in test_kill.py a sitecustomize module counts the steps that change something; at the n-th the process gets SIGINT.
"""

from __future__ import annotations

import difflib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit import content, git
from test_kill import SABOTAGE, Scene, sample, steps

INTERRUPT = SABOTAGE.replace("os._exit(137)", "os.kill(os.getpid(), 2)").replace("self.file.write(data[: len(data) // 2])", "pass")


@pytest.fixture
def interrupted(project, tmp_path):
    folder = tmp_path / "sabotage"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INTERRUPT)
    project.env["PYTHONPATH"] = str(folder)
    return project


def picture(project) -> dict:
    """All that a verb is there to change: work trees, refs, patches, overlays, upstreams.json."""
    found = content(project.root, ("checkouts",))
    found = {path: item for path, item in found.items() if not path.startswith("engine/") and ".lock" not in path}
    found = {path: item for path, item in found.items() if "/.git/" not in path}
    for checkout in sorted(project.checkouts.glob("[!.]*")):
        found[checkout.name] = git(checkout, "for-each-ref") + git(checkout, "symbolic-ref", "-q", "HEAD", check=False)
    return found


def test_the_sentence_is_true(interrupted, tmp_path):
    project = interrupted

    def stale():
        for name in ("alpha", "beta"):
            (project.root / "overlays" / name).mkdir(exist_ok=True)
            (project.root / "overlays" / name / "new.py").write_text("x = 1\n" * 100)

    def edited():
        (project.checkout() / "src/util.py").write_text("mine = 1\n")

    for verb, prepare in (("fresh", lambda: None), ("apply", stale), ("revert", lambda: None), ("export", edited)):
        project.run("apply")
        prepare()
        project.pin_numbers()
        if verb == "fresh":
            project.run("revert")
            for name in ("alpha", "beta"):
                subprocess.run(["rm", "-rf", str(project.checkout(name))], check=True)
        args = ["apply" if verb == "fresh" else verb, "--offline"]
        scene = Scene(project, tmp_path)
        before = picture(project)
        total = steps(project, tmp_path, *args)
        after = picture(project)
        assert before != after
        seen = set()
        for at in [*sample(total, 5, seed=8), 1, *range(total - 12, total + 1, 3)]:
            scene.reset()
            done = project.spawn(*args, env={"KILL_AT": str(at)}, code=None)
            now = picture(project)
            seen.add(done.code)
            said = done.err
            assert done.code in (0, 130), (verb, at, done.text)
            assert ("nothing was changed" in said) == (now == before) == (done.code == 130), (verb, at, done.text)
            if done.code == 0:
                assert now == after and (not said or "is complete; `python apply.py" in said), (verb, at, done.text)
        assert seen == {0, 130}, verb
        scene.reset()
        subprocess.run(["rm", "-rf", str(scene.saved)], check=True)


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


def test_a_signal_while_the_rooms_are_loaded_or_left(project, tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    (folder / "difflib.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n" + Path(difflib.__file__).read_text())
    early = project.spawn("apply", "alpha", env={"PYTHONPATH": str(folder)}, code=130)
    assert "stopped; nothing was changed" in early.err and not project.checkout().exists()
    (folder / "difflib.py").unlink()
    (folder / "sitecustomize.py").write_text("import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n")
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
    monkeypatch.setattr(project.engine.verbs, "plan_switch", lambda *args, **more: (_ for _ in ()).throw(KeyboardInterrupt))
    saved = tmp_path / "mine.patch"
    assert f"except that your edits are saved in {saved}" in project.run("revert", "alpha", "--keep-edits", str(saved), code=130).err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(project, closed):
    command = f"{sys.executable} {project.root}/apply.py status alpha --cache {project.cache} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
