"""collect: the folders of every tool read as the tools' own tables read them, and everything that is wrong with a file said and kept out."""

import csv
import importlib
import importlib.util
import json
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger import collect as collecting
from ledger import experiments, results
from ledger.collect import collect
from ledger.commands import DEMO_LENGTHS
from ledger.errors import LedgerError
from ledger.readers import demos, tables
from ledger.readers.reading import EVALUATION, Problems, wanted

SIX = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
GRPO, NO_TOP_K = "grpo_qwen2.5_math_7b", "era_no_top_k_qwen2.5_math_7b"


@pytest.fixture(scope="module")
def ledger():
    return experiments.load()


@pytest.fixture
def one(ledger, tmp_path):
    """one(): the only result in the folder, and the problems' places and texts."""

    def read():
        collected = collect(ledger, [tmp_path])
        (result,) = collected.results
        return result, [str(problem).replace(f"{tmp_path}/", "") for problem in collected.problems]

    return read


def commands_of(name):
    """Command of a run of timm's or FastTD3's recipe by its folder."""
    return next(
        command for folder, command, _ in (*synthetic.timm_commands(), *synthetic.fasttd3_commands()) if folder == name
    )


@pytest.fixture
def timm_run(tmp_path):
    return lambda name="cifar10-era0.6-seed42", epochs=200, at=tmp_path, **more: synthetic.timm_run(
        at / name, commands_of(name), epochs, **more
    )


@pytest.fixture
def control_run(tmp_path):
    def make(name="h1hand-walk-v0-fastsac_era-seed1", total=1000, at=tmp_path, **more):
        return synthetic.fasttd3_run(
            at / name, commands_of(name), total, **{"seed": int(name.rpartition("-seed")[2]), **more}
        )

    return make


# ---------------------------------------------------------------------------------------------------------- the formats


def test_every_row_of_the_ledger_is_found_in_the_recipes_folders(ledger, tmp_path):
    needs = wanted(ledger)
    llm = [
        (name, range(needs.first[name], steps + 1)) for name, steps in needs.steps.items() if needs.of["training", name]
    ]
    synthetic.grid(tmp_path, llm, [name for kind, name in needs.of if kind == EVALUATION], seeds=1)
    collected = collect(ledger, [tmp_path])
    for entry in ledger.entries.values():
        if not entry.folder:
            continue
        found = collected.of(entry.folder, "evaluation" if entry.experiment.evaluation else "training")
        assert found and all(result.used and result.finished for result in found), entry.id
        names = {"top1": "eval_top1", "top5": "eval_top5"} if entry.experiment.until else {}
        assert all(
            names.get(metric, metric) in {**result.values, **result.curves}
            for metric in entry.metrics
            for result in found
        ), entry.id
    assert not collected.problems
    file = tmp_path / "collected.json"
    results.write(file, collected)
    assert results.read(file) == collected


def test_verl_log_of_its_own_logger(one, tmp_path, monkeypatch):
    """Killed at step 23 and resumed from the checkpoint of step 20, with a NaN that the resumed run wrote over."""
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / f"{NO_TOP_K}-seed3/metrics.jsonl"))
    module = synthetic.recipe("verl/verl/utils/file_logger.py")
    rng, expected = np.random.default_rng(0), {}
    for steps in (range(1, 24), range(21, 601)):
        logger = module.FileLogger("ERA", "x")
        logger.log({"val-core/acc": 0.5}, steps[0] - 1)
        for step in steps:
            value = math.nan if steps[0] == 1 and step == 22 else float(rng.random())
            expected[step] = value
            logger.log(
                {
                    "era/response_entropy": np.float32(value),
                    **{f"era/{name}": 0.01 for name in ("rest_entropy", "low_fraction", "high_fraction")},
                },
                step,
            )
        logger._file.write(b'{"step": 601, "da')  # the kill
        logger._file.close()
    (tmp_path / f"{NO_TOP_K}-seed3/metrics.jsonl").write_bytes(
        (tmp_path / f"{NO_TOP_K}-seed3/metrics.jsonl").read_bytes()[:-17]
    )
    result, problems = one()
    assert problems == [] and (result.name, result.seed, result.steps, result.total, result.finished) == (
        NO_TOP_K,
        3,
        600,
        600,
        True,
    )
    curve = result.curves["era/response_entropy"]
    assert curve.rows == 600 and len(curve.x) == results.MOST_POINTS and curve.x[-1] == 600
    sizes = np.diff([0, *curve.x]).astype(int)
    values = np.array([np.float32(expected[step]) for step in range(1, 601)], dtype=float)
    parts = np.split(values, np.cumsum(sizes)[:-1])
    assert (
        np.allclose(curve.y, [part.mean() for part in parts])
        and curve.low == [part.min() for part in parts]
        and curve.high == [part.max() for part in parts]
    )
    assert set(sizes) == {1, 2}


def test_first_step_is_the_first_of_the_log_and_its_last_value(one, tmp_path):
    file = synthetic.verl_run(tmp_path / GRPO, range(1, 5)) / "metrics.jsonl"
    with file.open("a") as stream:
        stream.write("\n".join(synthetic.verl_lines(range(1, 4), seed=9)) + "\n")
    result, problems = one()
    expected = [json.loads(line)["data"].get("timing_s/old_log_prob") for line in file.read_text().splitlines()]
    assert (
        result.values == {"timing_s/old_log_prob, first step": expected[6]}
        and not result.finished
        and result.steps == 4
        and problems == []
    )


def test_second_stage_begins_where_the_first_ends(one, tmp_path):
    synthetic.verl_run(tmp_path / "era_stage2_qwen2.5_math_7b", range(601, 1101))
    result, problems = one()
    assert problems == [] and result.finished and result.curves["actor/entropy"].x[0] in (601, 602)


def test_evaluation_in_percent_and_the_papers_average(one, tmp_path):
    folder = synthetic.evaluation(tmp_path / GRPO, [*SIX, "arc_c", "gpqa_diamond", "mmlu_pro"])
    summary = json.loads((folder / "summary.json").read_text())
    result, problems = one()
    assert problems == [] and result.kind == "evaluation" and result.finished and result.interval_of == "problems"
    assert {name: 100 * entry["accuracy"] for name, entry in summary["benchmarks"].items()} == {
        name: value for name, value in result.values.items() if name != "average"
    }
    assert result.values["average"] == pytest.approx(100 * summary["paper_average"])
    low, high = summary["benchmarks"]["amc23"]["interval_95"]
    assert result.intervals["amc23"] == pytest.approx(50 * (high - low))
    errors = [summary["benchmarks"][name]["standard_error"] for name in SIX]
    assert result.intervals["average"] == pytest.approx(196 * np.linalg.norm(errors) / 6)
    assert result.steps == result.total == 30 * 16 * 2 + 40 * 16 + 500 + 272 + 675 + 1172 + 198 + 12032
    assert result.curves["pass@k/aime24"].x == [1, 2, 4, 8, 16] and result.curves["pass@k/aime24"].y[
        0
    ] == pytest.approx(result.values["aime24"])


