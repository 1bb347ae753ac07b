# ruff: noqa: E402
"""era.stable_baselines3 in real trainings on a small task, and docs/control/plug-ins.md's examples as they stand."""

import plugin_helpers

plugin_helpers.require()

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from plugin_helpers import OBSERVATIONS, Reach, Seen, gaussian_entropies
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv

from era.stable_baselines3 import EraActorCriticPolicy, EraMetrics, EraSACPolicy

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = {PPO: {"n_steps": 64}, A2C: {}, SAC: {"learning_starts": 50, "ent_coef": 0.0, "batch_size": 64}}
CASES = {
    "PPO": (PPO, EraActorCriticPolicy, {"target_entropy": -0.3}),
    "A2C": (A2C, EraActorCriticPolicy, {"target_entropy": 0.3}),
    "SAC, truncated": (SAC, EraSACPolicy, {"target_entropy": -0.5, "distribution": "truncated"}),
    "SAC, tanh": (SAC, EraSACPolicy, {"target_entropy": -1.0, "distribution": "tanh"}),
    "SAC, clipped": (SAC, EraSACPolicy, {"target_entropy": -1.0, "distribution": "clipped"}),
}


def make(case, n_envs=2, env=Reach, device="cpu", **changes):
    algorithm, policy, kwargs = CASES[case]
    settings = {**STEPS[algorithm], "seed": 1, "policy_kwargs": {**kwargs, "net_arch": [32]}, **changes}
    return algorithm(policy, DummyVecEnv([env] * n_envs), device=device, **settings)


def log_std(model, device="cpu"):
    obs = torch.tensor(OBSERVATIONS, device=device)
    with torch.no_grad():
        if isinstance(model, SAC):
            return model.actor.get_action_dist_params(obs)[1]
        return model.policy.get_distribution(obs).distribution.stddev.log()


def same_parameters(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_entropy_is_the_target_after_training_and_loading(case, tmp_path):
    target = CASES[case][2]["target_entropy"]
    model = make(case)
    np.testing.assert_allclose(gaussian_entropies(log_std(model)), target, atol=1e-6)
    model.learn(400)
    found = log_std(model)
    assert found.std(0).max() > 1e-4 and found.min() > -8  # sigma depends on the state, and is not clipped
    np.testing.assert_allclose(gaussian_entropies(found), target, atol=1e-6)

    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    loaded = type(model).load(tmp_path / "model", env=model.env)
    policies = [model.policy, loaded.policy, type(model.policy).load(tmp_path / "policy")]
    actions = [policy.predict(OBSERVATIONS, deterministic=True)[0] for policy in policies]
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])
    torch.testing.assert_close(log_std(loaded), found, rtol=0, atol=0)
    loaded.learn(100)  # and it goes on
    np.testing.assert_allclose(gaussian_entropies(log_std(loaded)), target, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("SAC")])
def test_sacs_actions_and_log_probs(case):
    model = make(case)
    model.learn(200)
    obs = torch.tensor(OBSERVATIONS)
    with torch.no_grad():
        mean = model.actor.mu(model.actor.latent_pi(obs))
    scaled = model.policy.scale_action(model.predict(OBSERVATIONS, deterministic=True)[0])
    np.testing.assert_allclose(scaled, mean.tanh(), atol=1e-6)
    returns, _ = evaluate_policy(model, model.env, n_eval_episodes=2, deterministic=True)
    assert np.isfinite(returns)
    actions, log_prob = model.actor.action_log_prob(obs)
    assert (actions.abs() <= 1).all() and log_prob.isfinite().all()
    if case == "SAC, truncated":
        std, loc = log_std(model).double().exp(), mean.double().tanh()
        normal = torch.distributions.Normal(loc, std)
        mass = normal.cdf(torch.ones(3)) - normal.cdf(-torch.ones(3))
        expected = (normal.log_prob(actions.detach().double()) - mass.log()).sum(-1)
        torch.testing.assert_close(log_prob.detach().double(), expected, rtol=1e-4, atol=1e-4)


