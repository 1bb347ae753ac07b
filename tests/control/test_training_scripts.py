"""FastTD3's train.py and train_multigpu.py with the overlay on a CPU; --agent fasttd3 is compared with upstream's."""

import csv
import functools
import importlib
import io
import math
import re
import shlex
import shutil
import socket
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from helpers import FASTTD3
from script_runs import TINY, WALK

NEWEST = "229ed59"  # only the cheapest contracts, unless `make test-fasttd3-229ed59` runs all of them on it
SAC = [*WALK, "--agent", "fastsac_era"]
SHORT = ["--total_timesteps", "102"]
SIMNORM = shlex.split("--sim_type sim_both --sim_dimension 4 --actor_seq_len 3 --critic_seq_len 5")
# Flags of pairs of runs, upstream's and the patched tree's. As 100 % 3 is not 0, with --num_updates 1 upstream's log of
# step 100 would lack the policy update's values. Without --obs_normalization upstream cannot evaluate.
UPSTREAM = {
    "evaluated": "",
    "short": "--total_timesteps 102",
    "simbav2": "--agent fasttd3_simbav2 --total_timesteps 102",
    "one update, delay 3, three steps": "--num_updates 1 --policy_frequency 3 --num_steps 3 --no_obs_normalization "
    "--total_timesteps 60",
    "four updates, delay 3": "--num_updates 4 --policy_frequency 3 --reward_normalization --use_grad_norm_clipping "
    "--max_grad_norm 1 --no_use_cdq --total_timesteps 50",
}
WITH_SIMNORM = ["simnorm"] if FASTTD3 == NEWEST else []
UPSTREAM |= {name: " ".join([*SHORT, *SIMNORM]) for name in WITH_SIMNORM}
PATCHED = {
    "short": [*SAC, *SHORT],
    "simnorm": [*SAC, *SHORT, *SIMNORM],
    "learned": [*SAC, "--era_learn_delta"],
    "delayed": [*SAC, *SHORT, "--era_distribution", "tanh"]
    + shlex.split("--policy_frequency 2 --no_obs_normalization --eval_interval 0"),
    "batch": [*SAC, *SHORT, "--era_level", "batch"]
    + shlex.split("--era_distribution clipped --era_target_entropy -1 --era_learn_delta"),
    "episodes of 200": ["--env_name", "Gym-Pendulum-v1", *TINY, "--agent", "fasttd3", "--num_eval_envs", "2"],
}


class Runs:
    """Runs by name, each of which starts when it is first asked for."""

    def __init__(self, scripts, patched, upstream):
        self.scripts, self.patched, self.upstream = scripts, patched, upstream
        self.started = {}

    def __getitem__(self, name):
        """The patched tree's run of this name, finished."""
        return self.once(name, self.patched, *PATCHED[name]).wait()

    def once(self, name, tree, *flags, **settings):
        if name not in self.started:
            self.started[name] = self.scripts.start(tree, *flags, **settings)
        return self.started[name]

    def pair(self, name: str) -> list:
        """Upstream's run and the patched tree's."""
        flags = [*WALK, *shlex.split(UPSTREAM[name])]
        runs = [self.once(("pair", name, tree), tree, *flags) for tree in (self.upstream, self.patched)]
        return [run.wait() for run in runs]

    def two_ranks(self):
        settings = {"script": "train_multigpu.py", "WALK_RADIUS_0": "0.1", "MASTER_PORT": str(free_port())}
        return self.once("two ranks", self.patched, *SAC, "--era_learn_delta", *SHORT, **settings).wait()

    def resume(self, name: str, step: int, *flags):
        """From the checkpoint of a step, with the same flags and a copy of the curves."""
        earlier = self[name]
        (curves,) = (earlier.folder / "logs").glob("*.csv")
        copied = shutil.copy(curves, self.scripts.work / f"{name}-{self.scripts.number}.csv")
        flags = [*PATCHED[name], "--checkpoint_path", earlier.checkpoint_path(step), "--csv_path", copied, *flags]
        return self.scripts.start(self.patched, *flags).wait(), Path(copied)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def free_port() -> int:
    with socket.socket() as a_socket:
        a_socket.bind(("localhost", 0))
        return a_socket.getsockname()[1]


