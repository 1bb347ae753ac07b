# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Whether the folder of a run holds all of it: every row that a run with its settings writes.

A run that was cut, half copied or lost some of its rows must not count as a result, whatever its run.json says.
recipes/rows.py says at which steps a host writes rows.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from recipes import curves, run_json
from recipes.rows import LONGEST_EPISODE, expected_rows

EVALUATION = "summary.json"  # of recipes/llm/evaluate.py


class Incomplete(ValueError):
    """A folder does not hold all of its run; the message says what is missing."""


def incomplete_because(folder: Path, steps: int | None = None) -> str:
    """Why the folder of a run, or of an evaluation, does not hold all of it; "" if it does.

    Compares the steps in the files of its metrics with those that were asked for, without gaps, or the samples of an
    evaluation with its problems. Never raises.

    Args:
        steps: that were asked for. None: those of run.json, which must also say that the run is finished, except
            verl's.
    """
    try:
        _check(Path(folder), steps)
    except Incomplete as reason:
        return str(reason)
    except Exception as error:  # anything may be in a folder that was copied or damaged
        return f"cannot be read ({type(error).__name__}: {error})"
    return ""


def _check(folder: Path, steps: int | None) -> None:
    known = (EVALUATION, curves.VERL, *curves.STEP_COLUMNS)
    files = [name for name in known if (folder / name).exists()]
    if not files:
        raise Incomplete(f"has no metrics: none of {', '.join(known)}")
    if EVALUATION in files:
        _check_evaluation(folder / EVALUATION)
        files.remove(EVALUATION)
    if not files:
        return
    record = run_json.read(folder)
    if not record and steps is None:
        raise Incomplete(f"has no {run_json.FILE} that can be read, so nothing says how it was trained")
    total = record.get("total_steps") if steps is None else steps
    if type(total) is not int or total < 1:
        raise Incomplete(f"{run_json.FILE} does not say how many steps were asked for: total_steps is {total!r}")
    for name in files:
        _check_steps(name, _steps(folder / name), record, total)
    if steps is None and record.get("finished") is not True and curves.VERL not in files:
        raise Incomplete(f"{run_json.FILE} does not say that it is finished")


def _steps(file: Path) -> set[int]:
    """The steps that have a row, from 1."""
    columns = curves.read(file)
    if file.name == curves.VERL:  # whose logger has a line for a validation before the first step
        return {step for metric, values in columns.items() if not metric.startswith("val-") for step in values}
    if not file.read_bytes().endswith(b"\n"):
        raise Incomplete(f"{file.name} ends in the middle of a line" if columns else f"{file.name} is empty")
    counts_from_0 = file.name == "summary.csv"
    return {step + counts_from_0 for step in columns[curves.STEP_COLUMNS[file.name]]}


def _check_steps(name: str, steps: set[int], record: dict[str, Any], total: int) -> None:
    last = max(steps, default=0)
    if last > total + LONGEST_EPISODE:
        raise Incomplete(f"{name} has step {last}, and {total} were asked for")
    lacking = first_lacking(record, total, steps)
    if lacking is not None:
        part = f"{last} of {total} steps" if lacking > last else f"no row of step {lacking}"
        raise Incomplete(f"{name} has {part}")
    rows = expected_rows(record, total)
    if not rows.later and (others := {step for step in steps if step < total}.difference(rows.steps)):
        raise Incomplete(f"{name} has a row of step {min(others)}, at which a run with these settings has none")


def first_lacking(record: dict[str, Any], total: int, steps: Collection[int], column: str = "") -> int | None:
    """The first step at which a whole run has a row, or a value in the column, and these steps lack it; None if none.

    Args:
        record: run.json, which says the run's settings.
        total: the steps that were asked for.
        steps: of the rows that are there, or of those with a value in the column. Quick to look into: a set.
    """
    rows = expected_rows(record, total, column)
    for step in rows.steps:
        if step not in steps and not any(at in steps for at in range(step + 1, step + rows.later + 1)):
            return step
    return None


def _check_evaluation(file: Path) -> None:
    benchmarks = json.loads(file.read_text())["benchmarks"]
    if not benchmarks:
        raise Incomplete(f"{file.name} has no benchmark")
    for name, benchmark in benchmarks.items():
        check_benchmark(name, benchmark)


def check_benchmark(name: str, benchmark: dict[str, Any]) -> None:
    """Raises Incomplete if the summary of a benchmark, by recipes/llm/evaluate.py, is not of all its samples."""
    problems, each, samples = (benchmark.get(key) for key in ("problems", "samples_per_problem", "samples"))
    protocol = benchmark.get("protocol") or {}
    expected = protocol.get("problems", problems) * protocol.get("samples", each)
    if samples != expected or problems * each != expected:
        raise Incomplete(f"{EVALUATION} has {samples} of {expected} samples of {name}")
    if not 0 <= (accuracy := benchmark.get("accuracy")) <= 1:
        raise Incomplete(f"{EVALUATION} has {accuracy} for accuracy of {name}, which is from 0 to 1")
