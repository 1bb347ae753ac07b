"""make demo-control: its settings, statements and arguments, and a short run as a user starts it on the real patched FastTD3."""

import csv
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time

import numpy
import psutil
import pytest
import scipy.stats

from demo.control import __main__ as cli
from demo.control import report, settings, training
from demo.control.settings import ARMS, ENTROPY_ARMS, ERA, LEARNED, NO_DELAY, TD3, Run
from demo.llm import run as runs
from demo.runner.errors import DemoError

STEPS = 200
HEADER = [
    "global_step",
    "frame",
    "seconds",
    "eval_avg_return",
    "policy_entropy",
    "gaussian_entropy",
    "target_entropy",
    "delta",
    "min_std",
]


def command(checkout, out, *arguments):
    return [sys.executable, "-m", "demo.control", "--checkout", str(checkout), "--out", str(out), *map(str, arguments)]


def demo(checkout, out, *arguments):
    """PYTHONPATH names a torch that is none: the demo must not look there."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(runs.ROOT / "tests/stray")}
    return subprocess.run(
        command(checkout, out, *arguments), cwd=runs.ROOT, env=environment, capture_output=True, text=True, timeout=900
    )


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


# Settings


def test_agents_differ_in_nothing_but_themselves():
    td3, no_delay, era, learned = (set(Run(arm, 3, 1000).flags()) for arm in ARMS)
    assert no_delay - td3 == {"--policy_frequency=1"} and td3 <= no_delay
    assert td3 ^ era == {"--agent=fasttd3", "--agent=fastsac_era"}
    assert learned - era == {"--era_learn_delta"} and era <= learned


def test_runs_with_other_settings_have_folders_of_their_own():
    made = [Run(arm, seed, steps) for arm in ARMS for seed in (1, 2) for steps in (200, 300)]
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


def results(folder, returns=((10.0, 20.0),) * 4, policy=(-4.0, -5.0), learned=(-3.5, -3.01), below=0.0):
    """From files as train.py writes them. returns: per agent, the last evaluation of each seed; policy, learned: entropies of
    the first and the last row of ERA and of ERA+delta; below: how far the Gaussian's entropy falls short of its target."""
    made = []
    for arm, last in zip(ARMS, returns):
        for seed, value in enumerate(last, start=1):
            rows = []
            for step, evaluation, index in ((100, -7.0, 0), (200, None, 0), (300, value, 1)):
                row = {"global_step": step, "frame": 8 * step, "seconds": "1.0", "eval_avg_return": evaluation}
                if arm in ENTROPY_ARMS:
                    delta = 2.5 * (step == 300) * (arm == LEARNED)
                    entropy = (policy if arm == ERA else learned)[index]
                    row |= {
                        "policy_entropy": entropy,
                        "gaussian_entropy": -3 + delta - below,
                        "target_entropy": -3,
                        "delta": delta,
                        "min_std": 0.1,
                    }
                rows.append(row)
            run = Run(arm, seed, 300)
            runs.fresh(folder / run.folder)
            with (folder / run.folder / training.CURVES_FILE).open("w", newline="") as file:
                writer = csv.DictWriter(file, HEADER)
                writer.writeheader()
                writer.writerows(rows)
            made.append(
                report.Result(
                    run, training.curves(folder / run.folder), {"seconds": 9.0, "flags": run.flags(), "machine": {}}
                )
            )
    return made


def test_guarantee_that_held_and_one_that_did_not(tmp_path):
    held, broken = (report.findings(results(tmp_path, below=below))[0] for below in (9e-5, 0.01))
    assert "held in 4 of 4 ERA runs" in held and "-9.0e-05 nats" in held
    assert (
        "BELOW its target, H0 + delta, in 4 of 4 ERA runs (ERA, seed 1; ERA, seed 2; ERA+delta, seed 1; ERA+delta, seed 2)"
        in broken
    )
    assert "by up to 0.0100 nats" in broken


