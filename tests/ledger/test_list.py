"""`reproduce.py list` and `show`, with what was collected and without."""

import fake_results as fake
import pytest

from ledger import cli, experiments, results


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "COLLECTED", tmp_path / "collected.json")

    def run(*words):
        assert cli.main(words) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def mixed():
    return fake.mixed(experiments.load())


@pytest.fixture
def collected(said, mixed):
    results.write(cli.COLLECTED, mixed)
    return mixed


def rows(said):
    """Identifier and the rest of each line, without the last two, which count."""
    return {line.split()[0]: line for line in said.splitlines()[:-2]}


def test_all_experiments_and_what_they_are_counted_as(said):
    ledger = experiments.load()
    shown = said("list")
    assert list(rows(shown)) == list(ledger.experiments)
    assert (
        f"{len(ledger.experiments)} experiments, {len(ledger.entries)} rows and curves. Nothing has been collected yet"
        in shown
    )
    assert (
        "hb-fasttd3 x 8 " in shown
        and "compares main-era and main-grpo" in rows(shown)["main-gain"]
        and "cannot run" in rows(shown)["ppo"]
    )


def test_chosen_by_domain_and_place(said):
    ledger = experiments.load()
    assert list(rows(said("list", "--domain", "vision", "--place", "TIME"))) == [
        one.id for one in ledger.at("fig:vision_time")
    ]


def test_a_place_without_rows_says_where_they_are(said):
    shown = said("list", "--place", "teaser_control")
    assert shown.startswith("fig:teaser_control: the same as fig:preview_results\n") and "0 experiments" in shown
    assert "tab:continuous_envs1: no result, a list of tasks" in said("list", "--place", "envs1")


@pytest.mark.parametrize("state", results.STATES)
def test_chosen_by_state(said, collected, state):
    """An experiment of several entries is there if one of them is."""
    ledger = experiments.load()
    having = [
        name
        for name, one in ledger.experiments.items()
        if state in {collected.outcomes[entry.id]["state"] for entry in one.entries}
    ]
    assert list(rows(said("list", "--state", state))) == having


def test_some_states_of_several_are_counted(said, collected):
    assert "1 not run" in rows(said("list"))["hb-fasttd3"]
    assert "hb-fasttd3/h1hand-pole-v0: not run" in said("show", "hb-fasttd3")


def test_show_has_all_of_it(said):
    shown = said("show", "ood-era/arc_c")
    assert (
        "$ cd " in shown
        and "make llm-merge llm-eval" in shown
        and "out-of-distribution: ood-era higher ood-grpo" in shown
    )
    assert "SAC is not part of this project" in said("show", "gym-sac") and "$ " not in said("show", "gym-sac")
