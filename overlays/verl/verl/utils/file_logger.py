# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Metrics as JSON lines: the backend "file" of `trainer.logger`, in later verl's format.

    {"step": 3, "data": {"actor/pg_loss": 0.12, "critic/score/mean": 0.5}}

Unlike later verl's logger it appends, so that a resumed run continues its file. One step may then
have several lines; of several values of a metric at one step, the last counts. A killed process may
leave half a line, which the next process ends: readers skip a line that is not JSON.
"""

import json
import math
import os
from pathlib import Path
from typing import Any, Mapping, Union


class FileLogger:
    """Appends one line per call of `log` to a file and flushes it.

    The file is VERL_FILE_LOGGER_PATH, or else PROJECT/EXPERIMENT.jsonl in VERL_FILE_LOGGER_ROOT,
    which is the working directory where it is not set. Missing folders are made.

    Args:
        project_name, experiment_name: `trainer.project_name`, `trainer.experiment_name`.
    """

    def __init__(self, project_name: str, experiment_name: str):
        root = os.environ.get("VERL_FILE_LOGGER_ROOT") or "."
        default = os.path.join(root, project_name, f"{experiment_name}.jsonl")
        self.path = Path(os.environ.get("VERL_FILE_LOGGER_PATH") or default).expanduser().absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        was_cut = False
        if self.path.is_file() and self.path.stat().st_size:
            with self.path.open("rb") as written:
                written.seek(-1, os.SEEK_END)
                was_cut = written.read() != b"\n"
        self._file = self.path.open("a")
        if was_cut:
            self._file.write("\n")
        print(f"Appending metrics to {self.path}")

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Append a line.

        Args:
            data: metrics by name. Numbers of any kind, scalar tensors and arrays included, are
                written as floats; NaN and infinities as null, which JSON has instead (as later verl
                does); other values as strings.
            step: the global step.
        """
        values = {str(name): _json_value(value) for name, value in data.items()}
        self._file.write(json.dumps({"step": int(step), "data": values}, allow_nan=False) + "\n")
        self._file.flush()


def _json_value(value: Any) -> Union[float, str, None]:
    if isinstance(value, (str, bytes)):  # float() would parse them
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return str(value)
    return number if math.isfinite(number) else None
