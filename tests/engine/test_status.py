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

    def found(state: str) -> dict:
        shown = project.run("status", "alpha", "--json", code=None)
        assert shown.json["alpha"]["state"] == state and shown.json["alpha"].keys() == KEYS
        assert shown.code == (state not in ("absent", "clean", "applied"))
        return shown.json["alpha"]

    found("absent")
    project.run("apply", "alpha")
    shown, base = project.run("status", "alpha").out, project.ids["v1"]
    assert shown == f"alpha v1: applied (git, {base[:12]}) in {checkout}\n"  # the commit that apply names
    write_tree(checkout, {"src/__pycache__/core.cpython-311.pyc": "\0", "notes.txt": "mine\n"})
    assert found("applied")["untracked"] == ["notes.txt"]  # which does not count as drift
    (checkout / "README.md").write_text("mine\n")
    assert found("modified")["files"] == ["README.md"]
    project.set_era("ERA = 2\n")
    stale = found("stale")
    assert stale["files"] == ["README.md"] and "changed since" in stale["note"]
    project.set_era("ERA = 1\n")
    project.upstreams["alpha"]["versions"]["v1"]["commit"] = project.ids["v2"]
    project.save()
    assert "pins another source" in found("stale")["note"]
    project.upstreams["alpha"]["versions"]["v1"]["commit"] = base
    project.save()
    git(checkout, "commit", "-qam", "Mine")
    mine = found("modified")
    assert (len(mine["commits"]), mine["files"]) == (1, ["README.md"])
    git(checkout, "checkout", "-q", "upstream/v1")
    found("clean")
    git(checkout, "checkout", "-q", "era")
    git(checkout, "commit", "-q", "--amend", "-m", "Mine, amended")
    found("modified")


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_states_come_from_bytes_alone(project, flag):
    project.run("apply", "alpha")
    git(project.checkout(), "update-index", flag, "README.md")
    target = project.checkout() / "README.md"
    info = target.stat()
    target.write_bytes(b"# ALPHA\n")
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert project.state() == "modified"


# --- diff ---


def test_the_overlay_as_git_diff_shows_it(project, tmp_path):
    assert "apply.py apply alpha" in project.run("diff", "alpha", code=3).err
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
    for args in (["no/such/path"], ["--local"]):
        found = project.run("diff", "alpha", *args)
        assert found.out == "" and "no difference" in found.err
    write_tree(project.checkout(), {"src/util.py": "x = 1\n", "new.py": "y = 1\n", "image.bin": "\0\1"})
    (project.checkout() / "README.md").unlink()
    before = git(project.checkout(), "count-objects")
    out = project.run("diff", "alpha", "--local").out
    assert all(name in out for name in ("src/util.py", "new.py", "README.md", "image.bin")) and "core.py" not in out
    assert git(project.checkout(), "count-objects") == before  # nothing is written into the repository
