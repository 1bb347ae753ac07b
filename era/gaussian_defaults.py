# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's values for Gaussian policies: the plug-ins' defaults, and what recipes train with.

The scripts of patched checkouts, which cannot import era, repeat them as defaults of their flags.
"""

PPO_TARGET, SAC_TARGET = -0.3, -0.5  # H0 per action dimension, in nats
LOG_STD_MIN, LOG_STD_MAX = -8.0, 0.0  # the range of ln sigma
