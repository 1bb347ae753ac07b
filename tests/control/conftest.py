"""FastTD3's scripts in processes of their own, its modules in this one, and the recipe's launcher on tiny runs."""

import os
import subprocess
import sys

import pytest
from helpers import FASTTD3, command_line, importable, processes_with
from reacher_runs import FLAGS, TASK
from script_runs import Scripts

MARK = "ERA_CONTROL_TEST"
SETTINGS = ("TASKS", "SEED", "AGENT", "OUTPUT", "GPUS_PER_RUN", "RAY_ADDRESS", "RESUME", "WANDB", "RUN_INDEX")
MODES = ("SLURM", "DRY_RUN", "CHECK_ONLY", "ENVIRONMENT_TO_COME", "PYTHONPATH")


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    scripts = Scripts(tmp_path_factory.mktemp("fasttd3-runs"))
    yield scripts
    scripts.server.terminate()
    scripts.server.wait()


@pytest.fixture(scope="module")
def modules(patched_fasttd3):
    """FastTD3's modules and the overlay's by their bare names, as the training scripts import them."""
    names = ("era", "era_args", "era_training", "fast_td3", "fast_td3_utils", "fastsac_era", "hyperparams", "run_args")
    names += ("run_log",)
    with importable(patched_fasttd3 / "fast_td3", *names) as found:
        yield found


@pytest.fixture
def version():
    """Of FastTD3; a test may have it as a parameter."""
    return FASTTD3


@pytest.fixture
def package(trees_of, version):
    """`import fast_td3`, as users of a trained policy do."""
    with importable(trees_of("fasttd3", version)[0], "fast_td3") as found:
        yield found.fast_td3


@pytest.fixture(scope="session")
def recipe(patched_fasttd3):
    """The modules of recipes/era, which import each other by these names."""
    names = ("launching", "grid", "runs", "results", "training", "preflight", "launch")
    with importable(patched_fasttd3 / "recipes/era", *names) as found:
        return found


@pytest.fixture(scope="session")
def clean_environment():
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS + MODES}
    return {**kept, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def launch(patched_fasttd3, clean_environment):
    """launch(experiment, flags..., VARIABLE=...): the launcher of the checkout, or of `checkout`."""

    def run(*args, checkout=patched_fasttd3, **variables):
        command = [sys.executable, checkout / "recipes/era/launch.py", *args]
        return subprocess.run(
            command, env={**clean_environment, **variables}, capture_output=True, text=True, timeout=900
        )

    return run


def processes(mark):
    return processes_with(**{MARK: str(mark)})


@pytest.fixture
def start(patched_fasttd3, clean_environment, tmp_path):
    """start(experiment, flags..., VARIABLE=...): the launcher's process, with tiny networks and this test's folder."""

    def run(experiment, *added, **variables):
        given = {"TASKS": TASK, "SEED": "1", "OUTPUT": str(tmp_path / "runs"), MARK: str(tmp_path)}
        return subprocess.Popen(
            [sys.executable, patched_fasttd3 / "recipes/era/launch.py", experiment, *FLAGS, *added],
            env={**clean_environment, **given, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    yield run
    for process in processes(tmp_path):
        process.kill()


@pytest.fixture
def training_processes(tmp_path):
    """Of this test: those of train.py that are alive."""
    return lambda: [process for process in processes(tmp_path) if "train.py" in command_line(process)]
