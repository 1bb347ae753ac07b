"""collect: the folders of every tool read as the tools' own tables read them, and compared with one another."""

import csv
import importlib
import json
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from ledger import collect as collecting
from ledger import results, verdicts
from ledger.collect import collect
from ledger.errors import LedgerError
from ledger.readers import tables
from tools.bench import synthetic

SIX = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
GRPO, NO_TOP_K = "grpo_qwen2.5_math_7b", "era_no_top_k_qwen2.5_math_7b"
WALK, DIGITS = "h1hand-walk-v0-fastsac_era-seed1", "cifar10-era0.6-seed42"


def used(collected):
    return sorted(Path(result.folder).parts[-2:] for result in collected.results if result.used)


# ---------------------------------------------------------------------------------------------------------- the formats


def test_verl_log_of_its_own_logger(one, tmp_path, monkeypatch):
    """Killed at step 23 and resumed from the checkpoint of step 20, with a NaN that the resumed run wrote over."""
    file = tmp_path / f"{NO_TOP_K}-seed3/metrics.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(file))
    module = synthetic.recipe("verl/verl/utils/file_logger.py")
    rng, expected = np.random.default_rng(0), {}
    others = {f"era/{name}": 0.01 for name in ("rest_entropy", "low_fraction", "high_fraction")}
    for steps in (range(1, 24), range(21, 601)):
        logger = module.FileLogger("ERA", "x")
        logger.log({"val-core/acc": 0.5}, steps[0] - 1)
        for step in steps:
            expected[step] = math.nan if steps[0] == 1 and step == 22 else float(rng.random())
            logger.log({"era/response_entropy": np.float32(expected[step]), **others}, step)
        logger._file.write(b'{"step": 601, "da')  # the kill
        logger._file.close()
    file.write_bytes(file.read_bytes()[:-17])
    result, problems = one()
    assert problems == [] and (result.name, result.seed) == (NO_TOP_K, 3)
    assert (result.steps, result.total, result.finished) == (600, 600, True)
    curve = result.curves["era/response_entropy"]
    assert curve.rows == 600 and len(curve.x) == results.MOST_POINTS and curve.x[-1] == 600
    sizes = np.diff([0, *curve.x]).astype(int)
    values = np.array([np.float32(expected[step]) for step in range(1, 601)], dtype=float)
    parts = np.split(values, np.cumsum(sizes)[:-1])
    assert np.allclose(curve.y, [part.mean() for part in parts]) and set(sizes) == {1, 2}
    assert curve.low == [part.min() for part in parts] and curve.high == [part.max() for part in parts]


def test_first_step_is_the_first_of_the_log_and_its_last_value(one, tmp_path):
    file = synthetic.verl_run(tmp_path / GRPO, range(1, 5)) / "metrics.jsonl"
    with file.open("a") as stream:
        stream.write("\n".join(synthetic.verl_lines(range(1, 4), seed=9)) + "\n")
    result, problems = one()
    expected = [json.loads(line)["data"].get("timing_s/old_log_prob") for line in file.read_text().splitlines()]
    assert result.values == {"timing_s/old_log_prob, first step": expected[6]} and problems == []
    assert not result.finished and result.steps == 4


def test_second_stage_begins_where_the_first_ends(one, tmp_path):
    synthetic.verl_run(tmp_path / "era_stage2_qwen2.5_math_7b", range(601, 1101))
    result, problems = one()
    assert problems == [] and result.finished and result.curves["actor/entropy"].x[0] in (601, 602)


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


