"""PPO-ERA in the paper's code: upstream's script, run in this process, on tiny settings."""

import csv
import functools
import itertools
import math
import os
import runpy
import sys
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import importable

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning"),
]
FOLDER, SCRIPT = "5.PPO-continuous", "PPO_continuous_main.py"
OURS = ("eapo", "era", "era_ppo", "fast", "run_json", "training_run")
UPSTREAMS = ("normalization", "replaybuffer", "ppo_continuous")
TINY = [
    "--env", "Hopper-v4", "--seed", "3", "--max_train_steps", "1000", "--evaluate_freq", "250", "--save_freq", "1",
    "--batch_size", "256", "--mini_batch_size", "32", "--K_epochs", "2",
]  # fmt: skip
LOW = ("--log_std_init", "-1.7", "--entropy_coef", "0")
VARIANTS = {
    "era": ("--std", "era", "--era_target_entropy", "-0.2"),
    "constant": ("--std", "constant", *LOW),
    "parameter": ("--std", "parameter", *LOW),
    "head, LLM techniques": ("--std", "head", "--selective", "0.2", "--epsilon_high", "0.3"),
    "eapo": ("--eapo_tau", "0.02", "--eapo_lambda", "0.5", "--entropy_coef", "0"),
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """train(tree, *flags): runs the script in tmp_path/<name>, and returns that folder."""

    def run(tree, *flags, name="run", change=None):
        folder = tmp_path / name
        (folder / "data_train").mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [SCRIPT, *TINY, *flags])
        ours = OURS if (tree / FOLDER / "era_ppo.py").exists() else ()
        torch.distributions.Distribution.set_default_validate_args(True)  # --fast turns it off
        with importable(tree / FOLDER, *UPSTREAMS, *ours) as modules:
            if change:
                change(modules)
            runpy.run_path(str(tree / FOLDER / SCRIPT), run_name="__main__")
        return folder

    yield run
    torch.distributions.Distribution.set_default_validate_args(True)


def returns(folder):
    (file,) = folder.glob("data_train/*.npy")
    return np.load(file)


def rows(folder):
    """Without what the clock says."""
    with (folder / "train.csv").open(newline="") as file:
        return [{key: row[key] for key in row if "seconds" not in key} for row in csv.DictReader(file)]


def test_without_flags_it_is_the_ported_upstream_to_the_bit(ported_ppo, patched_ppo, train):
    expected = returns(train(ported_ppo, name="ported"))
    assert len(set(expected)) == len(expected) == 4
    assert np.array_equal(returns(train(patched_ppo, name="patched")), expected)
    assert np.array_equal(returns(train(patched_ppo, "--fast", name="fast")), expected)


@pytest.mark.parametrize("flags", VARIANTS.values(), ids=VARIANTS)
def test_the_fast_passes_change_no_number(patched_ppo, train, flags):
    plain = train(patched_ppo, *flags, "--csv_path", "train.csv", name="plain")
    fast = train(patched_ppo, *flags, "--csv_path", "train.csv", "--fast", name="fast")
    assert rows(plain) == rows(fast)
    assert np.array_equal(returns(plain), returns(fast))
    if "constant" in flags:  # the control arm whose sigma is not trained
        for row in rows(plain):
            assert float(row["mean_log_std"]) == pytest.approx(-1.7, abs=1e-6)
            assert float(row["std_log_std"]) == pytest.approx(0, abs=1e-6)


def test_ppo_era_keeps_its_entropy_in_every_state(patched_ppo, train):
    folder = train(patched_ppo, *VARIANTS["era"], "--csv_path", "train.csv", "--fast", "--lr_a", "0.01")
    for row in rows(folder):
        assert float(row["entropy_per_dim"]) == pytest.approx(-0.2, abs=1e-5)
        assert float(row["min_entropy_per_dim"]) == pytest.approx(-0.2, abs=1e-5)
    assert float(rows(folder)[-1]["std_log_std"]) > 0.01  # shared among the dimensions, by the state


class Killed(BaseException):
    pass


