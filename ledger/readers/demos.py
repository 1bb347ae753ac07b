"""The three demos' results: demo/ (a task of an LLM), demo/vision (digits), demo/control (HalfCheetah).

A run counts when its run.json is there, which the demos write last. What was trained with another task, or other numbers of steps or
epochs than the demo's own, has a name that says so, and is no run of the ledger.
"""

import json
import re
from collections.abc import Set
from pathlib import Path

from ledger.commands import DEMO_LENGTHS
from ledger.readers.reading import TRAINING, Problems, Reading, Wanted, digest_of, names_of
from ledger.readers.tables import are_in_order, curves_of, read_csv
from ledger.results import Result

INFO = "run.json"
STEPS, SUMMARY, CURVES = "steps.csv", "summary.csv", "curves.csv"
CONTROL_INTERVAL = 100  # steps between two rows of FastTD3
_LLM = re.compile(r"(?P<name>chain[\w-]*)-seed(?P<seed>\d+)-steps(?P<length>\d+)")
_VISION = re.compile(r"(?P<name>baseline|era-?\d[\w.+-]*)-epochs(?P<length>\d+)-seed(?P<seed>\d+)")
_CONTROL = re.compile(r"(?P<name>fasttd3|fasttd3-no-delay|era|era-learned)-steps(?P<length>\d+)-seed(?P<seed>\d+)")


def recognises(folder: Path, names: Set[str]) -> bool:
    return _kind(folder, names) is not None


def _kind(folder: Path, names: Set[str]):
    """Match of the name, the arm, the file, its column of steps, steps between two rows, and the demo."""
    above, name = names_of(folder)
    if STEPS in names and name in ("grpo", "era") and (match := _LLM.fullmatch(above)):
        return match, f"-{name}", STEPS, "step", 1, "demo"
    if SUMMARY in names and (match := _VISION.fullmatch(name)):
        return match, "", SUMMARY, "epoch", 1, "demo-vision"
    if CURVES in names and (match := _CONTROL.fullmatch(name)):
        return match, "", CURVES, "global_step", CONTROL_INTERVAL, "demo-control"
    return None


def read(folder: Path, wanted: Wanted) -> list[Reading]:
    match, arm, name_of_file, column, every, demo = _kind(folder, {file.name for file in folder.iterdir()})
    variable, usual = DEMO_LENGTHS[demo]
    unit = variable.lower()
    file, total = folder / name_of_file, int(match["length"])
    problems = Problems(file)
    name = f"demo/{match['name']}{arm}" + ("" if total == usual else f", {total} {unit}")
    needed = wanted.by(TRAINING, name)
    from_zero = column == "epoch"
    log = read_csv(file, column, sorted(needed), problems)
    good = are_in_order(log, problems, first=0 if from_zero else every, every=every, resumes=False) and bool(log.steps)
    curves = curves_of(log, needed, problems, shift=int(from_zero), say=good)
    steps = log.last_step + from_zero if log.steps else 0
    info = _info(folder / INFO)
    said = Problems(folder / INFO)
    if info is None:
        said.add("is lacking or not whole, and the demos write it last: the run is not used")
    if steps != total and log.steps:
        problems.add(f"ends at {steps} of {total} {unit}")
    result = Result(
        kind=TRAINING, name=name, seed=int(match["seed"]), folder=str(folder), finished=info is not None and steps >= total, steps=steps, total=total,
        curves=curves, used=good and info is not None, hardware=_hardware(info),
    )  # fmt: skip
    return [Reading(result, problems.all() + said.all(), digest_of(file), _settings(info))]


def _info(file: Path) -> dict | None:
    try:
        info = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and info.get("key") else None


def _settings(info: dict | None) -> str:
    """The code and the flags without the seed."""
    key = (info or {}).get("key")
    code = key.get("code") if isinstance(key, dict) else key
    flags = (info or {}).get("flags")  # the LLM's demo has none
    flags = [str(flag) for flag in flags if not str(flag).startswith("--seed=")] if isinstance(flags, list) else []
    return f"code {str(code)[:12]}, {' '.join(flags) or 'no flags'}" if info else ""


def _hardware(info: dict | None) -> str:
    machine = (info or {}).get("machine")
    return f"{machine.get('cores')} cores, {machine.get('cpu')}" if isinstance(machine, dict) else ""
