# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""apply and fetch: what they build, what they leave alone, and what becomes of the other upstreams when one fails."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from kit import FIRST, commit, content, follow, git, hinted, unchanged, write_tree

ERA = "src/era.py"

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
    expected[ERA] = (False, b"ERA = 1\n")
    expected["tools/go.sh"] = (True, b"#!/bin/sh\n")
    checkout = project.checkout()
    assert content(checkout) == expected and git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "fsck", "--strict", "--no-dangling", check=False) == ""
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


def test_commit_ids_do_not_depend_on_who_applies_where(project, tmp_path, monkeypatch):
    project.run("apply", "alpha")
    values = {"GIT_AUTHOR_NAME": "Someone", "GIT_COMMITTER_DATE": "2001-01-01T00:00:00", "TZ": "Asia/Tokyo"}
    places = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
    with monkeypatch.context() as patch:
        for key, value in {**values, **dict.fromkeys(places, str(tmp_path / "nowhere"))}.items():
            patch.setenv(key, value)
        project.run("apply", "alpha", "--checkouts", str(tmp_path / "other"))
    assert git(tmp_path / "other/alpha", "rev-parse", "era") == git(project.checkout(), "rev-parse", "era")


def test_two_versions_of_one_upstream_and_one_that_a_plugin_is_for(project):
    project.upstreams["alpha"]["plugin"] = "alpha 3 needs no patches: the plug-in"
    project.save()
    error = project.run("apply", "alpha", "--version", "3", code=2).err
    assert "known: v1, v2" in error and "alpha 3 needs no patches" in error
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


def test_fetch_then_offline(project):
    assert "--offline" in project.run("apply", "alpha", "--offline", code=6).err
    fetched = {"version": "v1", "source": "git", "commit": project.ids["v1"]}
    assert project.run("fetch", "--json").json["alpha"] == fetched
    project.run("apply", "--offline")


def test_long_names_blanks_and_other_letters(project, tmp_path):
    folder = tmp_path / ("long " + "x" * 150) / "größe: 'a' \"b\""
    names = ["-rf", "with blank.py", "größe/日本.py", "--help", "n" * 252 + ".py"]
    project.add({f"overlays/alpha/{name}": "x = 1\n" for name in names})
    commit(project.root, "Names")
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
    shutil.rmtree(project.root / "overlays/alpha")
    (project.root / "overlays/alpha.list").unlink()
    project.add({f"overlays/alpha/{name}": "x"})
    assert "would overwrite" in project.run("apply", "alpha", code=3).err and not project.checkout().exists()


def test_every_verb_without_an_overlay(project):
    """An upstream without patches and overlay files is a checkout like any other."""
    shutil.rmtree(project.root / "patches/beta")
    write_tree(project.root, {"patches/beta/b1/series": ""})
    assert "applied 0 patches and 0 new files" in project.run("apply", "beta").out
    checkout = project.checkout("beta")
    assert content(checkout) == {"main.py": (False, b"print(1)\nprint(2)\nprint(3)\n")}
    assert git(checkout, "symbolic-ref", "HEAD") == "refs/heads/era"
    assert git(checkout, "rev-parse", "era", "upstream/b1").split() == [project.ids["beta"]] * 2
    assert project.state("beta") == "applied" and "already applied" in project.run("apply", "beta").out
    found = project.run("diff", "beta")
    assert (found.out, "no difference" in found.err) == ("", True)
    assert "equal the checkout" in project.run("export", "beta", "--check").out
    assert "beta: b1 onto main" in project.run("port", "beta", "--onto", "main").out
    assert "back on upstream" in project.run("revert", "beta").out and project.state("beta") == "clean"
    assert "nothing to revert" in project.run("revert", "beta").out
    project.run("apply", "beta", "--offline")
    assert project.state("beta") == "applied"


# --- edits, and whatever else is in the way ---


def test_edits_elsewhere_are_carried(project):
    project.run("apply", "alpha")
    checkout = project.checkout()
    write_tree(checkout, {"README.md": "mine\n", "notes.txt": "mine\n"})
    git(checkout, "add", "README.md")
    assert "your edits are kept: README.md" in project.run("apply", "alpha").out  # nothing is stale
    project.set_era("ERA = 2\n")
    assert "your edits are kept: README.md" in project.run("apply", "alpha").out
    assert (checkout / "README.md").read_text() == "mine\n" and (checkout / ERA).read_text() == "ERA = 2\n"
    assert git(checkout, "diff", "--cached", "--name-only") == "README.md" and (checkout / "notes.txt").exists()
    assert len(git(checkout, "for-each-ref", "refs/worktree").splitlines()) == 1  # the record before is gone


