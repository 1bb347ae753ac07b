# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A model of each family of timm with ERA, compared bit for bit with the same model without.

The timm is the one that `import timm` finds: patched, or as it is, and then ERA is era.timm's.
"""

import pytest
import timm
import torch
from families import FAMILIES
from timm.models import get_pretrained_cfg_value, list_modules
from torch.nn.functional import cross_entropy
from vision_helpers import entropy

CLASSES = 10
MIN_ENTROPY = 0.6

if hasattr(timm.layers, "attach_era"):
    from timm.layers import EntropyRegularizingActivation, raw_logits

    create_model = timm.create_model
else:
    from era.discrete import EntropyRegularizingActivation, raw_logits
    from era.timm import create_model


def known() -> list[str]:
    """The families of this timm: v1.0.20 has no csatv2 and no gemma4_vit."""
    return [family for family in FAMILIES if family in list_modules()]


class Pair:
    """A model without and one with ERA, with the same weights, and two images of noise."""

    def __init__(self, name: str, side: int, smaller: dict | None = None):
        torch.manual_seed(0)
        self.images = torch.randn(2, 3, side, side)
        keywords = {"num_classes": CLASSES, **(smaller or {})}
        fixed_size = get_pretrained_cfg_value(name, "fixed_input_size")
        if fixed_size and get_pretrained_cfg_value(name, "input_size")[-1] != side:
            keywords["img_size"] = side
        self.plain = timm.create_model(name, **keywords)
        self.model = create_model(name, **keywords, era_min_entropy=MIN_ENTROPY)
        assert not any(isinstance(module, EntropyRegularizingActivation) for module in self.plain.modules())
        assert list(self.model.state_dict()) == list(self.plain.state_dict())
        self.model.load_state_dict(self.plain.state_dict())

    def both(self, call):
        """call(model) without and with ERA, from the same random state. Skips the test if it fails without ERA too."""
        torch.manual_seed(1)
        try:
            expected = call(self.plain)
        except Exception as error:
            pytest.skip(f"fails without ERA too: {type(error).__name__}: {error}")
        torch.manual_seed(1)
        return expected, call(self.model)


def compare(family: str) -> None:
    """Fails if the family's model with ERA is anything but ERA of the same model without."""
    pair, activation = Pair(*FAMILIES[family]), EntropyRegularizingActivation(CLASSES, MIN_ENTROPY)
    _compare_in_evaluation(pair, activation)
    _compare_in_training(pair, activation)
    _compare_after_reset(pair)


@torch.no_grad()
def _compare_in_evaluation(pair: Pair, activation) -> None:
    logits, output = pair.both(lambda m: m.eval()(pair.images))
    assert output.dtype == torch.float32 and torch.equal(output, activation(logits)), "not ERA of the logits"
    assert entropy(output).min() >= activation.floor - 1e-6
    with raw_logits(pair.model):
        assert torch.equal(*pair.both(lambda m: m(pair.images))), "raw_logits differ from the model without ERA"


def _compare_in_training(pair: Pair, activation) -> None:
    logits, output = pair.both(lambda m: m.train()(pair.images))
    assert torch.equal(output, activation(logits)), "not ERA of the logits"
    assert entropy(output).min() >= activation.floor - 1e-6
    for result in (activation(logits), output):
        cross_entropy(result, torch.tensor([0, 1])).backward()
    for (name, expected), found in zip(pair.plain.named_parameters(), pair.model.parameters()):
        assert (expected.grad is None) == (found.grad is None), f"only one model has a gradient of {name}"
        if found.grad is not None:
            assert found.grad.isfinite().all() and torch.equal(found.grad, expected.grad), f"the gradient of {name}"


@torch.no_grad()
def _compare_after_reset(pair: Pair) -> None:
    for classes in (7, 0):
        pair.both(lambda m: m.eval().reset_classifier(classes))
        pair.model.load_state_dict(pair.plain.state_dict())
        expected, found = pair.both(lambda m: m(pair.images))
        if classes:
            assert found.shape == (2, classes) and pair.model.era.num_classes == classes
            expected = EntropyRegularizingActivation(classes, MIN_ENTROPY)(expected)
        assert torch.equal(found, expected), f"another output after reset_classifier({classes})"
