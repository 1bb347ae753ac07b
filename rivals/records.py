# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Writes what finished runs measured to records/rivals/, as one set of tables.

runs.csv has a row per run, with its machine, times and commit; samples.csv (vision: measures.csv) what was measured at
its end; curves.csv (llm, trl) its training, means over 5 steps. A run that is there already is replaced.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from demo.runner.training import csv_rows
from demo.trl.settings import STEPS_FILE, VALIDATION_FILE
from recipes import PROJECT, run_json, whole
from rivals import llm
from rivals.rule import KEY

RECORDS = PROJECT / "records/rivals"
ROW_STEPS = 5  # steps of a row of curves.csv: few enough to show the way to a collapse, which the pages describe
LAST = 10  # steps at the end of the training
CURVES = ["reward", "response_entropy", "low_fraction", "scaled_token_fraction"]
TRL_CURVES = ["reward", "response_entropy", "token_entropy", "scaled_token_fraction", "distinct_right"]
# The columns that identify a row of each table, beside its run's.
ROWS = {
    "llm/runs": [],
    "llm/samples": ["temperature"],
    "llm/curves": ["step"],
    "trl/runs": [],
    "trl/samples": [],
    "trl/curves": ["step"],
}


def read(name: str, records: Path = RECORDS) -> pd.DataFrame:
    """A table of records/rivals. Settings are labels, even where they look like numbers."""
    return pd.read_csv(records / f"{name}.csv", dtype={"setting": str, "commit": str})


def _training(steps: pd.DataFrame, curves: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a run's training was like: at its end, and means of these columns over ROW_STEPS steps."""
    for column in ("reward", "response_entropy"):
        if len(lacking := steps.global_step[steps[column].isna()]):
            raise ValueError(f"step {lacking.iloc[0]:.0f} has no {column}")
    last = steps.tail(LAST)
    ends = {
        "reward": last.reward.mean(),
        "response_entropy": last.response_entropy.mean(),
        "lowest_entropy": steps.response_entropy.min(),
        "step_seconds": steps.seconds.median(),
    }
    windows = steps.reindex(columns=["global_step", *curves]).groupby(np.arange(len(steps)) // ROW_STEPS)
    means = windows[curves].mean()
    means.insert(0, "step", windows.global_step.last())
    return pd.DataFrame([ends]), means


def _llm(folder: Path) -> dict[str, pd.DataFrame]:
    ends, curves = _training(csv_rows(folder / llm.CURVES), CURVES)
    return {"llm/runs": ends, "llm/samples": pd.read_csv(folder / llm.SAMPLES), "llm/curves": curves}


def _trl(folder: Path) -> dict[str, pd.DataFrame]:
    steps = csv_rows(folder / STEPS_FILE).rename(columns={"step": "global_step", "step_seconds": "seconds"})
    ends, curves = _training(steps, TRL_CURVES)
    samples = pd.DataFrame([json.loads((folder / VALIDATION_FILE).read_text())])
    return {"trl/runs": ends, "trl/samples": samples, "trl/curves": curves}


HOSTS = {"verl": _llm, "trl": _trl}  # by the host in run.json


def about(run: dict) -> dict:
    hardware, versions = run["hardware"], run["versions"].items()
    return {
        **{name: run[name] for name in ("started", "ended", "commit")},
        "cpu": f"{hardware['cpu']}, {hardware['cores']} cores",
        "versions": " ".join(f"{name} {version}" for name, version in versions),
    }


def incomplete_because(folder: Path) -> str:
    """Why the folder of a finished run does not hold all that the run measured; "" if it does."""
    run = run_json.read(folder)
    host, reason = run.get("host"), whole.incomplete_because(folder)
    if reason or host not in HOSTS:
        return reason
    try:
        about({**run, **{key: run[key] for key in KEY}})
        name, rows = ("llm/samples", len(llm.TEMPERATURES)) if host == "verl" else ("trl/samples", 1)
        count = len(HOSTS[host](folder)[name])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"cannot be read ({type(error).__name__}: {error})"
    return "" if count == rows else f"has {count} of {rows} rows of {name}"


def gather(output: Path) -> dict[str, pd.DataFrame]:
    """Tables, as far as there are any, of the finished runs in `output`."""
    tables = {}
    for folder in sorted(file.parent for file in output.glob(f"*/{run_json.FILE}")):
        run = run_json.read(folder)
        if not run.get("finished") or run.get("host") not in HOSTS:
            continue
        if reason := incomplete_because(folder):
            print(f"note: {folder} is left out: {reason}.", file=sys.stderr)
            continue
        for name, table in HOSTS[run["host"]](folder).items():
            columns = {key: run[key] for key in KEY} | (about(run) if name.endswith("/runs") else {})
            tables.setdefault(name, []).append(pd.DataFrame(columns, table.index).join(table))
    return {name: pd.concat(of_runs) for name, of_runs in tables.items()}


def collect(output: Path, records: Path = RECORDS) -> int:
    """Puts the finished runs in `output` into `records`. Returns their number."""
    tables = gather(output)
    for name, table in tables.items():
        file = records / f"{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        both = pd.concat([read(name, records), table]) if file.is_file() else table
        both = both.drop_duplicates([*KEY, *ROWS[name]], keep="last").sort_values(KEY, kind="stable")
        # Five digits are more than a comparison of seeds can use.
        both.to_csv(file, index=False, float_format="%.5g", na_rep="nan", lineterminator="\r\n")
    return sum(len(table) for name, table in tables.items() if name.endswith("/runs"))


def main() -> None:
    parser = argparse.ArgumentParser("python -m rivals.records", description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, default=PROJECT / "results/rivals", help="OUTPUT of the runs")
    output = parser.parse_args().output
    if not output.is_dir():
        sys.exit(f"error: {output} is not there. It is the OUTPUT of rivals.launch.")
    print(f"{collect(output)} finished runs of {output} are in {RECORDS}.")


if __name__ == "__main__":
    main()
