# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""run.json: what a run was trained with, and whether it is finished. And whether a run's folder is whole.

A script that trains calls begin, start and finish. A launcher of such a script gives it what the
script cannot know in the variable ERA_RUN (see `for_script`). A launcher of a script that writes no
run.json calls the three functions itself, in the Python that trains. The fields:

    host, task, agent, seed   what was trained; host is the upstream, or the demo
    entry                     what the run counts for in `make report`: the `folder` of entries of
                              experiments.toml; null: nothing, or the folder's name says it
    command                   the script and its flags, without the folders that it is in
    added                     those flags that the user added to the recipe's; null: unknown
    as_paper                  whether it trains as the recipe does: nothing was added that changes
                              it; null: unknown
    commit, modified          of the code, and whether it has changes that are not committed; null:
                              unknown
    total_steps, finished, started, ended, cpu_seconds   finished stays false for verl, whose
                              metrics.jsonl says how far a run is
    evaluate_freq, episode_length   say with the command which rows train.csv has: PPO's, and TD-MPC2's,
                              null where episodes may end early
    versions, hardware, threads   of Python and packages; of the machine; variables that are set
                              and that choose kernels and numbers of threads

Needs the standard library alone.
"""

import datetime
import importlib.util
import json
import math
import os
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

FILE = "run.json"
SET_ASIDE = "interrupted-"  # begins the names of the folders for what an interrupted start of a run has left
VARIABLE = "ERA_RUN"
TRAINS = ("era", "overlays", "patches", "recipes", "demo", "rivals", "upstreams.json")
THREADS = ("OMP_", "MKL_", "OPENBLAS_", "BLIS_", "KMP_", "GOMP_", "ATEN_", "XLA_FLAGS")


def begin(
    host: str,
    task: str,
    seed: int | None,
    total_steps: int | None,
    packages: Sequence[str],
    **known: Any,
) -> dict[str, Any]:
    """The record of a run that starts now, by the process that trains.

    Args:
        total_steps: of the whole run; None where only the script knows.
        packages: whose versions matter.
        known: further fields, or other values of those above: agent, entry, added, as_paper, **code(...).
    """
    return {
        "host": host,
        "task": task,
        "agent": None,
        "seed": seed,
        "entry": None,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "added": None,
        "as_paper": None,
        "total_steps": total_steps,
        "finished": False,
        "started": now(),
        "ended": None,
        "cpu_seconds": 0.0,
        "commit": None,
        "modified": None,
        **describe(packages),
        **known,
        **json.loads(os.environ.get(VARIABLE) or "{}"),
    }


def start(folder: Path, record: dict[str, Any]) -> None:
    """Writes the record of a run that starts or goes on.

    A run that goes on keeps the time of its first start, and stays modified or unlike the paper's
    if it once was: `record` gets these.
    """
    before = read(folder)
    if before and not before.get("finished"):
        record["started"] = before.get("started") or record["started"]
        if before.get("modified"):
            record["modified"] = True
        if before.get("as_paper") is False:
            record["as_paper"] = False
    write(folder, record)


def finish(folder: Path, record: dict[str, Any], cpu_seconds: float | None = None) -> None:
    """Writes the record of a run that has reached its last step. cpu_seconds: if they are known."""
    seconds = None if cpu_seconds is None else round(cpu_seconds, 1)
    write(folder, {**record, "finished": True, "ended": now(), "cpu_seconds": seconds})


def write(folder: Path, record: dict[str, Any]) -> None:
    """Replaces run.json as a whole: a kill or a full disk leaves the earlier one."""
    new = folder / f"{FILE}.new"
    new.unlink(missing_ok=True)  # nothing is written through a link
    new.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(new, folder / FILE)


def read(folder: Path) -> dict[str, Any]:
    """The record in the folder; {} without run.json, or with one that cannot be read."""
    try:
        record = json.loads(text_of(folder / FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


# Whether a run is whole

# The column of steps, the first one, of each file that has a row for every so many steps.
CURVES = {
    "train.csv": "global_step",  # recipes/control, FastTD3, rivals
    "summary.csv": "epoch",  # timm; counts from 0
    **{"curves.csv": "global_step", "epochs.csv": "epoch", "steps.csv": "step"},  # demo
}
VERL, EVALUATION = "metrics.jsonl", "summary.json"  # of verl, and of recipes/llm/evaluate.py
RANGES = {"eval_top1": 100, "eval_top5": 100, "clipped": 1, "imitation_share": 1}  # from 0, by column
LARGEST_NUMBER = 3.5e38  # all trainings compute in fp32 or less
LARGEST_FILE = 2**28  # bytes; the longest of the paper's runs writes some 2**23
LONGEST_EPISODE = (
    1000  # steps; PPO ends with the episode in which it reaches its last step, TD-MPC2 evaluates after one
)


class _Fault(ValueError):
    """A folder is not whole; the message is the reason."""


def why_not_whole(folder: Path, steps: int | None = None) -> str:
    """Why the folder of a run, or of an evaluation, does not hold all of it; "" if it does.

    Compares the steps in the file of its metrics with those that were asked for, without gaps, or
    the samples of an evaluation with its problems, and looks for values that no run writes. NaN and
    infinities are values of a run that diverged. Never raises, whatever is in the folder.

    Args:
        steps: that were asked for. None: those of run.json, which must also say that the run is
            finished, except verl's.
    """
    try:
        _check(Path(folder), steps)
    except _Fault as fault:
        return str(fault)
    except Exception as error:  # anything may be in a folder that was copied or damaged
        return f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    return ""


def _check(folder: Path, steps: int | None) -> None:
    files = [name for name in (EVALUATION, VERL, *CURVES) if os.path.lexists(folder / name)]
    if not files:
        raise _Fault(f"has no metrics: none of {', '.join((EVALUATION, VERL, *CURVES))}")
    if EVALUATION in files:
        _check_evaluation(_json(folder / EVALUATION))
    if files == [EVALUATION]:
        return
    has_record = os.path.lexists(folder / FILE)
    if not has_record and steps is None:
        raise _Fault(f"has no {FILE}, so nothing says how it was trained")
    record = _json(folder / FILE) if has_record else {}
    total = record.get("total_steps") if steps is None else steps
    if type(total) is not int or not 0 < total < 10**12:
        raise _Fault(f"{FILE} does not say how many steps were asked for: total_steps is {_short(total)}")
    for name in files:
        if name == VERL:
            _check_verl(folder / name, total, record)
        elif name in CURVES:
            _check_curves(folder / name, total, record)
    if steps is None and record.get("finished") is not True and VERL not in files:
        raise _Fault(f"{FILE} does not say that it is finished")


def _check_curves(file: Path, total: int, record: dict[str, Any]) -> None:
    text, name = text_of(file), file.name
    if not text.isascii():
        raise _Fault(f"{name} has {_short(next(c for c in text if not c.isascii()))}, a character that no run writes")
    if CURVES[name] == "global_step" and not isinstance(record.get("host"), str):
        raise _Fault(f"{FILE} does not say what was trained: host is {_short(record.get('host'))}")
    columns = read_columns(text, name)
    if not text.endswith("\n"):
        raise _Fault(f"{name} ends in the middle of a line")
    for column, cells in columns.items():
        for step, cell in cells.items():
            _check_cell(name, column, step, cell)
    steps = {step + (name == "summary.csv") for step in columns[CURVES[name]]}
    _check_steps(name, steps, record, total)


def _check_cell(name: str, column: str, step: int, cell: str) -> None:
    try:
        value = float(cell)
    except ValueError:
        raise _Fault(f"{name} has {_short(cell)} for {_short(column)} in step {step}, and not a number") from None
    if LARGEST_NUMBER < abs(value) < math.inf:
        raise _Fault(f"{name} has {value:g}, which is more than a training computes with")
    if column in RANGES and (value < 0 or value > RANGES[column]):
        raise _Fault(f"{name} has {value:g} for {column}, which is from 0 to {RANGES[column]}")


def read_columns(text: str, file: str) -> dict[str, dict[int, str]]:
    """The columns of a file of curves: by name and step, the cells as they are written. Empty cells are left out.

    A line that is not a row is passed over: a resumed timm repeats the header, and a kill may have cut a row. Where a
    resumed training wrote a step again, the later value counts.

    Args:
        file: the file's name, one of CURVES.

    Raises:
        ValueError: the first line is not the header of such a file.
    """
    header, *lines = text.replace("\r\n", "\n").split("\n")  # FastTD3 ends its lines as csv does
    names = header.split(",")
    if names[0] != CURVES[file]:
        raise _Fault(f"{file} does not begin with the column {CURVES[file]}")
    if len(set(names)) < len(names):
        raise _Fault(f"{file} has two columns of one name: {_short(header)}")
    rows = [cells for line in lines if len(cells := line.split(",")) == len(names) and cells[0].isdecimal()]
    steps = [int(cells[0]) for cells in rows]
    return {
        name: {step: cells[place] for step, cells in zip(steps, rows) if cells[place]}
        for place, name in enumerate(names)
    }


def _check_verl(file: Path, total: int, record: dict[str, Any]) -> None:
    """Check verl's metrics, whose logger leaves a line that a kill has cut, and has one of a validation before."""
    steps = set()
    for line in text_of(file).splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not (isinstance(row, dict) and type(row.get("step")) is int and isinstance(row.get("data"), dict)):
            raise _Fault(f"{file.name} has a line that is not a step's metrics: {_short(line)}")
        for metric, value in row["data"].items():
            if isinstance(value, (int, float)) and LARGEST_NUMBER < abs(value) < math.inf:
                raise _Fault(f"{file.name} has {value:.3g} for {_short(metric)} in step {row['step']}")
        if any(not metric.startswith("val-") for metric in row["data"]):
            steps.add(row["step"])
    _check_steps(file.name, steps, record, total)