def test_evaluation_in_percent_and_the_papers_average(one, tmp_path):
    folder = synthetic.evaluation(tmp_path / GRPO, [*SIX, "arc_c", "gpqa_diamond", "mmlu_pro"])
    summary = json.loads((folder / "summary.json").read_text())
    benchmarks = summary["benchmarks"]
    result, problems = one()
    assert problems == [] and result.kind == "evaluation" and result.finished and result.interval_of == "problems"
    values = {name: 100 * entry["accuracy"] for name, entry in benchmarks.items()}
    assert result.values == {**values, "average": pytest.approx(100 * summary["paper_average"])}
    low, high = benchmarks["amc23"]["interval_95"]
    assert result.intervals["amc23"] == pytest.approx(50 * (high - low))
    errors = [benchmarks[name]["standard_error"] for name in SIX]
    assert result.intervals["average"] == pytest.approx(196 * np.linalg.norm(errors) / 6)
    assert result.steps == result.total == 30 * 16 * 2 + 40 * 16 + 500 + 272 + 675 + 1172 + 198 + 12032
    curve = result.curves["pass@k/aime24"]
    assert curve.x == [1, 2, 4, 8, 16] and curve.y[0] == pytest.approx(result.values["aime24"])


def test_pass_at_k(one, tmp_path):
    folder = synthetic.evaluation(tmp_path / f"{GRPO}-pass", ["aime24", "aime25"], samples=256)
    pass_at = json.loads((folder / "summary.json").read_text())["benchmarks"]["aime25"]["pass_at"]
    result, problems = one()
    curve = result.curves["pass@k/aime25"]
    assert problems == [] and curve.x == [2**i for i in range(9)]
    assert curve.y == [100 * pass_at[str(k)] for k in curve.x]


def test_timm_run_as_the_recipes_table_has_it(one, timm_run):
    folder, columns = timm_run(), synthetic.timm_columns(era=True)
    with (folder / "summary.csv").open("a", newline="") as stream:  # killed in the last epoch and resumed
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerow(synthetic.timm_row(columns, 199, 200, np.random.default_rng(5)))
    result, problems = one()
    _, rows = synthetic.recipe("timm/recipes/era/results.py").read_summary(folder / "summary.csv")
    assert problems == [] and (result.name, result.seed) == ("cifar10-era0.6", 42)
    assert (result.steps, result.total, result.finished) == (200, 200, True)
    assert result.values == {"top1": float(rows[199]["eval_top1"]), "top5": float(rows[199]["eval_top5"])}
    curve = result.curves["eval_entropy_min"]
    assert curve.x == list(range(1, 201)) and curve.y == curve.low == curve.high
    assert curve.y == [float(rows[epoch]["eval_entropy_min"]) for epoch in range(200)]
    assert result.intervals == {} and result.interval_of == ""


def test_imagenet_has_the_binomial_interval_and_other_classes_do_not(ledger, timm_run, command_of, tmp_path):
    timm_run("imagenet-seed42")
    synthetic.timm_run(tmp_path / "imagenet-10classes-seed42", command_of("imagenet-seed42"))
    collected = collect(ledger, [tmp_path])
    (result,), (own,) = (collected.of(name, "training") for name in ("imagenet", "imagenet-10classes"))
    margin = synthetic.recipe("timm/recipes/era/results.py")._binomial_margin
    expected = {name: pytest.approx(margin(value)) for name, value in result.values.items()}
    assert result.interval_of == "images" and result.intervals == expected
    assert own.intervals == {} and not own.used and "not in the ledger" in collected.problems[0].text


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
    assert result.finished is finished and result.used and problems == []
    assert result.curves["eval_top1"].x[-1] == epochs


def test_time_of_a_step_is_that_of_the_recipes_tables(one, timm_run, control_run, monkeypatch, project_root):
    folder = timm_run("time/cifar10-aug-era0.6-seed42", epochs=3)
    result, problems = one()
    speeds = synthetic.recipe("timm/recipes/era/results.py").speeds(folder / "log.txt")
    rate, seconds = 2 / (1 / speeds[1][1] + 1 / speeds[2][1]), result.values["seconds of a step"]
    assert problems == [] and result.finished and result.name == "time/cifar10-aug-era0.6"
    assert seconds == pytest.approx(256 / rate) == pytest.approx((speeds[1][0] + speeds[2][0]) / 2, rel=2e-3)
    shutil.rmtree(folder.parent)
    folder = control_run("time/h1hand-run-v0-fasttd3-seed1", total=2000)
    result, problems = one()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(project_root / "overlays/fasttd3/recipes/era")
        expected = importlib.import_module("results").milliseconds_per_step(folder)
    for name in ("results", "runs"):
        del sys.modules[name]
    assert problems == [] and result.finished and result.values == {"seconds of a step": pytest.approx(expected / 1000)}


