# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What actor_step.py and current/worker_step.py share: a process, or one of several, that takes steps.

    python SCRIPT SETTINGS.json RESULTS.pt

RESULTS.pt is written by the first process, and has for each entry of SETTINGS.json a result, or the ValueError's text.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def main(take_steps: Callable[[dict], dict]) -> None:
    torch.use_deterministic_algorithms(True)
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("gloo")
    results = []
    for settings in json.loads(Path(sys.argv[1]).read_text()):
        try:
            results.append(take_steps(settings))
        except ValueError as error:
            results.append({"error": str(error)})
    if dist.get_rank() == 0:
        torch.save(results, sys.argv[2])
    dist.barrier()
    os._exit(0)  # destroy_process_group sometimes hangs in gloo's teardown