def test_entropy_of_the_bounded_policy_is_told_apart_from_the_gaussians(tmp_path):
    sentences = report.findings(results(tmp_path))
    assert "went down to -5.00 nats and was -5.00 at the end, 2.00 below" in sentences[1]
    assert "was not below it here either" in report.findings(results(tmp_path, policy=(-3.0, -3.0)))[1]
    assert (
        "2.50 nats at the end, brings the policy's entropy to -3.01 (-0.01 from H0)" in sentences[2]
        and "smallest -3.50" in sentences[2]
    )
    assert "FastTD3's policy is deterministic and has no entropy" in sentences[3]


@pytest.mark.parametrize(
    "td3, era, says",
    [
        ((100.0, 900.0, 300.0), (200.0, 700.0, 500.0), "no difference can be told from the spread over 3 seeds"),
        ((100.0, 110.0, 120.0), (500.0, 520.0, 510.0), "more than the spread over 3 seeds explains"),
        ((500.0, 520.0, 510.0), (100.0, 110.0, 120.0), "more than the spread over 3 seeds explains"),
    ],
)
def test_returns_are_compared_with_the_spread(tmp_path, td3, era, says):
    sentences = report.findings(results(tmp_path, (td3, era, era, td3)))
    mean = statistics.mean(
        (after - before) / 2 for before, after in zip(td3, era)
    )  # the first evaluation, -7, counts among the last
    said = dict(
        sentence.removeprefix("Return: ").split(" on average ")
        for sentence in sentences
        if sentence.startswith("Return: ")
    )
    differs = [
        f"FastTD3 no delay minus FastTD3 {mean:+.0f}",
        f"ERA minus FastTD3 {mean:+.0f}",
        f"ERA+delta minus FastTD3 no delay {-mean:+.0f}",
    ]
    assert list(said) == [*differs[:2], "ERA+delta minus FastTD3 +0", "ERA minus FastTD3 no delay +0", differs[2]]
    assert all(says in said[pair] for pair in differs)


def test_one_seed_says_nothing_about_the_spread(tmp_path):
    sentences = report.findings(results(tmp_path, ((107.0,), (207.0,), (407.0,), (7.0,))))
    assert [sentence for sentence in sentences if sentence.startswith("Return: ")] == [
        "Return: FastTD3 no delay minus FastTD3 +50, ERA minus FastTD3 +150, ERA+delta minus FastTD3 -50, ERA minus FastTD3 no delay +100, "
        "ERA+delta minus FastTD3 no delay -100. One seed says nothing about the spread over seeds."
    ]


def test_table_has_mean_and_ends_of_the_seeds_and_no_entropy_of_fasttd3(tmp_path):
    head, *lines, _ = report.table(results(tmp_path)).splitlines()
    cells = {label: row for label, *row in (re.split("  +", line) for line in lines)}
    assert re.split("  +", head.strip()) == ["FastTD3", "FastTD3 no delay", "ERA", "ERA+delta"]
    assert len({len(line) for line in lines}) == 1
    assert cells["return, first evaluation"] == ["-7 (-7 to -7)"] * 4
    assert cells["return, last 3 evaluations"][0] == "4 (2 to 6)"
    assert cells["policy entropy, smallest"] == ["-", "-", "-5.00 (-5.00 to -5.00)", "-3.50 (-3.50 to -3.50)"]
    assert cells["delta, last"] == ["-", "-", "0.00 (0.00 to 0.00)", "2.50 (2.50 to 2.50)"]
    assert "all 6 action dimensions together" in report.table(results(tmp_path))


