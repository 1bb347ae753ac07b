"""What was run, as the pages show it: the results by name, and the records of reproduce.py run."""

import shlex
from collections import Counter
from dataclasses import dataclass

from ledger.report import text
from ledger.results import Collected, Result


@dataclass(frozen=True)
class RunShown:
    """The results of one name. unfinished: seed and steps of each that is."""

    name: str
    kind: str
    seeds: str
    finished: int
    results: int
    states: str
    hardware: str
    unfinished: list[str]


@dataclass(frozen=True)
class RecordShown:
    """A command of reproduce.py run, in words. log: its last lines, if it did not finish."""

    command: str
    start: str
    end: str
    seeds: str
    hardware: str
    code: str
    ended: str
    log: str


def of_results(collected: Collected) -> list[RunShown]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in collected.results:
        groups.setdefault((result.name, result.kind), []).append(result)
    return [
        RunShown(
            name,
            kind,
            text.ranges([result.seed for result in results if result.seed is not None]) or "–",
            sum(result.finished for result in results),
            len(results),
            ", ".join(
                f"{count} {state}" if len(results) > 1 else state
                for state, count in Counter(result.state for result in results).items()
            ),
            "; ".join(dict.fromkeys(result.hardware for result in results if result.hardware)) or "not recorded",
            [_unfinished(result) for result in results if not result.finished],
        )
        for (name, kind), results in groups.items()
    ]


def of_record(record: dict) -> RecordShown:
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in record.get("variables", {}).items())
    code = record.get("exit_code")
    return RecordShown(
        f"{settings} {record['command']}".strip(),
        time(record.get("start")),
        time(record.get("end")),
        text.ranges(record.get("seeds") or []) or "–",
        _machine(record.get("hardware") or {}),
        {True: "modified", False: "clean"}.get(record.get("modified"), "unknown"),
        "no end recorded"
        if record["state"] == "running"
        else record["state"] + (f", exit code {code}" if code else ""),
        "\n".join(record.get("log_tail", ())),
    )


def _machine(hardware: dict) -> str:
    """GPUs and CPU, where a result has the GPUs alone (readers/records.py)."""
    gpus = ", ".join(f"{count} {name}" for name, count in Counter(hardware.get("gpus", ())).items())
    cpu = f"{hardware.get('cores')} cores of {hardware['cpu']}" if "cpu" in hardware else ""
    return " and ".join(filter(None, (gpus, cpu))) or "not recorded"


def time(stamp: str | None) -> str:
    """To the minute."""
    return (stamp or "–")[:16].replace("T", " ")


def _unfinished(result: Result) -> str:
    seed = "" if result.seed is None else f"seed {result.seed} "
    done = f"{result.steps}{f' of {result.total}' if result.total else ''} steps"
    return f"{seed}{'failed' if result.failed else 'interrupted'} after {done}"
