"""Bad input and faults: each ends in one clear error or in a right result, and nothing of the user's is lost."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from kit import FIRST, content, git, git_state

# --- the user's own clone --------------------------------------------------------------------------------------------


def test_own_clone_there_and_back(project, clone):
    git(clone, "config", "user.email", "me@example.org")
    (clone / "stashed").write_text("x")
    git(clone, "add", "stashed")
    git(clone, "stash", "-q")
    (clone / "notes.txt").write_text("untracked\n")
    git(clone, "update-index", "--assume-unchanged", "README.md")
    files, state = content(clone), git_state(clone)
    folders = sorted(path.name for path in (clone / ".git").iterdir())
    project.run("apply", "alpha", "--checkout", str(clone))
    assert project.state("alpha", "--checkout", str(clone)) == "applied"
    assert (
        git(clone, "symbolic-ref", "HEAD") == "refs/heads/era" and git(clone, "rev-parse", "mine") == project.ids["v1"]
    )
    assert not git(clone, "status", "--porcelain").replace("?? notes.txt", "")
    project.run("revert", "alpha", "--checkout", str(clone))
    assert content(clone) == files and git_state(clone) == state
    assert sorted(path.name for path in (clone / ".git").iterdir()) == folders
    assert project.state("alpha", "--checkout", str(clone)) == "clean"


def test_own_clone_needs_no_network_as_it_has_the_commit(project, clone):
    project.run("apply", "alpha", "--checkout", str(clone), "--offline")
    assert project.state("alpha", "--checkout", str(clone)) == "applied"


def test_wrong_commit(project, clone):
    git(clone, "checkout", "-q", "v2")
    before, state = content(clone), git_state(clone)
    # v2 is pinned too, and this project's patches do not fit it.
    assert (
        project.run("apply", "alpha", "--checkout", str(clone), "--version", "v1", code=3).err.count(project.ids["v2"])
        == 1
    )
    git(clone, "commit", "-q", "--allow-empty", "-m", "elsewhere")
    state = git_state(clone)
    head = git(clone, "rev-parse", "HEAD")
    error = project.run("apply", "alpha", "--checkout", str(clone), code=3).err
    assert head in error and project.ids["v1"] in error and f"checkout {project.ids['v1']}" in error
    assert content(clone) == before and git_state(clone) == state
    assert project.state("alpha", "--checkout", str(clone)) == "wrong-base"
    for verb in ("revert", "diff", "export"):
        project.run(verb, "alpha", "--checkout", str(clone), code=3)


def test_dirty_tree(project, clone):
    (clone / "README.md").write_text("mine\n")
    (clone / "run.sh").chmod(0o644)
    before, state = content(clone), git_state(clone)
    error = project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert "README.md" in error and "run.sh" in error and "othing was changed" in error
    assert content(clone) == before and git_state(clone) == state


def test_untracked_file_where_the_overlay_puts_one(project, clone):
    (clone / "src/era.py").write_text("mine\n")
    before, state = content(clone), git_state(clone)
    assert "src/era.py" in project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert content(clone) == before and git_state(clone) == state


def test_ignored_file_where_the_overlay_puts_one(project, clone):
    (clone / ".git/info/exclude").write_text("era.py\n")
    (clone / "src/era.py").write_text("mine\n")
    assert "src/era.py" in project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert (clone / "src/era.py").read_text() == "mine\n"


def test_a_branch_era_that_is_not_ours(project, clone):
    git(clone, "branch", "era", "v2")
    state = git_state(clone)
    assert "branch -m era" in project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    assert git_state(clone) == state


def test_a_tag_of_our_name_that_is_not_ours(project, clone):
    git(clone, "tag", "upstream/v1", "v2")
    project.run("apply", "alpha", "--checkout", str(clone))
    project.run("revert", "alpha", "--checkout", str(clone))
    assert git(clone, "rev-parse", "upstream/v1") == project.ids["v2"]


def test_not_a_git_tree(project, tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "x").write_text("x")
    assert "not a git tree" in project.run("apply", "alpha", "--checkout", str(folder), code=3).err
    assert "no such folder" in project.run("apply", "alpha", "--checkout", str(tmp_path / "nowhere"), code=3).err
    project.checkout().mkdir(parents=True)
    (project.checkout() / "x").write_text("x")
    assert project.state() == "wrong-base"
    assert "not a git tree" in project.run("apply", "alpha", code=3).err
    (folder / ".git").write_text("nonsense")
    project.run("apply", "alpha", "--checkout", str(folder), code=3)


def test_a_folder_inside_another_repository(project, clone):
    inner = clone / "inner"
    shutil.copytree(clone / "src", inner / "src")
    state = git_state(clone)
    assert "not a git tree" in project.run("apply", "alpha", "--checkout", str(inner), code=3).err
    assert "not a git tree" in project.run("apply", "alpha", "--checkout", str(clone / "src"), code=3).err
    assert git_state(clone) == state


def test_checkouts_inside_another_repository(project, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    project.run("apply", "alpha", "--checkouts", str(outer / "deep"))
    assert project.state("alpha", "--checkouts", str(outer / "deep")) == "applied"
    assert "hooked" in (outer / "deep/alpha/src/core.py").read_text()


def test_linked_worktree(project, clone, tmp_path):
    tree = tmp_path / "tree"
    git(clone, "worktree", "add", "-q", "--detach", str(tree), project.ids["v1"])
    before, main = content(tree, (".git",)), git_state(clone)
    project.run("apply", "alpha", "--checkout", str(tree))
    assert project.state("alpha", "--checkout", str(tree)) == "applied"
    assert (
        f"in another worktree of this clone, {tree}"
        in project.run("apply", "alpha", "--checkout", str(clone), code=5).err
    )
    project.run("revert", "alpha", "--checkout", str(tree))
    assert content(tree, (".git",)) == before and git_state(clone) == main


def test_shallow_clone(project, tmp_path):
    tree = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "v1", f"file://{project.up}/alpha", str(tree))
    before = git_state(tree)
    project.run("apply", "alpha", "--checkout", str(tree))
    assert git(tree, "fsck", check=False) == ""
    project.run("revert", "alpha", "--checkout", str(tree))
    assert git_state(tree) == before


def test_sparse_checkout_is_refused(project, clone):
    git(clone, "sparse-checkout", "set", "src")
    before, state = content(clone), git_state(clone)
    assert "sparse" in project.run("apply", "alpha", "--checkout", str(clone), code=3).err
    assert content(clone) == before and git_state(clone) == state


def test_symbolic_links_in_the_way(project, clone, tmp_path):
    outside = tmp_path / "outside"
    shutil.copytree(clone / "src", outside)
    shutil.rmtree(clone / "src")
    (clone / "src").symlink_to(outside)
    before = content(outside)
    project.run("apply", "alpha", "--checkout", str(clone), code=5)
    assert content(outside) == before


def test_hostile_configuration_of_a_given_checkout_runs_nothing(project, clone, tmp_path):
    ran = tmp_path / "ran"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\ncat\n")
    script.chmod(0o755)
    hooks = clone / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "pre-commit",
        "post-commit",
        "fsmonitor-watchman",
    ):
        shutil.copy(script, hooks / name)
    evil = {
        "core.hooksPath": str(hooks),
        "core.fsmonitor": str(script),
        "core.pager": str(script),
        "core.editor": str(script),
        "core.sshCommand": str(script),
        "core.alternateRefsCommand": str(script),
        "diff.external": str(script),
        "diff.evil.command": str(script),
        "diff.evil.textconv": str(script),
        "filter.evil.clean": str(script),
        "filter.evil.smudge": str(script),
        "filter.evil.process": str(script),
        "filter.evil.required": "true",
        "merge.evil.driver": str(script),
        "gpg.program": str(script),
        "commit.gpgSign": "true",
        "interactive.diffFilter": str(script),
        "diff.noprefix": "true",
        "core.autocrlf": "true",
        "alias.ls-tree": f"!{script}",
        "uploadpack.packObjectsHook": str(script),
    }
    before = content(clone)
    for key, value in evil.items():
        git(clone, "config", key, value)
    (clone / ".git/info/attributes").write_text("* filter=evil diff=evil merge=evil text ident\n")
    where = ("--checkout", str(clone))
    project.run("apply", "alpha", *where)
    assert project.state("alpha", *where) == "applied"
    assert "hooked" in (clone / "src/core.py").read_text()
    (clone / "README.md").write_text("mine\n")
    (clone / "new.py").write_text("new\n")
    assert "diff --git a/" in project.run("diff", "alpha", *where).out
    assert "+mine" in project.run("diff", "alpha", "--local", *where).out
    project.run("export", "alpha", "--check", *where, code=1)
    (clone / "new.py").unlink()
    project.run("revert", "alpha", "--keep-edits", str(tmp_path / "kept"), *where)
    assert content(clone) == before
    assert not ran.exists(), ran.read_text()


def test_replaced_objects_are_not_believed(project, clone):
    good = git(clone, "rev-parse", "v1:src/core.py")
    bad = git(clone, "hash-object", "-w", "--stdin", data="evil\n")
    git(clone, "replace", good, bad)
    git(clone, "config", "core.useReplaceRefs", "true")
    project.run("apply", "alpha", "--checkout", str(clone))
    assert "hooked" in (clone / "src/core.py").read_text()
    project.run("export", "alpha", "--checkout", str(clone), "--check")


# --- line ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"core.autocrlf": "true"}, {"core.autocrlf": "input"}, {"core.eol": "crlf"}])
def test_line_end_settings_of_the_user_change_nothing(project, tmp_path, settings):
    config = tmp_path / "gitconfig"
    for key, value in settings.items():
        git(tmp_path, "config", "--file", str(config), key, value)
    attributes = tmp_path / "attributes"
    attributes.write_text("* text eol=crlf\n")
    git(tmp_path, "config", "--file", str(config), "core.attributesFile", str(attributes))
    project.env["GIT_CONFIG_GLOBAL"] = str(config)
    project.run("apply", "alpha")
    assert (project.checkout() / "crlf.txt").read_bytes() == FIRST["crlf.txt"].encode()
    assert b"\r" not in (project.checkout() / "src/core.py").read_bytes()
    done = subprocess.run(
        ["git", "status", "--porcelain"], cwd=project.checkout(), env={**os.environ, **project.env}, capture_output=True
    )
    assert done.stdout == b""
    project.run("revert", "alpha")
    assert project.state() == "clean"


def test_a_clone_converted_to_crlf_is_named_as_such(project, tmp_path):
    tree = tmp_path / "crlf"
    git(tmp_path, "-c", "core.autocrlf=true", "clone", "-q", "--branch", "v1", str(project.up / "alpha"), str(tree))
    error = project.run("apply", "alpha", "--checkout", str(tree), code=5).err
    assert "CRLF" in error and "core.autocrlf" in error


def test_patches_converted_to_crlf_are_named_as_such(project):
    path = project.patch(1)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert "CRLF" in project.run("apply", "alpha", code=2).err
    assert not project.checkout().exists()


# --- broken project files --------------------------------------------------------------------------------------------


def test_missing_patch(project):
    project.run("apply", "alpha")
    before = content(project.checkout())
    project.patch(1).unlink()
    error = project.run("apply", "alpha", code=2).err
    assert "without a gap" in error and content(project.checkout()) == before
    assert "without a gap" in project.run("status", "alpha", code=2).err


def test_truncated_patches_never_apply(project):
    path = project.patch(2)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 53):
        path.write_bytes(whole[:size])
        result = project.run("apply", "alpha", code=None)
        at_boundary = whole[size:].startswith(b"diff --git")
        assert result.code in (2, 3) or at_boundary, (size, result.text)
        assert not project.checkout().exists() or at_boundary


def test_altered_patch_is_caught_by_its_index_line(project):
    path = project.patch(1)
    path.write_bytes(path.read_bytes().replace(b"hooked", b"hacked"))
    error = project.run("apply", "alpha", code=3).err
    assert "index line" in error and "nothing was changed" in error


def test_conflict_names_file_hunk_lines_and_next_command(project):
    path = project.patch(1)
    text = path.read_text()
    path.write_text(text.replace("@@ -17,7 +17,7 @@", "@@ -27,7 +27,7 @@"))
    assert path.read_text() != text
    error = project.run("apply", "alpha", code=4).err
    for said in (
        "src/core.py",
        "hunk 1",
        "'line 17 of the core'",
        "'line 27 of the core'",
        "line 17 (-10)",
        "apply.py port alpha",
        "nothing was changed",
    ):
        assert said in error, error
    assert not project.checkout().exists()


def test_overlay_file_over_an_upstream_file(project):
    for name in ("README.md", "readme.md", "src/core.py/x", "src"):
        target = project.root / "overlays/alpha" / name
        if name == "src":
            shutil.rmtree(project.root / "overlays/alpha/src")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("x")
        assert "would overwrite" in project.run("apply", "alpha", code=3).err
        target.unlink()
        if name == "src/core.py/x":
            target.parent.rmdir()


def test_overlay_links_are_refused(project):
    (project.root / "overlays/alpha/link").symlink_to("/etc/passwd")
    assert "not a plain file" in project.run("apply", "alpha", code=2).err


def test_a_record_that_was_altered(project):
    project.run("apply", "alpha")
    (project.checkout() / ".git/era/record.json").write_text("{")
    assert "record.json was altered" in project.run("status", "alpha", code=5).err


# --- edits -----------------------------------------------------------------------------------------------------------


def test_stale_apply_carries_edits_elsewhere_and_refuses_over_edits_in_the_way(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    (checkout / "notes.txt").write_text("mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "your edits are kept: README.md" in project.run("apply", "alpha").out
    assert (checkout / "README.md").read_text() == "mine\n" and (checkout / "src/era.py").read_text() == "ERA = 2\n"
    (checkout / "src/era.py").write_text("ERA = mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 3\n")
    before, state = content(checkout), git_state(checkout)
    error = project.run("apply", "alpha", code=5).err
    assert "src/era.py" in error and "--local" in error
    assert content(checkout) == before and git_state(checkout) == state


def test_apply_over_edits_when_nothing_is_stale_keeps_them(project):
    project.run("apply", "alpha")
    (project.checkout() / "src/core.py").write_text("mine\n")
    assert "your edits are kept: src/core.py" in project.run("apply", "alpha").out
    assert (project.checkout() / "src/core.py").read_text() == "mine\n"


def test_another_process_changes_a_file_between_check_and_switch(project, monkeypatch):
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    module, target = project.engine.switch, project.checkout() / "src/era.py"
    real = module.begin_switch

    def meddle(*args, **kwargs):
        journal = real(*args, **kwargs)
        target.write_text("typed just now\n")
        return journal

    monkeypatch.setattr(module, "begin_switch", meddle)
    error = project.run("apply", "alpha", code=7).err
    assert "src/era.py" in error and target.read_text() == "typed just now\n"
    monkeypatch.undo()
    assert project.state() == "interrupted"
    for verb in ("revert", "diff", "export"):
        assert "apply.py apply alpha" in project.run(verb, "alpha", code=7).err
    project.run("apply", "alpha", code=7)
    assert target.read_text() == "typed just now\n"
    target.rename(target.with_name("mine.py"))
    assert "completed the apply" in project.run("apply", "alpha").out
    assert target.read_text() == "ERA = 2\n" and project.state() == "applied"


def test_a_git_at_work_in_the_checkout(project):
    project.run("apply", "alpha")
    lock = project.checkout() / ".git/index.lock"
    lock.write_text("")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    before = content(project.checkout())
    assert "index.lock" in project.run("apply", "alpha", code=5).err
    assert content(project.checkout()) == before
    lock.unlink()
    project.run("apply", "alpha")


# --- the machine -----------------------------------------------------------------------------------------------------


def test_no_git(project, tmp_path):
    result = project.spawn("apply", "alpha", code=2, env={"PATH": str(tmp_path)})
    assert "git was not found" in result.err and not project.checkout().exists()


def test_old_git(project, tmp_path):
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho git version 2.17.1\n")
    fake.chmod(0o755)
    assert "too old" in project.spawn("apply", "alpha", code=2, env={"PATH": f"{fake.parent}:{os.environ['PATH']}"}).err


@pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root ignores permissions and setpriv is missing"
)
def test_read_only_folders(project, tmp_path):
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    command = [
        sys.executable,
        str(project.root / "apply.py"),
        "apply",
        "alpha",
        "--offline",
        "--cache",
        str(project.cache),
    ]
    if os.geteuid() == 0:  # without CAP_DAC_OVERRIDE root is bound by permissions too
        command = [
            "setpriv",
            "--bounding-set=-dac_override,-dac_read_search",
            "--inh-caps=-dac_override,-dac_read_search",
            *command,
        ]
    before = content(project.checkout())
    folders = [path for path in (project.checkout(), *project.checkout().rglob("*")) if path.is_dir()]
    try:
        for folder in folders:
            folder.chmod(0o555)
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode == 5 and "Permission denied" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert content(project.checkout()) == before and project.state() == "clean"
    readonly = tmp_path / "readonly"
    readonly.mkdir()
    readonly.chmod(0o555)
    done = subprocess.run([*command, "--checkouts", str(readonly / "x")], capture_output=True, text=True)
    assert done.returncode == 5 and str(readonly) in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_disk_full_while_the_new_files_are_written(project, monkeypatch):
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    before, state = content(project.checkout()), git_state(project.checkout())
    module = project.engine.switch
    real = module.stage_files

    def full(checkout, plan):
        real(checkout, plan)
        raise OSError(28, "No space left on device", str(checkout.path))

    monkeypatch.setattr(module, "stage_files", full)
    assert "No space left" in project.run("apply", "alpha", code=5).err
    monkeypatch.undo()
    assert content(project.checkout()) == before and git_state(project.checkout()) == state
    assert project.state() == "stale"


def test_disk_full_in_the_middle_of_the_switch(project, monkeypatch):
    project.run("apply", "alpha")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(project.engine.switch, "move_refs", full)
    assert "to complete the switch" in project.run("apply", "alpha", code=7).err
    monkeypatch.undo()
    assert project.state() == "interrupted"
    project.run("apply", "alpha")
    assert project.state() == "applied"


def test_two_applies_at_once(project):
    both = [project.start("apply", "alpha") for _ in range(2)]
    codes = []
    for process in both:
        out, err = process.communicate(timeout=900)
        assert b"Traceback" not in err
        codes.append(process.returncode)
    assert codes == [0, 0] and project.state() == "applied"


def test_a_lock_that_is_held_for_long(project, monkeypatch):
    project.run("apply", "alpha")
    monkeypatch.setattr(project.engine.checkout, "LOCK_WAIT", 0.3)
    with open(project.checkouts / ".alpha.lock", "r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert "another apply.py" in project.run("apply", "alpha", code=7).err
    assert "nothing to do" in project.run("apply", "alpha").out  # the file alone, left by a dead process, is no lock


def test_control_c_while_downloading(project, tmp_path):
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    real = shutil.which("git")
    fake.write_text(f'#!/bin/sh\ncase "$*" in *" fetch "*) sleep 30;; *) exec {real} "$@";; esac\n')
    fake.chmod(0o755)
    process = project.start("apply", "alpha", env={"PATH": f"{fake.parent}:{os.environ['PATH']}"})
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 130 and err == b"error: stopped; nothing was changed\n"
    project.run("apply", "alpha")


def test_all_or_none_when_one_checkout_is_in_the_way(project):
    project.run()
    for name in ("alpha", "beta"):
        (project.root / "overlays" / name).mkdir(exist_ok=True)
        (project.root / "overlays" / name / "fresh.py").write_text("x = 1\n")
    (project.checkout("beta") / "fresh.py").write_text("mine\n")
    before = content(project.checkout("alpha"))
    project.run(code=5)
    assert content(project.checkout("alpha")) == before and project.state("alpha") == "stale"


def test_names_with_blanks_and_other_letters(project, tmp_path):
    folder = tmp_path / ("long " + "x" * 150) / "größe: 'a' \"b\""
    overlay = project.root / "overlays/alpha"
    for name in ("-rf", "with blank.py", "größe/日本.py", "--help"):
        (overlay / name).parent.mkdir(exist_ok=True)
        (overlay / name).write_text("x = 1\n")
    project.run("apply", "alpha", "--checkouts", str(folder))
    where = ("--checkouts", str(folder))
    assert (folder / "alpha/größe/日本.py").exists() and project.state("alpha", *where) == "applied"
    (folder / "alpha/-rf").write_text("edited\n")
    assert "+edited" in project.run("diff", "alpha", "--local", *where).out
    project.run("export", "alpha", *where)
    assert (overlay / "-rf").read_text() == "edited\n"
    project.run("apply", "alpha", *where)
    project.run("revert", "alpha", *where)
    assert not (folder / "alpha/-rf").exists()


def test_submodule_as_checkout(project, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(project.up / "alpha"), "sub")
    git(outer / "sub", "checkout", "-q", "v1")
    before, around = content(outer / "sub", (".git",)), git(outer, "status", "--porcelain")
    where = ("--checkout", str(outer / "sub"))
    project.run("apply", "alpha", *where)
    assert project.state("alpha", *where) == "applied" and "hooked" in (outer / "sub/src/core.py").read_text()
    project.run("revert", "alpha", *where)
    assert content(outer / "sub", (".git",)) == before and git(outer, "status", "--porcelain") == around


def test_a_filter_that_cannot_be_switched_off_is_refused(project, clone):
    git(clone, "config", "--file", ".git/config", "filter.a=b.clean", "touch ran")
    assert "filter with =" in project.run("apply", "alpha", "--checkout", str(clone), code=5).err
