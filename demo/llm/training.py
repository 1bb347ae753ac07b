"""A training run of verl on a CPU: its processes, and the curves that are read from what verl writes."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas

from demo.llm import config, curves
from demo.llm.versions import VERSIONS
from demo.runner.environment import ROOT, cleaned
from demo.runner.processes import new_lines
from demo.runner.training import Training, begin, train

METRICS_FILE = "metrics.jsonl"


def train_arm(
    settings: config.Settings,
    arm: str,
    checkout: Path,
    start: Path,
    folder: Path,
    on_rows: Callable[[list[dict]], None] = lambda rows: None,
    others: Iterable[str] = (),
    fresh: bool = False,
) -> None:
    """Trains one arm from the model in `start` and writes its curves to `folder`, unless they are there.

    `on_rows` is called about twice a second with the rows of the new steps, if any. others: overrides that win.
    """
    run, rows = folder.resolve(), []

    def keep(new: list[dict]) -> None:
        rows.extend(new)
        on_rows(new)

    def complete() -> None:
        curves.write(run / curves.STEPS_FILE, pandas.DataFrame(rows))
        curves.write(run / curves.VALIDATION_FILE, curves.validations(run, settings.task))

    with ray_folder() as ray:
        overrides = config.overrides(settings, arm, folder.parent.resolve(), start.resolve(), run)
        training = Training(
            label=arm.upper(),
            folder=folder,
            command=[sys.executable, "-m", VERSIONS[settings.verl].trainer, ray, *overrides, *others],
            environment=_environment(checkout, ray) | {"VERL_FILE_LOGGER_PATH": str(run / METRICS_FILE)},
            rows=_step_rows(run, settings.task),
            length=settings.steps,
            unit="steps",
            show=lambda row: (
                f"reward {row['reward']:.2f}, entropy {row['response_entropy']:.2f}, "
                f"distinct {row['distinct_right']:.1f}"
            ),
            record=begin(f"verl {settings.verl}", settings.task, arm, settings.seed, settings.steps, checkout),
            on_rows=keep,
            complete=complete,
        )
        train([training], fresh)


def _step_rows(run: Path, task: str) -> Iterator[list[dict]]:
    for lines in new_lines(run / METRICS_FILE):
        rows = [curves.step_row(run, json.loads(line), task) for line in lines]
        yield [row for row in rows if row is not None]


def ray_folder() -> tempfile.TemporaryDirectory:
    """In /tmp, because the paths of Unix sockets, which Ray makes far below it, may have 103 bytes."""
    return tempfile.TemporaryDirectory(prefix="era-ray-", dir="/tmp", ignore_cleanup_errors=True)


def _environment(checkout: Path, ray: str) -> dict[str, str]:
    # Not to join a Ray cluster of the user's, nor to write to the user's caches.
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return cleaned(others, checkout.resolve(), ROOT) | {
        "OMP_NUM_THREADS": "1",  # with 2 threads on two busy cores a step took ten times as long
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": ray,  # some imports leave empty folders there
        "HF_HOME": f"{ray}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # a process for every CPU, most of which verl never uses
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