@pytest.mark.parametrize("total, models, finished", [(1000, True, True), (1000, False, True), (1001, True, False)])
def test_fasttd3_is_finished_at_its_last_logged_step(one, control_run, total, models, finished):
    folder = control_run(total=1000, models=models)
    (folder / "log.txt").write_text(f"Args(total_timesteps={total})\n")
    result, _ = one()
    assert result.finished is finished and result.used
    if models:
        (folder / "models/run_final.pt").write_bytes(b"PK\x03\x04 and no end")
        assert not one()[0].finished


def test_flags_of_a_machine_without_gpus_change_nothing(one, host_run):
    command = host_run("dog-run-tdmpc2_era-seed1") / "run.json"
    info = json.loads(command.read_text())
    for added, used in (["device=cpu", "compile=false"], True), (["eval_freq=100"], False):
        command.write_text(json.dumps({**info, "command": [*info["command"], *added]}))
        assert one()[0].used is used


def test_a_resumed_run_of_ppo_counts_its_later_rows(one, host_run):
    folder = host_run()
    head, *lines = (folder / "train.csv").read_text().splitlines(keepends=True)
    earlier = [line.replace(",", ",1", 1) for line in lines[3:6]]
    (folder / "train.csv").write_text("".join([head, *lines[:3], *earlier, *lines[3:]]))
    result, problems = one()
    assert problems == [] and result.used and result.finished
    assert result.curves["eval_avg_return"].y == [float(line.split(",")[1]) for line in lines]


# ------------------------------------------------------------------------------------------- results beside one another


def test_copies_count_once_and_differing_ones_not_at_all(ledger, timm_run, tmp_path):
    timm_run(at=tmp_path / "here")
    other = timm_run(at=tmp_path / "there")
    collected = collect(ledger, [tmp_path])
    assert used(collected) == [("here", DIGITS)]
    (problem,) = collected.problems
    assert problem.file == str(other) and "it counts once" in problem.text
    text = (other / "summary.csv").read_text()
    (other / "summary.csv").write_text(text.replace("\n199,0.", "\n199,1."))
    collected = collect(ledger, [tmp_path])
    assert used(collected) == [] and len(collected.problems) == 2
    assert all("none of them is used" in problem.text for problem in collected.problems)


def test_results_of_the_repository_give_way_to_finished_ones_of_the_users_own(ledger, host_run, tmp_path):
    """One by one; what is not finished, or not used, takes no one's place."""
    repository, own = tmp_path / "records", tmp_path / "own"
    name = "HalfCheetah-v4-ppo_era-seed{}"
    for seed in (1, 2, 3, 4):
        host_run(name.format(seed), repository / "control-ppo")
    host_run(name.format(1), own, rows=30)
    host_run(name.format(2), own, rows=30, finished=False)
    host_run(name.format(3), own, command=["PPO_continuous_main.py", "--max_train_steps", "2000"])
    shutil.copytree(repository / "control-ppo" / name.format(4), own / name.format(4))
    collected = collect(ledger, [own], repository=repository)
    found = {(result.from_repository, result.seed): result for result in collected.results}
    places = {key: (result.used, result.finished) for key, result in found.items()}
    assert places == {
        (True, 1): (False, True), (False, 1): (True, True), (True, 2): (True, True), (False, 2): (True, False),
        (True, 3): (True, True), (False, 3): (False, True), (True, 4): (False, True), (False, 4): (True, True),
    }  # fmt: skip
    texts = [problem.text for problem in collected.problems]
    assert len(texts) == 3 and sum("yours counts" in text for text in texts) == 2
    outcome = verdicts.judge(ledger, collected).outcomes["ppo-era/HalfCheetah-v4"]
    assert outcome.seeds == 4 and "came with the repository: 2 of 4 runs" in outcome.notes