def staged(at) -> None:
    """An edit that is in the index and not in the file."""
    write_tree(at, {ERA: "ERA = staged\n"})
    git(at, "add", ERA)
    write_tree(at, {ERA: "ERA = 1\n"})


def swapped_for_a_link(at) -> None:
    (at / "src").rename(at.parent / "elsewhere")
    (at / "src").symlink_to(at.parent / "elsewhere")


def untracked(path: str, ignored: bool = False):
    """A file where a new one comes, inside of a folder in its place, or where it needs a folder."""

    def make(at) -> None:
        write_tree(at, {path: "mine\n", **({".git/info/exclude": "fresh*\nmine\n"} if ignored else {})})

    return make


@pytest.mark.parametrize(
    ("prepare", "said", "advice"),
    [
        (lambda at: write_tree(at, {ERA: "mine\n"}), f"in the way: {ERA}", "diff alpha --local"),
        (staged, f"in the way: {ERA}", "`git reset FILE`"),
        (swapped_for_a_link, "src", "diff alpha --local"),
        (untracked("fresh.py"), "in the way: fresh.py", "diff alpha --local"),
        (untracked("fresh.py", ignored=True), "in the way: fresh.py", "--ignored"),
        (untracked("fresh.py/mine"), "in the way: fresh.py/mine", "diff alpha --local"),
        (untracked("fresh.py/mine", ignored=True), "in the way: fresh.py/mine", "--ignored"),
        (untracked("fresh"), "in the way: fresh\n", "diff alpha --local"),
        (untracked("fresh", ignored=True), "in the way: fresh\n", "--ignored"),
        (lambda at: (at / "fresh").symlink_to(at.parent), "in the way: fresh\n", "diff alpha --local"),
    ],
)
def test_what_is_in_the_way_of_a_newer_overlay(project, prepare, said, advice):
    """apply stops and changes nothing. What git ignores is somebody's work too."""
    project.run("apply", "alpha")
    prepare(project.checkout())
    project.set_era("ERA = 2\n")
    project.add({"overlays/alpha/fresh.py": "new\n", "overlays/alpha/fresh/new.py": "new\n"})
    with unchanged(project.checkout()), unchanged(project.checkouts / "elsewhere"):
        error = project.run("apply", "alpha", code=5).err
    assert said in error and advice in error


@pytest.mark.parametrize("place", ["era", "HEAD", "upstream/v1", "mine"])
def test_commits_held_nowhere_else_stop_a_stale_apply(project, place):
    """On our branch, on none, on our branch while HEAD is elsewhere. On a branch of the user's they are safe."""
    project.run("apply", "alpha")
    checkout = project.checkout()
    git(checkout, "checkout", "-q", *{"mine": ["-b", "mine"], "HEAD": ["--detach"]}.get(place, ["era"]))
    (checkout / "README.md").write_text("mine\n")
    head = commit(checkout, "Mine")
    if place == "upstream/v1":
        git(checkout, "checkout", "-q", place)
    project.set_era("ERA = 2\n")
    if place != "mine":
        with unchanged(checkout):
            error = project.run("apply", "alpha", code=5).err
        assert "commits of yours" in error and head[:12] in error
        assert [words[0] for words in hinted(error)] == ([] if place == "upstream/v1" else ["export"])
        follow(error)  # the command that keeps them
    project.run("apply", "alpha")
    assert project.state() == "applied" and "Mine" in git(checkout, "log", "--branches", "--format=%s").splitlines()


def other_history(at) -> None:
    git(at, "checkout", "-q", "--orphan", "other")
    commit(at, "Other")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda at: (shutil.rmtree(at), at.write_text("x")), "is a file"),
        (lambda at: (shutil.rmtree(at), write_tree(at, {"x": "x"})), "not a git work tree"),
        (lambda at: write_tree(at, {".git/HEAD": "\0 nonsense\n"}), "not a git work tree"),
        (lambda at: write_tree(at, {".git/config": "\0 nonsense\n"}), "not a git work tree"),
        (
            lambda at: (shutil.rmtree(at), git(at.parent, "init", "-q", "--object-format=sha256", "alpha")),
            "SHA-1 commit",
        ),
        (other_history, "HEAD is"),
    ],
    ids=["file", "folder", "HEAD", "config", "SHA-256", "history"],
)
def test_something_else_in_the_place_of_a_checkout(project, prepare, said):
    """It is named and left alone, and does not hide the others."""
    project.run()
    prepare(project.checkout())
    with unchanged(project.checkout()):
        error = project.run("apply", "alpha", code=3).err
        assert said in error and "move it away" in error
        assert said in project.run("revert", "alpha", code=3).err
    shown = project.run("status", code=1).out
    assert "alpha v1: wrong-base" in shown and said in shown and "beta b1: applied" in shown


