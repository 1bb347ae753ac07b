"""Import one file of an overlay by its path, without its upstream."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

OVERLAYS = Path(__file__).resolve().parents[2] / "overlays"


def load(path: str) -> ModuleType:
    """The module at this path below overlays/; the activations need only torch and the standard library."""
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, OVERLAYS / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look classes up there
    spec.loader.exec_module(module)
    return module
