# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""tools/drift/textual.py: every patch on every release since the pinned one, read from git."""

from __future__ import annotations

import importlib
import shutil
import sys

from kit import branch, content, git, git_state, replace_in
from packaging.version import Version


def textual(project):
    """tools/drift/textual.py on the engine of a project."""
    sys.modules.pop("tools.drift.textual", None)
    return importlib.import_module("tools.drift.textual")


def drift(project, code: int, *names: str) -> dict:
    """The result for these names, or all; the releases go to the folder out beside the cache."""
    project.write_lists()
    module = textual(project)
    found = module.textual_drift(names or project.upstreams, project.cache.with_name("out"), project.cache)
    assert found[0] == code
    return found[1]["upstreams"]


def oldest(found: dict, name: str = "alpha") -> dict:
    """Of the oldest pinned version."""
    return next(iter(found[name].values()))


def results(found: dict) -> dict[str, list[str]]:
    return {row["release"]: [patch["result"] for patch in row["patches"]] for row in found["releases"]}


def tagged(project, tag: str, edit) -> None:
    branch(project, f"for-{tag}", edit)
    git(project.up / "alpha", "tag", tag, f"for-{tag}")


def test_releases_are_ordered_as_pep_440_says(project):
    order = textual(project).order
    labels = [
        "0.2",
        "0.2.0.post1",
        "0.2.0.post2",
        "0.9",
        "0.9.1",
        "0.10",
        "1.0",
        "1.0.post0",
        "1.0.9",
        "1.0.15",
        "11.0",
    ]
    assert sorted(reversed(labels), key=order) == sorted(labels, key=Version)
    assert order("v1.0.0") == order("1") != order("1.0.post0")
    for label in ("1.0rc1", "v0.3.0.rc0", "0.8.2dev0", "1.0a1", "1.0-tv", "main", "v", "", "1..0", "1.0+cpu"):
        assert order(label) is None, label


def tag_releases(project):
    tagged(project, "v1.0.post1", replace_in("README.md", "alpha", "gamma"))
    tagged(project, "v1.9", replace_in("src/core.py", "line 1 of", "zero\nzero\nline 1 of"))
    tagged(project, "v1.10", replace_in("src/core.py", "line 20 of", "line twenty of"))
    tagged(project, "v1.11", replace_in("src/core.py", "line 20 of", "line 20, hooked, of"))
    tagged(project, "v1.12", lambda folder: (folder / "tools").symlink_to("src"))
    tagged(project, "v2.1", replace_in("README.md", "alpha", "delta"))
    tagged(project, "v0.9", replace_in("README.md", "alpha", "old"))
    tagged(project, "v3rc1", replace_in("README.md", "alpha", "candidate"))


def test_results_and_what_is_left_of_the_releases(project, tmp_path, capsys):
    tag_releases(project)
    project.run("apply", "alpha")
    before, state = content(project.root), git_state(project.checkout())
    out = project.cache.with_name("out")
    found, newer = drift(project, 0)["alpha"].values()
    said = capsys.readouterr().out
    assert list(results(found).items()) == [
        ("v1", ["clean", "clean"]),
        ("v1.0.post1", ["clean", "clean"]),
        ("v1.9", ["offset", "offset"]),
        ("v1.10", ["conflict", "clean"]),
        ("v1.11", ["landed", "clean"]),
        ("v1.12", ["clean", "clean"]),
    ]
    assert results(newer) == {"v2": [], "v2.1": []}  # pinned too, and without patches
    conflict = found["releases"][3]
    assert conflict["result"] == "conflict" and conflict["commit"] == git(project.up / "alpha", "rev-parse", "v1.10")
    assert conflict["date"] == git(project.up / "alpha", "show", "-s", "--format=%cs", "v1.10")
    assert content(project.root) == before and git_state(project.checkout()) == state
    (line,) = [line.split() for line in said.splitlines() if "v1.10 " in line]
    assert line == ["v1.10", conflict["date"], "0001", "conflict", "0002", "clean"]

    one, other, plain = out / "alpha/v1/v1", out / "alpha/v1/v1.10", out / "beta/b1/main"  # which has patches alone
    assert content(plain / "patched")["main.py"] != content(plain / "upstream")["main.py"]
    assert content(one / "patched") == content(project.checkout())
    for release in ("v1", "v1.10"):
        clone = tmp_path / release
        git(tmp_path, "clone", "-q", "--branch", release, str(project.up / "alpha"), str(clone))
        assert content(out / "alpha/v1" / release / "upstream") == content(clone)
    link = out / "alpha/v1/v1.12/patched/tools"  # our tools/go.sh has no place there
    assert link.is_symlink() and (link.parent / "src/era.py").exists() and not (link / "go.sh").exists()
    core = (other / "patched/src/core.py").read_text()
    assert "line twenty of" in core and "line 40, hooked, of" in core  # 0001 is left out, 0002 is in


def test_the_shape_of_the_json(project):
    found = drift(project, 0)
    assert set(found) == {"alpha", "beta"}
    for upstream in (version for versions in found.values() for version in versions.values()):
        assert {"commit", "patches", "problems", "releases"} <= upstream.keys()
        assert upstream["problems"] == [] and upstream["releases"]
        for row in upstream["releases"]:
            assert {"release", "date", "commit", "result", "problem", "patches"} <= row.keys()
            assert [patch["patch"] for patch in row["patches"]] == upstream["patches"]


def test_a_pin_that_is_no_release_is_tried_there_and_on_the_default_branch(project):
    up = project.up / "beta"
    pinned = git(up, "rev-parse", "HEAD")
    (row,) = oldest(drift(project, 0, "beta"), "beta")["releases"]
    assert (row["release"], row["commit"], row["result"]) == ("main", pinned, "clean")
    replace_in("main.py", "print(3)", "print(3)\nprint(4)")(up)
    git(up, "commit", "-q", "-a", "-m", "later")
    git(up, "tag", "v9")
    rows = oldest(drift(project, 0, "beta"), "beta")["releases"]
    head = git(up, "rev-parse", "HEAD")
    assert [row["commit"] for row in rows] == [pinned, head] and [row["result"] for row in rows] == ["clean"] * 2
    assert rows[1]["release"] == "main"


def test_a_repository_that_cannot_be_reached_is_told_and_the_others_are_done(project):
    shutil.move(project.up / "alpha", project.up / "away")
    found = drift(project, 6)
    alpha, beta = oldest(found), oldest(found, "beta")
    assert "cannot be" in alpha["problems"][0] and beta["releases"]


def test_another_commit_under_the_pinned_tag(project):
    project.run("fetch", "alpha")
    git(project.up / "alpha", "tag", "v1.0.1", "v1")
    git(project.up / "alpha", "tag", "-f", "v1", "v2")
    rows = oldest(drift(project, 3, "alpha"))["releases"]
    assert project.ids["v1"] in rows[0]["problem"] and rows[1]["result"] == "clean"