def test_without_a_folder_of_the_repository_nothing_is_missed(ledger, tmp_path):
    assert collect(ledger, [], repository=tmp_path / "records").results == []


def test_a_copy_under_another_seeds_name_is_not_another_seed(ledger, tmp_path):
    lines = synthetic.verl_lines(range(1, 1101))
    for seed in (0, 1, 2):
        file = synthetic.verl_run(tmp_path / f"{GRPO}-seed{seed}", range(1, 11)) / "metrics.jsonl"
        file.write_text("\n".join(lines[: len(lines) - 100 * (seed == 2)]) + "\n")
    collected = collect(ledger, [tmp_path])
    assert [result.used for result in collected.results] == [True, False, True]  # the last one is of fewer steps
    texts = [problem.text for problem in collected.problems if problem.file.endswith("seed1")]
    assert any("seed0 to the byte: it is not another seed" in text for text in texts)


def test_folders_given_twice_or_within_one_another_are_read_once(ledger, timm_run, tmp_path):
    folder = timm_run(at=tmp_path / "a")
    collected = collect(ledger, [tmp_path, tmp_path / "a", folder, tmp_path])
    assert len(collected.results) == 1 and collected.problems == []


def test_names_of_a_result_given_as_the_working_folder(ledger, timm_run, monkeypatch):
    monkeypatch.chdir(timm_run("time/cifar10-aug-seed42", epochs=3))
    (result,) = collect(ledger, [Path(".")]).results
    assert (result.name, result.seed) == ("time/cifar10-aug", 42)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("\n", " --epochs 1 --model test_resnet\n", "the command has --epochs 1 --model test_resnet beside the"),
        ("\n", " --lr=0.1\n", "the command has --lr=0.1 beside the recipe's"),
        ("\n", " --workers 8 --log-interval=1 -j 2\n", ""),
        ("../data", "/data/cifar", ""),
        ("train.sh 4", "train.sh 1", "the command has 1 where"),
        ("--seed 42", "--seed 43", "has seed 43, and the folder's name 42"),
        ("-entropy 0.6", "-entropy 0.3", "the command has 0.3"),
        ("--seed", "'--seed", "not a command that can be read"),
    ],
)
def test_another_command_than_the_recipes(one, timm_run, old, new, words):
    """A smoke run has the name of the paper's."""
    file = timm_run() / "command.txt"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    result, problems = one()
    assert result.used is not bool(words) and [words in problem for problem in problems] == [True] * bool(words)


def test_fasttd3_with_other_steps_than_the_recipes(one, control_run):
    file = control_run() / "command.txt"
    file.write_text(file.read_text().strip() + " --total_timesteps 1000\n")
    result, problems = one()
    assert not result.used and "--total_timesteps 1000 beside the recipe's" in problems[0]


def test_seeds_of_other_lengths_are_not_averaged(ledger, control_run, tmp_path):
    name = WALK.removesuffix("-seed1")
    for seed, total in ((1, 1000), (2, 1000), (3, 2000)):
        (control_run(f"{name}-seed{seed}", total) / "command.txt").unlink()
    collected = collect(ledger, [tmp_path])
    assert used(collected) == []
    texts = [problem.text for problem in collected.problems]
    for seed, total, others in ((1, 1000, "3"), (2, 1000, "3"), (3, 2000, "1, 2")):
        said = f"seed {seed} of {name} was trained otherwise ({total} steps) than seed {others}: none of them is used"
        assert any(text.startswith(said) for text in texts), texts
    assert sum("nothing says that this was trained as the recipe says" in text for text in texts) == 3


