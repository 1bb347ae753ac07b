"""The command line: arguments, help, hints, streams, environments; and the small door that apply.py is."""

from __future__ import annotations

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import APPLY, ENGINE, hinted, interrupt


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["apply", "alhpa"], "did you mean alpha?"),
        (["stauts"], "did you mean status?"),
        (["apply", "--version", "v9"], "no version 'v9'"),
        (["apply", "--checkout", "x"], "exactly one upstream"),
        (["revert", "--keep-edits", "x"], "exactly one upstream"),
        (["status", "--onto", "main"], "--onto does not go with status"),
        (["apply", "--write"], "--write does not go with apply"),
        (["apply", "alpha", "--checkout", "x", "--source", "pypi"], "does not go with --checkout"),
        (["port", "alpha"], "--onto REF"),
        (["apply", "--nonsense"], "--nonsense"),
        (["apply", "--", "x"], "no paths"),
        *((["apply", "alpha", f"--{name}", ""], f"--{name} is empty") for name in ("checkout", "cache", "onto", "out")),
    ],
)
def test_usage_errors(project, args, said):
    assert said in project.run(*args, code=2).err and not project.checkout().exists()


def test_help_names_verbs_and_exit_codes(project):
    out = project.run("--help").out
    verbs = ("fetch", "apply", "status", "diff", "revert", "export", "port", "drift")
    assert all(word in out for word in (*verbs, "interrupted", "source unavailable", "--write"))


def test_verbose_shows_the_git_commands(project):
    assert "+ git --git-dir=" in project.run("apply", "alpha", "-v").err


def test_hints_repeat_the_folders_of_this_run(project, clone, tmp_path, monkeypatch):
    place, cache = str(tmp_path / "my checkouts"), ["--cache", str(project.cache)]
    project.run("apply", "alpha", "--checkouts", place)
    Path(place, "alpha/README.md").write_text("mine\n")
    error = project.run("revert", "alpha", "--checkouts", place, code=5).err
    assert hinted(error) == [["revert", "alpha", "--keep-edits", "my-edits.patch", "--checkouts", place, *cache]]
    where = ["alpha", "--checkout", str(clone)]
    project.run("apply", *where)
    (project.root / "overlays/alpha/src/era.py").write_text("ERA = 2\n")
    interrupt(project, monkeypatch, "apply", *where, folder=clone)
    for verb, code in (("export", 7), ("status", 1)):
        assert hinted(project.run(verb, *where, code=code).text) == [["apply", *where, *cache]]


# --- environments ----------------------------------------------------------------------------------------------------


def test_git_variables_lead_nowhere(project, tmp_path):
    for key in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        project.env[key] = str(tmp_path / "nowhere")
    project.run("apply", "alpha")
    assert project.state() == "applied"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "| true"])
def test_closed_streams(project, closed):
    command = f"{sys.executable} {project.root}/apply.py status alpha --cache {project.cache} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_read_the_same_in_every_locale(project):
    (project.root / "overlays/alpha/\u00fcber.py").write_text("u = 1\n")
    project.spawn("apply", "alpha", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert project.state() == "applied" and (project.checkout() / "\u00fcber.py").is_file()


def test_without_a_home(project, monkeypatch, capsys):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    assert project.engine.cli.main(["status"]) == 2
    assert "--cache DIR" in capsys.readouterr().err


def test_a_relative_home(project, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "home")
    monkeypatch.chdir(tmp_path)
    project.with_cache = list
    project.run("fetch", "alpha")
    cache = "Library/Caches" if sys.platform == "darwin" else ".cache"
    assert (tmp_path / "home" / cache / "era-overlays/git/alpha.git/HEAD").is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_verb_that_needs_no_cache_works_without_one(project):
    project.run("apply", "alpha")
    (project.cache / "tmp").chmod(0o555)
    assert "your edits" in project.run("diff", "alpha", "--local").err
    (project.cache / "tmp").chmod(0o755)


def test_no_git_and_an_old_git(project, tmp_path):
    result = project.spawn("apply", "alpha", code=2, env={"PATH": str(tmp_path)})
    assert "git was not found" in result.err and not project.checkout().exists()
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\necho git version 2.17.1\n")
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert "too old" in project.spawn("apply", "alpha", code=2, env={"PATH": path}).err


# --- apply.py and engine/ --------------------------------------------------------------------------------------------


def test_an_older_python_gets_one_clear_line():
    ast.parse(APPLY.read_text(encoding="utf-8"), feature_version=(3, 6))
    pretend = f"import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path({str(APPLY)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: apply.py needs Python 3.10 or newer, this is Python 3.9.2\n"


def test_another_package_of_that_name_does_not_matter(project, tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/__init__.py").write_text("raise SystemExit('the wrong engine')\n")
    project.spawn("status", "alpha", env={"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"})


def test_the_engine_imports_the_standard_library_and_itself_in_one_direction():
    graph = {}
    for path in ENGINE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        own = {name for name in imported if name.partition(".")[0] == "engine"}
        assert {name.partition(".")[0] for name in imported - own} <= sys.stdlib_module_names | {"__future__"}, path
        module = ".".join(path.relative_to(ENGINE.parent).with_suffix("").parts).removesuffix(".__init__")
        graph[module] = own - {module}
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that names the cycle
