"""--checkout: the overlay in a clone of the user's own, which is left exactly as it was."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from kit import content, git, git_state, hinted, interrupt, make_patch, write_tree


@pytest.fixture
def where(clone) -> tuple[str, ...]:
    return ("alpha", "--checkout", str(clone))


def test_there_and_back(project, clone, where):
    git(clone, "config", "user.email", "me@example.org")
    write_tree(clone, {"stashed": "x", "notes.txt": "untracked\n"})
    git(clone, "add", "stashed")
    git(clone, "stash", "-q")
    git(clone, "tag", "upstream/v1", "v2")  # a tag of ours by name only
    files, state = content(clone), git_state(clone)
    folder = sorted(path.name for path in (clone / ".git").iterdir())
    project.run("apply", *where, "--offline")  # it has the commit, so no network is needed
    assert project.state(*where) == "applied" and git(clone, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(clone, "rev-parse", "mine") == project.ids["v1"]
    assert git(clone, "status", "--porcelain") == "?? notes.txt"
    git(clone, "checkout", "-q", "mine")  # also where the user left the overlay and came back to it
    project.run("apply", *where)
    project.run("revert", *where)
    assert content(clone) == files and git_state(clone) == state and project.state(*where) == "clean"
    assert sorted(path.name for path in (clone / ".git").iterdir()) == folder


def test_a_split_index_leaves_no_parts(project, clone, where):
    git(clone, "config", "core.splitIndex", "true")
    before = {path.name for path in (clone / ".git").iterdir()}
    project.run("apply", *where)
    project.run("revert", *where)
    assert {path.name for path in (clone / ".git").iterdir()} == before


def test_flags_in_the_index_survive(project, clone, where):
    """Of files that the overlay changes, deletes and leaves alone, through apply, a second apply and revert."""
    text, _ = make_patch(project.up / "alpha", "v1", lambda up: (up / "src/old.py").unlink(), "Drop the old")
    write_tree(project.root, {"patches/alpha/v1/0003-drop-the-old.patch": text})
    git(clone, "update-index", "--skip-worktree", "src/core.py", "src/old.py", "README.md")
    git(clone, "update-index", "--assume-unchanged", "src/util.py", "README.md")
    before = git_state(clone)
    flags = git(clone, "ls-files", "-v").splitlines()
    assert {"S src/core.py", "S src/old.py", "h src/util.py", "s README.md"} <= {*flags}
    project.run("apply", *where)
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    project.run("apply", *where)
    after = git(clone, "ls-files", "-v").splitlines()
    assert {*after} - {*flags} == {"H src/era.py", "H tools/go.sh"}
    assert {*flags} - {*after} == {"S src/old.py"}
    project.run("revert", *where)
    assert git_state(clone) == before


def test_a_clone_on_another_commit(project, clone, where):
    git(clone, "commit", "-q", "--allow-empty", "-m", "elsewhere")
    before, state, head = content(clone), git_state(clone), git(clone, "rev-parse", "HEAD")
    error = project.run("apply", *where, code=3).err
    assert error.count(head) == 1 and f"checkout {project.ids['v1']}" in error
    (words,) = [words for words in hinted(error) if words[0] == "port"]
    assert words[:5] == ["port", *where, "--write"] or set(words[:5]) == {"port", *where, "--write"}
    assert content(clone) == before and git_state(clone) == state and project.state(*where) == "wrong-base"
    for verb in ("revert", "diff", "export"):
        project.run(verb, *where, code=3)
    git(clone, "checkout", "-q", "v2")  # pinned too, but another version was asked for
    assert project.ids["v2"] in project.run("apply", *where, "--version", "v1", code=3).err


@pytest.mark.parametrize("kind", ["edited", "untracked", "ignored"])
def test_files_in_the_way(project, clone, where, kind):
    if kind == "ignored":
        (clone / ".git/info/exclude").write_text("era.py\n")
    (clone / ("README.md" if kind == "edited" else "src/era.py")).write_text("mine\n")
    before, state = content(clone), git_state(clone)
    error = project.run("apply", *where, code=5).err
    assert ("README.md" if kind == "edited" else "src/era.py") in error and "othing was changed" in error
    assert "apply.py export" not in error  # nothing is applied that could be exported
    assert content(clone) == before and git_state(clone) == state


def test_a_branch_era_that_is_not_ours(project, clone, where):
    git(clone, "branch", "era", "v2")
    state = git_state(clone)
    error = project.run("apply", *where, code=5).err
    assert "branch -m era" in error and "apply.py export" not in error and git_state(clone) == state


def test_folders_that_are_not_the_top_of_a_repository(project, clone, tmp_path):
    plain = tmp_path / "plain"
    write_tree(plain, {"x": "x"})
    shutil.copytree(clone / "src", clone / "inner/src")
    state = git_state(clone)
    for folder in (plain, clone / "inner", clone / "src"):
        error = project.run("apply", "alpha", "--checkout", str(folder), code=3).err
        assert "not a git tree" in error and error.count(str(folder)) == 1
    (plain / ".git").write_text("nonsense")
    project.run("apply", "alpha", "--checkout", str(plain), code=3)
    assert "no such folder" in project.run("apply", "alpha", "--checkout", str(tmp_path / "nowhere"), code=3).err
    assert git_state(clone) == state
    # The other way round: checkouts inside of another repository.
    project.run("apply", "alpha", "--checkouts", str(clone / "deep"))
    assert project.state("alpha", "--checkouts", str(clone / "deep")) == "applied"


# --- kinds of clones -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["worktree", "shallow", "partial", "submodule"])
def test_kinds_of_clones(project, clone, tmp_path, kind):
    upstream, tree = f"file://{project.up}/alpha", tmp_path / "tree"
    if kind == "worktree":
        git(clone, "worktree", "add", "-q", "--detach", str(tree), project.ids["v1"])
    elif kind == "shallow":
        git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "v1", upstream, str(tree))
    elif kind == "partial":
        git(project.up / "alpha", "config", "uploadpack.allowFilter", "true")
        git(tmp_path, "clone", "-q", "--filter=blob:none", "--branch", "v1", upstream, str(tree))
    else:
        git(clone, "-c", "protocol.file.allow=always", "submodule", "add", "-q", upstream, "sub")
        tree = clone / "sub"
        git(tree, "checkout", "-q", "v1")
    before, around = content(tree), git(clone, "status", "--porcelain")
    state = git_state(tree)
    project.run("apply", "alpha", "--checkout", str(tree))
    assert (
        project.state("alpha", "--checkout", str(tree)) == "applied" and "hooked" in (tree / "src/core.py").read_text()
    )
    assert git(tree, "fsck", "--no-dangling", check=False) == ""
    project.run("revert", "alpha", "--checkout", str(tree))
    assert content(tree) == before and git_state(tree) == state
    assert git(clone, "status", "--porcelain") == around


def test_one_worktree_at_a_time(project, clone, tmp_path):
    other = tmp_path / "second tree"
    git(clone, "worktree", "add", "-q", "--detach", str(other), project.ids["v1"])
    for first, second in ((clone, other), (other, clone)):
        project.run("apply", "alpha", "--checkout", str(first))
        error = project.run("apply", "alpha", "--checkout", str(second), code=5).err
        assert f"applied in another worktree of this clone, {first}" in error
        (words,) = hinted(error)
        assert words[:4] == ["revert", "alpha", "--checkout", str(first)]
        project.run(*words[:4])


def test_sparse_checkouts_are_refused(project, clone, where):
    git(clone, "sparse-checkout", "set", "src")
    before, state = content(clone), git_state(clone)
    assert "sparse" in project.run("apply", *where, code=3).err
    assert content(clone) == before and git_state(clone) == state


@pytest.mark.parametrize("head", ["MERGE_HEAD", "CHERRY_PICK_HEAD", "BISECT_LOG", "rebase-merge/onto"])
def test_in_the_middle_of_something(project, clone, where, head):
    """Whatever the user does next would go onto our branch; `git switch` refuses too."""
    write_tree(clone / ".git", {head: project.ids["v2"] + "\n"})
    before = sorted((clone / ".git").rglob("*"))
    error = project.run("apply", *where, code=5).err
    assert "is in the middle of a " in error and "othing was changed" in error
    assert sorted((clone / ".git").rglob("*")) == before


def test_a_git_that_is_running_there(project, clone, where):
    (clone / ".git/index.lock").write_bytes(b"")
    before, files = sorted((clone / ".git").rglob("*")), content(clone)
    assert "index.lock exists" in project.run("apply", *where, code=5).err
    assert sorted((clone / ".git").rglob("*")) == before and content(clone) == files


def test_a_clone_that_was_converted_to_crlf(project, tmp_path):
    tree = tmp_path / "crlf"
    git(tmp_path, "-c", "core.autocrlf=true", "clone", "-q", "--branch", "v1", str(project.up / "alpha"), str(tree))
    error = project.run("apply", "alpha", "--checkout", str(tree), code=5).err
    assert "CRLF" in error and "core.autocrlf" in error


# --- what a clone may not make apply.py do ---------------------------------------------------------------------------


def test_a_folder_that_is_a_link_leads_nowhere(project, clone, where, tmp_path):
    outside = tmp_path / "outside"
    shutil.copytree(clone / "src", outside)
    shutil.rmtree(clone / "src")
    (clone / "src").symlink_to(outside)
    before = content(outside)
    project.run("apply", *where, code=5)
    assert content(outside) == before


def test_hostile_configuration_runs_nothing(project, clone, where, tmp_path):
    ran, script, hooks = tmp_path / "ran", tmp_path / "evil.sh", clone / ".git/hooks"
    script.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\ncat\n")
    script.chmod(0o755)
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit", "fsmonitor-watchman"):
        shutil.copy(script, hooks / name)
    programs = (
        "core.fsmonitor core.pager core.editor core.sshCommand core.alternateRefsCommand diff.external "
        "diff.evil.command diff.evil.textconv filter.evil.clean filter.evil.smudge filter.evil.process "
        "merge.evil.driver gpg.program interactive.diffFilter uploadpack.packObjectsHook"
    )
    evil = dict.fromkeys(programs.split(), str(script))
    evil |= {"core.hooksPath": str(hooks), "filter.evil.required": "true", "commit.gpgSign": "true"}
    evil |= {"diff.noprefix": "true", "core.autocrlf": "true", "alias.ls-tree": f"!{script}"}
    before = content(clone)
    for key, value in evil.items():
        git(clone, "config", key, value)
    (clone / ".git/info/attributes").write_text("* filter=evil diff=evil merge=evil text ident\n")
    project.run("apply", *where)
    assert project.state(*where) == "applied" and "hooked" in (clone / "src/core.py").read_text()
    write_tree(clone, {"README.md": "mine\n", "new.py": "new\n"})
    assert "diff --git a/" in project.run("diff", *where).out
    assert "+mine" in project.run("diff", *where, "--local").out
    project.run("export", *where, "--check", code=1)
    (clone / "new.py").unlink()
    project.run("revert", *where, "--keep-edits", str(tmp_path / "kept"))
    assert content(clone) == before and not ran.exists()


def test_a_filter_that_cannot_be_switched_off_is_refused(project, clone, where):
    git(clone, "config", "filter.a=b.clean", "touch ran")
    assert "filter with =" in project.run("apply", *where, code=5).err


def test_replaced_objects_are_not_believed(project, clone, where):
    good = git(clone, "rev-parse", "v1:src/core.py")
    git(clone, "replace", good, git(clone, "hash-object", "-w", "--stdin", data="evil\n"))
    project.run("apply", *where)
    assert "hooked" in (clone / "src/core.py").read_text()
    project.run("export", *where, "--check")


def test_a_record_that_leads_elsewhere(project, clone, where, tmp_path):
    project.run("apply", *where)
    path, target = clone / ".git/era/record.json", tmp_path / "written"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "base": f"--output={target}"}))
    assert "record.json was altered" in project.run("diff", *where, code=5).err and not target.exists()
    path.write_text(json.dumps(record))
    target.write_text("mine\n")
    (path.parent / ".era-new-record.json").symlink_to(target)
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    project.run("apply", *where)
    assert target.read_text() == "mine\n"


@pytest.mark.parametrize("field", ["verb", "plan", "flags", "refs", "from", "head", "together", "record"])
def test_a_journal_that_was_altered(project, clone, where, monkeypatch, field):
    project.run("apply", *where)
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    interrupt(project, monkeypatch, "apply", *where, folder=clone)
    path = clone / ".git/era/journal.json"
    altered = {"../evil": [[], ["100644", git(clone, "rev-parse", "HEAD:README.md")]]} if field == "plan" else None
    path.write_text(json.dumps({**json.loads(path.read_text()), field: altered}))
    assert "journal.json was altered" in project.run("apply", *where, code=5).err
    assert not os.path.lexists(clone.parent / "evil")
