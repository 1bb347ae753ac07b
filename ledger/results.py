"""What `collect` finds and what it is judged to be: plain values that go to results/collected.json and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ledger.errors import LedgerError

FORMAT = 1  # of collected.json
MOST_POINTS = 400  # of a curve that is kept
# Of rows, curves and claims, in the order in which they are counted.
REPRODUCED, NOT_REPRODUCED, PARTIAL, COMPLETE, FAILED, NOT_RUN, CANNOT = STATES = (
    "reproduced",
    "not reproduced",
    "partial",  # some seeds, or some of what it is compared with, are missing
    "run",  # complete, and the paper gives nothing to compare it with
    "failed",
    "not run",
    "cannot run",
)


@dataclass(frozen=True)
class Problem:
    """Something that keeps a file, a line or a result out of the averages. line: from 1; None for the whole file."""

    file: str
    line: int | None
    text: str

    def __str__(self) -> str:
        """On one line, and safe for a terminal whatever a folder is called."""
        text = f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"
        return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


@dataclass(frozen=True)
class Curve:
    """A metric over steps (epochs, k): at most MOST_POINTS points, each the mean, smallest and largest of some rows.

    x: the last step of each point's rows, ascending. rows: how many rows the log has."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    rows: int


@dataclass(frozen=True)
class Result:
    """What one folder holds: a training or an evaluation with one seed.

    kind: "training" (the demos' too) or "evaluation". name: as Experiment.folder, without seed. seed: None without one.
    steps: done (epochs for timm). total: asked for, None if unknown.
    values: percent for accuracies; seconds; otherwise the log's unit.
    intervals: half-widths (95 %) of values, from its own evaluation; interval_of says over what ("problems", "images").
    state: of the checkout that made it: "clean", "modified", "unknown" (no record).
    used: False if it is kept out of the averages; a problem says why, or it is a demo of another length.
    log_tail: the last lines, if it failed.
    commit, ended: of this project, and when, where its run.json says so. from_repository: it is one of records/.
    """

    kind: str
    name: str
    seed: int | None
    folder: str
    finished: bool
    steps: int
    total: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, float] = field(default_factory=dict)
    interval_of: str = ""
    curves: Mapping[str, Curve] = field(default_factory=dict)
    state: str = "unknown"
    used: bool = True
    failed: bool = False
    log_tail: tuple[str, ...] = ()
    hardware: str = ""
    commit: str = ""
    ended: str = ""
    from_repository: bool = False

    @property
    def label(self) -> str:
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"

    @property
    def progress(self) -> str:
        return f"{self.steps} of {self.total} steps" if self.total else f"{self.steps} steps"


@dataclass(frozen=True)
class Cell:
    """One number of a row: the paper's, ours (the mean over the seeds), and whether they agree.

    interval: half-width, 95 %. interval_of: "seeds", or "problems" or "images" where there is one result alone.
    within: None where nothing is tested.
    """

    metric: str
    paper: float | None
    paper_error: float | None
    ours: float | None = None
    interval: float | None = None
    interval_of: str = ""
    seeds: int = 0
    difference: float | None = None
    allowed: float | None = None
    within: bool | None = None


@dataclass(frozen=True)
class Outcome:
    """The verdict on an entry of the ledger.

    seeds, wanted: how many there are, and should be at least. notes: in words, why it is partial or failed."""

    id: str
    state: str
    cells: list[Cell] = field(default_factory=list)
    seeds: int = 0
    wanted: int = 1
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """One comparison of a claim. entry: of its `of`. measured: in words. interval: half-width of value, 95 %."""

    entry: str
    measured: str
    value: float | None = None
    interval: float | None = None
    passed: bool | None = None


@dataclass(frozen=True)
class ClaimOutcome:
    """The verdict on a claim. notes: what is missing, in words."""

    id: str
    state: str
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Collected:
    """sources: the folders that were searched. records: as `reproduce.py run` wrote them. problems: by file and line.

    outcomes, claims: by entry id and by claim id; empty until judged."""

    made: str
    sources: list[str]
    results: list[Result]
    records: list[dict]
    problems: list[Problem]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    claims: Mapping[str, ClaimOutcome] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> list[Result]:
        return [result for result in self.results if result.name == name and result.kind == kind]


EMPTY = Collected("", [], [], [], [])


def write(file: Path, collected: Collected) -> None:
    """Replaces the file as a whole. Raises LedgerError where it cannot be written."""
    new = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"format": FORMAT, **asdict(collected)}, allow_nan=False, separators=(",", ":")))
        new.replace(file)
    except OSError as error:
        what = f"{error.filename or new} cannot be written ({error.strerror})"
        raise LedgerError(f"{what}. What was collected before is unchanged.") from None


def read(file: Path) -> Collected:
    """Raises LedgerError for what `write` did not write."""
    try:
        data = json.loads(file.read_text())
        if data.pop("format") != FORMAT:
            raise ValueError("another version of this project wrote it")
        data["results"] = [_result(found) for found in data["results"]]
        data["problems"] = [Problem(**found) for found in data["problems"]]
        data["outcomes"] = {
            name: Outcome(**{**found, "cells": [Cell(**cell) for cell in found["cells"]]})
            for name, found in data["outcomes"].items()
        }
        data["claims"] = {
            name: ClaimOutcome(**{**found, "parts": [Part(**part) for part in found["parts"]]})
            for name, found in data["claims"].items()
        }
        return Collected(**data)
    except OSError as error:
        raise LedgerError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError(f"{file} cannot be read ({error}). Write it again: `reproduce.py collect`.") from None


def _result(found: dict) -> Result:
    curves = {name: Curve(**curve) for name, curve in found["curves"].items()}
    return Result(**{**found, "curves": curves, "log_tail": tuple(found["log_tail"])})
