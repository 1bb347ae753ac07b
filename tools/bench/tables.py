# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the benchmarks share: arms that take turns, ratios paired by turn, their tables and CSV files, the machine."""

import argparse
import os
import platform
import textwrap
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import torch

TURN_SECONDS = 0.02  # a turn repeats what is shorter


def parser(doc: str, turns: int = 7) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--turns", type=_at_least_two, default=turns, help=f"of each arm (default: {turns})")
    made.add_argument("--csv", type=Path, help="also write a row per table and arm to this file")
    return made


def _at_least_two(text: str) -> int:
    if int(text) < 2:
        raise argparse.ArgumentTypeError("a spread needs at least 2 turns")
    return int(text)


def add_checkout(made: argparse.ArgumentParser, upstream: str, file: str, required: bool = True) -> None:
    """--checkout, which has to hold the overlay's `file`."""

    def checkout(text: str) -> Path:
        if not (Path(text) / file).is_file():
            message = f"{text} is not {upstream} with the ERA overlay: no {file} there. Run: make apply"
            raise argparse.ArgumentTypeError(message)
        return Path(text).resolve()

    help_ = f"a checkout of {upstream} with the ERA overlay"
    made.add_argument("--checkout", type=checkout, required=required, help=help_)


def machine(device: str = "cpu") -> dict:
    """What the times depend on, printed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    print(textwrap.fill("; ".join(f"{name} {value}" for name, value in found.items()), 80))
    return found


def seconds_of(run: Callable[[], object], device: str = "cpu", repeats: int = 1) -> float:
    """Of one run, the mean over `repeats` of them."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def take_turns(arms: dict[str, Callable[[], object]], turns: int) -> dict[str, list]:
    """What each arm returned in each turn. The order is reversed every other turn: a drift of the machine hits all."""
    found = {arm: [] for arm in arms}
    for turn in range(turns):
        for arm in list(arms)[:: 1 if turn % 2 else -1]:
            found[arm].append(arms[arm]())
    return found


def spread(values: pd.DataFrame, name: str) -> pd.DataFrame:
    """Of each column the median `name`, and `name`_p20 and `name`_p80."""
    quantiles = values.quantile([0.5, 0.2, 0.8]).T
    return quantiles.set_axis([name, f"{name}_p20", f"{name}_p80"], axis=1)


def ratios(seconds: dict[str, Iterable[float]], baselines: dict[str, str], name: str = "ratio") -> pd.DataFrame:
    """A row per arm: `seconds` and, as `name`, the ratios to the arm's baseline, paired by turn, with their spreads."""
    times = pd.DataFrame(seconds)
    paired = pd.DataFrame({arm: times[arm] / times[baselines[arm]] for arm in times})
    return spread(times, "seconds").join(spread(paired, name))


def show(title: str, table: pd.DataFrame, columns: dict[str, tuple]) -> None:
    """Prints a table. columns: heading to (name, factor, decimals), or (name, factor, decimals, True) for a spread."""
    text = {}
    for heading, (name, factor, decimals, *spread) in columns.items():
        names = [f"{name}_p20", f"{name}_p80"] if spread else [name]
        cells = table[names].astype(float).mul(factor).map(lambda x, d=decimals: "" if pd.isna(x) else f"{x:.{d}f}")
        text[heading] = cells.agg(lambda row: "-".join(filter(None, row)), axis=1)
    print(f"\n{title}\n\n{pd.DataFrame(text, index=table.index).rename_axis(None).to_string()}", flush=True)


def write_csv(path: Path | None, tables: list[pd.DataFrame]) -> None:
    if path:
        filled = [table.dropna(axis=1, how="all") for table in tables]
        pd.concat(filled).to_csv(path, float_format="%.5g", index_label="arm")
