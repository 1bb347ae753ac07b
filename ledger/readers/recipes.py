"""The commands and protocols of the overlays' recipes, with which a result's own are compared.

What else has the same name (a smoke run, another number of GPUs, flags of the user's) is not the ledger's."""

import importlib.util
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

from ledger.errors import LedgerError
from ledger.ledger import ROOT
from ledger.readers.run_folder import TIMED, Problems

# Flags that change nothing in what is trained: how often something is printed or kept, and who loads the data.
HARMLESS_TIMM = ["-j", "--workers", "--log-interval", "--recovery-interval", "--checkpoint-hist", "--pin-mem"]
HARMLESS_FASTTD3 = [
    "--device_rank", "--project", "--use_wandb", "--no_use_wandb", "--render_interval", "--save_interval",
]  # fmt: skip
HARMLESS_CONTROL = ["device", "compile"]  # of TD-MPC2
ANY_SEED = 2_000_000_001  # in the place of a seed
_PRINT_RUNS = f"""
import json, os, host, launch
found = {{}}
for name, kind in launch.EXPERIMENTS.items():
    for run in kind().runs(name, host.Settings(seeds=({ANY_SEED},)), []):
        at = f"{{name}}/" if name in kind.apart else ""
        script, *flags = run.command
        found[at + run.name.rpartition("-seed")[0]] = [os.path.basename(script), *flags]
print(json.dumps(found))
"""


@cache
def _module(path: str) -> ModuleType:
    """A file of the overlays that imports the standard library alone."""
    name = "recipe_" + path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, ROOT / "overlays" / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _timm_runs() -> dict[str, tuple[list[str], float]]:
    """By name: the command without seed and data folder, and after how many epochs the recipe ends it at the latest."""
    runs = _module("timm/recipes/era/runs.py")
    found = {}
    for experiment in runs.EXPERIMENTS.values():
        for run in runs.runs(experiment, runs.Settings(), []):
            name, _, _ = run.name.rpartition("-seed")
            name = TIMED + name if experiment.compares_time else name
            before = found.get(name, ([], 0))[1]
            found[name] = _without(run.command, "--seed", "--data-dir"), max(before, experiment.stop_after or math.inf)
    return found


@cache
def _fasttd3_commands() -> dict[str, list[str]]:
    """By name, without seed."""
    runs = _module("fasttd3/recipes/era/runs.py")
    commands = {}
    for experiment in runs.EXPERIMENTS.values():
        for run in runs.runs(experiment, runs.Settings(seeds=(0,)), []):
            name, _, _ = run.name.rpartition("-seed")
            commands[TIMED + name if experiment.compares_time else name] = _without(run.command, "--seed")
    return commands


@cache
def _control_commands() -> dict[str, list[str]]:
    """By name, with ANY_SEED; of a process of its own, because the recipe's modules have names like `results`."""
    folder, command = ROOT / "recipes/control", [sys.executable, "-c", _PRINT_RUNS]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if answer.returncode:
        why = answer.stderr.strip().rpartition("\n")[2]
        raise LedgerError(f"the runs of {folder} cannot be listed ({why}). Nothing was changed.")
    return json.loads(answer.stdout)


def timm(file: Path, name: str, seed: int | None) -> tuple[int | None, bool, list]:
    """Epochs to train, whether the command is the recipe's, and problems. A copy without command.txt is
    assumed to be the recipe's."""
    expected, stop = _timm_runs().get(name, (None, math.inf))
    found, fits, problems = _compare(file, expected, seed, HARMLESS_TIMM, ("--seed", "--data-dir"))
    given = [value for flag, value in _pairs(found or expected or []) if flag == "--epochs"]
    epochs = [value for value in given if re.fullmatch(r"\d{1,9}", value)]
    return min(int(epochs[-1]), stop) if epochs else None, fits, problems


