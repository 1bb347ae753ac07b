# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Folders of results as values: verl's, its evaluation's, timm's, FastTD3's and those of recipes/control.

A folder is found by the file that its metrics are in, and belongs to the entries whose `folder` is its name without
-seed<n>. A last line without its end may be cut and is left out; of steps that a resumed training wrote again the last
counts; a metric that is anywhere not a number, or out of its range, is left out of its result. run.json says how the
run was started (recipes/run_json.py); what an older run does not say is unknown, and it counts.
"""

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, harmonic_mean

import numpy as np
import pandas as pd

from ledger.paper import Entry, Paper

TRAINING, EVALUATION = "training", "evaluation"
APART = ("time", "alpha")  # folders that are part of their runs' names
NOT_SEARCHED = ("interrupted-", "global_step_", ".")  # begin the names of folders without results of their own
SECONDS = "seconds of a step"
FIRST_STEP = ", first step"  # ends the name of a metric of verl's that is a value and not a curve
Z95 = 1.96  # standard errors on either side of a mean's 95 % interval
IMAGENET_IMAGES = 50_000  # of its validation
# What a metric can be; the others may be any finite number. Percent for accuracies, seconds for times.
RANGES = {
    "eval_top1": (0, 100),
    "eval_top5": (0, 100),
    "era/low_fraction": (0, 1),
    "era/high_fraction": (0, 1),
    "timing_s/old_log_prob": (1e-9, np.inf),
    "seconds": (0, np.inf),
}


@dataclass(eq=False)
class Result:
    """What one folder holds: a training or an evaluation with one seed.

    curves: by metric, over steps (epochs from 1; k). values: single numbers. intervals: half-widths (95 %) of values
    from the run's own evaluation, over `interval_of`. steps: done; total: asked for. info: run.json. why: it is not
    used; empty if it is."""

    kind: str
    name: str
    seed: int | None
    folder: Path
    curves: dict[str, pd.Series] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, float] = field(default_factory=dict)
    interval_of: str = ""
    steps: int = 0
    total: int | None = None
    finished: bool = False
    info: Mapping = field(default_factory=dict)
    digest: str = ""
    why: str = ""
    from_repository: bool = False

    @property
    def label(self) -> str:
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"


def collect(
    paper: Paper, folders: Sequence[Path], repository: Path | None = None, with_modified: bool = False
) -> list[Result]:
    """All results of the paper's runs in the folders and below.

    Args:
        repository: results that came with this project; the user's own of the same run count before them.
        with_modified: those of modified code are used too."""
    found = [result for folder in folders for result in read_folder(folder, paper)]
    for result in read_folder(repository, paper) if repository else ():
        result.from_repository = True
        found.append(result)
    for result in found:
        result.why = result.why or _why_not_paper(result.info, with_modified)
    _leave_out_repeated(found)
    _leave_out_other_lengths(found)
    return found


def _why_not_paper(info: Mapping, with_modified: bool) -> str:
    if info.get("as_paper") is False:
        added = " ".join(map(str, info.get("added") or []))
        return f"was not trained as the recipe says{f': {added} was added' if added else ''}"
    if info.get("modified") and not with_modified:
        return "was trained with modified code; --with-modified takes it"
    return ""


def _leave_out_repeated(found: Sequence[Result]) -> None:
    """Own results count before the repository's; of copies the repository's counts, or the first; of others with one
    seed none counts. An unfinished run takes nothing from a finished one."""
    first: dict[tuple, Result] = {}
    for result in sorted(found, key=lambda result: (not result.finished, not result.from_repository)):
        if result.why:
            continue
        copied = first.setdefault((result.kind, result.name, result.digest), result)
        if copied is not result:
            result.why = f"has the numbers of {copied.folder} to the byte, so it is not another run"
    own = {
        _key(result): result for result in found if result.finished and not result.why and not result.from_repository
    }
    for result in found:
        if result.from_repository and not result.why and (other := own.get(_key(result))):
            result.why = f"came with the repository; {other.folder} is your own and counts"
    same: dict[tuple, list[Result]] = {}
    for result in found:
        if not result.why and result.finished:
            same.setdefault(_key(result), []).append(result)
    for results in same.values():
        for result in results if len(results) > 1 else ():
            others = ", ".join(str(other.folder) for other in results if other is not result)
            result.why = f"is also in {others} with other numbers, so none counts: leave one, or name another seed"


def _leave_out_other_lengths(found: Sequence[Result]) -> None:
    """A run that was asked for other steps than most of its name, or than the repository's, is another experiment."""
    same: dict[tuple, list[Result]] = {}
    for result in found:
        if result.kind == TRAINING and result.finished and not result.why and result.total:
            same.setdefault((result.kind, result.name), []).append(result)
    for results in same.values():
        steps = [result.total for result in results if result.from_repository] or [result.total for result in results]
        usual = max(steps, key=lambda total: (steps.count(total), total))
        for result in results:
            if result.total != usual:
                result.why = f"was asked for {result.total} steps, and the other runs of its row for {usual}"