@pytest.fixture(scope="session")
def runs_of(scripts, trees_of):
    return functools.cache(lambda version: Runs(scripts, *trees_of("fasttd3", version)))


@pytest.fixture
def runs(runs_of, version):
    return runs_of(version)


def assert_same(a, b):
    """Bit for bit, in every tensor, array and number of nested containers."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert np.array_equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    else:
        assert a == b


@pytest.mark.slow
def test_evaluation_does_not_reset_the_environments_of_a_gymnasium_task(runs):
    """Episodes take 200 steps. If the evaluations at 100 and 200 reset the training environments, no episode would end.

    FastTD3 would then draw no new noise.
    """
    run = runs["episodes of 200"]
    before, after = (run.checkpoint(step)["actor_state_dict"]["noise_scales"] for step in (100, "final"))
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    "name, version",
    [("evaluated", FASTTD3), ("short", NEWEST)]
    + [slow(name, FASTTD3) for name in UPSTREAM if name not in ("evaluated", "short")],
)
def test_fasttd3_is_upstream_to_the_bit(runs, name):
    upstream, patched = runs.pair(name)
    assert_same(upstream.witness(), patched.witness())  # optimizers, their steps, random states
    names = sorted(path.name for path in (upstream.folder / "models").iterdir())
    assert names == sorted(path.name for path in (patched.folder / "models").iterdir())
    assert len(names) == {"evaluated": 3, "short": 2, "simbav2": 2, "simnorm": 2}.get(name, 1)
    for path in names:
        a, b = (torch.load(run.folder / "models" / path, weights_only=False) for run in (upstream, patched))
        a_args, b_args = a.pop("args"), b.pop("args")
        assert_same(a, b)
        assert {key: b_args[key] for key in a_args} == a_args
        assert all(key == "csv_path" or key.startswith("era_") for key in b_args.keys() - a_args.keys())


def test_fasttd3_has_curves_too(runs):
    _, run = runs.pair("evaluated")
    rows = run.rows()
    assert [row["global_step"] for row in rows] == [100, 200] and [row["frame"] for row in rows] == [200, 400]
    for row in rows:
        assert row["eval_avg_return"] < 0 and 1 <= row["eval_avg_length"] <= 25
        assert {"actor_loss", "qf_loss", "qf_max", "qf_min", "env_rewards", "buffer_rewards"} < row.keys()
        assert not {"policy_entropy", "delta"} & row.keys()


# The updates of a run begin after step 10.
@pytest.mark.parametrize("name, steps, updates, policy_updates", [("learned", 210, 2, 2), slow("delayed", 102, 2, 1)])
def test_policy_updates_at_each_critic_update_unless_delayed(runs, name, steps, updates, policy_updates):
    witness = runs[name].witness()
    assert witness["steps"] == [(steps - 11) * updates, (steps - 11) * policy_updates]
    assert runs[name].checkpoint()["args"]["policy_frequency"] == updates // policy_updates


@pytest.mark.parametrize(
    "name, version, target",
    [
        ("learned", FASTTD3, -0.5),
        ("short", NEWEST, -0.5),
        *((name, NEWEST, -0.5) for name in WITH_SIMNORM),
        slow("delayed", FASTTD3, -0.5),
        slow("batch", FASTTD3, -1.0),
    ],
)
def test_curves_show_the_entropies(runs, name, target):
    rows = runs[name].rows()
    assert rows and rows[0]["global_step"] == 100
    for row in rows:
        assert row["target_entropy"] == pytest.approx(3 * target)
        assert row["gaussian_entropy"] >= row["target_entropy"] + row["delta"] - 1e-4
        assert math.exp(-8) * 0.999 <= row["min_std"] < 1
        assert 0 <= row["clipped_states"] <= 1 and (row["clipped_states"] > 0) == (row["min_std"] < math.exp(-7.999))
        assert math.isfinite(row["policy_entropy"]) and math.isfinite(row["actor_loss"])
        if name not in ("batch", "delayed"):  # clipping can add entropy; for tanh it is an estimate
            assert row["policy_entropy"] <= row["gaussian_entropy"]
    assert ("eval_avg_return" in rows[0]) == (name != "delayed")
    if name == "learned":
        assert 0 < rows[0]["delta"] < rows[1]["delta"]
    elif name != "batch":
        assert rows[0]["delta"] == 0


@pytest.mark.parametrize("name", ["learned", slow("batch")])
def test_a_checkpoint_is_restored_in_full(runs, name):
    """With no step left to do, train.py saves again what it has read."""
    saved = runs[name].checkpoint(100)
    resumed, _ = runs.resume(name, 100, "--total_timesteps", "100")
    again = resumed.checkpoint()
    assert saved.pop("args").keys() == again.pop("args").keys()
    assert_same(saved, again)
    if name == "learned":
        assert saved["actor_state_dict"]["delta"] > 0
    assert (saved["actor_state_dict"]["log_mean_exp"] != 0) == (name == "batch")


def test_a_resumed_run_goes_on(runs):
    """The checkpoint of step 100 was saved after that step's log: the resumed run repeats the step and its row."""
    resumed, curves = runs.resume("learned", 100)
    with open(curves, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["global_step"] for row in rows] == ["100", "200", "100", "200"]
    delta = runs["learned"].checkpoint(100)["actor_state_dict"]["delta"].item()
    # One is before and one after a step of Adam, which moves delta by 3.2 times the learning rate at most.
    assert float(rows[2]["delta"]) == pytest.approx(3 * delta, abs=3 * 3.2 * 3e-4)
    assert resumed.witness()["steps"] == [220, 220]


