"""Finds the folders of runs, has each read by the reader of its kind, and checks them against the ledger and one another."""

import datetime
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ledger.errors import LedgerError
from ledger.experiments import Ledger
from ledger.readers import READERS, records
from ledger.readers.reading import EVALUATION, TRAINING, Reading, Wanted, names_of, split_seed, wanted
from ledger.results import Collected, Problem, Result

# Folders inside runs that hold no runs of their own. `*` at the end: all that begin so.
NO_RUNS = (
    "models",
    "tensorboard",
    "wandb",
    "rollouts",
    "validation",
    "checkpoints",
    "__pycache__",
    "global_step_*",
    "interrupted-*",
    ".*",
)
UNFINISHED = (".new", ".old")  # endings of the folders that the demos write into before they rename them
WORTH_PROCESSES = 16 << 20  # bytes of logs above which several processes are faster than one
MOST_PROCESSES = 8
LINES_OF_LOG = 15


@dataclass
class Folders:
    """runs: folder, the names in it, and the bytes of its files. records: files."""

    runs: list[tuple[Path, frozenset[str], int]] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def collect(ledger: Ledger, sources: Sequence[Path], with_modified: bool = False) -> Collected:
    """All runs in the folders `sources` and below. with_modified: results of modified checkouts are used too.

    Raises LedgerError for a source that is no folder. Whatever else is wrong is among the problems."""
    for source in sources:
        if not source.is_dir():
            raise LedgerError(
                f"{source} is no folder. The folders that runs were written to, or copies of them, are expected. Nothing was changed."
            )
    found = find(sources)
    needs = wanted(ledger)
    readings = list(read_all(found.runs, needs))
    noted, said = read_records(found.records)
    problems = found.problems + [problem for reading in readings for problem in reading.problems] + said
    of_the_ledger, recorded = partial(not_in_the_ledger, needs), partial(with_records, noted, with_modified)
    for check in (
        of_the_ledger,
        recorded,
        twice,
        of_several_settings,
    ):  # what one leaves out the next ones do not compare
        readings, said = check(readings)
        problems += said
    results = [reading.result for reading in readings]
    return Collected(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        sources=[str(source) for source in sources],
        results=sorted(
            results,
            key=lambda result: (result.kind, result.name, -1 if result.seed is None else result.seed, result.folder),
        ),
        records=[one.record for one in noted],
        problems=sorted(set(problems), key=lambda problem: (problem.file, problem.line or 0, problem.text)),
    )


# ------------------------------------------------------------------------------------------------------------- folders