def test_unknown_names_are_listed(one, tmp_path):
    synthetic.verl_run(tmp_path / "my_own_task-seed1", range(1, 4))
    result, problems = one()
    said = "my_own_task-seed1: the training 'my_own_task' is not in the ledger, so it is not used"
    assert not result.used and problems == [said]


# -------------------------------------------------------------------------------------------------------------- records


def test_the_newest_record_tells_how_a_run_ended(ledger, control_run, tmp_path):
    control_run()
    other = control_run("h1hand-run-v0-fasttd3-seed1")
    (other / "models/run_final.pt").unlink()
    both = [WALK, other.name]
    synthetic.record(tmp_path, both, "2026-11-20T10:00:00+00:00", 130, state="interrupted")
    synthetic.record(tmp_path, both, "2026-11-21T10:00:00+00:00", 1, log_tail=["CUDA error", "the end"])
    collected = collect(ledger, [tmp_path])
    unfinished, finished = collected.results
    assert (unfinished.failed, unfinished.log_tail) == (True, ("CUDA error", "the end"))
    assert (unfinished.state, unfinished.hardware) == ("clean", "8 NVIDIA H20")
    assert (finished.failed, finished.log_tail, finished.used) == (False, (), True) and collected.problems == []
    assert [record["state"] for record in collected.records] == ["interrupted", "failed"]


def test_modified_copy_does_not_keep_out_the_clean_one(ledger, control_run, tmp_path):
    control_run(at=tmp_path / "clean")
    control_run(at=tmp_path / "modified", seed=5)
    synthetic.record(tmp_path / "modified", [WALK], modified=True)
    collected = collect(ledger, [tmp_path])
    assert used(collected) == [("clean", WALK)] and len(collected.problems) == 1


def test_results_of_a_modified_checkout_are_kept_out_unless_asked_for(ledger, control_run, tmp_path):
    """Also after a later start with a clean checkout, which may have found the run finished."""
    control_run()
    checkout = {"state": "modified", "files": ["fast_td3/train.py"], "commits": []}
    changed = {"modified": True, "checkouts": {"fasttd3": checkout}}
    file = synthetic.record(tmp_path, [WALK], "2026-11-20T10:00:00+00:00", **changed)
    synthetic.record(tmp_path, [WALK], "2026-11-21T10:00:00+00:00")
    collected = collect(ledger, [tmp_path])
    assert [(result.state, result.used) for result in collected.results] == [("modified", False)]
    (problem,) = collected.problems
    assert problem.file == str(file) and "modified checkout (fasttd3/fast_td3/train.py)" in problem.text
    collected = collect(ledger, [tmp_path], with_modified=True)
    assert [(result.state, result.used) for result in collected.results] == [("modified", True)]
    assert collected.problems == []


def test_failed_runs_without_a_result_stay_in_the_records(ledger, tmp_path):
    synthetic.record(tmp_path, [WALK], exit_code=1, log_tail=["no GPU"])
    collected = collect(ledger, [tmp_path])
    assert collected.results == [] and [record["log_tail"] for record in collected.records] == [["no GPU"]]


@pytest.mark.parametrize(
    "key, value",
    [
        ("variables", {"A": 3}),
        ("seeds", ["x"]),
        ("end", 5),
        ("hardware", {"gpus": [["x"]]}),
        ("folders", ["\0"]),
        ("exit_code", {}),
        ("experiments", 3),
        ("start", None),
    ],
)
def test_records_that_hold_something_else(ledger, control_run, tmp_path, key, value):
    control_run()
    file = synthetic.record(tmp_path, [WALK])
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    collected = collect(ledger, [tmp_path])
    assert collected.records == [] and [problem.file for problem in collected.problems] == [str(file)]
    assert f"{key} cannot be read" in collected.problems[0].text


