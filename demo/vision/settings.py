# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The settings of the runs."""

from dataclasses import dataclass

MODEL = "test_resnet"  # timm's smallest ResNet, 0.4 million parameters
CLASSES = 10
MIN_ENTROPY = 0.6  # H0 in nats, the paper's for ten classes
IMAGE_SIZE = 32
BATCH_SIZE, VALIDATION_BATCH_SIZE = 16, 350
LEARNING_RATE, WARMUP_EPOCHS = 3e-3, 2
# The defaults of timm's train.py, which are also the paper's values.
WEIGHT_DECAY, WARMUP_LEARNING_RATE, SMOOTHING = 2e-5, 1e-5, 0.1

BASELINE, ON, OFF = "baseline", "ERA", "ERA off at evaluation"  # as they are printed
EPOCHS_FILE = "epochs.csv"


@dataclass(frozen=True)
class Settings:
    """What one run is trained with. min_entropy: H0 of ERA in nats, None for a baseline."""

    min_entropy: float | None
    seed: int
    epochs: int

    @property
    def name(self) -> str:
        return BASELINE if self.min_entropy is None else ON

    @property
    def folder(self) -> str:
        h0 = "" if self.min_entropy is None else f"{self.min_entropy!r}"
        return f"{self.name.lower()}{h0}-seed{self.seed}-epochs{self.epochs}"
