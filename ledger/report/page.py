"""What the pages show, in their order, as plain values: the templates only lay it out."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ledger.experiments import HERE, ROOT, Claim, Entry, Experiment, Ledger, Place
from ledger.report import panels, runs, text
from ledger.report.panels import Picture
from ledger.report.runs import RecordShown, RunShown
from ledger.results import CANNOT, EMPTY, NOT_REPRODUCED, NOT_RUN, REPRODUCED, RUN, STATES, Collected, Problem
from ledger.verdicts import Cell, ClaimOutcome, Outcome, Part, judge

DOCS = {
    "docs/reproduce.md": "the ledger, reproduce.py and its verdicts",
    "docs/deviations.md": "where this project deviates from the paper, and why",
    "docs/llm/recipes.md": "the LLM runs",
    "docs/llm/evaluation.md": "the evaluation of LLMs",
    "docs/vision/recipes.md": "the runs on ImageNet and CIFAR-10",
    "docs/control/recipes.md": "the runs on HumanoidBench",
    "docs/llm/demo.md": "the LLM demo",
    "docs/vision/demo.md": "the vision demo",
    "docs/control/demo.md": "the control demo",
}
NAMES = {"llm": "LLM", "vision": "vision", "control": "control"}  # of the domains
NOTHING = (NOT_RUN, CANNOT)


@dataclass(frozen=True)
class Counts:
    """How many of each state, by column: the domains, beside the paper, all."""

    title: str
    columns: list[str]
    rows: dict[str, list[int]]


@dataclass(frozen=True)
class Row:
    """of a table. lines: its numbers by what they are (paper, ours, difference); only the paper's where nothing was run."""

    name: str
    outcome: Outcome
    over: str
    lines: dict[str, list[str]]
    command: str


@dataclass(frozen=True)
class Block:
    title: str
    columns: list[str]
    rows: list[Row]


@dataclass(frozen=True)
class Measured:
    """of a figure. state: the entry's, for the metrics that a claim is about. ratio: to the baseline, where times are compared.
    notes: with an entry's first metric."""

    name: str
    metric: str
    cell: Cell
    outcome: Outcome
    state: str
    ratio: str
    notes: list[str]


@dataclass(frozen=True)
class ClaimShown:
    quote: str
    tested: str
    outcome: ClaimOutcome
    parts: list[tuple[str, Part]]
    reason: str


@dataclass(frozen=True)
class Lack:
    """What of a figure is not there, by state: commands to run it, or the reason why there are none."""

    state: str
    names: list[str]
    commands: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class Section:
    place: Place
    anchor: str
    states: dict[str, int]
    claim_states: dict[str, int]
    blocks: list[Block] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    claims: list[ClaimShown] = field(default_factory=list)
    lacks: list[Lack] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tolerances: list[str] = field(default_factory=list)
    ratios: str = ""  # the baseline's name, where times are compared


@dataclass(frozen=True)
class Page:
    paper: str
    date: str
    begun: bool
    summary: list[str]
    counts: list[Counts]
    coverage: list[Section]
    tables: list[Section]
    figures: list[Section]
    beside: Section
    records: list[RecordShown]
    runs: list[RunShown]
    failed: list[tuple[str, str]]
    problems: list[Problem]
    sources: list[str]
    tolerances: dict[str, str]
    docs: dict[str, tuple[str, str]]

    @property
    def logs(self) -> list[tuple[str, str]]:
        return [(record.command, record.log) for record in self.records if record.log]

    @property
    def pictures(self) -> list[Picture]:
        return [picture for section in (*self.figures, self.beside) for picture in section.pictures]


class Findings:
    """The ledger with what was found for it; what was never judged was not run. Notes that the pages say elsewhere are left out."""

    def __init__(self, ledger: Ledger, collected: Collected):
        self.ledger, self.collected = ledger, collected

    @cached_property
    def outcomes(self) -> dict[str, Outcome]:
        judged = {name: _outcome(found) for name, found in self.collected.outcomes.items()}
        return {name: judged.get(name, nothing) for name, nothing in self._of_nothing[0].items()}

    @cached_property
    def claims(self) -> dict[str, ClaimOutcome]:
        judged = {name: _claim_outcome(found) for name, found in self.collected.claims.items()}
        return {name: judged.get(name, nothing) for name, nothing in self._of_nothing[1].items()}

    @cached_property
    def _of_nothing(self) -> tuple[dict[str, Outcome], dict[str, ClaimOutcome]]:
        return judge(self.ledger, EMPTY)

    def entries(self, place: str) -> list[Entry]:
        return [entry for experiment in self.ledger.at(place) for entry in experiment.entries]


