# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""GRPO, ERA and TRL's adaptive entropy bonus on SmolLM2-135M. The protocol is docs/rivals/trl.md."""

STEPS, LEARNING_RATE, ANSWERS = 150, 1e-5, 32
SEEDS = (1, 2, 3)
# Shares of the entropy after the warm-up: of H_resp for ERA's bound, of the mean token entropy for the bonus's target.
TASKS = {
    "pairs": {"grpo": ("0",), "era": ("0.3", "0.6"), "adaptive": ("0.3", "0.6")},
    "sums": {"grpo": ("0",), "era": ("0.3",)},
}
