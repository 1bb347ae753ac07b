# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""One batch, one model, the same update: by the overlay in verl v0.4.1, and by era.verl in verl 0.9.1."""

import environment
import pytest

environment.require()

import llm_helpers  # noqa: E402
from update_cases import BASE, COLD, GSPO, OFF_POLICY, difference, with_era  # noqa: E402

# Both take means over the whole mini-batch where it is one micro-batch.
ONE, SEVERAL = {**BASE, **with_era(), "micro_batch": 24}, {**OFF_POLICY, **with_era(), "micro_batch": 8}
BOTH = {
    "padded": ONE,
    "packed": {**ONE, **COLD, "remove_padding": True},
    "multi-turn": {**ONE, "multi_turn": True, "remove_padding": True},
    "top-k, scaled advantages": {**ONE, **with_era(top_k=5, scale_advantages=True, k=1.75)},
    "hold": {**ONE, **with_era(hold=True)},
    "off-policy": {**SEVERAL, "remove_padding": True},
    "off-policy, all losses": {**SEVERAL, "kl_coef": 0.1, "entropy_coeff": 0.05, **with_era(top_k=5)},
    "off-policy, GSPO": {**SEVERAL, **GSPO, "remove_padding": True},
}
PYTHON = environment.ROOT / ".venv" / "cpu" / "bin" / "python"  # the environment of verl v0.4.1


@pytest.mark.slow
def test_the_overlay_and_the_plugin_agree(patched_verl):
    if not PYTHON.exists():
        pytest.skip(f"needs the environment of verl v0.4.1 in {PYTHON.parents[1]}: make test")
    settings = list(BOTH.values())
    old, new = llm_helpers.take_steps(patched_verl, settings, python=PYTHON), environment.take_steps("0.9.1", settings)
    for name, theirs, ours in zip(BOTH, old, new):
        assert difference(ours["start"], theirs["start"]) == 0.0
        assert difference(theirs["start"], theirs["parameters"]) > 1e-3
        bound = 1e-7 if "GSPO" in name else 1e-12  # verl adds 1e-8 to a response's length in 0.9, and not in v0.4.1
        assert difference(ours["parameters"], theirs["parameters"]) < bound, name
        metrics = {key: value for key, value in theirs["metrics"][0].items() if key.startswith("era/")}
        assert len(metrics) == 8
        for key, value in metrics.items():
            assert ours["metrics"][0][key] == pytest.approx(value, rel=1e-9), key
