# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The command line of reproduce.py."""

import argparse
import csv
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ledger import run
from ledger.paper import ROOT, Entry, Paper, UserError, load

COLLECTED = ROOT / "results/collected.csv"  # entry, state and seeds, as the last `collect` found them
STATES = ("reproduced", "not reproduced", "partial", "run", "not run", "cannot run")  # of ledger/verdicts.py
REPORT = ROOT / "results/report"
NEEDED = ("jinja2", "markdown_it", "matplotlib", "pandas", "scipy")


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    try:
        return options.verb(load(), options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
    return 2


def seed(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r}: a seed is a whole number from 0")
    return int(word)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="reproduce.py", description="The paper's rows and curves beside our results.")
    verbs = parser.add_subparsers(required=True, metavar="list | run | collect | report")

    def verb(name: str, function, help: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=help)
        made.set_defaults(verb=function)
        return made

    listing = verb("list", show, "a line for each row of the paper; with its name, all about one")
    listing.add_argument("row", nargs="?", help="a row (main-era), or one of its entries (hb-fasttd3/h1hand-run-v0)")
    listing.add_argument("--domain", choices=("llm", "vision", "control"))
    listing.add_argument("--place", help="part of a table's or figure's label: main_results, fig:llm")
    listing.add_argument("--state", choices=STATES, help="as the last `collect` found it")
    starting = verb("run", start, "run a row's commands one after the other; again continues them")
    starting.add_argument("row", help="a row, or one of its entries: hb-fastsac-era/h1hand-walk-v0")
    starting.add_argument("--seeds", type=seed, nargs="+", default=(), help="default: the recipe's")
    starting.add_argument("--dry-run", action="store_true", help="print the commands and stop")
    starting.add_argument("--slurm", action="store_true", help="submit to Slurm, where the recipe can")
    for name, help in (
        ("collect", "read all results, and say what they reproduce"),
        ("report", f"collect, and write {REPORT.relative_to(ROOT)}/index.html and report.md"),
    ):
        reading = verb(name, collect, help)
        reading.set_defaults(report=name == "report")
        reading.add_argument("folders", nargs="*", type=Path, help="further results, such as copies from a cluster")
        reading.add_argument("--with-modified", action="store_true", help="results of modified code count too")
    return parser


# ----------------------------------------------------------------------------------------------------------------- list


def show(paper: Paper, options: argparse.Namespace) -> int:
    if options.row:
        return show_one(paper, paper.find(options.row))
    part = (options.place or "").lower()
    if not any(part in place.lower() for place in paper.places):
        raise UserError(f"no table or figure has {options.place!r} in its label. Labels: {', '.join(paper.places)}")
    states, rows = collected_states(), {}
    for entry in paper.entries.values():
        if options.domain in (None, entry.place.domain) and part in entry.place.id.lower():
            rows.setdefault(entry.row, []).append(entry)
    lines, total = [], 0
    for row, entries in rows.items():
        counts = Counter(state_of(entry, states) for entry in entries)
        if options.state in (None, *counts):
            size = f" x {len(entries)}" if len(entries) > 1 else ""
            state = next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())
            lines.append((row + size, entries[0].place.id, entries[0].label, state))
            total += len(entries)
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths)).rstrip())
    for place in paper.places.values():
        if part and part in place.id.lower() and (place.same_as or place.no_result):
            print(f"{place.id}: {place.no_result or 'the same as ' + ', '.join(place.same_as)}")
    hint = "" if states else " Nothing has been collected yet: `reproduce.py collect`."
    print(f"\n{len(lines)} rows, {total} entries.{hint}")
    return 0


def show_one(paper: Paper, entries: Sequence[Entry]) -> int:
    first, states = entries[0], collected_states()
    about = {"row": first.label, "place": ", ".join(filter(None, (first.place.id, first.place.title, first.panel)))}
    for training in paper.trainings(first):
        seeds = f", seeds {' '.join(map(str, training.seeds))}" if training.seeds else ""
        hardware = f", the paper's hardware: {training.hardware}" if training.hardware else ""
        about["trained by"] = f"make {training.id}, {training.upstream}, {training.gpus} GPUs a run{seeds}{hardware}"
    if first.paper:
        numbers = ((name, value, error) for name, (value, error) in first.paper.items())
        about["paper"] = ", ".join(f"{n} {v:g}" + ("" if e is None else f" ± {e:g}") for n, v, e in numbers)
    if first.tolerance:
        tolerance = paper.tolerances[first.tolerance]
        about["reproduced"] = f"{' and '.join(tolerance['judged'])} within the tolerance. {tolerance['reason']}"
    for claim in paper.claims.values():
        if first.row in claim.rows:
            against = f" than {', '.join(claim.baseline)}" if claim.baseline else ""
            about[f"claim {claim.id}"] = f"{', '.join(claim.subject)} {claim.test}{against}. {claim.reason}"
    for name, text in {**about, "note": first.place.note, "cannot run": first.cannot}.items():
        if text:
            print(textwrap.fill(f"{name}: {text}", 100, subsequent_indent="    ", break_on_hyphens=False))
    print()
    if not first.cannot:
        for step in run.steps(paper, entries, (), os.environ):
            print(f"$ {step.shell}")
    for entry in entries:
        print(f"{entry.id}: {state_of(entry, states)}")
    return 0


def collected_states() -> dict[str, str]:
    if not COLLECTED.is_file():
        return {}
    with COLLECTED.open(newline="") as file:
        return {row["entry"]: row["state"] for row in csv.DictReader(file)}


def state_of(entry: Entry, states: dict[str, str]) -> str:
    return states.get(entry.id) or ("cannot run" if entry.cannot else "not run")


# ---------------------------------------------------------------------------------------------- run, collect and report


def start(paper: Paper, options: argparse.Namespace) -> int:
    return run.run(paper, paper.find(options.row), options.seeds, options.dry_run, options.slurm)


def collect(paper: Paper, options: argparse.Namespace) -> int:
    use_environment()
    from ledger import results, verdicts

    missing = [str(folder) for folder in options.folders if not folder.is_dir()]
    if missing:
        raise UserError(f"not a folder: {', '.join(missing)}")
    folders = [*run.results_folders(os.environ), *options.folders]
    found = results.collect(paper, folders, ROOT / "records", options.with_modified)
    judged = verdicts.Judged(paper, found)
    left_out = judged.left_out()
    for result, why in left_out:
        print(f"{result.folder}: {why}", file=sys.stderr)
    COLLECTED.parent.mkdir(exist_ok=True)
    with COLLECTED.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("entry", "state", "seeds"))
        writer.writerows((id, verdict.state, verdict.seeds) for id, verdict in judged.verdicts.items())
    states = Counter(verdict.state for verdict in judged.verdicts.values())
    counted = ", ".join(f"{states[state]} {state}" for state in verdicts.STATES if states[state])
    print(f"{len(found)} results, {len(found) - len(left_out)} used. Of the paper's entries: {counted}.")
    if options.report:
        from ledger import report

        print(f"Written: {report.write(judged, REPORT).relative_to(ROOT)} and report.md beside it")
    return 0


def use_environment() -> None:
    """Starts again in .venv/cpu if this Python does not have the packages."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    python = ROOT / ".venv/cpu/bin/python"
    if missing and (not python.exists() or Path(sys.prefix) == python.parent.parent):
        raise UserError(f"{missing[0]} is not installed here. `make report` sets up what is needed, and reports")
    if missing:
        os.execv(python, [str(python), *sys.argv])
