# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make llm-merge` on a checkpoint of two ranks as verl's FSDP workers write it."""

import json
import os
import subprocess
import sys

import bigram
import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, AutoTokenizer

RANKS = 2


def save(model, folder):
    """As verl does, with a fake process group in place of two processes."""
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


@pytest.mark.slow
def test_a_checkpoint_becomes_the_model_that_was_saved(project_root, patched_verl, tmp_path):
    torch.manual_seed(1)
    model = bigram.make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    save(model, tmp_path / "global step_3/actor")
    folder = tmp_path / "my models/merged"

    def merge(checkpoint):
        given = {"CKPT": checkpoint, "MODEL_PATH": folder, "PYTHON": sys.executable, "CHECKOUTS": patched_verl.parent}
        command = ["make", "--no-print-directory", "llm-merge", *(f"{name}={value}" for name, value in given.items())]
        return subprocess.run(command, cwd=project_root, capture_output=True, text=True)

    assert merge("/gone").returncode != 0 and not folder.exists()
    result = merge(tmp_path / "global step_3")
    assert result.returncode == 0, result.stderr
    merged = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    # verl's merger writes bf16
    expected = {name: tensor.to(torch.bfloat16).float() for name, tensor in model.state_dict().items()}
    assert merged.state_dict().keys() == expected.keys()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)
    text = bigram.VOCABULARY[3]
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == bigram.make_tokenizer()(text)["input_ids"]
    assert os.listdir(folder.parent) == ["merged"]
    assert merge("/gone").returncode == 0, "a model that is there is kept"