def _check_steps(name: str, steps: set[int], record: dict[str, Any], total: int) -> None:
    last = max(steps, default=0)
    if last > total + LONGEST_EPISODE:
        raise _Fault(f"{name} has step {_short(last)}, and {total} were asked for")
    lacking = first_lacking(record, total, steps)
    if lacking is not None:
        part = f"{last} of {total} steps" if lacking > last else f"no row of step {lacking}"
        raise _Fault(f"{name} has {part}")
    expected, later = _rows(record, total)
    if not later and (others := {step for step in steps if step < total}.difference(expected)):
        raise _Fault(f"{name} has a row of step {min(others)}, at which a run with these settings has none")


def first_lacking(record: dict[str, Any], total: int, steps: Collection[int], column: str = "") -> int | None:
    """The first step at which a whole run has a row, or a value in the column, and these steps lack it; None if none.

    Args:
        record: run.json, which says the run's settings.
        total: the steps that were asked for.
        steps: of the rows that are there, or of those with a value in the column. Quick to look into: a set.
    """
    expected, later = _rows(record, total, column)
    for step in expected:
        if step not in steps and not any(at in steps for at in range(step + 1, step + later + 1)):
            return step
    return None


def _rows(record: dict[str, Any], total: int, column: str = "") -> tuple[Iterable[int], int]:
    """The steps at which a whole run with these settings has a row, in order, and how many steps later each may come.

    It is what the host's script does. Its settings are run.json's where the script writes them there, else the flags
    of its command, else its defaults.
    """
    host = record.get("host")
    if host == "ppo":  # PPO_continuous_main.py
        every = _setting(record, "evaluate_freq", 5000, least=1)
        return range(every, total + 1, every), 0
    if host == "sac":  # sac_train.py
        every = _setting(record, "eval_every", 5000, least=1)
        return chain(range(every, total, every), [total]), 0
    if host == "tdmpc2":  # online_trainer.py: when the episode has ended
        evaluations = range(0, total + 1, _setting(record, "eval_freq", 50_000, least=1))
        if length := record.get("episode_length"):
            ends = (math.ceil(step / length) * length for step in evaluations)
            return (step for step in ends if step <= total), 0
        return (step for step in evaluations if step <= total - LONGEST_EPISODE), LONGEST_EPISODE
    if host == "fasttd3":  # train.py: once it trains and measures its speed
        first = _setting(record, "learning_starts", 10) + max(1, _setting(record, "measure_burnin", 3))
        rows = range(math.ceil(first / 100) * 100, total, 100)
        if not column.startswith("eval_"):
            return rows, 0
        every = _setting(record, "eval_interval", 5000)
        return (step for step in rows if every and step % every == 0), 0
    # verl's stage 2 begins behind the steps of stage 1.
    command = "\n".join(map(str, record.get("command") or [])) if host == "verl" else ""
    before = re.findall(r"resume_from_path=.*global_step_([0-9]+)", command)
    return range(1 + int(before[-1]) if before else 1, total + 1), 0


