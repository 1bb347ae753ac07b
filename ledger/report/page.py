"""What the pages show, in their order, as plain values: the templates only lay it out."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ledger import results
from ledger.ledger import HERE, ROOT, Claim, Entry, Experiment, Ledger, Place
from ledger.report import history, panels, text
from ledger.report.history import RecordRow, ResultsRow
from ledger.report.panels import Picture
from ledger.results import CANNOT, NOT_RUN, STATES, Cell, ClaimOutcome, Collected, Outcome, Part, Problem
from ledger.verdicts import judge

DOCS = {
    "docs/reproduce.md": "the ledger, reproduce.py and its verdicts",
    "docs/deviations.md": "where this project deviates from the paper, and why",
    "docs/llm/recipes.md": "the LLM runs",
    "docs/llm/evaluation.md": "the evaluation of LLMs",
    "docs/vision/recipes.md": "the runs on ImageNet and CIFAR-10",
    "docs/control/recipes.md": "the control runs",
    "records/README.md": "the results that came with the repository",
    "docs/demos.md": "the demos",
    "docs/rivals/llm.md": "ERA beside other methods in verl",
    "docs/rivals/vision.md": "ERA beside other methods on digits",
}
NAMES = {"llm": "LLM", "vision": "vision", "control": "control"}  # of the domains


@dataclass(frozen=True)
class Counts:
    """How many of each state, by column: the domains, beside the paper, all."""

    title: str
    columns: list[str]
    rows: dict[str, list[int]]


@dataclass(frozen=True)
class Row:
    """Of a table. lines: its numbers by what they are (paper, ours, difference); only the paper's without results."""

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
    """Of a figure. state: the entry's, for the metrics that a claim is about. notes: with an entry's first metric.

    ratio: to the baseline, where times are compared."""

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
class Missing:
    """Rows of a figure without results, of one state: commands to run them, or the reason why there are none."""

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
    missing: list[Missing] = field(default_factory=list)
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
    records: list[RecordRow]
    results: list[ResultsRow]
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
    """The ledger with its verdicts; what was never judged was not run."""

    def __init__(self, ledger: Ledger, collected: Collected):
        self.ledger, self.collected = ledger, collected
        nothing = judge(ledger, results.EMPTY)
        outcomes, claims = {**nothing.outcomes, **collected.outcomes}, {**nothing.claims, **collected.claims}
        self.outcomes = {name: _own_notes(outcomes[name]) for name in ledger.entries}
        self.claims = {name: _grouped_notes(claims[name]) for name in ledger.claims}

    def entries(self, place: str) -> list[Entry]:
        return [entry for experiment in self.ledger.at(place) for entry in experiment.entries]

    def has_results(self, entry: Entry) -> bool:
        return self.outcomes[entry.id].state not in (NOT_RUN, CANNOT)


def _own_notes(outcome: Outcome) -> Outcome:
    """Without the number of seeds and the claims, which are shown anyway."""
    seeds = f"{outcome.seeds} of {outcome.wanted} seeds"
    return replace(outcome, notes=[note for note in outcome.notes if note != seeds and not note.startswith("claim ")])


def _grouped_notes(outcome: ClaimOutcome) -> ClaimOutcome:
    """By what they say: "not run: a, b"."""
    names: dict[str, list[str]] = {}
    for note in outcome.notes:
        name, _, what = note.rpartition(": ")
        names.setdefault(what, []).append(name)
    notes = [f"{what}: {', '.join(group)}" if all(group) else what for what, group in names.items()]
    return replace(outcome, notes=notes)


