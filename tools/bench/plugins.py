# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""CPU time of ERA's policies per environment step in stable-baselines3, sbx and rsl_rl, as ratios.

    python -m tools.bench.plugins [--hosts sb3-ppo ...] [--turns 15] [--csv FILE]

Two arms per host, with the host's default settings on a CPU: its own policy (SAC's also learns its entropy coefficient)
and ERA's. HalfCheetah-v5 in one environment; in rsl_rl 64 points that cost nothing, so that its ratio is the largest
possible. Both train in one process.

A step's own noise hides the share of the activation: ln sigma from the head's output, and its gradient. So, but for
sbx, which compiles it into its update, it is also measured alone, after each turn, for the calls that ERA's arm makes
in a step; its ratio is to that arm.

Times are CPU times of the process, all threads together: other processes on the machine disturb these less than wall
times.
"""

import contextlib
import io
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from era import continuous
from tools.bench import tables

TASK = "HalfCheetah-v5"
TARGET, LOW, HIGH = -0.3, -8.0, 0.0


class Host(NamedTuple):
    """How a host trains.

    Attributes:
        make: with the arm's name gives a function that trains `steps` more steps.
        steps: environment steps of a turn, of all environments together.
        calls: of the activation in a step: how many of which (rows, dimensions), and whether with a gradient.
    """

    make: Callable
    steps: int
    calls: tuple[tuple[float, tuple[int, int], bool], ...]


def learner(model):
    """Training goes on where it was. The first turn, of any length, has the allocations and the compilations."""
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


def sb3_ppo():
    from stable_baselines3 import PPO

    from era.stable_baselines3 import EraActorCriticPolicy

    def make(arm):
        return learner(PPO("MlpPolicy" if arm == "baseline" else EraActorCriticPolicy, TASK, seed=0, device="cpu"))

    return Host(make, 2048, ((1, (1, 6), False), (10 / 64, (64, 6), True)))  # 10 epochs of minibatches of 64


def sb3_sac():
    from stable_baselines3 import SAC

    from era.stable_baselines3 import EraSACPolicy

    def make(arm):
        policy, entropy = ("MlpPolicy", {}) if arm == "baseline" else (EraSACPolicy, {"ent_coef": 0.0})
        return learner(SAC(policy, TASK, seed=0, device="cpu", buffer_size=100_000, **entropy))

    return Host(make, 100, ((1, (1, 6), False), (1, (256, 6), False), (1, (256, 6), True)))


def sbx_sac():
    from sbx import SAC

    from era.sbx import era_actor

    def make(arm):
        era = {} if arm == "baseline" else {"ent_coef": 0.0, "policy_kwargs": era_actor()}
        return learner(SAC("MlpPolicy", TASK, seed=0, buffer_size=100_000, **era))

    return Host(make, 200, ())


def rsl_rl_ppo():
    from rsl_rl.runners import OnPolicyRunner

    from era.rsl_rl import EraGaussianDistribution
    from tools.bench.points import PointsEnv

    per_iteration = 24 * PointsEnv.num_envs

    def make(arm):
        mlp = {"class_name": "MLPModel", "hidden_dims": [256, 256, 256], "activation": "elu"}
        distribution = "GaussianDistribution" if arm == "baseline" else EraGaussianDistribution
        configuration = {
            "num_steps_per_env": 24,
            "save_interval": 10**9,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {**mlp, "distribution_cfg": {"class_name": distribution}},
            "critic": mlp,
            "algorithm": {"class_name": "PPO", "entropy_coef": 0.01 if arm == "baseline" else 0.0},
        }
        runner = OnPolicyRunner(PointsEnv(), configuration)
        return lambda steps: runner.learn(steps // per_iteration)

    # 5 epochs of 4 minibatches of 384
    return Host(make, 4 * per_iteration, ((1 / 64, (64, 12), False), (20 / per_iteration, (384, 12), True)))


HOSTS = {"sb3-ppo": sb3_ppo, "sb3-sac": sb3_sac, "sbx-sac": sbx_sac, "rsl-rl-ppo": rsl_rl_ppo}


def cpu_seconds_of(run, *arguments):
    start = time.process_time()
    run(*arguments)
    return time.process_time() - start


def activation_seconds(calls, repeats=300):
    """CPU seconds of these calls in an environment step."""
    total = 0.0
    for number, shape, with_gradient in calls:
        pre_std, weights = torch.randn(shape, requires_grad=with_gradient), torch.randn(shape)

        def run(pre_std=pre_std, weights=weights, with_gradient=with_gradient):
            for _ in range(repeats):
                log_std = continuous.state_level_log_std(pre_std, TARGET * pre_std.shape[-1], LOW, HIGH)
                if with_gradient:
                    torch.autograd.grad(log_std, pre_std, weights)

        run()
        total += number * cpu_seconds_of(run) / repeats
    return total


def measure(host, turns):
    """For each arm CPU seconds per environment step, one number per turn; and those of the activation alone."""
    with contextlib.redirect_stdout(io.StringIO()):
        trainings = {arm: host.make(arm) for arm in ("baseline", "era")}
        for train in trainings.values():
            train(host.steps + 200)  # learning starts after 100 steps; then everything is compiled
        arms = {arm: partial(cpu_seconds_of, train, host.steps) for arm, train in trainings.items()}
        if host.calls:
            arms["activation"] = lambda: host.steps * activation_seconds(host.calls)
        found = tables.take_turns(arms, turns)
    return {arm: [seconds / host.steps for seconds in measured] for arm, measured in found.items()}


def main():
    parser = tables.parser(__doc__, turns=15)
    parser.add_argument("--hosts", nargs="+", choices=HOSTS, default=[*HOSTS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    written = tables.Tables(args.csv)
    for name in args.hosts:
        host = HOSTS[name]()
        seconds = measure(host, args.turns)
        ratio_to = {arm: "era" if arm == "activation" else "baseline" for arm in seconds}
        title = f"{name}, {args.turns} turns of {host.steps} environment steps; the activation's ratio is to era"
        table = tables.ratios(seconds, ratio=ratio_to)
        written.add(title, table, host=name, ratio_to=ratio_to, turns=args.turns, steps=host.steps)


if __name__ == "__main__":
    main()
