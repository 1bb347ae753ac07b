"""What reviewers and users found: each of these lost something, got stuck, or said what was not so."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex

import pytest
from kit import content, git


def follow(said: str) -> None:
    """Run the git commands of a hint, as they stand there."""
    for command in re.findall(r"`(git -C [^`]+)`", said):
        words = shlex.split(command)
        git(words[2], *words[3:])


def interrupt(project, monkeypatch, *args: str) -> None:
    """The run ends right before it moves branches and HEAD."""
    with monkeypatch.context() as patch:
        patch.setattr(project.engine.switch, "move_refs", lambda *_: (_ for _ in ()).throw(OSError(5, "broken")))
        project.run(*args, code=7)


def test_commits_made_while_a_switch_was_cut_short(project, monkeypatch):
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    checkout = project.checkout()
    interrupt(project, monkeypatch, "apply", "alpha")
    (checkout / "README.md").write_text("mine, one\n")
    git(checkout, "commit", "-qm", "one", "README.md")
    one = git(checkout, "rev-parse", "HEAD")
    error = project.run("apply", "alpha", code=7).err
    assert one in error and git(checkout, "rev-parse", "HEAD") == one
    follow(error)
    project.run("apply", "alpha")
    assert git(checkout, "rev-parse", "my-work") == one and (checkout / "README.md").read_text() == "mine, one\n"
    assert project.state() == "modified"


def test_commits_on_era_while_a_switch_was_cut_short(project, monkeypatch):
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    interrupt(project, monkeypatch, "apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    git(checkout, "commit", "-qm", "one", "README.md")
    one = git(checkout, "rev-parse", "HEAD")
    follow(project.run("apply", "alpha", code=7).err)
    project.run("apply", "alpha")
    assert git(checkout, "rev-parse", "my-work") == one and project.state() == "modified"


def test_export_looks_after_it_waited(project, monkeypatch):
    """A revert was at work there: its tree is not the user's wish to empty the overlay."""
    project.run("apply", "alpha")
    before = content(project.root / "overlays"), content(project.root / "patches")
    real = project.engine.export.lock_checkout

    def late(path, given):
        project.engine.export.lock_checkout = real
        project.run("revert", "alpha")
        return real(path, given)

    monkeypatch.setattr(project.engine.export, "lock_checkout", late)
    assert "no overlay is applied" in project.run("export", "alpha", code=3).err
    assert (content(project.root / "overlays"), content(project.root / "patches")) == before


def test_an_export_that_was_taken_back_can_be_repeated(project):
    project.run("apply", "alpha")
    before = {path: path.read_bytes() for path in [project.patch(2), project.root / "overlays/alpha/src/era.py"]}
    (project.checkout() / "src/util.py").write_text("mine = 1\n")
    (project.checkout() / "src/era.py").write_text("ERA = 2\n")
    project.run("export", "alpha")
    after = {path: path.read_bytes() for path in before}
    for path, data in before.items():
        path.write_bytes(data)
    project.run("export", "alpha")
    assert {path: path.read_bytes() for path in before} == after != before


def test_a_header_filled_in_after_an_export_that_died_at_its_end(project, monkeypatch):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    export, real = project.engine.export, project.engine.export.write_record
    with monkeypatch.context() as patch:
        calls = []
        patch.setattr(
            export,
            "write_record",
            lambda *args: calls.append(args) or (real(*args) if len(calls) == 1 else os.stat("/nowhere/at/all")),
        )
        project.run("export", "alpha", code=7)
    new = project.patch(3)
    new.write_text(new.read_text().replace("FILL-IN", "said"))
    project.pin_numbers()
    assert project.state() != "interrupted"
    project.run("apply", "alpha")
    project.run("export", "alpha", "--check")


@pytest.mark.parametrize("field", ["verb", "plan", "flags", "refs", "from", "head", "together", "record"])
def test_a_journal_that_was_altered(project, monkeypatch, field):
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    interrupt(project, monkeypatch, "apply", "alpha")
    path = project.checkout() / ".git/era/journal.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: None}))
    assert "journal.json was altered" in project.run("apply", "alpha", code=5).err


