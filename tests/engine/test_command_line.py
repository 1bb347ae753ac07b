# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The command line: arguments, help, hints, streams, environments; and the small door that apply.py is."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import APPLY, ENGINE, hinted


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["apply", "alhpa"], "no upstream or verb 'alhpa'"),
        (["stauts"], "verbs: fetch, apply, status"),
        (["apply", "--version", "v9"], "no version 'v9'"),
        (["export", "--checkout", "x"], "exactly one upstream"),
        (["revert", "alpha", "--checkout", "x"], "reset --keep ORIG_HEAD"),
        (["status", "--onto", "main"], "--onto"),
        (["apply", "--write"], "--write"),
        (["port", "alpha"], "--onto REF"),
        (["apply", "--nonsense"], "--nonsense"),
        (["apply", "--", "x"], "'x'"),
        (["apply", "alpha", "--version", ""], "is empty"),
    ],
)
def test_usage_errors(project, args, said):
    assert said in project.run(*args, code=2).err and not project.checkout().exists()


def test_help_names_verbs_and_exit_codes(project):
    out = project.run("--help").out
    assert all(word in out for word in ("fetch", "status", "export", "port", "interrupted", "source unavailable"))
    assert "--write" in project.run("port", "--help").out


def test_hints_repeat_the_folders_of_this_run(project, tmp_path):
    """Options may come before the verb, and `apply` need not be said."""
    place, cache = str(tmp_path / "my checkouts"), ["--cache", str(project.cache)]
    project.run("alpha", "-v", "--checkouts", place)
    assert project.run("--json", "--checkouts", place, "status", "alpha").json["alpha"]["state"] == "applied"
    Path(place, "alpha/README.md").write_text("mine\n")
    error = project.run("revert", "alpha", "--checkouts", place, code=5).err
    assert hinted(error) == [["revert", "alpha", "--keep-edits", "--checkouts", place, *cache]]


# --- environments ---


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "| true"])
def test_closed_streams(project, closed):
    command = f"{sys.executable} {project.root}/apply.py status alpha --cache {project.cache} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_read_the_same_in_every_locale(project):
    project.add({"overlays/alpha/\u00fcber.py": "u = 1\n"})
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert project.start("apply", "alpha", env=plain).wait() == 0
    assert project.state() == "applied" and (project.checkout() / "\u00fcber.py").is_file()


def test_no_git(project, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git was not found" in project.run("apply", "alpha", code=2).err and not project.checkout().exists()


# --- apply.py and engine/ ---


def test_an_older_python_gets_one_clear_line():
    ast.parse(APPLY.read_text(encoding="utf-8"), feature_version=(3, 6))
    pretend = f"import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path({str(APPLY)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: apply.py needs Python 3.10 or newer") and done.stderr.count("\n") == 1


def test_engine_imports_the_standard_library_and_in_one_direction():
    graph = {}
    for path in ENGINE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {getattr(node, "module", None) or node.names[0].name for node in imports}
        modules = [node.names for node in imports if getattr(node, "module", None) == "engine"]
        names |= {f"engine.{name.name}" for found in modules for name in found}
        assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "engine"}, path
        graph[path.stem] = {name.partition(".")[2] for name in names if name.startswith("engine.")}
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_apply_py_runs_from_anywhere_and_through_a_link(project, tmp_path):
    link = tmp_path / "link.py"
    link.symlink_to(project.root / "apply.py")
    done = subprocess.run([sys.executable, link, "status", "alpha"], cwd="/", capture_output=True, text=True)
    assert re.match(r"alpha v1: absent in .*/project/checkouts/alpha\n", done.stdout), done.stderr
    assert os.access(APPLY, os.X_OK)
