"""Child processes: started in a group of their own, followed by the files they write, and always ended."""

import contextlib
import csv
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


@contextlib.contextmanager
def process_group(
    command: list[str], environment: dict[str, str], log, folder: Path | None = None
) -> Iterator[subprocess.Popen]:
    """A process that leads a process group with all that it starts; the group is killed on leaving.

    Its stdin is a pipe that closes when this process ends (see child.end_with_parent). folder: where it runs.
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
        _kill_group(process)  # after success too: Ray's helpers may outlive the driver
        process.stdin.close()


def _kill_group(leader: subprocess.Popen) -> None:
    """Kills the leader's process group and waits until it is empty (macOS calls a dying member "not permitted").

    The wait is limited because in a container without an init process dead processes stay listed.
    """
    deadline = time.monotonic() + 5
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
            time.sleep(0.05)


def follow(process: subprocess.Popen, items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items one by one until the process has ended, the last one from after its end."""
    running = True
    while running:
        running = process.poll() is None
        yield next(items)


def new_lines(file: Path) -> Iterator[list[str]]:
    """Each item: the complete lines that were added to the file since the previous item."""
    position = 0
    while True:
        text = file.read_bytes()[position:] if file.exists() else b""
        complete = text[: text.rfind(b"\n") + 1]
        position += len(complete)
        yield complete.decode().splitlines()


def new_rows(file: Path) -> Iterator[list[dict[str, str]]]:
    """Each item: the rows that were added to a CSV file with a header since the previous item."""
    header = None
    for lines in new_lines(file):
        if lines and header is None:
            header, *lines = lines
        yield list(csv.DictReader([header, *lines])) if lines else []


def end_of(log: str) -> str:
    """The last lines of a log, indented for a message."""
    return "\n".join(f"    {line[:300]}" for line in log.splitlines()[-15:])
