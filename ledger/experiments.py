"""The ledger: what experiments.toml holds, checked, as immutable values."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin

import tomllib

from ledger.errors import LedgerError

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "experiments.toml"
HERE = "this project"  # the place of what is not in the paper
UPSTREAMS = {"verl": "llm", "timm": "vision", "fasttd3": "control"}
DOMAINS = tuple(UPSTREAMS.values())
DRAWS = ("table", "curves", "points", "bars", "aggregate")
GAINS = ("percent", "points")
TESTS = ("higher", "above", "at_least", "within", "overhead", "spread")
_ID = re.compile(r"[a-z0-9][a-z0-9_@-]*")
_FIELD = re.compile(r"{(\w+)}")


@dataclass(frozen=True)
class Tolerance:
    """When a number counts as the paper's. answers: per metric, of how many answers its share is; none: both have intervals."""

    judged: tuple[str, ...]
    reason: str
    answers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A table or figure. draws: "table", "curves", "points", "bars" or "aggregate"; without results, same_as or no_result says why."""

    id: str
    title: str
    domain: str = ""
    draws: str = "table"
    same_as: tuple[str, ...] = ()
    no_result: str = ""


@dataclass(frozen=True)
class Run:
    """One command. upstream: name and version. seeds: what it trains by itself, () where none is named. hours: wall-clock, measured.
    folder, steps: the name of its CKPTS_DIR and its last checkpoint (LLM). after: the run whose checkpoint it goes on from."""

    id: str
    group: str
    command: str
    upstream: str = ""
    hardware: str = ""
    gpus: int = 0
    seeds: tuple[int, ...] = ()
    hours: float | None = None
    folder: str = ""
    steps: int | None = None
    after: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def upstream_name(self) -> str:
        return self.upstream.partition(" ")[0]

    @property
    def domain(self) -> str:
        return UPSTREAMS.get(self.upstream_name, "")

    @property
    def gpu_hours(self) -> float | None:
        """Of one run, where its time was measured."""
        return None if self.hours is None else self.hours * self.gpus


@dataclass(frozen=True)
class Number:
    """The paper's: its value, and the error (95 %) that it prints, if any."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A row of a table or a curve of a figure. experiments.toml explains the fields."""

    id: str
    place: str
    row: str
    domain: str
    block: str = ""
    panel: str = ""
    run: str = ""
    evaluation: str = ""
    folder: str = ""
    select: Mapping[str, str] = field(default_factory=dict)
    over: Mapping[str, tuple[str | float, ...]] = field(default_factory=dict)
    metric: tuple[str, ...] = ()
    until: int | None = None
    paper: Mapping[str, Number] = field(default_factory=dict)
    tolerance: str = ""
    gain: tuple[str, str] | tuple[()] = ()
    gain_in: str = "percent"
    seeds: tuple[int, ...] = ()
    cannot: str = ""
    note: str = ""

    @property
    def over_name(self) -> str:
        return next(iter(self.over), "")

    @property
    def entries(self) -> tuple["Entry", ...]:
        """One for each value of `over`, or the experiment itself."""
        return tuple(Entry(self, value) for value in self.over.get(self.over_name, (None,)))


@dataclass(frozen=True)
class Entry:
    """What the ledger counts: an experiment at one value of its `over`."""

    experiment: Experiment
    value: object = None

    @property
    def id(self) -> str:
        return self.experiment.id if self.value is None else f"{self.experiment.id}/{self.value}"

    def fill(self, text: str) -> str:
        return text.replace(f"{{{self.experiment.over_name}}}", str(self.value)) if self.value is not None else text

    @property
    def folder(self) -> str:
        """The name of its results, without seed; results.Result.name."""
        return self.fill(self.experiment.folder)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(map(self.fill, self.experiment.metric)) or tuple(self.experiment.paper)


@dataclass(frozen=True)
class Claim:
    """What the paper says of a figure, as a test. experiments.toml explains the fields."""

    id: str
    place: str
    quote: str
    test: str
    of: str
    reason: str
    than: str = ""
    metric: str = ""
    value: float | None = None
    tolerance: float = 0.0
    low: float | None = None
    high: float | None = None
    after: float = 0.0
    window: int = 1
    aggregate: bool = False