def make(ledger: Ledger, collected: Collected, out: Path) -> Page:
    """out: the folder of the page, for the links to the documents."""
    found = Findings(ledger, collected)
    sections = {name: _section(found, place) for name, place in ledger.places.items()}
    shown = [section for name, section in sections.items() if name != HERE and ledger.at(name)]
    return Page(
        paper=ledger.paper,
        date=history.time(collected.made) if collected.made else "",
        begun=any(map(found.has_results, ledger.entries.values())) and has_own(collected),
        summary=_summary(found),
        counts=_counts(found),
        coverage=[section for name, section in sections.items() if name != HERE],
        tables=[section for section in shown if section.place.draws == "table"],
        figures=[section for section in shown if section.place.draws != "table"],
        beside=sections[HERE],
        records=[history.record_row(record) for record in collected.records],
        results=history.results_rows(collected),
        failed=[(result.label, "\n".join(result.log_tail)) for result in collected.results if result.failed],
        problems=collected.problems,
        sources=collected.sources,
        tolerances={name: tolerance.reason for name, tolerance in ledger.tolerances.items()},
        docs={name: (Path(os.path.relpath(ROOT / name, out)).as_posix(), what) for name, what in DOCS.items()},
    )


def has_own(collected: Collected) -> bool:
    """Anything beside what came with the repository."""
    return bool(collected.records) or not all(result.from_repository for result in collected.results)


def name_of(entry: Entry) -> str:
    return entry.experiment.row if entry.value is None else f"{entry.experiment.row}, {_value(entry)}"


def _value(entry: Entry) -> str:
    """Of its over, as the paper calls it."""
    return text.metric(str(entry.value))


# ----------------------------------------------------------------------------------------------------- the first screen


def _column(place: str, domain: str) -> str:
    return "beside the paper" if place == HERE else NAMES[domain]


def _counts(found: Findings) -> list[Counts]:
    places = found.ledger.places
    entries = [
        (_column(entry.experiment.place, entry.experiment.domain), found.outcomes[name].state)
        for name, entry in found.ledger.entries.items()
    ]
    claims = [
        (_column(claim.place, places[claim.place].domain), found.claims[name].state)
        for name, claim in found.ledger.claims.items()
    ]
    return [_counts_of("Rows and curves", entries), _counts_of("Claims", claims)]


def _counts_of(title: str, states: Sequence[tuple[str, str]]) -> Counts:
    columns, counter = [*NAMES.values(), "beside the paper"], Counter(states)
    rows = {state: [counter[column, state] for column in columns] for state in STATES}
    rows["all"] = [sum(column) for column in zip(*rows.values())]
    return Counts(title, [*columns, "all"], {state: [*row, sum(row)] for state, row in rows.items()})


def _summary(found: Findings) -> list[str]:
    """What was run, on what, and what was not, in sentences."""
    beside = found.entries(HERE)
    paper = [entry for entry in found.ledger.entries.values() if entry.experiment.place != HERE]
    runnable = [entry for entry in paper if not entry.experiment.cannot]
    done, done_beside = list(filter(found.has_results, runnable)), list(filter(found.has_results, beside))
    can, cannot = len(runnable), len(paper) - len(runnable)
    of_paper = f"the paper's {len(paper)} rows and curves"
    if not done and not done_beside:
        what = f"Of {of_paper} this project can run {can}; the other {cannot} it cannot, for the reasons below."
        return [f"Nothing was run yet. {what}"]
    ran = f"Of {of_paper}, none was run"
    if done:
        done_in, can_in = (Counter(entry.experiment.domain for entry in entries) for entries in (done, runnable))
        by_domain = ", ".join(f"{done_in[domain]} of {can_in[domain]} {NAMES[domain]}" for domain in NAMES)
        ran = f"Of {of_paper}, {len(done)} were run or begun ({by_domain})"
    if done_beside:
        panel_names = "; ".join(_unique(entry.experiment.panel for entry in done_beside))
        ran += f"; beside the paper {len(done_beside)} of {len(beside)} ({panel_names})"
    names = _unique(result.hardware for result in found.collected.results if result.hardware)
    hardware = f"Hardware: {'; '.join(names[:4])}{' and others' if len(names) > 4 else ''}."
    rest = f"{cannot} that this project cannot run"
    if len(done) < can:
        rest = f"{can - len(done)} that this project can run, and {cannot} that it cannot"
    return [
        f"{ran}. {hardware if names else 'No result says on what hardware.'}",
        *_from_repository(found.collected),
        f"Not run: {rest}, for the reasons below.",
    ]


