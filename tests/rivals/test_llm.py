# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The LLM runs: every setting through verl's own configuration and check, the order of runs, and a run."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir

from demo.llm import config
from recipes import UserError, launch_options
from rivals import launch, llm, llm_run, llm_trainer, records


def test_every_setting_is_one_that_verl_and_the_overlay_accept(patched_verl, monkeypatch, tmp_path):
    monkeypatch.chdir(patched_verl)  # verl's recipes find its configuration relative to the checkout
    monkeypatch.syspath_prepend(patched_verl)
    from verl.utils.era import language_config

    grpo = config.overrides(config.Settings(), "grpo", tmp_path, tmp_path, tmp_path)
    grpo += [setting.format(frequency=300) for setting in llm_run.SAVE]
    with initialize_config_dir(str(patched_verl / "verl/trainer/config"), version_base=None):
        for task in llm.HOLD_SHARE:
            found = [
                llm.overrides(method, setting, task)
                for method, settings in llm.hold_settings(task).items()
                for setting in settings
            ]
            assert len(set(map(tuple, found))) == 11 + (task == "chain")
            for words in found:
                language_config.check_trainer_config(compose("ppo_trainer", overrides=[*grpo, *words]))
            low = float(llm.HOLD_SHARE[task]) * llm.START[task]
            era = language_config.check_trainer_config(compose("ppo_trainer", overrides=[*grpo, *found[0]]))
            assert (era.k, era.hold, era.low) == (8, True, pytest.approx(low, abs=1e-4))


def finish(folder: Path, words: list[str], **known) -> None:
    """What a run leaves."""
    given = dict(zip(words[1::2], words[2::2]))
    task, method, setting, seed = (given[f"--{name}"] for name in records.KEY)
    folder.mkdir()
    record = {"host": "verl", "task": task, "method": method, "setting": setting, "seed": int(seed), "finished": True}
    record["total_steps"] = 12
    record |= {"started": "2026-11-20T08:00:01+00:00", "ended": "2026-11-20T08:09:01+00:00", "commit": "c" * 40}
    record |= {"versions": {"torch": "2.6.0"}, "hardware": {"cpu": "AMD EPYC", "cores": 2}}
    (folder / "run.json").write_text(json.dumps(record | known))
    sampled = dict.fromkeys(("pass_at_1", "pass_at_32", "reward"), 0.96) | {"distinct_32": 10, "distinct_all": 9}
    samples = pd.DataFrame([{**sampled, "temperature": temperature} for temperature in llm.TEMPERATURES])
    samples.loc[samples.temperature == 1, ["response_entropy", "answer_entropy"]] = 2 / 3, 3
    samples.to_csv(folder / llm.SAMPLES, index=False)
    steps = pd.DataFrame({"global_step": range(1, 13), "seconds": 0.5, **dict.fromkeys(records.CURVES, 0.25)})
    steps.assign(response_entropy=steps.global_step / 10).to_csv(folder / llm.CURVES, index=False)


def test_a_finished_run_counts_with_all_that_it_measured(tmp_path, capsys):
    words = next(iter(launch.runs("rivals.llm_run", "chain", {"era-hold": ["8"]}, [31]).values()))
    folder = tmp_path / "run"
    finish(folder, words)
    assert records.incomplete_because(folder) == "" and len(records.gather(tmp_path)) == 3
    written = pd.read_csv(folder / llm.CURVES)
    written.assign(reward=written.reward.mask(written.global_step == 7)).to_csv(folder / llm.CURVES, index=False)
    assert records.incomplete_because(folder) == "cannot be read (ValueError: step 7 has no reward)"
    written.to_csv(folder / llm.CURVES, index=False)
    for name, said in ((llm.SAMPLES, "has 6 of 13 rows of llm/samples"), (llm.CURVES, "train.csv has 6 of 12 steps")):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:7]))
        assert records.incomplete_because(folder) == said and records.gather(tmp_path) == {}
        assert f"note: {folder} is left out: {said}." in capsys.readouterr().err
    (folder / "run.json").write_text('{"finished": true, "host": "verl"}')
    assert records.incomplete_because(folder).startswith("run.json does not say how many steps")


def test_records_hold_the_finished_runs(tmp_path):
    """Each once, however often they are collected."""
    (stage,), output, tables = launch.llm_hold_stages(), tmp_path / "runs", tmp_path / "records"
    assert len(stage) == 5 * (4 * 11 + 1)  # GRPO is stopped on one task
    output.mkdir()
    some = {name: words for name, words in stage.items() if name.endswith("seed31") and "chain-single" in name}
    for name, words in some.items():
        finish(output / name, words)
    finish(output / "not-finished", next(iter(some.values())), finished=False)
    assert records.collect(output, tables) == records.collect(output, tables) == 11
    runs, curves = (records.read(f"llm/{name}", tables) for name in ("runs", "curves"))
    assert len(runs) == 11 and runs.response_entropy.eq(0.75).all() and runs.lowest_entropy.eq(0.1).all()
    assert curves.step[:3].tolist() == [5, 10, 12]
    assert curves.response_entropy[:3].tolist() == pytest.approx([0.3, 0.8, 1.15])
    assert ",0.66667," in (tables / "llm/samples.csv").read_text()


