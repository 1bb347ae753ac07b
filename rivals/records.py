# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Writes what finished runs measured to records/rivals/, as one set of tables.

runs.csv has a row per run, with its machine, times and commit; samples.csv (llm) and measures.csv (vision) what was
measured at its end; curves.csv (llm) its training, means over 5 steps. A run that is already there is replaced.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from rivals import llm, vision
from rivals.rule import KEY

PROJECT = Path(__file__).resolve().parent.parent
sys.path.append(str(PROJECT / "recipes"))  # the files that all recipes share
import run_json  # noqa: E402

RECORDS = PROJECT / "records/rivals"
LABELS = dict.fromkeys(("setting", "commit"), str)  # even where they look like numbers
WINDOW = 5  # steps of a row of curves.csv: short enough for what the pages say of the way to a collapse
LAST = 10  # steps at the end of the training
CURVES = ["reward", "response_entropy", "low_fraction", "scaled_token_fraction"]
SHARE, NATS, NOT_NEGATIVE = (0, 1), (0, 30), (0, math.inf)
# What names a row of each table beside its run; the columns that the pages need, and their smallest and largest value.
TABLES = {
    "llm/runs": ([], {"reward": SHARE, "response_entropy": NATS, "lowest_entropy": NATS, "step_seconds": NOT_NEGATIVE}),
    "llm/samples": (
        ["temperature"],
        {"pass_at_1": SHARE, "pass_at_32": SHARE, "reward": SHARE, "response_entropy": NATS}
        | {"distinct_32": (0, 32), "distinct_all": (0, 256), "answer_entropy": NOT_NEGATIVE},
    ),
    "llm/curves": (["step"], {name: NATS if name == "response_entropy" else SHARE for name in CURVES}),
    "vision/runs": ([], {}),
    "vision/measures": (
        ["variant", "set"],
        {"temperature": NOT_NEGATIVE, "top1": (0, 100), "ece": (0, 100), "nll": NOT_NEGATIVE},
    ),
}
# The entropies are measured at temperature 1 alone; a classifier that collapsed has neither ECE nor NLL.
MAY_BE_NAN = ("response_entropy", "answer_entropy", "ece", "nll")


def check(table: pd.DataFrame, name: str, where: Path) -> None:
    """Raises ValueError where a column is missing, a row is repeated, or a value is out of range."""
    row, ranges = TABLES[name]
    missing = [column for column in (*KEY, *row, *ranges) if column not in table]
    if missing:
        raise ValueError(f"{where}: no column {', '.join(missing)}.")
    repeated = table[table.duplicated([*KEY, *row])]
    if len(repeated):
        raise ValueError(f"{where}: a second row of {repeated.iloc[0][[*KEY, *row]].to_dict()}.")
    for column, (low, high) in ranges.items():
        fits = table[column].between(low, high) | (table[column].isna() & (column in MAY_BE_NAN))
        if not fits.all():
            found = table.loc[~fits, [*KEY, *row, column]].iloc[0].to_dict()
            raise ValueError(f"{where}: {column} from {low} to {high} expected, but there is {found}.")


def read(name: str, records: Path = RECORDS) -> pd.DataFrame:
    """A table of TABLES; checked."""
    file = records / f"{name}.csv"
    table = pd.read_csv(file, dtype=LABELS)
    check(table, name, file)
    return table


def _llm(folder: Path) -> dict[str, pd.DataFrame]:
    training = pd.read_csv(folder / llm.CURVES)
    last = training.tail(LAST)
    ends = {
        "reward": last.reward.mean(),
        "response_entropy": last.response_entropy.mean(),
        "lowest_entropy": training.response_entropy.min(),
        "step_seconds": training.seconds.median(),
    }
    windows = training.groupby(np.arange(len(training)) // WINDOW)
    curves = windows[CURVES].mean()
    curves.insert(0, "step", windows.global_step.last())
    return {"llm/runs": pd.DataFrame([ends]), "llm/samples": pd.read_csv(folder / llm.SAMPLES), "llm/curves": curves}


def _vision(folder: Path) -> dict[str, pd.DataFrame]:
    return {"vision/runs": pd.DataFrame(index=[0]), "vision/measures": pd.read_csv(folder / vision.MEASURES)}


HOSTS = {"verl": _llm, "rivals-vision": _vision}  # by the host in run.json


def about(run: dict) -> dict:
    hardware, versions = run["hardware"], run["versions"].items()
    return {
        **{name: run[name] for name in ("started", "ended", "commit")},
        "cpu": f"{hardware['cpu']}, {hardware['cores']} cores",
        "versions": " ".join(f"{name} {version}" for name, version in versions),
    }


def gather(output: Path) -> dict[str, pd.DataFrame]:
    """Tables, as far as there are any, of the finished runs in `output`."""
    found = {}
    for folder in sorted(file.parent for file in output.glob(f"*/{run_json.FILE}")):
        run = run_json.read(folder)
        if not run.get("finished") or run.get("host") not in HOSTS:
            continue
        for name, table in HOSTS[run["host"]](folder).items():
            columns = {key: run[key] for key in KEY} | (about(run) if name.endswith("/runs") else {})
            for place, (column, value) in enumerate(columns.items()):
                table.insert(place, column, value)
            found.setdefault(name, []).append(table)
    return {name: pd.concat(tables) for name, tables in found.items()}


def collect(output: Path, records: Path = RECORDS) -> int:
    """The number of finished runs in `output`, which are now in `records`. Raises ValueError, as `check`."""
    found = gather(output)
    for name, table in found.items():
        check(table, name, output)
    for name, table in found.items():
        file = records / f"{name}.csv"
        if file.is_file():
            before = read(name, records)
            replaced = pd.MultiIndex.from_frame(before[KEY]).isin(pd.MultiIndex.from_frame(table[KEY]))
            table = pd.concat([before[~replaced], table])
        file.parent.mkdir(parents=True, exist_ok=True)
        # Five digits are more than a comparison of seeds can use.
        written = {"index": False, "float_format": "%.5g", "na_rep": "nan", "lineterminator": "\r\n"}
        table.sort_values(KEY, kind="stable").to_csv(file, **written)
    return sum(len(table) for name, table in found.items() if name.endswith("/runs"))


def main() -> None:
    parser = argparse.ArgumentParser("python -m rivals.records", description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, default=PROJECT / "results/rivals", help="OUTPUT of the runs")
    output = parser.parse_args().output
    if not output.is_dir():
        sys.exit(f"error: {output} is not there. It is the OUTPUT of rivals.launch.")
    try:
        print(f"{collect(output)} finished runs of {output} are in {RECORDS}.")
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
