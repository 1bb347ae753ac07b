"""kill -9 in the middle: the old state, or one that the next apply completes; edits are never lost.

A sitecustomize module on the test's side counts every step that changes something on disk (files opened for writing,
written to, renamed, removed, linked; processes started) and ends the process at the n-th, with half of the bytes
written where it is a write. apply.py knows nothing of it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from kit import content, git

SABOTAGE = """
import builtins, os, subprocess
limit = int(os.environ.pop("KILL_AT", "0"))  # not for pip, which apply.py starts
count_to = os.environ.pop("COUNT_TO", None)
count = 0
def step():
    global count
    count += 1
    if count == limit:
        os._exit(137)
class Counted:  # no function: pathlib of Python 3.10 would make a method of it
    def __init__(self, real):
        self.real = real
    def __call__(self, *args, **kwargs):
        step()
        return self.real(*args, **kwargs)
for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "chmod", "ftruncate", "pwrite", "fsync"):
    setattr(os, name, Counted(getattr(os, name)))
real_open = builtins.open
class Torn:
    def __init__(self, file):
        self.file = file
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *args):
        self.file.close()
    def write(self, data):
        global count
        count += 1
        if count == limit:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            os._exit(137)
        return self.file.write(data)
def torn_open(path, mode="r", *args, **kwargs):
    if not any(letter in mode for letter in "wxa"):
        return real_open(path, mode, *args, **kwargs)
    step()
    return Torn(real_open(path, mode, *args, **kwargs))
builtins.open = torn_open
real_run = subprocess.run
def run(*args, **kwargs):
    step()
    done = real_run(*args, **kwargs)
    step()
    return done
subprocess.run = run
if count_to:
    import atexit
    atexit.register(lambda: real_open(count_to, "w").write(str(count)))
