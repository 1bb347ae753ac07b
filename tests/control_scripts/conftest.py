"""The recipe's modules, and the launcher at work on tiny runs."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from demo import smoke_control

MODULES = ("runs", "results", "training", "preflight", "launch")
VARIABLES = ("TASKS", "SEED", "AGENT", "OUTPUT", "GPUS_PER_RUN", "RAY_ADDRESS", "SLURM", "RESUME", "WANDB", "RUN_INDEX", "DRY_RUN", "CHECK_ONLY", "ENVIRONMENT_TO_COME", "PYTHONPATH")
MARK = "ERA_CONTROL_TEST"


@pytest.fixture(scope="session")
def recipe(project_root):
    """The modules of recipes/era, which import each other by these names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(project_root / "overlays/fasttd3/recipes/era")
        modules = SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]
    return modules


@pytest.fixture(scope="session")
def clean_environment():
    return {**{name: value for name, value in os.environ.items() if name not in VARIABLES}, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def launch(project_root, clean_environment):
    """launch(experiment, flags..., VARIABLE=...) in the overlay's folder, which is enough to print and to refuse."""

    def run(*args, **variables):
        command = [sys.executable, project_root / "overlays/fasttd3/recipes/era/launch.py", *args]
        return subprocess.run(command, env={**clean_environment, **variables}, capture_output=True, text=True, timeout=900)

    return run


@pytest.fixture
def start(patched_fasttd3, clean_environment, tmp_path):
    """start(experiment, flags..., VARIABLE=...): a process of the checkout's launcher with tiny networks, in this test's folder."""

    def run(experiment, *added, **variables):
        environment = {**clean_environment, "TASKS": "Gym-Reacher-v4", "SEED": "1", "OUTPUT": str(tmp_path / "runs"), MARK: str(tmp_path), **variables}
        command = [sys.executable, patched_fasttd3 / "recipes/era/launch.py", experiment, *smoke_control.FLAGS, *added]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    yield run
    for process in processes(tmp_path):
        process.kill()


@pytest.fixture
def training_processes(tmp_path):
    """Of this test: those of train.py that are alive."""
    return lambda: [process for process in processes(tmp_path) if any("train.py" in word for word in process.cmdline())]


def processes(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
