# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Whether ERA fits the installed verl: its version, and the methods that ERA overrides. Nothing of verl is imported."""

import importlib.util
import re
from pathlib import Path

from era.versions import Releases

INSTALL = (
    "pip install 'verl==0.9.1' 'TransferQueue>=0.1.10' 'tensordict==0.10.0' 'numpy>=2' "
    "cachetools fastapi uvicorn orjson pillow"
)
RELEASES = Releases("era.verl", "verl", "0.9.0", "0.9.1", INSTALL)

# Methods that ERA overrides: a verl that calls them by another name would train without ERA and not say so. If anything
# else that ERA needs is missing from verl, an exception ends the run before the first step.
OVERRIDDEN = {
    "trainer/ppo/v1/trainer_base.py": ("_update_actor",),
    "workers/engine_workers.py": ("set_loss_fn", "train_mini_batch"),
    "workers/engine/fsdp/transformer_impl.py": ("prepare_model_inputs", "prepare_model_outputs"),
    "workers/engine/megatron/transformer_impl.py": ("_lm_head_logits_processor",),
}


def problems() -> list[str]:
    """What is wrong with the verl that `import verl` would find, a sentence each; an empty list lets the run start."""
    verl, version = _installed()
    if verl is None:
        return [f"verl is not installed. {INSTALL}"]
    if too_old := RELEASES.too_old(version, f" in {verl}"):
        return [too_old]
    return [
        f"{verl / name} has no method {method}, in which era.verl applies ERA. {INSTALL}"
        for name, methods in OVERRIDDEN.items()
        for method in methods
        if not (verl / name).is_file() or not re.search(rf"def {method}\(\s*self\b", (verl / name).read_text())
    ]


def warning() -> str:
    """The warning for a verl without problems that is newer than those of the tests; "" for others."""
    verl, version = _installed()
    there = f" in {verl}, which has all methods in which era.verl applies ERA; what they do was not tried"
    return RELEASES.untested(version, there)


def _installed() -> tuple[Path | None, str]:
    """The folder of the package verl, None where there is none, and its version as written."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return None, ""
    verl = Path(spec.submodule_search_locations[0])
    file = verl / "version" / "version"
    return verl, file.read_text().strip() if file.is_file() else "an unknown version"
