# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""timm's own tests, on a patched checkout and on the upstream it was made from.

    python -m tools.timm_tests CHECKOUT

runs all of timm's tests but those of its optimizers and, of the models', those of a few families without pretrained
weights. It prints how many had which outcome, and every test whose outcome differs; the exit code is 1 if any does.
"""

import collections
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import junit

CHOSEN = "not test_models or not pretrained and (-resnet18 or -vit_tiny or -mobilenetv3_small)"  # not crossvit_tiny
LEFT_OUT = "test_optim.py"  # long, needs a package of its own, and meets no patched line


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    checkout, found = Path(sys.argv[1]).resolve(), {}
    with tempfile.TemporaryDirectory() as temporary:
        # The tests are away from the tree: they are a package, so pytest would import the timm beside them.
        upstream, tests = Path(temporary, "upstream"), Path(temporary, "tests")
        for folder in (upstream, tests):
            folder.mkdir()
        tag = ["git", "-C", checkout, "describe", "--tags", "--match=upstream/*", "--abbrev=0"]
        pinned = subprocess.run(tag, capture_output=True, text=True).stdout.strip()
        if not pinned:
            sys.exit(f"error: {checkout} is no checkout of apply.py: git finds no tag upstream/... there.")
        archive = subprocess.run(["git", "-C", checkout, "archive", pinned], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", upstream], input=archive.stdout, check=True)
        (upstream / "tests").rename(tests)
        for name, tree in (("upstream", upstream), ("patched", checkout)):
            chosen = ["-k", CHOSEN, f"--rootdir={tests}", f"--ignore={tests / LEFT_OUT}", tests]
            outcomes = junit.outcomes(sys.executable, chosen, tests, PYTHONPATH=str(tree))
            found[name] = {test: kind for test, (kind, _) in outcomes.items()}
            counts = collections.Counter(found[name].values())
            print(f"{name}: {', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}", flush=True)
    before, after = found.values()
    different = sorted(test for test in before | after if before.get(test) != after.get(test))
    for test in different:
        print(f"  {test}: {before.get(test, 'absent')} in upstream, {after.get(test, 'absent')} in the patched timm")
    print("The outcome of every test is the same." if not different else f"{len(different)} tests differ.")
    return 1 if different or not before else 0


if __name__ == "__main__":
    sys.exit(main())