def kill(modules):
    """At step 750, with a checkpoint."""

    def evaluated(self, total_steps, reward):
        upstreams(self, total_steps, reward)
        if total_steps == 750:
            raise Killed

    upstreams = modules.training_run.TrainingRun.evaluated
    modules.training_run.SECONDS_BETWEEN_CHECKPOINTS = 0
    modules.training_run.TrainingRun.evaluated = evaluated


REWARD_NORM = ("--use_reward_norm", "True", "--use_reward_scaling", "")  # bool("") is False


@pytest.mark.parametrize(
    "variant",
    [VARIANTS["head, LLM techniques"], VARIANTS["eapo"], VARIANTS["era"], REWARD_NORM],
    ids=["head, LLM techniques", "eapo", "era", "reward norm"],
)
def test_a_killed_run_goes_on_to_the_bit(patched_ppo, train, variant, monkeypatch):
    monkeypatch.setattr(time, "time", functools.partial(next, itertools.count(2**30, -1)))  # a clock that is set back
    flags = (*variant, "--csv_path", "train.csv", "--fast")
    whole = train(patched_ppo, *flags, name="whole")
    with pytest.raises(Killed):
        train(patched_ppo, *flags, name="cut", change=kill)
    assert torch.load("checkpoint.pt", weights_only=True)["total_steps"] > 0
    with open(whole.parent / "cut/train.csv", "a") as file:
        file.write("900,12" + 50 * "\0" + "\n900,")  # as a full disk or a power cut leaves lines
    cut = train(patched_ppo, *flags, name="cut")
    assert rows(cut) == rows(whole)
    assert np.array_equal(returns(cut), returns(whole))
    assert not (cut / "checkpoint.pt").exists()


class Code:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def cut_in_half():
    checkpoint = Path("checkpoint.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[: checkpoint.stat().st_size // 2])


def lose_the_first_row():
    curves = Path("train.csv")
    curves.write_text("".join(curves.read_text().splitlines(keepends=True)[::2]))


@pytest.mark.parametrize(
    "damage, said",
    [
        (cut_in_half, "checkpoint.pt is damaged, or holds more than data"),
        (lambda: torch.save({"agent": Code()}, "checkpoint.pt"), "checkpoint.pt is damaged, or holds more than data"),
        (lose_the_first_row, "train.csv lacks the row of step 250"),
    ],
)
def test_what_a_run_cannot_go_on_from_is_named_and_is_no_code(patched_ppo, train, damage, said):
    flags = ("--csv_path", "train.csv", "--fast")
    with pytest.raises(Killed):
        train(patched_ppo, *flags, change=kill)
    damage()
    with pytest.raises(SystemExit, match=rf"{said} \(.*move checkpoint\.pt away"):
        train(patched_ppo, *flags)
    assert not Path("ran").exists()
    Path("checkpoint.pt").unlink()
    assert len(rows(train(patched_ppo, *flags))) == 4


def test_a_folder_holds_one_run(patched_ppo, train, capsys):
    flags = ("--csv_path", "train.csv", "--fast")
    folder = train(patched_ppo, *flags)
    before = (folder / "train.csv").read_bytes()
    with pytest.raises(SystemExit, match="holds another run"):
        train(patched_ppo, *flags, "--gamma", "0.9")
    with pytest.raises(SystemExit) as ended:
        train(patched_ppo, *flags)
    assert not ended.value.code and (folder / "train.csv").read_bytes() == before
    assert "finished" in capsys.readouterr().out
    (folder / "train.csv").write_bytes(before[: before.index(b"\n750,") + 1])
    with pytest.raises(SystemExit, match="finished, but train.csv lacks the row of step 750. Move it away"):
        train(patched_ppo, *flags)


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--std era --era_target_entropy 1.5", "between -19.7432 and 4.2568"),
        ("--std era --env InvertedPendulum-v4", "at least two dimensions"),
        ("--std era --log_std_init 0", "starts at its target"),
        ("--era_target_entropy -0.3", "needs --std era"),
        ("--selective 0.2", "all states have one entropy"),
        ("--eapo_lambda 0.5", "need --eapo_tau"),
        ("--fast --mini_batch_size 60", "must divide --batch_size"),
        ("--std era --policy_dist Beta", "need --policy_dist Gaussian, not Beta"),
    ],
)
def test_flags_without_effect_are_named_at_the_start(patched_ppo, train, flags, expected):
    with pytest.raises(SystemExit, match=expected):
        train(patched_ppo, *flags.split())