@dataclass(frozen=True)
class Ledger:
    paper: str
    tolerances: Mapping[str, Tolerance]
    places: Mapping[str, Place]
    runs: Mapping[str, Run]
    experiments: Mapping[str, Experiment]
    claims: Mapping[str, Claim]
    solved_at: Mapping[str, float]

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        return {entry.id: entry for experiment in self.experiments.values() for entry in experiment.entries}

    def runs_of(self, experiment: Experiment) -> tuple[Run, ...]:
        """In the order in which they are run: what trains first, then what goes on from it, then what measures."""
        chain, run = [], experiment.run
        while run:
            chain.insert(0, self.runs[run])
            run = self.runs[run].after
        return (*chain, *([self.runs[experiment.evaluation]] if experiment.evaluation else []))

    def seeds_of(self, experiment: Experiment) -> tuple[int | None, ...]:
        """What it needs to be complete; (None,) for one run whose seed nobody names."""
        if experiment.gain:
            return self.seeds_of(self.experiments[experiment.gain[0]])
        runs = self.runs_of(experiment)
        return experiment.seeds or (runs[0].seeds if runs else ()) or (None,)

    def at(self, place: str) -> tuple[Experiment, ...]:
        return tuple(experiment for experiment in self.experiments.values() if experiment.place == place)

    def claims_at(self, place: str) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims.values() if claim.place == place)

    def find(self, id: str) -> tuple[Entry, ...]:
        """The entries of an experiment's id, or the one of an entry's."""
        if id in self.experiments:
            return self.experiments[id].entries
        if id in self.entries:
            return (self.entries[id],)
        known = list(dict.fromkeys((*self.experiments, *self.entries)))
        near = [name for name in known if id.lower() in name.lower()][:5] or get_close_matches(id.lower(), known, 5)
        hint = f"Near it: {', '.join(near)}." if near else "`reproduce.py list` names all."
        raise LedgerError(f"there is no experiment {id!r} in {LEDGER.name}. {hint}")


def load(file: Path = LEDGER, upstreams: Path = ROOT / "upstreams.json") -> Ledger:
    """Raises LedgerError with all that is wrong."""
    try:
        data = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{file}: {error}") from None
    problems: list[str] = []
    ledger = _build(data, problems)
    if not problems:
        problems += _check(ledger, _versions(upstreams))
    if problems:
        raise LedgerError("\n".join(f"{file.name}: {problem}" for problem in problems))
    return ledger


def _build(data: dict, problems: list[str]) -> Ledger:
    def part(name: str, kind, default):
        value = _frozen(data.pop(name, default))
        if not _fits(value, kind):
            problems.append(f"{name}: {_said(kind)} expected")
            return default
        return value

    lists = part("list", Mapping[str, tuple[str | float, ...]], {})
    groups = part("group", Mapping[str, dict], {})
    texts = part("text", Mapping[str, str], {})

    def each(kind: str, make) -> dict:
        made = {}
        for name, table in part(kind, dict, {}).items():
            if not isinstance(table, dict):
                problems.append(f"{kind}.{name}: a table expected")
                continue
            try:
                made[name] = make(name, dict(table))
            except (TypeError, ValueError) as error:
                problems.append(f"{kind}.{name}: {error}")
        return made

    def run(name: str, table: dict) -> Run:
        if table.get("group") not in groups:
            raise ValueError(f"there is no group.{table.get('group')}")
        return _make(Run, name, {**groups[table["group"]], **table})

    def listed(name: str) -> tuple:
        if name not in lists:
            raise ValueError(f"there is no list.{name}")
        return _frozen(lists[name])

    places = each("place", lambda name, table: _make(Place, name, table))
    places[HERE] = Place(HERE, "Beside the paper")
    runs = each("run", run)

    def experiment(name: str, table: dict) -> Experiment:
        place = places.get(table.get("place"))
        if place is None:
            raise ValueError(f"there is no place.{table.get('place')}")
        if isinstance(table.get("paper"), dict):
            table["paper"] = {metric: _number(value) for metric, value in table["paper"].items()}
        table |= {
            key: texts.get(table[key], table[key]) for key in ("cannot", "note") if isinstance(table.get(key), str)
        }
        if isinstance(table.get("over"), dict):
            table["over"] = {
                key: listed(value) if isinstance(value, str) else value for key, value in table["over"].items()
            }
        if isinstance(table.get("metric"), str):
            table["metric"] = (table["metric"],)
        if _fits(table.get("seeds"), int):  # how many, where nothing is run
            table["seeds"] = tuple(range(1, table["seeds"] + 1))
        trained = runs.get(table.get("run"))
        if trained and trained.folder:
            table.setdefault("folder", trained.folder)
        table["domain"] = place.domain or (trained.domain if trained else "")
        return _make(Experiment, name, table)

    ledger = Ledger(
        paper=part("paper", str, ""),
        tolerances=each("tolerance", lambda name, table: _make(Tolerance, None, table)),
        places=places,
        runs=runs,
        experiments=each("experiment", experiment),
        claims=each("claim", lambda name, table: _make(Claim, name, table)),
        solved_at=part("solved_at", Mapping[str, float], {}),
    )
    problems += [f"{name}: no such part of the ledger" for name in data]
    return ledger


