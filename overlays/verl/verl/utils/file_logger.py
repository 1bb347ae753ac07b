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
"""Metrics as JSON lines: the backend "file" of `trainer.logger`, in later verl's format.

    {"step": 3, "data": {"actor/pg_loss": 0.12, "critic/score/mean": 0.5}}

Unlike later verl's it appends, so that a resumed run continues its file. One step may then have
several lines: the validation before training and the step itself, or a step before a crash and the
same step after it. Read them in order; of a metric's several values at a step the last one counts.
"""

import json
import math
import os
from pathlib import Path
from typing import Any, Mapping, Union


class FileLogger:
    """Appends one line per call of `log` to a file and flushes it.

    The file is VERL_FILE_LOGGER_PATH, or else PROJECT/EXPERIMENT.jsonl in VERL_FILE_LOGGER_ROOT,
    which is the working directory where it is not set. Missing folders are made. A last line that a
    killed process left half-written is removed: every line of the file is valid JSON.

    Args:
        project_name, experiment_name: `trainer.project_name`, `trainer.experiment_name`.

    Raises:
        OSError: the file cannot be written; the message has its path.
    """

    def __init__(self, project_name: str, experiment_name: str):
        root = os.environ.get("VERL_FILE_LOGGER_ROOT") or "."
        path = os.environ.get("VERL_FILE_LOGGER_PATH") or os.path.join(
            root, project_name, f"{experiment_name}.jsonl"
        )
        self.path = Path(path).expanduser().absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_file():  # neither missing nor a pipe or device
                _mend_last_line(self.path)
            self._file = self.path.open("ab")
        except OSError as error:
            raise OSError(
                f"The metrics file {self.path} cannot be written: {error.strerror}. Set "
                "VERL_FILE_LOGGER_PATH (a file) or VERL_FILE_LOGGER_ROOT (a folder) to a "
                'place that can; or leave "file" out of trainer.logger. No step was trained.'
            ) from error
        print(f"Appending metrics to {self.path}")

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Append a line.

        Args:
            data: metrics by name. Numbers of any kind, scalar tensors and arrays included, are
                written as floats; NaN and infinities as null, which JSON has instead (as later verl
                does); other values as strings.
            step: the global step.
        """
        line = {
            "step": int(step),
            "data": {str(name): _json_value(value) for name, value in data.items()},
        }
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()


def _mend_last_line(path: Path) -> None:
    """End the last line of the file, or remove it where it is not all there."""
    with path.open("rb+") as file:
        size, last = 0, b""
        for last in file:
            size += len(last)
        if not last or last.endswith(b"\n"):
            return
        try:
            json.loads(last)
        except ValueError:
            file.truncate(size - len(last))
        else:
            file.write(b"\n")


def _json_value(value: Any) -> Union[float, str, None]:
    if isinstance(value, (str, bytes)):  # float() would parse them
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return str(value)
    return number if math.isfinite(number) else None
