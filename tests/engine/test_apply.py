# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""apply and fetch: what they build, what they leave alone, and what becomes of the other upstreams when one fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from kit import FIRST, content, git, git_state, hinted, interrupt, unreachable, write_tree

# --- what apply builds ---


def test_the_checkout_is_upstream_plus_patches_and_overlay_files(project):
    out = project.run().out
    assert f"alpha v1: applied 2 patches and 2 new files to {project.ids['v1'][:12]} (git); verified 10 files" in out
    assert "beta b1: applied 1 patch and 0 new files" in out
    expected = {path: (path.endswith(".sh"), text.encode()) for path, text in FIRST.items()}
    core = FIRST["src/core.py"]
    for number in (20, 40):
        core = core.replace(f"line {number} of", f"line {number}, hooked, of")
    expected["src/core.py"] = (False, core.encode())
    expected["src/util.py"] = (False, FIRST["src/util.py"].replace("a + b", "b + a").encode())
    expected["src/era.py"] = (False, b"ERA = 1\n")
    expected["tools/go.sh"] = (True, b"#!/bin/sh\n")
    checkout = project.checkout()
    assert content(checkout) == expected
    assert (
        git(checkout, "status", "--porcelain") == ""
        and git(checkout, "fsck", "--strict", "--no-dangling", check=False) == ""
    )
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(checkout, "rev-parse", "upstream/v1") == project.ids["v1"]
    assert git(checkout, "log", "--format=%s", "upstream/v1..era").splitlines() == [
        "Hook core and util",
        "Hook the core",
        "New files of the ERA overlay for alpha",
    ]
    assert git(checkout, "remote", "get-url", "origin") == project.upstreams["alpha"]["git"]
    assert {path.name for path in project.checkouts.iterdir()} == {"alpha", "beta"}


def test_a_second_apply_touches_nothing(project):
    project.run("apply", "alpha")

    def times() -> dict:  # git notes when an object was last wanted
        found = (path for path in project.checkout().rglob("*") if "objects" not in path.parts)
        return {path: path.stat().st_mtime_ns for path in found}

    before = times()
    assert f"already applied to {project.ids['v1'][:12]} (git)" in project.run("apply", "alpha").out
    assert before == times()


def test_commit_ids_do_not_depend_on_who_applies_where(project, tmp_path):
    project.run("apply", "alpha")
    project.env.update(GIT_AUTHOR_NAME="Someone", GIT_COMMITTER_DATE="2001-01-01T00:00:00", TZ="Asia/Tokyo")
    for key in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        project.env[key] = str(tmp_path / "nowhere")
    project.run("apply", "alpha", "--checkouts", str(tmp_path / "other"))
    assert git(tmp_path / "other/alpha", "rev-parse", "era") == git(project.checkout(), "rev-parse", "era")


def test_two_versions_of_one_upstream(project):
    project.run("apply", "alpha", "--version", "2")  # as good as v2
    assert project.state() == "applied" and (project.checkout() / "src/helpers.py").exists()
    assert "--version v1 switches" in project.run("apply", "alpha").out
    assert project.state("alpha", "--version", "v1") == "stale"
    (project.checkout() / "README.md").write_text("mine\n")
    project.run("apply", "alpha", "--version", "1")
    assert (project.checkout() / "README.md").read_text() == "mine\n"
    assert not (project.checkout() / "src/helpers.py").exists()
    assert project.run("status", "alpha", "--json", code=1).json["alpha"]["version"] == "v1"
    assert git(project.checkout(), "fsck", "--no-dangling", check=False) == ""


def test_a_version_that_a_plugin_is_for(project):
    project.upstreams["alpha"]["plugin"] = "alpha 3 needs no patches: the plug-in"
    project.save()
    error = project.run("apply", "alpha", "--version", "3", code=2).err
    assert "known: v1, v2" in error and "alpha 3 needs no patches" in error


