"""The three demos' results: demo/llm (a task of an LLM), demo/vision (digits), demo/control (HalfCheetah).

A result counts when its run.json is there, which the demos write last. What was trained with another task, or for
another number of steps or epochs than the demo's own, has a name that says so, and is not in the ledger.
"""

import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from ledger.commands import DEMO_LENGTHS
from ledger.readers.run_folder import TRAINING, Needs, Problems, RunFolder, digest_of, names_of, read_json
from ledger.readers.tables import are_in_order, curves_of, read_csv
from ledger.results import Result

INFO = "run.json"


@dataclass(frozen=True)
class Format:
    """file: of the curves. step: its column. every: steps between two rows."""

    demo: str
    folder: re.Pattern
    file: str
    step: str
    every: int


FORMATS = (
    Format("demo", re.compile(r"(?P<name>chain[\w-]*)-seed(?P<seed>\d+)-steps(?P<length>\d+)"), "steps.csv", "step", 1),
    Format(
        "demo-vision",
        re.compile(r"(?P<name>baseline|era-?\d[\w.+-]*)-epochs(?P<length>\d+)-seed(?P<seed>\d+)"),
        "summary.csv",
        "epoch",
        1,
    ),
    Format(
        "demo-control",
        re.compile(r"(?P<name>fasttd3|fasttd3-no-delay|era|era-learned)-steps(?P<length>\d+)-seed(?P<seed>\d+)"),
        "curves.csv",
        "global_step",
        100,
    ),
)


def recognises(folder: Path, names: Set[str]) -> bool:
    return _format_of(folder, names) is not None


def _format_of(folder: Path, names: Set[str]) -> tuple[Format, re.Match, str] | None:
    """Its format, the parts of its name, and its name in the ledger. The LLM demo's arms are folders of their own."""
    above, name = names_of(folder)
    for found in FORMATS:
        is_llm = found.demo == "demo"
        match = found.folder.fullmatch(above if is_llm else name)
        if match and found.file in names and (not is_llm or name in ("grpo", "era")):
            return found, match, f"demo/{match['name']}" + (f"-{name}" if is_llm else "")
    return None


def read(folder: Path, needs: Needs) -> list[RunFolder]:
    found, match, name = _format_of(folder, {file.name for file in folder.iterdir()})
    variable, usual = DEMO_LENGTHS[found.demo]
    unit, total, file = variable.lower(), int(match["length"]), folder / found.file
    info = read_json(folder / INFO)
    info = info if info.get("key") else None
    if total != usual:
        name += f", {total} {unit}"
    name += _another_verl(info)
    problems, info_problems = Problems(file), Problems(folder / INFO)
    needed, from_zero = needs.metrics(TRAINING, name), found.step == "epoch"
    log = read_csv(file, found.step, sorted(needed), problems)
    first = 0 if from_zero else found.every
    used = are_in_order(log, problems, first, found.every, resumes=False) and bool(log.steps)
    curves = curves_of(log, needed, problems, shift=int(from_zero), say=used)
    steps = log.last_step + from_zero if log.steps else 0
    if log.steps and steps != total:
        problems.add(f"ends at {steps} of {total} {unit}")
    if info is None:
        info_problems.add("is missing or incomplete, and the demos write it last: the result is not used")
    result = Result(
        TRAINING, name, int(match["seed"]), str(folder), info is not None and steps >= total, steps, total,
        curves=curves, used=used and info is not None, hardware=_hardware(info or {}),
    )  # fmt: skip
    return [RunFolder(result, problems.all() + info_problems.all(), digest_of(file), _settings(info))]


def _another_verl(info: dict | None) -> str:
    """The ledger has the LLM demo with v0.4.1."""
    versions = info["key"].get("versions", {}) if info and isinstance(info["key"], dict) else {}
    verl = versions.get("verl", "0.4.1")
    return "" if verl == "0.4.1" else f", verl {verl}"


def _settings(info: dict | None) -> str:
    """The code and the flags without the seed."""
    if info is None:
        return ""
    code = info["key"].get("code") if isinstance(info["key"], dict) else info["key"]
    flags = info.get("flags") if isinstance(info.get("flags"), list) else []  # the LLM demo has none
    shown = " ".join(str(flag) for flag in flags if not str(flag).startswith("--seed="))
    return f"code {str(code)[:12]}, {shown or 'no flags'}"


def _hardware(info: dict) -> str:
    machine = info.get("machine")
    return f"{machine.get('cores')} cores of {machine.get('cpu')}" if isinstance(machine, dict) else ""
