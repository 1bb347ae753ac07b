"""Starts the steps of experiments one after the other, each with a record."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ledger import run_record
from ledger.commands import Step, checkouts, is_on, steps
from ledger.errors import LedgerError
from ledger.ledger import Entry, Ledger
from ledger.run_record import FAILED, FINISHED, INTERRUPTED, SUBMITTED, RunRecord

TAIL_LINES, TAIL_BYTES, LINE_LENGTH = 20, 1 << 16, 300  # of a failed command's log
COPY_SECONDS = 0.2  # between two looks at the log
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(
    ledger: Ledger, entries: Iterable[Entry], seeds: list[int] | None, dry_run: bool, slurm: bool, allow_modified: bool
) -> int:
    """Exit code: 0, 1 if a command failed (the ones after it are not started), 128 + number after a signal.

    Raises LedgerError where nothing was started."""
    environment = dict(os.environ)
    planned = steps(ledger, entries, seeds, environment, slurm)
    if dry_run:
        print("\n".join(line for step in planned for line in _dry_lines(step)))
        return 0
    if is_on(environment, "CHECK_ONLY"):
        return _check_only(planned, environment)
    repository = run_record.repository_state()
    states = {step.upstream: run_record.checkout_states(step, environment) for step in planned}
    _refuse_modified(planned, repository, states, allow_modified, environment)
    job = ""
    for number, step in enumerate(planned, 1):
        place = f"{number} of {len(planned)}"
        print(f"== {shlex.join(step.command)} ({place}), record in {run_record.folder_of(step)}", flush=True)
        if step.note:
            print(step.note, flush=True)
        if step.finished:
            print(f"{step.goal} is there: this run is finished.", flush=True)
            job = ""
            continue
        if step.waits and job:
            step = replace(step, command=("sbatch", f"--dependency=afterok:{job}", *step.command[1:]))
        ended, signal_number, log = _run_step(step, environment, repository, states[step.upstream])
        if signal_number:
            print(f"\nStopped by {signal.Signals(signal_number).name}. {_again(step)}", file=sys.stderr)
            return 128 + signal_number
        if ended["state"] == FAILED:
            left = f" {len(planned) - number} more were not started." if number < len(planned) else ""
            how = f"{shlex.join(step.command)} ended with exit code {ended['exit_code']}.{left}"
            refused = "" if _has_begun(step) else "It left no results, so it does not count as a run. "
            print(f"\n{how} {refused}Its output: {log}. {_again(step)}", file=sys.stderr)
            return 1
        job = ended.get("job", "")
    return 0


def _again(step: Step) -> str:
    if step.upstream == "fasttd3" and step.kind == "control" and not step.submits:
        what = "The same command again skips finished runs and starts the others from the beginning"
        return f"{what}; with RESUME=1 it continues from their last checkpoints."
    return "The same command again continues what is not finished."


def _dry_lines(step: Step) -> Iterator[str]:
    """A Slurm job that another one waits for is caught in $job, if a step before is submitted and not finished."""
    if step.note:
        yield f"# {step.note}"
    if step.finished:
        yield f"# finished, {step.goal} is there: {step.shell}"
    elif step.submits and step.kind == "llm":
        after = '${job:+--dependency=afterok:"${job%%;*}"} ' if step.waits else ""
        yield f'job=$({step.shell.replace(" --parsable ", f" --parsable {after}", 1)}); echo "$job"'
    else:
        yield step.shell


def _check_only(planned: list[Step], environment: Mapping[str, str]) -> int:
    """The trainings' targets take CHECK_ONLY=1; nothing is trained, so nothing is recorded."""
    fine = True
    for step in planned:
        print(f"== {shlex.join(step.command)}", flush=True)
        if step.finished:
            print(f"{step.goal} is there: this run is finished.", flush=True)
        elif step.kind == "evaluation" or step.command[0] == "sbatch":
            print("It has no check of its own.", flush=True)
        else:
            fine &= subprocess.run(step.command, cwd=step.at, env={**environment, **step.variables}).returncode == 0
    return 0 if fine else 1


