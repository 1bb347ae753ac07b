# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""timm's own tests, on a patched checkout and on the upstream it was made from.

    python -m tools.timm_tests CHECKOUT

runs timm's tests except the optimizers'; of the models' it runs only those of a few families, without pretrained
weights. It prints pytest's counts, and every outcome that differs; the exit code is 1 if any does.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CHOSEN = "not test_models or not pretrained and (-resnet18 or -vit_tiny or -mobilenetv3_small)"  # not crossvit_tiny
LEFT_OUT = "test_optim.py"  # long, needs a package of its own, and meets no patched line
FLAGS = ["-q", "-rfEsxXp", "--tb=no", "--no-header", "--disable-warnings", "-p", "no:cacheprovider"]


def outcomes(tree: Path, tests: Path) -> set[str]:
    """The outcomes of timm's tests in a tree, as `FAILED test_layers.py::test_pool`; of skipped tests their places."""
    chosen = ["-k", CHOSEN, f"--rootdir={tests}", f"--ignore={tests / LEFT_OUT}", tests]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "pytest", *FLAGS, *chosen]
    lines = subprocess.run(command, cwd=tests, env=environment, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    print(lines[-1] if lines else "pytest printed nothing", flush=True)
    return {line.partition(" - ")[0] for line in lines if re.match("PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS", line)}


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    checkout, outcomes_in = Path(sys.argv[1]).resolve(), {}
    with tempfile.TemporaryDirectory() as temporary:
        # The tests are moved out of the tree: as they are a package, pytest would import the timm beside them.
        upstream, tests = Path(temporary, "upstream"), Path(temporary, "tests")
        for folder in (upstream, tests):
            folder.mkdir()
        tag = ["git", "-C", checkout, "describe", "--tags", "--match=upstream/*", "--abbrev=0"]
        pinned = subprocess.run(tag, capture_output=True, text=True).stdout.strip()
        if not pinned:
            sys.exit(f"error: {checkout} is not a checkout of apply.py: git finds no tag upstream/... there.")
        archive = subprocess.run(["git", "-C", checkout, "archive", pinned], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", upstream], input=archive.stdout, check=True)
        (upstream / "tests").rename(tests)
        for name, tree in (("upstream", upstream), ("patched", checkout)):
            print(f"{name}: ", end="", flush=True)
            outcomes_in[name] = outcomes(tree, tests)
    for name, other in (("upstream", "patched"), ("patched", "upstream")):
        for line in sorted(outcomes_in[name] - outcomes_in[other]):
            print(f"  {name} alone: {line}")
    before, after = outcomes_in.values()
    print("The outcome of every test is the same." if before == after else "Outcomes differ.")
    return 0 if before and before == after else 1


if __name__ == "__main__":
    sys.exit(main())