def test_pass_at_k(one, tmp_path):
    folder = synthetic.evaluation(tmp_path / f"{GRPO}-pass", ["aime24", "aime25"], samples=256)
    pass_at = json.loads((folder / "summary.json").read_text())["benchmarks"]["aime25"]["pass_at"]
    result, problems = one()
    curve = result.curves["pass@k/aime25"]
    assert (
        problems == [] and curve.x == [2**i for i in range(9)] and curve.y == [100 * pass_at[str(k)] for k in curve.x]
    )


def test_timm_run_as_the_recipes_table_has_it(one, timm_run):
    folder = timm_run()
    with (folder / "summary.csv").open(
        "a", newline=""
    ) as stream:  # killed in the last epoch and resumed: a header and the epoch once more
        writer = csv.writer(stream)
        columns = synthetic.timm_columns(era=True)
        writer.writerow(columns)
        writer.writerow(synthetic.timm_row(columns, 199, 200, np.random.default_rng(5)))
    result, problems = one()
    _, rows = synthetic.recipe("timm/recipes/era/results.py").read_summary(folder / "summary.csv")
    assert problems == [] and (result.name, result.seed, result.steps, result.total, result.finished) == (
        "cifar10-era0.6",
        42,
        200,
        200,
        True,
    )
    assert result.values == {"top1": float(rows[199]["eval_top1"]), "top5": float(rows[199]["eval_top5"])}
    curve = result.curves["eval_entropy_min"]
    assert curve.x == list(range(1, 201)) and curve.y == curve.low == curve.high == [
        float(rows[epoch]["eval_entropy_min"]) for epoch in range(200)
    ]
    assert result.intervals == {} and result.interval_of == ""


def test_imagenet_has_the_binomial_interval(one, timm_run):
    timm_run("imagenet-seed42")
    result, _ = one()
    recipe = synthetic.recipe("timm/recipes/era/results.py")
    assert result.interval_of == "images" and result.intervals == {
        name: pytest.approx(recipe._binomial_margin(value)) for name, value in result.values.items()
    }


def test_own_classes_have_no_interval_of_imagenets(one, tmp_path):
    synthetic.timm_run(tmp_path / "imagenet-10classes-seed42", commands_of("imagenet-seed42"))
    result, problems = one()
    assert result.intervals == {} and not result.used and "not in the ledger" in problems[0]


@pytest.mark.parametrize(
    "name, epochs, finished",
    [
        ("imagenet-era0.6-seed42", 100, True),
        ("imagenet-era1.2-seed42", 100, False),
        ("imagenet-era1.2-seed42", 200, True),
        ("imagenet-era0.6-seed42", 99, False),
    ],
)
def test_sweep_of_imagenet_ends_at_100_epochs_but_for_the_main_run(one, timm_run, name, epochs, finished):
    timm_run(name, epochs)
    result, problems = one()
    assert result.finished is finished and result.used and result.curves["eval_top1"].x[-1] == epochs and problems == []


def test_time_of_a_step_is_that_of_the_recipes_tables(one, timm_run, control_run, monkeypatch, tmp_path, project_root):
    folder = timm_run("time/cifar10-aug-era0.6-seed42", epochs=3)
    result, problems = one()
    speeds = synthetic.recipe("timm/recipes/era/results.py").speeds(folder / "log.txt")
    rate = 2 / (1 / speeds[1][1] + 1 / speeds[2][1])
    assert problems == [] and result.finished and result.name == "time/cifar10-aug-era0.6"
    assert (
        result.values["seconds of a step"]
        == pytest.approx(256 / rate)
        == pytest.approx((speeds[1][0] + speeds[2][0]) / 2, rel=2e-3)
    )
    shutil.rmtree(folder.parent)
    folder = control_run("time/h1hand-run-v0-fasttd3-seed1", total=2000)
    result, problems = one()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(project_root / "overlays/fasttd3/recipes/era")
        recipe = importlib.import_module("results")
        expected = recipe.milliseconds_per_step(folder)
    for name in ("results", "runs"):
        del sys.modules[name]
    assert problems == [] and result.finished and result.values == {"seconds of a step": pytest.approx(expected / 1000)}


def test_fasttd3_run_as_pandas_reads_it(one, control_run):
    folder = control_run(total=20_001)
    frame = pd.read_csv(folder / "train.csv", float_precision="round_trip")
    result, problems = one()
    assert problems == [] and (result.steps, result.total, result.finished) == (20_000, 20_001, True)
    evaluated = frame.dropna(subset="eval_avg_return")
    assert (
        result.curves["eval_avg_return"].x == evaluated.global_step.tolist()
        and result.curves["eval_avg_return"].y == evaluated.eval_avg_return.tolist()
    )
    assert (
        np.mean(result.curves["policy_entropy"].y) == pytest.approx(frame.policy_entropy.mean())
        and result.curves["policy_entropy"].rows == 200
    )


@pytest.mark.parametrize(
    "total, models, finished", [(1000, True, True), (1000, False, True), (1001, True, False), (1001, False, False)]
)
def test_fasttd3_is_finished_at_its_last_logged_step(one, control_run, total, models, finished):
    folder = control_run(total=1000, models=models)
    (folder / "log.txt").write_text(f"Args(total_timesteps={total})\n")
    result, _ = one()
    assert result.finished is finished and result.used
    if models:
        (folder / "models/run_final.pt").write_bytes(b"PK\x03\x04 and no end")
        assert not one()[0].finished


def test_demos_and_their_own_numbers(ledger, tmp_path):
    """Other tasks, steps and epochs have names of their own."""
    out = [
        synthetic.llm_demo(tmp_path / "demo", "grpo"), synthetic.llm_demo(tmp_path / "demo", "era", steps=20), synthetic.llm_demo(tmp_path / "demo", "era", task="chain-biased"),
        synthetic.vision_demo(tmp_path / "demo-vision", "era0.6", seed=2), synthetic.vision_demo(tmp_path / "demo-vision", "era0.3"),
        synthetic.vision_demo(tmp_path / "demo-vision", "baseline", epochs=3), synthetic.control_demo(tmp_path / "demo-control", "era-learned", seed=7),
        synthetic.control_demo(tmp_path / "demo-control", "fasttd3", steps=300),
    ]  # fmt: skip
    (tmp_path / "demo-vision/summary.json").write_text('{"settings": {}}')
    shutil.copytree(out[3], tmp_path / "demo-vision/data/train" / out[3].name)
    (tmp_path / "demo-vision/data/run.json").write_text("{}")
    synthetic.vision_demo(tmp_path / "demo-vision", "baseline").rename(
        tmp_path / "demo-vision/baseline-epochs15-seed1.new"
    )
    collected = collect(ledger, [tmp_path])
    names = {Path(result.folder): (result.name, result.seed, result.used, result.steps) for result in collected.results}
    assert names == dict(zip(out, [
        ("demo/chain-grpo", 1, True, 150), ("demo/chain-era, 20 steps", 1, False, 20), ("demo/chain-biased-era", 1, False, 150), ("demo/era0.6", 2, True, 15),
        ("demo/era0.3", 1, False, 15), ("demo/baseline, 3 epochs", 1, False, 3), ("demo/era-learned", 7, True, 6000), ("demo/fasttd3, 300 steps", 1, False, 300),
    ]))  # fmt: skip
    assert all(result.finished and result.hardware == "2 cores, AMD EPYC" for result in collected.results)
    assert sum("not in the ledger" in problem.text for problem in collected.problems) == len(collected.problems) == 5
    (digits,) = collected.of("demo/era0.6", "training")
    frame = pd.read_csv(out[3] / "summary.csv", float_precision="round_trip")
    assert (
        digits.curves["eval_top1"].x == [1 + epoch for epoch in range(15)]
        and digits.curves["eval_top1"].y == frame.eval_top1.tolist()
    )


