"""drift: every patch on every release since the pinned one, read from git."""

from __future__ import annotations

import json
import shutil

import pytest
from kit import branch, content, git, git_state, make_upstream, replace_in
from packaging.version import Version


def drift(project, name: str, code: int, *more: str) -> dict:
    return project.run("drift", name, "--json", *more, code=code).json["upstreams"][name]


def results(found: dict) -> dict[str, list[str]]:
    return {row["release"]: [patch["result"] for patch in row["patches"]] for row in found["releases"]}


def tagged(project, tag: str, edit) -> None:
    branch(project, f"for-{tag}", edit)
    git(project.up / "alpha", "tag", tag, f"for-{tag}")


def test_releases_are_ordered_as_pep_440_says(project):
    order = project.engine.verbs.drift.order
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


def test_the_table(project, tmp_path):
    tagged(project, "v1.0.post1", replace_in("README.md", "alpha", "gamma"))
    tagged(project, "v1.9", replace_in("src/core.py", "line 1 of", "zero\nzero\nline 1 of"))
    tagged(project, "v1.10", replace_in("src/core.py", "line 20 of", "line twenty of"))
    tagged(project, "v1.11", replace_in("src/core.py", "line 20 of", "line 20, hooked, of"))
    tagged(project, "v0.9", replace_in("README.md", "alpha", "old"))
    tagged(project, "v3rc1", replace_in("README.md", "alpha", "candidate"))
    project.run("apply", "alpha")
    before, state = content(project.root), git_state(project.checkout())
    out = project.run("drift", "alpha", "--out", str(tmp_path / "out")).out
    written = json.loads((tmp_path / "out/drift.json").read_text())
    found = written["upstreams"]["alpha"]
    assert list(results(found).items()) == [
        ("v1", ["clean", "clean"]),
        ("v1.0.post1", ["clean", "clean"]),
        ("v1.9", ["offset", "offset"]),
        ("v1.10", ["conflict", "clean"]),
        ("v1.11", ["landed", "clean"]),
        ("v2", ["offset", "offset"]),
    ]
    conflict = found["releases"][3]
    assert conflict["result"] == "conflict" and conflict["commit"] == git(project.up / "alpha", "rev-parse", "v1.10")
    assert conflict["date"] == git(project.up / "alpha", "show", "-s", "--format=%cs", "v1.10")
    assert content(project.root) == before and git_state(project.checkout()) == state
    page = (tmp_path / "out/drift.md").read_text()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert {"release", "0001", "0002"} <= {*table[0]} and len(table) == 8
    assert table[5][0] == "v1.10" and conflict["commit"][:12] in table[5] and "conflict" in table[5]
    assert page in out and written["date"] in page


def test_the_shape_of_the_json(project):
    found = project.run("drift", "--json").json
    assert set(found) == {"date", "upstreams"} and set(found["upstreams"]) == {"alpha", "beta"}
    for upstream in found["upstreams"].values():
        assert {"version", "commit", "patches", "problems", "releases"} <= upstream.keys()
        assert upstream["problems"] == [] and upstream["releases"]
        for row in upstream["releases"]:
            assert {"release", "date", "commit", "result", "problem", "patches"} <= row.keys()
            assert [patch["patch"] for patch in row["patches"]] == upstream["patches"]


def test_a_pin_that_is_no_release_is_tried_on_the_default_branch(project):
    up = project.up / "beta"
    replace_in("main.py", "print(3)", "print(3)\nprint(4)")(up)
    git(up, "commit", "-q", "-a", "-m", "later")
    git(up, "tag", "v9")
    (row,) = drift(project, "beta", 0)["releases"]
    assert (row["release"], row["commit"], row["result"]) == ("main", git(up, "rev-parse", "HEAD"), "clean")
    assert drift(project, "beta", 0, "--offline")["releases"] == [row]


def test_a_repository_that_cannot_be_reached_is_told_and_the_others_are_done(project):
    shutil.move(project.up / "alpha", project.up / "away")
    result = project.run("drift", "--json", code=6)
    assert "cannot be reached" in result.json["upstreams"]["alpha"]["problems"][0]
    assert result.json["upstreams"]["beta"]["releases"]


def test_another_commit_under_the_pinned_tag(project):
    project.run("fetch", "alpha")
    git(project.up / "alpha", "tag", "-f", "v1", "v2")
    rows = drift(project, "alpha", 3)["releases"]
    assert project.ids["v1"] in rows[0]["problem"] and rows[1]["result"] == "offset"


def test_sources(project, tmp_path):
    assert set(results(drift(project, "alpha", 0, "--source", str(project.up / "alpha")))) == {"v1", "v2"}
    make_upstream(tmp_path / "mirror", [("v0", {"a.py": "1\n"})])
    (problem,) = drift(project, "alpha", 6, "--source", str(tmp_path / "mirror"))["problems"]
    assert "no release from the pinned one on" in problem


@pytest.mark.parametrize("source", ["pypi", "index/alpha-1.0.tar.gz"])
def test_packages_are_refused(project, tmp_path, source):
    source = source if source == "pypi" else str(tmp_path / source)
    assert "--source" in project.run("drift", "alpha", "--source", source, code=2).err
