# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What is read from folders of results, what is left out, and why."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
import synthetic

from ledger import results
from ledger.paper import ROOT
from ledger.verdicts import Judged
from recipes.control.sac import SAC
from recipes.llm import evaluate

ERA = "HalfCheetah-v4-ppo_era-seed1"
CIFAR = "cifar10-era0.6-seed42"
GRPO = "grpo_qwen2.5_math_7b-seed1"
AIME = "grpo_qwen2.5_math_7b"


def collect(paper, *folders, **more):
    return results.collect(paper, folders, **more)


@pytest.fixture
def one(paper, tmp_path):
    """one(): the only result in the temporary folder."""

    def only():
        (result,) = collect(paper, tmp_path)
        return result

    return only


# ------------------------------------------------------------------------------------------------------------- formats


def test_verl(one, tmp_path):
    folder = synthetic.verl_run(tmp_path / GRPO, range(1, 1101))
    result = one()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    entropies = {line["step"]: line["data"]["actor/entropy"] for line in lines if "actor/entropy" in line["data"]}
    assert result.curves["actor/entropy"].to_dict() == entropies and len(entropies) == 1100
    assert result.values["timing_s/old_log_prob, first step"] == lines[1]["data"]["timing_s/old_log_prob"]
    assert (result.name, result.seed, result.steps, result.total) == ("grpo_qwen2.5_math_7b", 1, 1100, 1100)
    assert result.finished and not result.why


def test_a_longer_run_of_verl_is_not_the_papers(one, tmp_path):
    synthetic.verl_run(tmp_path / GRPO, range(1, 1111))
    assert one().why == "has 1110 steps, and the paper's run 1100"


@pytest.mark.parametrize("first, why", [(601, ""), (700, "has no metrics of step 601, the first")])
def test_verl_stage_2_begins_behind_stage_1(one, tmp_path, first, why):
    synthetic.verl_run(tmp_path / "era_stage2_qwen2.5_math_7b", range(first, 1101))
    result = one()
    assert result.seed is None and result.curves["actor/entropy"].index[0] == first and result.why == why


def test_evaluation(one, tmp_path):
    names = tuple(evaluate.PROTOCOLS)
    folder = synthetic.evaluation(tmp_path / "grpo_qwen2.5_math_7b", names)
    result, summary = one(), json.loads((folder / "summary.json").read_text())["benchmarks"]
    assert result.is_evaluation and result.finished and result.steps == result.total
    for name, benchmark in summary.items():
        assert result.values[name] == pytest.approx(100 * benchmark["accuracy"])
        assert result.intervals[name] == pytest.approx(196 * benchmark["standard_error"])
    six = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
    assert result.values["average"] == pytest.approx(np.mean([result.values[name] for name in six]))
    squares = [result.intervals[name] ** 2 for name in six]
    assert result.intervals["average"] == pytest.approx(np.sqrt(sum(squares)) / 6)


def test_pass_at_k(one, tmp_path):
    folder = synthetic.evaluation(tmp_path / "grpo_qwen2.5_math_7b-pass", ["aime24"], samples=64)
    summary = json.loads((folder / "summary.json").read_text())["benchmarks"]
    curve = one().curves["pass@k/aime24"]
    assert list(curve.index) == [1, 2, 4, 8, 16, 32, 64]
    assert curve[64] == pytest.approx(100 * summary["aime24"]["pass_at"]["64"])
    synthetic.write_summary(folder, {"aime24": {**summary["aime24"], "pass_at": {}}})
    assert one().without == {"pass@k/aime24": "k is not 1, 2, 4 and so on, up to the samples of a problem"}


def test_a_benchmark_that_is_not_the_papers_has_no_number(one, tmp_path):
    folder = synthetic.evaluation(tmp_path / "grpo_qwen2.5_math_7b", ["aime24", "math500"])
    summary = json.loads((folder / "summary.json").read_text())["benchmarks"]
    synthetic.write_summary(folder, {**summary, "aime24": {**summary["aime24"], "as_paper": False}})
    assert set(one().values) == {"math500"} and one().why == ""


