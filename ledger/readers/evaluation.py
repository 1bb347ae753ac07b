"""Evaluations of overlays/verl/recipe/era/evaluate.py: summary.json, and BENCHMARK.settings.json beside it.

Accuracies are in percent; `average` is the paper's, over its six benchmarks, where all are there. A benchmark without
all its samples has no value, nor has one that was sampled otherwise than the ledger's runs: other samples per problem,
temperature, top-p, length, prompt, or a part of its problems. In folders whose name ends with -pass the number of
samples is free, because pass@k needs more. The samples are not read again: evaluate.py writes the summary from them,
last of all.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from ledger.readers import recipes
from ledger.readers.run_folder import EVALUATION, Z95, Needs, Problems, RunFolder, digest_of, names_of, split_seed
from ledger.results import Curve, Result

FILE, SETTINGS, SAMPLES = "summary.json", ".settings.json", ".samples.jsonl"
SHARED = ("model_sha256", "engine", "dtype", "max_tokens", "prompt", "seed")  # alike within a folder
PASS = "-pass"  # ends the names of evaluations for pass@k


def recognises(folder: Path, names: Set[str]) -> bool:
    return any(name.endswith((SETTINGS, SAMPLES)) or name == FILE for name in names)


def read(folder: Path, needs: Needs) -> list[RunFolder]:
    file = folder / FILE
    problems, of_folder = Problems(file), Problems(folder)
    name, seed = split_seed(names_of(folder)[1])
    settings, settings_problems = read_settings(folder)
    summary = read_json(file, problems)
    if not settings and summary is not None and not (isinstance(summary, dict) and "benchmarks" in summary):
        return []  # the demos have a summary.json too
    benchmarks = summary.get("benchmarks") if isinstance(summary, dict) else None
    if not isinstance(benchmarks, dict) or not all(isinstance(entry, dict) for entry in benchmarks.values()):
        if summary is not None:
            problems.add("is not a summary of evaluate.py: it has no benchmarks")
        benchmarks = {}
    mixed = [key for key in SHARED if len({json.dumps(one.get(key)) for one in settings.values()}) > 1]
    if mixed:
        of_folder.add(f"its benchmarks were sampled with different {', '.join(mixed)}: the evaluation is not used")
    usable = dict(usable_benchmarks(benchmarks, settings, name, problems))
    values, intervals = shares(usable)
    curves = {f"pass@k/{benchmark}": curve for benchmark, entry in usable.items() if (curve := pass_curve(entry))}
    used = bool(usable) and not mixed
    for metric in sorted(needs.metrics(EVALUATION, name) - values.keys() - curves.keys()) if used else ():
        problems.add(f"has no {metric}, which the ledger needs")
    steps, total, complete = progress(benchmarks)
    finished = complete and set(settings) <= set(benchmarks)
    result = Result(
        EVALUATION, name, seed, str(folder), finished, steps, total or None, values,
        intervals, "problems" if intervals else "", curves, used=used,
    )  # fmt: skip
    digest = digest_of(file) if file.is_file() else ""
    return [RunFolder(result, problems.all() + settings_problems + of_folder.all(), digest)]


def read_json(file: Path, problems: Problems):
    """None, and a problem, for what cannot be read."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        problems.add("is missing: the evaluation has not finished. The same command continues it")
    except json.JSONDecodeError as error:
        problems.add(f"is empty or cut short: {error.msg}", error.lineno)
    except UnicodeDecodeError:
        problems.add("is not UTF-8 text")
    except (ValueError, RecursionError) as error:  # a number too long or a nesting too deep for Python
        problems.add(f"cannot be read: {error}")
    return None


def read_settings(folder: Path) -> tuple[dict[str, dict], list]:
    """By benchmark, and problems."""
    found, problems = {}, []
    for file in sorted(folder.glob(f"*{SETTINGS}")):
        of_file = Problems(file)
        data = read_json(file, of_file)
        settings = data.get("settings") if isinstance(data, dict) else None
        if isinstance(settings, dict):
            found[file.name.removesuffix(SETTINGS)] = settings
        elif data is not None:
            of_file.add("has no settings of evaluate.py")
        problems += of_file.all()
    return found, problems


