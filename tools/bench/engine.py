#!/usr/bin/env python3
"""Time of apply.py's verbs on the upstreams of this project: median, fastest and slowest of several runs.

    python -m tools.bench.engine [--runs 5] [--json]

Everything happens in a temporary folder; the network is used once, to fetch the sources.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Seconds per upstream on two cores; printed beside the figures, not enforced.
TARGETS = {"apply, warm cache": 2.0, "apply again": 0.5, "status": 0.5}


def hardware() -> dict[str, str]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    git = subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.split()[2]
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "git": git,
        "load": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.date.today().isoformat(),
    }


def timed(*args: str) -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, str(ROOT / "apply.py"), *args], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"error: apply.py {' '.join(args)} ended with {done.returncode}\n{done.stderr}")
    return seconds


def measure(name: str, runs: int, folder: Path) -> dict[str, list[float]]:
    where = ["--cache", str(folder / "cache"), "--checkouts", str(folder / "checkouts")]
    rows = {"fetch, empty cache": [timed("fetch", name, *where)]}
    for _ in range(runs):
        shutil.rmtree(folder / "checkouts", ignore_errors=True)
        for row, verb in (
            ("apply, warm cache", "apply"),
            ("apply again", "apply"),
            ("status", "status"),
            ("revert", "revert"),
            ("apply after revert", "apply"),
        ):
            more = ["--offline"] if verb == "apply" else []
            rows.setdefault(row, []).append(timed(verb, name, *where, *more))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name, up in json.loads((ROOT / "upstreams.json").read_text()).items() if not up.get("on_request")]
    found = {"machine": hardware(), "runs": options.runs, "seconds": {}}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="era-benchmark-") as folder:
            found["seconds"][name] = measure(name, options.runs, Path(folder))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in found["machine"].items()))
    print(f"| upstream | step | median s | fastest | slowest | target |\n|{'---|' * 6}")
    for name, rows in found["seconds"].items():
        for row, seconds in rows.items():
            target = f"< {TARGETS[row]}" if row in TARGETS else ""
            figures = " | ".join(f"{figure:.2f}" for figure in (statistics.median(seconds), min(seconds), max(seconds)))
            print(f"| {name} | {row} | {figures} | {target} |")


if __name__ == "__main__":
    main()
