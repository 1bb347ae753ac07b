"""How a command begins and ends: its arguments, what it needs, alone in its folder, and stopped by a signal."""

import argparse
import contextlib
import fcntl
import importlib.util
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.runner.errors import DemoError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end."""

    def __init__(self, number: int):
        self.number = number


def stop_on_signals() -> None:
    """From now on a signal that asks to end raises Stopped, once."""

    def stop(number, frame):
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the cleaning up
        raise Stopped(number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, stop)


def exit_code(
    command: Callable[[argparse.Namespace], int | None],
    arguments: argparse.Namespace,
    name: str = "demo",
    left: str = "finished runs are kept",
) -> int:
    """Runs the command. What ends it early becomes a message and an exit code: 128 + the signal's number, or 1."""
    stop_on_signals()
    try:
        return command(arguments) or 0
    except Stopped as stopped:
        print(f"\n{name}: stopped by {signal.Signals(stopped.number).name}; {left}", file=sys.stderr)
        return 128 + stopped.number
    except DemoError as error:
        print(f"\n{name}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"\n{name}: {error.strerror or error}: {error.filename or arguments.out}", file=sys.stderr)
    return 1


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) < 2**31):
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {2**31 - 1}, got {text!r}")
        return int(text)

    return convert


class _EachOnce(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise argparse.ArgumentError(self, f"{', '.join(map(str, twice))} given twice; each seed once")
        setattr(namespace, self.dest, values)


def add_seeds(parser: argparse.ArgumentParser, default: list[int], meaning: str) -> None:
    parser.add_argument(
        "--seeds", default=default, type=whole_number(0), nargs="+", action=_EachOnce, metavar="SEED", help=meaning
    )


def add_folders(parser: argparse.ArgumentParser, upstream: str, out: str) -> None:
    checkout = f"checkouts/{upstream.lower()}"
    parser.add_argument("--checkout", default=checkout, type=Path, help=f"{upstream} with the ERA overlay")
    parser.add_argument("--out", default=out, type=Path, help="folder of the results")


@dataclass(frozen=True)
class Needs:
    """What a demo needs.

    target: its name for make. files: of the checkout, the upstream's and the overlay's. environment: its name.
    """

    target: str
    packages: tuple[str, ...]
    megabytes: int
    upstream: str
    files: tuple[str, ...]
    environment: str = "cpu"


def check(needs: Needs, checkout: Path, out: Path) -> None:
    """Finds what would stop the demo half-way."""
    missing = [name for name in needs.packages if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(
            f"{sys.executable} lacks {', '.join(missing)}. `rm -f .venv/{needs.environment}/installed; make "
            f"{needs.target}` makes an environment that has them all; by hand: pip install -r "
            f"requirements/{needs.environment}.txt"
        )
    need_overlay(checkout, needs.upstream, *needs.files)
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free / 1e6
    if free < needs.megabytes:
        raise DemoError(f"{out}: {free:.0f} MB free on this disk, {needs.megabytes} MB needed. Free some space")


def need_overlay(checkout: Path, upstream: str, *files: str) -> None:
    for file in files:
        if not (checkout / file).is_file():
            advice = f"Run: python apply.py apply {upstream}"
            raise DemoError(f"{checkout} is not {upstream} with the ERA overlay: no {file} there. {advice}")


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Refuses to run beside another command that writes to the same folder."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo is writing to {out}. Wait for it, or end it") from None
        yield