@pytest.fixture
def agent(patched_ppo):
    """agent(std, ...): an agent of upstream's class whose policy has 3 action dimensions."""
    with importable(patched_ppo / FOLDER, *UPSTREAMS, *OURS) as modules:

        def make(std, **settings):
            switches = ("adv_norm", "lr_decay", "orthogonal_init", "tanh")
            args = Namespace(
                **{f"use_{name}": True for name in switches},
                **dict(use_grad_clip=False, set_adam_eps=True, policy_dist="Gaussian", max_action=1.0),
                **dict(batch_size=32, mini_batch_size=32, max_train_steps=1000, K_epochs=1, hidden_width=16),
                **dict(lr_a=3e-4, lr_c=3e-4, gamma=0.99, lamda=0.95, epsilon=0.2, entropy_coef=0.01),
                **dict(state_dim=5, action_dim=3, std=std, log_std_init=None, era_target_entropy=-0.4),
                **dict(era_log_std_min=-8.0, era_log_std_max=0.0, epsilon_high=None, selective=None),
                **dict(eapo_tau=None, eapo_gamma=None, eapo_lambda=None),
            )
            vars(args).update(settings)
            torch.manual_seed(0)
            made = modules.ppo_continuous.PPO_continuous(args)
            for parameter in made.actor.parameters():
                parameter.data += 0.5 * torch.randn_like(parameter)
            return made, modules.fast.Fast(made, args)

        yield make
    torch.distributions.Distribution.set_default_validate_args(True)


def test_sigma_is_the_papers(agent):
    """Eq. continuous_era in fp64, from the network's last hidden layer."""
    made, _ = agent("era")
    states = torch.randn(100, 5)
    with torch.no_grad():
        policy = made.actor.get_dist(states)
        hidden = made.actor.fc2(made.actor.fc1(states).tanh()).tanh()
        x = made.actor.std_layer(hidden).double().numpy()
    share = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    expected = np.maximum((3 * -0.4 - 1.5 * math.log(2 * math.pi * math.e)) * share, -8)
    np.testing.assert_allclose(policy.stddev.log().numpy(), expected, atol=1e-5)
    assert np.abs(policy.entropy().sum(-1).numpy() + 1.2).max() < 1e-5
    np.testing.assert_allclose(policy.mean.numpy(), made.actor(states).detach().numpy())


@pytest.mark.parametrize("techniques", [{}, {"epsilon_high": 0.5}, {"selective": 0.25}])
def test_the_policys_gradient_is_ppos(agent, techniques):
    """Against autograd in fp64 of PPO's objective, written by its cases."""
    made, fast = agent("head", **techniques)
    states, actions = torch.randn(32, 5), torch.randn(32, 3)
    old, advantages = torch.randn(32, 3) - 1.5, torch.randn(32, 1)
    gradient = fast.policy_gradient(states, actions, old, advantages)

    actor = made.actor.double()
    for parameter in actor.parameters():
        parameter.requires_grad_()
    policy = actor.get_dist(states.double())
    entropy = (policy.stddev.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    ratio = (policy.log_prob(actions.double()) - old.double()).sum(-1).exp()
    losses = []
    for i, advantage in enumerate(advantages.double().flatten()):
        high, low = 1 + techniques.get("epsilon_high", 0.2), 0.8
        bounded = ratio[i].clamp(max=high) if advantage > 0 else ratio[i].clamp(min=low)
        losses.append(-bounded * advantage - 0.01 * entropy[i])
    chosen = entropy.argsort(descending=True)[: 8 if "selective" in techniques else 32]
    torch.stack(losses)[chosen].mean().backward()
    expected = fast.actor.laid_out([parameter.grad for parameter in actor.parameters()])
    assert expected.norm() > 1e-3
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5 * expected.norm().item())


