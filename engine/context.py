"""The state of one call of apply.py: output, hints, locks, scratch folders, and where Ctrl-C takes effect."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from engine.files import try_lock


@dataclasses.dataclass
class Context:
    verbose: bool = False
    json: bool = False  # one object on stdout, so lines for people go to stderr
    scratch: Path | None = None  # the folder for temporary files, inside the cache
    places: list[str] = dataclasses.field(default_factory=list)  # the folder options, which hints repeat
    only: str = ""  # the one upstream that --checkout names
    locks: list[int] = dataclasses.field(default_factory=list)  # inherited by every local git that we start
    interruptible: bool = True
    # What a run that ended right now would leave behind; all are empty as long as nothing was changed.
    advice: str = ""  # half-way: what to do
    done: str = ""  # what was completed
    saved: str = ""  # a file with the user's edits, written before the switch

    def say(self, text: str) -> None:
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def trace(self, command: list[str]) -> None:
        if self.verbose:
            print("+ " + " ".join(command), file=sys.stderr, flush=True)

    def command(self, verb: str, name: str = "", *more: str, checkout: Path | None = None) -> str:
        """A command for the user to copy, for the folders of this run or for another checkout."""
        places = self.places
        if checkout is not None:
            cache = places.index("--cache") if "--cache" in places else len(places)
            places = ["--checkout", str(checkout), *places[cache : cache + 2]]
        words = [verb, name or self.only, *more, *places]
        return "python apply.py " + shlex.join(word for word in words if word)

    # --- how a run ends ---

    @property
    def left(self) -> str:
        """What a run that ends right now leaves behind, in words."""
        kept = f", except that your edits are saved in {self.saved}" if self.saved else ""
        return self.advice or self.done or f"nothing was changed{kept}"

    def check_interrupt(self) -> None:
        """Ctrl-C takes effect here and nowhere else: apply.py blocks SIGINT before it imports the engine."""
        if self.interruptible and signal.SIGINT in signal.sigpending():
            signal.sigwait({signal.SIGINT})
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def uninterrupted(self):
        """Ctrl-C waits until this is over, so it never finds a change that is only half made."""
        self.interruptible = False
        try:
            yield
        finally:
            self.interruptible = True

    # --- locks and scratch folders ---

    @contextlib.contextmanager
    def holding(self, handle: int):
        """What we start while holding a lock holds it too: a git may still be writing after apply.py was killed."""
        self.locks.append(handle)
        try:
            yield
        finally:
            self.locks.remove(handle)

    @contextlib.contextmanager
    def scratch_folder(self, kind: str):
        """A temporary folder with our process id in its name, locked as long as we run."""
        with tempfile.TemporaryDirectory(prefix=f"era-{kind}-{os.getpid()}-", dir=self.writable_scratch()) as folder:
            handle = os.open(folder, os.O_RDONLY)
            try:
                try_lock(handle)
                with self.holding(handle):
                    yield Path(folder)
            finally:
                os.close(handle)

    def writable_scratch(self) -> Path | None:
        """None, which is the system's own folder, if the cache cannot be written: some verbs need no cache."""
        with contextlib.suppress(OSError):
            if self.scratch:
                self.scratch.mkdir(parents=True, exist_ok=True)
                return self.scratch if os.access(self.scratch, os.W_OK) else None
        return None

    def sweep_scratch(self) -> None:
        """Remove what killed processes left. Containers that share a cache share locks, but not process ids."""
        for folder in self.scratch.glob("era-*-*-*") if self.scratch and self.scratch.is_dir() else []:
            found = re.fullmatch(r"era-[a-z]+-(\d+)-.*", folder.name)
            if not found or alive(int(found[1])):
                continue
            with contextlib.suppress(OSError):
                handle = os.open(folder, os.O_RDONLY)
                try:
                    if try_lock(handle):
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(handle)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
