# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the benches share: arms that take turns, their costs, ratios paired by turn, and the command that prints them.

An arm is a function that takes one turn and returns the costs of what it measured, by name: {"update": cost(...)}.
A bench declares ARMS and ARGUMENTS, and a generator, which sets up a case and yields what `compare` makes of its arms,
with what is particular to the case. Arguments that several benches have are declared here.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import io
import math
import os
import platform
import re
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import torch

from recipes import run_json

Cost = dict[str, float]  # "seconds" and "mib"
Baseline = str | Mapping[str, str]  # the arm that all arms are compared with, or one for each arm

DTYPES = {"--dtypes": {"nargs": "+", "choices": ["float32", "bfloat16"], "default": ["float32", "bfloat16"]}}
VOCABULARY = {"--vocabulary": {"type": int, "default": 151_936}}


@dataclasses.dataclass(frozen=True)
class TrainerArm:
    """An arm of a trainer: ERA's settings, as changes to the bench's (None: without ERA), and the trainer's own."""

    baseline: str
    era: dict | None = None
    settings: dict = dataclasses.field(default_factory=dict)

    def check_scaled(self, fractions: Iterable[float], share: float) -> None:
        """Assert that ERA scaled this share of the tokens (with k 1 none), and that without ERA none is logged."""
        expected = set() if self.era is None else {0.0 if self.era.get("k") == 1 else share}
        assert set(fractions) == expected, f"{self}: scaled {fractions}, expected {expected}"


def trainer_arms(**settings: dict) -> dict[str, TrainerArm]:
    """GRPO and ERA in the trainer's default settings and in each of these, whose name is the end of the arm's name."""
    arms = {
        "GRPO": TrainerArm("GRPO"),
        "GRPO logging ERA's metrics (k 1)": TrainerArm("GRPO", {"k": 1.0}),
        "ERA": TrainerArm("GRPO", {}),
    }
    for name, changes in settings.items():
        baseline = f"GRPO, {name}"
        arms |= {baseline: TrainerArm(baseline, None, changes), f"ERA, {name}": TrainerArm(baseline, {}, changes)}
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


def cost(run: Callable, device: str = "cpu", clock: Callable = time.perf_counter) -> Cost:
    """`seconds` of one run, and `mib`, the most that was held beyond what was held before."""
    gc.collect()  # gradient checkpointing leaves cycles that hold logits
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    held = peak_mib(device, reset=True)
    synchronize()
    start = clock()
    run()
    synchronize()
    return {"seconds": clock() - start, "mib": peak_mib(device) - held}


def take_turns(arms: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list]:
    """What each arm returned in each turn. The order is reversed every other turn, as the machine may drift."""
    returned = {arm: [] for arm in arms}
    for turn in range(turns):
        for arm in list(arms)[:: 1 if turn % 2 else -1]:
            returned[arm].append(arms[arm]())
    return returned


def spread(values: pd.DataFrame, name: str) -> pd.DataFrame:
    """Each column's median as `name`, its quantiles as `name`_p20 and `name`_p80."""
    quantiles = values.quantile([0.5, 0.2, 0.8]).T
    return quantiles.set_axis([name, f"{name}_p20", f"{name}_p80"], axis=1)


def ratios(seconds: Mapping[str, Iterable[float]], **baselines: Baseline) -> pd.DataFrame:
    """A row per arm: `seconds`, and for each of `baselines` a column of ratios, paired by turn, with their spreads."""
    times = pd.DataFrame(seconds)
    table = spread(times, "seconds")
    for name, baseline in baselines.items():
        pairs = baseline_of_each(times, baseline).items()
        table = table.join(
            spread(pd.DataFrame({arm: times[arm] / times[base] for arm, base in pairs if base in times}), name)
        )
    return table


def baseline_of_each(arms: Iterable[str], baseline: Baseline) -> dict[str, str]:
    """Each arm's baseline."""
    return {arm: baseline if isinstance(baseline, str) else baseline[arm] for arm in arms}


def compare(
    arms: Mapping[str, Callable[[], dict[str, Cost]]], turns: int, **baselines: Baseline
) -> dict[str, pd.DataFrame]:
    """For each thing that the arms measured, a table as `ratios` makes it, with memory compared as in `ratio`.

    The column `baseline` names what `ratio` and `mib_ratio` are to. Each arm first takes a turn that does not count.
    One that lacks a package or memory is named and left out.
    """
    able = dict(arms)
    for arm in arms:
        try:
            arms[arm]()
        except (ImportError, torch.OutOfMemoryError) as error:
            print(f"{arm}: not measured: {error}", file=sys.stderr)
            del able[arm]
    turns_of, tables = take_turns(able, turns), {}
    for what in dict.fromkeys(what for of_arm in turns_of.values() for what in of_arm[0]):
        costs = {arm: pd.DataFrame([t[what] for t in of_arm]) for arm, of_arm in turns_of.items() if what in of_arm[0]}
        table = ratios({arm: of_arm.seconds for arm, of_arm in costs.items()}, **baselines)
        table["baseline"] = pd.Series(baseline_of_each(costs, baselines["ratio"]))
        table["mib"] = [of_arm.mib.median() for of_arm in costs.values()]
        table["mib_ratio"] = table.mib / table.mib.reindex(table.baseline).to_numpy()
        tables[what] = table
    return tables


def machine(device: str) -> dict:
    """The date, the hardware and the versions, which stand in each row of the CSV file."""
    hardware = run_json.hardware()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "cpu": hardware["cpu"],
        "cores": hardware["cores"],
        "threads": os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def as_text(facts: Mapping[str, object]) -> str:
    """Names and values in a line."""
    return "; ".join(f"{name} {value}" for name, value in facts.items())


def main(
    doc: str,
    arguments: dict[str, dict],
    tables: Callable[[argparse.Namespace], Iterator[tuple[pd.DataFrame, dict]]],
    turns: int = 7,
    device: str = "cpu",
) -> None:
    """The command of a bench: print the machine, the arguments and each table as it comes; write all so far into --csv.

    Seconds are printed as ms, without their spread. What frameworks print and warn of is dropped. Arguments of one
    value are columns of the CSV file.

    Args:
        doc: the bench's docstring, which --help prints.
        arguments: the bench's own, as `add_argument` takes them.
        tables: a generator of tables as `compare` makes them, each with what it is a table of, by name, which is its
            title and further columns of the CSV file.
        turns: how many each arm takes, unless --turns says another number.
        device: "cpu" or "cuda", for a bench without --device.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=turns, help=f"of each arm (default: {turns})")
    parser.add_argument("--csv", type=Path, help="also write a row per table and arm to this file")
    for name, settings in arguments.items():
        parser.add_argument(name, **settings)
    args = parser.parse_args()
    values = {name: value for name, value in vars(args).items() if isinstance(value, (int, str)) and name != "device"}
    facts, written, terminal = machine(getattr(args, "device", device)) | values, [], sys.stdout
    print(textwrap.fill(as_text(facts), 80))
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stdout(io.StringIO()):
        for table, case in tables(args):
            same = ["baseline"] * (table.baseline.nunique() == 1)
            shown = table.drop(columns=["seconds", "seconds_p20", "seconds_p80", *same])
            shown.insert(0, "ms", 1e3 * table.seconds)
            text = shown.to_string(float_format="{:#.3g}".format, na_rep="")
            print(f"\n{as_text(case)}\n\n{text}", flush=True, file=terminal)
            written.append(table.assign(**facts | case))
            if args.csv:
                pd.concat(written).to_csv(args.csv, float_format="%.5g", index_label="arm")
