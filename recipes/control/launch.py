"""python launch.py EXPERIMENT [flags of the host's script]: trains PPO, SAC and TD-MPC2, each with ERA and without.

The runs train on this machine's cores, one thread each. Repeating the command skips finished runs; it resumes PPO's
interrupted ones from their checkpoints and starts those of SAC and TD-MPC2 over, which keep no replay buffer. Your
flags come after the run's own and win. Settings come from the environment:

  TASKS, SEED, AGENT   a part of the experiment, one or several of each: "HalfCheetah-v4 Ant-v4", "1 2", "ppo_era"
  OUTPUT               folder of the runs: results/control
  JOBS                 runs at a time on this machine: as many as it has cores
  GPUS_PER_RUN         GPUs of a run, with Ray; below 1 several runs share one: 0 for PPO and SAC, 1 for TD-MPC2
  RAY_ADDRESS          of an existing Ray cluster whose nodes have the same files at the same paths
  SLURM=1              submit a Slurm array instead, a job for each run; sbatch reads SBATCH_PARTITION, ...
  CHECKOUTS            folder of apply.py's checkouts: checkouts
  PYTHON               of the environment that trains: python3
  RUN_INDEX            train only this run of the grid, from 0, as the Slurm jobs do
  DRY_RUN=1            print the commands and stop
  CHECK_ONLY=1         say what is missing and stop
"""

import functools
import os
import re
import sys
from pathlib import Path

from host import CURVES, JOBS, PROJECT, Host, Settings, cores  # first: it puts the shared launcher on the path

# isort: split
import grid
import launching
import preflight
from launching import checked, is_on, refuse_if_any
from ppo import PPO
from sac import SAC
from tdmpc2 import TDMPC2

import results

HOSTS = (PPO, SAC, TDMPC2)
EXPERIMENTS = {name: host for host in HOSTS for name in host.experiments}
OTHERS = {
    "JOBS": JOBS,
    "GPUS_PER_RUN": (checked(float, lambda share: 0 <= share <= 1), "a number from 0 to 1"),
}


def engine(gpus: float, index: int | None) -> str:
    """Ray only where it is asked for, or needed to give each run a GPU of its own."""
    if is_on("SLURM"):
        return "slurm"
    return "ray" if index is None and (gpus or os.environ.get("RAY_ADDRESS")) else "here"


def repeated(kind: type[Host]) -> str:
    goes_on = "resumes these" if kind.continues else "starts these over"
    return f"Repeating the command skips finished runs and {goes_on}."


def launch(name: str, added: list[str]) -> None:
    kind = EXPERIMENTS[name]
    agents = [agent.name for part in kind.experiments[name] for agent in part.agents]
    given = grid.read_settings(name, agents, re.compile(kind.task_pattern), kind.task_examples, OTHERS)
    refuse_if_any(preflight.flag_problems(kind, name, added))
    gpus, index = given.get("GPUS_PER_RUN", kind.default_gpus), given.get("RUN_INDEX")
    python = grid.python_that_trains()
    checkouts = Path(os.path.abspath(os.environ.get("CHECKOUTS") or PROJECT / "checkouts"))
    host = kind(python, checkouts, gpus, tuple(added))
    output = Path(os.path.abspath(os.environ.get("OUTPUT") or results.OUTPUT))
    settings = Settings(given.get("TASKS"), given.get("SEED"), given.get("AGENT"))
    folder = output / name if name in kind.apart else output
    jobs = [(run, folder / run.name) for run in host.runs(name, settings, added)]
    used = engine(gpus, index)
    plan = grid.Grid(
        name,
        added,
        grid.only(jobs, index),
        host,
        python,
        gpus,
        at_once=given.get("JOBS", cores()) if used == "here" else None,
        engine=used,
        output=output,
        repeated=repeated(kind),
        exports={"CHECKOUTS": str(checkouts), "GPUS_PER_RUN": f"{gpus:g}"},
    )
    find_problems = functools.partial(preflight.find_problems, plan)
    grid.launch(plan, find_problems, results.return_lines, CURVES)


if __name__ == "__main__":
    after_stop = "; nothing is left running. Repeating the command skips finished runs and goes on with the others."
    sys.exit(launching.main(__doc__, EXPERIMENTS, launch, after_stop))
