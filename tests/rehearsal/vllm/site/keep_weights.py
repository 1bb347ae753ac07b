# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A plugin of vLLM, which loads it in each of its processes."""


def keep_weights():
    """Linear layers stay as torch computes them.

    vLLM's oneDNN packs their weights on a CPU and drops the originals, so that new weights could not be loaded.
    """
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