def _outcome(found: dict) -> Outcome:
    seeds = f"{found['seeds']} of {found['wanted']} seeds"
    notes = [note for note in found["notes"] if note != seeds and not note.startswith("claim ")]
    return Outcome(**{**found, "cells": [Cell(**cell) for cell in found["cells"]], "notes": notes})


def _claim_outcome(found: dict) -> ClaimOutcome:
    """Its notes by what they say: "not run: a, b"."""
    said: dict[str, list[str]] = {}
    for note in found["notes"]:
        name, _, what = note.rpartition(": ")
        said.setdefault(what, []).append(name)
    notes = [f"{what}: {', '.join(names)}" if all(names) else what for what, names in said.items()]
    return ClaimOutcome(**{**found, "parts": [Part(**part) for part in found["parts"]], "notes": notes})


def make(ledger: Ledger, collected: Collected, out: Path) -> Page:
    """out: the folder of the page, for the links to the documents."""
    found = Findings(ledger, collected)
    sections = {name: _section(found, place) for name, place in ledger.places.items()}
    shown = [section for name, section in sections.items() if name != HERE and ledger.at(name)]
    return Page(
        paper=ledger.paper,
        date=runs.time(collected.made) if collected.made else "",
        begun=any(outcome.state not in NOTHING for outcome in found.outcomes.values()),
        summary=_summary(found),
        counts=_counts(found),
        coverage=[section for name, section in sections.items() if name != HERE],
        tables=[section for section in shown if section.place.draws == "table"],
        figures=[section for section in shown if section.place.draws != "table"],
        beside=sections[HERE],
        records=[runs.of_record(record) for record in collected.records],
        runs=runs.of_results(collected),
        failed=[(result.label, "\n".join(result.log_tail)) for result in collected.results if result.failed],
        problems=collected.problems,
        sources=collected.sources,
        tolerances={name: tolerance.reason for name, tolerance in ledger.tolerances.items()},
        docs={name: (Path(os.path.relpath(ROOT / name, out)).as_posix(), what) for name, what in DOCS.items()},
    )


def name_of(entry: Entry) -> str:
    return entry.experiment.row if entry.value is None else f"{entry.experiment.row}, {_value(entry)}"


def _value(entry: Entry) -> str:
    """Of its over, as the paper calls it."""
    return text.metric(str(entry.value))


# ------------------------------------------------------------------------------------------------------- the first screen


def _column(place: str, domain: str) -> str:
    return "beside the paper" if place == HERE else NAMES[domain]


def _counts(found: Findings) -> list[Counts]:
    columns = [*NAMES.values(), "beside the paper"]

    def counted(title: str, states: Iterable[tuple[str, str]]) -> Counts:
        counter = Counter(states)
        rows = {state: [counter[column, state] for column in columns] for state in STATES}
        rows["all"] = [sum(row[place] for row in rows.values()) for place in range(len(columns))]
        return Counts(title, [*columns, "all"], {state: [*row, sum(row)] for state, row in rows.items()})

    entries = (
        (_column(entry.experiment.place, entry.experiment.domain), found.outcomes[name].state)
        for name, entry in found.ledger.entries.items()
    )
    places = found.ledger.places
    claims = (
        (_column(claim.place, places[claim.place].domain), found.claims[name].state)
        for name, claim in found.ledger.claims.items()
    )
    return [counted("Rows and curves", entries), counted("Claims", claims)]


def _summary(found: Findings) -> list[str]:
    """What was run, on what, and what was not, in sentences."""
    paper = [entry for entry in found.ledger.entries.values() if entry.experiment.place != HERE]
    beside = found.entries(HERE)
    done = [entry for entry in paper if found.outcomes[entry.id].state not in NOTHING]
    done_beside = [entry for entry in beside if found.outcomes[entry.id].state not in NOTHING]
    cannot = sum(found.outcomes[entry.id].state == CANNOT for entry in paper)
    can = len(paper) - cannot
    of_paper = f"the paper's {len(paper)} rows and curves"
    if not done and not done_beside:
        return [
            f"Nothing was run yet. Of {of_paper} this project can run {can}; the other {cannot} it cannot, for the reasons below."
        ]
    by_domain = [
        f"{sum(entry in done for entry in entries)} of {len(entries)} {NAMES[domain]}"
        for domain in NAMES
        if (entries := [entry for entry in paper if entry.experiment.domain == domain and not entry.experiment.cannot])
    ]
    ran = (
        f"Of {of_paper}, {len(done)} were run or begun ({', '.join(by_domain)})"
        if done
        else f"Of {of_paper}, none was run"
    )
    if done_beside:
        ran += f"; beside the paper {len(done_beside)} of {len(beside)} ({'; '.join(_unique(entry.experiment.panel for entry in done_beside))})"
    names = _unique(result.hardware for result in found.collected.results if result.hardware)
    hardware = (
        f"Hardware: {'; '.join(names[:4])}{' and others' if len(names) > 4 else ''}."
        if names
        else "No result says on what hardware."
    )
    rest = f"{cannot} that this project cannot run"
    if len(done) < can:
        rest = f"{can - len(done)} that this project can run, and {cannot} that it cannot"
    return [f"{ran}. {hardware}", f"Not run: {rest}, for the reasons below."]


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


