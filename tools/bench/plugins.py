# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""CPU time of ERA's policies per environment step in stable-baselines3, sbx and rsl_rl, as ratios.

    python -m tools.bench.plugins [--hosts sb3-ppo ...] [--turns 15] [--csv FILE]

Two arms per host, with the host's default settings on a CPU: its own policy (SAC's also learns its entropy coefficient)
and ERA's. HalfCheetah-v5 in one environment; in rsl_rl 64 points that cost nothing, so that its ratio is the largest
possible. Both train in one process.

A step's own noise hides the share of the activation: ln sigma from the head's output, and its gradient. So it is also
measured alone, after each turn, for every call that ERA's arm makes in a step, as a share of that arm's step.

Times are CPU times of the process, all threads together: other processes on the machine disturb these less than wall
times.
"""

import collections
import contextlib
import dataclasses
import io
import time
import types
import warnings
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch

from era import continuous
from tools.bench import tables

ARMS = ("baseline", "era")
TASK = "HalfCheetah-v5"
TARGET, LOW, HIGH = -0.3, -8.0, 0.0


@dataclasses.dataclass
class Host:
    """How a host trains.

    Attributes:
        make: with the arm's name gives a function that trains `steps` more steps.
        steps: environment steps of a turn, of all environments together.
        module: of the plug-in. Its calls of state_level_log_std are counted.
        calls: where they cannot be counted: how many a step has of each (shape, with its gradient).
    """

    make: Callable
    steps: int
    module: types.ModuleType
    calls: dict | None = None


def learner(model):
    """Training goes on where it was. The first turn, of any length, has the allocations and the compilations."""
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


def sb3_ppo():
    from stable_baselines3 import PPO

    from era import stable_baselines3 as plugin

    def make(arm):
        policy = "MlpPolicy" if arm == "baseline" else plugin.EraActorCriticPolicy
        return learner(PPO(policy, TASK, seed=0, device="cpu"))

    return Host(make, 2048, plugin)


def sb3_sac():
    from stable_baselines3 import SAC

    from era import stable_baselines3 as plugin

    def make(arm):
        policy = "MlpPolicy" if arm == "baseline" else plugin.EraSACPolicy
        entropy = {} if arm == "baseline" else {"ent_coef": 0.0}
        return learner(SAC(policy, TASK, seed=0, device="cpu", buffer_size=100_000, **entropy))

    return Host(make, 100, plugin)


def sbx_sac():
    from sbx import SAC

    from era import sbx as plugin

    def make(arm):
        era = {} if arm == "baseline" else {"ent_coef": 0.0, "policy_kwargs": plugin.era_actor()}
        return learner(SAC("MlpPolicy", TASK, seed=0, buffer_size=100_000, **era))

    # An action, the target's actions, an update of the policy.
    return Host(make, 200, plugin, {((1, 6), False): 1, ((256, 6), False): 1, ((256, 6), True): 1})


def rsl_rl_ppo():
    from rsl_rl.runners import OnPolicyRunner

    from era import rsl_rl as plugin
    from tools.bench.points import PointsEnv

    era = {"class_name": plugin.EraGaussianDistribution}
    per_iteration = 24 * PointsEnv.num_envs

    def make(arm):
        mlp = {"class_name": "MLPModel", "hidden_dims": [256, 256, 256], "activation": "elu"}
        configuration = {
            "num_steps_per_env": 24,
            "save_interval": 10**9,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {**mlp, "distribution_cfg": {"class_name": "GaussianDistribution"} if arm == "baseline" else era},
            "critic": mlp,
            "algorithm": {"class_name": "PPO", "entropy_coef": 0.01 if arm == "baseline" else 0.0},
        }
        runner = OnPolicyRunner(PointsEnv(), configuration)
        return lambda steps: runner.learn(steps // per_iteration)

    return Host(make, 4 * per_iteration, plugin)


HOSTS = {"sb3-ppo": sb3_ppo, "sb3-sac": sb3_sac, "sbx-sac": sbx_sac, "rsl-rl-ppo": rsl_rl_ppo}


def count_calls(host, train):
    """How many calls of the activation a step has, of each (shape, with its gradient)."""
    calls, activation = collections.Counter(), host.module.state_level_log_std

    def counted(pre_std, *era):
        calls[tuple(pre_std.shape), pre_std.requires_grad] += 1
        return activation(pre_std, *era)

    with mock.patch.object(host.module, "state_level_log_std", counted):
        train(host.steps)
    return {call: number / host.steps for call, number in calls.items()}


def torch_activation(shape, with_gradient):
    """A function that computes it once."""
    pre_std, target = torch.randn(shape, requires_grad=with_gradient), TARGET * shape[-1]
    weights = torch.randn(shape)

    def run():
        log_std = continuous.state_level_log_std(pre_std, target, LOW, HIGH)
        if with_gradient:
            torch.autograd.grad(log_std, pre_std, weights)

    return run


def jax_activation(shape, with_gradient):
    """The same, compiled. A call of its own costs more than as a part of sbx's compiled update."""
    import jax

    from era import continuous_jax

    pre_std, weights = (jax.random.normal(jax.random.key(seed), shape) for seed in (0, 1))

    def weighted(x):
        log_std = continuous_jax.state_level_log_std(x, TARGET * shape[-1], LOW, HIGH)
        return (log_std * weights).sum() if with_gradient else log_std

    run = jax.jit(jax.grad(weighted) if with_gradient else weighted)
    return lambda: run(pre_std).block_until_ready()


def cpu_seconds(run, repeats):
    run()
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats


def measure(host, turns):
    """For each arm CPU seconds per environment step, one number per turn; and those of the activation alone."""
    with contextlib.redirect_stdout(io.StringIO()):
        trainings = {arm: host.make(arm) for arm in ARMS}
        for train in trainings.values():
            train(host.steps + 200)  # learning starts after 100 steps; then everything is compiled
        calls = host.calls or count_calls(host, trainings["era"])
        make = jax_activation if host.calls else torch_activation
        alone = [(number, make(*call)) for call, number in calls.items()]
        arms = {arm: partial(cpu_seconds_of_turn, train, host.steps) for arm, train in trainings.items()}
        arms["activation"] = lambda: sum(number * cpu_seconds(run, 300) for number, run in alone)
        return tables.take_turns(arms, turns)


def cpu_seconds_of_turn(train, steps):
    start = time.process_time()
    train(steps)
    return (time.process_time() - start) / steps


def main():
    parser = tables.parser(__doc__, turns=15)
    parser.add_argument("--hosts", nargs="+", choices=HOSTS, default=[*HOSTS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    machine, written = tables.machine(), []
    columns = {"CPU ms": ("seconds", 1e3, 4), "p20-p80": ("seconds", 1e3, 4, True)}
    columns |= {"ratio": ("ratio", 1, 4), "p20-p80 ": ("ratio", 1, 4, True)}
    baselines = {"baseline": "baseline", "era": "baseline", "activation": "era"}
    for name in args.hosts:
        host = HOSTS[name]()
        table = tables.ratios(measure(host, args.turns), baselines).assign(ratio_to=baselines)
        title = f"{name}, {args.turns} turns of {host.steps} environment steps; the activation's ratio is to era"
        tables.show(title, table, columns)
        written.append(table.assign(host=name, turns=args.turns, steps=host.steps, **machine))
        tables.write_csv(args.csv, written)


if __name__ == "__main__":
    main()
