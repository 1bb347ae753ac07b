# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The command line of a demo."""

import argparse
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path


def make_parser(module: str, description: str, has_checkout: bool = True) -> argparse.ArgumentParser:
    """A parser with the arguments that all demos have; `--checkout`, where the upstream is a clone."""
    parser = argparse.ArgumentParser(prog=module, description=description)
    if has_checkout:
        parser.add_argument("--checkout", type=Path, help="folder of the upstream")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--fresh", action="store_true", help="train again even where there are finished runs")
    parser.add_argument("--check", action="store_true", help="check these arguments and stop")
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument: a whole number that is not below `least`."""

    def whole_number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"expected {least} or more, got {text}")
        return int(text)

    return whole_number


def seed_number(text: str) -> int:
    """The type of an argument: what NumPy takes as a seed, as the trainers need."""
    if not 0 <= int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"expected 0 to {2**32 - 1}, got {text}")
    return int(text)


def need_files(checkout: Path, *files: str, advice: str) -> None:
    for file in files:
        if not (checkout / file).is_file():
            sys.exit(f"demo: {checkout} has no {file}. Run: {advice}")


def introduce(text: str, out: Path) -> None:
    print(f"{textwrap.fill(text, 79)}\nLogs and results: {out}", flush=True)


def run(demo: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Runs the demo. What a user can cause ends it with a message instead of a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not arguments.check:
            demo(arguments)
    except KeyboardInterrupt:
        sys.exit("\ndemo: stopped; finished runs are kept")
    except ModuleNotFoundError as error:
        sys.exit(f"demo: {error} for {sys.executable}. The make target of this demo sets up a Python that has it")
    except OSError as error:
        sys.exit(f"demo: {error}")
