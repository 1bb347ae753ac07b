"""Logs as columns of numbers: bad lines left out and named, NaN kept apart, curves made shorter."""

import csv
import io
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import compute
from pyarrow import csv as arrow_csv

from ledger.readers.run_folder import Problems
from ledger.results import MOST_POINTS, Curve

LARGEST = 1e100  # of a number whose squares can still be summed
SHORTEST = 1e-9  # seconds of what is divided by
# What a metric can be, both ends included; the others of the ledger may be any finite number.
RANGES = {
    "eval_top1": (0, 100),
    "eval_top5": (0, 100),
    "era/low_fraction": (0, 1),
    "era/high_fraction": (0, 1),
    "timing_s/old_log_prob": (SHORTEST, LARGEST),
    "seconds": (0, LARGEST),
    "reward": (0, 1),  # of the demo
}
LONGEST_STEP = 15  # digits; a longer number is not a step
BLOCK = 4 << 20  # bytes that are read at a time
PLAIN = b"0123456789.,+-eE\r\n"  # what plain rows are made of: of these letters Arrow and Python read the same numbers
CUT = "the last line has no end and is left out"


@dataclass
class Column:
    """A metric's values in the order of the log, with the step and line of each. NaN stands for all non-numbers."""

    steps: array = field(default_factory=lambda: array("q"))
    lines: array = field(default_factory=lambda: array("q"))
    values: array = field(default_factory=lambda: array("d"))

    def add(self, step: int, line: int, value: float) -> None:
        self.steps.append(step)
        self.lines.append(line)
        self.values.append(value)


@dataclass(frozen=True)
class Log:
    """steps, lines: of all rows of training, in the order of the file. bad: numbers of the lines that are left out."""

    steps: array
    lines: array
    columns: dict[str, Column]
    bad: array

    @property
    def last_step(self) -> int:
        return int(np.asarray(self.steps).max(initial=0))


def lines_of(file: Path, problems: Problems, bad: array) -> Iterator[tuple[int, bytes]]:
    """The whole lines with their numbers; a last line without its end is left out."""
    with file.open("rb") as stream:
        yield from _whole_lines(enumerate(stream, 1), problems, bad)


def _whole_lines(lines: Iterable[tuple[int, bytes]], problems: Problems, bad: array) -> Iterator[tuple[int, bytes]]:
    for number, line in lines:
        if line.endswith(b"\n"):
            yield number, line
        else:
            problems.add(CUT, number)
            bad.append(number)


def read_csv(file: Path, step: str, names: Iterable[str], problems: Problems) -> Log:
    """The columns `names` as far as the file has them. step: the column of whole numbers that counts.

    A repeated header, which timm writes on resuming, is not a row; an empty cell has no value. Arrow reads blocks of
    plain numbers, some ten times as fast; all others are read line by line, to say what is wrong with which line."""
    bad = array("q")
    with file.open("rb") as stream:
        _, first = next(_whole_lines(enumerate(iter(stream.readline, b""), 1), problems, bad), (0, b""))
        header = _cells(first) or [] if first else []
        found = Log(array("q"), array("q"), {name: Column() for name in names if name in header}, bad)
        if not header:
            is_empty = not first and not bad
            problems.add("is empty" if is_empty else "has no header that can be read", 1 if first else None)
            return found
        if step not in header:
            problems.add(f"has no column {step}; the columns are {', '.join(header)[:200]}", 1)
            return found
        at, places, number = header.index(step), [header.index(name) for name in found.columns], 2
        while block := stream.read(BLOCK) + stream.readline():
            count = block.count(b"\n")
            rows = _plain_rows(block, count, len(header), at, places)
            if rows:
                _add_rows(found, number, *rows)
            else:
                lines = _whole_lines(enumerate(io.BytesIO(block), number), problems, bad)
                _add_lines(found, lines, header, at, places, problems)
            number += count
    if not found.steps:
        problems.add("has a header and no row")
    return found


