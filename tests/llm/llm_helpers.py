# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What several tests of the language models share."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
ACTOR_STEP = Path(__file__).with_name("actor_step.py")


def load(path, name):
    """The module in this file, under this name, without touching sys.path."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take_steps(tree, settings, processes=1, script=ACTOR_STEP, python=sys.executable):
    """One result for each of the settings, by the script in processes in which `import verl` is the tree's.

    Starting torch and verl takes seconds, so give it many settings at once.
    """
    paths = os.pathsep.join(map(str, (tree, Path(__file__).parent, ROOT)))
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] * (processes > 1)
    with tempfile.TemporaryDirectory() as folder:
        env["TMPDIR"] = folder  # of the script's models
        files = [f"{folder}/settings.json", f"{folder}/results.pt"]
        Path(files[0]).write_text(json.dumps(settings))
        command = [python, "-W", "ignore", *launcher, script, *files]
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600)
        assert result.returncode == 0, result.stdout + result.stderr
        return torch.load(files[1], weights_only=False)


@contextlib.contextmanager
def refused(refusal, shown=""):
    """What is done within is refused for this reason and no other, with what to do instead, and is shown as this."""
    with pytest.raises(ValueError) as error:
        yield
    said = str(error.value)
    assert said.count("\n  - ") == 1 and f": {refusal.why}. {refusal.instead}.".replace("`", "") in said, said
    assert f"\n  - {refusal.key and f'{refusal.key}='}{shown}" in said, said


def keys_taken_for_era(tree, folders):
    """What refuse_elsewhere says of the configurations that upstream has in these folders of a tree.

    A file in a folder of verl/trainer/config is a part of a configuration.
    """
    from omegaconf import OmegaConf

    from era.language_config import refuse_elsewhere

    files = [file for folder in folders for file in sorted((tree / folder).rglob("*.yaml"))]
    assert len(files) > 3
    said = []
    for file in files:
        try:
            config = OmegaConf.load(file)
            refuse_elsewhere(config if file.parent.name == "config" else {"part": config})
        except ValueError as error:
            said.append(f"{file}: {error}")
    return said
