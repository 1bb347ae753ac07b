"""diff: the overlay, or the user's own edits, as git shows them."""

from __future__ import annotations

import subprocess

from kit import content, git, write_tree


def test_the_overlay_as_git_diff_shows_it(project, tmp_path):
    project.run("apply", "alpha")
    out = project.run("diff", "alpha").raw
    command = ["git", "diff", "upstream/v1", "era"]
    assert out == subprocess.run(command, cwd=project.checkout(), capture_output=True).stdout
    clean = tmp_path / "clean"
    git(tmp_path, "clone", "-q", "--branch", "v1", str(project.up / "alpha"), str(clean))
    subprocess.run(["git", "apply", "-"], cwd=clean, input=out, check=True)
    assert content(clean) == content(project.checkout())
    stat = project.run("diff", "alpha", "--stat").out
    assert "src/core.py" in stat and "4 files changed" in stat
    only = project.run("diff", "alpha", "src/util.py").out
    assert "src/util.py" in only and "src/core.py" not in only
    assert project.run("diff", "alpha", "--", "src/util.py").out == only
    assert "src/util.py" in project.run("diff", "alpha", "--json").json["alpha"]["diff"]


def test_local_edits_and_new_files(project):
    project.run("apply", "alpha")
    write_tree(project.checkout(), {"src/util.py": "x = 1\n", "new.py": "y = 1\n", "image.bin": "\0\1"})
    (project.checkout() / "README.md").unlink()
    before = git(project.checkout(), "count-objects")
    out = project.run("diff", "alpha", "--local").out
    assert all(name in out for name in ("src/util.py", "new.py", "README.md", "image.bin")) and "core.py" not in out
    assert git(project.checkout(), "count-objects") == before  # nothing is written into the repository


def test_an_empty_diff_says_why(project):
    assert "apply.py apply alpha" in project.run("diff", "alpha", code=3).err
    project.run("apply", "alpha")
    for args, said in ((["no/such/path"], "matches no/such/path"), (["--local"], "your edits")):
        found = project.run("diff", "alpha", *args)
        assert found.out == "" and said in found.err
    assert project.run("diff", "alpha").err == ""
    project.run("revert", "alpha")
    found = project.run("diff", "alpha")
    assert (found.out, "no overlay is applied" in found.err) == ("", True)


def test_settings_of_the_checkout_and_of_the_home_folder_change_nothing(project, tmp_path):
    """git before 2.32 does not know GIT_CONFIG_GLOBAL and would read the home folder's configuration."""
    project.run("apply", "alpha")
    before = project.run("diff", "alpha").raw
    for key, value in (("context", "0"), ("algorithm", "patience"), ("orderFile", "/nowhere"), ("noprefix", "true")):
        git(project.checkout(), "config", f"diff.{key}", value)
    git(project.checkout(), "config", "core.bigFileThreshold", "1")
    (tmp_path / ".gitconfig").write_text("[diff]\n\tcontext = 0\n")
    assert project.run("diff", "alpha").raw == before
    (project.checkout() / ".git/info/attributes").write_text("* -diff\n")
    project.run("export", "alpha", "--check")
