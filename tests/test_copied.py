# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The formulas of demo/copied.py, with whose numbers docs/why-not-copy.md says what copied listings do."""

import math

import pytest
import torch

from demo import copied


def test_the_listings_are_those_of_the_paper_where_both_hold():
    """In its range the classifier's listing is the activation of era/, but for a shift of each row; the controller's
    is, with the sign of the equation's H0'."""
    generator = torch.Generator().manual_seed(1)
    for classes, min_entropy, tau in ((2, 0.3, 4.0), (10, 0.6, 3.0), (1000, 1.2, 4.0), (21841, 1.2, 3.0)):
        logits = 3 * torch.randn(8, classes, generator=generator, dtype=torch.double)
        made = copied.EntropyRegularizingActivation(classes, min_entropy, tau)(logits)
        listed = copied.listed_classifier(logits, min_entropy, tau)
        torch.testing.assert_close(listed.log_softmax(-1), made.log_softmax(-1), rtol=0, atol=1e-10)
    for dim, target, low, high in ((2, -1.0, -8.0, 0.0), (6, -3.0, -10.0, 2.0), (61, -60.0, -5.0, -0.7)):
        pre_std = 3 * torch.randn(8, dim, generator=generator, dtype=torch.double)
        listed = copied.listed_log_std(pre_std, -target / dim, low, high)
        torch.testing.assert_close(listed, copied.era_log_std(pre_std, target, low, high), rtol=1e-12, atol=1e-12)
    assert copied.entropy(torch.zeros(10)).item() == pytest.approx(math.log(10))
