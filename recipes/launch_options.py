# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The environment variables that steer a launch of recipes.control, recipes.vision or rivals.launch.

make passes them on. Each is a field of LaunchOptions, which `from_environment` alone fills. `--help` of the launchers
and the tables of docs/control/recipes.md and docs/vision/recipes.md (`python -m tools.declared`) are printed from
these fields. Variables that other programs define, such as CUDA_VISIBLE_DEVICES, are not options.
"""

import dataclasses
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from recipes import PROJECT, UserError

CONTROL, VISION, RIVALS, RESULTS = "recipes.control", "recipes.vision", "rivals.launch", "recipes.results"
GRIDS = (CONTROL, VISION)
LAUNCHERS = (*GRIDS, RIVALS)
# Variables that choose runs, and what is easily set in their place, after which all runs would be trained.
MISTAKEN_FOR = {
    "TASKS": ("TASK",),
    "SEED": ("SEEDS",),
    "AGENT": ("AGENTS", "ARM", "ARMS"),
    "ARMS": ("ARM", "AGENT", "AGENTS"),
}


class Value(NamedTuple):
    """What a variable may have: in words, and as the function that reads it.

    The function returns None for a text that counts as not set. It raises ValueError with what it expected.
    """

    words: str
    read: Callable[[str], Any]


def _numbers(kind: type) -> Callable[[str], tuple | None]:
    def read(text: str) -> tuple | None:
        try:
            return tuple(dict.fromkeys(map(kind, text.split()))) or None
        except ValueError:
            raise ValueError("one or several numbers") from None

    return read


def number(kind: type, least: float) -> Value:
    """One finite number that is not below `least`."""

    def read(text: str) -> Any:
        values = _numbers(kind)(text)
        if values and (len(values) > 1 or not least <= values[0] < math.inf):
            raise ValueError(f"one finite number of at least {least}")
        return values and values[0]

    return Value(f"a {'whole ' if kind is int else ''}number from {least}", read)


NAMES = Value("names", lambda text: tuple(dict.fromkeys(text.split())) or None)
INTEGERS, NUMBERS = Value("whole numbers", _numbers(int)), Value("numbers", _numbers(float))
TEXT = Value("a text", str)
SWITCH = Value("1", lambda text: text != "0")
FOLDER = Value("a folder", lambda text: Path(os.path.abspath(text)))
# A run starts in its own folder, so that a path is made absolute; a name is found on PATH.
PROGRAM = Value("a program", lambda text: os.path.abspath(text) if os.sep in text else text)


class Option(NamedTuple):
    """A variable as help and pages show it. unset: in words, by launcher, what holds where it is not set."""

    variable: str
    value: Value
    unset: Mapping[str, str]
    meaning: str


def option(
    variable: str,
    value: Value,
    launchers: str | Sequence[str],
    unset: str | Sequence[str],
    meaning: str,
    default: Any = None,
) -> Any:
    """A field of LaunchOptions.

    Args:
        launchers: those that read the variable.
        unset: in words, what holds where the variable is not set: the same for all launchers, or for each.
        default: the value where it is not set; None where the script, the machine or the experiment decides.
    """
    launchers = [launchers] if isinstance(launchers, str) else launchers
    unset = [unset] * len(launchers) if isinstance(unset, str) else unset
    about = Option(variable, value, dict(zip(launchers, unset, strict=True)), meaning)
    return dataclasses.field(default=default, metadata={"option": about})


@dataclass(frozen=True)
class LaunchOptions:
    """What the user chose. A variable that a launcher does not read has its default."""

    tasks: tuple[str, ...] | None = option(
        "TASKS",
        NAMES,
        CONTROL,
        "the grid's",
        "one or several tasks; one that the grid lacks has all agents",
    )
    seeds: tuple[int, ...] | None = option("SEED", INTEGERS, GRIDS, "the grid's", "one or several seeds, also others")
    agents: tuple[str, ...] | None = option("AGENT", NAMES, CONTROL, "the grid's", "one or several agents")
    only_tasks: tuple[str, ...] | None = option("TASKS", NAMES, RIVALS, "all", "only the runs on these tasks")
    only_seeds: tuple[int, ...] | None = option("SEED", INTEGERS, RIVALS, "all", "only the runs with these seeds")
    only_arms: tuple[str, ...] | None = option(
        "ARMS", NAMES, RIVALS, "all", "only these methods and settings, and the warm-ups: `grpo-0 era-k-8`"
    )
    gpus: int = option("GPUS", number(int, 1), VISION, "4", "GPUs of a run, each with a batch of 64", 4)
    data_dir: Path | None = option(
        "DATA_DIR", FOLDER, VISION, "`data`, `data/imagenet` in `CHECKOUTS`", "folder of the images"
    )
    min_entropies: tuple[float, ...] | None = option(
        "H0", NUMBERS, VISION, "the grid's", "one or several H0 in nats, for ERA runs and sweeps"
    )
    augmentation: int | None = option(
        "AUG", number(int, 0), VISION, "0", "1: with augmentation, where the paper does not say whether it is"
    )
    classes: int | None = option(
        "NUM_CLASSES", number(int, 1), VISION, "none", "adds `--num-classes`; without it ResNet-50 has 1,000 outputs"
    )
    epochs: int | None = option(
        "EPOCHS", number(int, 1), VISION, "the grid's", "stop after so many epochs of the schedule; go on later"
    )
    output: Path | None = option(
        "OUTPUT",
        FOLDER,
        LAUNCHERS,
        (
            "`results/control`; FastTD3: `output/era` in its checkout",
            "`output/era` in timm's checkout",
            "`results/rivals`",
        ),
        "folder of the runs",
    )
    jobs: int | None = option(
        "JOBS",
        number(int, 1),
        LAUNCHERS,
        ("what the GPUs allow; without, the cores", "what the GPUs allow", "the cores"),
        "runs at a time on this machine",
    )
    gpus_per_run: float | None = option(
        "GPUS_PER_RUN",
        number(float, 0),
        CONTROL,
        "FastTD3, TD-MPC2: 1; PPO, SAC: 0",
        "0 trains on the CPU; at 0.5 two runs share a GPU",
    )
    ray_address: str | None = option(
        "RAY_ADDRESS",
        TEXT,
        GRIDS,
        "none",
        "train as tasks of this Ray cluster (`auto`, `host:port`), whose nodes have the same paths; `local`: Ray here",
    )
    slurm: bool = option(
        "SLURM", SWITCH, GRIDS, "", "submit a Slurm array with a job for each unfinished run instead", False
    )
    cpus_per_run: int | None = option(
        "CPUS_PER_RUN",
        number(int, 1),
        GRIDS,
        ("FastTD3: 16; others: 1", "5 for each GPU: a process and its data loaders"),
        "CPUs of a job in Slurm",
    )
    run_index: int | None = option(
        "RUN_INDEX", number(int, 0), GRIDS, "all", "only this run of the grid, as the Slurm jobs have it"
    )
    checkouts: Path = option(
        "CHECKOUTS",
        FOLDER,
        (*LAUNCHERS, RESULTS),
        "`checkouts`",
        "folder of apply.py's checkouts",
        PROJECT / "checkouts",
    )
    python: str = option("PYTHON", PROGRAM, GRIDS, "the one that launches", "the Python that trains", sys.executable)
    dry_run: bool = option(
        "DRY_RUN", SWITCH, LAUNCHERS, "", "print the commands and stop; with `SLURM=1` the job's script", False
    )
    check_only: bool = option("CHECK_ONLY", SWITCH, LAUNCHERS, "", "say what is missing and stop", False)

    @classmethod
    def from_environment(cls, launcher: str) -> "LaunchOptions":
        """The options of one of LAUNCHERS. Raises UserError for a value that its variable cannot have, and for a
        variable of MISTAKEN_FOR."""
        values = {}
        for name, each in _options(cls, launcher):
            for other in MISTAKEN_FOR.get(each.variable, ()):
                if os.environ.get(other):
                    raise UserError(f"{other} chooses no runs here. Set {each.variable}, or unset {other}.")
            text = os.environ.get(each.variable, "")
            try:
                value = each.value.read(text) if text else None
            except ValueError as error:
                raise UserError(f"{each.variable}={text}: {error} expected.") from None
            if value is not None:
                values[name] = value
        return cls(**values)


def _options(options: type[LaunchOptions], launcher: str) -> Iterator[tuple[str, Option]]:
    """The name of each field that the launcher reads, and its option."""
    for field in dataclasses.fields(options):
        if launcher in field.metadata["option"].unset:
            yield field.name, field.metadata["option"]


def rows(launcher: str) -> list[list[str]]:
    """A line for each variable of the launcher: variable, value, default and meaning, in Markdown."""
    return [
        [f"`{each.variable}`", each.value.words, each.unset[launcher], each.meaning]
        for _, each in _options(LaunchOptions, launcher)
    ]


def help_of(launcher: str) -> str:
    """The same as a text for the terminal."""
    lines = ["Settings come from the environment:", ""]
    for row in rows(launcher):
        variable, value, unset, meaning = (cell.replace("`", "") for cell in row)
        about = f"{value}; default: {unset}" if unset else value
        text = textwrap.fill(f"{meaning} ({about})", 120, initial_indent=16 * " ", subsequent_indent=16 * " ")
        lines.append(f"  {variable:<14}{text[16:]}")
    return "\n".join(lines)