def usable_benchmarks(
    benchmarks: Mapping, settings: Mapping[str, Mapping], name: str, problems: Problems
) -> Iterator[tuple[str, Mapping]]:
    for benchmark, entry in benchmarks.items():
        if reason := why_not(benchmark, entry, settings.get(benchmark), name):
            problems.add(f"{benchmark}: {reason}; it is left out")
        else:
            yield benchmark, entry


def shares(usable: Mapping[str, Mapping]) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracies and half-widths of their intervals, in percent; the average of the paper's six where all are there."""
    values = {name: 100 * entry["accuracy"] for name, entry in usable.items()}
    errors = {name: entry["standard_error"] for name, entry in usable.items() if entry["standard_error"] is not None}
    errors = {name: 100 * error for name, error in errors.items()}
    six = recipes.paper_average()
    if set(six) <= set(values):
        values["average"] = math.fsum(values[name] for name in six) / len(six)
    if set(six) <= set(errors):
        errors["average"] = math.sqrt(math.fsum(errors[name] ** 2 for name in six)) / len(six)
    return values, {name: Z95 * error for name, error in errors.items()}


def progress(benchmarks: Mapping[str, Mapping]) -> tuple[int, int, bool]:
    """Samples that are there, those that were asked for, and whether the evaluation says that it is complete."""

    def count(entry: Mapping, key: str) -> int:
        return entry[key] if type(entry.get(key)) is int else 0

    entries = benchmarks.values()
    steps = sum(count(entry, "samples") for entry in entries)
    total = sum(count(entry, "problems") * count(entry, "samples_per_problem") for entry in entries)
    return steps, total, bool(entries) and all(entry.get("complete") is True for entry in entries)


def why_not(benchmark: str, entry: Mapping, settings: Mapping | None, name: str) -> str:
    """Why a benchmark's numbers cannot be used; empty if they can."""
    if settings is None:
        return f"there is no {benchmark}{SETTINGS} that could be read, so nothing says how it was sampled"
    if problem := next(bad_numbers(entry), ""):
        return problem
    if entry["complete"] is not True:
        return f"{entry['samples']} of {entry['problems'] * entry['samples_per_problem']} samples are there"
    now = {**entry["protocol"], "problems": entry["problems"]}
    before = {key: settings.get(key) for key in now}
    if now != before:
        return f"the summary is of other samples than its settings say: {_differences(before, now)}"
    paper = recipes.protocol(benchmark) or {}
    if paper and name.endswith(PASS):
        paper.pop("samples")
        if not paper["temperature"]:  # greedy in the table, which gives nothing to choose k from
            paper.pop("temperature")
    other = _differences(paper, now)
    return f"not sampled as in the ledger's runs: {other}" if other else ""


def _differences(expected: Mapping, found: Mapping) -> str:
    different = [key for key, value in expected.items() if found.get(key) != value]
    return ", ".join(f"{key} {found.get(key)} and not {expected[key]}" for key in different)


def bad_numbers(entry: Mapping) -> Iterator[str]:
    if entry.get("complete") not in (True, False):
        yield "`complete` is missing"
        return
    for key in ("problems", "samples_per_problem", "samples"):
        if type(entry.get(key)) is not int or entry[key] < 0:
            yield f"{key} is {entry.get(key)!r}"
    if not isinstance(entry.get("protocol"), dict):
        yield "its protocol is missing"
    if not entry["complete"]:
        return
    pass_at = entry.get("pass_at")
    if not isinstance(pass_at, dict) or "standard_error" not in entry:
        yield "its pass_at or standard_error is missing"
        return
    found = {"accuracy": entry.get("accuracy"), **{f"pass@{k}": share for k, share in pass_at.items()}}
    if entry["standard_error"] is not None:
        found["standard_error"] = entry["standard_error"]
    for key, share in found.items():
        if key.startswith("pass@") and not re.fullmatch(r"pass@\d{1,9}", key):
            yield f"{key} has no number of answers"
        if type(share) not in (int, float) or not 0 <= share <= 1:
            yield f"{key} is {share!r}, and a share between 0 and 1 expected"


def pass_curve(entry: Mapping) -> Curve | None:
    """In percent over k."""
    points = sorted((int(k), 100 * share) for k, share in entry["pass_at"].items())
    if not points:
        return None
    x, y = map(list, zip(*points))
    return Curve(x=x, y=y, low=y, high=y, rows=len(points))
