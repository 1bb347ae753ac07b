# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""PPO with ERA in stable-baselines3: train, look at the entropies, save, load, evaluate.

pip install '.[stable-baselines3]'
python3 -m examples.sb3_ppo --steps 20000             # to try it, in half a minute
python3 -m examples.sb3_ppo --env HalfCheetah-v5      # a million steps
"""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from era.stable_baselines3 import EraActorCriticPolicy, EraMetrics

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="HalfCheetah-v5")
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--target-entropy", type=float, default=-0.3, help="nats per action dimension")
parser.add_argument("--save", default="ppo_era.zip")
options = parser.parse_args()

model = PPO(
    EraActorCriticPolicy,
    make_vec_env(options.env, n_envs=4),
    n_steps=512,
    ent_coef=0.0,  # ERA keeps the entropy, so the loss has no term for it
    policy_kwargs=dict(target_entropy=options.target_entropy),
    verbose=1,
    device="cpu",
)
model.learn(options.steps, callback=EraMetrics())  # logs era/gaussian_entropy_per_dim: the target, in every state

model.save(options.save)
loaded = PPO.load(options.save, device="cpu")  # the file knows that it was trained with ERA
mean, std = evaluate_policy(loaded, make_vec_env(options.env), n_eval_episodes=2)
print(f"return {mean:.1f} (standard deviation {std:.1f}) of the mean action, over 2 episodes")