def _make(kind, name: str | None, table: dict):
    known = {item.name: item.type for item in fields(kind)}
    unknown = set(table) - set(known)
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(sorted(known))}")
    wrong = [_wrong(key, value, known[key]) for key, value in table.items() if not _fits(value, known[key])]
    if wrong:
        raise ValueError("; ".join(wrong))
    return kind(**({"id": name} if name is not None else {}), **table)


def _number(value):
    """What is no number of the paper's stays as it is."""
    return Number(value) if _fits(value, float) else Number(*value) if _fits(value, tuple[float, float]) else value


def _wrong(key: str, value, kind) -> str:
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return next(
            _wrong(f"{key}.{name}", one, get_args(kind)[1])
            for name, one in value.items()
            if not _fits(one, get_args(kind)[1])
        )
    return f"{key} is {value!r}, and {_said(kind)} expected"


def _fits(value, kind) -> bool:
    """Whether a value is what a field of that type holds. A whole number is a float too; NaN, infinity and true are no numbers."""
    inner = get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_fits(value, one) for one in inner)
    if get_origin(kind) is tuple:
        kinds = inner[:1] * len(value) if isinstance(value, tuple) and inner[1:] == (...,) else inner
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if get_origin(kind) is Mapping:
        return isinstance(value, dict) and all(_fits(one, inner[1]) for one in value.values())
    return type(value) in (int, float) and math.isfinite(value) if kind is float else type(value) is kind


def _said(kind) -> str:
    """A type in words."""
    inner = [one for one in get_args(kind) if one not in (..., NoneType, tuple[()])]
    if get_origin(kind) is UnionType:
        return " or ".join(map(_said, inner))
    if get_origin(kind) is tuple:
        return "a list"
    if get_origin(kind) is Mapping:
        return f"a table whose values are {_said(inner[1])}"
    return {
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        dict: "a table",
        Number: "a number or [number, error]",
    }[kind]


def _frozen(value):
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _versions(upstreams: Path) -> dict[str, str]:
    try:
        return {name: entry["default"] for name, entry in json.loads(upstreams.read_text()).items()}
    except OSError as error:
        raise LedgerError(f"{upstreams} cannot be read ({error.strerror}).") from None
    except (ValueError, AttributeError, KeyError, TypeError):
        what = "is not the list of pinned upstreams that belongs here: an object of each one's name, with its `default` version, is expected"
        raise LedgerError(
            f"{upstreams} {what}. `git checkout upstreams.json` brings it back. Nothing was changed."
        ) from None


def _check(ledger: Ledger, versions: Mapping[str, str]) -> Iterator[str]:
    for run in ledger.runs.values():
        name, _, version = run.upstream.partition(" ")
        if versions.get(name) != version:
            yield f"run.{run.id}: upstream {run.upstream!r}, and upstreams.json pins {name} {versions.get(name)}"
        if run.after and run.after not in ledger.runs:
            yield f"run.{run.id}: there is no run.{run.after}"
    for experiment in ledger.experiments.values():
        yield from (f"experiment.{experiment.id}: {problem}" for problem in _check_experiment(ledger, experiment))
    for claim in ledger.claims.values():
        yield from (f"claim.{claim.id}: {problem}" for problem in _check_claim(ledger, claim))
    for place in ledger.places.values():
        tasks = [
            entry.value for experiment in ledger.at(place.id) if not experiment.cannot for entry in experiment.entries
        ]
        if place.draws == "aggregate" and not all(ledger.solved_at.get(task, 0) > 0 for task in tasks):
            yield f"place.{place.id}: draws aggregate: a number above 0 in solved_at expected for each task"
        if place.draws not in DRAWS:
            yield f"place.{place.id}: draws {place.draws!r}: one of {', '.join(DRAWS)} expected"
        if place.domain not in DOMAINS and place.id != HERE and (place.domain or ledger.at(place.id)):
            yield f"place.{place.id}: domain {place.domain!r}: one of {', '.join(DOMAINS)} expected"
        yield from (
            f"place.{place.id}: same_as names {other}, which is no place"
            for other in place.same_as
            if other not in ledger.places
        )
        if place.id != HERE and bool(ledger.at(place.id)) == bool(place.same_as or place.no_result):
            yield f"place.{place.id}: experiments, or same_as, or no_result expected, and one of them alone"


