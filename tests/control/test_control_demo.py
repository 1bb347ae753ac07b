"""`python -m demo.control`: its settings and findings, and a short run on the real patched FastTD3."""

import csv
import json
import math
import re
import signal
import time

import numpy
import psutil
import pytest
import scipy.stats
from demo_helpers import run, start
from helpers import FASTTD3

from demo.control import report, settings, training
from demo.control.settings import ARMS, ENTROPY_ARMS, ERA, LEARNED, NO_DELAY, TD3, Run
from demo.runner import results as finished

STEPS = 200
HEADER = [
    *("global_step", "frame", "seconds", "eval_avg_return"),
    *("policy_entropy", "gaussian_entropy", "target_entropy", "delta", "min_std"),
]


# Settings


def test_agents_differ_in_nothing_but_themselves():
    td3, no_delay, era, learned = (set(Run(arm, 3, 1000).flags()) for arm in ARMS)
    assert no_delay - td3 == {"--policy_frequency=1"} and td3 <= no_delay
    assert td3 ^ era == {"--agent=fasttd3", "--agent=fastsac_era"}
    assert learned - era == {"--era_learn_delta"} and era <= learned


def test_runs_with_other_settings_have_folders_of_their_own():
    made = [
        Run(arm, seed, steps, version)
        for arm in ARMS for seed in (1, 2) for steps in (200, 300) for version in settings.VERSIONS
    ]  # fmt: skip
    assert len({run.folder for run in made}) == len(made)


@pytest.mark.parametrize("steps", [200, 1000, 1200, 6000])
def test_last_step_is_evaluated(steps):
    flags = dict(flag[2:].split("=") for flag in Run(TD3, 1, steps).flags() if "=" in flag)
    assert int(flags["total_timesteps"]) == steps + 1  # counted from 0
    assert steps % int(flags["eval_interval"]) == 0 and int(flags["eval_interval"]) % settings.LOG_INTERVAL == 0


def test_task_has_the_action_dimensions_that_the_report_counts_with():
    import gymnasium

    assert gymnasium.spec(settings.TASK).max_episode_steps == 1000
    environment = gymnasium.make(settings.TASK)
    assert environment.action_space.shape == (settings.DIMENSIONS,)
    environment.close()


def test_noise_entropy_is_the_mean_over_the_noise_scales():
    sigma = numpy.linspace(settings.FLAGS["std_min"], settings.FLAGS["std_max"], 200_001)
    mean = settings.DIMENSIONS * scipy.stats.norm(scale=sigma).entropy().mean()
    assert settings.noise_entropy() == pytest.approx(mean, abs=1e-3)


# What is said of the results


