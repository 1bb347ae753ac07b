# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's logprobs_from_logits with the overlay."""

import pytest
import torch
from plain_log_probs import plain_logprob


@pytest.fixture(scope="module")
def verl_F(import_verl):
    import verl.utils.torch_functional as verl_F

    return verl_F


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 50), (2, 3, 50)])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("top_k", [None, 20])
def test_logprobs_from_logits(verl_F, dtype, shape, scaled, top_k):
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape)).to(dtype)
    labels = logits.topk(5).indices[..., -1]
    scale = torch.tensor([2.0, 0.5, 1.0, 2.0, 0.5, 3.0]).view(labels.shape)
    got = verl_F.logprobs_from_logits(logits, labels, logit_scale=scale if scaled else None, top_k=top_k)
    factors = scale.flatten().tolist() if scaled else [1.0] * labels.numel()
    rows = zip(logits.reshape(-1, 50).tolist(), labels.flatten().tolist(), factors)
    expected = torch.tensor([plain_logprob(z, y, s, top_k) for z, y, s in rows]).view(labels.shape)
    plain_half = dtype == torch.bfloat16 and not scaled and top_k is None  # upstream's own path, in bf16
    torch.testing.assert_close(got.float(), expected, rtol=2e-2 if plain_half else 1e-5, atol=1e-5)


def test_neither_argument_is_upstream(verl_F):
    logits, labels = torch.randn(4, 30), torch.randint(30, (4,))
    assert torch.equal(verl_F.logprobs_from_logits(logits, labels), verl_F.logprobs_from_logits_v2(logits, labels))