def test_ppos_log_prob_is_that_of_the_unclipped_action():
    model = make("PPO")
    obs, actions = torch.tensor(OBSERVATIONS), 3 * torch.randn(len(OBSERVATIONS), 3)
    _, log_prob, entropy = model.policy.evaluate_actions(obs, actions)
    mean = model.policy.get_distribution(obs).mode()
    normal = torch.distributions.Normal(mean, log_std(model).exp())
    torch.testing.assert_close(log_prob, normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(entropy, normal.entropy().sum(-1))
    torch.testing.assert_close(torch.tensor(model.predict(OBSERVATIONS, deterministic=True)[0]), mean.clamp(-2, 1))


@pytest.mark.parametrize("case", ["PPO", "SAC, truncated"])
@pytest.mark.parametrize("kind, extractor", [("dictionary", CombinedExtractor), ("image", NatureCNN)])
def test_other_observations(case, kind, extractor, tmp_path):
    changes = {"buffer_size": 200} if "SAC" in case else {}
    model = make(case, env=lambda: Seen(kind), **changes)
    assert isinstance((model.actor if "SAC" in case else model.policy).features_extractor, extractor)
    model.learn(140, callback=EraMetrics(), log_interval=1000)
    found = model.logger.name_to_value["era/gaussian_entropy_per_dim"]
    assert found == pytest.approx(CASES[case][2]["target_entropy"], abs=1e-5)
    model.policy.save(tmp_path / "policy")
    type(model.policy).load(tmp_path / "policy")


def test_a_target_in_other_units_than_minus_1_to_1_is_said():
    """Silent otherwise: the metrics are at the target, whatever the actions are."""
    rescaled = lambda: gymnasium.wrappers.RescaleAction(Reach(), np.float32(-1), np.float32(1))  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make("PPO", env=rescaled)
    with pytest.warns(UserWarning, match="units of the actions, which are from -2 to 1 here.*RescaleAction"):
        make("PPO")


# Metrics


class Kept(EraMetrics):
    """What the logger got, and the states."""

    def _on_training_start(self):
        super()._on_training_start()
        self.rows, self.batches = [], []

    def entropies(self, obs):
        self.batches.append(obs.clone())
        return super().entropies(obs)

    def _on_rollout_end(self):
        before = len(self.batches)
        super()._on_rollout_end()
        if len(self.batches) > before:
            names = ("entropy_per_dim", "min_entropy_per_dim", "gaussian_entropy_per_dim")
            self.rows.append([self.logger.name_to_value[f"era/{name}"] for name in names])


@pytest.mark.parametrize("case", ["PPO", "A2C", "SAC, truncated", "SAC, tanh"])
def test_metrics_are_the_policys_and_change_no_training(case):
    metrics = Kept(freq=100)
    model = make(case).learn(400, callback=metrics)
    without = make(case).learn(400)
    assert same_parameters(model.policy, without.policy)
    assert 3 <= len(metrics.rows) <= 5
    target = CASES[case][2]["target_entropy"]
    for (entropy, least, gaussian), obs in zip(metrics.rows, metrics.batches):
        assert gaussian == pytest.approx(target, abs=1e-5)
        assert least <= entropy + 1e-6 and len(obs) > 1
        if case.startswith("SAC"):
            assert entropy < gaussian
        else:
            assert entropy == pytest.approx(gaussian, abs=1e-5)


class Shaping(BaseCallback):
    """Changes rewards at the end of a rollout and computes the advantages again, as callbacks of users do."""

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        observations = buffer.observations
        seen = observations["a"] if isinstance(observations, dict) else observations
        self.shapes = seen.shape, buffer.advantages.shape
        buffer.rewards[:] = buffer.rewards - 0.1
        buffer.compute_returns_and_advantage(torch.zeros(buffer.n_envs), np.ones(buffer.n_envs))


@pytest.mark.parametrize("n_envs, env", [(1, Reach), (4, Reach), (4, lambda: Seen("dictionary"))])
def test_metrics_leave_the_rollout_to_other_callbacks(n_envs, env):
    alone, beside = Shaping(), Shaping()
    without = make("PPO", n_envs, env).learn(64 * n_envs, callback=alone)
    model = make("PPO", n_envs, env).learn(64 * n_envs, callback=[EraMetrics(freq=1), beside])
    assert beside.shapes == alone.shapes == ((64, n_envs, 4), (64, n_envs))
    assert same_parameters(model.policy, without.policy)


@pytest.mark.parametrize("case", ["PPO", "A2C", "SAC, truncated"])
def test_a_short_run_shows_the_metrics(case, capsys):
    """With EraMetrics as it is: one line after the first rollout, and numbers in each row of the log."""
    make(case, verbose=1).learn(400, callback=EraMetrics(), log_interval=1 if case == "PPO" else 10)
    printed = capsys.readouterr().out
    target = CASES[case][2]["target_entropy"]
    assert printed.count("ERA after") == 1 and f" for a target of {target}; entropy_per_dim " in printed
    rows = printed.count("total_timesteps ")
    assert rows > 1 and printed.count("|    gaussian_entropy_per_dim | ") == rows
    make(case).learn(100, callback=EraMetrics())
    assert "ERA" not in capsys.readouterr().out  # verbose=0


def test_a_run_within_learning_starts_says_so(capsys):
    make("SAC, truncated", verbose=1).learn(20, callback=EraMetrics())
    assert "ERA measured nothing: 20 steps are within learning_starts" in capsys.readouterr().out


@pytest.mark.parametrize("freq", [0, -1000, float("nan"), float("inf")])
def test_other_frequencies_are_refused(freq):
    with pytest.raises(ValueError, match="freq = .* 1 or more"):
        EraMetrics(freq=freq)


# By their headings in docs/control/plug-ins.md: what each example holds.
EXAMPLES = {"PPO and A2C in stable-baselines3": -0.3, "SAC in stable-baselines3": -0.5, "SAC in sbx": -0.5}


@pytest.mark.parametrize("heading", EXAMPLES)
def test_examples(run_example, heading, capsys):
    left, target = run_example("control/plug-ins.md", heading), EXAMPLES[heading]
    assert "gaussian_entropy_per_dim" in capsys.readouterr().out  # a reader who copies it sees its metrics
    metrics = left["EraMetrics"]()
    metrics.init_callback(left["model"])
    with torch.no_grad():
        entropy = gaussian_entropies(metrics.entropies(metrics.states())[1])
    assert entropy.min() > target - 1e-6  # more where a sigma is clipped, as it is in some states of these SAC runs
    assert np.median(entropy) == pytest.approx(target, abs=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(case, tmp_path):
    model = make(case, device="cuda")
    model.learn(300, callback=EraMetrics(freq=100))
    assert log_std(model, "cuda").device.type == "cuda"
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", device="cpu")
    target = CASES[case][2]["target_entropy"]
    np.testing.assert_allclose(gaussian_entropies(log_std(loaded)), target, atol=1e-6)
