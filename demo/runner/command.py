"""How a command begins and ends: its arguments, what it needs, alone in its folder, and stopped by a signal."""

import argparse
import contextlib
import fcntl
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
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


def exit_code(demo: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Runs the demo. What ends it early becomes a message and an exit code: 128 + the signal's number, or 1."""
    stop_on_signals()
    try:
        demo(arguments)
        return 0
    except Stopped as stopped:
        print(f"\ndemo: stopped by {signal.Signals(stopped.number).name}; finished runs are kept", file=sys.stderr)
        return 128 + stopped.number
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"\ndemo: {error} for {sys.executable}. `make demo` sets up a Python that has it", file=sys.stderr)
    except OSError as error:
        print(f"\ndemo: {error.strerror or error}: {error.filename or arguments.out}", file=sys.stderr)
    return 1


def introduce(text: str, out: Path) -> None:
    print(f"{textwrap.fill(text, 79)}\nLogs and results: {out}", flush=True)


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) < 2**31):
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {2**31 - 1}, got {text!r}")
        return int(text)

    return convert


def add_seeds(parser: argparse.ArgumentParser, default: list[int], meaning: str) -> None:
    parser.add_argument("--seeds", default=default, type=whole_number(0), nargs="+", metavar="SEED", help=meaning)


def add_folders(parser: argparse.ArgumentParser, upstream: str, out: str) -> None:
    checkout = f"checkouts/{upstream.lower()}"
    parser.add_argument("--checkout", default=checkout, type=Path, help=f"{upstream} with the ERA overlay")
    parser.add_argument("--out", default=out, type=Path, help="folder of the results")


def add_switches(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fresh", action="store_true", help="train again even where there are finished runs")
    parser.add_argument("--check", action="store_true", help="check these arguments and stop")


def need_overlay(checkout: Path, upstream: str, *files: str) -> None:
    for file in files:
        if not (checkout / file).is_file():
            advice = f"Run: python3 apply.py apply {upstream}"
            raise DemoError(f"{checkout} is not {upstream} with the ERA overlay: no {file} there. {advice}")


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Refuses to run beside another command that writes to the same folder, which is made if it is not there."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo is writing to {out}. Wait for it, or end it") from None
        yield
