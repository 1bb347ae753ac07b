# ruff: noqa: E402
"""era.rsl_rl in rsl_rl's own runner."""

import copy

import plugin_helpers

plugin_helpers.require()

import numpy as np
import onnx
import pytest
import torch
from plugin_helpers import gaussian_entropies
from points import PointsEnv
from rsl_rl.runners import OnPolicyRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensordict import TensorDict

pytestmark = pytest.mark.usefixtures("one_thread")
TARGET = -0.3
MLP = {"class_name": "MLPModel", "hidden_dims": [32], "activation": "elu"}
ERA = {"class_name": "era.rsl_rl:EraGaussianDistribution", "target_entropy": TARGET}
CONFIGURATION = {
    "num_steps_per_env": 8,
    "save_interval": 100,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": {**MLP, "obs_normalization": True, "distribution_cfg": ERA},
    "critic": MLP,
    "algorithm": {"class_name": "PPO", "entropy_coef": 0.0},
}


def configuration(algorithm=None, **settings):
    """The runner's configuration, with changes of PPO's settings and of ERA's distribution."""
    made = copy.deepcopy(CONFIGURATION)
    made["algorithm"].update(algorithm or {})
    made["actor"]["distribution_cfg"].update(settings)
    return made


def runner(tmp_path=None, env=None):
    torch.manual_seed(0)
    device = env.device if env else "cpu"
    return OnPolicyRunner(env or PointsEnv(3), configuration(), log_dir=tmp_path and str(tmp_path), device=device)


def log_std(of, device="cpu"):
    obs = TensorDict({"policy": torch.randn(100, 3, device=device)}, batch_size=[100])
    with torch.no_grad():
        of.alg.actor(obs, stochastic_output=True)
    return of.alg.actor.output_std.log().cpu()


def test_the_entropy_is_the_target_after_training_and_loading(tmp_path):
    trained = runner(tmp_path)
    at_first = log_std(trained)
    np.testing.assert_allclose(gaussian_entropies(at_first), TARGET, atol=1e-6)
    assert at_first.std() < 1e-6  # all alike
    trained.learn(10)
    found = log_std(trained)
    np.testing.assert_allclose(gaussian_entropies(found), TARGET, atol=1e-6)
    assert found.std(0).max() > 1e-4

    events = EventAccumulator(str(tmp_path)).Reload()
    entropies = [event.value / 3 for event in events.Scalars("Loss/entropy")]
    assert entropies == pytest.approx([TARGET] * 10, abs=1e-5)
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
    np.testing.assert_allclose(gaussian_entropies(log_std(trained, "cuda")), TARGET, atol=1e-6)
