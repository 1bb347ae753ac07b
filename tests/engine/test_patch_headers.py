"""Every patch of this project says what it does, why, where the paper asks for it, and when it can go."""

from __future__ import annotations

import re

import pytest
from kit import PROJECT, load_engine

PATCHES = sorted((PROJECT / "patches").glob("*/*/*.patch"))
engine = load_engine(PROJECT)


def read_fields(body: str) -> dict[str, str]:
    """The fields of a header; a line that starts with a blank goes on with the field above."""
    unfolded = re.sub(r"\n[ \t]+", " ", body)
    return dict(line.split(":", 1) for line in unfolded.splitlines() if re.match(r"[A-Z][A-Za-z-]+:", line))


def complaints(patch) -> list[str]:
    fields = read_fields(patch.body)
    found = [f"the field {name}: is missing" for name in engine.project.FIELDS if name not in fields]
    for name in engine.project.FIELDS:
        text = fields.get(name, "x").strip()
        if not text or engine.project.PLACEHOLDER in text:
            found.append(f"the field {name}: is not filled in")
    return found


def test_there_are_patches():
    assert PATCHES


@pytest.mark.parametrize("path", PATCHES, ids=[path.name for path in PATCHES])
def test_header(path):
    patch = engine.patches.PatchReader(path.name, path.read_bytes()).read()
    assert complaints(patch) == []


@pytest.mark.parametrize("path", PATCHES, ids=[path.name for path in PATCHES])
def test_deterministic_form(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "From " + "0" * 40 + " Mon Sep 17 00:00:00 2001"
    assert lines[1] == f"From: {engine.git.AUTHOR[0]} <{engine.git.AUTHOR[1]}>"
    assert lines[2] == f"Date: {engine.export.DATE_MAIL}"
    assert "-- " not in lines
    assert all(
        re.fullmatch(r"index [0-9a-f]{40}\.\.[0-9a-f]{40}( \d{6})?", line)
        for line in lines
        if line.startswith("index ")
    )


def test_versions_and_names_are_known():
    known = engine.project.read_upstreams()
    for path in PATCHES:
        assert path.parent.name in known[path.parent.parent.name].versions
    for folder in (PROJECT / "overlays").iterdir():
        assert folder.name in known


def test_the_test_itself_sees_what_is_missing():
    text = "What: a thing\n that wraps\nWhy:\nPaper: FILL-IN\nDrop-When: later\n"
    patch = engine.patches.Patch("x", b"", "subject", text, [])
    assert complaints(patch) == [
        "the field Upstream-Status: is missing",
        "the field Why: is not filled in",
        "the field Paper: is not filled in",
    ]
