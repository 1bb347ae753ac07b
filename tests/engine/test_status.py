"""status: the seven states, read from contents alone, and what is said of a checkout that cannot be read."""

from __future__ import annotations

import os

import pytest
from kit import follow, git, write_tree


def test_states_in_turn(project):
    assert project.state() == "absent"
    project.run("status", "alpha")
    project.run()
    assert project.state() == "applied"
    (project.checkout() / "README.md").write_text("mine\n")
    found = project.run("status", "--json", code=1).json
    assert (found["alpha"]["state"], found["alpha"]["files"]) == ("modified", ["README.md"])
    assert (found["beta"]["state"], found["beta"]["files"]) == ("applied", [])
    keys = {"version", "state", "source", "commit", "path", "files", "untracked", "commits", "note"}
    assert found["alpha"].keys() == keys and found["alpha"]["version"] == "v1"
    git(project.checkout(), "checkout", "-q", "README.md")
    assert project.state() == "applied"
    git(project.checkout(), "commit", "-q", "--allow-empty", "-m", "mine")
    (commit,) = project.run("status", "alpha", "--json", code=1).json["alpha"]["commits"]
    assert git(project.checkout(), "rev-parse", "era").startswith(commit) and project.state() == "modified"
    git(project.checkout(), "reset", "-q", "HEAD~")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert project.state() == "stale"
    project.run("apply", "alpha")
    assert project.state() == "applied"
    project.run("revert", "alpha")
    assert project.state() == "clean"
    git(project.checkout(), "commit", "-q", "--allow-empty", "-m", "away")
    assert project.run("status", "alpha", code=1).out.startswith("alpha v1: wrong-base")


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_states_come_from_bytes_and_not_from_flags_or_timestamps(project, flag):
    project.run("apply", "alpha")
    git(project.checkout(), "update-index", flag, "README.md")
    target = project.checkout() / "README.md"
    info = target.stat()
    target.write_bytes(b"# ALPHA\n")
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert project.state() == "modified"


def test_new_files_are_listed_and_are_no_drift(project):
    project.run("apply", "alpha")
    write_tree(project.checkout(), {"src/__pycache__/core.cpython-311.pyc": "\0", "notes.txt": "mine\n"})
    found = project.run("status", "alpha", "--json").json["alpha"]
    assert found["state"] == "applied" and found["untracked"] == ["notes.txt"]


@pytest.mark.parametrize("file", ["HEAD", "index", "config", "packed-refs"])
def test_a_damaged_repository(project, file):
    project.run("apply", "alpha")
    (project.checkout() / ".git" / file).write_bytes(b"\0 nonsense\n")
    found = project.run("status", "alpha", code=1).out
    assert "alpha v1: wrong-base" in found and "damaged" in found and "python apply.py apply alpha" in found


def test_a_record_that_was_altered_does_not_hide_other_checkouts(project):
    project.run()
    (project.checkout() / ".git/era/record.json").write_text("{")
    (project.checkout("beta") / "main.py").unlink()
    said = project.run("status", code=5)
    assert "record.json was altered" in said.err
    assert said.out.startswith("beta b1: modified") and said.out.endswith("; deleted: main.py\n")


def test_a_commit_of_the_overlay_that_git_collected(project):
    """After an amend only the reflog leads to it, and that ends."""
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    git(checkout, "commit", "-qa", "--amend", "-m", "Amended")
    mine = git(checkout, "rev-parse", "HEAD")
    git(checkout, "reflog", "expire", "--expire=now", "--all")
    git(checkout, "gc", "-q", "--prune=now")
    said = project.run("status", "alpha", code=1).out
    assert "has thrown away" in said and "damaged" not in said
    assert "has thrown away" in project.run("export", "alpha", code=3).err
    follow(said)
    project.run("apply", "alpha", "--offline")
    assert project.state() == "applied" and git(checkout, "rev-parse", "my-work") == mine
