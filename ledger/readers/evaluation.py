"""Evaluations of overlays/verl/recipe/era/evaluate.py: summary.json, and BENCHMARK.settings.json beside it.

Accuracies are in percent; `average` is the paper's, over its six sets, where all are there. A benchmark that lacks samples has no value.
Nor has one that was sampled otherwise than the paper says: other samples per problem, temperature, top-p, length, or a part of its
problems. In folders whose name ends with -pass the number of samples is free, because pass@k needs more. The samples are not read
again: evaluate.py writes the summary from them, last of all.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from ledger.readers import recipes
from ledger.readers.reading import EVALUATION, Z95, Problems, Reading, Wanted, digest_of, names_of, split_seed
from ledger.results import Curve, Problem, Result

FILE, SETTINGS, SAMPLES = "summary.json", ".settings.json", ".samples.jsonl"
SHARED = (
    "model_sha256",
    "engine",
    "dtype",
    "max_tokens",
    "seed",
)  # what evaluate.py asks of all benchmarks of a folder
PASS = "-pass"  # ends the names of evaluations for pass@k


def recognises(folder: Path, names: Set[str]) -> bool:
    return any(
        name.endswith((SETTINGS, SAMPLES)) or name == FILE for name in names
    )  # the demos have a summary.json too


def read(folder: Path, wanted: Wanted) -> list[Reading]:
    file = folder / FILE
    problems = Problems(file)
    name, seed = split_seed(names_of(folder)[1])
    needed = wanted.by(EVALUATION, name)
    settings, setting_problems = read_settings(folder)
    summary = read_json(file, problems)
    if not settings and summary is not None and not (isinstance(summary, dict) and "benchmarks" in summary):
        return []  # somebody else's
    benchmarks = summary.get("benchmarks") if isinstance(summary, dict) else None
    if summary is not None and not (
        isinstance(benchmarks, dict) and all(isinstance(entry, dict) for entry in benchmarks.values())
    ):
        problems.add("is no summary of evaluate.py: it has no benchmarks")
        benchmarks = None
    settings_of = {benchmark: found for benchmark, (_, found) in settings.items()}
    mixed = differing(settings_of)
    if mixed:
        setting_problems.append(
            Problem(
                str(folder),
                None,
                f"its benchmarks were sampled with different {', '.join(mixed)}: the evaluation is not used",
            )
        )
    counted = {}
    for benchmark, entry in (benchmarks or {}).items():
        reason = why_not(benchmark, entry, settings_of.get(benchmark), name)
        if reason:
            problems.add(f"{benchmark}: {reason}; it is left out")
        else:
            counted[benchmark] = entry
    values = {benchmark: 100 * entry["accuracy"] for benchmark, entry in counted.items()}
    errors = {
        benchmark: 100 * entry["standard_error"]
        for benchmark, entry in counted.items()
        if entry["standard_error"] is not None
    }
    six = recipes.paper_average()
    if set(six) <= set(values):
        values["average"] = math.fsum(values[benchmark] for benchmark in six) / len(six)
    if set(six) <= set(errors):
        errors["average"] = math.sqrt(math.fsum(errors[benchmark] ** 2 for benchmark in six)) / len(six)
    curves = {f"pass@k/{benchmark}": curve for benchmark, entry in counted.items() if (curve := pass_curve(entry))}
    good = bool(counted) and not mixed
    if good:
        for metric in sorted(needed - values.keys() - curves.keys()):
            problems.add(f"has no {metric}, which the ledger needs")
    entries = list((benchmarks or {}).values())
    steps = sum(_count(entry, "samples") for entry in entries)
    total = sum(_count(entry, "problems") * _count(entry, "samples_per_problem") for entry in entries)
    finished = (
        bool(entries)
        and all(entry.get("complete") is True for entry in entries)
        and set(settings_of) <= set(benchmarks or {})
    )
    result = Result(
        kind=EVALUATION, name=name, seed=seed, folder=str(folder), finished=finished, steps=steps, total=total or None, values=values,
        intervals={key: Z95 * error for key, error in errors.items()}, interval_of="problems" if errors else "", curves=curves, used=good,
    )  # fmt: skip
    digest = digest_of(file) if file.is_file() else ""
    return [Reading(result, problems.all() + setting_problems, digest)]


def read_json(file: Path, problems: Problems):
    """None, and a problem, if there is none."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        problems.add("is lacking: the evaluation has not come to its end. The same command goes on with it")
    except json.JSONDecodeError as error:
        problems.add(f"is empty or cut: {error.msg}", error.lineno)
    except UnicodeDecodeError:
        problems.add("is no UTF-8 text")
    except (ValueError, RecursionError) as error:  # a number or a nesting that is too long for Python
        problems.add(f"cannot be read: {error}")
    return None