def _from_repository(collected: Collected) -> list[str]:
    came = [result for result in collected.results if result.from_repository]
    if not came:
        return []
    commits = _unique(result.commit[:10] for result in came if result.commit)
    made = ", ".join(filter(None, (", ".join(commits), text.days([result.ended for result in came]))))
    own = "" if has_own(collected) else " Nothing was run here yet."
    counted = text.counted(len(came), "result")
    return [f"{counted} came with the repository, in records/{f' (commit {made})' if made else ''}.{own}"]


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


# --------------------------------------------------------------------------------------------------- tables and figures


def anchor(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower())


def _section(found: Findings, place: Place) -> Section:
    ledger, entries, claims = found.ledger, found.entries(place.id), found.ledger.claims_at(place.id)
    tolerances = _unique(entry.experiment.tolerance for entry in entries if entry.experiment.tolerance)
    section = Section(
        place,
        anchor(place.id),
        _ordered(Counter(found.outcomes[entry.id].state for entry in entries)),
        _ordered(Counter(found.claims[claim.id].state for claim in claims)),
        claims=[_claim(found, claim) for claim in claims],
        notes=_unique(entry.experiment.note for entry in entries if entry.experiment.note),
        tolerances=[ledger.tolerances[name].reason for name in tolerances],
    )
    if place.draws == "table" and place.id != HERE:
        return replace(section, blocks=_blocks(found, entries))
    present = list(filter(found.has_results, entries))
    baseline = next((ledger.experiments[claim.than] for claim in claims if claim.test == "overhead"), None)
    return replace(
        section,
        pictures=panels.pictures(ledger, found.collected, found.outcomes, place, present),
        measured=[item for entry in present for item in _measured(found, entry, baseline)],
        missing=_missing(found, ledger.at(place.id)),
        ratios=baseline.row if baseline else "",
    )


def _ordered(counter: Counter) -> dict[str, int]:
    return {state: counter[state] for state in STATES if counter[state]}


def _blocks(found: Findings, entries: Sequence[Entry]) -> list[Block]:
    metrics = _unique(metric for entry in entries for metric in entry.metrics)
    papers = [entry.experiment.paper for entry in entries]
    decimals = {name: text.decimals_of([paper[name].value for paper in papers if name in paper]) for name in metrics}
    blocks: dict[str, list[Row]] = {}
    for entry in entries:
        blocks.setdefault(entry.experiment.block, []).append(_row(found, entry, metrics, decimals))
    return [Block(title, metrics, rows) for title, rows in blocks.items()]


def _row(found: Findings, entry: Entry, metrics: Sequence[str], decimals: dict[str, int]) -> Row:
    outcome = found.outcomes[entry.id]
    cells = {cell.metric: cell for cell in outcome.cells}
    in_row = [cells.get(metric, Cell(metric, None, None)) for metric in metrics]
    lines = {"paper": [text.measured(cell.paper, cell.paper_error, decimals[cell.metric]) for cell in in_row]}
    if any(cell.ours is not None for cell in in_row):
        lines["ours"] = [text.measured(cell.ours, cell.interval, decimals[cell.metric]) for cell in in_row]
        lines["difference"] = [_difference(cell, decimals[cell.metric]) for cell in in_row]
    over = ", ".join(_unique(cell.interval_of for cell in in_row if cell.interval_of))
    return Row(name_of(entry), outcome, over, lines, _command(entry.experiment, entry.id))


def _difference(cell: Cell, decimals: int) -> str:
    """With what is allowed, and whether it is within: in words, for those who do not see the sign."""
    shown = text.number(cell.difference, decimals, sign=True)
    if cell.within is None or cell.allowed is None:
        return shown
    return f"{shown} ({'within' if cell.within else 'outside'} ±{text.number(cell.allowed, decimals)})"


def _command(experiment: Experiment, name: str) -> str:
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
    about = ledger.claims_about(entry.experiment)
    tested = {claim.metric or entry.metrics[0] for claim in about}
    if outcome.state not in (results.REPRODUCED, results.NOT_REPRODUCED) or metric in tested:
        return outcome.state
    return outcome.state if any(claim.test == "spread" for claim in about) else results.COMPLETE