def test_checkpoints_of_other_runs_are_refused(runs):
    for checkpoint, said in (
        (runs.pair("evaluated")[1].checkpoint_path(), "--agent fasttd3"),
        (runs["learned"].checkpoint_path(), "--era_learn_delta True"),
    ):
        run = runs.scripts.start(runs.patched, *SAC, "--checkpoint_path", checkpoint).wait(ok=False)
        assert run.code and said in run.err and "Traceback" not in run.err and not (run.folder / "models").exists()


@pytest.mark.slow
def test_no_more_graph_breaks_than_fasttd3(scripts, patched_fasttd3):
    """In update_pol and explore. FastTD3's explore breaks at `dones.sum() > 0`; ERA's calls it, which adds one name."""
    flags = [*WALK, "--compile", "--total_timesteps", "14", "--agent"]
    runs = [scripts.start(patched_fasttd3, *flags, agent, compiled=True) for agent in ("fasttd3", "fastsac_era")]
    found = (run.wait().witness()["graph_breaks"] for run in runs)
    fasttd3, era = (
        {re.sub("0x[0-9a-f]+", "", reason): number for reason, number in breaks.items()} for breaks in found
    )
    branch = {reason for reason in era if reason.startswith("Dynamic control flow")}
    assert fasttd3 and era.keys() - branch == fasttd3.keys()
    assert sum(era[reason] for reason in branch) <= 1


@pytest.mark.slow
def test_gradients_of_two_ranks_are_averaged(scripts, patched_fasttd3):
    scripts.start(patched_fasttd3, patched_fasttd3, script=Path(__file__).with_name("ddp_gradients.py")).wait()


