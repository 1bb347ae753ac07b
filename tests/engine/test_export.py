# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""export: an edited checkout becomes patches and overlay files, and applying those gives the checkout back."""

from __future__ import annotations

import shutil

from kit import commit, content, git, replace_in, write_tree


def files(project) -> dict:
    return {**content(project.root / "patches"), **content(project.root / "overlays")}


def series(project) -> list[str]:
    return (project.root / "patches/alpha/v1/series").read_text().split()


def round_trip(project) -> None:
    """What was exported, built again, is the edited checkout."""
    edited = content(project.checkout())
    assert project.state() == "stale"
    project.run("apply", "alpha")
    assert content(project.checkout()) == edited and project.state() == "applied"
    project.run("export", "alpha", "--check")
    commit(project.root, "Exported")


def test_export_right_after_apply_changes_nothing(project):
    assert "nothing to export" in project.run("export", "alpha", code=3).err
    project.run()
    before = files(project)
    assert "equal the checkout" in project.run("export").out
    project.run("export", "--check")
    assert files(project) == before
    project.run("revert", "alpha")
    assert "nothing to export" in project.run("export", "alpha", code=3).err


def test_edits_of_every_kind(project):
    """An edit goes into the last patch that touches the file, or into a new one; new files become overlay files."""
    project.run("apply", "alpha")
    checkout = project.checkout()
    replace_in("src/core.py", "line 30 of", "line 30, edited, of")(checkout)
    odd = "# alpha\n-- \ndiff --git a/f b/f\n@@ -1 +1 @@\né\r\n\\ No newline\n\\ x"  # as a patch itself may have
    write_tree(checkout, {"README.md": odd, "bare.txt": "no newline\nat the end"})
    write_tree(checkout, {"src/new.py": "NEW = 1\n", "src/new.sh": "#!/bin/sh\n", "crlf.txt": "one\r\n2\r\n"})
    write_tree(checkout, {"src/__pycache__/x.pyc": "1", "data.bin": "\0\1"})
    (checkout / "README.md").chmod(0o755)
    for path in ("src/old.py", "src/era.py"):
        (checkout / path).unlink()
    first, before = project.patch(1).read_bytes(), files(project)
    assert "differs: patches/alpha/v1/0002" in project.run("export", "alpha", "--check", code=1).out
    assert files(project) == before
    out = project.run("export", "alpha").out
    assert "the edit of src/core.py goes into the patch 'Hook core and util'" in out
    assert "README.md goes into a new patch; fill in its header" in out
    assert "removed: overlays/alpha/src/era.py" in out and "not small text files: data.bin" in out
    assert project.patch(1).read_bytes() == first and b"line 30, edited" in project.patch(2).read_bytes()
    for field in ("What", "Why", "Paper", "Upstream-Status", "Drop-When"):
        assert f"\n{field}: FILL-IN\n" in project.patch(3).read_text()
    assert series(project)[2:] == [project.patch(3).name]
    overlays = content(project.root / "overlays/alpha")
    assert overlays["src/new.py"] == (False, b"NEW = 1\n") and overlays["src/new.sh"][0]
    listed = (project.root / "overlays/alpha.list").read_text().split()
    assert listed == ["tools/go.sh", "src/new.py", "src/new.sh"] and not overlays.keys() & {"data.bin", "src/era.py"}
    (checkout / "data.bin").unlink()
    round_trip(project)
    (checkout / "src/old.py").write_text("gone = False\n")  # a file that the overlay deletes comes back
    assert "the edit of src/old.py goes into" in project.run("export", "alpha").out
    round_trip(project)


def test_a_patch_without_changes_disappears(project):
    project.run("apply", "alpha")
    git(project.checkout(), "checkout", "-q", "upstream/v1", "--", "src/util.py")
    replace_in("src/core.py", "line 40, hooked, of", "line 40 of")(project.checkout())
    project.run("export", "alpha")
    assert series(project) == ["0001-Hook-the-core.patch"] and len(list(project.root.glob("patches/alpha/v1/*"))) == 2
    git(project.checkout(), "reset", "-q")
    round_trip(project)


