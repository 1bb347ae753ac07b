"""What the smoke runs share: their command, and starting an experiment of timm's or FastTD3's recipe."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from demo.runner.command import add_folders, exit_code
from demo.runner.errors import DemoError

RECIPE = "recipes/era"
SECONDS_TO_END = 90


def experiments(checkout: Path) -> list[str]:
    """Those of the recipe, in its order."""
    command = [sys.executable, "-c", "import runs; print(*runs.EXPERIMENTS)"]
    return subprocess.run(command, cwd=checkout / RECIPE, capture_output=True, text=True, check=True).stdout.split()


def choose(checkout: Path, names: list[str]) -> list[str]:
    """The experiments with these names, in the recipe's order; all of them if there are no names."""
    return selected(names, experiments(checkout), "experiment")


def selected(names: list[str], known: list[str], kind: str) -> list[str]:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DemoError(f"no {kind} {', '.join(unknown)}. There are:\n    " + "\n    ".join(known))
    return [name for name in known if name in names] if names else known


def launch(checkout: Path, experiment: str, flags: list[str], variables: dict[str, str], log=None) -> int:
    """Runs the recipe's launcher and returns its exit code. Asked to end, it ends its own processes.

    variables: of the environment; an empty one counts as not set. log: for its output, by default this process's.
    """
    process = subprocess.Popen(
        [sys.executable, str(checkout.resolve() / RECIPE / "launch.py"), experiment, *flags],
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log and subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)


def run(command: Callable[[argparse.Namespace], int], description: str, kind: str, upstream: str, out: str) -> int:
    """Runs a smoke command with the command line's arguments. kind: what the names it takes are names of."""
    parser = argparse.ArgumentParser(prog=description.split()[2], description=description)
    parser.add_argument("names", nargs="*", metavar=kind.upper(), help=f"{kind} of the checkout's recipe; default: all")
    add_folders(parser, upstream, out)
    return exit_code(command, parser.parse_args(), "smoke", "nothing is left running")
