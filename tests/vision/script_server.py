# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Runs timm's scripts in forks of one process, because importing timm and torch takes longer than a tiny run.

Reads jobs from stdin, one JSON object per line: {"argv": [script, ...], "cwd": folder, "stdout": file, "stderr": file}.
Writes the exit code of each job as a line to stdout. The timm is the one on PYTHONPATH.
"""

import json
import multiprocessing
import os
import runpy
import sys

import pandas  # noqa: F401  for inference.py
import sklearn.metrics  # noqa: F401  for validate.py
import timm.optim
import timm.scheduler
import timm.utils  # noqa: F401
import torch


def run(job):
    for fd, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.chdir(job["cwd"])
    sys.argv = job["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")


torch.set_num_threads(1)
for line in sys.stdin:
    process = multiprocessing.get_context("fork").Process(target=run, args=(json.loads(line),))
    process.start()
    process.join()
    print(process.exitcode, flush=True)
