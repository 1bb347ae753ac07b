"""preflight.py runs this with the Python that trains.

Reads {packages, script, tasks, era, commands, here} from stdin as JSON and prints {prefix, has_ray, problems}.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import runpy
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from unittest import mock

import environments

MUJOCO = 3  # newest major: with 4, dog and humanoid of dm_control fail


def environment_problems(packages):
    lacks = [name for name in packages if importlib.util.find_spec(name) is None]
    if lacks:
        yield (
            f"environment: {sys.executable} lacks {', '.join(lacks)}. Activate the environment that trains, or set "
            "PYTHON to its python; `make control-...` makes one."
        )
    with contextlib.suppress(PackageNotFoundError):
        found = version("mujoco")
        if int(found.partition(".")[0]) > MUJOCO:
            yield f"environment: {sys.executable} has mujoco {found}. Install mujoco<{MUJOCO + 1} there."


def task_problems(names, era, here):
    """era: those of `names` with state-level ERA."""
    reasons = {}
    for name in names:
        if not here and environments.suite(name) == "HumanoidBench":
            continue  # a login node may have no EGL
        try:
            if environments.check(name) < 2 and name in era:
                raise ValueError(environments.ONE_DIMENSION)
        except ImportError as error:
            needs = environments.NEEDS[environments.suite(name)]
            reason = f"{sys.executable} cannot import what it needs: {error}. {needs}"
            reasons.setdefault(reason, []).append(name)
        except ValueError as error:
            reasons.setdefault(str(error), []).append(name)
    for reason, found in reasons.items():
        yield f"TASKS: {', '.join(found)}: {reason}"


class Parsed(Exception):
    """Ends a script that has parsed its flags."""


def parse(script, flags):
    """By the script's own parser. Where that is not a function, the script runs until it has parsed them."""
    if "def parse_arguments(" in Path(script).read_text():
        return importlib.import_module(Path(script).stem).parse_arguments(flags)
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_end(parser):
        parse_args(parser, flags)
        raise Parsed

    with mock.patch.object(argparse.ArgumentParser, "parse_args", parse_and_end), contextlib.suppress(Parsed):
        runpy.run_path(script, run_name="__main__")


def flag_problems(script, command):
    """The script's own parser must take the flags; or its config.yaml, for Hydra, must have the keys."""
    flags, name = command[1:], os.path.basename(script)
    config = Path(script).with_name("config.yaml")
    if config.is_file():
        known = re.findall(r"(?m)^\w+(?=:)", config.read_text())
        keys = [flag.partition("=")[0] for flag in flags]
        yield from (
            f"ARGS: {config} has no key {key}." for key in keys if key.partition(".")[0] not in (*known, "hydra")
        )
        return
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            parse(script, flags)
        except SystemExit:
            yield f"ARGS: {name} refuses its flags: {said.getvalue().strip().splitlines()[-1]}"


def problems(packages, script, tasks, era, commands, here):
    found = list(environment_problems(packages))
    yield from found
    if found:
        return
    yield from task_problems(tasks, era, here)
    sys.path.insert(0, os.path.dirname(script))  # as Python does to start it
    yield from dict.fromkeys(problem for command in commands for problem in flag_problems(script, command))


if __name__ == "__main__":
    found = list(problems(**json.load(sys.stdin)))
    has_ray = importlib.util.find_spec("ray") is not None
    print(json.dumps({"prefix": sys.prefix, "has_ray": has_ray, "problems": found}))
