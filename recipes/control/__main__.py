# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m recipes.control EXPERIMENT [flags of the script]: trains FastTD3, PPO, SAC or TD-MPC2 and their ERA agents.

The same command again skips finished runs, resumes PPO's from their checkpoints and starts the others over, because
they keep no replay buffer. Your flags come after the run's own and win. Settings come from the environment:

  TASKS, SEED, AGENT   a part of the experiment, one or several of each: "HalfCheetah-v4 Ant-v4", "1 2", "ppo_era"
  OUTPUT               folder of the runs: results/control; FastTD3: checkouts/fasttd3/output/era
  JOBS                 runs at a time: as many as this machine has cores, or GPUs for them
  GPUS_PER_RUN         0 trains on the CPU; below 1 several runs share a GPU. FastTD3 and TD-MPC2: 1, PPO and SAC: 0
  RAY_ADDRESS          train as tasks of this Ray cluster, whose nodes have the same files; "local": of this machine
  SLURM=1              submit a Slurm array instead, a job for each run; sbatch reads SBATCH_PARTITION, ...
  CPUS_PER_RUN         CPUs of such a job: 16 for FastTD3's 128 environment processes, 1 for the others
  RUN_INDEX            only this run of the grid, from 0, as the Slurm jobs do
  CHECKOUTS            folder of apply.py's checkouts: checkouts
  PYTHON               of the environment that trains: this one
  DRY_RUN=1            print the commands and stop
  CHECK_ONLY=1         say what is missing and stop
"""

import sys

from recipes import grid
from recipes.control import HOSTS

if __name__ == "__main__":
    sys.exit(grid.main(__doc__, HOSTS, lambda name, added: grid.launch(HOSTS[name](name, added))))
