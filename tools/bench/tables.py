# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the benchmarks share: arms that take turns, ratios paired by turn, their tables and CSV files, the machine."""

import argparse
import os
import platform
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd
import torch

from recipes import run_json


def parser(doc: str, turns: int = 7) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--turns", type=int, default=turns, help=f"of each arm (default: {turns})")
    made.add_argument("--csv", type=Path, help="also write a row per table and arm to this file")
    return made


def add_checkout(made: argparse.ArgumentParser, upstream: str, file: str, required: bool = True) -> None:
    """--checkout, which has to hold the overlay's `file`."""

    def checkout(text: str) -> Path:
        if not (Path(text) / file).is_file():
            message = f"{text} is not {upstream} with the ERA overlay: no {file} there. Run: make apply"
            raise argparse.ArgumentTypeError(message)
        return Path(text).resolve()

    help_ = f"a checkout of {upstream} with the ERA overlay"
    made.add_argument("--checkout", type=checkout, required=required, help=help_)


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


def take_turns(arms: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list]:
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


def ratios(seconds: Mapping[str, Iterable[float]], **baselines: str | dict[str, str]) -> pd.DataFrame:
    """A row per arm: `seconds`, and ratios to baselines, paired by turn, with their spreads.

    Args:
        baselines: for each column of ratios the arm that all are compared with, or the one of each arm.
    """
    times = pd.DataFrame(seconds)
    table = spread(times, "seconds")
    for name, baseline in baselines.items():
        of_arm = baseline if isinstance(baseline, dict) else dict.fromkeys(times, baseline)
        paired = pd.DataFrame({arm: times[arm] / times[other] for arm, other in of_arm.items()})
        table = table.join(spread(paired, name))
    return table


class Tables:
    """The tables of one benchmark, printed as they come, and all so far in a CSV file, with the machine."""

    def __init__(self, csv: Path | None, device: str = "cpu"):
        hardware = run_json.hardware()
        self.csv, self.written = csv, []
        self.machine = {
            "date": time.strftime("%Y-%m-%d"),
            "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
            "cpu": hardware["cpu"],
            "cores": hardware["cores"],
            "threads": os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        print(textwrap.fill("; ".join(f"{name} {value}" for name, value in self.machine.items()), 80))

    def add(self, title: str, table: pd.DataFrame, labels: Mapping[str, str] | None = None, **shape) -> None:
        """Seconds are printed as ms, ratios with their spreads. labels: of arms. shape: further columns of the CSV."""
        text = {}
        for name in (name for name in table if not name.endswith(("_p20", "_p80"))):
            factor = 1e3 if name == "seconds" else 1
            medians, low, high = (
                table.get(name + end, table[name]).mul(factor).map("{:#.3g}".format) for end in ("", "_p20", "_p80")
            )
            text["ms" if name == "seconds" else name] = medians.replace("nan", "")
            if name.endswith("ratio") and f"{name}_p20" in table:
                text[f"{name} p20-p80"] = low + "-" + high
        print(f"\n{title}\n\n{pd.DataFrame(text).rename(index=labels or {}).to_string()}", flush=True)
        self.written.append(table.assign(**shape, **self.machine))
        if self.csv:
            pd.concat(self.written).to_csv(self.csv, float_format="%.5g", index_label="arm")
