"""What the benchmarks share: arguments, medians and ratios paired by turn, their table, CSV files, the machine."""

import argparse
import csv
import os
import platform
import statistics
import time
from pathlib import Path

import torch

TURN_SECONDS = 0.02  # a turn repeats what is shorter


def make_parser(doc, upstream):
    """With the arguments that the benchmarks of whole steps share."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--checkout", required=True, help=f"a {upstream} checkout with the overlay")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each arm")
    parser.add_argument("--csv", type=Path, help="also write a row per table and arm to this file")
    return parser


def find_problems(args, upstream, file):
    """What is wrong with these arguments. file: of the overlay in the checkout."""
    problems = []
    if not (Path(args.checkout) / file).is_file():
        problems.append(f"{args.checkout} is not a {upstream} checkout with the overlay; run `make apply` first")
    if args.device == "cuda" and not torch.cuda.is_available():
        problems.append("--device cuda: torch finds no GPU")
    if args.rounds < 2:
        problems.append("at least 2 rounds are needed")
    if args.csv and not os.access(args.csv.parent, os.W_OK):
        problems.append(f"the folder of {args.csv} does not exist or cannot be written to")
    return problems


def machine_of(device):
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device == "cuda" else None,
    }


def cpu_model():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def summarise(seconds, memory, baselines):
    """One row per arm.

    Args:
        seconds: for each arm one number per turn, at least two; an empty list for an arm that did not fit the memory.
        memory: for each arm MiB, where they were measured.
        baselines: for each arm the one that it is compared with.

    Returns:
        Dicts with `arm`, `seconds` (the median), `seconds_p20`, `seconds_p80`, `seconds_ratio` (the median of the
        ratios of each turn), `seconds_ratio_p20`, `seconds_ratio_p80`, `peak_mib`, `peak_ratio`; None where there is no
        such number.
    """
    rows = []
    for arm, times in seconds.items():
        base = baselines[arm]
        peak, base_peak = memory.get(arm), memory.get(base)
        row = {
            "arm": arm,
            **_spread("seconds", times),
            **_spread("seconds_ratio", [a / b for a, b in zip(times, seconds.get(base, []))]),
        }
        rows.append({**row, "peak_mib": peak, "peak_ratio": peak / base_peak if peak and base_peak else None})
    return rows


def _spread(name, values):
    if not values:
        return dict.fromkeys([name, f"{name}_p20", f"{name}_p80"])
    quantiles = statistics.quantiles(values, n=5, method="inclusive")
    return {name: statistics.median(values), f"{name}_p20": quantiles[0], f"{name}_p80": quantiles[-1]}


def print_table(rows):
    width = max(46, *(len(row["arm"]) for row in rows))
    print(f"| {'arm':<{width}} | {'time, s':>8} | {'p20 - p80':>13} | {'ratio':>6} | {'peak, MiB':>9} | {'ratio':>6} |")
    print("|" + "-" * (width + 2) + "|" + "".join("-" * n + ":|" for n in (9, 14, 7, 10, 7)))
    for row in rows:
        if row["seconds"] is None:
            print(f"| {row['arm']:<{width}} | {'-':>8} | {'out of memory':>13} | {'':6} | {'':9} | {'':6} |")
            continue
        spread = f"{row['seconds_p20']:5.3f} - {row['seconds_p80']:5.3f}"
        print(
            f"| {row['arm']:<{width}} | {row['seconds']:8.3f} | {spread:>13} | "
            f"{_cell(row['seconds_ratio'], 6, 2)} | {_cell(row['peak_mib'], 9, 0)} | "
            f"{_cell(row['peak_ratio'], 6, 2)} |"
        )


def _cell(value, width, digits):
    return " " * width if value is None else f"{value:{width}.{digits}f}"


def seconds_of(device, run, repeats):
    """Seconds of one run, the mean over `repeats` of them."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / repeats
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def rounded(row):
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
