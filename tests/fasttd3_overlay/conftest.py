"""FastTD3's scripts in processes of their own, and its modules and the overlay's in this one."""

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from script_runs import Scripts


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
