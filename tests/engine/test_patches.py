# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Patches: git applies them, and the ids in their `index` lines must be exactly what git made."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import FIRST, HEADER, branch, content, git, make_patch, replace_in

HEAD = HEADER.format(subject="x")
INDEX = f"index {'1' * 40}..{'2' * 40} 100644\n"
HUNK = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
DIFF = f"diff --git a/f b/f\n{INDEX}{HUNK}"


def put(project, patch: str | bytes, file: str = "0001-Hook-main.patch", name: str = "beta/b1") -> None:
    (project.root / "patches" / name / file).write_bytes(patch.encode() if isinstance(patch, str) else patch)


# --- what is refused before git sees it ---


@pytest.mark.parametrize(
    "patch",
    [
        "",
        HEAD,
        DIFF,
        HEAD.replace("Subject", "Object") + DIFF,
        HEAD + DIFF.replace(INDEX, ""),
        HEAD + DIFF.replace(INDEX, "index 123..456 100644\n"),
        HEAD + DIFF.replace(INDEX, INDEX * 2),
        HEAD + DIFF * 2,
        HEAD + DIFF.replace(INDEX, f"new file mode 100644\nindex {'0' * 40}..{'1' * 40}\n"),
        HEAD + "diff --git a/f b/g\nsimilarity index 90%\nrename from f\nrename to g\n",
        HEAD + f"diff --git a/f b/f\n{INDEX}copy from f\ncopy to f\n",
        HEAD + f"diff --git a/f b/f\n{INDEX}GIT binary patch\nliteral 1\nIcmZ\n",
        HEAD + 'diff --git "a/f\\303\\244" "b/f\\303\\244"\n' + INDEX,
    ],
    ids=["empty", "no diff", "no mail", "no subject", "no ids", "short ids", "two ids", "a file twice", "new file"]
    + ["rename", "copy", "binary", "quoted path"],
)
def test_patches_that_are_not_supported(project, patch):
    put(project, patch)
    result = project.run("apply", "beta", code=None)
    assert result.code in (2, 3, 4) and "0001-Hook-main.patch" in result.err and not project.checkout("beta").exists()


def test_line_ends_that_git_converted_are_named_as_such(project):
    path = project.patch(1)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert "autocrlf" in project.run("apply", "alpha", code=2).err


# --- what git, or the ids, refuse ---


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("+print(22)", "+print(23)", 3),  # edited by hand
        ("+print(22)", "+print(22)\n+more", 2),  # the hunk has more lines than it announces
        ("-print(2)", "-print(two)", 4),  # made for another file
        ("@@ -1,3 +1,3 @@", "@@ -1,3 +1,4 @@", 2),
        ("@@ -1,3 +1,3 @@", "@@ nonsense @@", 2),
        ("print(3)\n", "", 2),  # cut short
        ("[PATCH] Hook", "[PATCH] Hook\0", 2),  # git has no such message
        ("main.py", "../main.py", 4),
        ("main.py", ".git/config", 4),
        ("main.py", "gone.py", 4),
    ],
)
def test_altered_patches(project, old, new, code):
    text = project.patch(1, "beta", "b1").read_text()
    assert old in text
    put(project, text.replace(old, new))
    error = project.run("apply", "beta", code=code).err
    assert "0001-Hook-main.patch" in error and not project.checkout("beta").exists()
    assert code != 4 or "port beta --onto b1" in error
    assert code != 3 or "index line" in error


def test_a_hunk_that_git_would_put_elsewhere(project):
    """git apply finds it some lines further down: only the ids tell that this is another file."""
    branch(project, "moved", replace_in("src/core.py", "line 1 of", "zero\nline 1 of"))
    project.upstreams["alpha"]["versions"]["v1"] = {"commit": git(project.up / "alpha", "rev-parse", "moved")}
    project.save()
    assert "index line" in project.run("apply", "alpha", code=3).err and not project.checkout().exists()


