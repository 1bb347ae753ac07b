# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Folders of results as values: from verl, its evaluation, timm, FastTD3 and recipes/control.

A folder is found by the file that its metrics are in, and belongs to the entries whose `folder` is its name without
-seed<n>. run.json says how a training was started and whether it is finished (recipes/run_json.py)."""

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ledger.paper import ROOT, Entry, Paper

APART = ("time", "alpha", "obac")  # folders that are part of their runs' names
IMAGENET_IMAGES = 50_000  # of its validation
Z95 = 1.96  # standard errors on either side of a mean's 95 % interval


@dataclass(eq=False)
class Result:
    """What one folder holds: a training with one seed, or the evaluation of one.

    curves: by metric, over steps, epochs (from 1) or k. values: single numbers. intervals: half-widths (95 %) of values
    from the run's own evaluation, over its problems or images. steps: how many are done; total: how many were asked
    for. info: run.json. why: the reason for not using the result, or ""."""

    is_evaluation: bool
    name: str
    seed: int | None
    folder: Path
    curves: dict[str, pd.Series] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    total: int | None = None
    finished: bool = False
    info: Mapping = field(default_factory=dict)
    digest: str = ""
    why: str = ""
    from_repository: bool = False


def usual_folders() -> list[Path]:
    """Where the recipes write by default, and OUTPUT, as far as they exist. The Makefile has the same variables."""
    given = os.environ.get
    home = ROOT / (given("RAY_DATA_HOME") or Path.home() / "verl")
    places = [home / "ckpts/ERA", home / "eval", ROOT / "results/control"]
    places += [ROOT / (given("CHECKOUTS") or "checkouts") / name / "output/era" for name in ("timm", "fasttd3")]
    places += [ROOT / given("OUTPUT")] if given("OUTPUT") else []
    return [place for place in places if place.is_dir()]


def collect(
    paper: Paper, folders: Sequence[Path], repository: Path | None = None, with_modified: bool = False
) -> list[Result]:
    """All results of the paper's runs in the folders and below; those with a `why` do not count.

    Args:
        repository: results that came with this project; the user's own results of a run come before these.
        with_modified: results of modified code are used too."""
    found = [result for folder in folders for result in read_folder(folder, paper)]
    for result in read_folder(repository, paper) if repository else ():
        result.from_repository = True
        found.append(result)
    for result in found:
        result.why = result.why or why_not_used(result, with_modified)
    leave_out_other_lengths(found)
    counted: dict[tuple, Result] = {}
    for result in sorted(found, key=lambda result: not result.finished):
        keys = [(result.is_evaluation, result.name, key) for key in (result.seed, result.digest)]
        others = [counted[key] for key in keys if key in counted]
        if others and not result.why:
            result.why = f"is the run in {others[0].folder}, which counts, or a copy of it"
        if not result.why:
            counted |= dict.fromkeys(keys, result)
    return found


def leave_out_other_lengths(found: Sequence[Result]) -> None:
    """Leave out runs that were asked for other steps than the repository's runs of their name, or else than most."""
    rows: dict[str, list[Result]] = {}
    for result in found:
        if result.finished and result.total and not (result.why or result.is_evaluation):
            rows.setdefault(result.name, []).append(result)
    for results in rows.values():
        totals = [result.total for result in results if result.from_repository] or [result.total for result in results]
        usual = max(totals, key=lambda total: (totals.count(total), total))
        for result in results:
            if result.total != usual:
                result.why = f"was asked for {result.total} steps, and other runs of its row for {usual}"


def why_not_used(result: Result, with_modified: bool) -> str:
    """Why run.json rules the result out, or "". What run.json does not say, as in older runs, does not rule it out."""
    info = result.info
    if not info and not result.is_evaluation:
        return "has no run.json, so nothing says how it was trained"
    if None not in (result.seed, info.get("seed")) and result.seed != info["seed"]:
        return f"run.json says seed {info['seed']}, and the folder's name {result.seed}"
    if info.get("as_paper") is False:
        return f"was not trained as the recipe says, but with {' '.join(info.get('added') or ()) or 'other settings'}"
    if info.get("modified") and not with_modified:
        return "was trained with modified code; --with-modified takes it"
    return ""


def read_folder(root: Path, paper: Paper) -> Iterator[Result]:
    """The results below a folder. Runs that are not the paper's, such as a demo's, are passed over."""
    entries = {(bool(entry.evaluation), entry.folder): entry for entry in paper.entries.values()}
    for filename, reader in READERS.items():
        for file in sorted(root.rglob(filename)):
            folder = file.parent.absolute()
            name, seed = re.fullmatch(r"(.+?)(?:-seed(\d+))?", folder.name).groups()
            name = f"{folder.parent.name}/{name}" if folder.parent.name in APART else name
            result = Result(reader is evaluation, name, seed and int(seed), file.parent)
            entry = entries.get((result.is_evaluation, name))
            if entry is None:
                continue
            try:
                run_json = folder / "run.json"
                result.info = json.loads(run_json.read_text()) if run_json.exists() else {}
                result.total, result.finished = result.info.get("total_steps"), result.info.get("finished") is True
                result.digest = hashlib.sha256(file.read_bytes()).hexdigest()
                reader(result, file, entry, paper)
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                result.why = f"cannot be read ({type(error).__name__}: {error})"
            yield result


