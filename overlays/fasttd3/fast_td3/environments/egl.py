# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The libraries with which mujoco renders without a screen, as train.py asks (MUJOCO_GL=egl).

HumanoidBench always renders; without these libraries, importing mujoco ends in an AttributeError
that names none of them. As a script: prints what is missing and exits with 1, or prints nothing and
exits with 0. Needs only the standard library.
"""

import ctypes
import sys
from typing import List

# Of each group of files one is enough; beside it, where it comes from.
NEEDED = (
    (("libEGL.so.1",), "package libegl1"),
    (("libOpenGL.so.0", "libGL.so.1"), "package libgl1"),
    (
        ("libEGL_nvidia.so.0", "libEGL_mesa.so.0"),
        "the NVIDIA driver, in a container with NVIDIA_DRIVER_CAPABILITIES=all; "
        "or package libegl-mesa0",
    ),
)


def loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def missing_libraries() -> List[str]:
    """File and source of each missing library, such as "libEGL.so.1 (package libegl1)".

    Empty if nothing is missing, and outside Linux.
    """
    if sys.platform != "linux":
        return []  # train.py asks for EGL on Linux only
    return [
        f"{' or '.join(files)} ({source})" for files, source in NEEDED if not any(map(loads, files))
    ]


def problem() -> str:
    """A sentence on what is missing; empty if nothing is."""
    missing = missing_libraries()
    if not missing:
        return ""
    return (
        f"mujoco cannot render here: no {', no '.join(missing)}. "
        "The packages are those of Debian and Ubuntu (apt-get install)."
    )


if __name__ == "__main__":
    found = problem()
    if found:
        print(found)
    sys.exit(bool(found))
