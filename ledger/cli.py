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

from ledger import commands, experiments, results
from ledger.errors import LedgerError
from ledger.experiments import DOMAINS, HERE, ROOT, Entry, Experiment, Ledger, Number, Run
from ledger.results import CANNOT, NOT_RUN, STATES

COLLECTED = ROOT / "results/collected.json"
REPORT = ROOT / "results/report"
OK, REFUSED, INTERRUPTED = 0, 2, 130


def default_sources() -> list[Path]:
    """Where the recipes and demos write by default, as far as it is there."""
    home, checkouts = commands.data_home(os.environ), commands.checkouts(os.environ)
    places = [home / "ckpts/ERA", home / "eval", checkouts / "timm/output/era", checkouts / "fasttd3/output/era"]
    places += [ROOT / os.environ["OUTPUT"]] if os.environ.get("OUTPUT") else []
    places += [ROOT / "results" / name for name in ("demo", "demo-vision", "demo-control")]
    return [place for place in places if place.is_dir()]


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    try:
        code = options.verb(experiments.load(), options)
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
    listing.add_argument(
        "--place", help="a table or figure by its label in the paper, or a part of it: main_results, fig:llm"
    )
    listing.add_argument("--state", choices=STATES, help="as the last `collect` found it")
    one = verb("show", show_one, "all of an experiment, with its command")
    one.add_argument("id")
    run = verb(
        "run",
        run_experiment,
        "run an experiment's command, and leave a record of it; again, it goes on where it stopped",
    )
    run.add_argument("id", help="an experiment, or one of its entries: hb-fastsac-era/h1hand-walk-v0")
    run.add_argument("--seeds", type=seed, nargs="+", help="default: the recipe's")
    run.add_argument("--dry-run", action="store_true", help="print the commands and stop")
    run.add_argument("--slurm", action="store_true", help="submit to Slurm, where the recipe can")
    run.add_argument(
        "--modified",
        action="store_true",
        help="run with a modified checkout too; the results are marked and not averaged",
    )
    gather = verb("collect", collect, "read the results of all runs, check them, and judge what came out")
    gather.add_argument(
        "folders", nargs="*", type=Path, help="results also from other places, such as copies from a cluster"
    )
    gather.add_argument("--with-modified", action="store_true", help="average results of modified checkouts too")
    verb("report", report, f"write {REPORT.relative_to(ROOT)}/index.html and report.md from what was collected")
    return parser


def seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r}: whole numbers from 0 on expected, with spaces between them: --seeds 1 2 3"
        )
    return int(text)


# ------------------------------------------------------------------------------------------------------- list and show


def collected_so_far() -> results.Collected | None:
    return results.read(COLLECTED) if COLLECTED.is_file() else None


def states_of(experiment: Experiment, collected: results.Collected | None) -> Counter[str]:
    """How many of its entries are in each state."""
    default = {"state": CANNOT if experiment.cannot else NOT_RUN}
    outcomes = collected.outcomes if collected else {}
    return Counter(outcomes.get(entry.id, default)["state"] for entry in experiment.entries)


def said_states(counts: Counter[str]) -> str:
    return next(iter(counts)) if len(counts) == 1 else counted(counts)


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def show_list(ledger: Ledger, options: argparse.Namespace) -> int:
    if options.place and not any(options.place.lower() in place.lower() for place in ledger.places):
        raise LedgerError(
            f"no table or figure has {options.place!r} in its label. There are: {', '.join(ledger.places)}."
        )
    collected = collected_so_far()
    states = {experiment.id: states_of(experiment, collected) for experiment in ledger.experiments.values()}
    chosen = [
        experiment
        for experiment in ledger.experiments.values()
        if options.domain in (None, experiment.domain)
        and (options.place or "").lower() in experiment.place.lower()
        and (options.state is None or options.state in states[experiment.id])
    ]
    rows = [list_row(ledger, experiment, states[experiment.id]) for experiment in chosen]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip())
    for place in ledger.places.values() if options.place else ():
        if options.place.lower() in place.id.lower() and (place.same_as or place.no_result):
            print(
                f"{place.id}: the same as {', '.join(place.same_as)}"
                if place.same_as
                else f"{place.id}: no result, {place.no_result}"
            )
    total = sum(len(experiment.entries) for experiment in chosen)
    print(
        f"\n{len(rows)} experiments, {total} rows and curves."
        + ("" if collected else " Nothing has been collected yet: `reproduce.py collect`.")
    )
    return OK


def list_row(ledger: Ledger, experiment: Experiment, states: Counter[str]) -> tuple[str, ...]:
    size = f" x {len(experiment.entries)}" if len(experiment.entries) > 1 else ""
    compared = f"compares {' and '.join(experiment.gain)}" if experiment.gain else ""
    how = compared or "; ".join(run.command for run in ledger.runs_of(experiment)) or "-"
    return experiment.id + size, experiment.place, experiment.row, said_states(states), how


