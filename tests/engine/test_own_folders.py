# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""apply.py writes and deletes in its own folders alone, and takes no object there for what it is called."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import zlib
from pathlib import Path

import pytest
from kit import content, git, write_tree

CHECKOUT = [["status"], ["revert", "--keep-edits"], ["apply", "--version", "v2"]]
CACHE = [["fetch", "--source", "{package}"], ["apply", "--source", "{package}"]]
NEW = [["apply", "--checkouts", "{new}"], ["port", "--onto", "v2", "--write", "--checkouts", "{new}"]]
LINKS = """. .git .git/HEAD .git/ORIG_HEAD .git/config .git/index .git/index.lock .git/info .git/info/exclude
.git/shallow .git/packed-refs .git/objects .git/objects/pack .git/objects/info .git/logs .git/logs/HEAD
.git/logs/refs/heads/era .git/refs .git/refs/heads .git/refs/heads/era .git/refs/heads/era-saved
.git/refs/tags/upstream .git/refs/worktree .git/refs/worktree/era .git/refs/worktree/era-next"""
FIFOS = """.git .git/config .git/info/exclude .git/packed-refs .git/objects/info/alternates .git/refs/heads/x .gitignore
src/.gitattributes"""
CACHED_LINKS = """git git/alpha.git git/alpha.git/HEAD git/alpha.git/objects git/alpha.git/refs git/alpha.git/refs/pins
git/alpha.git/shallow git/alpha.git/info/exclude archives archives/{sha256} archives/{sha256}/alpha-1.0.part"""
CACHED_FIFOS = "git/alpha.git git/alpha.git/packed-refs archives/{sha256}/a.tar.gz"


def link(place: Path, home: Path) -> None:
    """To what the user's folder has from now on, so that git would go on there, or else to all of that folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(shutil.move(place, home / f"moved-{place.name}") if os.path.lexists(place) else home)


def fifo(place: Path, home: Path) -> None:
    link(place, home)
    place.unlink()
    os.mkfifo(place)


def hard_link(place: Path, home: Path) -> None:
    (home / "log").hardlink_to(place)


def gitfile(place: Path, home: Path) -> None:
    place.write_text(f"gitdir: {shutil.move(place, home / 'moved')}\n")


def pointer(place: Path, home: Path) -> None:
    shutil.copytree(place.parents[2 * (place.name == "alternates")], home / "copy")
    place.write_text(f"{home}/copy{'/objects' * (place.name == 'alternates')}\n")


PLACEMENTS = [
    (link, "project/checkouts/alpha", LINKS, CHECKOUT),
    (fifo, "project/checkouts/alpha", FIFOS, CHECKOUT),
    (hard_link, "project/checkouts/alpha", ".git/logs/HEAD", CHECKOUT),
    (gitfile, "project/checkouts/alpha", ".git", CHECKOUT),
    (pointer, "project/checkouts/alpha", ".git/commondir .git/objects/info/alternates", CHECKOUT),
    (link, "cache", CACHED_LINKS, CACHE),
    (fifo, "cache", CACHED_FIFOS, CACHE),
    (link, "new", ".alpha.new", NEW),
    (fifo, "new", ".alpha.new", NEW),
]


@pytest.fixture
def home(project, tmp_path) -> Path:
    """A folder of the user's with lock files, beside an applied checkout and a cache with a source package."""
    project.run("fetch", "alpha", "--source", str(project.index / "alpha-1.0.tar.gz"))
    project.run("apply", "alpha")
    mine = tmp_path / "home"
    write_tree(mine, dict.fromkeys(["README.md", "Cargo.lock", "sub/poetry.lock", "alpha.git/x"], "mine\n"))
    return mine


@pytest.fixture
def no_hang():
    """No test waits for ever, however slow the machine is."""

    def hung(*_) -> None:
        raise AssertionError("apply.py hangs")

    before = signal.signal(signal.SIGALRM, hung)
    yield signal.alarm(1800)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("make", "folder", "names", "verbs"), PLACEMENTS, ids=[f"{row[0].__name__} {row[1]}" for row in PLACEMENTS]
)
def test_what_cannot_be_ours_is_refused_by_name(project, home, tmp_path, no_hang, make, folder, names, verbs):
    """By each verb that would go there, and the user's files keep their bytes."""
    words = {"package": project.index / "alpha-1.0.tar.gz", "new": tmp_path / "new"}
    parts = home, project.root, "cache"
    for part in parts:
        shutil.copytree(tmp_path / part, tmp_path / "kept" / Path(part).name)
    for name in names.split():
        place = Path(os.path.normpath(tmp_path / folder / name.format(**project.ids)))
        make(place, home)
        mine = content(home)
        for verb, *options in verbs:
            said = project.run(verb, "alpha", *(option.format(**words) for option in options), code=None)
            assert said.code in (1, 3) and f"{place} is a" in said.text, (place, said.text)
            assert content(home) == mine, (place, verb)
        for part in parts:
            shutil.rmtree(tmp_path / part)
            shutil.copytree(tmp_path / "kept" / Path(part).name, tmp_path / part)