@pytest.mark.slow
def test_two_ranks(runs):
    run = runs.two_ranks()
    first, second = run.witness("witness.0.pt"), run.witness("witness.1.pt")
    assert_same(first["parameters"], second["parameters"])
    assert first["steps"] == second["steps"] == [182, 182]
    assert not torch.equal(first["random"][0], second["random"][0])
    (row,) = run.rows()  # rank 0's, the only file
    assert 1 < row["eval_avg_length"] < 25 and row["delta"] > 0  # rank 0's episodes last a step
    assert run.out.count("Using FastSAC-ERA") == 1 and run.out.count("return") == 1
    state = run.checkpoint()["actor_state_dict"]
    assert any(torch.equal(state["delta"], parameter) for parameter in second["parameters"][1])


def training_actor(package, checkpoint):
    """FastSAC-ERA's actor as train.py evaluates it, the observations' normalizer, and their size."""
    args, state = checkpoint["args"], checkpoint["actor_state_dict"]
    settings = {name[4:]: value for name, value in args.items() if name.startswith("era_")}
    sizes = {"n_obs": state["net.0.weight"].shape[1], "n_act": len(state["fc_mu.0.bias"])}
    sizes |= {"num_envs": args["num_envs"], "hidden_dim": args["actor_hidden_dim"]}
    settings |= package.fastsac_era.simnorm(args, "actor")
    actor = package.fastsac_era.Actor(init_scale=args["init_scale"], **sizes, **settings)
    actor.load_state_dict(state)
    if not checkpoint["obs_normalizer_state"]:
        return actor.eval(), torch.nn.Identity(), sizes["n_obs"]
    normalizer = package.EmpiricalNormalization(shape=sizes["n_obs"], device="cpu")
    normalizer.load_state_dict(checkpoint["obs_normalizer_state"])
    return actor.eval(), normalizer.eval(), sizes["n_obs"]


@pytest.mark.parametrize(
    "name, version",
    [("learned", FASTTD3), *((name, NEWEST) for name in ["short", *WITH_SIMNORM])]
    + [slow(name, FASTTD3) for name in ("delayed", "batch", "two ranks")],
)
def test_deployed_policy(runs, package, name):
    run = runs.two_ranks() if name == "two ranks" else runs[name]
    checkpoint, policy = run.checkpoint(), package.load_policy(run.checkpoint_path())
    actor, normalizer, n_obs = training_actor(package, checkpoint)
    obs = 2 * torch.randn(16, n_obs, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(policy(obs), actor(normalizer(obs)))
        assert torch.equal(policy.act(obs).mean, actor(normalizer(obs)))


def test_settings_can_be_imported_from_the_package(package):
    """As upstream's can be, where the folder of the scripts is not on the path."""
    hyperparams = importlib.import_module("fast_td3.hyperparams")
    assert hyperparams.H1HandPoleArgs(agent="fastsac_era", env_name="Gym-").policy_frequency == 1


def scripted(policy, obs):
    return torch.jit.script(policy)(obs)


def traced(policy, obs):
    return torch.jit.trace(policy, obs[:2])(obs)


def through_onnx(policy, obs):
    file = io.BytesIO()
    torch.onnx.export(policy, (obs,), file, input_names=["obs"], output_names=["actions"])
    (actions,) = onnxruntime.InferenceSession(file.getvalue()).run(None, {"obs": obs.numpy()})
    return torch.from_numpy(actions)


@pytest.mark.parametrize("export", [scripted, traced, through_onnx])
def test_exports_as_fasttd3s_policy(runs, package, export):
    """Whatever can export FastTD3's policy can export this one, with the same actions, and the other way round."""
    obs, outcomes = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), []
    for run in (runs.pair("evaluated")[1], runs["learned"]):
        policy = package.load_policy(run.checkpoint_path())
        expected = policy(obs)
        try:
            actions = export(policy, obs)
        except Exception as error:
            outcomes.append(type(error))
        else:
            outcomes.append("exported")
            assert torch.allclose(actions, expected, atol=1e-6)
    assert outcomes[0] == outcomes[1]
    assert export is scripted or outcomes[0] == "exported"
