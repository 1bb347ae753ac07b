# ruff: noqa: E402
"""era.rsl_rl in rsl_rl's own runner."""

import plugin_helpers

plugin_helpers.require()

import numpy as np
import onnx
import pytest
import torch
from plugin_helpers import RSL_RL_TARGET, gaussian_entropies, rsl_rl_configuration
from rsl_rl.runners import OnPolicyRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensordict import TensorDict

from examples.rsl_rl_ppo import PointsEnv

pytestmark = pytest.mark.usefixtures("one_thread")


def runner(tmp_path=None, env=None):
    torch.manual_seed(0)
    device = env.device if env else "cpu"
    log_dir = tmp_path and str(tmp_path)
    return OnPolicyRunner(env or PointsEnv(3), rsl_rl_configuration(), log_dir=log_dir, device=device)


def log_std(of, device="cpu"):
    obs = TensorDict({"policy": torch.randn(100, 3, device=device)}, batch_size=[100])
    with torch.no_grad():
        of.alg.actor(obs, stochastic_output=True)
    return of.alg.actor.output_std.log().cpu()


def test_the_entropy_is_the_target_after_training_and_loading(tmp_path):
    trained = runner(tmp_path)
    at_first = log_std(trained)
    np.testing.assert_allclose(gaussian_entropies(at_first), RSL_RL_TARGET, atol=1e-6)
    assert at_first.std() < 1e-6  # all alike
    trained.learn(10)
    found = log_std(trained)
    np.testing.assert_allclose(gaussian_entropies(found), RSL_RL_TARGET, atol=1e-6)
    assert found.std(0).max() > 1e-4

    events = EventAccumulator(str(tmp_path)).Reload()
    entropies = [event.value / 3 for event in events.Scalars("Loss/entropy")]
    assert entropies == pytest.approx([RSL_RL_TARGET] * 10, abs=1e-5)
    assert events.Scalars("Policy/mean_std")

    trained.save(str(tmp_path / "model.pt"))
    loaded = runner()
    loaded.load(str(tmp_path / "model.pt"))
    obs = PointsEnv(3).get_observations()
    action = trained.get_inference_policy()(obs)
    torch.testing.assert_close(loaded.get_inference_policy()(obs), action, rtol=0, atol=0)
    trained.export_policy_to_jit(str(tmp_path))
    torch.testing.assert_close(torch.jit.load(str(tmp_path / "policy.pt"))(obs["policy"]), action)
    trained.export_policy_to_onnx(str(tmp_path))
    assert onnx.load(str(tmp_path / "policy.onnx")).graph.output[0].name == "actions"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu():
    trained = runner(env=PointsEnv(3, "cuda"))
    trained.learn(5)
    np.testing.assert_allclose(gaussian_entropies(log_std(trained, "cuda")), RSL_RL_TARGET, atol=1e-6)
