# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make demo-trl`: SmolLM2-135M, a pretrained model, in TRL's trainer on a CPU: GRPO, ERA, and TRL's adaptive bonus."""