@pytest.mark.parametrize("text", [None, "", "{}", '{"key": {"code"'])
def test_demo_without_its_last_file_is_not_used(ledger, tmp_path, text):
    for folder in (
        synthetic.llm_demo(tmp_path, "era"),
        synthetic.vision_demo(tmp_path, "baseline"),
        synthetic.control_demo(tmp_path, "era"),
    ):
        (folder / "run.json").unlink() if text is None else (folder / "run.json").write_text(text)
    collected = collect(ledger, [tmp_path])
    assert [(result.used, result.finished) for result in collected.results] == [(False, False)] * 3 and len(
        collected.problems
    ) == 3
    assert all(
        problem.file.endswith("run.json") and "is lacking or not whole" in problem.text
        for problem in collected.problems
    )


def test_the_demos_own_numbers_are_theirs():
    from demo.llm.config import Settings

    llm = Settings()
    vision, control = (importlib.import_module(f"demo.{name}.__main__").parse([]) for name in ("vision", "control"))
    own = {
        "demo": ("STEPS", llm.steps),
        "demo-vision": ("EPOCHS", vision.epochs),
        "demo-control": ("STEPS", control.steps),
    }
    assert own == DEMO_LENGTHS
    runs = [importlib.import_module(f"demo.{name}.settings").Run for name in ("vision", "control")]
    folders = {
        runs[0](None, 1, 15).folder: "summary.csv",
        runs[0](0.6, 1, 15).folder: "summary.csv",
        runs[0](-1e-05, 1, 15).folder: "summary.csv",
        runs[1]("era-learned", 1, 6000).folder: "curves.csv",
    }
    assert all(demos.recognises(Path(folder), {"run.json", file}) for folder, file in folders.items())
    assert demos.recognises(Path(llm.name) / "era", {"run.json", "steps.csv"})


# --------------------------------------------------------------------------------------------------------------- damage


def lines(file, change):
    """change: of the file's lines, as bytes with their ends."""
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(change(rows)))


def put(number, line):
    """In place of a line, from 1."""
    return lambda rows: [*rows[: number - 1], line, *rows[number:]]


def cell(number, column, value):
    def change(rows):
        at = rows[0].decode().strip().split(",").index(column)
        cells = rows[number - 1].decode().strip().split(",")
        return put(number, (",".join([*cells[:at], value, *cells[at + 1 :]]) + "\r\n").encode())(rows)

    return change


def metric(number, name, value):
    def change(rows):
        row = json.loads(rows[number - 1])
        row["data"][name] = value
        return put(number, json.dumps(row).encode() + b"\n")(rows)

    return change


