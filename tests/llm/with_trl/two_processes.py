# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""torch.distributed.run ... two_processes.py FOLDER: updates of the model in FOLDER on two ranks; prints JSON."""

import json
import sys

import plain_grpo
import torch
import torch.distributed as dist
from tiny_grpo import ERA, OFF_POLICY, Era, answers, load, train, weights

torch.set_num_threads(1)
CASES = {
    "on-policy": {},
    "KL": {**OFF_POLICY, "loss_type": "grpo", "beta": 0.2},
    "tools": {**OFF_POLICY, "rollout_func": answers, "learning_rate": 0.002},
}
found = {}
for name, settings in CASES.items():
    trainer, start = train(Era, load(sys.argv[1]), ddp_backend="gloo", **ERA, **settings)
    batches = [None, None]
    dist.all_gather_object(batches, trainer.seen)
    wanted, scales = plain_grpo.trained(start, batches, trainer.args, trainer.era)
    together = 1 if name == "on-policy" else 4  # micro-batches that ERA decides about at a time
    found[name] = {
        "error": plain_grpo.error(weights(trainer), wanted, start),
        "samples differ": not torch.equal(batches[0][0]["completion_ids"], batches[1][0]["completion_ids"]),
        "scaled": (torch.cat(scales[:together]) != 1).double().mean().item(),
        "logged": trainer.state.log_history[0]["era/scaled_token_fraction"],
    }
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
