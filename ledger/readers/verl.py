"""verl's trainings: metrics.jsonl of the logger "file" (docs/llm/recipes.md).

A line is {"step": 3, "data": {"actor/entropy": 0.31}}; null stands for NaN and infinities. A resumed training appends,
so a step may be there twice; of each metric the later value counts. The folder is its CKPTS_DIR. For how many steps it
was started is only in the ledger.
"""

import json
from array import array
from collections.abc import Set
from pathlib import Path

import orjson

from ledger.readers.run_folder import TRAINING, Needs, Problems, RunFolder, digest_of, names_of, split_seed
from ledger.readers.tables import LONGEST_STEP, Column, Log, are_in_order, curves_of, lines_of, series
from ledger.results import Result

FILE = "metrics.jsonl"
FIRST_STEP = ", first step"  # ends the name of a metric of the ledger that is a value and not a curve
VALIDATION = "val-"  # begins the metrics of a validation, which may have a line of its own


def recognises(folder: Path, names: Set[str]) -> bool:
    return FILE in names


def read(folder: Path, needs: Needs) -> list[RunFolder]:
    file = folder / FILE
    problems = Problems(file)
    name, seed = split_seed(names_of(folder)[1])
    needed = needs.metrics(TRAINING, name)
    log = read_log(file, {metric.removesuffix(FIRST_STEP) for metric in needed}, problems)
    first, total, steps = needs.first.get(name, 1), needs.steps.get(name), log.last_step
    used = are_in_order(log, problems, first) and bool(log.steps)
    if total and steps > total:
        problems.add(f"has {steps} steps, and the ledger's run {total}: it is another run, and not used")
        used = False
    values = {}
    at_first = sorted(metric for metric in needed if metric.endswith(FIRST_STEP))
    for metric in at_first:
        source = metric.removesuffix(FIRST_STEP)
        points = series(source, log.columns.get(source, Column()), problems)
        if source not in needed:
            log.columns.pop(source, None)
        if points is not None and points[0][0] == first:
            values[metric] = float(points[1][0])
        elif used:
            problems.add(f"has no {source} at step {first}, which the ledger needs")
    curves = curves_of(log, needed.difference(at_first), problems, say=used)
    finished = bool(total and steps >= total)
    result = Result(TRAINING, name, seed, str(folder), finished, steps, total, values, curves=curves, used=used)
    return [RunFolder(result, problems.all(), digest_of(file))]


def read_log(file: Path, metrics: Set[str], problems: Problems) -> Log:
    log = Log(array("q"), array("q"), {}, array("q"))
    for number, line in lines_of(file, problems, log.bad):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = _with_nan(line)
        step, data = (row.get("step"), row.get("data")) if isinstance(row, dict) else (None, None)
        if type(step) is not int or not 0 <= step < 10**LONGEST_STEP or not isinstance(data, dict):
            problems.add_alike("left out", 'is not {"step": ..., "data": {...}}; the line is left out', number)
            log.bad.append(number)
            continue
        for metric in metrics & data.keys():
            value = data[metric]
            log.columns.setdefault(metric, Column()).add(step, number, _number(value))
        if not all(metric.startswith(VALIDATION) for metric in data):
            log.steps.append(step)
            log.lines.append(number)
    if not log.steps:
        problems.add("has no step" if log.bad or file.stat().st_size else "is empty")
    return log


def _number(value) -> float:
    try:
        return float(value) if type(value) in (int, float) else float("nan")
    except OverflowError:
        return float("nan")


def _with_nan(line: bytes):
    """Python's own reader takes NaN and Infinity, which are not JSON; None for what it cannot read either."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
