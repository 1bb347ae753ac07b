# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Folders of results as values: from verl, its evaluation, timm, FastTD3 and recipes/control.

A folder is found by the file that its metrics are in. It belongs to the entries whose `folder` is `entry` in its
run.json; without one, as in evaluations, its name without -seed<n>. run.json also says how a training was started, and
recipes/whole.py whether all of it is there. A folder that was damaged, or copied in part, is one
Result, with the reason in `why`."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ledger.paper import ROOT, Entry, Paper
from recipes import curves, run_json
from recipes.whole import first_lacking, incomplete_because

IMAGENET_IMAGES = 50_000  # of its validation
Z95 = 1.96  # standard errors on either side of a mean's 95 % interval
LONGEST_LINE = 400  # characters of what a record says


@dataclass(eq=False)
class Result:
    """What one folder holds: a training with one seed, or the evaluation of one.

    curves: over steps, epochs (from 1) or k, of the metrics that an entry or claim is about. values: single numbers.
    intervals: half-widths (95 %) of values from the run's own evaluation, over its problems or images. steps: how many
    are done; total: how many were asked for. finished: all of it is there. info: run.json. why: the
    reason for not using the result, or "". without: by metric, why the result is used without it."""

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
    without: dict[str, str] = field(default_factory=dict)
    from_repository: bool = False


@dataclass
class MetricsToRead:
    """Which metrics to read from the folders with one name.

    entry: one of the entries that the folders belong to. metrics: of all of these entries, and of the claims about
    them. at_step: the step at which an unfinished run counts for one of them."""

    entry: Entry
    metrics: set[str] = field(default_factory=set)
    at_step: int | None = None


def metrics_to_read(paper: Paper) -> dict[tuple[bool, str], MetricsToRead]:
    """Which metrics to read from the folders, by is_evaluation and name of a Result."""
    wanted_by_name: dict[tuple[bool, str], MetricsToRead] = {}
    for entry in paper.entries.values():
        wanted = wanted_by_name.setdefault((bool(entry.evaluation), entry.folder), MetricsToRead(entry))
        of_claims = {claim.metric for claim in paper.claims.values() if entry.row in claim.rows}
        wanted.metrics |= {*entry.metrics, *of_claims} - {""}
        wanted.at_step = min(filter(None, (wanted.at_step, entry.at_step)), default=None)
    return wanted_by_name


def usual_folders() -> list[Path]:
    """Where the recipes write by default, and OUTPUT, as far as they exist. The Makefile has the same variables."""
    variable = os.environ.get
    home = ROOT / (variable("RAY_DATA_HOME") or Path.home() / "verl")
    places = [home / "ckpts/ERA", home / "eval", ROOT / "results/control"]
    places += [ROOT / (variable("CHECKOUTS") or "checkouts") / name / "output/era" for name in ("timm", "fasttd3")]
    places += [ROOT / variable("OUTPUT")] if variable("OUTPUT") else []
    return [place for place in places if place.is_dir()]


def collect(
    paper: Paper, folders: Sequence[Path], repository: Path | None = None, with_modified: bool = False
) -> list[Result]:
    """All results of the paper's runs in the folders and below; those with a `why` do not count.

    Args:
        repository: results that came with this project; the user's own results of a run come before these.
        with_modified: results of modified code are used too."""
    results = [result for folder in folders for result in read_folder(folder, paper, with_modified)]
    for result in read_folder(repository, paper, with_modified) if repository else ():
        result.from_repository = True
        results.append(result)
    leave_out_other_lengths(results)
    counted: dict[tuple, Result] = {}
    for result in sorted(results, key=lambda result: (not result.finished, -len(result.curves))):
        if result.why:
            continue
        keys = [(result.is_evaluation, result.name, key) for key in (result.seed, result.digest)]
        same = [counted[key] for key in keys if key in counted]
        if same:
            result.why = f"is the run in {same[0].folder}, which counts, or a copy of it"
        else:
            counted |= dict.fromkeys(keys, result)
    return results


def leave_out_other_lengths(results: Sequence[Result]) -> None:
    """Leave out runs that were asked for other steps than the repository's runs of their name, or else than most."""
    rows: dict[str, list[Result]] = {}
    for result in results:
        if result.finished and result.total and not (result.why or result.is_evaluation):
            rows.setdefault(result.name, []).append(result)
    for row in rows.values():
        totals = [result.total for result in row if result.from_repository] or [result.total for result in row]
        usual = max(Counter(totals).items(), key=lambda pair: (pair[1], pair[0]))[0]
        for result in row:
            if result.total != usual:
                result.why = f"was asked for {result.total} steps, and other runs of its row for {usual}"


# ---------------------------------------------------------------------------------------------- folders and their files