def show_one(ledger: Ledger, options: argparse.Namespace) -> int:
    entries = ledger.find(options.id)
    experiment = entries[0].experiment
    for name, value in describe(ledger, experiment, entries):
        print(
            textwrap.fill(
                value,
                120,
                initial_indent=f"{name:<12}",
                subsequent_indent=" " * 12,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    collected = collected_so_far()
    print()
    if not experiment.cannot:
        print(
            "\n".join(f"$ {line}" for line in shell_commands(ledger, entries))
            + f"\n  or: python3 reproduce.py run {options.id}\n"
        )
    for entry in entries:
        outcome = collected.outcomes.get(entry.id) if collected else None
        print(f"{entry.id}: " + (said(outcome) if outcome else said_states(states_of(experiment, None))))
    return OK


def shell_commands(ledger: Ledger, entries: Sequence[Entry]) -> list[str]:
    """As `run` starts them, whatever else the user has in the environment."""
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
        lines.append(
            ("paper", ", ".join(f"{metric} {number_text(number)}" for metric, number in experiment.paper.items()))
        )
    if experiment.metric:
        lines.append(("metric", ", ".join(experiment.metric)))
    if experiment.tolerance:
        tolerance = ledger.tolerances[experiment.tolerance]
        lines.append(("reproduced", f"{' and '.join(tolerance.judged)} within the tolerance. {tolerance.reason}"))
    for claim in ledger.claims.values():
        if experiment.id in (claim.of, claim.than):
            against = f" {claim.than}" if claim.than else ""
            lines.append(("claim", f"{claim.id}: {claim.of} {claim.test}{against}. {claim.reason}"))
    if experiment.note:
        lines.append(("note", experiment.note))
    return lines


def describe_run(run: Run) -> list[tuple[str, str]]:
    lines = [("command", run.command), ("upstream", run.upstream)]
    hours = (
        "GPU-hours not known"
        if run.gpu_hours is None
        else f"{run.hours:g} hours"
        if not run.gpus
        else f"{run.gpu_hours:g} GPU-hours"
    )
    takes = f"a run takes {run.gpus or 'no'} GPU{'' if run.gpus == 1 else 's'}"
    lines.append(("hardware", f"{run.hardware or 'the paper does not say'}; {takes}; {hours}"))
    if run.seeds:
        lines.append(("seeds", " ".join(map(str, run.seeds))))
    return lines


def number_text(number: Number) -> str:
    return f"{number.value:g}" + ("" if number.error is None else f" ± {number.error:g}")


def said(outcome: dict) -> str:
    cells = [f"{cell['metric']} {cell['ours']:.4g}" for cell in outcome["cells"] if cell["ours"] is not None]
    return "; ".join(
        [f"{outcome['state']} ({outcome['seeds']} of {outcome['wanted']} seeds)", *cells, *outcome["notes"]]
    )


# ---------------------------------------------------------------------------------------------- run, collect and report


def run_experiment(ledger: Ledger, options: argparse.Namespace) -> int:
    from ledger import execute

    return execute.run(ledger, ledger.find(options.id), options.seeds, options.dry_run, options.slurm, options.modified)


def collect(ledger: Ledger, options: argparse.Namespace) -> int:
    in_environment()
    from ledger import collect as collecting
    from ledger import verdicts

    missing = [str(folder) for folder in options.folders if not folder.is_dir()]
    if missing:
        raise LedgerError(f"no such folder: {', '.join(missing)}. Nothing was collected.")
    found = collecting.collect(ledger, [*default_sources(), *options.folders], options.with_modified)
    found = verdicts.judged(ledger, found)
    results.write(COLLECTED, found)
    say_collected(found)
    return OK


def say_collected(found: results.Collected) -> None:
    used = sum(result.used for result in found.results)
    for problem in found.problems[:20]:
        print(problem, file=sys.stderr)
    if len(found.problems) > 20:
        print(f"... and {len(found.problems) - 20} more: all are in the report", file=sys.stderr)
    counts = Counter(outcome["state"] for outcome in found.outcomes.values())
    print(f"{len(found.results)} runs found, {used} used, {len(found.problems)} problems. {counted(counts)}.")
    print(f"Written: {COLLECTED.relative_to(ROOT)}")


def report(ledger: Ledger, options: argparse.Namespace) -> int:
    in_environment()
    from ledger import report as reporting

    page = reporting.write(ledger, collected_so_far() or results.EMPTY, REPORT)
    print(f"Written: {page.relative_to(ROOT)} and report.md beside it")
    return OK


def in_environment() -> None:
    """Goes on in .venv/cpu if this Python lacks what is needed."""
    lacking = [name for name in ("jinja2", "matplotlib", "orjson", "pyarrow", "scipy") if find_spec(name) is None]
    if lacking:
        python = ROOT / ".venv/cpu/bin/python"
        if not python.exists() or Path(sys.prefix) == python.parent.parent:
            what = f"{lacking[0]} is not installed here. `make report` sets up what is needed, collects and reports. Nothing was changed."
            raise LedgerError(what)
        os.execv(python, [str(python), *sys.argv])
