# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""PPO with ERA in rsl_rl, on points that are to be moved to the origin.

pip install '.[rsl-rl]'
python3 -m examples.rsl_rl_ppo --iterations 100
"""

import argparse

from rsl_rl.runners import OnPolicyRunner

from tools.bench.points import PointsEnv  # in its place your VecEnv: Isaac Lab's, mjlab's, ...

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--iterations", type=int, default=100)
parser.add_argument("--target-entropy", type=float, default=-0.3, help="nats per action dimension")
parser.add_argument("--log-dir", default="logs/rsl_rl_era")
options = parser.parse_args()

# rsl_rl ignores keys that it does not know, so look for EraHead in the actor that it prints.
train_cfg = {
    "num_steps_per_env": 24,
    "save_interval": 50,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": {
        "class_name": "MLPModel",
        "distribution_cfg": {
            "class_name": "era.rsl_rl:EraGaussianDistribution",
            "target_entropy": options.target_entropy,
        },
    },
    "critic": {"class_name": "MLPModel"},
    "algorithm": {"class_name": "PPO", "entropy_coef": 0.0},
}
env = PointsEnv()
runner = OnPolicyRunner(env, train_cfg, log_dir=options.log_dir, device=env.device)
runner.learn(options.iterations)

actor = runner.alg.actor
actor(env.get_observations(), stochastic_output=True)
entropy = actor.output_entropy / env.num_actions
print(f"entropy per dimension over {env.num_envs} states: from {entropy.min():.4f} to {entropy.max():.4f} nats")
