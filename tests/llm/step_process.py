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


def actor_settings(settings: dict) -> dict:
    """The keys of the actor's configuration that both versions of verl have."""
    clip, kl = settings.get("clip", 0.2), settings.get("kl_coef", 0)
    return {
        "ppo_micro_batch_size_per_gpu": settings["micro_batch"],
        "clip_ratio": clip,
        "clip_ratio_low": clip,
        "clip_ratio_high": settings.get("clip_high", clip),
        "entropy_coeff": settings.get("entropy_coeff", 0),
        "use_kl_loss": kl > 0,
        "kl_loss_coef": kl,
        "loss_agg_mode": settings.get("loss_agg_mode", "token-mean"),
    }


def sequence_parallel_size(settings: dict) -> int:
    return 1 if settings.get("data_parallel") else dist.get_world_size()


def share(batch, settings: dict):
    """This rank's rows of the batch."""
    return batch.split(len(batch) // dist.get_world_size())[dist.get_rank()] if settings.get("data_parallel") else batch


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
