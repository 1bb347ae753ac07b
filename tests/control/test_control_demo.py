# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`python -m demo.control`: its settings and measures, and a short run on the real patched FastTD3."""

import math
import signal
import time

import pandas
import psutil
import pytest
from demo_helpers import run, start

from demo.control import report, settings
from demo.control.settings import ARMS, ERA, LEARNED, NO_DELAY, TD3, Settings

STEPS = 200


def test_agents_differ_in_nothing_but_themselves():
    td3, no_delay, era, learned = (set(Settings(arm, 3, 1000).flags()) for arm in ARMS)
    assert no_delay - td3 == {"--policy_frequency=1"} and td3 <= no_delay
    assert td3 ^ era == {"--agent=fasttd3", "--agent=fastsac_era"}
    assert learned - era == {"--era_learn_delta"} and era <= learned


@pytest.mark.parametrize("steps", [200, 1000, 1200, 6000])
def test_last_step_is_evaluated(steps):
    flags = dict(flag[2:].split("=") for flag in Settings(TD3, 1, steps).flags() if "=" in flag)
    assert int(flags["total_timesteps"]) == steps + 1  # counted from 0
    assert steps % int(flags["eval_interval"]) == 0 and int(flags["eval_interval"]) % settings.LOG_INTERVAL == 0


def test_task_has_the_action_dimensions_that_the_report_counts_with():
    import gymnasium

    environment = gymnasium.make(settings.TASK)
    assert environment.action_space.shape == (settings.DIMENSIONS,)
    environment.close()


def test_measures_by_hand_and_a_guarantee_that_did_not_hold():
    rows = range(20)
    returns = [-7.0, *[None] * 9, 10.0, *[None] * 4, 20.0, None, None, None, 30.0]
    agent = pandas.DataFrame({"eval_avg_return": returns, "policy_entropy": [-3.0 - row / 10 for row in rows]})
    agent["gaussian_entropy"], agent["target_entropy"] = [-2.5 + row / 10 for row in rows], -3.0
    agent["delta"] = [row / 9.5 for row in rows]
    assert report.measures(agent).round(3).tolist() == [20, -4.9, -4.85, 0.4, 2]
    deterministic = report.measures(agent.assign(**dict.fromkeys(agent.columns[1:], math.nan)))
    assert deterministic["return"] == 20 and deterministic[1:].isna().all()
    names = ["FastTD3", "ERA", "ERA+delta"]
    line = report.held(pandas.DataFrame({"name": names, "margin": [math.nan, -9e-5, -0.01]}))
    assert "held in 1 of 2 ERA runs" in line and "-1e-02 nats" in line
    diverged = report.held(pandas.DataFrame({"name": names, "margin": [math.nan, 0.0, math.nan]}))
    assert "held in 1 of 2 ERA runs: margin nan nats" in diverged
    agent.loc[3, "gaussian_entropy"] = math.nan
    assert math.isnan(report.measures(agent)["margin"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_leaves_no_process_and_no_finished_run(number, tmp_path):
    """A stand-in for train.py, for what needs no training."""
    out, pids, scripts = tmp_path / "out", tmp_path / "pids", tmp_path / "fasttd3/fast_td3"
    pids.mkdir()
    (scripts / "environments").mkdir(parents=True)
    for name in ("train.py", "era_training.py", "environments/gymnasium_env.py"):
        (scripts / name).write_text(f"import os, time\nopen(f'{pids}/{{os.getpid()}}', 'w')\ntime.sleep(900)\n")
    process = start("demo.control", "--checkout", scripts.parent, "--out", out)
    deadline = time.monotonic() + 900
    while len(list(pids.iterdir())) < len(ARMS):
        assert process.poll() is None and time.monotonic() < deadline, "the training did not start"
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 1 and errors.strip() == "demo: stopped; finished runs are kept"
    assert not any(psutil.pid_exists(int(file.name)) for file in pids.iterdir())
    assert not [*out.glob("*/run.json")]


@pytest.mark.slow
def test_runs_of_the_real_script_and_their_reuse(patched_fasttd3, tmp_path):
    out = tmp_path / "a folder, with odd = characters"
    arguments = "demo.control", "--checkout", patched_fasttd3, "--out", out, "--steps", STEPS
    result = run(*arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "held in 2 of 2 ERA runs" in result.stdout
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    curves = {arm: pandas.read_csv(out / Settings(arm, 1, STEPS).folder / settings.CURVES_FILE) for arm in ARMS}
    for arm, rows in curves.items():
        assert rows["global_step"].tolist() == [100, 200] and rows["eval_avg_return"].notna().all()
        for column in ("policy_entropy", "gaussian_entropy", "delta", "min_std"):
            assert set(rows[column].notna()) == {arm in (ERA, LEARNED)}
        if arm in (ERA, LEARNED):
            assert rows["target_entropy"].tolist() == pytest.approx([settings.DIMENSIONS * settings.TARGET_ENTROPY] * 2)
            assert (rows["policy_entropy"] < rows["gaussian_entropy"]).all()
    era = curves[ERA]
    assert era["gaussian_entropy"].tolist() == pytest.approx([-3, -3], abs=report.ROUNDING) and not era["delta"].any()
    # equal to the bit if --policy_frequency did nothing
    assert not curves[TD3]["eval_avg_return"].equals(curves[NO_DELAY]["eval_avg_return"])
    assert 0 < curves[LEARNED]["delta"].iloc[-1] < math.inf
    again = run(*arguments)
    assert again.returncode == 0 and again.stdout.count(": reused, trained on ") == len(ARMS)
    assert again.stdout.split("\n\n")[1:] == result.stdout.split("\n\n")[1:]
