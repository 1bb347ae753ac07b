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
"""Says once that a loss rewards entropy although ERA holds it."""

import warnings

import torch


class EntropyBonusWarning:
    """Watches the gradient of an entropy or a log-prob: a policy never sees its loss's coefficient.

    Args:
        message: the warning where that gradient is not 0.
    """

    def __init__(self, message: str):
        self.message = message
        self.decided = False

    def watch(self, x: torch.Tensor) -> torch.Tensor:
        """x itself, of any shape. The first backward pass through it decides for all later ones."""
        if x.requires_grad and not self.decided:
            x.register_hook(self.decide)
        return x

    def decide(self, gradient: torch.Tensor) -> None:
        if not self.decided and bool(gradient.any()):
            warnings.warn(self.message, stacklevel=2)
        self.decided = True
