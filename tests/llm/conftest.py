# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import importlib
import os
import subprocess
import sys

import pytest

from era import language


@pytest.fixture(scope="session")
def era():
    return language


@pytest.fixture(scope="session")
def import_verl(patched_verl):
    """Makes `import verl` in this process the patched checkout."""
    sys.path.insert(0, str(patched_verl))
    yield
    sys.path.remove(str(patched_verl))


@pytest.fixture
def config_of(patched_verl, monkeypatch):
    """config_of(*overrides): the configuration of the patched checkout."""
    from hydra import compose, initialize_config_dir

    monkeypatch.chdir(patched_verl)  # verl's recipes find its configuration relative to the checkout

    def read(*overrides):
        with initialize_config_dir(str(patched_verl / "verl/trainer/config"), version_base=None):
            return compose("ppo_trainer", overrides=list(overrides))

    return read


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def dry_run(patched_verl, home):
    """dry_run(name, *overrides, **environment), started in its HOME: the words that it prints."""

    def run(name, *overrides, **env):
        result = subprocess.run(
            ["bash", patched_verl / f"recipe/era/run_{name}.sh", *overrides],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHON": sys.executable, "DRY_RUN": "1", **env},
            capture_output=True,
            text=True,
        )
        assert (result.returncode, result.stderr) == (0, "")
        printed = f"printf '%s\\0' {result.stdout.replace(' && ', ' and ', 1)}"  # the shell knows its own quotes
        words = subprocess.run(["bash", "-c", printed], capture_output=True, text=True, check=True).stdout
        return words.split("\0")[:-1]

    return run


@pytest.fixture(scope="module")
def overrides_of(dry_run):
    def run(name, *overrides, **env):
        words = dry_run(name, *overrides, **env)
        assert words[6:8] == ["-m", "recipe.era.main_era"] and words[9] == "--config-name=era_math"
        return words[10:]

    return run


@pytest.fixture
def preflight(patched_verl, import_verl, monkeypatch):
    """The check before a run, from the checkout."""
    monkeypatch.chdir(patched_verl)
    return importlib.import_module("recipe.era.preflight")


@pytest.fixture
def compose(preflight):
    """compose(overrides): verl's whole configuration."""
    return lambda overrides: preflight.compose("recipe/era/config", overrides)
