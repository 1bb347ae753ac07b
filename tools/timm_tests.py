"""timm's own tests, on a patched checkout and on the upstream it was made from.

    python -m tools.timm_tests CHECKOUT

runs all of timm's tests but those of its optimizers and, of the models', those of a few families without pretrained
weights. It prints how many had which outcome, and every test whose outcome differs; the exit code is 1 if any does.
"""

import argparse
import collections
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FAMILIES = ("-resnet18", "-vit_tiny", "-mobilenetv3_small")  # of the names of timm, not "crossvit_tiny"
CHOSEN = f"not test_models or not pretrained and ({' or '.join(FAMILIES)})"
LEFT_OUT = "test_optim.py"  # long, needs a package of its own, and meets no patched line


def unpatched(checkout: Path, tree: Path) -> None:
    """Writes the upstream of the checkout into the folder `tree`."""
    git = ["git", "-C", checkout]
    describe = [*git, "describe", "--tags", "--match=upstream/*", "--abbrev=0"]
    tag = subprocess.run(describe, capture_output=True, text=True)
    if tag.returncode:
        sys.exit(f"error: {checkout} is no checkout of apply.py: git finds no tag upstream/... there. Nothing was run.")
    archive = subprocess.run([*git, "archive", tag.stdout.strip()], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)


def outcomes(tree: Path, tests: Path) -> dict[str, str]:
    """passed, skipped, failure or error of each test in the folder `tests`, with the timm in `tree`."""
    report = tests.with_name(f"{tests.name}.xml")
    flags = ["-q", "--tb=no", "--disable-warnings", "-p", "no:cacheprovider", f"--junitxml={report}", "-k", CHOSEN]
    command = [sys.executable, "-m", "pytest", *flags, f"--rootdir={tests}", f"--ignore={tests / LEFT_OUT}", tests]
    env = {**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    if subprocess.run(command, env=env, cwd=tests).returncode not in (0, 1):  # 1: some tests failed
        sys.exit(f"error: pytest could not run timm's tests on {tree}; its own message is above.")
    cases = ElementTree.parse(report).iter("testcase")
    kinds = ("failure", "error", "skipped")
    return {
        f"{case.get('classname')}::{case.get('name')}": next((k for k in kinds if case.find(k) is not None), "passed")
        for case in cases
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="timm with the ERA overlay")
    checkout = parser.parse_args().checkout.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        upstream, tests = Path(temporary, "upstream"), Path(temporary, "tests")
        upstream.mkdir()
        unpatched(checkout, upstream)
        # Away from the tree: they are a package, so pytest would import the timm beside them.
        (upstream / "tests").rename(tests)
        before, after = outcomes(upstream, tests), outcomes(checkout, tests)
    for name, found in (("upstream", before), ("patched", after)):
        counts = collections.Counter(found.values())
        print(f"{name}: {', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}")
    different = sorted(test for test in before.keys() | after.keys() if before.get(test) != after.get(test))
    for test in different:
        print(f"  {test}: {before.get(test, 'absent')} in upstream, {after.get(test, 'absent')} in the patched timm")
    print("The outcome of every test is the same." if not different else f"{len(different)} tests differ.")
    return 1 if different or not before else 0


if __name__ == "__main__":
    sys.exit(main())
