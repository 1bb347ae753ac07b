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
"""The libraries that mujoco needs to render without a screen, which train.py asks for (MUJOCO_GL=egl).

HumanoidBench renders always; without these libraries, importing mujoco ends in an AttributeError that names none of them.
As a script: prints what is missing, exit code 1; nothing and 0 if all is there. Needs the standard library only.
"""

import ctypes
import sys
from typing import List

# Any one of these files is enough, and what has it.
NEEDED = (
    (("libEGL.so.1",), "package libegl1"),
    (("libOpenGL.so.0", "libGL.so.1"), "package libgl1"),
    (
        ("libEGL_nvidia.so.0", "libEGL_mesa.so.0"),
        "the NVIDIA driver, in a container with NVIDIA_DRIVER_CAPABILITIES=all; or package libegl-mesa0",
    ),
)


def loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def missing_libraries() -> List[str]:
    """For each that is missing, its file and what has it: "libEGL.so.1 (package libegl1)". Empty if all is there, and off Linux."""
    if sys.platform != "linux":
        return []  # train.py asks for EGL on Linux only
    return [
        f"{' or '.join(files)} ({source})" for files, source in NEEDED if not any(map(loads, files))
    ]


def problem() -> str:
    """A sentence on what is missing; empty if all is there."""
    missing = missing_libraries()
    if not missing:
        return ""
    return f"mujoco cannot render here: no {', no '.join(missing)}. The packages are those of Debian and Ubuntu (apt-get install)."


if __name__ == "__main__":
    found = problem()
    if found:
        print(found)
    sys.exit(bool(found))
