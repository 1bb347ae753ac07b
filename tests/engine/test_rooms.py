"""apply.py is only the door: it turns an old Python away in one line, and the rooms behind it stand in one order."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from kit import APPLY, ENGINE, PROJECT


def test_an_older_python_gets_one_clear_line():
    ast.parse(APPLY.read_text(encoding="utf-8"), feature_version=(3, 6))
    pretend = f"import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path({str(APPLY)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: apply.py needs Python 3.10 or newer, this is Python 3.9.2\n"


def test_imports_go_one_way():
    (line,) = re.findall(r"^    common < .*", (ENGINE / "__init__.py").read_text(encoding="utf-8"), re.M)
    order = [group.strip().split(", ") for group in line.split("<")]
    assert sorted(sum(order, [])) == sorted(path.stem for path in ENGINE.glob("*.py") if path.stem != "__init__")
    below: set[str] = set()
    for group in order:
        for room in group:
            tree = ast.parse((ENGINE / f"{room}.py").read_text(encoding="utf-8"))
            assert ast.get_docstring(tree), room
            imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
            names = {getattr(node, "module", None) or node.names[0].name for node in imports}
            assert {name for name in names if name.partition(".")[0] == "engine"} <= below, room
        below |= {f"engine.{room}" for room in group}


def test_the_docs_name_every_room():
    text = (PROJECT / "docs/engine/usage.md").read_text(encoding="utf-8")
    for path in ENGINE.glob("*.py"):
        assert path.stem == "__init__" or f"`{path.name}`" in text, path.name


def test_another_package_of_that_name_is_no_matter(project, tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/__init__.py").write_text("raise SystemExit('the wrong engine')\n")
    project.spawn("apply", "alpha", env={"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"})