def whole_lines(file: Path) -> str:
    """The text without an unfinished last line, which the run is still writing or left when it was killed."""
    text = file.read_text(errors="replace")
    return text[: text.rfind("\n") + 1]


def curves_of(rows: Iterable[tuple[int, str, str | float | None]]) -> dict[str, pd.Series]:
    """rows: step, metric and value, as they were written. Where a resumed training wrote a step again, the last value
    counts. A metric with any value that is not a finite number is left out, because the run diverged."""
    written: dict[str, dict] = {}
    for step, metric, value in rows:
        written.setdefault(metric, {})[step] = value
    curves = {
        metric: pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").astype(float).sort_index()
        for metric, values in written.items()
    }
    return {metric: curve for metric, curve in curves.items() if np.isfinite(curve).all()}


def read_csv(file: Path, step: str, first: int = 0) -> dict[str, pd.Series]:
    """Every column over the column `step` plus `first`. An empty cell is skipped; "nan" is not."""
    return curves_of(
        (int(row[step]) + first, metric, value)
        for row in csv.DictReader(whole_lines(file).splitlines())
        # timm repeats its header on resuming; DictReader has None for cells that are missing or too many.
        if row[step].isdecimal() and None not in (*row, *row.values())
        for metric, value in row.items()
        if value and metric != step
    )


# -------------------------------------------------------------------------------------------------------------- readers


def verl(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """A line is {"step": 3, "data": {"actor/entropy": 0.31}}; NaN is null."""
    rows = []
    for line in whole_lines(file).splitlines():
        try:
            written = json.loads(line)
        except ValueError:
            continue  # cut by a kill, before the training was resumed
        rows += [(written["step"], metric, value) for metric, value in written["data"].items()]
    result.curves = curves_of(rows)
    times = result.curves.get("timing_s/old_log_prob")
    if times is not None and 1 in times.index:
        result.values["timing_s/old_log_prob, first step"] = float(times[1])
    result.total, result.steps = paper.runs[entry.run].steps, max(step for step, *_ in rows)
    result.finished = result.steps >= result.total
    if result.steps > result.total:
        result.why = f"has {result.steps} steps, and the paper's run {result.total}"


def evaluation(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """Accuracies in percent, of benchmarks that are whole and sampled as in the paper; pass@k as curves over k."""
    benchmarks, errors = json.loads(file.read_text())["benchmarks"], {}
    for name, one in benchmarks.items():
        if not one["complete"] or one.get("as_paper") is False:
            continue
        result.values[name] = 100 * one["accuracy"]
        if one["standard_error"] is not None:
            errors[name] = 100 * one["standard_error"]
        if one["pass_at"]:
            shares = {int(k): 100 * share for k, share in one["pass_at"].items()}
            result.curves[f"pass@k/{name}"] = pd.Series(shares, dtype=float).sort_index()
    six = paper.tolerances["answers"]["answers"].keys()
    if six <= result.values.keys():
        result.values["average"] = float(np.mean([result.values[name] for name in six]))
    if six <= errors.keys():
        errors["average"] = float(np.hypot.reduce([errors[name] for name in six])) / len(six)
    result.intervals = {name: Z95 * error for name, error in errors.items()}
    result.steps = sum(one["samples"] for one in benchmarks.values())
    result.total = sum(one["problems"] * one["samples_per_problem"] for one in benchmarks.values())
    result.finished = bool(benchmarks) and all(one["complete"] for one in benchmarks.values())


def timm(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """A row for each epoch. Runs in the folder time/ are compared by their speed, which log.txt has."""
    result.curves = read_csv(file, "epoch", first=1)
    result.steps = int(max(curve.index[-1] for curve in result.curves.values()))
    for metric in ("top1", "top5"):
        if f"eval_{metric}" in result.curves:
            percent = result.values[metric] = float(result.curves[f"eval_{metric}"].iloc[-1])
            if result.name.startswith("imagenet"):
                result.intervals[metric] = Z95 * np.sqrt(percent * (100 - percent) / IMAGENET_IMAGES)
    if result.name.startswith("time/"):
        log = (file.parent / "log.txt").read_text(errors="replace")
        # "Train: 1 [195/195 (100%)] ... Time: 0.350s,  731.43/s  (0.314s,  815.29/s)": the last line has the mean.
        # In the first epoch cuDNN chooses its kernels.
        rates = dict(re.findall(r"Train: (\d+) \[.*Time: .*, +(\d+\.\d+)/s\)", log))
        seconds = [1000 / float(rate) for epoch, rate in rates.items() if epoch != "0"]
        if seconds:
            result.values["seconds of 1,000 images"] = float(np.mean(seconds))


def train_csv(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """The file of FastTD3 and recipes/control: a row for every 100 steps, or for each evaluation."""
    result.curves = read_csv(file, "global_step")
    result.steps = int(max(curve.index[-1] for curve in result.curves.values()))
    seconds = result.curves.get("seconds")
    if result.name.startswith("time/") and seconds is not None and len(seconds) > 1:
        steps = seconds.index[-1] - seconds.index[0]
        result.values["seconds of a step"] = float(seconds.iloc[-1] - seconds.iloc[0]) / steps


READERS = {"metrics.jsonl": verl, "summary.json": evaluation, "summary.csv": timm, "train.csv": train_csv}
