# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""How many tensors of the logits' size an update makes, beside verl's own."""

import json

import environment
import pytest

environment.require()

COUNT = """
import json
import os
from demo.llm.verl_0_9 import cpu
os.environ.update(cpu.ENVIRONMENT)
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from types import SimpleNamespace
from verl.utils import tensordict_utils as tu
from verl.workers.engine import FSDPEngineWithLMHead
from era import log_probs
from era.verl.engine import LOGIT_SCALE, EraFSDPEngine

LENGTHS, VOCABULARY = [5, 9, 2], 64
log_probs._CPU_CHUNK_ELEMENTS = 3 * VOCABULARY  # buffers of three rows

class Count(TorchDispatchMode):
    def __init__(self, size):
        super().__init__()
        self.size, self.found = size, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [a for a in (*args, *(kwargs or {}).values()) if isinstance(a, torch.Tensor) and not a.is_nested]
        given = {a.untyped_storage().data_ptr() for a in tensors}
        result = function(*args, **(kwargs or {}))
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, torch.Tensor) and not made.is_nested and made.numel() >= self.size:
                self.found += made.untyped_storage().data_ptr() not in given
        return result

def copies(cls, packed, temperature, dtype, **attributes):
    engine = cls.__new__(cls)
    vars(engine).update(attributes, pad_to_length=False, use_ulysses_sp=False)
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
    nested = lambda make: torch.nested.as_nested_tensor([make(n) for n in LENGTHS], layout=torch.jagged)
    ids = {name: nested(lambda n: torch.arange(n)) for name in ("input_ids", "position_ids")}
    batch = TensorDict(ids, batch_size=[3])
    tu.assign_non_tensor(batch, temperature=temperature, use_remove_padding=packed)
    if cls is EraFSDPEngine:
        batch[LOGIT_SCALE] = nested(lambda n: torch.full((n,), 1.75))
    inputs, output_args = engine.prepare_model_inputs(batch)
    logits = torch.randn(*inputs["input_ids"].shape, VOCABULARY, dtype=dtype).requires_grad_() * 1
    with Count(sum(LENGTHS) * VOCABULARY) as count:
        log_probs = engine.prepare_model_outputs(SimpleNamespace(logits=logits), output_args, batch, None)["log_probs"]
        forward = count.found
        log_probs.values().sum().backward()
    return forward, count.found - forward

print("ANSWER", json.dumps([
    [copies(FSDPEngineWithLMHead, packed, t, dtype), copies(EraFSDPEngine, packed, t, dtype, enable=True),
     copies(EraFSDPEngine, packed, t, dtype, enable=True, top_k=5)]
    for packed in (True, False) for t in (1.0, 0.7) for dtype in (torch.float32, torch.bfloat16)
]))
"""


@pytest.mark.parametrize("version", environment.VERSIONS)
def test_no_copy_of_the_logits_more_than_verl(version):
    """None: the gradient takes the place of the logits. The one is of the `* 1` that made them."""
    result = environment.run(["-c", COUNT], verl=environment.tree_of(version))
    assert result.returncode == 0, result.stderr[-3000:]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    for verl, era, top_k in json.loads(line.removeprefix("ANSWER ")):
        assert era == top_k == [0, 1] and sum(verl) > 1, line
