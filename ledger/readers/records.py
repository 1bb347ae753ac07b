"""What `reproduce.py run` notes of a run (ledger/record.py): <base>/records/<time>-<run>.json, with the run's folders relative to <base>."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from ledger.readers.reading import Problems, names_of
from ledger.record import FOLDER
from ledger.results import Problem

FAILED = "failed"  # the state of a record whose command ended with another exit code than 0
_EXPECTED = {
    **{
        "run": str,
        "command": str,
        "variables": dict,
        "seeds": list,
        "folders": list,
        "state": str,
        "modified": bool,
        "start": str,
    },
    **{"repository": dict, "checkouts": dict, "hardware": dict},
}


def files(folder: Path, names: Set[str]) -> list[Path]:
    return [folder / name for name in sorted(names) if name.endswith(".json")] if names_of(folder)[1] == FOLDER else []


def read(file: Path) -> tuple[dict | None, list[Problem]]:
    """None, and a problem, for what is no record."""
    problems = Problems(file)
    try:
        record = json.loads(file.read_bytes(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        problems.add(f"is no record, or cut: {error}", getattr(error, "lineno", None))
        return None, problems.all()
    lacking = [
        key for key, kind in _EXPECTED.items() if not isinstance(record, dict) or not isinstance(record.get(key), kind)
    ]
    lacking = lacking or list(_wrong(record))
    if lacking:
        problems.add(f"is no record of reproduce.py: {', '.join(lacking)} cannot be read")
        return None, problems.all()
    return record, problems.all()


def _wrong(record: Mapping) -> Iterator[str]:
    """Parts that hold something else than they should."""
    fine = {
        "variables": _texts(list(record["variables"].values())),
        "seeds": all(type(seed) is int for seed in record["seeds"]),
        "experiments": _texts(record.get("experiments", [])),
        "folders": _texts(record["folders"]) and not any("\0" in name for name in record["folders"]),
        "log_tail": _texts(record.get("log_tail", [])),
        "end": isinstance(record.get("end"), str | None),
        "exit_code": isinstance(record.get("exit_code"), int | None),
        "hardware": _texts(record["hardware"].get("gpus", [])),
    }
    yield from (key for key, is_fine in fine.items() if not is_fine)


def _no_number(text: str):
    raise ValueError(f"{text} is no number")


def _texts(value) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def changed(record: Mapping) -> list[str]:
    """What was modified, as far as the record says."""
    found = list(_some(record["repository"], "changed"))
    for name, state in record["checkouts"].items():
        found += [f"{name}/{file}" for file in _some(state, "files")] + [
            f"{name} commit {commit[:12]}" for commit in _some(state, "commits")
        ]
    return found


def _some(of, key: str) -> list[str]:
    return of[key] if isinstance(of, dict) and _texts(of.get(key)) else []


def hardware(record: Mapping) -> str:
    """GPUs, or where there are none the CPU; empty if neither is known."""
    known = record["hardware"]
    gpus = ", ".join(f"{count} {name}" for name, count in Counter(_some(known, "gpus")).items())
    cpu = f"{known.get('cores')} cores, {known['cpu']}" if known.get("cpu") else ""
    return gpus or cpu