# --- all or none, and verbs without names ---


def test_all_or_none_when_one_checkout_is_in_the_way(project):
    project.run()
    project.add({"overlays/alpha/fresh.py": "x = 1\n", "overlays/beta/fresh.py": "x = 1\n"})
    (project.checkout("beta") / "fresh.py").write_text("mine\n")
    with unchanged(project.checkout()):
        project.run(code=5)
    assert project.state("alpha") == "stale"


def test_without_names_the_others_go_on_without_one_whose_source_is_missing(project):
    project.source("beta", "nowhere")
    assert "left out" not in project.run("apply", "alpha", "beta", code=6).err  # by name: all or none
    assert not project.checkout("alpha").exists() and not project.checkout("beta").exists()
    for verb in (["fetch"], ["apply"], []):
        result = project.run(*verb, "--json", code=6)
        assert "error" not in result.json["alpha"] and result.json["beta"]["error"].startswith("the repository ")
        first, *_, left, again = result.err.splitlines()[-4:]
        assert first.startswith("error: the repository ") and first.endswith("cannot be reached")
        assert left.strip() == "it was left out; the others are ready: alpha"
        (words,) = hinted(again)
        assert words[:2] == [*(verb or ["apply"]), "beta"]
    assert project.state("alpha") == "applied" and not project.checkout("beta").exists()
    project.source("beta", "beta")
    project.run(*words)
    assert project.state("beta") == "applied"


def test_only_a_missing_source_is_left_out(project):
    project.add({"overlays/beta/main.py": "print(0)\n"})
    error = project.run("apply", code=3).err
    assert "would overwrite upstream's main.py" in error and "left out" not in error
    assert not project.checkout("alpha").exists()


def test_an_applied_checkout_needs_no_source(project):
    project.run("apply")
    project.source("beta", "nowhere")
    shutil.rmtree(project.cache)
    result = project.run("apply")
    assert "beta b1: already applied" in result.out and result.err == "" and not project.cache.exists()
    # Where it has to change and cannot, the others do.
    project.upstreams["beta"]["versions"]["b1"]["commit"] = "1" * 40
    project.save()
    project.set_era("ERA = 2\n")
    with unchanged(project.checkout("beta")):
        assert "cannot be reached" in project.run("apply", code=6).err
    assert (project.state("alpha"), project.state("beta")) == ("applied", "stale")


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


# --- configuration that must change nothing; that of a checkout: test_hostile.py ---


def test_the_users_own_configuration_runs_no_program_and_changes_no_bytes(project, tmp_path, monkeypatch):
    ran, program, config = tmp_path / "ran", tmp_path / "program.sh", tmp_path / ".gitconfig"
    script = f"#!/bin/sh\ntouch '{ran}'\ncat\n"
    write_tree(tmp_path, {"program.sh": script, "attributes": "* text eol=crlf filter=evil diff=evil\n"})
    for name in ("reference-transaction", "post-checkout", "post-index-change", "post-commit", "applypatch-msg"):
        write_tree(tmp_path, {f"hooks/{name}": script})
        (tmp_path / "hooks" / name).chmod(0o755)
    values = {"core.autocrlf": "true", "core.attributesFile": tmp_path / "attributes"}
    values |= {"core.hooksPath": tmp_path / "hooks", "core.fsmonitor": program, "diff.evil.textconv": program}
    values |= {"filter.evil.clean": program, "filter.evil.smudge": program}
    values |= {"diff.noprefix": "true", "diff.context": "0"}
    for key, value in values.items():
        git(tmp_path, "config", "--file", str(config), key, str(value))
    with monkeypatch.context() as patch:  # HOME is there too: git before 2.32 knows no other place
        patch.setenv("GIT_CONFIG_GLOBAL", str(config))
        project.run("apply", "alpha")
        assert b"\r" not in (project.checkout() / "src/core.py").read_bytes()
        assert (project.checkout() / "crlf.txt").read_bytes() == FIRST["crlf.txt"].encode()
        assert "--- a/src/core.py" in project.run("diff", "alpha").out
        (project.checkout() / "README.md").write_text("# mine\n")
        project.run("export", "alpha")
        assert "\n--- a/README.md\n" in project.patch(3).read_text()
        project.run("apply", "alpha")
        project.run("revert", "alpha")
        assert not ran.exists()
        # the user's own git finds nothing changed either
        status = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "status", "--porcelain"]
        assert subprocess.run(status, cwd=project.checkout(), capture_output=True).stdout == b""
