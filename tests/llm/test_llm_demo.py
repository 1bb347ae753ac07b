"""The demo as a user starts it, on the real patched verl: a few steps of both arms, reuse, and Ctrl-C in the middle."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from demo.llm import config, curves, run

STEPS = 2
MARK = "ERA_DEMO_TEST"  # environment variable by which processes are found again, whoever their parent is


def command(checkout, out, *arguments):
    return [sys.executable, "-m", "demo.llm", "--checkout", str(checkout), "--out", str(out), *map(str, arguments)]


def environment(temporary):
    """RAY_ADDRESS names a cluster that is not there, PYTHONPATH a torch that is none: the demo must look at neither."""
    mine = {"TMPDIR": temporary, MARK: temporary, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **mine, "RAY_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(run.ROOT / "tests/stray")}


def processes_of(temporary):
    """Command lines of the processes that descend from a demo with this environment, orphans included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == temporary and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:120])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def ray_dirs(temporary):
    return [name for name in os.listdir(temporary) if name.startswith("era-ray-")]


@pytest.fixture(scope="module")
def temporary():
    folder = tempfile.mkdtemp(prefix="e", dir="/tmp")  # short, so that the demo puts Ray's files there
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("a folder, with odd = characters")


@pytest.fixture(scope="module")
def demo(patched_verl, out, temporary):
    """The finished demo; its output."""
    result = subprocess.run(
        command(patched_verl, out, "--steps", STEPS),
        cwd=run.ROOT,
        env=environment(temporary),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_metrics_of_every_step_are_there(demo, out):
    for arm in ("grpo", "era"):
        rows = curves.read_csv(out / f"chain-seed1-steps{STEPS}" / arm / curves.STEPS_FILE)
        assert [row["step"] for row in rows] == [1, 2]
        first = rows[0]
        assert 1.5 < first["response_entropy"] == pytest.approx(first["top_entropy"])
        assert 0 < first["rest_entropy"] < first["top_entropy"]
        assert 0.2 < first["reward"] < 0.7 and 1 < first["distinct_right"] <= 8
        assert first["low_fraction"] == first["scaled_token_fraction"] == 0


def test_arms_are_identical_while_no_response_is_below_omega_low(demo, out):
    grpo, era = (
        [{**row, "seconds": 0} for row in curves.read_csv(out / f"chain-seed1-steps{STEPS}" / arm / curves.STEPS_FILE)]
        for arm in ("grpo", "era")
    )
    assert all(row["low_fraction"] == 0 for row in grpo)
    assert grpo == era


@pytest.fixture(scope="module")
def acting(demo, patched_verl, out):
    """The rows and the metrics of an ERA run from the same warm-up, in which omega_low is above the first entropies."""
    folder = out / f"chain-seed1-steps{STEPS}" / "acting"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config.Settings, "omega_low", 2.9)
        run.train(
            config.Settings(steps=STEPS), "era", patched_verl, out / "warmup-chain-seed1", folder, {}, lambda row: None
        )
    return curves.read_csv(folder / curves.STEPS_FILE), metrics(folder)


def metrics(folder):
    """Of the training steps; the validations before and after have no gradient."""
    rows = [json.loads(line)["data"] for line in (folder / run.METRICS_FILE).read_text().splitlines()]
    return [row for row in rows if "actor/grad_norm" in row]


def test_era_acts_through_worker_and_update(acting, out):
    """The answers of step 1 are drawn before any update, those of step 2 after one that ERA has changed."""
    grpo_folder = out / f"chain-seed1-steps{STEPS}" / "grpo"
    rows, grpo = acting[0], curves.read_csv(grpo_folder / curves.STEPS_FILE)
    assert all(row["low_fraction"] > 0.5 and row["scaled_token_fraction"] > 0.1 for row in rows)
    for column in ("response_entropy", "reward", "distinct_right"):
        assert rows[0][column] == grpo[0][column]
    gradients = [steps[0]["actor/grad_norm"] for steps in (acting[1], metrics(grpo_folder))]
    # far more than rounding: ERA's old log-probs come from another forward pass than GRPO's
    assert gradients[0] != pytest.approx(gradients[1], rel=0.02)
    assert rows[1]["response_entropy"] != pytest.approx(grpo[1]["response_entropy"], abs=2e-3)


def test_acting_era_is_exactly_on_policy(acting):
    assert len(acting[1]) == STEPS
    assert all(step["actor/ppo_kl"] == step["actor/pg_clipfrac"] == 0 for step in acting[1])


def test_output_ends_with_table_findings_and_paths(demo, out):
    assert "GRPO     step 2/2" in demo and "ERA      step 2/2" in demo
    assert "ERA never acted in these 2 steps" in demo
    assert (out / "entropy.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((out / f"chain-seed1-steps{STEPS}" / "summary.json").read_text())
    assert summary["settings"] == {"task": "chain", "seed": 1, "steps": STEPS}
    assert summary["arms"]["era"]["peak memory, GB"] < 6


def test_nothing_is_left_running_or_lying_about(demo, temporary):
    assert processes_of(temporary) == []
    assert os.listdir(temporary) == []


def test_second_start_reuses_the_runs(demo, patched_verl, out, temporary):
    again = subprocess.run(
        command(patched_verl, out, "--steps", STEPS),
        cwd=run.ROOT,
        env=environment(temporary),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert again.returncode == 0 and again.stdout.count("reused from") == 3
    assert again.stdout.split("\n\n")[1:] == demo.split("\n\n")[1:]


@pytest.mark.parametrize(
    "number, stage", [(signal.SIGINT, "ray::WorkerDict"), (signal.SIGTERM, "raylet"), (signal.SIGKILL, "raylet")]
)
def test_stopping_the_demo_leaves_no_process(number, stage, demo, patched_verl, out, temporary, monkeypatch):
    """Stopped once a process of this name is there. After SIGKILL the trainer notices that its parent is gone."""
    process = subprocess.Popen(
        command(patched_verl, out, "--steps", 90),
        cwd=run.ROOT,
        env=environment(temporary),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 900
    while not any(stage in line for line in processes_of(temporary)):
        assert process.poll() is None and time.monotonic() < deadline, f"{stage} did not start"
        time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=900)
    if number == signal.SIGKILL:
        time.sleep(2)
        assert [name.rpartition("-")[0] for name in ray_dirs(temporary)] == [f"era-ray-{process.pid}"]
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        run.sweep()
        assert ray_dirs(temporary) == []
    else:
        assert process.returncode == 128 + number
        assert errors.strip() == f"demo: stopped by {number.name}; finished runs are kept"
        assert os.listdir(temporary) == []
    assert processes_of(temporary) == []
