# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""export: an edited checkout becomes patches and overlay files, and applying those gives the checkout back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import content, git, write_tree


def files(project) -> dict:
    return {**content(project.root / "patches"), **content(project.root / "overlays")}


def series(project) -> list[str]:
    return (project.root / "patches/alpha/v1/series").read_text().split()


def round_trip(project) -> None:
    """What was exported, applied to a fresh checkout, is the edited checkout."""
    edited = content(project.checkout())
    project.pinning = False  # the series and the lists are those that export wrote
    project.run("apply", "alpha")
    assert content(project.checkout()) == edited and project.state() == "applied"
    project.commit()
    project.run("export", "alpha", "--check")
    again = Path(tempfile.mkdtemp(dir=project.root.parent))
    project.run("apply", "alpha", "--checkouts", str(again))
    assert content(again / "alpha") == edited
    project.pinning = True


def test_export_right_after_apply_changes_nothing(project):
    project.run()
    before = files(project)
    assert "equal the checkout" in project.run("export").out
    project.run("export", "--check")
    assert files(project) == before


def test_an_edit_goes_into_the_last_patch_that_touches_the_file(project):
    project.run("apply", "alpha")
    core = project.checkout() / "src/core.py"
    core.write_text(core.read_text().replace("line 30 of", "line 30, edited, of"))
    first, second = project.patch(1).read_bytes(), project.patch(2).read_bytes()
    assert "differs: patches/alpha/v1/0002" in project.run("export", "alpha", "--check", code=1).out
    assert project.patch(2).read_bytes() == second
    project.run("export", "alpha")
    assert project.patch(1).read_bytes() == first and b"line 30, edited" in project.patch(2).read_bytes()
    assert project.state() == "stale"
    round_trip(project)


def test_a_file_without_a_patch_gets_a_new_one_whose_header_must_be_filled_in(project):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("# alpha\nera\n")
    out = project.run("export", "alpha").out
    assert "README.md goes into a new patch; fill in its header" in out
    text = project.patch(3).read_text()
    for field in ("What", "Why", "Paper", "Upstream-Status", "Drop-When"):
        assert f"\n{field}: FILL-IN\n" in text
    assert series(project)[2] == project.patch(3).name
    round_trip(project)


def test_new_deleted_and_executable_overlay_files(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    write_tree(checkout, {"src/new.py": "NEW = 1\n", "src/new.sh": "#!/bin/sh\n", "data.bin": "\0\1"})
    write_tree(checkout, {"src/__pycache__/x.pyc": "1"})
    (checkout / "src/era.py").unlink()
    out = project.run("export", "alpha").out
    assert "removed: overlays/alpha/src/era.py" in out and "not small text files: data.bin" in out
    overlays = content(project.root / "overlays/alpha")
    assert overlays["src/new.py"] == (False, b"NEW = 1\n") and overlays["src/new.sh"][0]
    assert "data.bin" not in overlays and "src/era.py" not in overlays
    listed = (project.root / "overlays/alpha.list").read_text().splitlines()
    assert sorted(listed) == ["src/new.py", "src/new.sh", "tools/go.sh"]
    (checkout / "data.bin").unlink()
    (checkout / "src/__pycache__/x.pyc").unlink()
    round_trip(project)


def test_a_patch_without_changes_disappears(project):
    project.run("apply", "alpha")
    git(project.checkout(), "checkout", "-q", "upstream/v1", "--", "src/util.py")
    core = project.checkout() / "src/core.py"
    core.write_text(core.read_text().replace("line 40, hooked, of", "line 40 of"))
    project.run("export", "alpha")
    assert series(project) == ["0001-Hook-the-core.patch"] and len(list(project.root.glob("patches/alpha/v1/*"))) == 2
    git(project.checkout(), "reset", "-q")
    round_trip(project)


def test_commits_on_era_become_patches_with_their_messages(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    write_tree(checkout, {"README.md": "# alpha\ncommitted\n", "src/side.py": "SIDE = 1\n"})
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "Say more: in the readme\n\nWhat: more text\nWhy: it was short\n")
    head = git(checkout, "rev-parse", "HEAD")
    project.run("export", "alpha")
    text = project.patch(3).read_text()
    assert project.patch(3).name.lower() == "0003-say-more-in-the-readme.patch"
    assert "Subject: [PATCH] Say more: in the readme\n" in text
    assert "What: more text\n" in text and "Paper: FILL-IN\n" in text
    assert (project.root / "overlays/alpha/src/side.py").exists()
    (checkout / "crlf.txt").write_text("edited since\n")
    assert "your edits are kept: crlf.txt" in project.run("apply", "alpha").out
    assert (checkout / "crlf.txt").read_text() == "edited since\n" and project.state() == "modified"
    git(checkout, "checkout", "-q", "crlf.txt")
    round_trip(project)
    assert git(checkout, "rev-parse", f"era-saved/{head[:12]}") == head


def test_an_amended_commit_is_exported_too(project):
    project.run("apply", "alpha")
    util = project.checkout() / "src/util.py"
    util.write_text(util.read_text() + "# amended\n")
    git(project.checkout(), "commit", "-q", "-a", "--amend", "--no-edit")
    assert project.state() == "modified"
    project.run("export", "alpha")
    assert b"# amended" in project.patch(2).read_bytes() and len(series(project)) == 2
    round_trip(project)


def test_merges_are_refused(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "checkout", "-q", "-b", "side")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "side")
    git(checkout, "checkout", "-q", "era")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "era")
    git(checkout, "merge", "-q", "--no-ff", "-m", "merge", "side")
    assert "is a merge" in project.run("export", "alpha", code=5).err