def _refuse_modified(
    planned: list[Step],
    repository: Mapping,
    states: Mapping[str, Mapping],
    allowed: bool,
    environment: Mapping[str, str],
) -> None:
    problems, changed = [], []
    if files := run_record.overlay_changes(repository):
        changed.append(f"this repository differs from its commit: {_first(files)}. Commit or undo that (git status)")
    patched = {step.upstream for step in planned if step.applies}
    for upstream, found in states.items():
        for name, state in found.items():
            where = checkouts(environment) / name
            if state["state"] == "modified":
                what = _first([*state["files"], *(f"commit {commit[:12]}" for commit in state["commits"])])
                look = f"`python3 apply.py diff {name} --local` shows them"
                changed.append(f"{where} has changes of yours: {what}. {look}")
            elif state["state"] == "applied" or upstream in patched and state["state"] in ("absent", "clean", "stale"):
                continue  # the command applies the overlay itself
            elif state["state"] == "stale":
                changed.append(f"{where} is stale ({state['note']}). Run `make apply`")
            elif state["state"] in ("absent", "clean"):
                how = f"Run `make apply` (python3 apply.py apply {name}, for this one alone)"
                problems.append(f"{where} has no overlay yet. {how}")
            else:
                problems.append(f"{where} is {state['state']}: {state['note']}")
    if changed and not allowed:
        problems += [*changed, "--modified runs it all the same, and marks the results"]
    if problems:
        lines = "\n".join(f"  - {problem}." for problem in dict.fromkeys(problems))
        raise LedgerError(f"This cannot start; nothing was changed:\n{lines}")


def _first(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --------------------------------------------------------------------------------------------------------- one command


def _run_step(
    step: Step, environment: Mapping[str, str], repository: Mapping, states: Mapping[str, Mapping]
) -> tuple[dict, int, Path]:
    """What its record says of its end, the signal that stopped it or 0, and its log."""
    with run_record.only_start(step) as lock:
        try:
            record = RunRecord(step, run_record.content(step, environment, repository, states))
        except OSError as error:
            what = f"{error.filename or step.base}: the record cannot be written ({error.strerror})"
            raise LedgerError(f"{what}. Nothing was started.") from None
        try:
            code, signal_number = _execute(step, environment, record.log, lock)
        except OSError as error:  # no make, no sbatch
            record.file.unlink()
            raise LedgerError(f"{step.command[0]} cannot be started: {error.strerror}. Nothing was trained.") from None
        tail = _last_lines(record.log)
        ended = {"exit_code": code, "state": INTERRUPTED if signal_number else FAILED if code else FINISHED}
        if ended["state"] == FAILED and not _has_begun(step):
            record.file.unlink()  # it was no run; the log stays
            return ended, signal_number, record.log
        if ended["state"] != FINISHED:
            ended["log_tail"] = tail
        elif step.submits and tail and (job := re.fullmatch(r"(?:Submitted batch job )?(\d+)(?:;\S+)?", tail[-1])):
            ended |= {"state": SUBMITTED, "job": job[1], "exit_code": None}
        if step.applies:
            after = run_record.checkout_states(step, environment)
            ended |= {"checkouts": after, "modified": run_record.is_modified(step, repository, after)}
        if not record.content["versions"]:  # make has set up the environment by now
            ended["versions"] = run_record.versions(step, environment)
        try:
            record.end(**ended)
        except OSError as error:
            what = f"{record.file}: how the command ended cannot be written ({error.strerror})"
            print(f"{what}, so it will be taken for an interrupted one.", file=sys.stderr)
            return {"exit_code": code, "state": FAILED}, signal_number, record.log
        return ended, signal_number, record.log


def _has_begun(step: Step) -> bool:
    """What refuses to start (no GPUs, no model, no data) makes no folder of results. Demos work in <folder>.new."""
    return any((step.base / f"{name}{end}").exists() for name in step.folders for end in ("", ".new"))


def _execute(step: Step, environment: Mapping[str, str], log: Path, lock: int) -> tuple[int, int]:
    """Its exit code, and the signal that stopped it, or 0. Its output goes to the log and from there to the screen."""
    asked = []
    variables = {**environment, **step.variables, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as sink:
        process = subprocess.Popen(
            step.command, cwd=step.at, env=variables, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            start_new_session=True, pass_fds=[lock],
        )  # fmt: skip

    def stop(number: int, _frame) -> None:
        asked.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number if len(asked) == 1 else signal.SIGKILL)
        with contextlib.suppress(OSError):  # the terminal may be gone
            if len(asked) == 1:
                os.write(2, b"\nEnding what was started; it may take a minute or two. Once more ends it by force.\n")

    with _handling(stop), log.open("rb") as copy:
        while process.poll() is None:
            _show(copy.read())
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(COPY_SECONDS)
        _show(copy.read())
    code = process.returncode
    return 128 - code if code < 0 else code, asked[0] if asked else 0


@contextlib.contextmanager
def _handling(handler) -> Iterator[None]:
    """Signals that are ignored stay so: nohup ignores SIGHUP on purpose."""
    earlier = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        if earlier[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, earlier[number])


def _show(data: bytes) -> None:
    """A reader of our output that goes away does not end a training."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = stream.read().decode(errors="replace")
    lines = [_ESCAPES.sub("", line).rstrip()[:LINE_LENGTH] for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if line][-TAIL_LINES:]
