# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's logprobs_from_logits with the overlay: era/log_probs.py's with either argument, upstream's without them."""

import torch

from era.log_probs import logprobs


def test_logprobs_from_logits(import_verl):
    import verl.utils.torch_functional as verl_F

    logits, labels = torch.randn(2, 3, 30), torch.randint(30, (2, 3))
    scale = torch.tensor([[2.0, 0.5, 1.0], [2.0, 0.5, 3.0]])
    for given in ({"logit_scale": scale}, {"top_k": 5}, {"logit_scale": scale, "top_k": 5}):
        assert torch.equal(verl_F.logprobs_from_logits(logits, labels, **given), logprobs(logits, labels, **given))
    assert torch.equal(verl_F.logprobs_from_logits(logits, labels), verl_F.logprobs_from_logits_v2(logits, labels))
