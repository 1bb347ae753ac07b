"""`make llm-merge` on a checkpoint of two ranks as verl's FSDP workers write it: what it makes, and what it says."""

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


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    made = bigram.make_model()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made


@pytest.fixture
def checkpoint(model, tmp_path):
    folder = tmp_path / "global step_3/actor"
    for rank in range(RANKS):
        torch.distributed.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
        mesh = DeviceMesh("cpu", list(range(RANKS)), mesh_dim_names=("fsdp",))
        folder.mkdir(parents=True, exist_ok=True)
        parts = {name: tensor.chunk(RANKS)[rank].clone() for name, tensor in model.state_dict().items()}
        shards = {name: DTensor.from_local(part, mesh, [Shard(0)], run_check=False) for name, part in parts.items()}
        torch.save(shards, folder / f"model_world_size_{RANKS}_rank_{rank}.pt")
        torch.distributed.destroy_process_group()
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 1, "world_size": RANKS}, indent=4))
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder / "huggingface")
    bigram.make_tokenizer().save_pretrained(folder / "huggingface")
    return folder.parent


@pytest.fixture
def merge(project_root, patched_verl, checkpoint, tmp_path):
    def run(**given):
        given = {
            "CKPT": str(checkpoint),
            "MODEL_PATH": f"{tmp_path}/my models/merged",
            "PYTHON": sys.executable,
            "CHECKOUTS": str(patched_verl.parent),
            **given,
        }
        command = ["make", "--no-print-directory", "llm-merge", *(f"{name}={value}" for name, value in given.items())]
        return subprocess.run(command, cwd=project_root, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_a_checkpoint_becomes_the_model_that_was_saved(merge, model, tmp_path):
    result = merge()
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "my models/merged"
    merged = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    expected = {
        name: tensor.to(torch.bfloat16).float() for name, tensor in model.state_dict().items()
    }  # verl's merger writes bf16
    assert merged.state_dict().keys() == expected.keys()
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)
    text = bigram.VOCABULARY[3]
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == bigram.make_tokenizer()(text)["input_ids"]
    assert os.listdir(folder.parent) == ["merged"]
    again = merge(CKPT="/gone")
    assert again.returncode == 0 and f"{folder} is there already, so nothing is merged." in again.stdout


def test_what_is_missing_is_named_and_nothing_is_left(merge, checkpoint, tmp_path):
    def refused(said, **given):
        result = merge(**given)
        assert result.returncode != 0 and said in result.stderr, result.stderr
        assert not (tmp_path / "my models").exists()

    refused("make llm-merge CKPT=", CKPT="")
    refused("make llm-merge CKPT=", MODEL_PATH="")
    refused("CKPT=/gone is not a checkpoint of an FSDP run", CKPT="/gone")
    refused(f"MODEL_PATH={checkpoint} exists but is not a model", MODEL_PATH=checkpoint)
    refused("there is no Python at /my env/python", PYTHON="/my env/python")


def test_a_merge_that_fails_leaves_nothing(merge, tmp_path):
    """A program that writes a part of it, in place of verl's."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nwhile [ "$1" != --target_dir ]; do shift; done\ntouch "$2/config.json"\nls -d "$2"\nexit 3\n'
    )
    python.chmod(0o755)
    result = merge(PYTHON=str(python))
    assert result.returncode != 0 and result.stdout.startswith(f"{tmp_path}/my models/merged.merging-")
    assert os.listdir(tmp_path / "my models") == []
