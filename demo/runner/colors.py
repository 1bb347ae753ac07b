# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The colours of pictures: ERA has one of its own, whatever it is drawn beside. rivals/ has the same."""

BASELINE = "black"
ERA = "#2b7bba"  # blue
BOUND = "#b02a2a"  # red: what ERA promises, as a line
ORANGE, LIGHT_ORANGE, GREEN, PURPLE = "#d1611a", "#e8a06b", "#5f8f3e", "#8b5fa8"
DARK_RED, TEAL, OCHRE, GREY = "#a33b3b", "#2f9c95", "#b59a1f", "0.6"
