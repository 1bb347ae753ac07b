"""The real run scripts on a CPU, with the real trainer and a tiny model: stages, kill and resumption, baselines.

The runs are started two at a time, by the first test that needs one; each test waits for its own.
"""

import itertools
import json
import math
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from helpers import processes_with

from demo.llm import bands, bigram
from tools.smoke import llm as smoke

pytestmark = pytest.mark.slow

MARK = "ERA_SMOKE_TEST"  # environment variable by which processes are found again, whoever their parent is
FORKING, KL_COV, CLIP_COV, GSPO = (
    f"run_{name}_qwen2.5_math_7b.sh" for name in ("forking_tokens", "kl_cov", "clip_cov", "gspo")
)
BASELINES = (KL_COV, CLIP_COV, FORKING, GSPO)
LAST = smoke.STAGE1_STEPS
PROMPTS = smoke.PAPER_BATCH // smoke.SHRINK
LEARNING_RATE, BETA1, BETA2, EPSILON = 1e-6, 0.9, 0.999, 1e-8  # of the recipe; of verl's optimizer


@pytest.fixture(scope="module")
def temporary():
    """Of the runs' processes, and so short that Ray's folders lie in it."""
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
def tree(patched_verl, tmp_path_factory):
    return smoke.tree(patched_verl, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints, = and more")


@pytest.fixture(scope="module")
def runs(tree, inputs, folder, temporary):
    """runs(name): the outcome of the run, once it is there."""

    def run(script, name, *added, **settings):
        return smoke.run_script(tree, script, inputs, folder / name, *added, **settings)

    def stages():
        killed = run(smoke.STAGE1, "stage1", steps=LAST, kill_after=smoke.KILL_AFTER)
        resumed = run(smoke.STAGE1, "stage1", steps=LAST)
        # it saves after its first step too, for the arithmetic of that step
        stage2 = run(
            smoke.STAGE2, "stage2", "trainer.save_freq=1", steps=LAST + 2, stage1=folder / f"stage1/global_step_{LAST}"
        )
        return {"killed": killed, "resumed": resumed, "stage2": stage2}

    with ThreadPoolExecutor(2) as pool:
        stages_to_come = pool.submit(stages)
        others = {"uninterrupted": pool.submit(run, smoke.STAGE1, "uninterrupted", steps=LAST)}
        others |= {script: pool.submit(run, script, script) for script in BASELINES}
        yield lambda name: succeeded(others[name].result() if name in others else stages_to_come.result()[name])
        pool.shutdown(cancel_futures=True)


def succeeded(outcome):
    assert not outcome.failed, f"{outcome.script} ended with exit code {outcome.exit_code}:\n{outcome.log[-5000:]}"
    return outcome


def checkpoint(folder, step, kind="model"):
    return torch.load(folder / f"global_step_{step}/actor/{kind}_world_size_1_rank_0.pt", weights_only=False)


def learned(metrics):
    """What of a step's metrics does not depend on the machine's speed and memory."""
    return {name: value for name, value in metrics.items() if not name.startswith(("timing", "perf"))}


# Kill and resumption


def test_killed_run_left_no_process_and_all_metrics_of_its_steps(runs):
    killed = runs("killed")
    assert killed.exit_code == -9 and killed.resumed is None
    assert killed.steps == list(range(1, killed.steps[-1] + 1)) and smoke.KILL_AFTER <= killed.steps[-1] < LAST
    assert list(killed.metrics) == killed.steps


def test_resumed_run_goes_on_from_the_last_checkpoint_and_ends(runs, folder):
    killed, resumed = runs("killed"), runs("resumed")
    saved = killed.steps[-1] // smoke.SAVE_FREQ * smoke.SAVE_FREQ
    assert resumed.exit_code == 0 and resumed.resumed == str(folder / f"stage1/global_step_{saved}")
    assert resumed.steps == list(range(saved + 1, LAST + 1))
    assert list(resumed.metrics) == list(range(1, LAST + 1))
    lines = [json.loads(line)["step"] for line in (folder / "stage1/metrics.jsonl").read_text().splitlines()]
    assert lines == killed.steps + resumed.steps  # so the steps after the checkpoint are there twice


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


def test_omegas_of_each_stage_are_in_effect(runs):
    """Bands "a" and "b" are below stage 1's omega_low, only "a" is below stage 2's; "d" is above omega_high."""
    first_stage, second_stage = runs("uninterrupted").metrics, runs("stage2").metrics
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


def test_stage_2_counts_on_from_stage_1(runs, folder):
    stage2 = runs("stage2")
    assert stage2.resumed == str(folder / f"stage1/global_step_{LAST}")
    assert stage2.steps == list(stage2.metrics) == [LAST + 1, LAST + 2]
    assert (folder / "stage2/latest_checkpointed_iteration.txt").read_text() == str(LAST + 2)


def adam(folder, step):
    """Weights, numbers of steps, and first and second moments of a checkpoint, each as one vector."""
    states = checkpoint(folder, step, "optim")["state"].values()
    return SimpleNamespace(
        weights=torch.cat([tensor.flatten() for tensor in checkpoint(folder, step).values()]).double(),
        steps={int(state["step"]) for state in states},
        first=torch.cat([state["exp_avg"] for state in states]).double(),
        second=torch.cat([state["exp_avg_sq"] for state in states]).double(),
    )


def test_stage_2_starts_from_stage_1s_weights_and_optimizer(runs, folder):
    """Its first step is Adam's from there: the first moments give the gradient, and that all else."""
    runs("stage2")
    before, after = adam(folder / "stage1", LAST), adam(folder / "stage2", LAST + 1)
    assert (before.steps, after.steps) == ({LAST}, {LAST + 1})
    gradient = (after.first - BETA1 * before.first) / (1 - BETA1)
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(after.second, BETA2 * before.second + (1 - BETA2) * gradient**2, rtol=1e-4, atol=1e-12)
    first, second = after.first / (1 - BETA1 ** (LAST + 1)), after.second / (1 - BETA2 ** (LAST + 1))
    step = LEARNING_RATE * first / (second.sqrt() + EPSILON)
    torch.testing.assert_close(after.weights, before.weights - step, rtol=2e-7, atol=1e-10)
    assert (step.abs() > 1e-7).sum() > 1000  # most of which are far above the tolerance


def test_stage_2_without_its_checkpoint_refuses_by_name(tree, inputs, tmp_path, temporary):
    missing = tmp_path / "global_step_600"
    outcome = smoke.run_script(tree, smoke.STAGE2, inputs, tmp_path / "stage2", stage1=missing)
    assert outcome.exit_code == 1 and outcome.steps == []
    assert f"no {missing}" in outcome.log and smoke.STAGE1 in outcome.log and "Traceback" not in outcome.log
    assert os.listdir(tmp_path / "stage2") == [smoke.LOG_FILE]


# The baselines


@pytest.mark.parametrize("script", BASELINES)
def test_baseline_trains_and_logs_era_without_scaling(script, runs):
    outcome, stage1 = runs(script), runs("uninterrupted")
    assert outcome.steps == [1, 2] and outcome.resumed is None
    for step in outcome.steps:
        values = outcome.metrics[step]
        assert all(math.isfinite(value) for value in values.values())
        assert values["actor/grad_norm"] > 0 and values["era/scaled_token_fraction"] == 0
        assert {name for name in values if name.startswith("era/")} == {
            name for name in stage1.metrics[1] if name.startswith("era/")
        }
    # the first answers are drawn by the same policy with the same random numbers, whatever the loss
    for name in ("era/response_entropy", "era/top_entropy", "critic/score/mean", "response_length/mean"):
        assert outcome.metrics[1][name] == stage1.metrics[1][name]
    assert outcome.metrics[1]["actor/grad_norm"] != stage1.metrics[1]["actor/grad_norm"]


def test_era_scales_tokens_where_the_baselines_do_not(runs):
    assert all(values["era/scaled_token_fraction"] > 0 for values in runs("uninterrupted").metrics.values())


@pytest.mark.parametrize("script", (KL_COV, CLIP_COV))
def test_covariance_losses_take_several_mini_batches_a_step(script, runs):
    """From the second mini-batch on the policy is no longer the one that sampled; stage 1 has one mini-batch."""
    assert all(values["actor/ppo_kl"] != 0 for values in runs(script).metrics.values())
    assert all(values["actor/ppo_kl"] == 0 for values in runs("uninterrupted").metrics.values())


def test_covariance_losses_log_their_own_metrics(runs):
    """Clip-Cov logs the share of tokens that it detached; KL-Cov detaches none; its KL is a mean of absolute values."""
    clip_cov, kl_cov = runs(CLIP_COV).metrics, runs(KL_COV).metrics
    tokens = PROMPTS * 8 * bands.RESPONSE_LENGTH
    for step in (1, 2):
        # one token of a mini-batch at most, since 0.0002 of its tokens are less than one
        assert 0 < clip_cov[step]["actor/pg_clipfrac"] < 2 * PROMPTS / tokens
        assert kl_cov[step]["actor/pg_clipfrac"] == 0
        assert kl_cov[step]["actor/ppo_kl"] > 5 * abs(clip_cov[step]["actor/ppo_kl"])


def test_forking_tokens_are_a_fifth_of_the_batch(runs):
    """The 20 % of highest entropy; equal entropies at the threshold, of which a band has many, all belong to them."""
    for values in runs(FORKING).metrics.values():
        assert 0.2 <= values["forking/token_fraction"] < 1
        assert (
            min(bands.ENTROPIES.values()) < values["forking/entropy_threshold"] < max(bands.ENTROPIES.values()) + 1e-3
        )


def test_gspo_weighs_responses_equally(runs):
    """The advantages of each group sum to 0 over the responses, and over the tokens only where all are equally long."""
    gspo, stage1 = runs(GSPO).metrics, runs("uninterrupted").metrics
    assert "'loss_mode': 'gspo'" in runs(GSPO).log
    assert abs(gspo[1]["actor/pg_loss"]) < 1e-5 < 1e-3 < abs(stage1[1]["critic/advantages/mean"])


# Whatever has run


def test_nothing_is_left_running_or_lying_about(runs, temporary):
    for name in ("resumed", "stage2", "uninterrupted", *BASELINES):
        runs(name)
    assert processes_with(**{MARK: temporary}) == os.listdir(temporary) == []
