# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The activation, and timm's models through both doors: the patched timm, and era.timm with an installed one."""

import importlib
import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
from timm_models import H0, MODELS, SETTING

from era import discrete


@pytest.fixture(scope="session")
def era():
    return discrete


@pytest.fixture(scope="session")
def import_timm(request):
    """Makes `import timm` in this process the patched checkout, unless a timm is installed."""
    if importlib.util.find_spec("timm"):
        yield
        return
    checkout = str(request.getfixturevalue("patched_timm"))
    sys.path.insert(0, checkout)
    yield
    sys.path.remove(checkout)


@pytest.fixture(scope="module")
def timm(import_timm):
    for name in ("models", "optim", "utils"):
        importlib.import_module(f"timm.{name}")
    return importlib.import_module("timm")


@pytest.fixture(scope="module")
def door(timm):
    """create_model, apply_test_time_pool and the activation's functions: the patched timm's, or era.timm's."""
    patched = hasattr(timm.layers, "attach_era")
    activation = importlib.import_module("timm.layers.era" if patched else "era.discrete")
    creates, pools = (timm, timm.layers) if patched else (importlib.import_module("era.timm"),) * 2
    made = {"create_model": creates.create_model, "apply_test_time_pool": pools.apply_test_time_pool}
    return SimpleNamespace(**vars(activation), **made, is_patched=patched)


@pytest.fixture(params=MODELS)
def pair(door, timm, request):
    """A model with ERA, and the same without."""
    torch.manual_seed(0)
    keywords = {"num_classes": 10, **MODELS[request.param]}
    model = door.create_model(request.param, **keywords, era_min_entropy=H0)
    plain = timm.create_model(request.param, **keywords)
    plain.load_state_dict(model.state_dict())
    return model.eval(), plain.eval()


@pytest.fixture
def resnet(door):
    torch.manual_seed(0)
    return door.create_model("test_resnet", num_classes=10, **SETTING).eval()


@pytest.fixture
def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
