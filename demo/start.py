"""How a command begins and ends: with all that it needs, alone in its folder, and stopped by a signal."""

import contextlib
import fcntl
import importlib.util
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from demo.errors import DemoError

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


def check(checkout: Path, out: Path) -> None:
    """Finds what would stop a command half-way."""
    missing = [name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(
            f"{sys.executable} lacks {', '.join(missing)}. `make demo` makes an environment that has all; "
            "by hand: pip install -r requirements/cpu.txt"
        )
    for file in ("verl/trainer/main_ppo.py", "verl/utils/era.py"):
        if not (checkout / file).is_file():
            raise DemoError(f"{checkout} is not verl with the ERA overlay: no {file} there. Run: python apply.py apply verl")
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free / 1e6
    if free < NEEDED_DISK_MB:
        raise DemoError(f"{out}: {free:.0f} MB free on this disk, {NEEDED_DISK_MB} MB needed. Free some or choose --out")


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo is writing to {out}. Wait for it, or choose another folder with --out") from None
        yield