# ------------------------------------------------------------------------------------------------------ tables and figures


def anchor(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower())


def _section(found: Findings, place: Place) -> Section:
    ledger, entries = found.ledger, found.entries(place.id)
    claims = ledger.claims_at(place.id)
    states = Counter(found.outcomes[entry.id].state for entry in entries)
    claim_states = Counter(found.claims[claim.id].state for claim in claims)
    is_table = place.draws == "table" and place.id != HERE
    run = [entry for entry in entries if found.outcomes[entry.id].state not in NOTHING]
    baseline = next((ledger.experiments[claim.than] for claim in claims if claim.test == "overhead"), None)
    return Section(
        place,
        anchor(place.id),
        _ordered(states),
        _ordered(claim_states),
        _blocks(found, entries) if is_table else [],
        [] if is_table else panels.pictures(ledger, found.collected, found.outcomes, place, run),
        [] if is_table else [item for entry in run for item in _measured(found, entry, baseline)],
        [_claim(found, claim) for claim in claims],
        [] if is_table else _lacks(found, ledger.at(place.id)),
        _unique(entry.experiment.note for entry in entries if entry.experiment.note),
        _unique(
            ledger.tolerances[entry.experiment.tolerance].reason for entry in entries if entry.experiment.tolerance
        ),
        baseline.row if baseline else "",
    )


def _ordered(counter: Counter) -> dict[str, int]:
    return {state: counter[state] for state in STATES if counter[state]}


def _blocks(found: Findings, entries: Sequence[Entry]) -> list[Block]:
    metrics = _unique(metric for entry in entries for metric in entry.metrics)
    papers = [entry.experiment.paper for entry in entries]
    decimals = {
        metric: text.decimals_of([paper[metric].value for paper in papers if metric in paper]) for metric in metrics
    }
    titles = _unique(entry.experiment.block for entry in entries)
    return [
        Block(
            title,
            metrics,
            [_row(found, entry, metrics, decimals) for entry in entries if entry.experiment.block == title],
        )
        for title in titles
    ]


def _row(found: Findings, entry: Entry, metrics: Sequence[str], decimals: dict[str, int]) -> Row:
    outcome = found.outcomes[entry.id]
    cells = {cell.metric: cell for cell in outcome.cells}
    in_row = [cells.get(metric, Cell(metric, None, None)) for metric in metrics]
    lines = {"paper": [text.measured(cell.paper, cell.paper_error, decimals[cell.metric]) for cell in in_row]}
    if any(cell.ours is not None for cell in in_row):
        lines["ours"] = [text.measured(cell.ours, cell.interval, decimals[cell.metric]) for cell in in_row]
        lines["difference"] = [_difference(cell, decimals[cell.metric]) for cell in in_row]
    over = ", ".join(_unique(cell.interval_of for cell in in_row if cell.interval_of))
    return Row(name_of(entry), outcome, over, lines, _command(found.ledger, entry.experiment, entry.id))


def _difference(cell: Cell, decimals: int) -> str:
    """With what is allowed, and whether it is within: in words, for those who do not see the sign."""
    shown = text.number(cell.difference, decimals, sign=True)
    if cell.within is None or cell.allowed is None:
        return shown
    return f"{shown} ({'within' if cell.within else 'outside'} ±{text.number(cell.allowed, decimals)})"


def _command(ledger: Ledger, experiment: Experiment, name: str) -> str:
    """To run what is not there; a row that compares two others has none of its own."""
    return "" if experiment.cannot or experiment.gain else f"python3 reproduce.py run {name}"


def _measured(found: Findings, entry: Entry, baseline: Experiment | None) -> list[Measured]:
    outcome = found.outcomes[entry.id]
    cells = [cell for cell in outcome.cells if cell.ours is not None] or [Cell("", None, None)]
    made = []
    for place, cell in enumerate(cells):
        state, ratio = _state(found.ledger, entry, outcome, cell.metric), _ratio(found, entry, cell, baseline)
        made.append(Measured(name_of(entry), cell.metric, cell, outcome, state, ratio, [] if place else outcome.notes))
    return made


