# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the scripts of continuous control share: experiments of tasks, agents and seeds, and train.csv."""

import abc
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from recipes import PROJECT, UserError, curves, launch_options, run_json
from recipes.grid import Run, TrainingScript

CURVES = "train.csv"


@dataclass(frozen=True)
class Agent:
    """An agent: its part of a run's name, and the script's flags that choose it."""

    name: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """A run for each of these agents, tasks and seeds. flags: the script's, for all of these runs."""

    agents: tuple[Agent, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    flags: tuple[str, ...] = ()


class ControlScript(TrainingScript):
    """A script that writes train.csv into the folder that it is started in; run.json too, unless `record` does."""

    launcher = launch_options.CONTROL
    host: ClassVar[str]  # in run.json
    experiments: ClassVar[dict[str, tuple[Grid, ...]]]
    apart: ClassVar[tuple[str, ...]] = ()  # experiments whose runs are shorter: in a folder of their own
    default_gpus: ClassVar[float] = 0

    def __init__(self, name: str, added: Sequence[str] = ()):
        super().__init__(name, added)
        self.root = self.checkouts / self.upstream if self.upstream else PROJECT
        gpus = self.options.gpus_per_run
        self.gpus = self.default_gpus if gpus is None else gpus
        compared = [flag for grid in self.experiments[name] for agent in grid.agents for flag in agent.flags]
        self.own_flags = [*compared, *self.flags("", Agent(""), 0)]
        self.runs = self.plan(self.options.output or self.default_output())

    @abc.abstractmethod
    def flags(self, task: str, agent: Agent, seed: int) -> tuple[str, ...]:
        """The flags of the script that choose this task, agent and seed."""

    def default_output(self) -> Path:
        """The folder of the runs where OUTPUT is not set."""
        return PROJECT / "results/control"

    def plan(self, output: Path) -> list[Run]:
        """The experiment's runs, seed by seed within a grid, so that the first ones already compare all agents."""
        grids, tasks, agents = self.experiments[self.name], self.options.tasks or (), self.options.agents or ()
        known = [agent.name for grid in grids for agent in grid.agents]
        if unknown := [agent for agent in agents if agent not in known]:
            raise UserError(f"AGENT: {self.name} has no {unknown[0]}. There are: {', '.join(dict.fromkeys(known))}.")
        if paths := [task for task in tasks if Path(task).name != task]:
            raise UserError(f"TASKS: {paths[0]} is not the name of a task, which names the folder of a run.")
        runs, of_experiment = {}, {task for grid in grids for task in grid.tasks}
        for grid in grids:
            # A task that the experiment does not have is trained with all its agents.
            chosen = [task for task in tasks if task in grid.tasks or task not in of_experiment]
            for seed in self.options.seeds or grid.seeds:
                for task in chosen if tasks else grid.tasks:
                    for agent in grid.agents:
                        if agents and agent.name not in agents:
                            continue
                        command = (self.file, *self.flags(task, agent, seed), *grid.flags, *self.added)
                        entry = f"{task}-{agent.name}"
                        entry = f"{self.name}/{entry}" if self.name in self.apart else entry
                        folder = output / f"{entry}-seed{seed}"
                        runs.setdefault(folder, Run(folder, task, agent.name, seed, command, entry=entry))
        return list(runs.values())

    def problems(self) -> list[str]:
        if not any(run.task.startswith("h1") for run in self.runs):
            return []
        sentences = []
        if lacks := [name for name in ("dm_control", "mujoco") if find_spec(name) is None]:
            sentences.append(f"HumanoidBench: {self.python} lacks {', '.join(lacks)} (docs/control/environments.md).")
        if not (self.checkouts / "humanoid-bench").is_dir() and find_spec("humanoid_bench") is None:
            sentences.append(f"HumanoidBench: run python3 apply.py apply humanoid-bench --checkouts {self.checkouts}")
        return sentences

    def argv(self, run: Run) -> list[str]:
        script, *flags = run.command
        return [self.python, str(self.root / script), *flags]

    def variables(self, run: Run) -> dict[str, str]:
        """The variables with which nothing renders, and a run on the CPU has one thread.

        Networks this small gain nothing from a second one.
        """
        variables = {"PYTHONPATH": self.python_path(PROJECT), "MUJOCO_GL": os.environ.get("MUJOCO_GL") or "disable"}
        if not self.gpus:
            variables |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"}
        return {**variables, **run_json.for_script(**self.about(run))}

    def python_path(self, *first: Path) -> str:
        """PYTHONPATH: these folders, HumanoidBench's checkout if it is there, and the user's."""
        bench = self.checkouts / "humanoid-bench"
        folders = [*map(str, first), str(bench) if bench.is_dir() else "", os.environ.get("PYTHONPATH", "")]
        return os.pathsep.join(filter(None, folders))

    def about(self, run: Run) -> dict:
        """What the launch knows of a run, for run.json."""
        as_paper = run_json.is_as_paper(self.added, self.harmless)
        return {"agent": run.agent, "entry": run.entry, "added": list(self.added), "as_paper": as_paper, **self.code()}

    def code(self) -> dict:
        """The commit and the state of the code that trains, for run.json."""
        upstreams = (self.upstream, "humanoid-bench") if self.upstream else ("humanoid-bench",)
        return code_of(PROJECT, *(self.checkouts / name for name in upstreams))

    def last_result(self, run: Run) -> str:
        returns = curves.read(run.folder / CURVES).get("eval_avg_return")
        return f", return {curves.at_end(returns):.2f}" if returns else ""


@functools.cache
def code_of(*folders: Path) -> dict:
    """What run_json.code says, asked once for all runs of a launch."""
    return run_json.code(*folders)
