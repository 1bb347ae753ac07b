"""Each verb on made-up upstreams: what it does, what it prints, how it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from kit import FIRST, PROJECT, content, git, git_state, make_patch, write_tree


def test_apply_builds_exactly_what_patches_and_overlays_say(project):
    result = project.run()
    assert "alpha v1: fetched (git" in result.out and "2 patches (6 lines), 2 new files" in result.out
    assert "beta b1: fetched" in result.out
    expected = {path: (path.endswith(".sh"), text.encode()) for path, text in FIRST.items()}
    core = (
        FIRST["src/core.py"].replace("line 20 of", "line 20, hooked, of").replace("line 40 of", "line 40, hooked, of")
    )
    expected["src/core.py"] = (False, core.encode())
    expected["src/util.py"] = (False, FIRST["src/util.py"].replace("a + b", "b + a").encode())
    expected["src/era.py"] = (False, b"ERA = 1\n")
    expected["tools/go.sh"] = (True, b"#!/bin/sh\n")
    assert content(project.checkout()) == expected
    checkout = project.checkout()
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(checkout, "rev-parse", "upstream/v1") == project.ids["v1"]
    assert git(checkout, "log", "--format=%s", "upstream/v1..era").splitlines() == [
        "Hook core and util",
        "Hook the core",
        "New files of the ERA overlay for alpha",
    ]
    assert git(checkout, "remote", "get-url", "origin") == project.upstreams["alpha"]["git"]
    assert git(checkout, "fsck", "--strict", check=False) == ""
    assert not list(project.checkouts.glob(".*.new-*"))


def test_apply_twice_does_nothing(project):
    project.run("apply", "alpha")
    before = {path: path.stat().st_mtime_ns for path in project.checkout().rglob("*")}
    result = project.run("apply", "alpha")
    assert "already applied" in result.out and "nothing to do" in result.out
    assert before == {path: path.stat().st_mtime_ns for path in project.checkout().rglob("*")}


def test_commit_ids_do_not_depend_on_who_applies(project, tmp_path):
    project.run("apply", "alpha")
    first = git(project.checkout(), "rev-parse", "era")
    project.env.update(
        GIT_AUTHOR_NAME="Someone", GIT_COMMITTER_DATE="2001-01-01T00:00:00", TZ="Asia/Tokyo", LC_ALL="C.UTF-8"
    )
    project.run("apply", "alpha", "--checkouts", str(tmp_path / "other"))
    assert git(tmp_path / "other" / "alpha", "rev-parse", "era") == first


def test_states_in_turn(project):
    assert project.state() == "absent"
    project.run("status", "alpha")
    project.run()
    assert project.state() == "applied"
    (project.checkout() / "README.md").write_text("mine\n")
    assert project.state() == "modified"
    found = project.run("status", "--json", code=1).json
    assert found["alpha"]["files"] == ["README.md"] and found["alpha"]["version"] == "v1"
    assert found["beta"]["state"] == "applied" and found["beta"]["files"] == []
    git(project.checkout(), "checkout", "-q", "README.md")
    assert project.state() == "applied"
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert project.state() == "stale"
    project.run("apply", "alpha")
    assert project.state() == "applied"
    project.run("revert", "alpha")
    assert project.state() == "clean"
    git(project.checkout(), "commit", "-q", "--allow-empty", "-m", "away")
    assert project.state() == "wrong-base"
    assert "status" and project.run("status", "alpha", code=1).out.startswith("alpha v1: wrong-base")


@pytest.mark.parametrize("hide", ["--assume-unchanged", "--skip-worktree"])
def test_status_reads_bytes_and_not_flags_or_timestamps(project, hide):
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "update-index", hide, "README.md")
    target = checkout / "README.md"
    info = target.stat()
    target.write_bytes(b"# ALPHA\n")
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert project.state() == "modified"


def test_new_files_and_build_leavings_do_not_count_as_drift(project):
    project.run("apply", "alpha")
    (project.checkout() / "src/__pycache__").mkdir()
    (project.checkout() / "src/__pycache__/core.cpython-311.pyc").write_bytes(b"\0")
    (project.checkout() / "notes.txt").write_text("mine\n")
    found = project.run("status", "alpha", "--json").json["alpha"]
    assert found["state"] == "applied" and found["untracked"] == ["notes.txt"]


def test_diff_is_git_diff_and_can_be_applied(project, tmp_path):
    project.run("apply", "alpha")
    out = project.run("diff", "alpha").raw
    plain = subprocess.run(["git", "diff", "upstream/v1", "era"], cwd=project.checkout(), capture_output=True).stdout
    assert out == plain
    clean = tmp_path / "clean"
    git(tmp_path, "clone", "-q", str(project.up / "alpha"), str(clean))
    git(clean, "checkout", "-q", "v1")
    subprocess.run(["git", "apply", "-"], cwd=clean, input=out, check=True)
    assert content(clean) == content(project.checkout())
    stat = project.run("diff", "alpha", "--stat").out
    assert "src/core.py" in stat and "4 files changed" in stat
    only = project.run("diff", "alpha", "src/util.py").out
    assert "src/util.py" in only and "src/core.py" not in only
    assert project.run("diff", "alpha", "--", "src/util.py").out == only
    assert "src/util.py" in project.run("diff", "alpha", "--json").json["alpha"]["diff"]


def test_diff_local_shows_edits_and_new_files_only(project):
    project.run("apply", "alpha")
    assert project.run("diff", "alpha", "--local").out == ""
    (project.checkout() / "src/util.py").write_text("x = 1\n")
    (project.checkout() / "new.py").write_text("y = 1\n")
    (project.checkout() / "README.md").unlink()
    (project.checkout() / "image.bin").write_bytes(bytes(range(256)))
    out = project.run("diff", "alpha", "--local").raw
    for name in (b"src/util.py", b"new.py", b"README.md", b"image.bin"):
        assert name in out
    assert b"src/core.py" not in out
    assert git(project.checkout(), "count-objects") == git(project.checkout(), "count-objects")


def test_diff_without_a_checkout(project):
    assert "apply.py apply alpha" in project.run("diff", "alpha", code=3).err


def test_revert_and_apply_are_inverse(project):
    project.run("apply", "alpha")
    applied = content(project.checkout())
    refs = git(project.checkout(), "for-each-ref")
    project.run("revert", "alpha")
    expected = {path: (path.endswith(".sh"), text.encode()) for path, text in FIRST.items()}
    assert content(project.checkout()) == expected
    assert git(project.checkout(), "rev-parse", "HEAD") == project.ids["v1"]
    assert git(project.checkout(), "status", "--porcelain") == ""
    assert "nothing to revert" in project.run("revert", "alpha").out
    project.run("apply", "alpha", "--offline")
    assert content(project.checkout()) == applied and git(project.checkout(), "for-each-ref") == refs


def test_revert_refuses_over_edits_and_saves_them_when_told(project, tmp_path):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "src/core.py").write_text("mine\n")
    (checkout / "README.md").unlink()
    (checkout / "notes.txt").write_text("untracked\n")
    (checkout / "run.sh").chmod(0o644)
    before = content(checkout)
    error = project.run("revert", "alpha", code=5).err
    assert "src/core.py" in error and "--keep-edits" in error and "othing was changed" in error
    assert content(checkout) == before
    saved = tmp_path / "edits.patch"
    saved.write_text("precious\n")
    assert "not overwritten" in project.run("revert", "alpha", "--keep-edits", str(saved), code=5).err
    assert saved.read_text() == "precious\n" and content(checkout) == before
    saved.unlink()
    project.run("revert", "alpha", "--keep-edits", str(saved))
    assert (checkout / "notes.txt").read_text() == "untracked\n"
    assert project.state() == "clean"
    project.run("apply", "alpha")
    git(checkout, "apply", str(saved))
    assert content(checkout) == before


def test_revert_keeps_commits_on_a_branch_of_their_own(project, tmp_path):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    git(checkout, "commit", "-q", "-am", "My work")
    mine = git(checkout, "rev-parse", "HEAD")
    assert mine[:12] in project.run("revert", "alpha", code=5).err
    project.run("revert", "alpha", "--keep-edits", str(tmp_path / "edits.patch"))
    assert git(checkout, "rev-parse", f"era-backup-{mine[:12]}") == mine
    assert b"+mine" in (tmp_path / "edits.patch").read_bytes()
    assert project.state() == "clean"


def test_staged_content_that_is_not_in_the_file_is_not_lost(project, tmp_path):
    project.run("apply", "alpha")
    target = project.checkout() / "README.md"
    target.write_text("staged\n")
    git(project.checkout(), "add", "README.md")
    target.write_text("in the file\n")
    assert "staged content" in project.run("revert", "alpha", "--keep-edits", str(tmp_path / "p"), code=5).err
    assert git(project.checkout(), "show", ":README.md") == "staged" and target.read_text() == "in the file\n"


def test_flags_in_the_index_survive_apply_and_revert(project, clone):
    git(clone, "update-index", "--skip-worktree", "src/core.py")
    git(clone, "update-index", "--assume-unchanged", "src/util.py", "README.md")
    git(clone, "update-index", "--skip-worktree", "README.md")
    before = git_state(clone)
    flags = git(clone, "ls-files", "-v")
    assert "S src/core.py" in flags and "h src/util.py" in flags and "s README.md" in flags
    project.run("apply", "alpha", "--checkout", str(clone))
    after = git(clone, "ls-files", "-v").splitlines()
    assert [row for row in after if row not in flags] == ["H src/era.py", "H tools/go.sh"]
    project.run("revert", "alpha", "--checkout", str(clone))
    assert git_state(clone) == before


def test_the_flag_of_a_file_that_the_overlay_deletes_comes_back_with_it(project, clone):
    text, _ = make_patch(
        project.up / "alpha", project.ids["v1"], lambda work: (work / "src/old.py").unlink(), "Drop the old"
    )
    shutil.rmtree(project.root / "patches/alpha/v1")
    write_tree(project.root, {"patches/alpha/v1/0001-drop-the-old.patch": text})
    git(clone, "update-index", "--skip-worktree", "src/old.py")
    before = git_state(clone)
    project.run("apply", "alpha", "--checkout", str(clone))
    assert not (clone / "src/old.py").exists()
    project.run("revert", "alpha", "--checkout", str(clone))
    assert git_state(clone) == before


def test_a_tag_of_ours_goes_at_revert_also_after_an_apply_from_the_users_branch(project, clone):
    before = git_state(clone)
    project.run("apply", "alpha", "--checkout", str(clone))
    git(clone, "checkout", "-q", "mine")
    project.run("apply", "alpha", "--checkout", str(clone))
    project.run("revert", "alpha", "--checkout", str(clone))
    assert git_state(clone) == before


def test_a_file_that_became_a_folder_is_refused_before_anything_is_written(project, tmp_path):
    project.run("apply", "alpha")
    for path in ("src/core.py", "src/era.py"):  # one that comes back at a revert, one that goes
        target = project.checkout() / path
        content_before = target.read_bytes()
        target.unlink()
        target.mkdir()
        (target / "inside.txt").write_text("mine\n")
        error = project.run("revert", "alpha", "--keep-edits", str(tmp_path / "p"), code=5).err
        assert path in error and "othing was changed" in error
        assert not (tmp_path / "p").exists() and project.state() == "modified"
        assert (target / "inside.txt").read_text() == "mine\n"
        shutil.rmtree(target)
        target.write_bytes(content_before)
    project.run("revert", "alpha")


def test_a_refused_revert_has_not_written_the_kept_edits(project, tmp_path):
    project.run("apply", "alpha")
    shutil.rmtree(project.checkout() / "src")
    (project.checkout() / "src").write_text("a file where a folder was\n")
    assert "othing was changed" in project.run("revert", "alpha", "--keep-edits", str(tmp_path / "p"), code=5).err
    assert not (tmp_path / "p").exists() and (project.checkout() / "src").read_text() == "a file where a folder was\n"


def test_dry_run_changes_nothing(project, tmp_path):
    out = project.run("apply", "--dry-run").out
    assert "would be applied" in out and "nothing was changed" in out
    assert not project.checkouts.exists()
    project.run("apply", "alpha")
    before = git_state(project.checkout())
    project.run("revert", "alpha", "--dry-run")
    (project.checkout() / "README.md").write_text("mine\n")
    project.run("revert", "alpha", "--dry-run", "--keep-edits", str(tmp_path / "p"))
    assert not (tmp_path / "p").exists()
    files = content(project.root / "patches")
    project.run("export", "alpha", "--dry-run")
    assert content(project.root / "patches") == files
    git(project.checkout(), "checkout", "-q", "README.md")
    assert git_state(project.checkout()) == before
    project.run("fetch", "--dry-run")


def test_fetch_then_offline(project):
    error = project.run("apply", "alpha", "--offline", code=6).err
    assert "--offline" in error
    found = project.run("fetch", "--json").json
    assert found["alpha"] == {"version": "v1", "source": "git", "commit": project.ids["v1"], "fetched": True}
    project.run("apply", "--offline")
    assert project.run("fetch", "--offline", "--json").json["alpha"]["fetched"] is False


def test_two_versions_of_one_upstream(project):
    folder = project.root / "patches/alpha/v2"
    folder.mkdir()
    project.run("apply", "alpha", "--version", "v2")
    assert project.state() == "applied" and (project.checkout() / "src/helpers.py").exists()
    note = project.run("apply", "alpha").out
    assert "v2" in note and "--version v1 switches" in note
    assert project.state("alpha", "--version", "v1") == "stale"
    (project.checkout() / "README.md").write_text("mine\n")
    project.run("apply", "alpha", "--version", "v1")
    assert (project.checkout() / "README.md").read_text() == "mine\n"
    git(project.checkout(), "checkout", "-q", "README.md")
    assert project.state() == "applied" and not (project.checkout() / "src/helpers.py").exists()
    assert git(project.checkout(), "fsck", check=False) == ""
    assert project.run("status", "alpha", "--json").json["alpha"]["version"] == "v1"


def test_json_is_one_object_on_stdout(project):
    for args in (("fetch",), ("apply",), ("status",), ("diff",), ("export", "--check"), ("revert",)):
        found = project.run(*args, "--json").json
        assert set(found) == {"alpha", "beta"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["apply", "alhpa"], "did you mean alpha?"),
        (["stauts"], "did you mean status?"),
        (["apply", "--version", "v9"], "no version 'v9'"),
        (["apply", "--checkout", "x"], "exactly one upstream"),
        (["status", "--onto", "main"], "--onto does not go with status"),
        (["apply", "alpha", "--checkout", "x", "--source", "pypi"], "does not go with --checkout"),
        (["port", "alpha"], "--onto REF"),
        (["apply", "--nonsense"], "--nonsense"),
        (["apply", "--", "x"], "no paths"),
        (["revert", "--keep-edits", "x"], "exactly one upstream"),
    ],
)
def test_usage_errors(project, args, said):
    result = project.run(*args, code=2)
    assert said in result.err


def test_help_names_verbs_and_exit_codes(project):
    out = project.run("--help").out
    for word in ("fetch", "apply", "status", "diff", "revert", "export", "port", "interrupted", "source unavailable"):
        assert word in out


def test_verbose_shows_git_commands(project):
    assert "+ git --git-dir=" in project.run("apply", "alpha", "-v").err


def test_runs_from_any_folder_and_any_environment(project, tmp_path):
    for key in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        project.env[key] = str(tmp_path / "nowhere")
    project.spawn("apply", "alpha")
    assert project.spawn("status", "alpha").out.startswith("alpha v1: applied")


def test_broken_pipe_is_silent(project):
    project.run("apply", "alpha")
    command = f"{os.sys.executable} {project.root}/apply.py diff alpha --cache {project.cache} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(alpha=[]), "expected an object"),
        (lambda d: d["alpha"].pop("git"), "'git' is missing"),
        (lambda d: d["alpha"].update(extra=1), "unknown key 'extra'"),
        (lambda d: d["alpha"].update(default="v7"), "not among versions"),
        (lambda d: d["alpha"].update(on_request=1), "alpha.on_request: expected true or false, found 1"),
        (lambda d: d["alpha"].update(on_request="true"), "expected true or false"),
        (lambda d: d["alpha"].update(on_request=None), "expected true or false"),
        (lambda d: [up.update(on_request=True) for up in d.values()], "at least one upstream without on_request"),
        (lambda d: d["alpha"].update(git="http://example.org/x"), "https, ssh or file"),
        (lambda d: d["alpha"].update(git="--upload-pack=evil"), "https, ssh or file"),
        (lambda d: d["alpha"].update(git="ext::sh -c evil"), "https, ssh or file"),
        (lambda d: d["alpha"]["versions"]["v1"].update(commit="abc"), "40 hex digits"),
        (lambda d: d["alpha"]["versions"]["v1"].update(tag="-x"), "a tag name"),
        (lambda d: d["alpha"]["versions"]["v1"]["sdist"].update(sha256="0" * 63), "64 hex digits"),
        (lambda d: d["alpha"]["versions"]["v1"]["sdist"].update(lacks=["/etc"]), "absolute"),
        (lambda d: d["alpha"]["versions"]["v1"]["sdist"].update(lacks=[3]), "expected paths"),
        (lambda d: d["alpha"]["versions"].update({"../up": {"commit": "0" * 40}}), "a version label"),
        (lambda d: d.update({"../../x": d["alpha"]}), "a name of letters"),
        (lambda d: d.clear(), "one key per upstream"),
    ],
)
def test_upstreams_file_is_checked(project, change, said):
    change(project.upstreams)
    project.save()
    assert said in project.run("status", code=2).err


def test_upstreams_file_that_is_no_json(project):
    path = project.root / "upstreams.json"
    path.write_text('{"alpha": {}, "alpha": {}}')
    assert "stands twice" in project.run("status", code=2).err
    path.write_text("{")
    assert "not valid JSON" in project.run("status", code=2).err
    path.write_bytes(b"\xff\xfe")
    assert "not valid JSON" in project.run("status", code=2).err
    path.unlink()
    assert "cannot read" in project.run("status", code=2).err


def test_real_upstreams_file_is_valid(project):
    project.engine.project.ROOT = PROJECT
    found = project.engine.project.read_upstreams()
    assert found["verl"].versions["v0.4.1"].commit == "8d9e350ea58c7ad4b50dd14d9dcb50577242c55f"
    assert json.loads((project.engine.project.ROOT / "upstreams.json").read_text())["verl"]["license"] == "Apache-2.0"
    assert {name for name, up in found.items() if up.on_request} == {"humanoid-bench"}