def _check_experiment(ledger: Ledger, experiment: Experiment) -> Iterator[str]:
    if not _ID.fullmatch(experiment.id):
        yield "a name of lower-case letters, digits, -, _ and @ expected"
    ways = [bool(experiment.run or experiment.evaluation), bool(experiment.gain), bool(experiment.cannot)]
    if sum(ways) != 1:
        yield "one of run or evaluation, gain, cannot expected"
    yield from (
        f"there is no run.{name}"
        for name in (experiment.run, experiment.evaluation)
        if name and name not in ledger.runs
    )
    for name in experiment.gain:
        other = ledger.experiments.get(name)
        if other is None:
            yield f"gain: there is no experiment.{name}"
        elif other.over or not other.tolerance or not set(experiment.paper) <= set(other.paper):
            yield f"gain: experiment.{name} must be one row, with a tolerance and the same metrics"
    if experiment.gain_in not in GAINS:
        yield f"gain_in {experiment.gain_in!r}: one of {', '.join(GAINS)} expected"
    if experiment.tolerance and experiment.tolerance not in ledger.tolerances:
        yield f"there is no tolerance.{experiment.tolerance}"
    elif experiment.tolerance:
        tolerance = ledger.tolerances[experiment.tolerance]
        lacking = {*tolerance.judged, *tolerance.answers} - set(experiment.paper)
        if lacking or not tolerance.judged:
            yield f"paper: numbers expected for what tolerance.{experiment.tolerance} judges: {', '.join(sorted(lacking)) or 'nothing'}"
    if ways[0] and not experiment.folder:
        yield "folder: the name of its results expected"
    if ways[0] and not experiment.metric and not experiment.paper:
        yield "metric, or the paper's numbers, expected"
    if experiment.paper and not experiment.gain and not experiment.tolerance:
        yield "tolerance: when do its numbers count as reproduced?"
    for name, text in (("cannot", experiment.cannot), ("note", experiment.note)):
        if text and " " not in text:
            yield f"{name}: a sentence expected, or the name of a text; there is no text.{text}"
    if len(experiment.over) > 1 or () in experiment.over.values():
        yield "over: one variable and its values expected"
    unknown = {name for text in (experiment.folder, *experiment.metric) for name in _FIELD.findall(text)} - set(
        experiment.over
    )
    if unknown:
        yield f"{{{'}, {'.join(sorted(unknown))}}}: not in over"


def _check_claim(ledger: Ledger, claim: Claim) -> Iterator[str]:
    if claim.test not in TESTS:
        yield f"test {claim.test!r}: one of {', '.join(TESTS)} expected"
    if claim.place not in ledger.places:
        yield f"there is no place.{claim.place}"
    yield from (
        f"there is no experiment.{name}"
        for name in (claim.of, *filter(None, [claim.than]))
        if name not in ledger.experiments
    )
    if bool(claim.than) != (claim.test in ("higher", "above", "overhead")):
        yield "than: expected for the tests higher, above and overhead, and for these alone"
    of, than = (ledger.experiments.get(name) for name in (claim.of, claim.than))
    if of and than and [entry.value for entry in of.entries] != [entry.value for entry in than.entries]:
        yield "of and than: experiments over the same values expected"
    if claim.aggregate and (
        claim.test != "higher" or claim.place in ledger.places and ledger.places[claim.place].draws != "aggregate"
    ):
        yield "aggregate: expected for the test higher alone, of a place that draws aggregate"
    lacking = {"at_least": ("value",), "within": ("low", "high"), "spread": ("value",)}.get(claim.test, ())
    yield from (
        f"{name}: a number expected for the test {claim.test}" for name in lacking if getattr(claim, name) is None
    )