def written(folder, arm, seed, rows):
    """A finished run with these rows in its file."""
    run = Run(arm, seed, 300)
    finished.empty(folder / run.folder)
    with (folder / run.folder / training.CURVES_FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows(rows)
    info = {"seconds": 9.0, "flags": run.flags(), "machine": {}}
    return report.Result(run, training.curves(folder / run.folder), info)


def results(folder, returns=((10.0, 20.0),) * 4, policy=(-4.0, -5.0), learned=(-3.5, -3.01), below=0.0):
    """From files as train.py writes them.

    returns: per agent, the last evaluation of each seed. policy, learned: entropies of the first and the last row of
    ERA and of ERA+delta. below: by how much the Gaussian's entropy is less than its target.
    """
    made = []
    for arm, last in zip(ARMS, returns):
        for seed, value in enumerate(last, start=1):
            rows = []
            for step, evaluation, index in ((100, -7.0, 0), (200, None, 0), (300, value, 1)):
                row = {"global_step": step, "frame": 8 * step, "seconds": "1.0", "eval_avg_return": evaluation}
                if arm in ENTROPY_ARMS:
                    delta = 2.5 * (step == 300) * (arm == LEARNED)
                    entropy = (policy if arm == ERA else learned)[index]
                    row |= {"policy_entropy": entropy, "gaussian_entropy": -3 + delta - below}
                    row |= {"target_entropy": -3, "delta": delta, "min_std": 0.1}
                rows.append(row)
            made.append(written(folder, arm, seed, rows))
    return made


def test_guarantee_that_held_and_one_that_did_not(tmp_path):
    held, broken = (report.findings(results(tmp_path, below=below))[0] for below in (9e-5, 0.01))
    assert "held in 4 of 4 ERA runs" in held and "-9.0e-05 nats" in held
    runs = "ERA, seed 1; ERA, seed 2; ERA+delta, seed 1; ERA+delta, seed 2"
    assert f"BELOW its target, H0 + delta, in 4 of 4 ERA runs ({runs})" in broken
    assert "by up to 0.0100 nats" in broken


def test_entropy_of_the_bounded_policy_is_told_apart_from_the_gaussians(tmp_path):
    sentences = report.findings(results(tmp_path))
    assert "went down to -5.00 nats and was -5.00 at the end, 2.00 below" in sentences[1]
    assert "was not below it here either" in report.findings(results(tmp_path, policy=(-3.0, -3.0)))[1]
    assert "2.50 nats at the end, brings the policy's entropy to -3.01 (-0.01 from H0)" in sentences[2]
    assert "smallest -3.50" in sentences[2]
    assert "FastTD3's policy is deterministic and has no entropy" in sentences[3]


def test_returns_of_all_pairs_are_compared_with_the_spread(tmp_path):
    td3, era = (100.0, 110.0, 120.0), (500.0, 520.0, 510.0)
    sentences = report.findings(results(tmp_path, (td3, era, era, td3)))
    returns = [sentence.removeprefix("Return: ") for sentence in sentences if sentence.startswith("Return: ")]
    differences = dict(sentence.split(" on average ") for sentence in returns)
    # half of 400: the first evaluation, -7, counts among the last
    assert list(differences) == [
        "FastTD3 no delay minus FastTD3 +200",
        "ERA minus FastTD3 +200",
        "ERA+delta minus FastTD3 +0",
        "ERA minus FastTD3 no delay +0",
        "ERA+delta minus FastTD3 no delay -200",
    ]
    explained = ["more than the spread over 3 seeds explains" in text for text in differences.values()]
    assert explained == [True, True, False, False, True]


def test_one_seed_says_nothing_about_the_spread(tmp_path):
    sentences = report.findings(results(tmp_path, ((107.0,), (207.0,), (407.0,), (7.0,))))
    assert [sentence for sentence in sentences if sentence.startswith("Return: ")] == [
        "Return: FastTD3 no delay minus FastTD3 +50, ERA minus FastTD3 +150, ERA+delta minus FastTD3 -50, ERA minus "
        "FastTD3 no delay +100, ERA+delta minus FastTD3 no delay -100. One seed says nothing about the spread over "
        "seeds."
    ]


def test_table_has_no_entropies_of_fasttd3(tmp_path):
    head, *lines, note = report.table(results(tmp_path)).splitlines()
    cells = {label: row for label, *row in (re.split("  +", line) for line in lines)}
    assert re.split("  +", head.strip()) == ["FastTD3", "FastTD3 no delay", "ERA", "ERA+delta"]
    assert cells["return, first evaluation"] == ["-7 (-7 to -7)"] * 4
    assert cells["return, last 3 evaluations"][0] == "4 (2 to 6)"
    assert cells["policy entropy, smallest"] == ["-", "-", "-5.00 (-5.00 to -5.00)", "-3.50 (-3.50 to -3.50)"]
    assert cells["delta, last"] == ["-", "-", "0.00 (0.00 to 0.00)", "2.50 (2.50 to 2.50)"]
    assert "all 6 action dimensions together" in note


# Runs


@pytest.fixture
def stand_in(tmp_path):
    """A checkout whose train.py is the text given: for what needs no training."""

    def make(text):
        folder = tmp_path / "fasttd3"
        for name in ("train.py", "era_training.py", "environments/gymnasium_env.py"):
            file = folder / "fast_td3" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return folder

    return make


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_demo_leaves_no_process_and_no_half_run(number, stand_in, tmp_path):
    out, pids = tmp_path / "out", tmp_path / "pids"
    pids.mkdir()
    process = start(
        "demo.control",
        *("--checkout", stand_in(f"import os, time\nopen(f'{pids}/{{os.getpid()}}', 'w')\ntime.sleep(900)\n")),
        *("--out", out),
    )
    deadline = time.monotonic() + 900
    while len(list(pids.iterdir())) < len(ARMS):
        assert process.poll() is None and time.monotonic() < deadline, "the training did not start"
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 128 + number
    assert errors.strip() == f"demo: stopped by {number.name}; finished runs are kept"
    assert not any(psutil.pid_exists(int(file.name)) for file in pids.iterdir())
    left = {folder.name for folder in out.glob("*steps*")}
    assert left == {f"{Run(arm, 1, 6000).folder}.new" for arm in ARMS}
    assert not [*out.glob("*/run.json")]


def check_curves(arm, rows):
    assert [row["global_step"] for row in rows] == [100, 200]
    for row in rows:
        assert row["eval_avg_return"] is not None
        has = {name: row[name] is not None for name in ("policy_entropy", "gaussian_entropy", "delta", "min_std")}
        assert set(has.values()) == {arm in ENTROPY_ARMS}
        if arm in ENTROPY_ARMS:
            assert row["target_entropy"] == pytest.approx(settings.DIMENSIONS * settings.TARGET_ENTROPY)
            assert row["policy_entropy"] < row["gaussian_entropy"]
        if arm == ERA:
            assert row["gaussian_entropy"] == pytest.approx(-3, abs=report.ROUNDING) and row["delta"] == 0


def test_runs_of_the_real_script_and_their_reuse(patched_fasttd3, tmp_path):
    out = tmp_path / "a folder, with odd = characters"
    arguments = "demo.control", "--checkout", patched_fasttd3, "--fasttd3", FASTTD3, "--out", out, "--steps", STEPS
    result = run(*arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    recorded = json.loads((out / "summary.json").read_text())
    assert all(sentence in " ".join(result.stdout.split()) for sentence in recorded["findings"])
    assert "The guarantee held in 2 of 2 ERA runs" in recorded["findings"][0]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    folders = {arm: Run(arm, 1, STEPS, FASTTD3).folder for arm in ARMS}
    files = {".lock", "curves.png", "runs.csv", "summary.json"}
    assert {file.name for file in out.iterdir()} == files | set(folders.values())
    curves = {arm: training.curves(out / folder) for arm, folder in folders.items()}
    for arm, rows in curves.items():
        check_curves(arm, rows)
    returns = {arm: [row["eval_avg_return"] for row in curves[arm]] for arm in (TD3, NO_DELAY)}
    assert returns[TD3] != returns[NO_DELAY]  # equal to the bit if --policy_frequency did nothing
    delta = curves[LEARNED][-1]["delta"]
    assert delta > 0 and math.isfinite(delta)
    again = run(*arguments)
    assert again.returncode == 0 and again.stdout.count("reused from") == len(ARMS)
    assert again.stdout.split("\n\n")[1:] == result.stdout.split("\n\n")[1:]
