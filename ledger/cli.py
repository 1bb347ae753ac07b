"""The command line of reproduce.py."""

import argparse
import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ledger import commands, results
from ledger.errors import LedgerError
from ledger.ledger import CONTROL_HOSTS, DOMAINS, HERE, ROOT, Entry, Experiment, Ledger, Number, Run, load
from ledger.results import CANNOT, NOT_RUN, STATES, Outcome

COLLECTED = ROOT / "results/collected.json"
REPORT = ROOT / "results/report"
OK, REFUSED, INTERRUPTED = 0, 2, 130
MOST_PROBLEMS = 20  # that are printed


def default_sources() -> list[Path]:
    """Where the recipes write by default, as far as it exists."""
    home, grids = commands.data_home(os.environ), ("timm", "fasttd3", CONTROL_HOSTS[0])
    places = [home / "ckpts/ERA", home / "eval", *(commands.default_output(name, os.environ) for name in grids)]
    places += [ROOT / os.environ["OUTPUT"]] if os.environ.get("OUTPUT") else []
    return [place for place in places if place.is_dir()]


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    try:
        code = options.verb(load(), options)
        sys.stdout.flush()
        return code
    except LedgerError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("Interrupted. What was written stays.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # the output is a file on a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {error.filename or 'the output'} cannot be read or written ({error.strerror}).", file=sys.stderr)
        return REFUSED


def make_parser() -> argparse.ArgumentParser:
    what = "The paper's experiments: list, show, run, collect, report. docs/reproduce.md explains them."
    parser = argparse.ArgumentParser(prog="reproduce.py", description=what)
    verbs = parser.add_subparsers(required=True, metavar="list | show | run | collect | report")

    def verb(name: str, function, help: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=help)
        made.set_defaults(verb=function)
        return made

    listing = verb("list", show_list, "a line per experiment: state, seeds, where in the paper, command")
    listing.add_argument("--domain", choices=DOMAINS)
    where = "a table or figure by its label in the paper, or a part of it: main_results, fig:llm"
    listing.add_argument("--place", help=where)
    listing.add_argument("--state", choices=STATES, help="as the last `collect` found it")
    one = verb("show", show_one, "all about an experiment, with its command")
    one.add_argument("id")
    run = verb("run", run_experiment, "run an experiment's commands and leave a record; again continues them")
    run.add_argument("id", help="an experiment, or one of its entries: hb-fastsac-era/h1hand-walk-v0")
    run.add_argument("--seeds", type=seed, nargs="+", help="default: the recipe's")
    run.add_argument("--dry-run", action="store_true", help="print the commands and stop")
    run.add_argument("--slurm", action="store_true", help="submit to Slurm, where the recipe can")
    modified = "run with a modified checkout too; the results are marked and not averaged"
    run.add_argument("--modified", action="store_true", help=modified)
    gather = verb("collect", collect, "read the results of all runs, check them, and compare them with the paper")
    copies = "results also from other places, such as copies from a cluster"
    gather.add_argument("folders", nargs="*", type=Path, help=copies)
    gather.add_argument("--with-modified", action="store_true", help="average results of modified checkouts too")
    verb("report", report, f"write {REPORT.relative_to(ROOT)}/index.html and report.md from what was collected")
    return parser


def seed(text: str) -> int:
    if not text.isdecimal():
        expected = "whole numbers from 0 on expected, with spaces between them: --seeds 1 2 3"
        raise argparse.ArgumentTypeError(f"{text!r}: {expected}")
    return int(text)


# -------------------------------------------------------------------------------------------------------- list and show


def collected_so_far() -> results.Collected | None:
    return results.read(COLLECTED) if COLLECTED.is_file() else None