def _plain_rows(
    block: bytes, count: int, width: int, at: int, places: Sequence[int]
) -> tuple[np.ndarray, list[pyarrow.ChunkedArray]] | None:
    """Steps and columns (null for an empty cell) of a block of `count` whole rows; None unless all is plain numbers."""
    if not block.endswith(b"\n") or block.translate(None, PLAIN):
        return None
    names = [str(place) for place in range(width)]
    types = {names[place]: pyarrow.float64() for place in places} | {names[at]: pyarrow.string()}
    try:
        rows = arrow_csv.read_csv(
            pyarrow.py_buffer(block),
            arrow_csv.ReadOptions(use_threads=False, column_names=names),
            arrow_csv.ParseOptions(ignore_empty_lines=False),
            arrow_csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[""]),
        )
    except pyarrow.ArrowInvalid:
        return None
    if len(rows) != count:  # to Arrow \r alone ends a line too
        return None
    steps = rows[names[at]]
    if not compute.all(compute.ascii_is_decimal(steps)).as_py():
        return None
    if compute.max(compute.binary_length(steps)).as_py() > LONGEST_STEP:
        return None
    return _numpy(steps.cast(pyarrow.int64())), [rows[names[place]] for place in places]


def _numpy(column: pyarrow.ChunkedArray) -> np.ndarray:
    """Without nulls. Its own to_numpy imports pandas, which takes longer than most logs."""
    return np.from_dlpack(column.combine_chunks())


def _add_rows(found: Log, number: int, steps: np.ndarray, columns: Sequence[pyarrow.ChunkedArray]) -> None:
    """number: of the first row's line."""
    lines = np.arange(number, number + len(steps))
    _append(found.steps, steps)
    _append(found.lines, lines)
    for column, values in zip(found.columns.values(), columns, strict=True):
        has_one = _numpy(values.is_valid().cast(pyarrow.uint8())).astype(bool)
        _append(column.steps, steps[has_one])
        _append(column.lines, lines[has_one])
        _append(column.values, _numpy(values.drop_null()))


def _append(kept: array, more: np.ndarray) -> None:
    kept.frombytes(more.tobytes())


def _add_lines(
    found: Log, rows: Iterable[tuple[int, bytes]], header: list[str], at: int, places: Sequence[int], problems: Problems
) -> None:
    columns = list(found.columns.values())
    for number, line in rows:
        cells = _cells(line)
        if cells == header:
            continue
        try:
            if cells is None or len(cells) != len(header):
                raise ValueError
            now, values = _step(cells[at]), [float(cells[place]) if cells[place] else None for place in places]
        except ValueError:
            problems.add_alike("left out", f"{_why_bad(cells, header, at, places)}; the line is left out", number)
            found.bad.append(number)
            continue
        found.steps.append(now)
        found.lines.append(number)
        for column, value in zip(columns, values):
            if value is not None:
                column.add(now, number, value)


def _cells(line: bytes) -> list[str] | None:
    """None for what is not UTF-8."""
    try:
        text = line.decode().rstrip("\r\n")
        return next(csv.reader([text]), []) if '"' in text else text.split(",")
    except (UnicodeDecodeError, csv.Error):
        return None


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_STEP):
        raise ValueError
    return int(text)


def _why_bad(cells: list[str] | None, header: list[str], at: int, places: list[int]) -> str:
    if cells is None:
        return "is not UTF-8 text"
    if len(cells) != len(header):
        return f"the number of cells is {len(cells)}, the header's {len(header)}"
    try:
        _step(cells[at])
    except ValueError:
        return f"{cells[at][:40]!r} is not a step"
    place = next(place for place in places if not _is_number(cells[place]))
    return f"{header[place]} is {cells[place][:40]!r}, which is not a number"


def _is_number(text: str) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


