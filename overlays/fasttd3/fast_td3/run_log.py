# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The curves of a run in a CSV file, one row per 100 steps: for every agent, also without wandb."""

import csv
import os
import time
from typing import Any, Dict

from era_training import ENTROPIES

COLUMNS = (
    *("global_step", "frame", "seconds", "speed", "eval_avg_return", "eval_avg_length"),
    *("actor_loss", "qf_loss", "qf_max", "qf_min", "actor_grad_norm", "critic_grad_norm"),
    *("env_rewards", "buffer_rewards", *ENTROPIES),
)


class RunLog:
    """Writes <csv_path>, by default logs/<run name>.csv.

    A run from the start begins a new file; an earlier run's file gets the time of its last row as a
    suffix. A run from a checkpoint appends to the file, and repeats the rows after the checkpoint's
    step: of two rows for one step the later counts.
    """

    def __init__(self, args: Any, run_name: str, global_step: int, rank: int = 0):
        self.path = args.csv_path or os.path.join("logs", f"{run_name}.csv")
        self.num_envs, self.writes, self.began = args.num_envs, rank == 0, time.monotonic()
        if not self.writes:
            return
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        if global_step > 0 and os.path.exists(self.path):
            with open(self.path, newline="") as file:
                seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
            self.began -= max(seconds, default=0.0)
        else:
            if os.path.exists(self.path):  # an earlier run's
                os.replace(self.path, f"{self.path}.{int(os.path.getmtime(self.path))}")
            with open(self.path, "w", newline="") as file:
                csv.writer(file).writerow(COLUMNS)

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
            "seconds": f"{time.monotonic() - self.began:.1f}",
            "speed": f"{speed:.4g}",
        }
        row.update({name: f"{float(value):.6g}" for name, value in logs.items() if name in COLUMNS})
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