METRICS, SUMMARY, TRAIN = (
    f"{GRPO}/metrics.jsonl",
    "cifar10-era0.6-seed42/summary.csv",
    "h1hand-walk-v0-fastsac_era-seed1/train.csv",
)
# file, change, the problem's place, its words, is the run used, the metric that is left out, rows of another metric's curve
DAMAGES = {
    "verl, no end": (METRICS, lambda rows: [*rows[:-1], rows[-1][:-1]], 13, "no end", True, "", 11),
    "verl, cut": (METRICS, lambda rows: [*rows[:-1], rows[-1][:50]], 13, "no end", True, "", 11),
    "verl, cut in the middle": (
        METRICS,
        put(5, b'{"step": 4, "data": {"actor/entropy": 0.3\n'),
        5,
        "left out",
        True,
        "",
        11,
    ),
    "verl, two lines in one": (
        METRICS,
        put(5, b'{"step": 4, "da{"step": 4, "data": {}}\n'),
        5,
        "left out",
        True,
        "",
        11,
    ),
    "verl, no UTF-8": (METRICS, put(5, b'{"step": 4, "data": {"\xff": 1}}\n'), 5, "left out", True, "", 11),
    "verl, zeros of a crash": (METRICS, put(5, b"\0" * 80 + b"\n"), 5, "left out", True, "", 11),
    "verl, no step": (METRICS, put(5, b'{"data": {"actor/entropy": 1}}\n'), 5, "left out", True, "", 11),
    "verl, a step of text": (
        METRICS,
        put(5, b'{"step": "4", "data": {"actor/entropy": 1}}\n'),
        5,
        "left out",
        True,
        "",
        11,
    ),
    "verl, a huge step": (
        METRICS,
        put(5, b'{"step": 9999999999999999999, "data": {"actor/entropy": 1}}\n'),
        5,
        "left out",
        True,
        "",
        11,
    ),
    "verl, the demo's format": (METRICS, put(5, b'{"step": 4, "actor/entropy": 1}\n'), 5, "left out", True, "", 11),
    "verl, null": (
        METRICS,
        metric(5, "actor/entropy", None),
        5,
        "actor/entropy is not a finite number at step 4",
        True,
        "actor/entropy",
        None,
    ),
    "verl, NaN of another logger": (
        METRICS,
        metric(5, "actor/entropy", math.nan),
        5,
        "not a finite number",
        True,
        "actor/entropy",
        None,
    ),
    "verl, text": (METRICS, metric(5, "actor/entropy", "high"), 5, "not a finite number", True, "actor/entropy", None),
    "verl, empty": (METRICS, lambda rows: [], None, "is empty", False, "actor/entropy", None),
    "verl, validation alone": (METRICS, lambda rows: rows[:1], None, "has no step", False, "actor/entropy", None),
    "verl, beginning lost": (METRICS, lambda rows: rows[4:], 1, "begins at step 4 and not at 1", True, "", 9),
    "verl, rows lost": (
        METRICS,
        lambda rows: rows[:4] + rows[6:],
        5,
        "2 rows are missing between the steps 3 and 6",
        True,
        "",
        10,
    ),
    "verl, two writers": (
        METRICS,
        lambda rows: [line for pair in zip(rows[7:], rows[2:7]) for line in pair],
        3,
        "as if two runs wrote",
        False,
        "",
        None,
    ),
    "verl, backwards": (METRICS, lambda rows: rows[:1] + rows[:0:-1], 4, "no resumption", False, "", None),
    "timm, no end": (SUMMARY, lambda rows: [*rows[:-1], rows[-1].rstrip()], 201, "no end", True, "", 199),
    "timm, cut": (SUMMARY, lambda rows: [*rows[:-1], rows[-1][:9]], 201, "no end", True, "", 199),
    "timm, cut in the middle": (
        SUMMARY,
        put(9, b"7,0.3,0.\r\n"),
        9,
        "the number of cells is 3, the header's 10",
        True,
        "",
        199,
    ),
    "timm, more cells": (
        SUMMARY,
        put(9, b"7,1,2,3,4,5,6,7,8,9,10\r\n"),
        9,
        "the number of cells is 11, the header's 10",
        True,
        "",
        199,
    ),
    "timm, no number": (
        SUMMARY,
        cell(9, "eval_top1", "9O.1"),
        9,
        "eval_top1 is '9O.1', which is no number",
        True,
        "",
        199,
    ),
    "timm, no epoch": (SUMMARY, cell(9, "epoch", "7.5"), 9, "'7.5' is no step", True, "", 199),
    "timm, no UTF-8": (SUMMARY, put(9, b"7,\xff\xfe,1,1,1,1,1,1,1,1\r\n"), 9, "no UTF-8", True, "", 199),
    "timm, an empty line": (SUMMARY, put(9, b"\r\n"), 9, "the number of cells is 1, the header's 10", True, "", 199),
    "timm, NaN": (
        SUMMARY,
        cell(9, "eval_top1", "nan"),
        9,
        "eval_top1 is not a finite number at step 7",
        True,
        "eval_top1",
        None,
    ),
    "timm, infinity": (
        SUMMARY,
        cell(9, "eval_entropy_min", "inf"),
        9,
        "not a finite number",
        True,
        "eval_entropy_min",
        None,
    ),
    "timm, beyond 100": (
        SUMMARY,
        cell(9, "eval_top5", "100.5"),
        9,
        "eval_top5 is 100.5, beyond 0 to 100",
        True,
        "eval_top5",
        None,
    ),
    "timm, below 0": (SUMMARY, cell(9, "eval_top1", "-0.1"), 9, "beyond 0 to 100", True, "eval_top1", None),
    "timm, a column lacks": (
        SUMMARY,
        lambda rows: [rows[0].replace(b"eval_top5", b"eval_acc5"), *rows[1:]],
        None,
        "has no eval_top5, which the ledger needs",
        True,
        "eval_top5",
        None,
    ),
    "timm, epochs lack": (
        SUMMARY,
        lambda rows: [rows[0].replace(b"epoch", b"era"), *rows[1:]],
        1,
        "has no column epoch",
        False,
        "eval_top1",
        None,
    ),
    "timm, header alone": (SUMMARY, lambda rows: rows[:1], None, "has a header and no row", False, "eval_top1", None),
    "timm, empty": (SUMMARY, lambda rows: [], None, "is empty", False, "eval_top1", None),
    "timm, header no UTF-8": (
        SUMMARY,
        put(1, b"epoch,\xff\r\n"),
        1,
        "has no header that can be read",
        False,
        "eval_top1",
        None,
    ),
    "timm, quotes": (SUMMARY, put(9, b'7,"a,1,1,1,1,1,1,1,1\r\n'), 9, "the number of cells is 2", True, "", 199),
    "timm, not a text at all": (
        SUMMARY,
        lambda rows: [bytes(range(128, 256)) * 9],
        1,
        "no end",
        False,
        "eval_top1",
        None,
    ),
    "timm, epochs lost": (
        SUMMARY,
        lambda rows: rows[:4] + rows[8:],
        5,
        "4 rows are missing between the steps 2 and 7",
        True,
        "",
        196,
    ),
    "timm, two writers": (
        SUMMARY,
        lambda rows: [rows[0], *(line for pair in zip(rows[101:], rows[1:101]) for line in pair)],
        4,
        "as if two runs",
        False,
        "",
        None,
    ),
    "FastTD3, no end": (TRAIN, lambda rows: [*rows[:-1], rows[-1].rstrip()], 10, "no end", True, "", 8),
    "FastTD3, cut in the middle": (
        TRAIN,
        put(4, b"300,38400,1\r\n"),
        4,
        "the number of cells is 3, the header's 19",
        True,
        "",
        8,
    ),
    "FastTD3, NaN": (
        TRAIN,
        cell(4, "policy_entropy", "nan"),
        4,
        "policy_entropy is not a finite number at step 300",
        True,
        "policy_entropy",
        None,
    ),
    "FastTD3, a column lacks": (
        TRAIN,
        lambda rows: [rows[0].replace(b"policy_entropy", b"entropy"), *rows[1:]],
        None,
        "has no policy_entropy",
        True,
        "policy_entropy",
        None,
    ),
    "FastTD3, backwards": (TRAIN, lambda rows: rows[:5] + rows[3:], 6, "no resumption", False, "", None),
    "FastTD3, a step twice": (TRAIN, lambda rows: rows[:5] + rows[4:], 6, "no resumption", False, "", None),
    "FastTD3, rows lost": (
        TRAIN,
        lambda rows: rows[:3] + rows[5:],
        4,
        "2 rows are missing between the steps 200 and 500",
        True,
        "",
        7,
    ),
    "FastTD3, header alone": (
        TRAIN,
        lambda rows: rows[:1],
        None,
        "has a header and no row",
        False,
        "policy_entropy",
        None,
    ),
}


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    synthetic.verl_run(out / GRPO, range(1, 13))
    synthetic.timm_run(out / SUMMARY.split("/")[0], commands_of("cifar10-era0.6-seed42"))
    synthetic.fasttd3_run(out / TRAIN.split("/")[0], commands_of("h1hand-walk-v0-fastsac_era-seed1"), 1000)
    return out


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_said_by_line_and_kept_out(one, whole_runs, tmp_path, case):
    name, change, line, words, used, left_out, rows = DAMAGES[case]
    shutil.copytree(whole_runs / Path(name).parent, tmp_path / Path(name).parent)
    before, nothing = one()
    assert before.used and nothing == []
    lines(tmp_path / name, change)
    result, problems = one()
    place = f"{name}:{line}: " if line else f"{name}: "
    assert any(problem.startswith(place) and words in problem for problem in problems), problems
    assert result.used is used and (not left_out or left_out not in result.curves)
    if rows:
        other = {METRICS: "actor/entropy", SUMMARY: "eval_top1", TRAIN: "policy_entropy"}[name]
        assert result.curves[other].rows == rows and len(problems) == 1 + (
            "beginning" in case
        )  # without its first step too
    else:
        lost = set(before.curves) - set(result.curves)
        assert not used or lost == {left_out}, "the other metrics stay"