def test_a_stage_waits_for_all_runs_of_the_one_before(tmp_path, monkeypatch, capsys):
    words = ["no_such_module", "--task", "pairs", "--method", "grpo", "--setting", "0", "--seed", "4"]
    monkeypatch.setitem(launch.STAGES, "trl", lambda: [{"first": words}, {"second": words}])
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    with pytest.raises(UserError, match="No module named no_such_module"):
        launch.start("trl", [])
    assert (tmp_path / "first/log.txt").exists() and not (tmp_path / "second").exists()
    for variable in ("CHECK_ONLY", "DRY_RUN"):
        monkeypatch.setenv(variable, "1")
        launch.start("trl", [])
    assert "1 of 1 runs would start" in capsys.readouterr().out
    assert not (tmp_path / "first/interrupted-1").exists()


def test_runs_are_chosen_by_task_seed_and_arm(monkeypatch):
    """With the warm-ups that they need, in the order of the protocol."""

    def chosen(domain, **variables):
        for name in ("TASKS", "SEED", "ARMS"):
            monkeypatch.setenv(name, variables.get(name, ""))
        options = launch_options.LaunchOptions.from_environment(launch_options.RIVALS)
        return [list(stage) for stage in launch.chosen(domain, options)]

    found = chosen("trl", SEED="4 5", ARMS="grpo-0 era-hold-8", TASKS="pairs")
    assert found == [
        ["pairs-warm-up-0-seed4", "pairs-warm-up-0-seed5"],
        [f"pairs-{arm}-seed{seed}" for seed in (4, 5) for arm in ("era-hold-8", "grpo-0")],
    ]
    assert [len(stage) for stage in chosen("trl")] == [8, 140]
    assert chosen("llm-hold", SEED="31", TASKS="chain", ARMS="era-negative-0") == [["chain-era-negative-0-seed31"]]
    assert chosen("trl", SEED="77") == [[], []]
    with pytest.raises(UserError, match="ARMS: trl has no era-hold-3. There are: adaptive-0.2 "):
        chosen("trl", ARMS="era-hold-3")


def test_without_negative_advantages(monkeypatch):
    """verl calls the function by its name in core_algos, in the process that the trainer's module is."""
    core_algos = types.SimpleNamespace(compute_grpo_outcome_advantage=lambda values, scale: (values * scale, values))
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo", types.SimpleNamespace(core_algos=core_algos))
    found = []

    def trains(*arguments):
        values = torch.tensor([[-1.0, 0.0, 2.0]])
        found.append((*arguments, *core_algos.compute_grpo_outcome_advantage(values, scale=2)))

    monkeypatch.setattr(llm_trainer.cpu_trainer, "main", trains)
    llm_trainer.main("folder", ["a=1"])
    ((folder, overrides, advantages, returns),) = found
    assert (folder, overrides) == ("folder", ["a=1"])
    assert advantages.tolist() == [[0, 0, 4]] and returns.tolist() == [[-1, 0, 2]]


@pytest.mark.grid
def test_a_run(patched_verl, tmp_path):
    """By its command."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = ["--task", "chain", "--method", "era-hold", "--setting", "8", "--seed", "1", "--steps", "2"]
    command = [sys.executable, "-m", "rivals.llm_run", *words, "--checkout", patched_verl]
    environment = {**os.environ, "PYTHONPATH": str(records.PROJECT)}
    result = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in folder.iterdir()} >= {"run.json", llm.CURVES, llm.SAMPLES}
    assert records.collect(tmp_path, tmp_path / "records") == 1
    samples = records.read("llm/samples", tmp_path / "records")
    assert samples[records.KEY].drop_duplicates().values.tolist() == [["chain", "era-hold", "8", 1]]
    right = samples.set_index("temperature").pass_at_1
    # the warm-up had 0.4, which the first steps lower; random weights have 0
    assert right.min() == right[4.0] and 0.05 < right[1.0] < 0.7
    (found,) = llm.measures(samples).to_dict("records")
    assert 1.5 < found["response_entropy"] < 2.5 < found["answer_entropy"] < 17 * 2.5


def test_a_setting_outside_the_protocol_is_refused(monkeypatch, capsys):
    words = ["--task", "chain", "--method", "era-k", "--setting", "3", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", ["llm_run.py", *words])
    with pytest.raises(SystemExit):
        llm_run.parse()
    assert "--setting 3: era-k has 8, 2, 4." in capsys.readouterr().err
