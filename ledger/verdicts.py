"""What counts as reproduced: the ledger's numbers and claims against what was collected."""

from dataclasses import dataclass, field

REPRODUCED, NOT_REPRODUCED, PARTIAL, RUN, FAILED, NOT_RUN, CANNOT = STATES = (
    "reproduced",
    "not reproduced",
    "partial",  # some seeds, or some of what it is compared with, are lacking
    "run",  # complete, and the paper gives nothing to compare it with
    "failed",
    "not run",
    "cannot run",
)


@dataclass(frozen=True)
class Cell:
    """One number of a row: the paper's, ours (the mean over the seeds), and whether they agree.

    interval: half-width, 95 %. interval_of: "seeds", or "problems" or "images" where there is one run alone.
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
    """Of an entry of the ledger. seeds, wanted: how many there are and should be. notes: why it is partial or failed, in words."""

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
    id: str
    state: str
    parts: list[Part] = field(default_factory=list)
