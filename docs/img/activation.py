# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python docs/img/activation.py: draws activation.png, what ERA does to a prediction over ten classes."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from era.discrete import EntropyRegularizingActivation  # noqa: E402
from recipes.colors import BASELINE, BOUND, ERA  # noqa: E402

CLASSES, MIN_ENTROPY = 10, 0.6


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """In nats, of softmax(logits) over the last dimension."""
    return torch.distributions.Categorical(logits=logits).entropy()


era = EntropyRegularizingActivation(CLASSES, MIN_ENTROPY)
direction = torch.linspace(1, 0, CLASSES, dtype=torch.float64).square()
scales = torch.linspace(0, 40, 401, dtype=torch.float64)[:, None]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6), dpi=110, layout="constrained")

logits = 30 * direction
left.bar(range(CLASSES), logits.softmax(-1), width=-0.4, align="edge", color=BASELINE, label="softmax(z)")
left.bar(range(CLASSES), era(logits).softmax(-1), width=0.4, align="edge", color=ERA, label="softmax(ERA(z))")
left.set(title="one confident prediction", xlabel="class", ylabel="probability", xticks=range(CLASSES))

right.plot(scales, entropy(scales * direction), color=BASELINE, label="softmax(z)")
right.plot(scales, entropy(era(scales * direction)), color=ERA, label="softmax(ERA(z))")
right.axhline(era.floor, color=BOUND, linewidth=0.8, linestyle="--", label=f"ERA's floor, {era.floor:.2f}")
right.set(title="as the logits z grow", xlabel="largest logit minus smallest", ylabel="entropy (nats)", ylim=(0, 2.4))
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
figure.savefig(HERE / "activation.png")
