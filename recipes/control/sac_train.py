# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Trains SAC or OBAC, with ERA or without, by sbx in the current folder.

The settings are the paper's, tab. combined_hyperparameters.

Writes train.csv, with a row per evaluation, run.json and at the end model.zip. An interrupted run starts over: a model
without its replay buffer of a million states could not go on as if nothing had happened.
"""

import argparse
import csv
import math
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from era.gaussian_defaults import SAC_TARGET
from recipes import run_json
from recipes.control import environments
from recipes.control.script import CURVES

COLUMNS = (
    *("global_step", "eval_avg_return", "seconds", "cpu_seconds"),
    # nats, of the policy bounded to [-1, 1]: in the newest states, and in those of the replay buffer
    *("entropy_per_dim", "min_entropy_per_dim", "buffer_entropy_per_dim", "target_per_dim"),
    *("mean_log_std", "alpha", "delta"),
)
# Means over the newest batch: the policy's value, Q of mu* at the batch's actions, V of mu*. And the share of the
# updates since the last row in which OBAC imitated.
OBAC_COLUMNS = ("policy_value", "buffer_q", "buffer_value", "imitation_share")
PACKAGES = ("jax", "sbx-rl", "stable_baselines3", "gymnasium", "mujoco", "dm_control", "numpy")
MODEL = "model.zip"
STATES = 1024  # of which the entropies are means


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("sac_train.py", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--task", required=True, help="HalfCheetah-v4, dog-run, h1-walk-v0, ...")
    add("--seed", type=int, default=1)
    add("--total_timesteps", type=int, default=1_000_000, help="the agent's steps")
    add("--eval_every", type=int, default=5_000, help="steps between two evaluations")
    add("--eval_episodes", type=int, default=10)
    add("--action_repeat", type=int, default=1)
    add("--no_termination", action="store_true", help="episodes end at their limit of steps alone")
    add("--target_entropy", type=float, default=SAC_TARGET, help="H0 per action dimension, in nats")
    add("--alpha_init", type=float, default=1.0, help="SAC's; 0: no entropy term at all")
    add("--era", action="store_true", help="SAC-ERA")
    add("--distribution", choices=("truncated", "tanh"), default="truncated", help="with --era")
    add("--learn_delta", action="store_true", help="with --era")
    add("--level", choices=("state", "batch"), default="state", help="with --era")
    add("--obac", choices=("soft", "reward"), help="OBAC; which value of the policy decides (obac.py)")
    add("--width", type=int, default=512, help="of the two hidden layers")
    add("--batch_size", type=int, default=256)
    add("--buffer_size", type=int, default=1_000_000)
    add("--learning_starts", type=int, default=5_000, help="random steps before")
    add("--gradient_steps", type=int, default=2, help="per step")
    arguments = parser.parse_args(words)
    era_only = {"distribution": "truncated", "learn_delta": False, "level": "state"}
    for name, default in era_only.items():
        if not arguments.era and getattr(arguments, name) != default:
            parser.error(f"--{name} needs --era.")
    if arguments.obac and (arguments.learn_delta or arguments.level == "batch"):
        parser.error("--obac takes ERA per state and with a constant delta.")
    if arguments.era and arguments.alpha_init != 1.0:
        parser.error("--alpha_init is SAC's; with --era there is no entropy term.")
    if not arguments.era and arguments.target_entropy >= math.log(2):
        parser.error(f"--target_entropy {arguments.target_entropy}: a policy on [-1, 1] has at most ln 2.")
    return arguments


def problem(folder: Path) -> str:
    """Why this command cannot write into the folder; empty if it can."""
    files = [name for name in (run_json.FILE, CURVES, MODEL) if (folder / name).exists()]
    known, command = run_json.read(folder), [Path(sys.argv[0]).name, *sys.argv[1:]]
    if files and (known.get("finished") or known.get("command") != command):
        state = "a finished run" if known.get("finished") else "another run"
        return f"{folder} holds {state} ({', '.join(files)}). Start this one in another folder."
    return ""


def make_model(arguments: argparse.Namespace):
    """sbx's SAC, OBAC on it, or either with ERA's actor."""
    import optax
    from sbx import SAC
    from sbx.sac.policies import SACPolicy

    from era.sbx import EraSAC, era_actor
    from recipes.control.obac import OBAC

    class Policy(SACPolicy):
        """sbx's policy with AdamW for the critics and Adam for the actor: sbx has one optimizer for both."""

        def build(self, key, lr_schedule, qf_learning_rate):
            key = super().build(key, lr_schedule, qf_learning_rate)
            adamw = optax.inject_hyperparams(optax.adamw)(learning_rate=qf_learning_rate)
            self.qf_state = self.qf_state.replace(tx=adamw, opt_state=adamw.init(self.qf_state.params))
            return key

    env = environments.make(arguments.task, arguments.action_repeat, not arguments.no_termination)
    policy_kwargs = {"net_arch": [arguments.width] * 2, "layer_norm": True}
    if arguments.era:
        policy_kwargs |= era_actor(arguments.target_entropy, distribution=arguments.distribution)
        kind = partial(EraSAC, learn_delta=arguments.learn_delta, level=arguments.level)
        if arguments.obac:  # the same actor and, with a constant delta, the same loss
            kind = partial(OBAC, switch=arguments.obac, ent_coef=0.0)
    else:
        kind = partial(
            partial(OBAC, switch=arguments.obac) if arguments.obac else SAC,
            ent_coef=f"auto_{arguments.alpha_init}" if arguments.alpha_init else 0.0,
            target_entropy=env.action_space.shape[0] * arguments.target_entropy,
        )
    return kind(
        Policy,
        env,
        learning_rate=3e-4,
        buffer_size=arguments.buffer_size,
        learning_starts=arguments.learning_starts,
        batch_size=arguments.batch_size,
        gradient_steps=arguments.gradient_steps,
        tau=0.005,
        gamma=0.99,
        policy_kwargs=policy_kwargs,
        seed=arguments.seed,
    )


