"""FastSAC-ERA's actor beside FastTD3's, and what the training scripts do with it."""

import math

import numpy as np
import pytest
import torch
from control_helpers import C
from scipy import stats

SIZES = {"n_obs": 6, "n_act": 3, "num_envs": 4, "init_scale": 0.5, "hidden_dim": 32}
SIZES |= {"std_min": 0.1, "std_max": 0.4, "device": "cpu"}
ERA = {"distribution": "truncated", "target_entropy": -0.5, "learn_delta": False, "level": "state"}
ERA |= {"log_std_min": -8.0, "log_std_max": 0.0}
MULTI = {"num_tasks": 5, "task_embedding_dim": 4}
VARIANTS = [
    {},
    {"learn_delta": True},
    {"distribution": "tanh", "level": "batch"},
    {"distribution": "clipped", "level": "batch", "learn_delta": True, "target_entropy": -1.0},
]
variants = pytest.mark.parametrize(
    "settings", VARIANTS, ids=lambda settings: "-".join(map(str, settings.values())) or "default"
)


@pytest.fixture
def make(modules):
    def make(cls="Actor", **settings):
        torch.manual_seed(0)
        tasks = MULTI if cls == "MultiTaskActor" else {}
        return getattr(modules.fastsac_era, cls)(**{**SIZES, **ERA, **tasks, **settings})

    return make


@pytest.fixture
def obs():
    return 2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def multi_task_observations():
    generator = torch.Generator().manual_seed(1)
    task = torch.nn.functional.one_hot(torch.tensor([0, 3, 3, 4]), 5)
    return torch.cat([torch.randn(4, 2, generator=generator), task], -1)  # n_obs = 2 + an embedding of 4


def fasttd3_twin(modules, actor, cls="Actor"):
    """FastTD3's own actor with the same weights. load_state_dict is strict: no part of ERA may remain in the state."""
    twin = getattr(modules.fast_td3, cls)(**SIZES, **(MULTI if cls == "MultiTaskActor" else {}))
    twin.load_state_dict(modules.fastsac_era.fasttd3_state(actor.state_dict()))
    return twin


def trunk(actor, obs):
    """What the last layers get. FastTD3 229ed59 has made two networks of one."""
    return getattr(actor, "fc_head", torch.nn.Identity())(actor.net(obs))


def moments(actor, obs) -> tuple:
    """Mean and ln sigma of the state-level Gaussian from the paper's formula, in NumPy."""
    features = trunk(actor, obs).detach()
    mean = actor.fc_mu[0](features).detach().double().numpy()
    pre_std = actor.fc_std(features).detach().double().numpy()
    share = np.exp(pre_std) / np.exp(pre_std).sum(-1, keepdims=True)
    dim, high = actor.n_act, actor.log_std_max
    log_std = high + (actor.target_entropy - dim * C - dim * high) * share
    return mean, np.maximum(log_std, actor.log_std_min)


@variants
def test_without_sampling_it_is_fasttd3s_actor(modules, make, obs, settings):
    actor = make(**settings)
    twin = fasttd3_twin(modules, actor)
    assert torch.equal(actor.eval()(obs), twin(obs))
    assert torch.equal(actor.train().explore(obs, deterministic=True), twin(obs))


def test_multi_task_actor_without_sampling_is_fasttd3s(modules, make):
    obs = multi_task_observations()
    actor = make("MultiTaskActor")
    twin = fasttd3_twin(modules, actor, "MultiTaskActor")
    assert torch.equal(actor.eval()(obs), twin(obs))
    assert torch.equal(actor.train().explore(obs, deterministic=True), twin(obs))
    assert actor(obs).shape == actor.explore(obs).shape == (4, 3) and not torch.equal(actor(obs), actor(obs))
    assert torch.equal(actor.embed(obs)[:, 2:], actor.task_embedding(torch.tensor([0, 3, 3, 4])))


