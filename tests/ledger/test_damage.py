"""Damaged files: everything that is wrong is named by file and line and kept out of the averages."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.readers import tables
from ledger.readers.run_folder import Problems
from tools.bench import synthetic

SIX = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
GRPO = "grpo_qwen2.5_math_7b"
METRICS = f"{GRPO}/metrics.jsonl"
SUMMARY = "cifar10-era0.6-seed42/summary.csv"
TRAIN = "h1hand-walk-v0-fastsac_era-seed1/train.csv"
PPO_RUN = "HalfCheetah-v4-ppo_era-seed1"
PPO, INFO = f"{PPO_RUN}/train.csv", f"{PPO_RUN}/run.json"
ENTROPY = {
    PPO: "entropy_per_dim",
    METRICS: "actor/entropy",
    SUMMARY: "eval_top1",
    TRAIN: "policy_entropy",
}  # a metric of each


# Changes of a file's lines: bytes with their ends, numbered from 1.


def put(number, line):
    return lambda rows: [*rows[: number - 1], line, *rows[number:]]


def without(first, last):
    return lambda rows: rows[: first - 1] + rows[last:]


def end_cut(size):
    return lambda rows: [*rows[:-1], rows[-1][:size]]


def rename(old, new):
    return lambda rows: [rows[0].replace(old, new), *rows[1:]]


def interleaved(first, second):
    """Two parts of the rows in turn, after the header of a CSV file."""
    head = slice(0, 1 if first.start > 7 else 0)
    return lambda rows: [*rows[head], *(line for pair in zip(rows[first], rows[second]) for line in pair)]


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


def entropy(value):
    return metric(5, "actor/entropy", value)


def header_only(rows):
    return rows[:1]


def nothing(rows):
    return []


# file, change, the problem's line and words, and the rows that the other lines leave
LINES_LEFT_OUT = {
    "verl, no end": (METRICS, end_cut(-1), 13, "no end", 11),
    "verl, cut": (METRICS, end_cut(50), 13, "no end", 11),
    "verl, cut in the middle": (METRICS, put(5, b'{"step": 4, "data": {"actor/entropy": 0.3\n'), 5, "left out", 11),
    "verl, two lines in one": (METRICS, put(5, b'{"step": 4, "da{"step": 4, "data": {}}\n'), 5, "left out", 11),
    "verl, not UTF-8": (METRICS, put(5, b'{"step": 4, "data": {"\xff": 1}}\n'), 5, "left out", 11),
    "verl, zeros of a crash": (METRICS, put(5, b"\0" * 80 + b"\n"), 5, "left out", 11),
    "verl, no step": (METRICS, put(5, b'{"data": {"actor/entropy": 1}}\n'), 5, "left out", 11),
    "verl, a step of text": (METRICS, put(5, b'{"step": "4", "data": {"actor/entropy": 1}}\n'), 5, "left out", 11),
    "verl, a huge step": (METRICS, put(5, b'{"step": 9999999999999999999, "data": {}}\n'), 5, "left out", 11),
    "verl, the demo's format": (METRICS, put(5, b'{"step": 4, "actor/entropy": 1}\n'), 5, "left out", 11),
    "verl, beginning lost": (METRICS, without(1, 4), 1, "begins at step 4 and not at 1", 9),
    "verl, rows lost": (METRICS, without(5, 6), 5, "2 rows are missing between the steps 3 and 6", 10),
    "timm, no end": (SUMMARY, end_cut(-2), 201, "no end", 199),
    "timm, cut": (SUMMARY, end_cut(9), 201, "no end", 199),
    "timm, cut in the middle": (SUMMARY, put(9, b"7,0.3,0.\r\n"), 9, "cells is 3, the header's 10", 199),
    "timm, more cells": (SUMMARY, put(9, b"7,1,2,3,4,5,6,7,8,9,10\r\n"), 9, "cells is 11, the header's 10", 199),
    "timm, not a number": (SUMMARY, cell(9, "eval_top1", "9O.1"), 9, "'9O.1', which is not a number", 199),
    "timm, not an epoch": (SUMMARY, cell(9, "epoch", "7.5"), 9, "'7.5' is not a step", 199),
    "timm, not UTF-8": (SUMMARY, put(9, b"7,\xff\xfe,1,1,1,1,1,1,1,1\r\n"), 9, "not UTF-8", 199),
    "timm, an empty line": (SUMMARY, put(9, b"\r\n"), 9, "cells is 1, the header's 10", 199),
    "timm, quotes": (SUMMARY, put(9, b'7,"a,1,1,1,1,1,1,1,1\r\n'), 9, "the number of cells is 2", 199),
    "timm, epochs lost": (SUMMARY, without(5, 8), 5, "4 rows are missing between the steps 2 and 7", 196),
    "FastTD3, no end": (TRAIN, end_cut(-2), 10, "no end", 8),
    "FastTD3, cut in the middle": (TRAIN, put(4, b"300,38400,1\r\n"), 4, "cells is 3, the header's 20", 8),
    "FastTD3, rows lost": (TRAIN, without(4, 5), 4, "2 rows are missing between the steps 200 and 500", 7),
    "PPO, cut in the middle": (PPO, put(4, b"450000,5\r\n"), 4, "cells is 2, the header's 9", 19),
    "PPO, rows lost": (PPO, without(4, 5), 4, "2 rows are missing between the steps 300000 and 750000", 18),
}
# file, change, the problem's line and words, and the metric that is left out
METRIC_LEFT_OUT = {
    "verl, null": (METRICS, entropy(None), 5, "actor/entropy is not a finite number at step 4", "actor/entropy"),
    "verl, NaN of another logger": (METRICS, entropy(math.nan), 5, "not a finite number", "actor/entropy"),
    "verl, text": (METRICS, entropy("high"), 5, "not a finite number", "actor/entropy"),
    "timm, NaN": (SUMMARY, cell(9, "eval_top1", "nan"), 9, "not a finite number at step 7", "eval_top1"),
    "timm, infinity": (SUMMARY, cell(9, "eval_entropy_min", "inf"), 9, "not a finite number", "eval_entropy_min"),
    "timm, above 100": (SUMMARY, cell(9, "eval_top5", "100.5"), 9, "is 100.5, beyond 0 to 100", "eval_top5"),
    "timm, below 0": (SUMMARY, cell(9, "eval_top1", "-0.1"), 9, "beyond 0 to 100", "eval_top1"),
    "timm, no column": (SUMMARY, rename(b"eval_top5", b"eval_acc5"), None, "has no eval_top5, which", "eval_top5"),
    "FastTD3, NaN": (TRAIN, cell(4, "policy_entropy", "nan"), 4, "number at step 300", "policy_entropy"),
    "PPO, NaN": (PPO, cell(4, "clipped", "nan"), 4, "number at step 450000", "clipped"),
    "FastTD3, no column": (TRAIN, rename(b"policy_entropy", b"e"), None, "has no policy_entropy", "policy_entropy"),
}
# file, change, the problem's line and words
NOT_USED = {
    "verl, empty": (METRICS, nothing, None, "is empty"),
    "verl, validation alone": (METRICS, header_only, None, "has no step"),
    "verl, two writers": (METRICS, interleaved(slice(7, None), slice(2, 7)), 3, "as if two runs wrote"),
    "verl, backwards": (METRICS, lambda rows: rows[:1] + rows[:0:-1], 4, "not a resumption"),
    "timm, no epochs": (SUMMARY, rename(b"epoch", b"era"), 1, "has no column epoch"),
    "timm, header alone": (SUMMARY, header_only, None, "has a header and no row"),
    "timm, empty": (SUMMARY, nothing, None, "is empty"),
    "timm, header not UTF-8": (SUMMARY, put(1, b"epoch,\xff\r\n"), 1, "has no header that can be read"),
    "timm, not text at all": (SUMMARY, lambda rows: [bytes(range(128, 256)) * 9], 1, "no end"),
    "timm, two writers": (SUMMARY, interleaved(slice(101, None), slice(1, 101)), 4, "as if two runs"),
    "FastTD3, backwards": (TRAIN, lambda rows: rows[:5] + rows[3:], 6, "not a resumption"),
    "FastTD3, a step twice": (TRAIN, lambda rows: rows[:5] + rows[4:], 6, "not a resumption"),
    "FastTD3, header alone": (TRAIN, header_only, None, "has a header and no row"),
    "PPO, two writers": (PPO, interleaved(slice(11, None), slice(1, 11)), 4, "as if two runs"),
    "PPO, header alone": (PPO, header_only, None, "has a header and no row"),
    "PPO, no run.json": (INFO, nothing, None, "is missing, or is not JSON"),
    "PPO, run.json cut": (INFO, lambda rows: rows[:5], None, "is missing, or is not JSON"),
    "PPO, run.json of something else": (INFO, lambda rows: [b'{"task": 3}'], None, "task, seed, command, total_steps"),
    "PPO, a number as a word": (INFO, lambda rows: [row.replace(b'"--env"', b"1") for row in rows], None, "command"),
    "PPO, no steps": (INFO, lambda rows: [row.replace(b"3000000", b"0") for row in rows], None, "total_steps cannot"),
    "PPO, another seed": (INFO, lambda rows: [row.replace(b'"1"', b'"2"') for row in rows], None, "the command has 2"),
}


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory, command_of):
    out = tmp_path_factory.mktemp("whole")
    synthetic.verl_run(out / GRPO, range(1, 13))
    for make, file, length in ((synthetic.timm_run, SUMMARY, 200), (synthetic.fasttd3_run, TRAIN, 1000)):
        name = file.split("/")[0]
        make(out / name, command_of(name), length)
    synthetic.control_run(out / PPO_RUN, synthetic.control_runs()[PPO_RUN])
    return out


@pytest.fixture
def damaged(one, whole_runs, tmp_path):
    """damaged(file, change, line, words): the results before and after, and the problems, which name it."""

    def damage(name, change, line, words):
        shutil.copytree(whole_runs / Path(name).parent, tmp_path / Path(name).parent)
        before, problems = one()
        assert before.used and problems == []
        change_lines(tmp_path / name, change)
        after, problems = one()
        place = f"{name}:{line}: " if line else f"{name}: "
        assert any(problem.startswith(place) and words in problem for problem in problems), problems
        return before, after, problems

    return damage


def change_lines(file, change):
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize("case", NOT_USED)
def test_a_log_that_cannot_be_trusted_is_not_used(damaged, case):
    assert not damaged(*NOT_USED[case])[1].used


def test_a_finished_run_whose_csv_was_cut_is_unfinished(damaged):
    _, after, problems = damaged(
        PPO, end_cut(-2), None, "ends at step 2850000, and run.json says that it finished at 30"
    )
    assert after.used and not after.finished and len(problems) == 2


def test_many_bad_lines_are_counted_and_not_listed(one, tmp_path):
    file = synthetic.verl_run(tmp_path / GRPO, range(1, 5)) / "metrics.jsonl"
    change_lines(file, lambda rows: [*rows, *[b"oops\n"] * 500])
    result, problems = one()
    assert len(problems) == 4 and "497 more such lines, the last is 505" in problems[-1] and result.steps == 4


@pytest.mark.parametrize("value", ["1.7e308", "-1e101"])
def test_numbers_too_large_to_be_summed_are_kept_out(one, control_run, value):
    change_column(control_run("h1hand-walk-v0-fasttd3-seed1") / "train.csv", "eval_avg_return", lambda place: value)
    result, problems = one()
    assert result.curves == {} and "beyond -1e+100 to 1e+100 at step 100" in problems[0]


@pytest.mark.parametrize("seconds", [lambda place: "3.0", lambda place: f"{100 - place}", lambda place: "0"])
def test_seconds_that_do_not_grow_are_not_the_time_of_a_step(one, control_run, seconds):
    change_column(control_run("time/h1hand-run-v0-fasttd3-seed1", 2000) / "train.csv", "seconds", seconds)
    result, problems = one()
    assert result.values == {} and any("its seconds do not grow" in problem for problem in problems)


def change_column(file, column, value):
    with file.open() as stream:
        header, *rows = csv.reader(stream)
    for place, row in enumerate(rows):
        row[header.index(column)] = value(place)
    synthetic.write_csv(file, header, rows)


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory, command_of):
    out = tmp_path_factory.mktemp("each")
    synthetic.verl_run(out / GRPO, range(1, 30))
    synthetic.timm_run(out / "time/cifar10-aug-seed42", command_of("time/cifar10-aug-seed42"), 3)
    synthetic.fasttd3_run(out / "h1hand-run-v0-fasttd3-seed1", command_of("h1hand-run-v0-fasttd3-seed1"), 3000)
    synthetic.control_run(out / PPO_RUN, synthetic.control_runs()[PPO_RUN])
    synthetic.evaluation(out / GRPO / "evaluation" / GRPO, ["aime24", "amc23"])
    synthetic.llm_demo(out, "era", steps=20)
    synthetic.vision_demo(out, "baseline")
    synthetic.control_demo(out, "era", steps=600)
    synthetic.rivals(out / "rivals", out / "tables", llm_parts=1)
    for folder in sorted((out / "rivals").iterdir())[1:]:
        shutil.rmtree(folder)
    synthetic.record(out, ["h1hand-run-v0-fasttd3-seed1"])
    return out


PIECES = (b"", b"nan", b"1e999", b"-1", b'"', b"\n", b"\0\0", b"\xff", b"99999999999999999999", b"null", b"[]")


# ---------------------------------------------------------------------------------------------------------- evaluations


def rewrite(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def in_summary(benchmark, **more):
    return lambda at: rewrite(at / "summary.json", lambda data: data["benchmarks"][benchmark].update(more))


def in_settings(**more):
    return lambda at: rewrite(at / "amc23.settings.json", lambda data: data["settings"].update(more))


def removed(*path):
    """Of the summary."""

    def change(data):
        for key in path[:-1]:
            data = data[key]
        data.pop(path[-1])

    return lambda at: rewrite(at / "summary.json", change)


# change, the problem's place and words, the benchmark that is left out; None: the evaluation is not used
EVALUATIONS = {
    "cut": (lambda at: (at / "summary.json").write_text('{"benchmarks": {'), "summary.json:", "is empty or cut", None),
    "empty": (lambda at: (at / "summary.json").write_text(""), "summary.json:1", "is empty or cut", None),
    "no summary": (lambda at: (at / "summary.json").unlink(), "summary.json", "is missing", None),
    "not UTF-8": (lambda at: (at / "summary.json").write_bytes(b"\xff" * 3), "summary.json", "not UTF-8", None),
    "another file": (lambda at: (at / "summary.json").write_text('{"arms": 1}'), "summary.json", "not a summary", None),
    "above 1": (in_summary("amc23", accuracy=1.2), "summary.json", "amc23: accuracy is 1.2", "amc23"),
    "NaN": (in_summary("amc23", accuracy=math.nan), "summary.json", "amc23: accuracy is nan", "amc23"),
    "no accuracy": (removed("benchmarks", "amc23", "accuracy"), "summary.json", "accuracy is None", "amc23"),
    "pass@k above 1": (in_summary("aime24", pass_at={"2": 7}), "summary.json", "aime24: pass@2 is 7", "aime24"),
    "pass@ nothing": (in_summary("aime24", pass_at={"x": 0.5}), "summary.json", "pass@x has no number", "aime24"),
    "incomplete": (in_summary("amc23", complete=False, samples=600), "summary.json", "600 of 640 samples", "amc23"),
    "no benchmark": (removed("benchmarks", "amc23"), "summary.json", "has no amc23, which the ledger", "amc23"),
    "no settings": (lambda at: (at / "amc23.settings.json").unlink(), "summary.json", "no amc23.settings", "amc23"),
    "settings cut": (lambda at: (at / "amc23.settings.json").write_text("{"), "amc23.settings.json:1", "cut", "amc23"),
    "two models": (in_settings(model_sha256="b"), "", "sampled with different model_sha256", None),
    "two seeds": (in_settings(seed=1), "", "sampled with different seed", None),
    "other samples": (in_settings(temperature=1.0), "summary.json", "amc23: the summary is of other samples", "amc23"),
}


@pytest.mark.parametrize("case", EVALUATIONS)
def test_damaged_evaluations(one, tmp_path, case):
    damage, place, words, left_out = EVALUATIONS[case]
    damage(synthetic.evaluation(tmp_path / GRPO, SIX))
    result, problems = one()
    assert any(problem.startswith(f"{GRPO}/{place}".rstrip("/")) and words in problem for problem in problems), problems
    assert result.used is bool(left_out)
    if left_out:
        assert set(result.values) == set(SIX) - {left_out} and f"pass@k/{left_out}" not in result.curves
        assert result.finished is (case not in ("incomplete", "no benchmark"))


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("samples", 4, "samples 4 and not 16"),
        ("temperature", 1.0, "temperature 1.0 and not 0.7"),
        ("max_tokens", 4096, "max_tokens 4096 and not 8192"),
        ("prompt", "training", "prompt training and not boxed"),
        ("problems", 10, "problems 10 and not 30"),
    ],
)
def test_another_protocol_is_not_the_papers(one, tmp_path, key, value, words):
    folder = synthetic.evaluation(tmp_path / GRPO, SIX)
    of_folder = key in ("max_tokens", "prompt")
    for name in SIX if of_folder else ("aime24",):
        rewrite(folder / f"{name}.settings.json", lambda data: data["settings"].update({key: value}))

    def change(data):
        entry = data["benchmarks"]["aime24"]
        (entry if key == "problems" else entry["protocol"])[key] = value
        if of_folder:
            for name in SIX:
                data["benchmarks"][name]["protocol"][key] = value

    rewrite(folder / "summary.json", change)
    result, problems = one()
    assert any(f"aime24: not sampled as in the ledger's runs: {words}" in problem for problem in problems)
    assert "aime24" not in result.values


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"benchmarks": {"aime24": {"problems": ' + "9" * 5000 + "}}}"], ids=["deep", "long"]
)
def test_json_that_python_cannot_hold_is_named(one, tmp_path, text):
    folder = synthetic.evaluation(tmp_path / "eval" / GRPO, ["aime24"])
    (folder / "summary.json").write_text(text)
    (folder / "aime24.settings.json").write_text(text)
    result, problems = one()
    assert not result.used and len(problems) == 2 and all("cannot be read" in problem for problem in problems)


# --------------------------------------------------------------------------------------- rows read by Arrow and by line

# Cells that one of the two readers could take otherwise than the other.
CELLS = [
    "", "1", "2.5", "-0.125", "1e5", "1E-7", "6.02e+23", ".5", "5.", "007", "1e400", "-1e400", "1e-400", "4.9e-324",
    "123456789012345678", "0.1" + "2" * 40,
]  # fmt: skip
BAD_CELLS = [
    "+1", "+2.5", "-5", "--1", "1e", ".", "-", "e5", "1_000", " 1", "1 ", "0x10", "nan", "inf", "NA", "true", '"3"',
    '"', "1\r", "\u0661", "9" * 30,
]  # fmt: skip
ROW = st.lists(st.sampled_from(CELLS), min_size=3, max_size=3).map(lambda cells: ["7", *cells])
BAD_ROW = st.lists(st.sampled_from([*CELLS, *BAD_CELLS]), min_size=0, max_size=6)


def read_both(file, monkeypatch, block):
    """What read_csv finds by Arrow where it can, and line by line; and how many blocks Arrow has read."""
    found, by_arrow, original = [], [], tables._plain_rows
    for by_line in (False, True):

        def plain_rows(*given, by_line=by_line):
            by_arrow.append(None if by_line else original(*given))
            return by_arrow[-1]

        with monkeypatch.context() as patch:
            patch.setattr(tables, "BLOCK", block)
            patch.setattr(tables, "_plain_rows", plain_rows)
            problems = Problems(file)
            log = tables.read_csv(file, "step", ["a", "c"], problems)
        columns = {
            name: (column.steps, column.lines, np.array(column.values).tobytes())
            for name, column in log.columns.items()
        }
        found.append((log.steps, log.lines, log.bad, columns, problems.all()))
    return found[0], found[1], sum(rows is not None for rows in by_arrow)


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