def read_folder(root: Path, paper: Paper, with_modified: bool = False) -> Iterator[Result]:
    """The results below a folder. Runs that are not the paper's, such as a demo's, are passed over."""
    known, unlisted = metrics_to_read(paper), []
    for at, folders_below, names in os.walk(root, onerror=unlisted.append):
        folders_below.sort()
        folder = Path(at)
        for filename, reader in READERS.items():
            if filename not in names:
                continue
            is_evaluation = reader is evaluation
            name, seed = named(folder) if is_evaluation else recorded(folder) or named(folder)
            if (is_evaluation, name) not in known:
                continue
            result = Result(is_evaluation, name, seed, folder)
            try:
                result.why = read(result, folder / filename, reader, known[is_evaluation, name], paper, with_modified)
            except Exception as error:  # whatever is in one folder, the others are read
                result.why = f"cannot be read ({type(error).__name__}: {error})"
            yield result
    for error in unlisted:
        if isinstance(error, FileNotFoundError):  # records/ may be missing
            continue
        folder = Path(error.filename)
        yield Result(False, *named(folder), folder, why=f"cannot be listed ({error.strerror})")


def recorded(folder: Path) -> tuple[str, int | None] | None:
    """The entry and the seed that run.json names; None if it names no entry."""
    record = {} if folder.name.startswith(run_json.SET_ASIDE) else run_json.read(folder)
    return (record["entry"], record.get("seed")) if record.get("entry") else None


def named(folder: Path) -> tuple[str, int | None]:
    """The entry and the seed that the folder is called by."""
    folder = folder.absolute()
    name, seed = re.fullmatch(r"(.+?)(?:-seed([0-9]+))?", folder.name or "/", re.DOTALL).groups()
    return name, seed and int(seed)


def read(result: Result, file: Path, reader, wanted: MetricsToRead, paper: Paper, with_modified: bool) -> str:
    """Reads the folder of a file into the result. Returns why it does not count, or ""."""
    result.info = run_json.read(result.folder)
    result.total = result.info.get("total_steps")
    if why := why_not_used(result, with_modified):
        return why
    if reader is verl:
        result.total = paper.runs[wanted.entry.run].steps
    steps = result.total if reader is verl else None
    lacks = incomplete_because(result.folder, steps)
    result.finished = not lacks
    if lacks and not (wanted.at_step and incomplete_because(result.folder, wanted.at_step) == ""):
        return lacks
    result.digest = hashlib.sha256(file.read_bytes()).hexdigest()
    why = reader(result, file, wanted, paper)
    if not (why or result.curves or result.values or result.without):
        result.finished = False
        return f"has no values of {', '.join(sorted(wanted.metrics))}"
    return why


def why_not_used(result: Result, with_modified: bool) -> str:
    """Why run.json rules the result out, or "". What run.json does not say does not rule it out."""
    info = result.info
    if not info and not result.is_evaluation:
        return "has no run.json that can be read, so nothing says how it was trained"
    if info.get("entry") and "seed" not in info:  # they are written together
        return "run.json has lost its seed"
    if None not in (result.seed, info.get("seed")) and result.seed != info["seed"]:
        return f"run.json says seed {info['seed']}, and the folder's name {result.seed}"
    # verl's task and agent are a model and an experiment. A launcher, which says as_paper, names folders by the agent.
    name, task, agent = result.name.rpartition("/")[2], info.get("task") or "", info.get("agent") or ""
    agent = agent if info.get("as_paper") is not None and agent != "baseline" else ""
    if info.get("host") != "verl" and not (name.startswith(task) and name.endswith(agent)):
        source = "the entry" if info.get("entry") else "the folder's name"
        return f"run.json says task {task} and agent {info.get('agent')}, and {source} {name}"
    if info.get("as_paper") is False:
        added = " ".join(map(str, info.get("added") or ())) or "other settings"
        return f"was not trained as the recipe says, but with {added}"
    if info.get("modified") and not with_modified:
        return "was trained with modified code; --with-modified takes it"
    return ""


