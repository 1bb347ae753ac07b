"""What was run, as the pages show it: the results by name, and the records of `reproduce.py run`."""

import shlex
from collections import Counter
from dataclasses import dataclass

from ledger import run_record
from ledger.report import text
from ledger.results import Collected, Result


@dataclass(frozen=True)
class ResultsRow:
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
class RecordRow:
    """A recorded command, in words. log: its last lines, if it did not finish."""

    command: str
    start: str
    end: str
    seeds: str
    hardware: str
    code: str
    ended: str
    log: str


def results_rows(collected: Collected) -> list[ResultsRow]:
    """Those that came with the repository in rows of their own."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in collected.results:
        kind = f"{result.kind}, with the repository" if result.from_repository else result.kind
        groups.setdefault((result.name, kind), []).append(result)
    return [_results_row(name, kind, results) for (name, kind), results in groups.items()]


def _results_row(name: str, kind: str, results: list[Result]) -> ResultsRow:
    states = Counter(_code(result) for result in results)
    days = text.days([result.ended for result in results])
    return ResultsRow(
        name,
        kind,
        seeds=text.ranges([result.seed for result in results if result.seed is not None]) or "–",
        finished=sum(result.finished for result in results),
        results=len(results),
        states=", ".join(f"{count} {state}" if len(results) > 1 else state for state, count in states.items())
        + (f"; {days}" if days else ""),
        hardware="; ".join(dict.fromkeys(result.hardware for result in results if result.hardware)) or "not recorded",
        unfinished=[_unfinished(result) for result in results if not result.finished],
    )


def _code(result: Result) -> str:
    """The state of the checkout, or the commit where that alone is known."""
    return f"of commit {result.commit[:10]}" if result.commit and result.state == "unknown" else result.state


def _unfinished(result: Result) -> str:
    seed = "" if result.seed is None else f"seed {result.seed} "
    return f"{seed}{'failed' if result.failed else 'interrupted'} after {result.progress}"


def record_row(record: dict) -> RecordRow:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in record["variables"].items())
    code = record.get("exit_code")
    ended = record["state"] + (f", exit code {code}" if code else "")
    return RecordRow(
        command=f"{variables} {record['command']}".strip(),
        start=time(record["start"]),
        end=time(record.get("end")),
        seeds=text.ranges(record["seeds"]) or "–",
        hardware=" and ".join(filter(None, run_record.hardware(record))) or "not recorded",
        code="modified" if record["modified"] else "clean",
        ended="no end recorded" if record["state"] == run_record.RUNNING else ended,
        log="\n".join(record.get("log_tail", ())),
    )


def time(stamp: str | None) -> str:
    """To the minute."""
    return (stamp or "–")[:16].replace("T", " ")