def test_timm(one, tmp_path):
    synthetic.timm_run(tmp_path / "imagenet-seed42")
    result = one()
    curve = result.curves["eval_top1"]
    assert result.values["top1"] == curve.iloc[-1] and list(curve.index) == list(range(1, 201))
    assert result.finished and result.seed == 42
    share = result.values["top1"] / 100
    assert result.intervals["top1"] == pytest.approx(196 * np.sqrt(share * (1 - share) / 50_000)), "over its images"


def test_fasttd3_evaluates_in_some_rows_and_ends_lines_as_csv_does(one, tmp_path):
    folder = synthetic.fasttd3_run(tmp_path / "h1hand-walk-v0-fasttd3-seed1")
    with (folder / "train.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["eval_avg_return"]]
    returns = {int(row["global_step"]): float(row["eval_avg_return"]) for row in rows}
    assert one().curves["eval_avg_return"].to_dict() == returns and len(returns) == 19
    assert b"\r\n" in (folder / "train.csv").read_bytes()


def test_time(paper, tmp_path):
    synthetic.timm_run(tmp_path / "time/cifar10-aug-seed42", epochs=3, total=3)
    synthetic.fasttd3_run(tmp_path / "time/h1hand-walk-v0-fasttd3-seed1", total=2000)
    found = {result.name: result.values for result in collect(paper, tmp_path)}
    thousand = found["time/cifar10-aug"]["seconds of 1,000 images"]
    assert thousand == pytest.approx(synthetic.SECONDS_OF_1000_IMAGES, rel=1e-4)
    step = found["time/h1hand-walk-v0-fasttd3"]["seconds of a step"]
    assert step == pytest.approx(synthetic.STEP_SECONDS, rel=1e-4)


# -------------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    "steps, bad, why",
    [
        ("5000", "nan", "nan in step 5000 is not a finite number"),
        ("5000", "-inf", "-inf in step 5000 is not a finite number"),
        ("5000", "", "step 5000 has no value"),
        ("[0-9]{1,4}", "", "step 500 has no value"),  # the first half
        ("10000", "", "step 10000 has no value"),
        ("[0-9]*500", "", "step 500 has no value"),  # every second one
    ],
)
def test_a_metric_that_diverged_or_has_a_gap_is_left_out_of_its_run_and_named(paper, one, tmp_path, steps, bad, why):
    file = synthetic.control_run(tmp_path / "HalfCheetah-v4-ppo-seed1") / "train.csv"
    file.write_text(re.sub(f"(?m)^({steps}),[^,]*,", rf"\1,{bad},", file.read_text()))
    result = one()
    assert list(result.curves) == ["entropy_per_dim"] and not result.why
    ((_, said),) = Judged(paper, [result]).left_out()
    assert said == f"counts without eval_avg_return: {why}"


@pytest.mark.parametrize("value", [b"null", b"NaN", b"Infinity"])
def test_verl_writes_null_for_nan(one, tmp_path, value):
    folder = synthetic.verl_run(tmp_path / GRPO, range(1, 1100))
    line = b'{"step": 1100, "data": {"actor/entropy": %s, "timing_s/old_log_prob": 1.0}}\n' % value
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(line)
    result = one()
    assert "actor/entropy" not in result.curves and "timing_s/old_log_prob" in result.curves and result.steps == 1100


@pytest.mark.parametrize("text", [b"", b"epoch\n", b"[1, 2]", b'{"benchmarks": {"aime24": 1}}'])
@pytest.mark.parametrize(
    "name, file",
    [(ERA, "train.csv"), (CIFAR, "summary.csv"), (GRPO, "metrics.jsonl"), ("grpo_qwen2.5_math_7b", "summary.json")],
)
def test_a_file_with_nothing_in_it_is_named_and_the_others_are_read(paper, tmp_path, name, file, text):
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_bytes(text)
    good = synthetic.control_run(tmp_path / "HalfCheetah-v4-ppo-seed1")
    found = collect(paper, tmp_path)
    assert [result.folder for result in found if not result.why and result.finished] == [good] and len(found) == 2


