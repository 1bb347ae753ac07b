"""How a command begins and ends: with all that it needs, alone in its folder, and stopped by a signal."""

import argparse
import contextlib
import fcntl
import importlib.util
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from demo.runner.errors import DemoError

NEEDED_PACKAGES = ("torch", "ray", "transformers", "hydra", "pyarrow", "matplotlib", "psutil")
NEEDED_DISK_MB = 300  # the results take about 10 MB, Ray's files and its object store the rest
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end."""

    def __init__(self, number: int):
        self.number = number


def stop_on_signals() -> None:
    """From now on a signal that asks to end raises Stopped, once."""

    def stop(number, frame):
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not cut the cleaning-up short
        raise Stopped(number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, stop)


def exit_code(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Runs the demo's command; what ends it early becomes one message and an exit code."""
    try:
        command(arguments)
    except Stopped as stopped:
        print(f"\ndemo: stopped by {signal.Signals(stopped.number).name}; finished runs are kept", file=sys.stderr)
        return 128 + stopped.number
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\ndemo: {error.strerror or error}: {error.filename or arguments.out}", file=sys.stderr)
        return 1
    return 0


def whole_number(least: int) -> Callable[[str], int]:
    """Reads an argument."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) < 2**31):
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {2**31 - 1}, got {text!r}")
        return int(text)

    return convert


def check(checkout: Path, out: Path) -> None:
    """Finds what would stop a command half-way."""
    need_packages(NEEDED_PACKAGES)
    need_plain_path(sys.executable)
    need_overlay(checkout, "verl", "verl/trainer/main_ppo.py", "verl/utils/era.py")
    need_room(out, NEEDED_DISK_MB)


def need_packages(names: tuple[str, ...], target: str = "demo") -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(
            f"{sys.executable} lacks {', '.join(missing)}. `rm -f .venv/cpu/installed; make {target}` makes an environment that has "
            "all; by hand: pip install -r requirements/cpu.txt"
        )


def need_plain_path(python: str) -> None:
    """Ray starts its workers in a shell, with Python's path as it is (exec_worker in runtime_env/context.py of 2.46.0).

    Where that fails it waits five minutes for them."""
    if odd := "".join(sorted(set(re.findall(r"[^\w./+,:@%=-]", python)))):
        raise DemoError(
            f"Ray cannot start its processes with {python}, because of the characters {odd!r} in that path. Move this project to a "
            "folder without them, then run the command again. Nothing was started."
        )


def need_overlay(checkout: Path, upstream: str, *files: str) -> None:
    for file in files:
        if not (checkout / file).is_file():
            raise DemoError(
                f"{checkout} is not {upstream} with the ERA overlay: no {file} there. Run: python apply.py apply {upstream}"
            )


def need_room(out: Path, megabytes: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free / 1e6
    if free < megabytes:
        raise DemoError(f"{out}: {free:.0f} MB free on this disk, {megabytes} MB needed. Free some or choose --out")


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(
                f"another demo is writing to {out}. Wait for it, or choose another folder with --out"
            ) from None
        yield
