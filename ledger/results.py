"""What `collect` finds and the states that it is judged to have, as plain values that go to JSON and back: `list` and `report` read them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ledger.errors import LedgerError

FORMAT = 1  # of collected.json
MOST_POINTS = 400  # of a curve that is kept
# Of rows, curves and claims, in the order in which they are counted.
REPRODUCED, NOT_REPRODUCED, PARTIAL, RUN, FAILED, NOT_RUN, CANNOT = STATES = (
    "reproduced",
    "not reproduced",
    "partial",  # some seeds, or some of what it is compared with, are lacking
    "run",  # complete, and the paper gives nothing to compare it with
    "failed",
    "not run",
    "cannot run",
)
# The fields of verdicts.Outcome and verdicts.ClaimOutcome, for `list`, which runs without the packages that verdicts needs.
OUTCOME, CLAIM = {"id", "state", "cells", "seeds", "wanted", "notes"}, {"id", "state", "parts", "notes"}


@dataclass(frozen=True)
class Problem:
    """Something that keeps a file, a line or a run out of the averages. line: from 1; None where it is about the whole file."""

    file: str
    line: int | None
    text: str

    def __str__(self) -> str:
        """On one line, and safe for a terminal whatever a folder is called."""
        text = f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"
        return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


@dataclass(frozen=True)
class Curve:
    """A metric over steps (epochs, k): at most MOST_POINTS points, each the mean, smallest and largest of consecutive rows of the log.

    x: the last step of each point's rows, ascending. rows: how many rows the log has."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    rows: int


@dataclass(frozen=True)
class Result:
    """One run's folder.

    kind: "training" or "evaluation" (the demos' are trainings). name: as Experiment.folder has it, without seed. seed: None where the run has none.
    steps: done (epochs for timm). total: asked for, None if unknown. values: percent for accuracies; seconds; else the log's unit.
    intervals: half-widths, 95 %, of values, from one run's own evaluation, and `interval_of` what they are over ("problems", "images").
    state: of the checkout that made it: "clean", "modified", "unknown" (no record). used: False if it is kept out of the averages;
    why is then among the problems. log_tail: last lines, if it failed.
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

    @property
    def label(self) -> str:
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Collected:
    """sources: the folders looked into. records: of reproduce.py run, as written. problems: in order of file and line.
    outcomes: verdicts.Outcome and verdicts.ClaimOutcome as dictionaries, by entry id and claim id."""

    made: str
    sources: list[str]
    results: list[Result]
    records: list[dict]
    problems: list[Problem]
    outcomes: Mapping[str, dict] = field(default_factory=dict)
    claims: Mapping[str, dict] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> list[Result]:
        return [result for result in self.results if result.name == name and result.kind == kind]


EMPTY = Collected("", [], [], [], [])


def write(file: Path, collected: Collected) -> None:
    """Whole or not at all."""
    beside = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps({"format": FORMAT, **asdict(collected)}, allow_nan=False, separators=(",", ":")))
        beside.replace(file)
    except OSError as error:
        raise LedgerError(
            f"{error.filename or beside} cannot be written ({error.strerror}). What was collected before is unchanged."
        ) from None


def read(file: Path) -> Collected:
    try:
        data = json.loads(file.read_text())
        if data.pop("format") != FORMAT:
            raise ValueError("another version of this project wrote it")
        data["problems"] = [Problem(**problem) for problem in data["problems"]]
        for result in data["results"]:
            result["curves"] = {name: Curve(**curve) for name, curve in result["curves"].items()}
            result["log_tail"] = tuple(result["log_tail"])
        data["results"] = [Result(**result) for result in data["results"]]
        for name, keys in (("outcomes", OUTCOME), ("claims", CLAIM)):
            if not all(set(found) == keys for found in data[name].values()):
                raise ValueError(f"its {name} are not those of `collect`")
        return Collected(**data)
    except OSError as error:
        raise LedgerError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError(
            f"{file} cannot be read ({error}). It is made anew from the results: run `reproduce.py collect`."
        ) from None