def test_what_stands_in_a_given_clone_leads_nowhere_else(project, clone, tmp_path):
    project.run("apply", "alpha", "--checkout", str(clone))
    record = json.loads((clone / ".git/era/record.json").read_text())
    target = tmp_path / "written"
    (clone / ".git/era/record.json").write_text(json.dumps({**record, "base": f"--output={target}"}))
    assert "record.json was altered" in project.run("diff", "alpha", "--checkout", str(clone), code=5).err
    (clone / ".git/era/record.json").write_text(json.dumps(record))
    blob = git(clone, "rev-parse", "HEAD:README.md")
    journal = {
        "verb": "revert",
        "plan": {"../evil": [[], ["100644", blob]]},
        "flags": {},
        "refs": {},
        "together": [],
        "record": None,
    }
    (clone / ".git/era/journal.json").write_text(
        json.dumps({**journal, "from": "refs/heads/era", "head": "refs/heads/era"})
    )
    assert "journal.json was altered" in project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    (clone / ".git/era/journal.json").unlink()
    target.write_text("mine\n")
    (clone / ".git/era/.era-new-record.json").symlink_to(target)
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    project.run("apply", "alpha", "--checkout", str(clone))
    assert target.read_text() == "mine\n" and not (clone.parent / "evil").exists() and not (tmp_path / "evil").exists()


def test_a_commit_of_ours_that_git_collected(project):
    """After an amend only the reflog leads to it, and that ends."""
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    git(checkout, "commit", "-qa", "--amend", "-m", "Amended")
    mine = git(checkout, "rev-parse", "HEAD")
    git(checkout, "reflog", "expire", "--expire=now", "--all")
    git(checkout, "gc", "-q", "--prune=now")
    said = project.run("status", "alpha", code=1).out
    assert "has thrown away the overlay's own commit" in said and "damaged" not in said
    assert "has thrown away" in project.run("export", "alpha", code=3).err
    follow(said)
    project.run("apply", "alpha", "--offline")
    assert project.state() == "applied" and git(checkout, "rev-parse", "my-work") == mine


def test_numbers_are_counted_also_where_nothing_is_to_be_done(project):
    project.run("apply", "alpha")
    project.pinning = False
    data = json.loads((project.root / "upstreams.json").read_text())
    data["alpha"]["overlay_files"] += 3
    (project.root / "upstreams.json").write_text(json.dumps(data))
    assert "upstreams.json expects" in project.run("apply", "alpha", code=2).err


@pytest.mark.parametrize("kind", ["file", "link"])
def test_no_folder_in_the_place_of_a_checkout(project, kind):
    project.checkouts.mkdir()
    place = project.checkout()
    place.write_text("x") if kind == "file" else place.symlink_to("/nowhere/at/all")
    error = project.run("apply", "alpha", code=3).err
    assert "a file, or a link that leads nowhere" in error and "to complete it" not in error
    assert project.state() == "wrong-base"


def test_keep_edits_where_there_is_no_overlay(project, tmp_path):
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    kept = tmp_path / "kept.patch"
    project.run("revert", "alpha", "--keep-edits", str(kept))
    (project.checkout() / "README.md").write_text("mine\n")
    assert "would save nothing of README.md" in project.run("revert", "alpha", "--keep-edits", str(kept), code=5).err
    assert not kept.exists() and (project.checkout() / "README.md").read_text() == "mine\n"


def test_flags_survive_a_second_apply(project, clone):
    from kit import make_patch

    where = ("alpha", "--checkout", str(clone))
    text, _ = make_patch(project.up / "alpha", "v1", lambda up: (up / "src/old.py").unlink(), "Drop old")
    (project.root / "patches/alpha/v1/0003-drop-old.patch").write_text(text)
    git(clone, "update-index", "--assume-unchanged", "src/old.py")
    project.run("apply", *where)
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    project.run("apply", *where)
    project.run("revert", *where)
    assert git(clone, "ls-files", "-v", "src/old.py") == "h src/old.py"


def test_saved_beside_its_place_when_a_kill_came_between_exchange_and_look(project, monkeypatch):
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    common = project.engine.common
    real = common.exchange

    def killed(one, other):
        other.write_text("saved just now\n")
        real(one, other)
        raise KeyboardInterrupt  # stands for the kill: nothing after it runs

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(common, "exchange", killed)
        project.run("apply", "alpha", code=None)
    left = project.checkout() / "src/.era-new-era.py"
    assert left.read_text() == "saved just now\n"
    assert ".era-new-era.py" in project.run("apply", "alpha", code=7).err
    assert left.read_text() == "saved just now\n"
    left.rename(project.root.parent / "mine")
    project.run("apply", "alpha")
    assert project.state() == "applied"