def test_fetch_then_offline(project):
    assert "--offline" in project.run("apply", "alpha", "--offline", code=6).err
    found = project.run("fetch", "--json").json
    assert found["alpha"] == {"version": "v1", "source": "git", "commit": project.ids["v1"]}
    project.run("apply", "--offline")


def test_long_names_blanks_and_other_letters(project, tmp_path):
    folder = tmp_path / ("long " + "x" * 150) / "größe: 'a' \"b\""
    names = ["-rf", "with blank.py", "größe/日本.py", "--help", "n" * 252 + ".py"]
    write_tree(project.root / "overlays/alpha", dict.fromkeys(names, "x = 1\n"))
    where = ("--checkouts", str(folder))
    project.run("apply", "alpha", *where)
    assert {*names} <= content(folder / "alpha").keys() and project.state("alpha", *where) == "applied"
    (folder / "alpha/-rf").write_text("edited\n")
    assert "+edited" in project.run("diff", "alpha", "--local", *where).out
    project.run("export", "alpha", *where)
    assert (project.root / "overlays/alpha/-rf").read_text() == "edited\n"
    project.run("apply", "alpha", *where)
    project.run("revert", "alpha", *where)
    assert set(content(folder / "alpha")) == set(FIRST)


@pytest.mark.parametrize("name", ["README.md", "src/core.py/x", "src"])
def test_overlay_files_may_not_replace_upstream_files(project, name):
    shutil.rmtree(project.root / "overlays/alpha/src")
    write_tree(project.root / "overlays/alpha", {name: "x"})
    assert "would overwrite" in project.run("apply", "alpha", code=3).err and not project.checkout().exists()


# --- edits ---


