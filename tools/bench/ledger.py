#!/usr/bin/env python3
"""Time and memory of `reproduce.py collect` and `report` on made-up results of every run of the recipes.

    python -m tools.bench.ledger [--times 1 10] [--csv FILE]

A grid is all runs of the recipes x 10 seeds x 100,000 steps of log: verl writes a line a step (60 metrics), FastTD3 a
row for 100 steps, timm a row an epoch. `--times 10` is 100 seeds. Then come 10 verl logs of 100,000 lines and 100
FastTD3 logs of 100,000 rows. The folders are temporary; the files are read once before, so the time is not the disk's.
Each of the two verbs has a process of its own; seconds and memory are of all that it starts.
"""

import argparse
import contextlib
import csv
import datetime
import importlib.metadata
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ledger import report, results, verdicts
from ledger.collect import collect
from ledger.ledger import Ledger, load
from ledger.readers.run_folder import EVALUATION, needs_of
from tools.bench import synthetic

SEEDS, LONG_LOGS, LONG_TABLES, LONG_LINES = 10, 10, 100, 100_000
PACKAGES = ("numpy", "orjson", "pyarrow", "scipy", "matplotlib")
POLL_SECONDS = 0.05
COLLECTED = "collected.json"
# The demos have the first too, unread.
LOGS = ("metrics.jsonl", "summary.csv", "train.csv", "steps.csv", "curves.csv", "summary.json")


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = models[0] if models else platform.machine()
    about = {"date": datetime.date.today().isoformat(), "cpu": cpu, "cores": str(cores)}
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {**about, "python": platform.python_version(), **versions}


def memory(process: psutil.Process) -> int:
    """Bytes of the process and its children; pages that they share count once."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            found = one.memory_full_info()
            total += getattr(found, "pss", found.rss)
    return total


def in_a_process(stage: Callable, folder: Path) -> tuple[dict, float, int]:
    """What the stage returns, the seconds from its start to its end, and its peak memory in bytes."""
    context = multiprocessing.get_context("spawn")
    answers, began, peak = context.SimpleQueue(), time.perf_counter(), 0
    process = context.Process(target=stage, args=(folder, answers))
    process.start()
    with contextlib.suppress(psutil.NoSuchProcess):
        seen = psutil.Process(process.pid)
        while process.is_alive():
            peak = max(peak, memory(seen))
            process.join(POLL_SECONDS)
    if process.exitcode != 0:
        sys.exit(f"error: {stage.__name__} ended with {process.exitcode}")
    return answers.get(), time.perf_counter() - began, peak


def size_of(folder: Path) -> tuple[int, int]:
    """Bytes and lines of the logs that are read. Reading them here brings them into memory."""
    size = lines = 0
    files = [file for name in LOGS for file in folder.rglob(name)]
    for file in files:
        if file.name == LOGS[0] and (file.parent / "run.json").exists():
            continue
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                size, lines = size + len(block), lines + block.count(b"\n")
    return size, lines


def timed(what: Callable):
    began = time.perf_counter()
    value = what()
    return value, time.perf_counter() - began


def collect_folder(folder: Path, answers) -> None:
    """`reproduce.py collect`."""
    ledger = load()
    collected, read_seconds = timed(lambda: collect(ledger, [folder]))
    collected, judge_seconds = timed(lambda: verdicts.judge(ledger, collected))
    _, write_seconds = timed(lambda: results.write(folder / COLLECTED, collected))
    seconds = {"read": read_seconds, "judge": judge_seconds, "write": write_seconds}
    used = sum(result.used for result in collected.results)
    parts = {f"{name}_seconds": round(value, 2) for name, value in seconds.items()}
    answers.put({"runs": len(collected.results), "used": used, **parts})


def report_folder(folder: Path, answers) -> None:
    """`reproduce.py report`."""
    report.write(load(), results.read(folder / COLLECTED), folder / "report")
    answers.put({})


def measure(label: str, folder: Path) -> dict:
    size, lines = size_of(folder)
    parts, seconds, peak = in_a_process(collect_folder, folder)
    row = {"what": label, "mb": round(size / 1e6), "lines": lines, **parts}
    row |= {"collect_seconds": round(seconds, 1), "collect_peak_mb": round(peak / 1e6)}
    row |= {"collected_mb": round((folder / COLLECTED).stat().st_size / 1e6, 1)}
    _, seconds, peak = in_a_process(report_folder, folder)
    return row | {"report_seconds": round(seconds, 1), "report_peak_mb": round(peak / 1e6)}


def make_grid(out: Path, ledger: Ledger, times: int) -> None:
    needs = needs_of(ledger)
    llm = [(name, range(needs.first[name], steps + 1)) for name, steps in needs.steps.items()]
    synthetic.grid(out, llm, [name for kind, name in needs.of if kind == EVALUATION], SEEDS * times)


def make_long_logs(out: Path, ledger: Ledger) -> None:
    """Ten seeds of the runs that the ledger takes most from. They have too many steps, so none is used."""
    needs = needs_of(ledger)
    name = max(needs.steps, key=lambda name: len(needs.metrics("training", name)))
    lines = "\n".join(synthetic.verl_lines(range(1, LONG_LINES + 1))) + "\n"
    for seed in range(LONG_LOGS):
        folder = out / f"{name}-seed{seed}"
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(lines)


def make_long_tables(out: Path, ledger: Ledger) -> None:
    """The first runs of FastTD3's recipe, a row a step instead of one for 100. They differ in one cell alone."""
    texts: dict[bool, str] = {}
    for seed, (name, command, _) in enumerate(synthetic.fasttd3_commands(range(SEEDS))[:LONG_TABLES]):
        era = "fastsac_era" in command
        folder = synthetic.fasttd3_run(out / name, command, 100 * (LONG_LINES + 1) if era not in texts else 100, seed)
        if era not in texts:
            texts[era] = (folder / "train.csv").read_text()
            continue
        (folder / "log.txt").write_text(f"HumanoidBenchArgs(total_timesteps={100 * (LONG_LINES + 1)}, compile=True)\n")
        (folder / "train.csv").write_text(texts[era].replace("\n100,12800,", f"\n100,{12800 + seed},", 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    times = f"sizes of the grids, in times {SEEDS} seeds"
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10], help=times)
    parser.add_argument("--csv", type=Path, help="write the table there too")
    options = parser.parse_args()
    ledger, about, rows = load(), machine(), []
    jobs = [(f"grid x {times}", lambda out, times=times: make_grid(out, ledger, times)) for times in options.times]
    jobs.append((f"{LONG_LOGS} verl logs of {LONG_LINES:,} lines", lambda out: make_long_logs(out, ledger)))
    jobs.append((f"{LONG_TABLES} FastTD3 logs of {LONG_LINES:,} rows", lambda out: make_long_tables(out, ledger)))
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for label, make in jobs:
        with tempfile.TemporaryDirectory(prefix="era-benchmark-") as folder:
            make(Path(folder))
            rows.append(measure(label, Path(folder)))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        print("| " + " | ".join("" if value is None else f"{value}" for value in rows[-1].values()) + " |", flush=True)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=[*about, *rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows({**about, **row} for row in rows)


if __name__ == "__main__":
    main()
