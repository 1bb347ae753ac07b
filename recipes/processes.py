# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Child processes that leave nothing running: those of grids, demos and rivals.

A child is started as the leader of a process group of its own, and `process_group` ends that group, not the child
alone: torchrun's shell script, environments and Ray's helpers may outlive the child. If the parent is killed by
`kill -9`, a child that has called `end_with_parent` ends too, as a demo's does; without that call it trains on, as a
grid's run does, which holds its folder's lock.

python -m recipes.processes SCRIPT [ARGUMENTS] runs a script that knows nothing of this, with `end_with_parent`.
"""

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def process_group(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: IO | None,
    folder: Path | None = None,
    ends_with_parent: bool = True,
    seconds_to_end: float = 0,
    inherited: Sequence[int] = (),
) -> Iterator[subprocess.Popen]:
    """Start a process, and on leaving end it with all that is in its process group.

    Args:
        log: the file for stdout and stderr; None leaves them as this process's.
        folder: where the process runs; None is this process's folder.
        ends_with_parent: whether stdin is a pipe that closes when this process ends, however it ends; the child must
            call `end_with_parent`. If not, stdin is empty.
        seconds_to_end: how long the group has between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
        inherited: descriptors of files, beside the log, that the process keeps open: a lock.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE if ends_with_parent else subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=inherited,
    )
    try:
        yield process
    finally:
        _end(process, seconds_to_end)
        if process.stdin:
            process.stdin.close()


def _end(process: subprocess.Popen, seconds: float) -> None:
    """End what is left of the process's group, after success too, and collect its exit code."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the second error: macOS, for a dying process
        if seconds:
            os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)  # raises once none is left
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_with_parent() -> None:
    """From now on, kill this process's group as soon as its stdin, a pipe from its parent, is closed."""

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin: its lock, held by this thread, would abort the interpreter's exit
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
