# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Which libraries mujoco lacks to render without a screen (MUJOCO_GL=egl): python egl.py.

HumanoidBench always renders. If a library is missing, importing mujoco ends in an AttributeError
that does not name it. This file needs only the standard library.
"""

import ctypes
import sys

PACKAGES = {  # of Debian and Ubuntu, by the file that is loaded; of two files one is enough
    "libEGL.so.1": "package libegl1",
    "libOpenGL.so.0 or libGL.so.1": "package libgl1",
    "libEGL_nvidia.so.0 or libEGL_mesa.so.0": "the NVIDIA driver, or package libegl-mesa0",
}


def loads(file: str) -> bool:
    try:
        ctypes.CDLL(file)
    except OSError:
        return False
    return True


def problem() -> str:
    """A sentence on what is missing; empty if nothing is."""
    missing = [
        f"{files} ({package})"
        for files, package in PACKAGES.items()
        if not any(map(loads, files.split(" or ")))
    ]
    return f"mujoco cannot render here: it lacks {', '.join(missing)}." if missing else ""


if __name__ == "__main__":
    sys.exit(problem() or 0)
