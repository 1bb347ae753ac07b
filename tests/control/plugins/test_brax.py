# ruff: noqa: E402
"""era.brax in brax's own PPO and SAC."""

import math
from functools import partial

import pytest

pytest.importorskip("brax", reason="pip install '.[brax]'")

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import Env, State
from brax.training.agents.ppo import checkpoint as ppo_checkpoint
from brax.training.agents.ppo import networks as ppo_networks
from brax.training.agents.ppo import train as ppo
from brax.training.agents.sac import train as sac

from era.brax import EraTanhDistribution, make_ppo_networks, make_sac_networks

C = 0.5 * math.log(2 * math.pi * math.e)
TARGET, LOW, HIGH = -0.3, -8.0, 0.0
SIZES = {"policy_hidden_layer_sizes": (16,), "value_hidden_layer_sizes": (16,)}
FACTORY = partial(make_ppo_networks, target_entropy=TARGET, **SIZES)
OBSERVATIONS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


class Points(Env):
    """Move a point to the origin. Observations are arrays."""

    observation_size, action_size, backend = 3, 3, "none"

    def seen(self, point):
        return point

    def reset(self, rng):
        point = jax.random.normal(rng, (3,))
        return State(point, self.seen(point), jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        point = state.pipeline_state + 0.1 * action
        return state.replace(pipeline_state=point, obs=self.seen(point), reward=-jnp.square(point).sum())


class Named(Points):
    """Observations as mujoco_playground has them; of arrays brax 0.14.2 loads no checkpoint."""

    observation_size = {"state": 3}

    def seen(self, point):
        return {"state": point}


def train(factory=FACTORY, **changes):
    settings = {"num_timesteps": 150_000, "episode_length": 20, "num_envs": 32, "batch_size": 32, "unroll_length": 10}
    settings |= {"num_minibatches": 4, "num_updates_per_batch": 4, "learning_rate": 3e-3, "num_evals": 1}
    settings |= {"entropy_cost": 0.0, "normalize_observations": True, "run_evals": False, **changes}
    return ppo.train(Named(), network_factory=factory, **settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints")
    return (*train(save_checkpoint_path=str(path)), next(path.iterdir()))


def log_stds(make_policy, params):
    """ln sigma of the policy's Gaussian, (B, D), from what the policy says of the samples that it drew."""
    _, extras = jax.jit(make_policy(params))({"state": OBSERVATIONS}, jax.random.key(0))
    scale = EraTanhDistribution(3, TARGET, LOW, HIGH).create_dist(extras["distribution_params"]).scale
    loc = np.asarray(extras["distribution_params"], np.float64)[:, :3]
    action, log_std = np.asarray(extras["raw_action"], np.float64), np.log(np.asarray(scale, np.float64))
    density = -0.5 * ((action - loc) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    density -= np.log1p(-(np.tanh(action) ** 2))
    np.testing.assert_allclose(extras["log_prob"], density.sum(-1), atol=2e-4)
    return log_std


def test_the_distribution_is_eras_in_fp64():
    """Through jit and vmap, with its gradient by differences, clipped sigmas included."""
    rng = np.random.default_rng(1)
    parameters = rng.normal(size=(50, 6))
    parameters[:10, 3:] *= 20
    with jax.enable_x64(True):
        head = EraTanhDistribution(3, -2.0, LOW, HIGH)
        found = jax.jit(jax.vmap(lambda x: head.create_dist(x).scale))(parameters)

        def reference(parameters):
            p = np.exp(parameters[:, 3:] - parameters[:, 3:].max(-1, keepdims=True))
            k = 3 * (-2.0 - C - HIGH)
            return np.maximum(HIGH + k * p / p.sum(-1, keepdims=True), LOW)

        np.testing.assert_allclose(np.log(found), reference(parameters), rtol=1e-12, atol=1e-12)
        entropy = (np.log(found) + C).mean(-1)
        assert entropy.min() > -2.0 - 1e-9 and entropy.max() > -1.9  # more where a sigma is clipped
        gradient = jax.grad(lambda x: jnp.log(head.create_dist(x).scale)[:, 0].sum())(jnp.asarray(parameters[10:]))
        step = np.zeros(6)
        step[4] = 1e-6
        difference = reference(parameters[10:] + step) - reference(parameters[10:] - step)
        np.testing.assert_allclose(gradient[:, 4], difference[:, 0] / 2e-6, rtol=1e-5, atol=1e-6)
        assert abs(gradient[:, 4]).max() > 0.1


def test_ppo_keeps_the_target_in_every_state(trained):
    make_policy, params, *_ = trained
    log_std = log_stds(make_policy, params)
    np.testing.assert_allclose((log_std + C).mean(-1), TARGET, atol=1e-6)
    assert log_std.std(0).max() > 1e-3
    action = make_policy(params, deterministic=True)({"state": OBSERVATIONS}, jax.random.key(0))[0]
    assert -np.corrcoef(action[:, 0], OBSERVATIONS[:, 0])[0, 1] > 0.5  # it has learned to go to the origin
    assert float(params[1]["params"]["trained_with_era"][0]) == 0


def test_sac_keeps_the_target_in_every_state():
    factory = partial(make_sac_networks, target_entropy=-0.5, hidden_layer_sizes=(16,))
    settings = {"num_timesteps": 3000, "episode_length": 20, "num_envs": 16, "batch_size": 64, "num_evals": 1}
    _, params, _ = sac.train(
        Points(), network_factory=factory, min_replay_size=200, max_replay_size=5000, num_eval_envs=4, **settings
    )
    networks = factory(3, 3)
    dist = networks.parametric_action_distribution.create_dist(networks.policy_network.apply(*params, OBSERVATIONS))
    entropy = (np.log(np.asarray(dist.scale, np.float64)) + C).mean(-1)
    np.testing.assert_allclose(entropy, -0.5, atol=1e-6)


def test_a_checkpoint_has_its_settings_and_loads_only_with_era(trained):
    make_policy, params, _, path = trained
    config = ppo_checkpoint.load_config(path).network_factory_kwargs
    assert config.target_entropy == TARGET and tuple(config.policy_hidden_layer_sizes) == (16,)
    policy = ppo_checkpoint.load_policy(path, partial(make_ppo_networks, target_entropy=1.0), deterministic=True)
    expected = make_policy(params, deterministic=True)({"state": OBSERVATIONS}, jax.random.key(0))[0]
    np.testing.assert_allclose(policy({"state": OBSERVATIONS}, jax.random.key(0))[0], expected, atol=1e-6)
    with pytest.raises(TypeError, match="unexpected keyword argument '(target_entropy|log_std_m..)'"):
        ppo_checkpoint.load_policy(path, ppo_networks.make_ppo_networks)
    with pytest.raises(ValueError, match="trained_with_era"):  # its optimizer
        train(partial(ppo_networks.make_ppo_networks, **SIZES), restore_checkpoint_path=str(path))


def test_weights_and_checkpoints_of_brax_are_refused(tmp_path):
    # brax 0.14.2 cannot read a configuration where this is None, its default.
    own = partial(ppo_networks.make_ppo_networks, mean_kernel_init_fn=jax.nn.initializers.lecun_uniform, **SIZES)
    train(own, num_timesteps=2000, save_checkpoint_path=str(tmp_path))
    path = next(tmp_path.iterdir())
    with pytest.raises(TypeError, match="distribution_type.*was trained without ERA"):
        ppo_checkpoint.load_policy(path, FACTORY)
    with pytest.raises(ValueError, match="do not say that they were trained with ERA"):
        train(restore_checkpoint_path=str(path))


REFUSED = {
    "missing": ({"target_entropy": None}, ValueError, "a number of nats per action"),
    "misspelt": ({"target_entropi": -0.3}, TypeError, "target_entropi"),
    "total": ({"target_entropy": -9.0}, ValueError, "not feasible"),
    "range": ({"log_std_min": 1.0}, ValueError, "log_std_min = 1.0"),
    "one dimension": ({"action_size": 1}, ValueError, "at least two dimensions"),
    "brax's std": ({"init_noise_std": 0.5}, TypeError, "init_noise_std: of a policy of brax without ERA"),
}


@pytest.mark.parametrize("factory", [make_ppo_networks, make_sac_networks])
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_silent_is_refused(factory, case):
    given, error, said = REFUSED[case]
    with pytest.raises(error, match=said):
        factory(**{"observation_size": 3, "action_size": 3, "target_entropy": TARGET, **given})


@pytest.mark.parametrize("factory", [make_ppo_networks, make_sac_networks])
def test_the_target_has_no_default_and_era_says_that_it_is_on(factory, capsys):
    with pytest.raises(TypeError, match="target_entropy"):
        factory(3, 3)
    assert "ERA is on" not in capsys.readouterr().err
    factory(3, 3, target_entropy=-0.4)
    said = "ERA is on: target_entropy = -0.4 nats per action dimension, sigma = 0.16 where all 3 dimensions are alike\n"
    assert capsys.readouterr().err == said
