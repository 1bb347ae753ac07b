"""The ledger: experiments.toml as immutable values. The tests check that what it says is consistent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import tomllib

from ledger.errors import LedgerError

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "experiments.toml"
HERE = "this project"  # the place of what is not in the paper
CONTROL_HOSTS = ("drl-code-pytorch", "sbx", "tdmpc2")  # of recipes/control
UPSTREAMS = {
    "verl": "llm", "timm": "vision", "torch-uncertainty": "vision", "fasttd3": "control",
    **dict.fromkeys(CONTROL_HOSTS, "control"),
}  # fmt: skip
DOMAINS = tuple(dict.fromkeys(UPSTREAMS.values()))


@dataclass(frozen=True)
class Tolerance:
    """When a number counts as the paper's.

    answers: per metric, of how many answers it is a share; without any, the paper prints intervals."""

    judged: tuple[str, ...]
    reason: str
    answers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A table or figure of the paper.

    draws: "table", "curves", "points", "bars" or "aggregate". same_as or no_result says why it has no experiments."""

    id: str
    title: str
    domain: str = ""
    draws: str = "table"
    same_as: tuple[str, ...] = ()
    no_result: str = ""


@dataclass(frozen=True)
class Run:
    """One command of the ledger.

    upstream: name and version. seeds: what it trains by itself, () where none is named. hours: wall-clock, measured.
    folder, steps: the name of its CKPTS_DIR and its last checkpoint (LLM). after: the run that it continues.
    """

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
        return UPSTREAMS[self.upstream_name]


@dataclass(frozen=True)
class Number:
    """A number of the paper, and its error (95 %) where the paper prints one."""

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
    words: Mapping[float, str] = field(default_factory=dict)  # what stands for a value of `over` in names
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
        """A text with the value in place of the name of its `over` in braces."""
        word = self.experiment.words.get(self.value, str(self.value))
        return text.replace(f"{{{self.experiment.over_name}}}", word) if self.experiment.over else text

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
    scales: Mapping[str, float]

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        return {entry.id: entry for experiment in self.experiments.values() for entry in experiment.entries}

    def runs_of(self, experiment: Experiment) -> tuple[Run, ...]:
        """In the order in which they are started: each after the one it continues, and the evaluation last."""
        chain, name = [], experiment.run
        while name:
            chain.insert(0, self.runs[name])
            name = self.runs[name].after
        return (*chain, *([self.runs[experiment.evaluation]] if experiment.evaluation else []))

    def seeds_of(self, experiment: Experiment) -> tuple[int | None, ...]:
        """The seeds that make it complete; (None,) for one result whose seed is not named."""
        if experiment.gain:
            return self.seeds_of(self.experiments[experiment.gain[0]])
        runs = self.runs_of(experiment)
        return experiment.seeds or (runs[0].seeds if runs else ()) or (None,)

    def at(self, place: str) -> tuple[Experiment, ...]:
        return tuple(experiment for experiment in self.experiments.values() if experiment.place == place)

    def claims_at(self, place: str) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims.values() if claim.place == place)

    def claims_about(self, experiment: Experiment) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims.values() if experiment.id in (claim.of, claim.than))

    def find(self, id: str) -> tuple[Entry, ...]:
        """All entries of an experiment, or the one entry with this id."""
        if id in self.experiments:
            return self.experiments[id].entries
        if id in self.entries:
            return (self.entries[id],)
        known = list(dict.fromkeys((*self.experiments, *self.entries)))
        similar = [name for name in known if id.lower() in name.lower()][:5] or get_close_matches(id.lower(), known, 5)
        hint = f"Similar: {', '.join(similar)}." if similar else "`reproduce.py list` names all."
        raise LedgerError(f"there is no experiment {id!r} in {FILE.name}. {hint}")


def load(file: Path = FILE) -> Ledger:
    """Raises LedgerError for a file that is not TOML, and for a field or a name in it that is not known."""
    try:
        data = _frozen(tomllib.loads(file.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{file}: {error}") from None
    places = _tables(data, "place", lambda name, table: Place(name, **table))
    places[HERE] = Place(HERE, "Beside the paper")
    runs = _tables(
        data, "run", lambda name, table: Run(name, **{**_named(data["group"], "group", table["group"]), **table})
    )
    return Ledger(
        paper=data["paper"],
        tolerances=_tables(data, "tolerance", lambda name, table: Tolerance(**table)),
        places=places,
        runs=runs,
        experiments=_tables(data, "experiment", lambda name, table: _experiment(name, table, data, places, runs)),
        claims=_tables(data, "claim", lambda name, table: Claim(name, **table)),
        scales=data["scale"],
    )


def _experiment(
    name: str, table: Mapping, data: Mapping, places: Mapping[str, Place], runs: Mapping[str, Run]
) -> Experiment:
    """With the lists and texts that it names, and what its place and its run say of it."""
    place = _named(places, "place", table["place"])
    trained = _named(runs, "run", table["run"]) if "run" in table else None
    if "evaluation" in table:
        _named(runs, "run", table["evaluation"])
    made = {**table, "domain": place.domain or (trained.domain if trained else "")}
    made["paper"] = {
        metric: Number(*number) if isinstance(number, tuple) else Number(number)
        for metric, number in table.get("paper", {}).items()
    }
    made["over"] = {
        variable: _named(data["list"], "list", values) if isinstance(values, str) else values
        for variable, values in table.get("over", {}).items()
    }
    for variable, values in made["over"].items():
        if isinstance(values, Mapping):
            made["words"] = {float(value): word for value, word in values.items()}
            made["over"] = {variable: tuple(made["words"])}
    for key in ("cannot", "note"):
        text = table.get(key, "")
        made[key] = text if " " in text or not text else _named(data["text"], "text", text)
    if isinstance(table.get("metric"), str):
        made["metric"] = (table["metric"],)
    if "seeds" in table:  # their number
        made["seeds"] = tuple(range(1, table["seeds"] + 1))
    if trained and trained.folder:
        made.setdefault("folder", trained.folder)
    return Experiment(name, **made)


def _tables(data: Mapping, kind: str, make) -> dict:
    made = {}
    for name, table in data[kind].items():
        try:
            made[name] = make(name, table)
        except (TypeError, LookupError) as error:
            raise LedgerError(f"{FILE.name}: {kind}.{name}: {error}") from None
    return made


def _named(tables: Mapping, kind: str, name: str):
    if name not in tables:
        raise LookupError(f"there is no {kind}.{name}")
    return tables[name]


def _frozen(value):
    """Lists as tuples."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
