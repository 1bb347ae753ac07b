# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What is read from folders of results, what is left out, and why."""

import json
import os
import shutil

import numpy as np
import pytest
import synthetic

from ledger import results
from ledger.paper import ROOT

ERA = "HalfCheetah-v4-ppo_era-seed1"
CIFAR = "cifar10-era0.6-seed42"
GRPO = "grpo_qwen2.5_math_7b-seed1"
HAND = "h1hand-walk-v0-fastsac_era-seed1"


def collect(paper, *folders, **more):
    return results.collect(paper, folders, **more)


@pytest.fixture
def one(paper, tmp_path):
    """one(): the only result in the temporary folder."""

    def only():
        (result,) = collect(paper, tmp_path)
        return result

    return only


def rewrite(file, change):
    file.write_bytes(change(file.read_bytes()))


# ------------------------------------------------------------------------------------------------------------- formats


def test_verl(one, tmp_path):
    folder = synthetic.verl_run(tmp_path / GRPO, range(1, 1101))
    result = one()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    entropies = {line["step"]: line["data"]["actor/entropy"] for line in lines if "actor/entropy" in line["data"]}
    assert result.curves["actor/entropy"].to_dict() == entropies and len(entropies) == 1100
    seconds = lines[1]["data"]["timing_s/old_log_prob"]
    assert result.values["timing_s/old_log_prob, first step"] == seconds
    assert (result.name, result.seed, result.steps, result.total) == ("grpo_qwen2.5_math_7b", 1, 1100, 1100)
    assert result.finished and not result.why and result.info["host"] == "verl"


def test_verl_stage_2_begins_behind_stage_1(one, tmp_path):
    synthetic.verl_run(tmp_path / "era_stage2_qwen2.5_math_7b", range(601, 1000))
    result = one()
    assert result.seed is None and not result.finished and result.curves["actor/entropy"].index[0] == 601
    assert "era/response_entropy" in result.curves  # which a claim names


def test_verl_with_more_steps_is_another_run(one, tmp_path):
    synthetic.verl_run(tmp_path / GRPO, range(1, 1201))
    assert "has 1200 steps and the paper's run 1100" in one().why


def test_evaluation(one, tmp_path):
    names = tuple(synthetic.recipe("llm/evaluation/protocol.py").PROTOCOLS)
    folder = synthetic.evaluation(tmp_path / "grpo_qwen2.5_math_7b", names)
    result, summary = one(), json.loads((folder / "summary.json").read_text())["benchmarks"]
    assert result.kind == "evaluation" and result.finished and result.steps == result.total
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


@pytest.mark.parametrize("change", [{"as_paper": False}, {"complete": False}])
def test_a_benchmark_that_is_not_the_papers_or_not_whole_has_no_number(one, tmp_path, change):
    folder = synthetic.evaluation(tmp_path / "grpo_qwen2.5_math_7b", ["aime24", "math500"])
    summary = json.loads((folder / "summary.json").read_text())["benchmarks"]
    synthetic.write_summary(folder, {**summary, "aime24": {**summary["aime24"], **change}})
    assert set(one().values) == {"math500"}


def test_timm(one, tmp_path):
    synthetic.timm_run(tmp_path / CIFAR)
    result = one()
    curve = result.curves["eval_top1"]
    assert result.values["top1"] == curve.iloc[-1] and list(curve.index) == list(range(1, 201))
    assert result.finished and result.seed == 42 and result.intervals == {}


def test_imagenet_has_an_interval_over_its_images(one, tmp_path):
    synthetic.timm_run(tmp_path / "imagenet-seed42")
    result = one()
    share = result.values["top1"] / 100
    assert result.intervals["top1"] == pytest.approx(196 * np.sqrt(share * (1 - share) / 50_000))
    assert result.interval_of == "images"


def test_time_of_a_step(paper, tmp_path):
    synthetic.timm_run(tmp_path / "time/cifar10-aug-seed42", epochs=3, total=3)
    synthetic.fasttd3_run(tmp_path / "time/h1hand-walk-v0-fasttd3-seed1", total=2000)
    found = {result.name: result for result in collect(paper, tmp_path)}
    for name in ("time/cifar10-aug", "time/h1hand-walk-v0-fasttd3"):
        assert found[name].values["seconds of a step"] == pytest.approx(synthetic.STEP_SECONDS, rel=1e-3)
        assert found[name].finished


def test_older_runs_have_no_run_json(paper, tmp_path):
    """What they do not say is unknown, and they count; but for PPO's and SAC's, which always had one."""
    synthetic.timm_run(tmp_path / CIFAR, with_info=False)
    synthetic.fasttd3_run(tmp_path / HAND, with_info=False)
    (synthetic.control_run(tmp_path / ERA) / "run.json").unlink()
    found = {result.info.get("host") or result.folder.name: result for result in collect(paper, tmp_path)}
    timm, ppo, hand = (found[name] for name in (CIFAR, ERA, HAND))
    assert timm.finished and hand.finished and not timm.why and not hand.why and hand.total == 10_000
    assert "no run.json" in ppo.why and not ppo.finished