def one_line(text: object) -> str:
    """What a record says, for the terminal and the pages: on one line, not long, and without what a terminal obeys:
    control characters, directions of writing, halves of characters."""
    text = str(text)[: LONGEST_LINE + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= LONGEST_LINE else f"{shown[:LONGEST_LINE]} ..."


# ------------------------------------------------------------------------------------------------------------ the files


def take(result: Result, columns: curves.Columns, metrics: Iterable[str], first: int = 0) -> None:
    """Makes curves of these metrics' columns, over the steps plus `first`. A curve is left out if one of its values is
    not a finite number, because the run diverged, or if it lacks a step; none may have no value."""
    for metric in metrics:
        values = {step + first: value for step, value in columns.get(metric, {}).items()}
        if not values:
            continue
        curve = pd.Series(values, dtype=float).sort_index()
        diverged = curve[~np.isfinite(curve)]
        lacking = first_lacking(result.info, result.total if result.finished else result.steps, values, metric)
        if len(diverged):
            result.without[metric] = f"{diverged.iloc[0]} in step {diverged.index[0]} is not a finite number"
        elif lacking is not None:
            result.without[metric] = f"step {lacking} has no value"
        else:
            result.curves[metric] = curve
    if result.curves or result.without:
        result.without |= {metric: "no step has a value" for metric in metrics if not columns.get(metric)}


def verl(result: Result, file: Path, wanted: MetricsToRead, paper: Paper) -> str:
    """Read verl's metrics."""
    times = "timing_s/old_log_prob"
    columns = curves.read(file)
    steps = {step for column in columns.values() for step in column}
    result.steps = max(steps)
    take(result, columns, {metric.partition(",")[0] for metric in wanted.metrics})
    if times in result.curves and 1 in result.curves[times].index:
        result.values[f"{times}, first step"] = float(result.curves[times][1])
    before = paper.runs[wanted.entry.run].after
    begin = paper.runs[before].steps + 1 if before else 1
    if begin not in steps:
        return f"has no metrics of step {begin}, the first"
    return f"has {result.steps} steps, and the paper's run {result.total}" if result.steps > result.total else ""


def evaluation(result: Result, file: Path, wanted: MetricsToRead, paper: Paper) -> str:
    """Read the accuracies, in percent, of benchmarks that are sampled as in the paper; pass@k as curves over k."""
    benchmarks, errors = json.loads(file.read_text())["benchmarks"], {}
    for name, benchmark in benchmarks.items():
        if benchmark.get("as_paper") is False:
            continue
        result.values[name] = 100 * benchmark["accuracy"]
        if benchmark["standard_error"] is not None:
            errors[name] = 100 * benchmark["standard_error"]
        metric = f"pass@k/{name}"
        if metric in wanted.metrics:
            shares = {int(k): 100 * share for k, share in benchmark["pass_at"].items()}
            curve = pd.Series(shares, dtype=float).sort_index()
            if list(curve.index) != [2**i for i in range(benchmark["samples_per_problem"].bit_length())]:
                result.without[metric] = "k is not 1, 2, 4 and so on, up to the samples of a problem"
            elif not curve.is_monotonic_increasing:
                result.without[metric] = "it falls with k"
            else:
                result.curves[metric] = curve
    six = paper.tolerances["answers"]["answers"].keys()
    if six <= result.values.keys():
        result.values["average"] = float(np.mean([result.values[name] for name in six]))
    if six <= errors.keys():
        errors["average"] = float(np.hypot.reduce([errors[name] for name in six])) / len(six)
    result.intervals = {name: Z95 * error for name, error in errors.items()}
    result.steps = result.total = sum(benchmark["samples"] for benchmark in benchmarks.values())
    return ""


def timm(result: Result, file: Path, wanted: MetricsToRead, paper: Paper) -> str:
    """Read timm's table of epochs. Runs in the folder time/ are compared by their speed, which log.txt has."""
    is_timed = result.name.startswith("time/")
    accuracies = {} if is_timed else {f"eval_{metric}": metric for metric in wanted.metrics}
    columns = curves.read(file)
    result.steps = 1 + max(columns["epoch"])
    take(result, columns, accuracies, first=1)
    for column in accuracies.keys() & result.curves.keys():
        metric = accuracies[column]
        percent = result.values[metric] = float(result.curves[column].iloc[-1])
        if result.name.startswith("imagenet"):
            result.intervals[metric] = Z95 * np.sqrt(percent * (100 - percent) / IMAGENET_IMAGES)
    if is_timed:
        # "Train: 1 [195/195 (100%)] ... Time: 0.350s,  731.43/s  (0.314s,  815.29/s)": the last line has the mean.
        # In the first epoch cuDNN chooses its kernels.
        log = (result.folder / "log.txt").read_text()
        rates = dict(re.findall(r"Train: ([0-9]+) \[.*Time: .*, +([0-9]+\.[0-9]+)/s\)", log))
        epochs = list(map(str, range(result.steps)))
        if lacking := [epoch for epoch in epochs if epoch not in rates]:
            return f"log.txt does not have the speed of epoch {lacking[0]}"
        seconds = [1000 / float(rates[epoch]) for epoch in epochs[1:]]
        if seconds:
            result.values["seconds of 1,000 images"] = float(np.mean(seconds))
    return ""


def train_csv(result: Result, file: Path, wanted: MetricsToRead, paper: Paper) -> str:
    """Read the table of FastTD3 and recipes/control: a row for every 100 steps, or for each evaluation."""
    is_timed = result.name.startswith("time/")
    columns = curves.read(file)
    result.steps = max(columns["global_step"])
    take(result, columns, {"seconds"} if is_timed else wanted.metrics)
    seconds = result.curves.get("seconds")
    if is_timed and seconds is not None and len(seconds) > 1:
        steps = seconds.index[-1] - seconds.index[0]
        result.values["seconds of a step"] = float(seconds.iloc[-1] - seconds.iloc[0]) / steps
    return ""


READERS = {"metrics.jsonl": verl, "summary.json": evaluation, "summary.csv": timm, "train.csv": train_csv}