def test_many_bad_lines_are_counted_and_not_listed(one, tmp_path):
    file = synthetic.verl_run(tmp_path / GRPO, range(1, 5)) / "metrics.jsonl"
    lines(file, lambda rows: [*rows, *[b"oops\n"] * 500])
    result, problems = one()
    assert len(problems) == 4 and "497 more such lines, the last is 505" in problems[-1] and result.steps == 4


def test_more_steps_than_the_ledgers_run_are_another_run(one, tmp_path):
    synthetic.verl_run(tmp_path / "gspo_qwen2.5_math_7b", range(1, 612))
    result, problems = one()
    assert not result.used and "has 611 steps, and the ledger's run 600" in problems[0]


def test_crash_loop_is_a_resumption_and_a_start_from_scratch_too(one, tmp_path):
    file = synthetic.verl_run(tmp_path / GRPO, range(1, 26)) / "metrics.jsonl"
    with file.open("a") as stream:
        for steps in (range(21, 24), range(21, 26), range(1, 13), range(11, 31)):
            stream.write("\n".join(synthetic.verl_lines(steps, seed=steps[-1])) + "\n")
    result, problems = one()
    assert problems == [] and result.used and result.steps == 30 and result.curves["actor/entropy"].rows == 30


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory):
    out = tmp_path_factory.mktemp("each")
    synthetic.verl_run(out / GRPO, range(1, 30))
    synthetic.timm_run(out / "time/cifar10-aug-seed42", commands_of("time/cifar10-aug-seed42"), 3)
    synthetic.fasttd3_run(out / "h1hand-run-v0-fasttd3-seed1", commands_of("h1hand-run-v0-fasttd3-seed1"), 3000)
    synthetic.evaluation(out / GRPO / "evaluation" / GRPO, ["aime24", "amc23"])
    synthetic.llm_demo(out, "era", steps=20)
    synthetic.vision_demo(out, "baseline")
    synthetic.control_demo(out, "era", steps=600)
    synthetic.record(out, ["h1hand-run-v0-fasttd3-seed1"])
    return out


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_bytes_are_there_is_no_traceback_and_no_nan(ledger, one_of_each, tmp_path, seed):
    """Every file of every kind with bytes changed, taken out and put in, ten times over."""
    rng, results_file = np.random.default_rng(seed), tmp_path / "collected.json"
    shutil.copytree(one_of_each, tmp_path / "runs")
    files = [
        file
        for file in sorted((tmp_path / "runs").rglob("*"))
        if file.is_file() and file.suffix in (".jsonl", ".csv", ".json", ".txt")
    ]
    assert len(files) > 15
    whole = {file: file.read_bytes() for file in files}
    for _ in range(10):
        for file, data in whole.items():
            at, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
            new = [
                b"",
                b"nan",
                b"1e999",
                b"-1",
                b'"',
                b"\n",
                b"\0\0",
                b"\xff",
                b"99999999999999999999",
                b"null",
                b"[]",
                data[at:end],
            ][rng.integers(12)]
            file.write_bytes(data[:at] + new + data[end if rng.random() < 0.5 else at :])
        collected = collect(ledger, [tmp_path / "runs"])
        results.write(results_file, collected)  # refuses NaN
        assert results.read(results_file) == collected and collected.problems


# ---------------------------------------------------------------------------------------------------------- evaluations


