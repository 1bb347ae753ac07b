"""Running a program that downloads (git or pip), and killing it when it falls silent or writes without end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.context import Context
from engine.errors import SOURCE, Stop

MAX_DOWNLOAD = 4 << 30  # bytes on disk: more than any source tree
MAX_LOG = 1 << 20  # bytes: the end of what a downloader printed


def size_of(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # temporary files come and go
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def watched(context: Context, command: list[str], env: dict[str, str], silence: float, folder: Path) -> tuple[int, str]:
    """Run a downloader that writes to `folder`: its exit code and what it printed.

    It is killed, with its helpers, at Ctrl-C, when it is silent for `silence` seconds, and when it writes without end.
    """
    context.trace(command)
    with tempfile.TemporaryFile() as log:
        # It inherits only the lock of its scratch folder: it may leave a daemon behind (git's credential-cache).
        more = {"start_new_session": True, "pass_fds": context.locks[-1:]}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, **more)
        try:
            size, heard = 0, time.monotonic()
            while not exited(process):
                context.check_interrupt()
                grown = os.fstat(log.fileno()).st_size + size_of(folder)
                if grown > MAX_DOWNLOAD:
                    raise Stop(
                        SOURCE, f"the download was stopped: over {MAX_DOWNLOAD} bytes came, more than any source tree"
                    )
                if grown != size:
                    size, heard = grown, time.monotonic()
                elif time.monotonic() - heard > silence:
                    raise Stop(SOURCE, f"the download stalled: nothing came for {silence:.0f} s")
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # git-remote-https and index-pack too
                process.wait()
        log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_LOG))
        text = log.read().decode("utf-8", "replace")
    text = "".join(char if char.isprintable() or char in "\r\n\t" else "?" for char in text)  # from a server
    if context.verbose:
        print(text.rstrip(), file=sys.stderr)
    return process.returncode, text


def exited(process: subprocess.Popen) -> bool:
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return False
    return True
