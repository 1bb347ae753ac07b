"""A training run of verl on a CPU: its processes, and the curves that are read from what verl writes."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from demo.llm import config, curves
from demo.llm.ray_folder import ray_folder
from demo.llm.versions import VERSIONS
from demo.runner.environment import ROOT, cleaned
from demo.runner.processes import new_lines, process_group
from demo.runner.results import key_of, unfinished
from demo.runner.tables import write_csv
from demo.runner.training import Training, train

UPSTREAM = "verl"
METRICS_FILE = "metrics.jsonl"


def key(checkout: Path, verl: str = "0.4.1") -> dict:
    """What a result depends on besides its settings."""
    version = VERSIONS[verl]
    files = sorted(file for file in (checkout / "verl").rglob("*") if file.suffix in (".py", ".yaml"))
    found = key_of([*version.code, *files], version.packages)
    return {**found, "versions": {**found["versions"], "verl": verl}}


def train_arm(
    settings: config.Settings,
    arm: str,
    checkout: Path,
    start: Path,
    folder: Path,
    key: dict,
    on_rows: Callable[[list[dict]], None],
    others: Iterable[str] = (),
) -> None:
    """Trains one arm from the model in `start` and writes its curves to `folder`.

    `on_rows` is called about twice a second with the rows of the new steps, if any. others: overrides that win.
    """
    run = unfinished(folder).resolve()
    rows, peak = [], 0

    def on_look(pid: int, new: list[dict]) -> None:
        nonlocal peak
        peak = max(peak, _memory(pid))
        rows.extend(new)
        on_rows(new)

    def complete() -> dict:
        write_csv(run / curves.STEPS_FILE, rows)
        write_csv(run / curves.VALIDATION_FILE, curves.validation_rows(run, settings.task))
        return {"peak_memory_bytes": peak}

    with ray_folder() as ray:
        overrides = config.overrides(settings, arm, folder.parent.resolve(), start.resolve(), run)
        training = Training(
            label=arm,
            folder=folder,
            command=[sys.executable, "-m", VERSIONS[settings.verl].trainer, ray, *overrides, *others],
            environment=_environment(checkout, ray) | {"VERL_FILE_LOGGER_PATH": str(run / METRICS_FILE)},
            rows=_step_rows(run, settings.task),
            length=settings.steps,
            unit="steps",
            on_look=on_look,
            complete=complete,
        )
        train([training], key)


def _step_rows(run: Path, task: str) -> Iterator[list[dict]]:
    for lines in new_lines(run / METRICS_FILE):
        rows = [curves.step_row(run, json.loads(line), task) for line in lines]
        yield [row for row in rows if row is not None]


@contextlib.contextmanager
def launch(command: list[str], checkout: Path, log, **variables: str) -> Iterator[subprocess.Popen]:
    """A process in the checkout's environment, with these variables added, that trains in a Ray of its own.

    Whatever it started is killed on leaving, and Ray's folder, its TMPDIR, is removed.
    """
    with ray_folder() as ray, process_group(command, _environment(checkout, ray) | variables, log) as process:
        yield process


def _environment(checkout: Path, ray: str) -> dict[str, str]:
    # Not to join a Ray cluster of the user's, nor to write to the user's caches.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return cleaned(environment, checkout.resolve(), ROOT) | {
        "OMP_NUM_THREADS": "1",  # with 2 threads on two busy cores a step took ten times as long
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": ray,  # some imports leave empty folders there
        "HF_HOME": f"{ray}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # a process for every CPU, most of which verl never uses
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }


def _memory(pid: int) -> int:
    """Resident bytes of this process, process `pid` and its descendants; shared pages count once for each."""
    total = psutil.Process().memory_info().rss
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total
