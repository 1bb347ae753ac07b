# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""FastTD3's modules and package, as its scripts and its users import them."""

import pytest
from helpers import FASTTD3, importable


@pytest.fixture(scope="module")
def modules(patched_fasttd3):
    """FastTD3's modules and the overlay's by their bare names, as the training scripts import them."""
    names = ("era", "era_training", "fast_td3", "fast_td3_utils", "fastsac_era", "hyperparams", "run_args")
    names += ("run_log",)
    with importable(patched_fasttd3 / "fast_td3", *names) as imported:
        yield imported


@pytest.fixture
def version():
    """The version of FastTD3; a test may set it by a parameter."""
    return FASTTD3


@pytest.fixture
def package(trees_of, version):
    """`import fast_td3`, as users of a trained policy do."""
    with importable(trees_of("fasttd3", version)[0], "fast_td3") as imported:
        yield imported.fast_td3