def cut(file, lines):
    """Keeps these lines of a file, as an interrupted copy does."""
    kept = np.array(file.read_text().splitlines(keepends=True))[lines]
    file.write_text("".join(kept))


def of_summary(folder, **change):
    summary = json.loads((folder / "summary.json").read_text())["benchmarks"]
    synthetic.write_summary(folder, {"aime24": {**summary["aime24"], **change}})


def without_returns(at):
    text = (at / "train.csv").read_text().splitlines(keepends=True)
    rows = [",".join([row.split(",")[0], "", *row.split(",")[2:]]) for row in text[1:]]
    (at / "train.csv").write_text("".join([text[0], *rows]))


HALVES = {  # ../test_whole.py has what else a run can lack
    "no value of the metric": (ERA, without_returns, "has no values of eval_avg_return"),
    "an evaluation": (AIME, lambda at: of_summary(at, samples=96), "96 of 480 samples of aime24"),
}


@pytest.mark.parametrize("name, damage, why", HALVES.values(), ids=HALVES)
def test_half_a_run_neither_counts_nor_displaces_the_repositorys_own(paper, tmp_path, name, damage, why):
    for place in ("own", "repository"):
        folder = tmp_path / place / name
        if name == ERA:
            synthetic.control_run(folder)
        else:
            synthetic.evaluation(folder, ["aime24"])
    damage(tmp_path / "own" / name)
    own, whole = collect(paper, tmp_path / "own", repository=tmp_path / "repository")
    assert why in own.why and not own.finished
    assert whole.finished and not whole.why and whole.from_repository


@pytest.mark.parametrize("rows, counts", [(slice(151), True), (slice(101), True), (slice(100), False), (None, False)])
def test_a_longer_run_counts_at_its_epoch_if_all_before_is_there(paper, one, tmp_path, rows, counts):
    folder = synthetic.timm_run(tmp_path / "imagenet-era0.9-seed42", epochs=150)
    lines = (folder / "summary.csv").read_text().splitlines(keepends=True)
    kept = lines[:50] + lines[60:151] if rows is None else lines[rows]
    (folder / "summary.csv").write_text("".join(kept))
    result = one()
    assert bool(Judged(paper, [result]).counted()) == counts and bool(result.why) != counts


def test_the_log_of_a_timed_run_must_have_all_epochs(one, tmp_path):
    folder = synthetic.timm_run(tmp_path / "time/cifar10-aug-seed42", epochs=3, total=3)
    cut(folder / "log.txt", slice(4))
    assert one().why == "log.txt does not have the speed of epoch 2"
    (folder / "log.txt").write_bytes(b"\xff")
    assert one().why.startswith("cannot be read (UnicodeDecodeError")


# ----------------------------------------------------------------------------------------------------- what is left out


@pytest.mark.parametrize(
    "info, why",
    [
        ({"as_paper": False, "added": ["--lr", "0.1"]}, "but with --lr 0.1"),
        ({"modified": True}, "modified code"),
        ({"seed": 7}, "says seed 7"),
        ({"task": "Hopper-v4"}, "says task Hopper-v4"),
        ({"task": "HalfCheetah-v4", "agent": "ppo"}, "and agent ppo, and the folder's name HalfCheetah-v4-ppo_era"),
        ({"agent": "ppo", "as_paper": None}, ""),
        ({"as_paper": None, "modified": None}, ""),
    ],
)
def test_what_run_json_says(one, tmp_path, info, why):
    synthetic.control_run(tmp_path / ERA, **info)
    assert why in one().why and bool(why) == bool(one().why)


def test_with_modified_takes_them_and_without_run_json_nothing_counts(paper, one, tmp_path):
    folder = synthetic.control_run(tmp_path / ERA, modified=True)
    (result,) = collect(paper, tmp_path, with_modified=True)
    assert result.why == ""
    (folder / "run.json").unlink()
    assert "no run.json" in one().why


