"""TD-MPC2's train.py with short episodes: `python short_training.py FILE key=value ...`, the tree on PYTHONPATH.

Upstream collects five episodes of 500 steps before its first update; here they have 20. Into FILE goes what the run
computed: the metrics of all updates, the model, both optimizers, the random state, and the prior's ln sigma for some
latent states.
"""

import runpy
import sys
from pathlib import Path

import envs
import tdmpc2
import torch

torch.set_num_threads(1)
FILE = sys.argv.pop(1)
STEPS_OF_EPISODE = 20
upstreams_make_env = envs.make_env
agents = []


def make_env(cfg):
    env = upstreams_make_env(cfg)
    env.env._max_episode_steps = cfg.episode_length = STEPS_OF_EPISODE
    cfg.seed_steps = 2 * STEPS_OF_EPISODE
    env.action_space.seed(cfg.seed)  # upstream leaves its first, random actions without a seed
    return env


class Recorded(tdmpc2.TDMPC2):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.updates = []
        agents.append(self)

    def update(self, buffer):
        self.updates.append(super().update(buffer))
        return self.updates[-1]


envs.make_env, tdmpc2.TDMPC2 = make_env, Recorded
runpy.run_path(str(Path(tdmpc2.__file__).with_name("train.py")), run_name="__main__")

(agent,) = agents
result = {
    "updates": agent.updates,
    "model": {name: value.clone() for name, value in agent.model.state_dict().items()},
    "optimizers": [agent.optim.state_dict(), agent.pi_optim.state_dict()],
    "random": torch.get_rng_state(),
}
with torch.no_grad():
    z = torch.randn(4, 64, agent.cfg.latent_dim)
    agent.model._pi[-1].weight *= 100  # as after a long training, where ln sigma is clipped in some states
    result["pre_std"] = agent.model._pi(z).chunk(2, dim=-1)[1]
    result["log_std"] = agent.model.pi(z, None)[1]["log_std"]
torch.save(result, FILE)
