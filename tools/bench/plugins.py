"""CPU time of ERA's policies per environment step in stable-baselines3, sbx and rsl_rl, as ratios.

    python -m tools.bench.plugins [--hosts sb3-ppo ...] [--rounds 15] [--csv FILE]

Two arms per host, with the host's default settings on a CPU: its own policy (SAC's also learns its entropy coefficient)
and ERA's. HalfCheetah-v5 in one environment; in rsl_rl 64 points that cost nothing, so that its ratio is the largest
possible. Both train in one process and take turns, in reversed order every other turn, and are compared turn by turn.

A step's own noise hides the share of the activation: ln sigma from the head's output, and its gradient. So it is also
measured alone, after each turn, for every call that ERA's arm makes in a step, as a share of that arm's step.

Times are CPU times of the process, all threads together: other processes on the machine disturb these less than wall
times.
"""

import argparse
import collections
import contextlib
import dataclasses
import io
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
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


def measure(host, rounds):
    """For each arm CPU seconds per environment step, one number per turn; and those of the activation alone."""
    with contextlib.redirect_stdout(io.StringIO()):
        trainings = {arm: host.make(arm) for arm in ARMS}
        for train in trainings.values():
            train(host.steps + 200)  # learning starts after 100 steps; then everything is compiled
        calls = host.calls or count_calls(host, trainings["era"])
        activation = jax_activation if host.calls else torch_activation
        alone = [(number, activation(*call)) for call, number in calls.items()]
        seconds = {arm: [] for arm in (*ARMS, "activation")}
        for turn in range(rounds):
            for arm in ARMS[:: 1 if turn % 2 else -1]:
                seconds[arm].append(cpu_seconds_of_turn(trainings[arm], host.steps))
            seconds["activation"].append(sum(number * cpu_seconds(run, 300) for number, run in alone))
    return seconds


def cpu_seconds_of_turn(train, steps):
    start = time.process_time()
    train(steps)
    return (time.process_time() - start) / steps


def rows_of(seconds):
    """One per arm: CPU ms of a step, its ratio to the baseline; the activation's to ERA's arm."""
    rows = tables.summarise(seconds, {}, {"baseline": "baseline", "era": "baseline", "activation": "era"})
    for row in rows:
        for suffix in ("", "_p20", "_p80"):
            row[f"cpu_ms{suffix}"] = 1e3 * row.pop(f"seconds{suffix}")
            row[f"ratio{suffix}"] = row.pop(f"seconds_ratio{suffix}")
        row["ratio_to"] = "era" if row["arm"] == "activation" else "baseline"
        del row["peak_mib"], row["peak_ratio"]
    return rows


def print_rows(rows):
    print("| arm        |       CPU ms per step (p20 to p80) |          ratio (p20 to p80) |")
    print("|------------|-----------------------------------:|----------------------------:|")
    for row in rows:
        cpu_ms, ratio = (
            f"{row[name]:.4f} ({row[f'{name}_p20']:.4f} to {row[f'{name}_p80']:.4f})" for name in ("cpu_ms", "ratio")
        )
        print(f"| {row['arm']:10} | {cpu_ms:>34} | {ratio:>27} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", nargs="+", choices=HOSTS, default=[*HOSTS])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each arm, at least 2")
    parser.add_argument("--csv", type=Path, help="also write a row per host and arm to this file")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("at least 2 rounds are needed")
    if args.csv and not args.csv.parent.is_dir():
        parser.error(f"the folder of {args.csv} does not exist")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in args.hosts:
        host = HOSTS[name]()
        print(f"\n{name}, {args.rounds} turns of {host.steps} environment steps:\n", flush=True)
        found = rows_of(measure(host, args.rounds))
        print_rows(found)
        where = {**tables.machine_of("cpu"), "host": name, "rounds": args.rounds, "steps": host.steps}
        rows += [{**where, **tables.rounded(row)} for row in found]
        if args.csv:
            tables.write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
