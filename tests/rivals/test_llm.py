"""The LLM rivals: the rule on runs made by hand, and every setting through verl's own configuration and check."""

import os
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from scipy import stats

from demo.llm import config
from rivals import llm, llm_report, records, stages


def samples(*points):
    """From (temperature, accuracy, distinct of 32)."""
    return [dict(zip(("temperature", "pass_at_1", "distinct_32"), point)) for point in points]


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(0.4, 1.0, 2), (1.0, 0.97, 10), (1.3, 0.93, 20)], 15),  # half-way between 1 and 1.3
        ([(0.4, 1.0, 2), (1.0, 0.9, 10), (1.3, 0.96, 20)], 20),  # the hottest counts
        ([(0.4, 0.9, 2), (1.0, 0.95, 10), (1.3, 0.0, 20)], 10),
        ([(0.4, 0.94, 2), (1.0, 0.9, 10)], None),
    ],
)
def test_distinct_answers_at_equal_accuracy(points, expected):
    assert llm.distinct_at(samples(*points)) == (None if expected is None else pytest.approx(expected))


def test_the_rule():
    """The largest mean over the tuning seeds, a missed accuracy counting as 0; of equal ones the first."""
    distinct = {"0.15": (9, 9), "0.2": (12, 12), "0.3": (30, None), "0.45": (16, 8), "0.7": (None, None)}
    runs = [
        {"task": "chain", "method": "era", "setting": setting, "seed": seed, "samples": samples((1.0, accuracy, found))}
        for setting, pair in distinct.items()
        for seed, found in enumerate(pair, start=1)
        for accuracy in [0.9 if found is None else 0.96]
    ]
    runs += [{**run, "seed": 11, "samples": samples((1.0, 1.0, 32))} for run in runs]  # no tuning seed
    assert llm.choose(runs, "chain", "era", (1, 2)) == "0.3"
    runs[4]["samples"] = samples((1.0, 0.96, 24))
    assert llm.choose(runs, "chain", "era", (1, 2)) == "0.2"
    goal = [{**run, "task": "chain-goal"} for run in runs]
    assert llm.choose(goal, "chain-goal", "era", (1, 2)) == "0.15"  # accuracy .96 on both seeds


def test_every_setting_is_one_that_verl_and_the_overlay_accept(patched_verl, monkeypatch, tmp_path):
    monkeypatch.chdir(patched_verl)  # verl's recipes find its configuration relative to the checkout
    monkeypatch.syspath_prepend(patched_verl)
    from verl.utils import era_checks

    grpo = config.overrides(config.Settings(), "grpo", tmp_path, tmp_path, tmp_path)
    with initialize_config_dir(str(patched_verl / "verl/trainer/config"), version_base=None):
        for method, one in llm.METHODS.items():
            for task in llm.START:
                found = [llm.overrides(method, setting, task) for setting in one.settings]
                assert len(set(map(tuple, found))) == 5
            composed = compose("ppo_trainer", overrides=[*grpo, *found[-1]])
            era_checks.validate_trainer_config(composed)


def test_stages_follow_the_protocol(tmp_path, monkeypatch):
    """Tuning before fresh seeds, the settings chosen on one task carried to others."""
    monkeypatch.setattr(llm, "read", lambda folder: folder.name)
    monkeypatch.setattr(llm, "choose", lambda runs, task, method, seeds: llm.METHODS[method].settings[len(task) % 5])
    found = list(stages.llm_stages(tmp_path))
    assert [len(stage) for stage in found] == [70, 35, 70, 35, 70, 35, 50, 25, 70, 35, 2]
    assert len({run.name for stage in found for run in stage}) == 357
    assert "chain-single-bonus-0.01-seed11" in {run.name for run in found[5]}


