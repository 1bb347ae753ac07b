"""upstreams.json, the series of patches and the lists of overlay files: small ones, and the real ones."""

from __future__ import annotations

import re
import shutil

import pytest
from kit import PROJECT, load_engine, write_tree

# --- upstreams.json --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(alpha=[]), "expected an object"),
        (lambda d: d["alpha"].pop("git"), "'git' is missing"),
        (lambda d: d["alpha"].update(extra=1), "unknown key 'extra'"),
        (lambda d: d["alpha"].update(overlay_files=2), "unknown key 'overlay_files'"),
        (lambda d: d["alpha"].update(default="v7"), "not among versions"),
        (lambda d: d["alpha"].update(on_request="true"), "on_request: expected"),
        (lambda d: d["alpha"].update(on_request=None), "on_request: expected"),
        (lambda d: [up.update(on_request=True) for up in d.values()], "without on_request"),
        (lambda d: d["alpha"].update(git="http://example.org/x"), "https, ssh or file"),
        (lambda d: d["alpha"].update(git="--upload-pack=evil"), "https, ssh or file"),
        (lambda d: d["alpha"].update(git="ext::sh -c evil"), "https, ssh or file"),
        (lambda d: d["alpha"].update(git='https://x/"y'), "https, ssh or file"),
        (lambda d: d["alpha"].update(git="https://x/y\n[core]"), "https, ssh or file"),
        (lambda d: d["alpha"]["versions"]["v1"].update(commit="abc"), "40 hex digits"),
        (lambda d: d["alpha"]["versions"]["v1"].update(tag="-x"), "a tag name"),
        (lambda d: d["alpha"]["versions"]["v1"].update(tag="a..b"), "a tag name"),
        (lambda d: d["alpha"]["versions"]["v1"].update(tag="a.lock/b"), "a tag name"),
        (lambda d: d["alpha"]["versions"]["v1"].update(patches=2), "unknown key 'patches'"),
        (lambda d: d["alpha"]["versions"]["v1"]["sdist"].update(sha256="0" * 63), "64 hex digits"),
        (lambda d: d["alpha"]["versions"]["v1"]["sdist"].update(lacks=["/etc"]), "absolute"),
        (lambda d: d["alpha"]["versions"].update({"../up": {"commit": "0" * 40}}), "a version label"),
        (lambda d: d.update({"../../x": d["alpha"]}), "a name of letters"),
        (lambda d: d.clear(), "one key per upstream"),
    ],
)
def test_upstreams_file_is_checked(project, change, said):
    change(project.upstreams)
    project.save()
    error = project.run("status", code=2).err
    assert said in error and "upstreams.json" in error


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe", b"", None])
def test_an_upstreams_file_that_cannot_be_read(project, data):
    path = project.root / "upstreams.json"
    path.unlink() if data is None else path.write_bytes(data)
    assert ("cannot read" if data is None else "not valid JSON") in project.run("status", code=2).err


# --- series and lists ------------------------------------------------------------------------------------------------

SERIES, LIST = "patches/alpha/v1/series", "overlays/alpha.list"


@pytest.fixture
def listed(project):
    """A project whose series and lists are as they were at first."""
    project.pinning = False
    return project


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("patches/alpha/v1/0002-hook-core-and-util.patch", SERIES),
        ("patches/alpha/v1/series", SERIES),
        ("overlays/alpha/src/era.py", LIST),
        ("overlays/alpha.list", LIST),
        ("overlays/alpha", LIST),
    ],
)
@pytest.mark.parametrize("applied", [False, True])
def test_what_is_missing(listed, lost, said, applied):
    if applied:
        listed.run("apply", "alpha")
    path = listed.root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for verb in ("apply", "status"):
        error = listed.run(verb, "alpha", code=2).err
        assert said in error and "git checkout -- " in error and "othing was changed" in error
    assert listed.checkout().exists() == applied
    if applied:
        listed.run("revert", "alpha")  # needs nothing of it


@pytest.mark.parametrize("file", ["patches/alpha/v1/0003-more.patch", "overlays/alpha/more.py"])
@pytest.mark.parametrize("applied", [False, True])
def test_what_is_not_listed(listed, file, applied):
    if applied:
        listed.run("apply", "alpha")
    write_tree(listed.root, {file: "x"})
    for verb in ("apply", "status"):
        error = listed.run(verb, "alpha", code=2).err
        assert f"{file} exists but is not listed" in error
    write_tree(listed.root, {"overlays/alpha/src/__pycache__/x.pyc": "x"})
    (listed.root / file).unlink()
    listed.run("apply", "alpha")