def policy_entropies(model, observations) -> dict[str, float]:
    """Mean and least entropy of the bounded policy over the states (B, n), in nats per dimension, and mean ln sigma."""
    import jax
    import jax.numpy as jnp

    from era.continuous_jax import BoundedGaussian, TanhGaussian

    state = model.policy.actor_state
    policy = state.apply_fn(state.params, jnp.asarray(observations))
    if not isinstance(policy, BoundedGaussian):  # sbx's own: TensorFlow Probability's tanh of a Gaussian
        gaussian = policy.distribution
        policy = TanhGaussian(gaussian.mean(), jnp.log(gaussian.stddev()))
    key = jax.random.key(model.num_timesteps)
    # The tanh Gaussian has no closed form: a sample per state.
    entropy = policy.entropy(key) / policy.loc.shape[-1]
    return {"mean": float(entropy.mean()), "min": float(entropy.min()), "log_std": float(policy.log_std.mean())}


def evaluation_return(model, env, episodes: int) -> float:
    """The mean return over episodes in which tanh(mean) is the action."""
    total = 0.0
    for _ in range(episodes):
        observation, _ = env.reset()
        ended = False
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
    return total / episodes


class Recorder:
    """Adds a row to train.csv at each evaluation."""

    def __init__(self, arguments: argparse.Namespace, model, folder: Path):
        self.arguments, self.model, self.file = arguments, model, folder / CURVES
        self.env = environments.make(arguments.task, arguments.action_repeat, not arguments.no_termination)
        self.env.reset(seed=arguments.seed + 2**31)  # not the training's seed
        self.began = time.monotonic()
        self.updates = self.imitations = 0
        with self.file.open("w", newline="") as stream:
            csv.writer(stream).writerow((*COLUMNS, *(OBAC_COLUMNS if self.arguments.obac else ())))

    def __call__(self, local_variables: dict, global_variables: dict) -> bool:
        """stable-baselines3's callback after each step."""
        if self.model.num_timesteps % self.arguments.eval_every == 0:
            self.add_row()
        return True

    def add_row(self) -> None:
        model, buffer = self.model, self.model.replay_buffer
        value = evaluation_return(model, self.env, self.arguments.eval_episodes)
        count = min(STATES, buffer.size())
        newest = (buffer.pos - 1 - np.arange(count)) % buffer.buffer_size
        entropies = policy_entropies(model, buffer.observations[newest, 0])
        sampled = policy_entropies(model, buffer.sample(count).observations.numpy())
        variables = model.policy.actor_state.params["params"]
        alpha = model.ent_coef_state.apply_fn({"params": model.ent_coef_state.params})
        numbers = (
            *(value, time.monotonic() - self.began, time.process_time()),
            *(entropies["mean"], entropies["min"], sampled["mean"], self.arguments.target_entropy),
            *(entropies["log_std"], float(alpha), float(variables.get("delta", 0))),
            *(self.offline_numbers() if self.arguments.obac else ()),
        )
        with self.file.open("a", newline="") as stream:
            csv.writer(stream).writerow([model.num_timesteps, *(f"{number:.6g}" for number in numbers)])

    def offline_numbers(self) -> tuple[float, ...]:
        """The values of OBAC_COLUMNS."""
        critics, updates = self.model.policy.qf_state, self.model._n_updates
        new, imitations = updates - self.updates, int(critics.imitations)
        share = (imitations - self.imitations) / new if new else 0.0
        self.updates, self.imitations = updates, imitations
        return (*map(float, critics.values), share)


def train(arguments: argparse.Namespace, model, folder: Path) -> None:
    agent = ("obac" if arguments.obac else "sac") + ("_era" if arguments.era else "")
    record = run_json.begin("sac", arguments.task, arguments.seed, arguments.total_timesteps, PACKAGES, agent=agent)
    run_json.start(folder, record)
    recorder = Recorder(arguments, model, folder)
    model.learn(arguments.total_timesteps, callback=recorder)
    if arguments.total_timesteps % arguments.eval_every:
        recorder.add_row()
    model.save(folder / MODEL)
    run_json.finish(folder, record, time.process_time())


if __name__ == "__main__":
    given = parse_arguments(sys.argv[1:])
    reason, model = problem(Path.cwd()), None
    try:
        model = make_model(given) if not reason else None
    except (ImportError, ValueError) as error:  # of packages, tasks and targets
        reason = str(error)
    if reason:
        sys.exit(f"sac_train.py: error: {reason} Nothing was changed.")
    train(given, model, Path.cwd())
