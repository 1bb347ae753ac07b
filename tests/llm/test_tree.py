"""The size of the overlay's footprint in upstream files, and the Python that verl's images have."""

import ast
import subprocess


def test_upstream_lines_changed(patched_verl):
    numstat = subprocess.run(
        ["git", "-C", patched_verl, "diff", "--numstat", "--diff-filter=M", "upstream/v0.4.1", "era"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    added, removed = zip(*(map(int, line.split()[:2]) for line in numstat.splitlines()))
    assert sum(added) + sum(removed) < 80, numstat
    assert sum(removed) <= 14, "a hook adds or replaces single lines"


def test_overlay_runs_on_python_3_10(project_root):
    for file in (project_root / "overlays").rglob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 10))