@pytest.mark.parametrize("distribution", ["truncated", "tanh", "clipped"])
def test_in_training_mode_it_samples_the_policy(make, obs, distribution):
    """Shares of 4000 samples below four levels, against scipy's distribution of the paper's mean and sigma."""
    actor, number = make(distribution=distribution), 4000
    samples = actor(obs[:1].expand(number, -1)).detach().double().numpy()
    assert np.abs(samples).max() <= 1
    mean, log_std = moments(actor, obs[:1])
    std = np.exp(log_std)
    for level in (-0.7, -0.2, 0.3, 0.8):
        if distribution == "tanh":
            expected = stats.norm.cdf(np.arctanh(level), mean, std)
        elif distribution == "clipped":
            expected = stats.norm.cdf(level, np.tanh(mean), std)
        else:
            loc = np.tanh(mean)
            expected = stats.truncnorm.cdf(level, (-1 - loc) / std, (1 - loc) / std, loc, std)
        error = np.sqrt(expected * (1 - expected) / number)
        assert (np.abs((samples < level).mean(0) - expected) <= 4.5 * error + 1e-9).all()


def test_exploration_is_a_sample_and_fasttd3s_noise(make, obs):
    actor = make()
    torch.manual_seed(3)
    explored = actor.explore(obs)
    torch.manual_seed(3)
    sample = actor(obs)
    assert torch.equal(explored, sample + torch.randn_like(sample) * actor.noise_scales)
    assert not torch.equal(sample, actor.eval()(obs))
    before = actor.noise_scales.clone()
    actor.train().explore(obs, dones=torch.tensor([1, 0, 0, 1]))
    assert (actor.noise_scales != before).flatten().tolist() == [True, False, False, True]


@pytest.mark.parametrize("learn_delta", [False, True])
def test_entropies_of_the_state_level(make, obs, learn_delta):
    actor = make(learn_delta=learn_delta)
    with torch.no_grad():
        actor.delta.fill_(0.2)
    _, entropies = actor(obs, with_entropies=True)
    actor.target_entropy += 3 * 0.2
    _, log_std = moments(actor, obs)
    assert entropies["gaussian_entropy"].item() == pytest.approx((log_std + C).sum(-1).mean(), abs=1e-5)
    assert entropies["gaussian_entropy"].item() == pytest.approx(3 * (-0.5 + 0.2), abs=1e-4)
    assert entropies["policy_entropy"] < entropies["gaussian_entropy"]
    assert (entropies["target_entropy"].item(), entropies["delta"].item()) == pytest.approx((-1.5, 0.6))
    assert entropies["min_std"].item() == pytest.approx(np.exp(log_std.min()), rel=1e-4)
    assert entropies["clipped_states"] == 0


def test_share_of_states_with_a_clipped_sigma(make, obs):
    """The formula's ln sigma of dimension 0 is below the bound in two of four states."""
    actor = make(log_std_min=-4.0)
    with torch.no_grad():
        actor.fc_std.weight.zero_()
    policies = []
    for pre_std in (torch.zeros(4, 3), torch.tensor([[9.0, 0, 0], [0, 0, 0], [0, 9, 9], [0, 0, 9]])):
        log_std = actor.log_std(pre_std)
        policies.append(actor.distribution_cls.from_mean(torch.zeros(4, 3), log_std))
    assert [actor.entropies(policy)["clipped_states"].item() for policy in policies] == [0, 0.5]


def test_batch_level_holds_the_mean_over_the_batch(make, obs):
    actor = make(level="batch")
    log_std = actor.distribution(obs).log_std
    entropies = (log_std + C).sum(-1)
    assert entropies.mean().item() == pytest.approx(-1.5, abs=1e-5)
    assert entropies.std() > 0.01  # shared among the states


def test_batch_level_acts_with_the_running_average(make, obs):
    actor = make(level="batch")
    expected = 1.0
    for batch in (obs, 3 * obs):
        pre_std = actor.fc_std(trunk(actor, batch)).detach().double().numpy()
        actor(batch)
        expected = 0.99 * expected + 0.01 * np.exp(pre_std).mean()
        assert actor.log_mean_exp.item() == pytest.approx(math.log(expected), abs=1e-6)
    with torch.no_grad():
        together = actor.distribution(obs).log_std
        alone = torch.cat([actor.distribution(row[None]).log_std for row in obs])
        actor.explore(obs)
        pre_std = actor.fc_std(trunk(actor, obs)).double().numpy()
    formula = (-0.5 - C) * np.exp(pre_std) / expected
    assert torch.allclose(together, alone, atol=1e-6)
    assert np.allclose(together.numpy(), np.maximum(formula, -8), atol=1e-5)
    actor.eval()(obs)
    assert actor.log_mean_exp.item() == pytest.approx(math.log(expected), abs=1e-6)
    restored = make(level="batch")
    restored.load_state_dict(actor.state_dict())
    assert torch.equal(restored.log_mean_exp, actor.log_mean_exp)
    state_level = make()
    state_level(obs)
    assert state_level.log_mean_exp == 0


