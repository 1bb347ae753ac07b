# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The release's way of scaling, re-implemented from its description, in the place of verl/utils/era_fsdp.py's hooks.

In the old_log_prob pass and in the update alike: entropies of all tokens (in the update under autograd), H_resp decided
again from them, rows of the logits copied and scaled through an index, and a top-k filter through a second tensor of
the logits' size. Its gate writes the advantages into integers, so that A >= 1 passes. It knows only the remove-padding
path.

Where the description leaves a choice, the cheaper is taken: the entropies are not kept for the backward pass, the
filter holds its log-probs in the logits' dtype.
"""

import torch
import torch.nn.functional as F
from verl.utils.era import response_entropy
from verl.utils.era_fsdp import ActorHooks, response_mask
from verl.utils.era_log_probs import OUTSIDE_TOP_K_LOG_PROB
from verl.utils.torch_functional import logprobs_from_logits


class ReleaseHooks(ActorHooks):
    """Hooks of an actor in whose configuration ERA is off: what is not overridden here is upstream's.

    `scaled_fractions` gains one number per forward pass: the share of the response tokens that were scaled.
    """

    def __init__(self, actor, low, high, k, top_k=None):
        super().__init__(actor)
        self._entropy_from_logits = actor.compute_entropy_from_logits
        self._low, self._high, self._k, self._top_k = low, high, k, top_k
        self.scaled_fractions = []

    def requested_keys(self, data):
        return ["advantages"]

    def prepare(self, logits, temperature, micro_batch, indices):
        super().prepare(logits, temperature, micro_batch, indices)
        self._batch = micro_batch, indices

    def log_probs(self, logits, labels, inplace_backward=True):
        micro_batch, indices = self._batch
        advantages = micro_batch["advantages"]
        bsz, seqlen = micro_batch["input_ids"].shape
        prompt_length = seqlen - advantages.size(1)
        entropy = self._entropy_from_logits(logits)
        entropy = (
            entropy.new_zeros(bsz * seqlen).index_copy(0, indices, entropy).view(bsz, seqlen)[:, prompt_length - 1 : -1]
        )
        h = response_entropy(entropy, response_mask(micro_batch, multi_turn=False)).unsqueeze(-1)
        positive = advantages.long() > 0
        low, high = (h < self._low) & positive, (h > self._high) & positive
        self.scaled_fractions.append((low | high).float().mean())
        low, high = (F.pad(rows, (prompt_length - 1, 1)).flatten()[indices] for rows in (low, high))
        logits[low] = logits[low] * self._k
        logits[high] = logits[high] / self._k
        if self._top_k is None:
            return logprobs_from_logits(logits, labels, inplace_backward)
        values, tops = logits.topk(self._top_k, dim=-1)
        filtered = torch.full_like(logits, OUTSIDE_TOP_K_LOG_PROB).scatter(
            -1, tops, values.log_softmax(-1).to(logits.dtype)
        )
        return filtered.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
