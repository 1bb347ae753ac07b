# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""CPU time of ERA's policies per environment step in stable-baselines3, sbx and rsl_rl, as ratios.

    python -m tools.bench.plugins [--hosts sb3-ppo ...] [--turns 15] [--csv FILE]

Two arms per framework, with its default settings on a CPU: its own policy (SAC's also learns its entropy coefficient)
and ERA's. The task is HalfCheetah-v5 in one environment. In rsl_rl it is 64 points that cost nothing, so that the ratio
is the largest possible. `obac` has the agents of `make control-obac` with its settings. All arms train in one process.

A step's own noise hides the share of the activation: ln sigma from the head's output, and its gradient. So the
activation is also measured alone, after each turn, for the calls that ERA's arm makes in a step; its ratio is to that
arm. sbx compiles the activation into its update, so there it is not measured alone.

Times are CPU times of the process, all threads together: other processes on the machine disturb these less than wall
times.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from era import continuous
from era.gaussian_defaults import LOG_STD_MAX, LOG_STD_MIN, PPO_TARGET
from tools.bench import measure

TASK = "HalfCheetah-v5"
TARGET, LOW, HIGH = PPO_TARGET, LOG_STD_MIN, LOG_STD_MAX
OBAC = {
    "baseline": "",
    "era": "--era",
    "obac": "--obac soft",
    "obac-reward": "--obac reward",
    "obac_era": "--obac soft --era",
}
BASELINES = {**dict.fromkeys(OBAC, "baseline"), "activation": "era"}
ITERATION = 24 * 64  # rsl_rl's steps between updates, of all its environments
cost = partial(measure.cost, clock=time.process_time, memory=False)


def sb3_ppo(arm):
    from stable_baselines3 import PPO

    from era.stable_baselines3 import EraActorCriticPolicy

    return learner(PPO(EraActorCriticPolicy if arm == "era" else "MlpPolicy", TASK, seed=0, device="cpu"))


def sb3_sac(arm):
    from stable_baselines3 import SAC

    from era.stable_baselines3 import EraSACPolicy

    policy, entropy = (EraSACPolicy, {"ent_coef": 0.0}) if arm == "era" else ("MlpPolicy", {})
    return learner(SAC(policy, TASK, seed=0, device="cpu", buffer_size=100_000, **entropy))


def sbx_sac(arm):
    from sbx import SAC

    from era.sbx import era_actor

    era = {"ent_coef": 0.0, "policy_kwargs": era_actor()} if arm == "era" else {}
    return learner(SAC("MlpPolicy", TASK, seed=0, buffer_size=100_000, **era))


def learner(model):
    """A function that trains the model a number of steps more."""
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


def obac(arm):
    from recipes.control import sac_train

    # As in `make control-obac`, but training starts at once.
    flags = f"--task HalfCheetah-v4 --width 256 --buffer_size 100000 --learning_starts 100 {OBAC[arm]}"
    return learner(sac_train.make_model(sac_train.parse_arguments(flags.split())))


def rsl_rl_ppo(arm):
    from rsl_rl.runners import OnPolicyRunner

    from era.rsl_rl import EraGaussianDistribution
    from tools.bench.points import PointsEnv

    mlp = {"class_name": "MLPModel", "hidden_dims": [256, 256, 256], "activation": "elu"}
    distribution = EraGaussianDistribution if arm == "era" else "GaussianDistribution"
    configuration = {
        "num_steps_per_env": 24,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**mlp, "distribution_cfg": {"class_name": distribution}},
        "critic": mlp,
        "algorithm": {"class_name": "PPO", "entropy_coef": 0.0 if arm == "era" else 0.01},
    }
    runner = OnPolicyRunner(PointsEnv(), configuration)
    return lambda steps: runner.learn(steps // ITERATION)


class Calls(NamedTuple):
    """Calls of the activation in an environment step, of pre-activations of shape (rows, dimensions)."""

    number: float
    rows: int
    dimensions: int
    with_gradient: bool = False


class Agent(NamedTuple):
    """An agent of a framework.

    Attributes:
        make: takes an arm's name and returns a function that trains a number of steps more.
        steps: environment steps of a turn, of all environments together.
        calls: ERA's; without any, the activation is not measured alone.
        arms: the names of the policies.
    """

    make: Callable[[str], Callable[[int], object]]
    steps: int
    calls: tuple[Calls, ...] = ()
    arms: tuple[str, ...] = ("baseline", "era")


AGENTS = {
    # 10 epochs, minibatches of 64
    "sb3-ppo": Agent(sb3_ppo, 2048, (Calls(1, 1, 6), Calls(10 / 64, 64, 6, True))),
    "sb3-sac": Agent(sb3_sac, 100, (Calls(1, 1, 6), Calls(1, 256, 6), Calls(1, 256, 6, True))),
    "sbx-sac": Agent(sbx_sac, 200),
    "obac": Agent(obac, 200, arms=tuple(OBAC)),
    # 5 epochs of 4 minibatches of 384
    "rsl-rl-ppo": Agent(rsl_rl_ppo, 4 * ITERATION, (Calls(1 / 64, 64, 12), Calls(20 / ITERATION, 384, 12, True))),
}


def seconds_of_calls(calls):
    """CPU seconds of these calls in an environment step."""
    total = 0.0
    for number, *shape, with_gradient in calls:
        pre_std, weights = torch.randn(shape, requires_grad=with_gradient), torch.randn(shape)

        def run(pre_std=pre_std, weights=weights):
            log_std = continuous.state_level_log_std(pre_std, TARGET * pre_std.shape[-1], LOW, HIGH)
            if pre_std.requires_grad:
                torch.autograd.grad(log_std, pre_std, weights)

        run()
        total += number * cost(run, repeats=300)["seconds"]
    return total


def arms_of(agent):
    """The arms that train, and the activation alone: CPU seconds of an environment step."""

    def take_turn(train):
        return {"step": {"seconds": cost(lambda: train(agent.steps))["seconds"] / agent.steps}}

    arms = {}
    for arm in agent.arms:
        train = agent.make(arm)
        train(agent.steps + 200)  # learning starts after 100 steps; then everything is allocated and compiled
        arms[arm] = partial(take_turn, train)
    if agent.calls:
        arms["activation"] = lambda: {"step": {"seconds": seconds_of_calls(agent.calls)}}
    return arms


def tables(args):
    """A table for each agent."""
    torch.set_num_threads(1)
    for name in args.hosts:
        rows = measure.compare(arms_of(AGENTS[name]), args.turns, warm_up=False, ratio=BASELINES)["step"]
        yield rows, {"host": name, "steps": AGENTS[name].steps}


ARGUMENTS = {"--hosts": {"nargs": "+", "choices": AGENTS, "default": [*AGENTS]}}

if __name__ == "__main__":
    measure.main(__doc__, ARGUMENTS, tables, turns=15)
