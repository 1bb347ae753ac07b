"""export: an edited checkout becomes patches and overlay files, and applying those gives the checkout back."""

from __future__ import annotations

from kit import content, git


def files(project) -> dict:
    return {**content(project.root / "patches"), **content(project.root / "overlays")}


def round_trip(project) -> None:
    """What was exported, applied from nothing, is the edited checkout."""
    edited = content(project.checkout())
    project.run("apply", "alpha")
    assert content(project.checkout()) == edited
    assert project.state() == "applied"
    project.run("export", "alpha", "--check")
    project.run("apply", "alpha", "--checkouts", str(project.root / "again"))
    fresh = content(project.root / "again" / "alpha")
    assert fresh == {path: item for path, item in edited.items() if path in fresh} and len(fresh) == len(edited)


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
    round_trip(project)


def test_new_deleted_and_executable_overlay_files(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "src/new.py").write_text("NEW = 1\n")
    (checkout / "src/era.py").unlink()
    (checkout / "src/new.sh").write_text("#!/bin/sh\n")
    (checkout / "src/new.sh").chmod(0o755)
    (checkout / "data.bin").write_bytes(b"\0\1")
    (checkout / "src/__pycache__").mkdir()
    (checkout / "src/__pycache__/x.pyc").write_bytes(b"1")
    out = project.run("export", "alpha").out
    assert "removed: overlays/alpha/src/era.py" in out and "no small text file: data.bin" in out
    overlays = content(project.root / "overlays/alpha")
    assert overlays["src/new.py"] == (False, b"NEW = 1\n") and overlays["src/new.sh"][0]
    assert "data.bin" not in overlays and "src/era.py" not in overlays
    (checkout / "data.bin").unlink()
    (checkout / "src/__pycache__/x.pyc").unlink()
    round_trip(project)


def test_a_patch_whose_every_change_is_undone_disappears_and_the_rest_is_renumbered(project):
    project.run("apply", "alpha")
    git(project.checkout(), "checkout", "-q", "upstream/v1", "--", "src/util.py")
    core = project.checkout() / "src/core.py"
    core.write_text(core.read_text().replace("line 40, hooked, of", "line 40 of"))
    project.run("export", "alpha")
    assert [path.name for path in sorted((project.root / "patches/alpha/v1").iterdir())] == ["0001-hook-the-core.patch"]
    git(project.checkout(), "reset", "-q")
    round_trip(project)


def test_commits_on_era_become_patches_with_their_messages(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("# alpha\ncommitted\n")
    (checkout / "src/side.py").write_text("SIDE = 1\n")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "Say more: in the readme\n\nWhat: more text\nWhy: it was short\n")
    head = git(checkout, "rev-parse", "HEAD")
    project.run("export", "alpha")
    patch = project.patch(3)
    assert patch.name == "0003-say-more-in-the-readme.patch"
    text = patch.read_text()
    assert (
        "Subject: [PATCH] Say more: in the readme\n" in text
        and "What: more text\n" in text
        and "Paper: FILL-IN\n" in text
    )
    assert (project.root / "overlays/alpha/src/side.py").exists()
    round_trip(project)
    assert git(checkout, "rev-parse", f"era-backup-{head[:12]}") == head


def test_edits_made_after_the_export_of_commits_are_carried(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("# alpha\ncommitted\n")
    git(checkout, "commit", "-q", "-am", "Mine")
    project.run("export", "alpha")
    (checkout / "crlf.txt").write_text("edited since\n")
    assert "your edits are kept: crlf.txt" in project.run("apply", "alpha").out
    assert (checkout / "crlf.txt").read_text() == "edited since\n" and project.state() == "modified"


def test_a_rewritten_stack_is_exported_too(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    util = checkout / "src/util.py"
    util.write_text(util.read_text() + "# amended\n")
    git(checkout, "commit", "-q", "-a", "--amend", "--no-edit")
    assert project.state() == "modified"
    project.run("export", "alpha")
    assert (
        b"# amended" in project.patch(2).read_bytes() and len(list((project.root / "patches/alpha/v1").iterdir())) == 2
    )
    round_trip(project)


def test_commits_that_were_not_exported_stop_a_stale_apply(project):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    git(project.checkout(), "commit", "-q", "-am", "Mine")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    before = content(project.checkout())
    assert "commits that are not ours" in project.run("apply", "alpha", code=5).err
    assert content(project.checkout()) == before


def test_merges_are_refused(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "checkout", "-q", "-b", "side")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "side")
    git(checkout, "checkout", "-q", "era")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "era")
    git(checkout, "merge", "-q", "--no-ff", "-m", "merge", "side")
    assert "is a merge" in project.run("export", "alpha", code=5).err


