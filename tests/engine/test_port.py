"""port: what becomes of each patch on another revision; and with --write, a worktree in which to resolve it."""

from __future__ import annotations

import json
import shutil

import pytest
from kit import branch, content, git, git_state, hinted, replace_in, write_tree

MOVED = replace_in("src/core.py", "line 1 of", "zero\nzero\nline 1 of")
OTHER = replace_in("src/core.py", "line 20 of", "line twenty of")
LANDED = replace_in("src/core.py", "line 20 of", "line 20, hooked, of")


def rows(project, onto: str, code: int, *more: str) -> dict[str, str]:
    found = project.run("port", "alpha", "--onto", onto, "--json", *more, code=code).json["alpha"]
    return {row["patch"][:4]: row["result"] for row in found["patches"]}


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "first", "second", "code"),
    [
        (replace_in("README.md", "alpha", "gamma"), "clean", "clean", 0),
        (MOVED, "offset", "offset", 0),
        (replace_in("src/core.py", "line 18 of", "line eighteen of"), "offset", "clean", 0),
        (OTHER, "conflict", "clean", 4),
        (LANDED, "landed", "clean", 0),
        (lambda up: (LANDED(up), replace_in("src/core.py", "line 1 of", "zero\nline 1 of")(up)), "landed", "offset", 0),
        (lambda up: (up / "src/util.py").rename(up / "helpers.py"), "clean", "offset", 0),
        (lambda up: (up / "src/util.py").unlink(), "clean", "gone", 4),
        (lambda up: (up / "src/core.py").write_bytes(b"\0\1\2" * 50), "conflict", "conflict", 4),
    ],
    ids=["elsewhere", "moved", "near", "same line", "landed", "landed lower", "renamed", "gone", "binary"],
)
def test_results(project, edit, first, second, code):
    branch(project, "other", edit)
    assert rows(project, "other", code) == {"0001": first, "0002": second}
    assert not project.checkouts.exists()


def test_details(project):
    project.run("apply", "alpha")
    before, state = content(project.checkout()), git_state(project.checkout())
    branch(project, "moved", MOVED)
    out = project.run("port", "alpha", "--onto", "moved").out
    assert "src/core.py: 1 hunk moved by +2 lines" in out
    branch(project, "other", OTHER)
    found = project.run("port", "alpha", "--onto", "other", code=4)
    assert "src/core.py: conflict at line 20" in found.out
    assert hinted(found.out)[-1][:5] == ["port", "alpha", "--onto", "other", "--write"]

    def move(up):
        (up / "src/util.py").unlink()
        write_tree(up, {"lib/util.py": "something = 'else'\n"})

    branch(project, "moved-away", move)
    assert "lib/util.py" in project.run("port", "alpha", "--onto", "moved-away", code=4).out
    branch(project, "has-era", lambda up: write_tree(up, {"src/era.py": "theirs\n"}))
    out = project.run("port", "alpha", "--onto", "has-era", code=4).out
    assert "upstream has files of these names there: src/era.py" in out
    assert content(project.checkout()) == before and git_state(project.checkout()) == state


def test_revisions(project):
    """A version, a commit, a tag, a branch below the name of another one; from outside, from a path, from the cache."""
    assert rows(project, "v2", 0) == {"0001": "offset", "0002": "offset"}
    assert rows(project, project.ids["v2"], 0)["0001"] == "offset"
    git(project.up / "alpha", "branch", "x/y", "v1")
    git(project.up / "alpha", "tag", "x", "v1")
    for onto in ("x", "x/y"):
        project.run("port", "alpha", "--onto", onto)
    assert "no version, tag, branch or commit" in project.run("port", "alpha", "--onto", "nowhere", code=6).err
    git(project.up / "alpha", "tag", "file", "v1:README.md")
    assert "no version, tag, branch or commit 'file'" in project.run("port", "alpha", "--onto", "file", code=6).err
    project.run("port", "alpha", "--onto=--evil", code=2)
    project.run("port", "alpha", "--onto", "main", "--source", str(project.up / "alpha"))
    archive = str(project.index / "alpha-1.0.tar.gz")
    assert rows(project, "1.0", 0, "--source", archive) == {"0001": "clean", "0002": "clean"}
    shutil.move(project.up / "alpha", project.up / "away")
    assert rows(project, "main", 0, "--offline")["0001"] == "offset"
    project.run("port", "alpha", "--onto", "never-seen", "--offline", code=6)


# --- a worktree to finish it in --------------------------------------------------------------------------------------


