import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def era(project_root):
    """The overlay's era.py by its path: it needs torch and the standard library alone, not verl."""
    spec = importlib.util.spec_from_file_location("era_alone", project_root / "overlays/verl/verl/utils/era.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["era_alone"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def import_verl(patched_verl):
    """Makes `import verl` in this process the patched checkout."""
    sys.path.insert(0, str(patched_verl))
    yield
    sys.path.remove(str(patched_verl))


@pytest.fixture(scope="session")
def steps(run_in, tmp_path_factory):
    """steps(tree, list of settings): a result for each, from one process (starting torch and verl takes seconds)."""

    def run(tree, settings, processes=1):
        folder = tmp_path_factory.mktemp("steps")
        (folder / "settings.json").write_text(json.dumps(settings))
        run_in(
            tree,
            Path(__file__).with_name("actor_step.py"),
            folder / "settings.json",
            folder / "results.pt",
            processes=processes,
        )
        return torch.load(folder / "results.pt", weights_only=False)

    return run
