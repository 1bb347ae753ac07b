# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""train.csv and run.json of a run, with or without ERA and wandb."""

import csv
import time
from pathlib import Path
from typing import Any, Dict

import hydra
from common import logger, run_json

# Columns that come from the last update, and its names for them.
OF_UPDATE = {
    "entropy_per_dim": "pi_gaussian_entropy",
    "min_entropy_per_dim": "pi_min_gaussian_entropy",
    "mean_log_std": "pi_log_std",
}
COLUMNS = ("global_step", "eval_avg_return", "seconds", "cpu_seconds", *OF_UPDATE)
PACKAGES = (
    *("torch", "torchrl", "tensordict", "gymnasium", "mujoco", "dm_control", "numpy"),
    "hydra-core",
)


class Logger(logger.Logger):
    """TD-MPC2's. With cfg.csv_path it also writes a row per evaluation there, and run.json beside.

    The path is relative to the folder of the command. Columns that come from an update have the
    last update's values, and are empty before the first one.
    """

    def __init__(self, cfg: Any):
        self.last_train = {}
        self.csv_path = cfg.csv_path and Path(hydra.utils.get_original_cwd()) / cfg.csv_path
        if self.csv_path:
            with open(self.csv_path, "x") as file:  # never over an earlier run's
                file.write(",".join(COLUMNS) + "\n")
            agent = "tdmpc2" if cfg.era_target_entropy is None else "tdmpc2_era"
            self.record = run_json.begin(
                "tdmpc2",
                cfg.task,
                cfg.seed,
                cfg.steps,
                PACKAGES,
                agent=agent,
                episode_length=None if cfg.episodic else cfg.episode_length,
            )
            run_json.start(self.csv_path.parent, self.record)
        super().__init__(cfg)

    def log(self, d: Dict[str, Any], category: str = "train") -> None:
        super().log(d, category)
        if category == "train":
            self.last_train = d  # to which the trainer goes on adding the metrics of each update
        elif category == "eval" and self.csv_path:
            self.write(d)

    def write(self, evaluation: Dict[str, Any]) -> None:
        row = [evaluation["step"], f"{evaluation['episode_reward']:.6g}"]
        row += [f"{evaluation['elapsed_time']:.1f}", f"{time.process_time():.1f}"]
        for name in OF_UPDATE.values():
            row.append(f"{float(self.last_train[name]):.6g}" if name in self.last_train else "")
        with open(self.csv_path, "a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)

    def finish(self, agent: Any = None) -> None:
        super().finish(agent)
        if self.csv_path:
            run_json.finish(self.csv_path.parent, self.record, time.process_time())