def test_copies_count_once_under_whatever_seed_and_so_do_two_of_one_seed(paper, tmp_path):
    folder = synthetic.control_run(tmp_path / "a" / ERA)
    shutil.copytree(folder, tmp_path / "b" / ERA)
    shutil.copytree(folder, tmp_path / "b" / ERA.replace("seed1", "seed2"))
    synthetic.control_run(tmp_path / "c" / ERA, rows=10)
    found = collect(paper, tmp_path)
    assert [result.folder for result in found if not result.why] == [folder] and len(found) == 4
    assert all(str(folder) in result.why for result in found[1:])


def test_own_results_count_before_those_of_the_repository_and_unfinished_ones_displace_nothing(paper, tmp_path):
    for seed in (1, 2):
        synthetic.control_run(tmp_path / f"repository/HalfCheetah-v4-ppo-seed{seed}")
    own = synthetic.control_run(tmp_path / "own/HalfCheetah-v4-ppo-seed1", rows=10)
    info = json.loads((own / "run.json").read_text())
    for finished, expected in ((True, [(1, False), (2, True)]), (False, [(1, True), (2, True)])):
        (own / "run.json").write_text(json.dumps({**info, "finished": finished}))
        found = collect(paper, tmp_path / "own", repository=tmp_path / "repository")
        used = [(result.seed, result.from_repository) for result in found if not result.why and result.finished]
        assert used == expected


def test_a_shorter_run_is_not_a_further_seed(paper, tmp_path):
    for seed, total in ((1, 10_000), (2, 10_000), (3, 5_000)):
        synthetic.control_run(tmp_path / f"HalfCheetah-v4-ppo-seed{seed}", total=total)
    assert [result.why for result in collect(paper, tmp_path)] == [
        *("", ""),
        "was asked for 5000 steps, and other runs of its row for 10000",
    ]


def test_what_is_not_of_the_paper_is_passed_over(paper, tmp_path):
    synthetic.control_run(tmp_path / ERA / "interrupted-1")
    for experiment in SAC.apart:  # shorter runs of the paper's agents
        synthetic.control_run(tmp_path / experiment / ERA)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert collect(paper, tmp_path) == []


def test_a_run_belongs_to_the_entry_that_its_run_json_names(paper, tmp_path):
    """Whatever its folder is called, but for the files that a launcher has set aside."""
    known = {"entry": "HalfCheetah-v4-ppo_era", "task": "HalfCheetah-v4", "agent": "ppo_era", "seed": 1}
    synthetic.control_run(tmp_path / "my copy", **known)
    synthetic.control_run(tmp_path / "my copy/interrupted-1", **known)
    synthetic.control_run(tmp_path / "HalfCheetah-v4-ppo-seed3", **{**known, "entry": "alpha/HalfCheetah-v4-ppo_era"})
    synthetic.timm_run(tmp_path / "cifar10-aug-seed42", 3, 3)
    record = json.loads((tmp_path / "cifar10-aug-seed42/run.json").read_text()) | {"entry": "time/cifar10-aug"}
    (tmp_path / "cifar10-aug-seed42/run.json").write_text(json.dumps({**record, "seed": 42}))
    found = collect(paper, tmp_path)
    assert [(result.name, result.seed, result.why) for result in found] == [
        ("time/cifar10-aug", 42, ""),
        ("HalfCheetah-v4-ppo_era", 1, ""),
    ]
    assert found[0].values["seconds of 1,000 images"] > 0
    synthetic.write_info(tmp_path / "my copy", **{**known, "host": "ppo", "total_steps": 10_000, "agent": "ppo"})
    why = "run.json says task HalfCheetah-v4 and agent ppo, and the entry HalfCheetah-v4-ppo_era"
    assert [result.why for result in collect(paper, tmp_path / "my copy")] == [why]
    record = {name: value for name, value in known.items() if name != "seed"}
    (tmp_path / "my copy/run.json").write_text(json.dumps(record))
    assert [result.why for result in collect(paper, tmp_path / "my copy")] == ["run.json has lost its seed"]


def test_the_repositorys_own_results_can_be_read(paper):
    found = collect(paper, repository=ROOT / "records")
    assert len(found) >= 6 and all(result.finished and not result.why for result in found)