def read_settings(folder: Path) -> tuple[dict[str, tuple[Path, dict]], list[Problem]]:
    """By benchmark."""
    found, problems = {}, []
    for file in sorted(folder.glob(f"*{SETTINGS}")):
        said = Problems(file)
        data = read_json(file, said)
        settings = data.get("settings") if isinstance(data, dict) else None
        if isinstance(settings, dict):
            found[file.name.removesuffix(SETTINGS)] = file, settings
        elif data is not None:
            said.add("holds no settings of evaluate.py")
        problems += said.all()
    return found, problems


def differing(settings: Mapping[str, Mapping]) -> list[str]:
    """The settings that all benchmarks must share and do not."""
    return [key for key in SHARED if len({json.dumps(one.get(key)) for one in settings.values()}) > 1]


def why_not(benchmark: str, entry: Mapping, settings: Mapping | None, name: str) -> str:
    """Why a benchmark's numbers cannot be taken; empty if they can."""
    if settings is None:
        return f"there is no {benchmark}{SETTINGS} that could be read, so nothing says how it was sampled"
    problem = next(bad_numbers(entry), "")
    if problem:
        return problem
    if entry["complete"] is not True:
        return f"{entry['samples']} of {entry['problems'] * entry['samples_per_problem']} samples are there"
    now = {**entry["protocol"], "problems": entry["problems"]}
    before = {key: settings.get(key) for key in now}
    if now != before:
        return f"the summary is of other samples than its settings say: {_said(before, now)}"
    paper = recipes.protocol(benchmark)
    if paper and name.endswith(PASS):
        paper.pop("samples")
        if not paper["temperature"]:  # greedy in the table, which gives nothing to choose k from
            paper.pop("temperature")
    other = {key: value for key, value in (paper or {}).items() if now.get(key) != value}
    return f"not sampled as in the paper: {_said(other, now)}" if other else ""


def _said(expected: Mapping, found: Mapping) -> str:
    return ", ".join(
        f"{key} {found.get(key)} and not {value}" for key, value in expected.items() if found.get(key) != value
    )


def bad_numbers(entry: Mapping) -> Iterator[str]:
    if entry.get("complete") not in (True, False):
        yield "`complete` is lacking"
        return
    for key in ("problems", "samples_per_problem", "samples"):
        if type(entry.get(key)) is not int or entry[key] < 0:
            yield f"{key} is {entry.get(key)!r}"
    if not isinstance(entry.get("protocol"), dict):
        yield "its protocol is lacking"
    if entry["complete"]:
        pass_at = entry.get("pass_at")
        if (
            not isinstance(pass_at, dict)
            or not all(re.fullmatch(r"\d{1,9}", key) for key in pass_at)
            or "standard_error" not in entry
        ):
            yield "its pass_at or standard_error is lacking"
            return
        shares = {"accuracy": entry.get("accuracy"), **{f"pass@{k}": share for k, share in pass_at.items()}}
        error = entry["standard_error"]
        if error is not None:
            shares["standard_error"] = error
        yield from (
            f"{key} is {share!r}, and a share between 0 and 1 expected"
            for key, share in shares.items()
            if not _is_share(share)
        )


def _is_share(value) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _count(entry: Mapping, key: str) -> int:
    return entry[key] if type(entry.get(key)) is int else 0


def pass_curve(entry: Mapping) -> Curve | None:
    """In percent over k."""
    points = sorted((int(k), 100 * share) for k, share in entry["pass_at"].items())
    if not points:
        return None
    x, y = map(list, zip(*points))
    return Curve(x=x, y=y, low=y, high=y, rows=len(points))
