"""What apply.py says: hints that can be followed as they stand, and no sentence that is not so."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess

import pytest
from kit import git, replace_in
from test_port import branch


def hinted(text: str) -> list[list[str]]:
    return [
        shlex.split(found) for found in re.findall(r"python apply\.py ([^`\n]*?)(?:`|\. Nothing|, then|\n|$)", text)
    ]


def test_hints_name_the_folders_of_this_run(project, clone, tmp_path):
    place = tmp_path / "my checkouts"
    where = ["--checkouts", str(place)]
    project.run("apply", "alpha", *where)
    (place / "alpha/README.md").write_text("mine\n")
    error = project.run("revert", "alpha", *where, code=5).err
    ((verb, name, *rest),) = hinted(error)
    assert (verb, name, rest) == (
        "revert",
        "alpha",
        ["--keep-edits", "my-edits.patch", *where, "--cache", str(project.cache)],
    )
    mine = ["--checkout", str(clone)]
    project.run("apply", "alpha", *mine)
    (clone / "src/era.py").write_text("mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    error = project.run("apply", "alpha", *mine, code=5).err
    assert [words[0] for words in hinted(error)] == ["diff", "export"]
    assert all(words[-4:] == [*mine, "--cache", str(project.cache)] for words in hinted(error))
    journal = {
        "verb": "revert",
        "plan": {},
        "flags": {},
        "refs": {},
        "from": "",
        "head": "",
        "record": None,
        "together": [],
    }
    (clone / ".git/era/journal.json").write_text(json.dumps(journal))
    assert hinted(project.run("export", "alpha", *mine, code=7).err) == [
        ["apply", "alpha", *mine, "--cache", str(project.cache)]
    ]
    assert hinted(project.run("status", "alpha", *mine, code=1).out) == [
        ["apply", "alpha", *mine, "--cache", str(project.cache)]
    ]


def test_export_is_not_proposed_where_nothing_is_applied(project, clone):
    (clone / "src/era.py").write_text("mine\n")
    error = project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert "local edits are in the way" in error and "apply.py export" not in error
    (clone / "src/era.py").unlink()
    git(clone, "branch", "era")
    git(clone, "commit", "-q", "--allow-empty", "-m", "x")
    git(clone, "branch", "-f", "era")
    git(clone, "reset", "-q", "--hard", project.ids["v1"])
    error = project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert "not ours" in error and "apply.py export" not in error


@pytest.mark.parametrize(
    "option", ["--checkout", "--checkouts", "--cache", "--source", "--version", "--onto", "--keep-edits"]
)
def test_an_empty_value_is_refused(project, option):
    assert f"{option} is empty" in project.run("apply", "alpha", option, "", code=2).err
    assert not project.checkouts.exists()


def test_two_worktrees_of_one_clone(project, clone, tmp_path):
    other = tmp_path / "second tree"
    git(clone, "worktree", "add", "-q", "--detach", str(other), project.ids["v1"])
    for first, second in ((clone, other), (other, clone)):
        project.run("apply", "alpha", "--checkout", str(first))
        error = project.run("apply", "alpha", "--checkout", str(second), code=5).err
        assert f"applied in another worktree of this clone, {first}" in error and "rename" not in error
        (words,) = hinted(error)
        assert words[:4] == ["revert", "alpha", "--checkout", str(first)]
        project.run(*words[:4])
        project.run("apply", "alpha", "--checkout", str(second))
        project.run("revert", "alpha", "--checkout", str(second))


def test_the_command_that_brings_edits_back(project, tmp_path, monkeypatch):
    project.run("apply", "alpha")
    monkeypatch.chdir(tmp_path)
    (project.checkout() / "README.md").write_text("mine\n")
    out = project.run("revert", "alpha", "--keep-edits", "my edits").out
    (said,) = re.findall(r"`(git .*?)`", out)
    assert shlex.split(said) == ["git", "-C", str(project.checkout()), "apply", str(tmp_path / "my edits")]
    project.run("apply", "alpha")
    subprocess.run(shlex.split(said), cwd="/", check=True)
    assert (project.checkout() / "README.md").read_text() == "mine\n"
    assert "(detached)" in out


@pytest.mark.parametrize("file", ["HEAD", "index", "config", "packed-refs"])
@pytest.mark.parametrize("damage", [b"", b"\0 nonsense\n"])
def test_a_damaged_repository(project, file, damage):
    project.run("apply", "alpha")
    (project.checkout() / ".git" / file).write_bytes(damage)
    if file in ("config", "packed-refs") and not damage:
        return  # an empty one is a good one
    found = project.run("status", "alpha", code=1).out
    assert "alpha v1: wrong-base" in found and "damaged" in found and "python apply.py apply alpha" in found
    assert project.state() == "wrong-base"


def test_nothing_is_said_twice(project, tmp_path):
    folder = str(tmp_path / "up")
    assert project.run("apply", "alpha", "--checkout", folder, code=3).err.count(folder) == 1  # not "P: P is ..."
    project.upstreams["alpha"]["versions"]["v1"]["commit"] = "1" * 40
    project.save()
    # A server that does not hold the id is asked for the tag.
    error = project.run("apply", "alpha", "--source", "git", code=None).err
    assert error.lower().count("nothing was changed") == 1
    assert (
        "either the tag was moved there, or upstreams.json was edited here" in error
        and "git diff upstreams.json" in error
    )


def test_blank_lines_are_no_nearest_match(project):
    patches = project.engine.patches
    hunk = patches.Hunk(1, 1, [b"a\n", b"b\n", b"\n", b"d\n"], [b"x\n"], 1, 1, 1)
    found = patches.nearest([b"q\n", b"a\n", b"b\n", b"  \n", b"d\n"], hunk, 0, b"a\n")
    assert found == "nearest match: 3 of the hunk's 4 lines stand from line 2 on"
    found = patches.nearest([b"q\n", b"\n", b"r\n"], hunk, 0, b"\n")
    assert found == "nearest match: none, no part of the file has half of the hunk's lines"


def test_diff_with_nothing_to_show_says_why(project):
    project.run("apply", "alpha")
    found = project.run("diff", "alpha", "no/such/path")
    assert (found.out, "no path that differs matches no/such/path" in found.err) == ("", True)
    assert "your edits" in project.run("diff", "alpha", "--local").err
    assert project.run("diff", "alpha").err == ""
    project.run("revert", "alpha")
    found = project.run("diff", "alpha")
    assert (found.out, "no overlay is applied" in found.err) == ("", True)


def test_temporary_folders_are_in_the_cache_and_swept(project, monkeypatch, tmp_path):
    place = project.cache / "tmp"
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(outside))
    common = project.engine.common
    seen = []
    real = common.tempfile.TemporaryDirectory

    def spy(*args, **kwargs):
        seen.append(kwargs["dir"])
        return real(*args, **kwargs)

    monkeypatch.setattr(common.tempfile, "TemporaryDirectory", spy)
    project.run("apply", "alpha")
    branch(project, "moved", replace_in("src/core.py", "line 1 of", "zero\nline 1 of"))
    project.run("port", "alpha", "--onto", "moved")
    project.run("diff", "alpha", "--local")
    assert set(seen) == {place} and list(place.iterdir()) == []
    dead = subprocess.Popen(["true"])
    dead.wait()
    left, live = place / f"era-index-{dead.pid}-abc", place / f"era-index-{os.getpid()}-abc"
    held = place / f"era-index-{dead.pid}-held"  # its process lives in another container
    other = place / "notes"
    for folder in (left, live, held, other):
        folder.mkdir()
        (folder / "index").write_text("x")
    with common.locked(held, 1.0, "the folder"):
        project.run("status", "alpha")
    assert not left.exists() and live.exists() and held.exists() and other.exists()
    project.run("status", "alpha")
    assert not held.exists()


def test_kill_9_leaves_nothing_for_good(project, monkeypatch):
    project.run("fetch", "alpha")
    code = (
        "import sys, os, signal; sys.path.insert(0, sys.argv.pop(1)); from engine import common; from pathlib import Path\n"
        "common.scratch.root = Path(sys.argv[1])\n"
        "with common.scratch_folder('index'): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    place = project.cache / "tmp"
    subprocess.run([os.sys.executable, "-c", code, str(project.root), str(place)])
    assert len(list(place.iterdir())) == 1
    project.run("status", "alpha")
    assert list(place.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_no_hindrance_to_a_verb_that_needs_none(project):
    project.run("apply", "alpha")
    (project.cache / "tmp").chmod(0o555)
    assert "your edits" in project.run("diff", "alpha", "--local").err
    (project.cache / "tmp").chmod(0o755)
