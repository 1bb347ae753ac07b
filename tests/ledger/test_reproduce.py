"""reproduce.py as it is typed, and what it says to wrong files and wrong places. The ledger's own reader refuses by name and reason."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledger import cli, commands, experiments, report, results, verdicts
from ledger.errors import LedgerError
from ledger.results import Collected

ROOT = Path(__file__).resolve().parents[2]
TEXT = experiments.LEDGER.read_text()


@pytest.fixture(scope="module")
def ledger():
    return experiments.load()


@pytest.fixture
def places(tmp_path, monkeypatch):
    """collected.json and the report's folder, not those of the project."""
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(cli, "COLLECTED", tmp_path / "results/collected.json")
    monkeypatch.setattr(cli, "REPORT", tmp_path / "results/report")
    return tmp_path


def judged(ledger) -> Collected:
    return verdicts.judged(ledger, Collected("", [], [], [], []))


# --------------------------------------------------------------------------------------------------------- experiments.toml


def test_no_value_of_any_type_is_a_traceback(tmp_path):
    """Each field, the first time that it occurs in its part, with values of all of TOML's types."""
    lines, part, seen, file = TEXT.split("\n"), "", set(), tmp_path / "experiments.toml"
    for place, line in enumerate(lines):
        part = line[1:].partition(".")[0].rstrip("]") if line.startswith("[") else part
        field = (part, line.partition(" = ")[0])
        if " = " not in line or line.startswith((" ", "#")) or part in ("run", "solved_at") or field in seen:
            continue
        seen.add(field)
        for value in ('"x"', "3", "true", "[[1]]", '{ a = "b" }'):
            file.write_text("\n".join([*lines[:place], f"{field[1]} = {value}", *lines[place + 1 :]]))
            try:
                judged(experiments.load(file))
            except LedgerError:
                pass
    assert len(seen) > 30


# ------------------------------------------------------------------------------------------------------------ collected.json


@pytest.mark.parametrize(
    "change",
    [
        {"outcomes": {"main-era": {}}},
        {"outcomes": []},
        {"claims": {"explosion": {"id": "x"}}},
        {"results": 3},
        {"problems": [{}]},
        {"format": 0},
    ],
)
def test_a_collected_json_of_something_else_is_refused(ledger, places, capsys, change):
    results.write(cli.COLLECTED, judged(ledger))
    cli.COLLECTED.write_text(json.dumps({**json.loads(cli.COLLECTED.read_text()), **change}))
    for arguments in (["list"], ["show", "main-era"], ["report"]):
        assert cli.main(arguments) == cli.REFUSED
        assert "collected.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "null", "[" * 100_000, "\0"], ids=["empty", "cut", "null", "deep", "zero"])
def test_a_damaged_collected_json_is_refused(places, capsys, text):
    cli.COLLECTED.parent.mkdir()
    cli.COLLECTED.write_text(text)
    assert cli.main(["list"]) == cli.REFUSED and "run `reproduce.py collect`" in capsys.readouterr().err


def test_results_that_cannot_be_written(ledger, places, capsys):
    (places / "results").write_text("a file where the folder should be")
    with pytest.raises(LedgerError, match="cannot be written"):
        results.write(cli.COLLECTED, judged(ledger))
    assert cli.main(["report"]) == cli.REFUSED and "cannot be written" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- list and show


def test_states_are_told_apart_where_entries_differ(ledger, places, capsys):
    """`run` is also the end of `not run`, and `reproduced` that of `not reproduced`."""
    collected = judged(ledger)
    collected.outcomes["truncated/h1hand-walk-v0"]["state"] = "not reproduced"
    collected.outcomes["hb-fasttd3/h1hand-walk-v0"]["state"] = "run"
    results.write(cli.COLLECTED, collected)
    for state, ids in {"run": ["hb-fasttd3"], "reproduced": [], "not reproduced": ["truncated"]}.items():
        assert cli.main(["list", "--state", state]) == 0
        assert [line.split(" x ")[0] for line in capsys.readouterr().out.splitlines() if " x " in line] == ids
    assert cli.main(["list", "--state", "not run"]) == 0
    assert {"hb-fasttd3 x 8", "truncated x 2"} <= {
        line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()
    }


def test_folders_named_relatively_are_those_that_run_writes(places, monkeypatch):
    for name, folder in (("RAY_DATA_HOME", "home/ckpts/ERA"), ("CHECKOUTS", "made/timm/output/era"), ("OUTPUT", "out")):
        monkeypatch.setenv(name, folder.partition("/")[0])
        (places / folder).mkdir(parents=True)
    elsewhere = places / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert set(cli.default_sources()) == {places / "home/ckpts/ERA", places / "made/timm/output/era", places / "out"}


def reproduce(*arguments, **more):
    environment = {**os.environ, **more.pop("environment", {})}
    return subprocess.run(
        [sys.executable, ROOT / "reproduce.py", *arguments], env=environment, text=True, stderr=subprocess.PIPE, **more
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--place", "moremodels"]])  # more and less than a buffer
def test_a_full_disk_is_no_traceback(arguments):
    with open("/dev/full", "w") as full:
        ran = reproduce(*arguments, stdout=full)
    assert (ran.returncode, ran.stderr) == (
        2,
        "error: the output cannot be read or written (No space left on device).\n",
    )


def test_a_terminal_of_ascii_is_no_traceback():
    ran = reproduce("show", "cifar10", stdout=subprocess.PIPE, environment={"PYTHONIOENCODING": "ascii"})
    assert (ran.returncode, ran.stderr) == (0, "") and "top1 93.61 \\xb1 0.14" in ran.stdout


def test_names_that_are_not_utf8_are_shown_with_backslashes(ledger, tmp_path):
    collected = Collected("", ["runs/\udcff"], [], [], [results.Problem("runs/\udcff", 3, "is no row")])
    index = report.write(ledger, verdicts.judged(ledger, collected), tmp_path)
    assert "runs/\\udcff:3" in index.read_text() and "runs/" in (tmp_path / "report.md").read_text()
