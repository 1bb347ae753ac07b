"""What tests in several folders use: `from helpers import importable`.

pytest puts this folder on sys.path, as it has a conftest.py. A helpers.py in another test folder would hide this one.
"""

import importlib
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
TIMM = f"v{os.environ.get('TIMM', '1.0.20')}"  # the version that is tested: `make test-timm-1.0.28` sets it


ONLY_IN_GIT = "{0}'s source package has no {1}, and git could not reach {0}'s repository"
NO_RECIPES = ONLY_IN_GIT.format("verl", "recipe/dapo or other recipes")


def need_scripts(timm: Path) -> None:
    if not (timm / "train.py").exists():
        pytest.skip(ONLY_IN_GIT.format("timm", "train.py or other scripts"))


FASTTD3 = os.environ.get("FASTTD3", "2d83b6a")  # the version that is tested: `make test-fasttd3-229ed59` sets it


def runs_of(subject: str) -> list[str]:
    """make's targets for the runs of llm, vision or control."""
    command = ["bash", "recipes/paper.sh", "runs", subject]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [f"{subject}-{name}" for name in names]


def processes_with(**variables: str) -> list[psutil.Process]:
    """The live processes, orphans included, whose environment has these variables with these values."""
    processes = []
    for process in psutil.process_iter():
        try:
            if variables.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:  # it ended meanwhile, or belongs to somebody else
            continue
    return processes


def assert_identical(one, other) -> None:
    """Assert that two values are the same to the bit, in every tensor, array and number of nested containers."""
    import numpy
    import torch

    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_identical(one[key], other[key])
    elif isinstance(one, list | tuple):
        for value, its in zip(one, other, strict=True):
            assert_identical(value, its)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    else:
        assert numpy.array_equal(one, other) if isinstance(one, numpy.ndarray) else one == other


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


@contextmanager
def importable(folder: Path, *names: str):
    """The modules of these names from the folder. Other tests' modules of the same names come back afterwards."""

    def take_out() -> dict:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in names}

    hidden = take_out()
    sys.path.insert(0, str(folder))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(folder))
        take_out()
        sys.modules.update(hidden)
