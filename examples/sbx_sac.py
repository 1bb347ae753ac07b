# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""SAC with ERA in sbx (JAX): train, look at the entropies, evaluate.

pip install '.[sbx]'
python3 -m examples.sbx_sac --steps 2000              # to try it, in a minute
python3 -m examples.sbx_sac --env HalfCheetah-v5      # a million steps

Of the entropies that it prints, gaussian_entropy_per_dim has the target.
"""

import argparse

from sbx import SAC
from stable_baselines3.common.evaluation import evaluate_policy

from era.sbx import EraMetrics, era_actor

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="HalfCheetah-v5")
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--target-entropy", type=float, default=-0.5, help="nats per action dimension")
options = parser.parse_args()

# The target belongs in era_actor. SAC's own target_entropy is that of its learned coefficient, which ERA replaces.
model = SAC(
    "MlpPolicy",
    options.env,
    ent_coef=0.0,
    policy_kwargs=era_actor(target_entropy=options.target_entropy),
    verbose=1,
)
# era/gaussian_entropy_per_dim is the target, or more where a sigma is as small as it may become.
# era/entropy_per_dim, some -0.9 for a target of -0.5, is what is left of it once actions are limited to [-1, 1].
model.learn(options.steps, callback=EraMetrics(), log_interval=4)
mean, std = evaluate_policy(model, model.get_env(), n_eval_episodes=2)
print(f"return {mean:.1f} (standard deviation {std:.1f}) of the mean action, over 2 episodes")