def rewrite(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


EVALUATION_DAMAGES = {
    "cut": (
        lambda at: (at / "summary.json").write_text((at / "summary.json").read_text()[:300]),
        "summary.json:",
        "is empty or cut",
        None,
    ),
    "empty": (lambda at: (at / "summary.json").write_text(""), "summary.json:1", "is empty or cut", None),
    "no summary": (lambda at: (at / "summary.json").unlink(), "summary.json", "is lacking", None),
    "not UTF-8": (lambda at: (at / "summary.json").write_bytes(b"\xff\xfe\xfd"), "summary.json", "no UTF-8", None),
    "another file": (
        lambda at: (at / "summary.json").write_text('{"arms": 1}'),
        "summary.json",
        "is no summary of evaluate.py",
        None,
    ),
    "beyond 1": (
        lambda at: rewrite(at / "summary.json", lambda s: s["benchmarks"]["amc23"].update(accuracy=1.2)),
        "summary.json",
        "amc23: accuracy is 1.2",
        "amc23",
    ),
    "NaN": (
        lambda at: rewrite(at / "summary.json", lambda s: s["benchmarks"]["amc23"].update(accuracy=math.nan)),
        "summary.json",
        "amc23: accuracy is nan",
        "amc23",
    ),
    "no accuracy": (
        lambda at: rewrite(at / "summary.json", lambda s: s["benchmarks"]["amc23"].pop("accuracy")),
        "summary.json",
        "amc23: accuracy is None",
        "amc23",
    ),
    "pass@k beyond 1": (
        lambda at: rewrite(at / "summary.json", lambda s: s["benchmarks"]["aime24"]["pass_at"].update({"2": 7})),
        "summary.json",
        "aime24: pass@2 is 7",
        "aime24",
    ),
    "incomplete": (
        lambda at: rewrite(at / "summary.json", lambda s: s["benchmarks"]["amc23"].update(complete=False, samples=600)),
        "summary.json",
        "amc23: 600 of 640 samples",
        "amc23",
    ),
    "lacks a benchmark": (
        lambda at: rewrite(at / "summary.json", lambda s: s["benchmarks"].pop("amc23")),
        "summary.json",
        "has no amc23, which the ledger needs",
        "amc23",
    ),
    "no settings": (
        lambda at: (at / "amc23.settings.json").unlink(),
        "summary.json",
        "amc23: there is no amc23.settings.json",
        "amc23",
    ),
    "settings cut": (
        lambda at: (at / "amc23.settings.json").write_text('{"settings": {'),
        "amc23.settings.json:1",
        "is empty or cut",
        "amc23",
    ),
    "two models": (
        lambda at: rewrite(at / "amc23.settings.json", lambda s: s["settings"].update(model_sha256="b")),
        "",
        "sampled with different model_sha256",
        None,
    ),
    "two seeds": (
        lambda at: rewrite(at / "amc23.settings.json", lambda s: s["settings"].update(seed=1)),
        "",
        "sampled with different seed",
        None,
    ),
    "other samples": (
        lambda at: rewrite(at / "amc23.settings.json", lambda s: s["settings"].update(temperature=1.0)),
        "summary.json",
        "amc23: the summary is of other samples",
        "amc23",
    ),
}


@pytest.mark.parametrize("case", EVALUATION_DAMAGES)
def test_damaged_evaluations(one, tmp_path, case):
    damage, place, words, left_out = EVALUATION_DAMAGES[case]
    damage(synthetic.evaluation(tmp_path / GRPO, SIX))
    result, problems = one()
    assert any(problem.startswith(f"{GRPO}/{place}".rstrip("/")) and words in problem for problem in problems), problems
    if left_out:
        assert (
            result.used and left_out not in result.values and "average" not in result.values and len(result.values) == 5
        )
        assert f"pass@k/{left_out}" not in result.curves and (
            result.finished or case in ("incomplete", "lacks a benchmark")
        )
        assert not (result.finished and case in ("incomplete", "lacks a benchmark"))
    else:
        assert not result.used


@pytest.mark.parametrize(
    "change, words",
    [
        ({"samples": 4}, "samples 4 and not 16"),
        ({"temperature": 1.0}, "temperature 1.0 and not 0.7"),
        ({"max_tokens": 4096}, "max_tokens 4096 and not 8192"),
        ({"problems": 10}, "problems 10 and not 30"),
    ],
)
def test_another_protocol_is_not_the_papers(one, tmp_path, change, words):
    folder = synthetic.evaluation(tmp_path / GRPO, SIX)
    rewrite(folder / "aime24.settings.json", lambda data: data["settings"].update(change))
    for name in SIX:  # one folder has one length
        rewrite(
            folder / f"{name}.settings.json",
            lambda data: data["settings"].update({key: value for key, value in change.items() if key == "max_tokens"}),
        )
    rewrite(
        folder / "summary.json",
        lambda data: [
            entry["protocol"].update({key: value for key, value in change.items() if key in entry["protocol"]})
            for entry in data["benchmarks"].values()
        ],
    )
    rewrite(
        folder / "summary.json",
        lambda data: data["benchmarks"]["aime24"].update(
            {key: value for key, value in change.items() if key == "problems"}
        ),
    )
    result, problems = one()
    assert (
        any(f"aime24: not sampled as in the paper: {words}" in problem for problem in problems)
        and "aime24" not in result.values
    )


# ------------------------------------------------------------------------------------------------ runs beside one another


def used(collected):
    return sorted(Path(result.folder).parts[-2:] for result in collected.results if result.used)


def test_copies_count_once_and_differing_ones_not_at_all(ledger, timm_run, tmp_path):
    timm_run(at=tmp_path / "here")
    timm_run(at=tmp_path / "there")
    collected = collect(ledger, [tmp_path])
    assert used(collected) == [("here", "cifar10-era0.6-seed42")]
    (problem,) = collected.problems
    assert problem.file == str(tmp_path / "there/cifar10-era0.6-seed42") and "it counts once" in problem.text
    lines(tmp_path / "there/cifar10-era0.6-seed42/summary.csv", cell(201, "eval_top1", "99"))
    collected = collect(ledger, [tmp_path])
    assert (
        used(collected) == []
        and len(collected.problems) == 2
        and all("none of them is used" in problem.text for problem in collected.problems)
    )


def test_folders_given_twice_or_within_one_another_are_read_once(ledger, timm_run, tmp_path):
    folder = timm_run(at=tmp_path / "a")
    collected = collect(ledger, [tmp_path, tmp_path / "a", folder, tmp_path])
    assert len(collected.results) == 1 and collected.problems == []


def test_names_of_a_run_given_as_the_working_folder(ledger, timm_run, tmp_path, monkeypatch):
    monkeypatch.chdir(timm_run("time/cifar10-aug-seed42", epochs=3))
    (result,) = collect(ledger, [Path(".")]).results
    assert (result.name, result.seed) == ("time/cifar10-aug", 42)


@pytest.mark.parametrize(
    "added, words",
    [
        (
            ["--epochs", "1", "--model", "test_resnet"],
            "the command has --epochs 1 --model test_resnet beside the recipe's",
        ),
        (["--workers", "8", "--log-interval=1", "-j", "2"], ""),
        (["--lr=0.1"], "the command has --lr=0.1 beside the recipe's"),
    ],
)
def test_flags_beside_the_recipes(one, timm_run, added, words):
    """A smoke run has the name of the paper's."""
    folder = timm_run()
    (folder / "command.txt").write_text(" ".join([*commands_of("cifar10-era0.6-seed42"), *added]) + "\n")
    result, problems = one()
    assert result.used is not bool(words) and [words in problem for problem in problems] == [True] * bool(words)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("train.sh 4", "train.sh 1", "the command has 1 where"),
        ("--seed 42", "--seed 43", "has seed 43, and the folder's name 42"),
        ("-entropy 0.6", "-entropy 0.3", "the command has 0.3"),
        ("--seed", "'--seed", "no command that can be read"),
        ("../data", "/data/cifar", ""),
    ],
)
def test_another_command_than_the_recipes(one, timm_run, old, new, words):
    folder = timm_run()
    text = (folder / "command.txt").read_text()
    assert old in text
    (folder / "command.txt").write_text(text.replace(old, new))
    result, problems = one()
    assert result.used is not bool(words) and [words in problem for problem in problems] == [True] * bool(words)


def test_fasttd3_with_other_steps_than_the_recipes(one, control_run):
    folder = control_run()
    (folder / "command.txt").write_text((folder / "command.txt").read_text().strip() + " --total_timesteps 1000\n")
    result, problems = one()
    assert not result.used and "--total_timesteps 1000 beside the recipe's" in problems[0]


def test_seeds_of_other_lengths_are_not_averaged(ledger, control_run, tmp_path):
    for seed, total in ((1, 1000), (2, 1000), (3, 2000)):
        (control_run(f"h1hand-walk-v0-fastsac_era-seed{seed}", total) / "command.txt").unlink()
    collected = collect(ledger, [tmp_path])
    assert used(collected) == []
    assert {problem.text.partition(",")[0] for problem in collected.problems if "otherwise" in problem.text} == {
        "seed 1 of h1hand-walk-v0-fastsac_era was trained otherwise (1000 steps) than seed 3: none of them is used. Leave those that belong together",
        "seed 2 of h1hand-walk-v0-fastsac_era was trained otherwise (1000 steps) than seed 3: none of them is used. Leave those that belong together",
        "seed 3 of h1hand-walk-v0-fastsac_era was trained otherwise (2000 steps) than seed 1",
    }
    assert (
        sum(
            "nothing says that the run was trained as the recipe has it" in problem.text
            for problem in collected.problems
        )
        == 3
    )


def test_demos_of_other_code_are_not_averaged(ledger, tmp_path):
    synthetic.vision_demo(tmp_path, "baseline", 1)
    synthetic.vision_demo(tmp_path, "baseline", 2, code="b2" * 32)
    synthetic.vision_demo(tmp_path, "era0.6", 1)
    collected = collect(ledger, [tmp_path])
    assert [result.name for result in collected.results if result.used] == [
        "demo/era0.6"
    ] and "code b2b2" in collected.problems[1].text


def test_unknown_names_are_said(one, tmp_path):
    synthetic.verl_run(tmp_path / "my_own_task-seed1", range(1, 4))
    result, problems = one()
    assert not result.used and problems == [
        "my_own_task-seed1: the training 'my_own_task' is not in the ledger, so it is not used"
    ]


