# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The engine on the real upstreams, where they can be fetched (tests/conftest.py skips with the reason where not)."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from kit import APPLY, PROJECT, git

pytestmark = pytest.mark.upstream

# Where a checkout has the file of the library, era/.
LIBRARY = {
    "verl": ("verl/utils/era/language.py", "era/language.py"),
    "timm": ("timm/layers/era.py", "era/discrete.py"),
    "fasttd3": ("fast_td3/era.py", "era/continuous.py"),
    "tdmpc2": ("tdmpc2/common/era.py", "era/continuous.py"),
}


@pytest.fixture(
    params=(*LIBRARY, "fasttd3 229ed59"), scope="session"
)  # made before quiet_git takes the configuration for git away
def checkout(request) -> Path:
    name, _, version = request.param.partition(" ")
    if not version:
        return request.getfixturevalue(f"patched_{name}")
    return request.getfixturevalue("trees_of")(name, version)[0]


def upstream(checkout: Path) -> str:
    """The tag of the upstream under the overlay."""
    return git(checkout, "tag", "--list", "upstream/*").strip()


def call(checkout: Path, *args: str) -> str:
    command = [sys.executable, str(APPLY), *args, "--checkouts", str(checkout.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_status_and_export_agree_with_the_project(checkout):
    name = checkout.name
    assert json.loads(call(checkout, "status", name, "--json"))[name]["state"] == "applied"
    call(checkout, "export", name, "--check")


def test_library_files_in_a_checkout_are_the_librarys(checkout):
    """That `export` writes an edit back there: test_project.py, of a shared overlay file."""
    file, source = LIBRARY[checkout.name]
    assert (checkout / file).read_bytes() == (PROJECT / source).read_bytes()


def test_overlay_names_without_case_and_accents(checkout):
    """macOS and Windows would have one file for both names. Upstream's own names may clash among themselves."""
    new = git(checkout, "diff", "--name-only", "--diff-filter=A", upstream(checkout), "era").splitlines()
    names = git(checkout, "ls-tree", "-r", "-t", "--name-only", "era").splitlines()
    plain = [unicodedata.normalize("NFC", name).casefold() for name in names]
    assert new and all(plain.count(unicodedata.normalize("NFC", name).casefold()) == 1 for name in new)
