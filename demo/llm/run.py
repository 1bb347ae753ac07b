"""One training run in processes of its own: started, followed, measured and, whatever happens, ended."""

import contextlib
import csv
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import psutil

from demo.llm import config, curves
from demo.runner.environment import ROOT, cleaned
from demo.runner.errors import DemoError

LOG_FILE, METRICS_FILE = "log.txt", "metrics.jsonl"
INFO_FILE = "run.json"
_TRAINING_CODE = ("chain.py", "config.py", "cpu_trainer.py", "cpu_worker.py", "curves.py", "warmup.py")
_PACKAGES = ("torch", "ray", "transformers", "tensordict", "numpy")
_POLL_SECONDS = 0.5

# Ray's Unix sockets lie this far below its folder; an address holds 103 bytes on macOS and 107 on Linux.
_RAY_SOCKET = "/session_2025-01-31_23-59-59_999999_4194304/sockets/plasma_store"
_LONGEST_RAY_DIR = 103 - len(_RAY_SOCKET)
_RAY_DIR_NAME = re.compile(r"era-ray-(\d{1,9})-")  # the number is the process id of its demo
_LOCK_FILE = ".lock"


def versions(packages: tuple[str, ...] = _PACKAGES) -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}


def machine(packages: tuple[str, ...] = _PACKAGES) -> dict:
    """What a recorded time depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    models = (
        [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")] if cpuinfo.exists() else []
    )
    model = models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine()
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(), "versions": versions(packages)}


def key(checkout: Path) -> dict:
    """What a result depends on besides its settings."""
    files = [ROOT / "demo" / name for name in _TRAINING_CODE]
    files += sorted(file for file in (checkout / "verl").rglob("*") if file.suffix in (".py", ".yaml"))
    return key_of(files, versions())


def key_of(files: list[Path], version_of: dict[str, str]) -> dict:
    """Of these files and versions. Python's patch releases compute alike."""
    return {"code": _digest(files), "versions": {**version_of, "python": ".".join(platform.python_version_tuple()[:2])}}


def _digest(files: list[Path]) -> str:
    sha = hashlib.sha256()
    for file in files:
        sha.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return sha.hexdigest()


def finished(folder: Path, key: dict) -> dict | None:
    """What is known of the finished run in the folder; None if there is none or it was made by other code."""
    info = _read_info(folder)
    return info if info and info.get("key") == key else None


def difference(folder: Path, key: dict, code_name: str = "the demo's or verl's code") -> str:
    """In words, between the finished run in the folder and one made now; empty if there is none."""
    info = _read_info(folder)
    old = info.get("key") if info else key
    if old == key:
        return ""
    old = old if isinstance(old, dict) else {}  # earlier demos kept a digest of everything
    before, now = old.get("versions", key["versions"]), key["versions"]
    changed = [f"{name} ({before.get(name)} then, {now[name]} now)" for name in now if before.get(name) != now[name]]
    code = [code_name] if old.get("code") != key["code"] else []
    return ", ".join(changed + code)


