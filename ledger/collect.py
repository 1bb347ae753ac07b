"""Finds the folders of results, has each read by its reader, and checks them against the ledger and one another."""

import datetime
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ledger import run_record
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.readers import READERS
from ledger.readers.run_folder import EVALUATION, TRAINING, Needs, RunFolder, names_of, needs_of, split_seed
from ledger.results import Collected, Problem, Result

# Folders inside those of results that hold no other results. The last two are of demos, until they are renamed.
SKIPPED = (
    "models", "tensorboard", "wandb", "rollouts", "validation", "checkpoints", "__pycache__", "global_step_*",
    "interrupted-*", ".*", "*.new", "*.old",
)  # fmt: skip
LOGS = (".jsonl", ".csv", ".txt")
WORTH_PROCESSES = 16 << 20  # bytes of logs above which several processes are faster than one
MOST_PROCESSES = 8
LINES_OF_LOG = 15


@dataclass
class Folders:
    """results: folder, the names in it, and the bytes of its logs. records: files."""

    results: list[tuple[Path, frozenset[str], int]] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def collect(
    ledger: Ledger, sources: Sequence[Path], with_modified: bool = False, repository: Path | None = None
) -> Collected:
    """All results in the folders `sources` and below. with_modified: those of modified checkouts are used too.

    repository: the folder of results that came with this project, read after the others if it is there.

    Raises LedgerError for a source that is not a folder. Whatever else is wrong is among the problems."""
    for source in sources:
        if not source.is_dir():
            expected = "The folders that results were written to, or copies of them, are expected"
            raise LedgerError(f"{source} is not a folder. {expected}. Nothing was changed.")
    sources = [*sources, *([repository] if repository and repository.is_dir() else [])]
    found, needs = find(sources), needs_of(ledger)
    folders = list(read_all(found.results, needs))
    for folder in folders if repository else ():
        inside = Path(folder.result.folder).resolve().is_relative_to(repository.resolve())
        folder.result = replace(folder.result, from_repository=inside)
    records, record_problems = read_records(found.records)
    # What one check leaves out the next ones do not compare.
    leave_out_unknown(folders, needs)
    add_records(folders, records, with_modified)
    leave_out_copies(folders)
    leave_out_other_settings(folders)
    leave_out_repeated(folders)
    problems = {*found.problems, *record_problems, *(problem for folder in folders for problem in folder.problems)}
    results = [folder.result for folder in folders]
    return Collected(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        sources=[str(source) for source in sources],
        results=sorted(results, key=lambda it: (it.kind, it.name, -1 if it.seed is None else it.seed, it.folder)),
        records=[record.content for record in records],
        problems=sorted(problems, key=lambda problem: (problem.file, problem.line or 0, problem.text)),
    )


# ------------------------------------------------------------------------------------------------------------- folders


def find(sources: Iterable[Path]) -> Folders:
    """Links to folders are not followed, so no search leaves its source or goes in circles; a source may be a link."""
    found, seen = Folders(), set()
    waiting = [(source, True) for source in reversed(list(sources))]
    while waiting:
        folder, is_source = waiting.pop()
        try:
            identity = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append(Problem(str(folder), None, f"cannot be listed: {error.strerror}"))
            continue
        if (identity.st_dev, identity.st_ino) in seen:
            continue
        seen.add((identity.st_dev, identity.st_ino))
        below, names = _look_into(folder, entries, found)
        if is_source or folder.name != "data" or "run.json" not in names:  # else the images of a demo
            waiting += [(folder / name, False) for name in reversed(below)]
    return found