def _key(result: Result) -> tuple:
    return result.kind, result.name, result.seed


# -------------------------------------------------------------------------------------------------------------- folders


def read_folder(root: Path, paper: Paper) -> Iterator[Result]:
    """Links to folders are not followed. What is not of the paper, such as a demo, is passed over."""
    entries = {(EVALUATION if entry.evaluation else TRAINING, entry.folder): entry for entry in paper.entries.values()}
    for at, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(NOT_SEARCHED))
        for name in sorted(READERS.keys() & set(names)):
            kind, reader = READERS[name]
            file = Path(at, name)
            result = _named(kind, file.parent)
            entry = entries.get((kind, result.name))
            if entry is None or not file.is_file():
                continue
            if result.why:
                yield result
                continue
            try:
                reader(result, file, entry, paper)
                result.digest = hashlib.sha256(file.read_bytes()).hexdigest()
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                result.why = f"{name} cannot be read ({type(error).__name__}: {error})"
            yield result


def _named(kind: str, folder: Path) -> Result:
    """With the folder's name, seed and run.json."""
    whole = Path(os.path.abspath(folder))
    found = re.fullmatch(r"(.+)-seed(\d+)", whole.name)
    name, seed = (found[1], int(found[2])) if found else (whole.name, None)
    if whole.parent.name in APART:
        name = f"{whole.parent.name}/{name}"
    info = read_info(folder)
    result = Result(kind, name, seed, folder, info=info)
    said, total = info.get("seed"), info.get("total_steps")
    if seed is not None and said is not None and said != seed:
        result.why = f"run.json says seed {said!r}, and the folder's name {seed}: name the folder after its seed"
    elif total is not None and not (type(total) is int and total > 0):
        result.why = f"run.json: total_steps is {total!r}, and a number of steps was expected"
    elif info.get("finished") not in (True, False, None):
        result.why = f"run.json: finished is {info['finished']!r}, and true or false was expected"
    elif not isinstance(info.get("hardware", {}), dict):
        result.why = "run.json: hardware is not a table of names and values"
    return result


def read_info(folder: Path) -> dict:
    """run.json; {} without it, or for something else in it."""
    file = folder / "run.json"
    try:
        found = json.loads(file.read_text()) if file.is_file() else {}
    except (OSError, ValueError):
        found = {}
    return found if isinstance(found, dict) else {}


