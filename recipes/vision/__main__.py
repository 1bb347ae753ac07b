# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m recipes.vision EXPERIMENT [flags of train.py]: trains the paper's image classifiers with timm's scripts.

The same command again skips finished runs and resumes the others from their last checkpoints. Your flags come after
the run's own and win. Settings come from the environment:

  GPUS, DATA_DIR     of a run: 4, and checkouts/data (ImageNet: checkouts/data/imagenet)
  OUTPUT             folder of the runs: checkouts/timm/output/era
  SEED               one or several: "42 43 44"
  H0                 one or several in nats, in place of the experiment's: "0.3 0.6 0.9"
  AUG                1 or 0: with or without augmentation, where the paper does not say
  NUM_CLASSES        adds --num-classes; the paper's commands leave ResNet-50 its 1,000 outputs, even on CIFAR-10
  EPOCHS             stop after this many epochs; the schedule does not change
  JOBS               runs at a time: as many as the machine's GPUs allow
  RAY_ADDRESS        train as tasks of this Ray cluster, whose nodes have the same files; "local": of this machine
  SLURM=1            submit a Slurm array instead; sbatch reads SBATCH_PARTITION, ...
  CPUS_PER_RUN       CPUs of such a job: 5 for each GPU, a process and its four data loaders (or as many as -j says)
  RUN_INDEX          only this run of the grid, from 0, as the Slurm jobs do
  CHECKOUTS          folder of apply.py's checkouts: checkouts
  PYTHON             of the environment that trains: this one
  DRY_RUN=1          print the commands and stop
  CHECK_ONLY=1       say what is missing and stop
"""

import sys

from recipes import grid
from recipes.vision.timm import Timm

if __name__ == "__main__":
    sys.exit(grid.main(__doc__, Timm.experiments, lambda name, added: grid.launch(Timm(name, added))))
