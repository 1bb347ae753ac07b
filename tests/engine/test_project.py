# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""upstreams.json, the series of patches and the lists of overlay files: small ones, and the real ones."""

from __future__ import annotations

import re
import shutil

import pytest
from kit import PROJECT, commit, load_engine, write_tree

# --- upstreams.json ---


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (b"{", "line 1"),
        (b"\xff\xfe", "decode"),
        (b"[]", "items"),
        (lambda d: d.update(alpha=[]), "alpha"),
        (lambda d: d["alpha"].pop("git"), "'git'"),
        (lambda d: d["alpha"].update(extra=1), "'extra'"),
        (lambda d: d["alpha"].update(default="v7"), "the default 'v7' is not among"),
        (lambda d: d["alpha"]["versions"]["v1"].update(commit="abc"), "40 hex digits"),
        (lambda d: d["alpha"]["versions"]["v1"].update(patches=2), "alpha v1"),
        (lambda d: d["alpha"]["versions"]["v1"]["sdist"].pop("sha256"), "'sha256'"),
        (lambda d: d["alpha"]["versions"].update({"../up": {"commit": "0" * 40}}), "a plain label"),
        (lambda d: d["alpha"]["versions"].update({"a..b": {"commit": "0" * 40}}), "a plain label"),
    ],
)
def test_upstreams_file_is_checked(project, change, said):
    if callable(change):
        change(project.upstreams)
        project.save()
    else:
        (project.root / "upstreams.json").write_bytes(change)
    error = project.run("status", code=2).err
    assert said in error and "upstreams.json" in error and "git checkout -- upstreams.json" in error


# --- series and lists ---

SERIES, LIST = "patches/alpha/v1/series", "overlays/alpha.list"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("patches/alpha/v1/0002-Hook-core-and-util.patch", "0002-Hook-core-and-util.patch"),
        (SERIES, SERIES),
        ("overlays/alpha/src/era.py", "overlays/alpha/src/era.py"),
        (LIST, LIST),
        ("overlays/alpha", "overlays/alpha/src/era.py"),
        ({"patches/alpha/v1/0003-more.patch": "x"}, "0003-more.patch is in neither"),
        ({"overlays/alpha/more.py": "x"}, "overlays/alpha/more.py is in neither"),
        ((SERIES, "0001-Hook-the-core.patch"), "twice"),
        ((LIST, "src/era.py"), "twice"),
        ((LIST, "x.py <- nowhere.py"), "nowhere.py"),
        ((LIST, "link.py <- link.py"), "not a plain file"),
    ],
)
def test_what_is_missing_not_listed_or_listed_twice(project, change, said):
    """It must not lead to another overlay, nor pass as applied."""
    (project.root / "link.py").symlink_to("apply.py")
    project.run("apply", "alpha")
    if isinstance(change, dict):
        write_tree(project.root, change)
    elif isinstance(change, tuple):
        with open(project.root / change[0], "a") as out:
            out.write(change[1] + "\n")
    else:
        path = project.root / change
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for verb in (["apply"], ["status"], ["apply", "--checkouts", str(project.root / "other")]):
        error = project.run(*verb, "alpha", code=2).err
        assert said in error and ("git checkout -- " in error or "move it away" in error)
    project.run("revert", "alpha")  # needs nothing of it


@pytest.mark.parametrize("path", ["../out.py", "/etc/passwd", ".git/config"])
def test_overlay_paths_that_lead_out(project, path):
    (project.root / LIST).write_text(f"src/era.py\ntools/go.sh\n{path} <- apply.py\n")
    assert "has a path that git refuses" in project.run("apply", "alpha", code=3).err
    assert not project.checkout().exists() and not (project.checkouts / "out.py").exists()


def test_the_series_says_the_order(project):
    """Comments and blank lines are for the reader."""
    series = project.root / SERIES
    series.write_text("# why\n0001-Hook-the-core.patch\n\n0002-Hook-core-and-util.patch  # last\n")
    project.run("apply", "alpha")
    project.run("export", "alpha", "--check")
    series.write_text("0002-Hook-core-and-util.patch\n0001-Hook-the-core.patch\n")
    assert project.state() == "stale"
    project.run("apply", "alpha", code=3)  # the second one was made on top of the first


def test_a_shared_overlay_file(project):
    """`path <- source`: the file comes from elsewhere in the project, and export writes it back there."""
    write_tree(project.root, {"overlays/shared.py": "SHARED = 1\n"})
    (project.root / LIST).write_text("tools/go.sh\n# shared\nsrc/tools.py <- overlays/shared.py\nsrc/era.py\n")
    commit(project.root, "Shared")
    project.run("apply", "alpha")
    assert (project.checkout() / "src/tools.py").read_text() == "SHARED = 1\n"
    project.run("export", "alpha", "--check")
    write_tree(project.checkout(), {"src/tools.py": "SHARED = 2\n", "new.py": "NEW = 1\n"})
    project.run("export", "alpha")
    assert (project.root / "overlays/shared.py").read_text() == "SHARED = 2\n"
    assert not (project.root / "overlays/alpha/src/tools.py").exists()
    lines = (project.root / LIST).read_text().splitlines()  # in their order, the new one last
    assert lines == ["tools/go.sh", "# shared", "src/tools.py <- overlays/shared.py", "src/era.py", "new.py"]
    project.run("apply", "alpha")
    (project.root / "overlays/shared.py").write_text("SHARED = 3\n")
    assert project.state() == "stale"


# --- the real ones ---

engine = load_engine(PROJECT)
PATCHES = sorted((PROJECT / "patches").glob("*/*/*.patch"))


def test_every_upstream_and_version_can_be_read():
    known = engine.project.read_upstreams()
    assert known["verl"].versions["v0.4.1"].commit == "8d9e350ea58c7ad4b50dd14d9dcb50577242c55f"
    assert known["verl"].license == "Apache-2.0"
    on_request = {"drl-code-pytorch", "era-release", "humanoid-bench", "tdmpc2"}
    assert {name for name, up in known.items() if up.on_request} == on_request
    counts = {
        (name, label): len(engine.project.read_overlay(name, label)[0])
        for name, up in known.items()
        for label in up.versions
    }
    assert sum(counts.values()) == len(PATCHES) > 0
    assert {(folder.parent.name, folder.name) for folder in (PROJECT / "patches").glob("*/*")} == counts.keys()
    assert {path.stem for path in (PROJECT / "overlays").glob("*.list")} == known.keys()


@pytest.mark.parametrize(
    "path", PATCHES, ids=[f"{path.parent.parent.name}-{path.parent.name}-{path.name[:4]}" for path in PATCHES]
)
def test_patch_is_as_export_writes_it(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith(engine.export.MAIL) and "-- " not in text.splitlines() and "FILL-IN" not in text
    body = engine.project.read_patch(path.name, path.read_bytes()).message.partition("\n\n")[2]
    for field in engine.export.FIELDS:  # filled in, on its line or on the next one, which begins with a blank
        assert re.search(rf"^{field}:[ \t]*(\n[ \t]+)?\S", body, re.MULTILINE), field
