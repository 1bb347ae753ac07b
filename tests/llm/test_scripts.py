# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The real run scripts on a CPU, with the real trainer and a tiny model: stages, kill and resumption, every method.

`make llm-smoke` runs all of it, or the scripts that SCRIPTS names. The runs are started two at a time, by the first
test that needs one; each test waits for its own.
"""

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import bands
import bigram
import pytest
import recipe_scripts
import torch
from helpers import processes_with
from recipe_scripts import SCRIPTS, STAGE1, STAGE2

from demo.llm import models

MARK = "ERA_SMOKE_TEST"  # environment variable by which processes are found again, whoever their parent is
FORKING, KL_COV, CLIP_COV, GSPO = (
    f"run_{name}_qwen2.5_math_7b.sh" for name in ("forking_tokens", "kl_cov", "clip_cov", "gspo")
)
BASELINES = (KL_COV, CLIP_COV, FORKING, GSPO)
METHODS = [script for script in SCRIPTS if script not in (STAGE1, STAGE2)]
LAST = recipe_scripts.STAGE1_STEPS
PROMPTS = recipe_scripts.PAPER_BATCH // recipe_scripts.SHRINK
ROW = "{:<43} {:>6} {:>7} {:>7} {:>7} {:>7}"


stages = pytest.mark.smoke(STAGE1, STAGE2)  # and slow: `make test-all` runs the stages too


@pytest.fixture(scope="module")
def temporary():
    """The temporary folder of the runs' processes, whose path is short enough for Ray's folders."""
    folder = tempfile.mkdtemp(prefix="s", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv(MARK, folder)
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # a cluster that is not there
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model and data")
    bigram.write(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints, = and more")


@pytest.fixture(scope="module")
def runs(request, verl_with_recipes, inputs, folder, temporary, say):
    """runs(name): the outcome of the run, once it is there. The first call starts all that the tests will ask for."""
    say(ROW.format("script", "steps", "seconds", "loss", "grad", "H_resp"))
    wanted = {name for item in request.session.items for mark in item.iter_markers("smoke") for name in mark.args}

    def run(script, name, *added, **settings):
        return recipe_scripts.run_script(verl_with_recipes, script, inputs, folder / name, *added, **settings)

    def train_stages():
        killed = run(STAGE1, "stage1", steps=LAST, kill_after=recipe_scripts.KILL_AFTER)
        resumed = run(STAGE1, "stage1", steps=LAST)
        checkpoint = folder / f"stage1/global_step_{LAST}"
        stage2 = run(STAGE2, "stage2", steps=LAST + 2, stage1=checkpoint)
        return {"killed": killed, "resumed": resumed, "stage2": stage2}

    with ThreadPoolExecutor(2) as pool:
        to_come = {"stages": pool.submit(train_stages)} if STAGE1 in wanted else {}
        if STAGE1 in wanted or wanted & {*BASELINES}:
            to_come["uninterrupted"] = pool.submit(run, STAGE1, "uninterrupted", steps=LAST)
        to_come |= {script: pool.submit(run, script, script) for script in METHODS if script in wanted}
        yield lambda name: succeeded(to_come[name].result() if name in to_come else to_come["stages"].result()[name])
        pool.shutdown(cancel_futures=True)


def succeeded(outcome):
    assert not outcome.failed, f"{outcome.script} ended with exit code {outcome.exit_code}:\n{outcome.log[-5000:]}"
    return outcome


def row(outcome):
    """Steps, seconds and, of the last step, loss (on-policy minus the mean advantage), gradient and H_resp in nats."""
    first, last = outcome.steps[0], outcome.steps[-1]
    numbers = ("actor/pg_loss", "actor/grad_norm", "era/response_entropy")
    numbers = (f"{outcome.metrics[last][name]:z.3f}" for name in numbers)
    return ROW.format(outcome.script, f"{first}-{last}", f"{outcome.seconds:.0f}", *numbers)


def test_bands_lie_on_both_sides_of_the_recipes_omegas():
    a, b, c, d = bands.ENTROPIES.values()
    assert a < 0.2 < b < 0.45 < c < 3.0 < d
    assert all(math.isclose(sum(tokens.values()), 1) for tokens in bands.BANDS.values())


@pytest.mark.slow
def test_workers_use_the_cpu_where_there_is_a_gpu(patched_verl):
    """Ray may unpickle a class of verl's, which asks for CUDA, before it imports the changes for the CPU."""
    code = (
        "import torch; torch.cuda.is_available = lambda: True; import verl; from demo.llm import cpu_worker; "
        "from verl.utils import device; import verl.workers.actor; print(device.get_device_name())"
    )
    path = os.pathsep.join((str(patched_verl), str(recipe_scripts.ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900)
    assert result.stdout.strip() == "cpu", result.stderr


def checkpoint(folder, step):
    return torch.load(folder / f"global_step_{step}/actor/model_world_size_1_rank_0.pt", weights_only=False)


def learned(metrics):
    """What of a step's metrics does not depend on the machine's speed and memory."""
    return {name: value for name, value in metrics.items() if not name.startswith(("timing", "perf"))}


# Kill and resumption


@pytest.mark.slow
@stages
def test_a_killed_run_goes_on_from_its_last_checkpoint(runs, folder, say):
    killed, resumed = runs("killed"), runs("resumed")
    say(f"{row(killed)}  killed")
    say(row(resumed))
    assert killed.exit_code == -9 and killed.resumed is None
    assert killed.steps == list(range(1, killed.steps[-1] + 1)) and recipe_scripts.KILL_AFTER <= killed.steps[-1] < LAST
    saved = killed.steps[-1] // recipe_scripts.SAVE_FREQ * recipe_scripts.SAVE_FREQ
    assert resumed.exit_code == 0 and resumed.resumed == str(folder / f"stage1/global_step_{saved}")
    assert resumed.steps == list(range(saved + 1, LAST + 1))
    assert list(resumed.metrics) == list(range(1, LAST + 1))
    lines = [json.loads(line)["step"] for line in (folder / "stage1/metrics.jsonl").read_text().splitlines()]
    assert lines == killed.steps + resumed.steps  # so the steps after the checkpoint are there twice


@pytest.mark.slow
@stages
def test_resumed_run_equals_the_uninterrupted_one_in_every_digit(runs, folder):
    """verl saves the state of the optimizer, of the data loader and, of each worker, of the random numbers."""
    resumed, uninterrupted = runs("resumed"), runs("uninterrupted")
    assert uninterrupted.resumed is None and uninterrupted.steps == list(range(1, LAST + 1))
    for step in uninterrupted.steps:
        assert learned(resumed.metrics[step]) == learned(uninterrupted.metrics[step])
    one, other = (checkpoint(folder / name, LAST) for name in ("stage1", "uninterrupted"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# Stage 2


def prompts_per_band(metrics):
    """How many of the step's prompts are of each band: the only numbers that make its mean of H_resp."""
    found = [
        counts
        for counts in itertools.product(range(PROMPTS + 1), repeat=len(bands.BANDS))
        if sum(counts) == PROMPTS
        and abs(
            sum(n * h for n, h in zip(counts, bands.ENTROPIES.values())) / PROMPTS - metrics["era/response_entropy"]
        )
        < 2e-3
    ]
    assert len(found) == 1, found
    return dict(zip(bands.BANDS, found[0]))


@pytest.mark.slow
@stages
def test_omegas_of_each_stage_are_in_effect(runs):
    """Bands "a" and "b" are below stage 1's omega_low, only "a" is below stage 2's; "d" is above omega_high."""
    first_stage, second_stage = runs("uninterrupted").metrics, runs("stage2").metrics
    assert all(values["era/scaled_token_fraction"] > 0 for values in first_stage.values())
    seen = dict.fromkeys(bands.BANDS, 0)
    for step in range(1, LAST + 1):
        counts = prompts_per_band(first_stage[step])
        assert first_stage[step]["era/low_fraction"] == pytest.approx((counts["a"] + counts["b"]) / PROMPTS)
        assert first_stage[step]["era/high_fraction"] == pytest.approx(counts["d"] / PROMPTS)
        seen = {band: seen[band] + counts[band] for band in seen}
    assert all(seen.values())
    counts = [prompts_per_band(second_stage[step]) for step in (LAST + 1, LAST + 2)]
    for step, of_step in zip((LAST + 1, LAST + 2), counts):
        assert second_stage[step]["era/low_fraction"] == pytest.approx(of_step["a"] / PROMPTS)
        assert second_stage[step]["era/high_fraction"] == 0
    assert any(of_step["b"] for of_step in counts) and any(of_step["d"] for of_step in counts)


@pytest.mark.slow
@stages
def test_stage_2_starts_from_stage_1s_last_step(runs, folder, say):
    stage2 = runs("stage2")
    say(row(stage2))
    assert stage2.resumed == str(folder / f"stage1/global_step_{LAST}")
    assert stage2.steps == list(stage2.metrics) == [LAST + 1, LAST + 2]


@pytest.mark.slow
def test_stage_2_without_its_checkpoint_refuses_by_name(verl_with_recipes, inputs, tmp_path, temporary):
    missing = tmp_path / "global_step_600"
    outcome = recipe_scripts.run_script(verl_with_recipes, STAGE2, inputs, tmp_path / "stage2", stage1=missing)
    assert outcome.exit_code == 1 and outcome.steps == []
    assert f"no {missing}. Run stage 1" in outcome.log and "Traceback" not in outcome.log
    assert os.listdir(tmp_path / "stage2") == [recipe_scripts.LOG_FILE]


# The end


@pytest.mark.smoke("run_grpo_qwen2.5_math_7b.sh")
def test_a_training_whose_epochs_end_before_its_steps_fails(verl_with_recipes, tmp_path, temporary):
    """verl's exit code is 0. The check cannot know: of groups of two responses, the filter drops about half."""
    bigram.write(tmp_path / "inputs")
    pairs = [(band, band) for band in bands.BANDS for _ in range(6)]  # three batches of eight
    models.write_prompts(tmp_path / "inputs/train.parquet", "bands", pairs)
    added = ("trainer.total_epochs=1", "trainer.save_freq=1", "data.gen_batch_size=8", "actor_rollout_ref.rollout.n=2")
    script, folder = "run_grpo_qwen2.5_math_7b.sh", tmp_path / "run"
    outcome = recipe_scripts.run_script(verl_with_recipes, script, tmp_path / "inputs", folder, *added, steps=3)
    assert outcome.exit_code == 1 and len(outcome.steps) < 3, outcome.log[-5000:]
    assert "error: the training ended before step 3" in outcome.log
    assert f"Its last checkpoint is of step {len(outcome.steps)}." in outcome.log


# Every method


@pytest.mark.parametrize("script", [pytest.param(script, marks=pytest.mark.smoke(script)) for script in METHODS])
def test_script_trains(script, runs, say):
    outcome = runs(script)
    say(row(outcome))
    assert outcome.steps == [1, 2] and outcome.resumed is None
    for values in outcome.metrics.values():
        assert all(math.isfinite(value) for value in values.values()) and values["actor/grad_norm"] > 0


@pytest.mark.parametrize("script", [pytest.param(s, marks=pytest.mark.smoke(s)) for s in BASELINES])
def test_baseline_logs_era_and_scales_nothing(script, runs):
    outcome, stage1 = runs(script), runs("uninterrupted")
    for step in outcome.steps:
        values = outcome.metrics[step]
        assert values["era/scaled_token_fraction"] == 0
        assert {name for name in values if name.startswith("era/")} == {
            name for name in stage1.metrics[1] if name.startswith("era/")
        }
    # the first answers are drawn by the same policy with the same random numbers, whatever the loss
    for name in ("era/response_entropy", "era/top_entropy", "critic/score/mean", "response_length/mean"):
        assert outcome.metrics[1][name] == stage1.metrics[1][name]
    assert outcome.metrics[1]["actor/grad_norm"] != stage1.metrics[1]["actor/grad_norm"]


# Whatever has run


@pytest.mark.slow
@stages
def test_nothing_is_left_running_or_lying_about(runs, temporary):
    for name in ("resumed", "stage2", "uninterrupted"):
        runs(name)
    assert processes_with(**{MARK: temporary}) == os.listdir(temporary) == []