def _state(ledger: Ledger, entry: Entry, outcome: Outcome, metric: str) -> str:
    """Of one metric: one that no claim is about is not reproduced by a claim on another."""
    about = [claim for claim in ledger.claims.values() if entry.experiment.id in (claim.of, claim.than)]
    tested = {claim.metric or entry.metrics[0] for claim in about}
    if (
        outcome.state not in (REPRODUCED, NOT_REPRODUCED)
        or metric in tested
        or any(claim.test == "spread" for claim in about)
    ):
        return outcome.state
    return RUN


def _ratio(found: Findings, entry: Entry, cell: Cell, baseline: Experiment | None) -> str:
    if baseline is None or (value := panels.ratio(found.outcomes, entry, cell, baseline)) is None:
        return ""
    return f"{value:.3f} ({text.number(100 * (value - 1), 1, sign=True)} %)"


def _lacks(found: Findings, experiments: Sequence[Experiment]) -> list[Lack]:
    lacks: list[Lack] = []
    cannot: dict[str, list[str]] = {}
    names, commands = [], []
    for experiment in experiments:
        lacking = [entry for entry in experiment.entries if found.outcomes[entry.id].state in NOTHING]
        if not lacking:
            continue
        whole = len(lacking) == len(experiment.entries)
        name = experiment.row if whole else f"{experiment.row} ({', '.join(map(_value, lacking))})"
        if experiment.cannot:
            cannot.setdefault(experiment.cannot, []).append(name)
        else:
            names.append(name)
            commands += [
                _command(found.ledger, experiment, item)
                for item in ([experiment.id] if whole else [entry.id for entry in lacking])
            ]
    if names:
        lacks.append(Lack(NOT_RUN, names, commands))
    return lacks + [Lack(CANNOT, rows, reason=reason) for reason, rows in cannot.items()]


# ----------------------------------------------------------------------------------------------------------------- claims


def _claim(found: Findings, claim: Claim) -> ClaimShown:
    outcome = found.claims[claim.id]
    parts = [
        (text.metric(part.entry.partition("/")[2]) if len(outcome.parts) > 1 else "", part) for part in outcome.parts
    ]
    return ClaimShown(text.plain(claim.quote), tested(found.ledger, claim), outcome, parts, claim.reason)


def tested(ledger: Ledger, claim: Claim) -> str:
    """The claim's test in words."""
    of = ledger.experiments[claim.of]
    than = ledger.experiments[claim.than].row if claim.than else ""
    metrics = [claim.metric] if claim.metric else (of.metric if claim.test == "spread" else of.metric[:1])
    what = " and ".join(text.metric(metric) for metric in metrics)
    each = f", for each of {', '.join(map(_value, of.entries))}" if of.over else ""
    if claim.test == "higher":
        if claim.aggregate:
            over = "over all tasks and seeds, each task's divided by what counts as solved"
            return f"{of.row} ends above {than} in the interquartile mean of the {what} {over}."
        if claim.value is not None:
            least = f"at least {claim.value - claim.tolerance:g} % ({claim.value:g} %, less {claim.tolerance:g} of tolerance)"
            return f"{of.row} is better than {than} by {least} in the average of {', '.join(map(_value, of.entries))}."
        return f"{of.row} ends above {than} in {what}{each}."
    if claim.test == "above":
        return f"{of.row} is nowhere below {than} in {what}, and above on average{each}."
    if claim.test == "overhead":
        paper = (
            f": {_percent(claim.value)}, and {_percent(claim.tolerance)} of tolerance"
            if claim.value is not None
            else ""
        )
        return f"{of.row} takes at most {_percent((claim.value or 0) + claim.tolerance)} longer than {than}{paper}."
    if claim.test == "spread":
        return f"{of.row}: largest minus smallest of {what} over {of.over_name} is at most {claim.value:g}."
    share = f"from {_percent(claim.after)} of the steps on" if claim.after else "at every step"
    if claim.window > 1:
        share += f", as a running mean over {claim.window} rows"
    if claim.test == "at_least":
        tolerance = f" (less {claim.tolerance:g} of tolerance)" if claim.tolerance else ""
        return f"{of.row}: {what} does not fall below {claim.value:g}{tolerance}, {share}."
    return f"{of.row}: {what} lies between {claim.low:g} and {claim.high:g}, {share}."


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
