# ruff: noqa: E402
"""The examples of docs/control/plug-ins.md run as they stand, and hold what the page says."""

import plugin_helpers

plugin_helpers.require()

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("one_thread")
TARGETS = {
    "PPO and A2C in stable-baselines3": -0.3,
    "SAC in stable-baselines3": -0.5,
    "SAC in sbx": -0.5,
}


@pytest.mark.parametrize("heading", TARGETS)
def test_examples(run_example, heading, capsys):
    left, target = run_example("control/plug-ins.md", heading), TARGETS[heading]
    assert "gaussian_entropy_per_dim" in capsys.readouterr().out  # a reader who copies it sees its metrics
    metrics = left["EraMetrics"]()
    metrics.init_callback(left["model"])
    with torch.no_grad():
        log_std = metrics.entropies(metrics.states())[1]
    entropy = plugin_helpers.gaussian_entropies(log_std)
    assert entropy.min() > target - 1e-6  # more where a sigma is clipped, as it is in some states of these SAC runs
    assert np.median(entropy) == pytest.approx(target, abs=1e-6)
