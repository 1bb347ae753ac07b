"""Paths and files: checks of paths, files written whole, lock files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from engine.errors import INTERRUPTED, USAGE, Stop

# Caches, build products, editors' and our own temporary files: never part of an overlay, never reported as edits.
JUNK_PATTERNS = ("__pycache__/", "*.py[cod]", "*.egg-info/", ".DS_Store", ".era-new-*", "*~", ".*.sw?")
JUNK = re.compile(
    r"(^|/)(__pycache__|[^/]*\.egg-info|\.DS_Store)(/|$)|\.py[cod]$|(^|/)\.era-new-[^/]*$|~$|(^|/)\.[^/]*\.sw.$"
)


def absolute(path: str) -> Path:
    """The real path behind one that the user gave."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a loop of links; a ~user that does not exist
        raise Stop(USAGE, f"{path} is not a path: {error}") from None


def check_path(path: str, where: str, code: int = USAGE) -> str:
    """A path inside a tree: relative, without `..`, outside of any .git folder, without control characters."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        problem = "absolute, empty or pointing upwards"
    elif any(part.lower() == ".git" for part in parts):
        problem = "inside a .git folder"
    elif "\\" in path or '"' in path or not path.isprintable():
        problem = "with a control character, a quote or a backslash"
    else:
        return path
    raise Stop(code, f"{where}: the path {path!r} is {problem}", "nothing was changed")


def parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def is_listed(path: str, places: tuple[str, ...]) -> bool:
    """Whether a list of files and folders (ending in /) covers the path."""
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as data:
        for chunk in iter(lambda: data.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def temporary_name(path: Path) -> Path:
    """Where a file's new content is written before it replaces the file. File systems allow names of 255 bytes."""
    name = f".era-new-{path.name}"
    if len(os.fsencode(name)) > 255:
        name = f".era-new-{sha256(os.fsencode(path.name))}"
    return path.with_name(name)


def write_file(path: Path, content: bytes, mode: int | None = None, check: Callable[[], None] = lambda: None) -> None:
    """Write the whole file or nothing: the content is on disk before the rename, which follows right after `check`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_name(path)
    part.unlink(missing_ok=True)  # it could be a symbolic or hard link to another file
    try:
        with open(part, "xb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        if mode is not None:
            part.chmod(mode)
        check()
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


@contextlib.contextmanager
def locked(context, path: Path, wait: float, what: str):
    """Hold a lock file, or lock a folder, which needs no file of ours in it. The kernel releases it when we exit."""
    folder = path.is_dir()
    if not folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline, told = time.monotonic() + wait, False
        while not try_lock(handle):
            context.check_interrupt()
            if time.monotonic() > deadline:
                owner = "" if folder else os.pread(handle, 32, 0).decode("ascii", "replace").strip()
                raise Stop(
                    INTERRUPTED,
                    f"another apply.py (process {owner or 'unknown'}) is working on {what}",
                    f"waited {wait:.0f} s; run the command again when it is done. Nothing was changed",
                )
            if not told:
                context.say(f"waiting for another apply.py that is working on {what} ...")
                told = True
            time.sleep(0.1)
        if not folder:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        with context.holding(handle):
            yield
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
