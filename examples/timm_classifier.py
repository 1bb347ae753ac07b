# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A classifier of timm with ERA in a loop of your own: train, compare the entropies, save, load.

pip install '.[timm]'
python3 -m examples.timm_classifier --model resnet18 --steps 200
"""

import argparse

import torch

import era.timm
from era.discrete import raw_logits

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="resnet18")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--min-entropy", type=float, default=0.6, help="the paper's H0, in nats")
parser.add_argument("--save", default="classifier.pth")
options = parser.parse_args()

# Your data: here one picture for each of ten classes, under noise.
torch.manual_seed(0)
classes = torch.randn(10, 3, 32, 32)


def batch(size):
    labels = torch.randint(10, (size,))
    return classes[labels] + torch.randn(size, 3, 32, 32), labels


model = era.timm.create_model(options.model, num_classes=10, era_min_entropy=options.min_entropy)
print(model.era)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(options.steps):
    images, labels = batch(64)
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
images, labels = batch(500)
with torch.no_grad():
    logits = model(images)
    with raw_logits(model):
        before = model(images)  # what the network gives to ERA
entropies = [torch.distributions.Categorical(logits=of).entropy().min() for of in (before, logits)]
print(f"{(logits.argmax(-1) == labels).double().mean():.0%} right; smallest entropy {entropies[1]:.3f} nats, not below "
      f"the floor {model.era.floor:.3f}; before ERA {entropies[0]:.3f}")  # fmt: skip

torch.save(model.state_dict(), options.save)
again = era.timm.create_model(options.model, num_classes=10, checkpoint_path=options.save)
print("loaded with ERA, as it was saved:", again.era)
