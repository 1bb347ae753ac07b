# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""experiments.toml as values: the paper's tables and figures, their entries, and the claims.

The file explains its fields; tests/ledger/test_paper.py compares it with the paper's TeX."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import tomllib

from recipes import UserError

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "experiments.toml"
SIDES = ("subject", "baseline")  # of a claim
# The states of an entry or a claim, decided in ledger/verdicts.py.
STATES = REPRODUCED, NOT_REPRODUCED, COMPLETE, PARTIAL, NOT_RUN, CANNOT = (
    "reproduced",
    "not reproduced",
    "run",  # complete, and nothing to judge it by: a curve, of which only claims are judged
    "partial",  # some seeds, or some of what it is compared with, are missing
    "not run",
    "cannot run",
)


@dataclass(frozen=True)
class MakeTarget:
    """A make target that trains or measures; id is its name unless `target` is given."""

    id: str
    upstream: str
    gpus: int
    hardware: str = ""
    seeds: list[int] = field(default_factory=list)
    folder: str = ""
    steps: int | None = None
    after: str = ""
    target: str = ""
    suffix: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A table or figure; id is its label in the paper. source: where its numbers are from, if not from the paper."""

    id: str
    title: str
    domain: str
    draws: str = "table"
    note: str = ""
    source: str = ""


@dataclass(frozen=True)
class Entry:
    """What the ledger counts: a row of a table or a curve of a figure, at one value of each variable of its sweep.

    values: the sweep's, by variable. variables: make's, which choose the trainings. folder: the name of the results'
    folder without -seed<n>; empty where the entry compares other rows or cannot run. paper: by metric, the number and
    its error (NaN where none is printed). seeds: how many make the entry complete."""

    id: str
    row: str
    place: Place
    panel: str
    label: str
    values: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    evaluation: str = ""
    weights: str = ""
    folder: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=list)
    at_step: int | None = None
    paper: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tolerance: str = ""
    gain: list[str] = field(default_factory=list)
    unit: str = "percent"
    seeds: int = 1
    cannot: str = ""

    @property
    def name(self) -> str:
        return ", ".join([self.label, *self.values.values()])


@dataclass(frozen=True)
class Claim:
    """What the paper says of a figure, as a test of rows against others."""

    id: str
    place: Place
    quote: str
    test: str
    subject: list[str]
    reason: str
    baseline: list[str] = field(default_factory=list)
    metric: str = ""
    value: float = 0.0
    tolerance: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    after: float = 0.0
    window: int = 1
    efficiency: bool = False

    @property
    def rows(self) -> list[str]:
        return self.subject + self.baseline


@dataclass(frozen=True)
class Paper:
    """Make targets (runs), places, entries and claims by their ids; the other fields are tables of experiments.toml."""

    title: str
    runs: Mapping[str, MakeTarget]
    places: Mapping[str, Place]
    entries: Mapping[str, Entry]
    claims: Mapping[str, Claim]
    sources: Mapping[str, Mapping]
    tolerances: Mapping[str, Mapping]
    tests: Mapping[str, str]
    scales: Mapping[str, float]
    metrics: Mapping[str, str]
    elsewhere: Mapping[str, str]

    def row(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.row == name]

    def at(self, place: Place) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.place == place]

    def whose(self, place: Place) -> str:
        """Whose numbers the place has."""
        return f"{self.sources[place.source]['version']}, from a summary" if place.source else "paper"

    def trainings(self, entry: Entry) -> list[MakeTarget]:
        """The entry's trainings in the order of their start: each after the one that it continues."""
        chain, name = [], entry.run
        while name:
            chain.insert(0, self.runs[name])
            name = self.runs[name].after
        return chain

    def tested(self, claim: Claim) -> str:
        """The claim's test in words."""
        labels = {side: ", ".join(self.row(row)[0].label for row in getattr(claim, side)) for side in SIDES}
        metric = claim.metric or self.row(claim.subject[0])[0].metrics[0]
        words = self.tests[claim.test].format_map({**vars(claim), **labels, "metric": self.metrics.get(metric, metric)})
        return f"{words}; both at the end and over the whole training" if claim.efficiency else words

    def find(self, name: str) -> list[Entry]:
        """All entries of a row, or the one entry of this id."""
        if entries := self.row(name) or [entry for entry in self.entries.values() if entry.id == name]:
            return entries
        known = {known for entry in self.entries.values() for known in (entry.row, entry.id)}
        similar = f"Similar: {', '.join(close)}. " if (close := get_close_matches(name, known, 5)) else ""
        raise UserError(f"there is no row {name!r} in {FILE.name}. {similar}`reproduce.py list` names all.")


def load(file: Path = FILE) -> Paper:
    try:
        data = tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file}: {error}") from None
    runs, places, entries, claims = {}, {}, {}, {}
    for group in data["group"].values():
        of_group = group.pop("runs")
        runs |= {name: MakeTarget(name, **{**group, **fields}) for name, fields in of_group.items()}
    for label, table in (data["table"] | data["figure"]).items():
        about = {name: table.pop(name) for name in ("title", "domain", "draws", "note", "source") if name in table}
        place = places[label] = Place(label, **about)
        for claim, fields in table.pop("claims", {}).items():
            claims[claim] = Claim(claim, place, **fields)
        panels = {"": {"rows": table.pop("rows", {})}, **table.pop("panels", {})}
        for panel, shared in panels.items():
            for row, fields in shared.pop("rows").items():
                for entry in _entries(row, place, panel, {**table, **shared, **fields}, runs, data["list"]):
                    entries[entry.id] = entry
    rest = (data[name] for name in ("source", "tolerance", "test", "scale", "metric", "elsewhere"))
    return Paper(data["paper"], runs, places, entries, claims, *rest)


def _entries(
    row: str, place: Place, panel: str, fields: dict, runs: Mapping[str, MakeTarget], lists: Mapping
) -> Iterator[Entry]:
    """An entry for each combination of the sweep's values. fields: the row's own and those that it inherits."""
    sweep = fields.pop("sweep", {})
    sweep = {name: lists[values] if isinstance(values, str) else values for name, values in sweep.items()}
    columns = fields.pop("columns", [])
    numbers = [number if isinstance(number, list) else (number, math.nan) for number in fields.pop("paper", [])]
    metrics, folder = fields.pop("metrics", columns), fields.pop("folder", "")
    chosen = {name: fields.pop(name) for name in list(fields) if name.isupper()}
    run, evaluation = runs.get(fields.get("run")), runs.get(fields.get("evaluation"))
    if run or "weights" in fields:
        folder = (folder or fields.get("weights") or run.folder) + (evaluation.suffix if evaluation else "")
        fields["seeds"] = fields.get("seeds") or (len(run.seeds) if run else 0) or 1
    else:
        folder = ""
    for values in itertools.product(*sweep.values()):
        at = dict(zip(sweep, map(str, values)))
        words = {name: sweep[name][value] if isinstance(sweep[name], dict) else value for name, value in at.items()}
        variables = {name: text.format_map(words) for name, text in chosen.items()}
        own = {name: word for name, word in words.items() if name.isupper() and f"{{{name}}}" not in str(chosen)}
        yield Entry(
            "/".join([row, *at.values()]),
            row,
            place,
            panel,
            values=at,
            folder=folder.format_map({**words, **variables}),
            metrics=[metric.format_map(words) for metric in metrics],
            variables={**variables, **own},
            paper=dict(zip(columns, map(tuple, numbers))),
            **fields,
        )