def test_unfinished(paper, tmp_path):
    synthetic.timm_run(tmp_path / CIFAR, epochs=7)
    synthetic.control_run(tmp_path / ERA, finished=False)
    synthetic.fasttd3_run(tmp_path / HAND, total=10_000)
    rewrite(tmp_path / HAND / "train.csv", lambda text: text[: len(text) // 2])
    assert [result.finished for result in collect(paper, tmp_path)] == [False] * 3


# -------------------------------------------------------------------------------------------------------------- damage


DAMAGE = {
    "a last line without its end": lambda text: text[:-1] + b"1,2",
    "a line with too few cells": lambda text: text.replace(b"\n", b"\n501,1\n", 1),
    "a line with too many cells": lambda text: text.replace(b"\n", b"\n501,1,2,3,4,5,6,7,8,9\n", 1),
    "a repeated header": lambda text: text + text.partition(b"\n")[0] + b"\n",
    "what is no UTF-8": lambda text: text.replace(b"\n", b"\n\xff\xfe,,,,,,\n", 1),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_line_costs_itself_alone(one, tmp_path, change):
    folder = synthetic.control_run(tmp_path / ERA)
    before = one().curves["eval_avg_return"]
    rewrite(folder / "train.csv", change)
    after = one().curves["eval_avg_return"]
    assert after.equals(before) or after.equals(before.iloc[:-1])


@pytest.mark.parametrize("bad", [b"nan", b"inf", b"-inf", b"12..5", b"none"])
def test_a_metric_that_is_not_a_number_is_left_out_of_its_run(one, tmp_path, bad):
    folder = synthetic.control_run(tmp_path / ERA)
    rewrite(folder / "train.csv", lambda text: text + b"10001," + bad + b",1,1,0.5,0.06,0\n")
    result = one()
    assert "eval_avg_return" not in result.curves and "entropy_per_dim" in result.curves


def test_a_number_out_of_its_range_is_left_out(one, tmp_path):
    folder = synthetic.timm_run(tmp_path / CIFAR)
    rewrite(folder / "summary.csv", lambda text: text + b"199,2.0,100.5,99.0,1e-5\n")
    result = one()
    assert "top1" not in result.values and "top5" in result.values


def test_rows_that_a_resumed_training_wrote_again_count_as_written_last(one, tmp_path):
    folder = synthetic.timm_run(tmp_path / CIFAR)
    rewrite(folder / "summary.csv", lambda text: text + b"199,2.0,50.0,99.0,1e-5\n")
    result = one()
    assert result.values["top1"] == 50.0 and len(result.curves["eval_top1"]) == 200


@pytest.mark.parametrize("line", [b'{"step": 9, "data": {"actor/entr', b"[]\n", b"\xff\n", b'{"data": {}}\n'])
def test_a_line_of_verls_that_is_cut_is_passed_over(one, tmp_path, line):
    folder = synthetic.verl_run(tmp_path / GRPO, range(1, 1101))
    before = one().curves["actor/entropy"]
    rewrite(folder / "metrics.jsonl", lambda text: text + line)
    assert one().curves["actor/entropy"].equals(before) and one().finished


@pytest.mark.parametrize("value", ["null", "NaN", "Infinity"])
def test_verl_writes_null_for_nan(one, tmp_path, value):
    folder = synthetic.verl_run(tmp_path / GRPO, range(1, 11))
    line = f'{{"step": 11, "data": {{"actor/entropy": {value}, "timing_s/old_log_prob": 1.0}}}}\n'
    rewrite(folder / "metrics.jsonl", lambda text: text + line.encode())
    result = one()
    assert "actor/entropy" not in result.curves and "timing_s/old_log_prob" in result.curves and result.steps == 11


FILES = {ERA: "train.csv", CIFAR: "summary.csv", "grpo_qwen2.5_math_7b": "summary.json", GRPO: "metrics.jsonl"}
EMPTY_FILES = (b"", b"\n", b"\x00\x00", b"epoch\n", b"[1, 2]", b'{"benchmarks": []}', b'{"benchmarks": {"aime24": 1}}')


@pytest.mark.parametrize("text", EMPTY_FILES)
@pytest.mark.parametrize("name", FILES)
def test_a_file_with_nothing_in_it_gives_no_number(paper, tmp_path, name, text):
    (tmp_path / name).mkdir()
    (tmp_path / name / FILES[name]).write_bytes(text)
    for result in collect(paper, tmp_path):
        assert not result.curves and not result.values and (result.why or not result.finished)


@pytest.mark.parametrize("text", ['{"finished": tr', "[]", '"x"', "\x00"])
def test_a_run_json_that_cannot_be_read_says_nothing(one, tmp_path, text):
    folder = synthetic.timm_run(tmp_path / CIFAR)
    (folder / "run.json").write_text(text)
    result = one()
    assert result.info == {} and result.finished and not result.why


def test_a_pipe_is_not_waited_for(one, tmp_path):
    folder = synthetic.timm_run(tmp_path / CIFAR)
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    os.mkfifo(folder / "train.csv")
    assert one().finished


# ----------------------------------------------------------------------------------------------------- what is left out


def test_runs_that_are_not_the_papers_or_of_modified_code(paper, tmp_path):
    synthetic.timm_run(tmp_path / CIFAR, as_paper=False, added=["--lr", "0.1"])
    synthetic.control_run(tmp_path / ERA, modified=True)
    ppo, timm = collect(paper, tmp_path)
    assert timm.why == "was not trained as the recipe says: --lr 0.1 was added" and "modified code" in ppo.why
    assert [bool(result.why) for result in collect(paper, tmp_path, with_modified=True)] == [False, True]


@pytest.mark.parametrize("info", [{"as_paper": None, "modified": None}, {"as_paper": True, "modified": False}])
def test_what_is_unknown_counts(one, tmp_path, info):
    synthetic.control_run(tmp_path / ERA, **info)
    assert one().why == ""


def test_copies_count_once_under_whatever_seed(paper, tmp_path):
    folder = synthetic.control_run(tmp_path / "a" / ERA)
    shutil.copytree(folder, tmp_path / "b" / ERA)
    shutil.copytree(folder, tmp_path / "b" / ERA.replace("seed1", "seed2"))
    used = [result for result in collect(paper, tmp_path) if not result.why]
    assert [result.folder for result in used] == [folder]
    assert all("to the byte" in result.why for result in collect(paper, tmp_path) if result not in used and result.why)


def test_of_two_with_other_numbers_none_counts(paper, tmp_path):
    synthetic.control_run(tmp_path / "a" / ERA)
    synthetic.control_run(tmp_path / "b" / ERA, rows=10)
    assert all("with other numbers" in result.why for result in collect(paper, tmp_path))


def test_own_results_count_before_those_of_the_repository(paper, tmp_path):
    for seed in (1, 2):
        synthetic.control_run(tmp_path / f"repository/HalfCheetah-v4-ppo-seed{seed}")
    own = synthetic.control_run(tmp_path / "own/HalfCheetah-v4-ppo-seed1", rows=10)
    found = collect(paper, tmp_path / "own", repository=tmp_path / "repository")
    assert [(result.seed, result.from_repository) for result in found if not result.why] == [(1, False), (2, True)]
    synthetic.write_info(own, total_steps=10_000, finished=False)
    found = collect(paper, tmp_path / "own", repository=tmp_path / "repository")
    assert [result.seed for result in found if not result.why and result.finished] == [1, 2], "unfinished takes nothing"


def test_a_copy_of_the_repositorys_under_another_seed_is_no_new_seed(paper, tmp_path):
    folder = synthetic.control_run(tmp_path / "repository/HalfCheetah-v4-ppo-seed1")
    shutil.copytree(folder, tmp_path / "own/HalfCheetah-v4-ppo-seed9")
    found = collect(paper, tmp_path / "own", repository=tmp_path / "repository")
    assert [result.folder for result in found if not result.why] == [folder], "the original"


def test_a_shorter_run_is_no_further_seed(paper, tmp_path):
    for seed in (1, 2):
        synthetic.control_run(tmp_path / f"HalfCheetah-v4-ppo-seed{seed}")
    synthetic.control_run(tmp_path / "HalfCheetah-v4-ppo-seed3", total=5000)
    assert [result.why for result in collect(paper, tmp_path)] == [
        *("", ""),
        "was asked for 5000 steps, and the other runs of its row for 10000",
    ]


WRONG = {"seed": 7, "total_steps": "abc", "finished": "yes", "hardware": [1]}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_of_run_json_is_named(one, tmp_path, field):
    synthetic.write_info(synthetic.control_run(tmp_path / ERA), **{"total_steps": 10_000, field: WRONG[field]})
    assert one().why.startswith("run.json") and field in one().why


def test_what_is_not_searched(paper, tmp_path):
    synthetic.control_run(tmp_path / ERA / "interrupted-1" / ERA)
    synthetic.control_run(tmp_path / "demo/some-other-name-seed1")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert collect(paper, tmp_path) == []


def test_the_repositorys_own_results_can_be_read(paper):
    found = collect(paper, repository=ROOT / "records")
    assert len(found) >= 6 and all(result.finished and not result.why for result in found)
