"""`python -m demo.llm` on the real patched verl: a few steps of both arms, reuse, and Ctrl-C in the middle."""

import json
import os
import shutil
import signal
import tempfile
import time

import pytest
from demo_helpers import MARK, run, start, wait_for_process
from helpers import processes_with

from demo.llm import __main__ as cli
from demo.llm import config, curves, ray_folder, training, warmup

STEPS = 2


@pytest.fixture
def temporary():
    folder = tempfile.mkdtemp(prefix="e", dir="/tmp")  # short, so that the demo puts Ray's files there
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place(temporary, monkeypatch):
    """For trainings that this process starts."""
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    monkeypatch.setenv(MARK, temporary)


@pytest.fixture(scope="module")
def out(patched_verl, tmp_path_factory):
    """A results folder that has the warm-up, which takes half a minute."""
    folder = tmp_path_factory.mktemp("a folder, with odd = characters")
    cli.warm_up(config.Settings(steps=STEPS), folder, training.key(patched_verl), False)
    return folder


@pytest.fixture(scope="module")
def demo(patched_verl, out):
    """The outcome of the demo, and what it left in its TMPDIR and running."""
    with tempfile.TemporaryDirectory(prefix="e", dir="/tmp") as folder:
        result = run(*arguments(patched_verl, out, STEPS), TMPDIR=folder, **{MARK: folder})
        assert result.returncode == 0, result.stdout + result.stderr
        return result, os.listdir(folder) + processes_with(**{MARK: folder})


def arguments(checkout, out, steps):
    return "demo.llm", "--checkout", checkout, "--out", out, "--steps", steps


def ray_folders(temporary):
    return [name for name in os.listdir(temporary) if name.startswith("era-ray-")]


def steps_of(folder):
    return [{**row, "seconds": 0} for row in curves.read_csv(folder / curves.STEPS_FILE)]


def test_demo_of_both_arms_and_its_reuse(patched_verl, out, demo, temporary):
    result, left = demo
    assert left == []
    folder = out / f"chain-seed1-steps{STEPS}"
    grpo, era = (steps_of(folder / arm) for arm in config.ARMS)
    assert grpo == era  # while no response is below omega_low
    assert [row["step"] for row in era] == [1, 2]
    for row in era:
        assert 0 < row["rest_entropy"] < row["top_entropy"] and row["response_entropy"] > 1.5
        assert row["low_fraction"] == row["scaled_token_fraction"] == 0
    assert "GRPO     step 2/2" in result.stdout and "ERA      step 2/2" in result.stdout
    assert "ERA never acted in these 2 steps" in result.stdout
    assert (out / "entropy.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["settings"] == {"task": "chain", "seed": 1, "steps": STEPS}
    assert summary["arms"]["era"]["peak memory, GB"] < 6
    again = run(*arguments(patched_verl, out, STEPS), TMPDIR=temporary)
    assert again.returncode == 0 and again.stdout.count("reused from") == 3
    assert again.stdout.split("\n\n")[1:] == result.stdout.split("\n\n")[1:]


def metrics(folder):
    """Of the training steps: the validations have no gradient."""
    rows = [json.loads(line)["data"] for line in (folder / training.METRICS_FILE).read_text().splitlines()]
    return [row for row in rows if "actor/grad_norm" in row]


@pytest.mark.slow
def test_era_acts_through_worker_and_update_and_stays_on_policy(
    patched_verl, out, demo, tmp_path, place, temporary, monkeypatch
):
    """The demo's GRPO beside ERA with an omega_low above the entropies at the start.

    The answers of step 1 are drawn before any update, those of step 2 after one that ERA has changed.
    """
    settings = config.Settings(steps=STEPS)
    warmup.write_data(tmp_path, settings.task, settings.seed)
    model = out / f"warmup-{settings.task}-seed{settings.seed}"
    monkeypatch.setattr(config.Settings, "omega_low", 2.9)
    training.train_arm(settings, "era", patched_verl, model, tmp_path / "era", {"versions": {}}, lambda rows: None)
    arms = out / settings.name / "grpo", tmp_path / "era"
    grpo, era = map(steps_of, arms)
    assert 0.2 < grpo[0]["reward"] < 0.7 and 1 < grpo[0]["distinct_right"] <= 8
    assert 1.5 < grpo[0]["response_entropy"] == pytest.approx(grpo[0]["top_entropy"])  # answers of equal length
    for row in era:  # every right answer has a positive advantage and a low entropy, and all have about the same length
        assert row["low_fraction"] > 0.5 and row["scaled_token_fraction"] == pytest.approx(row["reward"], abs=0.02)
    for column in ("response_entropy", "reward", "distinct_right"):
        assert era[0][column] == grpo[0][column]
    plain, acting = map(metrics, arms)
    # far more than rounding: ERA's old log-probs come from another forward pass than GRPO's
    assert acting[0]["actor/grad_norm"] != pytest.approx(plain[0]["actor/grad_norm"], rel=0.02)
    assert era[1]["response_entropy"] != pytest.approx(grpo[1]["response_entropy"], abs=2e-3)
    assert len(acting) == STEPS
    assert all(step["actor/ppo_kl"] == step["actor/pg_clipfrac"] == 0 for step in acting)
    assert processes_with(**{MARK: temporary}) == ray_folders(temporary) == []


@pytest.mark.slow
@pytest.mark.parametrize("number, stage", [(signal.SIGINT, "ray::WorkerDict"), (signal.SIGKILL, "raylet")])
def test_stopping_the_demo_leaves_no_process(number, stage, patched_verl, out, temporary, place):
    """Stopped as soon as a process of this name runs. After SIGKILL the trainer notices that its parent is gone."""
    process = start(*arguments(patched_verl, out, 90), TMPDIR=temporary, **{MARK: temporary})
    wait_for_process(stage, temporary, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=900)
    if number == signal.SIGKILL:
        deadline = time.monotonic() + 900
        while processes_with(**{MARK: temporary}) and time.monotonic() < deadline:
            time.sleep(0.2)
        [left] = ray_folders(temporary)
        assert left.startswith(f"era-ray-{process.pid}-")
        ray_folder.sweep()
    else:
        assert process.returncode == 128 + number
        assert errors.strip() == f"demo: stopped by {number.name}; finished runs are kept"
    assert processes_with(**{MARK: temporary}) == ray_folders(temporary) == []