def find(sources: Iterable[Path]) -> Folders:
    """Links to folders are not followed, so no walk leaves its source or goes in circles; a source itself may be a link."""
    found, seen = Folders(), set()
    waiting = [(source, True) for source in reversed(list(sources))]
    while waiting:
        folder, is_source = waiting.pop()
        try:
            identity = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append(Problem(str(folder), None, f"cannot be looked into: {error.strerror}"))
            continue
        if (identity.st_dev, identity.st_ino) in seen:
            continue
        seen.add((identity.st_dev, identity.st_ino))
        below, linked = [], set()
        files = {}
        for entry in entries:
            if entry.is_symlink():
                if entry.is_dir() and not _holds_no_runs(entry.name):
                    found.problems.append(
                        Problem(
                            entry.path,
                            None,
                            "is a link to a folder and is not followed. If there are results, give that folder too",
                        )
                    )
                elif not entry.is_dir():
                    linked.add(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                files[entry.name] = entry.stat(follow_symlinks=False).st_size
        names = frozenset(files)
        if any(reader.recognises(folder, names) for reader in READERS):
            found.runs.append(
                (folder, names, sum(size for name, size in files.items() if name.endswith((".jsonl", ".csv", ".txt"))))
            )
        elif any(reader.recognises(folder, names | linked) for reader in READERS):
            text = f"has links in place of {', '.join(sorted(linked))}, and links are not followed: it is not read. Copy the files themselves (cp -L, rsync -L)"
            found.problems.append(Problem(str(folder), None, text))
        found.records += records.files(folder, names)
        if not is_source and folder.name == "data" and "run.json" in names:  # the images of a demo
            continue
        waiting += [(folder / name, False) for name in reversed(below) if not _holds_no_runs(name)]
    return found


def _holds_no_runs(name: str) -> bool:
    return name.endswith(UNFINISHED) or any(
        name.startswith(known[:-1]) if known.endswith("*") else name == known for known in NO_RUNS
    )


# ------------------------------------------------------------------------------------------------------------- reading


def read_all(runs: Sequence[tuple[Path, frozenset[str], int]], needs: Wanted) -> Iterator[Reading]:
    """In the order of `runs`, by several processes where that is worth it: the largest logs first."""
    workers = min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        MOST_PROCESSES,
        len(runs),
    )
    if workers < 2 or sum(size for _, _, size in runs) < WORTH_PROCESSES:
        for folder, names, _ in runs:
            yield from read_one(folder, names, needs)
        return
    pool = ProcessPoolExecutor(
        workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )  # Ctrl-C is for this process
    try:
        largest_first = sorted(range(len(runs)), key=lambda i: -runs[i][2])
        jobs = {i: pool.submit(read_one, runs[i][0], runs[i][1], needs) for i in largest_first}
        for i in range(len(runs)):
            yield from jobs.pop(i).result()
    except BrokenProcessPool:
        raise LedgerError(
            "A process that read results was killed, perhaps because the memory was full. Nothing was changed."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def read_one(folder: Path, names: frozenset[str], needs: Wanted) -> list[Reading]:
    """By the first reader that knows the folder; an evaluation may lie in the folder of a training."""
    readers = [reader for reader in READERS if reader.recognises(folder, names)]
    kinds, readings = set(), []
    for reader in readers:
        is_evaluation = reader.__name__.endswith(EVALUATION)
        if is_evaluation in kinds:
            continue
        kinds.add(is_evaluation)
        try:
            readings += reader.read(folder, needs)
        except OSError as error:
            name, seed = split_seed(names_of(folder)[1])
            result = Result(EVALUATION if is_evaluation else TRAINING, name, seed, str(folder), False, 0, used=False)
            readings.append(
                Reading(result, [Problem(error.filename or str(folder), None, f"cannot be read: {error.strerror}")], "")
            )
    return readings


# -------------------------------------------------------------------------------------------------------------- checks


def _not_used(reading: Reading) -> Reading:
    return replace(reading, result=replace(reading.result, used=False))


def not_in_the_ledger(needs: Wanted, readings: Sequence[Reading]) -> tuple[list[Reading], list[Problem]]:
    kept, problems = [], []
    for reading in readings:
        result = reading.result
        if (result.kind, result.name) in needs.of:
            kept.append(reading)
            continue
        kept.append(_not_used(reading))
        problems.append(
            Problem(result.folder, None, f"the {result.kind} {result.name!r} is not in the ledger, so it is not used")
        )
    return kept, problems


def twice(readings: Sequence[Reading]) -> tuple[list[Reading], list[Problem]]:
    """The same run in several folders: copies count once, also under other seeds, and of runs that differ none does."""
    groups, kept, problems = defaultdict(list), list(readings), []
    for place, reading in enumerate(readings):
        if reading.result.used:
            groups[reading.result.kind, reading.result.name, reading.result.seed].append(place)
    for (kind, name, seed), places in groups.items():
        folders = [readings[place].result.folder for place in places]
        called = readings[places[0]].result.label
        if len(places) == 1:
            continue
        if len({readings[place].digest for place in places}) == 1:
            # The one that is finished, if a copy lacks what says so.
            first = max(places, key=lambda place: (readings[place].result.finished, -place))
            for place in set(places) - {first}:
                kept[place] = _not_used(readings[place])
                problems.append(
                    Problem(
                        readings[place].result.folder,
                        None,
                        f"is a copy of {readings[first].result.folder} ({called}): it counts once",
                    )
                )
            continue
        for place in places:
            kept[place] = _not_used(readings[place])
            others = ", ".join(folder for folder in folders if folder != readings[place].result.folder)
            text = f"{kind} {called} is also in {others}, with other numbers: none of them is used. Leave one, or name other seeds <name>-seed<n>"
            problems.append(Problem(readings[place].result.folder, None, text))
    first_of: dict[tuple, Result] = {}
    for place, reading in enumerate(kept):
        if not reading.result.used:
            continue
        first = first_of.setdefault((reading.result.kind, reading.result.name, reading.digest), reading.result)
        if first is not reading.result:
            kept[place] = _not_used(reading)
            problems.append(
                Problem(
                    reading.result.folder,
                    None,
                    f"has the numbers of {first.folder} to the byte, so it is no other seed: they count once",
                )
            )
    return kept, problems


def of_several_settings(readings: Sequence[Reading]) -> tuple[list[Reading], list[Problem]]:
    """Seeds that were not trained alike: none of them is used, because nothing says which the ledger means."""
    groups, kept, problems = defaultdict(lambda: defaultdict(list)), list(readings), []
    for place, reading in enumerate(readings):
        if reading.result.used and reading.settings:
            groups[reading.result.kind, reading.result.name][reading.settings].append(place)
    for (kind, name), settings in groups.items():
        if len(settings) == 1:
            continue
        for own, places in settings.items():
            for place in places:
                kept[place] = _not_used(readings[place])
                result = readings[place].result
                seeds = [
                    str(readings[other].result.seed)
                    for text, others in settings.items()
                    if text != own
                    for other in others
                ]
                said = f"seed {result.seed} of {name} was trained otherwise ({own}) than seed {', '.join(seeds)}"
                problems.append(
                    Problem(result.folder, None, f"{said}: none of them is used. Leave those that belong together")
                )
    return kept, problems


# ------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class Noted:
    """A record and what it is about. folders: absolute."""

    file: Path
    record: dict
    folders: tuple[Path, ...]


def read_records(files: Iterable[Path]) -> tuple[list[Noted], list[Problem]]:
    """From the oldest to the newest."""
    noted, problems = [], []
    for file in files:
        try:
            record, said = records.read(file)
        except OSError as error:
            record, said = None, [Problem(str(file), None, f"cannot be read: {error.strerror}")]
        problems += said
        if record is not None:
            base = file.parent.parent.resolve()
            noted.append(Noted(file, record, tuple((base / name).resolve() for name in record["folders"])))
    return sorted(noted, key=lambda one: (one.record["start"], str(one.file))), problems


def with_records(
    noted: Sequence[Noted], with_modified: bool, readings: Sequence[Reading]
) -> tuple[list[Reading], list[Problem]]:
    """Each result with what its records say. The newest counts, but a modified checkout marks a run for good: it may go on from what that made."""
    by_folder = defaultdict(list)
    for one in noted:
        for folder in one.folders:
            by_folder[folder].append(one)
    kept, problems = [], []
    for reading in readings:
        result, path = reading.result, Path(reading.result.folder).resolve()
        own = sorted(
            (one for folder in (path, *path.parents) for one in by_folder.get(folder, [])),
            key=lambda one: one.record["start"],
        )
        if not own:
            kept.append(reading)
            continue
        newest, modified = own[-1].record, [one for one in own if one.record["modified"]]
        if modified and not with_modified and result.used:
            problems.append(
                Problem(str(modified[-1].file), None, _made_with_a_modified_checkout(result, modified[-1].record))
            )
        failed = newest["state"] == records.FAILED and not result.finished
        result = replace(
            result,
            state="modified" if modified else "clean",
            used=result.used and (with_modified or not modified),
            failed=failed,
            log_tail=tuple(newest.get("log_tail", ()))[-LINES_OF_LOG:] if failed else (),
            hardware=records.hardware(newest) or result.hardware,
        )
        kept.append(replace(reading, result=result))
    return kept, problems


def _made_with_a_modified_checkout(result: Result, record: Mapping) -> str:
    changed = records.changed(record)
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    what = f" ({', '.join(changed[:3])}{more})" if changed else ""
    said = f"{result.folder} was made with a modified checkout{what} and is not used; --with-modified does"
    return f"{said}. If the folder was begun anew since, remove this record"
