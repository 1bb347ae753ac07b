"""How a run ends and speaks, and what the file system asks for: exit codes, Stop, the screen, locks, files written whole.

Every other room may import this one; it imports none of them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: main() says so
    fcntl = None

OK, DRIFT, USAGE, WRONG_BASE, CONFLICT, LOCAL, SOURCE, INTERRUPTED = range(8)


class Stop(Exception):
    """An end that the user is told about: an exit code and lines, the first one saying what is wrong."""

    def __init__(self, code: int, *lines: str):
        super().__init__("\n".join(lines))
        self.code, self.lines = code, lines


def absolute(path: str) -> Path:
    """A path that the user gave, without ~ and links."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of links; a ~user that does not exist
        raise Stop(USAGE, f"{path} is not a path: {error}") from None


class Screen:
    """Where lines go: results to stdout, or out of the way of --json's one object."""

    verbose = False
    json = False

    def say(self, text: str) -> None:
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def trace(self, command: list[str]) -> None:
        if self.verbose:
            print("+ " + " ".join(command), file=sys.stderr, flush=True)


screen = Screen()
say = screen.say


def count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


def some(names: list[str], limit: int = 8) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


class Unfinished:
    """What to do after an end right now; empty while an end leaves everything as it was."""

    advice = ""


unfinished = Unfinished()


@contextlib.contextmanager
def locked(path: Path, wait: float, what: str):
    """Hold a lock file; the kernel drops the lock when its process ends, however it ends."""
    folder = path.is_dir()  # a folder can be locked too, and needs no file of ours in it
    if not folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline, told = time.monotonic() + wait, False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    owner = "" if folder else os.pread(handle, 32, 0).decode("ascii", "replace").strip()
                    raise Stop(
                        INTERRUPTED,
                        f"another apply.py (process {owner or 'unknown'}) is at work on {what}",
                        f"waited {wait:.0f} s; run the command again when it is done. Nothing was changed",
                    ) from None
                if not told:
                    say(f"waiting for another apply.py at work on {what} ...")
                    told = True
                time.sleep(0.1)
        if not folder:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """All of a file or nothing, on disk before it bears its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".era-new-{path.name}")
    with open(part, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    if mode is not None:
        part.chmod(mode)
    part.replace(path)
