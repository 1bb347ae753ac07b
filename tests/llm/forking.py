# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Training on forking tokens alone, written down in numpy: what verl/utils/forking_tokens.py is compared with."""

import math

import numpy as np
import torch

THRESHOLD, FRACTION = "forking/entropy_threshold", "forking/token_fraction"


def actor_config(fraction):
    return {"policy_loss": {"loss_mode": "vanilla", "forking_fraction": fraction}}


def plain_keep(entropy, mask, fraction):
    """numpy: H >= the max(1, floor(fraction x n))-th largest of the n response tokens."""
    entropy, mask = entropy.numpy(), mask.bool().numpy()
    tokens = np.sort(entropy[mask])[::-1]
    threshold = tokens[max(1, math.floor(fraction * len(tokens))) - 1]
    return torch.from_numpy(mask & (np.nan_to_num(entropy) >= threshold)), threshold.item()