def _look_into(folder: Path, entries: Sequence[os.DirEntry], found: Folders) -> tuple[list[str], frozenset[str]]:
    """Adds what this folder holds to `found`. Returns the folders to search and the names of the files."""
    below, linked, sizes = [], set(), {}
    for entry in entries:
        is_folder = entry.is_dir()
        if is_folder and any(fnmatchcase(entry.name, pattern) for pattern in SKIPPED):
            continue
        if entry.is_symlink() and is_folder:
            text = "is a link to a folder and is not followed. If it holds results, name that folder too"
            found.problems.append(Problem(entry.path, None, text))
        elif entry.is_symlink():
            linked.add(entry.name)
        elif is_folder:
            below.append(entry.name)
        elif entry.is_file():
            sizes[entry.name] = entry.stat().st_size
    names = frozenset(sizes)
    if any(reader.recognises(folder, names) for reader in READERS):
        found.results.append((folder, names, sum(size for name, size in sizes.items() if name.endswith(LOGS))))
    elif any(reader.recognises(folder, names | linked) for reader in READERS):
        text = f"has links in place of {', '.join(sorted(linked))}, and links are not followed: it is not read"
        found.problems.append(Problem(str(folder), None, f"{text}. Copy the files themselves (cp -L, rsync -L)"))
    if names_of(folder)[1] == run_record.FOLDER:
        found.records += [folder / name for name in sorted(names) if name.endswith(".json")]
    return below, names


# ------------------------------------------------------------------------------------------------------------- reading


def read_all(found: Sequence[tuple[Path, frozenset[str], int]], needs: Needs) -> Iterator[RunFolder]:
    """In the given order, by several processes where that is worth it: the largest logs first."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, MOST_PROCESSES, len(found))
    if workers < 2 or sum(size for _, _, size in found) < WORTH_PROCESSES:
        for folder, names, _ in found:
            yield from read_one(folder, names, needs)
        return
    ignore_ctrl_c = {
        "initializer": signal.signal,
        "initargs": (signal.SIGINT, signal.SIG_IGN),
    }  # it is for this process
    pool = ProcessPoolExecutor(workers, **ignore_ctrl_c)
    try:
        largest_first = sorted(range(len(found)), key=lambda i: -found[i][2])
        jobs = {i: pool.submit(read_one, found[i][0], found[i][1], needs) for i in largest_first}
        for i in range(len(found)):
            yield from jobs.pop(i).result()
    except BrokenProcessPool:
        what = "A process that read results was killed, perhaps because the memory was full"
        raise LedgerError(f"{what}. Nothing was changed.") from None
    finally:
        pool.shutdown(cancel_futures=True)


def read_one(folder: Path, names: frozenset[str], needs: Needs) -> list[RunFolder]:
    """By the first reader that recognises the folder; an evaluation may be in the folder of a training."""
    kinds, found = set(), []
    for reader in READERS:
        kind = EVALUATION if reader.__name__.endswith(EVALUATION) else TRAINING
        if kind in kinds or not reader.recognises(folder, names):
            continue
        kinds.add(kind)
        try:
            found += reader.read(folder, needs)
        except OSError as error:
            result = Result(kind, *split_seed(names_of(folder)[1]), str(folder), False, 0, used=False)
            problem = Problem(error.filename or str(folder), None, f"cannot be read: {error.strerror}")
            found.append(RunFolder(result, [problem], ""))
    return found


# -------------------------------------------------------------------------------------------------------------- checks


def leave_out_unknown(folders: Sequence[RunFolder], needs: Needs) -> None:
    for folder in folders:
        kind, name = folder.result.kind, folder.result.name
        if (kind, name) in needs.of:
            continue
        if folder.result.from_repository:  # an arm of docs/control/, say
            folder.result = replace(folder.result, used=False)
            continue
        folder.leave_out(f"the {kind} {name!r} is not in the ledger, so it is not used")


def _groups(folders: Sequence[RunFolder], key) -> Iterator[list[RunFolder]]:
    """Those that are used, by what `key` says of each; the repository's by themselves."""
    groups = defaultdict(list)
    for folder in folders:
        result = folder.result
        if result.used:
            groups[result.kind, result.name, result.from_repository, key(folder)].append(folder)
    return iter(list(groups.values()))