def read_csv(result: Result, file: Path, step: str, shift: int = 0) -> None:
    """Sets curves and steps: the columns over `step`, as far as they are numbers. shift: added to the steps."""
    lines = file.read_text(errors="replace").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n") and line.count(",") == lines[0].count(",")]
    # An empty cell has no value, and "nan" is a value that is no number.
    table = pd.read_csv(io.StringIO("".join(whole)), dtype=str, keep_default_na=False, quoting=csv.QUOTE_NONE)
    numbers = table.apply(pd.to_numeric, errors="coerce").replace([np.inf, -np.inf], np.nan)
    is_row = numbers[step].notna()  # not a header that timm repeats on resuming
    table, numbers = table[is_row], numbers[is_row]
    bad = [name for name in table if (numbers[name].isna() & (table[name] != "")).any()]
    numbers = numbers.drop(columns=bad).drop_duplicates(step, keep="last").set_index(step).sort_index()
    numbers.index += shift
    result.steps = int(numbers.index.max()) if len(numbers) else 0
    _add_curves(result, {name: numbers[name].dropna() for name in numbers})


def _add_curves(result: Result, curves: Mapping[str, pd.Series]) -> None:
    """Those that are numbers in their range throughout."""
    for name, curve in curves.items():
        low, high = RANGES.get(name, (-np.inf, np.inf))
        if len(curve) and np.isfinite(curve).all() and curve.between(low, high).all():
            result.curves[name] = curve


# -------------------------------------------------------------------------------------------------------------- readers


