"""Replaces MTBench: ten tasks in 4096 environments at once, as FastTD3's MTBenchEnv needs them."""

from types import SimpleNamespace

import torch


def make(task, num_envs, sim_device, rl_device, seed, headless, cfg):
    return MultiTask(num_envs, cfg.task.env.numObservations, cfg.task.env.taskEnvCount, seed)


class MultiTask:
    """Each task has its own place to move the position to. All episodes end together, after 20 steps."""

    device, max_episode_length = "cpu", 20

    def __init__(self, num_envs, num_obs, envs_of_task, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.num_envs, self.num_tasks = num_envs, len(envs_of_task)
        self.observation_space, self.action_space = SimpleNamespace(shape=(num_obs,)), SimpleNamespace(shape=(4,))
        task = torch.arange(self.num_tasks).repeat_interleave(torch.tensor(list(envs_of_task)))
        self.one_hot = torch.nn.functional.one_hot(task, self.num_tasks).float()
        self.goal = torch.rand(self.num_tasks, 4, generator=self.random)[task]
        self.cumulatives = {"rewards": torch.zeros(num_envs), "success": torch.zeros(num_envs)}

    def reset_idx(self, ids):
        self.steps, self.position = 0, torch.zeros(self.num_envs, 4)

    def observations(self):
        rest = torch.zeros(self.num_envs, 39 - 4)
        return {"obs": torch.cat([self.position, rest, self.one_hot], -1)}

    def reset(self):
        self.reset_idx(None)
        return self.observations()

    def step(self, actions):
        self.position = self.position + 0.1 * actions
        distance = (self.position - self.goal).norm(dim=-1)
        self.steps += 1
        ends = self.steps == self.max_episode_length
        infos = {"time_outs": torch.full((self.num_envs,), ends)}
        if ends:
            infos["episode"] = {"success": distance < 0.5}
            self.reset_idx(None)
        return self.observations(), -distance, infos["time_outs"].clone(), infos
