# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A training run of verl on a CPU: its process."""

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from demo.llm import config, curves
from demo.runner import training as runner
from recipes import PROJECT

SHOWN = ["step", "reward", "response_entropy"]


def train_arm(
    settings: config.Settings,
    arm: str,
    checkout: Path,
    start: Path,
    folder: Path,
    others: Iterable[str] = (),
    fresh: bool = False,
    trainer: str | None = None,
) -> None:
    """Trains one arm from the model in `start`, unless it is finished. verl writes to `folder`; see curves.

    others: overrides that take precedence. trainer: the module that is the training process, by default the version's.
    """
    run, trainer = folder.resolve(), trainer or config.VERSIONS[settings.verl][1]
    # In /tmp, because the paths of Unix sockets, which Ray makes far below it, may have at most 103 bytes.
    with tempfile.TemporaryDirectory(prefix="era-ray-", dir="/tmp", ignore_cleanup_errors=True) as ray:
        overrides = config.overrides(settings, arm, folder.parent.resolve(), start.resolve(), run)
        training = runner.Training(
            label=arm.upper(),
            folder=folder,
            command=[sys.executable, "-m", trainer, ray, *overrides, *others],
            environment=environment(checkout, ray, run / curves.METRICS_FILE),
            rows=lambda: curves.metrics(run),
            length=settings.steps,
            show=lambda rows: "step {:.0f}: reward {:.2f}, entropy {:.2f}".format(*rows[SHOWN].iloc[-1]),
            record=runner.begin(f"verl {settings.verl}", settings.task, arm, settings.seed, settings.steps, checkout),
            incomplete_because=lambda: curves.incomplete_because(run, settings.steps),
        )
        runner.train([training], fresh)


def environment(checkout: Path, ray: str, metrics: Path) -> dict[str, str]:
    """The environment of verl's processes, which neither join the user's Ray cluster nor touch the user's caches."""
    variables = runner.environment(
        checkout,
        PROJECT,
        VERL_FILE_LOGGER_PATH=str(metrics),
        TOKENIZERS_PARALLELISM="false",
        TMPDIR=ray,  # some imports leave empty folders there
        HF_HOME=f"{ray}/huggingface",
        HF_HUB_OFFLINE="1",
        GLOO_SOCKET_IFNAME="lo0" if sys.platform == "darwin" else "lo",
    )
    return {name: value for name, value in variables.items() if not name.startswith("RAY_")} | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # a process for every CPU, most of which verl never uses
    }