def _setting(record: dict[str, Any], name: str, default: int, least: int = 0) -> int:
    command = record.get("command")
    if not isinstance(command, list):
        raise _Fault(f"{FILE} does not say with which settings it was trained: command is {_short(command)}")
    words = " ".join(map(str, command)).replace("=", " ").split()
    values = [value for flag, value in zip(words, words[1:]) if flag.lstrip("-").replace("-", "_") == name]
    value = int(float(record.get(name) or [default, *values][-1]))
    if value < least:
        raise _Fault(f"{FILE} has {value} for {name}")
    return value


def _check_evaluation(summary: dict[str, Any]) -> None:
    benchmarks = summary.get("benchmarks")
    if not isinstance(benchmarks, dict) or not benchmarks:
        raise _Fault(f"{EVALUATION} has no benchmark")
    for name, benchmark in benchmarks.items():
        check_benchmark(name, benchmark)


def check_benchmark(name: str, benchmark: dict[str, Any]) -> None:
    """Raises a ValueError if the summary of a benchmark, by recipes/llm/evaluate.py, is not of all its samples."""
    name, protocol = _short(name), benchmark.get("protocol") or {}
    counts = [benchmark.get(key) for key in ("problems", "samples_per_problem", "samples")]
    if any(type(count) is not int or not 0 < count < 10**12 for count in counts):
        raise _Fault(f"{EVALUATION} does not say how many samples of {name} there are")
    problems, each, samples = counts
    expected = protocol.get("problems", problems) * protocol.get("samples", each)
    if samples != expected or problems * each != expected or benchmark.get("complete") is not True:
        raise _Fault(f"{EVALUATION} has {samples} of {_short(expected)} samples of {name}")
    pass_at = benchmark.get("pass_at") or {}
    shares = {"accuracy": benchmark.get("accuracy"), **{f"pass@{k}": share for k, share in pass_at.items()}}
    shares |= {"standard_error": benchmark["standard_error"]} if benchmark.get("standard_error") is not None else {}
    for key, value in shares.items():
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise _Fault(f"{EVALUATION} has {_short(value)} for {_short(key)} of {name}, which is from 0 to 1")