def test_links_and_worktrees_that_the_user_may_have(project, home, clone, monkeypatch):
    """To the folders that apply.py is told; where no git that it starts looks. What is beside a clone is the user's."""
    own = project.checkout() / ".git"
    (own / "hooks").symlink_to(home)
    monkeypatch.chdir(own)  # the path of a socket has to be short
    socket.socket(socket.AF_UNIX).bind("fsmonitor--daemon.ipc")
    git(project.checkout(), "worktree", "add", "-q", "-b", "mine", str(home / "tree"))
    (home / "cache").symlink_to(shutil.move(project.cache, home / "elsewhere"))
    (home / "checkouts").symlink_to(project.checkouts)
    before = content(home / "tree")
    for verb in (["apply", "--version", "v2"], ["status"], ["revert"], ["apply"]):
        project.run(*verb, "alpha", "--checkouts", str(home / "checkouts"), "--cache", str(home / "cache"))
    assert (content(home / "tree"), git(home / "tree", "status", "--porcelain")) == (before, "")
    write_tree(clone.parent, {".clone.new/x": "mine\n"})
    error = project.run("port", "alpha", "--checkout", str(clone), "--write", code=5).err
    assert ".clone.new exists already" in error and (clone.parent / ".clone.new/x").exists()


# --- objects ---


def forge(own: Path, tree: str, other: bytes) -> None:
    """Another tree under the id of one. git takes it for what it is called."""
    for pack in own.glob("objects/pack/*.pack"):
        subprocess.run(
            ["git", "unpack-objects", "-q"], cwd=own, input=pack.rename(own / "pack").read_bytes(), check=True
        )
    place = own / "objects" / tree[:2] / tree[2:]
    place.chmod(0o644)
    place.write_bytes(zlib.compress(b"tree %d\0" % len(other) + other))


def is_found_out(project) -> None:
    assert "other content than its id says" in project.run("status", "alpha", code=1).out
    for verb in (["apply"], ["revert"], ["apply", "--version", "v2"]):
        error = project.run(*verb, "alpha", code=3).err
        assert "other content than its id says" in error and "move it away" in error


def cat_tree(own: Path, tree: str) -> bytes:
    return subprocess.run(["git", "cat-file", "tree", tree], cwd=own, capture_output=True, check=True).stdout


@pytest.mark.parametrize(("name", "file"), [("era:extra", "extra/recipe.py"), ("upstream/v1:src", ".git/other")])
def test_a_tree_that_is_not_what_its_id_says(project, name, file):
    """One that no patch touches, with the file that it names; one that only a revert needs."""
    project.run("apply", "alpha")
    own = project.checkout() / ".git"
    write_tree(project.checkout(), {file: "other = 1\n"})
    new, tree = git(own, "hash-object", "-w", str(project.checkout() / file)), git(own, "rev-parse", name)
    old = git(own, "ls-tree", tree).split()[2]
    forge(own, tree, cat_tree(own, tree).replace(bytes.fromhex(old), bytes.fromhex(new)))
    is_found_out(project)


def test_a_commit_graph_that_names_another_tree(project):
    """Where a repository is not shallow, git takes the tree of a commit from it, and would hash that one."""
    project.run("apply", "alpha", "--source", str(project.index / "alpha-1.0.tar.gz"))
    at, graph = project.checkout(), project.checkout() / ".git/objects/info/commit-graph"
    write_tree(at, {"src/old.py": "other = 1\n"})
    git(at, "add", "src/old.py")
    git(at, "commit-graph", "write", "--reachable")
    other = git(at, "write-tree")
    root, src = (bytes.fromhex(git(at, "rev-parse", name)) for name in ("era^{tree}", "era:src"))
    raw = graph.read_bytes()[:-20].replace(root, bytes.fromhex(other))
    graph.chmod(0o644)
    graph.write_bytes(raw + hashlib.sha1(raw).digest())
    forge(at / ".git", src.hex(), cat_tree(at, f"{other}:src"))
    is_found_out(project)