def verl(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """A line is {"step": 3, "data": {"actor/entropy": 0.31}}; a validation may have one of its own."""
    run = paper.runs[entry.run]
    entries = [other for other in paper.entries.values() if other.folder == result.name and not other.evaluation]
    wanted = {metric for other in entries for metric in other.metrics}
    wanted |= {claim.metric for claim in paper.claims.values() for other in entries if other.row in claim.rows}
    found: dict[str, dict[int, float]] = {metric.removesuffix(FIRST_STEP): {} for metric in wanted if metric}
    for line in file.read_bytes().splitlines(keepends=True):
        try:
            row = json.loads(line) if line.endswith(b"\n") else {}
            step, data = int(row["step"]), row["data"]
            if not all(metric.startswith("val-") for metric in data):
                result.steps = max(result.steps, step)
            for metric in found.keys() & data.keys():
                found[metric][step] = np.nan if data[metric] is None else float(data[metric])
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # a line that was cut, or is of another format
    _add_curves(result, {metric: pd.Series(values, dtype=float).sort_index() for metric, values in found.items()})
    first = 1 + (paper.runs[run.after].steps if run.after else 0)
    for metric in wanted:
        curve = result.curves.get(metric.removesuffix(FIRST_STEP))
        if metric.endswith(FIRST_STEP) and curve is not None and curve.index[0] == first:
            result.values[metric] = float(curve.iloc[0])
    result.total = run.steps
    result.finished = result.steps >= run.steps
    if result.steps > run.steps:
        result.why = f"has {result.steps} steps and the paper's run {run.steps}, so it is another run"


def evaluation(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """Accuracies in percent, of benchmarks that are whole and sampled as in the paper; pass@k as curves over k."""
    benchmarks = json.loads(file.read_text())["benchmarks"]
    whole = {
        name: one for name, one in benchmarks.items() if one["complete"] is True and one.get("as_paper") is not False
    }
    errors = {}
    for name, one in whole.items():
        result.values[name] = 100 * one["accuracy"]
        if one["standard_error"] is not None:
            errors[name] = 100 * one["standard_error"]
        curve = pd.Series({int(k): 100 * share for k, share in one["pass_at"].items()}, dtype=float)
        _add_curves(result, {f"pass@k/{name}": curve.sort_index()})
    six = paper.tolerances["answers"]["answers"]
    if set(six) <= set(result.values):
        result.values["average"] = float(np.mean([result.values[name] for name in six]))
    if set(six) <= set(errors):
        errors["average"] = float(np.hypot.reduce([errors[name] for name in six])) / len(six)
    result.intervals = {name: Z95 * error for name, error in errors.items()}
    result.interval_of = "problems" if errors else ""
    result.steps = sum(one["samples"] for one in benchmarks.values())
    result.total = sum(one["problems"] * one["samples_per_problem"] for one in benchmarks.values())
    result.finished = bool(benchmarks) and all(one["complete"] is True for one in benchmarks.values())


def timm(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """A row for each epoch. Trainings in the folder time/ are compared by the time of a step."""
    read_csv(result, file, "epoch", shift=1)
    command = file.parent / "command.txt"  # of older runs, which have no run.json
    words = result.info.get("command") or (command.read_text().split() if command.is_file() else [])
    is_timed = result.name.startswith("time/")
    epochs = [value for flag, value in zip(words, words[1:]) if flag == "--epochs"]
    result.total = result.info.get("total_steps") or (3 if is_timed else int(epochs[-1]) if epochs else None)
    result.finished = bool(result.total) and result.steps >= result.total
    for metric in ("top1", "top5"):
        if f"eval_{metric}" in result.curves:
            result.values[metric] = float(result.curves[f"eval_{metric}"].iloc[-1])
    if result.name.startswith("imagenet") and "classes" not in result.name:
        shares = {metric: value / 100 for metric, value in result.values.items()}
        result.intervals = {
            metric: 100 * Z95 * float(np.sqrt(share * (1 - share) / IMAGENET_IMAGES))
            for metric, share in shares.items()
        }
        result.interval_of = "images"
    log = file.parent / "log.txt"
    if is_timed and log.is_file() and (seconds := _seconds_of_a_step(log.read_text(errors="replace"), words)):
        result.values[SECONDS] = seconds


def _seconds_of_a_step(log: str, words: Sequence[str]) -> float | None:
    """Mean over the epochs without the first, in which cuDNN chooses its kernels, if there are more.

    The log has a step's seconds with three decimals and its images per second with more, so the time is taken from the
    latter and the images of a step: GPUs x -b, times the copies that --aug-splits makes of each."""
    found = re.findall(r"Train: (\d+) \[.*?Time: [\d.]+s, +[\d.]+/s +\((\d+\.\d+)s, +(\d+\.\d+)/s\)", log)
    speeds = {int(epoch): (float(seconds), float(rate)) for epoch, seconds, rate in found}
    counted = [speed for epoch, speed in sorted(speeds.items()) if epoch > 0 or len(speeds) == 1]
    batches = [int(value) for flag, value in zip(words, words[1:]) if flag in ("-b", "--batch-size")]
    if not counted or not batches:
        return None
    images, rate = int(words[1]) * batches[-1], harmonic_mean([rate for _, rate in counted])
    copies = round(fmean(seconds for seconds, _ in counted) * rate / images)
    return copies * images / rate if copies else None


def train_csv(result: Result, file: Path, entry: Entry, paper: Paper) -> None:
    """FastTD3's and recipes/control's: a row for every 100 steps, or for each evaluation."""
    read_csv(result, file, "global_step")
    seconds = result.curves.pop("seconds", None)
    result.total = result.info.get("total_steps")
    is_fasttd3 = paper.runs[entry.run].upstream.startswith("fasttd3")
    if is_fasttd3 and not result.info:  # an older run, which says it in its log
        log = file.parent / "log.txt"
        totals = re.findall(r"\btotal_timesteps=(\d+)", log.read_text(errors="replace")) if log.is_file() else []
        result.total = int(totals[-1]) if totals else None
    elif not result.info:
        result.why = "has no run.json that can be read, so nothing says how it was trained"
    last = (result.total - 1) // 100 * 100 if is_fasttd3 and result.total else result.total
    result.finished = bool(last) and result.steps >= last and result.info.get("finished", True) is True
    if result.name.startswith("time/") and seconds is not None and len(seconds) > 1:
        result.values[SECONDS] = float((seconds.iloc[-1] - seconds.iloc[0]) / (seconds.index[-1] - seconds.index[0]))


Reader = Callable[[Result, Path, Entry, Paper], None]
READERS: dict[str, tuple[str, Reader]] = {
    "metrics.jsonl": (TRAINING, verl),
    "summary.json": (EVALUATION, evaluation),
    "summary.csv": (TRAINING, timm),
    "train.csv": (TRAINING, train_csv),
}