@pytest.mark.parametrize("text", ["", "{", "[]", "NaN", '{"folders": ["a"]}', "[" * 100_000])
def test_damaged_records(ledger, tmp_path, text):
    file = synthetic.record(tmp_path, [])
    file.write_text(text)
    collected = collect(ledger, [tmp_path])
    assert collected.records == [] and [problem.file for problem in collected.problems] == [str(file)]


# -------------------------------------------------------------------------------------------------------------- folders


def test_nesting_links_and_circles(ledger, timm_run, tmp_path):
    outside = timm_run(at=tmp_path / "outside")
    deep = tmp_path / "source" / "/".join("abcdefgh")
    folder = synthetic.verl_run(deep / GRPO, range(1, 4))
    (deep / "round").symlink_to(tmp_path / "source")
    (deep / "out").symlink_to(outside.parent)
    for name in ("global_step_20", "models", "interrupted-1", "tensorboard"):
        shutil.copytree(outside, folder / name / outside.name)
    collected = collect(ledger, [tmp_path / "source"])
    assert [result.folder for result in collected.results] == [str(folder)]
    assert sorted(Path(problem.file).name for problem in collected.problems) == ["out", "round"]
    assert all("not followed" in problem.text for problem in collected.problems)
    (tmp_path / "link").symlink_to(outside.parent)
    assert len(collect(ledger, [tmp_path / "link"]).results) == 1


def test_a_log_that_is_a_link_is_named(ledger, timm_run, tmp_path):
    folder, away = timm_run(at=tmp_path / "source"), tmp_path / "summary.csv"
    (folder / "summary.csv").rename(away)
    (folder / "summary.csv").symlink_to(away)
    collected = collect(ledger, [tmp_path / "source"])
    assert collected.results == [] and [problem.file for problem in collected.problems] == [str(folder)]
    assert "links in place of summary.csv" in collected.problems[0].text


def test_what_cannot_be_read_is_named(ledger, timm_run, tmp_path, monkeypatch):
    file, true_open = timm_run() / "summary.csv", Path.open

    def refuse(self, *args, **more):
        if self == file:
            raise PermissionError(13, "Permission denied", str(self))
        return true_open(self, *args, **more)

    monkeypatch.setattr(Path, "open", refuse)
    collected = collect(ledger, [tmp_path])
    assert [str(problem) for problem in collected.problems] == [f"{file}: cannot be read: Permission denied"]
    assert not any(result.used for result in collected.results)


def test_a_source_that_is_not_a_folder(ledger, tmp_path):
    with pytest.raises(LedgerError, match="is not a folder"):
        collect(ledger, [tmp_path / "none"])
    assert collect(ledger, [tmp_path]).results == []


def test_several_processes_find_the_same(ledger, timm_run, control_run, tmp_path, monkeypatch):
    synthetic.verl_run(tmp_path / GRPO, range(1, 13))
    timm_run()
    control_run()
    alone = collect(ledger, [tmp_path])
    monkeypatch.setattr(collecting, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    together = collect(ledger, [tmp_path])
    assert together.results == alone.results and len(alone.results) == 3 and together.problems == alone.problems


@pytest.mark.parametrize("count", [1, 399, 400, 401, 799, 1100, 100_000])
def test_curves_are_made_shorter_and_lose_no_peak(count):
    steps, values = np.arange(1, count + 1), np.random.default_rng(count).normal(size=count)
    curve = tables.curve(steps, values)
    sizes = np.diff([0, *curve.x])
    assert len(curve.x) == min(count, results.MOST_POINTS) and curve.x[-1] == count == curve.rows
    assert sizes.max() - sizes.min() <= 1 and np.dot(curve.y, sizes) == pytest.approx(values.sum(), abs=1e-8)
    assert max(curve.high) == values.max() and min(curve.low) == values.min()
