# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python tests/llm/sharded_checkpoint.py FOLDER: a checkpoint of two ranks, as verl's FSDP workers write it."""

import json
import sys
from pathlib import Path

import bigram
import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 2


def save(model, folder):
    """Save the model as verl does, with a fake process group in place of two processes."""
    folder.mkdir(parents=True)
    for rank in range(RANKS):
        torch.distributed.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
        mesh = DeviceMesh("cpu", list(range(RANKS)), mesh_dim_names=("fsdp",))
        parts = {name: tensor.chunk(RANKS)[rank].clone() for name, tensor in model.state_dict().items()}
        shards = {name: DTensor.from_local(part, mesh, [Shard(0)], run_check=False) for name, part in parts.items()}
        torch.save(shards, folder / f"model_world_size_{RANKS}_rank_{rank}.pt")
        torch.distributed.destroy_process_group()
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 1, "world_size": RANKS}, indent=4))
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder / "huggingface")
    bigram.make_tokenizer().save_pretrained(folder / "huggingface")


if __name__ == "__main__":
    save(bigram.make_model(), Path(sys.argv[1]))
