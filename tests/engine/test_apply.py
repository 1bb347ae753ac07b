"""apply and fetch: what they build, what they leave alone, and what becomes of the other upstreams when one fails."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from kit import FIRST, content, git, git_state, hinted, interrupt, unreachable, write_tree

# --- what apply builds -----------------------------------------------------------------------------------------------


def test_the_checkout_is_upstream_plus_patches_and_overlay_files(project):
    result = project.run()
    assert "alpha v1: fetched (git" in result.out and "2 patches (6 lines), 2 new files" in result.out
    assert "beta b1: fetched" in result.out
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
    assert git(checkout, "status", "--porcelain") == "" and git(checkout, "fsck", "--strict", check=False) == ""
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(checkout, "rev-parse", "upstream/v1") == project.ids["v1"]
    assert git(checkout, "log", "--format=%s", "upstream/v1..era").splitlines() == [
        "Hook core and util",
        "Hook the core",
        "New files of the ERA overlay for alpha",
    ]
    assert git(checkout, "remote", "get-url", "origin") == project.upstreams["alpha"]["git"]
    assert not list(project.checkouts.glob(".*.new-*"))


def test_a_second_apply_touches_nothing(project):
    project.run("apply", "alpha")
    before = {path: path.stat().st_mtime_ns for path in project.checkout().rglob("*")}
    assert "already applied" in project.run("apply", "alpha").out
    assert before == {path: path.stat().st_mtime_ns for path in project.checkout().rglob("*")}


def test_commit_ids_do_not_depend_on_who_applies_where(project, tmp_path):
    project.run("apply", "alpha")
    project.env.update(GIT_AUTHOR_NAME="Someone", GIT_COMMITTER_DATE="2001-01-01T00:00:00", TZ="Asia/Tokyo")
    project.run("apply", "alpha", "--checkouts", str(tmp_path / "other"))
    assert git(tmp_path / "other/alpha", "rev-parse", "era") == git(project.checkout(), "rev-parse", "era")


def test_two_versions_of_one_upstream(project):
    project.run("apply", "alpha", "--version", "v2")
    assert project.state() == "applied" and (project.checkout() / "src/helpers.py").exists()
    assert "--version v1 switches" in project.run("apply", "alpha").out
    assert project.state("alpha", "--version", "v1") == "stale"
    (project.checkout() / "README.md").write_text("mine\n")
    project.run("apply", "alpha", "--version", "v1")
    assert (project.checkout() / "README.md").read_text() == "mine\n"
    assert not (project.checkout() / "src/helpers.py").exists()
    assert project.run("status", "alpha", "--json", code=1).json["alpha"]["version"] == "v1"
    assert git(project.checkout(), "fsck", check=False) == ""


def test_dry_run_changes_nothing(project, tmp_path):
    out = project.run("apply", "--dry-run").out
    assert "would be applied" in out and "nothing was changed" in out and not project.checkouts.exists()
    project.run("fetch", "--dry-run")
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    before, files = git_state(project.checkout()), content(project.root / "patches")
    project.run("revert", "alpha", "--dry-run", "--keep-edits", str(tmp_path / "p"))
    project.run("export", "alpha", "--dry-run")
    assert not (tmp_path / "p").exists() and content(project.root / "patches") == files
    assert git_state(project.checkout()) == before


def test_fetch_then_offline(project):
    assert "--offline" in project.run("apply", "alpha", "--offline", code=6).err
    found = project.run("fetch", "--json").json
    assert found["alpha"] == {"version": "v1", "source": "git", "commit": project.ids["v1"], "fetched": True}
    project.run("apply", "--offline")
    assert project.run("fetch", "--offline", "--json").json["alpha"]["fetched"] is False


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


def test_overlay_links_are_refused(project):
    (project.root / "overlays/alpha/link").symlink_to("/etc/passwd")
    assert "not a plain file" in project.run("apply", "alpha", code=2).err


@pytest.mark.parametrize("mode", [0o777, 0o666])
def test_a_project_on_a_file_system_without_exec_bits(project, tmp_path, mode):
    """Windows drives in WSL show every file as executable; an archive unpacked without modes shows none."""
    project.run("apply", "alpha")
    for path in project.root.rglob("*"):
        if path.is_file() and not path.is_relative_to(project.checkouts):
            path.chmod(mode)
    assert project.state() == "applied"
    project.run("apply", "alpha", "--checkouts", str(tmp_path / "other"))
    assert git(tmp_path / "other/alpha", "rev-parse", "era") == git(project.checkout(), "rev-parse", "era")


# --- configuration of the user that changes nothing ------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"core.autocrlf": "true"}, {"core.eol": "crlf"}])
def test_line_end_settings_and_hooks_of_the_user(project, tmp_path, settings):
    config, attributes, hooks = tmp_path / "gitconfig", tmp_path / "attributes", tmp_path / "hooks"
    attributes.write_text("* text eol=crlf\n")
    for name in ("reference-transaction", "post-checkout", "post-index-change", "post-commit", "pre-commit"):
        write_tree(hooks, {f"{name}.sh": f"#!/bin/sh\ntouch {tmp_path}/ran\n"})
        (hooks / f"{name}.sh").rename(hooks / name)
    settings = {**settings, "core.attributesFile": str(attributes), "core.hooksPath": str(hooks)}
    for key, value in settings.items():
        git(tmp_path, "config", "--file", str(config), key, value)
    shutil.copytree(hooks, project.up / "alpha/.git/hooks", dirs_exist_ok=True)
    project.env["GIT_CONFIG_GLOBAL"] = str(config)
    project.run("apply", "alpha")
    assert (project.checkout() / "crlf.txt").read_bytes() == FIRST["crlf.txt"].encode()
    assert b"\r" not in (project.checkout() / "src/core.py").read_bytes() and not (tmp_path / "ran").exists()
    command, env = ["git", "status", "--porcelain"], {**os.environ, **project.env}
    assert subprocess.run(command, cwd=project.checkout(), env=env, capture_output=True).stdout == b""
    (tmp_path / "ran").unlink(missing_ok=True)  # that git was the user's
    project.run("revert", "alpha")
    assert project.state() == "clean" and not (tmp_path / "ran").exists()


# --- edits -----------------------------------------------------------------------------------------------------------


def test_edits_are_carried_unless_they_are_in_the_way(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    (checkout / "README.md").write_text("mine\n")
    assert "your edits are kept: README.md" in project.run("apply", "alpha").out  # nothing is stale
    (checkout / "notes.txt").write_text("mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "your edits are kept: README.md" in project.run("apply", "alpha").out
    assert (checkout / "README.md").read_text() == "mine\n" and (checkout / "src/era.py").read_text() == "ERA = 2\n"
    (checkout / "src/era.py").write_text("ERA = mine\n")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 3\n")
    before, state = content(checkout), git_state(checkout)
    error = project.run("apply", "alpha", code=5).err
    assert "src/era.py" in error and [words[0] for words in hinted(error)] == ["diff", "export"]
    assert content(checkout) == before and git_state(checkout) == state


def test_commits_that_were_not_exported_stop_a_stale_apply(project):
    project.run("apply", "alpha")
    (project.checkout() / "README.md").write_text("mine\n")
    git(project.checkout(), "commit", "-q", "-am", "Mine")
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    before = content(project.checkout())
    assert "commits that are not ours" in project.run("apply", "alpha", code=5).err
    assert content(project.checkout()) == before


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_something_else_in_the_place_of_a_checkout(project, kind):
    place = project.checkout()
    place.parent.mkdir()
    if kind == "folder":
        write_tree(place, {"x": "x"})
    elif kind == "file":
        place.write_text("x")
    else:
        place.symlink_to("/nowhere/at/all")
    said = "not a git tree" if kind == "folder" else "a file, or a link that leads nowhere"
    assert said in project.run("apply", "alpha", code=3).err and project.state() == "wrong-base"


# --- all or none, and verbs without names ----------------------------------------------------------------------------


@pytest.fixture
def broken(project):
    """Beta, which has no source package, cannot be reached."""
    unreachable(project, "beta")
    return project


def restore(project) -> None:
    project.upstreams["beta"]["git"] = f"file://{project.up}/beta"
    project.save()


def test_all_or_none_of_those_named(broken):
    error = broken.run("apply", "alpha", "beta", code=6).err
    assert "nothing was changed" in error and "left out" not in error
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
    assert first.startswith("error: beta b1: the repository ") and first.endswith("cannot be reached")
    assert left.strip() == "it was left out, the others are ready: alpha"
    assert "nothing was changed" not in result.text and "error" not in result.out
    restore(broken)
    (words,) = hinted(again)
    assert words[:2] == ["apply", "beta"]
    broken.run(*words)
    assert broken.state("beta") == "applied"


def test_no_source_at_all(broken):
    unreachable(broken)
    (broken.index / "alpha-1.0.tar.gz").unlink()
    error = broken.run("apply", code=6).err
    assert error.count("it was left out, nothing was changed") == 2 and "ready" not in error
    assert [words[:2] for words in hinted(error)] == [["apply", "alpha"], ["apply", "beta"]]


def test_only_a_missing_source_is_left_out(broken):
    broken.upstreams["gamma"] = {**broken.upstreams["beta"], "git": f"file://{broken.up}/beta"}
    broken.save()
    write_tree(broken.root / "overlays/gamma", {"main.py": "print(0)\n"})
    error = broken.run("apply", code=3).err
    assert "main.py would overwrite upstream's main.py" in error and "left out" not in error
    assert not any(broken.checkout(name).exists() for name in broken.upstreams)


def test_an_applied_checkout_needs_no_source(broken):
    restore(broken)
    broken.run("apply")
    unreachable(broken, "beta")
    shutil.rmtree(broken.cache)
    result = broken.run("apply")
    assert "beta b1: already applied" in result.out and result.err == ""
    # Where it has to change and cannot, the others do.
    before = content(broken.checkout("beta"))
    broken.upstreams["beta"]["versions"]["b1"]["commit"] = "1" * 40
    broken.save()
    (broken.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    assert "beta b1" in broken.run("apply", code=6).err
    assert (broken.state("alpha"), broken.state("beta")) == ("applied", "stale")
    assert content(broken.checkout("beta")) == before


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_json_of_what_is_left_out(broken, more):
    result = broken.run("apply", "--json", *more, code=6)
    assert result.json["alpha"]["action"] == "fresh" and "error" not in result.json["alpha"]
    beta = result.json["beta"]
    assert (beta["version"], beta["action"]) == ("b1", "none") and beta["error"].startswith("beta b1: the repository ")
    assert "error: beta b1: " in result.err and broken.checkouts.exists() == (not more)


def test_fetch_leaves_out_too(broken):
    result = broken.run("fetch", "--json", code=6)
    assert result.json["alpha"]["fetched"] and not result.json["beta"]["fetched"]
    assert result.json["beta"]["error"].startswith("beta b1: the repository ")
    assert [words[:2] for words in hinted(result.err)] == [["fetch", "beta"]]
    assert "nothing was changed" in broken.run("fetch", "alpha", "beta", code=6).err


def test_an_upstream_on_request(project, tmp_path):
    project.upstreams["beta"]["on_request"] = True
    project.save()

    def concerned(*args: str) -> set[str]:
        return set(project.run(*args, "--json").json)

    every = [("fetch",), ("apply",), ("apply", "--dry-run"), ("status",), ("diff",), ("export", "--check"), ("revert",)]
    project.checkout("beta").mkdir(parents=True)  # an empty folder is not a checkout
    for verb in every:
        assert concerned(*verb) == {"alpha"}, verb
    assert concerned("status", "beta") == {"beta"}
    project.run("apply", "beta")
    project.run("apply")
    for verb in every:
        assert concerned(*verb) == {"alpha", "beta"}, verb
    # Its checkout is looked for where this run has its checkouts.
    assert concerned("status", "--checkouts", str(tmp_path / "other")) == {"alpha"}


# --- an upstream without patches and overlay files -------------------------------------------------------------------


@pytest.fixture
def bare(project):
    shutil.rmtree(project.root / "patches/beta")
    return project


def test_every_verb_without_an_overlay(bare):
    would = bare.run("apply", "beta", "--dry-run").out
    assert "would be applied: no overlay (upstream as it is); nothing was changed" in would
    assert "applied no overlay (upstream as it is); verified 1 file in" in bare.run("apply", "beta").out
    checkout = bare.checkout("beta")
    assert content(checkout) == {"main.py": (False, b"print(1)\nprint(2)\nprint(3)\n")}
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(checkout, "rev-parse", "era", "upstream/b1").split() == [bare.ids["beta"]] * 2
    assert bare.state("beta") == "applied" and "already applied" in bare.run("apply", "beta").out
    found = bare.run("diff", "beta")
    assert (found.out, "this upstream has no overlay" in found.err) == ("", True)
    assert "equal the checkout" in bare.run("export", "beta", "--check").out
    assert "no patches" in bare.run("port", "beta", "--onto", "main").out
    assert "back on upstream" in bare.run("revert", "beta").out and bare.state("beta") == "clean"
    assert "nothing to revert" in bare.run("revert", "beta").out
    bare.run("apply", "beta", "--offline")
    assert bare.state("beta") == "applied"


def test_the_first_patch_and_overlay_file_of_an_upstream(bare, tmp_path):
    bare.run("apply", "beta")
    checkout = bare.checkout("beta")
    upstream = content(checkout)
    (checkout / "main.py").write_text("print(1)\nprint(22)\nprint(3)\n")
    (checkout / "new.py").write_text("NEW = 1\n")
    differs = bare.run("export", "beta", "--check", code=1).out
    assert "differs: patches/beta/b1/0001-" in differs and "differs: overlays/beta/new.py" in differs
    bare.run("export", "beta")
    bare.pinning = False  # export has written the series and the list
    assert bare.state("beta") == "stale"
    bare.run("apply", "beta")
    assert bare.state("beta") == "applied" and "print(22)" in bare.run("diff", "beta").out
    bare.pinning = True
    shutil.rmtree(bare.root / "overlays/beta")
    shutil.rmtree(bare.root / "patches/beta")
    assert bare.state("beta") == "stale"
    bare.run("apply", "beta")
    assert bare.state("beta") == "applied" and content(checkout) == upstream


def test_a_switch_without_any_file_is_completed_too(bare, monkeypatch):
    bare.run("apply", "beta")
    bare.run("revert", "beta")
    interrupt(bare, monkeypatch, "apply", "beta", folder=bare.checkout("beta"))
    assert bare.state("beta") == "interrupted"
    assert "completed the apply that was cut short" in bare.run("apply", "beta").out
    assert bare.state("beta") == "applied"