def fasttd3(file: Path, name: str, seed: int | None) -> tuple[bool, list]:
    _, fits, problems = _compare(file, _fasttd3_commands().get(name), seed, HARMLESS_FASTTD3, ("--seed",))
    return fits, problems


def control(found: list[str], name: str, seed: int | None, problems: Problems) -> bool:
    """Whether the command of a run.json is the recipe's. The folders that its script is in do not matter."""
    expected = [word.replace(str(ANY_SEED), str(seed)) for word in _control_commands().get(name, ())]
    given = [*map(os.path.basename, found[:1]), *found[1:]]
    difference = _difference(expected, given, HARMLESS_CONTROL) if expected else ""
    if difference:
        problems.add(f"{difference}: it is not the ledger's, and not used")
    return not difference


def protocol(benchmark: str) -> dict | None:
    """The paper's samples and temperature, and the recipe's choice of what the paper does not name (top_p, max_tokens,
    prompt, problems); None for a benchmark that the paper does not have."""
    module = _module("verl/recipe/era/evaluation/protocol.py")
    if benchmark not in module.PROTOCOLS:
        return None
    rows = json.loads((ROOT / "overlays/verl/recipe/era/datasets.json").read_text())[benchmark]["pin"]["rows"]
    chosen = {"max_tokens": module.MAX_TOKENS, "prompt": module.PROMPTS[0], "problems": rows}
    return {**module.PROTOCOLS[benchmark]._asdict(), **chosen}


def paper_average() -> tuple[str, ...]:
    return _module("verl/recipe/era/evaluation/scores.py").PAPER_AVERAGE


def words(file: Path) -> list[str]:
    """Of a command.txt; none where it is missing or cannot be read."""
    try:
        return shlex.split(file.read_text())
    except (OSError, ValueError):
        return []


def _compare(
    file: Path, expected: list[str] | None, seed: int | None, harmless: list[str], own: tuple[str, ...]
) -> tuple[list[str], bool, list]:
    """The words of the command, whether they are as expected, and problems. expected: None for an unknown name."""
    problems = Problems(file)
    if not file.is_file():
        if expected:
            problems.add("is missing, so nothing says that this was trained as the recipe says; that is assumed")
        return [], True, problems.all()
    found = words(file)
    seeds = [value for flag, value in _pairs(found) if flag == "--seed"]
    difference = ""
    if not found:
        difference = "is not a command that can be read"
    elif expected and seed is not None and seeds != [str(seed)]:
        difference = f"has seed {', '.join(seeds) or 'none'}, and the folder's name {seed}"
    elif expected:
        difference = _difference(expected, _without(found, *own), harmless)
    if difference:
        problems.add(f"{difference}: it is not the ledger's, and not used", 1)
    return found, not difference, problems.all()


def _difference(expected: list[str], words: list[str], harmless: list[str]) -> str:
    """In words; empty if the only one is of harmless flags at the end, where the recipes put what the user adds."""
    for place, word in enumerate(expected):
        if words[place : place + 1] != [word]:
            found = words[place] if place < len(words) else "nothing"
            here = shlex.join(expected[max(0, place - 1) : place + 1])
            return f"the command has {found} where the recipe's has {here}"
    added, kept = words[len(expected) :], []
    while added:
        word = added.pop(0)
        values = [added.pop(0)] if "=" not in word and added and not added[0].startswith("-") else []
        if word.partition("=")[0] not in harmless:
            kept += [word, *values]
    return f"the command has {shlex.join(kept)} beside the recipe's" if kept else ""


def _pairs(words: list[str]) -> Iterable[tuple[str, str]]:
    """Flags and values, of --flag=value too."""
    for word, value in zip(words, [*words[1:], ""]):
        flag, equals, own = word.partition("=")
        yield (flag, own) if equals else (word, value)


def _without(words: Iterable[str], *flags: str) -> list[str]:
    kept, skip = [], False
    for word in words:
        if not skip and word not in flags:
            kept.append(word)
        skip = not skip and word in flags
    return kept