def text_of(file: Path) -> str:
    """The text of a plain file (opening a FIFO would wait).

    Raises:
        ValueError: it is something else, larger than any run's, or not text.
    """
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _Fault(f"{file.name} is not a file")
    if status.st_size > LARGEST_FILE:
        raise _Fault(f"{file.name} has {status.st_size} bytes, which no run writes")
    data = file.read_bytes()
    if b"\0" in data:
        raise _Fault(f"{file.name} has NUL bytes, as after a power cut")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Fault(f"{file.name} is not text") from None


def complete_lines(text: str) -> str:
    """The text without an unfinished last line, which is still being written or was cut by a kill."""
    return text[: text.rfind("\n") + 1]


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(text_of(file))
    except (RecursionError, json.JSONDecodeError) as error:
        raise _Fault(f"{file.name} is not JSON ({type(error).__name__}: {_short(error)})") from None
    if not isinstance(value, dict):
        raise _Fault(f"{file.name} is not a JSON object")
    return value


def _short(value: Any) -> str:
    """A value as a message has it: on one line, and not long."""
    return ascii(str(value)[:60])[1:-1]


# What a launcher knows


def for_script(**known: Any) -> dict[str, str]:
    """The variable that gives a script's `begin` these fields."""
    return {VARIABLE: json.dumps(known)}


