# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

if importlib.util.find_spec("vllm"):  # else all is skipped, and pytest goes on to other folders
    folders = ("tests/rehearsal/vllm/site", ".", "tests/llm", "tests/llm/with_trl", "tests/llm/current")
    sys.path[:0] = [str(ROOT / folder) for folder in folders]
    # For this process and its children. Models this small compute faster than they compile or start workers.
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(sys.path[: len(folders)]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by default nearly all of the memory
        "TORCH_COMPILE_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