def test_edits_are_carried_unless_they_are_in_the_way(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    assert "your edits are kept: README.md" in project.run("apply", "alpha").out  # nothing is stale
    (checkout / "notes.txt").write_text("mine\n")
    git(checkout, "add", "README.md")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "your edits are kept: README.md" in project.run("apply", "alpha").out
    assert (checkout / "README.md").read_text() == "mine\n" and (checkout / "src/era.py").read_text() == "ERA = 2\n"
    assert git(checkout, "diff", "--cached", "--name-only") == "README.md"
    (checkout / "src/era.py").write_text("ERA = mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 3\n")
    before, state = content(checkout), git_state(checkout)
    error = project.run("apply", "alpha", code=5).err
    assert "src/era.py" in error and [words[0] for words in hinted(error)] == ["diff"]
    assert content(checkout) == before and git_state(checkout) == state


def test_an_edit_that_is_staged_and_not_in_the_file(project):
    project.run("apply", "alpha")
    file = project.checkout() / "src/era.py"
    file.write_text("ERA = staged\n")
    git(project.checkout(), "add", "src/era.py")
    file.write_text("ERA = 1\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "in the way: src/era.py" in project.run("apply", "alpha", code=5).err
    assert git(project.checkout(), "show", ":src/era.py") == "ERA = staged"
    project.run("revert", "alpha", "--keep-edits")
    (saved,) = git(project.checkout(), "for-each-ref", "--format=%(refname)", "refs/heads/era-saved").split()
    assert git(project.checkout(), "show", f"{saved}^:src/era.py") == "ERA = staged"


@pytest.mark.parametrize(
    ("mine", "new"),
    [("fresh.py", "fresh.py"), ("fresh.py/mine", "fresh.py"), ("fresh", "fresh/new.py")],
)
@pytest.mark.parametrize("ignored", [False, True])
def test_untracked_files_in_the_way(project, mine, new, ignored):
    """Also where a new file needs a folder, or a folder is in its place; and what git ignores is somebody's too."""
    project.run("apply", "alpha")
    if ignored:
        (project.checkout() / ".git/info/exclude").write_text("fresh*\nmine\n")
    write_tree(project.checkout(), {mine: "mine\n"})
    write_tree(project.root / "overlays/alpha", {"src/era.py": "ERA = 2\n"})
    write_tree(project.root / "overlays/alpha", {new: "new\n"})
    project.pinning = False
    (project.root / "overlays/alpha.list").write_text(f"src/era.py\ntools/go.sh\n{new}\n")
    before = content(project.checkout())
    assert mine in project.run("apply", "alpha", code=5).err
    assert content(project.checkout()) == before


def test_commits_that_were_not_exported_stop_a_stale_apply(project):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    git(project.checkout(), "commit", "-q", "-am", "Mine")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    before = content(project.checkout())
    error = project.run("apply", "alpha", code=5).err
    assert "holds commits of yours" in error and [words[0] for words in hinted(error)] == ["export"]
    git(project.checkout(), "checkout", "-q", "upstream/v1")
    assert "holds commits of yours" in project.run("apply", "alpha", code=5).err
    git(project.checkout(), "checkout", "-q", "era")
    assert content(project.checkout()) == before


@pytest.mark.parametrize("kind", ["file", "link", "folder", "other repository"])
def test_something_else_in_the_place_of_a_checkout(project, kind):
    place = project.checkout()
    place.parent.mkdir()
    if kind == "folder":
        write_tree(place, {"x": "x"})
    elif kind == "file":
        place.write_text("x")
    elif kind == "link":
        place.symlink_to("/nowhere/at/all")
    else:  # the checkout was swapped for a link to it
        place.symlink_to(project.up / "beta")
    before = git_state(project.up / "beta")
    error = project.run("apply", "alpha", code=3).err
    said = "HEAD is" if kind == "other repository" else "not a git work tree"
    assert said in error and "move it away" in error and project.state() == "wrong-base"
    assert git_state(project.up / "beta") == before


def test_a_folder_of_the_checkout_that_was_swapped_for_a_link(project, tmp_path):
    project.run("apply", "alpha")
    src = project.checkout() / "src"
    src.rename(tmp_path / "elsewhere")
    src.symlink_to(tmp_path / "elsewhere")
    before = content(tmp_path / "elsewhere")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "src" in project.run("apply", "alpha", code=5).err
    assert content(tmp_path / "elsewhere") == before and src.is_symlink()


# --- checkouts of the engine before ---


def of_before(project) -> None:
    """A checkout as apply.py made it before December 2026: its record is a file."""
    project.run("apply", "alpha")
    git_dir = project.checkout() / ".git"
    record = {"version": "v1", "base": project.ids["v1"], "tip": git(project.checkout(), "rev-parse", "era")}
    shutil.rmtree(git_dir / "refs/worktree")
    write_tree(git_dir, {"era/record.json": json.dumps({"format": 2, "source": "git", **record})})


def test_a_checkout_of_the_engine_before_is_taken_over(project):
    of_before(project)
    (project.checkout() / "README.md").write_text("mine\n")
    assert project.state() == "modified" and "already applied" in project.run("apply", "alpha").out
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert project.state() == "stale"
    project.run("apply", "alpha")
    assert project.state() == "modified" and (project.checkout() / "README.md").read_text() == "mine\n"
    assert not (project.checkout() / ".git/era").exists()
    of_before(project)
    project.run("revert", "alpha", "--keep-edits")
    assert project.state() == "clean"
    project.run("apply", "alpha")
    assert project.state() == "applied"


def test_a_switch_that_the_engine_before_did_not_end(project):
    of_before(project)
    (project.checkout() / ".git/era/journal.json").write_text("{}")
    assert project.state() == "wrong-base"
    error = project.run("apply", "alpha", code=3).err
    assert f"mv {project.checkout()} " in error and hinted(error) == [["apply", "alpha", "--cache", str(project.cache)]]


# --- all or none, and verbs without names ---


@pytest.fixture
def broken(project):
    """Beta, which has no source package, cannot be reached."""
    unreachable(project, "beta")
    return project


def restore(project) -> None:
    project.upstreams["beta"]["git"] = f"file://{project.up}/beta"
    project.save()


def test_all_or_none_of_those_named(broken):
    assert "left out" not in broken.run("apply", "alpha", "beta", code=6).err
    assert not broken.checkout("alpha").exists() and not broken.checkout("beta").exists()


def test_all_or_none_when_one_checkout_is_in_the_way(project):
    project.run()
    write_tree(project.root / "overlays", {"alpha/fresh.py": "x = 1\n", "beta/fresh.py": "x = 1\n"})
    (project.checkout("beta") / "fresh.py").write_text("mine\n")
    before = content(project.checkout("alpha"))
    project.run(code=5)
    assert content(project.checkout("alpha")) == before and project.state("alpha") == "stale"


@pytest.mark.parametrize("verb", [["apply"], []])
def test_without_names_the_others_are_applied(broken, verb):
    result = broken.run(*verb, code=6)
    assert "applied 2 patches" in result.out and broken.state("alpha") == "applied"
    assert not broken.checkout("beta").exists()
    first, *_, left, again = result.err.splitlines()
    assert first.startswith("error: the repository ") and first.endswith("cannot be reached")
    assert left.strip() == "it was left out; the others are ready: alpha"
    restore(broken)
    (words,) = hinted(again)
    assert words[:2] == ["apply", "beta"]
    broken.run(*words)
    assert broken.state("beta") == "applied"


def test_only_a_missing_source_is_left_out(broken):
    broken.upstreams["gamma"] = {**broken.upstreams["beta"], "git": f"file://{broken.up}/beta"}
    broken.save()
    write_tree(broken.root / "overlays/gamma", {"main.py": "print(0)\n"})
    error = broken.run("apply", code=3).err
    assert "would overwrite upstream's main.py" in error and "left out" not in error
    assert not any(broken.checkout(name).exists() for name in broken.upstreams)


def test_an_applied_checkout_needs_no_source(broken):
    restore(broken)
    broken.run("apply")
    unreachable(broken, "beta")
    shutil.rmtree(broken.cache)
    result = broken.run("apply")
    assert "beta b1: already applied" in result.out and result.err == "" and not broken.cache.exists()
    # Where it has to change and cannot, the others do.
    before = content(broken.checkout("beta"))
    broken.upstreams["beta"]["versions"]["b1"]["commit"] = "1" * 40
    broken.save()
    (broken.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "cannot be reached" in broken.run("apply", code=6).err
    assert (broken.state("alpha"), broken.state("beta")) == ("applied", "stale")
    assert content(broken.checkout("beta")) == before


def test_json_of_what_is_left_out(broken):
    for verb in ("fetch", "apply"):
        result = broken.run(verb, "--json", code=6)
        assert "error" not in result.json["alpha"] and result.json["beta"]["error"].startswith("the repository ")
        assert [words[:2] for words in hinted(result.err)] == [[verb, "beta"]]


def test_an_upstream_on_request(project, tmp_path):
    project.upstreams["beta"]["on_request"] = True
    project.save()

    def concerned(*args: str) -> set[str]:
        return set(project.run(*args, "--json").json)

    every = [("fetch",), ("apply",), ("status",), ("diff",), ("export", "--check"), ("revert",)]
    for verb in every:
        assert concerned(*verb) == {"alpha"}, verb
    assert concerned("status", "beta") == {"beta"}
    project.run("apply", "beta")
    project.run("apply")
    for verb in every:
        assert concerned(*verb) == {"alpha", "beta"}, verb
    # Its checkout is looked for where this run has its checkouts.
    assert concerned("status", "--checkouts", str(tmp_path / "other")) == {"alpha"}


# --- an upstream without patches and overlay files ---


@pytest.fixture
def bare(project):
    shutil.rmtree(project.root / "patches/beta")
    return project


def test_every_verb_without_an_overlay(bare):
    assert "applied 0 patches and 0 new files" in bare.run("apply", "beta").out
    checkout = bare.checkout("beta")
    assert content(checkout) == {"main.py": (False, b"print(1)\nprint(2)\nprint(3)\n")}
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(checkout, "rev-parse", "era", "upstream/b1").split() == [bare.ids["beta"]] * 2
    assert bare.state("beta") == "applied" and "already applied" in bare.run("apply", "beta").out
    found = bare.run("diff", "beta")
    assert (found.out, "no difference" in found.err) == ("", True)
    assert "equal the checkout" in bare.run("export", "beta", "--check").out
    assert "beta: b1 onto main" in bare.run("port", "beta", "--onto", "main").out
    assert "back on upstream" in bare.run("revert", "beta").out and bare.state("beta") == "clean"
    assert "nothing to revert" in bare.run("revert", "beta").out
    bare.run("apply", "beta", "--offline")
    assert bare.state("beta") == "applied"


def test_a_switch_without_any_file_is_completed_too(bare, monkeypatch):
    bare.run("apply", "beta")
    bare.run("revert", "beta")
    interrupt(bare, monkeypatch, "apply", "beta")
    assert bare.state("beta") == "interrupted"
    assert "had been cut short" in bare.run("apply", "beta").out
    assert bare.state("beta") == "applied"


# --- configuration that must change nothing ---


@pytest.mark.parametrize("where", ["user", "checkout"])
def test_hooks_filters_and_line_ends_of_a_configuration(project, tmp_path, where):
    """Neither the user's configuration nor the checkout's runs a program or changes bytes."""
    ran, hooks, attributes = tmp_path / "ran", tmp_path / "hooks", tmp_path / "attributes"
    program = f"#!/bin/sh\ntouch '{ran}'\ncat\n"
    for name in ("reference-transaction", "post-checkout", "post-index-change", "post-commit", "applypatch-msg"):
        write_tree(hooks, {f"{name}.sh": program})
        (hooks / f"{name}.sh").rename(hooks / name)
    write_tree(tmp_path, {"program.sh": program, "attributes": "* text eol=crlf filter=evil diff=evil\n"})
    values = {"core.autocrlf": "true", "core.attributesFile": attributes, "core.hooksPath": hooks}
    values |= {"filter.evil.clean": tmp_path / "program.sh", "filter.evil.smudge": tmp_path / "program.sh"}
    values |= {"core.fsmonitor": tmp_path / "program.sh", "diff.evil.textconv": tmp_path / "program.sh"}
    values |= {"core.worktree": tmp_path / "worktree", "diff.noprefix": "true", "diff.context": "0"}
    project.write_lists()
    project.commit()
    config = tmp_path / ".gitconfig"  # the home of the tests: git before 2.32 knows no other place
    if where == "checkout":
        project.run("apply", "alpha")
        config = project.checkout() / ".git/config"
        write_tree(project.checkout(), {".gitattributes": "* filter=evil\n"})
        (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    else:
        project.env["GIT_CONFIG_GLOBAL"] = str(config)
        values.pop("core.worktree")
    for key, value in values.items():
        git(tmp_path, "config", "--file", str(config), key, str(value))
    project.run("apply", "alpha")
    assert b"\r" not in (project.checkout() / "src/core.py").read_bytes()
    assert (project.checkout() / "crlf.txt").read_bytes() == FIRST["crlf.txt"].encode()
    assert "--- a/src/core.py" in project.run("diff", "alpha").out
    (project.checkout() / "README.md").write_text("# mine\n")
    project.pinning = False
    project.run("export", "alpha")
    assert "\n--- a/README.md\n" in project.patch(3).read_text()
    project.run("apply", "alpha")
    project.run("revert", "alpha")
    assert not ran.exists() and not (tmp_path / "worktree").exists()
    if where == "user":  # the user's own git finds nothing changed either
        (project.checkout() / ".git/hooks").mkdir()
        env = {**os.environ, **project.env, "GIT_CONFIG_COUNT": "1"}
        env |= {"GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "false"}
        done = subprocess.run(["git", "status", "--porcelain"], cwd=project.checkout(), env=env, capture_output=True)
        assert done.stdout == b""
