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
"""mujoco_playground as the Python index has it (`pip install playground`), for FastTD3.

FastTD3 asks for a fork of it, whose environments tell the observation before the automatic reset at an episode's end.
"""

from typing import Optional

import jax
from mujoco_playground import wrapper_torch

__all__ = ["gpu_rank", "wrapper_torch"]


def gpu_rank(rank: Optional[int]) -> Optional[int]:
    """None where JAX has no GPU: FastTD3 would ask for the GPU of this number."""
    return None if jax.default_backend() == "cpu" else rank