def test_modes_line_ends_and_deletions_survive(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (checkout / "bare.txt").write_bytes(b"no newline\nat the end")
    (checkout / "README.md").chmod(0o755)
    (checkout / "src/old.py").unlink()
    project.run("export", "alpha")
    round_trip(project)
    # A file that the overlay deletes, and that the user brought back.
    project.run("apply", "alpha")
    (checkout / "src/old.py").write_text("gone = False\n")
    assert "the edit of src/old.py goes into" in project.run("export", "alpha").out
    round_trip(project)


def test_a_folder_of_overlay_files_that_became_a_file_and_back(project):
    project.run("apply", "alpha")
    tools = project.checkout() / "tools"
    (tools / "go.sh").unlink()
    tools.rmdir()
    tools.write_text("a file now\n")
    project.run("export", "alpha")
    assert (project.root / "overlays/alpha/tools").read_text() == "a file now\n"
    round_trip(project)
    tools.unlink()
    write_tree(tools, {"go.py": "GO = 1\n"})
    project.run("export", "alpha")
    assert (project.root / "overlays/alpha/tools/go.py").read_text() == "GO = 1\n"


# --- what is refused ---


def test_export_needs_an_applied_overlay(project):
    assert "nothing to export" in project.run("export", "alpha", code=3).err
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    assert "nothing to export" in project.run("export", "alpha", code=3).err


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
    """git has them; whatever it has not, is somebody's work."""
    project.run("apply", "alpha")
    (project.checkout() / "src/era.py").write_text("ERA = 5\n")
    project.pinning = False
    error = project.run("export", "alpha", code=5).err
    assert "not a git repository" in error and (project.root / "overlays/alpha/src/era.py").read_text() == "ERA = 1\n"
    project.commit()
    project.run("export", "alpha")
    project.run("apply", "alpha")
    (project.checkout() / "src/era.py").write_text("ERA = 6\n")
    assert "overlays/alpha/src/era.py" in project.run("export", "alpha", code=5).err
    project.commit()
    project.run("export", "alpha")
    assert (project.root / "overlays/alpha/src/era.py").read_text() == "ERA = 6\n"
    project.run("apply", "alpha")
    (project.checkout() / "tools/go.sh").unlink()
    (project.root / "overlays/alpha/tools/go.sh").write_text("#!/bin/sh\n# mine\n")
    assert "overlays/alpha/tools/go.sh" in project.run("export", "alpha", code=5).err
    assert (project.root / "overlays/alpha/tools/go.sh").read_text() == "#!/bin/sh\n# mine\n"


def test_what_changed_in_the_project_since_the_apply_is_not_overwritten(project):
    project.run("apply", "alpha")
    (project.checkout() / "src/era.py").write_text("from = checkout\n")
    (project.root / "overlays/alpha/src/era.py").write_text("from = project\n")
    error = project.run("export", "alpha", code=5).err  # although it is committed
    assert "changed since" in error and "overlays/alpha/src/era.py" in error
    assert (project.root / "overlays/alpha/src/era.py").read_text() == "from = project\n"


# --- any edit ---

PATHS = ("README.md", "src/core.py", "src/util.py", "src/old.py", "src/era.py", "crlf.txt", "new/file.py", "x.sh")
LINES = st.lists(st.sampled_from(["a", "", "-- ", "diff --git a/f b/f", "@@ -1 +1 @@", "é\r", "\\ x"]), max_size=6)
TEXTS = st.tuples(LINES, st.sampled_from(["", "\n"])).map(lambda made: "\n".join(made[0]) + made[1])


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits=st.dictionaries(st.sampled_from(PATHS), TEXTS | st.none() | st.booleans(), min_size=1, max_size=5))
def test_any_edits_come_back(any_project, edits):
    project, checkout = any_project, any_project.checkout()
    git(project.root, "reset", "-q", "--hard", "first")
    git(project.root, "clean", "-f", "-d", "-q", "patches", "overlays")
    shutil.rmtree(project.checkouts, ignore_errors=True)
    project.run("apply", "alpha")
    for path, edit in edits.items():
        target = checkout / path
        if isinstance(edit, str):
            write_tree(checkout, {path: edit})
        elif target.exists():
            target.unlink() if edit is None else target.chmod(0o755 if edit else 0o644)
    edited = content(checkout)
    project.run("export", "alpha")
    shutil.rmtree(project.checkouts)
    project.run("apply", "alpha")
    assert content(checkout) == edited
