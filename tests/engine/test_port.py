# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""port: what becomes of each patch on another revision; with --write, a checkout there, also of a user's clone."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from kit import branch, commit, content, follow, git, hinted, replace_in, unchanged, write_tree

MOVED = replace_in("src/core.py", "line 1 of", "zero\nzero\nline 1 of")
OTHER = replace_in("src/core.py", "line 20 of", "line twenty of")
LANDED = replace_in("src/core.py", "line 20 of", "line 20, hooked, of")


def rows(project, onto: str, code: int, *more: str) -> dict[str, str]:
    found = project.run("port", "alpha", "--onto", onto, "--json", *more, code=code).json["alpha"]
    return {row["patch"][:4]: row["result"] for row in found["patches"]}


# --- the table ---


@pytest.mark.parametrize(
    ("edit", "first", "second", "code"),
    [
        (replace_in("README.md", "alpha", "gamma"), "clean", "clean", 0),
        (MOVED, "offset", "offset", 0),
        (replace_in("src/core.py", "line 18 of", "line eighteen of"), "offset", "clean", 0),
        (OTHER, "conflict", "clean", 4),
        (LANDED, "landed", "clean", 0),
        (lambda up: (up / "src/util.py").rename(up / "helpers.py"), "clean", "offset", 0),
        (lambda up: (up / "src/util.py").unlink(), "clean", "gone", 4),
        (lambda up: (up / "src/core.py").write_bytes(b"\0\1\2" * 50), "conflict", "conflict", 4),
    ],
    ids=["elsewhere", "moved", "near", "same line", "landed", "renamed", "gone", "binary"],
)
def test_results(project, edit, first, second, code):
    branch(project, "other", edit)
    assert rows(project, "other", code) == {"0001": first, "0002": second}
    assert not project.checkouts.exists()


def test_revisions(project):
    """A version, a commit, a tag, a branch below the name of another one; from outside, from a path, from the cache."""
    assert rows(project, "2", 0) == rows(project, "v2", 0) == {"0001": "offset", "0002": "offset"}
    assert rows(project, project.ids["v2"], 0)["0001"] == "offset"
    git(project.up / "alpha", "branch", "x/y", "v1")
    git(project.up / "alpha", "tag", "x", "v1")
    for onto in ("x", "x/y"):
        project.run("port", "alpha", "--onto", onto)
    assert "no version, tag, branch or commit" in project.run("port", "alpha", "--onto", "nowhere", code=6).err
    project.run("port", "alpha", "--onto=--evil", code=6)
    project.run("port", "alpha", "--onto", "main", "--source", str(project.up / "alpha"))
    shutil.move(project.up / "alpha", project.up / "away")
    assert rows(project, "main", 0, "--offline")["0001"] == "offset"
    project.run("port", "alpha", "--onto", "never-seen", "--offline", code=6)


@pytest.mark.parametrize("name", ["src/era.py", "src/era.py/x", "tools"])
def test_what_upstream_has_in_the_place_of_overlay_files(project, name):
    branch(project, "has-era", lambda up: write_tree(up, {name: "theirs\n"}))
    out = project.run("port", "alpha", "--onto", "has-era", code=4).out
    assert f"upstream has something in the place of overlay files: {name.removesuffix('/x')}\n" in out
    assert name.removesuffix("/x") in project.run("port", "alpha", "--onto", "has-era", "--write", code=4).err
    assert not project.checkouts.exists() or not list(project.checkouts.iterdir())


# --- a checkout there ---


def export_and_apply(project, label: str, fields: dict) -> None:
    """A port becomes a version, which gives the same files."""
    tree = project.checkouts / f"alpha-{label}"
    project.run("export", "alpha", "--checkout", str(tree))
    versions = json.loads((project.root / "upstreams.json").read_text())["alpha"]["versions"]
    assert versions[label] == fields and set(versions) == {"v1", "v2", label}
    project.run("apply", "alpha", "--version", label, "--checkouts", str(project.root / "new"))
    assert content(project.root / "new/alpha") == content(tree)