def test_modes_other_than_those_of_plain_files(project):
    put(project, HEAD + "diff --git a/main.py b/main.py\nold mode 100644\nnew mode 120000\n")
    assert project.run("apply", "beta", code=None).code in (2, 4)
    put(project, HEAD + "diff --git a/main.py b/main.py\nold mode 100644\nnew mode 100755\n")
    project.run("apply", "beta")
    assert content(project.checkout("beta"))["main.py"][0]


def test_a_patch_that_deletes_a_file(project):
    text, _ = make_patch(project.up / "alpha", "v1", lambda up: (up / "src/old.py").unlink(), "Drop the old")
    put(project, text, "0003-drop-the-old.patch", "alpha/v1")
    project.run("apply", "alpha")
    assert not (project.checkout() / "src/old.py").exists()
    put(project, text.replace("-gone = True", "-gone = False"), "0003-drop-the-old.patch", "alpha/v1")
    project.run("apply", "alpha", "--checkouts", str(project.root / "other"), code=4)


def test_a_folded_subject_and_the_signature_of_a_mail(project):
    text = project.patch(1, "beta", "b1").read_text()
    text = text.replace("[PATCH] Hook main", "[PATCH 1/2] Hook\n main, and more") + "-- \n2.39.5\n\n"
    put(project, text)
    project.run("apply", "beta")
    assert git(project.checkout("beta"), "log", "-1", "--format=%s") == "Hook main, and more"


def test_git_am_reads_our_patches(project, tmp_path):
    """The format is git's own: `git am` makes the same files."""
    project.run("apply", "alpha")
    tree = tmp_path / "am"
    git(tmp_path, "clone", "-q", "--branch", "v1", str(project.up / "alpha"), str(tree))
    git(tree, "am", "-q", str(project.patch(1)), str(project.patch(2)))
    patched = content(project.checkout())
    assert content(tree) == {path: patched[path] for path in FIRST}


# --- any patch ---


@pytest.fixture(scope="module")
def tree(any_project, tmp_path_factory):
    """A plain clone of beta at the pinned commit."""
    folder = tmp_path_factory.mktemp("plain") / "beta"
    git(any_project.up, "clone", "-q", str(any_project.up / "beta"), str(folder))
    git(folder, "checkout", "-q", any_project.ids["beta"])
    return folder


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_mutated_patch_is_refused_or_gives_what_its_ids_say(any_project, tree, data):
    """Where it is accepted, plain git makes the same of it, with the ids that it names."""
    project = any_project
    git(project.root, "checkout", "-q", "first", "--", "patches/beta")
    raw = project.patch(1, "beta", "b1").read_bytes()
    lines = raw.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["drop", "double", "cut", "bit", "first"]))
        if kind == "drop" and len(lines) > 1:
            del lines[at]
        elif kind == "double":
            lines.insert(at, lines[at])
        elif kind == "cut":
            lines[at] = lines[at][: len(lines[at]) // 2]
        elif kind == "bit" and lines[at]:
            bit = data.draw(st.integers(0, len(lines[at]) - 1))
            lines[at] = (
                lines[at][:bit] + bytes([lines[at][bit] ^ 1 << data.draw(st.integers(0, 7))]) + lines[at][bit + 1 :]
            )
        else:
            lines[at] = data.draw(st.sampled_from([b" ", b"-", b"+", b"\\", b"@", b"x"])) + lines[at][1:]
    mutated = b"".join(lines)
    put(project, mutated)
    shutil.rmtree(project.checkouts, ignore_errors=True)
    result = project.run("apply", "beta", "--offline", code=None)
    assert result.code in (0, 2, 3, 4), result.text
    if result.code == 0:
        applied = subprocess.run(["git", "apply", "--cached", "-"], cwd=tree, input=mutated, capture_output=True)
        found = git(tree, "ls-files", "--stage", "main.py").split()[1]
        git(tree, "reset", "-q")
        assert applied.returncode == 0 and found in mutated.decode("utf-8", "replace") and found in raw.decode()