def _ratio(found: Findings, entry: Entry, cell: Cell, baseline: Experiment | None) -> str:
    if baseline is None or (value := panels.ratio(found.outcomes, entry, cell, baseline)) is None:
        return ""
    return f"{value:.3f} ({text.number(100 * (value - 1), 1, sign=True)} %)"


def _missing(found: Findings, experiments: Sequence[Experiment]) -> list[Missing]:
    cannot: dict[str, list[str]] = {}
    names, commands = [], {}
    for experiment in experiments:
        missing = [entry for entry in experiment.entries if not found.has_results(entry)]
        if not missing:
            continue
        whole = len(missing) == len(experiment.entries)
        name = experiment.row if whole else f"{experiment.row} ({', '.join(map(_value, missing))})"
        if experiment.cannot:
            cannot.setdefault(experiment.cannot, []).append(name)
        else:
            names.append(name)
            for id in [experiment.id] if whole else [entry.id for entry in missing]:
                commands.setdefault(id, _command(experiment, id))
    not_run = [Missing(NOT_RUN, names, list(commands.values()))] if names else []
    return not_run + [Missing(CANNOT, rows, reason=reason) for reason, rows in cannot.items()]


# -------------------------------------------------------------------------------------------------------------- claims


def _claim(found: Findings, claim: Claim) -> ClaimShown:
    outcome = found.claims[claim.id]
    several = len(outcome.parts) > 1
    parts = [(text.metric(part.entry.partition("/")[2]) if several else "", part) for part in outcome.parts]
    return ClaimShown(text.plain(claim.quote), tested(found.ledger, claim), outcome, parts, claim.reason)


def tested(ledger: Ledger, claim: Claim) -> str:
    """The claim's test in words."""
    of = ledger.experiments[claim.of]
    than = ledger.experiments[claim.than].row if claim.than else ""
    metrics = [claim.metric] if claim.metric else (of.metric if claim.test == "spread" else of.metric[:1])
    what = " and ".join(text.metric(metric) for metric in metrics)
    values = ", ".join(map(_value, of.entries))
    each = f", for each of {values}" if of.over else ""
    if claim.test == "higher" and claim.aggregate:
        over = "over all tasks and seeds, each task's divided by its scale"
        return f"{of.row} ends above {than} in the interquartile mean of the {what} {over}."
    if claim.test == "higher" and claim.value is not None:
        least = f"{claim.value - claim.tolerance:g} % ({claim.value:g} %, less {claim.tolerance:g} of tolerance)"
        return f"{of.row} is better than {than} by at least {least} in the average of {values}."
    if claim.test == "overhead":
        paper = ""
        if claim.value is not None:
            paper = f": {_percent(claim.value)}, and {_percent(claim.tolerance)} of tolerance"
        return f"{of.row} takes at most {_percent((claim.value or 0) + claim.tolerance)} longer than {than}{paper}."
    share = f"from {_percent(claim.after)} of the steps on" if claim.after else "at every step"
    share = "at the end" if claim.after == 1 else share
    share += f", as a running mean over {claim.window} rows" if claim.window > 1 else ""
    less = f" (less {claim.tolerance:g} of tolerance)" if claim.tolerance else ""
    if claim.test == "higher":
        return f"{of.row} ends above {than} in {what}{each}."
    if claim.test == "not_higher":
        return f"{of.row} does not end above {than} in {what}{each}."
    if claim.test == "lower":
        return f"{of.row} ends below {than} in {what}{each}."
    if claim.test == "above":
        return f"{of.row} is nowhere below {than} in {what}, and above on average{each}."
    if claim.test == "spread":
        return f"{of.row}: largest minus smallest of {what} over {of.over_name} is at most {claim.value:g}."
    if claim.test == "at_least":
        return f"{of.row}: {what} does not fall below {claim.value:g}{less}, {share}."
    return f"{of.row}: {what} lies between {claim.low:g} and {claim.high:g}, {share}."


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