def test_a_port_without_conflicts(project):
    project.run("apply", "alpha")
    branch(project, "moved", MOVED)
    git(project.up / "alpha", "tag", "v1.5", "moved")
    with unchanged(project.checkout()):
        out = project.run("port", "alpha", "--onto", "v1.5", "--write").out
    tree, base = project.checkouts / "alpha-v1.5", git(project.up / "alpha", "rev-parse", "v1.5")
    assert str(tree) in out and git(tree, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(tree, "log", "--format=%s", f"{base}..HEAD").splitlines() == [
        "Hook core and util",
        "Hook the core",
        "New files of the ERA overlay for alpha",
    ]
    assert "exists already" in project.run("port", "alpha", "--onto", "v1.5", "--write", code=5).err
    assert content(tree)["src/era.py"] == (False, b"ERA = 1\n")
    assert [*hinted(out)[-1][:2], hinted(out)[-1][-1]] == ["export", "alpha", str(tree)]
    export_and_apply(project, "v1.5", {"tag": "v1.5", "commit": base})


def test_a_port_with_conflicts(project):
    """The first patch conflicts, the second one merges; resolved with plain git, then exported."""
    branch(project, "other", lambda up: (OTHER(up), MOVED(up)))
    tried = project.run("port", "alpha", "--onto", "other", code=4).out
    assert "src/core.py: conflict at line 22" in tried
    assert hinted(tried)[-1][:5] == ["port", "alpha", "--onto", "other", "--write"]
    found = project.run(*hinted(tried)[-1], code=4)
    tree = project.checkouts / "alpha-other"
    core = (tree / "src/core.py").read_text()
    assert "<<<<<<< " in core and "line twenty of" in core and "line 20, hooked, of" in core
    assert "src/core.py: conflict" in found.out and "am --continue" in found.out
    assert git(tree, "status", "--porcelain").startswith("UU src/core.py")
    start, end = core.index("<<<<<<< "), core.index(">>>>>>> ")
    resolved = core[:start] + "line twenty, hooked, of the core\n" + core[core.index("\n", end) + 1 :]
    (tree / "src/core.py").write_text(resolved)
    project.run("export", "alpha", "--checkout", str(tree), code=5)  # in the middle of git am
    git(tree, "add", "-A")
    git(tree, "-c", "core.editor=true", "am", "--continue")
    core = (tree / "src/core.py").read_text()
    assert "line twenty, hooked, of" in core and "line 40, hooked, of" in core
    export_and_apply(project, "other", {"commit": git(project.up / "alpha", "rev-parse", "other")})


# --- a clone of the user's ---


@pytest.mark.parametrize("kind", ["plain", "worktree", "shallow"])
def test_a_fork(project, clone, tmp_path, kind):
    """Changes in the files that we patch, on top of the pinned commit: two lines bring the overlay onto them."""
    MOVED(clone)
    commit(clone, "My fork")
    fork = clone if kind == "plain" else tmp_path / kind
    if kind == "worktree":
        git(clone, "worktree", "add", "-q", "-b", "tree", str(fork))
    elif kind == "shallow":
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{clone}", str(fork))
    write_tree(fork, {"notes.txt": "untracked\n"})
    before, head = content(fork), git(fork, "rev-parse", "HEAD")
    error = project.run("apply", "alpha", "--checkout", str(fork), code=2).err
    (port,) = hinted(error)
    with unchanged(fork):  # the clone is only read
        project.run(*port)
    follow(error.splitlines()[-2].strip())  # the last one undoes it
    core = (fork / "src/core.py").read_text()
    assert core.startswith("zero\nzero\n") and "line 20, hooked" in core and (fork / "src/era.py").exists()
    assert git(fork, "rev-parse", "HEAD~3") == head and (fork / "notes.txt").exists()
    assert git(fork, "rev-parse", "--is-shallow-repository") == ("true" if kind == "shallow" else "false")
    assert git(fork, "fsck", "--no-dangling", check=False) == ""
    assert "exists already" in project.run(*port, code=5).err
    shutil.rmtree(fork.with_name(f"{fork.name}-era"))
    assert "carried there before" in project.run(*port, code=4).err
    git(fork, "reset", "-q", "--keep", "ORIG_HEAD")  # undo is git's
    assert content(fork) == before


def test_a_fork_with_a_conflict_a_missing_file_and_edits(project, clone):
    OTHER(clone)
    (clone / "src/util.py").unlink()
    commit(clone, "My fork")
    write_tree(clone, {"README.md": "not committed\n", "run.sh": "staged\n", "notes.txt": "untracked\n"})
    git(clone, "add", "run.sh")
    os.utime(clone / "bare.txt")
    project.upstreams["alpha"]["plugin"] = "alpha 3 needs no patches: the plug-in"
    project.save()
    with unchanged(clone):
        out = project.run("port", "alpha", "--checkout", str(clone), "--write", code=4).out
    assert f"edits are in no commit of {clone}, so the port is without them: README.md, run.sh\n" in out
    assert "nothing to port: alpha 3 needs no patches" in out
    assert out.count("src/util.py") == 1 and "src/util.py: does not exist there" in out
    assert "<<<<<<< " in (clone.with_name("clone-era") / "src/core.py").read_text()
    assert f"git -C {clone} pull {clone}-era era" in out


def test_a_partial_and_sparse_clone(project, tmp_path):
    """It is refused with git's reason and with the command that brings the files. After that it works."""
    git(project.up / "alpha", "config", "uploadpack.allowFilter", "true")
    url, part = f"file://{project.up}/alpha", tmp_path / "part"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--sparse", url, str(part))
    git(part, "checkout", "-q", project.ids["v1"])
    error = project.run("port", "alpha", "--checkout", str(part), code=6).err
    assert "git said: fatal: missing blob object" in error
    follow(error)
    assert "clean " in project.run("port", "alpha", "--checkout", str(part)).out


def test_what_is_no_clone(project, tmp_path):
    write_tree(tmp_path / "plain", {"x": "x"})
    for folder in (tmp_path / "plain", tmp_path / "nowhere"):
        assert "no commit HEAD" in project.run("port", "alpha", "--checkout", str(folder), "--write", code=6).err
    git(tmp_path, "clone", "-q", "--bare", str(project.up / "alpha"), "bare")
    error = project.run("port", "alpha", "--checkout", str(tmp_path / "bare"), code=6).err
    assert "is a bare repository" in error and f"git clone {tmp_path}/bare " in error
    git(tmp_path, "init", "-q", "--object-format=sha256", "long")
    commit(tmp_path / "long", "Other ids")
    error = project.run("port", "alpha", "--checkout", str(tmp_path / "long"), code=6).err
    assert "is a SHA-256 repository" in error and "partial clone" not in error
    other = str(project.up / "beta")
    assert "none of the files that the patches change" in project.run("port", "alpha", "--checkout", other, code=6).err