@variants
def test_bf16_autocast(make, obs, settings):
    """The sums of logarithms stay in fp32: the target holds as without autocast."""
    actor = make(**settings)
    torch.manual_seed(2)
    actions, entropies = actor(obs, with_entropies=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.manual_seed(2)
        actions_16, entropies_16 = actor(obs, with_entropies=True)
        policy = actor.distribution(obs)
        explored = actor.explore(obs)
    assert policy.log_std.dtype == policy.loc.dtype == actions_16.dtype == torch.float32
    for values in (actions_16, explored, *entropies_16.values()):
        assert values.isfinite().all()
    assert torch.allclose(actions, actions_16, atol=0.05)
    assert entropies_16["gaussian_entropy"] >= entropies_16["target_entropy"] - 1e-4
    actions_16.sum().backward()
    assert all(p.grad.isfinite().all() for name, p in actor.named_parameters() if name != "delta")


@pytest.mark.parametrize("settings", VARIANTS[1:3], ids=["state-learned", "batch"])
def test_no_graph_breaks(modules, make, obs, settings):
    """fullgraph=True raises at a graph break. FastTD3's explore has one where dones are given, so none are given."""
    torch._dynamo.reset()
    actor = make(**settings)

    def update_piece(data):
        logs = {}
        actions, residual_loss = modules.era_training.policy_actions(actor, data, logs)
        if settings.get("distribution") == "tanh":
            del logs["policy_entropy"]  # estimated from a sample of its own, which a compiled graph may draw earlier
        return actions, residual_loss + actions.sum(), logs

    for function, argument in ((actor.explore, obs), (update_piece, {"observations": obs})):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        saved = {name: value.clone() for name, value in actor.state_dict().items()}
        torch.manual_seed(4)
        result = compiled(argument)
        state = {name: value.clone() for name, value in actor.state_dict().items()}
        actor.load_state_dict(saved)
        torch.manual_seed(4)
        torch.testing.assert_close(result, function(argument))
        torch.testing.assert_close(state, dict(actor.state_dict()))


def test_the_policy_update_of_fasttd3_is_as_before(modules, obs):
    torch.manual_seed(0)
    actor, logs = modules.fast_td3.Actor(**SIZES), {}
    actions, residual_loss = modules.era_training.policy_actions(actor, {"observations": obs}, logs)
    assert torch.equal(actions, actor(obs)) and residual_loss == 0.0 and not logs
    groups = modules.era_training.parameter_groups(actor)
    assert len(groups) == 8 and all(p is q for p, q in zip(groups, actor.parameters(), strict=True))


def test_weight_decay_leaves_delta_alone(modules, make):
    """The optimizer is made as in the training scripts; gradients are 0."""
    actor = make(learn_delta=True)
    with torch.no_grad():
        actor.delta.fill_(0.3)
    optimizer = torch.optim.AdamW(modules.era_training.parameter_groups(actor), lr=torch.tensor(0.1), weight_decay=0.1)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(actor.parameters()))
    before = {name: p.clone() for name, p in actor.named_parameters()}
    for p in actor.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in actor.named_parameters():
        assert torch.allclose(p, before[name] * (1.0 if name == "delta" else 0.99)), name


def test_learned_delta_follows_the_gap_and_stays_in_its_range(modules, make):
    actor = make(learn_delta=True)
    for policy_entropy, gradient in ((-2.1, -0.2), (-1.2, 0.1)):
        (slope,) = torch.autograd.grad(actor.residual_loss(torch.tensor(policy_entropy)), actor.delta)
        assert slope.item() == pytest.approx(gradient, abs=1e-6)
    largest = C + 0.5  # all sigma at their maximum, 1
    for value, expected in ((-0.2, 0.0), (9.0, largest)):
        with torch.no_grad():
            actor.delta.fill_(value)
        log_std = actor.distribution(torch.zeros(1, 6)).log_std
        assert (log_std + C).sum().item() == pytest.approx(3 * (-0.5 + expected), abs=1e-4)
        actor.residual_loss(torch.tensor(-1.5))
        assert actor.delta.item() == pytest.approx(expected)
    assert make().residual_loss(torch.tensor(-1.5)) == 0.0


