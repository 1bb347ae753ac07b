"""Fixtures for all test folders. Upstreams with and without the overlays are made once per pytest process."""

import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import FASTTD3, NO_RECIPES, TIMM, need_scripts

ROOT = Path(__file__).resolve().parent.parent

if importlib.util.find_spec("hypothesis"):  # which the environments of the plug-ins lack
    from hypothesis import settings

    settings.register_profile("search", max_examples=5000, derandomize=False)  # make floor-search, entropy-search

# A shell starts its background jobs with Ctrl-C ignored, and their children inherit that. Some tests send Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="module")
def one_thread():
    """For small models, where a second thread costs torch more than it gains. For a whole file:

    pytestmark = pytest.mark.usefixtures("one_thread")
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_make_parametrize_id(val, argname):
    """A long text is not a part of a test's id, which is to fit on a line: the parameter's name and a number are."""
    return argname if isinstance(val, str | bytes) and len(val) > 20 else None


CHECKOUTS = {"patched_verl", "patched_ppo", "patched_tdmpc2", "patched_release", "trees_of"}  # fixtures below


@pytest.hookimpl(tryfirst=True)  # before -m chooses among the marks
def pytest_collection_modifyitems(config, items):
    """Mark what needs a checkout. SCRIPTS, or RUNS, chooses among the smoke runs: the tests of others are left out."""
    for item in items:
        if CHECKOUTS & {*item.fixturenames}:
            item.add_marker("upstream")
    names = {*(os.environ.get("SCRIPTS") or os.environ.get("RUNS") or "").split()}
    needed = {item: {*mark.args} for item in items for mark in item.iter_markers("smoke")}
    known = set().union(*needed.values())
    if needed and names - known:
        unknown, there = ", ".join(sorted(names - known)), "\n    ".join(sorted(known))
        raise pytest.UsageError(f"there is no run {unknown}. There are:\n    {there}")
    left_out = [item for item, runs in needed.items() if names and not runs & names]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def say(pytestconfig):
    """say(line): a line on the terminal, for what a search or a smoke run found, whether it passes or not."""

    def write(line: str) -> None:
        reporter = pytestconfig.pluginmanager.getplugin("terminalreporter")
        if reporter and not hasattr(pytestconfig, "workerinput"):  # not beside other tests
            with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                reporter.write_line(("\n" if reporter._tw.width_of_current_line else "") + line)  # not behind a dot

    return write


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory) -> Path:
    """The folder of the runs of all experiments of a subject: one that two of them share is trained once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run_example(tmp_path, monkeypatch):
    """run_example(page, heading, **names): the variables that the code under this heading of a page of docs/ leaves."""
    import torch

    def run(page, heading, **names):
        text = (ROOT / "docs" / page).read_text()
        (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        monkeypatch.chdir(tmp_path)  # where it may write logs
        torch.manual_seed(0)
        exec(compile(code, f"docs/{page}, {heading}", "exec"), names)
        return names

    return run


def patched(name: str, checkouts: Path, *version: str) -> Path:
    """The checkout that apply.py makes, in a folder of the tests' own: never the user's checkouts/."""
    command = [sys.executable, ROOT / "apply.py", "apply", name, "--checkouts", checkouts, *version]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if result.returncode == 6:
        pytest.skip(f"{name} could be fetched neither with git nor from the Python index: {result.stderr.strip()}")
    assert result.returncode == 0, result.stdout + result.stderr
    return checkouts / name


def unpatched(checkout: Path, version: str, tree: Path, *paths: str) -> Path:
    """Writes the pinned upstream of a checkout, or only these paths of it, into the folder `tree`."""
    archive = subprocess.run(
        ["git", "-C", checkout, "archive", f"upstream/{version}", *paths], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return tree


@pytest.fixture(scope="session")
def patched_verl(tmp_path_factory) -> Path:
    return patched("verl", tmp_path_factory.mktemp("checkouts"))


@pytest.fixture(scope="session")
def verl_with_recipes(patched_verl) -> Path:
    """The patched checkout, if it has recipe/dapo, with which the paper's runs train."""
    if not (patched_verl / "recipe/dapo").exists():
        pytest.skip(NO_RECIPES)
    return patched_verl


@pytest.fixture(scope="session")
def upstream_verl(patched_verl, tmp_path_factory) -> Path:
    version = json.loads((ROOT / "upstreams.json").read_text())["verl"]["default"]  # v0.4.1, or a fork of the user's
    return unpatched(patched_verl, version, tmp_path_factory.mktemp("upstream"), "verl")


@pytest.fixture(scope="session")
def trees_of(tmp_path_factory):
    """trees_of(name, version): the patched checkout, and upstream. A source package of timm has no train.py."""

    @functools.cache
    def trees(name: str, version: str) -> tuple[Path, Path]:
        checkout = patched(name, tmp_path_factory.mktemp("checkouts"), "--version", version)
        return checkout, unpatched(checkout, version, tmp_path_factory.mktemp("upstream"))

    return trees


@pytest.fixture(scope="session")
def patched_timm(trees_of) -> Path:
    return trees_of("timm", TIMM)[0]


@pytest.fixture(scope="session")
def timm_scripts(patched_timm) -> Path:
    """The patched checkout, if it has train.py, validate.py, inference.py and onnx_export.py."""
    need_scripts(patched_timm)
    return patched_timm


@pytest.fixture(scope="session")
def patched_fasttd3(trees_of) -> Path:
    """Comes from git only."""
    return trees_of("fasttd3", FASTTD3)[0]


@pytest.fixture(scope="session")
def patched_ppo(tmp_path_factory) -> Path:
    """Comes from git only."""
    return patched("drl-code-pytorch", tmp_path_factory.mktemp("checkouts"))


@pytest.fixture(scope="session")
def ported_ppo(patched_ppo, tmp_path_factory) -> Path:
    """Upstream with gymnasium, and nothing of ERA."""
    tree = unpatched(patched_ppo, "8f767b9", tmp_path_factory.mktemp("upstream"), "5.PPO-continuous")
    patch = ROOT / "patches/drl-code-pytorch/8f767b9/0001-Run-PPO-continuous-with-gymnasium.patch"
    subprocess.run(["git", "apply", patch], cwd=tree, check=True)
    return tree


@pytest.fixture(scope="session")
def patched_tdmpc2(tmp_path_factory) -> Path:
    """Comes from git only."""
    return patched("tdmpc2", tmp_path_factory.mktemp("checkouts"))


@pytest.fixture(scope="session")
def ported_tdmpc2(patched_tdmpc2, tmp_path_factory) -> Path:
    """Upstream with the patches without which it trains neither on a CPU nor on gymnasium 1."""
    tree = unpatched(patched_tdmpc2, "e9f5932", tmp_path_factory.mktemp("upstream"), "tdmpc2")
    patches = sorted((ROOT / "patches/tdmpc2/e9f5932").glob("000[12]-*.patch"))
    subprocess.run(["git", "apply", *patches], cwd=tree, check=True)
    return tree


@pytest.fixture(scope="session")
def patched_release(tmp_path_factory) -> Path:
    """Comes from git only."""
    return patched("era-release", tmp_path_factory.mktemp("checkouts"))


@pytest.fixture(scope="session")
def upstream_release(patched_release, tmp_path_factory) -> Path:
    return unpatched(patched_release, "4b7320b", tmp_path_factory.mktemp("upstream"))
