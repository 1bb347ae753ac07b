# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Eq. llm and the metrics of an update in plain Python, written down from their definitions.

It shares no code with era/language.py, which all tests compare with this. Tensors are (responses, tokens) and fp64;
entropies are in nats, and a mask is bool or 0/1.
"""

import math
from fractions import Fraction

import torch


def forking(entropy, mask, top_fraction=0.2):
    """Two lists for each response, the entropies of its forking tokens and those of the others."""
    for row, keep in zip(entropy, mask.bool()):
        tokens = sorted(row[keep].tolist(), reverse=True)
        count = max(1, math.floor(Fraction(str(top_fraction)) * len(tokens)))
        yield tokens[:count], tokens[count:]


def response_entropies(entropy, mask, top_fraction=0.2):
    """H_resp of each response, NaN for an empty one."""
    return [math.fsum(top) / len(top) if top else math.nan for top, _ in forking(entropy, mask, top_fraction)]


def decide(h_resp, advantages, mask, low, high, k, min_advantage=0):
    """The scale of every token."""
    scale = torch.ones(mask.shape, dtype=torch.double)
    for b, t in mask.nonzero().tolist():
        if advantages[b, t] > min_advantage:
            scale[b, t] = k if h_resp[b] < low else 1 / k if h_resp[b] > high else 1
    return scale


def dropped(entropy, log_p, advantages, mask, low, high, top_fraction=0.2):
    """Which tokens of negative advantage `hold` leaves out of the policy loss.

    All where H_resp is below low; where it is above high, those likelier than exp(-entropy).
    """
    h_resp, out = response_entropies(entropy, mask, top_fraction), torch.zeros(mask.shape, dtype=torch.bool)
    for b, t in mask.nonzero().tolist():
        is_likely = log_p[b, t] > -entropy[b, t]
        out[b, t] = advantages[b, t] < 0 and (h_resp[b] < low or (h_resp[b] > high and is_likely))
    return out


def metrics(entropy, mask, scale, out, low, high, top_fraction=0.2):
    """era/... of one update; out: as `dropped` returns it."""
    split, h_resp = list(forking(entropy, mask, top_fraction)), response_entropies(entropy, mask, top_fraction)
    top, rest = ([h for part in split for h in part[which]] for which in (0, 1))
    known, tokens = [h for h in h_resp if not math.isnan(h)], mask.bool().sum().item()
    return {
        "era/response_entropy": sum(known) / len(known),
        "era/low_fraction": sum(h < low for h in known) / len(known),
        "era/high_fraction": sum(h > high for h in known) / len(known),
        "era/scaled_token_fraction": ((scale != 1) & mask.bool()).sum().item() / tokens,
        "era/dropped_token_fraction": out.sum().item() / tokens,
        "era/top_entropy": sum(top) / len(top),
        "era/rest_entropy": sum(rest) / len(rest),
    }
