"""The ledger; reproduce.py's places moved into a temporary folder; and made-up results there."""

import pytest

from ledger import cli, commands
from ledger.collect import collect
from ledger.ledger import Ledger, load
from tools.bench import synthetic


@pytest.fixture(scope="session")
def ledger() -> Ledger:
    return load()


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(cli, "COLLECTED", tmp_path / "results/collected.json")
    monkeypatch.setattr(cli, "REPORT", tmp_path / "results/report")
    return tmp_path


@pytest.fixture
def one(ledger, tmp_path):
    """one(): the only result in the temporary folder, and the problems as text with paths from there."""

    def collect_one():
        collected = collect(ledger, [tmp_path])
        (result,) = collected.results
        return result, [str(problem).replace(f"{tmp_path}/", "") for problem in collected.problems]

    return collect_one


@pytest.fixture(scope="session")
def command_of():
    """command_of(name): the command of a run of timm's or FastTD3's recipe by its folder."""
    runs = (*synthetic.timm_commands(), *synthetic.fasttd3_commands())
    return {name: command for name, command, _ in runs}.__getitem__


@pytest.fixture
def timm_run(tmp_path, command_of):
    def make(name="cifar10-era0.6-seed42", epochs=200, at=tmp_path):
        return synthetic.timm_run(at / name, command_of(name), epochs)

    return make


@pytest.fixture
def host_run(tmp_path):
    """A run of recipes/control."""

    def make(name="HalfCheetah-v4-ppo_era-seed1", at=tmp_path, **more):
        return synthetic.control_run(at / name, synthetic.control_runs()[name], **more)

    return make


@pytest.fixture
def control_run(tmp_path, command_of):
    def make(name="h1hand-walk-v0-fastsac_era-seed1", total=1000, at=tmp_path, **more):
        more.setdefault("seed", int(name.rpartition("-seed")[2]))
        return synthetic.fasttd3_run(at / name, command_of(name), total, **more)

    return make
