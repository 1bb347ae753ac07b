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
"""The curves of a run in a CSV file, one row per 100 steps: for every agent, also without wandb."""

import csv
import errno
import os
import time
from typing import Any, Dict, List

from era_training import ENTROPIES, refuse

COLUMNS = (
    *("global_step", "frame", "seconds", "speed", "eval_avg_return", "eval_avg_length"),
    *("actor_loss", "qf_loss", "qf_max", "qf_min", "actor_grad_norm", "critic_grad_norm"),
    *("env_rewards", "buffer_rewards", *ENTROPIES),
)


class RunLog:
    """Writes <csv_path>, by default logs/<run name>.csv.

    A run from a checkpoint continues the file after the rows before its step. A run from the start
    keeps the file of an earlier run of the same name as <name>.<number>.csv.
    """

    def __init__(self, args: Any, run_name: str, global_step: int, rank: int = 0):
        self.path = args.csv_path or os.path.join("logs", f"{run_name}.csv")
        self.num_envs, self.writes = args.num_envs, rank == 0
        self.began = time.time()
        if not self.writes:
            return
        try:
            self.begin(global_step)
        except OSError as error:
            refuse(
                f"the curves cannot be written to {self.path}: {error.strerror}. "
                "Give another file with --csv_path."
            )

    def begin(self, global_step: int) -> None:
        if os.path.isdir(self.path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # /dev/null, say, must not be renamed as an earlier run's file.
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise OSError(errno.EINVAL, "Not a regular file")
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        rows = []
        if os.path.exists(self.path):
            if global_step > 0:
                rows = [row for row in self.earlier_rows() if int(row["global_step"]) < global_step]
                self.began -= float(rows[-1]["seconds"]) if rows else 0.0
            else:
                self.keep_earlier()
        with open(f"{self.path}.new", "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(file.name, self.path)  # at every moment one of the two files has the rows

    def earlier_rows(self) -> List[Dict[str, str]]:
        with open(self.path, newline="") as file:
            reader = csv.DictReader(file)
            # Files of an earlier overlay may lack columns.
            if not {"global_step", "seconds"} <= set(reader.fieldnames or ()) <= set(COLUMNS):
                refuse(
                    f"{self.path} does not hold the curves of a run, so none can be added. "
                    "Give another file with --csv_path."
                )
            # Without a line that a kill or a full disk cut short.
            return [row for row in reader if None not in (*row, *row.values())]

    def keep_earlier(self) -> None:
        stem, number = os.path.splitext(self.path)[0], 1
        while os.path.exists(f"{stem}.{number}.csv"):
            number += 1
        os.rename(self.path, f"{stem}.{number}.csv")

    def write(self, global_step: int, speed: float, logs: Dict[str, Any]) -> None:
        """Add a row. logs: what goes to wandb, numbers and tensors of one element."""
        if not self.writes:
            return
        if "eval_avg_return" in logs:
            print(
                f"Evaluation at global step {global_step}: return {logs['eval_avg_return']:.4g}, "
                f"length {logs['eval_avg_length']:.4g}"
            )
        row = {
            "global_step": global_step,
            "frame": global_step * self.num_envs,
            "seconds": f"{time.time() - self.began:.1f}",
            "speed": f"{speed:.4g}",
        }
        row.update({name: f"{float(value):.6g}" for name, value in logs.items() if name in COLUMNS})
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
