# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A wheel in fresh environments: `pip install WHEEL[extra]` for each extra, and the import of what it switches on.

    python -m tools.try_wheel dist/*.whl [--pythons 3.10 3.13] [--extras trl timm]

It prints the installed releases as a table, and exits with 1 where an installation or an import failed that should not,
or the other way round. uv makes one environment at a time, and finds the Pythons or downloads them: up to 10 GB, or a
quarter of it with UV_TORCH_BACKEND=cpu.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.hosts import HOSTS

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MATHEMATICS = tuple(f"era.{name}" for name in ("discrete", "continuous", "language", "log_probs", "log_probs_fused"))
# Of each extra: its package, and the modules of era that need it. What no extra installs is not tried, nor is
# Megatron.
EXTRAS = {
    "": ("torch", ()),
    **{host.extra: (package, host.modules) for package, host in HOSTS.items() if host.extra},
    "dev": ("pytest", ()),
}
UNAVAILABLE = {("brax", "3.10")}  # brax 0.14.2 needs Python 3.11

# What each environment runs, with package and modules as arguments; the last line that it prints is the table's cell.
IMPORT = """
import importlib, sys, traceback
from importlib.metadata import version
package, *modules = sys.argv[1:]
for name in modules:
    try:
        file = importlib.import_module(name).__file__
        assert "site-packages" in file, f"imported from {file}"
    except Exception as error:
        traceback.print_exc()
        print(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
        sys.exit(1)
print(version(package))
"""


def attempt(wheel: Path, extra: str, python: str) -> tuple[str, bool]:
    """The release that was installed, or what failed; and whether all modules could be imported."""

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder)

    package, modules = EXTRAS[extra]
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        run("uv", "venv", "--quiet", "--python", python, environment)
        wanted = f"{wheel}[{extra}]" if extra else wheel
        done = run("uv", "pip", "install", "--quiet", "--python", environment, wanted)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return "cannot be installed", False
        done = run(environment / "bin/python", "-I", "-c", IMPORT, package, *MATHEMATICS, *modules)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
        return done.stdout.strip().splitlines()[-1], done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.try_wheel", description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=lambda text: Path(text).resolve(strict=True))
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--extras", nargs="+", default=tuple(EXTRAS), choices=tuple(EXTRAS))
    arguments = parser.parse_args()
    problems = 0
    print(f"| extra | package | {' | '.join(arguments.pythons)} |\n|---|---|{'---|' * len(arguments.pythons)}")
    for extra in arguments.extras:
        cells = []
        for python in arguments.pythons:
            cell, works = attempt(arguments.wheel, extra, python)
            if works == ((extra, python) in UNAVAILABLE):  # otherwise than expected
                problems += 1
            cells.append(cell)
        print(f"| {extra or '(none)'} | {EXTRAS[extra][0]} | {' | '.join(cells)} |", flush=True)
    sys.exit(min(problems, 1))


if __name__ == "__main__":
    main()
