"""What upstream's own linter says of the checkout: an engineer who merges it into a fork runs verl's pre-commit."""

import subprocess
import sys


def ruff(tree, *arguments):
    command = [sys.executable, "-m", "ruff", *arguments[:1], "--no-cache", *arguments[1:]]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_verls_own_ruff_settings_pass(patched_verl):
    """Of the layout only patched files are checked: at verl's 300 columns our own would be other files."""
    base = ["git", "-C", patched_verl, "diff", "--name-only", "upstream/v0.4.1", "HEAD"]
    changed, patched = (
        subprocess.run([*base, *more, "--", "*.py"], capture_output=True, text=True, check=True).stdout.split()
        for more in ([], ["--diff-filter=M"])
    )
    assert len(changed) > len(patched) > 3
    ruff(patched_verl, "check", *changed)
    ruff(patched_verl, "format", "--check", *patched)
