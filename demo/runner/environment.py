"""Where this project is, and what of the user's Python settings reaches the trainings: nothing."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")


def cleaned(environment: dict[str, str], *path: Path) -> dict[str, str]:
    """The environment with `path` as its PYTHONPATH: a stray torch.py on the user's would be imported as torch."""
    others = {name: value for name, value in environment.items() if name not in _SETTINGS}
    return {**others, "PYTHONPATH": os.pathsep.join(map(str, path))}
