# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Shared by the launchers for timm and FastTD3: settings, run folders and locks, GPUs, stopping."""

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent.parent
DEFAULT_OUTPUT = CHECKOUT / "output/era"
TIME_FOLDER = "time"  # in OUTPUT, for runs whose time per step is compared
COMMAND = "command.txt"  # in a run's folder
SECONDS_TO_KILL = 10
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Not carried by the exception: Ray's calls replace our KeyboardInterrupt by their own.
stop_signals_received: list[int] = []


class Refused(Exception):
    """Ends the launch with its message."""


def refuse_if_any(problems: list[str]) -> None:
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise Refused(f"This cannot start; nothing was changed:\n{lines}")


def is_on(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def checked(kind: Callable[[str], Any], fits: Callable[[Any], object]) -> Callable[[str], Any]:
    """A parser that raises ValueError where the value does not fit."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not fits(value):
            raise ValueError(text)
        return value

    return parse


def several(parse: Callable[[str], Any]) -> Callable[[str], tuple]:
    return lambda text: tuple(dict.fromkeys(map(parse, text.split())))


SEEDS = (
    several(checked(int, range(2**32).__contains__)),  # numpy's range
    "one or several integers from 0 to 2**32 - 1",
)


def read_variables(parsers: dict[str, tuple[Callable[[str], Any], str]]) -> tuple[dict, list[str]]:
    """Values of the environment variables that are set and not empty, and what is wrong with them.

    Args:
        parsers: for each variable a parser, and what it expects in words.
    """
    values, problems = {}, []
    for variable, (parse, expected) in parsers.items():
        text = os.environ.get(variable, "").strip()
        try:
            if text:
                values[variable] = parse(text)
        except ValueError:
            problems.append(f"{variable}={text}: {expected} expected.")
    return values, problems


def output_folder(compares_time: bool = False) -> Path:
    given = os.environ.get("OUTPUT")
    output = Path(os.path.abspath(given)) if given else DEFAULT_OUTPUT
    return output / TIME_FOLDER if compares_time else output


def local_gpus() -> int:
    """GPUs of this machine that CUDA may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def differing_words(one: list[str], other: list[str]) -> tuple[str, str]:
    """What is left of both without their common beginning and end."""
    begin = len(os.path.commonprefix([one, other]))
    one, other = one[begin:], other[begin:]
    end = len(os.path.commonprefix([one[::-1], other[::-1]]))
    return shlex.join(one[: len(one) - end]), shlex.join(other[: len(other) - end])


def command_problems(
    name: str,
    folder: Path,
    command: Iterable[str],
    compared: Callable[[list[str]], list[str]] = list,
) -> list[str]:
    """A folder with results must hold this very run.

    Args:
        compared: the words of a command that must be the same; by default all of them.
    """
    file = folder / COMMAND
    if not file.is_file():
        return [
            f"{name}: {folder} holds a run that was not started from here (no {COMMAND}). "
            "Move it away, or choose another OUTPUT."
        ]
    before, now = compared(shlex.split(file.read_text())), compared(list(command))
    if before == now:
        return []
    then, here = differing_words(before, now)
    return [
        f"{name}: {folder} holds a run with other flags (then: {then or 'nothing'}; "
        f"now: {here or 'nothing'}). Give the same flags to continue it, choose another OUTPUT, "
        "or move it away."
    ]


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[int | None]:
    """The file descriptor of the folder's lock; None where another launch holds it."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock.fileno()


def members(group: int) -> set[int]:
    """The processes of a group, and all that they have started."""
    found, children = [], {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            number, parent, its_group = int(stat.parent.name), int(fields[1]), int(fields[2])
            children.setdefault(parent, []).append(number)
            if its_group == group:
                found.append(number)
    for number in found:  # which grows
        found += children.get(number, [])
    return set(found)


def end(leader: subprocess.Popen, seconds: float) -> None:
    """Ends a process group: a training and all that it has started.

    distributed_train.sh ends at once, before its torchrun. torchrun ends its workers, after 30 s by
    force; they have sessions of their own, and must be killed with it if it is stuck.

    Args:
        seconds: to wait before what is left is killed.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
    try:
        leader.communicate(timeout=seconds)  # until the last process has closed the pipe, if any
    except subprocess.TimeoutExpired:
        for number in members(leader.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        try:
            leader.communicate(timeout=SECONDS_TO_KILL)
        except subprocess.TimeoutExpired:
            print(
                f"warning: kill -9 does not end all that process {leader.pid} has started; it may "
                "hold a GPU. Check that before you start the run again.",
                file=sys.stderr,
            )
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)  # FastTD3's environments may outlive train.py


def stop_on_signals() -> None:
    """From now on a signal that asks to end raises KeyboardInterrupt, once."""

    def stop(number: int, frame: object) -> None:
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not cut the ending short
        stop_signals_received.append(number)
        raise KeyboardInterrupt

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, stop)


def main(
    doc: str,
    experiments: Collection[str],
    launch: Callable[[str, list[str]], None],
    after_stop: str,
) -> int:
    """launch.py's command line.

    Args:
        launch: gets the experiment and the user's flags of train.py.
        after_stop: tells the user how to continue.
    """
    name, *added = sys.argv[1:] or [""]
    if {"-h", "--help"} & {name, *added}:
        print(f"{doc}\nEXPERIMENT: {', '.join(experiments)}")
        return 0
    if name not in experiments:
        known = ", ".join(experiments)
        print(
            f"error: no experiment {name!r}. There are: {known}. Nothing was changed.",
            file=sys.stderr,
        )
        return 2
    stop_on_signals()
    try:
        launch(name, added)
    except KeyboardInterrupt:
        number = stop_signals_received[0]
        print(f"\nstopped by {signal.Signals(number).name}{after_stop}", file=sys.stderr)
        return 128 + number
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


Lines = Callable[[list[Path]], list[str]]


def print_tables(doc: str, file: str, result_lines: Lines, time_lines: Lines) -> int:
    """results.py's command line.

    Args:
        file: by whose name a run's folder is found.
        result_lines, time_lines: make a table of runs' folders.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(doc)
        return 0
    given = [Path(name) for name in sys.argv[1:]] or [DEFAULT_OUTPUT]
    tables = []
    for lines, pattern in ((result_lines, "*"), (time_lines, f"{TIME_FOLDER}/*")):
        found = [found.parent for folder in given for found in folder.glob(f"{pattern}/{file}")]
        if found:
            tables.append("\n".join(lines(sorted(found))))
    if not tables:
        names = ", ".join(map(str, given))
        print(
            f"error: no run (no {file}) in {names}. Name the folder that was the runs' OUTPUT.",
            file=sys.stderr,
        )
        return 1
    print("\n\n".join(tables))
    return 0
