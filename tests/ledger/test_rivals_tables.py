"""The tables of docs/rivals/ in the ledger: what is reported of which runs, and what happens where some are missing."""

import csv
import shutil
from statistics import mean

import pytest

from ledger import verdicts
from ledger.collect import collect
from ledger.ledger import ROOT
from rivals import llm, llm_report
from tools.bench import synthetic

ARMS = {"label smoothing": "label_smoothing", "confidence penalty": "confidence_penalty", "off scaled": "off_scaled"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of all runs, and that of their tables."""
    out = tmp_path_factory.mktemp("rivals")
    synthetic.rivals(out / "runs", out / "tables")
    return out / "runs", out / "tables"


@pytest.fixture
def tables(made, tmp_path):
    return shutil.copytree(made[1], tmp_path / "tables")


def found(ledger, folder):
    """Results by name, and problems."""
    collected = collect(ledger, [folder])
    by_name = {}
    for result in collected.results:
        by_name.setdefault(result.name, []).append(result)
    return by_name, [problem.text for problem in collected.problems]


def rows_of(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def change(file, keep=lambda row: True, **cells):
    """Keeps some rows, and puts cell(row) into columns."""
    rows = [{**row, **{name: cell(row) for name, cell in cells.items()}} for row in rows_of(file) if keep(row)]
    synthetic.write_csv(file, list(rows[0]), [row.values() for row in rows])


def test_the_shipped_numbers_are_those_of_the_page(ledger):
    by_name, problems = found(ledger, ROOT / "records/rivals/vision")
    page = (ROOT / "docs/rivals/vision.md").read_text()
    lines = page.partition("<!-- table results -->")[2].partition("<!-- end -->")[0].splitlines()[3:]
    assert len(lines) == len(by_name) == 12 and problems == []
    for line in lines:
        arm, _, _, *cells = line.strip("| ").split(" | ")
        name = "-".join(ARMS.get(part, part.lower()) for part in arm.split(", "))
        results = by_name[f"rivals/vision/{name}"]
        assert [result.seed for result in results] == [11, 12, 13, 14, 15]
        columns = zip(("top1 test", "ece test", "nll test", "top1 shifted", "ece shifted", "nll shifted"), cells)
        for metric, cell in columns:
            digits = len(cell.split()[0].partition(".")[2])
            assert f"{mean(result.values[metric] for result in results):.{digits}f}" == cell.split()[0], (arm, metric)
        assert all(result.commit.startswith("d006edc") and result.finished for result in results)
        assert {result.hardware for result in results} == {"2 cores of AMD EPYC"}


@pytest.mark.parametrize("task, tuned_on", [("chain-goal", "chain-goal"), ("chain-biased", "chain")])
def test_numbers_of_a_run_are_those_of_its_samples(ledger, made, task, tuned_on):
    runs, tables = made
    by_name, problems = found(ledger, tables)
    assert problems == [] and len(by_name) == 33 + 12
    setting = llm.choose(llm_report.read(tables / "llm"), tuned_on, "kl", (1, 2))
    for result in by_name[f"rivals/llm/{task}-kl"]:
        rows = rows_of(runs / f"{task}-kl-{setting}-seed{result.seed}/samples.csv")
        (at_1,) = (row for row in rows if float(row["temperature"]) == 1)
        accuracy = max(float(row["pass_at_1"]) for row in rows) if task == "chain-goal" else float(at_1["pass_at_1"])
        expected = {"accuracy": accuracy, "pass@32": float(at_1["pass_at_32"]), "reward": float(at_1["reward"])}
        expected["H_resp"] = float(at_1["response_entropy"])
        assert {name: result.values[name] for name in expected} == pytest.approx(expected, rel=1e-4)
        assert (result.steps, result.total, result.ended[:10]) == (llm.STEPS[task], llm.STEPS[task], "2026-11-20")


@pytest.mark.parametrize("below, state", [(0.09, "reproduced"), (0.11, "not reproduced")])
def test_the_floor_is_that_of_the_chosen_setting_on_every_seed(ledger, tables, below, state):
    def ends(row):
        floor = float(row["setting"]) * llm.START["chain"][0] if row["method"] == "era" else 0.0
        return floor - below if row["seed"] == "13" else floor + 1

    change(tables / "llm/runs.csv", response_entropy=ends)
    judged = verdicts.judge(ledger, collect(ledger, [tables]))
    (part,) = judged.claims["rivals-chain-floor"].parts
    assert judged.claims["rivals-chain-floor"].state == state and part.value == pytest.approx(-below)


def test_what_is_not_there_yet_is_not_run(ledger, tmp_path):
    synthetic.rivals(tmp_path / "runs", tmp_path / "tables", llm_parts=1, with_vision=False)
    for table in ("runs", "samples", "curves"):
        change(tmp_path / f"tables/llm/{table}.csv", lambda row: (row["method"], row["seed"]) != ("kl", "15"))
    collected = collect(ledger, [tmp_path / "tables"])
    methods = {"grpo", "hotter", "era", "adaptive", "adaptive-mean", "bonus"}
    assert {result.name for result in collected.results} == {f"rivals/llm/chain-{method}" for method in methods}
    assert collected.problems == []
    judged = verdicts.judge(ledger, collected)
    states = {
        name: judged.outcomes[name].state for name in ("rivals-hotter/chain", "rivals-kl/chain", "rivals-goal-era")
    }
    assert list(states.values()) == ["run", "not run", "not run"]
    assert judged.claims["rivals-chain-grpo"].state in ("reproduced", "not reproduced")
    assert judged.claims["rivals-goal-grpo"].state == "not run"


def test_runs_without_their_tables_are_named_once_and_not_used(ledger, made):
    by_name, problems = found(ledger, made[0])
    (problem,) = problems
    assert f"`python -m rivals.records {made[0]}` writes them to records/rivals" in problem
    results = [result for group in by_name.values() for result in group]
    assert len(results) > 400 and not any(result.used for result in results)
    assert {(result.seed, result.finished) for result in by_name["rivals/chain-era-0.3"]} >= {(1, True), (2, True)}


def test_a_number_that_is_none_is_left_out(ledger, tables):
    change(tables / "vision/measures.csv", nll=lambda row: "nan" if row["set"] == "test" else row["nll"])
    by_name, problems = found(ledger, tables / "vision")
    assert all("nll test" not in group[0].values and "nll shifted" in group[0].values for group in by_name.values())
    assert (
        len(problems) == 60 and "nll test of vision/baseline-plain, seed 11, is not a finite number: it" in problems[0]
    )


@pytest.mark.parametrize(
    "file, damage, words",
    [
        ("vision/measures.csv", lambda row: row["method"] != "focal" or row["seed"] != "2", "KeyError: (2, 'heldout')"),
        ("llm/runs.csv", lambda row: row["method"] != "focal" and row["seed"] != "2", "KeyError: "),
    ],
)
def test_tables_that_lack_runs_are_named(ledger, tables, file, damage, words):
    change(tables / file, damage)
    by_name, problems = found(ledger, (tables / file).parent)
    assert len(problems) == 1 and words in problems[0] and "none of them is used" in problems[0]
    assert not any(result.used for group in by_name.values() for result in group)


def test_ones_own_tables_count_before_those_of_the_repository(ledger, tables):
    shutil.rmtree(tables / "llm")
    collected = collect(ledger, [tables], repository=ROOT / "records/rivals")
    used = {(result.from_repository, result.used) for result in collected.results if "/vision/" in result.name}
    assert used == {(True, False), (False, True)}
