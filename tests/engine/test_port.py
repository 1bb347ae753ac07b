"""port: what becomes of each patch on another revision, without touching a checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from kit import content, git, git_state, make_patch, replace_in, write_tree


def rows(project, onto: str, code: int, *more: str) -> dict[str, str]:
    found = project.run("port", "alpha", "--onto", onto, "--json", *more, code=code).json["alpha"]
    return {row["patch"][:4]: row["result"] for row in found["patches"]}


def branch(project, name: str, edit) -> None:
    """A branch of alpha's repository that starts at v1."""
    up = project.up / "alpha"
    git(up, "checkout", "-q", "-b", name, "v1")
    edit(up)
    git(up, "add", "-A")
    git(up, "commit", "-q", "-m", name)
    git(up, "checkout", "-q", "main")


def test_clean_offset_conflict_already_and_gone(project):
    project.run("apply", "alpha")
    before, state = content(project.checkout()), git_state(project.checkout())
    branch(project, "same", replace_in("README.md", "alpha", "gamma"))
    assert rows(project, "same", 0) == {"0001": "clean", "0002": "clean"}
    branch(project, "moved", replace_in("src/core.py", "line 1 of", "zero\nzero\nline 1 of"))
    assert rows(project, "moved", 0) == {"0001": "offset", "0002": "offset"}
    assert "stands at line 19 (+2)" in project.run("port", "alpha", "--onto", "moved").out
    branch(project, "other", replace_in("src/core.py", "line 20 of", "line twenty of"))
    assert rows(project, "other", 4) == {"0001": "conflict", "0002": "clean"}
    out = project.run("port", "alpha", "--onto", "other", code=4).out
    assert (
        "src/core.py: hunk 1" in out
        and "'line 20 of the core'" in out
        and "nearest match: line 20: 'line twenty of the core'" in out
    )
    branch(project, "landed", replace_in("src/core.py", "line 20 of", "line 20, hooked, of"))
    assert rows(project, "landed", 0) == {"0001": "already upstream", "0002": "clean"}
    assert rows(project, "v2", 4) == {"0001": "offset", "0002": "target gone"}
    assert content(project.checkout()) == before and git_state(project.checkout()) == state


def test_gone_target_names_files_that_bear_its_name(project):
    def move(up):
        (up / "lib").mkdir()
        (up / "src/util.py").rename(up / "lib/util.py")

    branch(project, "moved-away", move)
    out = project.run("port", "alpha", "--onto", "moved-away", code=4).out
    assert "target gone" in out and "lib/util.py" in out


def test_overlay_file_that_upstream_has_now(project):
    branch(project, "has-era", lambda up: write_tree(up, {"src/era.py": "theirs\n"}))
    assert "upstream has a file of this name" in project.run("port", "alpha", "--onto", "has-era", code=4).out


def test_landed_further_down_is_already_upstream(project):
    def both(up):
        replace_in("src/core.py", "line 20 of", "line 20, hooked, of")(up)
        replace_in("src/core.py", "line 1 of", "zero\nline 1 of")(up)

    branch(project, "landed-lower", both)
    assert rows(project, "landed-lower", 0)["0001"] == "already upstream"


def test_sources_of_the_target(project):
    assert rows(project, project.ids["v2"], 4)["0002"] == "target gone"
    assert "has no version, tag, branch or commit" in project.run("port", "alpha", "--onto", "nowhere", code=6).err
    project.run("port", "alpha", "--onto=--evil", code=2)
    project.run("port", "alpha", "--onto", "main", "--source", str(project.up / "alpha"), code=4)
    archive = str(project.index / "alpha-1.0.tar.gz")
    assert rows(project, "1.0", 0, "--source", archive) == {"0001": "clean", "0002": "clean"}
    shutil.move(project.up / "alpha", project.up / "away")
    assert rows(project, "main", 4, "--offline")["0002"] == "target gone"
    project.run("port", "alpha", "--onto", "never-seen", "--offline", code=6)
    assert not project.checkouts.exists()


def test_patch_that_does_not_fit_its_own_version(project):
    """What the message of an apply that ended in a conflict asks for: a report, not a traceback."""
    (patch,) = project.root.glob("patches/alpha/*/0001*")
    patch.write_text(patch.read_text().replace("-line 20 of", "-line twenty of"))
    project.run("apply", "alpha", code=4)
    assert "does not even fit the version it was made for" in project.run("port", "alpha", "--onto", "v2", code=4).out


