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

from demo import curves, run

STEPS = 2
MARK = "ERA_DEMO_TEST"  # environment variable by which processes are found again, whoever their parent is


def command(checkout, out, *arguments):
    return [sys.executable, "-m", "demo", "--checkout", str(checkout), "--out", str(out), *map(str, arguments)]


def environment(temporary):
    """RAY_ADDRESS names a cluster that is not there: the demo must not look for it."""
    return {**os.environ, "TMPDIR": temporary, MARK: temporary, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "127.0.0.1:1"}


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
        command(patched_verl, out, "--steps", STEPS), cwd=run.ROOT, env=environment(temporary), capture_output=True, text=True, timeout=400
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
        command(patched_verl, out, "--steps", STEPS), cwd=run.ROOT, env=environment(temporary), capture_output=True, text=True, timeout=100
    )
    assert again.returncode == 0 and again.stdout.count("reused from") == 3
    assert again.stdout.split("\n\n")[1:] == demo.split("\n\n")[1:]


@pytest.mark.parametrize(
    "number, stage", [(signal.SIGINT, "ray::WorkerDict"), (signal.SIGTERM, "raylet"), (signal.SIGKILL, "raylet")]
)
def test_stopping_the_demo_leaves_no_process(number, stage, demo, patched_verl, out, temporary):
    """Stopped once a process of this name is there. After SIGKILL the trainer notices that its parent is gone."""
    process = subprocess.Popen(
        command(patched_verl, out, "--steps", 90), cwd=run.ROOT, env=environment(temporary), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 90
    while not any(stage in line for line in processes_of(temporary)):
        assert process.poll() is None and time.monotonic() < deadline, f"{stage} did not start"
        time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    if number == signal.SIGKILL:
        time.sleep(2)
    else:
        assert process.returncode == 128 + number
        assert errors.strip() == f"demo: stopped by {number.name}; finished runs are kept"
        assert os.listdir(temporary) == []
    assert processes_of(temporary) == []
