# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""PPO with ERA in brax: train, and act with the parameters.

pip install '.[brax]'
python3 -m examples.brax_ppo --steps 2048 --envs 64   # to try it
python3 -m examples.brax_ppo --env reacher            # five million steps
"""

import argparse
from functools import partial

import jax
from brax import envs
from brax.training.agents.ppo import train as ppo

from era.brax import make_ppo_networks

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="reacher")
parser.add_argument("--steps", type=int, default=5_000_000)
parser.add_argument("--envs", type=int, default=2048)
parser.add_argument("--target-entropy", type=float, default=-0.3, help="nats per action dimension")
options = parser.parse_args()

env = envs.get_environment(options.env)  # or an environment of mujoco_playground
make_policy, parameters, metrics = ppo.train(
    environment=env,
    num_timesteps=options.steps,
    num_envs=options.envs,
    batch_size=options.envs // 2,
    num_minibatches=2,
    episode_length=100,
    num_evals=2,
    entropy_cost=0.0,  # brax's default is another, and nothing warns of it
    network_factory=partial(make_ppo_networks, target_entropy=options.target_entropy),
    progress_fn=lambda step, metrics: print(f"step {step}: return {metrics['eval/episode_reward']:.2f}"),
)
policy = jax.jit(make_policy(parameters, deterministic=True))
state = jax.jit(env.reset)(jax.random.key(0))
action, _ = policy(state.obs, jax.random.key(1))
print(f"the action in a first state: {action}")
