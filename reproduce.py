#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""List, run and check the paper's experiments (experiments.toml).

    python3 reproduce.py list [ROW or part of a line]
    python3 reproduce.py run ROW [--seeds 1 2 3] [--dry-run] [--slurm]
    python3 reproduce.py collect [FOLDER ...]
    python3 reproduce.py report [FOLDER ...]

Needs Python 3.11 or newer; collect and report also need the packages of .venv/cpu, which `make report` installs.
docs/reproduce.md explains the verbs; the code is in ledger/."""

import argparse
import csv
import signal
import sys
import textwrap
from collections import Counter
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit("error: reproduce.py needs Python 3.11 or newer")

from ledger import run
from ledger.paper import CANNOT, NOT_RUN, ROOT, STATES, Entry, Paper, load
from recipes import UserError

COLLECTED = ROOT / "results/collected.csv"  # entry and state, as the last `collect` found them
REPORT = ROOT / "results/report"


def main(arguments: list[str]) -> int:
    try:
        options = make_parser().parse_args(arguments)
        options.verb(load(), options)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed here. `make report` sets it up, and reports", file=sys.stderr)
    return 2


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="reproduce.py", description="The paper's rows and curves beside our results.")
    verbs = parser.add_subparsers(required=True, metavar="list | run | collect | report")

    def verb(name: str, function, help: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=help)
        made.set_defaults(verb=function)
        return made

    listing = verb("list", show, "a line for each row of the paper; with its name, all about one")
    listing.add_argument("--state", choices=STATES, help="the rows with entries in this state")
    listing.add_argument("text", nargs="?", default="", help="a row (main-era), one of its entries, or part of a line")
    starting = verb("run", start, "run a row's commands one after the other; again continues them")
    starting.add_argument("row", help="a row, or one of its entries: hb-fastsac-era/h1hand-walk-v0")
    starting.add_argument("--seeds", type=int, nargs="+", default=(), help="default: the recipe's")
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


def show(paper: Paper, options: argparse.Namespace) -> None:
    states = {id: CANNOT if entry.cannot else NOT_RUN for id, entry in paper.entries.items()}
    if COLLECTED.is_file():
        with COLLECTED.open(newline="") as file:
            states |= {line[0]: line[1] for line in csv.reader(file)}
    rows: dict[str, list[Entry]] = {}
    for entry in paper.entries.values():
        rows.setdefault(entry.row, []).append(entry)
    if options.text in rows or options.text in paper.entries:
        show_one(paper, paper.find(options.text), states)
        return
    lines = []
    for row, entries in rows.items():
        counts = Counter(states[entry.id] for entry in entries)
        if options.state and not counts[options.state]:
            continue
        found = ", ".join(f"{count} {state}" for state, count in counts.items())
        lines.append(f"{row:<30}{entries[0].place.id:<27}{entries[0].label:<46}{found}")
    if not options.state:
        lines += [f"{label:<57}{why}" for label, why in paper.elsewhere.items()]
    lines = [line for line in lines if options.text.lower() in line.lower()]
    if not lines and options.state:
        lines = [f"no row is {options.state}"]
    if not lines:
        paper.find(options.text)
    if sys.stdout.isatty():
        print(f"{'row':<30}{'table or figure':<27}{'label':<46}entries (tasks or settings) by state")
    print("\n".join(lines))


def show_one(paper: Paper, entries: list[Entry], states: dict[str, str]) -> None:
    first = entries[0]
    about = {"row": first.label, "place": ", ".join(filter(None, (first.place.id, first.place.title, first.panel)))}
    for training in paper.trainings(first):
        hardware = f" on {training.hardware} in the paper" if training.hardware else ""
        about[f"make {training.id}"] = f"{training.upstream}, {training.gpus} GPUs a run{hardware}"
    if first.folder:
        about["seeds"] = str(first.seeds)
    about[paper.whose(first.place)] = ", ".join(
        f"{metric} {value:g}" + (f" ± {error:g}" if error == error else "")
        for metric, (value, error) in first.paper.items()
    )
    if first.tolerance:
        tolerance = paper.tolerances[first.tolerance]
        about["reproduced"] = f"{' and '.join(tolerance['judged'])} within the tolerance. {tolerance['reason']}"
    for claim in paper.claims.values():
        if first.row in claim.rows:
            about[f"claim {claim.id}"] = f"{paper.tested(claim)}. {claim.reason}"
    if first.place.source:
        about["source"] = f"nothing is judged by these numbers. {paper.sources[first.place.source]['read']}"
    for name, text in {**about, "note": first.place.note, "cannot run": first.cannot}.items():
        if text:
            print(textwrap.fill(f"{name}: {text}", 100, subsequent_indent="    ", break_on_hyphens=False))
    if not first.cannot:
        print("", *run.lines(paper, entries), "", sep="\n")
    for entry in entries:
        print(f"{entry.id}: {states[entry.id]}")


def start(paper: Paper, options: argparse.Namespace) -> None:
    run.run(paper, paper.find(options.row), options.seeds, options.dry_run, options.slurm)


def collect(paper: Paper, options: argparse.Namespace) -> None:
    from ledger import report, results, verdicts  # need packages, which `list` and `run` do without

    missing = [str(folder) for folder in options.folders if not folder.is_dir()]
    if missing:
        raise UserError(f"not a folder: {', '.join(missing)}")
    folders = [*results.usual_folders(), *options.folders]
    found = results.collect(paper, folders, ROOT / "records", options.with_modified)
    said = [
        (folder, "no result of the paper's runs is there")
        for folder in options.folders
        if not any(result.folder.is_relative_to(folder) for result in found)
    ]
    judged = verdicts.Judged(paper, found)
    for folder, why in [*said, *((result.folder, why) for result, why in judged.left_out())]:
        print(f"{results.one_line(folder)}: {results.one_line(why)}", file=sys.stderr)
    COLLECTED.parent.mkdir(exist_ok=True)
    with COLLECTED.open("w", newline="") as file:
        csv.writer(file).writerows(judged.states.items())
    counts = Counter(judged.states.values())
    counted = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    print(f"{len(found)} results, {len(judged.counted())} used. Of the paper's entries: {counted}.")
    if options.report:
        print(f"Written: {report.write(judged, REPORT).relative_to(ROOT)} and report.md beside it")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `| head` ends this without an error message
    sys.exit(main(sys.argv[1:]))