def test_commits_become_patches_with_their_messages(project):
    """Commits on the branch era do, also where one of our commits was amended. A merge is refused."""
    project.run("apply", "alpha")
    checkout = project.checkout()
    replace_in("src/util.py", "b + a", "b + a  # amended")(checkout)
    git(checkout, "commit", "-q", "-a", "--amend", "--no-edit")
    assert project.state() == "modified"
    write_tree(checkout, {"README.md": "# alpha\ncommitted\n", "src/side.py": "SIDE = 1\n"})
    head = commit(checkout, "Say more: in the readme\n\nWhat: more text\nWhy: it was short\n")
    project.run("export", "alpha")
    assert b"# amended" in project.patch(2).read_bytes() and len(series(project)) == 3
    text = project.patch(3).read_text()
    assert project.patch(3).name == "0003-Say-more-in-the-readme.patch"
    assert "Subject: [PATCH] Say more: in the readme\n" in text
    assert "What: more text\n" in text and "Paper: FILL-IN\n" in text
    assert (project.root / "overlays/alpha/src/side.py").exists()
    (checkout / "crlf.txt").write_text("edited since\n")
    assert "your edits are kept: crlf.txt" in project.run("apply", "alpha").out
    assert (checkout / "crlf.txt").read_text() == "edited since\n" and project.state() == "modified"
    assert git(checkout, "rev-parse", f"era-saved/{head[:12]}") == head
    git(checkout, "checkout", "-q", "crlf.txt")
    project.run("export", "alpha", "--check")
    git(checkout, "checkout", "-q", "-b", "side")
    commit(checkout, "Side")
    git(checkout, "checkout", "-q", "era")
    git(checkout, "merge", "-q", "--no-ff", "-m", "Merge", "side")
    assert f"{git(checkout, 'rev-parse', 'HEAD')} is a merge" in project.run("export", "alpha", code=5).err


def test_a_folder_of_overlay_files_that_became_a_file_and_back(project):
    project.run("apply", "alpha")
    tools = project.checkout() / "tools"
    shutil.rmtree(tools)
    tools.write_text("a file now\n")
    project.run("export", "alpha")
    assert (project.root / "overlays/alpha/tools").read_text() == "a file now\n"
    round_trip(project)
    tools.unlink()
    write_tree(tools, {"go.py": "GO = 1\n"})
    project.run("export", "alpha")
    assert (project.root / "overlays/alpha/tools/go.py").read_text() == "GO = 1\n"


# --- what is refused ---


def test_binary_edits_and_overwritten_upstream_files_are_refused(project):
    project.run("apply", "alpha")
    before = files(project)
    (project.checkout() / "README.md").write_bytes(b"\0\1\2")
    assert "binary file (README.md)" in project.run("export", "alpha", code=2).err
    git(project.checkout(), "checkout", "-q", "README.md")
    util = project.checkout() / "src/util.py"
    util.unlink()
    write_tree(util, {"inside.py": "x = 1\n"})
    assert "inside.py would overwrite" in project.run("export", "alpha", code=3).err
    assert files(project) == before


def test_only_committed_files_are_overwritten(project):
    """git can bring these back. All else is somebody's work, also what changed since the apply, committed or not."""
    era, go = (project.root / "overlays/alpha" / file for file in ("src/era.py", "tools/go.sh"))
    project.run("apply", "alpha")
    write_tree(project.checkout(), {"src/era.py": "ERA = 5\n"})
    (project.root / ".git").rename(project.root / "no.git")
    assert "not a git repository" in project.run("export", "alpha", code=5).err
    (project.root / "no.git").rename(project.root / ".git")
    project.run("export", "alpha")
    project.run("apply", "alpha")
    write_tree(project.checkout(), {"src/era.py": "ERA = 6\n"})
    assert "overlays/alpha/src/era.py" in project.run("export", "alpha", code=5).err
    assert era.read_text() == "ERA = 5\n"
    commit(project.root, "Era 5")
    go.write_text("#!/bin/sh\n# mine\n")
    for message in ("Not yet", "Mine"):
        error = project.run("export", "alpha", code=5).err
        assert "changed since" in error and "overlays/alpha/src/era.py" in error
        commit(project.root, message)
    go.write_text("#!/bin/sh\n")
    project.run("apply", "alpha")
    (project.checkout() / "tools/go.sh").unlink()
    assert "overlays/alpha/tools/go.sh" in project.run("export", "alpha", code=5).err and go.exists()