def test_a_copy_under_another_seeds_name_is_no_other_seed(ledger, tmp_path):
    lines = synthetic.verl_lines(range(1, 1101))
    for seed in (0, 1, 2):
        synthetic.verl_run(tmp_path / f"{GRPO}-seed{seed}", range(1, 11))
        (tmp_path / f"{GRPO}-seed{seed}/metrics.jsonl").write_text(
            "\n".join(lines[: len(lines) - 100 * (seed == 2)]) + "\n"
        )
    collected = collect(ledger, [tmp_path])
    assert [result.used for result in collected.results] == [True, False, True]  # the last one is of fewer steps
    assert any(
        "seed0 to the byte, so it is no other seed" in problem.text
        for problem in collected.problems
        if problem.file.endswith("seed1")
    )


@pytest.mark.parametrize("value", ["1.7e308", "-1e101"])
def test_numbers_too_large_to_be_summed_are_kept_out(one, control_run, tmp_path, value):
    file = control_run("h1hand-walk-v0-fasttd3-seed1") / "train.csv"
    rows = list(csv.reader(file.open()))
    for row in rows[1:]:
        row[rows[0].index("eval_avg_return")] = value
    synthetic.write_csv(file, rows[0], rows[1:])
    result, problems = one()
    assert result.curves == {} and "beyond -1e+100 to 1e+100 at step 100" in problems[0]


@pytest.mark.parametrize("seconds", [lambda i: "3.0", lambda i: f"{100 - i}", lambda i: "0"])
def test_seconds_that_do_not_grow_are_no_time_of_a_step(one, tmp_path, seconds):
    name = next(name for name, _, _ in synthetic.fasttd3_commands() if name.startswith("time/"))
    file = synthetic.fasttd3_run(tmp_path / name, commands_of(name), 2000) / "train.csv"
    rows = list(csv.reader(file.open()))
    for place, row in enumerate(rows[1:]):
        row[rows[0].index("seconds")] = seconds(place)
    synthetic.write_csv(file, rows[0], rows[1:])
    result, problems = one()
    assert result.values == {} and any("its seconds do not grow" in problem for problem in problems)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"benchmarks": {"aime24": {"problems": ' + "9" * 5000 + "}}}"], ids=["deep", "long"]
)
def test_json_that_python_cannot_hold_is_said(one, tmp_path, text):
    folder = synthetic.evaluation(tmp_path / "eval" / GRPO, ["aime24"])
    (folder / "summary.json").write_text(text)
    (folder / "aime24.settings.json").write_text(text)
    result, problems = one()
    assert not result.used and len(problems) == 2 and all("cannot be read" in problem for problem in problems)


# --------------------------------------------------------------------------------------------------------------- records


def test_the_newest_record_tells_how_a_run_ended(ledger, control_run, tmp_path):
    control_run()
    other = control_run("h1hand-run-v0-fasttd3-seed1")
    (other / "models/run_final.pt").unlink()
    both = ["h1hand-walk-v0-fastsac_era-seed1", "h1hand-run-v0-fasttd3-seed1"]
    synthetic.record(tmp_path, both, "2026-11-20T10:00:00+00:00", state="interrupted", exit_code=130)
    synthetic.record(
        tmp_path, both, "2026-11-21T10:00:00+00:00", state="failed", exit_code=1, log_tail=["CUDA error", "the end"]
    )
    collected = collect(ledger, [tmp_path])
    unfinished, finished = collected.results
    assert (unfinished.failed, unfinished.log_tail, unfinished.state, unfinished.hardware) == (
        True,
        ("CUDA error", "the end"),
        "clean",
        "2 NVIDIA A100",
    )
    assert (finished.failed, finished.log_tail, finished.used) == (False, (), True) and collected.problems == []
    assert [record["state"] for record in collected.records] == ["interrupted", "failed"]


def test_modified_copy_does_not_keep_out_the_clean_one(ledger, control_run, tmp_path):
    control_run(at=tmp_path / "clean")
    control_run(at=tmp_path / "modified", seed=5)
    synthetic.record(tmp_path / "modified", ["h1hand-walk-v0-fastsac_era-seed1"], modified=True)
    collected = collect(ledger, [tmp_path])
    assert used(collected) == [("clean", "h1hand-walk-v0-fastsac_era-seed1")] and len(collected.problems) == 1


def test_results_of_a_modified_checkout_are_kept_out_unless_asked_for(ledger, control_run, tmp_path):
    """Also after a later start with a clean checkout, which may have found the run finished."""
    control_run()
    modified = {
        "modified": True,
        "checkouts": {"fasttd3": {"state": "modified", "files": ["fast_td3/train.py"], "commits": []}},
    }
    file = synthetic.record(tmp_path, ["h1hand-walk-v0-fastsac_era-seed1"], "2026-11-20T10:00:00+00:00", **modified)
    synthetic.record(tmp_path, ["h1hand-walk-v0-fastsac_era-seed1"], "2026-11-21T10:00:00+00:00")
    collected = collect(ledger, [tmp_path])
    assert [(result.state, result.used) for result in collected.results] == [("modified", False)]
    (problem,) = collected.problems
    assert problem.file == str(file) and "modified checkout (fasttd3/fast_td3/train.py)" in problem.text
    collected = collect(ledger, [tmp_path], with_modified=True)
    assert [(result.state, result.used) for result in collected.results] == [
        ("modified", True)
    ] and collected.problems == []


def test_failed_runs_without_a_result_stay_in_the_records(ledger, tmp_path):
    synthetic.record(tmp_path, ["h1hand-walk-v0-fastsac_era-seed1"], state="failed", exit_code=1, log_tail=["no GPU"])
    collected = collect(ledger, [tmp_path])
    assert collected.results == [] and [record["log_tail"] for record in collected.records] == [["no GPU"]]


@pytest.mark.parametrize(
    "change",
    [
        {"variables": {"A": 3}},
        {"seeds": ["x"]},
        {"end": 5},
        {"hardware": {"gpus": [["x"]]}},
        {"folders": ["\0"]},
        {"exit_code": {}},
        {"experiments": 3},
    ],
)
def test_records_that_hold_something_else(ledger, control_run, tmp_path, change):
    control_run()
    file = synthetic.record(tmp_path, **{"folders": ["h1hand-walk-v0-fastsac_era-seed1"], **change})
    collected = collect(ledger, [tmp_path])
    assert collected.records == [] and [problem.file for problem in collected.problems] == [str(file)]
    assert f"{next(iter(change))} cannot be read" in collected.problems[0].text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"folders": ["a"]}',
        '{"run": "r", "folders": [1], "state": "failed", "modified": false, "start": ""}',
    ],
)
def test_damaged_records(ledger, tmp_path, text):
    file = synthetic.record(tmp_path, [])
    file.write_text(text)
    collected = collect(ledger, [tmp_path])
    assert collected.records == [] and [problem.file for problem in collected.problems] == [str(file)]


