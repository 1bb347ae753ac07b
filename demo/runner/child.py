# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Child processes that end with their parent, however it dies.

python -m demo.runner.child SCRIPT [ARGUMENTS] runs a script that knows nothing of this.
"""

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of this project


def environment(*path: Path, **variables: str) -> dict[str, str]:
    """The user's environment with one thread and only `path` as PYTHONPATH, as the user's may hold a stray torch.py."""
    search = os.pathsep.join(str(folder.resolve()) for folder in path)
    return {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", **variables}


@contextlib.contextmanager
def process_group(
    command: list[str], environment: dict[str, str], log, folder: Path | None = None
) -> Iterator[subprocess.Popen]:
    """A process with a process group of its own, which is killed on leaving with all that is in it.

    Its stdin is a pipe that closes when this process ends (see end_with_parent). folder: where it runs.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the second error: macOS, for a dying process
            os.killpg(process.pid, signal.SIGKILL)  # after success too: Ray's helpers may outlive the driver
        process.wait()
        process.stdin.close()


def end_with_parent() -> None:
    """From now on this process kills its process group as soon as its stdin, a pipe from its parent, is closed."""

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin: its lock, held by this thread, would abort the interpreter's exit
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
