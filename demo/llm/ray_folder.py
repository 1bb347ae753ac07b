"""A folder for Ray's files, with a path short enough for Ray, and removed afterwards."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

# Ray's Unix sockets lie this far below its folder; an address holds 103 bytes on macOS and 107 on Linux.
_SOCKET = "/session_2025-01-31_23-59-59_999999_4194304/sockets/plasma_store"
LONGEST = 103 - len(_SOCKET)
LOCK_FILE = ".lock"
_NAME = re.compile(r"era-ray-(\d{1,9})-")  # the number is the process id of its demo


@contextlib.contextmanager
def ray_folder() -> Iterator[str]:
    """A new folder, in the temporary folder or, where its path would be too long, in /tmp."""
    base, prefix = tempfile.gettempdir(), f"era-ray-{os.getpid()}-"
    if len(f"{base}/{prefix}12345678") > LONGEST:
        base = "/tmp"
    folder = tempfile.mkdtemp(prefix=prefix, dir=base)
    try:
        with open(f"{folder}/{LOCK_FILE}", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Removes this user's folders for Ray whose demo is dead: one ended by SIGKILL could not do it itself."""
    for folder in {folder for base in (tempfile.gettempdir(), "/tmp") for folder in Path(base).glob("era-ray-*")}:
        with contextlib.suppress(OSError):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """The lock shows an owner in another container, whose process id says nothing here."""
    owner = _NAME.match(folder.name)
    if not owner or folder.is_symlink() or folder.stat().st_uid != os.getuid() or psutil.pid_exists(int(owner[1])):
        return False
    with (folder / LOCK_FILE).open() as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
