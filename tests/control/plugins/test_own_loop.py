"""The blocks of docs/control/own-loop.md: the target in every state, also after updates that want less noise."""

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
PAGE = "control/own-loop.md"
C = 0.5 * math.log(2 * math.pi * math.e)


def check(log_std_of, parameters):
    """log_std_of(states): ln sigma of the policy that the framework acts with, (B, 3)."""
    states = torch.randn(256, 4)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(30):
        log_std = log_std_of(states)
        entropy = (log_std.detach().double() + C).mean(-1)
        torch.testing.assert_close(entropy, torch.full_like(entropy, -0.3), rtol=0, atol=1e-6)
        optimizer.zero_grad()
        (log_std.exp() * torch.tensor([3.0, 1.0, 1.0]) * (1 + states[:, :1].abs())).mean().backward()
        optimizer.step()
    assert log_std[:, 0].mean() < log_std[:, 1].mean() - 0.1  # the gradient moved the shares
    assert log_std.std(0).max() > 1e-4


def test_skrl(run_example):
    pytest.importorskip("skrl")
    gymnasium = pytest.importorskip("gymnasium")
    spaces = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Box(-1, 1, (3,))
    policy = run_example(PAGE, "skrl")["Policy"](*spaces, "cpu")

    def log_std(states):
        policy.act({"observations": states}, role="policy")
        return policy.distribution(role="policy").stddev.log()

    check(log_std, policy.parameters())


def test_torchrl(run_example):
    pytest.importorskip("torchrl")
    tensordict = pytest.importorskip("tensordict")
    actor = run_example(PAGE, "torchrl")["actor"]

    def log_std(states):
        data = tensordict.TensorDict({"observation": states}, batch_size=[len(states)])
        return actor.get_dist(data).stddev.log()

    check(log_std, actor.parameters())


def test_rl_games(run_example):
    pytest.importorskip("rl_games")
    builder = run_example(PAGE, "rl_games")["model_builder"].ModelBuilder()
    space = {"mu_activation": "None", "sigma_activation": "None", "fixed_sigma": False}
    space |= {"mu_init": {"name": "default"}, "sigma_init": {"name": "default"}}
    mlp = {"units": [32], "activation": "elu", "initializer": {"name": "default"}}
    network = {"name": "era", "separate": False, "space": {"continuous": space}, "mlp": mlp}
    sizes = {"actions_num": 3, "input_shape": (4,), "num_seqs": 1, "value_size": 1}
    sizes |= {"normalize_value": False, "normalize_input": False}
    model = builder.load({"model": {"name": "continuous_a2c_logstd"}, "network": network}).build(sizes)
    check(lambda states: model({"is_train": False, "obs": states})["sigmas"].log(), model.parameters())


def test_cleanrl(run_example):
    numpy = pytest.importorskip("numpy")
    space = SimpleNamespace(shape=(4,)), SimpleNamespace(shape=(3,))
    envs = SimpleNamespace(single_observation_space=space[0], single_action_space=space[1])
    names = {"nn": torch.nn, "np": numpy, "self": SimpleNamespace(), "envs": envs, "x": torch.randn(5, 4)}
    left = run_example(PAGE, "CleanRL", **names, action_mean=torch.zeros(5, 3))
    log_std = left["action_logstd"]
    torch.testing.assert_close((log_std.double() + C).mean(-1), torch.full((5,), -0.3).double(), rtol=0, atol=1e-6)
    log_std[:, 0].sum().backward()
    assert left["self"].actor_pre_std.weight.grad.abs().max() > 0.01
