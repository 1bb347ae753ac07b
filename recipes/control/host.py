# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the hosts of continuous control share: experiments of tasks, agents and seeds, and train.csv."""

import abc
import csv
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from recipes import grid, launch_options, run_json

CURVES = "train.csv"


@dataclass(frozen=True)
class Agent:
    """name: in the run's name. flags: of the host's script."""

    name: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A run for each task, seed and agent. flags: of the host's script, for all of them."""

    agents: tuple[Agent, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    flags: tuple[str, ...] = ()


class Host(grid.Host):
    """A script that writes train.csv into the folder that it is started in; run.json too, unless `record` does."""

    launcher = launch_options.CONTROL
    experiments: ClassVar[dict[str, tuple[Part, ...]]]
    apart: ClassVar[tuple[str, ...]] = ()  # experiments whose runs are shorter: in a folder of their own
    default_gpus: ClassVar[float] = 0

    def __init__(self, name: str, added: Sequence[str] = ()):
        super().__init__(name, added)
        self.root = self.checkouts / self.upstream if self.upstream else grid.PROJECT
        gpus = self.options.gpus_per_run
        self.gpus = self.default_gpus if gpus is None else gpus
        compared = [flag for part in self.experiments[name] for agent in part.agents for flag in agent.flags]
        self.own_flags = [*compared, *self.flags("", Agent(""), 0)]
        output = self.options.output or self.default_output()
        self.runs = self.plan(output)

    @abc.abstractmethod
    def flags(self, task: str, agent: Agent, seed: int) -> tuple[str, ...]:
        """That choose the run."""

    def default_output(self) -> Path:
        return grid.PROJECT / "results/control"

    def plan(self, output: Path) -> list[grid.Run]:
        """Seed by seed within a part, so that the first runs already compare all agents."""
        tasks, seeds, agents = (self.options.tasks or (), self.options.seeds, self.options.agents or ())
        known = [agent.name for part in self.experiments[self.name] for agent in part.agents]
        if unknown := [agent for agent in agents if agent not in known]:
            raise grid.Refused(f"AGENT: {self.name} has no {unknown[0]}. There are: {', '.join(dict.fromkeys(known))}.")
        if paths := [task for task in tasks if Path(task).name != task]:
            raise grid.Refused(f"TASKS: {paths[0]} is not the name of a task, which names the folder of a run.")
        found = {}
        its_tasks = {task for part in self.experiments[self.name] for task in part.tasks}
        for part in self.experiments[self.name]:
            # A task that the experiment does not have is trained with all its agents.
            chosen = [task for task in tasks if task in part.tasks or task not in its_tasks]
            for seed in seeds or part.seeds:
                for task in chosen if tasks else part.tasks:
                    for agent in part.agents:
                        if agents and agent.name not in agents:
                            continue
                        command = (self.script, *self.flags(task, agent, seed), *part.flags, *self.added)
                        entry = f"{task}-{agent.name}"
                        entry = f"{self.name}/{entry}" if self.name in self.apart else entry
                        folder = output / f"{entry}-seed{seed}"
                        found.setdefault(folder, grid.Run(folder, task, agent.name, seed, command, entry=entry))
        return list(found.values())

    def problems(self) -> list[str]:
        if not any(run.task.startswith("h1") for run in self.runs):
            return []
        lacks = [name for name in ("dm_control", "mujoco") if find_spec(name) is None]
        found = (
            [f"HumanoidBench: {self.python} lacks {', '.join(lacks)} (docs/control/environments.md)."] if lacks else []
        )
        if not (self.checkouts / "humanoid-bench").is_dir() and find_spec("humanoid_bench") is None:
            found.append(f"HumanoidBench: run python3 apply.py apply humanoid-bench --checkouts {self.checkouts}")
        return found

    def argv(self, run: grid.Run) -> list[str]:
        script, *flags = run.command
        return [self.python, str(self.root / script), *flags]

    def variables(self, run: grid.Run) -> dict[str, str]:
        """Nothing renders. On the CPU each run has one thread: networks this small gain nothing from a second."""
        given = {"PYTHONPATH": self.path(grid.PROJECT), "MUJOCO_GL": os.environ.get("MUJOCO_GL") or "disable"}
        if not self.gpus:
            given |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"}
        return {**given, **run_json.for_script(**self.about(run))}

    def path(self, *first: Path) -> str:
        """PYTHONPATH with HumanoidBench, as far as it is there."""
        bench = self.checkouts / "humanoid-bench"
        folders = [*map(str, first), str(bench) if bench.is_dir() else "", os.environ.get("PYTHONPATH", "")]
        return os.pathsep.join(filter(None, folders))

    def about(self, run: grid.Run) -> dict:
        """What the launch knows of a run, for run.json."""
        as_paper = run_json.is_as_paper(self.added, self.harmless)
        return {"agent": run.agent, "entry": run.entry, "added": list(self.added), "as_paper": as_paper, **self.code()}

    def code(self) -> dict:
        upstreams = (self.upstream, "humanoid-bench") if self.upstream else ("humanoid-bench",)
        return code_of(grid.PROJECT, *(self.checkouts / name for name in upstreams))

    def last_result(self, run: grid.Run) -> str:
        with (run.folder / CURVES).open(newline="") as stream:
            returns = [row["eval_avg_return"] for row in csv.DictReader(stream) if row.get("eval_avg_return")]
        return f", return {float(returns[-1]):.2f}" if returns else ""


@functools.cache
def code_of(*folders: Path) -> dict:
    """Asked once for all runs."""
    return run_json.code(*folders)
