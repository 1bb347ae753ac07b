# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's logprobs_from_logits with the overlay: logprobs of era.log_probs with either argument, else upstream's."""

import torch
from plain_log_probs import error, plain_terms

from era.log_probs import OUTSIDE_TOP_K_LOG_PROB


def test_logprobs_from_logits(import_verl):
    import verl.utils.torch_functional as verl_F

    logits, labels = torch.randn(2, 3, 30), torch.randint(30, (2, 3))
    scale = torch.tensor([[2.0, 0.5, 1.0], [2.0, 0.5, 3.0]])
    for given in ({"logit_scale": scale}, {"top_k": 5}, {"logit_scale": scale, "top_k": 5}):
        flat = logits.double().flatten(0, 1), labels.flatten(), given.get("logit_scale", torch.ones(2, 3)).flatten()
        expected = plain_terms(*flat, 1, given.get("top_k"))[0].clamp(min=OUTSIDE_TOP_K_LOG_PROB)
        found = verl_F.logprobs_from_logits(logits, labels, **given)
        assert found.dtype == torch.float32 and error(found, expected.view(2, 3)) < 1e-6
    assert torch.equal(verl_F.logprobs_from_logits(logits, labels), verl_F.logprobs_from_logits_v2(logits, labels))
