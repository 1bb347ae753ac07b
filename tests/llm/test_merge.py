# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make llm-merge` on a checkpoint of two ranks as verl's FSDP workers write it."""

import os
import subprocess
import sys

import bigram
import pytest
import torch
from sharded_checkpoint import save
from transformers import AutoModelForCausalLM, AutoTokenizer


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
