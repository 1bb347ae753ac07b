# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA in a GRPO step of your own.

pip install . numpy
python3 -m examples.own_grpo_step
"""

import torch

from era.language import decide, update_metrics
from era.language_config import EraConfig
from era.log_probs import logprobs

torch.manual_seed(0)
model = torch.nn.Embedding(50, 50)  # your language model: tokens (B, T) to logits (B, T, vocabulary)
model.weight.data *= 30  # confident, as late in a training
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
prompts = torch.randint(50, (4, 5)).repeat_interleave(8, 0)  # your samples: 4 prompts with 8 responses each
responses = torch.randint(50, (32, 16))
mask = torch.arange(16) < torch.randint(1, 17, (32, 1))  # 1 for the tokens of a response, 0 for the padding behind
rewards = torch.randint(2, (4, 8)).float()

# GRPO's advantages: how much better a response is than the others to its prompt.
advantages = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)
advantages = advantages.view(-1, 1).expand_as(mask)
tokens = torch.cat([prompts, responses], -1)
logits, labels = model(tokens)[:, -17:-1], responses  # a row of logits is for the next token

# ERA: decide the scale of each token's logits once for a batch, by the policy that sampled it.
era = EraConfig(enable=True, low=0.45, high=3.0, k=8.0, hold=True)  # without hold, the paper's ERA, whose k is 2
entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()
decision = decide(entropy, logprobs(logits.detach(), labels), advantages, mask, era)
log_prob = logprobs(logits, labels, decision.scale)  # of the scaled logits; without ERA: logprobs(logits, labels)

# GRPO's loss, as ever. On-policy the old policy is this one; else its log-probs are taken under the same scale.
ratio = (log_prob - log_prob.detach()).exp()
loss = -(ratio * decision.advantages * mask).sum() / mask.sum()
optimizer.zero_grad()
loss.backward()
optimizer.step()
for name, value in update_metrics(decision.sums.stacked()).items():
    print(f"{name} {value:.3f}")
