"""The policy that the actor tests train."""

import torch
from torch import nn

VOCABULARY = 40
PROMPT, RESPONSE = 4, 10


class Output:
    def __init__(self, logits):
        self.logits = logits


class TokenModel(nn.Module):
    """A policy that sees its own token and position alone: packing and slicing cannot change what it computes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCABULARY, bias=False)

    def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=False):
        x = self.embedding(input_ids) + position_ids.unsqueeze(-1).to(self.hidden.weight.dtype) / 10
        return Output(self.head(torch.tanh(self.hidden(x)) * 6))
