"""How a run ends and speaks, and what the file system asks for: exit codes, Stop, the screen, locks, files written whole.

Every other room may import this one; it imports none of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
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


class Call:
    """The options of this run that say on which folders it works, and the one upstream that --checkout names."""

    where: list[str] = []
    only = ""


call = Call()


def command(verb: str, name: str = "", *more: str, checkout: Path | None = None) -> str:
    """A command for the user to copy. It works on the folders of this run, or on another checkout of the upstream."""
    where = call.where
    if checkout is not None:
        cache = where.index("--cache") if "--cache" in where else len(where)
        where = ["--checkout", str(checkout), *where[cache : cache + 2]]
    words = [verb, name or call.only, *more, *where]
    return "python apply.py " + shlex.join(word for word in words if word)


class Unfinished:
    """What an end right now leaves behind; all empty while it leaves everything as it was."""

    advice = ""  # half-way: what to do
    done = ""  # complete: what was
    code = OK  # how a run ends that is stopped after that
    saved = ""  # a file of the user's that was written before the switch

    def clear(self) -> None:
        self.advice = self.done = self.saved = ""
        self.code = OK

    @property
    def truth(self) -> str:
        kept = f", except that your edits are saved in {self.saved}" if self.saved else ""
        return self.advice or self.done or f"nothing was changed{kept}"


unfinished = Unfinished()


@contextlib.contextmanager
def interrupts_held():
    """Ctrl-C waits here; what is started here never gets it."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def uninterrupted(done: str, code: int = OK):
    """Ctrl-C waits here, for git too, so that it finds either nothing changed or all of it."""
    with interrupts_held():
        yield
        unfinished.advice, unfinished.done, unfinished.code = "", done, code


class Scratch:
    """The folder for temporary files, inside the cache."""

    root: Path | None = None


scratch = Scratch()


inherited: list[int] = []  # handles of the locks that we hold, for every local git that we start


@contextlib.contextmanager
def holding(handle: int):
    """While a lock is held, what we start holds it with us: a git that outlives a killed apply.py is still at its work."""
    inherited.append(handle)
    try:
        yield
    finally:
        inherited.remove(handle)


@contextlib.contextmanager
def scratch_folder(kind: str):
    """A temporary folder that bears our process id and is locked while we live."""
    place = scratch.root
    try:
        if place:
            place.mkdir(parents=True, exist_ok=True)
    except OSError:
        place = None
    if place and not os.access(place, os.W_OK):  # a verb that needs no cache works without one
        place = None
    with tempfile.TemporaryDirectory(prefix=f"era-{kind}-{os.getpid()}-", dir=place) as folder:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with holding(handle):
                yield Path(folder)
        finally:
            os.close(handle)


def sweep_scratch() -> None:
    """Remove what killed processes left. A lock is seen across containers that share a cache, where ids are not."""
    for folder in scratch.root.glob("era-*-*-*") if scratch.root and scratch.root.is_dir() else []:
        found = re.fullmatch(r"era-[a-z]+-(\d+)-.*", folder.name)
        if not found or alive(int(found[1])):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        with holding(handle):
            yield
    finally:
        os.close(handle)


def new_name(name: str) -> str:
    """What a file is called beside its place until it is whole; a name that is as long as names may be has no room for more."""
    whole = f".era-new-{name}"
    return whole if len(os.fsencode(whole)) <= 255 else f".era-new-{hashlib.sha256(os.fsencode(name)).hexdigest()}"


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """All of a file or nothing, on disk before it bears its name."""
    part = write_beside(path, content, mode)
    try:
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_beside(path: Path, content: bytes, mode: int | None = None) -> Path:
    """The content of a file to be, beside its place and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(new_name(path.name))
    part.unlink(missing_ok=True)  # not written into: it may be a link, or a second name of a file that is whole
    try:
        with open(part, "xb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        if mode is not None:
            part.chmod(mode)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return part


def put_in_place(part: Path, path: Path, may_go: Callable[[Path], bool]) -> bool:
    """Bring `part` to `path`, or leave both as they are and say False where something else stands there.

    A look before a rename could miss what somebody saves in between. So names are exchanged at once, and `may_go` looks
    at what came out. Where the file system cannot exchange names, it looks before.
    """
    if not os.path.lexists(path):
        try:
            os.link(part, path, follow_symlinks=False)  # unlike a rename it does not go over a file that just appeared
        except FileExistsError:
            return False
        except OSError:  # no hard links here
            part.rename(path)
            return True
    elif exchange(part, path):
        fine = False
        try:
            fine = may_go(part)
        finally:
            if not fine:
                exchange(part, path)
        if not fine:
            return False
    else:
        if not may_go(path):
            return False
        part.replace(path)
        return True
    with contextlib.suppress(OSError):  # it is done; the next run removes what cannot be removed now
        part.unlink()
    return True


def take_away(path: Path, part: Path, may_go: Callable[[Path], bool]) -> bool:
    """Remove a file by way of the name `part`, or leave it and say False where something else stands there."""
    path.rename(part)
    fine = False
    try:
        fine = may_go(part)
    finally:
        if not fine:
            put_in_place(part, path, lambda _: False)  # what appeared there meanwhile stays, and `part` beside it
    if fine:
        part.unlink()
    return fine


def exchange(one: Path, other: Path) -> bool:
    """Two names change their files at once; False where the system or the file system cannot do that."""
    try:
        import ctypes  # only a switch or an export needs it
    except ImportError:  # a Python that was built without libffi
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0