# --------------------------------------------------------------------------------------------------------------- folders


def test_nesting_links_and_circles(ledger, timm_run, tmp_path):
    outside = timm_run(at=tmp_path / "outside")
    deep = tmp_path / "source" / "/".join("abcdefgh")
    run = synthetic.verl_run(deep / GRPO, range(1, 4))
    (deep / "round").symlink_to(tmp_path / "source")
    (deep / "out").symlink_to(outside.parent)
    for name in ("global_step_20", "models", "interrupted-1", "tensorboard"):
        shutil.copytree(outside, run / name / outside.name)
    collected = collect(ledger, [tmp_path / "source"])
    assert [result.folder for result in collected.results] == [str(run)]
    assert sorted(Path(problem.file).name for problem in collected.problems) == ["out", "round"] and all(
        "not followed" in problem.text for problem in collected.problems
    )
    (tmp_path / "link").symlink_to(outside.parent)
    assert len(collect(ledger, [tmp_path / "link"]).results) == 1


def test_a_log_that_is_a_link_is_said(ledger, timm_run, tmp_path):
    folder, away = timm_run(at=tmp_path / "source"), tmp_path / "summary.csv"
    (folder / "summary.csv").rename(away)
    (folder / "summary.csv").symlink_to(away)
    collected = collect(ledger, [tmp_path / "source"])
    assert collected.results == [] and [problem.file for problem in collected.problems] == [str(folder)]
    assert "links in place of summary.csv" in collected.problems[0].text


def test_what_cannot_be_read_is_said(ledger, timm_run, tmp_path, monkeypatch):
    folder = timm_run()
    true_open = Path.open

    def refuse(self, *args, **more):
        if self == folder / "summary.csv":
            raise PermissionError(13, "Permission denied", str(self))
        return true_open(self, *args, **more)

    monkeypatch.setattr(Path, "open", refuse)
    collected = collect(ledger, [tmp_path])
    assert [str(problem) for problem in collected.problems] == [
        f"{folder / 'summary.csv'}: cannot be read: Permission denied"
    ]
    assert not any(result.used for result in collected.results)


def test_a_source_that_is_no_folder(ledger, tmp_path):
    with pytest.raises(LedgerError, match="is no folder"):
        collect(ledger, [tmp_path / "none"])
    assert collect(ledger, [tmp_path]).results == []


def test_several_processes_find_the_same(ledger, whole_runs, monkeypatch):
    alone = collect(ledger, [whole_runs])
    monkeypatch.setattr(collecting, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    together = collect(ledger, [whole_runs])
    assert together.results == alone.results and len(alone.results) == 3 and together.problems == alone.problems


# --------------------------------------------------------------------------------------------------------------- curves


@pytest.mark.parametrize("count", [1, 399, 400, 401, 799, 1100, 100_000])
def test_curves_are_made_shorter_and_lose_no_peak(count):
    steps, values = np.arange(1, count + 1), np.random.default_rng(count).normal(size=count)
    curve = tables.curve(steps, values)
    sizes = np.diff([0, *curve.x])
    assert (
        len(curve.x) == min(count, results.MOST_POINTS)
        and curve.x[-1] == count == curve.rows
        and sizes.max() - sizes.min() <= 1
    )
    assert (
        max(curve.high) == values.max()
        and min(curve.low) == values.min()
        and np.dot(curve.y, sizes) == pytest.approx(values.sum(), abs=1e-8)
    )


# ------------------------------------------------------------------------------------------- rows read by Arrow and by line

# Cells that one of the two readers could take otherwise than the other.
CELLS = [
    "",
    "1",
    "2.5",
    "-0.125",
    "1e5",
    "1E-7",
    "6.02e+23",
    ".5",
    "5.",
    "007",
    "1e400",
    "-1e400",
    "1e-400",
    "4.9e-324",
    "123456789012345678",
    "0.1" + "2" * 40,
]
BAD_CELLS = [
    "+1",
    "+2.5",
    "-5",
    "--1",
    "1e",
    ".",
    "-",
    "e5",
    "1_000",
    " 1",
    "1 ",
    "0x10",
    "nan",
    "inf",
    "NA",
    "true",
    '"3"',
    '"',
    "1\r",
    "\u0661",
    "9" * 30,
]
ROW = st.lists(st.sampled_from(CELLS), min_size=3, max_size=3).map(lambda cells: ["7", *cells])
BAD_ROW = st.lists(st.sampled_from([*CELLS, *BAD_CELLS]), min_size=0, max_size=6)


def read_both(file, monkeypatch, block):
    """What read_csv finds by Arrow where it can, and line by line; and how many blocks Arrow has read."""
    found, plain = [], []
    for by_line in (False, True):
        with monkeypatch.context() as patched:
            original = tables._plain_rows
            patched.setattr(tables, "BLOCK", block)
            patched.setattr(
                tables, "_plain_rows", lambda *given: None if by_line else plain.append(original(*given)) or plain[-1]
            )
            problems = Problems(file)
            log = tables.read_csv(file, "step", ["a", "c"], problems)
            columns = {
                name: (column.steps, column.lines, np.array(column.values).tobytes())
                for name, column in log.columns.items()
            }
            found.append((log.steps, log.lines, log.bad, columns, problems.all()))
    return found[0], found[1], sum(rows is not None for rows in plain)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_plain_rows_are_read_by_arrow_and_alike(tmp_path, monkeypatch, end):
    file, rng = tmp_path / "log.csv", np.random.default_rng(1)
    rows = [
        f"{step},{value!r},{'' if step % 3 else f'{value:.6g}'},{value / 1e9:.3e}"
        for step, value in enumerate(rng.normal(size=3000).tolist())
    ]
    file.write_bytes(end.join(["step,a,b,c", *rows, ""]).encode())
    one, other, by_arrow = read_both(file, monkeypatch, block=10_000)
    assert one == other and by_arrow > 5
    table = pd.read_csv(file, float_precision="round_trip")
    assert one[0].tolist() == table["step"].tolist() and one[1].tolist() == list(range(2, 3002))
    assert one[3]["a"][2] == table["a"].to_numpy().tobytes() and one[3]["c"][2] == table["c"].to_numpy().tobytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.one_of(ROW, ROW, ROW, BAD_ROW), max_size=12),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cut=st.integers(0, 4),
    block=st.sampled_from([1, 20, 1000]),
)
def test_whatever_the_rows_both_ways_read_them_alike(tmp_path, monkeypatch, rows, end, cut, block):
    file, text = tmp_path / "log.csv", "".join(",".join(row) + end for row in rows).encode()
    file.write_bytes(b"step,a,b,c\n" + text[: len(text) - cut])
    one, other, _ = read_both(file, monkeypatch, block)
    assert one == other