def test_export_never_overwrites_what_changed_meanwhile(project):
    project.run("apply", "alpha")
    (project.checkout() / "src/era.py").write_text("from = checkout\n")
    (project.root / "overlays/alpha/src/era.py").write_text("from = project\n")
    assert "changed in this project" in project.run("export", "alpha", code=5).err
    assert (project.root / "overlays/alpha/src/era.py").read_text() == "from = project\n"


def test_edit_export_edit_export_without_an_apply_between(project):
    project.run("apply", "alpha")
    for step in range(3):
        (project.checkout() / "src/era.py").write_text(f"ERA = {step + 5}\n")
        (project.checkout() / "README.md").write_text(f"step {step}\n")
        project.run("export", "alpha")
        assert (project.root / "overlays/alpha/src/era.py").read_text() == f"ERA = {step + 5}\n"
    round_trip(project)


def test_export_is_deterministic(project):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("# alpha\nera\n")
    project.run("export", "alpha")
    once = files(project)
    git(project.checkout(), "config", "diff.context", "7")
    git(project.checkout(), "config", "diff.algorithm", "patience")
    git(project.checkout(), "config", "diff.noprefix", "true")
    project.run("export", "alpha")
    assert files(project) == once


def test_export_needs_an_applied_overlay(project):
    assert "nothing to export" in project.run("export", "alpha", code=3).err
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    assert "nothing to export" in project.run("export", "alpha", code=3).err


def test_binary_edits_are_refused(project):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_bytes(b"\0\1\2")
    before = files(project)
    error = project.run("export", "alpha", code=2).err
    assert "not supported" in error and files(project) == before


def test_mode_change_and_crlf_and_missing_newline_survive(project):
    project.run("apply", "alpha")
    (project.checkout() / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (project.checkout() / "bare.txt").write_bytes(b"no newline\nat the end")
    (project.checkout() / "README.md").chmod(0o755)
    (project.checkout() / "src/old.py").unlink()
    project.run("export", "alpha")
    round_trip(project)
    project.run("revert", "alpha")
    assert (project.checkout() / "src/old.py").exists()


def test_a_folder_of_new_files_that_became_a_file_and_back(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "tools/go.sh").unlink()
    (checkout / "tools").rmdir()
    (checkout / "tools").write_text("no folder any more\n")
    junk = project.root / "overlays/alpha/tools/__pycache__/go.pyc"
    junk.parent.mkdir()
    junk.write_bytes(b"junk")
    before = files(project)
    assert "move them away; nothing was changed" in project.run("export", "alpha", code=5).err
    assert files(project) == before
    junk.unlink()
    project.run("export", "alpha")
    assert (project.root / "overlays/alpha/tools").read_text() == "no folder any more\n"
    project.run("apply", "alpha", "--checkouts", str(project.root / "fresh"))
    fresh = project.root / "fresh/alpha/tools"
    assert fresh.read_text() == "no folder any more\n"
    fresh.unlink()
    fresh.mkdir()
    (fresh / "go.py").write_text("GO = 1\n")
    project.run("export", "alpha", "--checkouts", str(project.root / "fresh"))
    assert (project.root / "overlays/alpha/tools/go.py").read_text() == "GO = 1\n"


def test_a_file_that_the_overlay_deletes_and_the_user_made_again_is_exported(project):
    project.run("apply", "alpha")
    (project.checkout() / "src/old.py").unlink()
    project.run("export", "alpha")
    project.run("apply", "alpha")
    (project.checkout() / "src/old.py").write_text("gone = False\n")
    assert "the edit of src/old.py goes into" in project.run("export", "alpha").out
    project.run("apply", "alpha", "--checkouts", str(project.root / "fresh"))
    assert (project.root / "fresh/alpha/src/old.py").read_text() == "gone = False\n"


def test_what_apply_would_refuse_is_not_exported(project):
    project.run("apply", "alpha")
    util = project.checkout() / "src/util.py"
    util.unlink()
    util.mkdir()
    (util / "inside.py").write_text("x = 1\n")
    before = files(project)
    assert (
        "overlays/alpha/src/util.py/inside.py would overwrite src/util.py" in project.run("export", "alpha", code=3).err
    )
    assert files(project) == before
