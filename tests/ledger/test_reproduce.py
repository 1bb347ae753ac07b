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

ENTRY = '[experiment.main-grpo]\nplace = "tab:main_results"\nrow = "GRPO"\n'
WRONG = {
    "no TOML": ("[place.ood_figure]", "[place.ood_figure", "line"),
    "the same twice": (ENTRY, ENTRY + ENTRY, "twice"),
    "unknown field": (ENTRY, ENTRY + "colour = 3\n", "experiment.main-grpo: unknown: colour"),
    "unknown part": ("[tolerance.answers]", "[tolerances.answers]", "tolerances: no such part of the ledger"),
    "a number as text": ("answers = { aime24 = 480", 'answers = { aime24 = "480"', "tolerance.answers: answers.aime24 is '480', and a whole number expected"),
    "the paper's number as text": ("average = 50.2 }", 'average = "50.2" }', "experiment.main-era: paper.average is '50.2', and a number or [number, error] expected"),
    "no table": ("paper = { top1 = [74.75, 0.38], top5 = [92.04, 0.23] }", "paper = 74.75", "experiment.imagenet: paper is 74.75, and a table whose values are a number or [number, error] expected"),
    "text as a number": ('title = "Three out-of-distribution benchmarks"', "title = 3", "place.ood_figure: title is 3, and text expected"),
    "a list as text": ('judged = ["average"]', 'judged = "average"', "tolerance.answers: judged is 'average', and a list expected"),
    "nothing judged": ('judged = ["average"]', 'judged = ["averge"]', "numbers expected for what tolerance.answers judges: averge"),
    "not a number": ("low = 0.0\nhigh = 0.06", "low = nan\nhigh = 0.06", "claim.low-responses: low is nan, and a number expected"),
    "true for a number": ("window = 20", "window = true", "window is True, and a whole number expected"),
    "upstream no text": ('upstream = "verl v0.4.1"', "upstream = 4", "upstream is 4, and text expected"),
    "unknown list": ('over = { TASKS = "h1hand" }', 'over = { TASKS = "h2hand" }', "there is no list.h2hand"),
    "unknown drawing": ('draws = "aggregate"', 'draws = "pie"', "draws 'pie': one of table, curves"),
    "no return that solves it": ("h1hand-run-v0 = 700", "h1hand-run-v1 = 700", "a number above 0 in solved_at expected"),
    "claim of nothing": ('of = "entropy-era"', 'of = ""', "claim.entropy-floor: there is no experiment."),
    "claim over other values": ('of = "hb-fastsac-era"', 'of = "truncated"', "experiments over the same values expected"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ledgers_are_refused_by_name_and_reason(tmp_path, case):
    old, new, words = WRONG[case]
    assert old in TEXT
    file = tmp_path / "experiments.toml"
    file.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(LedgerError) as refused:
        experiments.load(file)
    assert words in str(refused.value) and "experiments.toml" in str(refused.value)


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
    "change", [{"outcomes": {"main-era": {}}}, {"outcomes": []}, {"claims": {"explosion": {"id": "x"}}}, {"results": 3}, {"problems": [{}]}, {"format": 0}]
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
    assert {"hb-fasttd3 x 8", "truncated x 2"} <= {line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()}


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
    return subprocess.run([sys.executable, ROOT / "reproduce.py", *arguments], env=environment, text=True, stderr=subprocess.PIPE, **more)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--place", "moremodels"]])  # more and less than a buffer
def test_a_full_disk_is_no_traceback(arguments):
    with open("/dev/full", "w") as full:
        ran = reproduce(*arguments, stdout=full)
    assert (ran.returncode, ran.stderr) == (2, "error: the output cannot be read or written (No space left on device).\n")


def test_a_terminal_of_ascii_is_no_traceback():
    ran = reproduce("show", "cifar10", stdout=subprocess.PIPE, environment={"PYTHONIOENCODING": "ascii"})
    assert (ran.returncode, ran.stderr) == (0, "") and "top1 93.61 \\xb1 0.14" in ran.stdout


def test_names_that_are_not_utf8_are_shown_with_backslashes(ledger, tmp_path):
    collected = Collected("", ["runs/\udcff"], [], [], [results.Problem("runs/\udcff", 3, "is no row")])
    index = report.write(ledger, verdicts.judged(ledger, collected), tmp_path)
    assert "runs/\\udcff:3" in index.read_text() and "runs/" in (tmp_path / "report.md").read_text()
