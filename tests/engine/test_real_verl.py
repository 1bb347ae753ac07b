"""The engine on the real thing, where verl can be had (tests/conftest.py skips with the reason where not)."""

from __future__ import annotations

import json
import subprocess
import sys

from kit import APPLY


def call(patched_verl, *args: str, code: int = 0) -> str:
    command = [sys.executable, str(APPLY), *args, "--checkouts", str(patched_verl.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_status_and_export_agree_with_the_project(patched_verl):
    assert json.loads(call(patched_verl, "status", "verl", "--json"))["verl"]["state"] == "applied"
    call(patched_verl, "export", "verl", "--check")


def test_patches_are_small_hooks(patched_verl):
    """Fewer than 80 lines of upstream files change; all else is in new files."""
    numstat = subprocess.run(
        ["git", "diff", "--numstat", "--diff-filter=MD", "upstream/v0.4.1", "era"],
        cwd=patched_verl,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    changed = sum(
        int(added) + int(removed) for added, removed, _ in (line.split("\t") for line in numstat.splitlines())
    )
    assert 0 < changed < 80
