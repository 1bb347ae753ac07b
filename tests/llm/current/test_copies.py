# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""How many tensors of the logits' size an update makes; verl's own makes at least two."""

from types import SimpleNamespace

import environment
import pytest

environment.require()

import torch  # noqa: E402
from plain_log_probs import LargestOutput  # noqa: E402

LENGTHS, VOCABULARY = [5, 9, 2], 64


def nested(make):
    return torch.nested.as_nested_tensor([make(length) for length in LENGTHS], layout=torch.jagged)


@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("packed", [True, False])
def test_an_update_makes_none_and_its_gradient_takes_the_place_of_the_logits(
    verl, monkeypatch, packed, temperature, dtype, top_k
):
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from era import log_probs
    from era.verl.engine import LOGIT_SCALE, EraFSDPEngine

    monkeypatch.setattr(log_probs, "_CPU_CHUNK_ELEMENTS", 3 * VOCABULARY)  # buffers of three rows
    engine = EraFSDPEngine.__new__(EraFSDPEngine)
    vars(engine).update(enable=True, top_k=top_k, pad_to_length=False, use_ulysses_sp=False)
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
    batch = TensorDict({name: nested(torch.arange) for name in ("input_ids", "position_ids")}, batch_size=[3])
    tu.assign_non_tensor(batch, temperature=temperature, use_remove_padding=packed)
    batch[LOGIT_SCALE] = nested(lambda length: torch.full((length,), 1.75))
    inputs, output_args = engine.prepare_model_inputs(batch)
    logits = torch.randn(*inputs["input_ids"].shape, VOCABULARY, dtype=dtype).requires_grad_() * 1
    with LargestOutput(sum(LENGTHS) * VOCABULARY) as made:
        output = engine.prepare_model_outputs(SimpleNamespace(logits=logits), output_args, batch, None)
        assert made.allocations == []
        output["log_probs"].values().sum().backward()
    assert len(made.allocations) == 1, "the gradient of the `* 1` which made the logits"