def test_a_port_without_conflicts(project):
    project.run("apply", "alpha")
    before, head = content(project.checkout()), git(project.checkout(), "rev-parse", "HEAD")
    branch(project, "moved", MOVED)
    git(project.up / "alpha", "tag", "v1.5", "moved")
    out = project.run("port", "alpha", "--onto", "v1.5", "--write").out
    tree = project.checkouts / "alpha-v1.5"
    assert str(tree) in out and git(tree, "symbolic-ref", "HEAD") == "refs/heads/era-port/v1.5"
    base = git(project.up / "alpha", "rev-parse", "v1.5")
    assert git(tree, "log", "--format=%s", f"{base}..HEAD").splitlines() == [
        "Hook core and util",
        "Hook the core",
        "New files of the ERA overlay for alpha",
    ]
    assert content(project.checkout()) == before and git(project.checkout(), "rev-parse", "HEAD") == head
    assert project.state() == "applied"
    again = project.run("port", "alpha", "--onto", "v1.5", "--write", code=5).err
    assert "exists already" in again and content(tree)["src/era.py"] == (False, b"ERA = 1\n")
    project.run("export", "alpha", "--checkout", str(tree))
    project.pinning = False
    versions = json.loads((project.root / "upstreams.json").read_text())["alpha"]["versions"]
    assert versions["v1.5"] == {"tag": "v1.5", "commit": base} and set(versions) == {"v1", "v2", "v1.5"}
    assert (project.root / "patches/alpha/v1.5/series").read_text().split() == [
        path.name for path in sorted(project.root.glob("patches/alpha/v1.5/*.patch"))
    ]
    project.run("apply", "alpha", "--version", "v1.5", "--checkouts", str(project.root / "new"))
    assert content(project.root / "new/alpha") == content(tree)
    project.run("apply", "alpha", "--checkouts", str(project.root / "old"))
    assert content(project.root / "old/alpha") == before


def test_a_port_with_conflicts(project):
    """The first patch conflicts, the second one merges; resolved with plain git, then exported."""
    project.run("apply", "alpha")
    branch(project, "other", lambda up: (OTHER(up), MOVED(up)))
    found = project.run("port", "alpha", "--onto", "other", "--write", code=4)
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
    project.run("export", "alpha", "--checkout", str(tree))
    project.pinning = False
    project.run("apply", "alpha", "--version", "other", "--checkouts", str(project.root / "new"))
    fresh = content(project.root / "new/alpha")
    assert fresh == content(tree) and b"line twenty, hooked, of" in fresh["src/core.py"][1]
    assert b"line 40, hooked, of" in fresh["src/core.py"][1] and fresh["src/era.py"] == (False, b"ERA = 1\n")


@pytest.mark.parametrize("conflict", [False, True])
def test_a_fork_of_the_user(project, clone, conflict):
    """Changes in the files that we patch, on top of the pinned commit: the overlay goes onto them."""
    (OTHER if conflict else MOVED)(clone)
    git(clone, "commit", "-q", "-am", "My fork")
    state, before = git_state(clone), content(clone)
    error = project.run("apply", "alpha", "--checkout", str(clone), code=3).err
    (words,) = [words for words in hinted(error) if words[0] == "port"]
    project.run(*words, code=4 if conflict else 0)
    tree = clone.with_name("clone-era")
    log = git(tree, "log", "--format=%s").splitlines()
    assert "New files of the ERA overlay for alpha" in log and "My fork" in log
    assert ("<<<<<<< " in (tree / "src/core.py").read_text()) == conflict
    assert content(clone) == before and (tree / "src/era.py").read_text() == "ERA = 1\n"
    after = git_state(clone)
    assert {key: after[key] for key in after if key != "refs"} == {key: state[key] for key in state if key != "refs"}


def test_nothing_to_make_a_worktree_of(project):
    error = project.run("port", "alpha", "--onto", "v2", "--write", code=3).err
    assert hinted(error)[0][:2] == ["apply", "alpha"] and not project.checkout().exists()


def test_an_overlay_file_that_upstream_has_now_stops_it(project):
    project.run("apply", "alpha")
    branch(project, "has-era", lambda up: write_tree(up, {"src/era.py": "theirs\n"}))
    assert "src/era.py" in project.run("port", "alpha", "--onto", "has-era", "--write", code=3).err
    assert not (project.checkouts / "alpha-has-era").exists()
    assert git(project.checkout(), "branch", "--list", "era-port/*") == ""
