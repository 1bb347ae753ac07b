"""Keeps the user's Python settings out of the demos: a stray torch.py on PYTHONPATH would be imported as torch."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")


def cleaned(environment: dict[str, str], *path: Path) -> dict[str, str]:
    """The environment without those settings, and with `path` as its PYTHONPATH."""
    others = {name: value for name, value in environment.items() if name not in _SETTINGS}
    return {**others, "PYTHONPATH": os.pathsep.join(map(str, path))}


def restart_if_needed() -> None:
    """Restarts this process with the same arguments if any of those settings is in its environment.

    Changing sys.path would come too late for what the interpreter imports by itself, such as sitecustomize.
    """
    if {name: os.environ[name] for name in _SETTINGS if name in os.environ} in ({}, {"PYTHONPATH": str(ROOT)}):
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], cleaned(dict(os.environ), ROOT))
