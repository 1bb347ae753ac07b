"""upstreams.json says how many patches and overlay files there are, so that a missing one is no quiet success."""

from __future__ import annotations

import json
import shutil

import pytest
from kit import PROJECT


@pytest.fixture
def pinned(project):
    project.pinning = False
    return project


def numbers(project) -> tuple[int, int]:
    data = json.loads((project.root / "upstreams.json").read_text())
    return data["alpha"]["versions"]["v1"]["patches"], data["alpha"]["overlay_files"]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("patches/alpha/v1/0002-hook-core-and-util.patch", "patches/alpha/v1 holds 1 patch, upstreams.json expects 2"),
        ("patches/alpha", "patches/alpha/v1 holds 0 patches, upstreams.json expects 2"),
        ("overlays/alpha", "overlays/alpha holds 0 files, upstreams.json expects 2"),
        ("overlays", "overlays/alpha holds 0 files, upstreams.json expects 2"),
        ("overlays/alpha/src/era.py", "overlays/alpha holds 1 file, upstreams.json expects 2"),
    ],
)
@pytest.mark.parametrize("applied", [False, True])
def test_what_is_missing_is_told(pinned, lost, said, applied):
    if applied:
        pinned.run("apply", "alpha")
    path = pinned.root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for verb in ("apply", "status"):
        error = pinned.run(verb, "alpha", code=2).err
        assert said in error and "git checkout -- " in error and "othing was changed" in error
    assert pinned.checkout().exists() == applied
    if applied:  # both still work: neither needs what is missing
        pinned.run("export", "alpha")
        assert pinned.state() == "applied"
        pinned.run("revert", "alpha")


def test_patches_of_which_none_is_left_are_no_upstream_without_patches(pinned):
    shutil.rmtree(pinned.root / "patches/beta")
    for verb in ("apply", "status"):
        assert "patches/beta/b1 holds 0 patches, upstreams.json expects 1" in pinned.run(verb, "beta", code=2).err


def test_a_patch_added_by_hand(pinned):
    (pinned.root / "overlays/alpha/src/more.py").write_text("MORE = 1\n")
    error = pinned.run("apply", "alpha", code=2).err
    assert "overlays/alpha holds 3 files, upstreams.json expects 2" in error and '"overlay_files": 3' in error
    pinned.upstreams = json.loads((pinned.root / "upstreams.json").read_text())
    pinned.upstreams["alpha"]["overlay_files"] = 3
    pinned.save()
    pinned.run("apply", "alpha")


def test_export_keeps_the_numbers_and_nothing_else_changes(pinned):
    path = pinned.root / "upstreams.json"
    odd = path.read_text().replace('"overlay_files": 2', '"overlay_files"  :2 ').replace("{", "{\n\n", 1)
    path.write_text(odd)
    pinned.run("apply", "alpha")
    (pinned.checkout() / "src/new.py").write_text("NEW = 1\n")
    (pinned.checkout() / "README.md").write_text("# alpha\nera\n")
    assert "differs: upstreams.json" in pinned.run("export", "alpha", "--check", code=1).out
    assert path.read_text() == odd
    assert "written: upstreams.json" in pinned.run("export", "alpha").out
    assert numbers(pinned) == (3, 3)
    assert path.read_text() == odd.replace('"overlay_files"  :2 ', '"overlay_files"  :3 ').replace(
        '"patches": 2', '"patches": 3', 1
    )
    pinned.run("apply", "alpha")
    pinned.run("export", "--check", "alpha")
    path.write_text(path.read_text().replace('"patches": 3', '"patches": 7'))
    assert "differs: upstreams.json" in pinned.run("export", "alpha", "--check", code=1).out
    pinned.run("export", "alpha")
    assert numbers(pinned) == (3, 3)


@pytest.mark.parametrize("value", [-1, True, "2", None, 1.5])
def test_only_numbers_are_numbers(pinned, value):
    pinned.upstreams["alpha"].update(overlay_files=value)
    pinned.save()
    assert "expected a number of files" in pinned.run("status", code=2).err


def test_keys_that_look_like_the_one_meant_are_left_alone(pinned):
    text = '{"b": {"overlay_files": 1}, "a": {"x": ["overlay_files", ":", "a\\"{"], "y": {"overlay_files": 2}, "overlay_files": 3}}'
    found = pinned.engine.project.replace_number(text, ("a", "overlay_files"), 44)
    assert found == text.replace('"overlay_files": 3', '"overlay_files": 44')


def test_the_numbers_of_this_project(pinned):
    pinned.engine.project.ROOT = PROJECT
    for up in pinned.engine.project.read_upstreams().values():
        for label in up.versions:
            pinned.engine.project.count_project(up, label)