def test_evaluation_is_deterministic_and_training_goes_on(modules, make, obs):
    actor = make()

    @modules.era_training.deterministic(actor)
    def evaluate():
        return actor(obs), actor(obs)

    @modules.era_training.deterministic(actor)
    def fail():
        raise RuntimeError("in the environment")

    first, second = evaluate()
    assert torch.equal(first, second) and actor.training
    with pytest.raises(RuntimeError, match="in the environment"):
        fail()
    assert actor.training


@pytest.mark.parametrize(
    "settings, refused, accepted",
    [
        ({"n_act": 1}, "at least two dimensions", {"level": "batch"}),
        ({"target_entropy": 1.5}, "feasible", {"log_std_max": 0.5}),
        ({"target_entropy": 0.8, "learn_delta": True}, "ln 2", {"distribution": "clipped"}),
    ],
)
def test_impossible_settings_are_refused(make, settings, refused, accepted):
    with pytest.raises(ValueError, match=refused):
        make(**settings)
    make(**settings, **accepted)


GYMNASIUM = {"num_envs": 16, "num_eval_envs": 16, "gamma": 0.99}


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--agent fasttd3", {"policy_frequency": 2}),
        ("--agent fastsac_era", {"policy_frequency": 1}),
        ("--agent fastsac_era --policy_frequency 2", {"policy_frequency": 2}),
        ("--agent fastsac_era --env_name Gym-HalfCheetah-v4", {**GYMNASIUM, "v_min": -2000, "v_max": 2000}),
        ("--agent fastsac_era --env_name Gym-Reacher-v5 --v_max 5", {**GYMNASIUM, "v_min": -250, "v_max": 5}),
        ("--agent fastsac_era --env_name Gym-Reacher-v5 --num_envs 3", {**GYMNASIUM, "num_envs": 3}),
    ],
)
def test_defaults_by_agent_and_task(modules, monkeypatch, flags, expected):
    monkeypatch.setattr("sys.argv", ["train.py", *flags.split()])
    args = modules.hyperparams.get_args()
    assert {name: getattr(args, name) for name in expected} == expected


def test_the_networks_are_those_of_the_kind_of_task(modules):
    args, actor = modules.hyperparams.BaseArgs(agent="fastsac_era", era_level="batch"), {"n_act": 3}
    found = modules.era_training.networks(args, "humanoid_bench", actor, {})
    assert found == (modules.fastsac_era.Actor, modules.fast_td3.Critic)
    assert {name: actor[name] for name in ERA} == {**ERA, "level": "batch"}
    found = modules.era_training.networks(args, "mtbench", {"n_act": 3}, {})
    assert found == (modules.fastsac_era.MultiTaskActor, modules.fast_td3.MultiTaskCritic)


def test_simnorms_arguments_are_those_of_each_network(modules):
    flags = {"sim_type": "sim_both", "sim_dimension": 8, "actor_seq_len": 3, "critic_seq_len": 5}
    found = [modules.fastsac_era.simnorm(flags, network) for network in ("actor", "critic")]
    assert found == [{"sim_type": "sim_both", "sim_dimension": 8, "seq_len": length} for length in (3, 5)]
    assert modules.fastsac_era.simnorm({}, "actor") == {}


def test_checkpoints_of_other_settings_are_refused(modules, tmp_path):
    flags = {"agent": "fastsac_era", **{f"era_{name}": value for name, value in ERA.items()}}
    simnorm = {**flags, "sim_type": "sim_both", "sim_dimension": 8, "actor_seq_len": 64, "critic_seq_len": 64}
    file = str(tmp_path / "run.pt")

    def refused(saved, now):
        torch.save({"args": {"seed": 3, **saved}}, file)
        modules.era_training.check_checkpoint(file, {"seed": 4, **saved})
        with pytest.raises(SystemExit) as end:
            modules.era_training.check_checkpoint(file, {"seed": 4, **now})
        return end.value.code

    for name, value in (("learn_delta", True), ("level", "batch"), ("target_entropy", -1.0)):
        assert f"--era_{name} {ERA[name]}" in refused(flags, {**flags, f"era_{name}": value})
    assert "--agent fasttd3" in refused({**flags, "agent": "fasttd3"}, flags)
    assert "--sim_type sim_both" in refused(simnorm, {**simnorm, "sim_type": ""})
    assert "--sim_type None" in refused(flags, simnorm)  # of another version of FastTD3
    assert "--sim_type sim_both" in refused(simnorm, flags)