def test_source_that_is_a_loop_of_links(project, tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused = 6 if sys.version_info >= (3, 13) else 2  # where Path.resolve no longer raises, it is a path to nothing
    project.run("apply", "alpha", "--source", str(tmp_path / "a"), code=refused)


def test_a_conflict_names_the_hunks_that_do_not_merge_and_where(project):
    """Of three hunks the first one's context changed, which merges; the third one meets a change of upstream's, lower down."""

    def hooks(up):
        for number in (10, 30, 50):
            replace_in("src/core.py", f"line {number} of", f"line {number}, changed, of")(up)

    def theirs(up):
        replace_in("src/core.py", "line 8 of", "line eight of")(up)
        replace_in("src/core.py", "line 50 of", "line fifty of")(up)
        replace_in("src/core.py", "line 1 of", "zero\n" * 20 + "line 1 of")(up)

    text, _ = make_patch(project.up / "alpha", "v1", hooks, "Three hunks")
    for patch in project.root.glob("patches/alpha/v1/*"):
        patch.unlink()
    (project.root / "patches/alpha/v1/0001-three-hunks.patch").write_text(text)
    branch(project, "theirs", theirs)
    (row,) = project.run("port", "alpha", "--onto", "theirs", "--json", code=4).json["alpha"]["patches"]
    (file,) = row["files"]
    assert file["hunks"] == [3]
    assert file["detail"] == [
        "src/core.py: hunk 3 conflicts at line 70",
        "expected at line 70: 'line 50 of the core'",
        "found there:          'line fifty of the core'",
        "nearest match: line 70: 'line fifty of the core'",
    ]


def test_lines_that_upstream_took_away_or_added(project):
    branch(project, "fewer", replace_in("src/core.py", "line 20 of the core\n", ""))
    out = project.run("port", "alpha", "--onto", "fewer", code=4).out
    assert "expected at line 20: 'line 20 of the core'" in out and "no line: upstream took it away" in out
    branch(
        project,
        "many-fewer",
        lambda up: replace_in("src/core.py", "".join(f"line {n} of the core\n" for n in range(10, 50)), "")(up),
    )
    out = project.run("port", "alpha", "--onto", "many-fewer", code=4).out
    assert "hunk 1 conflicts at line 10" in out and "expected at line 10: 'line 20 of the core'" in out
    branch(project, "more", replace_in("src/core.py", "line 20 of the core\n", "line 20 of the core\nanother\n"))
    out = project.run("port", "alpha", "--onto", "more", code=4).out
    assert "expected at line 21: no line here" in out and "'another'" in out


def test_a_file_that_is_binary_now_is_a_conflict(project):
    branch(project, "binary", lambda up: (up / "src/core.py").write_bytes(b"\0\1\2" * 50))
    assert rows(project, "binary", 4) == {"0001": "conflict", "0002": "conflict"}


@pytest.mark.parametrize("status", [255, 129, -9])
def test_an_error_of_git_is_no_conflict(project, monkeypatch, status):
    module = project.engine.port
    branch(project, "moved", replace_in("src/core.py", "line 1 of", "zero\nline 1 of"))
    monkeypatch.setattr(
        module, "run_git", lambda *_: subprocess.CompletedProcess([], status, b"", b"error: no space\n")
    )
    error = project.run("port", "alpha", "--onto", "moved", code=5).err
    assert "git merge-file failed" in error and "git said: error: no space" in error and "nothing was changed" in error


def test_a_package_that_lacks_what_the_pinned_one_lacks(project):
    text, _ = make_patch(project.up / "alpha", "v1", replace_in("extra/recipe.py", "1", "2"), "Hook the recipe")
    (project.root / "patches/alpha/v1/0003-hook-the-recipe.patch").write_text(text)
    archive = str(project.index / "alpha-1.0.tar.gz")
    assert rows(project, "1.0", 4, "--source", archive)["0003"] == "not in the package"
    shutil.move(project.up / "alpha", project.up / "away")
    shutil.rmtree(project.cache)
    assert rows(project, "1.0", 4, "--source", archive)["0003"] == "not in the package"


def test_a_tag_of_a_file_is_no_revision(project):
    git(project.up / "alpha", "tag", "file", "v1:README.md")
    assert "no version, tag, branch or commit 'file'" in project.run("port", "alpha", "--onto", "file", code=6).err


def test_a_branch_below_another_one_that_was_tried(project):
    git(project.up / "alpha", "branch", "x/y", "v1")
    git(project.up / "alpha", "tag", "x", "v1")
    for onto in ("x", "x/y"):
        project.run("port", "alpha", "--onto", onto)
