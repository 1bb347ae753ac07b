# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the benchmarks share: arms that take turns, their costs, ratios paired by turn, tables, CSV files, the machine.

An arm is a function that takes one turn and returns the costs of what it measured, by name: {"update": cost(...)}.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import math
import os
import platform
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd
import torch

from recipes import run_json

Baseline = str | Mapping[str, str]  # the arm that all arms are compared with, or one for each arm


def parser(doc: str, turns: int = 7) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--turns", type=int, default=turns, help=f"of each arm (default: {turns})")
    made.add_argument("--csv", type=Path, help="also write a row per table and arm to this file")
    return made


@dataclasses.dataclass(frozen=True)
class Arm:
    """An arm of a trainer. era: changes to the benchmark's ERA settings, None for off. host: settings of the host."""

    baseline: str
    era: dict | None = None
    host: dict = dataclasses.field(default_factory=dict)

    def check_scaled(self, fractions: Iterable[float], share: float) -> None:
        """Asserts that ERA scaled this share of the tokens (with k 1 none), and that without ERA none is logged."""
        expected = set() if self.era is None else {0.0 if self.era.get("k") == 1 else share}
        assert set(fractions) == expected, f"{self}: scaled {fractions}, expected {expected}"


def trainer_arms(**settings: dict) -> dict[str, Arm]:
    """GRPO and ERA in the host's default settings and in each of these, whose name is the end of the arm's name."""
    arms = {"GRPO": Arm("GRPO"), "GRPO logging ERA's metrics (k 1)": Arm("GRPO", {"k": 1.0}), "ERA": Arm("GRPO", {})}
    for name, host in settings.items():
        arms |= {f"GRPO, {name}": Arm(f"GRPO, {name}", None, host), f"ERA, {name}": Arm(f"GRPO, {name}", {}, host)}
    return arms


def peak_mib(device: str, reset: bool = False) -> float:
    """The peak in MiB since the last reset: of the allocator on a GPU, of the process on Linux, else NaN."""
    if device == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / 2**20
    with contextlib.suppress(AttributeError, OSError):
        if reset:
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed, and the process would not grow
            Path("/proc/self/clear_refs").write_text("5")
        return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**10
    return math.nan


def cost(
    run: Callable, device: str = "cpu", repeats: int = 1, clock: Callable = time.perf_counter, memory: bool = True
):
    """`seconds` of one run, the mean over `repeats`, and `mib`, the most that was held beyond what was held before."""
    gc.collect()  # gradient checkpointing leaves cycles that hold logits
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    held = peak_mib(device, reset=True) if memory else None
    synchronize()
    start = clock()
    for _ in range(repeats):
        run()
    synchronize()
    seconds = {"seconds": (clock() - start) / repeats}
    return seconds | {"mib": peak_mib(device) - held} if memory else seconds


def take_turns(arms: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list]:
    """What each arm returned in each turn. The order is reversed every other turn, as the machine may drift."""
    found = {arm: [] for arm in arms}
    for turn in range(turns):
        for arm in list(arms)[:: 1 if turn % 2 else -1]:
            found[arm].append(arms[arm]())
    return found


def spread(values: pd.DataFrame, name: str) -> pd.DataFrame:
    """Each column's median as `name`, its quantiles as `name`_p20 and `name`_p80."""
    quantiles = values.quantile([0.5, 0.2, 0.8]).T
    return quantiles.set_axis([name, f"{name}_p20", f"{name}_p80"], axis=1)


def ratios(seconds: Mapping[str, Iterable[float]], **baselines: Baseline) -> pd.DataFrame:
    """A row per arm: `seconds`, and for each of `baselines` a column of ratios, paired by turn, with their spreads."""
    times = pd.DataFrame(seconds)
    table = spread(times, "seconds")
    for name, baseline in baselines.items():
        paired = {arm: times[arm] / times[other] for arm, other in each(times, baseline).items() if other in times}
        table = table.join(spread(pd.DataFrame(paired), name))
    return table


def each(arms: Iterable[str], baseline: Baseline) -> dict[str, str]:
    return {arm: baseline if isinstance(baseline, str) else baseline[arm] for arm in arms}


def compare(
    arms: Mapping[str, Callable], turns: int, warm_up: bool = True, **baselines: Baseline
) -> dict[str, pd.DataFrame]:
    """For each thing that the arms measured, a table as `ratios` makes it, with memory compared as in `ratio`.

    warm_up: each arm first takes a turn that does not count. One that lacks a package or memory is named and left out.
    """
    able = dict(arms)
    for arm in arms if warm_up else ():
        try:
            arms[arm]()
        except (ImportError, torch.OutOfMemoryError) as error:
            print(f"{arm}: not measured: {error}", file=sys.stderr)
            del able[arm]
    found, compared = take_turns(able, turns), {}
    for what in dict.fromkeys(what for of_arm in found.values() for what in of_arm[0]):
        measured = {arm: of_arm for arm, of_arm in found.items() if what in of_arm[0]}
        costs = {arm: pd.DataFrame([turn[what] for turn in of_arm]) for arm, of_arm in measured.items()}
        table = ratios({arm: of_arm.seconds for arm, of_arm in costs.items()}, **baselines)
        if all("mib" in of_arm for of_arm in costs.values()):
            table["mib"] = [of_arm.mib.median() for of_arm in costs.values()]
            baseline = each(costs, baselines["ratio"]).values()
            table["mib_ratio"] = table.mib / table.mib.reindex(baseline).to_numpy()
        compared[what] = table
    return compared


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

    def add(self, title: str, table: pd.DataFrame, **shape) -> None:
        """Seconds are printed as ms, without their spread. shape: further columns of the CSV."""
        shown = table.drop(columns=["seconds", "seconds_p20", "seconds_p80"])
        shown.insert(0, "ms", 1e3 * table.seconds)
        text = shown.to_string(float_format="{:#.3g}".format, na_rep="")
        print(f"\n{title}\n\n{text}", flush=True)
        self.written.append(table.assign(**shape, **self.machine))
        if self.csv:
            pd.concat(self.written).to_csv(self.csv, float_format="%.5g", index_label="arm")
