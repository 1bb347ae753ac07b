# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Patches: git applies them, and the ids in their `index` lines must be exactly what git made."""

from __future__ import annotations

import pytest
from kit import FIRST, HEADER, branch, content, git, make_patch, replace_in

HEAD = HEADER.format(subject="x")
INDEX = f"index {'1' * 40}..{'2' * 40} 100644\n"
HUNK = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
DIFF = f"diff --git a/f b/f\n{INDEX}{HUNK}"


def put(project, patch: str | bytes) -> None:
    """Write a patch in the place of beta's."""
    project.patch(1, "beta", "b1").write_bytes(patch.encode() if isinstance(patch, str) else patch)


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
        HEAD + "diff --git a/main.py b/main.py\nold mode 100644\nnew mode 120000\n",
    ],
    ids=["empty", "no diff", "no mail", "no subject", "no ids", "short ids", "two ids", "a file twice", "new file"]
    + ["rename", "copy", "binary", "quoted path", "link"],
)
def test_patches_that_are_not_supported(project, patch):
    put(project, patch)
    result = project.run("apply", "beta", code=None)
    assert result.code in (2, 3, 4) and "0001-Hook-main.patch" in result.err and not project.checkout("beta").exists()


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
        ("\n", "\r\n", 2),  # git converted the line ends
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
    assert new != "\r\n" or "autocrlf" in error


def test_a_hunk_that_git_would_put_elsewhere(project):
    """git apply finds it some lines further down: only the ids tell that this is another file."""
    branch(project, "moved", replace_in("src/core.py", "line 1 of", "zero\nline 1 of"))
    project.upstreams["alpha"]["versions"]["v1"] = {"commit": git(project.up / "alpha", "rev-parse", "moved")}
    project.save()
    assert "index line" in project.run("apply", "alpha", code=3).err and not project.checkout().exists()


def test_git_am_makes_the_same_files(project, tmp_path):
    """The format is git's own, with deletions, modes, folded subjects and the signature of a mail."""

    def edit(up) -> None:
        (up / "src/old.py").unlink()
        (up / "README.md").chmod(0o755)

    text, _ = make_patch(project.up / "alpha", "v1", edit, "Drop the old")
    text = text.replace("[PATCH] Drop the old", "[PATCH 3/3] Drop\n the old, and more") + "-- \n2.39.5\n\n"
    project.add({"patches/alpha/v1/0003-Drop-the-old.patch": text})
    project.run("apply", "alpha")
    assert git(project.checkout(), "log", "-1", "--format=%s") == "Drop the old, and more"
    tree = tmp_path / "am"
    git(tmp_path, "clone", "-q", "--branch", "v1", str(project.up / "alpha"), str(tree))
    git(tree, "am", "-q", *(str(project.patch(number)) for number in (1, 2, 3)))
    patched = content(project.checkout())
    assert patched["README.md"][0] and "src/old.py" not in patched
    assert content(tree) == {path: patched[path] for path in FIRST if path != "src/old.py"}
