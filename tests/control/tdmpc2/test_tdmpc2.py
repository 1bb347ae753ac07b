"""TD-MPC2 with ERA on a CPU: trainings of a few hundred steps, compared with upstream's, and what is refused."""

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tdmpc2_runs as runs
from helpers import assert_identical, importable

runs.require()

import hydra  # noqa: E402
import torch  # noqa: E402

from recipes.control.tdmpc2 import TDMPC2  # noqa: E402
from recipes.whole import incomplete_because  # noqa: E402

C = 0.5 * math.log(2 * math.pi * math.e)
LOW, HIGH, TARGET, DIM = -10, 2, -1, 6  # ln sigma: TD-MPC2's own range; walker has six action dimensions
TASK = "task=walker-walk"
SHORT = ("steps=200", "eval_freq=100", "csv_path=train.csv")
ERA = (f"era_target_entropy={TARGET}", "entropy_coef=0")
COLUMNS = ["eval_avg_return", "seconds", "cpu_seconds", "entropy_per_dim", "min_entropy_per_dim", "mean_log_std"]


def train(tree, folder, *keys):
    """A finished run in the folder, and what it computed."""
    script = Path(__file__).with_name("short_training.py")
    result = runs.run(tree, script, folder / "result.pt", TASK, *runs.TINY, *keys, folder=folder)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    return torch.load(folder / "result.pt", weights_only=False)


@pytest.fixture(scope="module")
def era_run(patched_tdmpc2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("era")
    return folder, train(patched_tdmpc2, folder, *SHORT, *ERA)


@pytest.mark.slow
def test_without_era_a_training_is_upstreams_to_the_bit(patched_tdmpc2, ported_tdmpc2, tmp_path):
    folders = [tmp_path / "upstream", tmp_path / "patched"]
    for folder in folders:
        folder.mkdir()
    upstream = train(ported_tdmpc2, folders[0], *SHORT[:2])
    patched = train(patched_tdmpc2, folders[1], *SHORT[:2])
    added = {"pi_gaussian_entropy", "pi_min_gaussian_entropy", "pi_log_std"}
    for update in patched["updates"]:
        assert added <= update.keys()
        for name in added:
            del update[name]
    assert len(upstream["updates"]) > 150
    assert_identical(upstream, patched)
    evaluations = [next(folder.glob("logs/*/*/*/eval.csv")).read_text() for folder in folders]
    assert evaluations[0] == evaluations[1] and not (folders[1] / "train.csv").exists()


def test_every_state_has_the_entropy_in_every_update(era_run):
    _, result = era_run
    smallest = [float(update["pi_min_gaussian_entropy"]) for update in result["updates"]]
    assert len(smallest) > 150 and min(smallest) >= TARGET - 1e-5


def test_ln_sigma_of_the_prior_is_the_papers(era_run):
    _, result = era_run
    pre_std = result["pre_std"].double().numpy()
    share = np.exp(pre_std - pre_std.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    expected = np.maximum(HIGH + DIM * (TARGET - C - HIGH) * share, LOW)
    np.testing.assert_allclose(result["log_std"].numpy(), expected, rtol=1e-5, atol=1e-4)
    entropy = expected.mean(-1) + C
    assert (expected == LOW).any() and entropy.min() > TARGET - 1e-12 and entropy.max() > TARGET + 0.1
    assert np.ptp(expected, axis=-1).min() > 0


def test_curves_and_record_of_a_run(era_run):
    folder, result = era_run
    with (folder / "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row.pop("global_step") for row in rows] == ["0", "100", "200"]
    assert all(list(row) == COLUMNS for row in rows) and rows[0]["entropy_per_dim"] == ""
    for name, logged in (("min_entropy_per_dim", "pi_min_gaussian_entropy"), ("mean_log_std", "pi_log_std")):
        assert float(rows[-1][name]) in [pytest.approx(float(update[logged])) for update in result["updates"][-2:]]
    upstreams = next(folder.glob("logs/*/*/*/eval.csv")).read_text().split()[1:]
    returns = [float(line.split(",")[1]) for line in upstreams]
    assert [float(row["eval_avg_return"]) for row in rows] == pytest.approx(returns, rel=1e-5)
    record = json.loads((folder / "run.json").read_text())
    expected = {"host": "tdmpc2", "task": "walker-walk", "agent": "tdmpc2_era", "seed": 1, "total_steps": 200}
    expected["episode_length"] = 20  # short_training.py's
    assert expected.items() <= record.items() and record["finished"] and record["ended"] >= record["started"]
    assert incomplete_because(folder) == ""


@pytest.mark.parametrize(
    "given, said",
    [
        ({"era_target_entropy": 3.5}, "between -8.5811 and 3.4189 per dimension"),
        ({"entropy_coef": 1e-4}, "entropy_coef=0.0001"),
        ({"multitask": True, "task": "mt30"}, "task=mt30"),
        ({"action_dim": 1, "task": "acrobot-swingup"}, "at least two dimensions"),
    ],
)
def test_settings_that_era_cannot_hold_are_refused(patched_tdmpc2, given, said):
    plain = {"task": "walker-walk", "multitask": False, "action_dim": 6, "log_std_min": LOW, "log_std_max": HIGH}
    with importable(patched_tdmpc2 / "tdmpc2", "common", "common.era_policy") as found:
        check = vars(found)["common.era_policy"].check
        check(SimpleNamespace(**{**plain, **given, "era_target_entropy": None}))
        check(SimpleNamespace(**plain, era_target_entropy=-1, entropy_coef=0))
        with pytest.raises(SystemExit, match=said):
            check(SimpleNamespace(**{**plain, "era_target_entropy": -1, "entropy_coef": 0, **given}))


@pytest.mark.parametrize("script", ["train.py", pytest.param("evaluate.py", marks=pytest.mark.slow)])
def test_a_refusal_has_no_traceback(patched_tdmpc2, tmp_path, script):
    keys = (*runs.TINY, "task=acrobot-swingup", "era_target_entropy=-1", "entropy_coef=0", "checkpoint=none.pt")
    result = runs.run(patched_tdmpc2, patched_tdmpc2 / "tdmpc2" / script, *keys, folder=tmp_path)
    assert result.returncode and "Traceback" not in result.stderr and "at least two dimensions" in result.stderr


@pytest.mark.slow
def test_a_checkpoint_is_evaluated(patched_tdmpc2, era_run, tmp_path):
    (checkpoint,) = era_run[0].glob("logs/*/*/*/models/final.pt")
    keys = (TASK, *runs.TINY, *ERA, f"checkpoint={checkpoint}", "save_video=false")
    result = runs.run(patched_tdmpc2, patched_tdmpc2 / "tdmpc2/evaluate.py", *keys, folder=tmp_path)
    assert result.returncode == 0 and "R: " in result.stdout, result.stdout + result.stderr


def test_the_papers_runs_are_configured_as_meant(patched_tdmpc2):
    grid = TDMPC2("tdmpc2").runs
    with hydra.initialize_config_dir(str(patched_tdmpc2 / "tdmpc2"), version_base=None):
        for run in grid:
            cfg = hydra.compose("config", [key for key in run.command[1:] if not key.startswith("hydra.")])
            target, bonus = (TARGET, 0) if run.agent == "tdmpc2_era" else (None, 1e-4)
            assert (cfg.era_target_entropy, cfg.entropy_coef, cfg.steps) == (target, bonus, 7_000_000)
            assert (cfg.log_std_min, cfg.log_std_max, cfg.csv_path) == (LOW, HIGH, "train.csv")
            assert run.name == f"{cfg.task}-{run.agent}-seed{cfg.seed}"
