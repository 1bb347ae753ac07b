# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""experiments.toml as values: the paper's tables and figures, their entries, and the claims. The file explains its
fields; tests/ledger/test_paper.py compares it with the paper's TeX."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "experiments.toml"


class UserError(Exception):
    """What a user is told instead of a traceback."""


@dataclass(frozen=True)
class Run:
    """A make target that trains or measures.

    seeds: what it trains by itself. folder, steps, after: of the LLM runs, see the file."""

    id: str
    upstream: str
    gpus: int
    hardware: str = ""
    seeds: tuple[int, ...] = ()
    folder: str = ""
    steps: int | None = None
    after: str = ""
    target: str = ""  # of make, where it is not the id
    suffix: str = ""  # of the folder of an evaluation
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A table or figure. draws: "table", "curves", "points", "bars" or "aggregate". same_as, no_result: why it has no
    entries."""

    id: str
    title: str
    domain: str = ""
    draws: str = "table"
    note: str = ""
    same_as: tuple[str, ...] = ()
    no_result: str = ""


@dataclass(frozen=True)
class Entry:
    """What the ledger counts: a row of a table or a curve of a figure, at one value of each variable of its sweep.

    values: of the sweep, in its order. variables: of make, that choose its trainings. paper: by metric the paper's
    number and its error, None where it prints none. seeds: how many make it complete."""

    id: str
    row: str
    place: Place
    panel: str
    label: str
    values: tuple[str | float, ...] = ()
    sweep: tuple[str, ...] = ()
    run: str = ""
    evaluation: str = ""
    weights: str = ""
    folder: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    at_step: int | None = None
    paper: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    tolerance: str = ""
    gain: tuple[str, ...] = ()
    unit: str = "percent"
    seeds: int = 1
    cannot: str = ""

    @property
    def name(self) -> str:
        return ", ".join([self.label, *map(str, self.values)])


@dataclass(frozen=True)
class Claim:
    """What the paper says of a figure, as a test. subject, baseline: rows."""

    id: str
    place: Place
    quote: str
    test: str
    subject: tuple[str, ...]
    reason: str
    baseline: tuple[str, ...] = ()
    metric: str = ""
    value: float | None = None
    tolerance: float = 0.0
    low: float | None = None
    high: float | None = None
    after: float = 0.0
    window: int = 1
    aggregate: bool = False

    @property
    def rows(self) -> tuple[str, ...]:
        return self.subject + self.baseline


@dataclass(frozen=True)
class Paper:
    title: str
    places: Mapping[str, Place]
    runs: Mapping[str, Run]
    entries: Mapping[str, Entry]
    claims: Mapping[str, Claim]
    tolerances: Mapping[str, Mapping]
    scales: Mapping[str, float]

    def row(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.row == name]

    def trainings(self, entry: Entry) -> list[Run]:
        """In the order in which they are started: each after the one that it goes on from."""
        chain, name = [], entry.run
        while name:
            chain.insert(0, self.runs[name])
            name = self.runs[name].after
        return chain

    def find(self, name: str) -> list[Entry]:
        """All entries of a row, or the one entry of this id."""
        found = self.row(name) or [entry for entry in self.entries.values() if entry.id == name]
        if found:
            return found
        known = list(dict.fromkeys(name for entry in self.entries.values() for name in (entry.row, entry.id)))
        similar = [other for other in known if name.lower() in other.lower()][:5]
        similar = similar or get_close_matches(name.lower(), known, 5)
        hint = f"Similar: {', '.join(similar)}." if similar else "`reproduce.py list` names all."
        raise UserError(f"there is no row {name!r} in {FILE.name}. {hint}")


def load(file: Path = FILE) -> Paper:
    data = tomllib.loads(file.read_text())
    paper = Paper(data["paper"], {}, {}, {}, {}, data["tolerance"], data["scale"])
    for group in data["group"].values():
        shared = {key: value for key, value in group.items() if key != "runs"}
        for name, own in group["runs"].items():
            paper.runs[name] = Run(name, **_frozen({**shared, **own}))
    for name, table in [*data["table"].items(), *data["figure"].items()]:
        about = {key: table.pop(key) for key in ("title", "domain", "draws", "note") if key in table}
        place = paper.places[name] = Place(name, **about)
        claims, panels = table.pop("claims", {}), {"": {"rows": table.pop("rows", {})}, **table.pop("panels", {})}
        for panel, inner in panels.items():
            for row, fields in inner.pop("rows").items():
                for entry in _entries(row, place, panel, {**table, **inner, **fields}, paper, data["list"]):
                    paper.entries[entry.id] = entry
        for claim, fields in claims.items():
            sides = {key: _several(fields[key]) for key in ("subject", "baseline") if key in fields}
            paper.claims[claim] = Claim(claim, place, **{**fields, **sides})
    for name, fields in data["elsewhere"].items():
        paper.places[name] = Place(name, **_frozen(fields))
    return paper


def _entries(row: str, place: Place, panel: str, fields: dict, paper: Paper, lists: Mapping) -> Iterator[Entry]:
    """One for each combination of the values of the row's sweep. fields: the row's, with those that it inherits."""
    sweep = {name: _words(lists, values) for name, values in fields.pop("sweep", {}).items()}
    columns, numbers = fields.pop("columns", []), fields.pop("paper", [])
    metrics = fields.pop("metrics", columns)
    chosen = {name: fields.pop(name) for name in list(fields) if name.isupper()}
    fields["paper"] = {name: _with_error(number) for name, number in zip(columns, numbers)}
    fields["seeds"] = _seeds(fields, paper)
    folder = _folder(fields, paper)
    if not folder:
        fields["evaluation"] = ""
    for values in itertools.product(*sweep.values()):
        words = {name: sweep[name][value] for name, value in zip(sweep, values)}
        variables = {name: _fill(text, words) for name, text in chosen.items()}
        is_free = {name: name.isupper() and f"{{{name}}}" not in "".join(chosen.values()) for name in sweep}
        yield Entry(
            "/".join([row, *map(str, values)]),
            row,
            place,
            panel,
            values=values,
            sweep=tuple(sweep),
            folder=_fill(folder, {**words, **variables}),
            metrics=tuple(_fill(metric, words) for metric in metrics),
            variables={**variables, **{name: word for name, word in words.items() if is_free[name]}},
            **_frozen(fields),
        )


def _words(lists: Mapping, values: str | list) -> dict[str | float, str]:
    """What stands for each value of a variable in names."""
    values = lists[values] if isinstance(values, str) else values
    if isinstance(values, Mapping):
        return {float(value): word for value, word in values.items()}
    return {value: str(value) for value in values}


def _folder(fields: dict, paper: Paper) -> str:
    """Without the values of variables; none for what compares other rows or cannot run."""
    run, evaluation = paper.runs.get(fields.get("run")), paper.runs.get(fields.get("evaluation"))
    own = fields.pop("folder", "") or fields.get("weights", "") or (run.folder if run else "")
    return own + (evaluation.suffix if evaluation else "") if run or "weights" in fields else ""


def _seeds(fields: dict, paper: Paper) -> int:
    if "gain" in fields:  # as many as of the rows that it compares
        return paper.row(fields["gain"][0])[0].seeds
    first = paper.runs.get(fields.get("run"))
    while first and first.after:
        first = paper.runs[first.after]
    return fields.get("seeds") or (len(first.seeds) if first else 0) or 1


def _with_error(number: float | list) -> tuple[float, float | None]:
    return (number[0], number[1]) if isinstance(number, list) else (number, None)


def _fill(text: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


def _several(names: str | list[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _frozen(fields: dict) -> dict:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