def is_as_paper(added: Sequence[str], harmless: Collection[str]) -> bool:
    """Whether words that were added to a recipe's command change nothing in what is trained.

    Args:
        harmless: flags that may be added, or the keys of hydra's overrides.
    """
    words = list(added)
    while words:
        flag, equals, _ = words.pop(0).partition("=")
        if flag.lstrip("+") not in harmless:
            return False
        if not equals and words and not words[0].startswith("-"):
            words.pop(0)  # the flag's value
    return True


def code(*folders: Path) -> dict[str, Any]:
    """commit and modified of the git repositories that these folders are the tops of.

    commit is the first repository's. modified is true if, in one of them, a tracked file that
    trains is not as committed, or a checkout of apply.py has a commit on top of apply.py's.
    """
    states = [_state(folder) for folder in folders if folder.exists()]
    modified = [state["modified"] for state in states] or [None]
    is_modified = True if True in modified else None if None in modified else False
    return {"commit": states[0]["commit"] if states else None, "modified": is_modified}


def _state(folder: Path) -> dict[str, Any]:
    git = ("git", "-C", str(folder))
    top = _ask(*git, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != folder.resolve():
        return {"commit": None, "modified": None}
    paths = [name for name in TRAINS if (folder / name).exists()] if (folder / "apply.py").exists() else []
    status = _ask(*git, "status", "--porcelain", "--branch", "--untracked-files=no", "--", *paths)
    commit, _, author = (_ask(*git, "log", "-1", "--format=%H %ae") or "").strip().partition(" ")
    if status is None:
        return {"commit": commit or None, "modified": None}
    branch, *changed = status.splitlines()
    on_top = branch.partition("...")[0] == "## era" and not author.startswith("era-overlays@")
    return {"commit": commit or None, "modified": bool(changed) or on_top}


def _ask(*command: str) -> str | None:
    """What a command prints; None if it does not exist or fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


# The environment and the machine


def describe(packages: Sequence[str]) -> dict[str, Any]:
    """versions, hardware and threads, of this Python on this machine. Packages that are not installed have none."""
    versions = {"python": platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    threads = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(THREADS)}
    return {"versions": versions, "hardware": hardware(), "threads": threads}


def hardware() -> dict[str, Any]:
    """What the bits of a result depend on: two CPUs of one name may have other instructions.

    cpu, family, model, stepping: as the kernel names them. capability: the instructions that torch
    chooses its kernels for, where torch is installed. cores: that this process may use.
    """
    named = {"cpu": "model name", "family": "cpu family", "model": "model", "stepping": "stepping"}
    values = _first_cpu()
    machine: dict[str, Any] = {key: values[name] for key, name in named.items() if name in values}
    machine.setdefault("cpu", platform.processor() or platform.machine())
    if importlib.util.find_spec("torch"):
        import torch

        machine["capability"] = torch.backends.cpu.get_cpu_capability()
    return {**machine, "cores": cores(), "gpus": gpus()}


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_cpu() -> dict[str, str]:
    """The lines of /proc/cpuinfo about the first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def gpus() -> list[str]:
    """The names of this machine's NVIDIA GPUs."""
    names = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or ""
    return [line.strip() for line in names.splitlines() if line.strip()]


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