def _read_info(folder: Path) -> dict | None:
    try:
        return json.loads((folder / INFO_FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def finish(folder: Path, key: dict, **info) -> dict:
    """Marks the folder's content as complete; written last, so that what lacks it is made anew."""
    info = {"key": key, **info}
    (folder / INFO_FILE).write_text(json.dumps(info, indent=2) + "\n")
    return info


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def beside(folder: Path) -> Path:
    """Where the folder's content is made: what is in the folder stays until its replacement is finished."""
    return folder.with_name(f"{folder.name}.new")


def replace(folder: Path, new: Path) -> None:
    """At every moment the old content or the new one is complete under some name."""
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def train(
    settings: config.Settings,
    arm: str,
    checkout: Path,
    start: Path,
    folder: Path,
    key: dict,
    on_poll: Callable[[dict | None], None],
) -> dict:
    """Trains one arm from the model in `start` and writes its curves to `folder`.

    `on_poll` is called with the row of each new step, and with None about twice a second while there is none.
    """
    run = fresh(beside(folder)).resolve()
    overrides = config.overrides(settings, arm, folder.parent.resolve(), start.resolve(), run)
    began, peak, rows = time.monotonic(), 0, []
    with (
        _ray_dir() as ray_dir,
        (run / LOG_FILE).open("w") as log,
        _trainer(checkout, ray_dir, overrides, log, run / METRICS_FILE) as process,
    ):
        metrics = new_lines(run / METRICS_FILE)
        running = True
        while running:
            running = process.poll() is None  # asked before the last look at the file
            peak = max(peak, _memory(process.pid))
            new = [row for line in next(metrics) if (row := curves.step_row(run, json.loads(line)))]
            rows += new
            for row in new or [None]:
                on_poll(row)
            time.sleep(_POLL_SECONDS if running else 0)
    if process.returncode != 0 or len(rows) != settings.steps:
        raise DemoError(
            failure(arm, process.returncode, f"{len(rows)} of {settings.steps} steps", beside(folder) / LOG_FILE)
        )
    curves.write_csv(run / curves.STEPS_FILE, rows)
    curves.write_csv(run / curves.VALIDATION_FILE, curves.validation_rows(run))
    info = finish(run, key, seconds=time.monotonic() - began, peak_memory_bytes=peak, machine=machine())
    replace(folder, run)
    return info


@contextlib.contextmanager
def launch(command: list[str], checkout: Path, log, **variables: str) -> Iterator[subprocess.Popen]:
    """A process of `command`, in the checkout's environment with these variables, that trains in a Ray of its own.

    Whatever it started is killed on leaving, and the folder for Ray, its TMPDIR, removed.
    """
    with _ray_dir() as ray_dir, process_group(command, _environment(checkout, ray_dir) | variables, log) as process:
        yield process


def _trainer(
    checkout: Path, ray_dir: str, overrides: list[str], log, metrics: Path
) -> contextlib.AbstractContextManager[subprocess.Popen]:
    environment = _environment(checkout, ray_dir) | {"VERL_FILE_LOGGER_PATH": str(metrics)}
    return process_group([sys.executable, "-m", "demo.llm.cpu_trainer", ray_dir, *overrides], environment, log)


def _environment(checkout: Path, ray_dir: str) -> dict[str, str]:
    # A Ray cluster of the user's is not to be joined, nor the user's caches written to.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return cleaned(environment, checkout.resolve(), ROOT) | {
        "OMP_NUM_THREADS": "1",  # with 2 threads on two busy cores a step took ten times as long
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": ray_dir,  # some imports leave empty folders there
        "HF_HOME": f"{ray_dir}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }


@contextlib.contextmanager
def process_group(command: list[str], environment: dict[str, str], log) -> Iterator[subprocess.Popen]:
    """A process that leads a process group with all that it starts; the group is killed on leaving."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _kill_group(process)  # also after success: Ray's helpers may outlive the driver
        process.stdin.close()


def _kill_group(leader: subprocess.Popen) -> None:
    """Kills the leader's process group and waits until nobody is left in it (macOS calls a dying member not permitted).

    The wait has an end because in a container without an init process the dead stay listed.
    """
    deadline = time.monotonic() + 5
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
            time.sleep(0.05)


@contextlib.contextmanager
def _ray_dir() -> Iterator[str]:
    """A folder for Ray whose path is short enough for Unix sockets, however deep the results lie."""
    base, prefix = tempfile.gettempdir(), f"era-ray-{os.getpid()}-"
    folder = tempfile.mkdtemp(
        prefix=prefix, dir=base if len(f"{base}/{prefix}12345678") <= _LONGEST_RAY_DIR else "/tmp"
    )
    try:
        with open(f"{folder}/{_LOCK_FILE}", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Removes this user's folders for Ray whose demo is dead: one ended by SIGKILL cannot do it itself."""
    for folder in {folder for base in (tempfile.gettempdir(), "/tmp") for folder in Path(base).glob("era-ray-*")}:
        with contextlib.suppress(OSError):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """The lock tells of an owner in another container, whose process ids are not ours."""
    owner = _RAY_DIR_NAME.match(folder.name)
    if not owner or folder.is_symlink() or folder.stat().st_uid != os.getuid() or psutil.pid_exists(int(owner[1])):
        return False
    with (folder / _LOCK_FILE).open() as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def new_lines(file: Path) -> Iterator[list[str]]:
    """Each item: the complete lines that the file has gained since the item before."""
    position = 0
    while True:
        text = file.read_bytes()[position:] if file.exists() else b""
        complete = text[: text.rfind(b"\n") + 1]
        position += len(complete)
        yield complete.decode().splitlines()


def new_rows(file: Path) -> Iterator[list[dict[str, str]]]:
    """Each item: the rows that a CSV file with a header has gained since the item before."""
    header = None
    for lines in new_lines(file):
        if lines and header is None:
            header, *lines = lines
        yield list(csv.DictReader(lines, header.split(","))) if lines else []


def _memory(pid: int) -> int:
    """Resident memory in bytes of this process, the process `pid` and all its descendants, shared pages counted for each."""
    total = psutil.Process().memory_info().rss
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def failure(arm: str, returncode: int, done: str, log: Path) -> str:
    """In words, with the end of the log. `done`: how far the run came."""
    end = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with exit code {returncode}"
    tail = "\n".join(f"    {line[:300]}" for line in log.read_text(errors="replace").splitlines()[-15:])
    return f"the {arm} run {end} after {done}. The end of its log, {log}:\n{tail}"
