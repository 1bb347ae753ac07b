# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Processor time and memory of `reproduce.py report` with many runs: python tests/ledger/growth.py [RUNS ...]

The runs are of PPO's length, 600 evaluations, and differ from records/ in one number each. Prints the table of
docs/reproduce.md: with the runs spread over all rows of the figures of control, and as seeds of two rows alone."""

import json
import os
import platform
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from ledger.paper import load  # noqa: E402

RECORDS = sorted(ROOT.glob("records/control-ppo/HalfCheetah-v4-ppo*-seed*"))
TWO = {"HalfCheetah-v4-ppo": "HalfCheetah-v4", "HalfCheetah-v4-ppo_era": "HalfCheetah-v4"}


def all_rows() -> dict[str, str]:
    """Name of the folder and task, of every row of control."""
    entries = [entry for entry in load().entries.values() if entry.place.domain == "control" and entry.folder]
    return {entry.folder: entry.values.get("TASKS", "") for entry in entries if "/" not in entry.folder}


def make(out: Path, count: int, names: dict[str, str]) -> None:
    draw = random.Random(0)
    curves = [(folder / "train.csv").read_text().splitlines(keepends=True) for folder in RECORDS]
    info = json.loads((RECORDS[0] / "run.json").read_text())
    for number in range(count):
        name, seed = list(names)[number % len(names)], number // len(names) + 1
        folder = out / f"{name}-seed{seed}"
        folder.mkdir(parents=True)
        lines = list(draw.choice(curves))
        step, value, *others = lines[-1].split(",")
        lines[-1] = ",".join([step, f"{float(value) + number / 100:.6g}", *others])
        (folder / "train.csv").write_text("".join(lines))
        (folder / "run.json").write_text(json.dumps({**info, "task": names[name], "seed": seed}))


def measure(folder: Path) -> tuple[float, float]:
    """Seconds of the processor, and MB, of `report` with the folder's runs."""
    command = [sys.executable, str(ROOT / "reproduce.py"), "report", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pid = os.posix_spawn(sys.executable, command, environment)
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"error: report ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


if __name__ == "__main__":
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    for count in map(int, sys.argv[1:] or (100, 1_000, 10_000)):
        for kind, names in (("all rows", all_rows()), ("two rows", TWO)):
            with tempfile.TemporaryDirectory() as made:
                make(Path(made), count, names)
                print("| {} runs, {} | {:.1f} s | {:.0f} MB |".format(f"{count:,}", kind, *measure(Path(made))))
