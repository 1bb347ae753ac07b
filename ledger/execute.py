"""Running the steps of experiments, one after the other, each with a record."""

import contextlib
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ledger import record
from ledger.commands import Step, checkouts, is_on, steps
from ledger.errors import LedgerError
from ledger.experiments import Entry, Ledger

TAIL_LINES, TAIL_BYTES, LINE_LENGTH = 20, 1 << 16, 300  # of a failed run's log
SECONDS_TO_END, SECONDS_TO_KILL = 150, 10  # asked to (timm's and FastTD3's launchers take up to 70 s), and by force
SECONDS_OF_SILENCE = 2  # after the end of a command whose output somebody else has still open
POLL_SECONDS = 0.5
MARK = "ERA_REPRODUCE"  # in the environment of all that a step starts
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(
    ledger: Ledger, entries: Iterable[Entry], seeds: list[int] | None, dry_run: bool, slurm: bool, allow_modified: bool
) -> int:
    """Exit code: 0, 1 if a command failed (what follows it is not started), 128 + number after a signal.

    Raises LedgerError where nothing was started."""
    environment = dict(os.environ)
    wanted = steps(ledger, entries, seeds, environment, slurm)
    if dry_run:
        print("\n".join(line for step in wanted for line in _dry_lines(step)))
        return 0
    if is_on(environment, "CHECK_ONLY"):
        return _check_only(wanted, environment)
    repository = record.repository_state()
    states = {step.upstream: record.checkout_states(step, environment) for step in wanted}
    _refuse_modified(wanted, repository, states, allow_modified, environment)
    job = ""
    for number, step in enumerate(wanted, 1):
        print(
            f"== {shlex.join(step.command)} ({number} of {len(wanted)}), record in {record.records(step)}", flush=True
        )
        if step.note:
            print(step.note, flush=True)
        if step.finished:
            print(f"{step.goal} is there: this run is finished.", flush=True)
            job = ""
            continue
        if step.waits and job:
            step = replace(step, command=("sbatch", f"--dependency=afterok:{job}", *step.command[1:]))
        outcome = _record_and_run(step, environment, repository, states[step.upstream])
        job = outcome.job
        if outcome.signal:
            print(
                f"\nStopped by {signal.Signals(outcome.signal).name}; nothing is left running. {_again(step)}",
                file=sys.stderr,
            )
            return 128 + outcome.signal
        if outcome.code != 0:
            left = f" {len(wanted) - number} more were not started." if number < len(wanted) else ""
            ended = f"{shlex.join(step.command)} ended with exit code {outcome.code}.{left}"
            print(f"\n{ended} What it printed: {outcome.log}. {_again(step)}", file=sys.stderr)
            return 1
    return 0


def _again(step: Step) -> str:
    if step.kind == "control" and not step.submits:
        return "The same command again skips finished runs and begins the others anew; with RESUME=1 it goes on from their last checkpoints."
    return "The same command again goes on with what is not finished."


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


def _check_only(wanted: list[Step], environment: Mapping[str, str]) -> int:
    """CHECK_ONLY=1 is of the trainings' targets; nothing is trained, so nothing is recorded."""
    fine = True
    for step in wanted:
        print(f"== {shlex.join(step.command)}", flush=True)
        if step.finished:
            print(f"{step.goal} is there: this run is finished.", flush=True)
        elif step.kind in ("evaluation", "demo") or step.command[0] == "sbatch":
            print("It has no check of its own.", flush=True)
        else:
            fine &= subprocess.run(step.command, cwd=step.at, env={**environment, **step.variables}).returncode == 0
    return 0 if fine else 1


def _refuse_modified(
    wanted: list[Step],
    repository: Mapping,
    states: Mapping[str, Mapping],
    allowed: bool,
    environment: Mapping[str, str],
) -> None:
    """Demos apply by themselves, so their checkout may be absent or stale."""
    problems, changed = [], []
    if files := record.overlay_changes(repository):
        changed.append(f"this repository differs from its commit: {_some(files)}. Commit, or take it back (git status)")
    demos = {step.upstream for step in wanted if step.kind == "demo"}
    for upstream, found in states.items():
        for name, state in found.items():
            where = checkouts(environment) / name
            if state["state"] == "modified":
                what = [*state["files"], *(f"commit {commit[:12]}" for commit in state["commits"])]
                changed.append(
                    f"{where} has changes of yours: {_some(what)}. `python3 apply.py diff {name} --local` shows them"
                )
            elif state["state"] == "applied" or upstream in demos and state["state"] in ("absent", "clean", "stale"):
                continue
            elif state["state"] == "stale":
                changed.append(f"{where} is stale ({state['note']}). Run `make apply`")
            elif state["state"] in ("absent", "clean"):
                problems.append(
                    f"{where} has no overlay yet. Run `make apply` (python3 apply.py apply {name}, for this one alone)"
                )
            else:
                problems.append(f"{where} is {state['state']}: {state['note']}")
    if changed and not allowed:
        problems += changed
        problems.append("--modified runs it all the same, and marks the results")
    if problems:
        raise LedgerError(
            "This cannot start; nothing was changed:\n"
            + "\n".join(f"  - {problem}." for problem in dict.fromkeys(problems))
        )