def leave_out_copies(folders: Sequence[RunFolder]) -> None:
    """The same result in several folders: copies count once, also under other seeds; of those that differ none does."""
    for group in _groups(folders, lambda folder: folder.result.seed):
        label = group[0].result.label
        if len({folder.digest for folder in group}) == 1:
            # The finished one, if a copy does not have the file that says so.
            first = next((folder for folder in group if folder.result.finished), group[0])
            for folder in group:
                if folder is not first:
                    folder.leave_out(f"is a copy of {first.result.folder} ({label}): it counts once")
            continue
        for folder in group:
            others = ", ".join(other.result.folder for other in group if other is not folder)
            what = f"{folder.result.kind} {label} is also in {others}, with other numbers: none of them is used"
            folder.leave_out(f"{what}. Leave one, or name other seeds <name>-seed<n>")
    for first, *others in _groups(folders, lambda folder: folder.digest):
        for folder in others:
            folder.leave_out(f"has the numbers of {first.result.folder} to the byte: it is not another seed")


def leave_out_other_settings(folders: Sequence[RunFolder]) -> None:
    """Seeds that were trained with different settings: none is used, because nothing says which the ledger means."""
    for group in _groups([folder for folder in folders if folder.settings], lambda folder: None):
        for folder in group if len({folder.settings for folder in group}) > 1 else ():
            result = folder.result
            others = ", ".join(str(other.result.seed) for other in group if other.settings != folder.settings)
            what = f"seed {result.seed} of {result.name} was trained otherwise ({folder.settings}) than seed {others}"
            folder.leave_out(f"{what}: none of them is used. Leave those that belong together")


def leave_out_repeated(folders: Sequence[RunFolder]) -> None:
    """The repository's results of runs of which there are finished ones of the user's own."""
    own = {}
    for folder in folders:
        result = folder.result
        if result.used and result.finished and not result.from_repository:
            own[result.kind, result.label] = result.folder
    for folder in folders:
        result = folder.result
        if result.from_repository and result.used and (other := own.get((result.kind, result.label))):
            folder.leave_out(f"came with the repository, and {other} is your own of {result.label}: yours counts")


# ------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class FoundRecord:
    """folders: of the results that it is about, absolute."""

    file: Path
    content: dict
    folders: tuple[Path, ...]


def read_records(files: Iterable[Path]) -> tuple[list[FoundRecord], list[Problem]]:
    """From the oldest to the newest."""
    records, problems = [], []
    for file in files:
        content = run_record.read(file)
        if isinstance(content, Problem):
            problems.append(content)
            continue
        base = file.parent.parent.resolve()
        records.append(FoundRecord(file, content, tuple((base / name).resolve() for name in content["folders"])))
    return sorted(records, key=lambda record: (record.content["start"], str(record.file))), problems


def add_records(folders: Sequence[RunFolder], records: Sequence[FoundRecord], with_modified: bool) -> None:
    """Each result with what its newest record says. But a modified checkout marks it for good: a later start may have
    continued what that made."""
    by_folder = defaultdict(list)
    for record in records:
        for path in record.folders:
            by_folder[path].append(record)
    for folder in folders:
        result, path = folder.result, Path(folder.result.folder).resolve()
        own = [record for above in (path, *path.parents) for record in by_folder.get(above, [])]
        if not own:
            continue
        own.sort(key=lambda record: record.content["start"])
        newest = own[-1].content
        modified = [record for record in own if record.content["modified"]]
        if modified and not with_modified and result.used:
            last = modified[-1]
            folder.problems.append(Problem(str(last.file), None, _made_with_modified(result, last.content)))
        failed = newest["state"] == run_record.FAILED and not result.finished
        gpus, cpu = run_record.hardware(newest)
        folder.result = replace(
            result,
            state="modified" if modified else "clean",
            used=result.used and (with_modified or not modified),
            failed=failed,
            log_tail=tuple(newest.get("log_tail", ()))[-LINES_OF_LOG:] if failed else (),
            hardware=gpus or cpu or result.hardware,
        )


def _made_with_modified(result: Result, record: Mapping) -> str:
    changed = run_record.changes(record)
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    what = f" ({', '.join(changed[:3])}{more})" if changed else ""
    text = f"{result.folder} was made with a modified checkout{what} and is not used without --with-modified"
    return f"{text}. If the folder was started from the beginning since then, remove this record"
