"""FastTD3's scripts in processes of their own, its modules and the overlay's in this one, and the recipe's launcher on tiny runs."""

import importlib
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from script_runs import Scripts

from tools.smoke import control as smoke_control

MODULES = ("runs", "results", "training", "preflight", "launch")
VARIABLES = (
    "TASKS",
    "SEED",
    "AGENT",
    "OUTPUT",
    "GPUS_PER_RUN",
    "RAY_ADDRESS",
    "SLURM",
    "RESUME",
    "WANDB",
    "RUN_INDEX",
    "DRY_RUN",
    "CHECK_ONLY",
    "ENVIRONMENT_TO_COME",
    "PYTHONPATH",
)
MARK = "ERA_CONTROL_TEST"


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    scripts = Scripts(tmp_path_factory.mktemp("fasttd3-runs"))
    yield scripts
    scripts.server.terminate()
    scripts.server.wait()


@contextmanager
def importable(folder: Path, *names: str):
    """The modules of these names from the folder; those that other tests imported under the same names come back afterwards."""

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


@pytest.fixture(scope="module")
def modules(patched_fasttd3):
    """FastTD3's modules and the overlay's by their bare names, as the training scripts import them."""
    names = ("era", "era_args", "era_training", "fast_td3", "fast_td3_utils", "fastsac_era", "hyperparams", "run_log")
    with importable(patched_fasttd3 / "fast_td3", *names) as found:
        yield found


@pytest.fixture(scope="module")
def package(patched_fasttd3):
    """`import fast_td3`, as users of a trained policy do."""
    with importable(patched_fasttd3, "fast_td3") as found:
        yield found.fast_td3


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
    return {
        **{name: value for name, value in os.environ.items() if name not in VARIABLES},
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def launch(project_root, clean_environment):
    """launch(experiment, flags..., VARIABLE=...) in the overlay's folder, which is enough to print and to refuse."""

    def run(*args, **variables):
        command = [sys.executable, project_root / "overlays/fasttd3/recipes/era/launch.py", *args]
        return subprocess.run(
            command, env={**clean_environment, **variables}, capture_output=True, text=True, timeout=900
        )

    return run


@pytest.fixture
def start(patched_fasttd3, clean_environment, tmp_path):
    """start(experiment, flags..., VARIABLE=...): a process of the checkout's launcher with tiny networks, in this test's folder."""

    def run(experiment, *added, **variables):
        environment = {
            **clean_environment,
            "TASKS": "Gym-Reacher-v4",
            "SEED": "1",
            "OUTPUT": str(tmp_path / "runs"),
            MARK: str(tmp_path),
            **variables,
        }
        command = [sys.executable, patched_fasttd3 / "recipes/era/launch.py", experiment, *smoke_control.FLAGS, *added]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

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
