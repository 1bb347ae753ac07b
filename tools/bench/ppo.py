# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""CPU time of a step of PPO and of PPO-ERA in the paper's code, as ratios.

    python -m tools.bench.ppo --checkout checkouts/drl-code-pytorch [--turns 5] [--steps 20000] [--csv FILE]

Each turn trains once and takes the CPU time between the first evaluation and the last, so neither imports nor the
recording of --fast count. The arm `head` has ERA's layer and no
activation, so ERA beside it is the activation's own cost, and beside `parameter` all that PPO-ERA adds.
"""

import csv
import os
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tools.bench import tables

ARMS = {"parameter": (), "head": ("--std", "head"), "era": ("--std", "era")}
MODES = {"upstream": (), "fast": ("--fast",)}
TASK = "HalfCheetah-v4"
EVERY = 5000  # steps between two evaluations, upstream's


def cpu_seconds_per_step(script: Path, steps: int, flags: tuple[str, ...]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, script, "--env", TASK, "--max_train_steps", str(steps), "--csv_path", "train.csv"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *flags], cwd=folder, env=env, check=True, capture_output=True)
        with open(Path(folder) / "train.csv", newline="") as file:
            rows = list(csv.DictReader(file))
    first, last = ([float(row[name]) for name in ("cpu_seconds", "global_step")] for row in (rows[0], rows[-1]))
    return (last[0] - first[0]) / (last[1] - first[1])


def main() -> None:
    parser = tables.parser(__doc__, turns=5)
    tables.add_checkout(parser, "drl-code-pytorch", "5.PPO-continuous/era_ppo.py")
    parser.add_argument("--steps", type=int, default=4 * EVERY, help=f"of a turn, at least {2 * EVERY}")
    args = parser.parse_args()
    if args.steps < 2 * EVERY:
        parser.error(f"--steps: at least {2 * EVERY} are needed, for two evaluations")
    script = args.checkout / "5.PPO-continuous/PPO_continuous_main.py"
    machine, written = {**tables.machine(), "threads": 1, "mujoco": version("mujoco")}, []
    columns = {"ms": ("seconds", 1e3, 3), "x parameter": ("ratio", 1, 3), "p20-p80": ("ratio", 1, 3, True)}
    columns |= {"x head": ("head_ratio", 1, 3)}
    for mode, own in MODES.items():
        arms = {arm: partial(cpu_seconds_per_step, script, args.steps, (*own, *flags)) for arm, flags in ARMS.items()}
        seconds = tables.take_turns(arms, args.turns)
        beside_head = tables.ratios(seconds, dict.fromkeys(ARMS, "head"), "head_ratio").filter(like="head_ratio")
        table = tables.ratios(seconds, dict.fromkeys(ARMS, "parameter")).join(beside_head)
        tables.show(
            f"CPU time of a step, {TASK}, code: {mode}, {args.turns} turns of {args.steps} steps", table, columns
        )
        shape = {"task": TASK, "steps": args.steps, "turns": args.turns, "code": mode}
        written.append(table.assign(**shape, **machine))
        tables.write_csv(args.csv, written)


if __name__ == "__main__":
    main()