"""


@pytest.fixture
def saboteur(project, tmp_path):
    folder = tmp_path / "sabotage"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SABOTAGE)
    project.env["PYTHONPATH"] = str(folder)
    return project


def steps(project, tmp_path: Path, *args: str) -> int:
    project.spawn(*args, env={"COUNT_TO": str(tmp_path / "count")})
    return int((tmp_path / "count").read_text())


class Scene:
    """A prepared project folder that can be put back as it was."""

    def __init__(self, project, tmp_path: Path):
        self.project, self.saved = project, tmp_path / "saved"
        shutil.copytree(project.root, self.saved, symlinks=True)

    def reset(self) -> None:
        shutil.rmtree(self.project.root)
        shutil.copytree(self.saved, self.project.root, symlinks=True)


def sample(total: int, wanted: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(1, total + 1), min(wanted, total)))


def test_first_apply(saboteur, tmp_path):
    project = saboteur
    project.run("fetch")
    scene = Scene(project, tmp_path)
    total = steps(project, tmp_path, "apply", "--offline")
    wanted = {name: content(project.checkout(name)) for name in ("alpha", "beta")}
    assert total > 60
    for at in sample(total, 10, seed=1):
        scene.reset()
        project.spawn("apply", "--offline", env={"KILL_AT": str(at)}, code=137)
        for name in ("alpha", "beta"):
            assert project.state(name) in ("absent", "applied"), at
        project.run("apply", "--offline")
        assert {name: content(project.checkout(name)) for name in ("alpha", "beta")} == wanted, at
        assert not list(project.checkouts.glob(".*.new-*"))


def test_switch_of_two_with_edits(saboteur, tmp_path):
    """Old overlay to new one: files changed, added, removed; the user has edits in other files and a new file."""
    project = saboteur
    project.run()
    overlays = project.root / "overlays"
    (overlays / "alpha/src/era.py").write_text("ERA = 2\n" * 500)
    (overlays / "alpha/deep/er").mkdir(parents=True)
    (overlays / "alpha/deep/er/new.py").write_text("x = 1\n")
    (overlays / "alpha/tools/go.sh").unlink()
    (overlays / "beta").mkdir()
    (overlays / "beta/new.py").write_text("y = 1\n")
    (project.checkout() / "README.md").write_text("mine\n")
    (project.checkout() / "notes.txt").write_text("mine too\n")
    scene = Scene(project, tmp_path)
    old = {name: content(project.checkout(name)) for name in ("alpha", "beta")}
    total = steps(project, tmp_path, "apply", "--offline")
    new = {name: content(project.checkout(name)) for name in ("alpha", "beta")}
    assert total > 90 and new["alpha"]["README.md"] == old["alpha"]["README.md"]
    seen = set()
    for at in [*sample(total, 14, seed=2), *range(total - 30, total, 4)]:
        scene.reset()
        project.spawn("apply", "--offline", env={"KILL_AT": str(at)}, code=137)
        for name in ("alpha", "beta"):
            state = project.state(name)
            seen.add(state)
            assert state in ("stale", "interrupted", "applied", "modified"), at
            if state == "stale":
                assert content(project.checkout(name)) == old[name], at
            if state in ("applied", "modified"):
                assert content(project.checkout(name)) == new[name], at
        assert (project.checkout() / "README.md").read_text() == "mine\n"
        assert (project.checkout() / "notes.txt").read_text() == "mine too\n"
        project.run("apply", "--offline")
        assert {name: content(project.checkout(name)) for name in ("alpha", "beta")} == new, at
        assert git(project.checkout(), "status", "--porcelain") == "M README.md\n?? notes.txt", at
        assert git(project.checkout("beta"), "status", "--porcelain") == "", at
    assert "interrupted" in seen and "stale" in seen


def test_revert(saboteur, tmp_path):
    project = saboteur
    project.run("apply", "alpha")
    scene = Scene(project, tmp_path)
    old = content(project.checkout())
    total = steps(project, tmp_path, "revert", "alpha")
    new = content(project.checkout())
    for at in [*sample(total, 8, seed=3), *range(total - 20, total, 5)]:
        scene.reset()
        project.spawn("revert", "alpha", env={"KILL_AT": str(at)}, code=137)
        state = project.state()
        assert state in ("applied", "interrupted", "clean"), at
        if state == "interrupted":
            project.run("revert", "alpha", code=7)
            project.run("apply", "alpha", "--offline")  # completes the revert, then applies anew
            assert content(project.checkout()) == old and project.state() == "applied"
        else:
            assert content(project.checkout()) == (old if state == "applied" else new), at
            project.run("revert", "alpha")
            assert content(project.checkout()) == new


def test_export(saboteur, tmp_path):
    project = saboteur
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    (checkout / "src/util.py").write_text("mine = 1\n")
    (checkout / "src/era.py").unlink()
    (checkout / "src/era2.py").write_text("ERA = 2\n")
    edited = content(checkout)
    scene = Scene(project, tmp_path)
    total = steps(project, tmp_path, "export", "alpha")
    wanted = content(project.root, ("checkouts",))
    wanted = {path: item for path, item in wanted.items() if path.startswith(("patches/", "overlays/"))}
    for at in [*sample(total, 6, seed=4), *range(total - 24, total, 4)]:
        scene.reset()
        project.spawn("export", "alpha", env={"KILL_AT": str(at)}, code=137)
        assert content(checkout) == edited, at
        project.run("export", "alpha")
        found = {path: item for path, item in content(project.root).items() if path.startswith(("patches/", "overlays/"))}
        assert {path: item for path, item in found.items() if ".era-new-" not in path} == wanted, at
        project.run("apply", "alpha", "--offline")
        assert content(checkout) == edited and project.state() == "applied", at


def test_fetch(saboteur, tmp_path):
    project = saboteur
    total = steps(project, tmp_path, "fetch", "alpha", "--source", "pypi")
    for at in sample(total, 6, seed=5):
        shutil.rmtree(project.cache)
        project.spawn("fetch", "alpha", "--source", "pypi", env={"KILL_AT": str(at)}, code=137)
        project.spawn("apply", "alpha", "--source", "pypi", "--dry-run")


def test_real_kills_at_random_moments(project, tmp_path):
    project.run()
    scene = Scene(project, tmp_path)
    chance = random.Random(6)
    for _ in range(10):
        scene.reset()
        for name in ("alpha", "beta"):
            (project.root / "overlays" / name).mkdir(exist_ok=True)
            (project.root / "overlays" / name / "new.py").write_text("x = 1\n" * 1000)
        (project.checkout() / "README.md").write_text("mine\n")
        process = project.start("apply", "--offline")
        time.sleep(chance.uniform(0.05, 0.45))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert project.state() in ("stale", "interrupted", "applied", "modified")
        for _ in range(50):  # a git that outlived its parent may still hold the index
            result = project.run("apply", "--offline", code=None)
            if result.code == 0:
                break
            assert result.code in (5, 7), result.text
            time.sleep(0.1)
        assert project.state("beta") == "applied" and project.state() == "modified"
        assert (project.checkout() / "README.md").read_text() == "mine\n"
        assert (project.checkout() / "new.py").read_text() == "x = 1\n" * 1000
    assert os.path.exists(project.checkout())
