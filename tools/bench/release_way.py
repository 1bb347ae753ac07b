# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The release's way of scaling, re-implemented from its description, in the place of verl/utils/era_fsdp.py's hooks.

In the old_log_prob pass and in the update alike: entropies of all tokens (in the update under autograd), H_resp decided
again from them, and rows of the logits copied and scaled through an index. It knows only the remove-padding path. Where
the description leaves a choice, the cheaper is taken: the entropies are not kept for the backward pass.
"""

import torch.nn.functional as F
from verl.utils.era import response_entropy
from verl.utils.era_fsdp import ActorHooks, response_mask
from verl.utils.torch_functional import logprobs_from_logits


class ReleaseHooks(ActorHooks):
    """Hooks of an actor in whose configuration ERA is off: what is not overridden here is upstream's.

    `scaled_fractions` gains one number per forward pass: the share of the response tokens that were scaled.
    """

    def __init__(self, actor, low, high, k, **_):
        super().__init__(actor)
        self._entropy_from_logits = actor.compute_entropy_from_logits
        self._low, self._high, self._k = low, high, k
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
        entropy = entropy.new_zeros(bsz * seqlen).index_copy(0, indices, entropy).view(bsz, seqlen)
        entropy = entropy[:, prompt_length - 1 : -1]
        h = response_entropy(entropy, response_mask(micro_batch, multi_turn=False)).unsqueeze(-1)
        low, high = (h < self._low) & (advantages > 0), (h > self._high) & (advantages > 0)
        self.scaled_fractions.append((low | high).float().mean())
        low, high = (F.pad(rows, (prompt_length - 1, 1)).flatten()[indices] for rows in (low, high))
        logits[low] = logits[low] * self._k
        logits[high] = logits[high] / self._k
        return logprobs_from_logits(logits, labels, inplace_backward)
