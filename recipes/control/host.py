"""What the hosts of recipes/control share: experiments, the command of a run, and what is in a run's folder."""

import abc
import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import results
from results import CURVES, PROJECT  # first: it puts the shared files on the path

# isort: split
import grid
import run_json
from launching import checked

JOBS = (checked(int, lambda jobs: jobs > 0), "a number of runs, above 0,")  # for launching.read_variables


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


Experiment = tuple[Part, ...]  # run one after the other


@dataclass(frozen=True)
class Run:
    """name: of its folder. command: the script, from where Host.root is, and its flags."""

    name: str
    task: str
    agent: str
    seed: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """From the environment. None: as the experiment has it."""

    tasks: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    agents: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Host(grid.Trainer):
    """A script that trains, which writes train.csv and run.json into the folder that it is started in.

    Args:
        python: of the environment that trains.
        checkouts: the folder of apply.py's checkouts.
        gpus: of each run; 0 for the CPU.
        added: the user's flags of the script.
    """

    python: str = "python3"
    checkouts: Path = PROJECT / "checkouts"
    gpus: float = 0
    added: tuple[str, ...] = ()

    experiments: ClassVar[dict[str, Experiment]]
    script: ClassVar[str]  # in `root`
    upstream: ClassVar[str | None] = None  # in `checkouts`; None: the script is this project's
    packages: ClassVar[tuple[str, ...]]  # that the script imports
    task_pattern: ClassVar[str]
    task_examples: ClassVar[str]
    steps_flag: ClassVar[str]
    default_steps: ClassVar[int]
    # The flag of the steps between two evaluations, and its default, where there is none after the last step.
    evaluation: ClassVar[tuple[str, int] | None] = None
    default_gpus: ClassVar[float] = 0
    files: ClassVar[tuple[str, ...]] = ()  # that it writes beside train.csv, run.json and log.txt
    apart: ClassVar[tuple[str, ...]] = ()  # experiments whose runs are shorter: in a folder of their own
    continues: ClassVar[bool] = False  # an interrupted run, when the command is repeated
    harmless: ClassVar[tuple[str, ...]] = ()  # flags that change nothing in what is trained

    @abc.abstractmethod
    def flags(self, task: str, seed: int) -> tuple[str, ...]:
        """That choose the run."""

    def runs(self, experiment: str, settings: Settings, added: list[str]) -> list[Run]:
        """Seed by seed within a part, so that the first runs already compare all agents.

        Args:
            added: flags of the script that come last and win.
        """
        found = {}
        for part in self.experiments[experiment]:
            for seed in settings.seeds or part.seeds:
                for task in settings.tasks or part.tasks:
                    for agent in part.agents:
                        if settings.agents and agent.name not in settings.agents:
                            continue
                        own = (*self.flags(task, seed), *agent.flags, *part.flags, *added)
                        name = f"{task}-{agent.name}-seed{seed}"
                        found.setdefault(name, Run(name, task, agent.name, seed, (self.script, *own)))
        return list(found.values())

    def root(self) -> Path:
        return self.checkouts / self.upstream if self.upstream else PROJECT

    def words(self, run: Run, folder: Path) -> list[str]:
        script, *flags = run.command
        return [self.python, str(self.root() / script), *flags]

    def variables(self) -> dict[str, str]:
        """Nothing renders. On the CPU each run has one thread: networks this small gain nothing from a second."""
        bench = self.checkouts / "humanoid-bench"
        path = [str(PROJECT), str(bench) if bench.is_dir() else "", os.environ.get("PYTHONPATH", "")]
        found = {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "MUJOCO_GL": os.environ.get("MUJOCO_GL") or "disable",
        }
        if not self.gpus:
            threads = os.environ.get("OMP_NUM_THREADS") or "1"
            found |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": threads}
        return found

    def about(self, run: Run) -> dict[str, Any]:
        upstreams = (self.upstream, "humanoid-bench") if self.upstream else ("humanoid-bench",)
        code = code_of(*(self.checkouts / name for name in upstreams))
        is_as_paper = run_json.is_as_paper(self.added, self.harmless)
        return {"agent": run.agent, "added": list(self.added), "as_paper": is_as_paper, **code}

    def leftovers(self, folder: Path) -> list[Path]:
        paths = [folder / name for name in (CURVES, run_json.FILE, grid.LOG, *self.files)]
        return [path for path in paths if path.exists()]

    def resumes(self, folder: Path) -> bool:
        return self.continues

    def is_finished(self, folder: Path) -> bool:
        return results.is_finished(folder)

    def steps(self, folder: Path) -> tuple[int, int | None]:
        return results.steps_done(folder), run_json.read(folder).get("total_steps")

    def last_return(self, folder: Path) -> float | None:
        return results.last_return(folder)

    def planned_steps(self, run: Run) -> int | None:
        steps = number(run, self.steps_flag, self.default_steps)
        return None if steps is None else int(steps)


def number(run: Run, flag: str, default: float) -> float | None:
    """The last value of a flag; the default without one. None if that is no number above 0."""
    words = [part for word in run.command for part in word.split("=", 1)]
    given = [value for name, value in zip(words, words[1:]) if name == flag]
    try:
        value = float(given[-1]) if given else default
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


@functools.cache
def code_of(*checkouts: Path) -> dict[str, Any]:
    """This project's commit, and whether its code or that of the checkouts is modified."""
    return run_json.code(PROJECT, *checkouts)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
