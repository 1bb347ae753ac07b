# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""GRPO, ERA and TRL's adaptive entropy bonus on SmolLM2-135M. The protocol is docs/rivals/trl.md."""

STEPS, LEARNING_RATE, ANSWERS = 150, 1e-5, 32
SEEDS = (1, 2, 3)
# Bounds and targets in nats.
TASKS = {
    "pairs": {"grpo": ("0",), "era": ("0.6", "1.2"), "adaptive": ("0.22", "0.45")},
    "sums": {"grpo": ("0",), "era": ("0.4",)},
}
NAMES = {"grpo": "GRPO", "era": "ERA, {} nats", "adaptive": "adaptive bonus, {} nats"}
WARM_UP = {"warm-up": ("0",)}