@pytest.mark.grid
def test_a_run(patched_verl, tmp_path):
    """By its command, with the KL loss, whose reference policy the worker has to make too."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = ["--task", "chain", "--method", "kl", "--setting", "0.01", "--seed", "1", "--steps", "2"]
    command = [sys.executable, "-m", "rivals.llm_run", *words, "--checkout", patched_verl]
    environment = {**os.environ, "PYTHONPATH": str(records.PROJECT)}
    result = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in folder.iterdir()} >= {"run.json", llm.CURVES, llm.SAMPLES}
    assert records.collect(tmp_path, tmp_path / "records") == 1
    (run,) = llm_report.read(tmp_path / "records/llm")
    assert (run["method"], run["setting"], run["seed"], len(run["curves"])) == ("kl", "0.01", 1, 1)
    accuracies = [row["pass_at_1"] for row in run["samples"]]
    # the warm-up had 0.4, which the first steps lower; random weights have 0
    assert min(accuracies) == llm_report.at(run, "pass_at_1", 4.0) and 0.05 < llm_report.at(run, "pass_at_1") < 0.7
    assert 1.5 < llm_report.at(run, "response_entropy") < 2.5 < llm_report.at(run, "answer_entropy") < 17 * 2.5


def test_a_setting_outside_the_protocol_is_refused(tmp_path):
    words = ["--task", "chain", "--method", "era", "--setting", "0.66", "--seed", "1"]
    command = [sys.executable, "-m", "rivals.llm_run", *words]
    result = subprocess.run(
        command, env={"PYTHONPATH": str(records.PROJECT)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 2 and "--setting 0.66: era has 0.15, 0.2, 0.3, 0.45, 0.7." in result.stderr
    assert not any(tmp_path.iterdir())


def finished(run: stages.Run, distinct: float) -> dict:
    """A run as records have it, with .96 right at temperature 1 and `distinct` right answers of 32."""
    words = dict(zip(run.command[1::2], run.command[2::2]))
    known = {"task": run.task, "method": run.agent, "setting": words["--setting"], "seed": int(words["--seed"])}
    row = {
        "pass_at_1": 0.96,
        "pass_at_32": 1.0,
        "distinct_32": distinct,
        "distinct_all": 9,
        "answer_entropy": 3,
        "reward": 0.9,
    }
    sampled = [{"temperature": 1.0, "response_entropy": 0.7, **row}, {"temperature": 2.0, **row, "pass_at_1": 0.0}]
    return {
        **known,
        "samples": sampled,
        "curves": [dict.fromkeys(records.CURVES, 0.7) | {"step": 5}],
        "reward": 0.9,
        "response_entropy": 0.7,
        "lowest_entropy": 0.6,
        "step_seconds": 0.3,
    }


def test_tables_and_pictures(tmp_path):
    """The chosen settings on fresh seeds: ERA 2 answers above the rest, but for one seed on which it is 9 below."""
    settings = {name: one.settings for name, one in llm.METHODS.items() if not one.off_policy}
    tuning = stages.llm_runs("chain", settings, stages.TUNING_SEEDS)
    examples = stages.llm_runs("chain-single", {"grpo": ["1"], "era": ["0.3"]}, [1])
    runs = [finished(run, 20 if run.name.startswith("chain-era-0.45") else 10) for run in [*tuning, *examples]]
    first = {name: values[:1] for name, values in settings.items()} | {"era": ["0.45"]}
    fresh = stages.llm_runs("chain", first, stages.FRESH_SEEDS)
    runs += [
        finished(run, 12 if run.agent == "era" else 21 if run.name == "chain-kl-0.01-seed11" else 10) for run in fresh
    ]
    tables = llm_report.tables(runs)
    assert "| ERA, omega_low | 0.15: 10.0 (0.70, 0.70) |" in tables["tuning chain"]
    assert "| **0.45: 20.0 (0.70, 0.70)** |" in tables["tuning chain"]
    assert "| ERA | 0.45 |" in tables["results chain"] and tables["results chain"].count("\n") == 8
    assert "| entropy bonus | **+2.0 (+2.0 to +2.0; +2.0, +2.0, +2.0, +2.0, +2.0)** |" in tables["differences chain"]
    low, high = stats.ttest_1samp([-9, 2, 2, 2, 2], 0).confidence_interval()
    assert (
        f"| KL loss | -0.2 ({low:+.1f} to {high:+.1f}; -9.0, +2.0, +2.0, +2.0, +2.0) |" in tables["differences chain"]
    )
    assert tables["results chain-goal"] == tables["tuning chain-goal"] == "", "no run yet"
    for name, draw in llm_report.PICTURES.items():
        draw(runs, tmp_path / name)