# Arguments and failures


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--seeds", "1", "x"], "--seeds: expected a whole number from 0 to 2147483647, got 'x'"),
        (["--seeds", "2", "1", "2"], "--seeds: 2 given twice"),
        (["--steps", "100"], "--steps: expected a whole number from 200"),
        (["--steps", "250"], "--steps: expected a multiple of 100, got 250"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(arguments, says, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.parse(arguments)
    assert exit.value.code == 2
    assert says in capsys.readouterr().err


def test_checkout_without_the_overlay_is_one_clear_error(tmp_path):
    result = demo(tmp_path / "fasttd3", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.strip() == (
        f"demo: {tmp_path / 'fasttd3'} is not fasttd3 with the ERA overlay: no fast_td3/train.py there. Run: python apply.py apply fasttd3"
    )


def test_failed_training_shows_the_end_of_its_log_and_keeps_what_was_there(stand_in, tmp_path):
    checkout, run = stand_in("raise ImportError('this FastTD3 is broken')\n"), Run(ERA, 1, STEPS)
    old = runs.finish(runs.fresh(tmp_path / run.folder), {"code": "old"})
    with pytest.raises(DemoError) as error:
        training.train([run], checkout, tmp_path, {"code": "new"}, lambda run, row: None)
    assert "the ERA, seed 1 run ended with exit code 1 after 0 of 2 rows" in str(error.value)
    assert "this FastTD3 is broken" in str(error.value) and str(tmp_path / f"{run.folder}.new/log.txt") in str(
        error.value
    )
    assert runs.finished(tmp_path / run.folder, {"code": "old"}) == old


def test_key_follows_the_checkout(stand_in):
    before, after = training.key(stand_in("x = 1\n")), training.key(stand_in("x = 2\n"))
    assert before != after and training.key(stand_in("x = 1\n")) == before


def test_stopping_the_demo_leaves_no_process_and_no_half_run(stand_in, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(stand_in("import time\ntime.sleep(100)\n"), out),
        cwd=runs.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 900
    while len(children := psutil.Process(process.pid).children()) < len(ARMS):
        assert process.poll() is None and time.monotonic() < deadline, "the training did not start"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 128 + signal.SIGINT
    assert errors.strip() == "demo: stopped by SIGINT; finished runs are kept"
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert sorted(folder.name for folder in out.glob("*steps*")) == sorted(
        f"{Run(arm, 1, 6000).folder}.new" for arm in ARMS
    )
    assert not [*out.glob("*/run.json")]


# A run


def test_runs_of_the_real_script_and_their_reuse(patched_fasttd3, tmp_path):
    out = tmp_path / "a folder, with odd = characters"
    result = demo(patched_fasttd3, out, "--steps", STEPS)
    assert result.returncode == 0, result.stdout + result.stderr
    recorded = json.loads((out / "summary.json").read_text())
    assert all(sentence in " ".join(result.stdout.split()) for sentence in recorded["findings"])
    assert "The guarantee held in 2 of 2 ERA runs" in recorded["findings"][0]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert {file.name for file in out.iterdir()} == {
        ".lock",
        "curves.png",
        "runs.csv",
        "summary.json",
        *(Run(arm, 1, STEPS).folder for arm in ARMS),
    }
    returns = {
        arm: [row["eval_avg_return"] for row in training.curves(out / Run(arm, 1, STEPS).folder)]
        for arm in (TD3, NO_DELAY)
    }
    assert returns[TD3] != returns[NO_DELAY]  # equal to the bit if --policy_frequency did nothing
    for arm in ARMS:
        rows = training.curves(out / Run(arm, 1, STEPS).folder)
        assert [row["global_step"] for row in rows] == [100, 200] and all(
            row["eval_avg_return"] is not None for row in rows
        )
        for row in rows:
            has = {name: row[name] is not None for name in ("policy_entropy", "gaussian_entropy", "delta", "min_std")}
            assert set(has.values()) == {arm in ENTROPY_ARMS}
            assert arm not in ENTROPY_ARMS or row["target_entropy"] == pytest.approx(
                settings.DIMENSIONS * settings.TARGET_ENTROPY
            )
            assert arm not in ENTROPY_ARMS or row["policy_entropy"] < row["gaussian_entropy"]
            assert arm != ERA or row["gaussian_entropy"] == pytest.approx(-3, abs=report.ROUNDING) and row["delta"] == 0
    assert rows[-1]["delta"] > 0 and math.isfinite(rows[-1]["delta"])
    again = demo(patched_fasttd3, out, "--steps", STEPS)
    assert again.returncode == 0 and again.stdout.count("reused from") == len(ARMS)
    assert again.stdout.split("\n\n")[1:] == result.stdout.split("\n\n")[1:]
