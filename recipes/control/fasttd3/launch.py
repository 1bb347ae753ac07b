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
"""python launch.py EXPERIMENT [flags of train.py]: trains FastTD3 and FastSAC-ERA as in the paper.

The runs are Ray tasks on this machine's GPUs. Repeating the command skips finished runs and starts
interrupted ones over: FastTD3's checkpoints hold neither the replay buffer nor the optimizers'
states. Your flags come after the run's own and win. Settings come from the environment:

  TASKS, SEED, AGENT   a part of the experiment, one or several of each:
                       "h1hand-walk-v0 h1hand-run-v0", "1 2", "fastsac_era"
  OUTPUT               folder of the runs: output/era in the checkout
  GPUS_PER_RUN         below 1 several runs share a GPU: 1
  CUDA_VISIBLE_DEVICES the GPUs to use: all
  RAY_ADDRESS          of an existing Ray cluster whose nodes have the same files at the same paths
  SLURM=1              submit a Slurm array instead, a job for each run; sbatch reads
                       SBATCH_PARTITION, SBATCH_TIMELIMIT, ...
  RESUME=1             resume interrupted runs from their last checkpoints all the same
  WANDB=1              log to wandb too
  PYTHON               of the environment that trains, with Ray: python3
  RUN_INDEX            train only this run of the grid, from 0, without Ray, as the Slurm jobs do
  DRY_RUN=1            print the commands and stop
  CHECK_ONLY=1         say what is missing and stop
"""

import functools
import re
import sys

import grid
import launching
import preflight
import runs
import training
from launching import CHECKOUT, checked, is_on, refuse_if_any

import results

TASK = re.compile(r"(h1|h1hand|Gym)-\w[\w-]*-v\d+")
GPUS = checked(float, lambda share: 0 < share <= 1)
REPEATED = (
    "Repeating the command skips finished runs and starts these over; with RESUME=1 it resumes "
    "them from their last checkpoints."
)


def launch(name: str, added: list[str]) -> None:
    experiment = runs.EXPERIMENTS[name]
    agents = [agent.name for agent in experiment.agents]
    others = {"GPUS_PER_RUN": (GPUS, "a number above 0, up to 1,")}
    examples = "tasks like h1hand-walk-v0 or Gym-Reacher-v4"
    given = grid.read_settings(name, agents, TASK, examples, others)
    refuse_if_any(preflight.flag_problems(name, added))
    settings = runs.Settings(given.get("TASKS"), given.get("SEED"), given.get("AGENT"))
    folder, index = launching.output_folder(experiment.compares_time), given.get("RUN_INDEX")
    jobs = [(run, folder / run.name) for run in runs.runs(experiment, settings, added)]
    cpu, python = preflight.on_cpu(added), grid.python_that_trains()
    plan = grid.Grid(
        name,
        added,
        grid.only(jobs, index),
        training.FastTD3(CHECKOUT, python, is_on("WANDB"), is_on("RESUME"), tuple(added)),
        python,
        gpus=0 if cpu else given.get("GPUS_PER_RUN", 1.0),
        at_once=1 if experiment.compares_time else None,
        engine="slurm" if is_on("SLURM") else "ray" if index is None else "here",
        output=launching.output_folder(),
        repeated=REPEATED,
    )
    find_problems = functools.partial(preflight.find_problems, plan.jobs, CHECKOUT, engine=plan.engine, cpu=cpu)
    table = results.time_lines if experiment.compares_time else results.return_lines
    grid.launch(plan, find_problems, table, runs.CURVES)


if __name__ == "__main__":
    after_stop = (
        "; nothing is left running. Repeating the command skips finished runs and starts the "
        "others over; with RESUME=1 it resumes them from their last checkpoints."
    )
    sys.exit(launching.main(__doc__, runs.EXPERIMENTS, launch, after_stop))
