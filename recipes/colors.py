# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The colours of all pictures: a method has the same one wherever it is drawn.

What is trained without ERA is black, ERA with the settings that are compared is blue, and what ERA promises a red line.
Blues and purples are ERA with other settings.
"""

BASELINE = "black"
ERA = "#2b7bba"  # blue
BOUND = "#b02a2a"  # red: what ERA promises, as a line
LIGHT_BLUE, DARK_BLUE, PURPLE = "#8fc1e3", "#123a66", "#8b5fa8"
ORANGE, LIGHT_ORANGE, GREEN = "#d1611a", "#e8a06b", "#5f8f3e"
DARK_RED, TEAL, OCHRE, GREY, BROWN, MAGENTA = "#a33b3b", "#2f9c95", "#b59a1f", "0.6", "#6b4a2b", "#c2408f"

# Of rivals/, by method or agent. Some arms of trl.md have their setting behind the name.
METHODS = {
    # language models
    "grpo": BASELINE,
    "era": ERA,
    "adaptive": ORANGE,
    "adaptive-mean": LIGHT_ORANGE,
    "bonus": GREEN,
    "kl": BROWN,
    "hotter": GREY,
    "clip-higher": DARK_RED,
    "clip-cov": TEAL,
    "kl-cov": OCHRE,
    "grpo-rate 0.25": GREY,
    "grpo-negative 0": TEAL,
    "era-k 4": LIGHT_BLUE,
    "era-k 8": DARK_BLUE,
    "era-negative 0": PURPLE,
    "era-hold": MAGENTA,
    # control
    "ppo": BASELINE,
    "ppo_no_bonus": GREY,
    "ppo_era": ERA,
    "ppo_era_0.3": DARK_BLUE,
    "ppo_constant": ORANGE,
    "ppo_parameter": GREEN,
    "ppo_head": OCHRE,
    "eapo_3m": DARK_RED,
    "sac": BASELINE,
    "sac_era": ERA,
    "obac": TEAL,
    "obac-reward": LIGHT_ORANGE,
    "obac_era": PURPLE,
    # classifiers
    "baseline": BASELINE,
    "label_smoothing": ORANGE,
    "confidence_penalty": GREEN,
    "focal": OCHRE,
    "logit_norm": DARK_RED,
    "uniform_mixing": TEAL,
}