def test_eapo_adds_the_advantage_of_the_entropy(agent):
    """Against sums over the future in fp64, with terminations and time limits."""
    made, _ = agent("parameter", eapo_tau=0.3, eapo_gamma=0.9, eapo_lambda=0.7)
    made.eapo.scaling = Namespace(running_ms=Namespace(std=np.array([4.0])))  # tau is in the environment's rewards
    rng = np.random.default_rng(0)
    count = 60
    log_prob, values, next_values = rng.normal(size=(count, 3)), *rng.normal(size=(2, count, 2))
    advantage, target = rng.normal(size=(2, count, 1))
    terminated = (rng.random((count, 1)) < 0.1).astype(float)
    ended = np.maximum(terminated, rng.random((count, 1)) < 0.1)
    arrays = (advantage, target, log_prob, values, next_values, terminated, ended)
    found, targets = made.eapo.add(*map(torch.tensor, arrays))

    deltas = -0.3 / 4 * log_prob.sum(1) + 0.9 * (1 - terminated[:, 0]) * next_values[:, 1] - values[:, 1]
    expected = np.zeros(count)
    for step in range(count):
        for later in range(step, count):
            expected[step] += (0.9 * 0.7) ** (later - step) * deltas[later]
            if ended[later, 0]:
                break
    np.testing.assert_allclose(found[:, 0].numpy(), advantage[:, 0] + expected)
    np.testing.assert_allclose(targets.numpy(), np.stack([target[:, 0], expected + values[:, 1]], 1))


def leave_out_the_advantage(eapo):
    upstreams = eapo.EntropyAdvantage.add
    eapo.EntropyAdvantage.add = lambda self, advantage, *rest: (advantage, upstreams(self, advantage, *rest)[1])


def leave_tau_unscaled(eapo):
    eapo.EntropyAdvantage.scaled_tau = lambda self: self.tau


@pytest.mark.parametrize("fault", [leave_out_the_advantage, leave_tau_unscaled])
def test_eapo_trains_on_its_advantage_in_scaled_rewards(patched_ppo, train, fault):
    """A run with the fault would be equal if the script had it."""
    flags = (*VARIANTS["eapo"], "--csv_path", "train.csv", "--fast")
    found = train(patched_ppo, *flags, name="found")
    faulty = train(patched_ppo, *flags, name="faulty", change=lambda modules: fault(modules.eapo))
    assert rows(found)[-1]["mean_log_std"] != rows(faulty)[-1]["mean_log_std"]


def test_eapo_tells_a_time_limit_from_a_termination(patched_ppo, train):
    """Episodes of Pendulum end at 200 steps, and never otherwise."""
    seen = []

    def watch(modules):
        upstreams = modules.eapo.EntropyAdvantage.add

        def add(self, *arguments):
            seen.append(torch.cat(arguments[-2:], 1))
            return upstreams(self, *arguments)

        modules.eapo.EntropyAdvantage.add = add

    train(patched_ppo, *VARIANTS["eapo"], "--env", "Pendulum-v1", change=watch)
    assert torch.cat(seen).sum(0).tolist() == [0, 3]  # terminated, ended; of 3 batches of 256 steps


def test_eapos_critic_learns_both_returns(agent):
    made, fast = agent("parameter", eapo_tau=0.3)
    states, targets = torch.randn(32, 5), torch.randn(32, 2)
    gradient = fast.value_gradient(states, targets)
    critic = made.critic.double()
    for parameter in critic.parameters():
        parameter.requires_grad_()
    value = critic(states.double())
    assert value.shape == (32, 2)
    ((targets[:, 0] - value[:, 0]) ** 2 + (targets[:, 1] - value[:, 1]) ** 2).mean().backward()
    expected = fast.critic.laid_out([parameter.grad for parameter in critic.parameters()])
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5 * expected.norm().item())
