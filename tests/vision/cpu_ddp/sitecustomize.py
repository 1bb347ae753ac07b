"""Lets timm's train.py run in several processes on a CPU, and saves each process's outputs.

train.py passes device_ids to DistributedDataParallel, which torch refuses for a model on the CPU; this drops it. The
outputs in training mode, as the loss function receives them, go to $DDP_OUTPUTS/RANK.pt.
"""

import os
from pathlib import Path

import torch


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, module, device_ids=None, **kwargs):
        super().__init__(module, **kwargs)
        self.outputs = []

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        if self.training:
            self.outputs.append(output.detach().float())
            torch.save(torch.cat(self.outputs), Path(os.environ["DDP_OUTPUTS"]) / f"{torch.distributed.get_rank()}.pt")
        return output


if "LOCAL_RANK" in os.environ:
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