def states_of(experiment: Experiment, collected: results.Collected | None) -> Counter[str]:
    """How many of its entries are in each state."""
    outcomes = collected.outcomes if collected else {}
    default = CANNOT if experiment.cannot else NOT_RUN
    return Counter(outcomes[entry.id].state if entry.id in outcomes else default for entry in experiment.entries)


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def show_list(ledger: Ledger, options: argparse.Namespace) -> int:
    place = (options.place or "").lower()
    if not any(place in label.lower() for label in ledger.places):
        labels = ", ".join(ledger.places)
        raise LedgerError(f"no table or figure has {options.place!r} in its label. There are: {labels}.")
    collected = collected_so_far()
    states = {experiment.id: states_of(experiment, collected) for experiment in ledger.experiments.values()}
    chosen = [
        experiment
        for experiment in ledger.experiments.values()
        if options.domain in (None, experiment.domain)
        and place in experiment.place.lower()
        and (options.state is None or options.state in states[experiment.id])
    ]
    rows = [list_row(ledger, experiment, states[experiment.id]) for experiment in chosen]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip())
    for other in ledger.places.values() if place else ():
        if place in other.id.lower() and other.same_as:
            print(f"{other.id}: the same as {', '.join(other.same_as)}")
        elif place in other.id.lower() and other.no_result:
            print(f"{other.id}: no result, {other.no_result}")
    total = sum(len(experiment.entries) for experiment in chosen)
    missing = "" if collected else " Nothing has been collected yet: `reproduce.py collect`."
    print(f"\n{len(rows)} experiments, {total} rows and curves.{missing}")
    return OK


def list_row(ledger: Ledger, experiment: Experiment, states: Counter[str]) -> tuple[str, ...]:
    size = f" x {len(experiment.entries)}" if len(experiment.entries) > 1 else ""
    compared = f"compares {' and '.join(experiment.gain)}" if experiment.gain else ""
    how = compared or "; ".join(run.command for run in ledger.runs_of(experiment)) or "-"
    state = next(iter(states)) if len(states) == 1 else counted(states)
    return experiment.id + size, experiment.place, experiment.row, state, how


def show_one(ledger: Ledger, options: argparse.Namespace) -> int:
    entries = ledger.find(options.id)
    experiment = entries[0].experiment
    layout = textwrap.TextWrapper(120, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False)
    for name, value in describe(ledger, experiment, entries):
        layout.initial_indent = f"{name:<12}"
        print(layout.fill(value))
    collected = collected_so_far()
    print()
    if not experiment.cannot:
        print("\n".join(f"$ {line}" for line in shell_commands(ledger, entries)))
        print(f"  or: python3 reproduce.py run {options.id}\n")
    for entry in entries:
        outcome = collected.outcomes.get(entry.id) if collected else None
        print(f"{entry.id}: {in_words(outcome) if outcome else CANNOT if experiment.cannot else NOT_RUN}")
    return OK


def shell_commands(ledger: Ledger, entries: Sequence[Entry]) -> list[str]:
    """As `run` starts them, whatever else is in the user's environment."""
    places = {name: os.environ[name] for name in ("HOME", "RAY_DATA_HOME", "CHECKOUTS") if name in os.environ}
    return [step.shell for step in commands.steps(ledger, entries, None, places)]


def describe(ledger: Ledger, experiment: Experiment, entries: Sequence[Entry]) -> list[tuple[str, str]]:
    place = ledger.places[experiment.place]
    where = "beside the paper" if place.id == HERE else f"{place.id}, {place.title}"
    lines = [
        ("experiment", experiment.id),
        ("place", ", ".join(filter(None, (where, experiment.block, experiment.panel)))),
        ("row", experiment.row),
    ]
    if experiment.over:
        lines.append((experiment.over_name, ", ".join(str(entry.value) for entry in entries)))
    if experiment.cannot:
        lines.append(("cannot run", experiment.cannot))
    if experiment.gain:
        lines.append(("compares", f"{experiment.gain[0]} with {experiment.gain[1]}, in {experiment.gain_in}"))
    for run in ledger.runs_of(experiment):
        lines += describe_run(run)
    if experiment.select:
        lines.append(("of these", ", ".join(f"{name}={value}" for name, value in experiment.select.items())))
    if experiment.paper:
        numbers = ", ".join(f"{metric} {number_text(number)}" for metric, number in experiment.paper.items())
        lines.append(("paper", numbers))
    if experiment.metric:
        lines.append(("metric", ", ".join(experiment.metric)))
    if experiment.tolerance:
        tolerance = ledger.tolerances[experiment.tolerance]
        lines.append(("reproduced", f"{' and '.join(tolerance.judged)} within the tolerance. {tolerance.reason}"))
    for claim in ledger.claims_about(experiment):
        against = f" {claim.than}" if claim.than else ""
        lines.append(("claim", f"{claim.id}: {claim.of} {claim.test}{against}. {claim.reason}"))
    if experiment.note:
        lines.append(("note", experiment.note))
    return lines


