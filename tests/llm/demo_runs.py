# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the tests of `python -m demo.llm` with both versions of verl share."""

import os
import signal
from pathlib import Path

from demo_helpers import MARK, run, start, wait_for_process, wait_until_ended

from demo.llm import __main__ as cli
from demo.llm import config, curves
from demo.runner.training import run_json

SEED = 1


def arguments(verl, checkout, out, steps):
    return "demo.llm", "--verl", verl, "--checkout", checkout, "--out", out, "--seed", SEED, "--steps", steps


def warm_up(verl, checkout, out):
    """A results folder that has the demo's warm-up, which takes half a minute."""
    cli.warm_up(config.Settings(seed=SEED, verl=verl), checkout, out)
    return out


def ray_folders():
    return {folder for folder in Path("/tmp").glob("era-ray-*") if folder.stat().st_uid == os.getuid()}


def run_both_arms(verl, checkout, out):
    """What the demo printed for two steps."""
    mark, before = f"{out}-{os.getpid()}", ray_folders()
    result = run(*arguments(verl, checkout, out, 2), **{MARK: mark})
    assert result.returncode == 0, result.stdout + result.stderr
    wait_until_ended(mark)
    assert ray_folders() <= before
    return result.stdout


def steps_of(folder):
    return curves.steps(folder, "chain").drop(columns="seconds")


def check_both_arms_and_their_reuse(printed, verl, checkout, out):
    folder = out / f"chain-seed{SEED}-steps2"
    grpo, era = (steps_of(folder / arm) for arm in config.ARMS)
    assert grpo.equals(era)  # while no response is below omega_low
    assert era["step"].tolist() == [1, 2] and (era["response_entropy"] > 1.5).all()
    assert era["rest_entropy"].between(0, era["top_entropy"], inclusive="neither").all()
    assert not era[["low_fraction", "scaled_token_fraction"]].any(axis=None)
    assert "ERA scaled no token in this run" in printed and run_json.read(folder / "era")["host"] == f"verl {verl}"
    assert (folder / "entropy.png").read_bytes().startswith(b"\x89PNG")
    again = run_both_arms(verl, checkout, out)
    assert again.count(": reused, trained on ") == 3 and again.split("\n\n")[1:] == printed.split("\n\n")[1:]


def stopped(number, stage, verl, checkout, out, mark):
    """Sends the signal once a process of this name runs. After SIGKILL the trainer notices that its parent is gone."""
    before = ray_folders()
    process = start(*arguments(verl, checkout, out, 90), **{MARK: mark})
    wait_for_process(stage, mark, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=900)
    wait_until_ended(mark)
    if number != signal.SIGKILL:  # which leaves Ray's folder
        assert process.returncode == 1 and "stopped" in errors and "Traceback" not in errors
        assert ray_folders() <= before