def are_in_order(log: Log, problems: Problems, first: int, every: int = 1, resumes: bool = True) -> bool:
    """Whether the steps are as one process after the other writes them.

    They go on by `every`, or back and on from there; back never farther than the time before, because checkpoints get
    newer, unless to the beginning. Missing rows are listed; they leave a hole in the curve and nothing else. first: the
    step at which a log begins at the latest. resumes: whether a log may go back, or have a step twice."""
    steps, lines = np.asarray(log.steps), np.asarray(log.lines)
    if not len(steps):
        return True
    if steps[0] > first:
        problems.add(f"begins at step {steps[0]} and not at {first}: its beginning is missing", int(lines[0]))
    ahead = np.diff(steps)
    resumed = 0  # where the log went back to the time before
    for i in np.flatnonzero(ahead < 0 if resumes else ahead <= 0):
        if not resumes or first < steps[i + 1] < resumed:
            what = f"step {steps[i + 1]} comes after step {steps[i]}, which is not a resumption"
            problems.add(f"{what}: the result is not used", int(lines[i + 1]))
            return False
        resumed = steps[i + 1]
    highest = np.maximum.accumulate(steps)
    bad = np.asarray(log.bad)
    for i in np.flatnonzero(ahead > every):
        left_out = np.searchsorted(bad, lines[i + 1]) - np.searchsorted(bad, lines[i])
        missing = ahead[i] // every - 1 - left_out
        if missing <= 0:
            continue
        if steps[i] < highest[i]:
            what = f"step {steps[i + 1]} comes after step {steps[i]}, behind step {highest[i]}"
            text = f"{what}, as if two runs wrote into this file: the result is not used"
            problems.add(text, int(lines[i + 1]))
            return False
        text = f"{missing} rows are missing between the steps {steps[i]} and {steps[i + 1]}"
        problems.add_alike("missing rows", text, int(lines[i + 1]))
    return True


def series(name: str, column: Column, problems: Problems) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps, ascending, and the last value of each. None, and a problem, if one is not a number or out of its range."""
    steps, lines, values = (np.asarray(part) for part in (column.steps, column.lines, column.values))
    if len(steps) and (np.diff(steps) <= 0).any():
        order = np.argsort(steps, kind="stable")
        last = np.append(np.diff(steps[order]) > 0, True)
        steps, lines, values = (part[order][last] for part in (steps, lines, values))
    low, high = RANGES.get(name, (-LARGEST, LARGEST))
    good = (values >= low) & (values <= high)
    if good.all():
        return (steps, values) if len(steps) else None
    at = int(np.argmin(good))
    what = f"{values[at]:g}, beyond {low:g} to {high:g}" if math.isfinite(values[at]) else "not a finite number"
    more = f", as at {(~good).sum() - 1} later steps" if (~good).sum() > 1 else ""
    problems.add(f"{name} is {what} at step {steps[at]}{more}: it is left out of this result", int(lines[at]))
    return None


def curve(steps: np.ndarray, values: np.ndarray) -> Curve:
    count = len(steps)
    if count <= MOST_POINTS:
        y = values.tolist()
        return Curve(x=steps.tolist(), y=y, low=y, high=y, rows=count)
    begins = np.linspace(0, count, MOST_POINTS, endpoint=False).astype(int)
    ends = np.append(begins[1:], count)
    return Curve(
        x=steps[ends - 1].tolist(),
        y=(np.add.reduceat(values, begins) / (ends - begins)).tolist(),
        low=np.minimum.reduceat(values, begins).tolist(),
        high=np.maximum.reduceat(values, begins).tolist(),
        rows=count,
    )


def curves_of(
    log: Log, needed: Iterable[str], problems: Problems, shift: int = 0, say: bool = True
) -> dict[str, Curve]:
    """Of all columns of the log that can be used. needed: a problem if missing. shift: added to the steps."""
    found = {}
    for name, column in log.columns.items():
        if not column.steps:
            continue
        points = series(name, column, problems)
        if points is not None:
            found[name] = curve(points[0] + shift, points[1])
    if say:
        for name in sorted(needed):
            if name not in log.columns or not log.columns[name].steps:
                problems.add(f"has no {name}, which the ledger needs")
    return found
