"""What a reader returns, and what it reads for."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ledger.experiments import Ledger
from ledger.results import Problem, Result

TRAINING, EVALUATION = "training", "evaluation"
TIMED, SECONDS = (
    "time/",
    "seconds of a step",
)  # the folder of runs that are compared by their time, as their names begin; and their metric
Z95 = 1.96  # standard errors on either side of a mean's 95 % interval
MOST_OF_A_KIND = 3  # problems of one kind in one file that are listed one by one
_SEED = re.compile(r"(.+)-seed(\d+)")


@dataclass(frozen=True)
class Reading:
    """One folder's. digest: of the numbers, equal for copies. settings: what the seeds of one name must share; empty if nothing tells."""

    result: Result
    problems: list[Problem]
    digest: str
    settings: str = ""


@dataclass(frozen=True)
class Wanted:
    """What the ledger asks for. of: its metrics by kind and name of the runs. steps, first: of verl's runs by name, the last and first step."""

    of: Mapping[tuple[str, str], frozenset[str]]
    steps: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, int] = field(default_factory=dict)

    def by(self, kind: str, name: str) -> frozenset[str]:
        """None of what the ledger does not know."""
        return self.of.get((kind, name), frozenset())


def wanted(ledger: Ledger) -> Wanted:
    needed: dict[tuple[str, str], set[str]] = defaultdict(set)
    claimed = defaultdict(set)
    for claim in ledger.claims.values():
        for name in filter(None, (claim.of, claim.than)):
            claimed[name] |= {claim.metric} - {""}
    for entry in ledger.entries.values():
        if entry.folder:
            kind = EVALUATION if entry.experiment.evaluation else TRAINING
            needed[kind, entry.folder] |= {*entry.metrics, *claimed[entry.experiment.id]}
    runs = [run for run in ledger.runs.values() if run.folder and run.steps]
    for run in runs:  # also those that are trained for their evaluation alone
        needed[TRAINING, run.folder] |= set()
    return Wanted(
        of={key: frozenset(metrics) for key, metrics in needed.items()},
        steps={run.folder: run.steps for run in runs},
        first={run.folder: 1 + (ledger.runs[run.after].steps or 0 if run.after else 0) for run in runs},
    )


class Problems:
    """Of one file, in the order in which they are found; of many alike only the first ones, and their number."""

    def __init__(self, file: Path):
        self.file = str(file)
        self.found: list[Problem] = []
        self._alike: dict[str, list[int]] = defaultdict(list)

    def add(self, text: str, line: int | None = None) -> None:
        self.found.append(Problem(self.file, line, text))

    def add_alike(self, kind: str, text: str, line: int) -> None:
        """kind: what the problems have in common; text: what is said of this one."""
        lines = self._alike[kind]
        lines.append(line)
        if len(lines) <= MOST_OF_A_KIND:
            self.add(text, line)

    def all(self) -> list[Problem]:
        more = [
            Problem(
                self.file,
                lines[MOST_OF_A_KIND],
                f"{kind}: {len(lines) - MOST_OF_A_KIND} more such lines, the last is {lines[-1]}",
            )
            for kind, lines in self._alike.items()
            if len(lines) > MOST_OF_A_KIND
        ]
        return self.found + more


def names_of(folder: Path) -> tuple[str, str]:
    """Of the folder above and of this one, also where the path is `.` or has no more than one part."""
    above, name = os.path.split(os.path.abspath(folder))
    return os.path.basename(above), name


def split_seed(name: str) -> tuple[str, int | None]:
    match = _SEED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def timed_or_not(folder: Path) -> tuple[str, int | None]:
    """Name and seed of a run of timm or FastTD3; runs of the same settings that are compared by their time lie in a folder of their own."""
    above, name = names_of(folder)
    name, seed = split_seed(name)
    return (TIMED + name if f"{above}/" == TIMED else name), seed


def digest_of(*files: Path) -> str:
    sha = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()
