"""reproduce.py as it is typed: list and show, and what it says to damaged files and in difficult places."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import cli, report, results, verdicts
from ledger.errors import LedgerError
from ledger.ledger import ROOT
from tools.bench import synthetic


@pytest.fixture
def output_of(places, capsys):
    def run(*words):
        assert cli.main(words) == cli.OK
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def mixed(ledger):
    """Without the results themselves, which list and show do not use."""
    return replace(synthetic.mixed(ledger), results=[])


@pytest.fixture
def collected(places, mixed):
    results.write(cli.COLLECTED, mixed)
    return mixed


def rows(output):
    """Each line by its identifier, without the last two, which count."""
    return {line.split()[0]: line for line in output.splitlines()[:-2]}


def test_all_experiments_and_what_they_are_counted_as(output_of, ledger):
    output = output_of("list")
    assert list(rows(output)) == list(ledger.experiments)
    counts = f"{len(ledger.experiments)} experiments, {len(ledger.entries)} rows and curves."
    assert f"{counts} Nothing has been collected yet" in output
    assert "hb-fasttd3 x 8 " in output and "cannot run" in rows(output)["eapo"]
    assert "compares main-era and main-grpo" in rows(output)["main-gain"]


def test_chosen_by_domain_and_place(output_of, ledger):
    times = [experiment.id for experiment in ledger.at("fig:vision_time")]
    assert list(rows(output_of("list", "--domain", "vision", "--place", "TIME"))) == times


def test_a_place_without_rows_says_where_they_are(output_of):
    output = output_of("list", "--place", "teaser_control")
    assert output.startswith("fig:teaser_control: the same as fig:preview_results\n") and "0 experiments" in output
    assert "tab:continuous_envs1: no result, a list of tasks" in output_of("list", "--place", "envs1")


@pytest.mark.parametrize("state", results.STATES)
def test_chosen_by_state(output_of, ledger, collected, state):
    """An experiment of several entries is there if one of them is. "run" is also the end of "not run"."""
    having = [
        name
        for name, experiment in ledger.experiments.items()
        if state in {collected.outcomes[entry.id].state for entry in experiment.entries}
    ]
    assert list(rows(output_of("list", "--state", state))) == having


def test_show_has_all_of_it(output_of, collected):
    output = output_of("show", "ood-era/arc_c")
    assert "$ cd " in output and "make llm-merge llm-eval" in output
    assert "out-of-distribution: ood-era higher ood-grpo" in output
    output = output_of("show", "obac")
    assert "has no licence, so nothing of it can be patched here" in output and "$ " not in output
    assert "1 not run" in rows(output_of("list"))["hb-fasttd3"]
    assert "hb-fasttd3/h1hand-pole-v0: not run" in output_of("show", "hb-fasttd3")


# ------------------------------------------------------------------------------------------------------ collected.json


@pytest.mark.parametrize(
    "change",
    [{"outcomes": {"main-era": {}}}, {"outcomes": []}, {"results": 3}, {"problems": [{}]}, {"format": 0}],
    ids=str,
)
def test_a_collected_json_of_something_else_is_refused(ledger, places, capsys, change):
    results.write(cli.COLLECTED, verdicts.judge(ledger, results.EMPTY))
    cli.COLLECTED.write_text(json.dumps({**json.loads(cli.COLLECTED.read_text()), **change}))
    for arguments in (["list"], ["show", "main-era"], ["report"]):
        assert cli.main(arguments) == cli.REFUSED
        assert "collected.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "null", "[" * 100_000, "\0"], ids=["empty", "cut", "null", "deep", "zero"])
def test_a_damaged_collected_json_is_refused(places, capsys, text):
    cli.COLLECTED.parent.mkdir()
    cli.COLLECTED.write_text(text)
    assert cli.main(["list"]) == cli.REFUSED and "`reproduce.py collect`" in capsys.readouterr().err


def test_results_that_cannot_be_written(places, capsys):
    (places / "results").write_text("a file where the folder should be")
    with pytest.raises(LedgerError, match="cannot be written"):
        results.write(cli.COLLECTED, results.EMPTY)
    assert cli.main(["report"]) == cli.REFUSED and "cannot be written" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- places


def reproduce(*arguments, **more):
    more["env"] = {**os.environ, **more.get("env", {})}
    return subprocess.run(
        [sys.executable, ROOT / "reproduce.py", *arguments], text=True, stderr=subprocess.PIPE, **more
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--place", "moremodels"]])  # more and less than a buffer
def test_a_full_disk_is_not_a_traceback(arguments):
    with open("/dev/full", "w") as full:
        done = reproduce(*arguments, stdout=full)
    message = "error: the output cannot be read or written (No space left on device).\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_an_ascii_terminal_is_not_a_traceback():
    done = reproduce("show", "cifar10", stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "") and "top1 93.61 \\xb1 0.14" in done.stdout


def test_names_that_are_not_utf8_are_shown_with_backslashes(ledger, tmp_path):
    problem = results.Problem("runs/\udcff", 3, "is not a row")
    collected = replace(results.EMPTY, sources=["runs/\udcff"], problems=[problem])
    index = report.write(ledger, verdicts.judge(ledger, collected), tmp_path)
    assert "runs/\\udcff:3" in index.read_text() and "runs/" in (tmp_path / "report.md").read_text()
