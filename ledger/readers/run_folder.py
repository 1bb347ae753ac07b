"""What a reader finds in one folder, and what it looks for."""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ledger.ledger import Ledger
from ledger.results import Problem, Result

TRAINING, EVALUATION = "training", "evaluation"
# Trainings that are compared by their time are in a folder of this name, and have this metric.
TIMED, SECONDS = "time/", "seconds of a step"
APART = (TIMED, "alpha/")  # folders of runs that are part of their names
Z95 = 1.96  # standard errors on either side of a mean's 95 % interval
MOST_OF_A_KIND = 3  # problems of one kind in one file that are listed one by one
_SEED = re.compile(r"(.+)-seed(\d+)")


@dataclass
class RunFolder:
    """digest: of the numbers, equal for copies. settings: what all seeds of one name must share; empty if unknown."""

    result: Result
    problems: list[Problem]
    digest: str
    settings: str = ""

    def leave_out(self, why: str) -> None:
        self.result = replace(self.result, used=False)
        self.problems.append(Problem(self.result.folder, None, why))


@dataclass(frozen=True)
class Needs:
    """What the ledger needs.

    of: metrics by kind and name of the results. steps, first: the last and first step of verl's trainings, by name."""

    of: Mapping[tuple[str, str], frozenset[str]]
    steps: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, int] = field(default_factory=dict)

    def metrics(self, kind: str, name: str) -> frozenset[str]:
        """None for a name that the ledger does not have."""
        return self.of.get((kind, name), frozenset())


def needs_of(ledger: Ledger) -> Needs:
    metrics: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in ledger.entries.values():
        if entry.folder:
            claimed = {claim.metric for claim in ledger.claims_about(entry.experiment)} - {""}
            kind = EVALUATION if entry.experiment.evaluation else TRAINING
            metrics[kind, entry.folder] |= {*entry.metrics, *claimed}
    runs = [run for run in ledger.runs.values() if run.folder]
    for run in runs:  # also those that are trained for their evaluation alone
        metrics[TRAINING, run.folder] |= set()
    return Needs(
        of={key: frozenset(names) for key, names in metrics.items()},
        steps={run.folder: run.steps for run in runs},
        first={run.folder: 1 + (ledger.runs[run.after].steps if run.after else 0) for run in runs},
    )


class Problems:
    """Of one file, in the order in which they are found; of many alike only the first ones, and their number."""

    def __init__(self, file: Path):
        self.file = str(file)
        self._found: list[Problem] = []
        self._alike: dict[str, list[int]] = defaultdict(list)

    def add(self, text: str, line: int | None = None) -> None:
        self._found.append(Problem(self.file, line, text))

    def add_alike(self, kind: str, text: str, line: int) -> None:
        """kind: what the problems have in common; text: what is wrong with this line."""
        self._alike[kind].append(line)
        if len(self._alike[kind]) <= MOST_OF_A_KIND:
            self.add(text, line)

    def all(self) -> list[Problem]:
        found = list(self._found)
        for kind, lines in self._alike.items():
            if more := lines[MOST_OF_A_KIND:]:
                text = f"{kind}: {len(more)} more such lines, the last is {more[-1]}"
                found.append(Problem(self.file, more[0], text))
        return found


def names_of(folder: Path) -> tuple[str, str]:
    """Of the folder above and of this one, also where the path is `.` or has only one part."""
    above, name = os.path.split(os.path.abspath(folder))
    return os.path.basename(above), name


def split_seed(name: str) -> tuple[str, int | None]:
    match = _SEED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def name_and_seed(folder: Path) -> tuple[str, int | None]:
    """Of a result of timm, FastTD3 or recipes/control."""
    above, name = names_of(folder)
    name, seed = split_seed(name)
    return (f"{above}/{name}" if f"{above}/" in APART else name), seed


def read_json(file: Path) -> dict:
    """{} for a file that is missing or holds something else."""
    try:
        found = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def digest_of(*files: Path) -> str:
    sha = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()
