# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The colours of all pictures. Those of the rivals' methods are in rivals/pictures.py.

What is trained without ERA is black, ERA with the settings that are compared is blue, and what ERA promises a red line.
Blues, purples and magenta are ERA with other settings.
"""

BASELINE = "black"
ERA = "#2b7bba"  # blue
BOUND = "#b02a2a"  # red: what ERA promises, as a line
LIGHT_BLUE, DARK_BLUE, PURPLE = "#8fc1e3", "#123a66", "#8b5fa8"
ORANGE, LIGHT_ORANGE, GREEN = "#d1611a", "#e8a06b", "#5f8f3e"
DARK_RED, TEAL, OCHRE, GREY, BROWN, MAGENTA = "#a33b3b", "#2f9c95", "#b59a1f", "0.6", "#6b4a2b", "#c2408f"
LIGHT_RED, PINK = "#e58a8a", "#e0a3c8"
K_8, NO_NEGATIVES, HOLD = DARK_BLUE, PURPLE, MAGENTA  # in language models, of whatever k
