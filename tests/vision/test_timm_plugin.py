"""era.timm with timm 1.0.20 as it is, in a process that does not import the patched one; and without any timm."""

import os
import re
import subprocess
import sys

import pytest


def python(folder, path, *words):
    env = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_on_timm_1_0_20(project_root, trees_of):
    """`make test-timm` has the newer ones, and the slow tests."""
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/vision/current", "tests/vision/test_models.py")
    result = python(project_root, trees_of("timm", "v1.0.20")[1], *tests, "-m", "not slow and not search")
    assert result.returncode == 0 and " passed" in result.stdout, result.stdout + result.stderr


def test_without_timm_and_with_an_older_one(project_root, tmp_path):
    result = python(project_root, tmp_path, "-c", "import era.timm")
    assert "ImportError: era.timm is for timm, which is not installed. pip install" in result.stderr
    (tmp_path / "timm.py").write_text("__version__ = '1.0.19'\n")
    result = python(project_root, tmp_path, "-c", "import era.timm")
    assert "ImportError: era.timm is for timm 1.0.20 or newer, found 1.0.19. pip install" in result.stderr


def test_the_versions_are_those_of_the_tests(project_root):
    sources = (project_root / "requirements/timm-sources.txt").read_text()
    tested = re.findall(r"^timm==(\S+)", sources, re.MULTILINE)
    assert f'"timm", "{tested[0]}", "{tested[-1]}"' in (project_root / "era/timm.py").read_text()
    page = (project_root / "docs/vision/plug-in.md").read_text()
    assert f"Tested with timm {', '.join(tested[:-1])} and {tested[-1]}." in page
