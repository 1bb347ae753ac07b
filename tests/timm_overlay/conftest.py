"""Fixtures of the timm overlay: its activation by path, and patched and unpatched trees made once per run."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def era(project_root):
    """The overlay's timm/layers/era.py by its path: it needs torch and the standard library alone, not timm."""
    spec = importlib.util.spec_from_file_location("timm_era_alone", project_root / "overlays/timm/timm/layers/era.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["timm_era_alone"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def patched_timm(project_root, tmp_path_factory) -> Path:
    """A checkout of timm with the overlay. From the source package it has no train.py."""
    checkouts = tmp_path_factory.mktemp("checkouts")
    result = subprocess.run(
        [sys.executable, project_root / "apply.py", "apply", "timm", "--checkouts", checkouts], capture_output=True, text=True, timeout=600
    )
    if result.returncode == 6:
        pytest.skip(f"timm can be had neither from git nor from the Python index: {result.stderr.strip()}")
    assert result.returncode == 0, result.stdout + result.stderr
    return checkouts / "timm"


@pytest.fixture(scope="session")
def upstream_timm(patched_timm, tmp_path_factory) -> Path:
    """The same pinned timm without the overlay."""
    tree = tmp_path_factory.mktemp("upstream")
    archive = subprocess.run(["git", "-C", patched_timm, "archive", "upstream/v1.0.20"], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return tree


@pytest.fixture(scope="session")
def timm_scripts(patched_timm) -> Path:
    """The patched checkout, where it has train.py, validate.py, inference.py and onnx_export.py."""
    if not (patched_timm / "train.py").exists():
        pytest.skip("timm's source package lacks train.py, validate.py, inference.py and onnx_export.py; git could not be reached")
    return patched_timm


@pytest.fixture(scope="session")
def import_timm(patched_timm):
    """Makes `import timm` in this process the patched checkout."""
    sys.path.insert(0, str(patched_timm))
    yield
    sys.path.remove(str(patched_timm))
