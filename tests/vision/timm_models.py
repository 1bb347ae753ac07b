# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Models of timm with ERA, and what they must return."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from vision_helpers import entropy, equation

H0 = 0.6
SETTING = {"era_min_entropy": 0.5, "era_tau": 5.0, "era_inverse": "exact"}
MODELS = {"test_resnet": {}, "test_vit": {"img_size": 32}}  # with and without BatchNorm
FEW_FAMILIES = ("convnext", "efficientnet", "mlp_mixer", "resnet", "vision_transformer")


def assert_era(output, logits, *setting, tolerance=1e-5):
    """Against the equation in fp64."""
    expected = equation(logits.double(), *(setting or (H0,))).float()
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


def setting_of(door, model):
    found = door.find_era(model)
    return found and {f"era_{name}": getattr(found, name) for name in ("min_entropy", "tau", "inverse")}


def compare(door, timm, name, side, smaller=None):
    """Fails unless the model with ERA is, bit for bit, ERA on the same model without. Skips if the latter fails too."""
    torch.manual_seed(0)
    images, keywords = torch.randn(2, 3, side, side), {"num_classes": 10, **(smaller or {})}
    fixed, its_side = (timm.models.get_pretrained_cfg_value(name, key) for key in ("fixed_input_size", "input_size"))
    if fixed and its_side[-1] != side:
        keywords["img_size"] = side
    plain = timm.create_model(name, **keywords)
    model = door.create_model(name, **keywords, era_min_entropy=H0)
    assert door.find_era(plain) is None and list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())

    def both(call):
        torch.manual_seed(1)
        try:
            expected = call(plain)
        except Exception as error:
            pytest.skip(f"fails without ERA too: {type(error).__name__}: {error}")
        torch.manual_seed(1)
        return expected, call(model)

    activation = door.EntropyRegularizingActivation(10, H0)
    with torch.no_grad():
        logits, output = both(lambda m: m.eval()(images))
        assert output.dtype == torch.float32 and torch.equal(output, activation(logits))
        assert entropy(output).min() >= activation.floor - 1e-6
        with door.raw_logits(model):
            assert torch.equal(*both(lambda m: m(images)))

    logits, output = both(lambda m: m.train()(images))
    assert torch.equal(output, activation(logits))
    for result in (activation(logits), output):
        cross_entropy(result, torch.tensor([0, 1])).backward()
    for (part, expected), found in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None), part
        assert found.grad is None or found.grad.isfinite().all() and torch.equal(found.grad, expected.grad), part

    with torch.no_grad():
        for classes in (7, 0):
            both(lambda m: m.eval().reset_classifier(classes))  # noqa: B023
            model.load_state_dict(plain.state_dict())
            expected, found = both(lambda m: m(images))
            if classes:
                assert found.shape == (2, classes) and model.era.num_classes == classes
                expected = door.EntropyRegularizingActivation(classes, H0)(expected)
            assert torch.equal(found, expected)
