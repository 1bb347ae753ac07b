"""Replaces HumanoidBench, of which FastTD3 uses the task names in gymnasium's registry and `env.unwrapped.seed`.

The task is to move a point in the plane to the origin. Episodes end when it leaves a circle, or after 25 steps.
"""

import os

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv

# "forkserver", the default, imports the training script and torch in each process.
SubprocVecEnv.__init__.__defaults__ = ("fork",)


class Walk(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    push = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]])

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.radius = float(os.environ.get("WALK_RADIUS", "1.5"))

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def observation(self):
        return np.concatenate([self.position, self.velocity]).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        self.position, self.velocity = self.random.uniform(-1, 1, (2, 2))
        return self.observation(), {}

    def step(self, action):
        self.velocity = 0.8 * self.velocity + 0.2 * self.push @ action + 0.05 * self.random.standard_normal(2)
        self.position = self.position + 0.2 * self.velocity
        distance = float(np.linalg.norm(self.position))
        return self.observation(), -distance, distance > self.radius, False, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


gym.register("h1-walk-v0", Walk, max_episode_steps=25)
