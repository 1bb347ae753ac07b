# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""One call of apply.py: how it ends, what it says to the user, its locks, and when Ctrl-C has an effect."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shlex
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

OK, DRIFT, USAGE, WRONG_BASE, CONFLICT, LOCAL, SOURCE, INTERRUPTED = range(8)  # apply.py --help says what they mean
STOPPED = 130  # Ctrl-C before anything was changed


class Stop(Exception):
    """The end of a run: an exit code and lines for the user, the first of which says what is wrong."""

    def __init__(self, code: int, *lines: str):
        super().__init__("\n".join(lines))
        self.code, self.lines = code, lines


@dataclasses.dataclass
class Session:
    """What all parts of the engine share during one call."""

    json: bool = False  # one JSON object on stdout, so lines for people go to stderr
    verbose: bool = False
    places: list[str] = dataclasses.field(default_factory=list)  # the folder options; hints repeat them
    locks: list[int] = dataclasses.field(default_factory=list)  # file handles; each local git inherits them
    scratch: str = ""  # a temporary folder of this call
    begun: str = ""  # while a change is half-made: what to do if the run ends right now


SESSION = Session()


def say(text: str) -> None:
    print(text, file=sys.stderr if SESSION.json else sys.stdout, flush=True)


def hint(*words: str) -> str:
    """Return a command for the user to copy, with the folders of this run."""
    return f"`python3 apply.py {shlex.join([*words, *SESSION.places])}`"


def shell_git(folder: Path, *words: str) -> str:
    """Return a git command for the user to copy."""
    return f"`{shlex.join(['git', '-C', str(folder), *words])}`"


def some(names: Iterable, limit: int = 8) -> str:
    names = [str(name) for name in names]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


@contextlib.contextmanager
def locked(folder: Path):
    """Hold the lock that lets one apply.py at a time work in a folder.

    Each local git inherits the lock. So a git that goes on after its apply.py was killed still holds it, and whoever
    gets the lock knows that no git of an earlier run is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another apply.py that is working in {folder} ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        SESSION.locks.append(handle)
        yield
    finally:
        if handle in SESSION.locks:
            SESSION.locks.remove(handle)
        os.close(handle)


@contextlib.contextmanager
def uninterrupted(advice: str):
    """Keep Ctrl-C from having an effect, on us and on a git that we start. `advice` is for a failure half-way."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    SESSION.begun = advice
    try:
        yield
        SESSION.begun = ""
    finally:
        signal.signal(signal.SIGINT, before)
