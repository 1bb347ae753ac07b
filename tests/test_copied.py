# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The formulas of demo/copied.py, with whose numbers docs/why-not-copy.md says what copied listings do."""

import math

import pytest
import torch

from demo import copied


def test_the_listings_are_those_of_the_paper_where_both_hold():
    """In its range the classifier's listing is the activation of era/; the controller's with the equation's sign."""
    logits, pre_std = (torch.randn(8, n, generator=torch.Generator().manual_seed(1)) for n in (10, 6))
    made = copied.EntropyRegularizingActivation(10, 0.6)(logits)
    listed = copied.listed_classifier(logits, 0.6)
    assert torch.allclose(listed.softmax(-1), made.softmax(-1), atol=1e-6)
    target = -3.0
    listed = copied.listed_log_std(pre_std, -target / 6)
    assert torch.allclose(listed, copied.era_log_std(pre_std, target, -8.0, 0.0), atol=1e-5)
    assert copied.entropy(torch.zeros(10)).item() == pytest.approx(math.log(10))
