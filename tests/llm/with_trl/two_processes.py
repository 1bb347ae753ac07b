# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""torch.distributed.run ... two_processes.py FOLDER: updates of the model in FOLDER on two ranks; prints JSON."""

import json
import sys

import plain_grpo
import torch
import torch.distributed as dist
from tiny_grpo import ERA, OFF_POLICY, Era, answers, load, train, weights
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

torch.set_num_threads(1)


class Sharded(Era):
    """Sharded by FSDP2 here, because accelerate does it on GPUs only and has just DDP for CPUs."""

    head_apart = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.accelerator.prepare_model = lambda model, **_: model  # no DDP around it
        for layer in (*self.model.model.layers, *[self.model.lm_head] * self.head_apart):
            fully_shard(layer)
        fully_shard(self.model)


class HeadApart(Sharded):
    head_apart = True


KL = {"loss_type": "grpo", "beta": 0.2, "use_bias_correction_kl": True}
TOOLS = {**OFF_POLICY, "rollout_func": answers, "learning_rate": 0.002}
CASES = {
    "on-policy": (Era, {}),
    "KL": (Era, {**OFF_POLICY, **KL}),
    "tools": (Era, TOOLS),
    "FSDP2": (Sharded, TOOLS),
    "FSDP2, head apart": (HeadApart, {**TOOLS, **KL}),
}
found = {}
for name, (trainer_class, settings) in CASES.items():
    trainer, start = train(trainer_class, load(sys.argv[1]), ddp_backend="gloo", **ERA, **settings)
    batches = [None, None]
    dist.all_gather_object(batches, trainer.seen)
    reached = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in weights(trainer).items()}
    wanted, scales = plain_grpo.trained(start, batches, trainer.args, trainer.era_config)
    together = 1 if name == "on-policy" else 4  # micro-batches that ERA decides about at a time
    found[name] = {
        "error": plain_grpo.error(reached, wanted, start),
        "samples differ": not torch.equal(batches[0][0]["completion_ids"], batches[1][0]["completion_ids"]),
        "scaled": (torch.cat(scales[:together]) != 1).double().mean().item(),
        "logged": trainer.state.log_history[0]["era/scaled_token_fraction"],
    }
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
