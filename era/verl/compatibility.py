# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Check the installed verl without importing it."""

import importlib.util
from pathlib import Path

TESTED = ("0.9.0", "0.9.1")
INSTALL = "pip install 'verl==0.9.1' 'TransferQueue>=0.1.10' 'tensordict==0.10.0' 'numpy>=2'"

# Methods that ERA overrides: a verl that calls them by another name would train without ERA and not say so. If anything
# else that ERA needs is missing from verl, an exception ends the run before the first step.
OVERRIDDEN = {
    "trainer/ppo/v1/trainer_base.py": ("_update_actor",),
    "workers/engine_workers.py": ("set_loss_fn", "train_mini_batch"),
    "workers/engine/fsdp/transformer_impl.py": ("prepare_model_inputs", "prepare_model_outputs"),
}


def problems() -> list[str]:
    """What is wrong with the verl that `import verl` would find, a line each; empty if nothing is."""
    spec = importlib.util.find_spec("verl")
    if spec is None:
        return [f"verl is not installed. {INSTALL}"]
    verl = Path(spec.submodule_search_locations[0])
    file = verl / "version" / "version"
    version = file.read_text().strip() if file.is_file() else "of unknown version"
    if version not in TESTED:
        return [f"verl {version} in {verl}: era.verl is made for {' and '.join(TESTED)}. {INSTALL}"]
    return [
        f"{verl / name} has no method {method}, in which era.verl applies ERA. {INSTALL}"
        for name, methods in OVERRIDDEN.items()
        for method in methods
        if f"def {method}(self" not in (verl / name).read_text()
    ]
