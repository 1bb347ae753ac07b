# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The paper's experiments with FastTD3 and FastSAC-ERA, and the command of each of their runs."""

from dataclasses import dataclass

# tab. continuous_envs2
TASKS = tuple(
    f"h1hand-{task}-v0" for task in ("balance_simple", "hurdle", "pole", "push", "stair", "slide", "walk", "run")
)
CURVES = "train.csv"


@dataclass(frozen=True)
class Agent:
    """name: in the run's name and its --exp_name. flags: of train.py."""

    name: str
    flags: tuple[str, ...]


FASTTD3 = Agent("fasttd3", ("--agent", "fasttd3"))
FASTTD3_NO_DELAY = Agent("fasttd3-no_delay", ("--agent", "fasttd3", "--policy_frequency", "1"))


def era(name: str = "", *flags: str) -> Agent:
    return Agent(f"fastsac_era{name}", ("--agent", "fastsac_era", *flags))


TANH, LEARNED, BATCH = ("--era_distribution", "tanh"), "--era_learn_delta", ("--era_level", "batch")


@dataclass(frozen=True)
class Experiment:
    """A run for each task, seed and agent.

    flags: of train.py, for all runs.
    compares_time: of a step, at the end; the runs are trained one at a time, in their own folder.
    """

    agents: tuple[Agent, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    flags: tuple[str, ...] = ()
    compares_time: bool = False


TWO_TASKS, FIVE_SEEDS = ("h1hand-walk-v0", "h1hand-run-v0"), (1, 2, 3, 4, 5)
SHORT = ("--total_timesteps", "2000", "--eval_interval", "0", "--save_interval", "0")

EXPERIMENTS = {
    # fig. hb_fastsac
    "humanoidbench": Experiment((FASTTD3, era()), TASKS, tuple(range(1, 11))),
    # fig. ablation_distribution; era() is the truncated one with constant delta
    "distribution": Experiment(
        (
            era(),
            era("-learned", LEARNED),
            era("-tanh", *TANH),
            era("-tanh-learned", *TANH, LEARNED),
        ),
        TWO_TASKS,
        FIVE_SEEDS,
    ),
    # fig. batch_era
    "batch": Experiment((FASTTD3, era(), era("-batch", *BATCH)), TWO_TASKS, FIVE_SEEDS),
    # fig. time_continuous
    "time": Experiment((FASTTD3, FASTTD3_NO_DELAY, era()), TASKS, (1,), SHORT, compares_time=True),
}


@dataclass(frozen=True)
class Run:
    """name: of its folder. command: the script, from the checkout, and its flags."""

    name: str
    task: str
    agent: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """From the environment. None: as the experiment has it."""

    tasks: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    agents: tuple[str, ...] | None = None


def runs(experiment: Experiment, settings: Settings, added: list[str]) -> list[Run]:
    """The experiment's runs, seed by seed, so that the first ones already compare all agents.

    Args:
        added: flags of train.py that come last and win.
    """
    found = []
    for seed in settings.seeds or experiment.seeds:
        for task in settings.tasks or experiment.tasks:
            for agent in experiment.agents:
                if settings.agents and agent.name not in settings.agents:
                    continue
                own = f"--seed {seed} --exp_name {agent.name} --csv_path {CURVES}".split()
                flags = ("--env_name", task, *agent.flags, *own, *experiment.flags, *added)
                command = ("fast_td3/train.py", *flags)
                found.append(Run(f"{task}-{agent.name}-seed{seed}", task, agent.name, command))
    return found