def _some(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


# One command


@dataclass(frozen=True)
class Outcome:
    """code: the command's, as a shell has it. signal: that asked us to end, or 0. tail: the last lines. job: that it submitted."""

    code: int
    signal: int
    tail: list[str]
    log: Path
    job: str = ""


def _record_and_run(
    step: Step, environment: Mapping[str, str], repository: Mapping, states: Mapping[str, Mapping]
) -> Outcome:
    with record.alone(step) as lock:
        try:
            kept = record.Record(step, record.content(step, environment, repository, states))
        except OSError as error:
            raise LedgerError(
                f"{error.filename or step.base}: the record of this run cannot be written ({error.strerror}). Nothing was started."
            ) from None
        try:
            outcome = _execute(step, environment, kept.log, lock)
        except OSError as error:  # no make, no sbatch
            kept.end(state="failed", log_tail=[str(error)])
            raise LedgerError(f"{step.command[0]} cannot be started: {error.strerror}. Nothing was trained.") from None
        ended = {
            "exit_code": outcome.code,
            "state": "interrupted" if outcome.signal else "failed" if outcome.code else "finished",
        }
        if ended["state"] != "finished":
            ended["log_tail"] = outcome.tail
        elif outcome.job:
            ended |= {"state": "submitted", "job": outcome.job, "exit_code": None}
        if step.kind == "demo":  # it has applied the overlay itself
            after = record.checkout_states(step, environment)
            ended |= {"checkouts": after, "modified": record.is_modified(step, repository, after)}
        if not kept.content["versions"]:  # make has set the environment up by now
            ended["versions"] = record.versions(step, environment)
        try:
            kept.end(**ended)
        except OSError as error:
            print(
                f"{kept.file}: how the run ended cannot be written ({error.strerror}), so it will be taken for an interrupted one.",
                file=sys.stderr,
            )
            return replace(outcome, code=outcome.code or 1)
        return outcome


def _execute(step: Step, environment: Mapping[str, str], log: Path, lock: int) -> Outcome:
    """Runs the command in a session of its own. What it prints goes to the screen, through a terminal where that is one, and into the log."""
    mark = uuid.uuid4().hex
    source, sink = _terminal() if sys.stdout.isatty() else os.pipe()
    process, asked = None, []

    def stop(number: int, _) -> None:
        asked.append((number, time.monotonic() + SECONDS_TO_END))
        if process and len(asked) > 1:
            _kill(mark, process)
        elif process:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, b"\nEnding what was started; it may take a minute or two. Once more ends it by force.\n")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    with _handling(stop):
        with _held(STOP_SIGNALS):  # until there is a process to pass them on to
            try:
                process = subprocess.Popen(
                    step.command, cwd=step.at, env={**environment, **step.variables, MARK: mark}, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                    start_new_session=True, pass_fds=[lock], preexec_fn=_let_in,
                )  # fmt: skip
            except OSError:
                os.close(source)
                raise
            finally:
                os.close(sink)
        tail = _copy(source, log, process, asked, lambda: _kill(mark, process))
        code = process.wait()
        if asked:
            _kill(mark, process)
    lines = [
        _ESCAPES.sub("", line).rstrip()[:LINE_LENGTH] for line in re.split(r"[\r\n]+", tail.decode(errors="replace"))
    ]
    lines = [line for line in lines if line]
    job = (
        re.fullmatch(r"(?:Submitted batch job )?(\d+)(?:;\S+)?", lines[-1])
        if step.submits and lines and code == 0
        else None
    )
    return Outcome(
        128 - code if code < 0 else code, asked[0][0] if asked else 0, lines[-TAIL_LINES:], log, job[1] if job else ""
    )


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextlib.contextmanager
def _held(signals: Iterable[int]) -> Iterator[None]:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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


def _terminal() -> tuple[int, int]:
    """A terminal as wide as ours, which leaves the ends of lines to ours."""
    source, sink = pty.openpty()
    attributes = termios.tcgetattr(sink)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(sink, termios.TCSANOW, attributes)
    with contextlib.suppress(termios.error):
        termios.tcsetwinsize(sink, termios.tcgetwinsize(sys.stdout.fileno()))
    return source, sink


def _copy(source: int, file: Path, process: subprocess.Popen, asked: list, kill: Callable[[], None]) -> bytes:
    """Everything that comes, until nobody can write any more; returns its end. `asked`: (signal, moment until which to wait)."""
    tail, quiet = b"", 0.0
    with open(source, "rb", buffering=0), file.open("ab", buffering=0) as stream:
        log = stream
        while True:
            if select.select([source], [], [], POLL_SECONDS)[0]:
                try:
                    data = os.read(source, 1 << 16)
                except OSError:  # a terminal's end
                    data = b""
                if not data:
                    return tail
                tail, quiet = (tail + data)[-TAIL_BYTES:], 0.0
                _show(data)
                try:
                    left = memoryview(data)
                    while log and left:
                        left = left[log.write(left) :]
                except OSError as error:
                    print(
                        f"{file} cannot be written any more ({error.strerror}); the run goes on, and its log ends here.",
                        file=sys.stderr,
                    )
                    log = None
            elif asked and time.monotonic() > asked[-1][1]:
                kill()
                return tail
            elif process.poll() is not None:
                quiet += POLL_SECONDS
                if quiet >= SECONDS_OF_SILENCE:
                    return tail


def _show(data: bytes) -> None:
    """Who reads our output may go away; that does not end a training."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _kill(mark: str, process: subprocess.Popen) -> None:
    """What the step started and is still there, in whatever session, found by the mark in its environment (Linux)."""
    until = time.monotonic() + SECONDS_TO_KILL
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    while (found := _marked(mark)) and time.monotonic() < until:
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.1)
    if found:
        numbers = ", ".join(map(str, found))
        print(
            f"kill -9 does not end the processes {numbers}, which may hold a GPU. See to them before you go on.",
            file=sys.stderr,
        )


def _marked(mark: str) -> list[int]:
    found, text = [], f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if (
                text in (folder / "environ").read_bytes().split(b"\0")
                and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                found.append(int(folder.name))
    return found
