"""What the tests of `python -m demo.llm` with both versions of verl share."""

import json
import os
import signal
import tempfile
import time

from demo_helpers import MARK, run, start, wait_for_process
from helpers import processes_with

from demo.llm import __main__ as cli
from demo.llm import config, curves, ray_folder, training

SEED = 1


def arguments(verl, checkout, out, steps):
    return "demo.llm", "--verl", verl, "--checkout", checkout, "--out", out, "--seed", SEED, "--steps", steps


def warm_up(verl, checkout, out):
    """A results folder that has the demo's warm-up, which takes half a minute."""
    cli.warm_up(config.Settings(seed=SEED, verl=verl), out, training.key(checkout, verl), fresh=False)
    return out


def run_both_arms(verl, checkout, out):
    """What the demo printed for two steps."""
    with tempfile.TemporaryDirectory(prefix="e", dir="/tmp") as folder:  # short: the demo puts Ray's files there
        result = run(*arguments(verl, checkout, out, 2), TMPDIR=folder, **{MARK: folder})
        assert result.returncode == 0, result.stdout + result.stderr
        assert processes_with(**{MARK: folder}) == os.listdir(folder) == []
    return result.stdout


def ray_folders(temporary):
    return [name for name in os.listdir(temporary) if name.startswith("era-ray-")]


def steps_of(folder):
    return [{**row, "seconds": 0} for row in curves.read_csv(folder / curves.STEPS_FILE)]


def check_both_arms_and_their_reuse(printed, verl, checkout, out, gigabytes):
    folder = out / f"chain-seed{SEED}-steps2"
    grpo, era = (steps_of(folder / arm) for arm in config.ARMS)
    assert grpo == era  # while no response is below omega_low
    assert [row["step"] for row in era] == [1, 2]
    for row in era:
        assert 0 < row["rest_entropy"] < row["top_entropy"] and row["response_entropy"] > 1.5
        assert row["low_fraction"] == row["scaled_token_fraction"] == 0
    assert "GRPO     step 2/2" in printed and "ERA      step 2/2" in printed
    assert "ERA never acted in these 2 steps" in printed
    assert (out / "entropy.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["settings"] == {"task": "chain", "seed": SEED, "steps": 2, "verl": verl}
    assert summary["arms"]["era"]["peak memory, GB"] < gigabytes
    again = run_both_arms(verl, checkout, out)
    assert again.count("reused from") == 3 and again.split("\n\n")[1:] == printed.split("\n\n")[1:]


def stopped(number, stage, verl, checkout, out, temporary):
    """As soon as a process of this name runs. After SIGKILL the trainer notices that its parent is gone."""
    process = start(*arguments(verl, checkout, out, 90), TMPDIR=temporary, **{MARK: temporary})
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
