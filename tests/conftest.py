"""Fixtures that every test folder shares: the project's root and, made once per run, patched and unpatched trees of the upstreams."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A shell starts what it runs in the background with Ctrl-C ignored, and all processes inherit that; tests send Ctrl-C to some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


def patched(name: str, checkouts: Path) -> Path:
    """A checkout with the overlay, made by apply.py in a folder of its own: never the user's checkouts/."""
    result = subprocess.run(
        [sys.executable, ROOT / "apply.py", "apply", name, "--checkouts", checkouts],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if result.returncode == 6:
        pytest.skip(f"{name} can be had neither from git nor from the Python index: {result.stderr.strip()}")
    assert result.returncode == 0, result.stdout + result.stderr
    return checkouts / name


def unpatched(checkout: Path, version: str, tree: Path, *paths: str) -> Path:
    """The pinned upstream of a checkout, or these paths of it, in the folder `tree`."""
    archive = subprocess.run(
        ["git", "-C", checkout, "archive", f"upstream/{version}", *paths], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return tree


@pytest.fixture(scope="session")
def patched_verl(tmp_path_factory) -> Path:
    return patched("verl", tmp_path_factory.mktemp("checkouts"))


@pytest.fixture(scope="session")
def upstream_verl(patched_verl, tmp_path_factory) -> Path:
    """The same pinned verl without the overlay."""
    return unpatched(patched_verl, "v0.4.1", tmp_path_factory.mktemp("upstream"), "verl")


@pytest.fixture(scope="session")
def patched_timm(tmp_path_factory) -> Path:
    """From the source package it has no train.py."""
    return patched("timm", tmp_path_factory.mktemp("checkouts"))


@pytest.fixture(scope="session")
def upstream_timm(patched_timm, tmp_path_factory) -> Path:
    """The same pinned timm without the overlay."""
    return unpatched(patched_timm, "v1.0.20", tmp_path_factory.mktemp("upstream"))


@pytest.fixture(scope="session")
def timm_scripts(patched_timm) -> Path:
    """The patched checkout, where it has train.py, validate.py, inference.py and onnx_export.py."""
    if not (patched_timm / "train.py").exists():
        pytest.skip(
            "timm's source package lacks train.py, validate.py, inference.py and onnx_export.py; git could not be reached"
        )
    return patched_timm


@pytest.fixture(scope="session")
def patched_fasttd3(tmp_path_factory) -> Path:
    """To be had by git only."""
    return patched("fasttd3", tmp_path_factory.mktemp("checkouts"))


@pytest.fixture(scope="session")
def upstream_fasttd3(patched_fasttd3, tmp_path_factory) -> Path:
    """The same pinned FastTD3 without the overlay."""
    return unpatched(patched_fasttd3, "2d83b6a", tmp_path_factory.mktemp("upstream"))


@pytest.fixture(scope="session")
def run_in():
    """run_in(tree, script, *args): a Python script in a process of its own in which `import verl` is the tree's."""

    def run(tree: Path, script: Path, *args, processes: int = 1, timeout: int = 900) -> str:
        env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, script, *map(str, args)]
        if processes > 1:
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={processes}",
                script,
                *map(str, args),
            ]
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
        assert result.returncode == 0, (
            f"{script} {args} ended with {result.returncode}\n{result.stdout}\n{result.stderr}"
        )
        return result.stdout

    return run
