# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""status and diff: each state as usage.md defines it, from contents alone; and the differences as git shows them."""

from __future__ import annotations

import os
import subprocess

import pytest
from kit import content, git, write_tree

KEYS = {"version", "state", "source", "commit", "path", "files", "untracked", "commits", "note"}


def test_states(project):
    checkout = project.checkout()
    assert project.state() == "absent" and project.run("status").code == 0
    project.run("apply", "alpha")
    assert project.state() == "applied"
    (checkout / "README.md").write_text("mine\n")
    found = project.run("status", "alpha", "--json", code=1).json["alpha"]
    assert (found["state"], found["files"]) == ("modified", ["README.md"]) and found.keys() == KEYS
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    found = project.run("status", "alpha", "--json", code=1).json["alpha"]
    assert (found["state"], found["files"]) == ("stale", ["README.md"]) and "changed since" in found["note"]
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 1\n")
    git(checkout, "commit", "-qam", "Mine")
    found = project.run("status", "alpha", "--json", code=1).json["alpha"]
    assert (found["state"], len(found["commits"]), found["files"]) == ("modified", 1, ["README.md"])
    git(checkout, "checkout", "-q", "upstream/v1")
    assert project.state() == "clean"
    git(checkout, "checkout", "-q", "era")
    git(checkout, "commit", "-q", "--amend", "-m", "Mine, amended")
    assert project.state() == "modified"
    git(checkout, "checkout", "-q", "--orphan", "other")
    git(checkout, "commit", "-q", "-m", "Other")
    found = project.run("status", "alpha", "--json", code=1).json["alpha"]
    assert found["state"] == "wrong-base" and "HEAD is" in found["note"] and found["source"] is None


def test_status_and_apply_name_the_same_commit(project):
    project.run("apply", "alpha")
    base = project.ids["v1"][:12]
    assert f"alpha v1: applied (git, {base}) in {project.checkout()}\n" == project.run("status", "alpha").out
    assert f"applied to {base} (git)" in project.run("apply", "alpha").out


def test_another_pin_is_stale(project):
    project.run("apply", "alpha")
    project.upstreams["alpha"]["versions"]["v1"]["commit"] = project.ids["v2"]
    project.save()
    assert "pins another source" in project.run("status", "alpha", code=1).out


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


@pytest.mark.parametrize("file", ["HEAD", "config"])
def test_a_damaged_repository_does_not_hide_the_others(project, file):
    project.run()
    (project.checkout() / ".git" / file).write_bytes(b"\0 nonsense\n")
    said = project.run("status", code=1)
    assert "alpha v1: wrong-base" in said.out and "beta b1: applied" in said.out


# --- diff ---


def test_the_overlay_as_git_diff_shows_it(project, tmp_path):
    project.run("apply", "alpha")
    out = project.run("diff", "alpha").raw
    command = ["git", "diff", "--full-index", "upstream/v1", "era"]
    shown = subprocess.run(command, cwd=project.checkout(), capture_output=True).stdout
    clean = tmp_path / "clean"
    git(tmp_path, "clone", "-q", "--branch", "v1", str(project.up / "alpha"), str(clean))
    subprocess.run(["git", "apply", "-"], cwd=clean, input=out, check=True)
    assert content(clean) == content(project.checkout())
    assert shown.count(b"\n@@") == out.count(b"\n@@") > 0
    stat = project.run("diff", "alpha", "--stat").out
    assert "src/core.py" in stat and "4 files changed" in stat
    only = project.run("diff", "alpha", "src/util.py").out
    assert "src/util.py" in only and "src/core.py" not in only
    assert project.run("diff", "alpha", "--", "src/util.py").out == only
    assert "src/util.py" in project.run("diff", "alpha", "--json").json["alpha"]["diff"]


def test_local_edits_and_new_files(project):
    project.run("apply", "alpha")
    write_tree(project.checkout(), {"src/util.py": "x = 1\n", "new.py": "y = 1\n", "image.bin": "\0\1"})
    (project.checkout() / "README.md").unlink()
    before = git(project.checkout(), "count-objects")
    out = project.run("diff", "alpha", "--local").out
    assert all(name in out for name in ("src/util.py", "new.py", "README.md", "image.bin")) and "core.py" not in out
    assert git(project.checkout(), "count-objects") == before  # nothing is written into the repository


def test_an_empty_diff_says_so(project):
    assert "apply.py apply alpha" in project.run("diff", "alpha", code=3).err
    project.run("apply", "alpha")
    for args in (["no/such/path"], ["--local"]):
        found = project.run("diff", "alpha", *args)
        assert found.out == "" and "no difference" in found.err
    assert project.run("diff", "alpha").err == ""