def test_the_series_says_the_order(listed):
    """Numbers are names and need not be gapless; comments and blank lines are for the reader."""
    folder = listed.root / "patches/alpha/v1"
    (folder / "0001-hook-the-core.patch").rename(folder / "0070-hook-the-core.patch")
    (folder / "series").write_text("# why\n0070-hook-the-core.patch\n\n0002-hook-core-and-util.patch  # last\n")
    listed.run("apply", "alpha")
    listed.run("export", "alpha", "--check")
    (folder / "series").write_text("0002-hook-core-and-util.patch\n0070-hook-the-core.patch\n")
    assert listed.state() == "stale"
    listed.run("apply", "alpha", code=3)  # the second one was made on top of the first


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (SERIES, "0001-hook-the-core.patch"),  # twice
        (SERIES, "../../beta/b1/0001-hook-main.patch"),
        (SERIES, "hook.patch"),
        (LIST, "src/era.py"),
        (LIST, "../out.py"),
        (LIST, "/etc/passwd"),
        (LIST, "x.py <- ../../secret"),
        (LIST, "x.py <- nowhere.py"),
        (LIST, ".git/config <- apply.py"),
    ],
)
def test_lines_that_are_refused(listed, file, line):
    with open(listed.root / file, "a") as out:
        out.write(line + "\n")
    assert file in listed.run("apply", "alpha", code=2).err and not listed.checkout().exists()


def test_a_shared_overlay_file(listed):
    """`path <- source`: the file comes from elsewhere in the project, and export writes it back there."""
    write_tree(listed.root, {"overlays/shared.py": "SHARED = 1\n"})
    with open(listed.root / LIST, "a") as out:
        out.write("src/tools.py <- overlays/shared.py\n")
    listed.run("apply", "alpha")
    assert (listed.checkout() / "src/tools.py").read_text() == "SHARED = 1\n"
    listed.run("export", "alpha", "--check")
    write_tree(listed.checkout(), {"src/tools.py": "SHARED = 2\n", "new.py": "NEW = 1\n"})
    listed.commit()
    listed.run("export", "alpha")
    assert (listed.root / "overlays/shared.py").read_text() == "SHARED = 2\n"
    assert not (listed.root / "overlays/alpha/src/tools.py").exists()
    lines = (listed.root / LIST).read_text().splitlines()
    assert {"src/tools.py <- overlays/shared.py", "new.py", "src/era.py", "tools/go.sh"} == {*lines}
    listed.run("apply", "alpha")
    (listed.root / "overlays/shared.py").write_text("SHARED = 3\n")
    assert listed.state() == "stale"


# --- the real ones ---------------------------------------------------------------------------------------------------

engine = load_engine(PROJECT)
PATCHES = sorted((PROJECT / "patches").glob("*/*/*.patch"))


def complaints(body: str) -> list[str]:
    """What a patch's header lacks. A line that starts with a blank belongs to the field above."""
    lines = re.sub(r"\n[ \t]+", " ", body).splitlines()
    fields = dict(line.split(":", 1) for line in lines if re.match(r"[A-Z][A-Za-z-]+:", line))
    found = [f"the field {name}: is missing" for name in engine.project.FIELDS if name not in fields]
    for name in engine.project.FIELDS:
        text = fields.get(name, "x").strip()
        if not text or engine.project.PLACEHOLDER in text:
            found.append(f"the field {name}: is not filled in")
    return found


def test_every_upstream_and_version_can_be_read():
    known = engine.project.read_upstreams()
    assert known["verl"].versions["v0.4.1"].commit == "8d9e350ea58c7ad4b50dd14d9dcb50577242c55f"
    assert known["verl"].license == "Apache-2.0"
    assert {name for name, up in known.items() if up.on_request} == {"drl-code-pytorch", "humanoid-bench", "tdmpc2"}
    counts = {
        (name, label): len(engine.project.read_overlay(up, label).patches)
        for name, up in known.items()
        for label in up.versions
    }
    assert sum(counts.values()) == len(PATCHES) > 0
    assert {(folder.parent.name, folder.name) for folder in (PROJECT / "patches").glob("*/*")} == counts.keys()
    assert {path.stem for path in (PROJECT / "overlays").glob("*.list")} == known.keys()


@pytest.mark.parametrize("path", PATCHES, ids=[path.name for path in PATCHES])
def test_patches_are_complete_and_in_the_form_that_export_writes(path):
    assert complaints(engine.patches.read_patch(path.name, path.read_bytes()).body) == []
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "From " + "0" * 40 + " Mon Sep 17 00:00:00 2001"
    assert lines[1] == f"From: {engine.git.AUTHOR[0]} <{engine.git.AUTHOR[1]}>"
    assert lines[2] == "Date: Thu, 1 Jan 2026 00:00:00 +0000"
    assert "-- " not in lines


def test_the_test_of_headers_sees_what_is_missing():
    assert complaints("What: a thing\n that wraps\nWhy:\nPaper: FILL-IN\nDrop-When: later\n") == [
        "the field Upstream-Status: is missing",
        "the field Why: is not filled in",
        "the field Paper: is not filled in",
    ]