def describe_run(run: Run) -> list[tuple[str, str]]:
    if run.hours is None:
        hours = "GPU-hours not known" if run.gpus else "hours not known"
    else:
        hours = f"{run.hours * run.gpus:g} GPU-hours" if run.gpus else f"{run.hours:g} hours"
    takes = f"a run takes {run.gpus or 'no'} GPU{'' if run.gpus == 1 else 's'}"
    hardware = f"{run.hardware or 'the paper does not say'}; {takes}; {hours}"
    lines = [("command", run.command), ("upstream", run.upstream), ("hardware", hardware)]
    return [*lines, ("seeds", " ".join(map(str, run.seeds)))] if run.seeds else lines


def number_text(number: Number) -> str:
    return f"{number.value:g}" + ("" if number.error is None else f" ± {number.error:g}")


def in_words(outcome: Outcome) -> str:
    cells = [f"{cell.metric} {cell.ours:.4g}" for cell in outcome.cells if cell.ours is not None]
    return "; ".join([f"{outcome.state} ({outcome.seeds} of {outcome.wanted} seeds)", *cells, *outcome.notes])


# ---------------------------------------------------------------------------------------------- run, collect and report


def run_experiment(ledger: Ledger, options: argparse.Namespace) -> int:
    from ledger.run import run

    return run(ledger, ledger.find(options.id), options.seeds, options.dry_run, options.slurm, options.modified)


def collect(ledger: Ledger, options: argparse.Namespace) -> int:
    use_environment()
    from ledger import collect as collecting
    from ledger import verdicts

    missing = [str(folder) for folder in options.folders if not folder.is_dir()]
    if missing:
        raise LedgerError(f"no such folder: {', '.join(missing)}. Nothing was collected.")
    sources = [*default_sources(), *options.folders]
    found = collecting.collect(ledger, sources, options.with_modified, ROOT / "records")
    found = verdicts.judge(ledger, found)
    results.write(COLLECTED, found)
    for problem in found.problems[:MOST_PROBLEMS]:
        print(problem, file=sys.stderr)
    if len(found.problems) > MOST_PROBLEMS:
        print(f"... and {len(found.problems) - MOST_PROBLEMS} more: all are in the report", file=sys.stderr)
    used = sum(result.used for result in found.results)
    states = counted(Counter(outcome.state for outcome in found.outcomes.values()))
    print(f"{len(found.results)} runs found, {used} used, {len(found.problems)} problems. {states}.")
    print(f"Written: {COLLECTED.relative_to(ROOT)}")
    return OK


def report(ledger: Ledger, options: argparse.Namespace) -> int:
    use_environment()
    from ledger.report import write

    page = write(ledger, collected_so_far() or results.EMPTY, REPORT)
    print(f"Written: {page.relative_to(ROOT)} and report.md beside it")
    return OK


def use_environment() -> None:
    """Starts again in .venv/cpu if this Python does not have the packages."""
    missing = [name for name in ("jinja2", "matplotlib", "orjson", "pyarrow", "scipy") if find_spec(name) is None]
    if not missing:
        return
    python = ROOT / ".venv/cpu/bin/python"
    if not python.exists() or Path(sys.prefix) == python.parent.parent:
        what = f"{missing[0]} is not installed here. `make report` sets up what is needed, collects and reports"
        raise LedgerError(f"{what}. Nothing was changed.")
    os.execv(python, [str(python), *sys.argv])
